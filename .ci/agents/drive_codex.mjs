// The Codex CLI against the server: `codex exec` and `exec resume` with a custom provider, tool calls, known models.
//
// Codex talks to a forwarder in this process that keeps what goes by; each check looks at what Codex says (its JSON
// lines) and at every request and answer behind it. Codex's home and working folder are temporary. Its commands run
// without a sandbox of its own, as containers seldom allow one: the only command the server makes up is `echo hello`.

import assert from 'node:assert/strict';
import { spawn } from 'node:child_process';
import { mkdirSync, mkdtempSync, rmSync, writeFileSync } from 'node:fs';
import { createServer, request as httpRequest } from 'node:http';
import { tmpdir } from 'node:os';
import { join } from 'node:path';
import { fileURLToPath } from 'node:url';

import { BASE_URL, KEY, MODEL, QUESTION, WAIT_MS, check, needText, runAll } from './harness.mjs';

const CODEX = fileURLToPath(new URL('node_modules/@openai/codex/bin/codex.js', import.meta.url));
let target = new URL(BASE_URL); // where the forwarder sends to
const folder = mkdtempSync(join(tmpdir(), 'codex-'));
const [home, work] = ['home', 'work'].map((name) => join(folder, name));
process.on('exit', () => rmSync(folder, { recursive: true, force: true, maxRetries: 3 }));

// ---- what stands between Codex and the server ---------------------------------------------------

let exchanges = []; // of the turn under way: { method, path, body, status, answer }

const forwarder = createServer((asked, answered) => {
  const exchange = { method: asked.method, path: asked.url, body: '', status: null, answer: '' };
  exchanges.push(exchange);
  asked.setEncoding('utf8').on('data', (text) => (exchange.body += text)).on('end', () => {
    const { host, 'accept-encoding': _, ...headers } = asked.headers;
    const onward = httpRequest(
      { host: target.hostname, port: target.port, path: asked.url, method: asked.method, headers },
      (back) => {
        exchange.status = back.statusCode;
        answered.writeHead(back.statusCode, back.headers);
        back.setEncoding('utf8').on('data', (text) => {
          exchange.answer += text;
          answered.write(text);
        });
        back.on('end', () => answered.end()).on('error', () => answered.destroy());
      });
    onward.on('error', () => answered.destroy()).end(exchange.body);
  });
});
await new Promise((resolve) => forwarder.listen(0, '127.0.0.1', resolve));

mkdirSync(home);
mkdirSync(work);
writeFileSync(join(home, 'config.toml'), `model = "${MODEL}"
model_provider = "mockturtle"
check_for_update_on_startup = false

[model_providers.mockturtle]
name = "mockturtle"
base_url = "http://127.0.0.1:${forwarder.address().port}/v1"
wire_api = "responses"
env_key = "MOCK_KEY"
request_max_retries = 0
stream_max_retries = 0

[analytics]
enabled = false
`);

// ---- a turn --------------------------------------------------------------------------------------

const FLAGS = ['--json', '--skip-git-repo-check', '--dangerously-bypass-approvals-and-sandbox'];

// Run codex with these arguments to its end: { status, out, err }.
function runCodex(words) {
  return new Promise((resolve, reject) => {
    const child = spawn(process.execPath, [CODEX, ...words], {
      cwd: work,
      env: { ...process.env, HOME: home, CODEX_HOME: home, MOCK_KEY: KEY },
      stdio: ['ignore', 'pipe', 'pipe'],
    });
    const found = { out: '', err: '' };
    for (const [key, stream] of [['out', child.stdout], ['err', child.stderr]]) {
      stream.setEncoding('utf8').on('data', (text) => (found[key] += text));
    }
    const timer = setTimeout(() => child.kill('SIGTERM'), WAIT_MS - 2000); // its script hands it on to the binary
    child.on('error', reject).on('close', (status) => {
      clearTimeout(timer);
      resolve({ status, ...found });
    });
  });
}

