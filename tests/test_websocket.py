"""WebSocket framing without a socket: the rules of RFC 6455, in any cut of the bytes.

CASES is a remake of the public Autobahn suite's families 1 to 7, 9 and 10, as far as they fit a server that
takes text messages and echoes nothing: what a client sends, and what the reader must make of it.
"""
import json
import unittest
from random import Random

from api_common import SSE_DONE, SSE_HEARTBEAT, ApiError
from responses_socket import SocketMemory, SocketRoom
from state.contract import Node
from tests.websocket_client import (ACCEPT, BINARY, CLOSE, KEY, PING, PONG, TEXT, client_frame, close_payload)
from transport.http1 import parse_head
from transport.websocket import (FrameParser, WebSocketError, check_close_payload, check_handshake, handshake_headers,
                                 ws_close_frame, ws_event_framer, ws_frame, ws_unmask)

LIMIT = 1 << 20
HELLO = "Hello-\u00b5@\u00df\u00f6\u00e4\u00fc\u00e0\u00e1-UTF-8!!".encode("utf-8")
BROKEN = b"\xce\xba\xe1\xbd\xb9\xcf\x83\xce\xbc\xce\xb5\xed\xa0\x80\x65\x64\x69\x74\x65\x64"     # with half a pair


def text(payload, **values):
    return client_frame(TEXT, payload, **values)


def more(payload, **values):
    return client_frame(0, payload, **values)


def fragments(opcode, payload, size):
    """A message in frames of so many bytes."""
    parts = [payload[at:at + size] for at in range(0, len(payload), size)] or [b""]
    return b"".join(client_frame(opcode if number == 0 else 0, part, fin=number == len(parts) - 1)
                    for number, part in enumerate(parts))


def sized(opcode, size):
    """A message of one frame, and what it is read as."""
    payload = (b"*" if opcode == TEXT else b"\xfe") * size
    return client_frame(opcode, payload), [(opcode, payload)]


def closing(payload):
    """A close frame, and what it is read as."""
    return client_frame(CLOSE, payload), [(CLOSE, payload)]


# (number in the suite, bytes, [(opcode, payload)] or the close code that it ends with, or both in a tuple)
CASES = [("1.1.%d" % (number + 1), *sized(TEXT, size)) for number, size in enumerate(
    (0, 125, 126, 127, 128, 65535, 65536))]
CASES += [("1.2.%d" % (number + 1), *sized(BINARY, size)) for number, size in enumerate(
    (0, 125, 126, 127, 128, 65535, 65536))]
CASES += [
    ("2.1", client_frame(PING), [(PING, b"")]),
    ("2.2", client_frame(PING, b"Hello, world!"), [(PING, b"Hello, world!")]),
    ("2.3", client_frame(PING, b"\x00\xff\xfe\xfd\xfc\xfb\x00\xff"), [(PING, b"\x00\xff\xfe\xfd\xfc\xfb\x00\xff")]),
    ("2.4", client_frame(PING, b"\xfe" * 125), [(PING, b"\xfe" * 125)]),
    ("2.5", client_frame(PING, b"\xfe" * 126), 1002),
    ("2.7", client_frame(PONG), [(PONG, b"")]),
    ("2.8", client_frame(PONG, b"unsolicited"), [(PONG, b"unsolicited")]),
    ("2.9", client_frame(PONG, b"a") + client_frame(PING, b"b"), [(PONG, b"a"), (PING, b"b")]),
    ("2.10", b"".join(client_frame(PING, b"payload-%d" % at) for at in range(10)),
     [(PING, b"payload-%d" % at) for at in range(10)]),
    ("3.1", text(b"", rsv=1), 1002),
    ("3.2", text(b"Hello") + text(b"Hello", rsv=2) + client_frame(PING), ([(TEXT, b"Hello")], 1002)),
    ("3.3", text(b"Hello") + text(b"Hello", rsv=3) + client_frame(PING), ([(TEXT, b"Hello")], 1002)),
    ("3.5", client_frame(BINARY, b"\xff", rsv=5), 1002),
    ("3.6", client_frame(PING, b"Hello", rsv=6), 1002),
    ("3.7", client_frame(CLOSE, close_payload(1000), rsv=7), 1002),
]
CASES += [("4.%d.%d" % (1 if opcode < 8 else 2, opcode), client_frame(opcode, payload), 1002)
          for opcode in (3, 4, 5, 6, 7, 11, 12, 13, 14, 15) for payload in (b"", b"reserved")]
