"""report.json against the endpoint's own log of the same run: latencies, outcomes, refusals, retries."""

import json
import math
from statistics import NormalDist

import numpy as np
import pytest
from run_folders.dry_runs import LEVELS, dry_run_report, exact

from tailgauge_analysis.stats.quantiles import n_min

SIMULATED = {
    "ttft_ms": 200.0, "ttft_sigma": 0.5, "chunk_gap_ms": 10.0, "chunk_gap_sigma": 0.3, "tokens_per_chunk": 2,
    "faults": {
        "busy": {"kind": "status", "share": 0.02, "status": 529},
        "broken": {"kind": "error_event", "share": 0.02, "at_chunk": 3},
        "short": {"kind": "cut", "share": 0.01, "at_chunk": 2},
        "still": {"kind": "stall", "share": 0.01, "at_chunk": 2, "seconds": 1.5},
    },
}  # fmt: skip
GROUPS = {"all": ("chat", "long"), "chat": ("chat",), "long": ("long",)}
ENDED = {"status": "overloaded", "error_event": "stream_error", "cut": "truncated"}


@pytest.fixture(scope="module")
def run(tmp_path_factory, full_size):
    """Two kinds of answers, some of them spoilt, and a third as a warm-up that no figure may hold."""
    tree = {
        "arrival": {"rate_per_s": 40.0},
        "stages": {"duration_s": 600.0 if full_size else 45.0, "warmup_s": 15.0},
        "simulated": SIMULATED,
        "slo": {"quick": "ttft_sched p90 < 450ms"},
        "traffic": {
            "chat": {"prompt_tokens": 50, "output_tokens": 12},
            "long": {"prompt_tokens": 50, "output_tokens": 31, "weight": 0.6},
        },
    }
    return dry_run_report(tree, tmp_path_factory.mktemp("latency"))


def good(rows):
    return rows[rows["fault"].isna() | (rows["fault"] == "stall")]


def gaps(rows):
    return [np.diff(sent) for sent in rows["chunks"]]


MEASURED = {
    ("ttft", "scheduled"): lambda rows: rows["first_ns"] - rows["scheduled_at_ns"],
    ("ttft", "sent"): lambda rows: rows["first_ns"] - rows["received_at_ns"],
    ("e2e", "scheduled"): lambda rows: rows["last_ns"] - rows["scheduled_at_ns"],
    ("e2e", "sent"): lambda rows: rows["last_ns"] - rows["received_at_ns"],
    ("tpot", None): lambda rows: (rows["last_ns"] - rows["first_ns"]) / (rows["output_tokens"] - 1),
    ("chunk_gap", None): lambda rows: np.concatenate(gaps(rows)),
    ("chunk_gap_worst", None): lambda rows: [gap.max() for gap in gaps(rows)],
}


@pytest.mark.parametrize("group", GROUPS)
@pytest.mark.parametrize(("metric", "since"), MEASURED)
def test_percentiles_are_those_of_the_endpoints_log(run, group, metric, since):
    values = np.asarray(MEASURED[metric, since](good(run.steady(*GROUPS[group]))), np.float64)
    row = run.latency(group, metric, since)

    assert row["n"] == len(values) > 300
    assert row["mean"] == pytest.approx(values.mean() / 1e6)
    for label, p in LEVELS.items():
        found = row["percentiles"][label]
        if len(values) < n_min(p):
            assert (found["value"], found["value_is"]) == (None, "n/a")
        else:
            assert found["value"] == pytest.approx(exact(values, p), abs=1e-6)
            assert found["low"] is None or found["low"] <= found["value"]
            assert found["high"] is None or found["value"] <= found["high"]


@pytest.mark.parametrize("group", GROUPS)
@pytest.mark.parametrize(
    ("metric", "since"), [("ttft", "scheduled"), ("e2e", "sent"), ("tpot", None)]
)
def test_of_what_was_offered_failures_are_slower_than_any(run, group, metric, since):
    rows = run.steady(*GROUPS[group])
    values = np.full(len(rows), np.inf)
    values[rows.index.get_indexer(good(rows).index)] = MEASURED[metric, since](good(rows))
    row = run.latency(group, metric, since, "offered")

    assert row["n"] == len(values)
    assert row["mean"] is None
    for label, p in LEVELS.items():
        expected, found = exact(values, p), row["percentiles"][label]
        if len(values) < n_min(p):
            assert found["value_is"] == "n/a"
        elif math.isinf(expected):
            assert (found["value"], found["beyond"], found["value_is"]) == (None, True, "failed")
        else:
            assert (found["value"], found["beyond"]) == (pytest.approx(expected, abs=1e-6), False)


@pytest.mark.parametrize("group", GROUPS)
def test_intervals_hold_the_distribution_that_the_times_were_drawn_from(run, group):
    """Lognormal times to the first chunk and between chunks; one answer in a hundred pauses once."""
    for metric, since, median, sigma, levels in (
        ("ttft", "sent", 200.0, 0.5, ("p50", "p90", "p95", "p99")),
        ("chunk_gap", None, 10.0, 0.3, ("p50", "p90", "p95")),
    ):
        row = run.latency(group, metric, since)
        for label in levels:
            expected = median * math.exp(sigma * NormalDist().inv_cdf(LEVELS[label]))
            found = row["percentiles"][label]
            assert found["low"] * 0.995 <= expected <= (found["high"] or math.inf) * 1.005, (
                metric,
                label,
            )


