"""Replies by rule, without a server: what matches, what is said, in all APIs alike, plain and streamed."""
import json
import os
import random
import re
import threading
import unittest

from api_common import ApiError, Clock, Ids, TakesLong, unframed_bytes
from backends.contract import (Cancel, Finish, GenerationRequest, History, ItemEnd, ItemStart, ItemUpdate, TextDelta,
                               TextRun, ToolCallDelta, Usage)
from backends.script_book import RuleBook
from backends.script_check import ScriptMistakes
from backends.script_conditions import MATCH_KEYS
from backends.script_rules import REPLY_KEYS, read_script
from backends.scripted import ScriptedBackend
from backends.simulated import SimulatedBackend
from chat_api import ChatApiMixin
from completions_api import CompletionsApiMixin
from observe.metrics import Metrics
from responses_api import ResponsesApiMixin
from settings import Settings
from state.memory import MemoryStore
from tests import ROOT, test_script_rules
from tests.data.golden import read_chat_stream, read_response_stream
from tokenizer import ApproxTokenizer

TOKENIZER = ApproxTokenizer()
SETTINGS = {"ttft_ms": 100.0, "itl_ms": 10.0, "output_tokens": 8}
VOICE = SimulatedBackend.from_settings(Settings(**SETTINGS), TOKENIZER)      # shared: to make one takes 10 ms
TOOL = {"type": "function", "function": {"name": "get_weather", "parameters": {"type": "object"}}}
CALLED = [{"role": "user", "content": "Weather?"},
          {"role": "assistant", "content": None, "tool_calls": [
              {"id": "call_1", "type": "function", "function": {"name": "get_weather", "arguments": "{}"}}]},
          {"role": "tool", "tool_call_id": "call_1", "content": '{"sky": {"now": ["clear", 7]}, "wind": null}'}]


class ScriptDesk(ChatApiMixin, CompletionsApiMixin, ResponsesApiMixin):
    """A host without a socket. Its backend is a simulated one behind the rules."""

    chunked = False
    socket_frame = None

    def __init__(self, *rules, only=False, settings=None):
        self.settings = settings or Settings(**SETTINGS)
        self.clock = Clock()
        self.ids = Ids()
        self.store = MemoryStore()
        self.runs, self.live_responses = {}, set()
        self.tokenizer = TOKENIZER
        self.metrics = Metrics()
        self.headers = {}
        self.backend = make_backend(*rules, only=only, settings=settings)

    def log_exception(self):
        raise AssertionError("logged an exception")

    def send_completion(self, completion, streamed, headers=()):
        self.request = completion.request
        if streamed:
            frames = []
            for _, frame in completion.iter_stream(completion.planned(), False):
                frames.append(frame if isinstance(frame, bytes) else run_step(frame))
            self.answer = b"".join(frames)
            return

        def render(status, body):
            if isinstance(body, ApiError):
                raise body
            return body
        _, step = completion.plain_step(completion.planned(), render)
        self.answer = json.loads(step.run())

    def post(self, create, body):
        self.body_bytes = json.dumps(body).encode()
        self.breathe = None
        try:
            create()
        except TakesLong:
            self.breathe = lambda: None         # as on a worker
            create()
        return self.answer

    def chat(self, text="Hello", messages=None, **body):
        return self.post(self.chat_create, dict({"model": "m", "messages": messages or [
            {"role": "user", "content": text}]}, **body))

    def complete(self, prompt="Hello", **body):
        return self.post(self.completions_create, dict({"model": "m", "prompt": prompt}, **body))

    def respond(self, given="Hello", **body):
        return self.post(self.responses_create, dict({"model": "m", "input": given}, **body))

    def says(self, text="Hello", **body):
        """The content of a chat's answer, which is a script's text here."""
        return self.chat(text, **body)["choices"][0]["message"]["content"]


def run_step(step):
    """The bytes of a player's step, or of a splice of frames."""
    if hasattr(step, "run"):
        return step.run()
    return b"".join(frame for _, frame in step.steps)


def make_backend(*rules, only=False, settings=None):
    voice = VOICE if settings is None else SimulatedBackend.from_settings(settings, TOKENIZER)
    backend = ScriptedBackend(RuleBook(only=only), voice, voice, TOKENIZER, settings.time_scale if settings else 1.0)
    if rules:
        backend.add_rules(list(rules))
    return backend


def make_request(text="Hello", **values):
    return GenerationRequest("m", History(3, text.encode(), text, lambda: [{"role": "user", "content": text}]),
                             **values)


def plan_of(reply, text="Hello", **values):
    """[(due_s, delta)] of a rule's reply."""
    return make_backend({"reply": reply}).generate(make_request(text, **values), Cancel())


def response_text(response):
    return "".join(part["text"] for item in response["output"] if item["type"] == "message" for part in item["content"]
                   if part["type"] == "output_text")


# ---- matching ---------------------------------------------------------------------------------

