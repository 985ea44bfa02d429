"""Stores: one contract for all of them, and what the memory store adds.

StoreContract is a mixin: a later store subclasses it with unittest.TestCase and overrides make_store().
"""
import json
import random
import threading
import unittest

from state.contract import Node, Store, StoreFull, item_response_id
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

    def test_a_chain_of_10000_turns_is_walked_and_freed(self):
        store = self.new_store(max_responses=20000)
        id = None
        for number in range(1, 10001):
            id = self.put(store, number, id, size=1)
        self.assertEqual(sum(1 for _ in store.get(id).chain()), 10000)
        for number in range(1, 10000):
            store.delete("resp_%032x" % number)
        self.assertEqual(store.stats()["tombstones"], 9999)
        store.delete(id)
        self.assertEqual((store.stats()["tombstones"], store.stats()["bytes"]), (0, 0))

    def test_a_chain_of_10000_turns_deleted_during_a_turn_comes_back(self):
        store = self.new_store(max_responses=5)
        id = None
        for number in range(1, 10001):
            id = self.put(store, number, id, size=1)
        parent = store.get(id)
        for number in range(9990, 10001):
            store.delete("resp_%032x" % number)
        self.assertEqual(store.stats()["bytes"], 0)
        store.put(make_node(10001, parent, self.wall.now, size=1))
        self.assertEqual(store.stats()["tombstones"], 10000)

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
