"""The clock model: when each token of an answer is due, on an engine that nobody else uses.

In: a number of tokens, the prompt's uncached tokens and a source of draws. Out: a sequence of seconds
since the request was admitted. Constant times share one growing table between all requests; noise
costs a draw per token. What a loaded engine makes of them is engine.py's.
"""
import json
from math import log, sqrt
from random import Random

DISTRIBUTION_KINDS = ("constant", "normal", "lognormal", "gamma", "uniform", "empirical")
_MOST_SAMPLES = 1000000
MOST_TIME = 1e15                    # in any unit; beyond, sums and powers of it leave what a float can hold


class Distribution:
    """Of times or lengths, in any unit, never below 0.

    kind: one of DISTRIBUTION_KINDS. mean, std: of all but the empirical one; uniform is mean +- std *
    sqrt(3), unless low and high say its bounds; lognormal and gamma have this mean and this standard deviation
    themselves. quantiles: of the empirical one, ascending values at equal steps of probability, from the least to
    the greatest; between them it is linear. per_request: of ITL, one draw holds for a whole answer.
    Raises ValueError for what makes no sense.
    """

    __slots__ = ("kind", "mean", "std", "low", "high", "quantiles", "per_request")

    def __init__(self, kind, mean=0.0, std=0.0, low=None, high=None, quantiles=(), per_request=False):
        if kind not in DISTRIBUTION_KINDS:
            raise ValueError("unknown distribution '%s'; there are %s" % (kind, ", ".join(DISTRIBUTION_KINDS)))
        if kind == "empirical":
            quantiles = [float(value) for value in quantiles]
            if not quantiles or not 0 <= min(quantiles) or not max(quantiles) < float("inf"):
                raise ValueError("an empirical distribution needs values of 0 or more")
            if any(value > later for value, later in zip(quantiles, quantiles[1:])):
                raise ValueError("the quantiles of an empirical distribution must ascend")
            mean = _mean_of_quantiles(quantiles)
        elif kind == "uniform":
            low = max(0.0, mean - std * sqrt(3)) if low is None else low
            high = mean + std * sqrt(3) if high is None else high
            if not 0 <= low <= high < MOST_TIME:
                raise ValueError("a uniform distribution needs 0 <= low <= high")
            mean = (low + high) / 2
        if not (0 <= mean < MOST_TIME and 0 <= std < MOST_TIME):
            raise ValueError("mean and std must be 0 or more, and less than %g" % MOST_TIME)
        self.kind = kind if kind in ("empirical", "uniform") or (std and mean) or (std and kind == "normal") \
            else "constant"
        self.mean = mean
        self.std = std
        self.low = low
        self.high = high
        self.quantiles = quantiles
        self.per_request = per_request
        if self.kind in ("lognormal", "gamma"):
            try:
                self.sampler(Random(0))()
            except (ValueError, ArithmeticError):       # here, not at each request
                raise ValueError("mean %g and std %g are too far apart for a %s distribution" % (mean, std, kind))

    @property
    def constant(self):
        return self.kind == "constant"

    def scaled(self, factor):
        """The same distribution of values times `factor`."""
        return Distribution(self.kind, self.mean * factor, self.std * factor,
                            None if self.low is None else self.low * factor,
                            None if self.high is None else self.high * factor,
                            [value * factor for value in self.quantiles], self.per_request)

    def sampler(self, draw):
        """A function without arguments that draws one value from a random.Random."""
        mean, std = self.mean, self.std
        if self.kind == "normal":
            gauss = draw.gauss
            return lambda: max(0.0, gauss(mean, std))
        if self.kind == "lognormal":
            variance = log(1.0 + (std / mean) ** 2)
            middle, width, lognormal = log(mean) - variance / 2, sqrt(variance), draw.lognormvariate
            return lambda: lognormal(middle, width)
        if self.kind == "gamma":
            shape, scale, gamma = (mean / std) ** 2, std * std / mean, draw.gammavariate
            return lambda: gamma(shape, scale)
        if self.kind == "uniform":
            low, width, uniform = self.low, self.high - self.low, draw.random
            return lambda: low + width * uniform()
        if self.kind == "empirical":
            values, last, uniform = self.quantiles, len(self.quantiles) - 1, draw.random

            def between():
                place = uniform() * last
                at = int(place)
                value = values[at]
                return value if at == last else value + (values[at + 1] - value) * (place - at)
            return between
        return lambda: mean


def _mean_of_quantiles(quantiles):
    inner = sum(quantiles) - (quantiles[0] + quantiles[-1]) / 2
    return inner / (len(quantiles) - 1) if len(quantiles) > 1 else quantiles[0]


