"""Every kind of fault as a raw client sees it on the wire: chat, Responses, plain answers, both transports."""
import http.client
import json
import threading
import time
import unittest
from random import Random

from backends.contract import Finish, TextDelta, Usage
from faults import FAULT_KINDS
from server import MockTurtle
from tests.support import (CHAT, RESPONSE, TIMEOUT_S, ConnectionEnded, DeltaBackend, GatedBackend, LiveServerTest, chat_text,
                           every_form, parse_events, request_bytes, wait_until)
from tests.test_tls import TlsLive
from tests.websocket_client import WebSocketClient

EURO = "\u20ac".encode("utf-8")


class Seen:
    """What came over a connection until it ended. head: bytes; body: bytes, unframed; whole: the framing's end came;
    ended: "fin" or "rst"."""

    def __init__(self, data, ended):
        self.data, self.ended = data, ended
        self.head, _, rest = data.partition(b"\r\n\r\n")
        self.rest = rest
        self.body, self.whole = rest, None
        if b"transfer-encoding: chunked" in self.head:
            self.body, self.whole = unchunk(rest)

    @property
    def status(self):
        return int(self.head.split(b" ")[1])

    def events(self):
        return parse_events(self.body)


def unchunk(data):
    """(inside, whether the last chunk is there) of as many chunks as came, the last perhaps in part."""
    inside = b""
    while data:
        line, _, data = data.partition(b"\r\n")
        if line == b"no size":
            break
        size = int(line, 16)
        if not size:
            return inside, True
        inside, data = inside + data[:size], data[size + 2:]
    return inside, False


class FaultTest(LiveServerTest):
    settings = {"output_tokens": 6}

    def ask(self, fault, body=CHAT, path=None, method="POST", **headers):
        """One request with a fault on a connection that the server closes; what was Seen."""
        path = path or ("/v1/chat/completions" if "messages" in (body or {}) else "/v1/responses")
        headers = {name.replace("_", "-"): value for name, value in headers.items()}
        if fault is not None:
            headers["x-mockturtle-fault"] = fault
        client = self.connect()
        client.send_request(method, path, body, dict(headers, Connection="close"))
        return self.read_to_its_end(client)

    @staticmethod
    def read_to_its_end(client):
        data, sock = b"", client.sock
        while True:
            try:
                more = sock.recv(65536)
            except ConnectionResetError:
                return Seen(data, "rst")
            if not more:
                return Seen(data, "fin")
            data += more

    def chat(self, fault, **fields):
        return self.ask(fault, dict(CHAT, stream=True, **fields))

    def respond(self, fault, **fields):
        return self.ask(fault, dict(RESPONSE, stream=True, **fields))

    def plain(self, fault, **fields):
        return self.ask(fault, dict(CHAT, **fields))


@every_form
class CutTest(FaultTest):

    def test_cut_at_an_event_ends_the_connection_behind_the_events_before(self):
        for ask, count in ((self.chat, 3), (self.respond, 5)):
            for how in ("fin", "rst"):
                with self.subTest(ask=ask, how=how):
                    seen = ask("cut:event=%d,how=%s" % (count + 1, how))
                    self.assertEqual((len(seen.events()), seen.whole, seen.ended), (count, False, how))

    def test_cut_in_the_middle_of_a_frame(self):
        seen = self.chat("cut:event=3,where=frame")
        first, second, rest = seen.body.split(b"\n\n")
        self.assertTrue(rest.startswith(b'data: {"id"') and not rest.endswith(b"}"), rest)

    def test_cut_in_the_middle_of_a_character(self):
        for ask in (self.chat, self.respond):
            seen = ask("cut:event=5,where=character")
            self.assertTrue(seen.body.endswith(EURO[:1]), seen.body[-20:])
            with self.assertRaises(UnicodeDecodeError):
                seen.body.decode("utf-8")

    def test_cut_before_the_headers_gives_not_a_byte(self):
        for body in (CHAT, dict(CHAT, stream=True), RESPONSE):
            self.assertEqual(self.ask("cut:where=headers", body).data, b"")

    def test_cut_after_a_time(self):
        seen = self.ask("cut:ms=60", dict(CHAT, stream=True, max_tokens=500, ignore_eos=True), x_mockturtle_gate="never@3")
        self.assertEqual((len(seen.events()), seen.whole), (2, False))

    def test_cut_of_a_plain_answer(self):
        for where, at in (("before", 0), ("frame", 0.5)):
            seen = self.plain("cut:where=" + where)
            length = int(seen.head.partition(b"content-length: ")[2].split(b"\r\n")[0])
            self.assertEqual(len(seen.rest), int(length * at))
        self.assertTrue(self.plain("cut:where=character").rest.endswith(EURO[:1]))

    def test_what_was_cut_is_not_stored_and_is_no_client_that_left(self):
        seen = self.respond("cut:event=4")
        id = seen.events()[0].data["response"]["id"]
        self.assertEqual(self.request("GET", "/v1/responses/" + id).status, 404)
        self.assertEqual(self.count("disconnects"), 0)

    def test_the_others_go_on(self):
        self.chat("cut:event=2,how=rst")
        self.assertEqual(len(self.stream("/v1/chat/completions", CHAT)), 9)

    def test_an_event_that_never_comes_is_not_cut(self):
        seen = self.chat("cut:event=100")
        self.assertEqual((seen.events()[-1].data, seen.whole), ("[DONE]", True))

    def test_close_ends_a_connection_that_was_to_be_kept(self):
        for how in ("fin", "rst"):
            client = self.connect()
            client.send_request("POST", "/v1/chat/completions", CHAT, {"x-mockturtle-fault": "close:how=" + how})
            seen = self.read_to_its_end(client)
            self.assertEqual((seen.ended, json.loads(seen.rest)["object"]), (how, "chat.completion"))
            self.assertNotIn(b"connection: close", seen.head)


