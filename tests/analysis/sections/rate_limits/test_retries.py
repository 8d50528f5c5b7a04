"""What clients did about failures: compliance with retry-after and amplification, planted, and in dry runs."""

import numpy as np
import pandas as pd
import pytest
from run_folders.dry_runs import dry_run_frames, limited
from run_folders.planted_frames import calls, run_of

from tailgauge_analysis.sections.rate_limits.retries import (
    amplification,
    early_s,
    retry_after,
)
from tailgauge_analysis.sections.rate_limits.section import compute


def tries(*requests):
    """Each request as (sent s, came back s, retry-after s or None) of its attempts, in order."""
    rows = []
    for number, attempts in enumerate(requests):
        for attempt, (sent, came, wait) in enumerate(attempts):
            one = calls(1, at_s=[sent], refused=[0] if wait is not None else [])
            rows.append(one.assign(
                request_id=number * 65536, attempt=attempt, cause="retry" if attempt else "primary",
                headers_at_ns=came * 1e9, ended_at_ns=came * 1e9,
                retry_after_s=np.nan if wait in {None, 0} else float(wait),
            ))  # fmt: skip
    return pd.concat(rows).sort_values("sent_at_ns", kind="stable", ignore_index=True)


def test_an_attempt_before_the_named_time_is_a_violation_by_its_margin():
    run = tries(
        [(0.0, 0.1, 2), (1.6, 1.7, None)],  # 0.5 s early
        [(0.0, 0.1, 2), (2.2, 2.3, None)],  # 0.1 s late
        [
            (0.0, 0.1, 2),
            (0.3, 0.4, 1),
            (2.0, 2.1, None),
        ],  # 1.8 s early; then 0.1 s early by the first 429
    )
    found = retry_after(run)

    assert sorted(early_s(run).round(6)) == [-0.1, 0.1, 0.5, 1.8]
    assert (found.with_header.n, found.with_header.k, found.violations.n, found.violations.k) == (
        4,
        4,
        4,
        3,
    )
    assert found.violations.low < 0.75 < found.violations.high


def test_an_attempt_that_was_sent_before_the_429_came_back_is_none():
    run = tries([(0.0, 1.0, 5), (0.5, 0.6, None)])  # a hedge

    assert len(early_s(run)) == 0


def test_the_429_of_one_call_binds_no_other():
    run = tries([(0.0, 0.1, 5)], [(0.2, 0.3, None)])
    legs = tries([(0.0, 0.1, 5), (0.2, 0.3, None)]).assign(leg=[0, 1])

    assert len(early_s(run)) == 0
    assert len(early_s(legs)) == 0


def test_an_immediate_retry_is_early_even_in_the_moment_of_the_429():
    run = tries([(1.0, 1.0, 3), (1.0, 1.0, None)])

    assert early_s(run).tolist() == [3.0]


def test_the_reset_of_a_limit_is_no_retry_after():
    run = tries([(0.0, 0.1, 30), (1.6, 1.7, None)], [(0.0, 0.1, 2), (2.2, 2.3, None)])
    run["retry_after_from"] = np.where(
        run["retry_after_s"] == 30, "x-ratelimit-reset-tokens", "retry-after"
    )
    found = retry_after(run)

    assert (found.with_header.k, found.with_reset.k, found.with_header.n) == (1, 1, 2)
    assert found.asked_max_s == 2
    assert early_s(run).tolist() == pytest.approx([-0.1])


def test_a_429_without_the_header_asks_for_nothing():
    found = retry_after(tries([(0.0, 0.1, 0), (0.2, 0.3, None)], [(0.0, 0.1, 4)]))

    assert (found.with_header.n, found.with_header.k, found.with_header.value) == (2, 1, 0.5)
    assert (found.violations.n, found.violations.value) == (0, None)
    assert (found.asked_p50_s, found.asked_max_s) == (4, 4)


def test_independent_failures_amplify_by_the_geometric_series():
    rng = np.random.default_rng(4)
    f, most, n = 0.3, 3, 3000
    rows = []
    for number in range(n):
        for attempt in range(most + 1):
            failed = rng.random() < f
            rows.append((number * 65536, attempt, number + attempt / 10, failed))
            if not failed:
                break
    ids, attempt, at, failed = (np.array(column) for column in zip(*rows, strict=True))
    run = calls(len(rows), at_s=at, refused=np.flatnonzero(failed)).assign(
        request_id=ids, attempt=attempt, cause=np.where(attempt > 0, "retry", "primary"),
        scheduled_at_ns=(ids // 65536) * 1e9,
    )  # fmt: skip
    (found,) = amplification(run)

    assert found.calls == n
    assert found.low < (1 - f ** (most + 1)) / (1 - f) < found.high


def test_calls_that_are_never_retried_are_not_amplified():
    assert amplification(calls(10, refused=[2])) == ()


def with_retry(policy, **more):
    retry = {"policy": policy, "max_retries": 4, "budget_share": 1.0, "budget_burst": 1000, **more}
    return {"chat": {"prompt_tokens": 100, "output_tokens": 4, "retry": retry}}


def test_polite_retries_respect_retry_after():
    run = dry_run_frames(limited({"rpm": 300, "burst": 3}, traffic=with_retry("polite")))
    found = compute(run_of(run.frames))

    assert found.retry_after.with_header.value == 1.0
    assert found.retry_after.violations.n == (run.frames.attempts["cause"] == "retry").sum() > 50
    assert found.retry_after.violations.k == 0


def test_naive_retries_do_not_and_each_is_found():
    run = dry_run_frames(
        limited({"rpm": 300, "burst": 3}, traffic=with_retry("naive", naive_wait_s=0.1))
    )
    found = compute(run_of(run.frames))
    attempts = run.frames.attempts.sort_values(["request_id", "attempt"])
    before = attempts.groupby("request_id").shift()
    named_ns = before["headers_at_ns"] + before["retry_after_s"] * 1e9
    early = attempts["sent_at_ns"] < named_ns

    assert found.retry_after.violations.n == len(named_ns.dropna())
    assert (
        found.retry_after.violations.k >= early.sum() > 100
    )  # an earlier 429 may name a later time
    (amplified,) = found.amplification
    assert amplified.observed == pytest.approx(len(attempts) / attempts["request_id"].nunique())
