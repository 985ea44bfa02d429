"""Faults on demand: their vocabulary, the one reader of all its spellings, and those that stand at a server.

A fault is text, "kind:key=value,key=value" (several with ";" between them), or JSON, {"kind": ..., "key": value}, or a
list of either. Read once, wherever it came from: a flag, a header, a control call, a rule. What becomes of it is said
in transport/faulty.py (bytes), runs.py (deltas) and server.py (errors). Any thread.
"""
import json
import re
import threading
from collections import OrderedDict
from hashlib import blake2b

from api_common import ApiError, shown

MAX_FAULT_MS = 3600000.0            # nothing stalls for longer than an hour
FAULTS_AT_ONCE = 20                 # of one request, and in one list
FAULT_TEXT_CHARS = 12000            # of one text; it is looked through from each ";"
BODIES_COUNTED = 10000              # how many different bodies a rate tells apart; the oldest go first

_FAULT_TEXT = re.compile(r"\s*([A-Za-z_]+)\s*(?::(.*))?\Z", re.DOTALL)
_FAULT_PAIR = re.compile(r'\s*([A-Za-z_]+)\s*=\s*("[^"]*"|[^,"]*)\s*(?:,|\Z)')
_FAULT_SPLIT = re.compile(r';(?=(?:[^"]*"[^"]*")*[^"]*\Z)')
_FAULT_INTEGER = re.compile(r"-?[0-9]{1,11}\Z")
_GATE_NAME = re.compile(r"[A-Za-z0-9_.-]{1,64}\Z")
_GATE_TEXT = re.compile(r"\s*([A-Za-z0-9_.-]{1,64})\s*(?:@\s*([0-9]{1,9})\s*)?\Z")


# ---- values -----------------------------------------------------------------------------------
# A reader takes what was said (any JSON, or text) and returns the value; ValueError says what it must be.

def _fault_integer(low, high=None):
    def read(value):
        if value.__class__ is str and _FAULT_INTEGER.match(value):
            value = int(value)
        if value.__class__ is not int or value < low or high is not None and value > high:
            raise ValueError("an integer of %s%d%s" % (("at least ", low, "") if high is None
                                                      else ("", low, " to %d" % high)))
        return value
    return read


def _fault_number(low, high):
    def read(value):
        if value.__class__ is str:
            try:
                value = float(value)
            except ValueError:
                value = None
        if value.__class__ not in (int, float) or not low <= value <= high:
            raise ValueError("a number from %g to %g" % (low, high))
        return float(value)
    return read


def _fault_flag(value):
    if value.__class__ is str:
        value = {"true": True, "1": True, "yes": True, "on": True,
                 "false": False, "0": False, "no": False, "off": False}.get(value.lower())
    if value.__class__ is not bool:
        raise ValueError("true or false")
    return value


def _fault_word(*words):
    def read(value):
        if value not in words:
            raise ValueError("one of " + ", ".join(words))
        return value
    return read


def _fault_name(value):
    if value.__class__ is not str or not value or len(value) > 500 or not value.isprintable():
        raise ValueError("a text of at most 500 characters on one line")
    return value


def _fault_bytes(value):
    value = _fault_integer(-1000000, 1000000)(value)
    if not value:
        raise ValueError("an integer other than 0")
    return value


_FAULT_MS = _fault_number(0, MAX_FAULT_MS)
_FAULT_EVENT = _fault_integer(1)


class FaultKind:
    """params: {key: (reader, default)}; `needs`: keys without which it means nothing. streamed, plain: which
    answers it is for. generation: it is of what is generated, not of the answer's bytes: a background response has it."""

    def __init__(self, params, needs=(), streamed=True, plain=True, generation=False):
        self.params = params
        self.needs = needs
        self.streamed = streamed
        self.plain = plain
        self.generation = generation


def _at_event(**params):
    """Params of a fault that befalls an event: the k-th, or all of a type."""
    found = {"event": (_FAULT_EVENT, 3), "type": (_fault_name, None)}
    found.update(params)
    return found


