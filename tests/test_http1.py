"""The request parser and the heads of answers, without a socket.

Every request is fed whole, byte by byte and with trailing bytes: the outcome may not depend on how
the bytes arrive.
"""
import unittest
from random import Random

from api_common import ApiError
from transport.http1 import (HEAD_CACHE_ENTRIES, MAX_CHUNK_LINE_BYTES, MAX_HEAD_BYTES, MAX_HEADERS,
                             MAX_LINE_BYTES, MAX_TRAILER_BYTES, HeadWriter, Request, RequestParser,
                             header_bytes)

MAX_BODY = 1000
GET = b"GET /v1/models HTTP/1.1\r\nHost: a\r\n\r\n"


def post(body=b"", *lines):
    """A POST with these header lines; without any, with its Content-Length."""
    lines = lines or (b"Content-Length: %d" % len(body),)
    return b"\r\n".join((b"POST /v1/x HTTP/1.1", b"Host: a") + lines + (b"", b"")) + body


def chunked(*parts):
    return post(b"".join(parts), b"Transfer-Encoding: chunked")


def outcome(data, cuts=(), heads=None):
    """What a parser makes of the bytes, cut at these places: a list of (path, body), then the
    status of the refusal or None."""
    parser = RequestParser({} if heads is None else heads, MAX_BODY)
    found, start = [], 0
    try:
        for end in list(cuts) + [len(data)]:
            request = parser.feed(data[start:end])
            start = end
            while request is not None or parser.has_more:
                if request is not None:
                    found.append((request.head.path, request.body))
                request = parser.feed(b"")
    except ApiError as error:
        return found, error.status
    return found, None


def bytewise(data):
    return range(1, len(data))


def read_one(data):
    """The one Request in these bytes."""
    request = RequestParser({}, MAX_BODY).feed(data)
    if request is None:
        raise AssertionError("not complete: %r" % data)
    return request


