"""The test author's own paths, under /_mockturtle/: what this server can say and do that the real service cannot.

They are answered on a loopback bind, or with an API key; and never to a page in a browser. A call that is wrong
changes nothing.
"""
from api_common import (ApiError, Host, TakesLong, build_page, check_boolean, check_fields, check_integer, check_number, dump_json,
                        invalid_value, parse_body, parse_page_query, parse_query_integer, shown)
from faults import FAULT_CHOICES, read_gates
from observe.verdict import find_verdict
from settings import setting_names

CONTROL_PREFIXES = ("/_mockturtle/", "/v1/_mockturtle/")     # every path is answered under /v1 as well
MAX_GATE_WAIT_S = 300

_SECRET_SETTINGS = frozenset(("api_key",))
# What may change while the server runs; the rest is built in when it starts.
_RESET_CHECKS = {"store": check_boolean}
_CHANGEABLE = {"journal": check_integer(0, 100000), "gate_timeout_s": check_number(0.001, 86400)}


class ControlApiMixin(Host):
    """All that is below /_mockturtle/."""

    def control_timing(self):
        """The timing error, and the traces of the last answers (?limit=N, 20), newest first."""
        limit = parse_query_integer(self.query, "limit", 20, 0, 1000)
        trace = self.timing_trace
        told = dump_json({"object": "timing", "timing_error": self.timing_error.report(), "streams": self.playing(),
                          "tracing": trace is not None, "traced": 0 if trace is None else trace.count})
        self.send_json(200, b'%s,"requests":[%s]}' % (told[:-1], b",".join(() if trace is None else trace.newest(limit))))

    # ---- faults -------------------------------------------------------------------------------

    def control_faults(self):
        self.send_json(200, _control_list([each.report() for each in self.faults.all()]))

    def control_faults_add(self):
        """A fault as an object, or {"fault": text, object or list} with what all of them say of requests."""
        body = parse_body(self.body_bytes)
        if "fault" in body:
            for key in body:
                if key != "fault" and key not in FAULT_CHOICES:
                    raise _unknown_control_key(key, ("fault",) + FAULT_CHOICES)
        try:
            added = self.faults.add(body)
        except ValueError as exc:
            raise invalid_value("fault", "Invalid 'fault': %s." % exc)
        self.send_json(200, _control_list([each.report() for each in added]))

    def control_faults_clear(self):
        self.faults.clear()
        self.control_faults()

    def control_faults_remove(self, id):
        if not self.faults.remove(id):
            raise ApiError(404, "No fault with the id '%s' stands here." % shown(id))
        self.send_json(200, {"id": id, "object": "fault", "deleted": True})

    # ---- gates --------------------------------------------------------------------------------

    def control_gates(self):
        self.send_json(200, _control_list(self.gates.report()))

    def control_gate(self, name):
        """?wait_s=S: answered when ?count=N (1) answers have reached it, at the latest after S seconds."""
        name = _control_gate_name(name)
        wait_s = parse_query_integer(self.query, "wait_s", 0, 0, MAX_GATE_WAIT_S)
        self.send_gate(name, parse_query_integer(self.query, "count", 1, 1), wait_s)

    def control_gate_open(self, name):
        name = _control_gate_name(name)
        self._control_no_body()
        released = self.gates.open(name)
        self.send_json(200, dict(self.gates.report(name), released=released))

    def control_gate_shut(self, name):
        name = _control_gate_name(name)
        self._control_no_body()
        self.gates.shut(name)
        self.send_json(200, self.gates.report(name))

    def _control_no_body(self):
        if self.body_bytes:
            for key in parse_body(self.body_bytes):
                raise _unknown_control_key(key, ())

    # ---- the journal and what it says ---------------------------------------------------------

    def _control_entries(self):
        if not self.journal.size:
            raise ApiError(409, "The journal is off: start the server with --journal N, or turn it on with POST "
                           "/_mockturtle/settings {\"journal\": N}.", code="journal_off")
        if self.breathe is None:
            raise TakesLong()           # bodies are parsed
        return self.journal.entries()

    def control_requests(self):
        """?path=, ?model=, ?status=, ?rule= and ?since= (unix seconds) choose; pages as everywhere, oldest first."""
        limit, order, after = parse_page_query(self.query, "asc")
        wanted = {name: self.query[name][-1] for name in ("path", "model", "rule") if self.query.get(name)}
        status = parse_query_integer(self.query, "status", 0, 100, 599)
        since = _control_since(self.query)
        found = []
        for entry in self._control_entries():
            if (status and entry.status != status) or entry.time < since or any(
                    getattr(entry, name) != value and not (name == "path" and entry.path == "/v1" + value)
                    for name, value in wanted.items()):
                continue
            found.append(entry)
        if order == "desc":
            found.reverse()
        if after is not None:
            at = next((at for at, entry in enumerate(found) if entry.id == after), None)
            if at is None:
                raise invalid_value("after", "Invalid 'after': no request with the id '%s' in this list." % shown(after))
            found = found[at + 1:]
        secrets = self.settings.api_key + self.backend.secrets()
        page = build_page((entry.report(secrets) for entry in found[:limit + 1]), limit, None)
        self.send_json(200, dict(page, seen=self.journal.seen))

    def control_request(self, id):
        for entry in self._control_entries():
            if entry.id == id:
                self.send_json(200, entry.report(self.settings.api_key + self.backend.secrets()))
                return
        raise ApiError(404, "No request with the id '%s' is in the journal." % shown(id))

    def control_requests_clear(self):
        self.journal.clear()
        self.send_json(200, {"object": "journal", "deleted": True})

    def control_verdict(self):
        entries = self._control_entries()
        self.send_json(200, {"object": "verdict", "findings": find_verdict(entries, self.open_idle_s()),
                             "requests": len(entries), "complete": self.journal.seen == len(entries)})

    # ---- the server ---------------------------------------------------------------------------

    def control_reset(self):
        """Faults, gates, the journal, rate limits and rules as they were at the start, and the draws; {"store": true}:
        what is stored in memory goes as well."""
        store = False
        if self.body_bytes:
            body = parse_body(self.body_bytes)
            for key in check_fields(body, _RESET_CHECKS):
                raise _unknown_control_key(key, tuple(_RESET_CHECKS))
            store = bool(body.get("store"))
        if store and self.breathe is None:
            raise TakesLong()
        self.reset(store)
        self.send_json(200, {"object": "reset", "done": True})

    def control_settings(self):
        settings = {}
        for name in sorted(setting_names()):
            value = getattr(self.settings, name)
            settings[name] = ["***"] * len(value) if name in _SECRET_SETTINGS else value
        settings["journal"], settings["gate_timeout_s"] = self.journal.size, self.gates.timeout_s
        self.send_json(200, {"object": "settings", "changeable": sorted(_CHANGEABLE), "settings": settings})

    def control_settings_change(self):
        body = parse_body(self.body_bytes)
        for key in check_fields(body, _CHANGEABLE):
            raise _unknown_control_key(key, tuple(_CHANGEABLE))
        if body.get("journal") is not None:
            self.journal.resize(body["journal"])
        if body.get("gate_timeout_s") is not None:
            self.gates.timeout_s = float(body["gate_timeout_s"])
        self.control_settings()


def _control_list(data):
    return {"object": "list", "data": data}


def _control_gate_name(name):
    try:
        return read_gates({"name": name})[0]["name"]
    except ValueError as exc:
        raise invalid_value("name", "Invalid gate: %s." % exc)


def _control_since(query):
    text = (query.get("since") or ["0"])[-1]
    try:
        since = float(text)
    except ValueError:
        since = float("nan")
    if not abs(since) < 1e15:
        raise invalid_value("since", "Invalid value for 'since': seconds since 1970 are expected, not '%s'." % shown(text))
    return since


def _unknown_control_key(key, known):
    return ApiError(400, "Unknown parameter: '%s'. %s" % (shown(key), "There are: %s." % ", ".join(known) if known
                                                         else "This call takes none."),
                    code="unknown_parameter", param=shown(key))


def check_control(origin, reachable):
    """Whether a control path may be answered. origin: the Origin header, or None. reachable: from other machines
    without a key. Raises ApiError 403."""
    if reachable:
        raise ApiError(403, "The control paths are off: this server listens beyond this machine and has no --api-key.")
    if origin is not None:
        raise ApiError(403, "The control paths do not answer pages in a browser.")
