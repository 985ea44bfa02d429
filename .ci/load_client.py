"""A load generator as a client of a running server: does it see the configured latency and length?

    python .ci/load_client.py guidellm BASE_URL --ttft-ms 100 --itl-ms 10 --output-tokens 32
    python .ci/load_client.py aiperf BASE_URL --ttft-ms 100 --itl-ms 10 --output-tokens 32

In: the tool, and the base URL of a server started with the same three numbers. Out: four lines per API (requests and
the medians of TTFT, ITL and output length), each with the configured value, the tool's and the C generator's, then
"N passed, M failed"; exit 0 only if every request of every run succeeded, every output has the configured length and
all medians are within LIMITS_MS. At the end comes a loaded run over chat: --streams concurrent ones, where the server
is held to what the C generator sees (2 ms and 2 %), the tool's difference is printed, and the page of /metrics has to
have counted exactly what each client counted. GuideLLM drives chat, completions, Responses and chains of Responses (a fifth line:
each turn names the one before by previous_response_id), AIPerf chat, always streamed.

The C generator (streamload.c, looked for in ../shared/bench beside the checkout) is an eye on the same server that
costs next to nothing: it runs right after each run of the tool, not beside it, as two cores would make each measure the
other. Without its source or without `cc` its column is left out, and a line says so. It knows no chains.

Run it with the Python of an environment that holds the tool (seen with guidellm 0.8.1 and aiperf 0.13.0, which both
bring `tokenizers`). Nothing is fetched: the tokenizer is a small byte-level BPE trained on the spot, and all proxy
variables of the tool lead to a closed loopback port.
"""

import argparse
import importlib.metadata
import json
import os
import shutil
import signal
import statistics
import subprocess
import sys
import tempfile
import urllib.parse
import urllib.request

CHECKOUT = os.path.dirname(os.path.dirname(os.path.abspath(__file__)))
GENERATOR_SOURCE = os.path.join(os.path.dirname(CHECKOUT), "shared", "bench", "streamload.c")
GENERATOR_CONNECTIONS = 2  # about as many as the tool has under way at its default rate

PATHS = {"chat": "/v1/chat/completions", "completions": "/v1/completions", "responses": "/v1/responses",
         "chain": "/v1/responses"}
CHAIN_TURNS = 5

# How far a median may be from the configured value. A token before its time is a bug; 1 ms is for clocks, and for gaps
# that a late first token shortens: both tools derive them as (last - first token) / (tokens - 1). Late is what the
# tool, the kernel and a busy machine add.
LIMITS_MS = {"ttft_ms": (-1.0, 5.0), "itl_ms": (-1.0, 1.0)}

# In the loaded run the server is held to this by the C generator alone: ms, and a share of the configured value.
LOADED_LIMIT_MS, LOADED_LIMIT_SHARE = 2.0, 0.02
LOADED_REQUESTS = 400
LOADED_LOOKS = 4        # of the generator: a machine that is busy with something else adds to each, and takes from none

# What a client counts -> the samples of the page that count the same, added up over their labels.
COUNTERS = {"requests": "vllm:request_success_total", "tokens": "vllm:generation_tokens_total",
            "TTFTs": "vllm:time_to_first_token_seconds_count", "ITLs": "vllm:inter_token_latency_seconds_count"}


def build_tokenizer(folder):
    """Train a tiny byte-level BPE and save it where `AutoTokenizer.from_pretrained(folder)` finds it."""
    from tokenizers import Tokenizer, decoders, models, pre_tokenizers, trainers

    tokenizer = Tokenizer(models.BPE())
    tokenizer.pre_tokenizer = pre_tokenizers.ByteLevel(add_prefix_space=False)
    tokenizer.decoder = decoders.ByteLevel()
    trainer = trainers.BpeTrainer(
        vocab_size=600,  # 256 bytes and some merges: any text can be encoded, which is all the tools ask
        initial_alphabet=pre_tokenizers.ByteLevel.alphabet(),
        special_tokens=["<|end|>"],
        show_progress=False,
    )
    tokenizer.train_from_iterator(["the ship and the sea say something about the wind and the sky"] * 20, trainer)
    tokenizer.save(os.path.join(folder, "tokenizer.json"))
    config = {"tokenizer_class": "PreTrainedTokenizerFast", "eos_token": "<|end|>", "model_max_length": 100000}
    with open(os.path.join(folder, "tokenizer_config.json"), "w", encoding="utf-8") as file:
        json.dump(config, file)


