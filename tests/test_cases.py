"""The black-box cases of tests/data/cases, against every form of the transport, and against the process.

The runner is a program of its own: it is run in a process, as CI and a user run it.
"""
import json
import os
import re
import socket
import subprocess
import sys
import unittest
from concurrent.futures import ThreadPoolExecutor

from server import MockTurtle
from tests import ONE_FILE, ROOT
from tests.support import FORMS, LiveServerTest, every_form

CASES = os.path.join(ROOT, "tests", "data", "cases")
CASES_TIMEOUT_S = 240

# Cases of later work, which fail now; one that passes must be taken off the list.
LATER = {}


def load_cases():
    with open(os.path.join(CASES, "cases.json"), encoding="utf-8") as file:
        return json.load(file)["cases"]


def run_cases(base_url, *arguments):
    """{case id: None when it passed, else what was wrong}."""
    done = subprocess.run([sys.executable, os.path.join(CASES, "run_cases.py"), base_url] + list(arguments),
                          stdout=subprocess.PIPE, stderr=subprocess.PIPE, timeout=CASES_TIMEOUT_S)
    found = {}
    for line in done.stdout.decode("utf-8", "replace").splitlines():
        match = re.match(r"(ok|FAIL) (\S+) - (.*)", line)
        if match:
            found[match.group(2)] = None if match.group(1) == "ok" else match.group(3)
    if not found or done.stderr:
        raise AssertionError("the runner failed: %r %r" % (done.stdout[-300:], done.stderr[-1000:]))
    return found


@every_form
class CasesTest(LiveServerTest):
    settings = {"ttft_ms": 5.0, "itl_ms": 2.0, "output_tokens": 16, "heartbeat_s": 0.2}

    def base_url(self):
        return "http://%s:%d" % self.address

    def test_all_cases_pass_but_those_of_later_work(self):
        expected = {case["id"] for case in load_cases() if case.get("needs") not in ("key", "upstream")}
        found = run_cases(self.base_url())
        self.assertEqual(set(found), expected)
        failed = {id: why for id, why in found.items() if why is not None}
        self.assertEqual({id: why for id, why in failed.items() if id not in LATER}, {})
        self.assertEqual(set(LATER) - set(failed), set(), "these pass: take them off the list")

    def test_cases_with_a_key_pass(self):
        self.start_server(api_key=("secret-key-of-the-cases",))
        found = run_cases(self.base_url(), "--api-key", "secret-key-of-the-cases", "--kind", "cors-auth",
                          "--kind", "models")
        self.assertIn("cors-auth-4", found)
        self.assertEqual({id: why for id, why in found.items() if why is not None}, {})


class GatewayCasesTest(unittest.TestCase):
    """All but a case that waits for 5 s: .ci/clients_gateway.py has all of them."""

    def test_the_gateway_cases_pass_on_both_forms(self):
        self.cases = [case["id"] for case in load_cases() if case.get("needs") == "upstream"
                      and not any(step.get("wait", 0) > 1 for step in case["steps"])]
        expected = set(self.cases)
        self.assertGreater(len(expected), 30)
        with ThreadPoolExecutor() as pool:
            runs = {form: pool.submit(self.run_form, form) for form in FORMS}
        for form, run in runs.items():
            with self.subTest(form=form):
                found = run.result()
                self.assertEqual(set(found), expected)
                self.assertEqual({id: why for id, why in found.items() if why is not None}, {})

    def run_form(self, form):
        with socket.socket() as free:
            free.bind(("127.0.0.1", 0))
            url = "http://127.0.0.1:%d/v1" % free.getsockname()[1]
        with MockTurtle(backend="upstream", upstream_url=(url,), heartbeat_s=0.2, **FORMS[form]) as gateway:
            ids = [word for id in self.cases for word in ("--id", id)]
            return run_cases(gateway.url, "--gateway", url, *ids)       # it starts the awkward upstream there


class ListTest(unittest.TestCase):

    def test_every_listed_case_exists_and_says_why(self):
        ids = {case["id"] for case in load_cases()}
        self.assertLessEqual(set(LATER), ids)
        self.assertTrue(all(LATER.values()))

    def test_every_case_is_run_or_listed(self):
        self.assertEqual({case.get("needs") for case in load_cases()}, {None, "key", "nokey", "upstream"})


class ProcessTest(unittest.TestCase):

    def test_the_process_starts_logs_and_stops_as_it_should(self):
        path = ONE_FILE or os.path.join(ROOT, "server.py")
        done = subprocess.run([sys.executable, os.path.join(CASES, "run_process.py"), path],
                              stdout=subprocess.PIPE, stderr=subprocess.PIPE, timeout=CASES_TIMEOUT_S)
        self.assertEqual((done.returncode, done.stderr.decode()), (0, ""), done.stdout.decode())
        self.assertRegex(done.stdout.decode(), r"\n3 ok, 0 failed\s*\Z")


if __name__ == "__main__":
    unittest.main()
