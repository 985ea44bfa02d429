"""What the drivers of Python clients share: the list of checks, assertions, the tools, the closing line.

Each driver is run as `python drive_NAME.py BASE_URL` (without /v1), by .ci/clients, with the Python of an environment
that holds its client. It prints one line per check and, last, "N passed, M failed"; status 1 when any failed.
"""

import asyncio
import importlib.metadata
import inspect
import sys
import traceback

MODEL = "mock-model"
KEY = "sk-loopback"
QUESTION = "What does the sea say to the ship?"
WEATHER_QUESTION = "What is the weather in Oslo?"  # shares a word with the tool get_weather
WAIT_S = 30.0
CHECKS = []


def check(title):
    """Register the function (plain or async) under the line that it proves."""

    def register(function):
        CHECKS.append((title, function))
        return function

    return register


def same(found, wanted, what="value"):
    """Fail unless both are equal."""
    if found != wanted:
        raise AssertionError("%s is %r, not %r" % (what, found, wanted))


def need(holds, what):
    """Fail with the text unless it holds."""
    if not holds:
        raise AssertionError(what)


def need_text(text, what="the text"):
    """Fail unless it is a string with something in it."""
    need(isinstance(text, str) and text.strip(), "%s is %r" % (what, text))


class Weather:
    """A tool's other end: notes with what it was called, and answers."""

    def __init__(self):
        self.calls = []

    def answer(self, city, days):
        """What get_weather does."""
        self.calls.append((city, days))
        return "18 degrees"

    def need_calls(self, count=1):
        """Fail unless it was called so often, each time with a word from the enum and a number within its bounds."""
        same(len(self.calls), count, "the number of calls")
        for city, days in self.calls:
            need(city in ("Oslo", "Bergen"), "city is %r" % (city,))
            need(type(days) is int and 1 <= days <= 5, "days is %r" % (days,))


def run(*packages):
    """Run the checks, print a line each, exit with the status."""
    if len(sys.argv) != 2:
        sys.exit("usage: python %s BASE_URL" % sys.argv[0])
    versions = ", ".join("%s %s" % (name, importlib.metadata.version(name)) for name in packages)
    print("%s on Python %s" % (versions, sys.version.split()[0]), flush=True)
    failed = 0
    with asyncio.Runner() as loop:  # one loop for all: clients keep their connections from check to check
        for title, function in CHECKS:
            try:
                if inspect.iscoroutinefunction(function):
                    loop.run(asyncio.wait_for(function(), WAIT_S))
                else:
                    function()
            except Exception:  # the client's refusal of what we sent, for one: its words are the finding
                failed += 1
                print("FAIL %s - %s" % (title, traceback.format_exc(limit=-4)[-1800:]), flush=True)
            else:
                print("ok   " + title, flush=True)
    print("%d passed, %d failed" % (len(CHECKS) - failed, failed))
    sys.exit(1 if failed else 0)


def base_url():
    """The server's address with /v1."""
    return sys.argv[1] + "/v1"