class FeedingTest(unittest.TestCase):

    ACCEPTED = {
        "no body": (GET, [("/v1/models", b"")]),
        "content-length": (post(b"hello"), [("/v1/x", b"hello")]),
        "content-length 0": (post(b""), [("/v1/x", b"")]),
        "leading zeros": (post(b"hello", b"Content-Length: 005"), [("/v1/x", b"hello")]),
        "chunked": (chunked(b"5\r\nhello\r\n", b"1\r\n!\r\n", b"0\r\n\r\n"), [("/v1/x", b"hello!")]),
        "chunked, nothing": (chunked(b"0\r\n\r\n"), [("/v1/x", b"")]),
        "chunk extensions": (chunked(b'5;a=b;c="d"\r\nhello\r\n', b"0;last\r\n\r\n"), [("/v1/x", b"hello")]),
        "chunk size in capitals with zeros": (chunked(b"00A\r\n0123456789\r\n", b"000\r\n\r\n"),
                                              [("/v1/x", b"0123456789")]),
        "space after chunk size": (chunked(b"5 ;x\r\nhello\r\n", b"0\r\n\r\n"), [("/v1/x", b"hello")]),
        "trailers": (chunked(b"5\r\nhello\r\n", b"0\r\nA: b\r\nC: d\r\n\r\n"), [("/v1/x", b"hello")]),
        "line ends inside a chunk": (chunked(b"8\r\n\r\n0\r\n\r\n\n\r\n", b"0\r\n\r\n"),
                                     [("/v1/x", b"\r\n0\r\n\r\n\n")]),
        "an empty line before": (b"\r\n" + GET, [("/v1/models", b"")]),
        "empty lines before": (b"\r\n\r\n\r\n" + GET, [("/v1/models", b"")]),
        "four pipelined": (GET + post(b"one") + chunked(b"3\r\ntwo\r\n0\r\n\r\n") + GET,
                           [("/v1/models", b""), ("/v1/x", b"one"), ("/v1/x", b"two"), ("/v1/models", b"")]),
        "an empty line between": (post(b"one") + b"\r\n" + GET, [("/v1/x", b"one"), ("/v1/models", b"")]),
        "coding's name in capitals": (post(b"2\r\nhi\r\n0\r\n\r\n", b"Transfer-Encoding: Chunked"),
                                      [("/v1/x", b"hi")]),
        "body of the size limit": (post(b"x" * MAX_BODY), [("/v1/x", b"x" * MAX_BODY)]),
        "chunks of the size limit": (chunked(b"1f4\r\n" + b"x" * 500 + b"\r\n",
                                             b"1f4\r\n" + b"x" * 500 + b"\r\n", b"0\r\n\r\n"),
                                     [("/v1/x", b"x" * MAX_BODY)]),
    }

    def test_whole(self):
        for case, (data, expected) in self.ACCEPTED.items():
            with self.subTest(case=case):
                self.assertEqual(outcome(data), (expected, None))

    def test_byte_by_byte(self):
        for case, (data, expected) in self.ACCEPTED.items():
            with self.subTest(case=case):
                self.assertEqual(outcome(data, bytewise(data)), (expected, None))

    def test_cut_in_two_anywhere(self):
        for case in ("chunked", "trailers", "four pipelined", "empty lines before"):
            data, expected = self.ACCEPTED[case]
            for cut in bytewise(data):
                with self.subTest(case=case, cut=cut):
                    self.assertEqual(outcome(data, [cut]), (expected, None))

    def test_with_trailing_bytes_of_a_next_request(self):
        for case, (data, expected) in self.ACCEPTED.items():
            with self.subTest(case=case):
                parser = RequestParser({}, MAX_BODY)
                found, request = [], parser.feed(data + b"GET /ne")
                while request is not None:
                    found.append((request.head.path, request.body))
                    request = parser.feed(b"")
                self.assertEqual(found, expected)
                self.assertFalse(parser.is_idle())
                self.assertEqual(parser.feed(b"xt HTTP/1.1\r\nHost: a\r\n\r\n").head.path, "/next")

    def test_a_parser_is_idle_only_between_requests(self):
        parser = RequestParser({}, MAX_BODY)
        self.assertTrue(parser.is_idle())
        parser.feed(b"P")
        self.assertFalse(parser.is_idle())
        parser.feed(post(b"hello")[1:-2])
        self.assertEqual((parser.is_idle(), parser.in_body()), (False, True))
        parser.feed(b"lo")
        self.assertEqual((parser.is_idle(), parser.in_body()), (True, False))

    def test_an_idle_parser_holds_no_buffer(self):
        parser = RequestParser({}, MAX_BODY)
        for data in (GET, post(b"hello"), chunked(b"5\r\nhello\r\n0\r\n\r\n")):
            parser.feed(data)
            self.assertEqual(len(parser._buf), 0)
            self.assertIsNone(parser._parts)


LONG = b"x" * 200

