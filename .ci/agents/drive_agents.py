"""openai-agents against the server: text, streams, tool loop, handoff, output types, over Responses and chat; sessions.

Sessions keep what was said in SQLite, on the server as a conversation or a chain of responses, or compacted by it.
"""

import os
import sys
import tempfile
from types import SimpleNamespace
from typing import Annotated, List, Literal

from agents import (
    Agent,
    ModelSettings,
    OpenAIChatCompletionsModel,
    OpenAIConversationsSession,
    OpenAIResponsesCompactionSession,
    OpenAIResponsesModel,
    Runner,
    SQLiteSession,
    function_tool,
    set_tracing_disabled,
)
from openai import AsyncOpenAI, NotFoundError
from openai.types.shared import Reasoning
from pydantic import BaseModel, Field

from harness import KEY, MODEL, QUESTION, WAIT_S, WEATHER_QUESTION, Weather, base_url, check, need, need_text, run, same
from servers import Server

set_tracing_disabled(True)


class Step(BaseModel):
    """A part of a plan."""

    title: str
    minutes: int = Field(ge=1, le=90)


class Plan(BaseModel):
    """What an agent is to hand back."""

    goal: str
    kind: Literal["walk", "sail"]
    steps: List[Step] = Field(min_length=1, max_length=3)
    budget: float | None


def need_plan(plan):
    """Fail unless it is a Plan with all that its schema asks for (pydantic has checked the bounds)."""
    same(type(plan), Plan, "the output's type")
    need_text(plan.goal)
    need_text(plan.steps[0].title)


def weather_tool():
    """(the Weather that notes the calls, the tool)"""
    weather = Weather()

    @function_tool
    def get_weather(city: Literal["Oslo", "Bergen"], days: Annotated[int, Field(ge=1, le=5)]) -> str:
        """Tell the weather of a city."""
        return weather.answer(city, days)

    return weather, get_weather


def kinds(result):
    """The types of a run's new items, in order."""
    return [item.type for item in result.new_items]


async def streamed(agent, question, **more):
    """(result, joined text deltas) of a streamed run that was read to its end."""
    result = Runner.run_streamed(agent, question, **more)
    texts = []
    async for event in result.stream_events():
        if event.type == "raw_response_event" and event.data.type == "response.output_text.delta":
            texts.append(event.data.delta)
    return result, "".join(texts)


def both_models(title):
    """Register a check for the Responses and for the chat model; the function gets the model."""

    def register(function):
        for name, kind in (("responses", OpenAIResponsesModel), ("chat", OpenAIChatCompletionsModel)):

            async def one(kind=kind):
                async with AsyncOpenAI(base_url=base_url(), api_key=KEY, max_retries=0, timeout=WAIT_S) as client:
                    await function(kind(MODEL, openai_client=client))

            check("%s: %s" % (name, title))(one)
        return function

    return register


@both_models("a run ends with text; usage is counted")
async def text_run(model):
    result = await Runner.run(Agent("Plain", instructions="Be short.", model=model), QUESTION)
    need_text(result.final_output)
    same(kinds(result), ["message_output_item"], "the items")
    usage = result.context_wrapper.usage
    same((usage.requests, usage.output_tokens), (1, 24), "requests and output tokens")
    same(usage.total_tokens, usage.input_tokens + 24, "total tokens")


@both_models("a streamed run: the deltas are the final output")
async def text_stream(model):
    settings = ModelSettings(include_usage=True)
    result, text = await streamed(Agent("Plain", model=model, model_settings=settings), QUESTION)
    need_text(text)
    same(result.final_output, text, "the final output")
    same(result.context_wrapper.usage.output_tokens, 24, "output tokens")


TOOL_LOOP = ["tool_call_item", "tool_call_output_item", "message_output_item"]


@both_models("tool loop: called with arguments that fit, then text")
async def tool_loop(model):
    weather, tool = weather_tool()
    result = await Runner.run(Agent("Weather", model=model, tools=[tool]), WEATHER_QUESTION)
    weather.need_calls()
    same(kinds(result), TOOL_LOOP, "the items")
    same(result.new_items[1].raw_item["call_id"], result.new_items[0].raw_item.call_id, "the output's call_id")
    same(result.new_items[1].output, "18 degrees", "the tool's output")
    need_text(result.final_output)
    same(result.context_wrapper.usage.requests, 2, "requests")


@both_models("tool loop streamed: the same, and the text's deltas are the final output")
async def tool_stream(model):
    weather, tool = weather_tool()
    result, text = await streamed(Agent("Weather", model=model, tools=[tool]), WEATHER_QUESTION)
    weather.need_calls()
    same(kinds(result), TOOL_LOOP, "the items")
    need_text(text)
    same(result.final_output, text, "the final output")


