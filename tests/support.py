"""What live tests share: a server per test on a free port, a raw client, a backend and a clock to drive.

    @every_form
    class ModelsTest(LiveServerTest):
        settings = {"model": ("a", "b")}

        def test_models_are_listed(self):
            self.assertEqual(self.request("GET", "/v1/models").status, 200)

runs twice: on the loop, and on a thread per connection. Whatever goes wrong out of sight (an exception in a thread, in a destructor, logged by
the server, a socket left open, a thread left running) fails the test in a clean-up.
"""
import gc
import json as json_module
import queue
import socket
import sys
import threading
import time
import traceback
import unittest
import warnings
from collections import namedtuple

from api_common import Clock
from backends.contract import Backend, Finish, TextDelta, Usage
from server import MockTurtleServer
from settings import Settings

TIMEOUT_S = 10.0                    # of every socket, join and wait: reaching it is a failure

FORMS = {
    "Loop": {"transport": "loop"},
    "Threads": {"transport": "threads"},
}


def every_form(cls):
    """Class decorator: a LiveServerTest class for each form of the transport.

    The decorated name is the loop's; NameThreads stands beside it in the module.
    """
    module = sys.modules[cls.__module__]
    made = {}
    for form, values in FORMS.items():
        name = cls.__name__ + ("" if form == "Loop" else form)
        made[form] = type(name, (cls,), {"form": form, "form_settings": values,
                                         "__module__": cls.__module__, "__qualname__": name,
                                         "__doc__": cls.__doc__})
        setattr(module, name, made[form])
    return made["Loop"]


def wait_until(condition, what="the condition", timeout_s=TIMEOUT_S):
    """Look at condition() until it is true; returns its value. AssertionError after the time."""
    end_s = time.monotonic() + timeout_s
    while True:
        value = condition()
        if value:
            return value
        if time.monotonic() > end_s:
            raise AssertionError("waited in vain for %s" % what)
        time.sleep(0.002)


# ---- clocks and backends ----------------------------------------------------------------------

class FakeClock(Clock):
    """Stands still until it is told to move."""

    def __init__(self, monotonic=1000.0, wall=1700000000.0):
        self.now = monotonic
        self.wall = wall

    def monotonic(self):
        return self.now

    def time(self):
        return self.wall

    def advance(self, seconds):
        self.now += seconds
        self.wall += seconds


class ShiftedClock(Clock):
    """Runs like the real one, from wherever it was moved to: for time-outs of minutes."""

    def __init__(self):
        self.shift_s = 0.0

    def monotonic(self):
        return time.monotonic() + self.shift_s

    def time(self):
        return time.time() + self.shift_s

    def advance(self, seconds):
        self.shift_s += seconds


class Generation:
    """One request in a GatedBackend, as the test sees it."""

    def __init__(self, request, cancel):
        self.request = request
        self.cancel = cancel
        self.thread_name = ""       # of the thread that generates
        self._script = queue.Queue()
        self.cancelled = threading.Event()      # on_cancel's callback has run
        self.over = threading.Event()           # the generator has ended, in whatever way

    def say(self, text, due_s=None):
        self._script.put((due_s, TextDelta(text)))

    def give(self, delta, due_s=None):
        self._script.put((due_s, delta))

    def fail(self, exception):
        """Raise it in the generator."""
        self._script.put(exception)

    def finish(self, reason="stop", usage=Usage(3, 2)):
        self._script.put((None, Finish(reason)))
        self._script.put((None, usage))
        self._script.put(None)

    def _cancelled(self):
        self.cancelled.set()
        self._script.put(None)

    def _deltas(self):
        self.thread_name = threading.current_thread().name
        try:
            self.cancel.on_cancel(self._cancelled)
            while True:
                step = self._script.get(timeout=3 * TIMEOUT_S)
                if step is None:
                    return
                if isinstance(step, BaseException):
                    raise step
                yield step
        finally:
            self.over.set()


