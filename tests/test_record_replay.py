"""Recording over live servers, and playing the recordings in others."""
import json
import os
import shutil
import subprocess
import sys
import tempfile
import threading
import unittest

from api_common import ApiError
from backends.contract import Cancel, Failure, Finish, GenerationRequest, History, TextDelta, TextRun, ToolCallDelta, Usage
from backends.fixture import Recording, iter_fixture, parse_fixture
from backends.neutral import kept_request, neutral_request
from backends.replay import ReplayBackend, load_recordings
from server import MockTurtle, MockTurtleServer
from settings import Settings
from tests import ONE_FILE, ROOT
from tests.support import (CHAT, RESPONSE, TIMEOUT_S, DeltaBackend, GatedBackend, LiveServerTest, RawClient, ShiftedClock,
                           every_form, parse_events, wait_until)
from tests.test_gateway import GatewayTestCase
from tests.websocket_client import WebSocketClient

KEY = "sk-upstream-0123456789"
CLIENT_KEY = "client-secret-77777"
TOOL = {"type": "function", "name": "get_weather", "description": "The weather of a city", "parameters": {
    "type": "object", "properties": {"city": {"type": "string"}}, "required": ["city"]}}
SPEECH = [(0.1, TextDelta("One")), (0.2, TextDelta(" two")), (0.3, TextDelta(" three")), (0.3, Finish()), (0.3, Usage(3, 3))]


def response_text(body):
    return "".join(part["text"] for item in body["output"] if item["type"] == "message" for part in item["content"])


class PlanBackend(DeltaBackend):
    """Its deltas as a list, as the simulated backend gives them."""

    def _deltas(self):
        return list(self.deltas)


class FolderMixin:
    """A folder for recordings. records(): what is in it by now."""

    def new_folder(self):
        folder = tempfile.mkdtemp()
        self.addCleanup(shutil.rmtree, folder, True)
        return folder

    def files(self):
        return sorted(name for name in os.listdir(self.folder) if name.endswith(".json"))

    def records(self, count=1):
        """So many recordings, once they are there, in the order of their names."""
        wait_until(lambda: len(self.files()) >= count, "%d recordings" % count)
        return [parse_fixture(self.read(name)) for name in self.files()]

    def read(self, name):
        with open(os.path.join(self.folder, name), encoding="utf-8") as file:
            return file.read()

    def write(self, name, request, entries=SPEECH, how="complete", error=None, end_s=None, backend="upstream"):
        """A recording by hand. request: a chat's body."""
        neutral = kept_request(neutral_request(GenerationRequest(
            request["model"], History(None, b"", "", list), raw=request)))
        recording = Recording(neutral, list(entries), how, end_s if end_s is not None else entries[-1][0] if entries else 0.0,
                              error, {"backend": backend})
        with open(os.path.join(self.folder, name), "w", encoding="utf-8") as file:
            file.writelines(iter_fixture(recording))

    def replaying(self, **settings):
        """A server of its own that replays the folder; its RawClient."""
        values = dict(self.form_settings, backend="replay", replay=self.folder, heartbeat_s=0, drain_s=5.0)
        values.update(settings)
        mock = MockTurtle(**values)
        mock.start()
        self._threads_before.update(threading.enumerate())
        client = RawClient(mock.server.server_address)
        self.addCleanup(mock.stop)
        self.addCleanup(client.close)
        self.mock = mock
        return client


