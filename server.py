#!/usr/bin/env python3
"""mockturtle: an OpenAI-compatible stand-in server in plain standard-library Python.

`python server.py --port 8000`. This module is where everything meets: the ThreadingHTTPServer, the
handler class made of the APIs' mixins, the route table, start and stop.
"""
import errno
import gc
import hmac
import os
import signal
import socket
import sys
import threading
import traceback
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer

try:
    from api_common import (LAST_CHUNK, SSE_HEARTBEAT, SSE_KEEPALIVE, ApiError, Clock, Ids, TakesLong, __version__, chunked_bytes, dump_json,
                            ignored_headers, server_error, shown)
    from background import BackgroundRuns, LogSteps
    from backends.custom import load_backend
    from backends.profiles import load_profile, profile_json, profile_line, profiles_text
    from backends.record import Recorder, RecordingBackend
    from backends.replay import ReplayBackend
    from backends.script_book import RuleBook, check_scripts
    from backends.scripted import ScriptedBackend
    from backends.simulated import SimulatedBackend
    from backends.upstream import UpstreamBackend
    from chat_api import ChatApiMixin
    from completions_api import CompletionsApiMixin
    from control_api import CONTROL_PREFIXES, ControlApiMixin, check_control
    from conversations_api import ConversationsApiMixin
    from embeddings_api import EmbeddingsApiMixin
    from extras_api import ExtrasApiMixin, build_models_list
    from fault_room import share_faults, stage_answer, stage_faults, take_faults
    from faults import StandingFaults, read_faults, read_gates
    from observe.journal import Journal
    from observe.log import Log
    from observe.metrics import Metrics
    from observe.trace import TimingError, TimingTrace, trace_ms
    from rate_limits import LIMITED_METHODS, RateLimits
    from responses_api import ResponsesApiMixin
    from responses_socket import ResponsesSocket, SocketLane, SocketRoom, SocketStore, socket_error
    from rules_api import RulesApiMixin
    from self_test import SELF_TEST_ITL_MS, SELF_TEST_TTFT_MS, SelfTest
    from settings import Settings, parse_settings
    from state.carry import store_command
    from state.memory import MemoryStore
    from state.sqlite import SqliteStore, network_file_system
    from stored_chats_api import StoredChatsApiMixin
    from tokens.load import load_tokenizer
    from transport.broken import with_content_type
    from transport.counted import CountedSend
    from transport.gates import Gates, GateWatchSteps
    from transport.http1 import JSON_TYPE, HeadWriter, RequestParser, header_bytes
    from transport.loop import Connection, ListeningWire, Loop
    from transport.player import PacerThread, Play, Player
    from transport.poller import POLL_READ, Waker, make_poller
    from transport.relay import Relay
    from transport.threaded import ConnectionThreads
    from transport.traced import TracedSteps
    from transport.tls import TlsConnection, make_tls_context
    from transport.websocket import check_handshake, handshake_headers, ws_event_framer
    from transport.workers import Breather, Workers
    from unittest_tools import MockTurtleTestTools, MockTurtleTools
except ImportError as exc:
    sys.stderr.write("mockturtle: error: server.py was copied without the files beside it (%s). Copy the "
                     "whole folder, or build the single file with: python tools/amalgamate.py\n" % exc)
    sys.exit(2)

