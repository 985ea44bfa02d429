"""Stored chat completions (api-reference 5), and the context's end in chat and legacy completions, over the wire."""
import time
import unittest

from api_common import ANSWER_TOKENS, MESSAGE_TOKENS, ApiError
from backends.contract import Finish, TextDelta, Usage
from state.contract import StoreFull
from state.memory import MemoryStore
from tests.data.golden import read_chat_stream
from tests.support import (CHAT, RESPONSE, DeltaBackend, GatedBackend, LiveServerTest, RawClient, chat_text, every_form,
                           wait_until)
from tests.test_schemas import MISSING, Schemas
from tokenizer import ApproxTokenizer

OPENAI = None if MISSING else Schemas("openai-subset.json")
TOKENIZER = ApproxTokenizer()
CHATS = "/v1/chat/completions"
UNKNOWN = "chatcmpl-" + "0" * 32
EMPTY_LIST = {"object": "list", "data": [], "first_id": None, "last_id": None, "has_more": False}
TOOL = {"type": "function", "function": {"name": "f", "parameters": {"type": "object", "properties": {}}}}


class ChatsLive(LiveServerTest):
    """Short words for the calls."""

    def create(self, **change):
        answer = self.request("POST", CHATS, dict(CHAT, **change))
        self.assertEqual(answer.status, 200, answer.body)
        return answer

    def stored(self, **change):
        """The object of a completion that is to be stored."""
        return self.create(store=True, **change).json()

    def call(self, method, tail="", json=None):
        return self.request(method, CHATS + tail, json)

    def good(self, method, tail="", json=None):
        answer = self.call(method, tail, json)
        self.assertEqual(answer.status, 200, answer.body)
        return answer.json()

    def ids(self, query=""):
        return [each["id"] for each in self.good("GET", query)["data"]]

    def assert_not_found(self, id):
        """404 in every path, and no response either."""
        for method, tail, body in (("GET", "", None), ("POST", "", {"metadata": {}}), ("DELETE", "", None),
                                   ("GET", "/messages", None)):
            with self.subTest(method=method, tail=tail):
                self.assert_error(self.call(method, "/" + id + tail, body), 404)

    def assert_error(self, answer, status, param=None, code=None):
        self.assertEqual(answer.status, status, answer.body)
        self.assertEqual((answer.error["type"], answer.error["param"], answer.error["code"]),
                         ("invalid_request_error", param, code))