class StreamFaultTest(FaultTest):

    def test_malformed(self):
        for how, data in (("truncated", b'data: {"id":'), ("garbage", b"data: {not json\n\n"), ("empty", b"data: \n\n")):
            with self.subTest(how=how):
                seen = self.chat("malformed:event=2,how=" + how)
                event = seen.body.split(b"\n\n")[1] + b"\n\n"
                self.assertTrue(event.startswith(data), event)
                with self.assertRaises(ValueError):
                    json.loads(event[6:])
                self.assertEqual((seen.body.count(b"\n\n"), seen.whole), (9, True))

    def test_missing_by_number_and_by_type(self):
        whole = [event.data for event in self.chat(None, seed=1).events()]
        self.assertEqual(len(self.chat("missing:event=1").events()), len(whole) - 1)
        names = [event.name for event in self.respond("missing:type=response.output_item.done").events()]
        self.assertNotIn("response.output_item.done", names)
        self.assertIn("response.content_part.done", names)
        self.assertFalse(any(event.data["choices"][0]["finish_reason"] for event in
                             self.chat("missing:type=finish").events()[:-1]))

    def test_repeated(self):
        events = self.respond("repeated:event=5,count=3").events()
        self.assertEqual([event.data["sequence_number"] for event in events[3:8]], [3, 4, 4, 4, 5])

    def test_faults_that_repeat_each_other_do_not_grow_without_a_bound(self):
        events = self.respond(";".join(["repeated:event=5,count=100"] * 20)).events()
        self.assertEqual(sum(event.data["sequence_number"] == 4 for event in events[:-1]), 200)

    def test_reordered(self):
        numbers = [event.data["sequence_number"] for event in self.respond("reordered:event=5").events()[:-1]]
        self.assertEqual(numbers[:7], [0, 1, 2, 3, 5, 4, 6])
        self.assertEqual(sorted(numbers), list(range(len(numbers))))

    def test_a_last_event_that_has_nothing_to_change_places_with_still_comes(self):
        self.assertEqual(self.chat("reordered:event=9").events()[-1].data, "[DONE]")

    def test_extra(self):
        event = self.respond("extra:event=3").events()[2]
        self.assertEqual((event.name, event.data), ("mock.unknown", {"type": "mock.unknown"}))
        self.assertEqual(self.chat("extra:event=3,form=keepalive").events()[2].data, {"type": "keepalive"})
        self.assertEqual(self.chat("extra:event=3,form=empty_choices").events()[2].data["choices"], [])
        self.assertIn(b"\n\ndata:\n\n", self.chat("extra:event=3,form=empty_data").body)

    def test_without_a_field(self):
        for event in self.respond("without:field=sequence_number").events()[:-1]:
            self.assertNotIn("sequence_number", event.data)
        events = self.respond("without:field=usage,type=response.completed").events()
        self.assertNotIn("usage", events[-2].data["response"])
        self.assertIn("usage", events[0].data["response"])
        self.assertNotIn("usage", json.loads(self.plain("without:field=usage").rest))

    def test_split_sends_an_event_in_two_chunks(self):
        for where in ("frame", "character"):
            client = self.connect()
            client.send_request("POST", "/v1/chat/completions", dict(CHAT, stream=True),
                                {"x-mockturtle-fault": "split:event=2,where=%s,ms=1" % where})
            answer = client.read_answer()
            at = next(at for at, chunk in enumerate(answer.chunks) if not chunk.endswith(b"\n\n"))
            if where == "character":
                self.assertTrue(answer.chunks[at].endswith(EURO[:1]))
            self.assertEqual(len(parse_events(answer.body)), 9)
            self.assertEqual(answer.chunks[at + 1][-2:], b"\n\n")

    def test_slow_body_comes_in_small_pieces(self):
        client = self.connect()
        client.send_request("POST", "/v1/chat/completions", dict(CHAT, stream=True, max_tokens=1),
                            {"x-mockturtle-fault": "slow_body:bytes=40,ms=1"})
        answer = client.read_answer()
        self.assertLessEqual(max(map(len, answer.chunks)), 40)
        self.assertEqual(len(parse_events(answer.body)), 4)
        self.assertEqual(json.loads(self.plain("slow_body:bytes=100,ms=1").rest)["object"], "chat.completion")

    def test_long_line(self):
        self.assertEqual(len(self.chat("long_line:event=2,bytes=100000").events()[1].data["obfuscation"]), 100000)

    def test_legal_but_unusual_sse(self):
        whole = chat_text(self.chat(None, seed=1).events())
        for form, mark in (("crlf", b"\r\n\r\n"), ("no_space", b"data:{"), ("multi_line", b"data: {\ndata: "),
                           ("fields", b"\nretry: 3000\n"), ("bom", b"\xef\xbb\xbfdata: ")):
            with self.subTest(form=form):
                seen = self.chat("sse:form=" + form, seed=1)
                self.assertIn(mark, seen.body)
                self.assertEqual(chat_text(read_sse(seen.body)), whole)

    def test_bad_chunk(self):
        seen = self.connect()
        seen.send_request("POST", "/v1/chat/completions", dict(CHAT, stream=True), {"x-mockturtle-fault": "bad_chunk:event=2"})
        answer = seen.read_head()
        seen.read_frame(answer)
        with self.assertRaises(ValueError):
            seen.read_frame(answer)

    def test_no_terminal_ends_the_framing_all_the_same(self):
        for ask, fault, last in ((self.chat, "no_terminal", "delta"), (self.chat, "no_terminal:only=done", "finish"),
                                 (self.respond, "no_terminal", "response.output_item.done"),
                                 (self.respond, "no_terminal:only=done", "response.completed")):
            with self.subTest(fault=fault, ask=ask):
                seen = ask(fault)
                event = seen.events()[-1]
                name = event.name or ("finish" if event.data["choices"][0]["finish_reason"] else "delta")
                self.assertEqual((name, seen.whole), (last, True))

    def test_content_type(self):
        self.assertIn(b"\r\ncontent-type: text/html\r\n", self.chat("content_type").head)
        self.assertIn(b"\r\ncontent-type: text/plain\r\n", self.plain("content_type:value=text/plain").head)

    def test_http_1_0_has_the_same_faults(self):
        for fault, count in (("cut:event=3", 2), ("missing:event=2", 8)):
            client = self.connect()
            client.send_request("POST", "/v1/chat/completions", dict(CHAT, stream=True), {"x-mockturtle-fault": fault},
                                version="1.0")
            self.assertEqual(len(parse_events(self.read_to_its_end(client).body)), count)

    def test_several_at_once(self):
        seen = self.respond("missing:event=1; without:field=delta; cut:event=8,how=rst")
        self.assertEqual((len(seen.events()), seen.ended), (6, "rst"))
        self.assertNotIn("delta", seen.events()[3].data)

    def test_of_the_legacy_api(self):
        body = {"model": "m", "prompt": "x", "stream": True, "max_tokens": 5}
        seen = self.ask("cut:event=3,where=character", body, "/v1/completions")
        self.assertTrue(seen.body.endswith(EURO[:1]))


