#!/usr/bin/env python3
"""mockturtle: an OpenAI-compatible stand-in server in plain standard-library Python.

`python server.py --port 8000`. This module is where everything meets: the ThreadingHTTPServer, start and stop, and the
tools for tests. What becomes of one request is handler.py's.
"""
import gc
import os
import signal
import sys
import threading
import traceback
from http.server import ThreadingHTTPServer

try:
    from api_common import (SSE_HEARTBEAT, SSE_KEEPALIVE, ApiError, Clock, Ids, __version__, chunked_bytes,
                            server_error)
    from backends.contract import as_backend
    from backends.factory import make_backend
    from backends.profiles import load_profile, profile_json, profile_line, profiles_text
    from backends.record import Recorder, RecordingBackend
    from backends.script_book import check_scripts
    from background import BackgroundRuns
    from extras_api import build_models_list
    from fault_room import stage_faults
    from faults import StandingFaults, read_faults, read_gates
    from handler import ROUTES, Handler, RefusedRequest, RouteTable, SocketTurn
    from observe.journal import Journal
    from observe.log import Log
    from observe.metrics import Metrics
    from observe.trace import TimingError, TimingTrace, trace_ms
    from rate_limits import RateLimits
    from responses_socket import SocketRoom
    from self_test import SELF_TEST_ITL_MS, SELF_TEST_TTFT_MS, SelfTest
    from settings import Settings, parse_settings
    from state.carry import store_command
    from state.factory import make_store
    from tokens.load import load_tokenizer
    from transport.counted import CountedSend
    from transport.gates import Gates
    from transport.http1 import HeadWriter, RequestParser
    from transport.listeners import bind_listeners, is_loopback, raise_file_limit
    from transport.loop import Connection, ListeningWire, Loop
    from transport.player import PacerThread, Player
    from transport.poller import POLL_READ, Waker, make_poller
    from transport.relay import Relay
    from transport.threaded import ConnectionThreads
    from transport.tls import TlsConnection, make_tls_context
    from transport.traced import TracedSteps
    from transport.workers import Breather, Workers
    from unittest_tools import MockTurtleTestTools, MockTurtleTools
except ImportError as exc:
    sys.stderr.write("mockturtle: error: server.py was copied without the files beside it (%s). Copy the "
                     "whole folder, or build the single file with: python tools/amalgamate.py\n" % exc)
    sys.exit(2)


