"""The load generator: one process, one thread, non-blocking sockets, closed loop, loopback only.

In: a load (the keys of DEFAULTS) as one JSON object on standard input. Out: one JSON object on standard output. Run by
`measures` as `python -m bench.client`, so that its work never shares an interpreter with anything else.

plain   N keep-alive connections: send, read the whole answer, repeat
stream  the same with SSE answers; gaps are between token events of one stream
idle    open N connections, ask /health once on each, print "ready", hold them until a line comes in, ask once more

Time stamps are taken right after each recv; tokens that arrive in one recv have gap 0. `lag_ms` is how long after
poll returned the last recv of its batch was done: a bound of the client's own share in the error. Connections start
evenly over `spread_s`, so that streams are not all in one phase; what ends or begins in `warmup_s` is not counted.
"""

import array
import errno
import gc
import heapq
import json
import os
import socket
import sys
import time

from bench.parser import AnswerParser
from bench.poller import READ, WRITE, new_poller, raise_file_limit
from bench.stats import efficiency, ideal_duration_s, summary_ms

DEFAULTS = {
    "mode": "plain",
    "port": 0,  # on 127.0.0.1
    "method": "POST",
    "path": "/v1/chat/completions",
    "body": "",  # text of the request's body
    "kind": "chat",  # what a token event is: chat or responses
    "conns": 32,
    "secs": 2.0,  # of measuring, after the warm-up
    "warmup_s": 0.5,
    "spread_s": 0.05,
    "ttft_ms": 0.0,  # what the server is set to: gap error, duration error and efficiency are against these
    "itl_ms": 0.0,
    "max_requests": 0,  # stop after so many (0: after secs)
    "expect_status": 200,
    "stall_s": 10.0,  # an answer without a byte for so long is an error
    "nice": 0,
}

MAX_SECS = 120.0  # of one load, warm-up included
RETRY_S = 0.05  # before a connection that failed tries again: do not hammer a failing server
_NEW, _CONNECTING, _SENDING, _READING = range(4)


class Connection:
    """One closed loop: its socket (None between connections) and the answer it waits for."""

    __slots__ = ("sock", "fd", "state", "sent", "fresh", "parser", "start", "first", "last", "active", "tokens")

    def __init__(self, kind):
        self.sock, self.fd, self.state = None, -1, _NEW
        self.sent, self.fresh = 0, True
        self.parser = AnswerParser(kind)
        self.start = self.first = self.last = self.active = 0.0
        self.tokens = 0


