"""Background responses: generations that nobody's connection owns, their events, their watchers.

A background response is played like any stream, but onto an EventLog in place of a socket. Any number
of clients watch the log, each from where it likes, and all see the same bytes. What has been said so
far is worked out when somebody asks, from the deltas and the number of events that are out.
"""
import threading
import weakref

from api_common import LAST_CHUNK, SSE_DONE, ApiError, chunked_bytes, unframed_bytes
from backends.contract import TextDelta, TextRun
from transport.player import JOIN_BYTES, Play, PushedSteps, Step

SETTLE_TIMEOUT_S = 10.0             # the longest that a commit to the store is waited for
LONG_SNAPSHOT_TOKENS = 1000         # working out what so many tokens said takes some 3 ms: on a worker


# ---- events -----------------------------------------------------------------------------------

def split_events(frames):
    """Bare SSE frames joined in one bytes object, as a list of single ones; without a last [DONE]."""
    if frames.endswith(SSE_DONE):
        frames = frames[:-len(SSE_DONE)]
    return [event + b"\n\n" for event in frames.split(b"\n\n")[:-1]]


def pack_events(events):
    """A list of events as bytes for keeping: a twentieth of their size, as they repeat each other."""
    data = b"".join(events)
    try:
        import zlib
    except ImportError:
        return data
    return zlib.compress(data, 1)


def unpack_events(data):
    """pack_events() undone. What was packed by another Python may have needed zlib (ImportError)."""
    if not data.startswith(b"event:"):
        import zlib
        data = zlib.decompress(data)
    return split_events(data)


class EventLog:
    """The events of one background response: list positions are sequence numbers.

    It stands where a connection stands for a play: send() takes frames and never blocks. keeps:
    whether the events are kept for watchers, or only counted. Used on the player's thread, but
    for end() and for who reads its events and their count.
    """

    def __init__(self, player, keeps=True, replayed=None):
        """replayed: the events of a response that is over."""
        self.events = [] if replayed is None else replayed
        self.count = len(self.events)       # of events that are out
        self.over = replayed is not None
        self._player = player
        self._keeps = keeps
        self._lock = threading.Lock()       # between an event that comes and end()
        self._watchers = {}

    def send(self, data):
        with self._lock:
            if self.over:
                return len(data)
            if self._keeps:
                if data.count(b"\n\n") == 1 and data[:1] == b"e":
                    self.events.append(data)
                else:
                    self.events += split_events(data)
                self.count = len(self.events)
            else:
                self.count += data.count(b"\n\n")
        if self._watchers:
            self._tell()
        return len(data)

    def end(self):
        """No more events come. Any thread."""
        with self._lock:
            self.over = True
        self._player.post(self._tell)

    def watch(self, play):
        self._watchers[play] = None

    def unwatch(self, play):
        self._watchers.pop(play, None)

    def _tell(self):
        for play in list(self._watchers):
            self._player.follow(play)


class LogSteps(PushedSteps):
    """The steps of a watcher's play: the log's events from `at` on, then [DONE] and the end.

    It takes from the log only when its client has taken what came before, so a client that never
    reads costs nothing but its place.
    """

    def __init__(self, log, at, chunked, heartbeat_s, heartbeat):
        PushedSteps.__init__(self, None, 0.0, heartbeat_s, heartbeat)
        self._log = log
        self._at = at
        self._frame = chunked_bytes if chunked else unframed_bytes
        self._tail = LAST_CHUNK if chunked else b""
        self._ended = False

    def begin(self, play, clock):
        PushedSteps.begin(self, play, clock)
        self._log.watch(play)

    def close(self):
        self._log.unwatch(self.play)
        self._log = None            # a bucket may hold the play until its next heartbeat
        PushedSteps.close(self)

    def __next__(self):
        log, at = self._log, self._at
        if self._ended:
            raise StopIteration
        self.waiting = False
        if at >= len(log.events):
            if not log.over:
                self.waiting = True
                if not self._heartbeat_s:
                    return float("inf"), b""
                return None, Step(self._idle)
            self._ended = True
            return 0.0, self._frame(SSE_DONE) + self._tail
        out, size = [], 0
        for event in log.events[at:at + 1000]:
            out.append(event)
            size += len(event)
            if size > JOIN_BYTES:
                break
        self._at = at + len(out)
        return 0.0, self._frame(b"".join(out))


# ---- runs -------------------------------------------------------------------------------------

class _Shadow:
    """An assembler of its own that is fed what the events told so far, as far as somebody asked."""

    def __init__(self, assembler):
        self.assembler = assembler
        self._delta = 0             # how many deltas it has taken whole
        self._piece = 0             # and how many pieces of the next
        assembler.start()
        assembler.begin()

    def catch_up(self, deltas, events, breathe):
        """Feed it until it has made so many events."""
        assembler = self.assembler
        while assembler.sequence < events and self._delta < len(deltas):
            delta = deltas[self._delta][1]
            if delta.__class__ is TextRun:
                pieces = delta.pieces
                while assembler.sequence < events and self._piece < len(pieces):
                    assembler.feed(TextDelta(pieces[self._piece], None, delta.choice))
                    self._piece += 1
                    if breathe is not None:
                        breathe()
                if self._piece < len(pieces):
                    return
                self._piece = 0
            else:
                assembler.feed(delta)
            self._delta += 1


