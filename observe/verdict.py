"""The verdict: what a journal says about its clients' manners, as findings that a test can assert on.

Each rule looks at what was seen from the server's side and speaks only where that leaves no other reading: what a
client did with an answer, and whether it told its user, cannot be seen. In: JournalEntries, in any order.
"""
NEVER_RETRY = frozenset((400, 401, 403, 404, 422))
# The service itself says "retry in a few seconds" of these.
RETRY_CODES = frozenset(("conversation_locked", "rate_limit_exceeded"))
SAME_TASK_S = 60.0                  # the same body later than this is no retry
EARLY_S = 0.05                      # a client's clock may be off by so much
STORM_TRIES = 5                     # failed tries of one request within STORM_S
STORM_S = 1.0
LONE_CONNECTIONS = 10               # requests behind each other, each on a connection of its own
IDLE_CONNECTIONS = 10               # left open, with nothing on them for IDLE_S
IDLE_S = 5.0

_CALL_TYPES = frozenset(("function_call", "custom_tool_call"))
# Faults behind which a stream was not whole, though its client may take it so.
_TRUNCATING = ("cut:", "no_terminal", "failed", "bad_chunk")


def _finding(kind, message, *entries):
    return {"kind": kind, "message": message, "requests": [entry.id for entry in entries]}


def find_verdict(entries, open_idle_s=()):
    """All findings as a list of {"kind", "message", "requests": [ids]}.

    open_idle_s: for each connection that is open, how long nothing has come or gone on it.
    """
    entries = sorted(entries, key=lambda entry: entry.started_s)
    findings = []
    for rule in (_retries, _storms, _truncated, _tool_calls, _histories, _connections):
        findings += rule(entries)
    idle = [seconds for seconds in open_idle_s if seconds >= IDLE_S]
    if len(idle) > IDLE_CONNECTIONS:
        findings.append(_finding("connections_left_open", "%d connections are open on which nothing has happened for "
                                 "%g s and more: they were used and never closed." % (len(idle), IDLE_S)))
    return findings


def _end_s(entry):
    """An answer that is not over ends later than whatever has come so far."""
    return float("inf") if entry.ended_s is None else entry.ended_s


# ---- retries ----------------------------------------------------------------------------------

def _who(entry):
    """What tells clients apart, as far as it can be told."""
    headers = entry.headers
    return headers.get("authorization"), headers.get("user-agent"), entry.connection[0]


def _attempts(entries):
    """[[entries]]: POSTs of the same body to the same path by the same client, those that may be one task."""
    found = {}
    for entry in entries:
        if entry.method in ("POST", "WS") and entry.body_size:
            found.setdefault((_who(entry), entry.path, entry.body_key), []).append(entry)
    return [group for group in found.values() if len(group) > 1]


def _at_once(entry, after):
    """Whether a request was sent while the one before it was still unanswered: that is no retry."""
    return after.connection != entry.connection and after.started_s < _end_s(entry)


def _failed(entry):
    return entry.status >= 400 or entry.cut_off


def _retries(entries):
    for group in _attempts(entries):
        for entry, after in zip(group, group[1:]):
            if not _failed(entry) or _at_once(entry, after) or after.started_s - _end_s(entry) > SAME_TASK_S:
                continue
            headers = entry.answer_headers()
            waited_s = after.started_s - _end_s(entry)
            wanted_s = _retry_after_s(headers)
            if wanted_s is not None and waited_s < wanted_s - max(EARLY_S, wanted_s * 0.02):
                yield _finding("ignored_retry_after", "%s was answered %d with 'Retry-After' of %g s; %s is the same "
                               "request %.3g s later." % (entry.id, entry.status, wanted_s, after.id, waited_s),
                               entry, after)
            if headers.get("x-should-retry") == "false":
                yield _finding("retried_non_retryable", "%s was answered %d with 'x-should-retry: false'; %s is the "
                               "same request again." % (entry.id, entry.status, after.id), entry, after)
            elif entry.status in NEVER_RETRY and _error_code(entry) not in RETRY_CODES:
                yield _finding("retried_non_retryable", "%s was answered %d, which the same request gets again; %s is "
                               "the same request." % (entry.id, entry.status, after.id), entry, after)


def _retry_after_s(headers):
    for name, unit in (("retry-after-ms", 0.001), ("retry-after", 1.0)):
        try:
            return float(headers[name]) * unit
        except (KeyError, ValueError):
            continue                    # absent, or a date, which this server never sends
    return None


def _error_code(entry):
    error = entry.answer_json().get("error")
    return error.get("code") if error.__class__ is dict else None


def _storms(entries):
    for group in _attempts(entries):
        failed = []
        for entry in group:
            if _failed(entry) and not (failed and _at_once(failed[-1], entry)):
                failed.append(entry)
        for first, last in zip(failed, failed[STORM_TRIES - 1:]):
            if last.started_s - first.started_s <= STORM_S:
                tries = failed[failed.index(first):failed.index(last) + 1]
                yield _finding("retry_storm", "%d tries of the same request failed within %.3g s, with no more than that "
                               "between them." % (len(tries), last.started_s - first.started_s), *tries)
                break


# ---- what a conversation says of an answer ----------------------------------------------------

def _input_items(entry):
    """A request's messages or input items, those that are objects."""
    body = entry.request()
    items = body.get("messages") if body.get("messages").__class__ is list else body.get("input")
    return [item for item in items if item.__class__ is dict] if items.__class__ is list else []


