// The official openai Node SDK as a client.
//
//     node clients_node.mjs SERVER [PYTHON]
//
// Run from a folder where package.json was installed (modules are looked up beside this file, so .ci/run copies both).
// Starts its own servers (PYTHON SERVER) on ports of their own choice and ends them. Prints one line per check and,
// last, "N passed, M failed"; the exit status is 1 when any failed.

import assert from 'node:assert/strict';
import { spawn } from 'node:child_process';
import { createServer } from 'node:net';
import OpenAI from 'openai';
import { VERSION } from 'openai/version';

const [, , serverPath = 'server.py', python = 'python3'] = process.argv;
const MODEL = 'mock-model';
const QUESTION = 'What does the sea say to the ship?';
const ASK = [{ role: 'user', content: QUESTION }];
const WAIT_MS = 20000;
const checks = [];
const servers = [];

const check = (title, run) => checks.push({ title, run });

// ---- servers -----------------------------------------------------------------------------------

async function startServer(...flags) {
  const child = spawn(python, [serverPath, '--port', '0', ...flags], { stdio: ['ignore', 'ignore', 'pipe'] });
  const server = { child, log: '', url: null };
  servers.push(server);
  child.stderr.setEncoding('utf8');
  server.ended = new Promise((resolve) => child.once('exit', resolve).once('error', resolve));
  await new Promise((resolve, reject) => {
    const timer = setTimeout(() => reject(new Error('the server does not start: ' + server.log)), WAIT_MS);
    child.stderr.on('data', (text) => {
      server.log += text;
      const found = /http:\/\/127\.0\.0\.1:\d+/.exec(server.log);
      if (found && !server.url) {
        server.url = found[0];
        clearTimeout(timer);
        resolve();
      }
    });
    child.once('error', reject);
    child.once('exit', () => reject(new Error('the server ended at once: ' + server.log)));
  });
  return server;
}

async function stopServer({ child, ended, log }) {
  child.kill('SIGTERM');
  const timer = setTimeout(() => child.kill('SIGKILL'), WAIT_MS);
  const status = await ended;
  clearTimeout(timer);
  assert.equal(status, 0, 'exit status');
  assert.doesNotMatch(log, /Traceback|unexpected error/);
}

const connect = (server, more = {}) =>
  new OpenAI({ baseURL: server.url + '/v1', apiKey: 'sk-right', maxRetries: 0, timeout: WAIT_MS, ...more });

async function refused(kind, call, wanted = {}) {
  let error;
  try {
    await call();
  } catch (caught) {
    error = caught;
  }
  assert.ok(error, 'no error, where ' + kind.name + ' was due');
  assert.equal(error.constructor, kind, String(error.stack));
  for (const [key, value] of Object.entries(wanted)) assert.equal(error[key], value, key);
  if (error.status) assert.match(error.requestID, /^req_/);
  return error;
}

async function collect(iterable) {
  const found = [];
  for await (const value of iterable) found.push(value);
  return found;
}

// ---- chat --------------------------------------------------------------------------------------

let main, client;
const exactly = (tokens) => ({ max_completion_tokens: tokens, ignore_eos: true });

check('chat plain: text, finish reason, usage', async () => {
  const answer = await client.chat.completions.create({ model: MODEL, messages: ASK });
  assert.equal(answer.object, 'chat.completion');
  assert.match(answer.id, /^chatcmpl-/);
  assert.equal(answer.model, MODEL);
  assert.equal(answer.choices.length, 1);
  assert.equal(answer.choices[0].finish_reason, 'stop');
  assert.equal(answer.choices[0].message.role, 'assistant');
  assert.ok(answer.choices[0].message.content.trim());
  assert.equal(answer.usage.completion_tokens, 24);
  assert.equal(answer.usage.total_tokens, answer.usage.prompt_tokens + 24);
  assert.match(answer._request_id, /^req_/);
});

check('chat streamed: chunks joined equal the plain text of the same seed; usage last', async () => {
  const body = { model: MODEL, messages: ASK, seed: 7, ...exactly(12) };
  const plain = await client.chat.completions.create(body);
  const stream = await client.chat.completions.create({ ...body, stream: true, stream_options: { include_usage: true } });
  const chunks = await collect(stream);
  const texts = chunks.map((chunk) => chunk.choices[0]?.delta.content ?? '');
  assert.equal(texts.join(''), plain.choices[0].message.content);
  assert.equal(chunks[0].choices[0].delta.role, 'assistant');
  assert.equal(chunks.at(-2).choices[0].finish_reason, 'length');
  assert.deepEqual(chunks.at(-1).choices, []);
  assert.deepEqual(chunks.at(-1).usage, plain.usage);
  assert.equal(plain.usage.completion_tokens, 12);
  assert.equal(new Set(chunks.map((chunk) => chunk.id)).size, 1);
});

