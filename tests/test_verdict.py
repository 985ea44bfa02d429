"""The verdict: each finding on the manners that it is about, and silence on those that are right."""
import json
import unittest

from observe.journal import Journal, JournalEntry
from observe.verdict import IDLE_CONNECTIONS, LONE_CONNECTIONS, STORM_TRIES, find_verdict
from tests.support import CHAT, RESPONSE, FakeClock, LiveServerTest

TAIL = "0123456789abcdef0123456789abcdef"


def entry(number, at_s=0.0, body=None, status=200, headers=(), answer=None, ended_s=None, port=None, path="/v1/chat/completions",
          text=None, **fields):
    """A JournalEntry. headers: of the answer. answer: its JSON. text: said by a stream, which it is then."""
    made = JournalEntry()
    data = json.dumps(body).encode("utf-8") if body is not None else b""
    made.id, made.number, made.time = "request_%d" % number, number, at_s
    made.started_s, made.ended_s = at_s, at_s + 0.01 if ended_s is None else ended_s
    made.method, made.path, made.query_text = "POST", path, ""
    made.headers = {"user-agent": "client", "authorization": "Bearer k"}
    made.body = made.body_key = data
    made.body_size = len(data)
    made.connection = ("127.0.0.1", port or 4000)
    made.status, made.streamed, made.keep_alive = status, text is not None, True
    made.model = made.rule = made.response_id = made.usage = made.error = made._parsed = None
    made.call_ids = made.faults = ()
    made.left = made.cut_off = False
    head = "HTTP/1.1 %d X\r\n%s\r\n" % (status, "".join("%s: %s\r\n" % pair for pair in headers))
    made.answer = head.encode("ascii") + json.dumps(answer or {}).encode("utf-8")
    made.counted = Said(text) if text is not None else None
    for name, value in fields.items():
        setattr(made, name, value)
    return made


class Said:
    """Stands for a CountedSend."""
    events = sent_bytes = 1

    def __init__(self, text):
        self._text = text

    def head(self):
        return b"HTTP/1.1 200 OK"

    def data(self):
        return [json.dumps({"type": "response.output_text.delta", "delta": self._text}).encode("utf-8")]


def kinds(*entries, **given):
    return [finding["kind"] for finding in find_verdict(list(entries), **given)]


def messages(*said):
    return {"model": "m", "messages": [dict(zip(("role", "content"), pair)) for pair in said]}


ASK = messages(("user", "hi"))