@every_form
class RecordUpstreamTest(FolderMixin, GatewayTestCase):

    def setUp(self):
        GatewayTestCase.setUp(self)
        self.folder = self.new_folder()

    def start(self, **settings):
        return GatewayTestCase.start(self, record=self.folder, **settings)

    def test_each_delta_is_recorded_with_the_time_at_which_it_came(self):
        clock = ShiftedClock()
        self.start(clock=clock)
        client, request = self.asked(stream=True)
        request.start()
        clock.advance(1)
        request.say("one")
        answer = client.read_head()
        self.next_delta(client, answer)
        clock.advance(2)
        request.say(" two")
        client.read_frame(answer)
        request.finish()
        client.read_rest(answer)
        record, = self.records()
        times = [at_s for at_s, _ in record.entries]
        self.assertEqual([delta for _, delta in record.entries],
                         [TextDelta("one"), TextDelta(" two"), Finish("stop"), Usage(3, 2)])
        self.assertTrue(1 <= times[0] < 2 and 3 <= times[1] < 4, times)
        self.assertEqual((record.how, record.request["messages"]), ("complete", [{"role": "user", "content": "Hello"}]))
        self.assertEqual((record.about["api"], record.about["backend"]), ("responses", "upstream"))

    def test_no_secret_is_in_any_byte_of_the_recordings(self):
        os.environ["REPLAY_TEST_KEY"] = KEY
        self.addCleanup(os.environ.pop, "REPLAY_TEST_KEY")
        for forward, sent in ((False, KEY), (True, CLIENT_KEY)):
            folder = self.folder = self.new_folder()
            self.start(upstream_api_key_env=("REPLAY_TEST_KEY",), upstream_forward_key=forward)
            headers = {"Authorization": "Bearer " + CLIENT_KEY, "Cookie": "session=12345"}
            told = {"model": "m", "metadata": {"key": "sk-metadata-12345"}, "user": "sk-user-12345678",
                    "messages": [{"role": "user", "content": "My key is sk-content-12345 or %s" % sent}],
                    "tools": [{"type": "function", "function": {"name": "f", "description": "Bearer abcdefg123456"}}]}
            client, request = self.asked("/v1/chat/completions", told, headers, stream=True)
            self.assertEqual(request.headers["authorization"], "Bearer " + sent)
            request.start(headers=[("Set-Cookie", "upstream=98765")])
            for piece in (sent[:5], sent[5:11], sent[11:]):
                request.say(piece)
            request.chunk({"tool_calls": [{"index": 0, "id": "call_1", "function": {
                "name": "f", "arguments": '{"k":"sk-argument-12345"}'}}]})
            request.finish()
            self.assertIn("sk-argument-12345", client.read_answer().text)
            client, request = self.asked("/v1/chat/completions", told, headers)
            request.answer({"error": {"message": "Incorrect key %s or sk-error-12345" % sent}}, "401 No")
            client.read_answer()
            self.records(2)
            for name in os.listdir(folder):
                content = self.read(name)
                for secret in (KEY, CLIENT_KEY, "sk-", "12345678", "abcdefg", "98765", sent[-8:]):
                    self.assertNotIn(secret, content)
                self.assertIn("[redacted]", content)
            self._stop_server()

    def test_a_clients_key_that_goes_nowhere_is_not_in_the_recordings_either(self):
        for key, kept in (("Plain-0123-Key", False), ("anything", True)):
            for path, body in (("/v1/responses", {"model": key, "input": "It is " + key}),
                               ("/v1/chat/completions", {"model": key, "messages": [{"role": "user", "content": key}]})):
                self.folder = self.new_folder()
                self.start()
                client, request = self.asked(path, body, {"Authorization": "Bearer " + key})
                self.assertNotIn("authorization", request.headers)
                request.answer({"choices": [{"message": {"content": "You said " + key}}]})
                self.assertIn(key, client.read_answer().text)
                self.records(1)
                told = "".join(self.read(name) for name in os.listdir(self.folder))
                self.assertEqual((key in told, "You said [redacted]" in told), (kept, not kept))
                self._stop_server()

    def test_a_failure_is_recorded_and_replayed_with_its_status_and_headers(self):
        for more in ({}, {"stream": True}):
            client, request = self.asked(**more)
            request.answer({"error": {"message": "slow down", "type": "odd", "code": "c"}}, "429 Slow", [("Retry-After", "7")])
            client.read_answer()
        record = self.records(2)[1]
        self.assertEqual((record.how, record.entries), ("failed", []))
        client = self.replaying()
        for more in ({}, {"stream": True}, {"stream": True}):
            answer = client.request("POST", "/v1/responses", dict(RESPONSE, **more))
            self.assertEqual((answer.status, answer.headers["retry-after"], answer.error), (
                429, "7", {"message": "slow down", "type": "odd", "param": None, "code": "c"}))

    def test_a_cut_stream_fails_in_the_replay_as_well_and_keeps_what_was_said(self):
        client, request = self.asked(stream=True)
        request.start()
        request.say("half")
        self.next_delta(client, client.read_head())
        request.hang_up()
        record, = self.records()
        self.assertEqual((record.how, record.error.status, record.entries[0][1]), ("failed", 502, TextDelta("half")))
        answer = self.replaying().request("POST", "/v1/responses", dict(RESPONSE, stream=True))
        last = parse_events(answer.body)[-2].data["response"]
        self.assertEqual((last["status"], response_text(last)), ("failed", "half"))

    def test_an_exchange_whose_client_leaves_is_marked_and_not_replayed(self):
        client, request = self.asked("/v1/chat/completions", CHAT, stream=True)
        request.start()
        request.say("one")
        client.read_head()
        client.close()
        record, = self.records()
        self.assertEqual((record.how, [delta for _, delta in record.entries]), ("cut", [TextDelta("one")]))
        self.write("other-001.json", {"model": "mock-model", "messages": [{"role": "user", "content": "Bye"}]})
        answer = self.replaying().request("POST", "/v1/chat/completions", CHAT)
        self.assertEqual((answer.status, answer.error["code"]), (404, "recording_not_found"))
        self.assertIn("cut short when its client left", answer.error["message"])

    def test_a_second_attempt_is_part_of_the_same_exchange(self):
        client, request = self.asked()
        request.hang_up()
        request = self.upstream.next()
        request.answer({"choices": [{"message": {"content": "at last"}, "finish_reason": "stop"}]})
        client.read_answer()
        record, = self.records()
        self.assertEqual((record.how, record.entries[0][1]), ("complete", TextDelta("at last")))

    def test_an_upstream_that_is_not_there_is_recorded_as_the_502_that_it_is(self):
        self.upstream.close()
        self.start(upstream_retries=0)
        self.assertEqual(self.request("POST", "/v1/responses", RESPONSE).status, 502)
        self.assertEqual(self.records()[0].error.status, 502)
        self.assertEqual(self.replaying().request("POST", "/v1/responses", RESPONSE).status, 502)

    def test_fields_that_only_the_upstream_understands_are_no_obstacle(self):
        odd = {"model": "m", "messages": [{"role": "ipython", "content": [{"type": "video_url", "video_url": {"url": "x"}}]}],
               "top_logprobs": 50, "frobnicate": True}
        client, request = self.asked("/v1/chat/completions", odd)
        request.answer({"choices": [{"message": {"content": "seen"}, "finish_reason": "stop"}]})
        client.read_answer()
        self.records()
        replay = self.replaying()
        self.assertEqual(replay.request("POST", "/v1/chat/completions", odd).json()["choices"][0]["message"]["content"], "seen")
        self.assertEqual(replay.request("POST", "/v1/chat/completions", dict(odd, frobnicate=False)).status, 400)

    def test_embeddings_tokens_and_completions_are_recorded_and_replayed(self):
        client, request = self.asked("/v1/embeddings", {"model": "e", "input": "sea"})
        request.answer({"object": "list", "data": [{"embedding": [0.5, -0.25]}]})
        embedded = client.read_answer().json()
        client, request = self.asked("/tokenize", {"prompt": "sea"})
        request.answer({"tokens": [1, 2]})
        client.read_answer()
        batch = {"model": "m", "prompt": ["One", "Two"], "max_tokens": 2}
        client, request = self.asked("/v1/completions", batch)
        request.answer({"choices": [{"index": 1, "text": " b", "finish_reason": "stop"},
                                    {"index": 0, "text": " a", "finish_reason": "length"}]})
        said = client.read_answer().json()["choices"]
        self.records(3)
        client = self.replaying()
        self.assertEqual(client.request("POST", "/v1/embeddings", {"model": "e", "input": "sea", "user": "u"}).json(), embedded)
        self.assertEqual(client.request("POST", "/tokenize", {"prompt": "sea"}).json(), {"tokens": [1, 2]})
        self.assertEqual(client.request("POST", "/v1/completions", batch).json()["choices"], said)
        missing = client.request("POST", "/v1/embeddings", {"model": "e", "input": "lake"})
        self.assertEqual((missing.status, missing.error["code"]), (404, "recording_not_found"))
        self.assertIn("'sea' where the request has 'lake'", missing.error["message"])


