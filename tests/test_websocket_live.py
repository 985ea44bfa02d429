"""The Responses API over a WebSocket, on every form of the transport: turns, lanes, memory, limits, ends."""
import gc
import json
import socket
import threading
import time
import unittest
from random import Random

from backends.contract import Backend, Finish, TextDelta, Usage
from server import MockTurtle
from state.memory import MemoryStore
from tests.support import (RESPONSE, TIMEOUT_S, DeltaBackend, GatedBackend, LiveServerTest, ShiftedClock, every_form,
                           request_bytes, wait_until)
from tests.test_tls import TlsClient, make_pair
from tests.websocket_client import (ACCEPT, BINARY, CLOSE, HANDSHAKE, PING, PONG, TEXT, WebSocketClient, client_frame,
                                    close_payload)


def kinds(events):
    return [event["type"] for event in events]


def said(events):
    return "".join(event["delta"] for event in events if event["type"] == "response.output_text.delta")


def error_of(events):
    """(status, code, param) of a turn that was one error event."""
    assert kinds(events) == ["error"], kinds(events)
    return events[0]["status"], events[0]["error"]["code"], events[0]["error"]["param"]


class WebSocketLive(LiveServerTest):

    def connect(self):
        client = WebSocketClient(self.address)
        self._clients.append(client)
        return client

    def open(self, **headers):
        """A client whose handshake is done."""
        client = self.connect()
        self.assertEqual(client.handshake(headers).status, 101)
        return client

    def assert_closed(self, client, code):
        """The server's close frame, ours in return, and the end."""
        found, reason = client.read_close()
        self.assertEqual(found, code, reason)
        client.send_frame(CLOSE, close_payload(code))
        self.assertTrue(client.has_ended())


@every_form
class HandshakeLiveTest(WebSocketLive):

    def test_the_answer_is_that_of_the_rfc(self):
        answer = self.connect().handshake()
        self.assertEqual((answer.status, answer.reason, answer.headers["sec-websocket-accept"]),
                         (101, "Switching Protocols", ACCEPT))
        self.assertEqual((answer.headers["upgrade"], answer.headers["connection"]), ("websocket", "Upgrade"))
        self.assertNotIn("content-length", answer.headers)

    def test_no_extension_and_no_subprotocol_is_chosen(self):
        answer = self.connect().handshake({"Sec-WebSocket-Extensions": "permessage-deflate; client_max_window_bits",
                                           "Sec-WebSocket-Protocol": "realtime"})
        self.assertEqual(answer.status, 101)
        self.assertFalse({"sec-websocket-extensions", "sec-websocket-protocol"} & set(answer.headers))

    def test_the_path_without_v1_is_the_same(self):
        client = self.connect()
        self.assertEqual(client.handshake(path="/responses").status, 101)
        self.assertEqual(client.turn()[-1]["type"], "response.completed")

    def test_a_plain_get_is_426_and_the_connection_goes_on(self):
        client = self.connect()
        answer = client.request("GET", "/v1/responses")
        self.assertEqual((answer.status, answer.headers["upgrade"], answer.error["type"]),
                         (426, "websocket", "invalid_request_error"))
        self.assertEqual(client.handshake().status, 101)

    def test_a_bad_handshake_is_an_envelope(self):
        for headers, status in (({"Sec-WebSocket-Version": "8"}, 426), ({"Sec-WebSocket-Key": "x"}, 400),
                                ({"Connection": "close"}, 400)):
            with self.subTest(headers=headers):
                answer = self.connect().handshake(headers)
                self.assertEqual((answer.status, answer.error["type"]), (status, "invalid_request_error"))

    def test_a_key_is_asked_for_as_everywhere(self):
        self.start_server(api_key=("sk-right",))
        for given, status in ((None, 401), ("Bearer sk-wrong", 401), ("Bearer sk-right", 101)):
            with self.subTest(given=given):
                answer = self.connect().handshake({"Authorization": given} if given else {})
                self.assertEqual(answer.status, status)

    def test_a_page_of_another_origin_is_refused(self):
        self.start_server(cors_origin=("https://good.example",))
        for origin, status in (("https://bad.example", 403), ("https://good.example", 101)):
            with self.subTest(origin=origin):
                self.assertEqual(self.connect().handshake({"Origin": origin}).status, status)

    def test_requests_before_it_on_the_same_connection_are_answered(self):
        client = self.connect()
        client.send(request_bytes("GET", "/health") + request_bytes("POST", "/v1/responses", RESPONSE)
                    + request_bytes("GET", "/v1/responses", headers=HANDSHAKE))
        self.assertEqual([client.read_answer().status for _ in range(2)], [200, 200])
        self.assertEqual(client.read_head().status, 101)
        self.assertEqual(client.turn()[-1]["type"], "response.completed")

    def test_frames_that_come_with_the_handshake_are_read(self):
        client = self.connect()
        client.send(request_bytes("GET", "/v1/responses", headers=HANDSHAKE) + client_frame(PING, b"early")
                    + client_frame(TEXT, b'{"type": "response.create", "model": "m", "input": "x"}')[:11])
        self.assertEqual(client.read_head().status, 101)
        self.assertEqual(client.read_ws(), (PONG, b"early"))
        client.send(client_frame(TEXT, b'{"type": "response.create", "model": "m", "input": "x"}')[11:])
        self.assertEqual(client.read_turn()[-1]["type"], "response.completed")


