"""The joiner: what it makes of toy projects, what it refuses, and the real tree where that is complete."""

import ast
import contextlib
import hashlib
import io
import functools
import os
import py_compile
import subprocess
import sys
import tempfile
import unittest

ROOT = os.path.dirname(os.path.dirname(os.path.abspath(__file__)))
sys.path.insert(0, os.path.join(ROOT, "tools"))

import amalgamate  # noqa: E402

GUARD = '\n\nif __name__ == "__main__":\n    main()\n'

TOY = {
    "LICENSE": "MIT License\n\nCopyright (c) 2026 Nobody {at} all\n",
    "api_common.py": '"""Words.\n\n    {"id": str}\n"""\nimport json\nimport http.client\n\n__version__ = "1.2.3"\n\n\n'
                     'def render(value):\n    return json.dumps([value, http.client.OK])\n',
    "backends/__init__.py": '"""Backends."""\n',
    "backends/deep/__init__.py": "",
    "backends/deep/contract.py": '"""The contract."""\nimport http.server\nfrom os import (\n    path, sep)\n'
                                 "from api_common import render\n\n\n"
                                 "class Backend:\n    def say(self):\n        return render(path.basename('a' + sep + 'b'))\n",
    "backends/simulated.py": "from os import getpid\nfrom backends.deep.contract import Backend\n\n\n"
                             "class Simulated(Backend):\n    pid = getpid\n",
    "server.py": '#!/usr/bin/env python3\n"""The entry."""\nimport sys\n\n'
                 "# Copied alone? Say so.\n"
                 "try:\n    from api_common import __version__\n    from backends.simulated import (\n        Simulated,\n    )\n"
                 'except ImportError as error:\n    sys.exit("copied alone: %s" % error)\n\n'
                 "# What main() prints.\nWORDS = []\n\n\n"
                 "def main():\n    print(__version__, Simulated().say(), *WORDS)\n    return 0\n" + GUARD,
}


class ToyProject(unittest.TestCase):
    """A project in a temporary folder: TOY with some files changed (None leaves one out)."""

    def write(self, changes=None):
        folder = tempfile.TemporaryDirectory()
        self.addCleanup(folder.cleanup)
        for name, text in {**TOY, **(changes or {})}.items():
            if text is not None:
                path = os.path.join(folder.name, *name.split("/"))
                os.makedirs(os.path.dirname(path), exist_ok=True)
                with open(path, "w", encoding="utf-8", newline="") as file:
                    file.write(text)
        return folder.name

    def join(self, changes=None):
        return amalgamate.join(self.write(changes))

    def refusal(self, changes):
        with self.assertRaises(amalgamate.JoinError) as caught:
            self.join(changes)
        return str(caught.exception)