def read_sse(data):
    """A stream as the SSE standard says it is to be read, as a list of objects with `data`; it is lenient."""
    class Found:
        def __init__(self, text):
            self.data = "[DONE]" if text == "[DONE]" else json.loads(text)
    found = []
    for block in data.decode("utf-8-sig").replace("\r\n", "\n").split("\n\n"):
        lines = [line[5:].lstrip(" ") for line in block.split("\n") if line.startswith("data:")]
        if lines:
            found.append(Found("\n".join(lines)))
    return found


class TimeFaultTest(FaultTest):
    settings = {"output_tokens": 6, "heartbeat_s": 0.02}

    def test_a_stall_has_heartbeats_and_shifts_what_follows(self):
        began_s = time.monotonic()
        events = parse_events(self.chat("stall:event=3,ms=150").body, comments=True)
        self.assertGreaterEqual(time.monotonic() - began_s, 0.15)
        beats = [at for at, event in enumerate(events) if event.name == ":"]
        self.assertGreaterEqual(len(beats), 3)
        self.assertEqual(beats, list(range(2, 2 + len(beats))))

    def test_a_stall_without_heartbeats(self):
        events = parse_events(self.chat("stall:event=3,ms=100,heartbeats=false").body, comments=True)
        self.assertEqual([event.name for event in events if event.name == ":"], [])
        self.assertEqual(len(events), 9)

    def test_slow_headers_of_every_answer(self):
        for body in (CHAT, dict(CHAT, stream=True), RESPONSE):
            began_s = time.monotonic()
            self.assertEqual(self.ask("slow_headers:ms=60", body).status, 200)
            self.assertGreaterEqual(time.monotonic() - began_s, 0.06)

    def test_a_stalled_plain_answer_whose_client_leaves_is_not_made(self):
        client = self.connect()
        client.send_request("POST", "/v1/responses", RESPONSE, {"x-mockturtle-fault": "stall:ms=60000"})
        wait_until(lambda: self.server.player.plays, "the stall")
        client.close()
        self.wait_for_count("disconnects", 1)
        self.assertEqual(self.count("completions"), 0)


