"""Figures to text: the table, the remarks below it and the JSON document. No measuring here."""

import os
import platform

from bench.process import PROC_MISSING
from bench.stats import median

# last part of a key: (what it is, with its unit; digits after the point)
METRICS = {
    "cold_s": ("cold start to first 200 on /health, s", 3),
    "idle_rss_mb": ("idle memory (RSS), MB", 1),
    "rps": ("requests/s", 0),
    "cpu_per_request_ms": ("server CPU ms per request", 4),
    "rps_p50_ms": ("latency p50, ms", 2),
    "rps_p99_ms": ("latency p99, ms", 2),
    "rps_alone": ("requests/s without the streams", 0),
    "posts_s": ("posts of 2 MB/s", 1),
    "rps_kept": ("requests/s kept beside the streams, share", 2),
    "tokens_s": ("tokens/s, ITL 0", 0),
    "cpu_per_1m_unpaced": ("server CPU s per 1M tokens, ITL 0", 2),
    "err_mean_ms": ("gap error mean, ms", 2),
    "err_p99_ms": ("gap error p99, ms", 2),
    "err_p99_share": ("gap error p99, share of the ITL", 2),
    "err_max_ms": ("gap error, the largest, ms", 2),
    "late_p99_ms": ("frames' lateness as the server counts it, p99 at most, ms", 2),
    "late_p9999_ms": ("the same, p99.99 at most, ms", 2),
    "took_p50_ms": ("a scrape, median, ms", 2),
    "took_max_ms": ("the slowest scrape, ms", 2),
    "page_kb": ("the page, KB", 0),
    "ttft_p50_ms": ("TTFT p50, ms", 1),
    "ttft_p99_ms": ("TTFT p99, ms", 1),
    "efficiency": ("token rate, share of the ideal", 3),
    "paced_tokens_s": ("tokens/s", 0),
    "cpu_per_1m": ("server CPU s per 1M tokens", 1),
    "rss_mb": ("memory (RSS), MB", 1),
    "rss_share": ("memory, share of that before", 2),
    "client_lag_p99_ms": ("the client's own lag p99, ms", 2),
    "growth_bytes": ("memory growth, bytes/request", 0),
    "growth_share": ("memory after, share of that before", 3),
    "turn_first_ms": ("a turn's latency at the start of a chain, median, ms", 3),
    "turn_last_ms": ("a turn's latency at its end, median, ms", 3),
    "turn_share": ("a turn's latency at the end, share of that at the start", 2),
    "bytes_per_turn": ("memory per turn, bytes", 0),
    "rps_few": ("requests/s with few stored", 0),
    "rps_many": ("requests/s with all stored", 0),
    "rps_share": ("requests/s with all stored, share of that with few", 2),
    "bytes_per_response": ("memory per stored response, bytes", 0),
    "rps_of_memory": ("requests/s, share of those with memory", 2),
    "cpu_per_stream_ms": ("server CPU ms per stream", 3),
    "cpu_of_unstored": ("server CPU per stream, share of one that is not stored", 2),
    "expired": ("responses swept meanwhile", 0),
    "open": ("connections open", 0),
    "alive": ("connections that still answer", 0),
    "bytes_per_connection": ("memory per idle connection, bytes", 0),
    "cores": ("CPU while idle, cores", 3),
    "direct_p50_ms": ("a delta's age on arrival without a gateway p50, ms", 2),
    "direct_p99_ms": ("a delta's age on arrival without a gateway p99, ms", 2),
    "added_p50_ms": ("latency added to a delta p50, ms", 2),
    "added_p99_ms": ("latency added to a delta p99, ms", 2),
    "cpu_per_1000_ms": ("gateway CPU ms per 1,000 deltas", 1),
    "deltas_s": ("deltas/s", 0),
    "cpu_of_litellm": ("CPU per delta of LiteLLM's proxy, times ours", 1),
}
SELF_CHECKS = ("errors", "client_cores", "other_cores")  # told below the table, not in it
GUARD_ONLY = ("err_p99_share",)  # the same as another row, for the guard
CLIENT_CORES_MAX = 0.85  # over that the client is the bottleneck and its times are its own
LAG_MS_MAX = 1.5  # over that the client itself is late, and its gap errors are its own
PACED_TOKENS_S_MAX = 42000  # up to 800 streams at ITL 20 ms it agreed with a generator in C on 2 cores, at 1,000 not
OTHER_CORES_MAX = 0.4  # over that the machine was doing something else


