// A program that uses the Vercel AI SDK, as the process that test_ai_sdk.py tests: a line of JSON in, a line out.
//
//   node ai_sdk_client.mjs          {"do": "generate", "api": "chat", ...} -> {"text": ...} or {"error": name, ...}
//
// It knows the environment's OPENAI_BASE_URL and OPENAI_API_KEY alone. "stop" aborts what runs.

import readline from 'node:readline';
import { openai } from '@ai-sdk/openai';
import { generateObject, generateText, isStepCount, streamText, tool } from 'ai';
import { z } from 'zod';

globalThis.AI_SDK_LOG_WARNINGS = false;
process.noDeprecation = true;

let stop = new AbortController();
let called = [];

const tools = {
  get_weather: tool({
    description: 'Tell the weather of a city.',
    inputSchema: z.object({ city: z.string() }),
    execute: ({ city }) => {
      called.push(city);
      return 'fair in ' + city;
    },
  }),
};

// What a program can see of an error, with the one inside a RetryError.
function seen(error) {
  const inner = error.lastError;
  return {
    error: error.name, reason: error.reason, status: error.statusCode, retryable: error.isRetryable,
    inner: inner && { error: inner.name, status: inner.statusCode },
  };
}

const ACTIONS = {
  async generate(common) {
    const result = await generateText({ ...common, tools, stopWhen: isStepCount(3) });
    return { text: result.text, steps: result.steps.length, finish: result.finishReason };
  },
  async object(common) {
    const { object } = await generateObject({ ...common, schema: z.object({ name: z.string(), people: z.number() }) });
    return { object };
  },
  async stream(common) {
    const errors = [];
    const result = streamText({ ...common, onError: ({ error }) => errors.push(error) });
    const parts = [];
    try {
      for await (const part of result.fullStream) parts.push(part);
    } catch (error) { // some errors come both ways
      errors.push(error);
    }
    const text = parts.filter((part) => part.type === 'text-delta').map((part) => part.text).join('');
    const told = { text, aborted: parts.some((part) => part.type === 'abort') };
    if (errors.length) return { ...seen(errors[0]), ...told };
    return told.aborted ? told : { ...told, finish: await result.finishReason };
  },
};

async function act({ do: action, api, retries = 0, prompt = 'What is the weather?' }) {
  stop = new AbortController();
  called = [];
  const common = {
    model: api === 'chat' ? openai.chat('gpt-5') : openai.responses('gpt-5'), maxRetries: retries, prompt,
    abortSignal: stop.signal,
  };
  try {
    return { ...await ACTIONS[action](common), called };
  } catch (error) {
    return { ...seen(error), called };
  }
}

for await (const line of readline.createInterface({ input: process.stdin })) {
  const asked = JSON.parse(line);
  if (asked.do === 'stop') stop.abort();
  else act(asked).then((told) => console.log(JSON.stringify(told)));
}
