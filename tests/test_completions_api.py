"""Legacy completions: prompts of every form, scoring, choices prompt by prompt; log probabilities in all APIs."""
import json
import math
import random
import unittest

from api_common import ApiError, TakesLong
from backends.batch import BatchBackend
from backends.latency import ClockModel
from backends.simulated import SimulatedBackend, TokenProbabilities, cut_at_stop
from chat_api import parse_chat_request
from completions_api import DEFAULT_PROMPT, parse_completion_request
from tests.data.golden import read_chat_stream, read_response_stream
from tests.support import CHAT, RESPONSE, LiveServerTest, every_form
from tokenizer import ApproxTokenizer

TOKENIZER = ApproxTokenizer()
PROMPT = "Once upon a time,"
BODY = {"model": "m", "prompt": PROMPT}


def parse(**change):
    return parse_completion_request(dict(BODY, **change), TOKENIZER)


class PromptFormsTest(unittest.TestCase):

    def texts(self, prompt):
        return [request.history.last_user_text for request in parse(prompt=prompt).requests]

    def test_every_form_of_prompt(self):
        ids, other = TOKENIZER.encode("A tide"), TOKENIZER.encode(" rises")
        for prompt, texts in (
                ("A tide", ["A tide"]), ("", [""]), (None, [DEFAULT_PROMPT]), (["A", "B"], ["A", "B"]), (["A"], ["A"]),
                (ids, ["A tide"]), ([ids, other], ["A tide", " rises"]), ([ids, "B"], ["A tide", "B"])):
            with self.subTest(prompt=prompt):
                self.assertEqual(self.texts(prompt), texts)

    def test_token_arrays_count_as_many_tokens_as_they_have(self):
        self.assertEqual([request.history.tokens for request in parse(prompt=[[1, 2, 3], [4]]).requests], [3, 1])

    def test_faults_name_their_place_and_code(self):
        for change, param, code in (
                ({"prompt": []}, "prompt", "empty_array"), ({"prompt": [[]]}, "prompt[0]", "empty_array"),
                ({"prompt": 5}, "prompt", "invalid_type"), ({"prompt": {}}, "prompt", "invalid_type"),
                ({"prompt": [True]}, "prompt[0]", "invalid_type"), ({"prompt": [1, "a"]}, "prompt[1]", "invalid_type"),
                ({"prompt": ["a", 1]}, "prompt[1]", "invalid_type"), ({"prompt": [[1.5]]}, "prompt[0][0]", "invalid_type"),
                ({"prompt": [-1]}, "prompt[0]", "integer_below_min_value"), ({"prompt": ["a", None]}, "prompt[1]", "invalid_type"),
                ({"n": 0}, "n", "integer_below_min_value"), ({"n": 129}, "n", "integer_above_max_value"),
                ({"best_of": 21}, "best_of", "integer_above_max_value"), ({"n": 3, "best_of": 2}, "best_of", "invalid_value"),
                ({"n": 1, "best_of": 2, "stream": True}, "best_of", "invalid_value"),
                ({"logprobs": 6}, "logprobs", "integer_above_max_value"), ({"logprobs": -1}, "logprobs", "integer_below_min_value"),
                ({"logprobs": True}, "logprobs", "invalid_type"), ({"max_tokens": -1}, "max_tokens", "integer_below_min_value"),
                ({"max_tokens": 10 ** 9}, "max_tokens", "integer_above_max_value"),
                ({"prompt": ["a"] * 17, "n": 128}, "prompt", "array_above_max_length"),
                ({"prompt": ["a"] * 128, "max_tokens": 2000}, "max_tokens", "integer_above_max_value"),
                ({"echo": 1}, "echo", "invalid_type"), ({"suffix": 1}, "suffix", "invalid_type"),
                ({"stop": ["a"] * 5}, "stop", "array_above_max_length"), ({"stop": 5}, "stop", "invalid_type"),
                ({"temperature": 3}, "temperature", "decimal_above_max_value"),
                ({"presence_penalty": -3}, "presence_penalty", "decimal_below_min_value"),
                ({"logit_bias": {"1": 101}}, "logit_bias.1", "decimal_above_max_value"),
                ({"stream_options": {}}, "stream_options", None), ({"model": None}, "model", "missing_required_parameter")):
            with self.subTest(change=str(change)[:80]):
                with self.assertRaises(ApiError) as caught:
                    parse(**change)
                self.assertEqual((caught.exception.status, caught.exception.param, caught.exception.code), (400, param, code))

    def test_a_suffix_makes_another_request(self):
        hashes = {parse(suffix=suffix).requests[0].history.prefix_hash for suffix in (None, "", "a", "b")}
        self.assertEqual(len(hashes), 3)


