"""The official SDK through the gateway, onto upstreams that are not ours, and onto ourselves.

    python clients_gateway.py --python PYTHON --server server.py --guidellm PROGRAM --aimock SCRIPT

Each upstream is started on a free loopback port with the gateway in front; all are ended by their process id. One
line per check and, last, "N passed, M failed".
"""

import argparse
import json
import os
import socket
import subprocess
import sys
import tempfile
import time
import urllib.request

from openai import APIStatusError, OpenAI

from reporting import Report, need, same
from servers import WAIT_S, Server

WEATHER = {
    "type": "function",
    "name": "get_weather",
    "description": "The weather of a city",
    "parameters": {"type": "object", "properties": {"city": {"type": "string"}}, "required": ["city"]},
}
FIXTURES = {
    "fixtures": [
        {"match": {"userMessage": "weather", "sequenceIndex": 0},
         "response": {"toolCalls": [{"name": "get_weather", "arguments": '{"city":"Oslo"}'}]}},
        {"match": {"model": "mock-model"}, "response": {"content": "The sea was calm and the wind came from the south."}},
    ]
}
QUESTION = "What does the sea say to the ship?"
WEATHER_QUESTION = "What is the weather in Oslo?"


def free_port():
    with socket.socket() as sock:
        sock.bind(("127.0.0.1", 0))
        return sock.getsockname()[1]


class Upstream:
    """A process that serves chat completions on a port. health: a path that answers 200."""

    def __init__(self, command, port, health):
        self.log = tempfile.TemporaryFile()
        self.url = "http://127.0.0.1:%d/v1" % port
        self.process = subprocess.Popen(command, stdin=subprocess.DEVNULL, stdout=self.log, stderr=self.log)
        deadline = time.monotonic() + 3 * WAIT_S
        while True:
            try:
                with urllib.request.urlopen("http://127.0.0.1:%d%s" % (port, health), timeout=2):
                    return
            except OSError as exc:
                if self.process.poll() is not None or time.monotonic() > deadline:
                    self.stop()
                    raise AssertionError("the upstream does not start: %s %s" % (
                        exc, os.pread(self.log.fileno(), 3000, 0).decode("utf-8", "replace")))
                time.sleep(0.1)

    def stop(self):
        if self.process.poll() is None:
            self.process.terminate()
            try:
                self.process.wait(WAIT_S)
            except subprocess.TimeoutExpired:
                self.process.kill()
                self.process.wait(WAIT_S)


def start_guidellm(options, folder):
    port = free_port()
    return Upstream([options.guidellm, "mock-server", "--host", "127.0.0.1", "--port", str(port), "--model", "mock-model",
                     "--request-latency", "0", "--ttft-ms", "10", "--itl-ms", "2", "--output-tokens", "12"], port, "/health")


def start_aimock(options, folder):
    port, path = free_port(), os.path.join(folder, "fixtures.json")
    with open(path, "w", encoding="utf-8") as file:
        json.dump(FIXTURES, file)
    return Upstream(["node", options.aimock, "-p", str(port), "-f", path, "--chunk-size", "6", "--log-level", "silent"],
                    port, "/health")


def start_ourselves(options, folder):
    port = free_port()
    return Upstream([options.python, options.server, "--port", str(port), "--ttft-ms", "5", "--itl-ms", "1",
                     "--output-tokens", "24"], port, "/health")


# ---- checks: each takes (client, whether the upstream calls tools) -----------------------------

def chat_plain(client, tools):
    answer = client.chat.completions.create(model="mock-model", messages=[{"role": "user", "content": QUESTION}])
    need(answer.choices[0].message.content.strip(), "no text")
    same(answer.choices[0].finish_reason, "stop")
    need(answer.usage.completion_tokens > 0, "no usage")


def chat_stream(client, tools):
    text, usage, reason = "", None, None
    for chunk in client.chat.completions.create(model="mock-model", messages=[{"role": "user", "content": QUESTION}],
                                                stream=True, stream_options={"include_usage": True}):
        usage = chunk.usage or usage
        for choice in chunk.choices:
            text += choice.delta.content or ""
            reason = choice.finish_reason or reason
    need(text.strip(), "no text")
    same(reason, "stop")
    need(usage.completion_tokens > 0, "no usage")


def responses_plain_and_chain(client, tools):
    first = client.responses.create(model="mock-model", input=QUESTION)
    second = client.responses.create(model="mock-model", input="And then?", previous_response_id=first.id)
    need(first.output_text.strip() and second.output_text.strip(), "no text")
    need(first.usage.output_tokens > 0, "no usage")
    items = client.responses.input_items.list(second.id, order="asc").data
    same([item.role for item in items], ["user", "assistant", "user"], "the chain's roles")
    same(client.responses.retrieve(first.id).output_text, first.output_text)


