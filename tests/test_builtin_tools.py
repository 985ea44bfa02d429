"""Built-in tools: which are called, what comes of them in which order, and what the next turn makes of it."""
import base64
import json
import unittest
from urllib.request import Request, urlopen

from api_common import ApiError
from api_tools import read_tool_choice, read_tools
from backends.builtin_tools import (code_outputs, file_results, fill_includes, image_bytes, place_citations,
                                    web_sources)
from backends.contract import (AnnotationDelta, Finish, GenerationRequest, History, ItemEnd, ItemStart, ItemUpdate,
                               OutputFormat, TextDelta, Usage)
from backends.latency import ClockModel
from backends.simulated import SimulatedBackend
from responses_assembler import ResponseAssembler
from server import MockTurtle
from tests.data.golden import (BUILTIN_CHOICES, BUILTIN_TOOLS, DELTAS, object_of, read_chat_stream, read_response_stream, short_event, stream_of)
from tests.support import DeltaBackend, LiveServerTest, every_form, wait_until
from tokenizer import ApproxTokenizer

TOKENIZER = ApproxTokenizer()
QUESTION = "When is high tide in Oslo?"
TOOLS, CHOICES = BUILTIN_TOOLS, BUILTIN_CHOICES
FREE_MCP = TOOLS["mcp"]
MCP = {key: value for key, value in FREE_MCP.items() if key != "require_approval"}
WAITING = ("shell", "local_shell", "apply_patch", "computer")
INCLUDES = ["file_search_call.results", "web_search_call.action.sources", "code_interpreter_call.outputs"]
FUNCTION = {"type": "function", "name": "get_weather", "parameters": {"type": "object", "properties": {}}}

_TEXT = ["item+ 1", "part+ 1.0", "text 1.0", "text. 1.0", "part- 1.0", "item- 1"]


def _cited(notes):
    return _TEXT[:3] + ["note 1.0"] * notes + _TEXT[3:]


# What a family's tool makes, in golden.py's shorthand; deltas of one text in a row count once.
FAMILY_EVENTS = {
    "web_search": ["item+ 0", "web_search_call.in_progress 0", "web_search_call.searching 0",
                   "web_search_call.completed 0", "item- 0"] + _cited(2),
    "file_search": ["item+ 0", "file_search_call.in_progress 0", "file_search_call.searching 0",
                    "file_search_call.completed 0", "item- 0"] + _cited(2),
    "code_interpreter": ["item+ 0", "code_interpreter_call.in_progress 0", "code 0", "code. 0",
                         "code_interpreter_call.interpreting 0", "code_interpreter_call.completed 0", "item- 0"]
    + _cited(1),
    "image_generation": ["item+ 0", "image_generation_call.in_progress 0", "image_generation_call.generating 0",
                         "image_generation_call.partial_image 0", "image_generation_call.partial_image 0",
                         "image_generation_call.completed 0", "item- 0"] + _TEXT,
    "mcp": ["item+ 0", "mcp_list_tools.in_progress 0", "mcp_list_tools.completed 0", "item- 0", "item+ 1",
            "mcp_call.in_progress 1", "args 1", "args. 1", "mcp_call.completed 1", "item- 1"]
    + [name.replace(" 1", " 2") for name in _TEXT],
    "shell": ["item+ 0", "command+ 0.0", "command 0.0", "command. 0.0", "item- 0"],
    "local_shell": ["item+ 0", "item- 0"],
    "apply_patch": ["item+ 0", "item- 0"],
    "computer": ["item+ 0", "item- 0"],
}


def short_events(events):
    """Shorthand of what comes between in_progress and the terminal event."""
    names = []
    for event in events[2:-1]:
        name = short_event(event)
        if not event["type"].endswith(".delta") or not names or names[-1] != name:
            names.append(name)
    return names


def make_backend(rate=0.0, seed=0, itl_s=0.01, tokens=24, **more):
    return SimulatedBackend(ClockModel(0.1, itl_s), TOKENIZER, tokens, seed=seed, builtin_tool_rate=rate, **more)


def make_request(*tools, choice=None, text=QUESTION, items=(), after_output=False, endpoint="responses", **more):
    specs = read_tools(list(tools))
    history = History(9, text.encode("utf-8"), text, list, 0, after_output, lambda: list(items))
    return GenerationRequest("m", history, tools=specs, tool_choice=read_tool_choice(choice, specs),
                             endpoint=endpoint, **more)


def plan_of(backend, *tools, **more):
    return backend.generate(make_request(*tools, **more), None)


def assembler():
    return ResponseAssembler("0" * 32, 1700000000, b'"model":"m"', lambda: 1700000009, 1)


def deltas_of(plan):
    return [delta for _, delta in plan]


def kinds_of(plan):
    """The items that a plan begins, and "text" where it says one."""
    kinds = [delta.kind for delta in deltas_of(plan) if delta.__class__ is ItemStart]
    return kinds + ["text"] * any(delta.__class__ is TextDelta or hasattr(delta, "pieces") for delta in deltas_of(plan))


def reason_of(plan):
    return next(delta.reason for delta in deltas_of(plan) if delta.__class__ is Finish)


# ---- what is said, and when -------------------------------------------------------------------

