"""The loaded engine on a fake clock: who is admitted when, and what a plan's seconds become under load."""
import json
import os
import statistics
import tempfile
import unittest
from collections import deque
from random import Random

from api_common import ApiError, TakesLong
from backends.batch import BatchRequest
from backends.clocks import Simulation
from backends.contract import Backend, GenerationRequest, History
from backends.engine import Engine, LoadCurve, Seat, knee_curve
from backends.latency import ClockModel, Distribution, flag_distribution, read_distribution, read_samples
from observe.metrics import Lateness, Metrics
from observe.trace import TimingError, TimingTrace, lateness_summary
from runs import Assembler, Completion
from server import MockTurtleServer
from settings import Settings
from tests.support import FakeClock, LiveServerTest, QuietTestCase, every_form, wait_until
from tests.test_player import FakePoller, FakeWire
from transport.player import Play, Player, Splice, Step
from transport.seated import SeatSteps
from transport.traced import TracedSteps

START_S = 1000.0
BEAT = b": beat\n\n"


class DistributionTest(unittest.TestCase):

    def draws(self, distribution, count=20000):
        sample = distribution.sampler(Random(7))
        return [sample() for _ in range(count)]

    def test_every_kind_has_the_mean_and_deviation_that_it_is_given(self):
        for kind in ("normal", "lognormal", "gamma", "uniform"):
            values = self.draws(Distribution(kind, 0.2, 0.05))
            self.assertLess(abs(statistics.mean(values) - 0.2), 0.002, kind)
            self.assertLess(abs(statistics.stdev(values) - 0.05), 0.002, kind)

    def test_the_kinds_differ_in_shape(self):
        def skew(kind):
            values = self.draws(Distribution(kind, 1.0, 0.5))
            return statistics.mean((value - 1.0) ** 3 for value in values) / 0.5 ** 3
        self.assertLess(abs(skew("uniform")), 0.2)
        self.assertGreater(skew("gamma"), 0.8)                  # 2 * std / mean
        self.assertGreater(skew("lognormal"), skew("gamma"))

    def test_nothing_is_below_zero(self):
        for kind in ("normal", "lognormal", "gamma", "uniform"):
            self.assertGreaterEqual(min(self.draws(Distribution(kind, 0.01, 0.05), 3000)), 0.0)

    def test_an_empirical_one_gives_its_quantiles_back(self):
        values = sorted(self.draws(Distribution("empirical", quantiles=[1, 2, 4, 8, 100]), 40000))
        self.assertTrue(values[0] >= 1 and values[-1] <= 100)
        for share, wanted in ((0.25, 2), (0.5, 4), (0.75, 8), (0.125, 1.5), (0.875, 54)):
            self.assertAlmostEqual(values[int(share * len(values))] / wanted, 1.0, delta=0.05)
        self.assertEqual(Distribution("empirical", quantiles=[3]).mean, 3)
        self.assertEqual(Distribution("empirical", quantiles=[1, 3, 9]).mean, 4.0)     # (1 + 3) / 2 and (3 + 9) / 2

    def test_without_a_deviation_it_is_constant(self):
        for kind in ("constant", "normal", "lognormal", "gamma"):
            self.assertTrue(Distribution(kind, 0.3).constant)
            self.assertEqual(self.draws(Distribution(kind, 0.3), 3), [0.3] * 3)

    def test_what_makes_no_sense_is_refused(self):
        for values, word in ((("weibull", 1), "weibull"), (("normal", -1), "0 or more"), (("empirical",), "values"),
                             (("empirical", 0, 0, None, None, [3, 2]), "ascend"), (("uniform", 0, 0, 5, 2), "low"),
                             (("normal", float("nan")), "0 or more"), (("normal", 1e300), "0 or more"),
                             (("uniform", 0, 0, 1, 1e300), "low"), (("gamma", 10, 1e-170), "too far apart"),
                             (("gamma", 1e-300, 100), "too far apart"), (("lognormal", 1e-200, 1), "too far apart")):
            with self.assertRaisesRegex(ValueError, word):
                Distribution(*values)

    def test_json_names_what_is_wrong_and_where(self):
        found = read_distribution({"kind": "gamma", "mean": 20, "std": 5, "per": "request"}, "itl_ms", 0.001)
        self.assertEqual((found.kind, found.mean, found.std, found.per_request), ("gamma", 0.02, 0.005, True))
        self.assertEqual(read_distribution(7, "x").mean, 7)
        for value, message in ((None, "x: expected a number or an object"), ({"kind": "gamma", "sd": 1}, "unknown key 'sd'"),
                               ({"kind": "gamma", "mean": "1"}, r"x\.mean: expected a number"), ({}, "x: unknown distribution"),
                               ({"kind": "empirical", "quantiles": ["1"]}, r"x\.quantiles"),
                               ({"kind": "normal", "mean": 1, "per": "day"}, r"x\.per")):
            with self.assertRaisesRegex(ValueError, message):
                read_distribution(value, "x")

    def test_flags_and_files_of_samples(self):
        with tempfile.TemporaryDirectory() as folder:
            path = os.path.join(folder, "times.txt")
            for text in ("30 10\n20", "[30, 10, 20]", "10,20,30\n"):
                with open(path, "w", encoding="utf-8") as file:
                    file.write(text)
                self.assertEqual(read_samples(path), [10.0, 20.0, 30.0])
            self.assertEqual(flag_distribution("ttft-dist", "empirical:" + path, 1, 1, 0.001).quantiles, [0.01, 0.02, 0.03])
            for text in ("", "ten", "[1, null]", "[[1]]", "nan", "-1", "1 nan 2", "[1" + 400 * "0" + "]"):
                with open(path, "w", encoding="utf-8") as file:
                    file.write(text)
                with self.assertRaises(ValueError):
                    flag_distribution("ttft-dist", "empirical:" + path, 1, 1)
        for text in ("empirical", "empirical:/nowhere/at/all", "cauchy", "normal:3"):
            with self.assertRaisesRegex(ValueError, "--ttft-dist"):
                flag_distribution("ttft-dist", text, 1, 1)