CASES += [
    ("5.1", client_frame(PING, b"frag", fin=False) + more(b"ment"), 1002),
    ("5.2", client_frame(PONG, b"frag", fin=False) + more(b"ment"), 1002),
    ("5.3", text(b"frag1", fin=False) + more(b"frag2"), [(TEXT, b"frag1frag2")]),
    ("5.6", text(b"frag1", fin=False) + client_frame(PING, b"ping") + more(b"frag2"),
     [(PING, b"ping"), (TEXT, b"frag1frag2")]),
    ("5.9", more(b"non-continuation") + text(b"Hello"), 1002),
    ("5.12", more(b"non-continuation", fin=False) + text(b"Hello"), 1002),
    ("5.15", text(b"a", fin=False) + more(b"b") + more(b"c", fin=False) + text(b"d"), ([(TEXT, b"ab")], 1002)),
    ("5.16", more(b"a", fin=False) * 2, 1002),
    ("5.18", text(b"fragment1", fin=False) + text(b"fragment2"), 1002),
    ("5.19", text(b"1", fin=False) + more(b"2", fin=False) + client_frame(PING, b"p1") + more(b"3", fin=False)
     + more(b"4", fin=False) + client_frame(PING, b"p2") + more(b"5"), [(PING, b"p1"), (PING, b"p2"), (TEXT, b"12345")]),
    ("5.x close in a message", text(b"1", fin=False) + client_frame(CLOSE, close_payload(1000)),
     [(CLOSE, close_payload(1000))]),
    ("5.x empty fragments", text(b"", fin=False) + more(b"", fin=False) + more(b""), [(TEXT, b"")]),
    ("6.1.1", text(b""), [(TEXT, b"")]),
    ("6.1.3", text(b"", fin=False) + more(b"middle", fin=False) + more(b""), [(TEXT, b"middle")]),
    ("6.2.1", text(HELLO), [(TEXT, HELLO)]),
    ("6.2.2", text(HELLO[:14], fin=False) + more(HELLO[14:]), [(TEXT, HELLO)]),
    ("6.2.3", fragments(TEXT, HELLO, 1), [(TEXT, HELLO)]),
    ("6.3.1", text(BROKEN), 1007),
    ("6.3.2", fragments(TEXT, BROKEN, 1), 1007),
    ("6.4.1 fails before its end", text(b"\xce\xba\xe1\xbd\xb9\xcf\x83\xce\xbc\xce\xb5\xf4\x90\x80\x80", fin=False), 1007),
    ("6.4.3 fails inside a frame", text(b"\xce\xba\xf4\x90\x80\x80" + b"x" * 200)[:14], 1007),
    ("binary is not looked at", client_frame(BINARY, BROKEN), [(BINARY, BROKEN)]),
]
VALID = ("\u03ba\u1f79\u03c3\u03bc\u03b5", "\x00", "\x7f", "\x80", "\u07ff", "\u0800", "\uffff", "\U00010000", "\U0010ffff",
         "\ud7ff", "\ue000", "\ufffd", "\ufffe", "\ufeff", "\U0001fffe", "\U0010fffd")
CASES += [("6.5-6.23 U+%04X" % ord(char[0]), text(char.encode("utf-8")), [(TEXT, char.encode("utf-8"))]) for char in VALID]
INVALID = (b"\xce\xba\xe1\xbd", b"\xf8\x88\x80\x80\x80", b"\xfc\x84\x80\x80\x80\x80", b"\xf7\xbf\xbf\xbf",
           b"\xfb\xbf\xbf\xbf\xbf", b"\xfd\xbf\xbf\xbf\xbf\xbf", b"\xf4\x90\x80\x80", b"\x80", b"\xbf", b"\x80\xbf",
           b"\x80\xbf\x80\xbf\x80\xbf\x80", b"\xc0 \xc1 \xc2 ", b"\xe0 \xe1 ", b"\xf0 \xf1 ", b"\xc3", b"\xe0\x80", b"\xf0\x80\x80",
           b"\xfe", b"\xff", b"\xc0\xaf", b"\xe0\x80\xaf", b"\xf0\x80\x80\xaf", b"\xc1\xbf", b"\xe0\x9f\xbf", b"\xc0\x80",
           b"\xed\xa0\x80", b"\xed\xad\xbf", b"\xed\xae\x80", b"\xed\xbf\xbf", b"\xed\xa0\x80\xed\xb0\x80")
