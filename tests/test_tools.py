"""Tool calls and structured output: what a request may say, which tool is chosen, and both loops on the wire."""
import json
import random
import unittest

from api_common import ApiError, TakesLong
from api_tools import (CHAT_TOOL_TYPES, MAX_TOOLS, check_strict_schema, read_output_format, read_tool_choice,
                       read_tools)
from backends.contract import (BuiltinName, Finish, GenerationRequest, History, ReasoningDelta, TextDelta, ToolCallDelta,
                               ToolChoice, ToolSpec, Usage)
from backends.latency import ClockModel
from backends.simulated import REASONING_TOKENS, SimulatedBackend
from backends.tool_choice import choose_tool, score_tool, tool_words
from chat_api import parse_chat_request
from tests.data.golden import damaged, place_of, read_chat_stream, read_response_stream
from tests.support import CHAT, RESPONSE, LiveServerTest, chat_text, every_form
from tokenizer import ApproxTokenizer

TOKENIZER = ApproxTokenizer()
CITY = {"type": "object", "properties": {"city": {"type": "string"}, "days": {"type": "integer", "minimum": 1, "maximum": 9}},
        "required": ["city", "days"], "additionalProperties": False}


def chat_tool(name, description=None, parameters=None, **more):
    function = dict({"name": name}, **more)
    if description is not None:
        function["description"] = description
    if parameters is not None:
        function["parameters"] = parameters
    return {"type": "function", "function": function}


def flat_tool(name, description=None, parameters=None, **more):
    return dict(chat_tool(name, description, parameters, **more)["function"], type="function")


WEATHER = chat_tool("get_weather", "Get the current weather for a city.", CITY)
FLAT_WEATHER = flat_tool("get_weather", "Get the current weather for a city.", CITY)
SIX = [
    WEATHER,
    chat_tool("search_flights", "Search for flights between two airports."),
    chat_tool("send_email", "Send an email to a recipient."),
    chat_tool("create_calendar_event", "Create an event in the user's calendar, with attendees."),
    chat_tool("calculate", "Evaluate a mathematical expression."),
    chat_tool("search_documents", "Search the company's documents and return matching passages."),
]
FLAT_SIX = [dict(tool["function"], type="function") for tool in SIX]
ASKS_WEATHER = [{"role": "user", "content": "What is the weather in Oslo?"}]


class ReadToolsTest(unittest.TestCase):

    def test_chat_shaped_flat_and_untyped_tools_mean_the_same(self):
        for tool in (WEATHER, FLAT_WEATHER, {"function": WEATHER["function"]},
                     dict(WEATHER["function"]), dict(WEATHER, type=None)):
            with self.subTest(tool=tool):
                spec, = read_tools([tool])
                self.assertEqual((spec.kind, spec.name, spec.description, spec.parameters, spec.strict, spec.namespace),
                                 ("function", "get_weather", "Get the current weather for a city.", CITY, False, None))

    def test_the_place_is_that_of_the_schema_in_its_own_shape(self):
        self.assertEqual([spec.place for spec in read_tools([WEATHER, FLAT_WEATHER])],
                         ["tools[0].function.parameters", "tools[1].parameters"])

    def test_custom_tools_come_in_both_shapes_with_their_grammar(self):
        form = {"type": "grammar", "syntax": "regex", "definition": "[a-c]+"}
        for tool in ({"type": "custom", "custom": {"name": "sql", "format": form}},
                     {"type": "custom", "name": "sql", "format": form}, {"custom": {"name": "sql", "format": form}}):
            with self.subTest(tool=tool):
                spec, = read_tools([tool])
                self.assertEqual((spec.kind, spec.name, spec.parameters), ("custom", "sql", form))

    def test_a_group_is_laid_flat_and_its_members_know_it(self):
        specs = read_tools([{"type": "namespace", "name": "crm", "description": "x", "tools": [
            FLAT_WEATHER, {"type": "custom", "name": "sql"}]}, flat_tool("add")])
        self.assertEqual([(spec.name, spec.namespace) for spec in specs],
                         [("get_weather", "crm"), ("sql", "crm"), ("add", None)])
        self.assertEqual(specs[0].place, "tools[0].tools[0].parameters")

    def test_built_in_and_unknown_types_pass_without_a_name(self):
        specs = read_tools([{"type": "web_search"}, {"type": "never_heard_of", "x": [1]}, {"type": "mcp", "name": "m"}])
        self.assertEqual([(spec.kind, spec.name) for spec in specs],
                         [("web_search", None), ("never_heard_of", None), ("mcp", None)])

    def test_nothing_given_is_no_tools(self):
        for tools in (None, []):
            self.assertEqual(read_tools(tools), ())

    def assert_refused(self, param, call, *args, **values):
        with self.assertRaises(ApiError) as caught:
            call(*args, **values)
        self.assertEqual((caught.exception.status, caught.exception.param), (400, param))
        return caught.exception

    def test_faults_name_their_place(self):
        many = [flat_tool("t%d" % number) for number in range(MAX_TOOLS + 1)]
        for tools, param in (
                ([{"type": "function"}], "tools[0].name"),
                ([WEATHER, {"type": "function", "function": {}}], "tools[1].function.name"),
                ([{"type": "function", "function": {"name": ""}}], "tools[0].function.name"),
                ([{"type": "function", "name": 5}], "tools[0].name"),
                ([{"type": "function", "name": "x" * 257}], "tools[0].name"),
                ([{"type": "custom", "custom": {}}], "tools[0].custom.name"),
                ([{"type": "function", "name": "f", "parameters": []}], "tools[0].parameters"),
                ([{"type": "custom", "name": "f", "format": "text"}], "tools[0].format"),
                ([{"type": "function", "name": "f", "description": 1}], "tools[0].description"),
                ([{"type": 7}], "tools[0].type"), (["x"], "tools[0]"),
                ([{"type": "namespace", "name": "n"}], "tools[0].tools"),
                ([{"type": "namespace", "name": "n", "tools": [{"type": "function"}]}], "tools[0].tools[0].name"),
                (many, "tools")):
            with self.subTest(tools=str(tools)[:80]):
                self.assert_refused(param, read_tools, tools)

    def test_as_many_tools_as_allowed_pass(self):
        self.assertEqual(len(read_tools([flat_tool("t%d" % number) for number in range(MAX_TOOLS)])), MAX_TOOLS)

    def test_strict_mode_knows_only_the_services_types(self):
        read_tools([WEATHER], known_types=CHAT_TOOL_TYPES)
        self.assert_refused("tools[0].type", read_tools, [{"type": "web_search"}], known_types=CHAT_TOOL_TYPES)