# (path without /v1, {method: name of the mixin's method}); a "{}" takes one path segment, "{+}" the rest
ROUTES = (
    ("/chat/completions", {"POST": "chat_create", "GET": "chats_list"}),
    ("/chat/completions/{}", {"GET": "chats_retrieve", "POST": "chats_update", "DELETE": "chats_delete"}),
    ("/chat/completions/{}/messages", {"GET": "chats_messages"}),
    ("/completions", {"POST": "completions_create"}),
    ("/responses", {"POST": "responses_create", "GET": "responses_connect"}),
    ("/responses/input_tokens", {"POST": "responses_input_tokens"}),
    ("/responses/compact", {"POST": "responses_compact"}),
    ("/responses/{}", {"GET": "responses_retrieve", "DELETE": "responses_delete"}),
    ("/responses/{}/cancel", {"POST": "responses_cancel"}),
    ("/responses/{}/input_items", {"GET": "responses_input_items"}),
    ("/conversations", {"POST": "conversations_create"}),
    ("/conversations/{}", {"GET": "conversations_retrieve", "POST": "conversations_update",
                           "DELETE": "conversations_delete"}),
    ("/conversations/{}/items", {"GET": "conversations_items_list", "POST": "conversations_items_create"}),
    ("/conversations/{}/items/{}", {"GET": "conversations_items_retrieve", "DELETE": "conversations_items_delete"}),
    ("/embeddings", {"POST": "embeddings_create"}),
    ("/moderations", {"POST": "moderations_create"}),
    ("/tokenize", {"POST": "tokens_encode"}),
    ("/detokenize", {"POST": "tokens_decode"}),
    ("/models", {"GET": "models_list"}),
    ("/models/{+}", {"GET": "models_retrieve"}),
    ("/health", {"GET": "health_read"}),
    ("/_mockturtle/timing", {"GET": "control_timing"}),
    ("/_mockturtle/rules", {"GET": "rules_list", "POST": "rules_add", "DELETE": "rules_clear"}),
    ("/_mockturtle/rules/reload", {"POST": "rules_reload"}),
    ("/_mockturtle/faults", {"GET": "control_faults", "POST": "control_faults_add", "DELETE": "control_faults_clear"}),
    ("/_mockturtle/faults/{}", {"DELETE": "control_faults_remove"}),
    ("/_mockturtle/gates", {"GET": "control_gates"}),
    ("/_mockturtle/gates/{}", {"GET": "control_gate"}),
    ("/_mockturtle/gates/{}/open", {"POST": "control_gate_open"}),
    ("/_mockturtle/gates/{}/shut", {"POST": "control_gate_shut"}),
    ("/_mockturtle/requests", {"GET": "control_requests", "DELETE": "control_requests_clear"}),
    ("/_mockturtle/requests/{}", {"GET": "control_request"}),
    ("/_mockturtle/verdict", {"GET": "control_verdict"}),
    ("/_mockturtle/reset", {"POST": "control_reset"}),
    ("/_mockturtle/settings", {"GET": "control_settings", "POST": "control_settings_change"}),
    ("/metrics", {"GET": "metrics_read"}),
)
OPEN_PATHS = frozenset(("/health", "/metrics"))     # answered without a key


class _RouteMethods(dict):
    """{method: name} of a path, which it knows."""

    def __init__(self, path, methods):
        dict.__init__(self, methods)
        self.path = path


class RouteTable:
    """Paths to methods. find() costs one dict look-up for paths without parameters."""

    def __init__(self, routes):
        self._exact = {}
        self._patterns = []
        for path, methods in routes:
            methods = _RouteMethods(path, methods)
            if "{" in path:
                self._patterns.append((path.strip("/").split("/"), methods))
            else:
                self._exact[path] = methods

    def find_id(self, path, method):
        """find() for a path that is a word and an id: GET /responses/compact asks for an unknown response."""
        methods, words = self._find_pattern(path.rstrip("/")[3 if path.startswith("/v1/") else 0:])
        if methods is None or ("GET" if method == "HEAD" else method) not in methods:
            return None, ()
        return methods, words

    def find(self, path):
        """(_RouteMethods, [parameters]), or (None, ()) for an unknown path."""
        if path.startswith("/v1/"):
            path = path[3:]
        methods = self._exact.get(path)
        if methods is not None:
            return methods, ()
        if path.endswith("/"):
            path = path[:-1]
            if path in self._exact:
                return self._exact[path], ()
        return self._find_pattern(path)

    def _find_pattern(self, path):
        words = path[1:].split("/")
        for pattern, methods in self._patterns:
            if pattern[-1] == "{+}" and len(words) >= len(pattern) and words[:len(pattern) - 1] == pattern[:-1]:
                return methods, ("/".join(words[len(pattern) - 1:]),)
            if len(words) == len(pattern) and all(
                    want in ("{}", word) for want, word in zip(pattern, words)):
                return methods, [word for want, word in zip(pattern, words) if want == "{}"]
        return None, ()


