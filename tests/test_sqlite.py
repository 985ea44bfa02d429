"""The store on disk: the contract of all stores, and what a file adds: reopening, sharing, faults, carrying."""
import contextlib
import io
import json
import os
import shutil
import subprocess
import sys
import tempfile
import threading
import time
import unittest

from api_common import ApiError
from server import main
from state.carry import export_lines, import_lines, store_command
from state.contract import Conversation, iter_context
from state.sqlite import _APPLICATION_ID, _SCHEMA_1, LEASE_S, STORE_VERSION, SqliteStore, StoreUnusable
from tests import ONE_FILE, ROOT
from tests.support import TIMEOUT_S, QuietTestCase
from tests.test_store import DAY_S, StoreContract, Wall, make_chat, make_hidden, make_node

try:
    import sqlite3
except ImportError:
    sqlite3 = None

NODE_FIELDS = ("id", "created_s", "body", "output_at", "input", "total_tokens", "prefix_hash", "open_calls",
               "foreign_ids", "calls", "depth", "hidden", "drops", "background", "replay", "about", "size_bytes")
FULL_ENVELOPE_KEYS = {"message", "type", "param", "code"}


def describe(node):
    """All that a store is to give back of a node."""
    return {name: getattr(node, name) for name in NODE_FIELDS}


class FaultyConnection:
    """Stands for a store's connection; fail: None, or the start of the statements that end in an error."""

    def __init__(self, db):
        self._db = db
        self.fail = None
        self.failures = 0

    def execute(self, statement, *values):
        if self.fail is not None and statement.startswith(self.fail):
            self.failures += 1
            raise sqlite3.OperationalError("disk I/O error")
        return self._db.execute(statement, *values)

    def __getattr__(self, name):
        return getattr(self._db, name)


@contextlib.contextmanager
def unprivileged():
    """Root may write to read-only files: be nobody for a while."""
    if os.geteuid():
        yield
        return
    os.seteuid(65534)
    try:
        yield
    finally:
        os.seteuid(0)


@unittest.skipIf(sqlite3 is None, "this Python has no sqlite3")
class SqliteTest(QuietTestCase):
    """A folder, a wall clock, and stores on one file."""

    def setUp(self):
        QuietTestCase.setUp(self)
        self.folder = tempfile.mkdtemp()
        self.addCleanup(shutil.rmtree, self.folder)
        self.path = os.path.join(self.folder, "store.db")
        self.wall = Wall()
        self.said = []

    def open(self, max_responses=10000, max_bytes=1 << 28, ttl_s=DAY_S, **values):
        values.setdefault("busy_timeout_s", 0.02)
        store = SqliteStore(values.pop("path", self.path), max_responses, max_bytes, ttl_s, self.wall,
                            log=lambda level, message: self.said.append((level, message)), **values)
        self.addCleanup(self._close, store)
        return store

    def _close(self, store):
        with contextlib.suppress(sqlite3.Error):
            store.close()

    def add_replay(self, node, replay=b"event: x\n\n\x00\xff"):
        node.replay = replay
        node.size_bytes += len(replay)

    def put(self, store, number, parent=None, **values):
        parent = store.get(parent) if parent is not None else None
        node = make_node(number, parent, created_s=self.wall.now, **values)
        store.put(node)
        store.flush()
        return node.id

    def raw(self):
        """Another program's connection to the file."""
        db = sqlite3.connect(self.path, timeout=0.01, isolation_level=None)
        self.addCleanup(db.close)
        return db

    def assert_broken(self, call, *values):
        """The call ends in an envelope of a 503."""
        with self.assertRaises(ApiError) as caught:
            call(*values)
        error = caught.exception
        self.assertEqual(error.status, 503)
        self.assertEqual(set(json.loads(error.envelope())["error"]), FULL_ENVELOPE_KEYS)
        return error

    def assert_unusable(self, path=None, **values):
        """It cannot be a store, and one line says why; nothing is left open."""
        with self.assertRaises(StoreUnusable) as caught:
            self.open(path=path or self.path, **values)
        line = str(caught.exception)
        self.assertNotIn("\n", line)
        self.assertIn(path or self.path, line)
        return line

    def account(self, store):
        """What the totals say must be what is there."""
        db = store._db
        stats = store.stats()
        counted = dict(zip(("responses", "tombstones", "bytes"), db.execute(
            "SELECT total(state = 0), total(state = 1), total(size) FROM nodes").fetchone()))
        talked, size = db.execute("SELECT count(*), total(size) FROM conversations").fetchone()
        self.assertEqual((stats["responses"], stats["tombstones"], stats["bytes"], stats["conversations"]),
                         (counted["responses"], counted["tombstones"], counted["bytes"] + size, talked))
        wrong = db.execute(
            "WITH found AS (SELECT parent AS n FROM nodes UNION ALL SELECT head FROM conversations), counts AS (SELECT n, "
            "count(*) AS c FROM found GROUP BY n) SELECT nodes.n, children, c FROM nodes LEFT JOIN counts USING (n) WHERE "
            "children != ifnull(c, 0)").fetchall()
        self.assertEqual(wrong, [], "(node, children as counted, as they are)")
        self.assertEqual(db.execute("SELECT count(*) FROM trees WHERE refs < 1 OR t NOT IN (SELECT tree FROM nodes UNION "
                                    "SELECT tree FROM conversations)").fetchone()[0], 0)
        return stats


@unittest.skipIf(sqlite3 is None, "this Python has no sqlite3")
class SqliteStoreTest(StoreContract, unittest.TestCase):

    def make_store(self, max_responses=10000, max_bytes=1 << 28, ttl_s=DAY_S, wall=None):
        folder = tempfile.mkdtemp()
        self.addCleanup(shutil.rmtree, folder)
        return SqliteStore(os.path.join(folder, "store.db"), max_responses, max_bytes, ttl_s, wall or time.time)


