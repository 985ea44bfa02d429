"""The wire's vocabulary: JSON in, errors, checks, ids, framing and pages."""
import json
import random
import unittest

from api_common import (FIXED_CREATED, PIECEWISE_BYTES, SSE_DONE, SSE_HEARTBEAT, ApiError, Ids, build_page,
                        check_array, check_boolean, check_enum, check_fields, check_integer, check_metadata,
                        check_number, check_string, chunked_bytes, content_text, dump_json, escape_json,
                        invalid_type, item_id, json_type, missing_parameter, parse_body, parse_page_query,
                        server_error, shown)
from tests.data.golden import ODD_TEXT, SURROGATE, dechunk


def no_breath():
    """A breathe() that does not sleep."""


def outcome(data, breathe=None):
    """What parse_body makes of bytes: the dict, or the ApiError's message."""
    try:
        return parse_body(data, breathe)
    except ApiError as error:
        return error.message


# ---- bodies -----------------------------------------------------------------------------------

class ParseBodyTest(unittest.TestCase):

    def assert_refused(self, data):
        for breathe in (None, no_breath):
            with self.assertRaises(ApiError) as caught:
                parse_body(data, breathe)
            error = caught.exception
            self.assertEqual((error.status, error.type, error.param, error.code),
                             (400, "invalid_request_error", None, None))
            self.assertLess(len(error.message), 250)

    def test_what_is_no_json_object_is_refused(self):
        for data in (b"", b" ", b"{", b"}", b"[]", b"[{}]", b"null", b"true", b'"x"', b"5", b"{}{}", b"{} x",
                     b"{'a':1}", b'{"a":1,}', b'{"a" 1}', b'{a:1}', b'{"a":}', b'{"a":01}', b'{"a":+1}',
                     b'{"a":.5}', b'{"a":"\n"}', b'{"a":"\\x"}', b'{"a":tru}', b'\xef\xbb\xbf{}'):
            with self.subTest(data=data):
                self.assert_refused(data)

    def test_nan_and_infinity_are_refused_at_any_depth(self):
        for name in (b"NaN", b"Infinity", b"-Infinity"):
            for data in (b'{"a":%s}', b'{"a":[1,{"b":%s}]}'):
                with self.subTest(data=data % name):
                    self.assert_refused(data % name)
                    self.assert_refused(b'{"x":"%s",%s' % (b"y" * PIECEWISE_BYTES, (data % name)[1:]))

    def test_bytes_that_are_no_utf8_are_refused(self):
        for data in (b'{"a":"\xff"}', b'{"a":"\xc3"}', b'{"a":"\xed\xa0\x80"}', b'{"a":"\xc0\x80"}',
                     '{"a":1}'.encode("utf-16")):
            with self.subTest(data=data):
                self.assert_refused(data)

    def test_a_hundred_thousand_brackets_are_refused(self):
        for opening in (b"[", b'{"a":', b'[{"a":'):
            for data in (opening * 100000, b'{"a":' + opening * 100000,
                         b'{"a":[' + opening * 100000 + b"1"):
                with self.subTest(data=data[:12]):
                    self.assert_refused(data)

    def test_a_closed_nest_of_brackets_is_refused_or_read_but_never_crashes(self):
        self.assert_refused(b'{"a":' + b"[" * 100000 + b"]" * 100000 + b"}")

    def test_the_last_of_equal_keys_counts(self):
        filler = b'"x":"%s"' % (b"y" * PIECEWISE_BYTES)
        for data in (b'{"a":1,"a":2}', b'{"a":1,%s,"a":2}' % filler, b'{"a":[1],%s,"a":2}' % filler):
            with self.subTest(length=len(data)):
                self.assertEqual(parse_body(data, no_breath)["a"], 2)

    def test_white_space_around_is_fine(self):
        self.assertEqual(parse_body(b' \r\n\t{ "a" : [ 1 , 2 ] } \n'), {"a": [1, 2]})

    def test_big_integers_stay_exact(self):
        self.assertEqual(parse_body(b'{"a":%d}' % (10 ** 40 + 1)), {"a": 10 ** 40 + 1})

    def test_a_number_that_no_float_can_hold_is_refused(self):
        # it decodes to infinity, which no answer may repeat: it is not JSON
        for number in (b"1e999", b"-1e999", b"1" + b"0" * 400 + b".5"):
            with self.subTest(number=number[:10]):
                self.assert_refused(b'{"a":%s}' % number)

    def test_integers_too_long_for_the_interpreter_are_refused_or_exact(self):
        found = outcome(b'{"a":' + b"9" * 20000 + b"}")
        self.assertTrue(isinstance(found, str) or found == {"a": 10 ** 20000 - 1})

    def test_half_a_surrogate_pair_is_read(self):
        self.assertEqual(parse_body(b'{"a":"\\ud83d"}'), {"a": "\ud83d"})


