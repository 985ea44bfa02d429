#!/usr/bin/env python3
"""Join the modules of the project into one plain Python file.

    python tools/amalgamate.py [--out FILE] [--compile]

In come `server.py` and every project module that it imports, in folders too; out comes `dist/mockturtle.py`, which
does what the modules do. Nothing is imported or run on the way: `ast` decides what goes where, and the text is moved
line by line, so that comments and layout survive. What would mean something else in one file is refused, with the
module and the line.

How: follow `from <module> import name` from the entry, depth first; of each module keep everything except its
docstring (it becomes a banner), its imports and its `__main__` guard; put one sorted block of standard-library imports
on top and the entry's guard at the end. No date and no path go in, so equal sources give equal bytes on any Python.
"""

import argparse
import ast
import builtins
import dis
import hashlib
import os
import py_compile
import re
import sys
import textwrap
import types

NAME = "mockturtle"
ENTRY = "server"
VERSION_MODULE = "api_common"
SUMMARY = "A mock server for the OpenAI Chat Completions and Responses APIs with timed, repeatable answers"
ROOT = os.path.dirname(os.path.dirname(os.path.abspath(__file__)))

NEVER_JOINED = {"tools", "bench", "tests"}

# These differ between a module and the joined file, or are missing when a file is read from stdin.
MODULE_OWN_NAMES = {"__file__", "__name__", "__package__", "__spec__", "__doc__", "__loader__", "__cached__",
                    "__path__", "__annotations__", "globals"}

# One list for every Python: what is a builtin somewhere (newer versions, `site`) is refused everywhere.
BUILTINS = set(dir(builtins)) - {"_"} | {
    "aiter", "anext", "EncodingWarning", "BaseExceptionGroup", "ExceptionGroup", "PythonFinalizationError",
    "WindowsError", "copyright", "credits", "license", "exit", "quit", "help"}

# Reading a name by one of these looks beyond the function; see `_names_read`.
GLOBAL_READS = {"LOAD_NAME", "LOAD_GLOBAL", "LOAD_FROM_DICT_OR_GLOBALS"}

GUARD = ast.dump(ast.parse('__name__ == "__main__"', mode="eval").body)

BANNER = "# " + "=" * 98

HEADER = '''\
#!/usr/bin/env python3
"""{name} {version}: {summary}.

This is the whole server in one file: it needs Python 3.9+ and nothing else.

    python3 {name}.py --port 8000
    python3 {name}.py --help

It was joined from the modules below by tools/amalgamate.py: edit the sources, not this file. The banner above a piece
of code names its module. The sha256 of each source, in the order in which they stand here:

{sources}
"""

# /// script
# requires-python = ">=3.9"
# dependencies = []
# ///

{licence}
'''


class JoinError(Exception):
    """The sources cannot be joined as they are; the text names module and line."""