class Handler(ChatApiMixin, StoredChatsApiMixin, CompletionsApiMixin, ResponsesApiMixin, ConversationsApiMixin,
              EmbeddingsApiMixin, ExtrasApiMixin, ControlApiMixin, RulesApiMixin, BaseHTTPRequestHandler):
    """One request's handler. It answers into its attributes; the transport delivers.

    answer: bytes to send, or with play: a Play to hand to the player, and job: what a worker does
    for it. moved: neither; a worker is to call answer_request() again. keep_alive: whether the connection goes on. The class attributes are set once, by the
    server, on a subclass of its own.
    """

    routes = heads = app = limits = heartbeats = None
    limited_key = None              # whose rate limits the answer tells of
    reservation = None              # rate_limits.Reservation
    note_key = None                 # Recorder.note_key, with --record
    heartbeat_asked = None          # (form, seconds or None) of a header
    entry = None                    # observe.journal.JournalEntry
    counted = None                  # transport.counted.CountedSend, of a stream that is written down
    asked_faults = ()               # faults.Fault: what is to go wrong with this request
    faults_done = ()                # texts of those that did
    faults_taken = None             # asked_faults as they were found, should the request begin again
    faults_staged = False
    cut_off = False                 # one of them ended the connection
    protocol_version = "HTTP/1.1"
    route = None                    # the path's template
    generates = streamed = False    # whether `completion` is its own, and not only watched

    def __init__(self, conn, request):
        # Not calling the base: its constructor would read a request from the socket and answer it.
        head = request.head
        self.connection = conn
        self.client_address = conn.address
        self.head = head
        self.command = head.method
        self.path = head.path
        self.headers = head.headers
        self.body_bytes = request.body
        self.chunked = not head.http10
        self.keep_alive = head.keep_alive
        self.received_s = self.clock.monotonic()
        self.answer = b""
        self.play = self.job = self.completion = self.undo = None
        self.fault = None           # the message of the error that was answered
        self.status = 200
        self.moved = False          # for a worker: set before answer_request() there, or by it elsewhere

    @property
    def query(self):
        return self.head.query()

    @property
    def server(self):
        """BaseHTTPRequestHandler's name for it."""
        return self.app

    def wants_worker(self):
        """Whether this request may take long or wait: then a worker answers it."""
        return len(self.body_bytes) > self.settings.inline_body_bytes or self.store.blocking

    def answer_request(self):
        """Route and answer. Never raises: every fault becomes an envelope."""
        if self.moved:
            self.moved = False
            self.breathe = Breather()
        try:
            self._answer_route()
        except TakesLong:
            self.moved = True
            return
        except ApiError as error:
            self.send_api_error(error)
            if error.after_s > 0.0:
                self._answer_later(error.after_s)
        except RecursionError:
            self.send_api_error(ApiError(400, "The request is nested too deeply."))
        except Exception:
            self.log_exception()
            self.send_api_error(server_error())
        if self.asked_faults and not self.faults_staged:
            self._stage_answer()
        if self.journal.size and self.is_journaled():
            self.journal.begin(self)
        self.metrics.count_request()

    do_GET = do_HEAD = do_POST = do_DELETE = do_OPTIONS = answer_request

    def _answer_route(self):
        methods, words = self.routes.find(self.path)
        method = self.command
        if methods is not None:
            self.route = methods.path
        if method == "OPTIONS" and (methods is not None or self.path == "*"):
            self._answer_options(methods or {})
            return
        if self.settings.api_key:
            if self.path not in OPEN_PATHS:
                self._check_key()
        elif self.settings.guarded():
            self._check_host()
        if self.note_key is not None:
            self.note_key(self.headers.get("authorization"))
        if self.path.startswith(CONTROL_PREFIXES):
            self.check_control()
        if methods is None:
            raise ApiError(404, "Unknown request URL: %s %s." % (method, self.path[:200]))
        name = methods.get(method) or (methods.get("GET") if method == "HEAD" else None)
        if name is None:
            others, words = self.routes.find_id(self.path, method)
            if others is not None:
                name, self.route = others["GET" if method == "HEAD" else method], others.path
        if name is None:
            raise ApiError(405, "Method %s is not allowed for %s." % (method, self.path[:200]),
                           headers=[("allow", ", ".join(sorted(methods)))])
        if self.headers.get("content-encoding", "identity").lower() != "identity":
            raise ApiError(415, "The content encoding '%s' is not supported; send the body as it is."
                           % self.headers["content-encoding"][:40])
        if self.limits is not None and name in LIMITED_METHODS:
            self._take_request()
        if self.head.asks or self.faults.active:
            take_faults(self, name)
        getattr(self, name)(*words)

    def _take_request(self):
        """Count the request against its client's limit, once."""
        if self.limited_key is None:
            self.limited_key = self.headers.get("authorization") or self.client_address[0]
            self.limits.take_request(self.limited_key)

    def _stage_answer(self):
        if self.command != "HEAD":
            stage_answer(self.app, self)

    def is_journaled(self):
        """Whether it is a client's doing, and not a test's or a monitor's."""
        return self.route not in OPEN_PATHS and not self.path.startswith(CONTROL_PREFIXES)

    def note_fault(self, fault):
        """A fault was carried out."""
        self.faults_done += (fault.text,)
        if fault.standing is not None:
            fault.standing.done += 1

    def refused(self, error):
        """The bytes of a whole answer that is an ApiError."""
        return self._render(error.status, error)

    def framed_error(self, error):
        """The frames that end a stream of events with an ApiError."""
        frame = b"event: error\ndata: %s\n\n" % error.envelope()
        return chunked_bytes(frame) + LAST_CHUNK if self.chunked else frame

    def admit(self, completion):
        if self.asked_faults:
            share_faults(self, completion)
        self._reserve(completion)

    def _reserve(self, completion):
        """Take what a completion may cost from its client's tokens. Raises ApiError 429."""
        if self.limited_key is not None:
            request, raw = completion.request, completion.request.raw or {}
            most = raw.get("max_completion_tokens") or raw.get("max_tokens") or raw.get("max_output_tokens") \
                or self.settings.output_tokens
            if self.reservation is None:    # else it began again on a worker
                self.reservation = self.limits.reserve(self.limited_key, (request.prompt_tokens() or 0) + most * request.seqs)
            completion.reservation = self.reservation

    def _check_key(self):
        """Source: api-reference 1.4. Compared in constant time; the message never repeats the key."""
        scheme, _, given = self.headers.get("authorization", "").partition(" ")
        if not given or scheme.lower() != "bearer":
            raise ApiError(401, "You didn't provide an API key: send it in the Authorization header, as "
                                "in 'Authorization: Bearer KEY'.")
        given = given.strip().encode("utf-8")
        good = False
        for key in self.settings.api_key:
            good |= hmac.compare_digest(given, key.encode("utf-8"))
        if not good:
            raise ApiError(401, "Incorrect API key provided.", code="invalid_api_key")

    def _answer_options(self, methods):
        offered = sorted(set(methods) | {"OPTIONS"} | ({"HEAD"} if "GET" in methods else set()))
        headers = [("allow", ", ".join(offered))]
        if "access-control-request-method" in self.headers:
            headers += [("access-control-allow-methods", ", ".join(offered)),
                        ("access-control-max-age", "600")]
            asked = self.headers.get("access-control-request-headers")
            if asked:
                headers.append(("access-control-allow-headers", asked))
        self.status = 204
        self.answer = self.heads.empty_head(204, self.ids.tail(), self._extra_headers(headers))

    def _extra_headers(self, headers=()):
        """The head's last lines: what the call adds, CORS, and what becomes of the connection."""
        lines = header_bytes(headers) if headers else b""
        origin = self.headers.get("origin")
        if origin is not None and self._origin_allowed(origin):
            lines += header_bytes((("access-control-allow-origin", origin), ("vary", "Origin"),
                                   ("access-control-expose-headers", "x-request-id, openai-processing-ms, x-mockturtle-ignored")))
        organization = self.headers.get("openai-organization")
        if organization is not None:
            lines += header_bytes((("openai-organization", organization),))
        if not self.keep_alive:
            lines += b"connection: close\r\n"
        elif not self.chunked:
            lines += b"connection: keep-alive\r\n"
        if self.limited_key is not None:
            lines += header_bytes(self.limits.headers(self.limited_key))
        return lines

    def _origin_allowed(self, origin):
        allowed = self.settings.cors_origin
        if self.path.startswith(CONTROL_PREFIXES):
            return False
        if not allowed:
            return not self.settings.guarded()
        return origin in allowed or "*" in allowed

    def _check_host(self):
        """A browser page whose name was rebound to this machine must not read what is kept here."""
        host = self.headers.get("host")
        if host is None or self.app.beyond_loopback:
            return
        name = host.rpartition(":")[0] if host.rpartition(":")[2].isdigit() else host
        if name.lower().rstrip(".") not in ("localhost", "127.0.0.1", "[::1]") and name not in self.settings.allow_host:
            raise ApiError(403, "The host '%s' is not allowed: this server keeps state, recordings or a way upstream, so only "
                           "loopback names are answered without a key. --allow-host adds one." % shown(name))

    def check_control(self):
        """Raises ApiError 403 where control paths, and what headers ask of us, are off."""
        keyless = not self.settings.api_key
        check_control(self.headers.get("origin"), keyless and self.app.beyond_loopback)
        if keyless:
            self._check_host()

    def reset(self, store=False):
        self.app.reset(store)

    def open_idle_s(self):
        return self.app.open_idle_s()

    def playing(self):
        return len(self.app.player.plays)

    def _elapsed_ms(self):
        return int((self.clock.monotonic() - self.received_s) * 1000)

    # ---- the Host's answers -------------------------------------------------------------------

    def log_exception(self):
        self.app.log_exception()

    def send_text(self, body, content_type):
        self.send_json(200, body, (), header_bytes((("content-type", content_type),)))

    def passed_authorization(self):
        return self.headers.get("authorization") if self.settings.upstream_forward_key else None

    def send_json(self, status, value, headers=(), type_line=JSON_TYPE):
        body = value if value.__class__ is bytes else dump_json(value)
        head = self.heads.body_head(status, len(body), self.ids.tail(), self._elapsed_ms(),
                                    self._extra_headers(headers), type_line)
        self.status = status
        self.answer = head if self.command == "HEAD" else head + body

    def send_api_error(self, error):
        if error.close:
            self.keep_alive = False
        if error.status >= 400:
            self.metrics.add("errors_%dxx" % (error.status // 100))
        self.play = self.job = None
        self.fault = error.message      # not the error: its traceback would hold this object
        self.send_json(error.status, error.envelope(), error.headers)
        if error.media is not None:
            self.answer = with_content_type(self.answer, error.media)

    def _answer_later(self, after_s):
        """The answer is ready, but not due yet."""
        self.play = Play(self._wire(), self.received_s, iter(((after_s, self.answer),)))
        self.play.owner = self
        self.answer = b""

    def _wire(self):
        """What an answer is written to."""
        return self.connection

    def unkept(self, error):
        """What this request wrote could not be made durable: its answer is the error."""
        if self.generates:
            self.completion.on_count = None     # the error's answer is counted instead
            self.completion.lose("error")
        if self.play is not None and self.play.on_gone is not None:
            self.play.on_gone()
        if self.undo is not None:
            self.undo()
        self.job = None
        self.send_api_error(error)

    def send_completion(self, completion, streamed, headers=()):
        self.completion = completion
        self.generates, self.streamed = True, streamed
        if self.asked_faults:
            completion.faults = self.asked_faults
        if self.limited_key is not None:
            self._reserve(completion)
        ignored = completion.request.ignored_fields
        if ignored:
            headers = list(headers) + ignored_headers(ignored, self.settings)
        if streamed and not self.chunked:
            self.keep_alive = False         # HTTP/1.0: the close is the stream's end
        if completion.backend.blocking:
            self._send_pushed(completion, streamed, headers)
            return
        deltas = completion.planned()
        if streamed:
            self._new_play(completion.iter_stream(deltas, self.chunked), completion, True)
            completion.begin(self.received_s, self.play)
            self.play.frame = self._stream_head(headers)
            self.app.stage(self.play, completion, True)
            return
        due_s, step = completion.plain_step(deltas, lambda status, body: self._render(status, body, headers))
        if due_s <= 0.0 and (not step.blocking or self.breathe is not None) and self.app.plays_directly(completion):
            completion.start_s, completion.counted_later = self.received_s, True
            self.answer = step.run()    # on a worker it may wait
        else:
            self._new_play(iter(((due_s, step),)), completion, False)
            self._begin_late(completion)
            self.app.stage(self.play, completion, False)

    def send_events(self, log, at, completion=None, headers=()):
        self.completion = completion
        if not self.chunked:
            self.keep_alive = False
        if self.command == "HEAD":
            self.answer = self._stream_head(headers)
            return
        heartbeat_s, heartbeat = self._heartbeat()
        steps = LogSteps(log, at, self.chunked, heartbeat_s, heartbeat)
        metrics = self.metrics
        self.play = Play(self.connection, self.received_s, steps, on_gone=lambda: metrics.add("disconnects"),
                         heartbeat_s=heartbeat_s, heartbeat=heartbeat, timed=False)
        self.play.push = steps
        self.play.frame = self._stream_head(headers)
        self.play.owner = self
        self.app.count_events(self.play)

    def send_gate(self, name, count, wait_s):
        if wait_s <= 0:
            self.send_json(200, self.gates.report(name))
            return
        steps = GateWatchSteps(self.gates, name, count, wait_s, lambda: self._render(200, self.gates.report(name)),
                               self.app.player)
        self.play = Play(self.connection, self.received_s, steps, timed=False)
        self.play.push = steps
        self.play.owner = self

    def send_websocket(self):
        conn, app = self.connection, self.app
        headers = handshake_headers(check_handshake(self.head, self.body_bytes))
        origin = self.headers.get("origin")
        if origin is not None and not self._origin_allowed(origin):
            raise ApiError(403, "The origin '%s' is not allowed." % shown(origin))
        rest, conn.unread = conn.parser.take_rest() + conn.unread, b""
        socket = ResponsesSocket(app, conn, self.head, rest)
        self.status = 101
        self.keep_alive = False         # the connection ends with the WebSocket
        play = self.play = Play(conn, self.received_s, socket, on_gone=socket.left, timed=False)
        play.push = play.reader = socket
        play.frame = self.heads.empty_head(101, self.ids.tail(), header_bytes(headers))
        play.owner = self
        self.metrics.add("websockets")

    def _stream_head(self, headers):
        return self.heads.stream_head(self.ids.tail(), self._elapsed_ms(), self.chunked,
                                      self._extra_headers(headers))

    def _heartbeat(self):
        """(seconds, frame) of this request's heartbeats."""
        seconds, frame = self.settings.heartbeat_s, self.heartbeats[self.chunked]
        if self.heartbeat_asked is None:
            return seconds, frame
        form, asked_s = self.heartbeat_asked
        bare = SSE_KEEPALIVE if form == "event" else SSE_HEARTBEAT
        return 0.0 if form == "off" else seconds if asked_s is None else asked_s, \
            chunked_bytes(bare) if self.chunked else bare

    def _new_play(self, steps, completion, streamed):
        heartbeat_s, heartbeat = self._heartbeat()
        app = self.app

        def gone():
            for callback in completion.abandon():
                app.workers.submit(callback)
        self.play = Play(self.connection, self.received_s, steps, on_gone=gone,
                         heartbeat_s=heartbeat_s if streamed else 0.0, heartbeat=heartbeat)
        self.play.owner = self

    def _begin_late(self, completion, play=None):
        """Begin a generation whose end decides over the answer's status."""
        completion.on_count = self._count_late
        completion.begin(self.received_s, play)

    def _count_late(self, outcome):
        left = outcome == "abort" and not (self.streamed and self.play.push.head is None)   # no head is out
        self.app.count_answer(self, 499 if left else self.status)

    def _send_pushed(self, completion, streamed, headers):
        heartbeat_s, heartbeat = self._heartbeat()
        steps = completion.pushed_steps(
            streamed, self._stream_head(headers) if streamed else b"", self.settings.commit_grace_s,
            heartbeat_s, heartbeat, self.chunked)
        self._new_play(steps, completion, streamed)
        play = self.play
        play.push = steps
        play.timed = completion.assembler.counts and not completion.backend.relays     # else nothing has a due time
        self._begin_late(completion, play if streamed else None)
        player = self.app.player

        def render(status, body):
            return self._render(status, body, headers)
        self.app.stage(play, completion, streamed)
        self.job = lambda: completion.run_pushed(play, player, render, streamed)

    def _render(self, status, body, headers=()):
        """An answer's bytes: JSON as it is, or an ApiError's envelope."""
        if isinstance(body, ApiError):
            self.send_api_error(body)
        else:
            self.send_json(status, body, headers)
        return self.answer


class SocketTurn(Handler):
    """A message of a WebSocket, answered as a request is: with a play, or with an error in `answer`.

    started: its play has begun. previous_id: what it follows.
    """

    def __init__(self, socket, message):
        self.socket = socket
        self.message = message
        self.lane = message.lane
        self.connection = socket.conn
        self.client_address = socket.conn.address
        self.head = socket.head
        self.command = "WS"
        self.path = socket.head.path
        self.headers = socket.head.headers
        self.body_bytes = message.data
        self.chunked = False
        self.keep_alive = True
        self.received_s = self.clock.monotonic()    # its time counts from here, not from its place in the queue
        self.answer = b""
        self.play = self.job = self.completion = self.fault = None
        self.status = 200
        self.moved = self.started = False
        self.store = SocketStore(self.app.store, socket.memory, message.lane)
        self.socket_frame = ws_event_framer(message.lane)
        id = message.body.get("previous_response_id") if message.body is not None else None
        self.previous_id = id if id.__class__ is str else None

    def _answer_route(self):
        self.route = "/responses"
        if self.message.error is not None:
            raise self.message.error
        if self.limits is not None:
            self._take_request()
        if self.head.asks or self.faults.active:
            take_faults(self, "responses_turn", self.message.body)
        self.responses_turn(dict(self.message.body))    # it may be asked again, on a worker

    def _stage_answer(self):
        return                                          # an error of one message, which has no other form

    def _wire(self):
        return SocketLane(self.app.player, self.socket.play)

    def send_api_error(self, error):
        self.metrics.add("errors_%dxx" % (error.status // 100))
        self.play = self.job = None
        self.fault = error.message
        self.status = error.status
        self.answer = socket_error(error, self.lane)

    def send_completion(self, completion, streamed, headers=()):
        ignored_headers(completion.request.ignored_fields, self.settings)   # for --refuse-ignored
        self.completion = completion
        self.generates = True
        if self.asked_faults:
            completion.faults = self.asked_faults
        if self.limited_key is not None:
            self._reserve(completion)
        player, app = self.app.player, self.app

        def gone():
            for callback in completion.abandon():
                app.workers.submit(callback)

        def render(status, error):
            self.send_api_error(error)
            return self.answer
        if completion.backend.blocking:
            steps = completion.pushed_steps(True, b"", self.settings.commit_grace_s, 0.0, b"", False)
        else:
            steps = completion.iter_stream(completion.planned(), False)
        play = Play(self._wire(), self.received_s, steps, on_gone=gone)
        play.owner = self
        if completion.backend.blocking:
            play.push = steps
            self.job = lambda: completion.run_pushed(play, player, render, True)
        completion.begin(self.received_s, play)
        app.stage(play, completion, True)
        self.play = play


class _RefusedHead:
    """Stands for the head of a request that could not be read."""

    method = "GET"
    path = ""
    headers = {}
    http10 = False
    keep_alive = False


class _RefusedRequest:
    head = _RefusedHead
    body = b""


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
        self.backend = backend or self._make_backend()
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

    def _make_backend(self):
        """The one that the settings name, with a script in front of it. Raises ValueError."""
        settings = self.settings
        behind = make_backend(settings, self.tokenizer, self.log)
        if getattr(behind, "judges", False):
            if settings.script:
                raise ValueError("--script does not go with --backend %s: rules stand in front of the others only"
                                 % settings.backend)
            return behind
        voice = behind if settings.backend == "simulated" else SimulatedBackend.from_settings(settings, self.tokenizer)
        book = RuleBook(settings.script, settings.script_only, self.log, read_faults, read_gates)
        for file in book.files:
            for warning in file.warnings:
                self.log("warning", str(warning))
        return ScriptedBackend(book, behind, voice, self.tokenizer, settings.time_scale)

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
        handler = self.handler_class(conn, _RefusedRequest)
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
        if completion.faults or completion.backend.blocking and getattr(completion.backend, "sets_faults", False):
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
        if hasattr(self.backend, "reset"):
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
        self.metrics.count_answer(handler.route, handler.command, handler.status)

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
        book = getattr(self.backend, "rule_book", None)
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


def make_backend(settings, tokenizer, log):
    """The backend that --backend names. Raises ValueError for one that cannot be made."""
    if settings.upstream_url and settings.backend != "upstream":
        raise ValueError("--upstream-url needs --backend upstream")
    if settings.replay and settings.backend != "replay":
        raise ValueError("--replay needs --backend replay")
    if settings.backend == "simulated":
        return SimulatedBackend.from_settings(settings, tokenizer)
    if settings.backend == "upstream":
        return UpstreamBackend.from_settings(settings, tokenizer, log)
    if settings.backend == "replay":
        fallback = SimulatedBackend.from_settings(settings, tokenizer) if settings.replay_fallback else None
        replaying = ReplayBackend.from_settings(settings, fallback)
        if settings.model == Settings.model and replaying.models:
            settings.model = replaying.models
        return replaying
    return load_backend(settings.backend, settings)


def make_store(settings, wall, log):
    """The store that --store names. Raises ValueError for a file that cannot be one."""
    bounds = (settings.max_responses, int(settings.max_store_mb * (1 << 20)), settings.store_ttl_s, wall)
    if settings.store == "memory":
        return MemoryStore(*bounds)
    path = settings.store[len("sqlite:"):]
    kind = network_file_system(path)
    if kind is not None:
        log("warning", "--store %s is on a network file system (%s): servers on several machines must not share it, and "
            "locks may not hold" % (path, kind))
    return SqliteStore(path, *bounds, sync=settings.store_sync, log=log)


# ---- start and stop ---------------------------------------------------------------------------

def bind_listeners(settings, backlog):
    """Listening sockets for the settings' hosts; without any, 127.0.0.1 and, where it exists, ::1.

    Clients that resolve `localhost` try ::1 first. Raises OSError that names the address.
    """
    for attempt in range(20):
        try:
            return _bind_all(settings.host or ("127.0.0.1", "::1"), settings.port, backlog,
                             not settings.host)
        except OSError as exc:
            # port 0: the free one that the first address got may be taken on the second
            if settings.port or exc.errno != errno.EADDRINUSE or attempt == 19:
                raise


def _bind_all(hosts, port, backlog, first_is_enough):
    listeners = []
    for number, host in enumerate(hosts):
        try:
            listeners.append(_bind_listener(host, port, backlog))
        except OSError as exc:
            if number and first_is_enough and exc.errno != errno.EADDRINUSE:
                continue                    # no IPv6 here: 127.0.0.1 alone
            for sock in listeners:
                sock.close()
            raise OSError(exc.errno, "cannot listen on %s port %d: %s" % (host, port, exc.strerror or exc))
        port = listeners[0].getsockname()[1]    # port 0: all addresses get the one that was free
    return listeners


def _bind_listener(host, port, backlog):
    family, _, _, _, address = socket.getaddrinfo(host, port, type=socket.SOCK_STREAM,
                                                  flags=socket.AI_PASSIVE)[0]
    sock = socket.socket(family, socket.SOCK_STREAM)
    try:
        if os.name == "posix":
            # on Windows it would let two servers have one port
            sock.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1)
        if family == socket.AF_INET6:
            sock.setsockopt(socket.IPPROTO_IPV6, socket.IPV6_V6ONLY, 1)
        sock.bind(address)
        sock.listen(backlog)
        sock.setblocking(False)
    except BaseException:
        sock.close()
        raise
    return sock


def raise_file_limit():
    """The soft limit of open files to the hard one. Returns it, or None where there is none."""
    try:
        import resource
    except ImportError:
        return None
    soft, hard = resource.getrlimit(resource.RLIMIT_NOFILE)
    if soft != hard:
        try:
            resource.setrlimit(resource.RLIMIT_NOFILE, (hard, hard))
            soft = hard
        except (ValueError, OSError):
            return soft                     # macOS: the hard limit may be "unlimited" and refused
    return None if soft == resource.RLIM_INFINITY else soft


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
    profile = getattr(server.backend, "profile", None)
    server.log("notice", "%s; try: curl %s/v1/models" % (
        server.backend.told() or "simulating " + (profile_line(profile) if profile else getattr(
            server.backend, "speed", "") or "with " + settings.backend), server.urls()[0]))
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


def is_loopback(sock):
    """Whether a listening socket can be reached from this machine only."""
    host = sock.getsockname()[0]
    return host == "::1" or host.startswith("127.")


if __name__ == "__main__":
    sys.exit(main())
