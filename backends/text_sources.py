"""The text modes as sources of tokens: drawn paragraphs, Markdown, an echo. A file's text is backends/text_file.py.

In: a digest to draw from, a number of tokens, the tokenizer. Out: pieces, one per token, each with its JSON escape; and
counting the text again gives their number. Any thread may call a source.
"""
from hashlib import shake_128

from backends.content import Prose, prose_paragraphs, prose_sentences
from backends.language_texts import TEXT_LOREM_STARTS, language_paragraphs, lorem_paragraphs
from backends.markdown_texts import MARKDOWN_STARTS, markdown_blocks
from backends.text_file import FileText
from backends.texts import TEXT_FILE_PREFIX, TEXT_LANGUAGES
from backends.token_cutter import common_start, text_stop, text_tokens_for
from tokenizer import ApproxTokenizer

TEXT_TURNS = 12                     # so many other texts are tried when one cannot end well
TEXT_LEAST_ENDING = 5               # a text that ends by itself has so many tokens of its last paragraph, or all


class DrawnText:
    """Paragraphs, or sentences, drawn behind each other. has_silent: some pieces are empty, as in Tokenizer.split().

    texts: str, each of which may follow any other, itself included. starts: how many of them may begin an answer, from
    the first; None is all. A text that begins with a space is said without it at an answer's beginning.
    """

    natural = None                      # how many tokens it has by itself: as many as are wanted

    def __init__(self, texts, cutter, starts=None):
        self._texts = texts
        self._cutter = cutter
        self._starts = starts or len(texts)
        self._openings = {}             # number -> (pieces, escapes) of a text as it is said first
        self._endings = {}              # (number, is first, tokens, whole) -> see _ending()
        self._is_local = cutter.is_local("".join(texts))    # else an answer may be cut otherwise than its texts
        self._units = self._divided()
        self._shortest = min(len(unit[0]) for unit in self._units) if self._units else 1
        pieces = [piece for unit in self._units for piece in unit[0]] if self._units else cutter.split("".join(texts))
        self.has_silent = "" in pieces
        self._words = sorted(set(pieces) - {""})

    def _divided(self):
        """[(pieces, escapes)] of each text; None when the tokenizer sees no border between two of them.

        A token without text of its own belongs to the text of the one after it.
        """
        units = []
        for number, text in enumerate(self._texts):
            # a text ends in other tokens where nothing follows: so something does
            pieces = self._cutter.split(text + self._texts[(number + 1) % len(self._texts)])
            size = at = 0
            while size < len(text):
                size += len(pieces[at])
                at += 1
            if size > len(text):
                return None
            units.append((pieces[:at], self._cutter.escapes(pieces[:at])))
        return units

    def words(self):
        """Every piece that it can say, sorted: what log probabilities offer as alternatives."""
        return self._words

    def pieces(self, digest, count, whole):
        """`count` tokens drawn with `digest`. whole: the text ends by itself.

        Returns (pieces, escapes): two new lists of `count` str and bytes. The last piece is empty where only a text
        that ends within a character would do.
        """
        if self._units is None:
            return self._pieces_slowly(digest, count, whole)
        found = self._pieces_quickly(digest, count, whole)
        if not self._is_local and not self._cutter.holds(found[0]):
            return self._pieces_slowly(digest, count, whole)
        if not self.has_silent:
            return found
        for turn in range(TEXT_TURNS):
            if not found[0] or found[0][-1]:
                break
            found = self._pieces_quickly(shake_128(digest + b"%d" % turn).digest(16), count, whole)
        return found

    def _pieces_quickly(self, digest, count, whole):
        """pieces() from texts that are cut already."""
        units = self._units
        draw = shake_128(digest).digest(2 * (count // self._shortest + 2))
        pieces, escapes = [], []
        at = 0
        while True:
            room = count - len(pieces)
            number = (draw[at] | draw[at + 1] << 8) % (len(units) if at else self._starts)
            if whole or len(units[number][0]) >= room - 1:
                number = self._fitting(number, not at, room, whole)
            unit = units[number] if at else self._opening(number)
            if len(unit[0]) >= room:
                kept, last, last_escapes, _ = self._ending(number, not at, room, whole)
                pieces += unit[0][:kept]
                escapes += unit[1][:kept]
                return pieces + last, escapes + last_escapes
            pieces += unit[0]
            escapes += unit[1]
            at += 2

    def whole_units(self, digest, most):
        """Texts drawn behind each other that have at most `most` tokens together: (pieces, escapes)."""
        pieces, escapes = [], []
        if self._units is None or most < self._shortest:
            return pieces, escapes
        draw = shake_128(digest).digest(2 * (most // self._shortest + 1))
        for at in range(0, len(draw), 2):
            number = (draw[at] | draw[at + 1] << 8) % (len(self._units) if at else self._starts)
            unit = self._units[number]
            if len(pieces) + len(unit[0]) > most:
                break
            pieces += unit[0]
            escapes += unit[1]
        return pieces, escapes

    def _opening(self, number):
        """(pieces, escapes) of a text at an answer's beginning."""
        text = self._texts[number]
        if not text[:1].isspace():
            return self._units[number]
        found = self._openings.get(number)
        if found is None:
            pieces = self._cutter.split(text.lstrip())
            found = self._openings[number] = (pieces, self._cutter.escapes(pieces))
        return found

    def _fitting(self, number, is_first, room, whole):
        """A text near `number` that ends well when it is the last one, and else leaves enough for one that does."""
        count = self._starts if is_first else len(self._units)
        least = TEXT_LEAST_ENDING if whole else 1
        for other in range(number, number + TEXT_TURNS):
            other %= count
            left = room - len((self._opening(other) if is_first else self._units[other])[0])
            if left >= least or left <= 0 and self._ending(other, is_first, room, whole)[3]:
                return other
        return number

    def _ending(self, number, is_first, room, whole):
        """How a text of at least `room` tokens is said to the end.

        Returns (how many of its pieces stay, the pieces behind them, their escapes, whether it ends well).
        """
        key = (number, is_first, room, whole)
        found = self._endings.get(key)
        if found is None:
            unit = self._opening(number)[0] if is_first else self._units[number][0]
            last, well = self._cutter.ended(unit, room, text_stop(self._texts[number])) if whole \
                else self._cutter.first(unit, room)
            kept = common_start(last, unit)
            found = self._endings[key] = (kept, last[kept:], self._cutter.escapes(last[kept:]), well)
        return found

    def _pieces_slowly(self, digest, count, whole):
        """pieces() where the tokenizer sees no border between two texts: the answer is cut as a whole."""
        best = None
        for _ in range(TEXT_TURNS):
            said, pieces = self._drawn(digest, text_tokens_for(count))
            found, well = self._cutter.ended(pieces, count, _stop_at(said, len("".join(pieces[:count])))) if whole \
                else self._cutter.first(pieces, count)
            if well or best is None or not best[-1] and found[-1]:
                best = found
            if well:
                break
            digest = shake_128(digest).digest(16)
        return best, self._cutter.escapes(best)

    def _drawn(self, digest, count):
        """(texts drawn behind each other as in _pieces_quickly(), their pieces): at least `count` pieces."""
        draw = shake_128(digest).digest(2 * count + 2)
        said, size, pieces = [], 0, []
        while len(pieces) < count:
            end = size + 4 * count
            while size < end:
                at = 2 * len(said)
                number = draw[at] | draw[at + 1] << 8
                said.append(self._texts[number % len(self._texts)] if said else self._texts[number % self._starts].lstrip())
                size += len(said[-1])
            pieces = self._cutter.split("".join(said))
        return said, pieces


class MarkdownText:
    """Blocks of Markdown drawn behind each other; by itself it ends with a closed block and a plain sentence."""

    natural = None
    BLOCKS = 96

    def __init__(self, cutter):
        self._cutter = cutter
        blocks = markdown_blocks(self.BLOCKS)
        self._blocks = DrawnText(blocks, cutter, MARKDOWN_STARTS)
        self._closing = DrawnText([paragraph + "\n\n" for paragraph in prose_paragraphs(64)], cutter)
        self.words = self._blocks.words
        self.has_silent = self._blocks.has_silent

    def pieces(self, digest, count, whole):
        """As DrawnText.pieces()."""
        if not whole:
            return self._blocks.pieces(digest, count, False)
        pieces, escapes = self._blocks.whole_units(digest, count - 2 * TEXT_LEAST_ENDING)
        last, last_escapes = self._closing.pieces(digest, count - len(pieces), True)
        if not self._cutter.holds(pieces + last):
            return self._closing.pieces(digest, count, True)
        return pieces + last, escapes + last_escapes


class EchoText:
    """One text said back, over and over when it is too short.

    text: what is said, not empty. most: tokens that may be asked for, or None. natural: how many it has, or more than
    `most`. breathe: as in Tokenizer.split_slowly(), or None.
    """

    BETWEEN = "\n\n"

    def __init__(self, text, cutter, most=None, breathe=None):
        self._text = text
        self._cutter = cutter
        self._pieces = cutter.split_slowly(text, breathe or int, None if most is None else text_tokens_for(most))
        self.natural = len(self._pieces)
        self.has_silent = not text.isascii()

    def words(self):
        """As DrawnText.words()."""
        return sorted(set(self._pieces))

    def pieces(self, digest, count, whole):
        """As DrawnText.pieces(); nothing is drawn."""
        found = self._pieces
        if count != self.natural:
            found, _ = self._cutter.first(found if count < self.natural else self._repeated(count), count)
        return found, self._cutter.escapes(found)

    def _repeated(self, count):
        """At least `count` pieces of the text again and again."""
        split, again = self._cutter.split, self._text + self.BETWEEN
        once = split(again)
        if split(again + again) == once + once:
            return once * (text_tokens_for(count) // len(once) + 1)
        pieces, times = [], 1 + count // len(once)
        while len(pieces) < text_tokens_for(count):
            times *= 2          # the tokenizer sees no border between two of them
            pieces = split(again * times)
        return pieces


def _stop_at(texts, offset):
    """The full stop of the text in which an offset of all of them lies."""
    for text in texts:
        offset -= len(text)
        if offset <= 0:
            break
    return text_stop(text)


def make_prose(tokenizer, cutter):
    """The prose of --text prose: its tokens are known without cutting where the tokenizer is the built-in one."""
    if tokenizer.__class__ is ApproxTokenizer:
        return Prose()
    return DrawnText(prose_sentences(), cutter)


def make_text(mode, cutter, prose):
    """The source of a text mode: of TEXT_MODES, or file:PATH; of echo, where there is nothing to say back.

    prose: make_prose()'s. Raises ValueError with one clear line for a file that cannot be said.
    """
    if mode in ("prose", "echo"):
        return prose
    if mode == "lorem":
        return DrawnText(lorem_paragraphs(128), cutter, TEXT_LOREM_STARTS)
    if mode == "markdown":
        return MarkdownText(cutter)
    if mode == "languages":
        return DrawnText([text for texts in zip(*[language_paragraphs(name, 24) for name in TEXT_LANGUAGES])
                          for text in texts], cutter)
    if mode.startswith(TEXT_FILE_PREFIX):
        return FileText(mode[len(TEXT_FILE_PREFIX):], cutter, prose.words())
    return DrawnText(language_paragraphs(mode, 128), cutter)
