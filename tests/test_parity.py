"""Rules across APIs and modes: the stream, assembled, is the plain answer; both APIs count alike."""
import json
import threading
import unittest
from collections import Counter

from tests.data.golden import read_chat_stream, read_response_stream
from tests.support import CHAT, RESPONSE, TIMEOUT_S, LiveServerTest, every_form
from tokenizer import ApproxTokenizer

TOKENIZER = ApproxTokenizer()
CONVERSATION = [{"role": "system", "content": "Be brief."}, {"role": "user", "content": "What is a tide?"},
                {"role": "assistant", "content": "The rise and fall of the sea."},
                {"role": "user", "content": "And why? \U0001f600 \u4e2d\u6587"}]


class ParityLive(LiveServerTest):
    settings = {"output_tokens": 20}

    def restart(self, **settings):
        """A new server in place of the test's, which has seen no request."""
        if self._server is not None:
            self._stop_server()
            self._check_server()
        self.start_server(**settings)

    def chat(self, streamed=False, client=None, **change):
        """The chat object, assembled from the stream or plain, without id and times."""
        change = dict(CHAT, stream=streamed, **change)
        if streamed:
            change["stream_options"] = {"include_usage": True}
        answer = (client or self).request("POST", "/v1/chat/completions", change)
        self.assertEqual(answer.status, 200, answer.body)
        whole = read_chat_stream(self, answer.body, True)[1] if streamed else answer.json()
        self.assertTrue(whole.pop("id") and whole.pop("created"))
        return whole

    def respond(self, streamed=False, client=None, **change):
        """The response object, of the terminal event or plain, without ids and times."""
        answer = (client or self).request("POST", "/v1/responses", dict(RESPONSE, stream=streamed, **change))
        self.assertEqual(answer.status, 200, answer.body)
        whole = read_response_stream(self, answer.body)[-1]["response"] if streamed else answer.json()
        for key in ("id", "created_at", "completed_at"):
            del whole[key]
        for item in whole["output"]:
            del item["id"]
        return whole


def chat_said(whole):
    return whole["choices"][0]["message"]["content"]


def response_said(whole):
    return whole["output"][0]["content"][0]["text"]


@every_form
class ModesTest(ParityLive):

    def test_chat_says_the_same_streamed_and_plain(self):
        for change in ({"seed": 1}, {"seed": 1, "n": 3}, {"seed": 2, "max_tokens": 5},
                       {"seed": 3, "messages": CONVERSATION}, {"seed": 4, "max_tokens": 1500, "ignore_eos": True}):
            with self.subTest(change=change):
                self.assertEqual(self.chat(True, **change), self.chat(False, **change))

    def test_two_servers_say_the_same_to_the_same_requests(self):
        first = [self.chat(number % 2 == 1) for number in range(4)] + [self.respond(number % 2 == 1)
                                                                       for number in range(4)]
        self.restart()
        second = [self.chat(number % 2 == 0) for number in range(4)] + [self.respond(number % 2 == 0)
                                                                        for number in range(4)]
        self.assertEqual(first, second)

    def test_repeated_requests_without_a_seed_are_answered_anew(self):
        self.assertEqual(len({chat_said(self.chat()) for _ in range(5)}), 5)

    def test_reported_usage_is_the_count_of_the_text(self):
        for streamed in (False, True):
            for count in (16, 17, 64, 301):
                with self.subTest(streamed=streamed, count=count):
                    whole = self.chat(streamed, max_tokens=count, ignore_eos=True)
                    self.assertEqual((whole["usage"]["completion_tokens"], TOKENIZER.count(chat_said(whole))),
                                     (count, count))
                    whole = self.respond(streamed, max_output_tokens=count, ignore_eos=True)
                    self.assertEqual((whole["usage"]["output_tokens"], TOKENIZER.count(response_said(whole))),
                                     (count, count))

    def test_plain_answers_do_not_depend_on_the_connection_being_kept(self):
        client = self.connect()
        kept = [chat_said(self.chat(seed=number, client=client)) for number in range(3)]
        self.assertEqual(kept, [chat_said(self.chat(seed=number)) for number in range(3)])

    def test_an_http_1_0_client_gets_the_same_events(self):
        body = dict(RESPONSE, stream=True)
        client = self.connect()
        client.send_request("POST", "/v1/responses", body, version="1.0")
        answer = client.read_answer()
        self.assertEqual(answer.framing, "close")
        new = self.request("POST", "/v1/responses", body)
        self.assertEqual(new.framing, "chunked")
        self.assertEqual([event["type"] for event in read_response_stream(self, answer.body)],
                         [event["type"] for event in read_response_stream(self, new.body)])


