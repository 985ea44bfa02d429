"""The text modes: as many tokens as asked for whatever tokenizer cuts, what each mode says, and all APIs in every mode."""
import contextlib
import hashlib
import io
import json
import os
import re
import tempfile
import unicodedata
import unittest

from api_common import escape_json
from backends.content import Prose, prose_sentences
from backends.contract import (Finish, GenerationRequest, History, OutputFormat, ReasoningDelta, TextDelta, TextRun,
                               Usage)
from backends.latency import ClockModel, Distribution
from backends.simulated import SimulatedBackend
from backends.text_sources import DrawnText, EchoText, make_prose, make_text
from backends.texts import TEXT_LANGUAGES, TEXT_MODES
from backends.token_cutter import TokenCutter
from server import main
from settings import Settings
from tests.support import CHAT, RESPONSE, LiveServerTest
from tokenizer import ApproxTokenizer, Tokenizer

TOKENIZER = ApproxTokenizer()
CUTTER = TokenCutter(TOKENIZER)
PROSE = make_prose(TOKENIZER, CUTTER)
DRAWN_MODES = [mode for mode in TEXT_MODES if mode not in ("prose", "echo")]
TOLD = "\ufeff" + "\n\n".join("%d. The %s keeps its log.\nNobody knows why; ask café %d." % (
    number, ("harbour", "ferry", "lighthouse")[number % 3], number) for number in range(40)) + "\n"


class LikeBytePairs(Tokenizer):
    """As a byte-level BPE tokenizer: a pattern's matches, in turn cut into pieces of at most four characters."""

    def __init__(self, pattern):
        self._find = re.compile(pattern).findall

    def split(self, text):
        return [word[at:at + 4] for word in self._find(text) for at in range(0, len(word), 4)]


class WithEmptyTokens(LikeBytePairs):
    """A character beyond the first plane is two tokens, the first without a text of its own."""

    def split(self, text):
        pieces = []
        for piece in LikeBytePairs.split(self, text):
            pieces += ["", piece] if max(piece) > "\uffff" else [piece]
        return pieces


class WithoutBorders(Tokenizer):
    """Five characters are a token, wherever they stand."""

    def split(self, text):
        return [text[at:at + 5] for at in range(0, len(text), 5)]


O200K_LIKE = r"[^\r\n\w]?[^\W\d_]+|\d{1,3}| ?(?:[^\s\w]|_)+[\r\n/]*|\s*[\r\n]+|\s+(?!\S)|\s+"
GPT2_LIKE = r"'(?:[sdmt]|ll|ve|re)| ?[^\W\d_]+| ?\d+| ?[^\s\w]+|_+|\s+(?!\S)|\s+"
TOKENIZERS = {"o200k-like": LikeBytePairs(O200K_LIKE), "gpt2-like": LikeBytePairs(GPT2_LIKE),
              "with empty tokens": WithEmptyTokens(O200K_LIKE), "without borders": WithoutBorders()}


class FileCase(unittest.TestCase):
    """Has a text file."""

    @classmethod
    def setUpClass(cls):
        super().setUpClass()
        folder = tempfile.TemporaryDirectory()
        cls.addClassCleanup(folder.cleanup)
        cls.folder = folder.name
        cls.told = "file:" + cls.write("told.txt", TOLD.encode("utf-8"))

    @classmethod
    def write(cls, name, data):
        path = os.path.join(cls.folder, name)
        with open(path, "wb") as file:
            file.write(data)
        return path


