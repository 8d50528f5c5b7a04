"""Metrics against runs whose every latency is known."""

import numpy as np
import pytest

from tailgauge_analysis.metrics.latency import OFFERED, SUCCESSES, row, sample
from tailgauge_analysis.metrics.metrics import BY_NAME, METRICS
from tailgauge_analysis.metrics.steady import steady
from tailgauge_analysis.reading.frames import load


@pytest.fixture
def stage(write):
    return lambda **changes: steady(load([write(**changes)]))


def values(stage, name, view=SUCCESSES):
    return sample(BY_NAME[name], stage, view)[0]


@pytest.mark.slow
def test_constant_times_come_out_as_they_went_in(stage):
    """METHOD row 21: m tokens per chunk every g ms give a chunk gap of g and TPOT = g (chunks - 1) / (n - 1)."""
    s = stage(n=200, ttft_ms=200, delay_ms=0.5, gap_ms=30, chunks=10, tokens_per_chunk=4)
    expected = {
        "ttft_sched": 200.0, "ttft_sent": 199.5, "tpot": 30 * 9 / 39, "chunk_gap": 30.0, "chunk_gap_worst": 30.0,
        "e2e_sched": 470.0, "e2e_sent": 469.5, "client_delay": 0.5,
    }  # fmt: skip

    for name, by_hand in expected.items():
        assert values(s, name) == pytest.approx(by_hand), name
    assert len(values(s, "ttft_sched")) == 150
    assert len(values(s, "chunk_gap")) == 150 * 9


@pytest.mark.slow
def test_a_rate_is_the_inverse_of_tpot_counted_from_its_fast_end(stage):
    gaps = row(BY_NAME["tpot"], stage(n=600, gap_ms=25, chunks=9), OFFERED).quantiles
    s = stage(
        name="failing",
        n=600,
        gap_ms=25,
        chunks=9,
        ended=dict.fromkeys(range(90, 600, 20), "timeout"),
    )
    rates = row(BY_NAME["user_rate"], s, OFFERED)

    assert gaps[0].value == 25
    assert [q.value for q in rates.quantiles[:2]] == [40, 40]
    assert rates.quantiles[0].low == rates.quantiles[0].high == 40
    assert rates.quantiles[3].value == np.inf  # no answer, no tokens
    assert rates.mean is None
    assert row(BY_NAME["user_rate"], s, SUCCESSES).mean == pytest.approx(40)


@pytest.mark.slow
def test_failures_are_absent_among_successes_and_slowest_of_what_was_offered(stage):
    ended = {100: "server_error", 101: "client_drop", 102: "timeout", 103: "censored"}
    s = stage(n=150, ended=ended)

    assert len(values(s, "ttft_sched")) == 96
    offered = values(s, "ttft_sched", OFFERED)
    assert len(offered) == 100
    assert np.flatnonzero(np.isinf(offered)).tolist() == [50, 51, 52, 53]
    assert len(values(s, "client_delay")) == 99


def test_the_first_text_ends_the_ttft_where_the_scenario_says_so(stage):
    s = stage(n=100, scenario={"report": {"first_token": "text"}})

    assert s.first_token == "text"
    assert values(s, "ttft_sched") == pytest.approx(200)


def test_every_objective_on_a_latency_names_a_metric():
    from tailgauge.scenario.figures import FIGURES, LATENCY
    from tailgauge_analysis.objectives.objective import criteria

    slo = {
        figure.name: {"metric": figure.name, "max_ms": 1}
        for figure in FIGURES
        if figure.unit == LATENCY
    }
    assert {one.name: one.metric is not None for one in criteria({"slo": slo})} == dict.fromkeys(
        slo, True
    )


def test_metrics_have_one_name_each():
    assert len(BY_NAME) == len(METRICS)
