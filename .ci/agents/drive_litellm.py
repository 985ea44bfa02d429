"""litellm against the server: completion, streams, tools, structured output, responses and the rest it passes on."""

import json
import warnings
from typing import List, Literal

import litellm
from pydantic import BaseModel, Field

from harness import KEY, MODEL, QUESTION, WAIT_S, WEATHER_QUESTION, Weather, base_url, check, need, need_text, run, same

warnings.simplefilter("ignore")  # its own: of the usage that it puts into a Responses object
litellm.telemetry = False
litellm.suppress_debug_info = True

ASK = [{"role": "user", "content": QUESTION}]
ASK_WEATHER = [{"role": "user", "content": WEATHER_QUESTION}]
PARAMETERS = {
    "type": "object",
    "properties": {
        "city": {"type": "string", "enum": ["Oslo", "Bergen"]},
        "days": {"type": "integer", "minimum": 1, "maximum": 5},
    },
    "required": ["city", "days"],
}
FUNCTION = {"name": "get_weather", "description": "Tell the weather of a city.", "parameters": PARAMETERS}
CHAT_TOOL = {"type": "function", "function": FUNCTION}


class Step(BaseModel):
    """A part of a plan."""

    title: str
    minutes: int = Field(ge=1, le=90)


class Plan(BaseModel):
    """What is to come back."""

    goal: str
    kind: Literal["walk", "sail"]
    steps: List[Step] = Field(min_length=1, max_length=3)


def common(provider="openai", **more):
    """The arguments of every call."""
    return dict(
        {"model": provider + "/" + MODEL, "api_base": base_url(), "api_key": KEY, "timeout": WAIT_S, "max_retries": 0},
        **more,
    )


def both_providers(title):
    """Register a check for the providers openai and hosted_vllm; the function gets the provider's name."""

    def register(function):
        for provider in ("openai", "hosted_vllm"):

            async def one(provider=provider):
                await function(provider)

            check("%s: %s" % (provider, title))(one)
        return function

    return register


@both_providers("completion and acompletion: text, finish reason, usage")
async def completion(provider):
    more = common(provider, messages=ASK, temperature=0.5)
    for answer in (litellm.completion(**more), await litellm.acompletion(**more)):
        need_text(answer.choices[0].message.content)
        same(answer.choices[0].finish_reason, "stop", "the finish reason")
        same(answer.usage.completion_tokens, 24, "completion tokens")
        same(answer.usage.total_tokens, answer.usage.prompt_tokens + 24, "total tokens")


@both_providers("completion streamed: the same text as plain with the same seed; rebuilt with usage")
async def completion_stream(provider):
    more = common(provider, messages=ASK, seed=7)
    text = litellm.completion(**more).choices[0].message.content
    more.update(stream=True, stream_options={"include_usage": True})
    chunks = list(litellm.completion(**more))
    later = [chunk async for chunk in await litellm.acompletion(**more)]
    for found in (chunks, later):
        same("".join(one.choices[0].delta.content or "" for one in found if one.choices), text, "the chunks, joined")
        whole = litellm.stream_chunk_builder(found, messages=ASK)
        same(whole.choices[0].message.content, text, "the rebuilt text")
        same(whole.usage.completion_tokens, 24, "completion tokens")


@both_providers("tool loop: a call that fits, its result goes back, then text")
async def tool_loop(provider):
    weather = Weather()
    answer = litellm.completion(**common(provider, messages=ASK_WEATHER, tools=[CHAT_TOOL]))
    same(answer.choices[0].finish_reason, "tool_calls", "the finish reason")
    (call,) = answer.choices[0].message.tool_calls
    same(call.function.name, "get_weather", "the name")
    back = weather.answer(**json.loads(call.function.arguments))
    weather.need_calls()
    messages = ASK_WEATHER + [
        answer.choices[0].message.model_dump(exclude_none=True),
        {"role": "tool", "tool_call_id": call.id, "content": back},
    ]
    last = litellm.completion(**common(provider, messages=messages, tools=[CHAT_TOOL]))
    same(last.choices[0].message.tool_calls, None, "calls after the result")
    need_text(last.choices[0].message.content)


@both_providers("tool call streamed: its pieces, rebuilt, fit; tool_choice required")
async def tool_stream(provider):
    weather = Weather()
    more = common(provider, messages=ASK, tools=[CHAT_TOOL], tool_choice="required", stream=True)
    chunks = list(litellm.completion(**more))
    same(chunks[-1].choices[0].finish_reason, "tool_calls", "the finish reason")
    whole = litellm.stream_chunk_builder(chunks, messages=ASK)
    (call,) = whole.choices[0].message.tool_calls
    same(call.function.name, "get_weather", "the name")
    weather.answer(**json.loads(call.function.arguments))
    weather.need_calls()


