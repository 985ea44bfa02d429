"""A test author's tools: what MockTurtle is told and asked, the mixin, the environment, what is left behind by a test."""
import asyncio
import http.client
import json
import os
import re
import subprocess
import sys
import tempfile
import threading
import unittest
import urllib.error
import urllib.request
from importlib.util import find_spec
from unittest.mock import ANY

from backends.contract import Finish, TextDelta, Usage
from server import MockTurtle, MockTurtleTestCase
from tests import ONE_FILE, ROOT
from tests.support import CHAT, RESPONSE, TIMEOUT_S, DeltaBackend, QuietTestCase, wait_until
from unittest_tools import EnvironmentPatches

NAMES = ("OPENAI_BASE_URL", "OPENAI_API_BASE", "OPENAI_API_KEY")


def post(path, body, base_url=None):
    """The answer's JSON; as a client that knows the environment's variables alone."""
    request = urllib.request.Request((base_url or os.environ["OPENAI_BASE_URL"]) + path, json.dumps(body).encode(),
                                     {"Authorization": "Bearer " + os.environ.get("OPENAI_API_KEY", "")})
    with urllib.request.urlopen(request, timeout=TIMEOUT_S) as answer:
        return json.load(answer)


def say(text="Hi", **change):
    """What a chat completion says to a text."""
    body = dict(CHAT, messages=[{"role": "user", "content": text}], **change)
    return post("/chat/completions", body)["choices"][0]["message"]["content"]


def environment():
    return {name: os.environ.get(name) for name in NAMES}


class Stream:
    """A streamed chat completion that is being read."""

    def __init__(self, mock, headers=None):
        self._connection = http.client.HTTPConnection(*mock.server.server_address[:2], timeout=TIMEOUT_S)
        self._connection.request("POST", "/v1/chat/completions", json.dumps(dict(CHAT, stream=True)), headers or {})
        self._answer = self._connection.getresponse()

    def read(self):
        return self._answer.read()

    def close(self):
        self._answer.close()
        self._connection.close()


class MockCase(MockTurtleTestCase, QuietTestCase):
    mixes_into_tests = True
    mock_settings = {"output_tokens": 4}

    def stream(self, headers=None):
        stream = Stream(self.mock, headers)
        self.addCleanup(stream.close)
        return stream

    def assert_fails_with(self, words, call, *arguments, **keywords):
        """call() fails, and its message has all the words."""
        with self.assertRaises(AssertionError) as caught:
            call(*arguments, **keywords)
        for word in words:
            self.assertIn(word, str(caught.exception))


class ReplyTest(MockCase):

    def test_a_text_and_who_said_it(self):
        rule = self.mock.reply("Hello.")
        self.assertEqual([say(), say()], ["Hello.", "Hello."])
        self.assertEqual((rule.answered, [request.rule for request in rule.requests]), (2, [rule.name] * 2))

    def test_json_tool_calls_refusal_and_usage(self):
        self.mock.reply(json={"a": 1}, match={"model": "j"})
        self.mock.reply(tool_calls=[{"name": "f", "arguments": {"x": 2}}], match={"model": "t"})
        self.mock.reply(refusal="No.", usage={"prompt_tokens": 77}, match={"model": "r"})
        self.assertEqual(json.loads(say(model="j")), {"a": 1})
        call = post("/chat/completions", dict(CHAT, model="t"))["choices"][0]["message"]["tool_calls"][0]["function"]
        self.assertEqual((call["name"], json.loads(call["arguments"])), ("f", {"x": 2}))
        refused = post("/chat/completions", dict(CHAT, model="r"))
        self.assertEqual((refused["choices"][0]["message"]["refusal"], refused["usage"]["prompt_tokens"]), ("No.", 77))

    def test_a_rule_serves_the_responses_api_as_well(self):
        self.mock.reply("Hello.")
        self.assertEqual(post("/responses", RESPONSE)["output"][0]["content"][0]["text"], "Hello.")

    def test_replies_come_one_after_the_other(self):
        for then, last in (("repeat", "b"), ("cycle", "a")):
            with self.subTest(then=then), self.mock.replies(["a", {"text": "b"}], then=then):
                self.assertEqual([say(), say(), say()], ["a", "b", last])

    def test_rules_in_the_order_of_adding_or_first(self):
        self.mock.reply("one", times=1)
        self.mock.reply("two")
        self.mock.reply("zero", times=1, first=True)
        self.assertEqual([say(), say(), say(), say()], ["zero", "one", "two", "two"])

    def test_a_rule_that_never_gets_its_turn_is_refused(self):
        everything = self.mock.reply("all")
        with self.assertRaisesRegex(ValueError, "'%s' answers everything" % everything.name):
            self.mock.reply("never", match={"model": "m"})
        everything.remove()
        self.mock.reply("now")
        self.assertEqual(say(), "now")

    def test_a_rule_in_a_with_block_is_gone_behind_it(self):
        with self.mock.reply("inside"):
            self.assertEqual(say(), "inside")
        self.assertNotEqual(say(), "inside")

    def test_a_wrong_rule_names_the_key(self):
        for wrong, words in (({"match": {"modle": "m"}}, "modle"), ({"tool_calls": 3}, "tool_calls"), ({"gate": "a b"}, "gate"),
                             ({"fault": "cat"}, "unknown fault 'cat'"), ({}, "says nothing"), ({"times": 0}, "times")):
            with self.subTest(wrong=wrong), self.assertRaisesRegex(ValueError, words):
                self.mock.reply(**wrong)
        self.assertEqual(self.mock.server.backend.rule_book.rules, ())

    def test_a_fault_by_rule(self):
        self.mock.reply(fault="error:status=429", match={"model": "m"}, times=1)
        with self.assertRaises(urllib.error.HTTPError) as caught:
            say(model="m")
        caught.exception.close()
        self.assertEqual((caught.exception.code, self.mock.requests[0].faults), (429, ["error:status=429"]))


