"""Latency profiles: the built-in ones, those in files, what is refused, and how they are printed."""
import contextlib
import io
import json
import os
import re
import tempfile
import unittest

from backends.contract import Cancel, GenerationRequest, History
from backends.engine import LoadCurve
from backends.profile_table import PROFILE_TABLE
from backends.profiles import built_in_profiles, check_profile, load_profile, profile_json, profiles_text
from backends.simulated import SimulatedBackend
from server import MockTurtle, main
from settings import Settings
from tokenizer import ApproxTokenizer

GOOD = {"name": "mine", "ttft_ms": 100, "itl_ms": {"kind": "gamma", "mean": 10, "std": 2}}


def run_main(*argv):
    """(exit code, stdout, stderr) of the command."""
    out, errors = io.StringIO(), io.StringIO()
    with contextlib.redirect_stdout(out), contextlib.redirect_stderr(errors):
        code = main(list(argv))
    return code, out.getvalue(), errors.getvalue()


def backend_of(**settings):
    return SimulatedBackend.from_settings(Settings(**settings), ApproxTokenizer())


def first_run(backend, tokens=10):
    """The TextRun of a plan for a prompt of so many tokens."""
    request = GenerationRequest("m", History(tokens, b"x", "x", list), max_tokens=8)
    return backend.generate(request, Cancel())[0][1]


class FileCase(unittest.TestCase):

    def setUp(self):
        folder = tempfile.TemporaryDirectory()
        self.addCleanup(folder.cleanup)
        self.folder = folder.name

    def write(self, content, name="profile.json"):
        path = os.path.join(self.folder, name)
        with open(path, "w", encoding="utf-8") as file:
            file.write(content if content.__class__ is str else json.dumps(content))
        return path


class BuiltInTest(unittest.TestCase):

    def test_there_are_ten_and_each_has_a_source_a_date_a_model_and_hardware(self):
        self.assertGreaterEqual(len(built_in_profiles()), 10)
        for profile in built_in_profiles():
            with self.subTest(profile=profile["name"]):
                self.assertTrue(profile["source"].startswith("https://"))
                self.assertRegex(profile["date"], r"^20\d\d-\d\d-\d\d$")
                self.assertTrue(profile["model"] and profile["hardware"] and len(profile["note"]) > 60)

    def test_names_are_unique_and_plain(self):
        names = [profile["name"] for profile in built_in_profiles()]
        self.assertEqual(len(set(names)), len(names))
        for name in names:
            self.assertTrue(re.match(r"[a-z0-9.-]+\Z", name), name)

    def test_each_can_be_served_and_is_as_fast_as_its_lowest_load(self):
        for profile in built_in_profiles():
            with self.subTest(profile=profile["name"]):
                run = first_run(backend_of(profile=profile["name"]), 1000)
                itl_s = (run.dues[7] - run.dues[0]) / 7
                itl = profile["itl_ms"]
                mean_ms = itl["mean"] if itl.__class__ is dict else itl
                self.assertAlmostEqual(itl_s * 1000, mean_ms, delta=0.05 * mean_ms)
                self.assertGreater(run.dues[0], 0)

    def test_published_rows_come_back_at_their_load(self):
        table = {entry["name"]: entry for entry in PROFILE_TABLE}
        for profile in built_in_profiles():
            rows = table[profile["name"]].get("rows", ())
            for running, ttft, itl in rows if len(rows) > 1 else ():
                with self.subTest(profile=profile["name"], running=running):
                    for name, value in (("ttft", ttft), ("itl", itl)):
                        if value.__class__ is tuple and value[0] != "std":
                            continue            # a median: the curve is of means
                        mean = value[1] if value.__class__ is tuple else value
                        base = profile[name + "_ms"]
                        base = base["mean"] if base.__class__ is dict else base
                        factor = LoadCurve(profile["load"][name]).factor(running)
                        self.assertAlmostEqual(base * factor, mean, delta=0.001 * mean)

    def test_a_tail_percentile_becomes_the_lognormal_through_it(self):
        level = built_in_profiles()[0]["levels"][-1]
        draw = backend_of(ttft_ms=level["ttft_ms"]["mean"], ttft_std_ms=level["ttft_ms"]["std"],
                          ttft_dist="lognormal", itl_ms=0)
        times = sorted(first_run(draw).dues[0] * 1000 for _ in range(4000))
        self.assertAlmostEqual(times[2000], 86.92, delta=4)
        self.assertAlmostEqual(times[3960], 464.7, delta=70)

    def test_the_queue_of_the_70b_profile_gives_back_the_published_ttft(self):
        # source: its tables, 5,000/500 tokens: from 100 on the throughput is 920 tokens/s, TTFT 8.0 to 88.6 s
        profile = [each for each in built_in_profiles() if each["name"] == "llama-3.3-70b-2xh100"][0]
        most = profile["max_num_seqs"]
        alone = {"ttft": profile["prefill_overhead_ms"] + 5000 * profile["prefill_ms_per_token"],
                 "itl": profile["itl_ms"]}
        prefill_s, itl_s = (LoadCurve(profile["load"][name]).factor(most) * ms / 1000 for name, ms in alone.items())
        rate = most / (prefill_s + 499 * itl_s)             # requests/s of a full engine
        self.assertAlmostEqual(rate * 500, 920, delta=10)
        for concurrency, ttft_s in ((100, 7.996), (150, 34.794), (200, 61.68), (250, 88.605)):
            with self.subTest(concurrency=concurrency):
                self.assertAlmostEqual((concurrency - most) / rate + prefill_s, ttft_s, delta=0.02 * ttft_s)


