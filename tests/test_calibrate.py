"""Calibration: result files of load tools, as profiles that give the measured distributions again.

The files in data/results were written by GuideLLM 0.8.1, AIPerf 0.13.0 and vLLM 0.33.0 (vllm bench serve), run
against this server with a queue so short that some requests failed; requests were cut to some tens, long statistics and
paths left out.
"""
import copy
import json
import os
import random
import statistics
import tempfile
import unittest

from backends.calibrate import calibrate_profile, curve_of_means, read_json_values
from backends.contract import Cancel, GenerationRequest, History
from backends.latency import Distribution, read_distribution
from backends.profiles import check_profile
from backends.simulated import SimulatedBackend
from settings import Settings
from tokenizer import ApproxTokenizer

RESULTS = os.path.join(os.path.dirname(os.path.abspath(__file__)), "data", "results")


def result(name):
    return os.path.join(RESULTS, name)


def ks_distance(first, second):
    """The greatest distance between the cumulative shares of two samples."""
    first, second, at, worst = sorted(first), sorted(second), [0, 0], 0.0
    for value in sorted(set(first + second)):
        for side, sample in enumerate((first, second)):
            while at[side] < len(sample) and sample[at[side]] <= value:
                at[side] += 1
        worst = max(worst, abs(at[0] / len(first) - at[1] / len(second)))
    return worst


def answers(backend, count):
    """[(TTFT ms, [gaps ms], tokens)] of so many generations."""
    found = []
    for number in range(count):
        request = GenerationRequest("m", History(3, b"%d" % number, "x", list))
        run = backend.generate(request, Cancel())[0][1]
        tokens = len(run.pieces)
        found.append((run.dues[0] * 1000, [(b - a) * 1000 for a, b in zip(run.dues, run.dues[1:tokens])], tokens))
    return found


class FilesCase(unittest.TestCase):

    def setUp(self):
        folder = tempfile.TemporaryDirectory()
        self.addCleanup(folder.cleanup)
        self.folder = folder.name

    def write(self, content, name="result.json"):
        path = os.path.join(self.folder, name)
        with open(path, "w", encoding="utf-8") as file:
            file.write(content if content.__class__ is str else json.dumps(content))
        return path

    def refused(self, content, name="result.json"):
        """The message with which a result file is refused; it names the file."""
        path = self.write(content, name)
        with self.assertRaises(ValueError) as caught:
            calibrate_profile([path])
        self.assertIn(path, str(caught.exception))
        return str(caught.exception).replace(path, "FILE")