@every_form
class RecordAnyBackendTest(FolderMixin, LiveServerTest):

    def setUp(self):
        LiveServerTest.setUp(self)
        self.folder = self.new_folder()
        self.settings = {"record": self.folder}

    def test_a_plan_is_recorded_as_it_is_played(self):
        self.start_server(itl_ms=2)
        said = self.request("POST", "/v1/responses", dict(RESPONSE, tools=[TOOL], tool_choice="required")).json()
        record, = self.records()
        calls = [delta for _, delta in record.entries if delta.__class__ is ToolCallDelta]
        self.assertEqual("".join(call.arguments for call in calls), said["output"][0]["arguments"])
        self.assertEqual([round(at_s, 3) for at_s, _ in record.entries[:3]], [0, 0.002, 0.004])
        again = self.replaying().request("POST", "/v1/responses", dict(RESPONSE, tools=[TOOL], tool_choice="required")).json()
        self.assertEqual(again["output"][0]["arguments"], said["output"][0]["arguments"])

    def test_a_plan_whose_client_leaves_is_recorded_as_far_as_it_was_played(self):
        self.start_server(PlanBackend(SPEECH[:2] + [(60.0, TextDelta("late")), (60.0, Finish())]))
        client = self.connect()
        client.send_request("POST", "/v1/chat/completions", dict(CHAT, stream=True))
        answer = client.read_head()
        while "two" not in str(client.read_frame(answer)):
            continue
        self.assertEqual(self.files(), [])
        client.close()
        record, = self.records()
        self.assertEqual((record.how, record.entries), ("cut", [(0.1, TextDelta("One")), (0.2, TextDelta(" two"))]))

    def test_a_generator_of_a_user_is_recorded_with_its_due_times_and_its_faults(self):
        backend = GatedBackend()
        self.start_server(backend)
        client = self.connect()
        client.send_request("POST", "/v1/chat/completions", CHAT)
        generation = backend.next()
        generation.say("x", 0.3)
        generation.finish()
        client.read_answer()
        client.send_request("POST", "/v1/responses", dict(RESPONSE, stream=True))
        generation = backend.next()
        generation.say("half")
        generation.give(Failure(ApiError(503, "down", type="server_error")))
        client.read_answer()
        client.send_request("POST", "/v1/chat/completions", dict(CHAT, stream=True))
        generation = backend.next()
        generation.say("left")
        client.read_head()
        client.close()
        records = {record.how: record for record in self.records(3)}
        self.assertEqual([delta for _, delta in records["cut"].entries], [TextDelta("left")])
        self.assertEqual(records["complete"].entries[0], (0.3, TextDelta("x")))
        self.assertEqual((records["failed"].error.status, records["failed"].entries[0][1]), (503, TextDelta("half")))
        self.assertEqual(records["failed"].about["backend"], "simulated")

    def test_a_plan_that_fails_is_recorded_with_the_time_of_its_failure(self):
        self.start_server(PlanBackend([(0.0, TextDelta("half")), (0.05, Failure(ApiError(503, "down", type="server_error")))]))
        self.assertEqual(self.request("POST", "/v1/chat/completions", CHAT).status, 503)
        record, = self.records()
        self.assertEqual((record.how, record.end_s, record.entries), ("failed", 0.05, [(0.0, TextDelta("half"))]))

    def test_an_exception_is_recorded_as_the_500_that_the_client_saw(self):
        self.start_server(DeltaBackend([ZeroDivisionError("secret detail")], blocking=True))
        self.assertEqual(self.request("POST", "/v1/chat/completions", CHAT).status, 500)
        self.assertEqual(len(self.take_errors()), 1)
        record, = self.records()
        self.assertEqual(record.error.status, 500)
        self.assertNotIn("secret", self.read(self.files()[0]))

    def test_a_disk_that_fails_is_reported_once_and_stops_nothing(self):
        self.start_server()
        os.rename(self.folder, self.folder + "-gone")
        self.addCleanup(shutil.rmtree, self.folder + "-gone", True)
        for _ in range(3):
            self.assertEqual(self.request("POST", "/v1/chat/completions", CHAT).status, 200)
        recorder = self.server.backend._recorder
        wait_until(lambda: recorder.failed == 3, "three failures")
        self.assertEqual(len([line for line in self.server.log_lines if "--record" in line]), 1)
        os.rename(self.folder + "-gone", self.folder)
        self.request("POST", "/v1/chat/completions", CHAT)
        self.assertEqual(len(self.records()), 1)

    def test_a_disk_that_hangs_delays_no_answer(self):
        self.start_server()
        recorder, gate = self.server.backend._recorder, threading.Event()
        self.addCleanup(gate.set)
        write = recorder._write
        recorder._write = lambda tape: gate.wait(3 * TIMEOUT_S) and write(tape)
        for stream in (False, True):
            self.assertEqual(self.request("POST", "/v1/chat/completions", dict(CHAT, stream=stream)).status, 200)
        self.assertEqual(self.files(), [])
        gate.set()
        self.records(2)

    def test_a_stopping_server_writes_what_is_left(self):
        server = self.start_server(DeltaBackend(SPEECH, blocking=True))
        self.request("POST", "/v1/chat/completions", CHAT)
        server.backend._recorder.close()
        self.assertEqual(len(self.files()), 1)

    def test_numbers_go_on_where_another_server_stopped(self):
        self.start_server()
        for _ in range(2):
            self.request("POST", "/v1/chat/completions", CHAT)
        self.records(2)
        taken = self.files()[0].replace("-001.", "-003.")
        self.write(taken, dict(CHAT))
        self.request("POST", "/v1/chat/completions", CHAT)
        self.records(4)
        self.assertEqual([name[-8:-5] for name in self.files()], ["001", "002", "003", "004"])

    def test_what_a_client_says_differently_each_time_has_the_same_name(self):
        self.start_server()
        for date in ("2026-11-29", "May 3, 2027"):
            self.request("POST", "/v1/chat/completions", dict(CHAT, messages=[{"role": "user", "content": "Now: %s" % date}]))
        self.records(2)
        self.assertEqual(len({name[:-8] for name in self.files()}), 1)


