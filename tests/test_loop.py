"""The transports with real sockets, each test on both forms: the loop, and a thread per connection."""
import gc
import socket
import threading
import time
from random import Random

from api_common import ApiError
from backends.contract import Backend, Finish, TextDelta, Usage
from state.memory import MemoryStore
from tests.support import (CHAT, RESPONSE, TIMEOUT_S, ConnectionEnded, DeltaBackend, GatedBackend, LiveServerTest,
                           RawClient, chat_text, every_form, request_bytes, wait_until)

CHAT_PATH, RESPONSES_PATH = "/v1/chat/completions", "/v1/responses"
STREAM = dict(CHAT, stream=True)
MODELS = request_bytes("GET", "/v1/models")


def errors_of(answer):
    return answer.status, answer.error["type"]


@every_form
class PipelineTest(LiveServerTest):

    settings = {"itl_ms": 1}

    def test_four_requests_two_of_them_streams_are_answered_in_order(self):
        client = self.connect()
        client.send(request_bytes("POST", CHAT_PATH, STREAM) + MODELS
                    + request_bytes("POST", RESPONSES_PATH, dict(RESPONSE, stream=True))
                    + request_bytes("GET", "/health"))
        self.assertEqual(client.read_answer().events()[-1].data, "[DONE]")
        self.assertEqual(client.read_answer().json()["object"], "list")
        self.assertEqual(client.read_answer().events()[0].name, "response.created")
        self.assertEqual(client.read_answer().json(), {"status": "ok"})

    def test_the_same_a_byte_at_a_time(self):
        client = self.connect()
        data = request_bytes("POST", CHAT_PATH, STREAM) + MODELS
        for at in range(len(data)):
            client.send(data[at:at + 1])
        self.assertEqual(client.read_answer().events()[-1].data, "[DONE]")
        self.assertEqual(client.read_answer().json()["object"], "list")

    def test_many_short_requests_at_once(self):
        client = self.connect()
        client.send(MODELS * 500)
        for _ in range(500):
            self.assertEqual(client.read_answer().status, 200)

    def test_a_refused_request_in_the_middle_keeps_the_order(self):
        client = self.connect()
        client.send(MODELS + request_bytes("POST", CHAT_PATH, {"model": 5}) + request_bytes("GET", "/nowhere")
                    + MODELS)
        self.assertEqual([client.read_answer().status for _ in range(4)], [200, 400, 404, 200])

    def test_nothing_is_answered_behind_an_unreadable_request(self):
        client = self.connect()
        client.send(MODELS + b"GET / HTTP/1.1\r\n\r\n" + MODELS)
        self.assertEqual([client.read_answer().status for _ in range(2)], [200, 400])
        self.assertTrue(client.has_ended())

    def test_nothing_is_answered_behind_connection_close(self):
        client = self.connect()
        client.send(request_bytes("GET", "/health", headers={"Connection": "close"}) + MODELS)
        self.assertEqual(client.read_answer().headers["connection"], "close")
        self.assertTrue(client.has_ended())

    def test_a_next_request_that_comes_in_two_halves_around_an_answer(self):
        # the parser holds one half and the socket the other when the answer ends
        for close in (False, True):
            with self.subTest(close=close):
                backend = self.gated()
                client = self.connect()
                following = request_bytes("GET", "/health", headers={"Connection": "close"} if close else None)
                client.send(request_bytes("POST", CHAT_PATH, STREAM) + following[:20])
                generation = backend.next()
                generation.say("Hi")
                answer = client.read_head()
                client.read_frame(answer)
                client.send(following[20:])
                generation.finish()
                self.assertEqual(client.read_rest(answer)[-1].data, "[DONE]")
                self.assertEqual(client.read_answer().json(), {"status": "ok"})
                self.assertEqual(self.request("GET", "/health").status, 200)

    def test_the_same_around_a_paced_answer(self):
        # the answer ends in a tick of the pacer, and the next poll finds the other half waiting
        self.start_server(itl_ms=5)
        for close in (False, True):
            with self.subTest(close=close):
                client = self.connect()
                following = request_bytes("GET", "/health", headers={"Connection": "close"} if close else None)
                client.send(request_bytes("POST", CHAT_PATH, STREAM) + following[:20])
                answer = client.read_head()
                client.read_frame(answer)
                client.send(following[20:])
                self.assertEqual(client.read_rest(answer)[-1].data, "[DONE]")
                self.assertEqual(client.read_answer().json(), {"status": "ok"})
                self.assertEqual(self.request("GET", "/health").status, 200)

    def gated(self):
        if self._server is None:
            self.start_server(backend=GatedBackend())
        return self.server.backend

    def test_two_requests_behind_an_answer_the_first_of_them_closing(self):
        backend = self.gated()
        client = self.connect()
        client.send(request_bytes("POST", CHAT_PATH, STREAM)
                    + request_bytes("GET", "/health", headers={"Connection": "close"}) + MODELS)
        generation = backend.next()
        generation.finish()
        self.assertEqual(client.read_answer().events()[-1].data, "[DONE]")
        self.assertEqual(client.read_answer().json(), {"status": "ok"})
        self.assertTrue(client.has_ended())
        self.assertEqual(self.request("GET", "/health").status, 200)


