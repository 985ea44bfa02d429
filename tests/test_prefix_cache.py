"""The prefix cache: chained blocks, eviction, what is counted, and what it remembers of streams; no server."""
import random
import threading
import unittest

from api_common import TakesLong
from backends.contract import Finish, GenerationRequest, History, RefusalDelta, TextDelta, TextRun, ToolCallDelta, Usage
from backends.contract import ItemStart
from backends.prefix_cache import BlockPool, CacheStats, PrefixCache, answer_tokens
from backends.prompt import Opaque, Prompt, content_pieces, media_key
from tests.support import TIMEOUT_S
from tokenizer import ApproxTokenizer

TOKENIZER = ApproxTokenizer()
WORDS = [" " + word for word in "sea river stone light wind harbour letter bell apple road map clock".split()]


class RecordingTokenizer:
    """Cuts as the real one does, and keeps what it was given."""

    def __init__(self):
        self.texts = []

    def split(self, text):
        self.texts.append(text)
        return TOKENIZER.split(text)


def words(count, first=0):
    """A text of `count` tokens."""
    return "".join(WORDS[(first + number) % len(WORDS)] for number in range(count))


def make_request(parts, tokens=None, model="m", **given):
    """A request, on a worker, with this Prompt, or these parts behind no head. tokens: its count; None for the
    stream's own."""
    prompt = parts if parts.__class__ is Prompt else Prompt(parts)
    if tokens is None:
        tokens = sum(part_tokens(part) for part in list(prompt.head) + list(prompt.parts)) + 3 * prompt.opens
    history = History(tokens, b"", "", list, prompt=lambda history: prompt)
    return GenerationRequest(model, history, **dict({"breathe": int}, **given))


def part_tokens(part):
    role, content = part
    pieces = [content] if content.__class__ is str else content
    return (4 if role is not None else 0) + sum(
        len(TOKENIZER.split(piece)) if piece.__class__ is str else piece.tokens for piece in pieces)


def bare(text, **given):
    """A request whose prompt is this text and nothing else."""
    return make_request(Prompt([(None, text)], opens=False), **given)


def plan_of(text):
    pieces = TOKENIZER.split(text)
    return [(0.0, TextRun(pieces, [], [0.0] * len(pieces))), (0.0, Finish("stop")), (0.0, Usage(1, len(pieces)))]


def ask(cache, request, answer="", reasoning=0, breathe=None):
    """The cached tokens of one request that is looked up and answered with this text."""
    found = cache.look_up(request)
    cache.keep(found, [(reasoning, plan_of(answer) if answer.__class__ is str else answer)], breathe)
    return found.cached


class BlockPoolTest(unittest.TestCase):

    def setUp(self):
        self.pool = BlockPool(4)

    def present(self, blocks):
        return "".join(block for block in blocks if block in self.pool)

    def test_a_path_comes_in_up_to_the_bound(self):
        self.assertEqual(self.pool.extend(None, "abcdef"), 4)
        self.assertEqual((self.present("abcdef"), len(self.pool), self.pool.evictions), ("abcd", 4, 0))

    def test_the_end_of_the_oldest_path_goes_first(self):
        self.pool.extend(None, "ab")
        self.pool.extend(None, "cd")
        self.pool.extend(None, "e")
        self.assertEqual((self.present("abcde"), self.pool.evictions), ("acde", 1))

    def test_a_block_with_followers_stays_while_they_do(self):
        self.pool.extend(None, "ab")
        self.pool.extend(None, "a")         # used later than b, but b goes
        self.pool.extend(None, "cd")
        self.pool.extend(None, "e")
        self.assertEqual(self.present("abcde"), "acde")

    def test_use_makes_the_whole_path_young(self):
        self.pool.extend(None, "ab")
        self.pool.extend(None, "cd")
        self.pool.extend(None, "ab")
        self.pool.extend(None, "e")
        self.assertEqual(self.present("abcde"), "abce")

    def test_a_block_that_becomes_a_leaf_is_as_old_as_its_last_use(self):
        self.pool.extend(None, "ab")
        self.pool.extend(None, "c")
        self.pool.extend(None, "a")         # younger than c now
        self.pool.extend(None, "defg"[:2])  # evicts b
        self.assertEqual(self.present("abcde"), "acde")
        self.pool.extend(None, "f")         # evicts c, not a
        self.assertEqual(self.present("abcdef"), "adef")

    def test_a_path_does_not_evict_itself(self):
        self.assertEqual(self.pool.extend(None, "abcd"), 4)
        self.assertEqual(self.pool.extend("d", "e"), 0)
        self.assertEqual(self.present("abcde"), "abcd")

    def test_nothing_follows_a_block_that_has_gone(self):
        self.pool.extend(None, "ab")
        self.pool.extend(None, "cdef")
        self.assertEqual(self.present("abcdef"), "cdef")
        self.assertEqual((self.pool.extend("b", "x"), self.present("x")), (0, ""))

    def test_the_other_branches_go_before_the_path_in_use(self):
        self.pool.extend(None, "abc")
        self.pool.extend(None, "abd")
        self.assertEqual(self.pool.extend("b", "ef"), 2)
        self.assertEqual(self.present("abcdef"), "abef")


