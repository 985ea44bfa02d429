"""Responses requests in chat's words: messages, tools, choices, formats, and what is left out."""
import json
import unittest

from api_common import ApiError
from backends.contract import GenerationRequest, History
from api_tools import read_tool_choice, read_tools
from backends.upstream_request import build_call, unforwarded_fields
from responses_items import items_to_messages
from settings import Settings

WEATHER = {"type": "function", "name": "get_weather", "description": "Weather", "parameters": {"type": "object"}}
PATCH = {"type": "custom", "name": "patch", "description": "Applies.", "format": {
    "type": "grammar", "syntax": "lark", "definition": "start: WORD"}}


def responses_request(endpoint="responses", items=None, **body):
    specs = read_tools(body.get("tools"))
    items = items if items is not None else [{"role": "user", "content": "hi"}]

    def messages():
        found = items_to_messages(items)
        return [{"role": "system", "content": body["instructions"]}] + found if body.get("instructions") else found
    return GenerationRequest("m", History(3, b"", "", messages), raw=dict(body, model="m"), endpoint=endpoint, tools=specs,
                             tool_choice=read_tool_choice(body.get("tool_choice"), specs),
                             max_tokens=body.get("max_output_tokens"))


def call_of(request, **settings):
    settings.setdefault("upstream_url", ("http://127.0.0.1:1",))
    return build_call(request, "there", Settings(backend="upstream", **settings))


def body_of(items=None, settings=None, **body):
    return call_of(responses_request(items=items, **body), **settings or {}).body


