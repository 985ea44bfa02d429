"""The log: one line a request, never a key, nothing forged, nothing lost at the end."""
import io
import json
import re
import threading
import unittest

from backends.contract import Usage
from observe.log import LOG_BODY_CHARS, Log
from tests.support import (CHAT, RESPONSE, TIMEOUT_S, GatedBackend, LiveServerTest, QuietTestCase, every_form,
                           wait_until)

KEY = "sk-hush-0123456789"
REQUEST = ("POST", "/v1/chat/completions", 200, "m", Usage(7, 12), 0.0123, 0.0456, "completed")


class CountingStream(io.StringIO):
    """Counts the writes and the flushes."""

    def __init__(self):
        io.StringIO.__init__(self)
        self.writes = 0

    def write(self, text):
        self.writes += 1
        return io.StringIO.write(self, text)


class BrokenStream(CountingStream):
    """Fails as a pipe does whose reader has gone, as long as `broken`."""

    broken = True

    def write(self, text):
        if self.broken:
            raise BrokenPipeError(32, "Broken pipe")
        return CountingStream.write(self, text)


class FullStream(CountingStream):
    """Takes nothing, as a pipe does that nobody reads, until room is set."""

    def __init__(self):
        CountingStream.__init__(self)
        self.room = threading.Event()
        self.reached = threading.Event()

    def write(self, text):
        self.reached.set()
        self.room.wait(3 * TIMEOUT_S)
        return CountingStream.write(self, text)


class LogCase(QuietTestCase):

    def make(self, level="info", form="text", **values):
        self.stream = CountingStream()
        log = Log(level, form, self.stream, wall=lambda: 1700000000.25, **values)
        self.addCleanup(log.close)
        return log

    def lines(self, log):
        log.flush()
        return self.stream.getvalue().splitlines()


class TextLinesTest(LogCase):

    def test_a_request_is_one_line_with_its_fields(self):
        log = self.make()
        log.request(*REQUEST)
        self.assertEqual(self.lines(log), ["mockturtle: POST /v1/chat/completions 200 model=m tokens=7+12 ttft=12.3ms "
                                           "time=45.6ms completed"])

    def test_what_is_not_known_is_left_out(self):
        log = self.make()
        log.request("GET", "/v1/models", 200, None, None, None, 0.001, "completed")
        log.request("POST", "/v1/responses", 200, "m", Usage(1, 2), None, 0.001, "client left")
        self.assertEqual(self.lines(log), ["mockturtle: GET /v1/models 200 time=1.0ms completed",
                                           "mockturtle: POST /v1/responses 200 model=m tokens=1+2 time=1.0ms client left"])

    def test_tokens_that_an_upstream_did_not_count_are_marked(self):
        for form, mark in (("text", "tokens=7+12(counted) "), ("json", '"tokens_counted_here": true')):
            log = self.make(form=form)
            log.request("POST", "/x", 200, "m", Usage(7, 12, 0, 0, True), None, 0.001, "completed")
            self.assertIn(mark, self.lines(log)[-1])

    def test_messages_carry_their_level(self):
        log = self.make("debug")
        for level in ("debug", "info", "warning", "error", "notice"):
            log.write(level, "x")
        self.assertEqual(self.lines(log), ["mockturtle: debug: x", "mockturtle: x", "mockturtle: warning: x",
                                           "mockturtle: error: x", "mockturtle: x"])

    def test_levels_below_the_chosen_one_are_not_written(self):
        order = ["debug", "info", "warning", "error", "notice"]
        for number, level in enumerate(order[:4]):
            log = self.make(level)
            for each in order:
                log.write(each, each)
            with self.subTest(level=level):
                self.assertEqual(len(self.lines(log)), 5 - number)
                self.assertEqual(log.wants_requests, number <= 1)
                self.assertEqual(log.wants_bodies, number == 0)

    def test_no_request_can_write_a_line_of_its_own(self):
        for bad in ("x\nmockturtle: error: forged", "x\r\nforged", "x\u2028forged", "x\x85forged", "x\x0bforged", "x\x1b[2J",
                    "x\x00", "x\ud83d"):
            for place in range(5):
                values = [list(REQUEST), list(REQUEST), list(REQUEST), list(REQUEST), list(REQUEST)][place]
                body = None
                if place < 4:
                    values[(0, 1, 3, 7)[place]] = bad
                else:
                    body = bad.encode("utf-8", "surrogatepass")
                log = self.make("debug")
                log.request(*values, body=body)
                log.flush()
                text = self.stream.getvalue()
                with self.subTest(bad=bad, place=place):
                    self.assertEqual((len(text.splitlines()), text[-1]), (1, "\n"))
                    self.assertTrue(text[:-1].isprintable())
                    self.assertTrue(text.startswith("mockturtle: "))

    def test_a_body_is_cut(self):
        log = self.make("debug")
        log.request(*REQUEST, body=b"x" * (3 * LOG_BODY_CHARS))
        self.assertEqual(self.lines(log)[0].count("x"), LOG_BODY_CHARS)