def run_command(command, folder, timeout_s, environment=None):
    """Run a command in a folder and return its output (str).

    Raises RuntimeError with the end of the output when it exits non-zero or takes over `timeout_s`. What it started is
    ended with it, as both tools start processes of their own.
    """
    name = os.path.basename(command[0])
    with tempfile.TemporaryFile() as log:
        process = subprocess.Popen(
            command,
            cwd=folder,
            env=environment,
            stdin=subprocess.DEVNULL,
            stdout=log,
            stderr=subprocess.STDOUT,
            start_new_session=True,
        )
        try:
            status = process.wait(timeout_s)
            ended = "exited %d" % status
        except subprocess.TimeoutExpired:
            status, ended = None, "took over %g s" % timeout_s
        finally:
            try:
                os.killpg(process.pid, signal.SIGKILL)
            except ProcessLookupError:  # all gone
                pass
            process.wait()
        log.seek(0)
        output = log.read().decode("utf-8", "replace")
    if status != 0:
        raise RuntimeError("%s %s:\n%s" % (name, ended, output[-3000:]))
    return output


def tool_environment(folder, **settings):
    """The variables for a tool: ours with `settings`, a cache of its own, and no way off this machine."""
    closed = "http://127.0.0.1:9"
    environment = {name: value for name, value in os.environ.items()
                   if name not in ("HF_HUB_OFFLINE", "TRANSFORMERS_OFFLINE")}
    for name in ("HTTP_PROXY", "HTTPS_PROXY", "ALL_PROXY"):
        environment[name] = environment[name.lower()] = closed
    environment["NO_PROXY"] = environment["no_proxy"] = "127.0.0.1,localhost"
    environment.update(HF_HOME=os.path.join(folder, "hf"), DO_NOT_TRACK="1", **settings)
    return environment


# ---- the clients: each gives what it saw -------------------------------------------------------
#
# {"succeeded": int, "wrong": [str], "ttft_ms": float, "itl_ms": float, "tokens": float, "tokens_range": (min, max)},
# where ttft_ms, itl_ms and tokens are medians over the successful requests.


def measure_guidellm(options, api, folder):
    """What GuideLLM sees: `options.requests` at a constant rate; the turns of a chain wait for each other."""
    backend = "kind=openai_http,target=%s,model=%s,request_format=%s" % (options.base_url, options.model, PATHS[api])
    data = "kind=synthetic_text,prompt_tokens=32,output_tokens=%d" % options.output_tokens
    if api == "chain":
        backend += ",server_history=true"
        data += ",turns=%d" % CHAIN_TURNS
    report = os.path.join(folder, api + ".json")
    run_command(
        [
            beside_python("guidellm"),
            "run",
            "--backend",
            backend,
            "--profile",
            "kind=constant,rate=%g" % options.rate if not options.concurrency
            else "kind=concurrent,streams=%d" % options.concurrency,
            "--constraint",
            "kind=max_requests,count=%d" % options.requests,
            "--tokenizer",
            "kind=huggingface_auto,model=%s" % folder,
            "--data",
            data,
            "--output",
            "kind=json,path=%s" % report,
            "--disable-console-interactive",
        ],
        folder,
        options.timeout_s,
        # One worker is enough for this load, and each takes seconds to import torch.
        tool_environment(folder, HF_HUB_OFFLINE="1", TRANSFORMERS_OFFLINE="1", GUIDELLM__MAX_WORKER_PROCESSES="1"),
    )
    with open(report, encoding="utf-8") as file:
        benchmark = json.load(file)["benchmarks"][0]
    metrics, requests = benchmark["metrics"], benchmark["requests"]
    totals = metrics["request_totals"]
    wrong = []
    if totals["errored"] or totals["incomplete"]:
        wrong.append(json.dumps(totals))
    for request in requests["errored"][:1]:
        wrong.append("first error: %s" % ((request.get("info") or {}).get("error") or "unknown"))

    def median(metric):
        return float((metrics[metric]["successful"] or {}).get("median") or 0.0)

    view = seen(totals["successful"], wrong, median("time_to_first_token_ms"), median("inter_token_latency_ms"),
                [request["output_tokens"] for request in requests["successful"]])
    if api == "chain":
        view["turns"], view["broken"] = read_chains(requests["successful"])
    return view