@every_form
class TurnTest(WebSocketLive):

    def test_the_events_are_those_of_the_stream_of_the_same_request(self):
        cases = [{}, {"instructions": "Be brief.", "reasoning": {"effort": "low", "summary": "auto"}},
                 {"tools": [{"type": "function", "name": "f", "parameters": {"type": "object", "properties": {
                     "a": {"type": "string"}}}}], "tool_choice": "required"},
                 {"text": {"format": {"type": "json_object"}}, "input": "Say it in JSON."}, {"max_output_tokens": 16},
                 {"tools": [{"type": "web_search"}], "tool_choice": "required"},
                 {"tools": [{"type": "code_interpreter", "container": {"type": "auto"}}], "tool_choice": "required"}]
        self.start_server(fixed_ids=True)
        # another server, as a request that is repeated gets another answer
        with MockTurtle(fixed_ids=True, output_tokens=8, transport=self.form_settings["transport"]) as mock:
            client = WebSocketClient(mock.server.server_address)
            self.addCleanup(client.close)
            client.handshake()
            for body in cases:
                body = dict(RESPONSE, include=["message.output_text.logprobs"], **body)
                with self.subTest(body=body):
                    streamed = [event.data for event in self.stream("/v1/responses", body)]
                    self.assertEqual(streamed.pop(), "[DONE]")
                    turn = client.turn(**body)
                    texts = [json.dumps(events).replace(events[0]["response"]["id"][5:], "ID")
                             for events in (streamed, turn)]
                    self.assertEqual(*texts)

    def test_a_paced_turn_comes_event_by_event(self):
        self.start_server(ttft_ms=20, itl_ms=5)
        turn = self.open().turn()
        self.assertEqual([event["sequence_number"] for event in turn], list(range(len(turn))))
        self.assertEqual(kinds(turn).count("response.output_text.delta"), 8)
        self.assertEqual(turn[-1]["response"]["output"][0]["content"][0]["text"], said(turn))

    def test_turns_follow_each_other_without_anything_in_between(self):
        client = self.open()
        for _ in range(20):
            turn = client.turn()
            self.assertEqual((turn[0]["type"], turn[-1]["type"]), ("response.created", "response.completed"))
        self.assertTrue(client.is_quiet())

    def test_a_stored_one_can_be_retrieved_as_soon_as_its_end_is_out(self):
        last = self.open().turn()[-1]["response"]
        self.assertEqual(self.request("GET", "/v1/responses/" + last["id"]).json(), last)

    def test_a_second_create_waits_for_the_first(self):
        backend = GatedBackend()
        self.start_server(backend)
        client = self.open()
        client.create(input="one")
        client.create(input="two")
        first = backend.next()
        first.say("a")
        self.assertEqual(client.read_event()["type"], "response.created")
        self.assertTrue(backend._generations.empty())
        first.finish()
        turn = client.read_turn()
        second = backend.next()
        second.say("b")
        second.finish()
        self.assertEqual((said(turn), said(client.read_turn())), ("a", "b"))

    def test_the_wait_for_a_turn_is_not_taken_from_its_ttft(self):
        self.start_server(ttft_ms=60, itl_ms=0, output_tokens=1)
        client = self.open()
        began_s = time.monotonic()
        for _ in range(3):
            client.create()
        for _ in range(3):
            client.read_turn()
        self.assertGreater(time.monotonic() - began_s, 0.17)

    def test_many_creates_at_once_are_answered_in_order(self):
        client = self.open()
        count = 300
        frames = b"".join(client_frame(TEXT, json.dumps({"type": "response.create", "model": "m", "input": "x", "metadata": {
            "number": str(number)}}).encode()) for number in range(count))
        sender = threading.Thread(target=client.send, args=(frames,))
        sender.start()
        numbers = [int(client.read_turn()[-1]["response"]["metadata"]["number"]) for _ in range(count)]
        sender.join(TIMEOUT_S)
        self.assertEqual(numbers, list(range(count)))

    def test_a_big_message_is_read_on_a_worker_and_keeps_its_place(self):
        client = self.open()
        client.create(input="word " * 100000, metadata={"number": "0"})
        client.create(metadata={"number": "1"})
        turns = [client.read_turn()[-1]["response"] for _ in range(2)]
        self.assertEqual([turn["metadata"]["number"] for turn in turns], ["0", "1"])
        self.assertGreater(turns[0]["usage"]["input_tokens"], 100000)

    def test_a_message_in_fragments_with_a_ping_between(self):
        client = self.open()
        payload = json.dumps(dict(RESPONSE, type="response.create")).encode()
        client.send_frame(TEXT, payload[:10], fin=False)
        client.send_frame(PING, b"between")
        self.assertEqual(client.read_ws(), (PONG, b"between"))
        client.send_frame(0, payload[10:])
        self.assertEqual(client.read_turn()[-1]["type"], "response.completed")

    def test_what_only_http_knows_is_taken_out(self):
        client = self.open()
        for body in ({"stream": True}, {"stream": False}, {"stream": True, "stream_options": {"include_obfuscation": False}},
                     {"stream_options": {"include_obfuscation": True}}, {"background": False}, {"stream": None}):
            with self.subTest(body=body):
                self.assertEqual(client.turn(**body)[-1]["type"], "response.completed")
        for body, param in (({"background": True}, "background"), ({"stream": "yes"}, "stream"),
                            ({"stream_options": 1}, "stream_options"), ({"generate": 1}, "generate")):
            with self.subTest(body=body):
                self.assertEqual(error_of(client.turn(**body))[::2], (400, param))

    def test_strict_refuses_a_turn_that_is_not_to_be_streamed(self):
        self.start_server(strict=True)
        client = self.open()
        self.assertEqual(error_of(client.turn(stream=False)), (400, "unsupported_parameter", "stream"))
        self.assertEqual(client.turn(stream=True)[-1]["type"], "response.completed")
        self.assertEqual(error_of(client.turn(nonsense=1)), (400, "unknown_parameter", "nonsense"))

    def test_refuse_ignored_holds_here_too(self):
        self.start_server(refuse_ignored=True)
        self.assertEqual(error_of(self.open().turn(nonsense=1)), (400, "unsupported_parameter", "nonsense"))

    def test_generate_false_prepares_a_turn_without_output(self):
        client = self.open()
        for store in (True, False):
            turn = client.turn(generate=False, store=store, input="Remember the sea.")
            last = turn[-1]["response"]
            self.assertEqual(kinds(turn), ["response.created", "response.in_progress", "response.completed"])
            self.assertEqual((last["output"], last["usage"]["output_tokens"]), ([], 0))
            follow = client.turn(previous_response_id=last["id"])[-1]["response"]
            self.assertGreater(follow["usage"]["input_tokens"], last["usage"]["input_tokens"])

    def test_steering_is_answered_as_not_supported(self):
        backend = GatedBackend()
        self.start_server(backend)
        client = self.open()
        client.send_json(type="response.steer", previous_response_id="resp_no", input="left")
        event = client.read_event()
        self.assertEqual((event["type"], event["error"]["code"], event["steer"], event["sequence_number"]), (
            "response.steer.failed", "response_not_found", {"previous_response_id": "resp_no", "input": "left"}, 0))
        client.create()
        generation = backend.next()
        generation.say("x")
        id = client.read_event()["response"]["id"]
        while client.read_event()["type"] != "response.output_text.delta":
            pass
        client.send_json(type="response.steer", previous_response_id=id, input="left")
        self.assertEqual(client.read_event()["error"]["code"], "steering_not_supported")
        generation.finish()
        self.assertEqual(client.read_turn()[-1]["type"], "response.completed")

    def test_each_turn_is_a_request_in_the_counts(self):
        client = self.open()
        client.turn()
        client.turn()
        self.assertEqual((self.count("requests"), self.count("completions"), self.count("websockets")), (3, 2, 1))

    def test_a_store_that_may_wait_is_used_from_a_worker(self):
        class WaitingStore(MemoryStore):
            blocking = True
            threads = set()

            def put(self, node, conversation=None):
                self.threads.add(threading.current_thread().name)
                MemoryStore.put(self, node, conversation)
        self.start_server(store=WaitingStore())
        client = self.open()
        first = client.turn()[-1]["response"]
        second = client.turn(previous_response_id=first["id"], store=False)[-1]["response"]
        self.assertEqual(client.turn(previous_response_id=second["id"])[-1]["type"], "response.completed")
        self.assertEqual(WaitingStore.threads, {"worker"})

    def test_an_item_reference_is_resolved_on_a_worker(self):
        client = self.open()
        for store in (True, False):
            first = client.turn(store=store)[-1]["response"]
            turn = client.turn(input=[{"type": "item_reference", "id": first["output"][0]["id"]},
                                      {"role": "user", "content": "again"}])
            self.assertEqual(turn[-1]["type"], "response.completed", turn)

    def test_a_conversation_is_used_and_let_go(self):
        id = self.request("POST", "/v1/conversations", {}).json()["id"]
        client = self.open()
        for store in (True, False):
            self.assertEqual(client.turn(conversation=id, store=store)[-1]["response"]["conversation"], {"id": id})
        items = self.request("GET", "/v1/conversations/%s/items" % id).json()["data"]
        self.assertEqual([item["role"] for item in items], ["assistant", "user"] * 2)