@every_form
class KeepAliveTest(LiveServerTest):

    def test_a_connection_is_kept_over_plain_and_streamed_answers(self):
        client = self.connect()
        for _ in range(3):
            self.assertEqual(client.request("GET", "/v1/models").status, 200)
            self.assertEqual(client.request("POST", CHAT_PATH, CHAT).status, 200)
            self.assertEqual(client.request("POST", CHAT_PATH, STREAM).framing, "chunked")
        self.assertEqual(self.count("connections"), 1)

    def test_a_connection_is_kept_after_errors(self):
        client = self.connect()
        cases = [("POST", CHAT_PATH, b"{", 400), ("GET", "/nowhere", None, 404), ("PUT", "/v1/models", b"x", 405),
                 ("POST", "/v1/models", b"{}", 405), ("POST", CHAT_PATH, b"[]", 400)]
        for method, path, body, status in cases:
            with self.subTest(method=method, path=path):
                answer = client.request(method, path, body=body)
                self.assertEqual((answer.status, "connection" in answer.headers), (status, False))
        self.assertEqual(client.request("GET", "/health").status, 200)

    def test_an_unreadable_request_gets_an_envelope_and_the_end(self):
        for data, status in ((b"nonsense\r\n\r\n", 400), (b"PRI * HTTP/2.0\r\n\r\nSM\r\n\r\n", 505),
                             (b"GET / HTTP/1.1\r\nHost: a\r\nContent-Length: 1\r\nContent-Length: 1\r\n\r\n", 400),
                             (b"GET /" + b"a" * 20000 + b" HTTP/1.1\r\nHost: a\r\n\r\n", 414),
                             (b"GET / HTTP/1.1\r\nHost: a\r\n" + b"A: b\r\n" * 300 + b"\r\n", 431),
                             (b"POST / HTTP/1.1\r\nHost: a\r\nTransfer-Encoding: gzip\r\n\r\n", 501)):
            with self.subTest(data=data[:40]):
                client = self.connect()
                client.send(data)
                answer = client.read_answer()
                self.assertEqual(errors_of(answer), (status, "invalid_request_error"))
                self.assertEqual(answer.headers["connection"], "close")
                self.assertTrue(client.has_ended())

    def test_connection_close_is_obeyed_for_streams_as_well(self):
        client = self.connect()
        answer = client.request("POST", CHAT_PATH, STREAM, {"Connection": "Close"})
        self.assertEqual((answer.headers["connection"], answer.framing), ("close", "chunked"))
        self.assertTrue(client.has_ended())

    def test_http10_gets_a_length_and_the_end(self):
        client = self.connect()
        answer = client.request("GET", "/health", version="1.0")
        self.assertEqual((answer.framing, answer.headers["connection"]), ("length", "close"))
        self.assertTrue(client.has_ended())

    def test_http10_keep_alive(self):
        client = self.connect()
        for _ in range(2):
            answer = client.request("GET", "/health", headers={"Connection": "keep-alive"}, version="1.0")
            self.assertEqual(answer.headers["connection"], "keep-alive")

    def test_http10_streams_are_bare_and_end_with_the_connection(self):
        client = self.connect()
        answer = client.request("POST", CHAT_PATH, STREAM, {"Connection": "keep-alive"}, version="1.0")
        self.assertEqual(answer.framing, "close")
        self.assertEqual(answer.events()[-1].data, "[DONE]")

    def test_one_frame_is_one_chunk(self):
        self.start_server(itl_ms=2)
        answer = self.request("POST", CHAT_PATH, STREAM)
        self.assertEqual(len(answer.chunks), len(answer.events()))
        self.assertTrue(all(chunk.endswith(b"\n\n") for chunk in answer.chunks))

    def test_head_answers_as_get_without_the_body(self):
        client = self.connect()
        head = client.request("HEAD", "/v1/models")
        get = client.request("GET", "/v1/models")
        self.assertEqual((head.status, head.headers["content-length"]), (200, get.headers["content-length"]))
        self.assertEqual(set(head.headers), set(get.headers))

    def test_head_of_an_error_has_no_body_either(self):
        client = self.connect()
        self.assertEqual(client.request("HEAD", "/nowhere").status, 404)
        self.assertEqual(client.request("HEAD", "/v1/embeddings").status, 405)
        self.assertEqual(client.request("GET", "/health").status, 200)

    def test_every_answer_carries_its_own_request_id(self):
        client = self.connect()
        ids = {client.request("GET", path).headers["x-request-id"] for path in ("/health", "/health", "/no", "/no")}
        self.assertEqual(len(ids), 4)

    def test_chunked_request_bodies_are_read(self):
        body = b"".join(b"%x;a=b\r\n%s\r\n" % (len(piece), piece) for piece in
                        (b'{"model":"mock-model",', b'"messages":[{"role":"user",', b'"content":"Hi"}]}'))
        client = self.connect()
        client.send(b"POST /v1/chat/completions HTTP/1.1\r\nHost: a\r\nTransfer-Encoding: chunked\r\n\r\n" + body
                    + b"0\r\nTrailer: x\r\n\r\n" + MODELS)
        self.assertEqual(client.read_answer().json()["object"], "chat.completion")
        self.assertEqual(client.read_answer().json()["object"], "list")

    def test_absolute_and_encoded_targets_reach_their_routes(self):
        client = self.connect()
        for path in ("http://localhost/v1/models", "/v1/%6dodels", "/models", "/v1/models?x=1", "/v1/models/"):
            with self.subTest(path=path):
                self.assertEqual(client.request("GET", path).json()["object"], "list")


@every_form
class ContinueTest(LiveServerTest):

    settings = {"max_body_mb": 1}

    def test_a_client_that_waits_for_100_gets_it_and_then_its_answer(self):
        data = request_bytes("POST", CHAT_PATH, CHAT, {"Expect": "100-continue"})
        head, _, body = data.partition(b"\r\n\r\n")
        client = self.connect()
        for _ in range(2):
            client.send(head + b"\r\n\r\n")
            self.assertEqual(client.read_head().status, 100)
            client.send(body)
            self.assertEqual(client.read_answer().status, 200)

    def test_a_client_that_does_not_wait_gets_only_its_answer(self):
        self.assertEqual(self.request("POST", CHAT_PATH, CHAT, {"Expect": "100-continue"}).status, 200)

    def test_a_body_that_would_be_too_large_is_refused_instead(self):
        client = self.connect()
        client.send(request_bytes("POST", CHAT_PATH, headers={"Expect": "100-continue", "Content-Length": "2000000"}))
        self.assertEqual(client.read_answer().status, 413)
        self.assertTrue(client.has_ended())

    def test_other_expectations_are_417(self):
        self.assertEqual(self.request("POST", CHAT_PATH, CHAT, {"Expect": "a miracle"}).status, 417)

    def test_a_client_that_sends_its_big_body_all_the_same_still_gets_the_413(self):
        for framing in ("length", "chunked"):
            with self.subTest(framing=framing):
                client = self.connect()
                if framing == "length":
                    client.send(request_bytes("POST", CHAT_PATH, body=b"x" * 3000000))
                else:
                    client.send(b"POST / HTTP/1.1\r\nHost: a\r\nTransfer-Encoding: chunked\r\n\r\n"
                                + b"10000\r\n%s\r\n" % (b"x" * 65536) * 40)
                answer = client.read_answer()
                self.assertEqual((answer.status, answer.headers["connection"]), (413, "close"))
                self.assertTrue(client.has_ended())

    def test_a_body_of_the_limit_is_read(self):
        padding = "x" * ((1 << 20) - len(request_bytes("POST", "/", CHAT).partition(b"\r\n\r\n")[2]) - 13)
        body = dict(CHAT, user=padding)
        self.assertEqual(self.request("POST", CHAT_PATH, body).status, 200)