class MatchTest(unittest.TestCase):

    # (match, the same request's body with a change that makes it match, and one that does not)
    TEXTS = [
        ({"model": "gpt-4o"}, {"model": "gpt-4o"}, {"model": "gpt-4o-mini"}),
        ({"model": {"contains": "4o"}}, {"model": "gpt-4o-mini"}, {"model": "gpt-4"}),
        ({"model": {"regex": r"^gpt-\d"}}, {"model": "gpt-4o"}, {"model": "o3"}),
        ({"model": {"glob": "gpt-*"}}, {"model": "gpt-4o"}, {"model": "my-gpt-4o"}),
        ({"model": {"glob": "GPT-?o", "case": False}}, {"model": "gpt-4o"}, {"model": "gpt-4.1o"}),
        ({"model": ["o3", {"glob": "gpt-*"}]}, {"model": "o3"}, {"model": "o4"}),
        ({"model": {"not": {"glob": "gpt-*"}}}, {"model": "o3"}, {"model": "gpt-4o"}),
        ({"last_user_text": "Hello"}, {"text": "Hello"}, {"text": "hello"}),
        ({"last_user_text": {"equal": "HELLO", "case": False}}, {"text": "hello"}, {"text": "hello!"}),
        ({"last_user_text": {"contains": "ell"}}, {"text": "Hello"}, {"text": "Help"}),
        ({"last_user_text": {"contains": ["a", "b"]}}, {"text": "xbxa"}, {"text": "aaa"}),
        ({"last_user_text": {"contains": "STRASSE", "case": False}}, {"text": "Die stra\u00dfe"}, {"text": "Die stra"}),
        ({"last_user_text": {"regex": r"\bsea\b", "contains": "deep"}}, {"text": "the deep sea"},
         {"text": "the seaside, deep"}),
        ({"last_user_text": {"regex": "SEA", "case": False}}, {"text": "the sea"}, {"text": "the land"}),
        ({"last_user_text": {"regex": "^$"}}, {"text": ""}, {"text": " "}),
        ({"format": "json_schema"}, {"schema": {"type": "object"}}, {}),
        ({"format": ["text", "json_object"]}, {}, {"schema": {"type": "object"}}),
        ({"images": True}, {"image": True}, {}),
        ({"images": False}, {}, {"image": True}),
        ({"system": {"contains": "pirate"}}, {"system": "You are a pirate."}, {"system": "You are kind."}),
        ({"system": ""}, {}, {"system": "x"}),
        ({"any_message": {"contains": "pirate"}}, {"system": "You are a pirate."}, {"system": "You are kind."}),
        ({"any_message": {"not": {"contains": "pirate"}}}, {"system": "You are kind."},
         {"system": "You are a pirate."}),
        ({"any_message": {"all": [{"contains": "Ahoy"}, "Hello"]}}, {"system": "Ahoy!"}, {"system": "Ho!"}),
        ({"tools": "get_weather"}, {"tools": ["a", "get_weather"]}, {"tools": ["get_weather_now"]}),
        ({"tools": {"glob": "get_*"}}, {"tools": ["a", "get_weather"]}, {"tools": ["a"]}),
        ({"tools": None}, {}, {"tools": ["a"]}),
        ({"tools": {"not": "a"}}, {"tools": ["b"]}, {"tools": ["b", "a"]}),
        ({"tools": {"all": ["a", "b"]}}, {"tools": ["b", "c", "a"]}, {"tools": ["a", "c"]}),
        ({"tools": ["a", "b"]}, {"tools": ["b"]}, {"tools": ["c"]}),
        ({"metadata": {"run": "7"}}, {"metadata": {"run": "7", "x": "y"}}, {"metadata": {"run": "8"}}),
        ({"metadata": {"run": None}}, {"metadata": {"x": "y"}}, {"metadata": {"run": "8"}}),
        ({"metadata": {"run": {"regex": r"^\d+$"}, "x": "y"}}, {"metadata": {"run": "8", "x": "y"}},
         {"metadata": {"run": "8"}}),
        ({"header": {"X-Test": "a"}}, {"header": {"x-test": "a"}}, {"header": {"x-test": "b"}}),
        ({"header": {"x-test": None}}, {}, {"header": {"x-test": "b"}}),
        ({"stream": True}, {"stream": True}, {}),
        ({"stream": False}, {}, {"stream": True}),
        ({"turn": 1}, {}, {"before": 1}),
        ({"turn": [1, 3]}, {"before": 2}, {"before": 1}),
        ({"turn": {"min": 2, "max": 3}}, {"before": 2}, {"before": 3}),
        ({"conversation": None}, {}, None), ({"root": None}, {}, None), ({"previous_response_id": None}, {}, None),
        ({}, {}, None),
    ]

    @staticmethod
    def chat_body(case):
        messages = [{"role": "system", "content": case["system"]}] if "system" in case else []
        for number in range(case.get("before", 0)):
            messages += [{"role": "user", "content": "u%d" % number}, {"role": "assistant", "content": "a"}]
        content = case.get("text", "Hello")
        if "image" in case:
            content = [{"type": "text", "text": content},
                       {"type": "image_url", "image_url": {"url": "http://localhost/x.png"}}]
        body = {"messages": messages + [{"role": "user", "content": content}]}
        if "tools" in case:
            body["tools"] = [{"type": "function", "function": {"name": name}} for name in case["tools"]]
        if "schema" in case:
            body["response_format"] = {"type": "json_schema", "json_schema": {"name": "n", "schema": case["schema"]}}
        return body

    @staticmethod
    def response_body(case):
        items = []
        for number in range(case.get("before", 0)):
            items += [{"role": "user", "content": "u%d" % number}, {"role": "assistant", "content": "a"}]
        content = case.get("text", "Hello")
        if "image" in case:
            content = [{"type": "input_text", "text": content},
                       {"type": "input_image", "image_url": "http://localhost/x.png"}]
        body = {"input": items + [{"role": "user", "content": content}]}
        if "system" in case:
            body["instructions"] = case["system"]
        if "tools" in case:
            body["tools"] = [{"type": "function", "name": name} for name in case["tools"]]
        if "schema" in case:
            body["text"] = {"format": {"type": "json_schema", "name": "n", "schema": case["schema"]}}
        return body

    def rule_of(self, match, case, make_body, create):
        desk = ScriptDesk({"name": "it", "match": match, "reply": "yes"})
        desk.headers = case.get("header", {})
        body = dict(make_body(case), **{key: case[key] for key in ("model", "metadata", "stream") if key in case})
        create(desk, body)
        return desk.request.rule

    def test_every_key_matches_and_misses_in_chat_and_in_responses_alike(self):
        for make_body, create in ((self.chat_body, lambda desk, body: desk.chat(**body)),
                                  (self.response_body, lambda desk, body: desk.respond(body.pop("input"), **body))):
            for match, hit, miss in self.TEXTS:
                with self.subTest(api=make_body.__name__, match=match):
                    self.assertEqual(self.rule_of(match, hit, make_body, create), "it")
                    if miss is not None:
                        self.assertIsNone(self.rule_of(match, miss, make_body, create))

    def test_endpoints(self):
        for match, rules in (("chat", "C"), ("completions", "c"), ("responses", "r"), (["chat", "responses"], "Cr"),
                             ("websocket", "w"), ("compact", "k")):
            with self.subTest(match=match):
                desk, found = ScriptDesk({"match": {"endpoint": match}, "reply": "yes"}), ""
                for letter, create in (("C", desk.chat), ("c", desk.complete), ("r", desk.respond)):
                    create()
                    found += letter * (desk.request.rule is not None)
                desk.socket_frame = unframed_bytes
                desk.respond()
                found += "w" * (desk.request.rule is not None)
                desk.socket_frame = None
                desk.post(desk.responses_compact, {"model": "m", "input": "Hello"})
                found += "k" * (desk.request.rule is not None)
                self.assertEqual(found, rules)

    def test_a_window_of_compaction_is_only_for_rules_that_name_it(self):
        desk = ScriptDesk({"reply": "yes"}, only=True)
        desk.post(desk.responses_compact, {"model": "m", "input": "Hello"})
        self.assertIsNone(desk.request.rule)
        desk.backend.add_rules({"match": {"endpoint": "compact"}, "reply": "A summary."}, first=True)
        window = desk.post(desk.responses_compact, {"model": "m", "input": "Hello"})
        self.assertEqual((desk.request.rule, window["usage"]["output_tokens"]), ("added rule 2", 3))

    RESULTS = [
        ({"contains": "clear"}, True), ({"contains": "rain"}, False), (None, False),
        ({"not": {"contains": "rain"}}, True),
        ({"tool": "get_weather"}, True), ({"tool": "f"}, False), 
        ({"tool": {"glob": "get_*"}, "contains": "clear"}, True),
        ({"call_id": "call_1"}, True), ({"call_id": "call_2"}, False), ({"path": "sky.now[0]", "equal": "clear"}, True),
        ({"path": "$.sky.now[1]", "equal": 7}, True), ({"path": "sky.now[1]", "equal": "7"}, False),
        ({"path": "sky.now[1]", "equal": True}, False), ({"path": "sky.now", "equal": ["clear", 7]}, True),
        ({"path": "sky.now[1]", "equal": 7.0}, True), ({"path": "sky"}, True), ({"path": "rain"}, False),
        ({"path": "sky", "contains": "now"}, True), ({"path": "sky.now[2]", "not": "x"}, False),
        ({"path": "wind", "equal": None}, True), ({"path": "storm", "equal": None}, True),
        ({"path": "sky", "equal": None}, False),
        ([{"contains": "rain"}, {"contains": "clear"}], True), ([{"contains": "rain"}, {"contains": "snow"}], False),
        ({"path": "sky.now[0]", "regex": "^cl(.*)$"}, True), ("x", False),
    ]

    def test_a_tools_result_is_what_came_since_the_last_answer(self):
        items = [{"role": "user", "content": "Weather?"},
                 {"type": "function_call", "call_id": "call_1", "name": "get_weather", "arguments": "{}"},
                 {"type": "function_call_output", "call_id": "call_1", "output": CALLED[2]["content"]}]
        for match, holds in self.RESULTS:
            desk = ScriptDesk({"match": {"tool_result": match}, "reply": "yes"})
            for api, create in (("chat", lambda: desk.chat(messages=CALLED)),
                                ("responses", lambda: desk.respond(items))):
                with self.subTest(match=match, api=api):
                    create()
                    self.assertEqual(desk.request.rule is not None, holds)

    def test_a_result_of_an_earlier_turn_is_none_of_this_one(self):
        later = CALLED + [{"role": "assistant", "content": "Clear."}, {"role": "user", "content": "Thanks."}]
        desk = ScriptDesk({"match": {"tool_result": None}, "reply": "none"}, {"reply": "some"})
        self.assertEqual((desk.says(messages=later), desk.says(messages=CALLED)), ("none", "some"))

    def test_text_that_is_no_json_has_no_path(self):
        desk = ScriptDesk({"match": {"tool_result": {"path": "sky"}}, "reply": "yes"})
        for content in ("clear", "[1, 2", '"sky"', "7", "[" * 100000):
            with self.subTest(content=content[:10]):
                desk.chat(messages=CALLED[:2] + [dict(CALLED[2], content=content)])
                self.assertIsNone(desk.request.rule)

    def test_chains_of_the_responses_api(self):
        desk = ScriptDesk({"name": "any", "reply": "a"})
        first = desk.respond("one")
        second = desk.respond("two", previous_response_id=first["id"])
        third = desk.respond("three", previous_response_id=second["id"])
        other = desk.respond("four")
        rules = {"root": {"root": first["id"]}, "previous": {"previous_response_id": second["id"]}, "turn": {"turn": 4},
                 "system": {"system": "Be brief."}, "any": {"any_message": "two"}}
        for name, match in rules.items():
            desk.backend.clear()
            desk.backend.add_rules({"name": name, "match": match, "reply": "a"})
            with self.subTest(match=match):
                more = {"instructions": "Be brief."} if name == "system" else {}
                desk.respond("x", previous_response_id=(second if name == "previous" else third)["id"], **more)
                self.assertEqual(desk.request.rule, name)
                desk.respond("x", previous_response_id=other["id"])
                self.assertIsNone(desk.request.rule)

    def test_an_output_alone_still_has_the_last_user_text(self):
        desk = ScriptDesk({"match": {"tool_result": {"contains": "clear"}, "last_user_text": "Weather?"},
                           "reply": "It is {{tool_result}}."},
                          {"reply": {"tool_calls": [{"name": "get_weather", "id": "call_7"}]}})
        first = desk.respond("Weather?")
        second = desk.respond([{"type": "function_call_output", "call_id": "call_7", "output": "clear"}],
                              previous_response_id=first["id"])
        self.assertEqual(response_text(second), "It is clear.")

    def test_a_long_chain_is_read_on_a_worker(self):
        desk = ScriptDesk({"match": {"turn": 102}, "reply": "a hundred"})
        previous, moved = None, []
        for number in range(102):
            answer = desk.respond("u%d" % number, previous_response_id=previous)
            moved.append(desk.breathe is not None)
            previous = answer["id"]
        self.assertEqual(response_text(answer), "a hundred")
        self.assertEqual((moved[50], moved[101]), (False, True))
        self.assertEqual(desk.backend.rule_book.rules[0].answered, 1)

    def test_the_first_match_wins(self):
        desk = ScriptDesk({"match": {"last_user_text": {"contains": "sea"}}, "reply": "one"},
                          {"match": {"last_user_text": {"contains": "deep"}}, "reply": "two"}, {"reply": "three"})
        self.assertEqual([desk.says(text) for text in ("deep sea", "deep", "land")], ["one", "two", "three"])

    def test_what_no_rule_matches_is_simulated_as_if_there_were_none(self):
        scripted = ScriptDesk({"match": {"model": "other"}, "reply": "one"}, {"match": {"system": "x"}, "reply": "two"})
        plain = ScriptDesk()
        self.assertEqual([scripted.says("a", seed=7), scripted.says("b", seed=8)],
                         [plain.says("a", seed=7), plain.says("b", seed=8)])
        self.assertIsNone(scripted.request.rule)

    def test_without_rules_the_simulated_backend_is_asked_directly(self):
        backend = make_backend()
        voice = backend._behind
        self.assertEqual((backend.generate, backend.wants_origin), (voice.generate, False))
        backend.add_rules({"reply": "a"})
        self.assertEqual((backend.generate == voice.generate, backend.wants_origin), (False, True))
        backend.clear()
        self.assertEqual((backend.generate, backend.wants_origin), (voice.generate, False))


