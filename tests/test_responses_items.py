"""Input items: which forms are taken, what is stored of them, and the chat messages they become."""
import json
import unittest

from api_common import MEDIA_TOKENS, MESSAGE_TOKENS, ApiError
from responses_items import MAX_INPUT_CHARS, items_to_messages, read_input
from state.contract import Node
from state.memory import MemoryStore
from tests.data.golden import ODD_TEXT, SURROGATE
from tokenizer import ApproxTokenizer

TOKENIZER = ApproxTokenizer()
TAIL = "0123456789abcdef" * 2
PARENT_TAIL = "f" * 32

CALL = {"type": "function_call", "call_id": "call_a", "name": "f", "arguments": '{"x":1}'}
OUTPUT = {"type": "function_call_output", "call_id": "call_a", "output": "sunny"}
CUSTOM_CALL = {"type": "custom_tool_call", "call_id": "call_c", "name": "sql", "input": "SELECT 1"}
CUSTOM_OUTPUT = {"type": "custom_tool_call_output", "call_id": "call_c", "output": "1"}
OUTPUT_MESSAGE = {"type": "message", "id": "msg_1", "status": "completed", "role": "assistant", "content": [
    {"type": "output_text", "text": "Hi", "annotations": [], "logprobs": []}]}


def read(value, parent=None, store=None):
    return read_input(value, parent, store or MemoryStore(), TOKENIZER, int)      # as on a worker


def stored(value, **kinds):
    return json.loads(read(value, **kinds).stored(TAIL))


def user(content):
    return {"role": "user", "content": content}


def parent_node(items=(), output=(), open_calls=()):
    """A stored turn with these input and output items."""
    body = json.dumps(list(output)).encode()
    return Node("resp_" + PARENT_TAIL, None, 2e9, body, (0, len(body)), json.dumps(list(items)).encode(), 50,
                b"hash of the parent", frozenset(open_calls))


# Every form that is taken: (item, the fields that are stored beside id and type)
FORMS = [
    (user("Hi"), {"type": "message", "status": "completed", "role": "user",
                  "content": [{"type": "input_text", "text": "Hi"}]}),
    (dict(user("Hi"), type="message"), {"type": "message", "role": "user"}),
    (dict(user("Hi"), type=None, id=None, status=None), {"type": "message", "status": "completed"}),
    ({"role": "system", "content": "s"}, {"role": "system", "content": [{"type": "input_text", "text": "s"}]}),
    ({"role": "developer", "content": [{"type": "input_text", "text": "d"}]}, {"role": "developer"}),
    ({"role": "assistant", "content": "a"}, {"content": [
        {"type": "output_text", "text": "a", "annotations": [], "logprobs": []}]}),
    ({"role": "assistant", "content": [{"type": "output_text", "text": "a"}]}, {"content": [
        {"type": "output_text", "text": "a", "annotations": [], "logprobs": []}]}),
    ({"role": "assistant", "content": [{"type": "refusal", "refusal": "no"}]}, {"content": [
        {"type": "refusal", "refusal": "no"}]}),
    ({"role": "assistant", "content": "a", "phase": "commentary"}, {"phase": "commentary"}),
    (user([{"type": "input_text", "text": "a"}, {"type": "input_image", "image_url": "http://x"}]),
     {"content": [{"type": "input_text", "text": "a"},
                  {"type": "input_image", "image_url": "http://x", "detail": "auto"}]}),
    (user([{"type": "input_image", "file_id": "file-1", "detail": "low"}]),
     {"content": [{"type": "input_image", "file_id": "file-1", "detail": "low"}]}),
    (user([{"type": "input_file", "file_data": "eA==", "filename": "x"}]), {"role": "user"}),
    (user([]), {"content": []}),
    (OUTPUT_MESSAGE, OUTPUT_MESSAGE),
    (CALL, {"call_id": "call_a", "name": "f", "arguments": '{"x":1}', "status": "completed"}),
    (dict(CALL, status="incomplete", id="fc_1"), {"status": "incomplete", "id": "fc_1"}),
    (CUSTOM_CALL, {"input": "SELECT 1"}),
    ({"type": "function_call_output", "output": "goal", "name": "create_goal", "namespace": "n"},
     {"output": "goal", "name": "create_goal", "namespace": "n"}),
    ({"type": "reasoning", "id": "rs_1", "summary": [], "encrypted_content": "abc"},
     {"id": "rs_1", "summary": [], "encrypted_content": "abc"}),
    ({"type": "compaction", "encrypted_content": "abc"}, {"encrypted_content": "abc"}),
] + [({"type": kind}, {"type": kind}) for kind in (
    "web_search_call", "file_search_call", "computer_call", "code_interpreter_call", "image_generation_call",
    "local_shell_call", "shell_call", "apply_patch_call", "mcp_call", "mcp_list_tools", "mcp_approval_request",
    "mcp_approval_response")]

