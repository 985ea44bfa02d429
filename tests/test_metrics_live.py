"""GET /metrics of a running server, on both transports: what it counts is what its clients count."""
import threading
import unittest

from api_common import ApiError
from backends.contract import Finish, TextDelta, Usage
from state.memory import MemoryStore
from tests.metrics_page import MetricsPage
from tests.support import (CHAT, RESPONSE, DeltaBackend, GatedBackend, LiveServerTest, every_form, wait_until)
from tests.websocket_client import TERMINAL, WebSocketClient

CHAT_PATH, RESPONSES_PATH, COMPLETIONS_PATH = "/v1/chat/completions", "/v1/responses", "/v1/completions"
USAGE = {"stream_options": {"include_usage": True}}
TOOLS = [{"type": "function", "function": {"name": "get_weather", "parameters": {
    "type": "object", "properties": {"city": {"type": "string"}}, "required": ["city"]}}}]
FORMAT = {"type": "json_schema", "json_schema": {"name": "n", "schema": {
    "type": "object", "properties": {"a": {"type": "integer"}, "b": {"type": "string"}}, "required": ["a", "b"]}}}


class MetricsLive(LiveServerTest):

    def scrape(self, accept=None):
        answer = self.request("GET", "/metrics", headers={"Accept": accept} if accept else None)
        self.assertEqual(answer.status, 200)
        return MetricsPage(answer.text, answer.headers["content-type"].startswith("application/openmetrics-text"))

    def deltas(self, before, *names, **labels):
        """How much each of some names has grown since a page was read."""
        after = self.scrape()
        return [after.sum(name, **labels) - before.sum(name, **labels) for name in names]


class Tally:
    """What a client counts of its answers."""

    def __init__(self):
        self.prompt = self.completion = self.requests = self.gaps = self.with_token = self.cached = 0
        self.reasons = {}

    def add(self, usage, reason):
        """usage: of either API. reason: a finish reason, or a response's status."""
        prompt = usage.get("prompt_tokens", usage.get("input_tokens"))
        completion = usage.get("completion_tokens", usage.get("output_tokens"))
        self.requests += 1
        self.prompt += prompt
        self.completion += completion
        details = usage.get("prompt_tokens_details", usage.get("input_tokens_details"))
        self.cached += details["cached_tokens"]
        self.gaps += max(0, completion - 1)
        self.with_token += completion > 0
        reason = {"completed": "stop", "incomplete": "length", "tool_calls": "stop"}.get(reason, reason)
        self.reasons[reason] = self.reasons.get(reason, 0) + 1