# ---- over a restart ---------------------------------------------------------------------------

class ReopenTest(SqliteTest):

    def test_every_field_of_a_node_survives(self):
        store = self.open()
        first = make_node(1, foreign=("mine", "its \u2028 \u00fc", "again"))
        first.calls, first.background = 7, True
        self.add_replay(first)
        store.put(first)
        second = make_node(2, first, size=70000)
        store.put(second)
        chat = make_chat(3, model="m-\u00e9", metadata={"k": "v\ud800"})
        store.put(chat)
        store.flush()
        store.close()
        again = self.open()
        for node in (first, second, chat):
            with self.subTest(node=node.id):
                self.assertEqual(describe(again.get(node.id)), describe(node))
        self.assertEqual([node.id for node in again.get(second.id).chain()], [second.id, first.id])
        self.assertEqual([node.id for node in again.chats()], [chat.id])
        self.account(again)

    def test_a_chain_with_hidden_dropped_and_deleted_nodes_is_walked_as_before(self):
        store = self.open()
        head = make_hidden(1)
        store.create_conversation(Conversation("conv_a", 5.5, {"topic": "rivers"}, head))
        turn = make_node(2, head, items=2)
        store.put(turn, "conv_a")
        drop = make_hidden(3, turn, drops=("msg_%032x00" % 2,))
        store.put(drop, "conv_a")
        last = make_node(4, drop)
        store.put(last, "conv_a")
        store.delete(turn.id)
        store.flush()
        wanted = list(iter_context(store.get(last.id), own_output=True))
        self.assertEqual(len(wanted), 5)
        store.close()
        again = self.open()
        conversation = again.conversation("conv_a")
        self.assertEqual((conversation.created_s, conversation.metadata, conversation.head.id, conversation.owner),
                         (5.5, {"topic": "rivers"}, last.id, None))
        self.assertEqual(list(iter_context(conversation.head, own_output=True)), wanted)
        self.assertIsNone(again.get(turn.id))
        self.assertIsNone(again.get(head.id))
        self.assertEqual([node.hidden for node in conversation.head.chain()], [False, True, False, True])
        self.account(again)

    def test_items_are_found_by_the_servers_and_by_the_clients_ids(self):
        store = self.open()
        self.put(store, 1, foreign=("mine",))
        hidden = make_hidden(2, foreign=("put in",))
        store.create_conversation(Conversation("conv_a", 1.0, {}, hidden))
        store.flush()
        store.close()
        again = self.open()
        for id in ("mine", "put in", "msg_%032x01" % 1, "msg_%032x00" % 2):
            with self.subTest(id=id):
                self.assertEqual(again.find_item(id)["id"], id)

    def test_what_was_not_flushed_is_not_there_after_a_crash(self):
        store = self.open()
        kept = self.put(store, 1)
        store.put(make_node(2))
        other = sqlite3.connect(self.path)
        self.assertEqual([id for id, in other.execute("SELECT id FROM nodes")], [kept])
        other.close()

    def test_close_keeps_what_was_not_flushed(self):
        store = self.open()
        store.put(make_node(1))
        store.close()
        self.assertIsNotNone(self.open().get(make_node(1).id))

    def test_the_least_recently_used_go_first_also_after_a_reopen(self):
        store = self.open()
        ids = [self.put(store, number) for number in (1, 2, 3)]
        store.get(ids[0])
        store._write_used(store._db)
        store.close()
        again = self.open(max_responses=3)
        self.put(again, 4)
        self.assertEqual([again.get(id) is not None for id in ids], [True, False, True])
        self.assertEqual(self.account(again)["evicted"], 1)

    def test_smaller_bounds_hold_from_the_next_put_on(self):
        store = self.open()
        for number in range(20):
            self.put(store, number + 1, size=5000)
        store.close()
        again = self.open(max_responses=5)
        self.put(again, 50)
        self.assertEqual(self.account(again)["responses"], 5)
        again.close()
        third = self.open(max_bytes=15000)
        self.put(third, 51)
        self.assertLessEqual(self.account(third)["bytes"], 15000)
        self.assertIsNotNone(third.get(make_node(51).id))

    def test_a_clock_that_was_set_back_makes_nothing_new_go_first(self):
        store = self.open()
        for number in (1, 2, 3):
            self.put(store, number)
        store.close()
        self.wall.now -= 3600
        again = self.open(max_responses=3)
        self.put(again, 4)
        self.assertEqual([again.get(make_node(number).id) is not None for number in (1, 2, 3, 4)],
                         [False, True, True, True])

    def test_age_counts_over_a_reopen(self):
        store = self.open()
        old = self.put(store, 1)
        self.wall.now += DAY_S / 2
        young = self.put(store, 2)
        store.close()
        self.wall.now += DAY_S / 2
        again = self.open()
        self.assertIsNone(again.get(old))
        self.assertIsNotNone(again.get(young))
        self.wall.now += DAY_S
        self.assertEqual(again.sweep(100), 1)
        again.flush()
        self.assertEqual({name: count for name, count in self.account(again).items() if count}, {"expired": 2})

    def test_a_number_is_not_given_twice(self):
        store = self.open()
        store.delete(self.put(store, 1))
        store.flush()
        self.put(store, 2)
        self.assertEqual(store._db.execute("SELECT n FROM nodes").fetchall(), [(2,)])


# ---- leases -----------------------------------------------------------------------------------

