"""Deltas to Responses events and the response object.

Sequence numbers, output indexes, item ids and usage are born here and nowhere else. A message is
closed when anything else begins and later text opens a new one; calls stay open until the end.
"""
from itertools import chain, repeat

from api_common import (SIZE_LINES, SSE_DONE, chunked_bytes, dump_json, escape_json,
                        item_id, unframed_bytes)
from backends.contract import (AnnotationDelta, Finish, ItemEnd, ItemStart, ItemUpdate, ReasoningDelta, RefusalDelta,
                               TextDelta, TextRun, ToolCallDelta, Usage)
from responses_items import WAITING_CALLS, seal_text
from runs import Assembler

# What follows `"sequence_number":`, with the frame's end and without and with its chunk's, ready for
# the first numbers; a later one is formatted.
_SEQUENCE_BARE = [b"%d}\n\n" % number for number in range(1024)]
_SEQUENCE_ENDS = [end + b"\r\n" for end in _SEQUENCE_BARE]

_ITEM_PREFIXES = {"message": "msg_", "reasoning": "rs_", "function_call": "fc_",
                  "custom_tool_call": "ctc_", "web_search_call": "ws_", "file_search_call": "fs_",
                  "compaction": "cmp_", "code_interpreter_call": "ci_", "image_generation_call": "ig_",
                  "mcp_call": "mcp_", "mcp_list_tools": "mcpl_", "mcp_approval_request": "mcpr_",
                  "shell_call": "sh_", "shell_call_output": "sho_", "local_shell_call": "lsh_",
                  "apply_patch_call": "apc_", "computer_call": "cu_"}

# Texts of other items that come in deltas: the events' name -> the field that the last one has.
_STREAMED_FIELDS = {"code_interpreter_call_code": "code", "mcp_call_arguments": "arguments",
                    "shell_call_command": "command"}

# Items that have no status, and what those are called that cannot be incomplete (S).
_NO_STATUS = frozenset(("mcp_list_tools", "mcp_approval_request"))
_CUT_STATUS = {"web_search_call": b"failed", "image_generation_call": b"failed", "apply_patch_call": b"in_progress"}

# The closed list of response.error.code that matters here (S), and the one that Codex looks for;
# anything else is a server_error.
_RESPONSE_ERROR_CODES = frozenset(("server_error", "rate_limit_exceeded", "invalid_prompt",
                                   "data_residency_mismatch", "bio_policy", "vector_store_timeout",
                                   "context_length_exceeded"))


def _sequence_ends(first, count, ready, template):
    """The ends of `count` frames from sequence number `first` on."""
    ends = ready[first:first + count]
    ends += [template % number for number in range(first + len(ends), first + count)]
    return ends


class _OpenMessage:
    """A message item: its finished parts and the one that is open."""

    __slots__ = ("id", "index", "parts", "escapes", "logprobs", "annotations", "kind")

    def __init__(self, id, index):
        self.id = id
        self.index = index
        self.parts = []             # finished parts as JSON bytes
        self.escapes = None         # the open part's text as pieces of a JSON string
        self.logprobs = []
        self.annotations = ()       # of the open part
        self.kind = None            # "output_text" or "refusal"

    def body(self, status):
        parts = self.parts
        if self.kind is not None:
            parts = parts + [self.open_part(b"".join(self.escapes))]
        return (b'{"type":"message","id":"%s","status":"%s","role":"assistant","content":[%s]}'
                % (self.id, status, b",".join(parts)))

    def open_part(self, text):
        """The part that still takes text, with its text so far."""
        if self.kind == "refusal":
            return b'{"type":"refusal","refusal":"%s"}' % text
        return b'{"type":"output_text","text":"%s","annotations":%s,"logprobs":%s}' % (
            text, dump_json(self.annotations) if self.annotations else b"[]",
            dump_json(self.logprobs) if self.logprobs else b"[]")


