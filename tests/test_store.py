"""Stores: one contract for all of them, and what the memory store adds.

StoreContract is a mixin: a later store subclasses it with unittest.TestCase and overrides make_store().
"""
import json
import random
import threading
import unittest

from state.contract import CONVERSATION_BYTES, Conversation, Node, Store, StoreFull, item_response_id, iter_context
from state.memory import MemoryStore

DAY_S = 86400.0


class Wall:
    """A wall clock that moves when told to."""

    def __init__(self):
        self.now = 1700000000.0

    def __call__(self):
        return self.now


def make_node(number, parent=None, created_s=1700000000.0, size=100, foreign=(), items=1):
    """A node with a body of about `size` bytes and input and output items with ids of its own."""
    tail = "%032x" % number
    output = json.dumps([{"type": "message", "id": "msg_%s%02x" % (tail, items), "text": "x" * size}]).encode()
    head = b'{"id":"resp_%s","output":' % tail.encode()
    given = [{"type": "message", "id": "msg_%s%02x" % (tail, at)} for at in range(items)]
    given += [{"type": "message", "id": id} for id in foreign]
    return Node("resp_" + tail, parent, created_s, head + output + b"}", (len(head), len(head) + len(output)),
                json.dumps(given).encode(), 10 * number, b"%d" % number, frozenset(("call_%d" % number,)),
                tuple(foreign))


def make_hidden(number, parent=None, created_s=1700000000.0, size=100, foreign=(), drops=()):
    """A node that is in a chain only: its items are input, and it has no output."""
    given = [{"type": "message", "id": "msg_%032x00" % number, "text": "x" * size}] if not drops else []
    given += [{"type": "message", "id": id} for id in foreign]
    return Node("resp_%032x" % number, parent, created_s, b"[]", (0, 2), json.dumps(given).encode(), 10 * number,
                b"%d" % number, foreign_ids=tuple(foreign), hidden=True, drops=drops)


def make_chat(number, created_s=1700000000.0, size=100, **about):
    """A stored chat completion."""
    body = b'{"id":"chatcmpl-%032x","text":"%s"}' % (number, b"x" * size)
    return Node("chatcmpl-%032x" % number, None, created_s, body, (0, len(body) - 1), b"[]", 0, b"",
                about=about or {"model": "m", "metadata": {}})