class StrictSchemaTest(unittest.TestCase):

    def assert_refused(self, schema, part):
        with self.assertRaises(ApiError) as caught:
            check_strict_schema(schema, "p")
        self.assertEqual((caught.exception.status, caught.exception.param), (400, "p"))
        self.assertIn(part, caught.exception.message)

    def test_closed_objects_with_all_properties_required_pass(self):
        check_strict_schema({}, "p")
        check_strict_schema(CITY, "p")
        check_strict_schema({"type": "object", "properties": {}, "additionalProperties": False}, "p")
        self.assertTrue(read_tools([chat_tool("f", None, CITY, strict=True)])[0].strict)

    def test_open_objects_are_refused_wherever_they_stand(self):
        opened = {"type": "object", "properties": {"a": {}}, "required": ["a"]}

        def closed(part):
            return {"type": "object", "properties": {"x": part}, "required": ["x"], "additionalProperties": False}
        for schema, place in ((opened, "the root"), (closed(opened), "properties.x"),
                              (closed({"type": "array", "items": opened}), "properties.x.items"),
                              (closed({"anyOf": [{"type": "null"}, opened]}), "properties.x.anyOf.1"),
                              (dict(closed({}), **{"$defs": {"d": opened}}), "$defs.d"),
                              (dict(opened, additionalProperties=True), "the root")):
            with self.subTest(schema=schema):
                self.assert_refused(schema, "at " + place)

    def test_a_property_that_is_not_required_is_named(self):
        self.assert_refused(dict(CITY, required=["city"]), "'days' is missing")
        self.assert_refused({"properties": {"a": {}}, "additionalProperties": False}, "'a' is missing")

    def test_a_required_of_the_wrong_type_is_refused_and_no_crash(self):
        for required in (5, True, 1.5):
            with self.subTest(required=required):
                self.assert_refused(dict(CITY, required=required), "required")

    def test_properties_of_the_wrong_type_are_refused_and_no_crash(self):
        for properties in (5, True, 1.5):
            with self.subTest(properties=properties):
                try:
                    check_strict_schema(dict(CITY, properties=properties), "p")
                except ApiError as error:
                    self.assertEqual(error.status, 400)

    def test_only_where_the_request_says_strict(self):
        opened = {"type": "object", "properties": {"a": {}}}
        self.assertEqual(len(read_tools([chat_tool("f", None, opened), chat_tool("g", None, opened, strict=False)])), 2)
        with self.assertRaises(ApiError):
            read_tools([chat_tool("f", None, opened, strict=True)])


class ReadChoiceTest(unittest.TestCase):
    specs = read_tools([flat_tool("f"), flat_tool("g"), {"type": "custom", "name": "c"}, {"type": "web_search"},
                        {"type": "mcp", "server_label": "notes"}])

    def test_choices_in_all_forms(self):
        for choice, expected in (
                (None, ("auto", None)), ("auto", ("auto", None)), ("none", ("none", None)), ("required", ("required", None)),
                ({"type": "function", "function": {"name": "g"}}, ("required", ("g",))),
                ({"type": "function", "name": "g"}, ("required", ("g",))), ({"name": "g"}, ("required", ("g",))),
                ({"function": {"name": "f"}}, ("required", ("f",))),
                ({"type": "custom", "custom": {"name": "c"}}, ("required", ("c",))),
                ({"type": "custom", "name": "c"}, ("required", ("c",))),
                ({"type": "web_search"}, ("required", (BuiltinName("web_search"),))),
                ({"type": "web_search_preview"}, ("required", (BuiltinName("web_search"),))),
                ({"type": "mcp", "server_label": "notes"}, ("required", (BuiltinName("mcp", "notes"),))),
                ({"type": "mcp", "server_label": "notes", "name": "find"},
                 ("required", (BuiltinName("mcp", "notes", "find"),))),
                ({"type": "never_heard_of"}, ("auto", ())),
                ({"type": "allowed_tools", "mode": "required", "tools": [{"type": "function", "name": "g"}]},
                 ("required", ("g",))),
                ({"type": "allowed_tools", "allowed_tools": {"mode": "auto", "tools": [
                    {"type": "function", "function": {"name": "f"}}, {"type": "custom", "custom": {"name": "c"}}]}},
                 ("auto", ("f", "c"))),
                ({"type": "allowed_tools", "tools": [{"type": "web_search"}, {"type": "function", "name": "f"}]},
                 ("auto", (BuiltinName("web_search"), "f"))),
                ({"type": "allowed_tools", "tools": [{"type": "never_heard_of"}]}, ("auto", ()))):
            with self.subTest(choice=choice):
                self.assertEqual(read_tool_choice(choice, self.specs), ToolChoice(*expected))

    def test_without_tools_nothing_is_chosen(self):
        self.assertEqual(read_tool_choice(None, ()), ToolChoice("none", None))

    def test_choices_that_cannot_be_kept_name_their_place(self):
        for choice, specs, param in (
                ("required", (), "tool_choice"), ("any", self.specs, "tool_choice"), (5, self.specs, "tool_choice"),
                ([], self.specs, "tool_choice"), ({}, self.specs, "tool_choice.type"),
                ({"type": "function"}, self.specs, "tool_choice.name"),
                ({"type": "function", "function": {}}, self.specs, "tool_choice.function.name"),
                ({"type": "function", "name": "h"}, self.specs, "tool_choice"),
                ({"type": "file_search"}, self.specs, "tool_choice"), ({"type": "web_search"}, (), "tool_choice"),
                ({"type": "mcp", "server_label": "other"}, self.specs, "tool_choice"),
                ({"type": "mcp", "server_label": 5}, self.specs, "tool_choice.server_label"),
                ({"type": "mcp", "server_label": "notes", "name": ""}, self.specs, "tool_choice.name"),
                ({"type": "allowed_tools", "tools": [{"type": "shell"}]}, self.specs, "tool_choice.tools[0]"),
                ({"type": "allowed_tools", "mode": "auto", "tools": []}, self.specs, "tool_choice.tools"),
                ({"type": "allowed_tools", "mode": "none", "tools": [{"name": "f"}]}, self.specs, "tool_choice.mode"),
                ({"type": "allowed_tools", "allowed_tools": {"mode": "auto"}}, self.specs,
                 "tool_choice.allowed_tools.tools"),
                ({"type": "allowed_tools", "tools": [{"type": "function", "name": "h"}]}, self.specs,
                 "tool_choice.tools[0]")):
            with self.subTest(choice=choice):
                with self.assertRaises(ApiError) as caught:
                    read_tool_choice(choice, specs)
                self.assertEqual((caught.exception.status, caught.exception.param), (400, param))


