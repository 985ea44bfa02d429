"""Where settings come from: a flag weighs more than the environment, and that more than the file."""
import contextlib
import io
import json
import os
import subprocess
import sys
import tempfile
import unittest

from settings import Settings, build_settings_parser, parse_settings, read_config, read_environment, setting_names
from tests import ONE_FILE, ROOT

ENTRY = ONE_FILE or os.path.join(ROOT, "server.py")

# For each setting three values that differ from its default and from each other (two for what has only two):
# as the file has it, as the environment has it, and as a flag, with what they come to.
VALUES = {
    "host": ((["127.0.0.2"], ("127.0.0.2",)), ("127.0.0.3, ::1", ("127.0.0.3", "::1")), ("127.0.0.4", ("127.0.0.4",))),
    "port": ((1, 1), ("2", 2), ("3", 3)),
    "transport": (("threads", "threads"), ("threads", "threads"), ("threads", "threads")),
    "model_map": ((["a=b"], ("a=b",)), ("c=d,e=f", ("c=d", "e=f")), ("g=h", ("g=h",))),
    "upstream_retries": ((1, 1), ("3", 3), ("4", 4)),
    "upstream_system_role": (("developer", "developer"),) * 3,
    "upstream_max_tokens_field": (("max_completion_tokens", "max_completion_tokens"),) * 3,
    "upstream_reasoning_field": (("reasoning", "reasoning"), ("reasoning_content", "reasoning_content"),
                                 ("reasoning", "reasoning")),
    "replay_match": (("exact", "exact"),) * 3,
    "replay_fallback": (("simulated", "simulated"),) * 3,
    "upstream_think": (("tags", "tags"), ("opened", "opened"), ("tags", "tags")),
    "store": (("sqlite:a.db", "sqlite:a.db"), ("sqlite:b.db", "sqlite:b.db"), ("sqlite:c.db", "sqlite:c.db")),
    "store_sync": (("full", "full"), ("full", "full"), ("full", "full")),
    "log_level": (("debug", "debug"), ("warning", "warning"), ("error", "error")),
    "text": (("echo", "echo"), ("emoji", "emoji"), ("file:a.txt", "file:a.txt")),
    "log_format": (("json", "json"), ("json", "json"), ("json", "json")),
    "fault": ((["close", "cut:event=3"], ("close", "cut:event=3")), ("close; cut:event=3,how=rst", ("close", "cut:event=3,how=rst")),
              ("error:status=503,rate=0.1", ("error:status=503,rate=0.1",))),
    "heartbeat_form": (("event", "event"), ("event", "event"), ("event", "event")),
    "load_knee": ((0.25, 0.25), ("0.75", 0.75), ("0.4", 0.4)),
    "auto_tool_rate": ((0.25, 0.25), ("0.5", 0.5), ("1", 1.0)),
    "builtin_tool_rate": ((0.25, 0.25), ("0.5", 0.5), ("1", 1.0)),
    "refusal_rate": ((0.25, 0.25), ("0.5", 0.5), ("1", 1.0)),
    "tls_key": (("a.pem", "a.pem"), ("b.pem", "b.pem"), ("c.pem", "c.pem")),
}


def values_of(name):
    """((file value, meaning), (environment value, meaning), (flag value or None, meaning))."""
    if name in VALUES:
        return VALUES[name]
    default = getattr(Settings, name)
    if default.__class__ is bool:
        return (True, True), ("false", False), (None, True)
    if default.__class__ is tuple:
        return (["f1", "f2"], ("f1", "f2")), ("e1,e2", ("e1", "e2")), ("g1", ("g1",))
    if default.__class__ is int:
        return (11, 11), ("12", 12), ("13", 13)
    if default.__class__ is float:
        return (1.5, 1.5), ("2.5", 2.5), ("3.5", 3.5)
    return ("f.pem", "f.pem"), ("e.pem", "e.pem"), ("g.pem", "g.pem")


class SourcesCase(unittest.TestCase):

    def setUp(self):
        folder = tempfile.TemporaryDirectory()
        self.addCleanup(folder.cleanup)
        self.folder = folder.name

    def write(self, content):
        """The path of a config file with this content: text, or an object for JSON."""
        path = os.path.join(self.folder, "config.json")
        with open(path, "w", encoding="utf-8") as config:
            config.write(content if content.__class__ is str else json.dumps(content))
        return path

    def parse(self, argv=(), environ=None, config=None):
        argv = list(argv)
        if config is not None:
            argv += ["--config", self.write(config)]
        return parse_settings(argv, environ or {})

    def refused(self, *args, **values):
        """The one line with which the settings are refused; the exit code must be 2."""
        errors, out = io.StringIO(), io.StringIO()
        with contextlib.redirect_stderr(errors), contextlib.redirect_stdout(out):
            with self.assertRaises(SystemExit) as caught:
                self.parse(*args, **values)
        self.assertEqual((caught.exception.code, out.getvalue()), (2, ""))
        line = errors.getvalue()
        self.assertTrue(line.startswith("mockturtle: error: "), line)
        self.assertEqual((line.count("\n"), line[-1]), (1, "\n"), line)
        return line


