"""Faults as they are said: one reader for texts and objects, which requests they befall, and what errors they are."""
import threading
import unittest

from faults import (FAULT_KINDS, Fault, FaultTarget, StandingFaults, fault_error, read_faults, read_gates, retry_headers)
from settings import Settings, read_environment

CHAT = b'{"model":"m","stream":true,"messages":[]}'


def refusal(value, standing=False):
    """The message of read_faults' ValueError."""
    try:
        found = read_faults(value, standing)
    except ValueError as exc:
        return str(exc)
    raise AssertionError("%r was taken as %r" % (value, found))


class ReadingTest(unittest.TestCase):

    def test_text_and_object_are_the_same_fault(self):
        text, = read_faults("cut:event=4,where=frame,how=rst")
        value, = read_faults({"kind": "cut", "event": 4, "where": "frame", "how": "rst"})
        self.assertEqual((text.kind, text.values, text.text), (value.kind, value.values, value.text))

    def test_numbers_and_flags_are_typed_in_both_forms(self):
        for said in ("stall:ms=20,heartbeats=false", {"kind": "stall", "ms": 20, "heartbeats": False}):
            fault, = read_faults(said)
            self.assertEqual((fault["ms"], fault["heartbeats"], fault["event"]), (20.0, False, 3))

    def test_every_kind_reads_back_from_its_own_text(self):
        for kind, known in FAULT_KINDS.items():
            given = {"kind": kind}
            given.update({key: "x" for key in known.needs})
            fault, = read_faults(given)
            again, = read_faults(fault.text)
            self.assertEqual((again.kind, again.values), (kind, fault.values))

    def test_several_in_a_text_and_in_a_list(self):
        kinds = [fault.kind for fault in read_faults(["slow_headers:ms=5; close", {"kind": "sse"}])]
        self.assertEqual(kinds, ["slow_headers", "close", "sse"])

    def test_faults_that_were_read_are_taken_as_they_are(self):
        fault, = read_faults("close")
        self.assertIs(read_faults([fault])[0], fault)

    def test_a_quoted_value_may_have_commas_and_semicolons(self):
        fault, = read_faults('error:message="slow, please; later",status=429')
        self.assertEqual((fault["message"], fault["status"]), ("slow, please; later", 429))
        self.assertEqual(read_faults(fault.text)[0].values, fault.values)

    def test_none_is_no_fault(self):
        self.assertEqual(read_faults(None), [])

    def test_a_mistake_is_named(self):
        cases = (
            ("", "a fault is expected"), ("boom", "unknown fault 'boom'; the kinds are error, slow_headers"),
            ("cut:evnt=3", "has no 'evnt'; it has event, type, where, how, ms"), ("store_full:ms=1", "it has no keys"),
            ("cut:event=0", "'event' must be an integer of at least 1, not '0'"), ("cut:event=x", "not 'x'"),
            ({"kind": "cut", "event": True}, "an integer"), ({"kind": "cut", "event": 1.5}, "an integer"),
            ("cut:where=there", "one of headers, before, frame, character"), ("cut:event", "key=value"),
            ("cut:event=3,event=4", "says 'event' twice"), ("stall:ms=-1", "a number from 0 to"),
            ("stall:ms=nan", "a number"), ("stall:heartbeats=maybe", "true or false"),
            ("error:status=199", "an integer of 200 to 599"), ("wrong_length:bytes=0", "other than 0"),
            ("without", "needs 'field'"), ("gate", "needs 'name'"), ("gate:name=a b", "letters, digits"),
            ("error:rate=0.5", "only faults that stand at the server"), ({"event": 3}, "a fault needs a 'kind'"),
            (3, "a text or an object"), ([["cut"], 3], "a text or an object"), ("!", "kind:key=value"),
            (["close"] * 21, "at most 20"), ("cut:event=--5", "an integer of at least 1, not '--5'"),
            ("cut:event=\u00b2", "an integer of at least 1"), (";" * 100000, "at most 12000"))
        for value, wanted in cases:
            with self.subTest(value=value):
                self.assertIn(wanted, refusal(value))

    def test_what_a_client_says_is_repeated_short_and_on_one_line(self):
        self.assertLess(len(refusal({"kind": "cut", "event": "x" * 5000})), 300)
        self.assertNotIn("\n", refusal("a\nb:c=d"))

    def test_standing_faults_say_which_requests_they_befall(self):
        fault, = read_faults("cut:event=3,rate=0.5,times=2,after=1,endpoint=chat,model=m,stream=true", standing=True)
        self.assertEqual(fault.choice, {"rate": 0.5, "times": 2, "after": 1, "endpoint": "chat", "model": "m",
                                        "stream": True})
        self.assertIn("'rate' must be a number from 0 to 1", refusal("cut:rate=2", True))
        self.assertIn("'endpoint' must be one of chat", refusal("cut:endpoint=here", True))

    def test_a_fault_said_elsewhere_gets_a_choice_of_requests(self):
        first, second = read_faults({"fault": ["cut:event=2", "close"], "times": 3, "endpoint": "chat"}, standing=True)
        self.assertEqual((first["event"], first.choice["times"], second.choice["endpoint"]), (2, 3, "chat"))


