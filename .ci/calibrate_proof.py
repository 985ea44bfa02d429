"""Calibrate, then measure: does a server that was calibrated from a measurement give the same measurement again?

    python .ci/calibrate_proof.py --python PYTHON [--server server.py] [--requests 5000] [--keep FOLDER]

A server with a known distribution (lognormal TTFT, gamma ITL, lognormal length, fixed seed, ten times faster by
--time-scale) is measured with GuideLLM. From the file that it writes a profile is made and dumped, and a second server
is started with the dumped file and another seed, and measured the same way. The Kolmogorov-Smirnov distance between the
two measurements of TTFT, ITL (each request's mean: GuideLLM tells no single gaps) and output length must be below
0.05; by chance alone two samples of 5,000 are below 0.039 apart in 999 of 1,000 cases. Prints a line per check, then
"N passed, M failed". Run it with the Python of an environment that holds guidellm; about 4 minutes, most of them the
tool's own work.
"""

import argparse
import json
import os
import signal
import subprocess
import sys
import tempfile

from load_client import beside_python, build_tokenizer, run_command, tool_environment
from reporting import Report
from servers import Server

LIMIT = 0.05
STREAMS = 48
UNCOUNTED = 2  # GuideLLM 0.8.1 was seen to end with one request "processing" that the server had answered
TIME_SCALE = 0.1
# Wide against what a busy machine and the tool add, with few tokens: the tool's own work is what takes the time.
SOURCE = ("--ttft-ms", "6000", "--ttft-std-ms", "3000", "--ttft-dist", "lognormal",
          "--itl-ms", "400", "--itl-std-ms", "200", "--itl-dist", "gamma",
          "--output-tokens", "12", "--output-tokens-std", "5", "--output-tokens-dist", "lognormal",
          "--time-scale", str(TIME_SCALE), "--seed", "1")
# What the source's means must look like to the tool: (mean in its units, how far off it may be). The tool adds its own
# time to TTFT, which both measurements have in common.
EXPECTED = {"TTFT": (6000 * TIME_SCALE, 60.0), "ITL": (400 * TIME_SCALE, 1.0), "length": (12.0, 0.3)}


def ks_distance(first, second):
    """The greatest distance between the two samples' cumulative shares."""
    first, second = sorted(first), sorted(second)
    at_first = at_second = 0
    worst = 0.0
    while at_first < len(first) and at_second < len(second):
        value = min(first[at_first], second[at_second])
        while at_first < len(first) and first[at_first] <= value:
            at_first += 1
        while at_second < len(second) and second[at_second] <= value:
            at_second += 1
        worst = max(worst, abs(at_first / len(first) - at_second / len(second)))
    return worst


def measure(url, requests, folder, name):
    """Drive the server with GuideLLM; the path of its result file."""
    path = os.path.join(folder, name + ".json")
    run_command(
        [
            beside_python("guidellm"),
            "run",
            "--backend",
            "kind=openai_http,target=%s,model=mock-model,request_format=/v1/chat/completions" % url,
            "--profile",
            "kind=concurrent,streams=%d" % STREAMS,
            "--constraint",
            "kind=max_requests,count=%d" % requests,
            "--tokenizer",
            "kind=huggingface_auto,model=%s" % folder,
            "--data",
            # no length is asked for: the server decides it
            "kind=json_file,path=%s" % os.path.join(folder, "prompts.jsonl"),
            "--output",
            "kind=json,path=%s" % path,
            "--disable-console-interactive",
        ],
        folder,
        280.0,
        tool_environment(folder, HF_HUB_OFFLINE="1", TRANSFORMERS_OFFLINE="1", GUIDELLM__MAX_WORKER_PROCESSES="1"),
    )
    return path


def samples(path):
    """({"TTFT": [ms], "ITL": [ms], "length": [tokens]}, how many requests did not succeed) of a result file."""
    with open(path, encoding="utf-8") as file:
        requests = json.load(file)["benchmarks"][0]["requests"]
    answers = requests["successful"]
    return {
        "TTFT": [answer["time_to_first_token_ms"] for answer in answers],
        "ITL": [answer["inter_token_latency_ms"] for answer in answers if answer["output_tokens"] > 1],
        "length": [answer["output_tokens"] for answer in answers],
    }, len(requests["errored"] or ()) + len(requests["incomplete"] or ())


def serve_and_measure(options, folder, name, report, *flags):
    """Start a server, measure it, end it; its samples."""
    server = Server(options, "--log-level", "warning", *flags)
    try:
        path = measure(server.url, options.requests, folder, name)
    finally:
        wrong = server.stop()
    report.tell("%s: the server ended well: %s" % (name, server.text().strip().splitlines()[-1]), "; ".join(wrong))
    found, failed = samples(path)
    count = len(found["TTFT"])
    report.tell("%s: %d requests answered" % (name, count),
                "%d failed, %d of %d answered" % (failed, count, options.requests)
                if failed or count < options.requests - UNCOUNTED else None)
    return path, found


def prove(options, folder, report):
    """Both measurements and what they have in common."""
    build_tokenizer(folder)
    with open(os.path.join(folder, "prompts.jsonl"), "w", encoding="utf-8") as file:
        for number in range(options.requests):
            file.write('{"prompt": "What does the sea say to ship %d?"}\n' % number)
    path, source = serve_and_measure(options, folder, "measured", report, *SOURCE)
    for name, (mean, room) in EXPECTED.items():
        found = sum(source[name]) / len(source[name])
        report.tell("measured: mean %s %.2f, configured %g" % (name, found, mean),
                    "more than %g off" % room if abs(found - mean) > room else None)
    profile = os.path.join(folder, "profile.json")
    with open(profile, "wb") as file:
        done = subprocess.run([options.python, options.server, "--calibrate", path, "--dump-profile"], stdout=file,
                              stderr=subprocess.PIPE, timeout=60)
    report.tell("a profile was made of it", done.stderr.decode("utf-8", "replace") if done.returncode else None)
    _, served = serve_and_measure(options, folder, "served again", report, "--profile", profile, "--seed", "2")
    for name in EXPECTED:
        distance = ks_distance(source[name], served[name])
        report.tell("%s: Kolmogorov-Smirnov distance %.4f, limit %g" % (name, distance, LIMIT),
                    "the two distributions differ" if distance >= LIMIT else None)


def main():
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--python", default=sys.executable, help="the Python that runs the server")
    parser.add_argument("--server", default="server.py")
    parser.add_argument("--requests", type=int, default=5000)
    parser.add_argument("--keep", help="leave the result files in this folder")
    options = parser.parse_args()
    signal.signal(signal.SIGTERM, lambda *_: sys.exit(143))  # so that what was started is ended
    report = Report()
    try:
        if options.keep:
            os.makedirs(options.keep, exist_ok=True)
            prove(options, os.path.abspath(options.keep), report)
        else:
            with tempfile.TemporaryDirectory(prefix="calibrate-proof-") as folder:
                prove(options, folder, report)
    except (RuntimeError, OSError, LookupError, ValueError, AssertionError, subprocess.SubprocessError) as error:
        report.tell("the proof was run", "%s: %s" % (type(error).__name__, error))
    return report.close()


if __name__ == "__main__":
    sys.exit(main())