class RetriesTest(unittest.TestCase):

    def test_the_same_request_many_times_at_once_is_no_retry(self):
        for status, headers in ((400, ()), (429, (("retry-after", "5"),)), (500, ())):
            at_once = [entry(number, 0.001 * number, ASK, status, headers, ended_s=0.5, port=4000 + number)
                       for number in range(STORM_TRIES)]
            self.assertEqual(kinds(*at_once), [], status)

    def test_coming_back_before_retry_after(self):
        refused = entry(1, body=ASK, status=429, headers=[("retry-after", 2), ("retry-after-ms", 2000)])
        self.assertEqual(kinds(refused, entry(2, 0.5, ASK)), ["ignored_retry_after"])
        self.assertEqual(kinds(refused, entry(2, 2.1, ASK)), [])
        self.assertEqual(find_verdict([refused, entry(2, 0.5, ASK)])[0]["requests"], ["request_1", "request_2"])

    def test_a_clock_that_is_a_little_off_is_no_offence(self):
        refused = entry(1, body=ASK, status=429, headers=[("retry-after", 10)])
        self.assertEqual(kinds(refused, entry(2, 9.9, ASK)), [])

    def test_another_request_meanwhile_is_none_of_its_business(self):
        refused = entry(1, body=ASK, status=429, headers=[("retry-after", 2)])
        self.assertEqual(kinds(refused, entry(2, 0.5, messages(("user", "other")))), [])
        self.assertEqual(kinds(refused, entry(2, 0.5, ASK, headers=()), given_by_another(entry(3, 0.5, ASK))),
                         ["ignored_retry_after"])
        self.assertEqual(kinds(refused, given_by_another(entry(2, 0.5, ASK))), [])

    def test_asking_again_what_is_refused_for_good(self):
        for status in (400, 401, 403, 404, 422):
            self.assertEqual(kinds(entry(1, body=ASK, status=status), entry(2, 1.0, ASK)), ["retried_non_retryable"], status)
        for status in (408, 409, 500, 503):
            self.assertEqual(kinds(entry(1, body=ASK, status=status), entry(2, 1.0, ASK)), [], status)

    def test_a_locked_conversation_may_be_asked_again(self):
        locked = entry(1, body=ASK, status=400, answer={"error": {"code": "conversation_locked"}})
        self.assertEqual(kinds(locked, entry(2, 1.0, ASK)), [])

    def test_a_corrected_key_and_a_task_much_later_are_no_retries(self):
        refused = entry(1, body=ASK, status=401)
        self.assertEqual(kinds(refused, given_by_another(entry(2, 1.0, ASK))), [])
        self.assertEqual(kinds(entry(1, body=ASK, status=400), entry(2, 100.0, ASK)), [])

    def test_should_retry_false_is_the_last_word(self):
        refused = entry(1, body=ASK, status=500, headers=[("x-should-retry", "false")])
        self.assertEqual(kinds(refused, entry(2, 1.0, ASK)), ["retried_non_retryable"])

    def test_a_storm(self):
        def tries(gap_s):
            return [entry(number, number * gap_s, ASK, 500) for number in range(1, STORM_TRIES + 1)]
        self.assertEqual(kinds(*tries(0.1)), ["retry_storm"])
        self.assertEqual(kinds(*tries(0.5)), [])
        self.assertEqual(kinds(*tries(0.1)[1:]), [])

    def test_many_that_succeed_are_no_storm(self):
        self.assertEqual(kinds(*[entry(number, number * 0.01, ASK) for number in range(1, 9)]), [])


def given_by_another(made):
    made.headers = dict(made.headers, authorization="Bearer other")
    return made


class TruncatedTest(unittest.TestCase):

    def test_going_on_from_a_stream_that_was_cut(self):
        cut = entry(1, body=ASK, text="The sea is", faults=("cut:event=4",), cut_off=True)
        after = messages(("user", "hi"), ("assistant", "The sea is"), ("user", "go on"))
        self.assertEqual(kinds(cut, entry(2, 1.0, after)), ["took_truncated_for_complete"])

    def test_retrying_it_is_right(self):
        cut = entry(1, body=ASK, text="The sea is", faults=("cut:event=4",), cut_off=True)
        after = messages(("user", "hi"), ("assistant", "The sea is deep."), ("user", "go on"))
        self.assertEqual(kinds(cut, entry(2, 1.0, ASK), entry(3, 2.0, after)), [])

    def test_following_up_a_response_that_never_ended(self):
        cut = entry(1, body=ASK, text="The", faults=("no_terminal",), response_id="resp_" + TAIL)
        self.assertEqual(kinds(cut, entry(2, 1.0, {"input": "x", "previous_response_id": "resp_" + TAIL})),
                         ["took_truncated_for_complete"])

    def test_a_missing_done_alone_truncates_nothing(self):
        whole = entry(1, body=ASK, text="All of it.", faults=("no_terminal:only=done",))
        self.assertEqual(kinds(whole, entry(2, 1.0, messages(("user", "hi"), ("assistant", "All of it.")))), [])