def read_chains(requests):
    """([number of the turn in its conversation, for each request], [what is wrong]) of GuideLLM's requests."""
    turns, inputs, wrong = {}, {}, []
    for request in sorted(requests, key=lambda one: one["request_start_time"]):
        id, before = request["response_id"], json.loads(request["request_args"])["body"].get("previous_response_id")
        inputs[id] = request["prompt_tokens"]
        turns[id] = turns.get(before, 0) + 1
        if before is not None and before not in turns:
            wrong.append("%s follows %s, which is no response of this run" % (id, before))
        elif before is not None and inputs[id] <= inputs[before] + request["output_tokens"]:
            wrong.append("%s has %d input tokens, the turn before had %d" % (id, inputs[id], inputs[before]))
    return sorted(turns.values()), wrong


def measure_aiperf(options, api, folder):
    """What AIPerf sees: `options.requests` at a constant rate. The server's flag decides the length: none is asked."""
    artifacts = os.path.join(folder, "aiperf")
    run_command(
        [
            beside_python("aiperf"),
            "profile",
            "--model",
            options.model,
            "--url",
            options.base_url,
            "--endpoint-type",
            api,
            "--streaming",
            "--use-server-token-count",  # of the usage chunk; the tokenizer only makes prompts
            "--tokenizer",
            folder,
            "--isl",
            "32",
            *(("--concurrency", "%d" % options.concurrency) if options.concurrency
              else ("--arrival-pattern", "constant", "--request-rate", "%g" % options.rate)),
            "--request-count",
            "%d" % options.requests,
            "--workers-max",
            "1",
            "--record-processors",
            "1",
            "--ui",
            "none",
            "--no-gpu-telemetry",
            "--no-server-metrics",
            "--output-artifact-dir",
            artifacts,
        ],
        folder,
        options.timeout_s,
        tool_environment(folder),  # with HF_HUB_OFFLINE set it takes no tokenizer by path
    )
    with open(os.path.join(artifacts, "profile_export_aiperf.json"), encoding="utf-8") as file:
        report = json.load(file)
    lengths, wrong = [], []
    with open(os.path.join(artifacts, "profile_export.jsonl"), encoding="utf-8") as file:
        for line in file:
            record = json.loads(line)
            if record.get("error"):
                wrong.append("first error: %s" % json.dumps(record["error"]))
                continue
            lengths.append(record["metrics"]["output_sequence_length"]["value"])

    def median(metric):
        return float((report.get(metric) or {}).get("p50") or 0.0)

    return seen(len(lengths), wrong[:1], median("time_to_first_token"), median("inter_token_latency"), lengths)


