"""The upstream backend live, in front of an upstream that the test drives byte by byte."""
import json
import os
import socket
import tempfile
import threading
import unittest

from api_common import ApiError
from backends.upstream import PROBE_TIMEOUT_S, UpstreamBackend
from backends.upstream_pool import UpstreamTarget
from server import MockTurtleServer
from settings import Settings
from tests.scripted_upstream import ScriptedUpstream
from tests.support import CHAT, RESPONSE, LiveServerTest, ShiftedClock, chat_text, every_form, parse_events, wait_until
from tests.websocket_client import WebSocketClient

KEY = "sk-upstream-0123456789"


class GatewayTestCase(LiveServerTest):
    settings = {"heartbeat_s": 0, "backend": "upstream", "upstream_retries": 1}

    def setUp(self):
        LiveServerTest.setUp(self)
        self.upstream = self.new_upstream()

    def new_upstream(self, wrap=None):
        upstream = ScriptedUpstream(wrap)
        self.addCleanup(upstream.close)
        self._threads_before.add(upstream.accepting)       # it ends after the server, whose threads are looked for
        return upstream

    def start(self, **settings):
        settings.setdefault("upstream_url", (self.upstream.url,))
        return self.start_server(**settings)

    @property
    def server(self):
        return self._server if self._server is not None else self.start()

    def setenv(self, name, value):
        """Set a variable of this process until the test's end."""
        before = os.environ.get(name)
        os.environ[name] = value
        self.addCleanup(lambda: os.environ.pop(name) if before is None else os.environ.update({name: before}))

    def asked(self, path="/v1/responses", body=RESPONSE, headers=None, **more):
        """Send a request; (client, what the upstream got of it)."""
        client = self.connect()
        client.send_request("POST", path, json=dict(body, **more), headers=headers)
        return client, self.upstream.next()

    def next_delta(self, client, answer):
        """The next piece of text of a Responses stream."""
        while True:
            event = client.read_frame(answer)
            if event.name == "response.output_text.delta":
                return event.data["delta"]

    def answered(self, path="/v1/responses", body=RESPONSE, text="Hello", headers=None, **more):
        """A whole exchange; the Answer."""
        client, request = self.asked(path, body, headers, **more)
        request.start()
        request.say(text)
        request.finish()
        return client.read_answer()