class ToolCallsTest(unittest.TestCase):
    CALL = {"role": "assistant", "content": None, "tool_calls": [
        {"id": "call_1", "type": "function", "function": {"name": "f", "arguments": "{}"}},
        {"id": "call_2", "type": "function", "function": {"name": "f", "arguments": "{}"}}]}

    @staticmethod
    def output(id):
        return {"role": "tool", "tool_call_id": id, "content": "1"}

    def chat(self, *said):
        return entry(1, body={"model": "m", "messages": [{"role": "user", "content": "x"}] + list(said)})

    def test_a_call_that_nobody_answered(self):
        found = find_verdict([self.chat(self.CALL, self.output("call_1"))])
        self.assertEqual([finding["kind"] for finding in found], ["dropped_tool_call"])
        self.assertIn("call_2", found[0]["message"])
        self.assertNotIn("call_1", found[0]["message"])
        self.assertEqual(kinds(self.chat(self.CALL, {"role": "user", "content": "never mind"})), ["dropped_tool_call"])

    def test_calls_that_are_answered(self):
        self.assertEqual(kinds(self.chat(self.CALL, self.output("call_2"), self.output("call_1"))), [])

    def test_an_output_that_nobody_asked_for(self):
        self.assertEqual(kinds(self.chat(self.output("call_9"))), ["orphan_tool_output"])

    def test_over_a_previous_response(self):
        first = entry(1, body={"input": "x"}, path="/v1/responses", response_id="resp_" + TAIL, call_ids=("call_1",))

        def after(*items):
            return entry(2, 1.0, {"input": list(items), "previous_response_id": "resp_" + TAIL}, path="/v1/responses")
        output = {"type": "function_call_output", "call_id": "call_1", "output": "1"}
        self.assertEqual(kinds(first, after(output)), [])
        self.assertEqual(kinds(first, after({"role": "user", "content": "x"})), ["dropped_tool_call"])
        self.assertEqual(kinds(first, after(output, dict(output, call_id="call_8"))), [])       # it may be an older one's
        refused = after(output, dict(output, call_id="call_8"))
        refused.status, refused.error = 400, "No tool call found for the tool output with call_id 'call_8'."
        self.assertEqual(kinds(first, refused), ["orphan_tool_output"])

    def test_stateless_responses(self):
        call = {"type": "function_call", "call_id": "c", "name": "f", "arguments": "{}"}
        output = {"type": "function_call_output", "call_id": "c", "output": "1"}
        self.assertEqual(kinds(entry(1, body={"input": [call, output]})), [])
        self.assertEqual(kinds(entry(1, body={"input": [call]})), ["dropped_tool_call"])
        self.assertEqual(kinds(entry(1, body={"input": [output]})), ["orphan_tool_output"])


class HistoryTest(unittest.TestCase):

    def setUp(self):
        self.first = entry(1, body={"input": "x"}, response_id="resp_" + TAIL, text="The sea is deep.")

    def after(self, *items):
        return entry(2, 1.0, {"input": list(items), "previous_response_id": "resp_" + TAIL})

    def test_what_the_server_has_is_sent_again(self):
        said = {"role": "assistant", "content": [{"type": "output_text", "text": "The sea is deep."}]}
        self.assertEqual(kinds(self.first, self.after(said, {"role": "user", "content": "more"})), ["resent_history"])
        self.assertEqual(kinds(self.first, self.after(dict(said, id="msg_%s01" % TAIL, content=[]))), ["resent_history"])

    def test_only_what_is_new(self):
        self.assertEqual(kinds(self.first, self.after({"role": "user", "content": "more"})), [])
        self.assertEqual(kinds(entry(1, body={"input": [{"role": "assistant", "content": "The sea is deep."}]})), [])


class OddBodiesTest(unittest.TestCase):

    def test_a_body_that_was_refused_for_its_types_has_no_say(self):
        odd = {"a": []}
        bodies = [{"model": odd, "previous_response_id": value, "conversation": value,
                   "input": [{"type": value, "id": value, "role": value, "call_id": value, "content": [value],
                              "tool_calls": [value], "tool_call_id": value}]} for value in (odd, [odd], 3, None)]
        asked = [entry(number, 100 * number, body, 400) for number, body in enumerate(bodies)]
        self.assertEqual(kinds(*asked, entry(9, 900, ASK, response_id="resp_" + TAIL)), [])


