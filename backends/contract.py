"""The language between the APIs and whatever answers: requests in, timed deltas out.

A backend knows nothing of chat or Responses; an assembler knows nothing of models or clocks.
Every delta is a value without identity and has `choice`: which of n answers it belongs to.
"""
import threading
from collections import namedtuple


# ---- deltas -----------------------------------------------------------------------------------

class TextDelta(namedtuple("TextDelta", "text logprobs choice", defaults=(None, 0))):
    """A piece of the answer's text. logprobs: list of TokenLogprob dicts or None.

    Of this and the deltas below: an empty piece is a token without text of its own. It takes its time and is not sent.
    """
    __slots__ = ()


class TextRun(namedtuple("TextRun", "pieces escapes dues choice", defaults=(0,))):
    """Many TextDeltas of one choice at once: the fast way to say a whole planned text.

    pieces: list of str, none of them empty: a token without text of its own is not in it, and is counted by Usage
    alone. escapes: list of bytes, each piece as it stands inside a JSON string.
    dues: sequence of at least as many floats, seconds, non-decreasing, as in generate().
    """
    __slots__ = ()


class ReasoningDelta(namedtuple("ReasoningDelta", "text kind choice", defaults=("summary", 0))):
    """A piece of reasoning. kind: "summary" or "raw"."""
    __slots__ = ()


class RefusalDelta(namedtuple("RefusalDelta", "text choice", defaults=(0,))):
    """A piece of a refusal, which stands in place of text."""
    __slots__ = ()


class ToolCallDelta(namedtuple("ToolCallDelta", "index arguments call_id name kind choice namespace",
                               defaults=("", None, None, "function", 0, None))):
    """A piece of a tool call's arguments (function) or input (custom).

    index: which call of the choice. call_id (None: the assembler makes one), name and namespace (of a tool in a group): in the
    call's first piece only. kind: "function" or "custom".
    """
    __slots__ = ()


class ItemStart(namedtuple("ItemStart", "kind fields choice", defaults=({}, 0))):
    """Any other output item begins: a built-in tool's, or a second message.

    kind: the item's type, e.g. "web_search_call". fields: dict that the item starts with. The call_id
    of a call that waits for its output, and of the output that follows it, may be left to the assembler.
    """
    __slots__ = ()


class ItemUpdate(namedtuple("ItemUpdate", "kind phase fields choice", defaults=({}, 0))):
    """Something happens to the item that began last. kind, phase: the event's name,
    e.g. "web_search_call", "searching"; "code_interpreter_call_code", "delta". fields: what the event
    carries beside the item's place. A text that comes in deltas is put together by the assembler: in
    the event that ends it (phase "done"), and in the item."""
    __slots__ = ()


class ItemEnd(namedtuple("ItemEnd", "kind fields choice", defaults=({}, 0))):
    """The item that began last is complete. fields: dict laid over its first fields. With the kind function_call
    or custom_tool_call it says that all calls so far are; else they are at the Finish."""
    __slots__ = ()


class AnnotationDelta(namedtuple("AnnotationDelta", "annotation choice", defaults=(0,))):
    """A citation of the text that was said last. annotation: dict as in an output_text part, its
    indexes counting that text's characters."""
    __slots__ = ()


class Finish(namedtuple("Finish", "reason choice", defaults=("stop", 0))):
    """A choice ends. reason: stop, length, tool_calls or content_filter."""
    __slots__ = ()


class Usage(namedtuple("Usage", "prompt_tokens completion_tokens reasoning_tokens cached_tokens counted_here",
                       defaults=(0, 0, False))):
    """Token counts, once a request, over all its choices. choice is always 0. counted_here: whoever
    answered did not say, so they are this server's own count."""
    __slots__ = ()
    choice = 0


class RawAnswer(namedtuple("RawAnswer", "body choice", defaults=(0,))):
    """A whole answer that is passed on as it is. body: bytes of JSON. No API's own assembler knows it."""
    __slots__ = ()