@every_form
class ExactnessTest(MetricsLive):

    settings = {"ttft_ms": 4.0, "itl_ms": 1.0, "output_tokens": 20}

    def plain(self, path, tally, **values):
        answer = self.request("POST", path, json=dict(CHAT if path == CHAT_PATH else {"model": "mock-model"}, **values))
        self.assertEqual(answer.status, 200, answer.body)
        body = answer.json()
        tally.add(body["usage"], body["status"] if path == RESPONSES_PATH else body["choices"][0]["finish_reason"])

    def streamed(self, path, tally, **values):
        if path == RESPONSES_PATH:
            event = self.stream(path, dict(RESPONSE, **values))[-2].data
            tally.add(event["response"]["usage"], event["response"]["status"])
            return
        events = self.stream(path, dict(CHAT if path == CHAT_PATH else {"model": "mock-model"}, **dict(USAGE, **values)))
        choices = [choice for event in events[:-1] for choice in event.data["choices"]]
        tally.add(events[-2].data["usage"], next(choice["finish_reason"] for choice in choices
                                                 if choice["index"] == 0 and choice["finish_reason"]))

    def mixed_requests(self, tally):
        """Every kind of generation; the tally takes what their answers say."""
        self.plain(CHAT_PATH, tally)
        self.streamed(CHAT_PATH, tally)
        self.plain(CHAT_PATH, tally, max_tokens=5)
        self.streamed(CHAT_PATH, tally, max_tokens=1)
        for send in (self.plain, self.streamed):
            send(CHAT_PATH, tally, n=2)
            send(CHAT_PATH, tally, tools=TOOLS, tool_choice="required")
            send(CHAT_PATH, tally, response_format=FORMAT)
            send(CHAT_PATH, tally, reasoning_effort="low")
            send(COMPLETIONS_PATH, tally, prompt=["One.", "Two words.", "Three."], max_tokens=4)
            send(COMPLETIONS_PATH, tally, prompt="Once upon", max_tokens=3, echo=True, logprobs=1)
            send(COMPLETIONS_PATH, tally, prompt="Once upon", max_tokens=3, echo=True)
            send(COMPLETIONS_PATH, tally, prompt="Once upon", max_tokens=0, echo=True, logprobs=1)
            send(RESPONSES_PATH, tally, input="Hello", max_output_tokens=16)
            send(RESPONSES_PATH, tally, input="Hello", reasoning={"effort": "low", "summary": "auto"})
            send(RESPONSES_PATH, tally, input="Search.", tools=[{"type": "web_search"}],
                 tool_choice={"type": "web_search"})
        self.background(tally)
        client = WebSocketClient(self.address)
        self._clients.append(client)
        client.handshake()
        for values in ({}, {"store": False}):
            events = client.turn(**values)
            self.assertIn(events[-1]["type"], TERMINAL)
            tally.add(events[-1]["response"]["usage"], events[-1]["response"]["status"])

    def background(self, tally):
        answer = self.request("POST", RESPONSES_PATH, json=dict(RESPONSE, background=True)).json()
        path = "%s/%s" % (RESPONSES_PATH, answer["id"])
        body = wait_until(lambda: next((body for body in [self.request("GET", path).json()]
                                        if body["status"] == "completed"), None), "the background response")
        tally.add(body["usage"], body["status"])
        self.streamed(RESPONSES_PATH, tally, background=True)

    def assert_agrees(self, tally, before, rounded_s=0.0003):
        """rounded_s: what a request's gaps may be apart from the time that they make together."""
        after = self.scrape()

        def grown(name, **labels):
            return after.sum("vllm:" + name, **labels) - before.sum("vllm:" + name, **labels)
        self.assertEqual({reason: grown("request_success_total", finished_reason=reason)
                          for reason in ("stop", "length", "abort", "error")},
                         dict({"stop": 0, "length": 0, "abort": 0, "error": 0}, **tally.reasons))
        self.assertEqual((grown("prompt_tokens_total"), grown("generation_tokens_total")),
                         (tally.prompt, tally.completion))
        self.assertEqual((grown("request_prompt_tokens_sum"), grown("request_generation_tokens_sum")),
                         (tally.prompt, tally.completion))
        self.assertEqual((grown("prefix_cache_queries_total"), grown("prefix_cache_hits_total")),
                         (tally.prompt, tally.cached))
        for name in ("inter_token_latency_seconds_count", "time_per_output_token_seconds_count"):
            self.assertEqual(grown(name), tally.gaps)
        for name in ("e2e_request_latency_seconds", "request_queue_time_seconds", "request_decode_time_seconds",
                     "request_params_n", "request_time_per_output_token_seconds"):
            self.assertEqual(grown(name + "_count"), tally.requests, name)
        self.assertEqual(grown("time_to_first_token_seconds_count"), tally.with_token)
        # gaps add up to the time between first and last token; a stream's are measured in quarter milliseconds
        self.assertAlmostEqual(grown("inter_token_latency_seconds_sum"), grown("request_decode_time_seconds_sum"),
                               delta=rounded_s * tally.requests)
        self.assertAlmostEqual(grown("request_prefill_time_seconds_sum") + grown("request_decode_time_seconds_sum"),
                               grown("request_inference_time_seconds_sum"))
        self.assertEqual(after.sum("vllm:num_requests_running"), 0)

    def test_what_is_counted_is_what_clients_count(self):
        before, tally = self.scrape(), Tally()
        self.mixed_requests(tally)
        self.assertGreater(tally.requests, 25)
        self.assert_agrees(tally, before)

    def test_and_also_when_tokens_are_joined(self):
        self.start_server(ttft_ms=0, itl_ms=0)
        before, tally = self.scrape(), Tally()
        self.mixed_requests(tally)
        self.assert_agrees(tally, before)

    def test_and_with_noise_and_heartbeats(self):
        self.start_server(ttft_ms=20.0, itl_ms=2.0, itl_std_ms=2.0, output_tokens_std=4.0, heartbeat_s=0.004)
        before, tally = self.scrape(), Tally()
        for number in range(4):
            for path in (CHAT_PATH, RESPONSES_PATH):
                self.streamed(path, tally, **({"n": 2} if path == CHAT_PATH and number % 2 else {}))
                self.plain(path, tally, **({} if path == CHAT_PATH else {"input": "Hello %d" % number}))
        self.assert_agrees(tally, before)
        self.assertGreaterEqual(self.scrape().sum("mockturtle_heartbeats_sent_total"), 8 * 2)

    def test_and_with_a_loaded_engine_and_a_prefix_cache(self):
        self.start_server(max_num_seqs=2, load_factor=1.5, cache_blocks=64, cache_block_tokens=4, output_tokens=20)
        before, tally = self.scrape(), Tally()
        self.mixed_requests(tally)
        self.assertGreater(tally.cached, 0)
        self.assert_agrees(tally, before, 20 * 0.000125)    # a plan's gaps are stretched one by one

    def test_who_waits_for_the_engine_is_told_and_for_how_long(self):
        self.start_server(max_num_seqs=1, ttft_ms=60.0, itl_ms=1.0)
        before, clients = self.scrape(), [self.connect() for _ in range(3)]
        for client, stream in zip(clients, (True, True, False)):
            client.send_request("POST", CHAT_PATH, dict(CHAT, stream=stream))
        wait_until(lambda: (lambda page: (page.sum("vllm:num_requests_running"), page.sum("vllm:num_requests_waiting"))
                            == (1, 2))(self.scrape()), "two to wait for one")
        for client in clients:
            self.assertEqual(client.read_answer().status, 200)
        queue_s, prefill_s, first_s = self.deltas(before, *["vllm:%s_sum" % name for name in (
            "request_queue_time_seconds", "request_prefill_time_seconds", "time_to_first_token_seconds")])
        self.assertGreater(queue_s, 0.060 + 0.120)
        self.assertGreater(prefill_s, 3 * 0.0599)
        self.assertAlmostEqual(first_s, queue_s + prefill_s)

    def test_times_are_those_that_were_asked_for(self):
        self.start_server(ttft_ms=30.0, itl_ms=15.0, output_tokens=5)
        for send in (self.plain, self.streamed):
            before = self.scrape()
            send(CHAT_PATH, Tally())
            first_s, decode_s, whole_s = self.deltas(before, *["vllm:%s_sum" % name for name in (
                "time_to_first_token_seconds", "request_decode_time_seconds", "e2e_request_latency_seconds")])
            self.assertGreater(first_s, 0.0299)
            self.assertGreater(first_s + decode_s, 0.0897)      # a late first token does not shift the last
            self.assertGreater(whole_s, 0.0897)
            self.assertLess(first_s + decode_s, whole_s + 0.0003)

    def test_names_of_models_are_labels(self):
        tally = Tally()
        name = 'a "b" \\ \n c'
        self.plain(CHAT_PATH, tally, model=name)
        self.streamed(RESPONSES_PATH, tally, model=name)
        page = self.scrape()
        self.assertEqual(page.value("vllm:generation_tokens_total", engine="0", model_name=name), tally.completion)
        self.assertEqual(page.value("vllm:inter_token_latency_seconds_count", engine="0", model_name=name), tally.gaps)
        self.assertEqual(page.value("vllm:generation_tokens_total", engine="0", model_name="mock-model"), 0)


