"""Byte-pair encoding as the models do it: ids out of text and back, exactly, by ranks or merges from a file.

In: a vocabulary, a score for each pair of neighbours that may merge, a split pattern. Out: a Tokenizer. Any thread;
a text costs linear time, however long its pieces are.
"""

import re
import unicodedata
from heapq import heapify, heappop, heappush
from itertools import chain, groupby

from tokenizer import Tokenizer

_BPE_NEVER = 1 << 60                # the score of two that never merge

# Pieces remembered with their ids, up to this length and number: at most some 8 MB.
_BPE_CACHED_CHARS = 48
_BPE_CACHED_PIECES = 32768

# Up to so many bytes the lowest score is looked for in a list, which C does fast; beyond, in a heap.
_BPE_SHORT_BYTES = 160

# A longer piece is merged in windows, each begun so far before the end of the one before it. The overlap holds several
# of the longest tokens (128 bytes), so that the two agree somewhere.
_BPE_WINDOW_BYTES = 4096
_BPE_OVERLAP_BYTES = 512

_BPE_LONG_CHARS = 65536             # of a long text between two breaths; a longer one is cut piece by piece

_BPE_SURROGATES = re.compile("[\ud800-\udfff]")
_BPE_UNKNOWN = "\ufffd".encode("utf-8")

# Where a long run of combining marks may be, and the marks that decompose into two of them.
_BPE_MARKS = re.compile("[^\x00-\u02ff]{128,}")
_BPE_DOUBLE_MARKS = {0xF73: "\u0f71\u0f72", 0xF75: "\u0f71\u0f74", 0xF81: "\u0f71\u0f80"}


class PairMerger:
    """Merges the bytes of one piece into tokens.

    score: function of two neighbouring tokens (bytes) -> int, the lower the earlier they merge; None for never.
    """

    def __init__(self, score):
        self._score = score

    def merge(self, piece, breathe=int):
        """The tokens of a piece (bytes), a list of bytes. breathe: see Tokenizer.count_slowly()."""
        if len(piece) <= _BPE_SHORT_BYTES:
            return self._merge_short(piece)
        if len(piece) <= _BPE_WINDOW_BYTES:
            return self._merge_long(piece)
        return self._merge_windows(piece, breathe)

    def _scores(self, tokens):
        return [_BPE_NEVER if each is None else each for each in map(self._score, tokens, tokens[1:])]

    def _merge_short(self, piece):
        tokens = [piece[at:at + 1] for at in range(len(piece))]
        scores = self._scores(tokens)
        score = self._score
        while scores:
            best = min(scores)
            if best == _BPE_NEVER:
                break
            at = scores.index(best)
            tokens[at:at + 2] = [tokens[at] + tokens[at + 1]]
            del scores[at]
            if at:
                found = score(tokens[at - 1], tokens[at])
                scores[at - 1] = _BPE_NEVER if found is None else found
            if at < len(scores):
                found = score(tokens[at], tokens[at + 1])
                scores[at] = _BPE_NEVER if found is None else found
        return tokens

    def _merge_long(self, piece):
        """The same with a heap of (score, place); an entry whose score is not the place's any more is stale."""
        end = len(piece)
        tokens = [piece[at:at + 1] for at in range(end)]
        scores = self._scores(tokens) + [_BPE_NEVER]
        before, after = list(range(-1, end - 1)), list(range(1, end + 1))
        heap = [(each, at) for at, each in enumerate(scores) if each != _BPE_NEVER]
        heapify(heap)
        score = self._score
        while heap:
            best, at = heappop(heap)
            if scores[at] != best:
                continue
            gone = after[at]
            tokens[at] += tokens[gone]
            tokens[gone], scores[gone] = None, _BPE_NEVER
            after[at] = after[gone]
            if after[at] < end:
                before[after[at]] = at
            for left in (before[at], at):
                if left >= 0:
                    right = after[left]
                    found = score(tokens[left], tokens[right]) if right < end else None
                    scores[left] = _BPE_NEVER if found is None else found
                    if found is not None:
                        heappush(heap, (found, left))
        return [token for token in tokens if token is not None]

    def _merge_windows(self, piece, breathe):
        """The same, a window after the other.

        Whether anything merges across the border of two tokens depends on these two alone, so a list of tokens is the
        encoding when each two neighbours encode to themselves, and two windows may be joined at any border that both
        have and where that holds.
        """
        wide, overlap = _BPE_WINDOW_BYTES, _BPE_OVERLAP_BYTES
        tokens, end = self._merge_long(piece[:wide]), wide
        known = {}                                      # a text of one letter comes down to one window or a few
        while end < len(piece):
            at, number = end, len(tokens)
            while number and end - at < overlap:
                number -= 1
                at -= len(tokens[number])
            window = piece[at:at + wide]
            others = known.get(window)
            if others is None:
                if len(known) == 8:
                    known.clear()
                others = known[window] = self._merge_long(window)
            place, other = self._join(tokens, number, others)
            if place is not None:
                del tokens[place:]
                tokens += others[other:]
                end = at + len(window)
                wide, overlap = _BPE_WINDOW_BYTES, _BPE_OVERLAP_BYTES
            elif wide >= len(piece):
                return self._merge_long(piece)
            else:
                wide, overlap = 2 * wide, 2 * overlap
            breathe()
        return tokens

    def _join(self, tokens, place, others):
        """(i, j) so that tokens[:i] + others[j:] is an encoding; others begins where tokens[place] does."""
        other = ahead = 0                               # ahead: bytes that `others` is before `tokens`
        while place < len(tokens) and other < len(others):
            if not ahead and (not place or self._stand(tokens[place - 1], others[other])):
                return place, other
            if ahead > 0:
                ahead -= len(tokens[place])
                place += 1
            else:
                ahead += len(others[other])
                other += 1
        return None, None

    def _stand(self, left, right):
        return self.merge(left + right) == [left, right]