@every_form
class StreamTest(GatewayTestCase):

    def test_each_delta_arrives_before_the_next_is_said(self):
        client, request = self.asked(stream=True)
        request.start()
        request.say("one")
        answer = client.read_head()
        self.assertEqual(self.next_delta(client, answer), "one")
        request.say("two")
        self.assertEqual(client.read_frame(answer).data["delta"], "two")
        request.finish()
        self.assertEqual(client.read_rest(answer)[-2].data["response"]["usage"]["input_tokens"], 3)

    def test_a_plain_answer_is_put_together_from_a_stream(self):
        client, request = self.asked()
        self.assertEqual((request.path, request.body["stream"]), ("/v1/chat/completions", True))
        request.start()
        request.say("one ")
        request.say("two")
        request.finish()
        body = client.read_answer().json()
        self.assertEqual((body["output"][0]["content"][0]["text"], body["usage"]["output_tokens"]), ("one two", 2))

    def test_a_chat_is_streamed_and_keeps_unknown_fields_on_its_way(self):
        client, request = self.asked("/v1/chat/completions", CHAT, stream=True, top_k=5)
        self.assertEqual(request.body["top_k"], 5)
        request.start()
        request.say("hi")
        request.finish()
        answer = client.read_answer()
        events = parse_events(answer.body)
        self.assertEqual((chat_text(events), events[-1].data), ("hi", "[DONE]"))
        self.assertNotIn("x-mockturtle-ignored", answer.headers)

    def test_a_connection_is_used_again(self):
        self.answered()
        self.answered()
        self.assertEqual((len(self.upstream.connections), len(self.upstream.requests)), (1, 2))

    def test_a_connection_is_not_used_again_when_the_upstream_says_close(self):
        client, request = self.asked()
        request.start(headers=[("Connection", "close")])
        request.say("x")
        request.finish()
        client.read_answer()
        self.answered()
        self.assertEqual(len(self.upstream.connections), 2)

    def test_a_turn_follows_another(self):
        first = self.answered().json()
        client, request = self.asked(previous_response_id=first["id"])
        self.assertEqual([(message["role"], message["content"]) for message in request.body["messages"]],
                         [("user", "Hello"), ("assistant", "Hello"), ("user", "Hello")])
        request.answer({"choices": [{"message": {"content": "x"}, "finish_reason": "stop"}]})
        self.assertEqual(client.read_answer().status, 200)

    def test_answers_that_are_waited_for_hold_no_thread(self):
        self.start()
        for _ in range(20):
            self.asked(stream=True)
        workers = self.server.workers
        wait_until(lambda: len(self.server.player.relay.wires) == 20, "the relay to read all")
        wait_until(lambda: workers._blocking_idle == workers._blocking_threads, "the workers to be free")

    def test_an_upstream_that_cannot_stream_is_not_asked_to(self):
        self.start(upstream_no_stream=True)
        client, request = self.asked(stream=True)
        self.assertNotIn("stream", request.body)
        request.answer({"choices": [{"message": {"content": "whole"}, "finish_reason": "stop"}]})
        self.assertIn('"delta":"whole"', client.read_answer().text)

    def test_tokens_that_the_upstream_does_not_count_are_counted_here(self):
        client, request = self.asked()
        request.start()
        request.say("one two three")
        request.finish(usage=None)
        usage = client.read_answer().json()["usage"]
        self.assertGreaterEqual(usage["output_tokens"], 3)
        self.assertGreater(usage["input_tokens"], 0)

    def test_a_finished_answer_whose_end_is_not_marked_ends_a_little_later(self):
        clock = ShiftedClock()
        self.start(clock=clock)
        client, request = self.asked()
        request.start()
        request.say("done")
        request.chunk({}, "stop")
        wait_until(lambda: [wire for wire in self.server.player.relay.wires if wire.exchange.wait_s < 10], "the finish")
        clock.advance(6)
        self.assertEqual(client.read_answer().json()["status"], "completed")
        self.assertTrue(request.closed.wait(5))

    def test_a_slow_client_stops_the_reading_of_its_upstream_and_loses_nothing(self):
        client, request = self.asked("/v1/chat/completions", CHAT, stream=True)
        request.start()
        relay = self.server.player.relay
        text, sent = "x" * 30000, []

        def pour():
            while not stop.is_set() and len(sent) < 2000:
                request.say(text)
                sent.append(1)
            request.finish()
        stop = threading.Event()
        pouring = threading.Thread(target=pour)
        pouring.start()
        try:
            wait_until(lambda: [wire for wire in list(relay.wires) if wire.paused], "the pause")
        finally:
            stop.set()
        answer = client.read_answer()
        pouring.join(10)
        self.assertEqual(len(chat_text(parse_events(answer.body))), len(text) * len(sent))

    def test_websocket_turns_go_upstream(self):
        self.start()
        client = WebSocketClient(self.address)
        self._clients.append(client)
        self.assertEqual(client.handshake().status, 101)
        client.create()
        request = self.upstream.next()
        request.start()
        request.say("hi")
        request.finish()
        events = client.read_turn()
        self.assertEqual(events[-1]["response"]["output"][0]["content"][0]["text"], "hi")

    def test_a_background_response_is_relayed_and_can_be_watched_and_cancelled(self):
        client, request = self.asked(background=True, stream=True)
        request.start()
        request.say("one")
        self.assertEqual(self.next_delta(client, client.read_head()), "one")
        id = self.server.runs._runs.copy().popitem()[0]
        watcher = self.connect()
        watcher.send_request("GET", "/v1/responses/%s?stream=true&starting_after=2" % id)
        request.say("two")
        self.assertEqual(self.request("POST", "/v1/responses/%s/cancel" % id, body=b"").json()["status"], "cancelled")
        self.assertTrue(request.closed.wait(5))
        self.assertIn('"delta":"one"', watcher.read_answer().text)