class GatesReadingTest(unittest.TestCase):

    def test_name_and_event(self):
        found = read_gates("stop@3, go") + read_gates({"name": "x"}) + read_gates([{"name": "y", "event": 2}])
        self.assertEqual([(gate.kind, gate["name"], gate["event"]) for gate in found],
                         [("gate", "stop", 3), ("gate", "go", 1), ("gate", "x", 1), ("gate", "y", 2)])

    def test_a_gate_may_stand_among_faults(self):
        for said in ("gate:stop@3", "gate:name=stop,event=3", {"gate": "stop@3"}, {"kind": "gate", "name": "stop"}):
            gate, = read_faults(said)
            self.assertEqual((gate["name"], gate["event"]), ("stop", 3))

    def test_a_mistake_is_named(self):
        for said in ("a b", "a@", "a@x", "@3", "x" * 65, 3, {"name": "a/b"}, {"name": "a", "wait": 1}):
            with self.subTest(said=said), self.assertRaises(ValueError):
                read_gates(said)


class ErrorTest(unittest.TestCase):

    def error(self, said):
        return fault_error(read_faults(said)[0])

    def test_each_status_has_its_type_and_code(self):
        for status, kind, code in ((400, "invalid_request_error", None), (401, "invalid_request_error", "invalid_api_key"),
                                   (404, "invalid_request_error", "model_not_found"), (418, "invalid_request_error", None),
                                   (429, "requests", "rate_limit_exceeded"), (500, "server_error", None),
                                   (503, "server_error", "server_overloaded"), (599, "server_error", None)):
            error = self.error("error:status=%d" % status)
            self.assertEqual((error.status, error.type, error.code), (status, kind, code))

    def test_a_used_up_quota_is_not_to_be_retried_after_a_time(self):
        error = self.error("error:status=429,code=insufficient_quota")
        self.assertEqual((error.type, error.code, error.headers), ("insufficient_quota", "insufficient_quota", []))

    def test_retry_after_is_whole_seconds_up_and_milliseconds(self):
        error = self.error("error:status=503,retry_after_s=0.25,should_retry=false")
        self.assertEqual(dict(error.headers), {"retry-after": 1, "retry-after-ms": 250, "x-should-retry": "false"})
        self.assertEqual(dict(retry_headers(2.0)), {"retry-after": 2, "retry-after-ms": 2000})

    def test_message_code_type_and_param_may_be_said(self):
        error = self.error('error:status=422,message="No, no",code=c,type=t,param=p')
        self.assertEqual(error.body(), {"message": "No, no", "type": "t", "param": "p", "code": "c"})

    def test_a_gateways_body_is_no_envelope(self):
        error = self.error("error:status=502,body=html")
        self.assertEqual(error.media, "text/html")
        self.assertIn(b"<h1>502</h1>", error.envelope())
        self.assertEqual(self.error("error:body=empty").envelope(), b"")