class Module:
    """One parsed source, sorted into what is dropped, hoisted, followed and kept.

    kept: statements that stay verbatim; removed: those that do not; guard: the `__main__` one, or None.
    hoisted: [(binds, module, name or None, asname or None, line)], one for each standard-library import.
    needs: [(project module, name, line)]. defined: {name: line} of what the kept statements bind at top level.
    """

    def __init__(self, root, name, is_entry):
        self.root, self.name, self.is_entry = root, name, is_entry
        self.file = name.replace(".", "/") + ".py"
        self.text, self.tree, self.code = _parse(root, self.file)
        self.lines = self.text.split("\n")      # not splitlines(): that one breaks at form feeds and U+2028 too
        self.docstring, self.guard, self.futures = None, None, set()
        self.kept, self.removed, self.hoisted, self.needs = [], [], [], []
        for index, statement in enumerate(self.tree.body):
            self._sort(index, statement)
        for statement in self.removed:
            self._check_alone_on_its_lines(statement)
        for statement in self.kept + ([self.guard] if self.guard else []):
            self._check_inside(statement)
        # A guard binds at top level too; only the entry's is kept.
        self.defined = _names_bound(self.kept + ([self.guard] if self.guard and is_entry else []))

    def refuse(self, line, message):
        raise JoinError("%s:%d: %s" % (self.file, line, message))

    def _sort(self, index, statement):
        if index == 0 and _is_docstring(statement):
            self.docstring = statement.value.value
        elif isinstance(statement, ast.ImportFrom) and statement.module == "__future__":
            self.futures.update(alias.name for alias in statement.names)
        elif isinstance(statement, (ast.Import, ast.ImportFrom)):
            self._take_import(statement)
        elif _is_guard(statement):
            if statement is not self.tree.body[-1] or statement.orelse:
                self.refuse(statement.lineno, "the __main__ guard must be the last statement and have no else: "
                                              "it runs at the end of the joined file")
            self.guard = statement
        elif self.is_entry and self._is_guarded_import(statement):
            # Prints a clear line when the entry was copied alone. The joined file is alone and complete.
            for inner in statement.body:
                self._take_import(inner)
        else:
            self.kept.append(statement)
            return
        self.removed.append(statement)

    def _is_guarded_import(self, statement):
        """True for `try:` with nothing but project imports inside, and a handler for ImportError."""
        if not isinstance(statement, ast.Try) or statement.orelse or statement.finalbody:
            return False
        caught = {node.id for handler in statement.handlers if handler.type
                  for node in ast.walk(handler.type) if isinstance(node, ast.Name)}
        return bool(caught & {"ImportError", "ModuleNotFoundError"}) and all(
            isinstance(inner, ast.ImportFrom) and self._project_imports(inner) for inner in statement.body)

    def _project_imports(self, statement):
        """Return the project modules that an import statement names."""
        if isinstance(statement, ast.ImportFrom):
            names = [statement.module or ""]
        else:
            names = [alias.name for alias in statement.names]
        return [name for name in names if _is_project(self.root, name)]

    def _take_import(self, statement):
        """File a top-level import under needs (project) or hoisted (standard library)."""
        self._check_import_form(statement)
        project = self._project_imports(statement)
        if project and isinstance(statement, ast.Import):
            self.refuse(statement.lineno, "write `from %s import name`: the module itself is no name in the joined file"
                        % project[0])
        for alias in statement.names:
            if project and alias.asname:
                self.refuse(statement.lineno, "no `as` in a project import: the joined file has `%s` only" % alias.name)
            if project:
                self.needs.append((statement.module, alias.name, statement.lineno))
                continue
            module = alias.name if isinstance(statement, ast.Import) else statement.module
            known = getattr(sys, "stdlib_module_names", None)    # 3.10+; the newer Pythons in CI are check enough
            if known and module.split(".")[0] not in known:
                self.refuse(statement.lineno, "%s is neither a project module nor in the standard library" % module)
            if isinstance(statement, ast.Import):
                binds = alias.asname or alias.name.split(".")[0]
                self.hoisted.append((binds, alias.name, None, alias.asname, statement.lineno))
            else:
                binds = alias.asname or alias.name
                self.hoisted.append((binds, module, alias.name, alias.asname, statement.lineno))

    def _check_import_form(self, statement):
        if isinstance(statement, ast.ImportFrom) and statement.level:
            self.refuse(statement.lineno, "relative import: the joined file is no package")
        if any(alias.name == "*" for alias in statement.names):
            self.refuse(statement.lineno, "`import *`: which names it binds cannot be seen")

    def _check_inside(self, statement):
        """Refuse what would mean something else, or nothing, in the joined file."""
        allowed = set(map(id, ast.walk(statement.test))) if statement is self.guard else ()
        for node in ast.walk(statement):
            if isinstance(node, (ast.Import, ast.ImportFrom)):
                self._check_import_form(node)
                for name in self._project_imports(node):
                    self.refuse(node.lineno, "import of project module %s below top level: it would dangle" % name)
            elif isinstance(node, ast.Global):
                self.refuse(node.lineno, "`global %s`: importers keep the old value when split and see the new one "
                                         "when joined" % ", ".join(node.names))
            elif isinstance(node, ast.Name) and node.id in MODULE_OWN_NAMES and id(node) not in allowed:
                self.refuse(node.lineno, "%s has another value, or none, in the joined file" % node.id)

    def _check_alone_on_its_lines(self, statement):
        for other in self.tree.body:
            if other is not statement and (other.lineno <= statement.end_lineno
                                           and statement.lineno <= other.end_lineno):
                self.refuse(statement.lineno, "shares its line with another statement: cutting one would cut both")

    def body(self):
        """Return the kept text: without the removed statements, the comments on top of them, the blanks below."""
        gone = {1} if self.lines[0].startswith("#!") else set()
        ends = {statement.end_lineno for statement in self.tree.body}
        for statement in self.removed:
            first, last = statement.lineno, statement.end_lineno
            # Only up to the statement before: its last line may be the end of a string and look like a comment.
            while first - 1 > 0 and first - 1 not in ends and self.lines[first - 2].startswith("#"):
                first -= 1
            while last < len(self.lines) and not self.lines[last].strip():
                last += 1
            gone.update(range(first, last + 1))
        kept = [line for number, line in enumerate(self.lines, 1) if number not in gone]
        while kept and not kept[-1].strip():
            kept.pop()
        while kept and not kept[0].strip():
            kept.pop(0)
        return "\n".join(kept)

    def banner(self):
        """Return the comment that opens this module: its file and its docstring."""
        text = [self.file] + ([""] + _unindent(self.docstring) if self.docstring else [])
        return "\n".join([BANNER] + [("# " + line).rstrip() for line in text] + [BANNER])

    def guard_text(self):
        return "\n".join(self.lines[self.guard.lineno - 1:self.guard.end_lineno])


