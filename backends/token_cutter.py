"""What is said, cut into tokens: the one place where a text meets the server's tokenizer.

In: a text. Out: its pieces, one per token, and each one's JSON escape; and beginnings of a text that have exactly so
many tokens. Any thread.
"""
import re
import unicodedata

from api_common import escape_json

TEXT_KEPT_ESCAPES = 1 << 16         # pieces whose escapes are remembered
TEXT_WINDOW_CHARS = 16384           # of a long text, cut between two breaths: 3 ms of Chinese at the worst
# before a space between two words, and at the beginning of a line
_TEXT_BORDER = re.compile(r"(?<=\w)(?= [^\W\d_])|\n(?=\w)")
_TEXT_STOPS = ".!?\u3002\uff01\uff1f\u0964\u061f"   # what a sentence ends with
TEXT_SPARE_TOKENS = 64              # beyond the end, so that what stands before it is cut as in the whole
_TEXT_SEARCH_CHARS = 100            # how far from where it should be a text may end instead
_TEXT_STOP_CHARS = 16               # and one that ends in a full stop


class _TextEscapes(dict):
    """piece -> its JSON escape, made at the first look."""

    def __missing__(self, piece):
        escape = escape_json(piece)
        if len(self) > TEXT_KEPT_ESCAPES:
            self.clear()
        self[piece] = escape
        return escape


class TokenCutter:
    """The one place where what is said is cut into tokens: as the server's tokenizer cuts it.

    tokenizer: a Tokenizer; only split() is asked.
    """

    def __init__(self, tokenizer):
        self.split = tokenizer.split
        self._escapes = _TextEscapes()

    def escapes(self, pieces):
        """The JSON escapes of pieces."""
        return list(map(self._escapes.__getitem__, pieces))

    def holds(self, pieces):
        """Whether pieces are what the tokenizer makes of their text."""
        return self.split("".join(pieces)) == pieces

    def cut_slowly(self, text, breathe, most=None):
        """split(text), with a call of breathe() after each TEXT_WINDOW_CHARS or so.

        most: with so many pieces the rest may be left out. Windows end where every tokenizer begins a token: before
        a space between two words, or at the beginning of a line.
        """
        pieces, start = [], 0
        while start < len(text) and (most is None or len(pieces) < most):
            end = _text_border(text, start + TEXT_WINDOW_CHARS)
            pieces += self.split(text[start:end])
            start = end
            if breathe is not None and start < len(text):
                breathe()
        return pieces

    def first(self, pieces, count):
        """The first `count` tokens of a text that is cut already, as the text up to there is cut alone.

        Mostly pieces[:count]. Where the end of the text changes its last tokens ("internation|al" beside
        "intern|ation"), the text ends a few characters sooner or later, so that there are `count` again.
        Returns (pieces, whether there are): no text has so few where one character is several tokens.
        """
        start = self._synchronous(pieces, count)
        said = "".join(pieces[start:count])
        if self.split(said) == pieces[start:count]:
            return pieces[:count], True
        text = said + "".join(pieces[count:count + TEXT_SPARE_TOKENS])
        for end in _text_nearby(len(said), _TEXT_SEARCH_CHARS):
            if 0 < end <= len(text):
                again = self.split(text[:end])
                if len(again) == count - start:
                    return pieces[:start] + again, True
        return pieces[:count], False

    def _synchronous(self, pieces, count):
        """A place some tokens before `count` from where the text is cut alike when cut alone; 0 when none is near."""
        for back in (48, 96, 192):
            start, sure = count - back, back - 16
            if start <= 0:
                break
            if self.split("".join(pieces[start:count]))[:sure] == pieces[start:start + sure]:
                return start
        return 0

    def ended(self, pieces, count, stop):
        """first(), but like a text that ends by itself: with `stop`, a full stop, where one can stand.

        Returns (pieces, whether it ends so). stop: "" where the script has none.
        """
        if count >= len(pieces):
            again = self.split("".join(pieces).rstrip())
            if len(again) == count:
                return again, True
        if stop:
            start = self._synchronous(pieces, count)
            before, text = "".join(pieces[start:count - 1]), "".join(pieces[start:count + TEXT_SPARE_TOKENS])
            for end in _text_nearby(len(before), _TEXT_STOP_CHARS):
                if 0 < end <= len(text) and unicodedata.category(text[end - 1])[0] in "LMNS":
                    again = self.split(text[:end] + stop)
                    if len(again) == count - start and not any(stop in piece for piece in again[-3:-1]):
                        return pieces[:start] + again, True
        found, exact = self.first(pieces, count)
        return found, exact and not stop and not found[-1][-1:].isspace()

    def without(self, pieces, banned, words):
        """`pieces` with one of `words` for each that is in `banned`, cut alike; None when none fits somewhere."""
        words = [word for word in words if word not in banned and word.strip(" ").isalpha()]
        spaced = [word for word in words if word[0] == " "]
        bare = [word for word in words if word[0] != " "] or spaced
        made = list(pieces)
        for at, piece in enumerate(pieces):
            if piece in banned:
                word = self._fitting(made, at, spaced if piece[:1] == " " and spaced else bare, banned)
                if word is None:
                    return None
                made[at] = word
        return made

    def _fitting(self, made, at, words, banned):
        """The first of `words` from the `at`th on that can stand at `at`."""
        start = self._synchronous(made, at)
        for turn in range(min(len(words), TEXT_SPARE_TOKENS)):
            word = words[(at + turn) % len(words)] if at else words[turn].lstrip()
            window = made[start:at] + [word] + made[at + 1:at + 16]
            if word not in banned and self.split("".join(window))[:at + 8 - start] == window[:at + 8 - start]:
                return word
        return None


def text_stop(text):
    """The full stop with which a text's sentences end most often, or ""."""
    stop = max(_TEXT_STOPS, key=text.count)
    return stop if stop in text else ""


def _text_nearby(near, most):
    """near, and the numbers around it up to `most` away."""
    for distance in range(most):
        yield near - distance
        if distance:
            yield near + distance


def _text_border(text, near):
    """The first place from `near` on where a window may end; the end of the text when there is none."""
    found = _TEXT_BORDER.search(text, near)
    return found.end() if found else len(text)


def common_start(left, right):
    """How many pieces two lists have in common from the first."""
    size = min(len(left), len(right))
    if left[:size] == right[:size]:
        return size
    return next(at for at in range(size) if left[at] != right[at])
