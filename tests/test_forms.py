"""Which form is under test: the checkout's modules, or the joined file that ONE_FILE names."""
import os
import sys
import unittest

from tests import ONE_FILE, ROOT, project_modules
from tests.support import MockTurtleServer


class FormTest(unittest.TestCase):

    def test_the_form_is_the_one_that_the_environment_asks_for(self):
        self.assertEqual(ONE_FILE, os.path.abspath(os.environ["ONE_FILE"])
                         if os.environ.get("ONE_FILE") else None)

    def test_every_loaded_project_module_is_of_that_form(self):
        for name in project_modules():
            module = sys.modules.get(name)
            if module is None:
                self.assertIsNone(ONE_FILE, "%s is missing from the joined form" % name)
                continue
            with self.subTest(module=name):
                if ONE_FILE is not None:
                    expected = ONE_FILE
                else:
                    expected = os.path.join(ROOT, *name.split("."))
                    expected += os.sep + "__init__.py" if os.path.isdir(expected) else ".py"
                self.assertTrue(os.path.samefile(module.__file__, expected), module.__file__)

    def test_the_server_of_the_live_tests_is_of_that_form(self):
        self.assertEqual(MockTurtleServer.__module__, "server" if ONE_FILE is None else "mockturtle")
        self.assertIsInstance(MockTurtleServer, type)

    def test_the_product_has_its_rooms(self):
        self.assertLessEqual({"api_common", "server", "backends.contract", "transport.http1", "transport"},
                             set(project_modules()))
