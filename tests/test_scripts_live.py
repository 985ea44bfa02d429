"""Scripts at a running server: one rule for all APIs and transports, files that change, control calls, the command."""
import contextlib
import io
import os
import shutil
import tempfile
import threading
import unittest

from backends.contract import Finish, TextDelta, Usage
from backends.script_book import RuleBook
from backends.script_check import ScriptMistakes
from backends.scripted import ScriptedBackend
from backends.simulated import SimulatedBackend
from server import MockTurtle, main
from settings import Settings
from tests.data.golden import read_chat_stream, read_response_stream
from tests.support import (CHAT, RESPONSE, DeltaBackend, GatedBackend, LiveServerTest, RecordingServer, chat_text,
                           every_form,
                           wait_until)
from tests.test_process import run_command
from tests.websocket_client import WebSocketClient
from tokenizer import ApproxTokenizer

RULES = "/_mockturtle/rules"
SCRIPT = """// what the tests say
{"rules": [
    {"name": "call", "match": {"last_user_text": {"contains": "weather"}, "tool_result": null},
     "reply": {"reasoning": "Look it up.", "text": "One moment.",
               "tool_calls": [{"name": "get_weather", "arguments": {"city": "Oslo"}}]}},
    {"name": "result", "match": {"tool_result": {"path": "sky", "equal": "clear"}},
     "reply": "It is {{tool_result.sky}}."},
    {"name": "json", "match": {"last_user_text": "json"}, "reply": {"json": {"a": 1}}},
    {"name": "no", "match": {"last_user_text": "no"}, "reply": {"refusal": "I will not."}},
    {"name": "hello", "match": {"last_user_text": {"regex": "hello (\\\\w+)", "case": false}},
     "reply": "Hi {{match.1}}."},
]}
"""


class ScriptFiles:
    """Mixin of a test: script files in a folder of its own."""

    def write(self, text, name="rules.json"):
        if not hasattr(self, "folder"):
            self.folder = tempfile.mkdtemp()
            self.addCleanup(shutil.rmtree, self.folder)
        path = os.path.join(self.folder, name)
        with open(path + ".new", "w", encoding="utf-8") as script:
            script.write(text)
        os.replace(path + ".new", path)
        return path


