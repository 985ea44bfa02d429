"""cached_tokens as clients see them: chats, chained responses, conversations, completions, over a live server."""
import unittest

from api_common import TakesLong
from backends.contract import Cancel, GenerationRequest, History, TextRun
from backends.latency import ClockModel
from backends.prefix_cache import CacheStats, PrefixCache
from backends.prompt import Prompt
from backends.simulated import SimulatedBackend
from tests.support import LiveServerTest, every_form, wait_until
from tests.test_prefix_cache import RecordingTokenizer, words
from tests.test_websocket_live import WebSocketLive
from tests.test_sqlite_live import DiskServerTest
from tokenizer import ApproxTokenizer

TOOL = {"type": "function", "function": {"name": "get_weather", "description": "Weather of a city", "parameters": {
    "type": "object", "properties": {"city": {"type": "string"}}, "required": ["city"]}}}
FLAT_TOOL = dict(TOOL["function"], type="function")
BLOCK = 16


def whole_blocks(tokens):
    return tokens // BLOCK * BLOCK


def chat_usage_of(answer):
    """(prompt tokens, completion tokens, cached tokens) of a chat's or completion's object."""
    usage = answer["usage"]
    return usage["prompt_tokens"], usage["completion_tokens"], usage["prompt_tokens_details"]["cached_tokens"]


def usage_of(response):
    """(input tokens, output tokens, cached tokens) of a response object."""
    usage = response["usage"]
    return usage["input_tokens"], usage["output_tokens"], usage["input_tokens_details"]["cached_tokens"]


class CacheServerTest(LiveServerTest):

    settings = {"output_tokens": 20, "cache_blocks": 4000}

    def post(self, path, body, status=200):
        answer = self.request("POST", "/v1/" + path, dict({"model": "m"}, **body))
        self.assertEqual(answer.status, status, answer.body)
        return answer.json()

    def chat(self, *messages, **more):
        return self.post("chat/completions", dict(more, messages=[
            {"role": "user", "content": message} if message.__class__ is str else message for message in messages]))

    def respond(self, input=None, **more):
        return self.post("responses", dict(more, **({} if input is None else {"input": input})))

    def stats(self):
        return self.server.backend.cache_stats()

    def assert_chained(self, before, after):
        """A turn hits all full blocks of the turn before it and of its answer."""
        prompt, answer, _ = usage_of(before)
        self.assertEqual(usage_of(after)[2], whole_blocks(prompt + answer))