check('chat n=2: both choices streamed as in the plain answer', async () => {
  const body = { model: MODEL, messages: ASK, n: 2, seed: 3, ...exactly(8) };
  const plain = await client.chat.completions.create(body);
  const texts = ['', ''];
  for await (const chunk of await client.chat.completions.create({ ...body, stream: true })) {
    for (const choice of chunk.choices) texts[choice.index] += choice.delta.content ?? '';
  }
  assert.deepEqual(texts, plain.choices.map((choice) => choice.message.content));
  assert.notEqual(texts[0], texts[1]);
});

check('chat.completions.stream() helper: final content, completion and usage', async () => {
  const body = { model: MODEL, messages: ASK, seed: 5, stream_options: { include_usage: true } };
  const stream = client.chat.completions.stream(body);
  let joined = '';
  stream.on('content', (delta) => (joined += delta));
  const final = await stream.finalChatCompletion();
  assert.equal(await stream.finalContent(), joined);
  assert.ok(joined.trim());
  assert.equal(final.choices[0].message.content, joined);
  assert.equal(final.choices[0].finish_reason, 'stop');
  assert.equal((await stream.totalUsage()).completion_tokens, 24);
});

// ---- responses ---------------------------------------------------------------------------------

const respond = (more = {}) =>
  client.responses.create({ model: MODEL, input: QUESTION, max_output_tokens: 16, ignore_eos: true, ...more });

check('responses plain: object, output_text, usage; a limit makes it incomplete', async () => {
  const answer = await client.responses.create({ model: MODEL, input: QUESTION });
  assert.equal(answer.object, 'response');
  assert.equal(answer.status, 'completed');
  assert.match(answer.id, /^resp_/);
  assert.ok(answer.output_text.trim());
  assert.equal(answer.output_text, answer.output[0].content[0].text);
  assert.equal(answer.usage.output_tokens, 24);
  const short = await respond();
  assert.equal(short.status, 'incomplete');
  assert.equal(short.incomplete_details.reason, 'max_output_tokens');
  assert.equal(short.usage.output_tokens, 16);
});

check('responses streamed: sequence numbers, one text in deltas, done event and final object', async () => {
  const events = await collect(await client.responses.create({ model: MODEL, input: QUESTION, stream: true }));
  assert.deepEqual(events.map((event) => event.sequence_number), events.map((_, index) => index));
  assert.deepEqual(events.slice(0, 4).map((event) => event.type), [
    'response.created', 'response.in_progress', 'response.output_item.added', 'response.content_part.added']);
  const final = events.at(-1);
  assert.equal(final.type, 'response.completed');
  const deltas = events.filter((event) => event.type === 'response.output_text.delta');
  const text = deltas.map((event) => event.delta).join('');
  assert.ok(text.trim());
  assert.equal(events.find((event) => event.type === 'response.output_text.done').text, text);
  assert.equal(final.response.output[0].content[0].text, text);
  const { output_text, ...stored } = await client.responses.retrieve(final.response.id);
  assert.equal(output_text, text);
  delete stored._request_id;
  assert.deepEqual(stored, JSON.parse(JSON.stringify(final.response)));
});

check('responses.stream() helper: snapshots grow to the final response', async () => {
  const stream = client.responses.stream({ model: MODEL, input: QUESTION });
  const kinds = [];
  let snapshot;
  stream.on('event', (event) => kinds.push(event.type));
  stream.on('response.output_text.delta', (event) => (snapshot = event.snapshot));
  const final = await stream.finalResponse();
  assert.equal(kinds[0], 'response.created');
  assert.equal(kinds.at(-1), 'response.completed');
  assert.equal(final.status, 'completed');
  assert.equal(final.output_text, snapshot);
  assert.ok(snapshot.trim());
});

async function fiveTurns(turn) {
  const wanted = [];
  let previous;
  for (let number = 0; number < 5; number += 1) {
    const input = 'Turn ' + number;
    const response = await turn({ input, previous_response_id: previous?.id });
    assert.equal(response.previous_response_id, previous?.id ?? null);
    if (previous) assert.ok(response.usage.input_tokens > previous.usage.input_tokens);
    const items = await collect(client.responses.inputItems.list(response.id, { order: 'asc', limit: 3 }));
    assert.deepEqual(items.map((item) => item.content[0].text), [...wanted, input]);
    wanted.push(input, response.output[0].content[0].text);
    previous = response;
  }
}

check('conversation of five turns by previous_response_id, plain, its items paged by 3', () => fiveTurns(respond));

check('conversation of five turns by previous_response_id, streamed', () =>
  fiveTurns(async (more) => (await collect(await respond({ ...more, stream: true }))).at(-1).response));

check('conversation of five turns by previous_response_id, stream helper', () =>
  fiveTurns((more) => client.responses.stream({ model: MODEL, ...more }).finalResponse()));

check('responses: delete, then unknown to retrieve and to the next turn; store: false as well', async () => {
  const first = await respond();
  await client.responses.delete(first.id);
  const unstored = await respond({ store: false });
  for (const { id } of [first, unstored]) {
    await refused(OpenAI.NotFoundError, () => client.responses.retrieve(id), { status: 404 });
    await refused(OpenAI.BadRequestError, () => respond({ previous_response_id: id }), {
      status: 400, code: 'previous_response_not_found', param: 'previous_response_id' });
  }
});