class WeightTest(SourcesCase):

    def test_each_setting_takes_the_flag_over_the_environment_over_the_file(self):
        flags = {action.dest for action in build_settings_parser()._actions}
        for name in setting_names():
            in_file, in_environment, in_flag = values_of(name)
            flag = "--" + name.replace("_", "-")
            variable = "MOCKTURTLE_" + name.upper()
            more = {"tls_cert": "x.pem"} if name == "tls_key" else {}
            config = dict(more, **{name: in_file[0]})
            with self.subTest(setting=name):
                self.assertEqual(getattr(self.parse(config=config), name), in_file[1])
                environ = {variable: in_environment[0]}
                self.assertEqual(getattr(self.parse(environ=environ, config=config), name), in_environment[1])
                if name in flags:
                    argv = [flag] if in_flag[0] is None else [flag, in_flag[0]]
                    self.assertEqual(getattr(self.parse(argv, environ, config), name), in_flag[1])

    def test_all_flags_but_the_commands_are_settings(self):
        flags = {action.dest for action in build_settings_parser()._actions}
        self.assertEqual(flags - set(setting_names()), {"help", "config", "self_test", "check_script", "dump_profile",
                                                        "version"})
        self.assertEqual(set(setting_names()) - flags, {"inline_body_bytes"})

    def test_keys_may_have_dashes_or_underscores(self):
        settings = self.parse(config={"ttft-ms": 7, "itl_ms": 8})
        self.assertEqual((settings.ttft_ms, settings.itl_ms), (7.0, 8.0))

    def test_the_file_may_be_named_in_the_environment(self):
        path = self.write({"port": 77})
        self.assertEqual(parse_settings([], {"MOCKTURTLE_CONFIG": path}).port, 77)
        self.assertEqual(parse_settings([], {"MOCKTURTLE_CONFIG": ""}).port, Settings.port)
        other = os.path.join(self.folder, "other.json")
        with open(other, "w", encoding="utf-8") as config:
            config.write('{"port": 78}')
        self.assertEqual(parse_settings(["--config", other], {"MOCKTURTLE_CONFIG": path}).port, 78)

    def test_other_variables_are_not_looked_at(self):
        self.assertEqual(self.parse(environ={"PORT": "x", "MOCKTURTL_PORT": "1", "HOME": "/"}).port, Settings.port)

    def test_types_are_those_of_the_settings(self):
        settings = self.parse(environ={"MOCKTURTLE_TTFT_MS": "5", "MOCKTURTLE_STRICT": "yes"}, config={"itl-ms": 3, "port": 9.0})
        self.assertEqual([(value, value.__class__) for value in (settings.ttft_ms, settings.itl_ms, settings.port, settings.strict)],
                         [(5.0, float), (3.0, float), (9, int), (True, bool)])

    def test_truth_in_every_spelling(self):
        for text, value in (("1", True), ("true", True), ("Yes", True), ("ON", True), ("0", False), ("False", False),
                            ("no", False), ("off", False), ("", False)):
            self.assertIs(self.parse(environ={"MOCKTURTLE_STRICT": text}, config={"strict": not value}).strict, value)

    def test_repeated_values_of_a_stronger_source_replace_those_of_a_weaker_one(self):
        config = {"model": ["f1", "f2"], "api-key": "one-key"}
        self.assertEqual(self.parse(config=config).api_key, ("one-key",))
        self.assertEqual(self.parse(environ={"MOCKTURTLE_MODEL": " a , b ,,"}, config=config).model, ("a", "b"))
        self.assertEqual(self.parse(["--model", "x", "--model", "y,z"], {"MOCKTURTLE_MODEL": "a"}, config).model, ("x", "y,z"))
        self.assertEqual(self.parse(environ={"MOCKTURTLE_API_KEY": ""}, config=config).api_key, ())

    def test_a_bad_value_of_a_weaker_source_is_refused_all_the_same(self):
        self.assertIn("MOCKTURTLE_PORT", self.refused(["--port", "1"], {"MOCKTURTLE_PORT": "x"}))


