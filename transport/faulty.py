"""Faults carried out on an answer's bytes: cuts, stalls, events that are wrong, missing or late, and gates.

Stands before a play's steps as a trace does. Takes each frame apart into the events that a client sees, counts them
from 1 (heartbeats are none), does to them what the faults say, and gives them to the player framed again. Only plays
that have faults have it. Runs on the player's thread.
"""
from collections import deque
from itertools import chain

from transport.broken import (TERMINAL_TYPES, BareFraming, ChunkedFraming, SocketFraming, character_cut, event_type,
                              with_character, with_content_type, with_data, with_length)
from transport.changes import EVENT_CHANGES, changed_body, in_order
from transport.player import Aside, Splice, Step

_NEVER = float("inf")
# So much later than what goes out before it is what must not be joined with it.
APART_S = 0.001

FRAMINGS = {"chunked": ChunkedFraming, "bare": BareFraming, "socket": SocketFraming}


class _Waiting:
    """What stands in the queue of FaultySteps: due_s, what (bytes, a Step, or _CUT or _GATE with its fault)."""

    __slots__ = ("due_s", "what", "fault", "silent")

    def __init__(self, due_s, what, fault=None, silent=False):
        self.due_s = due_s
        self.what = what
        self.fault = fault
        self.silent = silent        # no heartbeats before it


_CUT = "cut"
_GATE = "gate"