class CountTest(FileCase):

    def check(self, source, tokenizer, name, counts):
        for number, count in enumerate(counts):
            for whole in (False, True):
                pieces, escapes = source.pieces(b"%016d" % number, count, whole)
                if len(pieces) != count or tokenizer.split("".join(pieces)) != pieces:
                    self.fail("%s, whole=%s: %d tokens are not %d: %r" % (
                        name, whole, len(tokenizer.split("".join(pieces))), count, "".join(pieces)))
                if escapes != [escape_json(piece) for piece in pieces]:
                    self.fail("%s: the escapes are not its pieces'" % name)

    def test_there_are_as_many_pieces_as_tokens_whatever_the_length(self):
        for mode in DRAWN_MODES + [self.told]:
            source = make_text(mode, TokenCutter(TOKENIZER), PROSE)
            self.check(source, TOKENIZER, mode, list(range(1, 26)) + [33, 58, 77, 500, 3000])

    def test_and_whatever_tokenizer_cuts(self):
        for name, tokenizer in TOKENIZERS.items():
            cutter = TokenCutter(tokenizer)
            for mode in ["prose"] + DRAWN_MODES + ([self.told] if name != "gpt2-like" else []):
                source = make_text(mode, cutter, make_prose(tokenizer, cutter))
                self.check(source, tokenizer, name + " " + mode, [1, 2, 7, 19, 40, 300])

    def test_prose_is_cut_alike_with_and_without_knowing_the_tokenizer(self):
        self.assertIsInstance(make_prose(TOKENIZER, CUTTER), Prose)
        known, unknown = Prose(), DrawnText(prose_sentences(), CUTTER)
        self.assertEqual(known.pieces(b"x" * 16, 9, False)[0][1:4], unknown.pieces(b"x" * 16, 9, False)[0][1:4])
        self.assertEqual(set(known.words()), set(unknown.words()))

    def test_equal_digests_give_equal_texts_in_new_lists_and_others_other_texts(self):
        for mode in DRAWN_MODES + [self.told]:
            with self.subTest(mode=mode):
                source = make_text(mode, TokenCutter(TOKENIZER), PROSE)
                first = source.pieces(b"a" * 16, 60, True)
                kept = first[0][:], first[1][:]
                first[0].clear()
                first[1].clear()
                self.assertEqual(source.pieces(b"a" * 16, 60, True), kept)
                texts = {"".join(source.pieces(hashlib.md5(b"%d" % n).digest(), 60, True)[0]) for n in range(30)}
                self.assertGreater(len(texts), 8)

    def test_texts_are_the_same_on_every_python(self):
        said = [source.pieces(b"%016d" % number, 70, number % 2 == 0)[0]
                for source in [make_text(mode, CUTTER, PROSE) for mode in DRAWN_MODES] for number in range(6)]
        text = "\n".join("|".join(pieces) for pieces in said)
        self.assertEqual(hashlib.sha256(text.encode("utf-8")).hexdigest()[:16], "1abf7b4af3184e88")

    def test_log_probabilities_find_enough_words(self):
        for mode in DRAWN_MODES + [self.told]:
            with self.subTest(mode=mode):
                words = make_text(mode, CUTTER, PROSE).words()
                self.assertGreater(len(words), 25)
                self.assertEqual(words, sorted(set(words)))
                self.assertNotIn("", words)


class EndTest(FileCase):

    def test_a_text_that_ends_by_itself_ends_in_a_full_stop_and_never_in_white_space(self):
        stops = {"chinese": "。", "japanese": "。", "hindi": "।", "languages": ".。।"}
        for mode in DRAWN_MODES:
            if mode == "thai":          # which has none
                continue
            source = make_text(mode, CUTTER, PROSE)
            for number in range(150):
                text = "".join(source.pieces(b"%016d" % number, 18 + number % 60, True)[0])
                if mode == "languages" and "\u0e00" <= text[-1] <= "\u0e7f":
                    continue
                self.assertIn(text[-1], stops.get(mode, "."), (mode, text))

    def test_a_text_that_is_cut_is_the_beginning_of_the_longer_one(self):
        for mode in ("lorem", "german", "chinese"):
            source = make_text(mode, CUTTER, PROSE)
            for number in range(40):
                long = "".join(source.pieces(b"%016d" % number, 200, False)[0])
                short = "".join(source.pieces(b"%016d" % number, 50, False)[0])
                self.assertEqual(long[:len(short) - 2], short[:-2], mode)


class LoremTest(unittest.TestCase):

    def test_it_begins_as_everybody_knows(self):
        source = make_text("lorem", CUTTER, PROSE)
        for number in range(20):
            text = "".join(source.pieces(b"%016d" % number, 80, True)[0])
            self.assertTrue(text.startswith("Lorem ipsum dolor sit amet, consectetur adipiscing elit."), text)


