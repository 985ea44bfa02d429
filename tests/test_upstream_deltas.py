"""Chunks as any server words them, to deltas: calls, thoughts, halves of characters, ends, usage, errors."""
import json
import unittest

from backends.contract import (AnnotationDelta, Failure, Finish, ReasoningDelta, RefusalDelta, TextDelta, ToolCallDelta,
                               Usage)
from backends.upstream_deltas import ChatChunkReader, TextChunkReader, error_text, read_error, read_usage
from backends.upstream_text import FieldUnwrapper, TextJoiner, ThinkSplitter


def chunk(delta=None, finish=None, index=0, **more):
    return dict({"choices": [{"index": index, "delta": delta or {}, "finish_reason": finish}]}, **more)


def calls(*pieces):
    return chunk({"tool_calls": list(pieces)})


def piece(index=None, id=None, name=None, arguments=None):
    function = {}
    if name is not None:
        function["name"] = name
    if arguments is not None:
        function["arguments"] = arguments
    found = {"function": function}
    if index is not None:
        found["index"] = index
    if id is not None:
        found["id"] = id
    return found


def read_chat(*chunks, marked=True, **options):
    """All deltas of a stream."""
    reader, found = ChatChunkReader(**options), []
    for value in chunks:
        found += reader.feed(value)
    return found + reader.end(marked)


def said(deltas):
    return "".join(delta.text for delta in deltas if isinstance(delta, TextDelta))


def thought(deltas):
    return "".join(delta.text for delta in deltas if isinstance(delta, ReasoningDelta))


def called(deltas):
    """[(call_id, name, arguments)] by index."""
    found = {}
    for delta in deltas:
        if isinstance(delta, ToolCallDelta):
            call = found.setdefault(delta.index, [delta.call_id, delta.name, ""])
            call[2] += delta.arguments
    return [tuple(found[index]) for index in sorted(found)]


class TextTest(unittest.TestCase):

    def test_words_then_the_end(self):
        self.assertEqual(read_chat(chunk({"role": "assistant", "content": ""}), chunk({"content": "a"}),
                                   chunk({"content": None, "tool_calls": None}), chunk({"content": "b"}, "stop")),
                         [TextDelta("a"), TextDelta("b"), Finish("stop")])

    def test_content_in_parts(self):
        self.assertEqual(read_chat(chunk({"content": [
            {"type": "thinking", "thinking": [{"type": "text", "text": "hm"}]}, {"type": "text", "text": "yes"}]}, "stop")),
            [ReasoningDelta("hm", "raw"), TextDelta("yes"), Finish("stop")])

    def test_thoughts_under_either_name_and_not_twice(self):
        for delta in ({"reasoning_content": "hm"}, {"reasoning": "hm"}, {"reasoning": "hm", "reasoning_content": "hm"}):
            self.assertEqual(read_chat(chunk(delta), chunk({}, "stop"), reasoning_kind="summary"),
                             [ReasoningDelta("hm", "summary"), Finish("stop")])

    def test_refusals_and_citations(self):
        found = read_chat(chunk({"refusal": "No."}), chunk({"annotations": [
            {"type": "url_citation", "url_citation": {"url": "u", "start_index": 0}}, "junk"]}, "stop"))
        self.assertEqual(found, [RefusalDelta("No."), AnnotationDelta(
            {"url": "u", "start_index": 0, "type": "url_citation"}), Finish("stop")])

    def test_a_pair_of_surrogates_cut_by_two_pieces_comes_as_one_character(self):
        self.assertEqual(said(read_chat(chunk({"content": "a\ud83c"}), chunk({"content": "\udf89b"}, "stop"))), "a\U0001f389b")
        joiner = TextJoiner()
        self.assertEqual([joiner.join("x\ud83c"), joiner.join("y"), joiner.end()], ["x", "\ud83cy", ""])

    def test_a_half_that_stays_alone_is_not_lost(self):
        self.assertEqual(said(read_chat(chunk({"content": "a\ud83c"}), chunk({}, "stop"))), "a\ud83c")

    def test_logprobs_of_a_token_without_text_go_with_the_next(self):
        one, two = {"token": "x", "logprob": -1.0}, {"token": "y", "logprob": -2.0}
        first, last = chunk({"content": ""}), chunk({"content": "é"}, "stop")
        first["choices"][0]["logprobs"] = {"content": [one]}
        last["choices"][0]["logprobs"] = {"content": [two]}
        self.assertEqual(read_chat(first, last)[0], TextDelta("é", [one, two]))

    def test_several_choices_are_told_apart_and_all_must_finish(self):
        reader = ChatChunkReader(2)
        reader.feed(chunk({"content": "a"}, "stop", 0))
        self.assertFalse(reader.finished)
        self.assertEqual(reader.feed(chunk({"content": "b"}, "length", 1)), [TextDelta("b", None, 1), Finish("length", 1)])
        self.assertTrue(reader.finished)

    def test_choices_that_nobody_asked_for_are_passed_over(self):
        self.assertEqual(read_chat(chunk({"content": "a"}, None, 0), chunk({"content": "b"}, None, 1), chunk({}, "stop", 0)),
                         [TextDelta("a"), Finish("stop")])
        self.assertEqual(read_chat(chunk({"content": "a"}, "stop", 1)), [TextDelta("a"), Finish("stop")])
        self.assertEqual(said(read_chat(chunk({"content": "a"}, "stop", -1), chunk({"content": "b"}, "stop", 7), choices=2)), "")

    def test_a_whole_answer_in_place_of_chunks(self):
        found = read_chat({"choices": [{"message": {"content": "hi", "tool_calls": [
            {"id": "c", "type": "function", "function": {"name": "f", "arguments": {"a": 1}}}]},
            "finish_reason": "tool_calls"}], "usage": {"prompt_tokens": 1, "completion_tokens": 2}})
        self.assertEqual((said(found), called(found), found[-1]), ("hi", [("c", "f", '{"a":1}')], Finish("tool_calls")))