def read_version(root, module=VERSION_MODULE):
    """Return `__version__` of a module as it is written there, without importing it."""
    for statement in _parse(root, module + ".py")[1].body:
        if (isinstance(statement, ast.Assign) and isinstance(statement.targets[0], ast.Name)
                and statement.targets[0].id == "__version__"):
            version = getattr(statement.value, "value", None)
            # Only the normal form of PEP 440, so that file names can hold it as it is.
            if not isinstance(version, str) or not re.fullmatch(
                    r"\d+(\.\d+)*((a|b|rc)\d+)?(\.post\d+)?(\.dev\d+)?", version):
                raise JoinError("%s.py:%d: __version__ must be a plain version string" % (module, statement.lineno))
            return version
    raise JoinError("%s.py:1: no __version__ at top level" % module)


def read_licence(root):
    try:
        with open(os.path.join(root, "LICENSE"), encoding="utf-8") as file:
            return file.read()
    except FileNotFoundError:
        raise JoinError("LICENSE:1: missing; its text belongs into the joined file") from None


def collect(root, entry=ENTRY):
    """Return {name: Module} of the entry and all that it needs, in dependency order, the entry last."""
    done, trail = {}, []

    def visit(name):
        trail.append(name)
        module = Module(root, name, is_entry=name == entry)
        for needed, _, line in module.needs:
            if needed in trail:
                path = trail[trail.index(needed):] + [needed]
                module.refuse(line, "import cycle: " + " -> ".join(path))
            if needed not in done:
                _check_place(root, module, needed, line)
                visit(needed)
        done[trail.pop()] = module

    visit(entry)
    return done


def join(root, entry=ENTRY, name=NAME):
    """Return the text of the joined file; raises JoinError when the sources do not allow it."""
    modules = list(collect(root, entry).values())
    _check_futures(modules)
    _check_names(modules)
    _check_names_from_siblings(modules)
    sources = "\n".join("    %s  %s" % (hashlib.sha256(module.text.encode("utf-8")).hexdigest(), module.file)
                        for module in modules)
    licence = "\n".join(("# " + line).rstrip() for line in read_licence(root).strip("\n").split("\n"))
    head = HEADER.format(name=name, version=read_version(root), summary=SUMMARY, sources=sources, licence=licence)
    if modules[-1].futures:
        head += "\nfrom __future__ import %s\n" % ", ".join(sorted(modules[-1].futures))
    head += "\n" + _render_imports(modules)
    parts = [head.rstrip("\n")]
    for module in modules:
        parts.append(module.banner() + "\n\n" + module.body() if module.body() else module.banner())
    if modules[-1].guard:
        parts.append(modules[-1].guard_text())
    text = "\n\n\n".join(parts) + "\n"
    _self_check(text, modules)
    return text


def _parse(root, file):
    try:
        with open(os.path.join(root, *file.split("/")), encoding="utf-8") as source:
            text = source.read()
        # feature_version: best effort to refuse what 3.9 cannot read when a newer Python joins.
        tree = ast.parse(text, file, feature_version=(3, 9))
        return text, tree, compile(text, file, "exec", dont_inherit=True)
    except FileNotFoundError:
        raise JoinError("%s:1: no such file" % file) from None
    except (SyntaxError, ValueError) as error:      # ValueError: a NUL byte, or not UTF-8
        line, message = getattr(error, "lineno", None) or 1, getattr(error, "msg", error)
        raise JoinError("%s:%d: %s" % (file, line, message)) from error


def _is_project(root, dotted):
    """True when the first part of a module's name is a file, or a folder with Python files, of the project."""
    first = os.path.join(root, dotted.split(".")[0]) if dotted else ""
    if not first or os.path.isfile(first + ".py"):
        return bool(first)
    return os.path.isdir(first) and any(name.endswith(".py") for name in os.listdir(first))


