"""Legacy completions: prompts of every form in, choices prompt by prompt out.

A batch of prompts is several generation requests behind one assembler. `echo` puts the prompt in
front; with max_tokens 0 and logprobs it is the scoring mode of evaluation harnesses.
"""
from api_common import (SAMPLING_CHECKS, SERVERS_OWN_FIELDS, SSE_DONE, ApiError, Host, check_array, check_boolean, check_context,
                        check_fields,
                        check_integer, check_min_tokens, check_model_name, check_stream_options,
                        check_streaming, check_string, check_unknown, chunked_bytes, content_hash, dump_json, dump_string,
                        escape_json, invalid_type, invalid_value, missing_parameter, parse_body,
                        unframed_bytes)
from backends.batch import BatchBackend, BatchRequest
from backends.contract import Finish, GenerationRequest, History, TextDelta, TextRun, Usage
from backends.prompt import Prompt
from chat_api import (SYSTEM_FINGERPRINT, ChunkAssembler, chat_usage, check_logit_bias, check_stop,
                      read_banned, read_stop, renamed)
from gateway_requests import relayed_completion_request
from runs import Completion

COMPLETION_TOKENS = 16              # max_tokens when the request does not say (S)
DEFAULT_PROMPT = "<|endoftext|>"


def _check_prompt(value, path):
    if value.__class__ not in (str, list):
        raise invalid_type(path, "a string, an array of strings or an array of tokens", value)


_COMPLETION_CHECKS = dict(SAMPLING_CHECKS, **{
    "model": check_string(empty=False),
    "prompt": _check_prompt,
    "best_of": check_integer(0, 20),
    "echo": check_boolean,
    "logprobs": check_integer(0, 5),
    "max_tokens": check_integer(0),
    "n": check_integer(1, 128),
    "stop": check_stop,
    "suffix": check_string(),
    "stream": check_boolean,
    "stream_options": check_stream_options,
    "logit_bias": check_logit_bias,
    "seed": check_integer(),
    "user": check_string(),
})
_COMPLETION_USED = frozenset(("model", "prompt", "best_of", "echo", "logprobs", "max_tokens", "n", "stop",
                              "suffix", "stream", "logit_bias", "stream_options", "seed", "min_tokens", "ignore_eos",
                              "cache_salt"))


def _read_prompts(prompt, tokenizer):
    """A request's prompt in any form as a list of (text, token count)."""
    if prompt.__class__ is str:
        return [(prompt, tokenizer.count(prompt))]
    if not prompt:
        raise ApiError(400, "Invalid 'prompt': the array is empty.", code="empty_array", param="prompt")
    if prompt[0].__class__ is int:
        return [_read_tokens(prompt, "prompt", tokenizer)]
    prompts = []
    for index, one in enumerate(prompt):
        place = "prompt[%d]" % index
        if one.__class__ is str:
            prompts.append((one, tokenizer.count(one)))
        elif one.__class__ is list:
            prompts.append(_read_tokens(one, place, tokenizer))
        else:
            raise invalid_type(place, "a string or an array of tokens", one)
    return prompts


def _read_tokens(tokens, path, tokenizer):
    check_array(check_integer(0), low=1)(tokens, path)
    return tokenizer.decode(tokens), len(tokens)


def _completion_prompt(history):
    """Bare text, which the answer continues. Token ids are read as the text that they decode to."""
    return Prompt(((None, history.last_user_text),), opens=False)


