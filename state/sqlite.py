"""The store on disk: nodes and conversations in one SQLite file, which several servers may share.

What is put becomes durable with flush(), which commits all that came since the last one: whoever
answers a request calls it before the answer leaves. Write-ahead log: readers never wait for writers,
and what was committed survives the end of the process, however it ends.
"""
import json
import os
import threading
import time
import weakref
from collections import deque
from contextlib import contextmanager

from api_common import ApiError
from state.contract import Conversation, Node, Store, StoreFull, item_response_id

STORE_VERSION = 2
_APPLICATION_ID = 0x6D747274        # "mtrt": whose file it is, in its head
LEASE_S = 10.0                      # what a server holds is free this long after its last word
BUSY_TIMEOUT_S = 5.0                # how long another process's commit is waited for
_IMPATIENT_MS = 20                  # the same once it was in vain: not every request is to find out anew
_ADDRESSABLE, _TOMBSTONE, _HIDDEN = 0, 1, 2
_STATE_NAMES = ("response", "tombstone", "hidden")

_SCHEMA_1 = """
CREATE TABLE nodes (
    n INTEGER PRIMARY KEY AUTOINCREMENT, id TEXT NOT NULL, parent INTEGER, tree INTEGER NOT NULL, created REAL NOT NULL,
    used REAL NOT NULL, body BLOB NOT NULL, out_from INTEGER NOT NULL, out_to INTEGER NOT NULL, input BLOB NOT NULL,
    tokens INTEGER NOT NULL, hash BLOB NOT NULL, open_calls TEXT, calls INTEGER NOT NULL, depth INTEGER NOT NULL,
    state INTEGER NOT NULL, drops TEXT, about TEXT, size INTEGER NOT NULL, children INTEGER NOT NULL);
CREATE UNIQUE INDEX nodes_id ON nodes (id);
CREATE INDEX nodes_used ON nodes (used) WHERE state = 0;
CREATE INDEX nodes_created ON nodes (created) WHERE state = 0;
CREATE INDEX nodes_tree ON nodes (tree);
CREATE INDEX nodes_chats ON nodes (n) WHERE about IS NOT NULL;
CREATE TABLE foreign_ids (item TEXT NOT NULL, node INTEGER NOT NULL);
CREATE INDEX foreign_items ON foreign_ids (item);
CREATE INDEX foreign_nodes ON foreign_ids (node);
CREATE TABLE conversations (
    id TEXT PRIMARY KEY, created REAL NOT NULL, used REAL NOT NULL, metadata TEXT NOT NULL, head INTEGER,
    tree INTEGER NOT NULL, size INTEGER NOT NULL);
CREATE INDEX conversations_used ON conversations (used);
CREATE INDEX conversations_tree ON conversations (tree);
CREATE TABLE trees (t INTEGER PRIMARY KEY, bytes INTEGER NOT NULL, refs INTEGER NOT NULL, used REAL NOT NULL);
CREATE INDEX trees_used ON trees (used);
CREATE TABLE totals (
    responses INTEGER NOT NULL, conversations INTEGER NOT NULL, tombstones INTEGER NOT NULL, bytes INTEGER NOT NULL,
    evicted INTEGER NOT NULL, expired INTEGER NOT NULL);
INSERT INTO totals VALUES (0, 0, 0, 0, 0, 0);
"""

# What each version adds to the one before.
_UPGRADES = {
    2: """
ALTER TABLE nodes ADD COLUMN background INTEGER NOT NULL DEFAULT 0;
ALTER TABLE nodes ADD COLUMN replay BLOB;
ALTER TABLE conversations ADD COLUMN owner TEXT;
ALTER TABLE conversations ADD COLUMN lease REAL;
CREATE TABLE running (
    id TEXT PRIMARY KEY, owner TEXT NOT NULL, lease REAL NOT NULL, created REAL NOT NULL, body BLOB NOT NULL,
    input BLOB NOT NULL, parent INTEGER);
""",
}

_NODE_COLUMNS = ("n, id, parent, created, body, out_from, out_to, input, tokens, hash, open_calls, calls, depth, state, "
                 "drops, about, background, replay")


class StoreBroken(ApiError):
    """The file cannot be read or written now."""

    def __init__(self, reason):
        super().__init__(503, "The store cannot be used now: %s." % reason, type="server_error")


class StoreUnusable(ValueError):
    """The file cannot be a store: said at the start, in one line."""


class _DiskNode(Node):
    """A node from the file: its parent and its foreign ids are read when somebody asks."""

    __slots__ = ("number", "_store", "_parent", "_parent_number", "_foreign", "__weakref__")

    @property
    def parent(self):
        if self._parent is None and self._parent_number is not None:
            self._parent = self._store.node_by_number(self._parent_number)
        return self._parent

    @parent.setter
    def parent(self, node):
        self._parent = node

    @property
    def foreign_ids(self):
        if self._foreign is None:
            self._foreign = self._store.foreign_ids(self.number)
        return self._foreign

    @foreign_ids.setter
    def foreign_ids(self, ids):
        self._foreign = None


