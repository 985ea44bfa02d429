"""The Vercel AI SDK in a Node process of its own: retries, limits, cut streams, a loop of tools, a stop, over both APIs.

AI_SDK_FOLDER: where .ci/agents/package.json is installed, and this folder's ai_sdk_client.mjs lies beside it.
"""

import json
import os
import subprocess
import threading
import unittest

from server import MockTurtleTestCase

WAIT_S = 20.0
SAID = "One two three four."


class AISDKTests(MockTurtleTestCase):
    mixes_into_tests = True
    mock_settings = {"output_tokens": 6}
    api = None

    @classmethod
    def setUpClass(cls):
        super().setUpClass()
        # it takes the address from the environment, as any process does that a test starts
        cls.node = subprocess.Popen(["node", os.path.join(os.environ["AI_SDK_FOLDER"], "ai_sdk_client.mjs")],
                                    stdin=subprocess.PIPE, stdout=subprocess.PIPE, universal_newlines=True, bufsize=1)
        cls.addClassCleanup(cls.end_node)

    @classmethod
    def end_node(cls):
        cls.node.stdin.close()
        try:
            cls.node.wait(WAIT_S)
        finally:
            cls.node.kill()
            cls.node.stdout.close()
            cls.node.wait(WAIT_S)

    def begin(self, action, **more):
        self.node.stdin.write(json.dumps(dict(more, do=action, api=self.api)) + "\n")

    def end(self):
        """What the program says of the action that runs."""
        late = threading.Timer(WAIT_S, self.node.kill)
        late.start()
        try:
            line = self.node.stdout.readline()
        finally:
            late.cancel()
        self.assertTrue(line, "the program has ended, or had to be")
        return json.loads(line)

    def act(self, action, **more):
        self.begin(action, **more)
        return self.end()

    def assert_told(self, told, **expected):
        self.assertEqual({name: told.get(name) for name in expected}, expected, told)

    def test_a_loop_of_tools(self):
        calls = [{"name": "get_weather", "arguments": {"city": city}} for city in ("Oslo", "Bergen")]
        self.mock.reply(tool_calls=calls, match={"tool_result": None, "tools": "get_weather"})
        self.mock.reply("Both {{tool_result}}.")
        self.assert_told(self.act("generate"), text="Both fair in Bergen.", steps=2, called=["Oslo", "Bergen"])
        self.mock.assert_call_count(2)
        self.mock.assert_called_with(model="gpt-5", last_user_text="What is the weather?")
        self.mock.assert_no_findings()

    def test_it_retries_and_waits(self):
        self.mock.reply("Here.")
        for number, fault in enumerate(("error:status=503,retry_after_s=0.3", "error:status=429,retry_after_s=0.3"), 1):
            with self.subTest(fault=fault):
                self.mock.fault(fault, times=1)
                self.assert_told(self.act("generate", retries=1), text="Here.")
                self.mock.assert_call_count(2 * number)
                self.mock.assert_no_findings()

    def test_it_gives_up_with_the_last_error_inside(self):
        self.mock.fault("error:status=503,retry_after_s=0.1")
        self.assert_told(self.act("generate", retries=2), error="AI_RetryError", reason="maxRetriesExceeded",
                         inner={"error": "AI_APICallError", "status": 503})
        self.mock.assert_call_count(3)
        self.mock.assert_no_findings()

    def test_faults_reach_the_program_as_the_sdks_errors(self):
        for fault, action, error, status, retryable in (
                ("error:status=400", "generate", "AI_APICallError", 400, False),
                ("error:status=401", "generate", "AI_APICallError", 401, False),
                ("error:status=404", "stream", "AI_APICallError", 404, False),
                ("error:status=409", "generate", "AI_APICallError", 409, True),
                ("error:status=429", "stream", "AI_APICallError", 429, True),
                ("error:status=502,body=html", "generate", "AI_APICallError", 502, True),
                ("cut:where=headers", "generate", "AI_APICallError", None, True),
                ("malformed", "generate", "AI_APICallError", 200, False),
                ("malformed", "stream", "AI_JSONParseError", None, None),
                ("cut:event=4", "stream", "AI_APICallError", 200, True)):
            with self.subTest(fault=fault, action=action), self.mock.fault(fault) as set_up:
                self.assert_told(self.act(action), error=error, status=status, retryable=retryable)
                self.assertEqual((set_up.matched, set_up.done), (1, 1))

    def test_a_cut_stream_is_no_whole_answer(self):
        self.mock.reply(SAID)
        self.assert_told(self.act("stream"), text=SAID, finish="stop")
        self.mock.fault("cut:type=%s" % ("finish" if self.api == "chat" else "response.completed"))
        told = self.act("stream")
        self.assertEqual((told["text"], "error" in told, "finish" in told), (SAID, True, False), told)
        self.assertTrue(self.mock.requests[-1].cut_off)

    def test_an_object_and_one_that_does_not_fit(self):
        self.mock.replies([{"json": {"name": "Oslo", "people": 700000}}, {"json": {"name": "Oslo"}}])
        self.assert_told(self.act("object"), object={"name": "Oslo", "people": 700000})
        self.assert_told(self.act("object"), error="AI_NoObjectGeneratedError")

    def test_a_stop_button(self):
        with self.mock.gate("stop", event=6) as gate:
            self.begin("stream")
            gate.wait_reached()
            self.begin("stop")
            self.assert_told(self.end(), aborted=True)
            self.assertTrue(self.mock.requests[0].left, self.mock.requests)
            self.assertEqual(self.mock.requests[0].events_sent, 5)


class ChatTest(AISDKTests, unittest.TestCase):
    api = "chat"


class ResponsesTest(AISDKTests, unittest.TestCase):
    api = "responses"
