"""Completions over the wire: a user's blocking backend, its faults, the commit of the status, leaving."""
import json
import threading
import unittest

from api_common import ApiError
from backends.contract import (Backend, Cancel, Failure, Finish, GenerationRequest, History, TextDelta, TextRun,
                               Usage)
from chat_api import ChatAssembler
from observe.metrics import Metrics
from transport.player import Splice
from runs import Completion
from tests.data.golden import DELTAS, make_run, object_of, read_chat_stream, read_response_stream, read_sse
from tests.support import (CHAT, RESPONSE, TIMEOUT_S, DeltaBackend, GatedBackend, LiveServerTest, every_form,
                           wait_until)

PATHS = {"/v1/chat/completions": CHAT, "/v1/responses": RESPONSE}
LIMITED = ApiError(429, "Slow down.", type="requests", code="rate_limit_exceeded",
                   headers=[("retry-after", "7"), ("x-should-retry", "true")])


def timed(deltas):
    return [(0.0, delta) for delta in deltas]


class StepsTest(unittest.TestCase):
    """A planned backend's steps, without a player."""

    def steps(self, deltas, keep=None):
        self.metrics = Metrics()
        assembler = ChatAssembler("0" * 32, 1, "m")
        request = GenerationRequest("m", History(1, b"", "", list))
        self.errors = []
        completion = Completion(request, DeltaBackend(deltas), assembler, self.metrics,
                                lambda: self.errors.append(1), keep=keep)
        made = []
        for due, step in completion.iter_stream(completion.planned(), False):
            if step.__class__ is Splice:
                made += step.steps
            else:
                made.append((due, step if isinstance(step, bytes) else step.run()))
        return made

    def test_due_times_are_the_backends(self):
        run = TextRun(["a", "b", "c"], [b"a", b"b", b"c"], [1.0, 2.0, 3.5, 9.0])
        steps = self.steps([(1.0, run), (4.0, Finish()), (5.0, Usage(1, 3))])
        self.assertEqual([due for due, frame in steps if b"content" in frame], [1.0, 2.0, 3.5])
        self.assertEqual([due for due, frame in steps if b"[DONE]" in frame], [5.0])

    def test_a_due_time_of_none_is_that_of_the_delta_before(self):
        steps = self.steps([(2.0, TextDelta("a")), (None, TextDelta("b")), (None, Finish()), (None, Usage(1, 1))])
        self.assertEqual({due for due, frame in steps if frame}, {2.0})

    def test_a_run_that_is_due_at_once_is_one_step(self):
        steps = self.steps(timed([make_run(*"abcdef"), Finish(), Usage(1, 6)]))
        self.assertEqual([frame.count(b"data: ") for due, frame in steps if b'"a"' in frame], [7])

    def test_an_answer_is_kept_before_its_end_is_made(self):
        kept = []
        steps = self.steps(timed(DELTAS["deltas"]), keep=lambda frames: kept.append(self.metrics.get("completions")))
        self.assertEqual(kept, [0])
        self.assertIn(b"[DONE]", steps[-1][1])
        self.assertEqual((self.metrics.get("completions"), self.metrics.get("failures")), (1, 0))

    def test_a_fault_of_keep_takes_the_place_of_the_end(self):
        def keep(frames):
            raise RuntimeError("secret")
        data = b"".join(frame for _, frame in self.steps(timed(DELTAS["deltas"]), keep))
        self.assertEqual(read_sse(data)[-1][1]["error"]["type"], "server_error")
        self.assertNotIn(b"secret", data)
        self.assertEqual((len(self.errors), self.metrics.get("failures"), self.metrics.get("completions")), (1, 1, 0))

    def test_a_plain_answers_fault_is_known_as_a_streams_is(self):
        def keep(frames):
            raise ApiError(503, "no room")
        completion = Completion(GenerationRequest("m", History(1, b"", "", list)), DeltaBackend(timed(DELTAS["deltas"])),
                                ChatAssembler("0" * 32, 1, "m"), Metrics(), self.fail, keep=keep)
        step = completion.plain_step(completion.planned(), lambda status, body: b"%d" % status)[1]
        self.assertEqual((step.run(), completion.fault), (b"503", "no room"))
        completion.fault = None
        self.assertEqual((step.failed(ApiError(503, "no disk")), completion.fault), (b"503", "no disk"))

    def test_an_exception_of_the_backend_is_logged_once_and_ends_the_stream(self):
        data = b"".join(frame for _, frame in self.steps([(0.0, TextDelta("a")), RuntimeError("secret")]))
        self.assertEqual(read_sse(data)[-1][1]["error"]["type"], "server_error")
        self.assertNotIn(b"secret", data)
        self.assertEqual(len(self.errors), 1)


    def test_what_was_cancelled_is_neither_kept_nor_ended(self):
        kept = []
        for streamed in (False, True):
            with self.subTest(streamed=streamed):
                metrics = Metrics()
                completion = Completion(GenerationRequest("m", History(1, b"", "", list)),
                                        DeltaBackend(timed(DELTAS["deltas"])), ChatAssembler("0" * 32, 1, "m"),
                                        metrics, kept.append, keep=lambda frames: kept.append(1))
                if streamed:
                    steps = [step for _, step in completion.iter_stream(completion.planned(), False)]
                else:
                    steps = [completion.plain_step(completion.planned(), lambda status, body: body)[1]]
                self.assertFalse(completion.abandon(), "no callback waits")
                self.assertEqual((steps[-1].run(), kept), (b"", []))
                self.assertEqual((metrics.get("disconnects"), metrics.get("completions")), (1, 0))