class PlainFaultTest(FaultTest):

    def test_wrong_length(self):
        whole = self.plain(None, seed=1)
        longer = self.plain("wrong_length:bytes=7", seed=1)
        self.assertEqual(longer.rest[-20:], whole.rest[-20:])
        self.assertEqual(self.length(longer), len(longer.rest) + 7)
        shorter = self.plain("wrong_length:bytes=-5", seed=1)
        self.assertEqual(self.length(shorter), len(shorter.rest) - 5)

    def test_a_shorter_length_leaves_bytes_in_front_of_the_next_answer(self):
        client = self.connect()
        client.send_request("POST", "/v1/chat/completions", CHAT, {"x-mockturtle-fault": "wrong_length:bytes=-4"})
        rest = client.read_answer().body
        client.send_request("GET", "/v1/models", headers={"Connection": "close"})
        left = client.read_to_end()
        self.assertEqual(left[4:13], b"HTTP/1.1 ")
        self.assertEqual(json.loads(rest + left[:4])["object"], "chat.completion")

    @staticmethod
    def length(seen):
        return int(seen.head.partition(b"content-length: ")[2].split(b"\r\n")[0])

    def test_malformed_has_the_right_length(self):
        seen = self.plain("malformed")
        self.assertEqual(self.length(seen), len(seen.rest))
        with self.assertRaises(ValueError):
            json.loads(seen.rest)

    def test_every_answer_may_have_faults(self):
        self.assertEqual(self.ask("cut:where=headers", None, "/v1/models", "GET").data, b"")
        self.assertEqual(self.ask("wrong_length:bytes=3", {"model": "m", "input": "x"}, "/v1/embeddings").ended, "fin")
        self.assertEqual(self.ask("malformed", {"model": "m"}).status, 400)

    def test_error_bodies_of_gateways(self):
        seen = self.plain("error:status=502,body=html")
        self.assertEqual((seen.status, seen.rest[:6]), (502, b"<html>"))
        self.assertIn(b"content-type: text/html", seen.head)
        self.assertEqual(self.plain("error:status=500,body=empty").rest, b"")
        self.assertEqual(self.plain("error:status=200,body=empty").status, 200)

    def test_error_with_an_envelope_comes_before_any_look_at_the_body(self):
        answer = self.request("POST", "/v1/chat/completions", {"nonsense": 1},
                              {"x-mockturtle-fault": "error:status=429,retry_after_s=3"})
        self.assertEqual((answer.status, answer.error["code"], answer.headers["retry-after"],
                          answer.headers["retry-after-ms"]), (429, "rate_limit_exceeded", "3", "3000"))

    def test_lost_previous(self):
        first = self.request("POST", "/v1/responses", RESPONSE).json()["id"]
        body = dict(RESPONSE, previous_response_id=first)
        told = self.request("POST", "/v1/responses", body, {"x-mockturtle-fault": "lost_previous:why=evicted"})
        self.assertEqual((told.status, told.error["code"], told.error["param"]),
                         (400, "previous_response_not_found", "previous_response_id"))
        truth = self.request("POST", "/v1/responses", dict(RESPONSE, previous_response_id="resp_" + "0" * 32))
        self.assertEqual(set(told.error), set(truth.error))
        self.assertEqual(told.error["message"].replace(first, "resp_" + "0" * 32), truth.error["message"])
        self.assertEqual(self.request("POST", "/v1/responses", body).status, 200)
        conversation = self.request("POST", "/v1/conversations", {}).json()["id"]
        told = self.request("POST", "/v1/responses", dict(RESPONSE, conversation=conversation),
                            {"x-mockturtle-fault": "lost_previous"})
        self.assertEqual(told.status, 404)

    def test_store_full(self):
        told = self.request("POST", "/v1/responses", RESPONSE, {"x-mockturtle-fault": "store_full"})
        self.assertEqual((told.status, told.error["type"]), (503, "server_error"))
        events = self.respond("store_full").events()
        self.assertEqual([event.name for event in events[-3:-1]], ["error", "response.failed"])
        self.assertEqual(self.count("completions"), 0)

    def test_compaction_items(self):
        for count in (0, 1, 2):
            answer = self.request("POST", "/v1/responses/compact", RESPONSE,
                                  {"x-mockturtle-fault": "compaction:items=%d" % count})
            items = [item["id"] for item in answer.json()["output"] if item["type"] == "compaction"]
            self.assertEqual((len(items), len(set(items))), (count, count))


