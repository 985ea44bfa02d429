"""Reading scripts: every mistake with its file, line and key; regexes that may hang; aimock's fixtures."""
import json
import random
import re
import time
import unittest

from backends.schema_regex import PatternError
from backends.script_book import RuleBook
from backends.script_check import ScriptMistakes
from backends.script_match import TextCondition, follow_path, read_json_path
from backends.script_regex import REGEX_TEXT_CHARS, ScriptRegex, unsafe_regex
from backends.script_rules import read_script


def mistakes_of(text):
    """[(line, key, message)] of a script."""
    try:
        read_script(text, "rules.json")
    except ScriptMistakes as exc:
        return [(each.line, each.key, each.message) for each in exc.mistakes]
    return []


def rule(**values):
    """The text of a script of one good rule, changed."""
    return json.dumps([dict({"match": {"model": "m"}, "reply": "Hi."}, **values)])


class MistakesTest(unittest.TestCase):

    def test_all_mistakes_are_told_with_line_and_key(self):
        text = """// a script
{
  "rules": [
    {"name": "good", "match": {"model": "m"}, "reply": "Hi."},
    {"name": "good",
     "match": {"modle": "m",
               "turn": "first",
               "last_user_text": {"regex": "("}},
     "reply": {"txt": "Hi."},
     "times": 0},
    7,
    {"reply": "{{nobody}}"}
  ]
}"""
        with self.assertRaises(ScriptMistakes) as caught:
            read_script(text, "dir/rules.json")
        told = str(caught.exception).split("\n")
        self.assertEqual(len(told), len(caught.exception.mistakes))
        for start, words in (
                ("dir/rules.json:6: rules[1].match.modle: ", "perhaps meant 'model'"),
                ("dir/rules.json:7: rules[1].match.turn: ", "integer"),
                ("dir/rules.json:8: rules[1].match.last_user_text.regex: ", "missing"),
                ("dir/rules.json:9: rules[1].reply.txt: ", "perhaps meant 'text'"),
                ("dir/rules.json:10: rules[1].times: ", "1 or more"),
                ("dir/rules.json:11: rules[2]: ", "is an object"),
                ("dir/rules.json:12: rules[3].reply.text: ", "unknown name '{{nobody}}'")):
            with self.subTest(start=start):
                found = [line for line in told if line.startswith(start)]
                self.assertEqual(len(found), 1, told)
                self.assertIn(words, found[0])
        self.assertEqual(len(told), 7)

    def test_syntax_is_told_with_line_and_column(self):
        (line, key, message), = mistakes_of('[\n {"reply": "a"\n "match": {}}]')
        self.assertEqual((line, key), (3, ""))
        self.assertIn("column 2", message)

    # (change of a good rule, key of the mistake)
    CASES = [
        ({"name": 5}, "name"), ({"name": ""}, "name"), ({"name": "x" * 201}, "name"), ({"match": []}, "match"),
        ({"match": {"model": 5}}, "match.model"), ({"match": {"model": []}}, "match.model"),
        ({"match": {"model": {}}}, "match.model"), ({"match": {"model": {"case": False}}}, "match.model"),
        ({"match": {"model": {"contains": 5}}}, "match.model.contains"),
        ({"match": {"model": {"contains": []}}}, "match.model.contains"),
        ({"match": {"model": {"equal": None}}}, "match.model.equal"),
        ({"match": {"model": {"glob": "a", "case": 1}}}, "match.model.case"),
        ({"match": {"model": {"not": {"equals": "a"}}}}, "match.model.not.equals"),
        ({"match": {"model": {"not": "a", "equal": "b"}}}, "match.model.not"),
        ({"match": {"model": ["a", 5]}}, "match.model[1]"),
        ({"match": {"endpoint": "chats"}}, "match.endpoint"), ({"match": {"endpoint": ["chat", 1]}},
            "match.endpoint[1]"),
        ({"match": {"format": "json"}}, "match.format"), ({"match": {"stream": 1}}, "match.stream"),
        ({"match": {"images": "yes"}}, "match.images"), ({"match": {"turn": 1.5}}, "match.turn"),
        ({"match": {"turn": True}}, "match.turn"), ({"match": {"turn": {}}}, "match.turn"),
        ({"match": {"turn": {"min": "1"}}}, "match.turn.min"), ({"match": {"turn": {"min": 3, "max": 1}}}, "match.turn"), ({"match": {"matched": {"least": 1}}},
            "match.matched.least"),
        ({"match": {"metadata": {}}}, "match.metadata"), ({"match": {"metadata": "a"}}, "match.metadata"),
        ({"match": {"metadata": {"a": 1}}}, "match.metadata.a"), ({"match": {"header": {"x-a": {}}}},
            "match.header.x-a"),
        ({"match": {"tools": {"all": []}}}, "match.tools.all"), ({"match": {"tools": {"all": [1]}}},
            "match.tools.all[0]"),
        ({"match": {"tool_result": {}}}, "match.tool_result"), ({"match": {"tool_result": []}}, "match.tool_result"),
        ({"match": {"tool_result": {"path": 5}}}, "match.tool_result.path"),
        ({"match": {"tool_result": {"path": "a..b"}}}, "match.tool_result.path"),
        ({"match": {"tool_result": {"equal": 5}}}, "match.tool_result.equal"),
        ({"match": {"tool_result": {"path": "a", "equal": 5, "contains": "x"}}}, "match.tool_result.equal"),
        ({"match": {"tool_result": {"tool": 5}}}, "match.tool_result.tool"),
        ({"match": {"last_user_text": {"regex": "(a+)+$"}}}, "match.last_user_text.regex"),
        ({"match": {"last_user_text": {"regex": "a" * 2001}}}, "match.last_user_text.regex"),
        ({"reply": 5}, "reply"), ({"reply": {}}, "reply"), ({"reply": {"text": 5}}, "reply.text"),
        ({"reply": {"text": []}}, "reply.text"), ({"reply": {"text": ["a", 5]}}, "reply.text[1]"),
        ({"reply": {"pieces": "ab"}}, "reply.pieces"), ({"reply": {"text": "a", "json": 1}}, "reply.json"),
        ({"reply": {"text": "a", "refusal": "b"}}, "reply.refusal"),
        ({"reply": {"text": "a", "items": ["b"]}}, "reply.text"), ({"reply": {"items": []}}, "reply.items"),
        ({"reply": {"items": [5]}}, "reply.items[0]"), ({"reply": {"items": [{}]}}, "reply.items[0]"),
        ({"reply": {"items": [{"text": "a", "json": 1}]}}, "reply.items[0]"),
        ({"reply": {"items": [{"image": "a"}]}}, "reply.items[0].image"),
        ({"reply": {"items": [{"item": {"type": "web"}}]}}, "reply.items[0].item.type"),
        ({"reply": {"items": [{"item": {"type": []}}]}}, "reply.items[0].item.type"),
        ({"reply": {"items": [{"item": {"type": "web_search_call"}}]}}, "reply.items[0].item"),
        ({"reply": {"items": [{"item": {"type": "mcp_call", "server_label": "a", "name": "b", "arguments": {}}}]}},
         "reply.items[0].item.arguments"),
        ({"reply": {"items": [{"item": {"type": "computer_call"}}]}}, "reply.items[0].item"),
        ({"reply": {"items": [{"item": {"type": "file_search_call", "queries": [], "id": "x"}}]}},
         "reply.items[0].item.id"),
        ({"reply": {"reasoning": {}}}, "reply.reasoning"), ({"reply": {"reasoning": {"text": "a", "summary": "b"}}},
                                                           "reply.reasoning"),
        ({"reply": {"tool_calls": []}}, "reply.tool_calls"), ({"reply": {"tool_calls": [{}]}}, "reply.tool_calls[0]"),
        ({"reply": {"tool_calls": [{"name": "f", "arguments": 5}]}}, "reply.tool_calls[0].arguments"),
        ({"reply": {"tool_calls": [{"name": "f", "arguments": {}, "input": "x"}]}}, "reply.tool_calls[0].input"),
        ({"reply": {"tool_calls": [{"name": "f", "input": {}}]}}, "reply.tool_calls[0].input"),
        ({"reply": {"tool_calls": [{"name": "f", "id": 5}]}}, "reply.tool_calls[0].id"),
        ({"reply": {"text": "a", "annotations": [{}]}}, "reply.annotations"),
        ({"reply": {"refusal": "a", "annotations": []}}, "reply.annotations"),
        ({"reply": {"text": "a", "usage": {"tokens": 1}}}, "reply.usage.tokens"),
        ({"reply": {"text": "a", "usage": {"prompt_tokens": -1}}}, "reply.usage.prompt_tokens"),
        ({"reply": {"text": "a", "usage": {"prompt_tokens": 1.5}}}, "reply.usage.prompt_tokens"),
        ({"reply": {"text": "a", "usage": 5}}, "reply.usage"), ({"reply": {"text": "a", "finish": "end"}},
            "reply.finish"),
        ({"reply": {"text": "a", "ttft_ms": -1}}, "reply.ttft_ms"), ({"reply": {"text": "a", "itl_ms": "5"}},
            "reply.itl_ms"),
        ({"reply": {"text": "a", "id": 5}}, "reply.id"), ({"reply": {"text": "a", "created": "now"}}, "reply.created"),
        ({"reply": {"text": "a", "template": 1}}, "reply.template"),
        ({"reply": {"fault": "cut", "ttft_ms": 5}}, "reply.ttft_ms"), ({"times": 1.5}, "times"),
        ({"times": True}, "times"),
        ({"then": "stop"}, "then"), ({"replies": ["a"]}, "replies"),
    ]

    def test_each_kind_of_mistake_names_its_key(self):
        for change, key in self.CASES:
            with self.subTest(change=change):
                found = mistakes_of(rule(**change))
                self.assertEqual([each[1] for each in found], ["[0]." + key], found)
                self.assertTrue(found[0][0] == 1 and found[0][2])

    def test_replies_are_a_list_of_replies(self):
        for value, key in (([], "[0].replies"), ("a", "[0].replies"), (["a", 5], "[0].replies[1]"),
                           (["a", {"txt": "b"}], "[0].replies[1].txt")):
            with self.subTest(value=value):
                self.assertIn(key, [each[1] for each in mistakes_of(json.dumps([{"replies": value}]))])
        self.assertEqual([each[1] for each in mistakes_of("[{}]")], ["[0]"])

    def test_a_script_is_an_array_or_an_object_with_one(self):
        for text in ("5", '"a"', "{}", '{"rules": {}}', '{"rules": [], "rule": 1}', "null"):
            with self.subTest(text=text):
                self.assertEqual(len(mistakes_of(text)), 1)
        for text in ("[]", '{"rules": []}', '{"reply": "a"}', '[{"reply": "a"}]'):
            with self.subTest(text=text):
                self.assertEqual(mistakes_of(text), [])

    def test_a_key_that_comes_twice_is_a_mistake(self):
        (line, key, _), = mistakes_of('[{"reply": "a",\n "reply": "b"}]')
        self.assertEqual((line, key), (2, "[0].reply"))

    def test_templates_are_checked(self):
        good = ("{{last_user_text}}", "{{ model }}", "{{turn}} {{call}} {{rule}}", "{{header.x-run}}",
                "{{metadata.a b}}",
                "{{tool_result}}", "{{tool_result.a[0].b}}", "{{match.0}} {{match.1}} {{match.city}}",
                "{{last_user_text|json}}", "{{ system | json }}", "no {braces}", "{{", "}} {{ {")
        bad = ("{{}}", "{{ }}", "{{user}}", "{{match.2}}", "{{match.town}}", "{{match}}", "{{header}}", "{{header.}}",
               "{{header.Authorization}}", "{{header.cookie}}", "{{metadata}}", "{{tool_result.}}",
               "{{tool_result.a..b}}",
               "{{model|upper}}", "{{model.x}}", "{{__class__}}", "{{1+1}}")
        match = {"last_user_text": {"regex": "in (?P<city>\\w+)"}}
        for text in good:
            with self.subTest(good=text):
                self.assertEqual(mistakes_of(rule(match=match, reply=text)), [])
        for text in bad:
            with self.subTest(bad=text):
                self.assertEqual([each[1] for each in mistakes_of(rule(match=match, reply=text))], ["[0].reply.text"])
                self.assertEqual(mistakes_of(rule(match=match, reply={"text": text, "template": False})), [])
        self.assertEqual([each[1] for each in mistakes_of(rule(reply="{{match.1}}"))], ["[0].reply.text"])
        places = [each[1] for each in mistakes_of(rule(reply={"json": {"a": ["{{b}}"]}, "id": "{{c}}", "tool_calls": [
            {"name": "f", "arguments": {"d": "{{e}}"}, "id": "{{g}}"}]}))]
        self.assertEqual(sorted(places), ["[0].reply.id", "[0].reply.json.a[0]", "[0].reply.tool_calls[0].arguments.d",
                                          "[0].reply.tool_calls[0].id"])

    def test_warnings_are_no_mistakes(self):
        rules, warnings = read_script("""[
            {"match": {"format": "json_schema"}, "reply": "no JSON"},
            {"reply": {"tool_calls": [{"name": "f", "arguments": "{broken"}]}},
            {"reply": "never"}]""", "r.json")
        self.assertEqual(len(rules), 3)
        self.assertEqual([(each.line, each.key) for each in warnings], [
            (2, "[0].reply.text"), (3, "[1].reply.tool_calls[0].arguments"), (4, "[2]")])

    def test_what_reads_faults_and_gates_is_asked_and_its_word_is_a_mistake(self):
        def faults(value):
            if value != "cut":
                raise ValueError("no such fault")

        def gates(value):
            if "name" not in value:
                raise ValueError("a gate needs a name")
        for reply, keys in (({"fault": "cut"}, []), ({"fault": {"kind": "x"}}, ["[0].reply.fault"]),
                            ({"gate": {"event": 1}}, ["[0].reply.gate"]), ({"gate": {"name": "a"}}, [])):
            with self.subTest(reply=reply):
                try:
                    read_script(rule(reply=reply), "r.json", None, faults, gates)
                except ScriptMistakes as exc:
                    self.assertEqual([each.key for each in exc.mistakes], keys)
                else:
                    self.assertEqual(keys, [])