class MockTurtleServer(ThreadingHTTPServer):
    """The server: sockets, store, backend, player and loop, put together from Settings.

    backend, store, clock: others than the settings say, for tests and embedders. Binds in the
    constructor (ValueError or OSError when it cannot); serve_forever() runs until shutdown().
    """

    request_queue_size = 1024
    daemon_threads = True

    def __init__(self, settings, backend=None, store=None, clock=None):
        self.settings = settings
        self.clock = clock or Clock()
        self.ids = Ids(settings.fixed_ids, self.clock.time)
        self.tokenizer = load_tokenizer(settings.tokenizer, settings.tokenizer_fetch_s)
        settings.inline_body_bytes = min(settings.inline_body_bytes, self.tokenizer.inline_bytes)
        self.backend = as_backend(backend) if backend is not None else \
            make_backend(settings, self.tokenizer, self.log, read_faults, read_gates)
        recorder = None
        if settings.record:
            recorder = Recorder(
                settings.record, settings.backend if settings.backend in ("simulated", "upstream", "replay") else "custom",
                settings.api_key + self.backend.secrets(), self.log, self.clock.monotonic, self.clock.time, Breather)
            self.backend = RecordingBackend(self.backend, recorder)
        self.metrics = Metrics(settings.model, settings.max_model_len, self.clock.monotonic)
        self.metrics.gauges = self.gauges
        self._log = Log(settings.log_level, settings.log_format, secrets=settings.api_key + self.backend.secrets(),
                        wall=self.clock.time)
        self.timing_trace = TimingTrace(settings.timing_trace, self._trace_failed, Breather()) \
            if settings.timing_trace else None
        try:
            self.store = store or make_store(settings, self.clock.time, self.log)
        except BaseException:
            if self.timing_trace is not None:
                self.timing_trace.close()
            raise
        self.timing_error = TimingError(self.metrics.lateness, self.clock)
        self.faults = StandingFaults(settings.fault, settings.seed)
        self.gates = Gates(settings.gate_timeout_s, self.clock.monotonic)
        self.journal = Journal(settings.journal, self.clock)
        self.limits = None
        if settings.requests_per_minute or settings.tokens_per_minute:
            self.limits = RateLimits(int(settings.requests_per_minute), int(settings.tokens_per_minute),
                                     self.clock.monotonic, settings.time_scale)
        self.on_reset = []              # called by reset(), beside what it does itself
        beat = SSE_KEEPALIVE if settings.heartbeat_form == "event" else SSE_HEARTBEAT
        self.metrics.engine = self.backend.engine
        self.metrics.cache_stats, self.metrics.block_tokens = self.backend.cache_stats, settings.cache_block_tokens
        self.max_body_bytes = int(settings.max_body_mb * (1 << 20))
        bound = {
            "settings": settings, "clock": self.clock, "ids": self.ids, "store": self.store,
            "note_key": None if recorder is None else recorder.note_key, "backend": self.backend, "tokenizer": self.tokenizer, "metrics": self.metrics,
            "log_exception": staticmethod(self.log_exception),
            "timing_trace": self.timing_trace, "timing_error": self.timing_error, "faults": self.faults,
            "gates": self.gates, "journal": self.journal, "limits": self.limits,
            "heartbeats": {True: chunked_bytes(beat), False: beat},
            "routes": RouteTable(ROUTES), "models_json": build_models_list(settings),
            "heads": HeadWriter(self.clock.time), "app": self}
        self.handler_class = type("BoundHandler", (Handler,), bound)
        self.turn_class = type("BoundSocketTurn", (SocketTurn,), bound)
        self.socket_room = SocketRoom(int(settings.max_store_mb * (1 << 20)))
        try:
            self._tls = make_tls_context(settings.tls_cert, settings.tls_key) if settings.tls_cert else None
            self.listeners = bind_listeners(settings, self.request_queue_size)
        except BaseException:
            self.store.close()
            if self.timing_trace is not None:
                self.timing_trace.close()
            raise
        self.beyond_loopback = not all(map(is_loopback, self.listeners))
        # The base is told of the first address only and binds nothing itself.
        ThreadingHTTPServer.__init__(self, self.listeners[0].getsockname()[:2], self.handler_class,
                                     bind_and_activate=False)
        self.socket.close()
        self.socket = self.listeners[0]
        self.server_name, self.server_port = self.server_address[:2]   # no getfqdn: it can hang
        self.workers = Workers(self.log_exception, flush=self.flush_store, written=self.store.written)
        self._waker = Waker()
        self._stopped = threading.Event()       # serve_forever() has returned
        self._stopping = threading.Event()      # a drain has begun
        self._accepting = True
        self._sweeping = self._polling = False
        self._drain_seconds = settings.drain_s
        self._pacer = self._loop = self._connection_threads = None
        self._build_transport()
        self.runs = BackgroundRuns(self.player, self.workers, self.clock, settings.max_background,
                                   self._background_ended, self.stage)
        self.handler_class.runs = self.turn_class.runs = self.runs
        self.handler_class.live_responses = self.turn_class.live_responses = set()

    def _build_transport(self):
        settings = self.settings
        if settings.transport == "threads":
            self._pacer_waker = Waker()
            self._pacer = PacerThread(make_poller, self._make_player, self.clock, self._pacer_waker,
                                      self.log_exception)
            self.player = self._pacer.player
            self._connection_threads = ConnectionThreads(self, self._pacer, self.workers)
            return
        poller = make_poller()
        self.player = self._make_player(poller, lambda job: self._loop.post(job))
        self._loop = Loop(self, self.listeners, poller, self.player, self._waker, self.workers)

    def _make_player(self, poller, wake):
        player = Player(poller, self.clock, self.metrics.lateness, self.workers.submit,
                        self.log_exception, wake, self.settings.send_timeout_s)
        if self.backend.relays:
            player.relay = Relay(poller, self.clock.monotonic, wake, self.workers.submit_blocking)
        return player

    # ---- what the transports use --------------------------------------------------------------

    def make_connection(self, sock, address, heads):
        """A Connection for an accepted socket. heads: the cache of parsed heads."""
        parser = RequestParser(heads, self.max_body_bytes)
        if self._tls is None:
            return Connection(sock, address, parser)
        return TlsConnection(sock, address, parser, self._tls)

    def make_handler(self, conn, request):
        return self.handler_class(conn, request)

    def make_turn(self, socket, message):
        """A handler for a message of a WebSocket."""
        return self.turn_class(socket, message)

    def make_refusal(self, conn, error):
        """A handler whose answer is the error, for a request that could not be read."""
        handler = self.handler_class(conn, RefusedRequest)
        handler.send_api_error(error)
        return handler

    def log(self, level, message):
        self._log.write(level, message)

    def log_exception(self):
        """The traceback of the exception being handled, to the log, once."""
        self.metrics.add("exceptions")
        self._log.write("error", "unexpected error\n" + traceback.format_exc().rstrip())

    def plays_directly(self, completion):
        """Whether an answer that is due at once need not be a play."""
        return completion.backend.engine is None and self.timing_trace is None and not completion.faults

    def stage(self, play, completion, streamed):
        """What stands between a completion's play and the player: the backend's engine, a trace."""
        if not completion.backend.blocking:
            completion.take_seat(play, self.player, streamed)
        if completion.faults or completion.backend.blocking and completion.backend.sets_faults:
            stage_faults(self, play, completion, streamed)
        if self.journal.size and streamed:
            self.count_events(play)
        if self.timing_trace is not None:
            TracedSteps(play, self.clock, lambda traced: self._traced(traced, completion, play.start_s, streamed))

    def count_events(self, play):
        """A stream's events are counted for the journal, where there is one."""
        owner = play.owner
        if self.journal.size and owner is not None:
            owner.counted = CountedSend(play, owner.chunked, owner.socket_frame is not None)

    def reset(self, store=False):
        """Back to how it was started: faults, gates, the journal, the rate limits, rules and the backend's draws.

        store: so is what is stored in memory, and background responses are stopped; not on the loop.
        """
        self.faults.clear()
        self.gates.clear()
        self.journal.clear()
        if self.limits is not None:
            self.limits.clear()
        self.backend.reset()
        for callback in self.on_reset:
            callback()
        if store and not self.store.blocking:
            self.runs.stop_all()
            if self.store.clear():
                self.ids.reset()

    def open_idle_s(self):
        """For each open connection without a request, how long that has been so."""
        if self._loop is None:
            return self._connection_threads.idle_s()
        return self._loop.idle_s()

    def _traced(self, traced, completion, start_s, streamed):
        request, usage, seat = completion.request, completion.assembler.usage, completion.seat
        self.timing_trace.add({
            "arrived": round(self.clock.time() - self.clock.monotonic() + start_s, 6), "arrived_s": round(start_s, 6),
            "endpoint": request.endpoint, "model": request.model, "streamed": streamed,
            "server_seed": self.settings.seed, "seed": request.seed, "draw": request.draw.hex(),
            "queue_ms": trace_ms(seat.queue_s) if seat is not None else 0.0,
            "prompt_tokens": usage and usage.prompt_tokens, "cached_tokens": usage and usage.cached_tokens,
            "completion_tokens": usage and usage.completion_tokens,
            "end": completion.fault or "completed" if not completion.cancel.is_set() else
                   "client left" if completion.record is None else "cancelled"},
            {"planned_ms": traced.due_s, "sent_ms": traced.sent_s})

    def _trace_failed(self, exc):
        self.log("error", "the timing trace cannot be written, and is not any more: %s" % (exc.strerror or exc))

    def request_answered(self, handler):
        """An answer is made and durable, and about to be sent: it is counted. Of one that is played only the
        head is known."""
        if handler.play is None:
            if handler.generates:
                handler.completion.count()
        elif handler.generates and handler.completion.on_count is not None:
            return                          # counted with its end
        self.count_answer(handler, handler.status)

    def count_answer(self, handler, status):
        self.metrics.count_answer(handler.route, handler.command, status)

    def request_dropped(self, handler):
        """Its client left while a worker had it."""
        late = handler.generates and handler.completion.on_count is not None
        if handler.generates:
            handler.completion.lose("abort")
        if not late:
            self.count_answer(handler, 499)

    def request_ended(self, handler, whole):
        """An answer is out, or its client has left: a line in the log, when it is wanted."""
        if handler.generates and not whole:
            handler.completion.lose("error")   # a fault of the play's: else it is counted by now
        handler.play = handler.job = handler.undo = None      # they hold each other: a cycle would wait for the collector
        if handler.reservation is not None:
            if handler.status >= 400:
                handler.reservation.settle(0)
            elif handler.completion is not None and handler.completion.record is None:
                handler.completion.settle_tokens()
        if self.journal.size and handler.is_journaled():
            self.journal.end(handler, whole)
        log = self._log
        if not log.wants_requests:
            return
        completion, model, usage, ttft_s, fault = handler.completion, None, None, None, handler.fault
        if completion is not None:
            model, usage, fault = completion.request.model, completion.assembler.usage, fault or completion.fault
            if completion.first_token_s is not None and completion.first_token_s >= handler.received_s:
                ttft_s = completion.first_token_s - handler.received_s
        log.request(handler.command, handler.path, handler.status, model, usage, ttft_s,
                    self.clock.monotonic() - handler.received_s,
                    self._ended(handler, whole, fault),
                    handler.body_bytes if log.wants_bodies and self.settings.log_bodies else None)

    @staticmethod
    def _ended(handler, whole, fault):
        """How a request ended, in words."""
        completion = handler.completion
        done = handler.faults_done if completion is None else handler.faults_done + tuple(completion.faults_done)
        ended = "client left" if not whole and not handler.cut_off else fault or "completed"
        if not done:
            return ended
        return "%s; faults: %s" % ("cut off" if handler.cut_off else ended, "; ".join(done))

    def _background_ended(self, run):
        """A line in the log for a response that nobody's request ends with."""
        completion = run.completion
        completion.settle_tokens()
        completion.lose("error")           # a fault of the play's: else it is counted by now
        usage = completion.assembler.usage
        self.log("info", "background %s model=%s tokens=%s %s" % (
            run.id, completion.request.model, "-" if usage is None else "%d+%d" % (
                usage.prompt_tokens, usage.completion_tokens),
            "cancelled" if completion.cancel.is_set() else completion.fault or "completed"))

    def flush_store(self, mark=None):
        """Make what was put durable: None, or the ApiError for whoever answers for what the mark stands for."""
        try:
            self.store.flush(mark)
        except ApiError as error:
            return error
        except Exception:
            self.log_exception()
            return server_error()
        return None

    def sweep_store(self):
        """Once a second."""
        self.timing_error.roll()
        book = self.backend.rule_book
        if book is not None and book.files and not self._polling:
            self._polling = True
            self.workers.submit(self._poll_scripts)
        if not self.store.blocking:
            self.store.sweep(1000)
        elif not self._sweeping:
            self._sweeping = True
            self.workers.submit(self._sweep_durable)

    def _poll_scripts(self):
        """On a worker: see whether script files have changed. Reading them may take long: that is another's job."""
        book = self.backend.rule_book
        try:
            if book.has_changed():
                self.workers.submit_blocking(book.poll, True)
        finally:
            self._polling = False

    def _sweep_durable(self):
        """On a worker, a few at a time, so that no request waits for long behind it."""
        try:
            self.store.sweep(100)
        except ApiError:
            return None                 # the store has said so, once
        finally:
            self._sweeping = False
        return lambda error: None

    # ---- socketserver's interface -------------------------------------------------------------

    def serve_forever(self, poll_interval=0.5):
        """Serve until shutdown() or the end of a drain. poll_interval is not used."""
        if self._pacer is not None:
            self._pacer.start()
        try:
            if self._loop is not None:
                self._loop.run()
            else:
                self._accept_forever()
        finally:
            self._stopped.set()

    def _accept_forever(self):
        """Accept for the thread-per-connection form; process_request starts the thread."""
        poller = make_poller()
        for sock in self.listeners:
            poller.watch(ListeningWire(sock), POLL_READ)
        poller.watch(self._waker, POLL_READ)
        while self._accepting:
            for wire, _ in self._waker.poll_awake(poller, 1.0, ()):
                try:
                    self.process_request(*wire.sock.accept())
                except BlockingIOError:
                    continue
                except OSError as exc:
                    self.log("warning", "cannot accept a connection: %s" % exc)
                    self._stopping.wait(0.2)
            self.sweep_store()
        poller.close()
        for sock in self.listeners:
            sock.close()
        self._connection_threads.drain()

    def finish_request(self, request, client_address):
        """On the connection's own thread, under ThreadingMixIn.process_request."""
        self._connection_threads.serve(request, client_address)

    def shutdown_request(self, request):
        """The connection's thread has closed it."""

    def handle_error(self, request, client_address):
        self.log_exception()

    def begin_drain(self, seconds=None):
        """Stop accepting; serve_forever() returns when the running answers are over."""
        self._drain_seconds = self.settings.drain_s if seconds is None else seconds
        if self._loop is not None:
            self._loop.begin_drain(self._drain_seconds)
        else:
            self._accepting = False
            self._connection_threads.limit_drain(self._drain_seconds)
            self._stopping.set()
            self._waker.wake()

    def shutdown(self):
        """Stop at once and wait for serve_forever() to return."""
        self.begin_drain(0.0)
        self._stopped.wait()

    def server_close(self):
        """Let go of sockets, threads and the store. After serve_forever() has returned."""
        for sock in self.listeners:
            sock.close()
        self.runs.close()
        if self._pacer is not None:
            self._pacer.stop()
            self._pacer_waker.close()
        self.workers.stop()
        self._waker.close()
        self.backend.close()
        self.store.close()
        if self.timing_trace is not None:
            self.timing_trace.close()
        self._log.close()

    def wakeup_fd(self):
        """A descriptor that a signal may write to, so that the loop wakes up."""
        return self._waker.signal_fd

    def urls(self):
        """The base URLs that clients can use, without /v1."""
        return ["%s://%s:%d" % ("http" if self._tls is None else "https", "[%s]" % name[0] if ":" in name[0] else name[0], name[1])
                for name in (sock.getsockname() for sock in self.listeners)]

    def gauges(self):
        """What the metrics page asks at each scrape: {name in observe/prometheus.py: number}."""
        player = self.player
        holder = self._loop or self._connection_threads
        found = {"connections_open": len(holder.connections), "websockets_open": len(player.readers),
                 "plays": len(player.plays), "heartbeats": player.heartbeats, "background": len(self.runs),
                 "worker_jobs": self.workers.waiting()}
        try:
            found.update(self.store.stats())
        except ApiError:
            return found                    # the store is broken and has said so: the page goes without it
        return found

    def summary(self):
        """One line about what was served and how punctually."""
        counts, late = self.metrics.snapshot(), self.metrics.lateness
        line = "served %d requests, %d completions, %d completion tokens; %d clients left early" % (
            counts.get("requests", 0), counts.get("completions", 0), counts.get("completion_tokens", 0),
            counts.get("disconnects", 0))
        if late.frames():
            line += "; of %d timed frames 50 %% were at most %.2f ms late, 99 %% at most %.2f ms" % (
                late.frames(), late.quantile_ms(0.5), late.quantile_ms(0.99))
        return line