@every_form
class ApisTest(ParityLive):

    def test_both_apis_count_the_same_prompt_alike(self):
        pairs = [("Hello", [{"role": "user", "content": "Hello"}]), (CONVERSATION, CONVERSATION),
                 ([{"role": "user", "content": [{"type": "input_text", "text": "Look:"}, {
                     "type": "input_image", "image_url": "x"}]}],
                  [{"role": "user", "content": [{"type": "text", "text": "Look:"}, {
                      "type": "image_url", "image_url": {"url": "x"}}]}])]
        for given, messages in pairs:
            with self.subTest(given=str(given)[:40]):
                self.assertEqual(self.respond(input=given)["usage"]["input_tokens"],
                                 self.chat(messages=messages)["usage"]["prompt_tokens"])

    def test_instructions_count_as_a_system_message(self):
        self.assertEqual(self.respond(instructions="Be brief.", input="Hi")["usage"]["input_tokens"], self.chat(
            messages=[{"role": "system", "content": "Be brief."}, {"role": "user", "content": "Hi"}])
            ["usage"]["prompt_tokens"])

    def test_a_chained_turn_counts_the_whole_context_like_chat_that_sends_it(self):
        id, messages = None, []
        for turn in range(4):
            messages.append({"role": "user", "content": "Turn %d" % turn})
            answer = self.request("POST", "/v1/responses", dict(
                RESPONSE, input="Turn %d" % turn, previous_response_id=id)).json()
            self.assertEqual(answer["usage"]["input_tokens"],
                             self.chat(messages=messages)["usage"]["prompt_tokens"])
            id = answer["id"]
            messages.append({"role": "assistant", "content": response_said(answer)})

    def test_the_limit_cuts_both_in_their_own_words(self):
        chat, response = self.chat(max_tokens=16, ignore_eos=True), self.respond(max_output_tokens=16, ignore_eos=True)
        self.assertEqual((chat["choices"][0]["finish_reason"], response["status"]), ("length", "incomplete"))

    def test_both_refuse_the_same_sampling_values(self):
        for name, value in (("temperature", 3), ("top_p", -1), ("presence_penalty", 9), ("min_tokens", -1),
                            ("ignore_eos", "yes"), ("metadata", {"a": 1}), ("service_tier", "x"), ("stream", 1)):
            with self.subTest(field=name):
                chat = self.request("POST", "/v1/chat/completions", dict(CHAT, **{name: value}))
                response = self.request("POST", "/v1/responses", dict(RESPONSE, **{name: value}))
                self.assertEqual((chat.status, chat.error["code"], chat.error["param"]),
                                 (response.status, response.error["code"], response.error["param"]))
                self.assertEqual(chat.status, 400)

    def test_a_large_body_counts_as_a_small_one(self):
        text = "lorem ipsum dolor " * 3000
        self.assertGreater(len(text), self.server.settings.inline_body_bytes)
        large = self.respond(input=text)["usage"]["input_tokens"]
        self.assertEqual(large, self.chat(messages=[{"role": "user", "content": text}])["usage"]["prompt_tokens"])
        self.assertEqual(large - self.respond(input="")["usage"]["input_tokens"], TOKENIZER.count(text))


@every_form
class ConcurrencyTest(ParityLive):

    def test_16_clients_at_once_get_the_answers_that_one_gets(self):
        kinds = [("chat", {}), ("respond", {}), ("chat", {"max_tokens": 7}), ("respond", {"store": False})]

        def ask(number, client):
            name, change = kinds[number % 4]
            whole = getattr(self, name)(number % 8 > 3, client, **change)
            return chat_said(whole) if name == "chat" else response_said(whole)
        client = self.connect()
        expected = Counter(ask(number, client) for number in range(128))
        self.restart()
        found, failures = [], []

        def work(first, client):
            try:
                for number in range(first, 128, 16):
                    found.append(ask(number, client))
            except Exception as exc:
                failures.append(exc)
        threads = [threading.Thread(target=work, args=(first, self.connect())) for first in range(16)]
        for thread in threads:
            thread.start()
        for thread in threads:
            thread.join(3 * TIMEOUT_S)
            self.assertFalse(thread.is_alive())
        self.assertEqual(failures, [])
        self.assertEqual(Counter(found), expected)
        self.assertGreater(len(expected), 100)


class FixedIdsTest(ParityLive):

    def test_with_fixed_ids_and_clock_two_servers_send_the_same_bytes(self):
        seen = []
        for _ in range(2):
            self.restart(fixed_ids=True)
            seen.append([self.request("POST", path, dict(body, stream=streamed)).body
                         for path, body in (("/v1/chat/completions", CHAT), ("/v1/responses", RESPONSE))
                         for streamed in (False, True)])
        self.assertEqual(seen[0], seen[1])
        self.assertTrue(json.loads(seen[0][0]))


if __name__ == "__main__":
    unittest.main()