class BookTest(unittest.TestCase):

    def test_rules_that_are_added_come_first_and_go_again(self):
        book = RuleBook()
        self.assertEqual(book.add([{"reply": "a"}, {"name": "b", "reply": "b"}]), ["added rule 1", "b"])
        self.assertEqual(book.add({"name": "c", "reply": "c"}, first=True), ["c"])
        self.assertEqual([rule.name for rule in book.rules], ["c", "added rule 1", "b"])
        self.assertEqual(book.clear("b"), 1)
        self.assertEqual(book.clear("b"), 0)
        self.assertEqual(book.clear(), 2)
        self.assertEqual(book.rules, ())

    def test_mistakes_add_nothing(self):
        book = RuleBook()
        for rules in ([{"reply": "a"}, {"reply": 5}], 5, [5], [{"reply": object()}],
                      [{"reply": "a"}, {"name": "x", "reply": "b"},
                                                                                     {"name": "x", "reply": "c"}]):
            with self.subTest(rules=rules):
                with self.assertRaises(ScriptMistakes) as caught:
                    book.add(rules)
                self.assertTrue(str(caught.exception).startswith("added"))
                self.assertEqual(book.rules, ())

    def test_what_was_added_does_not_change_with_the_callers_dict(self):
        book, given = RuleBook(), {"match": {"model": "m"}, "reply": "a"}
        book.add([given])
        given["match"]["model"] = "other"
        self.assertEqual(book.describe()["data"][0]["rule"]["match"], {"model": "m"})

    def test_a_book_that_changes_says_so(self):
        book, told = RuleBook(), []
        book.on_change = lambda changed: told.append(len(changed.rules))
        book.add([{"reply": "a"}])
        book.clear()
        book.reset()
        self.assertEqual(told, [1, 0, 0])


