"""A test author's tools: a server for one test or a class of them, told what to say and asked what came.

server.py makes MockTurtle and MockTurtleTestCase of what is here, as only it can make a server. Everything works from
the test's own thread, without a socket; nothing here runs where a request is answered. Nothing is imported from a test
framework: under unittest and pytest alike, what fails is an AssertionError whose message shows the journal.
"""
import os
import threading
import time

from api_common import shown
from faults import read_gates
from observe.verdict import find_verdict

TOOLS_WAIT_S = 10.0                 # the longest that a test waits for what it expects
TOOLS_KEY = "sk-mockturtle"         # in OPENAI_API_KEY, where the server takes any
JOURNAL_SHOWN = 20                  # requests in a failure's message, the last ones
_TOOLS_BODY_BYTES = 32 << 20        # kept of a request's body, and of an answer: all, within reason
_LEFT_WAIT_S = 5.0                  # what a client that has left is given to be noticed


class _ToolsNothing:
    """What stands for a field that a request has not."""

    def __repr__(self):
        return "nothing"


_TOOLS_NOTHING = _ToolsNothing()


# ---- the environment --------------------------------------------------------------------------

class EnvironmentPatches:
    """Environment variables that are others for a while, for several owners that may end in any order."""

    def __init__(self, environ):
        self._environ = environ
        self._lock = threading.Lock()
        self._patches = []              # [owner, {name: what it was before}], the latest last

    def push(self, owner, values):
        """values: {name: str}."""
        with self._lock:
            self._patches.append((owner, {name: self._environ.get(name) for name in values}))
            self._environ.update(values)

    def pop(self, owner):
        """As before the owner's push(); what others pushed later stays until they end."""
        with self._lock:
            at = next((at for at, patch in enumerate(self._patches) if patch[0] is owner), None)
            if at is None:
                return
            _, before = self._patches.pop(at)
            for name, value in before.items():
                later = next((patch[1] for patch in self._patches[at:] if name in patch[1]), None)
                if later is not None:
                    later[name] = value
                elif value is None:
                    self._environ.pop(name, None)
                else:
                    self._environ[name] = value


_TOOLS_ENVIRONMENT = EnvironmentPatches(os.environ)


# ---- what came --------------------------------------------------------------------------------

class HeaderView(dict):
    """{lower-case name: value}, asked for in any case."""

    def __getitem__(self, name):
        return dict.__getitem__(self, name.lower())

    def __contains__(self, name):
        return dict.__contains__(self, name.lower())

    def get(self, name, default=None):
        return dict.get(self, name.lower(), default)


