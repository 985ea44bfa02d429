"""Checks of the files themselves, one line each, and last "N passed, M failed".

    python .ci/checks.py PYTHON39 PYTHON313

Run it on Python 3.10 or newer (it needs sys.stdlib_module_names) in a checkout: it looks at what git knows and at new
files that it does not ignore.
"""

import ast
import json
import os
import re
import subprocess
import sys

ROOT = os.path.dirname(os.path.dirname(os.path.abspath(__file__)))
TEST_COMMAND = "python -m unittest discover -t . -s tests"

# Outside the product: who may import what beyond the standard library, behind a try.
DEV_ONLY = {"tests": {"hypothesis", "hypothesis_jsonschema", "jsonschema", "referencing"}}

# Written so that this file does not match itself.
MACHINE_PATHS = r"(^|[^A-Za-z0-9_.~/-])/(work|root|opt|Users|home/[a-z]+)[/]"
PINNED = r"[A-Za-z0-9._-]+==[0-9][^\s*]*( --hash=sha256:[0-9a-f]{64})?"  # a line of a requirements file
REGISTRY_HOSTS = r"pypi[.]org|pythonhosted[.]org|npmjs[.](org|com)|yarnpkg[.]com|registry[.]npm|anaconda[.]org|proxy[.]golang"


def run(*command):
    """A command's status and output, in the checkout."""
    done = subprocess.run(
        command, cwd=ROOT, stdin=subprocess.DEVNULL, stdout=subprocess.PIPE, stderr=subprocess.STDOUT, timeout=60
    )
    return done.returncode, done.stdout.decode("utf-8", "replace")


def read(name):
    """A text file of the checkout."""
    with open(os.path.join(ROOT, name), encoding="utf-8") as file:
        return file.read()


def list_files():
    """The checkout's files, ignored ones apart."""
    status, out = run("git", "ls-files", "--cached", "--others", "--exclude-standard")
    if status:
        raise AssertionError("git ls-files: " + out)
    return sorted(name for name in set(out.split("\n")) if name and os.path.isfile(os.path.join(ROOT, name)))


def room(name):
    """The top folder of a file; '' for those at the top."""
    return name.split("/")[0] if "/" in name else ""


def is_product(name):
    """Whether a file is part of what users run."""
    return name.endswith(".py") and room(name) not in ("tests", "tools", "bench", "docs", ".ci")


def find_imports(name):
    """[(line, top-level module)] of all imports of a file, wherever they stand."""
    found = []
    for node in ast.walk(ast.parse(read(name), name)):
        if isinstance(node, ast.Import):
            found += [(node.lineno, alias.name.split(".")[0]) for alias in node.names]
        elif isinstance(node, ast.ImportFrom):
            found.append((node.lineno, (node.module or ".").split(".")[0] if not node.level else "."))
    return found


def foreign_imports(names, files, allowed=frozenset()):
    """The imports that are neither standard library nor this project's."""
    own = {re.sub(r"\.py$", "", file.split("/")[0]) for file in files if file.endswith(".py")}
    own |= {re.sub(r"\.py$", "", os.path.basename(file)) for file in files if room(file) in ("tools", "tests")}
    known = set(sys.stdlib_module_names) | own | allowed
    return ["%s:%d imports %s" % (name, line, module)
            for name in names for line, module in find_imports(name) if module not in known]


# ---- the checks: each gives a list of what is wrong --------------------------------------------


def product_is_stdlib_only(files):
    names = [name for name in files if is_product(name)]
    if len(names) < 10 or "server.py" not in names:
        return ["only %d product files found" % len(names)]
    return foreign_imports(names, [name for name in files if room(name) not in ("tests", "tools", "bench", ".ci")])


def others_are_stdlib_only(files):
    bad = []
    for folder in ("tests", "tools", "bench"):
        names = [name for name in files if room(name) == folder and name.endswith(".py")]
        if not names:
            bad.append("no file in %s/" % folder)
        bad += foreign_imports(names, files, DEV_ONLY.get(folder, frozenset()))
    return bad


def compiles(files, python):
    """All files but the CI's own, with warnings as errors (a bad escape is a SyntaxWarning)."""
    names = [name for name in files if name.endswith(".py") and room(name) != ".ci"]
    code = (
        "import sys\n"
        "for name in sys.argv[1:]:\n"
        "    with open(name, encoding='utf-8') as file:\n"
        "        compile(file.read(), name, 'exec')\n"
    )
    status, out = run(python, "-W", "error", "-c", code, *names)
    return [out[-1500:]] if status else []


def search(pattern, files):
    """What matches in the text files, as 'file:line: text'."""
    found = []
    for name in files:
        try:
            text = read(name)
        except UnicodeDecodeError:
            continue
        for number, line in enumerate(text.split("\n"), 1):
            if re.search(pattern, line):
                found.append("%s:%d: %s" % (name, number, line.strip()[:160]))
    return found


def no_machine_path(files):
    own = re.escape(os.path.expanduser("~")) if os.path.expanduser("~") not in ("/", "~") else "(?!)"
    return search("%s|%s/" % (MACHINE_PATHS, own), files)