@every_form
class ChatCacheTest(CacheServerTest):

    def test_calls_of_who_cannot_call_are_ignored_as_without_a_cache(self):
        for odd in ("abc", 1, True, [1], {"a": 1}):
            self.chat({"role": "user", "content": words(40), "tool_calls": odd, "function_call": odd})
        self.assertEqual(chat_usage_of(self.chat(words(40)))[2], 32)

    def test_without_the_flag_nothing_is_cached(self):
        self.start_server(cache_blocks=0)
        for _ in range(2):
            self.assertEqual(chat_usage_of(self.chat(words(100)))[2], 0)
        self.assertIsNone(self.stats())

    def test_a_repeated_prompt_hits_and_is_counted(self):
        first, again = (chat_usage_of(self.chat(words(100))) for _ in range(2))
        self.assertEqual((first, again), ((107, 20, 0), (107, 20, 96)))
        # 6 blocks and 11 tokens: each answer fills one more
        self.assertEqual(self.stats(), CacheStats(214, 96, 8, 4000, 0))

    def test_a_stream_says_the_same(self):
        self.chat(words(100))
        events = self.request("POST", "/v1/chat/completions", {
            "model": "m", "stream": True, "stream_options": {"include_usage": True},
            "messages": [{"role": "user", "content": words(100)}]}).events()
        self.assertEqual(chat_usage_of(events[-2].data), (107, 20, 96))

    def test_questions_behind_one_system_prompt_share_it(self):
        system = {"role": "system", "content": words(200)}
        self.assertEqual(chat_usage_of(self.chat(system, "a question"))[2], 0)
        self.assertEqual(chat_usage_of(self.chat(system, "another one"))[2], 192)
        # and in one string
        self.chat(words(200, 5) + " a question")
        self.assertEqual(chat_usage_of(self.chat(words(200, 5) + " one more"))[2], 192)

    def test_a_chat_that_grows_hits_all_that_was_said(self):
        messages = [words(60)]
        for turn in range(4):
            answer = self.chat(*messages)
            if turn:
                self.assertEqual(chat_usage_of(answer)[2], whole_blocks(before))
            prompt, said, _ = chat_usage_of(answer)
            before = prompt + said
            messages += [answer["choices"][0]["message"], words(30, turn)]

    def test_a_tool_call_that_comes_back_hits(self):
        first = self.chat(words(60), tools=[TOOL], tool_choice="required")
        prompt, said, cached = chat_usage_of(first)
        message = first["choices"][0]["message"]
        output = {"role": "tool", "tool_call_id": message["tool_calls"][0]["id"], "content": words(40)}
        second = self.chat(words(60), message, output, tools=[TOOL])
        self.assertEqual((cached, chat_usage_of(second)[2]), (0, whole_blocks(prompt + said)))
        # other tools stand before everything else
        other = dict(TOOL, function=dict(TOOL["function"], name="get_time"))
        self.assertEqual(chat_usage_of(self.chat(words(60), tools=[other]))[2], 0)

    def test_any_of_several_choices_goes_on(self):
        first = self.chat(words(60), n=3)
        prompt, said, _ = chat_usage_of(first)
        for choice in first["choices"]:
            answer = self.chat(words(60), choice["message"], words(30))
            self.assertEqual(chat_usage_of(answer)[2], whole_blocks(prompt + said // 3))

    def test_pictures_are_told_apart(self):
        def look(url, question):
            return chat_usage_of(self.chat({"role": "user", "content": [
                {"type": "image_url", "image_url": {"url": url}}, {"type": "text", "text": question}]}))[2]
        self.assertEqual([look("data:a", "Who?"), look("data:a", "What?"), look("data:b", "Who?")], [0, 80, 0])

    def test_salts_part_the_cache_and_cache_keys_do_not(self):
        def cached(**more):
            return chat_usage_of(self.chat(words(100), **more))[2]
        self.assertEqual([cached(), cached(prompt_cache_key="k"), cached(cache_salt="s"), cached(cache_salt="s"),
                          cached(cache_salt="t"), cached(model="n")], [0, 96, 0, 96, 0, 0])

    def test_a_salt_is_a_string_that_says_something(self):
        for salt, code in ((7, "invalid_type"), ("", "empty_string")):
            answer = self.request("POST", "/v1/chat/completions", {
                "model": "m", "cache_salt": salt, "messages": [{"role": "user", "content": "Hi"}]})
            self.assertEqual((answer.status, answer.error["param"], answer.error["code"]), (400, "cache_salt", code))

    def test_a_big_history_comes_cheaper_and_is_read_on_a_worker(self):
        start = words(12000)            # over inline_body_bytes
        self.chat(start + " one")
        self.assertEqual(chat_usage_of(self.chat(start + " two"))[2], 12000)

    def test_a_plan_that_begins_again_on_a_worker_is_counted_once(self):
        # 2 ms of work for the schema: not on the loop
        schema = {"type": "array", "minItems": 900, "items": {"type": "integer"}}
        form = {"type": "json_schema", "json_schema": {"name": "n", "schema": {
            "type": "object", "properties": {"a": schema}, "required": ["a"]}}}
        prompt, _, cached = chat_usage_of(self.chat(words(100), response_format=form))
        self.assertEqual((cached, self.stats().queries, self.stats().hits), (0, prompt, 0))

    def test_a_request_that_is_refused_is_not_counted(self):
        form = {"type": "json_schema", "json_schema": {"name": "n", "schema": {
            "type": "object", "properties": {"a": False}, "required": ["a"]}}}
        self.post("chat/completions", {"messages": [{"role": "user", "content": "x"}], "response_format": form}, 400)
        self.assertEqual(self.stats(), CacheStats(0, 0, 0, 4000, 0))


@every_form
class CompletionCacheTest(CacheServerTest):

    def complete(self, prompt, **more):
        return chat_usage_of(self.post("completions", dict(more, prompt=prompt)))

    def test_prompts_hit_as_they_come_again_in_any_form(self):
        ids = self.post("tokenize", {"prompt": words(40)})["tokens"]
        self.assertEqual([self.complete(words(40))[2], self.complete(words(40))[2], self.complete(ids)[2]], [0, 32, 32])

    def test_a_batch_adds_up_and_its_prompts_share(self):
        self.assertEqual(self.complete([words(40), words(40), words(40, 1)])[2], 32)
        self.assertEqual(self.stats().queries, 120)

    def test_a_big_batch_is_counted_once(self):
        first = words(1500)                 # each is nothing for a worker, both are
        self.assertEqual(self.complete([first, first])[2], 1488)
        self.assertEqual((self.stats().queries, self.stats().hits), (3000, 1488))
        self.complete([words(10, 5), words(2600, 3)])
        self.assertEqual((self.stats().queries, self.stats().hits), (5610, 1488))

    def test_an_empty_prompt_has_nothing_cached(self):
        self.assertEqual([self.complete(prompt)[2] for prompt in ("", "", ["", ""])], [0, 0, 0])
        self.assertEqual(self.stats().hits, 0)

    def test_a_prompt_is_no_message(self):
        self.chat(words(40))
        self.assertEqual(self.complete(words(40))[2], 0)

    def test_scoring_computes_everything(self):
        self.complete(words(40))
        self.assertEqual(self.complete(words(40), echo=True, logprobs=1, max_tokens=0)[2], 0)
        self.assertEqual(self.stats().queries, 40)
        self.assertEqual(self.complete(words(40), echo=True)[2], 32)

    def test_embeddings_are_not_looked_up(self):
        self.post("embeddings", {"input": words(40)})
        self.assertEqual(self.stats().queries, 0)


class RecordedTest(CacheServerTest):
    """With what the cache cut into tokens in self.texts."""

    places = 4000

    def make_backend(self):
        tokenizer = RecordingTokenizer()
        self.texts = tokenizer.texts
        return SimulatedBackend(ClockModel(0.0, 0.0), ApproxTokenizer(), 20,
                                cache=PrefixCache(BLOCK, 4000, tokenizer, self.places))

    def cut(self):
        """What was cut since the last call."""
        texts = list(self.texts)
        self.texts.clear()
        return texts


class SilentTokensCacheTest(CacheServerTest):

    def make_backend(self):
        return SimulatedBackend(ClockModel(0.0, 0.0), ApproxTokenizer(), 60, text="emoji",
                                cache=PrefixCache(BLOCK, 4000, ApproxTokenizer(), 4000))

    def test_an_answer_of_which_some_tokens_have_no_text_is_read_again_as_it_was_said(self):
        before = self.respond(words(40))
        for turn in range(4):
            after = self.respond(words(30, turn), previous_response_id=before["id"])
            self.assert_chained(before, after)
            before = after


@every_form
class ResponseCacheTest(RecordedTest):

    def test_a_chained_turn_hits_and_reads_its_own_input_only(self):
        before = self.respond(words(40))
        self.assertEqual((usage_of(before)[2], self.cut()), (0, [words(40)]))
        for turn in range(5):
            after = self.respond(words(30, turn), previous_response_id=before["id"])
            self.assert_chained(before, after)
            self.assertEqual(self.cut(), [words(30, turn)])
            before = after

    def test_a_streamed_turn_says_the_same(self):
        before = self.respond(words(40))
        events = self.request("POST", "/v1/responses", {
            "model": "m", "input": "Hi", "stream": True, "previous_response_id": before["id"]}).events()
        self.assert_chained(before, events[-2].data["response"])

    def test_a_client_that_sends_everything_again_hits(self):
        first = self.respond(words(200), store=False)
        self.cut()
        second = self.respond([{"role": "user", "content": words(200)}] + first["output"] + [
            {"role": "user", "content": words(30)}], store=False)
        self.assert_chained(first, second)
        self.assertEqual(self.cut(), ["".join(part["text"] for part in first["output"][0]["content"]), words(30)])

    def test_items_in_another_form_are_the_same_tokens(self):
        self.respond(words(60))
        after = self.respond([{"type": "message", "role": "user", "content": [
            {"type": "input_text", "text": words(30)}, {"type": "input_text", "text": words(30, 6)}]}])
        self.assertEqual(usage_of(after)[2], 64)

    def test_instructions_and_tools_belong_to_the_turn_and_stand_first(self):
        more = {"instructions": words(50), "tools": [FLAT_TOOL], "tool_choice": "none"}
        first = self.respond(words(40), **more)
        kept = self.respond("Hi", previous_response_id=first["id"], **more)
        self.assert_chained(first, kept)
        self.assertEqual(usage_of(self.respond("Hi", previous_response_id=first["id"]))[2], 0)
        again = self.respond("Hi", previous_response_id=kept["id"], **more)
        self.assert_chained(kept, again)

    def test_calls_and_their_outputs_are_chained(self):
        first = self.respond(words(60), tools=[FLAT_TOOL], tool_choice="required")
        self.assertEqual(first["output"][0]["type"], "function_call")
        output = {"type": "function_call_output", "call_id": first["output"][0]["call_id"], "output": words(40)}
        self.cut()
        second = self.respond([output], tools=[FLAT_TOOL], previous_response_id=first["id"])
        self.assert_chained(first, second)
        self.assertEqual([text for text in self.cut() if text in (words(60), words(40))], [words(40)])

    def test_reasoning_is_not_read_again_and_does_not_break_the_chain(self):
        first = self.respond(words(60), reasoning={"effort": "medium"})
        second = self.respond(words(40), previous_response_id=first["id"], reasoning={"effort": "medium"})
        self.assertEqual(usage_of(second)[2], whole_blocks(usage_of(first)[0]))
        self.cut()
        third = self.respond(words(30), previous_response_id=second["id"])
        self.assertEqual(usage_of(third)[2], whole_blocks(usage_of(second)[0]))
        self.assertEqual(self.cut(), [words(30)])

    def test_built_in_tools_turns_are_read_from_their_items(self):
        more = {"tools": [{"type": "web_search"}]}
        first = self.respond(words(60), tool_choice={"type": "web_search"}, **more)
        self.assertEqual(first["output"][0]["type"], "web_search_call")
        second = self.respond(words(40), previous_response_id=first["id"], **more)
        self.assertEqual(usage_of(second)[2], whole_blocks(usage_of(first)[0]))
        third = self.respond(words(40), previous_response_id=second["id"], **more)
        self.assertGreaterEqual(usage_of(third)[2], usage_of(second)[0] - BLOCK)

    def test_an_item_reference_is_what_it_refers_to(self):
        first = self.respond(words(60), store=True)
        second = self.respond([{"role": "user", "content": words(60)},
                               {"type": "item_reference", "id": first["output"][0]["id"]},
                               {"role": "user", "content": words(20)}])
        self.assert_chained(first, second)

    def test_truncation_hits_nothing_that_moved(self):
        self.start_server(max_model_len=200)
        first = self.respond(words(60))
        second = self.respond(words(130), previous_response_id=first["id"], truncation="auto")
        third = self.respond(words(40), previous_response_id=second["id"], truncation="auto")
        self.assertEqual([usage_of(each)[0] < 200 for each in (second, third)], [True, True])
        self.assertEqual([usage_of(each)[2] for each in (second, third)], [0, 0])

    def test_a_compaction_reads_what_a_turn_would(self):
        first = self.respond(words(60))
        compacted = self.post("responses/compact", {"previous_response_id": first["id"]})
        self.assertEqual(compacted["usage"]["input_tokens_details"]["cached_tokens"],
                         whole_blocks(usage_of(first)[0] + usage_of(first)[1]))
        again = self.respond(compacted["output"] + [{"role": "user", "content": words(30)}])
        self.assertEqual(usage_of(again)[2], 64)        # the user's message is the same

    def test_what_only_counts_is_not_looked_up(self):
        self.post("responses/input_tokens", {"input": words(60)})
        self.assertEqual(self.stats(), CacheStats(0, 0, 0, 4000, 0))

    def test_a_background_response_that_was_cancelled_is_read_as_it_was_stored(self):
        self.start_server(backend=SimulatedBackend(
            ClockModel(0.0, 0.01), ApproxTokenizer(), 200, cache=PrefixCache(BLOCK, 4000, ApproxTokenizer())))
        path = "/v1/responses/" + self.respond(words(60), background=True)["id"]

        def text():
            output = self.request("GET", path).json()["output"]
            return output[0]["content"][0]["text"] if output and output[0]["content"] else ""
        wait_until(lambda: len(text()) > 20, "some words")
        answer = self.request("POST", path + "/cancel", {})
        self.assertEqual((answer.status, answer.json()["status"]), (200, "cancelled"))
        said = ApproxTokenizer().count(text())
        after = self.respond(words(400), previous_response_id=answer.json()["id"], max_output_tokens=16)
        self.assertTrue(0 < said < 200)
        self.assertEqual(usage_of(after)[::2], (3 + 64 + said + 4 + 404, whole_blocks(67 + said)))


@every_form
class ForgetfulCacheTest(RecordedTest):

    places = 8

    def test_a_chain_that_was_forgotten_is_read_again_and_hits(self):
        before = self.respond(words(100))
        for number in range(10):
            self.chat("%d" % number + words(100))
        self.cut()
        after = self.respond(words(30), previous_response_id=before["id"])
        self.assert_chained(before, after)
        self.assertIn(words(100), self.cut())
        last = self.respond(words(20), previous_response_id=after["id"])
        self.assert_chained(after, last)
        self.assertEqual(self.cut(), [words(20)])

    def test_a_long_one_is_not_read_on_the_loop(self):
        before = self.respond(words(2500))
        for number in range(10):
            self.chat("%d" % number + words(100))
        breathing = []
        look_up = self.server.backend._cache.look_up

        def recorded(request):
            breathing.append(request.breathe is not None)
            return look_up(request)
        self.server.backend._cache.look_up = recorded
        after = self.respond("Hi", previous_response_id=before["id"])
        self.assert_chained(before, after)
        self.assertEqual(breathing, [False, True])


@every_form
class ConversationCacheTest(RecordedTest):

    def test_turns_of_a_conversation_are_chained(self):
        conversation = self.post("conversations", {"model": None, "items": [{"role": "user", "content": words(60)}]})
        before = self.respond(words(40), conversation=conversation["id"])
        for turn in range(3):
            self.cut()
            after = self.respond(words(30, turn), conversation=conversation["id"])
            self.assert_chained(before, after)
            self.assertEqual(self.cut(), [words(30, turn)])
            before = after

    def test_items_put_in_and_taken_out_are_seen(self):
        conversation = self.post("conversations", {"model": None})["id"]
        path = "conversations/%s/items" % conversation
        first = self.respond(words(60), conversation=conversation)
        added = self.post(path, {"model": None, "items": [{"role": "user", "content": words(50, 7)}]})
        second = self.respond(words(40), conversation=conversation)
        self.assert_chained(first, second)
        self.assertEqual(self.request("DELETE", "/v1/%s/%s" % (path, added["data"][0]["id"])).status, 200)
        third = self.respond(words(40), conversation=conversation)
        # what stood before the item still hits; behind it all has moved
        self.assertEqual(usage_of(third)[2], whole_blocks(usage_of(first)[0] + usage_of(first)[1]))


@every_form
class SocketCacheTest(WebSocketLive):

    settings = {"output_tokens": 20, "cache_blocks": 4000}

    def test_turns_that_only_their_connection_remembers_are_chained(self):
        client = self.open()
        before = client.turn(store=False, input=words(60))[-1]["response"]
        after = client.turn(store=False, input=words(30), previous_response_id=before["id"])[-1]["response"]
        self.assertEqual(usage_of(after)[2], whole_blocks(sum(usage_of(before)[:2])))

    def test_a_turn_that_only_prepares_warms_the_cache(self):
        client = self.open()
        before = client.turn(generate=False, store=False, input=words(60))[-1]["response"]
        after = client.turn(store=False, input=words(30), previous_response_id=before["id"])[-1]["response"]
        self.assertEqual([usage_of(each) for each in (before, after)], [(67, 0, 0), (105, 20, 64)])


@every_form
class RestartedCacheTest(DiskServerTest):

    def test_the_cache_is_empty_after_a_restart_and_the_chain_goes_on(self):
        def start():
            return self.start(SimulatedBackend(ClockModel(0.0, 0.0), ApproxTokenizer(), 20,
                                               cache=PrefixCache(BLOCK, 4000, ApproxTokenizer())))
        server = start()
        first = self.turn(server, words(100))
        second = self.turn(server, words(30), previous_response_id=first["id"])
        self.assertEqual(usage_of(second)[2], whole_blocks(usage_of(first)[0] + usage_of(first)[1]))
        self.stop(server)
        server = start()
        third = self.turn(server, words(30), previous_response_id=second["id"])
        self.assertEqual((usage_of(third)[2], server.backend.cache_stats().queries), (0, usage_of(third)[0]))
        fourth = self.turn(server, words(30), previous_response_id=third["id"])
        self.assertEqual(usage_of(fourth)[2], whole_blocks(usage_of(third)[0] + usage_of(third)[1]))


class CachedPrefillTest(unittest.TestCase):

    def plan(self, backend, **given):
        prompt = Prompt([("user", words(93))])
        history = History(100, b"", "Hi", list, prompt=lambda history: prompt)
        return backend.generate(GenerationRequest("m", history, **given), Cancel())

    def test_what_is_cached_needs_no_prefill(self):
        tokenizer = ApproxTokenizer()
        backend = SimulatedBackend(ClockModel(0.5, 0.0, 0.25, 0.001), tokenizer, 20,
                                   cache=PrefixCache(BLOCK, 100, tokenizer))
        for given in ({}, {"logprobs": 0}):
            with self.subTest(given=given):
                backend._cache = PrefixCache(BLOCK, 100, tokenizer)
                firsts = [self.plan(backend, **given)[0][0] for _ in range(2)]
                self.assertEqual([round(due_s, 6) for due_s in firsts], [0.85, 0.754])
        self.assertIs(self.plan(backend)[0][1].__class__, TextRun)

    def test_a_plan_that_takes_long_is_neither_counted_nor_kept(self):
        tokenizer = ApproxTokenizer()
        backend = SimulatedBackend(ClockModel(0.0, 0.0), tokenizer, 5000, cache=PrefixCache(BLOCK, 1000, tokenizer))
        with self.assertRaises(TakesLong):
            self.plan(backend)
        self.assertEqual(backend.cache_stats(), CacheStats(0, 0, 0, 1000, 0))
        self.assertEqual(self.plan(backend, breathe=lambda: None)[-1][1].cached_tokens, 0)
        self.assertEqual(backend.cache_stats(), CacheStats(100, 0, 318, 1000, 0))


if __name__ == "__main__":
    unittest.main()
