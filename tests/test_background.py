"""Background responses: queued, polled, watched, resumed, cancelled, deleted, and every way they end.

Live tests are named after the row of the API reference that they hold: 10_9 (background and resume),
11_1 (the calls), 11_2 (what is stored), 10_7 and 10_8 (endings), 2_2 (errors).
"""
import functools
import gc
import json
import random
import socket
import sys
import threading
import unittest
import weakref
from collections import deque
from unittest import mock

from api_common import LAST_CHUNK, SSE_DONE, ApiError, chunked_bytes
from background import (LONG_SNAPSHOT_TOKENS, BackgroundRun, BackgroundRuns, EventLog, LogSteps, pack_events,
                        split_events, unpack_events)
from backends.contract import (Backend, Failure, Finish, ItemEnd, ItemStart, ItemUpdate, ReasoningDelta, RefusalDelta,
                               TextDelta, TextRun, ToolCallDelta, Usage)
from responses_api import build_echo
from responses_assembler import ResponseAssembler
from state.contract import Conversation, StoreFull
from state.memory import MemoryStore
from tests.data.golden import (CUT_STATUS, DELTAS, NO_STATUS, ODD_TEXT, make_run, read_response_stream,
                               read_sse)
from tests.support import (RESPONSE, TIMEOUT_S, DeltaBackend, FakeClock, LiveServerTest, RawClient, ShiftedClock,
                           every_form, parse_event, request_bytes, wait_until)
from tests.test_player import HEARTBEAT, START_S, PlayerTest
from tests.test_schemas import MISSING, openai_response
from transport.player import JOIN_BYTES, Play

if not MISSING:
    from tests.test_schemas import (OPEN, OPEN_EVENTS, OPEN_UNKNOWN, OPENAI, OPENAI_EVENTS, OPENAI_ITEMS)

STEP_S = 25.0                       # between two steps of a planned SteppedBackend: longer than any wait here
END = [Finish("stop"), Usage(7, 3)]
STEPS = [[TextDelta("One")], [TextDelta(" two")], [TextDelta(" three")], END]
TEXT = "One two three"
FIRST_EVENTS = 6                    # of STEPS[0]: three to open, item, part, delta
ALL_EVENTS = 12
BROKEN = ApiError(500, "It broke.", type="server_error")
LIMITED = ApiError(429, "Too many.", type="requests", code="rate_limit_exceeded")


def frames_of(body):
    """A stream's bytes as a list of frames, each with its blank line; without heartbeats."""
    if not body.endswith(b"\n\n"):
        raise AssertionError("the stream ends inside a frame: %r" % body[-80:])
    return [frame + b"\n\n" for frame in body.split(b"\n\n")[:-1] if not frame.startswith(b":")]


def text_of(response):
    return "".join(part["text"] for item in response["output"] if item["type"] == "message"
                   for part in item["content"])


def sse_bytes(event):
    return b"event: %s\ndata: %s\n\n" % (event["type"].encode(), json.dumps(event).encode())


def read_background_stream(test, data):
    """The events of a whole background stream, after all that must hold of every one was asserted."""
    found = read_sse(data)
    test.assertEqual(found[-1], (None, "[DONE]"))
    for number, (name, event) in enumerate(found[:-1]):
        test.assertEqual((name, event["sequence_number"]), (event["type"], number))
    events = [event for _, event in found[:-1]]
    test.assertEqual([(event["type"], event["response"]["status"]) for event in events[:3]],
                     [("response.created", "queued"), ("response.queued", "queued"),
                      ("response.in_progress", "in_progress")])
    # from here on it is a stream like any other: the strict reader sees it as one
    created = dict(events[0], response=dict(events[0]["response"], status="in_progress"))
    test.assertEqual(events[1]["response"], events[0]["response"])
    test.assertEqual(events[2]["response"], created["response"])
    foreground = [dict(event, sequence_number=number) for number, event in enumerate([created] + events[2:])]
    read_response_stream(test, b"".join(map(sse_bytes, foreground)) + SSE_DONE)
    return events


# ---- what a client knows after some events ----------------------------------------------------

class OutputReader:
    """Builds a response's output from its events, one by one, and nothing but them."""

    def __init__(self):
        self.items = []
        self.done = set()

    def take(self, event):
        kind = event["type"]
        if kind == "response.output_item.added":
            self.items.append(dict(event["item"]))
            return
        if "output_index" not in event:
            return
        index = event["output_index"]
        item = self.items[index]
        if kind == "response.output_item.done":
            self.items[index] = event["item"]
            self.done.add(index)
        elif kind in ("response.content_part.added", "response.reasoning_summary_part.added"):
            field = "content" if "content_index" in event else "summary"
            item.setdefault(field, [])
            at = event["content_index" if field == "content" else "summary_index"]
            item[field] = item[field][:at] + [dict(event["part"])]
        elif kind == "response.output_text.annotation.added":
            part = item["content"][event["content_index"]]
            part["annotations"] = part["annotations"] + [event["annotation"]]
        elif kind.startswith("response.shell_call_command."):
            commands = item["action"]["commands"]
            if kind.endswith(".added"):
                commands = commands + [event["command"]]
            elif kind.endswith(".delta"):
                commands = commands[:-1] + [commands[-1] + event["delta"]]
            item["action"] = dict(item["action"], commands=commands)
        elif kind.endswith(".delta"):
            self.delta(kind, event, item)

    @staticmethod
    def delta(kind, event, item):
        if kind == "response.function_call_arguments.delta":
            item["arguments"] += event["delta"]
        elif kind == "response.mcp_call_arguments.delta":
            item["arguments"] += event["delta"]
        elif kind == "response.code_interpreter_call_code.delta":
            item["code"] += event["delta"]
        elif kind == "response.custom_tool_call_input.delta":
            item["input"] += event["delta"]
        elif kind == "response.shell_call_output_content.delta":
            pass                        # the item has its output when it is done
        elif kind == "response.reasoning_summary_text.delta":
            item["summary"][event["summary_index"]]["text"] += event["delta"]
        else:
            part = item["content"][event["content_index"]]
            part["refusal" if part["type"] == "refusal" else "text"] += event["delta"]
            if event.get("logprobs"):
                part["logprobs"] = part["logprobs"] + event["logprobs"]

    def output(self, status):
        """The items; those that are not done have this status, or what their schema knows in its place."""
        return [item if index in self.done else self.in_status(item, status)
                for index, item in enumerate(self.items)]

    @staticmethod
    def in_status(item, status):
        if item["type"] in NO_STATUS:
            return item
        return dict(item, status=CUT_STATUS.get(item["type"], status) if status == "incomplete" else status)


def open_items_without_seal(output, done):
    """An item that was cut may have its seal already, which no event has told yet."""
    return [item if index in done else {key: value for key, value in item.items() if key != "encrypted_content"}
            for index, item in enumerate(output)]


# ---- events in bytes --------------------------------------------------------------------------

class EventBytesTest(unittest.TestCase):
    """split_events, pack_events, unpack_events."""

    def events(self, text=ODD_TEXT):
        assembler = ResponseAssembler("0" * 32, 1, build_echo(RESPONSE), lambda: 2, 1, False, True)
        frames = [assembler.start(), assembler.begin()]
        frames += [assembler.feed(TextDelta(piece)) for piece in text]
        frames += [assembler.feed(delta) for delta in END] + [assembler.finish(), assembler.end()]
        return frames

    def test_joined_frames_are_split_into_single_events_without_done(self):
        frames = self.events()
        events = split_events(b"".join(frames))
        self.assertEqual(b"".join(events) + SSE_DONE, b"".join(frames))
        self.assertEqual([parse_event(event).data["sequence_number"] for event in events], list(range(len(events))))
        self.assertEqual([event.count(b"\n\n") for event in events], [1] * len(events))

    def test_nothing_and_done_alone_are_no_events(self):
        self.assertEqual((split_events(b""), split_events(SSE_DONE)), ([], []))

    def test_what_was_packed_is_unpacked(self):
        events = split_events(b"".join(self.events()))
        for count in (1, 2, len(events)):
            self.assertEqual(unpack_events(pack_events(events[:count])), events[:count])

    def test_no_events_are_packed_and_unpacked(self):
        self.assertEqual(unpack_events(pack_events([])), [])

    def test_packed_events_are_small(self):
        events = split_events(b"".join(self.events("abcdefgh" * 100)))
        self.assertLess(len(pack_events(events)), len(b"".join(events)) / 10)

    def test_a_python_without_zlib_keeps_them_as_they_are_and_reads_its_own(self):
        events = split_events(b"".join(self.events()))
        with mock.patch.dict(sys.modules, {"zlib": None}):
            packed = pack_events(events)
            self.assertEqual((packed, unpack_events(packed)), (b"".join(events), events))
        self.assertEqual(unpack_events(packed), events, "and one with zlib reads them too")

    def test_a_python_without_zlib_cannot_read_what_another_packed(self):
        packed = pack_events(self.events()[:1])
        with mock.patch.dict(sys.modules, {"zlib": None}), self.assertRaises(ImportError):
            unpack_events(packed)


class FollowedPlayer:
    """The two methods that an EventLog calls; post() keeps jobs, as they run on another thread."""

    def __init__(self):
        self.followed = []
        self.jobs = deque()

    def follow(self, play):
        self.followed.append(play)

    def post(self, job):
        self.jobs.append(job)


class EventLogTest(unittest.TestCase):

    def setUp(self):
        self.player = FollowedPlayer()

    def test_single_and_joined_frames_become_events_and_counts(self):
        log = EventLog(self.player)
        self.assertEqual(log.send(b"event: a\ndata: {}\n\n"), 19)
        self.assertEqual(log.send(b"event: b\ndata: {}\n\nevent: c\ndata: {}\n\n" + SSE_DONE), 38 + len(SSE_DONE))
        self.assertEqual([event[:8] for event in log.events], [b"event: a", b"event: b", b"event: c"])
        self.assertEqual((log.count, log.over), (3, False))

    def test_without_watchers_to_come_events_are_only_counted(self):
        log = EventLog(self.player, keeps=False)
        log.send(b"event: a\ndata: {}\n\n")
        log.send(b"event: b\ndata: {}\n\nevent: c\ndata: {}\n\n")
        self.assertEqual((log.events, log.count), ([], 3))

    def test_what_comes_after_the_end_is_taken_and_forgotten(self):
        for keeps in (True, False):
            log = EventLog(self.player, keeps)
            log.send(b"event: a\ndata: {}\n\n")
            log.end()
            self.assertEqual(log.send(b"event: b\ndata: {}\n\n"), 19)
            self.assertEqual((log.count, len(log.events)), (1, int(keeps)))

    def test_watchers_are_told_of_events_and_on_the_players_thread_of_the_end(self):
        log = EventLog(self.player)
        log.watch("one")
        log.watch("two")
        log.send(b"event: a\ndata: {}\n\n")
        self.assertEqual(self.player.followed, ["one", "two"])
        log.unwatch("one")
        log.unwatch("one")
        log.end()
        self.assertEqual(len(self.player.followed), 2, "not from this thread")
        self.player.jobs.popleft()()
        self.assertEqual(self.player.followed[2:], ["two"])

    def test_a_log_of_given_events_is_over(self):
        log = EventLog(self.player, True, [b"event: a\ndata: {}\n\n"])
        self.assertEqual((log.over, log.count), (True, 1))