class PiecewiseTest(unittest.TestCase):
    """Any text over the bound, decoded in pieces, gives what json.loads gives, errors as well."""

    def assert_alike(self, data):
        """Both ways give the same; a dangling comma is told of in the interpreter's own words (3.13)."""
        found, expected = outcome(data, no_breath), outcome(data)
        if isinstance(expected, str) and "trailing comma" in expected:
            self.assertIsInstance(found, str)
        else:
            self.assertEqual(found, expected)
        return expected

    def document(self, draw, depth=0):
        kind = draw.randrange(4 if depth > 3 else 8)
        if kind == 0:
            return draw.choice((None, True, False, 0, -1, 1.5, 1e-9, 10 ** 25, draw.randrange(10 ** 9)))
        if kind < 4:
            return "".join(draw.choice("ab \"\\\n\u00fc\U0001f600\ud83d,:[]{}") for _ in range(draw.randrange(30)))
        if kind < 6:
            return [self.document(draw, depth + 1) for _ in range(draw.randrange(6))]
        return {self.document_key(draw): self.document(draw, depth + 1) for _ in range(draw.randrange(6))}

    def document_key(self, draw):
        return "".join(draw.choice("abc\"\u00e9") for _ in range(draw.randrange(6)))

    def big_document(self, draw):
        value = {}
        while len(json.dumps(value)) <= PIECEWISE_BYTES:
            value[self.document_key(draw) + str(len(value))] = [self.document(draw) for _ in range(60)] \
                if draw.random() < 0.7 else self.document(draw)
        return value

    def test_random_documents_decode_alike(self):
        draw = random.Random(2)
        for number in range(25):
            value = self.big_document(draw)
            data = json.dumps(value, ensure_ascii=True, indent=draw.choice((None, None, 1)),
                              separators=draw.choice(((",", ":"), (" , ", " :\t")))).encode()
            with self.subTest(number=number):
                self.assertEqual(parse_body(data, no_breath), json.loads(data))

    def test_random_damage_gives_the_same_error(self):
        draw = random.Random(3)
        documents = [json.dumps(self.big_document(draw)) for _ in range(5)]
        refused = 0
        for number in range(300):
            text = draw.choice(documents)
            at = draw.randrange(len(text))
            if draw.random() < 0.3:
                text = text[:at]
            else:
                text = text[:at] + draw.choice("{}[],:\"\\ x1-\n") + text[at + draw.randrange(3):]
            data = text.encode()
            with self.subTest(number=number, at=at):
                refused += isinstance(self.assert_alike(data), str) and len(data) > PIECEWISE_BYTES
        self.assertGreater(refused, 100)

    def test_damage_at_every_place_of_the_structure_gives_the_same_error(self):
        for cut in ("", "[", "]", "{", "}", ",", ":", '"', "1", " ", "nul"):
            for text in ('{"a"%s:[1,2],"b":3%%s}', '{"a":%s[1,2],"b":3%%s}', '{"a":[%s1,2],"b":3%%s}',
                         '{"a":[1%s,2],"b":3%%s}', '{"a":[1,%s2],"b":3%%s}', '{"a":[1,2]%s,"b":3%%s}',
                         '{"a":[1,2],%s"b":3%%s}', '{%s"a":[1,2],"b":3%%s}', '%s{"a":[1,2],"b":3%%s}',
                         '{"a":[1,2],"b":3%%s}%s', '{"a":[%s],"b":3%%s}', '{"a":[1,2],"b":%s%%s}'):
                filled = (text % cut) % (',"c":"%s"' % ("x" * PIECEWISE_BYTES))
                with self.subTest(text=text % cut):
                    self.assert_alike(filled.encode())

    def test_it_breathes_between_the_elements_of_a_big_array(self):
        breaths = []
        data = json.dumps({"messages": [{"content": "x" * 100}] * 300}).encode()
        parse_body(data, lambda: breaths.append(1))
        self.assertGreaterEqual(len(breaths), 300)

    def test_small_bodies_are_decoded_at_once(self):
        breaths = []
        parse_body(b'{"messages":[1,2,3]}', lambda: breaths.append(1))
        self.assertEqual(breaths, [])