REFUSED = {
    # line ends
    "bare LF everywhere": (b"GET / HTTP/1.1\nHost: a\n\n", 400),
    "bare LF after the request line": (b"GET / HTTP/1.1\nHost: a\r\n\r\n", 400),
    "bare LF after a header": (b"GET / HTTP/1.1\r\nHost: a\nB: c\r\n\r\n", 400),
    "bare CR in a header": (b"GET / HTTP/1.1\r\nHost: a\rB: c\r\n\r\n", 400),
    "CR CR LF": (b"GET / HTTP/1.1\r\nHost: a\r\r\n\r\n", 400),
    # header lines
    "obs-fold": (b"GET / HTTP/1.1\r\nHost: a\r\n b\r\n\r\n", 400),
    "obs-fold with a colon": (b"GET / HTTP/1.1\r\nHost: a\r\n\tB: c\r\n\r\n", 400),
    "space before the colon": (b"GET / HTTP/1.1\r\nHost : a\r\n\r\n", 400),
    "space before the framing's colon": (post(b"hello", b"Content-Length : 5"), 400),
    "no colon": (b"GET / HTTP/1.1\r\nHost: a\r\nB\r\n\r\n", 400),
    "no name": (b"GET / HTTP/1.1\r\nHost: a\r\n: b\r\n\r\n", 400),
    "name with a bracket": (b"GET / HTTP/1.1\r\nHost: a\r\nB(: c\r\n\r\n", 400),
    "name beyond ASCII": (b"GET / HTTP/1.1\r\nHost: a\r\nB\xe9: c\r\n\r\n", 400),
    "NUL in a value": (b"GET / HTTP/1.1\r\nHost: a\r\nB: c\0d\r\n\r\n", 400),
    "control character in a value": (b"GET / HTTP/1.1\r\nHost: a\r\nB: c\x01d\r\n\r\n", 400),
    "DEL in a value": (b"GET / HTTP/1.1\r\nHost: a\r\nB: c\x7fd\r\n\r\n", 400),
    # framing
    "length and chunked": (post(b"0\r\n\r\n", b"Content-Length: 5", b"Transfer-Encoding: chunked"), 400),
    "chunked and length": (post(b"0\r\n\r\n", b"Transfer-Encoding: chunked", b"Content-Length: 5"), 400),
    "two lengths": (post(b"hello", b"Content-Length: 5", b"Content-Length: 6"), 400),
    "two equal lengths": (post(b"hello", b"Content-Length: 5", b"Content-Length: 5"), 400),
    "two lengths, other case": (post(b"hello", b"Content-Length: 5", b"CONTENT-LENGTH: 5"), 400),
    "two lengths in a list": (post(b"hello", b"Content-Length: 5, 5"), 400),
    "two codings": (post(b"0\r\n\r\n", b"Transfer-Encoding: chunked", b"Transfer-Encoding: chunked"), 400),
    "length that is a word": (post(b"hello", b"Content-Length: five"), 400),
    "negative length": (post(b"hello", b"Content-Length: -5"), 400),
    "length with a plus": (post(b"hello", b"Content-Length: +5"), 400),
    "hexadecimal length": (post(b"hello", b"Content-Length: 0x5"), 400),
    "length with an underscore": (post(b"hello", b"Content-Length: 1_0"), 400),
    "length with a fraction": (post(b"hello", b"Content-Length: 5.0"), 400),
    "empty length": (post(b"hello", b"Content-Length:"), 400),
    "length in superscript": (post(b"hello", b"Content-Length: \xb2"), 400),
    "length beyond all numbers": (post(b"", b"Content-Length: " + b"9" * 40), 400),
    "length over the limit": (post(b"", b"Content-Length: %d" % (MAX_BODY + 1)), 413),
    "huge length": (post(b"", b"Content-Length: 999999999999999999"), 413),
    "coding gzip": (post(b"", b"Transfer-Encoding: gzip"), 501),
    "coding gzip, chunked": (post(b"", b"Transfer-Encoding: gzip, chunked"), 501),
    "coding chunked, identity": (post(b"", b"Transfer-Encoding: chunked, identity"), 501),
    "coding xchunked": (post(b"", b"Transfer-Encoding: xchunked"), 501),
    "coding with a vertical tab": (post(b"", b"Transfer-Encoding: \x0bchunked"), 400),
    "coding in HTTP/1.0": (b"POST / HTTP/1.0\r\nTransfer-Encoding: chunked\r\n\r\n0\r\n\r\n", 400),
    # Host
    "no Host": (b"GET / HTTP/1.1\r\n\r\n", 400),
    "two Hosts": (b"GET / HTTP/1.1\r\nHost: a\r\nHost: b\r\n\r\n", 400),
    "two equal Hosts": (b"GET / HTTP/1.1\r\nHost: a\r\nhost: a\r\n\r\n", 400),
    # the request line
    "one word": (b"GET\r\nHost: a\r\n\r\n", 400),
    "HTTP/0.9": (b"GET /\r\nHost: a\r\n\r\n", 400),
    "four words": (b"GET / x HTTP/1.1\r\nHost: a\r\n\r\n", 400),
    "two spaces": (b"GET  / HTTP/1.1\r\nHost: a\r\n\r\n", 400),
    "space in front": (b" GET / HTTP/1.1\r\nHost: a\r\n\r\n", 400),
    "tab as separator": (b"GET\t/ HTTP/1.1\r\nHost: a\r\n\r\n", 400),
    "method with a colon": (b"GE:T / HTTP/1.1\r\nHost: a\r\n\r\n", 400),
    "endless method": (b"G" * 33 + b" / HTTP/1.1\r\nHost: a\r\n\r\n", 400),
    "target without slash": (b"GET models HTTP/1.1\r\nHost: a\r\n\r\n", 400),
    "target with a control character": (b"GET /\x01 HTTP/1.1\r\nHost: a\r\n\r\n", 400),
    "target with DEL": (b"GET /\x7f HTTP/1.1\r\nHost: a\r\n\r\n", 400),
    "target with NUL": (b"GET /a\0b HTTP/1.1\r\nHost: a\r\n\r\n", 400),
    "star for GET": (b"GET * HTTP/1.1\r\nHost: a\r\n\r\n", 400),
    "authority form": (b"CONNECT example.org:443 HTTP/1.1\r\nHost: a\r\n\r\n", 400),
    "foreign scheme": (b"GET ftp://a/b HTTP/1.1\r\nHost: a\r\n\r\n", 400),
    "version in small letters": (b"GET / http/1.1\r\nHost: a\r\n\r\n", 400),
    "version with two digits": (b"GET / HTTP/1.10\r\nHost: a\r\n\r\n", 400),
    "HTTP/2 preface": (b"PRI * HTTP/2.0\r\n\r\nSM\r\n\r\n", 505),
    "HTTP/0.1": (b"GET / HTTP/0.1\r\nHost: a\r\n\r\n", 505),
    "HTTP/3": (b"GET / HTTP/3.0\r\nHost: a\r\n\r\n", 505),
    "TLS hello": (b"\x16\x03\x01\x02\0\x01\0\x01\xfc\x03\x03\r\n\r\n", 400),
    # limits
    "request line over the limit": (b"GET /" + b"a" * MAX_LINE_BYTES + b" HTTP/1.1\r\nHost: a\r\n\r\n", 414),
    "request line without end": (b"GET /" + b"a" * (MAX_LINE_BYTES + 10), 414),
    "request line over the head's limit": (b"GET /" + b"a" * (MAX_HEAD_BYTES + 10), 414),
    "head over the limit": (b"GET / HTTP/1.1\r\nHost: a\r\n" + b"".join(
        b"A%d: %s\r\n" % (n, b"x" * 8000) for n in range(9)) + b"\r\n", 431),
    "head without end": (b"GET / HTTP/1.1\r\nHost: a\r\nB: " + b"x" * (MAX_HEAD_BYTES + 10), 431),
    "too many headers": (b"GET / HTTP/1.1\r\nHost: a\r\n" + b"A: b\r\n" * MAX_HEADERS + b"\r\n", 431),
    # expectations
    "expectation": (post(b"", b"Content-Length: 0", b"Expect: 200-ok"), 417),
    # chunks
    "chunk size missing": (chunked(b"\r\nhello\r\n"), 400),
    "chunk size only an extension": (chunked(b";a=b\r\nhello\r\n"), 400),
    "chunk size that is a word": (chunked(b"five\r\nhello\r\n"), 400),
    "negative chunk size": (chunked(b"-5\r\nhello\r\n"), 400),
    "chunk size with a plus": (chunked(b"+5\r\nhello\r\n"), 400),
    "chunk size with 0x": (chunked(b"0x5\r\nhello\r\n"), 400),
    "chunk size with an underscore": (chunked(b"1_0\r\nhello\r\n"), 400),
    "chunk size of 17 digits": (chunked(b"0" * 16 + b"5\r\nhello\r\n"), 400),
    "chunk size line with bare LF": (chunked(b"5\nhello\r\n0\r\n\r\n"), 400),
    "chunk data without its end": (chunked(b"5\r\nhelloX\r\n0\r\n\r\n"), 400),
    "chunk data with bare LF": (chunked(b"5\r\nhello\n0\r\n\r\n"), 400),
    "last chunk with bare LF": (chunked(b"0\r\n\n"), 400),
    "chunk line over the limit": (chunked(b"5;" + b"x" * MAX_CHUNK_LINE_BYTES + b"\r\nhello\r\n"), 400),
    "chunk line without end": (chunked(b"5;" + b"x" * (MAX_CHUNK_LINE_BYTES + 10)), 400),
    "one chunk over the body's limit": (chunked(b"3e9\r\n"), 413),
    "chunks over the body's limit": (chunked(b"384\r\n" + b"x" * 900 + b"\r\n65\r\n"), 413),
    "huge chunk": (chunked(b"ffffffffffffffff\r\n"), 413),
    "trailers over the limit": (chunked(b"0\r\n" + (b"A: " + LONG + b"\r\n") * 100), 431),
    "one trailer over the limit": (chunked(b"0\r\nA: " + b"x" * MAX_TRAILER_BYTES + b"\r\n\r\n"), 431),
    "trailer without end": (chunked(b"0\r\nA: " + b"x" * (MAX_TRAILER_BYTES + 10)), 431),
}


