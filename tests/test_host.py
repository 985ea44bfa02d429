"""The mixins' contract with their host, and the rules that let all modules be joined into one."""
import ast
import builtins
import os
import re
import subprocess
import sys
import unittest
from http.server import BaseHTTPRequestHandler
from importlib.util import find_spec

from api_common import Host
from handler import ROUTES, Handler
from tests import ROOT, project_modules

MIXINS = [cls for cls in Handler.__mro__ if issubclass(cls, Host) and cls not in (Handler, Host)]

# names of Host that BaseHTTPRequestHandler has too, or sets on its instances; meant to be the same thing
SHARED_WITH_THE_BASE = {"headers"}


def own_names(cls):
    return {name for name in vars(cls) if not (name.startswith("__") and name.endswith("__"))}


class HostTest(unittest.TestCase):

    def test_there_are_mixins(self):
        self.assertGreaterEqual(len(MIXINS), 3)

    def test_every_method_of_the_host_is_supplied_by_the_handler(self):
        for name in own_names(Host):
            if callable(getattr(Host, name)):
                with self.subTest(name=name):
                    self.assertIn(name, vars(Handler))

    def test_every_attribute_of_the_host_is_set_by_the_handler_or_its_server(self):
        source = open_source("server") + open_source("handler")
        for name in own_names(Host):
            if not callable(getattr(Host, name)):
                with self.subTest(name=name):
                    self.assertTrue(name in vars(Handler) or '"%s": ' % name in source
                                    or re.search(r"\b(self|handler_class)\.%s = " % name, source), "nobody sets it")

    def test_no_name_of_host_or_mixins_hides_one_of_the_standard_library(self):
        taken = set(dir(BaseHTTPRequestHandler)) | {
            "headers", "requestline", "request_version", "raw_requestline", "rfile", "wfile", "request",
            "client_address", "close_connection", "command", "path", "server", "connection", "timeout"}
        for cls in [Host] + MIXINS:
            with self.subTest(cls=cls.__name__):
                self.assertEqual((own_names(cls) & taken) - SHARED_WITH_THE_BASE, set())

    def test_the_handler_hides_of_the_standard_library_what_it_means_to(self):
        self.assertEqual(own_names(Handler) & set(dir(BaseHTTPRequestHandler)) - {"__init__"},
                         {"protocol_version"})
        self.assertIs(Handler.responses, BaseHTTPRequestHandler.responses, "the status table")
        self.assertIs(Handler.send_error, BaseHTTPRequestHandler.send_error)

    def test_no_two_mixins_define_the_same_name(self):
        owners = {}
        for cls in MIXINS:
            for name in own_names(cls):
                self.assertNotIn(name, owners, "%s and %s" % (cls, owners.get(name)))
                owners[name] = cls

    def test_mixins_hold_no_constructor_and_no_state(self):
        for cls in MIXINS:
            with self.subTest(cls=cls.__name__):
                self.assertNotIn("__init__", vars(cls))
                for name in own_names(cls):
                    self.assertTrue(callable(getattr(cls, name)), name)

    def test_mixins_come_before_the_standard_librarys_class(self):
        order = Handler.__mro__
        for cls in MIXINS:
            self.assertLess(order.index(cls), order.index(BaseHTTPRequestHandler))

    def test_public_names_of_a_mixin_begin_with_its_apis_noun(self):
        for cls in MIXINS:
            for name in own_names(cls):
                self.assertRegex(name.lstrip("_"), r"\A(chats?|conversations|completions|responses|embeddings|moderations|tokens|models|health|control|rules|metrics)_")

    def test_every_route_leads_to_a_method(self):
        for path, methods in ROUTES:
            for method, name in methods.items():
                with self.subTest(path=path, method=method):
                    self.assertTrue(callable(getattr(Handler, name)))

    def test_the_mixins_use_of_self_only_what_host_lists(self):
        listed = own_names(Host)
        for module in ("chat_api", "responses_api", "extras_api"):
            for cls in ast.parse(open_source(module)).body:
                if not isinstance(cls, ast.ClassDef) or not cls.name.endswith("Mixin"):
                    continue
                own = {node.name for node in cls.body if isinstance(node, ast.FunctionDef)}
                used = {node.attr for node in ast.walk(cls) if isinstance(node, ast.Attribute)
                        and isinstance(node.value, ast.Name) and node.value.id == "self"}
                with self.subTest(mixin=cls.name):
                    self.assertEqual(used - own - listed, set())


# ---- modules ----------------------------------------------------------------------------------

def source_path(module):
    path = os.path.join(ROOT, *module.split("."))
    return os.path.join(path, "__init__.py") if os.path.isdir(path) else path + ".py"