@every_form
class ReplayTest(FolderMixin, LiveServerTest):

    def setUp(self):
        LiveServerTest.setUp(self)
        self.folder = self.new_folder()

    def chat(self, text, **more):
        return dict({"model": "m", "messages": [{"role": "user", "content": text}]}, **more)

    def replay(self, **settings):
        self.settings = dict(settings, backend="replay", replay=self.folder)
        return self.start_server()

    def said(self, text, **more):
        answer = self.request("POST", "/v1/chat/completions", self.chat(text, **more))
        return answer.json()["choices"][0]["message"]["content"] if answer.status == 200 else answer.error["code"]

    def speech(self, text):
        return [(0.0, TextDelta(text)), (0.0, Finish())]

    def test_recordings_of_one_request_are_played_in_order_and_the_last_repeats(self):
        for name, text in (("a-2.json", "second"), ("a-10.json", "third"), ("a-1.json", "first")):
            self.write(name, self.chat("Hi"), self.speech(text))
        self.replay()
        self.assertEqual([self.said("Hi") for _ in range(4)], ["first", "second", "third", "third"])
        self.server.reset()
        self.assertEqual([self.said("Hi") for _ in range(2)], ["first", "second"])

    def test_an_exact_recording_goes_before_one_that_is_only_alike(self):
        self.write("a-1.json", self.chat("On 2026-11-29"), self.speech("one"))
        self.write("a-2.json", self.chat("On 2026-11-30"), self.speech("two"))
        self.replay()
        self.assertEqual([self.said("On 2026-11-30"), self.said("On 2026-11-30"), self.said("On 2026-12-24")],
                         ["two", "two", "one"])

    def test_exact_matching_passes_over_nothing(self):
        self.write("a-1.json", self.chat("On 2026-11-29"), self.speech("one"))
        self.replay(replay_match="exact")
        self.assertEqual([self.said("On 2026-11-29", user="me"), self.said("On 2026-11-30")], ["one", "recording_not_found"])

    def test_a_request_without_a_recording_is_told_the_nearest_and_what_differs(self):
        for number in range(20):
            self.write("a%d-1.json" % number, self.chat("Tell me of river number %d, please" % number, temperature=0.5))
        self.replay()
        answer = self.request("POST", "/v1/chat/completions", self.chat("Tell me of river number 7, please", temperature=0.7,
                                                                        stream=True))
        self.assertEqual((answer.status, answer.error["type"], answer.error["code"]), (404, "replay_error", "recording_not_found"))
        self.assertIn("a7-1.json: at 'fields.temperature' it has 0.5 where the request has 0.7", answer.error["message"])
        self.assertEqual(self.count("errors_4xx"), 1)

    def test_what_has_no_recording_can_be_simulated(self):
        self.write("a-1.json", self.chat("Hi"), self.speech("recorded"))
        self.replay(replay_fallback="simulated")
        self.assertEqual(self.said("Hi"), "recorded")
        self.assertGreater(len(self.said("Ho")), 8)
        self.assertEqual(self.request("POST", "/v1/embeddings", {"model": "m", "input": "x"}).status, 200)

    def test_a_recorded_chat_answers_responses_streams_background_and_websockets(self):
        self.write("a-1.json", self.chat("Hi"), [(0.0, TextDelta("One")), (0.01, TextDelta(" two")), (0.01, Finish())])
        self.replay()
        body = {"model": "m", "input": "Hi"}
        self.assertEqual(response_text(self.request("POST", "/v1/responses", body).json()), "One two")
        events = self.stream("/v1/responses", body)
        self.assertEqual([event.data["delta"] for event in events if event.name == "response.output_text.delta"], ["One", " two"])
        id = self.request("POST", "/v1/responses", dict(body, background=True)).json()["id"]
        done = wait_until(lambda: (lambda got: got if got["status"] == "completed" else None)(
            self.request("GET", "/v1/responses/" + id).json()), "the background response")
        self.assertEqual(response_text(done), "One two")
        client = WebSocketClient(self.address)
        self._clients.append(client)
        client.handshake()
        client.create(model="m", input="Hi")
        self.assertEqual(response_text(client.read_turn()[-1]["response"]), "One two")

    def test_a_recorded_failure_comes_at_its_time_over_every_way(self):
        self.write("a-1.json", self.chat("Hi"), (), "failed", ApiError(429, "slow", code="c"), 0.05)
        self.replay()
        body = {"model": "m", "input": "Hi"}
        for more in ({}, {"stream": True}):
            answer = self.request("POST", "/v1/responses", dict(body, **more))
            self.assertEqual((answer.status, answer.error["code"]), (429, "c"))
        id = self.request("POST", "/v1/responses", dict(body, background=True)).json()["id"]
        wait_until(lambda: self.request("GET", "/v1/responses/" + id).json()["status"] == "failed", "the failure")
        client = WebSocketClient(self.address)
        self._clients.append(client)
        client.handshake()
        client.create(model="m", input="Hi")
        event = client.read_event()
        self.assertEqual((event["type"], event["error"]["code"]), ("error", "c"))

    def test_a_failure_behind_the_commit_grace_is_told_inside_the_stream(self):
        self.write("a-1.json", self.chat("Hi"), (), "failed", ApiError(504, "late", type="upstream_error"), 15.0)
        self.replay(replay_speed=1000.0)
        events = self.stream("/v1/responses", {"model": "m", "input": "Hi"})
        self.assertEqual(events[-2].data["response"]["status"], "failed")

    def test_the_models_are_those_of_the_recordings(self):
        self.write("a-1.json", self.chat("Hi"))
        self.write("b-1.json", self.chat("Hi", model="other"))
        self.replay(strict_models=True)
        self.assertEqual([model["id"] for model in self.request("GET", "/v1/models").json()["data"]], ["m", "other"])
        self.assertNotIn("mock-model", self.request("GET", "/metrics").text)
        self.assertEqual(self.request("GET", "/v1/models/other").status, 200)

    def test_a_page_in_a_browser_is_not_answered_without_a_key(self):
        self.write("a-1.json", self.chat("Hi"))
        self.replay()
        self.assertEqual(self.request("GET", "/v1/models", headers={"Host": "evil.example"}).status, 403)
        self.assertNotIn("access-control-allow-origin", self.request("GET", "/v1/models", headers={
            "Origin": "http://evil.example"}).headers)