class MessagesTest(unittest.TestCase):

    def messages(self, *items, instructions=None, **settings):
        return body_of(list(items), settings, instructions=instructions)["messages"]

    def test_instructions_and_the_first_instruction_messages_are_one(self):
        items = ({"role": "developer", "content": "B"}, {"role": "system", "content": [{"type": "input_text", "text": "C"}]},
                 {"role": "user", "content": "hi"}, {"role": "developer", "content": "D"})
        self.assertEqual(self.messages(*items, instructions="A"), [
            {"role": "system", "content": "A\n\nB\n\nC"}, {"role": "user", "content": "hi"}, {"role": "system", "content": "D"}])
        self.assertEqual(self.messages(*items, instructions="A", upstream_system_role="developer")[0]["role"], "developer")

    def test_calls_and_words_of_one_turn_are_one_message_with_the_outputs_behind(self):
        found = self.messages(
            {"role": "user", "content": "q"}, {"type": "function_call", "call_id": "a", "name": "f", "arguments": "{}"},
            {"role": "assistant", "content": "Wait."}, {"type": "function_call", "call_id": "b", "name": "g", "arguments": "{}"},
            {"type": "function_call_output", "call_id": "a", "output": "1"},
            {"type": "function_call_output", "call_id": "b", "output": [{"type": "input_text", "text": "2"}]})
        self.assertEqual([message["role"] for message in found], ["user", "assistant", "tool", "tool"])
        self.assertEqual(found[1]["content"], "Wait.")
        self.assertEqual([call["id"] for call in found[1]["tool_calls"]], ["a", "b"])
        self.assertEqual([message["content"] for message in found[2:]], ["1", "2"])

    def test_pictures_of_a_tool_follow_its_run_of_outputs(self):
        found = self.messages(
            {"type": "function_call", "call_id": "a", "name": "f", "arguments": "{}"},
            {"type": "function_call", "call_id": "b", "name": "f", "arguments": "{}"},
            {"type": "function_call_output", "call_id": "a", "output": [{"type": "input_image", "image_url": "data:x"}]},
            {"type": "function_call_output", "call_id": "b", "output": "2"}, {"role": "user", "content": "so?"})
        self.assertEqual([message["role"] for message in found], ["assistant", "tool", "tool", "user", "user"])
        self.assertEqual(found[3]["content"][0]["image_url"]["url"], "data:x")
        self.assertTrue(found[1]["content"])

    def test_a_custom_call_is_a_function_call(self):
        found = self.messages({"type": "custom_tool_call", "call_id": "a", "name": "patch", "input": 'x "y"'},
                              {"type": "custom_tool_call_output", "call_id": "a", "output": "ok"})
        self.assertEqual(found[0]["tool_calls"], [{"id": "a", "type": "function", "function": {
            "name": "patch", "arguments": '{"input": "x \\"y\\""}'}}])
        self.assertEqual(found[1], {"role": "tool", "tool_call_id": "a", "content": "ok"})

    def test_reasoning_goes_back_only_where_a_field_is_named(self):
        items = ({"role": "user", "content": "q"}, {"type": "reasoning", "summary": [{"type": "summary_text", "text": "hm"}]},
                 {"type": "function_call", "call_id": "a", "name": "f", "arguments": "{}"})
        self.assertEqual(set(self.messages(*items)[1]), {"role", "content", "tool_calls"})
        self.assertEqual(self.messages(*items, upstream_reasoning_field="reasoning")[1]["reasoning"], "hm")

    def test_images_files_and_sounds_and_what_only_the_service_could_look_up(self):
        call = call_of(responses_request(items=[{"role": "user", "content": [
            {"type": "input_text", "text": "see"}, {"type": "input_image", "image_url": "https://x/y.png", "detail": "low"},
            {"type": "input_file", "file_data": "data:z", "filename": "z.pdf"}, {"type": "input_image", "file_id": "file_1"},
            {"type": "input_file", "file_id": "file_2"}, {"type": "input_audio", "input_audio": {"data": "A", "format": "wav"}}]}]))
        self.assertEqual(call.body["messages"][0]["content"], [
            {"type": "text", "text": "see"}, {"type": "image_url", "image_url": {"url": "https://x/y.png", "detail": "low"}},
            {"type": "file", "file": {"file_data": "data:z", "filename": "z.pdf"}},
            {"type": "input_audio", "input_audio": {"data": "A", "format": "wav"}}])
        self.assertEqual(call.dropped, ["input_image.file_id", "input_file.file_id"])

    def test_what_cannot_be_forwarded_is_refused_where_that_was_asked_for(self):
        request = responses_request(items=[{"role": "user", "content": [{"type": "input_image", "file_id": "file_1"}]}])
        with self.assertRaises(ApiError) as caught:
            call_of(request, refuse_ignored=True)
        self.assertEqual((caught.exception.status, caught.exception.param), (400, "input"))
        self.assertIn("input_image.file_id", caught.exception.message)

    def test_refusals_are_words_and_outputs_without_their_call_are_left_out(self):
        call = call_of(responses_request(items=[
            {"role": "assistant", "content": [{"type": "refusal", "refusal": "No."}]},
            {"type": "computer_call_output", "call_id": "zz", "output": {"type": "computer_screenshot"}}]))
        self.assertEqual(call.body["messages"], [{"role": "assistant", "content": "No."}])
        self.assertEqual(call.dropped, ["output of 'zz'"])


class ToolsTest(unittest.TestCase):

    def test_functions_groups_and_custom_tools_become_functions(self):
        call = call_of(responses_request(tools=[WEATHER, PATCH, {"type": "namespace", "name": "g", "tools": [
            {"type": "function", "name": "f", "strict": True, "parameters": {
                "type": "object", "properties": {}, "required": [], "additionalProperties": False}}]}, {"type": "web_search"}]))
        tools = [tool["function"] for tool in call.body["tools"]]
        self.assertEqual([tool["name"] for tool in tools], ["get_weather", "patch", "g__f"])
        self.assertEqual(tools[1]["parameters"]["required"], ["input"])
        self.assertIn("start: WORD", tools[1]["description"])
        self.assertIs(tools[2]["strict"], True)
        self.assertEqual(call.tools["g__f"], ("f", "g", False))
        self.assertEqual(call.tools["patch"], ("patch", None, True))
        self.assertNotIn("tool_choice", call.body)

    def test_choices(self):
        two = [WEATHER, dict(WEATHER, name="get_time")]
        for choice, wanted, count in (
                ("auto", "auto", 2), ("none", "none", 2), ("required", "required", 2),
                ({"type": "function", "name": "get_time"}, {"type": "function", "function": {"name": "get_time"}}, 1),
                ({"type": "allowed_tools", "mode": "required", "tools": [{"type": "function", "name": "get_time"}]}, "required", 1),
                ({"type": "allowed_tools", "mode": "auto", "tools": [{"type": "function", "name": "get_time"}]}, "auto", 1)):
            body = body_of(tools=two, tool_choice=choice)
            self.assertEqual((body["tool_choice"], len(body["tools"])), (wanted, count), choice)

    def test_without_tools_nothing_is_said_of_them(self):
        body = body_of(tool_choice="auto", parallel_tool_calls=False)
        self.assertFalse({"tools", "tool_choice", "parallel_tool_calls"} & set(body))


