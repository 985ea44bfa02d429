"""Rate limits: buckets that fill steadily, what they say of themselves, and 429s that are right about when to come back."""
import threading
import unittest

from api_common import ApiError
from rate_limits import Bucket, RateLimits, duration_text
from tests.support import CHAT, RESPONSE, FakeClock, GatedBackend, LiveServerTest, ShiftedClock, every_form, wait_until
from tests.websocket_client import WebSocketClient


class DurationTest(unittest.TestCase):

    def test_as_the_service_writes_them(self):
        for seconds, text in ((0, "0s"), (-1, "0s"), (0.0001, "1ms"), (0.02, "20ms"), (0.9999, "1s"), (1, "1s"), (1.5, "1.5s"),
                              (59.9, "59.9s"), (60, "1m0s"), (360, "6m0s"), (61.25, "1m1.25s"), (3600, "1h0m0s"),
                              (7325, "2h2m5s")):
            self.assertEqual(duration_text(seconds), text, seconds)


class BucketTest(unittest.TestCase):

    def test_it_fills_at_its_rate_and_no_further(self):
        bucket = Bucket(60, 60.0, 0.0)
        bucket.take(10, 0.0)
        self.assertEqual((bucket.level(4.0), bucket.level(100.0)), (54.0, 60.0))

    def test_waiting_for_an_amount_and_for_all(self):
        bucket = Bucket(60, 60.0, 0.0)
        bucket.take(60, 0.0)
        self.assertEqual((bucket.wait_s(5, 1.0), bucket.reset_s(1.0), bucket.wait_s(1, 2.0)), (4.0, 59.0, 0.0))


class RateLimitsTest(unittest.TestCase):

    def setUp(self):
        self.clock = FakeClock()
        self.limits = RateLimits(3, 1000, self.clock.monotonic)

    def refused(self, call, *args):
        with self.assertRaises(ApiError) as caught:
            call(*args)
        return caught.exception

    def test_the_next_request_is_taken_when_the_refusal_said(self):
        for _ in range(3):
            self.limits.take_request("a")
        error = self.refused(self.limits.take_request, "a")
        self.assertEqual((error.status, error.code, error.type), (429, "rate_limit_exceeded", "requests"))
        self.assertEqual(dict(error.headers), {"retry-after": 20, "retry-after-ms": 20000})
        self.assertIn("Please try again in 20s.", error.message)
        self.clock.advance(19.99)
        self.refused(self.limits.take_request, "a")
        self.clock.advance(0.02)
        self.limits.take_request("a")

    def test_clients_have_buckets_of_their_own(self):
        for _ in range(3):
            self.limits.take_request("a")
        self.limits.take_request("b")
        self.assertIn(("x-ratelimit-remaining-requests", 2), self.limits.headers("b"))

    def test_tokens_are_reserved_and_what_was_not_used_is_given_back(self):
        reservation = self.limits.reserve("a", 900)
        self.assertIn(("x-ratelimit-remaining-tokens", 100), self.limits.headers("a"))
        error = self.refused(self.limits.reserve, "a", 400)
        self.assertEqual((error.type, dict(error.headers)["retry-after-ms"]), ("tokens", 18000))
        self.assertIn("limit 1000, used 900, requested 400", error.message)
        reservation.settle(50)
        reservation.settle(50)
        self.assertIn(("x-ratelimit-remaining-tokens", 950), self.limits.headers("a"))

    def test_more_than_a_minute_has_is_never_to_be_retried(self):
        error = self.refused(self.limits.reserve, "a", 1001)
        self.assertEqual((error.status, error.headers), (429, [("x-should-retry", "false")]))

    def test_headers_count_down_to_a_full_bucket(self):
        self.limits.take_request("a")
        self.limits.reserve("a", 500)
        self.assertEqual(dict(self.limits.headers("a")), {
            "x-ratelimit-limit-requests": 3, "x-ratelimit-remaining-requests": 2, "x-ratelimit-reset-requests": "20s",
            "x-ratelimit-limit-tokens": 1000, "x-ratelimit-remaining-tokens": 500, "x-ratelimit-reset-tokens": "30s"})
        self.clock.advance(19.98)
        self.assertEqual(dict(self.limits.headers("a"))["x-ratelimit-reset-requests"], "20ms")

    def test_a_scaled_minute_is_shorter(self):
        limits = RateLimits(1, 0, self.clock.monotonic, 0.01)
        limits.take_request("a")
        self.assertEqual(dict(self.refused(limits.take_request, "a").headers), {"retry-after": 1, "retry-after-ms": 600})

    def test_without_a_limit_there_is_none(self):
        limits = RateLimits(0, 10, self.clock.monotonic)
        for _ in range(100):
            limits.take_request("a")
        self.assertEqual([name for name, _ in limits.headers("a")], [
            "x-ratelimit-limit-tokens", "x-ratelimit-remaining-tokens", "x-ratelimit-reset-tokens"])

    def test_threads_get_no_more_than_there_is(self):
        limits, taken = RateLimits(50, 0, self.clock.monotonic), []

        def run():
            for _ in range(30):
                try:
                    limits.take_request("a")
                    taken.append(1)
                except ApiError:
                    continue
        threads = [threading.Thread(target=run) for _ in range(4)]
        for thread in threads:
            thread.start()
        for thread in threads:
            thread.join(10)
        self.assertEqual(len(taken), 50)


