"""Gates: answers wait at an event until a test opens them, are seen to wait, and fail when nobody opens."""
import threading
import unittest

from tests.support import (CHAT, RESPONSE, TIMEOUT_S, FakeClock, GatedBackend, LiveServerTest, every_form, wait_until)
from tests.websocket_client import WebSocketClient
from transport.gates import GATES_KEPT, Gates


class Waiter:
    def __init__(self):
        self.woken = 0

    def wake(self):
        self.woken += 1


class GatesTest(unittest.TestCase):

    def setUp(self):
        self.clock = FakeClock()
        self.gates = Gates(30.0, self.clock.monotonic)

    def test_who_reaches_a_shut_gate_waits_until_it_is_opened(self):
        waiter = Waiter()
        self.assertFalse(self.gates.reach("a", waiter, {"path": "/x"}))
        self.clock.advance(2)
        self.assertEqual(self.gates.report("a"), {"object": "gate", "name": "a", "opened": False, "reached": 1,
                                                  "waiting": [{"path": "/x", "waiting_s": 2.0}]})
        self.assertTrue(self.gates.holds("a", waiter))
        self.assertEqual(self.gates.open("a"), 1)
        self.assertEqual((waiter.woken, self.gates.holds("a", waiter)), (1, False))

    def test_an_opened_gate_lets_all_pass_until_it_is_shut(self):
        self.gates.open("a")
        self.assertTrue(self.gates.reach("a", Waiter(), {}))
        self.gates.shut("a")
        self.assertFalse(self.gates.reach("a", Waiter(), {}))
        self.assertEqual(self.gates.reached("a"), 2)

    def test_clear_lets_go_of_all(self):
        waiter, told = Waiter(), []
        self.gates.reach("a", waiter, {})
        self.gates.watch("b", lambda: told.append(1))
        self.gates.clear()
        self.assertEqual((waiter.woken, told, self.gates.report()), (1, [1], []))

    def test_a_test_waits_until_a_gate_is_reached(self):
        reached = []
        thread = threading.Thread(target=lambda: reached.append(self.gates.wait("a", TIMEOUT_S, 2)))
        thread.start()
        self.gates.reach("a", Waiter(), {})
        self.gates.reach("a", Waiter(), {})
        thread.join(TIMEOUT_S)
        self.assertEqual(reached, [True])
        self.assertFalse(self.gates.wait("b", 0.01))

    def test_who_leaves_waits_no_more(self):
        waiter = Waiter()
        self.gates.reach("a", waiter, {})
        self.gates.leave("a", waiter)
        self.assertEqual((self.gates.open("a"), waiter.woken), (0, 0))

    def test_names_are_bounded_and_gates_with_waiters_stay(self):
        self.gates.reach("first", Waiter(), {})
        for number in range(GATES_KEPT + 5):
            self.gates.open("gate%d" % number)
        names = [each["name"] for each in self.gates.report()]
        self.assertEqual((len(names), names[0]), (GATES_KEPT, "first"))


@every_form
class GatesLiveTest(LiveServerTest):
    settings = {"output_tokens": 6, "heartbeat_s": 0.02, "journal": 20}

    def ask(self, gate, path="/v1/chat/completions", body=CHAT, stream=True, **headers):
        client = self.connect()
        client.send_request("POST", path, dict(body, stream=stream), dict({"x-mockturtle-gate": gate}, **headers))
        return client

    def test_a_stream_waits_and_its_heartbeats_go_on(self):
        client = self.ask("stop@3")
        answer = client.read_head()
        events = [client.read_frame(answer) for _ in range(5)]
        self.assertEqual([event.name for event in events], [None, None, ":", ":", ":"])
        self.assertEqual(self.request("POST", "/_mockturtle/gates/stop/open").json()["released"], 1)
        self.assertEqual(len(client.read_rest(answer)), 7)

    def test_a_gate_that_was_opened_before_holds_nobody(self):
        self.server.gates.open("stop")
        self.assertEqual(len(self.ask("stop@3").read_answer().events()), 9)

    def test_two_gates_one_after_the_other(self):
        client = self.ask("one@2,two@4")
        answer = client.read_head()
        for name, count in (("one", 1), ("two", 2)):
            self.assertTrue(self.server.gates.wait(name, TIMEOUT_S))
            found = [client.read_frame(answer) for _ in range(count)]
            self.assertEqual([event.name for event in found if event.name != ":"], [None] * len(
                [event for event in found if event.name != ":"]))
            self.server.gates.open(name)
        self.assertEqual(client.read_rest(answer)[-1].data, "[DONE]")

    def test_a_client_that_leaves_frees_it(self):
        client = self.ask("stop@3")
        self.assertTrue(self.server.gates.wait("stop", TIMEOUT_S))
        client.close()
        wait_until(lambda: not self.server.gates.report("stop")["waiting"], "the gate to be free")
        entry, = self.server.journal.entries()
        wait_until(lambda: entry.left, "the journal to know it")
        self.assertEqual(entry.counted.events, 2)

    def test_a_plain_answer_waits_before_it_is_made(self):
        client = self.ask("stop@9", "/v1/responses", RESPONSE, False)
        self.assertTrue(self.server.gates.wait("stop", TIMEOUT_S))
        self.assertEqual(self.count("completions"), 0)
        self.server.gates.open("stop")
        self.assertEqual(client.read_answer().json()["status"], "completed")

    def test_an_answer_of_any_path_may_wait(self):
        client = self.connect()
        client.send_request("GET", "/v1/models", headers={"x-mockturtle-gate": "stop"})
        self.assertTrue(self.server.gates.wait("stop", TIMEOUT_S))
        self.server.gates.open("stop")
        self.assertEqual(client.read_answer().json()["object"], "list")

    def test_reset_lets_go_of_who_waits(self):
        client = self.ask("stop@3")
        self.assertTrue(self.server.gates.wait("stop", TIMEOUT_S))
        self.assertEqual(self.request("POST", "/_mockturtle/reset").status, 200)
        self.assertEqual(len(client.read_answer().events()), 9)

    def test_waiting_until_it_is_reached_holds_no_worker(self):
        watchers = [self.connect() for _ in range(3)]
        for watcher in watchers:
            watcher.send_request("GET", "/_mockturtle/gates/stop?wait_s=100")
        wait_until(lambda: len(self.server.player.plays) == 3, "the watchers")
        client = self.ask("stop@2")
        for watcher in watchers:
            told = watcher.read_answer().json()
            self.assertEqual((told["reached"], told["waiting"][0]["events_sent"]), (1, 1))
        client.close()

    def test_waiting_ends_when_its_time_is_over(self):
        self.assertEqual(self.request("GET", "/_mockturtle/gates/never?wait_s=1").json()["reached"], 0)
        self.assertEqual(self.request("GET", "/_mockturtle/gates/never?wait_s=x").status, 400)
        self.assertEqual(self.request("GET", "/_mockturtle/gates/a%20b").status, 400)

    def test_who_waits_for_a_gate_and_leaves_is_forgotten(self):
        watcher = self.connect()
        watcher.send_request("GET", "/_mockturtle/gates/stop?wait_s=100")
        wait_until(lambda: self.server.player.plays, "the watcher")
        watcher.close()
        wait_until(lambda: not self.server.player.plays, "its end")