class GatedBackend(Backend):
    """A blocking backend: each request waits for the test's word. next() is the oldest request's."""

    blocking = True

    def __init__(self):
        self._generations = queue.Queue()
        self._all = []

    def generate(self, request, cancel):
        generation = Generation(request, cancel)
        self._all.append(generation)
        self._generations.put(generation)
        return generation._deltas()

    def next(self, timeout_s=TIMEOUT_S):
        return self._generations.get(timeout=timeout_s)

    def close(self):
        for generation in self._all:        # a test that failed half-way leaves no thread behind
            generation._script.put(None)


class DeltaBackend(Backend):
    """Answers every request with the same [(due_s, delta)]; an exception among them is raised."""

    def __init__(self, deltas, blocking=False):
        self.deltas = deltas
        self.blocking = blocking
        self.requests = []

    def generate(self, request, cancel):
        self.requests.append(request)
        return self._deltas()

    def _deltas(self):
        for step in self.deltas:
            if isinstance(step, BaseException):
                raise step
            yield step


# ---- a client that sees the wire --------------------------------------------------------------

class Event(namedtuple("Event", "name data")):
    """One SSE frame. name: its `event:` field, None without one, ":" for a comment. data: its JSON
    decoded; text that is no JSON ("[DONE]", a comment's) as it is."""
    __slots__ = ()


class Answer:
    """One answer as it came over the wire.

    status int; reason str; headers {lower-case name: value, repeated ones joined with ", "};
    header_lines [(name as sent, value)]; body bytes, unframed; chunks: list of bytes, or None when
    the body did not come in chunks; framing: "length", "chunked", "close" or "none".
    """

    def __init__(self, status, reason, header_lines):
        self.status = status
        self.reason = reason
        self.header_lines = header_lines
        self.headers = {}
        for name, value in header_lines:
            name = name.lower()
            self.headers[name] = self.headers[name] + ", " + value if name in self.headers else value
        self.body = b""
        self.chunks = None
        self.framing = "none"

    def json(self):
        return json_module.loads(self.body)

    @property
    def error(self):
        """The envelope's inner object."""
        return self.json()["error"]

    @property
    def text(self):
        return self.body.decode("utf-8")

    def events(self, comments=False):
        """The body as a list of Event."""
        return parse_events(self.body, comments)

    def __repr__(self):
        return "<Answer %d %r>" % (self.status, self.body[:300])


def parse_event(frame):
    """The text of one SSE frame (bytes, without or with its blank line) as Event."""
    name, data, comment = None, [], None
    for line in frame.decode("utf-8").split("\n"):
        if line.startswith(":"):
            comment = line[1:].strip()
        elif line:
            field, _, value = line.partition(":")
            value = value[1:] if value.startswith(" ") else value
            if field == "event":
                name = value
            elif field == "data":
                data.append(value)
            else:
                raise AssertionError("unexpected SSE field in %r" % frame)
    if not data:
        return Event(":", comment)
    text = "\n".join(data)
    try:
        return Event(name, json_module.loads(text))
    except ValueError:
        return Event(name, text)


def parse_events(body, comments=False):
    """A whole event stream as a list of Event; without the heartbeats unless asked for."""
    frames = body.split(b"\n\n")
    if frames.pop():
        raise AssertionError("the stream ends inside a frame: %r" % body[-200:])
    events = [parse_event(frame) for frame in frames]
    return events if comments else [event for event in events if event.name != ":"]