class CutAtStopTest(unittest.TestCase):

    def test_text_ends_right_before_the_first_stop_wherever_tokens_end(self):
        # a random cut of any text into pieces gives the same text
        draw = random.Random(7)
        for _ in range(500):
            text = "".join(draw.choice("ab c") for _ in range(draw.randrange(1, 25)))
            stops = ["".join(draw.choice("ab c") for _ in range(draw.randrange(1, 4))) for _ in range(draw.randrange(1, 4))]
            pieces, rest = [], text
            while rest:
                size = draw.randrange(1, 5)
                pieces.append(rest[:size])
                rest = rest[size:]
            kept, found = cut_at_stop(pieces, stops)
            at = min([text.find(stop) for stop in stops if stop in text] or [len(text)])
            self.assertEqual(("".join(kept), found), (text[:at], any(stop in text for stop in stops)))
            self.assertNotIn("", kept)


class TokenProbabilitiesTest(unittest.TestCase):

    def test_probabilities_sum_to_under_1_and_the_said_token_leads(self):
        words = [" the", " sea", " tide", "\U0001f600", " a"] + [" w%d" % number for number in range(40)]
        for alternatives in (1, 2, 5, 20):
            source = TokenProbabilities(bytes(16), words, alternatives)
            for token in words * 5:
                entry = source.entry(token)
                top = entry["top_logprobs"]
                self.assertEqual((len(top), top[0]["token"], top[0]["logprob"]), (alternatives, token, entry["logprob"]))
                self.assertLess(sum(math.exp(each["logprob"]) for each in top), 1.0 + 1e-6)
                self.assertEqual(len({each["token"] for each in top}), alternatives, "alternatives are distinct")
                self.assertEqual([each["logprob"] for each in top], sorted((each["logprob"] for each in top), reverse=True))


class LongPlanTest(unittest.TestCase):
    """What takes a worker some ten milliseconds or more is not done on the loop's thread."""

    def setUp(self):
        self.backend = BatchBackend(SimulatedBackend(ClockModel(0.0, 0.0), TOKENIZER, 8))

    def assert_moved(self, backend, request):
        with self.assertRaises(TakesLong):
            backend.generate(request, None)

    def test_many_alternatives_are_left_to_a_worker(self):
        chat = parse_chat_request(dict(CHAT, max_tokens=3900, ignore_eos=True, logprobs=True, top_logprobs=20), TOKENIZER)
        self.assert_moved(SimulatedBackend(ClockModel(0.0, 0.0), TOKENIZER, 8), chat)

    def test_scoring_a_long_prompt_is_left_to_a_worker(self):
        self.assert_moved(self.backend, parse(prompt="word " * 3900, echo=True, max_tokens=0, logprobs=5))

    def test_scoring_many_prompts_is_left_to_a_worker(self):
        self.assert_moved(self.backend, parse(prompt=["a b"] * 2000, echo=True, max_tokens=0, logprobs=5))

    def test_a_batch_of_many_tokens_is_left_to_a_worker(self):
        self.assert_moved(self.backend, parse(prompt=["x"] * 100, max_tokens=50))


