"""Conversations over the wire, on every form of the transport: api-reference 11.4 and its rows of 2.2."""
import random
import threading
import time
import unittest

from api_common import ANSWER_TOKENS, MESSAGE_TOKENS, ApiError
from backends.contract import Backend, Failure, Finish, ReasoningDelta, TextDelta, ToolCallDelta, Usage
from responses_items import seal_text
from state.memory import MemoryStore
from tests.data.golden import read_response_stream
from tests.support import (RESPONSE, TIMEOUT_S, FakeClock, GatedBackend, LiveServerTest, ShiftedClock, every_form,
                           wait_until)
from tests.test_schemas import MISSING, Schemas
from tokenizer import ApproxTokenizer

OPENAI = None if MISSING else Schemas("openai-subset.json")
TOKENIZER = ApproxTokenizer()
NEVER_S = 1e6                           # due so late that it stays in progress
UNKNOWN = "conv_" + "0" * 32
TOOL = {"type": "function", "name": "f", "parameters": {"type": "object"}}
CALL = {"type": "function_call", "call_id": "call_a", "name": "f", "arguments": "{}"}
OUTPUT = {"type": "function_call_output", "call_id": "call_a", "output": "sunny"}


def words(text):
    return {"role": "user", "content": text}


class WordBackend(Backend):
    """Does what the last user message's first word says; anything else is answered with "Re: " and it."""

    def __init__(self, blocking=False):
        self.blocking = blocking
        self.requests = []

    def generate(self, request, cancel):
        self.requests.append(request)
        word = request.history.last_user_text.partition(" ")[0]
        if word == "refuse":
            raise ApiError(400, "Not this.", param="input")
        if word == "raise":
            raise RuntimeError("secret of the backend")
        deltas = self._deltas(word, request)
        return self._waiting(deltas, cancel) if self.blocking else deltas

    def _deltas(self, word, request):
        text = "Re: " + request.history.last_user_text
        usage = Usage(request.history.tokens, TOKENIZER.count(text))
        if word == "fail":
            return [(0.0, TextDelta("Half")), (0.0, Failure(ApiError(500, "It broke.", "server_error")))]
        if word == "wait":
            return [(0.0, TextDelta("Half")), (NEVER_S, TextDelta(" and more")), (NEVER_S, Finish()), (NEVER_S, usage)]
        if word == "call":
            return [(0.0, ToolCallDelta(0, "{}", "call_a", "f")), (0.0, Finish("tool_calls")), (0.0, usage)]
        if word == "think":
            return [(0.0, ReasoningDelta("Let me think about it for a while.")), (0.0, TextDelta(text)),
                    (0.0, Finish()), (0.0, Usage(usage.prompt_tokens, usage.completion_tokens + 100, 100))]
        return [(0.0, TextDelta(text)), (0.0, Finish("length" if word == "length" else "stop")), (0.0, usage)]

    @staticmethod
    def _waiting(deltas, cancel):
        for due_s, delta in deltas:
            if due_s == NEVER_S:
                cancel.wait(3 * TIMEOUT_S)
                return
            yield due_s, delta


class ConversationsLive(LiveServerTest):
    """Short words for the calls."""

    def make_backend(self):
        self.backend = WordBackend()
        return self.backend

    def call(self, method, path="", json=None):
        return self.request(method, "/v1/conversations" + path, json)

    def good(self, method, path="", json=None):
        answer = self.call(method, path, json)
        self.assertEqual(answer.status, 200, answer.body)
        return answer.json()

    def new(self, *texts, **body):
        """The id of a new conversation with these user messages."""
        if texts:
            body["items"] = [words(text) for text in texts]
        return self.good("POST", "", body)["id"]

    def add(self, id, *items):
        return self.good("POST", "/%s/items" % id, {"items": [words(item) if isinstance(item, str) else item
                                                              for item in items]})["data"]

    def items(self, id, query="?order=asc&limit=100"):
        return self.good("GET", "/%s/items%s" % (id, query))["data"]

    def texts(self, id, query="?order=asc&limit=100"):
        return [item["content"][0]["text"] for item in self.items(id, query)]

    def drop(self, id, item):
        return self.good("DELETE", "/%s/items/%s" % (id, item))

    def create(self, conversation, **change):
        """The answer to a response in a conversation."""
        return self.request("POST", "/v1/responses", dict(RESPONSE, conversation=conversation, **change))

    def turn(self, conversation, input, streamed=False, **change):
        """The object of a response that must have been created."""
        answer = self.create(conversation, input=input, stream=streamed, **change)
        self.assertEqual(answer.status, 200, answer.body)
        return read_response_stream(self, answer.body)[-1]["response"] if streamed else answer.json()

    def chained(self, previous, **change):
        answer = self.request("POST", "/v1/responses", dict(RESPONSE, previous_response_id=previous, **change))
        self.assertEqual(answer.status, 200, answer.body)
        return answer.json()

    def get(self, id, tail=""):
        return self.request("GET", "/v1/responses/%s%s" % (id, tail))

    def poll(self, id, status):
        """The object of a background response when it has this status."""
        return wait_until(lambda: (lambda found: found if found["status"] == status else None)(self.get(id).json()),
                          "%s to be %s" % (id, status))

    def context(self):
        """What the backend was told last, as [(role, content)]."""
        return [(message["role"], message.get("content")) for message in self.backend.requests[-1].history.messages()]

    def assert_error(self, answer, status, param=None, code=None):
        self.assertEqual(answer.status, status, answer.body)
        self.assertEqual((answer.status, answer.error["type"], answer.error["param"], answer.error["code"]),
                         (status, "invalid_request_error", param, code), answer.body)

    def assert_locked(self, answer):
        self.assert_error(answer, 400, "conversation", "conversation_locked")

    def assert_free(self, id):
        """Somebody else may write now, not later."""
        self.add(id, "free")

    def wait_free(self, id):
        """Somebody else may write soon: the server has to notice first that a client has left."""
        def tried():
            answer = self.call("POST", "/%s/items" % id, {"items": [words("free")]})
            if answer.status != 200:
                self.assert_locked(answer)
            return answer.status == 200
        wait_until(tried, "the conversation to be free")

    def half_read(self, conversation, **change):
        """(client, id): one that has read the first piece of a response that does not end."""
        client = self.connect()
        client.send_request("POST", "/v1/responses", dict(RESPONSE, conversation=conversation, stream=True, **change))
        answer = client.read_head()
        self.assertEqual(answer.status, 200)
        id = client.read_frame(answer).data["response"]["id"]
        while client.read_frame(answer).name != "response.output_text.delta":
            pass
        return client, id


# ---- the conversation itself ------------------------------------------------------------------

