"""The Responses API: validation, echo, and state over the wire on every form of the transport."""
import json
import random
import threading
import time
import unittest

from api_common import ANSWER_TOKENS, MESSAGE_TOKENS, ApiError, Clock, Ids, TakesLong
from backends.contract import Finish, TextDelta, ToolCallDelta, Usage
from backends.simulated import SimulatedBackend
from observe.metrics import Metrics
from responses_api import ResponsesApiMixin, build_echo
from settings import Settings
from state.contract import StoreFull
from state.memory import MemoryStore
from tests.data.golden import damaged, place_of, read_response_stream
from tests.support import RESPONSE, DeltaBackend, LiveServerTest, every_form, wait_until
from tokenizer import ApproxTokenizer

TOKENIZER = ApproxTokenizer()
CALL = {"type": "function_call", "call_id": "call_a", "name": "f", "arguments": "{}"}
OUTPUT = {"type": "function_call_output", "call_id": "call_a", "output": "x"}
TOOL = {"type": "function", "name": "f", "parameters": {"type": "object"}}


class Desk(ResponsesApiMixin):
    """A host without a socket: create() gives the object that a plain answer holds."""

    def __init__(self, backend=None):
        self.settings = Settings(ttft_ms=0.0, itl_ms=0.0, output_tokens=8)
        self.clock = Clock()
        self.ids = Ids()
        self.store = MemoryStore()
        self.runs, self.live_responses = {}, set()
        self.backend = backend or SimulatedBackend.from_settings(self.settings, TOKENIZER)
        self.tokenizer = TOKENIZER
        self.metrics = Metrics()
        self.errors = []

    def log_exception(self):
        raise AssertionError("logged an exception")

    def send_json(self, status, value, headers=()):
        self.answer = value

    def send_completion(self, completion, streamed, headers=()):
        self.request = completion.request

        def render(status, body):
            if isinstance(body, ApiError):
                raise body
            return body
        _, step = completion.plain_step(completion.planned(), render)
        self.answer = json.loads(step.run())

    def create(self, **body):
        self.body_bytes = json.dumps(body).encode()
        self.breathe = None
        try:
            self.responses_create()
        except TakesLong:
            self.breathe = int          # as on a worker
            self.responses_create()
        return self.answer


# (what is changed in a good request, param, code)
FAULTS = [
    ({"model": None}, "model", "missing_required_parameter"),
    ({"input": None}, "input", "missing_required_parameter"),
    ({"input": []}, "input", "empty_array"),
    ({"model": 5}, "model", "invalid_type"),
    ({"model": ""}, "model", "empty_string"),
    ({"input": 5}, "input", "invalid_type"),
    ({"input": {"role": "user", "content": "x"}}, "input", "invalid_type"),
    ({"input": True}, "input", "invalid_type"),
    ({"instructions": ["x"]}, "instructions", "invalid_type"),
    ({"previous_response_id": 5}, "previous_response_id", "invalid_type"),
    ({"previous_response_id": "resp_ 1"}, "previous_response_id", "invalid_value"),
    ({"previous_response_id": "resp/../x"}, "previous_response_id", "invalid_value"),
    ({"previous_response_id": "resp_\n"}, "previous_response_id", "invalid_value"),
    ({"previous_response_id": ""}, "previous_response_id", "invalid_value"),
    ({"previous_response_id": "resp_" + "0" * 32}, "previous_response_id", "previous_response_not_found"),
    ({"store": "no"}, "store", "invalid_type"),
    ({"stream": "yes"}, "stream", "invalid_type"),
    ({"stream": 1}, "stream", "invalid_type"),
    ({"background": 0}, "background", "invalid_type"),
    ({"max_output_tokens": 15}, "max_output_tokens", "integer_below_min_value"),
    ({"max_output_tokens": 0}, "max_output_tokens", "integer_below_min_value"),
    ({"max_output_tokens": True}, "max_output_tokens", "invalid_type"),
    ({"max_output_tokens": 16.0}, "max_output_tokens", "invalid_type"),
    ({"max_output_tokens": "16"}, "max_output_tokens", "invalid_type"),
    ({"max_tool_calls": 0}, "max_tool_calls", "integer_below_min_value"),
    ({"temperature": 2.5}, "temperature", "decimal_above_max_value"),
    ({"temperature": -1}, "temperature", "decimal_below_min_value"),
    ({"temperature": False}, "temperature", "invalid_type"),
    ({"top_p": 1.5}, "top_p", "decimal_above_max_value"),
    ({"top_logprobs": 21}, "top_logprobs", "integer_above_max_value"),
    ({"top_logprobs": -1}, "top_logprobs", "integer_below_min_value"),
    ({"presence_penalty": 3}, "presence_penalty", "decimal_above_max_value"),
    ({"min_tokens": -1}, "min_tokens", "integer_below_min_value"),
    ({"min_tokens": 20, "max_output_tokens": 16}, "min_tokens", "invalid_value"),
    ({"metadata": {"a": 1}}, "metadata.a", "invalid_type"),
    ({"metadata": {str(n): "" for n in range(17)}}, "metadata", "object_above_max_properties"),
    ({"tools": [5]}, "tools[0]", "invalid_type"),
    ({"tools": "f"}, "tools", "invalid_type"),
    ({"include": ["everything"]}, "include[0]", "invalid_value"),
    ({"include": "reasoning.encrypted_content"}, "include", "invalid_type"),
    ({"truncation": "some"}, "truncation", "invalid_value"),
    ({"service_tier": "first"}, "service_tier", "invalid_value"),
    ({"safety_identifier": "x" * 65}, "safety_identifier", "string_above_max_length"),
    ({"reasoning": {"effort": "huge"}}, "reasoning.effort", "invalid_value"),
    ({"reasoning": {"summary": "long"}}, "reasoning.summary", "invalid_value"),
    ({"reasoning": "high"}, "reasoning", "invalid_type"),
    ({"text": {"format": {"type": "xml"}}}, "text.format.type", "invalid_value"),
    ({"text": {"format": {"type": "json_schema", "schema": {}}}}, "text.format.name", "missing_required_parameter"),
    ({"text": {"verbosity": "loud"}}, "text.verbosity", "invalid_value"),
    ({"stream_options": {"include_obfuscation": False}}, "stream_options", None),
    ({"stream_options": {"include_obfuscation": 1}, "stream": True}, "stream_options.include_obfuscation",
     "invalid_type"),
    ({"context_management": []}, "context_management", "empty_array"),
    ({"background": True, "store": False}, "background", None),
    ({"input": [OUTPUT]}, "input", None),
    ({"input": [{"type": "robot"}]}, "input[0].type", "invalid_value"),
]