class RefusalTest(unittest.TestCase):

    def test_whole(self):
        for case, (data, status) in REFUSED.items():
            with self.subTest(case=case):
                self.assertEqual(outcome(data), ([], status))

    def test_byte_by_byte(self):
        for case, (data, status) in REFUSED.items():
            with self.subTest(case=case):
                self.assertEqual(outcome(data, bytewise(data)), ([], status))

    def test_with_a_request_behind_it(self):
        for case, (data, status) in REFUSED.items():
            if not data.endswith(b"\n"):
                continue                # it is not at an end where another could begin
            with self.subTest(case=case):
                self.assertEqual(outcome(data + GET), ([], status))

    def test_behind_a_good_request(self):
        for case, (data, status) in REFUSED.items():
            with self.subTest(case=case):
                self.assertEqual(outcome(GET + data), ([("/v1/models", b"")], status))

    def test_every_refusal_ends_the_connection(self):
        for case, (data, _) in REFUSED.items():
            with self.subTest(case=case):
                with self.assertRaises(ApiError) as caught:
                    RequestParser({}, MAX_BODY).feed(data)
                self.assertTrue(caught.exception.close)

    def test_a_refusal_does_not_wait_for_the_body(self):
        for data in (post(b"", b"Content-Length: 1001"), chunked(b"3e9\r\n")):
            self.assertEqual(outcome(data), ([], 413))

    def test_limits_are_inclusive(self):
        line = b"GET /" + b"a" * (MAX_LINE_BYTES - 14) + b" HTTP/1.1"
        self.assertEqual(len(line), MAX_LINE_BYTES)
        fits = {"line": line + b"\r\nHost: a\r\n\r\n",
                "headers": b"GET / HTTP/1.1\r\nHost: a\r\n" + b"A: b\r\n" * (MAX_HEADERS - 1) + b"\r\n"}
        for case, data in fits.items():
            with self.subTest(case=case):
                self.assertIsNone(outcome(data)[1])

    def test_many_short_trailers_are_read(self):
        # below the byte limit, but many: a parser that calls itself per line runs out of stack
        found, status = outcome(chunked(b"0\r\n" + b"a:b\r\n" * 3000 + b"\r\n"))
        self.assertEqual((found, status), ([("/v1/x", b"")], None))

    def test_empty_lines_alone_are_swallowed(self):
        self.assertEqual(outcome(b"\r\n" * 2000), ([], None))


