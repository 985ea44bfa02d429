"""The server on a file: restarts, kill -9 under load, several servers on one file, and a file that breaks."""
import json
import os
import shutil
import signal
import socket
import tempfile
import threading
import time
import unittest

from backends.contract import Finish, TextDelta, Usage
from server import MockTurtleServer
from settings import Settings
from state.contract import iter_context
from state.sqlite import LEASE_S, SqliteStore
from tests.support import (CHAT, RESPONSE, TIMEOUT_S, ConnectionEnded, DeltaBackend, GatedBackend, LiveServerTest,
                           QuietTestCase, RawClient, RecordingServer, ShiftedClock, every_form, wait_until)
from tests.test_background import read_background_stream
from tests.test_conversations_api import WordBackend, words
from tests.test_process import ServerProcess
from tests.test_sqlite import FaultyConnection, SqliteTest, sqlite3

KILL_ROUNDS = 8
KILL_AFTER_S = (0.25, 0.45)
ENVELOPE_KEYS = {"message", "type", "param", "code"}


class DiskServerTest(QuietTestCase):
    """Servers on one file, as many as a test starts, each for as long as it likes."""

    form_settings = {"transport": "loop"}

    def setUp(self):
        QuietTestCase.setUp(self)
        if sqlite3 is None:
            self.skipTest("this Python has no sqlite3")
        self.folder = tempfile.mkdtemp()
        self.addCleanup(shutil.rmtree, self.folder)
        self.path = os.path.join(self.folder, "store.db")
        self.clock = ShiftedClock()
        self.running = {}               # server -> its thread
        self.clients = []
        self.addCleanup(self.assert_threads_end)
        self.addCleanup(self.stop_all)

    def start(self, backend=None, busy_timeout_s=TIMEOUT_S, **settings):
        values = dict(LiveServerTest._defaults, **self.form_settings)
        values.update(settings)
        store = SqliteStore(self.path, wall=self.clock.time, busy_timeout_s=busy_timeout_s)
        server = RecordingServer(Settings(**values), backend=backend or WordBackend(), store=store, clock=self.clock)
        thread = threading.Thread(target=server.serve_forever, kwargs={"poll_interval": 0.01})
        thread.start()
        self.running[server] = thread
        return server

    def stop(self, server):
        thread = self.running.pop(server)
        server.shutdown()
        thread.join(TIMEOUT_S)
        server.server_close()
        self.assertFalse(thread.is_alive())
        self.assertEqual(server.errors, [])

    def stop_all(self):
        for client in self.clients:
            client.close()
        for server in list(self.running):
            self.stop(server)

    def connect(self, server):
        client = RawClient(server.server_address)
        self.clients.append(client)
        return client

    def ask(self, server, method, path, body=None):
        client = self.connect(server)
        try:
            return client.request(method, path, body)
        finally:
            client.close()

    def post(self, server, body, path="/v1/responses", status=200):
        answer = self.ask(server, "POST", path, body)
        self.assertEqual(answer.status, status, answer.body)
        if status != 200:
            self.assertEqual(set(answer.error), ENVELOPE_KEYS)
        return answer.json()

    def get(self, server, path, status=200):
        answer = self.ask(server, "GET", path)
        self.assertEqual(answer.status, status, answer.body)
        return answer

    def turn(self, server, text="Hi", **more):
        return self.post(server, dict(RESPONSE, input=text, **more))

    def begin_stream(self, server, text="wait", **more):
        """A stream that goes on until its client leaves: (client, its response's id)."""
        client = self.connect(server)
        client.send_request("POST", "/v1/responses", dict(RESPONSE, input=text, stream=True, **more))
        answer = client.read_head()
        self.assertEqual(answer.status, 200)
        return client, client.read_frame(answer).data["response"]["id"]

    def items(self, server, id):
        return self.get(server, "/v1/conversations/%s/items?limit=100&order=asc" % id).json()["data"]

    def break_file(self, server, *statements):
        """Let these statements fail from now on; mend() ends it."""
        store = server.store
        with store._lock:
            if store._db.__class__ is not FaultyConnection:
                store._db = FaultyConnection(store._db)
            store._db.fail = statements

    def mend(self, server):
        server.store._db.fail = None