class ReadFormatTest(unittest.TestCase):

    def test_formats_nested_and_flat(self):
        nested = read_output_format({"type": "json_schema", "json_schema": {"name": "x", "schema": CITY}}, "response_format")
        flat = read_output_format({"type": "json_schema", "name": "x", "schema": CITY}, "text.format")
        self.assertEqual((nested.schema, nested.place), (CITY, "response_format.json_schema.schema"))
        self.assertEqual((flat.schema, flat.place), (CITY, "text.format.schema"))
        self.assertEqual(read_output_format({"type": "json_object"}, "p").kind, "json_object")
        for value in (None, {"type": "text"}):
            self.assertIsNone(read_output_format(value, "p"))

    def test_faults_name_their_place(self):
        for value, param in (
                ({"type": "xml"}, "p.type"), ({}, "p.type"), ("json", "p"),
                ({"type": "json_schema", "json_schema": {"schema": {}}}, "p.json_schema.name"),
                ({"type": "json_schema", "json_schema": {"name": "x" * 65}}, "p.json_schema.name"),
                ({"type": "json_schema", "json_schema": {"name": "x", "schema": []}}, "p.json_schema.schema"),
                ({"type": "json_schema", "json_schema": {"name": "x", "strict": True, "schema": {"properties": {}}}}, "p")):
            with self.subTest(value=value):
                with self.assertRaises(ApiError) as caught:
                    read_output_format(value, "p")
                self.assertEqual((caught.exception.status, caught.exception.param), (400, param))

    def test_a_json_schema_without_name_and_schema_is_any_object_but_in_strict_mode(self):
        for value in ({"type": "json_schema"}, {"type": "json_schema", "json_schema": {}}):
            with self.subTest(value=value):
                self.assertEqual(read_output_format(value, "p").kind, "json_object")
                with self.assertRaises(ApiError):
                    read_output_format(value, "p", True)


# ---- which tool -------------------------------------------------------------------------------

# What a person expects of these words with SIX on offer.
EXPECTED = (
    ("What's the weather like in Paris?", "get_weather"),
    ("WEATHER IN BERGEN", "get_weather"),
    ("Will the weather be nice for the picnic?", "get_weather"),
    ("Find me a flight from Oslo to Rome next Tuesday", "search_flights"),
    ("Which flights leave Oslo in the morning?", "search_flights"),
    ("Send an email to Ann saying that I'm late", "send_email"),
    ("Could you email the report to finance?", "send_email"),
    ("Put lunch with Bob in my calendar for Friday", "create_calendar_event"),
    ("Create a calendar event called Standup", "create_calendar_event"),
    ("Calculate 17 * 23", "calculate"),
    ("Can you calculate the square root of 2 for me?", "calculate"),
    ("What do our documents say about parental leave?", "search_documents"),
    ("Search the documents for our travel policy", "search_documents"),
    ("Is there a document on expenses?", "search_documents"),
    ("Hello!", None),
    ("Tell me a joke", None),
    ("Thanks, that was great", None),
    ("Who wrote Hamlet?", None),
    ("How are you today?", None),
    ("", None),
)


def spec(name, description=None, kind="function"):
    return ToolSpec(kind, name, description, None, False, None, "")


def asking(text, specs, mode="auto", names=None, calls=0, after_output=False):
    return GenerationRequest("m", History(1, b"", text, lambda: [], calls, after_output), tools=tuple(specs),
                             tool_choice=ToolChoice(mode, names))


def chosen(*args, chance=None, **values):
    found = choose_tool(asking(*args, **values), chance)
    return found and found.name


class ChooseTest(unittest.TestCase):
    specs = read_tools(SIX)
    several = [spec("f"), spec("g"), spec("h")]

    def test_auto_calls_the_tool_that_a_person_would_expect(self):
        for text, name in EXPECTED:
            with self.subTest(text=text):
                self.assertEqual(chosen(text, self.specs), name)

    def test_the_order_of_the_tools_changes_no_clear_choice(self):
        for text, name in EXPECTED:
            with self.subTest(text=text):
                self.assertEqual(chosen(text, self.specs[::-1]), name)

    def test_equals_are_settled_by_order(self):
        twins = [spec("read_mail", "Mail"), spec("write_mail", "Mail")]
        self.assertEqual(chosen("mail", twins), "read_mail")
        self.assertEqual(chosen("mail", twins[::-1]), "write_mail")

    def test_a_word_of_the_name_weighs_more_than_one_of_the_description(self):
        self.assertEqual(chosen("tides", [spec("harbour", "Tides"), spec("tides", "Harbour")]), "tides")
        self.assertEqual(score_tool({"tide", "port"}, spec("tides", "Tides of a port")), 3)

    def test_glue_points_at_nothing(self):
        self.assertEqual(chosen("Please get me all of the data from your function with the new values", [
            spec("get_data", "Get all of the data from your function")]), None)

    def test_words_of_names_in_every_spelling(self):
        for name in ("getWeather", "get_weather", "get-weather", "GetWeather", "GET_WEATHER", "weather.get", "weathers"):
            with self.subTest(name=name):
                self.assertIn("weather", tool_words(name))

    def test_a_word_and_its_plural_are_one(self):
        for one, many in (("flight", "flights"), ("city", "cities"), ("company", "companies"), ("address", "addresses"),
                          ("box", "boxes"), ("search", "searches")):
            with self.subTest(word=one):
                self.assertEqual(tool_words(one), tool_words(many))

    def test_news_is_a_word_of_its_own(self):
        self.assertEqual(chosen("What's in the news?", [spec("get_news", "Latest news")]), "get_news")

    def test_words_with_accents_are_whole_words(self):
        self.assertEqual(tool_words("M\u00fcller caf\u00e9"), {"m\u00fcller", "caf\u00e9"})

    def test_what_an_apostrophe_cuts_off_is_no_word(self):
        self.assertFalse({"s", "m", "t"} & tool_words("What's the dog's name? I'm sure it isn't here."))
        self.assertIsNone(chosen("What's 17 plus 23?", [spec("calendar", "An event in the user's calendar")]))

    def test_half_a_word_with_an_accent_points_at_nothing(self):
        self.assertIsNone(chosen("Schreibe ein Gedicht \u00fcber das Meer", [
            spec("wetter", "Wetter f\u00fcr eine Stadt")]))

    def test_a_bare_verb_points_at_nothing(self):
        event = [spec("create_calendar_event", "Create an event")]
        self.assertIsNone(chosen("Create a poem", event))
        self.assertEqual(chosen("Create a calendar entry", event), "create_calendar_event")

    def test_a_tool_that_is_named_by_its_verb_is_found_by_it(self):
        self.assertEqual(chosen("search the sea", [spec("search", "Find things")]), "search")

    def test_words_of_other_scripts_count(self):
        self.assertEqual(chosen("\u043f\u043e\u0433\u043e\u0434\u0430 \u0437\u0430\u0432\u0442\u0440\u0430?", [
            spec("f", "\u0411\u0438\u043b\u0435\u0442\u044b"), spec("g", "\u041f\u043e\u0433\u043e\u0434\u0430")]), "g")

    def test_after_a_tools_output_the_answer_is_text(self):
        self.assertIsNone(chosen("weather", self.specs, after_output=True))
        self.assertIsNone(chosen("weather", self.specs, after_output=True, chance=(1.0, 0.5)))

    def test_required_takes_turns(self):
        self.assertEqual([chosen("", self.several, "required", calls=calls, after_output=bool(calls))
                          for calls in range(5)], ["f", "g", "h", "f", "g"])

    def test_required_takes_turns_among_the_allowed_ones(self):
        self.assertEqual([chosen("", self.several, "required", ("h", "f"), calls) for calls in range(3)], ["f", "h", "f"])

    def test_auto_keeps_to_the_allowed_ones(self):
        self.assertEqual(chosen("the flight documents", self.specs, names=("search_documents",)), "search_documents")
        self.assertIsNone(chosen("weather", self.specs, names=("send_email",)))
        self.assertIsNone(chosen("weather", self.specs, names=()))

    def test_none_calls_nothing(self):
        self.assertIsNone(chosen("weather", self.specs, "none"))
        self.assertIsNone(chosen("weather", self.specs, "none", chance=(1.0, 0.0)))

    def test_built_in_tools_are_never_called(self):
        for mode in ("auto", "required"):
            self.assertIsNone(chosen("web search", read_tools([{"type": "web_search"}]), mode, chance=(1.0, 0.0)))

    def test_a_rate_replaces_the_rule(self):
        self.assertEqual(chosen("Hello", self.several, chance=(0.5, 0.49)), "f")
        self.assertIsNone(chosen("weather", self.specs, chance=(0.5, 0.5)))
        self.assertIsNone(chosen("weather", self.specs, chance=(0.0, 0.0)))


