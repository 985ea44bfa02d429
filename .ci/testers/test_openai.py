"""The openai SDK: retries, limits, cut streams, a tool loop, a stop button; and every kind of fault as it reaches it."""

import json
import threading
import unittest

import openai
from faults import FAULT_KINDS
from openai import OpenAI
from server import MockTurtle, MockTurtleTestCase

ASK = [{"role": "user", "content": "What is the weather in Oslo?"}]
WEATHER = {"type": "function", "function": {"name": "get_weather", "parameters": {"type": "object", "properties": {}}}}
SAID = "One two three four."


def chat(client, messages=ASK, **more):
    return client.chat.completions.create(model="gpt-5", messages=messages, **more)


def text_of(stream):
    return "".join(chunk.choices[0].delta.content or "" for chunk in stream if chunk.choices)


class OpenAICase(MockTurtleTestCase, unittest.TestCase):
    mixes_into_tests = True
    mock_settings = {"output_tokens": 6}

    def client(self, retries=0, timeout=5.0):
        """One that knows the environment's variables alone."""
        client = OpenAI(max_retries=retries, timeout=timeout)
        self.addCleanup(client.close)
        return client


class MannersTest(OpenAICase):

    def test_what_is_retried_and_how_often(self):
        for fault, tries, error in (
                ("error:status=503,retry_after_s=0.05", 3, openai.InternalServerError),
                ("error:status=429,retry_after_s=0.05", 3, openai.RateLimitError),
                ("error:status=409,retry_after_s=0.05", 3, openai.ConflictError),
                ("error:status=400", 1, openai.BadRequestError),
                ("error:status=500,should_retry=false", 1, openai.InternalServerError)):
            with self.subTest(fault=fault):
                self.mock.reset()
                self.mock.fault(fault)
                with self.assertRaises(error):
                    chat(self.client(2))
                self.mock.assert_call_count(tries)
                self.assertEqual([request.headers["x-stainless-retry-count"] for request in self.mock.requests],
                                 [str(number) for number in range(tries)])
                self.mock.assert_no_findings()

    def test_a_retry_waits_as_it_is_told(self):
        self.mock.reply("Done.")
        self.mock.fault("error:status=429,retry_after_s=0.4", times=1)
        self.assertEqual(chat(self.client(1)).choices[0].message.content, "Done.")
        first, second = self.mock.requests
        self.assertGreaterEqual(second.started_s - first.started_s, 0.35)
        self.mock.assert_no_findings()

    def test_who_asks_again_at_once_is_found(self):
        self.mock.fault("error:status=429,retry_after_s=5", times=1)
        client = self.client()
        with self.assertRaises(openai.RateLimitError):
            chat(client)
        chat(client)
        self.mock.assert_finding("ignored_retry_after")

    def test_a_real_limit_is_borne_with_retries(self):
        with MockTurtle(requests_per_minute=2, time_scale=0.01) as mock:
            client = self.client(3)
            for _ in range(4):
                chat(client)
            self.assertIn(429, [request.status for request in mock.requests])
            self.assertEqual([request.status for request in mock.requests].count(200), 4)
            mock.assert_no_findings()

    def test_a_cut_stream_is_an_error_and_asked_for_again_from_the_start(self):
        self.mock.reply(SAID)
        self.mock.fault("cut:event=4", times=1)
        client = self.client()
        with self.assertRaises(openai.APIConnectionError):
            text_of(chat(client, stream=True))
        self.assertEqual(text_of(chat(client, stream=True)), SAID)
        self.mock.assert_no_findings()
        self.assertEqual([(request.events_sent, request.cut_off) for request in self.mock.requests][0], (3, True))

    def test_half_an_answer_taken_for_whole_is_found(self):
        self.mock.reply(SAID)
        self.mock.fault("no_terminal", times=1)
        client = self.client()
        half = text_of(chat(client, stream=True))       # the SDK does not mind
        chat(client, ASK + [{"role": "assistant", "content": half}, {"role": "user", "content": "Go on."}])
        self.mock.assert_finding("took_truncated_for_complete")

    def test_a_tool_loop(self):
        calls = [{"name": "get_weather", "arguments": {"city": city}} for city in ("Oslo", "Bergen")]
        self.mock.reply(tool_calls=calls, match={"tool_result": None})
        self.mock.reply("It is {{tool_result}}.")
        client, messages = self.client(), list(ASK)
        while True:
            message = chat(client, messages, tools=[WEATHER]).choices[0].message
            messages.append(message)
            if not message.tool_calls:
                break
            messages += [{"role": "tool", "tool_call_id": call.id, "content": "fair in " + json.loads(
                call.function.arguments)["city"]} for call in message.tool_calls]
        self.assertEqual(message.content, "It is fair in Bergen.")
        self.mock.assert_call_count(2)
        self.assertEqual([each["role"] for each in self.mock.requests[-1].messages], ["user", "assistant", "tool", "tool"])
        self.mock.assert_no_findings()

    def test_a_dropped_tool_call_is_found(self):
        self.mock.reply(tool_calls=[{"name": "get_weather", "arguments": {}}], times=1)
        client = self.client()
        message = chat(client, tools=[WEATHER]).choices[0].message
        chat(client, ASK + [message, {"role": "user", "content": "Well?"}], tools=[WEATHER])
        self.mock.assert_finding("dropped_tool_call")

    def test_a_stop_button(self):
        with self.mock.gate("stop", event=4) as gate:
            stream = chat(self.client(), stream=True)
            for _ in range(3):
                next(stream)
            gate.wait_reached()
            stream.close()
            self.assertTrue(self.mock.requests[0].left)
            self.assertEqual(self.mock.requests[0].events_sent, 3)

    def test_a_plain_answer_is_waited_for(self):
        said = []
        with self.mock.gate() as gate:
            self.mock.reply("At last.")
            thread = threading.Thread(target=lambda: said.append(chat(self.client()).choices[0].message.content))
            thread.start()
            gate.wait_reached()
            self.assertEqual((said, self.mock.requests[0].ended), ([], False))
            gate.open()
            thread.join(5)
        self.assertEqual(said, ["At last."])


