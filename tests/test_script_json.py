"""JSON with comments: it reads what json.loads reads, allows what people write, and knows where it stands."""
import json
import random
import unittest

from backends.script_json import SCRIPT_MOST_DEPTH, ScriptSyntaxError, parse_script_json

SPACES = ("", " ", "\n", "\t ", "\r\n", " // a comment, { \" ]\n", "/* another: [ */", "/**/", "/* * // **/", "\n//\n")
TEXTS = ("", "a", "//", "/* */", "\"", "\\", "\n\t\x00", "h\u00e4user", "\U0001f600", "\ud83d", "{}[],:", "a" * 50)


def draw_value(draw, depth=0):
    """Any value of JSON."""
    kind = draw.randrange(8 if depth < 5 else 5)
    if kind == 0:
        return draw.choice((True, False, None))
    if kind == 1:
        return draw.choice((0, -1, 7, 10 ** 20, -123456789, draw.randrange(1000000)))
    if kind == 2:
        return draw.choice((0.5, -1.25e-10, 1e300, 3.0, draw.random()))
    if kind < 5:
        return draw.choice(TEXTS)
    if kind < 7:
        return [draw_value(draw, depth + 1) for _ in range(draw.randrange(4))]
    return {draw.choice(TEXTS) + str(number): draw_value(draw, depth + 1) for number in range(draw.randrange(4))}


def spell(draw, value, comments):
    """JSON text of a value, with white space (and comments, and trailing commas) thrown in."""
    def space():
        return draw.choice(SPACES if comments else SPACES[:5])

    def end():
        return draw.choice(("", "," + space())) if comments else ""
    if value.__class__ is list:
        parts = [space() + spell(draw, each, comments) + space() for each in value]
        return "[%s%s%s]" % (",".join(parts), space(), end() if parts else "")
    if value.__class__ is dict:
        parts = ["%s%s%s:%s%s%s" % (space(), json.dumps(key), space(), space(), spell(draw, each, comments), space())
                 for key, each in value.items()]
        return "{%s%s%s}" % (",".join(parts), space(), end() if parts else "")
    return json.dumps(value, ensure_ascii=draw.random() < 0.5)


def paths_of(value, path=()):
    """All paths of a value."""
    found = {path}
    pairs = value.items() if value.__class__ is dict else enumerate(value) if value.__class__ is list else ()
    for key, each in pairs:
        found |= paths_of(each, path + (key,))
    return found


class ValueTest(unittest.TestCase):

    def test_plain_json_is_read_as_json_loads_reads_it(self):
        draw = random.Random(8)
        for number in range(600):
            text = spell(draw, draw_value(draw), False)
            if repr(parse_script_json(text)[0]) != repr(json.loads(text)):
                self.fail("number %d: %r" % (number, text))

    def test_comments_and_trailing_commas_change_no_value(self):
        draw = random.Random(9)
        for number in range(600):
            value = draw_value(draw)
            text = draw.choice(SPACES) + spell(draw, value, True) + draw.choice(SPACES)
            if repr(parse_script_json(text)[0]) != repr(value):
                self.fail("number %d: %r" % (number, text))

    def test_what_json_loads_refuses_is_refused_unless_it_is_a_comment_or_a_comma(self):
        draw = random.Random(10)
        refused = 0
        for _ in range(3000):
            text = spell(draw, draw_value(draw), False)
            at = draw.randrange(len(text) + 1)
            text = text[:at] + draw.choice(("", "}", "]", ":", "1", "\"", "x", "-", ".", "e", "\\")) + text[at + 1:]
            try:
                expected = json.loads(text, parse_constant=lambda name: 1 / 0,
                                      parse_float=lambda text: float(text) if abs(float(text)) < 1e308 else 1 / 0)
            except (ValueError, ZeroDivisionError):
                try:
                    parse_script_json(text)
                except ScriptSyntaxError:
                    refused += 1
                else:
                    self.assertRegex(text, r",\s*[\]}]|//|/\*", "only commas and comments are more than JSON here")
            else:
                self.assertEqual(repr(parse_script_json(text)[0]), repr(expected), text)
        self.assertGreater(refused, 500)

    def test_a_byte_order_mark_is_no_part_of_it(self):
        self.assertEqual(parse_script_json("\ufeff[1]")[0], [1])


class PlacesTest(unittest.TestCase):

    def test_every_key_and_element_has_the_line_that_it_stands_on(self):
        text = '{\n "a": [1,\n  {"b": 2}, /* two\nlines */ 3],\n\n // "c": 4,\n "d":\n  5}'
        self.assertEqual(parse_script_json(text)[1], {
            (): 1, ("a",): 2, ("a", 0): 2, ("a", 1): 3, ("a", 1, "b"): 3, ("a", 2): 4, ("d",): 7})

    def test_every_path_has_a_line(self):
        draw = random.Random(11)
        for _ in range(100):
            value = draw_value(draw)
            text = spell(draw, value, True)
            places = parse_script_json(text)[1]
            self.assertEqual(set(places), paths_of(value))
            self.assertLessEqual(max(places.values()), text.count("\n") + 1)

    def test_a_key_that_comes_twice_is_told_and_the_last_counts(self):
        value, _, repeats = parse_script_json('{"a": {"b": 1, "b": 2}, "c": 0}')
        self.assertEqual((value, repeats), ({"a": {"b": 2}, "c": 0}, [("a", "b")]))


class SyntaxTest(unittest.TestCase):

    CASES = [
        ("", 1, 1), ("\n\n ", 3, 2), ("[1,\n 2", 2, 3), ("[1 2]", 1, 4), ("[,]", 1, 2), ("{,}", 1, 2),
        ('{"a" 1}', 1, 6), ('{"a": 1,\n b: 2}', 2, 2), ("{'a': 1}", 1, 2), ("['a']", 1, 2), ("[01]", 1, 2),
        ("[1.]", 1, 2), ("[.5]", 1, 2), ("[+1]", 1, 2), ("[NaN]", 1, 2), ("[Infinity]", 1, 2), ("[truex]", 1, 2),
        ("[True]", 1, 2), ("[1] 2", 1, 5), ("/* never\nends", 1, 1), ("[1]/", 1, 4), ('["a\nb"]', 1, 4),
        ('["\\q"]', 1, 3), ('["abc', 1, 2), ("[1e999]", 1, 2), ("[%s]" % ("1" * 400), 1, 2),
    ]

    def test_every_fault_has_its_line_and_column(self):
        for text, line, column in self.CASES:
            with self.subTest(text=text[:20]):
                with self.assertRaises(ScriptSyntaxError) as caught:
                    parse_script_json(text)
                self.assertEqual((caught.exception.line, caught.exception.column), (line, column), caught.exception)
                self.assertTrue(str(caught.exception))

    def test_deep_nesting_is_a_mistake_and_no_recursion_error(self):
        parse_script_json("[" * SCRIPT_MOST_DEPTH + "]" * SCRIPT_MOST_DEPTH)
        for text in ("[" * 5000, '{"a":' * 5000):
            with self.assertRaises(ScriptSyntaxError):
                parse_script_json(text)

    def test_any_text_is_read_or_refused_with_a_place(self):
        draw = random.Random(12)
        alphabet = '{}[]",:/*\\ \n01.e-tfn"a\u00e4'
        for _ in range(3000):
            text = "".join(draw.choice(alphabet) for _ in range(draw.randrange(30)))
            try:
                parse_script_json(text)
            except ScriptSyntaxError as exc:
                self.assertTrue(1 <= exc.line <= text.count("\n") + 1 and exc.column >= 1, text)


if __name__ == "__main__":
    unittest.main()
