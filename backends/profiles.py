"""Latency profiles: how fast a model on some hardware answers, as one JSON object.

In: the name of a built-in profile, a profile's file, or result files of a load tool. Out: a checked profile
(a dict, README "Profiles and calibration") for clocks.py. Reads files, and nothing else; at start only.
"""
import json
import os
import re
from math import exp, log, sqrt

from backends.calibrate import calibrate_profile, curve_of_means, read_json_values
from backends.engine import LoadCurve
from backends.latency import read_distribution
from backends.profile_table import PROFILE_TABLE

_PROFILE_TEXTS = ("name", "model", "hardware", "source", "date", "note")
_PROFILE_TIMES = ("ttft_ms", "itl_ms", "output_tokens")
_PROFILE_NUMBERS = ("prefill_overhead_ms", "prefill_ms_per_token")
_PROFILE_KEYS = frozenset(_PROFILE_TEXTS + _PROFILE_TIMES + _PROFILE_NUMBERS + ("max_num_seqs", "load", "levels"))
_MOST_RUNNING = 1000000
_TAIL_Z = {"p95": 1.6449, "p99": 2.3263}        # of the normal distribution


def load_profile(settings):
    """The profile that --profile or --calibrate names: a checked dict, or None without either.

    Raises ValueError that names the file and what is wrong with it.
    """
    if settings.calibrate:
        return check_profile(calibrate_profile(settings.calibrate), "the profile made of %s" % " and ".join(
            settings.calibrate))
    name = settings.profile
    if not name:
        return None
    for entry in PROFILE_TABLE:
        if entry["name"] == name:
            return _built_in_profile(entry)
    if not (name.endswith(".json") or os.path.exists(name)):
        raise ValueError("--profile: there is no profile '%s'; --profile list shows the built-in ones, and the name "
                         "of a file ends in .json" % name)
    values = read_json_values(name)
    if len(values) != 1:
        raise ValueError("%s holds %d JSON values; a profile is one object" % (name, len(values)))
    return check_profile(values[0], name)


def built_in_profiles():
    """All built-in profiles: a list of dicts, checked as any."""
    return [_built_in_profile(entry) for entry in PROFILE_TABLE]


def profiles_text():
    """What --profile list prints."""
    lines = []
    for profile in built_in_profiles():
        lines += [profile["name"],
                  "    %s on %s" % (profile["model"], profile["hardware"]),
                  "    lowest load: TTFT %s, ITL %g ms; %s" % (_ttft_words(profile), _dist_mean(profile["itl_ms"]),
                                                              _load_words(profile)),
                  "    %s, %s" % (profile["date"], profile["source"])]
    return "\n".join(lines)


def profile_line(profile):
    """A profile in a few words, for the log."""
    model, hardware = profile.get("model"), profile.get("hardware")
    return "profile %s%s" % (profile.get("name") or "without a name", "" if not model else " (%s)" % (
        model if not hardware else "%s on %s" % (model, hardware)))


def profile_json(profile):
    """A profile as the text of its file: a key a line."""
    return "{\n%s\n}" % ",\n".join("  %s: %s" % (json.dumps(key), json.dumps(value))
                                   for key, value in profile.items())


def check_profile(profile, where):
    """The profile itself, when all of it is right. where: its file. Raises ValueError."""
    if profile.__class__ is not dict:
        raise ValueError("%s: a profile is a JSON object" % where)
    for key in profile:
        if key not in _PROFILE_KEYS:
            raise ValueError("%s: unknown key '%s'%s" % (where, json.dumps(key)[1:-1], _result_hint(profile)))
    for name in _PROFILE_TEXTS:
        if profile.get(name, "").__class__ is not str:
            raise ValueError("%s: %s: expected a string" % (where, name))
    if profile.get("date") and not re.match(r"\d{4}-\d\d-\d\d\Z", profile["date"]):
        raise ValueError("%s: date: expected YYYY-MM-DD" % where)
    for name in _PROFILE_NUMBERS:
        _check_number(profile.get(name, 0), 0, "%s: %s" % (where, name))
    if "itl_ms" not in profile or not any(name in profile for name in ("ttft_ms",) + _PROFILE_NUMBERS):
        raise ValueError("%s: itl_ms, and ttft_ms or prefill_ms_per_token, must be there" % where)
    for name in _PROFILE_TIMES:
        if name in profile:
            _check_distribution(profile[name], "%s: %s" % (where, name))
    if profile.get("max_num_seqs", 1).__class__ is not int or not 1 <= profile.get("max_num_seqs", 1) <= _MOST_RUNNING:
        raise ValueError("%s: max_num_seqs: expected an integer from 1 to %d" % (where, _MOST_RUNNING))
    _check_load(profile.get("load", {}), "%s: load" % where)
    _check_levels(profile.get("levels", []), "%s: levels" % where)
    return profile


