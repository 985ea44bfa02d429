"""Chat: what a request may say, and what the assembler makes of golden delta lists."""
import json
import random
import unittest

from api_common import ANSWER_TOKENS, MEDIA_TOKENS, MESSAGE_TOKENS, ApiError
from backends.contract import Failure, Finish, TextDelta, Usage
from backends.simulated import DrawSource
from chat_api import ChatAssembler, parse_chat_request
from tests.data.golden import (CHAT_CHUNKS, CHOICE_DELTAS, DELTAS, FAILURES, ODD_TEXT, SURROGATE, damaged,
                               dechunk, make_run, object_of, place_of, read_chat_stream, read_sse, short_chunk,
                               stream_of, with_failure)
from tests.support import CHAT, LiveServerTest, every_form
from tokenizer import ApproxTokenizer

TAIL = "0123456789abcdef" * 2
TOKENIZER = ApproxTokenizer()


def make_assembler(choices=1, include_usage=False, chunked=False, model="m"):
    return ChatAssembler(TAIL, 1700000000, model, choices, include_usage, chunked)


def all_lists():
    """(name, choices, deltas) of all golden lists that chat can say."""
    for name, deltas in DELTAS.items():
        yield name, 1, deltas
    for name, (choices, deltas) in CHOICE_DELTAS.items():
        yield "choices: " + name, choices, deltas


# ---- the assembler ----------------------------------------------------------------------------

class ChatOrderTest(unittest.TestCase):

    def test_chunks_come_in_the_documented_order(self):
        for name, choices, deltas in all_lists():
            with self.subTest(deltas=name):
                chunks, _ = read_chat_stream(self, stream_of(make_assembler(choices), deltas))
                self.assertEqual([short_chunk(chunk, choices > 1) for chunk in chunks], CHAT_CHUNKS[name])

    def test_every_expected_order_has_its_list(self):
        self.assertEqual(set(CHAT_CHUNKS), {name for name, _, _ in all_lists()})

    def test_runs_give_the_same_bytes_in_whatever_way_they_are_taken_in(self):
        for name, choices, deltas in all_lists():
            expected = stream_of(make_assembler(choices), deltas, "pieces")
            for way in ("frames", "feed"):
                with self.subTest(deltas=name, way=way):
                    self.assertEqual(stream_of(make_assembler(choices), deltas, way), expected)

    def test_joined_runs_give_the_same_bytes(self):
        for name, choices, deltas in all_lists():
            with self.subTest(deltas=name):
                self.assertEqual(stream_of(make_assembler(choices), deltas, "joined"),
                                 stream_of(make_assembler(choices), deltas, "pieces"))

    def test_the_plain_object_is_what_the_stream_adds_up_to(self):
        for name, choices, deltas in all_lists():
            with self.subTest(deltas=name):
                _, whole = read_chat_stream(self, stream_of(make_assembler(choices, True), deltas), True)
                self.assertEqual(whole, object_of(make_assembler(choices), deltas))

    def test_chunk_framing_changes_no_byte_inside(self):
        for name, choices, deltas in all_lists():
            for way in ("frames", "joined", "feed", "pieces"):
                with self.subTest(deltas=name, way=way):
                    self.assertEqual(dechunk(stream_of(make_assembler(choices, True, True), deltas, way)),
                                     stream_of(make_assembler(choices, True), deltas, way))

    def test_each_frame_of_a_run_is_one_chunk_the_first_with_the_role(self):
        frames = list(make_assembler().frames(make_run("a", "b", "c")))
        self.assertEqual([frame.count(b"data: ") for frame in frames], [2, 1, 1])

    def test_an_empty_run_says_nothing_in_any_way(self):
        deltas = [make_run(), Finish("stop"), Usage(1, 0)]
        expected = stream_of(make_assembler(), deltas, "pieces")
        for way in ("frames", "joined", "feed"):
            with self.subTest(way=way):
                self.assertEqual(stream_of(make_assembler(), deltas, way), expected)


