"""Tests of the exact tokenizers on tiny hand-made files; .ci/check_tokens.py has the real ones beside the real libraries."""
import json
import os
import random
import subprocess
import sys
import tempfile
import unicodedata
import unittest
from base64 import b64encode
from types import SimpleNamespace

from tests import ONE_FILE, ROOT
from tests.support import LiveServerTest, every_form
from tests.test_tokenizer import random_text
from tokenizer import ApproxTokenizer
from tokens.bpe import AddedTokens, PairMerger
from tokens.files import byte_alphabet, load_rank_file, load_tokenizer_json
from tokens.load import load_tokenizer
from tokens.patterns import SPLIT_PATTERNS, SplitPattern

# Merges in order, of which the tiny vocabularies are made beside all single bytes; "é" is two bytes.
MERGES = (("t", "h"), ("th", "e"), (" ", "the"), ("s", "e"), ("se", "a"), (" ", "sea"), ("a", "a"), ("aa", "aa"),
          ("\n", "\n"), ("1", "2"), ("Ã".encode("latin-1"), "©".encode("latin-1")), ("'", "s"))
MERGES = tuple(tuple(part if part.__class__ is bytes else part.encode("ascii") for part in pair) for pair in MERGES)


def naive_merge(piece, ranks):
    """The tokens of a piece by the definition: the leftmost of the lowest-ranked pairs merges, again and again."""
    tokens = [piece[at:at + 1] for at in range(len(piece))]
    while True:
        found = [(ranks[pair], at) for at, pair in enumerate(zip(tokens, tokens[1:])) if pair in ranks]
        if not found:
            return tokens
        at = min(found)[1]
        tokens[at:at + 2] = [tokens[at] + tokens[at + 1]]


def spelled(token):
    """A token as a byte-level vocabulary spells it."""
    letters = {byte: char for char, byte in byte_alphabet().items()}
    return "".join([letters[byte] for byte in token])


def tiny_json(**changes):
    """A tokenizer.json of MERGES, with other top-level values or values of the model (model_...)."""
    tokens = [bytes((byte,)) for byte in range(256)] + [left + right for left, right in MERGES]
    root = {
        "added_tokens": [{"id": 1000, "content": "<|end|>", "single_word": False, "lstrip": False, "rstrip": False,
                          "normalized": False, "special": True}],
        "normalizer": None,
        "pre_tokenizer": {"type": "ByteLevel", "add_prefix_space": False, "use_regex": True},
        "decoder": {"type": "ByteLevel"},
        "model": {"type": "BPE", "vocab": {spelled(token): number for number, token in enumerate(tokens)},
                  "merges": [[spelled(left), spelled(right)] for left, right in MERGES]}}
    for name, value in changes.items():
        if name.startswith("model_"):
            root["model"][name[6:]] = value
        else:
            root[name] = value
    return root


class FilesTest(unittest.TestCase):
    """What has files to write."""

    def setUp(self):
        folder = tempfile.TemporaryDirectory()
        self.addCleanup(folder.cleanup)
        self.folder = folder.name

    def write(self, name, content):
        path = os.path.join(self.folder, name)
        with open(path, "wb") as file:
            file.write(content if content.__class__ is bytes else json.dumps(content).encode("utf-8"))
        return path

    def rank_file(self, name="tiny.tiktoken"):
        tokens = [bytes((byte,)) for byte in range(256)] + [left + right for left, right in MERGES]
        return self.write(name, b"".join(b"%s %d\n" % (b64encode(token), rank) for rank, token in enumerate(tokens)))

    def refusal(self, spec, **given):
        with self.assertRaises(ValueError) as caught:
            load_tokenizer(spec, **given)
        self.assertNotIn("\n", str(caught.exception))
        self.assertTrue(str(caught.exception).startswith("--tokenizer %s: " % spec), caught.exception)
        return str(caught.exception)