class HeadTest(unittest.TestCase):

    def test_names_are_lower_case_and_values_stripped(self):
        head = read_one(b"GET / HTTP/1.1\r\nHOST:a\r\nX-Two: \t b c \t\r\n\r\n").head
        self.assertEqual(head.headers, {"host": "a", "x-two": "b c"})

    def test_repeated_headers_are_joined_with_commas_and_cookies_with_semicolons(self):
        head = read_one(b"GET / HTTP/1.1\r\nHost: a\r\nX: 1\r\nx: 2\r\nCookie: c=1\r\nCookie: d=2\r\n\r\n").head
        self.assertEqual((head.headers["x"], head.headers["cookie"]), ("1, 2", "c=1; d=2"))

    def test_empty_header_values_are_kept(self):
        self.assertEqual(read_one(b"GET / HTTP/1.1\r\nHost:\r\nX:\r\n\r\n").head.headers, {"host": "", "x": ""})

    def test_paths(self):
        cases = {
            b"/v1/models": ("/v1/models", ""),
            b"/": ("/", ""),
            b"/a?b=c&d": ("/a", "b=c&d"),
            b"/a?b?c": ("/a", "b?c"),
            b"/a#b": ("/a", ""),
            b"/a?b#c": ("/a", "b"),
            b"/%76%31/x%20y": ("/v1/x y", ""),
            b"/a%3Fb?c%3Fd": ("/a?b", "c%3Fd"),
            b"/%e2%82%ac": ("/\u20ac", ""),
            b"/100%": ("/100%", ""),
            b"/%zz": ("/%zz", ""),
            b"http://host:8000/v1/models?x=1": ("/v1/models", "x=1"),
            b"HTTPS://host/a": ("/a", ""),
            b"http://host": ("/", ""),
            b"http://host?x=1": ("/", "x=1"),
        }
        for target, expected in cases.items():
            with self.subTest(target=target):
                head = read_one(b"GET " + target + b" HTTP/1.1\r\nHost: a\r\n\r\n").head
                self.assertEqual((head.path, head.query_text), expected)

    def test_star_is_a_target_of_options(self):
        self.assertEqual(read_one(b"OPTIONS * HTTP/1.1\r\nHost: a\r\n\r\n").head.path, "*")

    def test_query_values_are_decoded_and_brackets_dropped(self):
        head = read_one(b"GET /?a=1&a=2&include[]=x&include%5B%5D=y&b=&c=%20d HTTP/1.1\r\nHost: a\r\n\r\n").head
        self.assertEqual(head.query(), {"a": ["1", "2"], "include": ["x", "y"], "b": [""], "c": [" d"]})

    def test_keep_alive_follows_version_and_connection(self):
        cases = {
            (b"1.1", b""): True, (b"1.1", b"close"): False, (b"1.1", b"Close"): False,
            (b"1.1", b"keep-alive, CLOSE"): False, (b"1.1", b"upgrade"): True,
            (b"1.1", b"x-close"): True,
            (b"1.0", b""): False, (b"1.0", b"Keep-Alive"): True, (b"1.0", b"x, keep-alive"): True,
        }
        for (version, value), expected in cases.items():
            with self.subTest(version=version, value=value):
                line = b"Connection: " + value + b"\r\n" if value else b""
                head = read_one(b"GET / HTTP/" + version + b"\r\nHost: a\r\n" + line + b"\r\n").head
                self.assertIs(head.keep_alive, expected)

    def test_http10_needs_no_host(self):
        head = read_one(b"GET / HTTP/1.0\r\n\r\n").head
        self.assertEqual((head.http10, head.path), (True, "/"))

    def test_head_has_no_body_but_its_framing_is_obeyed(self):
        self.assertEqual(outcome(b"HEAD / HTTP/1.1\r\nHost: a\r\n\r\n" + GET), (
            [("/", b""), ("/v1/models", b"")], None))