// The request's body and the final response of an exchange, when nothing is wrong with them.
function readExchange({ method, path, body, status, answer }) {
  assert.deepEqual([method, path, status], ['POST', '/v1/responses', 200], answer.slice(0, 600));
  const frames = answer.split('\n\n').filter((frame) => frame && !frame.startsWith(':'));
  assert.equal(frames.pop(), 'data: [DONE]');
  const events = frames.map((frame) => JSON.parse(frame.slice(frame.indexOf('data: ') + 6)));
  assert.deepEqual(events.map((event) => event.sequence_number), events.map((_, index) => index));
  assert.deepEqual([events[0].type, events.at(-1).type], ['response.created', 'response.completed']);
  return { request: JSON.parse(body), response: events.at(-1).response };
}

// One turn of Codex, maybe after another: what it said, and the requests and responses behind it.
async function turn(prompt, { after, flags = [] } = {}) {
  exchanges = [];
  const words = ['exec', ...(after ? ['resume', ...FLAGS, ...flags, after.thread] : [...FLAGS, ...flags]), prompt];
  const { status, out, err } = await runCodex(words);
  const told = 'codex ended with ' + status + '\n' + out.slice(-1000) + err.slice(-1000);
  const rounds = exchanges.map(readExchange);
  assert.equal(status, 0, told);
  const lines = out.split('\n').filter(Boolean).map((line) => JSON.parse(line));
  const items = lines.filter((line) => line.type === 'item.completed').map((line) => line.item);
  const said = items.filter((item) => item.type === 'agent_message').map((item) => item.text);
  for (const text of said) console.log('     codex: ' + JSON.stringify(text));
  const wrong = items.filter((item) => item.type === 'error' && !item.message.startsWith('Model metadata for'));
  assert.deepEqual(wrong, []);
  assert.doesNotMatch(err, / ERROR /);
  assert.deepEqual(lines.filter((line) => /failed|^error/.test(line.type)), []);
  assert.equal(lines.at(-1).type, 'turn.completed', told);
  const { usage } = lines.at(-1); // of the whole thread
  for (const key of ['input_tokens', 'output_tokens']) {
    const before = after?.usage[key] ?? 0;
    assert.equal(usage[key], rounds.reduce((sum, { response }) => sum + response.usage[key], before), key);
  }
  assert.equal(said.at(-1), rounds.at(-1).response.output.at(-1).content[0].text);
  needText(said.at(-1));
  if (after) assert.equal(lines[0].thread_id, after.thread);
  return { thread: lines[0].thread_id, items, said, rounds, usage };
}

// The call of the first answer and its output in the second request, when there is exactly one of each.
function oneCall({ rounds }, name) {
  assert.equal(rounds.length, 2, 'requests of the turn');
  const [call, ...more] = rounds[0].response.output.filter((item) => item.type === 'function_call');
  assert.deepEqual([call.name, more], [name, []]);
  const outputs = rounds[1].request.input.filter((item) => item.type === 'function_call_output');
  assert.deepEqual(outputs.map((item) => item.call_id), [call.call_id]);
  return { args: JSON.parse(call.arguments), output: outputs[0].output };
}

// What Codex sends back of the turns before: everything of the old input, then all output items, in order.
function needHistory(before, { rounds }) {
  const kinds = ({ type, id }) => type + ' ' + id;
  const known = new Set(rounds[0].request.input.map(kinds));
  const wanted = [...before.rounds.at(-1).request.input, ...before.rounds.at(-1).response.output];
  assert.deepEqual(wanted.map(kinds).filter((kind) => !known.has(kind)), []);
}

// ---- checks --------------------------------------------------------------------------------------

let plain, ran;

check('a turn ends with text, by a stream that is not stored', async () => {
  plain = await turn(QUESTION);
  assert.equal(plain.rounds.length, 1);
  const [{ request }] = plain.rounds;
  assert.deepEqual([request.stream, request.store, request.model], [true, false, MODEL]);
  assert.ok(request.tools.some((tool) => tool.name === 'exec_command'), 'exec_command is not among the tools');
});

