"""Completions: one generation each, whoever watches.

In: a GenerationRequest, a backend and an assembler. Out: timed frames for a stream, or one object
for a plain answer, from the same assembler. A planned backend's deltas are played as they are; a
blocking one runs on a worker thread and pushes. Faults of either become the API's own errors.
"""
from time import monotonic

from api_common import LAST_CHUNK, ApiError, server_error
from backends.contract import Cancel, TextRun
from backends.engine import Seat
from transport.player import PUSH_LIMIT, PushedSteps, Splice, Step
from transport.relay import RELAY_AHEAD_BYTES
from transport.seated import SeatSteps


LAST_DUE_S = 1e7                    # no answer takes longer; also what NaN and infinity are not below


class Assembler:
    """What turns deltas into an API's frames and its object. Sans-I/O; one thread at a time.

    Frames are bytes, framed for the connection (in chunks, or bare). Concatenated deltas, done
    texts and the final object agree because they come from here and nowhere else.
    failed: the ApiError of a Failure that was fed, or None.
    quiet: set before the first delta of a plain answer, whose frames nobody wants: they need not be
    made, and are empty.
    usage: the Usage that was fed, or None.
    counts: whether its answer is a completion in the metrics.
    keeps_failures: whether an answer that failed has an object that can be stored.
    """

    failed = None
    keeps_failures = False
    quiet = False
    counts = True
    usage = None

    def start(self):
        """Frames that open a stream, before anything was generated."""
        raise NotImplementedError

    def begin(self):
        """Frames for the moment at which generation begins."""
        return b""

    def feed(self, delta):
        """Take any delta in; the frames that it makes, perhaps none."""
        raise NotImplementedError

    def frames(self, run):
        """Play a TextRun: an iterator of one frame a piece. The run counts as said at once."""
        raise NotImplementedError

    def joined(self, run):
        """All frames of a TextRun in one chunk, for when they are due together."""
        raise NotImplementedError

    def absorb(self, run):
        """Take a TextRun in without making frames, for plain answers."""
        raise NotImplementedError

    def finish(self):
        """Close what is open; its frames. Afterwards the object is complete and can be kept."""
        raise NotImplementedError

    def end(self):
        """The terminal frames."""
        raise NotImplementedError

    def fail(self, error):
        """The frames that end a stream with an ApiError."""
        raise NotImplementedError

    def result(self):
        """The complete object as JSON bytes."""
        raise NotImplementedError


