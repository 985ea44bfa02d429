"""langchain-openai against the server: messages, streams, tools, structured output, over chat and Responses."""

import warnings
from typing import Annotated, List, Literal

from langchain_core.messages import AIMessage, HumanMessage, SystemMessage, ToolMessage
from langchain_core.tools import tool
from langchain_openai import ChatOpenAI, OpenAI, OpenAIEmbeddings
from pydantic import BaseModel, Field

from harness import KEY, MODEL, QUESTION, WAIT_S, WEATHER_QUESTION, Weather, base_url, check, need, need_text, run, same

warnings.simplefilter("ignore")  # the client's own: of gpt-4 without json_schema, of its parsed field


class Step(BaseModel):
    """A part of a plan."""

    title: str
    minutes: int = Field(ge=1, le=90)


class Plan(BaseModel):
    """What is to come back."""

    goal: str
    kind: Literal["walk", "sail"]
    steps: List[Step] = Field(min_length=1, max_length=3)


def need_plan(plan):
    """Fail unless it is a Plan with all that its schema asks for (pydantic has checked the bounds)."""
    same(type(plan), Plan, "the output's type")
    need_text(plan.goal)
    need_text(plan.steps[0].title)


def model_of(responses, **more):
    """A chat model of this server, by the Responses API or by chat completions."""
    more.setdefault("model", MODEL)
    return ChatOpenAI(
        base_url=base_url(), api_key=KEY, max_retries=0, timeout=WAIT_S, use_responses_api=responses, **more
    )


def both_apis(title):
    """Register a check for chat and for Responses; the function gets a function that makes models."""

    def register(function):
        for name, responses in (("chat", False), ("responses", True)):

            async def one(responses=responses):
                await function(lambda **more: model_of(responses, **more))

            check("%s: %s" % (name, title))(one)
        return function

    return register


def weather_tool():
    """(the Weather that notes the calls, the tool)"""
    weather = Weather()

    @tool
    def get_weather(city: Literal["Oslo", "Bergen"], days: Annotated[int, Field(ge=1, le=5)]) -> str:
        """Tell the weather of a city."""
        return weather.answer(city, days)

    return weather, get_weather


@both_apis("invoke and ainvoke: text and usage")
async def invoke(make):
    messages = [SystemMessage("Be short."), HumanMessage(QUESTION)]
    for message in (make().invoke(messages), await make().ainvoke(messages)):
        same(type(message), AIMessage, "the type")
        need_text(message.text)
        same(message.usage_metadata["output_tokens"], 24, "output tokens")
        same(message.response_metadata["model_name"], MODEL, "the model")


@both_apis("stream and astream: chunks add up to a message with usage")
async def stream(make):
    model = make(stream_usage=True)
    chunks = list(model.stream(QUESTION))
    later = [chunk async for chunk in model.astream(QUESTION)]
    for found in (chunks, later):
        whole = found[0]
        for chunk in found[1:]:
            whole += chunk
        need_text(whole.text)
        same("".join(chunk.text for chunk in found), whole.text, "the chunks")
        need(len([chunk for chunk in found if chunk.text]) > 5, "only %d chunks" % len(found))
        same(whole.usage_metadata["output_tokens"], 24, "output tokens")


@check("chat: the same seed gives the same text, plain and streamed")
def seed():
    model = model_of(False, seed=7)
    text = model.invoke(QUESTION).text
    same("".join(chunk.text for chunk in model.stream(QUESTION)), text, "the streamed text")


@both_apis("bind_tools: a call that fits, its result goes back, then text")
async def tools(make):
    weather, get_weather = weather_tool()
    model = make().bind_tools([get_weather])
    messages = [HumanMessage(WEATHER_QUESTION)]
    answer = await model.ainvoke(messages)
    same([call["name"] for call in answer.tool_calls], ["get_weather"], "the calls")
    same(answer.invalid_tool_calls, [], "invalid calls")
    back = get_weather.invoke(answer.tool_calls[0])
    same((type(back), back.tool_call_id), (ToolMessage, answer.tool_calls[0]["id"]), "the tool's message")
    weather.need_calls()
    last = await model.ainvoke(messages + [answer, back])
    same(last.tool_calls, [], "calls after the result")
    need_text(last.text)


@both_apis("bind_tools streamed: the pieces add up to one call that fits; its result goes back, streamed too")
async def tools_streamed(make):
    weather, get_weather = weather_tool()
    model = make().bind_tools([get_weather])
    whole = None
    async for chunk in model.astream(WEATHER_QUESTION):
        whole = chunk if whole is None else whole + chunk
    same([call["name"] for call in whole.tool_calls], ["get_weather"], "the calls")
    back = get_weather.invoke(whole.tool_calls[0])
    weather.need_calls()
    texts = [chunk.text async for chunk in model.astream([HumanMessage(WEATHER_QUESTION), whole, back])]
    need_text("".join(texts))


