"""The metrics page: Metrics as Prometheus text, or OpenMetrics where the scraper asks for that.

Names, labels and bounds of the `vllm:` part are vLLM's, current and older spellings side by side, as dashboards,
autoscalers and endpoint pickers read both; `mockturtle_` is what this server alone has. Whoever calls, renders:
some 0.3 ms and 0.2 ms a model, with no lock held.
"""
import os
import sys
import time
from itertools import accumulate

from api_common import __version__
from observe.metrics import (CHOICES_BOUNDS, FINISH_REASONS, ITL_BOUNDS_S, LATENESS_BOUNDS_MS, REQUEST_BOUNDS_S,
                             TTFT_BOUNDS_S)

PROMETHEUS_TYPE = "text/plain; version=0.0.4; charset=utf-8"
OPENMETRICS_TYPE = "application/openmetrics-text; version=1.0.0; charset=utf-8"

_LABELS = "\0"                      # stands in a template for a model's labels

# (name without vllm:, key of Metrics.read_models(), bounds or None for those of tokens, help)
_MODEL_HISTOGRAMS = (
    ("time_to_first_token_seconds", "ttft", TTFT_BOUNDS_S, "From the request's arrival to its first token, seconds."),
    ("inter_token_latency_seconds", "itl", ITL_BOUNDS_S, "Between two tokens of an answer, seconds."),
    ("time_per_output_token_seconds", "itl", ITL_BOUNDS_S, "Older name of vllm:inter_token_latency_seconds."),
    ("request_time_per_output_token_seconds", "tpot", ITL_BOUNDS_S, "Mean time per token behind the first, seconds."),
    ("e2e_request_latency_seconds", "e2e", REQUEST_BOUNDS_S, "From the request's arrival to its end, seconds."),
    ("request_queue_time_seconds", "queue", REQUEST_BOUNDS_S, "Time in the engine's queue, seconds."),
    ("request_prefill_time_seconds", "prefill", REQUEST_BOUNDS_S, "From the queue's end to the first token, seconds."),
    ("request_decode_time_seconds", "decode", REQUEST_BOUNDS_S, "From the first token to the last, seconds."),
    ("request_inference_time_seconds", "inference", REQUEST_BOUNDS_S, "From the queue's end to the last token, seconds."),
    ("request_prompt_tokens", "prompt", None, "Prompt tokens of a finished request."),
    ("request_prefill_kv_computed_tokens", "computed", None, "Prompt tokens that no prefix cache had."),
    ("request_generation_tokens", "completion", None, "Completion tokens of a finished request."),
    ("request_max_num_generation_tokens", "longest", None, "Completion tokens of a request's choice, on average."),
    ("request_params_max_tokens", "limit", None, "The request's limit of completion tokens, where it has one."),
    ("request_params_n", "choices", CHOICES_BOUNDS, "The request's number of choices."),
)
# (name without vllm: and _total, key, help)
_MODEL_COUNTERS = (
    ("prompt_tokens", "prompt_tokens", "Prompt tokens."),
    ("generation_tokens", "completion_tokens", "Completion tokens."),
    ("prefix_cache_queries", "prompt_tokens", "Prompt tokens that were looked up in the prefix cache."),
    ("prefix_cache_hits", "cached_tokens", "Prompt tokens that the prefix cache had."),
    ("gpu_prefix_cache_queries", "prompt_tokens", "Older name of vllm:prefix_cache_queries."),
    ("gpu_prefix_cache_hits", "cached_tokens", "Older name of vllm:prefix_cache_hits."),
)
# (name without mockturtle_, type, key of Metrics.gauges() or counter of Metrics.add(), help)
_SERVER_VALUES = (
    ("heartbeats_sent", "counter", "heartbeats", "SSE comments sent while a stream had nothing due."),
    ("client_disconnects", "counter", "disconnects", "Clients that left before their answer was out."),
    ("connections_open", "gauge", "connections_open", "Open connections."),
    ("connections", "counter", "connections", "Accepted connections."),
    ("websockets_open", "gauge", "websockets_open", "Open WebSockets."),
    ("websockets", "counter", "websockets", "Accepted WebSockets."),
    ("plays_in_progress", "gauge", "plays", "Answers that are being written or wait for their time."),
    ("background_responses", "gauge", "background", "Background responses in progress."),
    ("worker_jobs_waiting", "gauge", "worker_jobs", "Jobs that wait for a worker thread."),
    ("exceptions", "counter", "exceptions", "Unexpected faults, each with a traceback in the log."),
    ("failures", "counter", "failures", "Generations that failed after they had begun."),
    ("store_responses", "gauge", "responses", "Stored responses and chat completions."),
    ("store_tombstones", "gauge", "tombstones", "Removed responses that others still follow."),
    ("store_conversations", "gauge", "conversations", "Conversations."),
    ("store_bytes", "gauge", "bytes", "Bytes of all that is stored."),
    ("store_evicted", "counter", "evicted", "Stored responses and conversations that made room for others."),
    ("store_expired", "counter", "expired", "Stored responses that became too old."),
)
# counters by kind, see Metrics.add_labelled(): (name without mockturtle_, key, label, help)
_SERVER_KINDS = (
    ("faults_injected", "faults", "kind", "Faults that were injected on purpose."),
)


