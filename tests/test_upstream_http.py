"""An upstream's bytes: heads, framing and event streams, cut at every border, and damaged."""
import random
import unittest

from backends.upstream_http import MAX_ANSWER_HEAD_BYTES, AnswerReader, EventReader, UpstreamFault


def read_in_pieces(data, size):
    """(reader, body) after the data came in pieces of so many bytes."""
    reader, body = AnswerReader(), b""
    for at in range(0, len(data), size):
        body += b"".join(reader.feed(data[at:at + size]))
    return reader, body


class AnswerTest(unittest.TestCase):

    def each_cut(self, data, body, **wanted):
        for size in range(1, len(data) + 1):
            reader, found = read_in_pieces(data, size)
            with self.subTest(size=size):
                self.assertEqual(found, body)
                for name, value in wanted.items():
                    self.assertEqual(getattr(reader, name), value, name)

    def test_chunks_with_extensions_and_a_trailer_behind_an_interim_answer(self):
        self.each_cut(b"HTTP/1.1 100 Continue\r\n\r\nHTTP/1.1 200 OK\r\nTransfer-Encoding: Chunked\r\n\r\n"
                      b"5;a=b\r\nhello\r\n3 \r\nabc\r\n0\r\nT: x\r\n\r\n", b"helloabc",
                      status=200, over=True, reusable=True)

    def test_a_counted_body_and_repeated_headers(self):
        self.each_cut(b"HTTP/1.1 429 Too Many\r\ncontent-length: 4\r\nX-A: 1\r\nx-a: 2\r\n\r\nbody", b"body",
                      status=429, over=True, reusable=True, headers={"content-length": "4", "x-a": "1, 2"})

    def test_bare_line_feeds(self):
        self.each_cut(b"HTTP/1.1 200 OK\nTransfer-Encoding: chunked\n\n3\nabc\n0\n\n", b"abc", over=True)

    def test_a_body_without_framing_ends_with_the_connection(self):
        reader, body = read_in_pieces(b"HTTP/1.1 200 OK\r\n\r\nsome text", 4)
        self.assertEqual((body, reader.over), (b"some text", False))
        reader.feed_eof()
        self.assertEqual((reader.over, reader.reusable), (True, False))

    def test_connections_that_may_not_be_used_again(self):
        for head in (b"HTTP/1.1 200 OK\r\nContent-Length: 0\r\nConnection: Keep-Alive, Close\r\n\r\n",
                     b"HTTP/1.0 200 OK\r\nContent-Length: 0\r\n\r\n"):
            reader = AnswerReader()
            reader.feed(head)
            self.assertEqual((reader.over, reader.reusable), (True, False), head)

    def test_bytes_behind_the_answer_spoil_the_connection(self):
        reader = AnswerReader()
        self.assertEqual(reader.feed(b"HTTP/1.1 200 OK\r\nContent-Length: 2\r\n\r\nokHTTP/1.1"), [b"ok"])
        self.assertEqual((reader.rest, reader.reusable), (b"HTTP/1.1", False))

    def test_an_end_before_any_byte_is_told_apart_from_one_in_mid_answer(self):
        for data, fresh in ((b"", True), (b"HTT", False), (b"HTTP/1.1 200 OK\r\nContent-Length: 5\r\n\r\nab", False),
                            (b"HTTP/1.1 200 OK\r\nTransfer-Encoding: chunked\r\n\r\n5\r\nhello\r\n", False)):
            reader = AnswerReader()
            if data:
                reader.feed(data)
            with self.assertRaises(UpstreamFault) as caught:
                reader.feed_eof()
            self.assertEqual(caught.exception.fresh, fresh, data)

    def test_what_is_not_http_is_refused(self):
        for data in (b"SSH-2.0-x\r\n", b"HTTP/2 200\r\n\r\n", b"HTTP/1.1 abc\r\n\r\n", b"HTTP/1.1 101 Switch\r\n\r\n",
                     b"HTTP/1.1 200 OK\r\nContent-Length: x\r\n\r\n",
                     b"HTTP/1.1 200 OK\r\nTransfer-Encoding: chunked\r\n\r\nzz\r\n",
                     b"HTTP/1.1 200 OK\r\nTransfer-Encoding: chunked\r\n\r\n-1\r\n",
                     b"HTTP/1.1 200 OK\r\nTransfer-Encoding: chunked\r\n\r\n1\r\nabc",
                     b"HTTP/1.1 200 OK\r\n" + b"a: b\r\n" * MAX_ANSWER_HEAD_BYTES):
            with self.subTest(data=data[:60]), self.assertRaises(UpstreamFault):
                AnswerReader().feed(data)

    def test_a_length_of_thousands_of_digits_is_refused(self):
        with self.assertRaises(UpstreamFault):
            AnswerReader().feed(b"HTTP/1.1 200 OK\r\nContent-Length: %s\r\n\r\n{}" % (b"9" * 6000))

    def test_any_damage_parses_or_raises_the_one_declared_fault(self):
        good = (b"HTTP/1.1 200 OK\r\nTransfer-Encoding: chunked\r\nContent-Type: text/event-stream\r\n\r\n"
                b"10\r\ndata: {\"a\": 1}\n\n\r\n0\r\n\r\n")
        draw = random.Random(7)
        faults = 0
        for _ in range(2000):
            data = bytearray(good)
            for _ in range(draw.randint(1, 4)):
                data[draw.randrange(len(data))] = draw.randrange(256)
            try:
                reader, body = read_in_pieces(bytes(data), draw.randint(1, len(data)))
                reader.feed_eof()
                EventReader().feed(body)
            except UpstreamFault:
                faults += 1
        self.assertGreater(faults, 100)