class ChoiceTest(unittest.TestCase):
    """When a built-in tool is called."""

    def test_a_choice_that_names_a_family_calls_it(self):
        for name, tool in TOOLS.items():
            with self.subTest(tool=name):
                first = kinds_of(plan_of(make_backend(), FUNCTION, tool, choice=CHOICES[name]))[0]
                self.assertEqual(first, "mcp_list_tools" if name == "mcp" else name + "_call")

    def test_a_choice_picks_its_own_among_several(self):
        for name in TOOLS:
            with self.subTest(tool=name):
                kinds = kinds_of(plan_of(make_backend(), *TOOLS.values(), choice=CHOICES[name]))
                self.assertEqual({kind for kind in kinds if kind != "text"},
                                 {"mcp_list_tools", "mcp_call"} if name == "mcp" else {name + "_call"})

    def test_required_calls_a_function_where_there_is_one_and_else_a_built_in_one(self):
        self.assertEqual(reason_of(plan_of(make_backend(), TOOLS["web_search"], FUNCTION, choice="required")), "tool_calls")
        self.assertEqual(kinds_of(plan_of(make_backend(), TOOLS["web_search"], FUNCTION, choice="required")), [])
        self.assertEqual(kinds_of(plan_of(make_backend(), TOOLS["web_search"], choice="required")),
                         ["web_search_call", "text"])
        drawn = {kinds_of(plan_of(make_backend(seed=seed), TOOLS["web_search"], TOOLS["file_search"],
                                  choice="required"))[0] for seed in range(30)}
        self.assertEqual(drawn, {"web_search_call", "file_search_call"})

    def test_by_default_auto_calls_none(self):
        for choice in (None, "auto", "none"):
            with self.subTest(choice=choice):
                self.assertEqual(kinds_of(plan_of(make_backend(), *TOOLS.values(), choice=choice)), ["text"])

    def test_the_rate_is_each_tools_chance_in_auto_with_a_seeded_draw(self):
        both = TOOLS["web_search"], TOOLS["code_interpreter"]
        self.assertEqual(kinds_of(plan_of(make_backend(1.0), *both)), ["web_search_call", "code_interpreter_call", "text"])
        self.assertEqual(kinds_of(plan_of(make_backend(1.0), *both, choice="none")), ["text"])
        drawn = [[tuple(kinds_of(plan_of(backend, *both, seed=seed))) for seed in range(60)]
                 for backend in (make_backend(0.5), make_backend(0.5))]
        self.assertEqual(drawn[0], drawn[1])
        self.assertEqual(len(set(drawn[0])), 4)

    def test_allowed_tools_bind_the_rate_as_well(self):
        choice = {"type": "allowed_tools", "mode": "auto", "tools": [{"type": "file_search"}]}
        self.assertEqual(kinds_of(plan_of(make_backend(1.0), *TOOLS.values(), choice=choice)), ["file_search_call", "text"])
        for mode in ("auto", "required"):
            choice = {"type": "allowed_tools", "mode": mode, "tools": [FUNCTION]}
            self.assertNotIn("web_search_call", kinds_of(plan_of(make_backend(1.0), FUNCTION, TOOLS["web_search"],
                                                                choice=choice)))

    def test_after_a_tools_output_auto_says_text(self):
        self.assertEqual(kinds_of(plan_of(make_backend(1.0), *TOOLS.values(), after_output=True)), ["text"])

    def test_a_function_that_the_message_points_at_comes_first(self):
        plan = plan_of(make_backend(1.0), FUNCTION, TOOLS["web_search"], text="The weather, please.")
        self.assertEqual((kinds_of(plan), reason_of(plan)), ([], "tool_calls"))

    def test_what_waits_for_the_client_comes_last(self):
        plan = plan_of(make_backend(1.0), TOOLS["web_search"], TOOLS["shell"], TOOLS["file_search"])
        self.assertEqual((kinds_of(plan), reason_of(plan)), (["web_search_call", "shell_call"], "tool_calls"))

    def test_max_tool_calls_bounds_what_is_called(self):
        tools = [TOOLS[name] for name in ("web_search", "file_search", "mcp", "code_interpreter")]
        made = ["web_search_call", "file_search_call", "mcp_list_tools", "mcp_call", "code_interpreter_call"]
        for most, calls in ((1, made[:1]), (2, made[:2]), (3, made[:4]), (4, made), (9, made), (None, made)):
            with self.subTest(most=most):
                self.assertEqual(kinds_of(plan_of(make_backend(1.0), *tools, max_tool_calls=most)), calls + ["text"])
        deep = dict(TOOLS["web_search"], search_context_size="high")
        for most, count in ((1, 1), (2, 2), (None, 2)):
            with self.subTest(most=most):
                self.assertEqual(kinds_of(plan_of(make_backend(1.0), deep, max_tool_calls=most)),
                                 ["web_search_call"] * count + ["text"])

    def test_chat_calls_a_web_search_and_nothing_else(self):
        self.assertEqual(kinds_of(plan_of(make_backend(1.0), *TOOLS.values(), endpoint="chat")), ["web_search_call", "text"])
        self.assertEqual(kinds_of(plan_of(make_backend(), TOOLS["shell"], choice="required", endpoint="chat")), ["text"])

    def test_types_of_all_years_are_families_and_unknown_ones_are_none(self):
        for kind, item in (("web_search_preview", "web_search_call"), ("web_search_2025_08_26", "web_search_call"),
                           ("web_search_preview_2025_03_11", "web_search_call"), ("computer_use_preview", "computer_call")):
            with self.subTest(kind=kind):
                self.assertEqual(kinds_of(plan_of(make_backend(), {"type": kind}, choice={"type": kind}))[0], item)
        self.assertEqual(kinds_of(plan_of(make_backend(1.0), {"type": "never_heard_of"}, {"type": "tool_search"})), ["text"])


