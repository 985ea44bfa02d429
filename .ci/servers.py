"""A server process on a free port, for the scripts that drive clients."""

import os
import signal
import subprocess
import tempfile
import time

WAIT_S = 20.0  # for anything that should come at once


class Server:
    """A server process on a port of its own choice."""

    def __init__(self, options, *flags):
        self.log = tempfile.TemporaryFile()
        self.process = subprocess.Popen(
            [options.python, options.server, "--port", "0"] + list(flags),
            stdin=subprocess.DEVNULL,
            stdout=subprocess.DEVNULL,
            stderr=self.log,
        )
        self.url = self._find_url()

    def text(self):
        """All that it has logged so far."""
        return os.pread(self.log.fileno(), 1 << 20, 0).decode("utf-8", "replace")

    def _find_url(self):
        deadline = time.monotonic() + WAIT_S
        while time.monotonic() < deadline:
            for word in self.text().split():
                if word.startswith(("http://127.0.0.1:", "https://127.0.0.1:")):
                    return word
            if self.process.poll() is not None:
                break
            time.sleep(0.01)
        self.process.kill()
        self.process.wait(WAIT_S)
        raise AssertionError("the server does not start: " + self.text())

    def stop(self):
        """SIGTERM; what is wrong with its end, as a list of texts."""
        if self.process.poll() is None:
            self.process.send_signal(signal.SIGTERM)
        try:
            status = self.process.wait(WAIT_S)
        except subprocess.TimeoutExpired:
            self.process.kill()
            return ["still there %g s after SIGTERM" % WAIT_S]
        log = self.text()
        wrong = [] if status == 0 else ["exit status %d" % status]
        if "Traceback" in log or "unexpected error" in log:
            wrong.append("it logged an exception:\n" + log[-3000:])
        return wrong