class RegexTest(unittest.TestCase):

    UNSAFE = ("(a+)+", "(a+)+$", "(a*)*", "([a-z]+)*x", "(a|a)*", "(.*)*", "(.+)+x", r"(\w+\s?)*$", r"(\d+)+",
              "((a+)b?)+",
              "(a{1,50})+", "(?:a+|b+)+", "(x+x+)+y", r"(\s*\w*)*!",
              "(a|aa)+$", "(a|ab|b)*c", "((a)|(a))*b", "(?:a|a?)+b", "(?:(?:a|b)|a)+", "(a{1,20}){1,20}$", "(a?){30}a{30}")
    SAFE = ("a+", "a+b+", "(ab)+", r"(\d+,)+", r"(\w+\s)+x", ".*a.*b", "(foo|bar)*", r"^(\d{3}-)+\d{4}$", "(a|b)*",
            "(a+)?",
            r"(?i)weather in (?P<city>\w+)", r"(.|\n)*", "x{3}", r"(?=a+)b", r"\b\w+\b", "(a+b+)+",
            "(foo|fox)+$", "(no|now)+$", r"(?:\r\n|\n)+$", r"(\d{1,3}\.){3}\d", r"(?:\w|\s)+$", "(?:[a-z]+ ){1,10}x")

    def test_what_may_take_for_ever_is_found_before_it_is_used(self):
        for pattern in self.UNSAFE:
            with self.subTest(pattern=pattern):
                self.assertIsNotNone(unsafe_regex(pattern))
        for pattern in self.SAFE:
            with self.subTest(pattern=pattern):
                self.assertIsNone(unsafe_regex(pattern))

    def test_what_was_let_through_is_quick_on_texts_that_nearly_match(self):
        for pattern in self.SAFE:
            regex = ScriptRegex(pattern)
            for text in ("a" * 2000 + "!", "ab" * 1000 + "!", "1" * 2000 + "-", "12," * 700 + "x", "foobar" * 300 + "f",
                         "word " * 400 + "!"):
                began_s = time.thread_time()
                regex.search(text)
                self.assertLess(time.thread_time() - began_s, 2.0, (pattern, text[:10]))

    def test_it_finds_what_re_finds(self):
        draw = random.Random(3)
        patterns = self.SAFE + (".*b", ".*?(a)b", "a|.*b", r".*(a+)\n?b", "(a)?b", "(?i).*B", "AB|ba", "(?:ab){2,}",
                                "a{0,3}b", r"\x61b",
                                r"\141b", "(?s).*b", "(?s:.*)b", "[b]a", "[^a]b", "(?i:A)b", "b$", "^a", r"a\nb", "",
                                "(?=ab)a")
        found = 0
        for pattern in patterns:
            for flags in (0, re.IGNORECASE):
                regex = ScriptRegex(pattern, flags)
                for _ in range(60):
                    text = "".join(draw.choice("abAB\n 1,\u017f") for _ in range(draw.randrange(12)))
                    one, other = regex.search(text), re.search(pattern, text, flags)
                    told = [each and (each.span(), each.groups()) for each in (one, other)]
                    self.assertEqual(told[0], told[1], (pattern, text))
                    found += one is not None
        self.assertGreater(found, 500)

    def test_what_cannot_be_read_is_refused(self):
        with self.assertRaises(PatternError):
            unsafe_regex("(?(1)a|b)")

    def test_only_the_beginning_of_a_long_text_is_searched(self):
        condition = TextCondition(regex="end")
        self.assertTrue(condition.test("x" * (REGEX_TEXT_CHARS - 3) + "end"))
        self.assertFalse(condition.test("x" * REGEX_TEXT_CHARS + "end"))
        self.assertTrue(TextCondition(contains=["end"]).test("x" * 5 * REGEX_TEXT_CHARS + "end"))


