"""What is said by default: prose that reads like text and whose tokens are known before it is spoken.

In: a digest to draw from and a number of tokens. Out: the pieces, one per token, each with its
JSON escape. Every word is lower-case ASCII of at most eight letters with a space before it, which
is one token for the built-in tokenizer (a capitalised one at a sentence's start has at most five), so
counting the text again gives the number of pieces.
"""
from hashlib import shake_128

# A sentence is opening + subject + verb + object + closing; some parts may be empty.
_PROSE_OPENINGS = (
    "In the morning,", "After the storm,", "Near the old pier,", "By late autumn,",
    "With no sound,", "On most days,", "Long before noon,", "For many years,",
    "At the edge of town,", "With some patience,", "In plain words,", "As a rule,",
    "At slack tide,", "Under a pale sky,", "Once in a while,", "From the tower,",
    "", "", "", "", "", "", "", "", "", "", "", "", "", "", "", "")
_PROSE_SUBJECTS = (
    "the harbour", "a patient keeper", "the quiet engine", "our small crew", "the north wind",
    "a careful reader", "the last train", "every good map", "the river", "an honest clock",
    "the old library", "a second signal", "the open field", "one bright lamp", "the new bridge",
    "a steady hand", "the market square", "the night shift", "a narrow path", "the first draft",
    "the long valley", "a simple plan", "the garden wall", "the whole village", "a passing cloud",
    "the water mill", "the young pilot", "a broken compass", "the stone stair", "the winter sea",
    "a slow melody", "the city")
_PROSE_VERBS = (
    "keeps", "carries", "follows", "answers", "measures", "repeats", "holds", "recalls",
    "crosses", "guards", "shapes", "finds", "counts", "returns", "explains", "gathers",
    "quietly keeps", "often follows", "slowly turns", "always finds", "rarely loses",
    "gladly shares", "still carries", "never leaves", "calmly reads", "soon reaches",
    "partly hides", "now and then lifts", "at last opens", "again checks", "simply names",
    "in turn feeds")
_PROSE_OBJECTS = (
    "a record of the passing ships", "the weight of the day", "every sign of rain",
    "the light along the shore", "a list of small repairs", "the sound of the bells",
    "the far side of the hill", "a letter from the coast", "the shape of the road",
    "a handful of numbers", "the story of the island", "the tools in the shed",
    "a corner of the map", "the price of salt and bread", "the names on the wall",
    "a basket of apples", "the rest of the journey", "the colour of the evening",
    "a quarter of the harvest", "the answer to the question", "the edge of the forest",
    "a promise made in spring", "the lines between the stars", "the warmth of the kitchen",
    "a window over the square", "the pattern of the waves", "the keys to the gate",
    "a page of plain notes", "the distance to the city", "the meaning of the signal",
    "a moment of silence", "the work of many hands")
_PROSE_CLOSINGS = (
    "before the rain returns.", "and nobody minds.", "as it always did.", "until the lamps go out.",
    "while the kettle sings.", "and the day moves on.", "with great care.", "for a little while.",
    "when the fog lifts.", "because it must.", "and then rests.", "so that others can follow.",
    ".", ".", ".", ".")

_PROSE_TABLES = (_PROSE_OPENINGS, _PROSE_SUBJECTS, _PROSE_VERBS, _PROSE_OBJECTS, _PROSE_CLOSINGS)
_PROSE_LEAST_TOKENS = 8             # no sentence is shorter: a, b, verb, c d e f, full stop


def _prose_pieces(phrase):
    """ " the old pier," -> [" the", " old", " pier", ","]: one piece per token."""
    pieces = []
    for word in phrase.split():
        bare = word.rstrip(".,")
        if bare:
            pieces.append(" " + bare)
        if word != bare:
            pieces.append(word[len(bare):])
    return pieces


PROSE_SENTENCES = 512               # how many are kept ready; drawn with two bytes each


def _prose_sentence(number):
    """Sentence `number` as pieces, with the space before it: five phrases, picked by its digest."""
    draw = shake_128(b"sentence %d" % number).digest(len(_PROSE_TABLES))
    text = " ".join(table[byte % len(table)] for table, byte in zip(_PROSE_TABLES, draw)).strip()
    pieces = _prose_pieces(text.replace(" .", "."))
    pieces[0] = " " + pieces[0][1:].capitalize()
    return pieces


def prose_sentences():
    """All sentences as texts with the space before them, for a tokenizer of which nothing is known."""
    return ["".join(_prose_sentence(number)) for number in range(PROSE_SENTENCES)]


def prose_paragraphs(count):
    """`count` paragraphs of two sentences each, without white space around them."""
    return ["".join(_prose_sentence(2 * number) + _prose_sentence(2 * number + 1)).strip() for number in range(count)]


class Prose:
    """Endless plain English, the same for the same digest. Any thread may call it.

    Sentences are made once, when the server starts, so that an answer is a few lists laid behind
    each other: 1 us for 16 tokens where drawing each phrase cost 2.4.
    """

    natural = None                      # how many tokens it has by itself: as many as are wanted
    has_silent = False                  # no piece is empty

    def __init__(self):
        self._pieces = [_prose_sentence(number) for number in range(PROSE_SENTENCES)]
        self._escapes = [[piece.encode("ascii") for piece in pieces] for pieces in self._pieces]
        self._words = sorted({piece for pieces in self._pieces for piece in pieces})

    def words(self):
        """Every piece that it can say, sorted: what log probabilities offer as alternatives."""
        return self._words

    def pieces(self, digest, count, whole):
        """`count` tokens drawn with `digest`.

        whole: the text ends by itself, so its last token is a full stop where one can stand.
        Returns (pieces, escapes): two new lists of `count` str and bytes.
        """
        draw = shake_128(digest).digest(2 * (count // _PROSE_LEAST_TOKENS + 1))
        pieces, escapes = [], []
        at = 0
        while len(pieces) < count:
            number = (draw[at] | draw[at + 1] << 8) % PROSE_SENTENCES
            pieces += self._pieces[number]
            escapes += self._escapes[number]
            at += 2
        del pieces[count:], escapes[count:]
        if pieces:
            pieces[0] = pieces[0].lstrip()
            escapes[0] = escapes[0].lstrip()
        # two marks in a row would be one token, so the full stop needs a word before it
        if whole and count > 1 and pieces[-2][-1].isalpha():
            pieces[-1], escapes[-1] = ".", b"."
        return pieces, escapes