class StoreContract:
    """What every Store promises. make_store(max_responses, max_bytes, ttl_s, wall) -> Store."""

    def make_store(self, max_responses=10000, max_bytes=1 << 28, ttl_s=DAY_S, wall=None):
        raise NotImplementedError

    def setUp(self):
        self.wall = Wall()

    def new_store(self, **bounds):
        store = self.make_store(wall=self.wall, **bounds)
        self.addCleanup(store.close)
        return store

    def put(self, store, number, parent=None, **values):
        """Keep a node as a turn does: its parent is looked up in the store."""
        if parent is not None:
            parent = store.get(parent)
            self.assertIsNotNone(parent)
        node = make_node(number, parent, created_s=self.wall.now, **values)
        store.put(node)
        return node.id

    def chain_ids(self, store, id):
        return [node.id for node in store.get(id).chain()]

    # ---- get, put, delete ---------------------------------------------------------------------

    def test_what_was_put_is_got_back_whole(self):
        store = self.new_store()
        first = self.put(store, 1, foreign=("mine",))
        second = self.put(store, 2, first)
        node, model = store.get(second), make_node(2)
        for name in ("id", "created_s", "body", "output_at", "input", "total_tokens", "prefix_hash", "open_calls",
                     "foreign_ids"):
            with self.subTest(attribute=name):
                self.assertEqual(getattr(node, name), getattr(model, name))
        self.assertEqual(node.parent.id, first)
        self.assertEqual(node.output_items(), json.loads(node.body)["output"])

    def test_unknown_ids_give_none(self):
        store = self.new_store()
        self.put(store, 1)
        for id in ("", "resp_", "resp_" + "f" * 32, "nope", "\ud800", "resp_" + "%032x" % 1 + " "):
            with self.subTest(id=ascii(id)):
                self.assertIsNone(store.get(id))
                self.assertFalse(store.delete(id))
                self.assertIsNone(store.find_item(id))

    def test_a_deleted_node_is_unknown_and_cannot_be_deleted_twice(self):
        store = self.new_store()
        id = self.put(store, 1)
        self.assertTrue(store.delete(id))
        self.assertIsNone(store.get(id))
        self.assertFalse(store.delete(id))

    def test_descendants_keep_the_context_of_a_deleted_node(self):
        store = self.new_store()
        first = self.put(store, 1)
        second = self.put(store, 2, first)
        third = self.put(store, 3, second)
        store.delete(second)
        self.assertEqual(self.chain_ids(store, third), [third, second, first])
        self.assertEqual(len(store.get(third).parent.input_items()), 1)
        self.assertEqual((store.stats()["responses"], store.stats()["tombstones"]), (2, 1))

    def test_a_tombstone_counts_in_bytes_until_its_last_descendant_goes(self):
        store = self.new_store()
        first = self.put(store, 1, size=5000)
        second = self.put(store, 2, first)
        third = self.put(store, 3, first)
        before = store.stats()["bytes"]
        store.delete(first)
        self.assertEqual(store.stats()["bytes"], before)
        store.delete(second)
        self.assertGreater(store.stats()["bytes"], 5000)
        store.delete(third)
        self.assertEqual(store.stats(), {"responses": 0, "conversations": 0, "tombstones": 0, "bytes": 0, "evicted": 0,
                                         "expired": 0})

    def test_branches_share_their_trunk_and_do_not_meet(self):
        store = self.new_store()
        trunk = self.put(store, 1)
        left, right = self.put(store, 2, trunk), self.put(store, 3, trunk)
        leaf = self.put(store, 4, left)
        self.assertEqual(self.chain_ids(store, leaf), [leaf, left, trunk])
        self.assertEqual(self.chain_ids(store, right), [right, trunk])
        store.delete(left)
        self.assertEqual(self.chain_ids(store, right), [right, trunk])

    def test_a_parent_deleted_during_a_turn_still_is_the_new_nodes_context(self):
        store = self.new_store()
        first = self.put(store, 1)
        second = self.put(store, 2, first)
        parent = store.get(second)
        store.delete(second)
        store.delete(first)
        self.assertEqual(store.stats()["bytes"], 0)
        node = make_node(3, parent, self.wall.now)
        store.put(node)
        self.assertEqual(self.chain_ids(store, node.id), [node.id, second, first])
        self.assertIsNone(store.get(second))
        self.assertEqual((store.stats()["responses"], store.stats()["tombstones"]), (1, 2))
        store.delete(node.id)
        self.assertEqual((store.stats()["tombstones"], store.stats()["bytes"]), (0, 0))

    def test_two_turns_on_a_parent_deleted_meanwhile_share_it(self):
        store = self.new_store()
        parent = store.get(self.put(store, 1, size=1000))
        store.delete(parent.id)
        for number in (2, 3):
            store.put(make_node(number, parent, self.wall.now))
        self.assertEqual((store.stats()["responses"], store.stats()["tombstones"]), (2, 1))
        for number in (2, 3):
            store.delete("resp_%032x" % number)
        self.assertEqual((store.stats()["tombstones"], store.stats()["bytes"]), (0, 0))

    # ---- items --------------------------------------------------------------------------------

    def test_input_and_output_items_are_found_by_their_ids(self):
        store = self.new_store()
        id = self.put(store, 7, items=3)
        for item in store.get(id).input_items() + store.get(id).output_items():
            with self.subTest(item=item["id"]):
                self.assertEqual(store.find_item(item["id"]), item)

    def test_items_with_ids_of_the_clients_own_are_found(self):
        store = self.new_store()
        self.put(store, 1, foreign=("msg_mine", "x"))
        self.assertEqual(store.find_item("msg_mine"), {"type": "message", "id": "msg_mine"})
        self.assertEqual(store.find_item("x")["id"], "x")

    def test_items_of_a_response_that_is_not_addressable_are_unknown(self):
        store = self.new_store()
        first = self.put(store, 1, foreign=("mine",))
        self.put(store, 2, first)
        store.delete(first)
        self.assertIsNone(store.find_item("msg_%032x00" % 1))
        self.assertIsNone(store.find_item("mine"))

    def test_an_item_that_came_back_as_input_outlives_its_first_response(self):
        store = self.new_store()
        first = self.put(store, 1)
        item = "msg_%032x01" % 1                # its output, sent again by a client that keeps its history
        self.put(store, 2, foreign=(item,))
        self.assertIn("text", store.find_item(item))
        store.delete(first)
        self.assertEqual(store.find_item(item), {"type": "message", "id": item})

    def test_a_foreign_id_given_twice_means_the_newer_and_goes_with_it(self):
        store = self.new_store()
        first = self.put(store, 1, foreign=("mine",))
        second = self.put(store, 2, foreign=("mine",))
        store.delete(first)
        self.assertIsNotNone(store.find_item("mine"))
        store.delete(second)
        self.assertIsNone(store.find_item("mine"))

    # ---- conversations ------------------------------------------------------------------------

    def begin(self, store, number, head=None, **metadata):
        """The id of a new conversation."""
        conversation = Conversation("conv_%032x" % number, self.wall.now, metadata, head)
        store.create_conversation(conversation)
        return conversation.id

    def say(self, store, id, number, **values):
        """Keep a turn of a conversation, as an API does: under its head, which moves."""
        make = make_hidden if values.pop("hidden", False) else make_node
        self.assertEqual(store.claim_conversation(id, "me").owner, "me")
        node = make(number, store.conversation(id).head, self.wall.now, **values)
        store.put(node, id)
        store.release_conversation(id, "me")
        return node.id

    def context_ids(self, store, id, **order):
        head = store.conversation(id).head
        return [item["id"] for item in iter_context(head, own_output=True, **order)] if head is not None else []

    def assert_empty(self, store):
        stats = store.stats()
        self.assertEqual([stats[name] for name in ("responses", "conversations", "tombstones", "bytes")], [0, 0, 0, 0])

    def test_a_conversation_is_got_back_as_it_was_created(self):
        store = self.new_store()
        id = self.begin(store, 1, topic="x")
        found = store.conversation(id)
        self.assertEqual((found.id, found.created_s, found.metadata, found.head, found.owner),
                         (id, self.wall.now, {"topic": "x"}, None, None))
        self.assertEqual(store.stats(), {"responses": 0, "conversations": 1, "tombstones": 0,
                                         "bytes": CONVERSATION_BYTES + 6, "evicted": 0, "expired": 0})

    def test_unknown_conversations_give_none(self):
        store = self.new_store()
        self.begin(store, 1)
        for id in ("", "conv_", "conv_" + "f" * 32, "resp_%032x" % 1, "\ud800"):
            with self.subTest(id=ascii(id)):
                self.assertIsNone(store.conversation(id))
                self.assertIsNone(store.describe_conversation(id, {}))
                self.assertIsNone(store.claim_conversation(id, "me"))
                self.assertFalse(store.delete_conversation(id))
                store.release_conversation(id, "me")
        self.assertEqual(store.stats()["conversations"], 1)

    def test_a_conversation_begun_with_a_head_keeps_it(self):
        store = self.new_store()
        id = self.begin(store, 1, make_hidden(1, foreign=("mine",)))
        self.assertEqual(self.context_ids(store, id), ["msg_%032x00" % 1, "mine"])
        self.assertEqual(store.find_item("mine")["id"], "mine")
        self.assertEqual((store.stats()["responses"], store.stats()["tombstones"]), (0, 0))
        self.assertTrue(store.delete_conversation(id))
        self.assertIsNone(store.find_item("mine"))
        self.assert_empty(store)

    def test_a_head_moves_with_every_put_into_the_conversation(self):
        store = self.new_store()
        id = self.begin(store, 1)
        first = self.say(store, id, 1)
        self.assertEqual(store.conversation(id).head.id, first)
        second = self.say(store, id, 2, hidden=True)
        third = self.say(store, id, 3)
        self.assertEqual([node.id for node in store.conversation(id).head.chain()], [third, second, first])
        self.assertEqual([store.get(each) is None for each in (first, second, third)], [False, True, False])

    def test_a_put_elsewhere_moves_no_head(self):
        store = self.new_store()
        id = self.begin(store, 1)
        first = self.say(store, id, 1)
        branch = self.put(store, 2, first)
        store.put(make_node(3, None, self.wall.now), "conv_" + "f" * 32)
        self.assertEqual(store.conversation(id).head.id, first)
        self.assertEqual(self.chain_ids(store, branch), [branch, first])
        self.assertIsNotNone(store.get("resp_%032x" % 3))

    def test_a_hidden_node_is_in_the_chain_and_under_no_id(self):
        store = self.new_store()
        id = self.begin(store, 1)
        hidden = self.say(store, id, 1, hidden=True, foreign=("mine",))
        self.assertIsNone(store.get(hidden))
        self.assertFalse(store.delete(hidden))
        self.assertEqual(store.find_item("msg_%032x00" % 1)["id"], "msg_%032x00" % 1)
        self.assertEqual(store.find_item("mine")["id"], "mine")
        after = self.say(store, id, 2)
        self.assertEqual(self.chain_ids(store, after), [after, hidden])
        self.assertEqual((store.stats()["responses"], store.stats()["tombstones"]), (1, 0))

    def test_a_hidden_node_without_a_conversation_is_not_kept(self):
        store = self.new_store()
        parent = store.get(self.put(store, 1))
        before = store.stats()
        store.put(make_hidden(2, parent, foreign=("mine",)))
        store.put(make_hidden(3, foreign=("mine",)), "conv_" + "f" * 32)
        self.assertEqual(store.stats(), before)
        self.assertIsNone(store.find_item("mine"))
        self.assertTrue(store.delete(parent.id))
        self.assert_empty(store)

    def test_a_hidden_node_outlives_its_conversation_under_a_response(self):
        store = self.new_store()
        id = self.begin(store, 1, make_hidden(1))
        response = self.say(store, id, 2)
        self.say(store, id, 3, hidden=True)
        store.delete_conversation(id)
        self.assertEqual(self.chain_ids(store, response), [response, "resp_%032x" % 1])
        self.assertEqual(store.stats()["tombstones"], 0)
        self.assertTrue(store.delete(response))
        self.assert_empty(store)

    def test_dropped_items_are_out_of_a_context_and_in_the_earlier_ones(self):
        store = self.new_store()
        id = self.begin(store, 1)
        first = self.say(store, id, 1, items=2)
        whole = self.context_ids(store, id)
        self.say(store, id, 2, hidden=True, drops=(whole[0], whole[2]))
        self.assertEqual(self.context_ids(store, id), [whole[1]])
        second = self.say(store, id, 3)
        for newest_first in (False, True):
            ids = self.context_ids(store, id, newest_first=newest_first)
            self.assertEqual(ids[::-1] if newest_first else ids,
                             [whole[1], "msg_%032x00" % 3, "msg_%032x01" % 3])
        self.assertEqual([item["id"] for item in iter_context(store.get(first), own_output=True)], whole)
        self.assertEqual([item["id"] for item in iter_context(store.get(second))], [whole[1], "msg_%032x00" % 3])

    def test_a_context_is_the_same_in_both_orders_whatever_was_dropped_and_came_again(self):
        store = self.new_store()
        id = self.begin(store, 1, make_hidden(1, foreign=("a", "b")))
        self.say(store, id, 2, hidden=True, drops=("a",))
        self.assertEqual(self.context_ids(store, id), ["msg_%032x00" % 1, "b"])
        self.say(store, id, 3, hidden=True, foreign=("a", "b"))
        self.assertEqual(self.context_ids(store, id, newest_first=True), self.context_ids(store, id)[::-1])
        self.assertIn("a", self.context_ids(store, id))

    def test_only_one_owner_at_a_time(self):
        store = self.new_store()
        id = self.begin(store, 1)
        self.assertEqual(store.claim_conversation(id, "one").owner, "one")
        self.assertEqual(store.claim_conversation(id, "two").owner, "one")
        store.release_conversation(id, "two")
        self.assertEqual(store.conversation(id).owner, "one")
        store.release_conversation(id, "one")
        self.assertIsNone(store.conversation(id).owner)
        self.assertEqual(store.claim_conversation(id, "two").owner, "two")

    def test_metadata_is_replaced_and_counts_in_bytes(self):
        store = self.new_store()
        id = self.begin(store, 1, a="12345")
        self.assertEqual(store.describe_conversation(id, {"key": "1234567"}).metadata, {"key": "1234567"})
        self.assertEqual(store.conversation(id).metadata, {"key": "1234567"})
        self.assertEqual(store.stats()["bytes"], CONVERSATION_BYTES + 10)
        store.delete_conversation(id)
        self.assert_empty(store)

    def test_responses_of_a_deleted_conversation_keep_their_context(self):
        store = self.new_store()
        id = self.begin(store, 1)
        first, second = self.say(store, id, 1), self.say(store, id, 2)
        self.assertTrue(store.delete_conversation(id))
        self.assertFalse(store.delete_conversation(id))
        self.assertIsNone(store.conversation(id))
        self.assertEqual(self.chain_ids(store, second), [second, first])

    def test_a_conversation_keeps_its_deleted_responses_items(self):
        store = self.new_store()
        id = self.begin(store, 1)
        first, second = self.say(store, id, 1), self.say(store, id, 2)
        for each in (second, first):
            self.assertTrue(store.delete(each))
        self.assertEqual(len(self.context_ids(store, id)), 4)
        self.assertEqual((store.stats()["responses"], store.stats()["tombstones"]), (0, 2))
        self.say(store, id, 3)
        self.assertEqual(len(self.context_ids(store, id)), 6)
        store.delete_conversation(id)
        store.delete("resp_%032x" % 3)
        self.assert_empty(store)

    def test_a_turn_of_a_conversation_deleted_meanwhile_is_kept_with_its_context(self):
        store = self.new_store()
        id = self.begin(store, 1, make_hidden(1))
        head = store.claim_conversation(id, "me").head
        store.delete_conversation(id)
        self.assert_empty(store)
        node = make_node(2, head, self.wall.now)
        store.put(node, id)
        store.release_conversation(id, "me")
        self.assertEqual(self.chain_ids(store, node.id), [node.id, "resp_%032x" % 1])
        self.assertIsNone(store.conversation(id))
        self.assertEqual(store.stats()["tombstones"], 0)
        store.delete(node.id)
        self.assert_empty(store)

    def test_a_hidden_turn_of_a_conversation_deleted_meanwhile_leaves_nothing(self):
        store = self.new_store()
        id = self.begin(store, 1, make_hidden(1))
        head = store.claim_conversation(id, "me").head
        store.delete_conversation(id)
        store.put(make_hidden(2, head), id)
        self.assert_empty(store)

    def test_a_conversation_survives_the_age_and_the_eviction_of_its_responses(self):
        store = self.new_store(max_responses=2, ttl_s=100.0)
        id = self.begin(store, 1, make_hidden(99))
        for number in range(1, 6):
            self.say(store, id, number)
        self.assertEqual((store.stats()["responses"], store.stats()["tombstones"]), (2, 3))
        self.wall.now += 1000
        store.sweep(100)
        self.assertEqual((store.stats()["responses"], store.stats()["tombstones"]), (0, 5))
        self.assertEqual(len(self.context_ids(store, id)), 11)
        store.delete_conversation(id)
        self.assert_empty(store)

    def test_over_the_count_the_least_recently_used_conversation_goes(self):
        for use in (lambda store, id: store.conversation(id), lambda store, id: store.claim_conversation(id, "x"),
                    lambda store, id: store.describe_conversation(id, {})):
            store = self.new_store(max_responses=3)
            ids = [self.begin(store, number) for number in (1, 2, 3)]
            use(store, ids[0])
            ids.append(self.begin(store, 4))
            self.assertEqual([id for id in ids if store.conversation(id) is None], [ids[1]])
            self.assertEqual((store.stats()["conversations"], store.stats()["evicted"]), (3, 1))

    def test_over_the_bytes_the_least_recently_used_chain_goes_with_its_conversation(self):
        store = self.new_store(max_bytes=30000)
        old, new = self.begin(store, 1), self.begin(store, 2)
        kept = [self.say(store, old, 1, size=4000), self.say(store, old, 2, size=4000)]
        self.say(store, new, 3, size=4000)
        self.say(store, new, 4, hidden=True, size=4000)
        last = self.put(store, 5, size=9000)
        self.assertEqual([store.get(each) for each in kept], [None, None])
        self.assertIsNone(store.conversation(old))
        self.assertEqual(len(self.context_ids(store, new)), 3)
        stats = store.stats()
        self.assertEqual((stats["responses"], stats["conversations"], stats["evicted"]), (2, 1, 3))
        store.delete_conversation(new)
        for each in ("resp_%032x" % 3, last):
            self.assertTrue(store.delete(each))
        self.assert_empty(store)

    def test_use_of_a_conversation_keeps_its_chain_from_eviction(self):
        store = self.new_store(max_bytes=30000)
        old = self.begin(store, 1)
        self.say(store, old, 1, size=8000)
        new = self.put(store, 2, size=8000)
        store.conversation(old)
        self.put(store, 3, size=13000)
        self.assertIsNotNone(store.conversation(old))
        self.assertIsNone(store.get(new))

    def test_a_turn_that_cannot_fit_moves_nothing(self):
        store = self.new_store(max_bytes=20000)
        id = self.begin(store, 1)
        first = self.say(store, id, 1, size=5000)
        before = store.stats()
        for make in (make_node, make_hidden):
            with self.assertRaises(StoreFull):
                store.put(make(2, store.conversation(id).head, size=15000, foreign=("new",)), id)
        self.assertEqual(store.stats(), before)
        self.assertEqual(store.conversation(id).head.id, first)
        self.assertIsNone(store.find_item("new"))
        self.assertEqual(self.say(store, id, 3), store.conversation(id).head.id)

    def test_a_conversation_that_cannot_fit_is_refused_and_leaves_all_as_it_was(self):
        store = self.new_store(max_bytes=5000)
        self.put(store, 1)
        before = store.stats()
        for values in ({"head": make_hidden(2, size=6000)}, {"note": "x" * 6000}):
            with self.assertRaises(StoreFull):
                self.begin(store, 1, **values)
            self.assertIsNone(store.conversation("conv_%032x" % 1))
        self.assertEqual(store.stats(), before)

    # ---- stored chat completions --------------------------------------------------------------

    def test_chats_are_listed_oldest_first_and_got_by_id(self):
        store = self.new_store()
        made = [make_chat(number, self.wall.now, model="m%d" % number, metadata={"a": "b"}) for number in (3, 1, 2)]
        for each in made:
            store.put(each)
            self.put(store, int(each.id[-1]))
        store.get(made[0].id)
        self.assertEqual([node.id for node in store.chats()], [each.id for each in made])
        self.assertEqual([node.about["model"] for node in store.chats()], ["m3", "m1", "m2"])
        self.assertEqual(store.get(made[1].id).body, made[1].body)
        self.assertEqual(store.stats()["responses"], 6)

    def test_a_replaced_chat_keeps_its_place_and_its_size_is_counted(self):
        store = self.new_store()
        for number in (1, 2, 3):
            store.put(make_chat(number, self.wall.now))
        before = store.stats()["bytes"]
        self.assertTrue(store.replace(make_chat(2, self.wall.now, size=1100, model="new", metadata={})))
        self.assertEqual([node.about["model"] for node in store.chats()], ["m", "new", "m"])
        self.assertEqual(store.get("chatcmpl-%032x" % 2).about["model"], "new")
        self.assertEqual((store.stats()["bytes"] - before, store.stats()["responses"]), (1000, 3))
        for node in store.chats():
            self.assertTrue(store.delete(node.id))
        self.assertEqual(store.chats(), [])
        self.assert_empty(store)

    def test_a_chat_that_has_gone_cannot_be_replaced(self):
        store = self.new_store()
        self.assertFalse(store.replace(make_chat(1)))
        store.put(make_chat(1, self.wall.now))
        store.delete("chatcmpl-%032x" % 1)
        self.assertFalse(store.replace(make_chat(1)))
        self.assertIsNone(store.get("chatcmpl-%032x" % 1))
        self.assert_empty(store)

    def test_a_replacement_that_cannot_fit_leaves_the_old_one(self):
        store = self.new_store(max_bytes=5000)
        store.put(make_chat(1, self.wall.now))
        before = store.stats()
        with self.assertRaises(StoreFull):
            store.replace(make_chat(1, self.wall.now, size=6000))
        self.assertEqual(store.stats(), before)
        self.assertEqual(store.get("chatcmpl-%032x" % 1).body, make_chat(1).body)

    def test_a_replacement_that_needs_room_drives_out_others_not_itself(self):
        store = self.new_store(max_bytes=5000)
        for number in (1, 2):
            store.put(make_chat(number, self.wall.now, size=1000))
        self.assertTrue(store.replace(make_chat(1, self.wall.now, size=3000)))
        self.assertEqual([node.id for node in store.chats()], ["chatcmpl-%032x" % 1])

    def test_chats_are_evicted_and_expire_like_responses(self):
        store = self.new_store(max_responses=3, ttl_s=100.0)
        for number in (1, 2, 3, 4):
            store.put(make_chat(number, self.wall.now))
            self.wall.now += 10
        self.assertEqual([node.id[-1] for node in store.chats()], ["2", "3", "4"])
        store.replace(make_chat(3, self.wall.now - 20, size=500))
        self.wall.now += 75                 # 2 is 105 s old
        self.assertEqual([node.id[-1] for node in store.chats()], ["3", "4"])
        self.wall.now += 10                 # 3 too: use does not prolong it
        self.assertIsNone(store.get("chatcmpl-%032x" % 3))
        store.sweep(10)
        self.assertEqual([node.id[-1] for node in store.chats()], ["4"])
        self.assertEqual((store.stats()["expired"], store.stats()["evicted"]), (2, 1))

    def test_the_list_of_chats_is_the_callers_own(self):
        store = self.new_store()
        store.put(make_chat(1, self.wall.now))
        store.chats().clear()
        self.assertEqual(len(store.chats()), 1)

    # ---- bounds -------------------------------------------------------------------------------

    def test_over_the_count_the_least_recently_used_goes(self):
        store = self.new_store(max_responses=3)
        ids = [self.put(store, number) for number in (1, 2, 3)]
        store.get(ids[0])
        ids.append(self.put(store, 4))
        self.assertEqual([id for id in ids if store.get(id) is None], [ids[1]])
        self.assertEqual((store.stats()["responses"], store.stats()["evicted"]), (3, 1))

    def test_a_chain_longer_than_the_count_keeps_its_whole_context(self):
        store = self.new_store(max_responses=3)
        id = None
        for number in range(1, 11):
            id = self.put(store, number, id)
        self.assertEqual(len(self.chain_ids(store, id)), 10)
        self.assertEqual((store.stats()["responses"], store.stats()["tombstones"]), (3, 7))

    def test_over_the_bytes_the_least_recently_used_chain_goes_whole(self):
        store = self.new_store(max_bytes=30000)
        old = self.put(store, 1, size=4000)
        old_2 = self.put(store, 2, old, size=4000)
        new = self.put(store, 3, size=4000)
        new_2 = self.put(store, 4, new, size=4000)
        last = self.put(store, 5, size=10000)
        self.assertEqual([id for id in (old, old_2, new, new_2, last) if store.get(id) is None], [old, old_2])
        self.assertLessEqual(store.stats()["bytes"], 30000)
        self.assertEqual((store.stats()["responses"], store.stats()["evicted"]), (3, 2))

    def test_use_of_any_node_keeps_its_chain_from_eviction(self):
        store = self.new_store(max_bytes=30000)
        old = self.put(store, 1, size=4000)
        self.put(store, 2, old, size=4000)
        new = self.put(store, 3, size=4000)
        self.put(store, 4, new, size=4000)
        self.assertIsNotNone(store.get(old))
        self.put(store, 5, size=10000)
        self.assertIsNotNone(store.get(old))
        self.assertIsNone(store.get(new))

    def test_the_bytes_of_tombstones_count_for_the_bound(self):
        store = self.new_store(max_bytes=20000)
        first = self.put(store, 1, size=10000)
        second = self.put(store, 2, first)
        store.delete(first)
        self.put(store, 3, size=10000)
        self.assertIsNone(store.get(second))
        self.assertEqual(store.stats()["tombstones"], 0)

    def test_a_node_that_cannot_fit_is_refused_and_leaves_all_as_it_was(self):
        store = self.new_store(max_bytes=20000)
        first = self.put(store, 1, size=5000)
        second = self.put(store, 2, size=5000, foreign=("mine",))
        before = store.stats()
        with self.assertRaises(StoreFull):
            self.put(store, 3, size=30000, foreign=("mine", "new"))
        with self.assertRaises(StoreFull):
            self.put(store, 4, first, size=15000)
        self.assertEqual(store.stats(), before)
        self.assertIsNone(store.get("resp_%032x" % 3))
        self.assertIsNone(store.find_item("new"))
        self.assertIsNotNone(store.find_item("mine"))
        self.assertEqual([self.chain_ids(store, id) for id in (first, second)], [[first], [second]])

    def test_refusal_of_a_turn_whose_parent_was_deleted_keeps_nothing_of_it(self):
        store = self.new_store(max_bytes=20000)
        parent = store.get(self.put(store, 1, size=9000))
        store.delete(parent.id)
        with self.assertRaises(StoreFull):
            store.put(make_node(2, parent, self.wall.now, size=15000))
        self.assertEqual((store.stats()["responses"], store.stats()["tombstones"], store.stats()["bytes"]), (0, 0, 0))

    def test_a_chain_evicted_during_a_turn_comes_back_with_its_answer(self):
        store = self.new_store(max_bytes=20000)
        parent = store.get(self.put(store, 1, size=6000))
        self.put(store, 2, size=15000)
        self.assertIsNone(store.get(parent.id))
        node = make_node(3, parent, self.wall.now)
        store.put(node)
        self.assertEqual(self.chain_ids(store, node.id), [node.id, parent.id])
        self.assertLessEqual(store.stats()["bytes"], 20000)

    # ---- age ----------------------------------------------------------------------------------

    def test_an_expired_node_is_unknown_before_any_sweep(self):
        store = self.new_store(ttl_s=100.0)
        id = self.put(store, 1, foreign=("mine",))
        self.wall.now += 99.9
        self.assertIsNotNone(store.get(id))
        self.wall.now += 0.2
        self.assertIsNone(store.find_item("msg_%032x00" % 1))
        self.assertIsNone(store.find_item("mine"))
        self.assertIsNone(store.get(id))
        self.assertFalse(store.delete(id))

    def test_an_expired_node_cannot_be_deleted(self):
        store = self.new_store(ttl_s=100.0)
        id = self.put(store, 1)
        self.wall.now += 101
        self.assertFalse(store.delete(id))

    def test_use_does_not_prolong_the_age(self):
        store = self.new_store(ttl_s=100.0)
        id = self.put(store, 1)
        for _ in range(3):
            self.wall.now += 40
            store.get(id)
        self.assertIsNone(store.get(id))

    def test_a_sweep_drops_the_expired_within_its_budget(self):
        store = self.new_store(ttl_s=100.0)
        for number in range(1, 8):
            self.put(store, number)
        self.wall.now += 50
        young = self.put(store, 8)
        self.wall.now += 51
        self.assertEqual([store.sweep(3), store.sweep(3), store.sweep(3), store.sweep(3)], [3, 3, 1, 0])
        self.assertIsNotNone(store.get(young))
        self.assertEqual((store.stats()["responses"], store.stats()["expired"]), (1, 7))

    def test_descendants_outlive_an_expired_ancestor(self):
        store = self.new_store(ttl_s=100.0)
        first = self.put(store, 1)
        self.wall.now += 60
        second = self.put(store, 2, first)
        self.wall.now += 60
        store.sweep(100)
        self.assertIsNone(store.get(first))
        self.assertEqual(self.chain_ids(store, second), [second, first])
        self.wall.now += 60
        store.sweep(100)
        self.assertEqual((store.stats()["tombstones"], store.stats()["bytes"]), (0, 0))

    # ---- size, threads, accounting ------------------------------------------------------------

    def test_a_chain_of_3000_turns_is_walked_and_freed(self):
        store = self.new_store(max_responses=20000)
        id = None
        for number in range(1, 3001):
            id = self.put(store, number, id, size=1)
        self.assertEqual(sum(1 for _ in store.get(id).chain()), 3000)
        for number in range(1, 3000):
            store.delete("resp_%032x" % number)
        self.assertEqual(store.stats()["tombstones"], 2999)
        store.delete(id)
        self.assertEqual((store.stats()["tombstones"], store.stats()["bytes"]), (0, 0))

    def test_a_chain_of_3000_turns_deleted_during_a_turn_comes_back(self):
        store = self.new_store(max_responses=5)
        id = None
        for number in range(1, 3001):
            id = self.put(store, number, id, size=1)
        parent = store.get(id)
        for number in range(2990, 3001):
            store.delete("resp_%032x" % number)
        self.assertEqual(store.stats()["bytes"], 0)
        store.put(make_node(3001, parent, self.wall.now, size=1))
        self.assertEqual(store.stats()["tombstones"], 3000)

    def test_many_threads_leave_the_account_right(self):
        store = self.new_store(max_responses=40, max_bytes=60000)
        failures = []

        def work(seed):
            draw = random.Random(seed)
            try:
                mine = []
                for number in range(150):
                    parent = store.get(draw.choice(mine)) if mine and draw.random() < 0.6 else None
                    node = make_node(seed * 1000 + number, parent, self.wall.now, draw.randrange(800))
                    store.put(node)
                    mine.append(node.id)
                    if draw.random() < 0.2:
                        store.delete(draw.choice(mine))
                    store.find_item("msg_%032x00" % (seed * 1000 + number))
                for id in mine:
                    store.delete(id)
            except Exception as exc:
                failures.append(exc)
        threads = [threading.Thread(target=work, args=(seed,)) for seed in range(1, 6)]
        for thread in threads:
            thread.start()
        for thread in threads:
            thread.join(30)
            self.assertFalse(thread.is_alive())
        self.assertEqual(failures, [])
        self.assertEqual((store.stats()["responses"], store.stats()["tombstones"], store.stats()["bytes"]), (0, 0, 0))

    def test_random_sequences_agree_with_a_naive_model(self):
        met = {"full": 0, "evicted": 0, "expired": 0, "tombstones": 0}
        for seed in range(12):
            with self.subTest(seed=seed):
                few, bytes, ttl_s = ((12, 22000, 50.0), (60, 30000, 15.0))[seed % 2]
                self.compare_with_model(random.Random(seed), met, max_responses=few, max_bytes=bytes, ttl_s=ttl_s)
        self.assertGreater(min(met.values()), 5, met)

    def compare_with_model(self, draw, met, max_responses, max_bytes, ttl_s):
        store = self.new_store(max_responses=max_responses, max_bytes=max_bytes, ttl_s=ttl_s)
        model = NaiveStore(max_responses, max_bytes, ttl_s)
        held = []                       # (real, naive) parents of turns that still run
        ids = ["nope"]
        for number in range(1, 400):
            action = draw.random()
            if action < 0.15:
                self.wall.now += draw.randrange(12)
            elif action < 0.3:
                id = draw.choice(ids)
                self.assertEqual(store.delete(id), model.delete(id, self.wall.now), "delete")
            elif action < 0.45:
                id = draw.choice(ids)
                pair = store.get(id), model.get(id, self.wall.now)
                self.assertEqual(pair[0] is None, pair[1] is None, "get")
                if pair[0] is not None:
                    held.append(pair)
            elif action < 0.5:
                store.sweep(1000)
                model.sweep(self.wall.now)
            else:
                pair = held.pop(draw.randrange(len(held))) if held and draw.random() < 0.7 else (None, None)
                node = make_node(number, pair[0], self.wall.now, draw.choice((10, 500, 3000, 20500)))
                full = False
                try:
                    store.put(node)
                except StoreFull:
                    full = True
                self.assertEqual(full, not model.put(node, pair[1]), "put")
                if not full:
                    ids.append(node.id)
                met["full"] += full
            stats = store.stats()
            met["tombstones"] += stats["tombstones"]
            self.assertEqual((sorted(id for id in ids if model.has(id)), stats["responses"], stats["tombstones"],
                              stats["bytes"]), model.state(), "after step %d" % number)
        for name in ("evicted", "expired"):
            met[name] += stats[name]
        for id in ids:
            store.delete(id)
        store.sweep(1000)
        self.assertEqual((store.stats()["responses"], store.stats()["tombstones"], store.stats()["bytes"]), (0, 0, 0))


    def test_many_threads_with_conversations_leave_the_account_right(self):
        store = self.new_store(max_responses=60, max_bytes=90000)
        shared = [self.begin(store, number, make_hidden(number)) for number in range(1, 4)]
        failures, turns = [], []

        def work(seed):
            draw, me = random.Random(seed), "owner_%d" % seed
            try:
                for number in range(120):
                    own = seed * 1000 + number
                    id = draw.choice(shared)
                    claimed = store.claim_conversation(id, me)
                    if claimed is not None and claimed.owner == me:
                        make = draw.choice((make_node, make_hidden))
                        head = claimed.head
                        self.is_full(store.put, make(own, head, self.wall.now, draw.randrange(300)), id)
                        found = store.conversation(id)
                        if found is not None and found.head.id == "resp_%032x" % own:
                            turns.append(own)
                        store.release_conversation(id, me)
                    if draw.random() < 0.2:
                        mine = self.begin(store, own, make_hidden(own + 500))
                        store.describe_conversation(mine, {"a": "b" * draw.randrange(50)})
                        store.delete_conversation(mine)
                    if draw.random() < 0.3:
                        store.put(make_chat(own, self.wall.now))
                        store.replace(make_chat(own, self.wall.now, size=draw.randrange(200)))
                        store.delete("chatcmpl-%032x" % own)
                    store.delete("resp_%032x" % (seed * 1000 + draw.randrange(number + 1)))
                    store.chats()
            except Exception as exc:
                failures.append(exc)
        threads = [threading.Thread(target=work, args=(seed,)) for seed in range(1, 6)]
        for thread in threads:
            thread.start()
        for thread in threads:
            thread.join(30)
            self.assertFalse(thread.is_alive())
        self.assertEqual(failures, [])
        self.assertGreater(len(turns), 20)
        for id in shared:
            found = store.conversation(id)
            if found is not None:
                self.assertIsNone(found.owner)
                store.delete_conversation(id)
        for seed in range(1, 6):
            for number in range(120):
                store.delete("resp_%032x" % (seed * 1000 + number))
        self.assert_empty(store)

    def test_one_of_many_threads_gets_a_conversation(self):
        store = self.new_store()
        id = self.begin(store, 1)
        winners, start = [], threading.Barrier(8)

        def work(name):
            start.wait(10)
            if store.claim_conversation(id, name).owner == name:
                winners.append(name)
        threads = [threading.Thread(target=work, args=(str(number),)) for number in range(8)]
        for thread in threads:
            thread.start()
        for thread in threads:
            thread.join(30)
            self.assertFalse(thread.is_alive())
        self.assertEqual(winners, [store.conversation(id).owner])

    def test_random_sequences_with_conversations_agree_with_a_naive_model(self):
        met = dict.fromkeys(("full", "evicted", "expired", "tombstones", "moved", "lost", "replaced"), 0)
        for seed in range(12):
            with self.subTest(seed=seed):
                few, bytes, ttl_s = ((9, 26000, 60.0), (60, 30000, 20.0))[seed % 2]
                self.compare_conversations(random.Random(seed), met, few, bytes, ttl_s)
        self.assertGreater(min(met.values()), 5, met)

    def compare_conversations(self, draw, met, max_responses, max_bytes, ttl_s):
        store = self.new_store(max_responses=max_responses, max_bytes=max_bytes, ttl_s=ttl_s)
        model = NaiveConversations(max_responses, max_bytes, ttl_s, self.wall)
        held = []               # (real parent, naive parent, conversation or None) of turns that still run
        ids, chats, named = ["nope"], ["chatcmpl-nope"], ["conv_nope"]
        for number in range(1, 350):
            action = draw.random()
            size = draw.choice((10, 500, 3000, 20500))
            if action < 0.1:
                self.wall.now += draw.randrange(12)
            elif action < 0.2:
                id = draw.choice(ids + chats)
                self.assertEqual(store.delete(id), model.delete(id), "delete")
            elif action < 0.3:
                id = draw.choice(ids)
                pair = store.get(id), model.get(id)
                self.assertEqual(pair[0] is None, pair[1] is None, "get")
                if pair[0] is not None:
                    held.append(pair + (None,))
            elif action < 0.34:
                self.assertEqual(store.sweep(1000), model.sweep(), "sweep")
            elif action < 0.42:
                id = "conv_%032x" % number
                head = make_hidden(number, None, self.wall.now, draw.choice((10, 3000, 25600))) \
                    if draw.random() < 0.6 else None
                conversation = Conversation(id, self.wall.now, {"k": "v" * draw.randrange(50)}, head)
                full = self.is_full(store.create_conversation, conversation)
                self.assertEqual(full, not model.create(id, conversation.size_bytes(), head), "create")
                met["full"] += full
                if not full:
                    named.append(id)
            elif action < 0.47:
                id = draw.choice(named)
                self.assertEqual(store.delete_conversation(id), model.delete_conversation(id), "delete_conversation")
            elif action < 0.52:
                id, metadata = draw.choice(named), {"k": "v" * draw.randrange(500)}
                found = store.describe_conversation(id, metadata)
                self.assertEqual(found is not None, model.describe(id, CONVERSATION_BYTES + 1 + len(metadata["k"])))
            elif action < 0.66:
                id = draw.choice(named)
                found, mine = store.claim_conversation(id, "turn_%d" % number), model.use_conversation(id)
                self.assertEqual(found is None, mine is None, "claim")
                if found is not None and found.owner == "turn_%d" % number:
                    self.assertEqual(found.head and found.head.id, mine.head and mine.head.id)
                    held.append((found.head, mine.head, (id, found.owner)))
            elif action < 0.74:
                node = make_chat(number, self.wall.now, size)
                full = self.is_full(store.put, node)
                self.assertEqual(full, not model.put(node, None, None), "put of a chat")
                if not full:
                    chats.append(node.id)
            elif action < 0.78:
                id = draw.choice(chats)
                old, mine = store.get(id), model.get(id)
                self.assertEqual(old is None, mine is None, "get of a chat")
                if old is not None:
                    node = make_chat(int(id[9:], 16), old.created_s, draw.choice((10, 500, 3000)))
                    self.assertTrue(store.replace(node))
                    model.resize(mine, node.size_bytes)
                    met["replaced"] += 1
            else:
                parent, mine, claim = held.pop(draw.randrange(len(held))) if held and draw.random() < 0.8 \
                    else (None, None, None)
                make = make_hidden if claim and draw.random() < 0.4 else make_node
                node = make(number, parent, self.wall.now, size)
                into = claim[0] if claim else None
                met["lost"] += parent is not None and parent.tree is None
                full = self.is_full(store.put, node, into)
                self.assertEqual(full, not model.put(node, mine, into), "put")
                met["full"] += full
                if claim:
                    store.release_conversation(*claim)
                    found = store.conversation(into)
                    self.assertEqual(found is None, model.use_conversation(into) is None)
                    met["moved"] += found is not None and found.head is not None and found.head.id == node.id
                if not full and not node.hidden:
                    ids.append(node.id)
            stats = store.stats()
            met["tombstones"] += stats["tombstones"]
            self.assertEqual((stats["responses"], stats["conversations"], stats["tombstones"], stats["bytes"],
                              stats["evicted"], stats["expired"], [node.id for node in store.chats()]),
                             model.state(), "after step %d" % number)
        self.compare_what_is_left(store, model, ids, named)
        for name in ("evicted", "expired"):
            met[name] += store.stats()[name]
        for id in named:
            store.delete_conversation(id)
        for id in ids + chats:
            store.delete(id)
        self.assert_empty(store)

    def compare_what_is_left(self, store, model, ids, named):
        """Every chain, node by node."""
        for id in named:
            found, mine = store.conversation(id), model.use_conversation(id)
            self.assertEqual(found is None, mine is None)
            if found is not None and found.head is not None:
                self.assertEqual([node.id for node in found.head.chain()], [node.id for node in mine.head.chain()])
        for id in ids:
            found, mine = store.get(id), model.get(id)
            self.assertEqual(found is None, mine is None)
            if found is not None:
                self.assertEqual(self.chain_ids(store, id), [node.id for node in mine.chain()])

    def is_full(self, method, *args):
        try:
            method(*args)
        except StoreFull:
            return True
        return False