class FaultTest(MockCase):

    def test_it_befalls_so_many_requests_and_counts(self):
        fault = self.mock.fault("error:status=503,body=html", times=2, endpoint="chat")
        for _ in range(2):
            with self.assertRaises(urllib.error.HTTPError) as caught:
                say()
            caught.exception.close()
        say()
        self.assertEqual((fault.matched, fault.done, [request.status for request in self.mock.requests]), (2, 2, [503, 503, 200]))

    def test_it_stands_for_a_block_or_until_it_is_removed(self):
        with self.mock.fault("error", status=418) as fault:
            with self.assertRaises(urllib.error.HTTPError) as caught:
                say()
            caught.exception.close()
        say()
        self.assertEqual((caught.exception.code, fault.done), (418, 1))

    def test_a_wrong_one_is_a_value_error(self):
        for wrong, choice in (("cat", {}), ("error:status=9", {}), ("error", {"end_point": "chat"}), ("error", {"times": -1})):
            with self.subTest(wrong=wrong, choice=choice), self.assertRaises(ValueError):
                self.mock.fault(wrong, **choice)
        self.assertEqual(self.mock.server.faults.all(), [])


class GateTest(MockCase):

    def test_a_stop_button(self):
        with self.mock.gate("stop", event=4) as gate:
            stream = self.stream()
            gate.wait_reached()
            self.assertEqual((gate.waiting, self.mock.requests[0].ended), (1, False))
            stream.close()
            request = self.mock.requests[0]
            self.assertTrue(request.left)
            self.assertEqual((request.events_sent, request.ended, gate.waiting), (3, True, 0))

    def test_opened_it_lets_the_answer_end(self):
        gate = self.mock.gate("a@2", times=1)
        stream = self.stream()
        gate.wait_reached()
        gate.open()
        self.assertIn(b"[DONE]", stream.read())
        request = self.mock.requests[0].wait_ended()
        self.assertEqual((request.left, gate.reached), (False, 1))
        self.assertGreater(request.duration_s, 0)

    def test_the_end_of_its_block_opens_it_after_an_exception_too(self):
        with self.assertRaises(KeyError):
            with self.mock.gate() as gate:
                stream = self.stream()
                gate.wait_reached()
                raise KeyError("x")
        self.assertIn(b"[DONE]", stream.read())
        say()                                           # nobody comes to it any more
        self.assertEqual(gate.reached, 1)

    def test_of_one_rule_or_one_request(self):
        gate = self.mock.gate("mine@2", event=None)
        self.mock.reply("Slowly.", gate=gate, match={"stream": True})
        self.assertNotEqual(say(), "")
        for headers in ({}, {"x-mockturtle-gate": gate.words}):
            stream = self.stream(headers)
            gate.wait_reached(count=gate.reached + (not gate.waiting))
            self.assertEqual(self.mock.requests[-1].events_sent, 1)
            gate.open()
            self.assertIn(b"[DONE]", stream.read())
            gate.shut()

    def test_who_waits_in_vain_is_shown_the_journal(self):
        say("Who is there?", model="m1")
        self.assert_fails_with(["0 of 1 answers have come to the gate 'never'", "model 'm1'", "user: 'Who is there?'"],
                               self.mock.gate("never").wait_reached, 0.01)

    def test_a_bad_name_is_a_value_error(self):
        for name, event in (("a b", 1), ("a b", None), ("x", 0), ("x@y", 1)):
            with self.subTest(name=name, event=event), self.assertRaises(ValueError):
                self.mock.gate(name, event)


