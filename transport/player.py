"""The pacer: it plays answers, each a series of frames with due times, onto their sockets.

In: Play objects. Out: bytes on time, heartbeats while nothing is due, and a word when an answer is
over or its client has left. One thread runs all of it, the loop's or its own; others call post().
Nothing that may wait runs here: such a step of an answer goes through a worker.
"""
import threading
from collections import deque
from heapq import heappop, heappush
from itertools import chain
from time import monotonic

from api_common import SSE_HEARTBEAT
from observe.metrics import GAP_STEP_S, LATENESS_SLOTS, LATENESS_STEP_S, SENT_NEVER
from transport.poller import POLL_ENDED, POLL_READ, POLL_WRITE
from transport.relay import UpstreamWire

JOIN_BYTES = 65536                  # frames due together are sent together up to this
TICK_S = 0.001                      # one bucket; a frame is up to a tick late by it
BUCKETS_AT_ONCE = 2                 # then whoever calls tick() looks at the sockets again
PUSH_LIMIT = 4096                   # frames that a worker may be ahead of its client
_PLAY_IDLE = -1                     # a tick that no bucket has: not waiting for a deadline
_LATENESS_RATE = 1.0 / LATENESS_STEP_S
_LATENESS_LAST = LATENESS_SLOTS - 1
_GAP_RATE = 1.0 / GAP_STEP_S


class Aside(bytes):
    """A frame without a token in it: the opening of a stream, a heartbeat, an item's end. Sent like any, but
    the gap to the next token does not count from it."""

    __slots__ = ()


class Step:
    """A frame that is made only when it is due: run() returns its bytes.

    blocking: run() may wait, so it is called on a worker and the play pauses meanwhile. failed(error):
    the bytes in place of run()'s when what it wrote could not be made durable; kept(): called when it was.
    tells: 1 when the frame has tokens in it.
    """

    __slots__ = ("run", "blocking", "failed", "kept", "tells")

    def __init__(self, run, blocking=False, failed=None, kept=None, tells=0):
        self.run = run
        self.blocking = blocking
        self.failed = failed
        self.kept = kept
        self.tells = tells


class Splice:
    """Stands for many frames: its own (due_s, frame) steps come next, then the play's go on.

    So a run's frames reach the player without a generator in between (0.1 us a token).
    """

    __slots__ = ("steps",)

    def __init__(self, steps):
        self.steps = steps


class Play:
    """One answer on its way to one client.

    wire: the connection's writer. start_s: monotonic time that the dues count from. steps:
    iterator of (due_s, frame), due_s non-decreasing, frame bytes (with a token, see count_tokens), an Aside, a
    Step or a Splice. heartbeat_s: a comment frame whenever nothing was due for so long; 0 for never. heartbeat: its bytes, framed.
    reader: None, or what takes the client's bytes while this plays: receive(), and what Player.readers
    asks for. carried: its wire is another play, which says with writable() when it takes frames again.
    on_gone(): the client has left. on_end(play, whole): the play is over; whole is False when the
    connection is of no more use. Both are called on the player's thread.
    """

    __slots__ = ("wire", "start_s", "steps", "heartbeat_s", "heartbeat", "on_gone", "on_end",
                 "frame", "due_s", "tick", "rest", "blocked_s", "over", "read_off", "push", "ended",
                 "timed", "away", "owner", "send", "reader", "carried", "times", "gaps", "sent_at", "said",
                 "joined", "first_s", "trace")

    def __init__(self, wire, start_s, steps, on_gone=None, on_end=None, heartbeat_s=0.0,
                 heartbeat=SSE_HEARTBEAT, timed=True):
        self.wire = wire
        self.send = wire.send       # one look-up less per frame; a trace puts its own here
        self.start_s = start_s
        self.steps = steps
        self.heartbeat_s = heartbeat_s
        self.heartbeat = heartbeat
        self.on_gone = on_gone
        self.on_end = on_end
        self.frame = None           # what is sent at due_s
        self.due_s = 0.0
        self.tick = _PLAY_IDLE      # the bucket it waits in; a bucket's entry with another is stale
        self.rest = b""             # bytes that the socket did not take yet
        self.blocked_s = 0.0        # since when
        self.over = False           # on_end was called
        self.ended = False          # steps is exhausted; only rest is still to go
        self.read_off = False       # bytes of a next request wait, so reading is not watched
        self.push = None            # its PushedSteps, when a worker feeds it
        self.timed = timed          # whether its lateness counts
        self.away = False           # a worker runs its next step
        self.owner = None           # the handler whose answer it is
        self.reader = None
        self.carried = False
        self.trace = None           # what is told when it is over, by close()
        self.times = None           # where its tokens are counted
        self.gaps = ()              # times.gaps: one look-up less per token
        self.sent_at = SENT_NEVER   # when its last token went out, in steps of GAP_STEP_S
        self.said = 0               # frames with tokens that went out
        self.joined = 0             # those of them that went out behind another in one send
        self.first_s = None         # monotonic time of the first

    def count_tokens(self, times):
        """Count when its tokens go out. times: observe.metrics.TokenTimes."""
        self.times = times
        self.gaps = times.gaps