class PathTest(unittest.TestCase):

    VALUE = {"a": {"b": [1, {"c d": None}], "0": "zero"}, "e.f": True, "list": [[5, 6]]}

    def test_paths_lead_where_they_say(self):
        for path, expected in (("a.b[0]", 1), ("$.a.b[1]", {"c d": None}), ("a.b.0", 1), ("a.b[1]['c d']", None),
                               ("a.0", "zero"),
                               ('$["e.f"]', True), ("list[0][1]", 6), ("list.0.1", 6), ("", self.VALUE),
                               ("$", self.VALUE)):
            with self.subTest(path=path):
                self.assertEqual(follow_path(self.VALUE, read_json_path(path)), expected)

    def test_what_is_not_there_is_a_key_error(self):
        for path in ("x", "a.x", "a.b[2]", "a.b.x", "a.b[0].y", "list[0][1][0]", "a.b.99999999999"):
            with self.subTest(path=path), self.assertRaises(KeyError):
                follow_path(self.VALUE, read_json_path(path))

    def test_what_is_no_path_is_a_value_error(self):
        for path in ("a..b", "a[", "a[x]", "a]", ".a", "a.", "a[-1]", "$x.", "a['b]"):
            with self.subTest(path=path), self.assertRaises(ValueError):
                read_json_path(path)