class ReplayTest(unittest.TestCase):

    def test_a_replay_without_events_is_over_too(self):
        # cancelled before its first event was out: a watcher must not wait for ever
        runs = BackgroundRuns(FollowedPlayer(), None, FakeClock(), 1, None, None)
        for id, events in (("resp_1", []), ("resp_2", [b"event: a\ndata: {}\n\n"])):
            log = runs.log_of(id, pack_events(events))
            self.assertEqual((log.events, log.over), (events, True))


    def test_all_who_watch_one_at_a_time_share_its_log(self):
        runs = BackgroundRuns(FollowedPlayer(), None, FakeClock(), 1, None, None)
        packed = pack_events([b"event: a\ndata: {}\n\n"])
        log = runs.log_of("resp_1", packed)
        self.assertIs(runs.log_of("resp_1", packed), log)
        gone = weakref.ref(log)
        del log
        self.assertIsNone(gone(), "nobody watches it any more")


class LogStepsTest(PlayerTest):
    """A watcher on the player, with a clock that stands still."""

    def setUp(self):
        PlayerTest.setUp(self)
        self.log = EventLog(self.player)

    def event(self, number, size=0):
        return b"event: e\ndata: {\"n\":%d,\"x\":\"%s\"}\n\n" % (number, b"x" * size)

    def say(self, *numbers, size=0):
        for number in numbers:
            self.log.send(self.event(number, size))

    def watcher(self, at=0, wire=None, chunked=False, heartbeat_s=0.0):
        steps = LogSteps(self.log, at, chunked, heartbeat_s, HEARTBEAT)
        play = Play(wire or self.wire(), START_S, steps, on_gone=lambda: self.gone.append(play),
                    on_end=lambda play, whole: self.ended.append((play, whole)), heartbeat_s=heartbeat_s,
                    heartbeat=HEARTBEAT, timed=False)
        play.push = steps
        play.frame = b"head."
        self.player.start(play)
        return play

    def end(self):
        self.log.end()
        self.run_jobs()

    def test_it_begins_at_its_place_and_goes_on_live(self):
        self.say(0, 1, 2)
        play = self.watcher(1)
        self.assertEqual(play.wire.data, b"head." + self.event(1) + self.event(2))
        self.say(3)
        self.assertEqual(play.wire.sends[-1][1], self.event(3))
        self.end()
        self.assertEqual(play.wire.sends[-1][1], SSE_DONE)
        self.assertEqual(self.ended, [(play, True)])

    def test_a_place_that_is_still_to_come_is_waited_for(self):
        play = self.watcher(2)
        self.say(0, 1)
        self.assertEqual(play.wire.data, b"head.")
        self.say(2, 3)
        self.assertEqual(play.wire.data, b"head." + self.event(2) + self.event(3))

    def test_past_the_end_of_what_is_over_comes_only_done(self):
        self.say(0, 1)
        self.end()
        for at in (2, 3, 10 ** 18):
            self.assertEqual(self.watcher(at).wire.data, b"head." + SSE_DONE)
        self.assertEqual([whole for _, whole in self.ended], [True] * 3)

    def test_an_end_before_its_place_comes_ends_it(self):
        play = self.watcher(5)
        self.say(0, 1)
        self.end()
        self.assertEqual(play.wire.data, b"head." + SSE_DONE)

    def test_chunks_are_framed_and_the_last_one_sent(self):
        self.say(0)
        play = self.watcher(0, chunked=True)
        self.say(1)
        self.end()
        self.assertEqual(play.wire.data, b"head." + chunked_bytes(self.event(0)) + chunked_bytes(self.event(1))
                         + chunked_bytes(SSE_DONE) + LAST_CHUNK)

    def test_a_full_socket_holds_one_write_and_others_go_on(self):
        slow, quick = self.watcher(), self.watcher(wire=self.wire(8))
        slow.wire.room = 0
        for number in range(200):
            self.say(number, size=2000)
        self.assertLess(len(slow.rest), JOIN_BYTES + 4000)
        self.assertEqual(quick.wire.data, b"head." + b"".join(self.event(number, 2000) for number in range(200)))

    def test_a_socket_that_frees_itself_gets_all_in_order(self):
        play = self.watcher()
        play.wire.room = 0
        for number in range(300):
            self.say(number, size=1000)
        self.end()
        for _ in range(1000):
            if play.over:
                break
            play.wire.room = 30000
            self.player.writable(play)
            self.clock.advance(0.002)
            self.tick()
        events = b"".join(self.event(number, 1000) for number in range(300))
        self.assertEqual(play.wire.data, b"head." + events + SSE_DONE)
        self.assertEqual(self.ended, [(play, True)])

    def test_one_that_takes_nothing_is_dropped_and_forgotten_by_the_log(self):
        play = self.watcher()
        play.wire.room = 0
        self.say(0)
        self.clock.advance(61)
        self.player.sweep(self.clock.now)
        self.assertEqual((self.gone, self.ended), ([play], [(play, False)]))
        self.say(1)
        self.assertFalse(play.rest[len(self.event(0)):])

    def test_one_that_leaves_is_forgotten_by_the_log(self):
        play = self.watcher()
        play.wire.waiting = b""
        self.player.readable(play)
        self.assertEqual(self.ended, [(play, False)])
        sent = play.wire.data
        self.say(0)
        self.end()
        self.assertEqual(play.wire.data, sent)

    def test_heartbeats_come_only_while_nothing_does(self):
        play = self.watcher(heartbeat_s=0.1)
        self.run_until(0.25)
        self.say(0)
        self.run_until(0.42)
        self.end()
        self.assertEqual([(round(at, 1), data) for at, data in play.wire.sends],
                         [(0.0, b"head."), (0.1, HEARTBEAT), (0.2, HEARTBEAT), (0.2, self.event(0)),
                          (0.4, HEARTBEAT), (0.4, SSE_DONE)])
        self.assertEqual(self.ended, [(play, True)])

    def test_no_heartbeat_is_kept_for_a_full_socket(self):
        play = self.watcher(heartbeat_s=0.1)
        play.wire.room = 0
        self.say(0)
        self.run_until(2.0)
        self.assertEqual(play.rest, self.event(0))

    def test_without_heartbeats_nothing_is_scheduled(self):
        self.watcher()
        self.assertIsNone(self.player.next_due_s())


# ---- snapshots --------------------------------------------------------------------------------

SNAPSHOT_LISTS = dict(DELTAS, **{
    "all kinds": [ReasoningDelta("Think"), ReasoningDelta(" hard"), TextDelta("Well"), make_run(" a", " b", " c"),
                  RefusalDelta("no"), RefusalDelta("!"), ToolCallDelta(0, '{"a":', "call_x", "f"),
                  ToolCallDelta(1, "SELECT", "call_y", "sql", "custom"), ToolCallDelta(0, "1}"),
                  ItemStart("web_search_call", {"action": {"type": "search", "query": "q"}}),
                  ItemUpdate("web_search_call", "searching"), ItemEnd("web_search_call"),
                  make_run("So", " it", " ends"), TextDelta("."), ReasoningDelta("raw", "raw"),
                  ReasoningDelta("er", "raw"), TextDelta("End")] + END})


class RecordedCompletion:
    """What a BackgroundRun reads of its Completion."""

    def __init__(self):
        self.record = []


class SnapshotTest(unittest.TestCase):
    """A snapshot says what the events that are out say, whenever and however often it is asked for."""

    def new_assembler(self):
        return ResponseAssembler("0" * 32, 1700000000, build_echo(RESPONSE), lambda: 1700000009, 1, False, True)

    def play(self, deltas, planned, joined=False):
        """Yield the run after each frame that its log got, as the player plays it."""
        completion, log = RecordedCompletion(), EventLog(FollowedPlayer())
        run = BackgroundRun("resp_1", completion, log, self.new_assembler, None, True)
        assembler = self.new_assembler()
        if planned:
            completion.record = [(0.0, delta) for delta in deltas]
        yield run
        log.send(assembler.start())
        yield run
        log.send(assembler.begin())
        yield run
        for delta in deltas:
            if not planned:
                completion.record.append((0.0, delta))
            if delta.__class__ is TextRun:
                frames = (assembler.joined(delta),) if joined else assembler.frames(delta)
            else:
                frames = (assembler.feed(delta),)
            for frame in frames:
                if frame:
                    log.send(frame)
                yield run

    def check(self, run, status=None):
        told = [parse_event(event).data for event in run.log.events]
        body, (start, end) = run.snapshot(status)
        response = json.loads(body)
        reader = OutputReader()
        for event in told:
            reader.take(event)
        expected = reader.output("incomplete" if status == "cancelled" else "in_progress")
        self.assertEqual(open_items_without_seal(response["output"], reader.done), expected)
        self.assertEqual(json.loads(body[start:end]), response["output"])
        self.assertEqual(response["status"], status or ("in_progress" if len(told) >= 3 else "queued"))
        self.assertEqual((response["usage"], response["completed_at"], response["error"]), (None, None, None))
        if told:
            opening = dict(told[0]["response"], status=response["status"], output=response["output"])
            self.assertEqual(response, opening)

    def test_at_every_count_of_events_it_says_what_they_say(self):
        for name, deltas in SNAPSHOT_LISTS.items():
            for planned in (False, True):
                with self.subTest(deltas=name, planned=planned):
                    for run in self.play(deltas, planned):
                        self.check(run)

    def test_a_cancelled_one_says_at_every_count_what_they_say(self):
        for name, deltas in SNAPSHOT_LISTS.items():
            with self.subTest(deltas=name):
                for run in self.play(deltas, True):
                    self.check(run, "cancelled")

    def test_it_does_not_matter_when_it_was_asked_for_before(self):
        draw = random.Random(7)
        for name, deltas in SNAPSHOT_LISTS.items():
            for planned in (False, True):
                for joined in (False, True):
                    with self.subTest(deltas=name, planned=planned, joined=joined):
                        for run in self.play(deltas, planned, joined):
                            if draw.random() < 0.3:
                                self.check(run, draw.choice((None, "cancelled")))
                        self.check(run)

    def test_long_work_breathes(self):
        breaths = []
        for run in self.play([make_run(*"abcdefgh" * 20)], True):
            pass
        run.snapshot(None, lambda: breaths.append(1))
        self.assertGreaterEqual(len(breaths), 150)


# ---- live -------------------------------------------------------------------------------------

