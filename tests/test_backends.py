"""The simulated backend: length, text, clock and draws; and the contract's value types."""
import math
import statistics
import threading
import unittest

from api_common import TakesLong, escape_json
from backends.content import Prose
from backends.contract import (Backend, Cancel, Failure, Finish, GenerationRequest, History, ItemEnd, ItemStart,
                               ItemUpdate, ReasoningDelta, RefusalDelta, TextDelta, TextRun, ToolCallDelta, Usage)
from backends.latency import ClockModel, Distribution
from backends.simulated import DrawSource, SimulatedBackend
from settings import Settings
from tests.data.golden import make_run
from tokenizer import ApproxTokenizer

TOKENIZER = ApproxTokenizer()


def make_request(text="Hello", model="m", **values):
    return GenerationRequest(model, History(3, text.encode(), text, list), **values)


def make_backend(ttft_s=0.15, itl_s=0.01, ttft_std_s=0.0, itl_std_s=0.0, output_tokens=128, output_tokens_std=0.0,
                 **values):
    return SimulatedBackend(noisy_clock(ttft_s, itl_s, ttft_std_s, itl_std_s), ApproxTokenizer(),
                            Distribution("normal", output_tokens, output_tokens_std), **values)


def noisy_clock(ttft_s, itl_s, ttft_std_s, itl_std_s):
    return ClockModel(Distribution("normal", ttft_s, ttft_std_s), Distribution("normal", itl_s, itl_std_s))


def answer(backend, request):
    """(texts by choice, finish reasons by choice, Usage, [(due_s, delta)]) of one generation."""
    plan = list(backend.generate(request, Cancel()))
    texts, reasons, usage = {}, {}, []
    for _, delta in plan:
        if delta.__class__ is TextRun:
            texts[delta.choice] = texts.get(delta.choice, "") + "".join(delta.pieces)
        elif delta.__class__ is TextDelta:
            texts[delta.choice] = texts.get(delta.choice, "") + delta.text
        elif delta.__class__ is Finish:
            reasons[delta.choice] = delta.reason
        else:
            usage.append(delta)
    found, = usage
    return texts, reasons, found, plan


class ProseTest(unittest.TestCase):

    def test_there_is_one_piece_per_token_whatever_the_length(self):
        prose = Prose()
        for count in list(range(1, 130)) + [1000, 5000]:
            for whole in (False, True):
                digest = b"%d %d" % (count, whole)
                pieces, escapes = prose.pieces(digest, count, whole)
                if (len(pieces), len(escapes), TOKENIZER.count("".join(pieces))) != (count,) * 3:
                    self.fail("%d tokens, whole=%s: %r" % (count, whole, "".join(pieces)))

    def test_many_draws_give_one_piece_per_token(self):
        prose = Prose()
        for number in range(1500):
            count = 1 + number % 61
            pieces, _ = prose.pieces(b"draw %d" % number, count, bool(number & 1))
            if TOKENIZER.count("".join(pieces)) != count:
                self.fail("%r is not %d tokens" % ("".join(pieces), count))

    def test_every_escape_is_its_pieces(self):
        pieces, escapes = Prose().pieces(b"x", 3000, True)
        self.assertEqual(escapes, [escape_json(piece) for piece in pieces])

    def test_equal_digests_give_equal_text_and_others_other_text(self):
        prose = Prose()
        self.assertEqual(prose.pieces(b"a", 50, True), Prose().pieces(b"a", 50, True))
        self.assertEqual(len({"".join(prose.pieces(b"%d" % number, 30, True)[0]) for number in range(100)}), 100)

    def test_it_reads_like_text(self):
        text = "".join(Prose().pieces(b"some digest", 400, True)[0])
        self.assertTrue(text[0].isupper() and text.endswith("."))
        self.assertTrue(text.isascii() and text == text.strip() and "  " not in text)
        sentences = text.split(". ")
        self.assertGreater(len(sentences), 10)
        for sentence in sentences[:-1]:         # the last may be cut short
            self.assertTrue(sentence[0].isupper() and len(sentence.split()) >= 6, sentence)

    def test_the_lists_are_new_each_time(self):
        prose = Prose()
        pieces, escapes = prose.pieces(b"a", 20, True)
        before = list(pieces)
        pieces.clear()
        escapes.clear()
        self.assertEqual(prose.pieces(b"a", 20, True)[0], before)


