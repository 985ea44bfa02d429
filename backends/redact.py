"""Secrets out of what is written to disk: keys known by their value, by their shape, or by the name they stand under.

In: texts and JSON-able values. Out: the same with REDACTED in place of each secret, and long media as their hash. No
I/O. Matching a request against recordings does the same to it, so that what was redacted is still found.
"""
import re
from hashlib import blake2b

REDACTED = "[redacted]"
SHORTEST_SECRET = 8                 # a key of fewer characters is a word like "none", and would be in every text
_LONG_MEDIA_CHARS = 1024            # base64 of more is kept as its hash
_PLACEHOLDERS = frozenset(("lm-studio", "not-needed", "no-key-needed", "placeholder"))

# Names under which a text is a secret, whatever it looks like
_SECRET_NAMES = frozenset((
    "authorization", "proxy-authorization", "api_key", "apikey", "api-key", "x-api-key", "password", "passwd", "secret",
    "client_secret", "secret_key", "access_token", "refresh_token", "auth_token", "bearer_token", "private_key",
    "cookie", "set-cookie"))

# (what a lower-cased text with one contains, the secret or its group 1). The look for the first costs 1 ns a character,
# a pattern that begins with a plain character 10: one that begins with a choice of words would cost 100.
_VALUE = r"[\"']?\s*[:=]\s*[\"']?((?=[^\s\"',;&]*\d)[^\s\"',;&]{8,})"
_SECRET_SHAPES = tuple((mark, re.compile(pattern)) for mark, pattern in (
    ("sk-", r"sk-(?<![A-Za-z0-9_]sk-)(?=[\w-]*\d)[\w-]{8,}"),
    ("bearer", r"[bB][eE][aA][rR][eE][rR]\s+((?=[^\s\"']*\d)[A-Za-z0-9._~+/=-]{8,})"),
    ("basic ", r"[bB][aA][sS][iI][cC]\s+((?=[A-Za-z+/]*[\d=])[A-Za-z0-9+/]{10,}={0,2})"),
    ("akia", r"AKIA[0-9A-Z]{16}\b"),
    ("asia", r"ASIA[0-9A-Z]{16}\b"),
    ("ghp_", r"ghp_[A-Za-z0-9]{20,}"), ("gho_", r"gho_[A-Za-z0-9]{20,}"), ("ghu_", r"ghu_[A-Za-z0-9]{20,}"),
    ("ghs_", r"ghs_[A-Za-z0-9]{20,}"), ("ghr_", r"ghr_[A-Za-z0-9]{20,}"),
    ("github_pat_", r"github_pat_\w{20,}"),
    ("glpat-", r"glpat-[\w-]{16,}"),
    ("xox", r"xox[abeoprs]-[A-Za-z0-9-]{10,}"),
    ("aiza", r"AIza[\w-]{30,}"),
    ("hf_", r"hf_[A-Za-z0-9]{20,}"),
    ("gsk_", r"gsk_[A-Za-z0-9]{20,}"),
    ("xai-", r"xai-[A-Za-z0-9]{20,}"),
    ("nvapi-", r"nvapi-[\w-]{20,}"),
    ("npm_", r"npm_[A-Za-z0-9]{30,}"),
    ("pypi-", r"pypi-[\w-]{30,}"),
    ("k_live_", r"[rs]k_live_[A-Za-z0-9]{16,}"),
    ("k_test_", r"[rs]k_test_[A-Za-z0-9]{16,}"),
    ("eyj", r"eyJ[\w-]{8,}\.[\w-]{8,}\.[\w-]*"),
    ("private key-----", r"-----BEGIN [A-Z ]*PRIVATE KEY-----(?s:.*?)(?:-----END [A-Z ]*PRIVATE KEY-----|\Z)"),
    ("cookie", r"[cC][oO][oO][kK][iI][eE][\"']?\s*:\s*[\"']?([^\s\"'=]+=[^\r\n\"']+)"),
    ("key", r"[kK][eE][yY](?=[\"'\s]*[:=])(?i:(?<=apikey)|(?<=api[_-]key)|(?<=access[_-]key)|(?<=secret[_-]key))" + _VALUE),
    ("token", r"[tT][oO][kK][eE][nN](?=[\"'\s]*[:=])(?i:(?<=access[_-]token)|(?<=auth[_-]token)|(?<=refresh[_-]token)|"
              r"(?<=bearer[_-]token))" + _VALUE),
    ("secret", r"[sS][eE][cC][rR][eE][tT](?=[\"'\s]*[:=])(?i:(?<=clientsecret)|(?<=client[_-]secret))" + _VALUE),
    ("passw", r"[pP][aA][sS][sS][wW](?:[oO][rR])?[dD][\"']\s*:\s*[\"']([^\s\"']+)"),
    ("://", r"://([^/\s:@\"']*:[^/\s@\"']+)@"),
))