@every_form
class LaneTest(WebSocketLive):

    def test_lanes_run_side_by_side_and_each_event_names_its_own(self):
        backend = GatedBackend()
        self.start_server(backend)
        client = self.open()
        client.create(stream_id="a", input="one")
        first = backend.next()
        client.create(stream_id="b", input="two")
        second = backend.next()
        second.say("two")
        second.finish()
        turn = client.read_turn()
        self.assertEqual(({event["stream_id"] for event in turn}, said(turn)), ({"b"}, "two"))
        first.say("one")
        first.finish()
        turn = client.read_turn()
        self.assertEqual(({event["stream_id"] for event in turn}, said(turn)), ({"a"}, "one"))

    def test_the_default_lane_names_none(self):
        self.assertFalse(any("stream_id" in event for event in self.open().turn()))

    def test_within_a_lane_turns_wait_and_others_pass(self):
        backend = GatedBackend()
        self.start_server(backend)
        client = self.open()
        for lane, text in (("a", "a1"), ("a", "a2"), (None, "d1"), ("b", "b1")):
            client.create(input=text, **({"stream_id": lane} if lane else {}))
        begun = [backend.next() for _ in range(3)]
        self.assertEqual([each.request.history.last_user_text for each in begun], ["a1", "d1", "b1"])
        begun[0].finish()
        self.assertEqual(client.read_turn()[-1]["stream_id"], "a")
        begun.append(backend.next())
        self.assertEqual(begun[3].request.history.last_user_text, "a2")
        for each in begun[1:]:
            each.finish()
            client.read_turn()

    def test_sixteen_run_at_once_and_more_wait(self):
        backend = GatedBackend()
        self.start_server(backend)
        client = self.open()
        for number in range(18):
            client.create(stream_id="lane-%d" % number)
        begun = [backend.next() for _ in range(16)]
        client.send_frame(PING, b"now")
        self.assertEqual(client.read_ws(), (PONG, b"now"))
        self.assertTrue(backend._generations.empty())
        for number in range(18):
            begun[number].finish()
            client.read_turn()
            if number < 2:
                begun.append(backend.next())

    def test_more_than_thirty_two_names_are_refused(self):
        client = self.open()
        for number in range(32):
            self.assertEqual(client.turn(stream_id="l%d" % number)[-1]["type"], "response.completed")
        turn = client.turn(stream_id="l32")
        self.assertEqual((error_of(turn), turn[0]["stream_id"]),
                         ((400, "websocket_stream_limit_reached", "stream_id"), "l32"))
        self.assertEqual(client.turn(stream_id="l31")[-1]["type"], "response.completed")
        self.assertEqual(client.turn()[-1]["type"], "response.completed")

    def test_names_have_rules(self):
        client = self.open()
        for name in ("", "a b", "x" * 257, "\u00e4", 5, "a/b", "a\n"):
            with self.subTest(name=name):
                turn = client.turn(stream_id=name)
                self.assertEqual(error_of(turn), (400, "invalid_stream_id", "stream_id"))
                self.assertNotIn("stream_id", turn[0])
        for name in ("x" * 256, "A-b_c.9"):
            self.assertEqual(client.turn(stream_id=name)[-1]["stream_id"], name)