class LookUpTest(unittest.TestCase):

    def setUp(self):
        self.tokenizer = RecordingTokenizer()
        self.cache = PrefixCache(16, 1000, self.tokenizer)

    def test_full_blocks_of_a_prompt_hit_when_it_comes_again(self):
        self.assertEqual(ask(self.cache, bare(words(40))), 0)
        self.assertEqual(ask(self.cache, bare(words(40))), 32)

    def test_the_last_token_is_always_computed(self):
        for tokens, cached in ((32, 16), (33, 32), (16, 0), (17, 16), (1, 0), (48, 32)):
            with self.subTest(tokens=tokens):
                cache = PrefixCache(16, 1000, TOKENIZER)
                ask(cache, bare(words(tokens)))
                self.assertEqual(ask(cache, bare(words(tokens))), cached)

    def test_no_more_is_cached_than_the_history_counts(self):
        ask(self.cache, bare(words(100)))
        self.assertEqual(ask(self.cache, bare(words(100), tokens=50)), 48)

    def test_a_beginning_within_one_text_is_shared(self):
        ask(self.cache, bare(words(100) + words(50, 3)))
        self.assertEqual(ask(self.cache, bare(words(100) + words(50, 4))), 96)

    def test_a_beginning_within_a_long_text_is_shared_and_not_cut_again(self):
        start = words(10000)
        ask(self.cache, bare(start + words(50, 3)))
        self.tokenizer.texts.clear()
        self.assertEqual(ask(self.cache, bare(start + words(50, 4))), 10000)
        self.assertLess(sum(map(len, self.tokenizer.texts)), len(start) / 8)

    def test_texts_without_a_space_are_cut_alike(self):
        start = "x1-" * 5000
        ask(self.cache, bare(start + "a"))
        request = bare(start + "b")
        self.assertGreater(ask(self.cache, request), request.history.tokens - 1500)

    def test_the_same_blocks_behind_others_are_others(self):
        ask(self.cache, bare(words(16) + words(16, 5)))
        self.assertEqual(ask(self.cache, bare(words(16, 1) + words(16, 5) + words(16))), 0)
        self.assertEqual(ask(self.cache, bare(words(16, 5) + words(16, 5))), 0)

    def test_models_and_salts_part_caches_and_equal_ones_share(self):
        text = words(40)
        for first in ({"model": "m"}, {"model": "n"}, {"model": "m", "cache_salt": "a"},
                      {"model": "m", "cache_salt": "b"}):
            with self.subTest(given=first):
                self.assertEqual(ask(self.cache, bare(text, **first)), 0)
                self.assertEqual(ask(self.cache, bare(text, **first)), 32)

    def test_counters_are_exact(self):
        ask(self.cache, bare(words(40)), words(10, 3))
        ask(self.cache, bare(words(40)), words(10, 4))
        ask(self.cache, bare(words(20, 7)))
        # 2 blocks of the prompt, 1 of each answer (8 + 10 tokens), 1 of the last prompt
        self.assertEqual(self.cache.stats(), CacheStats(100, 32, 5, 1000, 0))

    def test_a_look_up_that_is_not_kept_leaves_nothing(self):
        self.cache.look_up(bare(words(40)))
        self.assertEqual(self.cache.stats(), CacheStats(0, 0, 0, 1000, 0))

    def test_evictions_keep_the_bound(self):
        cache = PrefixCache(16, 5, TOKENIZER)
        for first in range(6):
            ask(cache, bare(words(33, first)))
        self.assertEqual(cache.stats(), CacheStats(33 * 6, 0, 5, 5, 7))
        self.assertEqual(cache.look_up(bare(words(33, 5))).cached, 32)
        self.assertEqual(cache.look_up(bare(words(33, 0))).cached, 0)

    def test_a_prompt_longer_than_the_cache_keeps_its_beginning(self):
        cache = PrefixCache(16, 3, TOKENIZER)
        ask(cache, bare(words(100)), words(40))
        self.assertEqual((cache.stats().blocks, ask(cache, bare(words(100)))), (3, 48))

    def test_stats_wait_for_nobody(self):
        self.cache._lock.acquire()
        self.addCleanup(self.cache._lock.release)
        seen = []
        thread = threading.Thread(target=lambda: seen.append(self.cache.stats()), daemon=True)
        thread.start()
        thread.join(TIMEOUT_S)
        self.assertEqual(seen, [CacheStats(0, 0, 0, 1000, 0)])

    def test_a_request_without_a_prompt_is_not_looked_up(self):
        self.assertIsNone(self.cache.look_up(GenerationRequest("m", History(30, b"", "", list))))

    def test_a_prompt_that_is_scored_is_not_looked_up(self):
        ask(self.cache, bare(words(40)))
        self.assertIsNone(self.cache.look_up(bare(words(40), echo=words(40), logprobs=0)))

    def test_what_is_echoed_is_no_answer(self):
        found = self.cache.look_up(bare(words(40), echo=words(40)))
        self.cache.keep(found, [(0, plan_of(words(40) + words(32, 5)))])
        self.assertEqual(self.cache.stats().blocks, 2)

    def test_much_new_text_is_not_for_the_loop_and_known_text_is(self):
        request = bare(words(3000), breathe=None)
        with self.assertRaises(TakesLong):
            self.cache.look_up(request)
        self.assertEqual(self.tokenizer.texts, [])
        ask(self.cache, bare(words(3000)))
        self.assertEqual(ask(self.cache, request), 2992)

    def test_long_prompts_breathe_and_are_kept_in_slices(self):
        breaths = []
        text = words(40000)
        ask(self.cache, bare(text, breathe=lambda: breaths.append(1)), breathe=lambda: breaths.append(1))
        self.assertGreater(len(breaths), 40)
        self.assertEqual(self.cache.stats().blocks, 1000)
        cache = PrefixCache(16, 5000, TOKENIZER)
        ask(cache, bare(text), breathe=lambda: None)
        self.assertEqual((cache.stats().blocks, ask(cache, bare(text))), (2500, 39984))

    def test_many_threads_leave_a_sound_cache(self):
        cache = PrefixCache(4, 60, TOKENIZER)
        failures = []

        def run(seed):
            draw = random.Random(seed)
            try:
                for _ in range(300):
                    ask(cache, bare(words(draw.randrange(1, 60), draw.randrange(3))), words(8, draw.randrange(5)))
            except Exception as exc:
                failures.append(exc)
        threads = [threading.Thread(target=run, args=(seed,), daemon=True) for seed in range(4)]
        for thread in threads:
            thread.start()
        for thread in threads:
            thread.join(TIMEOUT_S)
            self.assertFalse(thread.is_alive())
        pool = cache._pool
        self.assertEqual(failures, [])
        self.assertLessEqual(len(pool), 60)
        self.assertEqual([block for block, before in pool._parents.items()
                          if before is not None and before not in pool], [])