class JoinTest(ToyProject):
    def run_split_and_joined(self, changes=None):
        folder = self.write(changes)
        out = os.path.join(folder, "joined.py")
        with open(out, "w", encoding="utf-8", newline="\n") as file:
            file.write(amalgamate.join(folder))
        return [subprocess.run([sys.executable, "-B", path], cwd=folder, stdout=subprocess.PIPE, check=True,
                               timeout=60).stdout.decode() for path in ("server.py", "joined.py")]

    def test_joined_file_does_what_the_modules_in_folders_do(self):
        split, joined = self.run_split_and_joined()
        self.assertEqual(split, joined)
        self.assertEqual(joined.split(), ["1.2.3", '["b",', "200]"])

    def test_modules_stand_in_dependency_order_under_banners(self):
        found = [line for line in self.join().split("\n") if line.startswith("# ") and line.endswith(".py")]
        self.assertEqual(found, ["# api_common.py", "# backends/deep/contract.py", "# backends/simulated.py", "# server.py"])

    def test_docstring_becomes_a_comment_and_keeps_its_indentation(self):
        self.assertIn("# api_common.py\n#\n# Words.\n#\n# {\"id\": str}\n# ====", self.join())
        text = self.join({"api_common.py": TOY["api_common.py"].replace('    {"id"', 'Shape:\n    {"id"')})
        self.assertIn('# Shape:\n#     {"id": str}\n', text)

    def test_imports_are_merged_and_sorted_on_top(self):
        self.assertIn("\n\nimport http.client\nimport http.server\nimport json\nimport sys\nfrom os import getpid, path, sep"
                      "\n\n\n# ====", self.join())

    def test_long_import_is_wrapped(self):
        names = ", ".join("O_%s as option_number_%d" % (name, number) for number, name in enumerate(
            ["RDONLY", "WRONLY", "RDWR", "CREAT", "EXCL", "TRUNC", "APPEND"]))
        text = self.join({"backends/simulated.py": "from os import " + names + "\n" + TOY["backends/simulated.py"]})
        self.assertIn("from os import (\n    O_APPEND as option_number_6,", text)
        self.assertLessEqual(max(map(len, text.split("\n"))), 120)

    def test_guarded_import_of_the_entry_is_dropped_with_its_comment(self):
        text = self.join()
        self.assertNotIn("copied alone", text)
        self.assertNotIn("Copied alone", text)
        self.assertIn("# What main() prints.\nWORDS = []\n", text)

    def test_guard_stands_at_the_end(self):
        self.assertTrue(self.join().endswith("    return 0\n\n\n" + GUARD.lstrip()))

    def test_guard_of_another_module_is_dropped(self):
        text = self.join({"backends/simulated.py": TOY["backends/simulated.py"] + GUARD.replace("main()", "print(9)")})
        self.assertNotIn("print(9)", text)

    def test_future_imports_become_one_line(self):
        line = "from __future__ import annotations\n"
        changes = {name: text.replace("import ", line + "import ", 1) for name, text in TOY.items()
                   if name.endswith(".py") and "import" in text}
        changes["backends/simulated.py"] = line + TOY["backends/simulated.py"]
        changes["backends/deep/contract.py"] = TOY["backends/deep/contract.py"].replace("import", line + "import", 1)
        self.assertEqual(self.join(changes).count(line), 1)

    def test_header_names_version_licence_sources_and_how_to_run(self):
        text = self.join()
        header = ast.get_docstring(ast.parse(text))
        self.assertTrue(text.startswith("#!/usr/bin/env python3\n"))
        digest = hashlib.sha256(TOY["backends/deep/contract.py"].encode()).hexdigest()
        for words in ("mockturtle 1.2.3", "Python 3.9+", "python3 mockturtle.py --port 8000",
                      "edit the sources, not this file", digest + "  backends/deep/contract.py"):
            self.assertIn(words, header)
        self.assertIn("# MIT License\n#\n# Copyright (c) 2026 Nobody {at} all\n", text)

    def test_strings_with_blank_lines_form_feed_and_comment_like_end_survive(self):
        odd = 'ODD = """a\n\n\n\n\n\n\x0c\u2028b\n# no comment"""\nimport re\n\nPATTERN = re.compile("x")\n'
        text = self.join({"backends/simulated.py": TOY["backends/simulated.py"] + odd})
        self.assertIn(odd.replace("import re\n\n", ""), text)

    def test_line_ends_do_not_matter(self):
        windows = {name: text.replace("\n", "\r\n") for name, text in TOY.items()}
        self.assertEqual(self.join(windows), self.join())

    def test_optional_import_and_import_inside_function_stay_verbatim(self):
        extra = ("\ntry:\n    import ssl\nexcept ImportError:\n    ssl = None\n\n\n"
                 "def late():\n    import sqlite3\n    return sqlite3, ssl\n")
        self.assertIn(extra, self.join({"backends/simulated.py": TOY["backends/simulated.py"] + extra}))

    def test_same_text_twice_and_in_another_folder(self):
        self.assertEqual(self.join(), self.join())

    def test_importing_the_joined_file_prints_nothing(self):
        folder = self.write()
        with open(os.path.join(folder, "mockturtle.py"), "w", encoding="utf-8", newline="\n") as file:
            file.write(amalgamate.join(folder))
        done = subprocess.run([sys.executable, "-B", "-c", "import mockturtle, threading; assert mockturtle.main;"
                               "assert threading.active_count() == 1"],
                              cwd=folder, stdout=subprocess.PIPE, stderr=subprocess.STDOUT, timeout=60)
        self.assertEqual((done.returncode, done.stdout), (0, b""))

    def test_comprehension_variables_and_locals_are_no_top_level_names(self):
        extra = "\nEVENS_%d = [path for path in range(3)]\n\n\ndef twice_%d(path):\n    return [path for path in path]\n"
        self.join({"backends/simulated.py": TOY["backends/simulated.py"] + extra % (1, 1),
                   "api_common.py": TOY["api_common.py"] + extra % (2, 2) + "\n\nclass Rate:\n    sep = 1\n    both = sep\n"})

    def test_self_check_finds_a_changed_string(self):
        folder = self.write()
        modules = list(amalgamate.collect(folder).values())
        text = amalgamate.join(folder)
        for damaged in (text.replace("'a' + sep", "'A' + sep"), text.replace("WORDS = []\n", ""), text + "x = 1\n",
                        text + "x = (\n"):
            with self.assertRaises(amalgamate.JoinError) as caught:
                amalgamate._self_check(damaged, modules)
            self.assertIn("self-check", str(caught.exception))