class SteppedBackend(Backend):
    """Says the deltas of a step when it is released; the first one's at once.

    Planned, a step is due STEP_S after the one before, and release() moves the clock; blocking, the
    generator waits for release(). hold(): a blocking one's generate() waits for let_in().
    """

    def __init__(self, steps, blocking, clock, wake):
        self.steps = steps
        self.blocking = blocking
        self.requests = []
        self.cancels = []
        self.over = threading.Event()       # a blocking generation has ended, in whatever way
        self._clock = clock
        self._wake = wake
        self._changed = threading.Condition()
        self._released = 0
        self._held = False
        self._closed = False

    def hold(self):
        self._held = True

    def let_in(self):
        with self._changed:
            self._held = False
            self._changed.notify_all()

    def rearm(self):
        """A blocking one's next request waits for release() from its second step on, as the first did."""
        self._released = 0

    def release(self, count=1):
        if not self.blocking:
            self._clock.advance(STEP_S * count)
            self._wake()
            return
        with self._changed:
            self._released += count
            self._changed.notify_all()

    def generate(self, request, cancel):
        self.requests.append(request)
        self.cancels.append(cancel)
        steps = list(enumerate(self.steps))
        if not self.blocking:
            return [(STEP_S * number, delta) for number, step in steps for delta in step]
        cancel.on_cancel(self._notify)
        with self._changed:
            self._changed.wait_for(lambda: not self._held or self._closed or cancel.is_set(), 3 * TIMEOUT_S)
        return self._deltas(steps, cancel)

    def _deltas(self, steps, cancel):
        try:
            for number, step in steps:
                with self._changed:
                    self._changed.wait_for(
                        lambda: self._released >= number or self._closed or cancel.is_set(), 3 * TIMEOUT_S)
                if cancel.is_set() or self._closed:
                    return
                for delta in step:
                    if isinstance(delta, BaseException):
                        raise delta
                    yield None, delta
        finally:
            self.over.set()

    def _notify(self):
        with self._changed:
            self._changed.notify_all()

    def close(self):
        with self._changed:
            self._closed = True
            self._changed.notify_all()


class Watcher(RawClient):
    """A client of one event stream that keeps the bytes of its frames."""

    head = None
    _left = b""

    def begin(self, method, path, json=None, version="1.1"):
        self.send(request_bytes(method, path, json, version=version))
        self.head = self.read_head()
        return self

    def frame(self):
        """The next frame's bytes, heartbeats too; b"" at the end."""
        while b"\n\n" not in self._left:
            data = self._read_chunk() if self.head.headers.get("transfer-encoding") == "chunked" else self._some()
            if not data:
                if self._left:
                    raise AssertionError("the stream ends inside a frame: %r" % self._left)
                return b""
            self._left += data
        frame, _, self._left = self._left.partition(b"\n\n")
        return frame + b"\n\n"

    def frames(self, count=None):
        """The next `count` frames, or all up to the end; without heartbeats."""
        found = []
        while count is None or len(found) < count:
            frame = self.frame()
            if not frame:
                break
            if not frame.startswith(b":"):
                found.append(frame)
        return found


class BlockingStore(MemoryStore):
    """May wait, so that nobody may call it on the loop or the pacer; notes who does."""

    blocking = True

    def __init__(self):
        MemoryStore.__init__(self)
        self.threads = set()

    def get(self, id):
        self.threads.add(threading.current_thread().name)
        return MemoryStore.get(self, id)

    def put(self, node, conversation=None):
        self.threads.add(threading.current_thread().name)
        MemoryStore.put(self, node, conversation)

    def delete(self, id):
        self.threads.add(threading.current_thread().name)
        return MemoryStore.delete(self, id)


class RefusingStore(MemoryStore):
    """Takes no node."""

    def __init__(self, error, blocking):
        MemoryStore.__init__(self)
        self.blocking = blocking
        self.error = error

    def put(self, node, conversation=None):
        raise self.error


class GatedStore(MemoryStore):
    """put() waits at a gate."""

    def __init__(self, blocking):
        MemoryStore.__init__(self)
        self.blocking = blocking
        self.arrived = threading.Event()
        self.gate = threading.Event()

    def put(self, node, conversation=None):
        self.arrived.set()
        if not self.gate.wait(3 * TIMEOUT_S):
            raise AssertionError("the gate was not opened")
        MemoryStore.put(self, node, conversation)


def each_backend(method):
    """Run a test with a planned backend and with one that may wait."""
    @functools.wraps(method)
    def test(self):
        for blocking in (False, True):
            with self.subTest(blocking=blocking):
                method(self, blocking)
    return test


class BackgroundLive(LiveServerTest):
    """Short words for the routes."""

    def setUp(self):
        LiveServerTest.setUp(self)
        self.clock = ShiftedClock()

    def start_server(self, *args, **values):
        values.setdefault("clock", self.clock)
        return LiveServerTest.start_server(self, *args, **values)

    def start_once(self, **settings):
        """start_server(), but for the second round of a test."""
        if self._server is None:
            self.start_server(**settings)
        return self._server

    def use(self, steps=STEPS, blocking=False):
        """A SteppedBackend from here on."""
        server = self.server
        backend = SteppedBackend(steps, blocking, self.clock, lambda: server.player.post(int))
        self.addCleanup(backend.close)
        server.handler_class.backend = backend
        return backend

    def post(self, **change):
        return self.request("POST", "/v1/responses", dict(RESPONSE, background=True, **change))

    def created(self, **change):
        """The object of a background response that is not streamed."""
        answer = self.post(**change)
        self.assertEqual(answer.status, 200, answer.body)
        return answer.json()

    def watcher(self):
        client = Watcher(self.address)
        self._clients.append(client)
        return client

    def open_stream(self, **change):
        """The Watcher of a background stream that begins; its head is read."""
        client = self.watcher().begin("POST", "/v1/responses", dict(RESPONSE, background=True, stream=True, **change))
        self.assertEqual(client.head.status, 200)
        self.assertEqual(client.head.headers["content-type"], "text/event-stream; charset=utf-8")
        return client

    def opened(self, count=FIRST_EVENTS, **change):
        """(id, Watcher, its first frames) of a background stream in mid-generation."""
        client = self.open_stream(**change)
        frames = client.frames(count)
        return parse_event(frames[0]).data["response"]["id"], client, frames

    def watch(self, id, after=None):
        query = "" if after is None else "&starting_after=%d" % after
        client = self.watcher().begin("GET", "/v1/responses/%s?stream=true%s" % (id, query))
        self.assertEqual(client.head.status, 200)
        return client

    def replay(self, id, after=None):
        return self.watch(id, after).frames()

    def get(self, id, tail=""):
        return self.request("GET", "/v1/responses/%s%s" % (id, tail))

    def cancel(self, id):
        return self.request("POST", "/v1/responses/%s/cancel" % id)

    def delete(self, id):
        return self.request("DELETE", "/v1/responses/" + id)

    def poll(self, id):
        answer = self.get(id)
        self.assertEqual(answer.status, 200, answer.body)
        return answer.json()

    def wait_text(self, id, text):
        return wait_until(lambda: self.found(id, lambda response: text_of(response) == text), "the text %r" % text)

    def wait_status(self, id, *status):
        return wait_until(lambda: self.found(id, lambda response: response["status"] in status),
                          "status %s" % " or ".join(status))

    def found(self, id, is_it):
        response = self.poll(id)
        return response if is_it(response) else None

    def whole(self, backend, **change):
        """(id, frames) of a background stream that has ended."""
        id, client, frames = self.opened(**change)
        backend.release(len(backend.steps))
        frames += client.frames()
        return id, frames

    def assert_error(self, answer, status, param=None, code=None, type="invalid_request_error"):
        self.assertEqual(answer.status, status, answer.body)
        self.assertEqual((answer.error["param"], answer.error["code"], answer.error["type"]), (param, code, type))

    def assert_gone(self, id):
        for method, tail in (("GET", ""), ("GET", "?stream=true"), ("DELETE", ""), ("GET", "/input_items"),
                             ("POST", "/cancel")):
            self.assert_error(self.request(method, "/v1/responses/" + id + tail), 404)
        self.assert_error(self.request("POST", "/v1/responses", dict(RESPONSE, previous_response_id=id)), 400,
                          "previous_response_id", "previous_response_not_found")

    def assert_idle(self):
        """Nothing is generated any more."""
        wait_until(lambda: len(self.server.runs) == 0, "the last run to be forgotten")