class PushedSteps:
    """Steps that a worker pushes while it generates; the play waits for the next.

    head: bytes that are held back until the first frame comes or grace_s has passed, so that a
    failure before that can still be a plain status. failure: the Step of one, played when the
    frames before it are out; the head does not go out for it. Everything is the player's, but the
    worker adds frames and sets `failure` and `closed`, in this order.
    """

    def __init__(self, head, grace_s, heartbeat_s, heartbeat):
        self.head = head
        self.failure = None
        self.closed = False
        self.waiting = False        # the play has taken all and waits
        self.on_empty = None        # None, or called on the player's thread when it takes what is not there
        self.clock = monotonic
        self.play = None
        self._queue = deque()
        self._grace_s = grace_s
        self._heartbeat_s = heartbeat_s
        self._heartbeat = heartbeat
        self._last_s = 0.0          # due time of what was given out last

    def _now_s(self):
        """Seconds since the request was read."""
        return self.clock() - self.play.start_s

    def __iter__(self):
        return self

    def __len__(self):
        return len(self._queue)

    def begin(self, play, clock):
        """The play starts. On the player's thread."""
        self.play = play
        self.clock = clock

    def close(self):
        """The play is over. On the player's thread."""
        self.play = None            # they held each other

    def add(self, due_s, frame):
        self._queue.append((due_s, frame))

    def __next__(self):
        queue = self._queue
        self.waiting = not queue
        if not queue and self.on_empty is not None:
            self.on_empty()
        if queue and self.head is None and self._heartbeat_s and queue[0][0] is not None \
                and queue[0][0] - self._now_s() > self._heartbeat_s:
            self.waiting = False    # the next is far away: a heartbeat before it
            return None, Step(self._idle)
        if queue:                   # looked at again: a push may have come before `waiting` was set
            self.waiting = False
            if self.head is not None:
                head, self.head = self.head, None
                return 0.0, Aside(head)
            due_s, frame = queue.popleft()
            if due_s is None:
                due_s = self._last_s
            self._last_s = max(due_s, self._last_s)
            return self._last_s, frame
        if self.closed:
            if queue:                   # pushed between the two looks
                return self.__next__()
            self.waiting = False
            failure, self.failure = self.failure, None
            if failure is None:
                raise StopIteration
            return self._last_s, failure
        if self.head is not None:
            return self._grace_s, Step(self._idle)
        if not self._heartbeat_s:
            return float("inf"), b""
        return None, Step(self._idle)       # None: heartbeat_s from now

    def _idle(self):
        if self.head is not None:
            head, self.head = self.head, None
            return head
        return self._heartbeat


def _with_heartbeats(first, steps, last_s, heartbeat_s, heartbeat):
    """steps with a heartbeat every heartbeat_s wherever nothing is due for longer, within a Splice as well."""
    due_s, frame = first
    heartbeat = Aside(heartbeat)
    while True:
        if frame.__class__ is Splice:           # played past this generator, its end would look like a pause
            steps = chain(frame.steps, steps)
        else:
            while due_s - last_s > heartbeat_s:
                last_s += heartbeat_s
                yield last_s, heartbeat
            yield due_s, frame
            last_s = due_s
        try:
            due_s, frame = next(steps)
        except StopIteration:
            return


