"""Files of exact tokenizers: rank files (.tiktoken) and Hugging Face's tokenizer.json with byte-level BPE.

In: a path. Out: a BytePairTokenizer, or a ValueError with one line that says what is wrong or not supported.
"""

import json
import os
from binascii import a2b_base64

from tokens.bpe import AddedTokens, BytePairTokenizer
from tokens.patterns import SPLIT_PATTERNS, SplitPattern

# Tokens that stand in no rank file, by their ids: only for the way back.
_RANK_SPECIALS = {
    "gpt2": {50256: "<|endoftext|>"}, "r50k_base": {50256: "<|endoftext|>"}, "p50k_base": {50256: "<|endoftext|>"},
    "p50k_edit": {50256: "<|endoftext|>", 50281: "<|fim_prefix|>", 50282: "<|fim_middle|>", 50283: "<|fim_suffix|>"},
    "cl100k_base": {100257: "<|endoftext|>", 100258: "<|fim_prefix|>", 100259: "<|fim_middle|>",
                    100260: "<|fim_suffix|>", 100276: "<|endofprompt|>"},
    "o200k_base": {199999: "<|endoftext|>", 200018: "<|endofprompt|>"},
}

_GPT2_PATTERN = SPLIT_PATTERNS["r50k_base"]         # what a ByteLevel step cuts by


def load_rank_file(path, pattern_name=None):
    """The tokenizer of a .tiktoken file: a line "BASE64 RANK" for each token.

    pattern_name: a key of SPLIT_PATTERNS; None for the one that the file's name holds, or else o200k_base.
    """
    if pattern_name is None:
        found = [name for name in SPLIT_PATTERNS if name in os.path.basename(path)]
        pattern_name = found[0] if found else "o200k_base"
    ranks = {}
    with open(path, "rb") as file:
        for number, line in enumerate(file, 1):
            if line.strip():
                try:
                    token, rank = line.split()
                    ranks[a2b_base64(token)] = int(rank)
                except ValueError:
                    raise ValueError("line %d of %s is not 'BASE64 RANK'" % (number, path))
    _check_all_bytes(ranks, path)

    def score(left, right):
        return ranks.get(left + right)
    names = {number: text.encode("ascii") for number, text in _RANK_SPECIALS.get(pattern_name, {}).items()}
    return BytePairTokenizer(os.path.basename(path), ranks, score, [SplitPattern(SPLIT_PATTERNS[pattern_name])],
                             names={number: text for number, text in names.items() if number >= len(ranks)})


def _check_all_bytes(ids, path):
    missing = [each for each in range(256) if bytes((each,)) not in ids]
    if missing:
        raise ValueError("%s has no token for the byte 0x%02x (%d bytes are missing)" % (
            path, missing[0], len(missing)))


def byte_alphabet():
    """{character: byte}: how byte-level vocabularies spell bytes. Source: GPT-2's encoder, `bytes_to_unicode`."""
    visible = [*range(0x21, 0x7F), *range(0xA1, 0xAD), *range(0xAE, 0x100)]
    alphabet = {chr(byte): byte for byte in visible}
    for byte in range(256):
        if byte not in visible:
            alphabet[chr(0x100 + len(alphabet) - len(visible))] = byte
    return alphabet


