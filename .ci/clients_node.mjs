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

// ---- responses: background, resume, cancel -----------------------------------------------------

const LONG_TOKENS = 800; // 0.8 s on the main server
const LONG = { max_output_tokens: LONG_TOKENS, background: true };
const plainly = ({ _request_id, ...object }) => JSON.parse(JSON.stringify(object));

async function poll(response) {
  const deadline = Date.now() + WAIT_MS;
  while (['queued', 'in_progress'].includes(response.status)) {
    assert.ok(Date.now() < deadline, 'it is still ' + response.status);
    await new Promise((resolve) => setTimeout(resolve, 20));
    response = await client.responses.retrieve(response.id);
  }
  return response;
}

// The first events of a stream, which is then cut off.
async function leave(stream, count) {
  const events = [];
  for await (const event of stream) {
    events.push(event);
    if (events.length === count) break;
  }
  return events;
}

const resume = (id, more = {}) => client.responses.retrieve(id, { stream: true, ...more });

check('background plain: queued, polled to its end; the next turn is given what it said', async () => {
  const queued = await respond(LONG);
  assert.equal(queued.status, 'queued');
  assert.equal(queued.output_text, '');
  const done = await poll(queued);
  assert.equal(done.status, 'incomplete');
  assert.equal(done.usage.output_tokens, LONG_TOKENS);
  const next = await respond({ previous_response_id: queued.id });
  const items = await collect(client.responses.inputItems.list(next.id, { order: 'asc' }));
  assert.equal(items[1].content[0].text, done.output_text);
});

check('background streamed, cut off thrice, resumed by starting_after: nothing lost, one final object', async () => {
  const events = await leave(await respond({ ...LONG, stream: true }), 10);
  assert.deepEqual(events.slice(0, 3).map((event) => event.type), [
    'response.created', 'response.queued', 'response.in_progress']);
  const { id } = events[0].response;
  for (const count of [1, 40]) {
    events.push(...await leave(await resume(id, { starting_after: events.at(-1).sequence_number }), count));
  }
  assert.equal((await client.responses.retrieve(id)).status, 'in_progress');
  events.push(...await collect(await resume(id, { starting_after: events.at(-1).sequence_number })));
  assert.deepEqual(events.map((event) => event.sequence_number), events.map((_, index) => index));
  const final = events.at(-1);
  assert.equal(final.type, 'response.incomplete');
  assert.equal(final.response.usage.output_tokens, LONG_TOKENS);
  const { output_text, ...stored } = plainly(await client.responses.retrieve(id));
  assert.deepEqual(stored, plainly(final.response));
  const deltas = events.filter((event) => event.type === 'response.output_text.delta');
  assert.equal(deltas.map((event) => event.delta).join(''), output_text);
  assert.deepEqual(await collect(await resume(id)), events);
  assert.deepEqual(await collect(await resume(id, { starting_after: events.at(-1).sequence_number })), []);
});

check('responses.stream() over a background response: left, resumed by response_id and starting_after', async () => {
  const first = client.responses.stream({ model: MODEL, input: QUESTION, background: true, min_tokens: LONG_TOKENS });
  let left;
  try {
    left = await leave(first, 20); // the helper's iterator aborts its request when it is left
  } finally {
    first.abort();
  }
  const { id } = left[0].response;
  const rest = [];
  const second = client.responses.stream({ response_id: id, starting_after: left.at(-1).sequence_number });
  second.on('event', (event) => rest.push(event));
  const final = await second.finalResponse();
  assert.equal(final.status, 'completed');
  assert.ok(final.usage.output_tokens >= LONG_TOKENS);
  const events = [...left, ...rest];
  assert.deepEqual(events.map((event) => event.sequence_number), events.map((_, index) => index));
  const deltas = events.filter((event) => event.type === 'response.output_text.delta');
  assert.equal(deltas.map((event) => event.delta).join(''), final.output_text);
  assert.equal((await client.responses.retrieve(id)).output_text, final.output_text);
});

check('eight watchers of one background response see the same events', async () => {
  const stream = await respond({ ...LONG, stream: true });
  const events = [];
  let watchers;
  for await (const event of stream) {
    events.push(event);
    if (events.length === 1) {
      const { id } = event.response;
      watchers = Promise.all(Array.from({ length: 8 }, async (_, number) =>
        collect(await resume(id, { starting_after: number * 50 }))));
    }
  }
  assert.equal(events.at(-1).response.usage.output_tokens, LONG_TOKENS);
  for (const [number, seen] of (await watchers).entries()) assert.deepEqual(seen, events.slice(number * 50 + 1));
});