class RecordedRequest:
    """One request of the journal, as it is now.

    id, method, path, status, streamed, rule (its name, or None), faults (texts of what befell it), error (the message
    of one that was answered), cut_off (a fault ended the connection), response_id. json: the body as a dict, {} for none.
    """

    def __init__(self, entry):
        self._entry = entry

    def __getattr__(self, name):
        if name in ("id", "method", "path", "body", "status", "streamed", "rule", "error", "cut_off", "response_id"):
            return getattr(self._entry, name)
        raise AttributeError("a request has no '%s'" % name)

    @property
    def json(self):
        return self._entry.request()

    @property
    def headers(self):
        """HeaderView; secrets are not masked."""
        return HeaderView(self._entry.headers)

    @property
    def model(self):
        """The model that answered, or that was asked for."""
        return self._entry.model or self.json.get("model")

    @property
    def messages(self):
        """The messages, or the input as a list of items; a prompt or input that is text is one message of the user."""
        for key in ("messages", "input", "prompt"):
            value = self.json.get(key)
            if value.__class__ is list:
                return value
            if value.__class__ is str:
                return [{"role": "user", "content": value}]
        return []

    @property
    def last_user_text(self):
        """What the user said last, or None."""
        for message in reversed(self.messages):
            if message.__class__ is str:
                return message
            if message.__class__ is dict and message.get("role") == "user":
                return _tools_text(message.get("content"))
        return None

    @property
    def events_sent(self):
        """Events of a stream that have gone out by now; None for an answer that is not streamed."""
        counted = self._entry.counted
        return None if counted is None else counted.events

    @property
    def text(self):
        """What the answer said, as far as it went out."""
        return self._entry.said_text()

    @property
    def answer(self):
        """An answer that is not streamed as a dict; {} for others."""
        return self._entry.answer_json()

    @property
    def faults(self):
        return list(self._entry.faults)

    @property
    def usage(self):
        """(prompt tokens, completion tokens), or None."""
        return None if self._entry.usage is None else tuple(self._entry.usage[:2])

    @property
    def started_s(self):
        """When it was read, in seconds of a clock that only goes on."""
        return self._entry.started_s

    @property
    def duration_s(self):
        """How long its answer took, or None while it goes on."""
        return None if self._entry.ended_s is None else self._entry.ended_s - self._entry.started_s

    @property
    def ended(self):
        """Whether its answer is over."""
        return self._entry.ended_s is not None

    def wait_ended(self, timeout_s=TOOLS_WAIT_S):
        """Wait until its answer is over. Returns self; AssertionError when it is not by then."""
        if not _tools_wait(lambda: self.ended, timeout_s):
            raise AssertionError("after %g s %s is still being answered: %s" % (timeout_s, self.id, self.line()))
        return self

    @property
    def left(self):
        """Whether the client went before the answer's end. While the answer goes on it is given 5 s to be noticed."""
        _tools_wait(lambda: self.ended, _LEFT_WAIT_S)
        return self.ended and self._entry.left

    def line(self):
        """It in one line, for messages."""
        entry, said = self._entry, self.last_user_text
        words = ["%s %s -> %s" % (self.method, self.path, entry.status if self.ended else "%s, going on" % entry.status)]
        if self.model is not None:
            words.append("model '%s'" % shown(self.model))
        if said is not None:
            words.append("user: '%s'" % shown(said))
        if self.rule is not None:
            words.append("rule '%s'" % self.rule)
        if entry.faults:
            words.append("faults: %s" % "; ".join(entry.faults))
        if self.streamed:
            words.append("%d events" % self.events_sent)
        if entry.error:
            words.append("error: %s" % shown(entry.error))
        if self.ended and entry.left:
            words.append("the client left")
        return "%s  %s" % (self.id, ", ".join(words))

    def __repr__(self):
        return "<RecordedRequest %s>" % self.line()


def _tools_text(content):
    if content.__class__ is str:
        return content
    parts = content if content.__class__ is list else ()
    return "".join(part["text"] for part in parts if part.__class__ is dict and part.get("text").__class__ is str)


def _tools_wait(condition, timeout_s):
    """Whether a condition came to hold in time."""
    end_s = time.monotonic() + timeout_s
    while not condition():
        if time.monotonic() > end_s:
            return False
        time.sleep(0.002)
    return True


# ---- what was arranged ------------------------------------------------------------------------

class RuleHandle:
    """A rule that reply() or replies() added. name; answered: how many requests it answered."""

    def __init__(self, tools, name):
        self._tools = tools
        self.name = name

    @property
    def answered(self):
        book = self._tools.server.backend.rule_book
        return sum(rule.answered for rule in book.rules if rule.name == self.name)

    @property
    def requests(self):
        """The RecordedRequests that it answered."""
        return [request for request in self._tools.requests if request.rule == self.name]

    def remove(self):
        self._tools.forget_rule(self.name)

    def __enter__(self):
        return self

    def __exit__(self, *exc_info):
        self.remove()


class FaultHandle:
    """Faults that fault() set up. matched: requests that they were for; done: how often they were carried out. In a
    `with` they stand for its block."""

    def __init__(self, faults, standing):
        self._faults = faults
        self._standing = standing

    @property
    def matched(self):
        return max(each.matched for each in self._standing)

    @property
    def done(self):
        return sum(each.done for each in self._standing)

    def remove(self):
        for each in self._standing:
            self._faults.remove(each.id)

    def __enter__(self):
        return self

    def __exit__(self, *exc_info):
        self.remove()