@every_form
class ErrorTest(WebSocketLive):

    def test_refused_turns_are_error_events_and_the_connection_goes_on(self):
        client = self.open()
        cases = [(b"{", None, "invalid_request_error"), (b"[]", None, "invalid_request_error"),
                 (b'{"model": "m"}', "type", "missing_required_parameter"),
                 (b'{"type": "session.update"}', "type", "invalid_value"), (b'{"type": 5}', "type", "invalid_value"),
                 (b'{"type": "response.create", "input": "x"}', "model", "missing_required_parameter"),
                 (b'{"type": "response.create", "model": "m"}', "input", "missing_required_parameter"),
                 (b'{"type": "response.create", "model": "m", "input": "x", "temperature": 9}', "temperature",
                  "decimal_above_max_value"),
                 (b'{"type": "response.create", "model": "m", "input": "x", "previous_response_id": "resp_x"}',
                  "previous_response_id", "previous_response_not_found"),
                 (b"[" * 100000, None, "invalid_request_error")]
        for data, param, code in cases:
            with self.subTest(data=data[:100]):
                client.send_frame(TEXT, data)
                turn = client.read_turn()
                self.assertEqual(error_of(turn), (400, code, param))
                self.assertEqual(set(turn[0]), {"type", "status", "error"})
                self.assertEqual(set(turn[0]["error"]), {"type", "code", "message", "param"})
        self.assertEqual(client.turn()[-1]["type"], "response.completed")

    def test_an_error_waits_for_the_turn_before_it(self):
        backend = GatedBackend()
        self.start_server(backend)
        client = self.open()
        client.create()
        client.send_frame(TEXT, b"{")
        generation = backend.next()
        generation.say("x")
        generation.finish()
        self.assertEqual(client.read_turn()[-1]["type"], "response.completed")
        self.assertEqual(client.read_turn()[-1]["type"], "error")

    def test_a_backend_that_fails_before_it_says_anything_is_one_error(self):
        backend = GatedBackend()
        self.start_server(backend)
        client = self.open()
        client.create(stream_id="a")
        backend.next().fail(RuntimeError("broken"))
        turn = client.read_turn()
        self.assertEqual((error_of(turn), turn[0]["stream_id"]), ((500, "server_error", None), "a"))
        self.assertIn("broken", self.take_errors()[0])
        client.create()
        backend.next().finish()
        self.assertEqual(client.read_turn()[-1]["type"], "response.completed")

    def test_one_that_fails_later_ends_its_turn_with_response_failed_alone(self):
        backend = GatedBackend()
        self.start_server(backend)
        client = self.open()
        client.create()
        generation = backend.next()
        generation.say("x")
        generation.fail(RuntimeError("broken"))
        turn = client.read_turn()
        self.assertEqual((turn[-1]["type"], turn[-1]["response"]["error"]["code"]), ("response.failed", "server_error"))
        self.assertEqual([event["sequence_number"] for event in turn], list(range(len(turn))))
        self.take_errors()
        client.create()
        backend.next().finish()
        self.assertEqual(kinds(client.read_turn())[0], "response.created")

    def test_a_planned_backend_that_raises_fails_its_turn(self):
        self.start_server(DeltaBackend([(0.0, TextDelta("x")), RuntimeError("broken")]))
        self.assertEqual(self.open().turn()[-1]["type"], "response.failed")
        self.assertIn("broken", self.take_errors()[0])

    def test_too_long_a_context_is_told_as_in_a_stream(self):
        self.start_server(max_model_len=30)
        turn = self.open().turn(input="word " * 100)
        self.assertEqual((kinds(turn)[0], turn[-1]["type"], turn[-1]["response"]["error"]["code"]),
                         ("response.created", "response.failed", "context_length_exceeded"))

    def test_a_conversation_is_free_again_after_a_turn_that_failed_or_left(self):
        backend = GatedBackend()
        self.start_server(backend)
        id = self.request("POST", "/v1/conversations", {}).json()["id"]
        client = self.open()
        client.create(conversation=id)
        generation = backend.next()
        self.assertEqual(error_of(self.open().turn(conversation=id)), (400, "conversation_locked", "conversation"))
        generation.fail(RuntimeError("broken"))
        self.assertEqual(client.read_turn()[-1]["type"], "error")
        self.take_errors()
        client.create(conversation=id)
        generation = backend.next()
        client.close()
        self.assertTrue(generation.cancelled.wait(TIMEOUT_S))
        item = {"items": [{"role": "user", "content": "x"}]}
        wait_until(lambda: self.request("POST", "/v1/conversations/%s/items" % id, item).status == 200, "the conversation")