check('cancel in mid-generation: partial output kept, twice the same; its stream just ends', async () => {
  const stream = await respond({ ...LONG, max_output_tokens: 4000, stream: true });
  const events = [];
  let cancelled;
  for await (const event of stream) {
    events.push(event);
    if (events.length === 40) cancelled = await client.responses.cancel(events[0].response.id);
  }
  assert.equal(cancelled.status, 'cancelled');
  assert.equal(cancelled.usage, null);
  const text = cancelled.output[0].content[0].text;
  const deltas = events.filter((event) => event.type === 'response.output_text.delta');
  assert.ok(text.trim() && deltas.map((event) => event.delta).join('') === text);
  assert.doesNotMatch(events.at(-1).type, /completed|incomplete|failed/);
  assert.deepEqual(plainly(await client.responses.cancel(cancelled.id)), plainly(cancelled));
  const { output_text, ...stored } = plainly(await client.responses.retrieve(cancelled.id));
  assert.deepEqual([stored, output_text], [plainly(cancelled), text]);
});

check('errors: cancel and resume of a foreground response, background unstored, deleted while generating', async () => {
  const plain = await respond();
  await refused(OpenAI.BadRequestError, () => client.responses.cancel(plain.id), { status: 400 });
  await refused(OpenAI.BadRequestError, () => resume(plain.id), { status: 400, param: 'stream' });
  await refused(OpenAI.NotFoundError, () => client.responses.cancel('resp_none'), { status: 404 });
  await refused(OpenAI.BadRequestError, () => respond({ background: true, store: false }), { param: 'background' });
  const running = await respond({ ...LONG, max_output_tokens: 4000 });
  await client.responses.delete(running.id);
  await refused(OpenAI.NotFoundError, () => client.responses.retrieve(running.id), { status: 404 });
});

// ---- responses: parsed output, tokens, compaction ----------------------------------------------

const PORT = {
  type: 'json_schema', name: 'port', strict: true,
  schema: {
    type: 'object', properties: { name: { type: 'string' }, berths: { type: 'integer' } },
    required: ['name', 'berths'], additionalProperties: false,
  },
};

check('responses.parse over a chain, and its stream helper: the object of the schema', async () => {
  let previous;
  for (let number = 0; number < 3; number += 1) {
    const answer = await client.responses.parse({
      model: MODEL, input: 'Port ' + number, text: { format: PORT }, previous_response_id: previous });
    assert.deepEqual(Object.keys(answer.output_parsed), ['name', 'berths']);
    assert.deepEqual(answer.output_parsed, JSON.parse(answer.output_text));
    assert.equal(answer.previous_response_id, previous ?? null);
    previous = answer.id;
  }
  const final = await client.responses.stream({
    model: MODEL, input: 'And?', text: { format: PORT }, previous_response_id: previous }).finalResponse();
  assert.ok(Number.isInteger(final.output_parsed.berths));
  const items = await collect(client.responses.inputItems.list(final.id, { limit: 2 }));
  assert.equal(items.length, 7);
});

check('inputTokens.count: what the turn would count, over chains, conversations and instructions', async () => {
  const root = await respond();
  const conversation = await client.conversations.create({ items: [{ role: 'user', content: 'Hello' }] });
  for (const more of [{}, { instructions: 'Be brief.' }, { previous_response_id: root.id },
    { conversation: conversation.id }]) {
    const counted = await client.responses.inputTokens.count({ model: MODEL, input: QUESTION, ...more });
    assert.equal(counted.object, 'response.input_tokens');
    assert.equal(counted.input_tokens, (await respond({ store: false, ...more })).usage.input_tokens);
  }
});

check('compact: the user\'s messages and one compaction item, which go on as input', async () => {
  let previous;
  for (let number = 0; number < 3; number += 1) {
    previous = (await respond({ input: 'Turn ' + number, max_output_tokens: 100, previous_response_id: previous })).id;
  }
  const window = await client.responses.compact({ model: MODEL, previous_response_id: previous });
  assert.equal(window.object, 'response.compaction');
  assert.deepEqual(window.output.map((item) => item.type), ['message', 'message', 'message', 'compaction']);
  const next = await respond({ input: [...window.output, { role: 'user', content: 'And?' }] });
  const items = await collect(client.responses.inputItems.list(next.id, { order: 'asc' }));
  assert.equal(items[3].encrypted_content, window.output[3].encrypted_content);
  await refused(OpenAI.NotFoundError, () => client.responses.retrieve(window.id), { status: 404 });
});

// ---- conversations -----------------------------------------------------------------------------

const messages = (...texts) => texts.map((content) => ({ type: 'message', role: 'user', content }));

const textsOf = async (id) =>
  (await collect(client.conversations.items.list(id, { order: 'asc' }))).map((item) => item.content[0].text);