class RequestsTest(MockCase):

    def test_what_is_known_of_a_request(self):
        rule = self.mock.reply("Yes.", match={"model": "m1"})
        said = post("/chat/completions", dict(CHAT, model="m1", temperature=0.5))
        request, = self.mock.requests
        self.assertEqual((request.method, request.path, request.model, request.status, request.rule, request.streamed,
                          request.events_sent, request.left, request.faults, request.error, request.text, request.answer),
                         ("POST", "/v1/chat/completions", "m1", 200, rule.name, False, None, False, [], None, "Yes.", said))
        self.assertEqual((request.json["temperature"], request.messages, request.last_user_text), (0.5, CHAT["messages"], "Hello"))
        self.assertEqual((request.headers["Authorization"], "AUTHORIZATION" in request.headers, request.headers.get("x")),
                         ("Bearer sk-mockturtle", True, None))
        self.assertEqual(request.usage, (said["usage"]["prompt_tokens"], said["usage"]["completion_tokens"]))
        with self.assertRaisesRegex(AttributeError, "no 'modle'"):
            request.modle

    def test_a_streams_events_and_text(self):
        self.mock.reply("One two.")
        events = self.stream().read().count(b"data: ")
        request = self.mock.requests[0].wait_ended()
        self.assertEqual((request.streamed, request.events_sent, request.text), (True, events, "One two."))

    def test_the_last_user_text_of_each_form(self):
        parts = [{"type": "text", "text": "a"}, {"type": "image_url", "image_url": {"url": "data:,"}}, {"type": "text", "text": "b"}]
        for path, body, text in (
                ("/responses", {"model": "m", "input": "plain"}, "plain"), ("/completions", {"model": "m", "prompt": "p"}, "p"),
                ("/completions", {"model": "m", "prompt": ["p", "q"]}, "q"),
                ("/chat/completions", {"model": "m", "messages": [{"role": "user", "content": parts},
                                                                  {"role": "assistant", "content": "c"}]}, "ab"),
                ("/chat/completions", {"model": "m", "messages": [{"role": "system", "content": "s"}]}, None)):
            with self.subTest(body=body):
                post(path, body)
                self.assertEqual(self.mock.requests[-1].last_user_text, text)

    def test_a_body_of_megabytes_is_there_whole(self):
        text = "x" * 3000000
        say(text)
        self.assertEqual(self.mock.requests[0].last_user_text, text)
        self.assertLess(len(self.mock.journal_text()), 500)

    def test_waiting_for_what_comes_on_other_threads(self):
        thread = threading.Thread(target=say)
        thread.start()
        self.assertEqual(len(self.mock.wait_for_requests(1)), 1)
        thread.join(TIMEOUT_S)
        self.assert_fails_with(["1 of 2 requests have come", "request_1"], self.mock.wait_for_requests, 2, 0.01)

    def test_what_goes_on_fails_with_a_line_about_it(self):
        with self.mock.gate() as gate:
            self.stream()
            gate.wait_reached()
            self.assert_fails_with(["request_1", "still being answered", "going on"], self.mock.requests[0].wait_ended, 0.01)