@every_form
class ScriptLiveTest(ScriptFiles, LiveServerTest):

    def start(self, text=SCRIPT, **settings):
        return self.start_server(script=(self.write(text),), **settings)

    def says(self, text, **body):
        answer = self.request("POST", "/v1/chat/completions", dict(CHAT, messages=[{"role": "user", "content": text}],
            **body))
        self.assertEqual(answer.status, 200, answer.body)
        return answer.json()["choices"][0]["message"]["content"]

    def response(self, given, **body):
        answer = self.request("POST", "/v1/responses", dict(RESPONSE, input=given, **body))
        self.assertEqual(answer.status, 200, answer.body)
        return answer.json()

    def test_one_rule_answers_all_apis_plain_and_streamed(self):
        self.start()
        chat = dict(CHAT, messages=[{"role": "user", "content": "Hello Bob"}])
        self.assertEqual(self.says("Hello Bob"), "Hi Bob.")
        self.assertEqual(chat_text(self.stream("/v1/chat/completions", chat)), "Hi Bob.")
        answer = self.request("POST", "/v1/completions", {"model": "m", "prompt": "Hello Bob"})
        self.assertEqual(answer.json()["choices"][0]["text"], "Hi Bob.")
        events = self.stream("/v1/completions", {"model": "m", "prompt": "Hello Bob"})
        self.assertEqual("".join(event.data["choices"][0]["text"] for event in events[:-1]), "Hi Bob.")
        self.assertEqual(self.response("Hello Bob")["output"][0]["content"][0]["text"], "Hi Bob.")
        body = self.request("POST", "/v1/responses", dict(RESPONSE, input="Hello Bob", stream=True)).body
        self.assertEqual(read_response_stream(self, body)[-1]["response"]["output"][0]["content"][0]["text"], "Hi Bob.")

    def test_one_rule_answers_over_a_websocket_and_in_the_background(self):
        self.start()
        client = WebSocketClient(self.address)
        self._clients.append(client)
        self.assertEqual(client.handshake().status, 101)
        events = client.turn(input="Hello Bob")
        self.assertEqual(events[-1]["response"]["output"][0]["content"][0]["text"], "Hi Bob.")
        id = self.response("Hello Ann", background=True)["id"]
        found = wait_until(lambda: [each for each in [self.request("GET", "/v1/responses/" + id).json()]
                                    if each["status"] == "completed"], "the end")
        self.assertEqual(found[0]["output"][0]["content"][0]["text"], "Hi Ann.")
        answer = self.request("POST", "/v1/responses", dict(RESPONSE, input="Hello Eve", background=True, stream=True))
        self.assertEqual(answer.events()[-2].data["response"]["output"][0]["content"][0]["text"], "Hi Eve.")

    def test_a_tool_loop_in_chat_and_in_responses(self):
        self.start()
        messages = [{"role": "user", "content": "The weather?"}]
        message = self.request("POST", "/v1/chat/completions",
                               dict(CHAT, messages=messages)).json()["choices"][0]["message"]
        self.assertEqual((message["reasoning_content"], message["content"]), ("Look it up.", "One moment."))
        messages += [{key: message[key] for key in ("role", "content", "tool_calls")}, {
            "role": "tool", "tool_call_id": message["tool_calls"][0]["id"], "content": '{"sky": "clear"}'}]
        answer = self.request("POST", "/v1/chat/completions", dict(CHAT, messages=messages)).json()
        self.assertEqual(answer["choices"][0]["message"]["content"], "It is clear.")
        first = self.response("The weather?")
        self.assertEqual([item["type"] for item in first["output"]], ["reasoning", "message", "function_call"])
        second = self.response([{"type": "function_call_output", "call_id": first["output"][2]["call_id"],
                                 "output": '{"sky": "clear"}'}],
                               previous_response_id=first["id"])
        self.assertEqual(second["output"][0]["content"][0]["text"], "It is clear.")

    def test_every_kind_of_reply_streams(self):
        self.start()
        for text in ("json", "no", "The weather?"):
            with self.subTest(text=text):
                chat = dict(CHAT, messages=[{"role": "user", "content": text}])
                plain = self.request("POST", "/v1/chat/completions", chat).json()["choices"][0]["message"]
                _, whole = read_chat_stream(self, self.request("POST", "/v1/chat/completions",
                    dict(chat, stream=True)).body)
                streamed = whole["choices"][0]["message"]
                self.assertEqual((streamed["content"], streamed["refusal"]), (plain["content"], plain["refusal"]))
                self.assertEqual([call["function"] for call in streamed.get("tool_calls", ())],
                                 [call["function"] for call in plain.get("tool_calls", ())])
                body = self.request("POST", "/v1/responses", dict(RESPONSE, input=text, stream=True)).body
                output = read_response_stream(self, body)[-1]["response"]["output"]
                self.assertEqual([item["type"] for item in output], [item["type"] for item
                    in self.response(text)["output"]])

    def test_it_passes_through_the_engine(self):
        self.start(ttft_ms=60000, max_num_seqs=1, max_waiting=0)
        engine, rule = self.server.backend.engine, self.server.backend.rule_book.rules[-1]
        client = self.connect()
        client.send_request("POST", "/v1/chat/completions", dict(
            CHAT, stream=True, messages=[{"role": "user", "content": "hello a"}]))
        self.assertEqual(client.read_head().status, 200)
        wait_until(lambda: engine.running == 1, "its seat")
        answer = self.request("POST", "/v1/chat/completions", dict(
            CHAT, messages=[{"role": "user", "content": "hello b"}]))
        self.assertEqual((answer.status, rule.answered), (429, 1))
        client.close()
        wait_until(lambda: engine.running == 0, "its seat to be free")

    def test_what_no_rule_answers_is_404_with_script_only_in_all_apis(self):
        self.start(script_only=True)
        for path, body in (("/v1/chat/completions", CHAT), ("/v1/completions", {"model": "m", "prompt": "x"}),
                           ("/v1/responses", RESPONSE),
                           ("/v1/chat/completions", dict(CHAT, stream=True)), ("/v1/responses",
                               dict(RESPONSE, stream=True)),
                           ("/v1/responses", dict(RESPONSE, background=True))):
            with self.subTest(path=path, body=body):
                answer = self.request("POST", path, body)
                self.assertEqual((answer.status, answer.error["type"], answer.error["code"]),
                                 (404, "script_error", "no_rule_matched"))
                self.assertIn("The nearest is '", answer.error["message"])
                self.assertIn("rules.json:", answer.error["message"])
        client = WebSocketClient(self.address)
        self._clients.append(client)
        client.handshake()
        event = client.turn(input="x")[-1]
        self.assertEqual((event["type"], event["status"], event["error"]["code"]), ("error", 404, "no_rule_matched"))
        self.assertEqual(client.turn(input="hello b")[-1]["type"], "response.completed")

    def test_rules_are_listed_added_and_cleared(self):
        self.start()
        listed = self.request("GET", RULES).json()
        self.assertEqual([rule["name"] for rule in listed["data"]], ["call", "result", "json", "no", "hello"])
        self.assertEqual((listed["files"][0]["rules"], listed["script_only"], listed["data"][0]["source"][-12:]),
                         (5, False, "rules.json:3"))
        self.assertEqual(self.says("hello x"), "Hi x.")
        added = self.request("POST", RULES, body=b'{"rules": [{"name": "mine", "match": {"last_user_text": "hello x"}, '
                                                 b'"reply": "Mine."}, // comment\n'
                                                 b'{"reply": {"text": "All."}},]}')
        self.assertEqual((added.status, added.json()), (200, {"object": "rules.added",
            "names": ["mine", "added rule 1"], "rules": 7}))
        self.assertEqual((self.says("hello x"), self.says("json")), ("Mine.", "All."))
        self.request("POST", RULES + "?first=true", body=b'{"name": "top", "reply": "Top."}')
        self.assertEqual(self.says("hello x"), "Top.")
        self.assertEqual(self.request("DELETE", RULES + "?name=top").json(), {"object": "rules.deleted", "deleted": 1,
            "rules": 7})
        answered = {rule["name"]: (rule["seen"], rule["answered"]) for rule in self.request("GET",
            RULES).json()["data"]}
        self.assertEqual((answered["mine"], answered["hello"]), ((1, 1), (1, 1)))
        self.assertEqual(self.request("DELETE", RULES + "?name=top").status, 404)
        self.assertEqual(self.request("DELETE", RULES).json()["deleted"], 2)
        self.assertEqual(self.says("hello x"), "Hi x.")

    def test_rules_that_are_wrong_change_nothing(self):
        self.start()
        for body, param, words in ((b'[{"reply": 5}, {"tims": 1}]', "[0].reply", "body:1: [1].tims"),
                                   (b"", None, "column 1"), (b"{", None, "column 2"),
                                   (b'{"rules": [\n{"reply": "{{x}}"}]}', "rules[0].reply.text", "body:2: "),
                                   (b"\xff", None, "UTF-8")):
            with self.subTest(body=body):
                answer = self.request("POST", RULES, body=body)
                self.assertEqual((answer.status, answer.error["param"]), (400, param))
                self.assertIn(words, answer.error["message"])
        self.assertEqual(len(self.request("GET", RULES).json()["data"]), 5)
        self.assertEqual(self.request("POST", RULES + "?first=perhaps", body=b"[]").error["param"], "first")

    def test_the_rules_paths_are_guarded_like_all_control_paths(self):
        self.start(api_key=("secret",))
        key = {"Authorization": "Bearer secret"}
        for method, path in (("GET", RULES), ("POST", RULES), ("DELETE", RULES), ("POST", RULES + "/reload")):
            with self.subTest(method=method, path=path):
                self.assertEqual(self.request(method, path).status, 401)
                self.assertEqual(self.request(method, path, headers=dict(key, Origin="http://page.example")).status,
                                 403)
        self.assertEqual(self.request("GET", RULES, headers=key).status, 200)

    def test_a_file_that_has_changed_is_read_again_by_a_call(self):
        self.start('[{"reply": "one"}]')
        self.assertEqual(self.says("x"), "one")
        self.write('[{"reply": "two"}, {"match": {"model": "x"}, "reply": "b"}]')
        self.assertEqual(self.request("POST", RULES + "/reload").json(), {"object": "rules.reloaded", "files": 1,
            "rules": 2})
        self.assertEqual(self.says("x"), "two")
        self.write('[{"reply": "three", "tims": 1}]')
        answer = self.request("POST", RULES + "/reload")
        self.assertEqual((answer.status, answer.error["code"], answer.error["param"]),
                         (400, "invalid_script", "[0].tims"))
        self.assertEqual(self.says("x"), "two")
        self.assertIn("[0].tims", self.request("GET", RULES).json()["files"][0]["error"])

    def test_a_file_that_has_changed_is_read_again_by_itself(self):
        self.start('[{"reply": "one"}]')
        self.assertEqual(self.says("x"), "one")
        self.write('[{"reply": "two"}]')
        wait_until(lambda: self.says("x") == "two", "the new rule")
        self.assertTrue([line for line in self.server.log_lines if line.startswith("read again: ")])

    def test_requests_go_on_while_rules_change(self):
        self.start("[]")
        stop, said = threading.Event(), set()

        def change():
            while not stop.is_set():
                self.server.backend.add_rules([{"reply": "one"}, {"reply": "never"}])
                self.server.backend.clear()
        changer = threading.Thread(target=change)
        changer.start()
        try:
            client = self.connect()
            for _ in range(100):
                answer = client.request("POST", "/v1/chat/completions", dict(CHAT, max_tokens=3, seed=1))
                said.add(answer.json()["choices"][0]["message"]["content"])
        finally:
            stop.set()
            changer.join(10)
        self.assertLessEqual(len(said), 2)
        self.assertNotIn("never", said)

    def test_rules_can_be_added_to_a_server_without_a_script(self):
        plain = self.says("hello x", seed=1)
        self.server.backend.add_rules([{"reply": "Mine."}])
        self.assertEqual(self.says("hello x", seed=1), "Mine.")
        self.server.backend.clear()
        self.assertEqual(self.says("hello x", seed=1), plain)

    def test_a_server_with_a_backend_of_its_own_takes_none(self):
        self.start_server(backend=DeltaBackend([(0.0, TextDelta("a")), (0.0, Finish("stop")), (0.0, Usage(1, 1))]))
        self.assertEqual(self.request("GET", RULES).status, 404)
        self.assertEqual(self.says("x"), "a")


