"""Recording: every exchange of whatever backend, as a file that backends/replay.py plays.

RecordingBackend stands in front of a backend and notes what passes: deltas with their times, or the failure. All else,
working out what the request was, redacting and writing, is done by the Recorder on a thread of its own.
"""
import json
import os
import threading
import time
from collections import deque

from api_common import ApiError, TakesLong, dump_json, server_error
from backends.contract import Failure, RawAnswer, ReasoningDelta, RefusalDelta, TextDelta, TextRun, ToolCallDelta
from backends.fixture import Recording, iter_fixture
from backends.neutral import chat_messages_of, kept_request, neutral_request, request_key, steady_request
from backends.redact import literal_secrets, redact_pieces, redact_value

TAPES_WAITING = 4000                # exchanges that wait to be written; more are not recorded
PLAN_LOOK_S = 0.05                  # how often it is looked whether planned answers are out
LONG_RECORDED_TOKENS = 2000         # reading a longer chain is nothing for the loop's thread
CLIENT_KEYS = 64                    # of those that came last: so many are looked for in what is written
CLOSE_WAIT_S = 10.0                 # for a disk that is slow when the server stops


class Tape:
    """One exchange while it is noted. Made by RecordingBackend; ended once, by whoever is first.

    start_s: what its times count from. messages: the request's, where they were read already. plan: (deltas, Cancel)
    of a planned answer, which is out when its Cancel says so.
    """

    __slots__ = ("request", "messages", "start_s", "entries", "how", "end_s", "error", "plan", "stem", "number", "told",
                 "literals", "_recorder", "_cut_s", "_lock")

    def __init__(self, recorder, request, start_s=None):
        self.request = request
        self.messages = self.how = self.error = self.plan = self.told = None
        self.stem, self.number = "", 0  # of its file's name
        self.literals = ()
        self.start_s = recorder.now() if start_s is None else start_s
        self.entries = []
        self.end_s = 0.0
        self._recorder = recorder
        self._cut_s = None
        self._lock = threading.Lock()   # guards how: a client may leave while its answer ends

    def now_s(self):
        return self._recorder.now() - self.start_s

    def add(self, deltas, due_s=None):
        """Note deltas: they come now, when they are due, or with those before them, whichever is last."""
        at_s = self.now_s()
        if due_s is not None and due_s > at_s:
            at_s = due_s
        if self.entries and self.entries[-1][0] > at_s:
            at_s = self.entries[-1][0]
        for delta in deltas:
            if delta.__class__ is Failure:
                self.end("failed", delta.error, at_s)
                return
            self.entries.append((at_s, delta))

    def end(self, how, error=None, at_s=0.0):
        """The exchange is over: "complete", "failed" with an exception, or "cut"; now, or at_s if that is later."""
        with self._lock:
            if self.how is not None:
                return
            self.how = how
        self.end_s = max(self.now_s(), at_s)
        self.error = error
        self._recorder.submit(self, False)

    def cut(self):
        """Nobody wants the answer any more. For a planned one, see Recorder._look()."""
        if self.plan is None:
            self.end("cut")
        elif self._cut_s is None:
            self._cut_s = self.now_s()

    def settle_plan(self, over=False):
        """Whether a planned answer is out, or will be no more. over: the server stops."""
        deltas, cancel = self.plan
        if not (cancel.is_set() or cancel.is_over() or over):
            return False
        self.how, self.end_s = "complete", 0.0
        if cancel.is_set() or not cancel.is_over():
            self.how = "cut"
            self.end_s = self.now_s() if self._cut_s is None else self._cut_s
        last_s = 0.0
        for due_s, delta in deltas:
            due_s = last_s if due_s is None else max(due_s, last_s)     # as the player does
            if delta.__class__ is TextRun:
                for due_s, piece in zip(delta.dues, delta.pieces):
                    last_s = max(due_s, last_s)
                    self.entries.append((last_s, TextDelta(piece, None, delta.choice)))
                continue
            last_s = due_s
            if delta.__class__ is Failure:
                if self.how == "complete":
                    self.how, self.error = "failed", delta.error
                break
            self.entries.append((due_s, delta))
        if self.how == "cut":
            self.entries = [entry for entry in self.entries if entry[0] <= self.end_s]
        else:
            self.end_s = last_s
        self.plan = None
        return True