class Failure(namedtuple("Failure", "error choice", defaults=(0,))):
    """Generation broke after it began. error: an ApiError."""
    __slots__ = ()


# ---- what a request asks for ------------------------------------------------------------------

class ToolSpec(namedtuple("ToolSpec", "kind name description parameters strict namespace place")):
    """A tool. kind: "function", "custom", or a built-in tool's type, which has no name.
    parameters: a function's JSON Schema, a custom tool's format or a built-in tool's own fields, or
    None. strict: whether the
    request itself said so. place: where its schema stands in the request, for error messages."""
    __slots__ = ()


# A built-in tool's type -> its family, which the types of several years share.
BUILTIN_FAMILIES = {
    "web_search": "web_search", "web_search_2025_08_26": "web_search", "web_search_preview": "web_search",
    "web_search_preview_2025_03_11": "web_search", "file_search": "file_search",
    "code_interpreter": "code_interpreter", "image_generation": "image_generation", "mcp": "mcp",
    "computer": "computer", "computer_use": "computer", "computer_use_preview": "computer",
    "computer-preview": "computer", "shell": "shell", "local_shell": "local_shell", "apply_patch": "apply_patch"}


class BuiltinName(namedtuple("BuiltinName", "family server_label tool", defaults=(None, None))):
    """A built-in tool in a ToolChoice. server_label, tool: of an MCP server's, where the choice says so."""
    __slots__ = ()


class ToolChoice(namedtuple("ToolChoice", "mode names")):
    """mode: none, auto or required. names: the only ones that may be called, str or BuiltinName, or
    None for all."""
    __slots__ = ()


class OutputFormat(namedtuple("OutputFormat", "kind schema place")):
    """kind: json_object or json_schema, with its schema (dict). place: as in ToolSpec."""
    __slots__ = ()


NO_TOOLS = ToolChoice("none", None)


# ---- requests ---------------------------------------------------------------------------------

class History:
    """What the model is to read, without rendering it before somebody asks.

    items(): all items of the context as dicts, oldest first, as the Responses API has them; None
    elsewhere. tokens: int, the prompt's count. prefix_hash: bytes, equal for equal content whatever its
    ids. last_user_text: str. calls: int, tool calls in it so far. after_output: whether a tool's
    output is its last word. messages(): list of chat messages {"role","content",...}.
    prompt(): all that is read, as a backends.prompt.Prompt, or None where the API does not tell.
    definitions: a chat's tool definitions as the request has them, or None.
    """

    __slots__ = ("tokens", "prefix_hash", "last_user_text", "calls", "after_output", "items", "definitions", "_messages",
                 "_prompt")

    def __init__(self, tokens, prefix_hash, last_user_text, messages, calls=0, after_output=False, items=None,
                 prompt=None):
        self.tokens = tokens
        self.prefix_hash = prefix_hash
        self.last_user_text = last_user_text
        self.calls = calls
        self.after_output = after_output
        self.items = items
        self.definitions = None
        self._messages = messages
        self._prompt = prompt           # takes the History

    def messages(self):
        """Walks the chain and parses what is stored: only for who needs the words."""
        return self._messages()

    def prompt(self):
        """Walks as messages() does where the turns before are asked for."""
        return None if self._prompt is None else self._prompt(self)


_PLAIN_FIELDS = frozenset(("model", "history", "max_tokens", "raw", "endpoint", "breathe", "ignored_fields", "headers",
                           "over_socket", "root", "rule", "wire_faults", "overrides"))