# ---- the simulated backend --------------------------------------------------------------------

def make_backend(ttft_s=0.1, itl_s=0.01, **values):
    return SimulatedBackend(ClockModel(ttft_s, itl_s), TOKENIZER, values.pop("output_tokens", 12), **values)


def plan_of(backend=None, breathe=None, **change):
    request = parse_chat_request(dict(CHAT, **change), TOKENIZER, breathe)
    return list((backend or make_backend()).generate(request, None))


def calls_of(plan):
    return [(due_s, delta) for due_s, delta in plan if delta.__class__ is ToolCallDelta]


def reason_of(plan):
    reason, = [delta.reason for _, delta in plan if delta.__class__ is Finish]
    return reason


class CallPlanTest(unittest.TestCase):

    def test_arguments_satisfy_the_schema(self):
        for seed in range(20):
            plan = plan_of(messages=ASKS_WEATHER, tools=[WEATHER], seed=seed)
            value = json.loads("".join(delta.arguments for _, delta in calls_of(plan)))
            self.assertEqual(sorted(value), ["city", "days"])
            self.assertIsInstance(value["city"], str)
            self.assertIn(value["days"], range(1, 10))

    def test_pieces_are_an_itl_apart_and_the_usage_counts_them(self):
        plan = plan_of(messages=ASKS_WEATHER, tools=[WEATHER])
        calls = calls_of(plan)
        self.assertGreater(len(calls), 5)
        for number, (due_s, _) in enumerate(calls):
            self.assertAlmostEqual(due_s, 0.1 + 0.01 * number)
        self.assertEqual(plan[-1][1].completion_tokens, len(calls))
        self.assertEqual([delta.name for _, delta in calls], ["get_weather"] + [None] * (len(calls) - 1))
        self.assertEqual(reason_of(plan), "tool_calls")

    def test_a_limit_cuts_the_arguments(self):
        whole = calls_of(plan_of(messages=ASKS_WEATHER, tools=[WEATHER], seed=1))
        cut = plan_of(messages=ASKS_WEATHER, tools=[WEATHER], seed=1, max_tokens=4)
        self.assertEqual((reason_of(cut), len(calls_of(cut)), cut[-1][1].completion_tokens), ("length", 4, 4))
        exact = plan_of(messages=ASKS_WEATHER, tools=[WEATHER], seed=1, max_tokens=len(whole))
        self.assertEqual(reason_of(exact), "tool_calls")

    def test_the_rate_decides_with_a_seeded_draw(self):
        for rate, expected in ((0.0, {"stop"}), (1.0, {"tool_calls"}), (0.5, {"stop", "tool_calls"})):
            reasons = [[reason_of(plan_of(make_backend(auto_tool_rate=rate, seed=seed), tools=[WEATHER]))
                        for seed in range(30)] for _ in range(2)]
            with self.subTest(rate=rate):
                self.assertEqual(set(reasons[0]), expected)
                self.assertEqual(reasons[0], reasons[1])

    def test_no_parallel_calls_is_one_call_at_most(self):
        plan = plan_of(messages=ASKS_WEATHER, tools=[WEATHER] * 2, parallel_tool_calls=False)
        self.assertEqual({delta.index for _, delta in calls_of(plan)}, {0})

    def test_a_tool_without_parameters_gets_an_object(self):
        for parameters in (None, {}, {"description": "x"}, {"properties": {"a": {"const": 1}}, "required": ["a"]}):
            plan = plan_of(tools=[chat_tool("f", None, parameters)], tool_choice="required")
            with self.subTest(parameters=parameters):
                self.assertIsInstance(json.loads("".join(delta.arguments for _, delta in calls_of(plan))), dict)

    def test_a_custom_tool_is_given_plain_text_or_a_match_of_its_grammar(self):
        plain = plan_of(tools=[{"type": "custom", "custom": {"name": "c"}}], tool_choice="required")
        self.assertRegex("".join(delta.arguments for _, delta in calls_of(plain)), r"\A[A-Za-z ,.]+\Z")
        for form in ({"type": "grammar", "syntax": "regex", "definition": "[ab]{3}-[0-9]{2}"},
                     {"type": "grammar", "grammar": {"syntax": "regex", "definition": "[ab]{3}-[0-9]{2}"}}):
            plan = plan_of(tools=[{"type": "custom", "custom": {"name": "c", "format": form}}], tool_choice="required")
            self.assertRegex("".join(delta.arguments for _, delta in calls_of(plan)), r"\A[ab]{3}-[0-9]{2}\Z")
            self.assertEqual({delta.kind for _, delta in calls_of(plan)}, {"custom"})

    def test_arguments_that_cannot_be_are_400_with_their_place(self):
        bad = chat_tool("f", None, {"type": "object", "properties": {"a": {"type": "integer", "minimum": 3, "maximum": 2}},
                                    "required": ["a"]})
        with self.assertRaises(ApiError) as caught:
            plan_of(tools=[bad], tool_choice="required")
        self.assertEqual(caught.exception.status, 400)
        self.assertTrue(caught.exception.param.startswith("tools[0].function.parameters"), caught.exception.param)
        self.assertEqual(reason_of(plan_of(tools=[bad])), "stop")       # not called: nobody minds


_RICH = {"type": "object", "properties": {
    "a": {"type": "string", "enum": ["x", "y"]}, "b": {"type": "array", "items": {"$ref": "#/$defs/n"}, "minItems": 1},
    "c": {"anyOf": [{"type": "null"}, {"type": "number", "minimum": 0, "multipleOf": 2}]}, "d": {"pattern": "^a+$"}},
    "required": ["a", "b"], "additionalProperties": False, "$defs": {"n": {"type": "integer", "if": {"minimum": 1}}}}