@every_form
class RoutesTest(LiveServerTest):

    def test_unknown_paths_are_404(self):
        for path in ("/", "/v1", "/v1/", "/v2/models", "/v1/chat", "/v1/models/mock-model/x", "/health/x"):
            with self.subTest(path=path):
                self.assertEqual(errors_of(self.request("GET", path)), (404, "invalid_request_error"))

    def test_known_paths_with_another_method_are_405_and_name_what_is_allowed(self):
        cases = [("PUT", CHAT_PATH, "GET, POST"), ("GET", "/v1/embeddings", "POST"), ("DELETE", "/v1/models", "GET"), ("BREW", "/health", "GET"),
                 ("PATCH", "/v1/responses/resp_1", "DELETE, GET")]
        for method, path, allowed in cases:
            with self.subTest(method=method, path=path):
                answer = self.request(method, path)
                self.assertEqual((answer.status, answer.headers["allow"]), (405, allowed))

    def test_encoded_bodies_are_415(self):
        client = self.connect()
        for coding in ("gzip", "br", "deflate, gzip"):
            answer = client.request("POST", CHAT_PATH, CHAT, {"Content-Encoding": coding})
            self.assertEqual(errors_of(answer), (415, "invalid_request_error"))
        self.assertEqual(client.request("POST", CHAT_PATH, CHAT, {"Content-Encoding": "Identity"}).status, 200)

    def test_a_path_that_holds_control_characters_is_repeated_escaped(self):
        answer = self.request("GET", "/%0d%0aSet-Cookie:%20a/%00/%22")
        self.assertEqual(answer.status, 404)
        self.assertNotIn("set-cookie", answer.headers)
        self.assertIn("\r\nSet-Cookie: a/\0/\"", answer.error["message"])


@every_form
class CorsTest(LiveServerTest):

    ORIGIN = {"Origin": "http://page.example"}
    PREFLIGHT = dict(ORIGIN, **{"Access-Control-Request-Method": "POST",
                                "Access-Control-Request-Headers": "authorization, x-odd"})

    def test_a_preflight_is_answered_with_what_was_asked_for(self):
        answer = self.request("OPTIONS", CHAT_PATH, headers=self.PREFLIGHT)
        self.assertEqual((answer.status, answer.body), (204, b""))
        self.assertEqual(answer.headers["access-control-allow-origin"], "http://page.example")
        self.assertEqual(answer.headers["access-control-allow-headers"], "authorization, x-odd")
        self.assertIn("POST", answer.headers["access-control-allow-methods"])

    def test_answers_of_every_kind_carry_the_origin(self):
        client = self.connect()
        answers = [client.request("GET", "/v1/models", headers=self.ORIGIN),
                   client.request("GET", "/nowhere", headers=self.ORIGIN),
                   client.request("POST", CHAT_PATH, STREAM, self.ORIGIN),
                   client.request("POST", CHAT_PATH, CHAT, self.ORIGIN)]
        for answer in answers:
            self.assertEqual(answer.headers["access-control-allow-origin"], "http://page.example")
            self.assertEqual(answer.headers["vary"], "Origin")

    def test_answers_without_an_origin_carry_nothing(self):
        self.assertNotIn("access-control-allow-origin", self.request("GET", "/v1/models").headers)

    def test_only_the_allowed_origins_are_echoed(self):
        self.start_server(cors_origin=("http://page.example",))
        client = self.connect()
        self.assertIn("access-control-allow-origin", client.request("GET", "/health", headers=self.ORIGIN).headers)
        self.assertNotIn("access-control-allow-origin",
                         client.request("GET", "/health", headers={"Origin": "http://evil.example"}).headers)

    def test_none_switches_it_off(self):
        self.start_server(cors_origin=("none",))
        for origin in ("http://page.example", "null"):
            self.assertNotIn("access-control-allow-origin",
                             self.request("GET", "/health", headers={"Origin": origin}).headers)

    def test_options_tells_what_a_path_offers(self):
        client = self.connect()
        self.assertEqual(client.request("OPTIONS", "/v1/models").headers["allow"], "GET, HEAD, OPTIONS")
        self.assertEqual(client.request("OPTIONS", "*").status, 204)
        self.assertEqual(client.request("OPTIONS", "/nowhere").status, 404)


@every_form
class KeyTest(LiveServerTest):

    settings = {"api_key": ("sk-first", "sk-second")}

    def test_a_right_key_is_let_in(self):
        for value in ("Bearer sk-first", "Bearer sk-second", "bearer sk-first", "Bearer  sk-first "):
            with self.subTest(value=value):
                self.assertEqual(self.request("GET", "/v1/models", headers={"Authorization": value}).status, 200)

    def test_a_wrong_or_missing_key_is_401_and_the_body_does_not_tell_it(self):
        client = self.connect()
        for value in (None, "", "Bearer", "Bearer ", "Bearer sk-wrong", "Bearer sk-firs", "Bearer sk-first2",
                      "Basic sk-first", "sk-first", "Bearer sk-\xe9", "Bearer sk-first, Bearer sk-first"):
            with self.subTest(value=value):
                answer = client.request("POST", CHAT_PATH, CHAT, {} if value is None else {"Authorization": value})
                self.assertEqual(errors_of(answer), (401, "invalid_request_error"))
                for secret in ("sk-first", "sk-second", "sk-wrong"):
                    self.assertNotIn(secret, answer.text)
        self.assertEqual(client.request("GET", "/v1/models", headers={"Authorization": "Bearer sk-first"}).status, 200)
        self.assertEqual([line for line in self.server.log_lines if "sk-" in line], [])

    def test_a_wrong_key_has_the_code_that_clients_look_for(self):
        answer = self.request("GET", "/v1/models", headers={"Authorization": "Bearer x"})
        self.assertEqual(answer.error["code"], "invalid_api_key")

    def test_a_key_of_one_client_never_opens_the_door_for_another(self):
        # heads are cached by their bytes; the decision must not be
        for _ in range(3):
            self.assertEqual(self.request("GET", "/v1/models", headers={"Authorization": "Bearer sk-first"}).status, 200)
            self.assertEqual(self.request("GET", "/v1/models").status, 401)
            self.assertEqual(self.request("GET", "/v1/models", headers={"Authorization": "Bearer sk-third"}).status, 401)

    def test_unknown_paths_need_a_key_as_well(self):
        self.assertEqual(self.request("GET", "/nowhere").status, 401)

    def test_health_and_preflights_need_none(self):
        self.assertEqual(self.request("GET", "/health").status, 200)
        self.assertEqual(self.request("OPTIONS", CHAT_PATH, headers=CorsTest.PREFLIGHT).status, 204)


