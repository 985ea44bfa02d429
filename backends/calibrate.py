"""Result files of load tools to a latency profile: a deployment is measured once and served again.

In: files of GuideLLM (its JSON output), AIPerf (profile_export.jsonl, or profile_export_aiperf.json) or
`vllm bench serve --save-result --save-detailed`, told apart by what is in them. Out: a profile's dict with the
measured distributions, and load curves where several concurrencies were measured. Who fails is counted, not fitted.
"""
import json
import os
import re
import time
from statistics import median

QUANTILE_STEPS = 200                # a profile keeps 201 values of a distribution
_AGREEMENT = 0.02                   # how far a time may be from what the same file says elsewhere
_PER_TOKEN_SHARE = 0.95             # so many answers must say each gap, or ITL is taken per request
_MS_OF_UNIT = {"ns": 1e-6, "us": 1e-3, "µs": 1e-3, "ms": 1.0, "s": 1000.0, "sec": 1000.0}
_AIPERF_POINTS = (("min", 0.0), ("p1", 0.01), ("p5", 0.05), ("p10", 0.1), ("p25", 0.25), ("p50", 0.5), ("p75", 0.75),
                  ("p90", 0.9), ("p95", 0.95), ("p99", 0.99), ("max", 1.0))
_KNOWN_RESULTS = ("GuideLLM's JSON output, AIPerf's profile_export.jsonl or profile_export_aiperf.json, or the result "
                  "of vllm bench serve --save-result --save-detailed")


class MeasuredRun:
    """One benchmark of a result file.

    tool, model, date: str, "" where unknown. running: requests in flight together. ttft_ms, itl_ms, lengths: lists of
    numbers. per_token: itl_ms holds every gap; False: each request's mean. succeeded, failed: counts. prompt_tokens:
    list of numbers, as far as known.
    """

    def __init__(self, tool, model="", date=""):
        self.tool = tool
        self.model = model
        self.date = date
        self.running = 0
        self.ttft_ms = []
        self.itl_ms = []
        self.lengths = []
        self.prompt_tokens = []
        self.per_token = False
        self.succeeded = 0
        self.failed = 0


class _Answer:
    """One answered request: times in ms, start and end in s or None; gaps_ms: a list, or None where the file knows
    their mean only."""

    def __init__(self, start_s, end_s, ttft_ms, gaps_ms, itl_ms, length, prompt):
        self.start_s = start_s
        self.end_s = end_s
        self.ttft_ms = ttft_ms
        self.gaps_ms = gaps_ms
        self.itl_ms = itl_ms
        self.length = length
        self.prompt = prompt


def calibrate_profile(paths):
    """The profile that the result files measured together, a dict.

    Raises ValueError that names the file and what is missing in it.
    """
    runs = []
    for path in paths:
        runs += _read_result_file(path)
    levels = _merge_runs(runs)
    stem = os.path.splitext(os.path.basename(paths[0]))[0]
    profile = {"name": stem or "calibrated",
               "model": next((run.model for run in runs if run.model), ""),
               "source": "%s: %s" % (", ".join(sorted({run.tool for run in runs})),
                                     ", ".join(os.path.basename(path) for path in paths)),
               "date": next((run.date for run in runs if run.date), ""),
               "note": _calibration_note(runs, levels)}
    profile = {key: value for key, value in profile.items() if value}
    profile["ttft_ms"], profile["itl_ms"] = levels[0][1], levels[0][2]
    profile["output_tokens"] = _measured_dist([length for run in runs for length in run.lengths])
    if len(levels) > 1:
        profile["load"] = {"ttft": curve_of_means([(level[0], level[3]) for level in levels]),
                           "itl": curve_of_means([(level[0], level[4]) for level in levels])}
        profile["levels"] = [{"running": level[0], "ttft_ms": level[1], "itl_ms": level[2]} for level in levels]
    return profile


def curve_of_means(points):
    """[[running, factor]] of ascending [(running, mean)]: factors over the first mean.

    A curve that falls at its end goes on flat: the next slope would lead below 0.
    """
    base = points[0][1]
    curve = [[running, round(max(1e-3, mean / base), 4) if base else 1] for running, mean in points]
    curve[0][1] = 1
    if len(curve) > 1 and curve[-1][1] < curve[-2][1]:
        curve.append([2 * curve[-1][0], curve[-1][1]])
    return curve