def read_distribution(value, where, unit=1.0):
    """A Distribution from a profile's JSON: a number, or an object of Distribution's fields.

    unit: what its numbers are multiplied with. The objects' "per" is "token" or "request".
    Raises ValueError that begins with `where`.
    """
    if value.__class__ in (int, float):
        value = {"kind": "constant", "mean": value}
    if value.__class__ is not dict:
        raise ValueError("%s: expected a number or an object" % where)
    unknown = set(value) - {"kind", "mean", "std", "low", "high", "quantiles", "per"}
    if unknown:
        raise ValueError("%s: unknown key '%s'" % (where, sorted(unknown)[0]))
    for name in ("mean", "std", "low", "high"):
        if name in value and (value[name].__class__ not in (int, float)):
            raise ValueError("%s.%s: expected a number" % (where, name))
    quantiles = value.get("quantiles", ())
    if quantiles.__class__ not in (list, tuple) or any(each.__class__ not in (int, float) for each in quantiles):
        raise ValueError("%s.quantiles: expected a list of numbers" % where)
    if value.get("per", "token") not in ("token", "request"):
        raise ValueError("%s.per: expected token or request" % where)
    try:
        return Distribution(value.get("kind"), value.get("mean", 0.0), value.get("std", 0.0), value.get("low"),
                            value.get("high"), quantiles, value.get("per") == "request").scaled(unit)
    except ValueError as exc:
        raise ValueError("%s: %s" % (where, exc))


def read_samples(path):
    """The sorted numbers of a file: a JSON array, or separated by white space or commas.

    Raises ValueError that names the file.
    """
    try:
        with open(path, encoding="utf-8") as source:
            text = source.read()
    except (OSError, UnicodeDecodeError) as exc:
        raise ValueError("cannot read %s: %s" % (path, getattr(exc, "strerror", None) or exc))
    try:
        values = json.loads(text) if text.lstrip().startswith("[") else text.replace(",", " ").split()
        values = sorted(float(value) for value in values)
    except (ValueError, TypeError, OverflowError, RecursionError):
        raise ValueError("%s must hold numbers: a JSON array, or one a line" % path)
    if not values or len(values) > _MOST_SAMPLES:
        raise ValueError("%s holds %d numbers; from 1 to %d are taken" % (path, len(values), _MOST_SAMPLES))
    return values


def flag_distribution(flag, text, mean, std, unit=1.0):
    """The Distribution of flags: --ttft-dist's text, with the mean and std that stand in their own flags.

    text: a kind, or "empirical:FILE". unit: what the numbers are multiplied with. Raises ValueError.
    """
    kind, _, path = text.partition(":")
    try:
        if kind == "empirical":
            if not path:
                raise ValueError("empirical needs a file, as in empirical:times.txt")
            return Distribution(kind, quantiles=read_samples(path)).scaled(unit)
        if path or kind not in DISTRIBUTION_KINDS:
            raise ValueError("'%s' is none of %s and empirical:FILE" % (text, ", ".join(DISTRIBUTION_KINDS[:-1])))
        return Distribution(kind, mean, std if kind != "constant" else 0.0).scaled(unit)
    except ValueError as exc:
        raise ValueError("--%s: %s" % (flag, exc))


class ClockModel:
    """TTFT, ITL and prefill in seconds, as an idle engine has them.

    ttft, itl: a Distribution, or a number for a constant. prefill_overhead_s, prefill_s_per_token: come on
    top of TTFT's draw, the second for each prompt token that no cache holds. levels: None, or the
    distributions as measured at several loads, ascending: [(running, ttft, itl)], the two brought to an idle engine's
    scale; then busy() says how many requests run, and the nearest level gives the draws.
    """

    def __init__(self, ttft, itl, prefill_overhead_s=0.0, prefill_s_per_token=0.0, levels=None, busy=None):
        self.ttft = _as_distribution(ttft)
        self.itl = _as_distribution(itl)
        self._prefill_overhead_s = prefill_overhead_s
        self._prefill_s_per_token = prefill_s_per_token
        self._levels = levels
        self._busy = busy
        # Whether every request has the same times, which then stand in one table.
        self._same = self.ttft.constant and self.itl.constant and not levels
        self.has_prefill = bool(prefill_overhead_s or prefill_s_per_token)
        self._table = self._row(256, 0.0) if self._same else ()

    def _row(self, count, prefill_s):
        ttft_s, itl_s = self.ttft.mean + prefill_s, self.itl.mean
        return [ttft_s + itl_s * n for n in range(count)]

    def prefill_s(self, tokens):
        """Seconds of prefill for so many prompt tokens that are in no cache."""
        return self._prefill_overhead_s + self._prefill_s_per_token * tokens

    def dues(self, count, digest, prefill_s=0.0):
        """Due times of `count` tokens: at least so many floats, non-decreasing.

        The first is TTFT, each later one an ITL after the one before. digest: bytes, the draws
        of equal digests are equal. prefill_s: of prefill_s().
        """
        if self._same:
            if prefill_s:
                return self._row(count, prefill_s)
            table = self._table
            if len(table) < count:
                # a new list: another thread may be reading the old one, and its owner keeps it
                table = self._row(2 * count, 0.0)
                if count <= 1 << 16:        # a giant answer does not make the table stay giant
                    self._table = table
            return table
        ttft, itl = self.ttft, self.itl
        if self._levels:
            busy = self._busy() + 1
            _, ttft, itl = min(self._levels, key=lambda level: abs(level[0] - busy))
        draw = Random(int.from_bytes(digest, "big"))
        due = ttft.sampler(draw)() + prefill_s
        dues = [due]
        if itl.constant or itl.per_request:
            itl_s = itl.mean if itl.constant else itl.sampler(draw)()
            dues += [due + itl_s * n for n in range(1, count)]
            return dues
        sample = itl.sampler(draw)
        for _ in range(count - 1):
            due += sample()
            dues.append(due)
        return dues


def _as_distribution(value):
    return value if value.__class__ is Distribution else Distribution("constant", value)