def open_source(module):
    with open(source_path(module), encoding="utf-8") as file:
        return file.read()


MODULES = [name for name in project_modules() if os.path.exists(source_path(name))]
TREES = {name: ast.parse(open_source(name)) for name in MODULES}
API_MODULES = {"chat_api", "responses_api", "extras_api", "responses_assembler", "responses_items"}

# a room: the rooms that its modules may import (design.md, "Rooms"); a folder stands for its modules
ROOMS = {
    "api_common": set(), "tokenizer": set(), "tokens": {"tokenizer", "tokens"},
    "backends": {"api_common", "backends", "tokenizer"},
    "faults": {"api_common"}, "fault_room": {"api_common", "faults", "responses_request", "transport"},
    "relayed_runs": {"transport"},
    "runs": {"api_common", "backends", "faults", "observe", "relayed_runs", "state", "transport"}, "state": {"api_common", "state"},
    "transport": {"api_common", "transport", "observe"}, "observe": {"api_common", "observe"},
    "settings": {"api_common", "backends", "faults"},
    "api_tools": {"api_common", "backends"},
    "background": {"api_common", "backends", "transport"},
    "gateway_requests": {"api_common", "backends", "runs"},
    "chat_api": {"api_common", "api_tools", "backends", "gateway_requests", "runs", "state", "stored_chats_api"},
    "conversations_api": {"api_common", "state", "responses_items", "responses_request"},
    "stored_chats_api": {"api_common", "state"},
    "completions_api": {"api_common", "backends", "chat_api", "gateway_requests", "runs"},
    "responses_api": {"api_common", "api_tools", "background", "backends", "runs", "state", "responses_assembler",
                      "responses_items", "responses_request", "responses_socket"},
    "responses_assembler": {"api_common", "backends", "responses_items", "runs"},
    "responses_socket": {"api_common", "state", "transport"},
    "responses_request": {"api_common"}, "responses_items": {"api_common", "backends", "state"},
    "control_api": {"api_common", "faults", "observe", "settings"}, "rate_limits": {"api_common", "faults"}, "rules_api": {"api_common", "backends"}, "embeddings_api": {"api_common", "gateway_requests", "runs"},
    "extras_api": {"api_common", "gateway_requests", "observe", "runs"}, "self_test": set(),
    "unittest_tools": {"api_common", "faults", "observe"},
}


def project_imports(name):
    """[(imported project module, node, whether at top level)] of a module."""
    found = []
    for node in ast.walk(TREES[name]):
        if isinstance(node, ast.ImportFrom) and node.module in MODULES:
            found.append((node.module, node))
        elif isinstance(node, ast.Import):
            found += [(alias.name, node) for alias in node.names if alias.name in MODULES]
    return found


def top_level(tree):
    """The statements of a module, those inside a top-level try included (server.py's)."""
    for node in tree.body:
        yield node
        if isinstance(node, ast.Try):
            yield from node.body