def _item_text(item):
    content = item.get("content")
    if content.__class__ is str:
        return content
    if content.__class__ is list:
        return "".join(part["text"] for part in content if part.__class__ is dict and part.get("text").__class__ is str)
    return ""


def _said_in(entry):
    """The texts that a request calls the assistant's."""
    return [_item_text(item) for item in _input_items(entry) if item.get("role") == "assistant"]


def _truncated(entries):
    """A stream that was cut off, and a later request that goes on from what it had said by then."""
    for at, entry in enumerate(entries):
        if not entry.streamed or not any(fault.startswith(_TRUNCATING) and "only=done" not in fault
                                         for fault in entry.faults):
            continue
        text = entry.said_text()
        for after in entries[at + 1:]:
            if _who(after) != _who(entry):
                continue
            if entry.response_id is not None and after.request().get("previous_response_id") == entry.response_id:
                yield _finding("took_truncated_for_complete", "%s was a stream that broke off; %s follows it up by "
                               "'previous_response_id'." % (entry.id, after.id), entry, after)
                break
            if text and text in _said_in(after):
                yield _finding("took_truncated_for_complete", "%s was a stream that broke off; %s has what had come of "
                               "it as the assistant's answer." % (entry.id, after.id), entry, after)
                break


def _previous_id(entry):
    """What a request goes on from, or None; a body that was refused may have anything there."""
    id = entry.request().get("previous_response_id")
    return id if id.__class__ is str else None


def _tool_calls(entries):
    answered_by = {entry.response_id: entry for entry in entries if entry.response_id is not None}
    for entry in entries:
        calls, outputs, orphans, open_calls = _calls_of(entry)
        before = answered_by.get(_previous_id(entry))
        known_before = set() if before is None else set(before.call_ids)
        if before is not None and not (before.left or before.cut_off):
            open_calls |= known_before - outputs
        if open_calls:
            yield _finding("dropped_tool_call", "%s goes on without an output for %s." % (
                entry.id, ", ".join(sorted(open_calls))), *([before] if known_before & open_calls else []), entry)
        chained = entry.request().get("previous_response_id") or entry.request().get("conversation")
        if orphans and (not chained or entry.status == 400 and "tool call" in (entry.error or "")):
            orphans -= known_before
            if orphans:
                yield _finding("orphan_tool_output", "%s has an output for %s, which nobody called." % (
                    entry.id, ", ".join(sorted(orphans))), entry)


def _calls_of(entry):
    """(call ids, ids of outputs, outputs without a call before them, calls that something else follows than outputs)."""
    calls, outputs, orphans, open_calls = set(), set(), set(), set()
    waiting = set()
    for item in _input_items(entry):
        kind, role = item.get("type"), item.get("role")
        made = _made_calls(item)
        output = item.get("tool_call_id") if role == "tool" else item.get("call_id") \
            if kind.__class__ is str and kind.endswith("_output") else None
        if made:
            calls |= made
            waiting |= made
        elif output.__class__ is str:
            outputs.add(output)
            waiting.discard(output)
            if output not in calls:
                orphans.add(output)
        elif role == "user" and waiting:
            open_calls |= waiting       # the user speaks, and the call was never answered
            waiting = set()
    open_calls |= waiting               # the model is asked again
    return calls, outputs, orphans, open_calls - outputs


def _made_calls(item):
    kind = item.get("type")
    if kind.__class__ is str and kind in _CALL_TYPES:
        ids = [item.get("call_id")]
    else:
        made = item.get("tool_calls")
        ids = [call.get("id") for call in made if call.__class__ is dict] if made.__class__ is list else []
    return {id for id in ids if id.__class__ is str}


def _histories(entries):
    """What the server keeps is sent to it once more, and counts twice."""
    answered_by = {entry.response_id: entry for entry in entries if entry.response_id is not None}
    for entry in entries:
        id = _previous_id(entry)
        if id is None:
            continue
        before = answered_by.get(id)
        tail = id.partition("_")[2]
        sent = any(item.get("id").__class__ is str and len(tail) >= 16 and tail in item["id"] and "role" in item
                   for item in _input_items(entry))
        if not sent and before is not None:
            text = before.said_text()
            sent = bool(text) and text in _said_in(entry)
        if sent:
            yield _finding("resent_history", "%s names 'previous_response_id' and sends what that response said once more: "
                           "it is in the context twice." % entry.id, *([before] if before is not None else []), entry)


# ---- connections ------------------------------------------------------------------------------

def _connections(entries):
    """Clients that open a connection for each request, though the last one was offered for the next."""
    clients = {}
    for entry in entries:
        clients.setdefault(_who(entry), []).append(entry)
    for group in clients.values():
        lone = []
        for entry in group:
            if entry.method == "WS":
                continue
            if lone and (lone[-1].connection == entry.connection or entry.started_s < _end_s(lone[-1])
                         or lone[-1].cut_off or lone[-1].left or not lone[-1].keep_alive and not _asked_close(lone[-1])):
                lone = []
            lone.append(entry)
            if len(lone) == LONE_CONNECTIONS:
                yield _finding("connection_per_request", "%d requests behind each other came on as many connections, though "
                               "each could have been kept." % len(lone), *lone)
                break


def _asked_close(entry):
    return "close" in entry.headers.get("connection", "").lower()