@every_form
class LeavingTest(GatewayTestCase):

    def test_a_client_that_leaves_before_the_first_token_ends_the_upstreams_connection(self):
        for more in ({}, {"stream": True}):
            client, request = self.asked(**more)
            client.close()
            self.assertTrue(request.closed.wait(5), more)

    def test_a_client_that_leaves_in_mid_stream_ends_the_upstreams_connection(self):
        client, request = self.asked("/v1/chat/completions", CHAT, stream=True)
        request.start()
        request.say("one")
        client.read_head()
        client.close()
        self.assertTrue(request.closed.wait(5))
        wait_until(lambda: not self.server.player.relay.wires, "the relay to let go")

    def test_a_stopping_server_hangs_up(self):
        self.start(drain_s=0)
        _, request = self.asked(stream=True)
        request.start()
        self.server.begin_drain(0.0)
        self.assertTrue(request.closed.wait(5))


@every_form
class FailureTest(GatewayTestCase):

    def test_a_refusal_before_the_first_delta_is_a_plain_status(self):
        for status, headers, wanted in (("400 Bad", (), 400), ("429 Slow", (("Retry-After", "7"),), 429), ("404 No", (), 404),
                                        ("500 Oh", (), 502), ("503 Busy", (("Retry-After", "3"),), 503)):
            for more in ({}, {"stream": True}):
                client, request = self.asked(**more)
                request.answer({"error": {"message": "because", "type": "odd", "code": "c"}}, status, headers)
                answer = client.read_answer()
                self.assertEqual((answer.status, answer.error["message"], answer.error["code"]), (wanted, "because", "c"))
                self.assertEqual(answer.headers.get("retry-after"), dict(headers).get("Retry-After"))
                self.assertEqual(answer.error["type"], "odd" if wanted < 500 else "upstream_error")

    def test_a_retry_after_that_is_neither_seconds_nor_a_date_stays_here(self):
        for value, kept in (("7", True), ("1.5", True), ("Wed, 21 Oct 2026 07:28:00 GMT", True), ("-5", False),
                            ("caf\xe9", False), ("1" * 5000, False), ("soon\x0bX: y", False), (KEY, False)):
            client, request = self.asked()
            request.send(b"HTTP/1.1 429 Slow\r\nContent-Length: 2\r\nRetry-After: %s\r\n\r\n{}" % value.encode("latin-1"))
            answer = client.read_answer()
            self.assertEqual((answer.status, answer.headers.get("retry-after")), (429, value if kept else None))

    def test_an_error_in_a_stream_that_said_nothing_yet_is_a_plain_status(self):
        client, request = self.asked(stream=True)
        request.start()
        request.chunk({"role": "assistant", "content": ""})
        request.raw('data: {"error": {"message": "too long", "code": 400}}\n\n')
        answer = client.read_answer()
        self.assertEqual((answer.status, answer.error["message"]), (400, "too long"))

    def test_a_cut_stream_ends_as_failed_and_keeps_what_was_said(self):
        client, request = self.asked(stream=True)
        request.start()
        request.say("half")
        answer = client.read_head()
        self.next_delta(client, answer)
        request.hang_up()
        last = client.read_rest(answer)[-2].data
        self.assertEqual((last["type"], last["response"]["status"]), ("response.failed", "failed"))
        self.assertEqual(last["response"]["output"][0]["content"][0]["text"], "half")
        kept = self.request("GET", "/v1/responses/" + last["response"]["id"]).json()
        self.assertEqual(kept["output"][0]["content"][0]["text"], "half")

    def test_answers_that_cannot_be_used_are_502(self):
        for data in (b"<html>no</html>", b"{broken", b"", b'["x"]'):
            client, request = self.asked()
            request.answer(data)
            answer = client.read_answer()
            self.assertEqual((answer.status, answer.error["type"]), (502, "upstream_error"), data)
        client, request = self.asked()
        request.send(b"SSH-2.0-odd\r\n\r\n")
        self.assertEqual(client.read_answer().status, 502)
        client, request = self.asked()
        request.start()
        request.raw("data: {nonsense\n\n")
        self.assertEqual(client.read_answer().status, 502)

    def test_a_compressed_answer_says_what_is_wrong(self):
        client, request = self.asked()
        request.start(headers=[("Content-Encoding", "gzip")])
        request.raw(b"\x1f\x8b\x08")
        self.assertIn("compressed", client.read_answer().error["message"])

    def test_numbers_that_are_none_do_not_reach_the_client(self):
        client, request = self.asked("/v1/chat/completions", CHAT, logprobs=True)
        request.start()
        request.chunk(choices=[{"index": 0, "delta": {"content": "x"}, "finish_reason": "stop", "logprobs": {
            "content": [{"token": "x", "logprob": float("-inf"), "bytes": None, "top_logprobs": []}]}}])
        request.raw("  data:  [DONE]\n\ndata: [DONE]\n\n")
        request.end()
        self.assertIsNone(client.read_answer().json()["choices"][0]["logprobs"]["content"][0]["logprob"])

    def test_a_client_that_leaves_between_two_attempts_ends_them(self):
        client, request = self.asked()
        request.hang_up()
        client.close()
        self.wait_for_count("disconnects", 1)
        wait_until(lambda: not self.server.player.relay.wires, "the relay to let go")

    def test_an_end_before_the_answer_is_tried_again(self):
        client, request = self.asked()
        request.hang_up()
        again = self.upstream.next()
        self.assertEqual(again.body, request.body)
        again.start()
        again.say("x")
        again.finish()
        self.assertEqual(client.read_answer().status, 200)

    def test_a_kept_connection_that_ends_under_a_request_costs_no_attempt(self):
        self.start(upstream_retries=0)
        self.answered()
        client, request = self.asked()
        self.assertEqual(len(self.upstream.connections), 1)
        request.hang_up()
        again = self.upstream.next()
        again.start()
        again.say("x")
        again.finish()
        self.assertEqual(client.read_answer().status, 200)

    def test_attempts_end_and_nothing_is_tried_again_once_something_came(self):
        client, request = self.asked()
        request.hang_up()
        self.upstream.next().hang_up()
        answer = client.read_answer()
        self.assertEqual((answer.status, answer.error["type"]), (502, "upstream_error"))
        client, request = self.asked()
        request.send(b"HTTP/1.1 200 OK\r\n")
        request.hang_up()
        self.assertEqual(client.read_answer().status, 502)
        self.assertEqual(len(self.upstream.requests), 3)

    def test_nobody_there_is_502(self):
        self.upstream.close()
        answer = self.request("POST", "/v1/chat/completions", CHAT)
        self.assertEqual((answer.status, answer.error["type"]), (502, "upstream_error"))

    def test_silence_is_504_or_the_end_of_a_stream(self):
        clock = ShiftedClock()
        self.start(clock=clock)
        client, request = self.asked()
        streaming, second = self.asked(stream=True)
        second.start()
        second.say("half")
        answer = streaming.read_head()
        self.next_delta(streaming, answer)
        clock.advance(400)
        plain = client.read_answer()
        self.assertEqual((plain.status, plain.error["code"]), (504, "upstream_timeout"))
        self.assertEqual(streaming.read_rest(answer)[-2].data["type"], "response.failed")
        self.assertTrue(request.closed.wait(5) and second.closed.wait(5))

    def test_a_redirect_is_not_followed(self):
        client, request = self.asked()
        request.answer(b"", "302 Found", [("Location", self.upstream.url)])
        answer = client.read_answer()
        self.assertEqual(answer.status, 502)
        self.assertIn("redirect", answer.error["message"])
        self.assertEqual(len(self.upstream.requests), 1)

    def test_the_head_goes_out_after_the_grace_with_heartbeats(self):
        self.start(commit_grace_s=0.05, heartbeat_s=0.05)
        client, request = self.asked("/v1/chat/completions", CHAT, stream=True)
        answer = client.read_head()
        self.assertEqual(answer.status, 200)
        self.assertEqual(client.read_frame(answer).name, ":")
        request.answer({"error": {"message": "late"}}, "400 Bad")
        self.assertEqual(client.read_rest(answer)[-1].data["error"]["message"], "late")

    def test_a_fault_of_ours_fails_the_one_answer_and_is_logged(self):
        server = self.start()
        server.backend.observer = lambda exchange, data: 1 / 0
        client, request = self.asked()
        request.start()
        self.assertEqual(client.read_answer().status, 500)
        self.assertIn("ZeroDivisionError", "".join(self.take_errors()))
        server.backend.observer = None
        self.assertEqual(self.answered().status, 200)


