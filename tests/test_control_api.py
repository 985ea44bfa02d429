"""The test author's paths: faults, the journal, settings and reset by control call; who may call; heartbeats by header."""
import unittest

from tests.support import CHAT, RESPONSE, TIMEOUT_S, LiveServerTest, ShiftedClock, every_form, wait_until
from tests.websocket_client import WebSocketClient

SECRET = "sk-very-secret"


class FaultsByCallTest(LiveServerTest):

    def post(self, body):
        return self.request("POST", "/_mockturtle/faults", body)

    def chat(self):
        return self.request("POST", "/v1/chat/completions", CHAT)

    def test_a_fault_stands_for_so_many_requests_and_says_so(self):
        added = self.post({"fault": "error:status=503", "times": 2}).json()["data"]
        self.assertEqual([(each["kind"], each["times_left"]) for each in added], [("error", 2)])
        self.assertEqual([self.chat().status for _ in range(3)], [503, 503, 200])
        told = self.request("GET", "/_mockturtle/faults").json()["data"]
        self.assertEqual([(each["id"], each["times_left"], each["done"]) for each in told], [(added[0]["id"], 0, 2)])

    def test_objects_lists_and_choices(self):
        for body, count in (({"kind": "cut", "event": 3, "times": 1}, 1), ({"fault": ["close", "sse"], "endpoint": "chat"}, 2),
                            ({"fault": {"kind": "stall", "ms": 5}, "model": "m"}, 1)):
            self.assertEqual(len(self.post(body).json()["data"]), count)

    def test_one_and_all_are_deleted(self):
        first, second = self.post({"fault": ["error", "close"]}).json()["data"]
        self.assertTrue(self.request("DELETE", "/_mockturtle/faults/" + first["id"]).json()["deleted"])
        self.assertEqual(self.request("DELETE", "/_mockturtle/faults/" + first["id"]).status, 404)
        self.assertEqual(self.chat().status, 200)
        self.assertEqual(self.request("DELETE", "/_mockturtle/faults").json()["data"], [])

    def test_a_mistake_is_named_and_nothing_stands(self):
        for body, param in (({"fault": "boom"}, "fault"), ({"fault": "error", "tims": 1}, "tims"), ({}, "fault"),
                            ({"kind": "cut", "evnt": 1}, "fault"), ({"fault": "error", "times": 0}, "fault"),
                            ({"fault": ["close", "boom"]}, "fault")):
            answer = self.post(body)
            self.assertEqual((answer.status, answer.error["param"]), (400, param), body)
        self.assertEqual(self.request("POST", "/_mockturtle/faults", body=b"{").status, 400)
        self.assertEqual(self.request("GET", "/_mockturtle/faults").json()["data"], [])

    def test_a_fault_is_not_used_up_twice_by_a_request_that_goes_to_a_worker(self):
        self.post({"fault": "slow_headers:ms=1", "times": 2})
        long = dict(CHAT, max_tokens=6000, ignore_eos=True)
        self.assertEqual(self.request("POST", "/v1/chat/completions", long).status, 200)
        self.assertEqual(self.request("GET", "/_mockturtle/faults").json()["data"][0]["times_left"], 1)