class CancelTest(unittest.TestCase):

    def test_a_callback_runs_once_at_the_cancel_or_at_once_after_it(self):
        cancel, calls = Cancel(), []
        cancel.on_cancel(lambda: calls.append("before"))
        self.assertEqual((calls, cancel.is_set()), ([], False))
        cancel.set()
        cancel.set()
        cancel.on_cancel(lambda: calls.append("after"))
        self.assertEqual((calls, cancel.is_set()), (["before", "after"], True))

    def test_wait_ends_with_the_cancel(self):
        cancel, waited = Cancel(), []
        thread = threading.Thread(target=lambda: waited.append(cancel.wait(TIMEOUT_S)))
        thread.start()
        cancel.set()
        thread.join(TIMEOUT_S)
        self.assertEqual((thread.is_alive(), waited), (False, [True]))

    def test_wait_ends_with_its_time(self):
        self.assertFalse(Cancel().wait(0.001))

    def test_wait_after_the_cancel_returns_at_once(self):
        cancel = Cancel()
        cancel.set()
        self.assertTrue(cancel.wait(None))


class RunsLive(LiveServerTest):

    def assert_error(self, answer, error):
        self.assertEqual((answer.status, answer.error), (error.status, error.body()))
        self.assertEqual(answer.headers["content-type"], "application/json")

    def last_error(self, path, body):
        """The error's inner object at the end of a stream of either API."""
        if path == "/v1/responses":
            return read_response_stream(self, body)[-2]["error"]
        return read_sse(body)[-1][1]["error"]