def read_json_values(path):
    """The JSON values of a file, a list: one, or one after the other as in JSON lines. Raises ValueError."""
    try:
        with open(path, "rb") as source:
            data = source.read()
        # what PowerShell's > makes of --dump-profile is UTF-16, and editors on Windows put a mark before UTF-8
        text = data.decode("utf-16" if data[:2] in (b"\xff\xfe", b"\xfe\xff") else "utf-8-sig")
    except (OSError, UnicodeDecodeError) as exc:
        raise ValueError("cannot read %s: %s" % (path, getattr(exc, "strerror", None) or exc))
    decoder, at, values = json.JSONDecoder(), 0, []
    try:
        while True:
            while text[at:at + 1].isspace():
                at += 1
            if at >= len(text):
                break
            value, at = decoder.raw_decode(text, at)
            values.append(value)
    except (ValueError, RecursionError) as exc:
        raise ValueError("%s is not JSON: %s" % (path, exc))
    if not values:
        raise ValueError("%s is empty" % path)
    return values


# ---- from runs to distributions ---------------------------------------------------------------

def _merge_runs(runs):
    """[(running, TTFT, ITL, mean TTFT, mean ITL)] by concurrency, ascending; TTFT and ITL as a profile has them."""
    by_load = {}
    for run in runs:
        by_load.setdefault(run.running, []).append(run)
    levels = []
    for running in sorted(by_load):
        group = by_load[running]
        per_token = [run for run in group if run.per_token]
        ttft = [value for run in group for value in run.ttft_ms]
        # where some say each gap and some only means, the gaps are what is served
        itl = [value for run in per_token or group for value in run.itl_ms]
        levels.append((running, _measured_dist(ttft), _measured_dist(itl, "token" if per_token else "request"),
                       sum(ttft) / len(ttft), sum(itl) / len(itl)))
    return levels


def _measured_dist(values, per=None):
    """Samples as a profile's distribution: a number when all are equal, else their quantiles."""
    values = sorted(values)
    if values[0] == values[-1]:
        return round(values[0], 4)
    last = len(values) - 1
    quantiles = []
    for step in range(QUANTILE_STEPS + 1):
        place = step * last / QUANTILE_STEPS
        at = min(int(place), last - 1)
        quantiles.append(round(values[at] + (values[at + 1] - values[at]) * (place - at), 4))
    dist = {"kind": "empirical", "quantiles": quantiles}
    if per is not None:
        dist["per"] = per
    return dist


def _calibration_note(runs, levels):
    failed = sum(run.failed for run in runs)
    prompts = [tokens for run in runs for tokens in run.prompt_tokens]
    note = "%d requests at concurrency %s" % (sum(run.succeeded for run in runs),
                                              ", ".join("%d" % level[0] for level in levels))
    if failed:
        note += "; %d failed ones left out" % failed
    if prompts:
        note += "; prompts of %g tokens (median), which are part of TTFT" % median(prompts)
    if not any(run.per_token for run in runs):
        note += "; ITL is each request's mean, as the file knows no single gaps"
    return note


def _running_found(answers):
    """Requests in flight, as the average moment of the average request saw them, itself included; 0 without times.

    That is the integral of their number squared over that of their number: N for a closed loop of N, and for N that
    come in one burst as well.
    """
    if any(answer.start_s is None or answer.end_s is None for answer in answers):
        return 0
    changes = sorted([(answer.start_s, 1) for answer in answers] + [(answer.end_s, -1) for answer in answers])
    running, last_s, area, square = 0, 0.0, 0.0, 0.0
    for at_s, change in changes:
        area += running * (at_s - last_s)
        square += running * running * (at_s - last_s)
        running += change
        last_s = at_s
    return max(1, round(square / area)) if area > 0 else 0


def _fill_run(run, answers, declared, where):
    """Put the answers into the run. declared: the concurrency that the file names, for files without times."""
    if not answers:
        raise ValueError("%s: no request succeeded (%d failed)" % (where, run.failed))
    run.succeeded = len(answers)
    run.running = _running_found(answers) or max(1, round(declared or 1))
    run.ttft_ms = [answer.ttft_ms for answer in answers]
    run.lengths = [answer.length for answer in answers]
    run.prompt_tokens = [answer.prompt for answer in answers if answer.prompt is not None]
    longer = [answer for answer in answers if answer.itl_ms is not None]
    gapped = [answer for answer in longer if answer.gaps_ms is not None]
    if not longer:
        raise ValueError("%s: no answer has two tokens or more, so there is no inter-token latency" % where)
    run.per_token = len(gapped) >= _PER_TOKEN_SHARE * len(longer)
    run.itl_ms = [gap for answer in gapped for gap in answer.gaps_ms] if run.per_token else [
        answer.itl_ms for answer in longer]
    return run