class ContinueTest(unittest.TestCase):

    def parser_after(self, data):
        parser = RequestParser({}, MAX_BODY)
        self.last = parser.feed(data)
        return parser

    def test_a_client_that_waits_is_told_to_go_on(self):
        for framing in (b"Content-Length: 5", b"Transfer-Encoding: chunked"):
            with self.subTest(framing=framing):
                self.assertTrue(self.parser_after(post(b"", framing, b"Expect: 100-Continue")).wants_continue)

    def test_a_client_that_sent_its_body_already_is_not(self):
        self.assertFalse(self.parser_after(
            post(b"he", b"Content-Length: 5", b"Expect: 100-continue")).wants_continue)

    def test_nor_is_one_without_a_body(self):
        parser = self.parser_after(post(b"", b"Content-Length: 0", b"Expect: 100-continue"))
        self.assertFalse(parser.wants_continue)
        self.assertIsNotNone(self.last)

    def test_nor_is_an_http10_client(self):
        self.assertFalse(self.parser_after(
            b"POST / HTTP/1.0\r\nContent-Length: 5\r\nExpect: 100-continue\r\n\r\n").wants_continue)

    def test_the_wish_is_forgotten_when_the_body_has_come(self):
        parser = self.parser_after(post(b"", b"Content-Length: 5", b"Expect: 100-continue"))
        self.assertIsNotNone(parser.feed(b"hello"))
        self.assertFalse(parser.wants_continue)