def wants_openmetrics(accept):
    """Whether an Accept header asks for OpenMetrics, as Prometheus does by itself."""
    for choice in accept.lower().split(","):
        kind, _, parameters = choice.strip().partition(";")
        if kind.strip() == "application/openmetrics-text":
            return "q=0" not in [parameter.strip() for parameter in parameters.split(";")]
    return False


def escape_label(value):
    """A text as it stands between the quotes of a label."""
    return value.replace("\\", "\\\\").replace('"', '\\"').replace("\n", "\\n")


def render_metrics(metrics, openmetrics=False, breathe=None):
    """The page as bytes. breathe: None, or called now and then on a thread that others should go before."""
    page = _Page(openmetrics, breathe or int)
    _add_engine(page, metrics)
    models = [('engine="0",model_name="%s"' % escape_label(name), values)
              for name, values in metrics.read_models(breathe or int)]
    for name, key, text in _MODEL_COUNTERS:
        page.add("vllm:" + name, "counter", text, [(labels, values[key]) for labels, values in models])
    page.add("vllm:num_preemptions", "counter", "Preemptions: there are none here.", [(labels, 0) for labels, _ in models])
    page.add("vllm:request_success", "counter", "Finished requests by reason; abort: the client left, error: it failed.", [
        ('%s,finished_reason="%s"' % (labels, escape_label(reason)), values["reasons"].get(reason, 0))
        for labels, values in models
        for reason in FINISH_REASONS + tuple(sorted(set(values["reasons"]) - set(FINISH_REASONS)))])
    for name, key, bounds, text in _MODEL_HISTOGRAMS:
        page.add_histogram("vllm:" + name, text, bounds or metrics.token_bounds,
                           [(labels, *values[key]) for labels, values in models])
    _add_server(page, metrics)
    _add_process(page)
    return page.finish()


class _Page:

    def __init__(self, openmetrics, breathe):
        self._openmetrics = openmetrics
        self._breathe = breathe
        self._parts = []

    def _open(self, name, kind, text):
        self._breathe()
        if kind == "counter" and not self._openmetrics:
            name += "_total"
        self._parts.append("# HELP %s %s\n# TYPE %s %s\n" % (name, text, name, kind))

    def add(self, name, kind, text, samples):
        """samples: [(labels, number)]. name: of a counter without _total."""
        self._open(name, kind, text)
        if kind == "counter":
            name += "_total"
        for labels, value in samples:
            self._parts.append("%s{%s} %s\n" % (name, labels, value) if labels else "%s %s\n" % (name, value))

    def add_histogram(self, name, text, bounds, samples):
        """samples: [(labels, counts per bound and above, sum)]."""
        self._open(name, "histogram", text)
        template = _histogram_template(name, bounds)
        for labels, counts, total in samples:
            counts = tuple(accumulate(counts))
            lines = template % (*counts, counts[-1], total)
            self._parts.append(lines.replace(_LABELS, labels) if labels else lines.replace("{\0,", "{").replace("{\0}", ""))

    def finish(self):
        if self._openmetrics:
            self._parts.append("# EOF\n")
        return "".join(self._parts).encode("utf-8", "replace")


def _histogram_template(name, bounds):
    """The lines of a histogram with %-places for its cumulative counts, its count and its sum."""
    lines = ['%s_bucket{%s,le="%s"} %%d\n' % (name, _LABELS, float(bound)) for bound in bounds]
    lines.append('%s_bucket{%s,le="+Inf"} %%d\n%s_count{%s} %%d\n%s_sum{%s} %%s\n' % (
        name, _LABELS, name, _LABELS, name, _LABELS))
    return "".join(lines)