class SendingTest(GatewayTestCase):

    def test_a_client_that_leaves_while_its_request_is_being_sent_is_heard(self):
        deaf = socket.create_server(("127.0.0.1", 0))       # it accepts and never reads
        self.addCleanup(deaf.close)
        self.start(upstream_url=("http://127.0.0.1:%d" % deaf.getsockname()[1],))
        client = self.connect()
        client.send_request("POST", "/v1/chat/completions",
                            json={"model": "m", "messages": [{"role": "user", "content": "x" * (16 << 20)}]})
        deaf.settimeout(10)
        near, _ = deaf.accept()
        with near:
            near.settimeout(10)
            self.assertTrue(near.recv(16, socket.MSG_PEEK))
            client.close()
            self.wait_for_count("disconnects", 1)
            while near.recv(1 << 20):
                self.assertTrue(self.server)


class SecretsTest(GatewayTestCase):

    def test_the_key_of_the_variable_is_sent_and_never_told(self):
        self.setenv("TEST_UPSTREAM_KEY", KEY)
        server = self.start(upstream_api_key_env=("TEST_UPSTREAM_KEY",))
        client, request = self.asked(headers={"Authorization": "Bearer sk-client"})
        self.assertEqual(request.headers["authorization"], "Bearer " + KEY)
        request.answer({"error": {"message": "bad key " + KEY, "type": KEY, "param": KEY, "code": KEY}}, "401 Unauthorized")
        answer = client.read_answer()
        self.assertEqual((answer.status, answer.error), (
            401, {"message": "bad key ***", "type": "***", "param": "***", "code": "***"}))
        self.assertIn(KEY, server.backend.secrets())
        self.assertNotIn(KEY, "".join(server.log_lines))

    def test_the_journal_does_not_tell_the_key_of_the_variable(self):
        self.setenv("TEST_UPSTREAM_KEY", KEY)
        self.start(upstream_api_key_env=("TEST_UPSTREAM_KEY",), journal=5)
        self.answered(input="The key is %s." % KEY)
        for path in ("", "/request_1"):
            told = self.request("GET", "/_mockturtle/requests" + path).text
            self.assertIn("The key is ", told)
            self.assertNotIn(KEY, told)

    def test_the_clients_key_is_forwarded_only_with_the_flag(self):
        _, request = self.asked(headers={"Authorization": "Bearer sk-client"})
        self.assertNotIn("authorization", request.headers)

    def test_the_clients_key_is_forwarded_with_the_flag(self):
        self.start(upstream_forward_key=True)
        _, request = self.asked(headers={"Authorization": "Bearer sk-client"})
        self.assertEqual(request.headers["authorization"], "Bearer sk-client")

    def test_no_browser_page_gets_at_the_upstream_without_a_key(self):
        answer = self.request("GET", "/v1/responses/x", headers={"Host": "evil.example", "Origin": "http://evil.example"})
        self.assertEqual(answer.status, 403)
        self.assertNotIn("access-control-allow-origin", answer.headers)