class QueuedCases:
    """Created and polled."""

    @each_backend
    def test_10_9_answered_at_once_queued_without_output_and_usage(self, blocking):
        self.use(STEPS, blocking)
        response = self.created()
        self.assertEqual((response["status"], response["output"], response["usage"], response["background"],
                          response["completed_at"], response["error"], response["store"]),
                         ("queued", [], None, True, None, None, True))
        self.assertEqual(self.poll(response["id"])["id"], response["id"])
        self.assertEqual(self.cancel(response["id"]).status, 200)

    @each_backend
    def test_10_9_polled_from_queued_to_completed_with_output_that_grows(self, blocking):
        backend = self.use(STEPS, blocking)
        if backend.blocking:
            backend.hold()
        created = self.created()
        id = created["id"]
        if backend.blocking:
            self.assertEqual(self.poll(id), created, "nothing has begun: the same object")
            backend.let_in()
        seen = []
        for text in ("One", "One two", TEXT):
            response = self.wait_text(id, text)
            seen.append(response)
            self.assertEqual((response["status"], response["usage"], response["completed_at"]),
                             ("in_progress", None, None))
            self.assertEqual([item["status"] for item in response["output"]], ["in_progress"])
            backend.release()
        final = self.wait_status(id, "completed")
        self.assertEqual((text_of(final), final["usage"]["output_tokens"]), (TEXT, 3))
        self.assertIsNotNone(final["completed_at"])
        for response in seen:
            self.assertEqual(response["output"][0]["id"], final["output"][0]["id"])
            self.assertEqual(dict(response, **{key: final[key] for key in (
                "status", "output", "usage", "completed_at")}), final)
        self.assert_idle()
        self.assertEqual(self.poll(id), final)

    @each_backend
    def test_10_9_polling_never_misses_it_and_never_sees_it_step_back(self, blocking):
        order = ["queued", "in_progress", "completed"]
        client = self.connect()
        backend = self.use([[TextDelta(letter)] for letter in "abcdef"] + [END], blocking)
        for _ in range(10):
            id = self.created()["id"]
            backend.release(6)
            stage, text = 0, ""
            while stage < 2:
                answer = client.request("GET", "/v1/responses/" + id)
                self.assertEqual(answer.status, 200)
                response = answer.json()
                self.assertGreaterEqual(order.index(response["status"]), stage)
                self.assertTrue(text_of(response).startswith(text), (text, text_of(response)))
                stage, text = order.index(response["status"]), text_of(response)
            self.assertEqual(text, "abcdef")

    @each_backend
    def test_11_1_input_items_of_one_that_is_running_are_listed(self, blocking):
        backend = self.use(STEPS, blocking)
        id = self.created(input=[{"role": "user", "content": "a"}, {"role": "user", "content": "b"}])["id"]
        running = self.get(id, "/input_items").json()
        self.assertEqual([item["content"][0]["text"] for item in running["data"]], ["b", "a"])
        backend.release(3)
        self.wait_status(id, "completed")
        self.assertEqual(self.get(id, "/input_items").json(), running)

    @each_backend
    def test_2_2_background_without_store_is_refused_and_nothing_is_generated(self, blocking):
        backend = self.use(STEPS, blocking)
        for streamed in (False, True):
            self.assert_error(self.post(store=False, stream=streamed), 400, "background")
        self.assertEqual((len(self.server.runs), backend.requests), (0, []))

    def test_2_2_a_context_that_is_too_long_fails_it_in_its_own_time(self):
        self.start_server(max_model_len=30)
        self.use()
        created = self.created(input="word " * 100)
        self.assertEqual(created["status"], "queued")
        failed = self.wait_status(created["id"], "failed")
        self.assertIn("context", failed["error"]["message"])
        self.assertEqual((failed["output"], failed["usage"]), ([], None))
        client = self.open_stream(input="word " * 100)
        events = read_background_stream(self, b"".join(client.frames()))
        self.assertEqual([event["type"] for event in events[3:]], ["error", "response.failed"])
        self.assertEqual((events[3]["code"], events[3]["param"]), ("context_length_exceeded", "input"))

    def test_2_2_a_planned_backends_refusal_is_a_status_and_leaves_nothing(self):
        self.server.handler_class.backend = PlannedRefusal()
        for streamed in (False, True):
            answer = self.post(stream=streamed)
            self.assert_error(answer, 429, None, "rate_limit_exceeded", "requests")
        self.assertEqual((len(self.server.runs), self.server.store.stats()["responses"],
                          set(self.server.handler_class.live_responses)), (0, 0, set()))

    @each_backend
    def test_2_2_a_field_that_is_refused_starts_nothing(self, blocking):
        self.start_once(refuse_ignored=True)
        backend = self.use(STEPS, blocking)
        for streamed in (False, True):
            answer = self.post(stream=streamed, moderation={})
            self.assert_error(answer, 400, "moderation", "unsupported_parameter")
        backend.release(len(STEPS))
        self.assertEqual(backend.requests, [])
        self.assertEqual((len(self.server.runs), self.server.store.stats()["responses"]), (0, 0))

    @each_backend
    def test_10_9_what_nobody_acts_on_is_listed_in_the_first_answer(self, blocking):
        backend = self.use(STEPS, blocking)
        for streamed in (False, True):
            if streamed:
                head = self.open_stream(moderation={}).head
            else:
                head = self.post(moderation={})
            self.assertEqual(head.headers["x-mockturtle-ignored"], "moderation")
        backend.release(len(STEPS))
        self.assert_idle()


class PlannedRefusal(Backend):
    """Refuses before it gives anything to iterate over."""

    blocking = False

    def generate(self, request, cancel):
        raise LIMITED


class StreamCases:
    """Watched from the beginning, and again."""

    @each_backend
    def test_10_9_events_are_created_queued_in_progress_and_so_on_without_a_gap(self, blocking):
        backend = self.use(STEPS, blocking)
        id, frames = self.whole(backend)
        events = read_background_stream(self, b"".join(frames))
        self.assertEqual(len(events), ALL_EVENTS)
        self.assertEqual(events[-1]["type"], "response.completed")
        self.assertEqual(text_of(events[-1]["response"]), TEXT)
        self.assertEqual({event["response"]["id"] for event in events if "response" in event}, {id})
        self.assertEqual(self.poll(id), events[-1]["response"])

    @each_backend
    def test_10_9_the_terminal_event_comes_after_it_is_stored(self, blocking):
        backend = self.use(STEPS, blocking)
        for _ in range(10):
            id, client, _ = self.opened()
            backend.release(3)
            client.frames(ALL_EVENTS - FIRST_EVENTS)
            self.assertEqual(self.poll(id)["status"], "completed")
            self.assertEqual(self.request("POST", "/v1/responses/" + id + "/cancel").json()["status"], "completed")
            self.assertEqual(client.frames(), [SSE_DONE])

    @each_backend
    def test_10_9_the_work_goes_on_when_the_client_leaves(self, blocking):
        gone = self.count("disconnects")
        backend = self.use(STEPS, blocking)
        id, client, _ = self.opened()
        client.close()
        self.wait_for_count("disconnects", gone + 1)
        self.wait_text(id, "One")
        backend.release(3)
        self.assertEqual(text_of(self.wait_status(id, "completed")), TEXT)
        self.assertFalse(backend.cancels[0].is_set())
        self.assertEqual(len(self.replay(id)), ALL_EVENTS + 1)

    @each_backend
    def test_10_9_the_work_goes_on_when_all_watchers_leave_with_a_reset(self, blocking):
        gone = self.count("disconnects")
        backend = self.use(STEPS, blocking)
        id, client, _ = self.opened()
        watchers = [client] + [self.watch(id, after) for after in range(4)]
        for each in watchers:
            each.reset()
        self.wait_for_count("disconnects", gone + 5)
        backend.release(3)
        self.assertEqual(text_of(self.wait_status(id, "completed")), TEXT)

    @each_backend
    def test_10_9_resumed_from_every_number_while_it_runs_it_gives_the_tail(self, blocking):
        backend = self.use(STEPS, blocking)
        id, client, frames = self.opened()
        watchers = [(after, self.watch(id, after)) for after in range(ALL_EVENTS + 3)]
        everything = self.watch(id)
        backend.release(3)
        frames += client.frames()
        self.assertEqual(frames[-1], SSE_DONE)
        self.assertEqual(len(frames), ALL_EVENTS + 1)
        self.assertEqual(everything.frames(), frames)
        for after, watcher in watchers:
            expected = frames[after + 1:] or [SSE_DONE]
            self.assertEqual(watcher.frames(), expected, "after %d" % after)

    @each_backend
    def test_10_9_resumed_from_every_number_when_it_is_over_it_gives_the_tail(self, blocking):
        backend = self.use(STEPS, blocking)
        id, frames = self.whole(backend)
        self.assert_idle()
        self.assertEqual(self.replay(id), frames)
        for after in list(range(ALL_EVENTS)) + [ALL_EVENTS, ALL_EVENTS + 1, 10 ** 15]:
            self.assertEqual(self.replay(id, after), frames[after + 1:] or [SSE_DONE], "after %d" % after)

    @each_backend
    def test_10_9_a_client_cut_off_again_and_again_loses_nothing(self, blocking):
        backend = self.use([[TextDelta(letter)] for letter in "abcdefgh"] + [END], blocking)
        client = self.open_stream()
        frames = client.frames(3)
        id = parse_event(frames[0]).data["response"]["id"]
        while frames[-1] != SSE_DONE:
            client.reset()
            client = self.watch(id, len(frames) - 1)
            backend.release()
            frames += client.frames(1)
        events = read_background_stream(self, b"".join(frames))
        self.assertEqual(text_of(events[-1]["response"]), "abcdefgh")

    @each_backend
    def test_10_9_twenty_watchers_live_and_late_see_the_same_bytes(self, blocking):
        steps = [[TextDelta("%d " % number)] for number in range(10)] + [END]
        backend = self.use(steps, blocking)
        id, client, frames = self.opened()
        watchers = [(-1, client, frames)]
        for number in range(10):
            for after in (-1, 2 * number):
                watcher = self.watch(id, None if after < 0 else after)
                watchers.append((after, watcher, []))
            backend.release()
        full = client.frames()
        frames += full
        self.assertEqual(read_background_stream(self, b"".join(frames))[-1]["type"], "response.completed")
        for after, watcher, seen in watchers[1:]:
            self.assertEqual(watcher.frames(), frames[after + 1:])
        for after in range(0, 20, 3):
            self.assertEqual(self.replay(id, after), frames[after + 1:])

    @each_backend
    def test_10_9_a_big_replay_is_the_same_bytes(self, blocking):
        draw = random.Random(3)
        steps = [[TextDelta("%0800x" % draw.getrandbits(3200))] for _ in range(300)] + [END]      # packs badly
        backend = self.use(steps, blocking)
        id, frames = self.whole(backend)
        self.assertGreater(len(pack_events(frames)), self.server.settings.inline_body_bytes)
        self.assertEqual(self.replay(id), frames)
        for after in (0, 100, 305, len(frames) - 2):
            self.assertEqual(self.replay(id, after), frames[after + 1:])

    @each_backend
    def test_10_9_a_request_behind_a_watcher_waits_for_the_end_of_its_stream(self, blocking):
        backend = self.use(STEPS, blocking)
        id, client, frames = self.opened()
        watcher = self.watch(id)
        watcher.send(request_bytes("GET", "/v1/responses/" + id))
        self.wait_text(id, "One")
        backend.release(3)
        self.assertEqual(watcher.frames(), frames + client.frames())
        self.assertEqual(watcher.read_answer().json()["status"], "completed")

    @each_backend
    def test_10_9_a_connection_goes_on_after_a_stream_and_a_replay(self, blocking):
        backend = self.use(STEPS, blocking)
        id, client, frames = self.opened()
        backend.release(3)
        frames += client.frames()
        self.assertEqual(client.request("GET", "/v1/responses/%s?stream=true" % id).body, b"".join(frames))
        self.assertEqual(client.request("GET", "/v1/responses/" + id).json()["status"], "completed")

    @each_backend
    def test_10_9_a_watcher_of_http_1_0_gets_the_bare_events_and_the_close(self, blocking):
        backend = self.use(STEPS, blocking)
        id, client, frames = self.opened()
        old = self.watcher().begin("GET", "/v1/responses/%s?stream=true" % id, version="1.0")
        self.assertNotIn("transfer-encoding", old.head.headers)
        self.assertEqual(old.head.headers["connection"], "close")
        first = self.watcher().begin("POST", "/v1/responses", dict(RESPONSE, background=True, stream=True),
                                     version="1.0")
        backend.release(3)
        frames += client.frames()
        self.assertEqual(old.frames(), frames)
        self.assertTrue(old.has_ended())
        self.assertEqual(len(first.frames()), ALL_EVENTS + 1)
        late = self.watcher().begin("GET", "/v1/responses/%s?stream=true&starting_after=4" % id, version="1.0")
        self.assertEqual(late.frames(), frames[5:])
        self.assertTrue(late.has_ended())

    @each_backend
    def test_10_9_a_head_request_for_a_stream_has_no_body(self, blocking):
        backend = self.use(STEPS, blocking)
        id, _ = self.whole(backend)
        client = self.connect()
        client.send_request("HEAD", "/v1/responses/%s?stream=true" % id)
        self.assertEqual(client.read_answer(head=True).status, 200)
        self.assertEqual(client.request("GET", "/v1/models").status, 200)

    @each_backend
    def test_10_9_a_watcher_gets_heartbeats_while_nothing_comes(self, blocking):
        self.start_once(heartbeat_s=0.02)
        backend = self.use(STEPS, blocking)
        id, client, frames = self.opened()
        watcher = self.watch(id, 4)
        self.assertEqual(watcher.frame(), frames[5])
        self.assertEqual([watcher.frame() for _ in range(3)], [b": keep-alive\n\n"] * 3)
        self.assertEqual([client.frame() for _ in range(2)], [b": keep-alive\n\n"] * 2)
        early = self.watch(id, ALL_EVENTS)
        self.assertEqual(early.frame(), b": keep-alive\n\n")
        backend.release(3)
        rest = client.frames()
        self.assertEqual(watcher.frames(), rest)
        self.assertEqual(early.frames(), [SSE_DONE])
        self.assertEqual(len(frames + rest), ALL_EVENTS + 1)

    @each_backend
    def test_10_9_include_and_include_obfuscation_are_query_parameters(self, blocking):
        backend = self.use(STEPS, blocking)
        id, frames = self.whole(backend)
        for query in ("include_obfuscation=false", "include_obfuscation=true",
                      "include[]=reasoning.encrypted_content&include[]=message.output_text.logprobs",
                      "include=web_search_call.results", "include%5B%5D=code_interpreter_call.outputs"):
            with self.subTest(query=query):
                self.assertEqual(frames_of(self.get(id, "?stream=true&starting_after=2&" + query).body), frames[3:])
                self.assertEqual(self.get(id, "?" + query).json()["status"], "completed")
        for query in ("include[]=everything", "include=everything", "include[]=reasoning.encrypted_content&"
                      "include[]=x"):
            for stream in ("", "&stream=true"):
                with self.subTest(query=query, stream=stream):
                    answer = self.get(id, "?" + query + stream)
                    self.assertEqual((answer.status, answer.error["param"].partition("[")[0], answer.error["code"]),
                                     (400, "include", "invalid_value"))

    @each_backend
    def test_10_9_a_bad_starting_after_is_refused_by_name(self, blocking):
        backend = self.use(STEPS, blocking)
        id, client, _ = self.opened()
        for over in (False, True):
            for text, code in (("-1", "integer_below_min_value"), ("x", "invalid_type"), ("1.5", "invalid_type"),
                               ("", "invalid_type"), ("1e3", "invalid_type"), ("--1", "invalid_type"),
                               ("%C2%B2", "invalid_type"), ("0x1", "invalid_type"), ("+1", "invalid_type")):
                with self.subTest(text=text, over=over):
                    answer = self.get(id, "?stream=true&starting_after=" + text)
                    self.assert_error(answer, 400, "starting_after", code)
            for query in ("?starting_after=1", "?stream=false&starting_after=1"):
                self.assert_error(self.get(id, query), 400, "starting_after")
            self.assert_error(self.get(id, "?stream=perhaps"), 400, "stream", "invalid_type")
            backend.release(3)
            self.wait_status(id, "completed")

    @each_backend
    def test_10_9_what_was_not_created_with_background_and_stream_cannot_be_streamed_and_says_so(self, blocking):
        backend = self.use(STEPS, blocking)
        ended = self.created()["id"]
        foreground = self.watcher().begin("POST", "/v1/responses", dict(RESPONSE, stream=True))
        backend.release(3)
        made = parse_event(foreground.frames()[-2]).data["response"]["id"]
        self.wait_status(ended, "completed")
        backend.steps = [[TextDelta("held")], [], [], [], [], [], []] + [END]
        running = self.created()["id"]
        self.wait_text(running, "held")
        backend.steps = [[TextDelta("a")] + END]
        plain = self.request("POST", "/v1/responses", RESPONSE).json()["id"]
        for name, id in (("running", running), ("ended", ended), ("foreground", made), ("plain", plain)):
            with self.subTest(of=name):
                for query in ("?stream=true", "?stream=true&starting_after=3"):
                    answer = self.get(id, query)
                    self.assert_error(answer, 400, "stream")
                    self.assertIn("background", answer.error["message"])
        self.assertEqual(self.cancel(running).json()["status"], "cancelled")
        self.assert_error(self.get(running, "?stream=true"), 400, "stream")

    def test_10_9_every_golden_list_is_streamed_and_polled_alike(self):
        backend = DeltaBackend([])
        self.server.handler_class.backend = backend
        for blocking in (False, True):
            backend.blocking = blocking
            for name, deltas in SNAPSHOT_LISTS.items():
                with self.subTest(deltas=name, blocking=blocking):
                    backend.deltas = [(0.0, delta) for delta in deltas]
                    frames = self.open_stream().frames()
                    events = read_background_stream(self, b"".join(frames))
                    final = events[-1]["response"]
                    self.assertEqual(self.poll(final["id"]), final)
                    self.assertEqual(self.replay(final["id"]), frames)
                    polled = self.created()
                    polled = self.wait_status(polled["id"], "completed", "incomplete")
                    self.assertEqual(self.without_ids(polled), self.without_ids(final))

    def without_ids(self, response):
        text = json.dumps(response).replace(response["id"][5:], "TAIL")
        response = json.loads(text)
        for key in ("created_at", "completed_at"):
            response[key] = response[key] is not None
        return response

    def test_10_9_the_simulated_backend_is_watched_and_polled(self):
        frames = self.open_stream().frames()
        final = read_background_stream(self, b"".join(frames))[-1]["response"]
        self.assertEqual((self.poll(final["id"]), final["usage"]["output_tokens"]), (final, 8))
        self.assertEqual(self.replay(final["id"], 5), frames[6:])
        id = self.created()["id"]
        self.assertEqual(self.wait_status(id, "completed")["usage"]["output_tokens"], 8)