class GenerationRequest:
    """One request in words that fit every API. All fields have a neutral default.

    banned: texts of tokens that must not be said (logit_bias of -100). model str; history History; max_tokens int or None; min_tokens int; ignore_eos bool;
    n int; echo: the prompt's text when the answer is to repeat it; stop list of str; seed int or None; logprobs None or the number of alternatives; tools
    tuple of ToolSpec, tool_choice ToolChoice, output_format OutputFormat or None; parallel_tools
    bool; cache_salt: str that parts prefix caches, or None; max_tool_calls: built-in ones, int or None; include: what a Responses request wants in its items,
    sequence of str; approvals: tuple of (id of an mcp_approval_request, bool), answered by this turn; reasoning_items "none", "bare" (an item without text) or "summary"; reasoning_effort str or None; sampling dict of temperature and the like; wire_faults
    what is to go wrong, as faults.read_faults() takes it, set by the backend; ignored_fields: names that the request
    says and nobody acts on; raw: the request's dict; endpoint: "chat", "completions", "responses", "compact"
    or "forward"; authorization: the client's own header, when it is to be passed on; breathe: see Host.

    For a backend that wants_origin: headers {lower-case name: value}; over_socket bool; root: a function that
    returns the id of the first response of the chain that it follows, or None.
    Set by a backend in generate(): rule: name of the script's rule that answers it; overrides: what
    Assembler.rename() takes, or None.
    """

    ttft_s = 0.0                        # of its plan, once the backend has made it
    held_tokens = 0                     # of its prompt and its plan, where there is an engine
    draw = b""                          # the digest that the plan was drawn with
    prefill_s = 0.0                     # what its prompt adds to TTFT, where prefill is simulated
    max_tokens = seed = logprobs = output_format = echo = max_tool_calls = cache_salt = None
    tool_choice = NO_TOOLS
    reasoning_items = "none"
    reasoning_effort = sampling = raw = breathe = authorization = headers = root = rule = overrides = None
    over_socket = False
    min_tokens = 0
    ignore_eos = False
    n = 1
    stop = tools = wire_faults = ignored_fields = banned = include = approvals = ()
    parallel_tools = True
    endpoint = "chat"

    def __init__(self, model, history, **given):
        self.model = model
        self.history = history
        self.__dict__.update(given)     # 20 assignments of mostly defaults cost 1 us more

    @property
    def seqs(self):
        """Sequences that an engine runs for it."""
        return self.n

    def prompt_tokens(self):
        return self.history.tokens or 0         # None where another server counts them

    def is_plain(self):
        """Whether it asks for text within a limit and nothing else: no field but these was given."""
        return _PLAIN_FIELDS.issuperset(self.__dict__)


class Cancel:
    """How a generation learns that nobody wants it any more. Thread-safe; set once.

    A request that is never waited for costs no lock: the event is made when first needed.
    """

    __slots__ = ("_set", "_over", "_lock", "_event", "_callbacks")

    def __init__(self):
        self._set = False
        self._over = False
        self._lock = threading.Lock()   # guards _event and _callbacks against set()
        self._event = None
        self._callbacks = None

    def is_set(self):
        return self._set

    def wait(self, seconds):
        """Sleep up to `seconds` (None: for ever); True as soon as it is cancelled."""
        with self._lock:
            if self._set:
                return True
            if self._event is None:
                self._event = threading.Event()
            event = self._event
        return event.wait(seconds)

    def on_cancel(self, callback):
        """Call back, once, when it is cancelled; at once if it was. Never on the pacer."""
        with self._lock:
            if not self._set:
                if self._callbacks is None:
                    self._callbacks = []
                self._callbacks.append(callback)
                return
        callback()

    def claim(self):
        """Cancel, but leave the callbacks to the caller, who gets them in a list: for the pacer.

        None when it was cancelled already, or is complete: of claim() and finish(), one wins.
        """
        with self._lock:
            if self._set or self._over:
                return None
            self._set = True
            event, callbacks = self._event, self._callbacks
            self._callbacks = None
        if event is not None:
            event.set()
        return callbacks or ()

    def raise_flag(self):
        """claim() for those to whom it is the same who was first."""
        return self.claim() or ()

    def finish(self):
        """The generation is complete: nothing cancels it any more. False when it was cancelled."""
        with self._lock:
            self._over = not self._set
            if self._over:
                self._callbacks = None      # who called on_cancel() is held no longer
            return self._over

    def is_over(self):
        """Whether the generation is complete, or has failed, and was not cancelled."""
        return self._over

    def set(self):
        for callback in self.raise_flag():
            callback()


