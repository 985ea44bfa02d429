"""https: the same wire under TLS, on both forms of the transport. Needs the openssl command for a certificate."""
import os
import shutil
import subprocess
import sys
import tempfile
import unittest

from tests import ONE_FILE, ROOT
from tests.data.golden import read_chat_stream
from tests.support import (CHAT, RESPONSE, TIMEOUT_S, LiveServerTest, RawClient, chat_text, every_form, request_bytes,
                           wait_until)

try:
    import ssl
except ImportError:
    ssl = None

ENTRY = ONE_FILE or os.path.join(ROOT, "server.py")
_MADE = {}                          # the folder with the pair, made once: {"folder": TemporaryDirectory}


def make_pair():
    """(certificate, key) as paths, self-signed for localhost; SkipTest where that cannot be."""
    if ssl is None:
        raise unittest.SkipTest("this Python was built without ssl")
    if "folder" not in _MADE:
        command = shutil.which("openssl")
        if command is None:
            raise unittest.SkipTest("there is no openssl command to make a certificate with")
        _MADE["folder"] = folder = tempfile.TemporaryDirectory()
        unittest.addModuleCleanup(_drop_pair)
        done = subprocess.run([command, "req", "-x509", "-newkey", "rsa:2048", "-nodes", "-days", "2", "-subj", "/CN=localhost",
                               "-keyout", os.path.join(folder.name, "key.pem"), "-out", os.path.join(folder.name, "cert.pem")],
                              stdin=subprocess.DEVNULL, stdout=subprocess.PIPE, stderr=subprocess.PIPE, timeout=60)
        if done.returncode:
            raise unittest.SkipTest("openssl made no certificate: %r" % done.stderr[-200:])
    return tuple(os.path.join(_MADE["folder"].name, name) for name in ("cert.pem", "key.pem"))


def _drop_pair():
    _MADE.pop("folder").cleanup()


class TlsClient(RawClient):
    """A raw client whose bytes are encrypted."""

    def __init__(self, address, cert):
        RawClient.__init__(self, address)
        self.sock = self.wrap(self.sock, cert)

    @staticmethod
    def wrap(sock, cert):
        """A client's socket with TLS around it."""
        context = ssl.SSLContext(ssl.PROTOCOL_TLS_CLIENT)
        context.check_hostname = False
        context.load_verify_locations(cert)
        return context.wrap_socket(sock)

    def is_quiet(self, seconds=0.05):
        raise NotImplementedError("not over TLS")


class TlsLive(LiveServerTest):

    @classmethod
    def setUpClass(cls):
        try:
            cls.cert, cls.key = make_pair()
        except unittest.SkipTest as skip:
            sys.stderr.write("\n%s is skipped: %s\n" % (cls.__name__, skip))
            raise

    def start_server(self, **settings):
        return LiveServerTest.start_server(self, **dict({"tls_cert": self.cert, "tls_key": self.key}, **settings))

    def connect(self):
        client = TlsClient(self.address, self.cert)
        self._clients.append(client)
        return client

    def connect_plainly(self):
        client = RawClient(self.address)
        self._clients.append(client)
        return client