def no_registry_host(files):
    return search(REGISTRY_HOSTS, files)


def no_big_or_built_file(files):
    bad = [name for name in files if re.search(r"(^|/)(dist|build|__pycache__|node_modules)/|\.(pyc|whl)$", name)]
    return bad + ["%s has %d bytes" % (name, size) for name, size in
                  ((name, os.path.getsize(os.path.join(ROOT, name))) for name in files) if size > 2 << 20]


def readme_has_flags(files):
    status, out = run(sys.executable, "server.py", "--help")
    flags = sorted(set(re.findall(r"--[a-z][a-z-]*[a-z]", out)) - {"--help"})
    if status or len(flags) < 10:
        return ["--help gave status %d and %d flags" % (status, len(flags))]
    text = read("README.md")
    return ["README.md does not mention " + flag for flag in flags
            if not re.search(re.escape(flag) + r"(?![a-z-])", text)]


def readme_has_the_test_command(files):
    bad = []
    if not re.search(r"^[^\n]*%s\b" % re.escape(TEST_COMMAND), read("README.md"), re.MULTILINE):
        bad.append("README.md does not have: " + TEST_COMMAND)
    if TEST_COMMAND[len("python "):] not in read(".ci/run"):
        bad.append(".ci/run does not run: " + TEST_COMMAND)
    return bad


def versions_agree(files):
    tree = ast.parse(read("api_common.py"))
    version = next(ast.literal_eval(node.value) for node in tree.body if isinstance(node, ast.Assign)
                   and getattr(node.targets[0], "id", None) == "__version__")
    top = re.search(r"^## \[?v?([0-9][^\s\]]*)", read("CHANGELOG.md"), re.MULTILINE)
    bad = []
    if top is None or top.group(1) != version:
        bad.append("CHANGELOG.md begins with %s, __version__ is %s" % (top and top.group(1), version))
    status, out = run(sys.executable, "server.py", "--version")
    if status or out.split() != ["mockturtle", version]:
        bad.append("--version prints %r" % out)
    return bad


def tools_are_pinned(files):
    bad = []
    for folder in (".ci", ".ci/agents"):
        for pattern in (r"requirements-.*\.txt", r"package\.json"):
            if not any(os.path.dirname(name) == folder and re.fullmatch(pattern, os.path.basename(name)) for name in files):
                bad.append("%s: no file is named %s" % (folder, pattern))
    for name in files:
        if room(name) != ".ci":
            continue
        if re.fullmatch(r"requirements.*\.txt", os.path.basename(name)):
            lines = [line for line in read(name).split("\n") if line and not line.startswith("#")]
            bad += ["%s: %s" % (name, line) for line in lines if not re.fullmatch(PINNED, line)]
            if not lines:
                bad.append("%s: nothing in it" % name)
        elif os.path.basename(name) == "package.json":
            package = json.loads(read(name))
            pairs = [pair for key, value in package.items() if key.lower().endswith("dependencies") for pair in value.items()]
            bad += ["%s: %s %s" % (name, *pair) for pair in pairs if not re.fullmatch(r"[0-9]+(\.[0-9]+)+", pair[1])]
            if not pairs:
                bad.append("%s: nothing in it" % name)
    return bad


def needed_files_are_there(files):
    return [name for name in ("README.md", "LICENSE", "CHANGELOG.md", "CONTRIBUTING.md", "tests/data/NOTICE")
            if name not in files]


def main():
    """Run the checks, return the exit status."""
    python39, python313 = sys.argv[1:]
    files = list_files()
    passed = failed = 0
    for title, wrong in (
        ("the product imports the standard library only", product_is_stdlib_only),
        ("tests, tools and bench import the standard library only, the packages of DEV_ONLY apart", others_are_stdlib_only),
        ("everything compiles on Python 3.9 without a warning", lambda files: compiles(files, python39)),
        ("everything compiles on Python 3.13 without a warning", lambda files: compiles(files, python313)),
        ("no path of a machine", no_machine_path),
        ("no host name of a package registry", no_registry_host),
        ("nothing built and nothing over 2 MB", no_big_or_built_file),
        ("README, LICENSE, CHANGELOG, CONTRIBUTING and NOTICE are there", needed_files_are_there),
        ("the README mentions every flag of --help", readme_has_flags),
        ("the README's test command is the one that runs here", readme_has_the_test_command),
        ("CHANGELOG, __version__ and --version agree", versions_agree),
        ("the tools are pinned", tools_are_pinned),
    ):
        try:
            found = wrong(files)
        except (OSError, AssertionError) as error:
            found = [str(error)]
        passed, failed = (passed, failed + 1) if found else (passed + 1, failed)
        print("%s %s" % ("FAIL" if found else "ok  ", title), flush=True)
        for text in found[:20]:
            print("     " + text)
    print("%d passed, %d failed" % (passed, failed))
    return 1 if failed else 0


if __name__ == "__main__":
    sys.exit(main())
