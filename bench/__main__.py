"""The command line of the benchmark.

    python -m bench                                    the server of this checkout, everything, about 160 s
    python -m bench --file dist/mockturtle.py --floor  the single file, beside the floor
    python -m bench --url http://127.0.0.1:8000 --tests rps,stream
    python -m bench --guard                            the ratios that CI holds us to, under 60 s; exit 1 when broken
"""

import argparse
import json
import os
import signal
import sys
import time
from urllib.parse import urlsplit

from bench.guard import PROFILE, broken_tests, judge, render_verdicts
from bench.measures import PACED_TESTS, TESTS, UNPACED_TESTS, run_tests
from bench.poller import raise_file_limit
from bench.process import HAVE_PROC, Target
from bench.report import build_document, find_remarks, render_table


def names(choices):
    """An argparse type: a comma-separated list out of these."""

    def parse(text):
        found = text.split(",")
        for name in found:
            if name not in choices:
                raise argparse.ArgumentTypeError("%s: choose from %s" % (name, ",".join(choices)))
        return found

    return parse


def counts(text):
    """An argparse type: a comma-separated list of whole numbers from 1 to 8,000."""
    found = [int(part) for part in text.split(",")]
    if not all(1 <= number <= 8000 for number in found):
        raise argparse.ArgumentTypeError("from 1 to 8000")
    return found


