"""Answers of a loaded engine: their plans' seconds are brought to the clock while they are played.

In: a play's steps and its seat in the engine. Out: the same frames, due when the engine gets to them; heartbeats
while the request waits for a seat. Runs on the player's thread.
"""
from itertools import chain

from transport.player import PushedSteps, Splice, Step

# A due time further away is looked at again half way there, as the load may change meanwhile. A token's slip is made
# good with the next one; a first token or a plain answer, which may have come in a burst of others, has no next.
LOOK_AGAIN_S = 0.05
FIRST_LOOK_AGAIN_S = 0.002


class SeatSteps(PushedSteps):
    """A play's steps, their times in plan seconds, brought to the clock by a seat in an engine.

    seat: as backends.engine.Seat.
    """

    def __init__(self, steps, seat, follow, streamed, heartbeat_s, heartbeat):
        """steps: iterator of (plan_s, frame). follow(play): makes the player look again, later. streamed:
        the first frame opens a stream, and goes out while the request still waits."""
        PushedSteps.__init__(self, None, 0.0, heartbeat_s, heartbeat)
        self._steps = iter(steps)
        self._follow = follow
        self._opening = streamed
        self._next = None
        self._said_s = 0.0          # when something was last given out, of the play's time
        self._due_s = 0.0           # of what was given out last
        self._look_again_s = FIRST_LOOK_AGAIN_S
        self.seat = seat

    def begin(self, play, clock):
        PushedSteps.begin(self, play, clock)
        self.seat.arrived_s = play.start_s
        self.seat.on_admit = self._admitted
        self.seat.engine.enter(self.seat)

    def _admitted(self):
        play = self.play
        if play is not None and self.waiting:
            self._follow(play)

    def close(self):
        """The play is over: whoever waits for its seat gets it."""
        seat, play = self.seat, self.play
        if play is not None:
            seat.on_admit = None
            seat.engine.leave(seat, self.clock())
            self._steps = iter(())
            PushedSteps.close(self)

    def __next__(self):
        self.waiting = False
        seat = self.seat
        if self._next is None:
            self._next = self._take()
            if self._next is None:
                seat.engine.leave(seat, self.play.start_s + self._due_s)
                raise StopIteration
        plan_s, frame = self._next
        if self._opening:
            self._opening = False
            return self._give(0.0, frame)
        now_s = self._now_s()
        if seat.admitted_s is None:
            self.waiting = True
            return (None, Step(self._idle)) if self._heartbeat_s else (float("inf"), b"")
        due_s = seat.when_s(plan_s, self.clock()) - self.play.start_s
        ahead_s = due_s - now_s
        if ahead_s <= self._look_again_s and not 0.0 < self._heartbeat_s < ahead_s:
            self._look_again_s = LOOK_AGAIN_S
            return self._give(max(due_s, self._due_s), frame)
        again_s = now_s + ahead_s / 2
        if self._heartbeat_s:
            beat_s = self._said_s + self._heartbeat_s
            if beat_s <= again_s:
                self._said_s = max(now_s, beat_s)
                return self._said_s, Step(self._idle)
        return again_s, Step(_nothing)

    def _give(self, due_s, frame):
        self._next = None
        self._said_s = self._due_s = due_s
        return due_s, frame

    def _take(self):
        """The next (plan_s, frame), or None."""
        step = next(self._steps, None)
        while step is not None and step[1].__class__ is Splice:
            self._steps = chain(step[1].steps, self._steps)
            step = next(self._steps, None)
        return step

    def _idle(self):
        self._said_s = self._now_s()
        return self._heartbeat


def _nothing():
    return b""