def request_bytes(method, path, json=None, headers=None, body=None, version="1.1"):
    """A request as bytes. json: an object for the body; body: bytes. headers: {name: value}; a
    value of None leaves out what would be sent by itself (Host, Content-Type, Content-Length)."""
    lines = {}
    if version == "1.1":
        lines["Host"] = "localhost"
    if json is not None:
        body = json_module.dumps(json).encode("utf-8")
        lines["Content-Type"] = "application/json"
    if body is not None:
        lines["Content-Length"] = str(len(body))
    for name, value in (headers or {}).items():
        lines = {known: old for known, old in lines.items() if known.lower() != name.lower()}
        if value is not None:
            lines[name] = value
    head = "%s %s HTTP/%s\r\n%s\r\n" % (method, path, version, "".join(
        "%s: %s\r\n" % line for line in lines.items()))
    return head.encode("latin-1") + (body or b"")


class ConnectionEnded(AssertionError):
    """The server closed (or reset) where more was expected."""


class RawClient:
    """One connection, byte by byte if need be. All reads end after TIMEOUT_S with socket.timeout."""

    def __init__(self, address, timeout_s=TIMEOUT_S):
        self.sock = socket.create_connection(address[:2], timeout_s)
        self.sock.setsockopt(socket.IPPROTO_TCP, socket.TCP_NODELAY, 1)
        self._buffer = b""          # bytes read and not looked at
        self._frames = b""          # unframed body bytes of the stream that is being read
        self._answer = None         # whose body is being read frame by frame

    def send(self, data):
        self.sock.sendall(data)

    def send_request(self, method, path, json=None, headers=None, body=None, version="1.1"):
        self.send(request_bytes(method, path, json, headers, body, version))

    def request(self, method, path, json=None, headers=None, body=None, version="1.1"):
        self.send_request(method, path, json, headers, body, version)
        return self.read_answer(head=method == "HEAD")

    def close(self):
        self.sock.close()

    def reset(self):
        """Leave with a RST instead of a FIN."""
        self.sock.setsockopt(socket.SOL_SOCKET, socket.SO_LINGER, b"\1\0\0\0\0\0\0\0")
        self.sock.close()

    # ---- reading ------------------------------------------------------------------------------

    def read_head(self):
        """Status line and headers as an Answer without a body; a 1xx answer is one, too."""
        head = self._until(b"\r\n\r\n")[:-4].decode("latin-1")
        lines = head.split("\r\n")
        version, status, reason = lines[0].split(" ", 2)
        if version != "HTTP/1.1" or "\n" in head.replace("\r\n", ""):
            raise AssertionError("malformed answer head: %r" % head)
        pairs = []
        for line in lines[1:]:
            name, colon, value = line.partition(": ")
            if not colon or name != name.strip():
                raise AssertionError("malformed header line: %r" % line)
            pairs.append((name, value))
        return Answer(int(status), reason, pairs)

    def read_answer(self, head=False):
        """The next whole answer. head: it answers HEAD, so it has no body."""
        answer = self.read_head()
        if head or answer.status in (204, 304) or answer.status < 200:
            return answer
        coding = answer.headers.get("transfer-encoding")
        length = answer.headers.get("content-length")
        if coding is not None:
            if coding != "chunked" or length is not None:
                raise AssertionError("malformed framing: %r" % answer.header_lines)
            answer.framing, answer.chunks = "chunked", []
            while True:
                chunk = self._read_chunk()
                if not chunk:
                    break
                answer.chunks.append(chunk)
            answer.body = b"".join(answer.chunks)
        elif length is not None:
            answer.framing = "length"
            answer.body = self._take(int(length))
        else:
            answer.framing = "close"
            answer.body = self.read_to_end()
        return answer

    def read_frame(self, answer):
        """The next SSE frame of a streamed answer whose head was read, as Event; None at the end."""
        if self._answer is not answer:
            self._answer, self._frames = answer, b""
        while b"\n\n" not in self._frames:
            if answer.headers.get("transfer-encoding") == "chunked":
                data = self._read_chunk()
            else:
                data = self._some()
            if not data:
                if self._frames:
                    raise AssertionError("the stream ends inside a frame: %r" % self._frames)
                return None
            self._frames += data
        frame, _, self._frames = self._frames.partition(b"\n\n")
        return parse_event(frame)

    def read_rest(self, answer):
        """The frames up to the end of the stream, heartbeats left out."""
        events = []
        while True:
            event = self.read_frame(answer)
            if event is None:
                return events
            if event.name != ":":
                events.append(event)

    def read_to_end(self):
        """All bytes up to the server's close."""
        data, self._buffer = self._buffer, b""
        while True:
            more = self._receive()
            if not more:
                return data
            data += more

    def has_ended(self):
        """Wait for the server's close: True when it comes without a byte before it."""
        return not self._buffer and not self._receive()

    def is_quiet(self, seconds=0.05):
        """Whether nothing, not even a close, comes within the time."""
        if self._buffer:
            return False
        self.sock.settimeout(seconds)
        try:
            self._buffer = self.sock.recv(65536)
            return False
        except socket.timeout:
            return True
        except OSError:
            return False
        finally:
            self.sock.settimeout(TIMEOUT_S)

    def _receive(self):
        try:
            return self.sock.recv(65536)
        except ConnectionError:
            return b""

    def _some(self):
        data, self._buffer = self._buffer, b""
        return data or self._receive()

    def _until(self, mark):
        while mark not in self._buffer:
            data = self._receive()
            if not data:
                raise ConnectionEnded("the server closed; before that: %r" % self._buffer[:300])
            self._buffer += data
        at = self._buffer.index(mark) + len(mark)
        found, self._buffer = self._buffer[:at], self._buffer[at:]
        return found

    def _take(self, count):
        while len(self._buffer) < count:
            data = self._receive()
            if not data:
                raise ConnectionEnded("the server closed %d bytes early" % (count - len(self._buffer)))
            self._buffer += data
        found, self._buffer = self._buffer[:count], self._buffer[count:]
        return found

    def _read_chunk(self):
        """One chunk's data; b"" for the last one, whose end is read as well."""
        size = int(self._until(b"\r\n")[:-2], 16)
        data = self._take(size)
        if self._take(2) != b"\r\n":
            raise AssertionError("a chunk does not end in CR LF")
        return data