class _JsonFile:
    """Reads one tokenizer.json."""

    def __init__(self, path):
        self._path = path
        with open(path, encoding="utf-8") as file:
            try:
                self._root = json.load(file)
            except (ValueError, RecursionError) as exc:
                raise ValueError("%s is not JSON: %s" % (path, exc))
        if self._root.__class__ is not dict or self._root.get("model").__class__ is not dict:
            raise self._refusal("it has no model: is it a tokenizer.json?")

    def _refusal(self, what):
        return ValueError("%s: %s" % (self._path, what))

    def load(self):
        try:
            return self._load()
        except (KeyError, TypeError, AttributeError) as exc:
            raise self._refusal("it is not shaped like a tokenizer.json: %s: %s" % (type(exc).__name__, exc))

    def _load(self):
        model = self._root["model"]
        kind = model.get("type", "BPE" if "merges" in model else None)
        if kind != "BPE":
            raise self._refusal("model type %s is not supported, only byte-level BPE is" % kind)
        for name in ("dropout", "continuing_subword_prefix", "end_of_word_suffix", "byte_fallback"):
            if model.get(name):
                raise self._refusal("model.%s is not supported, only byte-level BPE is" % name)
        patterns, prefix_space = self._pre_tokenizer(self._root.get("pre_tokenizer"))
        nfc = self._normalizer(self._root.get("normalizer"))
        alphabet = byte_alphabet()
        table = {ord(char): byte for char, byte in alphabet.items()}
        added = self._root.get("added_tokens") or []
        outside = {entry["content"] for entry in added}
        spelled, ids = {}, {}
        for token, number in model["vocab"].items():
            try:
                spelled[token] = token.translate(table).encode("latin-1")
            except UnicodeEncodeError:
                if token not in outside:
                    raise self._refusal("the token %.40r is not spelled in bytes, so this is not byte-level BPE" % token)
                continue
            ids[spelled[token]] = number
        scores = self._merges(model["merges"], spelled, ids)
        _check_all_bytes(ids, self._path)

        def score(left, right):
            return scores.get((left, right))
        names = {entry["id"]: _added_bytes(entry["content"], alphabet) for entry in added}
        early = [entry for entry in added if not entry.get("normalized")]
        late = [entry for entry in added if entry.get("normalized")]
        return BytePairTokenizer(os.path.basename(self._path), ids, score, patterns, bool(model.get("ignore_merges")), names,
                                 AddedTokens(early) if early else None, AddedTokens(late) if late else None, nfc,
                                 prefix_space)

    def _merges(self, merges, spelled, ids):
        """{(left, right): rank} of both forms, "a b" and ["a", "b"]."""
        scores = {}
        for rank, pair in enumerate(merges):
            left, right = pair.split(" ") if pair.__class__ is str else pair
            left, right = spelled[left], spelled[right]
            if left + right not in ids:
                raise self._refusal("merge %d makes a token that the vocabulary does not have" % rank)
            scores[left, right] = rank
        return scores

    def _normalizer(self, value):
        """Whether the text is normalised to NFC."""
        if value is None:
            return False
        if value["type"] == "Sequence":
            return any([self._normalizer(step) for step in value["normalizers"]])
        if value["type"] != "NFC":
            raise self._refusal("normalizer %s is not supported, only NFC is" % value["type"])
        return True

    def _pre_tokenizer(self, value):
        """([SplitPattern, ...], whether a space goes before the text)."""
        steps = [] if value is None else value["pretokenizers"] if value["type"] == "Sequence" else [value]
        patterns, prefix_space, byte_level = [], False, False
        for step in steps:
            kind = step["type"]
            if kind == "Split":
                patterns.append(self._split(step))
            elif kind == "Digits":
                patterns.append(SplitPattern(r"\p{N}" if step.get("individual_digits") else r"\p{N}+"))
            elif kind == "ByteLevel":
                byte_level = True
                if step.get("add_prefix_space", True):
                    if patterns:
                        raise self._refusal("add_prefix_space after another pre-tokenizer is not supported")
                    prefix_space = True
                if step.get("use_regex", True):
                    patterns.append(SplitPattern(_GPT2_PATTERN))
            else:
                raise self._refusal("pre-tokenizer %s is not supported, only Split, Digits and ByteLevel are" % kind)
        if not byte_level:
            raise self._refusal("it has no ByteLevel pre-tokenizer: only byte-level BPE is supported")
        return patterns or [SplitPattern(r"[\s\S]+")], prefix_space

    def _split(self, step):
        behaviour, inverted = step.get("behavior"), bool(step.get("invert"))
        if behaviour != "Isolated" and (behaviour, inverted) != ("Removed", True):
            raise self._refusal("a Split with behavior %s is not supported, only Isolated is" % behaviour)
        pattern = step["pattern"]
        if "Regex" in pattern:
            try:
                return SplitPattern(pattern["Regex"])
            except ValueError as exc:
                raise self._refusal(str(exc))
        return SplitPattern("".join(["\\" + char if not char.isalnum() and char.isascii() else char
                                     for char in pattern["String"]]))


def _added_bytes(content, alphabet):
    """What an added token decodes to: its spelling in bytes if it can be read as one."""
    if all(char in alphabet for char in content):
        return bytes([alphabet[char] for char in content])
    return content.encode("utf-8")


def load_tokenizer_json(path):
    """The tokenizer of a Hugging Face tokenizer.json: byte-level BPE as GPT-2, Llama 3 and Qwen 2 and 3 have it."""
    return _JsonFile(path).load()