class Player:
    """Plays any number of answers on one thread.

    poller: where sockets are watched, shared with the loop that calls tick(), or its own.
    clock: Clock. lateness: observe.metrics.Lateness. submit(job): runs a blocking step elsewhere.
    on_error(): called inside an except block for a fault that ended one play. wake(): makes the
    thread that calls tick() look at the inbox.
    """

    def __init__(self, poller, clock, lateness, submit, on_error, wake, send_timeout_s=60.0):
        self._poller = poller
        self._now = clock.monotonic
        self._lateness = lateness.slots
        self._submit = submit
        self._on_error = on_error
        self._wake = wake
        self._send_timeout_s = send_timeout_s
        self._buckets = {}          # tick -> [Play]
        self._ticks = []            # heap of the keys of _buckets
        self._blocked = {}          # Play -> None: those that wait for their socket
        self.plays = {}             # wire -> Play: all that are not over
        self.readers = {}           # WebSockets -> None: they are swept, and told of a drain
        self.draining = False
        self.heartbeats = 0         # sent so far
        self.relay = None           # transport.relay.Relay, where a backend has use for one

    # ---- from other threads -------------------------------------------------------------------

    def push(self, play, due_s, frame):
        """Give a pushed play its next frame. Any thread."""
        play.push.add(due_s, frame)
        if play.push.waiting:
            self._wake(lambda: self.follow(play))

    def close_push(self, play):
        """No more frames will be pushed. Any thread."""
        play.push.closed = True
        self._wake(lambda: self.follow(play))

    def post(self, job):
        """Run job() on the player's thread. Any thread."""
        self._wake(job)

    def come_back(self, play):
        """follow() a play soon, but not within what is being done. Any thread."""
        self._wake(lambda: self.follow(play))

    # ---- on the player's thread ---------------------------------------------------------------

    def start(self, play):
        """Begin to play: what is due goes out now, joined with the head."""
        self.plays[play.wire] = play
        if play.push is not None:
            play.push.begin(play, self._now)
        self._advance_safely(play, self._now())

    def next_due_s(self):
        """Monotonic time of the next bucket, or None."""
        return self._ticks[0] * TICK_S if self._ticks else None

    def tick(self):
        """Send all that is due, two buckets at most; True when more is due already."""
        ticks = self._ticks
        if not ticks:
            return False
        clock = self._now
        now = clock()
        rounds = BUCKETS_AT_ONCE
        buckets = self._buckets
        slots = self._lateness
        while ticks and ticks[0] <= now * 1000.0:
            if not rounds:
                return True
            rounds -= 1
            tick = heappop(ticks)
            # First all frames of the bucket, then all sends: a send runs some 10 us of the kernel's
            # code, which leaves the caches cold for whatever Python follows it.
            ready = []
            for play in buckets.pop(tick):
                if play.tick != tick:           # it left, or was rescheduled by a push
                    continue
                frame = play.frame
                try:
                    if frame.__class__ is not bytes or play.push is not None:
                        self._advance(play, now)
                        continue
                    step = next(play.steps, None)
                    if step is None:
                        self._advance(play, now)
                        continue
                    next_s = step[0] + play.start_s
                    if next_s - now < 0.0005 or 0.0 < play.heartbeat_s < next_s - now:
                        self._advance(play, now, step)
                        continue
                    ready.append((play, frame, play.due_s))
                    play.due_s = next_s
                    play.frame = step[1]
                    play.tick = at = int(next_s * 1000.0) + 1
                    bucket = buckets.get(at)
                    if bucket is None:
                        buckets[at] = [play]
                        heappush(ticks, at)
                    else:
                        bucket.append(play)
                except OSError:
                    self.gone(play)
                except Exception:
                    self._on_error()
                    self._end(play, False)
            # One clock read per 16 frames: a read each cost 0.05 us a token, and none at all made a
            # long bucket look punctual to the end.
            count = -1
            for play, frame, due_s in ready:
                count += 1
                if not count & 15:
                    now = clock()
                    sent_at = int(now * _GAP_RATE)
                late = int((now - due_s) * _LATENESS_RATE) + 1
                slots[late if late < _LATENESS_LAST else _LATENESS_LAST] += play.timed
                # _tell() of one token, in place: 0.06 us for 0.2
                try:
                    play.gaps[sent_at - play.sent_at] += 1
                except IndexError:
                    self._tell_apart(play, sent_at, now)
                play.sent_at = sent_at
                play.said += 1
                try:
                    sent = play.send(frame)
                except BlockingIOError:
                    sent = 0
                except OSError:
                    self.gone(play)
                    continue
                if sent != len(frame):
                    play.tick = _PLAY_IDLE
                    self._block(play, frame[sent:], now)
        return False

    def writable(self, play):
        """The socket of a blocked play takes bytes again."""
        if play.over or not play.rest:
            return
        rest, at = memoryview(play.rest), 0
        try:
            while at < len(rest):
                at += play.send(rest[at:])
        except BlockingIOError:
            pass                        # full again: what is left waits
        except OSError:
            self.gone(play)
            return
        now = self._now()
        if at:
            play.rest = bytes(rest[at:])
            play.blocked_s = now
        if play.rest:
            return
        self._blocked.pop(play, None)
        self._watch(play)
        if play.away:
            return
        if play.ended:
            self._end(play, True)
        elif play.push is not None and play.push.waiting:
            self.follow(play)          # a push may have come while the socket was full
        else:
            self._resume(play, now)

    def readable(self, play, mask=POLL_READ):
        """Something came, or the end, from a client whose answer is not over."""
        if play.over:
            return
        if play.read_off:
            if mask & POLL_ENDED:
                self.gone(play)
            return
        if play.reader is not None:
            play.reader.receive()
            return
        try:
            data = play.wire.peek()
        except BlockingIOError:
            return
        except OSError:
            data = b""
        if not data:
            self.gone(play)
        else:
            play.read_off = True        # a pipelined request: not before this answer is out
            self._watch(play)

    def stop(self, play):
        """End a play that nobody waits for any more."""
        self._end(play, False)

    def write(self, play, data):
        """Send more of a play that waits; behind what its socket did not take yet."""
        if play.over:
            return
        try:
            self._send(play, data, self._now())
        except OSError:
            self.gone(play)

    def set_reading(self, play, wanted):
        """Whether a client's bytes are looked at. Its end is, where there is epoll."""
        if play.read_off == wanted and not play.over:
            play.read_off = not wanted
            self._watch(play)

    def drain(self):
        """The server stops: WebSockets begin no more turns and end after those that run."""
        self.draining = True
        for reader in list(self.readers):
            reader.drain()

    def hang_up(self):
        """The server's drain is over: a last word to those that are still there."""
        for reader in list(self.readers):
            reader.hang_up()

    def gone(self, play):
        """The client has left: the play ends, and whoever generates is told."""
        if play.over:
            return
        if play.on_gone is not None:
            play.on_gone()
        self._end(play, False)

    def sweep(self, now):
        """Drop the clients that took no byte for too long."""
        limit = now - self._send_timeout_s
        for play in [play for play in self._blocked if play.blocked_s < limit]:
            self.gone(play)
        for reader in list(self.readers):
            reader.sweep(now)
        if self.relay is not None:
            self.relay.sweep(now)

    # ---- inside -------------------------------------------------------------------------------

    def follow(self, play):
        """A play whose steps had nothing more may have now."""
        if play.push.waiting and not (play.over or play.rest or play.away):
            play.push.waiting = False
            play.frame = None           # the idle step that it waited with
            play.tick = _PLAY_IDLE
            self._advance_safely(play, self._now())

    def _advance_safely(self, play, now, step=None):
        try:
            self._advance(play, now, step)
        except OSError:
            self.gone(play)
        except Exception:
            self._on_error()
            self._end(play, False)

    def _advance(self, play, now, step=None):
        """Send the play's frame and all else that is due, joined, and schedule what follows.

        step: what was already taken from play.steps. The slow way: it also runs Steps, sets
        heartbeats and ends plays.
        """
        out, size, tokens = [], 0, 0
        steps, start_s = play.steps, play.start_s
        frame, due_s = play.frame, play.due_s
        play.tick = _PLAY_IDLE
        while True:
            if frame is not None:
                kind = frame.__class__
                if kind is bytes:
                    if frame and due_s:             # the head has no due time
                        tokens += 1
                elif kind is Splice:
                    play.steps = steps = chain(frame.steps, steps)
                    frame = b""
                else:
                    if kind is not Aside:
                        if tokens:                  # the step may be the end, which counts them
                            self._tell(play, tokens, now)
                            tokens = 0
                        if frame.blocking:
                            play.frame = None
                            self._send(play, b"".join(out), now)
                            if not play.over:
                                self._run_elsewhere(play, frame)
                            return
                        tokens = frame.tells
                        frame = frame.run()
                    if frame == play.heartbeat:
                        self.heartbeats += 1
                if frame:
                    out.append(frame)
                    size += len(frame)
                    if play.timed and due_s:
                        late = max(0, int((now - due_s) * _LATENESS_RATE) + 1)
                        self._lateness[min(late, _LATENESS_LAST)] += 1
            if step is None:
                step = next(steps, None)
            if step is None:
                play.ended = True
                play.frame = None
                break
            next_s, frame = step
            if next_s is None:
                next_s = now - start_s + play.heartbeat_s
            elif play.heartbeat_s and play.push is None and next_s + start_s - now > play.heartbeat_s:
                play.steps = steps = _with_heartbeats((next_s, frame), steps, now - start_s,
                                                      play.heartbeat_s, play.heartbeat)
                play.heartbeat_s = 0.0      # the steps have their own from here on
                next_s, frame = next(steps)
            step = None
            due_s = next_s + start_s
            if due_s > now or size > JOIN_BYTES:
                play.frame, play.due_s = frame, due_s
                break
        if tokens:
            self._tell(play, tokens, now)
        self._send(play, b"".join(out), now)
        if play.over or play.rest:
            return
        if play.ended:
            self._end(play, True)
        else:
            self._resume(play, now)

    def _tell(self, play, tokens, now):
        """So many frames with tokens go out now, in one send: the gap before them counts."""
        if play.times is None:
            return
        sent_at = int(now * _GAP_RATE)
        try:
            play.gaps[sent_at - play.sent_at] += 1
        except IndexError:
            self._tell_apart(play, sent_at, now)
        play.sent_at = sent_at
        play.said += tokens
        play.joined += tokens - 1

    def _tell_apart(self, play, sent_at, now):
        """A gap that has no slot: before the first token, which is the TTFT, or a long one."""
        times = play.times
        if times is None:
            return
        if play.first_s is None:
            play.first_s = now
            times.ttfts.append(now - play.start_s)
        else:
            times.long.add((sent_at - play.sent_at) * GAP_STEP_S)

    def _resume(self, play, now):
        """Put a play into the bucket of its next frame."""
        if play.frame is None:
            self._advance_safely(play, now)
            return
        due_s = play.due_s
        if due_s == float("inf"):
            play.tick = _PLAY_IDLE
            return
        at = max(int(due_s * 1000.0), int(now * 1000.0)) + 1
        play.tick = at
        bucket = self._buckets.get(at)
        if bucket is None:
            self._buckets[at] = [play]
            heappush(self._ticks, at)
        else:
            bucket.append(play)

    def _send(self, play, data, now):
        if play.rest:
            play.rest += data
            return
        if not data:
            return
        try:
            sent = play.send(data)
        except BlockingIOError:
            sent = 0
        if sent != len(data):
            self._block(play, data[sent:], now)

    def _block(self, play, rest, now):
        """The socket is full: keep the rest, and the next deadline apart from it."""
        play.rest = rest
        play.blocked_s = now
        if not play.carried:
            self._blocked[play] = None
            self._watch(play)

    def _watch(self, play):
        if play.carried:
            return
        self._poller.watch(play.wire, (0 if play.read_off else POLL_READ)
                           | (POLL_WRITE if play.rest else 0))

    def _run_elsewhere(self, play, step):
        """Run a step that may wait on a worker; the play goes on with its result."""
        def job():
            try:
                frame = step.run()
            except Exception:
                self._on_error()
                self._wake(lambda: self._end(play, False))
                return None

            def durable(error):
                told = frame
                if error is None:
                    if step.kept is not None:
                        step.kept()
                elif step.failed is not None:
                    told = step.failed(error)
                self._wake(lambda: came(told))
            return durable

        def came(frame):
            play.away = False
            if not play.over:
                play.frame, play.due_s = Aside(frame), self._now()
                if not play.rest:       # else writable() resumes it
                    self._advance_safely(play, self._now())
        play.away = True
        self._submit(job)

    def _end(self, play, whole):
        if play.over:
            return
        play.over = True
        play.tick = _PLAY_IDLE
        self._blocked.pop(play, None)
        self.plays.pop(play.wire, None)
        if play.read_off:
            play.read_off = False
            play.rest = b""
            if whole:
                self._watch(play)
        close = getattr(play.steps, "close", None)
        if close is not None:
            close()
        trace, play.trace = play.trace, None
        if trace is not None:
            trace.close()
        on_end = play.on_end
        # A bucket may hold it until its next deadline; what it was about goes now.
        play.steps, play.frame, play.on_gone, play.on_end = (), None, None, None
        if on_end is not None:
            on_end(play, whole)