def _check_place(root, module, needed, line):
    """Refuse a needed module that is not there or not to be joined, and code in the folders on the way to it."""
    parts = needed.split(".")
    if parts[0] in NEVER_JOINED:
        module.refuse(line, "%s/ is never part of the joined file" % parts[0])
    path = os.path.join(root, *parts)
    if os.path.isdir(path):
        module.refuse(line, "%s is a folder: import from the module that defines the name" % needed)
    if not os.path.isfile(path + ".py"):
        module.refuse(line, "there is no module %s" % needed)
    for depth in range(1, len(parts)):
        init = "/".join(parts[:depth]) + "/__init__.py"
        if os.path.isfile(os.path.join(root, init)):
            body = _parse(root, init)[1].body
            for statement in body[1:] if body and _is_docstring(body[0]) else body:
                raise JoinError("%s:%d: a folder's __init__.py may hold a docstring only: its code would be lost"
                                % (init, statement.lineno))


def _is_docstring(statement):
    return (isinstance(statement, ast.Expr) and isinstance(statement.value, ast.Constant)
            and isinstance(statement.value.value, str))


def _is_guard(statement):
    return isinstance(statement, ast.If) and ast.dump(statement.test) == GUARD


class _Binder(ast.NodeVisitor):
    """Collects the names bound in the scope of the visited statements; inner scopes bind nothing out here."""

    def __init__(self):
        self.names = {}

    def bind(self, name, line):
        self.names.setdefault(name, line)

    def visit_definition(self, node):
        self.bind(node.name, node.lineno)

    visit_FunctionDef = visit_AsyncFunctionDef = visit_ClassDef = visit_definition

    def visit_Lambda(self, node):
        pass

    def visit_comprehension_scope(self, node):
        # Its loop variables are its own, but `:=` inside binds outside of it (PEP 572).
        for inner in ast.walk(node):
            if isinstance(inner, ast.NamedExpr):
                self.bind(inner.target.id, inner.lineno)

    visit_ListComp = visit_SetComp = visit_DictComp = visit_GeneratorExp = visit_comprehension_scope

    def visit_Name(self, node):
        if isinstance(node.ctx, ast.Store):
            self.bind(node.id, node.lineno)

    def visit_ExceptHandler(self, node):
        if node.name:       # bound, then deleted: a namesake in another module would be gone
            self.bind(node.name, node.lineno)
        self.generic_visit(node)

    def visit_any_import(self, node):
        for alias in node.names:
            self.bind(alias.asname or alias.name.split(".")[0], node.lineno)

    visit_Import = visit_ImportFrom = visit_any_import


def _names_bound(statements):
    binder = _Binder()
    for statement in statements:
        binder.visit(statement)
    return binder.names


def _check_futures(modules):
    entry = modules[-1]
    for module in modules:
        if module.futures != entry.futures:
            module.refuse(1, "`from __future__` imports %s here and %s in %s: flags hold for the whole file" % (
                sorted(module.futures), sorted(entry.futures), entry.file))


def _check_names(modules):
    """Every top-level name has one meaning in the whole project, and every project import finds its name."""
    owners, meanings = {}, {}
    for module in modules:
        for name, line in module.defined.items():
            if name.startswith("__") and name.endswith("__") and name != "__version__":
                module.refuse(line, "%s at top level would speak for the whole joined file" % name)
            if name in BUILTINS:
                module.refuse(line, "%s is a builtin: every other module would get this one" % name)
            if name in owners:
                module.refuse(line, "%s is bound in %s:%d too: the last one would win for everybody"
                              % (name, owners[name][0].file, owners[name][1]))
            owners[name] = module, line
    for module in modules:
        for binds, source, name, asname, line in module.hoisted:
            if binds in BUILTINS:
                module.refuse(line, "%s is a builtin: every other module would get this one" % binds)
            if binds in owners:
                module.refuse(line, "%s is imported here and defined in %s:%d"
                              % (binds, owners[binds][0].file, owners[binds][1]))
            # `import http.client` and `import http.server` both bind `http`, the same thing.
            meaning = (source, name) if name or asname else (binds, None)
            first, where = meanings.setdefault(binds, (meaning, "%s:%d" % (module.file, line)))
            if meaning != first:
                module.refuse(line, "%s means something else in %s" % (binds, where))
        for source, name, line in module.needs:
            if name not in owners or owners[name][0].name != source:
                module.refuse(line, "%s does not define %s at top level" % (source, name))


