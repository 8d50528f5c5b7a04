"""Jobs end between two polls: their range against the endpoint's own log, and objectives within it."""

import numpy as np
import pandas as pd
import pytest
from run_folders.dry_runs import dry_run_of

from tailgauge_analysis.run import Run
from tailgauge_analysis.sections import objectives, transports

pytestmark = pytest.mark.slow

VARIANTS = {
    "polls of a second": {"poll_s": 1.0, "backoff": 1.0},
    "polls that grow apart": {"poll_s": 0.3, "backoff": 1.7},
    "one long wait": {"poll_s": 5.0, "backoff": 1.0},
}


def run_of(tmp_path, polls, **pairs):
    """A dry run of jobs of about two seconds; none is lost, expires or is given up."""
    fixed = {
        "target.url": "simulated",
        "arrival.rate_per_s": 8.0,
        "stages.duration_s": 60.0,
        "stages.warmup_s": 0.0,
        "simulated.jobs.lost": 0.0,
        "simulated.jobs.expired": 0.0,
        "traffic.reports.cancel.share": 0.0,
    }
    polls = {f"traffic.reports.job.{key}": value for key, value in polls.items()}
    return Run([dry_run_of("job", list((fixed | polls | pairs).items()), tmp_path)])


@pytest.mark.parametrize("name", VARIANTS)
def test_the_range_of_each_job_holds_its_end_in_the_log_of_the_endpoint(name, tmp_path):
    run = run_of(tmp_path, VARIANTS[name])
    jobs = run.without_slow_readers.requests.set_index("request_id")
    log = run.frames.server_log
    log = log[log["planned_ttft_ns"].notna()].drop_duplicates("request_id").set_index("request_id")
    ended = (log["received_at_ns"] + log["planned_ttft_ns"]).reindex(jobs.index)
    low, high = jobs["ended_low_at_ns"], jobs["ended_at_ns"]
    assert ended.notna().all()

    assert (low <= high).all()
    assert (ended <= high).all()
    # The fetch comes after the end: its time is in both ends of the range.
    fetch_ns = (high - low).max() * 0.01 + 50e6
    assert (ended + fetch_ns >= low).all()

    log_p50_ms = np.quantile((ended - jobs["scheduled_at_ns"]) / 1e6, 0.5, method="inverted_cdf")
    rows = {(row.metric.name, row.view): row for row in run.evidence.latency}
    p50 = rows["turnaround", "offered"].quantiles[0]
    assert p50.low <= log_p50_ms <= p50.high
    (found,) = run.result(transports.compute)
    assert found.times[0].low == pytest.approx(p50.low)


def bounds(ms):
    return {"slo.late.metric": "turnaround", "slo.late.quantile": 0.5, "slo.late.max_ms": ms}


CASES = [  # time between polls, bound, outcome; jobs take 2 s
    (5.0, 900.0, "inconclusive"),
    (5.0, 2500.0, "inconclusive"),
    (5.0, 6000.0, "pass"),
    (1.0, 900.0, "fail"),
    (1.0, 2500.0, "inconclusive"),
    (0.7, 1300.0, "fail"),
    (0.7, 3500.0, "pass"),
]


@pytest.mark.parametrize(("poll_s", "ms", "outcome"), CASES)
def test_a_bound_between_two_polls_is_not_decided(poll_s, ms, outcome, tmp_path):
    polls = {"poll_s": poll_s, "backoff": 1.0}
    run = run_of(tmp_path, polls, **bounds(ms), **{"simulated.jobs.turnaround_sigma": 0.05})
    late = {result.name: result for result in run.result(objectives.compute).slo}["late"]

    assert late.outcome == outcome
    if outcome == "inconclusive":
        assert "the bound lies between two polls: poll more often" in late.why
        assert "run longer" not in late.why


def test_fast_polls_decide_what_slow_ones_leave_open(tmp_path):
    polls = {"poll_s": 0.1, "backoff": 1.0}
    run = run_of(tmp_path, polls, **bounds(2500.0), **{"simulated.jobs.turnaround_sigma": 0.05})
    results = {result.name: result for result in run.result(objectives.compute).slo}

    assert results["late"].outcome == "pass"


def test_the_error_of_a_figure_has_its_polls_and_is_not_the_clients(tmp_path):
    run = run_of(tmp_path, VARIANTS["one long wait"])
    errors = [
        error
        for error in run.evidence.errors
        if error.metric == "turnaround" and error.quantile == 0.5
    ]
    jobs = run.without_slow_readers.requests
    widths_ms = (jobs["ended_at_ns"] - jobs["ended_low_at_ns"]) / 1e6

    assert errors[0].error_ms == pytest.approx(float(pd.Series(widths_ms).median()), rel=0.1)
    assert (errors[0].verdict, run.verdict) == ("VALID", "VALID")
    assert run.reasons == []
