"""A prefix cache that holds no content: which blocks of prompt tokens an engine would still have.

It behaves as vLLM's automatic prefix caching. In: requests, whose prompts are read as streams of tokens. Out: how many
leading tokens of each were there already, and counters. Any thread may call it; look-ups take no lock.
"""
import threading
from collections import OrderedDict, namedtuple
from hashlib import blake2b
from itertools import chain

from api_common import ANSWER_TOKENS, MESSAGE_TOKENS, TakesLong
from backends.contract import Finish, ReasoningDelta, RefusalDelta, TextDelta, TextRun, ToolCallDelta, Usage
from backends.prompt import Opaque, call_content

# Strategy. A block's name is a hash of its tokens and of the block before it, so a name stands for all that leads up to
# it. Cutting a text into tokens is what costs (10 MB/s with the hashes), so it is done once: where a stream stood at the
# end of a part is remembered under a hash of the parts up to there (600 MB/s), and under the id of the turn, so that a
# chained turn looks at nothing but its own input.

PREFIX_PLACES = 8192                # such places; the least recently used go first
_TOKENS_PER_PLACE = 32              # that they may hold on average: under 20 MB in all
_PLACE_TOKENS = 64                  # between two of them: reading so many again costs no more than remembering
_PLACES_PER_PROMPT = 64             # at most, so that one giant prompt does not drive out the others
_LONGEST_TAIL = 2048                # tokens that a place may hold
_INLINE_CHARS = 8192                # 0.5 ms: more is cut into tokens on a worker
_WINDOW_CHARS = 4096                # longer texts are cut and remembered in pieces of about this
_KEPT_AT_ONCE = 1024                # blocks, 1 ms: then others may have the lock
_HASH_BYTES = 12

_CLOSING = ["\0"] * (MESSAGE_TOKENS - ANSWER_TOKENS)
_THOUGHT = "\0thought"


class CacheStats(namedtuple("CacheStats", "queries hits blocks max_blocks evictions")):
    """queries, hits: prompt tokens looked up and found, as vllm:prefix_cache_queries and _hits count them. blocks: now
    in the cache, of max_blocks. evictions: blocks. Whether a block is in use by a running answer is not known here."""
    __slots__ = ()


class BlockPool:
    """Which blocks are present, at most max_blocks; a present block's ancestors are present as well.

    The least recently used block that nothing follows is evicted first. Not locked.
    """

    def __init__(self, max_blocks):
        self.max_blocks = max_blocks
        self.evictions = 0
        self._parents = {}          # block -> the block before it, or None
        self._followers = {}        # block -> how many blocks follow it; leaves are not in it
        # Ends of paths in the order of their last use. What a path passed through was used as lately as what follows
        # it, so only ends need a place. One that is no leaf any more is skipped when its turn comes, and a block
        # that becomes a leaf is as old as the evicted one, the oldest of all.
        self._ends = OrderedDict()

    def __contains__(self, block):
        return block in self._parents

    def __len__(self):
        return len(self._parents)

    def extend(self, end, blocks):
        """Use the path of blocks behind the block `end` (None: from the beginning); what is missing comes in.

        Returns how many of them are present then: fewer where there is no room, none when `end` has gone.
        """
        parents = self._parents
        if end is not None and end not in parents:
            return 0
        present = 0
        for block in blocks:
            if block not in parents:
                if len(parents) >= self.max_blocks and not self._evict(end):
                    break
                parents[block] = end
                if end is not None:
                    self._followers[end] = self._followers.get(end, 0) + 1
            end = block
            present += 1
        if end is not None:
            self._ends[end] = None
            self._ends.move_to_end(end)
        return present

    def _evict(self, kept):
        """Make room for one block; False when there is nothing but the path that ends in `kept`."""
        ends, followers = self._ends, self._followers
        while ends:
            block, _ = ends.popitem(last=False)
            if block in followers or block == kept:
                continue
            before = self._parents.pop(block)
            self.evictions += 1
            if before is not None:
                left = followers[before] - 1
                if left:
                    followers[before] = left
                else:
                    del followers[before]
                    if before not in ends:
                        ends[before] = None
                        ends.move_to_end(before, last=False)
            return True
        return False


