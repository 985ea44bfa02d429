"""What is counted, and the page that tells it, without a server."""
import unittest
from random import Random

from backends.prefix_cache import CacheStats
from observe.metrics import (COUNTED_AT_ONCE, GAP_SLOTS, GAP_STEP_S, ITL_BOUNDS_S, KIND_NAMES, LATENESS_BOUNDS_MS,
                             LATENESS_SLOTS, LATENESS_STEP_S, MODEL_NAMES, Histogram, Lateness, Metrics, ModelStats,
                             StepCounter, token_bounds)
from observe.prometheus import render_metrics, wants_openmetrics
from tests.metrics_page import MetricsPage

ODD_NAME = 'a "quoted" \\ back\nslash %s {x="y"} \0 \u00fc'
USAGE = (10, 5, 0, 4)


def ended(usage=USAGE, choices=1, limit=None, queue_s=0.0, first_s=0.1, decode_s=0.4, e2e_s=0.6, reason="stop",
          ttft_s=0.1, apart=5, gaps=((400, 4),)):
    """ENDED_FIELDS of a plain answer."""
    return usage, choices, limit, queue_s, first_s, decode_s, e2e_s, reason, ttft_s, apart, gaps


def page_of(metrics, openmetrics=False):
    return MetricsPage(render_metrics(metrics, openmetrics).decode("utf-8"), openmetrics)


class HistogramTest(unittest.TestCase):

    def test_many_values_at_once_are_the_same_as_one_by_one(self):
        random = Random(3)
        for size in (0, 1, 2, 300):
            values = [random.choice((0, 1, 1.5, 2, 5, 7, 20, 21, 10 ** 6)) for _ in range(size)]
            one, all_ = Histogram((1, 2, 5, 10, 20)), Histogram((1, 2, 5, 10, 20))
            for value in values:
                one.add(value)
            all_.add_all(list(values))
            self.assertEqual((one.counts, one.sum), (all_.counts, all_.sum))

    def test_a_value_at_a_bound_counts_below_it(self):
        histogram = Histogram((1, 2))
        histogram.add_all([1, 2, 2, 3])
        self.assertEqual(histogram.counts, [1, 2, 1])

    def test_token_bounds_go_up_to_the_context(self):
        self.assertEqual(token_bounds(100), (1, 2, 5, 10, 20, 50, 100))
        self.assertEqual(token_bounds(199)[-1], 100)

    def test_a_step_counter_tells_the_same_however_often_it_is_asked(self):
        counter = StepCounter()
        for expected in range(3):
            self.assertEqual([counter.value(), counter.value()], [expected, expected])
            counter.step()


class LatenessTest(unittest.TestCase):

    def test_every_slot_is_in_the_bucket_of_its_bound(self):
        for slot in (0, 1, 2, 3, 4, 5, 40, 41, 4000, LATENESS_SLOTS - 1):
            lateness = Lateness()
            lateness.slots[slot] = 7
            above = [bound for bound in LATENESS_BOUNDS_MS if slot * LATENESS_STEP_S * 1000 <= bound + 1e-9]
            found = [bound for bound, frames in lateness.buckets() if frames]
            self.assertEqual(found, [above[0] if above else None])
            self.assertAlmostEqual(lateness.histogram()[1], 7 * max(0, slot - 0.5) * LATENESS_STEP_S)


class PlanTest(unittest.TestCase):
    """What is made of a plain answer's due times."""

    def planned(self, dues, count=None):
        return ModelStats((1,)).planned(dues, len(dues) if count is None else count)

    def test_times_and_gaps_of_a_plan_without_noise(self):
        dues = [0.15 + 0.01 * number for number in range(200)]
        first_s, decode_s, gaps = self.planned(dues, 128)
        self.assertEqual((first_s, gaps), (0.15, ((40, 127),)))
        self.assertAlmostEqual(decode_s, 1.27)

    def test_gaps_of_a_plan_with_noise_are_taken_one_by_one(self):
        _, _, gaps = self.planned([0.0, 0.01, 0.03, 0.04, 1.04])
        self.assertEqual(sorted(gaps), [(40, 2), (80, 1), (4000, 1)])

    def test_a_single_token_has_no_gap(self):
        self.assertEqual(self.planned([0.5]), (0.5, 0.0, ()))

    def test_another_plan_or_length_is_looked_at_anew(self):
        stats, dues = ModelStats((1,)), [0.0, 0.01, 0.02]
        self.assertEqual([stats.planned(dues, 3)[2], stats.planned(dues, 2)[2], stats.planned([0.0, 0.02], 2)[2]],
                         [((40, 2),), ((40, 1),), ((80, 1),)])