@both_apis("tool_choice: a named tool, any, none; strict tools")
async def choices(make):
    weather, get_weather = weather_tool()
    for choice in ("get_weather", "any", "required"):
        answer = make().bind_tools([get_weather], tool_choice=choice, strict=True).invoke(QUESTION)
        same([call["name"] for call in answer.tool_calls], ["get_weather"], "calls with " + choice)
        get_weather.invoke(answer.tool_calls[0])
    weather.need_calls(3)
    answer = make().bind_tools([get_weather], tool_choice="none").invoke(WEATHER_QUESTION)
    same(answer.tool_calls, [], "calls with none")
    need_text(answer.text)


@both_apis("with_structured_output: a Plan by json_schema (strict and not) and by function calling")
async def structured(make):
    ways = {"method": "json_schema"}, {"method": "json_schema", "strict": True}, {"method": "function_calling"}, {}
    for more in ways:
        need_plan(await make().with_structured_output(Plan, **more).ainvoke(QUESTION))
    need_plan(make(model="gpt-4").with_structured_output(Plan).invoke(QUESTION))  # goes by the name
    both = make().with_structured_output(Plan, include_raw=True).invoke(QUESTION)
    same(both["parsing_error"], None, "the parsing error")
    need_plan(both["parsed"])


@both_apis("with_structured_output streamed: the last is the Plan")
async def structured_streamed(make):
    for method in ("json_schema", "function_calling"):
        found = list(make().with_structured_output(Plan, method=method).stream(QUESTION))
        need_plan(found[-1])


@both_apis("with_structured_output of a JSON schema and in json_mode: a dict")
async def structured_dict(make):
    schema = {"title": "count", "type": "object", "properties": {"n": {"type": "integer"}}, "required": ["n"]}
    found = make().with_structured_output(schema).invoke(QUESTION)
    need(type(found["n"]) is int, "n is %r" % (found,))
    found = make().with_structured_output(None, method="json_mode").invoke("Answer in JSON.")
    same(type(found), dict, "the type in json_mode")


@both_apis("tools and structured output together: the tool first, then the Plan")
async def tools_and_format(make):
    weather, get_weather = weather_tool()
    model = make().bind_tools([get_weather], response_format=Plan, strict=True)
    answer = model.invoke(WEATHER_QUESTION)
    same([call["name"] for call in answer.tool_calls], ["get_weather"], "the calls")
    back = get_weather.invoke(answer.tool_calls[0])
    need_plan(model.invoke([HumanMessage(WEATHER_QUESTION), answer, back]).additional_kwargs["parsed"])


@both_apis("batch: each prompt has its answer")
async def batch(make):
    found = make().batch(["Prompt %d" % number for number in range(6)])
    same(len({message.text for message in found}), 6, "different answers")


@check("chat: logprobs, stop, n=2")
def chat_fields():
    message = model_of(False, logprobs=True, top_logprobs=2).invoke(QUESTION)
    tokens = message.response_metadata["logprobs"]["content"]
    same("".join(one["token"] for one in tokens), message.text, "the tokens, joined")
    same({len(one["top_logprobs"]) for one in tokens}, {2}, "top logprobs")
    need("." not in model_of(False, stop=["."]).invoke(QUESTION).text, "the stop text is in the answer")
    found = model_of(False, n=2).generate([[HumanMessage(QUESTION)]]).generations[0]
    same(len({one.text for one in found}), 2, "different answers")


@check("responses: previous_response_id carries the conversation; reasoning items come and go back")
def responses_fields():
    model = model_of(True, use_previous_response_id=True)
    first = model.invoke(QUESTION)
    second = model.invoke([HumanMessage(QUESTION), first, HumanMessage("And then?")])
    need_text(second.text)
    sent = [one.usage_metadata["input_tokens"] for one in (first, second)]
    need(sent[1] > sent[0] + 24, "input tokens of the two turns are %r" % sent)
    thinker = model_of(True, reasoning={"effort": "low", "summary": "auto"})
    first = thinker.invoke(QUESTION)
    same([block["type"] for block in first.content], ["reasoning", "text"], "the blocks")
    need(first.usage_metadata["output_token_details"]["reasoning"] >= 32, "no reasoning tokens")
    need_text(thinker.invoke([HumanMessage(QUESTION), first, HumanMessage("And then?")]).text)


@check("completions: invoke and stream of the legacy model")
def legacy():
    model = OpenAI(base_url=base_url(), api_key=KEY, model=MODEL, max_retries=0, max_tokens=12)
    need_text(model.invoke("Once upon a time"))
    need_text("".join(model.stream("Once upon a time")))


@check("embeddings: documents and query, unit length, the nearer text is nearer")
def embeddings():
    model = OpenAIEmbeddings(
        base_url=base_url(), api_key=KEY, model=MODEL, dimensions=64, check_embedding_ctx_length=False, max_retries=0
    )
    near, far = model.embed_documents(["the sea and the ship", "tax forms of last year"])
    query = model.embed_query("the ship on the sea")
    same({len(one) for one in (near, far, query)}, {64}, "the lengths")
    product = [sum(a * b for a, b in zip(query, one)) for one in (query, near, far)]
    need(abs(product[0] - 1) < 1e-4 and product[1] > product[2], "the products are %r" % (product,))


run("langchain-openai", "langchain-core", "openai")
