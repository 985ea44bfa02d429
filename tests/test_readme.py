"""The README says what is true: its flags are the parser's, its routes are the server's, its version the code's."""
import os
import re
import sys
import unittest

from api_common import __version__
from backends.profiles import built_in_profiles
from handler import ROUTES
from settings import build_settings_parser

ROOT = os.path.dirname(os.path.dirname(os.path.abspath(__file__)))
sys.path.insert(0, os.path.join(ROOT, "tools"))
from readme_flags import flags_table, with_table    # noqa: E402


def read(name):
    with open(os.path.join(ROOT, name), encoding="utf-8") as text:
        return text.read()


class ReadmeTest(unittest.TestCase):
    def test_flags_table_is_the_parsers(self):
        text = read("README.md")
        self.assertEqual(with_table(text, flags_table(build_settings_parser())), text,
                         "run: python tools/readme_flags.py --write")

    def test_every_route_has_a_curl_example(self):
        examples = "\n".join(re.findall(r"^\s*curl .*$", read("README.md"), re.MULTILINE))
        for path, methods in ROUTES:
            pattern = re.escape(path).replace(re.escape("{}"), r"[^/\s\"]+").replace(re.escape("{+}"), r"[^\s\"]+")
            for method in methods:
                with self.subTest(path=path, method=method):
                    wanted = {"GET": r"curl (?!.*(-d|-X))", "POST": r"curl .*-d ",
                              "DELETE": r"curl .*-X DELETE "}[method]
                    self.assertTrue(any(re.match(wanted, line.strip()) and re.search(
                        r"localhost:8000(/v1)?" + pattern + r"([\s\"'?]|$)", line)
                        for line in examples.splitlines()), "no example")

    def test_profiles_table_is_the_built_in_profiles(self):
        table = read("README.md").partition("built-in ones -->\n")[2].partition("<!-- end of profiles -->")[0]
        rows = [tuple(cell.strip() for cell in line.split("|")[1:-1]) for line in table.splitlines()[2:]]
        self.assertEqual(rows, [("`%s`" % profile["name"], profile["hardware"], "[%s](%s), %s" % (
            profile["source"].split("/")[2], profile["source"], profile["date"])) for profile in built_in_profiles()])

    def test_changelogs_top_entry_is_the_version(self):
        found = re.search(r"^## (\S+)", read("CHANGELOG.md"), re.MULTILINE)
        self.assertEqual(found.group(1), __version__)


if __name__ == "__main__":
    unittest.main()