# ---- in Python --------------------------------------------------------------------------------

class MockTurtle(MockTurtleTools):
    """A server for a test or a `with` block: on a free port, at once, and gone at its end.

        with MockTurtle(output_tokens=5) as mock:
            mock.reply("Hello.", match={"model": "gpt-5"})
            ...
            mock.assert_called_with(model="gpt-5")

    settings: any of Settings, as keywords; here TTFT and ITL are 0, unless they or a profile are given, the log is
    quiet and the journal has the last 300 requests.
    backend: an instance, in place of the simulated one. env: whether OPENAI_BASE_URL and OPENAI_API_KEY lead to it
    while it runs. url: "http://127.0.0.1:PORT"; base_url: the same with /v1; api_key: one that it takes. server: the
    MockTurtleServer.
    """

    def make_server(self, values, backend):
        return MockTurtleServer(Settings(**values), backend)


class MockTurtleTestCase(MockTurtleTestTools):
    """A class of tests with a MockTurtle, `self.mock`, that is as new for each of them. To be mixed in:

        class AgentTest(MockTurtleTestCase, unittest.TestCase):
            mock_settings = {"output_tokens": 5}

    mock_settings: what MockTurtle takes. It serves from setUpClass() on; what is arranged there is gone when a test
    begins.
    """

    mock_class = MockTurtle
    mixes_into_tests = True