@every_form
class TimeoutTest(LiveServerTest):

    settings = {"header_timeout_s": 0.2, "body_timeout_s": 0.2, "idle_timeout_s": 0.2}

    def assert_408(self, client):
        answer = client.read_answer()
        self.assertEqual((answer.status, answer.headers["connection"]), (408, "close"))
        self.assertTrue(client.has_ended())

    def test_half_a_request_is_408_and_an_idle_connection_is_closed_without_a_word(self):
        started_s = time.monotonic()
        idle, used, empty_line, head, body, chunks, pipelined = [self.connect() for _ in range(7)]
        self.assertEqual(used.request("GET", "/health").status, 200)
        empty_line.send(b"\r\n")
        head.send(b"GET /v1/models HT")
        body.send(request_bytes("POST", CHAT_PATH, CHAT)[:-5])
        chunks.send(b"POST / HTTP/1.1\r\nHost: a\r\nTransfer-Encoding: chunked\r\n\r\n5\r\nhe")
        pipelined.send(MODELS + b"GET /v1")
        self.assertEqual(pipelined.read_answer().status, 200)
        for client in (head, body, chunks, pipelined):
            self.assert_408(client)
        for client in (idle, used, empty_line):
            self.assertTrue(client.has_ended())
        self.assertGreaterEqual(time.monotonic() - started_s, 0.2)

    def test_drops_of_a_head_do_not_buy_time(self):
        client = self.connect()
        stop = threading.Event()

        def drip():
            for byte in MODELS[:-4] + b"\r\nX: " + b"x" * 10000:
                try:
                    client.send(bytes((byte,)))
                except OSError:
                    return
                if stop.wait(0.02):
                    return
        thread = threading.Thread(target=drip)
        thread.start()
        try:
            self.assertEqual(client.read_answer().status, 408)
        finally:
            stop.set()
            thread.join(TIMEOUT_S)

    def test_an_answer_that_takes_longer_than_the_timeouts_is_let_be(self):
        self.start_server(ttft_ms=1100)
        self.assertEqual(self.request("POST", CHAT_PATH, CHAT).status, 200)

    def test_half_a_request_holds_no_thread_but_in_the_form_of_that_name(self):
        self.start_server(header_timeout_s=20, body_timeout_s=20)
        self.assertEqual(self.request("GET", "/health").status, 200)
        before = set(threading.enumerate())
        for number in range(40):
            self.connect().send(b"GET /v1/mod" if number % 2 else request_bytes("POST", CHAT_PATH, CHAT)[:-3])
        self.wait_for_count("connections", 41)
        expected = 40 if self.form == "Threads" else 0
        wait_until(lambda: len(set(threading.enumerate()) - before) == expected, "%d new threads" % expected)
        self.assertEqual(self.request("GET", "/health").status, 200)


@every_form
class MaxConnectionsTest(LiveServerTest):

    settings = {"max_connections": 2}

    def test_more_get_503_and_the_end_until_one_has_left(self):
        clients = [self.connect(), self.connect()]
        for client in clients:
            self.assertEqual(client.request("GET", "/health").status, 200)
        extra = self.connect()
        extra.send(MODELS)
        answer = extra.read_answer()
        self.assertEqual((answer.status, answer.headers["connection"], answer.headers["retry-after"]),
                         (503, "close", "1"))
        self.assertTrue(extra.has_ended())
        extra.close()
        clients.pop().close()

        def let_in():
            try:
                return self.request("GET", "/health").status == 200
            except (ConnectionEnded, OSError):
                return False
        wait_until(let_in, "a place")
        self.assertEqual(clients[0].request("GET", "/health").status, 200)


@every_form
class ManyTest(LiveServerTest):

    settings = {"itl_ms": 2, "output_tokens": 16}

    def test_200_connections_at_once_each_get_their_own_answer(self):
        clients = [self.connect() for _ in range(200)]
        for number, client in enumerate(clients):
            body = dict(STREAM, model="m%d" % number) if number % 2 else dict(CHAT, model="m%d" % number)
            client.send_request("POST", CHAT_PATH, body)
        for number, client in enumerate(clients):
            answer = client.read_answer()
            self.assertEqual(answer.status, 200)
            if number % 2:
                events = answer.events()
                self.assertEqual((events[-1].data, events[0].data["model"]), ("[DONE]", "m%d" % number))
            else:
                self.assertEqual(answer.json()["model"], "m%d" % number)
        self.assertEqual(self.count("completions"), 200)

    def test_many_blocking_generations_at_once(self):
        backend = GatedBackend()
        self.start_server(backend=backend)
        clients = [self.connect() for _ in range(30)]
        for client in clients:
            client.send_request("POST", CHAT_PATH, STREAM)
        for generation in [backend.next() for _ in clients]:
            generation.say("Hello")
            generation.finish()
        for client in clients:
            self.assertEqual(chat_text(client.read_answer().events()), "Hello")

    def test_garbage_of_all_kinds_leaves_the_server_serving(self):
        for seed in range(60):
            random = Random(seed)
            client = self.connect()
            pieces = [MODELS, request_bytes("POST", CHAT_PATH, STREAM), b"\r\n", b"\0", b"GET ", b"HTTP/1.1",
                      b"Content-Length: 7\r\n", b"0\r\n\r\n", b"\xff" * 40, b"{", b"\n\n"]
            data = b"".join(random.choice(pieces) for _ in range(random.randrange(1, 12)))
            try:
                client.send(data)
                if random.randrange(2):
                    client.sock.shutdown(socket.SHUT_WR)
                    client.read_to_end()
            except OSError:
                pass                    # the server had closed already, as it may
            if random.randrange(3):
                client.close()
        self.assertEqual(self.request("GET", "/health").status, 200)

    def test_many_short_trailers_leave_the_server_serving(self):
        client = self.connect()
        client.send(b"POST /health HTTP/1.1\r\nHost: a\r\nTransfer-Encoding: chunked\r\n\r\n0\r\n"
                    + b"a:b\r\n" * 3000 + b"\r\n")
        self.assertEqual(client.read_answer().status, 405)
        self.assertEqual(self.request("GET", "/health").status, 200)