class _NaiveTree:
    """What shares a root, or would: used is the step of its last use."""

    used = 0


class _NaiveConversation:

    def __init__(self, size, tree):
        self.size = size
        self.tree = tree
        self.head = None


class NaiveConversations:
    """The promises about nodes, hidden nodes, conversations and chats together, said slowly and plainly."""

    def __init__(self, max_responses, max_bytes, ttl_s, wall):
        self.max_responses = max_responses
        self.max_bytes = max_bytes
        self.ttl_s = ttl_s
        self.wall = wall
        self.nodes = {}                 # id -> _NaiveNode, addressable, least recently used first
        self.conversations = {}         # id -> _NaiveConversation, least recently used first
        self.made = []                  # ids of chats in order
        self.steps = self.evicted = self.expired = 0

    def kept(self):
        ends = list(self.nodes.values()) + [each.head for each in self.conversations.values() if each.head is not None]
        return {each.id: each for end in ends for each in end.chain()}

    def bytes(self):
        return sum(each.size for each in self.kept().values()) + sum(
            each.size for each in self.conversations.values())

    def state(self):
        hidden = sum(1 for node in self.kept().values() if node.id not in self.nodes and not node.hidden)
        limit = self.wall.now - self.ttl_s
        return (len(self.nodes), len(self.conversations), hidden, self.bytes(), self.evicted, self.expired,
                [id for id in self.made if id in self.nodes and self.nodes[id].created_s > limit])

    def use(self, tree):
        self.steps += 1
        tree.used = self.steps

    def get(self, id):
        node = self.nodes.get(id)
        if node is None or self.drop_expired(node):
            return None
        self.nodes[id] = self.nodes.pop(id)
        self.use(node.tree)
        return node

    def drop_expired(self, node):
        if node.created_s + self.ttl_s > self.wall.now:
            return False
        self.expired += 1
        del self.nodes[node.id]
        return True

    def delete(self, id):
        node = self.nodes.get(id)
        if node is None or self.drop_expired(node):
            return False
        del self.nodes[id]
        return True

    def sweep(self):
        return sum(self.drop_expired(node) for node in list(self.nodes.values()))

    def use_conversation(self, id):
        found = self.conversations.get(id)
        if found is not None:
            self.conversations[id] = self.conversations.pop(id)
            self.use(found.tree)
        return found

    def create(self, id, size, head):
        if size + (head.size_bytes if head is not None else 0) > self.max_bytes:
            return False
        made = self.conversations[id] = _NaiveConversation(size, _NaiveTree())
        self.use(made.tree)
        if head is not None:
            made.head = _NaiveNode(head, None)
            made.head.tree = made.tree
        self.keep_bounds()
        return True

    def describe(self, id, size):
        found = self.use_conversation(id)
        if found is not None:
            found.size = size
            self.keep_bounds()
        return found is not None

    def delete_conversation(self, id):
        return self.conversations.pop(id, None) is not None

    def resize(self, node, size):
        node.size = size
        self.keep_bounds()

    def put(self, given, parent, conversation):
        held = self.conversations.get(conversation)
        if given.hidden and held is None:
            return True
        node = _NaiveNode(given, parent)
        node.tree = parent.tree if parent is not None else held.tree if held is not None else _NaiveTree()
        needed = {each.id: each.size for each in node.chain()}
        needed.update((each.id, each.size) for each in self.kept().values() if each.tree is node.tree)
        if sum(needed.values()) + sum(each.size for each in self.conversations.values()
                                      if each.tree is node.tree) > self.max_bytes:
            return False
        if not node.hidden:
            self.nodes[node.id] = node
            if given.about is not None:
                self.made.append(node.id)
        if held is not None:
            held.head = node
        self.use(node.tree)
        self.keep_bounds()
        return True

    def keep_bounds(self):
        while len(self.nodes) > self.max_responses:
            self.evicted += 1
            del self.nodes[next(iter(self.nodes))]
        while len(self.conversations) > self.max_responses:
            self.evicted += 1
            del self.conversations[next(iter(self.conversations))]
        while self.bytes() > self.max_bytes:
            trees = [each.tree for each in list(self.nodes.values()) + list(self.conversations.values())]
            oldest = min(trees, key=lambda tree: tree.used)
            for table in (self.nodes, self.conversations):
                for id in [id for id, each in table.items() if each.tree is oldest]:
                    self.evicted += 1
                    del table[id]


