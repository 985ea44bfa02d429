"""The journal: the last requests, what was answered, what went wrong, and how far a client got that left.

In: handlers whose answer is over. Out: entries, and what is told of them. An entry holds what it was given and is
worked out when somebody reads it. An entry is there as soon as its answer goes out, so that whoever has got an answer
finds it. begin() and end() run on the loop's, a worker's or a connection's thread, the rest on any.
"""
import json
import re
from collections import deque
from itertools import count

JOURNAL_BODY_BYTES = 65536          # of a request's body, unless more is asked for
JOURNAL_ANSWER_BYTES = 16384        # of an answer that is not streamed

# Names, as clients and the proxies before them have them, of headers (those that a body hands on, too) and of what
# stands in a query
_SECRET_HEADER = re.compile(r"authorization|cookie|secret|password|api-?key|(?:auth|access|security|csrf)-token")
_SECRET_QUERY = re.compile(r"(?i)((?:^|&)(?:[\w-]*api[-_]?key|key|[\w-]*token|[\w-]*secret|password|sig)=)[^&]*")



def _mask_named(value):
    """Mask the texts under secret names in a JSON value, such as a tool's `authorization`, in place."""
    waiting = [value]
    while waiting:
        each = waiting.pop()
        if each.__class__ is dict:
            for name, inner in each.items():
                if inner.__class__ is str and _SECRET_HEADER.search(name.lower()):
                    each[name] = "***"
                else:
                    waiting.append(inner)
        elif each.__class__ is list:
            waiting += each


class JournalEntry:
    """One request.

    id; time: unix, when it was read. started_s, ended_s: monotonic; the latter None while it is being answered. method, path, query_text, headers {name: value}.
    body: its first bytes; body_size; body_key: equal for equal bodies. connection: (address, port) of the client.
    status; streamed; keep_alive: whether the connection was offered for more. completion: what of it is needed:
    model, rule, response_id, call_ids, usage. faults: texts of what befell it; left: the client went before the end;
    cut_off: a fault ended the connection. counted: a transport.counted.CountedSend, or answer: bytes with the head.
    """

    __slots__ = ("id", "number", "time", "started_s", "ended_s", "method", "path", "query_text", "headers", "body", "body_size",
                 "body_key", "connection", "status", "streamed", "keep_alive", "model", "rule", "response_id",
                 "call_ids", "usage", "faults", "left", "cut_off", "counted", "answer", "error", "_parsed")

    def request(self):
        """The body as a dict; {} when it is none, or was longer than what is kept."""
        parsed = self._parsed
        if parsed is None:
            try:
                parsed = json.loads(self.body) if self.body_size == len(self.body) and self.body else {}
            except (ValueError, RecursionError):
                parsed = {}
            self._parsed = parsed = parsed if parsed.__class__ is dict else {}
        return parsed

    def answer_headers(self):
        """{lower-case name: value} of the answer's head."""
        head = self.counted.head() if self.counted is not None else self.answer.partition(b"\r\n\r\n")[0]
        found = {}
        for line in head.decode("latin-1").split("\r\n")[1:]:
            name, _, value = line.partition(": ")
            found[name] = value
        return found

    def answer_body(self):
        """An answer that is not streamed without its head; on a WebSocket without its frame's."""
        if self.answer.startswith(b"HTTP/"):
            return self.answer.partition(b"\r\n\r\n")[2]
        return self.answer[self.answer.find(b"{"):]

    def answer_json(self):
        """An answer that is not streamed as a dict, or {}."""
        try:
            value = json.loads(self.answer_body()) if self.counted is None else {}
        except ValueError:
            return {}
        return value if value.__class__ is dict else {}

    def events(self):
        """The JSON objects of the first events that a client was sent, as dicts."""
        found = []
        for data in self.counted.data() if self.counted is not None else ():
            try:
                value = json.loads(data)
            except ValueError:
                continue
            if value.__class__ is dict:
                found.append(value)
        return found

    def said_text(self):
        """The answer's text as far as it was sent and is kept here; of the first choice."""
        if not self.streamed:
            return _object_text(self.answer_json())
        return "".join(map(_event_text, self.events()))

    def report(self, secrets=()):
        """What is told of it, as a dict. secrets: texts to mask."""
        def masked(text):
            for secret in secrets:
                text = text.replace(secret, "***")
            return text

        def opened(data, whole=True):
            text = masked(data.decode("utf-8", "replace"))
            try:
                value = json.loads(text) if text and whole else text
            except (ValueError, RecursionError):
                return text             # it is told as the text that it is
            _mask_named(value)
            return value

        counted = self.counted
        told = {
            "id": self.id, "object": "request", "time": int(self.time * 1e6) / 1e6, "method": self.method,
            "path": masked(self.path), "query": masked(_SECRET_QUERY.sub(r"\1***", self.query_text)),
            "headers": {name: "***" if _SECRET_HEADER.search(name) else masked(value)
                        for name, value in self.headers.items()},
            "body": opened(self.body, self.body_size == len(self.body)), "body_bytes": self.body_size,
            "model": self.model, "rule": self.rule,
            "connection": "%s:%d" % tuple(self.connection[:2]), "status": self.status, "streamed": self.streamed,
            "duration_ms": None if self.ended_s is None else round((self.ended_s - self.started_s) * 1000, 1), "faults": list(self.faults),
            "error": self.error, "response_id": self.response_id,
            "usage": None if self.usage is None else {"prompt_tokens": self.usage[0], "completion_tokens": self.usage[1]},
            "client_left": self.left, "cut_off": self.cut_off,
            "x_request_id": self.answer_headers().get("x-request-id")}
        if counted is not None:
            told["events_sent"], told["bytes_sent"] = counted.events, counted.sent_bytes
            told["events"] = counted.names()[:100]
        else:
            told["events_sent"], told["bytes_sent"] = None, len(self.answer)
            told["answer"] = opened(self.answer_body())
        return told