class PlanTest(unittest.TestCase):
    """What a called tool says, on the clock."""

    def test_events_of_each_family_come_in_the_services_order(self):
        for name, tool in TOOLS.items():
            with self.subTest(tool=name):
                plan = plan_of(make_backend(), tool, choice=CHOICES[name])
                events = read_response_stream(self, stream_of(assembler(), deltas_of(plan)))
                self.assertEqual(short_events(events), FAMILY_EVENTS[name])
                self.assertEqual(events[-1]["type"], "response.completed")

    def test_the_same_request_gives_the_same_plan_and_another_seed_another(self):
        for name, tool in TOOLS.items():
            with self.subTest(tool=name):
                plans = [plan_of(make_backend(seed=seed), tool, choice=CHOICES[name]) for seed in (1, 1)]
                self.assertEqual(plans[0], plans[1])
        self.assertGreater(len({repr(plan_of(make_backend(seed=seed), TOOLS["shell"], choice=CHOICES["shell"]))
                                for seed in range(20)}), 3)

    def test_include_changes_nothing_but_what_it_names(self):
        for name in ("web_search", "file_search", "code_interpreter"):
            with self.subTest(tool=name):
                bare, full = [plan_of(make_backend(), TOOLS[name], choice=CHOICES[name], include=include)
                              for include in ((), INCLUDES)]
                differ = [(one[1].__class__, two[1].__class__) for one, two in zip(bare, full) if one != two]
                self.assertEqual((len(bare), differ), (len(full), [(ItemEnd, ItemEnd)]))

    def test_steps_are_paced_by_the_clock(self):
        plan = plan_of(make_backend(), TOOLS["web_search"], choice=CHOICES["web_search"])
        dues = [due for due, _ in plan]
        self.assertEqual(dues, sorted(dues))
        steps = [(due, delta.phase) for due, delta in plan if delta.__class__ is ItemUpdate]
        self.assertEqual([(round(due, 6), phase) for due, phase in steps],
                         [(0.1, "in_progress"), (0.11, "searching"), (0.12, "completed")])
        texts = [due for due, delta in plan if delta.__class__ is TextDelta]
        self.assertEqual([round(due, 6) for due in texts], [round(0.13 + 0.01 * n, 6) for n in range(24)])
        self.assertEqual(plan[-1][0], texts[-1])

    def test_a_text_in_deltas_has_one_token_an_itl(self):
        for name, kind in (("code_interpreter", "code_interpreter_call_code"), ("mcp", "mcp_call_arguments"),
                           ("shell", "shell_call_command")):
            plan = plan_of(make_backend(), TOOLS[name], choice=CHOICES[name])
            dues = [due for due, delta in plan if delta.__class__ is ItemUpdate and delta[:2] == (kind, "delta")]
            with self.subTest(tool=name):
                self.assertGreater(len(dues), 1)
                for before, after in zip(dues, dues[1:]):
                    self.assertAlmostEqual(after - before, 0.01)

    def test_reasoning_comes_before_the_tool(self):
        plan = plan_of(make_backend(), TOOLS["web_search"], choice=CHOICES["web_search"], reasoning_effort="minimal",
                       reasoning_items="summary")
        response = object_of(assembler(), deltas_of(plan))
        self.assertEqual([item["type"] for item in response["output"]], ["reasoning", "web_search_call", "message"])
        self.assertEqual(response["usage"]["output_tokens_details"]["reasoning_tokens"], 16)
        self.assertAlmostEqual(next(due for due, delta in plan if delta.__class__ is ItemStart), 0.1 + 16 * 0.01)

    def test_every_limit_cuts_in_order_and_counts_no_more_than_it_allows(self):
        backend = make_backend()
        for name, tool in TOOLS.items():
            for limit in list(range(1, 50)) + [75, 99]:
                plan = plan_of(backend, tool, choice=CHOICES[name], max_tokens=limit)
                events = read_response_stream(self, stream_of(assembler(), deltas_of(plan)))
                used = plan[-1][1].completion_tokens
                with self.subTest(tool=name, limit=limit):
                    self.assertLessEqual(used, limit)
                    if events[-1]["type"] == "response.incomplete":
                        self.assertEqual((used, reason_of(plan)), (limit, "length"))
        for name in ("code_interpreter", "mcp", "shell"):
            status = object_of(assembler(), deltas_of(plan_of(make_backend(), TOOLS[name], choice=CHOICES[name],
                                                              max_tokens=2)))["output"][-1]["status"]
            self.assertEqual(status, "incomplete", name)

    def test_usage_counts_the_text_and_what_the_model_wrote_into_the_call(self):
        def used(name):
            return plan_of(make_backend(), TOOLS[name], choice=CHOICES[name])[-1][1].completion_tokens
        self.assertEqual((used("web_search"), used("file_search"), used("image_generation")), (24, 24, 24))
        self.assertEqual((used("computer"), used("local_shell"), used("apply_patch")), (1, 1, 1))
        plan = plan_of(make_backend(), TOOLS["mcp"], choice=CHOICES["mcp"])
        call = object_of(assembler(), deltas_of(plan))["output"][1]
        self.assertEqual(used("mcp"), 24 + 1 + TOKENIZER.count(call["arguments"]))

    def test_citations_lie_inside_the_text_and_name_what_was_found(self):
        for tokens in (1, 2, 9, 60):
            backend = make_backend(tokens=tokens)
            for seed in range(12):
                for name in ("web_search", "file_search", "code_interpreter"):
                    plan = plan_of(backend, TOOLS[name], seed=seed, choice=CHOICES[name], include=INCLUDES)
                    events = read_response_stream(self, stream_of(assembler(), deltas_of(plan)))   # checks the places
                    item, message = events[-1]["response"]["output"]
                    part, = message["content"]
                    self.assertTrue(part["annotations"])
                    for note in part["annotations"]:
                        if name == "web_search":
                            self.assertIn({"type": "url", "url": note["url"]}, item["action"]["sources"])
                        elif name == "file_search":
                            self.assertIn((note["file_id"], note["filename"]),
                                          [(each["file_id"], each["filename"]) for each in item["results"]])
                        else:
                            self.assertEqual(note["container_id"], item["container_id"])

    def test_json_and_refusals_are_not_cited(self):
        form = make_request(TOOLS["web_search"], choice=CHOICES["web_search"])
        form.output_format = OutputFormat(
            "json_schema", {"type": "object", "properties": {"a": {"const": 1}}, "required": ["a"]}, "text.format")
        plan = make_backend().generate(form, None)
        self.assertEqual(json.loads("".join(d.text for d in deltas_of(plan) if d.__class__ is TextDelta)), {"a": 1})
        refused = plan_of(make_backend(refusal_rate=1.0), TOOLS["web_search"], choice=CHOICES["web_search"])
        for each in (plan, refused):
            self.assertNotIn(AnnotationDelta, [delta.__class__ for delta in deltas_of(each)])

    def test_several_choices_each_have_their_own(self):
        plan = plan_of(make_backend(1.0), TOOLS["web_search"], endpoint="chat", n=2)
        notes = [delta for delta in deltas_of(plan) if delta.__class__ is AnnotationDelta]
        self.assertEqual({note.choice for note in notes}, {0, 1})