@every_form
class StoreTest(ChatsLive):
    """What is stored, and what is not."""

    def test_nothing_is_stored_unless_asked_for(self):
        for change in ({}, {"store": False}, {"store": None}, {"metadata": {"a": "b"}}):
            for streamed in (False, True):
                with self.subTest(change=change, streamed=streamed):
                    answer = self.create(stream=streamed, **change)
                    id = answer.events()[0].data["id"] if streamed else answer.json()["id"]
                    self.assert_not_found(id)
        self.assertEqual(self.good("GET"), EMPTY_LIST)
        self.assertEqual(self.server.store.stats()["bytes"], 0)

    def test_a_plain_completion_is_stored_as_it_was_sent_with_its_metadata(self):
        for metadata in ({}, {"a": "b"}, {"\ud83d": "\"\\\n"}):
            made = self.stored(metadata=metadata)
            self.assertNotIn("metadata", made)
            self.assertEqual(self.good("GET", "/" + made["id"]), dict(made, metadata=metadata))

    def test_a_streamed_completion_is_stored_with_what_was_streamed(self):
        for options in ({}, {"stream_options": {"include_usage": True}}):
            answer = self.create(store=True, stream=True, metadata={"a": "b"}, **options)
            events = read_chat_stream(self, answer.body, bool(options))
            found = self.good("GET", "/" + answer.events()[0].data["id"])
            self.assertTrue(events)
            self.assertEqual((found["object"], found["metadata"]), ("chat.completion", {"a": "b"}))
            self.assertEqual(found["choices"][0]["message"]["content"], chat_text(answer.events()))
            self.assertEqual(found["usage"]["completion_tokens"], 8)

    def test_a_streamed_completion_can_be_retrieved_as_soon_as_its_end_is_read(self):
        client = RawClient(self.address)
        self.addCleanup(client.close)
        for _ in range(50):
            client.send_request("POST", CHATS, dict(CHAT, store=True, stream=True))
            answer, last = client.read_head(), None
            while True:
                event = client.read_frame(answer)
                if event.data == "[DONE]":
                    break
                last = event.data
            self.assertEqual(self.call("GET", "/" + last["id"]).status, 200)
            client.read_rest(answer)

    def test_all_choices_are_stored(self):
        made = self.stored(n=3)
        self.assertEqual(len(made["choices"]), 3)
        self.assertEqual(self.good("GET", "/" + made["id"])["choices"], made["choices"])
        answer = self.create(store=True, n=3, stream=True)
        found = self.good("GET", "/" + answer.events()[0].data["id"])
        texts = ["", "", ""]
        for event in answer.events()[:-1]:
            for choice in event.data["choices"]:
                texts[choice["index"]] += choice["delta"].get("content") or ""
        self.assertEqual([choice["message"]["content"] for choice in found["choices"]], texts)

    def test_tool_calls_are_stored(self):
        for streamed in (False, True):
            answer = self.create(store=True, tools=[TOOL], tool_choice="required", stream=streamed)
            id = answer.events()[0].data["id"] if streamed else answer.json()["id"]
            choice = self.good("GET", "/" + id)["choices"][0]
            self.assertEqual((choice["finish_reason"], choice["message"]["content"]), ("tool_calls", None))
            self.assertEqual(choice["message"]["tool_calls"][0]["function"]["name"], "f")
            if not streamed:
                self.assertEqual(choice, answer.json()["choices"][0])

    def test_an_answer_cut_at_its_limit_is_stored(self):
        made = self.stored(max_tokens=3, ignore_eos=True)
        self.assertEqual(self.good("GET", "/" + made["id"])["choices"][0]["finish_reason"], "length")

    def test_a_completion_that_failed_is_not_stored_and_fails_once(self):
        half, error = [(0.0, TextDelta("Half"))], ApiError(500, "It broke.", "server_error")
        server, stored = self.server, []
        for blocking in (False, True):
            for deltas in (half, [], half + [(0.0, Finish("stop")), (0.0, Usage(3, 1))]):
                server.handler_class.backend = DeltaBackend(deltas + [error], blocking)
                for streamed in (False, True):
                    answer = self.request("POST", CHATS, dict(CHAT, store=True, stream=streamed))
                    self.assertIn("It broke.", answer.text)
                    for id in self.ids():
                        stored.append((blocking, len(deltas), streamed))
                        self.good("DELETE", "/" + id)
        self.assertEqual((stored, self.take_errors()), ([], []))

    def test_a_completion_whose_client_left_is_not_stored(self):
        gated = GatedBackend()
        self.start_server(backend=gated)
        client = self.connect()
        client.send_request("POST", CHATS, dict(CHAT, store=True, stream=True))
        generation = gated.next()
        generation.say("Half")
        client.read_frame(client.read_head())
        client.close()
        self.assertTrue(generation.cancelled.wait(10))
        self.assertEqual(self.good("GET"), EMPTY_LIST)

    def test_a_completion_is_not_there_before_its_end(self):
        gated = GatedBackend()
        self.start_server(backend=gated)
        client = self.connect()
        client.send_request("POST", CHATS, dict(CHAT, store=True, stream=True))
        generation = gated.next()
        generation.say("Half")
        answer = client.read_head()
        id = client.read_frame(answer).data["id"]
        self.assert_not_found(id)
        generation.finish()
        client.read_rest(answer)
        self.assertEqual(self.ids(), [id])

    def test_a_full_store_fails_the_answer(self):
        self.start_server(store=MemoryStore(max_bytes=3000))
        first = self.stored()
        before = self.server.store.stats()
        big = [{"role": "user", "content": "x" * 4000}]
        answer = self.request("POST", CHATS, dict(CHAT, store=True, messages=big))
        self.assertEqual((answer.status, answer.error["type"]), (500, "server_error"))
        events = self.stream(CHATS, dict(CHAT, store=True, messages=big))
        self.assertEqual(events[-1].data["error"]["type"], "server_error")
        self.assertEqual(self.server.store.stats(), before)
        self.assertEqual(self.ids(), [first["id"]])
        self.assertEqual(self.create(messages=big).status, 200)

    def test_the_field_is_no_ignored_one(self):
        answer = self.create(store=True, metadata={"a": "b"})
        self.assertNotIn("x-mockturtle-ignored", answer.headers)

    def test_bad_values_are_refused(self):
        for change, param, code in (({"store": "yes"}, "store", "invalid_type"),
                                    ({"store": 1}, "store", "invalid_type"),
                                    ({"metadata": {"a": 1}}, "metadata.a", "invalid_type"),
                                    ({"metadata": {str(n): "" for n in range(17)}}, "metadata",
                                     "object_above_max_properties")):
            with self.subTest(change=str(change)[:60]):
                answer = self.request("POST", CHATS, dict(CHAT, **dict({"store": True}, **change)))
                self.assert_error(answer, 400, param, code)
        self.assertEqual(self.ids(), [])


