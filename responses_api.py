"""The Responses API: stateful turns in, a generation request to the backend, the node to the store.

It resolves `previous_response_id` or `conversation` to a chain and keeps the finished response before
its terminal event goes out. Runs on whichever thread handles the request.
"""
import json
import re
from functools import partial
from hashlib import blake2b

from api_common import (ANSWER_TOKENS, LONGEST_ANSWER_TOKENS, MESSAGE_TOKENS, SERVERS_OWN_FIELDS, ApiError, Host,
                        TakesLong, build_page, check_fields, check_min_tokens,
                        check_model_name, check_streaming, check_unknown, context_overflow, dump_json, ignored_headers,
                        invalid_value, missing_parameter, parse_body, parse_page_query, parse_query_boolean,
                        parse_query_integer, shown, unescape_json)
from api_tools import (RESPONSE_TOOL_TYPES, check_json_word, count_tool_tokens, read_output_format, read_tool_choice,
                       read_tools, tools_text)
from background import SETTLE_TIMEOUT_S, BackgroundRun, pack_events, split_events
from backends.contract import FailingBackend, GenerationRequest, History, SilentBackend
from backends.prompt import Prompt
from responses_assembler import CompactionAssembler, ResponseAssembler
from responses_items import fit_items, items_to_messages, prompt_parts, read_input
from responses_request import (COMPACT_CHECKS, INPUT_TOKENS_CHECKS, RESPONSE_CHECKS, RESPONSE_USED, build_echo,
                               check_includes, conversation_locked, conversation_not_found, previous_not_found)
from responses_socket import read_socket_turn
from runs import Completion
from state.contract import LONG_CHAIN_TURNS, Node, is_long_walk, iter_context

_RESPONSE_ID = re.compile(r"[A-Za-z0-9_-]{1,128}\Z")
COMPACT_TOKENS = 200                # of a compaction's summary, at most
_LONG_CONTEXT_TOKENS = 2000         # reading so much of a chain again takes 1 ms and more: not on the loop


# ---- a turn -----------------------------------------------------------------------------------

class _Turn:
    """One response on its way: what the store needs when it is complete.

    parent: the Node that it follows, or None. conversation: the id of the one it holds, or None.
    held: the same, until it lets go. stored: whether it can be asked for later. background; run: its BackgroundRun while it is generated.
    """

    __slots__ = ("id", "tail", "parent", "read", "tokens", "tokenizer", "store", "assembler", "wall", "conversation", "stored",
                 "background", "run", "runs", "live", "held")

    def keep(self, frames):
        """Store the finished response. Called before the terminal event is written."""
        assembler, run = self.assembler, self.run
        replay = None
        if run is not None and run.resumable:
            replay = pack_events(run.log.events + split_events(frames))
        # nothing is appended to a conversation by a turn that failed
        self.put(assembler.result(), assembler.output_at, assembler, replay, moves=assembler.closed)
        if run is not None:
            self.release()              # before anybody can see that it has ended
            self.store.flush()          # here, so that a fault is one of keeping
            self.runs.forget(self.id)
            run.settled.set()

    def put(self, body, output_at, assembler, replay=None, moves=False):
        """Store an object of this turn, as the assembler has said it. moves: it is its conversation's last."""
        read, usage, words = self.read, assembler.usage, assembler.words()
        if usage is not None:
            said = max(0, usage.completion_tokens - usage.reasoning_tokens)    # a script may say anything
        else:                           # it failed, or was cancelled
            said = self.tokenizer.count(unescape_json(b"".join(words))) if words else 0
        digest = blake2b(b"\0".join([read.prefix_hash] + words), digest_size=16)
        node = Node(self.id, self.parent, self.wall(), body, output_at, read.stored(self.tail),
                    self.tokens + said + MESSAGE_TOKENS, digest.digest(),
                    read.open_calls.union(assembler.call_ids) if assembler.call_ids else read.open_calls,
                    read.foreign_ids, read.calls + len(assembler.call_ids), not self.stored,
                    background=self.background, replay=replay)
        self.store.put(node, self.conversation if moves else None)

    def settle(self):
        """The generation is over, however it ended."""
        self.release()
        run = self.run
        if run is not None and not run.settled.is_set() and not run.completion.cancel.is_set():
            run.final = self.assembler.result()     # it could not be stored: whoever polls learns of it here
            run.settled.set()
            self.store.forget_running(self.id)

    def release(self):
        """Let go of what only one at a time may have."""
        held, self.held = self.held, None
        if held is not None:
            self.store.release_conversation(held, self.id)
        self.live.discard(self.id)


