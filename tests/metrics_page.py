"""Reads a metrics page as strictly as a scraper would: the Prometheus text format 0.0.4, and OpenMetrics 1.0."""
import re
from collections import namedtuple

_NAME = r"[a-zA-Z_:][a-zA-Z0-9_:]*"
_SAMPLE = re.compile(r'(%s)(?:\{((?:[a-zA-Z_][a-zA-Z0-9_]*="(?:[^"\\\n]|\\["\\n])*",?)*)\})? (\S+)\Z' % _NAME)
_LABEL = re.compile(r'([a-zA-Z_][a-zA-Z0-9_]*)="((?:[^"\\\n]|\\["\\n])*)"(?:,|\Z)')
_ENDINGS = {"histogram": ("_bucket", "_sum", "_count"), "counter": ("_total",), "gauge": ("",)}
_ESCAPES = {"\\\\": "\\", '\\"': '"', "\\n": "\n"}


class Sample(namedtuple("Sample", "name labels value")):
    """labels: frozenset of (name, value) pairs."""
    __slots__ = ()


def unescape(text):
    return re.sub(r'\\[\\"n]', lambda found: _ESCAPES[found.group()], text)


class MetricsPage:
    """A page, taken apart and checked. types: {family: type}; samples: [Sample]."""

    def __init__(self, text, openmetrics=False):
        self.types, self.samples = {}, []
        self._openmetrics = openmetrics
        lines = text.split("\n")
        if lines.pop() != "":
            raise AssertionError("the last line has no end")
        if openmetrics and lines.pop() != "# EOF":
            raise AssertionError("no # EOF at the end")
        family = kind = None
        helped, closed, seen = set(), set(), set()
        for line in lines:
            words = line.split(" ", 3)
            if words[:2] == ["#", "HELP"]:
                if words[2] in helped or words[2] == family:
                    raise AssertionError("two HELP lines or a late one: " + line)
                helped.add(words[2])
                continue
            if words[:2] == ["#", "TYPE"]:
                closed.add(family)
                family, kind = words[2:]
                if family in self.types or kind not in _ENDINGS:
                    raise AssertionError("two TYPE lines, or an unknown type: " + line)
                self.types[family] = kind
                continue
            sample = self._read(line)
            base = family[:-len("_total")] if kind == "counter" and not openmetrics else family
            if sample.name not in [base + ending for ending in _ENDINGS[kind]]:
                raise AssertionError("%s stands below the TYPE of %s" % (sample.name, family))
            if (sample.name, sample.labels) in seen:
                raise AssertionError("twice: " + line)
            seen.add((sample.name, sample.labels))
            self.samples.append(sample)
        if helped != set(self.types):
            raise AssertionError("HELP or TYPE is missing: %s" % (helped ^ set(self.types)))
        self._check_histograms()

    @staticmethod
    def _read(line):
        found = _SAMPLE.match(line)
        if not found:
            raise AssertionError("not a sample: %r" % line)
        pairs = [(name, unescape(value)) for name, value in _LABEL.findall(found.group(2) or "")]
        if len({name for name, _ in pairs}) != len(pairs):
            raise AssertionError("a label is repeated: %r" % line)
        return Sample(found.group(1), frozenset(pairs), float(found.group(3)))

    def _check_histograms(self):
        for family, kind in self.types.items():
            if kind == "counter" and any(each.value < 0 for each in self.samples if each.name.startswith(family)):
                raise AssertionError("%s is below 0" % family)
            if kind != "histogram":
                continue
            rows = {}
            for name, labels, value in self.samples:
                if name == family + "_bucket":
                    bound = float(dict(labels)["le"].replace("+Inf", "inf"))
                    rows.setdefault(frozenset(pair for pair in labels if pair[0] != "le"), []).append((bound, value))
            for labels, row in rows.items():
                counts = [value for _, value in row]
                if row != sorted(row) or counts != sorted(counts) or row[-1][0] != float("inf"):
                    raise AssertionError("the buckets of %s do not add up: %s" % (family, row))
                if self.value(family + "_count", **dict(labels)) != counts[-1]:
                    raise AssertionError("%s_count is not the last bucket" % family)
                self.value(family + "_sum", **dict(labels))

    def value(self, name, **labels):
        """The one sample with exactly these labels."""
        wanted = frozenset(labels.items())
        found = [sample.value for sample in self.samples if sample.name == name and sample.labels == wanted]
        if len(found) != 1:
            raise AssertionError("%d samples of %s%s" % (len(found), name, labels))
        return found[0]

    def sum(self, name, **labels):
        """The sum of all samples that have these labels, perhaps among others."""
        wanted = frozenset(labels.items())
        return sum(sample.value for sample in self.samples if sample.name == name and wanted <= sample.labels)

    def labels(self, name, label):
        """All values of a label."""
        return {dict(sample.labels).get(label) for sample in self.samples if sample.name == name}
