"""instructor against the server: models by tools, strict tools, json_schema, json_object and Responses tools."""

import json
from enum import Enum
from typing import Iterable, List, Literal, Optional, Union

import instructor
from openai import AsyncOpenAI, OpenAI
from pydantic import BaseModel, Field, field_validator

from harness import KEY, MODEL, QUESTION, WAIT_S, base_url, check, need, need_text, run, same

ASK = [{"role": "user", "content": QUESTION}]


class Kind(str, Enum):
    """How to go."""

    WALK = "walk"
    SAIL = "sail"


class Step(BaseModel):
    """A part of a plan."""

    title: str
    minutes: int = Field(ge=1, le=90)


class Plan(BaseModel):
    """What is to come back."""

    goal: str
    kind: Kind
    steps: List[Step] = Field(min_length=1, max_length=3)
    budget: Optional[float]


class Draft(BaseModel):
    """A plan without a choice: the client's partial models are strict about enums and literals."""

    goal: str
    steps: List[Step] = Field(min_length=1, max_length=3)
    budget: Optional[float]


class Weather(BaseModel):
    """The weather of a city."""

    city: str
    days: Literal[1, 2, 3]


class Search(BaseModel):
    """A search on the web."""

    query: str


def need_plan(plan):
    """Fail unless it is a Plan with all that its schema asks for (pydantic has checked the bounds)."""
    need(isinstance(plan, Plan), "the type is %r" % type(plan))
    need_text(plan.goal)
    need(isinstance(plan.kind, Kind) and plan.steps, "the plan is %r" % (plan,))


def client_of(mode, kind=OpenAI):
    """instructor's client in this mode."""
    return instructor.from_openai(
        kind(base_url=base_url(), api_key=KEY, max_retries=0, timeout=WAIT_S), mode=getattr(instructor.Mode, mode)
    )


MODES = ("TOOLS", "TOOLS_STRICT", "JSON_SCHEMA", "RESPONSES_TOOLS")


def every_mode(title, modes=MODES):
    """Register a check for each mode; the function gets its name."""

    def register(function):
        for mode in modes:

            async def one(mode=mode):
                await function(mode)

            check("%s: %s" % (mode, title))(one)
        return function

    return register


@every_mode("a Plan, sync and async, at the first try")
async def plan(mode):
    more = {"model": MODEL, "messages": ASK, "response_model": Plan, "max_retries": 0}
    need_plan(client_of(mode).create(**more))
    need_plan(await client_of(mode, AsyncOpenAI).create(**more))


@every_mode("create_with_completion: the object and the raw answer with usage")
async def raw(mode):
    found, answer = client_of(mode).create_with_completion(
        model=MODEL, messages=ASK, response_model=Plan, max_retries=0
    )
    need_plan(found)
    usage = answer.usage
    need(getattr(usage, "completion_tokens", 0) or getattr(usage, "output_tokens", 0), "usage is %r" % usage)


@every_mode("create_partial: partial objects grow to the whole")
async def partial(mode):
    found = list(client_of(mode).create_partial(model=MODEL, messages=ASK, response_model=Draft, max_retries=0))
    need(len(found) > 3, "only %d partial objects" % len(found))
    need_text(Draft.model_validate(found[-1].model_dump()).goal)
    need(len({one.model_dump_json() for one in found}) > 3, "the partial objects do not grow")


@every_mode("create_iterable: objects of the type, one by one")
async def iterable(mode):
    found = list(client_of(mode).create_iterable(model=MODEL, messages=ASK, response_model=Step, max_retries=0))
    need(found and all(isinstance(one, Step) for one in found), "found %r" % (found,))


@every_mode("simple types: int, a literal, a list, a union")
async def simple(mode):
    def ask(wanted):
        return client_of(mode).create(model=MODEL, messages=ASK, response_model=wanted, max_retries=0)

    need(type(ask(int)) is int, "no int")
    need(ask(Literal["red", "green"]) in ("red", "green"), "not of the literal")
    need(all(isinstance(one, Step) for one in ask(List[Step])), "not all are steps")
    need(isinstance(ask(Union[Weather, Search]), (Weather, Search)), "not of the union")


@every_mode("a validator that refuses the first object: its words go back, the second is taken")
async def asks_again(mode):
    seen = []

    class Picky(BaseModel):
        """Refuses the first."""

        note: str

        @field_validator("note")
        @classmethod
        def once(cls, value):
            """Refuse the first value."""
            seen.append(value)
            if len(seen) == 1:
                raise ValueError("another note, please")
            return value

    found = client_of(mode).create(model=MODEL, messages=ASK, response_model=Picky, max_retries=2)
    same((len(seen), found.note), (2, seen[-1]), "the tries and the note")


@check("PARALLEL_TOOLS: one of the tools is called with arguments that fit")
def parallel():
    asked = [
        {"role": "system", "content": "You must always use tools"},
        {"role": "user", "content": "What is the weather in Oslo?"},
    ]
    found = list(
        client_of("PARALLEL_TOOLS").create(model=MODEL, messages=asked, response_model=Iterable[Union[Weather, Search]])
    )
    need(found and all(isinstance(one, (Weather, Search)) for one in found), "found %r" % (found,))


class Loose(BaseModel):
    """Nothing is required: any object fits."""

    note: Optional[str] = None


@check("JSON: an object (json_object; the schema is in the prompt's words, which the server does not read)")
def loose():
    found, answer = client_of("JSON").create_with_completion(
        model=MODEL, messages=ASK, response_model=Loose, max_retries=0
    )
    need(isinstance(found, Loose), "the type is %r" % type(found))
    same(type(json.loads(answer.choices[0].message.content)), dict, "the type of the text")


run("instructor", "openai")