class Load:
    """One run of a load. Times in seconds of `time.perf_counter`."""

    def __init__(self, spec):
        self.spec = spec = dict(DEFAULTS, **spec)
        body = spec["body"].encode("utf-8")
        lines = [
            "%s %s HTTP/1.1" % (spec["method"], spec["path"]),
            "Host: 127.0.0.1:%d" % spec["port"],
            "Accept: " + ("text/event-stream" if spec["mode"] == "stream" else "application/json"),
            "Authorization: Bearer sk-test",
        ]
        if body:
            lines += ["Content-Type: application/json", "Content-Length: %d" % len(body)]
        self.request = "\r\n".join(lines + ["", ""]).encode("ascii") + body
        self.streaming = spec["mode"] == "stream"
        self.poller = new_poller()
        self.conns = {}  # descriptor -> Connection
        self.due = []  # heap of (time, number, Connection) that have no request under way
        self.number = 0
        self.requests = self.requests_all = self.started = self.reconnects = 0
        self.tokens = self.tokens_all = self.bytes = 0
        self.errors = {}
        self.bad_answer = ""
        self.tokens_min = self.tokens_max = 0
        self.latencies, self.ttfts, self.gaps, self.lags, self.late = (array.array("d") for _ in range(5))
        self.measure_from = 0.0

    # -- connections ------------------------------------------------------------------------------------------------
    def later(self, conn, when):
        """Let this connection send its next request at `when`."""
        conn.state = _NEW
        self.number += 1
        heapq.heappush(self.due, (when, self.number, conn))

    def drop(self, conn):
        """Close its socket, if it has one."""
        if conn.sock is not None:
            del self.conns[conn.fd]
            self.poller.unregister(conn.fd)
            conn.sock.close()
            conn.sock = None

    def fail(self, conn, what, now):
        """Count an error and start afresh a little later."""
        self.errors[what] = self.errors.get(what, 0) + 1
        self.drop(conn)
        self.later(conn, now + RETRY_S)

    def start(self, conn):
        """Send the next request, over a new connection if there is none."""
        limit = self.spec["max_requests"]
        if limit and self.started >= limit:
            self.drop(conn)
            return
        self.started += 1
        conn.parser.reset()
        conn.sent = conn.tokens = 0
        conn.start = conn.active = time.perf_counter()
        if conn.sock is not None:
            self.send(conn)
            return
        conn.sock = sock = socket.socket(socket.AF_INET, socket.SOCK_STREAM)
        sock.setblocking(False)
        sock.setsockopt(socket.IPPROTO_TCP, socket.TCP_NODELAY, 1)
        conn.fd, conn.fresh, conn.state = sock.fileno(), True, _CONNECTING
        self.conns[conn.fd] = conn
        result = sock.connect_ex(("127.0.0.1", self.spec["port"]))
        self.poller.register(conn.fd, READ | WRITE)
        if result not in (0, errno.EINPROGRESS, errno.EWOULDBLOCK):
            self.started -= 1
            self.fail(conn, "connect", conn.start)

    def send(self, conn):
        """Send what is left of the request; wait for room if there is none."""
        was_waiting = conn.state in (_CONNECTING, _SENDING)
        try:
            if conn.sent:
                conn.sent += conn.sock.send(memoryview(self.request)[conn.sent :])
            else:
                conn.sent = conn.sock.send(self.request)
        except BlockingIOError:
            pass
        except OSError:
            self.on_end(conn, time.perf_counter(), reset=True)
            return
        if conn.sent < len(self.request):
            if not was_waiting:
                self.poller.modify(conn.fd, READ | WRITE)
            conn.state = _SENDING
            return
        if was_waiting:
            self.poller.modify(conn.fd, READ)
        conn.state = _READING

    def on_end(self, conn, now, reset):
        """The server closed or reset the connection."""
        got = conn.parser.status or conn.tokens
        if conn.state == _NEW:
            self.drop(conn)
        elif got and not reset and conn.parser.feed_eof():
            self.finish(conn, now)
        elif not conn.fresh and not got:  # it closed a kept-alive connection as we sent: try again
            self.reconnects += 1
            self.started -= 1
            self.drop(conn)
            self.later(conn, now)
        elif conn.state == _CONNECTING:
            self.started -= 1
            self.fail(conn, "connect", now)
        else:
            self.fail(conn, "truncated" if got else "reset", now)

    # -- answers ----------------------------------------------------------------------------------------------------
    def on_ready(self, conn, mask):
        """Handle one readiness event."""
        if conn.state == _CONNECTING:
            if conn.sock.getsockopt(socket.SOL_SOCKET, socket.SO_ERROR):
                self.started -= 1
                self.fail(conn, "connect", time.perf_counter())
            elif mask & WRITE:
                self.send(conn)
            return
        if conn.state == _SENDING and mask & WRITE:
            self.send(conn)
            if conn.sock is None or not mask & ~WRITE:
                return
        try:
            data = conn.sock.recv(65536)
        except BlockingIOError:
            return
        except OSError:
            self.on_end(conn, time.perf_counter(), reset=True)
            return
        now = time.perf_counter()
        if not data:
            self.on_end(conn, now, reset=False)
            return
        conn.active = now
        parser = conn.parser
        try:
            tokens = parser.feed(data)
        except ValueError:
            self.fail(conn, "parse", now)
            return
        measuring = now >= self.measure_from
        if measuring:
            self.bytes += len(data)
        if tokens and self.streaming:
            self.on_tokens(conn, tokens, now, measuring)
        if parser.over:
            self.finish(conn, now, data)
        elif parser.status != self.spec["expect_status"] and parser.status and not self.bad_answer:
            self.bad_answer = data[-300:].decode("latin-1")

    def on_tokens(self, conn, tokens, now, measuring):
        """Record so many token events of one recv."""
        self.tokens_all += tokens
        if measuring:
            self.tokens += tokens
        repeats = tokens - 1
        if not conn.tokens:
            conn.first = now
            if conn.start >= self.measure_from:
                self.ttfts.append(now - conn.start)
        elif conn.last >= self.measure_from:
            self.gaps.append(now - conn.last)
        if repeats and measuring and self.spec["itl_ms"]:
            self.gaps.extend([0.0] * repeats)
        conn.tokens += tokens
        conn.last = now

    def finish(self, conn, now, data=b""):
        """An answer is whole: judge it, then send the next request."""
        self.requests_all += 1
        parser, what = conn.parser, ""
        if parser.status != self.spec["expect_status"]:
            what = "status"
            self.bad_answer = self.bad_answer or data[-300:].decode("latin-1")
        elif self.streaming and not parser.done:
            what = "truncated"
        elif parser.extra:
            what = "parse"
        if what:
            self.fail(conn, what, now)
            return
        if now >= self.measure_from:
            self.requests += 1
            if conn.start >= self.measure_from:
                self.latencies.append(now - conn.start)
            if self.streaming and conn.tokens:
                self.on_stream_end(conn)
        conn.fresh = False
        if parser.close or conn.state == _SENDING:  # the latter: answered before the body was sent
            self.reconnects += 1
            self.drop(conn)
        self.start(conn)

    def on_stream_end(self, conn):
        """Record the length of a stream, in tokens and against its ideal."""
        spec = self.spec
        ideal = ideal_duration_s(conn.tokens, spec["ttft_ms"] / 1e3, spec["itl_ms"] / 1e3)
        self.late.append(conn.last - conn.start - ideal)
        self.tokens_min = min(self.tokens_min or conn.tokens, conn.tokens)
        self.tokens_max = max(self.tokens_max, conn.tokens)

    # -- the loop ---------------------------------------------------------------------------------------------------
    def run(self):
        """Drive the load to its end, close all connections and return the result (see `result`). Once only."""
        spec, clock = self.spec, time.perf_counter
        began, cpu_began = clock(), time.process_time()
        self.measure_from = began + spec["warmup_s"]
        end = self.measure_from + min(spec["secs"], MAX_SECS - spec["warmup_s"])
        for i in range(spec["conns"]):
            conn = Connection(spec["kind"] if self.streaming else None)
            self.later(conn, began + spec["spread_s"] * i / spec["conns"])
        conns, due, poll, on_ready = self.conns, self.due, self.poller.poll, self.on_ready
        next_check = began + 1.0
        now = began
        while now < end:
            wait = min(end, next_check, due[0][0] if due else end) - now
            events = poll(max(0.0, wait))
            now = batch = clock()
            for descriptor, mask in events:
                conn = conns.get(descriptor)
                if conn is not None:
                    on_ready(conn, mask)
            now = clock()
            if events and now >= self.measure_from:
                self.lags.append(now - batch)
            while due and due[0][0] <= now:
                self.start(heapq.heappop(due)[2])
            if now >= next_check:
                next_check = now + 1.0
                for conn in list(conns.values()):
                    if conn.state != _NEW and now - conn.active > spec["stall_s"]:
                        self.fail(conn, "stalled", now)
            if spec["max_requests"] and not conns and not due:
                break
        cpu_s = time.process_time() - cpu_began
        for conn in list(conns.values()):
            self.drop(conn)
        self.poller.close()
        return self.result(began, now, cpu_s)

    def result(self, began, ended, cpu_s):
        """The run as a JSON-able dict; keys with units, samples as `summary_ms`."""
        spec = self.spec
        window_s = max(1e-9, ended - min(self.measure_from, ended - 1e-9))
        if spec["max_requests"]:
            window_s = max(1e-9, ended - began)
        out = {
            "mode": spec["mode"],
            "conns": spec["conns"],
            "window_s": window_s,
            "total_s": ended - began,
            "requests": self.requests,
            "requests_all": self.requests_all,
            "rps": self.requests / window_s,
            "reconnects": self.reconnects,
            "errors": sum(self.errors.values()),
            "error_kinds": self.errors,
            "bad_answer": self.bad_answer,
            "bytes": self.bytes,
            "client_cpu_s": cpu_s,
            "client_cores": cpu_s / max(1e-9, ended - began),
            "latency_ms": summary_ms(self.latencies),
            "lag_ms": summary_ms(self.lags),
        }
        if self.streaming:
            itl_s = spec["itl_ms"] / 1e3
            out.update(
                tokens=self.tokens,
                tokens_all=self.tokens_all,
                tokens_s=self.tokens / window_s,
                tokens_per_stream_min=self.tokens_min,
                tokens_per_stream_max=self.tokens_max,
                ttft_ms=summary_ms(self.ttfts),
                gap_ms=summary_ms(self.gaps),
                gap_abs_err_ms=summary_ms(abs(gap - itl_s) for gap in self.gaps),
                duration_err_mean_ms=summary_ms(self.late)["mean"],
                efficiency=efficiency(
                    self.tokens / window_s, spec["conns"], self.tokens_max, spec["ttft_ms"] / 1e3, itl_s
                ),
            )
        return out