class ThinkTest(unittest.TestCase):

    def split(self, text, size, opened=False):
        splitter, found = ThinkSplitter(opened), []
        for at in range(0, len(text), size):
            found += splitter.split(text[at:at + size])
        found += splitter.end()
        return "".join(part for is_thought, part in found if is_thought), \
            "".join(part for is_thought, part in found if not is_thought)

    def test_tags_are_found_wherever_they_are_cut(self):
        for text, opened, wanted in (
                ("<think>a < b</think>\n\nyes </think>", False, ("a < b", "yes </think>")),
                ("\n <think>hm</think>ok", False, ("hm", "ok")),
                ("no <think>tags</think>", False, ("", "no <think>tags</think>")),
                ("<thin", False, ("", "<thin")), ("<think>only", False, ("only", "")),
                ("hm</think>\nok", True, ("hm", "ok")), ("never closed </thin", True, ("never closed </thin", ""))):
            for size in range(1, len(text) + 1):
                with self.subTest(text=text, size=size):
                    self.assertEqual(self.split(text, size, opened), wanted)

    def test_the_reader_makes_reasoning_of_it(self):
        found = read_chat(chunk({"content": "<think>h"}), chunk({"content": "m</think>yes"}, "stop"), think="tags")
        self.assertEqual((thought(found), said(found)), ("hm", "yes"))

    def test_off_leaves_the_tags_in_the_text(self):
        self.assertEqual(said(read_chat(chunk({"content": "<think>h</think>"}, "stop"))), "<think>h</think>")


