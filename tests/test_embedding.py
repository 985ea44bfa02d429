"""The server inside Python: MockTurtle, a backend of one's own in all forms, --self-test, and what is told of leniency."""
import http.client
import json
import os
import subprocess
import sys
import tempfile
import textwrap
import threading
import unittest

from api_common import ApiError
from backends.contract import Backend, Finish, TextDelta, Usage
from backends.custom import load_backend
from server import MockTurtle
from settings import Settings
from tests import ONE_FILE, ROOT
from tests.support import CHAT, RESPONSE, TIMEOUT_S, DeltaBackend, LiveServerTest, QuietTestCase, RawClient, every_form

ENTRY = ONE_FILE or os.path.join(ROOT, "server.py")
ECHO = '''
from mockturtle import Backend, Finish, TextDelta, Usage

class Echo(Backend):
    def generate(self, request, cancel):
        words = request.history.last_user_text.split(" ")
        for number, word in enumerate(words):
            yield 0.001 * number, TextDelta(word if not number else " " + word)
        yield None, Finish("stop")
        yield None, Usage(request.history.tokens, len(words))

class Shaped(Echo):
    def __init__(self, settings):
        self.model = settings.model
    def generate(self, request, cancel):
        yield None, TextDelta(self.model[0])
        yield None, Finish("stop")

class Optional(Echo):
    def __init__(self, settings=None):
        self.seen = settings

def make_echo():
    return Echo()

class Broken(Backend):
    def __init__(self):
        raise KeyError("no such thing")

class Greedy(Backend):
    def __init__(self, settings, more):
        pass

class NoBackend:
    pass
'''


def call(mock, method, path, body=None, headers=None):
    """(status, decoded JSON or text, headers) over a connection of its own."""
    connection = http.client.HTTPConnection(*mock.server.server_address[:2], timeout=TIMEOUT_S)
    try:
        connection.request(method, path, None if body is None else json.dumps(body), headers or {})
        answer = connection.getresponse()
        data = answer.read().decode("utf-8")
        kind = answer.getheader("content-type") or ""
        return answer.status, json.loads(data) if kind.startswith("application/json") else data, answer.headers
    finally:
        connection.close()


def text_of(mock, **change):
    status, whole, _ = call(mock, "POST", "/v1/chat/completions", dict(CHAT, **change))
    if status != 200:
        raise AssertionError("status %d: %r" % (status, whole))
    return whole["choices"][0]["message"]["content"]


class FolderCase(QuietTestCase):

    def setUp(self):
        QuietTestCase.setUp(self)
        folder = tempfile.TemporaryDirectory()
        self.addCleanup(folder.cleanup)
        self.folder = folder.name

    def write(self, content, name="mine.py"):
        path = os.path.join(self.folder, name)
        with open(path, "w", encoding="utf-8") as file:
            file.write(textwrap.dedent(content))
        return path