class LeaseTest(SqliteTest):

    def conversation(self, store, id="conv_a"):
        store.create_conversation(Conversation(id, 1.0, {}))
        store.flush()
        return id

    def test_another_server_sees_who_writes_until_the_lease_is_over(self):
        dead, alive = self.open(), self.open()
        id = self.conversation(dead)
        self.assertEqual(dead.claim_conversation(id, "resp_1").owner, "resp_1")
        dead.flush()
        self.assertEqual(alive.claim_conversation(id, "resp_2").owner, "resp_1")
        alive.flush()
        self.wall.now += LEASE_S - 0.1
        self.assertEqual(alive.conversation(id).owner, "resp_1")
        self.wall.now += 0.2
        self.assertIsNone(alive.conversation(id).owner)
        self.assertEqual(alive.claim_conversation(id, "resp_2").owner, "resp_2")

    def test_a_sweep_renews_what_is_held(self):
        owner, other = self.open(), self.open()
        id = self.conversation(owner)
        owner.claim_conversation(id, "resp_1")
        owner.begin_running("resp_9", b'{"output":[]}', b"[]", None)
        owner.flush()
        for _ in range(10):
            self.wall.now += LEASE_S / 2
            owner.sweep(10)
            owner.flush()
        self.assertEqual(other.conversation(id).owner, "resp_1")
        self.assertFalse(other.running("resp_9").ours)

    def test_a_released_conversation_is_free_for_others_with_the_flush(self):
        owner, other = self.open(), self.open()
        id = self.conversation(owner)
        owner.claim_conversation(id, "resp_1")
        owner.flush()
        owner.release_conversation(id, "resp_1")
        self.assertIsNone(owner.conversation(id).owner)
        owner.flush()
        self.assertIsNone(other.conversation(id).owner)

    def test_close_lets_go_at_once(self):
        owner, other = self.open(), self.open()
        id = self.conversation(owner)
        owner.claim_conversation(id, "resp_1")
        owner.begin_running("resp_" + "9" * 32, b'{"id":"x","status":"queued","output":[]}', b"[]", None)
        owner.flush()
        owner.close()
        self.assertIsNone(other.conversation(id).owner)
        self.assertIsNone(other.running("resp_" + "9" * 32))
        self.assertEqual(json.loads(other.get("resp_" + "9" * 32).body)["status"], "failed")

    def test_a_running_response_of_a_server_that_died_has_failed(self):
        dead, alive, third = self.open(), self.open(), self.open()
        parent = self.put(dead, 1)
        id = "resp_%032x" % 2
        dead.begin_running(id, b'{"id":"%s","status":"queued","usage":null,"output":[]}' % id.encode(),
                           b'[{"id":"in","type":"message"}]', dead.get(parent))
        dead.flush()
        self.assertTrue(dead.running(id).ours)
        seen = alive.running(id)
        self.assertEqual((seen.id, seen.ours, seen.parent.id, seen.input), (id, False, parent,
                                                                             b'[{"id":"in","type":"message"}]'))
        self.assertIsNone(alive.get(id))
        self.wall.now += LEASE_S + 1
        self.assertIsNone(alive.running(id))
        alive.flush()
        self.assertIsNone(third.running(id))
        node = third.get(id)
        told = json.loads(node.body)
        self.assertEqual((told["status"], told["error"]["code"], told["output"]), ("failed", "server_error", []))
        self.assertEqual((json.loads(node.output()), node.background, node.parent.id), ([], True, parent))
        self.assertEqual([item["id"] for item in node.input_items()], ["in"])
        self.account(third)

    def test_an_owner_that_comes_back_too_late_does_not_put_it_twice(self):
        late, other = self.open(), self.open()
        node = make_node(2)
        node.background = True
        late.begin_running(node.id, b'{"id":"x","status":"queued","output":[]}', b"[]", None)
        late.flush()
        self.wall.now += LEASE_S + 1
        self.assertIsNone(other.running(node.id))
        other.flush()
        self.assert_broken(late.put, node)
        late.flush()
        self.assertEqual(json.loads(late.get(node.id).body)["status"], "failed")
        self.account(late)

    def test_an_owner_that_comes_back_too_late_leaves_the_others_turns_in_the_conversation(self):
        late, other = self.open(), self.open()
        id = self.conversation(late)
        late.claim_conversation(id, "resp_1")
        late.flush()
        self.wall.now += LEASE_S + 1
        other.claim_conversation(id, "resp_2")
        other.put(make_node(2), id)
        other.release_conversation(id, "resp_2")
        other.flush()
        self.assert_broken(late.put, make_node(1), id)
        late.flush()
        self.assertEqual(late.conversation(id).head.id, make_node(2).id)
        self.account(late)

    def test_a_response_that_ended_unstored_is_gone_here_at_once_and_elsewhere_with_the_flush(self):
        owner, other = self.open(), self.open()
        owner.begin_running("resp_9", b'{"output":[]}', b"[]", None)
        owner.flush()
        owner.forget_running("resp_9")
        self.assertIsNone(owner.running("resp_9"))
        owner.flush()
        self.wall.now += LEASE_S + 1
        self.assertIsNone(other.running("resp_9"))
        self.assertIsNone(other.get("resp_9"))


# ---- two on one file --------------------------------------------------------------------------