@every_form
class SlowReaderTest(LiveServerTest):

    def small_client(self):
        """A client whose socket takes little while it does not read."""
        sock = socket.socket()
        sock.setsockopt(socket.SOL_SOCKET, socket.SO_RCVBUF, 4096)
        sock.settimeout(TIMEOUT_S)
        sock.connect(self.address)
        client = RawClient.__new__(RawClient)
        client.sock, client._buffer, client._frames, client._answer = sock, b"", b"", None
        self._clients.append(client)
        return client

    def test_a_client_that_reads_late_gets_all_of_a_long_stream(self):
        self.start_server(output_tokens=20000)
        client = self.small_client()
        client.send_request("POST", CHAT_PATH, STREAM)
        self.assertEqual(self.request("GET", "/health").status, 200)     # the others are served meanwhile
        events = client.read_answer().events()
        self.assertEqual(events[-1].data, "[DONE]")

    def test_a_client_that_reads_late_gets_all_of_a_long_plain_answer(self):
        text = "word " * 800000
        self.start_server(backend=DeltaBackend([(0.0, TextDelta(text)), (0.0, Finish()), (0.0, Usage(1, 1))]))
        client = self.small_client()
        client.send_request("POST", CHAT_PATH, CHAT)
        self.wait_for_count("completions", 1)
        self.assertEqual(self.request("GET", "/health").status, 200)
        self.assertEqual(client.read_answer().json()["choices"][0]["message"]["content"], text)
        self.assertEqual(client.request("GET", "/health").status, 200)

    def test_a_generation_that_ends_while_the_socket_is_full_ends_the_stream(self):
        backend = GatedBackend()
        self.start_server(backend=backend)
        client = self.small_client()
        client.send_request("POST", CHAT_PATH, STREAM)
        generation = backend.next()
        generation.say("word " * 800000)
        answer = client.read_head()
        generation.say("last")
        generation.finish()
        self.assertTrue(generation.over.wait(TIMEOUT_S))
        events = client.read_rest(answer)
        self.assertEqual((events[-1].data, events[-3].data["choices"][0]["delta"]["content"]), ("[DONE]", "last"))

    def test_a_client_that_takes_nothing_for_too_long_is_dropped_and_its_generation_cancelled(self):
        backend = GatedBackend()
        self.start_server(backend=backend, send_timeout_s=0.1)
        client = self.small_client()
        client.send_request("POST", CHAT_PATH, STREAM)
        generation = backend.next()
        generation.say("word " * 800000)
        self.assertTrue(generation.cancelled.wait(TIMEOUT_S))
        self.wait_for_count("disconnects", 1)


class PatientStore(MemoryStore):
    """A store that may wait: get() does, until the test lets it go on."""

    blocking = True

    def __init__(self):
        MemoryStore.__init__(self)
        self.entered = threading.Event()
        self.go = threading.Event()
        self.threads = set()

    def get(self, id):
        self.threads.add(threading.current_thread().name)
        self.entered.set()
        self.go.wait(TIMEOUT_S)
        return MemoryStore.get(self, id)

    def put(self, node, conversation=None):
        self.threads.add(threading.current_thread().name)
        MemoryStore.put(self, node, conversation)