class MockTurtleTest(FolderCase):

    def tearDown(self):
        self.assert_threads_end()

    def test_a_with_block_serves_and_ends(self):
        with MockTurtle() as mock:
            self.assertEqual((mock.url, mock.base_url), ("http://127.0.0.1:%d" % mock.server.server_port, mock.url + "/v1"))
            self.assertEqual(call(mock, "GET", "/health")[0], 200)
            address = mock.server.server_address[:2]
        with self.assertRaises(OSError):
            RawClient(address, 1.0)

    def test_defaults_are_those_of_tests(self):
        with MockTurtle() as mock:
            settings = mock.server.settings
            self.assertEqual((settings.ttft_ms, settings.itl_ms, settings.seed, settings.host), (0, 0, 0, ("127.0.0.1",)))
            self.assertNotIn(settings.port, (None, 8000))

    def test_settings_are_keywords(self):
        with MockTurtle(output_tokens=3, model=("a", "b"), api_key="one-key") as mock:
            key = {"Authorization": "Bearer one-key"}
            self.assertEqual(call(mock, "GET", "/v1/models")[0], 401)
            self.assertEqual([each["id"] for each in call(mock, "GET", "/v1/models", headers=key)[1]["data"]], ["a", "b"])
            whole = call(mock, "POST", "/v1/chat/completions", CHAT, key)[1]
            self.assertEqual(whole["usage"]["completion_tokens"], 3)

    def test_unknown_and_bad_settings_are_value_errors(self):
        for values in ({"prot": 1}, {"port": 70000}, {"ttft_ms": -1}, {"transport": "x"}, {"backend": "nonsense"}):
            with self.subTest(values=values):
                with self.assertRaises(ValueError):
                    MockTurtle(**values)

    def test_two_at_once_know_nothing_of_each_other(self):
        with MockTurtle(output_tokens=2) as one, MockTurtle(output_tokens=4, transport="threads") as other:
            self.assertNotEqual(one.url, other.url)
            first = call(one, "POST", "/v1/responses", RESPONSE)[1]
            self.assertEqual(call(one, "GET", "/v1/responses/" + first["id"])[0], 200)
            self.assertEqual(call(other, "GET", "/v1/responses/" + first["id"])[0], 404)
            self.assertEqual([call(mock, "POST", "/v1/chat/completions", CHAT)[1]["usage"]["completion_tokens"]
                              for mock in (one, other)], [2, 4])

    def test_the_same_seed_says_the_same_on_every_server(self):
        texts = []
        for transport in ("loop", "threads"):
            with MockTurtle(transport=transport) as mock:
                texts.append([text_of(mock) for _ in range(3)])
        self.assertEqual(texts[0], texts[1])

    def test_stop_ends_running_streams_at_once(self):
        for transport in ("loop", "threads"):
            mock = MockTurtle(ttft_ms=600000, transport=transport).start()
            clients = [RawClient(mock.server.server_address) for _ in range(3)]
            try:
                for client in clients[:2]:
                    client.send_request("POST", "/v1/chat/completions", dict(CHAT, stream=True))
                    self.assertEqual(client.read_head().status, 200)
                clients[2].send_request("POST", "/v1/chat/completions", CHAT)
                stopping = threading.Thread(target=mock.stop)
                stopping.start()
                stopping.join(TIMEOUT_S)
                with self.subTest(transport=transport):
                    self.assertFalse(stopping.is_alive())
                    for client in clients[:2]:
                        self.assertNotIn(b"[DONE]", client.read_to_end())
            finally:
                for client in clients:
                    client.close()

    def test_what_is_made_and_never_started_can_be_stopped(self):
        MockTurtle().stop()

    def test_an_exception_inside_the_block_stops_it_as_well(self):
        with self.assertRaises(KeyError):
            with MockTurtle() as mock:
                raise KeyError("x")
        self.assertIsNotNone(mock)

    def test_it_can_be_stopped_twice(self):
        mock = MockTurtle().start()
        mock.stop()
        mock.stop()

    def test_a_backend_instance(self):
        backend = DeltaBackend([(None, TextDelta("mine")), (None, Finish("stop")), (None, Usage(1, 1))], blocking=True)
        with MockTurtle(backend) as mock:
            self.assertEqual(text_of(mock), "mine")
            whole = call(mock, "POST", "/v1/responses", RESPONSE)[1]
            self.assertEqual(whole["output"][0]["content"][0]["text"], "mine")
            self.assertEqual(call(mock, "POST", "/v1/completions", {"model": "m", "prompt": ["a", "b"]})[1]["choices"][1]["text"], "mine")
        self.assertEqual([request.endpoint for request in backend.requests], ["chat", "responses", "completions", "completions"])

    def test_a_backend_by_name_in_either_place(self):
        path = self.write(ECHO)
        for values in ({"backend": path + ":Echo"}, {"backend": path + ":Optional"}, {"backend": path + ":make_echo"}):
            with MockTurtle(**values) as mock, self.subTest(values=values):
                self.assertEqual(text_of(mock), "Hello")
        with MockTurtle(path + ":Shaped", model=("shape",)) as mock:
            self.assertEqual(text_of(mock), "shape")

    def test_a_backends_refusal_and_fault_become_the_apis_errors(self):
        with MockTurtle(DeltaBackend([ApiError(429, "Slow down.", code="rate_limit_exceeded")], blocking=True)) as mock:
            for body in (CHAT, dict(CHAT, stream=True)):
                status, whole, _ = call(mock, "POST", "/v1/chat/completions", body)
                self.assertEqual((status, whole["error"]["code"]), (429, "rate_limit_exceeded"))