class PrefillTest(unittest.TestCase):

    def test_prefill_comes_on_top_and_shifts_the_whole_answer(self):
        clock = ClockModel(0.05, 0.01, 0.02, 0.001)
        self.assertAlmostEqual(clock.prefill_s(30), 0.05)
        for number, due in enumerate(clock.dues(4, b"x", clock.prefill_s(30))):
            self.assertAlmostEqual(due, 0.1 + 0.01 * number)

    def test_a_request_wide_itl_is_one_draw(self):
        clock = ClockModel(0.0, Distribution("gamma", 0.02, 0.01, per_request=True))
        dues = clock.dues(50, b"a")
        gaps = {round(later - due, 9) for due, later in zip(dues, dues[1:])}
        self.assertEqual(len(gaps), 1)
        self.assertNotEqual(clock.dues(2, b"b")[1], dues[1])

    def test_the_nearest_level_gives_the_draws(self):
        busy = [0]
        clock = ClockModel(1.0, 1.0, levels=[(1, Distribution("constant", 1), Distribution("constant", 0.1)),
                                             (10, Distribution("constant", 5), Distribution("constant", 0.5))],
                           busy=lambda: busy[0])
        self.assertEqual(clock.dues(2, b"x"), [1, 1.1])
        busy[0] = 8
        self.assertEqual(clock.dues(2, b"x"), [5, 5.5])


