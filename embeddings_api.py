"""Vectors, moderation verdicts and token ids: deterministic stand-ins, computed from the text alone."""
import re
import sys
from array import array
from base64 import b64encode
from hashlib import blake2b
from math import sqrt

from api_common import (ApiError, Host, TakesLong, check_array, check_boolean, check_enum, check_fields, check_integer,
                        check_model_name, check_object, check_string, check_unknown, content_text, ignored_headers, invalid_type, missing_parameter,
                        parse_body)
from gateway_requests import ForwardAssembler, ForwardedRequest
from runs import Completion

EMBEDDING_DIMENSIONS = 1536         # when the request names none
MAX_EMBEDDING_DIMENSIONS = 65536
MAX_EMBEDDING_NUMBERS = 1 << 22     # of one answer
_FEATURE_PLACES = 12                # entries of the vector that one feature changes
_EMBEDDING_WORD = re.compile(r"\w+")

MODERATION_CATEGORIES = (
    "harassment", "harassment/threatening", "hate", "hate/threatening", "illicit", "illicit/violent",
    "self-harm", "self-harm/instructions", "self-harm/intent", "sexual", "sexual/minors", "violence",
    "violence/graphic")


def _check_embedding_input(value, path):
    if value.__class__ not in (str, list):
        raise invalid_type(path, "a string, an array of strings or an array of tokens", value)


_EMBEDDING_CHECKS = {
    "model": check_string(empty=False), "input": _check_embedding_input,
    "encoding_format": check_enum("float", "base64"),
    "dimensions": check_integer(1, MAX_EMBEDDING_DIMENSIONS), "user": check_string(),
}
_MODERATION_CHECKS = {"model": check_string(empty=False), "input": _check_embedding_input}
_TOKENIZE_CHECKS = {
    "model": check_string(), "prompt": check_string(), "text": check_string(),
    "messages": check_array(check_object, low=1), "add_special_tokens": check_boolean,
    "return_token_strs": check_boolean,
}
_DETOKENIZE_CHECKS = {"model": check_string(), "tokens": check_array(check_integer(0))}


def embed_text(text, dimensions):
    """A unit vector (array of float) for a text: the same for the same text, close for similar ones.

    Each word, and at half weight each of its trigrams, adds to a few entries that its hash picks, so
    that texts that share words point the same way.
    """
    vector = array("d", bytes(8 * dimensions))
    words = _EMBEDDING_WORD.findall(text.lower()) or [text]
    for word in words:
        _add_feature(vector, word, 1.0, dimensions)
        padded = "^%s$" % word
        for at in range(len(padded) - 2 if len(word) < 64 else 0):
            _add_feature(vector, padded[at:at + 3], 0.3, dimensions)
    length = sqrt(sum(value * value for value in vector))
    if not length:                      # features that cancel out: any fixed direction will do
        vector[0] = length = 1.0
    return array("d", (value / length for value in vector))


def _add_feature(vector, feature, weight, dimensions):
    digest = blake2b(feature.encode("utf-8", "surrogatepass"), digest_size=4 * _FEATURE_PLACES).digest()
    for at in range(0, 4 * _FEATURE_PLACES, 4):
        number = int.from_bytes(digest[at:at + 4], "little")
        vector[(number >> 1) % dimensions] += weight if number & 1 else -weight


def vector_base64(vector):
    """Little-endian float32, base64: what the SDKs ask for when the caller names no format."""
    packed = array("f", vector)
    if sys.byteorder == "big":
        packed.byteswap()
    return b64encode(packed.tobytes()).decode("ascii")


def _read_embedding_inputs(value, tokenizer, breathe):
    """[(text, token count)]: a string, strings, tokens (one input), or arrays of tokens."""
    if value.__class__ is str:
        value = [value]
    if not value:
        raise ApiError(400, "Invalid 'input': the array is empty.", code="empty_array", param="input")
    if value[0].__class__ is int:
        value = [value]
    if len(value) > 2048:
        raise ApiError(400, "Invalid 'input': %d entries, at most 2048 are allowed." % len(value),
                       code="array_above_max_length", param="input")
    inputs = []
    for index, one in enumerate(value):
        place = "input[%d]" % index
        if one.__class__ is list:
            check_array(check_integer(0), low=1)(one, place)
            inputs.append((tokenizer.decode(one), len(one)))
        else:
            check_string(empty=False)(one, place)
            inputs.append((one, tokenizer.count(one)))
        if breathe is not None:
            breathe()
    return inputs


def _message_text(message, number):
    content = message.get("content")
    if content is None or content.__class__ is str:
        return content or ""
    check_array(check_object)(content, "messages[%d].content" % number)
    return content_text(content)


def _moderation_texts(value):
    """The texts of a moderation's input, one verdict each; content parts are one text together."""
    if value.__class__ is str:
        return [value]
    if not value:
        raise ApiError(400, "Invalid 'input': the array is empty.", code="empty_array", param="input")
    if value[0].__class__ is dict:
        check_array(check_object)(value, "input")
        return [content_text(value)]
    check_array(check_string())(value, "input")
    return value