class AddedTokens:
    """Texts that are tokens of their own wherever they stand in a text: <|endoftext|> and the like.

    entries: [{"id": int, "content": str, "single_word": bool, "lstrip": bool, "rstrip": bool}, ...], the longest
    of those that begin at a place wins. lstrip, rstrip: white space beside it belongs to it. single_word: it
    counts only where no word continues on either side. Source: tokenizers 0.23, "AddedToken", and seen there.
    """

    def __init__(self, entries):
        self._entries = {entry["content"]: entry for entry in entries}
        longest_first = sorted(self._entries, key=len, reverse=True)
        self._find = re.compile("|".join(map(re.escape, longest_first))).finditer

    def cut(self, text):
        """[(part, its id, or None for ordinary text), ...]."""
        parts, at = [], 0
        for found in self._find(text):
            entry = self._entries[found.group()]
            start, end = found.span()
            if start < at or entry.get("single_word") and (
                    start and _bpe_is_word(text[start - 1]) or end < len(text) and _bpe_is_word(text[end])):
                continue
            if entry.get("lstrip"):
                while start > at and text[start - 1].isspace():
                    start -= 1
            if entry.get("rstrip"):
                while end < len(text) and text[end].isspace():
                    end += 1
            if start > at:
                parts.append((text[at:start], None))
            parts.append((text[start:end], entry["id"]))
            at = end
        if at < len(text):
            parts.append((text[at:], None))
        return parts