class OnlyTest(unittest.TestCase):

    def refusal(self, desk, *args, **body):
        with self.assertRaises(ApiError) as caught:
            desk.chat(*args, **body)
        error = caught.exception
        self.assertEqual((error.status, error.type, error.code), (404, "script_error", "no_rule_matched"))
        return error.message

    def test_the_nearest_rule_and_why_it_missed_are_told(self):
        desk = ScriptDesk(
            {"name": "far", "match": {"model": "x", "turn": 3, "stream": True}, "reply": "a"},
            {"name": "near", "match": {"model": "m", "last_user_text": {"contains": "weather"},
                                       "header": {"x-run": "7", "authorization": "k"}},
             "reply": "b"}, {"name": "other", "match": {"model": "y"}, "reply": "a"}, only=True)
        desk.headers = {"authorization": "Bearer secret", "x-run": "7"}
        message = self.refusal(desk, "Hello")
        for words in ("'near'", "last_user_text: expected a text containing 'weather', got 'Hello'", "x-run: '7'",
                      "authorization: (not shown)"):
            self.assertIn(words, message)
        for words in ("secret", "model:", "'far'"):
            self.assertNotIn(words, message)
        desk.headers = {"authorization": "k", "x-run": "7"}
        message = self.refusal(desk, "Hello")
        self.assertNotIn("header", message)

    def test_every_kind_of_fact_is_told(self):
        for match, body, words in (
                ({"tools": "f"}, {"tools": [TOOL]}, "tools: expected a text equal to 'f', got 'get_weather'"),
                ({"tools": "f"}, {}, "got none"), ({"tool_result": {"tool": "g"}}, {"messages": CALLED},
                    "of the tool a text equal to 'g'"),
                ({"turn": {"min": 5}}, {}, "turn: expected at least 5, got 1"), ({"images": True}, {},
                    "images: expected true, got false"),
                ({"metadata": {"a": "b"}}, {"metadata": {"a": "c"}},
                 "metadata: expected a: a text equal to 'b', got a: 'c'"),
                ({"format": "json_object"}, {}, "got 'text'"), ({"conversation": "conv_1"}, {}, "got nothing"),
                ({"any_message": "x"}, {"messages": [{"role": "user", "content": str(n)} for n in range(9)]},
                 "'4' and 4 more")):
            with self.subTest(match=match):
                self.assertIn(words, self.refusal(ScriptDesk({"match": match, "reply": "a"}, only=True), **body))

    def test_a_rule_that_is_used_up_says_so(self):
        desk = ScriptDesk({"name": "once", "reply": "a", "times": 1}, only=True)
        desk.chat()
        self.assertIn("'once'", self.refusal(desk))
        self.assertIn("answered 1 of the times", self.refusal(desk))
        desk = ScriptDesk({"name": "third", "match": {"matched": 2}, "reply": "a"}, only=True)
        self.assertIn("'matched' expects 2, got 0", self.refusal(desk))

    def test_a_script_without_rules_refuses_all(self):
        self.assertIn("no rules", self.refusal(ScriptDesk(only=True)))