# Rows of api-reference 2.2 and 8.3 about tools and output formats.
TOOL_FAULTS = [
    ({"tool_choice": "required"}, "tool_choice", None),
    ({"tool_choice": {"type": "function", "name": "f"}}, "tool_choice", None),
    ({"tool_choice": {"type": "function", "name": "g"}, "tools": [TOOL]}, "tool_choice", None),
    ({"tools": [{"type": "function", "parameters": {}}]}, "tools[0].name", "missing_required_parameter"),
    ({"tools": [{"type": "custom"}]}, "tools[0].name", "missing_required_parameter"),
    ({"text": {"format": {"type": "json_object"}}}, "input", None),
]

GOOD = [
    {"input": ""}, {"input": [{"role": "user", "content": "x"}]}, {"instructions": ""}, {"max_output_tokens": 16},
    {"input": None, "prompt": {"id": "pmpt_1"}}, {"store": False}, {"include": []}, {"tool_choice": "auto"},
    {"include": ["reasoning.encrypted_content"]}, {"vendor": {"x": 1}}, {"client_metadata": {"a": [1]}},
    {"tools": [TOOL, {"type": "web_search"}, {"type": "namespace", "name": "n", "tools": [TOOL]},
               {"type": "never_heard_of"}]},
    {"text": {"format": {"type": "json_schema", "name": "x", "strict": True, "schema": {
        "type": "object", "properties": {}, "required": [], "additionalProperties": False}}}},
    {"reasoning": {"effort": "low", "summary": "auto"}}, {"input": [CALL, OUTPUT]},
    {"input": [CALL, {"type": "function_call_output", "output": "goal", "name": "f"}]},
]


class ValidationTest(unittest.TestCase):

    def assert_refused(self, change, param, code):
        desk = Desk()
        with self.assertRaises(ApiError) as caught:
            desk.create(**dict(RESPONSE, **change))
        error = caught.exception
        self.assertEqual((error.status, error.type, error.param, error.code),
                         (400, "invalid_request_error", param, code))
        self.assertLess(len(error.message), 400)
        self.assertEqual(desk.store.stats()["responses"], 0)

    def test_faults_name_their_place_and_code(self):
        for change, param, code in FAULTS:
            with self.subTest(change=str(change)[:100]):
                self.assert_refused(change, param, code)

    def test_semantic_faults_of_tools_and_formats_are_refused(self):
        for change, param, code in TOOL_FAULTS:
            with self.subTest(change=str(change)[:100]):
                self.assert_refused(change, param, code)

    def test_strict_mode_has_the_services_own_rules(self):
        for change, param, code in (
                ({"vendor": 1}, "vendor", "unknown_parameter"), ({"messages": []}, "messages", "unknown_parameter"),
                ({"ignore_eos": True}, "ignore_eos", "unknown_parameter"),
                ({"tools": [{"type": "never_heard_of"}]}, "tools[0].type", "invalid_value"),
                ({"input": [CALL, {"role": "user", "content": "and?"}]}, "input", None),
                ({"input": [{"type": "function_call_output", "output": "x"}]}, "input[0].call_id",
                 "missing_required_parameter")):
            with self.subTest(change=str(change)[:100]):
                Desk().create(**dict(RESPONSE, **change))       # the lenient default takes it
                desk = Desk()
                desk.settings = Settings(ttft_ms=0.0, itl_ms=0.0, strict=True)
                with self.assertRaises(ApiError) as caught:
                    desk.create(**dict(RESPONSE, **change))
                error = caught.exception
                self.assertEqual((error.status, error.param, error.code), (400, param, code))

    def test_good_requests_pass(self):
        for change in GOOD:
            with self.subTest(change=str(change)[:100]):
                self.assertEqual(Desk().create(**dict(RESPONSE, **change))["status"], "completed")

    def test_null_means_not_given_for_every_field(self):
        names = ["instructions", "previous_response_id", "conversation", "store", "background", "stream",
                 "stream_options", "max_output_tokens", "max_tool_calls", "temperature", "top_p", "top_logprobs",
                 "parallel_tool_calls", "tools", "tool_choice", "text", "reasoning", "include", "truncation",
                 "metadata", "service_tier", "safety_identifier", "prompt_cache_key", "user", "prompt",
                 "context_management", "moderation", "min_tokens", "ignore_eos", "presence_penalty",
                 "frequency_penalty"]
        desk = Desk()
        response = desk.create(**dict(RESPONSE, **dict.fromkeys(names)))
        self.assertEqual(desk.request.ignored_fields, ())
        self.assertEqual(desk.store.stats()["responses"], 1, "store: null is the default, true")
        plain = Desk().create(**RESPONSE)
        for key in ("id", "created_at", "completed_at", "output"):
            del response[key], plain[key]
        self.assertEqual(response, plain)

    def test_input_may_be_absent_behind_a_previous_response(self):
        desk = Desk()
        first = desk.create(**RESPONSE)
        for given in ({}, {"input": None}, {"input": []}):
            with self.subTest(given=given):
                self.assertEqual(desk.create(model="m", previous_response_id=first["id"], **given)["status"],
                                 "completed")

    def test_what_nobody_acts_on_is_listed(self):
        desk = Desk()
        desk.create(**dict(RESPONSE, vendor=1, temperature=0.5, metadata={}))
        self.assertEqual(set(desk.request.ignored_fields), {"vendor", "temperature"})