class PollTest(ScriptFiles, unittest.TestCase):

    def setUp(self):
        self.told = []

    def book(self, *paths):
        return RuleBook(paths, log=lambda level, message: self.told.append((level, message)))

    def test_only_what_has_changed_is_read(self):
        one, two = self.write('[{"name": "a", "reply": "a"}]', "one.json"), self.write('[{"name": "b", "reply": "b"}]',
            "two.json")
        book = self.book(one, two)
        kept = book.rules[0]
        book.poll()
        self.assertEqual((book.rules[0], self.told), (kept, []))
        self.write('[{"name": "c", "reply": "c"}]', "two.json")
        book.poll()
        self.assertIs(book.rules[0], kept)
        self.assertEqual(([rule.name for rule in book.rules], self.told), (["a", "c"],
            [("notice", "read again: " + two)]))

    def test_a_broken_file_keeps_the_old_rules_and_is_told_once(self):
        path = self.write('[{"name": "a", "reply": "a"}]')
        book = self.book(path)
        for text in ('[{"reply"', '[{"reply": 5}]'):
            self.write(text)
            book.poll()
            book.poll()
            self.assertEqual([rule.name for rule in book.rules], ["a"])
        self.assertEqual([level for level, _ in self.told], ["error", "error"])
        self.assertIn("%s:1: [0].reply: " % path, self.told[1][1])
        os.remove(path)
        book.poll()
        book.poll()
        self.assertEqual(([rule.name for rule in book.rules], len(self.told)), (["a"], 3))
        self.write('[{"name": "b", "reply": "b"}]')
        book.poll()
        self.assertEqual([rule.name for rule in book.rules], ["b"])

    def test_what_was_added_stays_in_front(self):
        path = self.write('[{"name": "a", "reply": "a"}]')
        book = self.book(path)
        book.add({"name": "mine", "reply": "m"})
        self.write('[{"name": "b", "reply": "b"}]')
        book.poll()
        self.assertEqual([rule.name for rule in book.rules], ["mine", "b"])

    def test_all_files_mistakes_are_told_together(self):
        paths = self.write('[{"tims": 1, "reply": "a"}]', "one.json"), self.write("[",
            "two.json"), os.path.join(self.folder, "none.json"), self.folder
        with self.assertRaises(ScriptMistakes) as caught:
            self.book(*paths)
        self.assertEqual([os.path.basename(each.source) for each in caught.exception.mistakes],
                         ["one.json", "two.json", "none.json", os.path.basename(self.folder)])

    def test_a_file_that_is_no_text_is_a_mistake(self):
        path = os.path.join(os.path.dirname(self.write("[]")), "latin.json")
        with open(path, "wb") as script:
            script.write(b'[{"reply": "\xe4"}]')
        with self.assertRaisesRegex(ScriptMistakes, "UTF-8"):
            self.book(path)

    def test_aimocks_files_are_known_by_their_content_or_by_their_name(self):
        path = self.write('{"fixtures": [{"match": {"userMessage": "x"}, "response": {"content": "y"}}]}')
        for spec in (path, "aimock:" + path):
            with self.subTest(spec=spec):
                self.assertEqual(self.book(spec).rules[0].told["reply"], {"template": False, "items": [{"text": "y"}]})
        with self.assertRaisesRegex(ScriptMistakes, "no aimock fixtures"):
            self.book("aimock:" + self.write("[]"))