def responses_stream(client, tools):
    text, types = "", []
    with client.responses.stream(model="mock-model", input=QUESTION) as stream:
        for event in stream:
            types.append(event.type)
            if event.type == "response.output_text.delta":
                text += event.delta
        final = stream.get_final_response()
    same(text, final.output_text, "the deltas")
    same((types[0], types[-1], final.status), ("response.created", "response.completed", "completed"))
    need(types.count("response.output_text.delta") > 1, "one delta only: it was collected on the way")


def responses_background(client, tools):
    made = client.responses.create(model="mock-model", input=QUESTION, background=True)
    deadline = time.monotonic() + WAIT_S
    while made.status in ("queued", "in_progress") and time.monotonic() < deadline:
        time.sleep(0.02)
        made = client.responses.retrieve(made.id)
    same(made.status, "completed")
    need(made.output_text.strip(), "no text")


def conversation(client, tools):
    talk = client.conversations.create()
    client.responses.create(model="mock-model", input=QUESTION, conversation=talk.id)
    client.responses.create(model="mock-model", input="And then?", conversation=talk.id)
    same(len(client.conversations.items.list(talk.id).data), 4, "items")


def tool_loop(client, tools):
    if not tools:
        return
    first = client.responses.create(model="mock-model", input=WEATHER_QUESTION, tools=[WEATHER])
    call = first.output[-1]
    same((call.type, call.name), ("function_call", "get_weather"))
    need(isinstance(json.loads(call.arguments)["city"], str), call.arguments)
    second = client.responses.create(model="mock-model", previous_response_id=first.id, tools=[WEATHER], input=[
        {"type": "function_call_output", "call_id": call.call_id, "output": "18 degrees"}])
    need(second.output_text.strip(), "no text after the tool")


def models(client, tools):
    need("mock-model" in [model.id for model in client.models.list()], "the upstream's model is not listed")


def refusal(client, tools):
    try:
        client.responses.create(model="mock-model", input=[])
    except APIStatusError as error:
        same(error.status_code, 400)
    else:
        raise AssertionError("an empty input was accepted")


CHECKS = (chat_plain, chat_stream, responses_plain_and_chain, responses_stream, responses_background, conversation, tool_loop,
          models, refusal)
UPSTREAMS = (("guidellm", start_guidellm, False), ("aimock", start_aimock, True), ("ourselves", start_ourselves, True))


def run_shared_cases(options, report):
    """The gateway cases of tests/data/cases, one check each; the runner starts the awkward upstream."""
    url = "http://127.0.0.1:%d/v1" % free_port()
    server = Server(options, "--backend", "upstream", "--upstream-url", url)
    done = subprocess.run([options.python, "tests/data/cases/run_cases.py", server.url, "--gateway", url], timeout=120,
                          stdin=subprocess.DEVNULL, stdout=subprocess.PIPE, universal_newlines=True)
    for line in done.stdout.splitlines():
        verdict, _, title = line.partition(" ")
        if verdict in ("ok", "FAIL"):
            report.tell("awkward: " + title, None if verdict == "ok" else "see there")
    report.tell("awkward: all cases, and the gateway ends as it should", "; ".join(
        server.stop() + ([] if done.returncode == 0 else ["status %d" % done.returncode])))


def main():
    parser = argparse.ArgumentParser()
    for name in ("python", "server", "guidellm", "aimock"):
        parser.add_argument("--" + name, required=True)
    options = parser.parse_args()
    report = Report()
    run_shared_cases(options, report)
    with tempfile.TemporaryDirectory() as folder:
        for name, start, tools in UPSTREAMS:
            try:
                upstream = start(options, folder)
            except (AssertionError, OSError) as exc:
                report.tell(name + ": starts", str(exc))
                continue
            try:
                server = Server(options, "--backend", "upstream", "--upstream-url", upstream.url)
                with OpenAI(base_url=server.url + "/v1", api_key="sk-loopback", max_retries=0, timeout=WAIT_S) as client:
                    for check in CHECKS:
                        report.run("%s: %s" % (name, check.__name__.replace("_", " ")), check, client, tools)
                wrong = server.stop()
                report.tell(name + ": the gateway ends as it should", "; ".join(wrong))
            finally:
                upstream.stop()
    sys.exit(report.close())


if __name__ == "__main__":
    main()
