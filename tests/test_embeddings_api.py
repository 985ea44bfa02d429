"""Embeddings, moderations and token ids: deterministic, of the right shape, and exact both ways."""
import base64
import json
import math
import random
import struct
import unittest

from embeddings_api import MODERATION_CATEGORIES, embed_text, moderate_text, vector_base64
from tests.support import LiveServerTest, every_form
from tokenizer import ApproxTokenizer

BODY = {"model": "m", "input": "the tide rises at noon"}


def cosine(one, other):
    return sum(a * b for a, b in zip(one, other))


def floats_of(text):
    data = base64.b64decode(text)
    return list(struct.unpack("<%df" % (len(data) // 4), data))


def random_text(draw):
    """Any characters, lone surrogates included."""
    alphabet = draw.choice(("ab c\n", "\u00e9\u4f60\U0001f600 \ud83d\udc00", None))
    if alphabet is None:
        text = "".join(chr(draw.randrange(0x110000)) for _ in range(draw.randrange(1, 12)))
    else:
        text = "".join(draw.choice(alphabet) for _ in range(draw.randrange(1, 30)))
    return json.loads(json.dumps(text))         # JSON makes one character of two halves that meet


class EmbedTest(unittest.TestCase):

    def test_any_text_gives_a_unit_vector_of_any_length(self):
        draw = random.Random(3)
        texts = ["", " ", "!!!", "a", "\ud83d", "x" * 5000, "word " * 500] + [random_text(draw) for _ in range(40)]
        for number, text in enumerate(texts):
            for dimensions in (1, 2, 3, 64, 1536):
                with self.subTest(number=number, dimensions=dimensions):
                    vector = embed_text(text, dimensions)
                    self.assertEqual(len(vector), dimensions)
                    self.assertAlmostEqual(math.sqrt(cosine(vector, vector)), 1.0)

    def test_the_same_text_gives_the_same_vector(self):
        self.assertEqual(embed_text("the sea", 256), embed_text("the sea", 256))
        self.assertNotEqual(embed_text("the sea", 256), embed_text("the hill", 256))

    def test_similar_texts_are_closer(self):
        for one, near, far in (
                ("the tide rises at noon", "the tide falls at noon", "quarterly revenue exceeded forecasts"),
                ("How do I reset my password?", "reset password help", "Bake the bread for an hour"),
                ("dogs and cats", "a dog and a cat", "the interest rate decision"),
                ("run the tests", "running a test", "violet clouds over hills")):
            for dimensions in (256, 1536):
                with self.subTest(one=one, dimensions=dimensions):
                    vector = embed_text(one, dimensions)
                    self.assertGreater(cosine(vector, embed_text(near, dimensions)),
                                       cosine(vector, embed_text(far, dimensions)) + 0.1)

    def test_upper_case_and_punctuation_change_nothing(self):
        self.assertAlmostEqual(cosine(embed_text("The SEA!", 512), embed_text("the sea", 512)), 1.0)

    def test_base64_is_little_endian_float32(self):
        vector = embed_text("sea", 64)
        self.assertEqual(vector_base64(vector), base64.b64encode(struct.pack("<64f", *vector)).decode("ascii"))


@every_form
class EmbeddingsTest(LiveServerTest):

    def embed(self, **change):
        answer = self.request("POST", "/v1/embeddings", dict(BODY, **change))
        self.assertEqual(answer.status, 200, answer.body)
        return answer.json()

    def test_the_object_has_its_keys(self):
        whole = self.embed()
        self.assertEqual(sorted(whole), ["data", "model", "object", "usage"])
        self.assertEqual((whole["object"], whole["model"], len(whole["data"])), ("list", "m", 1))
        self.assertEqual((whole["data"][0]["object"], whole["data"][0]["index"]), ("embedding", 0))
        self.assertEqual(len(whole["data"][0]["embedding"]), 1536)
        count = ApproxTokenizer().count(BODY["input"])
        self.assertEqual(whole["usage"], {"prompt_tokens": count, "total_tokens": count})

    def test_both_encodings_say_the_same(self):
        for dimensions in (1, 8, 1536):
            plain = self.embed(dimensions=dimensions, encoding_format="float")["data"][0]["embedding"]
            packed = floats_of(self.embed(dimensions=dimensions, encoding_format="base64")["data"][0]["embedding"])
            self.assertEqual(len(packed), dimensions)
            for one, other in zip(plain, packed):
                self.assertAlmostEqual(one, other, places=6)

    def test_a_batch_is_in_order_and_each_is_as_if_alone(self):
        texts = ["one", "two", "three two"]
        data = self.embed(input=texts, dimensions=32)["data"]
        self.assertEqual([each["index"] for each in data], [0, 1, 2])
        for text, each in zip(texts, data):
            self.assertEqual(self.embed(input=text, dimensions=32)["data"][0]["embedding"], each["embedding"])

    def test_token_arrays_are_the_texts_that_they_stand_for(self):
        ids = self.request("POST", "/tokenize", {"prompt": BODY["input"]}).json()["tokens"]
        expected = self.embed(dimensions=16)
        self.assertEqual(self.embed(input=ids, dimensions=16), expected)
        self.assertEqual([each["embedding"] for each in self.embed(input=[ids, ids], dimensions=16)["data"]],
                         [expected["data"][0]["embedding"]] * 2)

    def test_the_same_on_another_server(self):
        vector = self.embed(dimensions=24)["data"][0]["embedding"]
        self.assertEqual(vector, embed_text(BODY["input"], 24).tolist())

    def test_faults_name_their_place_and_code(self):
        for change, param, code in (
                ({"input": ""}, "input[0]", "empty_string"), ({"input": []}, "input", "empty_array"),
                ({"input": ["a", ""]}, "input[1]", "empty_string"), ({"input": [[]]}, "input[0]", "empty_array"),
                ({"input": [1, "a"]}, "input[0][1]", "invalid_type"), ({"input": ["a", 1]}, "input[1]", "invalid_type"),
                ({"input": 5}, "input", "invalid_type"), ({"input": [None]}, "input[0]", "invalid_type"),
                ({"input": ["a"] * 2049, "dimensions": 1}, "input", "array_above_max_length"),
                ({"dimensions": 0}, "dimensions", "integer_below_min_value"), ({"dimensions": 1.5}, "dimensions", "invalid_type"),
                ({"encoding_format": "hex"}, "encoding_format", "invalid_value"),
                ({"input": None}, "input", "missing_required_parameter"), ({"model": None}, "model", "missing_required_parameter")):
            with self.subTest(change=str(change)[:60]):
                answer = self.request("POST", "/v1/embeddings", dict(BODY, **change))
                self.assertEqual(answer.status, 400, answer.body[:200])
                self.assertEqual(answer.error["code"], code)
                if param not in ("input[0][1]", "input[0]"):       # of a lone input the index may be left out
                    self.assertEqual(answer.error["param"], param)

    def test_the_largest_batch_passes(self):
        self.assertEqual(len(self.embed(input=["a"] * 2048, dimensions=4)["data"]), 2048)

    def test_strict_models_hold_here_too(self):
        self.start_server(strict_models=True, model=("known",))
        answer = self.request("POST", "/v1/embeddings", BODY)
        self.assertEqual((answer.status, answer.error["code"]), (404, "model_not_found"))

    def test_fields_that_nobody_acts_on_are_named_in_the_header(self):
        self.assertEqual(self.request("POST", "/v1/embeddings", dict(BODY, vendor=1)).headers.get("x-mockturtle-ignored"), "vendor")

    def test_unknown_fields_are_refused_where_that_is_asked_for(self):
        for values in ({"strict": True}, {"refuse_ignored": True}):
            self.start_server(**values)
            self.assertEqual(self.request("POST", "/v1/embeddings", BODY).status, 200)
            with self.subTest(values=values):
                self.assertEqual(self.request("POST", "/v1/embeddings", dict(BODY, vendor=1)).status, 400)
            self._stop_server()
            self._check_server()


@every_form
class EmbeddingsTimingTest(LiveServerTest):

    def test_paced_streams_go_on_while_a_small_body_asks_for_many_numbers(self):
        self.start_server(itl_ms=2, output_tokens=150)
        client = self.connect()
        client.send_request("POST", "/v1/chat/completions", {
            "model": "m", "stream": True, "messages": [{"role": "user", "content": "x"}]})
        answer = client.read_head()
        self.request("POST", "/v1/embeddings", {"model": "m", "input": ["a b c d"] * 800})
        self.assertEqual(client.read_rest(answer)[-1].data, "[DONE]")
        self.assertLess(self.server.metrics.lateness.quantile_ms(0.5), 100)


class ModerateTest(unittest.TestCase):

    def test_a_category_is_flagged_only_by_its_own_mark(self):
        for name in MODERATION_CATEGORIES:
            verdict = moderate_text("well [flag:%s] then" % name)
            self.assertEqual([each for each, flag in verdict["categories"].items() if flag], [name])
            self.assertTrue(verdict["flagged"])
            self.assertGreater(verdict["category_scores"][name], 0.5)
        self.assertFalse(moderate_text("violence sexual hate")["flagged"])


@every_form
class ModerationsTest(LiveServerTest):

    def test_one_verdict_a_text_with_all_categories(self):
        for given, flags in (("fine", [False]), (["fine", "[flag:hate]"], [False, True]),
                             ([{"type": "text", "text": "[flag:hate]"}, {"type": "image_url", "image_url": {"url": "x"}}], [True])):
            answer = self.request("POST", "/v1/moderations", {"input": given})
            self.assertEqual(answer.status, 200, answer.body)
            whole = answer.json()
            self.assertEqual([each["flagged"] for each in whole["results"]], flags)
            self.assertTrue(whole["id"].startswith("modr-") and whole["model"])
            for each in whole["results"]:
                for key in ("categories", "category_scores", "category_applied_input_types"):
                    self.assertEqual(set(each[key]), set(MODERATION_CATEGORIES))

    def test_faults(self):
        for body in ({}, {"input": []}, {"input": 5}, {"input": ["a", 1]}, {"input": [{"type": "text"}, "a"]}):
            with self.subTest(body=body):
                self.assertEqual(self.request("POST", "/v1/moderations", body).status, 400)


@every_form
class TokenIdsTest(LiveServerTest):

    def test_round_trip_of_any_text(self):
        draw = random.Random(11)
        client = self.connect()
        for text in ["", "Hello there", "half \ud83d a pair", "\U0001f468\u200d\U0001f469\u200d\U0001f467", "a\r\n\tb\x00"] + [
                random_text(draw) for _ in range(100)]:
            told = client.request("POST", "/tokenize", {"prompt": text, "return_token_strs": True}).json()
            self.assertEqual("".join(told["token_strs"]), text)
            self.assertEqual(told["count"], len(told["tokens"]))
            back = client.request("POST", "/detokenize", {"tokens": told["tokens"]}).json()
            self.assertEqual((back["prompt"], back["text"]), (text, text))

    def test_vllms_and_guidellms_forms(self):
        vllm = self.request("POST", "/tokenize", {"model": "m", "prompt": "Hello there", "add_special_tokens": True}).json()
        guide = self.request("POST", "/tokenize", {"text": "Hello there"}).json()
        self.assertEqual(vllm, guide)
        self.assertEqual(sorted(vllm), ["count", "max_model_len", "token_strs", "tokens"])
        self.assertEqual(vllm["max_model_len"], 1048576)
        chat = self.request("POST", "/tokenize", {"messages": [{"role": "user", "content": "Hello there"}]}).json()
        self.assertGreaterEqual(chat["count"], vllm["count"])

    def test_counts_are_those_of_the_usage(self):
        count = self.request("POST", "/tokenize", {"prompt": "One two, three"}).json()["count"]
        usage = self.request("POST", "/v1/completions", {"model": "m", "prompt": "One two, three"}).json()["usage"]
        self.assertEqual(usage["prompt_tokens"], count)

    def test_ids_are_integers_that_json_readers_keep_exact(self):
        ids = self.request("POST", "/tokenize", {"prompt": "Hello there \ud83d \u4f60\u597d \U0001f600"}).json()["tokens"]
        self.assertTrue(all(0 <= number < 2 ** 53 for number in ids))

    def test_ids_that_were_never_given_out_are_words_all_the_same(self):
        for tokens in ([0], [1, 2, 3], [2 ** 31], [2 ** 62]):
            answer = self.request("POST", "/detokenize", {"tokens": tokens})
            self.assertEqual(answer.status, 200, answer.body)
            self.assertTrue(answer.json()["prompt"])

    def test_faults(self):
        for path, body in (("/tokenize", {}), ("/tokenize", {"prompt": 5}), ("/tokenize", {"messages": []}),
                           ("/tokenize", {"messages": ["x"]}), ("/tokenize", {"messages": [{"role": "user", "content": 5}]}),
                           ("/tokenize", {"messages": [{"role": "user", "content": [5]}]}),
                           ("/detokenize", {}), ("/detokenize", {"tokens": "x"}), ("/detokenize", {"tokens": ["a"]}),
                           ("/detokenize", {"tokens": [-1]}), ("/detokenize", {"tokens": [1.5]})):
            with self.subTest(path=path, body=body):
                answer = self.request("POST", path, body)
                self.assertEqual((answer.status, answer.error["type"]), (400, "invalid_request_error"), answer.body)

    def test_both_paths_with_and_without_v1(self):
        self.assertEqual(self.request("POST", "/v1/tokenize", {"prompt": "a"}).body,
                         self.request("POST", "/tokenize", {"prompt": "a"}).body)


if __name__ == "__main__":
    unittest.main()
