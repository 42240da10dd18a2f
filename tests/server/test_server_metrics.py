"""What stands on the metrics page, read back by Prometheus' own parser."""

from functools import partial

import pytest
from hypothesis import given
from hypothesis import strategies as st
from prometheus_client.openmetrics.parser import (
    text_string_to_metric_families as parse_openmetrics,
)
from prometheus_client.parser import text_string_to_metric_families as parse

from cutaway.compute.backends import Computer
from cutaway.engine import EngineState, FinishReason, StopParams
from cutaway.server.http.metrics import Metrics, RequestStats
from support.engine_mock import GREEDY, add, make_engine

OPENMETRICS = "application/openmetrics-text; version=1.0.0"
PATHS = ("/v1/completions", "/metrics")


def make_metrics(**policy) -> Metrics:
    engine = make_engine(**policy)
    state, computer = partial(EngineState.read, engine), Computer("mock", "avx2", 0)
    made = Metrics(state, lambda: computer, version="1.2", model='a "model"', paths=PATHS)
    made.engine = engine
    return made


def figures(**changed) -> RequestStats:
    usual = {
        "prompt_tokens": 10, "cached_tokens": 4, "completion_tokens": 5,
        "finish_reason": FinishReason.MAX_TOKENS, "queue_s": 0.02, "ttft_s": 0.3,
        "decode_s": 0.08, "duration_s": 0.4,
    }  # fmt: skip
    return RequestStats(**usual | changed)


def read(metrics: Metrics) -> dict[tuple, float]:
    """Every sample of the page by its name and sorted label values."""
    page, _ = metrics.page()
    found = {}
    for family in parse(page.decode()):
        for sample in family.samples:
            key = (sample.name, *(value for _, value in sorted(sample.labels.items())))
            assert key not in found, "a sample stands on the page twice"
            found[key] = sample.value
    return found


def test_a_finished_text_is_counted_by_all_its_figures():
    metrics = make_metrics()
    metrics.count_sequence(
        figures(proposed=7, accepted=3, draft_cost=0.75, draft_lengths=(4, 1, 3), draft_rested=2)
    )
    page = read(metrics)
    assert page["cutaway_tokens_total", "prompt"] == 6
    assert page["cutaway_tokens_total", "cached"] == 4
    assert page["cutaway_tokens_total", "completion"] == 5
    assert page["cutaway_prefix_cache_query_tokens_total",] == 10
    assert page["cutaway_prefix_cache_hit_tokens_total",] == 4
    assert page["cutaway_speculation_proposed_tokens_total",] == 7
    assert page["cutaway_speculation_accepted_tokens_total",] == 3
    assert page["cutaway_speculation_cost_steps_total",] == 0.75
    assert page["cutaway_speculation_rested_steps_total",] == 2
    assert [page["cutaway_speculation_steps_total", str(k)] for k in range(3)] == [4, 1, 3]
    assert page["cutaway_sequences_total", "max_tokens"] == 1
    assert page["cutaway_queue_seconds_sum",] == 0.02
    assert page["cutaway_time_to_first_token_seconds_sum",] == 0.3
    assert page["cutaway_time_per_output_token_seconds_sum",] == 0.02
    assert page["cutaway_sequence_duration_seconds_sum",] == 0.4
    assert page["cutaway_requests_cancelled_total", "decode"] == 0


def test_a_text_that_never_began_has_no_tokens_and_no_times_but_its_whole():
    metrics = make_metrics()
    never = {"cached_tokens": None, "completion_tokens": 0, "decode_s": None}
    metrics.count_sequence(figures(**never, queue_s=None, ttft_s=None, finish_reason="aborted"))
    page = read(metrics)
    assert [page["cutaway_tokens_total", kind] for kind in ("prompt", "cached")] == [0, 0]
    assert page["cutaway_prefix_cache_query_tokens_total",] == 0
    for name in ("queue", "time_to_first_token", "time_per_output_token"):
        assert page[f"cutaway_{name}_seconds_count",] == 0
    assert page["cutaway_sequence_duration_seconds_count",] == 1
    assert page["cutaway_requests_cancelled_total", "queue"] == 1


@pytest.mark.parametrize(
    ("cached", "completion", "phase"),
    [(None, 0, "queue"), (0, 0, "prefill"), (4, 0, "prefill"), (4, 1, "decode")],
)
def test_a_cancellation_is_counted_by_how_far_the_text_came(cached, completion, phase):
    metrics = make_metrics()
    metrics.count_sequence(
        figures(cached_tokens=cached, completion_tokens=completion, finish_reason="aborted")
    )
    page = read(metrics)
    counted = {
        p: page["cutaway_requests_cancelled_total", p] for p in ("queue", "prefill", "decode")
    }
    assert counted == {p: float(p == phase) for p in counted}


def test_one_token_has_no_time_per_token_after_the_first():
    assert figures(completion_tokens=1, decode_s=0.0).tpot_s is None
    assert figures(completion_tokens=3, decode_s=0.5).tpot_s == 0.25


def test_every_finish_reason_stands_there_before_it_happens():
    page = read(make_metrics())
    for reason in FinishReason:
        assert page["cutaway_sequences_total", reason] == 0