def literal_secrets(secrets):
    """Those of the texts that are looked for as they stand: the longest first."""
    found = set()
    for secret in secrets:
        for text in (secret, secret.partition(" ")[2].strip()) if secret else ():      # "Bearer KEY" as well
            if len(text) >= SHORTEST_SECRET and text not in _PLACEHOLDERS:
                found.add(text)
    return tuple(sorted(found, key=len, reverse=True))


def secret_spans(text, literals=()):
    """[(start, end)] of the secrets in a text, in order, apart from each other. literals: see literal_secrets()."""
    spans = []
    for literal in literals:
        at = text.find(literal)
        while at >= 0:
            spans.append((at, at + len(literal)))
            at = text.find(literal, at + len(literal))
    lower = text.lower()
    for mark, pattern in _SECRET_SHAPES:
        if mark in lower:
            spans += [match.span(pattern.groups) for match in pattern.finditer(text)]
    if len(spans) < 2:
        return spans
    spans.sort()
    apart = spans[:1]
    for start, end in spans[1:]:
        last_start, last_end = apart[-1]
        if start < last_end:
            apart[-1] = last_start, max(end, last_end)
        else:
            apart.append((start, end))
    return apart


def redact_text(text, literals=()):
    spans = secret_spans(text, literals)
    return redact_pieces([text], literals)[0] if spans else text


def redact_pieces(pieces, literals=()):
    """A text that comes in pieces, redacted as a whole: a secret that is spread over several is found as well.

    Returns as many pieces; the first that had a part of a secret has REDACTED in its place.
    """
    spans = secret_spans("".join(pieces), literals)
    if not spans:
        return pieces
    spans.reverse()
    start, end = spans.pop()
    out, at = [], 0
    for piece in pieces:
        kept, place, stop = [], 0, at + len(piece)
        while start < stop:
            if at <= start:
                kept += (piece[place:start - at], REDACTED)
            place = min(end, stop) - at
            if end > stop:
                break
            start, end = spans.pop() if spans else (float("inf"), float("inf"))
        kept.append(piece[place:])
        out.append("".join(kept))
        at = stop
    return out


def redact_value(value, literals=(), shorten=False, breathe=None):
    """A JSON-able value with all its texts redacted; what has none is the same object.

    shorten: base64 and data URLs of some size as their hash, which is equal for equal content. breathe: called now
    and then. Raises RecursionError.
    """
    if value.__class__ is str:
        if shorten and len(value) > _LONG_MEDIA_CHARS and _is_media(value):
            return "[%d characters, blake2b %s]" % (
                len(value), blake2b(value.encode("utf-8", "surrogatepass"), digest_size=16).hexdigest())
        if breathe is not None and len(value) > 200:
            breathe()
        return redact_text(value, literals) if len(value) >= SHORTEST_SECRET else value
    if value.__class__ is list:
        return [redact_value(each, literals, shorten, breathe) for each in value]
    if value.__class__ is dict:
        told = {}
        for name, each in value.items():
            if each and each.__class__ is str and name.lower() in _SECRET_NAMES:
                told[name] = REDACTED
            else:
                told[redact_text(name, literals) if len(name) >= SHORTEST_SECRET else name] = \
                    redact_value(each, literals, shorten, breathe)
        return told
    return value


_MEDIA_START = re.compile(r"(?:data:[^,]{0,200},)?[A-Za-z0-9+/=_-]+\Z")


def _is_media(text):
    """Whether a long text is base64, to judge by its beginning and its end."""
    return text.startswith("data:") or _MEDIA_START.match(text[:512]) is not None \
        and _MEDIA_START.match(text[-256:]) is not None and " " not in text