class GenerationFaultTest(FaultTest):

    def test_failed_at_an_event_tells_no_more_than_was_sent(self):
        events = self.respond("failed:event=7").events()
        self.assertEqual([event.name for event in events[6:]], ["error", "response.failed", None])
        failed = events[7].data["response"]
        sent = "".join(event.data["delta"] for event in events if event.name == "response.output_text.delta")
        self.assertEqual((failed["status"], failed["error"]["code"]), ("failed", "server_error"))
        self.assertEqual(failed["output"][0]["content"][0]["text"], sent)
        self.assertEqual([event.data["sequence_number"] for event in events[:-1]], list(range(8)))
        stored = self.request("GET", "/v1/responses/" + failed["id"]).json()
        self.assertEqual(stored["status"], "failed")

    def test_incomplete_at_an_event(self):
        for reason in ("max_output_tokens", "content_filter"):
            events = self.respond("incomplete:event=7,reason=" + reason).events()
            last = events[-2]
            self.assertEqual((last.name, last.data["response"]["incomplete_details"]),
                             ("response.incomplete", {"reason": reason}))
            self.assertEqual(last.data["response"]["usage"]["output_tokens"], 2)

    def test_in_chat(self):
        events = self.chat("failed:event=4").events()
        self.assertEqual((len(events), events[-1].data["error"]["type"]), (4, "server_error"))
        events = self.chat("incomplete:event=3,reason=content_filter").events()
        self.assertEqual([event.data["choices"][0]["finish_reason"] for event in events[:-1]],
                         [None, None, "content_filter"])

    def test_of_plain_answers(self):
        told = json.loads(self.ask("failed:event=3,code=rate_limit_exceeded", RESPONSE).rest)
        self.assertEqual((told["status"], told["error"]["code"], told["output"][0]["status"]),
                         ("failed", "rate_limit_exceeded", "incomplete"))
        self.assertEqual(self.request("GET", "/v1/responses/" + told["id"]).json(), told)
        self.assertEqual(self.plain("failed").status, 500)
        told = json.loads(self.plain("incomplete:event=3").rest)
        self.assertEqual((told["choices"][0]["finish_reason"], told["usage"]["completion_tokens"]), ("length", 2))

    def test_of_background_responses(self):
        headers = {"x-mockturtle-fault": "failed:event=7"}
        answer = self.request("POST", "/v1/responses", dict(RESPONSE, background=True, stream=True), headers)
        self.assertEqual(answer.events()[-2].name, "response.failed")
        queued = self.request("POST", "/v1/responses", dict(RESPONSE, background=True), headers).json()
        self.assertEqual(queued["status"], "queued")
        wait_until(lambda: self.request("GET", "/v1/responses/" + queued["id"]).json()["status"] == "failed")

    def test_who_watches_a_background_response_is_cut_off_and_may_come_back(self):
        body = dict(RESPONSE, background=True, stream=True)
        seen = self.ask("cut:event=4", body)
        self.assertEqual(len(seen.events()), 3)
        id = seen.events()[0].data["response"]["id"]
        rest = self.request("GET", "/v1/responses/%s?stream=true&starting_after=2" % id).events()
        self.assertEqual((rest[0].data["sequence_number"], rest[-2].name), (3, "response.completed"))


class AccessTest(FaultTest):

    def test_an_unknown_fault_is_named_and_nothing_else_happens(self):
        for header, value in (("x-mockturtle-fault", "boom"), ("x-mockturtle-gate", "a b"),
                              ("x-mockturtle-heartbeat", "loud"), ("x-mockturtle-fault", "cut:event=x")):
            answer = self.request("POST", "/v1/chat/completions", CHAT, {header: value})
            self.assertEqual((answer.status, answer.error["param"], answer.error["code"]), (400, header, "invalid_value"))
        self.assertEqual(self.count("completions"), 0)

    def test_a_fault_that_means_nothing_for_the_request_is_refused(self):
        answer = self.request("POST", "/v1/chat/completions", CHAT, {"x-mockturtle-fault": "missing:event=2"})
        self.assertEqual(answer.error["message"],
                         "Invalid header 'x-mockturtle-fault': the fault 'missing' is for streamed answers.")

    def test_pages_in_a_browser_may_not_ask_for_faults(self):
        for header in ("x-mockturtle-fault", "x-mockturtle-gate", "x-mockturtle-heartbeat"):
            answer = self.request("POST", "/v1/chat/completions", CHAT, {header: "off", "Origin": "http://there"})
            self.assertEqual(answer.status, 403)

    def test_beyond_loopback_they_need_a_key(self):
        self.start_server(host=("0.0.0.0",))
        answer = self.request("POST", "/v1/chat/completions", CHAT, {"x-mockturtle-fault": "error"})
        self.assertEqual(answer.status, 403)

    def test_with_a_key_they_do_not_care_where_from(self):
        self.start_server(host=("0.0.0.0",), api_key=("k",))
        answer = self.request("POST", "/v1/chat/completions", CHAT, {"x-mockturtle-fault": "error:status=418",
                                                                     "Authorization": "Bearer k"})
        self.assertEqual(answer.status, 418)

    def test_faults_by_flag(self):
        self.start_server(fault=("error:status=503,times=1,endpoint=chat", "slow_headers:ms=1"))
        self.assertEqual([self.request("POST", "/v1/chat/completions", CHAT).status for _ in range(2)], [503, 200])
        self.assertEqual(self.request("GET", "/v1/models").status, 200)