def test_the_engine_is_read_when_the_page_is_made():
    metrics = make_metrics(kv_blocks=4, block=4, max_num_seqs=2)
    engine = metrics.engine
    for _ in range(3):
        add(engine, [1, 2, 3, 4, 5], GREEDY, StopParams(max_tokens=9, ignore_eos=True))
    engine.step()
    page = read(metrics)
    held = sum(len(s.memory.blocks) for s in engine.running)
    assert held > 0
    assert page["cutaway_requests_running",] == len(engine.running)
    assert page["cutaway_requests_waiting",] == 3 - len(engine.running)
    assert page["cutaway_kv_blocks", "held"] == held
    assert page["cutaway_kv_blocks", "free"] == 4 - held
    assert page["cutaway_kv_cache_usage_ratio",] == held / 4
    engine.abort_all()
    page = read(metrics)
    assert page["cutaway_requests_running",] == page["cutaway_requests_waiting",] == 0
    assert page["cutaway_kv_blocks", "free"] == 4


def test_blocks_in_the_layers_with_a_window_are_those_that_take_memory():
    assert ("cutaway_kv_window_blocks",) not in read(make_metrics())
    metrics = make_metrics(kv_blocks=16, block=4, window=6, rows=8)
    engine = metrics.engine
    add(engine, [1, 2, 3, 4, 5] * 8, GREEDY, StopParams(max_tokens=9, ignore_eos=True))
    for _ in range(7):
        engine.step()
    held = read(metrics)["cutaway_kv_window_blocks",]
    assert held == len(engine.backend.windows) < len(engine.running[0].memory.blocks)


def test_recurrent_states_are_those_that_take_memory():
    assert ("cutaway_recurrent_states",) not in read(make_metrics())
    metrics = make_metrics(kv_blocks=16, block=4, has_state=True)
    engine = metrics.engine
    add(engine, [1, 2, 3, 4, 5] * 4, GREEDY, StopParams(max_tokens=9, ignore_eos=True))
    for _ in range(7):
        engine.step()
    assert read(metrics)["cutaway_recurrent_states",] == len(engine.backend.states) > 1


def test_preemptions_are_those_of_the_scheduler():
    metrics = make_metrics(kv_blocks=6, block=4, max_num_seqs=3)
    engine = metrics.engine
    for first in range(3):
        add(engine, [first, 2, 3], GREEDY, StopParams(max_tokens=16, ignore_eos=True))
    while engine.running or engine.waiting:
        engine.step()
    assert engine.scheduler.preemptions > 0
    assert read(metrics)["cutaway_preemptions_total",] == engine.scheduler.preemptions


def test_what_a_scrape_sees_in_the_middle_of_a_move_is_no_negative_number():
    class Moving:
        count, free, windows, states = 4, 6, None, None

    metrics = make_metrics()
    metrics.engine.blocks = Moving()
    page = read(metrics)
    assert page["cutaway_kv_blocks", "held"] == page["cutaway_kv_cache_usage_ratio",] == 0


def test_http_requests_by_path_method_and_status():
    metrics = make_metrics()
    metrics.count_http("/v1/completions", "POST", 200, 0.5)
    metrics.count_http("/v1/completions", "POST", 200, 0.25)
    metrics.count_http(None, "GET", 404, 0.001)
    page = read(metrics)
    assert page["cutaway_http_requests_total", "POST", "/v1/completions", "200"] == 2
    assert page["cutaway_http_requests_total", "GET", "other", "404"] == 1
    assert page["cutaway_http_request_seconds_sum", "POST", "/v1/completions"] == 0.75


@given(st.lists(st.tuples(st.text(), st.text(), st.integers()), max_size=30))
def test_a_client_cannot_make_new_series(requests):
    metrics = make_metrics()
    for path, method, status in requests:
        metrics.count_http(path, method, status % 600, 0.1)
    series = {key[1:] for key in read(metrics) if key[0] == "cutaway_http_requests_total"}
    assert {key[1] for key in series} <= {*PATHS, "other"}
    assert {key[0] for key in series} <= {"GET", "HEAD", "POST", "PUT", "OPTIONS", "other"}


def test_a_finish_reason_that_is_none_is_other():
    metrics = make_metrics()
    metrics.count_sequence(figures(finish_reason="bored"))
    assert read(metrics)["cutaway_sequences_total", "other"] == 1


def test_build_and_process():
    page = read(make_metrics())
    assert page["cutaway_build_info", "mock", 'a "model"', "avx2", "1.2"] == 1
    assert page["process_resident_memory_bytes",] > 0


def test_two_in_one_process_do_not_meet():
    one, other = make_metrics(), make_metrics()
    one.count_sequence(figures())
    assert read(one)["cutaway_sequences_total", "max_tokens"] == 1
    assert read(other)["cutaway_sequences_total", "max_tokens"] == 0


def test_openmetrics_where_it_is_asked_for():
    metrics = make_metrics()
    metrics.count_sequence(figures())
    page, content_type = metrics.page(OPENMETRICS)
    assert content_type.startswith("application/openmetrics-text; version=1.0.0")
    families = {family.name: family for family in parse_openmetrics(page.decode())}
    assert families["cutaway_sequences"].type == families["cutaway_preemptions"].type == "counter"
    assert families["cutaway_queue_seconds"].type == "histogram"


@pytest.mark.parametrize(
    "accept", ["", "*/*", "application/openmetrics-text; version=x", "text/plain; version=1.x"]
)
def test_any_other_accept_header_gets_the_plain_page(accept):
    page, content_type = make_metrics().page(accept)
    assert content_type.startswith("text/plain; version=0.0.4")
    assert b"cutaway_requests_running 0.0" in page