class MarkdownTest(unittest.TestCase):

    def texts(self, count, tokens):
        source = make_text("markdown", CUTTER, PROSE)
        return ["".join(source.pieces(b"%016d" % number, tokens, True)[0]) for number in range(count)]

    def test_what_a_renderer_meets_is_there(self):
        text = "\n\n".join(self.texts(6, 1500))
        for pattern in (r"^# \w", r"^##+ \w", r"^- \w", r"^  - ", r"^1\. ", r"^- \[x\] ", r"^\|.*\|$", r"^\| ?:?-{3}", r"^> ",
                        r"\[\w[^\]]*\]\(https://example\.com/", r"<https://", r"\*\*\w", r"`\w+", r"^---$"):
            self.assertRegex(text, re.compile(pattern, re.M))
        languages = set(re.findall(r"^```(\w+)$", text, re.M))
        self.assertGreaterEqual(len(languages), 8, languages)

    def test_it_is_well_formed_when_it_ends_by_itself(self):
        for tokens in (5, 17, 40, 77, 128, 400):
            for text in self.texts(60, tokens):
                self.assertEqual(len(re.findall(r"^```", text, re.M)) % 2, 0, text)
                plain = re.sub(r"^```.*?^```$", "", text, flags=re.M | re.S)
                self.assertEqual(plain.count("`") % 2, 0, text)
                self.assertEqual(plain.count("**") % 2, 0, text)
                self.assertEqual(plain.count("]("), len(re.findall(r"\]\([^()\s]+( \"[^\"]*\")?\)", plain)), text)
                for table in re.findall(r"(?:^\|.*\n?)+", plain, re.M):
                    rows = table.strip().split("\n")
                    self.assertGreaterEqual(len(rows), 3, text)
                    self.assertEqual({row.count("|") for row in rows}, {4}, text)
                    self.assertRegex(rows[1], r"^[|:\- ]+$")
                self.assertEqual(text[-1], ".", text)


class LanguagesTest(unittest.TestCase):

    def test_each_language_is_in_its_own_script(self):
        names = {"german": "LATIN", "french": "LATIN", "spanish": "LATIN", "vietnamese": "LATIN", "chinese": "CJK",
                 "japanese": ("HIRAGANA", "KATAKANA", "CJK"), "korean": "HANGUL", "russian": "CYRILLIC", "greek": "GREEK",
                 "arabic": "ARABIC", "hindi": "DEVANAGARI", "thai": "THAI"}
        self.assertEqual(set(names) | {"emoji"}, set(TEXT_LANGUAGES))
        for name, script in names.items():
            text = "".join(make_text(name, CUTTER, PROSE).pieces(b"x" * 16, 200, True)[0])
            letters = [char for char in text if char.isalpha()]
            self.assertGreater(len(letters), 100)
            for char in letters:
                self.assertTrue(unicodedata.name(char).startswith(script), (name, char))
            if script == "LATIN":
                self.assertFalse(text.isascii())

    def test_several_stand_in_one_answer(self):
        text = "".join(make_text("languages", CUTTER, PROSE).pieces(b"x" * 16, 600, True)[0])
        scripts = {unicodedata.name(char).split()[0] for char in text if char.isalpha()}
        self.assertGreaterEqual(len(scripts & {"LATIN", "CJK", "HANGUL", "CYRILLIC", "GREEK", "ARABIC", "DEVANAGARI",
                                               "THAI", "HIRAGANA"}), 6, scripts)

    def test_clients_meet_cuts_inside_what_is_one_glyph(self):
        source = make_text("emoji", CUTTER, PROSE)
        pieces = [piece for number in range(30) for piece in source.pieces(b"%016d" % number, 100, False)[0] + [" "] if piece]
        pairs = [(left[-1], right[0]) for left, right in zip(pieces, pieces[1:])]
        flag = "\U0001f1e6", "\U0001f1ff"      # regional indicators
        for what, is_met in (("before a combining mark", lambda left, right: unicodedata.combining(right)),
                             ("after a zero-width joiner", lambda left, right: left == "\u200d"),
                             ("before a zero-width joiner", lambda left, right: right == "\u200d"),
                             ("before a variation selector", lambda left, right: right == "\ufe0f"),
                             ("before a skin tone", lambda left, right: "\U0001f3fb" <= right <= "\U0001f3ff"),
                             ("inside a flag", lambda left, right: flag[0] <= left <= flag[1] and flag[0] <= right <= flag[1]),
                             ("before a tag character", lambda left, right: right == "\U000e007f")):
            with self.subTest(cut=what):
                self.assertTrue(any(is_met(*pair) for pair in pairs))
        self.assertFalse(any(0xD800 <= ord(char) <= 0xDFFF for piece in pieces for char in piece))