class ContentTest(unittest.TestCase):

    def items(self, tool, choice, **more):
        plan = plan_of(make_backend(), tool, choice=choice, **more)
        return object_of(assembler(), deltas_of(plan))["output"]

    def test_what_is_named_is_example_com_and_what_may_be_run_is_an_echo_or_a_new_file(self):
        backend = make_backend()
        for seed in range(30):
            outputs = {name: object_of(assembler(), deltas_of(plan_of(
                backend, tool, choice=CHOICES[name], seed=seed)))["output"] for name, tool in TOOLS.items()}
            self.assertEqual(outputs["local_shell"][0]["action"]["command"][0], "echo")
            self.assertRegex(outputs["shell"][0]["action"]["commands"][0], r"\Aecho [a-z]+\Z")
            self.assertEqual(outputs["apply_patch"][0]["operation"]["type"], "create_file")
            self.assertRegex(outputs["apply_patch"][0]["operation"]["path"], r"\Amockturtle-[a-z]+\.txt\Z")
            self.assertEqual(outputs["computer"][0]["actions"], [{"type": "screenshot"}])
        for query in ("a", "b", "", "\ud800"):
            for url, title in web_sources(query):
                self.assertTrue(url.startswith("https://example.com/"), url)

    def test_the_query_is_the_users_words_in_one_line_and_bounded(self):
        item = self.items(TOOLS["web_search"], CHOICES["web_search"], text=" one\n two " + "x" * 200)[0]
        self.assertEqual(item["action"]["query"], ("one two " + "x" * 200)[:80])
        item = self.items(TOOLS["web_search"], CHOICES["web_search"], text=" ")[0]
        self.assertTrue(item["action"]["query"])

    def test_code_outputs_are_what_the_code_prints(self):
        for seed in range(20):
            plan = plan_of(make_backend(seed=seed), TOOLS["code_interpreter"], choice=CHOICES["code_interpreter"],
                           include=INCLUDES)
            item = object_of(assembler(), deltas_of(plan))["output"][0]
            printed = []
            code = item["code"].replace('with open("/mnt/data/total.csv", "w") as file:\n    file.write', "ignore")
            exec(code, {"print": printed.append, "ignore": str, "sum": sum})
            self.assertEqual(item["outputs"], [{"type": "logs", "logs": "%d\n" % printed[0]}])
        self.assertEqual(code_outputs("print(1)"), [])

    def test_a_container_of_the_request_is_taken(self):
        item = self.items({"type": "code_interpreter", "container": "cntr_mine"}, {"type": "code_interpreter"})[0]
        self.assertEqual(item["container_id"], "cntr_mine")

    def test_pictures_are_in_the_format_that_was_asked_for(self):
        for form, start in (("png", b"\x89PNG\r\n\x1a\n"), ("jpeg", b"\xff\xd8\xff"), ("webp", b"RIFF"), (None, b"\x89PNG")):
            item = self.items(dict(TOOLS["image_generation"], output_format=form), CHOICES["image_generation"])[0]
            with self.subTest(form=form):
                self.assertTrue(base64.b64decode(item["result"], validate=True).startswith(start))
                self.assertEqual(item["output_format"], form or "png")
        self.assertEqual(base64.b64decode(image_bytes("webp", 0))[8:12], b"WEBP")

    def test_a_png_has_sound_checks(self):
        try:
            import zlib
        except ImportError:
            self.skipTest("needs zlib")
        data = base64.b64decode(image_bytes("png", 200))[8:]
        kinds = []
        while data:
            size, kind = int.from_bytes(data[:4], "big"), data[4:8]
            self.assertEqual(zlib.crc32(data[4:8 + size]), int.from_bytes(data[8 + size:12 + size], "big"))
            if kind == b"IDAT":
                self.assertEqual(zlib.decompress(data[8:8 + size]), (b"\0" + bytes((200, 200, 55)) * 8) * 8)
            kinds.append(kind)
            data = data[12 + size:]
        self.assertEqual(kinds, [b"IHDR", b"IDAT", b"IEND"])

    def test_as_many_partial_images_as_asked_for(self):
        for given, count in ((0, 0), (1, 1), (3, 3), (99, 3), (None, 0), ("x", 0)):
            plan = plan_of(make_backend(), dict(TOOLS["image_generation"], partial_images=given),
                           choice=CHOICES["image_generation"])
            found = [delta.fields["partial_image_index"] for delta in deltas_of(plan)
                     if delta.__class__ is ItemUpdate and delta.phase == "partial_image"]
            with self.subTest(given=given):
                self.assertEqual(found, list(range(count)))

    def test_file_results_keep_to_their_bound(self):
        for most, count in ((1, 1), (2, 2), (50, 2), (None, 2)):
            item = self.items(dict(TOOLS["file_search"], max_num_results=most), CHOICES["file_search"], include=INCLUDES)[0]
            with self.subTest(most=most):
                self.assertEqual(item["results"], file_results(item["queries"][0], count))
                self.assertEqual(len(item["results"]), count)

    def test_a_shell_in_a_container_of_the_service_answers_itself(self):
        for place in ({"type": "container_auto"}, {"type": "container_reference", "container_id": "cntr_1"}):
            call, output, message = self.items({"type": "shell", "environment": place}, {"type": "shell"})
            with self.subTest(environment=place):
                self.assertEqual((call["type"], output["type"], message["type"]), ("shell_call", "shell_call_output", "message"))
                self.assertEqual(output["call_id"], call["call_id"])
                self.assertEqual("echo " + output["output"][0]["stdout"], call["action"]["commands"][0] + "\n")
        call, = self.items({"type": "shell", "environment": {"type": "local"}}, {"type": "shell"})
        self.assertEqual(call["environment"], {"type": "local"})

    def test_a_computer_tool_of_either_kind_has_its_own_field(self):
        self.assertNotIn("action", self.items({"type": "computer"}, {"type": "computer"})[0])
        old, = self.items({"type": "computer_use_preview"}, {"type": "computer_use_preview"})
        self.assertEqual((old["action"], "actions" in old), ({"type": "screenshot"}, False))
        later, = self.items({"type": "computer_use_preview"}, {"type": "computer_use_preview"}, after_output=True)
        self.assertNotEqual(later["action"]["type"], "screenshot")

    def test_mcp_calls_what_the_choice_or_the_allowed_tools_name(self):
        for tool, choice, names in (
                (dict(FREE_MCP, allowed_tools=["find"]), CHOICES["mcp"], ["find"]),
                (dict(FREE_MCP, allowed_tools={"tool_names": ["look", "find"]}),
                 {"type": "mcp", "server_label": "notes", "name": "look"}, ["look", "find"])):
            listed, call, _ = self.items(tool, choice)
            with self.subTest(tool=tool):
                self.assertEqual([each["name"] for each in listed["tools"]], names)
                self.assertEqual(call["name"], names[0])

    def test_require_approval_in_all_its_forms(self):
        for rule, asks in (("never", False), ("always", True), (None, True), ({}, True),
                           ({"never": {"tool_names": ["find"]}}, False), ({"always": {"tool_names": ["find"]}}, True),
                           ({"never": {"tool_names": ["x"]}}, True), ({"always": {"tool_names": ["x"]}}, False),
                           ({"never": {"read_only": True}}, False)):
            items = self.items(dict(MCP, allowed_tools=["find"], require_approval=rule), CHOICES["mcp"])
            with self.subTest(rule=rule):
                self.assertEqual(items[1]["type"], "mcp_approval_request" if asks else "mcp_call")

    def test_mcp_fields_of_a_wrong_kind_are_400_with_their_place(self):
        for field, value, param in (
                ("server_label", 5, "tools[0].server_label"), ("allowed_tools", "find", "tools[0].allowed_tools"),
                ("allowed_tools", [5], "tools[0].allowed_tools[0]"), ("require_approval", "perhaps", "tools[0].require_approval"),
                ("require_approval", {"never": []}, "tools[0].require_approval.never"),
                ("require_approval", {"always": {"tool_names": 5}}, "tools[0].require_approval.always.tool_names")):
            with self.subTest(field=field, value=value):
                with self.assertRaises(ApiError) as caught:
                    read_tools([dict(MCP, **{field: value})])
                self.assertEqual((caught.exception.status, caught.exception.param), (400, param))


