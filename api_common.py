"""The wire's vocabulary: errors, ids, field checks, JSON, SSE framing, pages and the Host contract.

Everything that both APIs say in the same words has its one home here. Nothing in this module
does I/O, and any thread may call any of it.
"""
import itertools
import json
import os
import time
from hashlib import blake2b

__version__ = "0.1.0"

OPENAI_VERSION = "2020-10-01"       # the header's fixed value (API overview page)
FIXED_CREATED = 1735689600          # `created` under --fixed-ids: 2025-01-01T00:00:00Z
MAX_SHOWN_CHARS = 80                # how much of a client's value an error message repeats


# ---- errors -----------------------------------------------------------------------------------

class ApiError(Exception):
    """A fault with the status and the envelope that a client gets for it.

    status: int, 4xx or 5xx. message, type, code, param: the envelope's four values.
    headers: list of (name, value) to send with it. close: end the connection after it. after_s: when it is sent,
    in seconds since its request was read, where it ends a request before anything was answered.
    media: the content type of an envelope that is no JSON.
    """

    after_s = 0.0
    media = None

    def __init__(self, status, message, type="invalid_request_error", code=None, param=None,
                 headers=(), close=False):
        super().__init__(message)
        self.status = status
        self.message = message
        self.type = type
        self.code = code
        self.param = param
        self.headers = list(headers)
        self.close = close

    def body(self):
        """The four keys inside the envelope, as {"message","type","param","code"}."""
        return {"message": self.message, "type": self.type, "param": self.param,
                "code": self.code}

    def envelope(self):
        """{"error": {...}} as bytes of JSON."""
        return dump_json({"error": self.body()})


class TakesLong(Exception):
    """Raised for a request that turns out to be too much work for the loop's thread: it begins again
    on a worker, whose requests have `breathe`."""


def server_error(message="The server had an error while processing the request."):
    """The 500 of the catalogue; the cause goes to the log, never to the client."""
    return ApiError(500, message, type="server_error")


def missing_parameter(param):
    return ApiError(400, "Missing required parameter: '%s'." % param,
                    code="missing_required_parameter", param=param)


def invalid_value(param, message):
    return ApiError(400, message, code="invalid_value", param=param)


# ---- JSON -------------------------------------------------------------------------------------

# ASCII output: half a surrogate pair cannot be encoded as UTF-8, but "\ud83d" can be written
# out again as it came in.
_JSON_ENCODE = json.JSONEncoder(separators=(",", ":")).encode
_JSON_ESCAPE = json.encoder.encode_basestring_ascii


def dump_json(value):
    """A JSON-able value as compact ASCII bytes."""
    return _JSON_ENCODE(value).encode("ascii")


def dump_string(text):
    """A str as JSON bytes with its quotes: dump_json for the commonest case, at half its price."""
    return _JSON_ESCAPE(text).encode("ascii")


def escape_json(text):
    """The inside of a JSON string, as bytes, without the quotes."""
    return _JSON_ESCAPE(text)[1:-1].encode("ascii")


def unescape_json(data):
    """escape_json() undone."""
    return json.loads(b'"%s"' % data)


def _json_constant(name):
    raise ValueError("%s is not JSON" % name)


def _json_float(text):
    value = float(text)
    if value in (float("inf"), float("-inf")):
        raise ValueError("the number %s... is too large" % text[:20])
    return value


_JSON_DECODER = json.JSONDecoder(parse_constant=_json_constant, parse_float=_json_float)
_JSON_DECODE = _JSON_DECODER.decode
_JSON_SCAN = _JSON_DECODER.scan_once
_JSON_SPACE = " \t\n\r"
PIECEWISE_BYTES = 20000             # bodies over this are decoded in pieces, see parse_body


def parse_body(data, breathe=None):
    """A request body's bytes as a dict.

    breathe: called between the elements of big arrays, so that a worker thread that decodes
    megabytes lets the pacer have the GIL (json.loads of 2 MB holds it for 11 ms at a stretch).
    Raises ApiError 400 for what is not UTF-8, not JSON (NaN and Infinity are not), nested too
    deep, or JSON but no object.
    """
    try:
        text = data.decode("utf-8")
        if breathe is not None and len(text) > PIECEWISE_BYTES:
            value = _decode_piecewise(text, breathe)
        else:
            value = _decode_whole(text)
    except UnicodeDecodeError:
        raise ApiError(400, "The request body is not valid UTF-8.")
    except RecursionError:
        raise ApiError(400, "The request body is nested too deeply.")
    except ValueError as exc:
        raise ApiError(400, "The request body is not valid JSON: %s." % _short_reason(exc))
    if value.__class__ is not dict:
        raise ApiError(400, "The request body must be a JSON object, not %s." % json_type(value))
    return value