# ---- errors and texts -------------------------------------------------------------------------

class ErrorTest(unittest.TestCase):

    def test_the_envelope_has_all_four_keys(self):
        self.assertEqual(json.loads(ApiError(400, "m").envelope()), {"error": {
            "message": "m", "type": "invalid_request_error", "param": None, "code": None}})
        self.assertEqual(json.loads(missing_parameter("model").envelope()), {"error": {
            "message": "Missing required parameter: 'model'.", "type": "invalid_request_error",
            "param": "model", "code": "missing_required_parameter"}})

    def test_a_server_error_tells_no_cause(self):
        error = server_error()
        self.assertEqual((error.status, error.type, error.code, error.param), (500, "server_error", None, None))

    def test_each_error_has_headers_of_its_own(self):
        first, second = ApiError(429, "m", headers=[("retry-after", "1")]), ApiError(429, "m")
        first.headers.append(("x", "y"))
        self.assertEqual(second.headers, [])

    def test_types_are_called_as_json_calls_them(self):
        for value, name in (({}, "an object"), ([], "an array"), ("", "a string"), (True, "a boolean"),
                            (1, "an integer"), (1.0, "a number"), (None, "null")):
            with self.subTest(value=value):
                self.assertEqual(json_type(value), name)
                self.assertIn("got %s instead" % name, invalid_type("x", "y", value).message)

    def test_a_shown_value_is_short_ascii_on_one_line(self):
        for value in ("x" * 500, "a\nb\x00", ODD_TEXT, SURROGATE, {"a": ["\n"] * 100}, 10 ** 200, None):
            with self.subTest(value=str(value)[:20].encode("ascii", "replace")):
                text = shown(value)
                self.assertLessEqual(len(text.replace("\\", "")), 600)
                self.assertTrue(text.isascii() and text.isprintable())


class JsonTextTest(unittest.TestCase):

    def test_what_is_dumped_is_ascii_and_loads_again(self):
        for text in (ODD_TEXT, SURROGATE, "", "\\", '"', "\udc00\ud800"):
            with self.subTest(text=ascii(text)):
                self.assertEqual(json.loads(dump_json({"a": text})), {"a": text})
                self.assertEqual(json.loads(b'"%s"' % escape_json(text)), text)
                self.assertTrue(dump_json(text).isascii())

    def test_content_text_joins_the_texts_of_parts(self):
        for content, text in (("a", "a"), (None, ""), ([], ""), ("", ""),
                              ([{"type": "text", "text": "a"}, {"type": "image_url", "image_url": {}},
                                {"type": "refusal", "refusal": "b"}], "ab"),
                              ([{"type": "text", "text": None}, {"text": 5}], "")):
            with self.subTest(content=content):
                self.assertEqual(content_text(content), text)


# ---- checks -----------------------------------------------------------------------------------