class CallsTest(unittest.TestCase):

    def test_pieces_of_woven_calls_find_their_call(self):
        found = read_chat(calls(piece(0, "a", "f", '{"x":')), calls(piece(1, "b", "g", "{")), calls(piece(0, None, None, "1}")),
                          calls(piece(1, None, None, "}")), chunk({}, "tool_calls"))
        self.assertEqual(called(found), [("a", "f", '{"x":1}'), ("b", "g", "{}")])

    def test_indexes_from_1_and_with_gaps_count_from_0(self):
        found = read_chat(calls(piece(1, "a", "f", "{}")), calls(piece(5, "b", "g", "{}")), chunk({}, "tool_calls"))
        self.assertEqual([(delta.index, delta.name) for delta in found if isinstance(delta, ToolCallDelta)],
                         [(0, "f"), (1, "g")])

    def test_without_indexes_ids_or_names_begin_a_call(self):
        self.assertEqual(called(read_chat(calls(piece(None, "a", "f", "{")), calls(piece(None, "a", None, "}")),
                                          calls(piece(None, "b", "f", "{}")), chunk({}, "stop"))),
                         [("a", "f", "{}"), ("b", "f", "{}")])
        self.assertEqual(called(read_chat(calls(piece(None, None, "f", "{")), calls(piece(None, None, None, "}")),
                                          calls(piece(None, None, "f", "{}")), chunk({}, "stop"))),
                         [(None, "f", "{}"), (None, "f", "{}")])

    def test_one_index_for_two_calls_with_their_own_ids(self):
        self.assertEqual(called(read_chat(calls(piece(0, "a", "f", "{}")), calls(piece(0, "b", "g", "{}")),
                                          chunk({}, "tool_calls"))), [("a", "f", "{}"), ("b", "g", "{}")])

    def test_an_id_in_every_piece_is_one_call(self):
        self.assertEqual(called(read_chat(calls(piece(0, "a", "f", "{")), calls(piece(0, "a", "", "}")),
                                          chunk({}, "tool_calls"))), [("a", "f", "{}")])

    def test_a_name_that_comes_late_and_one_that_never_comes(self):
        self.assertEqual(called(read_chat(calls(piece(0, "a", None, "{")), calls(piece(0, None, "f", "}")),
                                          chunk({}, "tool_calls"))), [("a", "f", "{}")])
        self.assertEqual(called(read_chat(calls(piece(0, "a", None, "{}")), chunk({}, "tool_calls"))), [("a", "tool", "{}")])

    def test_arguments_that_are_null_missing_or_an_object(self):
        for arguments, wanted in ((None, "{}"), ("", "{}"), ({"a": "é"}, '{"a":"\\u00e9"}')):
            self.assertEqual(called(read_chat(calls(piece(0, "a", "f", arguments)), chunk({}, "stop")))[0][2], wanted)

    def test_arguments_cut_inside_an_escape_and_inside_a_pair(self):
        found = read_chat(calls(piece(0, "a", "f", '{"s":"\\u00')), calls(piece(0, None, None, 'e9 \ud83c')),
                          calls(piece(0, None, None, '\udf89"}')), chunk({}, "stop"))
        self.assertEqual(json.loads(called(found)[0][2]), {"s": "é \U0001f389"})
        self.assertNotIn("\ud83c", "".join(delta.arguments for delta in found if isinstance(delta, ToolCallDelta)))

    def test_a_call_makes_stop_tool_calls_but_not_length(self):
        for reason, wanted in (("stop", "tool_calls"), ("length", "length"), ("function_call", "tool_calls")):
            self.assertEqual(read_chat(calls(piece(0, "a", "f", "{}")), chunk({}, reason))[-1], Finish(wanted))

    def test_the_old_function_call(self):
        self.assertEqual(called(read_chat(chunk({"function_call": {"name": "f", "arguments": "{"}}),
                                          chunk({"function_call": {"arguments": "}"}}, "function_call"))), [(None, "f", "{}")])

    def test_names_go_back_to_groups_and_custom_tools(self):
        tools = {"g__f": ("f", "g", False), "patch": ("patch", None, True)}
        found = read_chat(calls(piece(0, "a", "g__f", "{}")), calls(piece(1, "b", "patch", '{"input": "a')),
                          calls(piece(1, None, None, '\\nb"}')), chunk({}, "stop"), tools=tools)
        self.assertEqual([(delta.name, delta.namespace, delta.kind) for delta in found
                          if isinstance(delta, ToolCallDelta) and delta.name], [("f", "g", "function"), ("patch", None, "custom")])
        self.assertEqual(called(found)[1], ("b", "patch", "a\nb"))

    def test_junk_among_the_calls_is_passed_over(self):
        self.assertEqual(read_chat(chunk({"tool_calls": ["x", None]}), chunk({"tool_calls": "y"}, "stop")), [Finish("stop")])


class UnwrapTest(unittest.TestCase):

    def test_the_string_comes_out_wherever_it_is_cut(self):
        text = 'a "quoted" \\ back\n\ttab é \U0001f389 / end'
        for wrapped in (json.dumps({"input": text}), json.dumps({"input": text}, ensure_ascii=False),
                        ' { "input" : %s , "more": 1}' % json.dumps(text)):
            for size in range(1, len(wrapped) + 1):
                reader, found = FieldUnwrapper(), []
                for at in range(0, len(wrapped), size):
                    found.append(reader.feed(wrapped[at:at + size]))
                found.append(reader.end())
                with self.subTest(wrapped=wrapped[:20], size=size):
                    self.assertEqual("".join(found), text)

    def test_arguments_of_another_form_are_given_as_they_are(self):
        for text in ('{"patch": "x"}', "*** Begin", '"x"', '{"input": 3}', ""):
            reader = FieldUnwrapper()
            self.assertEqual("".join(map(reader.feed, text)) + reader.end(), text)