@every_form
class RestartTest(DiskServerTest):

    def test_a_chain_goes_on_over_restarts(self):
        told, tokens = [], 0
        for number in range(4):
            server = self.start()
            more = {"previous_response_id": told[-1]["id"]} if told else {}
            if number % 2:
                events = self.ask(server, "POST", "/v1/responses", dict(RESPONSE, stream=True, **more)).events()
                told.append(events[-2].data["response"])
            else:
                told.append(self.turn(server, **more))
            self.assertGreater(told[-1]["usage"]["input_tokens"], tokens)
            tokens = told[-1]["usage"]["input_tokens"]
            self.stop(server)
        server = self.start()
        for response in told:
            self.assertEqual(self.get(server, "/v1/responses/" + response["id"]).json(), response)
        items = self.get(server, "/v1/responses/%s/input_items?order=asc" % told[-1]["id"]).json()["data"]
        self.assertEqual([item["role"] for item in items], ["user", "assistant"] * 3 + ["user"])
        self.assertEqual([item for item in items if item["role"] == "assistant"],
                         [item for response in told[:-1] for item in response["output"]])

    def test_stored_chats_and_their_metadata_survive(self):
        server = self.start()
        first, second = (self.post(server, dict(CHAT, store=True, metadata={"n": n}), "/v1/chat/completions")
                         for n in "12")
        self.post(server, {"metadata": {"n": "3"}}, "/v1/chat/completions/" + first["id"])
        before = self.get(server, "/v1/chat/completions").body
        messages = self.get(server, "/v1/chat/completions/%s/messages" % first["id"]).body
        self.stop(server)
        server = self.start()
        self.assertEqual(self.get(server, "/v1/chat/completions").body, before)
        self.assertEqual(self.get(server, "/v1/chat/completions/%s/messages" % first["id"]).body, messages)
        found = self.ask(server, "GET", "/v1/chat/completions?metadata[n]=3").json()["data"]
        self.assertEqual([each["id"] for each in found], [first["id"]])
        self.assertEqual(self.ask(server, "DELETE", "/v1/chat/completions/" + second["id"]).status, 200)
        self.stop(server)
        self.get(self.start(), "/v1/chat/completions/" + second["id"], 404)

    def test_a_conversation_goes_on_where_it_was(self):
        server = self.start()
        id = self.post(server, {"items": [words("First")], "metadata": {"a": "b"}}, "/v1/conversations")["id"]
        self.turn(server, "Second", conversation=id)
        gone = self.items(server, id)[0]["id"]
        self.assertEqual(self.ask(server, "DELETE", "/v1/conversations/%s/items/%s" % (id, gone)).status, 200)
        before, told = self.items(server, id), self.get(server, "/v1/conversations/" + id).body
        self.stop(server)
        server = self.start()
        self.assertEqual(self.items(server, id), before)
        self.assertEqual(self.get(server, "/v1/conversations/" + id).body, told)
        self.turn(server, "Third", conversation=id)
        self.assertEqual([item["content"][0]["text"] for item in self.items(server, id)],
                         ["Second", "Re: Second", "Third", "Re: Third"])

    def test_a_finished_background_response_is_replayed_byte_for_byte(self):
        server = self.start()
        answer = self.ask(server, "POST", "/v1/responses", dict(RESPONSE, background=True, stream=True))
        id = read_background_stream(self, answer.body)[0]["response"]["id"]
        told = self.get(server, "/v1/responses/" + id).body
        self.stop(server)
        server = self.start()
        self.assertEqual(self.get(server, "/v1/responses/%s?stream=true" % id).body, answer.body)
        self.assertEqual(self.get(server, "/v1/responses/" + id).body, told)

    def test_a_background_response_that_the_stop_cut_off_has_failed(self):
        server = self.start()
        parent = self.turn(server)["id"]
        id = self.turn(server, "wait", background=True, previous_response_id=parent)["id"]
        self.stop(server)
        server = self.start()
        told = self.get(server, "/v1/responses/" + id).json()
        self.assertEqual((told["status"], told["error"]["code"], told["output"]), ("failed", "server_error", []))
        self.assertEqual(self.get(server, "/v1/responses/" + id).json(), told)
        self.assertEqual(len(self.get(server, "/v1/responses/%s/input_items" % id).json()["data"]), 3)
        self.assertEqual(self.ask(server, "POST", "/v1/responses/%s/cancel" % id, {}).json(), told)
        self.assertEqual(self.ask(server, "DELETE", "/v1/responses/" + id).status, 200)
        self.get(server, "/v1/responses/" + id, 404)

    def test_a_conversation_is_free_after_a_stop_in_mid_turn(self):
        server = self.start()
        id = self.post(server, {}, "/v1/conversations")["id"]
        self.begin_stream(server, conversation=id)
        self.stop(server)
        server = self.start()
        self.turn(server, "Hi", conversation=id)
        self.assertEqual(len(self.items(server, id)), 2)