@every_form
class MemoryTest(WebSocketLive):

    def not_found(self, client, id, **body):
        self.assertEqual(error_of(client.turn(previous_response_id=id, **body)),
                         (400, "previous_response_not_found", "previous_response_id"))

    def test_a_chain_that_is_not_stored_goes_on_within_its_connection(self):
        client = self.open()
        tokens, id = 0, None
        for _ in range(5):
            last = client.turn(store=False, previous_response_id=id)[-1]["response"]
            self.assertEqual((last["previous_response_id"], last["store"]), (id, False))
            self.assertGreater(last["usage"]["input_tokens"], tokens)
            tokens, id = last["usage"]["input_tokens"], last["id"]
            self.assertEqual(self.request("GET", "/v1/responses/" + id).status, 404)
        self.assertEqual(self.request("POST", "/v1/responses", dict(RESPONSE, previous_response_id=id)).status, 400)
        self.not_found(self.open(), id)

    def test_it_is_gone_with_its_connection(self):
        client = self.open()
        id = client.turn(store=False)[-1]["response"]["id"]
        client.close()
        again = self.open()
        self.not_found(again, id, store=False)
        self.assertEqual(again.turn(store=False)[-1]["type"], "response.completed")

    def test_older_turns_can_be_branched_from(self):
        client = self.open()
        first = client.turn(store=False)[-1]["response"]["id"]
        client.turn(store=False, previous_response_id=first)
        self.assertEqual(client.turn(store=False, previous_response_id=first)[-1]["type"], "response.completed")

    def test_strict_knows_only_the_last_of_each_lane(self):
        self.start_server(strict=True)
        client = self.open()
        first = client.turn(store=False)[-1]["response"]["id"]
        fork = client.turn(store=False, previous_response_id=first, stream_id="fork")[-1]["response"]["id"]
        second = client.turn(store=False, previous_response_id=first)[-1]["response"]["id"]
        self.not_found(client, first, stream_id="other")
        for id, lane in ((fork, "fork"), (second, "b")):
            self.assertEqual(client.turn(store=False, previous_response_id=id, stream_id=lane)[-1]["type"],
                             "response.completed")

    def test_stored_and_unstored_turns_make_one_chain(self):
        client = self.open()
        id = None
        for store in (True, False, False, True, False, True):
            last = client.turn(store=store, previous_response_id=id, input="turn")[-1]["response"]
            id = last["id"]
        answer = self.request("GET", "/v1/responses/%s/input_items?limit=100" % id).json()
        self.assertEqual(len(answer["data"]), 11)
        client.close()
        self.assertEqual(self.request("POST", "/v1/responses", dict(RESPONSE, previous_response_id=id)).json()["usage"]
                         ["input_tokens"] > last["usage"]["input_tokens"], True)

    def test_a_tools_call_is_answered_in_the_next_turn(self):
        client = self.open()
        tools = [{"type": "function", "name": "f", "parameters": {"type": "object"}}]
        first = client.turn(store=False, tools=tools, tool_choice="required")[-1]["response"]
        turn = client.turn(store=False, tools=tools, previous_response_id=first["id"], input=[
            {"type": "function_call_output", "call_id": first["output"][0]["call_id"], "output": "42"}])
        self.assertEqual(turn[-1]["response"]["output"][0]["type"], "message")

    def test_a_turn_that_fails_evicts_what_it_followed(self):
        client = self.open()
        first = client.turn(store=False)[-1]["response"]["id"]
        turn = client.turn(store=False, previous_response_id=first, input=[
            {"type": "function_call_output", "call_id": "call_missing", "output": "x"}])
        self.assertEqual(turn[-1]["type"], "error")
        self.not_found(client, first, store=False)

    def test_a_stored_one_is_still_there_after_that(self):
        client = self.open()
        first = client.turn()[-1]["response"]["id"]
        self.assertEqual(client.turn(previous_response_id=first, temperature=9)[-1]["type"], "error")
        self.assertEqual(client.turn(previous_response_id=first)[-1]["type"], "response.completed")

    def test_a_fork_that_fails_leaves_the_other_lanes_turn_alone(self):
        client = self.open()
        first = client.turn(store=False, stream_id="main")[-1]["response"]["id"]
        self.assertEqual(client.turn(previous_response_id=first, temperature=9, stream_id="fork")[-1]["type"], "error")
        self.assertEqual(client.turn(previous_response_id=first, stream_id="main")[-1]["type"], "response.completed")

    def test_a_turn_that_failed_in_mid_stream_evicts_and_is_not_followed(self):
        backend = GatedBackend()
        self.start_server(backend)
        client = self.open()
        client.create(store=False)
        backend.next().finish()
        first = client.read_turn()[-1]["response"]["id"]
        client.create(store=False, previous_response_id=first)
        generation = backend.next()
        generation.say("x")
        generation.fail(RuntimeError("broken"))
        failed = client.read_turn()[-1]["response"]["id"]
        self.take_errors()
        self.not_found(client, first)
        self.not_found(client, failed)

    def test_what_all_connections_remember_is_bounded(self):
        self.start_server(max_store_mb=0.01)
        client, other = self.open(), self.open()
        ids = [client.turn(store=False)[-1]["response"]["id"] for _ in range(6)]
        self.assertEqual(client.turn(store=False, previous_response_id=ids[0])[-1]["type"], "response.completed")
        self.not_found(client, ids[-1])
        self.not_found(other, other.turn(store=False)[-1]["response"]["id"])
        client.close()

        def again():
            id = other.turn(store=False)[-1]["response"]["id"]
            return other.turn(store=False, previous_response_id=id)[-1]["type"] == "response.completed"
        wait_until(again, "the room that the other connection gave back")