class CountTest(unittest.TestCase):

    def test_a_sequence_is_said_in_order_and_its_last_repeats(self):
        desk = ScriptDesk({"replies": ["one", "two", "three"]})
        self.assertEqual([desk.says() for _ in range(5)], ["one", "two", "three", "three", "three"])

    def test_then_tells_what_follows_the_last(self):
        desk = ScriptDesk({"replies": ["one", "two"], "then": "next rule"}, {"replies": ["a", "b"], "then": "cycle"})
        self.assertEqual([desk.says() for _ in range(6)], ["one", "two", "a", "b", "a", "b"])

    def test_times_bounds_how_often_it_answers(self):
        desk = ScriptDesk({"reply": "one", "times": 2}, {"replies": ["a", "b"], "times": 3}, {"reply": "end"})
        self.assertEqual([desk.says() for _ in range(7)], ["one", "one", "a", "b", "b", "end", "end"])

    def test_matched_counts_how_often_all_else_held(self):
        desk = ScriptDesk({"match": {"last_user_text": "x", "matched": 1}, "reply": "second"},
                          {"match": {"last_user_text": "x", "matched": {"min": 3}}, "reply": "late"}, {"reply": "else"})
        # the second rule is not asked when the first answers
        self.assertEqual([desk.says(text) for text in "xxyxxxx"], ["else", "second", "else", "else", "else", "late",
            "late"])

    def test_the_call_number_and_the_rules_name_can_be_said(self):
        desk = ScriptDesk({"name": "n", "reply": "{{rule}} {{call}}"})
        self.assertEqual([desk.says(), desk.says()], ["n 1", "n 2"])

    def test_a_reset_begins_anew_and_forgets_what_was_added(self):
        desk = ScriptDesk({"replies": ["one", "two"]})
        desk.says()
        desk.backend.rule_book.reset()
        self.assertEqual(desk.backend.rule_book.rules, ())

    def test_every_call_gets_a_reply_of_its_own_from_many_threads(self):
        backend = make_backend({"replies": [str(number) for number in range(200)], "then": "next rule"},
                               {"reply": "over"})
        said, lock = [], threading.Lock()

        def ask():
            for _ in range(50):
                plan = backend.generate(make_request(), Cancel())
                with lock:
                    said.append("".join(plan[0][1].pieces))
        threads = [threading.Thread(target=ask) for _ in range(5)]
        for thread in threads:
            thread.start()
        for thread in threads:
            thread.join(10)
        self.assertEqual(sorted(said), sorted([str(number) for number in range(200)] + ["over"] * 50))

    def test_an_answer_that_was_given_back_is_given_to_the_next(self):
        book = RuleBook()
        book.add({"replies": ["a", "b", "c"], "then": "next rule"})
        rule, = book.rules
        numbers = [book.claim(rule)[1], book.claim(rule)[1]]
        book.withdraw(rule, 1)
        self.assertEqual((numbers, rule.answered), ([1, 2], 1))
        self.assertEqual([(claimed and claimed[1]) for claimed in (book.claim(rule), book.claim(rule),
            book.claim(rule))], [1, 3, None])

    def test_a_reply_that_moves_to_a_worker_is_counted_once(self):
        desk = ScriptDesk({"replies": ["a " * 15000, "short"], "then": "next rule"}, {"reply": "over"})
        self.assertEqual([len(desk.says(max_tokens=20000)), desk.says(), desk.says()], [30000, "short", "over"])

    def test_a_simulated_answer_that_moves_to_a_worker_counts_once_too(self):
        backend = make_backend({"replies": [{"fault": "cut"}, "two"]})
        with self.assertRaises(TakesLong):
            backend.generate(make_request(max_tokens=9000, ignore_eos=True), Cancel())
        self.assertEqual(backend.rule_book.rules[0].answered, 0)
        backend.generate(make_request(max_tokens=9000, ignore_eos=True, breathe=int), Cancel())
        self.assertEqual(backend.rule_book.rules[0].answered, 1)


class ReadmeTest(unittest.TestCase):

    def setUp(self):
        with open(os.path.join(ROOT, "README.md"), encoding="utf-8") as readme:
            section = readme.read().partition("\n## Scripts\n")[2].partition("\n## ")[0]
        self.section = section
        self.script, = re.findall(r"```json\n(.*?)```", section, re.DOTALL)
        self.rules, self.warnings = read_script(self.script, "README.md")

    def test_its_script_has_no_mistakes_and_says_what_it_claims(self):
        self.assertEqual((len(self.rules), self.warnings), (11, []))
        desk = ScriptDesk(*[rule.told for rule in self.rules])
        self.assertEqual(desk.says("Hi, my name is Ann"), "Hello Ann.")
        asked = desk.chat("The weather?", tools=[TOOL])["choices"][0]["message"]
        self.assertEqual([call["function"]["arguments"] for call in asked["tool_calls"]],
                         ['{"city":"Oslo"}', '{"city":"Bergen"}'])
        self.assertEqual(desk.says(messages=CALLED[:2] + [dict(CALLED[2], content='{"sky": {"now": "clear"}}')]),
                         "It is clear.")
        self.assertEqual(desk.chat("run")["choices"][0]["message"]["tool_calls"][0]["id"], "call_run1")
        self.assertEqual([desk.says("status?") for _ in range(3)], ["queued", "running", "done"])
        desk.says("status?")
        self.assertIsNone(desk.request.rule)
        output = desk.respond("search the sea")["output"]
        self.assertEqual([item["type"] for item in output], ["web_search_call", "message", "function_call"])
        self.assertEqual(output[1]["content"][0]["annotations"][0]["end_index"], len(output[1]["content"][0]["text"]))

    def test_its_tables_name_all_keys(self):
        for key in MATCH_KEYS:
            self.assertRegex(self.section, r"\n\|[^|\n]*`%s`" % key)
        for key in REPLY_KEYS:
            self.assertRegex(self.section, r"`%s`|`%s:|\"%s\":" % (key, key, key))


# ---- replies ----------------------------------------------------------------------------------