# (the input, param, code); status 400, type invalid_request_error
FAULTS = [
    ([5], "input[0]", "invalid_type"),
    ([None], "input[0]", "invalid_type"),
    (["Hi"], "input[0]", "invalid_type"),
    ([[]], "input[0]", "invalid_type"),
    ([user("a"), {}], "input[1].type", None),
    ([{"type": "robot"}], "input[0].type", "invalid_value"),
    ([{"type": "messages", "role": "user", "content": "x"}], "input[0].type", "invalid_value"),
    ([{"type": 5}], "input[0].type", None),
    ([{"type": []}], "input[0].type", None),
    ([{"type": {"a": 1}, "role": "user", "content": "x"}], "input[0].type", None),
    ([user(None)], "input[0].content", "missing_required_parameter"),
    ([{"role": "user"}], "input[0].content", "missing_required_parameter"),
    ([{"type": "message", "content": "x"}], "input[0].role", "missing_required_parameter"),
    ([{"role": "tool", "content": "x"}], "input[0].role", "invalid_value"),
    ([{"role": 5, "content": "x"}], "input[0].role", "invalid_type"),
    ([user(5)], "input[0].content", "invalid_type"),
    ([user({"type": "input_text"})], "input[0].content", "invalid_type"),
    ([user(["x"])], "input[0].content[0]", "invalid_type"),
    ([user([{"type": "text", "text": "x"}])], "input[0].content[0].type", "invalid_value"),
    ([user([{"text": "x"}])], "input[0].content[0].type", None),
    ([user([{"type": []}])], "input[0].content[0].type", None),
    ([user([{"type": "output_text", "text": "x"}])], "input[0].content[0].type", "invalid_value"),
    ([{"role": "assistant", "content": [{"type": "input_text", "text": "x"}]}], "input[0].content[0].type",
     "invalid_value"),
    ([user([{"type": "input_text"}])], "input[0].content[0].text", "missing_required_parameter"),
    ([user([{"type": "input_text", "text": 5}])], "input[0].content[0].text", "invalid_type"),
    ([{"role": "assistant", "content": [{"type": "refusal"}]}], "input[0].content[0].refusal",
     "missing_required_parameter"),
    ([{"type": "function_call", "name": "f", "arguments": ""}], "input[0].call_id", "missing_required_parameter"),
    ([{"type": "function_call", "call_id": "a", "arguments": ""}], "input[0].name", "missing_required_parameter"),
    ([{"type": "function_call", "call_id": "a", "name": "f"}], "input[0].arguments", "missing_required_parameter"),
    ([dict(CALL, arguments={"x": 1})], "input[0].arguments", "invalid_type"),
    ([dict(CALL, call_id=5)], "input[0].call_id", "invalid_type"),
    ([{"type": "custom_tool_call", "call_id": "a", "name": "f"}], "input[0].input", "missing_required_parameter"),
    ([CALL, {"type": "function_call_output", "call_id": "call_a"}], "input[1].output", "missing_required_parameter"),
    ([CALL, dict(OUTPUT, output=5)], "input[1].output", "invalid_type"),
    ([CALL, dict(OUTPUT, output=["x"])], "input[1].output[0]", "invalid_type"),
    ([CALL, dict(OUTPUT, call_id=["call_a"])], "input[1].call_id", "invalid_type"),
    ([OUTPUT], "input", None),
    ([CALL, dict(OUTPUT, call_id="call_b")], "input", None),
    ([OUTPUT, CALL], "input", None),
    ([dict(user("x"), id=5)], "input[0].id", "invalid_type"),
    ([{"type": "item_reference"}], "input[0].id", "missing_required_parameter"),
    ([{"id": None}], "input[0].id", "missing_required_parameter"),
    ([{"type": "item_reference", "id": 5}], "input[0].id", None),
    ([{"type": "item_reference", "id": ["msg_1"]}], "input[0].id", None),
]