class FileTest(FileCase):

    def test_it_tells_the_file_from_a_paragraph_on_and_again_from_its_beginning(self):
        text = TOLD.lstrip("\ufeff").strip()
        endless = (text + "\n\n") * 3
        source = make_text(self.told, CUTTER, PROSE)
        starts = set()
        for number in range(60):
            said = "".join(source.pieces(hashlib.md5(b"%d" % number).digest(), 700, False)[0])
            self.assertIn(said[:-8], endless)
            self.assertRegex(said, r"\A\d+\. The ")
            starts.add(said[:3])
        self.assertGreater(len(starts), 15)

    def test_one_long_paragraph_is_told_from_its_sentences_on(self):
        sentences = ["Number %d is here, and it is a harbour." % number for number in range(300)]
        source = make_text("file:" + self.write("one.txt", " ".join(sentences).encode()), CUTTER, PROSE)
        for number in range(20):
            self.assertRegex("".join(source.pieces(hashlib.md5(b"%d" % number).digest(), 30, False)[0]), r"\ANumber \d+ is")

    def test_files_of_any_shape_are_told_exactly(self):
        shapes = {"a slash": "/usr/bin/x\n\n/etc/y\n", "a letter": "a", "no spaces": "ab" * 9000, "spaces": "a" + " " * 3000 + "b",
                  "indented": "def f():\n    return 1\n\n\n    x = 2\n" * 50, "returns": "one\r\ntwo\r\n\r\nthree\r\n" * 40,
                  "han": "今天早上我们去了港口。老船长写下了一份清单，然后回家。" * 400, "emoji": "\U0001f468\u200d\U0001f469 \u2764\ufe0f " * 30,
                  "slashes": "end.\n/a/b\n" * 300, "marks": "...\n\n---\n\n===\n" * 60}
        for name, text in shapes.items():
            source = make_text("file:" + self.write(name + ".txt", text.encode("utf-8")), CUTTER, PROSE)
            for number, count in enumerate((1, 2, 30, 200, 2500)):
                pieces, escapes = source.pieces(hashlib.md5(b"%d" % number).digest(), count, False)
                with self.subTest(shape=name, count=count):
                    if (name, count) == ("emoji", 1):
                        self.assertEqual((pieces, escapes), ([""], [b""]), "its first character is of two tokens")
                        continue
                    self.assertEqual((len(pieces), len(escapes), TOKENIZER.count("".join(pieces))), (count,) * 3)

    def test_what_is_kept_of_a_big_file_is_bounded(self):
        path = self.write("big.txt", "\n\n".join("Line %d of the harbour log, said once." % n for n in range(60000)).encode())
        source = make_text("file:" + path, CUTTER, PROSE)
        for number in range(2):
            source.pieces(hashlib.md5(b"%d" % number).digest(), 250000, False)
        self.assertLess(source._kept, 140000)

    def test_what_cannot_be_told_ends_the_start_with_one_line_and_code_2(self):
        cases = {"is missing": os.path.join(self.folder, "no such file"), "is binary": self.write("b.bin", b"\x89PNG\0\1\2\xff"),
                 "has a NUL": self.write("n.txt", b"text\0text"), "is empty": self.write("e.txt", b""),
                 "is white space": self.write("w.txt", b" \n\t\n"), "is a folder": self.folder,
                 "is Latin-1": self.write("l.txt", "Größe".encode("latin-1"))}
        for name, path in cases.items():
            with self.subTest(file=name):
                errors = io.StringIO()
                with contextlib.redirect_stderr(errors):
                    self.assertEqual(main(["--port", "0", "--text", "file:" + path]), 2)
                self.assertEqual(errors.getvalue().count("\n"), 1, errors.getvalue())
                self.assertTrue(errors.getvalue().startswith("mockturtle: error: --text file:" + path + ": "))