class BlockingBehindTest(LiveServerTest):
    """A script in front of a backend that may wait: what no rule answers is the backend's."""

    def make_backend(self):
        self.behind = GatedBackend()
        tokenizer = ApproxTokenizer()
        voice = SimulatedBackend.from_settings(Settings(ttft_ms=0, itl_ms=0), tokenizer)
        self.scripted = ScriptedBackend(RuleBook(), self.behind, voice, tokenizer)
        self.scripted.add_rules({"match": {"turn": {"min": 1}, "last_user_text": "mine"},
                                 "reply": {"text": "Mine.", "id": "x"}})
        return self.scripted

    def test_rules_and_the_backend_take_turns(self):
        for path, body in (("/v1/chat/completions", dict(CHAT, messages=[{"role": "user", "content": "mine"}])),
                           ("/v1/responses", dict(RESPONSE, input="mine"))):
            for streamed in (False, True):
                with self.subTest(path=path, streamed=streamed):
                    answer = self.request("POST", path, dict(body, stream=streamed))
                    self.assertEqual(answer.status, 200)
                    self.assertIn("Mine", answer.text)
        client = self.connect()
        client.send_request("POST", "/v1/chat/completions", CHAT)
        generation = self.behind.next()
        generation.say("Other.")
        generation.finish()
        self.assertIn("Other.", client.read_answer().text)


