// What the drivers of Node clients share: the list of checks, assertions, the tool's other end, the closing line.
//
// Each driver is run as `node drive_NAME.mjs BASE_URL` (without /v1) by .ci/clients, which copies all *.mjs to the
// folder where package.json was installed. It prints one line per check and, last, "N passed, M failed"; the exit
// status is 1 when any failed.

import assert from 'node:assert/strict';
import { readFileSync } from 'node:fs';

export const MODEL = 'mock-model';
export const KEY = 'sk-loopback';
export const QUESTION = 'What does the sea say to the ship?';
export const WEATHER_QUESTION = 'What is the weather in Oslo?'; // shares a word with the tool get_weather
export const WAIT_MS = 30000;
export const BASE_URL = process.argv[2] + '/v1';

const checks = [];

export const check = (title, run) => checks.push({ title, run });

export const needText = (text) => {
  assert.equal(typeof text, 'string');
  assert.ok(text.trim(), 'the text is empty');
};

export async function collect(iterable) {
  const found = [];
  for await (const value of iterable) found.push(value);
  return found;
}

// A tool's other end: notes with what it was called, and answers.
export class Weather {
  calls = [];

  answer = ({ city, days }) => {
    this.calls.push({ city, days });
    return '18 degrees';
  };

  needCalls(count = 1) {
    assert.equal(this.calls.length, count, 'the number of calls');
    for (const { city, days } of this.calls) {
      assert.ok(['Oslo', 'Bergen'].includes(city), 'city is ' + city);
      assert.ok(Number.isInteger(days) && days >= 1 && days <= 5, 'days is ' + days);
    }
  }
}

function versionOf(name) {
  const path = new URL('node_modules/' + name + '/package.json', import.meta.url);
  return name + ' ' + JSON.parse(readFileSync(path, 'utf8')).version;
}

async function withinTime(run) {
  let timer;
  const late = new Promise((_, reject) => {
    timer = setTimeout(() => reject(new Error('not done after ' + WAIT_MS + ' ms')), WAIT_MS);
  });
  try {
    await Promise.race([run(), late]);
  } finally {
    clearTimeout(timer);
  }
}

export async function runAll(...packages) {
  console.log(packages.map(versionOf).join(', ') + ' on Node ' + process.version);
  let failed = 0;
  for (const { title, run } of checks) {
    try {
      await withinTime(run);
      console.log('ok   ' + title);
    } catch (error) {
      failed += 1;
      console.log('FAIL ' + title + ' - ' + String(error.stack).slice(0, 1500));
      if (error.cause) console.log('  cause: ' + String(error.cause).slice(0, 1000));
    }
  }
  console.log(checks.length - failed + ' passed, ' + failed + ' failed');
  process.exit(failed ? 1 : 0);
}