class FaultySteps:
    """A play's steps with faults. It is the play's `push` as well, whatever that was before.

    faults(): the list of Fault, asked for with the first frame: a blocking backend's rule may have added some by then.
    framing: "chunked", "bare" or "socket". streamed: events, or one whole answer. room: what a fault needs of the
    server, see fault_room.FaultRoom.
    """

    def __init__(self, play, faults, framing, streamed, room, scale=1.0):
        self.count = 0              # events seen so far
        self.clock = None
        self._faults_of = faults
        self._faults = None
        self._play = play
        self._steps = iter(play.steps)
        self._inner = play.push     # what feeds the play, when something does
        self._closes = play.steps
        self.framing = FRAMINGS[framing]
        self.socket = framing == "socket"
        self._streamed = streamed
        self._room = room
        self._scale = scale
        self._heartbeat = play.heartbeat
        self._heartbeat_s = play.heartbeat_s
        self._queue = deque()
        self._shift_s = 0.0         # how much later everything is by stalls and gates
        self._last_s = 0.0          # when something was given out last
        self._now_due_s = 0.0       # of what is being taken apart
        self._opened = False        # the head, where there is one, was taken apart
        self._out = False           # its bytes are on their way: heartbeats may be
        self._begun = False         # what comes before an answer that is not streamed was done
        self._held = False          # at a gate, or nothing is due: follow() may be called
        self._gate = None           # the fault whose gate it waits at
        self._gate_since_s = 0.0
        self._cut_at_s = None       # (when, fault) of a cut by time
        self._cutting = False       # nothing comes behind what is queued
        self._over = False
        self.kept = None           # events that are held back until the next one is out
        self._raw = b""             # what a step that ran on a worker made
        self._done = set()
        self._find_end(faults())
        if play.frame is not None:      # the head, which else goes out at once
            self._steps = chain(((0.0, Aside(play.frame)),), self._steps)
            play.frame = None
        play.steps = play.push = self

    # ---- what the player and a worker ask of what feeds a play --------------------------------

    @property
    def waiting(self):
        return self._held or self._inner is not None and self._inner.waiting

    @waiting.setter
    def waiting(self, waits):
        self._held = waits
        if self._inner is not None:
            self._inner.waiting = waits

    def begin(self, play, clock):
        self.clock = clock
        if self._inner is not None:
            self._inner.begin(play, clock)

    def close(self):
        """The play is over."""
        self._over = True
        self._leave_gate()
        self._queue.clear()
        for each in {id(each): each for each in (self._closes, self._inner) if each is not None}.values():
            close = getattr(each, "close", None)
            if close is not None:
                close()
        self._steps = self._closes = iter(())
        self._play = self._room = None      # they held each other

    def add(self, due_s, frame):
        self._inner.add(due_s, frame)

    def __len__(self):
        return 0 if self._inner is None else len(self._inner)

    closed = property(lambda self: self._inner.closed, lambda self, value: setattr(self._inner, "closed", value))
    failure = property(lambda self: self._inner.failure, lambda self, value: setattr(self._inner, "failure", value))
    on_empty = property(lambda self: self._inner.on_empty, lambda self, value: setattr(self._inner, "on_empty", value))
    head = property(lambda self: self._inner.head, lambda self, value: setattr(self._inner, "head", value))

    def wake(self):
        """A gate was opened. Any thread."""
        room, play = self._room, self._play
        if play is not None and room is not None:
            room.player.come_back(play)

    # ---- steps --------------------------------------------------------------------------------

    def _now_s(self):
        return self.clock() - self._play.start_s

    def __iter__(self):
        return self

    def __next__(self):
        self._held = False
        while True:
            if self._cut_at_s is not None and not self._cutting and self._now_s() >= self._cut_at_s[0]:
                self._cut_now(*self._cut_at_s)
            if self._gate is not None:
                step = self._at_gate()
            elif self._queue:
                step = self._from_queue()
            elif self._over or self._cutting:
                raise StopIteration
            else:
                step = self._pull()
            if step is not None:
                return step

    def _pull(self):
        """Take the next step of the play; None when what it gave is queued."""
        step = next(self._steps, None)
        while step is not None and step[1].__class__ is Splice:
            self._steps = chain(step[1].steps, self._steps)
            step = next(self._steps, None)
        if step is None:
            self._exhausted()
            return None
        due_s, frame = step
        if due_s is None or due_s == _NEVER or self._inner is not None and self._inner.waiting:
            return self._idle_step(due_s, frame)
        if self._faults is None:
            self._load()
        due_s += self._shift_s
        if not self._streamed and not self._begun:
            self._begun = True
            due_s = self._before_plain(due_s)
        if frame.__class__ is not Step:
            if frame:
                self._take(due_s, frame, frame.__class__ is bytes)
            return None
        if frame.blocking:
            # On a worker it only makes the bytes; they are taken apart here.
            self._queue.append(_Waiting(due_s, Step(self._keep_raw(frame.run), True, self._keep_failed(frame.failed),
                                                    frame.kept)))
            self._queue.append(_Waiting(due_s, Step(lambda: self._ran(self._raw), tells=frame.tells)))
        else:
            self._queue.append(_Waiting(due_s, Step(lambda: self._ran(frame.run()), tells=frame.tells)))
        return None

    def _load(self):
        """The answer begins: all its faults are known."""
        self._faults = in_order(self._faults_of())
        self._find_end(self._faults)

    def _find_end(self, faults):
        for fault in faults:
            if fault.kind == "cut" and fault["ms"] is not None:
                self._cut_at_s = fault["ms"] * self._scale / 1000, fault

    def _keep_raw(self, run):
        def keep():
            self._raw = run()
            return b""
        return keep

    def _keep_failed(self, failed):
        if failed is None:
            return None

        def keep(error):
            self._raw = failed(error)
            return b""
        return keep

    def _idle_step(self, due_s, frame):
        """What feeds the play has nothing yet, and what it gave may be dropped."""
        if self._cut_at_s is not None and self._cut_at_s[0] < (
                self._now_s() + self._heartbeat_s if due_s is None else due_s):
            return self._cut_at_s[0], Step(_no_frame)
        if frame.__class__ is Step:
            return due_s, Step(lambda: self._ran(frame.run()))
        return due_s, frame

    def _ran(self, data):
        """A step's bytes, when it was due: what of them goes out now; the rest is queued."""
        if data == self._heartbeat:
            self._last_s = self._now_s()
            return data
        if self._over or not data:
            return b""
        if self._faults is None:
            self._load()
        now_s = self._now_s()
        self._take(now_s, data)
        out = []
        while self._queue and isinstance(self._queue[0].what, bytes) and self._queue[0].due_s <= now_s:
            out.append(self._queue.popleft().what)
        self._out = self._out or bool(out)
        self._last_s = now_s
        return b"".join(out)

    def _from_queue(self):
        first = self._queue[0]
        due_s = first.due_s
        if self._cut_at_s is not None and due_s >= self._cut_at_s[0] and not self._cutting:
            return self._cut_at_s[0], Step(_no_frame)       # it is looked at again then
        if self._heartbeat_s and not first.silent and due_s - self._last_s > self._heartbeat_s and self._out \
                and self._streamed:
            self._last_s += self._heartbeat_s
            return self._last_s, Step(lambda: self._heartbeat)
        self._queue.popleft()
        if first.what is _GATE:
            return self._apart(due_s), Step(lambda: self._reach(first.fault))
        self._last_s = max(due_s, self._last_s)
        if first.what is _CUT:
            return self._apart(due_s), Step(lambda: self._cut(first.fault))
        self._out = self._out or isinstance(first.what, bytes)
        return due_s, first.what

    def _apart(self, due_s):
        """Later than what was given before, whatever the time: that must be with the kernel first."""
        return max(due_s, self._now_s() + APART_S)

    def _exhausted(self):
        self._over = True
        if self.kept is not None:
            self._emit(self.kept)
            self.kept = None
        for fault in self._faults or ():
            if fault.kind == "close" and not self._cutting:
                self._put(_CUT, fault)
                self._cutting = True

    # ---- gates --------------------------------------------------------------------------------

    def _reach(self, fault):
        """An answer has come to a gate. The bytes that go out for it: none."""
        self.note(fault)
        self._gate_since_s = self._now_s()
        self._gate = fault
        if self._room.gates.reach(fault["name"], self, self._room.told(self._play, self.count)):
            self._gate = None
        return b""

    def _at_gate(self):
        """The next step while a gate is shut, or None when it was opened, or its time is over."""
        gates, fault, now_s = self._room.gates, self._gate, self._now_s()
        if not gates.holds(fault["name"], self):
            self._gate = None
            waited_s = now_s - self._gate_since_s
            self._shift_s += waited_s
            for each in self._queue:
                each.due_s += waited_s
            return None
        end_s = self._gate_since_s + gates.timeout_s
        if self._cut_at_s is not None and self._cut_at_s[0] < end_s:
            end_s = self._cut_at_s[0]
        elif now_s >= end_s:
            self._leave_gate()
            self._gate_failed(fault)
            return None
        self._held = True
        if self._heartbeat_s and self._streamed and self._out:
            beat_s = max(self._last_s + self._heartbeat_s, now_s)
            if beat_s < end_s:
                return beat_s, Step(self._beat)
        return end_s, Step(_no_frame)

    def _leave_gate(self):
        gate, self._gate = self._gate, None
        if gate is not None:
            self._room.gates.leave(gate["name"], self)

    def _beat(self):
        now_s = self._now_s()
        if now_s - self._last_s < self._heartbeat_s:
            return b""
        self._last_s = now_s
        return self._heartbeat

    def _gate_failed(self, fault):
        """Nobody opened it in time: what is said already goes out, then the API's own error ends the answer."""
        now_s, in_stream = self._now_s(), self._opened and self._streamed
        kept = [each for each in self._queue if in_stream and isinstance(each.what, bytes)]
        self._queue.clear()
        for each in kept:
            self._queue.append(_Waiting(now_s, each.what))
        self._queue.append(_Waiting(now_s, self._room.gate_failure(self._play, fault, in_stream)))
        self._cutting = True
        self._steps = iter(())

    # ---- ends ---------------------------------------------------------------------------------

    def _cut_now(self, at_s, fault):
        self._leave_gate()
        self._cutting = True
        self._queue.clear()
        self._queue.append(_Waiting(at_s, _CUT, fault))

    def _cut(self, fault):
        self.note(fault)
        play, room = self._play, self._room
        room.cut(play, fault.values.get("how") == "rst")
        raise ConnectionAbortedError("cut by a fault")

    def note(self, fault):
        """A fault was carried out; told once."""
        if id(fault) not in self._done:
            self._done.add(id(fault))
            self._room.note(self._play, fault)

    # ---- bytes --------------------------------------------------------------------------------

    def _put(self, what, fault=None, silent=False):
        self._queue.append(_Waiting(self._now_due_s, Aside(what) if what.__class__ is bytes else what, fault, silent))

    def delay(self, ms, fault, silent=False):
        """All that follows comes so much later."""
        self.note(fault)
        seconds = ms * self._scale / 1000
        self._shift_s += seconds
        self._now_due_s += seconds
        if silent:
            self._put(b"", None, True)      # what follows has heartbeats again, this has none before it

    def _take(self, due_s, data, tells=False):
        """Take bytes of the answer apart; what they become is queued. tells: they have a token, which the last of it
        then has."""
        self._take_apart(due_s, data)
        if tells and self._queue and self._queue[-1].what.__class__ is Aside:
            self._queue[-1].what = bytes(self._queue[-1].what)

    def _take_apart(self, due_s, data):
        self._now_due_s = due_s
        if data == self._heartbeat:
            self._put(data)
            return
        if not self._opened:
            self._opened = True
            if data.startswith(b"HTTP/1.1 "):
                data = self._open(data)
        if self._cutting or not data:
            return
        events, ended = self.framing.split(data)
        for event in events:
            self._take_event(event)
            if self._cutting:
                return
        if ended:
            if self.kept is not None:
                kept, self.kept = self.kept, None
                self._emit(kept)
            self._put(self.framing.end)

    def _open(self, data):
        """The head, and with it all of an answer that is not streamed. Returns the stream's bytes behind the head."""
        head, _, rest = data.partition(b"\r\n\r\n")
        head += b"\r\n\r\n"
        self._streamed = b"\r\ncontent-type: text/event-stream" in head
        for fault in self._faults:
            if fault.kind == "slow_headers" and not self._begun:
                self.delay(fault["ms"], fault)
            elif fault.kind == "cut" and fault["where"] == "headers":
                self._end_with(fault)
                return b""
            elif fault.kind == "content_type":
                self.note(fault)
                head = with_content_type(head, fault["value"])
        if self._streamed:
            self._put(head)
            return rest
        self._take_plain(head, rest)
        return b""

    def _end_with(self, fault):
        self._put(_CUT, fault)
        self._cutting = True

    # ---- answers that are not streamed --------------------------------------------------------

    def _before_plain(self, due_s):
        """What such an answer has to wait for; when it is due then."""
        self._now_due_s = due_s
        for fault in self._faults:
            if fault.kind in ("slow_headers", "stall"):
                self.delay(fault["ms"], fault)
            elif fault.kind == "gate":
                self._put(_GATE, fault)
        return self._now_due_s

    def _take_plain(self, head, body):
        for fault in self._faults:
            changed = changed_body(fault, body)
            if changed is not None:
                self.note(fault)
                head, body = with_length(head, lambda length: len(changed)), changed
        cut = None
        for fault in self._faults:
            if fault.kind == "wrong_length" and body:
                self.note(fault)
                more = max(fault["bytes"], 1 - len(body))
                head = with_length(head, lambda length: length + more)
                if more > 0:
                    cut = cut or fault      # else the client would wait for what never comes
            elif fault.kind == "cut" and fault["ms"] is None:
                cut = fault
                where = fault["where"]
                if where == "character":
                    body = with_character(body)
                    head = with_length(head, lambda length: len(body))
                    body = body[:character_cut(body)]
                else:
                    body = body[:len(body) // 2] if where == "frame" else b""
        self._put(head)
        slow = next((fault for fault in self._faults if fault.kind == "slow_body"), None)
        if slow is None:
            self._put(body)
        else:
            self._put_slowly([body[at:at + slow["bytes"]] for at in range(0, len(body), slow["bytes"])], slow)
        if cut is not None:
            self._end_with(cut)

    # ---- events -------------------------------------------------------------------------------

    def _take_event(self, event):
        if event.startswith(b":"):
            self._put(self.framing.frame(event))
            return
        self.count += 1
        number, data = self.count, self.framing.data_of(event)
        known = []

        def name():
            if not known:
                known.append(event_type(data))
            return known[0]
        events, kept = [event], self.kept
        self.kept = None
        for fault in self._faults:
            kind = fault.kind
            if kind == "gate":
                if fault["event"] == number:
                    self._put(_GATE, fault)
            elif kind == "stall":
                if fault.hits(number, name):
                    self.delay(fault["ms"], fault, not fault["heartbeats"])
            elif kind == "cut":
                if fault["ms"] is None and fault["where"] != "headers" and fault.hits(number, name):
                    self._cut_event(fault, event, data)
                    return
            elif kind == "no_terminal":
                if name() == "done" or fault["only"] == "all" and name() in TERMINAL_TYPES:
                    self.note(fault)
                    return
            elif kind in EVENT_CHANGES:
                events = EVENT_CHANGES[kind](self, fault, number, name, events)
        self._emit(events if kept is None else events + kept)

    def _cut_event(self, fault, event, data):
        if fault["where"] == "frame":
            frame = self.framing.frame(event)
            self._put(frame[:len(frame) // 2])
        elif fault["where"] == "character":
            frame = self.framing.frame(with_data(event, data, with_character(data)))
            self._put(frame[:character_cut(frame)])
        self._end_with(fault)

    def _emit(self, events):
        framing = self.framing
        for event in events:
            if event.__class__ is tuple:        # ready frames with their delays
                fault, frames = event
                self._put_slowly(frames, fault)
            else:
                self._put(framing.frame(event))

    def _put_slowly(self, frames, fault):
        for number, frame in enumerate(frames):
            if number:
                self.delay(fault["ms"], fault)
            self._put(frame)


def _no_frame():
    return b""