@every_form
class ConversationTest(ConversationsLive):

    def test_create_without_a_body_and_with_an_empty_one(self):
        before = int(time.time())
        for answer in (self.request("POST", "/v1/conversations"), self.request("POST", "/v1/conversations", {}),
                       self.request("POST", "/v1/conversations", {"metadata": None, "items": None})):
            self.assertEqual(answer.status, 200, answer.body)
            made = answer.json()
            self.assertRegex(made["id"], r"\Aconv_[0-9a-f]{32}\Z")
            self.assertLessEqual(before, made["created_at"])
            self.assertEqual(made, {"id": made["id"], "object": "conversation", "created_at": made["created_at"],
                                    "metadata": {}})
            self.assertEqual(self.good("GET", "/%s/items" % made["id"]), {
                "object": "list", "data": [], "first_id": None, "last_id": None, "has_more": False})

    def test_create_with_metadata_and_retrieve_give_the_same_object(self):
        made = self.good("POST", "", {"metadata": {"topic": "demo", "empty": ""}})
        self.assertEqual(made["metadata"], {"topic": "demo", "empty": ""})
        self.assertEqual(self.good("GET", "/" + made["id"]), made)

    def test_create_takes_up_to_20_items_in_order(self):
        given = ["number %d" % number for number in range(20)]
        self.assertEqual(self.texts(self.new(*given)), given)
        self.assert_error(self.call("POST", "", {"items": [words("x")] * 21}), 400, "items", "array_above_max_length")
        self.assertEqual(self.server.store.stats()["conversations"], 1)

    def test_create_with_an_empty_list_of_items_is_an_empty_conversation(self):
        self.assertEqual(self.items(self.new(items=[])), [])

    def test_faults_of_create_name_their_place_and_make_nothing(self):
        for body, param, code in (
                ({"metadata": "x"}, "metadata", "invalid_type"), ({"metadata": {"a": 1}}, "metadata.a", "invalid_type"),
                ({"metadata": {str(n): "" for n in range(17)}}, "metadata", "object_above_max_properties"),
                ({"metadata": {"k" * 65: ""}}, "metadata." + "k" * 65, "string_above_max_length"),
                ({"metadata": {"k": "v" * 513}}, "metadata.k", "string_above_max_length"),
                ({"items": "x"}, "items", "invalid_type"), ({"items": ["x"]}, "items[0]", "invalid_type"),
                ({"items": [words("x"), {"type": "robot"}]}, "items[1].type", "invalid_value"),
                ({"items": [OUTPUT]}, "items", None)):
            with self.subTest(body=str(body)[:80]):
                self.assert_error(self.call("POST", "", body), 400, param, code)
        for body in (b"[]", b"{", b"5", b'"x"'):
            with self.subTest(body=body):
                self.assert_error(self.request("POST", "/v1/conversations", body=body), 400)
        self.assertEqual((self.server.store.stats()["conversations"], self.server.store.stats()["bytes"]), (0, 0))

    def test_metadata_at_its_limits_is_taken(self):
        full = {("%02d" % number).ljust(64, "k"): "v" * 512 for number in range(16)}
        self.assertEqual(self.good("GET", "/" + self.new(metadata=full))["metadata"], full)

    def test_update_replaces_the_metadata_as_a_whole(self):
        made = self.good("POST", "", {"metadata": {"a": "1", "b": "2"}, "items": [words("x")]})
        for metadata in ({"b": "3"}, {}, {"c": "4"}):
            changed = self.good("POST", "/" + made["id"], {"metadata": metadata})
            self.assertEqual(changed, dict(made, metadata=metadata))
            self.assertEqual(self.good("GET", "/" + made["id"]), changed)
        self.assertEqual(self.texts(made["id"]), ["x"])

    def test_faults_of_update_leave_it_as_it_was(self):
        made = self.good("POST", "", {"metadata": {"a": "1"}})
        for body, param, code in (({}, "metadata", "missing_required_parameter"),
                                  ({"items": []}, "metadata", "missing_required_parameter"),
                                  ({"metadata": "x"}, "metadata", "invalid_type"),
                                  ({"metadata": {"a": None}}, "metadata.a", "invalid_type"),
                                  ({"metadata": {str(n): "" for n in range(17)}}, "metadata",
                                   "object_above_max_properties")):
            with self.subTest(body=str(body)[:80]):
                self.assert_error(self.call("POST", "/" + made["id"], body), 400, param, code)
        self.assertEqual(self.good("GET", "/" + made["id"]), made)

    def test_strict_mode_refuses_unknown_fields(self):
        self.start_server(strict=True)
        id = self.new("x")
        for path, body in (("", {"vendor": 1}), ("/" + id, {"metadata": {}, "vendor": 1}),
                           ("/%s/items" % id, {"items": [words("x")], "vendor": 1})):
            with self.subTest(path=path):
                self.assert_error(self.call("POST", path, body), 400, "vendor", "unknown_parameter")
        self.assertEqual(self.texts(id), ["x"])

    def test_delete_answers_with_a_deletion_object_and_all_below_is_404(self):
        id = self.new("x")
        item = self.items(id)[0]["id"]
        response = self.turn(id, "Hello")
        self.assertEqual(self.good("DELETE", "/" + id), {"id": id, "object": "conversation.deleted", "deleted": True})
        for method, path, body in (("GET", "", None), ("POST", "", {"metadata": {}}), ("DELETE", "", None),
                                   ("GET", "/items", None), ("POST", "/items", {"items": [words("x")]}),
                                   ("GET", "/items/" + item, None), ("DELETE", "/items/" + item, None)):
            with self.subTest(method=method, path=path):
                self.assert_error(self.call(method, "/" + id + path, body), 404)
        self.assert_error(self.create(id), 404)
        self.assertEqual(self.get(response["id"]).json(), response)
        self.assertEqual(len(self.get(response["id"], "/input_items").json()["data"]), 2)

    def test_an_unknown_conversation_is_404_in_every_path_and_in_create(self):
        for id in (UNKNOWN, "nope", "conv_"):
            for method, path, body in (("GET", "", None), ("POST", "", {"metadata": {}}), ("DELETE", "", None),
                                       ("GET", "/items", None), ("POST", "/items", {"items": [words("x")]}),
                                       ("GET", "/items/x", None), ("DELETE", "/items/x", None)):
                with self.subTest(id=id, method=method, path=path):
                    self.assert_error(self.call(method, "/" + id + path, body), 404)
            for given in (id, {"id": id}):
                for change in ({}, {"stream": True}, {"background": True}):
                    with self.subTest(given=given, change=change):
                        answer = self.create(given, **change)
                        self.assert_error(answer, 404)
                        self.assertIn(id, answer.error["message"])
        self.assert_error(self.request("POST", "/v1/responses/input_tokens", {"conversation": UNKNOWN}), 404)
        self.assertEqual(self.backend.requests, [])

    def test_methods_that_no_path_has_are_405(self):
        id = self.new()
        for method, path in (("GET", ""), ("DELETE", ""), ("PUT", "/" + id), ("DELETE", "/%s/items" % id),
                             ("POST", "/%s/items/x" % id)):
            with self.subTest(method=method, path=path):
                self.assertEqual(self.call(method, path).status, 405)

    def test_paths_without_the_prefix_are_the_same(self):
        id = self.request("POST", "/conversations", {"items": [words("x")]}).json()["id"]
        self.assertEqual(len(self.request("GET", "/conversations/%s/items" % id).json()["data"]), 1)
        self.assertEqual(self.request("DELETE", "/conversations/" + id).status, 200)


# ---- items ------------------------------------------------------------------------------------

KINDS = [
    {"role": "user", "content": "short"},
    {"type": "message", "role": "system", "content": "rule"},
    {"role": "developer", "content": [{"type": "input_text", "text": "rule"}]},
    {"role": "user", "content": [{"type": "input_text", "text": "see"},
                                 {"type": "input_image", "image_url": "http://example.test/x.png"},
                                 {"type": "input_file", "file_id": "file_1"}]},
    {"role": "assistant", "content": "yes"},
    {"type": "message", "role": "assistant", "id": "msg_mine", "status": "completed", "content": [
        {"type": "output_text", "text": "yes", "annotations": [], "logprobs": []},
        {"type": "refusal", "refusal": "no"}]},
    CALL, OUTPUT,
    {"type": "custom_tool_call", "call_id": "call_b", "name": "g", "input": "x"},
    {"type": "custom_tool_call_output", "call_id": "call_b", "output": [{"type": "input_text", "text": "y"}]},
    {"type": "reasoning", "id": "rs_mine", "summary": [{"type": "summary_text", "text": "hm"}]},
    {"type": "compaction", "encrypted_content": seal_text("compaction", "what was before")},
    {"type": "web_search_call", "id": "ws_mine", "status": "completed", "action": {"type": "search", "query": "q"}},
]