class ModulesTest(unittest.TestCase):

    def test_project_modules_are_imported_by_name_at_top_level(self):
        for name in MODULES:
            top = set(map(id, top_level(TREES[name])))
            for module, node in project_imports(name):
                with self.subTest(module=name, line=node.lineno):
                    self.assertIsInstance(node, ast.ImportFrom)
                    self.assertEqual(node.level, 0)
                    self.assertIn(id(node), top)
                    for alias in node.names:
                        self.assertIsNone(alias.asname)
                        self.assertNotEqual(alias.name, "*")

    def test_only_server_imports_within_a_try(self):
        for name in MODULES:
            tries = [node for node in TREES[name].body if isinstance(node, ast.Try)
                     and any(isinstance(child, ast.ImportFrom) for child in node.body)]
            self.assertTrue(not tries or name == "server", name)

    def test_there_are_no_cycles(self):
        order, open_modules = [], []

        def visit(name):
            self.assertNotIn(name, open_modules, "a cycle: %s" % (open_modules + [name]))
            if name in order:
                return
            open_modules.append(name)
            for module, _ in project_imports(name):
                visit(module)
            order.append(open_modules.pop())
        for name in MODULES:
            visit(name)
        self.assertEqual(sorted(order), sorted(MODULES))

    def test_rooms_import_only_what_the_design_allows(self):
        for name in MODULES:
            room = name.split(".")[0]
            if room in ("server", "handler"):        # where all rooms meet
                continue
            for module, node in project_imports(name):
                with self.subTest(module=name, imports=module):
                    self.assertIn(module.split(".")[0], ROOMS[room])

    def test_the_apis_never_import_each_other(self):
        for name in API_MODULES & set(MODULES):
            for module, _ in project_imports(name):
                self.assertFalse(module in API_MODULES and module.split("_")[0] != name.split("_")[0],
                                 "%s imports %s" % (name, module))

    def test_what_is_imported_exists_and_is_used(self):
        for name in MODULES:
            used = {node.id for node in ast.walk(TREES[name]) if isinstance(node, ast.Name)}
            used |= {node.value.id for node in ast.walk(TREES[name]) if isinstance(node, ast.Attribute)
                     and isinstance(node.value, ast.Name)}
            for node in ast.walk(TREES[name]):
                if isinstance(node, (ast.Import, ast.ImportFrom)):
                    for alias in node.names:
                        with self.subTest(module=name, imports=alias.name):
                            self.assertTrue((alias.asname or alias.name).split(".")[0] in used, "not used")

    def test_a_top_level_name_exists_once_in_the_project_and_is_no_builtin(self):
        owners = {}
        for name in MODULES:
            for node in TREES[name].body:
                names = []
                if isinstance(node, (ast.FunctionDef, ast.ClassDef)):
                    names = [node.name]
                elif isinstance(node, ast.Assign):
                    names = [target.id for target in node.targets if isinstance(target, ast.Name)]
                for found in names:
                    with self.subTest(module=name, name=found):
                        self.assertIn(owners.setdefault(found, name), (name,))
                        self.assertFalse(hasattr(builtins, found))

    def test_nothing_of_python_that_the_oldest_version_lacks(self):
        for name in MODULES:
            with self.subTest(module=name):
                ast.parse(open_source(name), feature_version=(3, 9))

    def test_no_global_no_file_and_no_path_of_this_machine(self):
        for name in MODULES:
            with self.subTest(module=name):
                self.assertFalse([node for node in ast.walk(TREES[name]) if isinstance(node, ast.Global)])
                self.assertNotIn("__file__", open_source(name))
                self.assertNotIn("__all__", open_source(name))

    def test_every_module_says_what_it_is(self):
        for name in MODULES:
            with self.subTest(module=name):
                self.assertTrue(ast.get_docstring(TREES[name]))

    def test_only_the_standard_library_is_imported(self):
        own = {each.split(".")[0] for each in MODULES}
        library = os.path.dirname(os.__file__)
        for name in MODULES:
            for node in ast.walk(TREES[name]):
                roots = []
                if isinstance(node, ast.Import):
                    roots = [alias.name.split(".")[0] for alias in node.names]
                elif isinstance(node, ast.ImportFrom):
                    roots = [node.module.split(".")[0]]
                for root in set(roots) - own:
                    with self.subTest(module=name, imports=root):
                        origin = find_spec(root).origin
                        self.assertTrue(origin in ("built-in", "frozen") or (
                            origin.startswith(library) and "site-packages" not in origin), origin)


# Runs in a process of its own: an audit hook cannot be taken off again.
_IMPORT_PROBE = """
import sys
sys.path.insert(0, sys.argv[1])
sys.dont_write_bytecode = True
import argparse, ast, gettext, hashlib, hmac, http.server, json, os, random, select, selectors, signal, socket, threading
import email.utils, socketserver, shutil
seen = []
def hook(event, args):
    if event == "open" and str(args[0]).endswith((".py", ".pyc")):
        return
    if event.split(".")[0] in ("open", "socket", "subprocess", "signal", "_thread") or event in (
            "os.putenv", "os.system", "os.mkdir", "os.rename", "os.remove", "os.fork"):
        seen.append((event, repr(args)[:80]))
import importlib
sys.addaudithook(hook)
for name in sys.argv[2:]:
    importlib.import_module(name)
threads = threading.active_count()
print([entry for entry in seen if not any(word in entry[1] for word in (".so", "__pycache__"))], threads)
"""


class ImportTest(unittest.TestCase):

    def test_importing_all_modules_starts_no_thread_and_opens_nothing(self):
        done = subprocess.run([sys.executable, "-c", _IMPORT_PROBE, ROOT] + MODULES, stdout=subprocess.PIPE,
                              stderr=subprocess.PIPE, timeout=60)
        self.assertEqual((done.stdout.decode().strip(), done.stderr.decode()), ("[] 1", ""))

    def test_the_server_starts_without_ssl_and_sqlite(self):
        code = ("import sys; sys.path.insert(0, sys.argv[1]); sys.modules.update(dict.fromkeys("
                "('ssl', '_ssl', 'sqlite3', '_sqlite3')));"
                "import server; print(server.main.__name__)")
        done = subprocess.run([sys.executable, "-c", code, ROOT], stdout=subprocess.PIPE, stderr=subprocess.PIPE,
                              timeout=60)
        self.assertEqual((done.stdout.decode().strip(), done.stderr.decode()), ("main", ""))


if __name__ == "__main__":
    unittest.main()