class HeadCacheTest(unittest.TestCase):

    def test_heads_that_differ_in_authorization_are_never_mixed(self):
        heads = {}
        for _ in range(2):
            for key in ("one", "two", ""):
                line = "Authorization: Bearer %s\r\n" % key if key else ""
                data = ("GET / HTTP/1.1\r\nHost: a\r\n%s\r\n" % line).encode()
                request = RequestParser(heads, MAX_BODY).feed(data)
                self.assertEqual(request.head.headers.get("authorization"), "Bearer " + key if key else None)

    def test_equal_heads_share_one_object_whatever_their_bodies(self):
        heads = {}
        one = RequestParser(heads, MAX_BODY).feed(post(b"hello"))
        two = RequestParser(heads, MAX_BODY).feed(post(b"world"))
        self.assertIs(one.head, two.head)
        self.assertEqual((one.body, two.body), (b"hello", b"world"))

    def test_the_body_limit_holds_for_cached_heads(self):
        heads = {}
        data = post(b"x" * 100)
        RequestParser(heads, 100).feed(data)
        with self.assertRaises(ApiError) as caught:
            RequestParser(heads, 99).feed(data)
        self.assertEqual(caught.exception.status, 413)

    def test_refused_heads_are_refused_again(self):
        heads = {}
        data = b"GET / HTTP/1.1\r\nHost: a\r\nHost: b\r\n\r\n"
        self.assertEqual([outcome(data, (), heads)[1] for _ in range(2)], [400, 400])

    def test_the_cache_is_bounded(self):
        heads = {}
        for number in range(3 * HEAD_CACHE_ENTRIES):
            RequestParser(heads, MAX_BODY).feed(b"GET /%d HTTP/1.1\r\nHost: a\r\n\r\n" % number)
        self.assertLessEqual(len(heads), HEAD_CACHE_ENTRIES)

    def test_long_heads_are_not_kept(self):
        heads = {}
        RequestParser(heads, MAX_BODY).feed(b"GET / HTTP/1.1\r\nHost: a\r\nX: " + b"x" * 5000 + b"\r\n\r\n")
        self.assertEqual(heads, {})


