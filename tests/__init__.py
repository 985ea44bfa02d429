"""The tests. They run on the checkout's modules, or, with ONE_FILE=path, on the joined single file.

    python -m unittest                                 # the modules
    ONE_FILE=dist/mockturtle.py python -m unittest     # the joined file

The joined file is loaded once and stands in sys.modules under every project module's name, so that
`from transport.http1 import parse_head` gets the joined one. tests/test_forms.py says which it was.
"""
import importlib.util
import os
import sys

ROOT = os.path.dirname(os.path.dirname(os.path.abspath(__file__)))
ONE_FILE = os.path.abspath(os.environ["ONE_FILE"]) if os.environ.get("ONE_FILE") else None
_NOT_PRODUCT = {"tests", "tools", "bench", "dist", "build", "docs"}


def project_modules():
    """Dotted names of the product's modules and packages, as the checkout has them."""
    names = []
    for folder, folders, files in os.walk(ROOT):
        inside = os.path.relpath(folder, ROOT)
        prefix = "" if inside == "." else inside.replace(os.sep, ".") + "."
        folders[:] = sorted(name for name in folders if name.isidentifier() and not name.startswith("_") and (
            prefix or name not in _NOT_PRODUCT)
            and os.path.exists(os.path.join(folder, name, "__init__.py")))
        for name in sorted(files):
            stem, extension = os.path.splitext(name)
            if extension == ".py" and (stem != "__init__" or prefix):
                names.append(prefix[:-1] if stem == "__init__" else prefix + stem)
    return names


def load_one_file(path):
    """Load the joined file as `mockturtle` and let it stand for all project modules."""
    names = project_modules()
    early = [name for name in names if name in sys.modules]
    if early:
        raise ImportError("ONE_FILE is set, but %s was imported before the tests package: run "
                          "`python -m unittest` or `discover -t . -s tests`" % ", ".join(early))
    spec = importlib.util.spec_from_file_location("mockturtle", path)
    module = importlib.util.module_from_spec(spec)
    sys.modules["mockturtle"] = module
    spec.loader.exec_module(module)
    for name in names:
        sys.modules[name] = module


if ROOT not in sys.path:
    sys.path.insert(0, ROOT)
if ONE_FILE is not None:
    load_one_file(ONE_FILE)