_DAMAGED = [
    dict(CHAT, tools=[chat_tool("f", "weather", _RICH, strict=True), {"type": "custom", "custom": {"name": "c", "format": {
        "type": "grammar", "grammar": {"syntax": "regex", "definition": "[ab]+"}}}}], tool_choice={
            "type": "allowed_tools", "allowed_tools": {"mode": "required", "tools": [{"type": "function", "function": {"name": "f"}}]}}),
    dict(CHAT, tools=[chat_tool("f", "weather", _RICH)], tool_choice={"type": "function", "function": {"name": "f"}}, n=2),
    dict(CHAT, response_format={"type": "json_schema", "json_schema": {"name": "x", "schema": _RICH}}, reasoning_effort="low"),
    dict(CHAT, functions=[{"name": "f", "parameters": _RICH}], function_call={"name": "f"}),
]


class DamageTest(unittest.TestCase):

    def test_any_damaged_request_is_answered_or_refused(self):
        draw, faults = random.Random(5), {}
        backend = make_backend()
        for _ in range(2500):
            request = damaged(draw, draw.choice(_DAMAGED))
            try:
                plan = list(backend.generate(parse_chat_request(request, TOKENIZER, lambda: None), None))
                self.assertIs(plan[-1][1].__class__, Usage)
            except ApiError as error:
                self.assertEqual(error.status, 400)
            except Exception as exc:
                faults.setdefault(place_of(exc), request)
        self.assertEqual(sorted(faults), [])


class ReasoningPlanTest(unittest.TestCase):

    def test_each_effort_costs_its_tokens_before_the_first_word(self):
        for effort, tokens in REASONING_TOKENS.items():
            plan = plan_of(reasoning_effort=effort, output_tokens=12)
            first_s = min(due_s for due_s, delta in plan if not isinstance(delta, (Finish, Usage, ReasoningDelta)))
            with self.subTest(effort=effort):
                self.assertAlmostEqual(first_s, 0.1 + 0.01 * tokens)
                self.assertEqual((plan[-1][1].reasoning_tokens, plan[-1][1].completion_tokens), (tokens, tokens + 12))

    def test_a_limit_used_up_while_reasoning_leaves_no_text(self):
        plan = plan_of(reasoning_effort="low", max_tokens=10)
        self.assertEqual([delta for _, delta in plan if delta.__class__ is TextDelta], [])
        self.assertEqual((reason_of(plan), plan[-1][1].completion_tokens, plan[-1][1].reasoning_tokens), ("length", 10, 10))

    def test_a_limit_cuts_what_is_left_for_the_text(self):
        plan = plan_of(reasoning_effort="low", max_tokens=35)
        self.assertEqual(len([delta for _, delta in plan if delta.__class__ is TextDelta]), 3)
        self.assertEqual((reason_of(plan), plan[-1][1].completion_tokens), ("length", 35))


# Small, and looking for a value takes a second or so before it is given up: what cannot be made is tried again at each
# level, as another branch might do.
HOSTILE = {"type": "string", "pattern": "^ab?$", "minLength": 3}
for _ in range(6):
    HOSTILE = {"type": "object", "properties": {"b": HOSTILE}, "required": ["b"],
               "anyOf": [{"properties": {"c": {"type": kind}}} for kind in ("string", "integer", "boolean")]}


def wide_schema(count):
    return {"type": "object", "properties": {"p%d" % number: {"type": "array", "minItems": 30, "items": {
        "type": "string", "minLength": 20}} for number in range(count)}, "required": ["p%d" % n for n in range(count)]}


class FormatPlanTest(unittest.TestCase):

    def test_a_value_that_costs_more_is_left_to_a_worker(self):
        form = {"type": "json_schema", "json_schema": {"name": "x", "schema": wide_schema(100)}}
        with self.assertRaises(TakesLong):
            plan_of(response_format=form)
        text = "".join(delta.text for _, delta in plan_of(response_format=form, breathe=lambda: None)
                       if delta.__class__ is TextDelta)
        self.assertEqual(len(json.loads(text)), 100)

    def test_a_hostile_schema_is_left_to_a_worker(self):
        with self.assertRaises(TakesLong):
            plan_of(response_format={"type": "json_schema", "json_schema": {"name": "x", "schema": HOSTILE}})

    def test_a_worker_says_what_the_loop_would_have_said(self):
        form = {"type": "json_schema", "json_schema": {"name": "x", "schema": CITY}}
        backend = make_backend()
        moved = make_backend()
        with self.assertRaises(TakesLong):
            plan_of(moved, response_format={"type": "json_schema", "json_schema": {"name": "x", "schema": wide_schema(100)}})
        self.assertEqual(plan_of(backend, response_format=form), plan_of(moved, response_format=form))

    def test_a_restarted_request_is_not_counted_twice(self):
        form = {"type": "json_schema", "json_schema": {"name": "x", "schema": wide_schema(100)}}
        tried, fresh = make_backend(), make_backend()
        with self.assertRaises(TakesLong):
            plan_of(tried, response_format=form)
        self.assertEqual(plan_of(tried, response_format=form, breathe=lambda: None),
                         plan_of(fresh, response_format=form, breathe=lambda: None))


# ---- on the wire ------------------------------------------------------------------------------

class ToolsLive(LiveServerTest):
    settings = {"output_tokens": 12}

    def chat(self, streamed=False, **change):
        """The chat object, plain or assembled from the stream."""
        answer = self.request("POST", "/v1/chat/completions", dict(CHAT, stream=streamed, **change))
        self.assertEqual(answer.status, 200, answer.body)
        return read_chat_stream(self, answer.body)[1] if streamed else answer.json()

    def respond(self, streamed=False, **change):
        answer = self.request("POST", "/v1/responses", dict(RESPONSE, stream=streamed, **change))
        self.assertEqual(answer.status, 200, answer.body)
        return read_response_stream(self, answer.body)[-1]["response"] if streamed else answer.json()

    def refused(self, path, body, status=400):
        answer = self.request("POST", path, body)
        self.assertEqual(answer.status, status, answer.body)
        return answer.error


