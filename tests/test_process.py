"""The command as a process of its own: start, flags, signals, exit codes, what stands on stderr."""
import contextlib
import io
import os
import re
import shutil
import signal
import socket
import subprocess
import sys
import tempfile
import threading
import unittest

from api_common import __version__
from settings import parse_settings
from tests import ONE_FILE, ROOT
from tests.support import CHAT, TIMEOUT_S, RawClient, request_bytes, wait_until

ENTRY = ONE_FILE or os.path.join(ROOT, "server.py")
PROCESS_TIMEOUT_S = 20.0

# Runs the entry on a machine without IPv6, as far as Python can tell.
WITHOUT_IPV6 = """
import errno, os, runpy, socket, sys
class Socket(socket.socket):
    def __init__(self, family=-1, *args, **values):
        if family == socket.AF_INET6:
            raise OSError(errno.EAFNOSUPPORT, os.strerror(errno.EAFNOSUPPORT))
        super().__init__(family, *args, **values)
socket.socket = Socket
sys.path.insert(0, os.path.dirname(sys.argv[1]))
sys.argv = sys.argv[1:]
runpy.run_path(sys.argv[0], run_name="__main__")
"""

# Runs the entry after closing the way to a module of the standard library.
WITHOUT_MODULES = """
import os, runpy, sys
for name in sys.argv[1].split(","):
    sys.modules[name] = None
sys.path.insert(0, os.path.dirname(sys.argv[2]))
sys.argv = sys.argv[2:]
runpy.run_path(sys.argv[0], run_name="__main__")
"""


def run_command(*arguments, entry=ENTRY, python=(), cwd=None):
    """Run it to its end: (exit code, stdout, stderr)."""
    done = subprocess.run([sys.executable] + list(python) + [entry] + list(arguments), stdin=subprocess.DEVNULL,
                          stdout=subprocess.PIPE, stderr=subprocess.PIPE, timeout=PROCESS_TIMEOUT_S, cwd=cwd,
                          universal_newlines=True)
    return done.returncode, done.stdout, done.stderr


class ServerProcess:
    """A server that runs. address: (host, port); lines: what it wrote on stderr so far."""

    def __init__(self, *arguments, command=None):
        self.process = subprocess.Popen(
            (command or [sys.executable, ENTRY]) + ["--port", "0"] + list(arguments), stdin=subprocess.DEVNULL,
            stdout=subprocess.PIPE, stderr=subprocess.PIPE, universal_newlines=True)
        self.lines = []
        self._reader = threading.Thread(target=self._read)
        self._reader.start()
        try:
            first = wait_until(lambda: self.lines or self.process.poll() is not None, "the first line",
                               PROCESS_TIMEOUT_S) and self.lines[0]
            self.address = ("127.0.0.1", int(re.search(r"http://[\d.]+:(\d+)", first).group(1)))
        except BaseException:
            self.kill()
            raise

    def _read(self):
        for line in self.process.stderr:
            self.lines.append(line.rstrip("\n"))

    def connect(self):
        return RawClient(self.address)

    def signal(self, number):
        self.process.send_signal(number)

    def wait(self):
        """The exit code, when all output has been read."""
        code = self.process.wait(PROCESS_TIMEOUT_S)
        self._reader.join(TIMEOUT_S)
        return code

    def kill(self):
        """For clean-ups: gone, whatever it was doing."""
        if self.process.poll() is None:
            self.process.kill()
        self.wait()
        self.process.stdout.close()
        self.process.stderr.close()


class ProcessTest(unittest.TestCase):

    def server(self, *arguments, **values):
        server = ServerProcess(*arguments, **values)
        self.addCleanup(server.kill)
        return server