@every_form
class JournalLiveTest(LiveServerTest):
    settings = {"journal": 5, "output_tokens": 4}

    def entries(self, query=""):
        return self.request("GET", "/_mockturtle/requests" + query).json()["data"]

    def test_what_came_and_what_was_sent(self):
        self.request("POST", "/v1/chat/completions", CHAT, {"x-mockturtle-fault": "slow_headers:ms=1"})
        self.stream("/v1/responses", RESPONSE)
        self.request("POST", "/v1/responses", {"model": 3})
        plain, stream, refused = self.entries()
        self.assertEqual((plain["method"], plain["path"], plain["body"], plain["status"], plain["faults"], plain["model"]),
                         ("POST", "/v1/chat/completions", CHAT, 200, ["slow_headers:ms=1"], "mock-model"))
        self.assertEqual((plain["answer"]["object"], plain["usage"]["completion_tokens"], plain["events_sent"]),
                         ("chat.completion", 4, None))
        self.assertEqual((stream["streamed"], stream["events_sent"], stream["events"][0], stream["events"][-1]),
                         (True, 13, "response.created", "done"))
        self.assertTrue(stream["response_id"].startswith("resp_"))
        self.assertEqual((refused["status"], refused["answer"]["error"]["param"], "model" in refused["error"]),
                         (400, "model", True))

    def test_an_answers_request_id_is_in_it(self):
        for stream in (False, True):
            answer = self.request("POST", "/v1/chat/completions", dict(CHAT, stream=stream))
            self.assertEqual(self.entries()[-1]["x_request_id"], answer.headers["x-request-id"])

    def test_when_a_client_left_and_how_far_it_had_come(self):
        client = self.connect()
        client.send_request("POST", "/v1/chat/completions", dict(CHAT, stream=True), {"x-mockturtle-gate": "stop@4"})
        answer = client.read_head()
        for _ in range(3):
            client.read_frame(answer)
        client.close()
        entry, = wait_until(lambda: [entry for entry in self.entries() if entry["client_left"]], "the client to be gone")
        self.assertEqual((entry["client_left"], entry["events_sent"], entry["cut_off"]), (True, 3, False))

    def test_a_cut_is_told_apart_from_a_client_that_left(self):
        client = self.connect()
        client.send_request("POST", "/v1/chat/completions", dict(CHAT, stream=True), {"x-mockturtle-fault": "cut:event=3"})
        client.read_to_end()
        entry, = self.entries()
        self.assertEqual((entry["client_left"], entry["events_sent"], entry["cut_off"], entry["faults"]),
                         (False, 2, True, ["cut:event=3"]))

    def test_heartbeats_are_no_events(self):
        self.stream("/v1/chat/completions", CHAT, {"x-mockturtle-heartbeat": "event@0.01",
                                                   "x-mockturtle-fault": "stall:event=2,ms=50"})
        entry, = self.entries()
        self.assertEqual((entry["events_sent"], entry["events"]), (7, ["role"] + ["delta"] * 4 + ["finish", "done"]))

    def test_it_is_bounded_and_says_how_many_it_saw(self):
        for _ in range(7):
            self.request("GET", "/v1/models")
        page = self.request("GET", "/_mockturtle/requests").json()
        self.assertEqual((len(page["data"]), page["seen"], page["data"][0]["id"]), (5, 7, "request_3"))

    def test_filters_and_pages(self):
        self.request("GET", "/v1/models")
        self.request("POST", "/v1/chat/completions", dict(CHAT, model="other"))
        self.request("POST", "/v1/chat/completions", CHAT)
        self.request("GET", "/v1/nothing")
        self.assertEqual(len(self.entries("?path=/chat/completions")), 2)
        self.assertEqual(len(self.entries("?path=/v1/chat/completions&model=other")), 1)
        self.assertEqual([entry["path"] for entry in self.entries("?status=404")], ["/v1/nothing"])
        self.assertEqual(self.entries("?rule=none"), [])
        self.assertEqual([entry["id"] for entry in self.entries("?order=desc&limit=2")], ["request_4", "request_3"])
        self.assertEqual([entry["id"] for entry in self.entries("?limit=2&after=request_1")], ["request_2", "request_3"])
        last = self.entries()[-1]
        self.assertEqual(self.entries("?since=%f" % last["time"])[-1]["id"], "request_4")
        self.assertEqual(self.entries("?since=%f" % (last["time"] + 60)), [])
        for query in ("?since=x", "?since=nan", "?status=x", "?limit=0", "?after=request_99"):
            self.assertEqual(self.request("GET", "/_mockturtle/requests" + query).status, 400, query)

    def test_one_by_its_id_and_clearing(self):
        self.request("GET", "/v1/models")
        self.assertEqual(self.request("GET", "/_mockturtle/requests/request_1").json()["path"], "/v1/models")
        self.assertEqual(self.request("GET", "/_mockturtle/requests/request_2").status, 404)
        self.request("DELETE", "/_mockturtle/requests")
        self.assertEqual(self.entries(), [])

    def test_an_answer_that_is_going_out_is_in_it_already(self):
        client = self.connect()
        client.send_request("POST", "/v1/chat/completions", dict(CHAT, stream=True), {"x-mockturtle-gate": "stop@3"})
        self.assertTrue(self.server.gates.wait("stop", TIMEOUT_S))
        entry, = self.entries()
        self.assertEqual((entry["duration_ms"], entry["events_sent"], entry["client_left"]), (None, 2, False))
        self.server.gates.open("stop")
        client.read_answer()
        wait_until(lambda: self.entries()[0]["duration_ms"] is not None, "its end")

    def test_control_calls_and_looks_at_its_health_are_not_in_it(self):
        for path in ("/_mockturtle/faults", "/v1/_mockturtle/faults", "/health", "/v1/health", "/metrics"):
            self.request("GET", path)
        self.assertEqual(self.entries(), [])