class CitationTest(unittest.TestCase):

    def test_each_citation_has_a_sentence_of_its_own(self):
        text = "One two. Three four. Five"
        url, file = {"type": "url_citation", "url": "u"}, {"type": "file_citation", "file_id": "f"}
        notes = [delta.annotation for delta in place_citations(text, [url, file, url, url], 0)]
        self.assertEqual([(note.get("start_index"), note.get("end_index"), note.get("index")) for note in notes],
                         [(0, 8, None), (None, None, 20), (21, 25, None)])

    def test_without_text_nothing_is_cited(self):
        self.assertEqual(place_citations("", [{"type": "url_citation"}], 0), [])


class IncludesTest(unittest.TestCase):

    def test_only_what_is_asked_for_and_lacking_is_filled(self):
        search = {"type": "web_search_call", "status": "completed", "action": {"type": "search", "query": "q"}}
        self.assertEqual(fill_includes(search, INCLUDES[:1]), search)
        self.assertEqual([source["url"] for source in fill_includes(search, INCLUDES)["action"]["sources"]],
                         [url for url, _ in web_sources("q")])
        self.assertNotIn("sources", search["action"])
        mine = dict(search, action=dict(search["action"], sources=[]))
        self.assertEqual(fill_includes(mine, INCLUDES), mine)

    def test_items_that_lack_the_fields_or_did_not_complete_stay_as_they_are(self):
        for item in ({"type": "web_search_call"}, {"type": "web_search_call", "status": "completed", "action": 5},
                     {"type": "file_search_call", "status": "completed", "queries": []},
                     {"type": "file_search_call", "status": "completed", "queries": "q"},
                     {"type": "file_search_call", "status": "incomplete", "queries": ["q"]},
                     {"type": "code_interpreter_call", "status": "completed", "code": None}, {"type": "message"}, {}):
            with self.subTest(item=item):
                self.assertEqual(fill_includes(item, INCLUDES), item)


# ---- on the wire ------------------------------------------------------------------------------

class BuiltinServerTest(LiveServerTest):

    settings = {"output_tokens": 24}

    def body(self, name, **more):
        tool = more.pop("tool", None) or TOOLS[name]
        return dict({"model": "m", "input": QUESTION, "tools": [tool], "tool_choice": CHOICES[name]}, **more)

    def create(self, name=None, **more):
        body = self.body(name, **more) if name is not None else dict({"model": "m"}, **more)
        answer = self.request("POST", "/v1/responses", body)
        self.assertEqual(answer.status, 200, answer)
        return answer.json()

    def streamed(self, name, **more):
        answer = self.request("POST", "/v1/responses", self.body(name, stream=True, **more))
        self.assertEqual(answer.status, 200, answer)
        return read_response_stream(self, answer.body)


def without_ids(value):
    """The same value without what is drawn anew for each response."""
    if isinstance(value, dict):
        return {key: without_ids(part) for key, part in value.items() if key not in ("id", "call_id", "created_at",
                                                                                     "completed_at")}
    return [without_ids(part) for part in value] if isinstance(value, list) else value