class SharedFileTest(SqliteTest):

    def test_a_chain_may_hop_between_stores(self):
        stores, parent = [self.open(), self.open()], None
        for number in range(20):
            parent = self.put(stores[number % 2], number + 1, parent)
        for store in stores:
            self.assertEqual(len(list(store.get(parent).chain())), 20)
            self.account(store)

    def test_nothing_is_seen_before_the_flush_and_all_after_it(self):
        one, other = self.open(), self.open()
        one.put(make_node(1))
        self.assertIsNone(other.get(make_node(1).id))
        one.flush()
        self.assertIsNotNone(other.get(make_node(1).id))
        other.delete(make_node(1).id)
        self.assertIsNotNone(one.get(make_node(1).id))
        other.flush()
        self.assertIsNone(one.get(make_node(1).id))

    def test_bounds_hold_for_all_together(self):
        stores = [self.open(max_responses=10), self.open(max_responses=10)]
        for number in range(40):
            self.put(stores[number % 2], number + 1)
        self.assertEqual(self.account(stores[0])["responses"], 10)
        self.assertEqual([stores[0].get(make_node(number + 1).id) is not None for number in range(40)],
                         [False] * 30 + [True] * 10)

    def test_a_chain_evicted_by_another_store_during_a_turn_comes_back_with_its_answer(self):
        one, other = self.open(), self.open(max_responses=1)
        first = self.put(one, 1)
        second = make_node(2, one.get(first))
        self.put(other, 3)
        self.assertIsNone(one.get(first))
        one.put(second)
        one.flush()
        self.assertEqual([node.id for node in other.get(second.id).chain()], [second.id, first])
        self.account(one)

    def test_writers_take_turns_and_the_account_is_right(self):
        stores = [self.open(busy_timeout_s=TIMEOUT_S) for _ in range(3)]
        faults = []

        def write(at):
            try:
                parent = None
                for number in range(30):
                    node = make_node(1000 * (at + 1) + number, parent)
                    stores[at].put(node)
                    stores[at].flush()
                    parent = stores[at].get(node.id)
                    if not number % 5:
                        stores[at].delete(parent.id)
                        stores[at].flush()
            except Exception as exc:
                faults.append(exc)
        threads = [threading.Thread(target=write, args=(at,)) for at in range(3)]
        for thread in threads:
            thread.start()
        for thread in threads:
            thread.join(3 * TIMEOUT_S)
        self.assertEqual(faults, [])
        self.assertEqual(self.account(stores[0])["responses"], 3 * 24)

    def test_many_open_one_new_file_at_once(self):
        faults, gate = [], threading.Barrier(8)

        def begin():
            try:
                gate.wait(TIMEOUT_S)
                SqliteStore(self.path, busy_timeout_s=TIMEOUT_S).close()
            except Exception as exc:
                faults.append(exc)
        threads = [threading.Thread(target=begin) for _ in range(8)]
        for thread in threads:
            thread.start()
        for thread in threads:
            thread.join(2 * TIMEOUT_S)
        self.assertEqual(faults, [])
        self.assertEqual(self.open().stats()["responses"], 0)


# ---- versions and what is no store ------------------------------------------------------------