class GateHandle:
    """A gate at which answers wait. In a `with` it is opened and taken away at the block's end, whatever happens there."""

    def __init__(self, tools, name, event=None, fault=None):
        self._tools = tools
        self._fault = fault             # FaultHandle
        self.name = name
        self.words = name if event is None else "%s@%s" % (name, event)     # as a rule or a header says it

    @property
    def reached(self):
        """How many answers have come to it."""
        return self._tools.server.gates.reached(self.name)

    @property
    def waiting(self):
        """How many wait there."""
        return len(self._tools.server.gates.report(self.name)["waiting"])

    def wait_reached(self, timeout_s=TOOLS_WAIT_S, count=1):
        """Wait until `count` answers have come to it. Returns self; AssertionError when they have not by then."""
        if not self._tools.server.gates.wait(self.name, timeout_s, count):
            self._tools.fail("after %g s %d of %d answers have come to the gate '%s'" % (
                timeout_s, self.reached, count, self.name))
        return self

    def open(self):
        """Let all pass that wait and that come."""
        self._tools.server.gates.open(self.name)

    def shut(self):
        """Who comes from now on waits."""
        self._tools.server.gates.shut(self.name)

    def remove(self):
        """Open it, and let no further answers come to it."""
        if self._fault is not None:
            self._fault.remove()
        self.open()

    def __enter__(self):
        return self

    def __exit__(self, *exc_info):
        self.remove()


# ---- the server of a test ---------------------------------------------------------------------

