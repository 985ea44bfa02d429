"""Any server that speaks chat completions as a backend: the gateway.

open() connects and sends, on a worker; the exchange that it returns is then read by the relay, on the player's
thread, without ever blocking. generate() does both on one thread. Requests are translated in upstream_request,
answers in upstream_http and upstream_deltas.
"""
import json
import os
import socket
import time

from api_common import ApiError, content_text, dump_json, shown
from backends.contract import Backend, Cancel, Failure, RawAnswer, ReasoningDelta, TextDelta, ToolCallDelta, Usage
from backends.upstream_deltas import ChatChunkReader, TextChunkReader, read_error, upstream_failure
from backends.upstream_http import MAX_EVENT_BYTES, AnswerReader, EventReader, UpstreamFault
from backends.upstream_pool import UpstreamTarget
from backends.upstream_request import build_call, unforwarded_fields

UPSTREAM_READ_BYTES = 65536
MAX_ERROR_BYTES = 1 << 20           # of an error's body that is looked at
BACKOFF_S = 0.2                     # before the first retry; twice as long before each further one
FINISHED_WAIT_S = 5.0               # for usage and [DONE], when all choices have said that they are finished
DRAIN_WAIT_S = 2.0                  # for the last bytes of an answer, so that its connection can be used again
PROBE_TIMEOUT_S = 2.0
PROBE_FRESH_S = 5.0                 # an upstream that was heard of since is not asked again for /health
COUNTED_CHARS = 65536               # of a prompt without usage: so much is counted, the rest estimated


class RawReader:
    """In place of a ChunkReader, for answers that are not taken apart."""

    usage = None
    finished = failed = False


