"""The store on disk: the contract of all stores, and what a file adds."""
import os
import shutil
import tempfile
import time
import unittest

from state.sqlite import SqliteStore
from tests.test_store import DAY_S, StoreContract


class SqliteStoreTest(StoreContract, unittest.TestCase):

    def make_store(self, max_responses=10000, max_bytes=1 << 28, ttl_s=DAY_S, wall=None):
        folder = tempfile.mkdtemp()
        self.addCleanup(shutil.rmtree, folder)
        return SqliteStore(os.path.join(folder, "store.db"), max_responses, max_bytes, ttl_s, wall or time.time)


if __name__ == "__main__":
    unittest.main()
