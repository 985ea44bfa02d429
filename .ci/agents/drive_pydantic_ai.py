"""pydantic-ai against the server: text, streams, tools and the three output modes, over chat and Responses models."""

from typing import Annotated, List, Literal

from openai import AsyncOpenAI
from pydantic import BaseModel, Field
from pydantic_ai import Agent, ModelRetry, NativeOutput, PromptedOutput, ToolOutput
from pydantic_ai.messages import ModelResponse, TextPart, ToolCallPart, ToolReturnPart
from pydantic_ai.models.openai import OpenAIChatModel, OpenAIResponsesModel
from pydantic_ai.providers.openai import OpenAIProvider

from harness import KEY, MODEL, QUESTION, WAIT_S, WEATHER_QUESTION, Weather, base_url, check, need, need_text, run, same


class Step(BaseModel):
    """A part of a plan."""

    title: str
    minutes: int = Field(ge=1, le=90)


class Plan(BaseModel):
    """What an agent is to hand back."""

    goal: str
    kind: Literal["walk", "sail"]
    steps: List[Step] = Field(min_length=1, max_length=3)
    budget: float | None = None


class Refusal(BaseModel):
    """The other thing that an agent may hand back."""

    reason: str


def need_plan(plan):
    """Fail unless it is a Plan with all that its schema asks for (pydantic has checked the bounds)."""
    same(type(plan), Plan, "the output's type")
    need_text(plan.goal)
    need_text(plan.steps[0].title)


def both_models(title):
    """Register a check for the Responses and for the chat model; the function gets the model."""

    def register(function):
        for name, kind in (("responses", OpenAIResponsesModel), ("chat", OpenAIChatModel)):

            async def one(kind=kind):
                async with AsyncOpenAI(base_url=base_url(), api_key=KEY, max_retries=0, timeout=WAIT_S) as client:
                    await function(kind(MODEL, provider=OpenAIProvider(openai_client=client)))

            check("%s: %s" % (name, title))(one)
        return function

    return register


def weather_agent(model, **more):
    """(the Weather that notes the calls, an agent with the tool get_weather)"""
    weather = Weather()
    agent = Agent(model, **more)

    @agent.tool_plain
    def get_weather(city: Literal["Oslo", "Bergen"], days: Annotated[int, Field(ge=1, le=5)]) -> str:
        """Tell the weather of a city."""
        return weather.answer(city, days)

    return weather, agent


def parts(result, kind):
    """All parts of this kind in a run's messages."""
    return [part for message in result.all_messages() for part in message.parts if isinstance(part, kind)]


@both_models("a run ends with text; usage and finish reason")
async def text_run(model):
    result = await Agent(model, instructions="Be short.").run(QUESTION)
    need_text(result.output)
    same((result.usage.requests, result.usage.output_tokens), (1, 24), "requests and output tokens")
    last = result.all_messages()[-1]
    same(type(last), ModelResponse, "the last message's type")
    same((last.finish_reason, last.model_name), ("stop", MODEL), "finish reason and model")
    need_text(last.provider_response_id, "the id")


@both_models("a streamed run: the deltas are the output; usage is counted")
async def text_stream(model):
    async with Agent(model).run_stream(QUESTION) as result:
        deltas = [delta async for delta in result.stream_text(delta=True, debounce_by=None)]
        output = await result.get_output()
        need_text(output)
        same("".join(deltas), output, "the deltas")
        need(len(deltas) > 5, "only %d deltas" % len(deltas))
        same(result.usage.output_tokens, 24, "output tokens")


@both_models("tool loop: called with arguments that fit, then text")
async def tool_loop(model):
    weather, agent = weather_agent(model)
    result = await agent.run(WEATHER_QUESTION)
    weather.need_calls()
    need_text(result.output)
    (call,), (back,) = parts(result, ToolCallPart), parts(result, ToolReturnPart)
    same((call.tool_name, back.content), ("get_weather", "18 degrees"), "call and return")
    same(back.tool_call_id, call.tool_call_id, "the return's id")
    same(result.usage.requests, 2, "requests")


@both_models("tool loop streamed: the same, event by event")
async def tool_stream(model):
    weather, agent = weather_agent(model)
    async with agent.run_stream(WEATHER_QUESTION) as result:
        texts = [text async for text in result.stream_text(debounce_by=None)]
        weather.need_calls()
        need_text(texts[-1])
        same(await result.get_output(), texts[-1], "the output")
    async with agent.iter(WEATHER_QUESTION) as steps:
        names = [type(step).__name__ async for step in steps]
    wanted = ["UserPromptNode", "ModelRequestNode", "CallToolsNode", "ModelRequestNode", "CallToolsNode", "End"]
    same(names, wanted, "the steps")
    weather.need_calls(2)


@both_models("a tool that asks for a retry: its prompt goes back, the run ends")
async def retry(model):
    calls = []
    agent = Agent(model)

    @agent.tool_plain(retries=2)
    def get_weather(city: str) -> str:
        """Tell the weather of a city."""
        calls.append(city)
        if len(calls) == 1:
            raise ModelRetry("Name another city.")
        return "rain"

    result = await agent.run(WEATHER_QUESTION)
    need_text(result.output)
    need_text(calls[0], "the city")
    (back,) = parts(result, ToolReturnPart)
    same((back.content, back.outcome), ("Name another city.", "retried"), "what went back")


