// The Vercel AI SDK against the server: generateText, streamText, tools, objects and embeddings, by its providers
// @ai-sdk/openai (responses, chat, completion), @ai-sdk/openai-compatible and @ai-sdk/open-responses.

import assert from 'node:assert/strict';
import { createOpenAI } from '@ai-sdk/openai';
import { createOpenAICompatible } from '@ai-sdk/openai-compatible';
import { createOpenResponses } from '@ai-sdk/open-responses';
import {
  embed, embedMany, generateObject, generateText, isStepCount, Output, streamObject, streamText, tool,
} from 'ai';
import { z } from 'zod';
import {
  BASE_URL, check, collect, KEY, MODEL, needText, QUESTION, runAll, Weather, WEATHER_QUESTION,
} from './harness.mjs';

globalThis.AI_SDK_LOG_WARNINGS = false;
process.noDeprecation = true; // generateObject and streamObject are, and are in use all the same

const openai = createOpenAI({ baseURL: BASE_URL, apiKey: KEY });
const compatible = createOpenAICompatible({
  name: 'mock', baseURL: BASE_URL, apiKey: KEY, includeUsage: true, supportsStructuredOutputs: true });
const openResponses = createOpenResponses({ name: 'mock', url: BASE_URL + '/responses', apiKey: KEY });

const MODELS = {
  responses: openai.responses(MODEL),
  chat: openai.chat(MODEL),
  compatible: compatible.chatModel(MODEL),
  'open-responses': openResponses(MODEL),
};
const REASONING = { // how each provider asks for effort
  responses: { openai: { reasoningEffort: 'low', reasoningSummary: 'auto', forceReasoning: true } },
  chat: { openai: { reasoningEffort: 'low', forceReasoning: true } },
  compatible: { mock: { reasoningEffort: 'low' } },
  'open-responses': { mock: { reasoningEffort: 'low', reasoningSummary: 'auto' } },
};

const Plan = z.object({
  goal: z.string().min(1),
  kind: z.enum(['walk', 'sail']),
  steps: z.array(z.object({ title: z.string(), minutes: z.number().int().min(1).max(90) })).min(1).max(3),
  budget: z.number().nullable(),
});
const needPlan = (plan) => assert.deepEqual(Plan.parse(plan), plan);

function weatherTool() {
  const weather = new Weather();
  const get_weather = tool({
    description: 'Tell the weather of a city.',
    inputSchema: z.object({ city: z.enum(['Oslo', 'Bergen']), days: z.number().int().min(1).max(5) }),
    execute: weather.answer,
  });
  return { weather, tools: { get_weather } };
}

// onError: the SDK would print it and end the stream as if all were well
const failing = { onError: ({ error }) => { throw error; } };

