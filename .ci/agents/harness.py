"""What the drivers of Python clients share: what reporting.py has, the tool's other end, the questions.

Each driver is run as `python drive_NAME.py BASE_URL` (without /v1), by .ci/clients, with the Python of an environment
that holds its client. It prints one line per check and, last, "N passed, M failed"; status 1 when any failed.
"""

import asyncio
import importlib.metadata
import inspect
import os
import sys

sys.path.append(os.path.dirname(os.path.dirname(os.path.abspath(__file__))))

from reporting import CHECKS, Report, check, need, same  # noqa: E402, F401  (drivers take all from here)

MODEL = "mock-model"
KEY = "sk-loopback"
QUESTION = "What does the sea say to the ship?"
WEATHER_QUESTION = "What is the weather in Oslo?"  # shares a word with the tool get_weather
WAIT_S = 30.0


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
    report = Report()
    with asyncio.Runner() as loop:  # one loop for all: clients keep their connections from check to check
        for title, function in CHECKS:
            if inspect.iscoroutinefunction(function):
                report.run(title, lambda: loop.run(asyncio.wait_for(function(), WAIT_S)))
            else:
                report.run(title, function)
    sys.exit(report.close())


def base_url():
    """The server's address with /v1."""
    return sys.argv[1] + "/v1"