@both_models("tool_choice required calls a tool whatever was asked, and the run ends")
async def required(model):
    weather, tool = weather_tool()
    settings = ModelSettings(tool_choice="required", parallel_tool_calls=False)
    result = await Runner.run(Agent("Must", model=model, tools=[tool], model_settings=settings), QUESTION)
    weather.need_calls()
    need_text(result.final_output)


@both_models("tool_choice none calls nothing")
async def none(model):
    weather, tool = weather_tool()
    settings = ModelSettings(tool_choice="none")
    result = await Runner.run(Agent("May not", model=model, tools=[tool], model_settings=settings), WEATHER_QUESTION)
    weather.need_calls(0)
    need_text(result.final_output)


HANDOFF = ["handoff_call_item", "handoff_output_item", "message_output_item"]


@both_models("handoff: the other agent answers, plain and streamed")
async def handoff(model):
    billing = Agent("Billing", model=model, handoff_description="Invoices and refunds.")
    triage = Agent("Triage", model=model, handoffs=[billing])
    question = "Please transfer me to billing."
    plain = await Runner.run(triage, question)
    result, text = await streamed(triage, question)
    for one in (plain, result):
        same(kinds(one), HANDOFF, "the items")
        same(one.last_agent.name, "Billing", "the last agent")
        need_text(one.final_output)
    same(result.final_output, text, "the final output")


@both_models("handoff to an agent with a tool and an output type: tool, then object")
async def handoff_tools(model):
    weather, tool = weather_tool()
    settings = ModelSettings(tool_choice="required")
    forecast = Agent("Forecast", model=model, tools=[tool], model_settings=settings, output_type=Plan)
    result = await Runner.run(Agent("Triage", model=model, handoffs=[forecast]), "Transfer to forecast, please.")
    weather.need_calls()
    same(result.last_agent.name, "Forecast", "the last agent")
    need_plan(result.final_output)


@both_models("output_type: an object of the type, plain and streamed")
async def output_type(model):
    agent = Agent("Planner", model=model, output_type=Plan)
    need_plan((await Runner.run(agent, QUESTION)).final_output)
    result, text = await streamed(agent, QUESTION)
    need_plan(result.final_output)
    same(Plan.model_validate_json(text), result.final_output, "the deltas, parsed")


@both_models("output_type of a list, wrapped by the client")
async def output_list(model):
    found = (await Runner.run(Agent("Lister", model=model, output_type=List[int]), QUESTION)).final_output
    need(isinstance(found, list) and all(type(one) is int for one in found), "the output is %r" % (found,))


@both_models("tool and output_type together: tool first, then the object")
async def tool_and_type(model):
    weather, tool = weather_tool()
    result = await Runner.run(Agent("Both", model=model, tools=[tool], output_type=Plan), WEATHER_QUESTION)
    weather.need_calls()
    need_plan(result.final_output)


@both_models("an agent as a tool of another")
async def agent_tool(model):
    inner = Agent("Translator", model=model)
    tool = inner.as_tool("translate_text", "Translate a text.")
    result = await Runner.run(Agent("Outer", model=model, tools=[tool]), "Please translate this text: sea.")
    same(kinds(result), TOOL_LOOP, "the items")
    need_text(result.new_items[1].output, "the inner agent's output")
    need_text(result.final_output)
    same(result.context_wrapper.usage.requests, 3, "requests")


@both_models("the items of a run with a tool go back as input of the next; a session does the same")
async def history(model):
    weather, tool = weather_tool()
    agent = Agent("Weather", model=model, tools=[tool])
    first = await Runner.run(agent, WEATHER_QUESTION)
    second = await Runner.run(agent, first.to_input_list() + [{"role": "user", "content": "Thank you."}])
    need_text(second.final_output)
    same(kinds(second), ["message_output_item"], "the items of the second run")
    session = SQLiteSession("one")
    await Runner.run(agent, WEATHER_QUESTION, session=session)
    last = await Runner.run(agent, "Thank you.", session=session)
    need_text(last.final_output)
    same(len(await session.get_items()), 6, "the items of the session")
    weather.need_calls(2)
    alone = await Runner.run(agent, "Thank you.")
    sent = [one.context_wrapper.usage.input_tokens for one in (alone, last)]
    need(sent[0] < sent[1], "input tokens are %d alone, %d with the session" % tuple(sent))


@both_models("a reasoning effort spends reasoning tokens, also in a tool loop")
async def reasoning(model):
    weather, tool = weather_tool()
    settings = ModelSettings(reasoning=Reasoning(effort="low", summary="auto"))
    agent = Agent("Thinker", model=model, tools=[tool], model_settings=settings)
    result = await Runner.run(agent, WEATHER_QUESTION)
    weather.need_calls()
    need_text(result.final_output)
    need(result.context_wrapper.usage.output_tokens_details.reasoning_tokens >= 32, "no reasoning tokens")
    if isinstance(model, OpenAIResponsesModel) and not os.environ.get("CHAT_ONLY"):    # chat shows no thoughts
        need("reasoning_item" in kinds(result), "no reasoning item in %r" % kinds(result))
    again, text = await streamed(agent, WEATHER_QUESTION)
    weather.need_calls(2)
    same(again.final_output, text, "the final output")