class ResponsesApiMixin(Host):
    """POST /v1/responses, and all calls about what it stored or is generating."""

    def responses_create(self):
        body = parse_body(self.body_bytes, self.breathe)
        self._responses_begin(body, self.backend)

    def responses_connect(self):
        """GET /v1/responses: the WebSocket."""
        self.send_websocket()

    def responses_turn(self, body):
        """A response.create message of a WebSocket: like a POST, always streamed."""
        generates = read_socket_turn(body, self.settings.strict, RESPONSE_CHECKS)
        self._responses_begin(body, self.backend if generates else SilentBackend(self.backend))

    def _responses_begin(self, body, backend):
        unknown = check_fields(body, RESPONSE_CHECKS)
        if self.settings.strict:
            check_unknown(unknown + tuple(name for name in SERVERS_OWN_FIELDS if body.get(name) is not None),
                          responses=True)
        if body.get("model") is None:
            if body.get("prompt") is None:
                raise missing_parameter("model")
            body["model"] = self.settings.model[0]     # the prompt template names one on the service
        check_model_name(body["model"], self.settings, responses=True)
        check_streaming(body)
        streamed = bool(body.get("stream")) or self.socket_frame is not None
        background = bool(body.get("background"))
        turn = _Turn()
        turn.stored = body.get("store") is not False
        if background and not turn.stored:
            raise ApiError(400, "Background responses must be stored: 'background' needs 'store' to be true.",
                           param="background")
        turn.store, turn.runs, turn.live, turn.run = self.store, self.runs, self.live_responses, None
        turn.tokenizer, turn.background = self.tokenizer, background
        turn.tail = self.ids.tail()
        turn.id = "resp_" + turn.tail
        turn.wall = self.clock.time
        turn.conversation, turn.parent = self._responses_context(body, turn.id)
        turn.held = turn.conversation
        try:
            self._responses_start(body, unknown, turn, streamed, background, backend)
        except BaseException:
            turn.settle()
            raise

    def _responses_context(self, body, owner):
        """(conversation id or None, parent Node or None) of a turn; the conversation is then the owner's."""
        conversation = body.get("conversation")
        if conversation is None:
            return None, self._responses_parent(body.get("previous_response_id"))
        if body.get("previous_response_id") is not None:
            raise ApiError(400, "Mutually exclusive parameters: ['previous_response_id', 'conversation']. Only "
                           "one of them can be given.", code="mutually_exclusive_parameters",
                           param="previous_response_id")
        id = conversation["id"] if conversation.__class__ is dict else conversation
        held = self.store.conversation(id) if owner is None else self.store.claim_conversation(id, owner)
        if held is None:
            raise conversation_not_found(id)
        if owner is not None and held.owner != owner:
            raise conversation_locked(id)
        return id, held.head

    def _responses_start(self, body, unknown, turn, streamed, background, backend):
        given_input = body.get("input")
        if not given_input and turn.parent is None and turn.conversation is None and body.get("prompt") is None:
            if given_input is None:
                raise missing_parameter("input")
            if given_input.__class__ is list:
                raise ApiError(400, "Invalid 'input': the array is empty.", code="empty_array",
                               param="input")
        failure = None
        try:
            request = self._responses_request(body, unknown, turn)
        except ApiError as error:
            # api-reference 2.2: too long a context is told inside a stream, or a background response
            if error.code != "context_length_exceeded" or not (streamed or background):
                raise
            request, failure = GenerationRequest(body["model"], History(0, b"", "", list), raw=body), error
        read = turn.read
        if self.breathe is not None:
            read.prepare(turn.tail)
        chunked = streamed and self.chunked and not background
        opening = (turn.tail, self.ids.created(), build_echo(body, turn.conversation), self.ids.created, read.count,
                   chunked, background, self.socket_frame)
        turn.assembler = ResponseAssembler(*opening)
        # a WebSocket remembers for itself what is not stored
        keeps = turn.stored or turn.conversation is not None or self.socket_frame is not None
        turn.assembler.keeps_id = keeps
        completion = Completion(
            request, backend if failure is None else FailingBackend(failure), turn.assembler, self.metrics,
            self.log_exception, keep=turn.keep if keeps else None,
            keep_blocking=keeps and (self.store.blocking or background and streamed),
            settle=turn.settle if turn.conversation is not None or streamed or background else None)
        if not background:
            if streamed and turn.stored:
                self.live_responses.add(turn.id)
            self.send_completion(completion, streamed)
            return
        headers = ignored_headers(request.ignored_fields, self.settings)
        completion.record = []
        self.admit(completion)
        log = self.runs.new_log(streamed)
        run = turn.run = BackgroundRun(turn.id, completion, log, lambda: ResponseAssembler(*opening), turn, streamed)
        queued, _ = run.snapshot()
        self.store.begin_running(turn.id, queued, read.stored(turn.tail), turn.parent)
        try:
            self.runs.start(run)
        except BaseException:
            self.store.forget_running(turn.id)
            raise
        self.undo = partial(_stop_run, self.runs, run)
        if streamed:
            self.send_events(log, 0, completion, headers)
        else:
            self.send_json(200, queued, headers)

    def _responses_request(self, body, unknown, turn, bounded=True):
        """Read a turn's input into turn.read and turn.tokens; the GenerationRequest.

        bounded: whether a context that is too long is refused.
        Raises ApiError; for a context that is too long only when all else is right.
        """
        breathe, parent, tokenizer, strict = self.breathe, turn.parent, self.tokenizer, self.settings.strict
        limit = body.get("max_output_tokens")
        least = check_min_tokens(body, limit, "max_output_tokens")
        given_input = body.get("input")
        turn.read = read = read_input(given_input, parent, self.store, tokenizer, breathe, strict)
        turn.tokens = read.tokens + (parent.total_tokens if parent is not None else 0)
        fixed_tokens = ANSWER_TOKENS
        prefix_hash = read.prefix_hash
        instructions = body.get("instructions")
        if instructions:
            fixed_tokens += MESSAGE_TOKENS + (
                tokenizer.count(instructions) if breathe is None
                else tokenizer.count_slowly(instructions, breathe))
            prefix_hash = blake2b(instructions.encode("utf-8", "surrogatepass") + prefix_hash,
                                  digest_size=16).digest()
        given = {}
        if "tools" in body or "tool_choice" in body or read.tools:
            known_types = RESPONSE_TOOL_TYPES if strict else None
            specs = read_tools(body.get("tools"), known_types=known_types)
            if specs:
                fixed_tokens += count_tool_tokens(body["tools"], tokenizer, breathe)
            for place, tools in read.tools:     # Codex offers them so
                specs += read_tools(tools, place, known_types=known_types)
            given["tools"] = specs
            given["tool_choice"] = read_tool_choice(body.get("tool_choice"), specs)
            for name in ("max_tool_calls", "include"):
                if body.get(name):
                    given[name] = body[name]
        if read.approvals:
            given["approvals"] = read.approvals
        text_format = (body.get("text") or {}).get("format")
        if text_format is not None:
            given["output_format"] = output_format = read_output_format(text_format, "text.format", strict)
            if text_format["type"] == "json_object":
                check_json_word(output_format, [read.last_user_text or "", instructions or "", str(given_input)],
                                "input")
        if "message.output_text.logprobs" in (body.get("include") or ()):
            given["logprobs"] = body.get("top_logprobs") or 0
        reasoning = body.get("reasoning")
        if reasoning:
            given["reasoning_effort"] = reasoning.get("effort") or "medium"
            given["reasoning_items"] = "summary" if reasoning.get("summary") \
                or reasoning.get("generate_summary") else "bare"
        ignored = unknown
        if not RESPONSE_USED.issuperset(body):
            ignored += tuple(key for key, value in body.items() if value is not None
                             and key in RESPONSE_CHECKS and key not in RESPONSE_USED)
        if least:
            given["min_tokens"] = least
        if body.get("ignore_eos"):
            given["ignore_eos"] = True
        if body.get("cache_salt"):
            given["cache_salt"] = body["cache_salt"]
        if body.get("parallel_tool_calls") is False:
            given["parallel_tools"] = False

        prompt_tokens, kept = fixed_tokens + turn.tokens, None
        room = self.settings.max_model_len - prompt_tokens
        if room < 1:
            if body.get("truncation") == "auto":
                kept, prompt_tokens = self._responses_truncated(read, parent, fixed_tokens, prompt_tokens, bounded)
            elif bounded:
                raise context_overflow(prompt_tokens, self.settings.max_model_len, "input")
            room = self.settings.max_model_len - prompt_tokens
        if room < LONGEST_ANSWER_TOKENS and (limit is None or limit > room):
            limit = room                    # an answer ends where the context does

        may_wait = breathe is not None or self.backend.blocking     # no handler in a closure: it would be a cycle
        careful = self.backend.wants_origin
        if careful:
            given["headers"] = self.headers
            given["over_socket"] = self.socket_frame is not None
            if turn.conversation is None and parent is not None:
                given["root"] = partial(_chain_root, parent, may_wait)

        def walked():
            if kept is not None:
                return kept
            before = [] if parent is None else list(iter_context(parent, own_output=True))
            return before + read.plain_items()

        def items():
            if not may_wait and parent is not None and parent.depth > LONG_CHAIN_TURNS:
                raise TakesLong()
            return walked()

        def messages():
            # who wants_origin reads the words before it answers: of a long chain not on the loop
            found = items_to_messages(items() if careful else walked())
            return [{"role": "system", "content": instructions}] + found if instructions else found
        request = GenerationRequest(
            body["model"], History(prompt_tokens, prefix_hash, read.last_user_text or "", messages, read.calls,
                                   read.after_output, items,
                                   partial(_response_prompt, turn, body, kept, breathe, may_wait)),
            max_tokens=limit, ignored_fields=ignored, raw=body, endpoint="responses", breathe=breathe, **given)
        if self.backend.relays:
            request.authorization = self.passed_authorization()
        return request

    def _responses_truncated(self, read, parent, fixed_tokens, prompt_tokens, bounded):
        """`truncation: auto`: (the newest items that fit, the prompt's tokens with them)."""
        if self.breathe is None:
            raise TakesLong()

        def newest_first():
            for item in reversed(read.plain_items()):
                self.breathe()
                yield item
            if parent is not None:
                yield from iter_context(parent, True, True, self.breathe)
        most = self.settings.max_model_len
        kept, tokens = fit_items(newest_first(), most - 1 - fixed_tokens, self.tokenizer)
        if not kept:
            if bounded:
                raise context_overflow(prompt_tokens, most, "input")
            return None, prompt_tokens
        return kept, fixed_tokens + tokens

    # ---- nodes --------------------------------------------------------------------------------

    def _responses_parent(self, id):
        """The node of a previous_response_id, or None when none was given."""
        if id is None:
            return None
        if not _RESPONSE_ID.match(id):
            raise invalid_value("previous_response_id", "Invalid 'previous_response_id': '%s' is no id of "
                                "a response: letters, numbers, underscores and dashes." % shown(id))
        run = self.runs.get(id)         # before the store: one that ends now is in either
        live = id in self.live_responses or run is not None and run.final is None
        node = self._responses_stored(id)
        if node is None:
            if live or run is None and self._responses_elsewhere(id) is not None:
                raise ApiError(400, "Previous response with id '%s' is still in progress." % shown(id),
                               param="previous_response_id")
            raise previous_not_found(id)
        return node

    def _responses_stored(self, id):
        """The store also has chat completions, whose ids are no responses'."""
        return self.store.get(id) if id.startswith("resp_") else None

    def _responses_elsewhere(self, id):
        """A background response that another server on this store is generating, or None."""
        return self.store.running(id) if id.startswith("resp_") else None

    def _responses_refuse_elsewhere(self, id):
        if self._responses_elsewhere(id) is not None:
            raise ApiError(409, "Response '%s' is being generated by another server on this store: only that one can "
                           "stream, cancel or delete it." % shown(id))

    def _responses_node(self, id):
        node = self._responses_stored(id)
        if node is None:
            raise ApiError(404, "Response with id '%s' not found." % shown(id))
        return node

    def responses_retrieve(self, id):
        check_includes(self.query)
        if parse_query_boolean(self.query, "stream"):
            self._responses_resume(id)
            return
        if self.query.get("starting_after"):
            raise ApiError(400, "'starting_after' is only allowed when 'stream' is true.", param="starting_after")
        run = self.runs.get(id)
        if run is None:
            node = self._responses_stored(id)
            other = self._responses_elsewhere(id) if node is None else None
            if other is not None:
                body = other.body.replace(b'"status":"queued"', b'"status":"in_progress"', 1)
            else:
                body = (node or self._responses_node(id)).body
        elif run.final is not None:
            body = run.final
        else:
            body = self._responses_snapshot(run)[0]
        self.send_json(200, self._responses_included(body) if self.query.get("include") else body)

    def _responses_included(self, body):
        """A stored object with what the query's `include` adds to its items: made now, as nothing is kept twice."""
        if self.breathe is None and len(body) > self.settings.inline_body_bytes:
            raise TakesLong()
        response = json.loads(body)
        response["output"] = [self.backend.included(item, self.query["include"]) for item in response["output"]]
        return dump_json(response)

    def _responses_snapshot(self, run):
        if self.breathe is None and run.is_long():
            raise TakesLong()
        return run.snapshot(breathe=self.breathe)

    def _responses_resume(self, id):
        """The events again, from starting_after on, and live where it is still generating."""
        after = parse_query_integer(self.query, "starting_after", -1, 0)
        run, replay = self.runs.get(id), None
        if run is None:
            self._responses_refuse_elsewhere(id)
            replay = self._responses_node(id).replay
        else:
            replay = run.replay
        if replay is None and (run is None or not run.resumable):
            raise ApiError(400, "This response cannot be streamed: only those that were created with both "
                           "'background' and 'stream' can be resumed.", param="stream")
        if replay is None:
            self.send_events(run.log, after + 1, run.completion)
            return
        if self.breathe is None and len(replay) > self.settings.inline_body_bytes:
            raise TakesLong()
        self.send_events(self.runs.log_of(id, replay), after + 1)

    def responses_delete(self, id):
        run = self.runs.get(id)
        gone = False
        if run is not None:
            if not self.runs.cancel(run) and run.final is None:
                self._responses_await_end(run)
            if self.runs.get(id) is run:
                try:
                    self.store.delete_running(id)
                except ApiError:            # it cannot be written down: it has stopped, but is not deleted
                    if run.final is None:
                        run.final, _ = run.snapshot("cancelled", self.breathe)
                    self.runs.stopped(run)
                    raise
                run.final = None
                self.runs.stopped(run)
                gone = True
        if not gone:
            self._responses_refuse_elsewhere(id)
        if not gone and not (id.startswith("resp_") and self.store.delete(id)):
            raise ApiError(404, "Response with id '%s' not found." % shown(id))
        self.send_json(200, {"id": id, "object": "response", "deleted": True})

    def responses_cancel(self, id):
        """Source: api-reference 10.9. Partial output is kept; usage is null."""
        run = self.runs.get(id)
        if run is not None and run.final is None:
            if self.breathe is None and (run.is_long() or self.store.blocking):
                raise TakesLong()
            if self.runs.cancel(run):
                self._responses_keep_cancelled(run)
                return
            self._responses_await_end(run)
            run = self.runs.get(id)
        if run is not None and run.final is not None:
            self.send_json(200, run.final)
            return
        if id in self.live_responses:
            raise _not_cancellable()
        self._responses_refuse_elsewhere(id)
        node = self._responses_node(id)
        if not node.background:
            raise _not_cancellable()
        self.send_json(200, node.body)

    def _responses_keep_cancelled(self, run):
        body, output_at = run.snapshot("cancelled", self.breathe)
        try:
            run.turn.put(body, output_at, run.shadow_assembler(),
                         pack_events(run.log.events) if run.resumable else None)
            self.store.flush()
        except Exception as exc:
            run.final = body                # it is not stored, but whoever polls learns of it here
            self.store.forget_running(run.id)
            if not isinstance(exc, ApiError):
                self.log_exception()
            elif exc.status == 503:         # a file that cannot be written: nothing is told that is not on it
                raise
        finally:
            self.runs.stopped(run)
        self.send_json(200, body)

    def _responses_await_end(self, run):
        """Wait until a response that is complete is in the store. Not on the loop."""
        if self.breathe is None:
            raise TakesLong()
        if not run.settled.wait(SETTLE_TIMEOUT_S):
            raise ApiError(503, "The response is being stored; try again.", type="server_error",
                           headers=[("retry-after", "1")])

    def responses_input_items(self, id):
        limit, order, after = parse_page_query(self.query, "desc")
        check_includes(self.query)
        run = self.runs.get(id)
        other = self._responses_elsewhere(id) if run is None and self._responses_stored(id) is None else None
        if run is not None:
            turn = run.turn
            node = Node(turn.id, turn.parent, 0.0, b"[]", (0, 2), turn.read.stored(turn.tail), 0, b"",
                        foreign_ids=turn.read.foreign_ids)
        elif other is not None:
            node = Node(id, other.parent, 0.0, b"[]", (0, 2), other.input, 0, b"")
        else:
            node = self._responses_node(id)
        if self.breathe is None and is_long_walk(node, after is not None or order == "asc"):
            raise TakesLong()
        page = build_page(iter_context(node, order == "desc", breathe=self.breathe), limit, after)
        if self.query.get("include"):
            page["data"] = [self.backend.included(item, self.query["include"]) for item in page["data"]]
        self.send_json(200, page)

    # ---- turns that are only looked at --------------------------------------------------------

    def _responses_described(self, body, unknown, bounded=True):
        """A turn that is read like any other, but not generated or stored: (turn, GenerationRequest).

        body: a field that the call does not know must not be acted on, whatever a create would do.
        """
        for name in unknown:
            del body[name]
        turn = _Turn()
        turn.id = None
        turn.tail = self.ids.tail()
        turn.conversation, turn.parent = self._responses_context(body, None)
        return turn, self._responses_request(body, unknown, turn, bounded)

    def responses_input_tokens(self):
        """POST /v1/responses/input_tokens: what a turn's input would count, which is stored nowhere."""
        body = parse_body(self.body_bytes, self.breathe) if self.body_bytes else {}
        unknown = check_fields(body, INPUT_TOKENS_CHECKS)
        if self.settings.strict:
            check_unknown(unknown, responses=True)
        if body.get("model") is None:
            body["model"] = self.settings.model[0]
        check_model_name(body["model"], self.settings, responses=True)
        turn, request = self._responses_described(body, unknown, bounded=False)
        self.send_json(200, {"object": "response.input_tokens", "input_tokens": request.history.tokens},
                       ignored_headers(request.ignored_fields, self.settings))

    def responses_compact(self):
        """POST /v1/responses/compact: a window of the user's messages and one item that stands for the rest."""
        body = parse_body(self.body_bytes, self.breathe)
        unknown = check_fields(body, COMPACT_CHECKS)
        if self.settings.strict:
            check_unknown(unknown, responses=True)
        if body.get("model") is None:
            raise missing_parameter("model")
        check_model_name(body["model"], self.settings, responses=True)
        if self.settings.no_compact:
            raise ApiError(400, "The model '%s' does not support compaction." % shown(body["model"]),
                           code="unsupported_model", param="model")
        if not body.get("input") and body.get("previous_response_id") is None:
            raise missing_parameter("input")
        if self.breathe is None and body.get("previous_response_id") is not None:
            raise TakesLong()               # it reads the whole chain
        turn, request = self._responses_described(body, unknown)
        now = Node(turn.tail, turn.parent, 0.0, b"[]", (0, 2), turn.read.stored(turn.tail), 0, b"",
                   foreign_ids=turn.read.foreign_ids)
        kept = [item for item in iter_context(now, breathe=self.breathe)
                if item["type"] == "message" and item["role"] == "user"]
        request.endpoint = "compact"
        request.max_tokens = COMPACT_TOKENS if request.max_tokens is None else min(request.max_tokens, COMPACT_TOKENS)
        request.endpoint = "compact"
        assembler = CompactionAssembler(turn.tail, self.ids.created(), kept, turn.read.count)
        self.send_completion(Completion(request, self.backend, assembler, self.metrics, self.log_exception), False)


