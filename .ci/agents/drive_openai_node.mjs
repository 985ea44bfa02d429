// The official openai Node SDK's helpers against the server: runTools, parse and stream with zod, on both APIs.
// (The rest of that SDK is .ci/clients_node.mjs.)

import assert from 'node:assert/strict';
import OpenAI from 'openai';
import { zodFunction, zodResponseFormat, zodResponsesFunction, zodTextFormat } from 'openai/helpers/zod';
import { z } from 'zod';
import {
  BASE_URL, check, KEY, MODEL, needText, QUESTION, runAll, WAIT_MS, Weather, WEATHER_QUESTION,
} from './harness.mjs';

const client = new OpenAI({ baseURL: BASE_URL, apiKey: KEY, maxRetries: 0, timeout: WAIT_MS });
const ASK = [{ role: 'user', content: QUESTION }];
const ASK_WEATHER = [{ role: 'user', content: WEATHER_QUESTION }];

const Plan = z.object({
  goal: z.string().min(1),
  kind: z.enum(['walk', 'sail']),
  steps: z.array(z.object({ title: z.string(), minutes: z.number().int().min(1).max(90) })).min(1).max(3),
  budget: z.number().nullable(),
});
const City = z.object({ city: z.enum(['Oslo', 'Bergen']), days: z.number().int().min(1).max(5) });
const needPlan = (plan) => assert.deepEqual(Plan.parse(plan), plan);
const tool = (make, weather) =>
  make({ name: 'get_weather', description: 'Tell the weather of a city.', parameters: City, function: weather.answer });

check('chat runTools: called with arguments that fit, then text', async () => {
  const weather = new Weather();
  const runner = client.chat.completions.runTools({
    model: MODEL, messages: ASK_WEATHER, tools: [tool(zodFunction, weather)] });
  needText(await runner.finalContent());
  weather.needCalls();
  assert.deepEqual(runner.messages.map((message) => message.role), ['user', 'assistant', 'tool', 'assistant']);
  assert.equal(runner.messages[2].content, '18 degrees');
});

check('chat runTools streamed: the same; the deltas are the final content', async () => {
  const weather = new Weather();
  const runner = client.chat.completions.runTools({
    model: MODEL, messages: ASK_WEATHER, tools: [tool(zodFunction, weather)], stream: true });
  let joined = '';
  runner.on('content', (delta) => (joined += delta));
  const final = await runner.finalContent();
  weather.needCalls();
  needText(final);
  assert.equal(joined, final);
  assert.deepEqual(runner.messages.map((message) => message.role), ['user', 'assistant', 'tool', 'assistant']);
});

check('chat runTools with a tool that must be called ends after it', async () => {
  const weather = new Weather();
  const runner = client.chat.completions.runTools({
    model: MODEL, messages: ASK, tools: [tool(zodFunction, weather)],
    tool_choice: { type: 'function', function: { name: 'get_weather' } } });
  await runner.done();
  weather.needCalls();
});

check('chat parse with zod: an object; tool arguments', async () => {
  const format = await client.chat.completions.parse({
    model: MODEL, messages: ASK, response_format: zodResponseFormat(Plan, 'plan') });
  needPlan(format.choices[0].message.parsed);
  const weather = new Weather();
  const called = await client.chat.completions.parse({
    model: MODEL, messages: ASK_WEATHER, tools: [tool(zodFunction, weather)] });
  assert.equal(called.choices[0].finish_reason, 'tool_calls');
  weather.answer(called.choices[0].message.tool_calls[0].function.parsed_arguments);
  weather.needCalls();
});

check('chat stream with zod: the deltas are the parsed object', async () => {
  const stream = client.chat.completions.stream({
    model: MODEL, messages: ASK, response_format: zodResponseFormat(Plan, 'plan') });
  let joined = '';
  stream.on('content.delta', ({ delta }) => (joined += delta));
  const final = await stream.finalChatCompletion();
  needPlan(final.choices[0].message.parsed);
  assert.deepEqual(JSON.parse(joined), final.choices[0].message.parsed);
});

check('chat stream with a zod tool: the arguments\' deltas are the parsed ones', async () => {
  const weather = new Weather();
  const stream = client.chat.completions.stream({
    model: MODEL, messages: ASK_WEATHER, tools: [tool(zodFunction, weather)] });
  let joined = '';
  stream.on('tool_calls.function.arguments.delta', ({ arguments_delta }) => (joined += arguments_delta));
  const final = await stream.finalChatCompletion();
  const call = final.choices[0].message.tool_calls[0].function;
  assert.equal(joined, call.arguments);
  weather.answer(call.parsed_arguments);
  weather.needCalls();
});

check('responses parse with zod: an object; tool arguments, whose result goes back', async () => {
  const plan = await client.responses.parse({
    model: MODEL, input: QUESTION, text: { format: zodTextFormat(Plan, 'plan') } });
  needPlan(plan.output_parsed);
  const weather = new Weather();
  const tools = [tool(zodResponsesFunction, weather)];
  const called = await client.responses.parse({ model: MODEL, input: WEATHER_QUESTION, tools });
  const call = called.output.find((item) => item.type === 'function_call');
  const output = weather.answer(call.parsed_arguments);
  weather.needCalls();
  const last = await client.responses.parse({
    model: MODEL, tools, previous_response_id: called.id,
    input: [{ type: 'function_call_output', call_id: call.call_id, output }] });
  needText(last.output_text);
});

check('responses stream with zod: the deltas are the parsed object', async () => {
  const stream = client.responses.stream({
    model: MODEL, input: QUESTION, text: { format: zodTextFormat(Plan, 'plan') } });
  let joined = '';
  stream.on('response.output_text.delta', ({ delta }) => (joined += delta));
  const final = await stream.finalResponse();
  needPlan(final.output_parsed);
  assert.deepEqual(JSON.parse(joined), final.output_parsed);
});

check('responses stream with a zod tool: the arguments\' deltas are the parsed ones', async () => {
  const weather = new Weather();
  const stream = client.responses.stream({
    model: MODEL, input: WEATHER_QUESTION, tools: [tool(zodResponsesFunction, weather)] });
  let joined = '';
  stream.on('response.function_call_arguments.delta', ({ delta }) => (joined += delta));
  const call = (await stream.finalResponse()).output.find((item) => item.type === 'function_call');
  assert.equal(joined, call.arguments);
  weather.answer(call.parsed_arguments);
  weather.needCalls();
});

await runAll('openai', 'zod');
