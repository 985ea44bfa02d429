"""The official SDK records through the gateway, then drives the same script against the recordings alone.

    python clients_replay.py --python PYTHON --server server.py

Three servers: ours as an upstream with a key, the gateway that records, and, when both are gone, the replay. One line
per check and, last, "N passed, M failed".
"""

import argparse
import os
import sys
import tempfile
import time

from openai import APIStatusError, NotFoundError, OpenAI

from reporting import Report, need, same
from servers import WAIT_S, Server

UPSTREAM_KEY = "sk-upstream-4711-0815"
CLIENT_KEY = "sk-client-2718-2818"
WEATHER = {
    "type": "function",
    "name": "get_weather",
    "description": "The weather of a city",
    "parameters": {"type": "object", "properties": {"city": {"type": "string"}}, "required": ["city"]},
}
PERSON = {"type": "object", "properties": {"name": {"type": "string"}, "age": {"type": "integer"}},
          "required": ["name", "age"], "additionalProperties": False}


# ---- the script: each takes (client, date) and returns what was said ---------------------------

def chat_plain(client, date):
    answer = client.chat.completions.create(model="mock-model", user=date, messages=[
        {"role": "system", "content": "Today is %s." % date}, {"role": "user", "content": "Name a river."}])
    return answer.choices[0].message.content, answer.usage.total_tokens


def chat_again(client, date):
    """The same request once more: another answer, each time it was recorded."""
    return chat_plain(client, date)


def chat_stream(client, date):
    said, began = [], time.monotonic()
    for chunk in client.chat.completions.create(model="mock-model", messages=[{"role": "user", "content": "Name a lake."}],
                                                stream=True, stream_options={"include_usage": True}):
        said += [choice.delta.content for choice in chunk.choices if choice.delta.content]
    need(time.monotonic() - began > 0.2, "faster than it was recorded")
    return said


def responses_chain_with_a_tool(client, date):
    first = client.responses.create(model="mock-model", tools=[WEATHER], metadata={"run": date},
                                    input="It is %s. What is the weather in Oslo?" % date)
    call = first.output[-1]
    same((call.type, call.name), ("function_call", "get_weather"))
    second = client.responses.create(model="mock-model", previous_response_id=first.id, tools=[WEATHER], input=[
        {"type": "function_call_output", "call_id": call.call_id, "output": "18 degrees (%s)" % first.id}])
    with client.responses.stream(model="mock-model", previous_response_id=second.id, tools=[WEATHER],
                                 input="And tomorrow, in words?") as stream:
        said = [event.delta for event in stream if event.type == "response.output_text.delta"]
        third = stream.get_final_response()
    same("".join(said), third.output_text, "the deltas")
    return call.arguments, second.output_text, said, third.usage.total_tokens


def responses_background(client, date):
    made = client.responses.create(model="mock-model", input="Name ten rivers.", background=True)
    deadline = time.monotonic() + WAIT_S
    while made.status in ("queued", "in_progress") and time.monotonic() < deadline:
        time.sleep(0.02)
        made = client.responses.retrieve(made.id)
    same(made.status, "completed")
    return made.output_text


def structured(client, date):
    form = {"type": "json_schema", "name": "person", "schema": PERSON, "strict": True}
    return client.responses.create(model="mock-model", input="Who?", text={"format": form}).output_text


def embedding(client, date):
    return client.embeddings.create(model="mock-model", input=["the sea", "the lake"], dimensions=8).data[1].embedding


def completion(client, date):
    answer = client.completions.create(model="mock-model", prompt=["One", "Two"], max_tokens=6)
    return [choice.text for choice in answer.choices]


def refusal(client, date):
    """What the upstream itself refuses."""
    try:
        client.chat.completions.create(model="mock-model", messages=[{"role": "user", "content": "x"}], top_logprobs=3)
    except APIStatusError as error:
        return error.status_code, error.body
    raise AssertionError("it was accepted")