class NaiveStore:
    """The same promises, said as slowly and plainly as can be.

    kept: every node that is addressable or an ancestor of one, recomputed after each step.
    """

    def __init__(self, max_responses, max_bytes, ttl_s):
        self.max_responses = max_responses
        self.max_bytes = max_bytes
        self.ttl_s = ttl_s
        self.nodes = {}                 # id -> _NaiveNode, addressable, least recently used first
        self.tree_use = {}              # root id -> when its tree was used last
        self.step = 0

    def has(self, id):
        return id in self.nodes

    def kept(self):
        return {each.id: each for node in self.nodes.values() for each in node.chain()}

    def state(self):
        kept = self.kept()
        return (sorted(self.nodes), len(self.nodes), len(kept) - len(self.nodes),
                sum(node.size for node in kept.values()))

    def use(self, node):
        self.step += 1
        self.nodes[node.id] = self.nodes.pop(node.id)
        self.tree_use[node.root().id] = self.step

    def expired(self, node, now):
        return node.created_s + self.ttl_s <= now

    def get(self, id, now):
        node = self.nodes.get(id)
        if node is None:
            return None
        if self.expired(node, now):
            del self.nodes[id]
            return None
        self.use(node)
        return node

    def delete(self, id, now):
        node = self.nodes.pop(id, None)
        return node is not None and not self.expired(node, now)

    def sweep(self, now):
        for node in list(self.nodes.values()):
            if self.expired(node, now):
                del self.nodes[node.id]

    def tree(self, root):
        return [node for node in self.nodes.values() if node.root() is root]

    def put(self, given, parent):
        node = _NaiveNode(given, parent)
        needed = {each.id: each.size for each in node.chain()}
        needed.update((each.id, each.size) for other in self.tree(node.root()) for each in other.chain())
        if sum(needed.values()) > self.max_bytes:
            return False
        self.nodes[node.id] = node
        self.use(node)
        while len(self.nodes) > self.max_responses:
            del self.nodes[next(iter(self.nodes))]
        while sum(each.size for each in self.kept().values()) > self.max_bytes:
            roots = {each.root() for each in self.nodes.values()}
            oldest = min(roots, key=lambda root: self.tree_use[root.id])
            for each in self.tree(oldest):
                del self.nodes[each.id]
        return True


