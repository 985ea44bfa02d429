"""What is remembered, in words that fit every store: nodes, chains, conversations, bounds.

A response is a node: its parent, this turn's input items and its own object as JSON bytes, and a
few numbers that make the next turn cheap. Nothing is copied forward: a chain of n turns costs
memory linear in its text. A conversation is a name for the node at its end. A stored chat
completion is a node without a chain.
"""
import json

from api_common import ID_TAIL_CHARS, ApiError

CONVERSATION_BYTES = 700            # one conversation's Python objects
NODE_OVERHEAD_BYTES = 700           # one node's Python objects, measured: see bench, "memory"
ITEM_TAIL_AT = frozenset((
    "msg_", "rs_", "fc_", "fco_", "ctc_", "ctco_", "ws_", "fs_", "cmp_", "it_", "ci_", "ig_", "mcp_", "mcpl_", "mcpr_",
    "sh_", "sho_", "lsh_", "apc_", "cu_"))


LONG_CHAIN_TURNS = 100              # walking more takes some ms: not on the loop
_LONG_NODE_BYTES = 100000           # so does parsing more of one turn


class StoreFull(ApiError):
    """A node does not fit into the store's bounds even when all else has gone."""

    def __init__(self, message):
        super().__init__(500, message, type="server_error")


class Node:
    """One stored response; or items that were put into a conversation or taken out, or a stored chat.

    id str. parent Node or None. created_s float, wall time. body bytes: the response object as it
    was sent. output_at (start, end): where the output array lies in body. input bytes: a JSON
    array of this turn's input items as stored. total_tokens int: the context that the next turn
    reads (its parent's, this input, this output; instructions are not among them). prefix_hash
    bytes: of the same context's content. open_calls frozenset of call ids without an output yet.
    calls int: tool calls made in the context. depth int: turns of the chain up to this one.
    foreign_ids tuple of the input's item ids that were not made for it: a client's, or references. hidden bool: part of a chain, but no
    response that anybody can ask for (items put into a conversation; store: false). drops tuple of
    item ids that are not in the context of this node and its descendants (deleted from a
    conversation). background bool. replay bytes or None: the stream's events, see
    background.pack_events. about dict or None: what a stored chat completion is listed by.
    """

    __slots__ = ("id", "parent", "created_s", "body", "output_at", "input", "total_tokens",
                 "prefix_hash", "open_calls", "calls", "foreign_ids", "size_bytes", "children", "tree",
                 "addressable", "depth", "hidden", "drops", "background", "replay", "about")

    def __init__(self, id, parent, created_s, body, output_at, input, total_tokens, prefix_hash,
                 open_calls=frozenset(), foreign_ids=(), calls=0, hidden=False, drops=(),
                 background=False, replay=None, about=None):
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
        self.hidden = hidden
        self.drops = drops
        self.background = background
        self.replay = replay
        self.about = about
        self.size_bytes = len(body) + len(input) + NODE_OVERHEAD_BYTES
        if replay is not None:
            self.size_bytes += len(replay)
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

    def find_item(self, id):
        """This turn's item with this id as a dict, or None."""
        for items in (self.output_items(), self.input_items()):
            for item in items:
                if item.get("id") == id:
                    return item
        return None

    def chain(self):
        """The nodes from this one back to the root, newest first."""
        node = self
        while node is not None:
            yield node
            node = node.parent


def iter_context(node, newest_first=False, own_output=False, breathe=None):
    """The items of a node's context, as dicts, without those that were dropped; every id once.

    own_output: whether the node's own output is among them; its input always is. An item that comes
    again (by reference, or sent back) counts where it came last; another item under an id that was
    used before gets a number behind it, as lists page by ids.
    """
    chain = list(node.chain())
    if _repeats_ids(chain):
        items = _numbered(chain[::-1], node, own_output, breathe)
        yield from reversed(items) if newest_first else items
        return
    dropped = frozenset().union(*[each.drops for each in chain])
    for each in chain if newest_first else reversed(chain):
        items = _node_items(each, node, own_output, breathe)
        for item in reversed(items) if newest_first else items:
            if item["id"] not in dropped:
                yield item


def _node_items(each, last, own_output, breathe):
    if breathe is not None:
        breathe()
    if own_output or each is not last:
        return each.input_items() + each.output_items()
    return each.input_items()


def _repeats_ids(chain):
    """Whether an id may come twice: the server's own are unique, unless a client sends them back."""
    foreign = [id for each in chain for id in each.foreign_ids]
    if not foreign:
        return False
    nodes = {each.id for each in chain}
    return len(set(foreign)) < len(foreign) or any(item_response_id(id) in nodes for id in foreign)