@every_form
class ConnectionsLiveTest(LiveServerTest):

    def test_open_connections_without_a_request_are_known(self):
        clients = [self.connect() for _ in range(3)]
        for client in clients:
            client.request("GET", "/v1/models")
        found = wait_until(lambda: len(self.server.open_idle_s()) == 3 and self.server.open_idle_s(), "three that are idle")
        self.assertTrue(all(0 <= seconds < 60 for seconds in found), found)
        client = clients.pop()
        client.send_request("POST", "/v1/chat/completions", CHAT, {"x-mockturtle-gate": "stop"})
        self.assertTrue(self.server.gates.wait("stop", TIMEOUT_S))
        self.assertEqual(len(self.server.open_idle_s()), 2)


class LeftOpenTest(LiveServerTest):
    settings = {"journal": 50}

    def test_connections_that_nobody_closes_are_a_finding(self):
        clock = ShiftedClock()
        self.start_server(clock=clock)
        for _ in range(12):
            self.connect().request("GET", "/v1/models")
        clock.advance(6)
        findings = self.request("GET", "/_mockturtle/verdict").json()["findings"]
        self.assertIn("connections_left_open", [finding["kind"] for finding in findings])


class SocketJournalTest(LiveServerTest):
    settings = {"journal": 5, "output_tokens": 4}

    def test_each_turn_of_a_websocket_is_a_request(self):
        client = WebSocketClient(self.address)
        self._clients.append(client)
        self.assertEqual(client.handshake().status, 101)
        client.create(input="one")
        events = client.read_turn()
        client.create(model=3)
        client.read_event()
        turn, refused = wait_until(lambda: [entry for entry in self.request("GET", "/_mockturtle/requests").json()["data"]
                                            if entry["method"] == "WS"], "the turns")
        self.assertEqual((turn["events_sent"], turn["events"][-1], turn["body"]["input"], turn["response_id"]),
                         (len(events), "response.completed", "one", events[0]["response"]["id"]))
        self.assertEqual((refused["status"], refused["answer"]["error"]["param"]), (400, "model"))


class SecretsTest(LiveServerTest):
    settings = {"journal": 5, "api_key": (SECRET,)}

    def test_keys_and_cookies_are_never_told(self):
        headers = {"Authorization": "Bearer " + SECRET}
        self.request("POST", "/v1/chat/completions?key=%s&api-version=1&API-Key=fourth&access_token=fifth" % SECRET, dict(CHAT, user=SECRET),
                     dict(headers, **{"api-key": "other", "Cookie": "a=b", "X-Api-Key": "third",
                                "X-Goog-Api-Key": "sixth", "X-Auth-Token": "seventh"}))
        self.request("POST", "/v1/responses", dict(RESPONSE, user=SECRET, tools=[
            {"type": "mcp", "server_label": "a", "server_url": "https://example.com", "authorization": "eighth",
             "headers": {"X-Api-Key": "ninth"}}]), headers)
        text = self.request("GET", "/_mockturtle/requests", headers=headers).text
        for secret in (SECRET, "other", "a=b", "third", "fourth", "fifth", "sixth", "seventh", "eighth", "ninth"):
            self.assertNotIn(secret, text)
        self.assertIn('"authorization":"***"', text)
        self.assertIn("&api-version=1&", text)
        self.assertNotIn(SECRET, self.request("GET", "/_mockturtle/settings", headers=headers).text)


class AccessTest(LiveServerTest):
    settings = {"journal": 5}
    PATHS = ("faults", "gates", "gates/x", "requests", "verdict", "settings", "timing")

    def test_beyond_loopback_without_a_key_they_are_off(self):
        self.start_server(host=("0.0.0.0",))
        for path in self.PATHS:
            self.assertEqual(self.request("GET", "/_mockturtle/" + path).status, 403)
        self.assertEqual(self.request("POST", "/_mockturtle/reset").status, 403)

    def test_pages_of_any_origin_are_refused_also_below_v1(self):
        for prefix in ("/_mockturtle/", "/v1/_mockturtle/"):
            for path in self.PATHS:
                answer = self.request("GET", prefix + path, headers={"Origin": "http://localhost"})
                self.assertEqual(answer.status, 403)
                self.assertNotIn("access-control-allow-origin", answer.headers)

    def test_with_a_key_they_need_it(self):
        self.start_server(host=("0.0.0.0",), api_key=("k",))
        self.assertEqual(self.request("GET", "/_mockturtle/faults").status, 401)
        self.assertEqual(self.request("GET", "/_mockturtle/faults", headers={"Authorization": "Bearer k"}).status, 200)