class ConnectionsTest(unittest.TestCase):

    def lone(self, count=LONE_CONNECTIONS, **fields):
        return [entry(number, number, messages(("user", str(number))), port=5000 + number, **fields)
                for number in range(1, count + 1)]

    def test_a_connection_for_each_request(self):
        self.assertEqual(kinds(*self.lone()), ["connection_per_request"])

    def test_a_pool_is_fine(self):
        entries = self.lone()
        entries[4].connection = entries[3].connection
        self.assertEqual(kinds(*entries), [])
        self.assertEqual(kinds(*self.lone(LONE_CONNECTIONS - 1)), [])
        self.assertEqual(kinds(*self.lone(ended_s=100.0)), [], "they ran beside each other")

    def test_where_the_server_did_not_offer_to_keep_it(self):
        self.assertEqual(kinds(*self.lone(keep_alive=False)), [])
        self.assertEqual(kinds(*self.lone(keep_alive=False, headers=())), [])

    def test_connections_that_stay_open(self):
        self.assertEqual(kinds(open_idle_s=[60.0] * (IDLE_CONNECTIONS + 1)), ["connections_left_open"])
        self.assertEqual(kinds(open_idle_s=[60.0] * IDLE_CONNECTIONS + [0.1] * 50), [])


class JournalTest(unittest.TestCase):

    def test_it_holds_no_more_of_a_body_than_a_bound_and_still_tells_bodies_apart(self):
        class Request:
            received_s, command, path, headers, head = 1.0, "POST", "/x", {}, None
            client_address, status, fault, keep_alive, counted = ("127.0.0.1", 1), 200, None, True, None
            faults_done, cut_off, completion, play, entry = (), False, None, None, None
            answer = b"HTTP/1.1 200 OK\r\n\r\n" + b"y" * 100000
        journal = Journal(3, FakeClock())
        for end in b"a", b"b", b"a":
            Request.body_bytes = b"x" * 200000 + end
            journal.end(Request, True)
        entries = journal.entries()
        self.assertEqual([len(each.body) for each in entries], [65536] * 3)
        self.assertEqual((entries[0].body_key == entries[2].body_key, entries[0].body_key == entries[1].body_key), (True, False))
        self.assertEqual((len(entries[0].answer), entries[0].body_size, entries[0].request()), (16384, 200001, {}))


class LiveVerdictTest(LiveServerTest):
    settings = {"journal": 50, "output_tokens": 6}

    def verdict(self):
        return self.request("GET", "/_mockturtle/verdict").json()

    def test_a_good_client_has_none(self):
        client = self.connect()
        first = client.request("POST", "/v1/responses", RESPONSE).json()
        client.request("POST", "/v1/responses", dict(RESPONSE, previous_response_id=first["id"]))
        client.request("POST", "/v1/chat/completions", CHAT)
        found = self.verdict()
        self.assertEqual((found["findings"], found["requests"], found["complete"]), ([], 3, True))

    def test_a_bad_one_has_them_with_the_requests_that_show_it(self):
        client = self.connect()
        self.server.faults.add("error:status=429,retry_after_s=60,times=1")
        for _ in range(2):
            client.request("POST", "/v1/chat/completions", CHAT)
        tool = {"type": "function", "name": "f", "parameters": {"type": "object", "properties": {}}}
        first = client.request("POST", "/v1/responses", dict(RESPONSE, tools=[tool], tool_choice="required")).json()
        client.request("POST", "/v1/responses", dict(RESPONSE, previous_response_id=first["id"]))
        seen = [(finding["kind"], finding["requests"]) for finding in self.verdict()["findings"]]
        self.assertEqual(seen, [("ignored_retry_after", ["request_1", "request_2"]),
                                ("dropped_tool_call", ["request_3", "request_4"])])

    def test_a_client_that_goes_on_from_a_cut_stream(self):
        client = self.connect()
        client.send_request("POST", "/v1/chat/completions", dict(CHAT, stream=True), {"x-mockturtle-fault": "cut:event=4"})
        answer = client.read_head()
        said = "".join(client.read_frame(answer).data["choices"][0]["delta"]["content"] for _ in range(3))
        client.read_to_end()
        self.request("POST", "/v1/chat/completions", dict(CHAT, messages=CHAT["messages"] + [
            {"role": "assistant", "content": said}, {"role": "user", "content": "go on"}]))
        self.assertEqual([finding["kind"] for finding in self.verdict()["findings"]], ["took_truncated_for_complete"])

    def test_what_has_left_the_journal_is_said(self):
        self.start_server(journal=2)
        for _ in range(3):
            self.request("GET", "/v1/models")
        self.assertEqual(self.verdict()["complete"], False)


if __name__ == "__main__":
    unittest.main()