check('exec resume: the next turn sends all of the first one back, encrypted reasoning as well', async () => {
  const next = await turn('And what then?', { after: plain });
  needHistory(plain, next);
  const reasoning = next.rounds[0].request.input.filter((item) => item.type === 'reasoning');
  assert.deepEqual(reasoning.map((item) => item.encrypted_content),
    plain.rounds[0].response.output.filter((item) => item.type === 'reasoning').map((item) => item.encrypted_content));
  assert.equal(reasoning.length, process.env.CHAT_ONLY ? 0 : 1); // behind a gateway chat shows no thoughts
  assert.ok(next.rounds[0].response.usage.input_tokens > plain.rounds[0].response.usage.input_tokens);
});

check('a tool without arguments: called, its output sent back, then text', async () => {
  const { output } = oneCall(await turn('Please get the goal now: get_goal'), 'get_goal');
  assert.match(output, /"goal":null/);
});

check('exec_command: called, `echo hello` runs, its output is sent back, then text', async () => {
  ran = await turn('Run a shell command, please.');
  const { args, output } = oneCall(ran, 'exec_command');
  assert.equal(args.cmd, 'echo hello');
  assert.match(output, /hello/);
  const commands = ran.items.filter((item) => item.type === 'command_execution');
  assert.deepEqual(commands.map((item) => [item.exit_code, item.aggregated_output]), [[0, 'hello\n']]);
});

check('exec resume after a tool call: the call and its output are taken back, text comes', async () => {
  assert.ok(ran, 'there was no tool call');
  const next = await turn('And what then?', { after: ran });
  needHistory(ran, next);
  assert.equal(next.rounds.length, 1);
});

check('--output-schema: the last message is an object that fits it', async () => {
  const file = join(folder, 'schema.json');
  writeFileSync(file, JSON.stringify({
    type: 'object', properties: { city: { type: 'string', enum: ['Oslo', 'Bergen'] }, days: { type: 'integer' } },
    required: ['city', 'days'], additionalProperties: false }));
  const { said, rounds } = await turn(QUESTION, { flags: ['--output-schema', file] });
  assert.equal(rounds[0].request.text.format.type, 'json_schema');
  const found = JSON.parse(said.at(-1));
  assert.ok(['Oslo', 'Bergen'].includes(found.city) && Number.isInteger(found.days), said.at(-1));
});

check('as a model that Codex knows: custom and searched tools are accepted', async () => {
  const { rounds } = await turn(QUESTION, { flags: ['-m', 'gpt-5.5'] });
  const kinds = new Set(rounds[0].request.tools.map((tool) => tool.type));
  assert.ok(kinds.has('custom') && kinds.has('tool_search'), 'tool types are ' + [...kinds]);
  assert.equal(rounds[0].response.model, 'gpt-5.5');
});

check('as a model whose tools come as an input item', async () => {
  const { rounds } = await turn(QUESTION, { flags: ['-m', 'gpt-6.2-sol'] });
  assert.equal(rounds[0].request.input[0].type, 'additional_tools');
});

// A server of our own on a file: { url, kill() }.
function startServer(store) {
  return new Promise((resolve, reject) => {
    const child = spawn(process.env.PYTHON ?? 'python3', ['server.py', '--port', '0', '--store', 'sqlite:' + store,
      '--ttft-ms', '1', '--itl-ms', '1', '--output-tokens', '24'], { stdio: ['ignore', 'ignore', 'pipe'] });
    const timer = setTimeout(() => child.kill('SIGKILL'), WAIT_MS);
    let log = '';
    child.stderr.setEncoding('utf8').on('data', (text) => {
      log += text;
      const found = log.match(/http:\/\/127\.0\.0\.1:\d+/);
      if (found) resolve({ url: new URL(found[0]), kill: () => new Promise((ended) => {
        clearTimeout(timer);
        child.on('close', ended).kill('SIGKILL');
      }) });
    });
    child.on('error', reject).on('close', () => reject(new Error('the server ended: ' + log)));
  });
}

check('a server on a file, killed in mid-session and started again: the session goes on', async () => {
  const before = target;
  const store = join(folder, 'state.db');
  let server = await startServer(store);
  try {
    target = server.url;
    const first = await turn(QUESTION);
    await server.kill();
    server = await startServer(store);
    target = server.url;
    needHistory(first, await turn('And then?', { after: first }));
  } finally {
    await server.kill();
    target = before;
  }
});

await runAll('@openai/codex');
