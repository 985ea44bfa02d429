"""Summaries of samples: percentiles by nearest rank, medians over repetitions. Pure functions, no I/O."""

import math
import statistics


def percentile(ordered, share):
    """The nearest-rank percentile of an ascending sequence: the smallest value with `share` (0..1) at or below it.

    An empty sequence gives 0.0.
    """
    if not ordered:
        return 0.0
    rank = max(1, math.ceil(share * len(ordered) - 1e-9))
    return ordered[min(rank, len(ordered)) - 1]


def summary_ms(seconds):
    """Summarise samples in seconds as milliseconds: {"n", "mean", "min", "p50", "p90", "p99", "max"}."""
    ordered = sorted(seconds)
    count = len(ordered)
    return {
        "n": count,
        "mean": 1e3 * math.fsum(ordered) / count if count else 0.0,
        "min": 1e3 * ordered[0] if count else 0.0,
        "p50": 1e3 * percentile(ordered, 0.50),
        "p90": 1e3 * percentile(ordered, 0.90),
        "p99": 1e3 * percentile(ordered, 0.99),
        "max": 1e3 * ordered[-1] if count else 0.0,
    }


def ideal_duration_s(tokens, ttft_s, itl_s):
    """How long a stream of `tokens` takes from request to last token if every token is on time."""
    return ttft_s + max(0, tokens - 1) * itl_s


def efficiency(tokens_per_s, streams, tokens, ttft_s, itl_s):
    """The token rate as a share of what `streams` closed loops of on-time streams give; 0.0 without pacing."""
    ideal_s = ideal_duration_s(tokens, ttft_s, itl_s)
    if not tokens or ideal_s <= 0:
        return 0.0
    return tokens_per_s / (streams * tokens / ideal_s)


def median(values):
    """The median of the values that are not None; None if there are none."""
    known = [value for value in values if value is not None]
    return statistics.median(known) if known else None
