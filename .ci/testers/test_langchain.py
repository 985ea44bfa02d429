"""langchain-openai: retries, limits, cut streams, a loop of tools, structured output, a stop, over both of its APIs."""

import asyncio
import unittest

import openai
from langchain_core.messages import HumanMessage, ToolMessage
from langchain_core.tools import tool
from langchain_openai import ChatOpenAI
from langchain_openai.chat_models.base import OpenAIRefusalError
from pydantic import BaseModel
from sdk_errors import SDK_ERRORS
from server import MockTurtleTestCase

QUESTION = "What is the weather in Oslo and in Bergen?"


class Place(BaseModel):
    """What is to come back."""

    name: str
    people: int


@tool
def get_weather(city: str) -> str:
    """Tell the weather of a city."""
    return "fair in " + city


class LangChainTests(MockTurtleTestCase):
    mixes_into_tests = True
    mock_settings = {"output_tokens": 6}
    responses = None

    def model(self, retries=0, timeout=5.0):
        """One that knows the environment's variables alone."""
        return ChatOpenAI(model="gpt-5", max_retries=retries, timeout=timeout, use_responses_api=self.responses)

    def test_a_loop_of_tools(self):
        calls = [{"name": "get_weather", "arguments": {"city": city}} for city in ("Oslo", "Bergen")]
        self.mock.reply(tool_calls=calls, match={"tool_result": None, "tools": "get_weather"})
        self.mock.reply("Both {{tool_result}}.")
        model, messages = self.model().bind_tools([get_weather]), [HumanMessage(QUESTION)]
        while True:
            messages.append(model.invoke(messages))
            if not messages[-1].tool_calls:
                break
            messages += [get_weather.invoke(call) for call in messages[-1].tool_calls]
        self.assertEqual(messages[-1].text, "Both fair in Bergen.")
        self.mock.assert_call_count(2)
        self.mock.assert_called_with(model="gpt-5", last_user_text=QUESTION)
        self.mock.assert_no_findings()

    def test_an_output_for_a_call_that_was_never_made_is_found(self):
        self.mock.reply("Odd.")
        try:
            self.model().invoke([HumanMessage(QUESTION), ToolMessage("fair", tool_call_id="call_of_nobody")])
        except openai.BadRequestError:
            pass                                        # one of the APIs refuses it
        self.mock.assert_finding("orphan_tool_output")

    def test_it_retries_and_waits(self):
        self.mock.reply("Here.")
        model = self.model(retries=1)
        for number, fault in enumerate(("error:status=503,retry_after_s=0.2", "error:status=429,retry_after_s=0.2",
                                        "cut:where=headers"), 1):
            with self.subTest(fault=fault):
                self.mock.fault(fault, times=1)
                self.assertEqual(model.invoke(QUESTION).text, "Here.")
                self.mock.assert_call_count(2 * number)
                self.mock.assert_no_findings()

    def test_faults_reach_the_program_as_the_sdks_classes(self):
        model = self.model(timeout=0.5)
        for fault, streamed, error in SDK_ERRORS:
            with self.subTest(fault=fault), self.mock.fault(fault) as set_up:
                with self.assertRaises(error):
                    if streamed:
                        list(model.stream(QUESTION))
                    else:
                        model.invoke(QUESTION)
                self.assertEqual((set_up.matched, set_up.done), (1, 1))

    def test_structured_output_a_refusal_and_a_value_that_does_not_fit(self):
        self.mock.replies([{"json": {"name": "Oslo", "people": 700000}}, {"refusal": "I will not."}, {"json": {"name": "Oslo"}}])
        model = self.model().with_structured_output(Place)
        self.assertEqual(model.invoke("Name a place."), Place(name="Oslo", people=700000))
        self.mock.assert_called_once_with(model="gpt-5")
        with self.assertRaises(OpenAIRefusalError):
            model.invoke("Name a place.")
        with self.assertRaises(ValueError):
            model.invoke("Name a place.")

    def test_a_stop_button(self):
        with self.mock.gate("stop", event=6) as gate:
            stream = self.model().stream(QUESTION)
            next(stream)
            gate.wait_reached()
            stream.close()
            self.assertTrue(self.mock.requests[0].left, self.mock.requests)
            self.assertEqual(self.mock.requests[0].events_sent, 5)

    def test_a_task_that_is_cancelled_leaves(self):
        async def ask():
            task = asyncio.ensure_future(self.model().ainvoke(QUESTION))
            await asyncio.get_running_loop().run_in_executor(None, gate.wait_reached)
            task.cancel()
            with self.assertRaises(asyncio.CancelledError):
                await task
        with self.mock.gate() as gate:
            asyncio.run(ask())
            self.assertTrue(self.mock.requests[0].left, self.mock.requests)


class ChatTest(LangChainTests, unittest.TestCase):
    responses = False


class ResponsesTest(LangChainTests, unittest.TestCase):
    responses = True
