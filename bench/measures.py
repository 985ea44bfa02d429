"""The tests: each starts the target as it needs it, puts a load on it and gives back figures.

A test is `f(target, options, record)`; `record(name, value)` keeps one figure under a key of report.METRICS, None
where the platform cannot tell. `options` is what parse_options of `__main__` or the guard's profile holds.
"""

import http.client
import json
import os
import re
import tempfile
import threading
import time
from functools import partial

from bench.gateway import test_gateway
from bench.process import Client, run_load
from bench.stats import median, percentile

PROMPT = "Say something about the sea."
CONNECTIONS = 32  # of the plain and the unpaced tests
PLAIN_TOKENS = 16
STREAM_TOKENS = 128  # of the unpaced test
BUSY_CONNECTIONS = 8  # of the neighbours in the mixed test
SCRAPE_EVERY_S = 0.2
SCRAPED_MODELS = 11  # names that fill the page before it is measured
HISTORY_BYTES = 2 * 1024 * 1024
SETTLE_S = 0.4  # after the start, before idle memory is read
# Requests before memory is read: Responses over the default bound of 10,000 stored ones, as from there on it is flat.
WARM_REQUESTS = {"chat": 3000, "responses": 12000}


def build_body(kind, tokens, stream=False):
    """(path, JSON text) of the one request all tests share."""
    if kind == "responses":
        path, body = "/v1/responses", {"model": "mock-model", "max_output_tokens": tokens, "input": PROMPT}
    else:
        messages = [{"role": "user", "content": PROMPT}]
        path, body = "/v1/chat/completions", {"model": "mock-model", "max_tokens": tokens, "messages": messages}
    if stream:
        body["stream"] = True
    return path, json.dumps(body, separators=(",", ":"))