class RoutingTest(GatewayTestCase):

    def test_models_lead_to_their_upstreams_under_their_names_there(self):
        other = self.new_upstream()
        self.start(upstream_url=(self.upstream.url, "small=" + other.url), model_map=("gpt=big", "mini=small"))
        for model, upstream, there in (("gpt", self.upstream, "big"), ("small", other, "small"), ("mini", other, "small")):
            client = self.connect()
            client.send_request("POST", "/v1/responses", json=dict(RESPONSE, model=model))
            request = upstream.next()
            self.assertEqual(request.body["model"], there)
            request.answer({"choices": [{"message": {"content": "x"}, "finish_reason": "stop"}]})
            self.assertEqual(client.read_answer().json()["model"], model)

    def test_a_model_of_no_upstream_is_404(self):
        self.start(upstream_url=("a=" + self.upstream.url,))
        answer = self.request("POST", "/v1/chat/completions", CHAT)
        self.assertEqual((answer.status, answer.error["code"]), (404, "model_not_found"))

    def test_models_of_all_upstreams_are_listed(self):
        other = self.new_upstream()
        self.start(upstream_url=(self.upstream.url, "small=" + other.url), model_map=("gpt=big",))
        client = self.connect()
        client.send_request("GET", "/v1/models")
        for upstream in (self.upstream, other):
            request = upstream.next()
            self.assertEqual((request.method, request.path), ("GET", "/v1/models"))
            request.answer({"data": [{"id": name, "object": "model", "owned_by": "them"} for name in ("big", "small")]})
        self.assertEqual({model["id"]: model["owned_by"] for model in client.read_answer().json()["data"]},
                         {"big": "them", "small": "them", "gpt": "them"})

    def test_health_tells_of_each_upstream(self):
        dead = self.new_upstream()
        dead.close()
        self.start(upstream_url=(self.upstream.url, "m=" + dead.url), upstream_retries=0)
        client = self.connect()
        client.send_request("GET", "/health")
        self.upstream.next().answer({"error": "no models here"}, "404 No")
        answer = client.read_answer()
        self.assertEqual((answer.status, answer.json()["status"]), (200, "degraded"))
        self.assertEqual([each["status"] for each in answer.json()["upstreams"]], ["ok", "unavailable"])
        self.assertEqual(answer.json()["upstreams"][1]["models"], ["m"])

    def test_an_answer_that_was_lost_is_no_outage(self):
        self.start(upstream_url=(self.upstream.url,), upstream_retries=0)
        client = self.connect()
        client.send_request("POST", "/v1/chat/completions", CHAT)
        self.upstream.next().hang_up()
        self.assertEqual(client.read_answer().status, 502)
        client.send_request("GET", "/health")
        self.upstream.next().answer({"object": "list", "data": []})
        self.assertEqual(client.read_answer().json()["status"], "ok")

    def test_other_calls_are_forwarded_as_they_are(self):
        for path, there, body in (("/v1/embeddings", "/v1/embeddings", {"model": "m", "input": "x", "odd": 1}),
                                  ("/v1/moderations", "/v1/moderations", {"input": "x"}),
                                  ("/tokenize", "/tokenize", {"prompt": "x", "odd": 1})):
            client, request = self.asked(path, body)
            self.assertEqual((request.path, request.body), (there, body))
            request.answer({"any": ["thing"], "x": None})
            self.assertEqual(client.read_answer().json(), {"any": ["thing"], "x": None})
        client, request = self.asked("/v1/embeddings", {"model": "m", "input": 5})
        request.answer({"error": {"message": "bad input"}}, "400 Bad")
        self.assertEqual(client.read_answer().error["message"], "bad input")

    def test_a_timing_trace_takes_what_is_relayed_and_forwarded(self):
        with tempfile.TemporaryDirectory() as folder:
            path = os.path.join(folder, "trace.jsonl")
            self.start(timing_trace=path)
            self.answered(stream=True)
            client, request = self.asked("/v1/embeddings", {"model": "m", "input": "x"})
            request.answer({"data": []})
            self.assertEqual(client.read_answer().status, 200)
            self._stop_server()
            with open(path, encoding="utf-8") as file:
                endpoints = [json.loads(line).get("endpoint") for line in file]
        self.assertEqual([each for each in endpoints if each], ["responses", "forward"])

    def test_text_completions_are_forwarded_whole(self):
        client, request = self.asked("/v1/completions", {"model": "m", "prompt": ["a", "b"], "n": 2, "best_of": 3, "min_p": 0.1})
        self.assertEqual((request.path, request.body["prompt"], request.body["best_of"], request.body["min_p"]),
                         ("/v1/completions", ["a", "b"], 3, 0.1))
        request.start()
        for index in (3, 1, 0, 2):
            request.chunk(choices=[{"index": index, "text": "t%d" % index, "finish_reason": "length"}])
        request.raw("data: [DONE]\n\n")
        request.end()
        body = client.read_answer().json()
        self.assertEqual([(choice["index"], choice["text"]) for choice in body["choices"]],
                         [(0, "t0"), (1, "t1"), (2, "t2"), (3, "t3")])

    def test_what_is_not_forwarded_is_told_or_refused(self):
        answer = self.answered(tools=[{"type": "web_search"}], client_metadata={"a": "b"})
        self.assertEqual(set(answer.headers["x-mockturtle-ignored"].split(", ")), {"tools.web_search", "client_metadata"})

    def test_refuse_ignored(self):
        self.start(refuse_ignored=True)
        answer = self.request("POST", "/v1/responses", dict(RESPONSE, client_metadata={"a": "b"}))
        self.assertEqual((answer.status, answer.error["param"]), (400, "client_metadata"))

    def test_a_compaction_is_a_summary_by_the_upstream(self):
        client, request = self.asked("/v1/responses/compact")
        self.assertEqual([message["role"] for message in request.body["messages"]], ["user", "user"])
        request.answer({"choices": [{"message": {"content": "short"}, "finish_reason": "stop"}]})
        window = client.read_answer().json()["output"]
        client, request = self.asked(input=window)
        self.assertIn("short", request.body["messages"][-1]["content"])

    def test_a_custom_tool_and_a_grouped_one_come_back_as_themselves(self):
        client, request = self.asked(tools=[{"type": "custom", "name": "patch"}, {"type": "namespace", "name": "g", "tools": [
            {"type": "function", "name": "f", "parameters": {"type": "object"}}]}])
        request.start()
        request.chunk({"tool_calls": [{"index": 0, "id": "a", "function": {"name": "patch", "arguments": '{"input":"x'}}]})
        request.chunk({"tool_calls": [{"index": 0, "function": {"arguments": '\\ny"}'}}]})
        request.chunk({"tool_calls": [{"index": 1, "id": "b", "function": {"name": "g__f", "arguments": "{}"}}]})
        request.finish("tool_calls")
        output = client.read_answer().json()["output"]
        self.assertEqual((output[0]["type"], output[0]["input"]), ("custom_tool_call", "x\ny"))
        self.assertEqual((output[1]["type"], output[1]["name"], output[1]["namespace"]), ("function_call", "f", "g"))

    def test_think_tags_are_reasoning_with_the_flag(self):
        self.start(upstream_think="tags")
        answer = self.answered(text="<think>hm</think>yes", reasoning={"summary": "auto"}).json()
        self.assertEqual([item["type"] for item in answer["output"]], ["reasoning", "message"])
        self.assertEqual(answer["output"][0]["summary"][0]["text"], "hm")