class ChatTextsTest(unittest.TestCase):

    def test_odd_characters_arrive_as_they_were_said(self):
        for name, text in (("odd text", ODD_TEXT), ("surrogate", SURROGATE)):
            with self.subTest(deltas=name):
                whole = object_of(make_assembler(), DELTAS[name])
                self.assertEqual(whole["choices"][0]["message"]["content"], text + text)

    def test_the_stream_is_ascii_so_that_no_character_is_cut_by_a_frame(self):
        self.assertTrue(stream_of(make_assembler(), DELTAS["odd text"]).isascii())

    def test_a_model_name_of_2000_characters_exceeds_the_prepared_size_lines(self):
        model = "m\u00fc\"" * 667
        deltas = [make_run("Hello", " world"), Finish("stop"), Usage(1, 2)]
        expected = stream_of(make_assembler(model=model), deltas, "pieces")
        self.assertEqual({chunk["model"] for chunk in read_chat_stream(self, expected)[0]}, {model})
        for way in ("frames", "joined", "pieces"):
            with self.subTest(way=way):
                self.assertEqual(dechunk(stream_of(make_assembler(model=model, chunked=True), deltas, way)), expected)

    def test_model_names_around_the_last_prepared_size_line_are_framed_right(self):
        deltas = [make_run("x", "yy" * 20), Finish("stop"), Usage(1, 2)]
        for length in range(600, 900):
            model = "m" * length
            if dechunk(stream_of(make_assembler(model=model, chunked=True), deltas)) != \
                    stream_of(make_assembler(model=model), deltas):
                self.fail("a model name of %d characters" % length)

    def test_more_tokens_than_any_prepared_table_holds(self):
        pieces = [" w%d" % number for number in range(2600)]
        deltas = [make_run(*pieces), Finish("stop"), Usage(1, 2600)]
        expected = stream_of(make_assembler(), deltas, "pieces")
        for way in ("frames", "joined"):
            with self.subTest(way=way):
                self.assertEqual(dechunk(stream_of(make_assembler(chunked=True), deltas, way)), expected)


class ChatObjectTest(unittest.TestCase):

    def message(self, name):
        return object_of(make_assembler(), DELTAS[name])["choices"][0]["message"]

    def test_the_object_has_all_required_keys(self):
        self.assertEqual(object_of(make_assembler(), DELTAS["run"]), {
            "id": "chatcmpl-" + TAIL, "object": "chat.completion", "created": 1700000000, "model": "m",
            "service_tier": "default", "system_fingerprint": "fp_mockturtle",
            "choices": [{"index": 0, "finish_reason": "stop", "logprobs": None, "message": {
                "role": "assistant", "content": "Hello big world.", "refusal": None, "annotations": []}}],
            "usage": {"prompt_tokens": 7, "completion_tokens": 4, "total_tokens": 11,
                      "prompt_tokens_details": {"cached_tokens": 0, "audio_tokens": 0},
                      "completion_tokens_details": {
                          "reasoning_tokens": 0, "audio_tokens": 0, "accepted_prediction_tokens": 0,
                          "rejected_prediction_tokens": 0}}})

    def test_content_is_null_beside_calls_and_refusals_only(self):
        for name, content in (("call", None), ("refusal", None), ("text, call, text", "Let me look.Done."),
                              ("text, refusal", "Well"), ("empty", "")):
            with self.subTest(deltas=name):
                self.assertEqual(self.message(name)["content"], content)

    def test_calls_have_their_ids_names_and_joined_arguments(self):
        self.assertEqual(self.message("calls interleaved")["tool_calls"], [
            {"id": "call_a", "type": "function",
             "function": {"name": "get_weather", "arguments": '{"city":"Bern"}'}},
            {"id": "call_b", "type": "function", "function": {"name": "add", "arguments": '{"n":2}'}}])

    def test_a_custom_call_has_an_input(self):
        self.assertEqual(self.message("custom call")["tool_calls"], [
            {"id": "call_c", "type": "custom", "custom": {"name": "sql", "input": 'SELECT "a" FROM b;'}}])

    def test_no_tool_calls_key_without_calls(self):
        self.assertNotIn("tool_calls", self.message("run"))

    def test_finish_reason_is_tool_calls_whenever_there_are_calls_and_nothing_was_cut(self):
        for name, reason in (("call that says stop", "tool_calls"), ("calls in turn", "tool_calls"),
                             ("length in call", "length"), ("run", "stop"), ("content filter", "content_filter"),
                             ("no finish", "stop")):
            with self.subTest(deltas=name):
                self.assertEqual(object_of(make_assembler(), DELTAS[name])["choices"][0]["finish_reason"], reason)

    def test_logprobs_add_up_to_the_content(self):
        choice = object_of(make_assembler(), DELTAS["logprobs"])["choices"][0]
        self.assertEqual("".join(entry["token"] for entry in choice["logprobs"]["content"]),
                         choice["message"]["content"])
        self.assertIsNone(choice["logprobs"]["refusal"])

    def test_choices_do_not_mix(self):
        choices, deltas = CHOICE_DELTAS["two choices"]
        self.assertEqual([(choice["index"], choice["message"]["content"], choice["finish_reason"])
                          for choice in object_of(make_assembler(choices), deltas)["choices"]],
                         [(0, "ac", "stop"), (1, "bd", "length")])

    def test_usage_counts_reasoning_and_cache(self):
        whole = object_of(make_assembler(), [TextDelta("a"), Finish("stop"), Usage(11, 7, 3, 5)])
        usage = whole["usage"]
        self.assertEqual((usage["total_tokens"], usage["prompt_tokens_details"]["cached_tokens"],
                          usage["completion_tokens_details"]["reasoning_tokens"]), (18, 5, 3))

    def test_usage_stands_in_its_own_last_chunk_and_null_before(self):
        _, whole = read_chat_stream(self, stream_of(make_assembler(1, True), DELTAS["run"]), True)
        self.assertEqual(whole["usage"]["total_tokens"], 11)