def hold_idle(spec, lines=sys.stdin, say=print):
    """Hold many connections open without a request under way; {"open": int, "alive": int, "refused": int}.

    Says "ready" once all are open, then waits for a line before it looks whether each still answers.
    """
    spec = dict(DEFAULTS, **spec)
    wanted = min(spec["conns"], raise_file_limit(spec["conns"]) - 64)
    request = b"GET /health HTTP/1.1\r\nHost: 127.0.0.1:%d\r\n\r\n" % spec["port"]
    socks, refused = [], 0

    def asks(sock):
        parser = AnswerParser(None)
        try:
            sock.sendall(request)
            while not parser.over:
                data = sock.recv(65536)
                if not data:
                    return False
                parser.feed(data)
        except (OSError, ValueError):
            return False
        return parser.status == 200

    for _ in range(wanted):
        try:
            sock = socket.create_connection(("127.0.0.1", spec["port"]), timeout=spec["stall_s"])
        except OSError:
            refused += 1
            continue
        if asks(sock):
            socks.append(sock)
        else:
            refused += 1
            sock.close()
    say("ready", flush=True)
    lines.readline()
    alive = sum(map(asks, socks))
    for sock in socks:
        sock.close()
    return {"mode": "idle", "open": len(socks), "alive": alive, "refused": refused}


def main():
    """Read one load, run it, print its result."""
    spec = json.loads(sys.stdin.readline())
    raise_file_limit()
    if spec.get("nice") and hasattr(os, "nice"):
        os.nice(spec["nice"])
    if spec.get("mode") == "idle":
        result = hold_idle(spec)
    else:
        gc.disable()  # nothing here makes cycles, and a collection would show up as a late token
        result = Load(spec).run()
    print(json.dumps(result), flush=True)


if __name__ == "__main__":
    main()
