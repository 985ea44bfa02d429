"""The benchmark's own parts: statistics, the answer parser, the guard's verdicts, and client against floor."""

import json
import math
import sys
import types
import unittest

from bench.client import Load
from bench.floor import chat_frames, join_frames, responses_frames
from bench.guard import PROFILE, THRESHOLDS, Threshold, broken_tests, judge, render_verdicts
from bench.measures import TESTS, build_body, build_history, paced_load
from bench.parser import AnswerParser, count_chat, count_responses
from bench.poller import SelectorPoller
from bench.process import Target, run_load
from bench.report import METRICS, find_remarks, format_values, render_table, title
from bench.stamped import Reader
from bench.stats import efficiency, ideal_duration_s, median, percentile, summary_ms

FLOOR = [sys.executable, "-m", "bench.floor"]
WORDS = [b"one", b" two", b' \\"three\\"', b" four"]


def feed_all(kind, data, size):
    """Feed bytes in pieces of a size; (tokens, parser)."""
    parser = AnswerParser(kind)
    tokens = sum(parser.feed(data[i : i + size]) for i in range(0, len(data), size))
    return tokens, parser


class StatsTest(unittest.TestCase):
    def test_percentile_is_the_nearest_rank(self):
        ordered = list(range(1, 101))
        for share, wanted in ((0.5, 50), (0.9, 90), (0.99, 99), (1.0, 100), (0.001, 1)):
            with self.subTest(share=share):
                self.assertEqual(percentile(ordered, share), wanted)

    def test_percentile_of_nothing_is_zero(self):
        self.assertEqual(percentile([], 0.99), 0.0)

    def test_summary_is_in_milliseconds(self):
        found = summary_ms([0.003, 0.001, 0.002])
        self.assertEqual(found["n"], 3)
        for name, wanted in (("mean", 2.0), ("min", 1.0), ("p50", 2.0), ("p99", 3.0), ("max", 3.0)):
            with self.subTest(name=name):
                self.assertAlmostEqual(found[name], wanted)

    def test_summary_of_nothing_is_all_zero(self):
        self.assertFalse(any(summary_ms([]).values()))

    def test_streams_on_time_have_efficiency_one(self):
        length_s = ideal_duration_s(128, 0.1, 0.02)
        self.assertAlmostEqual(length_s, 2.64)
        self.assertAlmostEqual(efficiency(100 * 128 / length_s, 100, 128, 0.1, 0.02), 1.0)

    def test_efficiency_without_pacing_is_zero(self):
        self.assertEqual(efficiency(1e6, 32, 128, 0.0, 0.0), 0.0)

    def test_median_leaves_out_what_is_unknown(self):
        self.assertEqual(median([None, 3, 1, None, 2]), 2)
        self.assertIsNone(median([None]))