class FaultsTest(SourcesCase):

    def test_unknown_keys_and_variables_are_refused_by_name(self):
        for key in ("prot", "PORT", "config", "self-test", "started", "_check", "__init__", "", "ttft ms"):
            with self.subTest(key=key):
                self.assertIn("'%s'" % key, self.refused(config={key: 1}))
        for variable in ("MOCKTURTLE_PROT", "MOCKTURTLE_", "MOCKTURTLE_SELF_TEST", "MOCKTURTLE_STARTED", "MOCKTURTLE_TTFT"):
            with self.subTest(variable=variable):
                self.assertIn(variable, self.refused(environ={variable: "1"}))

    def test_bad_types_in_the_file_name_key_and_file(self):
        for key, value in (("port", "x"), ("port", 1.5), ("port", True), ("port", None), ("port", []),
                           ("ttft-ms", "fast"), ("ttft-ms", False), ("ttft-ms", {}), ("ttft-ms", None), ("strict", 1),
                           ("strict", "perhaps"), ("strict", None), ("tls-cert", 5), ("tls-cert", None), ("log-level", 1),
                           ("model", 5), ("model", [1]), ("model", None), ("model", {"a": 1}), ("auto-tool-rate", "x"),
                           ("auto-tool-rate", [])):
            with self.subTest(key=key, value=value):
                line = self.refused(config={key: value})
                self.assertIn("'%s'" % key, line)
                self.assertIn("config.json", line)

    def test_bad_types_in_the_environment_name_the_variable(self):
        for name, value in (("PORT", "x"), ("PORT", "1.5"), ("PORT", ""), ("TTFT_MS", "fast"), ("TTFT_MS", ""),
                            ("STRICT", "perhaps"), ("SEED", "0x10"), ("AUTO_TOOL_RATE", "often")):
            with self.subTest(name=name, value=value):
                self.assertIn("MOCKTURTLE_" + name, self.refused(environ={"MOCKTURTLE_" + name: value}))

    def test_bad_values_are_refused_wherever_they_stand(self):
        for name, value in (("port", 70000), ("ttft_ms", -1), ("output_tokens", 0), ("transport", "magic"), ("log_level", "loud"),
                            ("log_format", "xml"), ("auto_tool_rate", 1.5), ("builtin_tool_rate", 1.5), ("refusal_rate", -0.1), ("tls_key", "k.pem"),
                            ("ttft_ms", float("nan")), ("itl_ms", float("inf")), ("auto_tool_rate", float("nan")),
                            ("max_model_len", -1), ("max_model_len", 0), ("lateness_warning_ms", float("nan")), ("lateness_warning_ms", -1.0)):
            flag = "--" + name.replace("_", "-")
            with self.subTest(name=name, value=value):
                self.assertIn(flag, self.refused([flag, str(value)]))
                self.assertIn(flag, self.refused(environ={"MOCKTURTLE_" + name.upper(): str(value)}))
                self.assertIn(flag, self.refused(config={name: value}))

    def test_files_that_are_no_settings(self):
        for content in ("", "{", "[]", "5", '"x"', "null", '{"port": 1,}', "\ufeff{}"):
            with self.subTest(content=content):
                self.assertIn("config.json", self.refused(config=content))

    def test_a_file_that_is_nested_without_end_is_refused(self):
        self.assertIn("config.json", self.refused(config='{"model": ' + "[" * 100000))

    def test_a_file_that_is_not_utf_8_is_refused(self):
        path = os.path.join(self.folder, "latin.json")
        with open(path, "wb") as config:
            config.write(b'{"model": "\xfc"}')
        self.assertIn("latin.json", self.refused(["--config", path]))

    def test_a_missing_file_is_refused(self):
        for path in (os.path.join(self.folder, "none.json"), self.folder):
            self.assertIn(path, self.refused(["--config", path]))

    def test_keys_with_line_breaks_are_refused_in_one_line(self):
        self.refused(config={"a\nb": 1})
        self.refused(config={"port": "a\nb"})

    def test_a_key_is_never_repeated_in_a_refusal(self):
        for config in ({"api-key": {"sk-hush": 1}}, {"api-key": ["sk-hush", 5]}, {"api-key": ["sk-hush"], "port": "x"}):
            self.assertNotIn("sk-hush", self.refused(config=config))

    def test_settings_in_python_are_checked_as_well(self):
        for values in ({"port": "80"}, {"ttft_ms": "5"}, {"ttft_ms": None}, {"auto_tool_rate": "1"}):
            with self.subTest(values=values):
                with self.assertRaises(ValueError):
                    Settings(**values)


class ReadersTest(SourcesCase):

    def test_readers_return_only_what_is_said(self):
        self.assertEqual(read_environment({"MOCKTURTLE_PORT": " 5 ", "X": "1"}), {"port": 5})
        self.assertEqual(read_config(self.write({})), {})
        self.assertEqual(read_config(self.write({"host": "::1"})), {"host": ("::1",)})


class CommandTest(SourcesCase):

    def run_command(self, *arguments, **environ):
        """(exit code, stdout, stderr)."""
        values = {name: value for name, value in os.environ.items() if not name.startswith("MOCKTURTLE_")}
        done = subprocess.run([sys.executable, ENTRY] + list(arguments), stdin=subprocess.DEVNULL, stdout=subprocess.PIPE,
                              stderr=subprocess.PIPE, universal_newlines=True, timeout=20, env=dict(values, **environ))
        return done.returncode, done.stdout, done.stderr

    def test_the_command_refuses_in_one_line_with_code_2(self):
        path = self.write({"prot": 1})
        for outcome, part in ((self.run_command("--config", path), "'prot'"),
                              (self.run_command(MOCKTURTLE_PROT="1"), "MOCKTURTLE_PROT"),
                              (self.run_command(MOCKTURTLE_PORT="x"), "MOCKTURTLE_PORT")):
            self.assertEqual((outcome[0], outcome[1], outcome[2].count("\n")), (2, "", 1), outcome)
            self.assertIn(part, outcome[2])


if __name__ == "__main__":
    unittest.main()