def measure_generator(options, api, generator):
    """What the C generator sees: as many requests, one after the other on each of its connections.

    Its median ITL is over all gaps of all streams; its length is the number of events that carry text.
    """
    words = "What does the sea say to the ship?"
    body = {
        "chat": {"messages": [{"role": "user", "content": words}]},
        "completions": {"prompt": words, "max_tokens": options.output_tokens},  # 16 by the API's default, whatever flags
        "responses": {"input": words},
    }[api]
    output = run_command(
        [
            generator,
            "stream",
            "--port",
            str(urllib.parse.urlsplit(options.base_url).port),
            "--path",
            PATHS[api],
            "--kind",
            api,
            "--body",
            json.dumps(dict(body, model=options.model, stream=True)),
            "--conns",
            str(options.concurrency or GENERATOR_CONNECTIONS),
            "--max-requests",
            str(options.requests),
            "--secs",
            "30",
        ],
        os.path.dirname(generator),
        options.timeout_s,
    )
    report = json.loads(output)
    wrong = []
    if report["errors"] or report["unfinished"]:
        wrong.append("errors %s, unfinished %d" % (json.dumps(report["error_kinds"]), report["unfinished"]))
    least, most = report["tokens_per_stream_min"], report["tokens_per_stream_max"]
    # Only the two ends are known: they make the median when they are equal, and a failed check when not.
    return seen(report["requests"], wrong, report["ttft_ms"]["p50"], report["gap_ms"]["p50"], [least, most])


def seen(succeeded, wrong, ttft_ms, itl_ms, lengths):
    """The record that the measurers return."""
    lengths = lengths or [0]
    total = sum(lengths) if len(lengths) == succeeded else min(lengths) * succeeded     # the generator says both ends
    return {"total": total, "succeeded": succeeded, "wrong": wrong, "ttft_ms": ttft_ms, "itl_ms": itl_ms,
            "tokens": statistics.median(lengths), "tokens_range": (min(lengths), max(lengths))}


def beside_python(command):
    """The path of a command of this Python's environment."""
    return os.path.join(os.path.dirname(sys.executable), command)


def build_generator(folder):
    """(path of the compiled C generator or None, what to say about it).

    Raises RuntimeError when it is there and does not compile.
    """
    if not os.path.isfile(GENERATOR_SOURCE):
        return None, "C generator left out: no shared/bench/streamload.c beside the checkout"
    compiler = shutil.which("cc")
    if compiler is None:
        return None, "C generator left out: no C compiler (cc) here"
    path = os.path.join(folder, "streamload")
    run_command([compiler, "-O2", "-o", path, GENERATOR_SOURCE], folder, 60)
    return path, "C generator: shared/bench/streamload.c, %d connections" % GENERATOR_CONNECTIONS


# ---- the checks --------------------------------------------------------------------------------

TOOLS = {  # command: (name, measurer, APIs)
    "aiperf": ("AIPerf", measure_aiperf, ("chat",)),
    "guidellm": ("GuideLLM", measure_guidellm, ("chat", "completions", "responses", "chain")),
}


def scrape(options):
    """{what COUNTERS name: int} of the server's page just now."""
    root = urllib.parse.urljoin(options.base_url, "/metrics")
    opener = urllib.request.build_opener(urllib.request.ProxyHandler({}))
    with opener.open(root, timeout=10) as answer:
        lines = answer.read().decode("utf-8").splitlines()
    found = dict.fromkeys(COUNTERS, 0)
    for line in lines:
        for name, sample in COUNTERS.items():
            if line.startswith((sample + "{", sample + " ")):
                found[name] += int(float(line.rsplit(" ", 1)[1]))
    return found


def within_loaded(options, key, value):
    wanted = getattr(options, key)
    return abs(value - wanted) <= LOADED_LIMIT_MS + LOADED_LIMIT_SHARE * wanted


