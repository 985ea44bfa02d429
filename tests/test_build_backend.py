"""The build backend: wheels, editable wheels and sdists of a toy project, by the rules of their formats.

The hooks run in a process of their own, as pip runs them: with the tree as current directory, the backend on the path.
"""

import base64
import configparser
import csv
import email.parser
import hashlib
import io
import os
import shutil
import subprocess
import sys
import tarfile
import tempfile
import unittest
import zipfile

ROOT = os.path.dirname(os.path.dirname(os.path.abspath(__file__)))
sys.path.insert(0, os.path.join(ROOT, "tools"))

import amalgamate  # noqa: E402
from tests.test_amalgamate import joined_tree  # noqa: E402
import build_backend  # noqa: E402

try:
    import tomllib
except ImportError:     # before 3.11
    tomllib = None

INFO = "mockturtle-1.2.3.dist-info/"

TOY = {
    "README.md": "# Toy\n\nGrüße.\n",
    "CHANGELOG.md": "# 1.2.3\n",
    "api_common.py": '__version__ = "1.2.3"\n',
    "backends/__init__.py": "",
    "backends/contract.py": "class Backend:\n    pass\n\n\n_HIDDEN = 1\n",
    "server.py": "import sys\n\nfrom api_common import __version__\nfrom backends.contract import Backend\n\n\n"
                 "def main():\n    print('toy', __version__, Backend.__name__)\n    return 0\n"
                 '\n\nif __name__ == "__main__":\n    sys.exit(main())\n',
    "unused.py": "X = 1\n",
    "tests/__init__.py": "",
    "tests/data/case.json": "{}\n",
    "tests/__pycache__/x.pyc": "",
    "bench/run.sh": "#!/bin/sh\n",
}


class BuildTest(unittest.TestCase):
    def setUp(self):
        folder = tempfile.TemporaryDirectory()
        self.addCleanup(folder.cleanup)
        self.out = os.path.join(folder.name, "out")
        self.root = os.path.join(folder.name, "tree")
        os.mkdir(self.out)
        for name, text in TOY.items():
            path = os.path.join(self.root, *name.split("/"))
            os.makedirs(os.path.dirname(path), exist_ok=True)
            with open(path, "w", encoding="utf-8", newline="\n") as file:
                file.write(text)
        os.chmod(os.path.join(self.root, "bench", "run.sh"), 0o755)
        os.mkdir(os.path.join(self.root, "tools"))
        for name in ("LICENSE", "pyproject.toml", "tools/amalgamate.py", "tools/build_backend.py"):
            shutil.copy(os.path.join(ROOT, name), os.path.join(self.root, name))

    def build(self, hook, root=None, out=None):
        """Run one hook; returns the path of what it wrote."""
        out = out or self.out
        done = subprocess.run(
            [sys.executable, "-I", "-B", "-c", "import sys; sys.path.insert(0, 'tools'); import build_backend\n"
             "print(getattr(build_backend, sys.argv[1])(sys.argv[2]))", hook, out],
            cwd=root or self.root, stdout=subprocess.PIPE, stderr=subprocess.PIPE, timeout=60)
        self.assertEqual(done.returncode, 0, done.stderr.decode())
        return os.path.join(out, done.stdout.decode().strip())

    def read_wheel(self, path):
        with zipfile.ZipFile(path) as wheel:
            self.assertIsNone(wheel.testzip())
            return {name: wheel.read(name) for name in wheel.namelist()}

    def read_again(self, hook):
        """Build twice, the second time with all files touched; returns both results as bytes."""
        results = []
        for number in range(2):
            out = os.path.join(self.out, str(number))
            os.mkdir(out)
            with open(self.build(hook, out=out), "rb") as file:
                results.append(file.read())
            for folder, _, files in os.walk(self.root):
                for name in files:
                    os.utime(os.path.join(folder, name), (1, 1))
        return results