# ---- what stands in front of a backend --------------------------------------------------------

class RecordingBackend:
    """A Backend that has every exchange of another one recorded. What it does not know is asked of that one."""

    def __init__(self, inner, recorder):
        self.blocking = inner.blocking
        self.relays = inner.relays
        self._inner = inner
        self._recorder = recorder

    def __getattr__(self, name):
        return getattr(self._inner, name)

    def generate(self, request, cancel):
        """The other's deltas, a list as the same list."""
        tape = Tape(self._recorder, request, getattr(request, "taped_s", None))
        if not self.blocking:
            self._read_early(tape, request)
        try:
            deltas = self._inner.generate(request, cancel)
        except TakesLong:
            raise
        except BaseException as exc:
            self._recorder.submit(tape, True)
            tape.end("failed", exc)
            raise
        if deltas.__class__ is list:
            tape.plan = deltas, cancel
            cancel.on_cancel(tape.cut)
        self._recorder.submit(tape, True)
        return deltas if tape.plan is not None else self._taped(deltas, tape, cancel)

    @staticmethod
    def _read_early(tape, request):
        """A planned backend's requests may be read on the thread that asks, and later on no other."""
        if request.endpoint in ("responses", "compact"):
            if request.breathe is None and request.history.tokens > LONG_RECORDED_TOKENS:
                raise TakesLong()
            tape.messages = chat_messages_of(request)

    @staticmethod
    def _taped(deltas, tape, cancel):
        how, error = "cut", None
        try:
            for due_s, delta in deltas:
                if delta.__class__ is TextRun:
                    for piece_s, piece in zip(delta.dues, delta.pieces):
                        tape.add((TextDelta(piece, None, delta.choice),), piece_s)
                else:
                    tape.add((delta,), due_s)
                yield due_s, delta
            how = "cut" if cancel.is_set() else "complete"
        except GeneratorExit:               # nobody takes the rest
            raise
        except BaseException as exc:
            how, error = "failed", exc
            raise
        finally:
            tape.end(how, error)

    # ---- a backend that relays ----------------------------------------------------------------

    def admit(self, request):
        request.taped_s = self._recorder.now()
        self._inner.admit(request)

    def open(self, request, cancel):
        tape = Tape(self._recorder, request, request.taped_s)
        self._recorder.submit(tape, True)
        return self._opened(tape, lambda: self._inner.open(request, cancel))

    def reopen(self, exchange, request, cancel, attempt):
        return self._opened(exchange.tape, lambda: self._inner.reopen(exchange.inner, request, cancel, attempt))

    @staticmethod
    def _opened(tape, connect):
        try:
            exchange = connect()
        except BaseException as exc:
            tape.end("failed", exc)
            raise
        if exchange is None:
            tape.end("cut")
            return None
        return TapedExchange(exchange, tape)

    def close(self):
        self._inner.close()
        self._recorder.close()


class TapedExchange:
    """An exchange of a backend that relays, as transport/relay.py reads it, whose deltas are noted."""

    def __init__(self, inner, tape):
        self.inner = inner
        self.tape = tape
        self._again = False             # another attempt follows

    def __getattr__(self, name):
        return getattr(self.inner, name)

    def read(self):
        try:
            deltas = self.inner.read()
        except Exception as exc:
            self._again = getattr(exc, "fresh", False)
            if not self._again:
                self.tape.end("failed", exc)
            raise
        return self._noted(deltas)

    def finish_late(self):
        return self._noted(self.inner.finish_late())

    def _noted(self, deltas):
        if self.tape.how is None:
            self.tape.add(deltas)
            if self.inner.over:
                self.tape.end("complete")
        return deltas

    def timed_out(self):
        error = self.inner.timed_out()
        if error is not None:
            self.tape.end("failed", error)
        return error

    def close(self):
        self.inner.close()
        if not self._again:
            self.tape.end("cut")


# ---- what writes ------------------------------------------------------------------------------