RICH = dict(
    model="m", instructions="a", store=True, max_output_tokens=20, min_tokens=2, temperature=1, top_p=1,
    metadata={"a": "b"}, include=["reasoning.encrypted_content"], truncation="auto", service_tier="auto", user="u",
    reasoning={"effort": "low", "summary": "auto"}, text={"format": {"type": "text"}, "verbosity": "low"},
    tools=[TOOL, {"type": "web_search"}, {"type": "function", "function": {"name": "g"}}], tool_choice="auto",
    prompt={"id": "x"}, stream_options=None, previous_response_id=None, input=[
        {"role": "user", "content": "b"},
        {"type": "message", "role": "user", "id": "msg_x", "content": [
            {"type": "input_text", "text": "c"}, {"type": "input_image", "image_url": "x"}]},
        {"role": "assistant", "content": [{"type": "output_text", "text": "d"}, {"type": "refusal", "refusal": "e"}]},
        {"type": "reasoning", "summary": [{"type": "summary_text", "text": "f"}], "id": "rs_x"}, CALL, OUTPUT,
        {"type": "custom_tool_call", "call_id": "call_b", "name": "g", "input": "x"},
        {"type": "custom_tool_call_output", "call_id": "call_b", "output": [{"type": "input_text", "text": "y"}]},
        {"type": "web_search_call", "id": "ws_x", "action": {"type": "search"}},
        {"type": "function_call_output", "output": "z"}])


class DamageTest(unittest.TestCase):
    """Any JSON object is either answered and stored whole, or refused with a 400 or 404; nothing else is raised."""

    def test_random_damage_is_refused_or_answered(self):
        draw = random.Random(6)
        desk, refused, faults = Desk(), 0, {}
        for number in range(3000):
            body = damaged(draw, RICH)
            try:
                if body.get("min_tokens") == 10 ** 30:
                    continue                    # a test of its own
                response = desk.create(**body)
                self.assertEqual(desk.store.get(response["id"]) is None, body.get("store") is False)
                if body.get("store") is not False:
                    self.check_stored(desk, response["id"], response)
            except ApiError as error:
                refused += 1
                if error.status not in (400, 404) or not json.loads(error.envelope())["error"]["message"]:
                    self.fail("number %d: %r" % (number, error))
            except Exception as exc:
                faults.setdefault(place_of(exc), "number %d: %s" % (number, json.dumps(body)))
        self.assertFalse(faults, "\n".join(map(str, faults.items())))
        self.assertTrue(700 < refused < 2900, refused)

    def check_stored(self, desk, id, response):
        """It can be listed, rendered for a backend, and continued."""
        desk.query = {"limit": ["100"]}
        desk.responses_input_items(id)
        for item in desk.answer["data"]:
            if item["id"].__class__ is not str or item["type"].__class__ is not str:
                raise TypeError("an item with an id that is no string is listed")
        desk.request.history.messages()
        again = desk.create(model="m", input="on", previous_response_id=id, store=False)
        said = response["usage"]["output_tokens"] - response["usage"]["output_tokens_details"]["reasoning_tokens"]
        self.assertGreater(again["usage"]["input_tokens"], said)

    def test_the_undamaged_request_is_answered(self):
        self.assertEqual(Desk().create(**dict(RICH, max_output_tokens=None))["status"], "completed")