def _decode_whole(text):
    """json.loads; the decoder's own look for white space around costs more than the parse."""
    try:
        value, end = _JSON_SCAN(text, 0)
    except StopIteration:
        return _JSON_DECODE(text)
    return value if end == len(text) else _JSON_DECODE(text)


def _short_reason(exc):
    text = str(exc)
    return text if len(text) <= 120 else text[:117] + "..."


def _json_skip(text, pos):
    while text[pos:pos + 1] and text[pos] in _JSON_SPACE:
        pos += 1
    return pos


def _decode_piecewise(text, breathe):
    """json.loads for an object, but with breathe() between keys and between array elements."""
    def fail(what, pos):
        raise json.JSONDecodeError(what, text, pos)

    def scan(pos):
        try:
            return _JSON_SCAN(text, pos)
        except StopIteration as stop:
            fail("Expecting value", stop.value)

    pos = _json_skip(text, 0)
    if text[pos:pos + 1] != "{":
        return _JSON_DECODE(text)
    result = {}
    pos = _json_skip(text, pos + 1)
    if text[pos:pos + 1] == "}":
        return _piecewise_end(text, pos + 1, result, fail)
    while True:
        if text[pos:pos + 1] != '"':
            fail("Expecting property name enclosed in double quotes", pos)
        key, pos = scan(pos)
        pos = _json_skip(text, pos)
        if text[pos:pos + 1] != ":":
            fail("Expecting ':' delimiter", pos)
        pos = _json_skip(text, pos + 1)
        if text[pos:pos + 1] == "[":
            value, pos = _piecewise_array(text, pos, scan, fail, breathe)
        else:
            value, pos = scan(pos)
        breathe()
        result[key] = value
        pos = _json_skip(text, pos)
        mark = text[pos:pos + 1]
        if mark == "}":
            return _piecewise_end(text, pos + 1, result, fail)
        if mark != ",":
            fail("Expecting ',' delimiter", pos)
        pos = _json_skip(text, pos + 1)


def _piecewise_array(text, pos, scan, fail, breathe):
    result = []
    pos = _json_skip(text, pos + 1)
    if text[pos:pos + 1] == "]":
        return result, pos + 1
    while True:
        value, pos = scan(pos)
        breathe()
        result.append(value)
        pos = _json_skip(text, pos)
        mark = text[pos:pos + 1]
        if mark == "]":
            return result, pos + 1
        if mark != ",":
            fail("Expecting ',' delimiter", pos)
        pos = _json_skip(text, pos + 1)


def _piecewise_end(text, pos, result, fail):
    pos = _json_skip(text, pos)
    if pos != len(text):
        fail("Extra data", pos)
    return result


# ---- field checks -----------------------------------------------------------------------------
# A check takes (value, path) and raises ApiError or returns None. An endpoint has one table
# {field: check}; only the fields that are present and not null are looked at.

_JSON_TYPE_NAMES = {dict: "an object", list: "an array", str: "a string", bool: "a boolean",
                    int: "an integer", float: "a number", type(None): "null"}


def json_type(value):
    """How an error message calls the type of a decoded JSON value."""
    return _JSON_TYPE_NAMES.get(value.__class__, "an unknown value")


def invalid_type(path, expected, value):
    return ApiError(400, "Invalid type for '%s': expected %s, but got %s instead."
                    % (path, expected, json_type(value)), code="invalid_type", param=path)


def shown(value):
    """A client's value as an error message repeats it: short, on one line."""
    text = value if value.__class__ is str else _JSON_ENCODE(value)
    if len(text) > MAX_SHOWN_CHARS:
        text = text[:MAX_SHOWN_CHARS - 3] + "..."
    return _JSON_ESCAPE(text)[1:-1]


def check_boolean(value, path):
    if value.__class__ is not bool:
        raise invalid_type(path, "a boolean", value)