@every_form
class BuiltinWireTest(BuiltinServerTest):

    def test_plain_and_streamed_answers_of_every_family_are_the_same(self):
        self.start_server()
        other = MockPair(self)
        for name in TOOLS:
            with self.subTest(tool=name):
                events = self.streamed(name, include=INCLUDES)
                self.assertEqual(short_events(events), FAMILY_EVENTS[name])
                plain = other.create(self.body(name, include=INCLUDES))
                self.assertEqual(without_ids(plain["output"]), without_ids(events[-1]["response"]["output"]))
                self.assertEqual(plain["usage"], events[-1]["response"]["usage"])

    def test_a_response_is_stored_as_it_was_sent_and_its_items_can_be_referred_to(self):
        self.start_server()
        for name in TOOLS:
            with self.subTest(tool=name):
                response = self.create(name)
                self.assertEqual(self.request("GET", "/v1/responses/" + response["id"]).json(), response)
                item = response["output"][0]
                again = self.create(input=[{"type": "item_reference", "id": item["id"]},
                                           {"role": "user", "content": "So?"}])
                page = self.request("GET", "/v1/responses/%s/input_items?order=asc" % again["id"]).json()
                self.assertEqual(page["data"][0], item)

    def test_a_choice_of_what_is_not_there_is_400(self):
        self.start_server()
        answer = self.request("POST", "/v1/responses", self.body("web_search", tools=[TOOLS["shell"]]))
        self.assertEqual((answer.status, answer.error["param"]), (400, "tool_choice"))
        self.assertIn("web_search", answer.error["message"])

    def test_the_flag_makes_auto_call_them(self):
        self.start_server(builtin_tool_rate=1)
        response = self.create(input=QUESTION, tools=[TOOLS["web_search"], TOOLS["mcp"]], max_tool_calls=1)
        self.assertEqual([item["type"] for item in response["output"]], ["web_search_call", "message"])
        self.assertEqual(response["max_tool_calls"], 1)
        response = self.create(input=QUESTION, tools=[TOOLS["web_search"], TOOLS["mcp"]])
        self.assertEqual([item["type"] for item in response["output"]],
                         ["web_search_call", "mcp_list_tools", "mcp_call", "message"])

    def test_include_decides_what_is_in_the_items(self):
        self.start_server()
        for name, look in (("web_search", lambda item: item["action"].get("sources")),
                           ("file_search", lambda item: item["results"]),
                           ("code_interpreter", lambda item: item["outputs"])):
            with self.subTest(tool=name):
                self.assertIsNone(look(self.create(name)["output"][0]))
                self.assertTrue(look(self.create(name, include=INCLUDES)["output"][0]))
                self.assertIsNone(look(self.create(name, include=["message.output_text.logprobs"])["output"][0]))

    def test_include_of_a_later_call_gives_what_the_create_would_have(self):
        self.start_server()
        query = "?" + "&".join("include[]=" + each for each in INCLUDES)
        for name in ("web_search", "file_search", "code_interpreter"):
            with self.subTest(tool=name):
                bare = self.create(name)
                full = self.request("GET", "/v1/responses/%s%s" % (bare["id"], query)).json()
                asked = self.create(name, include=INCLUDES)
                again = self.request("GET", "/v1/responses/%s%s" % (asked["id"], query)).json()
                self.assertEqual(again, asked)
                for key in ("sources", "results", "outputs"):
                    self.assertEqual(full["output"][0].get("action", full["output"][0]).get(key) is None,
                                     again["output"][0].get("action", again["output"][0]).get(key) is None)
                self.assertEqual(self.request("GET", "/v1/responses/" + bare["id"]).json(), bare)
                cited = full["output"][1]["content"][0]["annotations"][0]
                if name == "web_search":
                    self.assertIn({"type": "url", "url": cited["url"]}, full["output"][0]["action"]["sources"])
                elif name == "file_search":
                    self.assertEqual(full["output"][0]["results"][0]["file_id"], cited["file_id"])
                later = self.create(input="And?", previous_response_id=bare["id"])
                page = self.request("GET", "/v1/responses/%s/input_items%s" % (later["id"], query)).json()
                self.assertIn(full["output"][0], page["data"])
                page = self.request("GET", "/v1/responses/%s/input_items" % later["id"]).json()
                self.assertIn(bare["output"][0], page["data"])

    def test_include_invents_nothing_for_another_backend(self):
        item = {"type": "web_search_call", "action": {"type": "search", "query": "q"}}
        self.start_server(DeltaBackend([(0.0, ItemStart(item["type"], {"action": item["action"]})),
                                        (0.0, ItemEnd(item["type"])), (0.0, Finish()), (0.0, Usage(1, 1))]))
        response = self.create(input="x")
        found = self.request("GET", "/v1/responses/%s?include=web_search_call.action.sources" % response["id"]).json()
        self.assertEqual(found, response)

    def test_calls_that_wait_end_the_response_and_their_output_is_answered_with_text(self):
        self.start_server(strict=True)
        outputs = {
            "shell": {"type": "shell_call_output", "output": [
                {"stdout": "a", "stderr": "", "outcome": {"type": "exit", "exit_code": 0}}]},
            "local_shell": {"type": "local_shell_call_output", "output": "a"},
            "apply_patch": {"type": "apply_patch_call_output", "status": "completed"},
            "computer": {"type": "computer_call_output", "output": {
                "type": "computer_screenshot", "image_url": "data:image/png;base64,AAAA"}}}
        for name in WAITING:
            with self.subTest(tool=name):
                first = self.create(name)
                call, = first["output"]
                self.assertEqual((first["status"], call["status"]), ("completed", "completed"))
                refused = self.request("POST", "/v1/responses", {"model": "m", "input": "And?",
                                                                 "previous_response_id": first["id"]})
                self.assertEqual((refused.status, refused.error["param"]), (400, "input"))
                output = dict(outputs[name], call_id=call["call_id"])
                second = self.create(input=[output], previous_response_id=first["id"], tools=[TOOLS[name]])
                self.assertEqual([item["type"] for item in second["output"]], ["message"])
                stateless = self.create(input=[{"role": "user", "content": QUESTION}, call, output], tools=[TOOLS[name]],
                                        store=False)
                self.assertEqual([item["type"] for item in stateless["output"]], ["message"])
                self.create(input="And then?", previous_response_id=second["id"])

    def test_an_output_that_names_its_local_shell_call_by_id_answers_it(self):
        self.start_server(strict=True)
        first = self.create("local_shell")
        second = self.create(previous_response_id=first["id"], input=[
            {"type": "local_shell_call_output", "id": first["output"][0]["call_id"], "output": "a"}])
        self.assertEqual(second["status"], "completed")

    def test_an_open_call_of_a_stateless_history_is_seen_in_strict(self):
        self.start_server(strict=True)
        call = self.create("shell")["output"][0]
        answer = self.request("POST", "/v1/responses", {"model": "m", "input": [{"role": "user", "content": "x"}, call]})
        self.assertEqual((answer.status, answer.error["param"]), (400, "input"))

    def test_a_list_of_mcp_tools_is_not_fetched_again(self):
        self.start_server()
        first = self.create("mcp")
        second = self.create("mcp", previous_response_id=first["id"])
        self.assertEqual([item["type"] for item in second["output"]], ["mcp_call", "message"])
        stateless = self.create("mcp", input=[{"role": "user", "content": "x"}] + first["output"] + [
            {"role": "user", "content": "y"}])
        self.assertEqual([item["type"] for item in stateless["output"]], ["mcp_call", "message"])
        other = self.create("mcp", tool=dict(FREE_MCP, server_label="other"), tool_choice={"type": "mcp"},
                            previous_response_id=second["id"])
        self.assertEqual([item["type"] for item in other["output"]], ["mcp_list_tools", "mcp_call", "message"])

    def test_a_list_of_mcp_tools_is_found_far_back(self):
        self.start_server(output_tokens=1)
        last = self.create("mcp")
        for _ in range(105):                # more than is walked on the loop
            last = self.create(input="x", previous_response_id=last["id"])
        again = self.create("mcp", previous_response_id=last["id"])
        self.assertEqual([item["type"] for item in again["output"]], ["mcp_call", "message"])

    def test_an_approval_runs_the_call_that_was_asked_for(self):
        self.start_server()
        first = self.create("mcp", tool=MCP)
        listed, asked = first["output"]
        self.assertEqual((listed["type"], asked["type"], first["status"]),
                         ("mcp_list_tools", "mcp_approval_request", "completed"))
        self.assertNotIn("status", asked)
        approval = {"type": "mcp_approval_response", "approval_request_id": asked["id"], "approve": True}
        histories = {
            "chain": {"input": [approval], "previous_response_id": first["id"]},
            "stateless": {"input": [{"role": "user", "content": QUESTION}, listed, asked, approval], "store": False}}
        for name, history in histories.items():
            with self.subTest(history=name):
                second = self.create(tools=[MCP], **history)
                call, message = second["output"]
                self.assertEqual((call["type"], call["approval_request_id"], call["name"], call["arguments"],
                                  call["server_label"], call["status"]),
                                 ("mcp_call", asked["id"], asked["name"], asked["arguments"], "notes", "completed"))
                self.assertTrue(call["output"])
                self.assertEqual(message["type"], "message")

    def test_a_denied_or_answered_approval_runs_nothing(self):
        self.start_server()
        first = self.create("mcp", tool=MCP)
        asked = first["output"][1]
        denied = {"type": "mcp_approval_response", "approval_request_id": asked["id"], "approve": False}
        second = self.create(input=[denied], previous_response_id=first["id"], tools=[MCP])
        self.assertEqual([item["type"] for item in second["output"]], ["message"])
        approval = dict(denied, approve=True)
        third = self.create(input=[approval], previous_response_id=first["id"], tools=[MCP])
        history = [{"role": "user", "content": QUESTION}] + first["output"] + [approval] + third["output"]
        fourth = self.create(input=history + [{"role": "user", "content": "Thanks."}], tools=[MCP])
        self.assertEqual([item["type"] for item in fourth["output"]], ["message"])

    def test_an_approval_of_what_was_never_asked_is_400(self):
        self.start_server()
        for more in ({}, {"stream": True}):
            answer = self.request("POST", "/v1/responses", dict({"model": "m", "input": [
                {"type": "mcp_approval_response", "approval_request_id": "mcpr_none", "approve": True}]}, **more))
            with self.subTest(more=more):
                self.assertEqual((answer.status, answer.error["param"]), (400, "input"))
                self.assertIn("mcpr_none", answer.error["message"])

    def test_a_conversation_keeps_the_items(self):
        self.start_server()
        conversation = self.request("POST", "/v1/conversations", {}).json()["id"]
        response = self.create("web_search", conversation=conversation, include=INCLUDES)
        page = self.request("GET", "/v1/conversations/%s/items?order=asc" % conversation).json()
        self.assertEqual(page["data"][1:], response["output"])

    def test_include_fills_the_items_of_a_conversation_as_well(self):
        self.start_server()
        conversation = self.request("POST", "/v1/conversations", {}).json()["id"]
        response = self.create("file_search", conversation=conversation)
        path, query = "/v1/conversations/%s/items" % conversation, "?include=file_search_call.results"
        item = self.request("GET", "%s/%s%s" % (path, response["output"][0]["id"], query)).json()
        self.assertEqual(item["results"], file_results(QUESTION))
        self.assertIn(item, self.request("GET", path + query).json()["data"])
        self.assertIn(response["output"][0], self.request("GET", path).json()["data"])

    def test_pictures_count_as_pictures_and_not_as_text(self):
        self.start_server()
        picture = "A" * 400000
        for item in ({"type": "image_generation_call", "id": "ig_1", "status": "completed", "result": picture},
                     {"type": "computer_call_output", "call_id": "call_1", "output": {
                         "type": "computer_screenshot", "image_url": "data:image/png;base64," + picture}}):
            counted = self.request("POST", "/v1/responses/input_tokens", {"model": "m", "input": [item]}).json()
            with self.subTest(item=item["type"]):
                self.assertGreater(counted["input_tokens"], 20)
                self.assertLess(counted["input_tokens"], 2000)

    def test_background_responses_have_them_too(self):
        self.start_server(itl_ms=1)
        for name in TOOLS:
            for streamed in (False, True):
                with self.subTest(tool=name, streamed=streamed):
                    answer = self.request("POST", "/v1/responses", self.body(name, background=True, stream=streamed))
                    self.assertEqual(answer.status, 200, answer)
                    id = answer.events()[0].data["response"]["id"] if streamed else answer.json()["id"]
                    seen = []

                    def ended():
                        seen.append(self.request("GET", "/v1/responses/" + id).json())
                        return seen[-1]["status"] == "completed"
                    wait_until(ended)
                    last = seen[-1]["output"]
                    for response in seen:
                        for item, whole in zip(response["output"], last):
                            self.assertEqual((item["id"], item["type"]), (whole["id"], whole["type"]))
                            if item.get("status") == "completed":
                                self.assertEqual(item, whole)
                    if streamed:
                        replay = self.request("GET", "/v1/responses/%s?stream=true&starting_after=2" % id)
                        self.assertEqual(replay.body, answer.body[answer.body.index(b"event: response.output_item"):])

    def test_one_that_is_cancelled_keeps_the_code_so_far(self):
        self.start_server(itl_ms=40)
        id = self.create("code_interpreter", background=True)["id"]

        def written():
            output = self.request("GET", "/v1/responses/" + id).json()["output"]
            return output and output[0]["code"]
        so_far = wait_until(written)
        cancelled = self.request("POST", "/v1/responses/%s/cancel" % id).json()
        item, = cancelled["output"]
        self.assertEqual((cancelled["status"], item["status"]), ("cancelled", "incomplete"))
        self.assertTrue(item["code"].startswith(so_far))