class EchoTest(unittest.TestCase):
    # every key that the object must have in every status (api-reference 8.2), but id and conversation
    KEYS = {"object", "created_at", "completed_at", "status", "error", "incomplete_details", "instructions", "model",
            "output", "parallel_tool_calls", "tool_choice", "tools", "text", "temperature", "top_p", "top_logprobs",
            "presence_penalty", "frequency_penalty", "reasoning", "truncation", "max_output_tokens",
            "max_tool_calls", "previous_response_id", "safety_identifier", "prompt_cache_key", "user", "store",
            "background", "service_tier", "metadata", "usage"}

    def echo(self, **body):
        return json.loads(b"{%s}" % build_echo(dict(RESPONSE, **body)))

    def test_all_keys_are_there_and_no_output_text(self):
        response = Desk().create(**RESPONSE)
        self.assertEqual(self.KEYS - set(response), set())
        self.assertNotIn("output_text", response)
        self.assertEqual((response["object"], response["store"], response["background"]), ("response", True, False))

    def test_defaults_are_filled_in(self):
        self.assertEqual(self.echo(), {
            "instructions": None, "model": "mock-model", "parallel_tool_calls": True, "tool_choice": "auto",
            "tools": [], "text": {"format": {"type": "text"}, "verbosity": "medium"}, "temperature": 1.0,
            "top_p": 1.0, "top_logprobs": 0, "presence_penalty": 0.0, "frequency_penalty": 0.0,
            "reasoning": {"effort": None, "summary": None}, "truncation": "disabled", "max_output_tokens": None,
            "max_tool_calls": None, "previous_response_id": None, "safety_identifier": None,
            "prompt_cache_key": None, "user": None, "store": True, "background": False,
            "service_tier": "default", "metadata": {}})

    def test_what_is_given_is_repeated(self):
        given = {"instructions": "Be \"brief\".\n", "temperature": 0.5, "top_p": 0, "metadata": {"a": "b"},
                 "max_output_tokens": 20, "truncation": "auto", "parallel_tool_calls": False, "user": "u",
                 "tool_choice": {"type": "function", "name": "f"}, "store": False, "service_tier": "flex",
                 "previous_response_id": "resp_1", "top_logprobs": 3, "safety_identifier": "s",
                 "prompt_cache_key": "k", "presence_penalty": 1, "max_tool_calls": 2}
        echo = self.echo(**given)
        self.assertEqual({key: echo[key] for key in given}, given)

    def test_parts_that_are_missing_are_filled_in(self):
        for given, key, value in (
                ({"text": {"verbosity": "low"}}, "text", {"format": {"type": "text"}, "verbosity": "low"}),
                ({"text": {"format": {"type": "json_object"}}}, "text",
                 {"format": {"type": "json_object"}, "verbosity": "medium"}),
                ({"reasoning": {"effort": "low"}}, "reasoning", {"effort": "low", "summary": None}),
                ({"reasoning": {}}, "reasoning", {"effort": None, "summary": None}),
                ({"service_tier": "auto"}, "service_tier", "default"),
                ({"tools": [{"type": "function", "name": "f"}]}, "tools", [
                    {"type": "function", "name": "f", "description": None, "parameters": None, "strict": True}]),
                ({"tools": [dict(TOOL, strict=False, description="d")]}, "tools", [
                    dict(TOOL, strict=False, description="d")]),
                ({"tools": [{"type": "web_search", "x": 1}]}, "tools", [{"type": "web_search", "x": 1}])):
            with self.subTest(given=given):
                self.assertEqual(self.echo(**given)[key], value)

    def test_the_echo_is_json_whatever_the_texts(self):
        for text in ("\ud83d", "\"\\\n\x00", "\U0001f600", "," * 3, '","x":"'):
            with self.subTest(text=ascii(text)):
                self.assertEqual(self.echo(instructions=text, metadata={text: text})["instructions"], text)


class ContextTest(unittest.TestCase):
    """What the backend is told of a chain."""

    def test_the_whole_context_counts_and_instructions_only_in_their_turn(self):
        desk = Desk()
        first = desk.create(**dict(RESPONSE, instructions="Speak plainly and briefly."))
        second = desk.create(model="m", input="And now?", previous_response_id=first["id"])
        text = first["output"][0]["content"][0]["text"]
        self.assertEqual(first["usage"]["input_tokens"], TOKENIZER.count("Hello") + ANSWER_TOKENS
                         + TOKENIZER.count("Speak plainly and briefly.") + 2 * MESSAGE_TOKENS)
        self.assertEqual(second["usage"]["input_tokens"], TOKENIZER.count("Hello") + TOKENIZER.count(text)
                         + TOKENIZER.count("And now?") + 3 * MESSAGE_TOKENS + ANSWER_TOKENS)

    def test_the_backend_gets_the_chains_messages_in_order(self):
        desk = Desk()
        first = desk.create(**dict(RESPONSE, instructions="Old."))
        desk.create(model="m", input="And now?", previous_response_id=first["id"], instructions="New.")
        self.assertEqual(desk.request.history.messages(), [
            {"role": "system", "content": "New."}, {"role": "user", "content": "Hello"},
            {"role": "assistant", "content": first["output"][0]["content"][0]["text"]},
            {"role": "user", "content": "And now?"}])

    def test_parameters_are_not_inherited(self):
        desk = Desk()
        first = desk.create(**dict(RESPONSE, tools=[TOOL], temperature=0.5, metadata={"a": "b"}))
        second = desk.create(model="other", input="x", previous_response_id=first["id"])
        self.assertEqual((second["tools"], second["temperature"], second["metadata"], second["instructions"],
                          second["model"], second["previous_response_id"]),
                         ([], 1.0, {}, None, "other", first["id"]))

    def test_a_call_of_an_earlier_turn_can_be_answered_and_twice(self):
        desk = Desk(DeltaBackend([(0.0, ToolCallDelta(0, "{}", "call_a", "f")), (0.0, Finish("tool_calls")),
                                  (0.0, Usage(3, 4))]))
        first = desk.create(**RESPONSE)
        self.assertEqual(desk.store.get(first["id"]).open_calls, {"call_a"})
        second = desk.create(model="m", input=[OUTPUT], previous_response_id=first["id"])
        third = desk.create(model="m", input=[OUTPUT], previous_response_id=second["id"])
        self.assertEqual(third["status"], "completed")

    def test_a_500_turn_chain_counts_linearly(self):
        desk = Desk()
        id, counts = None, []
        for _ in range(500):
            response = desk.create(**dict(RESPONSE, previous_response_id=id))
            id = response["id"]
            counts.append(response["usage"]["input_tokens"])
        steps = {after - before for before, after in zip(counts, counts[1:])}
        self.assertEqual(steps, {TOKENIZER.count("Hello") + 8 + 2 * MESSAGE_TOKENS})