class GenerateAlone:
    """A user's class that is no Backend and has nothing else of one."""

    def generate(self, request, cancel):
        yield 0.0, TextDelta("just this")
        yield None, Finish("stop")
        yield None, Usage(3, 2)


class GenerateAloneTest(LiveServerTest):

    def make_backend(self):
        return GenerateAlone()

    def test_all_apis_are_served_and_the_server_ends(self):
        self.assertEqual(self.request("POST", "/v1/chat/completions", CHAT).json()["choices"][0]["message"]["content"],
                         "just this")
        made = self.request("POST", "/v1/responses", RESPONSE).json()
        self.assertEqual(made["output"][0]["content"][0]["text"], "just this")
        self.assertEqual(self.request("GET", "/v1/responses/%s?include=reasoning.encrypted_content" % made["id"]).status, 200)
        self.assertEqual(self.request("POST", "/v1/completions", {"model": "m", "prompt": ["a", "b"]}).status, 200)
        self.assertEqual(self.request("GET", "/metrics").status, 200)
        self.assertEqual(self.request("POST", "/_mockturtle/reset", body=b"").status, 200)


class LoadBackendTest(FolderCase):

    def assert_refused(self, spec, part):
        with self.assertRaises(ValueError) as caught:
            load_backend(spec, Settings())
        message = str(caught.exception)
        self.assertIn(part, message)
        self.assertTrue(message.startswith("--backend "), message)
        self.assertNotIn("\n", message)

    def test_what_does_not_load_says_why_in_one_line(self):
        path = self.write(ECHO)
        for spec, part in (("other", "FILE.py:Class"), (path, "FILE.py:Class"), ("mine.txt:Echo", "FILE.py:Class"),
                           (path + ":", "has no"), (os.path.join(self.folder, "none.py") + ":Echo", "no file"),
                           (path + ":Nothing", "has no Nothing"), (path + ":Broken", "KeyError: 'no such thing'"),
                           (path + ":Greedy", "Greedy cannot be made"), (path + ":NoBackend", "no generate"),
                           (path + ":ECHO_TEXT", "has no ECHO_TEXT")):
            with self.subTest(spec=spec):
                self.assert_refused(spec, part)

    def test_files_that_fail_say_why_in_one_line(self):
        for number, (content, part) in enumerate((("def x(:\n", "SyntaxError"), ("import no_such_module_anywhere\n", "ModuleNotFoundError"),
                                                  ("1 / 0\n", "ZeroDivisionError"), ("raise ValueError('one\\ntwo')\n", "ValueError"))):
            with self.subTest(content=content):
                self.assert_refused(self.write(content, "bad%d.py" % number) + ":X", part)

    def test_the_contract_is_the_running_one(self):
        path = self.write(ECHO)
        self.assertIsInstance(load_backend(path + ":Echo", Settings()), Backend)

    def test_a_file_may_use_dataclasses_and_delayed_annotations(self):
        path = self.write('''
            from __future__ import annotations
            from dataclasses import dataclass
            from mockturtle import Backend

            @dataclass
            class State:
                words: int = 0

            class Mine(Backend):
                def __init__(self):
                    self.state = State()
            ''')
        self.assertEqual(load_backend(path + ":Mine", Settings()).state.words, 0)

    def test_a_constructor_gets_the_settings_when_it_takes_one_argument(self):
        settings = Settings(model=("x",))
        path = self.write(ECHO)
        self.assertEqual(load_backend(path + ":Shaped", settings).model, ("x",))
        self.assertIsNone(load_backend(path + ":Optional", settings).seen)