@every_form
class EarlyEndTest(MetricsLive):
    """Generations that do not complete, with a backend that says exactly what the test wants."""

    NAMES = ("vllm:generation_tokens_total", "vllm:inter_token_latency_seconds_count",
             "vllm:time_to_first_token_seconds_count", "vllm:e2e_request_latency_seconds_count")

    def setUp(self):
        MetricsLive.setUp(self)
        self.backend = GatedBackend()
        self.start_server(backend=self.backend)
        self.before = self.scrape()

    def begin(self, path, body, words=3):
        """A stream of which the client has read so many tokens: (client, generation)."""
        client = self.connect()
        client.send_request("POST", path, dict(body, stream=True))
        generation = self.backend.next()
        for number in range(words):
            generation.say("word%d" % number)
        answer = client.read_head()
        seen = 0
        while seen < words:
            seen += b"word" in repr(client.read_frame(answer).data).encode()
        self.assertEqual(self.scrape().sum("vllm:num_requests_running"), 1)
        return client, generation

    def assert_lost(self, reason, grown):
        wait_until(lambda: self.deltas(self.before, "vllm:request_success_total", finished_reason=reason) == [1],
                   "the end to be counted")
        self.assertEqual(self.deltas(self.before, *self.NAMES), grown)
        page = self.scrape()
        self.assertEqual((page.sum("vllm:request_success_total"), page.sum("vllm:num_requests_running")), (1, 0))

    def test_a_client_that_leaves_in_mid_stream_is_an_abort(self):
        for path, body in ((CHAT_PATH, CHAT), (RESPONSES_PATH, RESPONSE)):
            with self.subTest(path=path):
                self.before = self.scrape()
                client, generation = self.begin(path, body)
                client.close()
                wait_until(generation.over.is_set, "the generation's end")
                wait_until(lambda: self.deltas(self.before, "mockturtle_client_disconnects_total") == [1])
                self.assertEqual(self.deltas(self.before, *self.NAMES), [3, 2, 1, 0])
                self.assertEqual(self.deltas(self.before, "vllm:request_success_total", finished_reason="abort"), [1])
                self.assertGreater(self.deltas(self.before, "vllm:prompt_tokens_total")[0], 0)
                self.assertEqual(self.deltas(self.before, "mockturtle_http_requests_total", route=path[3:],
                                             status="200"), [1])

    def test_a_client_that_leaves_before_a_plain_answer_is_an_abort_without_tokens(self):
        client = self.connect()
        client.send_request("POST", CHAT_PATH, CHAT)
        self.backend.next().say("word")
        client.close()
        self.assert_lost("abort", [0, 0, 0, 0])
        self.assertEqual(self.deltas(self.before, "mockturtle_http_requests_total", route="/chat/completions",
                                     status="499"), [1])

    def test_a_stream_that_fails_is_an_error(self):
        client, generation = self.begin(CHAT_PATH, CHAT, words=2)
        generation.fail(ApiError(500, "It broke.", type="server_error"))
        wait_until(generation.over.is_set, "the generation's end")
        self.assert_lost("error", [2, 1, 1, 0])
        self.assertEqual(self.deltas(self.before, "mockturtle_failures_total"), [1])

    def test_a_refusal_before_the_first_token_is_an_error_and_answered_with_its_status(self):
        client = self.connect()
        client.send_request("POST", CHAT_PATH, dict(CHAT, stream=True))
        self.backend.next().fail(ApiError(429, "Slow down.", type="requests", code="rate_limit_exceeded"))
        self.assertEqual(client.read_answer().status, 429)
        self.assert_lost("error", [0, 0, 0, 0])
        self.assertEqual(self.deltas(self.before, "mockturtle_http_requests_total", route="/chat/completions",
                                     status="429"), [1])
        self.assertEqual(self.deltas(self.before, "mockturtle_errors_total", **{"class": "4xx"}), [1])

    def test_a_background_response_that_is_cancelled_is_an_abort(self):
        answer = self.request("POST", RESPONSES_PATH, dict(RESPONSE, background=True)).json()
        generation = self.backend.next()
        generation.say("word0")
        generation.say("word1")
        path = "%s/%s" % (RESPONSES_PATH, answer["id"])
        wait_until(lambda: "word1" in repr(self.request("GET", path).json()["output"]), "the two words")
        self.assertEqual(self.scrape().sum("mockturtle_background_responses"), 1)
        self.assertEqual(self.request("POST", path + "/cancel", json={}).json()["status"], "cancelled")
        self.assert_lost("abort", [2, 1, 1, 0])

    def test_a_turn_on_a_websocket_whose_client_leaves_is_an_abort(self):
        client = WebSocketClient(self.address)
        self._clients.append(client)
        client.handshake()
        client.create()
        generation = self.backend.next()
        generation.say("word")
        while client.read_event()["type"] != "response.output_text.delta":
            pass
        self.assertEqual(self.scrape().sum("mockturtle_websockets_open"), 1)
        client.close()
        self.assert_lost("abort", [1, 0, 1, 0])
        wait_until(lambda: self.scrape().sum("mockturtle_websockets_open") == 0, "the WebSocket's end")

    def test_watching_a_background_response_counts_no_tokens_and_leaving_it_no_abort(self):
        body = dict(RESPONSE, background=True, stream=True)
        client, generation = self.begin(RESPONSES_PATH, body, words=2)
        client.close()
        wait_until(lambda: self.deltas(self.before, "mockturtle_client_disconnects_total") == [1])
        self.assertEqual(self.deltas(self.before, "vllm:request_success_total"), [0])
        generation.finish(usage=Usage(3, 2))
        wait_until(lambda: self.deltas(self.before, "vllm:request_success_total", finished_reason="stop") == [1])
        self.assertEqual(self.deltas(self.before, *self.NAMES), [2, 1, 1, 1])


