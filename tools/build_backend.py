"""In-tree build backend (PEP 517, PEP 660): `pip install .` needs no network and no other package.

The wheel holds one module, the joined `mockturtle.py`, and one console script. Hooks run with the source tree as
current directory and write only into the folder that they are given. Equal sources give equal bytes: times are fixed,
wheels are stored rather than deflated (the bytes then do not depend on the zlib that is at hand).
"""

import base64
import gzip
import hashlib
import io
import os
import tarfile
import zipfile

import amalgamate

NAME = amalgamate.NAME
ENTRY = amalgamate.ENTRY
SUMMARY = amalgamate.SUMMARY
REQUIRES_PYTHON = ">=3.9"
LICENSE = "MIT"
AUTHOR = "The mockturtle authors"
KEYWORDS = ["openai", "mock", "llm", "testing", "benchmark"]
SCRIPTS = {NAME: NAME + ":main"}
CLASSIFIERS = [
    "Environment :: Console",
    "Intended Audience :: Developers",
    "License :: OSI Approved :: MIT License",
    "Programming Language :: Python :: 3",
    "Programming Language :: Python :: 3 :: Only",
    "Programming Language :: Python :: 3.9",
    "Programming Language :: Python :: 3.10",
    "Programming Language :: Python :: 3.11",
    "Programming Language :: Python :: 3.12",
    "Programming Language :: Python :: 3.13",
    "Topic :: Software Development :: Testing :: Mocking",
]

# What an sdist holds beside the joined modules, as far as it exists.
SDIST_FILES = ["pyproject.toml", "LICENSE", "README.md", "CHANGELOG.md"]
SDIST_FOLDERS = ["tools", "tests", "bench", "docs"]

ZIP_TIME = (1980, 1, 1, 0, 0, 0)    # the earliest that a zip can say
TAR_TIME = 315532800                # the same moment, UTC

# In an editable install the names of all modules are found under the one name, as in the single file.
SHIM = '''\
"""{name}, installed for editing: the names of all modules of the checkout, as in the single file."""

import importlib
import sys

# As of the installation: install again after adding a module.
for _module in {modules!r}:
    for _name, _value in vars(importlib.import_module(_module)).items():
        if not (_name.startswith("__") and _name.endswith("__")) or _name == "__version__":
            globals()[_name] = _value

from {entry} import main

if __name__ == "__main__":
    sys.exit(main())
'''


def build_wheel(wheel_directory, config_settings=None, metadata_directory=None):
    root = os.getcwd()
    return _write_wheel(root, wheel_directory, {NAME + ".py": amalgamate.join(root)})


def build_editable(wheel_directory, config_settings=None, metadata_directory=None):
    """Write a wheel that puts the checkout on the path; its bytes name that path, so they are not reproducible."""
    root = os.getcwd()
    modules = list(amalgamate.collect(root))
    return _write_wheel(root, wheel_directory, {
        NAME + "_checkout.pth": root + "\n",
        NAME + ".py": SHIM.format(name=NAME, entry=ENTRY, modules=modules),
    })


def build_sdist(sdist_directory, config_settings=None):
    root = os.getcwd()
    top = "%s-%s" % (NAME, amalgamate.read_version(root))
    name = top + ".tar.gz"
    with open(os.path.join(sdist_directory, name), "wb") as raw, \
            gzip.GzipFile("", "wb", compresslevel=9, fileobj=raw, mtime=0) as packed, \
            tarfile.open(fileobj=packed, mode="w", format=tarfile.PAX_FORMAT) as archive:
        _add_to_tar(archive, top + "/PKG-INFO", _metadata(root).encode("utf-8"), False)
        for path in _sdist_paths(root):
            full = os.path.join(root, *path.split("/"))
            with open(full, "rb") as file:
                _add_to_tar(archive, top + "/" + path, file.read(), os.stat(full).st_mode & 0o100)
    return name


def _add_to_tar(archive, path, data, executable):
    member = tarfile.TarInfo(path)      # no owner, no group
    member.size, member.mtime, member.mode = len(data), TAR_TIME, 0o755 if executable else 0o644
    archive.addfile(member, io.BytesIO(data))


def _sdist_paths(root):
    """Return the sorted paths, with `/`, of all files that belong into an sdist."""
    paths = {name for name in SDIST_FILES if os.path.isfile(os.path.join(root, name))}
    for module in amalgamate.collect(root).values():
        paths.add(module.file)
        folder = os.path.dirname(module.file)
        while folder:
            if os.path.isfile(os.path.join(root, folder, "__init__.py")):
                paths.add(folder + "/__init__.py")
            folder = os.path.dirname(folder)
    for top in SDIST_FOLDERS:
        for folder, folders, files in os.walk(os.path.join(root, top)):
            folders[:] = [name for name in folders if not name.startswith((".", "__pycache__"))]
            paths.update(os.path.relpath(os.path.join(folder, name), root).replace(os.sep, "/")
                         for name in files if not name.startswith(".") and not name.endswith((".pyc", ".pyo")))
    return sorted(paths)


def _metadata(root):
    """Return METADATA (PKG-INFO in an sdist); version 2.1 of the format, which old installers know too."""
    lines = [
        "Metadata-Version: 2.1",
        "Name: " + NAME,
        "Version: " + amalgamate.read_version(root),
        "Summary: " + SUMMARY,
        "Author: " + AUTHOR,
        "License: " + LICENSE,
        "Keywords: " + ",".join(KEYWORDS),
    ]
    lines += ["Classifier: " + classifier for classifier in CLASSIFIERS]
    lines.append("Requires-Python: " + REQUIRES_PYTHON)
    readme = os.path.join(root, "README.md")
    if not os.path.isfile(readme):
        return "\n".join(lines) + "\n"
    lines.append("Description-Content-Type: text/markdown; charset=UTF-8")
    with open(readme, encoding="utf-8") as file:
        return "\n".join(lines) + "\n\n" + file.read()


def _write_wheel(root, directory, files):
    """Write a wheel of {path: text} and its .dist-info (PEP 427); returns its base name."""
    stem = "%s-%s" % (NAME, amalgamate.read_version(root))
    info = stem + ".dist-info/"
    scripts = "".join("%s = %s\n" % item for item in sorted(SCRIPTS.items()))
    files = dict(files)
    files[info + "LICENSE"] = amalgamate.read_licence(root)
    files[info + "METADATA"] = _metadata(root)
    files[info + "WHEEL"] = ("Wheel-Version: 1.0\nGenerator: %s in-tree\n"
                             "Root-Is-Purelib: true\nTag: py3-none-any\n" % NAME)
    files[info + "entry_points.txt"] = "[console_scripts]\n" + scripts
    record = []
    for path, text in files.items():
        data = text.encode("utf-8")
        digest = base64.urlsafe_b64encode(hashlib.sha256(data).digest()).rstrip(b"=").decode("ascii")
        record.append("%s,sha256=%s,%d\n" % (path, digest, len(data)))
    files[info + "RECORD"] = "".join(record) + info + "RECORD,,\n"      # last, and without a hash of itself
    name = stem + "-py3-none-any.whl"
    with zipfile.ZipFile(os.path.join(directory, name), "w", zipfile.ZIP_STORED) as wheel:
        for path, text in files.items():
            member = zipfile.ZipInfo(path, ZIP_TIME)
            member.create_system, member.external_attr = 3, 0o100644 << 16      # as on Unix, wherever it is built
            wheel.writestr(member, text.encode("utf-8"))
    return name