class EventsTest(unittest.TestCase):

    STREAM = (b"\xef\xbb\xbf: comment\r\n\r\ndata: a\r\ndata:b\r\n\r\nid: 3\nevent: x\ndata: z\nretry: 5\n\n"
              b"data: q\r\r\n\ndata:  two\n\ndata\n\nevent: none\n\ndata: gr\xc3\xbc\xc3\x9fe\n\ndata: last")

    def test_events_are_the_same_wherever_the_stream_is_cut(self):
        for size in range(1, len(self.STREAM) + 1):
            reader, found = EventReader(), []
            for at in range(0, len(self.STREAM), size):
                found += reader.feed(self.STREAM[at:at + size])
            found += reader.feed_eof()
            with self.subTest(size=size):
                self.assertEqual(found, [b"a\nb", b"z", b"q", b" two", b"", "grüße".encode(), b"last"])

    def test_an_event_is_given_as_soon_as_it_is_complete(self):
        reader = EventReader()
        self.assertEqual(reader.feed(b"data: 1\n"), [])
        self.assertEqual(reader.feed(b"\ndata: 2"), [b"1"])
        self.assertEqual(reader.feed(b"\n\n"), [b"2"])

    def test_a_line_in_many_pieces_is_joined_once(self):
        class CountedBytes(bytes):
            joined = 0

            def __radd__(self, other):
                CountedBytes.joined += 1
                return other + bytes(self)
        reader = EventReader()
        for piece in [b"data: "] + 50 * [b"x"]:
            self.assertEqual(reader.feed(CountedBytes(piece)), [])
        self.assertEqual(CountedBytes.joined, 0)
        self.assertEqual(reader.feed(b"y\n\n"), [b"x" * 50 + b"y"])

    def test_an_event_that_never_ends_is_refused(self):
        for begin, more in ((b"data: ", b"x" * 30), (b"data: x\n", b"data: xxxxxxxxxxxxxxxxxxxxxxx\n"), (b"", 30 * b"data:\n")):
            reader = EventReader(most_bytes=100)
            reader.feed(begin)
            self.assertEqual(reader.feed(more), [])
            with self.assertRaises(UpstreamFault, msg=begin):
                for _ in range(9):
                    reader.feed(more)

    def test_an_end_without_an_open_event_gives_none(self):
        reader = EventReader()
        reader.feed(b"data: 1\n\n: bye")
        self.assertEqual(reader.feed_eof(), [])


if __name__ == "__main__":
    unittest.main()