# ---- what the files say -----------------------------------------------------------------------

def _read_result_file(path):
    """[MeasuredRun] of a file. Raises ValueError."""
    values = read_json_values(path)
    for value in values:
        if value.__class__ is not dict:
            raise ValueError("%s: a JSON object was expected; --calibrate reads %s" % (path, _KNOWN_RESULTS))
    first = values[0]
    if "benchmarks" in first:
        benchmarks = first["benchmarks"]
        if benchmarks.__class__ is not list or not benchmarks:
            raise ValueError("%s: benchmarks: expected a list with a benchmark in it" % path)
        return [_read_guidellm(benchmark, first, "%s: benchmarks[%d]" % (path, number))
                for number, benchmark in enumerate(benchmarks)]
    if "ttfts" in first or "mean_ttft_ms" in first:
        return [_read_vllm(value, path if len(values) == 1 else "%s: result %d" % (path, number + 1))
                for number, value in enumerate(values)]
    if "metrics" in first and "metadata" in first:
        return [_read_aiperf_records(values, path)]
    if "aiperf_version" in first:
        return [_read_aiperf_summary(first, path)]
    if "itl_ms" in first:
        raise ValueError("%s is a profile: give it to --profile" % path)
    raise ValueError("%s holds no results that are known; --calibrate reads %s" % (path, _KNOWN_RESULTS))


def _time_of(value, where):
    """A number of 0 or more, below any time. Raises ValueError."""
    if value.__class__ not in (int, float) or not 0 <= value < 1e12:
        raise ValueError("%s: expected a number of 0 or more, not %.60r" % (where, value))
    return float(value)


def _found(value, *names):
    """What stands under the names within dicts, or None."""
    for name in names:
        value = value.get(name) if value.__class__ is dict else None
    return value


def _moment_of(value, unit_s=1.0):
    """A point in time as float seconds, None for what is none."""
    return value * unit_s if value.__class__ in (int, float) and 0 <= value < 1e20 else None


def _count_of(value):
    """A number as it is, None for what is none."""
    return value if value.__class__ in (int, float) and 0 <= value < 1e12 else None


def _text_of(value):
    return value if value.__class__ is str else ""


def _part(value, name, kind, where):
    """value[name], which must be of the kind (dict or list)."""
    part = _found(value, name)
    if part.__class__ is not kind:
        raise ValueError("%s: %s is missing" % (where, name))
    return part


def _check_agreement(told_ms, timed_ms, names, where):
    """Two ways of saying the same time must agree, or a unit is not what it seems."""
    if timed_ms > 0 and abs(told_ms - timed_ms) > 1.0 + _AGREEMENT * timed_ms:
        raise ValueError("%s: %s is %.6g ms and %s says %.6g ms: one of them is in another unit" % (
            where, names[0], told_ms, names[1], timed_ms))


def _day(seconds):
    """YYYY-MM-DD of seconds since 1970, "" for what is none."""
    return time.strftime("%Y-%m-%d", time.gmtime(seconds)) if seconds and seconds < 3e10 else ""