def _numbered(nodes, last, own_output, breathe):
    """The items of nodes, oldest first, with ids that are unique; a drop takes what came before it."""
    kept, numbers, known = {}, {}, {}
    for each in nodes:
        for item in _node_items(each, last, own_output, breathe):
            id = item["id"]
            words = json.dumps(dict(item, id=None), sort_keys=True)
            key = known.get((id, words))
            if key is None or key not in kept:
                key, number = id, numbers.get(id, 1)
                while key in kept:
                    number += 1
                    key = "%s_%d" % (id, number)
                numbers[id] = number
                known[id, words] = key
            kept.pop(key, None)             # what comes again counts where it came last
            kept[key] = dict(item, id=key)
        for id in each.drops:
            if kept.pop(id, None) is not None:
                numbers.pop(id, None)       # its number is free again
    return list(kept.values())


def is_long_walk(node, whole):
    """Whether reading a node's context takes too long for the loop. whole: all of it, or the first page."""
    if whole and node.depth > LONG_CHAIN_TURNS:
        return True
    chain = list(node.chain())
    return (_repeats_ids(chain) or sum(len(each.drops) for each in chain) > LONG_CHAIN_TURNS
            or any(len(each.input) + len(each.body) > _LONG_NODE_BYTES for each in chain[:LONG_CHAIN_TURNS]))


class Conversation:
    """A chain's name that moves: its head is the node of its last turn.

    id str. created_s float. metadata dict. head Node or None. owner str or None: the id of the
    response that is being generated in it; meanwhile nobody else writes.
    """

    __slots__ = ("id", "created_s", "metadata", "head", "owner", "tree")

    def __init__(self, id, created_s, metadata, head=None):
        self.id = id
        self.created_s = created_s
        self.metadata = metadata
        self.head = head
        self.owner = None
        self.tree = None            # kept by the store

    def size_bytes(self):
        return CONVERSATION_BYTES + sum(len(key) + len(value) for key, value in self.metadata.items())


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

    def put(self, node, conversation=None):
        """Keep a new node. conversation: id of the one that it becomes the head of, if that is still
        there. Raises StoreFull, and then keeps nothing of it and moves nothing."""
        raise NotImplementedError

    def replace(self, node):
        """Put a stored chat completion in the place of the one with the same id. False if that has gone."""
        raise NotImplementedError

    def chats(self):
        """The stored chat completions' nodes, oldest first, as a list."""
        raise NotImplementedError

    def create_conversation(self, conversation):
        """Keep a new Conversation; its head, if it has one, is a hidden node that is kept with it.
        Raises StoreFull."""
        raise NotImplementedError

    def conversation(self, id):
        """The Conversation with this id, or None."""
        raise NotImplementedError

    def describe_conversation(self, id, metadata):
        """Give a conversation other metadata. The Conversation, or None when there is none."""
        raise NotImplementedError

    def delete_conversation(self, id):
        """True if it was there. Responses that were made in it keep their context."""
        raise NotImplementedError

    def claim_conversation(self, id, owner):
        """Make `owner` (a response's id) the only writer of a conversation, until it lets go.

        The Conversation as it is now, or None when there is none; its `owner` tells who has it.
        """
        raise NotImplementedError

    def release_conversation(self, id, owner):
        """Let go of a conversation, if it is still there and still this owner's."""
        raise NotImplementedError

    def delete(self, id):
        """Make a node unaddressable. True if it was there; its descendants keep its context."""
        raise NotImplementedError

    def find_item(self, id):
        """The stored item with this id as a dict, or None."""
        raise NotImplementedError

    def begin_running(self, id, body, input, parent):
        """A background response begins here. body: its object as queued; input: as a Node's. For stores that
        other servers read."""

    def running(self, id):
        """A background response that some server on this store is generating: an object with id, body,
        input, parent and `ours`, whether it is this one; or None."""

    def delete_running(self, id):
        """A background response of this server is deleted: unlike forget_running(), that must be kept."""

    def forget_running(self, id):
        """A background response of this server ended without being put."""

    def written(self):
        """A mark of what this thread wrote since its last call of this or of flush(); None for nothing."""

    def flush(self, mark=None):
        """Make durable what was put since the last flush: called before an answer that tells of it.

        mark: whose writes the caller answers for, a written(); without one this thread's.
        Raises ApiError when they could not be made durable, by this flush or another thread's; then
        nothing of them was kept."""

    def sweep(self, budget):
        """Drop at most `budget` expired nodes; how many went."""
        raise NotImplementedError

    def clear(self):
        """Forget everything, in a store that would not outlive this process anyway; whether this is one."""
        return False

    def stats(self):
        """{"responses", "conversations", "tombstones", "bytes", "evicted", "expired"}: int each.
        Stored chat completions count as responses."""
        raise NotImplementedError

    def close(self):
        """Let go of files; nothing is called after it."""