@every_form
class ItemsTest(ConversationsLive):

    def test_created_items_come_back_in_the_given_order_with_ids(self):
        id = self.new("first")
        made = self.good("POST", "/%s/items" % id, {"items": KINDS})
        self.assertEqual(set(made), {"object", "data", "first_id", "last_id", "has_more"})
        self.assertEqual((made["object"], made["has_more"]), ("list", False))
        self.assertEqual([item["type"] for item in made["data"]], [item.get("type", "message") for item in KINDS])
        ids = [item["id"] for item in made["data"]]
        self.assertEqual(len(set(ids)), len(KINDS))
        self.assertEqual((made["first_id"], made["last_id"]), (ids[0], ids[-1]))
        for given, item in zip(KINDS, made["data"]):
            self.assertEqual(item["id"], given.get("id", item["id"]))
        self.assertEqual(self.items(id)[1:], made["data"])
        for item in made["data"]:
            self.assertEqual(self.good("GET", "/%s/items/%s" % (id, item["id"])), item)

    def test_messages_are_stored_in_full(self):
        id = self.new()
        short, _, _, parts, assistant = self.add(id, *KINDS[:5])
        self.assertEqual(short, {"type": "message", "id": short["id"], "status": "completed", "role": "user",
                                 "content": [{"type": "input_text", "text": "short"}]})
        self.assertEqual(parts["content"][1]["detail"], "auto")
        self.assertEqual(assistant["content"], [{"type": "output_text", "text": "yes", "annotations": [],
                                                 "logprobs": []}])

    def test_up_to_20_items_and_no_more_at_once(self):
        id = self.new()
        self.add(id, *["x"] * 20)
        self.assert_error(self.call("POST", "/%s/items" % id, {"items": [words("x")] * 21}), 400, "items",
                          "array_above_max_length")
        self.assertEqual(len(self.items(id)), 20)

    def test_bad_items_are_refused_by_their_place_and_leave_all_as_it_was(self):
        id = self.new("x")
        before = self.server.store.stats()
        for body, param, code in (
                ({}, "items", "missing_required_parameter"), ({"items": None}, "items", "missing_required_parameter"),
                ({"items": []}, "items", "empty_array"), ({"items": "x"}, "items", "invalid_type"),
                ({"items": [5]}, "items[0]", "invalid_type"), ({"items": [{}]}, "items[0].type", "invalid_value"),
                ({"items": [{"type": "robot"}]}, "items[0].type", "invalid_value"),
                ({"items": [{"role": "robot", "content": "x"}]}, "items[0].role", "invalid_value"),
                ({"items": [{"role": "user"}]}, "items[0].content", "missing_required_parameter"),
                ({"items": [{"role": "user", "content": 5}]}, "items[0].content", "invalid_type"),
                ({"items": [words("x"), {"role": "assistant", "content": [{"type": "input_text", "text": "x"}]}]},
                 "items[1].content[0].type", "invalid_value"),
                ({"items": [{"role": "user", "content": "x", "id": 5}]}, "items[0].id", "invalid_type"),
                ({"items": [dict(CALL, arguments=None)]}, "items[0].arguments", "missing_required_parameter"),
                ({"items": [dict(OUTPUT, output=None)]}, "items[0].output", "missing_required_parameter"),
                ({"items": [{"type": "compaction"}]}, "items[0].encrypted_content", "missing_required_parameter"),
                ({"items": [OUTPUT]}, "items", None)):
            with self.subTest(body=str(body)[:90]):
                self.assert_error(self.call("POST", "/%s/items" % id, body), 400, param, code)
                self.assert_free_unchanged(id, before)
        answer = self.call("POST", "/%s/items" % id, {"items": [{"type": "item_reference", "id": "msg_nope"}]})
        self.assertEqual((answer.status, answer.error["code"]), (404, None))
        self.assert_free_unchanged(id, before)

    def assert_free_unchanged(self, id, before):
        self.assertEqual(self.server.store.stats(), before)
        self.assertIsNone(self.server.store.conversation(id).owner)

    def test_faults_of_all_items_together_name_items_not_input(self):
        id = self.new()
        self.assert_error(self.call("POST", "/%s/items" % id, {"items": [words("x" * 10485761)]}), 400, "items",
                          "string_above_max_length")

    def test_an_item_can_be_a_reference_to_a_stored_one(self):
        source = self.turn(self.new(), "Hello")
        item = source["output"][0]
        for given in ({"type": "item_reference", "id": item["id"]}, {"id": item["id"]}):
            with self.subTest(given=given):
                id = self.new("x")
                self.assertEqual(self.add(id, given), [item])
                self.assertEqual(self.texts(id), ["x", "Re: Hello"])

    def test_an_item_of_a_conversation_can_be_referred_to(self):
        item = self.items(self.new("remember"))[0]
        answer = self.request("POST", "/v1/responses", dict(RESPONSE, input=[{"id": item["id"]}, words("x")]))
        self.assertEqual(answer.status, 200, answer.body)
        self.assertEqual(self.context(), [("user", "remember"), ("user", "x")])

    def test_pages_follow_each_other_in_both_orders_and_desc_is_the_default(self):
        id = self.new("0", "1")
        self.add(id, "2", "3", "4")
        self.turn(id, "5")
        self.assertEqual(self.texts(id, "?limit=100"), ["Re: 5", "5", "4", "3", "2", "1", "0"])
        for order in ("asc", "desc"):
            whole = self.items(id, "?order=" + order)
            with self.subTest(order=order):
                for limit in (1, 2, 3, 7):
                    found, after = [], ""
                    while True:
                        page = self.good("GET", "/%s/items?limit=%d&order=%s%s" % (id, limit, order, after))
                        self.assertEqual((page["first_id"], page["last_id"]),
                                         (page["data"][0]["id"], page["data"][-1]["id"]))
                        found += page["data"]
                        self.assertEqual(page["has_more"], len(found) < len(whole))
                        if not page["has_more"]:
                            break
                        after = "&after=" + page["last_id"]
                    self.assertEqual(found, whole)

    def test_the_default_page_has_20_items(self):
        id = self.new(*["x"] * 20)
        self.add(id, "y")
        page = self.good("GET", "/%s/items" % id)
        self.assertEqual((len(page["data"]), page["has_more"]), (20, True))

    def test_a_page_after_the_last_item_is_empty(self):
        id = self.new("x", "y")
        for order in ("asc", "desc"):
            last = self.items(id, "?order=" + order)[-1]["id"]
            self.assertEqual(self.good("GET", "/%s/items?order=%s&after=%s" % (id, order, last)), {
                "object": "list", "data": [], "first_id": None, "last_id": None, "has_more": False})

    def test_bad_queries_are_refused(self):
        id = self.new("x")
        item = self.items(id)[0]["id"]
        for query, param, code in (("limit=0", "limit", "integer_below_min_value"),
                                   ("limit=101", "limit", "integer_above_max_value"),
                                   ("limit=x", "limit", "invalid_type"), ("order=up", "order", "invalid_value"),
                                   ("after=msg_nope", "after", "invalid_value"), ("after=", "after", "invalid_value"),
                                   ("include=everything", "include[0]", "invalid_value")):
            with self.subTest(query=query):
                self.assert_error(self.call("GET", "/%s/items?%s" % (id, query)), 400, param, code)
        for method, path, body in (("POST", "/items", {"items": [words("x")]}), ("GET", "/items/" + item, None)):
            with self.subTest(method=method, path=path):
                self.assert_error(self.call(method, "/%s%s?include=everything" % (id, path), body), 400, "include[0]",
                                  "invalid_value")
        self.assertEqual(len(self.items(id)), 1)

    def test_all_forms_of_include_are_taken(self):
        id = self.new("x")
        item = self.items(id)[0]["id"]
        for query in ("?include=reasoning.encrypted_content", "?include[]=message.input_image.image_url",
                      "?include=message.output_text.logprobs&include=reasoning.encrypted_content"):
            for method, path, body in (("GET", "/items", None), ("POST", "/items", {"items": [words("x")]}),
                                       ("GET", "/items/" + item, None)):
                with self.subTest(query=query, path=path):
                    self.good(method, "/" + id + path + query, body)

    def test_an_unknown_item_is_404(self):
        id, other = self.new("x"), self.new("y")
        for item in ("nope", "msg_" + "0" * 34, self.items(other)[0]["id"]):
            for method in ("GET", "DELETE"):
                with self.subTest(item=item, method=method):
                    self.assert_error(self.call(method, "/%s/items/%s" % (id, item)), 404)
        self.assertEqual((self.texts(id), self.texts(other)), (["x"], ["y"]))

    def test_deleting_an_item_answers_with_the_conversation_and_takes_it_out(self):
        id = self.new("a", "b", "c", metadata={"k": "v"})
        conversation = self.good("GET", "/" + id)
        gone = self.items(id)[1]["id"]
        self.assertEqual(self.drop(id, gone), conversation)
        self.assertEqual(self.texts(id), ["a", "c"])
        self.assertEqual(self.texts(id, ""), ["c", "a"])
        for method in ("GET", "DELETE"):
            self.assert_error(self.call(method, "/%s/items/%s" % (id, gone)), 404)
        self.assert_error(self.call("GET", "/%s/items?after=%s" % (id, gone)), 400, "after", "invalid_value")

    def test_a_deleted_item_is_out_of_later_turns_and_earlier_responses_keep_it(self):
        id = self.new("a long thing to remember", "b")
        first = self.turn(id, "one")
        before = self.get(first["id"], "/input_items").json()
        self.drop(id, before["data"][-1]["id"])             # "a long thing ..."
        self.drop(id, first["output"][0]["id"])
        second = self.turn(id, "two")
        self.assertEqual(self.context(), [("user", "b"), ("user", "one"), ("user", "two")])
        self.assertEqual(second["usage"]["input_tokens"], ANSWER_TOKENS + sum(
            MESSAGE_TOKENS + TOKENIZER.count(text) for text in ("b", "one", "two")))
        self.assertEqual(self.get(first["id"], "/input_items").json(), before)
        self.assertEqual(self.get(first["id"]).json(), first)
        self.chained(first["id"], input="three")
        self.assertEqual(self.context(), [("user", "a long thing to remember"), ("user", "b"), ("user", "one"),
                                          ("assistant", "Re: one"), ("user", "three")])

    def test_deleting_all_items_leaves_an_empty_context(self):
        id = self.new("a")
        self.turn(id, "one")
        for item in self.items(id):
            self.drop(id, item["id"])
        self.assertEqual(self.items(id), [])
        response = self.turn(id, "two")
        self.assertEqual(self.context(), [("user", "two")])
        self.assertEqual(response["usage"]["input_tokens"], ANSWER_TOKENS + MESSAGE_TOKENS + TOKENIZER.count("two"))

    def test_deleting_a_reasoning_item_takes_no_tokens_that_were_never_counted(self):
        id = self.new("a long message that is to stay in the context whatever else goes")
        response = self.turn(id, "think")
        self.assertEqual([item["type"] for item in response["output"]], ["reasoning", "message"])
        expected = self.turn(id, "on", store=False)["usage"]["input_tokens"]
        for item in self.items(id)[-2:]:
            self.drop(id, item["id"])                       # back to where it was before "on"
        self.drop(id, response["output"][0]["id"])
        self.assertEqual(self.turn(id, "on")["usage"]["input_tokens"], expected)

    def test_an_item_put_in_again_with_the_id_of_a_deleted_one_is_there(self):
        id = self.new(items=[dict(words("a"), id="msg_a"), words("b")])
        self.drop(id, "msg_a")
        self.add(id, dict(words("new"), id="msg_a"))
        self.assertEqual(self.texts(id, "?order=desc"), ["new", "b"])
        self.assertEqual(self.texts(id, "?order=asc"), ["b", "new"])
        self.turn(id, "x")
        self.assertEqual(self.context(), [("user", "b"), ("user", "new"), ("user", "x")])

    def test_an_id_given_twice_is_listed_alike_in_both_orders(self):
        id = self.new(items=[dict(words("old"), id="msg_a"), words("b")])
        self.add(id, dict(words("new"), id="msg_a"))
        self.assertEqual(self.texts(id, "?order=desc"), self.texts(id, "?order=asc")[::-1])
        self.assertEqual([self.good("GET", "/%s/items/msg_a" % id)], [item for item in self.items(id)
                                                                      if item["id"] == "msg_a"])

    def test_a_call_that_was_deleted_cannot_be_answered(self):
        id = self.new()
        response = self.turn(id, "call")
        self.drop(id, response["output"][0]["id"])
        self.assert_error(self.create(id, input=[OUTPUT]), 400, "input")
        self.assert_error(self.call("POST", "/%s/items" % id, {"items": [OUTPUT]}), 400, "items")

    def test_a_call_whose_output_was_deleted_is_open_again_in_strict_mode(self):
        self.start_server(strict=True)
        id = self.new(items=[CALL, dict(OUTPUT, id="fco_mine")])
        self.turn(id, "fine")
        self.drop(id, "fco_mine")
        self.assert_error(self.create(id, input="x"), 400, "input")
        self.assertEqual(self.create(id, input=[OUTPUT]).status, 200)

    def test_items_of_other_kinds_reach_the_backend_as_chat_messages(self):
        id = self.new(items=[words("a"), CALL, OUTPUT])
        self.turn(id, "x")
        messages = self.backend.requests[-1].history.messages()
        self.assertEqual([message["role"] for message in messages], ["user", "assistant", "tool", "user"])
        self.assertEqual((messages[1]["tool_calls"][0]["id"], messages[2]["tool_call_id"], messages[2]["content"]),
                         ("call_a", "call_a", "sunny"))

    def test_long_conversations_are_walked_and_thinned_out(self):
        id = self.new("first")
        for number in range(130):                           # more than the loop walks itself
            self.add(id, str(number))
        self.assertEqual(self.texts(id), ["first"] + [str(number) for number in range(99)])
        item = self.items(id, "?order=asc&limit=3")[2]
        self.assertEqual(self.good("GET", "/%s/items/%s" % (id, item["id"])), item)
        self.drop(id, item["id"])
        self.assertEqual(self.texts(id, "?order=asc&limit=3"), ["first", "0", "2"])
        self.turn(id, "x")
        self.assertEqual(len(self.context()), 131)
        self.assert_free(id)