class ClockTest(unittest.TestCase):

    def test_constant_times_are_ttft_and_then_an_itl_each(self):
        dues = ClockModel(0.15, 0.01).dues(500, b"x")
        for number in (0, 1, 2, 255, 256, 499):
            self.assertAlmostEqual(dues[number], 0.15 + 0.01 * number)

    def test_there_are_at_least_as_many_as_asked_for(self):
        clock = ClockModel(0.1, 0.01)
        for count in (1, 255, 256, 257, 5000, 70000, 3):
            self.assertGreaterEqual(len(clock.dues(count, b"x")), count)

    def test_a_longer_answer_does_not_change_a_plan_that_is_being_played(self):
        clock = ClockModel(0.1, 0.01)
        first = clock.dues(10, b"x")
        kept = list(first)
        clock.dues(10000, b"x")
        self.assertEqual(list(first), kept)

    def test_noise_never_goes_back_in_time_or_before_zero(self):
        dues = noisy_clock(0.01, 0.001, 0.05, 0.01).dues(2000, b"x")
        self.assertEqual(len(dues), 2000)
        self.assertGreaterEqual(dues[0], 0.0)
        self.assertEqual(dues, sorted(dues))

    def test_noise_has_the_configured_mean_and_deviation(self):
        clock = noisy_clock(0.1, 0.02, 0.01, 0.002)
        firsts = [clock.dues(1, b"%d" % number)[0] for number in range(2000)]
        dues = clock.dues(4000, b"x")
        gaps = [after - before for before, after in zip(dues, dues[1:])]
        for values, mean, deviation in ((firsts, 0.1, 0.01), (gaps, 0.02, 0.002)):
            self.assertLess(abs(statistics.mean(values) - mean), deviation / 8)
            self.assertLess(abs(statistics.stdev(values) - deviation), deviation / 8)

    def test_equal_digests_give_equal_noise(self):
        clock = noisy_clock(0.1, 0.02, 0.01, 0.002)
        self.assertEqual(clock.dues(50, b"a"), clock.dues(50, b"a"))
        self.assertNotEqual(clock.dues(50, b"a"), clock.dues(50, b"b"))


class LengthTest(unittest.TestCase):

    def test_limits_decide_the_length_and_the_reason(self):
        backend = make_backend(output_tokens=20)
        for values, tokens, reason in (({}, 20, "stop"), ({"max_tokens": 20}, 20, "stop"),
                                       ({"max_tokens": 19}, 19, "length"), ({"max_tokens": 1}, 1, "length"),
                                       ({"max_tokens": 50}, 20, "stop"),
                                       ({"max_tokens": 50, "ignore_eos": True}, 50, "length"),
                                       ({"max_tokens": 20, "ignore_eos": True}, 20, "length"),
                                       ({"ignore_eos": True}, 20, "stop"), ({"min_tokens": 30}, 30, "stop"),
                                       ({"min_tokens": 30, "max_tokens": 40}, 30, "stop"),
                                       ({"min_tokens": 40, "max_tokens": 40}, 40, "stop")):
            with self.subTest(values=values):
                texts, reasons, usage, _ = answer(backend, make_request(**values))
                self.assertEqual((usage.completion_tokens, reasons), (tokens, {0: reason}))
                self.assertEqual(TOKENIZER.count(texts[0]), tokens)

    def test_lengths_spread_with_a_floor_of_one(self):
        backend = make_backend(output_tokens=20, output_tokens_std=30)
        counts = [answer(backend, make_request(str(number)))[2].completion_tokens for number in range(400)]
        self.assertEqual(min(counts), 1)
        self.assertGreater(len(set(counts)), 40)
        self.assertGreater(max(counts), 50)

    def test_usage_has_the_prompts_count(self):
        self.assertEqual(answer(make_backend(), make_request())[2].prompt_tokens, 3)

    def test_a_text_that_ends_by_itself_ends_in_a_full_stop(self):
        backend = make_backend(output_tokens=40)
        endings = [answer(backend, make_request(str(number)))[0][0][-1] for number in range(100)]
        self.assertGreater(endings.count("."), 85)


