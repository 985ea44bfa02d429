"""JSON Schema's string formats: whether a text has one, and a drawn text that has.

In: a format's name and a text, or a source of draws. Out: bool or str. Formats that are not in the table hold for
every text. The expressions here are ours and take linear time. Any thread.
"""
import re
from functools import partial

from backends.schema_patterns import SchemaPattern
from backends.schema_regex import PatternError
from backends.schema_work import draw_below, pick_from

# Compiled at their first use, by re: compiling them all would take a tenth of the server's start.
_FORMAT_MONTH_DAYS = (31, 29, 31, 30, 31, 30, 31, 31, 30, 31, 30, 31)
_FORMAT_DATE = r"(\d{4})-(\d\d)-(\d\d)\Z"
_FORMAT_TIME = r"([01]\d|2[0-3]):[0-5]\d:([0-5]\d|60)(\.\d+)?([zZ]|[+-]([01]\d|2[0-3]):[0-5]\d)\Z"
_FORMAT_DURATION = r"P(?:\d+W|(?=[\dT])(?:\d+Y)?(?:\d+M)?(?:\d+D)?(?:T(?=\d)(?:\d+H)?(?:\d+M)?(?:\d+(?:\.\d+)?S)?)?)\Z"
_FORMAT_LABEL = r"(?!-)[A-Za-z0-9-]{1,63}(?<!-)\Z"
_FORMAT_EMAIL_NAME = r"[^\s@\",:;<>()\[\]\\.]+(?:\.[^\s@\",:;<>()\[\]\\.]+)*\Z"
_FORMAT_EMAIL_HOST = r"[^\s@_,;.]+(?:\.[^\s@_,;.]+)*\Z"
_FORMAT_IPV4 = r"(?:(?:25[0-5]|2[0-4]\d|1\d\d|[1-9]?\d)(?:\.|\Z)){4}\Z"
_FORMAT_UUID = r"[0-9a-fA-F]{8}(?:-[0-9a-fA-F]{4}){3}-[0-9a-fA-F]{12}\Z"
_FORMAT_URI = r"[A-Za-z][A-Za-z0-9+.-]*:[^\s<>\"{}|\\^`\x00-\x20\x7f-\U0010ffff]*\Z"
_FORMAT_IRI = r"[A-Za-z][A-Za-z0-9+.-]*:[^\s<>\"{}|\\^`\x00-\x20]*\Z"
_FORMAT_REFERENCE = r"[^\s<>\"{}|\\^`\x00-\x20\x7f-\U0010ffff]*\Z"
_FORMAT_POINTER = r"(?:/(?:[^~/]|~[01])*)*\Z"
_FORMAT_RELATIVE_POINTER = r"(?:0|[1-9]\d*)(?:#|(?:/(?:[^~/]|~[01])*)*)\Z"
_FORMAT_BASE64 = r"(?:[A-Za-z0-9+/]{4})*(?:[A-Za-z0-9+/]{2}==|[A-Za-z0-9+/]{3}=)?\Z"

_FORMAT_FIRST_NAMES = ("anna", "ben", "clara", "david", "elena", "felix", "grace", "hugo", "iris", "jonas", "lina",
                       "maria", "noah", "olivia", "paul", "sofia")
_FORMAT_LAST_NAMES = ("miller", "larsen", "novak", "rossi", "schmidt", "garcia", "dubois", "tanaka", "olsen", "brown",
                      "silva", "kovacs")
_FORMAT_WORDS = ("harbour", "lantern", "meadow", "river", "orchard", "compass", "garden", "signal", "market", "summer",
                 "bridge", "valley", "copper", "island", "maple", "willow")
_FORMAT_BASE64_TEXTS = ("aGVsbG8gd29ybGQ=", "bWFwbGUgZ2FyZGVu", "cml2ZXIgYnJpZGdl", "Z29vZCBtb3JuaW5n", "d2lsbG93",
                        "c2Vh")


def _format_match(pattern, text):
    return re.match(pattern, text, re.ASCII)


def _format_is_date(text):
    found = _format_match(_FORMAT_DATE, text)
    if not found:
        return False
    year, month, day = map(int, found.groups())
    if not 1 <= month <= 12 or not 1 <= day <= _FORMAT_MONTH_DAYS[month - 1]:
        return False
    return (month, day) != (2, 29) or (year % 4 == 0 and (year % 100 != 0 or year % 400 == 0))


def _format_is_date_time(text):
    return (text[10:11] in ("T", "t") and _format_is_date(text[:10])
            and _format_match(_FORMAT_TIME, text[11:]) is not None)


def _format_is_hostname(text):
    return 0 < len(text) <= 253 and all(_format_match(_FORMAT_LABEL, label) for label in text.split("."))


def _format_is_email(text):
    name, _, host = text.rpartition("@")
    return bool(len(name) <= 64 and _format_match(_FORMAT_EMAIL_NAME, name) and _format_match(_FORMAT_EMAIL_HOST, host))


def _format_is_ipv6(text):
    head, gap, tail = text.partition("::")
    groups = (head.split(":") if head else []) + (tail.split(":") if tail else [])
    count = len(groups)
    if groups and "." in groups[-1]:
        if not _format_match(_FORMAT_IPV4, groups.pop()):
            return False
        count += 1
    if not all(0 < len(group) <= 4 and not group.strip("0123456789abcdefABCDEF") for group in groups):
        return False
    return count < 8 if gap else count == 8


def _format_is_regex(text):
    try:
        SchemaPattern(text)
    except PatternError:
        return False
    return True


def _format_date(draw):
    return "%d-%02d-%02d" % (2024 + draw_below(draw, 3), 1 + draw_below(draw, 12), 1 + draw_below(draw, 28))