for (const [name, model] of Object.entries(MODELS)) {
  const more = { model, maxRetries: 0 };

  check(name + ': generateText: text, finish reason, usage, system and sampling fields', async () => {
    const { text, finishReason, usage } = await generateText({
      ...more, instructions: 'Be short.', prompt: QUESTION, temperature: 0.5, topP: 0.9 });
    needText(text);
    assert.equal(finishReason, 'stop');
    assert.equal(usage.outputTokens, 24);
    assert.equal(usage.totalTokens, usage.inputTokens + 24);
  });

  check(name + ': a limit ends as length', async () => {
    const { finishReason, usage } = await generateText({ ...more, prompt: QUESTION, maxOutputTokens: 16 });
    assert.equal(finishReason, 'length');
    assert.equal(usage.outputTokens, 16);
  });

  check(name + ': streamText: the deltas are the text; usage', async () => {
    const result = streamText({ ...more, ...failing, prompt: QUESTION });
    const deltas = await collect(result.textStream);
    assert.ok(deltas.length > 5, 'deltas: ' + deltas.length);
    needText(deltas.join(''));
    assert.equal(await result.text, deltas.join(''));
    assert.equal(await result.finishReason, 'stop');
    assert.equal((await result.usage).outputTokens, 24);
  });

  check(name + ': generateText with a tool: called with input that fits, then text', async () => {
    const { weather, tools } = weatherTool();
    const result = await generateText({ ...more, tools, prompt: WEATHER_QUESTION, stopWhen: isStepCount(5) });
    weather.needCalls();
    assert.deepEqual(result.steps.map((step) => step.finishReason), ['tool-calls', 'stop']);
    assert.equal(result.steps[0].toolResults[0].output, '18 degrees');
    assert.equal(result.steps[0].toolResults[0].toolCallId, result.steps[0].toolCalls[0].toolCallId);
    needText(result.text);
  });

  check(name + ': streamText with a tool: the same, its input in pieces', async () => {
    const { weather, tools } = weatherTool();
    const result = streamText({ ...more, ...failing, tools, prompt: WEATHER_QUESTION, stopWhen: isStepCount(5) });
    const parts = await collect(result.fullStream);
    weather.needCalls();
    const pieces = parts.filter((part) => part.type === 'tool-input-delta').map((part) => part.delta);
    const call = parts.find((part) => part.type === 'tool-call');
    if (name === 'open-responses') assert.equal(pieces.length, 0); // it takes calls from output_item.done alone
    else {
      assert.ok(pieces.length > 2, 'pieces of the input: ' + pieces.length);
      assert.deepEqual(JSON.parse(pieces.join('')), call.input);
    }
    assert.deepEqual(call.input, weather.calls[0]);
    const texts = parts.filter((part) => part.type === 'text-delta').map((part) => part.text);
    needText(texts.join(''));
    assert.equal(await result.text, texts.join(''));
    assert.deepEqual((await result.steps).map((step) => step.finishReason), ['tool-calls', 'stop']);
  });

  check(name + ': toolChoice required, a named tool, none', async () => {
    for (const toolChoice of ['required', { type: 'tool', toolName: 'get_weather' }]) {
      const { weather, tools } = weatherTool();
      const result = await generateText({ ...more, tools, toolChoice, prompt: QUESTION });
      weather.needCalls();
      assert.equal(result.toolCalls[0].toolName, 'get_weather');
    }
    const { weather, tools } = weatherTool();
    needText((await generateText({ ...more, tools, toolChoice: 'none', prompt: WEATHER_QUESTION })).text);
    weather.needCalls(0);
  });

  check(name + ': the messages of a run with a tool go back as input', async () => {
    const { weather, tools } = weatherTool();
    const question = { role: 'user', content: WEATHER_QUESTION };
    const first = await generateText({ ...more, tools, messages: [question], stopWhen: isStepCount(5) });
    const messages = [question, ...first.responseMessages, { role: 'user', content: 'Thank you.' }];
    const second = await generateText({ ...more, tools, messages });
    needText(second.text);
    weather.needCalls();
    assert.ok(second.usage.inputTokens > first.steps[0].usage.inputTokens, 'the turns are not counted');
  });

  check(name + ': generateObject: an object, an array, an enum value', async () => {
    const { object, finishReason } = await generateObject({ ...more, schema: Plan, prompt: QUESTION });
    needPlan(object);
    assert.equal(finishReason, 'stop');
    const list = await generateObject({
      ...more, output: 'array', schema: z.object({ n: z.number().int() }), prompt: QUESTION });
    for (const one of list.object) assert.ok(Number.isInteger(one.n));
    const picked = await generateObject({ ...more, output: 'enum', enum: ['red', 'green'], prompt: QUESTION });
    assert.ok(['red', 'green'].includes(picked.object), 'the enum value is ' + picked.object);
  });

  check(name + ': generateObject without a schema: some object', async () => {
    const { object } = await generateObject({ ...more, output: 'no-schema', prompt: 'Answer in JSON.' });
    assert.equal(typeof object, 'object');
  });

  check(name + ': streamObject: the last partial object is the object', async () => {
    const result = streamObject({ ...more, ...failing, schema: Plan, prompt: QUESTION });
    const partial = await collect(result.partialObjectStream);
    const object = await result.object;
    needPlan(object);
    assert.deepEqual(partial.at(-1), object);
    assert.ok(partial.length > 2, 'partial objects: ' + partial.length);
  });

  check(name + ': tools and Output.object together: the tool first, then the object', async () => {
    const { weather, tools } = weatherTool();
    const output = Output.object({ schema: Plan });
    const result = await generateText({ ...more, tools, output, prompt: WEATHER_QUESTION, stopWhen: isStepCount(5) });
    weather.needCalls();
    needPlan(result.output);
  });

  check(name + ': a reasoning effort, plain and streamed, also in a tool loop', async () => {
    const { weather, tools } = weatherTool();
    const asked = {
      ...more, tools, prompt: WEATHER_QUESTION, stopWhen: isStepCount(5), providerOptions: REASONING[name] };
    const result = await generateText(asked);
    weather.needCalls();
    needText(result.text);
    const spent = result.steps[0].usage.outputTokenDetails.reasoningTokens;
    assert.ok(spent >= 32, 'reasoning tokens: ' + spent);
    if (name.endsWith('responses')) needText(result.steps[0].reasoningText);
    const streamed = streamText({ ...asked, ...failing });
    needText((await collect(streamed.textStream)).join(''));
    weather.needCalls(2);
  });
}

check('responses: previousResponseId carries the conversation', async () => {
  const more = { model: MODELS.responses, maxRetries: 0 };
  const first = await generateText({ ...more, prompt: QUESTION });
  const previousResponseId = first.providerMetadata.openai.responseId;
  const providerOptions = { openai: { previousResponseId } };
  const second = await generateText({ ...more, prompt: 'And then?', providerOptions });
  needText(second.text);
  assert.ok(second.usage.inputTokens > first.usage.inputTokens + 24, 'the first turn is not counted');
});