class ChoicesTest(unittest.TestCase):

    def test_each_choice_has_its_text_its_end_and_one_usage_is_for_all(self):
        texts, reasons, usage, _ = answer(make_backend(output_tokens=10), make_request(n=5))
        self.assertEqual((sorted(texts), len(set(texts.values()))), ([0, 1, 2, 3, 4], 5))
        self.assertEqual(reasons, dict.fromkeys(range(5), "stop"))
        self.assertEqual((usage.prompt_tokens, usage.completion_tokens), (3, 50))

    def test_their_tokens_interleave_and_due_times_never_decrease(self):
        _, _, _, plan = answer(make_backend(output_tokens=10, itl_std_s=0.01), make_request(n=5))
        dues = [due for due, _ in plan]
        self.assertEqual(dues, sorted(dues))
        order = [delta.choice for _, delta in plan if delta.__class__ is TextDelta]
        self.assertNotEqual(order, sorted(order))

    def test_each_choice_ends_after_its_last_token(self):
        _, _, _, plan = answer(make_backend(output_tokens=6, output_tokens_std=4), make_request(n=8))
        ended = set()
        for _, delta in plan[:-1]:
            self.assertNotIn(delta.choice, ended)
            if delta.__class__ is Finish:
                ended.add(delta.choice)
        self.assertEqual(ended, set(range(8)))
        self.assertIsInstance(plan[-1][1], Usage)

    def test_one_choice_is_one_run_with_its_end_at_the_last_token(self):
        _, _, _, plan = answer(make_backend(output_tokens=10), make_request())
        self.assertEqual([delta.__class__ for _, delta in plan], [TextRun, Finish, Usage])
        self.assertAlmostEqual(plan[0][0], 0.15)
        self.assertAlmostEqual(plan[1][0], 0.15 + 9 * 0.01)