@every_form
class EndTest(WebSocketLive):

    def test_pings_are_answered_while_a_turn_runs_and_between_its_events(self):
        backend = GatedBackend()
        self.start_server(backend)
        client = self.open()
        client.create()
        generation = backend.next()
        generation.say("a")
        self.assertEqual([client.read_event()["type"] for _ in range(5)][-1], "response.output_text.delta")
        client.send_frame(PING, b"\x00\xff" * 62)
        self.assertEqual(client.read_ws(), (PONG, b"\x00\xff" * 62))
        generation.finish()
        self.assertEqual(client.read_turn()[-1]["type"], "response.completed")

    def test_a_close_is_answered_with_its_code(self):
        for payload, code in ((close_payload(1000, b"bye"), 1000), (close_payload(4321), 4321), (b"", None)):
            with self.subTest(payload=payload):
                client = self.open()
                client.send_frame(CLOSE, payload)
                self.assertEqual((client.read_close()[0], client.has_ended()), (code, True))

    def test_what_comes_behind_a_close_is_not_looked_at(self):
        client = self.open()
        client.send(client_frame(CLOSE, close_payload(1000)) + client_frame(PING) + b"\xff" * 50)
        self.assertEqual((client.read_close()[0], client.has_ended()), (1000, True))

    def test_broken_rules_close_with_their_code(self):
        self.start_server(max_body_mb=0.01)
        cases = [(client_frame(TEXT, b"x", masked=False), 1002), (client_frame(3, b"x"), 1002),
                 (client_frame(TEXT, b"x", rsv=4), 1002), (client_frame(TEXT, b"\xff"), 1007),
                 (client_frame(BINARY, b"{}"), 1003), (client_frame(TEXT, b"x" * 20000)[:10], 1009),
                 (client_frame(CLOSE, close_payload(1005)), 1002), (client_frame(CLOSE, close_payload(1000, b"\xff")), 1007)]
        for data, code in cases:
            with self.subTest(data=data[:20], code=code):
                client = self.open()
                client.send(data)
                self.assertEqual((client.read_close()[0], client.has_ended()), (code, True))

    def test_a_client_that_closes_in_mid_turn_cancels_it(self):
        for how in ("close frame", "end", "reset", "broken rule"):
            with self.subTest(how=how):
                backend = GatedBackend()
                if self._server is not None:
                    self.doCleanups()
                    self.setUp()
                self.start_server(backend)
                client = self.open()
                client.create()
                client.create()
                generation = backend.next()
                generation.say("x")
                id = client.read_event()["response"]["id"]
                if how == "close frame":
                    client.send_frame(CLOSE, close_payload(1000))
                elif how == "end":
                    client.close()
                elif how == "reset":
                    client.reset()
                else:
                    client.send(b"\xff\xff")
                self.assertTrue(generation.cancelled.wait(TIMEOUT_S))
                self.assertTrue(generation.over.wait(TIMEOUT_S))
                self.wait_for_count("disconnects", 1)
                self.assertEqual(self.request("GET", "/v1/responses/" + id).status, 404)
                self.assertTrue(backend._generations.empty(), "the one that waited has begun")

    def test_a_client_that_leaves_before_a_first_token_cancels_too(self):
        self.start_server(ttft_ms=600000)
        client = self.open()
        client.create()
        client.read_event()
        client.close()
        self.wait_for_count("disconnects", 1)

    def test_any_bytes_end_in_a_close_and_never_in_a_fault(self):
        random = Random(7)
        pieces = [client_frame(TEXT, b'{"type":"response.create","model":"m","input":"x"}'), client_frame(PING, b"x"),
                  client_frame(TEXT, b"{", fin=False), client_frame(0, b"}"), client_frame(CLOSE), b"\xff", b"\x00" * 9]
        for _ in range(60):
            client = self.open()
            client.send(b"".join(random.choice(pieces) for _ in range(random.randint(1, 5))))
            client.sock.shutdown(socket.SHUT_WR)
            client.read_to_end()
            client.close()
        self.assertEqual(self.open().turn()[-1]["type"], "response.completed")

    def test_the_age_limit_is_told_and_ends_the_connection(self):
        clock = ShiftedClock()
        self.start_server(clock=clock)
        client = self.open()
        self.assertEqual(client.turn()[-1]["type"], "response.completed")
        clock.advance(3601)
        event = client.read_event()
        self.assertEqual(error_of([event]), (400, "websocket_connection_limit_reached", None))
        self.assertIn("(60 minutes)", event["error"]["message"])
        self.assert_closed(client, 1001)

    def test_a_turn_that_runs_at_the_age_limit_is_finished_and_none_begins(self):
        clock, backend = ShiftedClock(), GatedBackend()
        self.start_server(backend, clock=clock, websocket_max_s=5)
        client = self.open()
        client.create()
        client.create()
        generation = backend.next()
        generation.say("x")
        client.read_event()
        clock.advance(6)
        wait_until(lambda: any(reader._expired for reader in self.server.player.readers), "the limit")
        generation.finish()
        self.assertEqual(client.read_turn()[-1]["type"], "response.completed")
        self.assertEqual(error_of([client.read_event()])[1], "websocket_connection_limit_reached")
        self.assert_closed(client, 1001)
        self.assertTrue(backend._generations.empty())

    def test_a_silent_client_is_pinged_and_at_last_left(self):
        clock = ShiftedClock()
        self.start_server(clock=clock)
        client = self.open()
        clock.advance(31)
        self.assertEqual(client.read_ws(), (PING, b""))
        client.send_frame(PONG)
        client.send_frame(PING, b"heard")
        self.assertEqual(client.read_ws(), (PONG, b"heard"))
        clock.advance(31)
        self.assertEqual(client.read_ws(), (PING, b""))
        clock.advance(901)
        while True:
            opcode, payload = client.read_ws()
            if opcode != PING:
                break
        self.assertEqual((opcode, payload[:2]), (CLOSE, close_payload(1001)))

    def test_a_client_that_does_not_answer_our_close_is_left_all_the_same(self):
        clock = ShiftedClock()
        self.start_server(clock=clock, websocket_ping_s=0)
        client = self.open()
        clock.advance(1000)
        self.assertEqual(client.read_close()[0], 1001)
        self.assertTrue(client.has_ended())

    def test_half_a_message_has_a_time_limit(self):
        clock = ShiftedClock()
        self.start_server(clock=clock)
        client = self.open()
        client.send(client_frame(TEXT, b"x" * 100)[:50])
        wait_until(lambda: any(reader._parser.in_message() for reader in self.server.player.readers), "the bytes")
        clock.advance(61)
        self.assertEqual(client.read_close()[0], 1008)

    def test_a_drain_ends_idle_connections_at_once(self):
        client = self.open()
        self.assertEqual(client.turn()[-1]["type"], "response.completed")
        self.server.begin_drain(5)
        self.assert_closed(client, 1001)
        self._serving.join(TIMEOUT_S)
        self.assertFalse(self._serving.is_alive())

    def test_a_drain_lets_the_running_turn_end_and_begins_no_other(self):
        backend = GatedBackend()
        self.start_server(backend)
        client = self.open()
        client.create()
        client.create()
        generation = backend.next()
        generation.say("x")
        client.read_event()
        self.server.begin_drain(5)
        wait_until(lambda: self.server.player.draining, "the drain")
        generation.finish()
        self.assertEqual(client.read_turn()[-1]["type"], "response.completed")
        self.assert_closed(client, 1001)
        self.assertTrue(backend._generations.empty())

    def test_a_stop_at_once_says_goodbye(self):
        backend = GatedBackend()
        self.start_server(backend)
        client = self.open()
        client.create()
        generation = backend.next()
        self.server.begin_drain(0)
        self.assertEqual(client.read_close()[0], 1001)
        self.assertTrue(generation.cancelled.wait(TIMEOUT_S))

    def test_connections_are_counted_among_all(self):
        self.start_server(max_connections=1)
        client = self.open()
        self.assertEqual(self.request("GET", "/health").status, 503)
        client.send_frame(CLOSE)
        self.assertTrue(client.read_close()[0] is None and client.has_ended())
        client.close()
        wait_until(lambda: self.request("GET", "/health").status == 200, "the place")