class SettingsTest(unittest.TestCase):
    """What cannot work is said before a socket is bound, in one line."""

    def test_bad_settings_are_refused(self):
        good = "http://127.0.0.1:1/v1"
        for values, told in (
                ({}, "needs --upstream-url"), ({"upstream_url": "127.0.0.1:1"}, "expected http"),
                ({"upstream_url": "ftp://h"}, "expected http"), ({"upstream_url": "http://u:secret@h"}, "seen by everybody"),
                ({"upstream_url": "http://h:0x1/"}, "expected http"), ({"upstream_url": (good, good)}, "there is one already"),
                ({"upstream_url": good, "upstream_api_key_env": "NO_SUCH_VARIABLE"}, "not set"),
                ({"upstream_url": "m=" + good, "upstream_api_key_env": "PATH"}, "there is no --upstream-url"),
                ({"upstream_url": good, "model_map": "a"}, "expected CLIENTS=UPSTREAMS"),
                ({"upstream_url": good, "upstream_retries": 11}, "at most 10"),
                ({"upstream_url": good, "upstream_think": "yes"}, "must be"),
                ({"upstream_url": "https://h", "upstream_ca": "no/such.pem"}, "no/such.pem")):
            with self.subTest(values=values), self.assertRaises(ValueError) as caught:
                MockTurtleServer(Settings(backend="upstream", port=0, **values))
            self.assertIn(told, str(caught.exception))
            self.assertNotIn("secret", str(caught.exception))
        with self.assertRaises(ValueError):
            MockTurtleServer(Settings(port=0, upstream_url=good))

    def test_a_url_without_a_path_means_v1(self):
        for url, base, root in (("http://h:1", "/v1", ""), ("http://h/", "/v1", ""), ("http://h/api/v1/", "/api/v1", "/api"),
                                ("http://h/openai", "/openai", "/openai")):
            target = UpstreamTarget(url)
            self.assertEqual((target.base, target.root), (base, root), url)


