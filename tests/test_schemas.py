"""JSON bodies and streaming events against the published schemas in tests/data.

Needs `jsonschema` (CI installs it); without it these tests are skipped and say so. Every oneOf is read as
anyOf and a union's branch is chosen by its `type` first, as tests/data/NOTICE tells. What the two
documents contradict each other in (api-reference 12) is listed below, each with its reason.
"""
import json
import os
import unittest

from backends.contract import Finish, TextDelta, Usage
from chat_api import ChatAssembler
from responses_api import build_echo
from responses_assembler import ResponseAssembler
from tests import ROOT
from tests.data.golden import (BUILTIN_LISTS, BUILTIN_TOOLS, CHOICE_DELTAS, DELTAS, FAILURES, object_of, read_response_stream, read_sse,
                               stream_of, with_failure)
from tests.support import CHAT, RESPONSE, LiveServerTest

try:
    from jsonschema import Draft202012Validator
    from jsonschema.exceptions import best_match
    from referencing import Registry, Resource
    from referencing.jsonschema import DRAFT202012
except ImportError as exc:
    Draft202012Validator = None
    MISSING = "needs the jsonschema package: %s" % exc
else:
    MISSING = ""

REQUEST = dict(RESPONSE, instructions="Be brief.", temperature=0.5, metadata={"a": "b"}, user="u",
               tools=[{"type": "function", "name": "f", "parameters": {"type": "object"}}],
               reasoning={"effort": "low"}, max_output_tokens=64, safety_identifier="s", prompt_cache_key="k")

# Keys of a response object that are null where OpenAI's schema has no null.
OPENAI_NOT_NULL = ("usage",         # before the end and in failures the service sends null
                   "user", "safety_identifier", "prompt_cache_key")     # strings there; Open Responses wants the keys

# Golden lists that say what Open Responses' schema does not know.
OPEN_UNKNOWN = {"custom call": "function kinds only in its output", "web search": "function kinds only",
                "text, search, text": "function kinds only", "raw reasoning": "other event names",
                "summary, then raw": "other event names"}
OPEN_UNKNOWN.update((name, "function kinds only") for name in BUILTIN_LISTS)


def without_one_of(value):
    """A copy of a schema with every oneOf read as anyOf, and without discriminators."""
    if isinstance(value, dict):
        return {("anyOf" if key == "oneOf" else key): without_one_of(part) for key, part in value.items()
                if key != "discriminator"}
    if isinstance(value, list):
        return [without_one_of(part) for part in value]
    return value


class Schemas:
    """One OpenAPI document, ready to validate against its components."""

    def __init__(self, file_name):
        with open(os.path.join(ROOT, "tests", "data", file_name), encoding="utf-8") as file:
            self.document = without_one_of(json.load(file))
        self.schemas = self.document["components"]["schemas"]
        resource = Resource.from_contents(self.document, default_specification=DRAFT202012)
        self._registry = Registry().with_resource("urn:api", resource)
        self._validators = {}

    def check(self, test, name, value):
        """`value` fits the component `name`."""
        validator = self._validators.get(name)
        if validator is None:
            validator = self._validators[name] = Draft202012Validator(
                {"$ref": "urn:api#/components/schemas/" + name}, registry=self._registry)
        error = best_match(validator.iter_errors(value))
        if error is not None:
            test.fail("%s at %s: %s" % (name, error.json_path, error.message[:300]))

    def branches(self, union):
        """{the `type` that chooses it: [component names]} of a component's or a list's union."""
        if isinstance(union, str):
            union = self.schemas[union]["anyOf"]
        found = {}
        for branch in union:
            name = branch["$ref"].rpartition("/")[2]
            for value in self._types(branch):
                found.setdefault(value, []).append(name)
        return found

    def _types(self, schema):
        """The values that a schema allows for `type`."""
        if "$ref" in schema:
            schema = self.schemas[schema["$ref"].rpartition("/")[2]]
        kind = schema.get("properties", {}).get("type", {})
        found = list(kind.get("enum", [kind["const"]] if "const" in kind else []))
        for part in schema.get("allOf", []) + schema.get("anyOf", []):
            found += self._types(part)
        return found

    def check_branch(self, test, branches, value):
        """`value` fits a branch that its `type` chooses."""
        failures = []
        for name in branches[value["type"]]:
            try:
                self.check(test, name, value)
                return
            except AssertionError as exc:
                failures.append(str(exc))
        test.fail("\n".join(failures))


if not MISSING:
    OPENAI = Schemas("openai-subset.json")
    OPEN = Schemas("openresponses-openapi.json")
    OPENAI_EVENTS = OPENAI.branches("ResponseStreamEvent")
    OPENAI_ITEMS = OPENAI.branches("OutputItem")
    OPEN_EVENTS = OPEN.branches(OPEN.document["paths"]["/responses"]["post"]["responses"]["200"]["content"][
        "text/event-stream"]["schema"]["anyOf"])


