"""--self-test: every API driven over a real socket in this process, with the timing error stated.

For hosts to which only the one file was carried: no tests folder, no client library. One line a check.
"""
import json
import sys

SELF_TEST_TTFT_MS = 40.0
SELF_TEST_ITL_MS = 10.0
_SELF_TEST_TOOL = {"type": "function", "function": {
    "name": "get_weather", "description": "Weather of a city",
    "parameters": {"type": "object", "properties": {"city": {"type": "string"}}, "required": ["city"]}}}


class SelfTest:
    """Checks against a running server. host, port: where it listens. lateness: its histogram."""

    def __init__(self, host, port, lateness, write=None):
        self._host, self._port = host, port
        self._lateness = lateness
        self._write = write or sys.stdout.write
        self._failed = 0

    def run(self):
        """Run all checks; the exit code: 0 when all hold."""
        for name in ("health", "models", "chat_plain", "chat_streamed", "chat_tool", "chat_schema", "completions",
                     "responses_chain", "responses_streamed", "embeddings", "tokens", "errors", "timing"):
            try:
                detail = getattr(self, "check_" + name)()
                self._write("ok   %s%s\n" % (name, ": " + detail if detail else ""))
            except Exception as exc:
                self._failed += 1
                self._write("FAIL %s: %s: %s\n" % (name, type(exc).__name__, exc))
        self._write("%s\n" % ("all checks hold" if not self._failed else "%d checks failed" % self._failed))
        return 1 if self._failed else 0

    def _call(self, method, path, body=None):
        from http.client import HTTPConnection
        connection = HTTPConnection(self._host, self._port, timeout=20)
        try:
            connection.request(method, path, None if body is None else json.dumps(body),
                               {"content-type": "application/json"})
            answer = connection.getresponse()
            return answer.status, answer.read().decode("utf-8")
        finally:
            connection.close()

    def _json(self, method, path, body=None, status=200):
        found, text = self._call(method, path, body)
        _expect(found == status, "status %d, not %d: %s" % (found, status, text[:200]))
        return json.loads(text)

    def _events(self, path, body):
        status, text = self._call("POST", path, dict(body, stream=True))
        _expect(status == 200, "status %d: %s" % (status, text[:200]))
        lines = [line[6:] for line in text.split("\n") if line.startswith("data: ")]
        _expect(lines[-1] == "[DONE]", "the stream does not end in [DONE]")
        return [json.loads(line) for line in lines[:-1]]

    def check_health(self):
        _expect(self._json("GET", "/health")["status"] == "ok", "not ok")

    def check_models(self):
        models = self._json("GET", "/v1/models")["data"]
        self._json("GET", "/v1/models/" + models[0]["id"])
        return ", ".join(model["id"] for model in models)

    def check_chat_plain(self):
        answer = self._json("POST", "/v1/chat/completions", _chat(max_tokens=12, ignore_eos=True))
        _expect(answer["usage"]["completion_tokens"] == 12, "not 12 tokens")
        return answer["choices"][0]["message"]["content"]

    def check_chat_streamed(self):
        chunks = self._events("/v1/chat/completions", _chat(max_tokens=12, ignore_eos=True))
        text = "".join(chunk["choices"][0]["delta"].get("content") or "" for chunk in chunks)
        _expect(text and chunks[-1]["choices"][0]["finish_reason"] == "length", "no proper end")

    def check_chat_tool(self):
        answer = self._json("POST", "/v1/chat/completions", _chat(
            "What is the weather in Oslo?", tools=[_SELF_TEST_TOOL]))
        choice = answer["choices"][0]
        _expect(choice["finish_reason"] == "tool_calls", "no tool call")
        arguments = choice["message"]["tool_calls"][0]["function"]["arguments"]
        _expect("city" in json.loads(arguments), "arguments do not fit")
        return arguments

    def check_chat_schema(self):
        schema = {"type": "object", "properties": {"age": {"type": "integer", "minimum": 18}},
                  "required": ["age"], "additionalProperties": False}
        answer = self._json("POST", "/v1/chat/completions", _chat(response_format={
            "type": "json_schema", "json_schema": {"name": "person", "schema": schema}}))
        _expect(json.loads(answer["choices"][0]["message"]["content"])["age"] >= 18, "does not fit")

    def check_completions(self):
        answer = self._json("POST", "/v1/completions", {"model": "m", "prompt": ["One", "Two"], "max_tokens": 4})
        _expect(len(answer["choices"]) == 2, "not one choice a prompt")

    def check_responses_chain(self):
        first = self._json("POST", "/v1/responses", {"model": "m", "input": "Name a river."})
        second = self._json("POST", "/v1/responses", {"model": "m", "input": "And its source?",
                                                      "previous_response_id": first["id"]})
        _expect(second["usage"]["input_tokens"] > first["usage"]["total_tokens"], "the first turn is lost")
        _expect(self._json("GET", "/v1/responses/" + first["id"]) == first, "not stored as it was sent")
        items = self._json("GET", "/v1/responses/%s/input_items" % second["id"])["data"]
        _expect(len(items) == 3, "%d items, not 3" % len(items))
        self._json("DELETE", "/v1/responses/" + first["id"])
        self._json("GET", "/v1/responses/" + first["id"], status=404)

    def check_responses_streamed(self):
        events = self._events("/v1/responses", {"model": "m", "input": "Hello", "max_output_tokens": 16})
        numbers = [event["sequence_number"] for event in events]
        _expect(numbers == list(range(len(events))), "sequence numbers have gaps")
        text = "".join(event["delta"] for event in events if event["type"] == "response.output_text.delta")
        final = events[-1]["response"]
        _expect(final["output"][0]["content"][0]["text"] == text, "deltas and object differ")

    def check_embeddings(self):
        vector = self._json("POST", "/v1/embeddings", {"model": "m", "input": "sea", "dimensions": 64})
        _expect(len(vector["data"][0]["embedding"]) == 64, "not 64 dimensions")

    def check_tokens(self):
        text = "A round trip: na\u00efve \u4f60\u597d."
        ids = self._json("POST", "/tokenize", {"prompt": text})["tokens"]
        _expect(self._json("POST", "/detokenize", {"tokens": ids})["prompt"] == text, "not the same text")

    def check_errors(self):
        error = self._json("POST", "/v1/responses", {"model": "m", "input": "x", "previous_response_id": "resp_0"},
                           status=400)["error"]
        _expect(error["code"] == "previous_response_not_found", "code %s" % error["code"])
        error = self._json("POST", "/v1/chat/completions", {"model": "m"}, status=400)["error"]
        _expect(error["param"] == "messages", "param %s" % error["param"])

    def check_timing(self):
        """Fifty streams of forty tokens at once; the server's own record of how late it was."""
        from threading import Thread
        threads = [Thread(target=self._events, args=("/v1/chat/completions", _chat(
            max_tokens=40, ignore_eos=True))) for _ in range(50)]
        for thread in threads:
            thread.start()
        for thread in threads:
            thread.join(30)
        _expect(not any(thread.is_alive() for thread in threads), "streams did not end")
        return "of %d timed frames 50 %% were at most %.2f ms late, 99 %% at most %.2f ms" % (
            self._lateness.frames(), self._lateness.quantile_ms(0.5), self._lateness.quantile_ms(0.99))


def _chat(text="Hello", **given):
    return dict({"model": "m", "messages": [{"role": "user", "content": text}]}, **given)


def _expect(held, message):
    if not held:
        raise ValueError(message)
