"""What recordings are made of, without a server: redaction, what is volatile, neutral requests, the file's form."""
import json
import unittest

from api_common import ApiError
from backends.contract import (AnnotationDelta, Finish, GenerationRequest, History, ItemEnd, ItemStart, ItemUpdate, RawAnswer,
                               ReasoningDelta, RefusalDelta, TextDelta, ToolCallDelta, Usage)
from backends.fixture import FixtureFault, Recording, iter_fixture, parse_fixture
from backends.neutral import (first_difference, kept_request, likeness, neutral_request, request_key, request_leaves,
                              steady_request)
from backends.record import redacted_entries
from backends.redact import REDACTED, literal_secrets, redact_pieces, redact_text, redact_value
from backends.volatile import VolatileNames, steady_text, steady_value


def chat_request(**body):
    body = dict({"model": "m", "messages": [{"role": "user", "content": "Hello"}]}, **body)
    return GenerationRequest("m", History(None, b"", "", list), raw=body)


def response_request(messages, **body):
    """As responses_api makes one: the messages of the whole chain beside the raw request."""
    return GenerationRequest("m", History(9, b"", "", lambda: messages), raw=dict(body, model="m", input="x"),
                             endpoint="responses")


def exact_key(request):
    return request_key(kept_request(neutral_request(request)))


def steady_key(request):
    return request_key(steady_request(kept_request(neutral_request(request))))


class RedactTest(unittest.TestCase):

    def test_keys_are_known_by_their_shape(self):
        for text, wanted in (
                ("use sk-proj-Ab12Cd34Ef now", "use * now"), ("Authorization: Bearer abc.def-123456", "Authorization: Bearer *"),
                ("AKIAIOSFODNN7EXAMPLE", "*"), ("x=ghp_0123456789abcdefghijABCDEFGHIJ", "x=*"),
                ("OPENAI_API_KEY='abcd1234efgh'", "OPENAI_API_KEY='*'"), ('{"password": "hunter2"}', '{"password": "*"}'),
                ("Cookie: a=b; session=1\nnext", "Cookie: *\nnext"), ("https://me:pw@host/", "https://*@host/"),
                ("eyJhbGciOiJI.eyJzdWIiOiIx.SflKxwRJ", "*"),
                ("-----BEGIN PRIVATE KEY-----\nAA\n-----END PRIVATE KEY-----!", "*!")):
            with self.subTest(text=text):
                self.assertEqual(redact_text(text), wanted.replace("*", REDACTED))

    def test_words_are_no_keys(self):
        for text in ("sk-learn-contrib and risk-averse", "a bearer certificate", "the key: everything", "basic training",
                     "password: to be set", "cookie: chocolate", "sk-no-key-required", "12:30 http://host:80/a@b"):
            self.assertEqual(redact_text(text), text)

    def test_a_known_key_is_found_wherever_it_stands_unless_it_is_a_word(self):
        literals = literal_secrets(("Bearer topsecretvalue", "ollama", "lm-studio", None))
        self.assertEqual(redact_text("a topsecretvalue of ollama or lm-studio", literals), "a [redacted] of ollama or lm-studio")

    def test_a_key_that_is_spread_over_pieces_is_found(self):
        pieces = ["it is s", "k-", "abc123", "45678", ", and sk-", "99999999", "", "!"]
        self.assertEqual(redact_pieces(pieces), ["it is [redacted]", "", "", "", ", and [redacted]", "", "", "!"])
        self.assertEqual(redact_pieces(["sk-abc12345 sk-abc12346"]), ["[redacted] [redacted]"])
        self.assertIs(redact_pieces(["a", "b"])[0], "a")

    def test_what_stands_under_a_secrets_name_is_one(self):
        value = {"type": "mcp", "headers": {"Authorization": "tiny", "X-Id": "7"}, "api_key": "k",
                 "properties": {"password": {"type": "string"}}, "token": "word"}
        self.assertEqual(redact_value(value), dict(value, headers={"Authorization": REDACTED, "X-Id": "7"}, api_key=REDACTED))

    def test_media_is_kept_as_its_hash(self):
        picture = "data:image/png;base64," + "iVBORw0K" * 500
        short = redact_value({"url": picture, "text": "word " * 500}, shorten=True)
        self.assertIn("[4022 characters, blake2b ", short["url"])
        self.assertEqual(short["text"], "word " * 500)
        self.assertNotEqual(short, redact_value({"url": picture[:-8] + "iVBORw0J", "text": "word " * 500}, shorten=True))

    def test_deltas_are_redacted_as_the_text_that_they_make(self):
        logprobs = [{"token": "sk-", "logprob": -1}]
        entries = [(0.1, TextDelta("sk-", logprobs)), (0.2, ToolCallDelta(0, '{"api_key":"ab', "call_1", "f")), (0.3, TextDelta("12345678")),
                   (0.4, ToolCallDelta(0, 'c1234567"}')), (0.5, RawAnswer(b'{"x":["sk-12345678"]}')),
                   (0.6, ItemStart("mcp_call", {"output": "Bearer abcdefg12345"})), (0.7, TextDelta(" ok", logprobs))]
        said = [delta for _, delta in redacted_entries(entries, ())]
        self.assertEqual(said, [TextDelta(REDACTED), ToolCallDelta(0, '{"api_key":"[redacted]', "call_1", "f"),
                                ToolCallDelta(0, '"}'), RawAnswer(b'{"x":["[redacted]"]}'),
                                ItemStart("mcp_call", {"output": "Bearer [redacted]"}), TextDelta(" ok", logprobs)])