# ---- over the wire ----------------------------------------------------------------------------

class ResponsesLive(LiveServerTest):
    """Short words for the routes."""

    def create(self, client=None, **change):
        return (client or self).request("POST", "/v1/responses", dict(RESPONSE, **change))

    def created(self, **change):
        """The object of a response that must have been created."""
        answer = self.create(**change)
        self.assertEqual(answer.status, 200, answer.body)
        return answer.json()

    def streamed(self, **change):
        """The events of a streamed response, its rules asserted."""
        answer = self.create(stream=True, **change)
        self.assertEqual(answer.status, 200, answer.body)
        return read_response_stream(self, answer.body)

    def made(self, streamed, **change):
        return self.streamed(**change)[-1]["response"] if streamed else self.created(**change)

    def get(self, id, tail=""):
        return self.request("GET", "/v1/responses/%s%s" % (id, tail))

    def input_ids(self, id, query=""):
        answer = self.get(id, "/input_items" + query)
        self.assertEqual(answer.status, 200, answer.body)
        return [item["id"] for item in answer.json()["data"]]

    def assert_not_found(self, id):
        """Unknown as a previous response, plain and streamed, and in every path."""
        for streamed in (False, True):
            answer = self.create(previous_response_id=id, stream=streamed)
            self.assertEqual((answer.status, answer.error["code"], answer.error["param"], answer.error["type"]),
                             (400, "previous_response_not_found", "previous_response_id", "invalid_request_error"))
            self.assertIn(id, answer.error["message"])
        for method, tail in (("GET", ""), ("DELETE", ""), ("GET", "/input_items")):
            answer = self.request(method, "/v1/responses/" + id + tail)
            self.assertEqual((answer.status, answer.error["type"], answer.error["param"], answer.error["code"]),
                             (404, "invalid_request_error", None, None))


def text_of(response):
    return "".join(part["text"] for item in response["output"] for part in item["content"])


