"""One request's handler: the APIs' mixins on the transport, and the table of routes.

In: a request that was read, or a message of a WebSocket. Out: its answer in attributes, which the transport delivers;
key, host and control guards, heads and the errors' envelopes are here.
"""
import hmac
from http.server import BaseHTTPRequestHandler

from api_common import (LAST_CHUNK, SSE_HEARTBEAT, SSE_KEEPALIVE, ApiError, TakesLong, chunked_bytes, dump_json,
                        ignored_headers, server_error, shown)
from background import LogSteps
from chat_api import ChatApiMixin
from completions_api import CompletionsApiMixin
from control_api import CONTROL_PREFIXES, ControlApiMixin, check_control
from conversations_api import ConversationsApiMixin
from embeddings_api import EmbeddingsApiMixin
from extras_api import ExtrasApiMixin
from fault_room import share_faults, stage_answer, take_faults
from rate_limits import LIMITED_METHODS
from responses_api import ResponsesApiMixin
from responses_socket import ResponsesSocket, SocketLane, SocketStore, socket_error
from rules_api import RulesApiMixin
from stored_chats_api import StoredChatsApiMixin
from transport.broken import with_content_type
from transport.gates import GateWatchSteps
from transport.http1 import JSON_TYPE, header_bytes
from transport.player import Play
from transport.websocket import check_handshake, handshake_headers, ws_event_framer
from transport.workers import Breather

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


class RefusedRequest:
    head = _RefusedHead
    body = b""