CASES += [("6.6-6.21 %s" % bad.hex(), text(bad), 1007) for bad in INVALID]
CASES += [
    ("7.1.1", text(b"Hello") + client_frame(CLOSE), [(TEXT, b"Hello"), (CLOSE, b"")]),
    ("7.3.1", *closing(b"")), ("7.3.2", client_frame(CLOSE, b"\x03"), 1002),
    ("7.3.3", *closing(close_payload(1000))), ("7.3.4", *closing(close_payload(1000, b"Hello World!"))),
    ("7.3.5", *closing(close_payload(1000, b"*" * 123))), ("7.3.6", client_frame(CLOSE, close_payload(1000, b"*" * 124)), 1002),
    ("7.5.1", client_frame(CLOSE, close_payload(1000, BROKEN)), 1007),
    ("7.x close in fragments", client_frame(CLOSE, b"", fin=False), 1002),
]
CASES += [("7.7 %d" % code, *closing(close_payload(code))) for code in (
    1000, 1001, 1002, 1003, 1007, 1008, 1009, 1010, 1011, 1012, 1013, 1014, 3000, 3999, 4000, 4999)]
CASES += [("7.9 %d" % code, client_frame(CLOSE, close_payload(code)), 1002) for code in (
    0, 999, 1004, 1005, 1006, 1015, 1016, 1100, 2000, 2999, 5000, 65535)]
CASES += [("9.1 %d" % size, *sized(TEXT, size)) for size in (1 << 16, 1 << 18, LIMIT)]
CASES += [("9.2 %d" % size, *sized(BINARY, size)) for size in (1 << 16, LIMIT)]
CASES += [("9.3 %d" % size, fragments(TEXT, b"*" * (1 << 18), size), [(TEXT, b"*" * (1 << 18))])
          for size in (256, 4096, 1 << 16)]
CASES += [
    ("10.1.1", fragments(TEXT, b"*" * 65536, 1300), [(TEXT, b"*" * 65536)]),
    ("too big at once", client_frame(TEXT, b"*" * (LIMIT + 1))[:20], 1009),
    ("no mask", client_frame(TEXT, b"Hello", masked=False), 1002),
    ("no mask on a control frame", client_frame(PING, b"", masked=False), 1002),
    ("a long form of a short length", text(b"x" * 125, length="4"), 1002),
    ("the longest form of a short length", text(b"x" * 65535, length="10"), 1002),
    ("a length of 2**63", b"\x81\xff\x80" + b"\0" * 7 + b"\0" * 4, 1002),
]


def read(parser, pieces):
    """([what came], close code or None) of a reader that is fed these pieces."""
    found = []
    try:
        for piece in pieces:
            parser.feed(piece)
            while True:
                event = parser.next()
                if event is None:
                    break
                if event[0] == CLOSE:
                    check_close_payload(event[1])
                found.append(event)
    except WebSocketError as error:
        return found, error.code
    return found, None


def cuts(data, random, most):
    """data in random pieces."""
    pieces = []
    while data:
        size = random.randint(1, most)
        pieces.append(data[:size])
        data = data[size:]
    return pieces


def expected_of(result):
    if result.__class__ is int:
        return [], result
    return result if result.__class__ is tuple else (result, None)


