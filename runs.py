"""Completions: one generation each, whoever watches.

In: a GenerationRequest, a backend and an assembler. Out: timed frames for a stream, or one object
for a plain answer, from the same assembler. A planned backend's deltas are played as they are; a
blocking one runs on a worker thread and pushes. Faults of either become the API's own errors.
"""
from itertools import islice

from api_common import LAST_CHUNK, ApiError, server_error
from backends.contract import (Cancel, Finish, ReasoningDelta, RefusalDelta, TextDelta, TextRun, ToolCallDelta,
                               Usage)
from backends.engine import Seat
from backends.interrupted import in_pieces, interrupted
from faults import fault_error, read_faults
from observe.metrics import COUNTED_AT_ONCE, GAP_STEP_S
from relayed_runs import RelayedRun
from transport.player import PUSH_LIMIT, Aside, PushedSteps, Splice, Step
from transport.seated import SeatSteps


LAST_DUE_S = 1e7                    # no answer takes longer; also what NaN and infinity are not below
_SAYING_TEXT = frozenset((TextDelta, ReasoningDelta, RefusalDelta))
_NO_USAGE = Usage(0, 0)


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
    keeps_id: its id is already known elsewhere, and is not to be changed.
    """

    failed = None
    keeps_failures = False
    keeps_id = False
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

    def told_error(self, error):
        """fail() of a stream whose object is still being made: the error alone."""
        return self.fail(error)

    def result(self):
        """The complete object as JSON bytes."""
        raise NotImplementedError

    def rename(self, id=None, message_id=None, created=None):
        """Before anything is made of it: other ids or another time than it was given, as far as there are such."""


class Completion:
    """One generation, and the steps that a player plays of it.

    keep(frames): called when the answer is complete, with a stream's last frames before they go
    out; it stores what is to be stored, and a fault of it fails the answer. None when nothing is
    stored. keep_blocking: whether keep() may wait. settle(): called once when it is over in any way, on
    any thread; like keep() it may wait. on_error(): called inside an except block.
    metrics: observe.metrics.Metrics.
    record: None, or a list that takes the deltas as they come, for a background response.
    on_count: None, or called once with its outcome when that is counted.
    """

    record = None
    fault = None                        # the message of the error that ended it
    faults = ()                         # faults.Fault: what is to go wrong with it
    faults_done = ()                    # texts of those that have befallen what was generated
    reservation = None                  # rate_limits.Reservation: what it may cost
    _fails_in_object = False            # a plain answer that fails is an object that says so
    _place = None                       # what the engine keeps for it until its play begins
    first_token_s = None                # monotonic time at which a stream's first token went out
    start_s = 0.0                       # monotonic time that its own counts from
    counted_later = False               # it takes no time, and whoever sends the answer calls count() or lose()
    _reason = "stop"
    _dues = None                        # of a plain answer: when its tokens are due
    _told = 0                           # how many they are

    def __init__(self, request, backend, assembler, metrics, on_error, keep=None,
                 keep_blocking=False, settle=None):
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
        self.seat = None                # its seat in an engine: an object with queue_s
        self.on_count = None
        self._stats = None              # where it is counted, from begin() until it is
        self._play = self._outcome = None
        if backend.blocking and backend.relays:
            backend.admit(request)

    def begin(self, start_s, play=None):
        """It is accepted; its time counts from start_s (monotonic). play: the one that tells a stream's tokens."""
        self.start_s = start_s
        if not self.assembler.counts:
            return
        self._stats = self._metrics.stats_of(self.request.model)
        if play is not None and self.request.max_tokens != 0:   # else it says the prompt again, and no tokens
            self._play = play
            play.count_tokens(self._stats.times)
        self._metrics.begun()

    # ---- a backend that never waits -----------------------------------------------------------

    def planned(self):
        """The backend's deltas, ready: [(due_s, delta)] or another iterable.

        Raises ApiError for a request that the backend refuses, or its engine, which keeps a place for others.
        """
        engine = self.backend.engine
        if engine is None:
            deltas = self._generated()
        else:
            self._place = engine.reserve(self.request.seqs)
            try:
                deltas = self._generated()
            except BaseException:
                self._give_up_place()
                raise
        if self.request.overrides is not None:
            self.assembler.rename(**self.request.overrides)
        if self.record is None:
            return deltas
        if deltas.__class__ is list:
            self.record = deltas
            return deltas
        return self._recorded(deltas)

    def _generated(self):
        deltas = self.backend.generate(self.request, self.cancel)
        return self._faulted(deltas) if self.faults or self.request.wire_faults else deltas

    def _faulted(self, deltas):
        """The deltas with what the request's faults do to them, once its rule has said what it has to say.

        Raises ApiError for a fault that is an error.
        """
        faults = self.faults = list(self.faults) + read_faults(self.request.wire_faults)
        for fault in faults:
            if fault.kind == "error":
                self._note_fault(fault)
                raise fault_error(fault)
            if fault.kind == "store_full" and self._keep is not None:
                self._keep = lambda frames, fault=fault: self._refuse_to_keep(fault)
            elif fault.kind == "gate":
                deltas = in_pieces(deltas)
            elif fault.kind in ("failed", "incomplete"):
                self._fails_in_object = fault.kind == "failed"
                deltas = interrupted(deltas, self.request, self.assembler, fault, self._note_fault)
        return deltas

    def _note_fault(self, fault):
        self.faults_done += (fault.text,)
        if fault.standing is not None:
            fault.standing.done += 1

    def _refuse_to_keep(self, fault):
        self._note_fault(fault)
        raise ApiError(503, "The store cannot be used now: it is full.", type="server_error")

    def _give_up_place(self):
        if self._place is not None:
            self._place.give_up()

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
            opening = assembler.start() + assembler.begin()
            yield 0.0, Aside(opening) if opening else opening
            for due, delta in deltas:
                if due is not None:
                    due_s = due
                if delta.__class__ is TextRun and delta.pieces:
                    dues = delta.dues
                    last_s = dues[len(delta.pieces) - 1]
                    if last_s == dues[0]:
                        yield dues[0], Step(_RunStep(assembler, delta), tells=1)
                    else:
                        frames = assembler.frames(delta)
                        yield dues[0], next(frames)
                        later = iter(dues)
                        next(later)
                        yield dues[1], Splice(zip(later, frames))
                    due_s = last_s
                    continue
                frame = assembler.feed(delta)
                if assembler.failed is not None:
                    yield due_s, self._failure_step(assembler.failed)
                    return
                says = self.says(delta)
                if frame:
                    yield due_s, frame if says else Aside(frame)
            yield due_s, self.finish_step()
        except Exception as exc:
            yield due_s, self._failure_step(self.as_error(exc))

    def says(self, delta):
        """Whether a delta is a token, as clients take it: with something in it. Notes how the answer ends."""
        kind = delta.__class__
        if kind in _SAYING_TEXT:
            return bool(delta[0])
        if kind is Finish and not delta.choice:
            self._reason = delta.reason
        return kind is ToolCallDelta or kind is TextRun

    def take_seat(self, play, player, streamed):
        """Have the play of a planned answer pass through the backend's engine, where it has one."""
        engine = self.backend.engine
        if engine is not None:
            self.seat = Seat(engine, play.start_s, self.request.ttft_s, self.request.seqs, self.request.held_tokens,
                             self._place)
            play.steps = play.push = SeatSteps(play.steps, self.seat, player.come_back, streamed, play.heartbeat_s,
                                               play.heartbeat)

    def plain_step(self, deltas, render):
        """(due_s, Step) of a plain answer. render(status, body bytes or ApiError) -> bytes."""
        due_s = 0.0
        assembler = self.assembler
        assembler.quiet = True
        said = []                       # (dues, count) of what has tokens
        for due, delta in deltas:
            kind = delta.__class__
            if kind is TextRun and delta.pieces:
                assembler.absorb(delta)
                count = len(delta.pieces)
                due_s = delta.dues[count - 1]
                said.append((delta.dues, count))
                continue
            if due is not None:
                due_s = due
            assembler.feed(delta)
            if assembler.failed is not None:
                break
            if kind is not Usage and self.says(delta):
                said.append(((due_s,), 1))
        if said:
            self._dues, self._told = said[0] if len(said) == 1 else _all_dues(said)
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
        if self.backend.relays and player.relay is not None and not self.faults:    # those need the deltas one by one
            RelayedRun(self, play, player, render, streamed).begin()
            return
        assembler, cancel, steps = self.assembler, self.cancel, play.push
        due_s = 0.0
        assembler.quiet = not streamed
        try:
            if cancel.is_set():         # while it waited for a thread
                return
            deltas = self._generated()
            opening = assembler.begin()
            if opening:
                player.push(play, 0.0, Aside(opening))
            said = []                   # when the tokens of a plain answer came, seconds
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
                says = self.says(delta)
                for due_s, frame in frames:
                    if says and not streamed:
                        said.append(max(due_s, self._metrics.now() - play.start_s))
                    if frame and streamed and assembler.failed is None:
                        player.push(play, due_s, frame if says else Aside(frame))
                        while len(steps) > PUSH_LIMIT and not cancel.wait(0.02):
                            pass            # far ahead of a slow client: wait for it
                if assembler.failed is not None:
                    raise assembler.failed
            if cancel.is_set():
                return
            self.note_plain(said)
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
        self.fault = error.message
        self.settle()
        answer = render(error.status, error)
        self.lose("error")
        return answer

    # ---- ends ---------------------------------------------------------------------------------

    def call_off(self):
        """It gets no end of its own: stop generating, without anybody having left. As abandon()."""
        self._give_up_place()
        callbacks = self.cancel.claim()
        if callbacks is not None:
            self.lose("error")
        return list(callbacks or ()) + ([self.settle] if self._settle is not None else [])

    def break_off(self, error, submit):
        """What ends a stream in the middle of its generation: a Step, or bytes. On the player's thread.

        submit(job): runs what may wait elsewhere.
        """
        if not self.backend.blocking:
            return Step(lambda: self._failure_frames(error, True), self._keep_blocking)
        # The assembler is on the worker's thread, and ahead of what was played.
        for callback in self.call_off():
            submit(callback)
        self.fault = error.message
        return self.assembler.told_error(error) + self._tail

    def abandon(self):
        """Nobody watches any more: stop generating. Returns the callbacks that are to be run, not on
        the pacer."""
        self._metrics.add("disconnects")
        self._give_up_place()
        callbacks = self.cancel.claim()
        if callbacks is None:
            callbacks = ()
        else:
            self.lose("abort")
        if self._settle is None:
            return callbacks
        if self._keep_blocking:
            return list(callbacks) + [self.settle]
        self.settle()
        return callbacks

    def settle_tokens(self):
        """It is over: what it was allowed to cost and did not is its client's again."""
        if self.reservation is not None:
            usage = self.assembler.usage
            self.reservation.settle(self.request.prompt_tokens() or 0 if usage is None
                                    else usage.prompt_tokens + usage.completion_tokens)

    def settle(self):
        """It is over: whatever was held for it is let go. Once, whoever says so."""
        settle, self._settle = self._settle, None
        if settle is not None:
            settle()

    def count(self):
        """Count it, if it is complete: once, and before its last bytes go out, so that who has them finds it counted."""
        reason, self._outcome = self._outcome, None
        if reason is None:
            return
        if not self.assembler.counts:
            if self.on_count is not None:
                self._tell_counted(reason)
            return
        metrics, request, start_s, stats = self._metrics, self.request, self.start_s, self._stats
        if stats is not None:
            metrics.ended()
            self._stats = None
        else:
            # it took no time, so nobody said that it began
            stats = metrics.models.get(request.model) or metrics.stats_of(request.model)
            self.counted_later = False
        end_s = metrics.now() - start_s
        play, seat, queue_s, ttft_s, gaps = self._play, self.seat, 0.0, None, ()
        if seat is not None:
            queue_s = seat.queue_s or 0.0
        if play is not None and play.said:
            self.first_token_s = play.first_s
            first_s, apart = play.first_s - start_s, play.said - play.joined
            decode_s = max(0.0, play.sent_at * GAP_STEP_S - play.first_s)
        elif self._told:
            apart = self._told
            ttft_s, decode_s, gaps = stats.planned(self._dues, apart)
            if seat is not None or ttft_s + decode_s > end_s:
                ttft_s, decode_s, gaps = _fitted(ttft_s, decode_s, gaps, queue_s, end_s)
            first_s = ttft_s
        else:
            first_s, decode_s, apart = end_s, 0.0, 0
        self._play = None                       # they held each other
        ended = stats.ended
        ended.append((self.assembler.usage or _NO_USAGE, request.n, request.max_tokens, queue_s, first_s, decode_s,
                      end_s, reason, ttft_s, apart, gaps))
        if len(ended) >= COUNTED_AT_ONCE:
            metrics.work_in(stats)
        self._tell_counted(reason)

    def lose(self, outcome):
        """Count it, if it began, as one that will not be complete. outcome: "abort" or "error"."""
        stats, self._stats, self._outcome = self._stats, None, None
        if stats is None:
            if not self.assembler.counts:
                if self.on_count is not None:
                    self._tell_counted(outcome)
                return
            if not self.counted_later:
                return
            self.counted_later = False
            self._metrics.begun()
            stats = self._metrics.stats_of(self.request.model)
        play, self._play = self._play, None
        prompt = said = joined = 0
        if play is not None and play.said:
            self.first_token_s = play.first_s
            prompt, said, joined = self.request.prompt_tokens(), play.said, play.joined
        self._metrics.lose(stats, outcome, prompt, said, joined)
        self._tell_counted(outcome)

    def _tell_counted(self, outcome):
        told, self.on_count = self.on_count, None       # they held each other
        if told is not None:
            told(outcome)

    def elapsed_s(self):
        """Seconds since it was accepted."""
        return self._metrics.now() - self.start_s

    def note_plain(self, said):
        """When the tokens of a plain answer came, seconds."""
        self._dues, self._told = said, len(said)

    def finish_step(self):
        """The Step that ends a stream."""
        return Step(self._finish_stream, self._keep_blocking, self._unkept_stream, self.count)

    def fail_step(self, steps, render, error, streamed):
        """The Step that ends pushed steps with an ApiError."""
        return Step(lambda: self._fail_pushed(steps, render, error, streamed), self._keep_blocking)

    def plain_end(self, render):
        """The Step that is a plain answer."""
        return Step(lambda: self._finish_plain(render), self._keep_blocking,
                    lambda error: self._unkept_plain(render, error), self.count)

    def _unkept_plain(self, render, error):
        self.fault = error.message
        answer = render(error.status, error)
        self.lose("error")
        return answer

    def _unkept_stream(self, error):
        """The stream's end when what keep() stored could not be made durable."""
        frames, self._closing = self._closing, b""
        self._metrics.add("failures")
        self.fault = error.message
        self.lose("error")
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
        self._complete()
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
            self.fault = error.message
            if self._fails_in_object and assembler.keeps_failures and error is assembler.failed:
                return self._failed_object(error, render)
            self.settle()
            answer = render(error.status, error)
            self.lose("error")
            return answer
        self.settle()
        answer = render(200, body)
        self._complete()
        return answer

    def _failed_object(self, error, render):
        """A plain answer that says of itself that it has failed."""
        self.fault = error.message
        self.assembler.fail(error)
        if self._keep is not None:
            try:
                self._keep(b"")
            except Exception as exc:
                self._as_error(exc)         # as in a stream: the client learns of the first fault
        self.settle()
        answer = render(200, self.assembler.result())
        self.lose("error")
        return answer

    def _failure_step(self, error):
        return Step(lambda: self._failure_frames(error, True), self._keep_blocking)

    def _failure_frames(self, error, keep=False):
        """The stream's end by an error. keep: what failed can be fetched all the same."""
        if not self.cancel.finish():
            return b""
        self._metrics.add("failures")
        self.fault = error.message
        self.lose("error")
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

    def _complete(self):
        """The answer is made. It is counted now, unless what it stored is yet to be made durable."""
        self._outcome = self._reason
        if not (self._keep_blocking or self.counted_later):
            self.count()


def _all_dues(said):
    """(dues, count) of several: in order, as runs may lie over each other."""
    dues = sorted(due for dues, count in said for due in islice(dues, count))
    return dues, len(dues)


def _fitted(first_s, decode_s, gaps, queue_s, end_s):
    """What ModelStats.planned() says of a plan, stretched to the time that its answer took."""
    planned_s = first_s + decode_s
    stretch = (end_s - queue_s) / planned_s if planned_s > 0.0 else 1.0
    return (queue_s + first_s * stretch, decode_s * stretch,
            tuple((int(slot * stretch + 0.5), times) for slot, times in gaps))


class _RunStep:
    """joined() of a run, when it is due; a class, as a closure in a loop would see the last run."""

    __slots__ = ("_assembler", "_run")

    def __init__(self, assembler, run):
        self._assembler = assembler
        self._run = run

    def __call__(self):
        return self._assembler.joined(self._run)