class ChatFailureTest(unittest.TestCase):

    def test_a_failure_ends_the_stream_with_the_envelope_and_no_done(self):
        for name, choices, deltas in all_lists():
            for position in range(min(len(deltas), 9)):
                for kind, error in FAILURES.items():
                    with self.subTest(deltas=name, position=position, error=kind):
                        data = stream_of(make_assembler(choices), with_failure(deltas, position, error))
                        found = read_sse(data)
                        self.assertEqual(found[-1], (None, {"error": error.body()}))
                        self.assertTrue(all(chunk["choices"] for _, chunk in found[:-1]))

    def test_a_failure_is_remembered_for_the_plain_answer(self):
        assembler = make_assembler()
        assembler.feed(TextDelta("a"))
        assembler.feed(Failure(FAILURES["rate limit"]))
        self.assertIs(assembler.failed, FAILURES["rate limit"])


# ---- validation -------------------------------------------------------------------------------

def user(content):
    return [{"role": "user", "content": content}]


CALL_MESSAGE = {"role": "assistant", "content": None, "tool_calls": [
    {"id": "call_a", "type": "function", "function": {"name": "f", "arguments": "{}"}}]}
TOOL = {"type": "function", "function": {"name": "f", "parameters": {"type": "object"}}}

# (what is changed in a good request, param, code); status 400 and type invalid_request_error always
FAULTS = [
    # required
    ({"model": None}, "model", "missing_required_parameter"),
    ({"messages": None}, "messages", "missing_required_parameter"),
    ({"messages": [{"content": "x"}]}, "messages[0].role", "missing_required_parameter"),
    ({"messages": [{"role": "user"}]}, "messages[0].content", "missing_required_parameter"),
    ({"messages": [{"role": "user", "content": None}]}, "messages[0].content", "missing_required_parameter"),
    ({"messages": [{"role": "assistant"}]}, "messages[0].content", "missing_required_parameter"),
    ({"messages": user("x") + [{"role": "tool", "content": "x"}]}, "messages[1].tool_call_id",
     "missing_required_parameter"),
    ({"messages": user([{"type": "text"}])}, "messages[0].content[0].text", "missing_required_parameter"),
    ({"messages": user([{"type": "image_url"}])}, "messages[0].content[0].image_url",
     "missing_required_parameter"),
    ({"messages": [dict(CALL_MESSAGE, tool_calls=[{"type": "function", "function": {"name": "f"}}])]},
     "messages[0].tool_calls[0].id", "missing_required_parameter"),
    ({"messages": [dict(CALL_MESSAGE, tool_calls=[{"id": "a", "type": "function"}])]},
     "messages[0].tool_calls[0].function", "missing_required_parameter"),
    ({"messages": [dict(CALL_MESSAGE, tool_calls=[{"id": "a", "type": "function", "function": {}}])]},
     "messages[0].tool_calls[0].function.name", "missing_required_parameter"),
    # wrong type
    ({"model": 5}, "model", "invalid_type"),
    ({"model": ["m"]}, "model", "invalid_type"),
    ({"messages": "x"}, "messages", "invalid_type"),
    ({"messages": {"role": "user"}}, "messages", "invalid_type"),
    ({"messages": ["x"]}, "messages[0]", "invalid_type"),
    ({"messages": [None]}, "messages[0]", "invalid_type"),
    ({"messages": user(5)}, "messages[0].content", "invalid_type"),
    ({"messages": user({"type": "text", "text": "x"})}, "messages[0].content", "invalid_type"),
    ({"messages": user(["x"])}, "messages[0].content[0]", "invalid_type"),
    ({"messages": user([{"type": "text", "text": 5}])}, "messages[0].content[0].text", "invalid_type"),
    ({"messages": user([{"type": "image_url", "image_url": "http://x"}])}, "messages[0].content[0].image_url",
     "invalid_type"),
    ({"messages": [dict(CALL_MESSAGE, tool_calls="x")]}, "messages[0].tool_calls", "invalid_type"),
    ({"messages": [CALL_MESSAGE, {"role": "tool", "tool_call_id": ["call_a"], "content": "x"}]},
     "messages[1].tool_call_id", "invalid_type"),
    ({"stream": "true"}, "stream", "invalid_type"),
    ({"stream": 1}, "stream", "invalid_type"),
    ({"store": 0}, "store", "invalid_type"),
    ({"n": True}, "n", "invalid_type"),
    ({"n": "2"}, "n", "invalid_type"),
    ({"n": 1.5}, "n", "invalid_type"),
    ({"max_tokens": "16"}, "max_tokens", "invalid_type"),
    ({"max_tokens": True}, "max_tokens", "invalid_type"),
    ({"max_completion_tokens": 2.5}, "max_completion_tokens", "invalid_type"),
    ({"seed": "1"}, "seed", "invalid_type"),
    ({"seed": False}, "seed", "invalid_type"),
    ({"temperature": "1"}, "temperature", "invalid_type"),
    ({"temperature": True}, "temperature", "invalid_type"),
    ({"stop": 5}, "stop", "invalid_type"),
    ({"stop": ["a", 5]}, "stop[1]", "invalid_type"),
    ({"logprobs": 5}, "logprobs", "invalid_type"),
    ({"logit_bias": []}, "logit_bias", "invalid_type"),
    ({"logit_bias": {"5": "x"}}, "logit_bias.5", "invalid_type"),
    ({"tools": {}}, "tools", "invalid_type"),
    ({"tools": ["f"]}, "tools[0]", "invalid_type"),
    ({"response_format": "json"}, "response_format", "invalid_type"),
    ({"metadata": []}, "metadata", "invalid_type"),
    ({"metadata": {"a": 5}}, "metadata.a", "invalid_type"),
    ({"stream_options": True, "stream": True}, "stream_options", "invalid_type"),
    ({"stream_options": {"include_usage": 1}, "stream": True}, "stream_options.include_usage", "invalid_type"),
    ({"ignore_eos": 1}, "ignore_eos", "invalid_type"),
    ({"user": 5}, "user", "invalid_type"),
    # ranges
    ({"temperature": 2.1}, "temperature", "decimal_above_max_value"),
    ({"temperature": -0.1}, "temperature", "decimal_below_min_value"),
    ({"temperature": 10 ** 400}, "temperature", "decimal_above_max_value"),
    ({"temperature": float("inf")}, "temperature", "decimal_above_max_value"),   # as 1e999 decodes
    ({"top_p": 1.1}, "top_p", "decimal_above_max_value"),
    ({"top_p": -1}, "top_p", "decimal_below_min_value"),
    ({"presence_penalty": -2.5}, "presence_penalty", "decimal_below_min_value"),
    ({"frequency_penalty": 3}, "frequency_penalty", "decimal_above_max_value"),
    ({"n": 0}, "n", "integer_below_min_value"),
    ({"n": 129}, "n", "integer_above_max_value"),
    ({"n": 10 ** 30}, "n", "integer_above_max_value"),
    ({"max_tokens": 0}, "max_tokens", "integer_below_min_value"),
    ({"max_completion_tokens": -1}, "max_completion_tokens", "integer_below_min_value"),
    ({"min_tokens": -1}, "min_tokens", "integer_below_min_value"),
    ({"top_logprobs": 21, "logprobs": True}, "top_logprobs", "integer_above_max_value"),
    ({"logit_bias": {"5": 101}}, "logit_bias.5", "decimal_above_max_value"),
    # lengths
    ({"model": ""}, "model", "empty_string"),
    ({"messages": []}, "messages", "empty_array"),
    ({"messages": user([])}, "messages[0].content", "empty_array"),
    ({"stop": ["a", "b", "c", "d", "e"]}, "stop", "array_above_max_length"),
    ({"safety_identifier": "x" * 65}, "safety_identifier", "string_above_max_length"),
    ({"metadata": {"k" * 65: "v"}}, "metadata." + "k" * 65, "string_above_max_length"),
    ({"metadata": {"k": "v" * 513}}, "metadata.k", "string_above_max_length"),
    ({"metadata": {str(n): "v" for n in range(17)}}, "metadata", "object_above_max_properties"),
    # enums
    ({"messages": [{"role": "robot", "content": "x"}]}, "messages[0].role", "invalid_value"),
    ({"messages": user([{"type": "input_text", "text": "x"}])}, "messages[0].content[0].type", "invalid_value"),
    ({"messages": [{"role": "system", "content": [{"type": "image_url", "image_url": {"url": "x"}}]}]},
     "messages[0].content[0].type", "invalid_value"),
    ({"messages": [{"role": "assistant", "content": [{"type": "image_url", "image_url": {}}]}]},
     "messages[0].content[0].type", "invalid_value"),
    ({"service_tier": "first"}, "service_tier", "invalid_value"),
    ({"reasoning_effort": "huge"}, "reasoning_effort", "invalid_value"),
    ({"verbosity": "loud"}, "verbosity", "invalid_value"),
    ({"modalities": ["smell"]}, "modalities[0]", "invalid_value"),
    # together
    ({"max_tokens": 5, "max_completion_tokens": 5}, "max_tokens", "invalid_value"),
    ({"max_tokens": 5, "min_tokens": 6}, "min_tokens", "invalid_value"),
    ({"stream_options": {"include_usage": True}}, "stream_options", None),
    ({"stream_options": {"include_usage": True}, "stream": False}, "stream_options", None),
    ({"top_logprobs": 2}, "top_logprobs", None),
    ({"messages": [{"role": "tool", "tool_call_id": "call_a", "content": "x"}]}, "messages.[0].role", None),
    ({"messages": user("x") + [CALL_MESSAGE, {"role": "tool", "tool_call_id": "call_b", "content": "x"}]},
     "messages.[2].role", None),
]