class BackgroundRun:
    """One background response while it is generated.

    id. completion: a runs.Completion that records its deltas. log: EventLog. new_assembler(): an
    assembler like the completion's. turn: what the API knows of it. resumable: whether its stream may
    be asked for. settled: set when its node is in the store, or it has ended in another way.
    final: the object of one that could not be stored, which then stays here; replay: its events.
    """

    def __init__(self, id, completion, log, new_assembler, turn, resumable):
        self.id = id
        self.completion = completion
        self.log = log
        self.turn = turn
        self.resumable = resumable
        self.settled = threading.Event()
        self.final = self.replay = None
        self.play = None
        self._shadow = _Shadow(new_assembler())
        self._shadow_lock = threading.Lock()

    def let_go(self):
        """It could not be stored: its object and its events, packed, are all that is kept here."""
        if self.resumable:
            self.replay = pack_events(self.log.events)
        self.completion.record, self._shadow, self.log = [], None, EventLog(None, False, [])

    def is_long(self):
        """Whether snapshot() would hold up the loop."""
        return self.log.count > LONG_SNAPSHOT_TOKENS

    def shadow_assembler(self):
        """The assembler that snapshot() fed: what it said by then."""
        return self._shadow.assembler

    def snapshot(self, status=None, breathe=None):
        """(object as bytes, place of its output) as far as it has been said by now.

        status: "cancelled", or None for what it is: queued or in_progress.
        """
        events = self.log.count
        with self._shadow_lock:
            shadow = self._shadow
            shadow.catch_up(self.completion.record, events, breathe)
            if status is None:
                status = "in_progress" if events >= shadow.assembler.OPENING_EVENTS else "queued"
            return shadow.assembler.peek(status.encode("ascii"))


class BackgroundRuns:
    """All background responses that are being generated here.

    player, workers: the server's. limit: how many at once. on_end(run): called on the player's
    thread when one is over. stage(play, completion, streamed): what stands between a play and the player.
    """

    def __init__(self, player, workers, clock, limit, on_end, stage):
        self._player = player
        self._workers = workers
        self._now = clock.monotonic
        self._limit = limit
        self._on_end = on_end
        self._stage = stage
        self._runs = {}
        self._lock = threading.Lock()       # guards _runs
        self._replays = weakref.WeakValueDictionary()   # id -> EventLog that somebody watches

    def get(self, id):
        """The BackgroundRun with this id, or None: never seen, or it is in the store by now."""
        return self._runs.get(id)

    def __len__(self):
        return len(self._runs)

    def new_log(self, keeps):
        return EventLog(self._player, keeps)

    def log_of(self, id, replay):
        """The log of a finished response, from what the store kept: one for all who watch it at a time."""
        log = self._replays.get(id)
        if log is None:
            log = self._replays[id] = EventLog(self._player, True, unpack_events(replay))
        return log

    def start(self, run):
        """Generate it. Raises ApiError: 429 when too many are running, or the backend's own."""
        try:
            self._add(run)
            self._launch(run)
        except BaseException:
            self.forget(run.id)
            run.turn.run = None             # they held each other
            raise

    def _add(self, run):
        with self._lock:
            if len(self._runs) >= self._limit:
                done = next((each for each in self._runs.values() if each.final is not None), None)
                if done is None:
                    raise ApiError(429, "Too many background responses are in progress (%d)." % self._limit,
                                   type="requests", code="rate_limit_exceeded", headers=[("retry-after", "1")])
                del self._runs[done.id]
            self._runs[run.id] = run

    def _launch(self, run):
        completion, player = run.completion, self._player
        blocking = completion.backend.blocking
        if blocking:
            steps = completion.pushed_steps(True, b"", 0.0, 0.0, b"", False)
        else:
            steps = completion.iter_stream(completion.planned(), False)
        play = run.play = Play(run.log, self._now(), steps)

        def ended(play, whole):
            run.play = run.turn.run = None      # they held each other
            if not run.settled.is_set() and not completion.cancel.is_set():
                for callback in completion.cancel.raise_flag():     # a fault of ours: who generates must hear of it
                    self._workers.submit(callback)
                completion.settle()
                self.forget(run.id)
                run.settled.set()
            run.log.end()
            if run.final is not None:
                run.let_go()
            self._on_end(run)
        play.on_end = ended
        if blocking:
            play.push = steps
        self._stage(play, completion, True)
        completion.begin(play.start_s, play)
        player.post(lambda: player.start(play))
        if blocking:
            self._workers.submit_blocking(lambda: completion.run_pushed(play, player, None, True), True)

    def forget(self, id):
        with self._lock:
            self._runs.pop(id, None)

    def cancel(self, run):
        """Stop generating. True for the one caller who stopped it, and who then says how it ended;
        False when it had ended, or is about to, see settled."""
        callbacks = run.completion.cancel.claim()
        if callbacks is None:
            return False
        run.completion.lose("abort")
        for callback in callbacks:
            self._workers.submit(callback)
        run.log.end()
        return True

    def stop_all(self):
        """Stop all; nothing of them is stored. Those that are about to end are waited for: not on the loop."""
        for run in list(self._runs.values()):
            if self.cancel(run) or run.final is not None:
                run.final = None
                self.stopped(run)
            else:
                run.settled.wait(SETTLE_TIMEOUT_S)

    def stopped(self, run):
        """It was cancelled and its end is stored, or it was deleted: let go of everything."""
        run.completion.settle()
        if run.final is None:
            self.forget(run.id)
        run.settled.set()
        play = run.play
        if play is not None:
            self._player.post(lambda: self._player.stop(play))

    def close(self):
        """The server stops: nothing goes on, and workers hear of it."""
        for run in list(self._runs.values()):
            for callback in run.completion.cancel.claim() or ():
                callback()