@every_form
class LeavingTest(LiveServerTest):

    settings = {"itl_ms": 1}

    def begin(self, path=RESPONSES_PATH, body=RESPONSE, more=b"", **settings):
        """A client whose request the gated backend has got; (client, generation)."""
        if self._server is None:
            self.start_server(backend=GatedBackend(), **settings)
        client = self.connect()
        client.send(request_bytes("POST", path, body) + more)
        return client, self.server.backend.next()

    def assert_cancelled(self, generation, disconnects=1):
        self.assertTrue(generation.cancelled.wait(TIMEOUT_S), "the generation was not cancelled")
        self.assertTrue(generation.over.wait(TIMEOUT_S))
        self.wait_for_count("disconnects", disconnects)
        self.assertEqual((self.count("disconnects"), self.count("completions")), (disconnects, 0))
        self.assertEqual(self.server.store.stats()["responses"], 0)
        self.assertEqual(self.request("GET", "/health").status, 200)

    def test_in_the_middle_of_a_stream(self):
        client, generation = self.begin(body=dict(RESPONSE, stream=True))
        generation.say("Hello")
        answer = client.read_head()
        self.assertEqual(client.read_frame(answer).name, "response.created")
        client.close()
        self.assert_cancelled(generation)

    def test_before_the_first_token_of_a_stream(self):
        client, generation = self.begin(body=dict(RESPONSE, stream=True))
        client.close()
        self.assert_cancelled(generation)

    def test_before_a_plain_answer(self):
        client, generation = self.begin()
        client.close()
        self.assert_cancelled(generation)

    def test_with_a_reset(self):
        client, generation = self.begin(body=dict(RESPONSE, stream=True))
        client.reset()
        self.assert_cancelled(generation)

    def test_by_closing_only_its_sending_side(self):
        client, generation = self.begin(body=dict(RESPONSE, stream=True))
        client.sock.shutdown(socket.SHUT_WR)
        self.assert_cancelled(generation)
        client.read_to_end()

    def test_with_a_pipelined_request_behind_it(self):
        client, generation = self.begin(more=MODELS)
        client.close()
        self.assert_cancelled(generation)

    def test_with_a_pipelined_request_sent_afterwards(self):
        client, generation = self.begin(body=dict(RESPONSE, stream=True))
        generation.say("Hello")
        client.read_frame(client.read_head())
        client.send(MODELS)
        client.close()
        self.assert_cancelled(generation)

    def test_two_at_once(self):
        client, generation = self.begin()
        other, second = self.begin(body=dict(RESPONSE, stream=True))
        client.close()
        other.close()
        self.assertTrue(generation.cancelled.wait(TIMEOUT_S))
        self.assert_cancelled(second, 2)

    def test_of_the_simulated_backend_during_ttft(self):
        for body in (RESPONSE, dict(RESPONSE, stream=True)):
            with self.subTest(body=body):
                if self._server is None:
                    self.start_server(ttft_ms=3600000)
                before = self.count("disconnects")
                client = self.connect()
                client.send_request("POST", RESPONSES_PATH, body)
                if body.get("stream"):
                    client.read_frame(client.read_head())
                else:
                    wait_until(lambda: self.server.player.plays, "the play")
                client.close()
                self.wait_for_count("disconnects", before + 1)
                self.assertEqual((self.count("completions"), self.server.store.stats()["responses"]), (0, 0))

    def test_of_the_simulated_backend_with_pipelined_bytes_behind_it(self):
        self.start_server(ttft_ms=3600000)
        client = self.connect()
        client.send_request("POST", RESPONSES_PATH, RESPONSE)
        wait_until(lambda: self.server.player.plays, "the play")
        client.send(MODELS)
        client.close()
        self.wait_for_count("disconnects", 1)

    def test_a_streams_id_is_unknown_when_its_client_has_left(self):
        client, generation = self.begin(body=dict(RESPONSE, stream=True))
        generation.say("Hello")
        event = client.read_frame(client.read_head())
        client.close()
        self.assert_cancelled(generation)
        self.assertEqual(self.request("GET", "/v1/responses/" + event.data["response"]["id"]).status, 404)

    def test_between_two_requests_is_no_disconnect(self):
        client = self.connect()
        client.request("POST", CHAT_PATH, CHAT)
        client.close()
        client = self.connect()
        client.send(b"GET /v1/mod")
        client.close()
        self.assertEqual(self.request("GET", "/health").status, 200)
        self.assertEqual(self.count("disconnects"), 0)

    def test_while_a_worker_waits_for_the_store(self):
        store = PatientStore()
        self.start_server(backend=GatedBackend(), store=store)
        client = self.connect()
        client.send_request("GET", "/v1/responses/resp_1")
        self.assertTrue(store.entered.wait(TIMEOUT_S))
        client.close()
        store.go.set()
        self.assertEqual(self.request("GET", "/v1/responses/resp_1").status, 404)

    def test_while_a_worker_waits_for_the_store_with_pipelined_bytes_behind_it(self):
        store = PatientStore()
        self.start_server(backend=GatedBackend(), store=store)
        client = self.connect()
        client.send(request_bytes("GET", "/v1/responses/resp_1"))
        self.assertTrue(store.entered.wait(TIMEOUT_S))
        client.send(MODELS)
        store.go.set()
        self.assertEqual([client.read_answer().status for _ in range(2)], [404, 200])