# ---- turns ------------------------------------------------------------------------------------

@every_form
class TurnTest(ConversationsLive):

    def test_a_response_names_its_conversation_whether_given_as_string_or_object(self):
        id = self.new()
        for given in (id, {"id": id}, {"id": id, "vendor": 1}):
            for streamed in (False, True):
                with self.subTest(given=given, streamed=streamed):
                    response = self.turn(given, "Hello", streamed)
                    self.assertEqual((response["conversation"], response["previous_response_id"]), ({"id": id}, None))
                    self.assertEqual(self.get(response["id"]).json(), response)

    def test_a_response_without_one_has_no_such_key(self):
        answer = self.request("POST", "/v1/responses", dict(RESPONSE, conversation=None))
        self.assertNotIn("conversation", answer.json())

    def test_a_conversation_that_is_none_is_refused(self):
        for given, param, code in ((5, "conversation", "invalid_type"), ([], "conversation", "invalid_type"),
                                   (True, "conversation", "invalid_type"),
                                   ({"id": 5}, "conversation.id", "invalid_type"),
                                   ({}, "conversation.id", "missing_required_parameter")):
            with self.subTest(given=given):
                self.assert_error(self.create(given), 400, param, code)

    def test_the_items_come_before_the_input_and_input_and_output_are_appended(self):
        id = self.new("a")
        first = self.turn(id, "one")
        self.assertEqual(self.context(), [("user", "a"), ("user", "one")])
        second = self.turn(id, [words("two"), words("three")], True)
        self.assertEqual(self.context(), [("user", "a"), ("user", "one"), ("assistant", "Re: one"), ("user", "two"),
                                          ("user", "three")])
        self.assertEqual(self.texts(id), ["a", "one", "Re: one", "two", "three", "Re: three"])
        self.assertEqual(second["usage"]["input_tokens"], ANSWER_TOKENS + sum(
            MESSAGE_TOKENS + TOKENIZER.count(text) for text in self.texts(id)[:-1]))
        self.assertEqual([item["id"] for item in self.items(id)][2], first["output"][0]["id"])
        self.assertEqual(self.items(id)[-1], second["output"][0])

    def test_appended_items_keep_the_ids_they_have_in_the_response(self):
        id = self.new("a")
        response = self.turn(id, "one")
        listed = self.get(response["id"], "/input_items?order=asc").json()["data"]
        self.assertEqual(self.items(id), listed + response["output"])

    def test_input_may_be_absent(self):
        id = self.new("a")
        for change in ({"input": None}, {"input": []}):
            self.assertEqual(self.create(id, **change).status, 200)
        self.assertEqual([role for role, _ in self.context()], ["user", "assistant"])
        self.assertEqual(len(self.items(id)), 3)

    def test_instructions_are_no_items(self):
        id = self.new()
        self.turn(id, "one", instructions="Be brief.")
        self.turn(id, "two")
        self.assertEqual(self.context(), [("user", "one"), ("assistant", "Re: one"), ("user", "two")])

    def test_it_excludes_a_previous_response(self):
        id = self.new()
        first = self.turn(id, "one")
        for previous in (first["id"], "resp_" + "0" * 32):
            for change in ({}, {"stream": True}, {"background": True}):
                answer = self.create(id, previous_response_id=previous, **change)
                self.assert_error(answer, 400, "previous_response_id", "mutually_exclusive_parameters")
        self.assertEqual(len(self.items(id)), 2)
        self.assert_free(id)

    def test_a_chain_may_leave_from_a_response_of_a_conversation(self):
        id = self.new("a")
        first = self.turn(id, "one")
        second = self.turn(id, "two")
        branch = self.chained(first["id"], input="aside")
        self.assertEqual(self.context(), [("user", "a"), ("user", "one"), ("assistant", "Re: one"), ("user", "aside")])
        self.assertNotIn("conversation", branch)
        self.assertEqual(branch["previous_response_id"], first["id"])
        self.chained(second["id"], input="after")
        self.assertEqual(len(self.context()), 6)
        self.assertEqual(self.texts(id), ["a", "one", "Re: one", "two", "Re: two"])

    def test_an_incomplete_turn_is_appended(self):
        for streamed in (False, True):
            id = self.new()
            response = self.turn(id, "length", streamed)
            self.assertEqual(response["status"], "incomplete")
            self.assertEqual(self.items(id)[1:], response["output"])
            self.assertEqual(self.items(id)[1]["status"], "incomplete")

    def test_an_unstored_turn_is_appended_and_cannot_be_retrieved(self):
        for streamed in (False, True):
            with self.subTest(streamed=streamed):
                id = self.new("a")
                response = self.turn(id, "one", streamed, store=False)
                self.assertEqual(response["conversation"], {"id": id})
                self.assertEqual(self.texts(id), ["a", "one", "Re: one"])
                self.assertEqual(self.items(id)[-1], response["output"][0])
                for method, tail in (("GET", ""), ("GET", "/input_items"), ("DELETE", "")):
                    self.assertEqual(self.request(method, "/v1/responses/" + response["id"] + tail).status, 404)
                answer = self.request("POST", "/v1/responses", dict(RESPONSE, previous_response_id=response["id"]))
                self.assert_error(answer, 400, "previous_response_id", "previous_response_not_found")
                self.turn(id, "two")
                self.assertEqual(self.context(), [("user", "a"), ("user", "one"), ("assistant", "Re: one"),
                                                  ("user", "two")])
        self.assertEqual(self.server.store.stats()["responses"], 2)

    def test_an_unstored_turn_that_failed_leaves_nothing(self):
        self.start_server()
        id = self.new("a")
        before = self.server.store.stats()
        self.assertEqual(self.turn(id, "fail", True, store=False)["status"], "failed")
        self.assertEqual(self.create(id, input="fail", store=False).status, 500)
        self.assertEqual((self.texts(id), self.server.store.stats()), (["a"], before))

    def test_a_failed_turn_is_not_appended_but_stored(self):
        for blocking in (False, True):
            self.server.handler_class.backend = WordBackend(blocking)
            id = self.new("a")
            failed = self.turn(id, "fail", True)
            self.assertEqual((failed["status"], failed["conversation"]), ("failed", {"id": id}))
            self.assertEqual(self.get(failed["id"]).json(), failed)
            self.assertEqual(self.create(id, input="fail").status, 500)
            background = self.turn(id, "fail", background=True)
            self.poll(background["id"], "failed")
            self.assertEqual(self.texts(id), ["a"])

    def test_what_a_failed_response_had_said_counts_for_who_continues_it(self):
        failed = self.turn(self.new("a"), "fail", True)
        response = self.chained(failed["id"], input="on")
        self.assertEqual(self.context(), [("user", "a"), ("user", "fail"), ("assistant", "Half"), ("user", "on")])
        self.assertEqual(response["usage"]["input_tokens"], ANSWER_TOKENS + sum(
            MESSAGE_TOKENS + TOKENIZER.count(text) for text in ("a", "fail", "Half", "on")))

    def test_a_call_is_answered_in_the_next_turn(self):
        for streamed in (False, True):
            with self.subTest(streamed=streamed):
                id = self.new()
                response = self.turn(id, "call", streamed, tools=[TOOL])
                self.assertEqual(response["output"][0]["call_id"], "call_a")
                self.turn(id, [OUTPUT, words("and?")], streamed)
                roles = [role for role, _ in self.context()]
                self.assertEqual(roles, ["user", "assistant", "tool", "user"])
                self.assertEqual([item["type"] for item in self.items(id)],
                                 ["message", "function_call", "function_call_output", "message", "message"])

    def test_a_call_is_answered_by_an_item_that_is_put_in(self):
        id = self.new()
        self.turn(id, "call")
        self.add(id, OUTPUT)
        self.turn(id, "and?")
        self.assertEqual([role for role, _ in self.context()], ["user", "assistant", "tool", "user"])

    def test_an_answer_to_a_call_of_another_conversation_is_refused(self):
        self.turn(self.new(), "call")
        id = self.new("a")
        self.assert_error(self.create(id, input=[OUTPUT]), 400, "input")
        self.assertEqual(self.texts(id), ["a"])
        self.assert_free(id)

    def test_a_background_response_is_appended_when_it_has_completed(self):
        for change in ({}, {"stream": True}):
            with self.subTest(change=change):
                id = self.new("a")
                answer = self.create(id, input="one", background=True, **change)
                self.assertEqual(answer.status, 200, answer.body)
                made = answer.json() if not change else answer.events()[0].data["response"]
                self.assertEqual((made["conversation"], made["previous_response_id"]), ({"id": id}, None))
                done = self.poll(made["id"], "completed")
                self.assertEqual(done["conversation"], {"id": id})
                self.assertEqual(self.texts(id), ["a", "one", "Re: one"])
                self.assertEqual(self.items(id)[-1], done["output"][0])
                self.wait_free(id)

    def test_deleting_a_response_leaves_the_conversations_items(self):
        id = self.new("a")
        first, second = self.turn(id, "one"), self.turn(id, "two")
        for response in (first, second):
            self.assertEqual(self.request("DELETE", "/v1/responses/" + response["id"]).status, 200)
        self.assertEqual(self.texts(id), ["a", "one", "Re: one", "two", "Re: two"])
        self.turn(id, "three")
        self.assertEqual(len(self.context()), 6)

    def test_input_tokens_counts_a_conversation_and_neither_locks_nor_stores(self):
        id = self.new("a")
        before = self.server.store.stats()
        for given in (id, {"id": id}):
            counted = self.request("POST", "/v1/responses/input_tokens", {"conversation": given, "input": "one"}).json()
        self.assertEqual(self.server.store.stats(), before)
        self.assertIsNone(self.server.store.conversation(id).owner)
        self.assertEqual(counted["input_tokens"], self.turn(id, "one")["usage"]["input_tokens"])

    def test_truncation_drops_the_oldest_items_and_keeps_the_conversation_whole(self):
        self.start_server(max_model_len=60)
        id = self.new("word " * 40, "b")
        self.assert_error(self.create(id, input="word " * 20), 400, "input", "context_length_exceeded")
        self.turn(id, "word " * 20, truncation="auto")
        self.assertEqual(self.context(), [("user", "b"), ("user", "word " * 20)])
        self.assertEqual(len(self.items(id)), 4)

    def test_equal_turns_in_two_conversations_of_equal_content_are_told_alike(self):
        contexts = []
        for _ in range(2):
            self.turn(self.new("a"), "one")
            history = self.backend.requests[-1].history
            contexts.append((history.prefix_hash, history.tokens))
        self.assertEqual(contexts[0], contexts[1])