def check_entries(test, entries, text, alternatives):
    """Chat's or Responses' token log probabilities of a text."""
    test.assertEqual("".join(entry["token"] for entry in entries), text)
    for entry in entries:
        test.assertEqual(bytes(entry["bytes"]), entry["token"].encode("utf-8", "surrogatepass"))
        test.assertLessEqual(entry["logprob"], 0.0)
        test.assertEqual(len(entry["top_logprobs"]), alternatives)
        test.assertLess(sum(math.exp(each["logprob"]) for each in entry["top_logprobs"]), 1.0 + 1e-6)


def collect(test, events, include_usage=False):
    """(choices {index: {"text","logprobs","finish_reason"}}, usage) of a stream, its general rules asserted."""
    test.assertEqual(events[-1].data, "[DONE]")
    chunks = [event.data for event in events[:-1]]
    usage = chunks.pop()["usage"] if include_usage else None
    choices = {}
    for chunk in chunks:
        test.assertEqual((chunk["object"], chunk["id"], chunk["created"]), ("text_completion", chunks[0]["id"], chunks[0]["created"]))
        test.assertEqual("usage" in chunk, include_usage)
        part, = chunk["choices"]
        choice = choices.setdefault(part["index"], {"text": "", "logprobs": None, "finish_reason": None})
        test.assertIsNone(choice["finish_reason"], "a chunk after the choice's end")
        choice["text"] += part["text"]
        choice["finish_reason"] = part["finish_reason"]
        if part["logprobs"] is not None:
            told = choice["logprobs"] = choice["logprobs"] or {key: [] for key in part["logprobs"]}
            for key, values in part["logprobs"].items():
                told[key] += values
    return choices, usage


class CompletionsLive(LiveServerTest):

    def complete(self, **change):
        answer = self.request("POST", "/v1/completions", dict(BODY, **change))
        self.assertEqual(answer.status, 200, answer.body)
        return answer.json()

    def complete_streamed(self, **change):
        return collect(self, self.stream("/v1/completions", dict(BODY, stream_options={"include_usage": True}, **change)), True)