class FrameParserTest(unittest.TestCase):

    def test_the_public_suites_cases_whole(self):
        for name, data, result in CASES:
            with self.subTest(case=name):
                self.assertEqual(read(FrameParser(LIMIT), [data]), expected_of(result))

    def test_the_same_byte_by_byte(self):
        for name, data, result in CASES:
            if len(data) < 3000:
                with self.subTest(case=name):
                    self.assertEqual(read(FrameParser(LIMIT), [data[at:at + 1] for at in range(len(data))]),
                                     expected_of(result))

    def test_the_same_in_random_pieces(self):
        random = Random(5)
        for name, data, result in CASES:
            for most in (7, 900) if len(data) < 3000 else (5000, 70000):
                with self.subTest(case=name, most=most):
                    self.assertEqual(read(FrameParser(LIMIT), cuts(data, random, most)), expected_of(result))

    def test_9_5_chops_of_a_big_message(self):
        payload = bytes(range(32, 127)) * 700
        for size in (64, 128, 1024):
            data = text(payload)
            pieces = [data[at:at + size] for at in range(0, len(data), size)]
            self.assertEqual(read(FrameParser(LIMIT), pieces), ([(TEXT, payload)], None))

    def test_any_bytes_give_events_or_a_close_code_and_never_anything_else(self):
        random = Random(11)
        codes = set()
        for number in range(3000):
            data = bytearray(random.choice(CASES)[1][:400])
            for _ in range(random.randint(0, 4)):
                if data:
                    data[random.randrange(len(data))] = random.randrange(256)
            parser = FrameParser(1 << 16)
            found, code = read(parser, cuts(bytes(data), random, 40))
            codes.add(code)
            self.assertEqual(read(FrameParser(1 << 16), [bytes(data)]), (found, code))
        self.assertLessEqual(codes, {None, 1002, 1007, 1009})
        self.assertIn(1002, codes)

    def test_a_message_over_the_limit_is_1009_before_its_bytes_come(self):
        parser = FrameParser(1000)
        self.assertEqual(read(parser, [text(b"x" * 600, fin=False), more(b"x" * 401)[:4]]), ([], 1009))
        self.assertEqual(read(FrameParser(1000), [fragments(TEXT, b"x" * 1000, 250)]), ([(TEXT, b"x" * 1000)], None))
        self.assertEqual(read(FrameParser(1000), [text(b"x" * 1001)[:4]]), ([], 1009))

    def test_the_limit_counts_each_message_for_itself(self):
        self.assertEqual(read(FrameParser(10), [text(b"0123456789") * 5])[0], [(TEXT, b"0123456789")] * 5)

    def test_faults_are_seen_in_the_first_bytes_of_a_frame(self):
        for data, code in ((b"\x83", 1002), (b"\xc1", 1002), (b"\x09", 1002), (b"\x80", 1002), (b"\x81\x05", 1002),
                           (b"\x89\xfe", 1002)):
            with self.subTest(data=data):
                self.assertEqual(read(FrameParser(LIMIT), [data]), ([], code))

    def test_a_begun_message_is_known_to_be_one(self):
        parser = FrameParser(LIMIT)
        self.assertFalse(parser.in_message())
        data = text(b"Hello", fin=False)
        states = []
        for at in range(len(data)):
            read(parser, [data[at:at + 1]])
            states.append(parser.in_message())
        self.assertEqual(states, [True] * len(data))
        read(parser, [client_frame(PING)])
        self.assertTrue(parser.in_message())
        read(parser, [more(b"")])
        self.assertFalse(parser.in_message())

    def test_unmasking_in_pieces_is_unmasking_whole(self):
        random = Random(3)
        data, mask = random.getrandbits(8 * 999).to_bytes(999, "big"), b"\x01\x80\xfe\x37"
        whole = ws_unmask(data, mask, 0)
        self.assertEqual(whole, bytes(byte ^ mask[at & 3] for at, byte in enumerate(data)))
        at, out = 0, b""
        for piece in cuts(data, random, 30):
            out += ws_unmask(piece, mask, at)
            at += len(piece)
        self.assertEqual(out, whole)


class FramesOutTest(unittest.TestCase):

    def test_the_examples_of_the_rfc(self):
        self.assertEqual(ws_frame(TEXT, b"Hello"), bytes.fromhex("810548656c6c6f"))
        self.assertEqual(ws_frame(PING, b"Hello"), bytes.fromhex("890548656c6c6f"))
        self.assertEqual(ws_frame(BINARY, b"\0" * 256), bytes.fromhex("827e0100") + b"\0" * 256)
        self.assertEqual(ws_frame(BINARY, b"\0" * 65536), bytes.fromhex("827f0000000000010000") + b"\0" * 65536)
        self.assertEqual(read(FrameParser(LIMIT), [bytes.fromhex("818537fa213d7f9f4d5158")]), ([(TEXT, b"Hello")], None))

    def test_lengths_are_in_their_shortest_form(self):
        for size, head in ((125, b"\x81\x7d"), (126, b"\x81\x7e\x00\x7e"), (65535, b"\x81\x7e\xff\xff"),
                           (65536, b"\x81\x7f\0\0\0\0\0\1\0\0")):
            self.assertEqual(ws_frame(TEXT, b"x" * size)[:-size], head)

    def test_close_frames(self):
        self.assertEqual(ws_close_frame(), b"\x88\x00")
        self.assertEqual(ws_close_frame(1001, "bye"), b"\x88\x05\x03\xe9bye")

    def test_a_long_reason_is_cut_between_characters(self):
        frame = ws_close_frame(1000, "\u00e4" * 100)
        self.assertEqual(len(frame), 2 + 2 + 122)
        self.assertEqual(frame[4:].decode("utf-8"), "\u00e4" * 61)

    def test_events_become_one_json_a_frame(self):
        frames = ws_event_framer()
        events = [b'{"type":"a","x":"%s"}' % (b"y" * size) for size in (0, 100, 130, 1000, 2000, 70000)]
        data = b"".join(b"event: a\ndata: %s\n\n" % event for event in events)
        self.assertEqual(frames(data), b"".join(ws_frame(TEXT, event) for event in events))
        self.assertEqual(b"".join(frames(b"event: a\ndata: %s\n\n" % event) for event in events), frames(data))

    def test_what_is_no_event_gives_no_frame(self):
        self.assertEqual([ws_event_framer()(data) for data in (b"", SSE_DONE, SSE_HEARTBEAT)], [b"", b"", b""])

    def test_a_lane_is_told_first_in_each_event(self):
        frame = ws_event_framer("main.1")(b'event: a\ndata: {"type":"a"}\n\n')
        self.assertEqual(json.loads(frame[2:].decode()), {"stream_id": "main.1", "type": "a"})
        self.assertEqual(frame[1], len(frame) - 2)


