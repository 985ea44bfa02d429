"""What --tokenizer names: the built-in approximation, an encoding of the tiktoken library, or a file.

In: the flag's value. Out: a Tokenizer, or a ValueError with one line. Runs once, before the server listens. The library
is imported only when it is asked for, and fetches nothing unless that was allowed.
"""

import os
from hashlib import sha1
from importlib import import_module
from threading import Thread

from tokenizer import ApproxTokenizer, Tokenizer
from tokens.bpe import encodable_text, spread_over_tokens, text_units
from tokens.files import load_rank_file, load_tokenizer_json
from tokens.patterns import SPLIT_PATTERNS, SplitPattern

# A longer text is given to the library in parts: its regular expressions overflow their stack at a million spaces.
_TIKTOKEN_PART_CHARS = 65536


def load_tokenizer(spec, fetch_s=0.0, find_module=import_module):
    """The tokenizer for a value of --tokenizer.

    fetch_s: seconds that tiktoken may take to fetch a file that is not in its cache; 0 forbids it.
    Raises ValueError, with one line that says what is wrong and what to do.
    """
    if spec == "approx":
        return ApproxTokenizer()
    try:
        if spec.startswith("tiktoken:"):
            return _load_tiktoken(spec[len("tiktoken:"):], fetch_s, find_module)
        return _load_file(spec)
    except ValueError as exc:
        raise ValueError("--tokenizer %s: %s" % (spec, " ".join(str(exc).split())))
    except OSError as exc:
        raise ValueError("--tokenizer %s: %s" % (spec, exc.strerror or exc))


def _load_file(spec):
    path, colon, pattern_name = spec.rpartition(":")
    if not colon or pattern_name not in SPLIT_PATTERNS:
        path, pattern_name = spec, None
    if os.path.isdir(path):
        path = os.path.join(path, "tokenizer.json")
    if not os.path.exists(path):
        raise ValueError("there is no file %s, and it is none of approx and tiktoken:NAME" % path)
    with open(path, "rb") as file:
        begins = file.read(4096)
    if begins.lstrip()[:1] != b"{":
        if b"\n" not in begins and len(begins) == 4096:
            raise ValueError("it is neither a rank file nor a tokenizer.json")
        return load_rank_file(path, pattern_name)
    if pattern_name:
        raise ValueError("a tokenizer.json brings its own split pattern")
    return load_tokenizer_json(path)


# ---- the library ------------------------------------------------------------------------------

def _load_tiktoken(name, fetch_s, find_module):
    try:
        library, loading = find_module("tiktoken"), find_module("tiktoken.load")
    except ImportError as exc:
        raise ValueError("tiktoken is not installed (%s); a rank file needs no library: --tokenizer FILE" % exc)
    known = library.list_encoding_names()
    if name not in known:
        try:
            name = library.encoding_name_for_model(name)
        except KeyError:
            raise ValueError("tiktoken has no such encoding; it has %s" % ", ".join(known))
    if fetch_s:
        return TiktokenTokenizer(name, _within(fetch_s, lambda: library.get_encoding(name)))
    fetch = getattr(loading, "read_file", None)
    if fetch is None:
        raise ValueError("this tiktoken cannot be kept from fetching; allow it: --tokenizer-fetch-s 30")

    def refuse(path, *rest):
        """Stands in the way of the library when it wants what is not in its cache."""
        if "://" in path:
            raise ValueError("%s; or allow fetching it for so long: --tokenizer-fetch-s 30" % _cache_advice(path))
        return fetch(path, *rest)
    loading.read_file = refuse
    try:
        return TiktokenTokenizer(name, library.get_encoding(name))
    except (ValueError, OSError):
        raise
    except Exception as exc:            # of a plugin's own: any kind
        raise ValueError("tiktoken cannot make it: %s: %s" % (type(exc).__name__, exc))
    finally:
        loading.read_file = fetch


def _cache_advice(url):
    """Where tiktoken looks for a file. Source: tiktoken 0.14, load.py, `read_file_cached`."""
    folder = os.environ.get("TIKTOKEN_CACHE_DIR", os.environ.get("DATA_GYM_CACHE_DIR"))
    if folder is None:
        import tempfile
        folder = os.path.join(tempfile.gettempdir(), "data-gym-cache")
    if not folder:
        return "its cache is turned off by an empty TIKTOKEN_CACHE_DIR: set it to a folder with %s in it as %s" % (
            url, sha1(url.encode("utf-8")).hexdigest())
    return "its file is not cached: put %s at %s (TIKTOKEN_CACHE_DIR sets the folder)" % (
        url, os.path.join(folder, sha1(url.encode("utf-8")).hexdigest()))


def _within(seconds, work):
    """What work() returns, if it comes in time; its thread is left behind if not, and ends with the process."""
    done = []

    def run():
        try:
            done.append((work(), None))
        except Exception as exc:        # of the network: any kind
            done.append((None, exc))
    thread = Thread(target=run, name="tokenizer fetch", daemon=True)
    thread.start()
    thread.join(seconds)
    if not done:
        raise ValueError("tiktoken did not get its file within %g s" % seconds)
    value, failure = done[0]
    if failure is not None:
        raise ValueError("tiktoken did not get its file: %s: %s" % (type(failure).__name__, str(failure)[:200]))
    return value


class TiktokenTokenizer(Tokenizer):
    """An encoding of the tiktoken library. Special tokens in a text are ordinary text, as in `encode_ordinary`."""

    def __init__(self, name, encoding):
        self.name = "tiktoken:" + name
        self._encoding = encoding
        self._pattern = SplitPattern(SPLIT_PATTERNS[name]) if name in SPLIT_PATTERNS else None
        self._encode_piece = getattr(encoding, "_encode_single_piece", encoding.encode_ordinary)

    def encode(self, text):
        return [number for ids in self._encoded(text) for number in ids]

    def decode(self, ids):
        return b"".join(map(self._token_bytes, ids)).decode("utf-8", "replace")

    def split(self, text):
        sizes = [len(self._token_bytes(number)) for number in self.encode(text)]
        return spread_over_tokens(sizes, text_units(text))

    def count(self, text):
        return self.count_slowly(text, int)

    def count_slowly(self, text, breathe):
        total = seen = 0
        for ids in self._encoded(text):
            total += len(ids)
            seen += 1
            if not seen % 4096:
                breathe()
        return total

    def _encoded(self, text):
        """Yield the ids, part by part."""
        text = encodable_text(text)
        if len(text) <= _TIKTOKEN_PART_CHARS:
            yield self._encoding.encode_ordinary(text)
        elif self._pattern is not None:
            yield from map(self._encode_piece, self._pattern.walk(text))
        else:                           # somebody's own encoding: a cut may make a token more
            for at in range(0, len(text), _TIKTOKEN_PART_CHARS):
                yield self._encoding.encode_ordinary(text[at:at + _TIKTOKEN_PART_CHARS])

    def _token_bytes(self, number):
        try:
            return self._encoding.decode_single_token_bytes(number)
        except (KeyError, OverflowError):
            return "\ufffd".encode("utf-8")