@every_form
class TlsTest(TlsLive):

    def test_the_url_says_https(self):
        self.assertEqual(self.server.urls(), ["https://127.0.0.1:%d" % self.address[1]])

    def test_plain_and_streamed_answers(self):
        self.assertEqual(self.request("GET", "/health").json(), {"status": "ok"})
        self.assertEqual(self.request("POST", "/v1/chat/completions", CHAT).status, 200)
        self.assertTrue(chat_text(self.stream("/v1/chat/completions", CHAT)))
        self.assertEqual(self.request("POST", "/v1/responses", dict(RESPONSE, stream=True)).events()[-1].data, "[DONE]")

    def test_a_paced_stream_comes_frame_by_frame(self):
        self.start_server(ttft_ms=20, itl_ms=5)
        client = self.connect()
        client.send_request("POST", "/v1/chat/completions", dict(CHAT, stream=True))
        answer = client.read_answer()
        self.assertGreater(len(answer.chunks), 4)
        read_chat_stream(self, answer.body)

    def test_keep_alive(self):
        client = self.connect()
        for number in range(30):
            body = dict(CHAT, stream=number % 2 == 1)
            self.assertEqual(client.request("POST", "/v1/chat/completions", body).status, 200)

    def test_pipelined_requests_are_answered_in_order(self):
        client = self.connect()
        paths = ["/health", "/v1/models", "/nowhere"] * 20
        client.send(b"".join(request_bytes("GET", path) for path in paths))
        self.assertEqual([client.read_answer().status for _ in paths], [200, 200, 404] * 20)

    def test_a_request_in_single_bytes(self):
        client = self.connect()
        for byte in request_bytes("GET", "/v1/models"):
            client.send(bytes((byte,)))
        self.assertEqual(client.read_answer().status, 200)

    def test_big_bodies_both_ways(self):
        text = "word " * 400000         # 2 MB
        body = {"model": "m", "prompt": text, "echo": True, "max_tokens": 1}
        client = self.connect()
        answer = client.request("POST", "/v1/completions", body)
        self.assertEqual(answer.status, 200)
        self.assertTrue(answer.json()["choices"][0]["text"] == text + answer.json()["choices"][0]["text"][len(text):])
        self.assertEqual(client.request("GET", "/health").status, 200)

    def test_a_slow_reader_gets_every_byte(self):
        client = self.connect()
        client.send_request("POST", "/v1/completions", {"model": "m", "prompt": "word " * 300000, "echo": True, "max_tokens": 1})
        client.send_request("POST", "/v1/chat/completions", dict(CHAT, stream=True, max_tokens=5000, ignore_eos=True))
        wait_until(lambda: self.count("requests") >= 1, "the first answer")
        first = client.read_answer()
        self.assertEqual((first.status, len(first.json()["choices"][0]["text"]) > 1500000), (200, True))
        stream = client.read_answer()
        self.assertEqual(len(chat_text(stream.events()).split()) > 3000, True)

    def test_a_client_that_leaves_while_it_waits_is_noticed(self):
        self.start_server(ttft_ms=600000)
        for number, streamed in enumerate((True, False)):
            client = self.connect()
            client.send_request("POST", "/v1/chat/completions", dict(CHAT, stream=streamed))
            if streamed:
                self.assertEqual(client.read_head().status, 200)
            else:
                wait_until(lambda: self.count("requests") >= 2, "the request")
            if number:
                client.reset()
            else:
                client.close()
            self.wait_for_count("disconnects", number + 1)

    def test_a_client_that_says_goodbye_in_tls_is_noticed(self):
        self.start_server(ttft_ms=600000)
        client = self.connect()
        client.send_request("POST", "/v1/chat/completions", dict(CHAT, stream=True))
        self.assertEqual(client.read_head().status, 200)
        client.sock.settimeout(0.2)
        try:
            client.sock.unwrap()        # close_notify; the server's own may not come
        except OSError:
            pass
        self.wait_for_count("disconnects", 1)

    def test_who_sends_ahead_while_a_stream_runs_is_answered_afterwards(self):
        self.start_server(ttft_ms=100, itl_ms=2)
        client = self.connect()
        client.send_request("POST", "/v1/chat/completions", dict(CHAT, stream=True))
        answer = client.read_head()
        client.send_request("GET", "/v1/models")
        client.send_request("GET", "/health")
        self.assertEqual(client.read_rest(answer)[-1].data, "[DONE]")
        self.assertEqual(client.read_answer().json()["object"], "list")
        self.assertEqual(client.read_answer().json(), {"status": "ok"})

    def test_an_answer_that_closes_is_read_to_its_end(self):
        client = self.connect()
        answer = client.request("POST", "/v1/chat/completions", CHAT, {"Connection": "close"})
        self.assertEqual((answer.status, client.has_ended()), (200, True))
        old = self.connect().request("POST", "/v1/chat/completions", dict(CHAT, stream=True), version="1.0")
        self.assertEqual((old.framing, old.events()[-1].data), ("close", "[DONE]"))

    def test_a_plain_client_on_the_port_disturbs_nobody(self):
        self.start_server(ttft_ms=50, itl_ms=2)
        client = self.connect()
        client.send_request("POST", "/v1/chat/completions", dict(CHAT, stream=True))
        answer = client.read_head()
        for data in (b"GET /health HTTP/1.1\r\nHost: x\r\n\r\n", b"\x16\x03\x01\xff\xff" + b"x" * 100, b"\x00" * 50, b"\x16"):
            plain = self.connect_plainly()
            plain.send(data)
            if data != b"\x16":
                self.assertNotIn(b"HTTP/1.1 200", plain.read_to_end())
            plain.close()
        self.assertEqual(client.read_rest(answer)[-1].data, "[DONE]")
        self.assertEqual(self.request("GET", "/health").status, 200)

    def test_clients_that_are_gone_before_the_handshake_disturb_nobody(self):
        self.start_server()
        for number in range(40):
            plain = self.connect_plainly()
            if number % 2:
                plain.reset()
            else:
                plain.close()
        self.assertEqual(self.request("GET", "/health").status, 200)

    def test_a_silent_client_delays_nobody(self):
        self.start_server()
        silent = self.connect_plainly()
        self.assertEqual(self.request("GET", "/health").status, 200)
        silent.close()

    def test_old_protocol_versions_are_refused(self):
        client = RawClient(self.address)
        self._clients.append(client)
        context = ssl.SSLContext(ssl.PROTOCOL_TLS_CLIENT)
        context.check_hostname = False
        context.verify_mode = ssl.CERT_NONE
        try:
            context.minimum_version = ssl.TLSVersion.MINIMUM_SUPPORTED
            context.maximum_version = ssl.TLSVersion.TLSv1_1
        except ValueError:
            self.skipTest("this OpenSSL knows no old versions")
        with self.assertRaises(OSError):
            client.sock = context.wrap_socket(client.sock)

    def test_many_streams_at_once(self):
        self.start_server(ttft_ms=20, itl_ms=2)
        clients = [self.connect() for _ in range(25)]
        for client in clients:
            client.send_request("POST", "/v1/chat/completions", dict(CHAT, stream=True))
        for client in clients:
            read_chat_stream(self, client.read_answer().body)

    def test_a_key_in_the_certificates_file_is_enough(self):
        both = os.path.join(_MADE["folder"].name, "both.pem")
        with open(both, "w") as out:
            for path in (self.cert, self.key):
                with open(path) as part:
                    out.write(part.read())
        self.start_server(tls_cert=both, tls_key="")
        self.assertEqual(self.request("GET", "/health").status, 200)