class _NaiveNode:

    def __init__(self, node, parent):
        self.id = node.id
        self.parent = parent
        self.size = node.size_bytes
        self.created_s = node.created_s
        self.hidden = node.hidden

    def chain(self):
        node = self
        while node is not None:
            yield node
            node = node.parent

    def root(self):
        for node in self.chain():
            last = node
        return last


class MemoryStoreTest(StoreContract, unittest.TestCase):

    def make_store(self, max_responses=10000, max_bytes=1 << 28, ttl_s=DAY_S, wall=None):
        return MemoryStore(max_responses, max_bytes, ttl_s, wall)

    def test_it_never_waits(self):
        self.assertFalse(MemoryStore().blocking)

    def test_a_store_may_wait_unless_it_says_otherwise(self):
        self.assertTrue(Store.blocking)

    def test_memory_is_linear_in_the_text_of_a_chain(self):
        store = self.new_store()
        id, sizes = None, []
        for number in range(1, 301):
            id = self.put(store, number, id, size=200)
            sizes.append(store.stats()["bytes"])
        self.assertEqual(sizes[-1] - sizes[-2], sizes[99] - sizes[98])

    def test_cleared_it_is_as_new_and_a_turn_that_still_ran_is_kept_with_its_chain(self):
        store = self.new_store()
        first = self.put(store, 1)
        second = self.put(store, 2, first, foreign=("mine",))
        running = make_node(3, store.get(second), created_s=self.wall.now)
        store.delete(first)                         # a tombstone
        store.put(make_chat(4, created_s=self.wall.now))
        store.create_conversation(Conversation("conv_1", self.wall.now, {}, make_hidden(5)))
        self.assertTrue(store.clear())
        self.assertEqual(store.stats(), MemoryStore().stats())
        self.assertEqual((store.get(second), store.find_item("mine"), store.conversation("conv_1"), store.chats()),
                         (None, None, None, []))
        store.put(running)
        self.assertEqual(self.chain_ids(store, running.id), [running.id, second, first])

    def test_default_bounds_are_those_of_the_design(self):
        store = MemoryStore()
        for number in range(1, 10003):
            store.put(make_node(number, created_s=2e9, size=1))
        self.assertEqual((store.stats()["responses"], store.stats()["evicted"]), (10000, 2))


class ItemIdTest(unittest.TestCase):

    def test_an_items_id_leads_to_its_response(self):
        tail = "0123456789abcdef" * 2
        for prefix in ("msg_", "rs_", "fc_", "fco_", "ctc_", "ctco_", "ws_", "fs_", "cmp_", "it_"):
            for number in ("00", "ff", "12c"):
                with self.subTest(prefix=prefix, number=number):
                    self.assertEqual(item_response_id(prefix + tail + number), "resp_" + tail)

    def test_foreign_ids_lead_nowhere(self):
        for id in ("", "_", "msg_", "msg_1", "x_" + "0" * 34, "msg_" + "0" * 33, "resp_" + "0" * 34, "0" * 40):
            with self.subTest(id=id):
                self.assertIsNone(item_response_id(id))


if __name__ == "__main__":
    unittest.main()