@every_form
class ChatLoopTest(ToolsLive):

    def test_call_output_text(self):
        for streamed in (False, True):
            with self.subTest(streamed=streamed):
                first = self.chat(streamed, messages=ASKS_WEATHER, tools=SIX)["choices"][0]
                self.assertEqual((first["finish_reason"], first["message"]["content"]), ("tool_calls", None))
                call, = first["message"]["tool_calls"]
                self.assertEqual((call["type"], call["function"]["name"]), ("function", "get_weather"))
                self.assertTrue(call["id"].startswith("call_"))
                self.assertIn("days", json.loads(call["function"]["arguments"]))
                second = self.chat(streamed, tools=SIX, messages=ASKS_WEATHER + [
                    {"role": "assistant", "tool_calls": [call]},
                    {"role": "tool", "tool_call_id": call["id"], "content": "Rain"}])["choices"][0]
                self.assertEqual(second["finish_reason"], "stop")
                self.assertTrue(second["message"]["content"])
                self.assertNotIn("tool_calls", second["message"])

    def test_plain_and_streamed_calls_are_the_same(self):
        calls = [self.chat(streamed, messages=ASKS_WEATHER, tools=SIX, seed=5)["choices"][0]["message"]["tool_calls"][0]
                 ["function"] for streamed in (False, True)]
        self.assertEqual(calls[0], calls[1])

    def test_arguments_are_streamed_in_pieces(self):
        events = self.stream("/v1/chat/completions", dict(CHAT, messages=ASKS_WEATHER, tools=[WEATHER]))
        pieces = [event.data for event in events if event.data != "[DONE]" and event.data["choices"][0]["delta"].get("tool_calls")]
        self.assertGreater(len(pieces), 5)

    def test_call_ids_are_unique_over_all_choices(self):
        for streamed in (False, True):
            whole = self.chat(streamed, messages=ASKS_WEATHER, tools=[WEATHER], n=4)
            ids = [choice["message"]["tool_calls"][0]["id"] for choice in whole["choices"]]
            self.assertEqual(len(set(ids)), 4)
            more = self.chat(messages=ASKS_WEATHER, tools=[WEATHER])["choices"][0]["message"]["tool_calls"][0]["id"]
            self.assertNotIn(more, ids)

    def test_required_takes_turns_over_the_history(self):
        messages, names = list(ASKS_WEATHER), []
        for _ in range(7):
            call = self.chat(messages=messages, tools=SIX, tool_choice="required")["choices"][0]["message"]["tool_calls"][0]
            names.append(call["function"]["name"])
            messages += [{"role": "assistant", "content": None, "tool_calls": [call]},
                         {"role": "tool", "tool_call_id": call["id"], "content": "ok"}]
        self.assertEqual(names, [tool["function"]["name"] for tool in SIX + SIX[:1]])

    def test_a_named_tool_is_called_whatever_was_said(self):
        for streamed in (False, True):
            choice = self.chat(streamed, tools=SIX, tool_choice={"type": "function", "function": {"name": "calculate"}})["choices"][0]
            self.assertEqual((choice["finish_reason"], choice["message"]["tool_calls"][0]["function"]["name"]),
                             ("tool_calls", "calculate"))

    def test_allowed_tools_and_none(self):
        allowed = {"type": "allowed_tools", "allowed_tools": {"mode": "required", "tools": [
            {"type": "function", "function": {"name": "send_email"}}]}}
        message = self.chat(messages=ASKS_WEATHER, tools=SIX, tool_choice=allowed)["choices"][0]["message"]
        self.assertEqual(message["tool_calls"][0]["function"]["name"], "send_email")
        self.assertNotIn("tool_calls", self.chat(messages=ASKS_WEATHER, tools=SIX, tool_choice="none")["choices"][0]["message"])

    def test_a_limit_cuts_the_arguments_with_length(self):
        for streamed in (False, True):
            choice = self.chat(streamed, messages=ASKS_WEATHER, tools=[WEATHER], max_tokens=4)["choices"][0]
            self.assertEqual(choice["finish_reason"], "length")
            with self.assertRaises(ValueError):
                json.loads(choice["message"]["tool_calls"][0]["function"]["arguments"])

    def test_custom_tools_answer_in_their_own_words(self):
        tool = {"type": "custom", "custom": {"name": "sql", "description": "Query", "format": {
            "type": "grammar", "grammar": {"syntax": "regex", "definition": "SELECT [a-z]{3}"}}}}
        for streamed in (False, True):
            call, = self.chat(streamed, tools=[tool], tool_choice="required")["choices"][0]["message"]["tool_calls"]
            self.assertEqual((call["type"], call["custom"]["name"]), ("custom", "sql"))
            self.assertRegex(call["custom"]["input"], r"\ASELECT [a-z]{3}\Z")

    def test_the_deprecated_functions_are_answered_by_a_function_call(self):
        function = WEATHER["function"]
        for choice in (None, "auto", {"name": "get_weather"}):
            body = dict(CHAT, messages=ASKS_WEATHER, functions=[function])
            if choice is not None:
                body["function_call"] = choice
            answer = self.request("POST", "/v1/chat/completions", body).json()["choices"][0]
            call = answer["message"]["function_call"]
            self.assertEqual((answer["finish_reason"], call["name"]), ("function_call", "get_weather"))
            self.assertNotIn("tool_calls", answer["message"])
            self.assertIn("city", json.loads(call["arguments"]))
        events = self.stream("/v1/chat/completions", dict(CHAT, messages=ASKS_WEATHER, functions=[function]))
        parts = [event.data["choices"][0] for event in events if event.data != "[DONE]"]
        calls = [part["delta"]["function_call"] for part in parts if "function_call" in part["delta"]]
        self.assertEqual((calls[0]["name"], parts[-1]["finish_reason"]), ("get_weather", "function_call"))
        self.assertIn("city", json.loads("".join(call["arguments"] for call in calls)))
        after = self.request("POST", "/v1/chat/completions", dict(CHAT, functions=[function], messages=ASKS_WEATHER + [
            {"role": "assistant", "content": None, "function_call": {"name": "get_weather", "arguments": "{}"}},
            {"role": "function", "name": "get_weather", "content": "Rain"}])).json()["choices"][0]
        self.assertEqual(after["finish_reason"], "stop")

    def test_a_deprecated_call_that_names_nothing_is_refused(self):
        error = self.refused("/v1/chat/completions", dict(CHAT, functions=[WEATHER["function"]], function_call={"name": "x"}))
        self.assertEqual(error["param"], "function_call")

    def test_paced_arguments_take_their_time(self):
        self.start_server(ttft_ms=30, itl_ms=5)
        clock = self.server.clock
        begin_s = clock.monotonic()
        events = self.stream("/v1/chat/completions", dict(CHAT, messages=ASKS_WEATHER, tools=[WEATHER]))
        pieces = len([event for event in events if event.data != "[DONE]" and "tool_calls" in event.data["choices"][0]["delta"]])
        self.assertGreaterEqual(clock.monotonic() - begin_s, 0.030 + 0.005 * (pieces - 1))

    def test_a_bad_required_in_a_strict_tool_is_400(self):
        tool = chat_tool("f", None, dict(CITY, required=5), strict=True)
        self.assertEqual(self.refused("/v1/chat/completions", dict(CHAT, tools=[tool]))["type"], "invalid_request_error")