@every_form
class DeltaListsTest(RunsLive):
    """The same golden lists, from a backend that waits and one that does not, give the same answers."""

    def test_all_golden_lists_streamed_and_plain(self):
        backend = DeltaBackend([])
        self.start_server(backend=backend)
        client = self.connect()
        for name, deltas in DELTAS.items():
            for blocking in (False, True):
                backend.deltas = timed(deltas)
                self.server.handler_class.backend = self.server.backend = backend
                backend.blocking = blocking
                with self.subTest(deltas=name, blocking=blocking):
                    plain = client.request("POST", "/v1/chat/completions", CHAT).json()
                    answer = client.request("POST", "/v1/chat/completions", dict(CHAT, stream=True, stream_options={
                        "include_usage": True}))
                    _, whole = read_chat_stream(self, answer.body, True)
                    expected = object_of(ChatAssembler("0" * 32, 1, "mock-model"), deltas)
                    for each in (plain, whole, expected):
                        del each["id"], each["created"]
                    self.assertEqual((plain, whole), (expected, expected))
                    plain = client.request("POST", "/v1/responses", RESPONSE).json()
                    answer = client.request("POST", "/v1/responses", dict(RESPONSE, stream=True))
                    whole = read_response_stream(self, answer.body)[-1]["response"]
                    self.assertEqual(len(plain["output"]), len(whole["output"]))
                    for each in (plain, whole):
                        for key in ("id", "created_at", "completed_at"):
                            each.pop(key)
                        for item in each["output"]:
                            del item["id"]
                    self.assertEqual(plain, whole)


@every_form
class FaultsTest(RunsLive):

    def check(self, deltas, blocking, check_plain, check_stream, logged=0):
        backend = DeltaBackend(deltas, blocking)
        self.start_server(backend=backend)
        for path, body in PATHS.items():
            with self.subTest(path=path):
                client = self.connect()
                check_plain(client.request("POST", path, body))
                check_stream(path, client.request("POST", path, dict(body, stream=True)))
                self.assertEqual(client.request("GET", "/health").status, 200, "the connection goes on")
        self.assertEqual(len(self.take_errors()), logged)

    def passes_as_status(self, answer):
        self.assert_error(answer, LIMITED)
        self.assertEqual((answer.headers["retry-after"], answer.headers["x-should-retry"]), ("7", "true"))

    def is_a_500(self, answer):
        self.assertEqual((answer.status, answer.error["type"], answer.error["code"]), (500, "server_error", None))
        self.assertNotIn("secret", answer.text)

    def ends_in_an_error(self, path, answer):
        self.assertEqual(answer.status, 200)
        error = self.last_error(path, answer.body)
        self.assertEqual(error["type"], "server_error")
        self.assertNotIn("secret", answer.text)

    def test_a_refusal_before_the_first_delta_passes_as_a_status_with_its_headers(self):
        self.check([LIMITED], True, self.passes_as_status, lambda path, answer: self.passes_as_status(answer))

    def test_a_failure_as_first_delta_passes_as_a_status_with_its_headers(self):
        self.check([(0.0, Failure(LIMITED))], True, self.passes_as_status,
                   lambda path, answer: self.passes_as_status(answer))

    def test_an_exception_before_the_first_delta_is_a_500_streamed_as_well(self):
        self.check([RuntimeError("secret")], True, self.is_a_500, lambda path, answer: self.is_a_500(answer), 4)

    def test_an_exception_after_the_first_delta_ends_the_stream(self):
        self.check([(0.0, TextDelta("a")), RuntimeError("secret")], True, self.is_a_500, self.ends_in_an_error, 4)

    def test_an_exception_of_a_planned_backend_ends_the_stream(self):
        self.check([(0.0, TextDelta("a")), RuntimeError("secret")], False, self.is_a_500, self.ends_in_an_error, 4)

    def test_a_failure_after_the_first_delta_ends_the_stream(self):
        for_plain = self.passes_as_status

        def stream(path, answer):
            self.assertEqual(answer.status, 200)
            self.assertEqual(self.last_error(path, answer.body)["code"], "rate_limit_exceeded")
        self.check([(0.0, TextDelta("a")), (0.0, Failure(LIMITED)), (0.0, TextDelta("never"))], True, for_plain, stream)

    def test_a_failure_of_a_planned_backend_ends_the_stream(self):
        def stream(path, answer):
            self.assertEqual(self.last_error(path, answer.body)["code"], "rate_limit_exceeded")
            self.assertNotIn("never", answer.text)
        self.check([(0.0, TextDelta("a")), (0.0, Failure(LIMITED)), (0.0, TextDelta("never"))], False,
                   self.passes_as_status, stream)

    def test_what_is_no_delta_is_logged_and_a_500(self):
        self.check([(0.0, "text")], True, self.is_a_500, lambda path, answer: None, 4)