# Rows of api-reference 2.2 and 4.2 about tools and output formats.
TOOL_FAULTS = [
    ({"tool_choice": "required"}, "tool_choice", None),
    ({"tool_choice": {"type": "function", "function": {"name": "f"}}}, "tool_choice", None),
    ({"tool_choice": {"type": "function", "function": {"name": "g"}}, "tools": [TOOL]}, "tool_choice", None),
    ({"response_format": {"type": "json_object"}}, "messages", None),
]

GOOD = [
    {"messages": [{"role": "developer", "content": "a"}, {"role": "system", "content": [
        {"type": "text", "text": "b"}]}, {"role": "user", "content": "c", "name": "Ann"}]},
    {"messages": user([{"type": "text", "text": "a"}, {"type": "image_url", "image_url": {"url": "x"}},
                       {"type": "input_audio", "input_audio": {"data": "", "format": "wav"}},
                       {"type": "file", "file": {"file_id": "file-1"}}])},
    {"messages": [CALL_MESSAGE, {"role": "tool", "tool_call_id": "call_a", "content": "x"}]},
    {"messages": [CALL_MESSAGE, {"role": "tool", "tool_call_id": "call_a", "content": [
        {"type": "text", "text": "x"}]}]},
    {"messages": [dict(CALL_MESSAGE, tool_calls=[{"id": "c", "type": "custom", "custom": {
        "name": "f", "input": "x"}}]), {"role": "tool", "tool_call_id": "c", "content": "x"}]},
    {"messages": [{"role": "assistant", "content": None, "function_call": {"name": "f", "arguments": "{}"}},
                  {"role": "function", "name": "f", "content": None}]},
    {"messages": [{"role": "assistant", "content": [{"type": "text", "text": "a"},
                                                    {"type": "refusal", "refusal": "b"}]}] + user("x")},
    {"messages": [{"role": "assistant", "content": None, "refusal": "no"}] + user("x")},
    {"messages": user("")},
    {"stop": []}, {"stop": ["a"]}, {"stop": "a"}, {"n": 128}, {"temperature": 0}, {"temperature": 2.0},
    {"seed": 10 ** 40}, {"seed": -1}, {"tool_choice": "auto"}, {"tool_choice": "none"},
    {"logprobs": True, "top_logprobs": 0}, {"stream": True, "stream_options": {}},
    {"some_vendor_field": {"x": [1]}}, {"metadata": {"k" * 64: "v" * 512}}, {"min_tokens": 3, "max_tokens": 3},
    {"response_format": {"type": "json_schema", "json_schema": {"name": "x", "schema": {}}}},
    {"tools": [TOOL], "tool_choice": {"type": "function", "function": {"name": "f"}}},
]