check('responses: a custom tool is called with text; a hosted tool is accepted and never called', async () => {
  const more = { model: MODELS.responses, maxRetries: 0, prompt: QUESTION };
  const note = openai.tools.customTool({ name: 'note', description: 'Write it down.', format: { type: 'text' } });
  const called = await generateText({ ...more, tools: { note }, toolChoice: 'required' });
  assert.deepEqual(called.toolCalls.map((call) => call.toolName), ['note']);
  needText(called.toolCalls[0].input);
  const answer = await generateText({ ...more, tools: { web_search: openai.tools.webSearch({}) } });
  assert.deepEqual(answer.toolCalls, []);
  needText(answer.text);
});

// ---- the provider's built-in tools ----

const MORE = { model: MODELS.responses, maxRetries: 0, prompt: QUESTION };
const HOSTED = { // what the service runs itself
  web_search: openai.tools.webSearch({}),
  file_search: openai.tools.fileSearch({ vectorStoreIds: ['vs_1'] }),
  code_interpreter: openai.tools.codeInterpreter({}),
  image_generation: openai.tools.imageGeneration({ partialImages: 2 }),
  mcp: openai.tools.mcp({ serverLabel: 'notes', serverUrl: 'https://example.com/mcp', requireApproval: 'never' }),
};
const CALL_NAMES = { mcp: /^mcp\.(search|read_note)$/ }; // the SDK names a server's own tool

function needHosted(name, calls, results) {
  assert.equal(calls.length, 1, 'calls: ' + JSON.stringify(calls));
  assert.match(calls[0].toolName, CALL_NAMES[name] ?? new RegExp('^' + name + '$'));
  assert.equal(calls[0].providerExecuted, true);
  assert.equal(new Set(results.map((result) => result.toolCallId)).size, 1, 'results: ' + JSON.stringify(results));
  const { toolCallId, output } = results.at(-1); // partial images come as results before it
  assert.equal(toolCallId, calls[0].toolCallId);
  if (name === 'web_search') {
    assert.deepEqual(output.action, { type: 'search', query: QUESTION, queries: [QUESTION] });
    assert.ok(output.sources.every((source) => source.url.startsWith('https://example.com/')));
  }
  if (name === 'file_search') assert.equal(output.results[0].fileId.slice(0, 5), 'file-');
  if (name === 'code_interpreter') assert.match(output.outputs[0].logs, /^\d+\n$/);
  if (name === 'image_generation') assert.equal(Buffer.from(output.result, 'base64').toString('latin1', 1, 4), 'PNG');
  if (name === 'mcp') {
    assert.equal(output.serverLabel, 'notes');
    assert.deepEqual(JSON.parse(output.arguments), { query: QUESTION });
    needText(output.output);
  }
}

const INCLUDED = { openai: { include: ['file_search_call.results'] } };

