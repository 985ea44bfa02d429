"""Events and their framing taken apart and put together wrongly: the bytes of faults. Sans-I/O, no state.

An event is the bytes of one SSE frame with its blank line, or on a WebSocket one message's JSON.
"""
import json
import re

from api_common import chunked_bytes, unframed_bytes
from transport.websocket import WS_TEXT, ws_frame

MARK_CHARACTER = "\u20ac"           # three bytes in UTF-8: what is cut in the middle of a character
TERMINAL_TYPES = frozenset(("finish", "usage", "done", "response.completed", "response.incomplete", "response.failed"))
_LENGTH_LINE = re.compile(rb"content-length: (\d+)\r\n")
_TYPE_LINE = re.compile(rb"content-type: [^\r\n]*\r\n")


# ---- framing ----------------------------------------------------------------------------------

class ChunkedFraming:
    """Bare SSE events in HTTP's chunks."""

    @staticmethod
    def split(data):
        """(events, whether the stream's end is in them) of whole chunks."""
        bare, at, ended = [], 0, False
        while at < len(data):
            end = data.index(b"\r\n", at)
            size = int(data[at:end], 16)
            if not size:
                ended = True
                break
            bare.append(data[end + 2:end + 2 + size])
            at = end + 4 + size
        return split_bare(b"".join(bare)), ended

    frame = staticmethod(chunked_bytes)
    data_of = staticmethod(lambda event: sse_data(event))
    end = b"0\r\n\r\n"

    @staticmethod
    def in_parts(parts):
        """An event in several pieces, each with framing of its own."""
        return [chunked_bytes(part) for part in parts]


class BareFraming(ChunkedFraming):
    """Bare SSE events, for HTTP/1.0 and background responses."""

    @staticmethod
    def split(data):
        return split_bare(data), False

    frame = staticmethod(unframed_bytes)
    end = b""

    @staticmethod
    def in_parts(parts):
        return parts


class SocketFraming:
    """One JSON a text message of a WebSocket."""

    end = b""

    @staticmethod
    def split(data):
        events, at = [], 0
        while at < len(data):
            size, at = data[at + 1] & 0x7f, at + 2
            if size >= 126:
                width = 2 if size == 126 else 8
                size, at = int.from_bytes(data[at:at + width], "big"), at + width
            events.append(data[at:at + size])
            at += size
        return events, False

    @staticmethod
    def frame(event):
        return ws_frame(WS_TEXT, event)

    @staticmethod
    def data_of(event):
        return event

    @staticmethod
    def in_parts(parts):
        """A message in fragments (RFC 6455 5.4)."""
        frames = [bytearray(ws_frame(WS_TEXT if not number else 0, part)) for number, part in enumerate(parts)]
        for frame in frames[:-1]:
            frame[0] &= 0x7f
        return [bytes(frame) for frame in frames]


def split_bare(data):
    """Joined SSE events as a list of single ones."""
    return [event + b"\n\n" for event in data.split(b"\n\n") if event]


# ---- an event's inside ------------------------------------------------------------------------

def sse_data(event):
    """The data of one SSE event."""
    at = 0 if event.startswith(b"data: ") else event.find(b"\ndata: ") + 1
    return event[at + 6:-2]


def with_data(event, old, new):
    return event.replace(old, new, 1) if old else event


def event_type(data):
    """What a test calls an event by its JSON bytes: a Responses event's type; in the chunked APIs "role", "delta",
    "tool_calls", "finish", "usage", "error", and "done" for [DONE]."""
    if data == b"[DONE]":
        return "done"
    try:
        value = json.loads(data)
    except ValueError:
        return None
    if value.get("type").__class__ is str:
        return value["type"]
    if "error" in value:
        return "error"
    choices = value.get("choices")
    if not choices:
        return "usage"
    if any(choice.get("finish_reason") for choice in choices):
        return "finish"
    delta = choices[0].get("delta") or {}
    return next((name for name in ("role", "tool_calls") if name in delta), "delta")


def change_json(data, change):
    """JSON bytes with change(value) done to it; what is no JSON object is left alone."""
    try:
        value = json.loads(data)
    except ValueError:
        return data
    if value.__class__ is not dict:
        return data
    change(value)
    return json.dumps(value, separators=(",", ":"), ensure_ascii=True).encode("ascii")


def without_field(value, field):
    """Take a key out of a JSON value, wherever it is. Returns whether it was there."""
    found = False
    if value.__class__ is dict:
        found = value.pop(field, None) is not None
        for each in value.values():
            found |= without_field(each, field)
    elif value.__class__ is list:
        for each in value:
            found |= without_field(each, field)
    return found


def with_character(data):
    """JSON bytes that hold MARK_CHARACTER in UTF-8, behind the text of a delta where there is one."""
    def mark(value):
        if value.get("delta").__class__ is str:
            value["delta"] += MARK_CHARACTER
            return
        for choice in value.get("choices") or ():
            delta = choice.get("delta") or choice.get("message") or choice
            for key in ("content", "text", "refusal", "reasoning_content"):
                if delta.get(key).__class__ is str:
                    delta[key] += MARK_CHARACTER
                    return
        value["obfuscation"] = MARK_CHARACTER
    marked = change_json(data, mark)
    escaped = json.dumps(MARK_CHARACTER)[1:-1].encode("ascii")
    head, found, tail = marked.rpartition(escaped)
    return head + MARK_CHARACTER.encode("utf-8") + tail if found else marked + MARK_CHARACTER.encode("utf-8")


def character_cut(data):
    """Where data is to be cut so that a character of it is: behind its first byte."""
    return data.rindex(MARK_CHARACTER.encode("utf-8")) + 1


def broken_json(data, how):
    if how == "empty":
        return b""
    return b"{not json" if how == "garbage" else data[:max(1, len(data) // 2)]


def extra_event(form, event, data, socket):
    """An event that was not asked for, before another one."""
    if form == "empty_choices":
        found = change_json(data, lambda value: value.update(choices=[]))
        name = b""
    elif form == "empty_data":
        return b"" if socket else b"data:\n\n"
    else:
        name = b"keepalive" if form == "keepalive" else b"mock.unknown"
        found = b'{"type":"%s"}' % name
    if socket:
        return found
    return (b"event: %s\n" % name if name else b"") + b"data: " + found + b"\n\n"


def reformed_sse(event, form, number):
    """The same event, written in another way that the SSE standard allows."""
    data = sse_data(event)
    if form == "no_space":
        return with_data(event, b"data: " + data, b"data:" + data)
    if form == "multi_line":
        return with_data(event, b"data: {", b"data: {\ndata: ")
    if form == "fields":
        return b": a comment\nid: %d\nretry: 3000\nx-unknown: 1\n" % number + event
    if form == "bom":
        return b"\xef\xbb\xbf" + event if number == 1 else event
    return event.replace(b"\n", b"\r\n")


# ---- heads ------------------------------------------------------------------------------------

def with_length(head, change):
    """A head whose Content-Length is change(length)."""
    return _LENGTH_LINE.sub(lambda found: b"content-length: %d\r\n" % change(int(found.group(1))), head, 1)


def with_content_type(head, value):
    line = b"content-type: " + value.encode("latin-1", "replace") + b"\r\n"
    return _TYPE_LINE.sub(lambda found: line, head, 1)
