"""Text that comes in pieces: halves of characters, thoughts between tags, a string inside of JSON. No I/O."""
from json import JSONDecoder


class TextJoiner:
    """Holds back the first half of a surrogate pair that a piece ends with, until the next piece brings the other."""

    __slots__ = ("_half",)

    def __init__(self):
        self._half = ""

    def join(self, text):
        if self._half:
            text, self._half = self._half + text, ""
            if "\udc00" <= text[1:2] <= "\udfff":
                text = text[:2].encode("utf-16", "surrogatepass").decode("utf-16") + text[2:]
        if "\ud800" <= text[-1:] <= "\udbff":
            text, self._half = text[:-1], text[-1]
        return text

    def end(self):
        half, self._half = self._half, ""
        return half


class ThinkSplitter:
    """Text with <think>...</think> at its beginning, told apart piece by piece.

    opened: the answer begins inside, as with models whose prompt ends with the tag.
    split() and end() give [(whether it is thought, text)].
    """

    _OPEN, _CLOSE = "<think>", "</think>"

    def __init__(self, opened=False):
        self._state = "thought" if opened else "start"
        self._wait = ""             # what may be the beginning of a tag

    def split(self, text):
        out = []
        text, self._wait = self._wait + text, ""
        if self._state == "start":
            bare = text.lstrip()
            if len(bare) < len(self._OPEN) and self._OPEN.startswith(bare):
                self._wait = text
                return out
            if bare.startswith(self._OPEN):
                self._state, text = "thought", bare[len(self._OPEN):]
            else:
                self._state = "text"
        if self._state == "thought":
            at = text.find(self._CLOSE)
            if at < 0:
                keep = _tag_overlap(text, self._CLOSE)
                self._wait = text[len(text) - keep:]
                text = text[:len(text) - keep]
                return [(True, text)] if text else out
            if at:
                out.append((True, text[:at]))
            self._state, text = "gap", text[at + len(self._CLOSE):]
        if self._state == "gap":            # the line ends between thought and answer are neither's
            text = text.lstrip("\r\n")
            if text:
                self._state = "text"
        if text:
            out.append((False, text))
        return out

    def end(self):
        wait, self._wait = self._wait, ""
        return [(self._state == "thought", wait)] if wait else []


def _tag_overlap(text, tag):
    """How many of the text's last characters may begin the tag."""
    for size in range(min(len(tag) - 1, len(text)), 0, -1):
        if text.endswith(tag[:size]):
            return size
    return 0


class FieldUnwrapper:
    """The string of {"input": "..."} out of a JSON text that comes in pieces.

    For custom tools, which an upstream is shown as functions with this one parameter. Arguments of another
    form are given as they are.
    """

    _HEAD = '{"input":"'

    def __init__(self):
        self._begun = None          # None: not sure yet; False: no such object
        self._wait = ""
        self._ended = False
        self._said = False

    def feed(self, text):
        """The decoded characters that this piece completes."""
        self._wait += text
        if self._begun is None:
            self._begin()
        if not self._begun or self._ended:
            return ""
        return self._take()

    def end(self):
        """What is left when the arguments are complete."""
        if self._begun:
            return ""
        wait, self._wait = self._wait, ""
        return wait

    def _begin(self):
        place, want = 0, 0
        for place, char in enumerate(self._wait):
            if want and self._HEAD[want - 1] in '{:' and char in " \t\r\n" or not want and char in " \t\r\n" \
                    or self._HEAD[want] == ":" and char in " \t\r\n":
                continue
            if char != self._HEAD[want]:
                self._begun = False
                return
            want += 1
            if want == len(self._HEAD):
                self._begun = True
                self._wait = self._wait[place + 1:]
                return

    def _take(self):
        """Decode up to the closing quote, or to before an escape that is not complete."""
        text, at, start = self._wait, 0, 0
        while at < len(text):
            char = text[at]
            if char == '"':
                self._ended = True
                break
            if char == "\\":
                size = 6 if text[at + 1:at + 2] == "u" else 2
                if at + size > len(text):
                    break
                if size == 6 and text[at + 2:at + 4].lower() in ("d8", "d9", "da", "db"):
                    size = 12                   # half of a pair: both halves together
                    if at + size > len(text):
                        break
                at += size
            else:
                at += 1
        done, self._wait = text[start:at], text[at:]
        return _unescaped(done)


def _unescaped(text):
    if "\\" not in text and text.isprintable():
        return text
    try:
        return JSONDecoder(strict=False).decode('"%s"' % text)
    except ValueError:
        return text                 # a model's mistake: better as it is than lost
