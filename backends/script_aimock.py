"""aimock's fixtures as rules: what they match and answer in chat and Responses, said in a script's own words.

In: a fixture file's JSON. Out: rules as script_rules.py reads them. What has no place here (embeddings, images,
speech) is left out with a warning. Source: the fixture format of @copilotkit/aimock 1.43, its skill
"write-fixtures" and types.d.ts. Pure; any thread.
"""
import json
import re

_AIMOCK_OTHER_ANSWERS = ("embedding", "image", "images", "audio", "transcription", "video", "live")
_AIMOCK_FINISHES = ("stop", "length", "tool_calls", "content_filter")
_AIMOCK_USAGE = (("prompt_tokens", "prompt_tokens"), ("input_tokens", "prompt_tokens"),
                 ("completion_tokens", "completion_tokens"), ("output_tokens", "completion_tokens"))
# Keys of a fixture that change nothing here, or only in other APIs than OpenAI's.
_AIMOCK_QUIET = frozenset(("match", "response", "metadata", "recordedTimings", "replaySpeed", "openRouterProcessing"))
_AIMOCK_ANSWER_KEYS = frozenset((
    "content", "reasoning", "toolCalls", "blocks", "webSearches", "usage", "finishReason", "id", "created", "error",
    "status", "retryAfter", "role", "model", "systemFingerprint", "provider", "nativeFinishReason", "fallthrough",
    "reasoningSignature", "redactedThinking"))


def is_fixtures(value):
    """Whether a file's value looks like aimock's: {"fixtures": [...]}."""
    return value.__class__ is dict and value.get("fixtures").__class__ is list


def convert_fixtures(value, check):
    """[(path, rule as JSON)]. What is wrong, and what is left out, goes to the ScriptCheck."""
    if not is_fixtures(value):
        check.add((), "no aimock fixtures: expected an object with an array under \"fixtures\"")
        return []
    entries, sequences = [], {}
    for at, fixture in enumerate(value["fixtures"]):
        path = ("fixtures", at)
        if fixture.__class__ is not dict or fixture.get("match").__class__ is not dict \
                or fixture.get("response").__class__ is not dict:
            check.add(path, "a fixture is an object with \"match\" and \"response\"")
            continue
        match = _FixtureMatch(fixture["match"], path + ("match",), check)
        reply = _fixture_reply(fixture, path, check) if match.rule is not None else None
        if reply is None:
            continue
        if match.sequence is None:
            entries.append((path, {"match": match.rule, "reply": reply}))
            continue
        key = json.dumps(match.rule, sort_keys=True)
        if key not in sequences:        # its fixtures are one rule, where the first of them stands
            sequences[key] = {}, path, {"match": match.rule, "then": "next rule"}
            entries.append((path, sequences[key][2]))
        sequences[key][0][match.sequence] = reply
    for replies, path, rule in sequences.values():
        if sorted(replies) != list(range(len(replies))):
            check.add(path, "the sequenceIndex of fixtures with this match must count up from 0; there are %s"
                      % ", ".join(map(str, sorted(replies))))
        rule["replies"] = [replies[number] for number in sorted(replies)]
    return entries


class _FixtureMatch:
    """A fixture's match. rule: a rule's match, or None when it was left out; sequence: its sequenceIndex or None."""

    def __init__(self, match, path, check):
        self.rule = {}
        self.sequence = None
        self._result = {}
        self._wants_result = False
        for key, value in match.items():
            read = _AIMOCK_MATCH.get(key)
            if read is None:
                check.warn(path + (key,), "left out: nothing here is matched by it")
                self.rule = None
                return
            if not read(self, value):
                if key in ("endpoint", "inputText"):
                    check.warn(path + (key,), "left out: only chat and Responses are scripted")
                else:
                    check.add(path + (key,), "not a value that aimock has for it")
                self.rule = None
                return
        if self._result or self._wants_result:
            self.rule["tool_result"] = self._result or {"not": None}

    def _user(self, value):
        return self._put("last_user_text", value, {"contains": value})

    def _system(self, value):
        if value.__class__ is list:
            return not value or self._put("system", value[0], {"contains": value})
        return self._put("system", value, {"contains": value})

    def _put(self, key, value, condition):
        if value.__class__ is not str:
            return False
        self.rule[key] = condition
        return True

    def _model(self, value):
        """The name, or the name with a date behind it."""
        return self._put("model", value, {"regex": r"\A%s(-\d|\Z)" % re.escape(str(value))})

    def _tool(self, value):
        return self._put("tools", value, value)

    def _format(self, value):
        return self._put("format", value, value)

    def _context(self, value):
        self.rule["header"] = {"x-aimock-context": value}
        return value.__class__ is str

    def _call_id(self, value):
        self._result["call_id"] = value
        return value.__class__ is str

    def _result_text(self, value):
        self._result["contains"] = value
        return value.__class__ is str

    def _has_result(self, value):
        self._wants_result = value is True
        if value is False:
            self.rule["tool_result"] = None
        return value.__class__ is bool

    def _turn(self, value):
        if value.__class__ is not int:
            return False
        self.rule["turn"] = value + 1
        return True

    def _sequence(self, value):
        self.sequence = value
        return value.__class__ is int and value >= 0

    def _endpoint(self, value):
        return value == "chat"

    def _never(self, value):
        return False