@every_form
class ToolTokensTest(ToolsLive):
    """Definitions are part of the prompt, in both APIs alike."""

    def test_definitions_count_as_prompt_tokens(self):
        tools = [{"type": "function", "function": {"name": "f", "description": "word " * 50}}]
        size = ApproxTokenizer().count(json.dumps(tools, separators=(",", ":")))
        chat = {"model": "m", "messages": [{"role": "user", "content": "Hi"}]}
        turn = {"model": "m", "input": "Hi"}
        for path, body, field in (("/v1/chat/completions", chat, "prompt_tokens"),
                                  ("/v1/responses", turn, "input_tokens")):
            bare = self.request("POST", path, body).json()["usage"][field]
            told = self.request("POST", path, dict(body, tools=tools)).json()["usage"][field]
            self.assertEqual(told - bare, size)
            self.assertGreater(size, 50)


class ResponsesLoopTest(ToolsLive):

    def test_call_output_text_by_the_id_alone(self):
        for streamed in (False, True):
            with self.subTest(streamed=streamed):
                first = self.respond(streamed, input="What is the weather in Oslo?", tools=FLAT_SIX)
                call, = first["output"]
                self.assertEqual((first["status"], call["type"], call["name"], call["status"]),
                                 ("completed", "function_call", "get_weather", "completed"))
                self.assertIn("days", json.loads(call["arguments"]))
                second = self.respond(streamed, previous_response_id=first["id"], tools=FLAT_SIX, input=[
                    {"type": "function_call_output", "call_id": call["call_id"], "output": "Rain"}])
                self.assertEqual([item["type"] for item in second["output"]], ["message"])
                third = self.respond(streamed, previous_response_id=second["id"], tools=FLAT_SIX, input="Calculate 2 + 2")
                self.assertEqual(third["output"][0]["name"], "calculate")
                self.assertNotEqual(third["output"][0]["call_id"], call["call_id"])

    def test_chat_shaped_tools_are_taken(self):
        call, = self.respond(input="weather", tools=SIX, tool_choice={"type": "function", "function": {"name": "send_email"}})["output"]
        self.assertEqual(call["name"], "send_email")

    def test_required_takes_turns_over_the_chain(self):
        first = self.respond(tools=FLAT_SIX[:3], tool_choice="required")
        names, last = [first["output"][0]["name"]], first
        for _ in range(4):
            last = self.respond(previous_response_id=last["id"], tools=FLAT_SIX[:3], tool_choice="required", input=[
                {"type": "function_call_output", "call_id": last["output"][0]["call_id"], "output": "ok"}])
            names.append(last["output"][0]["name"])
        self.assertEqual(names, ["get_weather", "search_flights", "send_email", "get_weather", "search_flights"])

    def test_required_takes_turns_over_input_items(self):
        items = [{"role": "user", "content": "x"}]
        names = []
        for _ in range(4):
            call = self.respond(input=items, tools=FLAT_SIX[:3], tool_choice="required", store=False)["output"][0]
            names.append(call["name"])
            items += [call, {"type": "function_call_output", "call_id": call["call_id"], "output": "ok"}]
        self.assertEqual(names, ["get_weather", "search_flights", "send_email", "get_weather"])

    def test_a_groups_tool_is_called_with_its_namespace(self):
        for streamed in (False, True):
            call, = self.respond(streamed, input="weather please", tools=[
                {"type": "namespace", "name": "crm", "description": "x", "tools": [FLAT_WEATHER]}])["output"]
            self.assertEqual((call["name"], call["namespace"]), ("get_weather", "crm"))

    def test_custom_tools_and_their_outputs(self):
        tool = {"type": "custom", "name": "sql", "format": {"type": "grammar", "syntax": "regex", "definition": "x{2,4}"}}
        for streamed in (False, True):
            first = self.respond(streamed, tools=[tool], tool_choice={"type": "custom", "name": "sql"})
            call, = first["output"]
            self.assertEqual((call["type"], call["name"]), ("custom_tool_call", "sql"))
            self.assertRegex(call["input"], r"\Ax{2,4}\Z")
            second = self.respond(streamed, previous_response_id=first["id"], tools=[tool], input=[
                {"type": "custom_tool_call_output", "call_id": call["call_id"], "output": "1"}])
            self.assertEqual(second["output"][0]["type"], "message")

    def test_flat_allowed_tools(self):
        call, = self.respond(input="weather", tools=FLAT_SIX, tool_choice={
            "type": "allowed_tools", "mode": "required", "tools": [{"type": "function", "name": "calculate"}]})["output"]
        self.assertEqual(call["name"], "calculate")

    def test_a_limit_cuts_the_arguments_and_the_response_is_incomplete(self):
        schema = {"type": "object", "properties": {"a": {"type": "array", "minItems": 30, "items": {"type": "string"}}},
                  "required": ["a"]}
        for streamed in (False, True):
            whole = self.respond(streamed, tools=[flat_tool("f", None, schema)], tool_choice="required", max_output_tokens=16)
            self.assertEqual((whole["status"], whole["incomplete_details"], whole["output"][0]["status"]),
                             ("incomplete", {"reason": "max_output_tokens"}, "incomplete"))
            self.assertEqual(whole["usage"]["output_tokens"], 16)

    def test_tools_and_choice_are_echoed_as_they_were_sent(self):
        tools = [{"type": "never_heard_of", "x": 1}, dict(FLAT_WEATHER, strict=False)]
        whole = self.respond(tools=tools, tool_choice="none", parallel_tool_calls=False)
        self.assertEqual((whole["tools"], whole["tool_choice"], whole["parallel_tool_calls"]), (tools, "none", False))


def nested(schema, **more):
    return {"type": "json_schema", "json_schema": dict({"name": "x", "schema": schema}, **more)}


def flat(schema, **more):
    return {"format": dict({"type": "json_schema", "name": "x", "schema": schema}, **more)}


