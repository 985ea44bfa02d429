"""What is said, cut into tokens: the one place where a text meets the server's tokenizer.

In: a text. Out: its pieces, one per token, and each one's JSON escape; and beginnings of a text that have exactly so
many tokens. Any thread.
"""
import unicodedata

from api_common import escape_json

TEXT_KEPT_ESCAPES = 1 << 16         # pieces whose escapes are remembered
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

    tokenizer: a Tokenizer.
    """

    def __init__(self, tokenizer):
        self.split = tokenizer.split
        self.split_slowly = tokenizer.split_slowly
        self.is_local = tokenizer.is_local
        self._escapes = _TextEscapes()

    def escapes(self, pieces):
        """The JSON escapes of pieces."""
        return list(map(self._escapes.__getitem__, pieces))

    def holds(self, pieces):
        """Whether pieces are what the tokenizer makes of their text."""
        return self.split("".join(pieces)) == pieces

    def first(self, pieces, count):
        """The first `count` tokens of a text that is cut already, as the text up to there is cut alone.

        Mostly pieces[:count]. Where the end of the text changes its last tokens ("internation|al" beside
        "intern|ation"), the text ends a few characters sooner or later, so that there are `count` again.
        Returns (pieces, whether there are): no text has so many where the last of them is within a character. That
        is then left out as it is by a model that stops there, and its tokens count.
        """
        start = self._synchronous(pieces, count)
        said = "".join(pieces[start:count])
        if self.split(said) == pieces[start:count]:
            return pieces[:count], True
        text = said + "".join(pieces[count:text_tokens_for(count)])
        # an end within a character is seldom mended, and a source has other texts
        most = _TEXT_SEARCH_CHARS if pieces[count - 1] else _TEXT_STOP_CHARS
        for end in _text_nearby(self._near(text, len(said), count - start), most):
            if 0 < end <= len(text):
                again = self.split(text[:end])
                if len(again) == count - start:
                    return pieces[:start] + again, True
        return pieces[:count], False

    def _synchronous(self, pieces, count):
        """A place some tokens before `count` from where the text is cut alike when cut alone; 0 when none is near."""
        if count <= 48 or not self.is_local("".join(pieces[:text_tokens_for(count)])):
            return 0
        for back in (48, 96, 192):
            start, sure = count - back, back - 16
            while start > 0 and not pieces[start - 1]:
                start -= 1              # not within a character
            if start <= 0:
                break
            if self.split("".join(pieces[start:count]))[:sure] == pieces[start:start + sure]:
                return start
        return 0

    def _near(self, text, end, count):
        """About where `text` must end to have `count` tokens: `end`, if no other beginning changes how it is cut."""
        if self.is_local(text):
            return end
        low, high = 0, len(text)
        while low < high:
            middle = (low + high) // 2
            if len(self.split(text[:middle])) < count:
                low = middle + 1
            else:
                high = middle
        return low

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
            before, text = "".join(pieces[start:count - 1]), "".join(pieces[start:text_tokens_for(count)])
            near = self._near(text, len(before), count - 1 - start)
            for end in _text_nearby(near, _TEXT_STOP_CHARS):
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
        return made if self.holds(made) else None

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


def text_tokens_for(count):
    """How many tokens of a text first() and ended() may look at to find `count`."""
    return count + count // 2 + TEXT_SPARE_TOKENS


def common_start(left, right):
    """How many pieces two lists have in common from the first."""
    size = min(len(left), len(right))
    if left[:size] == right[:size]:
        return size
    return next(at for at in range(size) if left[at] != right[at])