_AIMOCK_MATCH = {
    "userMessage": _FixtureMatch._user, "systemMessage": _FixtureMatch._system, "model": _FixtureMatch._model,
    "toolName": _FixtureMatch._tool, "responseFormat": _FixtureMatch._format, "context": _FixtureMatch._context,
    "toolCallId": _FixtureMatch._call_id, "toolResultContains": _FixtureMatch._result_text,
    "hasToolResult": _FixtureMatch._has_result, "turnIndex": _FixtureMatch._turn,
    "sequenceIndex": _FixtureMatch._sequence, "endpoint": _FixtureMatch._endpoint, "inputText": _FixtureMatch._never}


def _fixture_reply(fixture, path, check):
    """A rule's reply for a fixture, or None when it was left out."""
    response, place = fixture["response"], path + ("response",)
    if any(key in response for key in _AIMOCK_OTHER_ANSWERS) or "json" in response:
        check.warn(place, "left out: only chat and Responses are scripted")
        return None
    for key in response:
        if key not in _AIMOCK_ANSWER_KEYS:
            check.warn(place + (key,), "nothing here acts on it")
    reply = {"template": False}
    if "error" in response:
        error = response["error"] if response["error"].__class__ is dict else {}
        fault = {"kind": "error", "status": response.get("status", 500)}
        for key in ("message", "type", "code", "param"):
            if error.get(key) is not None:
                fault[key] = error[key]
        if response.get("retryAfter") is not None:
            fault["retry_after_s"] = response["retryAfter"]
        reply["fault"] = fault
        return reply
    _fixture_content(response, reply, fixture.get("chunkSize"))
    _fixture_overrides(response, reply)
    _fixture_timing(fixture, path, reply, check)
    return reply


def _fixture_content(response, reply, chunk):
    """Items in aimock's order: reasoning, searches, then blocks, or text and calls."""
    items = []
    if response.get("reasoning"):
        items.append({"reasoning": response["reasoning"]})
    for query in response.get("webSearches") or ():
        items.append({"item": {"type": "web_search_call", "action": {"type": "search", "query": query}}})
    blocks = response.get("blocks")
    if not blocks:
        blocks = []
        if "content" in response:
            blocks.append({"type": "text", "text": response["content"]})
        blocks += [dict(call, type="toolCall") for call in response.get("toolCalls") or ()]
    for block in blocks:
        if block.get("type") == "toolCall":
            items.append({"tool_call": {key: _stringified(block[key]) for key in ("name", "arguments", "id")
                                        if block.get(key) is not None}})
        else:
            text = _stringified(block.get("text"))
            if chunk.__class__ is int and chunk > 0 and text.__class__ is str and len(text) > chunk:
                text = [text[at:at + chunk] for at in range(0, len(text), chunk)]
            items.append({"text": text})
    reply["items"] = items


def _stringified(value):
    """What aimock's loader makes of an object: its JSON."""
    return json.dumps(value, ensure_ascii=False, separators=(",", ":")) if value.__class__ in (dict, list) else value


def _fixture_overrides(response, reply):
    usage = response.get("usage")
    if usage.__class__ is dict:
        found = {name: usage[key] for key, name in _AIMOCK_USAGE if usage.get(key).__class__ is int}
        if found:
            reply["usage"] = found
    for key in ("id", "created"):
        if response.get(key) is not None:
            reply[key] = response[key]
    if response.get("finishReason") in _AIMOCK_FINISHES:
        reply["finish"] = response["finishReason"]


def _fixture_timing(fixture, path, reply, check):
    profile = fixture.get("streamingProfile")
    if profile.__class__ is dict:
        if profile.get("ttft") is not None:
            reply["ttft_ms"] = profile["ttft"]
        if profile.get("tps").__class__ in (int, float) and profile["tps"] > 0:
            reply["itl_ms"] = 1000.0 / profile["tps"]
    elif fixture.get("latency") is not None:
        reply["ttft_ms"] = reply["itl_ms"] = fixture["latency"]
    if fixture.get("truncateAfterChunks").__class__ is int:
        reply["fault"] = {"kind": "cut", "event": max(1, fixture["truncateAfterChunks"] + 1)}
    known = ("streamingProfile", "latency", "truncateAfterChunks", "chunkSize")
    for key in fixture:
        if key not in known and key not in _AIMOCK_QUIET:
            check.warn(path + (key,), "nothing here acts on it")