class MessagesTest(unittest.TestCase):
    """Prompts of messages: what they cost, and what comes back in the next one."""

    def setUp(self):
        self.tokenizer = RecordingTokenizer()
        self.cache = PrefixCache(16, 1000, self.tokenizer)

    def test_a_message_costs_its_overhead(self):
        # 4 + 9, and 3 of the answer's opening: one block, and one token more
        ask(self.cache, make_request([("user", words(10))]))
        self.assertEqual(ask(self.cache, make_request([("user", words(10))])), 16)
        ask(self.cache, make_request([("user", words(9, 1))]))
        self.assertEqual(ask(self.cache, make_request([("user", words(9, 1))])), 0)

    def test_roles_matter(self):
        ask(self.cache, make_request([("user", words(40))]))
        self.assertEqual(ask(self.cache, make_request([("system", words(40))])), 0)

    def test_tools_stand_before_the_messages(self):
        parts = [("user", words(40))]
        ask(self.cache, make_request(Prompt(parts, [(None, words(30))])))
        self.assertEqual(ask(self.cache, make_request(Prompt(parts, [(None, words(30, 1))]))), 0)
        self.assertEqual(ask(self.cache, make_request(Prompt(parts, [(None, words(30))]))), 64)

    def test_an_answer_that_comes_back_hits(self):
        for reply, answer in (("text", words(100, 3)), ("short", words(20, 3))):
            with self.subTest(reply=reply):
                before = [("user", words(30) + reply)]
                ask(self.cache, make_request(before), answer)
                after = before + [("assistant", answer), ("user", words(40))]
                # all but the closing token, and the new message
                whole = part_tokens(before[0]) + part_tokens(after[1]) - 1
                self.assertEqual(ask(self.cache, make_request(after)), whole // 16 * 16)

    def test_a_history_that_comes_again_is_not_cut_again(self):
        parts = [("user", words(500))]
        ask(self.cache, make_request(parts), words(300, 3))
        parts += [("assistant", words(300, 3)), ("user", words(20, 1))]
        self.tokenizer.texts.clear()
        ask(self.cache, make_request(parts))
        self.assertEqual(self.tokenizer.texts, [words(20, 1)])

    def test_a_call_that_comes_back_hits(self):
        call = [(0.0, ToolCallDelta(0, "", None, "get_weather")), (0.0, ToolCallDelta(0, '{"city":"')),
                (0.0, ToolCallDelta(0, words(40))), (0.0, Finish("tool_calls"))]
        before = [("user", words(30))]
        said, content = answer_tokens(call)
        self.assertEqual(content, [Opaque("get_weather", 1), '{"city":"' + words(40)])
        self.assertEqual(said, ["get_weather", '{"city":"', words(40)])
        pieces = [(0.0, ToolCallDelta(0, piece)) for piece in TOKENIZER.split(content[1])]
        ask(self.cache, make_request(before), call[:1] + pieces)
        after = before + [("assistant", content), ("tool", words(40))]
        whole = part_tokens(before[0]) + part_tokens(after[1]) - 1
        self.assertEqual(ask(self.cache, make_request(after)), whole // 16 * 16)

    def test_every_choice_comes_in(self):
        before = [("user", words(30))]
        found = self.cache.look_up(make_request(before))
        answers = [words(64, 3), words(64, 5)]
        self.cache.keep(found, [(0, plan_of(answer)) for answer in answers])
        for answer in answers:
            after = before + [("assistant", answer), ("user", "x")]
            self.assertEqual(self.cache.look_up(make_request(after)).cached, 96)

    def test_reasoning_is_not_read_again(self):
        before = [("user", words(30))]
        ask(self.cache, make_request(before), words(64, 3), reasoning=64)
        blocks = self.cache.stats().blocks
        self.assertEqual(blocks, (37 + 64 + 64) // 16)
        after = before + [("assistant", words(64, 3)), ("user", "x")]
        self.assertEqual(ask(self.cache, make_request(after)), 32)
        self.assertEqual(ask(self.cache, make_request(after)), 96)

    def test_refusals_count_and_items_of_tools_do_not(self):
        self.assertEqual(answer_tokens([(0.0, RefusalDelta("No")), (0.0, TextDelta("."))]), (["No", "."], "No."))
        self.assertIsNone(answer_tokens([(0.0, ItemStart("web_search_call"))]))
        calls = [(0.0, ToolCallDelta(number, "", None, "f")) for number in range(2)]
        self.assertEqual(answer_tokens(calls), (["f", "f"], None))

    def test_pictures_are_told_apart_and_stand_in_their_place(self):
        def message(url, text):
            return [("user", content_pieces([{"type": "input_image", "image_url": url, "detail": "low"},
                                             {"type": "input_text", "text": text}]))]
        ask(self.cache, make_request(message("a", words(30))))
        self.assertEqual(ask(self.cache, make_request(message("a", words(30, 2)))), 80)
        self.assertEqual(ask(self.cache, make_request(message("b", words(30)))), 0)

    def test_what_the_store_adds_to_a_picture_makes_no_other_of_it(self):
        self.assertEqual(media_key({"type": "input_image", "image_url": "a"}),
                         media_key({"type": "input_image", "image_url": "a", "detail": "auto", "file_id": None}))
        self.assertNotEqual(media_key({"file_id": "a"}), media_key({"image_url": "a"}))

    def test_content_is_one_text_where_it_can_be(self):
        self.assertEqual(content_pieces([{"text": "a"}, {"refusal": "b"}, "c"]), "abc")
        self.assertEqual(content_pieces(None), [])
        self.assertEqual(content_pieces([{"text": "a"}, {"image_url": "u"}, {"text": "b"}])[::2], ["a", "b"])

    def test_a_part_is_not_taken_for_the_first_window_of_a_longer_one(self):
        text = words(3000)[:4096].rpartition(" ")[0]
        ask(self.cache, make_request([("user", text), ("user", words(100))]))
        ask(self.cache, make_request([("user", text + words(3000, 5))]))
        whole = make_request([("user", text), ("user", words(100))])
        self.assertEqual(ask(self.cache, whole), (whole.history.tokens - 1) // 16 * 16)
        self.assertEqual(ask(PrefixCache(16, 1000, TOKENIZER), whole), 0)


class Chain:
    """A chain of turns as an API would ask for it: each names the one before and gives its own input only."""

    def __init__(self, cache, head=(), total=0):
        self.cache = cache
        self.head = list(head)
        self.context = []
        self.total = total          # tokens of the context behind the last turn
        self.turns = 0
        self.walks = 0              # how often the whole context was asked for

    def before(self):
        self.walks += 1
        return list(self.context)

    def ask(self, text, answer, reasoning=0, head=None, kept=None):
        """Cached tokens of the next turn. kept: the answer as it was stored, when it ended otherwise than planned."""
        parts = [("user", text)]
        tokens = self.total + part_tokens(parts[0])
        parent = ("r%d" % self.turns, self.total) if self.turns else None
        head = self.head if head is None else head
        prompt = Prompt(parts, head, parent, self.before, ("r%d" % (self.turns + 1), tokens))
        whole = sum(map(part_tokens, head)) + tokens + 3
        cached = ask(self.cache, make_request(prompt, whole), answer, reasoning)
        kept = answer if kept is None else kept
        self.context += parts + [("assistant", kept)]
        self.total = tokens + part_tokens(("assistant", kept))
        self.turns += 1
        return cached


class ChainTest(unittest.TestCase):

    def setUp(self):
        self.tokenizer = RecordingTokenizer()
        self.cache = PrefixCache(16, 1000, self.tokenizer)

    def test_a_turn_hits_all_before_it_and_reads_its_own_input_only(self):
        chain = Chain(self.cache)
        chain.ask(words(30), words(50, 3))
        for turn in range(20):
            total = chain.total
            self.tokenizer.texts.clear()
            self.assertEqual(chain.ask(words(20, turn), words(30, turn)), (total - 1) // 16 * 16)
            self.assertEqual(self.tokenizer.texts, [words(20, turn)])
        self.assertEqual(chain.walks, 0)

    def test_a_fork_hits_up_to_where_it_leaves(self):
        chain = Chain(self.cache)
        chain.ask(words(30), words(50, 3))
        total, context = chain.total, list(chain.context)
        chain.ask(words(20), words(30))
        fork = Chain(self.cache, total=total)
        fork.context, fork.turns = context, 1
        self.assertEqual((fork.ask(words(40, 7), words(10)), fork.walks), ((total - 1) // 16 * 16, 0))

    def test_other_instructions_are_another_prefix(self):
        chain = Chain(self.cache, [("system", words(40))])
        chain.ask(words(30), words(50, 3))
        self.assertEqual(chain.ask(words(20), words(30), head=[("system", words(40, 1))]), 0)
        # and back: the beginning is still there, the turn between them is not
        self.assertEqual((chain.ask(words(20), words(30)), chain.walks), ((44 + 34 + 54 - 1) // 16 * 16, 2))

    def test_reasoning_does_not_break_the_chain(self):
        chain = Chain(self.cache)
        chain.ask(words(30), words(50, 3), reasoning=30)
        self.assertEqual(chain.ask(words(20), words(50, 4), reasoning=30), 32)
        self.assertEqual(chain.walks, 0)
        # the second prompt had the first answer without its thoughts
        self.assertEqual(chain.ask(words(20), words(50, 4)), (34 + 54 + 24 + 3) // 16 * 16)
        self.assertEqual(chain.walks, 0)

    def test_an_answer_that_was_cut_off_is_read_again(self):
        chain = Chain(self.cache)
        chain.ask(words(30), words(80, 3), kept=words(20, 3))
        self.assertEqual(chain.ask(words(40, 9), words(30)), (34 + 3 + 20) // 16 * 16)
        self.assertEqual(chain.walks, 1)

    def test_an_evicted_end_is_found_by_reading_again(self):
        cache = PrefixCache(16, 12, TOKENIZER)
        chain = Chain(cache)
        chain.ask(words(60), words(60, 3))      # 7 blocks
        ask(cache, bare(words(100, 5)))         # 6: two of the chain's go
        self.assertEqual(cache.stats().evictions, 1)
        self.assertEqual((chain.ask(words(10), words(10)), chain.walks), (96, 1))

    def test_what_the_side_table_forgot_is_read_again_and_hits(self):
        cache = PrefixCache(16, 1000, TOKENIZER, max_places=50)
        chain = Chain(cache)
        chain.ask(words(60), words(60, 3))
        for number in range(50):
            ask(cache, bare("%d" % number + words(64)))
        total = chain.total
        self.assertEqual((chain.ask(words(10), words(10)), chain.walks), ((total - 1) // 16 * 16, 1))
        total = chain.total
        self.assertEqual((chain.ask(words(10), words(10)), chain.walks), ((total - 1) // 16 * 16, 1))

    def test_what_the_side_table_holds_is_bounded(self):
        cache = PrefixCache(16, 10000, TOKENIZER, max_places=50)
        held = []
        for number in range(100):
            Chain(cache).ask("%d" % number, words(40 * number % 900, number), reasoning=20)
            held.append(sum(len(place.tail) for place in cache._places.values()))
            self.assertEqual(held[-1], cache._places_tokens)
            self.assertLessEqual(len(cache._places), 50)
        self.assertTrue(800 < max(held) <= 32 * 50, held)

    def test_a_walk_that_takes_long_changes_nothing(self):
        def before():
            raise TakesLong()
        prompt = Prompt([("user", words(40))], (), ("unknown", 100), before, ("r", 144))
        with self.assertRaises(TakesLong):
            self.cache.look_up(make_request(prompt, 147))
        self.assertEqual(self.cache.stats(), CacheStats(0, 0, 0, 1000, 0))


class NaiveCache:
    """The rules written down: blocks with a name and a last use each, found by looking at all of them."""

    def __init__(self, size, max_blocks):
        self.size = size
        self.max_blocks = max_blocks
        self.names = {}             # (name of the block before, tokens) -> name
        self.before = {}            # name of a present block -> name of the one before
        self.used = {}              # name of a present block -> when it was used last
        self.now = self.queries = self.hits = self.evictions = 0

    def path(self, tokens):
        """The names of the full blocks of a stream."""
        name, names = 0, []
        for at in range(0, len(tokens) - self.size + 1, self.size):
            name = self.names.setdefault((name, tuple(tokens[at:at + self.size])), len(self.names) + 1)
            names.append(name)
        return names

    def cached(self, tokens):
        count = 0
        for name in self.path(tokens):
            if name not in self.used:
                break
            count += self.size
        return min(count, (len(tokens) - 1) // self.size * self.size)

    def use(self, tokens):
        self.now += 1
        before = 0
        for name in self.path(tokens):
            if name not in self.used and len(self.used) >= self.max_blocks and not self.evict(before):
                return
            self.used[name] = self.now
            self.before[name] = before
            before = name

    def evict(self, kept):
        inner = set(self.before.values())
        leaves = [name for name in self.used if name not in inner and name != kept]
        if not leaves:
            return False
        oldest = min(leaves, key=self.used.get)
        del self.used[oldest], self.before[oldest]
        self.evictions += 1
        return True

    def ask(self, prompt, answer):
        cached = self.cached(prompt)
        self.queries += len(prompt)
        self.hits += cached
        self.use(prompt + answer)
        return cached


class NaiveModelTest(unittest.TestCase):
    """Random prompts that share beginnings: the cache does what the naive one does, step by step."""

    def compare(self, seed, size, max_blocks, steps, make_prompt):
        draw = random.Random(seed)
        cache, naive = PrefixCache(size, max_blocks, TOKENIZER), NaiveCache(size, max_blocks)
        known, asked = [], []
        for step in range(steps):
            if asked and draw.random() < 0.3:
                parts, opens, answer = draw.choice(asked)
            else:
                parts, opens = make_prompt(draw, known)
                answer = words(draw.randrange(0, 30), draw.randrange(12))
                asked.append((parts, opens, answer))
            stream = []
            for role, content in parts:
                pieces = TOKENIZER.split(content)
                stream += pieces if role is None else [role] * 3 + pieces + ["end"]
            stream += ["assistant"] * 3 * opens
            found = ask(cache, make_request(Prompt(parts, opens=opens)), answer)
            want = naive.ask(stream, TOKENIZER.split(answer))
            if opens:
                known.append(parts + [("assistant", answer)])
            else:
                known.append(parts)
            state = (found, cache.stats())
            if state != (want, CacheStats(naive.queries, naive.hits, len(naive.used), max_blocks, naive.evictions)):
                self.fail("seed %d, step %d: %r, not %d, %d, %d blocks, %d evictions" % (
                    seed, step, state, want, naive.hits, len(naive.used), naive.evictions))
        return naive

    def test_bare_texts(self):
        def make_prompt(draw, known):
            text = draw.choice(known)[0][1] if known and draw.random() < 0.7 else ""
            text = text[:draw.randrange(len(text) + 1)].rpartition(" ")[0]
            return [(None, text + words(draw.randrange(1, 40), draw.randrange(12)))], False
        evicted = hit = 0
        for seed in range(24):
            naive = self.compare(seed, draw_size(seed), 4 + 3 * seed, 60, make_prompt)
            evicted, hit = evicted + naive.evictions, hit + naive.hits
        self.assertGreater(min(evicted, hit), 1000)

    def test_chats_that_grow_and_fork(self):
        def make_prompt(draw, known):
            parts = list(draw.choice(known)) if known and draw.random() < 0.8 else []
            if len(parts) > 6 or parts and draw.random() < 0.2:
                parts = parts[:draw.randrange(1, len(parts))]
            return parts + [(draw.choice(("user", "system")), words(draw.randrange(1, 60), draw.randrange(3)))], True
        evicted = hit = 0
        for seed in range(18):
            naive = self.compare(seed, draw_size(seed), 200 // draw_size(seed) + 5 * seed, 40, make_prompt)
            evicted, hit = evicted + naive.evictions, hit + naive.hits
        self.assertGreater(min(evicted, hit), 1000)


def draw_size(seed):
    return (1, 4, 16)[seed % 3]


if __name__ == "__main__":
    unittest.main()