FIXTURES = """{
  "fixtures": [
    {"match": {"userMessage": "hello"},
     "response": {"content": "Hi {{there}}!", "usage": {"prompt_tokens": 10, "output_tokens": 5}}},
    {"match": {"userMessage": "weather", "hasToolResult": false, "toolName": "get_weather"},
     "response": {"toolCalls": [{"name": "get_weather", "arguments": {"city": "SF"}, "id": "call_1"}]}},
    {"match": {"toolCallId": "call_1", "toolResultContains": "rain", "model": "gpt-4o"},
     "response": {"content": {"a": 1}}},
    {"match": {"userMessage": "joke", "sequenceIndex": 1}, "response": {"content": "two"}},
    {"match": {"userMessage": "joke", "sequenceIndex": 0}, "response": {"content": "one"}},
    {"match": {"userMessage": "slow"}, "response": {"content": "abcdef", "reasoning": "Hm."}, "chunkSize": 4,
     "streamingProfile": {"ttft": 200, "tps": 40, "jitter": 0.1}},
    {"match": {"inputText": "x"}, "response": {"embedding": [0.1]}},
    {"match": {"userMessage": "fail"},
     "response": {"error": {"message": "No.", "type": "t", "code": "c"}, "status": 429}},
    {"match": {"systemMessage": ["a", "b"], "turnIndex": 1, "responseFormat": "json_object"},
     "response": {"blocks": [{"type": "toolCall", "name": "f", "arguments": "{}"}, {"type": "text", "text": "T"}]}}
  ]
}"""