class ParserTest(unittest.TestCase):
    def test_tokens_are_the_same_however_the_bytes_are_cut(self):
        for kind, frames in (("chat", chat_frames(WORDS)), ("responses", responses_frames(WORDS))):
            for form in (b"".join(frames), join_frames(frames)):
                for size in (1, 2, 7, 100, len(form)):
                    with self.subTest(kind=kind, size=size, joined=len(form)):
                        tokens, parser = feed_all(kind, form, size)
                        self.assertEqual(
                            (tokens, parser.status, parser.over, parser.done, parser.extra), (4, 200, True, True, b"")
                        )

    def test_each_frame_on_its_own_gives_its_own_token(self):
        for kind, frames in (("chat", chat_frames(WORDS)), ("responses", responses_frames(WORDS))):
            with self.subTest(kind=kind):
                parser = AnswerParser(kind)
                self.assertEqual([parser.feed(frame) for frame in frames], [0, 1, 1, 1, 1, 0])

    def test_bytes_after_the_end_are_told(self):
        for form in (b"".join(chat_frames(WORDS)), b"HTTP/1.1 200 OK\r\nContent-Length: 2\r\n\r\nok"):
            with self.subTest(form=form[:40]):
                _, parser = feed_all("chat", form + b"HTTP/", len(form) + 5)
                self.assertEqual((parser.over, parser.extra), (True, b"HTTP/"))

    def test_a_cut_stream_is_not_over(self):
        _, parser = feed_all("chat", b"".join(chat_frames(WORDS))[:-30], 50)
        self.assertFalse(parser.over or parser.feed_eof())

    def test_a_stream_without_its_last_event_is_not_done(self):
        frames = chat_frames(WORDS)[:-1] + [b"0\r\n\r\n"]
        tokens, parser = feed_all("chat", b"".join(frames), 64)
        self.assertEqual((tokens, parser.over, parser.done), (4, True, False))

    def test_a_body_until_close_ends_with_the_connection(self):
        events = b'data: {"choices":[{"delta":{"content": "a"}}]}\n\ndata: [DONE]\n\n'
        tokens, parser = feed_all("chat", b"HTTP/1.0 200 OK\r\n\r\n" + events, 9)
        self.assertEqual((tokens, parser.done, parser.close, parser.over), (1, True, True, False))
        self.assertTrue(parser.feed_eof())

    def test_chunk_extensions_and_trailers_are_skipped(self):
        head = b"HTTP/1.1 200 OK\r\nTransfer-Encoding: chunked\r\n\r\n"
        body = b"data: [DONE]\n\n"
        data = head + b"%x;a=b\r\n%s\r\n0\r\nX-Note: 1\r\n\r\n" % (len(body), body)
        for size in (1, 5, len(data)):
            with self.subTest(size=size):
                _, parser = feed_all("chat", data, size)
                self.assertTrue(parser.over and parser.done)

    def test_connection_header_decides_whether_to_close(self):
        for head, close in (
            (b"HTTP/1.1 200 OK\r\nContent-Length: 0\r\n\r\n", False),
            (b"HTTP/1.1 200 OK\r\nconnection: Close\r\nContent-Length: 0\r\n\r\n", True),
            (b"HTTP/1.0 200 OK\r\nContent-Length: 0\r\n\r\n", True),
            (b"HTTP/1.0 200 OK\r\nConnection: keep-alive\r\ncontent-length:0\r\n\r\n", False),
        ):
            with self.subTest(head=head):
                parser = AnswerParser(None)
                parser.feed(head)
                self.assertEqual((parser.over, parser.close), (True, close))

    def test_what_is_not_http_is_refused(self):
        for data in (b"SSH-2.0-x\r\n\r\n", b"HTTP/1.1 200 OK\r\nTransfer-Encoding: chunked\r\n\r\nzz\r\nab\r\n"):
            with self.subTest(data=data), self.assertRaises(ValueError):
                AnswerParser("chat").feed(data)

    def test_empty_contents_and_other_fields_are_no_tokens(self):
        for lines, wanted in (
            (b'data: {"delta":{"role":"assistant","content":""}}\n', 0),
            (b'data: {"delta":{"content":null}}\n', 0),
            (b'data: {"delta":{"reasoning_content":"x"}}\n', 0),
            (b'data: {"delta": {"content": ""}}\ndata: {"delta": {"content": "\\""}}\n', 1),
        ):
            with self.subTest(lines=lines):
                self.assertEqual(count_chat(lines), wanted)

    def test_a_delta_is_counted_once_for_its_two_lines(self):
        lines = b'event: response.output_text.delta\ndata: {"type":"response.output_text.delta","delta":"x"}\n'
        self.assertEqual(count_responses(lines), 1)


class GuardTest(unittest.TestCase):
    low = Threshold("rps", "chat.rps", False, 0.2, "why")
    high = Threshold("paced", "chat.n100.err_p99_share", True, 3.0, "time", least=0.1)
    own = Threshold("memory", "chat.growth_share", True, 1.1, "growth", floor=False)

    def verdict(self, threshold, ours, floor):
        return judge({threshold.metric: ours}, {threshold.metric: floor}, [threshold])[0]

    def test_ratios_decide_not_the_figures(self):
        for ours, holds in (([30], True), ([3], False), ([19], False), ([1, 25, 30], True)):
            with self.subTest(ours=ours):
                self.assertIs(self.verdict(self.low, ours, [100]).holds, holds)
        self.assertTrue(self.verdict(self.low, [3], [10]).holds)

    def test_a_tiny_figure_of_the_floor_counts_as_the_least(self):
        self.assertTrue(self.verdict(self.high, [0.29], [0.001]).holds)
        self.assertFalse(self.verdict(self.high, [0.31], [0.001]).holds)
        self.assertTrue(self.verdict(self.high, [1.5], [0.6]).holds)

    def test_own_ratios_need_no_floor(self):
        self.assertTrue(self.verdict(self.own, [1.05], []).holds)
        self.assertFalse(self.verdict(self.own, [1.2], []).holds)

    def test_what_cannot_be_measured_is_left_out(self):
        found = self.verdict(self.low, [None], [100])
        self.assertEqual((found.ratio, found.holds), (None, True))
        self.assertIn("left out", render_verdicts([found]))

    def test_broken_tests_are_named_once_with_their_reason(self):
        ours = {"chat.rps": [1], "chat.growth_share": [2]}
        verdicts = judge(ours, {"chat.rps": [100]}, [self.low, self.own, self.low])
        self.assertEqual(broken_tests(verdicts), ["rps", "memory"])
        self.assertIn("BROKEN   chat.rps", render_verdicts(verdicts))
        self.assertIn(": growth", render_verdicts(verdicts))

    def test_every_threshold_names_a_metric_that_its_test_measures(self):
        for threshold in THRESHOLDS:
            with self.subTest(metric=threshold.metric):
                self.assertIn(threshold.test, PROFILE["tests"])
                self.assertIn(threshold.metric.split(".")[-1], METRICS)
                self.assertTrue(threshold.reason)
                self.assertTrue(threshold.floor or threshold.metric.endswith(("_share", "_kept")), "no ratio")