@every_form
class StateTest(ResponsesLive):

    def test_a_five_turn_conversation_streamed_and_plain_in_turn(self):
        id, tokens, said = None, 0, []
        for turn in range(5):
            given = "Turn number %d" % turn
            response = self.made(turn % 2, input=given, previous_response_id=id)
            self.assertEqual(response["previous_response_id"], id)
            tokens += TOKENIZER.count(given) + MESSAGE_TOKENS
            self.assertEqual(response["usage"]["input_tokens"], tokens + ANSWER_TOKENS)
            self.assertEqual(response["usage"]["output_tokens"], TOKENIZER.count(text_of(response)))
            tokens += response["usage"]["output_tokens"] + MESSAGE_TOKENS
            said += [given, text_of(response)]
            id = response["id"]
        items = self.get(id, "/input_items?limit=100&order=asc").json()["data"]
        self.assertEqual([item["content"][0]["text"] for item in items], said[:-1])

    def test_get_gives_the_completed_object_byte_for_byte(self):
        answer = self.create()
        self.assertEqual(self.get(answer.json()["id"]).body, answer.body)
        streamed = self.create(stream=True)
        response = read_response_stream(self, streamed.body)[-1]["response"]
        self.assertIn(b'"response":%s,"sequence_number":' % self.get(response["id"]).body, streamed.body)

    def test_an_incomplete_response_is_stored_and_can_be_continued(self):
        for streamed in (False, True):
            with self.subTest(streamed=streamed):
                response = self.made(streamed, max_output_tokens=16, ignore_eos=True)
                self.assertEqual((response["status"], response["incomplete_details"]["reason"],
                                  response["output"][0]["status"]), ("incomplete", "max_output_tokens", "incomplete"))
                self.assertEqual(self.get(response["id"]).json(), response)
                self.assertEqual(self.created(previous_response_id=response["id"])["status"], "completed")

    def test_branches_of_one_response_do_not_meet(self):
        trunk = self.created()
        left = self.created(input="left", previous_response_id=trunk["id"])
        right = self.made(True, input="right", previous_response_id=trunk["id"])
        leaf = self.created(input="leaf", previous_response_id=left["id"])
        texts = [item["content"][0]["text"] for item in self.get(leaf["id"], "/input_items").json()["data"]]
        self.assertEqual(texts, ["leaf", text_of(left), "left", text_of(trunk), "Hello"])
        self.assertEqual(len(self.input_ids(right["id"])), 3)

    def test_deleting_in_the_middle_leaves_the_later_turns_their_context(self):
        first = self.created()
        second = self.created(previous_response_id=first["id"])
        third = self.created(previous_response_id=second["id"])
        answer = self.request("DELETE", "/v1/responses/" + second["id"])
        self.assertEqual((answer.status, answer.json()),
                         (200, {"id": second["id"], "object": "response", "deleted": True}))
        self.assert_not_found(second["id"])
        fourth = self.created(previous_response_id=third["id"])
        self.assertEqual(len(self.input_ids(fourth["id"])), 7)
        self.assertEqual(self.get(first["id"]).status, 200)

    def test_unknown_and_unstored_ids_are_not_found(self):
        for streamed in (False, True):
            unstored = self.made(streamed, store=False)
            self.assertEqual((unstored["store"], unstored["status"]), (False, "completed"))
            self.assert_not_found(unstored["id"])
        self.assert_not_found("resp_" + "0" * 32)
        self.assert_not_found("nope")
        self.assertEqual(self.server.store.stats()["responses"], 0)

    def test_an_unstored_turn_reads_the_chain_it_names(self):
        first = self.created()
        second = self.created(previous_response_id=first["id"], store=False)
        self.assertGreater(second["usage"]["input_tokens"], first["usage"]["total_tokens"])

    def test_items_can_be_referred_to_at_once(self):
        response = self.made(True)
        item = response["output"][0]["id"]
        again = self.created(input=[{"type": "item_reference", "id": item}, {"id": item}, {"role": "user",
                                                                                         "content": "x"}])
        items = self.get(again["id"], "/input_items?order=asc").json()["data"]
        self.assertEqual([entry["content"][0]["text"] for entry in items],
                         [text_of(response), "x"])      # once: its id is a cursor of the list
        answer = self.create(input=[{"type": "item_reference", "id": "msg_nope"}])
        self.assertEqual((answer.status, answer.error["param"]), (404, "input"))

    def test_item_ids_are_the_same_in_events_object_and_lists(self):
        first = self.streamed()
        added = [event["item"]["id"] for event in first if event["type"] == "response.output_item.added"]
        response = first[-1]["response"]
        self.assertEqual([item["id"] for item in response["output"]], added)
        second = self.created(previous_response_id=response["id"])
        self.assertIn(added[0], self.input_ids(second["id"]))

    def test_every_id_is_used_once(self):
        ids = []
        previous = None
        for turn in range(4):
            response = self.made(turn % 2, input=[{"role": "user", "content": "a"}, {"role": "user", "content": "b"}],
                                 previous_response_id=previous)
            previous = response["id"]
            ids.append(previous)
        ids += self.input_ids(previous, "?limit=100")
        self.assertEqual(len(set(ids)), len(ids))

    def test_a_streamed_response_can_be_chained_as_soon_as_its_end_is_read(self):
        first, second = self.connect(), self.connect()
        for number in range(200):
            first.send_request("POST", "/v1/responses", dict(RESPONSE, stream=True))
            answer = first.read_head()
            while True:
                event = first.read_frame(answer)
                if event.name == "response.completed":
                    break
            id = event.data["response"]["id"]
            chained = self.create(second, previous_response_id=id, input=[
                {"id": event.data["response"]["output"][0]["id"]}])
            if chained.status != 200:
                self.fail("number %d: %r" % (number, chained))
            self.assertEqual(first.read_rest(answer)[-1].data, "[DONE]")

    def test_limits_are_honoured(self):
        for options, tokens, status in (({"max_output_tokens": 16}, 8, "completed"),
                                        ({"max_output_tokens": 16, "ignore_eos": True}, 16, "incomplete"),
                                        ({"max_output_tokens": 40, "min_tokens": 20}, 20, "completed"),
                                        ({"max_output_tokens": 16, "min_tokens": 16}, 16, "completed"),
                                        ({}, 8, "completed")):
            for streamed in (False, True):
                with self.subTest(options=options, streamed=streamed):
                    response = self.made(streamed, **options)
                    self.assertEqual((response["usage"]["output_tokens"], response["status"]), (tokens, status))
                    self.assertEqual(TOKENIZER.count(text_of(response)), tokens)

    def test_many_tokens_keep_the_sequence(self):
        response = self.made(True, max_output_tokens=2000, ignore_eos=True)
        self.assertEqual(response["usage"]["output_tokens"], 2000)

    def test_a_path_with_a_query_or_without_the_prefix_is_the_same(self):
        for path in ("/v1/responses?beta=true", "/responses", "/v1/responses/"):
            with self.subTest(path=path):
                self.assertEqual(self.request("POST", path, RESPONSE).status, 200)