def build_history(size_bytes):
    """The JSON text of a chat whose messages make so many bytes: turns of 4 KB."""
    turn = "The sea was calm and the wind came from the south. " * 80
    roles = ("user", "assistant")
    messages = [{"role": roles[i % 2], "content": turn} for i in range(size_bytes // (len(turn) + 40) | 1)]
    body = {"model": "mock-model", "max_tokens": 1, "messages": messages}  # 1: the answer comes after the TTFT
    return json.dumps(body, separators=(",", ":"))


def plain_load(kind, options, **more):
    """A load of plain requests at zero latency."""
    path, body = build_body(kind, PLAIN_TOKENS)
    load = {"mode": "plain", "kind": kind, "path": path, "body": body, "conns": CONNECTIONS}
    return dict(load, secs=options.secs, warmup_s=options.warmup_s, **more)


def paced_load(kind, options, streams):
    """A load of paced streams, their starts spread over the length of one, so that phases are even."""
    path, body = build_body(kind, options.output_tokens, stream=True)
    length_s = (options.ttft_ms + (options.output_tokens - 1) * options.itl_ms) / 1e3
    return {
        "mode": "stream",
        "kind": kind,
        "path": path,
        "body": body,
        "conns": streams,
        "secs": options.paced_secs,
        "warmup_s": length_s + 0.4,
        "spread_s": length_s,
        "ttft_ms": options.ttft_ms,
        "itl_ms": options.itl_ms,
    }


def start_paced(target, options):
    """A server with the latency that the options ask for."""
    return target.start(options.ttft_ms, options.itl_ms, options.output_tokens)


def cpu_per_million(result):
    """Server CPU seconds per million tokens, None where unknown."""
    if result["server_cpu_s"] is None or not result["tokens_all"]:
        return None
    return result["server_cpu_s"] / result["tokens_all"] * 1e6


def cpu_per_request(result):
    """Server CPU milliseconds per request, None where unknown."""
    if result["server_cpu_s"] is None or not result["requests_all"]:
        return None
    return result["server_cpu_s"] / result["requests_all"] * 1e3


def megabytes(size):
    """Bytes as MB, None as None."""
    return None if size is None else size / 1e6


def note_client(result, record):
    """What every load tells: errors, and how far the client and the machine can be trusted."""
    record("errors", result["errors"])
    record("client_cores", result["client_cores"])
    record("other_cores", result["other_cores"])


def test_cold(target, options, record):
    """Cold start to the first 200 on /health, and idle memory."""
    for _ in range(options.cold_starts):
        with target.start(0, 0, PLAIN_TOKENS) as server:
            record("cold_s", server.cold_s)
            time.sleep(SETTLE_S)
            record("idle_rss_mb", megabytes(server.usage()[1]))


def test_rps(target, options, record):
    """Plain requests per second."""
    with target.start(0, 0, PLAIN_TOKENS) as server:
        for kind in options.kinds:
            result = run_load(server, plain_load(kind, options))
            record(kind + ".rps", result["rps"])
            record(kind + ".cpu_per_request_ms", cpu_per_request(result))
            record(kind + ".rps_p50_ms", result["latency_ms"]["p50"])
            record(kind + ".rps_p99_ms", result["latency_ms"]["p99"])
            note_client(result, record)


def test_stream(target, options, record):
    """Tokens per second of streams without pacing."""
    with target.start(0, 0, STREAM_TOKENS) as server:
        for kind in options.kinds:
            path, body = build_body(kind, STREAM_TOKENS, stream=True)
            load = {"mode": "stream", "kind": kind, "path": path, "body": body, "conns": CONNECTIONS}
            result = run_load(server, dict(load, secs=options.secs, warmup_s=options.warmup_s))
            record(kind + ".tokens_s", result["tokens_s"])
            record(kind + ".cpu_per_1m_unpaced", cpu_per_million(result))
            note_client(result, record)


def test_paced(target, options, record):
    """Paced streams: how well time is kept, and at what price."""
    for kind in options.kinds:
        for streams in options.n:
            with start_paced(target, options) as server:
                result = run_load(server, paced_load(kind, options, streams))
            name = "%s.n%d." % (kind, streams)
            record(name + "err_mean_ms", result["gap_abs_err_ms"]["mean"])
            record(name + "err_p99_ms", result["gap_abs_err_ms"]["p99"])
            record(name + "err_p99_share", result["gap_abs_err_ms"]["p99"] / options.itl_ms)
            record(name + "ttft_p50_ms", result["ttft_ms"]["p50"])
            record(name + "ttft_p99_ms", result["ttft_ms"]["p99"])
            record(name + "efficiency", result["efficiency"])
            record(name + "paced_tokens_s", result["tokens_s"])
            record(name + "cpu_per_1m", cpu_per_million(result))
            record(name + "rss_mb", megabytes(result["rss_bytes"]))
            record(name + "client_lag_p99_ms", result["lag_ms"]["p99"])
            note_client(result, record)


def neighbours(options, streams_s):
    """The loads that the mixed test puts beside its streams: {name: load}."""
    common = {"secs": streams_s, "warmup_s": 0.3, "nice": 5}  # its client gives way to the one that takes the times
    path, good = build_body("chat", PLAIN_TOKENS)
    refused = json.dumps({"model": "mock-model", "messages": "a string"}, separators=(",", ":"))
    history = build_history(HISTORY_BYTES)
    return {
        "models": dict(common, method="GET", path="/v1/models", body="", conns=BUSY_CONNECTIONS),
        "refused": dict(common, path=path, body=refused, conns=BUSY_CONNECTIONS, expect_status=400),
        "history": dict(common, path=path, body=history, conns=2, stall_s=30.0),
    }


def test_mixed(target, options, record):
    """100 paced streams beside busy neighbours: what either does to the other."""
    kind = options.kinds[0]
    load = paced_load(kind, options, options.mixed_n)
    streams_s = load["warmup_s"] + load["secs"]
    with start_paced(target, options) as server:
        for name, neighbour in neighbours(options, streams_s - 0.3).items():
            if name not in options.neighbours:
                continue
            alone = None
            if name == "models":
                alone = run_load(server, dict(neighbour, secs=options.secs))["rps"]
                record("mixed.models.rps_alone", alone)
            with Client(dict(neighbour, port=server.port)) as busy:
                result = run_load(server, load)
                beside = busy.result()
            record("mixed.%s.err_mean_ms" % name, result["gap_abs_err_ms"]["mean"])
            record("mixed.%s.err_p99_ms" % name, result["gap_abs_err_ms"]["p99"])
            record("mixed.%s.ttft_p99_ms" % name, result["ttft_ms"]["p99"])
            record("mixed.%s.err_p99_share" % name, result["gap_abs_err_ms"]["p99"] / options.itl_ms)
            record("mixed.%s.efficiency" % name, result["efficiency"])
            record("mixed.%s.%s" % (name, "posts_s" if name == "history" else "rps"), beside["rps"])
            if alone:
                record("mixed.models.rps_kept", beside["rps"] / alone)
            record("errors", result["errors"] + beside["errors"])
            record("client_cores", result["client_cores"])


class Scraper(threading.Thread):
    """Reads /metrics of a server again and again, until it is stopped; `took`: seconds of each, `page`: the last."""

    def __init__(self, server, every_s=SCRAPE_EVERY_S):
        super().__init__(daemon=True)
        self.took, self.page, self.fault = [], b"", None
        self.every_s, self.port, self.stopped = every_s, server.port, threading.Event()

    def read(self, conn):
        """One scrape."""
        began = time.perf_counter()
        conn.request("GET", "/metrics")
        answer = conn.getresponse()
        self.page = answer.read()
        self.took.append(time.perf_counter() - began)
        if answer.status != 200:
            raise RuntimeError("/metrics: %d" % answer.status)

    def run(self):
        conn = http.client.HTTPConnection("127.0.0.1", self.port, timeout=30)
        try:
            while not self.stopped.wait(self.every_s):
                self.read(conn)
        except (OSError, http.client.HTTPException, RuntimeError) as fault:
            self.fault = fault
        finally:
            conn.close()

    def __enter__(self):
        self.start()
        return self

    def __exit__(self, *_):
        self.stopped.set()
        self.join(30)


def read_lateness(server):
    """The server's own lateness histogram: [(upper bound in ms, frames up to it)]."""
    conn = http.client.HTTPConnection("127.0.0.1", server.port, timeout=30)
    try:
        conn.request("GET", "/metrics")
        page = conn.getresponse().read().decode("utf-8")
    finally:
        conn.close()
    found = re.findall(r'^mockturtle_frame_lateness_seconds_bucket\{le="([^"]+)"\} (\d+)$', page, re.MULTILINE)
    return [(1e3 * float(bound.replace("+Inf", "inf")), int(frames)) for bound, frames in found]


def lateness_quantile(before, after, share):
    """The bound in ms below which this share of the frames between two read_lateness() lies."""
    frames = [(bound, late - early) for (bound, late), (_, early) in zip(after, before)]
    return next(bound for bound, seen in frames if seen >= share * frames[-1][1])


def fill_page(server):
    """Let the metrics page have all its models."""
    conn = http.client.HTTPConnection("127.0.0.1", server.port, timeout=30)
    try:
        for number in range(SCRAPED_MODELS):
            body = {"model": "model-%d" % number, "max_tokens": 2, "messages": [{"role": "user", "content": PROMPT}]}
            conn.request("POST", "/v1/chat/completions", json.dumps(body))
            conn.getresponse().read()
    finally:
        conn.close()


def test_scrape(target, options, record):
    """Paced streams without and with scrapes of /metrics beside them, in turn: what a scrape does to frames."""
    load = paced_load(options.kinds[0], options, max(options.n))
    took, page = [], b""
    with start_paced(target, options) as server:
        fill_page(server)
        for _ in range(2):
            for name in ("quiet", "scraped"):
                before = read_lateness(server)
                with Scraper(server, SCRAPE_EVERY_S if name == "scraped" else 1000.0) as scraper:
                    result = run_load(server, load)
                after = read_lateness(server)
                if scraper.fault is not None:
                    raise RuntimeError("scrape: %s" % scraper.fault)
                took += scraper.took
                page = scraper.page or page
                record("scrape.%s.err_p99_ms" % name, result["gap_abs_err_ms"]["p99"])
                record("scrape.%s.err_max_ms" % name, result["gap_abs_err_ms"]["max"])
                record("scrape.%s.late_p99_ms" % name, lateness_quantile(before, after, 0.99))
                record("scrape.%s.late_p9999_ms" % name, lateness_quantile(before, after, 0.9999))
                record("scrape.%s.client_lag_p99_ms" % name, result["lag_ms"]["p99"])
                note_client(result, record)
    took.sort()
    record("scrape.took_p50_ms", 1e3 * percentile(took, 0.5))
    record("scrape.took_max_ms", 1e3 * took[-1])
    record("scrape.page_kb", len(page) / 1e3)


def test_memory(target, options, record):
    """Growth of memory over plain requests, once the bound of stored responses is reached."""
    with target.start(0, 0, PLAIN_TOKENS) as server:
        for kind in options.kinds:
            load = plain_load(kind, options)
            load.update(secs=60.0, warmup_s=0.0, conns=8)
            before = run_load(server, dict(load, max_requests=WARM_REQUESTS[kind]))["rss_bytes"]
            result = run_load(server, dict(load, max_requests=options.memory_requests))
            if before is not None:
                record(kind + ".growth_bytes", (result["rss_bytes"] - before) / options.memory_requests)
                record(kind + ".growth_share", result["rss_bytes"] / before)
            note_client(result, record)


def test_idle(target, options, record):
    """Many idle keep-alive connections: memory and CPU while nothing happens, and whether all still answer."""
    with target.start(0, 0, PLAIN_TOKENS) as server:
        before = server.usage()[1]
        with Client({"mode": "idle", "conns": options.idle, "port": server.port}) as client:
            client.wait_ready()
            cpu, rss = server.usage()
            time.sleep(options.idle_secs)
            cpu_after = server.usage()[0]
            result = client.result()
    record("idle.open", result["open"])
    record("idle.alive", result["alive"])
    record("errors", result["open"] - result["alive"] + result["refused"])
    if before is not None and result["open"]:
        record("idle.bytes_per_connection", (rss - before) / result["open"])
        record("idle.rss_mb", megabytes(rss))
        record("idle.rss_share", rss / before)
        record("idle.cores", (cpu_after - cpu) / options.idle_secs)


def take_turns(server, count, name_of_chain):
    """Play a chain of turns, one after the other, over one connection: [seconds per turn], answers checked.

    name_of_chain(answer or None): the field that binds the next turn to what was said.
    """
    conn = http.client.HTTPConnection("127.0.0.1", server.port, timeout=30)
    taken, answer = [], None
    body = {"model": "mock-model", "input": PROMPT, "max_output_tokens": PLAIN_TOKENS}
    try:
        for turn in range(count):
            text = json.dumps(dict(body, **name_of_chain(answer)))
            began = time.perf_counter()
            conn.request("POST", "/v1/responses", text)
            reply = conn.getresponse()
            data = reply.read()
            taken.append(time.perf_counter() - began)
            answer = json.loads(data)
            if reply.status != 200 or answer["usage"]["input_tokens"] < 10 * turn:
                raise RuntimeError("turn %d: %d %s" % (turn, reply.status, data[:200]))
    finally:
        conn.close()
    return taken


def new_conversation(server):
    """The id of an empty conversation."""
    conn = http.client.HTTPConnection("127.0.0.1", server.port, timeout=30)
    try:
        conn.request("POST", "/v1/conversations", "{}")
        return json.loads(conn.getresponse().read())["id"]
    finally:
        conn.close()


def test_state(target, options, record):
    """What state costs as it grows: turns of one chain and of one conversation, and many stored responses."""
    flags = ("--max-responses", "%d" % (2 * options.stored), "--max-store-mb", "4000", "--log-level", "warning")
    for kind in ("chain", "conversation"):
        with target.start(0, 0, PLAIN_TOKENS, flags) as server:
            id = new_conversation(server) if kind == "conversation" else None
            before = server.usage()[1]
            taken = take_turns(server, options.turns, lambda answer: {"conversation": id} if id else
                               {"previous_response_id": answer["id"]} if answer else {})
            edge = max(10, options.turns // 20)
            first, last = median(taken[edge:2 * edge]) * 1e3, median(taken[-edge:]) * 1e3
            record("state.%s.turn_first_ms" % kind, first)
            record("state.%s.turn_last_ms" % kind, last)
            record("state.%s.turn_share" % kind, last / first)
            if before is not None:
                record("state.%s.bytes_per_turn" % kind, (server.usage()[1] - before) / options.turns)
    with target.start(0, 0, PLAIN_TOKENS, flags) as server:
        load = plain_load("responses", options)
        load.update(conns=8)
        before = server.usage()[1]
        few = run_load(server, dict(load, secs=0.5, warmup_s=0.1))
        fill = run_load(server, dict(load, secs=60.0, warmup_s=0.0, max_requests=options.stored))
        many = run_load(server, dict(load, secs=0.5, warmup_s=0.1))
        record("state.rps_few", few["rps"])
        record("state.rps_many", many["rps"])
        record("state.rps_share", many["rps"] / few["rps"])
        if before is not None:
            record("state.bytes_per_response", (fill["rss_bytes"] - before) / (options.stored + few["requests_all"]))
        note_client(many, record)


def stores(folder):
    """{name: flags} of the stores that the disk test compares."""
    more = ("--max-responses", "1000000", "--max-store-mb", "4000", "--log-level", "warning")
    return {"memory": more, "sqlite": ("--store", "sqlite:" + os.path.join(folder, "store.db"), *more)}


def measure_disk_rps(target, options, record):
    """Plain stored requests/s, on a new file of each server's own."""
    rates = {}
    with tempfile.TemporaryDirectory(prefix="bench-") as folder:
        for name, flags in stores(folder).items():
            with target.start(0, 0, PLAIN_TOKENS, flags) as server:
                result = run_load(server, plain_load("responses", options))
            rates[name] = result["rps"]
            record("disk.%s.rps" % name, result["rps"])
            record("disk.%s.rps_p99_ms" % name, result["latency_ms"]["p99"])
            record("disk.%s.cpu_per_request_ms" % name, cpu_per_request(result))
            note_client(result, record)
    record("disk.sqlite.rps_of_memory", rates["sqlite"] / rates["memory"])


def measure_disk_streams(target, options, record):
    """Server CPU per paced stream that is not stored, stored in memory, and in a file."""
    streams, costs = max(options.n), {}
    with tempfile.TemporaryDirectory(prefix="bench-") as folder:
        flags = stores(folder)
        for name, kept in (("unstored", "memory"), ("memory", "memory"), ("sqlite", "sqlite")):
            load = paced_load("responses", options, streams)
            load["body"] = json.dumps(dict(json.loads(load["body"]), store=name != "unstored"), separators=(",", ":"))
            with target.start(options.ttft_ms, options.itl_ms, options.output_tokens, flags[kept]) as server:
                result = run_load(server, load)
            cost = cpu_per_million(result)
            record("disk.%s.err_p99_ms" % name, result["gap_abs_err_ms"]["p99"])
            note_client(result, record)
            if cost is not None:
                costs[name] = cost * options.output_tokens / 1e3
                record("disk.%s.cpu_per_stream_ms" % name, costs[name])
                if name != "unstored":
                    record("disk.%s.cpu_of_unstored" % name, costs[name] / costs["unstored"])


def measure_disk_expiry(target, options, record):
    """What the sweep of many expired responses does to plain requests; the same file before they are expired."""
    import sqlite3

    load = dict(plain_load("responses", options), conns=BUSY_CONNECTIONS)
    with tempfile.TemporaryDirectory(prefix="bench-") as folder:
        flags, path = stores(folder)["sqlite"], os.path.join(folder, "store.db")
        with target.start(0, 0, PLAIN_TOKENS, flags) as server:
            run_load(server, dict(load, secs=100.0, warmup_s=0.0, conns=CONNECTIONS, max_requests=options.expiring))
        for name in ("quiet", "expiring"):
            if name == "expiring":
                file = sqlite3.connect(path)
                file.execute("UPDATE nodes SET created = created - 200000")
                file.commit()
                file.close()
            with target.start(0, 0, PLAIN_TOKENS, flags) as server:
                result = run_load(server, load)
            record("disk.%s.rps" % name, result["rps"])
            record("disk.%s.rps_p99_ms" % name, result["latency_ms"]["p99"])
            note_client(result, record)
        file = sqlite3.connect(path)
        record("disk.expiring.expired", file.execute("SELECT expired FROM totals").fetchone()[0])
        file.close()


def test_disk(target, options, record):
    """What it costs to keep state in a file, beside keeping it in memory and not keeping it."""
    measure_disk_rps(target, options, record)
    measure_disk_streams(target, options, record)
    measure_disk_expiry(target, options, record)


TESTS = {
    "cold": test_cold,
    "rps": test_rps,
    "stream": test_stream,
    "paced": test_paced,
    "mixed": test_mixed,
    "scrape": test_scrape,
    "memory": test_memory,
    "idle": test_idle,
    "state": test_state,
    "disk": test_disk,
    "gateway": test_gateway,
}
PACED_TESTS = ("paced", "mixed", "scrape")
UNPACED_TESTS = ("rps", "stream", "memory", "state")  # want a server without latency; the rest takes any


def _keep(figures, name, value):
    figures.setdefault(name, []).append(value)


def run_tests(targets, options, say):
    """Run the tests, repetition by repetition, the targets in turn inside each test.

    Returns {label: {metric: [value per measurement]}}; a test that fails is told through `say` and counts one error.
    """
    figures = {target.label: {} for target in targets}
    for repetition in range(options.reps):
        for test in options.tests:
            for target in targets[:1] if test in options.without_floor else targets:
                say("%d/%d %-6s %s" % (repetition + 1, options.reps, test, target.label))
                record = partial(_keep, figures[target.label])
                try:
                    TESTS[test](target, options, record)
                except RuntimeError as error:
                    say("  failed: %s" % error)
                    record("errors", 1)
    return figures