class ReplayPlanTest(FolderMixin, unittest.TestCase):
    """Without a server."""

    REQUEST = {"model": "m", "messages": [{"role": "user", "content": "Hi"}]}

    def setUp(self):
        self.folder = self.new_folder()

    def plan(self, **settings):
        backend = ReplayBackend.from_settings(Settings(backend="replay", replay=self.folder, **settings), None)
        return backend.generate(GenerationRequest("m", History(1, b"", "", list), raw=self.REQUEST), Cancel())

    def pieces(self, plan):
        out = []
        for due_s, delta in plan:
            out += list(zip(delta.dues, delta.pieces)) if delta.__class__ is TextRun else [(due_s, delta.__class__)]
        return out

    def test_times_are_the_recorded_ones_or_faster_by_a_factor(self):
        self.write("a-1.json", self.REQUEST)
        for speed in (1, 2, 0.5, 0):
            rate = 1 / speed if speed else 0
            self.assertEqual(self.pieces(self.plan(replay_speed=speed)), [
                (0.1 * rate, "One"), (0.2 * rate, " two"), (0.3 * rate, " three"), (0.3 * rate, Finish), (0.3 * rate, Usage)])

    def test_a_time_scale_counts_as_well(self):
        self.write("a-1.json", self.REQUEST)
        self.assertEqual(self.pieces(self.plan(time_scale=0.5, replay_speed=5))[1], (0.2 * 0.1, " two"))

    def test_choices_that_interleave_and_log_probabilities_stay_apart(self):
        entries = [(0.1, TextDelta("a")), (0.1, TextDelta("b", None, 1)), (0.2, TextDelta("c", [{"token": "c"}])),
                   (0.3, TextDelta("d", None, 1)), (0.3, TextDelta("e", None, 1)), (0.4, Finish("stop", 1))]
        self.REQUEST = dict(self.REQUEST, n=2)
        self.write("a-1.json", self.REQUEST, entries)
        plan = self.plan()
        self.assertEqual(plan[:3], entries[:3])
        self.assertEqual((plan[3][1].pieces, plan[3][1].choice), (["d", "e"], 1))

    def test_a_folder_that_is_none_or_has_none_is_refused(self):
        for folder, words in ((self.folder, "no recordings"), (self.folder + "-not-there", "No such file")):
            with self.assertRaisesRegex(ValueError, words):
                load_recordings(folder)
        self.write("a-1.json", self.REQUEST, how="cut")
        with self.assertRaisesRegex(ValueError, "but 1 that were cut short"):
            load_recordings(self.folder)

    def test_files_that_are_none_are_named_and_end_the_command(self):
        self.write("good-1.json", self.REQUEST)
        for name, text in (("bad.json", "{"), ("worse.json", '{"format": "x"}'), ("notes.txt", "no"), (".hidden.json", "no")):
            with open(os.path.join(self.folder, name), "w", encoding="utf-8") as file:
                file.write(text)
        done = subprocess.run([sys.executable, ONE_FILE or os.path.join(ROOT, "server.py"), "--port", "0", "--backend", "replay",
                               "--replay", self.folder], stdout=subprocess.PIPE, stderr=subprocess.PIPE, timeout=60)
        lines = done.stderr.decode().splitlines()
        self.assertEqual((done.returncode, len(lines)), (2, 1))
        self.assertIn("bad.json: it is not JSON: line 1: ", lines[0])
        self.assertIn('worse.json: its "format" is "x"', lines[0])
        self.assertNotIn("notes", lines[0])

    def test_settings_that_do_not_go_together(self):
        for values, words in (({"backend": "replay"}, "--backend replay needs --replay DIR"),
                              ({"replay": self.folder}, "--replay needs --backend replay"),
                              ({"record": os.path.join(ROOT, "README.md")}, "--record .*README.md: "),
                              ({"backend": "replay", "replay": self.folder, "record": self.folder + "/"}, "two folders")):
            with self.subTest(values=values):
                with self.assertRaisesRegex(ValueError, words):
                    MockTurtleServer(Settings(port=0, **values))