class VolatileTest(unittest.TestCase):

    def steady(self, text):
        return steady_text(text, VolatileNames())

    def test_dates_and_times_in_common_forms(self):
        for text in ("2026-11-29", "2026-11-29T23:48:01.123Z", "2026-11-29 23:48:01+01:00", "Sunday, 2026-11-29",
                     "2026/11/29", "29.11.2026", "11/29/2026, 11:48 PM", "November 29, 2026", "Nov 29th, 2026 at 11:48 PM PST",
                     "Sunday, 29 November 2026", "29-Nov-2026", "Sun, 29 Nov 2026 23:48:00 GMT", "Sun Nov 29 23:48:01 2026",
                     "Sun Nov 29 23:48:01 UTC 2026", "2026-11-29 (Sunday)", "23:48:01", "11:48 pm", "20261129T234801Z",
                     "1795996081", "1795996081.25", "1795996081123"):
            with self.subTest(text=text):
                self.assertEqual(self.steady("now %s ok" % text), "now <date> ok")

    def test_what_is_no_date_stays(self):
        for text in ("meet at 10:30", "in May 12 ships", "version 1.2.3", "tel 8005551234", "1 of 2", "pi is 3.14159", "5 seconds"):
            self.assertEqual(self.steady(text), text)

    def test_ids_are_numbered_so_that_which_is_which_still_counts(self):
        def told(*ids):
            return self.steady("%s then %s, %s; %s %s and %s again, no call_center_opening" % ids)
        uuid, other = "550e8400-e29b-41d4-a716-446655440000", "6ba7b810-9dad-11d1-80b4-00c04fd430c8"
        one = told("call_a1b2c3d4e5", "resp_0123456789abcdef", uuid, "chatcmpl-12345678", "d41d8cd98f00b204e9800998ecf8427e",
                   "call_a1b2c3d4e5")
        self.assertEqual(one, told("call_z9y8x7w6v5", "resp_fedcba9876543210", other, "chatcmpl-87654321",
                                   "0cc175b9c0f1b6a831c399e269772661", "call_z9y8x7w6v5"))
        self.assertNotEqual(one, told("call_a1b2c3d4e5", "resp_0123456789abcdef", uuid, "chatcmpl-12345678",
                                      "d41d8cd98f00b204e9800998ecf8427e", "call_z9y8x7w6v5"))
        self.assertEqual(one.count("<id "), 6)
        self.assertTrue(one.endswith("no call_center_opening"))

    def test_paths_addresses_ports_and_durations(self):
        self.assertEqual(self.steady("/tmp/tmpab12_x/a.txt /var/folders/ab/c1/T/x9/b /tmp/pytest-of-me/pytest-3/t /tmp/data "
                                     "<f at 0x7f00aabbcc> http://localhost:43121/v1 1 passed in 0.03s, 1.5 ms"),
                         "<tmp>/a.txt <tmp>/b <tmp>/t /tmp/data <f at <address>> http://localhost:<port>/v1 1 passed in "
                         "<duration>, <duration>")

    def test_white_space_at_ends_and_line_ends(self):
        self.assertEqual(self.steady("  a \t\r\n b  \n"), "a\n b")

    def test_a_long_text_is_the_same_in_slices(self):
        line = "On 2026-11-29 the run run_a1b2c3d4 took 0.5 s in /tmp/x1y2.\n"
        self.assertEqual(self.steady(line * 1000), (self.steady(line) + "\n") * 999 + self.steady(line))
        self.assertEqual(len(self.steady("x" * 100000)), 100000)

    def test_numbers_that_are_times_and_whole_floats(self):
        self.assertEqual(steady_value({"b": [1795996081, 1795996081123, True, 2.0], "a": 0.5, "call_id": "x"}, VolatileNames()),
                         {"a": 0.5, "b": ["<date>", "<date>", True, 2], "call_id": "<id 1>"})