FAULT_KINDS = {
    "error": FaultKind({
        "status": (_fault_integer(200, 599), 500), "code": (_fault_name, None), "type": (_fault_name, None),
        "message": (_fault_name, None), "param": (_fault_name, None),
        "retry_after_s": (_fault_number(0, 86400), None), "should_retry": (_fault_flag, None),
        "body": (_fault_word("json", "html", "text", "empty"), "json")}),
    "slow_headers": FaultKind({"ms": (_FAULT_MS, 1000.0)}),
    "stall": FaultKind(_at_event(ms=(_FAULT_MS, 1000.0), heartbeats=(_fault_flag, True)), generation=True),
    "cut": FaultKind(_at_event(where=(_fault_word("headers", "before", "frame", "character"), "before"),
                               how=(_fault_word("fin", "rst"), "fin"), ms=(_FAULT_MS, None))),
    "malformed": FaultKind(_at_event(how=(_fault_word("truncated", "garbage", "empty"), "truncated"))),
    "missing": FaultKind(_at_event(), plain=False),
    "repeated": FaultKind(_at_event(count=(_fault_integer(2, 100), 2)), plain=False),
    "reordered": FaultKind({"event": (_FAULT_EVENT, 3)}, plain=False),
    "extra": FaultKind(_at_event(form=(_fault_word("unknown", "keepalive", "empty_choices", "empty_data"), "unknown")),
                       plain=False),
    "without": FaultKind(_at_event(field=(_fault_name, None)), needs=("field",)),
    "split": FaultKind(_at_event(where=(_fault_word("frame", "character"), "frame"), ms=(_FAULT_MS, 20.0)),
                       plain=False),
    "slow_body": FaultKind({"bytes": (_fault_integer(1, 1000000), 16), "ms": (_FAULT_MS, 10.0)}),
    "long_line": FaultKind(_at_event(bytes=(_fault_integer(1, 10000000), 200000)), plain=False),
    "sse": FaultKind({"form": (_fault_word("crlf", "no_space", "multi_line", "fields", "bom"), "crlf")}, plain=False),
    "bad_chunk": FaultKind(_at_event(), plain=False),
    "wrong_length": FaultKind({"bytes": (_fault_bytes, 10)}, streamed=False),
    "content_type": FaultKind({"value": (_fault_name, "text/html")}),
    "no_terminal": FaultKind({"only": (_fault_word("all", "done"), "all")}, plain=False),
    "failed": FaultKind({"event": (_FAULT_EVENT, 3), "code": (_fault_name, "server_error"),
                         "message": (_fault_name, None)}, generation=True),
    "incomplete": FaultKind({"event": (_FAULT_EVENT, 3),
                             "reason": (_fault_word("max_output_tokens", "content_filter"), "max_output_tokens")},
                            generation=True),
    "close": FaultKind({"how": (_fault_word("fin", "rst"), "fin")}),
    "lost_previous": FaultKind({"why": (_fault_word("expired", "evicted", "unknown"), "expired")}),
    "store_full": FaultKind({}, generation=True),
    "compaction": FaultKind({"items": (_fault_integer(0, 2), 0)}, streamed=False),
    "gate": FaultKind({"name": (_fault_name, None), "event": (_FAULT_EVENT, 3)}, needs=("name",), generation=True),
}

# What a fault may say of the requests that it befalls, where it stands at the server.
_ENDPOINT_OF = {
    "chat_create": "chat", "completions_create": "completions", "responses_create": "responses",
    "responses_turn": "responses", "responses_connect": "connect", "responses_compact": "compact",
    "responses_input_tokens": "input_tokens", "responses_retrieve": "retrieve", "responses_cancel": "cancel",
    "embeddings_create": "embeddings", "moderations_create": "moderations", "models_list": "models",
    "models_retrieve": "models"}
FAULT_ENDPOINTS = ("chat", "completions", "responses", "compact", "embeddings", "moderations", "input_tokens",
                   "retrieve", "cancel", "models", "connect", "other", "any")