for (const [name, hosted] of Object.entries(HOSTED)) {
  const asked = {
    ...MORE, tools: { [name]: hosted }, providerOptions: INCLUDED,
    // a call by MCP has its server's tool's name, in which the SDK does not find the one that was chosen
    toolChoice: name === 'mcp' ? 'required' : { type: 'tool', toolName: name } };

  check('built-in ' + name + ': generateText: its call, its result, text', async () => {
    const result = await generateText(asked);
    needHosted(name, result.toolCalls, result.toolResults);
    needText(result.text);
    assert.equal(result.finishReason, 'stop');
    if (name === 'web_search') {
      assert.ok(result.sources.length > 0, 'no sources');
      for (const source of result.sources) assert.match(source.url, /^https:\/\/example\.com\//);
    }
    if (name === 'file_search') assert.ok(result.sources.length > 0, 'no sources');
  });

  check('built-in ' + name + ': streamText: the same in parts, and it can go on', async () => {
    const result = streamText({ ...asked, ...failing });
    const parts = await collect(result.fullStream);
    const of = (type) => parts.filter((part) => part.type === type);
    needHosted(name, of('tool-call'), of('tool-result'));
    needText(of('text-delta').map((part) => part.text).join(''));
    assert.equal(of('tool-result').length, name === 'image_generation' ? 3 : 1);
    if (name === 'web_search') assert.deepEqual(of('source').map((part) => part.url),
      (await result.sources).map((source) => source.url));
    const messages = await result.responseMessages;
    const next = await generateText({ ...MORE, prompt: undefined, tools: { [name]: hosted }, messages: [
      { role: 'user', content: QUESTION }, ...messages, { role: 'user', content: 'Thank you.' }] });
    needText(next.text);
    assert.deepEqual(next.toolCalls, []);
  });
}

check('built-in mcp with approval: asked for, approved, run; denied, not run', async () => {
  const tools = { mcp: openai.tools.mcp({
    serverLabel: 'notes', serverUrl: 'https://example.com/mcp', requireApproval: 'always' }) };
  const question = { role: 'user', content: QUESTION };
  const first = await generateText({
    ...MORE, prompt: undefined, messages: [question], tools, toolChoice: 'required' });
  const asked = first.content.filter((part) => part.type === 'tool-approval-request');
  assert.equal(asked.length, 1, 'approval requests: ' + JSON.stringify(first.content));
  for (const approved of [true, false]) {
    const answer = { role: 'tool', content: [
      { type: 'tool-approval-response', approvalId: asked[0].approvalId, approved, providerExecuted: true }] };
    const second = await generateText({
      ...MORE, prompt: undefined, tools, messages: [question, ...first.responseMessages, answer] });
    needText(second.text);
    const ran = second.content.filter((part) => part.type === 'tool-result' && part.providerExecuted);
    assert.equal(ran.length, approved ? 1 : 0, JSON.stringify(second.content));
    if (approved) needText(ran[0].output.output);
  }
});

for (const [name, built] of [
  ['local_shell', openai.tools.localShell({ execute: async ({ action }) => ({ output: action.command[1] }) })],
  ['shell', openai.tools.shell({ execute: async ({ action }) => ({ output: action.commands.map((command) => ({
    stdout: command.slice(5), stderr: '', outcome: { type: 'exit', exitCode: 0 } })) }) })],
  ['apply_patch', openai.tools.applyPatch({ execute: async ({ operation }) => ({
    status: 'completed', output: operation.path }) })],
]) {
  check('built-in ' + name + ': called, executed here, then text', async () => {
    const tools = { [name]: built };
    const toolChoice = 'required'; // the SDK has no other way to name a shell
    for (const streamed of [false, true]) {
      const asked = { ...MORE, tools, prepareStep: ({ stepNumber }) => ({ toolChoice: stepNumber ? 'auto' : toolChoice }),
        stopWhen: isStepCount(3) };
      let steps;
      if (streamed) {
        const result = streamText({ ...asked, ...failing });
        await collect(result.fullStream);
        steps = await result.steps;
      } else steps = (await generateText(asked)).steps;
      // a call of these waits like any other, but only apply_patch counts as a tool call in the SDK's finish reason
      assert.deepEqual(steps.map((step) => step.finishReason), [name === 'apply_patch' ? 'tool-calls' : 'stop', 'stop']);
      assert.equal(steps[0].toolCalls[0].toolName, name);
      assert.equal(steps[0].toolResults.length, 1);
      needText(steps[1].text);
    }
  });
}

check('every provider takes an image and a file beside the text', async () => {
  const content = [
    { type: 'text', text: QUESTION },
    { type: 'file', data: new Uint8Array([137, 80, 78, 71, 13, 10, 26, 10]), mediaType: 'image/png' },
    { type: 'file', data: new Uint8Array([37, 80, 68, 70]), mediaType: 'application/pdf', filename: 'a.pdf' },
  ];
  for (const model of Object.values(MODELS)) {
    needText((await generateText({ model, maxRetries: 0, messages: [{ role: 'user', content }] })).text);
  }
});

for (const [name, model] of [['openai', openai.completion(MODEL)], ['compatible', compatible.completionModel(MODEL)]]) {
  check(name + ' completion: generateText and streamText', async () => {
    const asked = { model, maxRetries: 0, prompt: 'Once upon a time', maxOutputTokens: 12 };
    const { text, usage } = await generateText(asked);
    needText(text);
    assert.equal(usage.outputTokens, 12);
    const result = streamText({ ...asked, ...failing });
    const deltas = await collect(result.textStream);
    needText(deltas.join(''));
    assert.equal(await result.text, deltas.join(''));
  });
}

for (const [name, model] of [['openai', openai.embedding(MODEL)], ['compatible', compatible.embeddingModel(MODEL)]]) {
  check(name + ' embeddings: one and many, unit length', async () => {
    const providerOptions = { openai: { dimensions: 32 }, mock: { dimensions: 32 } };
    const one = await embed({ model, value: 'the sea', providerOptions, maxRetries: 0 });
    const many = await embedMany({ model, values: ['the sea', 'the ship'], providerOptions, maxRetries: 0 });
    assert.deepEqual(many.embeddings[0], one.embedding);
    for (const vector of many.embeddings) {
      assert.equal(vector.length, 32);
      assert.ok(Math.abs(vector.reduce((sum, x) => sum + x * x, 0) - 1) < 1e-4, 'not of unit length');
    }
  });
}

await runAll('ai', '@ai-sdk/openai', '@ai-sdk/openai-compatible', '@ai-sdk/open-responses');