class NeutralTest(unittest.TestCase):

    def test_a_chat_and_a_response_that_ask_for_the_same_are_the_same(self):
        schema = {"type": "object", "properties": {"city": {"type": "string"}}}
        call = {"id": "call_1", "type": "function", "function": {"name": "f", "arguments": "{}"}}
        chat = chat_request(
            messages=[{"role": "developer", "content": "Be kind."}, {"role": "user", "content": [
                {"type": "text", "text": "Hel"}, {"type": "text", "text": "lo"}]},
                {"role": "assistant", "content": None, "tool_calls": [call], "refusal": None},
                {"role": "tool", "tool_call_id": "call_1", "content": "18"}],
            tools=[{"type": "function", "function": {"name": "f", "description": None, "parameters": schema, "strict": False}}],
            tool_choice={"type": "function", "function": {"name": "f"}}, max_completion_tokens=50, stream=True,
            stream_options={"include_usage": True}, reasoning_effort="low", temperature=1.0, user="me", n=1, logprobs=True,
            top_logprobs=2, response_format={"type": "json_schema", "json_schema": {"name": "s", "schema": schema, "strict": True}})
        response = response_request(
            [{"role": "system", "content": "Be kind."}, {"role": "user", "content": "Hello"},
             {"role": "assistant", "content": None, "tool_calls": [call]}, {"role": "tool", "tool_call_id": "call_1", "content": "18"}],
            instructions="Be kind.", tools=[{"type": "function", "name": "f", "parameters": schema}],
            tool_choice={"type": "function", "name": "f"}, max_output_tokens=50, store=False, previous_response_id="resp_1",
            reasoning={"effort": "low"}, temperature=1, metadata={"at": "1"}, include=["message.output_text.logprobs"],
            top_logprobs=2, text={"format": {"type": "json_schema", "name": "s", "schema": schema, "strict": True}})
        self.assertEqual(exact_key(chat), exact_key(response),
                         first_difference(request_leaves(neutral_request(chat)), request_leaves(neutral_request(response))))

    def test_what_decides_about_the_answer_makes_a_difference(self):
        plain = exact_key(chat_request())
        for more in ({"model": "m", "temperature": 0.5}, {"seed": 1}, {"max_tokens": 5}, {"tool_choice": "none"}, {"n": 2},
                     {"tools": [{"type": "web_search"}]}, {"top_k": 5}, {"stop": "x"}, {"parallel_tool_calls": False},
                     {"messages": [{"role": "user", "content": "Hello", "name": "Ann"}]},
                     {"messages": [{"role": "assistant", "content": "Hello"}]}):
            with self.subTest(more=more):
                self.assertNotEqual(exact_key(chat_request(**more)), plain)

    def test_how_it_is_delivered_does_not(self):
        plain = exact_key(chat_request())
        for more in ({"stream": True}, {"store": True}, {"metadata": {"a": "b"}}, {"user": "u"}, {"safety_identifier": "s"},
                     {"prompt_cache_key": "k"}, {"service_tier": "flex"}, {"stop": None}, {"tool_choice": "auto"}, {"n": 1},
                     {"response_format": {"type": "text"}}, {"parallel_tool_calls": True}):
            with self.subTest(more=more):
                self.assertEqual(exact_key(chat_request(**more)), plain)

    def test_normalised_keys_pass_over_ids_and_dates_but_not_over_which_call_is_answered(self):
        def asked(date, first, second, answered):
            return chat_request(messages=[
                {"role": "system", "content": "Today is %s. " % date}, {"role": "user", "content": "Go"},
                {"role": "assistant", "content": "", "tool_calls": [
                    {"id": id, "type": "function", "function": {"name": "f", "arguments": "{}"}} for id in (first, second)]},
                {"role": "tool", "tool_call_id": answered, "content": "18"}])
        one = asked("2026-11-29", "a", "b", "a")
        self.assertEqual(steady_key(one), steady_key(asked("May 3, 2027", "call_xyz", "call_abc", "call_xyz")))
        self.assertNotEqual(steady_key(one), steady_key(asked("2026-11-29", "a", "b", "b")))
        self.assertNotEqual(exact_key(one), exact_key(asked("2026-11-30", "a", "b", "a")))

    def test_pictures_count_by_their_content(self):
        def asked(url, **more):
            return chat_request(messages=[{"role": "user", "content": [
                {"type": "text", "text": "What?"}, {"type": "image_url", "image_url": dict(more, url=url)}]}])
        picture = "data:image/png;base64," + "A" * 5000
        self.assertEqual(exact_key(asked(picture)), exact_key(asked(picture, detail="auto")))
        self.assertNotEqual(exact_key(asked(picture)), exact_key(asked(picture[:-1] + "B")))

    def test_what_is_no_message_does_no_harm(self):
        for messages in ([{"role": "user", "content": 5}], ["x", None], [{"tool_calls": [None, {}, {"function": 3}]}], [{}],
                         [{"role": "user", "content": [None, 3, {"type": 5}, {"type": "text"}]}]):
            self.assertEqual(len(steady_key(chat_request(messages=messages))), 16)

    def test_the_first_difference_is_told_from_shortly_before_it(self):
        one, other = (request_leaves(neutral_request(chat_request(messages=[
            {"role": "user", "content": "The quick brown fox jumps over the lazy %s again" % word}], temperature=temperature)))
            for word, temperature in (("dog", 1), ("cat", 2)))
        self.assertEqual(first_difference(one, other), (
            "messages[0].content", "'...fox jumps over the lazy dog again'", "'...fox jumps over the lazy cat again'"))
        self.assertIsNone(first_difference(one, one))
        self.assertEqual(first_difference({"a": 1}, {"a": 1, "b": None}), ("b", "nothing", "null"))
        self.assertEqual(likeness(one, one), 1.0)
        self.assertGreater(likeness(one, other), likeness(one, {"model": "m"}))