_USUAL_ENDPOINTS = frozenset(("chat", "completions", "responses", "compact", "embeddings", "moderations"))
_GENERATING = frozenset(("chat", "completions", "responses"))
_OF_HTTP = frozenset(("slow_headers", "slow_body", "sse", "bad_chunk", "wrong_length", "content_type"))
_FAULT_CHOICE = {
    "rate": (_fault_number(0, 1), 1.0), "times": (_fault_integer(1), None), "after": (_fault_integer(0), 0),
    "endpoint": (_fault_word(*FAULT_ENDPOINTS), None), "model": (_fault_name, None), "stream": (_fault_flag, None)}


FAULT_CHOICES = tuple(_FAULT_CHOICE)


# ---- reading ----------------------------------------------------------------------------------

class Fault:
    """One fault as it was said. kind: a key of FAULT_KINDS; fault["event"] and so on: its values, with defaults.

    choice: {key: value} of what it says about requests. given: {key: value} of what was said. text: the same in one
    line. standing: None, or the StandingFault that it comes from.
    """

    __slots__ = ("kind", "values", "choice", "given", "text", "standing")

    def __init__(self, kind, values, choice, given, text):
        self.kind = kind
        self.values = values
        self.choice = choice
        self.given = given
        self.text = text
        self.standing = None

    def __getitem__(self, key):
        return self.values[key]

    def __repr__(self):
        return "<Fault %s>" % self.text

    def of(self, standing):
        """The same one, as it comes from a standing fault."""
        fault = Fault(self.kind, self.values, self.choice, self.given, self.text)
        fault.standing = standing
        return fault

    def hits(self, number, name):
        """Whether an event is the one that it befalls. number: from 1; name() -> its type."""
        wanted = self.values["type"]
        return number == self.values["event"] if wanted is None else wanted == name()


def read_faults(value, standing=False):
    """Faults as they were said, as a list of Fault: text, an object, a list of them, or Faults read before.

    standing: they may say which requests they befall (rate, times, after, endpoint, model, stream).
    Raises ValueError with one clear line.
    """
    if value is None:
        return []
    if value.__class__ in (list, tuple):
        found = [fault for each in value for fault in read_faults(each, standing)]
    elif value.__class__ is Fault:
        return [value]
    elif value.__class__ is dict:
        found = _read_fault_object(value, standing)
    elif value.__class__ is str:
        if len(value) > FAULT_TEXT_CHARS:
            raise ValueError("a text of %d characters; at most %d are allowed" % (len(value), FAULT_TEXT_CHARS))
        found = [fault for part in _FAULT_SPLIT.split(value) if part.strip() for fault in _read_fault_text(part, standing)]
        if not found:
            raise ValueError("a fault is expected, as in 'cut:event=3'; the kinds are %s" % ", ".join(FAULT_KINDS))
    else:
        raise ValueError("a fault must be a text or an object, not %s" % shown(value))
    if len(found) > FAULTS_AT_ONCE:
        raise ValueError("%d faults at once; at most %d are allowed" % (len(found), FAULTS_AT_ONCE))
    return found


def read_gates(value):
    """Gates as they were said, as a list of Fault of kind gate: "name@event", several with commas; {"name", "event"};
    a list of them. Without an event a gate is before the first. Raises ValueError."""
    if value is None:
        return []
    if value.__class__ in (list, tuple):
        return [gate for each in value for gate in read_gates(each)]
    if value.__class__ is Fault:
        return [value]
    if value.__class__ is dict:
        return [_make_fault("gate", dict({"event": 1}, **{key: each for key, each in value.items() if key != "kind"}),
                            False)]
    if value.__class__ is not str:
        raise ValueError("a gate must be a text, as in 'name@3', or an object, not %s" % shown(value))
    found = []
    for part in value.split(","):
        match = _GATE_TEXT.match(part)
        if not match:
            raise ValueError("the gate '%s' is not of the form name@event: up to 64 letters, digits, '_', '.' and "
                             "'-', then the number of an event" % shown(part))
        found.append(_make_fault("gate", {"name": match.group(1), "event": match.group(2) or 1}, False))
    return found


def _read_fault_object(value, standing):
    kind = value.get("kind")
    if kind is None and standing and value.get("fault") is not None:
        return _read_chosen(value)
    if kind is None and list(value) == ["gate"]:
        return read_gates(value["gate"])
    if kind.__class__ is not str:
        raise ValueError("a fault needs a 'kind'; the kinds are %s" % ", ".join(FAULT_KINDS))
    return [_make_fault(kind, {key: each for key, each in value.items() if key != "kind" and each is not None},
                        standing)]