class FileTest(SqliteTest):

    def make_version_1(self):
        """A file as the first version wrote it, with a chain of two, a conversation and a stored chat."""
        db = sqlite3.connect(self.path)
        db.executescript(_SCHEMA_1)
        db.executescript("PRAGMA application_id = %d; PRAGMA user_version = 1" % _APPLICATION_ID)
        nodes = [make_node(1, foreign=("mine",)), make_node(2), make_chat(3)]
        for number, node in enumerate(nodes, 1):
            db.execute("INSERT INTO nodes VALUES (?, ?, ?, ?, ?, ?, ?, ?, ?, ?, ?, ?, ?, 0, ?, 0, NULL, ?, ?, ?)",
                       (number, node.id, 1 if number == 2 else None, 2 if number == 3 else 1, node.created_s, 1.0 * number,
                        node.body, node.output_at[0], node.output_at[1], node.input, node.total_tokens, node.prefix_hash,
                        json.dumps(sorted(node.open_calls)), 2 if number == 2 else 1,
                        json.dumps(node.about) if node.about else None, node.size_bytes,
                        {1: 1, 2: 1, 3: 0}[number]))
        db.execute("INSERT INTO foreign_ids VALUES ('mine', 1)")
        talk = Conversation("conv_a", 4.0, {"a": "b"})
        db.execute("INSERT INTO conversations VALUES ('conv_a', 4.0, 1.0, '{\"a\": \"b\"}', 2, 1, ?)", (talk.size_bytes(),))
        sizes = [node.size_bytes for node in nodes]
        db.execute("INSERT INTO trees VALUES (1, ?, 3, 1.0), (2, ?, 1, 2.0)", (sizes[0] + sizes[1] + talk.size_bytes(),
                                                                               sizes[2]))
        db.execute("UPDATE totals SET responses = 3, conversations = 1, bytes = ?", (sum(sizes) + talk.size_bytes(),))
        db.commit()
        db.close()
        return nodes

    def version(self):
        db = self.raw()
        return db.execute("PRAGMA user_version").fetchone()[0]

    def test_a_file_of_version_1_is_brought_up_and_keeps_everything(self):
        first, second, chat = self.make_version_1()
        store = self.open()
        self.assertEqual(self.version(), STORE_VERSION)
        self.assertEqual([node.id for node in store.get(second.id).chain()], [second.id, first.id])
        self.assertEqual((store.get(first.id).body, store.find_item("mine")["id"], [node.id for node in store.chats()]),
                         (first.body, "mine", [chat.id]))
        conversation = store.conversation("conv_a")
        self.assertEqual((conversation.head.id, conversation.metadata, conversation.owner), (second.id, {"a": "b"}, None))
        self.assertEqual((store.get(first.id).background, store.get(first.id).replay), (False, None))
        self.account(store)
        store.claim_conversation("conv_a", "resp_x")
        store.put(make_node(9, conversation.head), "conv_a")
        store.begin_running("resp_y", b"{}", b"[]", None)
        store.flush()
        store.close()
        again = self.open()
        self.assertEqual(again.conversation("conv_a").head.id, make_node(9).id)
        self.account(again)

    def test_an_upgrade_that_fails_leaves_the_old_version_whole(self):
        self.make_version_1()
        blocker = self.raw()
        blocker.execute("CREATE TABLE running (x)")         # in the way of the upgrade's last statement
        self.assertIn("running", self.assert_unusable())
        self.assertEqual(self.version(), 1)
        self.assertNotIn("background", [row[1] for row in blocker.execute("PRAGMA table_info(nodes)")])
        blocker.execute("DROP TABLE running")
        self.assertEqual(self.open().stats()["responses"], 3)

    def test_a_new_file_is_of_this_version_and_ours(self):
        self.open().close()
        db = self.raw()
        self.assertEqual((self.version(), db.execute("PRAGMA application_id").fetchone()[0]),
                         (STORE_VERSION, _APPLICATION_ID))

    def test_a_newer_version_is_refused_and_left_as_it_is(self):
        self.open().close()
        db = self.raw()
        db.execute("PRAGMA user_version = %d" % (STORE_VERSION + 1))
        db.close()
        line = self.assert_unusable()
        self.assertIn("newer", line)
        self.assertIn(str(STORE_VERSION + 1), line)
        self.assertEqual(self.version(), STORE_VERSION + 1)

    def test_another_programs_database_is_refused_and_left_as_it_is(self):
        db = self.raw()
        db.execute("CREATE TABLE theirs (x)")
        db.close()
        with open(self.path, "rb") as file:
            before = file.read()
        self.assertIn("another program", self.assert_unusable())
        with open(self.path, "rb") as file:
            self.assertEqual(file.read(), before)
        self.assertEqual(os.listdir(self.folder), ["store.db"])

    def test_what_is_no_database_is_refused_and_left_as_it_is(self):
        for content in (b"hello", b"x" * 5000, b"SQLite format 3\0" + b"\xff" * 2000):
            with self.subTest(content=content[:16], length=len(content)):
                with open(self.path, "wb") as file:
                    file.write(content)
                self.assert_unusable()
                with open(self.path, "rb") as file:
                    self.assertEqual(file.read(), content)

    def test_a_file_that_cannot_be_made_is_refused(self):
        with open(os.path.join(self.folder, "file"), "w"):
            pass
        for path in ("missing/store.db", "file/store.db", "."):
            with self.subTest(path=path):
                self.assert_unusable(os.path.join(self.folder, path))

    @unittest.skipUnless(hasattr(os, "seteuid"), "permissions are POSIX's")
    def test_a_read_only_file_and_a_read_only_folder_are_refused(self):
        store = self.open()
        self.put(store, 1)
        store.close()
        for file_mode, folder_mode in ((0o444, 0o777), (0o444, 0o555), (0o666, 0o555)):
            with self.subTest(file=oct(file_mode), folder=oct(folder_mode)):
                os.chmod(self.path, file_mode)
                os.chmod(self.folder, folder_mode)
                try:
                    with unprivileged():
                        self.assert_unusable()
                finally:
                    os.chmod(self.folder, 0o777)
        os.chmod(self.path, 0o666)
        self.assertIsNotNone(self.open().get(make_node(1).id))

    @unittest.skipUnless(hasattr(os, "seteuid"), "permissions are POSIX's")
    def test_a_new_file_in_a_read_only_folder_is_refused(self):
        os.chmod(self.folder, 0o555)
        try:
            with unprivileged():
                self.assert_unusable()
        finally:
            os.chmod(self.folder, 0o755)

    def test_a_file_locked_by_another_program_is_refused_and_taken_when_it_is_free(self):
        self.open().close()
        other = self.raw()
        other.execute("BEGIN EXCLUSIVE")
        self.assertIn("locked", self.assert_unusable())
        other.execute("ROLLBACK")
        self.assertEqual(self.open().stats()["responses"], 0)

    def test_a_server_says_it_in_one_line_with_code_2(self):
        with open(self.path, "wb") as file:
            file.write(b"x" * 5000)
        err = io.StringIO()
        with contextlib.redirect_stderr(err):
            code = main(["--port", "0", "--store", "sqlite:" + self.path])
        self.assertEqual((code, err.getvalue().count("\n")), (2, 1))
        self.assertTrue(err.getvalue().startswith("mockturtle: error: --store " + self.path), err.getvalue())

    def test_without_sqlite3_it_says_so_and_memory_serves(self):
        entry = ONE_FILE or os.path.join(ROOT, "server.py")
        script = ("import os, runpy, sys\nsys.modules['sqlite3'] = sys.modules['_sqlite3'] = None\n"
                  "sys.path.insert(0, os.path.dirname(sys.argv[1]))\nsys.argv = sys.argv[1:]\n"
                  "runpy.run_path(sys.argv[0], run_name='__main__')")
        for arguments in (("--port", "0", "--store", "sqlite:" + self.path), ("store", "import", self.path)):
            with self.subTest(arguments=arguments[0]):
                done = subprocess.run([sys.executable, "-c", script, entry] + list(arguments), stdin=subprocess.DEVNULL,
                                      stdout=subprocess.PIPE, stderr=subprocess.PIPE, timeout=3 * TIMEOUT_S,
                                      universal_newlines=True)
                self.assertEqual((done.returncode, done.stdout, done.stderr), (
                    2, "", "mockturtle: error: --store sqlite: this Python was built without sqlite3\n"))
        self.assertEqual(os.listdir(self.folder), [])


# ---- faults at run time -----------------------------------------------------------------------