def _names_read(code):
    """Yield the names that compiled code, and code in it, looks up outside of functions.

    Byte code is exact where a walk over `ast` would have to rebuild Python's scope rules. A class body reads its
    own names in the same way, so those that it stores itself do not count.
    """
    steps = list(dis.get_instructions(code))
    own = {step.argval for step in steps if step.opname == "STORE_NAME"}
    yield from {step.argval for step in steps if step.opname in GLOBAL_READS} - own
    for constant in code.co_consts:
        if isinstance(constant, types.CodeType):
            yield from _names_read(constant)


def _check_names_from_siblings(modules):
    """Refuse a name that a module only has because a sibling does: it works joined and fails split."""
    everywhere = {name for module in modules for name in list(module.defined) + [item[0] for item in module.hoisted]}
    for module in modules:
        here = _names_bound(module.tree.body)
        for name in sorted(set(_names_read(module.code)) & everywhere - set(here)):
            line = min((node.lineno for node in ast.walk(module.tree)
                        if isinstance(node, ast.Name) and node.id == name), default=1)
            module.refuse(line, "%s is used here but neither defined nor imported" % name)


def _render_imports(modules):
    """Return the hoisted imports: plain ones, then `from` ones with their names merged, all sorted."""
    plain, merged = set(), {}
    for module in modules:
        for _, source, name, asname, _ in module.hoisted:
            suffix = " as " + asname if asname else ""
            if name is None:
                plain.add("import " + source + suffix)
            else:
                merged.setdefault(source, set()).add(name + suffix)
    lines = sorted(plain)
    for source in sorted(merged):
        line = "from %s import %s" % (source, ", ".join(sorted(merged[source])))
        if len(line) > 120:
            names = textwrap.fill(", ".join(sorted(merged[source])), 116, break_long_words=False)
            line = "from %s import (\n%s)" % (source, textwrap.indent(names, "    "))
        lines.append(line)
    return "\n".join(lines) + "\n"


def _unindent(docstring):
    """Return the lines of a docstring without its indentation (`inspect.cleandoc` differs between versions)."""
    first, *rest = docstring.strip().split("\n")
    margin = min((len(line) - len(line.lstrip(" ")) for line in rest if line.strip()), default=0)
    return [first] + [line[margin:].rstrip() for line in rest]


def _self_check(text, modules):
    """Compare the joined file with its sources, statement by statement; catches any damage to a string too."""
    expected = [(module, statement) for module in modules for statement in module.kept]
    expected += [(modules[-1], modules[-1].guard)] if modules[-1].guard else []
    try:
        joined = ast.parse(text).body
        compile(text, NAME + ".py", "exec", dont_inherit=True)
    except (SyntaxError, ValueError) as error:
        raise JoinError("self-check: the joined file does not compile: %s" % error) from error
    start = len(joined) - len(expected)
    if start < 1 or not all(isinstance(node, (ast.Import, ast.ImportFrom)) for node in joined[1:start]):
        raise JoinError("self-check: the joined file has another number of statements than its sources")
    for (module, statement), found in zip(expected, joined[start:]):
        if ast.dump(statement) != ast.dump(found):
            module.refuse(statement.lineno, "self-check: line %d of the joined file differs" % found.lineno)


def main(arguments=None):
    parser = argparse.ArgumentParser(description="Join the project's modules into one Python file.")
    parser.add_argument("--out", default=os.path.join(ROOT, "dist", NAME + ".py"), help="where to write it")
    parser.add_argument("--compile", action="store_true",
                        help="also write its byte code, for this version of Python, to __pycache__ beside it")
    options = parser.parse_args(arguments)
    try:
        text = join(ROOT)
    except JoinError as error:
        print("amalgamate: %s" % error, file=sys.stderr)
        return 1
    os.makedirs(os.path.dirname(os.path.abspath(options.out)), exist_ok=True)
    with open(options.out, "w", encoding="utf-8", newline="\n") as file:
        file.write(text)
    os.chmod(options.out, 0o755)
    digest = hashlib.sha256(text.encode("utf-8")).hexdigest()
    print("%s  %d lines  sha256 %s" % (options.out, text.count("\n"), digest))
    if options.compile:
        # Python takes byte code for `import` and `-m`, never for a script given by its path.
        print("%s  (taken by `python -m %s` in that folder)" % (py_compile.compile(options.out, doraise=True), NAME))
    return 0


if __name__ == "__main__":
    sys.exit(main())