class FormsTest(FolderCase):
    """--backend and --self-test of the command, in the form under test and, from a checkout, in the joined file as well."""

    def entries(self):
        yield ENTRY
        if ONE_FILE is None:
            path = os.path.join(self.folder, "elsewhere", "mockturtle.py")
            os.mkdir(os.path.dirname(path))
            built = subprocess.run([sys.executable, os.path.join(ROOT, "tools", "amalgamate.py"), "--out", path],
                                   stdout=subprocess.PIPE, stderr=subprocess.STDOUT, universal_newlines=True, timeout=60)
            self.assertEqual(built.returncode, 0, built.stdout)
            yield path

    def run_python(self, arguments, cwd=None, **environ):
        done = subprocess.run([sys.executable] + arguments, stdin=subprocess.DEVNULL, stdout=subprocess.PIPE,
                              stderr=subprocess.PIPE, universal_newlines=True, timeout=60, cwd=cwd or self.folder,
                              env=dict(os.environ, **environ))
        return done.returncode, done.stdout, done.stderr

    def test_self_test_holds_and_needs_no_folder(self):
        code, out, err = self.run_python([ENTRY, "--self-test"])
        self.assertEqual((code, err), (0, ""), out)
        lines = out.splitlines()
        self.assertEqual(lines[-1], "all checks hold")
        self.assertTrue(all(line.startswith("ok   ") for line in lines[:-1]), out)
        self.assertRegex(out, r"timed frames 50 % were at most [\d.]+ ms late")

    def test_a_backend_is_loaded_by_the_command_in_every_form(self):
        path = self.write(ECHO)
        script = textwrap.dedent('''
            import os, sys
            sys.path.insert(0, os.path.dirname(os.path.abspath(sys.argv[1])))
            name = os.path.basename(sys.argv[1])[:-3]
            MockTurtle = __import__(name).MockTurtle
            import http.client, json
            with MockTurtle(backend=sys.argv[2] + ":Echo") as mock:
                connection = http.client.HTTPConnection("127.0.0.1", mock.server.server_port, timeout=10)
                connection.request("POST", "/v1/chat/completions", json.dumps({"model": "m", "messages": [{"role": "user", "content": "A b c"}]}))
                print(json.loads(connection.getresponse().read())["choices"][0]["message"]["content"])
                connection.close()
            ''')
        for entry in self.entries():
            with self.subTest(entry=os.path.basename(entry)):
                self.assertEqual(self.run_python(["-c", script, entry, path]), (0, "A b c\n", ""))
                code, out, err = self.run_python([entry, "--port", "0", "--backend", path + ":Nothing"])
                self.assertEqual((code, out, err.count("\n")), (2, "", 1), err)
                self.assertIn("has no Nothing", err)
                code, out, err = self.run_python([entry, "--port", "0", "--host", "192.0.2.1", "--backend", path + ":Echo"])
                self.assertEqual((code, out, err.count("\n")), (2, "", 1), err)     # the backend loads, the address does not bind
                self.assertIn("192.0.2.1", err)