# ---- the test case ----------------------------------------------------------------------------

class RecordingServer(MockTurtleServer):
    """Keeps its log lines, and the tracebacks of unexpected errors, for the test to look at."""

    def __init__(self, *args, **values):
        self.log_lines = []
        self.errors = []
        MockTurtleServer.__init__(self, *args, **values)

    def log(self, level, message):
        self.log_lines.append(message)

    def log_exception(self):
        self.metrics.add("exceptions")
        self.errors.append(traceback.format_exc())


class QuietTestCase(unittest.TestCase):
    """Fails, in a clean-up, for exceptions in threads and destructors and for unclosed sockets."""

    @classmethod
    def setUpClass(cls):
        if not gc.get_freeze_count():
            gc.freeze()                 # all modules and tests are loaded: full collections took 150 ms each

    def setUp(self):
        self._hidden = []
        self._threads_before = set(threading.enumerate())
        self._old_hooks = sys.unraisablehook, threading.excepthook
        caught = warnings.catch_warnings()
        caught.__enter__()
        self.addCleanup(self._check_quiet, caught)      # the last of all clean-ups
        warnings.simplefilter("error", ResourceWarning)
        sys.unraisablehook = lambda args: self._hidden.append(
            "%s in %r" % (args.exc_value, args.object))
        threading.excepthook = lambda args: self._hidden.append("".join(traceback.format_exception(
            args.exc_type, args.exc_value, args.exc_traceback)))

    def _check_quiet(self, caught):
        gc.collect(1)
        sys.unraisablehook, threading.excepthook = self._old_hooks
        caught.__exit__(None, None, None)
        if self._hidden:
            self.fail("hidden errors:\n" + "\n".join(self._hidden))

    def assert_threads_end(self):
        """All threads that the test has started end in time."""
        def left():
            return [thread for thread in threading.enumerate()
                    if thread not in self._threads_before and thread.is_alive()]
        end_s = time.monotonic() + TIMEOUT_S
        while left():
            if time.monotonic() > end_s:
                self.fail("threads still run: %s" % left())
            time.sleep(0.002)


