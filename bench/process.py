"""The processes of a measurement: the server under test, the client, and what /proc says of them.

Servers listen on a free port of 127.0.0.1 and are ended by their own process id. CPU time and memory are read from
/proc; elsewhere they are None and `PROC_MISSING` says why.
"""

import http.client
import json
import os
import socket
import subprocess
import sys
import tempfile
import time

ROOT = os.path.dirname(os.path.dirname(os.path.abspath(__file__)))
HAVE_PROC = os.path.exists("/proc/self/stat") and hasattr(os, "sysconf")
PROC_MISSING = "" if HAVE_PROC else "no /proc on this platform: CPU time and memory are left out"
READY_WITHIN_S = 30.0
POLL_S = 0.003  # between two looks at /health: the resolution of the cold start


def process_tree(root):
    """The ids of a process and its descendants, from /proc."""
    children = {}
    for name in os.listdir("/proc"):
        if not name.isdigit():
            continue
        try:
            with open("/proc/%s/stat" % name, encoding="ascii", errors="replace") as file:
                parent = int(file.read().rpartition(")")[2].split()[1])
        except OSError:
            continue
        children.setdefault(parent, []).append(int(name))
    found, todo = [], [root]
    while todo:
        found.append(todo.pop())
        todo += children.get(found[-1], ())
    return found


def read_usage(root):
    """(CPU seconds, resident bytes) of a process tree; (None, None) without /proc or without a root."""
    if not HAVE_PROC or root is None:
        return None, None
    ticks = pages = 0
    for pid in process_tree(root):
        try:
            with open("/proc/%d/stat" % pid, encoding="ascii", errors="replace") as file:
                fields = file.read().rpartition(")")[2].split()
        except OSError:
            continue
        ticks += sum(map(int, fields[11:15]))  # own and waited-for children, user and system
        pages += int(fields[21])
    return ticks / os.sysconf("SC_CLK_TCK"), pages * os.sysconf("SC_PAGE_SIZE")


def read_machine_busy():
    """CPU seconds in use on the machine, niced work left out as it gives way; None without /proc."""
    if not HAVE_PROC:
        return None
    with open("/proc/stat", encoding="ascii") as file:
        fields = [int(field) for field in file.readline().split()[1:9]]
    return (sum(fields) - fields[1] - fields[3] - fields[4]) / os.sysconf("SC_CLK_TCK")


def free_port():
    """A port of 127.0.0.1 that was free a moment ago."""
    with socket.socket() as sock:
        sock.bind(("127.0.0.1", 0))
        return sock.getsockname()[1]


def is_healthy(port, path="/health"):
    """Whether a GET of the path gives 200."""
    conn = http.client.HTTPConnection("127.0.0.1", port, timeout=5)
    try:
        conn.request("GET", path)
        answer = conn.getresponse()
        answer.read()
        return answer.status == 200
    except (OSError, http.client.HTTPException):
        return False
    finally:
        conn.close()


class Target:
    """What is measured: how to start it, or where it already runs.

    command: argv up to the flags, None for a server that runs already (`port`, perhaps its `pid`). paced: whether it
    knows the flags of latency and length. health: the path that answers 200 when it is up, within ready_s. env: more
    environment.
    """

    def __init__(self, label, command=None, port=None, pid=None, paced=True, health="/health", env=None,
                 ready_s=READY_WITHIN_S):
        self.label, self.command, self.port, self.pid = label, command, port, pid
        self.paced, self.health, self.env, self.ready_s = paced, health, env, ready_s

    def start(self, ttft_ms=0.0, itl_ms=0.0, output_tokens=16, flags=()):
        """A running Server with this latency; one that runs already is taken as it is."""
        return Server(self, ttft_ms, itl_ms, output_tokens, flags)