def _read_guidellm(benchmark, report, where):
    """A benchmark of GuideLLM's report. Source: GuideLLM 0.8.1, request stats; times in s, but for those named _ms."""
    requests = _part(benchmark, "requests", dict, where)
    answered = _part(requests, "successful", list, where + ".requests")
    run = MeasuredRun(("GuideLLM " + _text_of(_found(report, "metadata", "guidellm_version"))).rstrip(),
                      _text_of(_found(benchmark, "config", "backend", "model")),
                      _day(_moment_of(benchmark.get("start_time"))))
    for kind in ("errored", "incomplete"):
        run.failed += len(requests[kind]) if requests.get(kind).__class__ is list else 0
    answers, told, timed = [], [], []
    for number, request in enumerate(answered):
        place = "%s.requests.successful[%d]" % (where, number)
        if request.__class__ is not dict:
            raise ValueError("%s: expected an object" % place)
        ttft, length, itl = (request.get(name) for name in (
            "time_to_first_token_ms", "output_tokens", "inter_token_latency_ms"))
        if ttft is None or not length:          # an answer without a token, or not streamed
            run.failed += 1
            continue
        length = _time_of(length, place + ".output_tokens")
        answers.append(_Answer(
            _moment_of(request.get("request_start_time")), _moment_of(request.get("request_end_time")),
            _time_of(ttft, place + ".time_to_first_token_ms"), None,
            None if itl is None or length < 2 else _time_of(itl, place + ".inter_token_latency_ms"),
            length, _count_of(request.get("prompt_tokens"))))
        begun, seen = (_moment_of(_found(request, "info", "timings", name)) for name in (
            "request_start", "first_token_iteration"))
        if begun is not None and seen is not None:
            told.append(answers[-1].ttft_ms)
            timed.append((seen - begun) * 1000.0)
    if answered and not answers:
        raise ValueError("%s: no request has a time to first token; was it measured with streaming?" % where)
    if told:
        _check_agreement(median(told), median(timed), ("time_to_first_token_ms", "info.timings"), where)
    return _fill_run(run, answers, _count_of(_found(benchmark, "config", "strategy", "streams")), where)


def _read_vllm(result, where):
    """A result of vllm bench serve. Source: vLLM 0.33.0, vllm/benchmarks/serve.py; lists in s, one entry a request."""
    if "ttfts" not in result:
        raise ValueError("%s: ttfts is missing: run vllm bench serve with --save-detailed as well" % where)
    ttfts, itls, lengths = (_part(result, name, list, where) for name in ("ttfts", "itls", "output_lens"))
    if not len(ttfts) == len(itls) == len(lengths):
        raise ValueError("%s: ttfts, itls and output_lens must have one entry a request" % where)
    errors, starts, prompts = (
        result[name] if result.get(name).__class__ is list and len(result[name]) == len(ttfts) else [None] * len(ttfts)
        for name in ("errors", "start_times", "input_lens"))
    date = _text_of(result.get("date"))[:8]
    run = MeasuredRun("vllm bench serve", _text_of(result.get("model_id")),
                      "%s-%s-%s" % (date[:4], date[4:6], date[6:]) if re.match(r"\d{8}\Z", date) else "")
    answers = []
    for at, (ttft_s, gaps, length) in enumerate(zip(ttfts, itls, lengths)):
        if errors[at] or not length or not ttft_s:
            run.failed += 1
            continue
        length = _time_of(length, "%s: output_lens[%d]" % (where, at))
        ttft_s = _time_of(ttft_s, "%s: ttfts[%d]" % (where, at))
        if gaps.__class__ is not list:
            raise ValueError("%s: itls[%d]: expected a list" % (where, at))
        gaps = [_time_of(gap, "%s: itls[%d]" % (where, at)) for gap in gaps]
        start_s, whole_s = _moment_of(starts[at]), sum(gaps)
        answers.append(_Answer(start_s, None if start_s is None else start_s + ttft_s + whole_s, ttft_s * 1000.0,
                               [gap * 1000.0 for gap in gaps] if len(gaps) == length - 1 else None,
                               whole_s * 1000.0 / (length - 1) if length > 1 else None, length, _count_of(prompts[at])))
    told = _count_of(result.get("mean_ttft_ms"))
    if answers and told is not None:
        _check_agreement(told, sum(answer.ttft_ms for answer in answers) / len(answers), ("mean_ttft_ms", "ttfts"),
                         where)
    return _fill_run(run, answers, _count_of(result.get("max_concurrency")), where)


def _metric_ms(metrics, name, where):
    """A metric of AIPerf, {"value": number or list, "unit": str}, in ms; None where it is absent."""
    metric = metrics.get(name)
    if metric is None:
        return None
    unit = _text_of(_found(metric, "unit"))
    if unit not in _MS_OF_UNIT:
        raise ValueError("%s: %s: unknown unit %r" % (where, name, unit))
    value, factor = metric.get("value"), _MS_OF_UNIT[unit]
    if value.__class__ is list:
        return [_time_of(each, "%s: %s" % (where, name)) * factor for each in value]
    return _time_of(value, "%s: %s" % (where, name)) * factor