class _OpenCall:
    """A function or custom tool call that still takes arguments."""

    __slots__ = ("id", "index", "call_id", "name", "pieces", "custom", "namespace")

    def __init__(self, id, index, call_id, name, custom, namespace):
        self.id = id
        self.index = index
        self.call_id = call_id
        self.name = name
        self.custom = custom
        self.namespace = namespace
        self.pieces = []

    def body(self, status):
        kind, field = ("custom_tool_call", "input") if self.custom else ("function_call", "arguments")
        value = {"type": kind, "id": self.id.decode("ascii"), "call_id": self.call_id,
                 "name": self.name, field: "".join(self.pieces), "status": status.decode("ascii")}
        if self.namespace is not None:
            value["namespace"] = self.namespace
        return dump_json(value)


class _OpenReasoning:
    """A reasoning item: one part of summary or of raw text."""

    __slots__ = ("id", "index", "pieces", "raw")

    def __init__(self, id, index, raw):
        self.id = id
        self.index = index
        self.raw = raw
        self.pieces = []

    def body(self, status):
        text = "".join(self.pieces)
        value = {"type": "reasoning", "id": self.id.decode("ascii"), "summary": []}
        if self.raw and text:
            value["content"] = [{"type": "reasoning_text", "text": text}]
        elif text:
            value["summary"] = [{"type": "summary_text", "text": text}]
        if status != b"in_progress":
            value["encrypted_content"] = seal_text("reasoning", text)
        value["status"] = status.decode("ascii")
        return dump_json(value)


class _OpenItem:
    """Any other item, as its backend describes it, with at most one text that comes in deltas."""

    __slots__ = ("id", "index", "kind", "fields", "streamed", "pieces")

    def __init__(self, id, index, kind, fields):
        self.id = id
        self.index = index
        self.kind = kind
        self.fields = dict(fields)  # what is in it may be others' too: it is never changed
        self.streamed = None        # the name of the open text's events
        self.pieces = []

    def commands(self):
        """A shell call's finished commands."""
        return self._action().get("commands") or []

    def _action(self):
        action = self.fields.get("action")
        return action if action.__class__ is dict else {}

    def settle(self):
        """The open text is complete: it becomes a field's value, and is returned."""
        text = "".join(self.pieces)
        self.fields = self._with_text(text)
        self.streamed, self.pieces = None, []
        return text

    def _with_text(self, text):
        if self.streamed == "shell_call_command":
            return dict(self.fields, action=dict(self._action(), commands=self.commands() + [text]))
        return dict(self.fields, **{_STREAMED_FIELDS[self.streamed]: text})

    def body(self, status):
        value = {"type": self.kind, "id": self.id.decode("ascii")}
        if self.kind not in _NO_STATUS:
            if status == b"incomplete":
                status = _CUT_STATUS.get(self.kind, status)
            value["status"] = status.decode("ascii")
        value.update(self.fields if self.streamed is None else self._with_text("".join(self.pieces)))
        return dump_json(value)


