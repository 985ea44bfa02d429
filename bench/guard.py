"""The guard: our figures against the floor's of the same run, as ratios; never an absolute time.

A machine twice as slow makes both sides twice as slow, so a broken ratio means that our code became dearer. A verdict
that fails is measured once more before it counts: a noisy neighbour rarely comes twice.
"""

from typing import NamedTuple

from bench.stats import median


class Threshold(NamedTuple):
    """One rule. The ratio is ours to the floor's, or, where `floor` is False, the figure itself (already a ratio)."""

    test: str  # the test of measures that gives the figure
    metric: str  # its key
    most: bool  # True: the ratio may be at most `limit`; False: at least
    limit: float
    reason: str
    floor: bool = True
    least: float = 0.0  # the floor's figure counts as at least this, where a tiny one would make a wild ratio


_PLAIN = "parse, validate, plan and answer are some 15 us of Python, the floor's send and recv as much"
_FRAME = "a paced token is one send and little else; a thread or a queue hop per token costs three to eight times that"
_TIME = "pacing must not break down before the floor's does; under a tenth of the ITL both are noise"
_JOINED = "frames due together go out in joined writes; one send per token costs the floor twenty times more"

THRESHOLDS = (
    Threshold("cold", "cold_s", True, 9.0, "imports and tables of some 34,000 lines; the floor is little more than the interpreter"),
    Threshold("cold", "idle_rss_mb", True, 3.0, "a heavy import at start would show here"),
    Threshold("rps", "chat.cpu_per_request_ms", True, 9.0, _PLAIN + "; 5.6 on a calm machine"),
    Threshold("rps", "responses.cpu_per_request_ms", True, 13.0, _PLAIN + ", and the response is stored; 5.9 on a "
                                                                 "calm machine"),
    Threshold("rps", "chat.rps", False, 0.15, _PLAIN + "; wide, as a rate suffers most from other work"),
    Threshold("rps", "responses.rps", False, 0.1, _PLAIN + "; wide, as a rate suffers most from other work"),
    Threshold("stream", "chat.cpu_per_1m_unpaced", True, 12.0, _JOINED),
    Threshold("stream", "responses.cpu_per_1m_unpaced", True, 16.0, _JOINED),
    Threshold("paced", "chat.n100.cpu_per_1m", True, 3.0, _FRAME),
    Threshold("paced", "responses.n100.cpu_per_1m", True, 3.5, _FRAME + "; the end of a response is stored"),
    Threshold("paced", "chat.n100.err_p99_share", True, 3.0, _TIME, least=0.1),
    Threshold("paced", "responses.n100.err_p99_share", True, 3.0, _TIME, least=0.1),
    Threshold("paced", "chat.n100.efficiency", False, 0.95, "every stream runs at its own pace, none waits in a queue"),
    Threshold("paced", "responses.n100.efficiency", False, 0.95, "the same"),
    Threshold("mixed", "mixed.models.err_p99_share", True, 4.0, "busy neighbours must not stop the clock", least=0.1),
    Threshold("mixed", "mixed.models.rps_kept", False, 0.3, "nor streams stop the neighbours", floor=False),
    Threshold("memory", "chat.growth_share", True, 1.15, "nothing is kept of a chat request", floor=False),
    Threshold("memory", "responses.growth_share", True, 1.15, "at the bound a response pushes one out", floor=False),
    Threshold("state", "state.chain.turn_share", True, 1.6, "a turn does not read its chain", floor=False),
    Threshold("state", "state.conversation.turn_share", True, 1.6, "a turn does not read its conversation",
              floor=False),
    Threshold("state", "state.rps_share", False, 0.6, "nothing on a request's way walks what is stored", floor=False),
    Threshold("idle", "idle.rss_share", True, 1.3, "no thread and no buffer per idle connection", floor=False),
)

# What the guard measures: short, and still over the first second of every load. The unpaced tests come three times, in
# short pieces, so that a disturbance hits ours and the floor's alike.
PROFILE = {
    "tests": ["cold"] + ["rps", "stream"] * 3 + ["paced", "mixed", "memory", "state", "idle"],
    "kinds": ["chat", "responses"],
    "n": [100],
    "reps": 1,
    "secs": 0.6,
    "warmup_s": 0.15,
    "paced_secs": 1.2,
    "ttft_ms": 100.0,
    "itl_ms": 20.0,
    "output_tokens": 32,
    "cold_starts": 3,
    "mixed_n": 100,
    "neighbours": ["models"],
    "memory_requests": 5000,
    "without_floor": ["memory", "state", "idle"],  # their thresholds are of our own figures
    "turns": 400,
    "stored": 20000,
    "idle": 500,
    "idle_secs": 0.5,
}


class Verdict(NamedTuple):
    """A threshold, the ratio found (None: not measurable here, which passes) and whether it holds."""

    threshold: Threshold
    ratio: object
    holds: bool


def judge(ours, floor, thresholds=THRESHOLDS):
    """Compare {metric: [value]} of ours with the floor's; one Verdict per threshold."""
    verdicts = []
    for threshold in thresholds:
        ratio = median(ours.get(threshold.metric, []))
        if threshold.floor and ratio is not None:
            base = median(floor.get(threshold.metric, []))
            if threshold.least:
                base, ratio = max(base or 0.0, threshold.least), max(ratio, 0.0)
            ratio = ratio / base if base else None
        holds = ratio is None or (ratio <= threshold.limit if threshold.most else ratio >= threshold.limit)
        verdicts.append(Verdict(threshold, ratio, holds))
    return verdicts


def broken_tests(verdicts):
    """The tests with a threshold that does not hold, in order, each once."""
    return list(dict.fromkeys(verdict.threshold.test for verdict in verdicts if not verdict.holds))


def render_verdicts(verdicts):
    """One line per threshold: verdict, metric, ratio, limit, and the reason of a broken one."""
    lines = []
    for threshold, ratio, holds in verdicts:
        what = "left out" if ratio is None else "ok" if holds else "BROKEN"
        sign = "<=" if threshold.most else ">="
        against = "of the floor's" if threshold.floor else "as it is"
        found = "-" if ratio is None else "%.2f" % ratio
        line = "%-8s %-30s %6s %s %.2f %s" % (what, threshold.metric, found, sign, threshold.limit, against)
        lines.append(line if holds else line + ": " + threshold.reason)
    return "\n".join(lines)