class FieldsTest(unittest.TestCase):

    def test_formats(self):
        schema = {"type": "object"}
        self.assertEqual(body_of(text={"format": {"type": "json_schema", "name": "n", "schema": schema, "strict": True},
                                       "verbosity": "low"}, items=None)["response_format"],
                         {"type": "json_schema", "json_schema": {"name": "n", "schema": schema, "strict": True}})
        self.assertEqual(body_of(text={"format": {"type": "json_object"}})["response_format"], {"type": "json_object"})
        self.assertNotIn("response_format", body_of(text={"format": {"type": "text"}}))

    def test_limits_effort_and_sampling(self):
        body = body_of(max_output_tokens=33, reasoning={"effort": "low", "summary": "auto"}, temperature=0.5, top_p=0.9,
                       frequency_penalty=1, top_k=40, user="u", metadata={"a": "b"}, store=True)
        self.assertEqual((body["max_tokens"], body["reasoning_effort"], body["temperature"], body["top_k"]), (33, "low", 0.5, 40))
        self.assertFalse({"metadata", "store", "input", "reasoning", "max_output_tokens"} & set(body))
        self.assertEqual(body_of(max_output_tokens=33, settings={"upstream_max_tokens_field": "max_completion_tokens"})[
            "max_completion_tokens"], 33)

    def test_a_stream_with_usage_is_asked_for_unless_it_may_not_be(self):
        body = body_of()
        self.assertEqual((body["stream"], body["stream_options"], body["model"]), (True, {"include_usage": True}, "there"))
        self.assertFalse({"stream", "stream_options"} & set(body_of(settings={"upstream_no_stream": True})))
        self.assertNotIn("stream_options", body_of(settings={"upstream_drop": ("stream_options",)}))

    def test_what_is_listed_as_ignored(self):
        settings = Settings(backend="upstream", upstream_url=("http://127.0.0.1:1",), upstream_drop=("user",))
        request = responses_request(tools=[WEATHER, {"type": "web_search"}], max_tool_calls=2, client_metadata={}, user="u",
                                    temperature=1, prompt={"id": "p"}, metadata={}, reasoning={"effort": "low"})
        self.assertEqual(set(unforwarded_fields(request, settings)),
                         {"tools.web_search", "max_tool_calls", "client_metadata", "user", "prompt"})

    def test_a_compaction_asks_for_a_summary(self):
        last = call_of(responses_request("compact")).body["messages"][-1]
        self.assertEqual(last["role"], "user")
        self.assertIn("Summarise", last["content"])


class ChatTest(unittest.TestCase):

    def test_a_chat_goes_out_as_it_came_but_for_what_is_kept_here(self):
        raw = {"model": "m", "messages": [{"role": "odd", "content": [{"type": "video_url"}]}], "unknown": {"a": [1]},
               "temperature": 7, "store": True, "metadata": {"k": "v"}, "stream": False, "max_tokens": -1}
        body = call_of(GenerationRequest("m", History(None, b"", "", None), raw=raw)).body
        self.assertEqual(json.loads(json.dumps(body)), {
            "model": "there", "messages": raw["messages"], "unknown": {"a": [1]}, "temperature": 7, "max_tokens": -1,
            "stream": True, "stream_options": {"include_usage": True}})

    def test_the_clients_own_stream_options_stay(self):
        raw = {"model": "m", "messages": [], "stream": True, "stream_options": {"include_usage": False, "x": 1}}
        call = call_of(GenerationRequest("m", History(None, b"", "", None), raw=raw))
        self.assertEqual((call.path, call.body["stream_options"]), ("/chat/completions", {"include_usage": True, "x": 1}))


if __name__ == "__main__":
    unittest.main()
