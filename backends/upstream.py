"""Any server that speaks chat completions as a backend: the gateway.

open() connects and sends, on a worker; the exchange that it returns is then read by the relay, on the player's
thread, without ever blocking. generate() does both on one thread. Requests are translated in upstream_request,
answers in upstream_exchange.
"""
import json
import os
import socket
import time

from api_common import ApiError, content_text, dump_json, shown
from backends.contract import Backend, Cancel, Usage
from backends.upstream_deltas import ChatChunkReader, TextChunkReader, upstream_failure
from backends.upstream_exchange import RawReader, UpstreamExchange, pump_exchange
from backends.upstream_http import UpstreamFault
from backends.upstream_pool import UpstreamTarget
from backends.upstream_request import build_call, unforwarded_fields

BACKOFF_S = 0.2                     # before the first retry; twice as long before each further one
PROBE_TIMEOUT_S = 2.0
PROBE_FRESH_S = 5.0                 # an upstream that was heard of since is not asked again for /health
COUNTED_CHARS = 65536               # of a prompt without usage: so much is counted, the rest estimated


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
            if model in targets:
                raise ValueError("--upstream-url %s: there is one already for %s" % (
                    spec, "all models" if model is None else "'%s'" % model))
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

    def _connect(self, exchange, cancel, attempt=0, pooled=True, most_s=float("inf")):
        """Send the exchange's request; further attempts while nothing of it can have been read. None when it was
        cancelled. pooled: whether a connection that was used before will do. most_s: for connecting."""
        target = exchange.target
        cancel.on_cancel(exchange.interrupt_sending)
        while True:
            sock = target.take() if pooled else None
            reused = sock is not None
            try:
                if sock is None:
                    sock = target.connect(most_s)
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
                yield from pump_exchange(exchange, cancel)
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
        self._connect(exchange, cancel, self.settings.upstream_retries, False, timeout_s)
        try:
            for _, delta in pump_exchange(exchange, cancel):
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
        """{"status", "upstreams": [{"url","status","models"?, "error"?}]}; asks those of which nothing good was heard lately."""
        told = []
        for target in self.all_targets():
            if not target.up or time.monotonic() - target.seen_s > PROBE_FRESH_S:   # one lost answer is not an outage
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