# ---- one writer at a time ---------------------------------------------------------------------

@every_form
class LockTest(ConversationsLive):
    """While a response is being generated."""

    def make_backend(self):
        self.gated = GatedBackend()
        return self.gated

    def begin(self, conversation, **change):
        """A streamed response in progress: (client, answer, its generation)."""
        client = self.connect()
        client.send_request("POST", "/v1/responses", dict(RESPONSE, conversation=conversation, stream=True, **change))
        generation = self.gated.next()
        generation.say("Half")
        answer = client.read_head()
        while client.read_frame(answer).name != "response.output_text.delta":
            pass
        return client, answer, generation

    def test_nobody_else_writes_until_it_has_ended(self):
        id = self.new("a")
        item = self.items(id)[0]["id"]
        client, answer, generation = self.begin(id)
        for change in ({}, {"stream": True}, {"background": True}, {"store": False}):
            with self.subTest(change=change):
                self.assert_locked(self.create(id, **change))
        self.assert_locked(self.call("POST", "/%s/items" % id, {"items": [words("x")]}))
        self.assert_locked(self.call("DELETE", "/%s/items/%s" % (id, item)))
        self.assertEqual(self.texts(id), ["a"])
        generation.finish()
        self.assertEqual(client.read_rest(answer)[-1].data, "[DONE]")
        self.assert_free(id)
        self.drop(id, item)
        self.assertEqual(self.texts(id), ["Hello", "Half", "free"])

    def test_reading_and_describing_go_on(self):
        id = self.new("a")
        client, answer, generation = self.begin(id)
        self.assertEqual(self.texts(id), ["a"])
        self.assertEqual(self.good("GET", "/%s/items/%s" % (id, self.items(id)[0]["id"])), self.items(id)[0])
        self.assertEqual(self.good("POST", "/" + id, {"metadata": {"k": "v"}})["metadata"], {"k": "v"})
        self.assertEqual(self.request("POST", "/v1/responses/input_tokens", {"conversation": id}).status, 200)
        generation.finish()
        client.read_rest(answer)
        self.assertEqual(self.good("GET", "/" + id)["metadata"], {"k": "v"})

    def test_nothing_is_appended_before_the_end_and_all_is_with_it(self):
        id = self.new("a")
        client, answer, generation = self.begin(id, input="one")
        generation.say(" and half")
        client.read_frame(answer)
        self.assertEqual(self.texts(id), ["a"])
        generation.finish()
        while True:
            event = client.read_frame(answer)
            if event.name == "response.completed":
                break
        self.assertEqual(self.texts(id), ["a", "one", "Half and half"])
        self.assert_free(id)
        client.read_rest(answer)

    def test_other_conversations_are_free(self):
        id, other = self.new("a"), self.new("b")
        client, answer, generation = self.begin(id)
        self.assert_free(other)
        client_2, answer_2, generation_2 = self.begin(other)
        generation_2.finish()
        client_2.read_rest(answer_2)
        generation.finish()
        client.read_rest(answer)
        self.assertEqual((self.texts(id), self.texts(other)), (["a", "Hello", "Half"], ["b", "free", "Hello", "Half"]))

    def test_deleted_while_generating_the_response_completes_and_is_stored(self):
        for store in (True, False):
            with self.subTest(store=store):
                id = self.new("a")
                client, answer, generation = self.begin(id, store=store)
                self.assertEqual(self.good("DELETE", "/" + id)["deleted"], True)
                generation.finish()
                last = [event for event in client.read_rest(answer) if event.data != "[DONE]"][-1]
                self.assertEqual((last.name, last.data["response"]["conversation"]), ("response.completed", {"id": id}))
                self.assert_error(self.call("GET", "/" + id), 404)
                stored = self.get(last.data["response"]["id"])
                self.assertEqual(stored.status, 200 if store else 404)
                if store:
                    self.assertEqual(len(self.get(last.data["response"]["id"], "/input_items").json()["data"]), 2)
                    self.request("DELETE", "/v1/responses/" + last.data["response"]["id"])
        self.assertEqual(self.server.store.stats()["bytes"], 0)

    def test_a_background_response_holds_it_too(self):
        id = self.new("a")
        made = self.create(id, background=True).json()
        generation = self.gated.next()
        self.assert_locked(self.create(id))
        self.assert_locked(self.call("POST", "/%s/items" % id, {"items": [words("x")]}))
        self.assertEqual(self.texts(id), ["a"])
        generation.say("Well")
        generation.finish()
        self.poll(made["id"], "completed")
        self.wait_free(id)
        self.assertEqual(self.texts(id), ["a", "Hello", "Well", "free"])

    def test_a_refused_second_writer_does_not_let_go_for_the_first(self):
        id = self.new("a")
        client, answer, generation = self.begin(id)
        for change in ({}, {"tools": [{"type": "function"}]}, {"input": [OUTPUT]}):
            self.assertEqual(self.create(id, **change).status, 400)
        self.assert_locked(self.create(id))
        generation.finish()
        client.read_rest(answer)
        self.assertEqual(self.texts(id), ["a", "Hello", "Half"])

    def test_a_refused_body_of_items_does_not_depend_on_the_lock(self):
        id = self.new("a")
        client, answer, generation = self.begin(id)
        self.assert_error(self.call("POST", "/%s/items" % id, {"items": []}), 400, "items", "empty_array")
        self.assert_error(self.call("POST", "/%s/items" % id, {}), 400, "items", "missing_required_parameter")
        generation.finish()
        client.read_rest(answer)

    def test_a_deleted_item_of_a_turn_that_runs_stays_in_its_context(self):
        # deletion is refused meanwhile, so the turn's context is what it began with
        id = self.new("a", "b")
        client, answer, generation = self.begin(id)
        self.assert_locked(self.call("DELETE", "/%s/items/%s" % (id, self.items(id)[0]["id"])))
        self.assertEqual([message["content"] for message in generation.request.history.messages()],
                         ["a", "b", "Hello"])
        generation.finish()
        client.read_rest(answer)

    def test_a_background_response_over_the_limit_lets_go(self):
        self.start_server(max_background=1)
        first, second = self.new("a"), self.new("b")
        made = self.create(first, background=True).json()
        generation = self.gated.next()
        self.assertEqual(self.create(second, background=True).status, 429)
        self.assert_free(second)
        generation.finish()
        self.poll(made["id"], "completed")