class ServerByCallTest(LiveServerTest):

    def test_the_journal_is_off_and_can_be_turned_on(self):
        for path in ("requests", "verdict"):
            answer = self.request("GET", "/_mockturtle/" + path)
            self.assertEqual((answer.status, answer.error["code"]), (409, "journal_off"))
        told = self.request("POST", "/_mockturtle/settings", {"journal": 3, "gate_timeout_s": 2}).json()["settings"]
        self.assertEqual((told["journal"], told["gate_timeout_s"]), (3, 2.0))
        self.request("GET", "/v1/models")
        self.assertEqual(len(self.request("GET", "/_mockturtle/requests").json()["data"]), 1)
        self.request("POST", "/_mockturtle/settings", {"journal": 0})
        self.assertEqual(self.request("GET", "/_mockturtle/requests").status, 409)

    def test_a_bad_setting_changes_nothing(self):
        for body, param in (({"journal": -1}, "journal"), ({"journal": "x"}, "journal"), ({"gate_timeout_s": 0}, "gate_timeout_s"),
                            ({"journal": 3, "ttft_ms": 1}, "ttft_ms")):
            answer = self.request("POST", "/_mockturtle/settings", body)
            self.assertEqual((answer.status, answer.error["param"]), (400, param))
        self.assertEqual(self.request("GET", "/_mockturtle/settings").json()["settings"]["journal"], 0)

    def test_settings_are_those_in_force(self):
        self.start_server(fault=("close",), output_tokens=7)
        told = self.request("GET", "/_mockturtle/settings").json()["settings"]
        self.assertEqual((told["fault"], told["output_tokens"], told["transport"]), (["close"], 7, "loop"))

    def test_reset_brings_back_the_start(self):
        self.start_server(fault=("slow_headers:ms=1",), journal=9, requests_per_minute=2)
        called = []
        self.server.on_reset.append(lambda: called.append(1))
        self.server.faults.add("error")
        self.server.gates.open("a")
        self.request("POST", "/v1/chat/completions", CHAT)
        self.assertEqual(self.request("POST", "/_mockturtle/reset").json()["done"], True)
        self.assertEqual([each.fault.kind for each in self.server.faults.all()], ["slow_headers"])
        self.assertEqual((self.server.gates.report(), self.server.journal.entries(), called), ([], [], [1]))
        self.assertEqual([self.request("POST", "/v1/chat/completions", CHAT).status for _ in range(3)], [200, 200, 429])
        self.assertEqual(self.request("POST", "/_mockturtle/reset", {"all": True}).error["param"], "all")

    def test_methods_and_unknown_paths(self):
        self.assertEqual(self.request("POST", "/_mockturtle/verdict", {}).status, 405)
        self.assertEqual(self.request("GET", "/_mockturtle/nothing").status, 404)


class HeartbeatTest(LiveServerTest):
    STALL = {"x-mockturtle-fault": "stall:event=2,ms=60"}

    def names(self, form, **settings):
        if settings:
            self.start_server(**settings)
        headers = dict(self.STALL, **({"x-mockturtle-heartbeat": form} if form else {}))
        return [event.name for event in self.stream("/v1/chat/completions", CHAT, headers, comments=True)]

    def test_forms_by_header(self):
        self.start_server(heartbeat_s=0.01)
        self.assertNotIn(":", self.names("off"))
        self.assertIn(":", self.names("comment"))
        self.assertIn("keepalive", self.names("event"))
        self.assertIn("keepalive", self.names("event@0.02"))

    def test_the_flag_changes_the_form_of_all(self):
        names = self.names(None, heartbeat_s=0.01, heartbeat_form="event")
        self.assertIn("keepalive", names)
        self.assertNotIn(":", names)

    def test_of_a_resumed_stream(self):
        answer = self.request("POST", "/v1/responses", dict(RESPONSE, background=True, stream=True), {
            "x-mockturtle-fault": "stall:event=4,ms=60", "x-mockturtle-heartbeat": "event@0.01"})
        self.assertIn("keepalive", [event.name for event in answer.events()])


if __name__ == "__main__":
    unittest.main()
