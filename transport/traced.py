"""A play that is being watched: when each of its frames was due, and when the kernel took it.

In: a play. Out: two lists of times, which agree frame by frame; the player does not know. Runs on the
player's thread.
"""
from itertools import chain

from transport.player import Splice, Step


class TracedSteps:
    """Stands before a play's steps and its socket and writes down both times of every frame.

    due_s, sent_s: seconds since the play's start, of the frames that are out, but for heartbeats. on_end(self): the
    play is over.
    """

    def __init__(self, play, clock, on_end):
        self.due_s = []
        self.sent_s = []
        self._play = play
        self._steps = iter(play.steps)
        self._traced = play.steps
        self._start_s = play.start_s
        self._send = play.send
        self._heartbeat = play.heartbeat
        self._clock = clock
        self._on_end = on_end
        self._coming = []           # due times of frames that the next send sends
        self._last = None           # _Given: what was given out last, and is not sent before the next is asked for
        play.steps = play.trace = self
        play.send = self._send_and_note

    def __iter__(self):
        return self

    def __next__(self):
        last, self._last = self._last, None
        if last is not None and last.counts:
            self._coming.append(last.due_s)
        step = next(self._steps)
        while step[1].__class__ is Splice:
            self._steps = chain(step[1].steps, self._steps)
            step = next(self._steps)
        due_s, frame = step
        if isinstance(frame, bytes):
            self._last = _Given(due_s, bool(frame))
            return step
        given = self._last = _Given(due_s, False)

        def run():
            data = frame.run()
            given.counts = bool(data) and data != self._heartbeat
            return data
        return due_s, Step(run, frame.blocking, frame.failed, frame.kept, frame.tells)

    def _send_and_note(self, data):
        sent = self._send(data)
        if self._coming:
            now_s = self._clock.monotonic() - self._start_s
            self.due_s += self._coming
            self.sent_s += [now_s] * len(self._coming)
            self._coming = []
        return sent

    def close(self):
        """The play is over: said once."""
        traced, self._traced = self._traced, None
        if traced is None:
            return
        close = getattr(traced, "close", None)
        if close is not None:
            close()
        self._play.send = self._send        # they held each other
        self._play = None
        self._on_end(self)


class _Given:
    __slots__ = ("due_s", "counts")

    def __init__(self, due_s, counts):
        self.due_s = due_s or 0.0
        self.counts = counts