def moderate_text(text):
    """One verdict. It judges nothing: a category is flagged when the text says "[flag:CATEGORY]"."""
    flags = {name: "[flag:%s]" % name in text for name in MODERATION_CATEGORIES}
    return {"flagged": any(flags.values()), "categories": flags,
            "category_scores": {name: 0.99 if flag else 0.0001 for name, flag in flags.items()},
            "category_applied_input_types": {name: ["text"] for name in flags}}


class EmbeddingsApiMixin(Host):
    """POST /v1/embeddings, /v1/moderations, and /tokenize and /detokenize as inference servers have them."""

    def embeddings_create(self):
        breathe = self.breathe
        body = parse_body(self.body_bytes, breathe)
        if self.backend.judges and self._embeddings_forward("/embeddings", body):
            return
        ignored = self._embeddings_unknown(check_fields(body, _EMBEDDING_CHECKS))
        for name in ("model", "input"):
            if body.get(name) is None:
                raise missing_parameter(name)
        check_model_name(body["model"], self.settings)
        inputs = _read_embedding_inputs(body["input"], self.tokenizer, breathe)
        dimensions = body.get("dimensions") or EMBEDDING_DIMENSIONS
        if len(inputs) * dimensions > MAX_EMBEDDING_NUMBERS:
            raise ApiError(400, "Invalid 'dimensions': %d inputs of %d numbers are more than %d in all."
                           % (len(inputs), dimensions, MAX_EMBEDDING_NUMBERS), code="integer_above_max_value",
                           param="dimensions")
        if breathe is None and len(inputs) * dimensions > 4 * EMBEDDING_DIMENSIONS:
            raise TakesLong()           # 0.2 us and more a number
        packed = body.get("encoding_format") == "base64"
        data = []
        for index, (text, _) in enumerate(inputs):
            vector = embed_text(text, dimensions)
            data.append({"object": "embedding", "index": index,
                         "embedding": vector_base64(vector) if packed else vector.tolist()})
            if breathe is not None:
                breathe()
        tokens = sum(count for _, count in inputs)
        self.send_json(200, {"object": "list", "model": body["model"], "data": data,
                             "usage": {"prompt_tokens": tokens, "total_tokens": tokens}}, ignored)

    def _embeddings_forward(self, path, body, from_root=False):
        """Have the model's upstream, or a recording of it, answer it. False when it is to be answered here."""
        if body.get("model") is not None:
            check_string(empty=False)(body["model"], "model")
        request = ForwardedRequest("POST", path, body.get("model"), body, from_root)
        request.breathe = self.breathe
        if not self.backend.takes(request, len(self.body_bytes)):
            return False
        request.authorization = self.passed_authorization()
        self.send_completion(Completion(request, self.backend, ForwardAssembler(), self.metrics, self.log_exception),
                             False)
        return True

    def _embeddings_unknown(self, unknown):
        """Fields that nobody knows: refused where that was asked for, else a header that lists them."""
        if self.settings.strict:
            check_unknown(unknown)
        return ignored_headers(unknown, self.settings)

    def moderations_create(self):
        body = parse_body(self.body_bytes, self.breathe)
        if self.backend.judges and self._embeddings_forward("/moderations", body):
            return
        check_fields(body, _MODERATION_CHECKS)
        if body.get("input") is None:
            raise missing_parameter("input")
        self.send_json(200, {"id": "modr-" + self.ids.tail(),
                             "model": body.get("model") or "omni-moderation-latest",
                             "results": [moderate_text(text) for text in _moderation_texts(body["input"])]})

    def tokens_encode(self):
        """vLLM's form ("prompt" or "messages") and GuideLLM's ("text")."""
        body = parse_body(self.body_bytes, self.breathe)
        if self.backend.judges and self._embeddings_forward("/tokenize", body, True):
            return
        check_fields(body, _TOKENIZE_CHECKS)
        text = body.get("prompt", body.get("text"))
        if text is None and body.get("messages") is not None:
            text = "\n".join(_message_text(message, number) for number, message in enumerate(body["messages"]))
        if text is None:
            raise missing_parameter("prompt")
        ids = self.tokenizer.encode(text)
        self.send_json(200, {"count": len(ids), "max_model_len": self.settings.max_model_len, "tokens": ids,
                             "token_strs": self.tokenizer.split(text) if body.get("return_token_strs") else None})

    def tokens_decode(self):
        body = parse_body(self.body_bytes, self.breathe)
        if self.backend.judges and self._embeddings_forward("/detokenize", body, True):
            return
        check_fields(body, _DETOKENIZE_CHECKS)
        if body.get("tokens") is None:
            raise missing_parameter("tokens")
        text = self.tokenizer.decode(body["tokens"])
        self.send_json(200, {"prompt": text, "text": text})