def head(**changes):
    """A handshake's RequestHead. A value of None leaves its header out."""
    lines = {"Host": "localhost", "Upgrade": "websocket", "Connection": "keep-alive, Upgrade",
             "Sec-WebSocket-Key": KEY, "Sec-WebSocket-Version": "13"}
    start = changes.pop("start", "GET /v1/responses HTTP/1.1")
    lines.update({name.replace("_", "-"): value for name, value in changes.items()})
    return parse_head((start + "\r\n" + "".join("%s: %s\r\n" % line for line in lines.items()
                                                if line[1] is not None) + "\r\n").encode("latin-1"))


class HandshakeTest(unittest.TestCase):

    def refused(self, *args, **changes):
        with self.assertRaises(ApiError) as caught:
            check_handshake(head(**changes), *args)
        return caught.exception

    def test_the_example_of_the_rfc(self):
        self.assertEqual(check_handshake(head()), KEY)
        self.assertEqual(dict(handshake_headers(KEY)), {"upgrade": "websocket", "connection": "Upgrade",
                                                        "sec-websocket-accept": ACCEPT})

    def test_tokens_are_found_in_lists_and_in_any_case(self):
        self.assertEqual(check_handshake(head(Upgrade="h2c, WebSocket", Connection="UPGRADE")), KEY)

    def test_no_upgrade_is_426_that_names_it(self):
        for changes in ({"Upgrade": None}, {"Upgrade": "h2c"}, {"start": "GET /v1/responses HTTP/1.0"},
                        {"start": "HEAD /v1/responses HTTP/1.1"}):
            error = self.refused(**changes)
            self.assertEqual((error.status, dict(error.headers)["upgrade"]), (426, "websocket"))

    def test_another_version_is_426_that_names_ours(self):
        for version in (None, "8", "13, 8", "14"):
            error = self.refused(Sec_WebSocket_Version=version)
            self.assertEqual((error.status, dict(error.headers)["sec-websocket-version"]), (426, "13"))

    def test_malformed_handshakes_are_400(self):
        for changes in ({"Connection": "keep-alive"}, {"Connection": None}, {"Sec_WebSocket_Key": None},
                        {"Sec_WebSocket_Key": "short"}, {"Sec_WebSocket_Key": KEY + "A"},
                        {"Sec_WebSocket_Key": KEY + ", " + KEY}, {"Sec_WebSocket_Key": "x" * 22 + "=="[:1] + "!"}):
            with self.subTest(changes=changes):
                self.assertEqual(self.refused(**changes).status, 400)

    def test_a_body_is_400(self):
        self.assertEqual(self.refused(b"x").status, 400)


class SocketMemoryTest(unittest.TestCase):
    """What a connection remembers takes room of all, and gives it back."""

    def node(self, number):
        return Node("resp_%032x" % number, None, 0.0, b"[]", (0, 2), b"[]", 0, b"")

    def left(self, room):
        return room._left

    def test_all_room_comes_back(self):
        for only_last in (False, True):
            room = SocketRoom(100000)
            memory = SocketMemory(room, only_last)
            for number in range(10):
                memory.remember(self.node(number), "a")
            memory.evict("resp_%032x" % 9, "a")
            self.assertEqual(100000 - self.left(room), sum(node.size_bytes for node in memory.all()))
            memory.close()
            self.assertEqual(self.left(room), 100000)

    def test_what_is_remembered_after_the_end_takes_no_room(self):
        room = SocketRoom(100000)
        memory = SocketMemory(room, False)
        memory.close()
        memory.remember(self.node(1), "a")
        self.assertEqual((self.left(room), memory.all()), (100000, []))


if __name__ == "__main__":
    unittest.main()