def parse_options(arguments):
    """The options as a namespace that also holds every key of guard.PROFILE."""
    parser = argparse.ArgumentParser(
        prog="python -m bench", description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    where = parser.add_mutually_exclusive_group()
    where.add_argument("--file", default="server.py", help="the server to start (default: server.py of this checkout)")
    where.add_argument("--url", help="a server that already runs on 127.0.0.1; say how it is set with --ttft-ms etc.")
    parser.add_argument("--pid", type=int, help="with --url: its process id, for CPU time and memory")
    parser.add_argument("--python", default=sys.executable, help="the Python that runs --file (default: this one)")
    parser.add_argument("--floor", action="store_true", help="measure the floor in the same run, with ratios")
    parser.add_argument("--guard", action="store_true", help="short; exit 1 if a ratio to the floor is broken")
    parser.add_argument("--tests", type=names(TESTS), default=list(TESTS), help=",".join(TESTS))
    parser.add_argument("--kinds", type=names(("chat", "responses")), default=["chat", "responses"])
    parser.add_argument("--n", type=counts, default=[100, 400], help="paced streams, up to 800 (default: 100,400)")
    parser.add_argument("--reps", type=int, default=1)
    parser.add_argument("--secs", type=float, default=3.0, help="of the unpaced loads (default: 3)")
    parser.add_argument("--paced-secs", type=float, default=3.0, help="of the paced loads, warm-up apart (default: 3)")
    parser.add_argument("--ttft-ms", type=float, help="of the paced tests (default: 100; with --url 0)")
    parser.add_argument("--itl-ms", type=float, help="of the paced tests (default: 20; with --url 0)")
    parser.add_argument("--output-tokens", type=int, default=128, help="of the paced tests (default: 128)")
    parser.add_argument("--idle", type=int, default=5000, help="idle connections (default: 5000, or the file limit)")
    parser.add_argument("--neighbours", type=names(("models", "refused", "history")), default="models,refused,history")
    parser.add_argument("--litellm", metavar="PROGRAM", help="gateway: LiteLLM's proxy as a peer, the program of an "
                                                             "environment with litellm[proxy]")
    parser.add_argument("--json", metavar="FILE", help="the figures as JSON")
    options = parser.parse_args(arguments)
    if options.ttft_ms is None:
        options.ttft_ms = 0.0 if options.url else 100.0
    if options.itl_ms is None:
        options.itl_ms = 0.0 if options.url else 20.0
    if isinstance(options.neighbours, str):
        options.neighbours = options.neighbours.split(",")
    if not 0 < options.secs <= 60 or not 0 < options.paced_secs <= 60 or not 1 <= options.reps <= 20:
        parser.error("--secs and --paced-secs: up to 60; --reps: up to 20")
    options.warmup_s, options.cold_starts, options.idle_secs = 0.5, 3, 2.0
    options.mixed_n, options.memory_requests, options.without_floor = 100, 20000, ("scrape", "state", "disk", "gateway")
    options.turns, options.stored, options.expiring = 2000, 100000, 20000
    if options.guard:
        vars(options).update(PROFILE, floor=True)
        if options.url:
            parser.error("--guard starts what it measures: no --url")
    return options


def find_targets(options, say):
    """The targets, ours first, the floor last; drops the tests that a given server is not set for."""
    if options.url:
        address = urlsplit(options.url)
        if address.hostname not in ("127.0.0.1", "localhost") or not address.port:
            raise SystemExit("--url: http://127.0.0.1:PORT, as all load stays on this machine")
        unfit = ("cold", "disk", "gateway") + (UNPACED_TESTS if options.itl_ms > 0 else PACED_TESTS)
        left_out = [test for test in options.tests if test in unfit]
        if left_out:
            say("left out, as the server already runs with the latency it has (see --itl-ms): " + ", ".join(left_out))
        options.tests = [test for test in options.tests if test not in unfit]
        ours = Target("server", port=address.port, pid=options.pid)
    else:
        ours = Target(os.path.basename(options.file), [options.python, options.file])
    if not options.floor:
        return [ours]
    return [ours, Target("floor", [sys.executable, "-m", "bench.floor"])]


def run_guard(targets, options, figures, say):
    """Judge the figures; measure a broken test once more; the exit status."""
    ours, floor = (figures[target.label] for target in targets)
    verdicts = judge(ours, floor)
    again = broken_tests(verdicts)
    if again:
        say("broken at first: %s; measured again" % ", ".join(again))
        options.tests = [test for test in options.tests if test in again]
        second = run_tests(targets, options, say)
        for threshold, _, holds in verdicts:
            if not holds:  # the second look replaces the first
                ours[threshold.metric] = second[targets[0].label].get(threshold.metric, [])
                floor[threshold.metric] = second[targets[1].label].get(threshold.metric, [])
        verdicts = judge(ours, floor)
    print(render_verdicts(verdicts))
    missing = [threshold.metric for threshold, ratio, _ in verdicts if ratio is None and HAVE_PROC]
    errors = sum(ours.get("errors", ())) + sum(floor.get("errors", ()))
    if errors or missing:
        print("BROKEN   %d errors; not measured: %s" % (errors, ", ".join(missing) or "none"))
    return 1 if errors or missing or broken_tests(verdicts) else 0


def main(arguments=None):
    """Measure, print, return the exit status."""

    def say(text):
        print(text, file=sys.stderr, flush=True)

    def on_term(*_):
        raise KeyboardInterrupt

    options = parse_options(arguments)
    signal.signal(signal.SIGTERM, on_term)  # so that what was started is ended
    options.idle = min(options.idle, raise_file_limit(options.idle) - 64)
    targets = find_targets(options, say)
    if options.reps > 1 and not options.guard:
        options.cold_starts = 1
    began = time.perf_counter()
    figures = run_tests(targets, options, say)
    print(render_table(figures, [target.label for target in targets]))
    for remark in find_remarks(figures):
        print("! " + remark)
    errors = sum(sum(kept.get("errors", ())) for kept in figures.values())
    status = run_guard(targets, options, figures, say) if options.guard else 1 if errors else 0
    print("took %.0f s" % (time.perf_counter() - began))
    if options.json:
        with open(options.json, "w", encoding="utf-8") as file:
            json.dump(build_document(figures, options), file, indent=1)
            file.write("\n")
    return status


if __name__ == "__main__":
    try:
        sys.exit(main())
    except KeyboardInterrupt:
        sys.exit(130)