class PacerThread:
    """A player with a thread and a poller of its own: for the thread-per-connection form."""

    def __init__(self, make_poller, make_player, clock, waker, on_error):
        """make_player(poller, wake) -> Player. waker: transport.poller.Waker. on_error(): called inside
        the except block of a job that failed."""
        self._on_error = on_error
        self._poller = make_poller()
        self._waker = waker
        self._clock = clock
        self._inbox = deque()
        self._stopped = False
        self.player = make_player(self._poller, self.post)
        self._poller.watch(waker, POLL_READ)
        self._thread = threading.Thread(target=self._run, name="pacer", daemon=True)

    def start(self):
        self._thread.start()

    def post(self, job):
        """Run job() on the pacer's thread. Any thread."""
        self._inbox.append(job)
        self._waker.wake()

    def watch(self, wire):
        """On the pacer's thread: notice when this client leaves."""
        self._poller.watch(wire, POLL_READ)

    def unwatch(self, wire):
        self._poller.forget(wire)

    def stop(self):
        """Wait for the thread's end; then this thread is the player's, and ends what is not over."""
        if self._stopped:
            return
        self._stopped = True
        self._waker.wake()
        if self._thread.ident is not None:
            self._thread.join()
        while self._inbox:
            self._inbox.popleft()()
        for play in list(self.player.plays.values()):
            self.player.gone(play)
        if self.player.relay is not None:
            self.player.relay.close()
        self._poller.close()

    def _run(self):
        player, poller, inbox, waker = self.player, self._poller, self._inbox, self._waker
        now = self._clock.monotonic
        sweep_s = now() + 1.0
        more = False
        while not self._stopped:
            due_s = player.next_due_s()
            timeout = 0.0 if more or inbox else \
                max(0.0, min(1.0, (due_s if due_s is not None else sweep_s) - now()))
            for wire, mask in waker.poll_awake(poller, timeout, inbox):
                play = player.plays.get(wire)
                if play is None:
                    if wire.__class__ is UpstreamWire:
                        player.relay.event(wire, mask)
                    continue
                if mask & POLL_WRITE and play.rest:
                    player.writable(play)
                if mask & ~POLL_WRITE:
                    player.readable(play, mask)
            while inbox:
                try:
                    inbox.popleft()()
                except Exception:
                    self._on_error()
            more = player.tick()
            if now() >= sweep_s:
                sweep_s = now() + 1.0
                player.sweep(now())