def _read_chosen(value):
    """{"fault": ..., "times": ...}: faults that were said elsewhere, with a choice of requests."""
    choice = {key: each for key, each in value.items() if key != "fault" and each is not None}
    found = []
    for fault in read_faults(value["fault"], True):
        given = dict(fault.given, **choice)
        found.append(_make_fault(fault.kind, given, True))
    return found


def _read_fault_text(text, standing):
    found = _FAULT_TEXT.match(text)
    if not found:
        raise ValueError("the fault '%s' is not of the form kind:key=value,key=value" % shown(text))
    kind, rest = found.groups()
    rest = rest or ""
    if kind == "gate" and rest and "=" not in rest:
        return read_gates(rest)
    given, at = {}, 0
    while rest[at:].strip():
        pair = _FAULT_PAIR.match(rest, at)
        if not pair:
            raise ValueError("the fault '%s' is not of the form kind:key=value,key=value; texts with commas stand in "
                             "double quotes" % shown(text))
        key, value = pair.groups()
        if key in given:
            raise ValueError("the fault '%s' says '%s' twice" % (kind, key))
        given[key] = value[1:-1] if value[:1] == '"' else value.strip()
        at = pair.end()
    return [_make_fault(kind, given, standing)]


def _make_fault(kind, given, standing):
    known = FAULT_KINDS.get(kind)
    if known is None:
        raise ValueError("unknown fault '%s'; the kinds are %s" % (shown(kind), ", ".join(FAULT_KINDS)))
    values = {key: default for key, (_, default) in known.params.items()}
    choice = {key: default for key, (_, default) in _FAULT_CHOICE.items()} if standing else {}
    words = []
    for key, value in given.items():
        home = values
        entry = known.params.get(key)
        if entry is None:
            entry, home = _FAULT_CHOICE.get(key), choice
            if entry is None or not standing:
                raise ValueError("the fault '%s' has no '%s'%s; it has %s" % (
                    kind, shown(key), "" if entry is None else " here: only faults that stand at the server say which "
                    "requests they befall", ", ".join(known.params) or "no keys"))
        try:
            home[key] = entry[0](value)
        except ValueError as exc:
            raise ValueError("the fault '%s': '%s' must be %s, not '%s'" % (kind, key, exc, shown(value)))
        words.append("%s=%s" % (key, _fault_shown(home[key])))
    for key in known.needs:
        if values[key] is None:
            raise ValueError("the fault '%s' needs '%s'" % (kind, key))
    if kind == "gate" and not _GATE_NAME.match(values["name"]):
        raise ValueError("the fault 'gate': 'name' must be up to 64 letters, digits, '_', '.' and '-'")
    if kind == "without" and "event" not in given and "type" not in given:
        values["event"] = None          # in all of them
    return Fault(kind, values, choice, given, kind + (":" + ",".join(words) if words else ""))


def _fault_shown(value):
    if value.__class__ is bool:
        return "true" if value else "false"
    if value.__class__ is float:
        return "%g" % value
    text = str(value)
    return '"%s"' % text if "," in text or ";" in text else text


# ---- errors -----------------------------------------------------------------------------------

# Status -> (type, code, message). Source: api-reference 2.2, and what gateways in front of it say.
_FAULT_ERRORS = {
    400: ("invalid_request_error", None, "The request is not valid."),
    401: ("invalid_request_error", "invalid_api_key", "Incorrect API key provided."),
    403: ("invalid_request_error", "unsupported_country_region_territory", "This request is not permitted."),
    404: ("invalid_request_error", "model_not_found", "The model does not exist or you do not have access to it."),
    408: ("invalid_request_error", "request_timeout", "The request was not complete in time."),
    409: ("invalid_request_error", "conflict", "The resource is being changed by another request."),
    413: ("invalid_request_error", "request_too_large", "The request body is too large."),
    422: ("invalid_request_error", None, "The request cannot be processed."),
    429: ("requests", "rate_limit_exceeded", "Rate limit reached for requests. Please retry later."),
    500: ("server_error", None, "The server had an error while processing the request."),
    502: ("server_error", "bad_gateway", "The upstream server gave no valid answer."),
    503: ("server_error", "server_overloaded", "The server is overloaded. Please retry later."),
    504: ("server_error", "gateway_timeout", "The upstream server did not answer in time."),
    529: ("server_error", "overloaded", "The server is overloaded. Please retry later."),
}
_QUOTA = ("insufficient_quota", "insufficient_quota", "You exceeded your current quota.")