def _event_text(event):
    """The text that an event adds to an answer."""
    if event.get("type") == "response.output_text.delta":
        return event.get("delta") or ""
    choices = event.get("choices")
    if not choices or choices[0].get("index"):
        return ""
    return (choices[0].get("delta") or {}).get("content") or choices[0].get("text") or ""


def _object_text(value):
    choices = value.get("choices")
    if choices:
        return (choices[0].get("message") or {}).get("content") or choices[0].get("text") or ""
    output = value.get("output")
    return "".join(part.get("text") or "" for item in output if item.get("type") == "message"
                   for part in item.get("content") or () if part.__class__ is dict) if output.__class__ is list else ""


class Journal:
    """The last `size` entries; 0: nothing is written down, and costs nothing. clock: Clock."""

    def __init__(self, size, clock):
        self.size = size
        self._clock = clock
        self._entries = deque(maxlen=size or 1)
        self._numbers = count(1)
        self.seen = 0               # how many were written, those that are gone by now included
        self.body_bytes, self.answer_bytes = JOURNAL_BODY_BYTES, JOURNAL_ANSWER_BYTES   # what is kept of each

    def resize(self, size):
        """Keep so many from now on; those that are there stay as far as there is room."""
        self._entries = deque(self._entries if size else (), maxlen=size or 1)
        self.size = size

    def begin(self, handler):
        """A request is answered, or its answer has begun. handler: server.Handler."""
        entry = handler.entry = JournalEntry()
        entry.number = number = next(self._numbers)
        entry.id = "request_%d" % number
        entry.started_s = started_s = handler.received_s
        now_s = self._clock.monotonic()
        entry.time = self._clock.time() - (now_s - started_s)
        head, body = handler.head, handler.body_bytes
        entry.method, entry.path, entry.headers = handler.command, handler.path, handler.headers
        entry.query_text = getattr(head, "query_text", "")
        size = entry.body_size = len(body)
        if size <= self.body_bytes:
            entry.body, entry.body_key = body, body
        else:
            entry.body = body[:self.body_bytes]
            entry.body_key = entry.body, size, body[-1024:]
        entry._parsed = None
        entry.connection = handler.client_address
        entry.counted = counted = handler.counted
        entry.streamed = counted is not None
        entry.ended_s = None if handler.play is not None else now_s
        entry.left = False
        self._fill(entry, handler)
        self.seen += 1
        self._entries.append(entry)

    def _fill(self, entry, handler):
        """What is known of an answer by now."""
        entry.status, entry.error, entry.keep_alive = handler.status, handler.fault, handler.keep_alive
        entry.answer = handler.answer[:self.answer_bytes] if not entry.streamed else b""
        entry.faults, entry.cut_off = handler.faults_done, handler.cut_off
        entry.model = entry.rule = entry.response_id = entry.usage = None
        entry.call_ids = ()
        completion = handler.completion
        if completion is not None:
            request, assembler = completion.request, completion.assembler
            entry.model, entry.rule, entry.usage = request.model, request.rule, assembler.usage
            entry.error = entry.error or completion.fault
            if completion.faults_done:
                entry.faults = tuple(completion.faults_done) + tuple(entry.faults)
            tail = getattr(assembler, "tail", None)
            if tail is not None:
                entry.response_id = "resp_" + tail
                entry.call_ids = tuple(assembler.call_ids)

    def end(self, handler, whole):
        """An answer is over. whole: False when its connection went before."""
        entry, handler.entry = handler.entry, None
        if entry is None:               # it could not be read, or the journal was off
            self.begin(handler)
            entry, handler.entry = handler.entry, None
        entry.ended_s = self._clock.monotonic()
        self._fill(entry, handler)
        entry.left = not whole and not handler.cut_off

    def entries(self):
        """All that are kept, oldest first."""
        while True:
            try:
                return list(self._entries) if self.size else []
            except RuntimeError:
                continue                # one was added meanwhile

    def clear(self):
        self._entries.clear()
        self._numbers = count(1)
        self.seen = 0