class CheckTest(unittest.TestCase):

    def code(self, check, value, path="x"):
        """The code of the refusal, or None when the value passes."""
        try:
            check(value, path)
        except ApiError as error:
            self.assertEqual((error.status, error.type), (400, "invalid_request_error"))
            self.assertTrue(error.param.startswith(path))
            return error.code
        return None

    def test_integers_are_no_booleans_floats_or_strings(self):
        check = check_integer(0, 10)
        for value, code in ((0, None), (10, None), (-1, "integer_below_min_value"),
                            (11, "integer_above_max_value"), (10 ** 100, "integer_above_max_value"),
                            (True, "invalid_type"), (False, "invalid_type"), (1.0, "invalid_type"),
                            (1.5, "invalid_type"), ("1", "invalid_type"), ([], "invalid_type"), ({}, "invalid_type")):
            with self.subTest(value=value):
                self.assertEqual(self.code(check, value), code)

    def test_numbers_are_integers_or_floats(self):
        check = check_number(0, 2)
        for value, code in ((0, None), (2, None), (1.5, None), (2.01, "decimal_above_max_value"),
                            (-0.01, "decimal_below_min_value"), (True, "invalid_type"), ("1", "invalid_type"),
                            (float("inf"), "decimal_above_max_value"), (10 ** 400, "decimal_above_max_value")):
            with self.subTest(value=value):
                self.assertEqual(self.code(check, value), code)

    def test_strings_have_bounds_in_characters(self):
        for check, value, code in ((check_string(), "", None), (check_string(empty=False), "", "empty_string"),
                                   (check_string(3), "\U0001f600" * 3, None),
                                   (check_string(3), "abcd", "string_above_max_length"),
                                   (check_string(), 5, "invalid_type"), (check_string(), None, "invalid_type")):
            with self.subTest(value=value):
                self.assertEqual(self.code(check, value), code)

    def test_arrays_have_bounds_and_checked_elements(self):
        for check, value, code in ((check_array(), [], None), (check_array(low=1), [], "empty_array"),
                                   (check_array(high=2), [1, 2, 3], "array_above_max_length"),
                                   (check_array(check_boolean), [True, 1], "invalid_type"),
                                   (check_array(), {}, "invalid_type"), (check_array(), "ab", "invalid_type")):
            with self.subTest(value=value):
                self.assertEqual(self.code(check, value), code)

    def test_an_elements_path_has_its_index(self):
        with self.assertRaises(ApiError) as caught:
            check_array(check_boolean)([True, True, "x"], "list")
        self.assertEqual(caught.exception.param, "list[2]")

    def test_enums_take_their_strings_only(self):
        check = check_enum("a", "b")
        for value, code in (("a", None), ("c", "invalid_value"), ("", "invalid_value"), (5, "invalid_type"),
                            (["a"], "invalid_type"), ({}, "invalid_type"), (True, "invalid_type")):
            with self.subTest(value=value):
                self.assertEqual(self.code(check, value), code)

    def test_metadata_has_its_limits(self):
        for value, code in (({}, None), ({"k" * 64: "v" * 512}, None), ({"k" * 65: ""}, "string_above_max_length"),
                            ({"k": "v" * 513}, "string_above_max_length"), ({"k": 1}, "invalid_type"),
                            ({"k": None}, "invalid_type"), ([], "invalid_type"),
                            ({str(n): "" for n in range(16)}, None),
                            ({str(n): "" for n in range(17)}, "object_above_max_properties")):
            with self.subTest(value=str(value)[:30]):
                self.assertEqual(self.code(check_metadata, value), code)

    def test_unknown_fields_are_named_and_nulls_are_not_given(self):
        table = {"a": check_boolean, "b": check_boolean}
        self.assertEqual(tuple(check_fields({"z": 1, "a": True, "b": None, "y": None, "x": 2}, table)), ("z", "x"))


# ---- ids, frames, pages -----------------------------------------------------------------------

class IdsTest(unittest.TestCase):

    def test_tails_are_32_hex_digits_and_never_repeat(self):
        ids = Ids()
        tails = [ids.tail() for _ in range(2000)]
        self.assertEqual(len(set(tails)), 2000)
        for tail in tails:
            self.assertRegex(tail, r"\A[0-9a-f]{32}\Z")

    def test_fixed_ids_count_up_from_one(self):
        ids = Ids(fixed=True)
        self.assertEqual([ids.tail(), ids.tail()], ["%032x" % 1, "%032x" % 2])
        self.assertEqual(ids.created(), FIXED_CREATED)

    def test_created_is_whole_wall_seconds(self):
        self.assertEqual(Ids(wall=lambda: 1700000000.9).created(), 1700000000)

    def test_an_items_id_holds_its_responses_tail(self):
        self.assertEqual(item_id("msg_", "ab" * 16, 10), "msg_" + "ab" * 16 + "0a")
        self.assertEqual(item_id("msg_", "ab" * 16, 300), "msg_" + "ab" * 16 + "12c")