@every_form
class GarbageTest(WebSocketLive):

    def rounds(self, backend=None):
        """Connections with turns of all kinds of ends."""
        for number in range(20):
            client = self.open()
            for body in ({}, {"temperature": 9}, {"stream_id": "a", "store": False}):
                client.create(**body)
                if backend is not None and "temperature" not in body:
                    backend.next().finish()
                client.read_turn()
            if number % 2:
                client.send_frame(CLOSE, close_payload(1000))
                client.read_close()
            client.close()
        wait_until(lambda: not self.server.player.plays, "the ends")

    def test_ended_turns_and_connections_leave_nothing_for_the_cycle_collector(self):
        for backend in (None, GatedBackend()):
            if backend is not None:
                self.doCleanups()
                self.setUp()
            self.start_server(backend)
            self.rounds(backend)
            gc.collect()
            gc.disable()
            try:
                self.rounds(backend)
                found = gc.collect()
            finally:
                gc.enable()
            self.assertLess(found, 20 * 5)      # a connection in a cycle leaves some 15 objects, a turn more


class Fountain(Backend):
    """A blocking backend that never ends, and counts what it said."""

    blocking = True

    def __init__(self):
        self.said = 0
        self.over = threading.Event()

    def generate(self, request, cancel):
        try:
            while not cancel.is_set():
                self.said += 1
                yield None, TextDelta("word " * 20)
        finally:
            self.over.set()