def open_knows(event):
    """Whether Open Responses' schema may know an event beside a built-in tool's items, which it does not."""
    item = event.get("item") or {"type": "message", "content": [event.get("part") or {}]}
    notes = [note for part in item.get("content", ()) for note in part.get("annotations", ())]
    if "annotation" in event:
        notes.append(event["annotation"])
    return event["type"] in OPEN_EVENTS and "response" not in event and item["type"] == "message" \
        and all(note["type"] == "url_citation" for note in notes)


def openai_response(response):
    """A response object without the nulls that OpenAI's schema does not know."""
    return {key: value for key, value in response.items() if value is not None or key not in OPENAI_NOT_NULL}


def response_assembler():
    return ResponseAssembler("0" * 32, 1700000000, build_echo(REQUEST), lambda: 1700000009, 1)


def chat_assembler(choices=1):
    return ChatAssembler("0" * 32, 1700000000, "m", choices, True)


@unittest.skipIf(MISSING, MISSING)
class SchemaTest(unittest.TestCase):
    """Bodies as the assemblers make them, from the golden lists."""

    def check_event(self, event, open_too=True):
        given = dict(event)
        if "response" in event:
            given["response"] = openai_response(event["response"])
            for item in event["response"]["output"]:
                OPENAI.check_branch(self, OPENAI_ITEMS, item)
        if "item" in event:
            OPENAI.check_branch(self, OPENAI_ITEMS, event["item"])
        OPENAI.check_branch(self, OPENAI_EVENTS, given)
        if open_too:
            OPEN.check_branch(self, OPEN_EVENTS, event)

    def test_responses_events_of_every_golden_list(self):
        seen = set()
        for name, deltas in DELTAS.items():
            with self.subTest(deltas=name):
                for event in read_response_stream(self, stream_of(response_assembler(), deltas)):
                    self.check_event(event, name not in OPEN_UNKNOWN or name in BUILTIN_LISTS and open_knows(event))
                    seen.add(event["type"])
        for kind in ("created", "in_progress", "completed", "incomplete", "output_item.added", "output_item.done",
                     "content_part.added", "content_part.done", "output_text.delta", "output_text.done",
                     "refusal.delta", "refusal.done", "function_call_arguments.delta",
                     "function_call_arguments.done", "custom_tool_call_input.delta", "custom_tool_call_input.done",
                     "reasoning_text.delta", "reasoning_text.done", "reasoning_summary_text.delta",
                     "reasoning_summary_text.done", "reasoning_summary_part.added", "reasoning_summary_part.done",
                     "web_search_call.in_progress", "web_search_call.searching", "web_search_call.completed",
                     "file_search_call.in_progress", "file_search_call.searching", "file_search_call.completed",
                     "code_interpreter_call.in_progress", "code_interpreter_call_code.delta",
                     "code_interpreter_call_code.done", "code_interpreter_call.interpreting",
                     "code_interpreter_call.completed", "image_generation_call.in_progress",
                     "image_generation_call.generating", "image_generation_call.partial_image",
                     "image_generation_call.completed", "mcp_list_tools.in_progress", "mcp_list_tools.completed",
                     "mcp_call.in_progress", "mcp_call_arguments.delta", "mcp_call_arguments.done",
                     "mcp_call.completed", "shell_call_command.added", "shell_call_command.delta",
                     "shell_call_command.done", "shell_call_output_content.delta",
                     "shell_call_output_content.done", "output_text.annotation.added"):
            self.assertIn("response." + kind, seen)

    def test_responses_events_of_failures(self):
        for name in ("run", "text, call, text", "summary", "refusal"):
            for position in range(len(DELTAS[name])):
                for kind, error in FAILURES.items():
                    with self.subTest(deltas=name, position=position, error=kind):
                        data = stream_of(response_assembler(), with_failure(DELTAS[name], position, error))
                        for event in read_response_stream(self, data)[-2:]:
                            if kind == "context" and event["type"] == "response.failed":
                                # the service and its clients know this code, the schema's list does not
                                self.assertEqual(event["response"]["error"]["code"], "context_length_exceeded")
                                event["response"]["error"]["code"] = "server_error"
                            self.check_event(event)

    def test_response_objects_of_every_golden_list(self):
        for name, deltas in DELTAS.items():
            with self.subTest(deltas=name):
                response = object_of(response_assembler(), deltas)
                OPENAI.check(self, "Response", openai_response(response))
                if name not in OPEN_UNKNOWN:
                    OPEN.check(self, "ResponseResource", response)

    def test_a_default_request_has_a_valid_echo(self):
        assembler = ResponseAssembler("0" * 32, 1700000000, build_echo(RESPONSE), lambda: 1700000009, 1)
        response = object_of(assembler, DELTAS["run"])
        OPENAI.check(self, "Response", openai_response(response))
        OPEN.check(self, "ResponseResource", response)

    def test_all_kinds_of_tools_and_formats_have_a_valid_echo(self):
        for change in ({"tools": [{"type": "function", "name": "f"}, {"type": "function", "name": "g", "strict": None}]},
                       {"tool_choice": "required"}, {"tool_choice": {"type": "function", "name": "f"}},
                       {"text": {"format": {"type": "json_object"}}}, {"text": {"verbosity": "low"}},
                       {"reasoning": {}}, {"reasoning": {"summary": "auto"}}, {"service_tier": "flex"},
                       {"truncation": "auto"}, {"previous_response_id": "resp_1"}, {"store": False}):
            with self.subTest(change=change):
                assembler = ResponseAssembler("0" * 32, 1700000000, build_echo(dict(RESPONSE, **change)),
                                              lambda: 1700000009, 1)
                response = object_of(assembler, DELTAS["run"])
                OPENAI.check(self, "Response", openai_response(response))
                OPEN.check(self, "ResponseResource", response)
        assembler = ResponseAssembler("0" * 32, 1700000000, build_echo(dict(RESPONSE, text={"format": {
            "type": "json_schema", "name": "x", "schema": {"type": "object"}}}, tools=[
                {"type": "custom", "name": "c"}, {"type": "web_search"}])), lambda: 1700000009, 1)
        OPENAI.check(self, "Response", openai_response(object_of(assembler, DELTAS["run"])))

    def test_chat_chunks_of_every_golden_list(self):
        lists = [(1, deltas) for name, deltas in DELTAS.items() if name != "custom call"]    # functions only (4.4)
        for choices, deltas in lists + list(CHOICE_DELTAS.values()):
            with self.subTest(deltas=str(deltas)[:60]):
                for _, chunk in read_sse(stream_of(chat_assembler(choices), deltas))[:-1]:
                    OPENAI.check(self, "CreateChatCompletionStreamResponse", chunk)

    def test_chat_objects_of_every_golden_list(self):
        for choices, deltas in [(1, deltas) for deltas in DELTAS.values()] + list(CHOICE_DELTAS.values()):
            with self.subTest(deltas=str(deltas)[:60]):
                OPENAI.check(self, "CreateChatCompletionResponse", object_of(chat_assembler(choices), deltas))

    def test_error_envelopes(self):
        for name, error in FAILURES.items():
            with self.subTest(error=name):
                OPENAI.check(self, "ErrorResponse", json.loads(error.envelope()))

    def test_a_wrong_body_would_be_noticed(self):
        response = object_of(response_assembler(), [TextDelta("a"), Finish(), Usage(1, 1)])
        for change in ({"status": "done"}, {"output": [{"type": "message", "id": 5}]}, {"created_at": "now"},
                       {"usage": {"input_tokens": 1}}, {"id": None}):
            with self.subTest(change=change):
                with self.assertRaises(AssertionError):
                    OPENAI.check(self, "Response", openai_response(dict(response, **change)))
                if "status" not in change:          # any string there
                    with self.assertRaises(AssertionError):
                        OPEN.check(self, "ResponseResource", dict(response, **change))
        chunk = read_sse(stream_of(chat_assembler(), DELTAS["run"]))[0][1]
        with self.assertRaises(AssertionError):
            OPENAI.check(self, "CreateChatCompletionStreamResponse", dict(chunk, choices=[{"index": 0}]))