class MetricsTest(unittest.TestCase):

    def setUp(self):
        self.metrics = Metrics(("served",))
        self.stats = self.metrics.stats_of("served")

    def value(self, name, **labels):
        return page_of(self.metrics).sum(name, **labels)

    def test_a_finished_request_is_in_every_histogram(self):
        self.stats.ended.append(ended(usage=(10, 5, 0, 4), choices=2, limit=64, queue_s=0.05, first_s=0.25, decode_s=0.4,
                                      e2e_s=0.7, ttft_s=0.25))
        expected = {
            "time_to_first_token_seconds": 0.25, "e2e_request_latency_seconds": 0.7, "request_queue_time_seconds": 0.05,
            "request_prefill_time_seconds": 0.2, "request_decode_time_seconds": 0.4,
            "request_inference_time_seconds": 0.6, "request_time_per_output_token_seconds": 0.1,
            "request_prompt_tokens": 10, "request_generation_tokens": 5, "request_max_num_generation_tokens": 3,
            "request_params_max_tokens": 64, "request_params_n": 2, "request_prefill_kv_computed_tokens": 6}
        for name, total in expected.items():
            with self.subTest(name=name):
                self.assertEqual(self.value("vllm:%s_count" % name), 1)
                self.assertAlmostEqual(self.value("vllm:%s_sum" % name), total)
        self.assertEqual([self.value("vllm:%s_total" % name) for name in (
            "prompt_tokens", "generation_tokens", "prefix_cache_queries", "prefix_cache_hits")], [10, 5, 10, 4])

    def test_tokens_without_a_gap_of_their_own_have_one_of_nothing(self):
        self.stats.ended.append(ended(usage=(10, 9, 0, 0), apart=5, gaps=((400, 4),)))
        self.stats.ended.append(ended(usage=(10, 3, 0, 0), apart=0, gaps=()))       # none was told apart: all but one
        self.stats.ended.append(ended(usage=(10, 0, 0, 0), apart=0, gaps=()))
        self.assertEqual(self.value("vllm:inter_token_latency_seconds_count"), 8 + 2)
        self.assertEqual(self.value("vllm:inter_token_latency_seconds_bucket", le="0.075"), 6)
        self.assertAlmostEqual(self.value("vllm:inter_token_latency_seconds_sum"), 0.4)

    def test_gaps_beyond_the_slots_are_counted_by_their_length(self):
        long = [GAP_SLOTS - 1, GAP_SLOTS, int(3.0 / GAP_STEP_S), int(100.0 / GAP_STEP_S)]
        self.stats.ended.append(ended(usage=(1, 5, 0, 0), gaps=tuple((slot, 1) for slot in long)))
        self.stats.times.long.add(0.8)
        self.assertEqual([self.value("vllm:inter_token_latency_seconds_bucket", le=bound) for bound in (
            "0.4", "0.5", "0.75", "1.0", "2.5", "5.0", "80.0", "+Inf")], [0, 1, 2, 3, 3, 4, 4, 5])

    def test_both_names_of_the_inter_token_latency_tell_the_same(self):
        self.stats.ended.append(ended())
        self.assertEqual(*[[sample.value for sample in page_of(self.metrics).samples if sample.name.startswith(name)]
                           for name in ("vllm:inter_token_latency_seconds", "vllm:time_per_output_token_seconds")])

    def test_more_than_are_worked_in_at_once_are_all_counted(self):
        for _ in range(COUNTED_AT_ONCE + 3):
            self.stats.ended.append(ended())
            if len(self.stats.ended) >= COUNTED_AT_ONCE:
                self.metrics.work_in(self.stats)
        self.assertEqual(len(self.stats.ended), 3)
        self.assertEqual(self.metrics.get("completions"), COUNTED_AT_ONCE + 3)
        self.assertEqual(self.value("vllm:request_success_total", finished_reason="stop"), COUNTED_AT_ONCE + 3)

    def test_ends_by_reason_as_vllm_names_them(self):
        for reason in ("stop", "length", "tool_calls", "function_call", "content_filter"):
            self.stats.ended.append(ended(reason=reason))
        self.metrics.lose(self.stats, "abort", 7, 2, 0)
        self.metrics.lose(self.stats, "error", 0, 0, 0)
        found = {reason: self.value("vllm:request_success_total", finished_reason=reason)
                 for reason in page_of(self.metrics).labels("vllm:request_success_total", "finished_reason")}
        self.assertEqual(found, {"stop": 3, "length": 1, "abort": 1, "error": 1, "content_filter": 1})
        self.assertEqual((self.metrics.get("completions"), self.metrics.get("completion_tokens")), (5, 25))
        self.assertEqual(self.value("vllm:generation_tokens_total"), 27)
        self.assertEqual(self.value("vllm:prompt_tokens_total"), 57)

    def test_names_beyond_the_bound_are_others_but_listed_ones_never(self):
        metrics = Metrics(("first", "second"))
        for name in ["name-%d" % number for number in range(MODEL_NAMES + 5)] + ["x" * 1000, "second"]:
            metrics.stats_of(name).ended.append(ended())
        page = page_of(metrics)
        self.assertEqual(page.value("vllm:generation_tokens_total", engine="0", model_name="other"), 6 * 5)
        self.assertEqual(page.value("vllm:generation_tokens_total", engine="0", model_name="second"), 5)
        self.assertEqual(len(page.labels("vllm:generation_tokens_total", "model_name")), 2 + MODEL_NAMES + 1)
        self.assertEqual(page.sum("vllm:generation_tokens_total"), 5 * (MODEL_NAMES + 7))

    def test_kinds_beyond_the_bound_are_others(self):
        for number in range(KIND_NAMES + 3):
            self.metrics.add_labelled("faults", "kind-%d" % number, 2)
        self.metrics.add_labelled("faults", "kind-0")
        page = page_of(self.metrics)
        self.assertEqual(page.value("mockturtle_faults_injected_total", kind="other"), 6)
        self.assertEqual(page.value("mockturtle_faults_injected_total", kind="kind-0"), 3)

    def test_methods_that_nobody_knows_are_others(self):
        for number in range(5):
            self.metrics.count_answer("/chat/completions", "FOO%d" % number, 405)
        self.metrics.count_answer(None, "GET", 404)
        page = page_of(self.metrics)
        self.assertEqual(page.value("mockturtle_http_requests_total", route="/chat/completions", method="other",
                                    status="405"), 5)
        self.assertEqual(page.value("mockturtle_http_requests_total", route="unknown", method="GET", status="404"), 1)

    def test_what_has_begun_and_not_ended_is_running(self):
        for _ in range(3):
            self.metrics.begun()
        self.metrics.lose(self.stats, "abort", 0, 0, 0)
        self.assertEqual(self.value("vllm:num_requests_running"), 2)
        self.assertEqual(self.value("vllm:num_requests_waiting"), 0)

    def test_an_engine_tells_its_load_and_a_cache_its_size(self):
        class Engine:
            running, waiting, tokens = 4, 9, 4096
        self.metrics.engine, self.metrics.block_tokens = Engine, 32
        self.metrics.cache_stats = lambda: CacheStats(100, 50, 7, 512, 3)
        page = page_of(self.metrics)
        self.assertEqual((page.sum("vllm:num_requests_running"), page.sum("vllm:num_requests_waiting")), (4, 9))
        self.assertEqual(page.sum("vllm:kv_cache_usage_perc"), 0.25)
        self.assertEqual(page.value("vllm:cache_config_info", engine="0", block_size="32", num_gpu_blocks="512",
                                    enable_prefix_caching="True"), 1)
        self.assertEqual((page.sum("mockturtle_prefix_cache_blocks"), page.sum("mockturtle_prefix_cache_evictions_total")),
                         (7, 3))