class ParityTest(FolderMixin, LiveServerTest):
    """Whatever the simulated backend says is said again, plain and streamed."""

    CHAT_TOOL = {"type": "function", "function": dict(name="f", parameters=TOOL["parameters"])}
    REQUESTS = (
        ("/v1/chat/completions", {"n": 3}), ("/v1/chat/completions", {"logprobs": True, "top_logprobs": 2, "n": 2}),
        ("/v1/chat/completions", {"tools": [CHAT_TOOL], "tool_choice": "required"}),
        ("/v1/chat/completions", {"functions": [CHAT_TOOL["function"]], "function_call": {"name": "f"}}),
        ("/v1/chat/completions", {"reasoning_effort": "minimal", "max_tokens": 40}), ("/v1/chat/completions", {"call": "x"}),
        ("/v1/responses", {"reasoning": {"effort": "minimal", "summary": "auto"}}),
        ("/v1/responses", {"tools": [{"type": "web_search"}], "tool_choice": {"type": "web_search"}}),
        ("/v1/responses", {"tools": [{"type": "code_interpreter", "container": {"type": "auto"}}], "tool_choice": "required"}),
        ("/v1/responses", {"tools": [{"type": "custom", "name": "c"}], "tool_choice": "required"}),
        ("/v1/responses/compact", {}),
        ("/v1/completions", {"prompt": ["A b", "C d"], "echo": True, "logprobs": 2, "max_tokens": 4}),
        ("/v1/completions", {"prompt": [1, 2, 3], "n": 2, "max_tokens": 4}))
    OWN = ("id", "created", "created_at", "completed_at", "item_id", "call_id", "container_id", "encrypted_content")

    def setUp(self):
        LiveServerTest.setUp(self)
        self.folder = self.new_folder()

    def neutral(self, value):
        if isinstance(value, list):
            return [self.neutral(each) for each in value]
        if not isinstance(value, dict):
            return value
        return {key: self.neutral(each) for key, each in value.items() if key not in self.OWN}

    def said(self, client):
        said = []
        for path, more in self.REQUESTS:
            body = dict(CHAT if "chat" in path else RESPONSE if "responses" in path else {"model": "m"}, **more)
            for stream in (False, True) if path != "/v1/responses/compact" else (False,):
                answer = client.request("POST", path, dict(body, stream=True) if stream else body)
                self.assertEqual(answer.status, 200, answer.body)
                said.append(self.neutral([event.data for event in answer.events()] if stream else answer.json()))
        return said

    def test_what_was_said_is_said_again(self):
        self.settings = {"record": self.folder}
        recorded = self.said(self.connect())
        self.records(2 * len(self.REQUESTS) + 1)
        for before, after in zip(recorded, self.said(self.replaying())):
            self.assertEqual(after, before)


