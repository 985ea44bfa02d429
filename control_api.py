"""The test author's own paths, under /_mockturtle/: what this server can say that the real service cannot.

They are answered on a loopback bind, or with an API key; and never to a page in a browser.
"""
from api_common import ApiError, Host, parse_query_integer

CONTROL_PREFIX = "/_mockturtle/"


class ControlApiMixin(Host):
    """GET /_mockturtle/timing."""

    def control_timing(self):
        """The timing error, and the traces of the last answers (?limit=N, 20), newest first."""
        limit = parse_query_integer(self.query, "limit", 20, 0, 1000)
        trace = self.timing_trace
        self.send_json(200, {
            "object": "timing", "timing_error": self.timing_error.report(), "streams": self.playing(),
            "tracing": trace is not None, "traced": 0 if trace is None else trace.count,
            "requests": [] if trace is None else trace.newest(limit)})


def check_control(origin, reachable):
    """Whether a control path may be answered. origin: the Origin header, or None. reachable: from other machines
    without a key. Raises ApiError 403."""
    if reachable:
        raise ApiError(403, "The control paths are off: this server listens beyond this machine and has no --api-key.")
    if origin is not None:
        raise ApiError(403, "The control paths do not answer pages in a browser.")