class StopTest(ProcessTest):

    def test_sigterm_and_sigint_end_with_0_and_a_summary_line(self):
        for number in (signal.SIGTERM, signal.SIGINT):
            for flags in ((), ("--transport", "threads")):
                with self.subTest(signal=number, flags=flags):
                    server = self.server("--ttft-ms", "0", "--itl-ms", "0", *flags)
                    client = server.connect()
                    self.assertEqual(client.request("POST", "/v1/chat/completions", CHAT).status, 200)
                    server.signal(number)
                    self.assertEqual(server.wait(), 0)
                    client.close()
                    self.assertRegex(server.lines[-1], "stopped: served 1 requests, 1 completions, 128 completion "
                                                       "tokens; 0 clients left early")
                    self.assertEqual([line for line in server.lines if "Traceback" in line], [])

    def test_a_running_stream_is_finished_first(self):
        server = self.server("--ttft-ms", "100", "--itl-ms", "2")
        client = server.connect()
        client.send_request("POST", "/v1/chat/completions", dict(CHAT, stream=True))
        answer = client.read_head()
        server.signal(signal.SIGTERM)
        self.assertEqual(client.read_rest(answer)[-1].data, "[DONE]")
        client.close()
        self.assertEqual(server.wait(), 0)
        summary = [line for line in server.lines if "stopped: " in line]
        self.assertRegex(summary[0], "1 completions, 128 completion tokens; 0 clients left early; of 1[23][0-9] timed")

    def test_a_second_signal_does_not_wait_for_running_answers(self):
        for flags in ((), ("--transport", "threads")):
            with self.subTest(flags=flags):
                server = self.server("--ttft-ms", "3600000", "--drain-s", "600", *flags)
                client, idle = server.connect(), server.connect()
                client.send_request("POST", "/v1/chat/completions", dict(CHAT, stream=True))
                self.assertEqual(client.read_head().status, 200)
                self.assertEqual(idle.request("GET", "/health").status, 200)
                server.signal(signal.SIGTERM)
                self.assertTrue(idle.has_ended())
                server.signal(signal.SIGINT)
                try:
                    self.assertEqual(server.wait(), 0)
                finally:
                    client.close()
                    idle.close()

    def test_the_drain_has_an_end(self):
        server = self.server("--ttft-ms", "3600000", "--drain-s", "0.1")
        client = server.connect()
        client.send_request("POST", "/v1/chat/completions", CHAT)
        other = server.connect()
        self.assertEqual(other.request("GET", "/health").status, 200)
        other.close()
        server.signal(signal.SIGTERM)
        self.assertEqual(server.wait(), 0)
        client.close()

    def test_a_port_can_be_used_again_at_once(self):
        server = self.server()
        client = server.connect()
        self.assertEqual(client.request("GET", "/health").status, 200)
        server.signal(signal.SIGTERM)
        self.assertEqual(server.wait(), 0)
        client.close()
        again = self.server("--port", str(server.address[1]))
        self.assertEqual(again.address, server.address)


class StartTest(ProcessTest):

    def assert_one_line(self, outcome, code=2):
        self.assertEqual((outcome[0], outcome[1]), (code, ""))
        self.assertEqual(outcome[2].count("\n"), 1, outcome[2])
        self.assertTrue(outcome[2].startswith("mockturtle: error: "), outcome[2])
        return outcome[2]

    def test_a_taken_port_is_one_line_and_code_2(self):
        taken = socket.create_server(("127.0.0.1", 0))
        self.addCleanup(taken.close)
        port = taken.getsockname()[1]
        line = self.assert_one_line(run_command("--port", str(port)))
        self.assertIn("127.0.0.1 port %d" % port, line)

    def test_bad_flags_are_one_line_and_code_2(self):
        cases = [("--port", "eighty"), ("--port", "70000"), ("--port", "-1"), ("--ttft-ms", "-1"), ("--itl-ms", "nan"),
                 ("--itl-ms", "inf"), ("--ttft-ms", "fast"), ("--output-tokens", "0"), ("--transport", "carrier"),
                 ("--pacer", "none"), ("--no-such-flag",), ("--port",), ("--ttft", "5"), ("extra",),
                 ("--max-connections", "-3"), ("--drain-s", "-1"), ("--max-body-mb", "0"), ("--seed", "x")]
        for flags in cases:
            with self.subTest(flags=flags):
                out, err = io.StringIO(), io.StringIO()
                with contextlib.redirect_stdout(out), contextlib.redirect_stderr(err), \
                        self.assertRaises(SystemExit) as caught:
                    parse_settings(flags)
                line = self.assert_one_line((caught.exception.code, out.getvalue(), err.getvalue()))
                if flags[0] not in ("--ttft", "extra", "--no-such-flag"):
                    self.assertIn(flags[0], line)

    def test_what_is_found_out_later_is_as_well(self):
        for flags in (("--transport", "carrier"), ("--host", "no.such.host.invalid"), ("--host", ""),
                      ("--host", "192.0.2.1")):
            with self.subTest(flags=flags):
                self.assert_one_line(run_command("--port", "0", *flags))

    def test_version_and_help(self):
        self.assertEqual(run_command("--version"), (0, "mockturtle %s\n" % __version__, ""))
        code, out, err = run_command("--help")
        self.assertEqual((code, err), (0, ""))
        for flag in ("--port", "--ttft-ms", "--api-key", "--drain-s", "--transport"):
            self.assertIn(flag, out)

    def test_version_without_site_packages(self):
        outcome = run_command("--version", python=("-S", "-E"))
        self.assertEqual(outcome, (0, "mockturtle %s\n" % __version__, ""))

    def test_the_entry_copied_alone_says_what_is_missing_or_runs_when_it_is_the_single_file(self):
        with tempfile.TemporaryDirectory() as folder:
            alone = shutil.copy(ENTRY, folder)
            outcome = run_command("--version", entry=alone, cwd=folder)
        if ONE_FILE is not None:
            self.assertEqual(outcome, (0, "mockturtle %s\n" % __version__, ""))
        else:
            line = self.assert_one_line(outcome)
            self.assertIn("server.py", line)

    def test_it_runs_from_any_folder(self):
        with tempfile.TemporaryDirectory() as folder:
            self.assertEqual(run_command("--version", cwd=folder)[0], 0)

    def test_without_ipv6_it_listens_on_ipv4_alone(self):
        server = self.server(command=[sys.executable, "-c", WITHOUT_IPV6, ENTRY])
        client = server.connect()
        self.assertEqual(client.request("GET", "/health").status, 200)
        client.close()
        self.assertNotIn("[::1]", server.lines[0])
        server.signal(signal.SIGTERM)
        self.assertEqual(server.wait(), 0)

    def test_it_serves_without_the_optional_parts_of_python(self):
        server = self.server("--ttft-ms", "0", "--itl-ms", "0", command=[
            sys.executable, "-c", WITHOUT_MODULES, "ssl,_ssl,sqlite3,_sqlite3,ctypes,lzma,bz2,zlib", ENTRY])
        client = server.connect()
        self.assertEqual(client.request("POST", "/v1/responses", {"model": "m", "input": "Hi"}).status, 200)
        client.close()
        server.signal(signal.SIGTERM)
        self.assertEqual(server.wait(), 0)

    def test_it_says_where_it_listens(self):
        server = self.server("--host", "127.0.0.1")
        self.assertIn("http://127.0.0.1:%d" % server.address[1], server.lines[0])
        self.assertIn(__version__, server.lines[0])

    def test_listening_wider_without_a_key_is_warned_of_and_with_one_it_is_not(self):
        for flags, warned in ((("--host", "0.0.0.0"), True), (("--host", "0.0.0.0", "--api-key", "sk-hush"), False),
                              ((), False)):
            with self.subTest(flags=flags):
                server = self.server(*flags)
                server.signal(signal.SIGTERM)
                self.assertEqual(server.wait(), 0)
                output = "\n".join(server.lines)
                self.assertEqual("warning: it listens beyond this machine" in output, warned, output)
                self.assertNotIn("sk-hush", output)

    def test_keys_are_never_logged(self):
        server = self.server("--api-key", "sk-hush")
        client = server.connect()
        for key in ("sk-hush", "sk-guess"):
            client.request("GET", "/v1/models", headers={"Authorization": "Bearer " + key})
            client.request("GET", "/nowhere", headers={"Authorization": "Bearer " + key})
        client.send(b"GET / HTTP/1.1\r\nAuthorization: Bearer sk-hush\r\n\r\n")
        self.assertEqual(client.read_answer().status, 400)
        client.close()
        server.signal(signal.SIGTERM)
        self.assertEqual(server.wait(), 0)
        self.assertNotIn("sk-", "\n".join(server.lines))


