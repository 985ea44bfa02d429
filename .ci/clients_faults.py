"""Faults, gates, limits and the journal, with the official openai Python SDK as the client that meets them.

    python .ci/clients_faults.py [--server PATH] [--python PYTHON]

Each fault must reach the program as the class that the SDK documents; its retries are looked at in the server's journal.
Prints one line per check and, last, "N passed, M failed"; the exit status is 1 when any failed. Run it with the Python of
an environment that holds `openai` (.ci/requirements-openai.txt); --python runs the server.
"""

import argparse
import json
import sys
import threading
import urllib.request

import openai
from openai import OpenAI

from reporting import Report, need, same
from servers import WAIT_S, Server

ASK = [{"role": "user", "content": "What does the sea say to the ship?"}]

# What a fault becomes: (fault, streamed, the SDK's class, or the standard library's where it lets that through)
CLASSES = [
    ("error:status=400", False, openai.BadRequestError),
    ("error:status=401", False, openai.AuthenticationError),
    ("error:status=403", False, openai.PermissionDeniedError),
    ("error:status=404", False, openai.NotFoundError),
    ("error:status=409", False, openai.ConflictError),
    ("error:status=422", False, openai.UnprocessableEntityError),
    ("error:status=429", False, openai.RateLimitError),
    ("error:status=429,code=insufficient_quota", False, openai.RateLimitError),
    ("error:status=500", False, openai.InternalServerError),
    ("error:status=502,body=html", False, openai.InternalServerError),
    ("error:status=503", True, openai.InternalServerError),
    ("slow_headers:ms=60000", False, openai.APITimeoutError),
    ("stall:ms=60000", False, openai.APITimeoutError),
    ("stall:ms=60000,heartbeats=false", True, openai.APITimeoutError),
    ("cut:where=headers", False, openai.APIConnectionError),
    ("cut:where=headers,how=rst", True, openai.APIConnectionError),
    ("cut:where=frame", False, openai.APIConnectionError),
    ("cut:event=3", True, openai.APIConnectionError),
    ("cut:event=3,how=rst", True, openai.APIConnectionError),
    ("cut:event=3,where=frame", True, openai.APIConnectionError),
    ("cut:event=3,where=character", True, openai.APIConnectionError),
    ("bad_chunk:event=3", True, openai.APIConnectionError),
    ("wrong_length:bytes=5", False, openai.APIConnectionError),
    ("malformed", False, json.JSONDecodeError),
    ("malformed", True, json.JSONDecodeError),
    ("failed:event=4", True, openai.APIError),
]

# Faults that a client has to bear: the text is whole all the same.
BORNE = ["split:event=3", "split:event=3,where=frame", "slow_body:bytes=40,ms=0", "long_line", "sse:form=crlf", "sse:form=no_space",
         "sse:form=multi_line", "sse:form=fields", "no_terminal:only=done", "extra:form=empty_choices", "close",
         "stall:event=3,ms=50"]


class Room:
    """A server with a journal and a client of it."""

    def __init__(self, options, *flags):
        self.server = Server(options, "--ttft-ms", "0", "--itl-ms", "1", "--output-tokens", "8", "--journal", "100",
                             "--heartbeat-s", "0.05", *flags)
        self.client = OpenAI(base_url=self.server.url + "/v1", api_key="any", max_retries=0, timeout=1.0)

    def control(self, method, path, body=None):
        data = None if body is None else json.dumps(body).encode("utf-8")
        request = urllib.request.Request(self.server.url + "/_mockturtle/" + path, data, {}, method=method)
        with urllib.request.urlopen(request, timeout=WAIT_S) as answer:
            return json.load(answer)

    def requests(self):
        return self.control("GET", "requests?limit=100")["data"]

    def findings(self):
        return [finding["kind"] for finding in self.control("GET", "verdict")["findings"]]

    def begin(self, fault=None, **choice):
        self.control("POST", "reset", None)
        if fault is not None:
            self.control("POST", "faults", dict(choice, fault=fault))

    def chat(self, streamed, client=None, **headers):
        headers = {name.replace("_", "-"): value for name, value in headers.items()}
        made = (client or self.client).chat.completions.create(model="mock-model", messages=ASK, stream=streamed, seed=1,
                                                               extra_headers=headers)
        if not streamed:
            return made.choices[0].message.content
        return "".join(chunk.choices[0].delta.content or "" for chunk in made if chunk.choices)

    def respond(self, streamed, **headers):
        made = self.client.responses.create(model="mock-model", input=ASK[0]["content"], stream=streamed, extra_headers={
            name.replace("_", "-"): value for name, value in headers.items()})
        return [event.type for event in made] if streamed else made


def becomes(room, fault, streamed, kind):
    room.begin()
    for call in (room.chat, room.respond):
        try:
            call(streamed, x_mockturtle_fault=fault)
        except Exception as error:
            same(type(error), kind, "the exception of %s (%s)" % (call.__name__, error))
        else:
            raise AssertionError("no exception of %s, where %s was due" % (call.__name__, kind.__name__))
    room.client.close()                     # a connection that is out of step is not to be used again
    room.client = OpenAI(base_url=room.server.url + "/v1", api_key="any", max_retries=0, timeout=1.0)


def borne(room, fault):
    room.begin()
    whole = room.chat(True)
    same(room.chat(True, x_mockturtle_fault=fault), whole, "the text")
    same(room.respond(True, x_mockturtle_fault=fault)[-1], "response.completed", "the last event")
    same(room.chat(True), whole, "the next one's text")