class RefusingBackend(Backend):
    """Refuses when it is asked, before it gives anything to iterate over."""

    def __init__(self, blocking):
        self.blocking = blocking

    def generate(self, request, cancel):
        raise LIMITED


@every_form
class RefusalTest(RunsLive):

    def check(self, blocking):
        self.start_server(backend=RefusingBackend(blocking))
        for path, body in PATHS.items():
            for streamed in (False, True):
                with self.subTest(path=path, streamed=streamed):
                    answer = self.request("POST", path, dict(body, stream=streamed))
                    self.assert_error(answer, LIMITED)
                    self.assertEqual(answer.headers["retry-after"], "7")

    def test_a_planned_backends_refusal_is_a_status(self):
        self.check(False)

    def test_a_blocking_backends_refusal_is_a_status(self):
        self.check(True)


@every_form
class GatedTest(RunsLive):

    def setUp(self):
        RunsLive.setUp(self)
        self.backend = GatedBackend()

    def open_stream(self, path, **settings):
        self.start_server(backend=self.backend, **settings)
        client = self.connect()
        client.send_request("POST", path, dict(PATHS[path], stream=True))
        return client, self.backend.next()

    def test_the_status_waits_for_the_first_delta_and_heartbeats_for_the_status(self):
        client, generation = self.open_stream("/v1/chat/completions", heartbeat_s=0.01, commit_grace_s=60)
        self.assertTrue(client.is_quiet(0.1), "nothing, no heartbeat either, before the commit")
        generation.say("a")
        answer = client.read_head()
        self.assertEqual(answer.status, 200)
        self.assertEqual(client.read_frame(answer).data["choices"][0]["delta"]["role"], "assistant")
        self.assertEqual(client.read_frame(answer).data["choices"][0]["delta"]["content"], "a")
        self.assertEqual(client.read_frame(answer).name, ":", "a heartbeat while nothing is due")
        generation.finish()
        self.assertEqual(client.read_rest(answer)[-1].data, "[DONE]")

    def test_the_grace_commits_the_status_and_heartbeats_begin(self):
        client, generation = self.open_stream("/v1/responses", heartbeat_s=0.01, commit_grace_s=0.05)
        answer = client.read_head()
        self.assertEqual(answer.status, 200)
        self.assertEqual([client.read_frame(answer).name for _ in range(2)],
                         ["response.created", "response.in_progress"])
        self.assertEqual(client.read_frame(answer).name, ":")
        generation.fail(LIMITED)
        events = client.read_rest(answer)
        self.assertEqual([event.name for event in events], ["error", "response.failed", None])
        self.assertEqual(events[0].data["code"], "rate_limit_exceeded")

    def test_deltas_go_out_as_they_come(self):
        client, generation = self.open_stream("/v1/responses")
        generation.say("a")
        answer = client.read_head()
        seen = [client.read_frame(answer).name for _ in range(5)]
        self.assertEqual(seen[-1], "response.output_text.delta")
        generation.say("b")
        self.assertEqual(client.read_frame(answer).data["delta"], "b")
        generation.finish()
        self.assertEqual(client.read_rest(answer)[-2].name, "response.completed")

    def test_a_blocking_backend_never_runs_on_the_loop_or_the_pacer(self):
        client, generation = self.open_stream("/v1/chat/completions")
        generation.finish()
        client.read_rest(client.read_head())
        self.assertNotIn(generation.thread_name, ("serve", "pacer"))

    def test_other_requests_are_answered_meanwhile(self):
        client, generation = self.open_stream("/v1/chat/completions")
        self.assertEqual(self.request("GET", "/v1/models").status, 200)
        generation.finish()
        client.read_rest(client.read_head())

    def test_a_client_that_leaves_cancels_and_nothing_is_stored(self):
        client, generation = self.open_stream("/v1/responses")
        generation.say("a")
        client.read_head()
        client.close()
        self.assertTrue(generation.cancelled.wait(TIMEOUT_S))
        self.assertTrue(generation.over.wait(TIMEOUT_S))
        self.wait_for_count("disconnects", 1)
        self.assertEqual((self.server.store.stats()["responses"], self.count("completions")), (0, 0))

    def test_a_client_that_leaves_a_plain_answer_cancels_it(self):
        self.start_server(backend=self.backend)
        client = self.connect()
        client.send_request("POST", "/v1/responses", RESPONSE)
        generation = self.backend.next()
        client.close()
        self.assertTrue(generation.cancelled.wait(TIMEOUT_S))
        self.wait_for_count("disconnects", 1)
        self.assertEqual(self.server.store.stats()["responses"], 0)

    def test_five_requests_at_a_time_do_not_mix(self):
        self.start_server(backend=self.backend)
        waiting = []
        for number in range(5):
            client = self.connect()
            path = list(PATHS)[number % 2]
            client.send_request("POST", path, dict(PATHS[path], stream=number < 3, model="m%d" % number))
            waiting.append((number, client, self.backend.next()))
        for _, _, generation in waiting:
            generation.say("to ")
        for _, _, generation in reversed(waiting):
            generation.say(generation.request.model)
        for number, client, generation in waiting:
            generation.finish()
            body = client.read_answer().body
            text = "".join(part for part in self.texts(body))
            with self.subTest(number=number):
                self.assertEqual(text, "to m%d" % number)

    def texts(self, body):
        """The text of an answer of either API and mode, in pieces."""
        for value in ([json.loads(body)] if body[:1] == b"{" else [value for _, value in read_sse(body)]):
            if value == "[DONE]":
                continue
            if value.get("object") == "chat.completion.chunk":
                for choice in value["choices"]:
                    yield choice["delta"].get("content") or ""
            elif value.get("object") == "chat.completion":
                yield value["choices"][0]["message"]["content"]
            elif value.get("object") == "response":
                yield value["output"][0]["content"][0]["text"]
            elif value["type"] == "response.output_text.delta":
                yield value["delta"]