class FrameTest(unittest.TestCase):

    def test_chunks_of_any_size_are_framed_right(self):
        for size in (1, 9, 15, 16, 255, 256, 1023, 1024, 1025, 70000):
            with self.subTest(size=size):
                self.assertEqual(dechunk(chunked_bytes(b"x" * size)), b"x" * size)

    def test_ready_frames_end_in_a_blank_line(self):
        self.assertEqual(SSE_DONE, b"data: [DONE]\n\n")
        self.assertTrue(SSE_HEARTBEAT.startswith(b":") and SSE_HEARTBEAT.endswith(b"\n\n"))


class PageTest(unittest.TestCase):

    ITEMS = [{"id": "i%d" % number} for number in range(5)]

    def page(self, limit=20, after=None, items=None):
        page = build_page(self.ITEMS if items is None else items, limit, after)
        self.assertEqual(page["object"], "list")
        return ([item["id"] for item in page["data"]], page["first_id"], page["last_id"], page["has_more"])

    def test_pages_hold_as_many_as_asked_for_and_say_whether_more_follow(self):
        for limit, after, ids, more in ((2, None, ["i0", "i1"], True), (5, None, ["i0", "i1", "i2", "i3", "i4"], False),
                                        (2, "i1", ["i2", "i3"], True), (2, "i2", ["i3", "i4"], False),
                                        (100, "i3", ["i4"], False)):
            with self.subTest(limit=limit, after=after):
                self.assertEqual(self.page(limit, after), (ids, ids[0], ids[-1], more))

    def test_an_empty_page_has_null_ids(self):
        for items, after in (([], None), (self.ITEMS, "i4")):
            with self.subTest(after=after):
                self.assertEqual(self.page(20, after, items), ([], None, None, False))

    def test_an_unknown_after_is_refused(self):
        with self.assertRaises(ApiError) as caught:
            self.page(2, "nope")
        self.assertEqual((caught.exception.status, caught.exception.param, caught.exception.code),
                         (400, "after", "invalid_value"))

    def test_only_what_a_page_needs_is_taken_from_its_source(self):
        taken = []

        def source():
            for item in self.ITEMS:
                taken.append(item["id"])
                yield item
        self.page(2, None, source())
        self.assertEqual(taken, ["i0", "i1", "i2"])

    def test_a_query_is_read_with_its_defaults(self):
        self.assertEqual(parse_page_query({}, "desc"), (20, "desc", None))
        self.assertEqual(parse_page_query({"limit": ["5"], "order": ["asc"], "after": ["x"]}, "desc"), (5, "asc", "x"))

    def test_a_bad_query_is_refused(self):
        for query, param, code in (({"limit": ["0"]}, "limit", "integer_below_min_value"),
                                   ({"limit": ["101"]}, "limit", "integer_above_max_value"),
                                   ({"limit": ["-5"]}, "limit", "integer_below_min_value"),
                                   ({"limit": ["x"]}, "limit", "invalid_type"),
                                   ({"limit": [""]}, "limit", "invalid_type"),
                                   ({"limit": ["1.5"]}, "limit", "invalid_type"),
                                   ({"limit": ["1_0"]}, "limit", "invalid_type"),
                                   ({"order": ["up"]}, "order", "invalid_value"),
                                   ({"order": [""]}, "order", "invalid_value")):
            with self.subTest(query=query):
                with self.assertRaises(ApiError) as caught:
                    parse_page_query(query, "desc")
                self.assertEqual((caught.exception.status, caught.exception.param, caught.exception.code),
                                 (400, param, code))


if __name__ == "__main__":
    unittest.main()
