"""Two hops: our own server behind the gateway. What comes out is what went in. And upstreams behind TLS and proxies."""
import socket
import threading
import unittest

from backends.contract import Finish, ReasoningDelta, RefusalDelta, TextDelta, ToolCallDelta, Usage
from server import MockTurtle
from tests.support import DeltaBackend, RawClient, every_form, parse_events
from tests.test_gateway import GatewayTestCase
from tests.test_tls import make_pair

LONG = [(None, TextDelta("Grüße, %d 世界 \U0001f389 \"quoted\"\n" % number)) for number in range(200)]
LOGPROBS = [{"token": "a", "bytes": [97], "logprob": -0.5, "top_logprobs": [{"token": "a", "bytes": [97], "logprob": -0.5}]}]


@every_form
class HopTest(GatewayTestCase):
    """Behind the gateway is a server with a backend of known deltas, or the simulated one."""

    def behind(self, deltas=None, **settings):
        behind = MockTurtle(backend=None if deltas is None else DeltaBackend(deltas), **settings)
        behind.start()
        self.addCleanup(behind.stop)
        self._threads_before.update(threading.enumerate())      # they end after the gateway
        self.start(upstream_url=(behind.base_url,))
        return behind

    def both(self, behind, path, **body):
        """(direct answer, answer through the gateway)."""
        client = RawClient(behind.server.server_address)
        try:
            return client.request("POST", path, dict(body, model="m")), self.request("POST", path, dict(body, model="m"))
        finally:
            client.close()

    def neutral(self, value):
        """Without ids and times, which are each server's own."""
        if isinstance(value, list):
            return [self.neutral(each) for each in value]
        if not isinstance(value, dict):
            return value
        return {key: self.neutral(each) for key, each in value.items()
                if key not in ("id", "created", "created_at", "completed_at", "item_id", "encrypted_content")}

    def assert_same(self, answers, streamed):
        direct, through = answers
        self.assertEqual((direct.status, through.status), (200, 200), through.body)
        if not streamed:
            self.assertEqual(self.neutral(through.json()), self.neutral(direct.json()))
            return
        direct, through = ([self.neutral(event.data) for event in parse_events(answer.body)] for answer in (direct, through))
        self.assertEqual(through, direct)

    def test_a_chat_streamed_and_plain(self):
        behind = self.behind(LONG + [(None, Finish("length")), (None, Usage(7, 400, 0, 3))])
        messages = [{"role": "user", "content": "x"}]
        for more in ({}, {"stream": True}, {"stream": True, "stream_options": {"include_usage": True}}):
            self.assert_same(self.both(behind, "/v1/chat/completions", messages=messages, **more), "stream" in more)

    def test_calls_refusals_reasoning_and_logprobs(self):
        tools = [{"type": "function", "function": {"name": "f", "parameters": {"type": "object"}}}]
        behind = self.behind([])
        for deltas in ([TextDelta("One."), ToolCallDelta(0, '{"a":', "call_1", "f"), ToolCallDelta(1, "{", "call_2", "f"),
                        ToolCallDelta(0, "1}"), ToolCallDelta(1, "}"), Finish("tool_calls")],
                       [RefusalDelta("I will "), RefusalDelta("not."), Finish("stop")],
                       [ReasoningDelta("Hm. ", "raw"), ReasoningDelta("So.", "raw"), TextDelta("a", LOGPROBS), Finish("stop")]):
            with self.subTest(first=deltas[0]):
                behind.server.backend.deltas = [(None, delta) for delta in deltas] + [(None, Usage(3, 9, 2))]
                for stream in (False, True):
                    self.assert_same(self.both(behind, "/v1/chat/completions", messages=[{"role": "user", "content": "x"}],
                                               tools=tools, logprobs=True, top_logprobs=1, stream=stream), stream)
                    self.assert_same(self.both(behind, "/v1/responses", input="x", tools=[dict(tools[0]["function"], type="function")],
                                               include=["message.output_text.logprobs"], top_logprobs=1, stream=stream), stream)

    def test_text_completions_with_logprobs_and_several_choices(self):
        behind = self.behind(output_tokens=6)
        for more in ({"n": 2}, {"logprobs": 2}, {"echo": True, "max_tokens": 3, "logprobs": 1}, {"prompt": ["a b", "c"]}):
            for stream in (False, True):
                answers = self.both(behind, "/v1/completions", **dict({"prompt": "One two", "seed": 3, "max_tokens": 4,
                                                                       "stream": stream}, **more))
                if not stream:
                    self.assert_same(answers, False)
                    continue
                direct, through = (parse_events(answer.body) for answer in answers)
                text = ["".join(choice["text"] for event in events if event.data != "[DONE]"
                                for choice in event.data["choices"]) for events in (direct, through)]
                self.assertEqual(len(text[0]), len(text[1]))

    def test_embeddings_and_tokens(self):
        behind = self.behind()
        for path, body in (("/v1/embeddings", {"input": "sea", "dimensions": 4}), ("/tokenize", {"prompt": "the sea"})):
            self.assert_same(self.both(behind, path, **body), False)

    def test_a_refusal_of_the_upstream_is_the_clients(self):
        behind = self.behind(max_model_len=10)
        direct, through = self.both(behind, "/v1/chat/completions", messages=[{"role": "user", "content": "x " * 100}])
        self.assertEqual((through.status, through.error), (direct.status, direct.error))