class StandardClientTest(FaultTest):
    """The standard library's http.client, whose errors are documented."""

    def read(self, fault, streamed=True):
        connection = http.client.HTTPConnection(*self.address, timeout=TIMEOUT_S)
        self.addCleanup(connection.close)
        connection.request("POST", "/v1/chat/completions", json.dumps(dict(CHAT, stream=streamed)),
                           {"x-mockturtle-fault": fault})
        return connection.getresponse().read()

    def test_each_fault_is_the_exception_that_it_should_be(self):
        for fault, streamed, error in (
                ("cut:where=headers", True, http.client.RemoteDisconnected), ("cut:event=3", True, http.client.IncompleteRead),
                ("cut:event=3,where=frame", True, http.client.IncompleteRead),
                ("cut:event=3,how=rst", True, ConnectionResetError), ("wrong_length:bytes=5", False, http.client.IncompleteRead),
                ("cut:where=frame", False, http.client.IncompleteRead), ("bad_chunk:event=3", True, http.client.IncompleteRead)):
            with self.subTest(fault=fault), self.assertRaises(error):
                self.read(fault, streamed)

    def test_no_terminal_is_no_error_to_it(self):
        self.assertNotIn(b"[DONE]", self.read("no_terminal"))


class EngineFaultTest(FaultTest):
    """Behind a queue, prefill and a trace, and with a backend that waits, the same faults."""

    def test_behind_an_engine_and_a_trace(self):
        self.start_server(max_num_seqs=1, prefill_overhead_ms=1, timing_trace="memory", itl_ms=1)
        self.assertEqual(len(self.chat("cut:event=3").events()), 2)
        self.assertEqual(len(self.chat("missing:event=3; stall:event=4,ms=5").events()), 8)
        self.assertEqual(self.plain("wrong_length:bytes=3").ended, "fin")
        self.assertEqual(len(self.chat(None).events()), 9)
        wait_until(lambda: self.server.timing_trace.count == 4, "all traces")
        traces = self.request("GET", "/_mockturtle/timing").json()["requests"]
        self.assertEqual([len(trace["planned_ms"]) == len(trace["sent_ms"]) for trace in traces], [True] * 4)

    def test_of_a_backend_that_waits(self):
        backend = GatedBackend()
        self.start_server(backend)
        for fault, stream, check in (
                ("cut:event=3", True, lambda seen: self.assertEqual((len(seen.events()), seen.whole), (2, False))),
                ("malformed:event=2", True, lambda seen: self.assertEqual(seen.whole, True)),
                ("failed:event=3", True, lambda seen: self.assertIn("error", seen.events()[-1].data)),
                ("incomplete:event=3", True, lambda seen: self.assertEqual(
                    seen.events()[-2].data["choices"][0]["finish_reason"], "length")),
                ("slow_headers:ms=5", True, lambda seen: self.assertEqual(len(seen.events()), 5)),
                ("cut:where=frame", False, lambda seen: self.assertEqual(seen.status, 200)),
                ("failed", False, lambda seen: self.assertEqual(seen.status, 500))):
            with self.subTest(fault=fault):
                client = self.connect()
                client.send_request("POST", "/v1/chat/completions", dict(CHAT, stream=stream),
                                    {"x-mockturtle-fault": fault, "Connection": "close"})
                generation = backend.next()
                generation.say("one")
                generation.say(" two")
                generation.finish()
                check(self.read_to_its_end(client))

    def test_a_backend_may_say_what_goes_wrong(self):
        class Ruled(DeltaBackend):
            sets_faults = True

            def generate(self, request, cancel):
                request.wire_faults, request.rule = self.said, "the rule"
                return DeltaBackend.generate(self, request, cancel)
        for blocking in (False, True):
            backend = Ruled([(0.0, TextDelta("one")), (0.0, TextDelta(" two")), (0.0, Finish()), (0.0, Usage(1, 2))], blocking)
            if self._server is None:
                self.start_server(backend)
            else:
                self.server.handler_class.backend = backend
            for said, check in (
                    (["cut:event=3"], lambda seen: self.assertEqual(len(seen.events()), 2)),
                    ("error:status=429", lambda seen: self.assertEqual(seen.status, 429)),
                    ([{"kind": "missing", "event": 1}, {"gate": "open@2"}], lambda seen: self.assertEqual(len(seen.events()), 4)),
                    (None, lambda seen: self.assertEqual(len(seen.events()), 5))):
                with self.subTest(said=said, blocking=blocking):
                    backend.said = said
                    self.server.gates.open("open")
                    check(self.chat(None))


