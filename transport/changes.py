"""What faults make of single events, and of the body of an answer that is not streamed.

Each change takes a FaultySteps, the fault, the event's number, name() for its type, and what earlier faults have made of
the event: a list of events, and of (fault, frames) where it is framed already. It returns such a list.
"""
from transport.broken import (ChunkedFraming, broken_json, change_json, character_cut, extra_event, reformed_sse,
                              with_character, with_data, without_field)

COPIES_AT_MOST = 200                # of one event: faults that repeat it multiply, and 20 may meet on a request


def _each_event(steps, fault, events, change):
    """events with change(event, data) made of each."""
    out = []
    for event in events:
        if event.__class__ is tuple:
            out.append(event)
            continue
        data = steps.framing.data_of(event)
        changed = change(event, data)
        if changed != event:
            steps.note(fault)
        out.append(changed)
    return out


def _make_missing(steps, fault, number, name, events):
    if not fault.hits(number, name):
        return events
    steps.note(fault)
    return []


def _make_repeated(steps, fault, number, name, events):
    if not fault.hits(number, name):
        return events
    steps.note(fault)
    return (events * fault["count"])[:COPIES_AT_MOST]


def _make_reordered(steps, fault, number, name, events):
    if number == fault["event"]:
        steps.note(fault)
        steps.kept = events
        return []
    return events


def _make_extra(steps, fault, number, name, events):
    if not fault.hits(number, name):
        return events
    steps.note(fault)
    event = events[0] if events else b"data: {}\n\n"
    more = extra_event(fault["form"], event, steps.framing.data_of(event), steps.socket)
    return ([more] if more else []) + events


def _make_malformed(steps, fault, number, name, events):
    if not fault.hits(number, name):
        return events
    return _each_event(steps, fault, events, lambda event, data: with_data(event, data, broken_json(data, fault["how"])))


def _make_without(steps, fault, number, name, events):
    if (fault["event"] is not None or fault["type"] is not None) and not fault.hits(number, name):
        return events

    def change(event, data):
        found = []
        changed = change_json(data, lambda value: found.append(without_field(value, fault["field"])))
        return with_data(event, data, changed) if found == [True] else event
    return _each_event(steps, fault, events, change)


def _make_long_line(steps, fault, number, name, events):
    if not fault.hits(number, name):
        return events
    return _each_event(steps, fault, events, lambda event, data: with_data(event, data, change_json(
        data, lambda value: value.update(obfuscation="x" * fault["bytes"]))))


def _make_sse(steps, fault, number, name, events):
    if steps.socket:
        return events
    return _each_event(steps, fault, events, lambda event, data: reformed_sse(event, fault["form"], number))


def _make_split(steps, fault, number, name, events):
    if not fault.hits(number, name):
        return events
    steps.note(fault)
    out = []
    for event in events:
        if event.__class__ is tuple:
            out.append(event)
            continue
        at = len(event) // 2
        if fault["where"] == "character":
            data = steps.framing.data_of(event)
            event = with_data(event, data, with_character(data))
            at = character_cut(event)
        parts = steps.framing.in_parts([event[:at], event[at:]])
        # on a WebSocket another turn's message must not come between: fragments, but at once
        out.append((fault, [b"".join(parts)] if steps.socket else parts))
    return out


def _make_slow_body(steps, fault, number, name, events):
    steps.note(fault)
    size, out = fault["bytes"], []
    for event in events:
        if event.__class__ is tuple:
            out.append(event)
            continue
        parts = [event[at:at + size] for at in range(0, len(event), size)]
        if number > 1:
            steps.delay(fault["ms"], fault)
        out.append((fault, steps.framing.in_parts(parts)))
    return out


def _make_bad_chunk(steps, fault, number, name, events):
    if not fault.hits(number, name) or steps.framing is not ChunkedFraming:
        return events
    steps.note(fault)
    return [(fault, [b"no size\r\n" + event + b"\r\n"]) if event.__class__ is bytes else event for event in events]


# Done in this order, each to what the ones before have left of an event: framing comes last.
EVENT_CHANGES = {
    "missing": _make_missing, "repeated": _make_repeated,
    "reordered": _make_reordered, "extra": _make_extra,
    "malformed": _make_malformed, "without": _make_without,
    "long_line": _make_long_line, "sse": _make_sse, "split": _make_split,
    "slow_body": _make_slow_body, "bad_chunk": _make_bad_chunk}


_CHANGES_ORDER = {kind: number for number, kind in enumerate(EVENT_CHANGES)}


def in_order(faults):
    """Faults in the order in which they are done."""
    return sorted(faults, key=lambda fault: _CHANGES_ORDER.get(fault.kind, -1))


def changed_body(fault, body):
    """A body with one fault in it, or None where it has none there."""
    kind = fault.kind
    if kind == "malformed":
        return broken_json(body, fault["how"])
    if kind == "without":
        found = []
        changed = change_json(body, lambda value: found.append(without_field(value, fault["field"])))
        return changed if found == [True] else None
    if kind == "compaction":
        return change_json(body, lambda value: _set_compactions(value, fault["items"]))
    return None


def _set_compactions(value, count):
    """So many compaction items in a window that has one."""
    output = value.get("output")
    if output.__class__ is list:
        items = [item for item in output if item.get("type") == "compaction"]
        value["output"] = [item for item in output if item.get("type") != "compaction"]
        for number, item in enumerate((items * count)[:count]):
            value["output"].append(dict(item, id="%s%s" % (item["id"], "b" * number)))