# ---- the parts of the check -------------------------------------------------------------------

def _check_number(value, least, where):
    if value.__class__ not in (int, float) or not least <= value < 1e12:
        raise ValueError("%s: expected a number of %g or more" % (where, least))


def _check_distribution(value, where):
    try:
        dist = read_distribution(value, where)
    except OverflowError:           # an integer of hundreds of digits
        raise ValueError("%s: a number is too large" % where)
    if not max(dist.mean, dist.std) < 1e12:
        raise ValueError("%s: a number is too large" % where)


def _check_load(load, where):
    if load.__class__ is not dict or set(load) - {"ttft", "itl"}:
        raise ValueError("%s: expected an object with ttft and itl" % where)
    for name, points in load.items():
        place = "%s.%s" % (where, name)
        if points.__class__ is not list or not points or any(
                point.__class__ is not list or len(point) != 2 for point in points):
            raise ValueError("%s: expected a list of [running, factor]" % place)
        for point in points:
            _check_number(point[0], 1, place + ": running")
            _check_number(point[1], 0, place + ": factor")
        if points[0][1] != 1:
            raise ValueError("%s: the factor at the lowest load must be 1" % place)
        try:
            LoadCurve(points)
        except ValueError as exc:
            raise ValueError("%s: %s" % (place, exc))


def _check_levels(levels, where):
    if levels.__class__ is not list:
        raise ValueError("%s: expected a list" % where)
    last = 0
    for number, level in enumerate(levels):
        place = "%s[%d]" % (where, number)
        if level.__class__ is not dict or set(level) != {"running", "ttft_ms", "itl_ms"}:
            raise ValueError("%s: expected an object with running, ttft_ms and itl_ms" % place)
        _check_number(level["running"], 1, place + ".running")
        if level["running"] <= last:
            raise ValueError("%s.running: the levels must ascend" % place)
        last = level["running"]
        for name in ("ttft_ms", "itl_ms"):
            _check_distribution(level[name], "%s.%s" % (place, name))


def _result_hint(value):
    """Where somebody gives a load tool's results as a profile."""
    return "; this looks like a load tool's results: --calibrate reads them" if {
        "benchmarks", "ttfts", "aiperf_version", "metrics", "mean_ttft_ms"} & set(value) else ""


# ---- the built-in ones ------------------------------------------------------------------------

def _built_in_profile(entry):
    """The profile of an entry of PROFILE_TABLE, its rows turned into times, load and levels."""
    profile = {name: value for name, value in entry.items() if name != "rows"}
    rows = entry.get("rows")
    if rows:
        levels = [(running, _row_dist(ttft, "token"), _row_dist(itl, "request")) for running, ttft, itl in rows]
        profile["ttft_ms"], profile["itl_ms"] = levels[0][1:]
        if len(levels) > 1:
            profile["load"] = {
                "ttft": curve_of_means([(running, _dist_mean(ttft)) for running, ttft, _ in levels]),
                "itl": curve_of_means([(running, _dist_mean(itl)) for running, _, itl in levels])}
        if len(levels) > 1 and any(dict in (ttft.__class__, itl.__class__) for _, ttft, itl in levels):
            profile["levels"] = [{"running": running, "ttft_ms": ttft, "itl_ms": itl} for running, ttft, itl in levels]
    return check_profile(profile, "profile " + entry["name"])


def _row_dist(value, per):
    """A time of a row as a profile has it. per: what one draw of it stands for."""
    if value.__class__ is not tuple:
        return value
    kind, middle, other = value
    if kind == "std":
        dist = {"kind": "normal", "mean": middle, "std": other}
        return dist if per == "token" else dict(dist, per=per)
    width = log(other / middle) / _TAIL_Z[kind]
    mean = middle * exp(width * width / 2)
    return {"kind": "lognormal", "mean": round(mean, 3), "std": round(mean * sqrt(exp(width * width) - 1), 3)}


def _dist_mean(value):
    return read_distribution(value, "").mean


def _ttft_words(profile):
    words = ["%g ms" % _dist_mean(profile["ttft_ms"])] if "ttft_ms" in profile else []
    words += ["%g ms" % profile["prefill_overhead_ms"]] if profile.get("prefill_overhead_ms") else []
    words += ["%g ms per prompt token" % profile["prefill_ms_per_token"]] if profile.get("prefill_ms_per_token") else []
    return " + ".join(words)


def _load_words(profile):
    load, most = profile.get("load"), profile.get("max_num_seqs")
    words = ["ITL x %.3g at %d running" % (load["itl"][-1][1], load["itl"][-1][0])] if load else []
    words += ["one at a time" if most == 1 else "%d run at once" % most] if most else []
    return "; ".join(words) or "no load"