class SettingTest(unittest.TestCase):

    def test_a_mode_that_is_none_is_refused_with_those_that_are(self):
        for text in ("klingon", "file:", "", "Prose", "echo "):
            with self.subTest(text=text), self.assertRaisesRegex(ValueError, "^--text must be file:PATH or one of prose, echo"):
                Settings(text=text)

    def test_every_mode_makes_a_backend(self):
        for mode in TEXT_MODES:
            SimulatedBackend.from_settings(Settings(text=mode), TOKENIZER)


# ---- in the backend ---------------------------------------------------------------------------

def make_backend(text, output_tokens=128, output_tokens_std=0.0, **values):
    return SimulatedBackend(ClockModel(0.1, 0.01), TOKENIZER, Distribution("normal", output_tokens, output_tokens_std),
                            text=text, **values)


def make_request(text="Hello there, harbour!", **values):
    return GenerationRequest("m", History(3, text.encode("utf-8", "surrogatepass"), text, list), **values)


def answer(backend, request):
    """(text, reason, Usage, plan) of a request with one choice."""
    plan = list(backend.generate(request, None))
    text, reason, usage = "", None, None
    for _, delta in plan:
        if delta.__class__ is TextRun:
            text += "".join(delta.pieces)
        elif delta.__class__ is TextDelta:
            text += delta.text
        elif delta.__class__ is Finish:
            reason = delta.reason
        elif delta.__class__ is Usage:
            usage = delta
    return text, reason, usage, plan


class EchoTest(unittest.TestCase):

    def test_the_last_user_text_is_said_back_and_ends_by_itself(self):
        for said in ("Hello there, harbour!", "Was kostet der Käse?\n\n- 1 kg\n", "  spaces first", "\U0001f468\u200d\U0001f469", "7", "\n"):
            with self.subTest(said=said):
                text, reason, usage, _ = answer(make_backend("echo", output_tokens=3, output_tokens_std=9), make_request(said))
                self.assertEqual((text, reason, usage.completion_tokens), (said, "stop", TOKENIZER.count(said)))

    def test_limits_cut_and_repeat_it_exactly(self):
        said = "Internationalization takes longwinded words, e.g. counterintuitively.\nDoes it?"
        natural = TOKENIZER.count(said)
        backend = make_backend("echo")
        for values, tokens, reason in (
                ({"max_tokens": natural}, natural, "stop"), ({"max_tokens": natural + 5}, natural, "stop"),
                ({"max_tokens": natural - 1}, natural - 1, "length"), ({"max_tokens": 1}, 1, "length"),
                ({"max_tokens": 100, "ignore_eos": True}, 100, "length"), ({"min_tokens": natural + 7}, natural + 7, "stop"),
                ({"min_tokens": 30, "max_tokens": 70}, 30, "stop"), ({"max_tokens": 3, "ignore_eos": True}, 3, "length")):
            with self.subTest(values=values):
                text, found, usage, _ = answer(backend, make_request(said, **values))
                self.assertEqual((usage.completion_tokens, TOKENIZER.count(text), found), (tokens, tokens, reason))
                endless = (said + EchoText.BETWEEN) * 20
                self.assertEqual(text[:-2], endless[:len(text)][:-2])

    def test_every_limit_is_exact_for_awkward_texts(self):
        backend = make_backend("echo")
        for said in ("a", " ", "\n\n", "/x/", "....", "\u0301", "don't", "\ud83d lone", "\u0938\u094d\u0924\u0947", "a" * 300, "<b>ERROR_42</b>"):
            for count in list(range(1, 30)) + [100]:
                text, _, usage, _ = answer(backend, make_request(said, max_tokens=count, ignore_eos=True))
                self.assertEqual((usage.completion_tokens, TOKENIZER.count(text)), (count, count), (said, count, text))

    def test_a_limit_within_a_character_leaves_it_out_and_counts_its_tokens(self):
        said = "so \U0001f9a9"                      # of four tokens, three of them the bird's
        self.assertEqual(TOKENIZER.split(said), ["so", "", "", " \U0001f9a9"])
        for limit, shown in ((1, "so"), (2, "so "), (3, "so"), (4, said)):
            text, _, usage, plan = answer(make_backend("echo"), make_request(said, max_tokens=limit, ignore_eos=True))
            self.assertEqual((text, usage.completion_tokens), (shown, limit))
            self.assertAlmostEqual(plan[-1][0], 0.1 + 0.01 * (limit - 1), msg="each token takes its time")
        nothing = answer(make_backend("echo"), make_request("\U0001f9a9", max_tokens=1))
        self.assertEqual((nothing[:2], nothing[2].completion_tokens, len(nothing[3])), (("", "length"), 1, 2))

    def test_a_character_is_due_with_the_last_of_its_tokens(self):
        _, _, _, plan = answer(make_backend("echo"), make_request("so \U0001f9a9"))
        self.assertEqual(list(plan[0][1].pieces), ["so", " \U0001f9a9"])
        for due_s, wanted in zip(plan[0][1].dues, (0.1, 0.13)):
            self.assertAlmostEqual(due_s, wanted)

    def test_german_is_counted_as_the_whole_text_is(self):
        for said in ("Größe und Straße, die der Fluß mit sich nicht mag. " * 60, "plain English words come first. " * 40 + "Größe. " * 60):
            for limit in (7, 150, 400, None):
                breaths = []
                text, _, usage, _ = answer(make_backend("echo"), make_request(
                    said * 8, max_tokens=limit, breathe=lambda: breaths.append(1)))
                self.assertEqual(usage.completion_tokens, TOKENIZER.count(text))
                self.assertEqual(text == said * 8, limit is None)

    def test_where_the_user_said_nothing_it_is_prose(self):
        text, reason, usage, _ = answer(make_backend("echo", output_tokens=12), make_request(""))
        self.assertEqual((reason, usage.completion_tokens, text[-1]), ("stop", 12, "."))

    def test_a_long_text_is_cut_on_a_worker_and_lets_others_run(self):
        said = "A harbour with a long log of ships. " * 8000
        breaths = []
        request = make_request(said, breathe=lambda: breaths.append(1))
        text, reason, usage, _ = answer(make_backend("echo"), request)
        self.assertEqual((text == said, reason, usage.completion_tokens), (True, "stop", TOKENIZER.count(said)))
        self.assertGreater(len(breaths), 10)
        breaths.clear()
        short = answer(make_backend("echo"), make_request(said, breathe=lambda: breaths.append(1), max_tokens=50))
        self.assertEqual((short[2].completion_tokens, short[1], TOKENIZER.count(short[0])), (50, "length", 50))
        self.assertLess(len(breaths), 3)

    def test_json_mode_wraps_it(self):
        text, _, _, _ = answer(make_backend("echo"), make_request("Hé!", output_format=OutputFormat("json_object", None, "x")))
        self.assertEqual(json.loads(text), {"answer": "Hé!"})