class TlsFaultsTest(unittest.TestCase):

    def test_bad_certificates_are_one_line_and_code_2(self):
        cert, key = make_pair()
        with tempfile.TemporaryDirectory() as folder:
            odd = os.path.join(folder, "odd.pem")
            with open(odd, "w") as out:
                out.write("no certificate")
            for flags, part in ((("--tls-cert", os.path.join(folder, "none.pem")), "none.pem"), (("--tls-cert", odd), "odd.pem"),
                                (("--tls-cert", cert), "cert.pem"), (("--tls-cert", cert, "--tls-key", odd), "odd.pem"),
                                (("--tls-cert", key, "--tls-key", cert), "--tls-cert"),
                                (("--tls-cert", cert, "--tls-key", os.path.join(folder, "none.pem")), "none.pem"),
                                (("--tls-cert", folder), folder), (("--tls-key", key), "--tls-cert")):
                with self.subTest(flags=flags):
                    done = subprocess.run([sys.executable, ENTRY, "--port", "0"] + list(flags), stdin=subprocess.DEVNULL,
                                          stdout=subprocess.PIPE, stderr=subprocess.PIPE, timeout=2 * TIMEOUT_S,
                                          universal_newlines=True)
                    self.assertEqual((done.returncode, done.stdout, done.stderr.count("\n")), (2, "", 1), done.stderr)
                    self.assertTrue(done.stderr.startswith("mockturtle: error: "), done.stderr)
                    self.assertIn(part, done.stderr)


if __name__ == "__main__":
    unittest.main()
