"""Where faults meet the server: which a request has, and what carrying them out needs of its handler.

take_faults() runs before a request is answered, stage_faults() stands between a play and the player. Nothing here is
called for requests without faults.
"""
import re
import socket
import struct
import sys

from api_common import ApiError, shown
from faults import FAULT_KINDS, FaultTarget, fault_error, read_faults, read_gates
from responses_request import conversation_not_found, previous_not_found
from transport.faulty import FaultySteps
from transport.player import Play

FAULT_HEADER = "x-mockturtle-fault"
GATE_HEADER = "x-mockturtle-gate"
HEARTBEAT_HEADER = "x-mockturtle-heartbeat"
_HEARTBEAT_TEXT = re.compile(r"(off|comment|event)(?:@([0-9]{1,4}(?:\.[0-9]{1,6})?))?\Z")


def _read_header(handler, name, reader):
    try:
        return reader(handler.headers.get(name))
    except ValueError as exc:
        raise ApiError(400, "Invalid header '%s': %s." % (name, exc), code="invalid_value", param=name)


def read_heartbeat(text):
    """"off", "comment" or "event", with "@seconds" or without, as (form, seconds or None). Raises ValueError."""
    found = _HEARTBEAT_TEXT.match(text)
    if not found:
        raise ValueError("'%s' is not off, comment or event, with @seconds or without" % shown(text))
    return found.group(1), None if found.group(2) is None else float(found.group(2))


def take_faults(handler, name, body=None):
    """Find out a request's faults: those of its headers, then the standing ones. name: the handler's method.

    Sets handler.asked_faults. Raises ApiError: 403 for headers where control paths are off, 400 for what they say
    wrongly, and the error of a fault that is one.
    """
    if name.startswith("control_"):
        return
    if handler.faults_taken is not None:        # it begins again on a worker
        handler.asked_faults = handler.faults_taken
        return
    headers, asked = handler.headers, []
    target = FaultTarget(name, handler.body_bytes, body, handler.socket_frame is not None)
    if HEARTBEAT_HEADER in headers:
        handler.check_control()
        handler.heartbeat_asked = _read_header(handler, HEARTBEAT_HEADER, read_heartbeat)
    if FAULT_HEADER in headers or GATE_HEADER in headers:
        handler.check_control()
        for header, reader in ((FAULT_HEADER, read_faults), (GATE_HEADER, read_gates)):
            for fault in _read_header(handler, header, reader):
                wanted = target.misses(fault)
                if wanted is None:
                    asked.append(fault)
                elif target.endpoint != "connect":      # the turns of a WebSocket have what its handshake has not
                    raise ApiError(400, "Invalid header '%s': the fault '%s' is for %s." % (header, fault.kind, wanted),
                                   code="invalid_value", param=header)
    if handler.faults.active:
        asked += handler.faults.take(target)
    handler.faults_taken = handler.asked_faults = asked
    for fault in asked:
        if fault.kind == "error":
            handler.note_fault(fault)
            raise fault_error(fault)
        if fault.kind == "lost_previous":
            handler.note_fault(fault)
            id = target.body.get("previous_response_id")
            if id:
                raise previous_not_found(id)
            raise conversation_not_found(target.body["conversation"])


def share_faults(handler, completion):
    """A background response has those of what is generated, whoever watches it; the answer has the rest."""
    asked = handler.asked_faults
    completion.faults = [fault for fault in asked if FAULT_KINDS[fault.kind].generation]
    handler.asked_faults = [fault for fault in asked if not FAULT_KINDS[fault.kind].generation]


def stage_faults(app, play, completion, streamed):
    """Have a completion's play pass through its faults."""
    owner = play.owner
    framing = "bare"
    if owner is not None:
        owner.faults_staged = True
        framing = "chunked" if owner.chunked else "bare"
        if owner.socket_frame is not None:
            framing = "socket"
    FaultySteps(play, lambda: completion.faults, framing, streamed, FaultCase(app, owner, completion),
                app.settings.time_scale)


def stage_answer(app, handler):
    """Have any other answer pass through the request's faults, as a play where it was none."""
    streamed = handler.play is not None
    faults = [fault for fault in handler.asked_faults if fault.kind not in ("error", "lost_previous")]
    if not faults:
        return
    if not streamed:
        handler.play = Play(handler.connection, handler.received_s, iter(((0.0, handler.answer),)), timed=False)
        handler.play.owner = handler
    FaultySteps(handler.play, lambda: faults, "chunked" if handler.chunked else "bare", streamed,
                FaultCase(app, handler, None), app.settings.time_scale)


class FaultCase:
    """What the faults of one play need of the server. owner: the handler, or None for a background response."""

    def __init__(self, app, owner, completion):
        self.gates = app.gates
        self.player = app.player
        self._app = app
        self._owner = owner
        self._completion = completion

    def told(self, play, events):
        """What reports of a gate say of an answer that waits there."""
        owner, completion = self._owner, self._completion
        return {"path": None if owner is None else owner.path, "model": None if completion is None
                else completion.request.model, "events_sent": events - 1 if events else 0}

    def note(self, play, fault):
        if self._owner is not None:
            self._owner.note_fault(fault)
        elif fault.standing is not None:
            fault.standing.done += 1

    def cut(self, play, reset):
        """The connection ends without another word; reset: with a RST."""
        owner = self._owner
        if owner is None:
            return
        conn = owner.connection
        conn.cut = owner.cut_off = True
        owner.keep_alive = False
        completion, submit = self._completion, self._app.workers.submit
        if completion is not None and play.on_gone is not None:
            def called_off():           # it was not the client who left
                for callback in completion.call_off():
                    submit(callback)
            play.on_gone = called_off
        if reset:
            # l_onoff, l_linger: shorts on Windows
            linger = struct.pack("hh" if sys.platform == "win32" else "ii", 1, 0)
            conn.sock.setsockopt(socket.SOL_SOCKET, socket.SO_LINGER, linger)
        if owner.socket_frame is not None and owner.socket.play is not None:
            self.player.gone(owner.socket.play)

    def gate_failure(self, play, fault, in_stream):
        """The frame, bytes or a Step, that ends an answer whose gate was not opened in time."""
        error = ApiError(504, "The gate '%s' was not opened within %g s." % (fault["name"], self.gates.timeout_s),
                         type="server_error", code="gate_timeout", headers=[("x-should-retry", "false")])
        completion, owner = self._completion, self._owner
        if completion is None:
            return owner.refused(error) if not in_stream else owner.framed_error(error)
        if in_stream:
            return completion.break_off(error, self._app.workers.submit)
        for callback in completion.call_off():
            self._app.workers.submit(callback)
        return owner.refused(error)