def _add_engine(page, metrics):
    """The one engine's state: under the first --model, whatever names clients use."""
    labels = 'engine="0",model_name="%s"' % escape_label(metrics.engine_name)
    running, waiting = metrics.read_load()
    cache, engine = metrics.cache_stats(), metrics.engine
    blocks, block_tokens, usage = 0, metrics.block_tokens, 0.0
    if cache is not None:
        blocks = cache.max_blocks
        if engine is not None:
            usage = min(1.0, engine.tokens / (blocks * block_tokens))
    for name, value, text in (
            ("num_requests_running", running, "Requests that are being generated."),
            ("num_requests_waiting", waiting, "Requests that wait for the engine."),
            ("num_requests_swapped", 0, "Requests swapped out: there are none here."),
            ("kv_cache_usage_perc", usage, "Share of the cache's blocks that running requests hold; 1 is all."),
            ("gpu_cache_usage_perc", usage, "Older name of vllm:kv_cache_usage_perc.")):
        page.add("vllm:" + name, "gauge", text, [(labels, value)])
    page.add("vllm:cache_config_info", "gauge", "What the prefix cache is.", [(
        'engine="0",block_size="%d",num_gpu_blocks="%d",enable_prefix_caching="%s"' % (
            block_tokens, blocks, cache is not None), 1)])
    if cache is not None:
        page.add("mockturtle_prefix_cache_blocks", "gauge", "Blocks that the prefix cache holds.", [("", cache.blocks)])
        page.add("mockturtle_prefix_cache_evictions", "counter", "Blocks that had to go.", [("", cache.evictions)])
    page.add("vllm:lora_requests_info", "gauge", "Adapters: there are none here; the value is the time.", [(
        'max_lora="0",running_lora_adapters="",waiting_lora_adapters=""', time.time())])


def _add_server(page, metrics):
    page.add("mockturtle_build_info", "gauge", "What runs.", [(
        'version="%s",python="%s",implementation="%s",system="%s"' % tuple(map(escape_label, (
            __version__, "%d.%d.%d" % sys.version_info[:3], sys.implementation.name, sys.platform))), 1)])
    counts, total = metrics.lateness.histogram()
    page.add_histogram("mockturtle_frame_lateness_seconds", "How late timed frames went out, seconds.",
                       [bound / 1000.0 for bound in LATENESS_BOUNDS_MS], [("", counts, total)])
    page.add("mockturtle_http_requests", "counter", "Answered requests; a message of a WebSocket has the method WS, a "
             "client that left before its answer the status 499.", [
                 ('route="%s",method="%s",status="%d"' % (route or "unknown", method, status), number)
                 for (route, method, status), number in sorted(metrics.read_answers().items(), key=_request_order)])
    counts, kinds = metrics.read_counts()
    page.add("mockturtle_errors", "counter", "Answered errors by class.", [
        ('class="%s"' % kind, counts.get("errors_" + kind, 0)) for kind in ("4xx", "5xx")])
    values = dict(counts)
    values.update(metrics.gauges())
    for name, kind, key, text in _SERVER_VALUES:
        value = values.get(key, None if key in _STORE_KEYS else 0)
        if value is not None:           # a store that is broken has none
            page.add("mockturtle_" + name, kind, text, [("", value)])
    for name, key, label, text in _SERVER_KINDS:
        page.add("mockturtle_" + name, "counter", text, [
            ('%s="%s"' % (label, escape_label(kind)), number) for (each, kind), number in sorted(kinds.items())
            if each == key])


_STORE_KEYS = frozenset(("responses", "tombstones", "conversations", "bytes", "evicted", "expired"))


def _request_order(entry):
    (route, method, status), _ = entry
    return route or "", method, status


def _add_process(page):
    """What exporters in any language say of their process, where the platform tells."""
    page.add("process_cpu_seconds", "counter", "CPU time of the process, seconds.", [("", round(time.process_time(), 3))])
    try:
        with open("/proc/self/stat", encoding="ascii", errors="replace") as file:
            fields = file.read().rpartition(")")[2].split()
        with open("/proc/stat", encoding="ascii") as file:
            booted_s = next(int(line.split()[1]) for line in file if line.startswith("btime "))
        started_s = booted_s + int(fields[19]) / os.sysconf("SC_CLK_TCK")
        found = (("virtual_memory_bytes", int(fields[20]), "Virtual memory, bytes."),
                 ("resident_memory_bytes", int(fields[21]) * os.sysconf("SC_PAGE_SIZE"), "Resident memory, bytes."),
                 ("start_time_seconds", round(started_s, 2), "When the process started, seconds since 1970."),
                 # its size is the number of entries since Linux 6.2; listing thousands takes milliseconds
                 ("open_fds", os.stat("/proc/self/fd").st_size or len(os.listdir("/proc/self/fd")), "Open descriptors."),
                 ("max_fds", _max_descriptors(), "Most descriptors that may be open."))
    except (OSError, ValueError, IndexError, StopIteration):
        return                          # no /proc here
    for name, value, text in found:
        if value >= 0:                  # -1: no limit
            page.add("process_" + name, "gauge", text, [("", value)])


def _max_descriptors():
    import resource
    return resource.getrlimit(resource.RLIMIT_NOFILE)[0]