@every_form
class SharedFileTest(DiskServerTest):

    def setUp(self):
        DiskServerTest.setUp(self)
        self.one, self.other = self.start(), self.start()

    def test_a_chain_hops_at_every_turn(self):
        told = self.turn(self.one)
        for number in range(10):
            server = (self.other, self.one)[number % 2]
            if number % 3:
                told = self.turn(server, "Turn", previous_response_id=told["id"])
            else:
                events = self.ask(server, "POST", "/v1/responses", dict(
                    RESPONSE, stream=True, previous_response_id=told["id"])).events()
                told = events[-2].data["response"]
        lists = [self.get(server, "/v1/responses/%s/input_items?limit=100" % told["id"]).body
                 for server in (self.one, self.other)]
        self.assertEqual(lists[0], lists[1])
        self.assertEqual(len(json.loads(lists[0])["data"]), 21)

    def test_a_conversation_hops_and_is_locked_for_others_while_one_generates(self):
        id = self.post(self.one, {"items": [words("Put in")]}, "/v1/conversations")["id"]
        for number in range(4):
            self.turn((self.other, self.one)[number % 2], "Turn", conversation=id)
        before = self.items(self.other, id)
        self.assertEqual(len(before), 9)
        client, _ = self.begin_stream(self.one, conversation=id)
        item = "/v1/conversations/%s/items" % id
        for server in (self.one, self.other):
            self.assertEqual(self.post(server, dict(RESPONSE, conversation=id), status=400)["error"]["code"],
                             "conversation_locked")
            self.assertEqual(self.post(server, {"items": [words("More")]}, item, 400)["error"]["code"],
                             "conversation_locked")
        client.close()
        wait_until(lambda: self.ask(self.other, "POST", item, {"items": [words("More")]}).status == 200, "the lock's end")
        self.assertEqual(self.items(self.one, id)[:-1], before)

    def test_what_only_the_owner_can_do_is_409_elsewhere_and_polling_works(self):
        first = self.turn(self.one)["id"]
        for streamed in (False, True):
            with self.subTest(streamed=streamed):
                if streamed:
                    client, id = self.begin_stream(self.one, background=True, previous_response_id=first)
                else:
                    id = self.turn(self.one, "wait", background=True, previous_response_id=first)["id"]
                path = "/v1/responses/" + id
                told = self.get(self.other, path).json()
                self.assertEqual((told["id"], told["status"], told["output"]), (id, "in_progress", []))
                for method, where in (("POST", "/cancel"), ("GET", "?stream=true"), ("DELETE", "")):
                    answer = self.ask(self.other, method, path + where, {} if method == "POST" else None)
                    self.assertEqual((answer.status, set(answer.error)), (409, ENVELOPE_KEYS), (method, where))
                refused = self.post(self.other, dict(RESPONSE, previous_response_id=id), status=400)["error"]
                self.assertIn("in progress", refused["message"])
                self.assertEqual(self.get(self.other, path + "/input_items").body,
                                 self.get(self.one, path + "/input_items").body)
                self.assertEqual(self.post(self.one, {}, path + "/cancel")["status"], "cancelled")
                self.assertEqual(self.get(self.other, path).body, self.get(self.one, path).body)
                self.assertEqual(self.post(self.other, {}, path + "/cancel")["status"], "cancelled")
                self.assertEqual(self.ask(self.other, "DELETE", path).status, 200)
                self.get(self.one, path, 404)

    def test_a_long_running_response_stays_in_progress_elsewhere(self):
        id = self.turn(self.one, "wait", background=True)["id"]
        path = "/v1/responses/" + id
        for _ in range(3):
            self.clock.advance(0.6 * LEASE_S)       # together more than a lease
            before = self.one.store._renewed_s
            self.one.sweep_store()
            wait_until(lambda: self.one.store._renewed_s > before, "the renewal")
            wait_until(lambda: not self.one.store._open, "its commit")
        self.assertEqual(self.get(self.other, path).json()["status"], "in_progress")
        self.assertEqual(self.post(self.one, {}, path + "/cancel")["status"], "cancelled")

    def test_what_one_deletes_the_other_does_not_know(self):
        id = self.turn(self.one)["id"]
        self.assertEqual(self.ask(self.other, "DELETE", "/v1/responses/" + id).status, 200)
        self.get(self.one, "/v1/responses/" + id, 404)
        self.assertEqual(self.post(self.one, dict(RESPONSE, previous_response_id=id), status=400)["error"]["code"],
                         "previous_response_not_found")