class ProbeTest(unittest.TestCase):

    def test_a_probe_does_not_wait_the_whole_connect_timeout(self):
        class SilentTarget(UpstreamTarget):
            def connect(self, most_s=float("inf")):
                given.append(most_s)
                raise socket.timeout("timed out")
        given, settings = [], Settings(backend="upstream", upstream_url="http://127.0.0.1:1")
        backend = UpstreamBackend({None: SilentTarget("http://127.0.0.1:1", 10.0)}, {}, settings, None)
        self.assertEqual(backend.health()["status"], "degraded")
        with self.assertRaises(ApiError) as caught:
            backend.models()
        self.assertEqual((caught.exception.status, given), (504, [PROBE_TIMEOUT_S, PROBE_TIMEOUT_S]))


class ProxyTest(GatewayTestCase):

    def test_the_environments_proxy_is_asked_for_the_whole_url(self):
        for name in ("no_proxy", "NO_PROXY"):
            self.setenv(name, "")
        self.setenv("http_proxy", "http://user:p%%40ss@127.0.0.1:%d" % self.upstream.port)
        self.start(upstream_url=("http://upstream.invalid:81/v1",))
        _, request = self.asked()
        self.assertEqual(request.path, "http://upstream.invalid:81/v1/chat/completions")
        self.assertEqual((request.headers["host"], request.headers["proxy-authorization"]),
                         ("upstream.invalid:81", "Basic dXNlcjpwQHNz"))

    def test_no_proxy_is_honoured(self):
        self.setenv("http_proxy", "http://127.0.0.1:9")
        for name in ("no_proxy", "NO_PROXY"):
            self.setenv(name, "127.0.0.1")
        _, request = self.asked()
        self.assertEqual(request.path, "/v1/chat/completions")


if __name__ == "__main__":
    unittest.main()