class FormsTest(unittest.TestCase):

    def test_every_form_is_taken_and_stored_with_id_and_type(self):
        for item, expected in FORMS:
            with self.subTest(item=item):
                kept, = stored([item])
                self.assertEqual({key: kept[key] for key in expected}, expected)
                self.assertIsInstance(kept["id"], str)
                self.assertIsInstance(kept["type"], str)
                self.assertNotIn(None, kept.values())

    def test_a_string_is_stored_as_one_user_message(self):
        self.assertEqual(stored("Hi"), [{"type": "message", "id": "msg_%s00" % TAIL, "status": "completed",
                                         "role": "user", "content": [{"type": "input_text", "text": "Hi"}]}])

    def test_a_string_and_a_list_of_it_are_stored_alike(self):
        for text in ("Hi", ODD_TEXT, SURROGATE, ""):
            with self.subTest(text=ascii(text)):
                self.assertEqual(stored(text), stored([user(text)]))

    def test_ids_that_are_missing_are_made_from_the_place(self):
        self.assertEqual([item["id"] for item in stored([user("a"), CALL, OUTPUT, dict(OUTPUT_MESSAGE)])],
                         ["msg_%s00" % TAIL, "fc_%s01" % TAIL, "fco_%s02" % TAIL, "msg_1"])

    def test_no_input_stores_nothing(self):
        for value in (None, []):
            with self.subTest(value=value):
                self.assertEqual(stored(value), [])

    def test_faults_name_their_place_and_code(self):
        for value, param, code in FAULTS:
            with self.subTest(value=value):
                with self.assertRaises(ApiError) as caught:
                    read(value)
                error = caught.exception
                self.assertEqual((error.status, error.type, error.param), (400, "invalid_request_error", param))
                if code is not None:
                    self.assertEqual(error.code, code)

    def test_an_input_over_the_bound_is_refused(self):
        with self.assertRaises(ApiError) as caught:
            read("x" * (MAX_INPUT_CHARS + 1))
        self.assertEqual((caught.exception.status, caught.exception.code, caught.exception.param),
                         (400, "string_above_max_length", "input"))


class ReferenceTest(unittest.TestCase):

    def setUp(self):
        self.store = MemoryStore(ttl_s=1e12)
        self.store.put(parent_node([{"type": "message", "id": "msg_%s00" % PARENT_TAIL, "role": "user",
                                     "content": [{"type": "input_text", "text": "Hi"}]}],
                                   [dict(CALL, id="fc_%s01" % PARENT_TAIL, status="completed")]))

    def test_a_reference_has_three_forms(self):
        id = "msg_%s00" % PARENT_TAIL
        for item in ({"type": "item_reference", "id": id}, {"type": None, "id": id}, {"id": id}):
            with self.subTest(item=item):
                kept, = stored([item], store=self.store)
                self.assertEqual((kept["id"], kept["role"], kept["content"][0]["text"]), (id, "user", "Hi"))

    def test_a_referred_call_can_be_answered(self):
        found = read([{"id": "fc_%s01" % PARENT_TAIL}, OUTPUT], store=self.store)
        self.assertEqual(found.open_calls, frozenset())

    def test_a_reference_counts_as_what_it_refers_to(self):
        found = read([{"id": "msg_%s00" % PARENT_TAIL}], store=self.store)
        self.assertEqual((found.tokens, found.last_user_text), (read("Hi").tokens, "Hi"))

    def test_a_reference_to_what_is_not_stored_is_404(self):
        for id in ("msg_%s07" % PARENT_TAIL, "msg_" + "0" * 34, "nope", ""):
            with self.subTest(id=id):
                with self.assertRaises(ApiError) as caught:
                    read([{"type": "item_reference", "id": id}], store=self.store)
                self.assertEqual((caught.exception.status, caught.exception.param, caught.exception.type),
                                 (404, "input", "invalid_request_error"))


class CallsTest(unittest.TestCase):

    def test_open_calls_are_those_without_an_output(self):
        self.assertEqual(read([CALL, CUSTOM_CALL, OUTPUT]).open_calls, {"call_c"})
        self.assertEqual(read([CALL, CUSTOM_CALL, OUTPUT, CUSTOM_OUTPUT]).open_calls, frozenset())

    def test_an_output_answers_a_call_of_the_chain(self):
        parent = parent_node([], [dict(CALL, id="fc_1")], ("call_a",))
        self.assertEqual(read([OUTPUT], parent).open_calls, frozenset())

    def test_an_output_given_twice_is_taken(self):
        parent = parent_node([dict(OUTPUT, id="fco_1")], [dict(CALL, id="fc_1")])
        self.assertEqual(read([OUTPUT], parent).open_calls, frozenset())
        self.assertEqual(read([CALL, OUTPUT, OUTPUT]).open_calls, frozenset())

    def test_an_output_without_a_call_id_answers_none(self):
        found = read([CALL, {"type": "function_call_output", "output": "x"}])
        self.assertEqual(found.open_calls, {"call_a"})

    def test_parts_of_an_output_count_as_text(self):
        text = read([CALL, dict(OUTPUT, output="sunny and warm")]).tokens
        parts = read([CALL, dict(OUTPUT, output=[{"type": "input_text", "text": "sunny and"},
                                                 {"type": "input_text", "text": " warm"}])]).tokens
        self.assertEqual(text, parts)