class SimulationTest(unittest.TestCase):

    def test_what_was_given_weighs_more_than_the_profile_and_it_more_than_the_default(self):
        profile = {"ttft_ms": 40, "itl_ms": {"kind": "gamma", "mean": 9, "std": 3}, "max_num_seqs": 8,
                   "output_tokens": 64}
        found = Simulation(Settings(itl_ms=5.0), profile)
        self.assertEqual((found.clock.ttft.mean, found.clock.itl.mean, found.clock.itl.kind), (0.04, 0.005, "constant"))
        self.assertEqual((found.engine.max_seqs, found.lengths.mean), (8, 64))
        self.assertEqual(Simulation(Settings(max_num_seqs=3), profile).engine.max_seqs, 3)
        self.assertIsNone(Simulation(Settings()).engine)
        self.assertEqual(Simulation(Settings()).clock.ttft.mean, 0.15)

    def test_a_flag_changes_what_it_names_and_leaves_the_rest_of_the_profile(self):
        profile = {"ttft_ms": {"kind": "lognormal", "mean": 40, "std": 4},
                   "itl_ms": {"kind": "gamma", "mean": 9, "std": 3, "per": "request"}, "output_tokens": 64}

        def found(**values):
            made = Simulation(Settings(**values), profile)
            return [(dist.kind, round(dist.mean, 6), round(dist.std, 6), dist.per_request)
                    for dist in (made.clock.ttft, made.clock.itl, made.lengths)]
        ttft, itl, lengths = ("lognormal", 0.04, 0.004, False), ("gamma", 0.009, 0.003, True), ("constant", 64, 0, False)
        self.assertEqual(found(itl_std_ms=1.0), [ttft, ("gamma", 0.009, 0.001, True), lengths])
        self.assertEqual(found(ttft_dist="gamma"), [("gamma", 0.04, 0.004, False), itl, lengths])
        self.assertEqual(found(itl_dist="constant"), [ttft, ("constant", 0.009, 0, True), lengths])
        self.assertEqual(found(output_tokens_std=8.0), [ttft, itl, ("normal", 64, 8, False)])

    def test_a_load_factor_weighs_more_than_measured_levels(self):
        profile = {"ttft_ms": 100, "itl_ms": 10, "load": {"itl": [[1, 1], [9, 2]]},
                   "levels": [{"running": 1, "ttft_ms": 100, "itl_ms": 10}, {"running": 9, "ttft_ms": 500, "itl_ms": 20}]}
        made = Simulation(Settings(load_factor=10.0, max_num_seqs=9), profile)
        for _ in range(8):
            made.engine.enter(Seat(made.engine, START_S, 0.1, 1))
        dues = made.clock.dues(2, b"x")
        made.engine.enter(Seat(made.engine, START_S, 0.1, 1))
        self.assertAlmostEqual((dues[1] - dues[0]) * made.engine.decode.factor, 0.1)

    def test_ttft_is_the_prefill_alone_unless_it_was_given(self):
        found = Simulation(Settings(prefill_overhead_ms=20.0, ttft_std_ms=5.0)).clock.ttft
        self.assertEqual((found.kind, found.mean, found.std), ("normal", 0.0, 0.005))
        self.assertEqual(Simulation(Settings(prefill_ms_per_token=1.0)).clock.ttft.mean, 0.0)
        self.assertEqual(Simulation(Settings(prefill_ms_per_token=1.0, ttft_ms=150.0)).clock.ttft.mean, 0.15)

    def test_time_scale_is_laid_on_every_time_and_on_heartbeats(self):
        settings = Settings(time_scale=0.01, prefill_overhead_ms=100.0, prefill_ms_per_token=1.0, ttft_ms=150.0,
                            heartbeat_s=1.0, commit_grace_s=10.0)
        clock = Simulation(settings).clock
        self.assertAlmostEqual(clock.dues(3, b"x", clock.prefill_s(10))[2], 0.0015 + 0.0011 + 2 * 0.0001)
        self.assertEqual((settings.heartbeat_s, settings.commit_grace_s), (0.01, 0.1))

    def test_its_words_say_what_is_simulated(self):
        for values, words in (({}, "TTFT 150 ms, ITL 10 ms, 128 output tokens"),
                              ({"prefill_ms_per_token": 0.5}, "TTFT 0 ms + 0.5 ms a prompt token, ITL 10 ms, 128 output tokens"),
                              ({"prefill_overhead_ms": 20.0, "time_scale": 0.1}, "TTFT 2 ms, ITL 1 ms, 128 output tokens")):
            self.assertEqual(Simulation(Settings(**values)).words(), words)

    def test_levels_are_brought_to_an_idle_engines_scale(self):
        found = Simulation(Settings(), {
            "ttft_ms": 100, "itl_ms": 10, "load": {"ttft": [[1, 1], [9, 5]], "itl": [[1, 1], [9, 2]]},
            "levels": [{"running": 1, "ttft_ms": 100, "itl_ms": 10}, {"running": 9, "ttft_ms": 500, "itl_ms": 20}]})
        for first, later in zip(found.clock.dues(3, b"x"), (0.1, 0.11, 0.12)):
            self.assertAlmostEqual(first, later)
        self.assertEqual((found.engine.prefill.factor, found.engine.max_seqs), (1.0, 0))

    def test_flags_that_need_each_other_say_so(self):
        for values, word in (({"load_factor": 2.0}, "--max-num-seqs"), ({"max_waiting": 3}, "--max-num-seqs"),
                             ({"ttft_dist": "odd"}, "--ttft-dist"), ({"ttft_ms": 1e300}, "--ttft-dist"),
                             ({"prefill_ms_per_token": 1e300}, "--prefill-ms-per-token"),
                             ({"load_factor": 1e7, "max_num_seqs": 8}, "--load-factor 1e.07 .* less than 1000000")):
            with self.assertRaisesRegex(ValueError, word):
                Simulation(Settings(**values))
        for values, word in (({"load_knee": 1.0}, "--load-knee"), ({"time_scale": 0}, "--time-scale"),
                             ({"max_waiting": -2}, "--max-waiting"), ({"load_factor": 0.0}, "--load-factor"),
                             ({"prefill_ms_per_token": -1.0}, "--prefill-ms-per-token")):
            with self.assertRaisesRegex(ValueError, word):
                Settings(**values)


class LoadCurveTest(unittest.TestCase):

    def test_it_is_linear_between_points_and_goes_on_with_the_last_slope(self):
        curve = LoadCurve([(1, 1.0), (5, 2.0), (10, 4.5)])
        for running, factor in ((0, 1.0), (1, 1.0), (3, 1.5), (5, 2.0), (8, 3.5), (10, 4.5), (12, 5.5)):
            self.assertAlmostEqual(curve.factor(running), factor)

    def test_the_knee_is_where_the_formula_says(self):
        curve = knee_curve(3.0, 0.5, 11)
        for running, factor in ((1, 1.0), (6, 1.4), (3.5, 1.2), (11, 3.0), (8.5, 2.2)):
            self.assertAlmostEqual(curve.factor(running), factor)
        self.assertTrue(knee_curve(1.0, 0.5, 11).is_flat())

    def test_bad_points_are_refused(self):
        for points in ([], [(2, 1), (1, 2)], [(1, 0)], [(1, -1)]):
            with self.assertRaises(ValueError):
                LoadCurve(points)


