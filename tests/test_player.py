"""The player on a fake clock: when frames go out, in which sends, and what becomes of slow or lost clients."""
import socket
import threading
import unittest
from collections import deque
from random import Random

from api_common import ApiError, Clock
from backends.contract import Backend, Failure, Finish, GenerationRequest, History, TextDelta, Usage
from observe.metrics import Lateness, Metrics
from runs import Assembler, Completion
from tests.support import TIMEOUT_S, FakeClock, QuietTestCase, wait_until
from transport.player import JOIN_BYTES, PacerThread, Play, Player, PushedSteps, Splice, Step
from transport.poller import POLL_READ, POLL_WRITE, Waker, Wire, make_poller

START_S = 1000.0
HEARTBEAT = b": keep-alive\n\n"


class FakeWire:
    """Records (time, bytes) of each send; takes at most `room` bytes, None for all."""

    def __init__(self, clock, fd=7):
        self.fd = fd
        self.sends = []
        self.room = None
        self.broken = None          # an OSError that send() raises
        self.waiting = BlockingIOError()    # what peek() finds: bytes or an OSError
        self._clock = clock

    def send(self, data):
        if self.broken is not None:
            raise self.broken
        taken = len(data) if self.room is None else min(self.room, len(data))
        if not taken:
            raise BlockingIOError()
        if self.room is not None:
            self.room -= taken
        self.sends.append((round(self._clock.now - START_S, 6), data[:taken]))
        return taken

    def peek(self):
        if isinstance(self.waiting, OSError):
            raise self.waiting
        return self.waiting

    @property
    def data(self):
        return b"".join(data for _, data in self.sends)


class FakePoller:

    def __init__(self):
        self.masks = {}

    def watch(self, wire, mask):
        self.masks[wire] = mask

    def forget(self, wire):
        self.masks.pop(wire, None)


class PlayerTest(QuietTestCase):

    def setUp(self):
        QuietTestCase.setUp(self)
        self.clock = FakeClock(START_S)
        self.poller = FakePoller()
        self.lateness = Lateness()
        self.jobs = deque()         # blocking steps, run by run_jobs()
        self.inbox = deque()        # what other threads asked the player's thread to do
        self.errors = 0
        self.ended = []             # (play, whole)
        self.gone = []
        self.player = Player(self.poller, self.clock, self.lateness, self.submit, self.on_error,
                             self.inbox.append, 60.0)

    def on_error(self):
        self.errors += 1

    def wire(self, fd=7):
        return FakeWire(self.clock, fd)

    def play(self, steps, wire=None, head=None, start=True, **values):
        wire = wire or self.wire()
        play = Play(wire, START_S, iter(steps), on_gone=lambda: self.gone.append(play),
                    on_end=lambda play, whole: self.ended.append((play, whole)), **values)
        play.frame = head
        if start:
            self.player.start(play)
        return play

    def submit(self, job):
        """As Workers do: what a job returns is called when its writes are durable."""
        def run():
            later = job()
            if later is not None:
                later(None)
        self.jobs.append(run)

    def run_jobs(self):
        while self.jobs or self.inbox:
            while self.jobs:
                self.jobs.popleft()()
            while self.inbox:
                self.inbox.popleft()()

    def run_until(self, seconds, step_s=0.001):
        """Let the time pass in small steps, ticking at each."""
        while self.clock.now < START_S + seconds - 1e-9:
            self.clock.advance(min(step_s, START_S + seconds - self.clock.now))
            self.tick()

    def tick(self):
        while self.player.tick():
            pass

    def run_all(self, limit_s=1000.0):
        """Jump from one due time to the next until nothing is scheduled."""
        while self.player.next_due_s() is not None:
            self.assertLess(self.clock.now, START_S + limit_s)
            self.clock.now = max(self.clock.now, self.player.next_due_s())
            self.tick()