def check_object(value, path):
    if value.__class__ is not dict:
        raise invalid_type(path, "an object", value)


def check_anything(value, path):
    """For fields that are accepted in any form."""


def check_integer(low=None, high=None):
    def check(value, path):
        if value.__class__ is not int:
            raise invalid_type(path, "an integer", value)
        _check_range(value, low, high, path, "integer")
    return check


def check_number(low=None, high=None):
    def check(value, path):
        if value.__class__ is not float and value.__class__ is not int:
            raise invalid_type(path, "a number", value)
        _check_range(value, low, high, path, "decimal")
    return check


def _check_range(value, low, high, path, kind):
    if low is not None and value < low:
        raise ApiError(400, "Invalid '%s': %s is below the minimum of %s." % (path, shown(value), low),
                       code=kind + "_below_min_value", param=path)
    if high is not None and value > high:
        raise ApiError(400, "Invalid '%s': %s is above the maximum of %s." % (path, shown(value), high),
                       code=kind + "_above_max_value", param=path)


def check_string(max_chars=None, empty=True):
    def check(value, path):
        if value.__class__ is not str:
            raise invalid_type(path, "a string", value)
        if not value and not empty:
            raise ApiError(400, "Invalid '%s': the string is empty." % path,
                           code="empty_string", param=path)
        if max_chars is not None and len(value) > max_chars:
            raise ApiError(400, "Invalid '%s': %d characters, at most %d are allowed."
                           % (path, len(value), max_chars),
                           code="string_above_max_length", param=path)
    return check


def check_given_string(value, path):
    """A string that is required at its place."""
    if value is None:
        raise missing_parameter(path)
    if value.__class__ is not str:
        raise invalid_type(path, "a string", value)


def check_enum(*allowed):
    def check(value, path):
        if value.__class__ is not str:
            raise invalid_type(path, "one of " + ", ".join(allowed), value)
        if value not in allowed:
            raise invalid_value(path, "Invalid value for '%s': '%s'. Supported values are: %s."
                                % (path, shown(value), ", ".join("'%s'" % x for x in allowed)))
    return check


def check_array(item=None, low=0, high=None):
    def check(value, path):
        if value.__class__ is not list:
            raise invalid_type(path, "an array", value)
        if len(value) < low:
            raise ApiError(400, "Invalid '%s': the array is too short, at least %d is needed."
                           % (path, low), code="empty_array", param=path)
        if high is not None and len(value) > high:
            raise ApiError(400, "Invalid '%s': %d elements, at most %d are allowed."
                           % (path, len(value), high), code="array_above_max_length", param=path)
        if item is not None:
            for index, element in enumerate(value):
                item(element, "%s[%d]" % (path, index))
    return check


def check_metadata(value, path):
    """At most 16 pairs, keys of at most 64 and string values of at most 512 characters (S)."""
    check_object(value, path)
    if len(value) > 16:
        raise ApiError(400, "Invalid '%s': %d pairs, at most 16 are allowed." % (path, len(value)),
                       code="object_above_max_properties", param=path)
    for key, text in value.items():
        place = "%s.%s" % (path, shown(key))
        if len(key) > 64:
            raise ApiError(400, "Invalid '%s': a key has %d characters, at most 64 are allowed."
                           % (path, len(key)), code="string_above_max_length", param=place)
        if text.__class__ is not str:
            raise invalid_type(place, "a string", text)
        if len(text) > 512:
            raise ApiError(400, "Invalid '%s': %d characters, at most 512 are allowed."
                           % (place, len(text)), code="string_above_max_length", param=place)


def check_fields(body, table):
    """Run the table's checks over the fields that are present; null means not given.

    Returns the names of the fields that the table does not know, in the body's order.
    """
    unknown = None
    for key, value in body.items():
        if value is None:
            continue
        check = table.get(key)
        if check is None:
            if unknown is None:
                unknown = []
            unknown.append(key)
        else:
            check(value, key)
    return () if unknown is None else tuple(unknown)


def check_stream_options(value, path):
    check_object(value, path)
    for key in ("include_usage", "include_obfuscation"):
        if value.get(key) is not None:
            check_boolean(value[key], "%s.%s" % (path, key))