class FixtureTest(unittest.TestCase):
    ENTRIES = [(0.1, TextDelta("One, \"two\"\n\u00fc \U0001f389")), (0.1, TextDelta("\ud83d")),
               (0.2, TextDelta("a", [{"token": "a", "logprob": -0.5}], 1)), (0.25, ReasoningDelta("Hm.")),
               (0.25, ReasoningDelta("Hm.", "raw")), (0.3, RefusalDelta("No.")),
               (0.3, ToolCallDelta(1, '{"a"', "call_1", "f", "custom", 0, "group")), (0.3, ToolCallDelta(1, ":1}")),
               (0.4, ItemStart("web_search_call", {"action": {"q": "x"}})), (0.4, ItemUpdate("web_search_call", "searching")),
               (0.5, ItemEnd("web_search_call", {"status": "completed"})), (0.5, AnnotationDelta({"type": "url_citation"})),
               (0.6, Finish("length")), (0.6, Finish("stop", 1)), (0.6, Usage(1, 2, 3, 4, True))]
    REQUEST = {"model": "m", "messages": [{"role": "user", "content": "Hello"}], "choices": 2}

    def text(self, entries=(), how="complete", error=None, request=None):
        return "".join(iter_fixture(Recording(request or self.REQUEST, list(entries), how, 0.7, error, {"at": "now"})))

    def test_all_deltas_come_back_as_they_were(self):
        read = parse_fixture(self.text(self.ENTRIES))
        self.assertEqual(read.entries, self.ENTRIES)
        self.assertEqual((read.request, read.how, read.end_s, read.about), (self.REQUEST, "complete", 0.7, {"at": "now"}))

    def test_a_delta_has_a_line_of_its_own(self):
        lines = self.text([(0.1234567, TextDelta("a")), (0.2, Finish())]).split("\n")
        self.assertEqual([line.strip(" ,") for line in lines if "at_s" in line][:2],
                         ['{"at_s": 0.1235, "text": "a"}', '{"at_s": 0.2, "finish": "stop"}'])

    def test_a_failure_comes_back_with_its_headers(self):
        read = parse_fixture(self.text(how="failed", error=ApiError(429, "Slow", "t", "c", "p", [("retry-after", "7")])))
        error = read.error
        self.assertEqual((error.status, error.message, error.type, error.code, error.param, error.headers),
                         (429, "Slow", "t", "c", "p", [("retry-after", "7")]))

    def test_a_raw_answer_comes_back(self):
        read = parse_fixture(self.text([(0.1, RawAnswer(b'{"a":[0.1,1]}'))], request={"call": "POST /embeddings", "body": {}}))
        self.assertEqual(read.entries, [(0.1, RawAnswer(b'{"a":[0.1,1]}'))])

    def test_what_is_wrong_is_named(self):
        good = json.loads(self.text(self.ENTRIES))

        def broken(change):
            value = json.loads(json.dumps(good))
            change(value)
            return json.dumps(value)
        for words, text in (
                ("line 1", "{"), ("no recording", "[]"), ('its "format"', '{"format": "mockturtle recording 9"}'),
                ('"deltas" must be an array', broken(lambda value: value.pop("deltas"))),
                ("needs one of messages", broken(lambda value: value["request"].pop("messages"))),
                ("'model' must be", broken(lambda value: value["request"].pop("model"))),
                ("number 2: 'at_s' goes back", broken(lambda value: value["deltas"][0].update(at_s=5))),
                ("number 1: 'at_s' must be", broken(lambda value: value["deltas"][0].update(at_s=-1))),
                ("number 1: 'txt' is unknown", broken(lambda value: value["deltas"][0].update(txt=1))),
                ("number 1: 'text' must be a string", broken(lambda value: value["deltas"][0].update(text=1))),
                ("number 1: 'choice' must be", broken(lambda value: value["deltas"][0].update(choice=2))),
                ("needs one of text", broken(lambda value: value["deltas"].insert(0, {"at_s": 0}))),
                ("'kind' must be summary or raw", broken(lambda value: value["deltas"][3].update(kind="x"))),
                ("'finish' must be one of", broken(lambda value: value["deltas"][12].update(finish="x"))),
                ("'completion_tokens' is missing", broken(lambda value: value["deltas"][14].pop("completion_tokens"))),
                ("'raw' is for", broken(lambda value: value["deltas"].insert(0, {"at_s": 0, "raw": 1}))),
                ('"end": \'how\'', broken(lambda value: value["end"].update(how="well"))),
                ("before the last delta", broken(lambda value: value["end"].update(at_s=0.1))),
                ("needs an 'error'", broken(lambda value: value["end"].update(how="failed"))),
                ("'status' must be", broken(lambda value: value["end"].update(how="failed", error={"message": "m", "status": 200}))),
                ("NaN is not JSON", json.dumps(good).replace("0.25", "NaN", 1))):
            with self.subTest(words=words):
                with self.assertRaises(FixtureFault) as caught:
                    parse_fixture(text)
                self.assertIn(words, str(caught.exception))


if __name__ == "__main__":
    unittest.main()