class EngineFixture(QuietTestCase):
    """Plays of a loaded engine, on a fake clock."""

    def setUp(self):
        QuietTestCase.setUp(self)
        self.clock = FakeClock(START_S)
        self.inbox = deque()
        self.errors = []
        self.player = Player(FakePoller(), self.clock, Lateness(), None, lambda: self.errors.append(1),
                             self.inbox.append)
        self.fds = 10

    def play(self, engine, plan, ttft_s, streamed=True, seqs=1, heartbeat_s=0.0, place=None):
        """Start the play of [(plan_s, bytes or Step or Splice)] now."""
        self.fds += 1
        play = Play(FakeWire(self.clock, self.fds), self.clock.now, iter(plan), heartbeat_s=heartbeat_s,
                    heartbeat=BEAT)
        play.steps = play.push = SeatSteps(play.steps, Seat(engine, play.start_s, ttft_s, seqs, 0, place),
                                           self.player.come_back, streamed, heartbeat_s, BEAT)
        self.player.start(play)
        return play

    def answer(self, engine, ttft_s, itl_s, tokens, **values):
        """A streamed answer as completions make them: an opening, a run of tokens, the end."""
        run = [(ttft_s + itl_s * number, b"%d;" % number) for number in range(tokens)]
        return self.play(engine, [(0.0, b"open;"), (run[0][0], Splice(iter(run))), (run[-1][0], Step(lambda: b"end;"))],
                         ttft_s, **values)

    def run_until(self, seconds, step_s=0.0005):
        while self.clock.now < START_S + seconds:
            self.clock.advance(step_s)
            self.settle()

    def settle(self):
        while self.inbox or self.player.tick():
            while self.inbox:
                self.inbox.popleft()()

    def sent(self, play):
        """{frame: second} of what a play has sent, since START_S."""
        return {frame: at for at, data in play.wire.sends for frame in data.split(b";")[:-1]}

    def assert_times(self, play, wanted, delta=0.002):
        found = self.sent(play)
        for frame, at in wanted.items():
            self.assertIn(frame, found)
            self.assertAlmostEqual(found[frame], at, delta=delta, msg=frame)