STREAMED, PLAIN = {"stream": True}, {}
# How each kind of fault reaches a program that asks for a chat completion: (fault, request, the SDK's class).
RAISED = [
    ("error:status=400", PLAIN, openai.BadRequestError), ("error:status=401", PLAIN, openai.AuthenticationError),
    ("error:status=403", PLAIN, openai.PermissionDeniedError), ("error:status=404", PLAIN, openai.NotFoundError),
    ("error:status=409", PLAIN, openai.ConflictError), ("error:status=422", PLAIN, openai.UnprocessableEntityError),
    ("error:status=429", PLAIN, openai.RateLimitError), ("error:status=500", STREAMED, openai.InternalServerError),
    ("slow_headers:ms=60000", PLAIN, openai.APITimeoutError), ("stall:ms=60000,heartbeats=false", STREAMED, openai.APITimeoutError),
    ("cut:where=headers", PLAIN, openai.APIConnectionError), ("cut", STREAMED, openai.APIConnectionError),
    ("malformed", STREAMED, json.JSONDecodeError), ("bad_chunk", STREAMED, openai.APIConnectionError),
    ("wrong_length", PLAIN, openai.APIConnectionError), ("failed", STREAMED, openai.APIError),
    ("store_full", {"store": True}, openai.InternalServerError),
]
# And where it is no error: (fault, what the SDK takes a streamed text for).
TEXTS = [
    ("missing:event=3", "One three four."), ("repeated:event=3", "One two two three four."),
    ("reordered:event=3", "One three two four."), ("extra:event=3,form=unknown", SAID), ("without:field=finish_reason", SAID),
    ("split:event=3,where=character", "One two€ three four."), ("slow_body:bytes=50,ms=0", SAID), ("long_line:event=3", SAID),
    ("sse:form=crlf", SAID), ("content_type", SAID), ("no_terminal", SAID), ("close", SAID), ("incomplete:event=4", "One two"),
]
ELSEWHERE = {"gate", "lost_previous", "compaction"}     # in tests of their own


class EveryFaultTest(OpenAICase):

    def test_no_kind_is_left_out(self):
        tried = {fault.partition(":")[0] for fault, *_ in RAISED + TEXTS} | ELSEWHERE
        self.assertEqual(tried, set(FAULT_KINDS))

    def test_those_that_are_errors(self):
        for fault, request, error in RAISED:
            with self.subTest(fault=fault), self.mock.fault(fault) as set_up:
                client = self.client(0, 0.5)
                with self.assertRaises(error) as caught:
                    made = chat(client, **request)
                    if request is STREAMED:
                        text_of(made)
                self.assertEqual((type(caught.exception), set_up.done), (error, 1))

    def test_those_that_are_texts(self):
        self.mock.reply(SAID)
        for fault, text in TEXTS:
            with self.subTest(fault=fault), self.mock.fault(fault) as set_up:
                self.assertEqual(text_of(chat(self.client(), stream=True)), text)
                self.mock.requests[-1].wait_ended()
                if fault == "close" and self.mock.requests[-1].left:
                    continue            # the client was quicker, and closed the connection itself
                self.assertGreater(set_up.done, 0)

    def test_a_lost_previous_response(self):
        client = self.client()
        first = client.responses.create(model="gpt-5", input="Hi")
        self.mock.fault("lost_previous")
        with self.assertRaises(openai.BadRequestError) as caught:
            client.responses.create(model="gpt-5", input="more", previous_response_id=first.id)
        self.assertEqual(caught.exception.code, "previous_response_not_found")

    def test_compaction_items(self):
        client = self.client()
        for number in (0, 2):
            with self.mock.fault("compaction:items=%d" % number, endpoint="compact"):
                made = client.responses.compact(model="gpt-5", input="A long story. " * 20)
            self.assertEqual([item.type for item in made.output].count("compaction"), number)

    def test_the_ends_of_a_response(self):
        client = self.client()
        for fault, status in (("failed", "failed"), ("incomplete", "incomplete")):
            with self.subTest(fault=fault), self.mock.fault(fault):
                self.assertEqual(client.responses.create(model="gpt-5", input="Hi").status, status)