class FullStore(MemoryStore):
    """Waits like a disk; what a thread put cannot be made durable while it is `broken`."""

    blocking = True
    broken = False

    def __init__(self):
        MemoryStore.__init__(self)
        self._put = threading.local()

    def put(self, node, conversation=None):
        MemoryStore.put(self, node, conversation)
        self._put.waits = True

    def written(self):
        waits, self._put.waits = getattr(self._put, "waits", None), None
        return waits

    def flush(self, mark=None):
        if (mark or self.written()) and self.broken:
            raise ApiError(503, "The disk is full.", type="server_error")


@every_form
class StoreTest(MetricsLive):

    settings = {"output_tokens": 4}

    def make_store(self):
        self.store = FullStore()
        return self.store

    def test_an_answer_counts_when_what_it_stored_is_durable_and_else_as_an_error(self):
        self.start_server(ttft_ms=2.0)
        self.check_answers()

    def test_and_one_that_takes_no_time_too(self):
        self.start_server(ttft_ms=0)
        self.check_answers()

    def check_answers(self):
        bodies = (RESPONSE, dict(RESPONSE, stream=True))
        for broken, reason, finished in ((False, "stop", 1), (True, "error", 0)):
            for body in bodies:
                with self.subTest(broken=broken, body=body):
                    before = self.scrape()
                    self.store.broken = broken
                    answer = self.request("POST", RESPONSES_PATH, body)
                    self.store.broken = False
                    status = 503 if broken and body is RESPONSE else 200
                    self.assertEqual(answer.status, status)
                    self.assertEqual(self.deltas(before, "vllm:request_success_total", finished_reason=reason), [1])
                    self.assertEqual(self.deltas(before, "vllm:request_success_total",
                                                 "vllm:e2e_request_latency_seconds_count"), [1, finished])
                    self.assertEqual(self.deltas(before, "mockturtle_http_requests_total", route="/responses"), [1])
                    self.assertEqual(self.deltas(before, "mockturtle_http_requests_total", route="/responses",
                                                 status=str(status)), [1])