@every_form
class NeverReadingTest(BackgroundLive):
    """A watcher that never reads: issue 4, "Cost and bad input"."""

    @each_backend
    def test_10_9_a_watcher_that_never_reads_costs_others_nothing_holds_little_and_is_dropped(self, blocking):
        piece = "x" * 30000
        backend = self.use([[TextDelta(piece)] for _ in range(200)] + [END], blocking)
        id, client, frames = self.opened()
        stuck = self.watcher()
        stuck.sock.setsockopt(socket.SOL_SOCKET, socket.SO_RCVBUF, 4096)
        stuck.send(request_bytes("GET", "/v1/responses/%s?stream=true" % id))
        stuck.read_head()
        plays = self.server.player.plays
        before = wait_until(lambda: len(plays) == 3 and list(plays.values()), "three plays")
        backend.release(200)
        frames += client.frames()
        self.assertEqual(len(frames), 3 + 2 + 200 + 4 + 1)
        wait_until(lambda: sum(play.over for play in before) == 2, "all but the stuck one to end")
        held = [play for play in before if not play.over]
        self.assertGreater(len(held[0].rest), 0)
        self.assertLess(len(held[0].rest), 4 * JOIN_BYTES)
        self.assertEqual(self.replay(id, 200), frames[201:])
        dropped = self.count("disconnects") + 1
        self.clock.advance(61)
        self.server.player.post(int)
        self.wait_for_count("disconnects", dropped)
        wait_until(lambda: held[0].over, "the play to end")


