"""The gateway test: what standing between a client and its upstream adds to a delta, in time and in CPU.

The same streams are read from the upstream itself, through our server as chat and as Responses, and, where its
program is given, through LiteLLM's proxy as chat, one after the other.
"""

import json
import subprocess
import sys
import tempfile

from bench.process import ROOT, Target

# streams -> ITL in ms: the more streams, the slower, so that two cores hold all of it
GATEWAY_LOADS = ((1, 20.0), (50, 20.0), (300, 60.0))
STREAM_WORDS = 128
_CHAT = "/v1/chat/completions"
_LITELLM_CONFIG = """model_list:
  - model_name: mock-model
    litellm_params:
      model: openai/mock-model
      api_base: %s
      api_key: sk-none
"""


def stamped_load(port, path, streams, options):
    """A load for bench.stamped."""
    body = {"model": "mock-model", "stream": True}
    if path == _CHAT:
        body["messages"] = [{"role": "user", "content": "Say something."}]
    else:
        body.update(input="Say something.", store=False)
    return {
        "port": port, "path": path, "body": json.dumps(body), "conns": streams, "secs": options.paced_secs,
        "warmup_s": 1.5, "spread_s": 1.0,
    }


def ask(load):
    """Read the streams in a process of their own; its figures. Raises RuntimeError when it failed."""
    done = subprocess.run(
        [sys.executable, "-m", "bench.stamped", "ask"], cwd=ROOT, input=json.dumps(load) + "\n", timeout=120,
        stdout=subprocess.PIPE, stderr=subprocess.PIPE, universal_newlines=True,
    )
    if done.returncode:
        raise RuntimeError("reader: " + done.stderr[-1500:])
    return json.loads(done.stdout)


def measure_through(gateway, path, streams, direct, name, options, record):
    """Read through a gateway; (CPU ms per 1,000 deltas or None)."""
    before = gateway.usage()[0]
    result = ask(stamped_load(gateway.port, path, streams, options))
    after = gateway.usage()[0]
    record("errors", result["errors"] + (0 if result["measured"] else 1))
    record("client_cores", result["client_cores"])
    if not result["measured"]:
        return None                     # nothing came in time: an error, and no figures
    for share in ("p50", "p99"):
        record("%s.added_%s_ms" % (name, share), result["age_ms"][share] - direct["age_ms"][share])
    record(name + ".deltas_s", result["measured"] / options.paced_secs)
    if after is None or not result["words"]:
        return None
    cost = (after - before) / result["words"] * 1e6
    record(name + ".cpu_per_1000_ms", cost)
    return cost


def start_litellm(program, upstream_url, folder):
    """LiteLLM's proxy in front of the upstream, as a running Server."""
    config = folder + "/litellm.yaml"
    with open(config, "w", encoding="utf-8") as file:
        file.write(_LITELLM_CONFIG % upstream_url)
    target = Target("litellm", [program, "--config", config, "--host", "127.0.0.1", "--telemetry", "False"], paced=False,
                    ready_s=120.0, health="/health/liveliness", env={"LITELLM_LOCAL_MODEL_COST_MAP": "True", "LITELLM_LOG": "ERROR",
                                                      "NO_PROXY": "127.0.0.1,localhost", "LITELLM_MODE": "PRODUCTION",
                                                      "LITELLM_DANGEROUSLY_PERMIT_WEAK_OR_UNSET_MASTER_KEY": "true"})
    return target.start()


def test_gateway(target, options, record):
    """Added latency and CPU per delta with 1, 50 and 300 streams."""
    upstream_target = Target("upstream", [sys.executable, "-m", "bench.stamped", "serve"], health="/v1/models")
    for streams, itl_ms in GATEWAY_LOADS:
        with upstream_target.start(0, itl_ms, STREAM_WORDS) as upstream:
            url = "http://127.0.0.1:%d/v1" % upstream.port
            name = "gateway.n%d" % streams
            direct = ask(stamped_load(upstream.port, _CHAT, streams, options))
            for share in ("p50", "p99"):
                record("%s.direct_%s_ms" % (name, share), direct["age_ms"][share])
            with target.start(0, 0, 16, ("--backend", "upstream", "--upstream-url", url, "--log-level", "warning")) as ours:
                cost = measure_through(ours, _CHAT, streams, direct, name + ".chat", options, record)
                measure_through(ours, "/v1/responses", streams, direct, name + ".responses", options, record)
            if options.litellm:
                with tempfile.TemporaryDirectory(prefix="bench-") as folder:
                    with start_litellm(options.litellm, url, folder) as peer:
                        theirs = measure_through(peer, _CHAT, streams, direct, name + ".litellm", options, record)
                if cost and theirs:
                    record(name + ".cpu_of_litellm", theirs / cost)