# The fields of every generation request in all APIs alike.
SAMPLING_CHECKS = {
    "temperature": check_number(0, 2),
    "top_p": check_number(0, 1),
    "presence_penalty": check_number(-2, 2),
    "frequency_penalty": check_number(-2, 2),
    "min_tokens": check_integer(0),
    "ignore_eos": check_boolean,
    "cache_salt": check_string(empty=False),
}

def check_streaming(body):
    """stream_options go with stream: true only (K)."""
    if body.get("stream_options") is not None and not body.get("stream"):
        raise ApiError(400, "The 'stream_options' parameter is only allowed when 'stream' is true.",
                       param="stream_options")


# An answer that is made to be longer than any model's context is a client's mistake.
MAX_FORCED_TOKENS = 131072


def check_min_tokens(body, limit, limit_name, choices=1):
    """min_tokens, or 0. Raises ApiError when it is above the limit, or an answer of so many tokens
    is forced by it, or by ignore_eos, over all choices, that no model could give it."""
    least = body.get("min_tokens") or 0
    most = MAX_FORCED_TOKENS // choices
    if limit is not None and body.get("ignore_eos"):
        _check_range(limit, None, most, limit_name, "integer")
    _check_range(least, None, most, "min_tokens", "integer")
    if limit is not None and least > limit:
        raise invalid_value("min_tokens", "Invalid 'min_tokens': %d is above the limit of %d tokens."
                            % (least, limit))
    return least


# No answer is longer: where more context than this is left, it limits nothing.
LONGEST_ANSWER_TOKENS = MAX_FORCED_TOKENS


def context_overflow(tokens, limit, param):
    """The 400 of a context that is longer than --max-model-len. Source: api-reference 2.2."""
    return ApiError(400, "This model's maximum context length is %d tokens, but the input has %d tokens. Please "
                    "shorten it." % (limit, tokens), code="context_length_exceeded", param=param)


def check_context(tokens, limit, max_model_len, param):
    """How many tokens an answer behind a prompt of `tokens` may have, or None for as many as it likes.

    limit: what the request says, or None. Raises ApiError when prompt and limit do not fit.
    """
    room = max_model_len - tokens
    if room < (limit != 0):             # scoring generates nothing
        raise context_overflow(tokens, max_model_len, param)
    if limit is None:
        return room if room < LONGEST_ANSWER_TOKENS else None
    if limit > room:
        raise ApiError(400, "This model's maximum context length is %d tokens. However, you requested %d tokens (%d "
                       "in the %s, %d in the completion). Please reduce the length of either." % (
                           max_model_len, tokens + limit, tokens, param, limit),
                       code="context_length_exceeded", param=param)
    return limit


def content_text(content, path="content"):
    """The text of a message's content: a string, or the texts of a list of parts joined.

    Parts without text (images, audio, files) give none; see content_parts_tokens.
    """
    if content.__class__ is str:
        return content
    if not content:
        return ""
    texts = []
    for part in content:
        if part.__class__ is str:
            texts.append(part)
            continue
        text = part.get("text")
        if text is None:
            text = part.get("refusal")
        if text.__class__ is str:
            texts.append(text)
    return "".join(texts)


def check_model_name(model, settings, responses=False):
    """--strict-models: only the listed names. Source: api-reference 2.2; the two APIs differ."""
    if settings.strict_models and model not in settings.model:
        raise ApiError(400 if responses else 404, "The model '%s' does not exist or you do not have access to it."
                       % shown(model), code="model_not_found", param="model" if responses else None)


# What strict mode says of names that belong to the other API.
_STRICT_HINTS = {
    "messages": "input", "max_tokens": "max_output_tokens", "max_completion_tokens": "max_output_tokens",
    "response_format": "text.format", "functions": "tools", "reasoning_effort": "reasoning.effort",
}


def check_unknown(unknown, responses=False):
    """--strict: the first parameter that nobody knows is refused, as the public service does."""
    for name in unknown:
        hint = ""
        if responses and name in _STRICT_HINTS:
            hint = " In the Responses API this parameter is '%s'." % _STRICT_HINTS[name]
        raise ApiError(400, "Unknown parameter: '%s'.%s" % (shown(name), hint), code="unknown_parameter",
                       param=shown(name))