def check_loaded(options, folder, generator):
    """The loaded run: (passed, failed). The tool and the generator run one after the other."""
    name, measure, _ = TOOLS[options.tool]
    loaded = argparse.Namespace(**dict(vars(options), concurrency=options.streams, requests=LOADED_REQUESTS))
    good = bad = 0

    def say(title, figures, rule, wrong):
        nonlocal good, bad
        good, bad = good + (not wrong), bad + bool(wrong)
        print("%-11s %-8s %s: %s" % ("loaded", title, ", ".join(figures), "FAILED, not %s: %s" % (rule, "; ".join(wrong))
                                     if wrong else "ok, " + rule), flush=True)
    try:
        before = scrape(options)
        views, counted = [], []
        for client, run in ((name, lambda: measure(loaded, "chat", folder)),
                            ("C generator", lambda: measure_generator(loaded, "chat", generator))):
            if client == name or generator:
                views.append((client, run()))
                after = scrape(options)
                counted.append({key: after[key] - before[key] for key in after})
                before = after
    except (RuntimeError, OSError, LookupError, ValueError) as error:
        say("run", [], "readable", ["%s: %s" % (type(error).__name__, error)])
        return good, bad
    say("requests", *check_requests(loaded, views))
    say("length", *check_length(loaded, views))
    try:
        for _ in range(LOADED_LOOKS - 1 if generator else 0):
            if all(within_loaded(options, key, views[1][1][key]) for key in LIMITS_MS):
                break
            again = measure_generator(loaded, "chat", generator)
            views[1] = (views[1][0], dict(views[1][1], **{
                key: min(views[1][1][key], again[key], key=lambda value: abs(value - getattr(options, key)))
                for key in LIMITS_MS}))
    except (RuntimeError, OSError, LookupError, ValueError) as error:
        say("again", [], "readable", ["%s: %s" % (type(error).__name__, error)])
    for title, key in (("TTFT", "ttft_ms"), ("ITL", "itl_ms")):
        wanted = getattr(options, key)
        limit = LOADED_LIMIT_MS + LOADED_LIMIT_SHARE * wanted
        figures = ["%d streams, configured %g ms" % (options.streams, wanted)] + [
            "%s %.2f (%+.2f)" % (client, view[key], view[key] - wanted) for client, view in views]
        wrong = ["%s %+.2f ms off" % (client, view[key] - wanted) for client, view in views[1:]
                 if not within_loaded(options, key, view[key])]
        say(title, figures, "within %g ms by the generator" % limit if generator else "printed only", wrong)
    for (client, view), seen_there in zip(views, counted):
        wanted = {"requests": view["succeeded"], "tokens": view["total"], "TTFTs": view["succeeded"],
                  "ITLs": view["total"] - view["succeeded"]}
        say("counts", ["%s: %s" % (client, wanted)], "what /metrics has counted",
            [] if wanted == seen_there else ["the page has %s" % seen_there])
    return good, bad


def check_requests(options, views):
    """(figures, rule, what is wrong) for the requests of all clients; `views` is [(client's name, what it saw)]."""
    wrong = []
    for name, view in views:
        if view["succeeded"] != options.requests or view["wrong"]:
            wrong.append("%s: %s" % (name, "; ".join(view["wrong"]) or "not all succeeded"))
    figures = ["%s %d of %d" % (name, view["succeeded"], options.requests) for name, view in views]
    return figures, "all succeeded", wrong


def check_median(options, views, key):
    """The same for the medians of ttft_ms or itl_ms."""
    configured = getattr(options, key)
    early, late = LIMITS_MS[key]
    wrong = ["%s is %+.2f ms off" % (name, view[key] - configured) for name, view in views
             if not early <= view[key] - configured <= late]
    figures = ["configured %g ms" % configured] + ["%s %.2f" % (name, view[key]) for name, view in views]
    return figures, "within %+g to %+g ms" % (early, late), wrong


def check_length(options, views):
    """The same for the output tokens, which must be exact in each request, not only in the median."""
    wanted = options.output_tokens
    wrong = ["%s saw %d to %d" % ((name,) + view["tokens_range"]) for name, view in views
             if view["tokens_range"] != (wanted, wanted)]
    figures = ["configured %d tokens" % wanted] + ["%s %g" % (name, view["tokens"]) for name, view in views]
    return figures, "exact in each request", wrong