def changed(change):
    return dict(CHAT, **change)


class ChatValidationTest(unittest.TestCase):

    def assert_refused(self, change, param, code):
        with self.assertRaises(ApiError) as caught:
            parse_chat_request(changed(change), TOKENIZER)
        error = caught.exception
        self.assertEqual((error.status, error.type, error.code), (400, "invalid_request_error", code))
        if param is not None:
            self.assertEqual(error.param, param)
        self.assertTrue(error.message)
        self.assertLess(len(error.message), 400)

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
                ({"vendor": 1}, "vendor", "unknown_parameter"), ({"min_tokens": 1}, "min_tokens", "unknown_parameter"),
                ({"tools": [{"type": "never_heard_of"}]}, "tools[0].type", "invalid_value"),
                ({"messages": user("x") + [CALL_MESSAGE] + user("y")}, "messages.[2].role", None)):
            with self.subTest(change=str(change)[:100]):
                parse_chat_request(changed(change), TOKENIZER)  # the lenient default takes it
                with self.assertRaises(ApiError) as caught:
                    parse_chat_request(changed(change), TOKENIZER, strict=True)
                error = caught.exception
                self.assertEqual((error.status, error.param, error.code), (400, param, code))

    def test_good_requests_pass(self):
        for change in GOOD:
            with self.subTest(change=str(change)[:100]):
                self.assertEqual(parse_chat_request(changed(change), TOKENIZER).model, "mock-model")

    def test_null_means_not_given_for_every_field(self):
        names = ["temperature", "top_p", "n", "stream", "stream_options", "stop", "max_tokens", "metadata",
                 "max_completion_tokens", "presence_penalty", "frequency_penalty", "logit_bias", "logprobs",
                 "top_logprobs", "seed", "user", "store", "service_tier", "tools", "tool_choice", "min_tokens",
                 "ignore_eos", "parallel_tool_calls", "response_format", "reasoning_effort", "verbosity",
                 "modalities", "audio", "prediction", "functions", "function_call", "safety_identifier"]
        request = parse_chat_request(changed(dict.fromkeys(names)), TOKENIZER)
        plain = parse_chat_request(CHAT, TOKENIZER)
        self.assertEqual((request.max_tokens, request.n, request.seed, request.ignored_fields),
                         (plain.max_tokens, plain.n, plain.seed, ()))

    def test_a_forced_length_is_bounded_over_all_choices(self):
        # 128 plans of 131,072 tokens each are gigabytes, and made on the loop's thread
        for change in ({"n": 128, "max_tokens": 131072, "ignore_eos": True}, {"n": 128, "min_tokens": 131072}):
            with self.subTest(change=change):
                with self.assertRaises(ApiError) as caught:
                    parse_chat_request(changed(change), TOKENIZER)
                self.assertEqual(caught.exception.status, 400)

    def test_the_first_fault_alone_is_reported(self):
        self.assert_refused({"n": 0, "temperature": 9, "messages": []}, None, "empty_array")

    def test_what_nobody_acts_on_is_listed(self):
        request = parse_chat_request(changed({"vendor": 1, "temperature": 0.5, "seed": 1, "user": None}), TOKENIZER)
        self.assertEqual(set(request.ignored_fields), {"vendor", "temperature"})

    def test_a_long_value_is_not_repeated_in_full(self):
        with self.assertRaises(ApiError) as caught:
            parse_chat_request(changed({"service_tier": "x\n" * 5000}), TOKENIZER)
        self.assertLess(len(caught.exception.message), 300)
        self.assertNotIn("\n", caught.exception.message)