class SplitPatternTest(unittest.TestCase):

    def pieces(self, name, text):
        return SplitPattern(SPLIT_PATTERNS[name]).pieces(text)

    def test_words_marks_and_spaces_of_each_pattern(self):
        text = "I'LL see  getName's 12345!\n\n x"
        self.assertEqual(self.pieces("o200k_base", text), [
            "I'LL", " see", " ", " get", "Name's", " ", "123", "45", "!\n\n", " x"])
        self.assertEqual(self.pieces("cl100k_base", text), [
            "I", "'LL", " see", " ", " getName", "'s", " ", "123", "45", "!\n\n", " x"])
        self.assertEqual(self.pieces("r50k_base", text), [
            "I", "'", "LL", " see", " ", " getName", "'s", " 12345", "!", "\n\n", " x"])

    def test_letters_of_other_scripts_and_marks(self):
        self.assertEqual(self.pieces("o200k_base", "привет мир, 我们 e\u0301t\u00e9 \u0967\u0968\u0969\u096a"), [
            "привет", " мир", ",", " 我们", " e\u0301t\u00e9", " ", "\u0967\u0968\u0969", "\u096a"])

    def test_case_folds_of_a_contraction(self):
        self.assertEqual(self.pieces("cl100k_base", "it'\u017f"), ["it", "'\u017f"])

    def test_a_control_character_that_python_takes_for_space_is_none(self):
        self.assertEqual(self.pieces("r50k_base", "a\x1c\x1db \x85 c"), ["a", "\x1c\x1d", "b", " \x85", " c"])

    def test_space_at_the_end(self):
        self.assertEqual(self.pieces("cl100k_base", "a \n "), ["a", " \n "])
        self.assertEqual(self.pieces("o200k_base", "a \n "), ["a", " \n", " "])

    def test_what_lies_between_matches_is_a_piece(self):
        digits = SplitPattern(r"\p{N}")
        self.assertEqual(digits.pieces("ab12c"), ["ab", "1", "2", "c"])
        self.assertEqual(digits.pieces("ÄÖ½c"), ["ÄÖ", "½", "c"])

    def test_classes_ranges_and_escapes(self):
        for pattern, text, pieces in (
                (r"[一-龥]+", "ab一二c龥", ["ab", "一二", "c", "龥"]),
                (r"[^\p{L}]+", "ab, ж", ["ab", ", ", "ж"]),
                (r"\P{L}", "a-b", ["a", "-", "b"]),
                (r"[\x41-\x{5A}\u0430]+", "xABаy", ["x", "ABа", "y"]),
                (r"[]a-]+", "x]-a", ["x", "]-a"]),
                (r"(a|b){2,}", "xabb", ["x", "abb"]),
                (r"a(?=b)|\W", "ab-", ["a", "b", "-"])):
            with self.subTest(pattern=pattern):
                self.assertEqual(SplitPattern(pattern).pieces(text), pieces)

    def test_random_texts_are_cut_the_same_whole_and_piece_by_piece(self):
        source = random.Random(1)
        for name in ("o200k_base", "cl100k_base", "r50k_base"):
            pattern = SplitPattern(SPLIT_PATTERNS[name])
            for _ in range(60):
                text = random_text(source, source.randrange(1, 40))
                pieces = pattern.pieces(text)
                self.assertEqual("".join(pieces), text)
                self.assertEqual(list(pattern.walk(text)), pieces)

    def test_what_is_not_known_to_mean_the_same_is_refused(self):
        for pattern in (r"\p{Han}", r"a++", r"\s{2}+", "^a", "a$", r"\bx", "(?>a)", "(a", "a)", "[a", r"[a-\d]", "[[a]]",
                        "[a&&b]", r"\p{L", "a*", "", "\\", "(?i:é)", "x{2,1}", r"\1"):
            with self.subTest(pattern=pattern), self.assertRaises(ValueError):
                SplitPattern(pattern)