class BytePairTokenizer(Tokenizer):
    """The exact tokenizer of a file.

    name: str. ids: {token in bytes: id}, all 256 bytes among them. score: see PairMerger. patterns: list of
    SplitPattern, each cuts the pieces of the one before. whole: a piece that is a token is not merged, but taken as it
    is. names: {id: bytes} of ids that are no merged tokens, for decode(). added: AddedTokens of the text
    as it comes, added_later: of the normalised text, or None. nfc: the text is normalised to NFC. prefix_space: a text,
    and what follows an added token, begins with a space.

    A token may end within a character: in split() the character stands in the piece of the token that completes it,
    and those before it are empty.
    """

    inline_bytes = 4000             # some 10 ms for pieces that were never seen, 1 ms for others

    def __init__(self, name, ids, score, patterns, whole=True, names=None, added=None, added_later=None, nfc=False,
                 prefix_space=False):
        self.name = name
        self._ids = ids
        self._merger = PairMerger(score)
        self._patterns = patterns
        self._whole = whole
        self._added, self._added_later = added, added_later
        self._nfc = nfc
        self._prefix_space = prefix_space
        self._plain = not (added or added_later or nfc or prefix_space) and len(patterns) == 1
        self._bytes = dict(zip(ids.values(), ids))
        self._bytes.update(names or {})
        self._cache = {}            # piece -> its ids

    def encode(self, text):
        ids = []
        for piece, number in self._walk(text):
            if number is None:
                ids += self._piece_ids(piece)
            else:
                ids.append(number)
        return ids

    def decode(self, ids):
        """The text of ids; U+FFFD for those that the vocabulary does not have, and for bytes that are no text."""
        known = self._bytes
        return b"".join([known.get(number, _BPE_UNKNOWN) for number in ids]).decode("utf-8", "replace")

    def count(self, text):
        if not self._plain or len(text) > _BPE_LONG_CHARS:
            return self.count_slowly(text, int)
        piece_ids = self._piece_ids
        return sum([len(piece_ids(piece)) for piece in self._patterns[0].pieces(encodable_text(text))])

    def count_slowly(self, text, breathe):
        total = seen = 0
        for piece, number in self._walk(text):
            total += 1 if number is not None else len(self._piece_ids(piece, breathe))
            seen += len(piece)
            if seen >= _BPE_LONG_CHARS:
                seen = 0
                breathe()
        return total

    def split(self, text):
        pieces = []
        for original, number in self._parts(text):
            if number is not None:
                pieces.append(original)
                continue
            normal = self._normal(encodable_text(original))
            sizes = []              # of all tokens of this part, in bytes of its normalised text
            for part, number in self._later_parts(normal):
                if number is not None:
                    sizes.append(len(part.encode("utf-8")))
                    continue
                first = len(sizes)
                for piece in self._cut(part):
                    sizes += [len(self._bytes[number]) for number in self._piece_ids(piece)]
                sizes[first] -= self._leads(part)       # nobody wrote that space
            pieces += spread_over_tokens(sizes, original if original.isascii() else self._units(original, normal))
        return pieces

    # ---- from a text to its pieces ------------------------------------------------------------

    def _parts(self, text):
        return self._added.cut(text) if self._added is not None else [(text, None)] if text else []

    def _later_parts(self, text):
        """The same of a normalised text."""
        return [(text, None)] if self._added_later is None else self._added_later.cut(text)

    def _leads(self, text):
        """Whether a space goes before ordinary text."""
        return self._prefix_space and not text.startswith(" ")

    def _normal(self, text):
        return _bpe_nfc(text) if self._nfc and not text.isascii() else text

    def _walk(self, text):
        """Yield (piece, its id if it is an added token)."""
        for part, number in self._parts(text):
            if number is not None:
                yield part, number
                continue
            for part, number in self._later_parts(self._normal(encodable_text(part))):
                if number is not None:
                    yield part, number
                else:
                    for piece in self._cut(part):
                        yield piece, None

    def _cut(self, text):
        """The pieces of ordinary text."""
        text = " " + text if self._leads(text) else text
        first = self._patterns[0]
        pieces = first.pieces(text) if len(text) <= _BPE_LONG_CHARS else first.walk(text)
        for pattern in self._patterns[1:]:
            pieces = chain.from_iterable(map(pattern.walk, pieces))
        return pieces

    def _piece_ids(self, piece, breathe=int):
        ids = self._cache.get(piece)
        if ids is None:
            data = piece.encode("utf-8")
            if self._whole and data in self._ids:
                ids = (self._ids[data],)
            else:
                ids = tuple(map(self._ids.__getitem__, self._merger.merge(data, breathe)))
            if len(piece) <= _BPE_CACHED_CHARS:
                if len(self._cache) >= _BPE_CACHED_PIECES:
                    self._cache.clear()
                self._cache[piece] = ids
        return ids

    # ---- and back to what was written ---------------------------------------------------------

    def _units(self, original, normal):
        """[(what was written, its bytes in the normalised text), ...], as small as they come."""
        if not self._nfc or normal == original:
            return text_units(original)
        units, at = [], 0
        for end in range(1, len(original) + 1):
            if end < len(original) and self._sticks(original[max(at, end - 4):end], original[end]):
                continue
            unit = original[at:end]
            units.append((unit, sum(map(_bpe_size, _bpe_nfc(unit)))))
            at = end
        return units

    @staticmethod
    def _sticks(before, char):
        """Whether a character may change, or be changed by, what stands before it."""
        normal = unicodedata.normalize
        return unicodedata.combining(char) or ord(char) in _BPE_DOUBLE_MARKS \
            or normal("NFC", before + char) != normal("NFC", before) + normal("NFC", char)


def _bpe_nfc(text):
    """NFC in linear time: Python sorts a run of marks by insertion, which takes 4 s for 20,000 of them."""
    return unicodedata.normalize("NFC", _BPE_MARKS.sub(_bpe_sorted_marks, text))


def _bpe_sorted_marks(found):
    """The same characters in canonical order, so that nothing is left to sort."""
    parts = []
    for is_marks, run in groupby(found.group().translate(_BPE_DOUBLE_MARKS), lambda char: unicodedata.combining(char) > 0):
        parts += sorted(run, key=unicodedata.combining) if is_marks else run
    return "".join(parts)


def _bpe_is_word(char):
    r"""Whether \w of Rust's regular expressions matches, which marks and joiners do as well."""
    category = unicodedata.category(char)
    return category[0] in "LM" or category in ("Nd", "Nl", "Pc") or char in "\u200c\u200d"


def encodable_text(text):
    """The text without halves of surrogate pairs, which have no UTF-8; as tiktoken does it."""
    return text if text.isascii() else _BPE_SURROGATES.sub("\ufffd", text)


def _bpe_size(char):
    """Bytes of a character in UTF-8; of half a surrogate pair as many as of what stands in for it."""
    return 1 if char < "\x80" else 2 if char < "\u0800" else 3 if char < "\U00010000" else 4


def text_units(text):
    """What spread_over_tokens() takes of a text that is not normalised."""
    return text if text.isascii() else [(char, _bpe_size(char)) for char in text]


def spread_over_tokens(sizes, units):
    """Texts for tokens of these sizes, a list of str: each unit goes to the token in which it ends.

    sizes: list of int. units: [(str, its size), ...], or a str for characters of size 1.
    """
    pieces, at, number, ahead = [], 0, 0, 0
    if units.__class__ is str:
        for size in sizes:
            pieces.append(units[at:at + size])
            at += size
        return pieces
    for size in sizes:
        at += size
        first = number
        while number < len(units) and ahead + units[number][1] <= at:
            ahead += units[number][1]
            number += 1
        pieces.append("".join([text for text, _ in units[first:number]]))
    return pieces