class LoadProfileTest(FileCase):

    def test_without_a_profile_there_is_none(self):
        self.assertIsNone(load_profile(Settings()))

    def test_a_file_is_read_and_served(self):
        run = first_run(backend_of(profile=self.write({"ttft_ms": 250, "itl_ms": 20})))
        self.assertAlmostEqual(run.dues[0], 0.25)
        self.assertAlmostEqual(run.dues[1], 0.27)

    def test_files_as_windows_writes_them_are_read(self):
        for encoding in ("utf-16", "utf-8-sig"):
            path = os.path.join(self.folder, encoding + ".json")
            with open(path, "w", encoding=encoding) as file:
                file.write('{"ttft_ms": 250, "itl_ms": 20, "note": "\u00e9"}')
            self.assertEqual(load_profile(Settings(profile=path))["note"], "\u00e9")

    def test_prefill_stands_for_ttft_where_that_is_absent(self):
        path = self.write({"prefill_overhead_ms": 50, "prefill_ms_per_token": 2, "itl_ms": 20})
        self.assertAlmostEqual(first_run(backend_of(profile=path), 100).dues[0], 0.25)

    def test_flags_weigh_more_than_the_profile(self):
        run = first_run(backend_of(profile=self.write({"ttft_ms": 250, "itl_ms": 20}), ttft_ms=30))
        self.assertAlmostEqual(run.dues[0], 0.03)
        self.assertAlmostEqual(run.dues[1], 0.05)

    def test_in_python_a_profile_is_not_overruled_by_the_defaults_of_tests(self):
        with MockTurtle(profile=self.write({"ttft_ms": 250, "itl_ms": 20})) as mock:
            self.assertAlmostEqual(first_run(mock.server.backend).dues[0], 0.25)

    def test_every_built_in_profile_survives_its_own_file(self):
        for profile in built_in_profiles():
            with self.subTest(profile=profile["name"]):
                path = self.write(profile_json(profile))
                self.assertEqual(load_profile(Settings(profile=path)), profile)

    def test_what_is_no_profile_is_refused_with_the_files_name(self):
        for content, words in (("", "empty"), ("nonsense", "not JSON"), ("[1]", "JSON object"),
                               ("{} {}", "2 JSON values"), ("[" * 100000, "not JSON"), ({}, "itl_ms"),
                               ({"benchmarks": []}, "--calibrate"), (GOOD, None)):
            with self.subTest(content=str(content)[:40]):
                path = self.write(content)
                if words is None:
                    self.assertEqual(load_profile(Settings(profile=path)), GOOD)
                    continue
                with self.assertRaises(ValueError) as caught:
                    load_profile(Settings(profile=path))
                self.assertIn(path, str(caught.exception))
                self.assertIn(words, str(caught.exception))

    def test_a_name_that_is_none_and_a_file_that_is_not_there_are_refused(self):
        for name, words in (("llama-9", "--profile list"), (os.path.join(self.folder, "no.json"), "cannot read")):
            with self.subTest(name=name):
                with self.assertRaises(ValueError) as caught:
                    load_profile(Settings(profile=name))
                self.assertIn(words, str(caught.exception))

    def test_profile_and_calibrate_together_are_refused(self):
        with self.assertRaises(ValueError):
            Settings(profile="llama-3.1-8b-h100", calibrate=("a.json",))


