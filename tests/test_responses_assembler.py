"""The Responses assembler: golden delta lists become the events and the object of api-reference 10."""
import json
import unittest

from api_common import ApiError, escape_json
from backends.contract import Failure, Finish, ItemUpdate, TextDelta, ToolCallDelta, Usage
from responses_assembler import ResponseAssembler
from tests.data.golden import (DELTAS, FAILURES, ODD_TEXT, RESPONSE_EVENTS, SURROGATE, dechunk, make_run,
                               object_of, read_response_stream, read_sse, short_event, stream_of, with_failure)

ECHO = b'"model":"m","tools":[]'
TAIL = "0123456789abcdef" * 2


def make_assembler(chunked=False, first_item=1, echo=ECHO):
    return ResponseAssembler(TAIL, 1700000000, echo, lambda: 1700000009, first_item, chunked)


def part_texts(response):
    """The texts of a response's messages, joined."""
    return "".join(part.get("text", part.get("refusal")) for item in response["output"]
                   if item["type"] == "message" for part in item["content"])


class OrderTest(unittest.TestCase):
    """What is sent, in which order, and that all places where a text stands agree."""

    def test_events_come_in_the_documented_order(self):
        self.assertEqual(set(DELTAS), set(RESPONSE_EVENTS))
        for name, deltas in DELTAS.items():
            with self.subTest(deltas=name):
                events = read_response_stream(self, stream_of(make_assembler(), deltas))
                self.assertEqual([short_event(event) for event in events],
                                 ["created", "in_progress"] + RESPONSE_EVENTS[name])

    def test_runs_give_the_same_events_in_whatever_way_they_are_taken_in(self):
        for name, deltas in DELTAS.items():
            expected = stream_of(make_assembler(), deltas, "pieces")
            for way in ("frames", "joined", "feed"):
                with self.subTest(deltas=name, way=way):
                    self.assertEqual(stream_of(make_assembler(), deltas, way), expected)

    def test_the_plain_object_is_that_of_the_terminal_event(self):
        for name, deltas in DELTAS.items():
            with self.subTest(deltas=name):
                events = read_response_stream(self, stream_of(make_assembler(), deltas))
                self.assertEqual(object_of(make_assembler(), deltas), events[-1]["response"])

    def test_result_after_a_stream_is_the_terminal_events_object_byte_for_byte(self):
        for name, deltas in DELTAS.items():
            with self.subTest(deltas=name):
                assembler = make_assembler()
                data = stream_of(assembler, deltas)
                self.assertIn(b'"response":%s,"sequence_number":' % assembler.result(), data.rpartition(b"\nevent: ")[2])

    def test_chunk_framing_changes_no_byte_inside(self):
        for name, deltas in DELTAS.items():
            for way in ("frames", "joined", "feed", "pieces"):
                with self.subTest(deltas=name, way=way):
                    self.assertEqual(dechunk(stream_of(make_assembler(True), deltas, way)),
                                     stream_of(make_assembler(), deltas, way))

    def test_each_frame_of_a_run_is_one_event_the_first_with_what_opens_it(self):
        frames = list(make_assembler().frames(make_run("a", "b", "c")))
        self.assertEqual([frame.count(b"event: ") for frame in frames], [3, 1, 1])

    def test_output_at_is_where_the_output_array_lies(self):
        for name, deltas in DELTAS.items():
            with self.subTest(deltas=name):
                assembler = make_assembler(echo=b'"metadata":{"output":"[1]"}')
                response = object_of(assembler, deltas)
                start, end = assembler.output_at
                self.assertEqual(json.loads(assembler.result()[start:end]), response["output"])

    def test_an_empty_run_says_nothing_in_any_way(self):
        deltas = [make_run(), Finish("stop"), Usage(1, 0)]
        expected = stream_of(make_assembler(), deltas, "pieces")
        for way in ("frames", "joined", "feed"):
            with self.subTest(way=way):
                self.assertEqual(stream_of(make_assembler(), deltas, way), expected)
        self.assertEqual(object_of(make_assembler(), deltas)["output"], [])