check('conversations: create, retrieve, update, delete; then NotFoundError', async () => {
  const made = await client.conversations.create({ metadata: { who: 'ann' }, items: messages('One', 'Two') });
  assert.match(made.id, /^conv_/);
  assert.deepEqual(plainly(await client.conversations.retrieve(made.id)), plainly(made));
  const changed = await client.conversations.update(made.id, { metadata: { which: 'new' } });
  assert.deepEqual(changed.metadata, { which: 'new' });
  assert.deepEqual(await textsOf(made.id), ['One', 'Two']);
  const gone = await client.conversations.delete(made.id);
  assert.deepEqual(plainly(gone), { id: made.id, object: 'conversation.deleted', deleted: true });
  await refused(OpenAI.NotFoundError, () => client.conversations.retrieve(made.id), { status: 404 });
  await refused(OpenAI.NotFoundError, () => client.conversations.items.list(made.id), { status: 404 });
  await refused(OpenAI.NotFoundError, () => respond({ conversation: made.id }), { status: 404 });
});

check('conversations.items: create, auto-paging both ways, retrieve, delete', async () => {
  const { items } = client.conversations;
  const { id } = await client.conversations.create();
  const wanted = [];
  for (let start = 0; start < 60; start += 20) {
    const batch = Array.from({ length: 20 }, (_, number) => 'Item ' + (start + number));
    const made = await items.create(id, { items: messages(...batch) });
    assert.deepEqual(made.data.map((item) => item.content[0].text), batch);
    wanted.push(...made.data);
  }
  for (const limit of [undefined, 1, 7, 100]) {
    for (const order of ['asc', 'desc']) {
      const found = await collect(items.list(id, { limit, order }));
      assert.deepEqual(found, order === 'asc' ? wanted : wanted.toReversed(), limit + ' ' + order);
    }
  }
  assert.deepEqual(plainly(await items.retrieve(wanted[5].id, { conversation_id: id })), wanted[5]);
  assert.equal((await items.delete(wanted[5].id, { conversation_id: id })).object, 'conversation');
  assert.deepEqual(await collect(items.list(id, { order: 'asc' })), wanted.toSpliced(5, 1));
  await refused(OpenAI.NotFoundError, () => items.retrieve(wanted[5].id, { conversation_id: id }), { status: 404 });
});

check('conversation on a response, plain, streamed and by the helper; locked while it generates', async () => {
  const { id } = await client.conversations.create();
  const texts = [];
  const turns = [
    (more) => respond({ ...more, conversation: id }),
    async (more) => (await collect(await respond({ ...more, conversation: { id }, stream: true }))).at(-1).response,
    (more) => client.responses.stream({ model: MODEL, ...more, conversation: id }).finalResponse(),
  ];
  for (const [number, turn] of turns.entries()) {
    const answer = await turn({ input: 'Turn ' + number });
    assert.deepEqual(answer.conversation, { id });
    texts.push('Turn ' + number, answer.output[0].content[0].text);
    assert.deepEqual(await textsOf(id), texts);
  }
  const running = await respond({ ...LONG, conversation: id });
  const locked = { status: 400, code: 'conversation_locked', param: 'conversation' };
  await refused(OpenAI.BadRequestError, () => respond({ conversation: id }), locked);
  await refused(OpenAI.BadRequestError, () => client.conversations.items.create(id, { items: messages('x') }), locked);
  assert.deepEqual(await textsOf(id), texts);
  const { output_text } = await poll(running);
  assert.deepEqual(await textsOf(id), [...texts, QUESTION, output_text]);
  await refused(OpenAI.BadRequestError, () => respond({ conversation: id, previous_response_id: running.id }), {
    code: 'mutually_exclusive_parameters' });
});

// ---- stored chat completions -------------------------------------------------------------------

check('stored chats: retrieve, list by metadata with auto-paging, update, delete, messages', async () => {
  const { completions } = client.chat;
  const made = [];
  for (let number = 0; number < 25; number += 1) {
    const body = { model: MODEL, messages: ASK, store: true, metadata: { run: 'list', odd: String(number % 2) } };
    made.push(await completions.create({ ...body, ...exactly(2) }));
  }
  const ids = made.map((one) => one.id);
  for (const limit of [undefined, 1, 7, 100]) {
    for (const order of ['asc', 'desc']) {
      const found = await collect(completions.list({ metadata: { run: 'list' }, limit, order }));
      assert.deepEqual(found.map((one) => one.id), order === 'asc' ? ids : ids.toReversed(), limit + ' ' + order);
    }
  }
  const odd = await collect(completions.list({ metadata: { run: 'list', odd: '1' }, limit: 5 }));
  assert.deepEqual(odd.map((one) => one.id), ids.filter((_, number) => number % 2));
  assert.deepEqual((await completions.retrieve(ids[0])).choices, made[0].choices);
  assert.deepEqual((await completions.update(ids[0], { metadata: { run: 'new' } })).metadata, { run: 'new' });
  const listed = await collect(completions.messages.list(ids[0]));
  assert.deepEqual(listed.map(({ id, role, content }) => [id, role, content]), [[ids[0] + '-0', 'user', QUESTION]]);
  assert.equal((await completions.delete(ids[0])).deleted, true);
  await refused(OpenAI.NotFoundError, () => completions.retrieve(ids[0]), { status: 404 });
  await refused(OpenAI.NotFoundError, () => completions.messages.list(ids[0]), { status: 404 });
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