def _chain_root(node, may_wait):
    """The id of the first response of a node's chain, or None when that has none."""
    if not may_wait and node.depth > LONG_CHAIN_TURNS:
        raise TakesLong()
    root = None
    for each in node.chain():
        if each.id.startswith("resp_"):     # items that were put into a conversation are nodes, too
            root = each.id
    return root


def _response_prompt(turn, body, kept, breathe, may_wait, history):
    """A turn's Prompt: tools, instructions, then the context. kept: what truncation left of it, or None."""
    head = []
    if body.get("tools"):
        head.append((None, tools_text(body["tools"])))
    if body.get("instructions"):
        head.append(("system", body["instructions"]))
    if kept is not None:                # the next turn may be cut elsewhere
        return Prompt(prompt_parts(kept), head)
    parts = prompt_parts(turn.read.plain_items())
    named = (turn.id, turn.tokens) if turn.id is not None else None
    parent = turn.parent
    if parent is None:
        return Prompt(parts, head, turn=named)

    def before():
        if not may_wait and parent.total_tokens > _LONG_CONTEXT_TOKENS:
            raise TakesLong()
        return prompt_parts(iter_context(parent, own_output=True, breathe=breathe))
    return Prompt(parts, head, (parent.id, parent.total_tokens), before, named)


def _stop_run(runs, run):
    """A background response that nobody will hear of."""
    if runs.cancel(run):
        runs.stopped(run)
        run.turn.store.forget_running(run.id)


def _not_cancellable():
    return ApiError(400, "Cannot cancel a synchronous response: only responses created with 'background' can be "
                    "cancelled.")