SCRIPT = (chat_plain, chat_again, chat_stream, responses_chain_with_a_tool, responses_background, structured, embedding,
          completion, refusal)


def drive(report, name, url, date):
    """Run the script; {step: what was said}."""
    said = {}

    def step(function, client):
        said[function.__name__] = function(client, date)
        need(said[function.__name__], "nothing was said")
    with OpenAI(base_url=url + "/v1", api_key=CLIENT_KEY, max_retries=0, timeout=WAIT_S) as client:
        for function in SCRIPT:
            report.run("%s: %s" % (name, function.__name__.replace("_", " ")), step, function, client)
    return said


def check_secrets(folder):
    names = [name for name in os.listdir(folder) if name.endswith(".json")]
    need(len(names) >= len(SCRIPT) + 1, "%d recordings" % len(names))
    for name in os.listdir(folder):
        with open(os.path.join(folder, name), "rb") as file:
            content = file.read()
        for secret in (UPSTREAM_KEY, CLIENT_KEY):
            need(secret.encode() not in content, "%s has a key" % name)


def check_miss(url):
    with OpenAI(base_url=url + "/v1", api_key=CLIENT_KEY, max_retries=0, timeout=WAIT_S) as client:
        try:
            client.responses.create(model="mock-model", input="Name a mountain.")
        except NotFoundError as error:
            same((error.code, error.type), ("recording_not_found", "replay_error"))
            need("where the request has 'Name a mountain.'" in error.message, error.message)
            return
    raise AssertionError("it was answered")


def check_fallback(url):
    with OpenAI(base_url=url + "/v1", api_key=CLIENT_KEY, max_retries=0, timeout=WAIT_S) as client:
        need(client.responses.create(model="mock-model", input="Name a mountain.").output_text, "no text")


def record(report, folder, start):
    """The script through the gateway onto a server of ours; {step: what was said}."""
    upstream = start("--api-key", UPSTREAM_KEY, "--ttft-ms", "20", "--itl-ms", "10", "--output-tokens", "24")
    os.environ["REPLAY_UPSTREAM_KEY"] = UPSTREAM_KEY
    gateway = start("--backend", "upstream", "--upstream-url", upstream.url + "/v1", "--upstream-api-key-env",
                    "REPLAY_UPSTREAM_KEY", "--record", folder)
    said = drive(report, "recorded", gateway.url, "2026-11-29")
    for name, server in (("the gateway", gateway), ("the upstream", upstream)):
        report.tell("%s ends as it should" % name, "; ".join(server.stop()))
    report.run("no key is in any recording", check_secrets, folder)
    return said


def replay(report, folder, start, recorded):
    server = start("--backend", "replay", "--replay", folder)
    played = drive(report, "replayed", server.url, "2027-01-02")
    for function in SCRIPT:
        title = "the same is said: " + function.__name__.replace("_", " ")
        report.run(title, same, played.get(function.__name__), recorded.get(function.__name__))
    report.run("what has no recording is told", check_miss, server.url)
    report.tell("the replay ends as it should", "; ".join(server.stop()))
    server = start("--backend", "replay", "--replay", folder, "--replay-fallback", "simulated", "--replay-speed", "0")
    report.run("what has no recording can be simulated", check_fallback, server.url)
    report.tell("the fallback ends as it should", "; ".join(server.stop()))


def main():
    parser = argparse.ArgumentParser()
    for name in ("python", "server"):
        parser.add_argument("--" + name, required=True)
    options = parser.parse_args()
    report, servers = Report(), []

    def start(*flags):
        servers.append(Server(options, *flags))
        return servers[-1]
    try:
        with tempfile.TemporaryDirectory() as folder:
            replay(report, folder, start, record(report, folder, start))
    finally:
        for server in servers:
            server.stop()
    sys.exit(report.close())


if __name__ == "__main__":
    main()