class AssertionsTest(MockCase):

    def test_called_with_compares_the_last_request(self):
        say("first", model="m1", temperature=1)
        say("second", model="m2", metadata={"a": "b"})
        self.mock.assert_called_with(model="m2", metadata={"a": ANY}, path="/chat/completions", last_user_text="second",
                                     headers={"authorization": "Bearer sk-mockturtle"}, messages=[ANY])
        self.mock.assert_any_call(model="m1", temperature=1)
        self.mock.assert_called()
        self.mock.assert_call_count(2)
        self.mock.assert_call_count(0, path="/responses")

    def test_messages_say_what_differs_and_show_the_journal(self):
        say("first", model="m1", temperature=1)
        journal = ["Requests, oldest first:\n  request_1  POST /v1/chat/completions -> 200, model 'm1', user: 'first'"]
        mock = self.mock
        for words, call, expected in (
                (["model: expected 'm2', got 'm1'", "top_p: expected 1, got nothing", "header X-A: expected 'b', got nothing",
                  "path: expected '/responses', got '/v1/chat/completions'"],
                 mock.assert_called_with, {"model": "m2", "top_p": 1, "headers": {"X-A": "b"}, "path": "/responses"}),
                (["no request is as was expected", "temperature: expected 2, got 1"], mock.assert_any_call, {"temperature": 2}),
                (["last_user_text: expected 'x', got 'first'"], mock.assert_called_once_with, {"last_user_text": "x"}),
                (["no request was expected, and 1 came"], mock.assert_not_called, {}),
                (["3 requests were expected, and 1 came"], mock.assert_call_count, {"count": 3}),
                (["1 requests to /models were expected, and 0 came"], mock.assert_call_count, {"count": 1, "path": "/models"}),
                (["the verdict has no 'retry_storm'; it has: nothing"], mock.assert_finding, {"kind": "retry_storm"})):
            with self.subTest(call=call.__name__):
                self.assert_fails_with(words + journal, call, **expected)

    def test_without_any_request(self):
        self.mock.assert_not_called()
        for call in (self.mock.assert_called, self.mock.assert_called_with, self.mock.assert_any_call):
            with self.subTest(call=call.__name__):
                self.assert_fails_with(["no request has come", "No request has come to " + self.mock.base_url], call)

    def test_a_journal_of_many_is_cut(self):
        for number in range(25):
            say("number %d" % number)
        text = self.mock.journal_text()
        self.assertIn("the last 20 of 25", text)
        self.assertEqual(("'number 4'" in text, "'number 5'" in text, "'number 24'" in text), (False, True, True))

    def test_findings_fail_unless_ignored(self):
        self.mock.fault("error:status=400", times=2)
        for _ in range(2):
            with self.assertRaises(urllib.error.HTTPError) as caught:
                say()
            caught.exception.close()
        self.assertEqual([finding["requests"] for finding in self.mock.verdict()], [["request_1", "request_2"]])
        self.assert_fails_with(["retried_non_retryable: request_1 was answered 400", "faults: error:status=400"],
                               self.mock.assert_no_findings)
        self.mock.assert_no_findings(ignore=["retried_non_retryable"])
        self.mock.assert_finding("retried_non_retryable")

    def test_a_journal_that_lost_some_is_no_evidence(self):
        with MockTurtle(journal=2) as mock:
            for _ in range(3):
                say()
            for call in (mock.verdict, mock.assert_no_findings, lambda: mock.assert_call_count(2)):
                with self.assertRaisesRegex(ValueError, "only the last 2 of 3 requests"):
                    call()
        with MockTurtle(journal=0) as mock, self.assertRaisesRegex(ValueError, "journal=0"):
            mock.requests

    def test_what_came_can_be_asked_for_behind_the_end(self):
        with MockTurtle() as mock:
            say()
        mock.assert_called_once_with(model="mock-model")