class DeadlineTest(PlayerTest):

    def test_what_is_due_at_once_goes_out_with_the_head_in_one_send(self):
        play = self.play([(0.0, b"one"), (0.0, b"two"), (5.0, b"three")], head=b"HEAD")
        self.assertEqual(play.wire.sends, [(0.0, b"HEADonetwo")])

    def test_the_head_goes_out_at_once_even_when_nothing_is_due(self):
        self.assertEqual(self.play([(5.0, b"one")], head=b"HEAD").wire.sends, [(0.0, b"HEAD")])

    def test_no_frame_is_early_and_none_more_than_a_tick_late(self):
        random = Random(1)
        dues, due = [], 0.0
        for _ in range(300):
            due += random.choice((0.0007, 0.001, 0.0031, 0.01, 0.02, 0.1))
            dues.append(due)
        play = self.play([(due, b"%d;" % n) for n, due in enumerate(dues)])
        self.run_until(dues[-1] + 0.01, 0.0005)
        sent = {}
        for at, data in play.wire.sends:
            for number in data.split(b";")[:-1]:
                sent[int(number)] = at
        for number, due in enumerate(dues):
            self.assertGreaterEqual(sent[number], due - 1e-6)
            self.assertLessEqual(sent[number], due + 0.0020001)

    def test_one_send_per_frame_when_punctual(self):
        play = self.play([(0.01 * n, b"frame %d" % n) for n in range(1, 50)])
        self.run_until(0.6)
        self.assertEqual([data for _, data in play.wire.sends], [b"frame %d" % n for n in range(1, 50)])

    def test_a_late_frame_does_not_shift_the_next(self):
        play = self.play([(0.1, b"one"), (0.2, b"two"), (0.3, b"three")])
        self.clock.advance(0.19)
        self.tick()
        self.run_until(0.5)
        self.assertEqual([round(at, 2) for at, _ in play.wire.sends], [0.19, 0.2, 0.3])

    def test_frames_that_are_late_together_go_out_together(self):
        play = self.play([(0.1, b"one"), (0.2, b"two"), (0.3, b"three"), (0.9, b"four")])
        self.clock.advance(0.35)
        self.tick()
        self.run_until(1.0)
        self.assertEqual([data for _, data in play.wire.sends], [b"onetwothree", b"four"])

    def test_a_stream_without_deadlines_is_sent_in_joined_writes(self):
        frames = [b"%05d" % n * 20 for n in range(10000)]
        play = self.play([(0.0, frame) for frame in frames])
        self.run_all()
        self.assertEqual(play.wire.data, b"".join(frames))
        self.assertLessEqual(len(play.wire.sends), len(play.wire.data) // JOIN_BYTES + 2)
        self.assertGreater(len(play.wire.sends), 5)     # but not so long that others wait

    def test_streams_are_independent(self):
        plays = [self.play([(0.01 * n, b"%d" % n) for n in range(1, 10)], self.wire(fd)) for fd in range(20)]
        self.run_until(0.2)
        for play in plays:
            self.assertEqual(play.wire.data, b"123456789")
        self.assertEqual(len(self.ended), 20)

    def test_a_play_that_began_late_counts_from_its_start(self):
        self.clock.advance(0.5)         # the request was read half a second ago
        play = self.play([(0.1, b"one"), (0.7, b"two")])
        self.run_until(0.8)
        self.assertEqual([(round(at, 2), data) for at, data in play.wire.sends], [(0.5, b"one"), (0.7, b"two")])

    def test_the_end_is_told_once_and_the_play_forgotten(self):
        play = self.play([(0.1, b"one")])
        self.run_until(0.3)
        self.assertEqual(self.ended, [(play, True)])
        self.assertEqual((self.player.plays, self.player.next_due_s(), self.gone), ({}, None, []))

    def test_an_empty_play_ends_at_once(self):
        play = self.play([], head=b"HEAD")
        self.assertEqual((play.wire.data, self.ended), (b"HEAD", [(play, True)]))

    def test_next_due_is_the_earliest_and_not_early(self):
        self.play([(0.5, b"x")], self.wire(1))
        self.play([(0.25, b"x")], self.wire(2))
        self.assertGreaterEqual(self.player.next_due_s(), START_S + 0.25)
        self.assertLessEqual(self.player.next_due_s(), START_S + 0.252)


class LatenessTest(PlayerTest):

    def test_the_histogram_counts_every_timed_frame_in_its_quarter_millisecond(self):
        self.play([(0.1, b"one"), (0.2, b"two")])
        self.clock.advance(0.110)
        self.tick()
        self.clock.advance(0.190)
        self.tick()
        late = {slot: count for slot, count in enumerate(self.lateness.slots) if count}
        self.assertEqual(sum(late.values()), 2)
        self.assertEqual([round(slot * 0.25) for slot in late], [10, 100])

    def test_the_head_and_untimed_plays_do_not_count(self):
        self.play([(0.0, b"x" * 10)], head=b"HEAD", timed=False)
        self.play([], self.wire(8), head=b"HEAD")
        self.assertEqual(self.lateness.frames(), 0)

    def test_joined_frames_count_each(self):
        self.play([(0.1, b"one"), (0.2, b"two"), (0.3, b"three")])
        self.clock.advance(0.4)
        self.tick()
        self.assertEqual(self.lateness.frames(), 3)
        self.assertAlmostEqual(self.lateness.quantile_ms(1.0), 300, delta=1)
        self.assertAlmostEqual(self.lateness.quantile_ms(0.01), 100, delta=1)

    def test_more_than_a_second_is_in_the_last_slot(self):
        self.play([(0.1, b"one")])
        self.clock.advance(7)
        self.tick()
        self.assertEqual(self.lateness.slots[-1], 1)


class FullSocketTest(PlayerTest):

    def test_the_rest_of_a_cut_frame_goes_out_before_the_next_frame(self):
        wire = self.wire()
        wire.room = 3
        play = self.play([(0.0, b"abcdef"), (0.1, b"ghi"), (0.2, b"jkl")], wire)
        self.assertEqual(self.poller.masks[wire], POLL_READ | POLL_WRITE)
        self.clock.advance(0.05)
        wire.room = None
        self.player.writable(play)
        self.assertEqual((wire.data, self.poller.masks[wire]), (b"abcdef", POLL_READ))
        self.run_until(0.3)
        self.assertEqual([(round(at, 1), data) for at, data in wire.sends[-2:]], [(0.1, b"ghi"), (0.2, b"jkl")])

    def test_a_frame_cut_on_the_fast_way_keeps_the_next_deadline(self):
        wire = self.wire()
        play = self.play([(0.1, b"abcdef"), (0.5, b"ghi")], wire)
        wire.room = 2
        self.run_until(0.2)
        self.assertEqual(wire.data, b"ab")
        wire.room = None
        self.player.writable(play)
        self.run_until(0.49)
        self.assertEqual(wire.data, b"abcdef")
        self.run_until(0.6)
        self.assertEqual([(round(at, 2), data) for at, data in wire.sends[-1:]], [(0.5, b"ghi")])

    def test_a_socket_that_is_full_past_deadlines_gets_all_in_order(self):
        wire = self.wire()
        wire.room = 0
        play = self.play([(0.01 * n, b"%03d" % n) for n in range(100)], wire)
        self.run_until(0.5)
        self.assertEqual(wire.data, b"")
        while not play.over:
            wire.room = 2
            self.player.writable(play)
            self.run_until(self.clock.now - START_S + 0.003)
        self.assertEqual(wire.data, b"".join(b"%03d" % n for n in range(100)))
        self.assertEqual(self.ended, [(play, True)])

    def test_a_full_socket_holds_one_round_of_frames_and_no_more(self):
        wire = self.wire()
        wire.room = 0
        play = self.play([(0.0, b"x" * 1000) for n in range(10000)], wire)
        self.run_until(0.1)
        self.assertLessEqual(len(play.rest), JOIN_BYTES + 2000)

    def test_the_end_waits_for_the_rest(self):
        wire = self.wire()
        wire.room = 2
        play = self.play([(0.0, b"abc")], wire)
        self.assertEqual(self.ended, [])
        wire.room = None
        self.player.writable(play)
        self.assertEqual((wire.data, self.ended), (b"abc", [(play, True)]))

    def test_others_are_not_held_up(self):
        stuck = self.wire(1)
        stuck.room = 0
        self.play([(0.01 * n, b"x" * 100) for n in range(10)], stuck)
        other = self.play([(0.01 * n, b"%d" % n) for n in range(10)], self.wire(2))
        self.run_until(0.2)
        self.assertEqual((other.wire.data, len(other.wire.sends)), (b"0123456789", 10))

    def test_a_reader_that_takes_nothing_is_dropped_after_the_timeout(self):
        wire = self.wire()
        wire.room = 2
        play = self.play([(0.0, b"abc"), (0.1, b"def")], wire)
        self.player.sweep(START_S + 59.9)
        self.assertEqual(self.gone, [])
        self.player.sweep(START_S + 60.1)
        self.assertEqual((self.gone, self.ended), ([play], [(play, False)]))

    def test_a_reader_that_takes_a_little_is_not(self):
        wire = self.wire()
        wire.room = 0
        play = self.play([(0.0, b"abcdef")], wire)
        for _ in range(3):
            self.clock.advance(50)
            wire.room = 1
            self.player.writable(play)
            self.player.sweep(self.clock.now + 50)
        self.assertEqual((wire.data, self.gone), (b"abc", []))

    def test_a_stale_writable_event_does_nothing(self):
        play = self.play([(0.1, b"abc")])
        self.player.writable(play)
        self.assertEqual(play.wire.data, b"")
        self.run_until(0.2)
        self.player.writable(play)
        self.assertEqual((play.wire.data, len(self.ended)), (b"abc", 1))


class HeartbeatTest(PlayerTest):

    def test_only_while_nothing_is_due_for_so_long(self):
        play = self.play([(2.5, b"one"), (2.6, b"two"), (4.7, b"three")], heartbeat_s=1.0)
        self.run_until(5.0)
        self.assertEqual([(round(at, 1), data) for at, data in play.wire.sends], [
            (1.0, HEARTBEAT), (2.0, HEARTBEAT), (2.5, b"one"), (2.6, b"two"), (3.6, HEARTBEAT),
            (4.6, HEARTBEAT), (4.7, b"three")])

    def test_none_when_frames_come_in_time(self):
        play = self.play([(0.9 * n, b"x") for n in range(10)], heartbeat_s=1.0)
        self.run_until(9.0)
        self.assertEqual(play.wire.data, b"x" * 10)

    def test_zero_is_never(self):
        play = self.play([(50.0, b"one")], heartbeat_s=0.0)
        self.run_until(51.0, 0.1)
        self.assertEqual(play.wire.data, b"one")

    def test_a_run_that_began_after_heartbeats_gets_its_own_and_none_in_a_burst_at_its_end(self):
        run = [(2.5 + 0.25 * n, b"x") for n in range(8)] + [(6.75, b"y")]
        play = self.play([(2.5, Splice(iter(run))), (6.75, b"end")], heartbeat_s=1.0)
        self.run_until(8.0)
        beats = [at for at, data in play.wire.sends if HEARTBEAT in data]
        self.assertEqual([round(at, 2) for at in beats], [1.0, 2.0, 5.25, 6.25])
        self.assertEqual(play.wire.data.replace(HEARTBEAT, b""), b"xxxxxxxxyend")
        self.assertLess(self.lateness.quantile_ms(1.0), 3)

    def test_a_gap_in_the_middle_gets_its_heartbeats_and_the_frames_their_times(self):
        play = self.play([(0.1 * n, b"x") for n in range(1, 5)] + [(3.0, b"y"), (3.1, b"z")], heartbeat_s=1.0)
        self.run_until(4.0)
        self.assertEqual([(round(at, 1), data) for at, data in play.wire.sends[3:]], [
            (0.4, b"x"), (1.4, HEARTBEAT), (2.4, HEARTBEAT), (3.0, b"y"), (3.1, b"z")])

    def test_none_inside_a_frame_that_the_socket_did_not_take(self):
        wire = self.wire()
        play = self.play([(0.5, b"abcdef"), (9.0, b"g")], wire, heartbeat_s=1.0)
        wire.room = 3
        self.run_until(3.2)
        self.assertEqual(wire.data, b"abc")
        wire.room = None
        self.player.writable(play)
        self.run_until(10.0)
        self.assertTrue(wire.data.startswith(b"abcdef"), wire.data)
        self.assertEqual(wire.data.replace(HEARTBEAT, b""), b"abcdefg")

    def test_the_given_bytes_are_sent(self):
        play = self.play([(1.5, b"x")], heartbeat_s=1.0, heartbeat=b"e\r\n" + HEARTBEAT + b"\r\n")
        self.run_until(2.0)
        self.assertEqual(play.wire.data, b"e\r\n" + HEARTBEAT + b"\r\nx")


class LeavingTest(PlayerTest):

    def test_end_of_file_while_an_answer_is_due_ends_it(self):
        play = self.play([(0.1, b"one"), (0.2, b"two")])
        self.run_until(0.15)
        play.wire.waiting = b""
        self.player.readable(play)
        self.run_until(0.5)
        self.assertEqual((play.wire.data, self.gone, self.ended), (b"one", [play], [(play, False)]))

    def test_a_reset_does_as_well(self):
        play = self.play([(0.1, b"one")])
        play.wire.waiting = ConnectionResetError()
        self.player.readable(play)
        self.assertEqual((self.gone, self.ended), ([play], [(play, False)]))

    def test_a_send_that_fails_does_as_well(self):
        for number, fast in enumerate((True, False)):
            play = self.play([(0.1 + 0.1 * number, b"one"), (0.3, b"two")] if fast else [(0.2, b"one")],
                             self.wire(number))
            play.wire.broken = BrokenPipeError()
        self.run_until(0.5)
        self.assertEqual((len(self.gone), [whole for _, whole in self.ended], self.errors), (2, [False, False], 0))

    def test_a_spurious_readable_event_changes_nothing(self):
        play = self.play([(0.1, b"one")])
        self.player.readable(play)
        self.run_until(0.2)
        self.assertEqual((play.wire.data, self.ended), (b"one", [(play, True)]))

    def test_pipelined_bytes_only_end_the_watch_for_reading_until_the_answer_is_out(self):
        play = self.play([(0.1, b"one")])
        play.wire.waiting = b"G"
        self.player.readable(play)
        self.assertFalse(self.poller.masks[play.wire] & POLL_READ)
        self.run_until(0.2)
        self.assertEqual((play.wire.data, self.gone), (b"one", []))
        self.assertTrue(self.poller.masks[play.wire] & POLL_READ)

    def test_killed_while_queued_nothing_more_is_sent_and_the_steps_are_closed(self):
        closed = []

        def steps():
            try:
                for n in range(1, 10):
                    yield 0.1 * n, b"x"
            finally:
                closed.append(True)
        play = self.play(steps())
        self.run_until(0.25)
        self.player.gone(play)
        self.run_until(2.0)
        self.assertEqual((play.wire.data, closed, self.player.next_due_s()), (b"xx", [True], None))

    def test_the_descriptors_next_client_is_not_touched_by_the_old_entry(self):
        wire = self.wire()
        old = self.play([(0.1, b"old"), (0.2, b"old")], wire)
        self.player.gone(old)
        new = self.play([(0.1, b"new"), (0.2, b"new")], wire)
        self.run_until(0.5)
        self.assertEqual((wire.data, self.ended), (b"newnew", [(old, False), (new, True)]))

    def test_gone_is_told_once(self):
        play = self.play([(0.1, b"one")])
        self.player.gone(play)
        self.player.gone(play)
        play.wire.waiting = b""
        self.player.readable(play)
        self.player.sweep(START_S + 1000)
        self.assertEqual((len(self.gone), len(self.ended)), (1, 1))


class StepTest(PlayerTest):

    def test_a_step_runs_when_it_is_due_and_not_before(self):
        ran = []

        def run():
            ran.append(round(self.clock.now - START_S, 1))
            return b"made"
        play = self.play([(0.1, b"one"), (0.5, Step(run)), (0.9, b"two")])
        self.run_until(1.0)
        self.assertEqual((ran, play.wire.data), ([0.5], b"onemadetwo"))

    def test_a_blocking_step_goes_through_submit(self):
        ran = []
        play = self.play([(0.1, b"one"), (0.2, Step(lambda: ran.append(1) or b"made", True)), (0.3, b"two")])
        self.run_until(0.5)
        self.assertEqual((ran, play.wire.data, len(self.jobs)), ([], b"one", 1))
        self.jobs.popleft()()
        self.assertEqual((ran, play.wire.data), ([1], b"one"))      # the worker sends nothing itself
        self.inbox.popleft()()
        self.run_until(0.6)
        self.assertEqual((play.wire.data, self.ended), (b"onemadetwo", [(play, True)]))

    def test_frames_before_a_blocking_step_do_not_wait_for_it(self):
        play = self.play([(0.1, b"one"), (0.1, Step(lambda: b"made", True))])
        self.run_until(0.2)
        self.assertEqual(play.wire.data, b"one")

    def test_a_blocking_step_taken_ahead_keeps_the_order(self):
        play = self.play([(0.1, Step(lambda: b"made", True)), (0.1, b"two"), (0.1, Step(lambda: b"more", True)),
                          (0.2, b"three")])
        for _ in range(30):
            self.run_until(self.clock.now - START_S + 0.01)
            self.run_jobs()
        self.assertEqual((play.wire.data, self.ended), (b"madetwomorethree", [(play, True)]))

    def test_a_socket_that_frees_itself_while_a_blocking_step_runs_keeps_the_order(self):
        wire = self.wire()
        wire.room = 1
        play = self.play([(0.1, b"one"), (0.1, Step(lambda: b"made", True)), (0.1, b"two")], wire)
        self.run_until(0.2)
        wire.room = None
        self.player.writable(play)          # the rest of "one" goes; the worker is still at it
        self.run_until(0.4)
        self.run_jobs()
        self.run_until(0.5)
        self.assertEqual((wire.data, self.ended), (b"onemadetwo", [(play, True)]))

    def test_a_socket_that_is_still_full_when_a_blocking_step_returns_keeps_the_order(self):
        wire = self.wire()
        wire.room = 1
        play = self.play([(0.1, b"one"), (0.1, Step(lambda: b"made", True)), (0.1, b"two")], wire)
        self.run_until(0.2)
        self.run_jobs()
        self.assertEqual(wire.data, b"o")
        wire.room = None
        self.player.writable(play)
        self.run_until(0.5)
        self.assertEqual((wire.data, self.ended), (b"onemadetwo", [(play, True)]))

    def test_a_client_that_leaves_while_a_blocking_step_runs_gets_nothing_more(self):
        play = self.play([(0.1, Step(lambda: b"made", True)), (0.2, b"two")])
        self.run_until(0.15)
        self.player.gone(play)
        self.run_jobs()
        self.run_until(0.5)
        self.assertEqual((play.wire.data, self.ended), (b"", [(play, False)]))

    def test_an_exception_in_the_steps_ends_that_play_alone_and_is_reported(self):
        def steps():
            yield 0.1, b"one"
            yield 0.2, b"two"
            raise RuntimeError("a fault of the test's")
        bad = self.play(steps(), self.wire(1))
        good = self.play([(0.1 * n, b"x") for n in range(1, 10)], self.wire(2))
        self.run_until(1.0)
        self.assertEqual((self.errors, self.ended), (1, [(bad, False), (good, True)]))
        self.assertEqual((good.wire.data, self.gone), (b"x" * 9, []))

    def test_an_exception_in_a_step_does_as_well(self):
        def run():
            raise RuntimeError("a fault of the test's")
        for blocking in (False, True):
            play = self.play([(0.1, b"one"), (0.2, Step(run, blocking))], self.wire(blocking))
            self.run_until(self.clock.now - START_S + 0.5)
            self.run_jobs()
            self.assertEqual((self.errors, self.ended[-1]), (1 + blocking, (play, False)))

    def test_an_exception_in_the_first_step_is_caught_in_start(self):
        def steps():
            raise RuntimeError("a fault of the test's")
            yield
        play = self.play(steps(), head=b"HEAD")
        self.assertEqual((self.errors, self.ended), (1, [(play, False)]))


class RacingSteps(PushedSteps):
    """Lets "the worker" act exactly between the look at the queue and the look at `closed`."""

    act = None

    @property
    def closed(self):
        act, self.act = self.act, None
        if act is not None:
            act()
        return self._closed

    @closed.setter
    def closed(self, value):
        self._closed = value


class PushTest(PlayerTest):

    def push_play(self, head=b"HEAD", grace_s=10.0, heartbeat_s=0.0, cls=PushedSteps, wire=None, start=True):
        steps = cls(head, grace_s, heartbeat_s, HEARTBEAT)
        play = Play(wire or self.wire(), START_S, steps, on_gone=lambda: self.gone.append(play),
                    on_end=lambda play, whole: self.ended.append((play, whole)),
                    heartbeat_s=heartbeat_s, heartbeat=HEARTBEAT)
        play.push = steps
        if start:
            self.player.start(play)
        return play

    def push(self, play, due_s, frame):
        self.player.push(play, due_s, frame)
        self.run_jobs()

    def test_nothing_goes_out_before_the_first_frame_or_the_grace(self):
        play = self.push_play(grace_s=2.0)
        self.run_until(1.9)
        self.assertEqual(play.wire.data, b"")
        self.run_until(2.1)
        self.assertEqual(play.wire.data, b"HEAD")

    def test_the_head_goes_out_with_the_first_frame(self):
        play = self.push_play()
        self.run_until(0.5)
        self.push(play, None, b"one")
        self.assertEqual(play.wire.sends, [(0.5, b"HEADone")])

    def test_frames_keep_their_order_and_their_due_times(self):
        play = self.push_play()
        self.push(play, 0.3, b"one")
        self.push(play, 0.4, b"two")
        self.push(play, None, b"three")     # now: not before those in front of it
        self.player.close_push(play)
        self.run_jobs()
        self.run_until(1.0)
        self.assertEqual(play.wire.data, b"HEADonetwothree")
        self.assertEqual([round(at, 1) for at, data in play.wire.sends if b"o" in data], [0.3, 0.4])
        self.assertEqual(self.ended, [(play, True)])

    def test_heartbeats_begin_with_the_head_and_come_only_while_idle(self):
        play = self.push_play(grace_s=1.5, heartbeat_s=1.0)
        self.run_until(4.0)
        self.push(play, None, b"one")
        self.run_until(4.8)
        self.push(play, None, b"two")
        self.run_until(6.0)
        self.assertEqual([(round(at, 1), data) for at, data in play.wire.sends], [
            (1.5, b"HEAD"), (2.5, HEARTBEAT), (3.5, HEARTBEAT), (4.0, b"one"), (4.8, b"two"), (5.8, HEARTBEAT)])

    def test_a_failure_before_the_head_went_out_is_played_without_it(self):
        play = self.push_play()
        self.run_until(0.5)
        play.push.failure = Step(lambda: b"HTTP/1.1 429" if play.push.head is not None else b"event")
        self.player.close_push(play)
        self.run_jobs()
        self.assertEqual((play.wire.data, self.ended), (b"HTTP/1.1 429", [(play, True)]))

    def test_a_failure_after_it_follows_the_frames_before_it(self):
        play = self.push_play()
        self.player.push(play, 0.2, b"one")
        play.push.failure = Step(lambda: b"HTTP/1.1 429" if play.push.head is not None else b"event")
        self.player.close_push(play)
        self.run_jobs()
        self.run_until(0.5)
        self.assertEqual((play.wire.data, self.ended), (b"HEADoneevent", [(play, True)]))

    def test_a_failure_after_the_grace_is_an_event(self):
        play = self.push_play(grace_s=0.1)
        self.run_until(0.5)
        play.push.failure = Step(lambda: b"HTTP/1.1 429" if play.push.head is not None else b"event")
        self.player.close_push(play)
        self.run_jobs()
        self.assertEqual(play.wire.data, b"HEADevent")

    def test_a_client_that_leaves_gets_nothing_of_what_is_pushed_afterwards(self):
        play = self.push_play()
        self.player.gone(play)
        self.push(play, None, b"one")
        self.player.close_push(play)
        self.run_jobs()
        self.assertEqual((play.wire.data, self.gone, self.ended), (b"", [play], [(play, False)]))

    def test_a_frame_pushed_just_before_the_play_waits_is_not_forgotten(self):
        play = self.push_play(cls=RacingSteps, start=False)
        play.push.act = lambda: self.player.push(play, None, b"one")
        self.player.start(play)
        self.run_jobs()
        self.run_until(0.1)
        self.assertEqual(play.wire.data, b"HEADone")

    def test_a_close_just_before_the_play_waits_is_not_forgotten(self):
        play = self.push_play(cls=RacingSteps, start=False)
        play.push.act = lambda: (self.player.push(play, None, b"one"), self.player.close_push(play))
        self.player.start(play)
        self.run_jobs()
        self.run_until(0.1)
        self.assertEqual((play.wire.data, self.ended), (b"HEADone", [(play, True)]))

    def test_frames_pushed_while_the_socket_is_full_go_out_when_it_is_not(self):
        wire = self.wire()
        play = self.push_play(wire=wire)
        wire.room = 6
        self.push(play, None, b"abcdef")        # cut; all that was pushed is taken, the play waits
        self.push(play, None, b"ghi")
        wire.room = None
        self.player.writable(play)
        self.run_until(0.1)
        self.assertEqual(wire.data, b"HEADabcdefghi")

    def test_a_close_while_the_socket_is_full_ends_the_play_when_it_is_not(self):
        wire = self.wire()
        play = self.push_play(wire=wire)
        wire.room = 6
        self.push(play, None, b"abcdef")
        self.player.close_push(play)
        self.run_jobs()
        self.assertEqual(self.ended, [])
        wire.room = None
        self.player.writable(play)
        self.run_until(0.1)
        self.assertEqual((wire.data, self.ended), (b"HEADabcdef", [(play, True)]))

    def test_a_plain_answer_is_one_write_when_it_comes(self):
        play = self.push_play(head=None)
        self.run_until(3.0)
        self.push(play, None, Step(lambda: b"ANSWER"))
        self.player.close_push(play)
        self.run_jobs()
        self.run_until(3.1)
        self.assertEqual((play.wire.sends, self.ended), ([(3.0, b"ANSWER")], [(play, True)]))


class PlainAssembler(Assembler):
    """The smallest one: its frames are the texts."""

    keeps_failures = True

    def __init__(self):
        self.texts = []

    def start(self):
        return b"<"

    def feed(self, delta):
        if isinstance(delta, Failure):
            self.failed = delta.error
        if isinstance(delta, Usage):
            self.usage = delta
        if isinstance(delta, TextDelta):
            self.texts.append(delta.text)
            return delta.text.encode()
        return b""

    def finish(self):
        return b"."

    def end(self):
        return b">"

    def fail(self, error):
        return b"!%d" % error.status

    def result(self):
        return "".join(self.texts).encode()


class ScriptBackend(Backend):

    def __init__(self, *deltas, blocking=False):
        self.deltas = deltas
        self.blocking = blocking

    def generate(self, request, cancel):
        for step in self.deltas:
            if callable(step):
                step(cancel)
            elif isinstance(step, Exception):
                raise step
            else:
                yield step


ONE_TWO = ((0.1, TextDelta("one")), (0.2, TextDelta("two")), (0.2, Finish("stop")), (0.2, Usage(1, 2)))


class CompletionTest(PlayerTest):
    """Completions on the player: what is kept, and what a fault becomes."""

    def setUp(self):
        PlayerTest.setUp(self)
        self.metrics = Metrics()
        self.kept = []

    def completion(self, *deltas, keep=None, keep_blocking=False):
        return Completion(GenerationRequest("m", History(1, b"", "", list)), ScriptBackend(*deltas),
                          PlainAssembler(), self.metrics, self.on_error,
                          keep=keep or (lambda frames: self.kept.append(True)), keep_blocking=keep_blocking)

    def stream(self, completion):
        play = Play(self.wire(), START_S, completion.iter_stream(completion.planned(), False),
                    on_gone=lambda: self.abandon(completion),
                    on_end=lambda play, whole: self.ended.append((play, whole)))
        self.player.start(play)
        return play

    def abandon(self, completion):
        """As the handler does it."""
        if completion.abandon():
            self.jobs.append(completion.cancel.set)

    def test_the_answer_is_kept_before_its_terminal_frame_goes_out(self):
        seen = []
        play = self.stream(self.completion(*ONE_TWO, keep=lambda frames: seen.append(b">" in play.wire.data)))
        self.run_until(0.5)
        self.assertEqual((seen, play.wire.data), ([False], b"<onetwo.>"))

    def test_a_client_gone_between_the_last_delta_and_the_store_leaves_nothing_kept(self):
        for blocking in (False, True):
            with self.subTest(keep_blocking=blocking):
                play = self.stream(self.completion(*(ONE_TWO[:2] + ((0.5, Finish("stop")), (0.5, Usage(1, 2)))),
                                                   keep_blocking=blocking))
                self.run_until(self.clock.now - START_S + 0.3)
                self.player.gone(play)
                self.run_until(self.clock.now - START_S + 0.5)
                self.run_jobs()
                self.assertEqual((self.kept, self.metrics.get("completions")), ([], 0))
            self.clock.now = START_S

    def test_a_client_gone_while_the_store_is_queued_leaves_nothing_kept(self):
        for callbacks in (False, True):
            with self.subTest(callbacks=callbacks):
                completion = self.completion(*ONE_TWO, keep_blocking=True)
                if callbacks:
                    completion.cancel.on_cancel(lambda: None)
                play = self.stream(completion)
                self.run_until(0.3)
                self.assertEqual(len(self.jobs), 1)     # the store's turn, behind other jobs
                self.player.gone(play)
                self.run_jobs()
                self.assertEqual(self.kept, [])
            self.clock.now = START_S

    def test_a_store_that_fails_fails_the_answer(self):
        def keep(frames):
            raise ApiError(500, "full", type="server_error")
        for blocking in (False, True):
            play = self.stream(self.completion(*ONE_TWO, keep=keep, keep_blocking=blocking))
            self.run_until(0.5)
            self.run_jobs()
            self.assertEqual(play.wire.data, b"<onetwo.!500")
            self.clock.now = START_S
        self.assertEqual(self.metrics.get("completions"), 0)

    def test_an_unexpected_fault_of_the_backend_is_reported_once_and_ends_the_stream_with_500(self):
        play = self.stream(self.completion(ONE_TWO[0], RuntimeError("a fault of the test's")))
        self.run_until(0.5)
        self.assertEqual((play.wire.data, self.errors, self.ended), (b"<one!500", 1, [(play, True)]))
        self.assertEqual((self.kept, self.metrics.get("failures"), self.metrics.get("completions")), ([True], 1, 0))

    def test_a_failure_delta_ends_the_stream_with_its_error(self):
        play = self.stream(self.completion(ONE_TWO[0], (0.3, Failure(ApiError(429, "slow down")))))
        self.run_until(0.5)
        self.assertEqual((play.wire.data, self.errors, self.kept), (b"<one!429", 0, [True]))

    def test_a_failure_that_nobody_waits_for_is_not_kept(self):
        completion = self.completion(ONE_TWO[0], (0.3, Failure(ApiError(429, "slow down"))), keep_blocking=True)
        play = self.stream(completion)
        self.run_until(0.5)
        self.player.gone(play)
        self.run_jobs()
        self.assertEqual((play.wire.data, self.kept), (b"<one", []))

    def test_a_plain_answer_is_due_with_its_last_delta(self):
        completion = self.completion(*ONE_TWO)
        due_s, step = completion.plain_step(completion.planned(), lambda status, body: b"%d %s" % (status, body))
        self.assertEqual((due_s, step.run()), (0.2, b"200 onetwo"))

    def test_a_plain_answer_of_a_client_that_left_is_not_kept(self):
        completion = self.completion(*ONE_TWO)
        _, step = completion.plain_step(completion.planned(), lambda status, body: b"")
        completion.abandon()
        step.run()
        self.assertEqual((self.kept, self.metrics.get("disconnects")), ([], 1))

    def test_a_pushed_completion_stops_generating_when_it_is_cancelled(self):
        steps = []
        completion = self.completion(ONE_TWO[0], lambda cancel: cancel.set(), ONE_TWO[1],
                                     lambda cancel: steps.append("went on"))
        pushed = completion.pushed_steps(True, b"HEAD", 10.0, 0.0, HEARTBEAT, False)
        play = Play(self.wire(), START_S, pushed)
        play.push = pushed
        self.player.start(play)
        completion.run_pushed(play, self.player, lambda status, body: b"", True)
        self.run_jobs()
        self.run_until(0.5)
        self.assertEqual((steps, self.kept), ([], []))


class PacerThreadTest(QuietTestCase):
    """The same with real threads, sockets and time: nothing is lost, nothing is early."""

    def setUp(self):
        QuietTestCase.setUp(self)
        self.errors = []
        self.waker = Waker()
        self.addCleanup(self.waker.close)
        self.pacer = PacerThread(make_poller, self.make_player, Clock(), self.waker, self.fail)
        self.addCleanup(self.assert_threads_end)
        self.addCleanup(self.pacer.stop)
        self.pacer.start()
        self.player = self.pacer.player

    def make_player(self, poller, wake):
        return Player(poller, Clock(), Lateness(), lambda job: threading.Thread(target=lambda: job()(None)).start(),
                      lambda: self.errors.append(True), wake, 60.0)

    def pair(self):
        near, far = socket.socketpair()
        far.settimeout(TIMEOUT_S)
        wire = Wire(near)
        self.addCleanup(near.close)
        self.addCleanup(far.close)
        return wire, far

    def begin(self, steps, push=None):
        wire, far = self.pair()
        over = threading.Event()
        outcome = []

        def ended(play, whole):
            self.pacer.unwatch(wire)
            outcome.append(whole)
            over.set()
        play = Play(wire, Clock.monotonic(), steps, on_end=ended)
        play.push = push
        self.pacer.post(lambda: (self.pacer.watch(wire), self.player.start(play)))
        return play, far, over, outcome

    def receive(self, far, count):
        data = b""
        while len(data) < count:
            more = far.recv(65536)
            self.assertTrue(more, "closed after %d bytes" % len(data))
            data += more
        return data

    def test_frames_are_not_early(self):
        start_s = Clock.monotonic()
        _, far, over, _ = self.begin(iter([(0.02, b"a"), (0.05, b"b")]))
        self.assertEqual(self.receive(far, 1), b"a")
        self.assertGreaterEqual(Clock.monotonic() - start_s, 0.02)
        self.assertEqual(self.receive(far, 1), b"b")
        self.assertGreaterEqual(Clock.monotonic() - start_s, 0.05)
        self.assertTrue(over.wait(TIMEOUT_S))

    def test_a_client_that_leaves_is_noticed_while_nothing_is_due(self):
        _, far, over, outcome = self.begin(iter([(3600.0, b"a")]))
        far.close()
        self.assertTrue(over.wait(TIMEOUT_S))
        self.assertEqual(outcome, [False])

    def test_a_client_that_leaves_behind_pipelined_bytes_is_noticed_while_nothing_is_due(self):
        _, far, over, outcome = self.begin(iter([(3600.0, b"a")]))
        far.sendall(b"GET")
        far.close()
        self.assertTrue(over.wait(2.0), "not noticed")
        self.assertEqual(outcome, [False])

    def test_more_than_the_socket_takes_arrives_whole_and_in_order(self):
        frames = [b"%06d\n" % n * 10 for n in range(60000)]
        _, far, over, outcome = self.begin(iter([(0.0, frame) for frame in frames]))
        whole = b"".join(frames)
        self.assertTrue(self.receive(far, len(whole)) == whole, "mixed up or changed")
        self.assertTrue(over.wait(TIMEOUT_S))
        self.assertEqual(outcome, [True])

    def test_pushes_from_many_threads_are_all_played_without_a_lost_wake_up(self):
        # One frame at a time, each only after the one before has arrived: a wake-up that is lost
        # leaves the play waiting for ever, as there are no heartbeats.
        rounds, count = 300, 4
        results = [None] * count

        def feed(number):
            play, far, over, _ = made[number]
            try:
                for n in range(rounds):
                    self.player.push(play, None, b"%04d" % n)
                    if far.recv(4) != b"%04d" % n:
                        raise AssertionError("out of order")
                self.player.close_push(play)
                results[number] = over.wait(TIMEOUT_S)
            except Exception as exc:
                results[number] = exc
        made = []
        for _ in range(count):
            pushed = PushedSteps(b"", 3600.0, 0.0, b"")
            made.append(self.begin(pushed, pushed))
        threads = [threading.Thread(target=feed, args=(number,)) for number in range(count)]
        for thread in threads:
            thread.start()
        for thread in threads:
            thread.join(3 * TIMEOUT_S)
        self.assertEqual(results, [True] * count)

    def test_posted_jobs_all_run_in_order(self):
        seen, done = [], threading.Event()

        def post(name):
            for n in range(2000):
                self.pacer.post(lambda n=n: seen.append((name, n)))
            self.pacer.post(done.set if name == 0 else int)
        threads = [threading.Thread(target=post, args=(name,)) for name in range(3)]
        for thread in threads:
            thread.start()
        for thread in threads:
            thread.join(TIMEOUT_S)
        self.assertTrue(done.wait(TIMEOUT_S))
        wait_until(lambda: len(seen) == 6000, "all jobs")
        for name in range(3):
            self.assertEqual([n for who, n in seen if who == name], list(range(2000)))

    def test_blocking_steps_never_run_on_the_pacers_thread(self):
        names = []

        def run():
            names.append(threading.current_thread().name)
            return b"made"
        _, far, over, _ = self.begin(iter([(0.0, b"one"), (0.0, Step(run, True)), (0.01, b"two")]))
        self.assertEqual(self.receive(far, 10), b"onemadetwo")
        self.assertTrue(over.wait(TIMEOUT_S))
        self.assertNotIn("pacer", names)
        self.assertEqual(len(names), 1)

    def test_stop_is_quick_with_plays_that_are_not_over(self):
        self.begin(iter([(3600.0, b"a")]))
        self.pacer.stop()
        self.assert_threads_end()


class WakerTest(QuietTestCase):

    def test_a_job_added_before_the_poll_is_not_slept_over(self):
        waker, poller = Waker(), make_poller()
        self.addCleanup(waker.close)
        self.addCleanup(poller.close)
        poller.watch(waker, POLL_READ)
        start_s = Clock.monotonic()
        waker.poll_awake(poller, TIMEOUT_S, [1])
        self.assertLess(Clock.monotonic() - start_s, TIMEOUT_S)

    def test_waking_ends_the_poll_and_is_no_event(self):
        waker, poller = Waker(), make_poller()
        self.addCleanup(waker.close)
        self.addCleanup(poller.close)
        poller.watch(waker, POLL_READ)
        inbox = deque()
        found = []

        def sleeper():
            while not inbox:
                found.extend(waker.poll_awake(poller, TIMEOUT_S, inbox))
        thread = threading.Thread(target=sleeper)
        start_s = Clock.monotonic()
        thread.start()
        inbox.append(1)
        waker.wake()
        thread.join(TIMEOUT_S)
        self.assertLess(Clock.monotonic() - start_s, TIMEOUT_S)
        self.assertEqual(found, [])