def _add(name, text):
    return {name: TOY[name] + text}


def _first(name, text):
    return {name: text + TOY[name]}


SIMULATED, COMMON, SERVER = "backends/simulated.py", "api_common.py", "server.py"

# what is wrong: (files changed, where it is found, words of the message)
REFUSALS = {
    "import project module": (_first(SIMULATED, "import api_common\n"), SIMULATED + ":1", "from api_common import name"),
    "import folder.module": (_first(SIMULATED, "import backends.deep.contract\n"), SIMULATED + ":1", "from backends"),
    "project import as": (_first(SIMULATED, "from api_common import render as r\n"), SIMULATED + ":1", "no `as`"),
    "project import star": (_first(SIMULATED, "from api_common import *\n"), SIMULATED + ":1", "import *"),
    "library import star": (_first(SIMULATED, "from os import *\n"), SIMULATED + ":1", "import *"),
    "relative import": (_first(SIMULATED, "from .deep.contract import Backend\n"), SIMULATED + ":1", "relative"),
    "import from the folder": (_first(SIMULATED, "from backends.deep import contract\n"), SIMULATED + ":1", "is a folder"),
    "no such module": (_first(SIMULATED, "from backends.nowhere import x\n"), SIMULATED + ":1", "no module backends.nowhere"),
    "no such name": (_first(SIMULATED, "from api_common import rendr\n"), SIMULATED + ":1", "does not define rendr"),
    "name only re-exported": (_first(SERVER, "from backends.simulated import Backend\n"), SERVER + ":1", "does not define"),
    "library name re-exported": (_first(SIMULATED, "from api_common import json\n"), SIMULATED + ":1", "does not define"),
    "project import in function": (_add(SIMULATED, "def f():\n    from api_common import render\n"), SIMULATED + ":8",
                                   "below top level"),
    "relative import in function": (_add(SIMULATED, "def f():\n    from . import deep\n"), SIMULATED + ":8", "relative"),
    "project import for type checks": (
        _add(SIMULATED, "from typing import TYPE_CHECKING\nif TYPE_CHECKING:\n    from api_common import render\n"),
        SIMULATED + ":9", "below top level"),
    "project import in the guard": (_add(SIMULATED, "if __name__ == '__main__':\n    from api_common import render\n"),
                                    SIMULATED + ":8", "below top level"),
    "guarded project import outside the entry": (
        _add(SIMULATED, "try:\n    from api_common import render\nexcept ImportError:\n    pass\n"),
        SIMULATED + ":8", "below top level"),
    "guarded import with more in it": (
        {SERVER: TOY[SERVER].replace("try:\n", "try:\n    import re\n")}, SERVER + ":8", "below top level"),
    "guarded import with else": (
        {SERVER: TOY[SERVER].replace("\n# What", "else:\n    X = 1\n\n# What")}, SERVER + ":7", "below top level"),
    "guarded import for another error": (
        {SERVER: TOY[SERVER].replace("except ImportError", "except OSError")}, SERVER + ":7", "below top level"),
    "tools imported": ({**_first(SIMULATED, "from tools.x import y\n"), "tools/x.py": "y = 1\n"}, SIMULATED + ":1",
                       "never part"),
    "code in __init__": ({"backends/deep/__init__.py": '"""Doc."""\nX = 1\n'}, "backends/deep/__init__.py:2", "docstring only"),
    "cycle": (_first(COMMON, "from backends.simulated import Simulated\n"), "backends/deep/contract.py:5",
              "api_common -> backends.simulated -> backends.deep.contract -> api_common"),
    "import of itself": (_first(COMMON, "from api_common import render\n"), COMMON + ":1", "api_common -> api_common"),
    "name in two modules": (_add(SIMULATED, "def render():\n    pass\n"), SIMULATED + ":7", "bound in api_common.py:11"),
    "loop variable in two modules": ({**_add(SIMULATED, "for i in (): pass\n"), **_add(COMMON, "i = 0\n")}, SIMULATED + ":7",
                                     "i is bound in api_common.py:13"),
    "with target": ({**_add(SIMULATED, "with open('x') as (i, *j): pass\n"), **_add(COMMON, "j = 0\n")}, SIMULATED + ":7", "j is"),
    "walrus in comprehension": ({**_add(SIMULATED, "X = [(i := n) for n in ()]\n"), **_add(COMMON, "i = 0\n")},
                                SIMULATED + ":7", "i is"),
    "name in if and try": ({**_add(SIMULATED, "if 1:\n    try:\n        i = 1\n    finally:\n        pass\n"),
                            **_add(COMMON, "i = 0\n")}, SIMULATED + ":9", "i is"),
    "except name": ({**_add(SIMULATED, "try:\n    pass\nexcept OSError as i:\n    pass\n"), **_add(COMMON, "i = 0\n")},
                    SIMULATED + ":9", "i is"),
    "name bound in the entry's guard": (_add(SERVER, "    render = 1\n"), SERVER + ":25", "bound in api_common.py"),
    "definition versus import": (
        {SERVER: TOY[SERVER].replace("WORDS = []", "WORDS = json = []")}, COMMON + ":5", "json is imported here and defined"),
    "optional import versus import": (_add(SIMULATED, "try:\n    import json\nexcept ImportError:\n    pass\n"),
                                      COMMON + ":5", "json is imported here and defined"),
    "one alias, two meanings": ({**_first(SIMULATED, "from time import time\n"), **_first(SERVER, "import time\n")},
                                SERVER + ":1", "time means something else in backends/simulated.py:1"),
    "alias of a part": ({**_first(SIMULATED, "import os.path as os\n"), **_first(SERVER, "import os\n")},
                        SERVER + ":1", "os means something else"),
    "builtin defined": (_add(SIMULATED, "def format():\n    pass\n"), SIMULATED + ":7", "format is a builtin"),
    "builtin of a newer Python": (_add(SIMULATED, "class ExceptionGroup:\n    pass\n"), SIMULATED + ":7", "is a builtin"),
    "builtin imported": (_first(SIMULATED, "from io import open\n"), SIMULATED + ":1", "open is a builtin"),
    "__all__": (_add(SIMULATED, "__all__ = []\n"), SIMULATED + ":7", "__all__"),
    "module __getattr__": (_add(SIMULATED, "def __getattr__(name):\n    pass\n"), SIMULATED + ":7", "__getattr__"),
    "global": (_add(SIMULATED, "def f():\n    global X\n    X = 1\n"), SIMULATED + ":8", "global X"),
    "__file__": (_add(SIMULATED, "X = __file__\n"), SIMULATED + ":7", "__file__"),
    "__name__": (_add(SIMULATED, "def f():\n    return __name__\n"), SIMULATED + ":8", "__name__"),
    "__name__ in the guard's body": (_add(SERVER, "    print(__name__)\n"), SERVER + ":25", "__name__"),
    "__doc__": (
        {SERVER: TOY[SERVER].replace("WORDS = []", "WORDS = [__doc__]")}, SERVER + ":15", "__doc__"),
    "__package__": (_add(SIMULATED, "X = __package__\n"), SIMULATED + ":7", "__package__"),
    "__spec__": (_add(SIMULATED, "X = __spec__\n"), SIMULATED + ":7", "__spec__"),
    "globals()": (_add(SIMULATED, "X = globals()\n"), SIMULATED + ":7", "globals"),
    "futures differ": (_first(SIMULATED, "from __future__ import annotations\n"), SIMULATED + ":1", "__future__"),
    "import shares its line": (_first(SIMULATED, "import re; X = re\n"), SIMULATED + ":1", "shares its line"),
    "guard not last": (_add(SERVER, "X = 1\n"), SERVER + ":23", "must be the last"),
    "guard with else": (_add(SERVER, "else:\n    X = 1\n"), SERVER + ":23", "no else"),
    "sibling's function without import": (_add(SIMULATED, "def f():\n    return render(1)\n"), SIMULATED + ":8",
                                          "render is used here but neither defined nor imported"),
    "sibling's import without import": (_add(SIMULATED, "class A:\n    x = json.dumps\n"), SIMULATED + ":8", "json is used"),
    "syntax error": (_add(SIMULATED, "def f(:\n"), SIMULATED + ":7", "invalid syntax"),
    "return outside function": (_add(SIMULATED, "return 1\n"), SIMULATED + ":7", "outside function"),
    "NUL byte": (_add(SIMULATED, "X = '\0'\n"), SIMULATED + ":", "null bytes"),
    "no entry": ({SERVER: None}, SERVER + ":1", "no such file"),
    "no licence": ({"LICENSE": None}, "LICENSE:1", "missing"),
    "no version": ({COMMON: TOY[COMMON].replace("__version__", "VERSION"), SERVER: TOY[SERVER].replace(
        "    from api_common import __version__\n", "").replace("__version__", "1")}, COMMON + ":1", "no __version__"),
    "odd version": ({COMMON: TOY[COMMON].replace("1.2.3", "1.2-beta")}, COMMON + ":8", "plain version"),
}
if hasattr(sys, "stdlib_module_names"):
    REFUSALS["unknown module"] = (_first(SIMULATED, "import numpy\n"), SIMULATED + ":1", "neither a project module nor")