class RealFilesTest(FilesCase):

    def profile(self, *names):
        profile = calibrate_profile([result(name) for name in names])
        return check_profile(profile, "it")

    def test_guidellm_gives_a_level_for_each_benchmark(self):
        profile = self.profile("guidellm.json")
        self.assertEqual([level["running"] for level in profile["levels"]], [1, 6])
        self.assertEqual((profile["model"], profile["date"]), ("mock-model", "2026-11-29"))
        self.assertIn("GuideLLM 0.8.1", profile["source"])
        self.assertIn("21 requests at concurrency 1, 6; 3 failed ones left out", profile["note"])
        with open(result("guidellm.json"), encoding="utf-8") as file:
            requests = json.load(file)["benchmarks"][0]["requests"]["successful"]
        times = [request["time_to_first_token_ms"] for request in requests]
        self.assertAlmostEqual(profile["ttft_ms"]["quantiles"][0], min(times), places=3)
        self.assertAlmostEqual(profile["ttft_ms"]["quantiles"][-1], max(times), places=3)
        self.assertAlmostEqual(profile["ttft_ms"]["quantiles"][100], statistics.median(times), delta=1)
        self.assertEqual(profile["itl_ms"]["per"], "request")

    def test_vllm_gives_every_gap_and_a_level_for_each_appended_result(self):
        profile = self.profile("vllm.json")
        self.assertEqual([level["running"] for level in profile["levels"]], [2, 7])
        self.assertIn("31 requests at concurrency 2, 7; 17 failed ones left out", profile["note"])
        self.assertEqual(profile["itl_ms"]["per"], "token")
        first = read_json_values(result("vllm.json"))[0]
        gaps = [gap * 1000 for gaps in first["itls"] for gap in gaps]
        self.assertAlmostEqual(read_distribution(profile["itl_ms"], "").mean, statistics.mean(gaps), delta=0.1)
        self.assertAlmostEqual(read_distribution(profile["ttft_ms"], "").mean, first["mean_ttft_ms"], delta=1)

    def test_aiperfs_records_give_every_gap_and_several_files_several_levels(self):
        profile = self.profile("aiperf_8.jsonl", "aiperf_2.jsonl")
        self.assertEqual([level["running"] for level in profile["levels"]], [2, 6])
        self.assertIn("19 requests at concurrency 2, 6; 3 failed ones left out", profile["note"])
        self.assertEqual(profile["itl_ms"]["per"], "token")
        self.assertEqual(profile["load"]["itl"][0], [2, 1])
        self.assertGreater(profile["load"]["itl"][1][1], 1.5)

    def test_aiperfs_summary_gives_its_percentiles(self):
        profile = self.profile("aiperf_summary.json")
        with open(result("aiperf_summary.json"), encoding="utf-8") as file:
            told = json.load(file)["time_to_first_token"]
        quantiles = profile["ttft_ms"]["quantiles"]
        for share, name in ((0, "min"), (2, "p1"), (100, "p50"), (180, "p90"), (200, "max")):
            self.assertAlmostEqual(quantiles[share], told[name], places=3)
        self.assertIn("24 requests at concurrency 2", profile["note"])

    def test_files_of_different_tools_are_one_profile(self):
        profile = self.profile("guidellm.json", "vllm.json")
        self.assertEqual([level["running"] for level in profile["levels"]], [1, 2, 6, 7])
        self.assertIn("GuideLLM 0.8.1, vllm bench serve", profile["source"])

    def test_a_server_made_from_each_file_speaks_at_its_lowest_load(self):
        for name in ("guidellm.json", "vllm.json", "aiperf_2.jsonl", "aiperf_summary.json"):
            with self.subTest(file=name):
                backend = SimulatedBackend.from_settings(Settings(calibrate=(result(name),)), ApproxTokenizer())
                wanted = read_distribution(backend.profile["ttft_ms"], "").mean
                found = statistics.mean(ttft for ttft, _, _ in answers(backend, 400))
                self.assertAlmostEqual(found, wanted, delta=0.1 * wanted)


class SameDistributionTest(FilesCase):
    """Calibrate, then measure, without a tool: 5,000 answers are told as a tool tells them, and served again."""

    COUNT = 5000

    def measure(self, **settings):
        return answers(SimulatedBackend.from_settings(Settings(**settings), ApproxTokenizer()), self.COUNT)

    def source(self):
        return self.measure(ttft_ms=300, ttft_std_ms=150, ttft_dist="lognormal", itl_ms=20, itl_std_ms=10,
                            itl_dist="gamma", output_tokens=12, output_tokens_std=5,
                            output_tokens_dist="lognormal", seed=1)

    def test_from_every_gap(self):
        source = self.source()
        path = self.write({"model_id": "m", "max_concurrency": 1, "ttfts": [ttft / 1000 for ttft, _, _ in source],
                           "itls": [[gap / 1000 for gap in gaps] for _, gaps, _ in source],
                           "output_lens": [tokens for _, _, tokens in source]})
        served = self.measure(calibrate=(path,), seed=2)
        for name, pick in (("TTFT", lambda answer: [answer[0]]), ("ITL", lambda answer: answer[1]),
                           ("length", lambda answer: [answer[2]])):
            distance = ks_distance(*([value for answer in run for value in pick(answer)] for run in (source, served)))
            self.assertLess(distance, 0.03, name)

    def test_from_each_requests_mean(self):
        source = self.source()
        means = [statistics.mean(gaps) if gaps else None for _, gaps, _ in source]
        path = self.write({"benchmarks": [{"requests": {"successful": [
            {"time_to_first_token_ms": answer[0], "inter_token_latency_ms": mean, "output_tokens": answer[2]}
            for answer, mean in zip(source, means)]}}]})
        served = self.measure(calibrate=(path,), seed=2)
        for name, first, second in (
                ("TTFT", [answer[0] for answer in source], [answer[0] for answer in served]),
                ("ITL", [mean for mean in means if mean is not None],
                 [statistics.mean(answer[1]) for answer in served if answer[1]]),
                ("length", [answer[2] for answer in source], [answer[2] for answer in served])):
            self.assertLess(ks_distance(first, second), 0.03, name)

    def test_the_distance_tells_other_distributions_apart(self):
        draw = random.Random(1)
        same, other = Distribution("gamma", 20, 10).sampler(draw), Distribution("gamma", 21.5, 10).sampler(draw)
        first = [same() for _ in range(5000)]
        self.assertLess(ks_distance(first, [same() for _ in range(5000)]), 0.04)
        self.assertGreater(ks_distance(first, [other() for _ in range(5000)]), 0.05)