class RunningResponse:
    """A background response that some server is generating. body: its object as queued, bytes.

    ours: whether this process is that server. input, parent: as a Node's."""

    __slots__ = ("id", "body", "input", "parent", "ours")

    def __init__(self, id, body, input, parent, ours):
        self.id = id
        self.body = body
        self.input = input
        self.parent = parent
        self.ours = ours


def open_database(path, sync="normal", timeout_s=BUSY_TIMEOUT_S):
    """A connection to a store's file, which is made or brought to this version when needed.

    Raises StoreUnusable with one clear line for what is no store, or cannot be one here.
    """
    try:
        import sqlite3
    except ImportError:
        raise StoreUnusable("--store sqlite: this Python was built without sqlite3")
    try:
        db = sqlite3.connect(path, timeout=timeout_s, isolation_level=None, check_same_thread=False,
                             cached_statements=256)
    except sqlite3.Error as exc:
        raise StoreUnusable("--store %s: %s" % (path, exc))
    end_s = time.monotonic() + timeout_s
    try:
        while True:
            try:
                _prepare_database(db, path, sync)
                return db
            except sqlite3.OperationalError as exc:
                # the change to a write-ahead log does not wait for another server that makes the file just now
                if "locked" not in str(exc) or db.in_transaction or time.monotonic() >= end_s:
                    raise
                time.sleep(0.01)
    except sqlite3.Error as exc:
        db.close()
        raise StoreUnusable("--store %s: %s" % (path, exc))
    except BaseException:
        db.close()
        raise


def _prepare_database(db, path, sync):
    # in this order: another server may be making the file just now
    empty = not db.execute("SELECT count(*) FROM sqlite_master").fetchone()[0]
    found, version = (db.execute("PRAGMA " + name).fetchone()[0] for name in ("application_id", "user_version"))
    if not empty and found != _APPLICATION_ID:
        raise StoreUnusable("--store %s: this is a database of another program" % path)
    if version > STORE_VERSION:
        raise StoreUnusable("--store %s: version %d of a newer mockturtle; this one knows up to %d"
                            % (path, version, STORE_VERSION))
    db.execute("PRAGMA journal_mode = WAL")
    db.execute("PRAGMA synchronous = %s" % ("FULL" if sync == "full" else "NORMAL"))
    db.execute("PRAGMA cache_size = -8000")         # KB
    db.execute("PRAGMA temp_store = MEMORY")
    db.execute("BEGIN IMMEDIATE")                   # also finds out what cannot be written
    try:
        if empty and not db.execute("SELECT count(*) FROM sqlite_master").fetchone()[0]:
            _run_script(db, _SCHEMA_1)
            db.execute("PRAGMA application_id = %d" % _APPLICATION_ID)
            version = 1
        else:
            version = db.execute("PRAGMA user_version").fetchone()[0]
        for number in range(version + 1, STORE_VERSION + 1):
            _run_script(db, _UPGRADES[number])
        db.execute("PRAGMA user_version = %d" % STORE_VERSION)
    except BaseException:
        db.execute("ROLLBACK")
        raise
    db.execute("COMMIT")


def _run_script(db, script):
    for statement in script.split(";"):
        if statement.strip():
            db.execute(statement)


def network_file_system(path):
    """The kind of network file system that a path lies on, or None; known on Linux only."""
    try:
        with open("/proc/mounts", encoding="utf-8", errors="replace") as mounts:
            points = [line.split()[1:3] for line in mounts]
    except OSError:
        return None
    real = os.path.realpath(path)
    best = max((point for point in points if (real + "/").startswith(point[0].rstrip("/") + "/")),
               key=lambda point: len(point[0]), default=("/", ""))
    kind = best[1]
    return kind if kind.startswith(("nfs", "cifs", "smb", "9p", "fuse.sshfs", "afs", "ceph")) else None