class FaultTest(SqliteTest):

    def fill(self, store, number, parent=None):
        """Put more than the file has room for."""
        store.put(make_node(number, parent, size=100000))

    def limit_pages(self, store, more=3):
        pages = store._db.execute("PRAGMA page_count").fetchone()[0]
        store._db.execute("PRAGMA max_page_count = %d" % (pages + more))

    def test_a_put_on_a_full_disk_is_503_keeps_nothing_and_works_again(self):
        store = self.open()
        kept = self.put(store, 1)
        before = self.account(store)
        self.limit_pages(store)
        self.assert_broken(self.fill, store, 2, store.get(kept))
        with contextlib.suppress(ApiError):
            store.flush()
        self.assertEqual(self.account(store), before)
        self.assertIsNone(store.get(make_node(2).id))
        self.assertIsNotNone(store.get(kept))
        store._db.execute("PRAGMA max_page_count = 1000000")
        self.fill(store, 3, store.get(kept))
        store.flush()
        self.assertEqual(self.account(store)["responses"], 2)
        self.assertEqual([level for level, _ in self.said], ["error", "notice"][:len(self.said)])

    def test_what_came_before_a_failed_put_in_its_batch_is_either_kept_or_told_of(self):
        store = self.open()
        self.put(store, 1)
        self.limit_pages(store, 6)
        store.put(make_node(2))
        mark = store.written()
        self.assert_broken(self.fill, store, 3)
        lost = False
        try:
            store.flush(mark)
        except ApiError:
            lost = True
        self.assertEqual(store.get(make_node(2).id) is None, lost)
        self.account(store)

    def test_a_put_that_fails_half_way_leaves_nothing_in_its_batch(self):
        store = self.open()
        kept = self.put(store, 1)
        store._db = fault = FaultyConnection(store._db)
        store.put(make_node(2))
        for statement in ("INSERT INTO foreign_ids", "UPDATE totals", "UPDATE trees", "UPDATE nodes"):
            with self.subTest(statement=statement):
                fault.fail = statement
                self.assert_broken(store.put, make_node(3, store.get(kept), foreign=("mine",)))
                fault.fail = None
                self.assertEqual(self.account(store)["responses"], 2)
        store.flush()
        self.assertEqual([store.get(make_node(number).id) is None for number in (1, 2, 3)], [False, False, True])

    def test_a_commit_that_fails_is_503_keeps_nothing_and_works_again(self):
        store = self.open()
        kept = self.put(store, 1)
        before = self.account(store)
        store._db = fault = FaultyConnection(store._db)
        fault.fail = "COMMIT"
        store.put(make_node(2, store.get(kept)))
        store.create_conversation(Conversation("conv_a", 1.0, {}))
        self.assert_broken(store.flush)
        self.assertIsNone(store.get(make_node(2).id))
        self.assertIsNone(store.conversation("conv_a"))
        self.assertEqual(self.account(store), before)
        fault.fail = None
        store.put(make_node(2, store.get(kept)))
        store.flush()
        self.assertEqual(self.account(store)["responses"], 2)
        self.assertEqual([level for level, _ in self.said], ["error", "notice"])

    @unittest.skipIf(sys.platform == "win32", "no limits of file sizes")
    def test_a_file_that_may_not_grow_is_503_at_the_commit_and_works_again(self):
        import resource
        store = self.open()
        kept = self.put(store, 1)
        before = self.account(store)
        store.put(make_node(2, store.get(kept), size=200000))
        soft, hard = resource.getrlimit(resource.RLIMIT_FSIZE)
        resource.setrlimit(resource.RLIMIT_FSIZE, (os.path.getsize(self.path + "-wal"), hard))
        try:
            self.assert_broken(store.flush)
        finally:
            resource.setrlimit(resource.RLIMIT_FSIZE, (soft, hard))
        self.assertEqual(self.account(store), before)
        store.put(make_node(3, store.get(kept), size=200000))
        store.flush()
        store.close()
        again = self.open()
        self.assertEqual(len(list(again.get(make_node(3).id).chain())), 2)
        self.account(again)

    def test_whoever_wrote_hears_of_a_commit_that_another_thread_could_not_make(self):
        store = self.open()
        store._db = fault = FaultyConnection(store._db)
        store.put(make_node(1))
        fault.fail = "COMMIT"
        seen = []

        def other():
            store.put(make_node(2))
            try:
                store.flush()
            except ApiError as error:
                seen.append(error.status)
        thread = threading.Thread(target=other)
        thread.start()
        thread.join(TIMEOUT_S)
        fault.fail = None
        self.assertEqual(seen, [503])
        self.assert_broken(store.flush)
        store.flush()                       # once
        self.assertEqual(self.account(store)["responses"], 0)

    def test_a_mark_stands_for_its_own_writes_only(self):
        store = self.open()
        store._db = fault = FaultyConnection(store._db)
        store.put(make_node(1))
        mine = store.written()
        self.assertIsNone(store.written())
        fault.fail = "COMMIT"
        self.assert_broken(store.flush, mine)
        fault.fail = None
        store.put(make_node(2))
        after = store.written()
        store.flush(after)
        self.assert_broken(store.flush, mine)
        self.assertEqual([store.get(make_node(number).id) is None for number in (1, 2)], [True, False])

    def test_what_is_let_go_of_while_the_file_is_broken_is_free_here_and_later_there(self):
        store, other = self.open(), self.open()
        store.create_conversation(Conversation("conv_a", 1.0, {}))
        store.claim_conversation("conv_a", "resp_1")
        store.begin_running("resp_9", b'{"output":[]}', b"[]", None)
        store.flush()
        store._db = fault = FaultyConnection(store._db)
        fault.fail = ("BEGIN", "COMMIT")
        store.release_conversation("conv_a", "resp_1")
        store.forget_running("resp_9")
        store.flush()
        self.assertIsNone(store.conversation("conv_a").owner)
        self.assertIsNone(store.running("resp_9"))
        self.assertEqual(other.conversation("conv_a").owner, "resp_1")
        fault.fail = None
        store.flush()
        self.assertIsNone(other.conversation("conv_a").owner)
        self.wall.now += LEASE_S + 1
        self.assertIsNone(other.running("resp_9"))
        self.assertIsNone(other.get("resp_9"))

    def test_a_claim_that_was_lost_with_its_commit_is_free(self):
        store = self.open()
        store.create_conversation(Conversation("conv_a", 1.0, {}))
        store.flush()
        store._db = fault = FaultyConnection(store._db)
        fault.fail = "COMMIT"
        store.claim_conversation("conv_a", "resp_1")
        self.assert_broken(store.flush)
        fault.fail = None
        store.release_conversation("conv_a", "resp_1")
        self.assertEqual(store.claim_conversation("conv_a", "resp_2").owner, "resp_2")
        store.put(make_node(1), "conv_a")
        store.flush()
        self.account(store)

    def test_locked_by_another_program_writes_are_503_and_reads_go_on(self):
        store = self.open()
        kept = self.put(store, 1)
        other = self.raw()
        other.execute("BEGIN EXCLUSIVE")
        self.assert_broken(store.put, make_node(2))
        self.assertIsNotNone(store.get(kept))
        self.assertIsNone(store.conversation("conv_a"))
        self.assert_broken(store.delete, kept)
        self.assertEqual(len(self.said), 1, self.said)
        other.execute("ROLLBACK")
        self.put(store, 2)
        self.assertEqual(self.account(store)["responses"], 2)

    def test_after_a_wait_in_vain_others_wait_no_longer_until_it_works_again(self):
        store = self.open(busy_timeout_s=0.3)
        other = self.raw()
        other.execute("BEGIN EXCLUSIVE")
        patience = [store._db.execute("PRAGMA busy_timeout").fetchone()[0]]
        self.assert_broken(store.put, make_node(1))
        patience.append(store._db.execute("PRAGMA busy_timeout").fetchone()[0])
        other.execute("ROLLBACK")
        self.put(store, 1)
        patience.append(store._db.execute("PRAGMA busy_timeout").fetchone()[0])
        self.assertEqual((patience[0], patience[2]), (300, 300))
        self.assertLess(patience[1], 100)

    def corrupt(self, first=None, size=None):
        """Fill a store, then write nonsense over all pages from one on, or over the one that has node 150."""
        store = self.open()
        for number in range(200):
            store.put(make_node(number + 1, size=3000))
        store.flush()
        store.close()
        with open(self.path, "r+b") as file:
            content = file.read()
            if first is None:
                first, size = content.index(b'{"id":"%s"' % make_node(150).id.encode()) // 4096, 4096
            file.seek(4096 * first)
            file.write(b"\xa5" * (size or len(content) - 4096 * first))

    def test_a_corrupt_page_is_503_for_what_needs_it(self):
        self.corrupt()
        store = self.open()
        self.assert_broken(store.get, make_node(150).id)
        self.assert_broken(store.delete, make_node(150).id)
        self.assertEqual(len(self.said), 1, self.said)
        self.assertIsNotNone(store.get(make_node(1).id))

    def test_a_file_whose_tables_are_corrupt_is_refused(self):
        self.corrupt(2)
        self.assertIn("malformed", self.assert_unusable())

    def test_a_sweep_of_a_broken_file_is_an_api_error_and_drops_nothing(self):
        store = self.open()
        self.put(store, 1)
        self.wall.now += DAY_S
        other = self.raw()
        other.execute("BEGIN EXCLUSIVE")
        self.assert_broken(store.sweep, 10)
        other.execute("ROLLBACK")
        self.assertEqual(store.sweep(10), 1)
        store.flush()
        self.assertEqual(self.account(store)["responses"], 0)