@check("responses: previous_response_id carries the conversation")
async def previous():
    async with AsyncOpenAI(base_url=base_url(), api_key=KEY, max_retries=0, timeout=WAIT_S) as client:
        weather, tool = weather_tool()
        agent = Agent("Weather", model=OpenAIResponsesModel(MODEL, openai_client=client), tools=[tool])
        first = await Runner.run(agent, WEATHER_QUESTION, auto_previous_response_id=True)
        second = await Runner.run(agent, "Thank you.", previous_response_id=first.last_response_id)
        weather.need_calls()
        need_text(second.final_output)
        listed = await client.responses.input_items.list(second.last_response_id, order="asc")
        same(
            [item.type for item in listed.data],
            ["message", "function_call", "function_call_output", "message", "message"],
            "the stored items",
        )


# ---- sessions, over Responses ------------------------------------------------------------------


def types(items):
    """The types of items of a session or a list; a message without a type is one all the same."""
    return [item.get("type", "message") if isinstance(item, dict) else item.type for item in items]


def on_server(title):
    """Register a check that gets the client and (Weather, an agent that hands over to one with the tool)."""

    def register(function):
        async def one():
            async with AsyncOpenAI(base_url=base_url(), api_key=KEY, max_retries=0, timeout=WAIT_S) as client:
                model = OpenAIResponsesModel(MODEL, openai_client=client)
                weather, tool = weather_tool()
                forecast = Agent("Forecast", model=model, tools=[tool], handoff_description="Tells the weather.")
                await function(client, weather, Agent("Triage", model=model, handoffs=[forecast], tools=[tool]))

        check("responses: " + title)(one)
        return function

    return register


CALLED = ["message", "function_call", "function_call_output", "message"]  # a run with one call, tool or handoff
TRANSFER = "Please transfer me to forecast."


async def three_runs(weather, agent, **more):
    """A run with a tool, a streamed one with a handoff, one with text alone; the last result."""
    first = await Runner.run(agent, WEATHER_QUESTION, **more)
    weather.need_calls()
    same(kinds(first), TOOL_LOOP, "the items of the first run")
    second, text = await streamed(agent, TRANSFER, **more)
    same((second.last_agent.name, second.final_output), ("Forecast", text), "the agent and text of the second run")
    third = await Runner.run(agent, "Thank you.", **more)
    same(kinds(third), ["message_output_item"], "the items of the third run")
    weather.need_calls()
    sent = [one.raw_responses[0].usage.input_tokens for one in (first, second, third)]
    need(sent == sorted(set(sent)), "input tokens do not grow from run to run: %s" % sent)
    return third


def need_pairs(items):
    """Fail unless each tool output has the call_id of the call before it."""
    calls = [item["call_id"] for item in items if item.get("type") == "function_call"]
    same([item["call_id"] for item in items if item.get("type") == "function_call_output"], calls, "the call_ids")


@on_server("a SQLiteSession in a file: tool, handoff, text; taken up by another session of the same name")
async def sqlite_session(client, weather, agent):
    with tempfile.TemporaryDirectory() as folder:
        path = os.path.join(folder, "sessions.db")
        session = SQLiteSession("two", path)
        await three_runs(weather, agent, session=session)
        items = await session.get_items()
        same(types(items), CALLED * 2 + ["message"] * 2, "the session's items")
        need_pairs(items)
        session.close()
        again = SQLiteSession("two", path)
        same(await again.get_items(), items, "the items of the session that was opened again")
        await Runner.run(agent, "Good night.", session=again)
        same(len(await again.get_items()), 12, "its items after one more run")
        again.close()


@on_server("an OpenAIConversationsSession: tool, handoff, text kept on the server; limit, pop, clear")
async def conversations_session(client, weather, agent):
    session = OpenAIConversationsSession(openai_client=client)
    await three_runs(weather, agent, session=session)
    items = await session.get_items()
    same(types(items), CALLED * 2 + ["message"] * 2, "the session's items")
    need_pairs(items)
    id = session.session_id
    need(id.startswith("conv_"), "the session's id is %s" % id)
    listed = [item async for item in client.conversations.items.list(id, order="asc", limit=3)]
    same([item.id for item in listed], [item["id"] for item in items], "the conversation's items")
    same(await session.get_items(limit=3), items[-3:], "the last three")
    same(await session.pop_item(), items[-1], "the item taken off")
    same(await session.get_items(), items[:-1], "the items that are left")
    other = OpenAIConversationsSession(conversation_id=id, openai_client=client)
    await Runner.run(agent, "Good night.", session=other)
    same(len(await session.get_items()), 11, "items after a run in another session of the same conversation")
    await session.add_items([{"role": "user", "content": "Item %d" % number} for number in range(45)])
    same(len(await session.get_items()), 56, "items after 45 more, in calls of 20")
    await session.clear_session()
    try:
        await client.conversations.retrieve(id)
    except NotFoundError:
        pass
    else:
        raise AssertionError("the conversation is still there")
    same(await session.get_items(), [], "the items of the cleared session, which is a new conversation")