@every_form
class ReleaseTest(ConversationsLive):
    """Whatever way a turn ends, the next one may begin."""

    def each_backend(self):
        """Once for a backend that never waits, once for one that does."""
        server = self.server
        for blocking in (False, True):
            self.backend = server.handler_class.backend = WordBackend(blocking)
            yield blocking

    def test_after_completed_incomplete_and_failed(self):
        for _ in self.each_backend():
            for word, status, code in (("hello", "completed", 200), ("length", "incomplete", 200),
                                       ("fail", "failed", 500)):
                for store in (True, False):
                    with self.subTest(word=word, store=store):
                        id = self.new("a")
                        self.assertEqual(self.create(id, input=word, store=store).status, code)
                        self.assert_free(id)
                        self.assertEqual(self.turn(id, word, True, store=store)["status"], status)
                        self.assert_free(id)

    def test_after_a_background_response_of_every_ending(self):
        for _ in self.each_backend():
            for word, status in (("hello", "completed"), ("length", "incomplete"), ("fail", "failed")):
                for streamed in (False, True):
                    with self.subTest(word=word, streamed=streamed):
                        id = self.new("a")
                        answer = self.create(id, input=word, background=True, stream=streamed)
                        made = answer.events()[0].data["response"] if streamed else answer.json()
                        self.poll(made["id"], status)
                        self.wait_free(id)

    def test_after_a_refusal_or_an_exception_of_the_backend(self):
        for blocking in self.each_backend():
            for word, code in (("refuse", 400), ("raise", 500)):
                for change in ({}, {"stream": True}, {"background": True}, {"background": True, "stream": True}):
                    with self.subTest(word=word, change=change):
                        id = self.new("a")
                        answer = self.create(id, input=word, **change)
                        if not (blocking and change.get("background")):
                            self.assertEqual(answer.status, code)
                        self.wait_free(id)
                        self.assertEqual(self.texts(id), ["a", "free"])
        self.assertEqual(len(self.take_errors()), 8)

    def test_after_the_client_has_left(self):
        for _ in self.each_backend():
            for store in (True, False):
                for leave in ("close", "reset"):
                    with self.subTest(store=store, leave=leave):
                        id = self.new("a")
                        client, _ = self.half_read(id, input="wait", store=store)
                        self.assert_locked(self.create(id))
                        getattr(client, leave)()
                        self.wait_free(id)
                        self.assertEqual(self.texts(id), ["a", "free"])
        self.assertEqual(self.server.store.stats()["responses"], 0)

    def test_after_the_client_of_a_plain_answer_has_left(self):
        for _ in self.each_backend():
            id = self.new("a")
            client = self.connect()
            client.send_request("POST", "/v1/responses", dict(RESPONSE, conversation=id, input="wait"))
            wait_until(lambda: self.backend.requests, "the generation")
            self.assert_locked(self.create(id))
            client.close()
            self.wait_free(id)
            self.assertEqual(self.texts(id), ["a", "free"])

    def test_after_a_background_response_was_cancelled(self):
        for _ in self.each_backend():
            for streamed in (False, True):
                with self.subTest(streamed=streamed):
                    id = self.new("a")
                    if streamed:
                        _, made = self.half_read(id, input="wait", background=True)
                    else:
                        made = self.create(id, input="wait", background=True).json()["id"]
                    self.assert_locked(self.create(id))
                    answer = self.request("POST", "/v1/responses/%s/cancel" % made)
                    self.assertEqual((answer.status, answer.json()["status"], answer.json()["conversation"]),
                                     (200, "cancelled", {"id": id}))
                    self.assert_free(id)
                    self.assertEqual(self.texts(id), ["a", "free"])
                    self.assertEqual(self.get(made).json()["status"], "cancelled")

    def test_after_a_background_response_was_deleted(self):
        for _ in self.each_backend():
            id = self.new("a")
            made = self.create(id, input="wait", background=True).json()["id"]
            self.assert_locked(self.create(id))
            self.assertEqual(self.request("DELETE", "/v1/responses/" + made).status, 200)
            self.assert_free(id)
            self.assertEqual((self.texts(id), self.get(made).status), (["a", "free"], 404))

    def test_after_a_watcher_of_a_background_response_has_left_it_goes_on(self):
        id = self.new("a")
        client, _ = self.half_read(id, input="wait", background=True)
        client.close()
        self.wait_for_count("disconnects", 1)
        self.assert_locked(self.create(id))

    def test_a_background_response_lets_go_before_anybody_sees_that_it_has_ended(self):
        # else who polls and goes on at once is told that the conversation is locked
        seen = []

        class WatchedStore(MemoryStore):
            def release_conversation(self, id, owner):
                seen.append(server.runs.get(owner) is not None)
                MemoryStore.release_conversation(self, id, owner)
        server = self.start_server(store=WatchedStore())
        for _ in self.each_backend():
            for word, status in (("hello", "completed"), ("length", "incomplete"), ("fail", "failed")):
                made = self.create(self.new(), input=word, background=True).json()
                self.poll(made["id"], status)
            made = self.create(self.new(), input="wait", background=True).json()
            self.request("POST", "/v1/responses/%s/cancel" % made["id"])
        wait_until(lambda: len(seen) == 8, "eight releases")
        self.assertEqual(seen, [True] * 8)

    def test_after_requests_that_are_refused(self):
        id = self.new("a")
        before = self.server.store.stats()
        for change in ({"tools": [{"type": "function"}]}, {"tool_choice": "required"}, {"input": [{"type": "robot"}]},
                       {"input": [OUTPUT]}, {"text": {"format": {"type": "json_object"}}},
                       {"max_output_tokens": 10 ** 9, "ignore_eos": True}, {"min_tokens": 20, "max_output_tokens": 16},
                       {"input": [{"id": "msg_nope"}]}, {"input": [words("x"), 5]}):
            for more in ({}, {"stream": True}, {"background": True}):
                with self.subTest(change=str(change)[:80], more=more):
                    answer = self.create(id, **dict(change, **more))
                    self.assertIn(answer.status, (400, 404))
                    self.assertIsNone(self.server.store.conversation(id).owner)
        self.assertEqual((self.server.store.stats(), self.backend.requests), (before, []))
        self.assert_free(id)

    def test_a_request_that_is_refused_for_an_ignored_field_generates_nothing(self):
        self.start_server(refuse_ignored=True)
        for change in ({}, {"stream": True}, {"background": True}, {"background": True, "stream": True}):
            with self.subTest(change=change):
                id = self.new("a")
                before = self.server.store.stats()["responses"]
                self.assert_error(self.create(id, temperature=0.5, **change), 400, "temperature",
                                  "unsupported_parameter")
                self.wait_free(id)
                self.assertEqual(len(self.server.runs), 0)
                self.assertEqual(self.texts(id), ["a", "free"])
                self.assertEqual(self.server.store.stats()["responses"], before)

    def test_after_a_context_that_is_too_long(self):
        self.start_server(max_model_len=40)
        id = self.new("word " * 20)
        self.assert_error(self.create(id, input="word " * 30), 400, "input", "context_length_exceeded")
        self.assert_free(id)
        failed = self.turn(id, "word " * 30, True)
        self.assertEqual((failed["status"], failed["error"]["code"], failed["conversation"]),
                         ("failed", "context_length_exceeded", {"id": id}))
        self.assert_free(id)
        made = self.create(id, input="word " * 30, background=True)
        self.assertEqual(made.status, 200, made.body)
        self.poll(made.json()["id"], "failed")
        self.wait_free(id)
        self.assertEqual([text for text in self.texts(id) if text != "free"], ["word " * 20])

    def test_after_the_store_was_full(self):
        self.start_server(store=MemoryStore(max_bytes=30000))
        for blocking in self.each_backend():
            id = self.new("a")
            self.assertEqual(self.create(id, input="x" * 15000).status, 500)
            self.assert_free(id)
            events = read_response_stream(self, self.create(id, input="x" * 15000, stream=True).body)
            self.assertEqual(events[-1]["type"], "response.failed")
            self.assert_free(id)
            made = self.create(id, input="x" * 15000, background=True).json()
            self.poll(made["id"], "failed")
            self.wait_free(id)
            answer = self.call("POST", "/%s/items" % id, {"items": [words("x" * 40000)]})
            self.assertEqual((answer.status, answer.error["type"]), (500, "server_error"))
            self.assert_free(id)
            self.assertEqual(set(self.texts(id)), {"a", "free"})

    def test_after_a_turn_that_began_again_on_a_worker(self):
        source = self.turn(self.new(), "Hello")
        for change in ({"input": [{"id": source["output"][0]["id"]}, words("x")]},
                       {"input": "x", "truncation": "auto", "instructions": "word " * 10}):
            for streamed in (False, True):
                with self.subTest(change=str(change)[:60], streamed=streamed):
                    id = self.new("a")
                    answer = self.create(id, stream=streamed, **change)
                    self.assertEqual(answer.status, 200, answer.body)
                    self.assert_free(id)
        id = self.new("a")
        self.assertEqual(self.create(id, input=[{"id": "msg_nope"}]).status, 404)
        self.assert_free(id)

    def test_after_large_bodies_on_a_worker(self):
        id = self.new("a")
        for streamed in (False, True):
            self.turn(id, "word " * 10000, streamed)
            self.assert_free(id)
        self.add(id, "word " * 10000)
        self.assert_free(id)
        self.assertEqual(len(self.items(id)), 9)


# ---- bounds, races, other stores --------------------------------------------------------------