RICH = {
    "model": "m", "messages": [
        {"role": "system", "content": "a", "name": "n"},
        {"role": "user", "content": [{"type": "text", "text": "b"}, {"type": "image_url", "image_url": {"url": "x"}},
                                     {"type": "input_audio", "input_audio": {"data": "", "format": "wav"}}]},
        {"role": "assistant", "content": None, "refusal": None, "tool_calls": [
            {"id": "call_a", "type": "function", "function": {"name": "f", "arguments": "{}"}},
            {"id": "call_b", "type": "custom", "custom": {"name": "g", "input": "x"}}]},
        {"role": "tool", "tool_call_id": "call_a", "content": "y"},
        {"role": "tool", "tool_call_id": "call_b", "content": [{"type": "text", "text": "z"}]},
        {"role": "assistant", "content": [{"type": "text", "text": "c"}, {"type": "refusal", "refusal": "d"}]},
        {"role": "function", "name": "f", "content": "e"}, {"role": "developer", "content": "g"}],
    "tools": [TOOL, {"type": "custom", "custom": {"name": "g"}}], "tool_choice": "auto", "stop": ["x"], "n": 2,
    "stream": True, "stream_options": {"include_usage": True}, "metadata": {"a": "b"}, "logit_bias": {"5": 1},
    "logprobs": True, "top_logprobs": 2, "max_tokens": 20, "min_tokens": 2, "seed": 1, "temperature": 1,
    "response_format": {"type": "json_schema", "json_schema": {"name": "x", "schema": {}}},
    "reasoning_effort": "low", "modalities": ["text"], "service_tier": "auto", "prediction": {"type": "content"},
}