class SqliteStore(Store):
    """path: the file. sync: "normal" survives the process's end, "full" the machine's too. log(level,
    message). Bounds as in MemoryStore. May be called from any thread; one at a time works on the file."""

    blocking = True

    def __init__(self, path, max_responses=10000, max_bytes=256 * 1024 * 1024, ttl_s=86400.0, wall=time.time,
                 sync="normal", log=None, busy_timeout_s=BUSY_TIMEOUT_S):
        self._db = open_database(path, sync, busy_timeout_s)
        import sqlite3
        self._error = sqlite3.Error
        self._max_responses = max_responses
        self._max_bytes = max_bytes
        self._ttl_s = ttl_s
        self._wall = wall
        self._log = log or (lambda level, message: None)
        self._lock = threading.RLock()      # guards the connection and all below
        self._open = False                  # a transaction has begun
        self._broken = None                 # what spoiled the transaction that is open
        self._used = {}                     # node number -> when it was read last, not written yet
        self._used_conversations = {}       # id -> the same
        self._alive = weakref.WeakValueDictionary()     # number -> a node that somebody holds
        self._last_used = self._read_last_used(path)
        self._owner = os.urandom(8).hex()   # this process's token
        # What this process holds is known here; the file says it to others, and perhaps too late or not at all.
        self._claims = {}                   # id of a conversation -> who holds it
        self._running = set()               # ids of its background responses
        self._freed = []                    # (statement, values) for what it let go of, for the next commit
        self._renewed_s = 0.0
        self._told_broken = False
        self._busy_ms = int(busy_timeout_s * 1000)
        self._transaction = 0               # number of the one that is open, or of the next
        self._lost = deque(maxlen=1000)     # numbers of those that could not be committed
        self._fault = None                  # why the last of them could not
        self._thread = threading.local()    # .written: numbers of those that this thread wrote in

    def _read_last_used(self, path):
        """Should the clock have been set back, what is put now would else be the first to go."""
        try:
            return max(self._db.execute("SELECT ifnull(max(used), 0.0) FROM " + table).fetchone()[0]
                       for table in ("trees", "conversations", "nodes WHERE state = 0"))
        except self._error as exc:
            self._db.close()
            raise StoreUnusable("--store %s: %s" % (path, exc))

    # ---- transactions -------------------------------------------------------------------------

    @contextmanager
    def _reading(self):
        with self._lock:
            try:
                yield self._db
            except self._error as exc:
                raise self._broke(exc)

    @contextmanager
    def _writing(self):
        """Inside the open transaction, in a savepoint of its own: all of it or nothing."""
        with self._lock:
            db = self._db
            try:
                if self._broken is not None:
                    raise self._broken
                if not self._open:
                    db.execute("BEGIN IMMEDIATE")
                    self._open = True
                db.execute("SAVEPOINT one")
                try:
                    yield db
                except BaseException:
                    if db.in_transaction:
                        db.execute("ROLLBACK TO one")
                        db.execute("RELEASE one")
                    raise
                db.execute("RELEASE one")
                written = vars(self._thread).setdefault("written", [])
                if self._transaction not in written:
                    written.append(self._transaction)
            except self._error as exc:
                if self._open and not db.in_transaction:
                    self._broken = exc      # a full disk may undo the whole transaction
                raise self._broke(exc)

    def _broke(self, exc):
        if not self._told_broken:
            self._told_broken = True
            self._log("error", "the store: %s; answers that need it are 503 until it works again" % exc)
            self._wait_for_others(_IMPATIENT_MS)
        return StoreBroken(str(exc).split("\n")[0][:100])

    def _wait_for_others(self, milliseconds):
        try:
            self._db.execute("PRAGMA busy_timeout = %d" % milliseconds)
        except self._error:
            return                          # it is closed, or worse: the next call says so

    def written(self):
        return vars(self._thread).pop("written", None)

    def flush(self, mark=None):
        with self._lock:
            mark = mark or self.written()
            if self._open or self._freed:
                self._commit()
            if mark and not set(mark).isdisjoint(self._lost):
                raise self._broke(self._fault)

    def _commit(self):
        db, freed = self._db, len(self._freed)
        broken, self._broken = self._broken, None
        try:
            if broken is not None:
                raise broken
            if not self._open:
                db.execute("BEGIN IMMEDIATE")
            for statement, values in self._freed[:freed]:
                db.execute(statement, values)
            db.execute("COMMIT")
            del self._freed[:freed]
            if self._told_broken:
                self._told_broken = False
                self._log("notice", "the store works again")
                self._wait_for_others(self._busy_ms)
        except self._error as exc:
            self._lost.append(self._transaction)
            self._fault = exc
            self._broke(exc)
            self._roll_back()
        finally:
            self._open = False
            self._transaction += 1

    def _roll_back(self):
        try:
            if self._db.in_transaction:
                self._db.execute("ROLLBACK")
        except self._error as exc:
            self._log("error", "the store: %s" % exc)

    # ---- nodes --------------------------------------------------------------------------------

    def _node(self, row):
        (number, id, parent, created, body, out_from, out_to, input, tokens, hash, open_calls, calls, depth, state,
         drops, about, background, replay) = row
        node = _DiskNode(id, None, created, body, (out_from, out_to), input, tokens, hash,
                         frozenset(json.loads(open_calls)) if open_calls else frozenset(), (), calls,
                         state == _HIDDEN, tuple(json.loads(drops)) if drops else (), bool(background), replay,
                         json.loads(about) if about else None)
        node.number = number
        node.depth = depth
        node.addressable = state == _ADDRESSABLE
        node._store, node._parent_number = self, parent
        self._alive[number] = node
        return node

    def foreign_ids(self, number):
        """The item ids of a node's input that were not made for it."""
        with self._reading() as db:
            return tuple(item for item, in db.execute(
                "SELECT item FROM foreign_ids WHERE node = ? ORDER BY rowid", (number,)))

    def _tick(self):
        """The time for `used`, never the same twice, so that it orders."""
        self._last_used = max(self._wall(), self._last_used + 1e-5)
        return self._last_used

    def _select(self, where, *values):
        row = self._db.execute("SELECT %s FROM nodes WHERE %s" % (_NODE_COLUMNS, where), values).fetchone()
        return self._node(row) if row is not None else None

    def node_by_number(self, number):
        """A node of a chain, tombstones and hidden ones too."""
        with self._reading():
            return self._select("n = ?", number)

    def get(self, id):
        if not _is_text(id):
            return None
        with self._reading():
            node = self._select("id = ? AND state = 0", id)
            if node is None:
                return None
            if node.created_s + self._ttl_s > self._wall():
                self._used[node.number] = self._tick()
                return node
        self.delete(id)
        return None

    def put(self, node, conversation=None):
        with self._writing() as db:
            held = None
            if conversation is not None:
                held = db.execute("SELECT head, tree, owner FROM conversations WHERE id = ?",
                                  (conversation,)).fetchone()
                claim = self._claims.get(conversation)
                if held is not None and claim is not None and held[2] != "%s:%s" % (self._owner, claim):
                    raise StoreBroken("another server took the conversation over, as this one was silent for too long")
            if node.hidden and held is None:
                return
            if node.background and db.execute("SELECT 1 FROM nodes WHERE id = ?", (node.id,)).fetchone() is not None:
                raise StoreBroken("another server gave the response up, as this one was silent for too long")
            parent, tree = self._place(db, node)
            if tree is None and held is not None:
                tree = held[1]
            self._check_room(db, node.size_bytes, tree)
            number = self._insert(db, node, parent, tree, _HIDDEN if node.hidden else _ADDRESSABLE)
            db.execute("DELETE FROM running WHERE id = ?", (node.id,))
            self._running.discard(node.id)
            if held is not None:
                self._move_head(db, conversation, held[0], number)
            self._keep_bounds(db)

    def _place(self, db, node):
        """(number of a node's parent, its tree); ancestors that were freed meanwhile are taken in again."""
        lost, parent, row = [], node.parent, None
        while parent is not None:
            row = db.execute("SELECT n, tree FROM nodes WHERE id = ?", (parent.id,)).fetchone()
            if row is not None:
                break
            lost.append(parent)
            parent = parent.parent
        number, tree = row or (None, None)
        for parent in reversed(lost):
            if tree is None:
                tree = self._new_tree(db)
            number = self._insert(db, parent, number, tree, _HIDDEN if parent.hidden else _TOMBSTONE)
        return number, tree

    def _insert(self, db, node, parent, tree, state):
        now = self._tick()
        if tree is None:
            tree = self._new_tree(db)
        cursor = db.execute(
            "INSERT INTO nodes (id, parent, tree, created, used, body, out_from, out_to, input, tokens, hash, "
            "open_calls, calls, depth, state, drops, about, size, children, background, replay) VALUES "
            "(?, ?, ?, ?, ?, ?, ?, ?, ?, ?, ?, ?, ?, ?, ?, ?, ?, ?, 0, ?, ?)",
            (node.id, parent, tree, node.created_s, now, node.body, node.output_at[0], node.output_at[1],
             node.input, node.total_tokens, node.prefix_hash,
             json.dumps(sorted(node.open_calls)) if node.open_calls else None, node.calls, node.depth, state,
             json.dumps(node.drops) if node.drops else None, json.dumps(node.about) if node.about is not None else None,
             node.size_bytes, node.background, node.replay))
        number = cursor.lastrowid
        db.execute("UPDATE trees SET bytes = bytes + ?, refs = refs + 1, used = ? WHERE t = ?",
                   (node.size_bytes, now, tree))
        if parent is not None:
            db.execute("UPDATE nodes SET children = children + 1 WHERE n = ?", (parent,))
        for item in node.foreign_ids:
            db.execute("INSERT INTO foreign_ids VALUES (?, ?)", (_storable(item), number))
        self._count(db, responses=state == _ADDRESSABLE, tombstones=state == _TOMBSTONE, bytes=node.size_bytes)
        return number

    def _new_tree(self, db):
        return db.execute("INSERT INTO trees (bytes, refs, used) VALUES (0, 0, ?)", (self._tick(),)).lastrowid

    def _leave_tree(self, db, tree, size):
        """A node or a conversation has gone from a tree, which goes with its last."""
        db.execute("UPDATE trees SET bytes = bytes - ?, refs = refs - 1 WHERE t = ?", (size, tree))
        db.execute("DELETE FROM trees WHERE t = ? AND refs = 0", (tree,))

    def _count(self, db, responses=0, conversations=0, tombstones=0, bytes=0, evicted=0, expired=0):
        db.execute("UPDATE totals SET responses = responses + ?, conversations = conversations + ?, "
                   "tombstones = tombstones + ?, bytes = bytes + ?, evicted = evicted + ?, expired = expired + ?",
                   (responses, conversations, tombstones, bytes, evicted, expired))

    def _check_room(self, db, size, tree):
        needed = size
        if tree is not None:
            needed += db.execute("SELECT bytes FROM trees WHERE t = ?", (tree,)).fetchone()[0]
        if needed > self._max_bytes:
            raise StoreFull("This and its chain need %d bytes, more than the store may hold (%d)."
                            % (needed, self._max_bytes))

    def replace(self, node):
        with self._writing() as db:
            row = db.execute("SELECT n, size, tree FROM nodes WHERE id = ? AND state = 0", (node.id,)).fetchone()
            if row is None:
                return False
            self._check_room(db, node.size_bytes, None)
            now = self._tick()
            db.execute("UPDATE nodes SET body = ?, out_from = ?, out_to = ?, about = ?, size = ?, used = ? WHERE n = ?",
                       (node.body, node.output_at[0], node.output_at[1], json.dumps(node.about), node.size_bytes, now,
                        row[0]))
            db.execute("UPDATE trees SET bytes = bytes + ?, used = ? WHERE t = ?",
                       (node.size_bytes - row[1], now, row[2]))
            self._count(db, bytes=node.size_bytes - row[1])
            self._keep_bounds(db)
            return True

    def chats(self):
        with self._reading() as db:
            rows = db.execute("SELECT %s FROM nodes WHERE about IS NOT NULL AND state = 0 AND created > ? ORDER BY n"
                              % _NODE_COLUMNS, (self._wall() - self._ttl_s,)).fetchall()
            return [self._node(row) for row in rows]

    def delete(self, id):
        if not _is_text(id):
            return False
        with self._writing() as db:
            row = db.execute("SELECT n, created FROM nodes WHERE id = ? AND state = 0", (id,)).fetchone()
            if row is None:
                return False
            expired = row[1] + self._ttl_s <= self._wall()
            self._remove(db, row[0])
            if expired:
                self._count(db, expired=1)
            return not expired

    def find_item(self, id):
        if not _is_text(id):
            return None
        with self._reading() as db:
            made_by = item_response_id(id)
            node = self._select("id = ? AND state != 1", made_by) if made_by else None
            if node is None:
                row = db.execute("SELECT f.node FROM foreign_ids f JOIN nodes n ON n.n = f.node WHERE f.item = ? AND "
                                 "n.state != 1 ORDER BY f.rowid DESC LIMIT 1", (id,)).fetchone()
                node = self._select("n = ?", row[0]) if row is not None else None
            if node is None or not node.hidden and node.created_s + self._ttl_s <= self._wall():
                return None
        return node.find_item(id)

    # ---- bounds -------------------------------------------------------------------------------

    def _keep_bounds(self, db):
        while True:
            responses, conversations, size = db.execute(
                "SELECT responses, conversations, bytes FROM totals").fetchone()
            if responses > self._max_responses:
                self._write_used(db)
                for number, in db.execute("SELECT n FROM nodes WHERE state = 0 ORDER BY used, n LIMIT ?",
                                          (responses - self._max_responses,)).fetchall():
                    self._remove(db, number)
                    self._count(db, evicted=1)
            elif conversations > self._max_responses:
                self._write_used(db)
                id, = db.execute("SELECT id FROM conversations ORDER BY used, rowid LIMIT 1").fetchone()
                self._drop_conversation(db, id)
                self._count(db, evicted=1)
            elif size > self._max_bytes:
                self._evict_tree(db)
            else:
                return

    def _evict_tree(self, db):
        """The least recently used chain goes whole, with the conversations on it."""
        self._write_used(db)
        tree, = db.execute("SELECT t FROM trees ORDER BY used, t LIMIT 1").fetchone()
        gone = 0
        for id, in db.execute("SELECT id FROM conversations WHERE tree = ?", (tree,)).fetchall():
            self._drop_conversation(db, id)
            gone += 1
        for number, in db.execute("SELECT n FROM nodes WHERE tree = ? AND state = 0", (tree,)).fetchall():
            self._remove(db, number)
            gone += 1
        self._count(db, evicted=gone)

    def _remove(self, db, number):
        """Make a node unaddressable, and free it if nothing follows it."""
        db.execute("UPDATE nodes SET state = 1, about = NULL WHERE n = ?", (number,))
        db.execute("DELETE FROM foreign_ids WHERE node = ?", (number,))
        self._count(db, responses=-1, tombstones=1)
        self._free(db, number)

    def _free(self, db, number):
        """Free a node that nobody can reach, and the ancestors that it alone kept."""
        while number is not None:
            row = db.execute("SELECT parent, state, children, size, tree FROM nodes WHERE n = ?", (number,)).fetchone()
            if row is None or row[2] or row[1] == _ADDRESSABLE:
                return
            parent, state, _, size, tree = row
            held = self._alive.get(number)
            if held is not None:
                self._keep_context(held)
            db.execute("DELETE FROM nodes WHERE n = ?", (number,))
            if state == _HIDDEN:
                db.execute("DELETE FROM foreign_ids WHERE node = ?", (number,))
            self._leave_tree(db, tree, size)
            self._count(db, tombstones=-(state == _TOMBSTONE), bytes=-size)
            if parent is not None:
                db.execute("UPDATE nodes SET children = children - 1 WHERE n = ?", (parent,))
            number = parent

    def _keep_context(self, node):
        """A turn that runs has this node as its parent: what it was read from goes, so it is read whole."""
        if node.parent is not None:
            self._alive[node.parent.number] = node.parent
        node.foreign_ids

    def _write_used(self, db):
        used, self._used = self._used, {}
        talked, self._used_conversations = self._used_conversations, {}
        for id, when in talked.items():
            db.execute("UPDATE conversations SET used = max(used, ?) WHERE id = ?", (when, id))
            db.execute("UPDATE trees SET used = max(used, ?) WHERE t = (SELECT tree FROM conversations WHERE id = ?)",
                       (when, id))
        for number, when in used.items():
            db.execute("UPDATE nodes SET used = max(used, ?) WHERE n = ?", (when, number))
            db.execute("UPDATE trees SET used = max(used, ?) WHERE t = (SELECT tree FROM nodes WHERE n = ?)",
                       (when, number))

    def sweep(self, budget):
        """Drop expired nodes, and say that what this process holds is still held."""
        now = self._wall()
        with self._lock:
            if self._claims or self._running:
                if now - self._renewed_s >= LEASE_S / 5:
                    self._renew(now)
            with self._reading() as db:
                due = db.execute("SELECT n FROM nodes WHERE state = 0 AND created <= ? ORDER BY created LIMIT ?",
                                 (now - self._ttl_s, budget)).fetchall()
            if due or len(self._used) + len(self._used_conversations) > 1000:
                with self._writing() as db:
                    self._write_used(db)
                    for number, in due:
                        self._remove(db, number)
                    self._count(db, expired=len(due))
        return len(due)

    def _renew(self, now):
        with self._writing() as db:
            for id, owner in list(self._claims.items()):
                db.execute("UPDATE conversations SET lease = ? WHERE id = ? AND owner = ?",
                           (now + LEASE_S, id, "%s:%s" % (self._owner, owner)))
            for id in list(self._running):
                db.execute("UPDATE running SET lease = ? WHERE id = ? AND owner = ?", (now + LEASE_S, id, self._owner))
            self._renewed_s = now

    def stats(self):
        with self._reading() as db:
            row = db.execute("SELECT responses, conversations, tombstones, bytes, evicted, expired FROM totals").fetchone()
            return dict(zip(("responses", "conversations", "tombstones", "bytes", "evicted", "expired"), row))

    # ---- carrying state from file to file ------------------------------------------------------

    @contextmanager
    def snapshot(self):
        """What is read inside is of one moment, whatever other processes write meanwhile."""
        with self._reading() as db:
            db.execute("BEGIN")
        try:
            yield
        finally:
            self._roll_back()

    def all_nodes(self):
        """(Node, "response", "tombstone" or "hidden") of all, parents first."""
        number = 0
        while True:
            with self._reading() as db:
                row = db.execute("SELECT %s FROM nodes WHERE n > ? ORDER BY n LIMIT 1" % _NODE_COLUMNS,
                                 (number,)).fetchone()
                if row is None:
                    return
                number = row[0]
                node = self._node(row)
            yield node, _STATE_NAMES[row[13]]

    def all_conversations(self):
        with self._reading() as db:
            ids = [id for id, in db.execute("SELECT id FROM conversations ORDER BY created, id")]
        for id in ids:
            conversation = self.conversation(id)
            if conversation is not None:
                yield conversation

    def take_node(self, node, parent_id, state):
        """Keep a node that another store had. False when there is one with this id already."""
        with self._writing() as db:
            if db.execute("SELECT 1 FROM nodes WHERE id = ?", (node.id,)).fetchone() is not None:
                return False
            number = tree = None
            if parent_id is not None:
                row = db.execute("SELECT n, tree, depth FROM nodes WHERE id = ?", (parent_id,)).fetchone()
                if row is None:
                    raise StoreUnusable("node %s comes before its parent %s" % (node.id, parent_id))
                number, tree, depth = row
                node.depth = depth + 1
            self._insert(db, node, number, tree, _STATE_NAMES.index(state))
            return True

    def take_conversation(self, conversation, head_id):
        """Keep a conversation that another store had. False when there is one with this id already."""
        with self._writing() as db:
            if db.execute("SELECT 1 FROM conversations WHERE id = ?", (conversation.id,)).fetchone() is not None:
                return False
            conversation.head = None
            self.create_conversation(conversation)
            if head_id is not None:
                row = db.execute("SELECT n, tree FROM nodes WHERE id = ?", (head_id,)).fetchone()
                if row is None:
                    raise StoreUnusable("conversation %s comes before its head %s" % (conversation.id, head_id))
                size = conversation.size_bytes()
                old, = db.execute("SELECT tree FROM conversations WHERE id = ?", (conversation.id,)).fetchone()
                self._leave_tree(db, old, size)
                db.execute("UPDATE trees SET bytes = bytes + ?, refs = refs + 1 WHERE t = ?", (size, row[1]))
                db.execute("UPDATE conversations SET tree = ? WHERE id = ?", (row[1], conversation.id))
                self._move_head(db, conversation.id, None, row[0])
            return True

    # ---- conversations ------------------------------------------------------------------------

    def create_conversation(self, conversation):
        with self._writing() as db:
            head, size = conversation.head, conversation.size_bytes()
            self._check_room(db, size + (head.size_bytes if head is not None else 0), None)
            tree = self._new_tree(db)
            number = self._insert(db, head, None, tree, _HIDDEN) if head is not None else None
            db.execute("INSERT INTO conversations (id, created, used, metadata, head, tree, size) VALUES "
                       "(?, ?, ?, ?, ?, ?, ?)", (conversation.id, conversation.created_s, self._tick(),
                                                 json.dumps(conversation.metadata), number, tree, size))
            db.execute("UPDATE trees SET bytes = bytes + ?, refs = refs + 1 WHERE t = ?", (size, tree))
            if number is not None:
                db.execute("UPDATE nodes SET children = children + 1 WHERE n = ?", (number,))
            self._count(db, conversations=1, bytes=size)
            self._keep_bounds(db)

    def conversation(self, id):
        if not _is_text(id):
            return None
        with self._reading() as db:
            conversation = self._read_conversation(db, id)
            if conversation is not None:
                self._used_conversations[id] = self._tick()
            return conversation

    def _read_conversation(self, db, id):
        row = db.execute("SELECT created, metadata, head, owner, lease FROM conversations WHERE id = ?",
                         (id,)).fetchone()
        if row is None:
            return None
        created, metadata, head, owner, lease = row
        conversation = Conversation(id, created, json.loads(metadata),
                                    self._select("n = ?", head) if head is not None else None)
        if owner is not None:
            process, _, response = owner.partition(":")
            if self._claims.get(id) == response if process == self._owner else lease > self._wall():
                conversation.owner = response
        return conversation

    def describe_conversation(self, id, metadata):
        with self._writing() as db:
            conversation = self._read_conversation(db, id) if _is_text(id) else None
            if conversation is not None:
                grown = -conversation.size_bytes()
                conversation.metadata = metadata
                grown += conversation.size_bytes()
                db.execute("UPDATE conversations SET metadata = ?, size = size + ?, used = ? WHERE id = ?",
                           (json.dumps(metadata), grown, self._tick(), id))
                db.execute("UPDATE trees SET bytes = bytes + ?, used = ? WHERE t = (SELECT tree FROM conversations WHERE "
                           "id = ?)", (grown, self._tick(), id))
                self._count(db, bytes=grown)
                self._keep_bounds(db)
            return conversation

    def delete_conversation(self, id):
        if not _is_text(id):
            return False
        with self._writing() as db:
            if db.execute("SELECT 1 FROM conversations WHERE id = ?", (id,)).fetchone() is None:
                return False
            self._drop_conversation(db, id)
            return True

    def _drop_conversation(self, db, id):
        head, size, tree = db.execute("SELECT head, size, tree FROM conversations WHERE id = ?", (id,)).fetchone()
        db.execute("DELETE FROM conversations WHERE id = ?", (id,))
        self._count(db, conversations=-1, bytes=-size)
        self._claims.pop(id, None)
        if head is not None:
            db.execute("UPDATE nodes SET children = children - 1 WHERE n = ?", (head,))
            self._free(db, head)
        self._leave_tree(db, tree, size)

    def _move_head(self, db, conversation, old, number):
        db.execute("UPDATE conversations SET head = ? WHERE id = ?", (number, conversation))
        db.execute("UPDATE nodes SET children = children + 1 WHERE n = ?", (number,))
        if old is not None:
            db.execute("UPDATE nodes SET children = children - 1 WHERE n = ?", (old,))
            self._free(db, old)

    def claim_conversation(self, id, owner):
        if not _is_text(id):
            return None
        with self._writing() as db:
            conversation = self._read_conversation(db, id)
            if conversation is not None:
                self._used_conversations[id] = self._tick()
            if conversation is not None and conversation.owner is None:
                db.execute("UPDATE conversations SET owner = ?, lease = ? WHERE id = ?",
                           ("%s:%s" % (self._owner, owner), self._wall() + LEASE_S, id))
                conversation.owner = owner
                self._claims[id] = owner
            return conversation

    def release_conversation(self, id, owner):
        """It never waits, and never fails: here it is free at once, for others when the file says so."""
        if self._claims.get(id) == owner:
            self._claims.pop(id, None)
            self._freed.append(("UPDATE conversations SET owner = NULL, lease = NULL WHERE id = ? AND owner = ?",
                                (id, "%s:%s" % (self._owner, owner))))

    # ---- background responses, which any server on this file can see -------------------------------

    def begin_running(self, id, body, input, parent):
        with self._writing() as db:
            row = None
            if parent is not None:
                row = db.execute("SELECT n FROM nodes WHERE id = ?", (parent.id,)).fetchone()
            db.execute("INSERT INTO running VALUES (?, ?, ?, ?, ?, ?, ?)",
                       (id, self._owner, self._wall() + LEASE_S, self._wall(), body, input, row and row[0]))
            self._running.add(id)

    def running(self, id):
        if not _is_text(id):
            return None
        with self._reading() as db:
            row = self._read_running(db, id)
            if row is None:
                return None
            owner, lease, body, input, number, created = row
            ours = owner == self._owner
            if ours and id not in self._running:
                return None                 # it is over, and the file does not say so yet
            if ours or lease > self._wall():
                return RunningResponse(id, body, input, self._select("n = ?", number) if number else None, ours)
        self._fail_orphan(id)
        return None

    def _read_running(self, db, id):
        return db.execute("SELECT owner, lease, body, input, parent, created FROM running WHERE id = ?",
                          (id,)).fetchone()

    def _fail_orphan(self, id):
        """The server that was generating it has gone: it failed, and is a node like any other."""
        with self._writing() as db:
            row = self._read_running(db, id)
            if row is None or row[1] > self._wall():
                return                      # another server did so meanwhile, or the owner lives
            _, _, body, input, number, created = row
            parent = self._select("n = ?", number) if number else None
            value = json.loads(body)
            value.update(status="failed", error={"code": "server_error", "message": "The server that was generating "
                                                 "this response has gone."})
            output = value.pop("output")
            text = json.dumps(value, separators=(",", ":")).encode("ascii")[:-1] + b',"output":'
            told = json.dumps(output, separators=(",", ":")).encode("ascii")
            tokens = parent.total_tokens if parent is not None else 0
            self.put(Node(id, parent, created, text + told + b"}", (len(text), len(text) + len(told)), input, tokens,
                          b"orphan" + id.encode("ascii"), background=True))

    def delete_running(self, id):
        with self._writing() as db:
            db.execute("DELETE FROM running WHERE id = ? AND owner = ?", (id, self._owner))
            self._running.discard(id)

    def forget_running(self, id):
        """As release_conversation()."""
        self._running.discard(id)
        self._freed.append(("DELETE FROM running WHERE id = ? AND owner = ?", (id, self._owner)))

    def close(self):
        with self._lock:
            try:
                if self._open or self._freed:
                    self._commit()
                # what this process held is free at once, not when its lease ends
                self._db.execute("UPDATE conversations SET owner = NULL, lease = NULL WHERE owner LIKE ?",
                                 (self._owner + ":%",))
                self._db.execute("UPDATE running SET lease = 0 WHERE owner = ?", (self._owner,))
            except self._error as exc:
                self._log("error", "the store could not be closed in order: %s" % exc)
            self._db.close()


def _is_text(id):
    """Half a surrogate pair is no id, and SQLite takes none."""
    try:
        id.encode("utf-8")
    except UnicodeEncodeError:
        return False
    return True


def _storable(text):
    return text.encode("utf-8", "replace").decode("utf-8")