class StandingTest(unittest.TestCase):

    def take(self, faults, name="chat_create", data=CHAT):
        return [fault.text for fault in faults.take(FaultTarget(name, data))]

    def test_times_and_after_count_requests(self):
        faults = StandingFaults()
        faults.add("error:times=2,after=1")
        self.assertEqual([len(self.take(faults)) for _ in range(5)], [0, 1, 1, 0, 0])

    def test_filters(self):
        faults = StandingFaults()
        for said, befalls in (("close:endpoint=chat", True), ("close:endpoint=responses", False), ("close:endpoint=any", True),
                              ("close:model=m", True), ("close:model=n", False), ("close:stream=true", True),
                              ("close:stream=false", False)):
            with self.subTest(said=said):
                faults.clear()
                faults.add(said)
                self.assertEqual(bool(self.take(faults)), befalls)

    def test_without_an_endpoint_what_only_reads_is_spared(self):
        faults = StandingFaults(["close"])
        self.assertEqual([bool(self.take(faults, name)) for name in (
            "chat_create", "responses_create", "embeddings_create", "models_list", "responses_retrieve", "health_read")],
            [True, True, True, False, False, False])

    def test_a_fault_that_means_nothing_for_a_request_is_not_used_up(self):
        faults = StandingFaults()
        faults.add("missing:event=2,times=1")
        self.assertEqual(self.take(faults, data=b'{"model":"m"}'), [])
        self.assertEqual(self.take(faults), ["missing:event=2,times=1"])

    def test_what_means_nothing_for_which_request(self):
        for said, name, data, misses in (
                ("missing", "chat_create", b"{}", True), ("missing", "chat_create", CHAT, False),
                ("wrong_length", "chat_create", CHAT, True), ("failed", "embeddings_create", b"{}", True),
                ("lost_previous", "responses_create", b"{}", True),
                ("lost_previous", "responses_create", b'{"previous_response_id":"resp_1"}', False),
                ("store_full", "responses_create", b'{"store":false}', True), ("store_full", "responses_create", b"{}", False),
                ("store_full", "chat_create", b"{}", True), ("compaction", "responses_create", b"{}", True),
                ("compaction", "responses_compact", b"{}", False), ("cut", "models_list", b"", False),
                ("cut", "responses_connect", b"", True), ("error", "responses_connect", b"", False),
                ("cut", "chat_create", b"[not json", False)):
            with self.subTest(said=said, name=name, data=data):
                fault, = read_faults(said)
                self.assertEqual(FaultTarget(name, data).misses(fault) is not None, misses)

    def test_a_rate_is_drawn_by_seed_and_request_at_any_concurrency(self):
        bodies = [b'{"model":"%d"}' % number for number in range(300)]

        def befallen(order, seed):
            faults = StandingFaults(["error:rate=0.3"], seed)
            return {data for data in order if self.take(faults, data=data)}
        first = befallen(bodies, 1)
        self.assertEqual(befallen(bodies[::-1], 1), first)
        self.assertNotEqual(befallen(bodies, 2), first)
        self.assertTrue(60 < len(first) < 120, len(first))

    def test_a_retry_is_drawn_anew(self):
        faults = StandingFaults(["error:rate=0.5"])
        drawn = [len(self.take(faults)) for _ in range(64)]
        self.assertTrue(10 < sum(drawn) < 54, drawn)
        faults.clear()
        self.assertEqual([len(self.take(faults)) for _ in range(64)], drawn)

    def test_clear_leaves_those_of_the_flags(self):
        faults = StandingFaults(["close"])
        faults.add("sse")
        faults.clear()
        self.assertEqual([each.fault.kind for each in faults.all()], ["close"])
        self.assertTrue(faults.active)

    def test_one_is_removed_by_its_id(self):
        faults = StandingFaults()
        added, = faults.add("close")
        self.assertEqual((faults.remove(added.id), faults.remove(added.id), faults.active), (True, False, False))

    def test_threads_share_out_what_is_left(self):
        faults = StandingFaults()
        faults.add("close:times=50")
        taken = []
        threads = [threading.Thread(target=lambda: taken.extend(
            text for _ in range(30) for text in self.take(faults))) for _ in range(4)]
        for thread in threads:
            thread.start()
        for thread in threads:
            thread.join(10)
        self.assertEqual(len(taken), 50)

    def test_report_says_what_stands(self):
        faults = StandingFaults()
        added, = faults.add("cut:event=2,times=3,endpoint=chat")
        self.take(faults)
        told = added.report()
        self.assertEqual((told["kind"], told["times_left"], told["matched"], told["done"], told["endpoint"]),
                         ("cut", 2, 1, 0, "chat"))
        self.assertIsInstance(added.fault, Fault)


class FlagsTest(unittest.TestCase):

    def test_a_bad_flag_is_one_line(self):
        with self.assertRaisesRegex(ValueError, r"\A--fault: unknown fault 'boom'"):
            Settings(fault=("boom",))

    def test_faults_in_the_environment_are_parted_by_semicolons(self):
        self.assertEqual(read_environment({"MOCKTURTLE_FAULT": "cut:event=3,how=rst; close"}),
                         {"fault": ("cut:event=3,how=rst", "close")})

    def test_bounds(self):
        for name, value in (("gate_timeout_s", 0), ("journal", -1), ("requests_per_minute", -1), ("tokens_per_minute", -1),
                            ("heartbeat_form", "loud")):
            with self.subTest(name=name), self.assertRaisesRegex(ValueError, "--" + name.replace("_", "-")):
                Settings(**{name: value})


if __name__ == "__main__":
    unittest.main()