@both_models("tool output (the default for a type): a Plan, plain and streamed")
async def tool_output(model):
    agent = Agent(model, output_type=Plan)
    result = await agent.run(QUESTION)
    need_plan(result.output)
    same(parts(result, ToolCallPart)[0].tool_name, "final_result", "the tool")
    async with agent.run_stream(QUESTION) as stream:
        partial = [plan async for plan in stream.stream_output(debounce_by=None)]
        output = await stream.get_output()
    need_plan(output)
    same(partial[-1], output, "the last partial output")


@both_models("native output (json_schema): a Plan, plain and streamed")
async def native_output(model):
    agent = Agent(model, output_type=NativeOutput(Plan))
    result = await agent.run(QUESTION)
    need_plan(result.output)
    same(parts(result, ToolCallPart), [], "tool calls")
    async with agent.run_stream(QUESTION) as stream:
        partial = [plan async for plan in stream.stream_output(debounce_by=None)]
        output = await stream.get_output()
    need_plan(output)
    same(partial[-1], output, "the last partial output")


@both_models("native output strict: the service's rules hold for the client's own schema")
async def native_strict(model):
    need_plan((await Agent(model, output_type=NativeOutput(Plan, strict=True)).run(QUESTION)).output)


class Loose(BaseModel):
    """Nothing is required: json_object mode gives some object, and any fits."""

    note: str | None = None


@both_models("prompted output (json_object): an object")
async def prompted_output(model):
    result = await Agent(model, output_type=PromptedOutput(Loose)).run("Answer in JSON.")
    same(type(result.output), Loose, "the output's type")
    need(parts(result, TextPart)[-1].content.startswith("{"), "the text is no object")


@both_models("tool and tool output together: the tool is called, the output tool is reached")
async def tool_and_type(model):
    weather, agent = weather_agent(model, output_type=Plan)
    result = await agent.run(WEATHER_QUESTION)
    need_plan(result.output)
    weather.need_calls()
    names = [call.tool_name for call in parts(result, ToolCallPart)]
    same(names, ["get_weather", "final_result"], "the tools")


@both_models("tool and native output together: tool, then the object")
async def tool_and_native(model):
    weather, agent = weather_agent(model, output_type=NativeOutput(Plan))
    need_plan((await agent.run(WEATHER_QUESTION)).output)
    weather.need_calls()


@both_models("a choice of two output tools gives one of them")
async def union_output(model):
    kinds = [ToolOutput(Plan, name="plan"), ToolOutput(Refusal, name="refuse")]
    result = await Agent(model, output_type=kinds).run(QUESTION)
    need(type(result.output) in (Plan, Refusal), "the output is %r" % (result.output,))


@both_models("a list of integers as output")
async def list_output(model):
    found = (await Agent(model, output_type=List[int]).run(QUESTION)).output
    need(isinstance(found, list) and all(type(one) is int for one in found), "the output is %r" % (found,))


@both_models("an output validator that asks again gets another answer, and the run ends")
async def validator(model):
    agent = Agent(model, output_type=Plan, retries=2)
    seen = []

    @agent.output_validator
    def once(plan: Plan) -> Plan:
        seen.append(plan)
        if len(seen) == 1:
            raise ModelRetry("Another one.")
        return plan

    result = await agent.run(QUESTION)
    need_plan(result.output)
    same((len(seen), result.output), (2, seen[1]), "the validator's calls and the output")


@both_models("message history of a run with a tool goes back as input")
async def history(model):
    weather, agent = weather_agent(model)
    first = await agent.run(WEATHER_QUESTION)
    second = await agent.run("Thank you.", message_history=first.all_messages())
    need_text(second.output)
    weather.need_calls()
    same(len(second.all_messages()), len(first.all_messages()) + 2, "the messages")


@both_models("settings: sampling, parallel calls off, a limit, which ends as length")
async def settings(model):
    more = {"max_tokens": 16, "temperature": 0.2, "top_p": 0.9, "parallel_tool_calls": False}
    result = await Agent(model, model_settings=more).run(QUESTION)
    same(result.usage.output_tokens, 16, "output tokens")
    same(result.all_messages()[-1].finish_reason, "length", "the finish reason")


@both_models("a reasoning effort, also in a tool loop")
async def reasoning(model):
    more = {"openai_reasoning_effort": "low"}
    if isinstance(model, OpenAIResponsesModel):
        more["openai_reasoning_summary"] = "auto"
    weather, agent = weather_agent(model, model_settings=more)
    result = await agent.run(WEATHER_QUESTION)
    weather.need_calls()
    need_text(result.output)
    need(result.usage.details.get("reasoning_tokens", 0) >= 32, "usage is %r" % (result.usage,))
    async with agent.run_stream(WEATHER_QUESTION) as stream:
        need_text(await stream.get_output())
    weather.need_calls(2)


@check("responses: previous_response_id carries the conversation")
async def previous():
    async with AsyncOpenAI(base_url=base_url(), api_key=KEY, max_retries=0, timeout=WAIT_S) as client:
        weather, agent = weather_agent(OpenAIResponsesModel(MODEL, provider=OpenAIProvider(openai_client=client)))
        first = await agent.run(WEATHER_QUESTION)
        second = await agent.run(
            "Thank you.",
            message_history=first.all_messages(),
            model_settings={"openai_previous_response_id": "auto"},
        )
        need_text(second.output)
        weather.need_calls()
        listed = await client.responses.input_items.list(second.all_messages()[-1].provider_response_id, order="asc")
        kinds = [item.type for item in listed.data]
        same(kinds[:3], ["message", "function_call", "function_call_output"], "the stored items")
        same(kinds.count("function_call"), 1, "calls among the stored items")


run("pydantic-ai-slim", "openai")