class TextsTest(unittest.TestCase):

    def test_odd_characters_arrive_as_they_were_said(self):
        for name, text in (("odd text", ODD_TEXT), ("surrogate", SURROGATE)):
            with self.subTest(deltas=name):
                self.assertEqual(part_texts(object_of(make_assembler(), DELTAS[name])), text + text)

    def test_the_stream_is_ascii_so_that_no_character_is_cut_by_a_frame(self):
        self.assertTrue(stream_of(make_assembler(), DELTAS["odd text"]).isascii())

    def test_more_tokens_than_the_prepared_tables_hold(self):
        pieces = [" w%d" % number for number in range(2600)]
        deltas = [make_run(*pieces), Finish("stop"), Usage(1, 2600)]
        expected = stream_of(make_assembler(), deltas, "pieces")
        events = read_response_stream(self, expected)
        self.assertEqual(len(events), 2600 + 8)
        for way in ("frames", "joined"):
            with self.subTest(way=way):
                self.assertEqual(stream_of(make_assembler(), deltas, way), expected)
                self.assertEqual(dechunk(stream_of(make_assembler(True), deltas, way)), expected)

    def test_pieces_around_the_last_prepared_size_line_are_framed_right(self):
        for length in range(700, 1000):
            deltas = [make_run("x", "y" * length), Finish("stop"), Usage(1, 2)]
            bare = stream_of(make_assembler(), deltas)
            if dechunk(stream_of(make_assembler(True), deltas)) != bare:
                self.fail("a piece of %d characters" % length)

    def test_logprobs_of_deltas_stand_in_the_done_event_and_the_part(self):
        events = read_response_stream(self, stream_of(make_assembler(), DELTAS["logprobs"]))
        sent = [entry for event in events if event["type"] == "response.output_text.delta"
                for entry in event["logprobs"]]
        done, = [event for event in events if event["type"] == "response.output_text.done"]
        self.assertEqual([entry["token"] for entry in sent], ["a", " b"])
        self.assertEqual(done["logprobs"], sent)
        self.assertEqual(events[-1]["response"]["output"][0]["content"][0]["logprobs"], sent)


class ItemsTest(unittest.TestCase):

    def output(self, name):
        return object_of(make_assembler(), DELTAS[name])["output"]

    def test_a_text_is_a_message_with_one_output_text(self):
        item, = self.output("run")
        self.assertEqual(item, {"type": "message", "id": "msg_%s01" % TAIL, "status": "completed",
                                "role": "assistant", "content": [{
                                    "type": "output_text", "text": "Hello big world.", "annotations": [],
                                    "logprobs": []}]})

    def test_item_ids_go_on_after_those_of_the_input(self):
        output = object_of(make_assembler(first_item=255), DELTAS["text, call, text"])["output"]
        self.assertEqual([item["id"] for item in output],
                         ["msg_%sff" % TAIL, "fc_%s100" % TAIL, "msg_%s101" % TAIL])

    def test_text_after_a_call_is_a_message_of_its_own(self):
        self.assertEqual([item["type"] for item in self.output("text, call, text")],
                         ["message", "function_call", "message"])

    def test_interleaved_calls_keep_their_pieces_apart(self):
        self.assertEqual([(item["call_id"], item["name"], item["arguments"])
                          for item in self.output("calls interleaved")],
                         [("call_a", "get_weather", '{"city":"Bern"}'), ("call_b", "add", '{"n":2}')])

    def test_a_custom_call_has_an_input_and_a_status(self):
        item, = self.output("custom call")
        self.assertEqual(item, {"type": "custom_tool_call", "id": "ctc_%s01" % TAIL, "call_id": "call_c",
                                "name": "sql", "input": 'SELECT "a" FROM b;', "status": "completed"})

    def test_a_summary_stands_in_summary_and_raw_text_in_content(self):
        summary, raw, _ = self.output("summary, then raw")
        self.assertEqual(summary["summary"], [{"type": "summary_text", "text": "a"}])
        self.assertNotIn("content", summary)
        self.assertEqual(raw["content"], [{"type": "reasoning_text", "text": "b"}])
        self.assertEqual(raw["summary"], [])

    def test_reasoning_without_a_summary_has_an_empty_one(self):
        self.assertEqual(self.output("summary withheld")[0]["summary"], [])

    def test_a_refusal_is_a_part_of_a_completed_message(self):
        item, = self.output("refusal")
        self.assertEqual((item["status"], item["content"]),
                         ("completed", [{"type": "refusal", "refusal": "I cannot."}]))

    def test_another_item_keeps_its_fields(self):
        item = self.output("web search")[0]
        self.assertEqual(item, {"type": "web_search_call", "id": "ws_%s01" % TAIL, "status": "completed",
                                "action": {"type": "search", "query": "tides"}})

    def test_fields_of_an_items_update_stand_in_its_event(self):
        deltas = [DELTAS["web search"][0], ItemUpdate("web_search_call", "searching", {"query": "x\"y"}),
                  Finish("stop"), Usage(1, 1)]
        events = read_response_stream(self, stream_of(make_assembler(), deltas))
        self.assertEqual([event["query"] for event in events
                          if event["type"] == "response.web_search_call.searching"], ["x\"y"])

    def test_call_ids_are_noted_for_the_chain(self):
        assembler = make_assembler()
        object_of(assembler, DELTAS["calls interleaved"])
        self.assertEqual(list(assembler.call_ids), ["call_a", "call_b"])