def retries(room):
    for fault, tries in (("error:status=500", 3), ("error:status=429,retry_after_s=0.3", 3), ("error:status=409", 3),
                         ("cut:where=headers", 3), ("error:status=400", 1), ("error:status=500,should_retry=false", 1),
                         ("error:status=400,should_retry=true,retry_after_s=0", 3)):
        room.begin(fault)
        try:
            room.chat(False, room.client.with_options(max_retries=2))
        except openai.APIError:
            pass
        seen = room.requests()
        same(len(seen), tries, "the tries after " + fault)
        same([entry["headers"]["x-stainless-retry-count"] for entry in seen], [str(number) for number in range(tries)],
             "the counts of retries")
        same([kind for kind in room.findings() if kind != "retried_non_retryable"], [], "the findings after " + fault)


def waits_as_told(room):
    room.begin("error:status=429,retry_after_s=0.6", times=1)
    need(room.chat(False, room.client.with_options(max_retries=1)), "no text")
    first, second = room.requests()
    waited_s = second["time"] - first["time"]
    need(0.55 <= waited_s < 2, "it came back after %.3f s" % waited_s)
    same(room.findings(), [], "the findings")


def impatient(room):
    room.begin("error:status=429,retry_after_s=5", times=1)
    for _ in range(2):
        try:
            room.chat(False)
        except openai.RateLimitError as error:
            same(error.response.headers["retry-after"], "5", "Retry-After")
    same(room.findings(), ["ignored_retry_after"], "the findings")


def stop_button(room):
    room.begin()
    stream = room.client.chat.completions.create(model="mock-model", messages=ASK, stream=True,
                                                 extra_headers={"x-mockturtle-gate": "stop@4"})
    for _ in range(3):
        next(stream)
    same(room.control("GET", "gates/stop?wait_s=5")["waiting"][0]["events_sent"], 3, "events sent")
    stream.close()
    seen = room.requests()[0]
    for _ in range(100):
        if seen["client_left"]:
            break
        threading.Event().wait(0.02)
        seen = room.requests()[0]
    same((seen["client_left"], seen["events_sent"]), (True, 3), "what the journal says")
    same(room.control("GET", "gates")["data"][0]["waiting"], [], "who waits")


def gate_opens(room):
    room.begin()
    found = []
    thread = threading.Thread(target=lambda: found.append(room.chat(False, x_mockturtle_gate="go")))
    thread.start()
    same(room.control("GET", "gates/go?wait_s=5")["reached"], 1, "reached")
    room.control("POST", "gates/go/open", None)
    thread.join(WAIT_S)
    need(found and found[0], "no text after the gate was opened")


def lost_previous(room):
    room.begin()
    first = room.respond(False)
    try:
        room.client.responses.create(model="mock-model", input="more", previous_response_id=first.id,
                                     extra_headers={"x-mockturtle-fault": "lost_previous"})
    except openai.BadRequestError as error:
        same((error.code, error.param), ("previous_response_not_found", "previous_response_id"), "code and param")
    else:
        raise AssertionError("no exception")


def ends_of_responses(room):
    room.begin()
    same(room.respond(False, x_mockturtle_fault="failed").status, "failed", "status")
    made = room.respond(False, x_mockturtle_fault="incomplete:reason=content_filter")
    same((made.status, made.incomplete_details.reason), ("incomplete", "content_filter"), "status and reason")
    same(room.respond(True, x_mockturtle_fault="incomplete")[-1], "response.incomplete", "the last event")
    need("response.completed" not in room.respond(True, x_mockturtle_fault="no_terminal"), "a terminal event came")


def limits(room):
    told = room.client.chat.completions.with_raw_response.create(model="mock-model", messages=ASK).headers
    same((told["x-ratelimit-limit-requests"], told["x-ratelimit-remaining-requests"]), ("3", "2"), "the headers")
    for _ in range(2):
        room.chat(True)
    try:
        room.chat(False)
    except openai.RateLimitError as error:
        same((error.code, error.type), ("rate_limit_exceeded", "requests"), "code and type")
        need(int(error.response.headers["retry-after-ms"]) <= 200, "retry-after-ms is wrong")
    else:
        raise AssertionError("no exception")
    need(room.chat(False, room.client.with_options(max_retries=2)), "no text after the wait")


def main():
    parser = argparse.ArgumentParser()
    parser.add_argument("--server", default="server.py")
    parser.add_argument("--python", default=sys.executable)
    options = parser.parse_args()
    report = Report()
    room = Room(options)
    for fault, streamed, kind in CLASSES:
        report.run("%s%s is %s" % (fault, ", streamed," if streamed else "", kind.__name__), becomes, room, fault, streamed, kind)
    for fault in BORNE:
        report.run("%s is borne" % fault, borne, room, fault)
    for title, function in (("what is retried, and how often", retries), ("a retry waits as Retry-After says", waits_as_told),
                            ("the verdict finds who does not wait", impatient), ("a stop button, without a sleep", stop_button),
                            ("a plain answer waits at a gate", gate_opens), ("a lost previous response", lost_previous),
                            ("failed, incomplete and unfinished responses", ends_of_responses)):
        report.run(title, function, room)
    for wrong in room.server.stop():
        report.tell("the server ends well", wrong)
    room = Room(options, "--requests-per-minute", "3", "--time-scale", "0.01")
    report.run("rate limits", limits, room)
    for wrong in room.server.stop():
        report.tell("the server ends well", wrong)
    return report.close()


if __name__ == "__main__":
    sys.exit(main())