def _read_aiperf_records(records, path):
    """AIPerf's profile_export.jsonl: a record a request. Source: AIPerf 0.13.0; each metric names its unit."""
    run = MeasuredRun("AIPerf")
    answers, told, timed, errors = [], [], [], 0
    for number, record in enumerate(records):
        where = "%s: line %d" % (path, number + 1)
        mark, metrics = (_part(record, name, dict, where) for name in ("metadata", "metrics"))
        if mark.get("benchmark_phase", "profiling") != "profiling":
            continue                            # a warm-up
        ttft = _metric_ms(metrics, "time_to_first_token", where)
        length = _found(metrics, "output_sequence_length", "value")
        errors += bool(record.get("error"))
        if record.get("error") or mark.get("was_cancelled") or ttft is None or not length:
            run.failed += 1
            continue
        length = _time_of(length, where + ": output_sequence_length")
        start_s, end_s = (_moment_of(mark.get(name), 1e-9) for name in ("request_start_ns", "request_end_ns"))
        gaps = _metric_ms(metrics, "inter_chunk_latency", where)
        itl = _metric_ms(metrics, "inter_token_latency", where) if length > 1 else None
        answers.append(_Answer(start_s, end_s, _single(ttft, where + ": time_to_first_token"),
                               gaps if gaps.__class__ is list and len(gaps) == length - 1 else None,
                               None if itl is None else _single(itl, where + ": inter_token_latency"),
                               length, _count_of(_found(metrics, "input_sequence_length", "value"))))
        run.date = run.date or _day(start_s)
        latency = _metric_ms(metrics, "request_latency", where)
        if start_s is not None and end_s is not None and latency is not None:
            told.append(_single(latency, where + ": request_latency"))
            timed.append((end_s - start_s) * 1000.0)
    if told:
        _check_agreement(median(told), median(timed), ("request_latency", "request_start_ns to request_end_ns"), path)
    if not answers and run.failed > errors:
        raise ValueError("%s: no record has a time to first token; was it measured with --streaming?" % path)
    return _fill_run(run, answers, 1, path)


def _single(value, where):
    if value.__class__ is list:
        raise ValueError("%s: expected a number" % where)
    return value


def _read_aiperf_summary(summary, path):
    """AIPerf's profile_export_aiperf.json, which knows percentiles only. Source: AIPerf 0.13.0."""
    run = MeasuredRun("AIPerf %s" % summary["aiperf_version"], date=_text_of(summary.get("start_time"))[:10])
    models, phases = (_found(summary, "input_config", *names) for names in (("models", "items"), ("phases",)))
    run.model = _text_of(_found(models[0], "name")) if models.__class__ is list and models else ""
    run.ttft_ms = _percentile_samples(summary, "time_to_first_token", path, _MS_OF_UNIT)
    run.itl_ms = _percentile_samples(summary, "inter_token_latency", path, _MS_OF_UNIT)
    run.lengths = _percentile_samples(summary, "output_sequence_length", path, {"tokens": 1.0})
    run.succeeded = int(_count_of(_found(summary, "time_to_first_token", "count")) or 0)
    run.failed = int(_count_of(_found(summary, "error_request_count", "avg")) or 0)
    asked = [_found(phase, "concurrency") for phase in phases if _found(phase, "kind") == "profiling"] \
        if phases.__class__ is list else []
    run.running = max(1, round((_count_of(asked[0]) if asked else None)
                               or _count_of(_found(summary, "effective_concurrency", "avg")) or 1))
    return run


def _percentile_samples(summary, name, path, units):
    """As many values at equal steps of probability as a profile keeps, from the percentiles of a metric."""
    metric = _part(summary, name, dict, path)
    factor = units.get(_text_of(metric.get("unit")))
    if factor is None:
        raise ValueError("%s: %s: unknown unit %r" % (path, name, metric.get("unit")))
    points = [(share, _time_of(metric[key], "%s: %s.%s" % (path, name, key)) * factor)
              for key, share in _AIPERF_POINTS if metric.get(key) is not None]
    if len(points) < 3 or points[0][0] or points[-1][0] != 1.0:
        raise ValueError("%s: %s: its percentiles are missing" % (path, name))
    samples, at = [], 0
    for step in range(QUANTILE_STEPS + 1):
        share = step / QUANTILE_STEPS
        while share > points[at + 1][0]:
            at += 1
        (low, start), (high, end) = points[at], points[at + 1]
        samples.append(start + (end - start) * (share - low) / (high - low))
    return samples