class EndTest(unittest.TestCase):

    def test_a_mark_without_a_reason_is_a_stop_and_neither_is_a_fault(self):
        self.assertEqual(read_chat(chunk({"content": "a"}))[-1], Finish("stop"))
        last = read_chat(chunk({"content": "a"}), marked=False)[-1]
        self.assertIsInstance(last, Failure)
        self.assertEqual((last.error.status, last.error.type), (502, "upstream_error"))

    def test_a_reason_without_a_mark_is_an_end(self):
        self.assertEqual(read_chat(chunk({"content": "a"}, "stop"), marked=False)[-1], Finish("stop"))

    def test_reasons_in_other_words(self):
        for reason, wanted in (("eos", "stop"), ("MAX_TOKENS", "length"), ("SAFETY", "content_filter"),
                               ("end_turn", "stop"), ("content_filter", "content_filter"), ("tool_use", "tool_calls")):
            self.assertEqual(read_chat(chunk({"content": "a"}, reason))[-1], Finish(wanted), reason)

    def test_an_error_among_the_chunks_is_the_last_word(self):
        for value, status, message in (({"error": {"message": "full", "code": 429}}, 429, "full"),
                                       ({"error": "full"}, 502, "full"), ({"object": "error", "message": "full"}, 502, "full"),
                                       ({"error": {"message": "full", "code": 500}}, 502, "full"), (["x"], 502, None)):
            reader = ChatChunkReader()
            found = reader.feed(value) + reader.end(True)
            self.assertEqual([type(delta) for delta in found], [Failure], value)
            self.assertEqual(found[0].error.status, status)
            self.assertTrue(message is None or found[0].error.message == message)

    def test_choices_that_are_no_choices_are_passed_over(self):
        self.assertEqual(read_chat({"choices": []}, {"choices": None}, {}, {"choices": ["x"]}, {"choices": [{}]},
                                   chunk({"content": 5, "tool_calls": 3, "annotations": 1}, 7), chunk({}, "stop")),
                         [Finish("stop")])


class UsageTest(unittest.TestCase):

    def test_the_last_usage_counts_and_one_of_zeros_does_not(self):
        reader = ChatChunkReader()
        for usage in (None, {"prompt_tokens": 0, "completion_tokens": 0}, {"prompt_tokens": 5, "completion_tokens": 1},
                      {"prompt_tokens": 5, "completion_tokens": 2}, {"prompt_tokens": 0, "completion_tokens": 0}):
            reader.feed(chunk({"content": "a"}, usage=usage))
        self.assertEqual(reader.usage, Usage(5, 2))

    def test_details_and_what_is_no_number(self):
        self.assertEqual(read_usage({"prompt_tokens": 5, "completion_tokens": "x", "prompt_tokens_details": {"cached_tokens": 3},
                                     "completion_tokens_details": {"reasoning_tokens": 2}}), Usage(5, 0, 2, 3))

    def test_usage_that_is_hidden_in_a_vendors_field(self):
        reader = ChatChunkReader()
        reader.feed(chunk({}, "stop", x_groq={"usage": {"prompt_tokens": 4, "completion_tokens": 3}}))
        self.assertEqual(reader.usage, Usage(4, 3))


class TextCompletionTest(unittest.TestCase):

    def test_texts_logprobs_and_ends(self):
        reader = TextChunkReader(2)
        found = reader.feed({"choices": [
            {"index": 0, "text": "ab", "logprobs": {"tokens": ["a", "b"], "token_logprobs": [None, -1.0],
                                                    "top_logprobs": [None, {"b": -1.0}]}},
            {"index": 1, "text": "c", "finish_reason": "length"}]})
        self.assertEqual(found[0].logprobs, [{"token": "a", "logprob": None, "top_logprobs": []},
                                             {"token": "b", "logprob": -1.0, "top_logprobs": [{"token": "b", "logprob": -1.0}]}])
        self.assertEqual(found[1:] + reader.end(True), [TextDelta("c", None, 1), Finish("length", 1), Finish("stop", 0)])


class ErrorTest(unittest.TestCase):

    def test_the_message_is_found_wherever_it_stands(self):
        for value in ({"error": {"message": "m"}}, {"error": "m"}, {"detail": "m"}, {"detail": [{"msg": "m"}]}, [{"error": "m"}],
                      {"message": "m"}, "m", {"error": {"error": {"message": "m"}}}):
            self.assertEqual(error_text(value), "m", value)
        for value in (None, {}, [], 5, {"error": {}}, {"error": {"message": 5}}):
            self.assertEqual(error_text(value), "", value)

    def test_statuses(self):
        for status, wanted in ((400, 400), (404, 404), (429, 429), (500, 502), (502, 502), (503, 503), (504, 504), (599, 502)):
            error = read_error(status, {"error": {"message": "m", "type": "t", "code": "c", "param": "p"}}, "f")
            self.assertEqual((error.status, error.message, error.code), (wanted, "m", "c"))
            self.assertEqual((error.type, error.param), ("t", "p") if status < 500 else ("upstream_error", None))


if __name__ == "__main__":
    unittest.main()