class _Place(namedtuple("_Place", "key block depth tail")):
    """Where a stream of tokens stands. key: hash of the parts so far. block: the last full one, the `depth`th (0: there
    is none). tail: tuple of the tokens behind it, which may be more than a block."""
    __slots__ = ()


class FoundPrefix:
    """A prompt that was looked up. cached: how many of its leading tokens were present."""

    __slots__ = ("cached", "_prompt", "_tokens", "_start", "_blocks", "_opened", "_known", "_places", "_since",
                 "_head_key", "_key", "_kept_answer")


class PrefixCache:
    """The blocks of all prompts and answers of late.

    block_tokens: of a block. max_blocks: how many there may be. tokenizer: cuts the texts.

    Models do not share blocks, nor do different values of `cache_salt`; `prompt_cache_key` is no part of anything: it
    routes to a machine on the service, and here is only one. A prompt counts as present from the moment at which its
    answer is planned, and the answer's tokens with it: later requests hit what is being generated, and an answer that
    is cancelled leaves blocks that nobody asks for.
    """

    def __init__(self, block_tokens, max_blocks, tokenizer, max_places=PREFIX_PLACES):
        self._size = block_tokens
        self._tokenizer = tokenizer
        self._split = tokenizer.split
        self._pool = BlockPool(max_blocks)
        self._places = OrderedDict()        # key of parts, or of a turn -> _Place
        self._places_tokens = 0             # in all their tails
        self._max_places = max_places
        self._lock = threading.Lock()       # guards changes of all these; readers need none
        self._counts = (0, 0)

    def emptied(self):
        """Another one like it, with nothing in it."""
        return PrefixCache(self._size, self._pool.max_blocks, self._tokenizer, self._max_places)

    def stats(self):
        """CacheStats, without waiting for anybody."""
        queries, hits = self._counts
        return CacheStats(queries, hits, len(self._pool), self._pool.max_blocks, self._pool.evictions)

    # ---- before the answer --------------------------------------------------------------------

    def look_up(self, request):
        """A GenerationRequest's prompt as FoundPrefix; nothing is counted or kept before keep().

        None where nothing is looked up: a prompt of a backend's own making, and one that is scored, as its tokens'
        log probabilities need the whole computation. Raises TakesLong.
        """
        if request.echo is not None and request.logprobs is not None:
            return None
        prompt = request.history.prompt()
        if prompt is None:
            return None
        found = FoundPrefix()
        found._prompt, found._tokens = prompt, request.history.tokens
        salt = request.cache_salt
        root = _prefix_hash(b"", request.model if salt is None else "%s\0%s" % (request.model, salt))
        self._read(found, _Place(root, root, 0, ()), prompt, request.breathe)
        size = self._size
        # the last token is always computed: its output is the answer's first token
        found.cached = min(self._hits(found) * size, max(0, found._tokens - 1) // size * size)
        found._kept_answer = request.echo is None
        return found

    def _hits(self, found):
        """How many leading blocks are present. All are up to where the reading began."""
        pool, depth = self._pool, found._start.depth
        for block in found._blocks:
            if block not in pool:
                break
            depth += 1
        return depth

    def _read(self, found, place, prompt, breathe):
        """Read the prompt from the last place on that is known and whose block is present."""
        found._known = None
        segments = list(_iter_segments(place.key, prompt.head)) if prompt.head else []
        head_key = found._head_key = segments[-1][0] if segments else place.key
        if prompt.parent is None:
            segments += _iter_segments(head_key, prompt.parts)
        else:
            turn_key = _turn_key(head_key, prompt.parent)
            known = self._present(turn_key)
            if known is not None:
                place, found._known = known, turn_key
                segments = list(_iter_segments(place.key, prompt.parts))
            else:
                segments += _iter_segments(head_key, chain(prompt.before(), prompt.parts))
        first = 0
        for at in range(len(segments) - 1, -1, -1):
            known = self._present(segments[at][0])
            if known is not None:
                place, found._known, first = known, segments[at][0], at + 1
                break
        if first:
            del segments[:first]
        if breathe is None and sum([len(segment[2]) for segment in segments]) > _INLINE_CHARS:
            raise TakesLong()
        found._start = place
        size, split = self._size, self._split
        every = max(_PLACE_TOKENS, found._tokens // _PLACES_PER_PROMPT)
        key, block, depth, tail = place
        tail, blocks, places, since = list(tail), [], [], 0
        for key, opening, piece, closing in segments:
            since -= len(tail)
            tail += opening
            if piece.__class__ is str:
                tail += split(piece)
            else:
                tail += [piece.key] * piece.tokens
            tail += closing
            since += len(tail)
            if len(tail) >= size:
                block = self._cut(block, tail, blocks)
            if since >= every:
                places.append((key, _Place(key, block, depth + len(blocks), tuple(tail))))
                since = 0
            if breathe is not None:
                breathe()
        if prompt.opens:
            tail += _opening("assistant")
            block = self._cut(block, tail, blocks)
        found._opened = _Place(None, block, depth + len(blocks), tail)
        found._blocks, found._places, found._since, found._key = blocks, places, since, key

    def _present(self, key):
        """The place that is remembered under a key, if all before it is present."""
        place = self._places.get(key)
        return place if place is not None and (not place.depth or place.block in self._pool) else None

    def _cut(self, block, tokens, blocks):
        """Take full blocks off a list of tokens; their names go to `blocks`. Returns the last one's."""
        size = self._size
        full = len(tokens) - len(tokens) % size
        for at in range(0, full, size):
            block = _prefix_hash(block, "\0".join(tokens[at:at + size]))
            blocks.append(block)
        del tokens[:full]
        return block

    # ---- with the answer ----------------------------------------------------------------------

    def keep(self, found, answers, breathe=None):
        """Count a look-up, and let the prompt and what is answered to it come into the cache.

        answers: for each choice (tokens of reasoning, its plan [(due_s, delta)]). Reasoning is not read again by a
        next turn, whose prompt leaves the prefix there; built-in tools' items are read as they are stored, so such a
        turn is read from its items.
        """
        paths = []
        if found._kept_answer:
            for reasoning, plan in answers:
                said = answer_tokens(plan)
                if said is not None:
                    tokens, content = said
                    paths.append(self._answer_blocks(found, reasoning, self._with_silent(tokens), content))
        blocks = found._blocks
        if len(paths) == 1:
            blocks, paths = blocks + paths[0], ()
        if breathe is not None:
            while len(blocks) > _KEPT_AT_ONCE:
                with self._lock:
                    self._use(found._start, blocks[:_KEPT_AT_ONCE])
                found._start = _Place(None, blocks[_KEPT_AT_ONCE - 1], 1, ())
                blocks = blocks[_KEPT_AT_ONCE:]
                breathe()
        with self._lock:
            queries, hits = self._counts
            self._counts = queries + found._tokens, hits + found.cached
            self._use(found._start, blocks)
            for path in paths:
                self._use(found._opened, path)
            if found._known in self._places:
                self._places.move_to_end(found._known)
            for key, place in found._places:
                self._remember(key, place)

    def _remember(self, key, place):
        places = self._places
        known = places.pop(key, None)
        places[key] = place
        self._places_tokens += len(place.tail) - (len(known.tail) if known is not None else 0)
        most = self._max_places
        while len(places) > most or self._places_tokens > _TOKENS_PER_PLACE * most:
            _, oldest = places.popitem(last=False)
            self._places_tokens -= len(oldest.tail)

    def _use(self, place, blocks):
        self._pool.extend(place.block if place.depth else None, blocks)

    def _with_silent(self, tokens):
        """Tokens of a plan, and those of them that have no text of their own, which a plan leaves out."""
        whole = []
        for token in tokens:
            if not token.isascii():
                whole += [""] * self._split(token).count("")
            whole.append(token)
        return whole

    def _answer_blocks(self, found, reasoning, tokens, content):
        """The blocks behind the prompt that the answer fills; where the context then stands is noted in `found`."""
        _, block, depth, tail = found._opened
        blocks, tail = [], list(tail)
        if reasoning:
            context = tail + tokens
            self._cut(block, tail + [_THOUGHT] * reasoning + tokens, blocks)
        else:
            context = tail + tokens
            block = self._cut(block, context, blocks)
            depth += len(blocks)
        prompt = found._prompt
        far = found._since + len(tokens) >= _PLACE_TOKENS
        if not prompt.opens or content is None or len(context) > _LONGEST_TAIL or not far and prompt.turn is None:
            return blocks
        # no further cut: the closing comes with the next prompt, so a block that it fills is not there yet
        for key, _, _, _ in _iter_segments(found._key, (("assistant", content),)):
            pass
        place = _Place(key, block, depth, tuple(context + _CLOSING))
        if far:
            found._places.append((key, place))
        if prompt.turn is not None:
            id, left = prompt.turn
            found._places.append((_turn_key(found._head_key, (id, left + len(tokens) + MESSAGE_TOKENS)), place))
        return blocks


def answer_tokens(plan):
    """([tokens of a choice as str], its content when it is read again), or None for what is not read as it was said.

    plan: [(due_s, delta)] of one choice. The content is None where another turn would not read these tokens.
    """
    tokens, calls = [], 0
    for _, delta in plan:
        kind = delta.__class__
        if kind is TextRun:
            tokens += delta.pieces
        elif kind is TextDelta or kind is RefusalDelta:
            tokens.append(delta.text)
        elif kind is ToolCallDelta:
            calls += delta.name is not None
            tokens.append(delta.arguments if delta.name is None else delta.name)
        elif kind is not Finish and kind is not Usage and kind is not ReasoningDelta:
            return None
    if not calls:
        return tokens, "".join(tokens)
    return tokens, call_content(tokens[0], "".join(tokens[1:])) if calls == 1 else None


# ---- streams ----------------------------------------------------------------------------------

def _prefix_hash(before, text):
    return blake2b(before + text.encode("utf-8", "surrogatepass"), digest_size=_HASH_BYTES).digest()


def _turn_key(head_key, turn):
    """A key for the context behind a turn, under this head. The count is in it as an answer may end otherwise than
    planned: cancelled in mid-way, it is not what was kept."""
    return _prefix_hash(head_key, "\0turn %s %d" % turn)


def _opening(role):
    return ["\0" + role] * ANSWER_TOKENS


def _iter_segments(key, parts):
    """(key, opening tokens, str or Opaque, closing tokens) of each piece of content; key: hash of all up to its end."""
    for role, content in parts:
        opening, closing, mark = ((), (), "\0") if role is None else (_opening(role), _CLOSING, role)
        if content.__class__ is str and len(content) <= _WINDOW_CHARS:
            key = _prefix_hash(key, "%s\0.%s" % (mark, content))
            yield key, opening, content, closing
            continue
        pieces = [content] if content.__class__ is str else content
        pieces = [window for piece in pieces for window in _iter_windows(piece)] or [""]
        for number, piece in enumerate(pieces, 1):
            last = number == len(pieces)
            word = piece if piece.__class__ is str else "%d\0%s" % (piece.tokens, piece.key)
            # a part's end is in the key, as its closing is in the stream
            end = (";:" if piece.__class__ is Opaque else ",.")[last]
            key = _prefix_hash(key, "%s\0%s%s" % (mark, end, word))
            yield key, opening, piece, closing if last else ()
            opening, mark = (), "\1"


def _iter_windows(text):
    """A long text in pieces, cut before a space where there is one: where a token begins. Two texts with the same
    beginning are cut alike as far as they agree."""
    if text.__class__ is not str or len(text) <= _WINDOW_CHARS:
        yield text
        return
    at = 0
    while len(text) - at > _WINDOW_CHARS:
        end = text.rfind(" ", at + _WINDOW_CHARS // 2, at + _WINDOW_CHARS)
        if end < 0:
            end = at + _WINDOW_CHARS
        yield text[at:end]
        at = end
    yield text[at:]