def title(key):
    """Say a key in words: chat.n100.err_mean_ms is "chat, 100 streams: gap error mean, ms"."""
    *where, what = key.split(".")
    words = ["%s streams" % part[1:] if part[:1] == "n" and part[1:].isdigit() else part for part in where]
    name = METRICS[what][0]
    return "%s: %s" % (", ".join(words), name) if words else name


def format_values(values, digits):
    """The median, with the range where there are several values; "-" where there is none."""
    known = [value for value in values if value is not None]
    if not known:
        return "-"
    text = "%.*f" % (digits, median(known))
    if len(known) > 1:
        text += " [%.*f..%.*f]" % (digits, min(known), digits, max(known))
    return text


def render_table(figures, labels):
    """The figures as a Markdown table, one column per label, and the ratio of the first to the last of two or more."""
    keys, untold = [], SELF_CHECKS + GUARD_ONLY
    for label in labels:
        keys += [key for key in figures[label] if key not in keys and key.split(".")[-1] not in untold]
    header = ["metric"] + list(labels) + (["%s / %s" % (labels[0], labels[-1])] if len(labels) > 1 else [])
    rows = [header]
    for key in keys:
        digits = METRICS[key.split(".")[-1]][1]
        row = [title(key)] + [format_values(figures[label].get(key, []), digits) for label in labels]
        if len(labels) > 1:
            first, last = (median(figures[label].get(key, [])) for label in (labels[0], labels[-1]))
            row.append("%.2f" % (first / last) if first is not None and last else "-")
        rows.append(row)
    widths = [max(len(row[i]) for row in rows) for i in range(len(header))]
    lines = ["| " + " | ".join(cell.ljust(width) for cell, width in zip(row, widths)) + " |" for row in rows]
    lines.insert(1, "|" + "|".join("-" * (width + 2) for width in widths) + "|")
    return "\n".join(lines)


def find_remarks(figures):
    """What a reader must know before believing the table: a list of sentences."""
    remarks = [PROC_MISSING] if PROC_MISSING else []
    for label, kept in figures.items():
        errors = sum(kept.get("errors", ()))
        if errors:
            remarks.append("%s: %d errors" % (label, errors))
        client, other = (_highest(kept.get(name, ())) for name in ("client_cores", "other_cores"))
        if client > CLIENT_CORES_MAX:
            remarks.append("%s: the client was busy (%.2f cores): the rates may be its own limit" % (label, client))
        if other > OTHER_CORES_MAX:
            remarks.append("%s: other work took up to %.2f cores: repeat on a quiet machine" % (label, other))
        for key, values in kept.items():
            limit = {"client_lag_p99_ms": LAG_MS_MAX, "paced_tokens_s": PACED_TOKENS_S_MAX}.get(key.split(".")[-1])
            if limit and (median(values) or 0) > limit:
                remarks.append("%s, %s: the client was late itself: too many streams for it" % (label, title(key)))
    return remarks


def _highest(values):
    return max([value for value in values if value is not None], default=0.0)


def build_document(figures, options):
    """The JSON document: {"machine": {...}, "options": {...}, "figures": {label: {metric: [value]}}}, no paths."""
    kept = ("tests", "kinds", "n", "reps", "secs", "paced_secs", "ttft_ms", "itl_ms", "output_tokens", "idle")
    return {
        "machine": {
            "python": platform.python_version(),
            "system": platform.system(),
            "machine": platform.machine(),
            "cores": os.cpu_count(),
        },
        "options": {name: getattr(options, name) for name in kept},
        "figures": figures,
    }
