"""Objectives are decided on the bounds of the interval."""

import math

import numpy as np
import pytest

from tailgauge.errors import Exit
from tailgauge_analysis.metrics.slo import FAIL, INCONCLUSIVE, PASS, decide
from tailgauge_analysis.stats.quantiles import TOO_FEW, UNRELIABLE, Quantile


def seen(low, value, high, mark=""):
    return Quantile(0.99, 5000, 5000, value, low, high, mark)


@pytest.mark.parametrize(
    ("quantile", "outcome"),
    [
        (seen(80, 90, 100), PASS),
        (seen(80, 90, 101), INCONCLUSIVE),
        (seen(100, 110, 120), INCONCLUSIVE),
        (seen(101, 110, 120), FAIL),
        (seen(80, 90, math.inf), INCONCLUSIVE),
        (seen(math.inf, math.inf, math.inf), FAIL),
        (seen(80, 90, None, UNRELIABLE), INCONCLUSIVE),
        (seen(101, 110, None, UNRELIABLE), FAIL),
        (seen(None, None, None, TOO_FEW), INCONCLUSIVE),
        (seen(10, 20, 30, TOO_FEW), INCONCLUSIVE),
    ],
)
def test_the_outcome_follows_from_the_bounds(quantile, outcome):
    assert decide(quantile, 100)[0] == outcome


def test_early_stopping_counts_effective_requests():
    from tailgauge_analysis.stats.binomial import stopping

    assert [stopping(k, 10_000, 10_000, 0.99).needed for k in (0, 1, 5, 10, 50)] == [
        459,
        662,
        1307,
        2010,
        6898,
    ]
    together = stopping(40, 8000, 800, 0.99)  # ten slow ones at a time
    assert (together.beyond, together.needed, together.met) == (4, 1157, False)
    assert stopping(0, 459, 459, 0.99).met
    assert not stopping(0, 458, 458, 0.99).met
    assert stopping(0, 0, 0, 0.99) is None


def objective(max_ms, metric="ttft_sched", quantile=0.99):
    return {"goal": {"metric": metric, "quantile": quantile, "max_ms": max_ms}}


@pytest.mark.parametrize(
    ("slo", "outcome", "code"),
    [
        ({}, None, Exit.OK),
        (objective(300.0), PASS, Exit.OK),
        (objective(150.0), FAIL, Exit.SLO_FAILED),
        (objective(300.0, quantile=0.9999), INCONCLUSIVE, Exit.INVALID),
        (objective(11.0, metric="chunk_gap"), PASS, Exit.OK),
        (objective(300.0, metric="no_such"), INCONCLUSIVE, Exit.INVALID),
        ({"goal": {"metric": "tpot"}}, INCONCLUSIVE, Exit.INVALID),
    ],
)
def test_the_exit_code_follows_from_the_outcome(made, slo, outcome, code):
    report = made(n=1000, slo=slo)

    assert report.exit_code == code
    assert [s["outcome"] for s in report.data["slos"]] == ([outcome] if outcome else [])


def test_failures_count_against_an_objective(made):
    """All successes are fast, and 5% fail, evenly: the p99 of what users were offered is a failure."""
    failing = {int(i): "overloaded" for i in np.random.default_rng(1).choice(2000, 100, replace=False)}
    report = made(n=2000, ended=failing, slo=objective(1000.0))

    assert report.data["slos"][0]["outcome"] == FAIL
    assert report.data["slos"][0]["quantile"]["value_is"] == "failed"


def test_invalid_outranks_a_failed_objective(made):
    assert made(n=1000, lost=1, slo=objective(1.0)).exit_code == Exit.INVALID


def test_an_inconclusive_objective_says_how_many_samples_are_needed(made):
    """One of 420 is beyond the bound: MLPerf's table asks for 662 then."""
    ttft = np.where(np.arange(420) == 300, 900.0, 200.0)
    slo = {"a": {"metric": "ttft_sched", "quantile": 0.99, "max_ms": 500.0}}
    found = made(n=420, warmup_s=0, ttft_ms=ttft, slo=slo).data["slos"][0]

    assert found["outcome"] == "inconclusive"
    assert "(1 beyond it: 662 effective samples needed, 420 measured)" in found["why"]
