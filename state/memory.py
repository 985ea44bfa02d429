"""The default store: nodes in dicts, within bounds of count, bytes and age. It never waits.

Removing a node that has descendants leaves a tombstone: unaddressable, but its text still belongs
to the context of those who follow it, so it goes on counting in bytes until the last of them goes.
"""
import threading
import time
from collections import OrderedDict

from state.contract import Store, StoreFull, item_response_id


class _MemoryTree:
    """All nodes that share a root: what the byte bound evicts as a whole."""

    __slots__ = ("bytes", "ids")

    def __init__(self):
        self.bytes = 0
        self.ids = set()            # of its addressable nodes


def _lost_ancestors(node):
    """The ancestors that were freed while this node's turn ran, newest first."""
    lost, node = [], node.parent
    while node is not None and node.tree is None:
        lost.append(node)
        node = node.parent
    return lost


class MemoryStore(Store):
    """max_responses: addressable nodes. max_bytes: all nodes, tombstones too. ttl_s: their age
    since creation. wall: the wall clock that ages are measured with."""

    blocking = False

    def __init__(self, max_responses=10000, max_bytes=256 * 1024 * 1024, ttl_s=86400.0,
                 wall=time.time):
        self._max_responses = max_responses
        self._max_bytes = max_bytes
        self._ttl_s = ttl_s
        self._wall = wall
        self._lock = threading.Lock()       # guards everything below
        self._nodes = OrderedDict()         # id -> Node, least recently used first
        self._trees = OrderedDict()         # _MemoryTree -> None, least recently used first
        self._by_age = OrderedDict()        # id -> Node, oldest first
        self._foreign = {}                  # an item id that a client chose -> Node
        self._bytes = 0
        self._tombstones = 0
        self._evicted = 0
        self._expired = 0

    def get(self, id):
        with self._lock:
            node = self._nodes.get(id)
            if node is None:
                return None
            if node.created_s + self._ttl_s <= self._wall():
                self._expired += 1
                self._remove(node)
                return None
            self._nodes.move_to_end(id)
            self._trees.move_to_end(node.tree)
            return node

    def put(self, node):
        with self._lock:
            top, lost, needed = node.parent, (), node.size_bytes
            if top is not None:
                if top.tree is None:
                    lost = _lost_ancestors(node)
                    top = lost[-1].parent
                    needed += sum(each.size_bytes for each in lost)
                if top is not None:
                    needed += top.tree.bytes
            if needed > self._max_bytes:
                raise StoreFull("The response and its chain need %d bytes, more than the store may hold (%d)."
                                % (needed, self._max_bytes))
            if top is None:
                tree = _MemoryTree()
                self._trees[tree] = None
            else:
                tree = top.tree
                self._trees.move_to_end(tree)
            for each in lost:
                self._add(each, tree)
                self._tombstones += 1
            self._add(node, tree)
            node.addressable = True
            tree.ids.add(node.id)
            self._nodes[node.id] = node
            self._by_age[node.id] = node
            for foreign in node.foreign_ids:
                self._foreign[foreign] = node
            self._keep_bounds()

    def delete(self, id):
        with self._lock:
            node = self._nodes.get(id)
            if node is None:
                return False
            expired = node.created_s + self._ttl_s <= self._wall()
            self._expired += expired
            self._remove(node)
            return not expired

    def find_item(self, id):
        with self._lock:
            node = self._nodes.get(item_response_id(id)) or self._foreign.get(id)
            if node is None or node.created_s + self._ttl_s <= self._wall():
                return None
        for items in (node.output_items(), node.input_items()):
            for item in items:
                if item.get("id") == id:
                    return item
        return None

    def sweep(self, budget):
        gone = 0
        with self._lock:
            limit = self._wall() - self._ttl_s
            while gone < budget and self._by_age:
                node = next(iter(self._by_age.values()))
                if node.created_s > limit:
                    break
                self._expired += 1
                self._remove(node)
                gone += 1
        return gone

    def stats(self):
        with self._lock:
            return {"responses": len(self._nodes), "tombstones": self._tombstones,
                    "bytes": self._bytes, "evicted": self._evicted, "expired": self._expired}

    # From here on the lock is held.

    def _add(self, node, tree):
        node.tree = tree
        tree.bytes += node.size_bytes
        self._bytes += node.size_bytes
        if node.parent is not None:
            node.parent.children += 1

    def _keep_bounds(self):
        while len(self._nodes) > self._max_responses:
            self._evicted += 1
            self._remove(next(iter(self._nodes.values())))
        while self._bytes > self._max_bytes:
            tree = next(iter(self._trees))
            self._evicted += len(tree.ids)
            for id in list(tree.ids):
                self._remove(self._nodes[id])

    def _remove(self, node):
        """Take a node out of the index; free it, and the tombstones that it alone kept."""
        del self._nodes[node.id]
        del self._by_age[node.id]
        for foreign in node.foreign_ids:
            if self._foreign.get(foreign) is node:
                del self._foreign[foreign]
        node.addressable = False
        node.tree.ids.discard(node.id)
        self._tombstones += 1
        # A node that a running turn holds as its parent may be freed here; that turn's put()
        # finds it by its missing tree and takes it in again as a tombstone.
        while node is not None and not node.addressable and not node.children:
            tree, parent = node.tree, node.parent
            self._tombstones -= 1
            self._bytes -= node.size_bytes
            tree.bytes -= node.size_bytes
            node.tree = None
            if parent is None:
                del self._trees[tree]
            else:
                parent.children -= 1
            node = parent