def parse_completion_request(body, tokenizer, breathe=None, strict=False):
    """A completion's body (dict) as a BatchRequest. Raises ApiError 400.

    Without `stop` an answer has exactly max_tokens tokens, as a base model's mostly has.
    """
    unknown = check_fields(body, _COMPLETION_CHECKS)
    if strict:
        check_unknown(unknown + tuple(name for name in SERVERS_OWN_FIELDS if body.get(name) is not None))
    if body.get("model") is None:
        raise missing_parameter("model")
    prompt = body.get("prompt")
    prompts = _read_prompts(DEFAULT_PROMPT if prompt is None else prompt, tokenizer)
    check_streaming(body)
    n = body.get("n") or 1
    best_of = body.get("best_of") or n
    if best_of < n:
        raise invalid_value("best_of", "Invalid 'best_of': %d is less than 'n', which is %d." % (best_of, n))
    if best_of > 1 and best_of != n and body.get("stream"):
        raise invalid_value("best_of", "'best_of' cannot be used with 'stream'.")
    if len(prompts) * best_of > 2048:
        raise ApiError(400, "Invalid 'prompt': %d prompts times %d choices are more than 2048."
                       % (len(prompts), best_of), code="array_above_max_length", param="prompt")
    limit = body.get("max_tokens")
    if limit is None:
        limit = COMPLETION_TOKENS
    stop = read_stop(body["stop"]) if body.get("stop") else ()
    forced = body if stop else dict(body, ignore_eos=True)      # see the docstring
    least = check_min_tokens(forced, limit, "max_tokens", len(prompts) * best_of)
    suffix = body.get("suffix") or ""
    ignored = unknown + tuple(key for key, value in body.items() if value is not None
                              and key in _COMPLETION_CHECKS and key not in _COMPLETION_USED)
    requests = []
    for text, tokens in prompts:
        history = History(tokens, content_hash("\0".join((text, suffix))), text,
                          lambda text=text: [{"role": "user", "content": text}], prompt=_completion_prompt)
        requests.append(GenerationRequest(
            body["model"], history, max_tokens=limit, min_tokens=least,
            ignore_eos=bool(forced.get("ignore_eos")), n=best_of, seed=body.get("seed"), stop=stop,
            logprobs=body.get("logprobs"), echo=text if body.get("echo") else None, ignored_fields=ignored,
            raw=body, endpoint="completions", breathe=breathe, cache_salt=body.get("cache_salt"),
            banned=read_banned(body["logit_bias"], tokenizer) if body.get("logit_bias") else ()))
        if breathe is not None:
            breathe()
    return BatchRequest(requests)


# ---- the assembler ----------------------------------------------------------------------------

class _CompletionChoice:
    """What one choice has said so far."""

    __slots__ = ("escapes", "reason", "entries", "offset")

    def __init__(self, offset):
        self.escapes = []
        self.reason = None
        self.entries = []           # TokenLogprob dicts
        self.offset = offset        # of the next token, in characters from the start of the prompt