def ignored_headers(names, settings):
    """The header that lists fields which were accepted and not acted on, as [(name, value)].

    Raises ApiError with --refuse-ignored.
    """
    if not names:
        return []
    if settings.refuse_ignored:
        raise ApiError(400, "The parameter '%s' is accepted, but nothing here acts on it." % shown(names[0]),
                       code="unsupported_parameter", param=shown(names[0]))
    told = ", ".join(map(shown, names[:20]))
    if len(names) > 20:
        told += " and %d more" % (len(names) - 20)
    return [("x-mockturtle-ignored", told)]


SERVERS_OWN_FIELDS = ("min_tokens", "ignore_eos", "cache_salt")     # inference servers' fields, not the service's


def content_hash(text, before=b""):
    """Bytes that are equal for equal text behind equal `before`: the text itself while it is
    short, which saves a digest where only the draw's own digest is made of it."""
    data = before + text.encode("utf-8", "surrogatepass")
    return data if len(data) <= 256 else blake2b(data, digest_size=16).digest()


# Tokens that a message costs beside its text: role and separators, as published for the chat
# models; and the opening of the answer, once a request. Both APIs count alike.
MESSAGE_TOKENS = 4
ANSWER_TOKENS = 3
MEDIA_TOKENS = 85                   # a part that is no text: the low-detail price of an image


# ---- ids --------------------------------------------------------------------------------------

class Ids:
    """Where every id comes from.

    A tail is 32 hex digits. An item's id is prefix + its response's tail + its number, so the
    store finds an item's response without an index. fixed: ids count up from 1 and `created`
    stands still, for tests that compare bytes.
    """

    def __init__(self, fixed=False, wall=time.time):
        self._fixed = itertools.count(1) if fixed else None
        self._ready = []
        self._wall = wall

    def tail(self):
        if self._fixed is not None:
            return "%032x" % next(self._fixed)
        try:
            return self._ready.pop()            # list.pop and extend are atomic: no lock
        except IndexError:
            block = os.urandom(16 * 256).hex()  # 0.16 us an id; 0.46 with a urandom call each
            self._ready.extend([block[i:i + 32] for i in range(0, len(block), 32)])
            return self._ready.pop()

    def created(self):
        return FIXED_CREATED if self._fixed is not None else int(self._wall())


ID_TAIL_CHARS = 32


def item_id(prefix, tail, number):
    """The id of a response's item; number counts within the response, from 0."""
    return "%s%s%02x" % (prefix, tail, number)


# ---- SSE framing ------------------------------------------------------------------------------

# Ready chunk-size lines for frames of up to 1,023 bytes; a bigger one is formatted.
SIZE_LINES = [b"%x\r\n" % n for n in range(1024)]
LAST_CHUNK = b"0\r\n\r\n"
SSE_DONE = b"data: [DONE]\n\n"
SSE_HEARTBEAT = b": keep-alive\n\n"
# A heartbeat that clients see; gateways exist that send it so, and clients that stumble over it.
SSE_KEEPALIVE = b'event: keepalive\ndata: {"type":"keepalive"}\n\n'


def chunked_bytes(data):
    """data as one chunk of HTTP/1.1's chunked coding."""
    size = len(data)
    line = SIZE_LINES[size] if size < 1024 else b"%x\r\n" % size
    return b"".join((line, data, b"\r\n"))


def unframed_bytes(data):
    """The framer for HTTP/1.0 clients and for tests: bare frames."""
    return data


# ---- pages ------------------------------------------------------------------------------------

def parse_page_query(query, default_order):
    """(limit, order, after) of a list call. query: {name: [str]}.

    Raises ApiError 400 for a limit outside 1..100 or an order other than asc and desc.
    """
    limit = parse_query_integer(query, "limit", 20, 1)
    _check_range(limit, 1, 100, "limit", "integer")
    order = (query.get("order") or [default_order])[-1]
    check_enum("asc", "desc")(order, "order")
    return limit, order, (query.get("after") or [None])[-1]


def parse_query_integer(query, name, default, low, high=None):
    """A query parameter as int, or the default. Raises ApiError 400."""
    text = (query.get(name) or [None])[-1]
    if text is None:
        return default
    if not (len(text) < 100 and text.isascii() and text.lstrip("-").isdigit() and text.count("-") == text.startswith("-")):
        raise ApiError(400, "Invalid type for '%s': expected an integer, but got '%s'." % (name, shown(text)),
                       code="invalid_type", param=name)
    value = int(text)
    _check_range(value, low, high, name, "integer")
    return value