class ResetTest(MockCase):
    mock_settings = {"output_tokens": 6, "fixed_ids": True, "cache_blocks": 100, "ttft_ms": 0, "itl_ms": 0}

    def test_nothing_is_left_of_what_was_arranged_and_of_what_came(self):
        self.mock.reply("Mine.", match={"model": "m"})
        self.mock.fault("error")
        gate = self.mock.gate("stop")
        gate.open()
        self.mock.reset()
        self.assertNotEqual(say(model="m"), "Mine.")
        self.assertEqual((len(self.mock.requests), self.mock.requests[0].id, gate.reached, self.mock.server.gates.report()),
                         (1, "request_1", 0, []))
        self.mock.reply("Yours.")                       # nothing answers everything by now
        self.assertEqual(say(), "Yours.")

    def test_texts_ids_and_cached_tokens_begin_anew(self):
        def three():
            body = {"model": "m", "input": "Tell me. " * 50}
            found = [post("/responses", body) for _ in range(3)]
            return [(each["id"], each["output"][0]["content"][0]["text"], each["usage"]["input_tokens_details"]["cached_tokens"])
                    for each in found]
        first = three()
        self.assertEqual((len({text for _, text, _ in first}), first[0][2]), (3, 0))
        self.assertGreater(first[1][2], 0)
        self.mock.reset()
        self.assertEqual(three(), first)

    def test_what_was_stored_is_gone(self):
        response = post("/responses", RESPONSE)["id"]
        conversation = post("/conversations", {})["id"]
        self.mock.reset()
        for path in ("/responses/" + response, "/conversations/" + conversation):
            with self.assertRaises(urllib.error.HTTPError) as caught:
                urllib.request.urlopen(self.mock.base_url + path, timeout=TIMEOUT_S)
            caught.exception.close()
            self.assertEqual(caught.exception.code, 404)
        self.assertEqual(self.mock.server.store.stats(), dict.fromkeys(
            ("responses", "conversations", "tombstones", "bytes", "evicted", "expired"), 0))

    def test_background_responses_are_stopped(self):
        gate = self.mock.gate("held")
        post("/responses", dict(RESPONSE, background=True))
        gate.wait_reached()
        self.mock.reset()
        self.assertEqual(len(self.mock.server.runs), 0)
        wait_until(lambda: not self.mock.server.player.plays, "its play to end")
        self.assertEqual(self.mock.server.store.stats()["responses"], 0)

    def test_a_control_call_does_the_same(self):
        response = post("/responses", RESPONSE)["id"]
        url = self.mock.url + "/_mockturtle"
        post("/reset", {"store": False}, url)
        self.assertIsNotNone(self.mock.server.store.get(response))
        self.assertEqual(post("/reset", {"store": True}, url), {"object": "reset", "done": True})
        self.assertIsNone(self.mock.server.store.get(response))
        for wrong in ({"stores": True}, {"store": 1}):
            with self.assertRaises(urllib.error.HTTPError) as caught:
                post("/reset", wrong, url)
            with caught.exception:
                self.assertEqual((caught.exception.code, list(wrong)[0] in caught.exception.read().decode()), (400, True))

    def test_a_script_is_as_at_the_start_and_a_file_keeps_what_is_stored(self):
        with tempfile.TemporaryDirectory() as folder:
            path = os.path.join(folder, "rules.json")
            with open(path, "w", encoding="utf-8") as script:
                json.dump({"rules": [{"reply": "Once.", "times": 1}]}, script)
            with MockTurtle(script=(path,), store="sqlite:" + os.path.join(folder, "store")) as mock:
                stored = post("/responses", RESPONSE)
                self.assertNotEqual(say(), "Once.")
                mock.reset()
                self.assertEqual(say(), "Once.")
                self.assertEqual(mock.server.store.get(stored["id"]).id, stored["id"])

    def test_what_a_control_call_has_set_is_as_it_was_started(self):
        with MockTurtle(journal=7, gate_timeout_s=20) as mock:
            post("/_mockturtle/settings", {"journal": 0, "gate_timeout_s": 0.5})
            self.assertEqual((mock.server.journal.size, mock.server.gates.timeout_s), (0, 0.5))
            mock.reset()
            self.assertEqual((mock.server.journal.size, mock.server.gates.timeout_s), (7, 20))

    def test_a_backend_of_ones_own_takes_no_rules_and_need_not_know_reset(self):
        class Bare:
            blocking = True

            def generate(self, request, cancel):
                return [(None, TextDelta("bare")), (None, Finish("stop")), (None, Usage(1, 1))]
        backend = DeltaBackend([(None, TextDelta("mine")), (None, Finish("stop")), (None, Usage(1, 1))], blocking=True)
        with MockTurtle(backend) as mock:
            mock.reset()
            self.assertEqual(say(), "mine")
            with self.assertRaisesRegex(ValueError, "takes no rules"):
                mock.reply("Hello.")