class TextCompletionAssembler(ChunkAssembler):
    """Deltas to text_completion chunks and the object.

    offsets: for each prompt, where its completion's text begins (0 with echo). per_prompt: choices
    that are generated for each prompt; kept: how many of them are shown (n).
    """

    def __init__(self, tail, created, model, offsets, per_prompt=1, kept=1, include_usage=False,
                 chunked=False, logprobs=False):
        self._frame = chunked_bytes if chunked else unframed_bytes
        self._chunked = chunked
        self._include_usage = include_usage
        self._logprobs = logprobs
        self._per_prompt, self._kept = per_prompt, kept
        self._choices = [_CompletionChoice(offset) for offset in offsets for _ in range(kept)]
        self._common = b'"id":"cmpl-%s","object":"text_completion","created":%d,"model":%s,"system_fingerprint":"%s"' % (
            tail.encode("ascii"), created, dump_string(model), SYSTEM_FINGERPRINT)
        self._prefix = b'data: {%s,"choices":[' % self._common
        self._suffix = b',"usage":null}\n\n' if include_usage else b"}\n\n"

    def rename(self, id=None, message_id=None, created=None):
        if id is not None:
            self._common = renamed(self._common, b"id", dump_string(id))
        if created is not None:
            self._common = renamed(self._common, b"created", b"%d" % created)
        self._prefix = b'data: {%s,"choices":[' % self._common

    def start(self):
        return b""

    def _place(self, choice):
        """The index that a generated choice is shown under, or None for one of best_of's others."""
        prompt, number = divmod(choice, self._per_prompt)
        return prompt * self._kept + number if number < self._kept else None

    def _hidden(self, choice):
        return self._place(choice) is None

    def _opening(self, choice):
        return b""

    def _run_parts(self, choice):
        return (b'%s{"index":%d,"text":"' % (self._prefix, self._place(choice)),
                b'","logprobs":null,"finish_reason":null}]%s' % self._suffix)

    def absorb(self, run):
        place = self._place(run.choice)
        if place is not None:
            self._choices[place].escapes += run.escapes

    def feed(self, delta):
        kind = delta.__class__
        if kind is Usage:
            self.usage = delta
            return b""
        if hasattr(delta, "error"):
            self.failed = delta.error
            return b""
        place = self._place(delta.choice)
        if place is None:
            return b""
        if kind is TextRun:
            return b"".join(self.frames(delta))
        choice = self._choices[place]
        if kind is Finish:
            choice.reason = "stop" if delta.reason == "tool_calls" else delta.reason
            return self._chunk(place, b"", b"null", dump_string(choice.reason))
        if kind is not TextDelta or not delta.text:
            return b""              # what has no place in plain completions
        escape = escape_json(delta.text)
        choice.escapes.append(escape)
        told = b"null"
        if self._logprobs and delta.logprobs is not None:
            told = dump_json(self._logprob_lists(delta.logprobs, choice.offset))
            choice.entries += delta.logprobs
        choice.offset += len(delta.text)
        return self._chunk(place, escape, told, b"null")

    def _chunk(self, index, escape, logprobs, reason):
        if self.quiet:
            return b""
        return self._frame(b'%s{"index":%d,"text":"%s","logprobs":%s,"finish_reason":%s}]%s' % (
            self._prefix, index, escape, logprobs, reason, self._suffix))

    @staticmethod
    def _logprob_lists(entries, offset):
        """{"tokens","token_logprobs","top_logprobs","text_offset"}; a prompt's first token has null."""
        offsets = []
        for entry in entries:
            offsets.append(offset)
            offset += len(entry["token"])
        return {"tokens": [entry["token"] for entry in entries],
                "token_logprobs": [entry["logprob"] for entry in entries],
                "top_logprobs": [None if entry["logprob"] is None else
                                 {each["token"]: each["logprob"] for each in entry["top_logprobs"]}
                                 for entry in entries],
                "text_offset": offsets}

    def finish(self):
        frames = b""
        for index, choice in enumerate(self._choices):
            if choice.reason is None:
                choice.reason = "stop"
                frames += self._chunk(index, b"", b"null", b'"stop"')
        return frames

    def end(self):
        usage = b""
        if self._include_usage:
            usage = self._frame(b'%s],"usage":%s}\n\n' % (self._prefix, chat_usage(self.usage)))
        return usage + self._frame(SSE_DONE)

    def fail(self, error):
        return self._frame(b"data: %s\n\n" % error.envelope())

    def result(self):
        choices = []
        for index, choice in enumerate(self._choices):
            logprobs = b"null"
            if self._logprobs:
                start = choice.offset - sum(len(entry["token"]) for entry in choice.entries)
                logprobs = dump_json(self._logprob_lists(choice.entries, start))
            choices.append(b'{"index":%d,"text":"%s","logprobs":%s,"finish_reason":%s}' % (
                index, b"".join(choice.escapes), logprobs, dump_string(choice.reason)))
        return b'{%s,"choices":[%s],"usage":%s}' % (self._common, b",".join(choices), chat_usage(self.usage))


class CompletionsApiMixin(Host):
    """POST /v1/completions."""

    def completions_create(self):
        body = parse_body(self.body_bytes, self.breathe)
        if self.backend.judges and self._completions_relayed(body):
            return
        batch = parse_completion_request(body, self.tokenizer, self.breathe, self.settings.strict)
        check_model_name(batch.model, self.settings)
        for request in batch.requests:
            if self.backend.wants_origin:
                request.headers = self.headers
            limit = check_context(request.history.tokens, body.get("max_tokens"), self.settings.max_model_len, "prompt")
            request.max_tokens = min(request.max_tokens, limit) if limit is not None else request.max_tokens
        offsets = [0 if request.echo is not None else len(request.history.last_user_text)
                   for request in batch.requests]
        self._completions_send(body, batch, BatchBackend(self.backend), offsets, batch.n)

    def _completions_relayed(self, body):
        """All prompts in one request to the backend, which also picks the best of `best_of`. False when it is to be
        read here."""
        request, prompts = relayed_completion_request(body)
        request.breathe = self.breathe
        if not self.backend.takes(request, len(self.body_bytes)):
            return False
        check_model_name(request.model, self.settings)
        request.authorization = self.passed_authorization()
        offsets = [0 if body.get("echo") else len(prompt) for prompt in prompts]
        self._completions_send(body, request, self.backend, offsets, body.get("n") or 1)
        return True

    def _completions_send(self, body, request, backend, offsets, per_prompt):
        streamed = bool(body.get("stream"))
        options = body.get("stream_options") or {}
        assembler = TextCompletionAssembler(
            self.ids.tail(), self.ids.created(), body["model"], offsets, per_prompt, body.get("n") or 1,
            bool(options.get("include_usage")), streamed and self.chunked, body.get("logprobs") is not None)
        self.send_completion(Completion(request, backend, assembler, self.metrics, self.log_exception), streamed)