def parse_query_boolean(query, name):
    """A query parameter as bool; absent is False. Raises ApiError 400."""
    text = (query.get(name) or ["false"])[-1].lower()
    if text not in ("true", "1", "false", "0", ""):
        raise ApiError(400, "Invalid type for '%s': expected true or false, but got '%s'." % (name, shown(text)),
                       code="invalid_type", param=name)
    return text in ("true", "1")


def build_page(items, limit, after):
    """One page of a list of items that is already in the order asked for.

    items: iterable of dicts with an "id"; only as many are taken as the page needs.
    Returns {"object":"list","data","first_id","last_id","has_more"}.
    Raises ApiError 400 when `after` names no item.
    """
    items = iter(items)
    if after is not None and not any(item["id"] == after for item in items):
        raise invalid_value("after", "Invalid 'after': no item with the id '%s' in this list."
                            % shown(after))
    data = list(itertools.islice(items, limit))
    return {"object": "list", "data": data,
            "first_id": data[0]["id"] if data else None,
            "last_id": data[-1]["id"] if data else None,
            "has_more": next(items, None) is not None}


# ---- the host ---------------------------------------------------------------------------------

class Clock:
    """Where time comes from; tests put their own in its place."""

    monotonic = staticmethod(time.monotonic)
    time = staticmethod(time.time)


class Host:
    """What an API mixin may use. The handler supplies all of it.

    Set before the first request and never rebound:
        settings   Settings
        clock      Clock
        ids        Ids
        store      state.contract.Store
        backend    backends.contract.Backend
        tokenizer  tokenizer.Tokenizer
        metrics    observe.metrics.Metrics
        models_json  bytes, the answer of GET /models
        runs       background.BackgroundRuns
        timing_trace  None, or observe.trace.TimingTrace; timing_error  observe.trace.TimingError
        faults     faults.StandingFaults; gates  transport.gates.Gates; journal  observe.journal.Journal
        playing()  how many answers are being played
        live_responses  set of the ids of responses that are being streamed in the foreground
        log_exception()  called inside an except block: the traceback goes to the log
    Of the one request that the handler object lives for:
        body_bytes  the whole body; query {name: [str]}; headers {lower-case name: str}
        received_s  monotonic time at which the request was fully read
        breathe     None, or what long work on a worker calls now and then
        chunked     whether a streamed answer is framed in chunks
        undo        None, or set to what is called when the store could not keep what the request wrote
        socket_frame  None, or the framer of a turn's events on a WebSocket
        passed_authorization()  the Authorization header, where --upstream-forward-key says that it is passed on, or None
    Methods that answer, one of them exactly once a request; each takes an optional
    `headers`, a list of (name, value):
        send_json(status, value)   value: JSON-able, or bytes that are JSON already
        send_text(body, content_type)   body: bytes; without `headers`
        send_completion(completion, streamed)   a runs.Completion, streamed or as one object
        send_events(log, at, completion)   a background.EventLog from position `at` on, streamed
        send_websocket()   the connection becomes a WebSocket; its messages go to responses_turn()
        send_gate(name, count, wait_s)   what is known of a gate, when so many answers have reached it or the time is over
    Of the whole server: admit(completion) before a completion that send_completion() does not get; reset(); open_idle_s(),
    of each open connection how long it has been without a request, or None
    """

    settings = clock = ids = store = backend = tokenizer = metrics = models_json = None
    runs = live_responses = timing_trace = timing_error = faults = gates = journal = None
    body_bytes = b""
    query = {}
    headers = {}
    received_s = 0.0
    breathe = undo = None
    chunked = True
    socket_frame = None

    def log_exception(self):
        raise NotImplementedError

    def passed_authorization(self):
        raise NotImplementedError

    def send_json(self, status, value, headers=()):
        raise NotImplementedError

    def send_text(self, body, content_type):
        raise NotImplementedError

    def send_completion(self, completion, streamed, headers=()):
        raise NotImplementedError

    def send_events(self, log, at, completion=None, headers=()):
        raise NotImplementedError

    def send_websocket(self):
        raise NotImplementedError

    def playing(self):
        raise NotImplementedError

    def send_gate(self, name, count, wait_s):
        raise NotImplementedError

    def admit(self, completion):
        raise NotImplementedError

    def reset(self):
        raise NotImplementedError

    def open_idle_s(self):
        raise NotImplementedError