class EnvironmentTest(QuietTestCase):

    def setUp(self):
        QuietTestCase.setUp(self)
        before = environment()
        self.addCleanup(lambda: self.assertEqual(environment(), before))

    def test_it_leads_to_the_server_inside_the_block(self):
        before = environment()
        with MockTurtle(api_key=("k1", "k2")) as mock:
            self.assertEqual(environment(), {"OPENAI_BASE_URL": mock.base_url, "OPENAI_API_BASE": mock.base_url,
                                             "OPENAI_API_KEY": "k1"})
            say()
        self.assertEqual(environment(), before)

    def test_it_is_restored_after_an_exception(self):
        before = environment()
        with self.assertRaises(KeyError):
            with MockTurtle():
                raise KeyError("x")
        self.assertEqual(environment(), before)

    def test_nested_servers_and_ends_in_any_order(self):
        before = environment()
        with MockTurtle() as outer:
            with MockTurtle() as inner:
                self.assertEqual(os.environ["OPENAI_BASE_URL"], inner.base_url)
                say()
            self.assertEqual(os.environ["OPENAI_BASE_URL"], outer.base_url)
            inner.assert_call_count(1)
            outer.assert_not_called()
        one, other = MockTurtle().start(), MockTurtle().start()
        one.stop()
        self.assertEqual(os.environ["OPENAI_BASE_URL"], other.base_url)
        other.stop()
        self.assertEqual(environment(), before)

    def test_it_is_left_alone_on_demand(self):
        before = environment()
        with MockTurtle(env=False) as mock:
            self.assertEqual(environment(), before)
            post("/chat/completions", CHAT, mock.base_url)

    def test_what_was_set_and_what_was_not(self):
        environ = {"A": "mine"}
        patches = EnvironmentPatches(environ)
        owners = [object() for _ in range(3)]
        for number, owner in enumerate(owners):
            patches.push(owner, {"A": "a%d" % number, "B": "b%d" % number})
        for owner, left in ((owners[1], {"A": "a2", "B": "b2"}), (owners[2], {"A": "a0", "B": "b0"}), (owners[0], {"A": "mine"}),
                            (owners[0], {"A": "mine"})):
            patches.pop(owner)
            self.assertEqual(environ, left)


class MixinTest(QuietTestCase):
    """Classes of tests that are run inside a test."""

    def setUp(self):
        QuietTestCase.setUp(self)
        before = environment()
        self.addCleanup(self.assert_threads_end)
        self.addCleanup(lambda: self.assertEqual(environment(), before))

    def run_class(self, cls):
        result = unittest.TestResult()
        unittest.defaultTestLoader.loadTestsFromTestCase(cls)(result)
        return result

    def test_each_test_begins_with_a_new_one_whatever_its_own_set_up_forgets(self):
        seen = []

        class Inner(MockTurtleTestCase, unittest.TestCase):
            mock_settings = {"output_tokens": 3}

            def setUp(self):
                pass                                    # and does not call the others'

            def test_a(self):
                self.mock.reply("Mine.")
                seen.append(say())

            def test_b(self):
                seen.append(say())
                self.mock.assert_call_count(1)
        result = self.run_class(Inner)
        self.assertTrue(result.wasSuccessful(), result.failures + result.errors)
        self.assertEqual((seen[0], len(seen), seen[1] == "Mine."), ("Mine.", 2, False))

    def test_a_class_that_fails_gives_all_back(self):
        class Failing(MockTurtleTestCase, unittest.TestCase):

            def test_it(self):
                self.mock.assert_called()

        class Broken(MockTurtleTestCase, unittest.TestCase):

            @classmethod
            def setUpClass(cls):
                super().setUpClass()
                raise KeyError("x")

            def test_it(self):
                raise AssertionError("not run")
        failed, broken = self.run_class(Failing), self.run_class(Broken)
        self.assertIn("no request has come\nNo request has come to http://127.0.0.1:", failed.failures[0][1])
        self.assertEqual((broken.testsRun, len(broken.errors)), (0, 1))

    def test_unittests_own_assertions_show_the_journal_as_well(self):
        class Inner(MockTurtleTestCase, unittest.TestCase):

            def test_it(self):
                self.assertEqual(say("Where?"), "Nowhere.", "mine")
        message = self.run_class(Inner).failures[0][1]
        self.assertRegex(message, r"mine\nRequests, oldest first:\n  request_1  POST /v1/chat/completions -> 200, .*'Where\?'")

    def test_coroutines(self):
        class Inner(MockTurtleTestCase, unittest.IsolatedAsyncioTestCase):

            async def test_it(self):
                self.mock.reply("Async.")
                said = await asyncio.get_running_loop().run_in_executor(None, say)
                self.assertEqual(said, "Async.")

            async def test_its_neighbour(self):
                self.mock.assert_not_called()
        result = self.run_class(Inner)
        self.assertTrue(result.wasSuccessful(), result.failures + result.errors)
        self.assertEqual(result.testsRun, 2)

    def test_mixed_in_wrongly_it_is_refused_at_once(self):
        for bases, words in (((MockTurtleTestCase,), "would not be run"),
                             ((unittest.TestCase, MockTurtleTestCase), "would have no server")):
            with self.subTest(bases=bases), self.assertRaisesRegex(TypeError, words):
                type("Wrong", bases, {})

    def test_one_for_a_test_or_for_a_class(self):
        urls = []

        class Inner(unittest.TestCase):

            @classmethod
            def setUpClass(cls):
                cls.mock = MockTurtle().start_for(cls)

            def setUp(self):
                self.mock.reset()

            def test_a(self):
                other = MockTurtle().start_for(self)
                say()
                urls.append(other.base_url)
                other.assert_call_count(1)
                self.mock.assert_not_called()

            def test_b(self):
                urls.append(os.environ["OPENAI_BASE_URL"])
                self.assertEqual(os.environ["OPENAI_BASE_URL"], self.mock.base_url)
        result = self.run_class(Inner)
        self.assertTrue(result.wasSuccessful(), result.failures + result.errors)
        self.assertNotEqual(urls[0], urls[1])