class ReplyTest(unittest.TestCase):
    """Every kind of reply in all APIs: plain, and streamed with the same words."""

    def both(self, reply, **body):
        """(chat's message and choice, the response's output) of a reply; streams say the same."""
        desk = ScriptDesk({"reply": reply})
        choice = desk.chat(**body)["choices"][0]
        _, whole = read_chat_stream(self, desk.chat(stream=True, **body))
        streamed = whole["choices"][0]
        self.assertEqual(strip(streamed["message"]), strip(choice["message"]))
        self.assertEqual(streamed["finish_reason"], choice["finish_reason"])
        response = desk.respond(**body)
        events = read_response_stream(self, desk.respond(stream=True, **body))
        self.assertEqual(strip(events[-1]["response"]["output"]), strip(response["output"]))
        self.assertEqual(events[-1]["response"]["usage"], response["usage"])
        return choice, response

    def test_text(self):
        choice, response = self.both("Hi there.")
        self.assertEqual((choice["message"]["content"], choice["finish_reason"]), ("Hi there.", "stop"))
        self.assertEqual((response_text(response), response["status"]), ("Hi there.", "completed"))
        self.assertEqual(ScriptDesk({"reply": "Hi."}).complete()["choices"][0]["text"], "Hi.")

    def test_text_of_any_characters(self):
        text = "\u00e4\"\\\n\u4e2d\u6587 \U0001f600 </s> \ud83d"
        choice, response = self.both(text)
        self.assertEqual((choice["message"]["content"], response_text(response)), (text, text))

    def test_a_token_without_text_of_its_own_is_counted_and_says_nothing(self):
        desk = ScriptDesk({"reply": "so \U0001f9a9"})      # of four tokens, three of them the bird's
        body = desk.chat(stream=True, stream_options={"include_usage": True})
        self.assertEqual(body.count(b'"content":""'), 1, "only the role's content is empty")
        self.assertIn(b'"completion_tokens":4', body)
        self.assertNotIn(b'"delta":""', desk.respond(stream=True))
        cut = desk.chat(max_tokens=3)
        self.assertEqual((cut["choices"][0]["message"]["content"], cut["choices"][0]["finish_reason"],
                          cut["usage"]["completion_tokens"]), ("so", "length", 3))

    def test_no_text(self):
        choice, response = self.both({"text": ""})
        self.assertEqual((choice["message"]["content"], response["output"]), ("", []))

    def test_json(self):
        choice, response = self.both({"json": {"a": [1, 2.5, None, True], "b": "{{last_user_text}}"}})
        self.assertEqual(choice["message"]["content"], '{"a":[1,2.5,null,true],"b":"Hello"}')
        self.assertEqual(json.loads(response_text(response)), {"a": [1, 2.5, None, True], "b": "Hello"})

    def test_a_refusal(self):
        choice, response = self.both({"refusal": "I will not."})
        self.assertEqual((choice["message"]["refusal"], choice["message"]["content"]), ("I will not.", None))
        self.assertEqual(response["output"][0]["content"], [{"type": "refusal", "refusal": "I will not."}])
        self.assertEqual(ScriptDesk({"reply": {"refusal": "No."}}).complete()["choices"][0]["text"], "No.")

    def test_reasoning(self):
        choice, response = self.both({"reasoning": "Let me think.", "text": "42"})
        self.assertEqual((choice["message"]["reasoning_content"], choice["message"]["content"]),
                         ("Let me think.", "42"))
        self.assertEqual(response["output"][0]["summary"], [{"type": "summary_text", "text": "Let me think."}])
        self.assertEqual(response["usage"]["output_tokens_details"]["reasoning_tokens"], 4)
        self.assertEqual(response["usage"]["output_tokens"], 5)
        _, response = self.both({"reasoning": {"text": "Raw."}, "text": "42"})
        self.assertEqual((response["output"][0]["content"], response["output"][0]["summary"]),
                         ([{"type": "reasoning_text", "text": "Raw."}], []))

    def test_tool_calls(self):
        choice, response = self.both({"tool_calls": [
            {"name": "f", "arguments": {"city": "{{last_user_text}}", "n": 1}}, {"name": "g",
                "arguments": '{"a": "{{last_user_text|json}}"}'},
            {"name": "h", "input": "raw {{turn}}", "id": "call_own{{call}}"}, {"name": "i"},
            {"name": "j", "pieces": ["{\"b\"", ": 2}"]}]})
        calls = choice["message"]["tool_calls"]
        self.assertEqual(choice["finish_reason"], "tool_calls")
        self.assertEqual([call.get("function", call.get("custom")) for call in calls], [
            {"name": "f", "arguments": '{"city":"Hello","n":1}'}, {"name": "g", "arguments": '{"a": "Hello"}'},
            {"name": "h", "input": "raw 1"}, {"name": "i", "arguments": "{}"}, {"name": "j", "arguments": '{"b": 2}'}])
        self.assertEqual([call["type"] for call in calls], ["function", "function", "custom", "function", "function"])
        self.assertEqual(calls[2]["id"], "call_own1")
        self.assertEqual([(item["type"], item["name"], item.get("arguments", item.get("input")), item["status"])
                          for item in response["output"]], [
            ("function_call", "f", '{"city":"Hello","n":1}', "completed"), ("function_call", "g", '{"a": "Hello"}',
                "completed"),
            ("custom_tool_call", "h", "raw 1", "completed"), ("function_call", "i", "{}", "completed"),
            ("function_call", "j", '{"b": 2}', "completed")])
        self.assertEqual(len({item["call_id"] for item in response["output"]}), 5)

    def test_items_in_their_order(self):
        choice, response = self.both({"items": [
            "First.", {"tool_call": {"name": "f", "arguments": {}}}, {"reasoning": "Hm."}, {"reasoning": "Well."},
            {"text": "Second."},
            {"text": "Third."}, {"refusal": "No."}, {"json": [1]}]})
        self.assertEqual(choice["message"]["content"], "First.Second.Third.[1]")
        self.assertEqual(choice["finish_reason"], "tool_calls")
        output = response["output"]
        self.assertEqual([item["type"] for item in output],
                         ["message", "function_call", "reasoning", "reasoning", "message", "message"])
        self.assertEqual([part.get("text", part.get("refusal")) for item in output if item["type"] == "message"
                          for part in item["content"]],
                         ["First.", "Second.", "Third.", "No.", "[1]"])

    def test_a_call_is_done_before_the_next_item_begins(self):
        desk = ScriptDesk({"reply": {"tool_calls": [{"name": "f"}, {"name": "g", "input": "x"}]}})
        events = [event["type"].replace("response.", "") for event in read_response_stream(self,
            desk.respond(stream=True))]
        self.assertEqual(events[2:-1], [
            "output_item.added", "function_call_arguments.delta", "function_call_arguments.done", "output_item.done",
            "output_item.added", "custom_tool_call_input.delta", "custom_tool_call_input.done", "output_item.done"])

    def test_annotations(self):
        note = {"type": "url_citation", "url": "http://localhost/{{turn}}", "title": "T", "start_index": 0,
                "end_index": 5}
        choice, response = self.both({"text": "Look.", "annotations": [note]})
        told = dict(note, url="http://localhost/1")
        self.assertEqual(response["output"][0]["content"][0]["annotations"], [told])
        self.assertEqual(choice["message"]["annotations"], [{"type": "url_citation", "url_citation": {
            key: value for key, value in told.items() if key != "type"}}])

    ITEMS = [
        ({"type": "web_search_call", "action": {"type": "search", "query": "{{last_user_text}}"}},
         {"action": {"type": "search", "query": "Hello"}}),
        ({"type": "file_search_call", "queries": ["a"], "results": [{"file_id": "f"}]},
         {"results": [{"file_id": "f"}]}),
        ({"type": "code_interpreter_call", "code": "print(1)", "outputs": [{"type": "logs", "logs": "1"}]},
         {"code": "print(1)", "outputs": [{"type": "logs", "logs": "1"}]}),
        ({"type": "image_generation_call", "result": "aGk="}, {"result": "aGk="}),
        ({"type": "mcp_list_tools", "server_label": "s", "tools": []}, {"tools": []}),
        ({"type": "mcp_call", "server_label": "s", "name": "n", "arguments": "{\"a\": 1}", "output": "o"},
         {"arguments": "{\"a\": 1}", "output": "o", "error": None}),
        ({"type": "mcp_call", "server_label": "s", "name": "n", "arguments": "{}",
          "error": {"type": "mcp_protocol_error"}},
         {"error": {"type": "mcp_protocol_error"}}),
        ({"type": "mcp_approval_request", "server_label": "s", "name": "n", "arguments": "{}"}, {"name": "n"}),
        ({"type": "local_shell_call", "action": {"type": "exec", "command": ["ls"], "env": {}}},
         {"action": {"type": "exec", "command": ["ls"], "env": {}}}),
        ({"type": "apply_patch_call", "operation": {"type": "delete_file", "path": "x"}},
         {"operation": {"type": "delete_file", "path": "x"}}),
        ({"type": "computer_call", "action": {"type": "wait"}}, {"action": {"type": "wait"},
            "pending_safety_checks": []}),
    ]

    def test_items_of_builtin_tools(self):
        for item, fields in self.ITEMS:
            with self.subTest(item=item):
                choice, response = self.both({"items": [{"item": item}, "Done."]})
                self.assertEqual(choice["message"]["content"], "Done.")
                found = response["output"][0]
                self.assertEqual(found["type"], item["type"])
                self.assertEqual({key: found[key] for key in fields}, fields)
                self.assertEqual(response_text(response), "Done.")

    def test_a_builtin_tools_events_come_in_the_services_order(self):
        desk = ScriptDesk({"reply": {"items": [{"item": {"type": "code_interpreter_call", "code": "a b"}}]}})
        events = [event["type"] for event in read_response_stream(self, desk.respond(stream=True))]
        self.assertEqual(events[2:-1], ["response.output_item.added"] + ["response.code_interpreter_call" + name
            for name in (
            ".in_progress", "_code.delta", "_code.delta", "_code.done", ".interpreting",
            ".completed")] + ["response.output_item.done"])

    def test_a_finish_reason(self):
        for reason, status in (("stop", "completed"), ("length", "incomplete"), ("content_filter", "incomplete")):
            with self.subTest(reason=reason):
                choice, response = self.both({"text": "Hi.", "finish": reason})
                self.assertEqual((choice["finish_reason"], response["status"]), (reason, status))

    def test_usage(self):
        desk = ScriptDesk({"reply": {"text": "Hi.", "usage": {"prompt_tokens": 1000, "cached_tokens": 512}}},)
        usage = desk.chat()["usage"]
        self.assertEqual((usage["prompt_tokens"], usage["completion_tokens"], usage["total_tokens"],
                          usage["prompt_tokens_details"]["cached_tokens"]), (1000, 2, 1002, 512))
        desk = ScriptDesk({"reply": {"text": "Hi.", "usage": {"completion_tokens": 7, "reasoning_tokens": 9}}})
        first = desk.respond()
        usage = first["usage"]
        self.assertEqual((usage["output_tokens"], usage["output_tokens_details"]["reasoning_tokens"]), (7, 9))
        self.assertGreater(desk.respond(previous_response_id=first["id"])["usage"]["input_tokens"], 0)

    def test_ids_and_the_time(self):
        reply = {"text": "Hi.", "id": "mine-{{call}}", "message_id": "msg_mine", "created": 1234567890}
        desk = ScriptDesk({"reply": reply})
        for number, answer in enumerate((desk.chat(), desk.complete())):
            self.assertEqual((answer["id"], answer["created"]), ("mine-%d" % (number + 1), 1234567890))
        chunks, _ = read_chat_stream(self, desk.chat(stream=True))
        self.assertEqual({(chunk["id"], chunk["created"]) for chunk in chunks}, {("mine-3", 1234567890)})
        self.assertIn(b'{"id":"mine-4","object":"text_completion","created":1234567890,', desk.complete(stream=True))
        events = read_response_stream(self, desk.respond(stream=True, store=False))
        for event in (events[0], events[-1]):
            self.assertEqual((event["response"]["id"], event["response"]["created_at"]), ("mine-5", 1234567890))
        self.assertEqual(events[-1]["response"]["output"][0]["id"], "msg_mine")

    def test_ids_that_are_kept_somewhere_are_not_changed(self):
        desk = ScriptDesk({"reply": {"text": "Hi.", "id": "mine", "message_id": "msg_mine", "created": 5}})
        answer = desk.chat(store=True)
        self.assertTrue(answer["id"].startswith("chatcmpl-") and answer["created"] == 5)
        response = desk.respond()
        self.assertTrue(response["id"].startswith("resp_") and response["created_at"] == 5)
        self.assertTrue(response["output"][0]["id"].startswith("msg_") and response["output"][0]["id"] != "msg_mine")
        self.assertEqual(desk.respond(previous_response_id=response["id"])["previous_response_id"], response["id"])

    def test_pieces_by_hand_are_deltas_as_they_are(self):
        pieces = ["Hel", "lo, wor", "", "ld"]
        desk = ScriptDesk({"reply": {"pieces": pieces}}, {"match": {}, "reply": {"text": pieces}})
        chunks, _ = read_chat_stream(self, desk.chat(stream=True))
        said = [chunk["choices"][0]["delta"].get("content") for chunk in chunks]
        self.assertEqual(said, ["", "Hel", "lo, wor", "ld", None])
        self.assertEqual(desk.chat()["usage"]["completion_tokens"], sum(map(TOKENIZER.count, pieces)))
        events = read_response_stream(self, desk.respond(stream=True))
        self.assertEqual([event["delta"] for event in events if event["type"] == "response.output_text.delta"],
                         ["Hel", "lo, wor", "ld"])
        deltas = [delta for _, delta in plan_of({"tool_calls": [{"name": "f", "pieces": ["{\"a\":", " 1}"]}]})
                  if delta.__class__ is ToolCallDelta]
        self.assertEqual([delta.arguments for delta in deltas], ["", "{\"a\":", " 1}"])

    def test_templates_take_the_requests_fields(self):
        desk = ScriptDesk({"match": {"last_user_text": {"regex": r"\bin (?P<city>\w+)(, \w+)?"}},
                           "reply": "{{match.city}}|{{match.0}}|{{match.2}}|{{model}}|{{turn}}|{{header.X-Run}}|"
                                    "{{metadata.k}}|{{system}}|{{endpoint}}"})
        desk.headers = {"x-run": "7"}
        messages = [{"role": "system", "content": "Be."}, {"role": "user", "content": [{"type": "text",
            "text": "Rain in Oslo"}]}]
        self.assertEqual(desk.says(messages=messages, metadata={"k": "v"}, store=True),
                         "Oslo|in Oslo||m|1|7|v|Be.|chat")
        desk = ScriptDesk({"match": {"tool_result": {"path": "sky"}},
                           "reply": "{{tool_result.sky.now[0]}} {{tool_result.sky.now[1]}} {{tool_result.no}}|"
                                    "{{tool_result.sky}}"})
        self.assertEqual(desk.says(messages=CALLED), 'clear 7 |{"now":["clear",7]}')

    def test_templates_put_text_in_and_nothing_else(self):
        desk = ScriptDesk({"reply": {"json": {"a": "{{last_user_text}}"}}}, {"reply": "x"})
        hostile = '"}, {{model}} {{header.authorization}} \\ %s {0}'
        self.assertEqual(json.loads(desk.says(hostile)), {"a": hostile})
        self.assertEqual(ScriptDesk({"reply": "<{{last_user_text}}>"}).says("{{model}}"), "<{{model}}>")
        self.assertEqual(ScriptDesk({"reply": {"text": "{{x}}", "template": False}}).says(), "{{x}}")

    def test_a_very_long_field_is_cut(self):
        text = ScriptDesk({"reply": "{{last_user_text}}"}).says("a " * 100000, max_tokens=130000)
        self.assertEqual(len(text), 100000)

    def test_what_has_no_place_in_legacy_completions_is_left_out(self):
        desk = ScriptDesk({"reply": {"items": [{"reasoning": "Hm."}, "A.", {"tool_call": {"name": "f"}}, {"item": {
            "type": "web_search_call", "action": {}}}, "B."]}})
        self.assertEqual(desk.complete()["choices"][0]["text"], "A.B.")
        self.assertEqual(desk.complete()["choices"][0]["finish_reason"], "stop")


