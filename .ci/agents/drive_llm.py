"""llm (Python API and command) against the server: chat, Responses and completion models of its extra file."""

import json
import os
import pathlib
import subprocess
import sys
from typing import List

from pydantic import BaseModel, Field

from harness import MODEL, QUESTION, WAIT_S, WEATHER_QUESTION, base_url, check, need, need_text, run, same

HOME = pathlib.Path(os.environ["LLM_USER_PATH"])  # set by .ci/clients, so that nobody's own settings are touched
HOME.mkdir(parents=True, exist_ok=True)
COMMON = {"model_name": MODEL, "api_base": base_url(), "supports_tools": True, "supports_schema": True}
(HOME / "extra-openai-models.yaml").write_text(  # JSON is YAML
    json.dumps(
        [
            dict(COMMON, model_id="mock-chat"),
            dict(COMMON, model_id="mock-responses", responses=True, reasoning=True),
            {"model_name": MODEL, "api_base": base_url(), "model_id": "mock-completion", "completion": True},
        ]
    )
)

import llm  # noqa: E402  (reads the file above)

TOKENS = {"mock-chat": 24, "mock-responses": 64 + 24}  # reasoning: true asks for a summary, at medium effort


class Plan(BaseModel):
    """What is to come back."""

    goal: str
    minutes: List[int] = Field(min_length=1, max_length=3)


def both_models(title):
    """Register a check for the chat and the Responses model; the function gets the model's id."""

    def register(function):
        for name in ("mock-chat", "mock-responses"):

            async def one(name=name):
                await function(name)

            check("%s: %s" % (name, title))(one)
        return function

    return register


def command(*arguments):
    """What `llm ...` prints; fails unless its status is 0."""
    done = subprocess.run(
        [sys.executable, "-m", "llm"] + list(arguments),
        stdin=subprocess.DEVNULL,
        capture_output=True,
        text=True,
        timeout=WAIT_S,
        check=False,
    )
    same(done.returncode, 0, "the status (%s)" % done.stderr[-600:])
    return done.stdout


@both_models("prompt plain and streamed, async too: text and usage")
async def prompt(name):
    model = llm.get_model(name)
    for stream in (False, True):
        answer = model.prompt(QUESTION, system="Be short.", stream=stream)
        pieces = list(answer)
        need_text(answer.text())
        same("".join(pieces), answer.text(), "the pieces")
        need(not stream or len(pieces) > 5, "only %d pieces" % len(pieces))
        same(answer.usage().output, TOKENS[name], "output tokens")
    later = llm.get_async_model(name).prompt(QUESTION)
    need_text(await later.text())


@both_models("a schema gives an object that fits, plain and streamed")
async def schema(name):
    for stream in (False, True):
        text = llm.get_model(name).prompt(QUESTION, schema=Plan, stream=stream).text()
        need_text(Plan.model_validate_json(text).goal)


@both_models("a chain with a tool: called with arguments that fit, then text, plain and streamed")
async def chain(name):
    for stream in (False, True):
        calls = []

        def get_weather(city: str, days: int) -> str:
            """Tell the weather of a city."""
            calls.append((city, type(days)))
            return "18 degrees"

        answers = llm.get_model(name).chain(WEATHER_QUESTION, tools=[get_weather], stream=stream)
        need_text(answers.text())
        same([kind for _, kind in calls], [int], "the calls")
        need_text(calls[0][0], "the city")
        same(len(list(answers.responses())), 2, "the answers")


@both_models("a conversation sends its earlier turns")
async def conversation(name):
    talk = llm.get_model(name).conversation()
    first = talk.prompt(QUESTION)
    first.text()
    second = talk.prompt("And then?")
    need_text(second.text())
    need(second.usage().input > first.usage().input + 24, "the first turn is not counted")


@both_models("the command: a prompt, a conversation, a schema, a tool")
async def commands(name):
    need_text(command("-m", name, QUESTION))
    need_text(command("-m", name, "--no-stream", QUESTION))
    need_text(command("-m", name, "-c", "And then?"))
    found = json.loads(command("-m", name, "--schema", "goal, minutes int", QUESTION))
    need(isinstance(found["goal"], str) and type(found["minutes"]) is int, "found %r" % (found,))
    functions = 'def get_weather(city: str) -> str:\n    "Tell the weather of a city."\n    return "rain in " + city\n'
    need_text(command("-m", name, "--functions", functions, WEATHER_QUESTION))


@check("mock-completion: prompt plain and streamed")
def completion():
    for stream in (False, True):
        need_text(llm.get_model("mock-completion").prompt("Once upon a time", stream=stream, max_tokens=12).text())


run("llm", "openai")