class AimockTest(unittest.TestCase):

    def rules(self):
        return [rule.told for rule in read_script(FIXTURES, "f.json")[0]]

    def test_fixtures_become_rules_in_their_order(self):
        told = self.rules()
        self.assertEqual([each["match"] for each in told], [
            {"last_user_text": {"contains": "hello"}},
            {"last_user_text": {"contains": "weather"}, "tool_result": None, "tools": "get_weather"},
            {"tool_result": {"call_id": "call_1", "contains": "rain"}, "model": {"regex": r"\Agpt\-4o(-\d|\Z)"}},
            {"last_user_text": {"contains": "joke"}}, {"last_user_text": {"contains": "slow"}},
            {"last_user_text": {"contains": "fail"}},
            {"system": {"contains": ["a", "b"]}, "turn": 2, "format": "json_object"}])

    def test_answers_become_replies(self):
        told = self.rules()
        self.assertEqual(told[0]["reply"], {"template": False, "items": [{"text": "Hi {{there}}!"}],
                                            "usage": {"prompt_tokens": 10, "completion_tokens": 5}})
        self.assertEqual(told[1]["reply"]["items"], [{"tool_call": {"name": "get_weather",
            "arguments": "{\"city\":\"SF\"}",
                                                                    "id": "call_1"}}])
        self.assertEqual(told[2]["reply"]["items"], [{"text": "{\"a\":1}"}])
        self.assertEqual([each["items"] for each in told[3]["replies"]], [[{"text": "one"}], [{"text": "two"}]])
        self.assertEqual(told[3]["then"], "next rule")
        self.assertEqual(told[4]["reply"], {"template": False, "ttft_ms": 200, "itl_ms": 25.0,
                                            "items": [{"reasoning": "Hm."}, {"text": ["abcd", "ef"]}]})
        self.assertEqual(told[5]["reply"]["fault"], {"kind": "error", "status": 429, "message": "No.", "type": "t",
            "code": "c"})
        self.assertEqual([list(item) for item in told[6]["reply"]["items"]], [["tool_call"], ["text"]])

    def test_what_has_no_place_here_is_left_out_with_a_warning(self):
        _, warnings = read_script(FIXTURES, "f.json")
        self.assertEqual([(each.line, each.key) for each in warnings], [
            (13, "fixtures[6].match.inputText"), (16, "fixtures[8].reply.items[1].text")])

    def test_mistakes_have_the_fixtures_line(self):
        for change, line, key in (('{"match": {}}', 2, "fixtures[0]"),
                                  ('{"match": {"userMessage": 5}, "response": {"content": "x"}}', 2,
                                                                        "fixtures[0].match.userMessage"),
                                  ('{"match": {},\n "response": {"toolCalls": [{}]}}', 2,
                                   "fixtures[0].reply.items[0].tool_call")):
            with self.subTest(change=change):
                found = mistakes_of('{"fixtures": [\n%s]}' % change)
                self.assertEqual(found[0][1:2], (key,))
                self.assertGreaterEqual(found[0][0], line)


if __name__ == "__main__":
    unittest.main()