def strip(value):
    """Without what differs from answer to answer: ids, and what only one of both has."""
    if isinstance(value, list):
        return [strip(each) for each in value]
    if isinstance(value, dict):
        return {key: strip(each) for key, each in value.items() if key not in ("id", "call_id", "encrypted_content")
                and (key != "annotations" or each)}
    return value


class LimitTest(unittest.TestCase):

    def test_max_tokens_cuts(self):
        desk = ScriptDesk({"reply": "one two three four five"})
        for limit, text in ((1, "one"), (3, "one two three"), (5, "one two three four five"),
                            (6, "one two three four five")):
            with self.subTest(limit=limit):
                answer = desk.chat(max_tokens=limit)
                self.assertEqual((answer["choices"][0]["message"]["content"], answer["choices"][0]["finish_reason"],
                                  answer["usage"]["completion_tokens"]), (text, "length" if limit < 5 else "stop",
                                      min(limit, 5)))

    def test_every_kind_of_reply_is_cut_at_every_limit_and_counts_no_more(self):
        reply = {"items": [{"reasoning": "a b c"}, {"pieces": ["one two three", " four"]}, {"refusal": "No no."},
                           {"tool_call": {"name": "f", "arguments": {"a": 1}}},
                           {"item": {"type": "code_interpreter_call", "code": "a b"}},
                           {"tool_call": {"name": "g", "input": ["x y z"]}}, "End."]}
        full = ScriptDesk({"reply": reply}).respond()["usage"]["output_tokens"]
        self.assertGreater(full, 20)
        for limit in range(1, full + 2):
            backend = make_backend({"reply": reply})
            plan = backend.generate(make_request(endpoint="responses", max_tokens=limit), Cancel())
            usage = plan[-1][1]
            with self.subTest(limit=limit):
                self.assertEqual(usage.completion_tokens, min(limit, full))
                reason, = [delta.reason for _, delta in plan if delta.__class__ is Finish]
                self.assertEqual(reason, "length" if limit < full else "tool_calls")
                self.assertEqual([due for due, _ in plan], sorted(due for due, _ in plan))
        desk = ScriptDesk({"reply": reply})
        for limit in range(16, full + 2):
            events = read_response_stream(self, desk.respond(stream=True, max_output_tokens=limit))
            self.assertEqual(events[-1]["type"], "response.incomplete" if limit < full else "response.completed")

    def test_a_stop_sequence_ends_it(self):
        desk = ScriptDesk({"reply": {"items": ["one two three", {"tool_call": {"name": "f"}}]}})
        for stop, text, reason in (("two", "one ", "stop"), ("e t", "on", "stop"), (["three", "one"], "", "stop"),
                                   ("four", "one two three", "tool_calls")):
            with self.subTest(stop=stop):
                choice = desk.chat(stop=stop)["choices"][0]
                self.assertEqual((choice["message"]["content"] or "", choice["finish_reason"]), (text, reason))
        self.assertEqual(ScriptDesk({"reply": {"pieces": ["ab", "cd"]}}).complete(stop="bc")["choices"][0]["text"], "a")

    def test_n_repeats_it(self):
        desk = ScriptDesk({"replies": [{"text": "Hi.", "tool_calls": [{"name": "f"}, {"name": "g"}]}, "next"]})
        answer = desk.chat(n=3)
        self.assertEqual([choice["message"]["content"] for choice in answer["choices"]], ["Hi."] * 3)
        self.assertEqual([len(choice["message"]["tool_calls"]) for choice in answer["choices"]], [2] * 3)
        self.assertEqual(answer["usage"]["completion_tokens"] % 3, 0)
        self.assertEqual(desk.says(), "next")

    def test_logprobs_when_they_are_asked_for(self):
        desk = ScriptDesk({"reply": {"pieces": ["one two", " three"]}})
        entries = desk.chat(logprobs=True, top_logprobs=2)["choices"][0]["logprobs"]["content"]
        self.assertEqual([entry["token"] for entry in entries], ["one", " two", " three"])
        self.assertEqual({len(entry["top_logprobs"]) for entry in entries}, {2})
        told = desk.complete(logprobs=1, echo=True, max_tokens=3)["choices"][0]["logprobs"]
        self.assertEqual(told["tokens"], ["Hello", "one", " two", " three"])
        entries = ScriptDesk({"reply": "a b"}).chat(logprobs=True)["choices"][0]["logprobs"]["content"]
        self.assertEqual([entry["token"] for entry in entries], ["a", " b"])

    def test_echo_puts_the_prompt_in_front(self):
        self.assertEqual(ScriptDesk({"reply": " there."}).complete("Hello", echo=True)["choices"][0]["text"],
                         "Hello there.")
        self.assertEqual(ScriptDesk({"reply": " there."}).complete("Hello", echo=True,
            max_tokens=0)["choices"][0]["text"], "Hello")

    def test_a_batch_of_prompts_is_answered_prompt_by_prompt(self):
        desk = ScriptDesk({"match": {"last_user_text": "b"}, "reply": "B"}, {"reply": "other"})
        answer = desk.complete(["a", "b", "c"], n=2)
        self.assertEqual([choice["text"] for choice in answer["choices"]], ["other", "other", "B", "B", "other",
            "other"])

    def test_the_authors_word_counts_against_a_schema(self):
        self.assertEqual(ScriptDesk({"reply": "no JSON"}).says(response_format={"type": "json_schema", "json_schema": {
            "name": "n", "schema": {"type": "object"}}}), "no JSON")