class CancelCases:

    def check_cancelled(self, response, text):
        self.assertEqual((response["status"], response["usage"], response["completed_at"], response["error"],
                          response["incomplete_details"]), ("cancelled", None, None, None, None))
        self.assertEqual(text_of(response), text)
        self.assertEqual([item["status"] for item in response["output"]], ["incomplete"] if text else [])

    @each_backend
    def test_10_9_cancel_keeps_the_partial_output_of_one_that_is_polled(self, blocking):
        backend = self.use(STEPS, blocking)
        id = self.created()["id"]
        backend.release()
        self.wait_text(id, "One two")
        answer = self.cancel(id)
        self.assertEqual(answer.status, 200, answer.body)
        self.check_cancelled(answer.json(), "One two")
        self.assertEqual(answer.json()["id"], id)
        self.assertTrue(backend.cancels[0].is_set())
        self.assertEqual(self.get(id).body, answer.body)
        backend.release(3)
        self.assert_idle()
        self.assertEqual(self.get(id).body, answer.body, "it never becomes completed")
        self.assertEqual(self.server.store.stats()["responses"], 1 + backend.blocking)

    def test_10_9_cancel_before_anything_was_said(self):
        backend = self.use(blocking=True)
        backend.hold()
        for streamed in (False, True):
            if streamed:
                client = self.open_stream()
                frames = client.frames(2)
                id = parse_event(frames[0]).data["response"]["id"]
            else:
                id = self.created()["id"]
            answer = self.cancel(id)
            self.assertEqual(answer.status, 200)
            self.check_cancelled(answer.json(), "")
            self.assertEqual(self.get(id).body, answer.body)
            if streamed:
                self.assertEqual(client.frames(), [SSE_DONE])
                self.assertEqual(self.replay(id), frames + [SSE_DONE])

    @each_backend
    def test_10_9_streams_of_a_cancelled_one_end_without_a_terminal_event(self, blocking):
        backend = self.use(STEPS, blocking)
        id, client, frames = self.opened()
        watchers = [(after, self.watch(id, after)) for after in (0, 3, 5, 6, 30)]
        answer = self.cancel(id)
        self.check_cancelled(answer.json(), "One")
        backend.release(3)
        frames += client.frames()
        self.assertEqual(frames[FIRST_EVENTS:], [SSE_DONE])
        for after, watcher in watchers:
            self.assertEqual(watcher.frames(), frames[after + 1:] or [SSE_DONE])
        self.assert_idle()
        for after in (None, 0, 4, 5, 6, 100):
            expected = frames if after is None else frames[after + 1:] or [SSE_DONE]
            self.assertEqual(self.replay(id, after), expected, "after %s" % after)

    @each_backend
    def test_10_9_a_cancelled_one_holds_what_its_events_said(self, blocking):
        self.use([SNAPSHOT_LISTS["all kinds"][:-3], [], [TextDelta("never")] + END], blocking)
        client = self.open_stream()
        frames = client.frames(3)
        id = parse_event(frames[0]).data["response"]["id"]
        wait_until(lambda: self.poll(id)["output"][-1:] and self.poll(id)["output"][-1]["type"] == "reasoning"
                   and len(self.poll(id)["output"]) > 4, "the last item")
        response = self.cancel(id).json()
        frames += client.frames()
        reader = OutputReader()
        for frame in frames[:-1]:
            reader.take(parse_event(frame).data)
        self.assertEqual(open_items_without_seal(response["output"], reader.done), reader.output("incomplete"))
        self.assertGreater(len(response["output"]), 4)

    @each_backend
    def test_10_9_cancel_twice_gives_the_same_bytes(self, blocking):
        self.use(STEPS, blocking)
        for streamed in (False, True):
            id = self.opened()[0] if streamed else self.created()["id"]
            first = self.cancel(id)
            self.assertEqual(first.status, 200)
            for _ in range(2):
                again = self.cancel(id)
                self.assertEqual((again.status, again.body), (200, first.body))

    @each_backend
    def test_10_9_ten_cancels_at_once_all_give_the_same_bytes(self, blocking):
        self.use(STEPS, blocking)
        for streamed in (False, True):
            id = self.opened()[0] if streamed else self.created()["id"]
            clients = [self.connect() for _ in range(10)]
            for client in clients:
                client.send_request("POST", "/v1/responses/%s/cancel" % id)
            answers = [client.read_answer() for client in clients]
            self.assertEqual({answer.status for answer in answers}, {200})
            self.assertEqual(len({answer.body for answer in answers}), 1)
            self.assertEqual(answers[0].json()["status"], "cancelled")

    @each_backend
    def test_10_9_cancel_of_one_that_has_ended_gives_it_unchanged(self, blocking):
        endings = {"completed": END, "incomplete": [Finish("length"), Usage(7, 3)], "failed": [Failure(BROKEN)]}
        for status, end in endings.items():
            backend = self.use([[TextDelta("a")], end], blocking)
            for streamed in (False, True):
                with self.subTest(status=status, streamed=streamed):
                    id = self.opened()[0] if streamed else self.created()["id"]
                    backend.release()
                    self.wait_status(id, status)
                    before = self.get(id).body
                    answer = self.cancel(id)
                    self.assertEqual((answer.status, answer.body), (200, before))
                    self.assertEqual(self.get(id).body, before)

    @each_backend
    def test_10_9_cancel_of_a_foreground_response_is_refused(self, blocking):
        backend = self.use(STEPS, blocking)
        client = self.watcher().begin("POST", "/v1/responses", dict(RESPONSE, stream=True))
        frames = client.frames(3)
        id = parse_event(frames[0]).data["response"]["id"]
        running = self.cancel(id)
        self.assert_error(running, 400)
        self.assertIn("background", running.error["message"])
        backend.release(3)
        self.assertEqual(parse_event(client.frames()[-2]).name, "response.completed", "it was not disturbed")
        self.assert_error(self.cancel(id), 400)
        backend.steps = [[TextDelta("a")] + END]
        self.assert_error(self.cancel(self.request("POST", "/v1/responses", RESPONSE).json()["id"]), 400)

    def test_2_2_cancel_of_an_unknown_id_is_not_found(self):
        for id in ("resp_" + "0" * 32, "x", "chatcmpl-1"):
            self.assert_error(self.cancel(id), 404)

    @each_backend
    def test_10_9_a_cancel_that_races_with_the_end_leaves_one_outcome_for_ever(self, blocking):
        outcomes = set()
        backend = self.use([[TextDelta("a")], [TextDelta("b")] + END], blocking)
        for number in range(25):
            backend.rearm()
            id, client, frames = self.opened()
            canceller = self.connect()
            if number % 2:
                backend.release()
            canceller.send_request("POST", "/v1/responses/%s/cancel" % id)
            if not number % 2:
                backend.release()
            answer = canceller.read_answer()
            self.assertEqual(answer.status, 200, answer.body)
            status = answer.json()["status"]
            outcomes.add(status)
            frames += client.frames()
            names = [parse_event(frame).name for frame in frames]
            self.assertEqual(names[-1], None)
            self.assertEqual("response.completed" in names, status == "completed")
            self.assertEqual(self.get(id).body, answer.body)
            self.assert_idle()
            self.assertEqual(self.get(id).body, answer.body)
            self.assertEqual(self.replay(id), frames)
            if status == "cancelled":
                said = "".join(parse_event(frame).data["delta"] for frame in frames[:-1]
                               if parse_event(frame).name == "response.output_text.delta")
                self.assertEqual(text_of(answer.json()), said)
        self.assertLessEqual(outcomes, {"cancelled", "completed"})

    @each_backend
    def test_11_2_a_cancelled_one_can_be_continued_and_a_running_one_cannot(self, blocking):
        self.use(STEPS, blocking)
        for streamed in (False, True):
            id = self.opened()[0] if streamed else self.created()["id"]
            self.wait_text(id, "One")
            for background in (False, True):
                answer = self.request("POST", "/v1/responses", dict(RESPONSE, previous_response_id=id,
                                                                    background=background))
                self.assert_error(answer, 400, "previous_response_id")
                self.assertIn("in progress", answer.error["message"])
            self.assertEqual(self.cancel(id).status, 200)
            next_id = self.created(previous_response_id=id)["id"]
            items = self.get(next_id, "/input_items?order=asc").json()["data"]
            self.assertEqual([item["content"][0]["text"] for item in items], ["Hello", "One", "Hello"])
            self.assertEqual(self.cancel(next_id).status, 200)

    def count_tokens(self, **change):
        answer = self.request("POST", "/v1/responses/input_tokens", dict(RESPONSE, **change))
        self.assertEqual(answer.status, 200, answer.body)
        return answer.json()["input_tokens"]

    @each_backend
    def test_11_2_what_a_cancelled_one_had_said_counts_in_the_next_turn(self, blocking):
        for text in ("One two three four five", "Gr\u00fc\u00dfe \U0001f600 \u4e2d\u6587 \"x\"\n" * 5):
            for deltas in ([TextDelta(text)],
                           [ReasoningDelta("Hm"), TextDelta(text), ToolCallDelta(0, "{}", "call_a", "f")]):
                with self.subTest(text=text, deltas=len(deltas)):
                    backend = self.use([deltas, [], END], blocking)
                    id = self.created()["id"]
                    self.wait_text(id, text)
                    items = wait_until(lambda: self.found(id, lambda response: len(response["output"]) == len(deltas)),
                                       "all items")["output"]
                    self.assertEqual(self.cancel(id).status, 200)
                    said = [{"role": "assistant", "content": text}] + items[2:]
                    same = [{"role": "user", "content": "Hello"}] + said + [{"role": "user", "content": "Hello"}]
                    self.assertAlmostEqual(self.count_tokens(previous_response_id=id), self.count_tokens(input=same),
                                           delta=4 * (len(deltas) - 1))       # other items count a little of their own
                    backend.close()

    @each_backend
    def test_11_2_a_completed_one_can_be_continued_in_the_background(self, blocking):
        backend = self.use(STEPS, blocking)
        id = None
        for _ in range(3):
            id = self.created(previous_response_id=id)["id"]
            backend.release(3)
            self.wait_status(id, "completed")
        self.assertEqual(len(self.get(id, "/input_items").json()["data"]), 5)

    @each_backend
    def test_10_9_a_long_one_is_polled_and_cancelled_as_well(self, blocking):
        pieces = ["w%d " % number for number in range(2 * LONG_SNAPSHOT_TOKENS)]
        self.use([[make_run(*pieces)], [], [TextDelta("never")] + END], blocking)
        for streamed in (False, True):
            id = self.opened()[0] if streamed else self.created()["id"]
            self.wait_text(id, "".join(pieces))
            answer = self.cancel(id)
            self.check_cancelled(answer.json(), "".join(pieces))
            self.assertEqual(self.get(id).body, answer.body)


class DeleteCases:

    @each_backend
    def test_11_1_delete_while_it_is_generated_ends_it_and_its_streams(self, blocking):
        backend = self.use(STEPS, blocking)
        id, client, frames = self.opened()
        watchers = [(after, self.watch(id, after)) for after in (0, 5, 20)]
        answer = self.delete(id)
        self.assertEqual((answer.status, answer.json()), (200, {"id": id, "object": "response", "deleted": True}))
        self.assertTrue(backend.cancels[0].is_set())
        frames += client.frames()
        self.assertEqual(frames[FIRST_EVENTS:], [SSE_DONE])
        for after, watcher in watchers:
            self.assertEqual(watcher.frames(), frames[after + 1:] or [SSE_DONE])
        self.assert_gone(id)
        backend.release(3)
        self.assert_idle()
        self.assert_gone(id)
        self.assertEqual(self.server.store.stats()["responses"], 0)
        if backend.blocking:
            self.assertTrue(backend.over.wait(TIMEOUT_S), "the generator has ended")

    @each_backend
    def test_11_1_delete_of_one_that_is_polled(self, blocking):
        backend = self.use(STEPS, blocking)
        id = self.created()["id"]
        self.assertEqual(self.delete(id).status, 200)
        self.assert_gone(id)
        backend.release(3)
        self.assert_idle()
        self.assert_gone(id)

    @each_backend
    def test_11_1_delete_after_the_end_and_after_a_cancel(self, blocking):
        backend = self.use(STEPS, blocking)
        id, _ = self.whole(backend)
        self.assertEqual(self.delete(id).status, 200)
        self.assert_gone(id)
        backend.rearm()
        id, client, _ = self.opened()
        self.assertEqual(self.cancel(id).status, 200)
        self.assertEqual(self.delete(id).status, 200)
        self.assertEqual(client.frames(), [SSE_DONE])
        self.assert_gone(id)

    @each_backend
    def test_11_1_a_watcher_goes_on_reading_when_its_stored_response_is_deleted(self, blocking):
        piece = "y" * 20000
        backend = self.use([[TextDelta(piece)] for _ in range(100)] + [END], blocking)
        id, frames = self.whole(backend)
        slow = self.watch(id)
        self.assertEqual(self.delete(id).status, 200)
        self.assertEqual(slow.frames(), frames)

    @each_backend
    def test_11_1_ten_deletes_at_once_delete_it_once(self, blocking):
        self.use(STEPS, blocking)
        id = self.opened()[0]
        clients = [self.connect() for _ in range(10)]
        for client in clients:
            client.send_request("DELETE", "/v1/responses/" + id)
        statuses = sorted(client.read_answer().status for client in clients)
        self.assertEqual(statuses, [200] + [404] * 9)

    @each_backend
    def test_11_1_delete_and_cancel_at_once_leave_nothing(self, blocking):
        self.use(STEPS, blocking)
        for number in range(10):
            id, stream, _ = self.opened()
            clients = [self.connect(), self.connect()]
            requests = [("DELETE", ""), ("POST", "/cancel")]
            if number % 2:
                requests.reverse()
            for client, (method, tail) in zip(clients, requests):
                client.send_request(method, "/v1/responses/" + id + tail)
            statuses = {method: client.read_answer().status for client, (method, _) in zip(clients, requests)}
            self.assertEqual(statuses["DELETE"], 200)
            self.assertIn(statuses["POST"], (200, 404))
            self.assertEqual(stream.frames()[-1], SSE_DONE)
            self.assert_gone(id)

    @each_backend
    def test_11_1_a_delete_that_races_with_the_end_leaves_nothing(self, blocking):
        backend = self.use([[TextDelta("a")], [TextDelta("b")] + END], blocking)
        for number in range(15):
            backend.rearm()
            id, stream, _ = self.opened()
            client = self.connect()
            if number % 2:
                backend.release()
            client.send_request("DELETE", "/v1/responses/" + id)
            if not number % 2:
                backend.release()
            self.assertEqual(client.read_answer().status, 200)
            self.assertEqual(stream.frames()[-1], SSE_DONE)
            self.assert_idle()
            self.assert_gone(id)