class MockTurtleTools:
    """What server.MockTurtle is, but for making the server: see there."""

    def __init__(self, backend=None, env=True, **settings):
        values = {"port": 0, "host": ("127.0.0.1",), "log_level": "warning", "journal": 300}
        if not settings.get("profile") and not settings.get("calibrate"):
            values.update(ttft_ms=0.0, itl_ms=0.0)
        values.update(settings)
        if backend.__class__ is str:
            values["backend"], backend = backend, None
        self.server = self.make_server(values, backend)
        self.server.journal.body_bytes = self.server.journal.answer_bytes = _TOOLS_BODY_BYTES
        self.url = self.server.urls()[0]
        self.base_url = self.url + "/v1"
        self.api_key = values["api_key"][0] if values.get("api_key") else TOOLS_KEY
        self._env = env
        self._answers_all = None        # name of an added rule that leaves nothing to those behind it
        self._gates_named = 0
        self._thread = threading.Thread(target=self.server.serve_forever, name="mockturtle", daemon=True)

    def make_server(self, values, backend):
        """values: Settings by name. Returns a server.MockTurtleServer. Raises ValueError or OSError."""
        raise NotImplementedError

    # ---- start and stop -----------------------------------------------------------------------

    def start(self):
        """Serve from here on; requests wait in the backlog until then. Returns self."""
        self._thread.start()
        if self._env:
            # the old name, too: who has it set, and whose client still reads it, would reach the real service
            _TOOLS_ENVIRONMENT.push(self, {"OPENAI_BASE_URL": self.base_url, "OPENAI_API_BASE": self.base_url,
                                           "OPENAI_API_KEY": self.api_key})
        return self

    def start_for(self, test):
        """start(), and stop() when a test is over, or a class of them. test: a unittest.TestCase, as self in a test or
        in setUp(), or the class, in setUpClass(). Returns self."""
        (test.addClassCleanup if isinstance(test, type) else test.addCleanup)(self.stop)
        return self.start()

    def stop(self):
        """End running answers and let go of port and threads. What came can still be asked for."""
        _TOOLS_ENVIRONMENT.pop(self)
        if self._thread.ident is not None:
            self.server.shutdown()
            self._thread.join()
        self.server.server_close()

    def __enter__(self):
        return self.start()

    def __exit__(self, *exc_info):
        self.stop()

    def reset(self):
        """As it was started, for the next test: no rules but those of script files, no faults but those of settings,
        no gates, an empty journal; what is drawn and counted begins anew, and the store is empty, unless it is a file.
        """
        self._answers_all = None
        self._gates_named = 0
        settings = self.server.settings         # a control call may have changed these two
        self.server.journal.resize(settings.journal)
        self.server.gates.timeout_s = settings.gate_timeout_s
        self.server.reset(True)

    # ---- what it is to do ---------------------------------------------------------------------

    def reply(self, text=None, match=None, times=None, name=None, first=False, **reply):
        """Have requests answered so: a script's rule (README, "Scripts"). Returns a RuleHandle.

        text: str, or list of its chunks. match: dict of conditions; none: every request. times: of how many requests
        at most. Rules are asked in the order in which they were added; first: before all others. reply: what else a
        reply may have: json, tool_calls, reasoning, refusal, items, usage, fault, gate, ttft_ms, ...
        Raises ValueError for what a rule cannot be, and for one that never gets its turn.
        """
        if text is not None:
            reply["text"] = text
        return self._add_rule({"reply": _with_gate(reply)}, match, times, name, first)

    def replies(self, replies, match=None, then="repeat", times=None, name=None, first=False):
        """Have the first request answered with the first reply, and so on. replies: texts, or dicts of what reply()
        takes. then: behind the last, "repeat" it, "cycle", or "next rule"."""
        return self._add_rule({"replies": [_with_gate(reply) for reply in replies], "then": then}, match, times, name, first)

    def _add_rule(self, rule, match, times, name, first):
        book = self.server.backend.rule_book
        if book is None:
            raise ValueError("this server's backend takes no rules")
        own_ground = "endpoint" in (match or ())     # an endpoint may be one that only rules which name it answer
        if self._answers_all is not None and not first and not own_ground:
            raise ValueError("this rule would never answer: '%s' answers everything. Give that one a match or times=, or "
                             "this one first=True" % self._answers_all)
        for key, value in (("match", match), ("times", times), ("name", name)):
            if value is not None:
                rule[key] = value
        name = book.add([rule], first)[0]
        if not match and times is None and rule.get("then") != "next rule":
            self._answers_all = name
        return RuleHandle(self, name)

    def forget_rule(self, name):
        """Remove the added rules of a name."""
        self.server.backend.rule_book.clear(name)
        if self._answers_all == name:
            self._answers_all = None

    def fault(self, fault, times=None, **choice):
        """Have something go wrong (README, "Failure on demand"). Returns a FaultHandle.

        fault: as in "cut:event=3", or a kind with its keys as keywords. times: for how many requests; None: for all.
        choice: which ones, by endpoint, model, stream, rate, after. Raises ValueError.
        """
        if times is not None:
            choice["times"] = times
        faults = self.server.faults
        return FaultHandle(faults, faults.add(dict(choice, fault=fault)))

    def gate(self, name=None, event=1, times=None, **choice):
        """Have answers wait before their event-th event, until the gate is opened. Returns a GateHandle.

        name: as in "stop" or "stop@4"; it makes one up. event: None: none come to it but those of which a rule says so,
        as in reply("Hello", gate=gate), or a header. times, choice: as for fault().
        """
        if name is None:
            self._gates_named += 1
            name = "gate_%d" % self._gates_named
        if event is None:
            found = read_gates(name)[0]
            return GateHandle(self, found["name"], found["event"])
        name, at, number = name.partition("@")
        if at:
            event = number
        return GateHandle(self, name, event, self.fault({"kind": "gate", "name": name, "event": event}, times, **choice))

    # ---- what came ----------------------------------------------------------------------------

    @property
    def requests(self):
        """What came since the start or the last reset(), oldest first: list of RecordedRequest, at most the last 300,
        or as many as the setting `journal` says. One is there as soon as its answer begins."""
        if not self.server.journal.size:
            raise ValueError("nothing is written down: this server was made with journal=0")
        return [RecordedRequest(entry) for entry in self.server.journal.entries()]

    def wait_for_requests(self, count=1, timeout_s=TOOLS_WAIT_S):
        """Wait until so many have come; they, as in requests. AssertionError when they have not by then."""
        if not _tools_wait(lambda: len(self.requests) >= count, timeout_s):
            self.fail("after %g s %d of %d requests have come" % (timeout_s, len(self.requests), count))
        return self.requests

    def verdict(self):
        """Findings about the client, as a list of {"kind", "message", "requests"} (README, "Journal and verdict")."""
        self._need_all()
        return find_verdict(self.server.journal.entries(), self.server.open_idle_s())

    def _need_all(self):
        if len(self.requests) < self.server.journal.seen:
            raise ValueError("the journal has only the last %d of %d requests: make the server with a larger journal="
                             % (len(self.requests), self.server.journal.seen))

    def journal_text(self):
        """The journal, a line for each of the last requests."""
        requests = self.requests
        lines = ["  " + request.line() for request in requests[-JOURNAL_SHOWN:]]
        if not lines:
            return "No request has come to %s." % self.base_url
        seen = self.server.journal.seen
        return "\n".join(["Requests, oldest first%s:" % (
            "" if seen == len(lines) else ", the last %d of %d" % (len(lines), seen))] + lines)

    # ---- assertions ---------------------------------------------------------------------------

    def fail(self, message):
        """AssertionError with a message, and the journal below it."""
        raise AssertionError("%s\n%s" % (message, self.journal_text()))

    def assert_called(self):
        """At least one request came."""
        if not self.requests:
            self.fail("no request has come")

    def assert_not_called(self):
        if self.requests:
            self.fail("no request was expected, and %d came" % self.server.journal.seen)

    def assert_call_count(self, count, path=None):
        """So many requests came, of one path where that is given (with /v1 or without)."""
        self._need_all()
        found = [request for request in self.requests if path is None or _same_path(path, request.path)]
        if len(found) != count:
            self.fail("%d requests%s were expected, and %d came" % (
                count, "" if path is None else " to " + path, len(found)))

    def assert_called_with(self, **expected):
        """The last request was so: fields of its body by name, compared with ==, and beside them path, headers (those
        that are named), last_user_text."""
        self.assert_called()
        differences = _tools_differences(self.requests[-1], expected)
        if differences:
            self.fail("the last request is another than was expected:\n" + differences)

    def assert_called_once_with(self, **expected):
        self.assert_call_count(1)
        self.assert_called_with(**expected)

    def assert_any_call(self, **expected):
        """Some request was so, as in assert_called_with()."""
        self.assert_called()
        all_differences = [(request, _tools_differences(request, expected)) for request in self.requests]
        if all(differences for _, differences in all_differences):
            self.fail("no request is as was expected:\n" + "\n".join(
                "  %s\n%s" % (request.id, differences) for request, differences in all_differences[-JOURNAL_SHOWN:]))

    def assert_no_findings(self, ignore=()):
        """The verdict has nothing to say of the client. ignore: kinds of findings that are no matter here."""
        found = [finding for finding in self.verdict() if finding["kind"] not in ignore]
        if found:
            self.fail("\n".join("%s: %s" % (finding["kind"], finding["message"]) for finding in found))

    def assert_finding(self, kind):
        """The verdict has a finding of this kind."""
        kinds = [finding["kind"] for finding in self.verdict()]
        if kind not in kinds:
            self.fail("the verdict has no '%s'; it has: %s" % (kind, ", ".join(kinds) or "nothing"))