class TimeTest(unittest.TestCase):

    def dues(self, reply, **values):
        plan = plan_of(reply, **values)
        if plan[0][1].__class__ is TextRun:
            run = plan[0][1]
            return [round(due, 6) for due in run.dues[:len(run.pieces)]], [round(due, 6) for due, _ in plan[1:]]
        return [round(due, 6) for due, delta in plan if delta.__class__ not in (Finish, Usage)], [
            round(due, 6) for due, delta in plan if delta.__class__ in (Finish, Usage)]

    def test_words_come_at_the_clocks_times(self):
        self.assertEqual(self.dues("one two three"), ([0.1, 0.11, 0.12], [0.12, 0.12]))
        self.assertEqual(self.dues({"pieces": ["one two", " three"]}), ([0.1, 0.11], [0.11, 0.11]))
        self.assertEqual(self.dues({"text": ""}), ([], [0.1, 0.1]))

    def test_a_call_takes_a_token_for_its_name_and_its_end_none(self):
        self.assertEqual(self.dues({"tool_calls": [{"name": "f", "input": "x"}]}), ([0.1, 0.11, 0.11], [0.11, 0.11]))

    def test_its_own_times_take_the_place_of_the_clocks(self):
        self.assertEqual(self.dues({"text": "one two three", "ttft_ms": 500}), ([0.5, 0.51, 0.52], [0.52, 0.52]))
        self.assertEqual(self.dues({"text": "one two three", "itl_ms": 200}), ([0.1, 0.3, 0.5], [0.5, 0.5]))
        self.assertEqual(self.dues({"text": "one two three", "ttft_ms": 0, "itl_ms": 0}), ([0.0] * 3, [0.0] * 2))

    def test_time_scale_is_laid_on_its_own_times_too(self):
        backend = make_backend({"reply": {"text": "a b", "ttft_ms": 500, "itl_ms": 100}},
                               settings=Settings(**dict(SETTINGS, time_scale=0.1)))
        plan = backend.generate(make_request(), Cancel())
        self.assertEqual([round(due, 6) for due in plan[0][1].dues[:2]], [0.05, 0.06])

    def test_prefill_and_draws_are_the_simulated_ones(self):
        settings = Settings(ttft_ms=50, itl_ms=10, itl_std_ms=3, prefill_ms_per_token=10, seed=4)
        voice = SimulatedBackend.from_settings(settings, TOKENIZER)
        backend = make_backend({"reply": "one two three"}, settings=settings)
        request, simulated = make_request(seed=1), make_request(seed=1, max_tokens=3, ignore_eos=True)
        plan = backend.generate(request, Cancel())
        voice.generate(simulated, Cancel())
        self.assertEqual(round(plan[0][1].dues[0], 6), round(0.05 + 3 * 0.01, 6))
        self.assertEqual((request.ttft_s, request.prefill_s), (plan[0][0], 0.03))
        self.assertEqual(len(request.draw), 16)
        again = make_backend({"reply": "one two three"}, settings=settings).generate(make_request(seed=1), Cancel())
        self.assertEqual(again, plan)

    def test_every_delta_has_its_items_place(self):
        plan = plan_of({"items": [{"item": {"type": "web_search_call", "action": {}}}, "a b"]}, endpoint="responses")
        self.assertEqual([(round(due, 6), delta.__class__) for due, delta in plan], [
            (0.1, ItemStart), (0.1, ItemUpdate), (0.11, ItemUpdate), (0.12, ItemUpdate), (0.12, ItemEnd),
            (0.13, TextDelta),
            (0.14, TextDelta), (0.14, Finish), (0.14, Usage)])