class EndingCases:
    """10.7 and 10.8 in the background."""

    def check_failed(self, response, code, text):
        self.assertEqual((response["status"], response["usage"], response["completed_at"], response["error"]["code"]),
                         ("failed", None, None, code))
        self.assertEqual(text_of(response), text)
        self.assertNotIn("secret", json.dumps(response))

    @each_backend
    def test_10_8_a_failure_in_mid_generation_ends_with_error_and_failed(self, blocking):
        for error, code in ((BROKEN, "server_error"), (LIMITED, "rate_limit_exceeded")):
            steps = [[TextDelta("One")], [TextDelta(" two")], [Failure(error)], [TextDelta("never")]]
            backend = self.use(steps, blocking)
            id, frames = self.whole(backend)
            events = read_background_stream(self, b"".join(frames))
            self.assertEqual([event["type"] for event in events[-2:]], ["error", "response.failed"])
            self.check_failed(events[-1]["response"], code, "One two")
            self.assertEqual(self.poll(id), events[-1]["response"])
            self.assert_idle()
            self.assertEqual(self.replay(id), frames)
            self.assertEqual(self.replay(id, 6), frames[7:])
            id = self.created()["id"]
            backend.release(3)
            self.check_failed(self.wait_status(id, "failed"), code, "One two")

    def test_10_8_an_exception_of_the_backend_is_a_server_error_and_logged_once(self):
        for blocking in (False, True):
            for deltas, text in (([(0.0, TextDelta("One")), RuntimeError("secret")], "One"),
                                 ([RuntimeError("secret")], "")):
                with self.subTest(blocking=blocking, text=text):
                    self.server.handler_class.backend = DeltaBackend(deltas, blocking)
                    frames = self.open_stream().frames()
                    events = read_background_stream(self, b"".join(frames))
                    self.check_failed(events[-1]["response"], "server_error", text)
                    id = events[-1]["response"]["id"]
                    self.assertEqual((self.poll(id), self.replay(id)), (events[-1]["response"], frames))
                    id = self.created()["id"]
                    self.check_failed(self.wait_status(id, "failed"), "server_error", text)
                    self.assert_idle()
                    self.assertEqual(len(self.take_errors()), 2)

    def test_10_8_a_refusal_of_a_backend_that_may_wait_fails_it(self):
        for deltas in ([LIMITED], [(0.0, Failure(LIMITED))]):
            self.server.handler_class.backend = DeltaBackend(deltas, True)
            created = self.created()
            self.assertEqual(created["status"], "queued")
            self.check_failed(self.wait_status(created["id"], "failed"), "rate_limit_exceeded", "")

    @each_backend
    def test_11_2_a_failed_one_can_be_continued(self, blocking):
        backend = self.use([[TextDelta("One"), Failure(BROKEN)]], blocking)
        id = self.created()["id"]
        self.wait_status(id, "failed")
        backend.steps = [[TextDelta("Two")] + END]
        next_id = self.created(previous_response_id=id)["id"]
        self.assertEqual(text_of(self.wait_status(next_id, "completed")), "Two")

    @each_backend
    def test_10_7_incomplete_by_the_limit_and_by_the_filter(self, blocking):
        for reason, told in (("length", "max_output_tokens"), ("content_filter", "content_filter")):
            backend = self.use([[TextDelta("One")], [Finish(reason), Usage(7, 1)]], blocking)
            id, frames = self.whole(backend)
            events = read_background_stream(self, b"".join(frames))
            final = events[-1]["response"]
            self.assertEqual((events[-1]["type"], final["status"], final["incomplete_details"], final["completed_at"]),
                             ("response.incomplete", "incomplete", {"reason": told}, None))
            self.assertEqual([item["status"] for item in final["output"]], ["incomplete"])
            self.assertEqual(final["usage"]["output_tokens"], 1)
            self.assertEqual((self.poll(id), self.replay(id)), (final, frames))
            id = self.created()["id"]
            backend.release()
            polled = self.wait_status(id, "incomplete")
            self.assertEqual((polled["incomplete_details"], text_of(polled)), ({"reason": told}, "One"))

    def test_10_7_the_simulated_backend_stops_at_max_output_tokens(self):
        self.start_server(output_tokens=50)
        id = self.created(max_output_tokens=16)["id"]
        response = self.wait_status(id, "incomplete")
        self.assertEqual((response["usage"]["output_tokens"], response["incomplete_details"]),
                         (16, {"reason": "max_output_tokens"}))

    @each_backend
    def test_11_4_a_conversation_is_locked_while_it_is_generated_and_free_after_any_end(self, blocking):
        store = self.server.store
        store.create_conversation(Conversation("conv_1", 0.0, {}))

        def end_by_release(id, backend):
            backend.release(3)
            self.wait_status(id, "completed", "failed")

        def end_by_cancel(id, backend):
            self.assertEqual(self.cancel(id).status, 200)

        def end_by_delete(id, backend):
            self.assertEqual(self.delete(id).status, 200)
        failing = [[TextDelta("One")], [Failure(BROKEN)]]
        for name, steps, end, appended in (("completed", STEPS, end_by_release, True),
                                           ("failed", failing, end_by_release, False),
                                           ("cancelled", STEPS, end_by_cancel, False),
                                           ("deleted", STEPS, end_by_delete, False)):
            backend = self.use(steps, blocking)
            for streamed in (False, True):
                with self.subTest(end=name, streamed=streamed):
                    backend.rearm()
                    before = store.conversation("conv_1").head
                    if streamed:
                        id = self.opened(conversation="conv_1")[0]
                    else:
                        id = self.created(conversation="conv_1")["id"]
                    self.assert_error(self.post(conversation="conv_1"), 400, "conversation", "conversation_locked")
                    end(id, backend)
                    wait_until(lambda: store.conversation("conv_1").owner is None, "the conversation to be free")
                    head = store.conversation("conv_1").head
                    self.assertEqual(head is not before, appended)


class LimitCases:

    settings = {"max_background": 2}

    @each_backend
    def test_2_2_more_than_max_background_are_refused_and_leave_nothing(self, blocking):
        store = self.server.store
        store.create_conversation(Conversation("conv_1", 0.0, {}))
        backend = self.use(STEPS, blocking)
        first, second = self.created()["id"], self.opened()[0]
        stored = store.stats()
        for streamed in (False, True):
            answer = self.post(stream=streamed, conversation="conv_1")
            self.assert_error(answer, 429, None, "rate_limit_exceeded", "requests")
            self.assertGreaterEqual(int(answer.headers["retry-after"]), 1)
        self.assertEqual((len(self.server.runs), store.stats(), len(backend.requests)), (2, stored, 2))
        self.assertIsNone(store.conversation("conv_1").owner)
        foreground = self.watcher().begin("POST", "/v1/responses", dict(RESPONSE, stream=True))
        self.assertEqual(foreground.head.status, 200, "they do not count")
        self.assertEqual(self.cancel(first).status, 200)
        third = self.created()["id"]
        backend.release(3)
        for id in (second, third):
            self.wait_status(id, "completed")
        self.assertEqual(parse_event(foreground.frames()[-2]).name, "response.completed")
        self.assert_idle()

    def test_2_2_a_refused_start_does_not_count(self):
        self.server.handler_class.backend = PlannedRefusal()
        for _ in range(5):
            self.assertEqual(self.post().status, 429)
        self.use([[TextDelta("a")] + END])
        self.assertEqual(self.post().status, 200)

    def test_10_9_ones_that_failed_because_the_store_is_full_do_not_block_new_ones(self):
        self.start_server(store=RefusingStore(StoreFull("It is full."), False))
        self.use([[TextDelta("a")] + END])
        ids = [self.created()["id"]]
        self.wait_status(ids[0], "failed")
        for _ in range(5):
            ids.append(self.created()["id"])
            self.wait_status(ids[-1], "failed")
        self.assertEqual(self.get(ids[0]).status, 404, "the oldest has made room")
        self.assertLessEqual(len(self.server.runs), 2)


class FullStoreCases:
    """A store that takes nothing: whoever polls learns of it all the same."""

    blocking_store = False

    def make_store(self):
        return RefusingStore(StoreFull("It is full."), self.blocking_store)

    @each_backend
    def test_11_2_one_that_cannot_be_stored_is_polled_as_failed(self, blocking):
        backend = self.use(STEPS, blocking)
        id, frames = self.whole(backend)
        events = read_background_stream(self, b"".join(frames))
        self.assertEqual([event["type"] for event in events[-3:]],
                         ["response.output_item.done", "error", "response.failed"])
        self.assertEqual(events[-1]["response"]["error"]["code"], "server_error")
        self.assertEqual(self.poll(id), events[-1]["response"])
        self.assertEqual(self.replay(id), frames)
        self.assertEqual(self.replay(id, 8), frames[9:])
        backend.rearm()
        id = self.created()["id"]
        backend.release(3)
        polled = self.wait_status(id, "failed")
        self.assertEqual((polled["error"]["code"], polled["usage"]), ("server_error", None))
        answer = self.cancel(id)
        self.assertEqual((answer.status, answer.json()), (200, polled))
        self.assertEqual(self.delete(id).status, 200)
        self.assert_gone(id)

    @each_backend
    def test_11_2_one_that_cannot_be_stored_is_not_said_to_be_in_progress(self, blocking):
        self.use([[TextDelta("a")] + END], blocking)
        id = self.created()["id"]
        self.wait_status(id, "failed")
        answer = self.request("POST", "/v1/responses", dict(RESPONSE, previous_response_id=id))
        self.assertEqual((answer.status, answer.error["param"]), (400, "previous_response_id"))
        self.assertNotIn("in progress", answer.error["message"])

    @each_backend
    def test_10_9_a_cancel_that_cannot_be_stored_is_cancelled_for_whoever_polls(self, blocking):
        backend = self.use(STEPS, blocking)
        for streamed in (False, True):
            if streamed:
                id, client, frames = self.opened()
            else:
                id = self.created()["id"]
                self.wait_text(id, "One")
            answer = self.cancel(id)
            self.assertTrue(backend.cancels[-1].is_set(), "whatever the answer is")
            if streamed:
                self.assertEqual(client.frames(), [SSE_DONE])
            self.assertEqual((answer.status, answer.json().get("status")), (200, "cancelled"))
            self.assertEqual(self.get(id).body, answer.body)

    @each_backend
    def test_10_9_a_broken_store_is_logged_and_the_response_polled_as_failed(self, blocking):
        self.server.store.error = RuntimeError("secret of the store")
        backend = self.use(STEPS, blocking)
        id, frames = self.whole(backend)
        self.assertEqual(read_background_stream(self, b"".join(frames))[-1]["type"], "response.failed")
        polled = self.poll(id)
        self.assertEqual((polled["status"], polled["error"]["code"]), ("failed", "server_error"))
        self.assertNotIn(b"secret", b"".join(frames))
        self.assertEqual(len(self.take_errors()), 1)