class Completion:
    """One generation, and the steps that a player plays of it.

    keep(frames): called when the answer is complete, with a stream's last frames before they go
    out; it stores what is to be stored, and a fault of it fails the answer. None when nothing is
    stored. keep_blocking: whether keep() may wait. settle(): called once when it is over in any way, on
    any thread; like keep() it may wait. on_error(): called inside an except block.
    metrics: observe.metrics.Metrics. now: the monotonic clock.
    record: None, or a list that takes the deltas as they come, for a background response.
    """

    record = None
    fault = None                        # the message of the error that ended it
    seat = None                         # in the backend's engine, where it has one

    def __init__(self, request, backend, assembler, metrics, on_error, keep=None,
                 keep_blocking=False, now=monotonic, settle=None):
        self.request = request
        self.backend = backend
        self.assembler = assembler
        self.cancel = Cancel()
        self._keep = keep
        self._keep_blocking = keep_blocking
        self._settle = settle
        self._metrics = metrics
        self._on_error = on_error
        self._tail = self._closing = b""
        self._now = now
        self.first_token_s = None       # monotonic time at which a stream's first token went out
        if backend.blocking and backend.relays:
            backend.admit(request)

    # ---- a backend that never waits -----------------------------------------------------------

    def planned(self):
        """The backend's deltas, ready: [(due_s, delta)] or another iterable.

        Raises ApiError for a request that the backend refuses.
        """
        deltas = self.backend.generate(self.request, self.cancel)
        if self.record is None:
            return deltas
        if deltas.__class__ is list:
            self.record = deltas
            return deltas
        return self._recorded(deltas)

    def _recorded(self, deltas):
        for entry in deltas:
            self.record.append(entry)
            yield entry

    def iter_stream(self, deltas, chunked):
        """(due_s, frame or Step) of a streamed answer; the head is the caller's."""
        self._tail = LAST_CHUNK if chunked else b""
        assembler = self.assembler
        due_s = 0.0
        try:
            yield 0.0, assembler.start() + assembler.begin()
            for due, delta in deltas:
                if due is not None:
                    due_s = due
                if delta.__class__ is TextRun and delta.pieces:
                    dues = delta.dues
                    last_s = dues[len(delta.pieces) - 1]
                    if last_s == dues[0]:
                        yield dues[0], Step(_RunStep(assembler, delta))
                        self.note_first()
                    else:
                        frames = assembler.frames(delta)
                        yield dues[0], next(frames)
                        self.note_first()      # the player comes back when that frame is due
                        later = iter(dues)
                        next(later)
                        yield dues[1], Splice(zip(later, frames))
                    due_s = last_s
                    continue
                frame = assembler.feed(delta)
                if assembler.failed is not None:
                    yield due_s, self._failure_step(assembler.failed)
                    return
                if frame:
                    yield due_s, frame
                    self.note_first()
            yield due_s, self.finish_step()
        except Exception as exc:
            yield due_s, self._failure_step(self.as_error(exc))

    def note_first(self):
        if self.first_token_s is None:
            self.first_token_s = self._now()

    def take_seat(self, play, player, streamed):
        """Have the play of a planned answer pass through the backend's engine, where it has one."""
        engine = self.backend.engine
        if engine is not None:
            self.seat = Seat(engine, play.start_s, self.request.ttft_s, self.request.seqs)
            play.steps = play.push = SeatSteps(play.steps, self.seat, player.come_back, streamed, play.heartbeat_s,
                                               play.heartbeat)

    def plain_step(self, deltas, render):
        """(due_s, Step) of a plain answer. render(status, body bytes or ApiError) -> bytes."""
        due_s = 0.0
        assembler = self.assembler
        assembler.quiet = True
        for due, delta in deltas:
            if delta.__class__ is TextRun and delta.pieces:
                assembler.absorb(delta)
                due_s = delta.dues[len(delta.pieces) - 1]
                continue
            if due is not None:
                due_s = due
            assembler.feed(delta)
            if assembler.failed is not None:
                break
        return due_s, self.plain_end(render)

    # ---- a backend that may wait --------------------------------------------------------------

    def pushed_steps(self, streamed, head, grace_s, heartbeat_s, heartbeat, chunked):
        """The steps of a play that run_pushed() will feed. head: the answer's head, or b""."""
        if not streamed:
            return PushedSteps(None, 0.0, 0.0, b"")
        self._tail = LAST_CHUNK if chunked else b""
        return PushedSteps(head + self.assembler.start(), grace_s, heartbeat_s, heartbeat)

    def run_pushed(self, play, player, render, streamed):
        """Generate on this worker thread, feeding the play; or connect, where the relay does the rest. Raises nothing."""
        if self.backend.relays and player.relay is not None:
            _RelayedRun(self, play, player, render, streamed).begin()
            return
        assembler, cancel, steps = self.assembler, self.cancel, play.push
        due_s = 0.0
        assembler.quiet = not streamed
        try:
            if cancel.is_set():         # while it waited for a thread
                return
            deltas = self.backend.generate(self.request, cancel)
            opening = assembler.begin()
            if opening:
                player.push(play, 0.0, opening)
            for due, delta in deltas if self.record is None else self._recorded(deltas):
                if cancel.is_set():
                    return
                if due is not None:
                    if not due < LAST_DUE_S:
                        raise ValueError("a due time of %r seconds" % due)
                    due_s = max(due_s, due)
                if delta.__class__ is TextRun:
                    frames = zip(delta.dues, assembler.frames(delta))
                else:
                    frames = ((due_s, assembler.feed(delta)),)
                for due_s, frame in frames:
                    if frame and streamed and assembler.failed is None:
                        player.push(play, due_s, frame)
                        self.note_first()
                        while len(steps) > PUSH_LIMIT and not cancel.wait(0.02):
                            pass            # far ahead of a slow client: wait for it
                if assembler.failed is not None:
                    raise assembler.failed
            if cancel.is_set():
                return
            if streamed:
                player.push(play, due_s, self.finish_step())
            else:
                player.push(play, due_s, self.plain_end(render))
        except BaseException as exc:            # a user's code may sys.exit(): the client must hear of it
            steps.failure = self.fail_step(steps, render, self.as_error(exc), streamed)
        finally:
            player.close_push(play)

    def _fail_pushed(self, steps, render, error, streamed):
        """A plain status while the head is not out yet, else the API's event. On the player."""
        if render is None:                      # nobody waits for a status: a background response
            head, steps.head = steps.head or b"", None
            return head + self._failure_frames(error, True)
        if steps.head is None and streamed:
            return self._failure_frames(error, True)
        self.cancel.finish()
        self.settle()
        return render(error.status, error)

    # ---- ends ---------------------------------------------------------------------------------

    def abandon(self):
        """Nobody watches any more: stop generating. Returns the callbacks that are to be run, not on
        the pacer."""
        self._metrics.add("disconnects")
        callbacks = self.cancel.raise_flag()
        if self._settle is None:
            return callbacks
        if self._keep_blocking:
            return list(callbacks) + [self.settle]
        self.settle()
        return callbacks

    def settle(self):
        """It is over: whatever was held for it is let go. Once, whoever says so."""
        settle, self._settle = self._settle, None
        if settle is not None:
            settle()

    def finish_step(self):
        """The Step that ends a stream."""
        return Step(self._finish_stream, self._keep_blocking, self._unkept_stream)

    def fail_step(self, steps, render, error, streamed):
        """The Step that ends pushed steps with an ApiError."""
        return Step(lambda: self._fail_pushed(steps, render, error, streamed), self._keep_blocking)

    def plain_end(self, render):
        """The Step that is a plain answer."""
        return Step(lambda: self._finish_plain(render), self._keep_blocking,
                    lambda error: render(error.status, error))

    def _unkept_stream(self, error):
        """The stream's end when what keep() stored could not be made durable."""
        frames, self._closing = self._closing, b""
        self._metrics.add("failures")
        self.fault = error.message
        return frames + self.assembler.fail(error) + self._tail

    def _finish_stream(self):
        if not self.cancel.finish():
            return b""
        frames = b""
        try:
            frames = self._closing = self.assembler.finish()
            out = b"".join((frames, self.assembler.end(), self._tail))
            if self._keep is not None:
                self._keep(out)
        except Exception as exc:
            return frames + self._failure_frames(self.as_error(exc))
        self.settle()
        self._count()
        return out

    def _finish_plain(self, render):
        if not self.cancel.finish():
            return b""
        assembler = self.assembler
        try:
            if assembler.failed is not None:
                raise assembler.failed
            assembler.finish()
            if self._keep is not None:
                self._keep(b"")
            body = assembler.result()
        except Exception as exc:
            error = self.as_error(exc)
            self._metrics.add("failures")
            self.settle()
            return render(error.status, error)
        self.settle()
        self._count()
        return render(200, body)

    def _failure_step(self, error):
        return Step(lambda: self._failure_frames(error, True), self._keep_blocking)

    def _failure_frames(self, error, keep=False):
        """The stream's end by an error. keep: what failed can be fetched all the same."""
        if not self.cancel.finish():
            return b""
        self._metrics.add("failures")
        self.fault = error.message
        frames = self.assembler.fail(error) + self._tail
        if keep and self._keep is not None and self.assembler.keeps_failures:
            try:
                self._keep(frames)
            except Exception as exc:
                self.as_error(exc)         # the client learns of the first fault, the log of both
        self.settle()
        return frames

    def as_error(self, exc):
        """An ApiError as it is; anything else logged once, and a 500 of the catalogue."""
        if isinstance(exc, ApiError):
            return exc
        if isinstance(exc, RecursionError):
            return ApiError(400, "The request is nested too deeply.")
        self._on_error()
        return server_error()

    def _count(self):
        if self.assembler.counts:
            usage = self.assembler.usage
            self._metrics.add_completion(usage.completion_tokens if usage is not None else 0)