@both_providers("response_format: a Pydantic model, json_schema streamed, json_object")
async def structured(provider):
    answer = litellm.completion(**common(provider, messages=ASK, response_format=Plan))
    need_text(Plan.model_validate_json(answer.choices[0].message.content).goal)
    wanted = {"type": "json_schema", "json_schema": {"name": "plan", "schema": Plan.model_json_schema()}}
    chunks = litellm.completion(**common(provider, messages=ASK, response_format=wanted, stream=True))
    need_text(Plan.model_validate_json("".join(one.choices[0].delta.content or "" for one in chunks)).goal)
    asked = [{"role": "user", "content": "Answer in JSON."}]
    answer = litellm.completion(**common(provider, messages=asked, response_format={"type": "json_object"}))
    same(type(json.loads(answer.choices[0].message.content)), dict, "the type")


@both_providers("responses and aresponses: text and usage; previous_response_id")
async def responses(provider):
    first = litellm.responses(**common(provider, input=QUESTION))
    need_text(first.output_text)
    same(first.usage.output_tokens, 24, "output tokens")
    second = await litellm.aresponses(**common(provider, input="And then?", previous_response_id=first.id))
    need_text(second.output_text)
    need(second.usage.input_tokens > first.usage.input_tokens + 24, "the first turn is not counted")


@both_providers("responses streamed: the deltas are the final text")
async def responses_stream(provider):
    for found in (
        list(litellm.responses(**common(provider, input=QUESTION, stream=True))),
        [event async for event in await litellm.aresponses(**common(provider, input=QUESTION, stream=True))],
    ):
        text = "".join(event.delta for event in found if event.type == "response.output_text.delta")
        need_text(text)
        same(found[-1].type, "response.completed", "the last event")
        same(found[-1].response.output_text, text, "the final text")


@both_providers("responses tool loop: a call that fits, its result goes back, then text")
async def responses_tools(provider):
    weather = Weather()
    tools = [dict(FUNCTION, type="function")]
    first = litellm.responses(**common(provider, input=WEATHER_QUESTION, tools=tools))
    (call,) = [item for item in first.output if item.type == "function_call"]
    output = weather.answer(**json.loads(call.arguments))
    weather.need_calls()
    back = [{"type": "function_call_output", "call_id": call.call_id, "output": output}]
    last = litellm.responses(**common(provider, input=back, tools=tools, previous_response_id=first.id))
    need_text(last.output_text)


@both_providers("responses text_format: a Pydantic model")
async def responses_format(provider):
    answer = litellm.responses(**common(provider, input=QUESTION, text_format=Plan))
    need_text(Plan.model_validate_json(answer.output_text).goal)


@check("responses kept by the server: read, its input items, deleted")
def responses_kept():
    more = {"api_base": base_url(), "api_key": KEY, "custom_llm_provider": "openai"}
    first = litellm.responses(**common(input=QUESTION))
    read = litellm.get_responses(response_id=first.id, **more)
    same(read.output_text, first.output_text, "the text")
    items = litellm.list_input_items(response_id=first.id, **more)
    same(items["data"][0]["content"][0]["text"], QUESTION, "the input item")
    same(litellm.delete_responses(response_id=first.id, **more).deleted, True, "deleted")


@check("text_completion plain and streamed, embedding, moderation")
def rest():
    more = common("text-completion-openai", prompt="Once upon a time", max_tokens=12)
    answer = litellm.text_completion(**more)
    need_text(answer.choices[0].text)
    same(answer.usage.completion_tokens, 12, "completion tokens")
    need_text("".join(one.choices[0].text or "" for one in litellm.text_completion(stream=True, **more)))
    more = common(input=["the sea", "the ship"], dimensions=32, allowed_openai_params=["dimensions"])
    found = litellm.embedding(**more)
    same([len(one["embedding"]) for one in found.data], [32, 32], "the lengths")
    flagged = litellm.moderation(input="hello", model="omni-moderation-latest", api_base=base_url(), api_key=KEY)
    same(flagged.results[0].flagged, False, "flagged")


@check("errors are the client's classes: unknown previous response, a bad value")
def errors():
    for call in (
        lambda: litellm.responses(**common(input="Hello", previous_response_id="resp_" + "0" * 32)),
        lambda: litellm.completion(**common(messages=ASK, temperature=9)),
    ):
        try:
            call()
        except litellm.BadRequestError as error:
            same(error.status_code, 400, "status")
        else:
            raise AssertionError("no BadRequestError")


run("litellm", "openai")