@unittest.skipUnless(os.name == "posix", "file limits are POSIX's")
class FileLimitTest(ProcessTest):

    def limited(self, soft, hard):
        return ["/bin/sh", "-c", 'ulimit -Sn %d; ulimit -Hn %d; exec "$0" "$@"' % (soft, hard), sys.executable, ENTRY]

    def test_the_soft_limit_is_raised_to_the_hard_one_and_printed(self):
        server = self.server(command=self.limited(64, 300))
        self.assertIn("open files: 300", server.lines[0])
        clients = [server.connect() for _ in range(120)]
        try:
            for client in clients:
                self.assertEqual(client.request("GET", "/health").status, 200)
        finally:
            for client in clients:
                client.close()

    def test_out_of_files_it_waits_says_so_once_and_goes_on(self):
        for flags in ((), ("--transport", "threads")):
            with self.subTest(flags=flags):
                server = self.server(*flags, command=self.limited(40, 40))
                clients = [server.connect() for _ in range(60)]
                try:
                    wait_until(lambda: [line for line in server.lines if "cannot accept" in line], "the complaint")
                    self.assertEqual(clients[0].request("GET", "/health").status, 200)
                    for client in clients[:40]:
                        client.close()
                    for client in clients[40:]:     # they waited in the backlog
                        self.assertEqual(client.request("GET", "/health").status, 200)
                    self.assertEqual(len([line for line in server.lines if "cannot accept" in line]), 1)
                finally:
                    for client in clients:
                        client.close()
                server.signal(signal.SIGTERM)
                self.assertEqual(server.wait(), 0)


class OutputTest(ProcessTest):

    def test_nothing_is_written_on_stdout_and_at_level_warning_nothing_per_request(self):
        server = self.server("--ttft-ms", "0", "--itl-ms", "0", "--log-level", "warning")
        client = server.connect()
        client.send(request_bytes("GET", "/health") * 50)
        for _ in range(50):
            self.assertEqual(client.read_answer().status, 200)
        client.close()
        server.signal(signal.SIGTERM)
        self.assertEqual(server.wait(), 0)
        self.assertEqual(server.process.stdout.read(), "")
        self.assertLessEqual(len(server.lines), 4, server.lines)