def _format_clock(draw):
    return "%02d:%02d:00" % (8 + draw_below(draw, 12), 5 * draw_below(draw, 12))


def _format_email(draw):
    return "%s.%s@example.%s" % (pick_from(draw, _FORMAT_FIRST_NAMES), pick_from(draw, _FORMAT_LAST_NAMES),
                                 pick_from(draw, ("com", "org")))


def _format_uuid(draw):
    digits = "".join(pick_from(draw, "0123456789abcdef") for _ in range(30))
    return "%s-%s-4%s-%s%s-%s" % (digits[:8], digits[8:12], digits[12:15], pick_from(draw, "89ab"), digits[15:18],
                                  digits[18:])


def _format_uri(draw):
    return "https://example.com/" + pick_from(draw, _FORMAT_WORDS)


# name -> (a test of a text, a drawn text)
_FORMAT_TABLE = {
    "date": (_format_is_date, _format_date),
    "date-time": (_format_is_date_time, lambda draw: _format_date(draw) + "T" + _format_clock(draw) + "Z"),
    "time": (partial(_format_match, _FORMAT_TIME), lambda draw: _format_clock(draw) + "Z"),
    "duration": (partial(_format_match, _FORMAT_DURATION), lambda draw: "PT%dM" % (5 * (1 + draw_below(draw, 18)))),
    "email": (_format_is_email, _format_email),
    "idn-email": (_format_is_email, _format_email),
    "hostname": (_format_is_hostname, lambda draw: pick_from(draw, _FORMAT_WORDS) + ".example.com"),
    "idn-hostname": (lambda text: bool(text) and not any(map(str.isspace, text)),
                     lambda draw: pick_from(draw, _FORMAT_WORDS) + ".example.com"),
    # addresses of the ranges for documentation (RFC 5737, RFC 3849)
    "ipv4": (partial(_format_match, _FORMAT_IPV4), lambda draw: "192.0.2.%d" % (1 + draw_below(draw, 254))),
    "ipv6": (_format_is_ipv6, lambda draw: "2001:db8::%x" % (1 + draw_below(draw, 65535))),
    "uri": (partial(_format_match, _FORMAT_URI), _format_uri),
    "url": (partial(_format_match, _FORMAT_URI), _format_uri),
    "iri": (partial(_format_match, _FORMAT_IRI), _format_uri),
    "uri-reference": (partial(_format_match, _FORMAT_REFERENCE), lambda draw: "/" + pick_from(draw, _FORMAT_WORDS)),
    "iri-reference": (lambda text: not any(map(str.isspace, text)), lambda draw: "/" + pick_from(draw, _FORMAT_WORDS)),
    "uri-template": (lambda text: text.count("{") == text.count("}") and not any(map(str.isspace, text)),
                     lambda draw: "/" + pick_from(draw, _FORMAT_WORDS) + "/{id}"),
    "uuid": (partial(_format_match, _FORMAT_UUID), _format_uuid),
    "json-pointer": (partial(_format_match, _FORMAT_POINTER), lambda draw: "/" + pick_from(draw, _FORMAT_WORDS)),
    "relative-json-pointer": (partial(_format_match, _FORMAT_RELATIVE_POINTER),
                              lambda draw: "1/" + pick_from(draw, _FORMAT_WORDS)),
    "regex": (_format_is_regex, lambda draw: pick_from(draw, ("^[a-z]+$", "^[0-9]{4}$", "^[A-Z][a-z]+$"))),
    "byte": (partial(_format_match, _FORMAT_BASE64), lambda draw: pick_from(draw, _FORMAT_BASE64_TEXTS)),
    "binary": (lambda text: True, lambda draw: pick_from(draw, _FORMAT_BASE64_TEXTS)),
    "base64": (partial(_format_match, _FORMAT_BASE64), lambda draw: pick_from(draw, _FORMAT_BASE64_TEXTS)),
    "ip-address": (partial(_format_match, _FORMAT_IPV4), lambda draw: "192.0.2.%d" % (1 + draw_below(draw, 254))),
}
_FORMAT_TABLE["host-name"] = _FORMAT_TABLE["hostname"]
# Pydantic's and Zod's own names
_FORMAT_TABLE.update({"uuid%d" % number: _FORMAT_TABLE["uuid"] for number in (4, 5, 6, 7)})
_FORMAT_TABLE.update({
    "ipvanyaddress": (lambda text: True, _FORMAT_TABLE["ipv4"][1]),
    "ipvanynetwork": (lambda text: True, lambda draw: "192.0.2.0/24"),
    "ipv4network": (lambda text: True, lambda draw: "192.0.2.0/24"),
    "json-string": (lambda text: True,
                    lambda draw: '{"%s": %d}' % (pick_from(draw, _FORMAT_WORDS), draw_below(draw, 9))),
    "file-path": (lambda text: True, lambda draw: pick_from(draw, _FORMAT_WORDS) + ".txt"),
    "directory-path": (lambda text: True, lambda draw: pick_from(draw, _FORMAT_WORDS)),
    "path": (lambda text: True, lambda draw: pick_from(draw, _FORMAT_WORDS) + ".txt"),
    "color": (lambda text: True, lambda draw: "#3366cc")})


def format_holds(kind, text):
    """True when `text` has the format, or the format is unknown."""
    found = _FORMAT_TABLE.get(kind)
    return found is None or bool(found[0](text))


def draw_format(kind, draw):
    """A text of the format, or None when it is unknown."""
    found = _FORMAT_TABLE.get(kind)
    return None if found is None else found[1](draw)