class PairMergerTest(unittest.TestCase):

    def test_short_long_and_windowed_pieces_merge_as_defined(self):
        source = random.Random(2)
        for letters, pairs in ((b"ab", 14), (b"abc", 40), (b"a", 5)):
            tokens, ranks = [letters[at:at + 1] for at in range(len(letters))], {}
            while len(ranks) < pairs:
                left, right = source.choice(tokens), source.choice(tokens)
                if len(left + right) <= 24 and left + right not in tokens:
                    ranks[left, right] = len(ranks)
                    tokens.append(left + right)
                elif len(letters) == 1 and len(tokens) > 5:
                    break
            merger = PairMerger(lambda left, right: ranks.get((left, right)))
            for size in (1, 2, 7, 150, 170, 900):
                piece = bytes([source.choice(letters) for _ in range(size)])
                self.assertEqual(merger.merge(piece), naive_merge(piece, ranks))
            for size in (4097, 9000, 20000):
                piece = bytes([source.choice(letters) for _ in range(size)])
                self.assertEqual(merger.merge(piece), merger._merge_long(piece))

    def test_windows_that_agree_nowhere_are_widened(self):
        # Where a token ends here depends on the distance to the end of the text: "aa" merges from the right.
        ranks = {(b"a", b"b"): 0, (b"a", b"ab"): 1, (b"a", b"aab"): 2}
        merger = PairMerger(lambda left, right: ranks.get((left, right)))
        piece = b"a" * 9001 + b"b"
        self.assertEqual(merger.merge(piece), merger._merge_long(piece))

    def test_ten_times_the_text_asks_for_ten_times_the_pairs(self):
        asked = []
        ranks = {(b"a", b"a"): 0, (b"aa", b"aa"): 1}

        def score(left, right):
            asked.append(1)
            return ranks.get((left, right))
        merger = PairMerger(score)
        counts = []
        for size in (20000, 200000):
            del asked[:]
            merger.merge(b"abaa" * (size // 4))
            counts.append(len(asked))
        self.assertLess(counts[1], 15 * counts[0])

    def test_it_breathes_between_windows(self):
        breaths = []
        PairMerger(lambda left, right: None).merge(b"xy" * 20000, lambda: breaths.append(1))
        self.assertGreaterEqual(len(breaths), 8)


class RankFileTest(FilesTest):

    def test_ids_counts_pieces_and_the_way_back(self):
        tokenizer = load_rank_file(self.rank_file())
        text = "the sea's caf\u00e9 12"
        self.assertEqual(tokenizer.encode(text), [257, 261, 267, 32, 99, 97, 102, 266, 32, 265])
        self.assertEqual(tokenizer.count(text), 10)
        self.assertEqual(tokenizer.split(text), ["the", " sea", "'s", " ", "c", "a", "f", "é", " ", "12"])
        self.assertEqual(tokenizer.decode(tokenizer.encode(text)), text)
        self.assertEqual(tokenizer.name, "tiny.tiktoken")

    def test_a_character_stands_in_the_piece_that_completes_it(self):
        tokenizer = load_rank_file(self.rank_file())
        self.assertEqual(tokenizer.split("a\U0001f389b"), ["a", "", "", "", "\U0001f389", "b"])

    def test_random_texts_keep_the_contract(self):
        tokenizer = load_rank_file(self.rank_file())
        source = random.Random(3)
        for _ in range(100):
            text = random_text(source, source.randrange(1, 40))
            pieces = tokenizer.split(text)
            self.assertEqual("".join(pieces), text)
            self.assertEqual(len(pieces), tokenizer.count(text))
            self.assertEqual(tokenizer.count_slowly(text, int), len(pieces))
            self.assertEqual(tokenizer.decode(tokenizer.encode(text)),
                             "".join("\ufffd" if "\ud800" <= char <= "\udfff" else char for char in text))

    def test_a_long_text_breathes_and_counts_the_same(self):
        tokenizer = load_rank_file(self.rank_file())
        breaths = []
        text = "the sea 12\n" * 20000
        self.assertEqual(tokenizer.count_slowly(text, lambda: breaths.append(1)), tokenizer.count("the sea 12\n") * 20000)
        self.assertGreaterEqual(len(breaths), 3)
        self.assertEqual(tokenizer.count(text), len(tokenizer.encode(text)))

    def test_ids_that_the_vocabulary_does_not_have(self):
        self.assertEqual(load_rank_file(self.rank_file()).decode([97, 5000, -1, 97]), "a\ufffd\ufffda")

    def test_the_pattern_is_the_names_or_the_given_one(self):
        text = "getName"
        for name, spec, pieces in (("cl100k_base.tiktoken", "%s", 7), ("my.tiktoken", "%s", 7)):
            path = self.rank_file(name)
            self.assertEqual(len(load_tokenizer(spec % path).encode(text)), pieces)
        path = self.rank_file("my.tiktoken")
        self.assertEqual(load_tokenizer(path + ":r50k_base").split("\n\nthe 12")[:2], ["\n", "\n"])
        self.assertEqual(load_tokenizer(path).split("\n\nthe 12")[:1], ["\n\n"])

    def test_special_tokens_of_a_rank_file_are_for_the_way_back(self):
        tokenizer = load_rank_file(self.rank_file("o200k_base.tiktoken"))
        self.assertEqual(tokenizer.decode([199999]), "<|endoftext|>")
        self.assertEqual(tokenizer.count("<|endoftext|>"), 13)

    def test_refusals(self):
        for content, words in ((b"IQ== 0\nhello\n", "line 2 of"), (b"IQ== 0\n", "no token for the byte 0x00"),
                               (b"", "no token for the byte"), (b"\0" * 5000, "neither a rank file nor a tokenizer.json")):
            with self.subTest(content=content):
                self.assertIn(words, self.refusal(self.write("bad.tiktoken", content)))


class TokenizerJsonTest(FilesTest):

    def load(self, **changes):
        return load_tokenizer_json(self.write("tokenizer.json", tiny_json(**changes)))

    def test_both_spellings_of_merges(self):
        text = "the sea's caf\u00e9 12"
        ids = [257, 261, 267, 32, 99, 97, 102, 266, 32, 49, 50]
        pairs = self.load()
        words = self.load(model_merges=["%s %s" % (spelled(left), spelled(right)) for left, right in MERGES])
        self.assertEqual(pairs.encode(text)[:9], ids[:9])
        self.assertEqual(words.encode(text), pairs.encode(text))
        self.assertEqual(pairs.decode(pairs.encode(text)), text)

    def test_a_token_that_no_merge_makes_is_taken_only_with_ignore_merges(self):
        vocab = dict(tiny_json()["model"]["vocab"], xyz=900)
        self.assertEqual(self.load(model_vocab=vocab).encode("xyz"), [120, 121, 122])
        self.assertEqual(self.load(model_vocab=vocab, model_ignore_merges=True).encode("xyz"), [900])

    def test_added_tokens_stand_on_their_own(self):
        tokenizer = self.load()
        self.assertEqual(tokenizer.encode("the<|end|>the"), [257, 1000, 257])
        self.assertEqual(tokenizer.split("the<|end|>the"), ["the", "<|end|>", "the"])
        self.assertEqual(tokenizer.decode([257, 1000]), "the<|end|>")

    def test_strips_and_whole_words_of_added_tokens(self):
        def entry(content, **flags):
            return dict({"id": len(content), "content": content}, **flags)
        added = AddedTokens([entry("<m>", lstrip=True, rstrip=True), entry("word", single_word=True), entry("<mm>")])
        self.assertEqual(added.cut("a <m> \n<mm>sword word."), [
            ("a", None), (" <m> \n", 3), ("<mm>", 4), ("sword ", None), ("word", 4), (".", None)])

    def test_pre_tokenizers_in_a_row(self):
        tokenizer = self.load(pre_tokenizer={"type": "Sequence", "pretokenizers": [
            {"type": "Digits", "individual_digits": True},
            {"type": "Split", "pattern": {"String": "sea"}, "behavior": "Isolated", "invert": False},
            {"type": "ByteLevel", "add_prefix_space": False, "use_regex": True}]})
        self.assertEqual(tokenizer.split("\n\nsea12 the"), ["\n\n", "sea", "1", "2", " the"])

    def test_a_space_before_the_text_is_counted_and_not_written(self):
        tokenizer = self.load(pre_tokenizer={"type": "ByteLevel", "add_prefix_space": True, "use_regex": True})
        self.assertEqual(tokenizer.encode("the sea"), [258, 261])
        self.assertEqual(tokenizer.split("the sea"), ["the", " sea"])
        self.assertEqual(tokenizer.split("xa"), ["", "x", "a"])
        self.assertEqual(tokenizer.split("xa<|end|>the"), ["", "x", "a", "<|end|>", "the"])
        self.assertEqual(tokenizer.encode(""), [])

    def test_normalised_text_is_counted_and_the_written_one_is_split(self):
        tokenizer = self.load(normalizer={"type": "NFC"})
        for text in ("cafe\u0301 the", "\u1112\u1161\u11ab e\u0323\u0307a\u0301", "\u0958 \u212b\u0301", "e\u0301" * 40):
            pieces = tokenizer.split(text)
            self.assertEqual("".join(pieces), text)
            self.assertEqual(len(pieces), tokenizer.count(text))
        self.assertEqual(tokenizer.encode("cafe\u0301"), tokenizer.encode("caf\u00e9"))
        self.assertEqual(tokenizer.split("cafe\u0301 the"), ["c", "a", "f", "e\u0301", " the"])

    def test_a_run_of_marks_is_normalised_as_python_does_and_in_linear_time(self):
        tokenizer = self.load(normalizer={"type": "NFC"})
        source = random.Random(5)
        for size in (100, 400):
            text = "e" + "".join([source.choice("\u0301\u0323\u0345\u0f73\u0f75\u0344\u0f71x") for _ in range(size)])
            self.assertEqual(tokenizer.encode(text), tokenizer.encode(unicodedata.normalize("NFC", text)))
            self.assertEqual("".join(tokenizer.split(text)), text)
        # Minutes when it is sorted by insertion.
        self.assertGreater(tokenizer.count("e" + "\u0301\u0323\u0f73" * 100000), 600000)

    def test_added_tokens_of_normalised_text(self):
        added = [{"id": 1000, "content": "caf\u00e9", "normalized": True}]
        tokenizer = self.load(normalizer={"type": "NFC"}, added_tokens=added)
        self.assertEqual(tokenizer.encode("the cafe\u0301the"), [257, 32, 1000, 257])
        self.assertEqual(tokenizer.split("the cafe\u0301the"), ["the", " ", "cafe\u0301", "the"])

    def test_refusals_name_what_is_not_supported(self):
        vocab = tiny_json()["model"]["vocab"]
        split = {"type": "Split", "pattern": {"Regex": r"\p{Han}"}, "behavior": "Isolated", "invert": False}
        for changes, words in (
                ({"model_type": "Unigram"}, "model type Unigram is not supported"),
                ({"model_type": "WordPiece"}, "model type WordPiece is not supported"),
                ({"model_byte_fallback": True}, "byte_fallback is not supported"),
                ({"model_end_of_word_suffix": "</w>"}, "end_of_word_suffix is not supported"),
                ({"normalizer": {"type": "Lowercase"}}, "normalizer Lowercase is not supported"),
                ({"pre_tokenizer": {"type": "Metaspace"}}, "pre-tokenizer Metaspace is not supported"),
                ({"pre_tokenizer": None}, "no ByteLevel pre-tokenizer"),
                ({"pre_tokenizer": {"type": "Sequence", "pretokenizers": [split]}}, r"\p{Han} is not supported"),
                ({"pre_tokenizer": {"type": "Sequence", "pretokenizers": [dict(split, behavior="MergedWithNext")]}},
                 "behavior MergedWithNext is not supported"),
                ({"model_merges": [["x", "y"]]}, "merge 0 makes a token"),
                ({"model_merges": [["xx", "y"]]}, "not shaped like a tokenizer.json"),
                ({"model_vocab": dict(vocab, **{"\u4e2d": 5000})}, "not spelled in bytes"),
                ({"model_vocab": {"a": 0}, "model_merges": []}, "no token for the byte"),
                ({"model": []}, "it has no model")):
            with self.subTest(changes=changes):
                path = self.write("tokenizer.json", tiny_json(**changes))
                self.assertIn(words, self.refusal(path))
        self.assertIn("is not JSON", self.refusal(self.write("broken.json", b'{"model": ')))

    def test_a_folder_stands_for_the_file_in_it(self):
        self.load()
        self.assertEqual(load_tokenizer(self.folder).encode("the"), [257])
        self.assertIn("brings its own split pattern",
                      self.refusal(os.path.join(self.folder, "tokenizer.json") + ":r50k_base"))


class FakeTiktoken:
    """Both modules of the library that are asked for: an encoding of single bytes, whose file may be missing."""

    def __init__(self, cached=True, failure=None):
        self.cached, self.failure = cached, failure
        self.fetched = []

    def find(self, name):
        return {"tiktoken": self, "tiktoken.load": self}[name]

    def read_file(self, path):
        self.fetched.append(path)
        if self.failure:
            raise self.failure
        return b""

    def list_encoding_names(self):
        return ["o200k_base", "own"]

    def encoding_name_for_model(self, name):
        return {"gpt-4o": "o200k_base"}[name]

    def get_encoding(self, name):
        if not self.cached:
            self.read_file("https://files.invalid/%s.tiktoken" % name)

        def bytes_of(number):
            return bytes((number,)) if number < 256 else {}[number]
        return SimpleNamespace(encode_ordinary=lambda text: list(text.encode("utf-8")),
                               _encode_single_piece=lambda text: list(text.encode("utf-8")),
                               decode_single_token_bytes=bytes_of)


class TiktokenTest(FilesTest):

    def test_ids_counts_pieces_and_the_way_back(self):
        for name in ("o200k_base", "gpt-4o", "own"):
            tokenizer = load_tokenizer("tiktoken:" + name, find_module=FakeTiktoken().find)
            self.assertEqual(tokenizer.encode("a\u00e9\ud800"), [97, 195, 169, 239, 191, 189])
            self.assertEqual(tokenizer.split("a\u00e9\ud800"), ["a", "", "\u00e9", "", "", "\ud800"])
            self.assertEqual(tokenizer.decode([97, 195, 169, 1000]), "a\u00e9\ufffd")
            self.assertEqual(tokenizer.count("a\u00e9"), 3)
            self.assertEqual(tokenizer.count_slowly("ab cd\n" * 30000, int), 180000)

    def test_a_library_that_is_not_installed(self):
        def missing(name):
            raise ImportError("No module named 'tiktoken'")
        self.assertIn("tiktoken is not installed (No module named 'tiktoken')",
                      self.refusal("tiktoken:o200k_base", find_module=missing))

    def test_an_encoding_that_it_does_not_have(self):
        self.assertIn("it has o200k_base, own", self.refusal("tiktoken:nope", find_module=FakeTiktoken().find))

    def test_a_file_that_is_not_cached_is_named_and_not_fetched(self):
        library = FakeTiktoken(cached=False)
        read_file = library.read_file
        text = self.refusal("tiktoken:o200k_base", find_module=library.find)
        self.assertIn("its file is not cached: put https://files.invalid/o200k_base.tiktoken at ", text)
        self.assertIn("--tokenizer-fetch-s 30", text)
        self.assertEqual((library.fetched, library.read_file), ([], read_file))

    def test_it_is_fetched_when_that_is_allowed(self):
        library = FakeTiktoken(cached=False)
        self.assertEqual(load_tokenizer("tiktoken:own", 10, library.find).count("ab"), 2)
        self.assertEqual(library.fetched, ["https://files.invalid/own.tiktoken"])

    def test_a_fetch_that_fails_is_one_line(self):
        library = FakeTiktoken(cached=False, failure=ConnectionError("no\nroute"))
        self.assertIn("did not get its file: ConnectionError: no route",
                      self.refusal("tiktoken:own", fetch_s=10, find_module=library.find))


class CommandTest(FilesTest):
    """The flag as a user meets it."""

    def start(self, *flags):
        command = [sys.executable, ONE_FILE or os.path.join(ROOT, "server.py"), "--port", "0", *flags]
        return subprocess.run(command, stdout=subprocess.PIPE, stderr=subprocess.STDOUT, timeout=60, cwd=self.folder,
                              stdin=subprocess.DEVNULL)

    def test_a_file_that_does_not_serve_ends_the_start(self):
        done = self.start("--tokenizer", "nowhere.tiktoken")
        self.assertEqual((done.returncode, done.stdout.decode().strip()), (
            2, "mockturtle: error: --tokenizer nowhere.tiktoken: there is no file nowhere.tiktoken, and it is none of "
               "approx and tiktoken:NAME"))

    def test_the_default_is_the_approximation(self):
        self.assertIsInstance(load_tokenizer("approx"), ApproxTokenizer)


@every_form
class LiveTokenizerTest(LiveServerTest):
    """A server that counts by a file."""

    @classmethod
    def setUpClass(cls):
        super().setUpClass()
        cls.files = FilesTest("write")
        folder = tempfile.TemporaryDirectory()
        cls.addClassCleanup(folder.cleanup)
        cls.files.folder = folder.name
        cls.path = cls.files.rank_file()

    def setUp(self):
        self.settings = {"tokenizer": self.path, "ttft_ms": 0, "itl_ms": 0}
        super().setUp()

    def test_ids_and_usage_are_the_files(self):
        answer = self.request("POST", "/tokenize", {"prompt": "the sea\U0001f389", "return_token_strs": True}).json()
        self.assertEqual((answer["tokens"], answer["token_strs"]),
                         ([257, 261, 0xF0, 0x9F, 0x8E, 0x89], ["the", " sea", "", "", "", "\U0001f389"]))
        back = self.request("POST", "/detokenize", {"tokens": answer["tokens"]}).json()
        self.assertEqual(back["prompt"], "the sea\U0001f389")
        counted = self.request("POST", "/v1/embeddings", {"model": "m", "input": "the sea"}).json()
        self.assertEqual(counted["usage"]["prompt_tokens"], 2)

    def test_prose_counts_as_many_tokens_as_were_said(self):
        body = {"model": "m", "max_tokens": 20, "ignore_eos": True, "messages": [{"role": "user", "content": "the sea"}]}
        answer = self.request("POST", "/v1/chat/completions", body).json()
        self.assertEqual(answer["usage"]["completion_tokens"], 20)
        self.assertEqual(answer["usage"]["prompt_tokens"] - self.request(
            "POST", "/v1/chat/completions", dict(body, messages=[{"role": "user", "content": ""}])
        ).json()["usage"]["prompt_tokens"], 2)


class SilentTokensTest(LiveServerTest):
    """Tokens without text of their own: an emoji of three tokens in what is said."""

    settings = {"ttft_ms": 0, "itl_ms": 0}
    TEXT = "so \U0001f389\U0001f9a9"
    SCHEMA = {"type": "object", "properties": {"mood": {"enum": [TEXT]}}, "required": ["mood"]}
    SAID = '{"mood":"%s"}' % TEXT

    def chat(self, **fields):
        return dict({"model": "m", "messages": [{"role": "user", "content": "Hi"}], "stream_options": {
            "include_usage": True}, "stream": True}, **fields)

    def tokens(self):
        return self.request("POST", "/tokenize", {"prompt": self.SAID}).json()["count"]

    def chunks(self, body):
        return [event.data for event in self.request("POST", "/v1/chat/completions", body).events()
                if event.data != "[DONE]"]

    def format(self):
        return {"type": "json_schema", "json_schema": {"name": "x", "schema": self.SCHEMA}}

    def test_streamed_content_has_no_empty_delta_and_counts_every_token(self):
        chunks = self.chunks(self.chat(response_format=self.format()))
        said = [chunk["choices"][0]["delta"]["content"] for chunk in chunks
                if chunk["choices"] and "content" in chunk["choices"][0]["delta"]]
        self.assertEqual((said[0], "".join(said), said.count("")), ("", self.SAID, 1), "only the role's content is empty")
        self.assertEqual(chunks[-1]["usage"]["completion_tokens"], self.tokens())
        self.assertEqual(len(said) - 1, self.tokens() - 3, "three tokens say nothing")

    def test_every_token_has_its_log_probability(self):
        chunks = self.chunks(self.chat(response_format=self.format(), logprobs=True, top_logprobs=1))
        told = [entry["token"] for chunk in chunks if chunk["choices"] and chunk["choices"][0]["logprobs"]
                for entry in chunk["choices"][0]["logprobs"]["content"]]
        self.assertEqual((len(told), "".join(told)), (self.tokens(), self.SAID))

    def test_arguments_of_a_call_have_no_empty_delta(self):
        tool = {"type": "function", "function": {"name": "feel", "parameters": self.SCHEMA}}
        chunks = self.chunks(self.chat(tools=[tool], tool_choice="required"))
        pieces = [call["function"]["arguments"] for chunk in chunks if chunk["choices"]
                  for call in chunk["choices"][0]["delta"].get("tool_calls", ())]
        self.assertEqual(("".join(pieces), pieces.count("")), (self.SAID, 1), "only the one with the name is empty")
        self.assertEqual(chunks[-1]["usage"]["completion_tokens"], self.tokens() + 1)

    def test_responses_have_no_empty_delta(self):
        events = self.request("POST", "/v1/responses", {"model": "m", "input": "Hi", "stream": True, "text": {
            "format": {"type": "json_schema", "name": "x", "schema": self.SCHEMA}}}).events()
        deltas = [event.data["delta"] for event in events if event.name == "response.output_text.delta"]
        self.assertEqual(("".join(deltas), deltas.count("")), (self.SAID, 0))
        done = [event for event in events if event.name == "response.completed"][0]
        self.assertEqual(done.data["response"]["usage"]["output_tokens"], self.tokens())

    def test_a_scripted_text_has_no_empty_delta(self):
        with tempfile.TemporaryDirectory() as folder:
            path = os.path.join(folder, "rules.json")
            with open(path, "w", encoding="utf-8") as file:
                json.dump({"rules": [{"match": {}, "reply": self.TEXT}]}, file)
            self.start_server(script=(path,))
        chunks = self.chunks(self.chat())
        said = [chunk["choices"][0]["delta"].get("content") for chunk in chunks if chunk["choices"]]
        self.assertEqual(("".join(filter(None, said)), said.count("")), (self.TEXT, 1))
        count = self.request("POST", "/tokenize", {"prompt": self.TEXT}).json()["count"]
        self.assertEqual(chunks[-1]["usage"]["completion_tokens"], count)
        scored = self.chunks(self.chat(logprobs=True))
        self.assertEqual(sum([len(chunk["choices"][0]["logprobs"]["content"]) for chunk in scored
                              if chunk["choices"] and chunk["choices"][0]["logprobs"]]), count)

    def test_an_echoed_prompt_is_scored_token_by_token(self):
        answer = self.request("POST", "/v1/completions", {"model": "m", "prompt": self.TEXT, "echo": True,
                                                          "max_tokens": 0, "logprobs": 1}).json()
        told = answer["choices"][0]["logprobs"]["tokens"]
        self.assertEqual((answer["choices"][0]["text"], "".join(told)), (self.TEXT, self.TEXT))
        self.assertEqual(len(told), answer["usage"]["prompt_tokens"])


if __name__ == "__main__":
    unittest.main()