@every_form
class BoundsTest(ConversationsLive):

    def test_a_conversation_survives_the_eviction_of_its_responses(self):
        self.start_server(max_responses=2)
        id = self.new("a")
        made = [self.turn(id, str(number)) for number in range(5)]
        self.assertEqual([self.get(response["id"]).status for response in made], [404, 404, 404, 200, 200])
        self.assertEqual(len(self.texts(id)), 11)
        for number in range(3):
            self.request("POST", "/v1/responses", RESPONSE)
        self.assertEqual(self.get(made[-1]["id"]).status, 404)
        self.turn(id, "last")
        self.assertEqual(len(self.context()), 12)

    def test_a_conversation_survives_the_age_of_its_responses(self):
        clock = FakeClock()
        self.start_server(store=MemoryStore(ttl_s=60.0, wall=clock.time))
        id = self.new("a")
        # the node's age counts from the server's own clock, which is not the store's here
        response = self.turn(id, "one")
        clock.wall = time.time() + 61.0
        wait_until(lambda: self.get(response["id"]).status == 404, "the response to expire")
        self.server.store.sweep(100)
        self.assertEqual(self.texts(id), ["a", "one", "Re: one"])
        self.assertEqual(self.good("GET", "/" + id)["id"], id)
        self.assertEqual(self.server.store.stats()["responses"], 0)
        self.add(id, "b")
        self.assertEqual(len(self.items(id)), 4)

    def test_the_server_sweeps_responses_but_no_conversation(self):
        clock = ShiftedClock()
        self.start_server(clock=clock, store_ttl_s=60.0)
        id = self.new("a")
        self.turn(id, "one")
        clock.advance(61.0)
        wait_until(lambda: self.server.store.stats()["responses"] == 0, "the sweep")
        self.turn(id, "two")
        self.assertEqual(self.context(), [("user", "a"), ("user", "one"), ("assistant", "Re: one"), ("user", "two")])

    def test_over_the_count_the_least_recently_used_conversation_goes(self):
        self.start_server(max_responses=3)
        ids = [self.new(str(number)) for number in range(3)]
        self.texts(ids[0])
        ids.append(self.new("3"))
        self.assertEqual([self.call("GET", "/" + id).status for id in ids], [200, 404, 200, 200])

    def test_all_is_freed_when_all_is_deleted(self):
        id = self.new("a", "b")
        made = [self.turn(id, "one"), self.turn(id, "two", store=False), self.turn(id, "three", True)]
        self.drop(id, self.items(id)[0]["id"])
        branch = self.chained(made[2]["id"])
        for each in (made[0], made[2], branch):
            self.assertEqual(self.request("DELETE", "/v1/responses/" + each["id"]).status, 200)
        self.assertEqual(len(self.items(id)), 7)
        self.good("DELETE", "/" + id)
        stats = self.server.store.stats()
        self.assertEqual([stats[name] for name in ("responses", "conversations", "tombstones", "bytes")], [0] * 4)


@every_form
class RaceTest(ConversationsLive):

    def test_writers_that_race_are_refused_or_append_whole(self):
        self.start_server()
        id = self.new("start")
        failures, written, locked = [], [], []

        def write(name):
            try:
                for number in range(12):
                    text = "%s%d" % (name, number)
                    while True:
                        if number % 3 == 0:
                            answer = self.call("POST", "/%s/items" % id, {"items": [words(text), words(text)]})
                        else:
                            answer = self.create(id, input=text, stream=number % 3 == 1)
                        if answer.status == 200:
                            break
                        self.assert_locked(answer)
                        locked.append(text)
                    written.append([text, text if number % 3 == 0 else "Re: " + text])
            except BaseException as exc:
                failures.append(exc)
        threads = [threading.Thread(target=write, args=(name,)) for name in "abcd"]
        for thread in threads:
            thread.start()
        for thread in threads:
            thread.join(6 * TIMEOUT_S)
            self.assertFalse(thread.is_alive())
        self.assertEqual(failures, [])
        found = self.texts(id)
        self.assertEqual(found.pop(0), "start")
        pairs = [found[at:at + 2] for at in range(0, len(found), 2)]
        self.assertEqual(sorted(pairs), sorted(written))
        self.assertEqual(len(pairs), 48)

    def test_a_racing_pair_on_one_conversation_gives_one_winner_while_it_lasts(self):
        gated = GatedBackend()
        self.start_server(backend=gated)
        id = self.new("a")
        clients = [self.connect() for _ in range(6)]
        for client in clients:
            client.send_request("POST", "/v1/responses", dict(RESPONSE, conversation=id))
        generation = gated.next()
        wait_until(lambda: self.count("errors_4xx") == 5, "five refusals")
        generation.say("Won")
        generation.finish()
        answers = [client.read_answer() for client in clients]
        self.assertEqual(sorted(answer.status for answer in answers), [200] + [400] * 5)
        for answer in answers:
            if answer.status != 200:
                self.assert_locked(answer)
        self.assertEqual(self.texts(id), ["a", "Hello", "Won"])


class SlowStore(MemoryStore):
    """A store that may wait: nobody may call it on the loop or the pacer. Notes who does."""

    blocking = True

    def __init__(self):
        MemoryStore.__init__(self)
        self.calls = set()


def _noting(name):
    method = getattr(MemoryStore, name)

    def noted(self, *args):
        self.calls.add((name, threading.current_thread().name))
        return method(self, *args)
    return noted


for _name in ("get", "put", "delete", "find_item", "create_conversation", "conversation", "describe_conversation",
              "delete_conversation", "claim_conversation", "release_conversation"):
    setattr(SlowStore, _name, _noting(_name))


@every_form
class HardItemsTest(ConversationsLive):
    """What a hostile client found."""

    def test_one_id_three_thousand_times_is_listed_and_does_not_stop_the_server(self):
        # numbering them was quadratic, and ran on the loop
        id = self.new()
        answer = self.create(id, input=[{"role": "user", "content": "t%d" % number, "id": "x"} for number in range(3000)])
        self.assertEqual(answer.status, 200)
        page = self.call("GET", "/%s/items?limit=3&order=asc" % id).json()
        self.assertEqual([item["id"] for item in page["data"]], ["x", "x_2", "x_3"])

    def test_an_item_whose_call_id_is_no_string_can_be_deleted(self):
        for call_id in ([1], {"a": 1}, 5):
            id = self.new()
            self.assertEqual(self.call("POST", "/%s/items" % id, {"items": [
                {"type": "web_search_call", "id": "ws_1", "call_id": call_id}]}).status, 200)
            self.assertEqual(self.call("DELETE", "/%s/items/ws_1" % id).status, 200)
            self.assertEqual(self.call("GET", "/%s/items" % id).json()["data"], [])

    def test_an_empty_id_is_none(self):
        id = self.new()
        made = self.call("POST", "/%s/items" % id, {"items": [
            {"type": "function_call", "id": "", "call_id": "c", "name": "f", "arguments": "{}"}]}).json()
        self.assertTrue(made["data"][0]["id"].startswith("fc_"))

    def test_a_bad_reference_names_items(self):
        answer = self.call("POST", "/%s/items" % self.new(), {"items": [{"id": "msg_nope"}]})
        self.assertEqual((answer.status, answer.error["param"]), (404, "items"))


@every_form
class BlockingStoreTest(ConversationsLive):

    def make_store(self):
        self.slow_store = SlowStore()
        return self.slow_store

    def test_a_request_that_takes_long_is_answered(self):
        # it begins on a worker already, and must not wait for being sent to one
        source = self.turn(self.new(), "Hello")
        item = source["output"][0]["id"]
        id = self.new("a")
        for change in ({"input": [{"id": item}]}, {"input": [{"id": item}], "stream": True},
                       {"input": [{"id": item}], "background": True}):
            with self.subTest(change=str(change)):
                answer = self.create(id, **change)
                self.assertEqual(answer.status, 200, answer.body)
                self.wait_free(id)
        self.assertEqual(self.add(id, {"id": item})[0]["id"], item)

    def test_a_background_response_that_is_being_cancelled_is_known_and_holds_its_conversation(self):
        server, store = self.server, self.slow_store
        for blocking in (False, True):
            with self.subTest(blocking=blocking):
                server.handler_class.backend = WordBackend(blocking)
                id = self.new("a")
                made = self.create(id, input="wait", background=True).json()["id"]
                run, seen = server.runs.get(made), []

                def put(node, conversation=None):       # what others see while it is being stored
                    if blocking:                        # its generator hears of it and ends, and with it the play
                        wait_until(lambda: run.play is None, "the play to end")
                    seen.append((server.runs.get(made) is run, run.settled.is_set(),
                                 MemoryStore.conversation(store, id).owner))
                    MemoryStore.put(store, node, conversation)
                store.put = put
                try:
                    answer = self.request("POST", "/v1/responses/%s/cancel" % made)
                finally:
                    del store.put
                self.assertEqual((answer.status, seen), (200, [(True, False, made)]))
                self.assertEqual(self.get(made).json()["status"], "cancelled")
                self.assert_free(id)

    def test_every_call_and_ending_over_a_store_that_waits(self):
        server = self.server
        for blocking in (False, True):
            self.backend = server.handler_class.backend = WordBackend(blocking)
            id = self.new("a", metadata={"k": "v"})
            self.add(id, "b")
            self.drop(id, self.items(id)[0]["id"])
            self.turn(id, "one")
            self.turn(id, "two", True, store=False)
            self.turn(id, "fail", True)
            self.assertEqual(self.create(id, input="fail").status, 500)
            self.assertEqual(self.create(id, input="refuse", stream=True).status, 400)
            self.assertEqual(self.create(id, tools=[{"type": "function"}]).status, 400)
            client, _ = self.half_read(id, input="wait")
            self.assert_locked(self.call("POST", "/%s/items" % id, {"items": [words("x")]}))
            client.close()
            self.wait_free(id)
            for streamed in (False, True):
                answer = self.create(id, input="three", background=True, stream=streamed)
                made = answer.events()[0].data["response"] if streamed else answer.json()
                self.poll(made["id"], "completed")
                self.wait_free(id)
            for verb, tail in (("POST", "/cancel"), ("DELETE", "")):
                made = self.create(id, input="wait", background=True).json()
                self.assertEqual(self.request(verb, "/v1/responses/" + made["id"] + tail).status, 200)
                self.wait_free(id)
            self.assertEqual([text for text in self.texts(id) if text != "free"],
                             ["b", "one", "Re: one", "two", "Re: two", "three", "Re: three", "three", "Re: three"])
            self.good("POST", "/" + id, {"metadata": {}})
            self.good("DELETE", "/" + id)
        self.assertLess({"get", "put", "create_conversation", "describe_conversation", "delete_conversation",
                         "claim_conversation", "release_conversation"}, {name for name, _ in self.slow_store.calls})
        self.assertEqual([call for call in self.slow_store.calls if call[1] in ("serve", "pacer")], [])