@every_form
class BrokenFileTest(DiskServerTest):

    WAYS = (("COMMIT",), ("INSERT INTO nodes",), ("BEGIN", "COMMIT"))

    def responses(self, server):
        return server.store.stats()["responses"]

    def test_a_plain_answer_that_cannot_be_kept_is_503_and_service_goes_on(self):
        server = self.start()
        first = self.turn(server)["id"]
        for number, way in enumerate(self.WAYS):
            for path, body in (("/v1/responses", dict(RESPONSE, previous_response_id=first)),
                               ("/v1/chat/completions", dict(CHAT, store=True))):
                with self.subTest(way=way, path=path):
                    before = self.responses(server)
                    self.break_file(server, *way)
                    self.assertEqual(self.post(server, body, path, 503)["error"]["type"], "server_error")
                    self.mend(server)
                    self.assertEqual(self.responses(server), before)
                    told = self.post(server, body, path)
                    self.assertEqual(self.get(server, path + "/" + told["id"]).json()["id"], told["id"])

    def test_a_cancel_or_delete_that_cannot_be_written_down_is_503_and_stops_it(self):
        steps = [(0.0, TextDelta("Some"))] + [(500.0, Finish()), (500.0, Usage(1, 1))]
        server = self.start(DeltaBackend(steps))
        for method, tail in (("POST", "/cancel"), ("DELETE", "")):
            with self.subTest(method=method):
                made = self.post(server, dict(RESPONSE, background=True))
                self.break_file(server, "BEGIN")
                path = "/v1/responses/" + made["id"]
                self.assertEqual(self.ask(server, method, path + tail).status, 503)
                self.assertEqual(self.get(server, path).json()["status"], "cancelled")
                self.mend(server)
                self.assertEqual(self.ask(server, "DELETE", path).status, 200)
                self.assertEqual(self.get(server, path, 404).status, 404)

    def test_so_is_one_that_takes_its_time(self):
        server = self.start(DeltaBackend([(0.02, TextDelta("Late")), (0.02, Finish()), (0.02, Usage(1, 1))]))
        for way in self.WAYS:
            with self.subTest(way=way):
                self.break_file(server, *way)
                self.post(server, RESPONSE, status=503)
                self.mend(server)
                self.turn(server)
        self.assertEqual(self.responses(server), len(self.WAYS))

    def test_a_stream_that_cannot_be_kept_ends_in_a_failure_without_a_gap(self):
        server = self.start()
        for way in self.WAYS:
            with self.subTest(way=way):
                before = self.responses(server)
                self.break_file(server, *way)
                events = self.ask(server, "POST", "/v1/responses", dict(RESPONSE, stream=True)).events()
                self.mend(server)
                names = [event.name for event in events]
                self.assertEqual(names[-3:], ["error", "response.failed", None])
                self.assertNotIn("response.completed", names)
                self.assertIn("response.output_text.done", names)
                self.assertEqual([event.data["sequence_number"] for event in events[:-1]], list(range(len(events) - 1)))
                self.assertEqual(events[-1].data, "[DONE]")
                failed = events[-2].data["response"]
                self.assertEqual((failed["status"], failed["error"]["code"]), ("failed", "server_error"))
                self.assertEqual(self.responses(server), before)
                self.get(server, "/v1/responses/" + failed["id"], 404)
                self.assertEqual(self.post(server, dict(RESPONSE, previous_response_id=failed["id"]), status=400)[
                    "error"]["code"], "previous_response_not_found")
        events = self.ask(server, "POST", "/v1/responses", dict(RESPONSE, stream=True)).events()
        self.assertEqual(events[-2].name, "response.completed")

    def test_a_stored_chats_stream_ends_in_an_error(self):
        server = self.start()
        for way in self.WAYS:
            with self.subTest(way=way):
                self.break_file(server, *way)
                answer = self.ask(server, "POST", "/v1/chat/completions", dict(CHAT, store=True, stream=True))
                self.mend(server)
                self.assertEqual(list(answer.events()[-1].data), ["error"])
                self.assertEqual(self.get(server, "/v1/chat/completions").json()["data"], [])

    def test_the_conversations_lock_is_not_left_behind(self):
        server, other = self.start(), self.start()
        id = self.post(server, {"items": [words("First")]}, "/v1/conversations")["id"]
        before = self.items(server, id)
        for way in self.WAYS:
            for streamed in (False, True):
                with self.subTest(way=way, streamed=streamed):
                    self.break_file(server, *way)
                    answer = self.ask(server, "POST", "/v1/responses", dict(RESPONSE, conversation=id, stream=streamed))
                    self.mend(server)
                    if answer.status == 200:
                        self.assertEqual(answer.events()[-2].name, "response.failed")
                    else:
                        self.assertEqual(answer.status, 503)
                    self.assertEqual(self.items(server, id), before)
                    added = self.post(server, {"items": [words("More")]}, "/v1/conversations/%s/items" % id)
                    self.assertEqual(self.items(other, id), before + added["data"])
                    self.turn(other, "Turn", conversation=id)
                    before = self.items(other, id)
        self.assertEqual(len(before), 1 + 3 * 2 * 3)

    def test_a_lock_taken_before_the_file_broke_is_let_go_of(self):
        server, other = self.start(), self.start()
        id = self.post(server, {}, "/v1/conversations")["id"]
        client, _ = self.begin_stream(server, conversation=id)
        self.break_file(server, "COMMIT", "BEGIN")
        client.close()
        wait_until(lambda: server.store.conversation(id).owner is None, "the lock's end")
        self.assertIsNotNone(other.store.conversation(id).owner)
        self.mend(server)
        self.turn(server, "Hi", conversation=id)
        wait_until(lambda: other.store.conversation(id).owner is None, "the word of it")
        self.turn(other, "Hi", conversation=id)

    def test_a_background_response_that_cannot_be_begun_is_503_and_goes_nowhere(self):
        server = self.start()
        for way in (("COMMIT",), ("INSERT INTO running",), ("BEGIN",)):
            for streamed in (False, True):
                with self.subTest(way=way, streamed=streamed):
                    self.break_file(server, *way)
                    self.post(server, dict(RESPONSE, input="wait", background=True, stream=streamed), status=503)
                    self.mend(server)
                    wait_until(lambda: not len(server.runs), "its end")
        self.turn(server)
        self.assertEqual(self.responses(server), 1)
        self.assertEqual(server.store._db.execute("SELECT count(*) FROM running").fetchone()[0], 0)

    def test_the_end_of_a_background_response_that_cannot_be_kept_is_told_by_its_server(self):
        backend = GatedBackend()
        server = self.start(backend)
        for way in self.WAYS:
            with self.subTest(way=way):
                id = self.post(server, dict(RESPONSE, background=True))["id"]
                generation = backend.next()
                self.break_file(server, *way)
                generation.say("Half")
                generation.finish()
                path = "/v1/responses/" + id
                wait_until(lambda: self.get(server, path).json()["status"] not in ("queued", "in_progress"), "its end")
                told = self.get(server, path).json()
                self.assertEqual((told["status"], told["output"][0]["content"][0]["text"]), ("failed", "Half"))
                self.mend(server)
                self.assertEqual(self.get(server, path).json(), told)
                self.assertEqual(self.ask(server, "DELETE", path).status, 200)
                self.get(server, path, 404)
                self.assertEqual(self.post(server, dict(RESPONSE, background=True))["status"], "queued")
                generation = backend.next()
                generation.finish()
                generation.over.wait(TIMEOUT_S)
        self.stop(server)

    def test_what_is_not_stored_goes_on_while_the_file_is_broken(self):
        server = self.start()
        kept = self.turn(server)
        self.break_file(server, "BEGIN", "COMMIT")
        for _ in range(3):
            self.assertEqual(self.turn(server, store=False)["status"], "completed")
            self.post(server, CHAT, "/v1/chat/completions")
            events = self.ask(server, "POST", "/v1/responses", dict(RESPONSE, stream=True, store=False)).events()
            self.assertEqual(events[-2].name, "response.completed")
            self.assertEqual(self.get(server, "/v1/responses/" + kept["id"]).json(), kept)
            self.get(server, "/health")
            self.post(server, RESPONSE, status=503)
        self.mend(server)
        self.turn(server)

    def test_while_another_program_locks_the_file_others_are_served_and_then_all(self):
        server = self.start(busy_timeout_s=0.05)
        kept = self.turn(server)["id"]
        other = sqlite3.connect(self.path, timeout=0.01, isolation_level=None)
        self.addCleanup(other.close)
        other.execute("BEGIN EXCLUSIVE")
        self.post(server, dict(RESPONSE, previous_response_id=kept), status=503)
        self.turn(server, store=False, previous_response_id=kept)
        self.post(server, CHAT, "/v1/chat/completions")
        other.execute("ROLLBACK")
        self.turn(server, previous_response_id=kept)

    def test_a_port_that_is_taken_leaves_no_file_open(self):
        taken = socket.create_server(("127.0.0.1", 0))
        self.addCleanup(taken.close)
        with self.assertRaises(OSError):
            MockTurtleServer(Settings(host=("127.0.0.1",), port=taken.getsockname()[1], store="sqlite:" + self.path))