class ResponseAssembler(Assembler):
    """Deltas to the events of a Responses stream and to the response object.

    tail: the hex digits of the response's id. first_item: the number that its first output item
    gets in its id; input items have the ones before. echo: the object's keys that repeat the
    request, as JSON bytes `"key":value,...`. completed_at(): unix seconds. background: it is queued
    first. frame: another framer than that of the connection's bytes, for a WebSocket. sequence: the
    number of the next event.
    """

    keeps_failures = True
    OPENING_EVENTS = 3              # of a background response: created, queued, in_progress

    def __init__(self, tail, created, echo, completed_at, first_item=0, chunked=False, background=False,
                 frame=None):
        self.tail = tail
        self._background = background
        self._frame = frame or (chunked_bytes if chunked else unframed_bytes)
        self._fails_once = frame is not None
        self._chunked = chunked
        self._head = b'{"id":"resp_%s","object":"response","created_at":%d,' % (
            tail.encode("ascii"), created)
        self._echo = echo
        self._completed_at = completed_at
        self._next_item = first_item
        self.sequence = 0
        self._message_id = None     # of the next message, where it was given one
        self._items = []            # by output index: JSON bytes once closed, else the open item
        self._message = None        # the open message, reasoning or other item: one at a time
        self._reasoning = None
        self._other = None
        self._calls = {}            # call index -> _OpenCall
        self.call_ids = []          # of all calls made, for the chain
        self.reason = None          # of the Finish
        self.texts = []             # the escaped text so far, in pieces, for the chain's hash
        self.closed = False         # it came to an end of its own: completed or incomplete
        self._result = None

    # ---- pieces -------------------------------------------------------------------------------

    def _event(self, name, template, values):
        """One event's frame. A quiet assembler formats nothing."""
        if self.quiet:
            return b""
        number = self.sequence
        self.sequence = number + 1
        return self._frame(b'event: %s\ndata: {"type":"%s",%s,"sequence_number":%d}\n\n' % (
            name, name, template % values, number))

    def _new_item(self, kind):
        """(id, output index) of a new item, whose place is taken at once."""
        if kind == "message" and self._message_id is not None:
            id, self._message_id = self._message_id, None
        else:
            id = item_id(_ITEM_PREFIXES.get(kind, "it_"), self.tail, self._next_item)
        self._next_item += 1
        self._items.append(None)
        return id.encode("ascii"), len(self._items) - 1

    def _added(self, item):
        self._items[item.index] = item
        if self.quiet:
            return b""
        return self._event(b"response.output_item.added", b'"output_index":%d,"item":%s',
                           (item.index, item.body(b"in_progress")))

    def _done(self, item, status):
        body = item.body(status)
        self._items[item.index] = body
        return self._event(b"response.output_item.done",
                           b'"output_index":%d,"item":%s', (item.index, body))

    def _object(self, status, completed_at=b"null", error=b"null", details=b"null", usage=b"null",
                output=b"[]"):
        return (b'%s"completed_at":%s,"status":"%s","error":%s,"incomplete_details":%s,"usage":%s,%s,'
                b'"output":%s}' % (self._head, completed_at, status, error, details, usage,
                                   self._echo, output))

    # ---- the contract -------------------------------------------------------------------------

    def rename(self, id=None, message_id=None, created=None):
        """Ids only where nobody finds anything by them later, and no other time in the background: that was told."""
        if self._background:
            return
        if id is not None and not self.keeps_id:
            start = len(b'{"id":')
            self._head = self._head[:start] + dump_json(id) + self._head[self._head.index(b",", start):]
        if message_id is not None and not self.keeps_id:
            self._message_id = message_id
        if created is not None:
            self._head = self._head[:self._head.rindex(b":") + 1] + b"%d," % created

    def start(self):
        opening = (self._object(b"queued" if self._background else b"in_progress"),)
        return (self._event(b"response.created", b'"response":%s', opening)
                + self._event(b"response.queued" if self._background else b"response.in_progress",
                              b'"response":%s', opening))

    def begin(self):
        if not self._background:
            return b""
        return self._event(b"response.in_progress", b'"response":%s', (self._object(b"in_progress"),))

    def feed(self, delta):
        kind = delta.__class__
        if kind is TextDelta:
            return self._feed_text(delta.text, delta.logprobs) if delta.text else b""
        if kind is TextRun:
            return b"".join(self.frames(delta))
        if kind is ToolCallDelta:
            return self._feed_call(delta)
        if kind is ReasoningDelta:
            return self._feed_reasoning(delta)
        if kind is RefusalDelta:
            return self._feed_refusal(delta.text) if delta.text else b""
        if kind is ItemStart:
            return self._feed_item_start(delta)
        if kind is ItemUpdate:
            return self._feed_item_update(delta)
        if kind is ItemEnd:
            return self._feed_item_end(delta)
        if kind is AnnotationDelta:
            return self._feed_annotation(delta.annotation)
        if kind is Usage:
            self.usage = delta
        elif kind is Finish:
            self.reason = delta.reason
        else:
            self.failed = delta.error
        return b""

    def _open_message(self, kind):
        """Frames that make sure a message with an open part of this kind takes the next delta."""
        frames = self._close_reasoning(b"completed") + self._close_other(b"completed")
        message = self._message
        if message is None:
            message = self._message = _OpenMessage(*self._new_item("message"))
            frames += self._added(message)
        if message.kind != kind:
            frames += self._close_part()
            message.kind, message.escapes, message.logprobs, message.annotations = kind, [], [], ()
            if self.quiet:
                return frames
            part = b'{"type":"output_text","text":"","annotations":[],"logprobs":[]}' \
                if kind == "output_text" else b'{"type":"refusal","refusal":""}'
            frames += self._event(b"response.content_part.added", b'%s,"part":%s', (
                self._part_place(message), part))
        return frames

    def _part_place(self, message):
        return b'"item_id":"%s","output_index":%d,"content_index":%d' % (
            message.id, message.index, len(message.parts))

    def _close_part(self):
        message = self._message
        if message.kind is None:
            return b""
        text = b"".join(message.escapes)
        place = b"" if self.quiet else self._part_place(message)
        if message.kind == "output_text":
            logprobs = dump_json(message.logprobs) if message.logprobs else b"[]"
            frames = self._event(b"response.output_text.done", b'%s,"text":"%s","logprobs":%s', (
                place, text, logprobs))
        else:
            frames = self._event(b"response.refusal.done", b'%s,"refusal":"%s"', (place, text))
        part = message.open_part(text)
        frames += self._event(b"response.content_part.done", b'%s,"part":%s', (place, part))
        self.texts.append(text)
        message.parts.append(part)
        message.kind = message.escapes = None
        return frames

    def _close_message(self, status):
        if self._message is None:
            return b""
        frames = self._close_part() + self._done(self._message, status)
        self._message = None
        return frames

    def _feed_text(self, text, logprobs):
        frames = self._open_message("output_text")
        message = self._message
        escape = escape_json(text)
        message.escapes.append(escape)
        told = b"[]"
        if logprobs:
            message.logprobs += logprobs
            told = dump_json(logprobs)
        return frames + self._event(b"response.output_text.delta", b'%s,"delta":"%s","logprobs":%s', (
            self._part_place(message), escape, told))

    def _feed_annotation(self, annotation):
        message = self._message
        if message is None or message.kind != "output_text":
            return b""                  # there is no text that it could belong to
        if not message.annotations:
            message.annotations = []
        message.annotations.append(annotation)
        return self._event(b"response.output_text.annotation.added", b'%s,"annotation_index":%d,"annotation":%s', (
            self._part_place(message), len(message.annotations) - 1, dump_json(annotation)))

    def _feed_refusal(self, text):
        frames = self._open_message("refusal")
        message = self._message
        escape = escape_json(text)
        message.escapes.append(escape)
        return frames + self._event(b"response.refusal.delta", b'%s,"delta":"%s"', (
            self._part_place(message), escape))

    def _feed_reasoning(self, delta):
        raw = delta.kind == "raw"
        frames = self._close_message(b"completed") + self._close_other(b"completed")
        item = self._reasoning
        if item is not None and item.raw != raw:
            frames += self._close_reasoning(b"completed")
            item = None
        if item is None:
            item = self._reasoning = _OpenReasoning(*self._new_item("reasoning"), raw=raw)
            frames += self._added(item)
        if not item.pieces and delta.text:
            if raw:
                frames += self._event(b"response.content_part.added",
                                      b'%s,"part":{"type":"reasoning_text","text":""}',
                                      (self._reasoning_place(item),))
            else:
                frames += self._event(b"response.reasoning_summary_part.added",
                                      b'%s,"part":{"type":"summary_text","text":""}',
                                      (self._reasoning_place(item),))
        if not delta.text:
            return frames               # an item without a summary: only added and done
        item.pieces.append(delta.text)
        name = b"response.reasoning_text.delta" if raw else b"response.reasoning_summary_text.delta"
        return frames + self._event(name, b'%s,"delta":"%s"', (
            self._reasoning_place(item), escape_json(delta.text)))

    def _reasoning_place(self, item):
        return b'"item_id":"%s","output_index":%d,"%s":0' % (
            item.id, item.index, b"content_index" if item.raw else b"summary_index")

    def _close_reasoning(self, status):
        item = self._reasoning
        if item is None:
            return b""
        self._reasoning = None
        frames = b""
        if item.pieces:
            place = self._reasoning_place(item)
            text = escape_json("".join(item.pieces))
            if item.raw:
                frames += self._event(b"response.reasoning_text.done", b'%s,"text":"%s"', (place, text))
                frames += self._event(b"response.content_part.done",
                                      b'%s,"part":{"type":"reasoning_text","text":"%s"}', (place, text))
            else:
                frames += self._event(b"response.reasoning_summary_text.done",
                                      b'%s,"text":"%s"', (place, text))
                cut = b',"status":"incomplete"' if status == b"incomplete" else b""
                frames += self._event(b"response.reasoning_summary_part.done", b'%s,"part":{"type":'
                                      b'"summary_text","text":"%s"}%s', (place, text, cut))
        return frames + self._done(item, status)

    def _feed_call(self, delta):
        call = self._calls.get(delta.index)
        frames = b""
        if call is None:
            frames = (self._close_message(b"completed") + self._close_reasoning(b"completed")
                      + self._close_other(b"completed"))
            custom = delta.kind == "custom"
            id, index = self._new_item("custom_tool_call" if custom else "function_call")
            call_id = delta.call_id or item_id("call_", self.tail, self._next_item)
            call = self._calls[delta.index] = _OpenCall(id, index, call_id, delta.name, custom,
                                                        delta.namespace)
            self.call_ids.append(call_id)
            frames += self._added(call)
        if not delta.arguments:
            return frames
        call.pieces.append(delta.arguments)
        name = b"response.custom_tool_call_input.delta" if call.custom \
            else b"response.function_call_arguments.delta"
        return frames + self._event(name, b'"item_id":"%s","output_index":%d,"delta":"%s"', (
            call.id, call.index, escape_json(delta.arguments)))

    def _close_calls(self, status):
        frames = b""
        for number in sorted(self._calls):
            call = self._calls[number]
            text = "".join(call.pieces)
            escape = escape_json(text)
            self.texts.append(escape)
            place = b'"item_id":"%s","output_index":%d' % (call.id, call.index)
            if call.custom:
                frames += self._event(b"response.custom_tool_call_input.done",
                                      b'%s,"input":"%s"', (place, escape))
            else:
                frames += self._event(b"response.function_call_arguments.done",
                                      b'%s,"name":%s,"arguments":"%s"', (
                                          place, dump_json(call.name), escape))
            frames += self._done(call, status)
        self._calls = {}
        return frames

    def _feed_item_start(self, delta):
        frames = (self._close_message(b"completed") + self._close_reasoning(b"completed")
                  + self._close_other(b"completed"))
        if delta.kind == "message":
            return frames               # a second message: the next text opens it
        item = self._other = _OpenItem(*self._new_item(delta.kind), kind=delta.kind,
                                       fields=delta.fields)
        if delta.kind in WAITING_CALLS:
            if item.fields.get("call_id") is None:
                item.fields = dict(delta.fields, call_id=item_id("call_", self.tail, self._next_item))
            self.call_ids.append(item.fields["call_id"])
        elif delta.kind == "shell_call_output" and self.call_ids:
            if item.fields.get("call_id") is None:
                item.fields = dict(delta.fields, call_id=self.call_ids[-1])
            if item.fields["call_id"] in self.call_ids:
                self.call_ids.remove(item.fields["call_id"])        # the client need not answer it
        return frames + self._added(item)

    def _feed_item_update(self, delta):
        item = self._other
        if item is None:
            return b""
        kind, phase, fields = delta.kind, delta.phase, delta.fields
        if kind not in _STREAMED_FIELDS:
            return self._item_event(item, kind, phase, fields)
        if phase == "done":
            return self._end_item_text(item, kind)
        if phase == "delta" and not fields["delta"]:
            return b""                  # a token without text of its own
        if item.streamed != kind:
            item.streamed, item.pieces = kind, []
        if phase == "delta":
            item.pieces.append(fields["delta"])
        if kind == "shell_call_command":
            fields = dict({"command": ""} if phase == "added" else fields, command_index=len(item.commands()))
        return self._item_event(item, kind, phase, fields)

    def _end_item_text(self, item, kind):
        """The event that has a text of deltas as a whole."""
        fields = {}
        if kind == "shell_call_command":
            fields["command_index"] = len(item.commands())
        if item.streamed != kind:
            item.streamed, item.pieces = kind, []
        fields[_STREAMED_FIELDS[kind]] = item.settle()
        return self._item_event(item, kind, "done", fields)

    def _item_event(self, item, kind, phase, fields):
        if self.quiet:
            return b""
        place = b'"item_id":"%s","output_index":%d' % (item.id, item.index)
        if fields:
            place += b"," + dump_json(fields)[1:-1]
        return self._event(("response.%s.%s" % (kind, phase)).encode("ascii"), b"%s", (place,))

    def _feed_item_end(self, delta):
        if delta.kind == "message":
            return self._close_message(b"completed")
        if delta.kind in ("function_call", "custom_tool_call"):
            return self._close_calls(b"completed")
        item, frames = self._other, b""
        if item is not None:
            if item.streamed is not None:
                frames = self._end_item_text(item, item.streamed)
            item.fields.update(delta.fields)
        return frames + self._close_other(b"completed")

    def _close_other(self, status):
        item = self._other
        if item is None:
            return b""
        self._other = None
        frames = b"" if item.streamed is None else self._end_item_text(item, item.streamed)
        return frames + self._done(item, status)

    # ---- runs: the fast way -------------------------------------------------------------------

    def frames(self, run):
        if not run.escapes:
            return iter(())
        opening = self._open_message("output_text")
        message = self._message
        prefix, middle = self._delta_parts(message)
        first, escapes = self.sequence, run.escapes
        self.sequence = first + len(escapes)
        message.escapes += escapes
        size = len(prefix) + len(middle) - 2        # the end's own CR LF is not in the chunk
        if self._chunked and size + max(map(len, escapes)) + 16 < len(SIZE_LINES):
            # The hot path: joins of five ready parts, and no Python between two frames. A dict and
            # json.dumps cost 2.7 us a token, a generator 0.21, this 0.12 and fewer cache lines.
            ends = _sequence_ends(first, len(escapes), _SEQUENCE_ENDS, b"%d}\n\n\r\n")
            lines = [SIZE_LINES[size + len(escape) + len(end)] for escape, end in zip(escapes, ends)]
            frames = map(b"".join, zip(lines, repeat(prefix), escapes, repeat(middle), ends))
        else:
            ends = _sequence_ends(first, len(escapes), _SEQUENCE_BARE, b"%d}\n\n")
            frames = map(self._frame, map(b"".join, zip(repeat(prefix), escapes, repeat(middle), ends)))
        return chain((opening + next(frames),), frames)

    def _delta_parts(self, message):
        return (b'event: response.output_text.delta\ndata: {"type":"response.output_text.delta",%s,"delta":"'
                % self._part_place(message), b'","logprobs":[],"sequence_number":')

    def joined(self, run):
        if not run.escapes:
            return b""
        opening = self._open_message("output_text")
        message = self._message
        prefix, middle = self._delta_parts(message)
        first = self.sequence
        self.sequence = first + len(run.escapes)
        message.escapes += run.escapes
        count = len(run.escapes)
        ends = _sequence_ends(first, count, _SEQUENCE_BARE, b"%d}\n\n")
        # four parts a frame laid into one list for one join: 0.1 us a token, a format each cost 0.4
        parts = [prefix] * (4 * count)
        parts[1::4] = run.escapes
        parts[2::4] = [middle] * count
        parts[3::4] = ends
        return opening + self._frame(b"".join(parts))

    def absorb(self, run):
        if run.escapes:
            self._open_message("output_text")
            self._message.escapes += run.escapes

    # ---- ends ---------------------------------------------------------------------------------

    def finish(self):
        status = b"incomplete" if self.reason in ("length", "content_filter") else b"completed"
        frames = (self._close_reasoning(status) + self._close_other(status)
                  + self._close_message(status) + self._close_calls(status))
        self._finish_object()
        self.closed = True
        return frames

    def _finish_object(self):
        told = response_usage(self.usage or Usage(0, 0))
        output = b"[%s]" % b",".join(self._items)
        if self.reason == "length":
            self._result = self._object(b"incomplete", usage=told, output=output,
                                        details=b'{"reason":"max_output_tokens"}')
        elif self.reason == "content_filter":
            self._result = self._object(b"incomplete", usage=told, output=output,
                                        details=b'{"reason":"content_filter"}')
        else:
            self._result = self._object(b"completed", b"%d" % self._completed_at(), usage=told,
                                        output=output)
        self.output_at = (len(self._result) - 1 - len(output), len(self._result) - 1)

    def end(self):
        name = b"response.completed" if self.reason not in ("length", "content_filter") \
            else b"response.incomplete"
        frame = self._event(name, b'"response":%s', (self._result,))
        self.sequence -= not self.quiet     # should keeping it fail, the failure takes its place
        return frame + self._frame(SSE_DONE)

    def fail(self, error):
        """`error` in both known shapes at once, then response.failed.

        On a WebSocket only the latter: there `error` ends a turn as well, and whoever stops at the first
        would read the second as the end of the next turn.
        Source: api-reference 10.8; clients exist that read only the flat or the nested one.
        """
        output = self._output_so_far(b"incomplete")
        self.closed = False
        frames, self._result = self._told_failed(error, output)
        self.output_at = (len(self._result) - 1 - len(output), len(self._result) - 1)
        return frames

    def told_error(self, error):
        """The same, of an object without output: what a worker is still at cannot be looked at."""
        return self._told_failed(error, b"[]")[0]

    def _told_failed(self, error, output):
        """(frames, object) of a failure."""
        code = error.code or ("server_error" if error.status >= 500 else error.type)
        nested = {"type": error.type, "code": code, "message": error.message, "param": error.param}
        told = dump_json({"code": error.code or code, "message": error.message, "param": error.param,
                          "error": nested})[1:-1]
        closed = code if code in _RESPONSE_ERROR_CODES else "server_error"
        failed = self._object(b"failed", output=output, error=dump_json({"code": closed, "message": error.message}))
        return ((b"" if self._fails_once else self._event(b"error", b"%s", (told,)))
                + self._event(b"response.failed", b'"response":%s', (failed,)) + self._frame(SSE_DONE)), failed

    def words(self):
        """All that was said, in escaped pieces, what is still open included."""
        if self._message is None and not self._calls:
            return self.texts
        said = list(self.texts)
        if self._message is not None and self._message.escapes:
            said += self._message.escapes
        for number in sorted(self._calls):
            said.append(escape_json("".join(self._calls[number].pieces)))
        return said

    def _output_so_far(self, status):
        """The output array, with what is still open as far as it came, in this status."""
        return b"[%s]" % b",".join(
            item if item.__class__ is bytes else item.body(status) for item in self._items)

    def peek(self, status):
        """(the object as it stands in mid-generation, place of its output); nothing is changed."""
        output = self._output_so_far(b"incomplete" if status == b"cancelled" else b"in_progress")
        told = self._object(status, output=output)
        return told, (len(told) - 1 - len(output), len(told) - 1)

    def result(self):
        return self._result