class ReadmeExampleTest(QuietTestCase):
    """The README's example, as a user has it: in a file of its own, in processes of its own."""

    def setUp(self):
        QuietTestCase.setUp(self)
        folder = tempfile.TemporaryDirectory()
        self.addCleanup(folder.cleanup)
        self.folder = folder.name

    def write(self, form):
        """The example with its import for a form: a folder for PYTHONPATH."""
        with open(os.path.join(ROOT, "README.md"), encoding="utf-8") as readme:
            text = re.search(r"<!-- tests/test_unittest_tools.py runs this -->\n```python\n(.*?)```", readme.read(), re.DOTALL).group(1)
        self.assertIn("\nfrom server import ", text)
        path = os.path.dirname(os.path.abspath(form))
        name = os.path.basename(form)[:-3]
        with open(os.path.join(self.folder, "test_ask.py"), "w", encoding="utf-8") as file:
            file.write(text.replace("from server import", "from %s import" % name))
        return path

    def start(self, path, *arguments):
        return subprocess.Popen([sys.executable, *arguments], stdin=subprocess.DEVNULL, stdout=subprocess.PIPE,
                                stderr=subprocess.STDOUT, universal_newlines=True, cwd=self.folder,
                                env=dict(os.environ, PYTHONPATH=path, PYTHONDONTWRITEBYTECODE="1"))

    def check(self, process, words):
        with process:
            out, _ = process.communicate(timeout=60)
        self.assertEqual(process.returncode, 0, out)
        self.assertRegex(out, words)

    def test_two_processes_at_once_on_this_form(self):
        path = self.write(ONE_FILE or os.path.join(ROOT, "server.py"))
        processes = [self.start(path, "-m", "unittest", "test_ask") for _ in range(2)]
        for process in processes:
            self.check(process, r"Ran 2 tests in [\s\S]*OK")

    def test_under_pytest(self):
        # in virtual environments alone: whether a machine's Python happens to have it is no part of a run
        if sys.prefix == sys.base_prefix or find_spec("pytest") is None:
            self.skipTest("there is no pytest in a virtual environment")
        path = self.write(ONE_FILE or os.path.join(ROOT, "server.py"))
        with open(os.path.join(self.folder, "test_fixture.py"), "w", encoding="utf-8") as file:
            with open(os.path.join(self.folder, "test_ask.py"), encoding="utf-8") as example:
                line = re.search(r"^from (\w+) import MockTurtleTestCase$", example.read(), re.MULTILINE).group(1)
            file.write("import pytest\nfrom %s import MockTurtle\nfrom test_ask import ask\n\n\n@pytest.fixture\ndef mock():\n"
                       "    with MockTurtle() as mock:\n        yield mock\n\n\ndef test_it(mock):\n    mock.reply('Here.')\n"
                       "    assert ask('Where?') == 'Here.'\n    mock.assert_called_once_with(model='gpt-5')\n" % line)
        self.check(self.start(path, "-m", "pytest", "-q", "-p", "no:cacheprovider"), r"3 passed")


if __name__ == "__main__":
    unittest.main()
