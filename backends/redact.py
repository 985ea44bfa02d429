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

# (what a lower-cased text with one contains, the secret or its group 1). The look for the first costs 1 ns a character.
_SECRET_SHAPES = tuple((mark, re.compile(pattern)) for mark, pattern in (
    ("sk-", r"\bsk-(?=[\w-]*\d)[\w-]{8,}"),
    ("earer", r"(?i:\bbearer)\s+((?=[^\s\"']*\d)[A-Za-z0-9._~+/=-]{8,})"),
    ("basic ", r"(?i:\bbasic)\s+((?=[A-Za-z+/]*[\d=])[A-Za-z0-9+/]{10,}={0,2})"),
    ("akia", r"\bAKIA[0-9A-Z]{16}\b"),
    ("asia", r"\bASIA[0-9A-Z]{16}\b"),
    ("gh", r"\bgh[pousr]_[A-Za-z0-9]{20,}"),
    ("github_pat_", r"\bgithub_pat_\w{20,}"),
    ("glpat-", r"\bglpat-[\w-]{16,}"),
    ("xox", r"\bxox[abeoprs]-[A-Za-z0-9-]{10,}"),
    ("aiza", r"\bAIza[\w-]{30,}"),
    ("hf_", r"\bhf_[A-Za-z0-9]{20,}"),
    ("gsk_", r"\bgsk_[A-Za-z0-9]{20,}"),
    ("xai-", r"\bxai-[A-Za-z0-9]{20,}"),
    ("nvapi-", r"\bnvapi-[\w-]{20,}"),
    ("npm_", r"\bnpm_[A-Za-z0-9]{30,}"),
    ("pypi-", r"\bpypi-[\w-]{30,}"),
    ("k_live_", r"\b[rs]k_live_[A-Za-z0-9]{16,}"),
    ("k_test_", r"\b[rs]k_test_[A-Za-z0-9]{16,}"),
    ("eyj", r"\beyJ[\w-]{8,}\.[\w-]{8,}\.[\w-]*"),
    ("private key-----", r"-----BEGIN [A-Z ]*PRIVATE KEY-----(?s:.*?)(?:-----END [A-Z ]*PRIVATE KEY-----|\Z)"),
    ("cookie", r"(?i:\b(?:set-)?cookie)[\"']?\s*:\s*[\"']?([^\s\"'=]+=[^\r\n\"']+)"),
    ("key", r"(?i:\b(?:[a-z]+[_-])*(?:api|access|secret)[_-]?key)[\"']?\s*[:=]\s*[\"']?((?=[^\s\"',;&]*\d)[^\s\"',;&]{8,})"),
    ("token", r"(?i:\b(?:access|auth|refresh|bearer)[_-]?token)[\"']?\s*[:=]\s*[\"']?((?=[^\s\"',;&]*\d)[^\s\"',;&]{8,})"),
    ("secret", r"(?i:\bclient[_-]?secret)[\"']?\s*[:=]\s*[\"']?([^\s\"',;&]{8,})"),
    ("passw", r"(?i:\bpassw(?:or)?d)[\"']\s*:\s*[\"']([^\s\"']+)"),
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