@every_form
class ListTest(ChatsLive):

    def make_some(self):
        """Five stored ones, oldest first."""
        self.start_server(model=("a", "b"))
        return [self.stored(model="ab"[number % 2], metadata={"n": str(number), "half": str(number // 3), "none": ""})
                ["id"] for number in range(5)]

    def test_an_empty_list_has_no_ids(self):
        self.assertEqual(self.good("GET"), EMPTY_LIST)

    def test_oldest_first_is_the_default(self):
        ids = self.make_some()
        self.assertEqual((self.ids(), self.ids("?order=asc"), self.ids("?order=desc")), (ids, ids, ids[::-1]))
        page = self.good("GET")
        self.assertEqual((page["object"], page["first_id"], page["last_id"], page["has_more"]),
                         ("list", ids[0], ids[-1], False))
        self.assertEqual(page["data"], [self.good("GET", "/" + id) for id in ids])

    def test_pages_follow_each_other_in_both_orders(self):
        ids = self.make_some()
        for order, whole in (("asc", ids), ("desc", ids[::-1])):
            for limit in (1, 2, 5):
                found, after = [], ""
                with self.subTest(order=order, limit=limit):
                    while True:
                        page = self.good("GET", "?order=%s&limit=%d%s" % (order, limit, after))
                        self.assertLessEqual(len(page["data"]), limit)
                        found += [each["id"] for each in page["data"]]
                        self.assertEqual((page["last_id"], page["has_more"]), (found[-1], len(found) < 5))
                        if not page["has_more"]:
                            break
                        after = "&after=" + page["last_id"]
                    self.assertEqual(found, whole)
            self.assertEqual(self.good("GET", "?order=%s&after=%s" % (order, whole[-1])), EMPTY_LIST)

    def test_a_page_has_20_unless_it_says_otherwise(self):
        for _ in range(21):
            self.stored()
        page = self.good("GET")
        self.assertEqual((len(page["data"]), page["has_more"]), (20, True))
        self.assertEqual(len(self.ids("?limit=100")), 21)

    def test_filters_by_model_and_metadata(self):
        ids = self.make_some()
        for query, numbers in (("model=a", [0, 2, 4]), ("model=b", [1, 3]), ("model=none", []),
                               ("metadata[n]=3", [3]), ("metadata%5Bn%5D=3", [3]), ("metadata[half]=0", [0, 1, 2]),
                               ("metadata[half]=0&metadata[n]=1", [1]), ("metadata[half]=1&metadata[n]=1", []),
                               ("metadata[none]=", [0, 1, 2, 3, 4]), ("metadata[nope]=", []),
                               ("metadata[half]=0&model=a", [0, 2]), ("metadata[half]=0&model=a&order=desc", [2, 0]),
                               ("model=a&limit=2", [0, 2]), ("model=a&after=" + ids[2], [4])):
            with self.subTest(query=query):
                self.assertEqual(self.ids("?" + query), [ids[number] for number in numbers])
        self.assertTrue(self.good("GET", "?model=a&limit=2")["has_more"])
        self.assertFalse(self.good("GET", "?model=b&limit=2")["has_more"])

    def test_filters_go_by_the_metadata_as_it_is_now(self):
        id = self.stored(metadata={"a": "1"})["id"]
        self.good("POST", "/" + id, {"metadata": {"a": "2"}})
        self.assertEqual((self.ids("?metadata[a]=1"), self.ids("?metadata[a]=2")), ([], [id]))

    def test_bad_queries_are_refused(self):
        self.make_some()
        for query, param, code in (("limit=0", "limit", "integer_below_min_value"),
                                   ("limit=101", "limit", "integer_above_max_value"),
                                   ("limit=x", "limit", "invalid_type"), ("order=up", "order", "invalid_value"),
                                   ("after=" + UNKNOWN, "after", "invalid_value")):
            with self.subTest(query=query):
                self.assert_error(self.call("GET", "?" + query), 400, param, code)

    def test_responses_are_not_listed(self):
        self.request("POST", "/v1/responses", RESPONSE)
        self.request("POST", "/v1/conversations", {})
        self.assertEqual(self.good("GET"), EMPTY_LIST)


@every_form
class OneTest(ChatsLive):
    """Retrieve, update, delete."""

    def test_update_replaces_the_metadata_and_nothing_else(self):
        made = self.stored(metadata={"a": "1", "b": "2"})
        others = self.stored(), self.stored()
        for metadata in ({"b": "3"}, {}, {"\ud83d": "\"}"}, {"c": "4" * 512}):
            changed = self.good("POST", "/" + made["id"], {"metadata": metadata})
            self.assertEqual(changed, dict(made, metadata=metadata))
            self.assertEqual(self.good("GET", "/" + made["id"]), changed)
        self.assertEqual(self.ids(), [made["id"], others[0]["id"], others[1]["id"]])
        self.assertEqual(len(self.good("GET", "/%s/messages" % made["id"])["data"]), 1)

    def test_faults_of_update_leave_it_as_it_was(self):
        id = self.stored(metadata={"a": "1"})["id"]
        before = self.good("GET", "/" + id)
        for body, param, code in (({}, "metadata", "missing_required_parameter"), ({"metadata": []}, "metadata",
                                                                                   "invalid_type"),
                                  ({"metadata": {"a": 1}}, "metadata.a", "invalid_type"),
                                  ({"metadata": {"k" * 65: ""}}, "metadata." + "k" * 65, "string_above_max_length"),
                                  ({"metadata": {"a": "v" * 513}}, "metadata.a", "string_above_max_length"),
                                  ({"metadata": {str(n): "" for n in range(17)}}, "metadata",
                                   "object_above_max_properties")):
            with self.subTest(body=str(body)[:60]):
                self.assert_error(self.call("POST", "/" + id, body), 400, param, code)
        self.assertEqual(self.good("GET", "/" + id), before)

    def test_strict_mode_refuses_unknown_fields_of_update(self):
        self.start_server(strict=True)
        id = self.stored()["id"]
        self.assert_error(self.call("POST", "/" + id, {"metadata": {}, "x": 1}), 400, "x", "unknown_parameter")

    def test_a_deleted_one_is_unknown(self):
        id, other = self.stored()["id"], self.stored()["id"]
        self.assertEqual(self.good("DELETE", "/" + id),
                         {"object": "chat.completion.deleted", "id": id, "deleted": True})
        self.assert_not_found(id)
        self.assertEqual(self.ids(), [other])
        self.assert_error(self.call("GET", "?after=" + id), 400, "after", "invalid_value")
        self.good("DELETE", "/" + other)
        self.assertEqual(self.server.store.stats()["bytes"], 0)

    def test_unknown_ids_are_not_found(self):
        self.stored()
        for id in (UNKNOWN, "nope", "chatcmpl-"):
            self.assert_not_found(id)

    def test_a_stored_chat_is_no_response(self):
        id = self.stored()["id"]
        for given in (id, "resp_" + id[9:]):
            for method, tail in (("GET", ""), ("GET", "/input_items"), ("POST", "/cancel"), ("DELETE", "")):
                with self.subTest(id=given, method=method, tail=tail):
                    self.assertEqual(self.request(method, "/v1/responses/" + given + tail).status, 404)
            answer = self.request("POST", "/v1/responses", dict(RESPONSE, previous_response_id=given))
            self.assert_error(answer, 400, "previous_response_id", "previous_response_not_found")
        self.assertEqual(self.ids(), [id])

    def test_a_response_is_no_stored_chat(self):
        id = self.request("POST", "/v1/responses", RESPONSE).json()["id"]
        self.assert_not_found(id)
        self.assert_not_found("chatcmpl-" + id[5:])
        self.assertEqual(self.request("GET", "/v1/responses/" + id).status, 200)

    def test_methods_that_no_path_has_are_405(self):
        id = self.stored()["id"]
        for method, tail in (("DELETE", ""), ("PUT", "/" + id), ("POST", "/%s/messages" % id)):
            with self.subTest(method=method, tail=tail):
                self.assertEqual(self.call(method, tail).status, 405)

    def test_a_path_without_the_prefix_is_the_same(self):
        id = self.stored()["id"]
        self.assertEqual(self.request("GET", "/chat/completions/" + id).json(), self.good("GET", "/" + id))


PARTS = [{"type": "text", "text": "see "}, {"type": "image_url", "image_url": {"url": "http://example.test/x.png"}},
         {"type": "text", "text": "this"}]
MESSAGES = [{"role": "system", "content": "rule"}, {"role": "user", "content": PARTS, "name": "me"},
            {"role": "assistant", "content": None, "tool_calls": [
                {"id": "call_a", "type": "function", "function": {"name": "f", "arguments": "{}"}}]},
            {"role": "tool", "tool_call_id": "call_a", "content": "out"},
            {"role": "assistant", "content": [{"type": "refusal", "refusal": "no"}], "refusal": "no"},
            {"role": "user", "content": "on"}]


@every_form
class MessagesTest(ChatsLive):

    def messages(self, id, query=""):
        return self.good("GET", "/%s/messages%s" % (id, query))

    def test_the_input_messages_in_order_with_ids_of_the_completion(self):
        id = self.stored(messages=MESSAGES)["id"]
        page = self.messages(id)
        self.assertEqual([message["id"] for message in page["data"]], ["%s-%d" % (id, n) for n in range(6)])
        self.assertEqual((page["object"], page["first_id"], page["last_id"], page["has_more"]),
                         ("list", id + "-0", id + "-5", False))
        self.assertEqual([message["role"] for message in page["data"]], [message["role"] for message in MESSAGES])
        for message in page["data"]:
            self.assertLessEqual({"id", "role", "content", "refusal", "content_parts"}, set(message))
        self.assertEqual(page["data"][2]["tool_calls"], MESSAGES[2]["tool_calls"])
        self.assertEqual((page["data"][3]["tool_call_id"], page["data"][1]["name"]), ("call_a", "me"))
        self.assertEqual([message["refusal"] for message in page["data"]], [None, None, None, None, "no", None])

    def test_text_is_in_content_and_parts_beside_it(self):
        id = self.stored(messages=MESSAGES)["id"]
        data = self.messages(id)["data"]
        self.assertEqual([message["content"] for message in data[:4]], ["rule", "see this", None, "out"])
        self.assertEqual([message["content_parts"] for message in data[:4]], [None, PARTS, None, None])

    def test_pages_follow_each_other_in_both_orders(self):
        id = self.stored(messages=MESSAGES)["id"]
        whole = self.messages(id)["data"]
        self.assertEqual(self.messages(id, "?order=desc")["data"], whole[::-1])
        for order in ("asc", "desc"):
            found, after = [], ""
            with self.subTest(order=order):
                while True:
                    page = self.messages(id, "?limit=4&order=%s%s" % (order, after))
                    found += page["data"]
                    if not page["has_more"]:
                        break
                    self.assertEqual(len(page["data"]), 4)
                    after = "&after=" + page["last_id"]
                self.assertEqual(found, whole if order == "asc" else whole[::-1])
        self.assertEqual(self.messages(id, "?after=%s-5" % id), EMPTY_LIST)

    def test_bad_queries_are_refused(self):
        id = self.stored()["id"]
        for query, param, code in (("limit=0", "limit", "integer_below_min_value"),
                                   ("order=up", "order", "invalid_value"),
                                   ("limit=101", "limit", "integer_above_max_value"),
                                   ("after=%s-9" % id, "after", "invalid_value")):
            with self.subTest(query=query):
                self.assert_error(self.call("GET", "/%s/messages?%s" % (id, query)), 400, param, code)

    def test_the_answer_is_not_among_them(self):
        made = self.stored()
        texts = [message["content"] for message in self.messages(made["id"])["data"]]
        self.assertEqual(texts, ["Hello"])

    def test_large_messages_through_a_worker_are_stored_whole(self):
        text = "lorem ipsum " * 20000
        for streamed in (False, True):
            answer = self.create(store=True, stream=streamed, messages=[{"role": "user", "content": text}])
            id = answer.events()[0].data["id"] if streamed else answer.json()["id"]
            self.assertEqual(self.messages(id)["data"][0]["content"], text)


@every_form
class BoundsTest(ChatsLive):

    def test_the_least_recently_used_is_evicted(self):
        self.start_server(max_responses=2)
        first, second = self.stored()["id"], self.stored()["id"]
        self.good("GET", "/" + first)
        third = self.stored()["id"]
        self.assert_not_found(second)
        self.assertEqual(self.ids(), [first, third])

    def test_an_old_one_is_gone(self):
        wall = Wall()
        self.start_server(store=MemoryStore(ttl_s=60.0, wall=wall))
        id = self.stored()["id"]
        self.assertEqual(self.ids(), [id])
        wall.shift_s = 61.0
        self.assertEqual(self.ids(), [])
        self.assert_not_found(id)
        wait_until(lambda: self.server.store.stats()["bytes"] == 0, "the sweep")

    def test_chats_and_responses_share_the_bound(self):
        self.start_server(max_responses=2)
        id = self.stored()["id"]
        for _ in range(2):
            self.request("POST", "/v1/responses", RESPONSE)
        self.assert_not_found(id)


class Wall:
    """The real time, moved on by shift_s."""

    shift_s = 0.0

    def __call__(self):
        return time.time() + self.shift_s


class WaitingStore(MemoryStore):
    blocking = True


class FullStore(MemoryStore):
    """Takes nothing. blocking as asked for."""

    def __init__(self, blocking):
        MemoryStore.__init__(self)
        self.blocking = blocking

    def put(self, node, conversation=None):
        raise StoreFull("It is full.")


@every_form
class OtherStoresTest(ChatsLive):

    def test_all_calls_over_a_store_that_waits(self):
        self.start_server(store=WaitingStore())
        for streamed in (False, True):
            answer = self.create(store=True, stream=streamed, metadata={"a": "b"})
            id = answer.events()[0].data["id"] if streamed else answer.json()["id"]
            self.assertEqual(self.ids("?metadata[a]=b"), [id])
            self.assertEqual(self.good("POST", "/" + id, {"metadata": {}})["metadata"], {})
            self.assertEqual(len(self.good("GET", "/%s/messages" % id)["data"]), 1)
            self.good("DELETE", "/" + id)
            self.assert_not_found(id)

    def test_a_store_that_takes_nothing_fails_the_answers_that_are_to_be_stored(self):
        for blocking in (False, True):
            with self.subTest(blocking=blocking):
                store = FullStore(blocking)
                self.server.store = self.server.handler_class.store = store
                answer = self.request("POST", CHATS, dict(CHAT, store=True))
                self.assertEqual((answer.status, answer.error["type"]), (500, "server_error"))
                events = self.stream(CHATS, dict(CHAT, store=True))
                self.assertEqual(events[-1].data["error"]["type"], "server_error")
                self.assertEqual(self.create(stream=True).status, 200)


# ---- the context's end ------------------------------------------------------------------------

MAX = 60


def chat_of(tokens):
    """A chat whose prompt has so many tokens."""
    text = "word" + " word" * (tokens - ANSWER_TOKENS - MESSAGE_TOKENS - 1)
    assert TOKENIZER.count(text) + ANSWER_TOKENS + MESSAGE_TOKENS == tokens
    return {"model": "m", "messages": [{"role": "user", "content": text}]}


def prompt_of(tokens):
    return {"model": "m", "prompt": [5] * tokens}


WAYS = ((CHATS, "messages", chat_of), ("/v1/completions", "prompt", prompt_of))


@every_form
class ContextTest(LiveServerTest):
    settings = {"max_model_len": MAX, "output_tokens": 1000}

    def assert_too_long(self, path, body, param):
        """400 before the stream, and nothing generated."""
        for streamed in (False, True):
            answer = self.request("POST", path, dict(body, stream=streamed))
            self.assertEqual(answer.status, 400, answer.body)
            self.assertEqual((answer.error["type"], answer.error["param"], answer.error["code"]),
                             ("invalid_request_error", param, "context_length_exceeded"))
            self.assertIn(str(MAX), answer.error["message"])
            self.assertEqual(answer.headers["content-type"], "application/json")
        self.assertEqual(self.count("completions"), 0)

    def usage_and_reasons(self, path, body, streamed=False):
        if not streamed:
            answer = self.request("POST", path, body)
            self.assertEqual(answer.status, 200, answer.body)
            found = answer.json()
            return found["usage"], [choice["finish_reason"] for choice in found["choices"]]
        events = self.stream(path, dict(body, stream_options={"include_usage": True}))
        reasons = [choice["finish_reason"] for event in events[:-2] for choice in event.data["choices"]]
        return events[-2].data["usage"], [reason for reason in reasons if reason]

    def test_a_prompt_that_fills_the_context_is_refused(self):
        for path, param, build in WAYS:
            for tokens in (MAX, MAX + 1, 10 * MAX):
                for change in ({}, {"max_tokens": 1}):
                    with self.subTest(path=path, tokens=tokens, change=change):
                        self.assert_too_long(path, dict(build(tokens), **change), param)

    def test_prompt_and_limit_that_do_not_fit_together_are_refused(self):
        for path, param, build in WAYS:
            for change in ({"max_tokens": 21}, {"max_tokens": 10 ** 5}, {"max_tokens": 21, "ignore_eos": True}):
                with self.subTest(path=path, change=change):
                    self.assert_too_long(path, dict(build(MAX - 20), **change), param)
        self.assert_too_long(CHATS, dict(chat_of(MAX - 20), max_completion_tokens=21), "messages")

    def test_prompt_and_limit_that_just_fit_are_answered(self):
        for path, _, build in WAYS:
            for streamed in (False, True):
                with self.subTest(path=path, streamed=streamed):
                    usage, reasons = self.usage_and_reasons(path, dict(build(MAX - 20), max_tokens=20), streamed)
                    self.assertEqual((usage["total_tokens"], reasons), (MAX, ["length"]))

    def test_without_a_limit_a_chat_ends_where_the_context_does(self):
        for tokens in (MAX - 1, MAX - 20):
            for change in ({}, {"ignore_eos": True}, {"n": 2}, {"max_tokens": None}):
                for streamed in (False, True):
                    with self.subTest(tokens=tokens, change=change, streamed=streamed):
                        usage, reasons = self.usage_and_reasons(CHATS, dict(chat_of(tokens), **change), streamed)
                        n = change.get("n", 1)
                        self.assertEqual(usage["completion_tokens"], n * (MAX - tokens))
                        self.assertEqual(reasons, ["length"] * n)

    def test_legacy_completions_have_16_tokens_as_their_limit(self):
        for change in ({}, {"max_tokens": None}):
            usage, reasons = self.usage_and_reasons("/v1/completions", dict(prompt_of(MAX - 16), **change))
            self.assertEqual((usage["total_tokens"], reasons), (MAX, ["length"]))

    def test_legacy_completions_without_a_limit_end_where_the_context_does(self):
        for streamed in (False, True):
            usage, reasons = self.usage_and_reasons("/v1/completions", prompt_of(MAX - 5), streamed)
            self.assertEqual((usage["completion_tokens"], reasons), (5, ["length"]))

    def test_a_prompt_that_is_only_scored_may_fill_the_context(self):
        # echo and max_tokens 0: nothing comes behind it (api-reference 6.2)
        usage, reasons = self.usage_and_reasons("/v1/completions", dict(
            prompt_of(MAX), max_tokens=0, echo=True, logprobs=1))
        self.assertEqual((usage["prompt_tokens"], usage["completion_tokens"], reasons), (MAX, 0, ["length"]))
        self.assert_refused_when_longer()

    def assert_refused_when_longer(self):
        answer = self.request("POST", "/v1/completions", dict(prompt_of(MAX + 1), max_tokens=0, echo=True, logprobs=1))
        self.assertEqual((answer.status, answer.error["code"]), (400, "context_length_exceeded"))

    def test_one_prompt_of_a_batch_that_is_too_long_refuses_all(self):
        self.assert_too_long("/v1/completions", {"model": "m", "prompt": [[5] * 3, [5] * (MAX + 1)]}, "prompt")

    def test_a_forced_length_never_passes_the_contexts_end(self):
        for path, build in ((CHATS, chat_of),):
            answer = self.request("POST", path, dict(build(MAX - 20), min_tokens=40))
            if answer.status == 200:
                self.assertLessEqual(answer.json()["usage"]["total_tokens"], MAX)
            else:
                self.assertEqual((answer.status, answer.error["code"]), (400, "context_length_exceeded"))

    def test_tool_definitions_count(self):
        usage, _ = self.usage_and_reasons(CHATS, dict(chat_of(20), tools=[TOOL], tool_choice="none", max_tokens=1))
        self.assertGreater(usage["prompt_tokens"], 20)
        long_tool = {"type": "function", "function": {"name": "f", "description": "word " * MAX}}
        self.assert_too_longer(dict(chat_of(20), tools=[long_tool]))

    def assert_too_longer(self, body):
        answer = self.request("POST", CHATS, body)
        self.assertEqual((answer.status, answer.error["code"], answer.error["param"]),
                         (400, "context_length_exceeded", "messages"))

    def test_another_fault_is_told_first(self):
        answer = self.request("POST", CHATS, dict(chat_of(10 * MAX), temperature=9))
        self.assertEqual((answer.status, answer.error["param"]), (400, "temperature"))

    def test_a_refused_one_is_not_stored(self):
        self.assert_too_long(CHATS, dict(chat_of(MAX), store=True), "messages")
        self.assertEqual(self.request("GET", CHATS).json(), EMPTY_LIST)

    def test_the_error_is_an_envelope_of_four_keys(self):
        self.assertEqual(set(self.request("POST", CHATS, chat_of(MAX)).error), {"message", "type", "param", "code"})


# ---- schemas ----------------------------------------------------------------------------------

@unittest.skipIf(MISSING, MISSING)
class StoredChatSchemaTest(ChatsLive):

    def check(self, name, value):
        OPENAI.check(self, name, value)
        return value

    def test_bodies_of_all_calls_are_what_the_schema_says(self):
        made = [self.stored(messages=MESSAGES, metadata={"a": "b"})["id"], self.stored(n=2)["id"],
                self.stored(tools=[TOOL], tool_choice="required")["id"],
                self.create(store=True, stream=True).events()[0].data["id"]]
        for id in made:
            self.check("CreateChatCompletionResponse", self.good("GET", "/" + id))
            self.check("CreateChatCompletionResponse", self.good("POST", "/" + id, {"metadata": {"c": "d"}}))
        page = self.check("ChatCompletionList", self.good("GET"))
        self.assertEqual([each["id"] for each in page["data"]], made)
        self.check("ErrorResponse", self.call("GET", "/" + UNKNOWN).json())
        self.check("ChatCompletionDeleted", self.good("DELETE", "/" + made[0]))

    def test_messages_are_what_the_schema_says(self):
        made = self.stored(messages=[{"role": "assistant", "content": "yes"}, MESSAGES[2], MESSAGES[3],
                                     {"role": "user", "content": PARTS}])
        page = self.good("GET", "/%s/messages" % made["id"])
        for message in page["data"]:
            # the schema has the role of an answer for all of them, which input messages contradict
            message["role"] = "assistant"
        self.check("ChatCompletionMessageList", page)
        self.assertEqual(len(page["data"]), 4)

    def test_an_overflow_is_what_the_schema_says(self):
        self.start_server(max_model_len=MAX)
        for path, _, build in WAYS:
            self.check("ErrorResponse", self.request("POST", path, build(MAX)).json())


if __name__ == "__main__":
    unittest.main()