# ---- a random walk ----------------------------------------------------------------------------

class Model:
    """Conversations and responses as lists: what each holds, copied forward at every turn."""

    def __init__(self):
        self.conversations = {}         # id -> [(item id, role, text)]
        self.responses = {}             # id -> (context before its output, its output)


@every_form
class RandomWalkTest(ConversationsLive):

    def test_a_random_walk_agrees_with_lists(self):
        self.start_server()
        for seed in range(2):
            with self.subTest(seed=seed):
                self.walk(random.Random(seed), 140)

    def walk(self, draw, steps):
        model = Model()
        for step in range(steps):
            self.where = "step %d" % step
            action = draw.choice((self.walk_create, self.walk_turn, self.walk_turn, self.walk_turn, self.walk_chain,
                                  self.walk_add, self.walk_drop, self.walk_drop, self.walk_delete_response,
                                  self.walk_delete))
            if action is self.walk_delete and draw.random() < 0.6:
                continue
            action(draw, model)
            if model.conversations:
                id = draw.choice(sorted(model.conversations))
                self.compare_items(id, model.conversations[id])
            if model.responses:
                id = draw.choice(sorted(model.responses))
                self.compare_input(id, model.responses[id][0])
        for id, items in model.conversations.items():
            self.compare_items(id, items)
            self.good("DELETE", "/" + id)
        for id, (context, _) in model.responses.items():
            self.compare_input(id, context)
        for id in model.responses:
            self.assertEqual(self.request("DELETE", "/v1/responses/" + id).status, 200)
        stats = self.server.store.stats()
        self.assertEqual([stats[name] for name in ("responses", "conversations", "tombstones", "bytes")], [0] * 4)

    @staticmethod
    def told(items):
        return [(item["id"], item["role"], item["content"][0]["text"]) for item in items]

    def compare_items(self, id, items):
        self.assertEqual(self.told(self.items(id, "?order=desc&limit=100")), items[::-1], self.where)
        self.assertEqual(self.told(self.items(id, "?order=asc&limit=100")), items, self.where)

    def compare_input(self, id, context):
        page = self.get(id, "/input_items?order=asc&limit=100").json()
        self.assertEqual(self.told(page["data"]), context, self.where)

    def compare_context(self, context):
        history = self.backend.requests[-1].history
        self.assertEqual(self.context(), [(role, text) for _, role, text in context], self.where)
        self.assertEqual(history.tokens, ANSWER_TOKENS + sum(MESSAGE_TOKENS + TOKENIZER.count(text)
                                                             for _, _, text in context), self.where)

    def walk_create(self, draw, model):
        id = self.new(*["item %d" % draw.randrange(100) for _ in range(draw.randrange(3))])
        model.conversations[id] = self.told(self.items(id))

    def walk_add(self, draw, model):
        if model.conversations:
            id = draw.choice(sorted(model.conversations))
            model.conversations[id] = model.conversations[id] + self.told(
                self.add(id, *["added %d" % draw.randrange(1000) for _ in range(draw.randrange(1, 4))]))

    def walk_drop(self, draw, model):
        filled = sorted(id for id, items in model.conversations.items() if items)
        if filled:
            id = draw.choice(filled)
            items = model.conversations[id]
            item = draw.choice(items)
            self.drop(id, item[0])
            model.conversations[id] = [each for each in items if each is not item]

    def walk_delete(self, draw, model):
        if model.conversations:
            id = draw.choice(sorted(model.conversations))
            del model.conversations[id]
            self.good("DELETE", "/" + id)

    def walk_delete_response(self, draw, model):
        if model.responses:
            id = draw.choice(sorted(model.responses))
            del model.responses[id]
            self.assertEqual(self.request("DELETE", "/v1/responses/" + id).status, 200)

    def walk_turn(self, draw, model):
        if model.conversations:
            id = draw.choice(sorted(model.conversations))
            made = self.walk_response(draw, model, model.conversations[id], conversation=id)
            if made is not None:
                model.conversations[id] = made

    def walk_chain(self, draw, model):
        whole = sorted(id for id, (_, output) in model.responses.items() if output[0][2] != "Half")
        if whole:                           # what comes after a failed one is another test's claim
            id = draw.choice(whole)
            context, output = model.responses[id]
            self.walk_response(draw, model, context + output, previous_response_id=id)

    def walk_response(self, draw, model, before, **place):
        """One turn behind `before`, of any way and ending: what it leaves behind, or None if it failed."""
        way = draw.choice(("plain", "streamed", "background"))
        store = way == "background" or draw.random() < 0.7
        text = draw.choice(("fail", "length", "turn", "turn", "turn")) + " %d" % draw.randrange(1000)
        body = dict(RESPONSE, input=text, store=store, stream=way == "streamed", background=way == "background",
                    **place)
        answer = self.request("POST", "/v1/responses", body)
        failed = text.startswith("fail")
        if failed and way == "plain":
            self.assertEqual(answer.status, 500, self.where)
            return None
        self.assertEqual(answer.status, 200, answer.body)
        if way == "streamed":
            response = read_response_stream(self, answer.body)[-1]["response"]
        else:
            response = answer.json()
        if way == "background":
            response = self.poll(response["id"], {"f": "failed", "l": "incomplete", "t": "completed"}[text[0]])
            wait_until(lambda: all(self.server.store.conversation(id).owner is None for id in model.conversations),
                       "the end of the turn")
        context = list(before)
        if store:
            context = self.told(self.get(response["id"], "/input_items?order=asc&limit=100").json()["data"])
        else:
            context.append(("msg_%s00" % response["id"][5:], "user", text))
        self.assertLess(len(context), 100, "the walk got longer than one page can show")
        self.assertEqual([context[:-1], context[-1][1:]], [before, ("user", text)], self.where)
        self.compare_context(context)
        output = self.told(response["output"])
        self.assertEqual([each[1:] for each in output], [("assistant", "Half" if failed else "Re: " + text)],
                         self.where)
        if store:
            model.responses[response["id"]] = (context, output)
        return None if failed else context + output


# ---- schemas ----------------------------------------------------------------------------------

@unittest.skipIf(MISSING, MISSING)
class ConversationSchemaTest(ConversationsLive):

    def check(self, name, value):
        OPENAI.check(self, name, value)
        return value

    def test_bodies_of_all_calls_are_what_the_schema_says(self):
        made = self.check("ConversationResource", self.good("POST", "", {"metadata": {"a": "b"}, "items": KINDS}))
        id = made["id"]
        self.check("ConversationResource", self.good("GET", "/" + id))
        self.check("ConversationResource", self.good("POST", "/" + id, {"metadata": {}}))
        self.turn(id, "think")
        self.turn(id, "call")
        branches = OPENAI.branches("ConversationItem")
        added = self.check("ConversationItemList", self.good("POST", "/%s/items" % id, {"items": [OUTPUT, words("x")]}))
        listed = self.check("ConversationItemList", self.good("GET", "/%s/items?limit=100&order=asc" % id))
        self.assertEqual(len(listed["data"]), len(KINDS) + 3 + 2 + 2)
        for item in added["data"] + listed["data"]:
            OPENAI.check_branch(self, branches, item)
            OPENAI.check_branch(self, branches, self.good("GET", "/%s/items/%s" % (id, item["id"])))
        self.check("ConversationResource", self.drop(id, listed["data"][0]["id"]))
        self.check("ErrorResponse", self.call("GET", "/" + UNKNOWN).json())
        self.check("DeletedConversationResource", self.good("DELETE", "/" + id))

    def test_a_response_of_a_conversation_is_what_the_schema_says(self):
        response = self.turn(self.new("a"), "one")
        self.check("Response", {key: value for key, value in response.items()
                                if value is not None or key not in ("user", "safety_identifier", "prompt_cache_key")})


if __name__ == "__main__":
    unittest.main()