class UpstreamFaultTest(FaultTest):
    """In front of another server, the same faults befall its answers here."""

    settings = {"backend": "upstream", "upstream_retries": 0}

    def start_server(self, **settings):
        self.upstream = MockTurtle(output_tokens=6).start()
        return FaultTest.start_server(self, upstream_url=(self.upstream.base_url,), **settings)

    def _stop_server(self):
        FaultTest._stop_server(self)
        self.upstream.stop()

    def test_of_bytes_and_of_the_generation(self):
        for ask, fault, check in (
                (self.chat, "cut:event=3", lambda seen: self.assertEqual((len(seen.events()), seen.whole), (2, False))),
                (self.chat, "missing:event=1; stall:event=2,ms=1", lambda seen: self.assertEqual(len(seen.events()), 8)),
                (self.chat, "failed:event=4", lambda seen: self.assertIn("error", seen.events()[-1].data)),
                (self.respond, "failed:event=7", lambda seen: self.assertEqual(seen.events()[-2].name, "response.failed")),
                (self.respond, "incomplete:event=7", lambda seen: self.assertEqual(seen.events()[-2].name, "response.incomplete")),
                (self.respond, "store_full", lambda seen: self.assertEqual(seen.events()[-2].name, "response.failed")),
                (self.plain, "wrong_length:bytes=4", lambda seen: self.assertEqual(seen.ended, "fin")),
                (self.plain, "failed", lambda seen: self.assertEqual(seen.status, 500)),
                (self.plain, None, lambda seen: self.assertEqual(seen.status, 200))):
            with self.subTest(fault=fault, ask=ask):
                check(ask(fault))

    def test_a_big_answer_comes_whole_behind_a_stall(self):
        seen = self.chat("stall:event=3,ms=30", max_tokens=5000, ignore_eos=True)
        self.assertEqual((len(seen.events()), seen.whole), (5003, True))

    def test_a_gate_holds_it(self):
        client = self.connect()
        client.send_request("POST", "/v1/chat/completions", dict(CHAT, stream=True), {"x-mockturtle-gate": "stop@3"})
        self.assertTrue(self.server.gates.wait("stop", TIMEOUT_S))
        self.server.gates.open("stop")
        self.assertEqual(len(client.read_answer().events()), 9)

    def test_rate_limits_hold_where_no_tokens_are_counted(self):
        self.start_server(requests_per_minute=10, tokens_per_minute=10000)
        answer = self.request("POST", "/v1/chat/completions", CHAT)
        self.assertEqual((answer.status, answer.headers["x-ratelimit-remaining-requests"]), (200, "9"))


class CountsTest(FaultTest):
    """What is sent wrongly is counted rightly."""
    settings = {"output_tokens": 6, "itl_ms": 1}

    def tokens(self):
        page = self.request("GET", "/metrics").text
        return sum(float(line.rpartition(" ")[2]) for line in page.splitlines()
                   if line.startswith("vllm:generation_tokens_total"))

    def test_the_metrics_count_the_tokens_that_were_sent(self):
        before = self.tokens()
        for fault, tokens in (("stall:event=3,ms=1", 6), ("extra:event=3", 6), ("slow_body:bytes=60,ms=0", 6),
                              ("split:event=3,ms=0", 6), ("cut:event=5", 3), ("failed:event=5", 3)):
            with self.subTest(fault=fault):
                self.ask(fault, dict(CHAT, stream=True))
                wait_until(lambda: self.tokens() != before, "the count")
                self.assertEqual(self.tokens() - before, tokens)
                before += tokens