class CacheTest(unittest.TestCase):
    """With a simulated prefix cache a rule's prompt and words are looked up and kept as any other's."""

    LONG = "word " * 200

    def test_cached_tokens_are_told_and_make_prefill_shorter(self):
        desk = ScriptDesk({"reply": "a b c"}, settings=Settings(**dict(SETTINGS, cache_blocks=100,
            cache_block_tokens=16, prefill_ms_per_token=1)))
        first, request = desk.chat(self.LONG), desk.request
        again = desk.chat(self.LONG)
        self.assertEqual(first["usage"]["prompt_tokens_details"]["cached_tokens"], 0)
        cached = again["usage"]["prompt_tokens_details"]["cached_tokens"]
        self.assertGreater(cached, 150)
        self.assertAlmostEqual(request.prefill_s - desk.request.prefill_s, 0.001 * cached)
        self.assertEqual(desk.backend.cache_stats().hits, cached)

    def test_every_kind_of_words_can_be_read_again(self):
        reply = {"items": [{"reasoning": "Hm."}, {"pieces": ["one two three", " four"]}, {"tool_call": {"name": "f"}},
                           "x"]}
        desk = ScriptDesk({"reply": reply}, settings=Settings(**dict(SETTINGS, cache_blocks=1000,
            cache_block_tokens=1)))
        first = desk.respond(self.LONG)
        call, = [item for item in first["output"] if item["type"] == "function_call"]
        second = desk.respond([{"type": "function_call_output", "call_id": call["call_id"], "output": "x"}],
                              previous_response_id=first["id"])
        usage = second["usage"]
        self.assertGreater(usage["input_tokens_details"]["cached_tokens"], 200)
        self.assertLess(usage["input_tokens_details"]["cached_tokens"], usage["input_tokens"])


class FaultTest(unittest.TestCase):

    def test_faults_and_gates_are_put_on_the_request_in_order_as_they_were_written(self):
        request = make_request()
        make_backend({"name": "it", "reply": {"text": "a", "fault": ["cut:event=3", {"kind": "stall", "event": 1}],
                                              "gate": {"name": "g", "event": 2}}}
                     ).generate(request, Cancel())
        self.assertEqual(request.wire_faults, ["cut:event=3", {"kind": "stall", "event": 1},
                                               {"gate": {"name": "g", "event": 2}}])
        self.assertEqual(request.rule, "it")

    def test_a_fault_without_words_befalls_the_simulated_answer(self):
        request, plain = make_request(seed=3), make_request(seed=3)
        plan = make_backend({"reply": {"fault": "cut"}}).generate(request, Cancel())
        self.assertEqual(plan, make_backend().generate(plain, Cancel()))
        self.assertEqual((request.wire_faults, request.rule), (["cut"], "added rule 1"))

    def test_a_request_that_no_rule_answers_has_none(self):
        request = make_request()
        make_backend({"match": {"model": "x"}, "reply": {"fault": "cut"}}).generate(request, Cancel())
        self.assertEqual((list(request.wire_faults), request.rule), ([], None))


class AnyRuleTest(unittest.TestCase):
    """Whatever a rule is: it is read or its mistakes are told, and then it answers or is an ApiError."""

    ODD = (None, True, 0, -1, 1.5, 1e308, 10 ** 30, "", "x", "{{", "{{match.1}}", "{{tool_result.a}}", "(", "a*", [],
           ["x"],
           [1], [None], {}, {"a": 1}, {"equal": "x"}, {"not": None}, {"regex": "(x)"}, {"type": "mcp_call"},
           {"text": "y"},
           "\ud83d", [[]], {"not": {"not": "x"}}, {"all": [None]})
    KEYS = ("not", "equal", "path", "items", "text", "case", "min", "template", "fault", "usage", "x")
    MESSAGES = ([{"role": "user", "content": "x"}], CALLED, [
        {"role": "user", "content": "a"}, {"role": "assistant", "content": None, "function_call": {"name": "f",
            "arguments": "{}"}},
        {"role": "function", "name": "f", "content": None}])

    def rules(self):
        rules = [dict({"match": {"model": "m"}, "reply": "Hi."}, **change) for change, _ in test_script_rules.MistakesTest.CASES]
        rules += [{"match": match, "reply": "x"} for match, _, _ in MatchTest.TEXTS]
        rules += [{"match": {"tool_result": match}, "reply": "{{tool_result.a}}"} for match, _ in MatchTest.RESULTS]
        return rules + [{"reply": {"items": [{"item": item}, "x"]}} for item, _ in ReplyTest.ITEMS]

    def odd(self, draw):
        return json.loads(json.dumps(draw.choice(self.ODD)))

    def changed(self, draw, rule):
        """A rule with a value of another one's, or an odd one, in it."""
        rule = json.loads(json.dumps(rule))
        for _ in range(draw.randrange(1, 4)):
            places = list(places_of(rule))
            if not places:
                break
            home, key = draw.choice(places)
            other, other_key = draw.choice(list(places_of(json.loads(json.dumps(draw.choice(self.rules()))))))
            home[key] = draw.choice((other[other_key], self.odd(draw)))
            if home.__class__ is dict and draw.random() < 0.3:
                home[draw.choice(self.KEYS)] = self.odd(draw)
        return rule

    def test_it_is_read_or_refused_and_answers(self):
        draw, answered = random.Random(5), 0
        for _ in range(700):
            rule = self.changed(draw, draw.choice(self.rules()))
            try:
                desk = ScriptDesk(rule, only=draw.random() < 0.3)
            except ScriptMistakes as exc:
                self.assertTrue(exc.mistakes)
                continue
            body = draw.choice(({}, {"logprobs": True}, {"n": 2}, {"stop": "x"}, {"max_tokens": 2}, {"stream": True},
                                {"tools": [TOOL]}))
            for create in (lambda: desk.chat(messages=draw.choice(self.MESSAGES), **body), desk.respond, desk.complete):
                try:
                    create()
                    answered += desk.request.rule is not None
                except ApiError as error:
                    self.assertEqual(error.code, "no_rule_matched", rule)
        self.assertGreater(answered, 50)


def places_of(value):
    """(container, key) of every value within a value."""
    pairs = value.items() if value.__class__ is dict else enumerate(value) if value.__class__ is list else ()
    for key, each in list(pairs):
        yield value, key
        yield from places_of(each)


if __name__ == "__main__":
    unittest.main()