@every_form
class ChainTest(FolderMixin, LiveServerTest):
    """Our own server as the upstream; a chain through the gateway, then the same script in a fresh server."""

    def setUp(self):
        LiveServerTest.setUp(self)
        self.folder = self.new_folder()

    def script(self, client, date, how):
        """Three turns, a tool call among them: what was said. how: fields of every request."""
        def turn(**more):
            answer = client.request("POST", "/v1/responses", dict(dict(how, model="m", tools=[TOOL]), **more))
            self.assertEqual(answer.status, 200, answer.body)
            if not how.get("stream"):
                return answer.json()
            return [event.data["response"] for event in parse_events(answer.body) if event.name == "response.completed"][0]
        first = turn(input="It is %s. What is the weather in Oslo?" % date, instructions="Run of %s." % date)
        call = first["output"][0]
        second = turn(previous_response_id=first["id"], input=[
            {"type": "function_call_output", "call_id": call["call_id"], "output": "18 degrees at %s, request req_%s" % (
                date, first["id"][-12:])}])
        third = turn(previous_response_id=second["id"], input="And tomorrow, in words?")
        ids = [first["id"], second["id"], third["id"], call["call_id"]]
        return [call["name"], call["arguments"], response_text(second), third["output"], third["usage"]], ids

    def test_a_chain_is_replayed_for_the_same_script(self):
        behind = MockTurtle(output_tokens=12)
        behind.start()
        self.addCleanup(behind.stop)
        self._threads_before.update(threading.enumerate())
        self.settings = {"backend": "upstream", "upstream_url": (behind.base_url,), "record": self.folder}
        recorded, ids = self.script(self.connect(), "2026-11-29T10:00:00Z", {})
        self.records(3)
        replay = self.replaying()
        for date, how in (("2027-01-02T03:04:05Z", {}), ("2027-01-02T03:04:05Z", {"stream": True})):
            played, others = self.script(replay, date, how)
            self.assertEqual(self.without_ids(played), self.without_ids(recorded))
            self.assertFalse(set(ids[:3]) & set(others[:3]))
        self.assertEqual(self.mock.server.metrics.get("errors_4xx"), 0)

    def without_ids(self, said):
        said = json.loads(json.dumps(said))
        for item in said[3]:
            item.pop("id")
        return said


if __name__ == "__main__":
    unittest.main()