class JsonLinesTest(LogCase):

    def test_a_request_is_one_object_a_line(self):
        log = self.make(form="json")
        log.request(*REQUEST)
        log.request("GET", "/health", 200, None, None, None, 0.001, "completed")
        first, second = [json.loads(line) for line in self.lines(log)]
        self.assertEqual(first, {
            "time": 1700000000.25, "level": "info", "event": "request", "method": "POST", "path": "/v1/chat/completions",
            "status": 200, "model": "m", "prompt_tokens": 7, "completion_tokens": 12, "ttft_ms": 12.3, "duration_ms": 45.6,
            "ended": "completed"})
        self.assertEqual(sorted(second), ["duration_ms", "ended", "event", "level", "method", "path", "status", "time"])

    def test_messages_of_several_lines_are_one_object(self):
        log = self.make(form="json")
        log.write("error", "unexpected error\nTraceback\n  line")
        self.assertEqual([json.loads(line) for line in self.lines(log)], [
            {"time": 1700000000.25, "level": "error", "message": "unexpected error\nTraceback\n  line"}])

    def test_odd_names_stay_one_line(self):
        log = self.make(form="json")
        log.request("POST", "/x", 200, "a\n\u2028\x00\ud83d\"", Usage(1, 1), None, 0.0, "completed")
        line, = self.lines(log)
        self.assertEqual(json.loads(line)["model"], "a\n\u2028\x00\ud83d\"")


class SecretsTest(LogCase):

    def test_a_key_is_masked_wherever_it_turns_up(self):
        for form in ("text", "json"):
            log = self.make("debug", form, secrets=(KEY, "", "other-key"))
            log.write("error", "said %s and other-key" % KEY)
            log.request("GET", "/x/" + KEY, 404, KEY, Usage(1, 1), None, 0.0, "no " + KEY, b'{"k": "%s"}' % KEY.encode())
            text = "\n".join(self.lines(log))
            with self.subTest(form=form):
                self.assertNotIn("hush", text)
                self.assertNotIn("other-key", text)
                self.assertIn("***", text)

    def test_a_key_that_is_written_in_escapes_is_masked_as_well(self):
        for key, part in (("sk-\u00fcber-hush", "ber-hush"), ('sk-"quoted"-hush', "-hush"), ("sk-\\back-hush", "back-hush")):
            for form in ("text", "json"):
                for model in (key, key + "\n"):
                    log = self.make("debug", form, secrets=(key,))
                    log.request("POST", "/x", 200, model, Usage(1, 1), None, 0.0, "completed")
                    with self.subTest(key=key, form=form, model=model):
                        self.assertNotIn(part, "\n".join(self.lines(log)))

    def test_a_cut_body_leaves_no_part_of_a_key(self):
        for form in ("text", "json"):
            log = self.make("debug", form, secrets=(KEY,))
            log.request(*REQUEST, body=b"x" * (LOG_BODY_CHARS - 12) + KEY.encode())
            with self.subTest(form=form):
                self.assertFalse("sk-hush" in "\n".join(self.lines(log)), "the key's beginning is in the log")

    def test_a_short_key_leaves_the_lines_json(self):
        log = self.make("info", "json", secrets=("1",))
        log.request(*REQUEST)
        line, = self.lines(log)
        self.assertEqual(json.loads(line)["event"], "request")


