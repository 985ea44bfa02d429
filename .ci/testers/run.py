"""The suites of a test author: a client's own Python, MockTurtle in the same process, and what the journal then says.

    python .ci/testers/run.py NAME [FILE]

NAME: openai, agents, langchain or ai_sdk; run it with the Python of an environment that holds that client. FILE: the
joined file, in place of the checkout's modules. Prints a line per test and, last, "N passed, M failed"; the exit
status is 1 when any failed.
"""

import importlib.util
import os
import sys
import traceback
import unittest

HERE = os.path.dirname(os.path.abspath(__file__))
sys.path.append(os.path.dirname(HERE))
sys.path.append(os.path.dirname(os.path.dirname(HERE)))

from reporting import Report  # noqa: E402


class ReportedResult(unittest.TestResult):
    """Tells a Report of each test."""

    def __init__(self):
        super().__init__()
        self.report = Report()

    @staticmethod
    def title(test):
        name, _, home = test.id().rpartition(".")[::-1]
        return "%s: %s" % (home.rpartition(".")[2], name.replace("test_", "", 1).replace("_", " "))

    def addSuccess(self, test):
        super().addSuccess(test)
        self.report.tell(self.title(test))

    def addFailure(self, test, err):
        self._wrong(test, err)

    def addError(self, test, err):
        self._wrong(test, err)

    def addSkip(self, test, reason):
        self.report.tell(self.title(test), "skipped: " + reason)

    def addSubTest(self, test, subtest, err):
        if err is not None:
            self._wrong(subtest, err)

    def _wrong(self, test, err):
        self.report.tell(str(test), "".join(traceback.format_exception(*err, limit=-4))[-2500:])


def main():
    name = sys.argv[1]
    if len(sys.argv) > 2:
        spec = importlib.util.spec_from_file_location("mockturtle", sys.argv[2])
        module = importlib.util.module_from_spec(spec)
        for each in ("mockturtle", "server", "faults"):
            sys.modules[each] = module
        spec.loader.exec_module(module)
    result = ReportedResult()
    unittest.defaultTestLoader.loadTestsFromName("test_" + name)(result)
    return result.report.close()


if __name__ == "__main__":
    sys.exit(main())