class UpstreamExchange:
    """One request to an upstream and its answer. One thread at a time.

    sock: the connection, non-blocking once it is sent. over: all deltas were given out. settled: the connection is
    back in the pool, or closed. wait_s: how long nothing may come from now on. fresh: nothing has come yet; and
    reused: on a connection that others used before: together they mean that another attempt does no harm.
    observer: None, or called with (exchange, data) for all bytes that come: with request and these, an exchange can
    be recorded.
    """

    observer = None

    def __init__(self, target, method, path, body, reader, count, wait_s, authorization=None):
        """reader: a ChunkReader or RawReader. count(texts, thoughts) -> Usage where the upstream gives none, or None."""
        self.target = target
        self.path = path
        self.body = body                # what was sent, as bytes
        self.sock = None
        self.over = self.settled = False
        self.fresh, self.reused = True, False
        self.wait_s = wait_s
        self._request = target.request_bytes(method, path, body, authorization)
        self._secret = authorization or target.key
        self._chunks = reader
        self._count = count
        self._answer = AnswerReader()
        self._events = None             # EventReader, or a list of bytes for an answer that is one piece
        self._size = 0
        self._marked = False            # it said that it is over
        self._sending = False
        self._texts, self._thoughts = [], []

    @property
    def fd(self):
        return self.sock.fileno()

    # ---- on a worker --------------------------------------------------------------------------

    def send(self, sock, reused):
        """Send the request over a connection. Raises OSError."""
        self.sock, self.reused = sock, reused
        self._sending = True
        sock.settimeout(self.wait_s)
        sock.sendall(self._request)
        sock.setblocking(False)
        self._sending = False

    def interrupt_sending(self):
        """Any thread: send() ends with an OSError, if it is under way."""
        if self._sending:
            self.interrupt()

    def interrupt(self):
        """Any thread: who waits for the connection sees its end."""
        if self.settled or self.sock is None:
            return
        try:
            self.sock.shutdown(socket.SHUT_RDWR)
        except OSError:
            return                      # it has ended already

    # ---- reading ------------------------------------------------------------------------------

    def read(self):
        """The deltas of what came, which may be none. Raises ApiError; UpstreamFault with `fresh` while
        nothing of an answer has come."""
        data = self._receive()
        if data is None:
            return []
        if self.observer is not None:
            self.observer(self, data)
        if not data:
            return self._ended()
        self.fresh = False
        return self._guarded(self._take, data)

    def _receive(self):
        """Bytes, b"" at the end, None when nothing is there."""
        try:
            data = self.sock.recv(UPSTREAM_READ_BYTES)
            if hasattr(self.sock, "pending"):
                while data and self.sock.pending():     # decrypted already: the poller knows nothing of it
                    data += self.sock.recv(UPSTREAM_READ_BYTES)
        except BlockingIOError:
            return None
        except OSError as exc:
            if type(exc).__name__ in ("SSLWantReadError", "SSLWantWriteError"):
                return None
            return b""                  # a reset is an end like any other
        return data

    def _guarded(self, step, *args):
        try:
            return step(*args)
        except UpstreamFault as fault:
            if fault.fresh:
                raise
            raise self._failure(fault.message)

    def _failure(self, what, status=502):
        self.target.note(what)
        return upstream_failure("The upstream's answer cannot be used: %s." % what, status)

    def _take(self, data):
        answer = self._answer
        bodies = answer.feed(data)
        out = []
        if not self.over:
            for body in bodies:
                self._take_body(body, out)
        if answer.over:
            self._end_body(out)
        elif self.over and not answer.reusable:
            self.close()
        elif self._chunks.finished and self.wait_s > FINISHED_WAIT_S:
            self.wait_s = FINISHED_WAIT_S
        return out

    def _take_body(self, body, out):
        if self._events is None:
            body = body.lstrip()        # a JSON answer may begin with blank lines that kept its connection alive
            if not body:
                return
            plain = self._answer.status != 200 or body[:1] in (b"{", b"[", b"<") or self._chunks.__class__ is RawReader
            self._events = [] if plain else EventReader()
        if self._events.__class__ is list:
            self._size += len(body)
            if self._size > MAX_EVENT_BYTES:
                raise UpstreamFault("it is too long")
            if self._answer.status == 200 or self._size < MAX_ERROR_BYTES:
                self._events.append(body)
            return
        self._take_events(self._events.feed(body), out)

    def _take_events(self, events, out):
        for data in events:
            if self.over:
                return
            if data == b"[DONE]" or data == b" [DONE]":
                self._marked = True
                self._finish(out)
                return
            if data.strip():
                self._take_value(self._decoded(data), out)

    def _decoded(self, data):
        try:
            return json.loads(data.decode("utf-8", "replace"))
        except (ValueError, RecursionError):
            raise UpstreamFault("it is not valid JSON")

    def _take_value(self, value, out):
        for delta in self._chunks.feed(value):
            kind = delta.__class__
            if kind is Failure:
                self._redact(delta.error)
                self.over = True
            elif self._count is not None:
                if kind is TextDelta:
                    self._texts.append(delta.text)
                elif kind is ReasoningDelta:
                    self._thoughts.append(delta.text)
                elif kind is ToolCallDelta:
                    self._texts.append((delta.name or "") + delta.arguments)
            out.append(delta)

    def _ended(self):
        """The upstream has closed."""
        if self.over:
            self.close()
            return []
        self._guarded(self._answer.feed_eof)
        out = []
        self._guarded(self._end_body, out)
        return out

    def _end_body(self, out):
        """All of the answer is here."""
        if not self.over:
            status = self._answer.status
            if status != 200 and not 200 <= status < 300:
                raise self._error_answer(status)
            if self._events.__class__ is list:
                whole = b"".join(self._events)
                if whole.startswith(b"<"):
                    raise UpstreamFault("it is a page for people")
                value = self._decoded(whole)
                self._marked = True
                if self._chunks.__class__ is RawReader:
                    out.append(RawAnswer(whole))
                else:
                    self._take_value(value, out)
            elif self._events is not None:
                self._take_events(self._events.feed_eof(), out)
            else:
                raise UpstreamFault("it is empty")
            if not self.over:
                self._finish(out)
        self.close()

    def _finish(self, out):
        """The deltas that end it."""
        self.over = True
        self.wait_s = DRAIN_WAIT_S
        chunks = self._chunks
        if chunks.__class__ is RawReader:
            self.target.note()
            return
        out += chunks.end(self._marked)
        if chunks.failed:
            self.target.note("it broke off in mid-answer")
            return
        self.target.note()
        usage = chunks.usage
        if usage is None and self._count is not None:
            usage = self._count(self._texts, self._thoughts)
        if usage is not None:
            out.append(usage)

    def _error_answer(self, status):
        """What is no success, as an ApiError."""
        whole = b"".join(self._events or ())
        value = None
        if not whole.startswith(b"<"):
            try:
                value = json.loads(whole.decode("utf-8", "replace"))
            except (ValueError, RecursionError):
                value = whole[:300].decode("utf-8", "replace").strip() or None
        if 300 <= status < 400:
            return self._failure("it redirects (status %d), which is not followed" % status)
        self.target.note("" if status < 500 else "status %d" % status)
        headers = self._answer.headers
        kept = [(name, headers[name]) for name in ("retry-after",) if headers.get(name, "").isprintable()
                and headers.get(name)]
        error = read_error(status, value, "The upstream answered with status %d." % status, kept)
        self._redact(error)
        return error

    def _redact(self, error):
        """An upstream that repeats its key in a message must not tell it to our clients."""
        for secret in (self._secret, self._secret[7:] if self._secret[:7].lower() == "bearer " else ""):
            if secret:
                error.message = error.message.replace(secret, "***")
                error.code = error.code.replace(secret, "***") if error.code else error.code

    def timed_out(self):
        """Nothing came for wait_s: the ApiError for it, or None when it was only to be tidied away."""
        over, finished = self.over, self._chunks.finished
        self.close()
        if over or finished:
            return None
        self.target.note("it did not answer in time")
        return upstream_failure("The upstream sent nothing for %g s." % self.wait_s, 504, "upstream_timeout")

    def finish_late(self):
        """All choices are finished and nothing more comes: the deltas that end it."""
        out = []
        if not self.over:
            self._marked = True
            self._finish(out)
        return out

    def close(self):
        """Let go of the connection, for the next request where it can be used again. Once."""
        if self.settled:
            return
        self.settled = True
        if self._answer.over and self._answer.reusable:
            self.target.give(self.sock)
        elif self.sock is not None:
            self.sock.close()