@every_form
class LeniencyTest(LiveServerTest):

    def test_ignored_fields_are_named_in_a_header(self):
        for path, body, names in (
                ("/v1/chat/completions", dict(CHAT, vendor={"x": 1}, temperature=1, logit_bias={}), {"vendor", "temperature"}),
                ("/v1/responses", dict(RESPONSE, vendor=1), {"vendor"}),
                ("/v1/completions", {"model": "m", "prompt": "x", "vendor": 1}, {"vendor"})):
            for streamed in (False, True):
                with self.subTest(path=path, streamed=streamed):
                    answer = self.request("POST", path, dict(body, stream=streamed))
                    self.assertEqual(answer.status, 200, answer.body)
                    self.assertEqual(set(answer.headers["x-mockturtle-ignored"].split(", ")), names)

    def test_without_ignored_fields_there_is_no_header(self):
        for path, body in (("/v1/chat/completions", dict(CHAT, vendor=None, max_tokens=5, seed=1)), ("/v1/responses", RESPONSE)):
            self.assertNotIn("x-mockturtle-ignored", self.request("POST", path, body).headers)

    def test_odd_names_forge_no_header(self):
        answer = self.request("POST", "/v1/chat/completions", dict(CHAT, **{"a\r\nx-forged: 1": 1, "\u00fc\ud83d": 1, "n" * 5000: 1}))
        self.assertEqual(answer.status, 200)
        self.assertNotIn("x-forged", answer.headers)
        self.assertTrue(answer.headers["x-mockturtle-ignored"].isascii())

    def test_ten_thousand_unknown_fields_leave_a_head_that_clients_can_read(self):
        answer = self.request("POST", "/v1/chat/completions", dict(CHAT, **{"field_%06d" % number: 1 for number in range(10000)}))
        self.assertEqual(answer.status, 200)
        self.assertLess(len(answer.headers["x-mockturtle-ignored"]), 8000)     # http.client reads lines of at most 65536

    def test_refuse_ignored_makes_them_400(self):
        self.start_server(refuse_ignored=True)
        for path, body, name in (("/v1/chat/completions", dict(CHAT, temperature=0.5), "temperature"),
                                 ("/v1/responses", dict(RESPONSE, vendor=1), "vendor"),
                                 ("/v1/completions", {"model": "m", "prompt": "x", "vendor": 1}, "vendor")):
            for streamed in (False, True):
                answer = self.request("POST", path, dict(body, stream=streamed))
                self.assertEqual((answer.status, answer.error["param"], answer.error["code"]), (400, name, "unsupported_parameter"))
        self.assertEqual(self.request("POST", "/v1/chat/completions", CHAT).status, 200)

    def test_a_refused_response_is_not_stored(self):
        self.start_server(refuse_ignored=True, fixed_ids=True)
        self.assertEqual(self.request("POST", "/v1/responses", dict(RESPONSE, vendor=1)).status, 400)
        kept = self.request("POST", "/v1/responses", RESPONSE).json()
        self.assertEqual(self.request("GET", "/v1/responses/" + kept["id"]).status, 200)
        before = "resp_%032x" % (int(kept["id"][5:], 16) - 1)
        self.assertEqual(self.request("GET", "/v1/responses/" + before).status, 404)

    def test_strict_models_refuse_other_names_with_each_apis_status(self):
        self.start_server(strict_models=True, model=("known", "other"))
        for path, body, status, param in (
                ("/v1/chat/completions", CHAT, 404, None), ("/v1/completions", {"model": "m", "prompt": "x"}, 404, None),
                ("/v1/responses", RESPONSE, 400, "model")):
            with self.subTest(path=path):
                for streamed in (False, True):
                    answer = self.request("POST", path, dict(body, stream=streamed))
                    self.assertEqual((answer.status, answer.error["code"], answer.error["param"]), (status, "model_not_found", param))
                self.assertEqual(self.request("POST", path, dict(body, model="other")).status, 200)

    def test_other_names_are_echoed_without_it(self):
        for path, body in (("/v1/chat/completions", CHAT), ("/v1/responses", RESPONSE), ("/v1/completions", {"prompt": "x"}),
                           ("/v1/embeddings", {"input": "x"})):
            self.assertEqual(self.request("POST", path, dict(body, model="any/name:1")).json()["model"], "any/name:1")


if __name__ == "__main__":
    unittest.main()