class RunBackend(Backend):
    """A user's blocking backend that says TextRuns."""

    def generate(self, request, cancel):
        yield 0.0, make_run("Hello", " world")
        yield None, make_run(" again")
        yield None, Finish("stop")
        yield None, Usage(1, 3)


@every_form
class PushedRunTest(RunsLive):

    def make_backend(self):
        return RunBackend()

    def test_runs_of_a_blocking_backend_are_streamed_and_plain_alike(self):
        plain = self.request("POST", "/v1/chat/completions", CHAT).json()
        _, whole = read_chat_stream(self, self.request("POST", "/v1/chat/completions", dict(CHAT, stream=True)).body)
        self.assertEqual(plain["choices"], whole["choices"])
        self.assertEqual(plain["choices"][0]["message"]["content"], "Hello world again")
        response = read_response_stream(self, self.request("POST", "/v1/responses", dict(
            RESPONSE, stream=True)).body)[-1]["response"]
        self.assertEqual(response["output"][0]["content"][0]["text"], "Hello world again")

    def test_counters_count_each_answer_once(self):
        self.request("POST", "/v1/chat/completions", CHAT)
        self.request("POST", "/v1/responses", dict(RESPONSE, stream=True))
        wait_until(lambda: self.count("completions") == 2, "both to be counted")
        self.assertEqual((self.count("completion_tokens"), self.count("failures")), (6, 0))


if __name__ == "__main__":
    unittest.main()