class UpstreamBackend(Backend):
    """Answers from upstreams. targets: {model or None for all others: UpstreamTarget}. model_map: {client's name:
    upstream's}. settings: the upstream_... ones are read. log(level, message)."""

    blocking = True
    relays = judges = True

    def __init__(self, targets, model_map, settings, tokenizer, log=lambda level, message: None):
        self.targets = targets
        self.model_map = model_map
        self.settings = settings
        self.tokenizer = tokenizer
        self._log = log
        self.observer = None            # see UpstreamExchange

    @classmethod
    def from_settings(cls, settings, tokenizer, log, environ=None):
        """Raises ValueError for settings that do not go together."""
        keys, targets, by_url = _read_keys(settings, os.environ if environ is None else environ), {}, {}
        for spec in settings.upstream_url:
            model, url = split_upstream(spec)
            key = keys.pop(model, "")
            if (url, key) not in by_url:
                by_url[url, key] = UpstreamTarget(url, settings.upstream_connect_timeout_s, settings.upstream_ca, key)
            targets[model] = by_url[url, key]
        if keys:
            model = next(iter(keys))
            raise ValueError("--upstream-api-key-env: there is no --upstream-url %s" % (
                "for the model '%s'" % model if model is not None else "for all models"))
        model_map = dict(spec.split("=", 1) for spec in settings.model_map)
        return cls(targets, model_map, settings, tokenizer, log)

    def secrets(self):
        """What must never be logged."""
        return tuple(target.key for target in self.targets.values() if target.key)

    def told(self):
        return "a gateway to " + ", ".join(
            target.label if model is None else "%s for %s" % (target.label, model)
            for model, target in self.targets.items())

    def all_targets(self):
        return list(dict.fromkeys(self.targets.values()))

    def route(self, model):
        """(UpstreamTarget, the model's name there). Raises ApiError 404."""
        name = self.model_map.get(model, model)
        target = self.targets.get(model) or self.targets.get(name) or self.targets.get(None)
        if target is None:
            raise ApiError(404, "The model '%s' does not exist: no upstream serves it." % shown(model),
                           code="model_not_found", param="model")
        return target, name

    # ---- requests -----------------------------------------------------------------------------

    def admit(self, request):
        self.route(request.model)
        if request.raw is not None and request.endpoint != "forward":
            request.ignored_fields = unforwarded_fields(request, self.settings)
            if request.ignored_fields:
                self._log("info", "not forwarded: " + ", ".join(map(shown, request.ignored_fields[:20])))

    def open(self, request, cancel):
        """Connect and send; an UpstreamExchange that waits for its answer.

        Raises ApiError. Returns None when it was cancelled meanwhile.
        """
        exchange = self._make_exchange(request)
        exchange.observer = self.observer
        return self._connect(exchange, cancel)

    def _make_exchange(self, request):
        settings = self.settings
        target, model = self.route(request.model)
        wait_s = settings.upstream_read_timeout_s
        authorization = request.authorization
        if request.endpoint == "forward":
            body = request.raw
            if body is not None and "model" in body:
                body = dict(body, model=model)
            path = (target.root if request.from_root else target.base) + request.path
            return UpstreamExchange(target, request.method, path, None if body is None else dump_json(body),
                                    RawReader(), None, wait_s, authorization)
        call = build_call(request, model, settings)
        if call.dropped:
            self._log("warning", "not forwarded to %s: %s" % (target.label, ", ".join(call.dropped[:20])))
        if request.endpoint == "completions":
            chunks = TextChunkReader(request.n)
        else:
            chunks = ChatChunkReader(request.n, call.tools, "summary" if request.reasoning_items == "summary" else "raw",
                                     settings.upstream_think)

        def count(texts, thoughts):
            return self._counted_usage(request, texts, thoughts)
        return UpstreamExchange(target, "POST", target.base + call.path, dump_json(call.body), chunks, count, wait_s,
                                authorization)

    def _connect(self, exchange, cancel, attempt=0, pooled=True):
        """Send the exchange's request; further attempts while nothing of it can have been read. None when it was
        cancelled. pooled: whether a connection that was used before will do."""
        target = exchange.target
        cancel.on_cancel(exchange.interrupt_sending)
        while True:
            sock = target.take() if pooled else None
            reused = sock is not None
            try:
                if sock is None:
                    sock = target.connect()
                exchange.send(sock, reused)
            except (OSError, UpstreamFault) as exc:
                if sock is not None:
                    sock.close()
                if cancel.is_set():
                    return None
                if not reused:
                    pooled = False
                    if attempt >= self.settings.upstream_retries:
                        raise self._unreachable(target, exc)
                    if cancel.wait(BACKOFF_S * (1 << attempt)):
                        return None
                    attempt += 1
                continue
            if cancel.is_set():
                sock.close()
                return None
            return exchange

    def reopen(self, exchange, request, cancel, attempt):
        """open() once more, after a connection that ended before any answer. attempt: from 1; 0 for one that was
        used before, which costs no attempt. Raises ApiError when there were enough."""
        exchange.close()
        if attempt > self.settings.upstream_retries:
            raise self._unreachable(exchange.target, "the connection was closed before an answer")
        if attempt and cancel.wait(BACKOFF_S * (1 << attempt - 1)):
            return None
        again = self._make_exchange(request)
        again.observer = self.observer
        return self._connect(again, cancel, attempt, False)

    def _unreachable(self, target, exc):
        what = exc.message if exc.__class__ is UpstreamFault else getattr(exc, "strerror", None) or str(exc)
        target.note(what)
        self._log("warning", "upstream %s: %s" % (target.label, what))
        if isinstance(exc, socket.timeout):
            return upstream_failure("The upstream cannot be reached in time.", 504, "upstream_timeout")
        return upstream_failure("The upstream cannot be reached: %s." % what)

    def generate(self, request, cancel):
        """The deltas as they come, on one thread, for who has no relay."""
        attempt = 0
        exchange = self.open(request, cancel)
        while exchange is not None:
            cancel.on_cancel(exchange.interrupt)
            try:
                yield from _pumped(exchange, cancel)
                return
            except UpstreamFault:
                attempt += not exchange.reused
                exchange = self.reopen(exchange, request, cancel, attempt)
            finally:
                if exchange is not None:
                    exchange.close()

    def _counted_usage(self, request, texts, thoughts):
        """This server's own count, where the upstream gave none."""
        count = self.tokenizer.count
        prompt = request.history.tokens
        if prompt is None:
            text = prompt_text(request.raw)
            prompt = count(text[:COUNTED_CHARS])
            if len(text) > COUNTED_CHARS:
                prompt = prompt * len(text) // COUNTED_CHARS
        reasoning = count("".join(thoughts))
        return Usage(prompt, count("".join(texts)) + reasoning, reasoning, 0, True)

    # ---- models and health --------------------------------------------------------------------

    def fetch(self, target, method, path, timeout_s, authorization=None):
        """One small request on this thread: its JSON, decoded. Raises ApiError."""
        exchange = UpstreamExchange(target, method, path, None, RawReader(), None, timeout_s, authorization)
        cancel = Cancel()
        self._connect(exchange, cancel, self.settings.upstream_retries, False)
        try:
            for _, delta in _pumped(exchange, cancel):
                return json.loads(delta.body)
        except UpstreamFault as fault:
            raise upstream_failure("The upstream cannot be reached: %s." % fault.message)
        finally:
            exchange.close()
        return None

    def models(self, authorization=None):
        """All models of all upstreams, and the names that are mapped to them: [model object]. Raises ApiError when
        no upstream tells any."""
        found, trouble = {}, None
        for target in self.all_targets():
            named = [model for model, each in self.targets.items() if each is target and model is not None]
            try:
                value = self.fetch(target, "GET", target.base + "/models", PROBE_TIMEOUT_S, authorization)
            except ApiError as error:
                trouble, value = error, None
            listed = value.get("data") if value.__class__ is dict else None
            listed = [each for each in listed if each.__class__ is dict and each.get("id").__class__ is str] \
                if listed.__class__ is list else []
            if self.targets.get(None) is target:
                for each in listed:
                    found.setdefault(each["id"], each)
            known = {each["id"]: each for each in listed}
            for model in named:
                there = known.get(self.model_map.get(model, model), {})
                found[model] = dict({"object": "model", "created": self.settings.started, "owned_by": "upstream"},
                                    **dict(there, id=model))
        for name, there in self.model_map.items():
            if name not in found:
                found[name] = dict(found.get(there) or {"object": "model", "created": self.settings.started,
                                                        "owned_by": "upstream"}, id=name)
        if not found and trouble is not None:
            raise trouble
        return list(found.values())

    def health(self):
        """{"status", "upstreams": [{"url","status","models"?, "error"?}]}; asks those that were not heard of lately."""
        told = []
        for target in self.all_targets():
            if target.up is None or time.monotonic() - target.seen_s > PROBE_FRESH_S:
                self._probe(target)
            entry = {"url": target.label, "status": "ok" if target.up else "unavailable"}
            named = [model for model, each in self.targets.items() if each is target and model is not None]
            if named:
                entry["models"] = named
            if not target.up:
                entry["error"] = target.trouble
            told.append(entry)
        return {"status": "ok" if all(each["status"] == "ok" for each in told) else "degraded", "upstreams": told}

    def _probe(self, target):
        try:
            self.fetch(target, "GET", target.base + "/models", PROBE_TIMEOUT_S)
        except ApiError as error:
            # a 401 or 404 comes from a server that is there
            target.note("" if error.status < 500 else error.message)

    def close(self):
        for target in self.all_targets():
            target.close()