class PageTest(unittest.TestCase):

    def filled(self):
        metrics = Metrics((ODD_NAME, "b"))
        for name in (ODD_NAME, "\ud800", "b"):
            metrics.stats_of(name).ended.append(ended())
        metrics.count_answer("/responses/{}", "GET", 200)
        metrics.add_labelled("faults", 'cut "x"')
        metrics.lateness.slots[3] += 2
        return metrics

    def test_the_page_is_valid_in_both_formats_and_tells_the_same(self):
        pages = [page_of(self.filled(), openmetrics) for openmetrics in (False, True)]
        changing = ("process_", "vllm:lora_requests_info")
        self.assertEqual(*[[sample for sample in page.samples if not sample.name.startswith(changing)] for page in pages])
        self.assertGreater(len(pages[0].samples), 1000)

    def test_an_empty_page_is_valid_and_has_zeros_for_the_served_model(self):
        for openmetrics in (False, True):
            page = page_of(Metrics(("served",)), openmetrics)
            for name in ("vllm:num_requests_running", "vllm:prompt_tokens_total", "vllm:time_to_first_token_seconds_count"):
                self.assertEqual(page.value(name, engine="0", model_name="served"), 0)

    def test_labels_are_escaped(self):
        text = render_metrics(self.filled()).decode("utf-8")
        self.assertIn('model_name="a \\"quoted\\" \\\\ back\\nslash %s {x=\\"y\\"} \0 \u00fc"', text)
        self.assertEqual(page_of(self.filled()).labels("vllm:generation_tokens_total", "model_name"), {ODD_NAME, "?", "b"})

    def test_histograms_have_vllms_bounds(self):
        bounds = page_of(Metrics()).labels("vllm:inter_token_latency_seconds_bucket", "le")
        self.assertEqual(bounds, {str(bound) for bound in ITL_BOUNDS_S} | {"+Inf"})

    def test_the_page_goes_without_what_a_broken_store_cannot_tell(self):
        metrics = Metrics()
        page = page_of(metrics)
        self.assertNotIn("mockturtle_store_bytes", page.types)
        metrics.gauges = lambda: {"bytes": 5}
        self.assertEqual(page_of(metrics).value("mockturtle_store_bytes"), 5)

    def test_openmetrics_is_given_to_who_asks_for_it(self):
        for accept, expected in (
                ("", False), ("*/*", False), ("text/plain;version=0.0.4", False),
                ("application/openmetrics-text;version=1.0.0;q=0.5,text/plain;version=0.0.4;q=0.3", True),
                ("text/plain, Application/OpenMetrics-Text", True), ("application/openmetrics-text;q=0", False)):
            with self.subTest(accept=accept):
                self.assertEqual(wants_openmetrics(accept), expected)

    def test_the_real_parsers_read_the_page(self):
        try:
            from prometheus_client.openmetrics.parser import text_string_to_metric_families as read_openmetrics
            from prometheus_client.parser import text_string_to_metric_families as read_text
        except ImportError:
            self.skipTest("prometheus_client is not installed")
        for openmetrics, read in ((False, read_text), (True, read_openmetrics)):
            with self.subTest(openmetrics=openmetrics):
                text = render_metrics(self.filled(), openmetrics).decode("utf-8")
                families = list(read(text))
                page = MetricsPage(text, openmetrics)
                self.assertEqual({family.type for family in families}, {"counter", "gauge", "histogram"})
                self.assertEqual(sum(len(family.samples) for family in families), len(page.samples))
                self.assertIn(ODD_NAME, {sample.labels.get("model_name") for family in families
                                         for sample in family.samples})


if __name__ == "__main__":
    unittest.main()