// ---- models and errors -------------------------------------------------------------------------

check('models: list and retrieve', async () => {
  const listed = await collect(client.models.list());
  assert.deepEqual(listed.map((model) => model.id), [MODEL]);
  const one = await client.models.retrieve(MODEL);
  assert.equal(one.id, MODEL);
  assert.equal(one.created, listed[0].created);
  await refused(OpenAI.NotFoundError, () => client.models.retrieve('none'), { status: 404, code: 'model_not_found' });
});

check('BadRequestError: unknown previous_response_id streamed and by the helper; bad values', async () => {
  const wanted = { status: 400, code: 'previous_response_not_found', type: 'invalid_request_error' };
  const unknown = { previous_response_id: 'resp_' + '0'.repeat(32) };
  await refused(OpenAI.BadRequestError, () => respond({ ...unknown, stream: true }), wanted);
  await refused(
    OpenAI.BadRequestError,
    () => client.responses.stream({ model: MODEL, input: QUESTION, ...unknown }).finalResponse(),
    wanted);
  await refused(
    OpenAI.BadRequestError,
    () => client.chat.completions.create({ model: MODEL, messages: ASK, temperature: 9 }),
    { status: 400, code: 'decimal_above_max_value', param: 'temperature' });
});

check('AuthenticationError: wrong key; the right one is served', async () => {
  const locked = await startServer('--api-key', 'sk-right', '--ttft-ms', '0', '--itl-ms', '0');
  const wrong = connect(locked, { apiKey: 'sk-wrong' });
  const body = { model: MODEL, messages: ASK, max_completion_tokens: 4 };
  await refused(OpenAI.AuthenticationError, () => wrong.models.list(), { status: 401, code: 'invalid_api_key' });
  await refused(OpenAI.AuthenticationError, () => wrong.chat.completions.create({ ...body, stream: true }), {
    status: 401 });
  assert.equal((await connect(locked).chat.completions.create(body)).usage.completion_tokens, 4);
});

check('APIConnectionTimeoutError: an answer later than the client\'s patience; APIConnectionError: nobody', async () => {
  const slow = await startServer('--ttft-ms', '800', '--itl-ms', '1');
  const body = { model: MODEL, messages: ASK, max_completion_tokens: 4 };
  await refused(OpenAI.APIConnectionTimeoutError, () => connect(slow, { timeout: 250 }).chat.completions.create(body));
  assert.equal((await connect(slow).chat.completions.create(body)).usage.completion_tokens, 4);
  const port = await new Promise((resolve) => {
    const taken = createServer().listen(0, '127.0.0.1', () => {
      const { port } = taken.address();
      taken.close(() => resolve(port));
    });
  });
  await refused(OpenAI.APIConnectionError, () => connect({ url: 'http://127.0.0.1:' + port }).models.list());
});

check('a stream left early: the client goes on; the response is not stored', async () => {
  const stream = await respond({ stream: true, max_output_tokens: 2000 });
  let id;
  for await (const event of stream) {
    if (event.type === 'response.created') id = event.response.id;
    if (event.type === 'response.output_text.delta') break;
  }
  assert.match(id, /^resp_/);
  assert.equal((await respond()).usage.output_tokens, 16);
  await refused(OpenAI.NotFoundError, () => client.responses.retrieve(id), { status: 404 });
  await new Promise((resolve) => setTimeout(resolve, 2500)); // 2,000 tokens at 1 ms: the time it would have taken
  await refused(OpenAI.NotFoundError, () => client.responses.retrieve(id), { status: 404 });
});

check('20 streams at once: each has its own text and all its tokens', async () => {
  const texts = await Promise.all(Array.from({ length: 20 }, async (_, number) => {
    const events = await collect(await respond({ input: 'Stream ' + number, max_output_tokens: 30, stream: true }));
    assert.equal(events.at(-1).response.usage.output_tokens, 30);
    return events.at(-1).response.output[0].content[0].text;
  }));
  assert.equal(new Set(texts).size, 20);
});

// ---- run ---------------------------------------------------------------------------------------

let passed = 0;
let failed = 0;

async function tell(title, run) {
  try {
    await run();
    passed += 1;
    console.log('ok   ' + title);
  } catch (error) {
    failed += 1;
    console.log('FAIL ' + title + ' - ' + error.stack);
  }
}

console.log('openai ' + VERSION + ' on Node ' + process.version);
await tell('the main server starts', async () => {
  main = await startServer('--ttft-ms', '5', '--itl-ms', '1', '--output-tokens', '24');
  client = connect(main);
});
if (main) for (const { title, run } of checks) await tell(title, run);
for (const [index, server] of servers.entries()) {
  await tell('server ' + (index + 1) + ' ends with status 0 on SIGTERM and has logged no exception', () =>
    stopServer(server));
}
console.log(passed + ' passed, ' + failed + ' failed');
process.exit(failed ? 1 : 0);