class ChatDamageTest(unittest.TestCase):
    """Any JSON object either becomes a request or is refused with a 400; nothing else is raised."""

    def test_random_damage_is_refused_or_read(self):
        draw = random.Random(5)
        refused, faults = 0, {}
        for number in range(4000):
            body = damaged(draw, RICH)
            try:
                request = parse_chat_request(body, TOKENIZER)
                DrawSource(0).digest(request)
            except ApiError as error:
                refused += 1
                if error.status != 400 or not json.loads(error.envelope())["error"]["message"]:
                    self.fail("number %d: %r" % (number, error))
            except Exception as exc:
                faults.setdefault(place_of(exc), "number %d: %s" % (number, json.dumps(body)))
        self.assertFalse(faults, "\n".join(map(str, faults.items())))
        self.assertTrue(1000 < refused < 3900, refused)

    def test_the_undamaged_request_is_read(self):
        self.assertEqual(parse_chat_request(RICH, TOKENIZER).n, 2)


class ChatReadingTest(unittest.TestCase):

    def test_prompt_tokens_are_the_texts_the_messages_and_the_opening(self):
        request = parse_chat_request(dict(CHAT, messages=[
            {"role": "system", "content": "Be brief."},
            {"role": "user", "content": [{"type": "text", "text": "Hello there"},
                                         {"type": "image_url", "image_url": {"url": "x"}}]}]), TOKENIZER)
        self.assertEqual(request.history.tokens, TOKENIZER.count("Be brief.") + TOKENIZER.count("Hello there")
                         + 2 * MESSAGE_TOKENS + MEDIA_TOKENS + ANSWER_TOKENS)

    def test_the_last_user_text_is_kept(self):
        request = parse_chat_request(dict(CHAT, messages=user("one") + [
            {"role": "assistant", "content": "two"}] + user([{"type": "text", "text": "three"}])), TOKENIZER)
        self.assertEqual(request.history.last_user_text, "three")

    def test_messages_are_given_as_they_came(self):
        self.assertEqual(parse_chat_request(CHAT, TOKENIZER).history.messages(), CHAT["messages"])

    def test_the_prefix_hash_follows_content_and_role(self):
        def hashed(messages):
            return parse_chat_request(dict(CHAT, messages=messages), TOKENIZER).history.prefix_hash
        self.assertEqual(hashed(user("a")), hashed(user([{"type": "text", "text": "a"}])))
        self.assertEqual(len({hashed(user("a")), hashed(user("b")), hashed(user("a") + user("b")),
                              hashed(user("ab")), hashed([{"role": "system", "content": "a"}]),
                              hashed(user("a" * 5000)), hashed(user("a" * 5001))}), 7)

    def test_limits_reach_the_backend(self):
        for name in ("max_tokens", "max_completion_tokens"):
            with self.subTest(field=name):
                request = parse_chat_request(changed({name: 7, "min_tokens": 3, "ignore_eos": True}), TOKENIZER)
                self.assertEqual((request.max_tokens, request.min_tokens, request.ignore_eos), (7, 3, True))


# ---- over the wire ----------------------------------------------------------------------------