class LevelsTest(FilesCase):

    def record(self, start_s, ttft_ms, gaps_ms, error=None):
        """One of AIPerf's records."""
        start, end = int(start_s * 1e9), int(start_s * 1e9 + (ttft_ms + sum(gaps_ms)) * 1e6)
        metrics = {} if error else {
            "time_to_first_token": {"value": ttft_ms, "unit": "ms"},
            "inter_chunk_latency": {"value": gaps_ms, "unit": "ms"},
            "inter_token_latency": {"value": statistics.mean(gaps_ms), "unit": "ms"},
            "output_sequence_length": {"value": 1 + len(gaps_ms), "unit": "tokens"},
            "request_latency": {"value": (end - start) / 1e6, "unit": "ms"}}
        mark = {"request_start_ns": start, "request_end_ns": end, "benchmark_phase": "profiling"}
        return json.dumps({"metadata": mark, "metrics": metrics, "error": error})

    def closed_loop(self, streams, ttft_ms, itl_ms, rounds=5):
        each_s = (ttft_ms + 4 * itl_ms) / 1000 + 1e-6
        return self.write("\n".join(self.record(1000 + each_s * at, ttft_ms, [itl_ms] * 4) for at in range(rounds)
                                    for _ in range(streams)), "loop%d.jsonl" % streams)

    def test_concurrency_is_found_in_the_requests_times(self):
        for streams in (1, 3, 8):
            with self.subTest(streams=streams):
                profile = calibrate_profile([self.closed_loop(streams, 100, 10)])
                self.assertIn("at concurrency %d;" % streams, profile["note"] + ";")

    def test_a_burst_is_as_concurrent_as_it_is_large(self):
        profile = calibrate_profile([self.closed_loop(12, 100, 10, rounds=1)])
        self.assertIn("at concurrency 12", profile["note"])

    def test_equal_values_are_a_constant_and_one_level_has_no_curve(self):
        profile = calibrate_profile([self.closed_loop(2, 100, 10)])
        self.assertEqual((profile["ttft_ms"], profile["itl_ms"], profile["output_tokens"]), (100, 10, 5))
        self.assertNotIn("levels", profile)

    def test_several_loads_become_levels_and_curves_in_ascending_order(self):
        profile = calibrate_profile([self.closed_loop(8, 400, 15), self.closed_loop(1, 100, 10),
                                     self.closed_loop(4, 200, 12)])
        self.assertEqual(profile["load"], {"ttft": [[1, 1], [4, 2], [8, 4]], "itl": [[1, 1], [4, 1.2], [8, 1.5]]})
        self.assertEqual(profile["levels"][1], {"running": 4, "ttft_ms": 200, "itl_ms": 12})
        self.assertEqual((profile["ttft_ms"], profile["itl_ms"]), (100, 10))
        check_profile(profile, "it")

    def test_files_at_the_same_load_are_put_together(self):
        first = self.closed_loop(4, 100, 10)
        os.rename(first, first + "2")
        profile = calibrate_profile([first + "2", self.closed_loop(4, 200, 10)])
        self.assertNotIn("levels", profile)
        self.assertEqual((profile["ttft_ms"]["quantiles"][0], profile["ttft_ms"]["quantiles"][-1]), (100, 200))

    def test_a_curve_that_falls_at_its_end_does_not_fall_further(self):
        self.assertEqual(curve_of_means([(1, 100), (4, 300), (8, 200)]), [[1, 1], [4, 3], [8, 2], [16, 2]])
        self.assertEqual(curve_of_means([(1, 0), (4, 300)]), [[1, 1], [4, 1]])

    def test_one_failed_request_is_counted_and_not_fitted(self):
        path = self.write("\n".join([self.record(1, 100, [10, 10]), self.record(2, 100, [10, 10]),
                                     self.record(3, 0, [], {"code": 429, "message": "no"})]))
        profile = calibrate_profile([path])
        self.assertEqual(profile["ttft_ms"], 100)
        self.assertIn("2 requests at concurrency 1; 1 failed ones left out", profile["note"])


