"""What is remembered, in words that fit every store: nodes, chains, bounds.

A response is a node: its parent, this turn's input items and its own object as JSON bytes, and a
few numbers that make the next turn cheap. Nothing is copied forward: a chain of n turns costs
memory linear in its text.
"""
import json

from api_common import ID_TAIL_CHARS

NODE_OVERHEAD_BYTES = 700           # one node's Python objects, measured: see bench, "memory"
ITEM_TAIL_AT = ("msg_", "rs_", "fc_", "fco_", "ctc_", "ctco_", "ws_", "fs_", "cmp_", "it_")


LONG_CHAIN_TURNS = 100              # walking more takes some ms: not on the loop


class StoreFull(Exception):
    """A node does not fit into the store's bounds even when all else has gone."""


class Node:
    """One stored response.

    id str. parent Node or None. created_s float, wall time. body bytes: the response object as it
    was sent. output_at (start, end): where the output array lies in body. input bytes: a JSON
    array of this turn's input items as stored. total_tokens int: the context that the next turn
    reads (its parent's, this input, this output; instructions are not among them). prefix_hash
    bytes: of the same context's content. open_calls frozenset of call ids without an output yet.
    calls int: tool calls made in the context. depth int: turns of the chain up to this one.
    foreign_ids tuple of item ids that came from the client.
    """

    __slots__ = ("id", "parent", "created_s", "body", "output_at", "input", "total_tokens",
                 "prefix_hash", "open_calls", "calls", "foreign_ids", "size_bytes", "children", "tree",
                 "addressable", "depth")

    def __init__(self, id, parent, created_s, body, output_at, input, total_tokens, prefix_hash,
                 open_calls=frozenset(), foreign_ids=(), calls=0):
        self.id = id
        self.parent = parent
        self.created_s = created_s
        self.body = body
        self.output_at = output_at
        self.input = input
        self.total_tokens = total_tokens
        self.prefix_hash = prefix_hash
        self.open_calls = open_calls
        self.foreign_ids = foreign_ids
        self.calls = calls
        self.size_bytes = len(body) + len(input) + NODE_OVERHEAD_BYTES
        self.depth = parent.depth + 1 if parent is not None else 1
        self.children = 0           # kept by the store
        self.tree = None            # kept by the store
        self.addressable = False    # kept by the store: in its index, not a tombstone

    def output(self):
        """The output array's JSON bytes."""
        start, end = self.output_at
        return self.body[start:end]

    def input_items(self):
        return json.loads(self.input)

    def output_items(self):
        return json.loads(self.output())

    def chain(self):
        """The nodes from this one back to the root, newest first."""
        node = self
        while node is not None:
            yield node
            node = node.parent


def item_response_id(id):
    """The id of the response that gave an item this id, or None for a foreign one."""
    prefix, _, rest = id.partition("_")
    if prefix + "_" in ITEM_TAIL_AT and len(rest) >= ID_TAIL_CHARS + 2:
        return "resp_" + rest[:ID_TAIL_CHARS]
    return None


class Store:
    """Where nodes live. Every method may be called from any thread.

    blocking: whether a method may wait (for a disk, another process); then nobody calls it on
    the loop or the pacer.
    """

    blocking = True

    def get(self, id):
        """The addressable Node with this id, or None: unknown, deleted, evicted, expired."""
        raise NotImplementedError

    def put(self, node):
        """Keep a new node. Raises StoreFull, and then keeps nothing of it."""
        raise NotImplementedError

    def delete(self, id):
        """Make a node unaddressable. True if it was there; its descendants keep its context."""
        raise NotImplementedError

    def find_item(self, id):
        """The stored item with this id as a dict, or None."""
        raise NotImplementedError

    def sweep(self, budget):
        """Drop at most `budget` expired nodes; how many went."""
        raise NotImplementedError

    def stats(self):
        """{"responses": int, "tombstones": int, "bytes": int, "evicted": int, "expired": int}"""
        raise NotImplementedError

    def close(self):
        """Let go of files; nothing is called after it."""
