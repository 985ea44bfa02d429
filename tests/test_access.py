"""Who may ask a server that keeps state: Host and Origin, with and without a key."""
import os
import shutil
import tempfile
import unittest

from tests.support import LiveServerTest, every_form


@every_form
class GuardTest(LiveServerTest):

    def start_on_disk(self, **settings):
        folder = tempfile.mkdtemp()
        self.addCleanup(shutil.rmtree, folder)
        return self.start_server(store="sqlite:" + os.path.join(folder, "store.db"), **settings)

    def status(self, host):
        client = self.connect()
        return client.request("GET", "/v1/models", headers={"Host": host}).status

    def allowed_origin(self, origin="http://page.example"):
        answer = self.request("GET", "/v1/models", headers={"Origin": origin})
        return answer.headers.get("access-control-allow-origin")

    def test_with_a_store_on_disk_only_loopback_names_are_answered(self):
        self.start_on_disk()
        for host, status in (("localhost", 200), ("LOCALHOST:80", 200), ("127.0.0.1:8000", 200), ("[::1]:8000", 200),
                             ("[::1]", 200), ("evil.example", 403), ("evil.example:8000", 403), ("localhost.evil.example", 403),
                             ("127.0.0.1.evil.example:80", 403), ("", 403)):
            with self.subTest(host=host):
                self.assertEqual(self.status(host), status)

    def test_a_name_that_was_allowed_is_answered(self):
        self.start_on_disk(allow_host=("box.lab",))
        self.assertEqual((self.status("box.lab:8000"), self.status("box.lab"), self.status("other.lab")), (200, 200, 403))

    def test_in_memory_any_name_is_answered_and_any_origin(self):
        self.assertEqual(self.status("evil.example"), 200)
        self.assertEqual(self.allowed_origin(), "http://page.example")

    def test_with_a_key_any_name_may_try(self):
        self.start_on_disk(api_key=("secret",))
        self.assertEqual(self.status("evil.example"), 401, "the key is what guards it")

    def test_cors_is_off_with_a_store_on_disk_and_no_key(self):
        self.start_on_disk()
        self.assertIsNone(self.allowed_origin())

    def test_cors_is_on_for_origins_that_were_named(self):
        self.start_on_disk(cors_origin=("http://page.example",))
        self.assertEqual(self.allowed_origin(), "http://page.example")
        self.assertIsNone(self.allowed_origin("http://other.example"))


if __name__ == "__main__":
    unittest.main()