@every_form
class LimitsLiveTest(LiveServerTest):
    settings = {"output_tokens": 4, "requests_per_minute": 2, "tokens_per_minute": 10000}

    def test_every_answer_of_a_generating_path_tells_how_much_is_left(self):
        self.start_server(requests_per_minute=10)
        for path, body, status in (("/v1/chat/completions", CHAT, 200), ("/v1/chat/completions", dict(CHAT, stream=True), 200),
                                   ("/v1/responses", RESPONSE, 200), ("/v1/responses", {"model": 3}, 400),
                                   ("/v1/completions", {"model": "m", "prompt": ["a", "b"]}, 200),
                                   ("/v1/embeddings", {"model": "m", "input": "a"}, 200)):
            answer = self.request("POST", path, body)
            self.assertEqual((answer.status, answer.headers["x-ratelimit-limit-requests"]), (status, "10"))
            self.assertTrue(answer.headers["x-ratelimit-reset-tokens"].endswith("s"))
        self.assertNotIn("x-ratelimit-limit-requests", self.request("GET", "/v1/models").headers)

    def test_too_many_are_429_until_the_bucket_has_filled(self):
        clock = ShiftedClock()
        self.start_server(clock=clock)
        answers = [self.request("POST", "/v1/responses", RESPONSE) for _ in range(3)]
        self.assertEqual([answer.status for answer in answers], [200, 200, 429])
        refused = answers[2]
        self.assertEqual((refused.error["code"], refused.headers["x-ratelimit-remaining-requests"]), ("rate_limit_exceeded", "0"))
        self.assertTrue(0 < int(refused.headers["retry-after"]) <= 30)
        clock.advance(int(refused.headers["retry-after-ms"]) / 1000)
        self.assertEqual(self.request("POST", "/v1/responses", RESPONSE).status, 200)

    def test_each_key_has_its_own(self):
        self.start_server(api_key=("a", "b"))
        statuses = [self.request("POST", "/v1/responses", RESPONSE, {"Authorization": "Bearer " + key}).status
                    for key in "aaabb"]
        self.assertEqual(statuses, [200, 200, 429, 200, 200])

    def test_what_was_reserved_is_settled_at_the_end(self):
        self.start_server(requests_per_minute=0, tokens_per_minute=100000, time_scale=1000.0)   # nothing flows in meanwhile
        for body in (dict(CHAT, max_tokens=5000), dict(CHAT, max_tokens=5000, stream=True)):
            self.server.limits.clear()
            answer = self.request("POST", "/v1/chat/completions", body)
            self.assertEqual(answer.headers["x-ratelimit-remaining-tokens"], "94992")
            wait_until(lambda: self.server.limits.headers("127.0.0.1")[1][1] > 99900, "the settling")

    def test_a_client_that_leaves_is_given_back_what_it_did_not_use(self):
        backend = GatedBackend()
        self.start_server(backend, requests_per_minute=0, tokens_per_minute=1000)
        client = self.connect()
        client.send_request("POST", "/v1/chat/completions", dict(CHAT, max_tokens=900))
        backend.next()
        self.assertEqual(self.request("POST", "/v1/chat/completions", dict(CHAT, max_tokens=900)).status, 429)
        client.close()
        self.wait_for_count("disconnects", 1)
        wait_until(lambda: self.server.limits.headers("127.0.0.1")[1][1] > 910, "the settling")
        client = self.connect()
        client.send_request("POST", "/v1/chat/completions", dict(CHAT, max_tokens=900))
        self.assertIsNotNone(backend.next())

    def test_background_responses_are_counted_and_settled(self):
        self.start_server(requests_per_minute=0, tokens_per_minute=1000, time_scale=1000.0)
        answer = self.request("POST", "/v1/responses", dict(RESPONSE, background=True, max_output_tokens=900))
        self.assertLess(int(answer.headers["x-ratelimit-remaining-tokens"]), 1000)
        wait_until(lambda: self.server.limits.headers("127.0.0.1")[1][1] > 900, "the settling")


class SocketLimitsTest(LiveServerTest):
    settings = {"requests_per_minute": 1}

    def test_a_turn_over_the_limit_is_an_error_with_the_headers(self):
        client = WebSocketClient(self.address)
        self._clients.append(client)
        self.assertEqual(client.handshake().status, 101)
        client.create()
        self.assertEqual(client.read_turn()[-1]["type"], "response.completed")
        client.create()
        event = client.read_event()
        self.assertEqual((event["status"], event["error"]["code"]), (429, "rate_limit_exceeded"))
        self.assertIn("retry-after", event["error"]["headers"])


if __name__ == "__main__":
    unittest.main()