# ---- processes --------------------------------------------------------------------------------

class Told:
    """What clients of a process that gets killed were told, and so must be there."""

    def __init__(self):
        self.bodies = {}            # id -> the response as JSON, complete
        self.begun = set()          # ids of background responses
        self.turns = {}             # conversation -> [ids of its turns], in order

    def add(self, told):
        self.bodies.update(told.bodies)
        self.begun.update(told.begun)
        self.turns.update(told.turns)


class ProcessCase(SqliteTest):

    def process(self, *flags):
        server = ServerProcess("--store", "sqlite:" + self.path, "--ttft-ms", "0", "--itl-ms", "0", "--output-tokens", "12",
                               "--log-level", "warning", "--host", "127.0.0.1", *flags)
        self.addCleanup(server.kill)
        return server


class KillTest(ProcessCase):
    """kill -9 under load, many times, then a look at what is there."""

    def load(self, server, told, stopped):
        """Threads that ask until the server has gone."""
        def plain(client):
            parent = None
            while True:
                answer = client.request("POST", "/v1/responses", dict(RESPONSE, previous_response_id=parent))
                told.bodies[answer.json()["id"]] = answer.json()
                parent = answer.json()["id"]

        def streamed(client):
            parent = None
            while True:
                client.send_request("POST", "/v1/responses", dict(RESPONSE, stream=True, previous_response_id=parent))
                answer = client.read_head()
                while True:
                    event = client.read_frame(answer)
                    if event is None:
                        break
                    if event.name == "response.completed":
                        parent = event.data["response"]["id"]
                        told.bodies[parent] = event.data["response"]

        def background(client):
            while True:
                ids = [client.request("POST", "/v1/responses", dict(RESPONSE, background=True)).json()["id"]
                       for _ in range(3)]
                told.begun.update(ids)
                for id in ids:
                    polled = client.request("GET", "/v1/responses/" + id).json()
                    if polled["status"] == "completed":
                        told.bodies[id] = polled

        def conversation(client):
            id = client.request("POST", "/v1/conversations", {"items": [words("First")]}).json()["id"]
            told.turns[id] = []
            while True:
                answer = client.request("POST", "/v1/responses", dict(RESPONSE, conversation=id))
                told.bodies[answer.json()["id"]] = answer.json()
                told.turns[id].append(answer.json()["id"])

        def run(work):
            client = server.connect()
            try:
                work(client)
            except (ConnectionEnded, OSError):
                if not stopped.is_set():
                    faults.append("%s: the server went away by itself" % work.__name__)
            except Exception as exc:
                faults.append("%s: %r" % (work.__name__, exc))
            finally:
                client.close()
        faults = []
        threads = [threading.Thread(target=run, args=(work,)) for work in (plain, streamed, background, conversation)]
        for thread in threads:
            thread.start()
        return threads, faults

    def test_nothing_that_was_told_is_lost_and_nothing_is_half_there(self):
        told = Told()
        for number in range(KILL_ROUNDS):
            now = Told()
            server = self.process("--transport", ("loop", "threads")[number % 2])
            stopped = threading.Event()
            threads, faults = self.load(server, now, stopped)
            first, last = KILL_AFTER_S
            time.sleep(first + (last - first) * number / KILL_ROUNDS)     # the load's length, not a wait
            stopped.set()
            server.kill()
            for thread in threads:
                thread.join(TIMEOUT_S)
            self.assertEqual(faults, [])
            self.check(now)
            told.add(now)
        self.check(told)
        self.assertEqual(len(told.turns), KILL_ROUNDS)
        self.assertGreater(len(told.bodies), 20 * KILL_ROUNDS)
        self.check_over_the_wire(told)

    def check(self, told):
        store = self.open()
        self.assertEqual(store._db.execute("PRAGMA integrity_check").fetchone()[0], "ok")
        self.account(store)
        for id, body in told.bodies.items():
            node = store.get(id)
            self.assertIsNotNone(node, "%s was told of and is not there" % id)
            self.assertEqual(json.loads(node.body), body)
        for id in told.begun:
            self.assertTrue(store.get(id) is not None or store.running(id) is not None, "%s has vanished" % id)
        for id, turns in told.turns.items():
            chain = [node.id for node in store.conversation(id).head.chain()][::-1]
            self.assertEqual(chain[1:len(turns) + 1], turns)
            self.assertLessEqual(len(chain), len(turns) + 2)      # one more may be there that nobody was told of
            self.assertEqual(len(list(iter_context(store.conversation(id).head, own_output=True))), 2 * len(chain) - 1)
        store._used.clear()
        store.close()

    def check_over_the_wire(self, told):
        clock = ShiftedClock()
        clock.advance(LEASE_S + 1)
        store = SqliteStore(self.path, wall=clock.time)
        server = RecordingServer(Settings(host=("127.0.0.1",), port=0, ttft_ms=0, itl_ms=0, log_level="warning"),
                                 store=store, clock=clock)
        thread = threading.Thread(target=server.serve_forever)
        thread.start()
        try:
            client = RawClient(server.server_address)
            statuses = {}
            for id in told.begun:
                response = client.request("GET", "/v1/responses/" + id).json()
                statuses.setdefault(response["status"], []).append(id)
                self.assertIn(response["status"], ("completed", "failed"))
            self.assertTrue(statuses["completed"])
            for id, turns in told.turns.items():
                answer = client.request("POST", "/v1/responses", dict(RESPONSE, conversation=id))
                self.assertEqual(answer.status, 200, answer.body)       # no lock of a dead process holds
            client.close()
        finally:
            server.shutdown()
            thread.join(TIMEOUT_S)
            server.server_close()
        self.assertEqual(server.errors, [])


