"""The text of `--text file:PATH`, told from a drawn place on, and again from its beginning when it ends.

In: a path, the tokenizer. Out: as the other sources of backends/text_sources.py, or a ValueError at the start for a
file that is none of text. The file is read once; its parts are cut into tokens when they are first said. Any thread.
"""
import os
import re
from bisect import bisect_right

from backends.token_cutter import common_start, text_stop, text_tokens_for

TEXT_PART_CHARS = 400               # a part of the file is so long or longer, and begins with a line where it can
TEXT_LONG_PART_CHARS = 2000         # from here on it may begin within a line
TEXT_KEPT_TOKENS = 1 << 17          # of parts that are cut already: some 20 MB
TEXT_FILE_TURNS = 12                # so many places are tried when an answer would end within a character
TEXT_FEW_PLACES = 16                # with fewer paragraphs, answers begin at lines or sentences, too

# Where every tokenizer begins a token: at a line that is not indented (a slash joins a full stop before it), and before
# a space between two words.
_FILE_LINE = r"\n(?=[^\s/])"
_FILE_SPACE = r"(?<=\w)(?= [^\W\d_])"
# Where an answer may begin; the best first.
_FILE_PLACES = (
    r"\n[ \t]*\n\s*(?=\S)", r"\n\s*(?=\S)",
    r"[.!?\u0964\u061f]['\")\]\u2019\u201d]*\s+(?=\S)|[\u3002\uff01\uff1f]\s*(?=\S)")


def read_text_file(path):
    """The text of a UTF-8 file, without white space around it. Raises ValueError with one line."""
    where = "--text file:%s: " % path
    if os.path.exists(path) and not os.path.isfile(path):
        raise ValueError(where + "this is no file")
    try:
        with open(path, encoding="utf-8-sig") as file:
            text = file.read()
    except OSError as exc:
        raise ValueError(where + "cannot be read: %s" % (exc.strerror or exc))
    except ValueError:                      # UnicodeDecodeError; a path with a NUL in it
        raise ValueError(where + "it is not UTF-8 text")
    if "\0" in text:
        raise ValueError(where + "it is not text, but binary")
    if not text.strip():
        raise ValueError(where + "there is no text in it")
    return text.strip()


class FileText:
    """The source of one file. words: see words(). Raises ValueError where read_text_file() does."""

    natural = None

    def __init__(self, path, cutter, words):
        text = read_text_file(path)
        # what follows the end is the beginning: a paragraph of its own, that no mark before it joins
        self._text = text + ("\n\nand again\n\n" if text[0] == "/" else "\n\n")
        self._stop = text_stop(text)
        self._cutter = cutter
        self._words = words
        self._places = self._find_places(len(text))
        self._borders = self._find_borders()
        self._parts = {}                # (start, number of the part) -> (pieces, escapes)
        self._endings = {}              # (start, number, tokens, whole) -> (how many of a part stay, pieces, escapes)
        self._kept = 0                  # tokens in both
        # answers are cut as a whole: the tokenizer was seen to join two parts, or looks at how a text begins
        self._joined = not cutter.is_local(text)
        self.has_silent = not text.isascii()

    def _find_places(self, end):
        """Offsets where an answer may begin, in order."""
        places = {0}
        for pattern in _FILE_PLACES:
            places.update(found.end() for found in re.compile(pattern).finditer(self._text, 0, end))
            if len(places) >= TEXT_FEW_PLACES:
                break
        return sorted(places)

    def _find_borders(self):
        """Offsets where the parts begin, and the end of the text."""
        text, borders = self._text, [0]
        line, space = re.compile(_FILE_LINE).search, re.compile(_FILE_SPACE).search
        while True:
            near = borders[-1] + TEXT_PART_CHARS
            found = line(text, near, borders[-1] + TEXT_LONG_PART_CHARS) or space(text, near) or line(text, near)
            if found is None:
                return borders + [len(text)]
            borders.append(found.end())

    def words(self):
        """As DrawnText.words(), but another source's: a file may have a single one."""
        return self._words

    def pieces(self, digest, count, whole):
        """As DrawnText.pieces()."""
        number = int.from_bytes(digest[:8], "big")
        for turn in range(min(TEXT_FILE_TURNS, len(self._places)) if self.has_silent else 1):
            found = self._pieces_from(self._places[(number + turn) % len(self._places)], count, whole)
            if not count or found[0][-1]:
                break                   # else it ends within a character
        return found

    def _pieces_from(self, place, count, whole):
        """pieces() of an answer that begins at an offset."""
        start = place
        number = bisect_right(self._borders, start) - 1
        part = self._part(start, number)
        pieces, escapes = [], []
        while len(part[0]) < count - len(pieces) and not self._joined:
            pieces += part[0]
            escapes += part[1]
            number = (number + 1) % (len(self._borders) - 1)
            start = self._borders[number]
            part = self._part(start, number)
        if self._joined:
            return self._pieces_slowly(place, count, whole)
        kept, last, last_escapes = self._ending(start, number, count - len(pieces), whole)
        pieces += part[0][:kept]
        escapes += part[1][:kept]
        return pieces + last, escapes + last_escapes

    def _part(self, start, number):
        """(pieces, escapes) of a part, or of its rest from `start` on."""
        found = self._parts.get((start, number))
        if found is None:
            end = self._borders[number + 1]
            pieces = self._cutter.split(self._text[start:end] + (self._text[end:end + 40] or self._text[:40]))
            left = end - start
            for at, piece in enumerate(pieces):
                if left <= 0:
                    del pieces[at:]
                    break
                left -= len(piece)
            self._joined = self._joined or left < 0
            found = (pieces, self._cutter.escapes(pieces))
            self._keep(self._parts, (start, number), found, len(pieces))
        return found

    def _ending(self, start, number, room, whole):
        """How a part of at least `room` tokens is said to the end: as DrawnText._ending()."""
        key = (start, number, room, whole)
        found = self._endings.get(key)
        if found is None:
            unit = self._part(start, number)[0]
            last = self._last(unit, room, whole)
            kept = common_start(last, unit)
            found = (kept, last[kept:], self._cutter.escapes(last[kept:]))
            self._keep(self._endings, key, found, 4 + len(found[1]))
        return found

    def _keep(self, table, key, found, size):
        if self._kept > TEXT_KEPT_TOKENS:
            self._parts.clear()
            self._endings.clear()
            self._kept = 0
        table[key] = found
        self._kept += size

    def _last(self, pieces, room, whole):
        return (self._cutter.ended(pieces, room, self._stop) if whole else self._cutter.first(pieces, room))[0]

    def _pieces_slowly(self, start, count, whole):
        """pieces() cut as a whole."""
        size, pieces = 4 * count + 400, []
        while len(pieces) < text_tokens_for(count):
            text = self._text[start:start + size]
            while len(text) < size:
                text += self._text[:size - len(text)]
            pieces = self._cutter.split(text)
            size *= 2
        found = self._last(pieces, count, whole)
        return found, self._cutter.escapes(found)
