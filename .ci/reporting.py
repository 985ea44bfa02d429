"""What the Python scripts that drive clients share: the list of checks, assertions, a line per check, the closing line."""

import traceback

CHECKS = []


def check(title):
    """Register the function under the line that it proves."""

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


class Report:
    """Prints a line per check and, last, "N passed, M failed"."""

    def __init__(self):
        self.passed = self.failed = 0

    def tell(self, title, wrong=None):
        """Count a check that failed when a text says what is wrong."""
        if wrong:
            self.failed += 1
            print("FAIL %s - %s" % (title, wrong), flush=True)
        else:
            self.passed += 1
            print("ok   " + title, flush=True)

    def run(self, title, function, *arguments):
        """Call the function and tell whether it raised."""
        try:
            function(*arguments)
        except Exception:  # the client's refusal of what we sent, for one: its words are the finding
            self.tell(title, traceback.format_exc(limit=-4)[-1800:])
        else:
            self.tell(title)

    def close(self):
        """Print the closing line, return the exit status."""
        print("%d passed, %d failed" % (self.passed, self.failed), flush=True)
        return 1 if self.failed else 0