@every_form
class InputItemsTest(ResponsesLive):

    def setUp(self):
        ResponsesLive.setUp(self)
        self.first = self.created(input=[{"role": "user", "content": "a"}, {"role": "user", "content": "b"}])
        self.last = self.created(input=[{"role": "user", "content": "c"}, {"role": "user", "content": "d"}],
                                 previous_response_id=self.first["id"])

    def page(self, query=""):
        return self.get(self.last["id"], "/input_items" + query)

    def texts(self, query=""):
        return [item["content"][0]["text"] for item in self.page(query).json()["data"]]

    def test_the_whole_context_newest_first_without_the_own_output(self):
        said = text_of(self.first)
        self.assertEqual(self.texts(), ["d", "c", said, "b", "a"])
        self.assertEqual(self.texts("?order=asc"), ["a", "b", said, "c", "d"])

    def test_pages_follow_each_other_in_both_orders(self):
        for order in ("asc", "desc"):
            with self.subTest(order=order):
                found, after = [], ""
                for _ in range(5):
                    page = self.page("?limit=2&order=%s%s" % (order, after)).json()
                    found += [item["id"] for item in page["data"]]
                    self.assertEqual((page["object"], page["first_id"], page["last_id"]),
                                     ("list", page["data"][0]["id"], page["data"][-1]["id"]))
                    if not page["has_more"]:
                        break
                    after = "&after=" + page["last_id"]
                self.assertEqual(found, self.input_ids(self.last["id"], "?order=" + order))

    def test_a_page_after_the_last_item_is_empty(self):
        last = self.input_ids(self.last["id"])[-1]
        page = self.page("?after=" + last).json()
        self.assertEqual(page, {"object": "list", "data": [], "first_id": None, "last_id": None, "has_more": False})

    def test_bad_queries_are_refused(self):
        for query, param, code in (("?limit=0", "limit", "integer_below_min_value"),
                                   ("?limit=101", "limit", "integer_above_max_value"),
                                   ("?limit=x", "limit", "invalid_type"), ("?limit=", "limit", "invalid_type"),
                                   ("?order=up", "order", "invalid_value"),
                                   ("?after=msg_nope", "after", "invalid_value"),
                                   ("?include=everything", "include[0]", "invalid_value")):
            with self.subTest(query=query):
                answer = self.page(query)
                self.assertEqual((answer.status, answer.error["param"], answer.error["code"]), (400, param, code))

    def test_bounds_of_the_limit_are_taken(self):
        for query, count in (("?limit=1", 1), ("?limit=100", 5), ("?include[]=reasoning.encrypted_content", 5)):
            with self.subTest(query=query):
                self.assertEqual(len(self.texts(query)), count)

    def test_stored_items_are_whole(self):
        for item in self.page().json()["data"]:
            self.assertEqual(set(item), {"type", "id", "status", "role", "content"})


@every_form
class BoundsTest(ResponsesLive):

    def test_an_evicted_response_is_unknown_and_its_descendant_goes_on(self):
        self.start_server(max_responses=2)
        first = self.created()
        second = self.created(previous_response_id=first["id"])
        third = self.created(previous_response_id=second["id"])
        self.assert_not_found(first["id"])
        self.assertEqual(len(self.input_ids(third["id"])), 5)

    def test_an_expired_response_is_unknown(self):
        clock = ShiftingWall()
        self.start_server(store=MemoryStore(ttl_s=60.0, wall=clock))
        first = self.created()
        self.assertEqual(self.get(first["id"]).status, 200)
        clock.shift_s = 61.0
        self.assert_not_found(first["id"])

    def test_the_server_sweeps_what_expired(self):
        clock = ShiftingWall()
        self.start_server(store=MemoryStore(ttl_s=60.0, wall=clock))
        self.created()
        clock.shift_s = 61.0
        wait_until(lambda: self.server.store.stats()["expired"] == 1, "the sweep")
        self.assertEqual(self.server.store.stats()["bytes"], 0)

    def test_a_turn_too_big_for_the_store_is_a_500_and_leaves_the_store_as_it_was(self):
        self.start_server(store=MemoryStore(max_bytes=20000))
        first = self.created()
        before = self.server.store.stats()
        answer = self.create(input="x" * 18000, previous_response_id=first["id"])
        self.assertEqual((answer.status, answer.error["type"]), (500, "server_error"))
        self.assertEqual(self.server.store.stats(), before)
        self.assertEqual(self.get(first["id"]).json(), first)


class ShiftingWall:
    """A wall clock for MemoryStore that runs like the real one, from wherever it was moved to."""

    shift_s = 0.0

    def __call__(self):
        return time.time() + self.shift_s


class FailingStore(MemoryStore):
    """Takes nothing. blocking as asked for."""

    def __init__(self, error, blocking):
        MemoryStore.__init__(self)
        self.blocking = blocking
        self.error = error

    def put(self, node, conversation=None):
        raise self.error


@every_form
class FailingStoreTest(ResponsesLive):

    def check_failed_commits(self, error, blocking, logged):
        """Plain: a 500; streamed: error and response.failed behind the closed items; nothing is stored."""
        self.start_server(store=FailingStore(error, blocking))
        answer = self.create()
        self.assertEqual((answer.status, answer.error["type"]), (500, "server_error"))
        self.assertNotIn("secret", answer.text)
        events = self.streamed()
        self.assertEqual([event["type"] for event in events[-3:]],
                         ["response.output_item.done", "error", "response.failed"])
        self.assertEqual(events[-1]["response"]["error"]["code"], "server_error")
        self.assertNotIn("secret", json.dumps(events))
        self.assertEqual(self.get(events[-1]["response"]["id"]).status, 404)
        self.assertEqual(len(self.take_errors()), logged)

    def test_a_full_store_fails_the_answer(self):
        self.check_failed_commits(StoreFull("It is full."), False, 0)

    def test_a_full_store_that_may_wait_fails_the_answer(self):
        self.check_failed_commits(StoreFull("It is full."), True, 0)

    def test_a_broken_store_fails_the_answer_and_is_logged_once_each(self):
        self.check_failed_commits(RuntimeError("secret of the store"), False, 2)

    def test_a_broken_store_that_may_wait_fails_the_answer_and_is_logged_once_each(self):
        self.check_failed_commits(RuntimeError("secret of the store"), True, 2)

    def test_a_store_that_cannot_take_anything_is_not_asked_without_store(self):
        self.start_server(store=FailingStore(RuntimeError("no"), False))
        for streamed in (False, True):
            self.assertEqual(self.made(streamed, store=False)["status"], "completed")