class ReportTest(unittest.TestCase):
    def test_table_has_a_ratio_for_two_servers(self):
        table = render_table({"a": {"chat.rps": [10.0, 30.0, 20.0]}, "b": {"chat.rps": [40.0]}}, ["a", "b"])
        self.assertEqual(
            table.splitlines()[2].split("|")[1:-1],
            [" chat: requests/s ", " 20 [10..30] ", " 40 ", " 0.50  "],
        )

    def test_unknown_values_are_a_dash(self):
        self.assertEqual(format_values([None], 1), "-")

    def test_titles_say_where(self):
        self.assertEqual(title("chat.n100.err_mean_ms"), "chat, 100 streams: gap error mean, ms")

    def test_errors_and_a_busy_client_are_remarked(self):
        remarks = "\n".join(find_remarks({"x": {"errors": [0, 2], "client_cores": [0.99]}}))
        self.assertIn("x: 2 errors", remarks)
        self.assertIn("the client was busy", remarks)


class LoadTest(unittest.TestCase):
    def test_bodies_are_json_and_the_history_is_as_large_as_asked(self):
        for kind in ("chat", "responses"):
            self.assertTrue(json.loads(build_body(kind, 5, stream=True)[1])["stream"])
        history = build_history(100000)
        self.assertLess(abs(len(history) - 100000), 9000)
        self.assertEqual(json.loads(history)["messages"][-1]["role"], "user")

    def test_client_and_floor_agree_end_to_end(self):
        options = types.SimpleNamespace(ttft_ms=20.0, itl_ms=5.0, output_tokens=10, paced_secs=0.5)
        target = Target("floor", FLOOR)
        with target.start(20.0, 5.0, 10) as server:
            for kind in ("chat", "responses"):
                with self.subTest(kind=kind):
                    load = paced_load(kind, options, 5)
                    load["warmup_s"] = 0.1
                    result = run_load(server, load)
                    self.assertEqual((result["errors"], result["bad_answer"]), (0, ""))
                    self.assertEqual((result["tokens_per_stream_min"], result["tokens_per_stream_max"]), (10, 10))
                    self.assertGreaterEqual(result["ttft_ms"]["min"], 20.0)
                    self.assertGreater(result["gap_ms"]["n"], 50)
                    self.assertFalse(math.isnan(result["gap_abs_err_ms"]["p99"]))

    def test_plain_answers_and_refusals_end_to_end(self):
        target = Target("floor", FLOOR)
        refused = json.dumps({"model": "mock-model", "messages": "a string"}, separators=(",", ":"))
        with target.start(0, 0, 4) as server:
            for spec in (
                {"body": build_body("chat", 4)[1]},
                {"body": refused, "expect_status": 400},
                {"body": build_history(300000), "conns": 2},
                {"method": "GET", "path": "/v1/models"},
            ):
                with self.subTest(spec={**spec, "body": ""}):
                    spec = dict(spec, port=server.port, secs=10.0, warmup_s=0.0, spread_s=0.0, max_requests=20)
                    result = Load(spec).run()
                    self.assertEqual((result["requests"], result["errors"]), (20, 0))
            wrong = Load({"port": server.port, "body": refused, "secs": 0.1, "warmup_s": 0.0}).run()
            self.assertGreater(wrong["error_kinds"]["status"], 0)
            self.assertIn("a list is wanted", wrong["bad_answer"])

    def test_client_runs_without_epoll(self):
        target = Target("floor", FLOOR)
        with target.start(0, 0, 4) as server:
            body = build_body("chat", 4, stream=True)[1]
            load = Load({"port": server.port, "mode": "stream", "body": body, "secs": 5.0, "max_requests": 50})
            load.poller.close()
            load.poller = SelectorPoller()
            result = load.run()
        self.assertEqual((result["requests_all"], result["errors"], result["tokens_all"]), (50, 0, 200))

    def test_every_test_of_the_profile_exists(self):
        self.assertLessEqual(set(PROFILE["tests"]), set(TESTS))


class StampedTest(unittest.TestCase):
    def test_the_reader_tells_the_age_of_every_word(self):
        upstream = Target("upstream", [sys.executable, "-m", "bench.stamped", "serve"], health="/v1/models")
        with upstream.start(0, 5, 8) as server:
            load = {"port": server.port, "path": "/v1/chat/completions", "body": "{}", "conns": 3, "secs": 0.3, "warmup_s": 0.05,
                    "spread_s": 0.01}
            found = Reader(load).run()
        self.assertEqual(found["errors"], 0)
        self.assertGreater(found["answers"], 3)
        self.assertGreaterEqual(found["words"], 8 * found["answers"])
        self.assertTrue(0 < found["age_ms"]["p50"] < 1000, found)


if __name__ == "__main__":
    unittest.main()