class CountsTest(unittest.TestCase):

    def test_tokens_are_the_texts_and_a_price_per_message_and_picture(self):
        found = read([{"role": "system", "content": "Be brief."}, user([
            {"type": "input_text", "text": "What is"}, {"type": "input_text", "text": " this?"},
            {"type": "input_image", "image_url": "x"}])])
        self.assertEqual(found.tokens, TOKENIZER.count("Be brief.") + TOKENIZER.count("What is this?")
                         + 2 * MESSAGE_TOKENS + MEDIA_TOKENS)

    def test_the_hash_follows_content_and_not_ids(self):
        def hashed(value, parent=None):
            return read(value, parent).prefix_hash
        self.assertEqual(hashed("Hi"), hashed([dict(user("Hi"), id="x", type="message")]))
        self.assertEqual(len({hashed("Hi"), hashed("Ho"), hashed([user("Hi"), user("Ho")]), hashed("HiHo"),
                              hashed([{"role": "system", "content": "Hi"}]), hashed("Hi", parent_node())}), 6)

    def test_the_last_user_text_is_kept(self):
        self.assertEqual(read([user("a"), user([{"type": "input_text", "text": "b"}]),
                               {"role": "assistant", "content": "c"}]).last_user_text, "b")

    def test_ids_of_the_clients_own_are_noted(self):
        self.assertEqual(tuple(read([OUTPUT_MESSAGE, user("x"), dict(CALL, id="fc_9")]).foreign_ids),
                         ("msg_1", "fc_9"))

    def test_long_work_breathes(self):
        breaths = []
        read_input([user("word " * 30000), user("x")], None, MemoryStore(), TOKENIZER, lambda: breaths.append(1))
        self.assertGreater(len(breaths), 2)


class MessagesTest(unittest.TestCase):

    def test_texts_become_strings(self):
        self.assertEqual(items_to_messages([
            {"role": "developer", "content": "d"}, user([{"type": "input_text", "text": "a"},
                                                         {"type": "input_text", "text": "b"}]), OUTPUT_MESSAGE]),
            [{"role": "developer", "content": "d"}, {"role": "user", "content": "ab"},
             {"role": "assistant", "content": "Hi"}])

    def test_calls_in_a_row_are_one_assistant_message_and_outputs_follow(self):
        self.assertEqual(items_to_messages([user("x"), CALL, CUSTOM_CALL, OUTPUT, CUSTOM_OUTPUT]), [
            {"role": "user", "content": "x"},
            {"role": "assistant", "content": None, "tool_calls": [
                {"id": "call_a", "type": "function", "function": {"name": "f", "arguments": '{"x":1}'}},
                {"id": "call_c", "type": "custom", "custom": {"name": "sql", "input": "SELECT 1"}}]},
            {"role": "tool", "tool_call_id": "call_a", "content": "sunny"},
            {"role": "tool", "tool_call_id": "call_c", "content": "1"}])

    def test_a_call_after_words_joins_their_message(self):
        self.assertEqual([len(message.get("tool_calls", ())) for message in items_to_messages(
            [OUTPUT_MESSAGE, CALL, OUTPUT])], [1, 0])

    def test_what_has_no_place_in_chat_is_left_out(self):
        self.assertEqual(items_to_messages([{"type": "reasoning", "summary": []}, {"type": "web_search_call"},
                                            {"type": "compaction", "encrypted_content": "x"}]), [])

    def test_pictures_and_files_keep_their_data(self):
        content = items_to_messages([user([
            {"type": "input_text", "text": "a"}, {"type": "input_image", "image_url": "http://x", "detail": "low"},
            {"type": "input_file", "file_id": "file-1"}])])[0]["content"]
        self.assertEqual(content, [{"type": "text", "text": "a"},
                                   {"type": "image_url", "image_url": {"url": "http://x", "detail": "low"}},
                                   {"type": "file", "file": {"file_id": "file-1"}}])

    def test_stored_items_and_given_ones_become_the_same_messages(self):
        value = [user("a"), {"role": "assistant", "content": "b"}, CALL, OUTPUT]
        self.assertEqual(items_to_messages(stored(value)), items_to_messages(value))


if __name__ == "__main__":
    unittest.main()