@every_form
class OutputFormatTest(ToolsLive):

    def test_a_schema_is_met_streamed_and_plain_alike(self):
        for seed in range(5):
            texts = [self.chat(streamed, response_format=nested(CITY), seed=seed)["choices"][0]["message"]["content"]
                     for streamed in (False, True)]
            self.assertEqual(texts[0], texts[1])
            self.assertIn(json.loads(texts[0])["days"], range(1, 10))

    def test_responses_meet_it_streamed_and_plain_alike(self):
        texts = []
        for streamed in (False, True):
            whole = self.respond(streamed, text=flat(CITY, strict=True), store=False)
            self.assertEqual(whole["text"]["format"]["schema"], CITY)
            texts.append(whole["output"][0]["content"][0]["text"])
        self.assertEqual([sorted(json.loads(text)) for text in texts], [["city", "days"]] * 2)

    def test_json_object_is_an_object_and_needs_the_word(self):
        asked = [{"role": "system", "content": "Answer in JSON."}, {"role": "user", "content": "x"}]
        text = self.chat(messages=asked, response_format={"type": "json_object"})["choices"][0]["message"]["content"]
        self.assertIsInstance(json.loads(text), dict)
        self.assertIn("json", self.refused("/v1/chat/completions", dict(CHAT, response_format={"type": "json_object"}))["message"])
        whole = self.respond(text={"format": {"type": "json_object"}}, instructions="Speak json")
        self.assertIsInstance(json.loads(whole["output"][0]["content"][0]["text"]), dict)
        self.assertEqual(self.refused("/v1/responses", dict(RESPONSE, text={"format": {"type": "json_object"}}))["param"], "input")

    def test_a_json_schema_without_a_schema_is_an_object_whatever_was_said(self):
        text = self.chat(response_format={"type": "json_schema"})["choices"][0]["message"]["content"]
        self.assertIsInstance(json.loads(text), dict)
        text = self.respond(text={"format": {"type": "json_schema"}})["output"][0]["content"][0]["text"]
        self.assertIsInstance(json.loads(text), dict)

    def test_a_schema_that_nothing_satisfies_is_400_with_its_place(self):
        bad = {"type": "object", "properties": {"a": {"type": "string", "minLength": 5, "maxLength": 2}}, "required": ["a"]}
        error = self.refused("/v1/chat/completions", dict(CHAT, response_format=nested(bad)))
        self.assertTrue(error["param"].startswith("response_format.json_schema.schema"), error)
        self.assertIn("properties", error["param"])
        error = self.refused("/v1/responses", dict(RESPONSE, stream=True, text=flat(bad)))
        self.assertTrue(error["param"].startswith("text.format.schema"), error)

    def test_strict_rules_only_where_the_request_says_strict(self):
        opened = {"type": "object", "properties": {"a": {"type": "string"}}, "required": ["a"]}
        self.chat(response_format=nested(opened))
        self.refused("/v1/chat/completions", dict(CHAT, response_format=nested(opened, strict=True)))
        self.refused("/v1/responses", dict(RESPONSE, text=flat(opened, strict=True)))

    def test_a_limit_cuts_the_value(self):
        choice = self.chat(response_format=nested(wide_schema(2)), max_tokens=6)["choices"][0]
        self.assertEqual(choice["finish_reason"], "length")

    def test_several_choices_each_meet_the_schema(self):
        whole = self.chat(True, response_format=nested(CITY), n=3)
        for choice in whole["choices"]:
            self.assertIn("city", json.loads(choice["message"]["content"]))

    def test_a_costly_schema_is_answered_from_a_worker_in_both_modes(self):
        for streamed in (False, True):
            text = self.chat(streamed, response_format=nested(wide_schema(100)))["choices"][0]["message"]["content"]
            self.assertEqual(len(json.loads(text)), 100)

    def test_a_hostile_schema_is_400_in_both_modes(self):
        for streamed in (False, True):
            error = self.refused("/v1/chat/completions", dict(CHAT, stream=streamed, response_format=nested(HOSTILE)))
            self.assertTrue(error["param"].startswith("response_format.json_schema.schema"), error)

    def test_paced_streams_go_on_while_a_hostile_schema_is_tried(self):
        self.start_server(ttft_ms=0, itl_ms=2, output_tokens=100)
        client = self.connect()
        client.send_request("POST", "/v1/chat/completions", dict(CHAT, stream=True))
        answer = client.read_head()
        other = self.connect()
        other.send_request("POST", "/v1/chat/completions", dict(CHAT, response_format=nested(HOSTILE)))
        self.assertEqual(client.read_rest(answer)[-1].data, "[DONE]")
        self.assertEqual(other.read_answer().status, 400)
        self.assertLess(self.server.metrics.lateness.quantile_ms(0.5), 100)


@every_form
class RefusalTest(ToolsLive):
    settings = {"refusal_rate": 1.0}

    def test_chat_refuses_in_the_message(self):
        for streamed in (False, True):
            choice = self.chat(streamed)["choices"][0]
            self.assertEqual((choice["finish_reason"], choice["message"]["content"]), ("stop", None))
            self.assertTrue(choice["message"]["refusal"])

    def test_responses_refuse_in_a_part(self):
        for streamed in (False, True):
            part, = self.respond(streamed)["output"][0]["content"]
            self.assertEqual(part["type"], "refusal")
            self.assertTrue(part["refusal"])

    def test_legacy_completions_and_structured_output_end_well_all_the_same(self):
        answer = self.request("POST", "/v1/completions", {"model": "m", "prompt": "x"})
        self.assertEqual(answer.status, 200)
        self.assertTrue(self.chat(response_format=nested(CITY))["choices"][0]["message"]["refusal"])


@every_form
class ReasoningTest(ToolsLive):

    def test_items_are_bare_summed_up_or_none(self):
        for reasoning, items, summary in (
                ({"effort": "low"}, ["reasoning", "message"], False),
                ({"effort": "low", "summary": "auto"}, ["reasoning", "message"], True),
                ({"summary": "detailed"}, ["reasoning", "message"], True),
                ({"effort": "none"}, ["message"], False), ({}, ["message"], False)):
            for streamed in (False, True):
                with self.subTest(reasoning=reasoning, streamed=streamed):
                    whole = self.respond(streamed, reasoning=reasoning)
                    self.assertEqual([item["type"] for item in whole["output"]], items)
                    if items[0] == "reasoning":
                        self.assertEqual(bool(whole["output"][0]["summary"]), summary)

    def test_effort_changes_the_usage(self):
        for effort in ("none", "minimal", "high"):
            whole = self.respond(reasoning={"effort": effort})
            self.assertEqual(whole["usage"]["output_tokens_details"]["reasoning_tokens"], REASONING_TOKENS[effort])
            self.assertEqual(whole["usage"]["output_tokens"], REASONING_TOKENS[effort] + 12)
            chat = self.chat(reasoning_effort=effort)
            self.assertEqual(chat["usage"]["completion_tokens_details"]["reasoning_tokens"], REASONING_TOKENS[effort])

    def test_a_limit_used_up_while_reasoning_is_incomplete_without_a_message(self):
        for streamed in (False, True):
            whole = self.respond(streamed, reasoning={"effort": "high"}, max_output_tokens=20)
            self.assertEqual((whole["status"], whole["incomplete_details"]), ("incomplete", {"reason": "max_output_tokens"}))
            self.assertEqual([item["type"] for item in whole["output"]], ["reasoning"])
            self.assertEqual(whole["usage"]["output_tokens"], 20)
            choice = self.chat(streamed, reasoning_effort="high", max_completion_tokens=20)["choices"][0]
            self.assertEqual((choice["finish_reason"], choice["message"]["content"]), ("length", ""))

    def test_a_reasoning_item_can_be_sent_back(self):
        first = self.respond(reasoning={"effort": "low", "summary": "auto"})
        second = self.respond(input=[{"role": "user", "content": "x"}] + first["output"] + [{"role": "user", "content": "y"}])
        self.assertEqual(second["status"], "completed")


@every_form
class TextOfStreamsTest(ToolsLive):

    def test_auto_without_a_pointer_is_text(self):
        events = self.stream("/v1/chat/completions", dict(CHAT, tools=SIX))
        self.assertTrue(chat_text(events))


if __name__ == "__main__":
    unittest.main()