class DrawTest(unittest.TestCase):

    def test_the_same_requests_in_any_order_give_the_same_answers(self):
        names = ["a", "b", "a", "c", "a", "b"]
        first, second = make_backend(output_tokens=12), make_backend(output_tokens=12)
        one = sorted(answer(first, make_request(name))[0][0] for name in names)
        two = sorted(answer(second, make_request(name))[0][0] for name in reversed(names))
        self.assertEqual(one, two)
        self.assertEqual(len(set(one)), 6)

    def test_an_answer_that_is_drawn_far_from_the_mean_is_planned_on_a_worker_with_the_same_draw(self):
        lengths = Distribution("empirical", quantiles=[5] * 9 + [20000])

        def tokens(backend, number, **values):
            return answer(backend, make_request(str(number), **values))[2].completion_tokens
        for more in ({}, {"n": 2}):
            with self.subTest(more):
                worker, loop = [SimulatedBackend(ClockModel(0.1, 0.01), TOKENIZER, lengths) for _ in range(2)]
                moved = 0
                for number in range(40):
                    wanted = tokens(worker, number % 20, breathe=list, **more)
                    try:
                        found = tokens(loop, number % 20, **more)
                    except TakesLong:
                        moved += 1
                        found = tokens(loop, number % 20, breathe=list, **more)
                    self.assertEqual(found, wanted)
                self.assertGreater(moved, 0)

    def test_a_seed_of_the_request_repeats_at_once(self):
        backend = make_backend(output_tokens=12)
        texts = {answer(backend, make_request(seed=5))[0][0] for _ in range(3)}
        self.assertEqual(len(texts), 1)
        self.assertNotEqual(texts, {answer(backend, make_request(seed=6))[0][0]})

    def test_a_seed_of_zero_is_a_seed(self):
        backend = make_backend(output_tokens=12)
        self.assertEqual(answer(backend, make_request(seed=0))[0], answer(backend, make_request(seed=0))[0])

    def test_the_servers_seed_changes_all(self):
        self.assertNotEqual(answer(make_backend(seed=1), make_request())[0],
                            answer(make_backend(seed=2), make_request())[0])

    def test_a_draw_follows_what_the_request_asks_for(self):
        draws = DrawSource(0)
        digests = {DrawSource(0).digest(request) for request in (
            make_request(), make_request("other"), make_request(model="n"), make_request(max_tokens=5),
            make_request(min_tokens=5), make_request(n=2), make_request(ignore_eos=True, max_tokens=5),
            make_request(seed=1), make_request(model="m\ud800"), make_request(model="m|5"))}
        self.assertEqual(len(digests), 10)
        self.assertNotEqual(draws.digest(make_request()), draws.digest(make_request()))

    def test_threads_draw_the_same_multiset(self):
        draws, found = DrawSource(3), []

        def work():
            for number in range(100):
                found.append(draws.digest(make_request(str(number % 10))))
        threads = [threading.Thread(target=work) for _ in range(8)]
        for thread in threads:
            thread.start()
        for thread in threads:
            thread.join(30)
            self.assertFalse(thread.is_alive())
        alone = DrawSource(3)
        expected = [alone.digest(make_request(str(number % 10))) for number in range(800)]
        self.assertEqual(sorted(found), sorted(expected))

    def test_the_memory_of_what_was_seen_is_bounded(self):
        draws = DrawSource(0)
        first = draws.digest(make_request("first"))
        for number in range(70000):
            draws.digest(make_request("%d" % number))
        self.assertEqual(draws.digest(make_request("first")), first, "forgotten, so it begins again")

    def test_settings_reach_the_backend(self):
        backend = SimulatedBackend.from_settings(Settings(ttft_ms=50.0, itl_ms=2.0, output_tokens=7), ApproxTokenizer())
        _, _, usage, plan = answer(backend, make_request())
        self.assertEqual(usage.completion_tokens, 7)
        self.assertAlmostEqual(plan[-1][0], 0.050 + 6 * 0.002)

    def test_the_default_backend_never_waits_and_a_users_may(self):
        self.assertFalse(SimulatedBackend.blocking)
        self.assertTrue(Backend.blocking)


class ContractTest(unittest.TestCase):

    def test_every_delta_has_a_choice_that_is_0_unless_said(self):
        for delta in (TextDelta("a"), make_run("a"), ReasoningDelta("a"), RefusalDelta("a"), ToolCallDelta(0),
                      ItemStart("x"), ItemUpdate("x", "y"), ItemEnd("x"), Finish(), Usage(1, 2), Failure(None)):
            with self.subTest(delta=delta.__class__.__name__):
                self.assertEqual(delta.choice, 0)

    def test_deltas_are_values_without_a_dict(self):
        self.assertEqual(TextDelta("a"), TextDelta("a", None, 0))
        for kind in (TextDelta, TextRun, ToolCallDelta, Finish, Usage):
            self.assertEqual(kind.__slots__, ())

    def test_a_request_has_neutral_defaults(self):
        request = make_request()
        self.assertEqual(
            [getattr(request, name) for name in (
                "max_tokens", "min_tokens", "ignore_eos", "n", "seed", "logprobs", "echo", "output_format",
                "parallel_tools", "reasoning_effort", "sampling", "raw", "endpoint", "breathe")],
            [None, 0, False, 1, None, None, None, None, True, None, None, None, "chat", None])
        self.assertEqual((request.tool_choice.mode, request.reasoning_items), ("none", "none"))
        self.assertEqual([tuple(getattr(request, name)) for name in ("stop", "tools", "wire_faults",
                                                                     "ignored_fields")], [()] * 4)

    def test_a_history_renders_its_messages_only_when_asked(self):
        asked = []
        history = History(5, b"", "x", lambda: asked.append(1) or ["message"])
        self.assertEqual(asked, [])
        self.assertEqual(history.messages(), ["message"])

    def test_due_times_are_finite(self):
        for due, _ in answer(make_backend(output_tokens=500), make_request(n=2))[3]:
            self.assertTrue(math.isfinite(due))


if __name__ == "__main__":
    unittest.main()