class RefusedTest(FilesCase):

    def test_what_is_no_result_file_is_refused_with_what_is_read(self):
        for content, words in (("", "is empty"), ("x", "not JSON"), ("[" * 100000, "not JSON"), ("[]", "a JSON object"),
                               ({}, "no results that are known"), ({"hello": 1}, "GuideLLM"),
                               ({"ttft_ms": 1, "itl_ms": 1}, "--profile"), ({"benchmarks": []}, "benchmarks"),
                               ({"benchmarks": 5}, "benchmarks"), ({"benchmarks": [1]}, "requests is missing"),
                               ({"benchmarks": [{"requests": {}}]}, "successful is missing")):
            with self.subTest(content=str(content)[:40]):
                self.assertIn(words, self.refused(content))

    def test_a_file_that_cannot_be_read_is_named(self):
        path = os.path.join(self.folder, "none.json")
        with self.assertRaises(ValueError) as caught:
            calibrate_profile([path])
        self.assertIn("cannot read " + path, str(caught.exception))

    def real(self, name):
        return read_json_values(result(name))

    def test_vllm_without_its_details_says_which_flag_is_missing(self):
        value = self.real("vllm.json")[0]
        del value["ttfts"], value["itls"]
        self.assertIn("--save-detailed", self.refused(value))

    def test_units_are_checked_against_what_the_file_says_elsewhere(self):
        vllm = self.real("vllm.json")[0]
        vllm["ttfts"] = [ttft * 1000 for ttft in vllm["ttfts"]]
        guidellm = self.real("guidellm.json")[0]
        for request in guidellm["benchmarks"][0]["requests"]["successful"]:
            request["time_to_first_token_ms"] /= 1000
        aiperf = self.real("aiperf_2.jsonl")
        for record in aiperf:
            record["metrics"]["request_latency"]["unit"] = "s"
        for content in (vllm, guidellm, "\n".join(map(json.dumps, aiperf))):
            with self.subTest(content=str(content)[:40]):
                self.assertIn("another unit", self.refused(content))

    def test_aiperfs_units_are_read_not_assumed(self):
        records = self.real("aiperf_2.jsonl")
        wanted = calibrate_profile([result("aiperf_2.jsonl")])
        for unit, factor in (("ns", 1e6), ("us", 1e3), ("s", 1e-3)):
            changed = copy.deepcopy(records)
            for record in changed:
                metric = record["metrics"]["time_to_first_token"]
                metric["value"], metric["unit"] = metric["value"] * factor, unit
            found = calibrate_profile([self.write("\n".join(map(json.dumps, changed)))])
            for got, want in zip(found["ttft_ms"]["quantiles"], wanted["ttft_ms"]["quantiles"]):
                self.assertAlmostEqual(got, want, places=2)
        records[0]["metrics"]["time_to_first_token"]["unit"] = "fortnights"
        self.assertIn("time_to_first_token: unknown unit", self.refused("\n".join(map(json.dumps, records))))

    def test_where_nothing_succeeded_the_count_of_failures_is_told(self):
        failed = [record for record in self.real("aiperf_8.jsonl") if record.get("error")]
        self.assertIn("no request succeeded (3 failed)", self.refused("\n".join(map(json.dumps, failed))))
        guidellm = self.real("guidellm.json")[0]
        guidellm["benchmarks"][1]["requests"]["successful"] = []
        self.assertIn("benchmarks[1]: no request succeeded (3 failed)", self.refused(guidellm))
        vllm = self.real("vllm.json")[0]
        vllm["errors"] = ["no"] * len(vllm["ttfts"])
        self.assertIn("no request succeeded (24 failed)", self.refused(vllm))

    def test_a_measurement_without_streaming_or_with_single_tokens_is_refused(self):
        guidellm = self.real("guidellm.json")[0]
        for request in guidellm["benchmarks"][0]["requests"]["successful"]:
            request["time_to_first_token_ms"] = None
        self.assertIn("streaming", self.refused(guidellm))
        aiperf = self.real("aiperf_2.jsonl")
        for record in aiperf:
            del record["metrics"]["time_to_first_token"]
        self.assertIn("streaming", self.refused("\n".join(map(json.dumps, aiperf))))
        vllm = self.real("vllm.json")[0]
        vllm.update(output_lens=[1] * len(vllm["ttfts"]), itls=[[]] * len(vllm["ttfts"]))
        self.assertIn("no inter-token latency", self.refused(vllm))

    def test_each_wrong_number_is_named_with_its_place(self):
        for value in (-1, "1", True, [1], float("nan"), float("inf"), 10 ** 400):
            with self.subTest(value=str(value)[:20]):
                guidellm = self.real("guidellm.json")[0]
                guidellm["benchmarks"][1]["requests"]["successful"][2]["time_to_first_token_ms"] = value
                self.assertIn("benchmarks[1].requests.successful[2].time_to_first_token_ms", self.refused(guidellm))
                vllm = self.real("vllm.json")[0]
                vllm["itls"][3] = [value]
                self.assertIn("itls[3]", self.refused(vllm))
                aiperf = self.real("aiperf_2.jsonl")
                aiperf[4]["metrics"]["inter_chunk_latency"]["value"][0] = value
                self.assertIn("line 5: inter_chunk_latency", self.refused("\n".join(map(json.dumps, aiperf))))

    def test_lists_of_different_lengths_are_refused(self):
        vllm = self.real("vllm.json")[0]
        vllm["itls"].pop()
        self.assertIn("one entry a request", self.refused(vllm))

    def test_a_summary_without_percentiles_is_refused(self):
        summary = self.real("aiperf_summary.json")[0]
        del summary["inter_token_latency"]["max"]
        self.assertIn("inter_token_latency: its percentiles are missing", self.refused(summary))
        del summary["time_to_first_token"]
        self.assertIn("time_to_first_token is missing", self.refused(summary))

    def test_any_damage_to_a_real_file_is_a_value_error_or_a_profile(self):
        # never another exception: the command line turns ValueError into its one line
        draw = random.Random(7)
        junk = (None, 0, -1, True, "x", [], {}, [1], {"value": 1}, 1e400, 10 ** 400)

        def damage(value):
            """Replace one thing somewhere inside."""
            while True:
                inside = list(value.items()) if value.__class__ is dict else list(enumerate(value))
                key, part = draw.choice(inside)
                if part.__class__ in (dict, list) and part and draw.random() < 0.8:
                    value = part
                    continue
                value[key] = draw.choice(junk)
                return
        for name in ("guidellm.json", "vllm.json", "aiperf_2.jsonl", "aiperf_summary.json"):
            values, refused = self.real(name), 0
            for _ in range(30):
                changed = copy.deepcopy(values)
                damage(changed)
                path = self.write("\n".join(map(json.dumps, changed)))
                try:
                    check_profile(calibrate_profile([path]), path)
                except ValueError:
                    refused += 1
            self.assertTrue(0 < refused < 30, "%s: %d of 30 refused" % (name, refused))


if __name__ == "__main__":
    unittest.main()