class BackendTest(FileCase):

    def modes(self):
        return ["echo", "lorem", "markdown", "languages", "emoji", "chinese", "hindi", self.told]

    def test_one_choice_of_text_is_one_run(self):
        for mode in self.modes():
            with self.subTest(mode=mode):
                _, _, _, plan = answer(make_backend(mode, output_tokens=10), make_request())
                self.assertEqual([delta.__class__ for _, delta in plan], [TextRun, Finish, Usage])

    def test_limits_are_exact_in_every_mode(self):
        for mode in self.modes():
            backend = make_backend(mode, output_tokens=20)
            for values, tokens, reason in (({"max_tokens": 4}, 4, "length"), ({"max_tokens": 33, "ignore_eos": True}, 33, "length"),
                                           ({"min_tokens": 31}, 31, "stop")):
                with self.subTest(mode=mode, values=values):
                    text, found, usage, _ = answer(backend, make_request(**values))
                    self.assertEqual((usage.completion_tokens, TOKENIZER.count(text), found), (tokens, tokens, reason))

    def test_banned_tokens_are_not_said_and_the_count_stays(self):
        for mode in self.modes():
            backend = make_backend(mode, output_tokens=40)
            pieces = TOKENIZER.split(answer(backend, make_request(seed=1, max_tokens=40, ignore_eos=True))[0])
            banned = frozenset(sorted(set(pieces) - {""})[::3])
            with self.subTest(mode=mode):
                text, _, usage, _ = answer(backend, make_request(seed=1, max_tokens=40, ignore_eos=True, banned=banned))
                self.assertEqual(set(TOKENIZER.split(text)) & banned, set())
                self.assertEqual((usage.completion_tokens, TOKENIZER.count(text)), (40, 40))

    def test_reasoning_and_its_summary_come_first(self):
        for mode in self.modes():
            with self.subTest(mode=mode):
                _, reason, usage, plan = answer(make_backend(mode, output_tokens=10), make_request(
                    reasoning_effort="low", reasoning_items="summary"))
                summary = "".join(delta.text for _, delta in plan if delta.__class__ is ReasoningDelta)
                self.assertTrue(summary)
                self.assertEqual((usage.reasoning_tokens, reason), (32, "stop"))

    def test_a_stop_sequence_ends_the_text_before_it(self):
        for mode in self.modes():
            backend = make_backend(mode, output_tokens=40)
            whole = answer(backend, make_request(seed=3))[0]
            stop = whole[len(whole) // 2:len(whole) // 2 + 3]
            with self.subTest(mode=mode):
                text, reason, _, _ = answer(backend, make_request(seed=3, stop=[stop], max_tokens=400))
                self.assertNotIn(stop, text)
                self.assertEqual(reason, "stop")


# ---- over the wire ----------------------------------------------------------------------------

class LiveTextTest(LiveServerTest):

    settings = {"output_tokens": 24, "fixed_ids": True}
    SAID = "Wie heißt der Hafen? 港口 \U0001f468\u200d\U0001f469\u200d\U0001f467 \U0001f1f3\U0001f1f4"

    def check_mode(self, mode):
        self.start_server(text=mode)
        chat = dict(CHAT, seed=4, messages=[{"role": "user", "content": self.SAID}])
        count = self.server.tokenizer.count

        plain = self.request("POST", "/v1/chat/completions", dict(chat, n=2, logprobs=True, top_logprobs=3)).json()
        for choice in plain["choices"]:
            tokens = choice["logprobs"]["content"]
            self.assertEqual("".join(token["token"] for token in tokens), choice["message"]["content"])
            self.assertTrue(all(len(token["top_logprobs"]) == 3 for token in tokens))
        self.assertEqual(plain["usage"]["completion_tokens"],
                         sum(count(choice["message"]["content"]) for choice in plain["choices"]))

        single = self.request("POST", "/v1/chat/completions", chat).json()["choices"][0]["message"]["content"]
        events = self.stream("/v1/chat/completions", chat)
        deltas = [event.data["choices"][0]["delta"].get("content") for event in events[:-1]]
        self.assertEqual("".join(filter(None, deltas)), single)
        self.assertEqual(deltas.count(""), 1, "only the role's content is empty")
        self.assertEqual(list(filter(None, deltas)), list(filter(None, self.server.tokenizer.split(single))))

        response = self.request("POST", "/v1/responses", dict(RESPONSE, input=self.SAID, reasoning={"summary": "auto"})).json()
        text = response["output"][-1]["content"][0]["text"]
        usage = response["usage"]
        self.assertEqual(count(text), usage["output_tokens"] - usage["output_tokens_details"]["reasoning_tokens"])
        events = self.stream("/v1/responses", dict(RESPONSE, input=self.SAID))
        done = [event.data["text"] for event in events if event.name == "response.output_text.done"]
        self.assertEqual("".join(event.data["delta"] for event in events if event.name == "response.output_text.delta"), done[0])

        body = {"model": "mock-model", "prompt": [self.SAID, "Once"], "max_tokens": 9, "logprobs": 2}
        for choice in self.request("POST", "/v1/completions", body).json()["choices"]:
            self.assertEqual((count(choice["text"]), choice["finish_reason"]), (9, "length"))
            self.assertEqual("".join(choice["logprobs"]["tokens"]), choice["text"])
        return single

    def test_echo(self):
        self.assertEqual(self.check_mode("echo"), self.SAID)

    def test_markdown(self):
        self.assertTrue(self.check_mode("markdown").endswith("."))

    def test_languages(self):
        self.assertFalse(self.check_mode("languages").isascii())

    def test_emoji(self):
        self.assertFalse(self.check_mode("emoji").isascii())


if __name__ == "__main__":
    unittest.main()
