"""The default store: nodes in dicts, within bounds of count, bytes and age. It never waits.

Removing a node that has descendants leaves a tombstone: unaddressable, but its text still belongs
to the context of those who follow it, so it goes on counting in bytes until the last of them goes.
"""
import threading
import time
from collections import OrderedDict

from state.contract import Store, StoreFull, item_response_id


class _MemoryTree:
    """All nodes that share a root, and the conversations on them: what the byte bound evicts as a
    whole."""

    __slots__ = ("bytes", "ids", "conversations", "nodes")

    def __init__(self):
        self.bytes = 0
        self.ids = set()            # of its addressable nodes
        self.conversations = set()  # ids
        self.nodes = 0              # all of them, tombstones too


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
        self._hidden = {}                   # id -> Node that is in a chain only
        self._chats = OrderedDict()         # id -> Node of a stored chat completion, oldest first
        self._conversations = OrderedDict()     # id -> Conversation, least recently used first
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

    def put(self, node, conversation=None):
        with self._lock:
            held = self._conversations.get(conversation) if conversation is not None else None
            if node.hidden and held is None:
                return                      # nothing would ever lead to it
            top, lost, needed = node.parent, (), node.size_bytes
            if top is not None:
                if top.tree is None:
                    lost = _lost_ancestors(node)
                    top = lost[-1].parent
                    needed += sum(each.size_bytes for each in lost)
            tree = top.tree if top is not None else held.tree if held is not None else None
            if tree is not None:
                needed += tree.bytes
            if needed > self._max_bytes:
                self._check_room(needed)
            if tree is None:
                tree = _MemoryTree()
                self._trees[tree] = None
            else:
                self._trees.move_to_end(tree)
            for each in lost:
                self._add(each, tree)
                self._tombstones += not each.hidden
            self._add(node, tree)
            if not node.hidden:
                if node.foreign_ids:
                    self._learn_foreign(node)
                node.addressable = True
                tree.ids.add(node.id)
                self._nodes[node.id] = node
                self._by_age[node.id] = node
                if node.about is not None:
                    self._chats[node.id] = node
            if held is not None:
                self._move_head(held, node)
            self._keep_bounds()

    def replace(self, node):
        with self._lock:
            old = self._nodes.get(node.id)
            if old is None:
                return False
            self._check_room(node.size_bytes - old.size_bytes + old.tree.bytes)
            tree = node.tree = old.tree
            old.tree = None
            node.children, node.addressable = old.children, True
            tree.bytes += node.size_bytes - old.size_bytes
            self._bytes += node.size_bytes - old.size_bytes
            for index in (self._nodes, self._by_age, self._chats):
                if node.id in index:
                    index[node.id] = node
            self._nodes.move_to_end(node.id)
            self._trees.move_to_end(tree)
            self._keep_bounds()
        return True

    def chats(self):
        with self._lock:
            limit = self._wall() - self._ttl_s
            return [node for node in self._chats.values() if node.created_s > limit]

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
            made_by = item_response_id(id)
            node = self._nodes.get(made_by) or self._hidden.get(made_by) or self._foreign.get(id)
            if node is None or not node.hidden and node.created_s + self._ttl_s <= self._wall():
                return None
        return node.find_item(id)

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

    def clear(self):
        with self._lock:
            for conversation in list(self._conversations.values()):
                self._drop_conversation(conversation)
            for node in list(self._nodes.values()):
                self._remove(node)
            self._evicted = self._expired = 0
        return True

    def stats(self):
        with self._lock:
            return {"responses": len(self._nodes), "conversations": len(self._conversations),
                    "tombstones": self._tombstones,
                    "bytes": self._bytes, "evicted": self._evicted, "expired": self._expired}

    # ---- conversations ------------------------------------------------------------------------

    def create_conversation(self, conversation):
        with self._lock:
            head, conversation.head = conversation.head, None
            self._check_room(conversation.size_bytes() + (head.size_bytes if head is not None else 0))
            tree = conversation.tree = _MemoryTree()
            self._trees[tree] = None
            tree.conversations.add(conversation.id)
            tree.bytes += conversation.size_bytes()
            self._bytes += conversation.size_bytes()
            self._conversations[conversation.id] = conversation
            if head is not None:
                self._add(head, tree)
                self._move_head(conversation, head)
            self._keep_bounds()

    def conversation(self, id):
        with self._lock:
            return self._used_conversation(id)

    def describe_conversation(self, id, metadata):
        with self._lock:
            conversation = self._used_conversation(id)
            if conversation is not None:
                grown = -conversation.size_bytes()
                conversation.metadata = metadata
                grown += conversation.size_bytes()
                conversation.tree.bytes += grown
                self._bytes += grown
                self._keep_bounds()
            return conversation

    def delete_conversation(self, id):
        with self._lock:
            conversation = self._conversations.get(id)
            if conversation is None:
                return False
            self._drop_conversation(conversation)
            return True

    def claim_conversation(self, id, owner):
        with self._lock:
            conversation = self._used_conversation(id)
            if conversation is not None and conversation.owner is None:
                conversation.owner = owner
            return conversation

    def release_conversation(self, id, owner):
        with self._lock:
            conversation = self._conversations.get(id)
            if conversation is not None and conversation.owner == owner:
                conversation.owner = None

    # From here on the lock is held.

    def _used_conversation(self, id):
        conversation = self._conversations.get(id)
        if conversation is not None:
            self._conversations.move_to_end(id)
            self._trees.move_to_end(conversation.tree)
        return conversation

    def _move_head(self, conversation, node):
        """A conversation counts as a child of its head, so that the head stays."""
        old, conversation.head = conversation.head, node
        node.children += 1
        if old is not None:
            old.children -= 1
            self._free(old)

    def _drop_conversation(self, conversation):
        del self._conversations[conversation.id]
        tree = conversation.tree
        size = conversation.size_bytes()
        tree.conversations.discard(conversation.id)
        tree.bytes -= size
        self._bytes -= size
        conversation.tree = None
        head = conversation.head
        if head is not None:
            head.children -= 1
            self._free(head)
        self._forget_tree(tree)

    def _check_room(self, needed):
        if needed > self._max_bytes:
            raise StoreFull("This and its chain need %d bytes, more than the store may hold (%d)."
                            % (needed, self._max_bytes))

    def _add(self, node, tree):
        node.tree = tree
        tree.nodes += 1
        tree.bytes += node.size_bytes
        self._bytes += node.size_bytes
        if node.parent is not None:
            node.parent.children += 1
        if node.hidden:
            self._hidden[node.id] = node
            self._learn_foreign(node)

    def _learn_foreign(self, node):
        for foreign in node.foreign_ids:
            self._foreign[foreign] = node

    def _keep_bounds(self):
        while len(self._nodes) > self._max_responses:
            self._evicted += 1
            self._remove(next(iter(self._nodes.values())))
        while len(self._conversations) > self._max_responses:
            self._evicted += 1
            self._drop_conversation(next(iter(self._conversations.values())))
        while self._bytes > self._max_bytes:
            tree = next(iter(self._trees))
            self._evicted += len(tree.ids) + len(tree.conversations)
            for id in list(tree.conversations):
                self._drop_conversation(self._conversations[id])
            for id in list(tree.ids):
                self._remove(self._nodes[id])

    def _remove(self, node):
        """Take a node out of the index, and free it if nothing follows it."""
        del self._nodes[node.id]
        del self._by_age[node.id]
        if node.about is not None:
            del self._chats[node.id]
        if node.foreign_ids:
            self._forget_foreign(node)
        node.addressable = False
        node.tree.ids.discard(node.id)
        self._tombstones += 1
        if not node.children:
            self._free(node)

    def _forget_foreign(self, node):
        for foreign in node.foreign_ids:
            if self._foreign.get(foreign) is node:
                del self._foreign[foreign]

    def _free(self, node):
        """Free a node that nobody can reach, and the ancestors that it alone kept.

        A node that a running turn holds as its parent may be freed here; that turn's put() finds it
        by its missing tree and takes it in again as a tombstone.
        """
        while node is not None and not node.addressable and not node.children and node.tree is not None:
            tree, parent = node.tree, node.parent
            if node.hidden:
                del self._hidden[node.id]
                self._forget_foreign(node)
            else:
                self._tombstones -= 1
            self._bytes -= node.size_bytes
            tree.bytes -= node.size_bytes
            tree.nodes -= 1
            node.tree = None
            if not tree.nodes:
                self._forget_tree(tree)
            if parent is not None:
                parent.children -= 1
            node = parent

    def _forget_tree(self, tree):
        if not tree.nodes and not tree.conversations:
            self._trees.pop(tree, None)
