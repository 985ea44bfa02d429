"""Fetch a source package by pip, unbuilt, and unpack it:  python .ci/fetch_sdist.py REQUIREMENTS DIR

REQUIREMENTS pins one package and its sha256; the last line printed is the folder in DIR where it was unpacked. pip
asks where it is set to ask. `pip download` wants a source package's metadata, for which it would install and run the
package's build backend: here it finds, under that backend's name, a stub that hands out the package's own PKG-INFO.
Nothing of the package is run.
"""

import os
import subprocess
import sys
import tarfile
import tempfile

BACKEND = "hatchling.build"  # jsonschema's; with another one pip says that it cannot be imported
STUB = '''\
import os
import shutil
from email.parser import BytesHeaderParser


def get_requires_for_build_wheel(config_settings=None):
    return []


def prepare_metadata_for_build_wheel(directory, config_settings=None):
    with open("PKG-INFO", "rb") as file:
        fields = BytesHeaderParser().parse(file)
    name = "%s-%s.dist-info" % (fields["Name"].replace("-", "_"), fields["Version"])
    os.mkdir(os.path.join(directory, name))
    shutil.copy("PKG-INFO", os.path.join(directory, name, "METADATA"))
    return name
'''


def write_stub(folder):
    """Put the stub where `import BACKEND` finds it when folder is on the path."""
    package, module = BACKEND.split(".")
    os.mkdir(os.path.join(folder, package))
    with open(os.path.join(folder, package, "__init__.py"), "w", encoding="utf-8"):
        pass
    with open(os.path.join(folder, package, module + ".py"), "w", encoding="utf-8") as file:
        file.write(STUB)


def unpack(archive, folder):
    """Unpack a source package of one top folder; its path. Refuses members that would land elsewhere."""
    with tarfile.open(archive) as tar:
        if hasattr(tarfile, "data_filter"):
            tar.extraction_filter = tarfile.data_filter
        members = tar.getmembers()
        tops = {member.name.split("/")[0] for member in members}
        if len(tops) != 1 or any(".." in member.name.split("/") or member.name.startswith("/") for member in members):
            raise ValueError("%s has not one top folder" % archive)
        tar.extractall(folder, [member for member in members if member.isfile() or member.isdir()])
    return os.path.join(folder, tops.pop())


def main(arguments):
    """Fetch and unpack, return the exit status."""
    requirements, folder = arguments
    with tempfile.TemporaryDirectory() as work:
        write_stub(work)
        got = os.path.join(work, "got")
        done = subprocess.run(
            [sys.executable, "-m", "pip", "download", "--quiet", "--no-deps", "--no-binary", ":all:", "--require-hashes",
             "--no-build-isolation", "--dest", got, "--requirement", requirements],
            env=dict(os.environ, PYTHONPATH=work), stdin=subprocess.DEVNULL, timeout=300,
        )
        if done.returncode:
            return done.returncode
        [name] = os.listdir(got)
        print(unpack(os.path.join(got, name), folder))
    return 0


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