class FaultError(ApiError):
    """An error on demand. media: the body's content type where it is no JSON; bare: that body."""

    bare = b""

    def envelope(self):
        return self.bare if self.media is not None else ApiError.envelope(self)


# What stands between a client and the service says it in its own words.
_FAULT_BODIES = {
    "html": ("text/html", b"<html>\r\n<head><title>%d</title></head>\r\n<body><h1>%d</h1><hr>gateway</body>\r\n</html>\r\n"),
    "text": ("text/plain", b"upstream error %d (%d)\n"), "empty": ("text/plain", None)}


def fault_error(fault):
    """A fault of kind error as the ApiError that a client gets."""
    status = fault["status"]
    known = _FAULT_ERRORS.get(status)
    if known is None:
        known = ("server_error", None, "The server had an error.") if status >= 500 or status < 400 else (
            "invalid_request_error", None, "The request is refused.")
    if fault["code"] == "insufficient_quota":
        known = _QUOTA
    headers = []
    wait_s = fault["retry_after_s"]
    if wait_s is None and status in (429, 503) and fault["code"] != "insufficient_quota":
        wait_s = 1.0
    if wait_s is not None:
        headers += retry_headers(wait_s)
    if fault["should_retry"] is not None:
        headers.append(("x-should-retry", "true" if fault["should_retry"] else "false"))
    error = FaultError(status, fault["message"] or known[2], type=fault["type"] or known[0],
                       code=fault["code"] or known[1], param=fault["param"], headers=headers)
    if fault["body"] != "json":
        error.media, bare = _FAULT_BODIES[fault["body"]]
        error.bare = b"" if bare is None else bare % (status, status)
    return error


