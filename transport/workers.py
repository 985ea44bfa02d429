"""Threads for what may wait: blocking backends and stores, files, big bodies.

Quick jobs share one thread, because threads that fight for the GIL cost more than they bring;
blocking jobs get a thread each, up to a bound, and wait in order beyond it.
"""
import threading
import time
from collections import deque

WORKER_IDLE_S = 10.0                # a blocking worker without a job ends after this


QUICK_AT_ONCE = 32                  # jobs whose writes are made durable together


class Workers:
    """max_blocking: how many blocking jobs run at once. on_error(): called inside the except
    block of a job that failed; the worker lives on. written(): a mark of what the job that just ran wrote.
    flush(mark): makes what quick jobs wrote durable, once for as many as there are; returns None, or the
    error that befell what the mark stands for."""

    def __init__(self, on_error, max_blocking=256, flush=lambda mark: None, written=lambda: None):
        self._on_error = on_error
        self._flush = flush
        self._written = written
        self._max_blocking = max_blocking
        self._lock = threading.Lock()
        self._changed = threading.Condition(self._lock)
        self._quick = deque()
        self._blocking = deque()
        self._background = deque()
        self._background_running = 0
        self._quick_thread = None
        self._blocking_threads = 0
        self._blocking_idle = 0
        self._stopped = False

    def submit(self, job):
        """Run a short job on the quick thread. What it returns, if anything, is called when its writes are
        durable, with None or the error that kept them from being it."""
        with self._lock:
            self._quick.append(job)
            if self._quick_thread is None:
                self._quick_thread = threading.Thread(target=self._run_quick, name="worker", daemon=True)
                self._quick_thread.start()
            self._changed.notify_all()

    def submit_blocking(self, job, background=False):
        """Run a job that may wait for long. background: nobody waits for it, so others go first, and a part
        of the threads is never given to such jobs."""
        with self._lock:
            (self._background if background else self._blocking).append(job)
            if len(self._blocking) + len(self._background) > self._blocking_idle \
                    and self._blocking_threads < self._max_blocking:
                self._blocking_threads += 1
                threading.Thread(target=self._run_blocking, name="worker-blocking",
                                 daemon=True).start()
            self._changed.notify_all()

    def waiting(self):
        """Jobs that wait for a thread."""
        return len(self._quick) + len(self._blocking) + len(self._background)

    def stop(self):
        """Finish the quick jobs, of which a cancelled generation's word may be one; waiting blocking
        jobs are dropped. Waits a little for the quick thread."""
        with self._lock:
            self._stopped = True
            self._blocking.clear()
            self._background.clear()
            self._changed.notify_all()
            thread = self._quick_thread
        if thread is not None:
            thread.join(2.0)

    def _run_quick(self):
        while True:
            with self._lock:
                while not self._quick:
                    if self._stopped:
                        return
                    self._changed.wait()
                jobs = [self._quick.popleft() for _ in range(min(QUICK_AT_ONCE, len(self._quick)))]
            later = [(self._run(job), self._written()) for job in jobs]
            for after, mark in later:
                error = self._flush(mark)
                if after is not None:
                    self._run(lambda: after(error))
            jobs = job = later = after = None   # or they would hold their requests until the next ones come

    def _run_blocking(self):
        while True:
            with self._lock:
                end_s = time.monotonic() + WORKER_IDLE_S
                self._blocking_idle += 1
                while not self._blocking and not self._has_background():
                    left = end_s - time.monotonic()
                    if self._stopped or left <= 0:
                        self._blocking_idle -= 1
                        self._blocking_threads -= 1
                        return
                    self._changed.wait(left)
                self._blocking_idle -= 1
                background = not self._blocking
                job = (self._background if background else self._blocking).popleft()
                self._background_running += background
            self._run(job)
            job = None
            if background:
                with self._lock:
                    self._background_running -= 1
                    self._changed.notify_all()

    def _has_background(self):
        return self._background and self._background_running < self._max_blocking * 3 // 4

    def _run(self, job):
        try:
            return job()
        except BaseException:           # SystemExit as well: it would end this thread and nothing else
            self._on_error()


class Breather:
    """Lets the GIL go now and then during long work on a worker.

    A thread that computes takes the GIL at every send of the pacer's and holds it for a switch
    interval; one that works in slices and sleeps between them leaves the pacer its time.
    """

    __slots__ = ("_until",)

    WORK_S = 0.0003
    REST_S = 0.0005

    def __init__(self):
        self._until = time.monotonic() + self.WORK_S

    def __call__(self):
        if time.monotonic() > self._until:
            time.sleep(self.REST_S)
            self._until = time.monotonic() + self.WORK_S
