"""What differs between two runs of the same client although it means the same: ids, dates, temporary paths.

In: texts and JSON-able values. Out: the same with placeholders; ids are numbered in the order in which they appear,
so that which is the same as which still counts. The list is README's, "Record and replay". No I/O.
"""
import re

_MONTH = (r"(?:jan(?:uary)?|feb(?:ruary)?|mar(?:ch)?|apr(?:il)?|may|june?|july?|aug(?:ust)?|sept?(?:ember)?|oct(?:ober)?|"
          r"nov(?:ember)?|dec(?:ember)?)\.?")
_WEEKDAY = r"(?:mon|tues?|wed(?:nes)?|thu(?:rs)?|fri|sat(?:ur)?|sun)(?:day)?"
_DAY = r"\d{1,2}(?:st|nd|rd|th)?"
_ZONE = r"(?:\s?(?:z|utc|gmt|a?[ecmpw][sd]?t|cest|[bij]st)\b)?(?:\s?[+-]\d{2}:?\d{2}\b)?"
_TIME = r"\d{1,2}:\d{2}(?::\d{2}(?:[.,]\d{1,9})?)?(?:\s?[ap]\.?m\b\.?)?" + _ZONE
_AFTER = r"(?:(?:,?\s+(?:at\s+)?|t)%s)?" % _TIME

# Patterns that begin with a digit or another plain character are searched for at 10 to 60 ns a character; those that
# begin with a choice of words at 2,000. So the latter are asked of single lines only, or of what a first one found.
_DIGIT = re.compile(r"\d")
_LINE_ENDS = re.compile(r"[ \t]+(?=\n|\Z)")
_TEMPORARY_PATH = re.compile(
    r"(?:(?:/private)?(?:/var)?/tmp|/var/folders/[^/\s]+/[^/\s]+/T|[A-Za-z]:\\+Users\\+[^\\\s]+\\+AppData\\+Local\\+Temp)[/\\]+"
    r"(?:pytest-of-[^/\\\s]+[/\\]+pytest-\d+|(?=tmp|[^\s/\\\"'`<>|:;,)\]}]*[0-9A-Z])[^\s/\\\"'`<>|:;,)\]}]+)")
_LOCAL_PORT = re.compile(r"((?:\blocalhost|\b127\.0\.0\.1|\[::1\]):)\d{4,5}\b")
_ADDRESS = re.compile(r"0x[0-9a-fA-F]{6,16}\b")
_NUMBERS_DATE = re.compile(r"(?i)\d(?:%s)" % "|".join((
    r"\d{3}([-/.])\d{1,2}\1\d{1,2}(?!\d)" + _AFTER,
    r"\d?([./])\d{1,2}\2\d{4}(?!\d)" + _AFTER,
    r"\d{7}t\d{6}z?\b",
    r"\d?:\d{2}:\d{2}(?:[.,]\d{1,9})?(?:\s?[ap]\.?m\b\.?)?" + _ZONE,
    r"\d?:\d{2}\s?[ap]\.?m\b\.?" + _ZONE,
    r"(?<=1)(?<!\d1)[5-9]\d{8}(?:\.\d+|\d{3}|\d{6}|\d{9})?(?!\w)")))
_YEAR = re.compile(r"\d{4}\b")
_MONTH_MARKS = ("jan", "feb", "mar", "apr", "may", "jun", "jul", "aug", "sep", "oct", "nov", "dec")
_WORDS_DATE = re.compile("(?i)" + "|".join((
    r"\b(?:%s,?\s+)?%s\s+%s,?\s+\d{4}\b" % (_WEEKDAY, _MONTH, _DAY) + _AFTER,
    r"\b(?:%s,?\s+)?%s(?:\s+of)?[\s-]+%s,?[\s-]+\d{4}\b" % (_WEEKDAY, _DAY, _MONTH) + _AFTER,
    r"\b%s\s+%s\s+\d{1,2}\s+(?:%s|<date>)(?:\s+[a-z]{2,5})?\s+\d{4}\b" % (_WEEKDAY, _MONTH, _TIME))))
_DATES_TOGETHER = re.compile(r"(?i)(?:\b%s,?\s+)?<date>(?:(?:,?\s+(?:at\s+)?)<date>)?(?:\s?\(%s\))?" % (_WEEKDAY, _WEEKDAY))
_DURATION = re.compile(r"\d+\.\d+\s?(?:ns|us|\u00b5s|ms|s|secs?|seconds|milliseconds)\b")
_HEX_ID = re.compile(r"[0-9a-fA-F]{8}(?:-(?:[0-9a-fA-F]{4}-){3}[0-9a-fA-F]{12}|[0-9a-f]{24,}|[0-9A-F]{24,})\b"
                     r"|0[0-9A-HJKMNP-TV-Z]{25}\b")
_ID_PREFIXES = ("resp", "msg", "rs", "fc", "fco", "ctc", "ctco", "call", "toolu", "chatcmpl", "cmpl", "conv", "req", "run",
                "thread", "step", "file", "vs", "cmp", "ws", "fs", "ci", "ig", "mcp", "mcpl", "mcpr", "sh", "sho", "lsh",
                "apc", "cu", "it", "item", "event", "evt", "batch", "asst", "cntr", "trace", "span", "sess", "session",
                "task", "job")