class EngineTest(EngineFixture):

    def test_one_request_alone_has_its_plan(self):
        play = self.answer(Engine(4), 0.1, 0.02, 5)
        self.run_until(0.5)
        self.assert_times(play, {b"open": 0, b"0": 0.1, b"1": 0.12, b"4": 0.18, b"end": 0.18})
        self.assertTrue(play.over and not self.errors)

    def test_who_finds_no_seat_waits_first_come_first_served(self):
        engine = Engine(1)
        plays = [self.answer(engine, 0.1, 0.05, 3) for _ in range(3)]
        self.assertEqual((engine.running, engine.waiting, engine.busy()), (1, 2, 3))
        self.run_until(1.0)
        for number, play in enumerate(plays):
            self.assert_times(play, {b"open": 0, b"0": 0.2 * number + 0.1, b"end": 0.2 * number + 0.2})
        self.assertEqual((engine.running, engine.waiting), (0, 0))

    def test_a_client_that_leaves_gives_its_seat_or_its_place_in_the_queue_to_the_next(self):
        engine = Engine(1)
        first, second, third = [self.answer(engine, 0.1, 0.05, 100) for _ in range(3)]
        self.run_until(0.3)
        self.player.gone(second)
        self.assertEqual(engine.waiting, 1)
        self.player.gone(first)
        self.settle()
        self.assertEqual((engine.running, engine.waiting), (1, 0))
        self.run_until(0.45)
        self.assert_times(third, {b"0": 0.4})

    def test_choices_take_a_seat_each_and_a_request_larger_than_the_engine_runs_alone(self):
        engine = Engine(4)
        first = self.answer(engine, 0.1, 0.0, 1, seqs=3)
        large = self.answer(engine, 0.1, 0.0, 1, seqs=9)
        small = self.answer(engine, 0.1, 0.0, 1)        # there is a seat, but it is not its turn
        self.run_until(0.5)
        for play, at in ((first, 0.1), (large, 0.2), (small, 0.3)):
            self.assert_times(play, {b"0": at})

    def test_a_full_queue_refuses_with_429(self):
        engine = Engine(1, max_waiting=1)
        self.answer(engine, 0.1, 0.0, 1, place=engine.reserve(1))
        self.answer(engine, 0.1, 0.0, 1, place=engine.reserve(1))
        with self.assertRaises(ApiError) as caught:
            engine.reserve(1)
        self.assertEqual((caught.exception.status, dict(caught.exception.headers)["retry-after"]), (429, "1"))
        self.run_until(0.15)
        self.assertIsNotNone(engine.reserve(1))
        self.assertIsNotNone(Engine(2, max_waiting=0).reserve(1))
        self.assertIsNone(Engine(2).reserve(1))

    def test_who_was_accepted_and_is_not_here_yet_counts(self):
        engine = Engine(4, max_waiting=1)
        places = [engine.reserve(3), engine.reserve(2)]     # one will run, one will wait
        with self.assertRaises(ApiError):
            engine.reserve(1)
        places.pop().give_up()
        places.append(engine.reserve(1))                    # beside the first
        waits = engine.reserve(1)
        with self.assertRaises(ApiError):
            engine.reserve(1)
        del waits                                           # forgotten by whoever had it
        waits = engine.reserve(1)
        plays = [self.answer(engine, 0.1, 0.0, 1, seqs=seqs, place=place)
                 for seqs, place in ((3, places[0]), (1, places[1]), (1, waits))]
        self.assertEqual((engine.running, engine.waiting), (4, 1))
        with self.assertRaises(ApiError):
            engine.reserve(1)
        self.run_until(0.5)
        self.assertTrue(all(play.over for play in plays))
        self.assertEqual([engine.reserve(4).give_up() for _ in range(3)], [None] * 3)

    def test_a_plan_that_fails_and_a_client_that_leaves_before_the_play_give_their_place_back(self):
        class Refusing(Backend):
            engine = Engine(4, max_waiting=0)

            def generate(self, request, cancel):
                if request.n == 4:
                    raise TakesLong()
                return []

        def completion(prompts, n):
            history = History(1, b"x", "x", list)
            batch = BatchRequest([GenerationRequest("m", history, n=n) for _ in range(prompts)])
            return Completion(batch, Refusing(), Assembler(), Metrics(), self.fail)
        failing = completion(1, 4)
        with self.assertRaises(TakesLong):
            failing.planned()
        leaving = completion(2, 2)
        leaving.planned()
        with self.assertRaises(ApiError):       # the batch took all four seats
            completion(1, 1).planned()
        leaving.abandon()
        completion(1, 1).planned()

    def test_heartbeats_go_out_while_a_request_waits_and_during_a_long_prefill(self):
        engine = Engine(1)
        self.answer(engine, 0.5, 0.0, 1)
        play = self.answer(engine, 0.5, 0.0, 1, heartbeat_s=0.2)
        self.run_until(1.2)
        beats = [at for at, data in play.wire.sends if data == BEAT]
        self.assertEqual(len(beats), 4)
        for found, wanted in zip(beats, (0.2, 0.4, 0.6, 0.8)):
            self.assertAlmostEqual(found, wanted, delta=0.11)
        self.assertAlmostEqual([at for at, data in play.wire.sends if b"0;" in data][0], 1.0, delta=0.002)

    def test_a_plain_answer_waits_and_is_stretched_as_a_stream_is(self):
        engine = Engine(2, None, LoadCurve([(1, 1), (2, 2)]), LoadCurve([(1, 1), (2, 3)]))
        plain = self.play(engine, [(0.3, Step(lambda: b"body;"))], 0.1, streamed=False)
        stream = self.answer(engine, 0.1, 0.1, 3)
        third = self.play(engine, [(0.1, Step(lambda: b"body;"))], 0.1, streamed=False)
        self.run_until(2.0)
        self.assert_times(plain, {b"body": 0.8}, 0.012)         # 2 * 0.1 + 3 * 0.2
        self.assert_times(stream, {b"0": 0.2, b"1": 0.5, b"2": 0.8})
        self.assert_times(third, {b"body": 0.9}, 0.012)         # alone from 0.8 on

    def test_load_changes_what_is_running_already(self):
        engine = Engine(0, None, None, LoadCurve([(1, 1), (2, 2)]))
        first = self.answer(engine, 0.0, 0.1, 20)
        self.run_until(0.5)
        second = self.answer(engine, 0.0, 0.1, 3)               # 0.1 takes 0.2 while both run
        self.run_until(3.0)
        found = self.sent(first)
        self.assertAlmostEqual(found[b"5"], 0.5, delta=0.003)
        self.assertAlmostEqual(found[b"7"], 0.9, delta=0.15)    # what was scheduled stays: one token's slip
        self.assertAlmostEqual(found[b"19"] - found[b"9"], 1.0, delta=0.01)
        self.assert_times(second, {b"0": 0.5, b"1": 0.7, b"2": 0.9}, 0.003)

    def test_a_burst_of_short_prefills_is_as_slow_as_the_batch_that_it_makes(self):
        curve = LoadCurve([(1, 1), (8, 4)])
        engine = Engine(16, None, curve, curve)
        streams = [self.answer(engine, 0.04, 0.01, 3) for _ in range(6)]
        plain = [self.play(engine, [(0.04, Step(lambda: b"body;"))], 0.02, streamed=False) for _ in range(2)]
        self.run_until(0.5)
        for play in streams:
            found = self.sent(play)
            self.assertAlmostEqual(found[b"0"], 0.16, delta=0.02)       # the plain ones end before, at 0.16
            self.assertLess(found[b"1"] - found[b"0"], 0.045)
        for play in plain:
            self.assert_times(play, {b"body": 0.16}, 0.005)

    def test_many_random_requests_run_as_a_simulation_in_small_steps_has_them(self):
        random = Random(5)
        curve = LoadCurve([(1, 1.0), (4, 2.5)])
        arrivals, at = [], 0.0
        for _ in range(40):
            at += random.choice((0.0, 0.01, 0.05, 0.2))
            arrivals.append((round(at, 3), random.choice((0.02, 0.1)), random.randint(1, 8)))
        itl_s = 0.02
        wanted = naive_ends(arrivals, itl_s, 4, curve)
        engine = Engine(4, None, curve, curve)
        plays = []
        for at, ttft_s, tokens in arrivals:
            self.run_until(at)
            plays.append(self.answer(engine, ttft_s, itl_s, tokens))
        self.run_until(max(wanted) + 1.0)
        for play, end in zip(plays, wanted):
            self.assert_times(play, {b"end": end}, 0.05)
        self.assertEqual((engine.running, engine.waiting, self.errors), (0, 0, []))

    def test_a_fault_of_one_answer_frees_its_seat(self):
        engine = Engine(1)
        self.play(engine, [(0.1, Step(lambda: 1 // 0))], 0.1, streamed=False)
        waiting = self.answer(engine, 0.1, 0.0, 1)
        self.run_until(0.5)
        self.assertEqual(self.errors, [1])
        self.assert_times(waiting, {b"0": 0.2}, 0.004)

    def test_thousands_that_take_no_time_pass_without_deep_recursion(self):
        engine = Engine(1)
        plays = [self.answer(engine, 0.0, 0.0, 1) for _ in range(3000)]
        self.settle()
        self.assertTrue(all(play.over for play in plays) and not self.errors)


def naive_ends(arrivals, itl_s, seats, curve, step_s=0.0005):
    """Ends of [(arrival, ttft_s, tokens)] in an engine that is simulated step by step."""
    waiting, running, ends = deque(), {}, [None] * len(arrivals)
    now, coming = 0.0, deque(enumerate(arrivals))
    while coming or waiting or running:
        while coming and coming[0][1][0] <= now:
            number, (_, ttft_s, tokens) = coming.popleft()
            waiting.append((number, ttft_s + itl_s * (tokens - 1)))
        while waiting and len(running) < seats:
            number, work_s = waiting.popleft()
            running[number] = work_s
        speed = 1.0 / curve.factor(len(running))
        now += step_s
        for number in list(running):
            running[number] -= step_s * speed
            if running[number] <= 1e-9:
                ends[number] = now
                del running[number]
    return ends


class TracedTest(EngineFixture):
    """What a trace writes down of plays on a fake clock."""

    def traced(self, plan, heartbeat_s=0.0, room=None):
        play = Play(FakeWire(self.clock), self.clock.now, iter(plan), heartbeat_s=heartbeat_s, heartbeat=BEAT)
        play.wire.room = room
        ends = []
        traced = TracedSteps(play, self.clock, ends.append)
        self.player.start(play)
        return play, traced, ends

    def test_every_frame_has_its_due_and_its_sending_but_heartbeats_have_none(self):
        run = [(0.3 + 0.1 * number, b"t;") for number in range(3)]
        play, traced, ends = self.traced([(0.0, b"open;"), (0.3, Splice(iter(run))), (0.5, Step(lambda: b"end;"))], 0.2)
        self.run_until(1.0)
        self.assertEqual(ends, [traced])
        self.assertEqual([round(due, 6) for due in traced.due_s], [0.0, 0.3, 0.4, 0.5, 0.5])
        for due, sent in zip(traced.due_s, traced.sent_s):
            self.assertTrue(0 <= sent - due <= 0.002, (due, sent))
        self.assertIn(BEAT, play.wire.data)

    def test_a_client_that_leaves_has_the_frames_that_went_out(self):
        play, traced, ends = self.traced([(0.1 * number, b"%d;" % number) for number in range(10)])
        self.run_until(0.35)
        self.player.gone(play)
        self.assertEqual(([round(due, 6) for due in traced.due_s], ends), ([0.0, 0.1, 0.2, 0.3], [traced]))

    def test_late_frames_say_how_late(self):
        play, traced, _ = self.traced([(0.0, b"a;"), (0.1, b"b;"), (0.2, b"c;"), (0.9, b"d;")])
        self.clock.advance(0.5)
        self.settle()
        self.run_until(1.0)
        self.assertEqual([round(sent, 2) for sent in traced.sent_s], [0.0, 0.5, 0.5, 0.9])

    def test_through_an_engine_the_planned_times_are_those_of_the_load(self):
        engine = Engine(1)
        self.answer(engine, 0.4, 0.0, 1)
        play = Play(FakeWire(self.clock), self.clock.now, iter([(0.0, b"o;"), (0.1, b"a;"), (0.2, b"b;")]))
        play.steps = play.push = SeatSteps(play.steps, Seat(engine, 0, 0.1, 1), self.player.come_back, True, 0.0, BEAT)
        ends = []
        TracedSteps(play, self.clock, ends.append)
        self.player.start(play)
        self.run_until(1.0)
        traced, = ends
        for found, wanted in zip(traced.due_s, (0.0, 0.5, 0.6)):
            self.assertAlmostEqual(found, wanted, delta=0.002)
        self.assertEqual(len(traced.due_s), 3)


class TimingErrorTest(unittest.TestCase):

    def test_quantiles_are_upper_bounds_of_slots(self):
        slots = [0] * 100
        slots[0], slots[4], slots[40] = 90, 9, 1
        self.assertEqual(lateness_summary(slots), {"frames": 100, "p50_ms": 0.0, "p90_ms": 0.0, "p99_ms": 1.0,
                                                   "max_ms": 10.0})
        self.assertEqual(lateness_summary([0, 0])["max_ms"], 0.0)

    def test_the_recent_error_forgets_what_was_long_ago(self):
        clock, lateness = FakeClock(), Lateness()
        error = TimingError(lateness, clock)
        lateness.slots[400] += 5
        for _ in range(30):
            clock.advance(1.0)
            error.roll()
        lateness.slots[8] += 3
        report = error.report()
        self.assertEqual((report["since_start"]["frames"], report["since_start"]["max_ms"]), (8, 100.0))
        self.assertEqual((report["recent"]["frames"], report["recent"]["max_ms"]), (3, 2.0))
        self.assertTrue(10 <= report["recent"]["seconds"] <= 14)


def traces(trace, limit=9):
    return [json.loads(line.decode("ascii")) for line in trace.newest(limit)]


class TimingTraceTest(unittest.TestCase):

    def test_the_last_ones_are_kept_and_all_are_written(self):
        with tempfile.TemporaryDirectory() as folder:
            path = os.path.join(folder, "trace.jsonl")
            trace = TimingTrace(path, self.fail, keep=3)
            for number in range(10):
                trace.add({"n": number}, {"sent_ms": [0.0123456, 1.0] * number})
            trace.close()
            with open(path, encoding="utf-8") as file:
                self.assertEqual([json.loads(line) for line in file],
                                 [{"n": number, "sent_ms": [12.346, 1000.0] * number} for number in range(10)])
        self.assertEqual([each["n"] for each in traces(trace, 2)], [9, 8])
        self.assertEqual(([each["n"] for each in traces(trace, 50)], trace.newest(0), trace.count), ([9, 8, 7], [], 10))

    def test_long_answers_are_kept_by_their_size_and_made_in_slices(self):
        slices = []
        trace = TimingTrace("memory", self.fail, lambda: slices.append(1), keep_bytes=100000)
        for number in range(6):
            trace.add({"n": number}, {"planned_ms": [0.0123456] * 2600, "sent_ms": []})      # 7 bytes each
        trace.close()
        self.assertEqual([each["n"] for each in traces(trace)], [5, 4, 3, 2, 1])
        self.assertEqual((trace.count, len(slices), traces(trace)[0]["planned_ms"]), (6, 36, [12.346] * 2600))

    def test_a_file_that_cannot_be_opened_is_said_at_once(self):
        with self.assertRaisesRegex(ValueError, "--timing-trace: cannot write"):
            TimingTrace(os.path.join(os.sep, "nowhere", "at", "all"), self.fail)

    @unittest.skipUnless(os.path.exists("/dev/full"), "there is no device that is always full")
    def test_a_disk_that_is_full_is_reported_once_and_stops_nothing(self):
        faults = []
        trace = TimingTrace("/dev/full", faults.append)
        for _ in range(5):
            trace.add({"n": "x" * 100}, {})
        wait_until(lambda: faults, "the fault")
        trace.add({"n": 1}, {})
        trace.close()
        self.assertEqual((len(faults), len(trace.newest(10))), (1, 6))


class UnstartedTest(QuietTestCase):

    def test_a_server_that_cannot_start_leaves_no_threads_behind(self):
        with tempfile.TemporaryDirectory() as folder:
            for values in ({"profile": "nobodys"}, {"store": "sqlite:" + folder}, {"host": ("203.0.113.1",)}):
                with self.assertRaises((ValueError, OSError)):
                    MockTurtleServer(Settings(port=0, timing_trace="memory", **values))
        self.assert_threads_end()


@every_form
class LoadedServerTest(LiveServerTest):

    def chat(self, **values):
        return dict({"model": "mock-model", "messages": [{"role": "user", "content": "Hello"}]}, **values)

    def test_queue_and_refusal_over_http(self):
        self.start_server(ttft_ms=50, itl_ms=1, output_tokens=400, max_num_seqs=1, max_waiting=1, heartbeat_s=0.05,
                          timing_trace="memory")
        first, second = self.connect(), self.connect()
        first.send_request("POST", "/v1/chat/completions", self.chat(stream=True))
        wait_until(lambda: self.server.backend.engine.running == 1, "the first to run")
        second.send_request("POST", "/v1/responses", {"model": "m", "input": "Hello", "max_output_tokens": 16,
                                                      "stream": True})
        wait_until(lambda: self.server.backend.engine.waiting == 1, "the second to wait")
        refused = self.request("POST", "/v1/chat/completions", self.chat())
        self.assertEqual((refused.status, refused.headers["retry-after"]), (429, "1"))
        self.assertEqual(refused.error["code"], "rate_limit_exceeded")
        first.close()                       # its place is the second's
        answer = second.read_answer()
        self.assertEqual(answer.events()[-2].name, "response.incomplete")
        wait_until(lambda: self.server.timing_trace.count == 2, "both traces")
        timing = self.request("GET", "/_mockturtle/timing").json()
        ends = {each["endpoint"]: each for each in timing["requests"]}
        self.assertEqual((ends["chat"]["end"], ends["responses"]["end"]), ("client left", "completed"))
        self.assertGreater(ends["responses"]["queue_ms"], 0)
        self.assertEqual((ends["responses"]["completion_tokens"], len(ends["responses"]["planned_ms"])), (16, 18))
        self.assertEqual(len(ends["responses"]["sent_ms"]), 18)
        self.assertGreaterEqual(ends["responses"]["planned_ms"][1] - ends["responses"]["queue_ms"], 49.9)

    def test_everything_passes_through_the_engine_and_leaves_it(self):
        self.start_server(ttft_ms=1, itl_ms=0, max_num_seqs=2, load_factor=2.0, timing_trace="memory")
        self.stream("/v1/chat/completions", self.chat(n=2))
        self.request("POST", "/v1/completions", {"model": "m", "prompt": ["a", "b", "c"]})
        self.request("POST", "/v1/responses", {"model": "m", "input": "x"})
        run = self.request("POST", "/v1/responses", {"model": "m", "input": "x", "background": True}).json()
        wait_until(lambda: self.request("GET", "/v1/responses/" + run["id"]).json()["status"] == "completed", "its end")
        self.request("POST", "/v1/chat/completions", self.chat(messages=[]))
        engine = self.server.backend.engine
        wait_until(lambda: engine.busy() == 0, "the engine to be empty")
        wait_until(lambda: self.server.timing_trace.count == 4, "four traces")
        self.assertEqual({each["endpoint"] for each in traces(self.server.timing_trace)},
                         {"chat", "completions", "responses"})

    def test_a_trace_repeats_with_the_seed_whatever_else_runs(self):
        found = []
        for _ in range(2):
            self.start_server(ttft_ms=2, ttft_std_ms=1, itl_ms=1, itl_std_ms=0.5, ttft_dist="gamma", itl_dist="lognormal",
                              timing_trace="memory")
            for number in range(4):
                self.stream("/v1/chat/completions", self.chat(messages=[{"role": "user", "content": str(number)}]))
            wait_until(lambda: self.server.timing_trace.count == 4, "the traces")
            found.append({each["draw"]: each["planned_ms"] for each in traces(self.server.timing_trace)})
            self._stop_server()
        self.assertEqual(found[0], found[1])
        self.assertEqual(len(set(map(tuple, found[0].values()))), 4)

    def test_control_paths_are_not_for_pages_nor_for_strangers(self):
        answer = self.request("GET", "/_mockturtle/timing", headers={"Origin": "http://evil.example"})
        self.assertEqual(answer.status, 403)
        self.assertNotIn("access-control-allow-origin", answer.headers)
        self.assertEqual(self.request("GET", "/_mockturtle/timing", headers={"Host": "evil.example"}).status, 403)
        for path in ("/v1/_mockturtle/timing", "/v1/_mockturtle/timing/", "/%5Fmockturtle/timing"):
            answer = self.request("GET", path, headers={"Origin": "http://evil.example"})
            self.assertEqual((answer.status, answer.headers.get("access-control-allow-origin")), (403, None), path)
        for query, param in (("limit=-1", "limit"), ("limit=x", "limit"), ("limit=1001", "limit")):
            answer = self.request("GET", "/_mockturtle/timing?" + query)
            self.assertEqual((answer.status, answer.error["param"]), (400, param))
        timing = self.request("GET", "/_mockturtle/timing").json()
        self.assertEqual((timing["tracing"], timing["requests"]), (False, []))

    def test_control_paths_ask_for_the_key_where_there_is_one(self):
        self.start_server(api_key=("sk-x",))
        self.assertEqual(self.request("GET", "/_mockturtle/timing").status, 401)
        self.assertEqual(self.request("GET", "/_mockturtle/timing", headers={"Authorization": "Bearer sk-x"}).status, 200)