@on_server("conversation_id: tool, handoff, text, each turn sent alone; the server keeps all items")
async def conversation_id(client, weather, agent):
    conversation = await client.conversations.create()
    third = await three_runs(weather, agent, conversation_id=conversation.id)
    listed = [item async for item in client.conversations.items.list(conversation.id, order="asc")]
    same(types(listed), CALLED * 2 + ["message"] * 2, "the conversation's items")
    same(listed[-1].content[0].text, third.final_output, "its last text")
    need_pairs([item.to_dict() for item in listed])


@on_server("previous_response_id: tool, handoff and text in a chain, plain and streamed")
async def chain(client, weather, agent):
    first = await Runner.run(agent, WEATHER_QUESTION, auto_previous_response_id=True)
    weather.need_calls()
    second, text = await streamed(agent, TRANSFER, previous_response_id=first.last_response_id)
    same((second.last_agent.name, second.final_output), ("Forecast", text), "the agent and text of the second run")
    third = await Runner.run(agent, "Thank you.", previous_response_id=second.last_response_id)
    listed = [item async for item in client.responses.input_items.list(third.last_response_id, order="asc", limit=4)]
    same(types(listed), CALLED * 2 + ["message"], "the stored items")
    need_pairs([item.to_dict() for item in listed])


@on_server("an OpenAIResponsesCompactionSession: compacts by itself, by chain and by input; runs go on")
async def compaction_session(client, weather, agent):
    for number, mode in enumerate(("previous_response_id", "input")):
        session = OpenAIResponsesCompactionSession(
            "three", SQLiteSession("three"), client=client, compaction_mode=mode,
            should_trigger_compaction=lambda context: len(context["compaction_candidate_items"]) >= 4)
        await Runner.run(agent, WEATHER_QUESTION, session=session)
        weather.need_calls(number + 1)
        same(types(await session.get_items()), CALLED, "the items before it compacts, by " + mode)
        second = await Runner.run(agent, "Thank you.", session=session)
        same(second.context_wrapper.usage.requests, 2, "requests of the second run, that to compact among them")
        items = await session.get_items()
        same(types(items), ["message", "message", "compaction"], "the items after the second run, by " + mode)
        same([item["role"] for item in items[:2]], ["user"] * 2, "the roles")
        third = await Runner.run(agent, "Good night.", session=session)
        need_text(third.final_output)
        same(types(await session.get_items()), ["message", "message", "compaction", "message", "message"],
             "the items after the third run, by " + mode)
        await session.run_compaction({"force": True})
        same(types(await session.get_items()), ["message"] * 3 + ["compaction"], "after a forced one, by " + mode)
        need_text((await Runner.run(agent, "And now?", session=session)).final_output)


@check("a server on a file, killed and started again between turns: chain and conversation go on")
async def killed_between_turns():
    with tempfile.TemporaryDirectory() as folder:
        flags = ("--store", "sqlite:" + os.path.join(folder, "state.db"), "--output-tokens", "12", "--ttft-ms", "1",
                 "--itl-ms", "1")
        options = SimpleNamespace(python=sys.executable, server="server.py")
        last = conversation = None
        for turn in range(4):
            server = Server(options, *flags)
            try:
                async with AsyncOpenAI(base_url=server.url + "/v1", api_key=KEY, max_retries=0, timeout=WAIT_S) as client:
                    agent = Agent("Keeper", model=OpenAIResponsesModel(MODEL, openai_client=client))
                    result = await Runner.run(agent, "Turn %d" % turn, previous_response_id=last)
                    last = result.last_response_id
                    listed = [item async for item in client.responses.input_items.list(last)]
                    same(len(listed), 2 * turn + 1, "the chain's items")
                    session = OpenAIConversationsSession(conversation_id=conversation, openai_client=client)
                    await Runner.run(agent, "Turn %d" % turn, session=session)
                    conversation = session.session_id
                    same(len(await session.get_items()), 2 * turn + 2, "the conversation's items")
            finally:
                server.process.kill()           # SIGKILL: nothing is said goodbye to
                server.process.wait(WAIT_S)


run("openai-agents", "openai")