@every_form
class ChatLiveTest(LiveServerTest):

    def post(self, **change):
        return self.request("POST", "/v1/chat/completions", changed(change))

    def test_a_fault_is_a_json_envelope_streamed_or_not(self):
        for streamed in (False, True):
            with self.subTest(streamed=streamed):
                answer = self.post(stream=streamed, temperature=3)
                self.assertEqual(answer.status, 400)
                self.assertEqual(answer.headers["content-type"], "application/json")
                self.assertEqual((answer.error["param"], answer.error["code"], answer.error["type"]),
                                 ("temperature", "decimal_above_max_value", "invalid_request_error"))

    def test_bodies_that_are_no_json_object_are_400_and_the_connection_lives_on(self):
        client = self.connect()
        for body in (b"", b"{", b"[]", b"null", b'"x"', b"5", b'{"model": NaN}', b'{"a": Infinity}', b'\xff{}',
                     b'{"a": "\xed\xa0\x80"}', b'{"messages":' + b"[" * 100000, b"[" * 100000,
                     b'{"a":' * 50000, b'{"a":"\x01"}', b'{"a":1,}', b"\xef\xbb\xbf{}", b'{"a":' + b"9" * 100000 + b"}x"):
            with self.subTest(body=body[:20], length=len(body)):
                answer = client.request("POST", "/v1/chat/completions", body=body)
                self.assertEqual((answer.status, answer.error["type"], answer.error["param"], answer.error["code"]),
                                 (400, "invalid_request_error", None, None))
        self.assertEqual(client.request("GET", "/health").status, 200)

    def test_a_plain_and_a_streamed_answer_agree(self):
        for options in ({}, {"n": 3}, {"max_tokens": 2}):
            with self.subTest(options=options):
                plain = self.post(seed=5, **options).json()
                answer = self.post(seed=5, stream=True, stream_options={"include_usage": True}, **options)
                _, whole = read_chat_stream(self, answer.body, True)
                for each in (plain, whole):
                    del each["id"], each["created"]
                self.assertEqual(plain, whole)

    def test_the_limit_is_honoured(self):
        for options, tokens, reason in (({"max_tokens": 3}, 3, "length"),
                                        ({"max_completion_tokens": 1}, 1, "length"),
                                        ({"max_tokens": 8}, 8, "stop"),
                                        ({"max_tokens": 8, "ignore_eos": True}, 8, "length"),
                                        ({"max_tokens": 40, "ignore_eos": True}, 40, "length"),
                                        ({"max_tokens": 40, "min_tokens": 20}, 20, "stop"),
                                        ({"min_tokens": 30}, 30, "stop"),
                                        ({"max_tokens": 5, "ignore_eos": True, "stop": None}, 5, "length"),
                                        ({}, 8, "stop")):
            with self.subTest(options=options):
                whole = self.post(**options).json()
                self.assertEqual((whole["usage"]["completion_tokens"], whole["choices"][0]["finish_reason"]),
                                 (tokens, reason))
                self.assertEqual(TOKENIZER.count(whole["choices"][0]["message"]["content"]), tokens)

    def test_a_limit_of_astronomic_size_is_the_clients_error_not_ours(self):
        for options in ({"max_tokens": 10 ** 20, "ignore_eos": True}, {"min_tokens": 10 ** 20}):
            with self.subTest(options=options):
                self.assertEqual(self.post(**options).status, 400)
                self.assertEqual(self.take_errors(), [])

    def test_n_choices_differ_and_are_summed(self):
        whole = self.post(n=4).json()
        self.assertEqual([choice["index"] for choice in whole["choices"]], [0, 1, 2, 3])
        self.assertEqual(len({choice["message"]["content"] for choice in whole["choices"]}), 4)
        self.assertEqual(whole["usage"]["completion_tokens"], 32)

    def test_the_model_and_the_tier_are_echoed(self):
        for tier, told in ((None, "default"), ("auto", "default"), ("priority", "priority")):
            with self.subTest(tier=tier):
                whole = self.post(model="any/name:v1 \u00fc", service_tier=tier).json()
                self.assertEqual((whole["model"], whole["service_tier"]), ("any/name:v1 \u00fc", told))

    def test_ids_are_fresh_and_have_their_prefix(self):
        ids = {self.post().json()["id"] for _ in range(5)}
        self.assertEqual(len(ids), 5)
        for id in ids:
            self.assertRegex(id, r"\Achatcmpl-[0-9a-f]{32}\Z")


class ChatFixedIdsTest(LiveServerTest):
    settings = {"fixed_ids": True}

    def test_fixed_ids_count_up_and_created_stands_still(self):
        first = self.request("POST", "/v1/chat/completions", CHAT).json()
        self.assertRegex(first["id"], r"\Achatcmpl-0{24}[0-9a-f]{8}\Z")
        self.assertEqual(first["created"], 1735689600)


if __name__ == "__main__":
    unittest.main()