class WheelTest(BuildTest):
    def test_wheel_holds_the_joined_file_and_its_dist_info(self):
        path = self.build("build_wheel")
        files = self.read_wheel(path)
        self.assertEqual(os.path.basename(path), "mockturtle-1.2.3-py3-none-any.whl")
        self.assertEqual(list(files), ["mockturtle.py"] + [INFO + name for name in (
            "LICENSE", "METADATA", "WHEEL", "entry_points.txt", "RECORD")])
        self.assertEqual(files["mockturtle.py"].decode(), amalgamate.join(self.root))
        self.assertIn(b"MIT License", files[INFO + "LICENSE"])

    def test_every_line_of_record_is_right(self):
        for hook in ("build_wheel", "build_editable"):
            with self.subTest(hook=hook):
                files = self.read_wheel(self.build(hook))
                rows = list(csv.reader(io.StringIO(files[INFO + "RECORD"].decode())))
                self.assertEqual([row[0] for row in rows], list(files))
                self.assertEqual(rows.pop(), [INFO + "RECORD", "", ""])
                for name, digest, size in rows:
                    expected = base64.urlsafe_b64encode(hashlib.sha256(files[name]).digest()).decode().rstrip("=")
                    self.assertEqual((digest, size), ("sha256=" + expected, str(len(files[name]))), name)

    def test_metadata(self):
        data = self.read_wheel(self.build("build_wheel"))[INFO + "METADATA"]
        message = email.parser.BytesParser().parsebytes(data)
        self.assertEqual([message[key] for key in ("Name", "Version", "Requires-Python", "License")],
                         ["mockturtle", "1.2.3", ">=3.9", "MIT"])
        self.assertEqual(message.get_payload(decode=True).decode("utf-8"), TOY["README.md"])
        self.assertEqual(message["Description-Content-Type"], "text/markdown; charset=UTF-8")
        self.assertNotIn("Requires-Dist", message)

    def test_metadata_without_readme(self):
        os.remove(os.path.join(self.root, "README.md"))
        data = self.read_wheel(self.build("build_wheel"))[INFO + "METADATA"]
        self.assertEqual(email.parser.BytesParser().parsebytes(data).get_payload(), "")

    def test_entry_point_resolves(self):
        files = self.read_wheel(self.build("build_wheel"))
        entry_points = configparser.ConfigParser()
        entry_points.read_string(files[INFO + "entry_points.txt"].decode())
        self.assertEqual(dict(entry_points["console_scripts"]), {"mockturtle": "mockturtle:main"})
        namespace = {"__name__": "mockturtle"}
        exec(compile(files["mockturtle.py"], "mockturtle.py", "exec"), namespace)
        self.assertTrue(callable(namespace["main"]))

    def test_two_builds_are_equal(self):
        first, second = self.read_again("build_wheel")
        self.assertEqual(first, second)

    def test_nothing_is_written_into_the_tree(self):
        def listing():
            return sorted(os.path.join(folder, name) for folder, _, files in os.walk(self.root) for name in files)
        before = listing()
        for hook in ("build_wheel", "build_sdist", "build_editable"):
            self.build(hook)
        self.assertEqual(listing(), before)


class EditableTest(BuildTest):
    def install(self):
        """Unpack an editable wheel as a site folder; returns what `python -m mockturtle` and an import see there."""
        with zipfile.ZipFile(self.build("build_editable")) as wheel:
            wheel.extractall(self.out)
        code = ("import site, sys; site.addsitedir(sys.argv[1]); sys.path.insert(0, sys.argv[1]); import runpy, mockturtle\n"
                "print(mockturtle.__version__, mockturtle.Backend, mockturtle._HIDDEN, mockturtle.main.__module__)\n"
                "runpy.run_module('mockturtle', run_name='__main__')")
        done = subprocess.run([sys.executable, "-I", "-B", "-c", code, self.out], cwd=self.out,
                              stdout=subprocess.PIPE, stderr=subprocess.PIPE, timeout=60)
        self.assertEqual(done.returncode, 0, done.stderr.decode())
        return done.stdout.decode().splitlines()

    def test_shim_has_the_names_of_all_modules_and_runs(self):
        self.assertEqual(self.install(), ["1.2.3 <class 'backends.contract.Backend'> 1 server", "toy 1.2.3 Backend"])

    def test_change_in_the_tree_is_seen(self):
        path = os.path.join(self.root, "api_common.py")
        self.install()
        with open(path, "w", encoding="utf-8") as file:
            file.write('__version__ = "9.9"\n')
        self.assertIn("toy 9.9 Backend", self.install())