if sys.version_info >= (3, 10):
    REFUSALS["newer syntax"] = (_add(SIMULATED, "match 1:\n    case 1: pass\n"), SIMULATED + ":8", "3.10")


class RefusalTest(ToyProject):
    def test_what_would_differ_is_refused_with_module_and_line(self):
        for case, (changes, place, words) in REFUSALS.items():
            with self.subTest(case=case):
                message = self.refusal(changes)
                self.assertTrue(message.startswith(place), message)
                self.assertIn(words, message)


class CommandTest(ToyProject):
    def run_main(self, root, *arguments):
        """Run main() on a project; returns (status, what it printed, errors)."""
        out, err = io.StringIO(), io.StringIO()
        before, amalgamate.ROOT = amalgamate.ROOT, root
        try:
            with contextlib.redirect_stdout(out), contextlib.redirect_stderr(err):
                status = amalgamate.main(list(arguments))
        finally:
            amalgamate.ROOT = before
        return status, out.getvalue(), err.getvalue()

    def test_writes_dist_and_prints_path_lines_and_sha256(self):
        root = self.write()
        status, printed, _ = self.run_main(root)
        path = os.path.join(root, "dist", "mockturtle.py")
        with open(path, "rb") as file:
            data = file.read()
        self.assertEqual((status, printed), (0, "%s  %d lines  sha256 %s\n" % (
            path, data.count(b"\n"), hashlib.sha256(data).hexdigest())))

    def test_out_and_compile(self):
        root = self.write()
        path = os.path.join(root, "elsewhere", "m.py")
        _, printed, _ = self.run_main(root, "--out", path, "--compile")
        cached = printed.split("\n")[1].split("  (")[0]
        self.assertTrue(os.path.isfile(cached), printed)
        self.assertTrue(cached.startswith(os.path.join(root, "elsewhere", "__pycache__")))

    def test_refusal_is_one_line_and_writes_nothing(self):
        root = self.write({"LICENSE": None})
        status, printed, errors = self.run_main(root)
        self.assertEqual((status, printed), (1, ""))
        self.assertRegex(errors, r"\Aamalgamate: LICENSE:1: .*\n\Z")
        self.assertFalse(os.path.exists(os.path.join(root, "dist")))


