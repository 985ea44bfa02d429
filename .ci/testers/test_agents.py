"""openai-agents: its loop of tools, its retries, limits of turns, streams that are cut and stopped, over both models."""

import asyncio
import logging
import unittest

from agents import (
    Agent,
    MaxTurnsExceeded,
    ModelBehaviorError,
    OpenAIChatCompletionsModel,
    OpenAIResponsesModel,
    Runner,
    function_tool,
    set_tracing_disabled,
)
from openai import AsyncOpenAI
from sdk_errors import SDK_ERRORS
from server import MockTurtleTestCase

set_tracing_disabled(True)
logging.getLogger("asyncio").setLevel(logging.ERROR)            # debug mode tells of each slow callback
logging.getLogger("openai.agents").setLevel(logging.CRITICAL)   # it tells of the errors that are raised as well

QUESTION = "What is the weather in Oslo and in Bergen?"
CALLS = [{"name": "get_weather", "arguments": {"city": city}} for city in ("Oslo", "Bergen")]


async def read(result):
    async for _ in result.stream_events():
        pass


async def off_loop(call):
    """What waits for the server must not hold up the client's loop."""
    return await asyncio.get_running_loop().run_in_executor(None, call)


class AgentsTests(MockTurtleTestCase):
    mixes_into_tests = True
    mock_settings = {"output_tokens": 6}
    kind = None

    async def agent(self, retries=0, timeout=5.0):
        """An agent with a tool, whose client knows the environment's variables alone."""
        client = AsyncOpenAI(max_retries=retries, timeout=timeout)
        self.addAsyncCleanup(client.close)
        self.cities = []

        @function_tool
        def get_weather(city: str) -> str:
            """Tell the weather of a city."""
            self.cities.append(city)
            return "fair in " + city
        return Agent("Weather", model=self.kind("gpt-5", openai_client=client), tools=[get_weather])

    async def test_a_tool_loop_with_calls_in_parallel(self):
        self.mock.reply(tool_calls=CALLS, match={"tool_result": None})
        self.mock.reply("Both {{tool_result}}.")
        result = await Runner.run(await self.agent(), QUESTION)
        self.assertEqual((result.final_output, self.cities), ("Both fair in Bergen.", ["Oslo", "Bergen"]))
        self.mock.assert_call_count(2)
        self.mock.assert_any_call(model="gpt-5", last_user_text=QUESTION)
        self.mock.assert_no_findings()

    async def test_a_model_that_never_stops_calling_is_stopped(self):
        self.mock.reply(tool_calls=CALLS[:1])
        with self.assertRaises(MaxTurnsExceeded):
            await Runner.run(await self.agent(), QUESTION, max_turns=3)
        self.mock.assert_call_count(3)
        self.assertEqual(len(self.cities), 3)

    async def test_a_tool_that_is_not_there_is_the_models_fault(self):
        self.mock.reply(tool_calls=[{"name": "get_time", "arguments": {}}])
        with self.assertRaisesRegex(ModelBehaviorError, "get_time"):
            await Runner.run(await self.agent(), QUESTION)
        self.mock.assert_call_count(1)

    async def test_arguments_that_are_no_json_are_told_to_the_model(self):
        self.mock.reply(tool_calls=[{"name": "get_weather", "arguments": "{\"city\": "}], times=1)
        self.mock.reply("Sorry.", match={"tool_result": {"contains": "error"}})
        self.assertEqual((await Runner.run(await self.agent(), QUESTION)).final_output, "Sorry.")
        self.assertEqual(self.cities, [])
        self.mock.assert_no_findings()

    async def test_its_client_retries_and_waits(self):
        self.mock.reply("Here.")
        agent = await self.agent(retries=1)
        for number, fault in enumerate(("error:status=503,retry_after_s=0.2", "error:status=429,retry_after_s=0.2",
                                        "cut:where=headers"), 1):
            with self.subTest(fault=fault):
                self.mock.fault(fault, times=1)
                self.assertEqual((await Runner.run(agent, QUESTION)).final_output, "Here.")
                self.mock.assert_call_count(2 * number)
                self.mock.assert_no_findings()

    async def test_faults_reach_the_program_as_the_sdks_classes(self):
        agent = await self.agent(timeout=0.5)
        for fault, streamed, error in SDK_ERRORS:
            with self.subTest(fault=fault), self.mock.fault(fault) as set_up:
                with self.assertRaises(error):
                    if streamed:
                        await read(Runner.run_streamed(agent, QUESTION))
                    else:
                        await Runner.run(agent, QUESTION)
                self.assertEqual((set_up.matched, set_up.done), (1, 1))

    async def test_a_stop_button(self):
        agent = await self.agent()
        with self.mock.gate("stop", event=5) as gate:
            result = Runner.run_streamed(agent, QUESTION)
            reading = asyncio.create_task(read(result))
            await off_loop(gate.wait_reached)
            result.cancel()
            await reading
            request = self.mock.requests[0]
            self.assertTrue(await off_loop(lambda: request.left), request)
            self.assertEqual(request.events_sent, 4)


class ResponsesTest(AgentsTests, unittest.IsolatedAsyncioTestCase):
    kind = OpenAIResponsesModel

    async def test_a_chain_of_responses_does_not_say_it_all_again(self):
        self.mock.reply(tool_calls=CALLS[:1], match={"tool_result": None})
        self.mock.reply("So it is.")
        await Runner.run(await self.agent(), QUESTION, auto_previous_response_id=True)
        first, second = self.mock.requests
        self.assertEqual(second.json["previous_response_id"], first.response_id)
        self.assertEqual([item["type"] for item in second.messages], ["function_call_output"])
        self.mock.assert_no_findings()


class ChatTest(AgentsTests, unittest.IsolatedAsyncioTestCase):
    kind = OpenAIChatCompletionsModel