class TlsTest(GatewayTestCase):

    def tls_upstream(self):
        import ssl
        cert, key = make_pair()
        context = ssl.SSLContext(ssl.PROTOCOL_TLS_SERVER)
        context.load_cert_chain(cert, key)
        upstream = self.new_upstream(lambda sock: context.wrap_socket(sock, server_side=True))
        return upstream, "https://localhost:%d/v1" % upstream.port, cert

    def test_an_upstream_whose_certificate_is_known_is_asked_and_its_connection_kept(self):
        self.upstream, url, cert = self.tls_upstream()
        self.start(upstream_url=(url,), upstream_ca=cert)
        for text in ("one", "x" * 100000):
            self.assertIn(text, self.answered(text=text).text)
        self.assertEqual(len(self.upstream.connections), 1)

    def test_an_upstream_whose_certificate_is_not_known_is_not_asked(self):
        self.upstream, url, _ = self.tls_upstream()
        self.start(upstream_url=(url,), upstream_retries=0)
        answer = self.request("POST", "/v1/responses", {"model": "m", "input": "x"})
        self.assertEqual((answer.status, answer.error["type"]), (502, "upstream_error"))
        self.assertIn("certificate", answer.error["message"])
        self.assertEqual(self.upstream.requests, [])

    def test_https_goes_through_a_tunnel_of_the_environments_proxy(self):
        self.upstream, url, cert = self.tls_upstream()
        proxy = socket.create_server(("127.0.0.1", 0))
        asked = []

        def tunnel():
            near, _ = proxy.accept()
            with near, socket.create_connection(("127.0.0.1", self.upstream.port), 5) as far:
                while b"\r\n\r\n" not in b"".join(asked):
                    asked.append(near.recv(4096))
                near.sendall(b"HTTP/1.1 200 Connection established\r\n\r\n")
                back = threading.Thread(target=pump, args=(far, near))
                back.start()
                pump(near, far)
                back.join(5)

        def pump(source, sink):
            try:
                for data in iter(lambda: source.recv(65536), b""):
                    sink.sendall(data)
                sink.shutdown(socket.SHUT_WR)
            except OSError:
                return
        thread = threading.Thread(target=tunnel)
        thread.start()
        self._threads_before.add(thread)
        self.addCleanup(proxy.close)
        self.addCleanup(thread.join, 5)
        for name in ("no_proxy", "NO_PROXY"):
            self.setenv(name, "")
        self.setenv("https_proxy", "http://127.0.0.1:%d" % proxy.getsockname()[1])
        self.start(upstream_url=(url,), upstream_ca=cert)
        self.assertIn("hidden", self.answered(text="hidden").text)
        self.assertTrue(asked[0].startswith(b"CONNECT localhost:%d HTTP/1.1\r\n" % self.upstream.port))
        self.assertNotIn(b"hidden", b"".join(asked))


if __name__ == "__main__":
    unittest.main()