@every_form
class ServerTest(MetricsLive):
    """What the page says beside generations."""

    settings = {"output_tokens": 3}

    def test_requests_are_counted_by_route_method_and_status(self):
        before = self.scrape()
        client = self.connect()
        for method, path, body, status in (
                ("GET", "/v1/models", None, 200), ("HEAD", "/v1/models", None, 200), ("GET", "/v1/models/some/name", None, 404),
                ("POST", CHAT_PATH, {}, 400), ("GET", "/nowhere", None, 404), ("PUT", CHAT_PATH, {}, 405),
                ("GET", "/v1/responses/resp_unknown", None, 404), ("OPTIONS", "/v1/models", None, 204)):
            self.assertEqual(client.request(method, path, body).status, status, (method, path))
        after = self.scrape()
        grown = {sample.labels: sample.value for sample in after.samples if sample.name == "mockturtle_http_requests_total"}
        for labels in [("/models", "GET", "200"), ("/models", "HEAD", "200"), ("/models/{+}", "GET", "404"),
                       ("/chat/completions", "POST", "400"), ("unknown", "GET", "404"),
                       ("/chat/completions", "PUT", "405"), ("/responses/{}", "GET", "404"),
                       ("/models", "OPTIONS", "204"), ("/metrics", "GET", "200")]:
            key = frozenset(zip(("route", "method", "status"), labels))
            self.assertEqual(grown.pop(key, None), 1, labels)
        self.assertEqual(grown, {})
        self.assertEqual(after.sum("mockturtle_errors_total", **{"class": "4xx"})
                         - before.sum("mockturtle_errors_total", **{"class": "4xx"}), 5)

    def test_a_request_that_cannot_be_read_is_counted(self):
        client = self.connect()
        client.send(b"GET / HTTP/1.1\r\n\r\n")
        self.assertEqual(client.read_answer().status, 400)
        self.assertEqual(self.scrape().value("mockturtle_http_requests_total", route="unknown", method="GET",
                                             status="400"), 1)

    def test_connections_are_counted_and_let_go(self):
        clients = [self.connect() for _ in range(3)]
        for client in clients:
            client.request("GET", "/health")
        page = self.scrape()
        self.assertEqual((page.value("mockturtle_connections_total"), page.value("mockturtle_connections_open")), (4, 4))
        for client in clients:
            client.close()
        wait_until(lambda: self.scrape().value("mockturtle_connections_open") == 1, "the connections to close")

    def test_what_is_stored_is_told(self):
        self.request("POST", RESPONSES_PATH, RESPONSE)
        self.request("POST", "/v1/conversations", {})
        page = self.scrape()
        self.assertEqual((page.value("mockturtle_store_responses"), page.value("mockturtle_store_conversations"),
                          page.value("mockturtle_store_evicted_total")), (1, 1, 0))
        self.assertGreater(page.value("mockturtle_store_bytes"), 100)

    def test_a_scrape_may_ask_for_openmetrics(self):
        for accept, kind in ((None, "text/plain; version=0.0.4; charset=utf-8"),
                             ("application/openmetrics-text", "application/openmetrics-text; version=1.0.0; charset=utf-8")):
            answer = self.request("GET", "/metrics", headers={"Accept": accept} if accept else None)
            self.assertEqual(answer.headers["content-type"], kind)
        self.assertEqual(self.scrape("application/openmetrics-text").types["vllm:prompt_tokens"], "counter")
        head = self.connect().request("HEAD", "/metrics")
        self.assertEqual((head.status, head.body), (200, b""))

    def test_a_scrape_needs_no_key(self):
        self.start_server(api_key=("secret",))
        self.assertEqual(self.request("GET", "/v1/models").status, 401)
        self.assertIn("vllm:prompt_tokens_total", self.scrape().types)

    def test_frames_of_streams_are_in_the_lateness_histogram(self):
        self.start_server(ttft_ms=3.0, itl_ms=1.0)
        self.stream(CHAT_PATH, CHAT)
        self.assertGreaterEqual(self.scrape().value("mockturtle_frame_lateness_seconds_count"), 3)

    def test_the_summary_and_the_snapshot_agree_with_the_page(self):
        self.request("POST", CHAT_PATH, CHAT)
        self.stream(CHAT_PATH, CHAT)
        snapshot = self.server.metrics.snapshot()
        self.assertEqual([snapshot[name] for name in ("requests", "completions", "completion_tokens", "finished_stop",
                                                      "finished_abort", "running")], [2, 2, 6, 2, 0, 0])
        self.assertIn("served 2 requests, 2 completions, 6 completion tokens; 0 clients left early", self.server.summary())


@every_form
class OwnBackendTest(MetricsLive):

    def test_tokens_of_a_backend_that_waits_are_counted_as_they_went_out(self):
        deltas = [(0.01, TextDelta("one")), (0.03, TextDelta("two")), (None, TextDelta("")), (0.06, TextDelta("three")),
                  (None, Finish("stop")), (None, Usage(4, 3))]
        for blocking in (False, True):
            self.start_server(backend=DeltaBackend(deltas, blocking))
            try:
                for body in (CHAT, dict(CHAT, stream=True)):
                    before = self.scrape()
                    self.request("POST", CHAT_PATH, body)
                    grown = self.deltas(before, "vllm:inter_token_latency_seconds_count",
                                        "vllm:inter_token_latency_seconds_sum", "vllm:time_to_first_token_seconds_sum")
                    self.assertEqual(grown[0], 2)
                    if body.get("stream") or not blocking:      # a plain answer's deltas come when the backend says them
                        self.assertGreater(grown[1] + grown[2], 0.0597)
                        self.assertGreater(grown[2], 0.0099)
            finally:
                self.doCleanups()
                self.setUp()


if __name__ == "__main__":
    unittest.main()
