"""Settings and the command line that fills them."""
import contextlib
import io
import unittest

from api_common import __version__
from settings import Settings, build_settings_parser, parse_settings


def parse(*argv):
    return parse_settings(list(argv))


class SettingsTest(unittest.TestCase):

    def refused(self, *argv):
        """The one line on stderr with which the command line is refused; the exit code must be 2."""
        errors, out = io.StringIO(), io.StringIO()
        with contextlib.redirect_stderr(errors), contextlib.redirect_stdout(out):
            with self.assertRaises(SystemExit) as caught:
                parse(*argv)
        self.assertEqual((caught.exception.code, out.getvalue()), (2, ""))
        self.assertEqual(errors.getvalue().count("\n"), 1, errors.getvalue())
        return errors.getvalue()

    def test_defaults_are_those_of_the_issue(self):
        settings = parse()
        self.assertEqual((settings.ttft_ms, settings.itl_ms, settings.output_tokens, settings.ttft_std_ms,
                          settings.itl_std_ms, settings.output_tokens_std), (150, 10, 128, 0, 0, 0))
        self.assertEqual((settings.heartbeat_s, settings.drain_s, settings.max_responses, settings.max_store_mb,
                          settings.store_ttl_s), (1, 3, 10000, 256, 86400))
        self.assertEqual((settings.port, settings.host, settings.api_key), (8000, (), ()))

    def test_flags_have_the_settings_names(self):
        settings = parse("--port", "0", "--ttft-ms", "5.5", "--itl-ms=1", "--output-tokens", "9", "--seed", "-3",
                         "--fixed-ids", "--max-responses", "7", "--transport", "threads", "--heartbeat-s", "0")
        self.assertEqual((settings.port, settings.ttft_ms, settings.itl_ms, settings.output_tokens, settings.seed,
                          settings.fixed_ids, settings.max_responses, settings.transport, settings.heartbeat_s),
                         (0, 5.5, 1.0, 9, -3, True, 7, "threads", 0.0))

    def test_repeatable_flags_are_collected(self):
        settings = parse("--host", "127.0.0.1", "--host", "::1", "--api-key", "a", "--api-key", "b", "--model", "m",
                         "--cors-origin", "none")
        self.assertEqual((settings.host, settings.api_key, settings.model, settings.cors_origin),
                         (("127.0.0.1", "::1"), ("a", "b"), ("m",), ("none",)))

    def test_bad_values_are_refused_in_one_line_that_names_the_flag(self):
        for argv in (("--port", "70000"), ("--port", "-1"), ("--port", "x"), ("--port", "1.5"), ("--ttft-ms", "-1"),
                     ("--ttft-ms", "nan"), ("--itl-ms", "inf"), ("--itl-ms", "fast"), ("--output-tokens", "0"),
                     ("--output-tokens", "1.5"), ("--max-responses", "0"), ("--max-store-mb", "0"),
                     ("--max-store-mb", "-1"), ("--store-ttl-s", "0"), ("--heartbeat-s", "-1"), ("--heartbeat-s", "1e-20"),
                     ("--drain-s", "nan"), ("--transport", "magic"), ("--pacer", "none"), ("--max-body-mb", "0"),
                     ("--header-timeout-s", "0"), ("--itl-std-ms", "-2"), ("--max-connections", "-1"), ("--port",)):
            with self.subTest(argv=argv):
                line = self.refused(*argv)
                self.assertTrue(line.startswith("mockturtle: error: "), line)
                self.assertIn(argv[0], line)

    def test_flags_of_the_simulated_model_are_named_where_there_is_none(self):
        given = ("--max-num-seqs", "2", "--text", "echo", "--calibrate", "x.json", "--max-model-len", "90")
        for backend, idle in ((("upstream",), ["--calibrate", "--max-num-seqs", "--text"]), (("simulated",), []),
                              (("replay", "--replay", "d"), ["--calibrate", "--max-num-seqs", "--text"]),
                              (("replay", "--replay", "d", "--replay-fallback", "simulated"), [])):
            more = ("--upstream-url", "http://h") if backend == ("upstream",) else ()
            self.assertEqual(parse("--backend", *backend + more + given).without_effect(), idle)
        self.assertEqual(parse("--backend", "upstream", "--upstream-url", "http://h").without_effect(), [])

    def test_unknown_flags_and_shortened_ones_are_refused(self):
        for argv in (("--no-such-flag",), ("--ttft", "5"), ("--por", "1"), ("stray",), ("-x",)):
            with self.subTest(argv=argv):
                self.assertIn(argv[0], self.refused(*argv))

    def test_every_setting_can_be_given_in_python(self):
        settings = Settings(port=0, ttft_ms=0, model=("a", "b"))
        self.assertEqual((settings.port, settings.model), (0, ("a", "b")))
        self.assertEqual(Settings.model, ("mock-model",))

    def test_an_unknown_setting_is_refused(self):
        for name in ("prot", "_check", "started_at", "__class__"):
            with self.subTest(name=name):
                with self.assertRaises(ValueError):
                    Settings(**{name: 1})

    def test_a_bad_setting_in_python_is_a_value_error(self):
        for values in ({"port": 65536}, {"ttft_ms": -1}, {"output_tokens": 0}, {"transport": "x"},
                       {"max_store_mb": float("inf")}, {"itl_ms": float("nan")}):
            with self.subTest(values=values):
                with self.assertRaises(ValueError):
                    Settings(**values)

    def test_help_names_every_flag_with_its_default(self):
        text = build_settings_parser().format_help()
        for name in vars(Settings):
            if name.startswith("_") or callable(getattr(Settings, name)):
                continue
            flag = "--" + name.replace("_", "-")
            if name != "inline_body_bytes":             # measured, not a choice of the user's
                with self.subTest(setting=name):
                    self.assertIn(flag, text)
        self.assertIn("(default: 150)", text)

    def test_version_is_told(self):
        out = io.StringIO()
        with contextlib.redirect_stdout(out), self.assertRaises(SystemExit) as caught:
            parse("--version")
        self.assertEqual((caught.exception.code, out.getvalue()), (0, "mockturtle %s\n" % __version__))


if __name__ == "__main__":
    unittest.main()