class AnyBytesTest(unittest.TestCase):
    """Any bytes give Requests, None or an ApiError of 4xx or 5xx, nothing else; and the same however
    they are cut."""

    SEEDS = [GET, post(b"hello"), chunked(b"5;a\r\nhello\r\n", b"0\r\nA: b\r\n\r\n"),
             post(b"", b"Content-Length: 5", b"Expect: 100-continue") + b"hello",
             b"GET http://h/a?b=%20c HTTP/1.0\r\nConnection: keep-alive\r\n\r\n"]
    PIECES = [b"\r\n", b"\r", b"\n", b"\0", b" ", b":", b";", b"0", b"5", b"chunked", b"Content-Length: 3\r\n",
              b"Transfer-Encoding: chunked\r\n", b"Host: b\r\n", b"HTTP/1.1", b"GET ", b"\xff", b"%", b"\r\n\r\n",
              b"0\r\n\r\n", b"\t", b"?", b"#", b"HTTP/2.0", b"9" * 20]

    def check(self, data, random):
        whole = outcome(data)
        self.assertTrue(whole[1] is None or 400 <= whole[1] <= 599, whole)
        cuts = sorted(random.randrange(len(data) + 1) for _ in range(random.randrange(1, 6)))
        self.assertEqual(outcome(data, cuts), whole)
        if len(data) < 300:
            self.assertEqual(outcome(data, bytewise(data)), whole)

    def each(self, count, make):
        for seed in range(count):
            random = Random(seed)
            data = make(random)
            with self.subTest(seed=seed, data=data):
                self.check(data, random)

    def test_random_bytes(self):
        self.each(300, lambda random: bytes(random.randrange(256) for _ in range(random.randrange(200))))

    def test_random_pieces_of_http(self):
        self.each(1000, lambda random: b"".join(
            random.choice(self.PIECES) for _ in range(random.randrange(30))))

    def mutated(self, random):
        data = bytearray(b"".join(random.choice(self.SEEDS) for _ in range(random.randrange(1, 4))))
        for _ in range(random.randrange(1, 5)):
            at = random.randrange(len(data) + 1)
            kind = random.randrange(4)
            if kind == 0:
                data[at:at] = random.choice(self.PIECES)
            elif kind == 1:
                del data[at:at + random.randrange(1, 5)]
            elif kind == 2 and at < len(data):
                data[at] = random.randrange(256)
            else:
                other = random.randrange(len(data) + 1)
                data[at:at] = data[other:other + random.randrange(20)]
        return bytes(data)

    def test_mutated_requests(self):
        self.each(1500, self.mutated)


class HeadWriterTest(unittest.TestCase):

    def test_a_bodys_head_has_its_length_and_its_id(self):
        head = HeadWriter(lambda: 0).body_head(200, 12, "abc", 3, b"x: y\r\n").decode()
        lines = head.split("\r\n")
        self.assertEqual(lines[0], "HTTP/1.1 200 OK")
        self.assertEqual(lines[-2:], ["", ""])
        self.assertLessEqual({"content-length: 12", "content-type: application/json", "x-request-id: req_abc",
                              "openai-processing-ms: 3", "date: Thu, 01 Jan 1970 00:00:00 GMT", "x: y"}, set(lines))

    def test_a_stream_head_is_chunked_for_http11_only(self):
        writer = HeadWriter(lambda: 0)
        self.assertIn(b"transfer-encoding: chunked\r\n", writer.stream_head("abc", 0, True))
        self.assertNotIn(b"transfer-encoding", writer.stream_head("abc", 0, False))
        self.assertNotIn(b"content-length", writer.stream_head("abc", 0, True))

    def test_the_date_moves_with_the_clock(self):
        now = [0]
        writer = HeadWriter(lambda: now[0])
        writer.body_head(200, 0, "a", 0)
        now[0] = 86400
        self.assertIn(b"Fri, 02 Jan 1970", writer.body_head(200, 0, "a", 0))

    def test_every_status_that_is_sent_has_its_phrase(self):
        writer = HeadWriter(lambda: 0)
        for status in (200, 204, 400, 401, 404, 405, 408, 413, 414, 415, 417, 429, 431, 500, 501, 503, 505):
            self.assertNotIn(b"Unknown", writer.start_lines(status))

    def test_header_values_cannot_split_the_answer(self):
        self.assertEqual(header_bytes([("x", "a\r\nSet-Cookie: b\0")]), b"x: a  Set-Cookie: b \r\n")

    def test_header_values_beyond_latin1_are_replaced(self):
        self.assertEqual(header_bytes([("x", "\u20ac")]), b"x: ?\r\n")


class RequestTest(unittest.TestCase):

    def test_bodies_are_bytes(self):
        for data in (post(b"hello"), chunked(b"5\r\nhello\r\n0\r\n\r\n")):
            for cuts in ((), bytewise(data)):
                parser = RequestParser({}, MAX_BODY)
                start, request = 0, None
                for end in list(cuts) + [len(data)]:
                    request = parser.feed(data[start:end])
                    start = end
                self.assertIsInstance(request, Request)
                self.assertIs(request.body.__class__, bytes)