class Recorder:
    """Writes tapes into a folder, one file each, on a thread that runs while there is something to do.

    secrets: texts that must not be in any file. log(level, message). now: the monotonic clock. wall: unix time.
    new_breathe(): what is to be called now and then during long work, or None. source: what kind of backend it is.
    Raises ValueError when nothing can be written there.
    """

    def __init__(self, folder, source, secrets, log, now=time.monotonic, wall=time.time, new_breathe=lambda: None):
        self.now = now
        self.folder = folder
        self.source = source
        self.written = 0                # files
        self.failed = 0                 # exchanges that could not be written
        self._log = log
        self._wall = wall
        self._secrets = tuple(secrets)
        self._client_keys = ()          # Authorization headers
        self._new_breathe = new_breathe
        self._changed = threading.Condition()   # guards what follows
        self._jobs = deque()
        self._thread = None
        self._stopping = False
        self._crowded = False
        self._planned = []              # tapes whose plans are not out; the thread's alone, as all that follows
        self._telling = True            # the next failure of the disk is to be reported
        self._numbers = {}              # stem -> the last number that has a file
        try:
            os.makedirs(folder, exist_ok=True)
            for name in os.listdir(folder):
                stem, _, number = name.rpartition(".")[0].rpartition("-")
                if name.endswith(".json") and number.isdigit():
                    self._numbers[stem] = max(int(number), self._numbers.get(stem, 0))
            self._probe(os.path.join(folder, ".probe-%d.tmp" % os.getpid()))
        except OSError as exc:
            raise ValueError("--record %s: %s" % (folder, exc.strerror or exc))

    @staticmethod
    def _probe(path):
        with open(path, "w", encoding="utf-8"):
            pass
        os.remove(path)

    def note_key(self, authorization):
        """A client's header, or None: its key must not be in what is written from now on. One without a digit is a
        word that anybody may say ("anything"), unless it is passed on. Any thread."""
        keys = self._client_keys
        if authorization and authorization not in keys and any(each.isdigit() for each in authorization):
            with self._changed:
                self._client_keys = (self._client_keys + (authorization,))[-CLIENT_KEYS:]

    def submit(self, tape, begins):
        """A tape begins, or has ended. Any thread; does not wait."""
        with self._changed:
            if self._stopping or len(self._jobs) >= TAPES_WAITING:
                crowded, self._crowded = self._crowded, True
                if not crowded and not self._stopping:
                    self._log("error", "--record: the disk is too slow, exchanges are not recorded")
                return
            self._jobs.append((tape, begins))
            if self._thread is None:
                self._thread = threading.Thread(target=self._run, name="recorder", daemon=True)
                self._thread.start()
            self._changed.notify()

    def close(self):
        """Write what has ended, and what has not as cut."""
        with self._changed:
            self._stopping = True
            thread = self._thread
            self._changed.notify()
        if thread is not None:
            thread.join(CLOSE_WAIT_S)
        if self.failed:
            self._log("error", "--record: %d exchanges could not be written" % self.failed)

    # ---- on its thread ------------------------------------------------------------------------

    def _run(self):
        look_s = 0.0
        while True:
            with self._changed:
                if not self._jobs and not self._stopping:
                    self._changed.wait(PLAN_LOOK_S if self._planned else None)
                job = self._jobs.popleft() if self._jobs else None
                over = self._stopping and job is None
            if job is not None:
                self._take(*job)
            if over or self._planned and time.monotonic() > look_s:
                self._look(over)
                look_s = time.monotonic() + PLAN_LOOK_S
            if over:
                return

    def _take(self, tape, begins):
        if begins:
            self._guarded(self._begin, tape)
            if tape.plan is not None:
                self._planned.append(tape)
        elif tape.told is not None:
            self._guarded(self._write, tape)

    def _look(self, over):
        """Write the planned answers that are out."""
        for tape in [tape for tape in self._planned if tape.settle_plan(over)]:
            self._planned.remove(tape)
            if tape.told is not None:
                self._guarded(self._write, tape)

    def _guarded(self, step, tape):
        try:
            step(tape)
            return
        except OSError as exc:
            what = "--record %s: %s; going on without" % (self.folder, exc.strerror or exc)
        except Exception as exc:            # of a delta that cannot be told, say: no stream hears of it
            what = "--record: an exchange cannot be recorded: %s: %s" % (type(exc).__name__, exc)
        self.failed += 1
        if self._telling:
            self._telling = False
            self._log("error", what)

    def _begin(self, tape):
        """Work out what the request is: now, while what it follows is still there."""
        breathe = self._new_breathe()
        request = tape.request
        tape.literals = literal_secrets(self._secrets + self._client_keys + (getattr(request, "authorization", None),))
        told = kept_request(neutral_request(request, tape.messages), tape.literals, breathe)
        stem = request_key(steady_request(told, breathe)).hex()[:16]
        tape.number = self._numbers[stem] = self._numbers.get(stem, 0) + 1
        tape.stem, tape.told, tape.messages = stem, told, None

    def _write(self, tape):
        breathe = self._new_breathe()
        error = tape.error
        if tape.how == "failed":
            error = _kept_error(error, tape.literals)
        entries = redacted_entries(tape.entries, tape.literals)
        about = {"at": time.strftime("%Y-%m-%dT%H:%M:%SZ", time.gmtime(self._wall())),
                 "api": tape.request.endpoint, "backend": self.source}
        recording = Recording(tape.told, entries, tape.how, max([tape.end_s] + [at_s for at_s, _ in entries[-1:]]), error,
                              about)
        temporary = os.path.join(self.folder, ".%s-%03d-%d.tmp" % (tape.stem, tape.number, os.getpid()))
        try:
            with open(temporary, "w", encoding="utf-8", newline="\n") as file:
                for line in iter_fixture(recording):
                    file.write(line)
                    if breathe is not None:
                        breathe()
            self._put(temporary, tape)
        except BaseException:
            if os.path.exists(temporary):
                os.remove(temporary)
            raise
        self.written += 1
        self._telling = True


    def _put(self, temporary, tape):
        """Give a written file its name: whoever looks sees no file or a whole one, and none is lost to another
        server that records into the same folder."""
        while True:
            path = os.path.join(self.folder, "%s-%03d.json" % (tape.stem, tape.number))
            try:
                os.link(temporary, path)
            except FileExistsError:
                tape.number = self._numbers[tape.stem] = self._numbers[tape.stem] + 1
                continue
            except (OSError, AttributeError):   # a file system, or a platform, without links
                os.replace(temporary, path)
                return
            os.remove(temporary)
            return