class MockPair:
    """A second server of the same kind, whose draws begin anew as the first one's do."""

    def __init__(self, test):
        values = dict(test.form_settings, output_tokens=24)
        self.mock = MockTurtle(**values)
        self.mock.__enter__()
        test.addCleanup(self.mock.__exit__, None, None, None)

    def create(self, body):
        request = Request(self.mock.base_url + "/responses", json.dumps(body).encode("ascii"),
                          {"Content-Type": "application/json"})
        with urlopen(request, timeout=10) as answer:
            return json.load(answer)


@every_form
class ChatSearchTest(LiveServerTest):

    settings = {"output_tokens": 24}
    body = {"model": "m", "messages": [{"role": "user", "content": QUESTION}], "web_search_options": {}, "seed": 1}

    def test_web_search_options_cite_at_the_rate(self):
        self.start_server(builtin_tool_rate=1)
        plain = self.request("POST", "/v1/chat/completions", self.body)
        self.assertNotIn("x-mockturtle-ignored", plain.headers)
        message = plain.json()["choices"][0]["message"]
        self.assertTrue(message["annotations"])
        for note in message["annotations"]:
            cited = note["url_citation"]
            self.assertTrue(cited["url"].startswith("https://example.com/") and cited["title"])
            self.assertLess(cited["start_index"], cited["end_index"])
            self.assertLessEqual(cited["end_index"], len(message["content"]))
        self.assertEqual(plain.json()["usage"]["completion_tokens"], 24)
        chunks, whole = read_chat_stream(self, self.request("POST", "/v1/chat/completions", dict(
            self.body, stream=True)).body)
        self.assertEqual(whole["choices"][0]["message"]["annotations"], message["annotations"])
        self.assertEqual(whole["choices"][0]["message"]["content"], message["content"])

    def test_without_the_rate_or_with_choice_none_nothing_is_cited(self):
        self.start_server()
        answer = self.request("POST", "/v1/chat/completions", self.body).json()
        self.assertEqual(answer["choices"][0]["message"]["annotations"], [])

    def test_none_forbids_the_search(self):
        self.start_server(builtin_tool_rate=1)
        answer = self.request("POST", "/v1/chat/completions", dict(self.body, tool_choice="none", tools=[
            {"type": "function", "function": {"name": "f"}}])).json()
        self.assertEqual(answer["choices"][0]["message"]["annotations"], [])