class SharedByProcessesTest(ProcessCase):

    def test_a_chain_and_a_conversation_hop_between_processes_that_come_and_go(self):
        servers = [self.process(), self.process()]
        clients = [server.connect() for server in servers]
        id = clients[0].request("POST", "/v1/conversations", {}).json()["id"]
        parent, tokens = None, 0
        for number in range(12):
            client = clients[number % 2]
            body = dict(RESPONSE, previous_response_id=parent)
            if number % 3:
                told = client.request("POST", "/v1/responses", body).json()
            else:
                client.send_request("POST", "/v1/responses", dict(body, stream=True))
                told = client.read_rest(client.read_head())[-2].data["response"]
            self.assertGreater(told["usage"]["input_tokens"], tokens)
            parent, tokens = told["id"], told["usage"]["input_tokens"]
            answer = client.request("POST", "/v1/responses", dict(RESPONSE, conversation=id))
            self.assertEqual(answer.status, 200, answer.body)
            if number == 5:
                clients[1].close()
                servers[1].signal(signal.SIGTERM)
                self.assertEqual(servers[1].wait(), 0)
                servers[1] = self.process()
                clients[1] = servers[1].connect()
        for client in clients:
            items = client.request("GET", "/v1/responses/%s/input_items?limit=100" % parent).json()["data"]
            self.assertEqual(len(items), 23)
            items = client.request("GET", "/v1/conversations/%s/items?limit=100" % id).json()["data"]
            self.assertEqual(len(items), 24)
            client.close()

    def test_what_a_killed_process_held_is_free_and_what_it_generated_has_failed_when_its_lease_is_over(self):
        server = self.process("--ttft-ms", "60000")
        client = server.connect()
        id = client.request("POST", "/v1/conversations", {}).json()["id"]
        response = client.request("POST", "/v1/responses", dict(RESPONSE, background=True, conversation=id)).json()["id"]
        client.close()
        server.kill()
        self.wall.now = time.time()
        store = self.open()
        self.assertEqual((store.conversation(id).owner, store.running(response).ours), (response, False))
        self.wall.now += LEASE_S + 1
        self.assertEqual((store.conversation(id).owner, store.running(response)), (None, None))
        self.assertEqual(json.loads(store.get(response).body)["status"], "failed")


if __name__ == "__main__":
    unittest.main()