class SocketFaultTest(FaultTest):
    """Turns of a WebSocket have those that are not HTTP's own."""

    def connect(self, headers=None):
        client = WebSocketClient(self.address)
        self._clients.append(client)
        self.assertEqual(client.handshake(headers).status, 101)
        return client

    def test_faults_of_events(self):
        client = self.connect({"x-mockturtle-fault": "missing:event=1; repeated:event=5"})
        for _ in range(2):
            client.create()
            self.assertEqual([event["sequence_number"] for event in client.read_turn()][:5], [1, 2, 3, 4, 4])

    def test_cut(self):
        for fault, count, ended in (("cut:event=4", 3, "fin"), ("cut:event=4,where=frame,how=rst", 3, "rst"),
                                    ("cut:event=5,where=character", 4, "fin")):
            with self.subTest(fault=fault):
                client = self.connect({"x-mockturtle-fault": fault})
                client.create()
                for _ in range(count):
                    client.read_event()
                seen = self.read_to_its_end(client)
                self.assertEqual(seen.ended, ended)
                self.assertEqual(self.count("disconnects"), 0)

    def test_failed_and_split(self):
        client = self.connect({"x-mockturtle-fault": "failed:event=7"})
        client.create()
        events = client.read_turn()
        self.assertEqual((len(events), events[-1]["type"]), (7, "response.failed"))
        client = self.connect({"x-mockturtle-fault": "split:event=1,where=character"})
        client.create()
        first, size = client._take(2)[0], client._take(2)
        self.assertEqual((first, client._take(int.from_bytes(size, "big"))[-1:]), (0x01, EURO[:1]))

    def test_an_error_is_of_a_turn_and_what_is_https_is_refused(self):
        self.server.faults.add("error:status=429,endpoint=responses,times=1")
        client = self.connect()
        client.create()
        self.assertEqual(client.read_event()["status"], 429)
        client.create()
        self.assertEqual(client.read_turn()[-1]["type"], "response.completed")
        client = self.connect({"x-mockturtle-fault": "bad_chunk"})
        client.create()
        self.assertIn("answers over HTTP", client.read_event()["error"]["message"])

    def test_the_handshake_itself_may_be_refused(self):
        client = WebSocketClient(self.address)
        self._clients.append(client)
        self.assertEqual(client.handshake({"x-mockturtle-fault": "error:status=503"}).status, 503)


class TlsFaultTest(TlsLive, FaultTest):

    def test_the_same_under_tls(self):
        import ssl
        self.assertEqual(len(self.chat("missing:event=2").events()), 8)
        client = self.connect()
        client.send_request("POST", "/v1/chat/completions", dict(CHAT, stream=True), {"x-mockturtle-fault": "cut:event=3"})
        answer = client.read_head()
        self.assertIsNotNone(client.read_frame(answer))
        self.assertIsNotNone(client.read_frame(answer))
        with self.assertRaises((ssl.SSLError, ConnectionEnded)):
            client.read_frame(answer)


class AnyFaultsTest(FaultTest):

    settings = {"output_tokens": 6, "time_scale": 0.001}

    def test_any_faults_together_are_an_answer_or_an_end_and_never_an_error_of_ours(self):
        random = Random(8)
        values = {"event": ("1", "2", "5", "9", "30"), "type": ("done", "delta", "response.created"), "ms": ("0", "1"),
                  "bytes": ("1", "7", "300"), "count": ("2",), "field": ("id", "choices", "type"), "name": ("open",),
                  "items": ("0", "2"), "heartbeats": ("true", "false")}
        self.server.gates.open("open")
        bodies = [CHAT, RESPONSE, dict(CHAT, stream=True), dict(RESPONSE, stream=True), dict(RESPONSE, background=True,
                  stream=True), {"model": "m", "prompt": ["a", "b"], "stream": True}, {"model": "m"}]
        for _ in range(120):
            said = []
            for kind in random.sample(sorted(FAULT_KINDS), random.randint(1, 4)):
                known = FAULT_KINDS[kind].params
                keys = [key for key in known if key in values and (random.random() < 0.5 or key in FAULT_KINDS[kind].needs)]
                said.append(kind + ":" + ",".join("%s=%s" % (key, random.choice(values[key])) for key in keys))
            body = random.choice(bodies)
            with self.subTest(said=said, body=body):
                for fault in said:
                    self.server.faults.add({"fault": fault, "endpoint": "any", "times": 1})
                seen = self.ask(None, body, "/v1/completions" if "prompt" in body else None)
                self.assertTrue(not seen.data or seen.status in (200, 400, 404, 500, 503))
                self.server.faults.clear()
                self.assertEqual(self.take_errors(), [])


class PipelineTest(FaultTest):

    def test_faults_are_of_one_request_alone(self):
        client = self.connect()
        client.send(request_bytes("POST", "/v1/chat/completions", dict(CHAT, stream=True),
                                  {"x-mockturtle-fault": "missing:event=1"})
                    + request_bytes("POST", "/v1/chat/completions", dict(CHAT, stream=True)))
        self.assertEqual([len(client.read_answer().events()) for _ in range(2)], [8, 9])

    def test_a_thread_each_gets_its_own(self):
        counts = {}

        def run(number):
            counts[number] = len(self.chat("cut:event=%d" % number).events())
        threads = [threading.Thread(target=run, args=(number,)) for number in range(2, 8)]
        self.assertTrue(self.server)
        for thread in threads:
            thread.start()
        for thread in threads:
            thread.join(TIMEOUT_S)
        self.assertEqual(counts, {number: number - 1 for number in range(2, 8)})


if __name__ == "__main__":
    unittest.main()