class SdistTest(BuildTest):
    def unpack(self):
        path = self.build("build_sdist")
        with tarfile.open(path) as archive:
            members = {member.name: member for member in archive.getmembers()}
            archive.extractall(self.out, **({"filter": "data"} if hasattr(tarfile, "data_filter") else {}))
        return path, members

    def test_sdist_holds_sources_tools_tests_bench_and_papers_only(self):
        path, members = self.unpack()
        self.assertEqual(os.path.basename(path), "mockturtle-1.2.3.tar.gz")
        self.assertEqual(sorted(members), sorted("mockturtle-1.2.3/" + name for name in (
            "PKG-INFO", "LICENSE", "README.md", "CHANGELOG.md", "pyproject.toml", "api_common.py", "server.py",
            "backends/__init__.py", "backends/contract.py", "tools/amalgamate.py", "tools/build_backend.py",
            "tests/__init__.py", "tests/data/case.json", "bench/run.sh")))

    def test_members_have_no_owner_and_keep_the_executable_bit(self):
        _, members = self.unpack()
        self.assertEqual({(member.uid, member.gid, member.uname, member.gname) for member in members.values()},
                         {(0, 0, "", "")})
        self.assertEqual([members["mockturtle-1.2.3/" + name].mode for name in ("bench/run.sh", "server.py")],
                         [0o755, 0o644])

    def test_wheel_from_the_unpacked_sdist_is_the_same(self):
        self.unpack()
        second = os.path.join(self.out, "second")
        os.mkdir(second)
        paths = [self.build("build_wheel"),
                 self.build("build_wheel", root=os.path.join(self.out, "mockturtle-1.2.3"), out=second)]
        self.assertEqual(self.read_wheel(paths[0]), self.read_wheel(paths[1]))

    def test_two_builds_are_equal(self):
        first, second = self.read_again("build_sdist")
        self.assertEqual(first, second)


class ProjectTableTest(unittest.TestCase):
    @unittest.skipIf(tomllib is None, "pyproject.toml is not compared: tomllib came with Python 3.11")
    def test_project_table_agrees_with_the_backend(self):
        with open(os.path.join(ROOT, "pyproject.toml"), "rb") as file:
            pyproject = tomllib.load(file)
        self.assertEqual(pyproject["build-system"], {
            "requires": [], "build-backend": "build_backend", "backend-path": ["tools"]})
        self.assertEqual(pyproject["project"], {
            "name": build_backend.NAME,
            "dynamic": ["version"],
            "description": build_backend.SUMMARY,
            "readme": "README.md",
            "requires-python": build_backend.REQUIRES_PYTHON,
            "license": {"text": build_backend.LICENSE},
            "authors": [{"name": build_backend.AUTHOR}],
            "keywords": build_backend.KEYWORDS,
            "dependencies": [],
            "classifiers": build_backend.CLASSIFIERS,
            "scripts": build_backend.SCRIPTS,
        })


@unittest.skipUnless(os.path.isfile(os.path.join(ROOT, "server.py")), "no server.py in the tree")
class RealTreeTest(BuildTest):
    def test_two_wheels_are_equal_and_hold_the_joined_file(self):
        paths = []
        for number in range(2):
            out = os.path.join(self.out, str(number))
            os.mkdir(out)
            paths.append(self.build("build_wheel", root=ROOT, out=out))
        first, second = map(self.read_wheel, paths)
        self.assertEqual(first, second)
        self.assertEqual(first["mockturtle.py"].decode("utf-8"), joined_tree())

    def test_wheel_from_the_unpacked_sdist_is_the_same(self):
        path = self.build("build_sdist", root=ROOT)
        with tarfile.open(path) as archive:
            archive.extractall(self.out, **({"filter": "data"} if hasattr(tarfile, "data_filter") else {}))
        unpacked = path[:-len(".tar.gz")]
        wheel = self.read_wheel(self.build("build_wheel", root=unpacked))
        self.assertEqual(wheel["mockturtle.py"].decode("utf-8"), joined_tree())


if __name__ == "__main__":
    unittest.main()