class WriterTest(LogCase):

    def test_close_writes_what_waits_and_ends_the_thread(self):
        before = set(threading.enumerate())
        log = self.make()
        for number in range(1000):
            log.write("info", "line %d" % number)
        log.close()
        self.assertEqual(self.stream.getvalue().splitlines(), ["mockturtle: line %d" % number for number in range(1000)])
        self.assertEqual(set(threading.enumerate()) - before, set())
        self.assertLess(self.stream.writes, 100)

    def test_the_writer_writes_by_itself(self):
        log = self.make()
        log.write("info", "one")
        wait_until(lambda: "one" in self.stream.getvalue(), "the line")
        log.write("info", "two")
        wait_until(lambda: "two" in self.stream.getvalue(), "the line after a pause")

    def test_lines_of_many_threads_are_all_whole(self):
        log = self.make()

        def say(name):
            for number in range(200):
                log.write("info", "%s %d end" % (name, number))
        threads = [threading.Thread(target=say, args=("t%d" % number,)) for number in range(8)]
        for thread in threads:
            thread.start()
        for thread in threads:
            thread.join(10)
        log.close()
        lines = self.stream.getvalue().splitlines()
        self.assertEqual(len(lines), 1600)
        self.assertTrue(all(re.match(r"mockturtle: t\d \d+ end\Z", line) for line in lines))

    def test_a_reader_that_has_gone_costs_its_lines_and_nothing_else(self):
        stream = BrokenStream()
        log = Log("info", "text", stream)
        log.write("info", "lost")
        wait_until(lambda: not log._waiting, "the writer to take the line")
        stream.broken = False
        log.write("info", "kept")
        try:
            wait_until(lambda: "kept" in stream.getvalue(), "the writer to go on", 2.0)
        finally:
            log.close()

    def test_close_does_not_fail_for_a_reader_that_has_gone(self):
        log = Log("info", "text", BrokenStream())
        log.write("info", "lost")
        log.close()

    def test_close_does_not_wait_for_ever_for_a_reader_that_takes_nothing(self):
        stream = FullStream()
        log = Log("info", "text", stream)
        log.write("info", "stuck")
        self.assertTrue(stream.reached.wait(TIMEOUT_S))
        closing = threading.Thread(target=log.close)
        closing.start()
        closing.join(TIMEOUT_S / 2)
        alive = closing.is_alive()
        stream.room.set()
        closing.join(TIMEOUT_S)
        self.assertFalse(alive, "close() waits")

    def test_json_lines_stay_json_after_lines_were_lost(self):
        stream = BrokenStream()
        log = Log("info", "json", stream)
        self.addCleanup(log.close)
        log.write("info", "lost")
        wait_until(lambda: not log._waiting, "the writer to take the line")
        log.flush()
        stream.broken = False
        log.write("info", "kept")
        wait_until(lambda: "kept" in stream.getvalue(), "the writer to go on", 2.0)
        for line in stream.getvalue().splitlines():
            self.assertIsInstance(json.loads(line), dict)

    def test_an_unused_log_starts_no_thread(self):
        before = set(threading.enumerate())
        log = self.make("error")
        log.write("info", "x")
        self.assertEqual(set(threading.enumerate()), before)
        log.close()
        self.assertEqual(self.stream.getvalue(), "")