@every_form
class BlockingTest(LiveServerTest):

    def begin(self, path, body, **settings):
        self.start_server(backend=GatedBackend(), **settings)
        client = self.connect()
        client.send_request("POST", path, body)
        return client, self.server.backend.next()

    def test_a_blocking_backend_runs_on_a_worker_and_its_tokens_go_out_as_they_come(self):
        client, generation = self.begin(CHAT_PATH, STREAM)
        generation.say("one")
        answer = client.read_head()
        texts = [client.read_frame(answer).data["choices"][0]["delta"]["content"] for _ in range(2)]
        self.assertEqual(texts, ["", "one"])
        generation.say("two")
        self.assertEqual(client.read_frame(answer).data["choices"][0]["delta"]["content"], "two")
        generation.finish()
        self.assertEqual(client.read_rest(answer)[-1].data, "[DONE]")
        self.assertTrue(generation.thread_name.startswith("worker"), generation.thread_name)

    def test_a_plain_answer_of_a_blocking_backend(self):
        client, generation = self.begin(RESPONSES_PATH, RESPONSE)
        generation.say("one ")
        generation.say("two")
        generation.finish()
        body = client.read_answer().json()
        self.assertEqual((body["output"][0]["content"][0]["text"], body["usage"]["output_tokens"]), ("one two", 2))
        self.assertEqual(self.request("GET", "/v1/responses/" + body["id"]).json(), body)

    def test_a_failure_before_anything_was_said_is_a_plain_status(self):
        for stream in (False, True):
            with self.subTest(stream=stream):
                if stream:
                    client.send_request("POST", CHAT_PATH, STREAM)
                    generation = self.server.backend.next()
                else:
                    client, generation = self.begin(CHAT_PATH, CHAT)
                generation.fail(ApiError(429, "slow down", type="requests", code="rate_limit_exceeded"))
                answer = client.read_answer()
                self.assertEqual((answer.status, answer.error["code"]), (429, "rate_limit_exceeded"))
        client.send_request("GET", "/health")
        self.assertEqual(client.read_answer().status, 200)

    def test_a_failure_after_the_grace_is_an_event(self):
        client, generation = self.begin(CHAT_PATH, STREAM, commit_grace_s=0.05)
        answer = client.read_head()
        self.assertEqual(answer.status, 200)
        generation.fail(ApiError(429, "slow down", type="requests"))
        self.assertEqual([event.data["error"]["message"] for event in client.read_rest(answer)], ["slow down"])
        self.assertEqual(client.request("GET", "/health").status, 200)

    def test_a_failure_in_the_middle_is_an_event_behind_what_was_said(self):
        client, generation = self.begin(RESPONSES_PATH, dict(RESPONSE, stream=True))
        generation.say("one")
        generation.fail(ApiError(500, "broken", type="server_error"))
        events = client.read_answer().events()
        failed = [event.data["response"] for event in events if event.name == "response.failed"]
        self.assertEqual((events[0].name, len(failed)), ("response.created", 1))
        kept = self.request("GET", "/v1/responses/" + failed[0]["id"])
        self.assertEqual((kept.status, kept.json()["status"]), (200, "failed"))

    def test_an_unexpected_fault_is_a_500_that_tells_nothing_and_is_logged_once(self):
        client, generation = self.begin(CHAT_PATH, CHAT)
        generation.fail(RuntimeError("a secret of the backend's"))
        answer = client.read_answer()
        self.assertEqual(errors_of(answer), (500, "server_error"))
        self.assertNotIn("secret", answer.text)
        errors = self.take_errors()
        self.assertEqual(len(errors), 1)
        self.assertIn("a secret of the backend's", errors[0])
        self.assertEqual(client.request("GET", "/health").status, 200)

    def test_an_unexpected_fault_of_a_planned_backend_is_the_same(self):
        self.start_server(backend=DeltaBackend([(0.0, TextDelta("one")), RuntimeError("a fault of the test's")]))
        client = self.connect()
        self.assertEqual(errors_of(client.request("POST", CHAT_PATH, CHAT)), (500, "server_error"))
        self.assertEqual(client.request("POST", CHAT_PATH, STREAM).events()[-1].data["error"]["type"], "server_error")
        self.assertEqual(len(self.take_errors()), 2)
        self.assertEqual(client.request("GET", "/health").status, 200)

    def test_heartbeats_come_while_a_blocking_backend_thinks(self):
        client, generation = self.begin(CHAT_PATH, STREAM, heartbeat_s=0.03, commit_grace_s=0.03)
        answer = client.read_head()
        self.assertEqual([client.read_frame(answer).name for _ in range(3)], [":"] * 3)
        generation.say("one")
        generation.finish()
        self.assertEqual(chat_text(client.read_rest(answer)), "one")

    def test_heartbeats_come_during_ttft_and_the_tokens_after_it(self):
        self.start_server(ttft_ms=200, heartbeat_s=0.03)
        events = self.stream(CHAT_PATH, CHAT, comments=True)
        names = [event.name for event in events]
        self.assertGreaterEqual(names.count(":"), 2)
        self.assertEqual(names[names.count(":"):].count(":"), 0)

    def test_no_token_is_early(self):
        self.start_server(ttft_ms=60, itl_ms=20, output_tokens=4)
        client = self.connect()
        start_s = time.monotonic()
        client.send_request("POST", CHAT_PATH, STREAM)
        answer = client.read_head()
        seen = []
        while len(seen) < 4:
            event = client.read_frame(answer)
            if event.data["choices"][0]["delta"].get("content"):
                seen.append(time.monotonic() - start_s)
        for number, at in enumerate(seen):
            self.assertGreaterEqual(at, 0.060 + 0.020 * number)
        client.read_rest(answer)

    def test_a_plain_answer_takes_as_long_as_its_tokens(self):
        self.start_server(ttft_ms=60, itl_ms=20, output_tokens=4)
        start_s = time.monotonic()
        self.request("POST", CHAT_PATH, CHAT)
        self.assertGreaterEqual(time.monotonic() - start_s, 0.120)

    def test_a_blocking_store_is_never_called_on_the_loop_or_the_pacer(self):
        store = PatientStore()
        store.go.set()
        self.start_server(store=store)
        id = self.request("POST", RESPONSES_PATH, RESPONSE).json()["id"]
        self.stream(RESPONSES_PATH, dict(RESPONSE, previous_response_id=id))
        self.assertEqual(self.request("GET", "/v1/responses/" + id).status, 200)
        if self.form == "Threads":
            self.assertNotIn("pacer", store.threads)
        self.assertFalse(store.threads & {"pacer", "serve"}, store.threads)

    def test_big_bodies_are_answered_and_others_meanwhile(self):
        body = dict(CHAT, messages=[{"role": "user", "content": "word " * 100}] * 2000)
        client = self.connect()
        client.send_request("POST", CHAT_PATH, body)
        self.assertEqual(self.request("GET", "/health").status, 200)
        self.assertEqual(client.read_answer().status, 200)