class CompactionAssembler(Assembler):
    """Text deltas to a compaction window: the kept messages, then one item with the text inside.

    tail: the hex digits of the window's id. kept: the user's messages, as stored. number: the first
    free one for the item's id. Never streamed.
    """

    def __init__(self, tail, created, kept, number):
        self._tail = tail
        self._created = created
        self._kept = kept
        self._number = number
        self._pieces = []

    def start(self):
        return b""

    def feed(self, delta):
        if delta.__class__ is TextDelta or delta.__class__ is RefusalDelta:
            self._pieces.append(delta.text)
        elif delta.__class__ is TextRun:
            self.absorb(delta)
        elif delta.__class__ is Usage:
            self.usage = delta
        elif hasattr(delta, "error"):
            self.failed = delta.error
        return b""

    def absorb(self, run):
        self._pieces += run.pieces

    def finish(self):
        return b""

    def result(self):
        item = {"type": "compaction", "id": item_id("cmp_", self._tail, self._number),
                "encrypted_content": seal_text("compaction", "".join(self._pieces))}
        return (b'{"id":"resp_%s","object":"response.compaction","created_at":%d,"output":%s,"usage":%s}' % (
            self._tail.encode("ascii"), self._created, dump_json(self._kept + [item]),
            response_usage(self.usage or Usage(0, 0))))


def response_usage(usage):
    """A Usage as the usage object of the Responses API."""
    return (b'{"input_tokens":%d,"input_tokens_details":{"cached_tokens":%d,"cache_write_tokens":0},'
            b'"output_tokens":%d,"output_tokens_details":{"reasoning_tokens":%d},"total_tokens":%d}' % (
                usage.prompt_tokens, usage.cached_tokens, usage.completion_tokens,
                usage.reasoning_tokens, usage.prompt_tokens + usage.completion_tokens))