class Backend:
    """What answers. Subclass it, override generate(), and the server serves all APIs from it.

    blocking: True unless generate() and iterating over what it returns never wait for anything;
    a blocking backend runs on a worker thread, so that a user's code never stops the clock.
    relays: it is blocking, but its deltas come from a socket that the player's thread can read: it has
    admit(request), which looks at a request before anything is answered and must not wait; open(request, cancel)
    and reopen(), which may wait and return an exchange, see backends.upstream_exchange.UpstreamExchange.
    judges: chat and text completions, embeddings and the like are offered to it as they came, see takes().
    engine: None, or a backends.engine.Engine through which a planned backend's answers are played.
    wants_origin: whether its requests are to say where they come from (see GenerationRequest).
    rule_book: None, or a scripted backend's RuleBook.
    sets_faults: whether generate() may put faults into request.wire_faults; before it returns, if so.
    profile: None, or the latency profile's dict that it was made from; speed: how fast it is, in a few words.
    """

    blocking = True
    relays = judges = False
    engine = None
    wants_origin = False
    rule_book = profile = None
    sets_faults = False
    speed = ""

    def generate(self, request, cancel):
        """Answer one GenerationRequest.

        Returns an iterable of (due_s, delta). due_s counts in seconds from the moment the
        request was fully read; it is absolute and never decreases, so that a late token does
        not shift the next one; None means now. cancel: a Cancel.
        Ends with one Finish per choice and one Usage, or with a Failure.
        Raises ApiError for a request that it refuses; any other exception is a 500.
        """
        raise NotImplementedError

    def takes(self, request, size_bytes):
        """Whether it answers a request that nobody has judged yet; else this server reads and answers it as usual.

        request: a ForwardedRequest, or a GenerationRequest whose body is checked no further than it must be.
        size_bytes: of the body. Waits for nothing; TakesLong as everywhere.
        """
        return self.judges

    def included(self, item, includes):
        """An output item with what a reader's `include` asks for and it was stored without.

        item: dict. includes: values of `include`. Here nothing is known: the item as it is.
        """
        return item

    def prepare(self, request):
        """Read a prompt that is not to be answered yet; how many of its tokens were cached. Waits for nothing."""
        return 0

    def cache_stats(self):
        """A backends.prefix_cache.CacheStats, or None for a backend without a prefix cache. Waits for nothing."""
        return None

    def reset(self):
        """Begin anew, as it was made: what was drawn, cached and counted is forgotten. Running answers go on."""

    def secrets(self):
        """Texts that must never be logged: a tuple of str."""
        return ()

    def told(self):
        """What the server says of it when it starts, or ""."""
        return ""

    def close(self):
        """The server stops: let go of files and connections."""


class _AdaptedBackend(Backend):
    """An object that has generate(), and whatever else of a Backend's it likes."""

    def __init__(self, found):
        for name in vars(Backend):
            if name[0] != "_" and hasattr(found, name):
                setattr(self, name, getattr(found, name))


def as_backend(found):
    """A user's object as a Backend."""
    return found if isinstance(found, Backend) else _AdaptedBackend(found)


class FailingBackend(Backend):
    """Answers one request with a failure: for a fault that belongs into a stream that has begun."""

    blocking = False

    def __init__(self, error):
        self._error = error

    def generate(self, request, cancel):
        return [(0.0, Failure(self._error))]


class SilentBackend(Backend):
    """Answers a request that asks for no output: a turn that only prepares the next. backend: the one that reads it."""

    blocking = False

    def __init__(self, backend):
        self._backend = backend

    def generate(self, request, cancel):
        return [(0.0, Finish("stop")), (0.0, Usage(request.history.tokens, 0, 0, self._backend.prepare(request)))]