@unittest.skipUnless(os.path.isfile(os.path.join(ROOT, "server.py")), "no server.py in the tree")
@functools.lru_cache(maxsize=None)
def joined_tree():
    """The real tree joined, once for all tests that look at it: it takes 2 s."""
    return amalgamate.join(ROOT)


class RealTreeTest(unittest.TestCase):
    @classmethod
    def setUpClass(cls):
        folder = tempfile.TemporaryDirectory()
        cls.addClassCleanup(folder.cleanup)
        cls.text = joined_tree()
        cls.path = os.path.join(folder.name, "mockturtle.py")
        with open(cls.path, "w", encoding="utf-8", newline="\n") as file:
            file.write(cls.text)

    def test_two_builds_are_equal(self):
        self.assertEqual(self.text, amalgamate.join(ROOT))

    def test_joined_file_compiles(self):
        py_compile.compile(self.path, doraise=True)

    def test_version_is_printed_without_site_packages(self):
        done = subprocess.run([sys.executable, "-I", "-S", "-B", self.path, "--version"], stdout=subprocess.PIPE,
                              stderr=subprocess.STDOUT, timeout=60)
        self.assertEqual(done.returncode, 0, done.stdout)
        self.assertIn(amalgamate.read_version(ROOT), done.stdout.decode())

    def test_import_prints_nothing_and_starts_no_thread(self):
        done = subprocess.run([sys.executable, "-B", "-c", "import threading, mockturtle\n"
                               "assert threading.active_count() == 1 and callable(mockturtle.main)"],
                              cwd=os.path.dirname(self.path), stdout=subprocess.PIPE, stderr=subprocess.STDOUT, timeout=60)
        self.assertEqual((done.returncode, done.stdout), (0, b""))

    def test_no_path_of_this_machine_is_in_it(self):
        self.assertNotIn(ROOT, self.text)


if __name__ == "__main__":
    unittest.main()