class _RelayedRun:
    """A completion whose deltas come from a socket: the relay's listener.

    begin() and what it calls run on a worker; start() and all that follows on the player's thread.
    """

    def __init__(self, completion, play, player, render, streamed):
        self._completion = completion
        self._play = play
        self._steps = play.push
        self._player = player
        self._render = render
        self._streamed = streamed
        self._attempt = 0
        self._wire = None
        self._ahead = 0             # bytes given to the play since it had nothing left

    def begin(self):
        completion, player, play = self._completion, self._player, self._play
        assembler, cancel = completion.assembler, completion.cancel
        assembler.quiet = not self._streamed
        play.timed = False              # another server keeps the time, or does not
        opening = assembler.begin()
        if opening:
            player.push(play, 0.0, opening)
        self._connect(lambda: completion.backend.open(completion.request, cancel))

    def _connect(self, opened):
        """Have an exchange opened, and read it on the player's thread."""
        try:
            if self._completion.cancel.is_set():    # while it waited for a thread
                return
            exchange = opened()
        except BaseException as exc:
            error = self._completion.as_error(exc)
            self._player.post(lambda: self.fail(error))
            return
        if exchange is not None:
            self._player.post(lambda: self.start(exchange))

    def start(self, exchange):
        if self._play.over or self._completion.cancel.is_set():
            exchange.close()
            return
        self._wire = self._player.relay.start(exchange, self)
        self._steps.on_empty = self._emptied
        self._completion.cancel.on_cancel(lambda: self._player.post(self.drop))

    def drop(self):
        if self._wire is not None:      # else it is being connected again, and will see the cancel
            self._player.relay.drop(self._wire)

    # ---- what the relay says ------------------------------------------------------------------

    def take(self, deltas):
        completion = self._completion
        assembler, record = completion.assembler, completion.record
        frames = []
        for delta in deltas:
            if record is not None:
                record.append((None, delta))
            frame = assembler.feed(delta)
            if assembler.failed is not None:
                break
            if frame:
                frames.append(frame)
        if frames and self._streamed:
            self._push(b"".join(frames))
        if assembler.failed is not None:
            self.fail(assembler.failed)

    def _push(self, frames):
        completion, play = self._completion, self._play
        self._steps.add(None, frames)
        self._ahead += len(frames)
        if completion.first_token_s is None:
            completion.note_first()
        self._player.follow(play)
        if self._ahead > RELAY_AHEAD_BYTES and self._wire is not None:
            self._player.relay.pause(self._wire)

    def _emptied(self):
        """The play has taken all that there was."""
        self._ahead = 0
        if self._wire is not None and self._wire.paused:
            self._player.relay.resume(self._wire)

    def end(self):
        completion = self._completion
        if self._steps.closed:
            return                      # it has failed
        if completion.cancel.is_set():
            self._close()
            return
        step = completion.finish_step() if self._streamed else completion.plain_end(self._render)
        self._steps.add(None, step)
        self._close()

    def fail(self, error):
        completion, steps = self._completion, self._steps
        if steps.closed:
            return
        error = completion.as_error(error)
        steps.failure = completion.fail_step(steps, self._render, error, self._streamed)
        if self._wire is not None:
            self._player.relay.drop(self._wire)
        self._close()

    def retry(self, exchange):
        """The connection ended before any answer: once more, on a worker."""
        completion = self._completion
        self._attempt += not exchange.reused
        self._wire = None
        self._player.relay.elsewhere(lambda: self._connect(lambda: completion.backend.reopen(
            exchange, completion.request, completion.cancel, self._attempt)))

    def _close(self):
        self._steps.on_empty = None
        self._steps.closed = True
        self._player.follow(self._play)


class _RunStep:
    """joined() of a run, when it is due; a class, as a closure in a loop would see the last run."""

    __slots__ = ("_assembler", "_run")

    def __init__(self, assembler, run):
        self._assembler = assembler
        self._run = run

    def __call__(self):
        return self._assembler.joined(self._run)