class SlowStore(MemoryStore):
    """A store that may wait: nobody may call it on the loop or the pacer."""

    blocking = True

    def __init__(self):
        MemoryStore.__init__(self)
        self.threads = set()

    def _note(self):
        self.threads.add(threading.current_thread().name)

    def get(self, id):
        self._note()
        return MemoryStore.get(self, id)

    def put(self, node, conversation=None):
        self._note()
        MemoryStore.put(self, node, conversation)

    def delete(self, id):
        self._note()
        return MemoryStore.delete(self, id)


@every_form
class BlockingStoreTest(ResponsesLive):

    def make_store(self):
        self.slow_store = SlowStore()
        return self.slow_store

    def test_a_conversation_over_a_store_that_waits(self):
        id = None
        for turn in range(4):
            response = self.made(turn % 2, previous_response_id=id)
            id = response["id"]
            self.assertEqual(self.get(id).json(), response)
        self.assertEqual(len(self.input_ids(id)), 7)
        self.assertEqual(self.request("DELETE", "/v1/responses/" + id).status, 200)
        self.assert_not_found(id)

    def test_neither_loop_nor_pacer_call_it(self):
        for streamed in (False, True):
            id = self.made(streamed)["id"]
            self.get(id)
            self.made(streamed, previous_response_id=id, max_output_tokens=16)
        self.assertEqual(self.slow_store.threads & {"serve", "pacer"}, set())

    def test_a_stream_can_be_chained_at_once(self):
        for _ in range(20):
            id = self.made(True)["id"]
            self.assertEqual(self.create(previous_response_id=id).status, 200)


@every_form
class FailedResponseTest(ResponsesLive):

    def test_a_response_that_failed_in_its_stream_can_be_fetched(self):
        # api-reference 11.2: failed, incomplete and cancelled responses are retrievable too
        self.start_server(backend=DeltaBackend([(0.0, TextDelta("a")), ApiError(500, "It broke.", "server_error")]))
        response = self.streamed()[-1]["response"]
        self.assertEqual(response["status"], "failed")
        answer = self.get(response["id"])
        self.assertEqual((answer.status, answer.json() if answer.status == 200 else None), (200, response))


    def test_a_failed_response_can_be_continued_with_what_it_had_said(self):
        backend = DeltaBackend([(0.0, TextDelta("Half of")), ApiError(500, "It broke.", "server_error")])
        self.start_server(backend=backend)
        failed = self.streamed()[-1]["response"]
        backend.deltas = [(0.0, TextDelta("Well.")), (0.0, Finish("stop")), (0.0, Usage(3, 2))]
        response = self.created(previous_response_id=failed["id"])
        items = self.get(response["id"], "/input_items?order=asc").json()["data"]
        self.assertEqual([item["content"][0]["text"] for item in items], ["Hello", "Half of", "Hello"])

    def test_a_plain_answer_that_failed_leaves_nothing(self):
        for blocking in (False, True):
            backend = DeltaBackend([(0.0, TextDelta("a")), ApiError(500, "It broke.", "server_error")], blocking)
            self.server.handler_class.backend = backend
            self.assertEqual(self.create().status, 500)
        self.assertEqual(self.server.store.stats()["responses"], 0)


@every_form
class LargeBodyTest(ResponsesLive):
    settings = {"fixed_ids": False}

    def test_two_megabytes_through_a_worker_give_the_same_answers(self):
        words = "lorem ipsum dolor sit amet " * 80000
        self.start_server()
        for streamed in (False, True):
            with self.subTest(streamed=streamed):
                response = self.made(streamed, input=words)
                self.assertEqual(response["usage"]["input_tokens"],
                                 TOKENIZER.count(words) + MESSAGE_TOKENS + ANSWER_TOKENS)
                items = [{"role": "user", "content": words[:40000]} for _ in range(50)]
                response = self.made(streamed, input=items)
                self.assertEqual(response["usage"]["input_tokens"], ANSWER_TOKENS + 50 * (
                    TOKENIZER.count(words[:40000]) + MESSAGE_TOKENS))

    def test_a_fault_in_a_large_body_is_the_same_fault(self):
        items = [{"role": "user", "content": "x" * 1000} for _ in range(300)] + [{"role": "robot", "content": "x"}]
        answer = self.create(input=items)
        self.assertEqual((answer.status, answer.error["param"]), (400, "input[300].role"))
        answer = self.request("POST", "/v1/responses", body=b'{"input":"%s",}' % (b"x" * 50000))
        self.assertEqual((answer.status, answer.error["code"]), (400, None))


if __name__ == "__main__":
    unittest.main()