def _pumped(exchange, cancel):
    """An exchange's (None, delta), read with waits."""
    import select
    while not exchange.over:
        if cancel.is_set():
            return
        if hasattr(select, "poll"):
            poll = select.poll()
            poll.register(exchange.fd, select.POLLIN)
            ready = poll.poll(exchange.wait_s * 1000)
        else:
            ready = select.select([exchange.fd], [], [], exchange.wait_s)[0]
        if not ready:
            error = exchange.timed_out()
            if error is not None:
                raise error
            for delta in exchange.finish_late():
                yield None, delta
            return
        for delta in exchange.read():
            yield None, delta


def prompt_text(raw):
    """All words of a chat's messages or a completion's prompt."""
    prompt = raw.get("prompt")
    if prompt.__class__ is str:
        return prompt
    if prompt.__class__ is list:
        return " ".join(each if each.__class__ is str else dump_json(each).decode("ascii") for each in prompt)
    messages = raw.get("messages")
    texts = []
    for message in messages if messages.__class__ is list else ():
        content = message.get("content") if message.__class__ is dict else None
        if content.__class__ is list:
            content = [part for part in content if part.__class__ in (dict, str)]
            texts.append(content_text(content))
        elif content.__class__ is str:
            texts.append(content)
    return "\n".join(texts)


def split_upstream(spec):
    """[MODEL=]X as (model or None, X). The '=' of a URL's own does not count."""
    model, equals, rest = spec.partition("=")
    if equals and "://" not in model:
        return model, rest
    return None, spec


def _read_keys(settings, environ):
    """{model or None: key} of --upstream-api-key-env. Raises ValueError for a variable that is not set."""
    keys = {}
    for spec in settings.upstream_api_key_env:
        model, name = split_upstream(spec)
        key = environ.get(name, "")
        if not key:
            raise ValueError("--upstream-api-key-env %s: the variable is not set" % spec)
        if not (key.isascii() and key.isprintable()):
            raise ValueError("--upstream-api-key-env %s: the variable holds what no header can carry" % spec)
        keys[model] = key
    return keys