# ---- start and stop ---------------------------------------------------------------------------

TRIM_KB = 36000                     # a start that needed more left free memory behind


def _return_memory():
    """Give the memory back that compiling the single file took: 48 MB become 28 (Linux, glibc)."""
    if not sys.platform.startswith("linux"):
        return
    import resource
    if resource.getrusage(resource.RUSAGE_SELF).ru_maxrss < TRIM_KB:
        return                              # the modules of a checkout: nothing worth the import
    try:
        from ctypes import CDLL
        CDLL(None).malloc_trim(0)
    except (ImportError, OSError, AttributeError):
        return                              # no ctypes, or another C library


def _tune_interpreter(settings):
    """Settings of the whole process, measured with python -m bench (README, "Speed")."""
    # Nothing that was made by now will be garbage; a full collection over it would stop the clock.
    gc.collect()
    _return_memory()
    gc.freeze()
    gc.set_threshold(10000, 20, 20)
    if settings.transport == "loop":
        # The loop gives up the GIL at each send; a worker that has it keeps it for this long.
        sys.setswitchinterval(0.0005)


def main(argv=None):
    """The command. Returns the process's exit code."""
    argv = sys.argv[1:] if argv is None else argv
    if argv[:1] == ["store"]:
        return store_command(argv[1:])
    settings = parse_settings(argv)
    if settings.self_test:
        return _self_test()
    if settings.check_script:
        return _check_script(settings.script)
    if settings.dump_profile or settings.profile == "list":
        return _print_profile(settings)
    files = raise_file_limit()
    try:
        server = MockTurtleServer(settings)
    except (OSError, ValueError) as exc:
        told = exc.strerror if isinstance(exc, OSError) and exc.strerror else str(exc)
        for line in told.split("\n"):
            sys.stderr.write("mockturtle: error: %s\n" % line)
        return 2

    def stop(number, frame):
        # A second signal does not wait for the running answers.
        server.begin_drain(0.0 if stopping else None)
        stopping.append(number)
    stopping = []
    signal.signal(signal.SIGINT, stop)
    signal.signal(signal.SIGTERM, stop)
    signal.set_wakeup_fd(server.wakeup_fd(), warn_on_full_buffer=False)
    server.log("notice", "version %s listens on %s%s" % (__version__, " and ".join(server.urls()), "" if files is None else
                                   " (open files: %d)" % files))
    simulated = profile_line(server.backend.profile) if server.backend.profile else server.backend.speed
    server.log("notice", "%s; try: curl %s/v1/models" % (
        server.backend.told() or "simulating " + (simulated or "with " + settings.backend), server.urls()[0]))
    if settings.record:
        server.log("notice", "every exchange is recorded in %s" % settings.record)
    idle = settings.without_effect()
    if idle:
        server.log("warning", "without effect with --backend %s: %s" % (settings.backend, ", ".join(idle)))
    if not settings.api_key and server.beyond_loopback:
        server.log("warning", "it listens beyond this machine without an --api-key; anybody who reaches the "
                  "port can use it")
    _tune_interpreter(settings)
    server.serve_forever()
    signal.set_wakeup_fd(-1)
    signal.signal(signal.SIGINT, signal.SIG_IGN)    # it is stopping already
    signal.signal(signal.SIGTERM, signal.SIG_IGN)
    server.log("notice", "stopped: " + server.summary())
    late_ms = server.metrics.lateness.quantile_ms(0.99)
    if late_ms > settings.lateness_warning_ms:
        server.log("warning", "the server could not keep its time: 1 %% of the frames were more than %.1f ms "
                  "late; a benchmark of this run measures the server" % late_ms)
    server.server_close()
    return 0


