"""The worker threads: order, growth, bounds, faults and their end."""
import threading
import time

from tests.support import TIMEOUT_S, QuietTestCase, wait_until
from transport.workers import Breather, Workers


class WorkersTest(QuietTestCase):

    def setUp(self):
        QuietTestCase.setUp(self)
        self.errors = []
        self.open_gates = []
        self.addCleanup(self.assert_threads_end)

    def workers(self, **values):
        workers = Workers(lambda: self.errors.append(True), **values)
        self.addCleanup(workers.stop)
        self.addCleanup(self.release)
        return workers

    def release(self):
        for gate in self.open_gates:
            gate.set()

    def gate(self):
        gate = threading.Event()
        self.open_gates.append(gate)
        return gate

    def names(self, prefix):
        return [thread.name for thread in threading.enumerate()
                if thread not in self._threads_before and thread.name.startswith(prefix)]

    def test_no_thread_runs_before_the_first_job(self):
        self.workers()
        self.assertEqual(self.names("worker"), [])

    def test_quick_jobs_run_in_order_on_one_thread(self):
        workers, seen, done = self.workers(), [], threading.Event()
        for number in range(500):
            workers.submit(lambda number=number: seen.append((number, threading.get_ident())))
        workers.submit(done.set)
        self.assertTrue(done.wait(TIMEOUT_S))
        self.assertEqual([number for number, _ in seen], list(range(500)))
        self.assertEqual(len({ident for _, ident in seen}), 1)

    def test_quick_jobs_from_many_threads_all_run(self):
        workers, seen, done = self.workers(), [], threading.Event()

        def submit():
            for _ in range(500):
                workers.submit(lambda: seen.append(1))
        threads = [threading.Thread(target=submit) for _ in range(4)]
        for thread in threads:
            thread.start()
        for thread in threads:
            thread.join(TIMEOUT_S)
        workers.submit(done.set)
        self.assertTrue(done.wait(TIMEOUT_S))
        self.assertEqual(len(seen), 2000)

    def test_blocking_jobs_run_at_the_same_time(self):
        workers = self.workers()
        barrier = threading.Barrier(20)
        passed = []

        def meet():
            barrier.wait(TIMEOUT_S)
            passed.append(True)
        for _ in range(20):
            workers.submit_blocking(meet)
        wait_until(lambda: len(passed) == 20, "all 20 to meet")

    def test_blocking_jobs_never_hold_up_quick_ones(self):
        workers, gate, done = self.workers(max_blocking=2), self.gate(), threading.Event()
        for _ in range(10):
            workers.submit_blocking(lambda: gate.wait(TIMEOUT_S))
        workers.submit(done.set)
        self.assertTrue(done.wait(TIMEOUT_S))

    def test_no_more_than_the_bound_run_at_once_and_the_others_wait_in_order(self):
        workers, gate, begun = self.workers(max_blocking=3), self.gate(), []

        def job(number):
            begun.append(number)
            gate.wait(TIMEOUT_S)
        for number in range(9):
            workers.submit_blocking(lambda number=number: job(number))
        wait_until(lambda: len(begun) == 3, "three jobs")
        self.assertEqual(len(self.names("worker-blocking")), 3)
        gate.set()
        wait_until(lambda: len(begun) == 9, "the others")
        self.assertEqual(sorted(begun), list(range(9)))
        self.assertEqual(sorted(begun[:3]), [0, 1, 2])

    def test_idle_threads_are_used_again(self):
        workers, idents = self.workers(), set()
        for _ in range(20):
            done = threading.Event()
            workers.submit_blocking(lambda: (idents.add(threading.get_ident()), done.set()))
            self.assertTrue(done.wait(TIMEOUT_S))
            wait_until(lambda: workers._blocking_idle, "the thread to be idle")
        self.assertEqual(len(idents), 1)

    def test_two_jobs_submitted_to_one_idle_thread_both_run(self):
        workers, gate, begun = self.workers(), self.gate(), []
        workers.submit_blocking(lambda: None)
        wait_until(lambda: workers._blocking_idle, "the thread to be idle")
        for number in range(2):
            workers.submit_blocking(lambda number=number: (begun.append(number), gate.wait(TIMEOUT_S)))
        wait_until(lambda: len(begun) == 2, "both jobs")

    def test_a_job_that_fails_is_reported_and_the_thread_lives_on(self):
        workers = self.workers()
        for submit in (workers.submit, workers.submit_blocking):
            done = threading.Event()
            submit(lambda: 1 // 0)
            submit(done.set)
            self.assertTrue(done.wait(TIMEOUT_S))
        wait_until(lambda: len(self.errors) == 2, "both reports")

    def test_stop_ends_the_threads_after_their_job_and_drops_what_waits(self):
        workers, gate, seen, began = self.workers(max_blocking=1), self.gate(), [], threading.Event()
        workers.submit_blocking(lambda: (began.set(), gate.wait(TIMEOUT_S), seen.append("first")))
        workers.submit_blocking(lambda: seen.append("second"))
        workers.submit(lambda: None)
        self.assertTrue(began.wait(TIMEOUT_S))
        workers.stop()
        gate.set()
        self.assert_threads_end()
        self.assertEqual(seen, ["first"])

    def test_stop_without_any_thread_is_fine(self):
        workers = self.workers()
        workers.stop()
        workers.stop()
        self.assert_threads_end()


class BreatherTest(QuietTestCase):

    def test_it_lets_others_run_during_long_work(self):
        breathe, rests = Breather(), 0
        end_s = time.monotonic() + 0.02
        while time.monotonic() < end_s:
            before = time.monotonic()
            breathe()
            rests += time.monotonic() - before >= Breather.REST_S
        self.assertGreater(rests, 0)


class BackgroundJobsTest(QuietTestCase):

    def test_background_jobs_leave_threads_for_those_who_wait(self):
        gate, begun, done = threading.Event(), [], threading.Event()
        workers = Workers(lambda: self.fail("a job failed"), max_blocking=4)
        self.addCleanup(workers.stop)
        self.addCleanup(gate.set)
        for number in range(6):
            workers.submit_blocking(lambda: (begun.append(1), gate.wait(TIMEOUT_S)), True)
        workers.submit_blocking(done.set)
        self.assertTrue(done.wait(TIMEOUT_S))
        wait_until(lambda: len(begun) == 3, "three of four threads")
        gate.set()
        wait_until(lambda: len(begun) == 6, "the others")