class CheckTest(unittest.TestCase):

    def refused(self, **changes):
        with self.assertRaises(ValueError) as caught:
            check_profile(dict(GOOD, **changes), "a.json")
        self.assertTrue(str(caught.exception).startswith("a.json: "), caught.exception)
        return str(caught.exception)

    def test_a_full_profile_is_good(self):
        full = dict(GOOD, model="m", hardware="h", source="https://example.test/", date="2026-01-31", note="n",
                    output_tokens={"kind": "empirical", "quantiles": [1, 5, 9]}, prefill_overhead_ms=1,
                    prefill_ms_per_token=0.5, max_num_seqs=8, load={"ttft": [[1, 1], [8, 3.5]], "itl": [[1, 1]]},
                    levels=[{"running": 1, "ttft_ms": 100, "itl_ms": 10},
                            {"running": 8, "ttft_ms": {"kind": "uniform", "low": 1, "high": 2}, "itl_ms": 20}])
        self.assertIs(check_profile(full, "a.json"), full)

    def test_each_wrong_value_is_named(self):
        huge = 10 ** 400
        for key, values in (
                ("name", (1, None, [])), ("date", ("yesterday", "2026-1-1", 20260101)),
                ("ttft_ms", (-1, "fast", None, True, [1], huge, float("nan"), {"kind": "magic"}, {"mean": 1},
                             {"kind": "normal", "mean": 1, "std": -1}, {"kind": "normal", "mean": huge},
                             {"kind": "empirical"}, {"kind": "empirical", "quantiles": [2, 1]},
                             {"kind": "empirical", "quantiles": [-1, 1]}, {"kind": "constant", "mean": 1, "sdt": 2})),
                ("itl_ms", ({"kind": "constant", "mean": 1, "per": "day"}, {"kind": "uniform", "low": 3, "high": 1})),
                ("output_tokens", ({"kind": "normal", "mean": "x"}, {"kind": "empirical", "quantiles": ["1"]})),
                ("prefill_overhead_ms", (-1, "1", True)), ("prefill_ms_per_token", (float("inf"), None)),
                ("max_num_seqs", (0, -1, 1.5, "8", True, huge)),
                ("load", ([], {"prefill": []}, {"ttft": []}, {"ttft": [1]}, {"ttft": [[1]]}, {"itl": [[1, 2]]},
                          {"itl": [[1, 1], [1, 2]]}, {"itl": [[2, 1], [1, 2]]}, {"itl": [[1, 1], [2, 0]]},
                          {"itl": [[1, 1], [2, "x"]]}, {"itl": [[0, 1]]})),
                ("levels", ({}, [1], [{"running": 1}], [{"running": 0, "ttft_ms": 1, "itl_ms": 1}],
                            [{"running": 2, "ttft_ms": 1, "itl_ms": 1}, {"running": 2, "ttft_ms": 1, "itl_ms": 1}],
                            [{"running": 1, "ttft_ms": -1, "itl_ms": 1}],
                            [{"running": 1, "ttft_ms": 1, "itl_ms": 1, "n": 1}]))):
            for value in values:
                with self.subTest(key=key, value=str(value)[:60]):
                    self.assertIn(key, self.refused(**{key: value}))

    def test_an_unknown_key_is_named(self):
        self.assertIn("'tftt_ms'", self.refused(tftt_ms=1))


class CommandTest(FileCase):

    def test_profile_list_shows_every_built_in_one_with_its_source(self):
        code, out, errors = run_main("--profile", "list")
        self.assertEqual((code, out, errors), (0, profiles_text() + "\n", ""))
        for profile in built_in_profiles():
            self.assertIn("\n" + profile["name"] + "\n", "\n" + out)
            self.assertIn(profile["source"], out)

    def test_a_dumped_profile_is_read_again_as_it_was(self):
        code, out, _ = run_main("--profile", "deepseek-r1-8xh200", "--dump-profile")
        self.assertEqual(code, 0)
        self.assertEqual(load_profile(Settings(profile=self.write(out))),
                         load_profile(Settings(profile="deepseek-r1-8xh200")))

    def test_what_cannot_be_printed_is_one_line_and_code_2(self):
        for argv in (("--dump-profile",), ("--dump-profile", "--profile", "nope"),
                     ("--dump-profile", "--calibrate", os.path.join(self.folder, "no.json")),
                     ("--profile", self.write("{}"), "--port", "0")):
            with self.subTest(argv=argv):
                code, out, errors = run_main(*argv)
                self.assertEqual((code, out, errors.count("\n")), (2, "", 1), errors)
                self.assertTrue(errors.startswith("mockturtle: error: "), errors)


if __name__ == "__main__":
    unittest.main()
