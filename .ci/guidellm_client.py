"""GuideLLM, the load generator, as a client of a running server: does it see the configured latency?

    python .ci/guidellm_client.py BASE_URL --ttft-ms 100 --itl-ms 10 --output-tokens 32

In: the base URL of a server started with the same three numbers. Out: one line per API with GuideLLM's own medians
beside the configured ones; exit 0 only if every request of every run succeeded with the asked number of tokens and no
median is early. Run it with the Python of an environment that holds `guidellm` (it brings `tokenizers` along; seen
with guidellm 0.8.1 and tokenizers 0.23.3, whose command is `guidellm run`). Nothing is fetched: the tokenizer is a
small byte-level BPE trained on the spot, and the Hugging Face libraries are told that they are offline.
"""

import argparse
import json
import os
import subprocess
import sys
import tempfile

APIS = {"chat": "/v1/chat/completions", "responses": "/v1/responses"}

# A server may be late on a busy machine, but a token before its time is a bug. A late first token shortens the gaps
# that GuideLLM derives (last - first token, over tokens - 1), hence the allowance.
EARLY_MS = 2.0


def build_tokenizer(folder):
    """Train a tiny byte-level BPE and save it where `AutoTokenizer.from_pretrained(folder)` finds it."""
    from tokenizers import Tokenizer, decoders, models, pre_tokenizers, trainers

    tokenizer = Tokenizer(models.BPE())
    tokenizer.pre_tokenizer = pre_tokenizers.ByteLevel(add_prefix_space=False)
    tokenizer.decoder = decoders.ByteLevel()
    trainer = trainers.BpeTrainer(
        vocab_size=600,  # 256 bytes and some merges: any text can be encoded, which is all the generator asks
        initial_alphabet=pre_tokenizers.ByteLevel.alphabet(),
        special_tokens=["<|end|>"],
        show_progress=False,
    )
    tokenizer.train_from_iterator(["the ship and the sea say something about the wind and the sky"] * 20, trainer)
    tokenizer.save(os.path.join(folder, "tokenizer.json"))
    config = {"tokenizer_class": "PreTrainedTokenizerFast", "eos_token": "<|end|>", "model_max_length": 100000}
    with open(os.path.join(folder, "tokenizer_config.json"), "w", encoding="utf-8") as file:
        json.dump(config, file)


def run_guidellm(options, api, folder):
    """Run one benchmark and return its report: {"benchmarks": [{"metrics": {...}, "requests": {...}}]}.

    Raises RuntimeError with the end of GuideLLM's output when it exits non-zero or takes over `timeout_s`.
    """
    report = os.path.join(folder, api + ".json")
    command = [
        options.guidellm,
        "run",
        "--backend",
        "kind=openai_http,target=%s,model=%s,request_format=%s" % (options.base_url, options.model, APIS[api]),
        "--profile",
        "kind=constant,rate=%g" % options.rate,
        "--constraint",
        "kind=max_requests,count=%d" % options.requests,
        "--tokenizer",
        "kind=huggingface_auto,model=%s" % folder,
        "--data",
        "kind=synthetic_text,prompt_tokens=32,output_tokens=%d" % options.output_tokens,
        "--output",
        "kind=json,path=%s" % report,
        "--disable-console-interactive",
    ]
    environment = dict(os.environ, HF_HUB_OFFLINE="1", TRANSFORMERS_OFFLINE="1", HF_HOME=os.path.join(folder, "hf"))
    try:
        done = subprocess.run(
            command,
            cwd=folder,
            env=environment,
            stdin=subprocess.DEVNULL,
            stdout=subprocess.PIPE,
            stderr=subprocess.STDOUT,
            timeout=options.timeout_s,
            check=False,
        )
    except subprocess.TimeoutExpired as error:
        raise RuntimeError("guidellm took over %g s:\n%s" % (options.timeout_s, tail(error.output))) from error
    if done.returncode:
        raise RuntimeError("guidellm exited %d:\n%s" % (done.returncode, tail(done.stdout)))
    with open(report, encoding="utf-8") as file:
        return json.load(file)


def tail(output):
    """The last 3,000 characters of a subprocess's output (bytes or None)."""
    return (output or b"").decode("utf-8", "replace")[-3000:]


def check_report(options, report):
    """Return ({"ttft_ms": float, "itl_ms": float} medians, [what is wrong: str])."""
    benchmark = report["benchmarks"][0]
    totals = benchmark["metrics"]["request_totals"]
    wrong = []
    if totals["successful"] != options.requests or totals["errored"] or totals["incomplete"]:
        wrong.append("of %d requests: %s" % (options.requests, json.dumps(totals)))
    for request in benchmark["requests"]["errored"][:1]:
        wrong.append("first error: %s" % ((request.get("info") or {}).get("error") or "unknown"))
    tokens = sorted({request["output_tokens"] for request in benchmark["requests"]["successful"]})
    if tokens != [options.output_tokens]:
        wrong.append("output tokens per request %s, not %d" % (tokens, options.output_tokens))
    medians = {}
    for name, metric in (("ttft_ms", "time_to_first_token_ms"), ("itl_ms", "inter_token_latency_ms")):
        found = (benchmark["metrics"][metric]["successful"] or {}).get("median")
        medians[name] = float(found or 0.0)
        late = medians[name] - getattr(options, name)
        if late < -EARLY_MS:
            wrong.append("%s is early: median %.2f" % (name, medians[name]))
        if options.late_ms and late > options.late_ms:
            wrong.append("%s is over %g ms late: median %.2f" % (name, options.late_ms, medians[name]))
    return medians, wrong


def parse_options(arguments):
    """The command line as a namespace; times in milliseconds but for `timeout_s`."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("base_url", help="http://127.0.0.1:PORT")
    parser.add_argument("--ttft-ms", type=float, default=100.0)
    parser.add_argument("--itl-ms", type=float, default=10.0)
    parser.add_argument("--output-tokens", type=int, default=32)
    parser.add_argument("--requests", type=int, default=10)
    parser.add_argument("--rate", type=float, default=4.0, help="requests per second (default: 4)")
    parser.add_argument("--model", default="mock-model")
    parser.add_argument("--api", choices=sorted(APIS), action="append", help="default: both")
    parser.add_argument("--late-ms", type=float, default=0.0, help="fail above this much over the configured (0: off)")
    parser.add_argument("--timeout-s", type=float, default=180.0, help="per run, imports included (default: 180)")
    beside = os.path.join(os.path.dirname(sys.executable), "guidellm")
    parser.add_argument("--guidellm", default=beside, help="its command (default: beside this Python)")
    return parser.parse_args(arguments)


def main(arguments=None):
    """Run GuideLLM once per API, print the medians, return the exit status."""
    options = parse_options(arguments)
    failed = False
    with tempfile.TemporaryDirectory(prefix="guidellm-client-") as folder:
        build_tokenizer(folder)
        for api in options.api or sorted(APIS):
            try:
                medians, wrong = check_report(options, run_guidellm(options, api, folder))
            except RuntimeError as error:
                print("%-10s FAILED: %s" % (api, error), flush=True)
                failed = True
                continue
            print(
                "%-10s TTFT median %.2f ms (configured %g), ITL median %.2f ms (configured %g): %s"
                % (api, medians["ttft_ms"], options.ttft_ms, medians["itl_ms"], options.itl_ms,
                   "FAILED: " + "; ".join(wrong) if wrong else "ok, %d requests" % options.requests),
                flush=True,
            )
            failed = failed or bool(wrong)
    return 1 if failed else 0


if __name__ == "__main__":
    sys.exit(main())