class LiveServerTest(QuietTestCase):
    """A test with a server of its own, started with the first request or by start_server().

    settings: Settings by name, on top of the defaults below. backend, store: override
    make_backend() or make_store(), or give them to start_server().
    """

    form = "Loop"
    form_settings = FORMS["Loop"]
    settings = {}
    _defaults = {"host": ("127.0.0.1",), "port": 0, "ttft_ms": 0, "itl_ms": 0, "output_tokens": 8,
                 "heartbeat_s": 0, "drain_s": 5, "log_level": "warning"}

    def setUp(self):
        QuietTestCase.setUp(self)
        self._server = None
        self._clients = []

    def make_backend(self):
        """The server's backend; None: the simulated one."""
        return None

    def make_store(self):
        """The server's store; None: one in memory, by the settings."""
        return None

    def start_server(self, backend=None, store=None, clock=None, **settings):
        """Start the test's server, with settings on top of the class's. Once a test."""
        if store.__class__ is str:          # a setting, not an object
            settings["store"], store = store, None
        values = dict(self._defaults, **self.form_settings)
        values.update(self.settings)
        values.update(settings)
        self._server = server = RecordingServer(
            Settings(**values), backend=backend or self.make_backend(), store=store or self.make_store(),
            clock=clock)
        self._serving = threading.Thread(target=server.serve_forever, kwargs={"poll_interval": 0.01},
                                         name="serve")
        self.addCleanup(self._check_server)
        self.addCleanup(self._stop_server)
        self._serving.start()
        return server

    @property
    def server(self):
        return self._server if self._server is not None else self.start_server()

    @property
    def address(self):
        return self.server.server_address[:2]

    def take_errors(self):
        """The tracebacks that the server has logged so far; they no longer fail the test."""
        errors, self.server.errors = self.server.errors, []
        return errors

    def count(self, name):
        """A counter of the server's metrics."""
        return self.server.metrics.get(name)

    def wait_for_count(self, name, value):
        wait_until(lambda: self.count(name) >= value, "%s to reach %d" % (name, value))

    def connect(self):
        """A raw client; closed at the end of the test."""
        client = RawClient(self.address)
        self._clients.append(client)
        return client

    def request(self, method, path, json=None, headers=None, body=None):
        """One request on a connection of its own; its Answer."""
        client = self.connect()
        try:
            return client.request(method, path, json, headers, body)
        finally:
            client.close()

    def stream(self, path, json, headers=None, comments=False):
        """POST with "stream": true; its events, which must have come with status 200."""
        answer = self.request("POST", path, dict(json, stream=True), headers)
        self.assertEqual(answer.status, 200, answer.body)
        self.assertEqual(answer.headers["content-type"], "text/event-stream; charset=utf-8")
        return answer.events(comments)

    def _stop_server(self):
        for client in self._clients:
            client.close()
        self._server.shutdown()
        self._serving.join(TIMEOUT_S)
        self._server.server_close()
        self.assertFalse(self._serving.is_alive(), "serve_forever() has not returned")

    def _check_server(self):
        self.assert_threads_end()
        if self._server.errors:
            self.fail("the server logged errors:\n" + "\n".join(self._server.errors))


CHAT = {"model": "mock-model", "messages": [{"role": "user", "content": "Hello"}]}
RESPONSE = {"model": "mock-model", "input": "Hello"}


def chat_text(events):
    """The content of a chat stream's first choice, joined."""
    return "".join(event.data["choices"][0]["delta"].get("content") or ""
                   for event in events if event.data != "[DONE]" and event.data["choices"])