# ---- carrying ---------------------------------------------------------------------------------

class CarryTest(SqliteTest):

    def filled(self):
        """A store with a bit of everything."""
        store = self.open()
        head = make_hidden(1, foreign=("put in",))
        store.create_conversation(Conversation("conv_a", 5.5, {"topic": "\u00fc\ud800"}, head))
        turn = make_node(2, head, foreign=("mine",), items=2)
        turn.calls, turn.background = 3, True
        self.add_replay(turn)
        store.put(turn, "conv_a")
        store.put(make_hidden(3, turn, drops=("msg_%032x00" % 2,)), "conv_a")
        gone = make_node(4, turn)
        store.put(gone)
        store.put(make_node(5, store.get(gone.id)))
        store.delete(gone.id)
        store.put(make_chat(6, model="m", metadata={"a": "b"}))
        store.create_conversation(Conversation("conv_b", 6.0, {}))
        store.flush()
        return store

    def test_lines_that_would_make_the_server_answer_500_are_refused_by_number(self):
        lines = list(export_lines(self.filled()))
        at = next(number for number, line in enumerate(lines) if '"about": {' in line)
        wrong = (("about", 5), ("about", {}), ("input", "x"), ("body", "x"), ("output_at", [5, 2]), ("id", 5),
                 ("created", float("inf")), ("tokens", -5))
        for number, (name, value) in enumerate(wrong):
            with self.subTest(name=name, value=value):
                node = json.loads(lines[at])["node"]
                node[name] = value
                bad = lines[:at] + [json.dumps({"node": node})]
                with self.assertRaisesRegex(StoreUnusable, "line %d " % (at + 1)):
                    import_lines(self.open(path="%s.%d" % (self.path, number)), bad)

    def test_an_import_of_nothing_is_refused(self):
        with self.assertRaisesRegex(StoreUnusable, "nothing"):
            import_lines(self.open(path=self.path + ".empty"), [])

    def store_command(self, *arguments, text=""):
        """(exit code, stdout, stderr) of the command."""
        out, err = io.StringIO(), io.StringIO()
        with contextlib.redirect_stderr(err):
            code = store_command(list(arguments), out, io.StringIO(text))
        return code, out.getvalue(), err.getvalue()

    def test_an_export_that_was_imported_is_exported_the_same(self):
        store = self.filled()
        lines = list(export_lines(store))
        self.assertEqual(len(lines), 1 + 6 + 2)
        other = self.open(path=os.path.join(self.folder, "other.db"))
        self.assertEqual(import_lines(other, lines), (6, 2, 0))
        self.assertEqual(list(export_lines(other)), lines)
        self.assertEqual(self.account(other), dict(self.account(store), evicted=0, expired=0))
        for number in (2, 5):
            with self.subTest(node=number):
                self.assertEqual(describe(other.get(make_node(number).id)), describe(store.get(make_node(number).id)))
        self.assertEqual(list(iter_context(other.conversation("conv_a").head, own_output=True)),
                         list(iter_context(store.conversation("conv_a").head, own_output=True)))
        self.assertEqual(other.find_item("put in"), store.find_item("put in"))

    def test_what_is_there_already_is_left_out(self):
        store = self.filled()
        lines = list(export_lines(store))
        before = self.account(store)
        self.assertEqual(import_lines(store, lines), (0, 0, 8))
        self.assertEqual(self.account(store), before)
        self.assertEqual(list(export_lines(store)), lines)

    def test_bad_lines_are_named(self):
        lines = list(export_lines(self.filled()))
        node = json.loads(lines[1])["node"]
        orphan = {"node": dict(node, id="resp_x", parent="resp_nowhere")}
        lost = {"conversation": {"id": "conv_x", "created": 1.0, "metadata": {}, "head": "resp_nowhere"}}
        bad = ["{", "[]", "5", "{}", '"text"', '{"node": {}}', '{"node": 5}', json.dumps(orphan), json.dumps(lost),
               json.dumps({"node": dict(node, state="odd")}), json.dumps({"node": dict(node, hash="zz")}),
               json.dumps({"node": dict(node, output_at=["a", 1])}), json.dumps({"node": dict(node, body="\u00fc")}),
               json.dumps({"node": dict(node, id="resp_\ud800")}), "[" * 100000]
        for number, line in enumerate(bad):
            with self.subTest(line=line[:60]):
                other = self.open(path=os.path.join(self.folder, "bad%d.db" % number))
                with self.assertRaises(StoreUnusable) as caught:
                    import_lines(other, lines[:1] + [line])
                self.assertTrue(str(caught.exception).startswith("line 2"), caught.exception)
                self.assertEqual(self.account(other)["responses"], 0)

    def test_another_format_is_refused(self):
        store = self.open()
        for line in ('{"mockturtle_state": 99}', '{"node": {}}', "nonsense"):
            with self.subTest(line=line), self.assertRaisesRegex(StoreUnusable, "line 1"):
                import_lines(store, [line])

    def test_an_export_is_of_one_moment(self):
        store = self.filled()
        other = self.open(busy_timeout_s=TIMEOUT_S)
        with store.snapshot():
            lines = list(export_lines(store))
            other.put(make_node(50, other.conversation("conv_a").head), "conv_a")
            other.flush()
            self.assertEqual(list(export_lines(store)), lines)
        self.assertEqual(store.conversation("conv_a").head.id, make_node(50).id)

    def test_the_command_carries_from_file_to_file(self):
        store = self.filled()
        stats = store.stats()
        store.close()
        code, info, err = self.store_command("info", self.path)
        self.assertEqual((code, err), (0, ""))
        self.assertEqual({name: int(count) for name, count in map(str.split, info.splitlines())}, stats)
        code, text, err = self.store_command("export", self.path)
        self.assertEqual((code, err, text.count("\n")), (0, "", 9))
        other = os.path.join(self.folder, "other.db")
        self.assertEqual(self.store_command("import", other, text=text),
                         (0, "", "took in 6 nodes and 2 conversations; 0 were there already\n"))
        self.assertEqual(self.store_command("import", other, text=text)[2],
                         "took in 0 nodes and 0 conversations; 8 were there already\n")
        self.assertEqual(self.store_command("export", other)[1], text)

    def test_the_commands_errors_are_one_line_and_code_2(self):
        bad = os.path.join(self.folder, "bad.db")
        with open(bad, "wb") as file:
            file.write(b"x" * 5000)
        self.open().close()
        for arguments, text, wanted in (
                (("info", self.path + "x"), "", "there is no file"), (("export", self.path + "x"), "", "there is no file"),
                (("info", bad), "", bad), (("import", bad), "", bad),
                (("import", os.path.join(self.folder, "no", "where")), "", "unable to open"),
                (("import", self.path), "nonsense\n", "line 1 "),
                (("import", self.path), '{"mockturtle_state": 1}\n{"node": 1}\n', "line 2 ")):
            with self.subTest(arguments=arguments):
                code, out, err = self.store_command(*arguments, text=text)
                self.assertEqual((code, out, err.count("\n")), (2, "", 1), err)
                self.assertTrue(err.startswith("mockturtle: error: "), err)
                self.assertIn(wanted, err)
        self.assertFalse(os.path.exists(self.path + "x"))

    def test_a_file_that_breaks_under_the_command_is_one_line_as_well(self):
        store = self.filled()
        for number in range(200):
            store.put(make_node(number + 100, size=3000))
        store.flush()
        store.close()
        with open(self.path, "r+b") as file:
            file.seek(4096 * 30)
            file.write(b"\xa5" * (os.path.getsize(self.path) - 4096 * 30))
        code, _, err = self.store_command("export", self.path)
        self.assertEqual((code, err.count("\n")), (2, 1), err)
        self.assertTrue(err.startswith("mockturtle: error: "), err)

    def test_a_wrong_word_is_the_usage_and_code_2(self):
        for arguments in ((), ("info",), ("drop", self.path), ("info", self.path, "more")):
            with self.subTest(arguments=arguments):
                code, out, err = self.store_command(*arguments)
                self.assertEqual((code, out), (2, ""))
                self.assertTrue(err.startswith("usage: "), err)

    def test_the_servers_entry_has_the_command(self):
        self.filled().close()
        out = io.StringIO()
        with contextlib.redirect_stdout(out):
            self.assertEqual(main(["store", "info", self.path]), 0)
        self.assertIn("conversations", out.getvalue())


if __name__ == "__main__":
    unittest.main()