class TimeoutTest(LiveServerTest):
    settings = {"output_tokens": 6, "gate_timeout_s": 0.05}

    def test_a_stream_fails_with_the_apis_own_error(self):
        events = self.stream("/v1/chat/completions", CHAT, {"x-mockturtle-gate": "never@4"})
        # the fourth was made already
        self.assertEqual((len(events), events[-1].data["error"]["code"]), (5, "gate_timeout"))
        self.assertIn("'never' was not opened within 0.05 s", events[-1].data["error"]["message"])

    def test_a_response_has_failed_and_tells_no_more_than_was_sent(self):
        events = self.stream("/v1/responses", RESPONSE, {"x-mockturtle-gate": "never@7"})
        self.assertEqual([event.name for event in events[-3:]], ["error", "response.failed", None])
        failed = events[-2].data["response"]
        said = "".join(event.data["delta"] for event in events if event.name == "response.output_text.delta")
        self.assertEqual(failed["output"][0]["content"][0]["text"], said)
        self.assertEqual([event.data["sequence_number"] for event in events[:-1]], list(range(len(events) - 1)))
        self.assertEqual(self.request("GET", "/v1/responses/" + failed["id"]).json()["status"], "failed")

    def test_a_plain_answer_is_a_504_that_is_not_to_be_retried(self):
        for path, body in (("/v1/responses", RESPONSE), ("/v1/chat/completions", CHAT)):
            answer = self.request("POST", path, body, {"x-mockturtle-gate": "never"})
            self.assertEqual((answer.status, answer.error["code"], answer.headers["x-should-retry"]),
                             (504, "gate_timeout", "false"))
        self.assertEqual(self.request("GET", "/v1/models", headers={"x-mockturtle-gate": "never"}).status, 504)
        self.assertEqual(self.count("completions"), 0)

    def test_a_background_response_fails(self):
        body = dict(RESPONSE, background=True)
        id = self.request("POST", "/v1/responses", body, {"x-mockturtle-gate": "never@3"}).json()["id"]
        wait_until(lambda: self.request("GET", "/v1/responses/" + id).json()["status"] == "failed")

    def test_on_a_websocket(self):
        client = WebSocketClient(self.address)
        self._clients.append(client)
        self.assertEqual(client.handshake({"x-mockturtle-gate": "never@5"}).status, 101)
        client.create()
        events = client.read_turn()
        self.assertEqual((events[-1]["type"], events[-1]["response"]["error"]["message"][:17]),
                         ("response.failed", "The gate 'never' "))

    def test_a_backend_that_waits_is_called_off(self):
        backend = GatedBackend()
        self.start_server(backend)
        for path, body in (("/v1/chat/completions", CHAT), ("/v1/responses", RESPONSE)):
            client = self.connect()
            client.send_request("POST", path, dict(body, stream=True), {"x-mockturtle-gate": "never@2"})
            generation = backend.next()
            generation.say("one")
            generation.say(" two")
            answer = client.read_answer()
            self.assertIn("gate_timeout" if body is CHAT else "server_error", answer.text.rsplit('"error":', 1)[1])
            self.assertTrue(generation.cancelled.wait(TIMEOUT_S))
            self.assertTrue(generation.over.wait(TIMEOUT_S))


class BlockingGateTest(LiveServerTest):

    def test_a_backend_that_waits_feeds_what_stands_at_a_gate(self):
        backend = GatedBackend()
        self.start_server(backend, heartbeat_s=0.02)
        client = self.connect()
        client.send_request("POST", "/v1/chat/completions", dict(CHAT, stream=True), {"x-mockturtle-gate": "stop@3"})
        generation = backend.next()
        for word in ("one", " two", " three"):
            generation.say(word)
        generation.finish()
        self.assertTrue(self.server.gates.wait("stop", TIMEOUT_S))
        self.assertTrue(generation.over.wait(TIMEOUT_S))
        self.server.gates.open("stop")
        self.assertEqual(len(client.read_answer().events()), 6)


if __name__ == "__main__":
    unittest.main()