@unittest.skipIf(MISSING, MISSING)
class LiveSchemaTest(LiveServerTest):
    """What only a server sends."""

    def test_bodies_of_all_routes(self):
        self.start_server(model=("m", "org/n"))
        first = self.request("POST", "/v1/responses", REQUEST).json()
        second = self.request("POST", "/v1/responses", dict(REQUEST, previous_response_id=first["id"], input=[
            {"role": "user", "content": [{"type": "input_text", "text": "x"},
                                         {"type": "input_image", "image_url": "http://x"}]},
            {"role": "assistant", "content": "y"}, {"type": "function_call", "call_id": "c", "name": "f",
                                                    "arguments": "{}"},
            {"type": "function_call_output", "call_id": "c", "output": "z"}])).json()
        stored = self.request("GET", "/v1/responses/" + second["id"]).json()
        for response in (first, second, stored):
            OPENAI.check(self, "Response", openai_response(response))
            OPEN.check(self, "ResponseResource", response)
        page = self.request("GET", "/v1/responses/%s/input_items" % second["id"]).json()
        self.assertEqual(len(page["data"]), 5 + len(first["output"]))
        OPENAI.check(self, "ResponseItemList", page)
        branches = OPENAI.branches("ItemResource")
        for item in page["data"]:
            OPENAI.check_branch(self, branches, item)
        self.assertEqual(self.request("DELETE", "/v1/responses/" + first["id"]).json(),
                         {"id": first["id"], "object": "response", "deleted": True})
        OPENAI.check(self, "ListModelsResponse", self.request("GET", "/v1/models").json())
        for name in ("m", "org/n"):
            OPENAI.check(self, "Model", self.request("GET", "/v1/models/" + name).json())
        OPENAI.check(self, "CreateChatCompletionResponse", self.request("POST", "/v1/chat/completions", CHAT).json())

    def test_items_of_built_in_tools(self):
        self.start_server(output_tokens=24)
        include = ["file_search_call.results", "web_search_call.action.sources", "code_interpreter_call.outputs"]
        variants = dict(BUILTIN_TOOLS, **{
            "approval": {key: value for key, value in BUILTIN_TOOLS["mcp"].items() if key != "require_approval"},
            "container": {"type": "shell", "environment": {"type": "container_auto"}},
            "open page": {"type": "web_search", "search_context_size": "high"},
            "old computer": {"type": "computer_use_preview", "environment": "browser", "display_width": 9,
                             "display_height": 9}})
        resources = OPENAI.branches("ItemResource")
        for name, tool in variants.items():
            for given in ([], include):
                for limit in (None, 16):        # the smallest, which cuts some of them
                    with self.subTest(tool=name, include=bool(given), limit=limit):
                        body = dict(RESPONSE, tools=[tool], tool_choice="required", include=given, stream=True,
                                    max_output_tokens=limit)
                        answer = self.request("POST", "/v1/responses", body)
                        self.assertEqual(answer.status, 200, answer)
                        events = read_response_stream(self, answer.body)
                        for event in events:
                            SchemaTest.check_event(self, event, False)
                        OPENAI.check(self, "Response", openai_response(events[-1]["response"]))
                        id = events[-1]["response"]["id"]
                        query = "?" + "&".join("include[]=" + each for each in include)
                        OPENAI.check(self, "Response", openai_response(
                            self.request("GET", "/v1/responses/%s%s" % (id, query)).json()))
                        later = self.request("POST", "/v1/responses", dict(RESPONSE, previous_response_id=id)).json()
                        for each in ("", query):
                            page = self.request("GET", "/v1/responses/%s/input_items%s" % (later["id"], each)).json()
                            for item in page["data"]:
                                OPENAI.check_branch(self, resources, item)

    def test_annotations_of_chat(self):
        self.start_server(output_tokens=24, builtin_tool_rate=1)
        body = dict(CHAT, web_search_options={})
        answer = self.request("POST", "/v1/chat/completions", body).json()
        self.assertTrue(answer["choices"][0]["message"]["annotations"])
        OPENAI.check(self, "CreateChatCompletionResponse", answer)
        for _, chunk in read_sse(self.request("POST", "/v1/chat/completions", dict(body, stream=True)).body)[:-1]:
            OPENAI.check(self, "CreateChatCompletionStreamResponse", chunk)

    def test_errors_of_all_kinds(self):
        self.start_server(api_key=("k",))
        key = {"Authorization": "Bearer k"}
        for status, method, path, body, headers in (
                (401, "GET", "/v1/models", None, {}), (401, "GET", "/v1/models", None, {"Authorization": "Bearer x"}),
                (404, "GET", "/v1/nothing", None, key), (405, "PUT", "/v1/models", None, key),
                (404, "GET", "/v1/models/none", None, key), (404, "GET", "/v1/responses/resp_0", None, key),
                (404, "DELETE", "/v1/responses/resp_0", None, key),
                (404, "GET", "/v1/responses/resp_0/input_items", None, key),
                (400, "POST", "/v1/responses", {}, key), (400, "POST", "/v1/chat/completions", {"model": "m"}, key),
                (400, "POST", "/v1/responses", dict(RESPONSE, previous_response_id="resp_0"), key),
                (415, "POST", "/v1/responses", RESPONSE, dict(key, **{"Content-Encoding": "gzip"}))):
            with self.subTest(status=status, path=path):
                answer = self.request(method, path, body, headers)
                self.assertEqual(answer.status, status)
                OPENAI.check(self, "ErrorResponse", answer.json())
                self.assertEqual(set(answer.error), {"message", "type", "param", "code"})


if __name__ == "__main__":
    unittest.main()