@every_form
class GatedStoreTest(BackgroundLive):
    """What is seen while the store takes its time."""

    def make_store(self):
        return GatedStore(False)

    @each_backend
    def test_10_9_one_that_is_being_cancelled_is_never_unknown(self, blocking):
        # its play may end while the cancelled object is on its way into the store
        pieces = ["w "] * (LONG_SNAPSHOT_TOKENS + 10)        # so long that a worker cancels it
        store = self.start_once().store
        backend = self.use([[make_run(*pieces)], [TextDelta("b")] + END], blocking)
        store.arrived.clear()
        store.gate.clear()
        id = self.created()["id"]
        wait_until(lambda: self.server.runs.get(id).is_long(), "a long one")
        canceller = self.connect()
        canceller.send_request("POST", "/v1/responses/%s/cancel" % id)
        self.assertTrue(store.arrived.wait(TIMEOUT_S))
        backend.release(2)
        if backend.blocking:
            self.assertTrue(backend.over.wait(TIMEOUT_S))
        done = threading.Event()
        self.server.player.post(lambda: self.server.player.post(done.set))
        self.assertTrue(done.wait(TIMEOUT_S))
        statuses = {self.server.runs.get(id) is None} | {self.server.runs.get(id) is None for _ in range(20)}
        store.gate.set()
        answer = canceller.read_answer()
        self.assertEqual((answer.status, answer.json()["status"]), (200, "cancelled"))
        self.assertEqual(self.get(id).body, answer.body)
        self.assertEqual(statuses, {False}, "a poll in between would have been a 404")


class WaitingStoreLive(BackgroundLive):
    """Over a store that may wait."""

    def make_store(self):
        self.waiting_store = BlockingStore()
        return self.waiting_store

    def tearDown(self):
        if self._server is not None and self._server.store.__class__ is BlockingStore:
            self.assertEqual(self.waiting_store.threads & {"serve", "pacer"}, set())


@every_form
class QueuedTest(QueuedCases, BackgroundLive):
    pass


@every_form
class QueuedWaitingStoreTest(QueuedCases, WaitingStoreLive):
    pass


@every_form
class StreamTest(StreamCases, BackgroundLive):
    pass


@every_form
class StreamWaitingStoreTest(StreamCases, WaitingStoreLive):
    pass


@every_form
class CancelTest(CancelCases, BackgroundLive):
    pass


@every_form
class CancelWaitingStoreTest(CancelCases, WaitingStoreLive):
    pass


@every_form
class DeleteTest(DeleteCases, BackgroundLive):
    pass


@every_form
class DeleteWaitingStoreTest(DeleteCases, WaitingStoreLive):
    pass


@every_form
class EndingTest(EndingCases, BackgroundLive):
    pass


@every_form
class EndingWaitingStoreTest(EndingCases, WaitingStoreLive):
    pass


@every_form
class LimitTest(LimitCases, BackgroundLive):
    pass


@every_form
class LimitWaitingStoreTest(LimitCases, WaitingStoreLive):
    pass


@every_form
class FullStoreTest(FullStoreCases, BackgroundLive):
    pass


@every_form
class FullWaitingStoreTest(FullStoreCases, BackgroundLive):
    blocking_store = True


# ---- bounds, shutdown, garbage ----------------------------------------------------------------

class UncancelledBackend(Backend):
    """Says one word and then waits for its cancel, which nobody but the server can send."""

    def __init__(self):
        self.over = threading.Event()

    def generate(self, request, cancel):
        try:
            yield None, TextDelta("One")
            if not cancel.wait(3 * TIMEOUT_S):
                raise AssertionError("it was never cancelled")
        finally:
            self.over.set()


@every_form
class ShutdownTest(BackgroundLive):

    stopped = False

    def test_a_server_that_stops_ends_background_work_and_its_threads(self):
        backend = UncancelledBackend()
        self.start_server(backend=backend)
        polled = self.created()["id"]
        id, client, frames = self.opened()
        late = self.watch(id, 2)
        self.wait_text(polled, "One")
        self.stop()
        self.assertTrue(backend.over.wait(TIMEOUT_S), "the generators were told")
        self.assert_threads_end()
        for each in (client, late):         # both streams end, whole frames or not
            self.assertNotIn(b"response.completed", each.read_to_end())

    def test_a_server_with_planned_background_work_stops_at_once(self):
        self.start_server(drain_s=60)
        self.use([[TextDelta("a")], [TextDelta("b")] + END])
        self.assertEqual(self.created()["status"], "queued")
        _, client, _ = self.opened()
        self.stop()
        self.assert_threads_end()
        self.assertEqual(client.read_to_end().count(b"response.completed"), 0)

    def stop(self):
        self.server.shutdown()
        self._serving.join(TIMEOUT_S)
        self.assertFalse(self._serving.is_alive())
        self.server.server_close()
        self.stopped = True

    def _stop_server(self):
        for client in self._clients:
            client.close()
        if not self.stopped:
            BackgroundLive._stop_server(self)


@every_form
class GarbageTest(BackgroundLive):

    def test_background_responses_leave_nothing_for_the_cycle_collector(self):
        self.start_server(log_level="error")
        client = self.connect()
        ready = DeltaBackend([(0.0, delta) for step in STEPS for delta in step])
        held = DeltaBackend([(0.0, TextDelta("a")), (3600.0, TextDelta("b"))])

        def round_of_requests():
            path = "/v1/responses"
            self.server.handler_class.backend = ready
            body = client.request("POST", path, dict(RESPONSE, background=True, stream=True)).body
            id = parse_event(frames_of(body)[0]).data["response"]["id"]
            client.request("GET", "%s/%s?stream=true&starting_after=3" % (path, id))
            client.request("GET", "%s/%s" % (path, id))
            self.assertEqual(client.request("POST", "%s/%s/cancel" % (path, id)).status, 200)
            self.assertEqual(client.request("DELETE", "%s/%s" % (path, id)).status, 200)
            client.request("POST", path, dict(RESPONSE, background=True))
            self.server.handler_class.backend = held
            for word in ("POST", "DELETE"):
                id = client.request("POST", path, dict(RESPONSE, background=True)).json()["id"]
                client.request("GET", "%s/%s" % (path, id))
                tail = "/cancel" if word == "POST" else ""
                self.assertEqual(client.request(word, "%s/%s%s" % (path, id, tail)).status, 200)
            self.assert_idle()
        round_of_requests()
        gc.collect()
        gc.disable()
        try:
            for _ in range(20):
                round_of_requests()
            found = gc.collect()
        finally:
            gc.enable()
        # every JSON client here leaves a few; a run in a cycle leaves some 60 objects
        self.assertLess(found, 20 * 40, "per round of 4 background responses: %d" % (found // 20))

    @each_backend
    def test_what_has_ended_is_let_go_without_the_collector(self, blocking):
        backend = self.use(STEPS, blocking)
        gc.collect()
        gc.disable()
        self.addCleanup(gc.enable)
        for end in ("release", "cancel", "delete"):
            with self.subTest(end=end):
                backend.rearm()
                id, client, _ = self.opened()
                run = weakref.ref(self.server.runs.get(id))
                if end == "release":
                    backend.release(3)
                else:
                    self.assertEqual(getattr(self, end)(id).status, 200)
                client.frames()
                del backend.cancels[:], backend.requests[:]
                wait_until(lambda: run() is None, "the run to be let go", 2.0)


# ---- schemas ----------------------------------------------------------------------------------

@unittest.skipIf(MISSING, MISSING)
class BackgroundSchemaTest(BackgroundLive):
    """All objects and events against both schema bundles."""

    def check_object(self, response, open_too=True):
        for item in response["output"]:         # first, as it tells more
            OPENAI.check_branch(self, OPENAI_ITEMS, item)
        OPENAI.check(self, "Response", openai_response(response))
        if open_too:
            OPEN.check(self, "ResponseResource", response)

    def check_event(self, event, open_too=True):
        given = dict(event)
        if "response" in event:
            given["response"] = openai_response(event["response"])
            self.check_object(event["response"], open_too)
        if "item" in event:
            OPENAI.check_branch(self, OPENAI_ITEMS, event["item"])
        OPENAI.check_branch(self, OPENAI_EVENTS, given)
        if open_too:
            OPEN.check_branch(self, OPEN_EVENTS, event)

    def test_events_of_every_golden_list_live_and_replayed(self):
        backend = DeltaBackend([])
        self.server.handler_class.backend = backend
        for name, deltas in DELTAS.items():
            with self.subTest(deltas=name):
                backend.deltas = [(0.0, delta) for delta in deltas]
                frames = self.open_stream().frames()
                events = read_background_stream(self, b"".join(frames))
                for event in events:
                    self.check_event(event, name not in OPEN_UNKNOWN)
                self.check_object(self.poll(events[0]["response"]["id"]), name not in OPEN_UNKNOWN)

    def test_objects_of_every_status(self):
        for blocking in (False, True):
            seen = set()
            for steps in (STEPS, [[TextDelta("a")], [Failure(LIMITED)]],
                          [[TextDelta("a")], [Finish("length"), Usage(1, 1)]]):
                backend = self.use(steps, blocking)
                created = self.created()
                partial = self.wait_status(created["id"], "in_progress")
                backend.release(3)
                objects = [created, partial, self.wait_status(created["id"], "completed", "failed", "incomplete")]
                backend.rearm()
                id = self.created()["id"]
                self.wait_status(id, "in_progress")
                objects += [self.cancel(id).json(), self.poll(id)]
                for response in objects:
                    self.check_object(response)
                    seen.add(response["status"])
            self.assertEqual(seen, {"queued", "in_progress", "completed", "failed", "incomplete", "cancelled"})

    def test_snapshots_of_every_golden_list_at_every_count_of_events(self):
        maker = SnapshotTest()
        for name, deltas in DELTAS.items():
            with self.subTest(deltas=name):
                for run in maker.play(deltas, True):
                    for status in (None, "cancelled"):
                        self.check_object(json.loads(run.snapshot(status)[0]), name not in OPEN_UNKNOWN)

    def test_events_of_failures_and_of_what_was_cut(self):
        for deltas in ([TextDelta("a"), Failure(LIMITED)], [Failure(BROKEN)],
                       [ReasoningDelta("a"), ToolCallDelta(0, "{", "call_a", "f"), Failure(BROKEN)]):
            self.server.handler_class.backend = DeltaBackend([(0.0, delta) for delta in deltas])
            for event in read_background_stream(self, b"".join(self.open_stream().frames())):
                self.check_event(event)

    def test_errors(self):
        id = self.created()["id"]
        for answer in (self.post(store=False), self.get(id, "?stream=true"), self.get(id, "?starting_after=1"),
                       self.cancel("resp_0"), self.get("resp_0", "?stream=true"), self.delete("resp_0")):
            self.assertGreaterEqual(answer.status, 400)
            OPENAI.check(self, "ErrorResponse", answer.json())


if __name__ == "__main__":
    unittest.main()