def check_chains(options, views):
    """The same for chains: at least every other request follows one, and brings what was said as its input."""
    name, view = views[0]
    followers = sum(1 for turn in view["turns"] if turn > 1)
    wrong = view["broken"][:3]
    if followers < options.requests // 2:
        wrong.append("only %d requests follow another" % followers)
    return ["%s %d requests, the longest chain %d turns" % (name, followers, max(view["turns"], default=0))], \
        "each after a response of this run, whose text it was given", wrong


def check_api(options, api, folder, generator):
    """Run the tool and the C generator over one API and print a line per check; (passed, failed)."""
    name, measure, _ = TOOLS[options.tool]
    try:
        views = [(name, measure(options, api, folder))]
        if generator and api != "chain":
            views.append(("C generator", measure_generator(options, api, generator)))
    except (RuntimeError, OSError, LookupError, ValueError) as error:  # not run, or a report of another shape
        print("%-11s FAILED: %s: %s" % (api, type(error).__name__, error), flush=True)
        return 0, 1
    failed = 0
    checks = [
        ("requests", check_requests(options, views)),
        ("TTFT", check_median(options, views, "ttft_ms")),
        ("ITL", check_median(options, views, "itl_ms")),
        ("length", check_length(options, views)),
    ]
    if api == "chain":
        checks.append(("turns", check_chains(options, views)))
    for title, (figures, rule, wrong) in checks:
        failed += bool(wrong)
        verdict = "FAILED, not %s: %s" % (rule, "; ".join(wrong)) if wrong else "ok, " + rule
        print("%-11s %-8s %s: %s" % (api, title, ", ".join(figures), verdict), flush=True)
    return len(checks) - failed, failed


def parse_options(arguments):
    """The command line as a namespace; times in milliseconds but for `timeout_s`."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("tool", choices=sorted(TOOLS))
    parser.add_argument("base_url", help="http://127.0.0.1:PORT")
    parser.add_argument("--ttft-ms", type=float, default=100.0)
    parser.add_argument("--itl-ms", type=float, default=10.0)
    parser.add_argument("--output-tokens", type=int, default=32)
    parser.add_argument("--requests", type=int, default=10)
    parser.add_argument("--rate", type=float, default=4.0, help="the tool's requests per second (default: 4)")
    parser.add_argument("--streams", type=int, default=50, help="of the loaded run; 0: without it (default: 50)")
    parser.add_argument("--model", default="mock-model")
    parser.add_argument("--api", choices=sorted(PATHS), action="append", help="default: all that the tool is run on")
    parser.add_argument("--timeout-s", type=float, default=60.0, help="per run, imports included (default: 60)")
    options = parser.parse_args(arguments)
    options.concurrency = 0
    apis = TOOLS[options.tool][2]
    options.api = options.api or apis
    if not set(options.api) <= set(apis):
        parser.error("%s is run on %s" % (options.tool, ", ".join(apis)))
    return options


def main(arguments=None):
    """Run the tool once per API, print the checks, return the exit status."""
    options = parse_options(arguments)
    signal.signal(signal.SIGTERM, lambda *_: sys.exit(143))  # so that what was started is ended
    version = importlib.metadata.version(options.tool)
    print("%s %s on Python %s" % (options.tool, version, sys.version.split()[0]), flush=True)
    passed = failed = 0
    with tempfile.TemporaryDirectory(prefix="load-client-") as folder:
        try:
            generator, remark = build_generator(folder)
        except RuntimeError as error:
            generator, remark, failed = None, "C generator FAILED: %s" % error, 1
        print(remark, flush=True)
        build_tokenizer(folder)
        for api in options.api:
            good, bad = check_api(options, api, folder, generator)
            passed, failed = passed + good, failed + bad
        if options.streams:
            good, bad = check_loaded(options, folder, generator)
            passed, failed = passed + good, failed + bad
    print("%d passed, %d failed" % (passed, failed))
    return 1 if failed else 0


if __name__ == "__main__":
    sys.exit(main())