def _with_gate(reply):
    """A reply with its gate in words, where that is a GateHandle."""
    if reply.__class__ is dict and reply.get("gate").__class__ is GateHandle:
        return dict(reply, gate=reply["gate"].words)
    return reply


def _same_path(wanted, path):
    return path == wanted or path == "/v1" + wanted


def _tools_differences(request, expected):
    """Lines that say where a request is not as expected; "" when it is."""
    lines, body = [], request.json
    for name, value in expected.items():
        if name == "path":
            if not _same_path(value, request.path):
                lines.append("    path: expected %r, got %r" % (value, request.path))
        elif name == "headers":
            headers = request.headers
            lines += ["    header %s: expected %r, got %r" % (key, each, headers.get(key, _TOOLS_NOTHING))
                      for key, each in value.items() if not each == headers.get(key, _TOOLS_NOTHING)]
        else:
            got = request.last_user_text if name == "last_user_text" else body.get(name, _TOOLS_NOTHING)
            if not value == got:
                lines.append("    %s: expected %r, got %r" % (name, value, got))
    return "\n".join(lines)


class MockTurtleTestTools:
    """What server.MockTurtleTestCase is, but for the class of its server: see there."""

    mock_class = None
    mock_settings = {}
    mock = None

    def __init_subclass__(cls, **keywords):
        super().__init_subclass__(**keywords)
        if "mixes_into_tests" in vars(cls):
            return
        line = cls.__mro__
        home = next((at for at, each in enumerate(line) if "addClassCleanup" in vars(each)), -1)
        if home < line.index(MockTurtleTestTools):
            raise TypeError("class %s would %s: write class %s(MockTurtleTestCase, unittest.TestCase)" % (
                cls.__name__, "not be run" if home < 0 else "have no server", cls.__name__))

    @classmethod
    def setUpClass(cls):
        cls.mock = cls.mock_class(**cls.mock_settings).start_for(cls)
        super().setUpClass()

    def _formatMessage(self, msg, standardMsg):
        """unittest's own: what each of its failing assertions says. The journal is put below it."""
        text = super()._formatMessage(msg, standardMsg)
        return "%s\n%s" % (text, self.mock.journal_text()) if self.mock is not None and self.mock.server.journal.size else text

    def run(self, result=None):
        if self.mock is not None:
            self.mock.reset()           # not in setUp(): a test's own may forget to call it
        return super().run(result)