def _print_profile(settings):
    """--profile list and --dump-profile: their exit code."""
    try:
        profile = None if settings.profile == "list" else load_profile(settings)
        if profile is None and settings.profile != "list":
            raise ValueError("--dump-profile needs --profile or --calibrate: what is to be printed")
    except ValueError as exc:
        sys.stderr.write("mockturtle: error: %s\n" % exc)
        return 2
    try:
        print(profiles_text() if profile is None else profile_json(profile), flush=True)
    except BrokenPipeError:             # as in `--profile list | head`: enough was read
        os.dup2(os.open(os.devnull, os.O_WRONLY), sys.stdout.fileno())
    return 0


def _self_test():
    """--self-test: the checks' exit code."""
    with MockTurtle(env=False, ttft_ms=SELF_TEST_TTFT_MS, itl_ms=SELF_TEST_ITL_MS, output_tokens=16) as mock:
        return SelfTest(*mock.server.listeners[0].getsockname()[:2],
                        lateness=mock.server.metrics.lateness).run()


def _check_script(paths):
    """--check-script: a line for each mistake, 0 without any."""
    mistakes, warnings, count = check_scripts(paths, read_faults, read_gates)
    for warning in warnings:
        sys.stdout.write("warning: %s\n" % warning)
    for mistake in mistakes:
        sys.stdout.write("%s\n" % mistake)
    sys.stdout.write("%d mistakes\n" % len(mistakes) if mistakes else "%d rules, no mistakes\n" % count)
    return 1 if mistakes else 0


if __name__ == "__main__":
    sys.exit(main())