class Server:
    """A running target; a context manager that ends what it started. `cold_s`: from spawn to the first 200."""

    def __init__(self, target, ttft_ms, itl_ms, output_tokens, flags=()):
        self.process, self.log, self.cold_s = None, None, None
        self.port, self.pid = target.port, target.pid
        if target.command is None:
            if not is_healthy(self.port):
                raise RuntimeError("%s: no 200 on /health" % target.label)
            return
        self.port = free_port()
        command = target.command + ["--port", str(self.port)]
        if target.paced:
            command += ["--ttft-ms", "%g" % ttft_ms, "--itl-ms", "%g" % itl_ms, "--output-tokens", "%d" % output_tokens]
        command += flags
        self.log = tempfile.TemporaryFile(prefix="bench-")
        began = time.perf_counter()
        env = None if target.env is None else dict(os.environ, **target.env)
        self.process = subprocess.Popen(command, cwd=ROOT, stdin=subprocess.DEVNULL, stdout=self.log, stderr=self.log,
                                        env=env)
        self.pid = self.process.pid
        try:
            while not is_healthy(self.port, target.health):
                if self.process.poll() is not None or time.perf_counter() - began > target.ready_s:
                    raise RuntimeError("%s: no 200 on /health: %s" % (target.label, self.tail()))
                time.sleep(POLL_S)
        except BaseException:
            self.stop()
            raise
        self.cold_s = time.perf_counter() - began

    def tail(self):
        """The end of what the server printed."""
        self.log.seek(0, os.SEEK_END)
        self.log.seek(max(0, self.log.tell() - 1500))
        return self.log.read().decode("utf-8", "replace")

    def usage(self):
        """(CPU seconds, resident bytes), see read_usage."""
        return read_usage(self.pid)

    def stop(self):
        """End the process if this object started it: politely, then not."""
        if self.process is None:
            return
        if self.process.poll() is None:
            self.process.terminate()
            try:
                self.process.wait(3)
            except subprocess.TimeoutExpired:
                self.process.kill()
        self.process.wait()
        self.process = None
        self.log.close()

    def __enter__(self):
        return self

    def __exit__(self, *_):
        self.stop()


class Client:
    """A client process with one load (the keys of client.DEFAULTS); a context manager that leaves none behind."""

    def __init__(self, spec):
        self.spec = spec
        self.process = subprocess.Popen(
            [sys.executable, "-m", "bench.client"],
            cwd=ROOT,
            stdin=subprocess.PIPE,
            stdout=subprocess.PIPE,
            stderr=subprocess.PIPE,
            universal_newlines=True,
        )
        self.process.stdin.write(json.dumps(spec) + "\n")
        self.process.stdin.flush()

    def wait_ready(self):
        """Wait until an idle load has all its connections open."""
        if self.process.stdout.readline().strip() != "ready":
            raise RuntimeError("client: " + self.process.communicate()[1][-1500:])

    def result(self):
        """Wait for the end; the client's result. Raises RuntimeError when it failed or hung."""
        try:
            out, err = self.process.communicate("\n", timeout=200)
        except subprocess.TimeoutExpired:
            self.process.kill()
            out, err = self.process.communicate()
            raise RuntimeError("client: hung: " + err[-1500:]) from None
        if self.process.returncode:
            raise RuntimeError("client: " + err[-1500:])
        return json.loads(out)

    def __enter__(self):
        return self

    def __exit__(self, *_):
        if self.process.poll() is None:
            self.process.kill()
        self.process.wait()
        for stream in (self.process.stdin, self.process.stdout, self.process.stderr):
            try:
                stream.close()
            except OSError:
                pass


def run_load(server, spec):
    """Run one load against the server; the client's result with the server's share of the CPU added.

    Adds "server_cpu_s", "server_cores", "rss_bytes" (all None without /proc), "other_cores": CPU that neither took.
    """
    cpu, busy, began = server.usage()[0], read_machine_busy(), time.perf_counter()
    with Client(dict(spec, port=server.port)) as client:
        result = client.result()
    cpu_after, rss = server.usage()
    busy_after, wall_s = read_machine_busy(), time.perf_counter() - began
    known = cpu is not None and cpu_after is not None
    result["server_cpu_s"] = cpu_after - cpu if known else None
    result["server_cores"] = result["server_cpu_s"] / result["total_s"] if known else None
    result["rss_bytes"] = rss
    result["other_cores"] = None
    if known:
        other = busy_after - busy - result["server_cpu_s"] - result["client_cpu_s"]
        result["other_cores"] = max(0.0, other) / wall_s
    return result