@every_form
class CompletionsTest(CompletionsLive):

    def test_the_object_has_all_keys(self):
        whole = self.complete(max_tokens=5)
        self.assertEqual(sorted(whole), ["choices", "created", "id", "model", "object", "system_fingerprint", "usage"])
        self.assertEqual((whole["object"], whole["model"], whole["id"][:5]), ("text_completion", "m", "cmpl-"))
        self.assertEqual(sorted(whole["choices"][0]), ["finish_reason", "index", "logprobs", "text"])

    def test_without_stop_there_are_exactly_max_tokens(self):
        for limit in (1, 7, 16, 300):
            whole = self.complete(max_tokens=limit)
            self.assertEqual((whole["usage"]["completion_tokens"], whole["choices"][0]["finish_reason"]), (limit, "length"))
            self.assertEqual(TOKENIZER.count(whole["choices"][0]["text"]), limit)
        self.assertEqual(self.complete()["usage"]["completion_tokens"], 16)

    def test_usage_counts_all_prompts_and_choices(self):
        usage = self.complete(prompt=["One two", "Three"], n=3, max_tokens=4)["usage"]
        prompt = TOKENIZER.count("One two") + TOKENIZER.count("Three")
        self.assertEqual((usage["prompt_tokens"], usage["completion_tokens"], usage["total_tokens"]), (prompt, 24, prompt + 24))

    def test_streamed_and_plain_are_the_same_for_the_same_seed(self):
        for change in ({}, {"n": 3}, {"prompt": ["a", "b", [1, 2]], "n": 2}, {"echo": True}, {"logprobs": 2},
                       {"echo": True, "logprobs": 1, "prompt": ["a b c", "d"]}, {"stop": [" the", "a"]}, {"max_tokens": 0},
                       {"echo": True, "max_tokens": 0, "logprobs": 0}, {"suffix": " end"}, {"prompt": "", "echo": True}):
            with self.subTest(change=change):
                plain = self.complete(seed=3, **change)
                choices, usage = self.complete_streamed(seed=3, **change)
                self.assertEqual(usage, plain["usage"])
                self.assertEqual(sorted(choices), [choice["index"] for choice in plain["choices"]])
                for choice in plain["choices"]:
                    found = choices[choice["index"]]
                    self.assertEqual((found["text"], found["finish_reason"]), (choice["text"], choice["finish_reason"]))
                    told = choice["logprobs"]
                    if told is not None and not told["tokens"]:
                        told = None             # a stream without a token tells of none
                    self.assertEqual(found["logprobs"], told)

    def test_choices_are_prompt_major(self):
        whole = self.complete(prompt=["First", "Second", "Third"], n=2, echo=True)
        self.assertEqual([choice["index"] for choice in whole["choices"]], list(range(6)))
        for choice, prompt in zip(whole["choices"], ["First", "First", "Second", "Second", "Third", "Third"]):
            self.assertTrue(choice["text"].startswith(prompt), choice)
        self.assertEqual(len({choice["text"] for choice in whole["choices"]}), 6)

    def test_a_batch_interleaves_in_a_stream(self):
        self.start_server(itl_ms=1)
        events = self.stream("/v1/completions", dict(BODY, prompt=["a", "b"], max_tokens=5))
        order = [event.data["choices"][0]["index"] for event in events[:-1]]
        self.assertEqual(sorted(order), [0] * 6 + [1] * 6)
        self.assertNotEqual(order, sorted(order))

    def test_echo_puts_the_prompt_in_front_and_costs_no_completion_tokens(self):
        ids = self.request("POST", "/tokenize", {"prompt": PROMPT}).json()["tokens"]
        for prompt in (PROMPT, ids):
            whole = self.complete(prompt=prompt, echo=True, max_tokens=3)
            self.assertTrue(whole["choices"][0]["text"].startswith(PROMPT))
            self.assertEqual(whole["usage"]["completion_tokens"], 3)

    def test_an_echoed_prompt_keeps_every_character(self):
        text = "Gr\u00fc\u00dfe \U0001f600 \"x\"\n\\ \x00 \ud83d"
        for streamed in (False, True):
            if streamed:
                said = self.complete_streamed(prompt=text, echo=True, max_tokens=0)[0][0]["text"]
            else:
                said = self.complete(prompt=text, echo=True, max_tokens=0)["choices"][0]["text"]
            self.assertEqual(said, text)

    def test_no_tokens_at_all(self):
        whole = self.complete(max_tokens=0)
        self.assertEqual((whole["choices"][0]["text"], whole["choices"][0]["finish_reason"]), ("", "length"))
        self.assertEqual(whole["usage"]["completion_tokens"], 0)

    def test_best_of_shows_the_n_first_and_counts_all(self):
        whole = self.complete(prompt=["a", "b"], n=2, best_of=5, max_tokens=3)
        self.assertEqual([choice["index"] for choice in whole["choices"]], [0, 1, 2, 3])
        self.assertEqual(whole["usage"]["completion_tokens"], 30)

    def test_best_of_may_equal_n_in_a_stream(self):
        choices, usage = self.complete_streamed(n=2, best_of=2, max_tokens=3)
        self.assertEqual((sorted(choices), usage["completion_tokens"]), ([0, 1], 6))

    def test_stops_are_never_emitted(self):
        for stop in ("e s", " th", "s t", ".", "y"):        # across token borders as often as not
            for change in ({"stop": stop}, {"stop": ["#", stop]}):
                with self.subTest(change=change):
                    whole = self.complete(seed=1, max_tokens=600, ignore_eos=True, **change)["choices"][0]
                    choices, usage = self.complete_streamed(seed=1, max_tokens=600, ignore_eos=True, **change)
                    self.assertEqual((whole["finish_reason"], choices[0]["finish_reason"]), ("stop", "stop"))
                    self.assertNotIn(stop, whole["text"])
                    self.assertEqual(choices[0]["text"], whole["text"])
                    self.assertLess(usage["completion_tokens"], 600)

    def test_with_a_stop_that_is_not_said_the_answer_may_end_by_itself(self):
        whole = self.complete(max_tokens=100, stop="#")
        self.assertEqual((whole["usage"]["completion_tokens"], whole["choices"][0]["finish_reason"]), (8, "stop"))

    def test_unknown_fields_are_ignored_and_named(self):
        answer = self.request("POST", "/v1/completions", dict(BODY, vendor=1, temperature=0.5))
        self.assertEqual(answer.status, 200)
        self.assertEqual(set(answer.headers["x-mockturtle-ignored"].split(", ")), {"vendor", "temperature"})

    def test_a_token_that_the_logit_bias_bans_is_not_said(self):
        banned, = self.request("POST", "/tokenize", {"prompt": " the"}).json()["tokens"]
        body = {"max_tokens": 300, "ignore_eos": True, "logit_bias": {str(banned): -100}}
        texts = [self.complete(**body)["choices"][0]["text"],
                 self.request("POST", "/v1/chat/completions", dict(CHAT, **body)).json()["choices"][0]["message"]["content"]]
        for text in texts:
            self.assertFalse(" the" in TOKENIZER.split(text), "the banned token was said")

    def test_batches_of_many_prompts(self):
        whole = self.complete(prompt=["p%d" % number for number in range(300)], max_tokens=5)
        self.assertEqual([choice["index"] for choice in whole["choices"]], list(range(300)))

    def test_a_seed_repeats_and_none_does_not(self):
        seeded = {self.complete(seed=9)["choices"][0]["text"] for _ in range(3)}
        free = {self.complete()["choices"][0]["text"] for _ in range(3)}
        self.assertEqual((len(seeded), len(free)), (1, 3))