@every_form
class SlowReaderTest(WebSocketLive):

    def open_small(self):
        """A client whose receive buffer is small, but not so small that the kernel waits between its reads."""
        client = self.open()
        client.sock.setsockopt(socket.SOL_SOCKET, socket.SO_RCVBUF, 65536)
        return client

    def test_a_client_that_never_reads_holds_up_its_backend_and_is_dropped(self):
        backend = Fountain()
        self.start_server(backend, send_timeout_s=0.3)
        client = self.open_small()
        client.create()
        self.assertTrue(backend.over.wait(TIMEOUT_S))
        self.wait_for_count("disconnects", 1)
        self.assertLess(backend.said, 60000)        # what the kernel takes, and PUSH_LIMIT
        wait_until(lambda: not self.server.player.plays, "the end of the plays")

    def test_a_slow_reader_gets_every_event_in_order(self):
        client = self.open_small()
        client.create(ignore_eos=True, max_output_tokens=20000)
        client.create(stream_id="b", ignore_eos=True, max_output_tokens=5000)
        wait_until(lambda: any(play.rest for play in list(self.server.player.plays.values())), "a full socket")
        client.send_frame(PING, b"first")
        client.send_frame(PING, b"last")
        lanes, pongs = {None: [], "b": []}, []
        while not all(events and events[-1]["type"] in ("response.completed", "response.incomplete")
                      for events in lanes.values()):
            opcode, payload = client.read_ws()
            if opcode == PONG:
                pongs.append(payload)
                continue
            event = json.loads(payload.decode())
            lanes[event.get("stream_id")].append(event)
        for events in lanes.values():
            self.assertEqual([event["sequence_number"] for event in events], list(range(len(events))))
            self.assertEqual(said(events), events[-1]["response"]["output"][0]["content"][0]["text"])
        while not pongs or pongs[-1] != b"last":
            pongs.append(client.read_ws()[1])

    def test_a_paced_turn_waits_for_its_reader(self):
        self.start_server(DeltaBackend([(0.001 * number, TextDelta("word " * 4000)) for number in range(300)] + [
            (0.3, Finish("stop")), (0.3, Usage(1, 1))]))
        client = self.open_small()
        client.create()
        wait_until(lambda: any(play.rest for play in list(self.server.player.plays.values())), "a full socket")
        turn = client.read_turn()
        self.assertEqual([event["sequence_number"] for event in turn], list(range(len(turn))))
        self.assertEqual(kinds(turn).count("response.output_text.delta"), 300)

    def test_what_a_client_sends_behind_its_close_is_not_kept(self):
        self.start_server(output_tokens=20000)
        client = self.open_small()
        client.create(ignore_eos=True, max_output_tokens=20000)
        wait_until(lambda: any(play.rest for play in list(self.server.player.plays.values())), "a full socket")
        reader = list(self.server.player.readers)[0]
        client.send_frame(CLOSE, close_payload(1000))
        client.send(b"x" * (4 << 20))           # taken, or it would stand in the kernel
        self.assertLess(len(reader._parser._buf), 1 << 20)
        while client.read_ws()[0] != CLOSE:
            pass
        self.assertTrue(client.has_ended())

    def test_a_flood_of_pings_without_a_reader_is_not_kept(self):
        self.start_server(output_tokens=20000)
        client = self.open_small()
        client.create(ignore_eos=True, max_output_tokens=20000)
        wait_until(lambda: any(play.rest for play in list(self.server.player.plays.values())), "a full socket")
        waiting = max(len(play.rest) for play in list(self.server.player.plays.values()))
        for _ in range(40):
            client.send(client_frame(PING, b"x" * 125) * 100)
        client.send_frame(PING, b"last")
        self.assertLessEqual(max(len(play.rest) for play in list(self.server.player.plays.values())), waiting)
        pongs = []
        while not pongs or pongs[-1] != b"last":
            opcode, payload = client.read_ws()
            if opcode == PONG:
                pongs.append(payload)
        self.assertLess(len(pongs), 4000)


@every_form
class TlsWebSocketTest(WebSocketLive):

    @classmethod
    def setUpClass(cls):
        cls.cert, cls.key = make_pair()

    def start_server(self, *args, **settings):
        return WebSocketLive.start_server(self, *args, **dict({"tls_cert": self.cert, "tls_key": self.key}, **settings))

    def connect(self):
        client = WebSocketClient(self.address)
        client.sock = TlsClient.wrap(client.sock, self.cert)
        self._clients.append(client)
        return client

    def test_turns_pings_and_the_end(self):
        client = self.open()
        first = client.turn(store=False)[-1]["response"]
        self.assertEqual(client.turn(store=False, previous_response_id=first["id"])[-1]["type"], "response.completed")
        client.send_frame(PING, b"x")
        self.assertEqual(client.read_ws(), (PONG, b"x"))
        client.send_frame(CLOSE, close_payload(1000))
        self.assertEqual(client.read_close()[0], 1000)

    def test_big_messages_both_ways(self):
        self.start_server(output_tokens=3000)
        client = self.open()
        for _ in range(3):
            turn = client.turn(input="word " * 60000, ignore_eos=True, max_output_tokens=3000)
            self.assertEqual(kinds(turn).count("response.output_text.delta"), 3000)

    def test_frames_behind_the_handshake_are_read(self):
        client = self.connect()
        client.send(request_bytes("GET", "/v1/responses", headers=HANDSHAKE) + client_frame(PING, b"early"))
        self.assertEqual(client.read_head().status, 101)
        self.assertEqual(client.read_ws(), (PONG, b"early"))

    def test_a_client_that_leaves_cancels(self):
        backend = GatedBackend()
        self.start_server(backend)
        client = self.open()
        client.create()
        generation = backend.next()
        client.close()
        self.assertTrue(generation.cancelled.wait(TIMEOUT_S))


if __name__ == "__main__":
    unittest.main()
