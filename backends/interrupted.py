"""Generations that break off: a backend's deltas, up to the event at which a fault ends them.

In: (due_s, delta) of any backend. Out: the same, a whole run of text in single pieces, then a Failure or a Finish. So
the API's object, what is stored and what the client was sent agree about how far it came.
"""
from api_common import ApiError
from backends.contract import Failure, Finish, ReasoningDelta, RefusalDelta, TextDelta, TextRun, ToolCallDelta, Usage

_SAYING = (TextDelta, ReasoningDelta, RefusalDelta, ToolCallDelta)
_INTERRUPTED_REASONS = {"max_output_tokens": "length", "content_filter": "content_filter"}


def in_pieces(deltas):
    """The same with every TextRun as single TextDeltas: an assembler is then never ahead of what was played."""
    for due_s, delta in deltas:
        if delta.__class__ is TextRun:
            for due_s, piece in zip(delta.dues, delta.pieces):
                yield due_s, TextDelta(piece, None, delta.choice)
        else:
            yield due_s, delta


def interrupted(deltas, request, assembler, fault, note):
    """Deltas until the events that they make have come to fault["event"]; then the generation has failed, or is
    incomplete. A plain answer counts deltas. note(fault): it has come to that.

    fault: a faults.Fault of kind "failed" or "incomplete". assembler: a runs.Assembler that is fed as they come.
    """
    opened, finished = set(), set()
    made = said = 0
    for due_s, delta in in_pieces(deltas):
        # what came before was fed by now; those of Responses count their events themselves
        events = made if assembler.quiet else getattr(assembler, "sequence", made)
        if events >= fault["event"] - 1 and len(finished) < request.seqs:
            note(fault)
            if fault.kind == "failed":
                yield due_s, Failure(ApiError(500, fault["message"] or "The generation failed.", type="server_error",
                                              code=fault["code"]))
                return
            for choice in range(request.seqs):
                if choice not in finished:
                    yield due_s, Finish(_INTERRUPTED_REASONS[fault["reason"]], choice)
            yield due_s, Usage(request.prompt_tokens() or 0, said)
            return
        kind = delta.__class__
        if kind in _SAYING:
            said += 1
            made += 1 if delta.choice in opened or request.endpoint != "chat" or assembler.quiet else 2
            opened.add(delta.choice)
        elif kind is Finish:
            finished.add(delta.choice)
            made += 1
        yield due_s, delta