@every_form
class DrainTest(LiveServerTest):

    def begin(self, count=1, body=STREAM):
        self.start_server(backend=GatedBackend())
        clients, generations = [self.connect() for _ in range(count)], []
        for client in clients:              # one by one: two workers may begin in either order
            client.send_request("POST", CHAT_PATH, body)
            generations.append(self.server.backend.next())
        return clients, generations

    def assert_serving_ends(self):
        self._serving.join(TIMEOUT_S)
        self.assertFalse(self._serving.is_alive(), "serve_forever() has not returned")

    def test_running_answers_finish_and_then_serving_ends(self):
        clients, generations = self.begin(2)
        generations[0].say("one")
        answer = clients[0].read_head()
        clients[0].read_frame(answer)
        self.server.begin_drain(TIMEOUT_S)
        for generation in generations:
            generation.say("two")
            generation.finish()
        self.assertEqual(chat_text(clients[0].read_rest(answer)), "onetwo")
        self.assertTrue(clients[0].has_ended())
        self.assertEqual(chat_text(clients[1].read_answer().events()), "two")
        for client in clients:
            client.close()
        self.assert_serving_ends()

    def test_a_running_plain_answer_finishes_as_well(self):
        (client,), (generation,) = self.begin(body=CHAT)
        self.server.begin_drain(TIMEOUT_S)
        generation.say("one")
        generation.finish()
        self.assertEqual(client.read_answer().json()["choices"][0]["message"]["content"], "one")
        self.assertTrue(client.has_ended())
        client.close()
        self.assert_serving_ends()

    def test_idle_and_half_read_connections_are_closed_at_once(self):
        (client,), (generation,) = self.begin()
        idle, used, half = self.connect(), self.connect(), self.connect()
        self.assertEqual(used.request("GET", "/health").status, 200)
        half.send(b"GET /v1")
        self.wait_for_count("connections", 4)
        self.server.begin_drain(TIMEOUT_S)
        for other in (idle, used, half):
            self.assertTrue(other.has_ended())
        self.assertTrue(self._serving.is_alive())
        generation.finish()
        client.read_answer()
        client.close()
        self.assert_serving_ends()

    def test_no_new_connection_is_served(self):
        (client,), (generation,) = self.begin()
        idle = self.connect()
        self.wait_for_count("connections", 2)
        self.server.begin_drain(TIMEOUT_S)
        self.assertTrue(idle.has_ended())       # so the drain has begun
        try:
            late = self.connect()
            late.send(MODELS)
        except OSError:
            late = None                         # refused: so much the better
        generation.finish()
        self.assertEqual(client.read_answer().events()[-1].data, "[DONE]")
        client.close()
        self.assert_serving_ends()
        self.server.server_close()
        if late is not None:
            self.assertTrue(late.has_ended())

    def test_a_pipelined_request_behind_a_draining_answer_is_not_begun(self):
        (client,), (generation,) = self.begin()
        client.send(request_bytes("POST", CHAT_PATH, STREAM))
        self.server.begin_drain(TIMEOUT_S)
        generation.finish()
        self.assertEqual(client.read_answer().events()[-1].data, "[DONE]")
        self.assertTrue(client.has_ended())
        client.close()
        self.assert_serving_ends()

    def test_after_its_time_a_drain_ends_and_cancels_what_still_runs(self):
        (client,), (generation,) = self.begin()
        self.server.begin_drain(0.05)
        self.assert_serving_ends()
        self.assertTrue(client.has_ended())
        self.server.server_close()
        self.assertTrue(generation.cancelled.wait(2.0), "the generation was not cancelled")

    def test_a_second_word_ends_a_drain_at_once(self):
        (client,), (generation,) = self.begin()
        idle = self.connect()
        self.wait_for_count("connections", 2)
        self.server.begin_drain(600.0)
        self.assertTrue(idle.has_ended())
        self.server.begin_drain(0.0)
        self.assert_serving_ends()

    def test_shutdown_with_nothing_to_do_is_quick(self):
        self.start_server()
        self.request("GET", "/health")
        self.server.shutdown()
        self.assert_serving_ends()

    def test_shutdown_with_paced_streams_running(self):
        self.start_server(ttft_ms=3600000)
        clients = [self.connect() for _ in range(20)]
        for client in clients:
            client.send_request("POST", CHAT_PATH, STREAM)
            client.read_head()
        self.server.shutdown()
        self.assert_serving_ends()
        self.server.server_close()
        self.assert_threads_end()


    def test_a_generation_that_ends_after_the_server_has_closed_is_quiet(self):
        go = threading.Event()
        self.addCleanup(go.set)
        backend = StubbornBackend(go)
        self.start_server(backend=backend)
        for body in (STREAM, CHAT):
            self.connect().send_request("POST", CHAT_PATH, body)
        wait_until(lambda: backend.running == 2, "both generations")
        self.server.shutdown()
        self.assert_serving_ends()
        self.server.server_close()
        go.set()
        self.assert_threads_end()
        self.assertEqual(self.server.errors, [])


class StubbornBackend(Backend):
    """Waits for `go`, whoever cancels it; then it says something all the same."""

    def __init__(self, go):
        self.go = go
        self.running = 0

    def generate(self, request, cancel):
        self.running += 1
        self.go.wait(TIMEOUT_S)
        yield None, TextDelta("too late")
        yield None, Finish()
        yield None, Usage(1, 1)


@every_form
class FaultTest(LiveServerTest):

    def test_a_fault_in_front_of_the_handler_ends_that_connection_alone(self):
        server = self.start_server()
        make_handler = server.make_handler

        def faulty(conn, request):
            if request.head.path == "/fault":
                raise RuntimeError("a fault of the test's")
            return make_handler(conn, request)
        server.make_handler = faulty
        other = self.connect()
        self.assertEqual(other.request("GET", "/health").status, 200)
        client = self.connect()
        client.send_request("GET", "/fault")
        try:
            self.assertEqual(client.read_answer().status, 500)
        except ConnectionEnded:
            pass                        # a close without an answer will do
        self.assertEqual(other.request("GET", "/health").status, 200)
        self.assertEqual(self.request("GET", "/health").status, 200)
        self.assertIn("a fault of the test's", "".join(self.take_errors()))


class ListeningTest(LiveServerTest):

    def test_both_loopback_addresses_share_a_port_where_ipv6_is(self):
        try:
            socket.create_server(("::1", 0), family=socket.AF_INET6).close()
            expected = ["127.0.0.1", "::1"]
        except OSError:
            expected = ["127.0.0.1"]
        server = self.start_server(host=())
        names = [sock.getsockname() for sock in server.listeners]
        self.assertEqual([name[0] for name in names], expected)
        self.assertEqual(len({name[1] for name in names}), 1)
        for name in names:
            client = RawClient(name)
            self.assertEqual(client.request("GET", "/health").status, 200)
            client.close()

    def test_a_taken_port_is_an_oserror_that_names_it(self):
        port = self.address[1]
        with self.assertRaises(OSError) as caught:
            type(self.server)(self.server.settings.__class__(host=("127.0.0.1",), port=port))
        self.assertIn("127.0.0.1 port %d" % port, str(caught.exception))

    def test_a_port_taken_on_ipv6_alone_is_an_error_too(self):
        # clients that resolve `localhost` would reach the other server
        try:
            taken = socket.create_server(("::1", 0), family=socket.AF_INET6)
        except OSError as exc:
            self.skipTest("no IPv6 here: %s" % exc)
        self.addCleanup(taken.close)
        with self.assertRaises(OSError):
            server = type(self.server)(self.server.settings.__class__(port=taken.getsockname()[1]))
            server.server_close()


@every_form
class GarbageTest(LiveServerTest):

    def test_requests_leave_nothing_for_the_cycle_collector(self):
        # a cycle per request once made the collector free 10,000 of them at a time: 10 ms without a frame
        server = self.start_server(log_level="error")
        bodies = ((CHAT_PATH, CHAT), (CHAT_PATH, dict(CHAT, stream=True)), (CHAT_PATH, {}),
                  ("/v1/responses", {"model": "m", "input": "x"}),
                  ("/v1/responses", {"model": "m", "input": "x", "stream": True}))
        client = self.connect()

        def round_of_requests():
            for path, body in bodies:
                client.request("POST", path, body)
        round_of_requests()
        gc.collect()
        gc.disable()
        try:
            for _ in range(20):
                round_of_requests()
            found = gc.collect()
        finally:
            gc.enable()
        self.assertLess(found, 400, "per round of 5 requests: %d" % (found // 20))
        self.assertEqual(server.metrics.get("requests"), 105)
