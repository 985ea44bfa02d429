"""Requests that another server answers and judges: only what this one needs is checked here.

In: decoded bodies of chat and text completions, or anything else that is passed on. Out: requests for a backend
that relays, and the assembler of answers that are not taken apart.
"""
from api_common import (check_array, check_boolean, check_fields, check_integer, check_metadata, check_object,
                        check_stream_options, check_streaming, check_string, dump_json, invalid_type, missing_parameter)
from backends.contract import Backend, GenerationRequest, History, RawAnswer
from runs import Assembler

# What this server acts on itself; the upstream judges the rest, known or not
_RELAYED_CHECKS = {"model": check_string(empty=False), "stream": check_boolean, "stream_options": check_stream_options,
                   "n": check_integer(1, 128)}
_RELAYED_CHAT_CHECKS = dict(_RELAYED_CHECKS, messages=check_array(check_object, low=1), store=check_boolean,
                            metadata=check_metadata)
_RELAYED_TEXT_CHECKS = dict(_RELAYED_CHECKS)


def _no_messages():
    raise NotImplementedError("a relayed request is forwarded as it came")


def relayed_chat_request(body):
    """A chat completion's body as a GenerationRequest that is forwarded as it came. Raises ApiError 400."""
    check_fields(body, _RELAYED_CHAT_CHECKS)
    for name in ("model", "messages"):
        if body.get(name) is None:
            raise missing_parameter(name)
    check_streaming(body)
    return GenerationRequest(body["model"], History(None, b"", "", _no_messages), n=body.get("n") or 1, raw=body)


def relayed_completion_request(body):
    """A text completion's body as one GenerationRequest, and the texts of its prompts ("" for tokens)."""
    check_fields(body, _RELAYED_TEXT_CHECKS)
    if body.get("model") is None:
        raise missing_parameter("model")
    check_streaming(body)
    prompt = body.get("prompt")
    if prompt is None:
        prompts = [""]
    elif prompt.__class__ is str:
        prompts = [prompt]
    elif prompt.__class__ is list and prompt and prompt[0].__class__ in (str, list):
        prompts = [one if one.__class__ is str else "" for one in prompt]
    elif prompt.__class__ is list:
        prompts = [""]
    else:
        raise invalid_type("prompt", "a string, an array of strings or an array of tokens", prompt)
    return GenerationRequest(body["model"], History(None, b"", "", _no_messages), raw=body, endpoint="completions",
                             n=(body.get("n") or 1) * len(prompts)), prompts


class ForwardedRequest:
    """Any request that is passed on and whose answer comes back as it is.

    path: behind the upstream's base URL, or with from_root behind that without its /v1. raw: the body, or None.
    model: whose upstream is asked.
    """

    endpoint = "forward"
    ignored_fields = ()
    breathe = authorization = seed = rule = overrides = None
    wire_faults = ()
    draw = b""
    n = 1

    def __init__(self, method, path, model, raw=None, from_root=False):
        self.method = method
        self.path = path
        self.model = model
        self.raw = raw
        self.from_root = from_root


class AskingBackend(Backend):
    """Answers one request with the JSON-able value of a call that may wait."""

    def __init__(self, ask):
        self._ask = ask

    def generate(self, request, cancel):
        yield None, RawAnswer(dump_json(self._ask()))


class ForwardAssembler(Assembler):
    """One RawAnswer in, its bytes out."""

    counts = False

    def __init__(self):
        self._body = b"null"

    def start(self):
        return b""

    def feed(self, delta):
        if hasattr(delta, "error"):
            self.failed = delta.error
        else:
            self._body = delta.body
        return b""

    def finish(self):
        return b""

    def result(self):
        return self._body
