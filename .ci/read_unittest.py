"""Read the log of `python -m unittest ... -v`: what failed, what was skipped, and whether it was allowed.

    python .ci/read_unittest.py LOG --status N --tags "3.9 split" --counts FILE [--none]

Prints the summary, the end of the log when tests failed, and each skipped test with its reason. Exit 1 unless the
skipped tests are exactly those that allowed_skips.txt lists for these tags (--none: unless nothing was skipped), some
test ran, and the log can be read without doubt. Writes "PASSED FAILED" to FILE.
"""

import argparse
import os
import re
import sys

ALLOWED = os.path.join(os.path.dirname(os.path.abspath(__file__)), "allowed_skips.txt")
TEST_LINE = re.compile(r"^(\w+) \(([\w.]+)\)")
SKIPPED = re.compile(r"\.\.\. (?:.*)?skipped (['\"].*['\"])$")
RAN = re.compile(r"^Ran (\d+) tests? in ", re.MULTILINE)
RESULT = re.compile(r"^(OK|FAILED|NO TESTS RAN)(?: \((.*)\))?$", re.MULTILINE)


def test_id(match):
    """The id as 3.11 spells it: 3.9 leaves out the method's name behind the class."""
    name, where = match.groups()
    return where if where.endswith("." + name) else "%s.%s" % (where, name)


def read_skips(text):
    """[(test id, reason)] of a verbose log. With a docstring the id stands one line above the verdict."""
    found, last = [], None
    for line in text.split("\n"):
        match = TEST_LINE.match(line)
        if match:
            last = test_id(match)
        match = SKIPPED.search(line)
        if match:
            found.append((last, match.group(1)[1:-1]))
    return found


def read_allowed(path, tags):
    """{test id: reason} of the lines `TAGS ; ID ; REASON` that hold for all these tags; * holds always."""
    allowed = {}
    with open(path, encoding="utf-8") as lines:
        for line in lines:
            if not line.strip() or line.startswith("#"):
                continue
            where, test, reason = (part.strip() for part in line.split(";", 2))
            if where == "*" or set(where.split()) <= tags:
                allowed[test] = reason
    return allowed


def main(arguments=None):
    """Judge one log, return the exit status."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("log")
    parser.add_argument("--status", type=int, required=True, help="of the command that wrote it")
    parser.add_argument("--tags", required=True)
    parser.add_argument("--counts", required=True)
    parser.add_argument("--none", action="store_true", help="no skip is allowed")
    options = parser.parse_args(arguments)
    with open(options.log, encoding="utf-8", errors="replace") as file:
        text = file.read()
    wrong = []
    ran = sum(int(number) for number in RAN.findall(text)[-1:])
    results = RESULT.findall(text)
    word, details = results[-1] if results else ("", "")
    numbers = {name: int(number) for name, number in re.findall(r"([a-z ]+)=(\d+)", details)}
    numbers = {name.strip(): number for name, number in numbers.items()}
    failed = numbers.get("failures", 0) + numbers.get("errors", 0) + numbers.get("unexpected successes", 0)
    if options.status or word != "OK":
        if not results:
            wrong.append("no result line: it did not end by itself (status %d)" % options.status)
        print(text[-12000:])
        failed = max(failed, 1)
    elif not ran:
        wrong.append("no test ran")
    skips = read_skips(text)
    if len(skips) != numbers.get("skipped", 0):
        wrong.append("%d skips found in the log, %d in its summary" % (len(skips), numbers.get("skipped", 0)))
    allowed = {} if options.none else read_allowed(ALLOWED, set(options.tags.split()))
    for test, reason in skips:
        print("  skipped %s: %s" % (test, reason))
        if test not in allowed:
            wrong.append("a skip that allowed_skips.txt does not list for '%s': %s" % (options.tags, test))
    if word == "OK":
        for test in sorted(set(allowed) - {test for test, _ in skips}):
            wrong.append("listed in allowed_skips.txt for '%s', but not skipped: %s" % (options.tags, test))
    for text in wrong:
        print("  WRONG: " + text)
    failed += len(wrong)
    passed = max(0, ran - len(skips) - failed)
    print("  %d tests ran: %d passed, %d failed, %d skipped" % (ran, passed, failed, len(skips)))
    with open(options.counts, "w", encoding="ascii") as file:
        file.write("%d %d\n" % (passed, failed))
    return 1 if failed else 0


if __name__ == "__main__":
    sys.exit(main())