_PREFIXED_ID = re.compile(r"_(?:%s)(?:(?=[A-Za-z]*\d)[A-Za-z0-9]{8,}|[A-Za-z0-9]{16,})\b"
                          % "|".join(r"(?<=\b%s_)" % prefix for prefix in _ID_PREFIXES))
# Codex says "Chunk ID: 0a50f9" and "session ID 60120" of each command that it has run
_ID_LABELS = ("chunk", "session", "process", "request", "trace", "span", "run", "correlation", "invocation", "container")
_LABELLED_ID = re.compile(r"[iI][dD]([\"']?(?:\s*[:=]\s*|\s+)[\"']?)((?=[A-Za-z-]*\d)[0-9a-zA-Z][0-9a-zA-Z-]{3,}|[a-f]{6,})\b")
_COMPLETION_ID = re.compile(r"(?:chatcmpl|cmpl|modr)-(?:tool-)?(?=[A-Za-z]*\d)[A-Za-z0-9]{8,}\b")

DATE_MARK, PATH_MARK, ADDRESS_MARK, DURATION_MARK = "<date>", "<tmp>", "<address>", "<duration>"
_SLICE_CHARS = 16384                # a longer text is looked at in slices: a regex holds the GIL to its end


class VolatileNames:
    """The ids of one request and what they are called: <id 1>, <id 2>, in order of appearance."""

    def __init__(self):
        self._names = {}

    def name(self, id):
        """What an id is called, with or without what it begins with: "call_1a2b..." and "1a2b..." are the same."""
        return self._names.setdefault(id.rpartition("_")[2], "<id %d>" % (len(self._names) + 1))

    def name_labelled(self, match):
        """An id behind a word like "session ID"; as it is behind others."""
        before = match.string[max(0, match.start() - 14):match.start()].rstrip(" _-").lower()
        if not before.endswith(_ID_LABELS):
            return match.group()
        return match.group()[:2] + match.group(1) + self.name(match.group(2))

    def name_match(self, match):
        id = match.group()
        return self.name(id) if _DIGIT.search(id) is not None or id[0] == "_" else id


def steady_text(text, names, breathe=None):
    """A text without what is volatile in it. names: the request's VolatileNames."""
    if "\r" in text:
        text = text.replace("\r\n", "\n")
    if len(text) > _SLICE_CHARS:
        return "".join([_steady_slice(each, names, breathe) for each in _slices(text)]).strip()
    return _steady_slice(text, names, breathe).strip()


def _slices(text):
    """The text cut behind line ends."""
    at = 0
    while at < len(text):
        end = text.rfind("\n", at, at + _SLICE_CHARS) + 1 if len(text) - at > _SLICE_CHARS else len(text)
        end = end or at + _SLICE_CHARS
        yield text[at:end]
        at = end


def _steady_slice(text, names, breathe):
    if breathe is not None:
        breathe()
    if " \n" in text or "\t\n" in text or text[-1:] in (" ", "\t"):
        text = _LINE_ENDS.sub("", text)
    if "/tmp" in text or "Temp" in text or "/T/" in text:
        text = _TEMPORARY_PATH.sub(PATH_MARK, text)
    if _DIGIT.search(text) is None:
        return text
    return "\n".join([_steady_line(line, names) if _DIGIT.search(line) is not None else line
                      for line in text.split("\n")])


def _steady_line(text, names):
    """A line with a digit in it."""
    if "localhost:" in text or "127.0.0.1:" in text or "[::1]:" in text:
        text = _LOCAL_PORT.sub(r"\1<port>", text)
    text = _HEX_ID.sub(names.name_match, text)
    if "_" in text:
        text = _PREFIXED_ID.sub(names.name_match, text)
    if "cmpl-" in text or "modr-" in text:
        text = _COMPLETION_ID.sub(names.name_match, text)
    if "id" in text or "ID" in text or "Id" in text:
        text = _LABELLED_ID.sub(names.name_labelled, text)
    if "0x" in text:
        text = _ADDRESS.sub(ADDRESS_MARK, text)
    text = _NUMBERS_DATE.sub(DATE_MARK, _DURATION.sub(DURATION_MARK, text))
    if _YEAR.search(text) is not None:
        lower = text.lower()
        if any(month in lower for month in _MONTH_MARKS):
            text = _WORDS_DATE.sub(DATE_MARK, text)
    return _DATES_TOGETHER.sub(DATE_MARK, text) if DATE_MARK in text else text


def steady_value(value, names, breathe=None):
    """A JSON-able value without what is volatile in it, its objects' keys in order. Raises RecursionError.

    What stands under `call_id` is an id whatever it looks like. Whole numbers are integers.
    """
    kind = value.__class__
    if kind is str:
        return steady_text(value, names, breathe) if len(value) > 7 else value.strip()
    if kind is dict:
        return {name: names.name(each) if name == "call_id" and each.__class__ is str
                else steady_value(each, names, breathe) for name, each in sorted(value.items())}
    if kind is list:
        return [steady_value(each, names, breathe) for each in value]
    if kind is float and value.is_integer():
        value = int(value)
    if kind in (int, float) and (1.5e9 <= value < 2e9 or 1.5e12 <= value < 2e12):
        return DATE_MARK
    return value