def test_nothing_is_lost_and_every_failure_is_named(run):
    """The share of each kind holds that of its fault."""
    report, whole, rows = run.report, run.log, run.steady()
    failures = whole["fault"].map(ENDED).dropna().value_counts()
    attempts = {one["ended"]: one["attempts"] for one in report["errors"]}
    steady = {one["ended"]: one["steady"] for one in report["errors"]}
    shares = {one["ended"]: one["requests"] for one in report["outcomes"]}

    assert report["verdict"]["status"] == "VALID"
    assert report["conservation"]["scheduled"] == report["conservation"]["dispatched"] == len(whole)
    assert report["conservation"]["ended"] == {"ok": len(good(whole)), **failures.to_dict()}
    assert attempts == failures.to_dict()
    for fault in SIMULATED["faults"].values():
        if fault["kind"] != "stall":
            ended = ENDED[fault["kind"]]
            is_spoilt = rows["fault"] == fault["kind"]
            assert steady[ended] == is_spoilt.sum()
            assert shares[ended]["value"] == is_spoilt.mean()
            assert shares[ended]["low"] <= fault["share"] <= shares[ended]["high"]


def test_rates_and_goodput_are_those_of_the_log(run):
    report, rows = run.report, run.steady()
    facts = report["run"]
    seconds = facts["steady_to_s"] - facts["steady_from_s"]
    window = (facts["steady_from_s"] * 1e9, facts["steady_to_s"] * 1e9)
    completed = good(run.log)["ended_at_ns"].between(*window, inclusive="left").sum()
    within = (MEASURED["ttft", "scheduled"](good(rows)) <= 450e6).sum()
    found = report["goodput"]["good"]
    (slo,) = report["slo"]
    p90 = run.latency("all", "ttft", "scheduled", "offered")["percentiles"]["p90"]

    assert facts["offered_per_s"] == pytest.approx(len(rows) / seconds)
    assert facts["completed_per_s"] == pytest.approx(completed / seconds)
    assert (found["n"], found["k"]) == (len(rows), within)
    assert found["value"] == pytest.approx(within / len(rows))
    assert slo["value"] == p90["value"]
    assert (slo["outcome"] == "pass") == (slo["high"] <= 450)
    assert (slo["outcome"] == "fail") == (slo["low"] > 450)


@pytest.fixture(scope="module")
def limited(tmp_path_factory, full_size):
    """Retries, polite and naive, against a limit of 5 requests per second with a burst of 3."""
    retry = {"max_retries": 3, "budget_share": 1.0, "budget_burst": 1000}
    sizes = {"prompt_tokens": 100, "output_tokens": 4}
    tree = {
        "arrival": {"rate_per_s": 6.0},
        "stages": {"duration_s": 400.0 if full_size else 60.0, "warmup_s": 5.0},
        "limits": {"in_flight_per_worker": 60_000, "attempt_deadline_s": 1e6, "drain_s": 1e6},
        "simulated": {"ttft_ms": 20.0, "chunk_gap_ms": 5.0, "limits": {"rpm": 300, "burst": 3}},
        "traffic": {
            "polite": {**sizes, "retry": {"policy": "polite", **retry}},
            "naive": {**sizes, "retry": {"policy": "naive", "naive_wait_s": 0.1, **retry}},
        },
    }
    return dry_run_report(tree, tmp_path_factory.mktemp("limited"))


@pytest.mark.slow
def test_429s_are_counted_as_the_endpoint_gave_them(limited):
    """Shares of the steady stage; seconds of the whole run."""
    section, rows, log = limited.report["rate_limits"], limited.steady(), limited.log
    bins, of = section["bins"], section["shares"]
    refused = rows[rows["status"] == 429]
    refused_of_run = log[log["status"] == 429]
    last = rows.groupby("request_id")["status"].last()
    share = of["refused"]

    assert (share["k"], share["n"]) == (len(refused), len(rows))
    assert share["value"] == pytest.approx(len(refused) / len(rows))
    assert share["low"] <= share["value"] <= share["high"]
    assert of["requests"] == rows["request_id"].nunique()
    assert of["requests_refused"] == refused["request_id"].nunique()
    assert of["requests_ended_refused"] == (last == 429).sum()
    assert section["first_at_s"] == pytest.approx(refused_of_run["received_at_ns"].min() / 1e9)
    for name, calls in (("attempts", log), ("refused", refused_of_run)):
        at = (calls["received_at_ns"] / 1e9 // bins["width_s"]).astype(int)
        assert bins[name] == np.bincount(at, minlength=len(bins["at_s"])).tolist()
    assert bins["by_kind"] == {"requests": bins["refused"]}


@pytest.mark.slow
def test_the_bucket_and_what_was_left_in_it_are_the_endpoints(limited):
    section = limited.report["rate_limits"]
    (bucket,) = section["buckets"]
    left = [json.loads(text)["requests"] for text in limited.log["bucket_levels"]]

    assert section["binding"]["kind"] == "requests"
    for name, expected in (("rate", 5), ("burst", 3)):
        assert bucket[name]["value"] == expected
        assert bucket[name]["low"] - 1e-6 <= expected <= bucket[name]["high"] + 1e-6
    assert bucket["remaining"]["least"] == min(left)


@pytest.mark.slow
def test_retries_are_those_that_the_endpoint_saw(limited):
    report, log = limited.report, limited.log
    again = log[log["attempt"] > 0].groupby("traffic").size()

    for name, calls in log.groupby("traffic"):
        sent = report["traffic"][name]
        assert (sent["attempts"], sent["causes"]["retry"]) == (len(calls), again[name])
    amplified = {one["traffic"]: one for one in report["rate_limits"]["amplification"]}
    for name, calls in limited.steady().groupby("traffic"):
        assert amplified[name]["observed"] == pytest.approx(
            len(calls) / calls["request_id"].nunique()
        )
    last = log.groupby("request_id")["status"].last()
    assert report["conservation"]["ended"] == {
        "ok": (last == 200).sum(), "rate_limited": (last == 429).sum()
    }  # fmt: skip