@every_form
class CompletionLogprobsTest(CompletionsLive):

    def check(self, told, text, alternatives, begin=0, echo=False):
        self.assertEqual("".join(told["tokens"]), text)
        count = len(told["tokens"])
        self.assertEqual([len(told[key]) for key in ("token_logprobs", "top_logprobs", "text_offset")], [count] * 3)
        at = begin
        for number in range(count):
            self.assertEqual(told["text_offset"][number], at)
            at += len(told["tokens"][number])
            if echo and not number:
                self.assertEqual((told["token_logprobs"][0], told["top_logprobs"][0]), (None, None))
                continue
            self.assertLessEqual(told["token_logprobs"][number], 0)
            self.assertEqual(len(told["top_logprobs"][number]), alternatives)
            self.assertLess(sum(math.exp(value) for value in told["top_logprobs"][number].values()), 1.0 + 1e-6)

    def test_arrays_of_a_completion(self):
        for alternatives in (0, 1, 5):
            choice = self.complete(logprobs=alternatives, max_tokens=20)["choices"][0]
            self.check(choice["logprobs"], choice["text"], alternatives, len(PROMPT))

    def test_scoring_mode(self):
        prompt = "The tide\u00e9 rises \U0001f600 twice a day."
        for streamed in (False, True):
            change = dict(prompt=prompt, echo=True, max_tokens=0, logprobs=2)
            if streamed:
                choice = self.complete_streamed(**change)[0][0]
            else:
                choice = self.complete(**change)["choices"][0]
            self.assertEqual(choice["text"], prompt)
            self.check(choice["logprobs"], prompt, 2, echo=True)

    def test_scores_of_a_prompt_repeat_with_its_seed(self):
        scores = [self.complete(echo=True, max_tokens=0, logprobs=0, seed=1)["choices"][0]["logprobs"] for _ in range(2)]
        self.assertEqual(scores[0], scores[1])

    def test_echo_with_an_answer(self):
        choice = self.complete(echo=True, logprobs=1, max_tokens=6)["choices"][0]
        self.check(choice["logprobs"], choice["text"], 1, echo=True)
        self.assertEqual(len(choice["logprobs"]["tokens"]), TOKENIZER.count(PROMPT) + 6)

    def test_a_stop_cuts_the_last_token_and_what_is_told_of_it(self):
        choice = self.complete(seed=2, max_tokens=600, ignore_eos=True, stop="e s", logprobs=1)["choices"][0]
        self.assertEqual(choice["finish_reason"], "stop")
        self.check(choice["logprobs"], choice["text"], 1, len(PROMPT))

    def test_every_choice_of_a_batch_has_its_own(self):
        for choice, prompt in zip(self.complete(prompt=["a b", "longer prompt"], logprobs=1)["choices"], ("a b", "longer prompt")):
            self.check(choice["logprobs"], choice["text"], 1, len(prompt))