def _kept_error(error, literals):
    """An exception as the ApiError that the client saw, without secrets."""
    if not isinstance(error, ApiError):
        error = server_error()
    body = redact_value(error.body(), literals)
    headers = redact_value(dict(error.headers), literals)
    return ApiError(error.status, body["message"], body["type"], body["code"], body["param"], headers.items())


def redacted_entries(entries, literals):
    """[(at_s, delta)] without secrets, also such as are spread over several deltas of one text."""
    entries, emptied = list(entries), []
    runs = {}                           # what makes one text -> the places of its pieces
    for place, (at_s, delta) in enumerate(entries):
        kind = delta.__class__
        if kind in (TextDelta, ReasoningDelta, RefusalDelta):
            runs.setdefault((kind, delta.choice), []).append(place)
        elif kind is ToolCallDelta:
            runs.setdefault((kind, delta.choice, delta.index), []).append(place)
        elif kind is RawAnswer:
            entries[place] = at_s, RawAnswer(dump_json(redact_value(json.loads(delta.body), literals)))
        else:
            entries[place] = at_s, kind(*redact_value(list(delta), literals))
    for key, places in runs.items():
        field = "arguments" if key[0] is ToolCallDelta else "text"
        pieces = [getattr(entries[place][1], field) for place in places]
        for place, piece, clean in zip(places, pieces, redact_pieces(pieces, literals)):
            if clean != piece:
                at_s, delta = entries[place]
                changed = {field: clean}
                if getattr(delta, "logprobs", None) is not None:
                    changed["logprobs"] = None          # they would spell it
                entries[place] = at_s, delta._replace(**changed)
                if not clean and field == "text":
                    emptied.append(place)
    for place in sorted(emptied, reverse=True):
        del entries[place]
    return entries