@every_form
class RequestLinesTest(LiveServerTest):

    def log_to_memory(self, level="info", form="text", **settings):
        """Start the server with a log of the test's; returns a function that gives its lines so far."""
        server = self.start_server(log_level=level, log_format=form, **settings)
        stream = io.StringIO()
        server._log = log = Log(level, form, stream, secrets=server.settings.api_key)
        self.addCleanup(log.close)

        def lines():
            log.flush()
            return stream.getvalue().splitlines()
        return lines

    def wait_for(self, lines, count):
        wait_until(lambda: len(lines()) >= count, "%d lines" % count)
        self.assertEqual(len(lines()), count, lines())
        return lines()

    def test_each_request_leaves_one_line(self):
        lines = self.log_to_memory(max_body_mb=0.01)
        client = self.connect()
        client.request("GET", "/v1/models")
        client.request("POST", "/v1/chat/completions", CHAT)
        client.request("POST", "/v1/chat/completions", dict(CHAT, stream=True))
        client.request("POST", "/v1/responses", RESPONSE)
        client.request("POST", "/v1/completions", {"model": "m", "prompt": ["a", "b"], "max_tokens": 4})
        client.request("POST", "/v1/embeddings", {"model": "m", "input": "x"})
        client.request("POST", "/v1/chat/completions", {"model": "m"})
        client.request("GET", "/nowhere")
        client.request("DELETE", "/v1/models")
        found = self.wait_for(lines, 9)
        for line, pattern in zip(found, (
                r"GET /v1/models 200 time=[\d.]+ms completed",
                r"POST /v1/chat/completions 200 model=mock-model tokens=\d+\+8 time=[\d.]+ms completed",
                r"POST /v1/chat/completions 200 model=mock-model tokens=\d+\+8 ttft=[\d.]+ms time=[\d.]+ms completed",
                r"POST /v1/responses 200 model=mock-model tokens=\d+\+8 time=[\d.]+ms completed",
                r"POST /v1/completions 200 model=m tokens=\d+\+8 time=[\d.]+ms completed",
                r"POST /v1/embeddings 200 time=[\d.]+ms completed",
                r"POST /v1/chat/completions 400 time=[\d.]+ms Missing required parameter: 'messages'\.",
                r"GET /nowhere 404 time=[\d.]+ms Unknown request URL.*", r"DELETE /v1/models 405 time=[\d.]+ms Method DELETE.*")):
            self.assertRegex(line, r"\Amockturtle: " + pattern + r"\Z")

    def test_json_lines_say_the_same(self):
        lines = self.log_to_memory(form="json")
        self.request("POST", "/v1/chat/completions", dict(CHAT, stream=True))
        self.request("GET", "/nowhere")
        first, second = [json.loads(line) for line in self.wait_for(lines, 2)]
        self.assertEqual((first["status"], first["model"], first["completion_tokens"], first["ended"]),
                         (200, "mock-model", 8, "completed"))
        self.assertLessEqual(first["ttft_ms"], first["duration_ms"])
        self.assertEqual((second["status"], second["path"]), (404, "/nowhere"))

    def test_the_ttft_and_the_time_are_those_of_the_stream(self):
        lines = self.log_to_memory(form="json", ttft_ms=30, itl_ms=3)
        self.request("POST", "/v1/chat/completions", dict(CHAT, stream=True))
        line = json.loads(self.wait_for(lines, 1)[0])
        self.assertGreaterEqual(line["ttft_ms"], 30)
        self.assertGreaterEqual(line["duration_ms"], 30 + 7 * 3)

    def test_a_client_that_leaves_is_told_of(self):
        lines = self.log_to_memory(ttft_ms=60000)
        for body in (dict(CHAT, stream=True), CHAT):
            client = self.connect()
            client.send_request("POST", "/v1/chat/completions", body)
            if body is not CHAT:
                self.assertEqual(client.read_head().status, 200)
            else:
                wait_until(lambda: self.count("requests") >= 2, "the request")
            client.close()
        found = self.wait_for(lines, 2)
        for line in found:
            self.assertRegex(line, r"200 model=mock-model .*time=[\d.]+ms client left\Z|200 time=[\d.]+ms client left\Z")

    def test_a_fault_of_a_blocking_backend_ends_its_line(self):
        backend = GatedBackend()
        server_lines = self.log_to_memory_with(backend)
        client = self.connect()
        client.send_request("POST", "/v1/chat/completions", CHAT)
        backend.next().fail(ValueError("hidden cause"))
        self.assertEqual(client.read_answer().status, 500)
        found = self.wait_for(server_lines, 1)
        self.assertRegex(found[0], r" 500 .*The server had an error")
        self.assertEqual(len(self.take_errors()), 1)

    def log_to_memory_with(self, backend):
        server = self.start_server(backend=backend, log_level="info")
        stream = io.StringIO()
        server._log = log = Log("info", "text", stream)
        self.addCleanup(log.close)

        def lines():
            log.flush()
            return stream.getvalue().splitlines()
        return lines

    def test_bodies_need_both_the_level_and_the_flag(self):
        for level, bodies, shown in (("debug", True, True), ("debug", False, False), ("info", True, False)):
            lines = self.log_to_memory(level, log_bodies=bodies)
            self.request("POST", "/v1/chat/completions", dict(CHAT, user="find-me"))
            found = self.wait_for(lines, 1)
            with self.subTest(level=level, bodies=bodies):
                self.assertEqual("find-me" in found[0], shown)
            self._stop_server()
            self._check_server()

    def test_no_key_is_written_whatever_a_client_does_with_it(self):
        for form in ("text", "json"):
            lines = self.log_to_memory("debug", form, log_bodies=True, api_key=(KEY,))
            for headers in ({"Authorization": "Bearer " + KEY}, {"Authorization": KEY}, {"Authorization": "Bearer sk-guess-hush"}):
                self.request("POST", "/v1/chat/completions", dict(CHAT, model=KEY, user=KEY), headers)
                self.request("GET", "/v1/models/%s?key=%s" % (KEY, KEY), headers=headers)
            text = "\n".join(self.wait_for(lines, 6))
            with self.subTest(form=form):
                self.assertNotIn("hush", text)
            self._stop_server()
            self._check_server()

    def test_names_of_clients_forge_no_line(self):
        lines = self.log_to_memory()
        self.request("POST", "/v1/chat/completions", dict(CHAT, model="m\nmockturtle: GET /forged 200"))
        self.request("GET", "/v1/models/a%0Amockturtle:%20forged")
        client = self.connect()
        client.send(b"GET /a\x0bb HTTP/1.1\r\nHost: x\r\n\r\n")
        client.read_answer()
        for line in self.wait_for(lines, 3):
            self.assertTrue(line.startswith("mockturtle: ") and line.isprintable(), line)

    def test_at_level_warning_a_request_is_not_formatted(self):
        server = self.start_server(log_level="warning")

        class Refusing(Log):
            def request(self, *values, **named):
                raise AssertionError("a line was formatted")
        server._log = Refusing("warning", "text", io.StringIO())
        for body in (CHAT, dict(CHAT, stream=True), {}):
            self.assertIn(self.request("POST", "/v1/chat/completions", body).status, (200, 400))


if __name__ == "__main__":
    unittest.main()