@every_form
class ChatAndResponsesLogprobsTest(LiveServerTest):
    settings = {"output_tokens": 12}

    def test_chat(self):
        for change in ({}, {"top_logprobs": 0}, {"top_logprobs": 20}, {"top_logprobs": 3, "n": 2}):
            for streamed in (False, True):
                with self.subTest(change=change, streamed=streamed):
                    answer = self.request("POST", "/v1/chat/completions", dict(CHAT, logprobs=True, stream=streamed, **change))
                    self.assertEqual(answer.status, 200, answer.body)
                    whole = read_chat_stream(self, answer.body)[1] if streamed else answer.json()
                    for choice in whole["choices"]:
                        check_entries(self, choice["logprobs"]["content"], choice["message"]["content"],
                                      change.get("top_logprobs", 0))

    def test_chat_with_structured_output_and_odd_characters(self):
        form = {"type": "json_schema", "json_schema": {"name": "x", "schema": {"const": "Gr\u00fc\u00dfe \U0001f600 \u4f60\u597d"}}}
        for streamed in (False, True):
            answer = self.request("POST", "/v1/chat/completions", dict(CHAT, logprobs=True, stream=streamed, response_format=form))
            choice = (read_chat_stream(self, answer.body)[1] if streamed else answer.json())["choices"][0]
            self.assertEqual(json.loads(choice["message"]["content"]), "Gr\u00fc\u00dfe \U0001f600 \u4f60\u597d")
            check_entries(self, choice["logprobs"]["content"], choice["message"]["content"], 0)

    def test_chat_without_them_has_null(self):
        answer = self.request("POST", "/v1/chat/completions", dict(CHAT, logprobs=False)).json()
        self.assertIsNone(answer["choices"][0]["logprobs"])

    def test_responses(self):
        for top in (None, 0, 5):
            for streamed in (False, True):
                with self.subTest(top=top, streamed=streamed):
                    body = dict(RESPONSE, include=["message.output_text.logprobs"], stream=streamed)
                    if top is not None:
                        body["top_logprobs"] = top
                    answer = self.request("POST", "/v1/responses", body)
                    self.assertEqual(answer.status, 200, answer.body)
                    whole = read_response_stream(self, answer.body)[-1]["response"] if streamed else answer.json()
                    part, = whole["output"][0]["content"]
                    check_entries(self, part["logprobs"], part["text"], top or 0)

    def test_responses_without_the_include_have_none(self):
        answer = self.request("POST", "/v1/responses", RESPONSE).json()
        self.assertEqual(answer["output"][0]["content"][0]["logprobs"], [])

    def test_chat_stops_across_token_borders_are_never_emitted(self):
        for stop in ("e s", " th", "s t", ".", "y"):
            for streamed in (False, True):
                answer = self.request("POST", "/v1/chat/completions", dict(
                    CHAT, stop=[stop, "#"], stream=streamed, max_tokens=600, ignore_eos=True))
                choice = (read_chat_stream(self, answer.body)[1] if streamed else answer.json())["choices"][0]
                self.assertEqual(choice["finish_reason"], "stop")
                self.assertNotIn(stop, choice["message"]["content"])


if __name__ == "__main__":
    unittest.main()