class EndsTest(unittest.TestCase):

    def test_usage_is_that_of_the_backend(self):
        deltas = [TextDelta("a"), Finish("stop"), Usage(11, 7, reasoning_tokens=3, cached_tokens=5)]
        self.assertEqual(object_of(make_assembler(), deltas)["usage"], {
            "input_tokens": 11, "input_tokens_details": {"cached_tokens": 5, "cache_write_tokens": 0},
            "output_tokens": 7, "output_tokens_details": {"reasoning_tokens": 3}, "total_tokens": 18})

    def test_the_limit_makes_response_and_open_item_incomplete(self):
        for name, status in (("length", ["incomplete"]), ("length in reasoning", ["incomplete"]),
                             ("length in call", ["completed", "incomplete"]),
                             ("length in refusal", ["incomplete"])):
            with self.subTest(deltas=name):
                response = object_of(make_assembler(), DELTAS[name])
                self.assertEqual(response["status"], "incomplete")
                self.assertEqual(response["incomplete_details"], {"reason": "max_output_tokens"})
                self.assertIsNone(response["completed_at"])
                self.assertEqual([item["status"] for item in response["output"]], status)

    def test_a_cut_call_keeps_its_broken_arguments(self):
        self.assertEqual(object_of(make_assembler(), DELTAS["length in call"])["output"][1]["arguments"], '{"city"')

    def test_a_cut_summary_says_so_in_its_parts_event(self):
        events = read_response_stream(self, stream_of(make_assembler(), DELTAS["length in reasoning"]))
        done, = [event for event in events if event["type"] == "response.reasoning_summary_part.done"]
        self.assertEqual(done["status"], "incomplete")

    def test_a_content_filter_is_the_reason_of_an_incomplete_response(self):
        self.assertEqual(object_of(make_assembler(), DELTAS["content filter"])["incomplete_details"],
                         {"reason": "content_filter"})

    def test_a_completed_response_says_when(self):
        self.assertEqual(object_of(make_assembler(), DELTAS["run"])["completed_at"], 1700000009)


class FailureTest(unittest.TestCase):
    """A Failure at any position of any list: error, response.failed, and nothing after it."""

    def test_a_failure_at_every_position_ends_the_stream_in_order(self):
        for name, deltas in DELTAS.items():
            for position in range(min(len(deltas), 9)):
                for chunked in (False, True):
                    with self.subTest(deltas=name, position=position, chunked=chunked):
                        data = stream_of(make_assembler(chunked),
                                         with_failure(deltas, position, FAILURES["server error"]))
                        events = read_response_stream(self, dechunk(data) if chunked else data)
                        self.assertEqual([event["type"] for event in events[-2:]], ["error", "response.failed"])

    def test_open_items_are_not_closed_before_the_error(self):
        data = stream_of(make_assembler(), with_failure(DELTAS["text, call, text"], 6, FAILURES["server error"]))
        events = read_response_stream(self, data)
        expected = RESPONSE_EVENTS["text, call, text"]
        self.assertEqual([short_event(event) for event in events[2:]],
                         expected[:len(events) - 4] + ["error", "failed"])

    def test_the_error_event_has_both_known_shapes(self):
        for name, error in FAILURES.items():
            with self.subTest(error=name):
                data = stream_of(make_assembler(), [Failure(error)])
                event = read_response_stream(self, data)[2]
                self.assertEqual(event["sequence_number"], 2)
                self.assertEqual((event["message"], event["param"]), (error.message, error.param))
                self.assertIn(event["code"], (error.code, event["error"]["code"]))
                self.assertEqual(set(event["error"]), {"type", "code", "message", "param"})
                self.assertEqual((event["error"]["message"], event["error"]["type"], event["error"]["param"]),
                                 (error.message, error.type, error.param))
                self.assertIsInstance(event["error"]["code"], str)

    def test_the_failed_response_names_a_code_of_the_closed_list(self):
        for name, code in (("server error", "server_error"), ("rate limit", "rate_limit_exceeded"),
                           ("context", "context_length_exceeded"), ("no code", "server_error")):
            with self.subTest(error=name):
                data = stream_of(make_assembler(), [Failure(FAILURES[name])])
                self.assertEqual(read_response_stream(self, data)[-1]["response"]["error"],
                                 {"code": code, "message": FAILURES[name].message})

    def test_a_fault_of_the_store_comes_after_the_items_were_closed(self):
        assembler = make_assembler()
        data = assembler.start() + assembler.feed(TextDelta("a")) + assembler.finish() + assembler.fail(
            ApiError(500, "Full.", type="server_error"))
        events = read_response_stream(self, data)
        self.assertEqual([short_event(event) for event in events[2:]],
                         RESPONSE_EVENTS["empty pieces"][:-1] + ["error", "failed"])
        self.assertEqual(events[-1]["response"]["output"][0]["status"], "completed")


class EscapesTest(unittest.TestCase):

    def test_names_and_call_ids_are_escaped(self):
        deltas = [ToolCallDelta(0, '"', 'call"\n', 'na"me\ud800'), Finish("tool_calls"), Usage(1, 1)]
        events = read_response_stream(self, stream_of(make_assembler(), deltas))
        item, = events[-1]["response"]["output"]
        self.assertEqual((item["call_id"], item["name"], item["arguments"]), ('call"\n', 'na"me\ud800', '"'))

    def test_a_long_echo_is_repeated_in_three_events(self):
        echo = b'"model":"%s"' % escape_json("m\"" * 1000)
        found = read_sse(dechunk(stream_of(make_assembler(True, echo=echo), DELTAS["run"])))
        self.assertEqual([event["response"]["model"] for name, event in found if name and "response" in event],
                         ["m\"" * 1000] * 3)


if __name__ == "__main__":
    unittest.main()