def retry_headers(wait_s):
    """How long a client is to wait, in the two headers that SDKs read. Source: api-reference 1.3."""
    return [("retry-after", max(0, -int(-wait_s // 1))), ("retry-after-ms", max(0, -int(-wait_s * 1000 // 1)))]


# ---- which requests ---------------------------------------------------------------------------

class FaultTarget:
    """A request in the eyes of who decides about faults. name: the handler's method for it. data: its body's bytes;
    body: the same as a dict where it is known already. socket: it is a turn on a WebSocket."""

    __slots__ = ("endpoint", "data", "socket", "_body")

    def __init__(self, name, data, body=None, socket=False):
        self.endpoint = _ENDPOINT_OF.get(name, "other")
        self.data = data
        self.socket = socket
        self._body = body

    @property
    def body(self):
        """{} for what is no JSON object."""
        if self._body is None:
            try:
                body = json.loads(self.data) if self.data else {}
            except (ValueError, RecursionError):
                body = {}
            self._body = body if body.__class__ is dict else {}
        return self._body

    @property
    def streamed(self):
        return self.socket or bool(self.body.get("stream"))

    def misses(self, fault):
        """Why a fault means nothing for this request, or None."""
        kind, endpoint = fault.kind, self.endpoint
        if endpoint == "connect":
            return None if kind == "error" else "the handshake of a WebSocket; its turns have it"
        if self.socket and kind in _OF_HTTP:
            return "answers over HTTP"
        known = FAULT_KINDS[kind]
        if not (known.streamed and known.plain) and endpoint != "retrieve" and known.streamed != self.streamed:
            return "streamed answers" if known.streamed else "answers that are not streamed"
        if kind in ("failed", "incomplete") and endpoint not in _GENERATING:
            return "what generates: chat, completions, responses"
        if kind == "lost_previous" and (endpoint not in ("responses", "compact", "input_tokens") or not (
                self.body.get("previous_response_id") or self.body.get("conversation"))):
            return "a turn with 'previous_response_id' or 'conversation'"
        if kind == "store_full" and (self.body.get("store") is False if endpoint == "responses"
                                     else endpoint != "chat" or not self.body.get("store")):
            return "what is stored"
        if kind == "compaction" and endpoint != "compact":
            return "/responses/compact"
        return None


class StandingFault:
    """A fault that waits at the server for requests. id; fault; matched: requests that it was for; done: how often it
    was carried out; left: how many it is still for, or None for any number."""

    def __init__(self, id, fault):
        self.id = id
        self.fault = fault
        self.matched = 0
        self.done = 0
        self.left = fault.choice["times"]

    def report(self):
        choice = {key: value for key, value in self.fault.choice.items() if value is not None and key != "times"}
        return {"id": self.id, "object": "fault", "fault": self.fault.text, "kind": self.fault.kind, "times_left": self.left,
                "matched": self.matched, "done": self.done, "rate": choice["rate"], "after": choice["after"],
                "endpoint": choice.get("endpoint"), "model": choice.get("model"), "stream": choice.get("stream")}


class StandingFaults:
    """Those of the flags, which stay, and those of control calls. seed: of the draws.

    active: whether there are any, so that a server without has one look to do. A draw depends on the seed, the
    fault, the request's body and how often that body came: it repeats at any concurrency.
    """

    def __init__(self, specs=(), seed=0):
        self.active = False
        self._key = b"%d|" % seed
        self._lock = threading.Lock()       # guards the rest
        self._count = 0
        self._all = []
        self._seen = OrderedDict()
        self._flags = list(specs)
        self.clear()

    def add(self, value):
        """Faults as read_faults() takes them, at once; [StandingFault]. Raises ValueError."""
        with self._lock:
            found = []
            for fault in read_faults(value, standing=True):
                self._count += 1
                found.append(StandingFault("fault_%d" % self._count, fault))
            if len(self._all) + len(found) > 1000:
                raise ValueError("1000 faults stand already")
            self._all += found
            self.active = bool(self._all)
        return found

    def all(self):
        with self._lock:
            return list(self._all)

    def remove(self, id):
        """Whether there was one of this id."""
        with self._lock:
            kept = [each for each in self._all if each.id != id]
            found = len(kept) < len(self._all)
            self._all = kept
            self.active = bool(kept)
        return found

    def clear(self):
        """Only those of the flags are left, as at the start, and draws begin anew."""
        with self._lock:
            self._all = []
            self._seen.clear()
            self.active = False
        if self._flags:
            self.add(self._flags)

    def take(self, target):
        """The faults that befall a request now; those with a number of times count it."""
        with self._lock:
            found, repeat = [], None
            for each in self._all:
                fault = each.fault
                if each.left == 0 or not self._meant(fault.choice, target) or target.misses(fault) is not None:
                    continue
                each.matched += 1
                if each.matched <= fault.choice["after"]:
                    continue
                if fault.choice["rate"] < 1.0:
                    if repeat is None:
                        repeat = self._repeat(target.data)
                    if self._draw(fault.text, target, repeat) >= fault.choice["rate"]:
                        continue
                if each.left is not None:
                    each.left -= 1
                found.append(fault.of(each))
            return found[:FAULTS_AT_ONCE]

    @staticmethod
    def _meant(choice, target):
        endpoint = choice["endpoint"]
        if endpoint is None:
            if target.endpoint not in _USUAL_ENDPOINTS:
                return False
        elif endpoint != "any" and endpoint != target.endpoint:
            return False
        return (choice["model"] is None or choice["model"] == target.body.get("model")) and (
            choice["stream"] is None or choice["stream"] == target.streamed)

    def _repeat(self, data):
        digest = blake2b(data, digest_size=16).digest()
        count = self._seen.pop(digest, 0)
        self._seen[digest] = count + 1
        if len(self._seen) > BODIES_COUNTED:
            self._seen.popitem(last=False)
        return digest + b"%d" % count

    def _draw(self, text, target, repeat):
        key = b"|".join((self._key, text.encode("utf-8"), target.endpoint.encode("ascii"), repeat))
        return int.from_bytes(blake2b(key, digest_size=8).digest(), "big") / 2.0 ** 64