class GoldenTest(unittest.TestCase):

    def test_deltas_are_never_changed_by_who_is_fed_them(self):
        for name, deltas in DELTAS.items():
            before = repr(deltas)
            for _ in range(2):
                stream_of(assembler(), deltas)
                object_of(assembler(), deltas)
            with self.subTest(deltas=name):
                self.assertEqual(repr(deltas), before)

    @staticmethod
    def without_call_ids(name):
        return [ItemStart(delta.kind, {key: value for key, value in delta.fields.items() if key != "call_id"})
                if delta.__class__ is ItemStart else delta for delta in DELTAS[name]]

    def test_call_ids_of_the_backend_are_noted_for_the_chain(self):
        for name, ids in (("shell", ["call_s"]), ("computer", ["call_x"]), ("hosted shell", [])):
            made = assembler()
            object_of(made, DELTAS[name])
            with self.subTest(deltas=name):
                self.assertEqual(made.call_ids, ids)

    def test_a_call_without_an_id_gets_one_that_is_noted_for_the_chain(self):
        for name in ("shell", "local shell", "apply patch", "computer"):
            made = assembler()
            item, = object_of(made, self.without_call_ids(name))["output"]
            with self.subTest(deltas=name):
                self.assertEqual(made.call_ids, [item["call_id"]])
                self.assertTrue(item["call_id"].startswith("call_"))
        made = assembler()
        call, output, _ = object_of(made, self.without_call_ids("hosted shell"))["output"]
        self.assertEqual((output["call_id"], made.call_ids), (call["call_id"], []))


if __name__ == "__main__":
    unittest.main()