class CommandTest(ScriptFiles, unittest.TestCase):

    BAD = '[\n {"reply": "a", "tims": 2},\n {"match": {"modle": "x"}, "reply": "b"}]'

    def check(self, *arguments):
        out = io.StringIO()
        with contextlib.redirect_stdout(out):
            code = main(["--check-script"] + list(arguments))
        return code, out.getvalue().splitlines()

    def test_check_script_names_every_mistake_of_all_files(self):
        bad, good = self.write(self.BAD, "bad.json"), self.write(SCRIPT, "good.json")
        code, lines = self.check("--script", bad, "--script", good)
        self.assertEqual(code, 1)
        self.assertEqual([line.split(": ")[:2] for line in lines[:-1]], [[bad + ":2", "[0].tims"],
            [bad + ":3", "[1].match.modle"]])
        self.assertEqual(lines[-1], "2 mistakes")

    def test_check_script_is_0_without_mistakes(self):
        code, lines = self.check("--script", self.write(SCRIPT + "// end"))
        self.assertEqual((code, lines), (0, ["5 rules, no mistakes"]))
        code, lines = self.check("--script", self.write('[{"reply": "a"}, {"reply": "b"}]'))
        self.assertEqual((code, lines[0][:8], lines[-1]), (0, "warning:", "2 rules, no mistakes"))

    def test_the_same_mistakes_at_the_start_exit_with_2_before_anything_listens(self):
        bad = self.write(self.BAD, "bad.json")
        code, out, err = run_command("--port", "0", "--script", bad)
        self.assertEqual((code, out), (2, ""))
        lines = err.splitlines()
        self.assertEqual([line[:len("mockturtle: error: " + bad)] for line in lines], ["mockturtle: error: " + bad] * 2)
        self.assertNotIn("Traceback", err)

    def test_check_script_needs_a_script(self):
        err = io.StringIO()
        with contextlib.redirect_stderr(err), self.assertRaises(SystemExit) as caught:
            main(["--check-script"])
        self.assertEqual((caught.exception.code, err.getvalue().count("\n")), (2, 1))

    def test_mock_turtle_takes_a_script_and_rules(self):
        with MockTurtle(script=self.write(SCRIPT)) as mock:
            self.assertEqual(len(mock.server.backend.rule_book.rules), 5)
            mock.server.backend.add_rules([{"reply": "x"}])
            self.assertEqual(len(mock.server.backend.rule_book.rules), 6)
        with self.assertRaises(ScriptMistakes):
            MockTurtle(script=self.write(self.BAD))


class OwnBackendTest(ScriptFiles, LiveServerTest):

    def test_a_script_stands_in_front_of_a_backend_out_of_a_file(self):
        path = self.write("from mockturtle import Backend, Finish, TextDelta, Usage\n"
                          "class Own(Backend):\n"
                          "    def generate(self, request, cancel):\n"
                          "        return [(0.0, TextDelta('Own.')), (0.0, Finish('stop')), (0.0, Usage(1, 1))]\n",
                          "own.py")
        values = dict(self._defaults, backend=path + ":Own",
                      script=(self.write('[{"match": {"last_user_text": "mine"}, "reply": "Mine."}]'),))
        self._server = server = RecordingServer(Settings(**values))
        self._serving = threading.Thread(target=server.serve_forever)
        self.addCleanup(self._check_server)
        self.addCleanup(self._stop_server)
        self._serving.start()
        said = [self.request("POST", "/v1/chat/completions", dict(CHAT, messages=[{"role": "user",
            "content": text}])).json()[
            "choices"][0]["message"]["content"] for text in ("mine", "other")]
        self.assertEqual(said, ["Mine.", "Own."])


if __name__ == "__main__":
    unittest.main()
