"""The commented variants of the packaged scenarios: each works as its comment says, in a dry run.

Rule: a variant without an expectation in this table fails, and so does a commented key that belongs to no variant.
"""

from __future__ import annotations

from functools import cached_property

import pandas as pd
import pytest
from run_folders.dry_runs import dry_run_of
from run_folders.run_data import RunData, RunRows
from scenario.variants import all_variants, code_outside_variants, variant_file

from tailgauge.scenario.model import load
from tailgauge.scenario.packaged import names

SECOND_NS = 1_000_000_000


class Rows(RunRows):
    """Rows of a dry run."""

    @cached_property
    def arrivals(self) -> pd.Series:
        """Scheduled times of the requests in seconds since the first one."""
        times = self.requests.scheduled_at_ns.sort_values()
        return (times - times.iloc[0]) / SECOND_NS

    @property
    def cv_of_gaps(self) -> float:
        gaps = self.arrivals.diff().dropna()
        return float(gaps.std() / gaps.mean())

    @property
    def reads(self) -> pd.Series:
        return self.attempts.cache_read_input_tokens > 0

    @property
    def writes(self) -> pd.Series:
        return self.attempts.cache_creation_input_tokens > 0

    def share_between(self, start_s: float, end_s: float) -> float:
        """Share of the requests that were scheduled within this part of the run."""
        return float(self.arrivals.between(start_s, end_s).mean())

    def count(self, cause: str) -> int:
        return int((self.attempts.cause == cause).sum())

    def ended(self, end: str) -> int:
        return int((self.attempts.ended == end).sum())

    @property
    def hedge_delays_ms(self) -> pd.Series:
        sent = self.attempts.set_index(["request_id", "leg"]).dispatched_at_ns
        causes = self.attempts.set_index(["request_id", "leg"]).cause
        delays = sent[causes == "hedge"] - sent[causes == "primary"]
        return (delays.dropna() / 1e6).round()

    def legs(self) -> set[int]:
        return set(self.requests[self.requests.ended == "ok"].legs)

    def most_at_once(self) -> int:
        """Most calls of one request in flight at the same time."""
        most = 0
        for _, calls in self.attempts.groupby("request_id"):
            starts = pd.Series(1, calls.dispatched_at_ns)
            ends = pd.Series(-1, calls.ended_at_ns)
            steps = pd.concat([ends, starts]).sort_index(kind="stable")
            most = max(most, int(steps.cumsum().max()))
        return most


EXPECTED = {
    ("arrivals", "gamma"): lambda rows: rows.cv_of_gaps > 1.4,
    ("arrivals", "bursts"): lambda rows: float(rows.arrivals.diff().max()) > 1.5,
    ("arrivals", "ramp"): lambda rows: rows.share_between(30, 60) > 1.5 * rows.share_between(0, 30),
    ("arrivals", "spike"): lambda rows: rows.share_between(24, 30) > 0.3,
    ("arrivals", "sizes"): lambda rows: rows.attempts.input_tokens.nunique() > 20,
    ("cached", "automatic"): lambda rows: rows.reads.any() and not rows.writes.any(),
    ("cached", "cold"): lambda rows: rows.writes.all() and not rows.reads.any(),
    ("cached", "prewarmed"): lambda rows: rows.reads.all() and not rows.writes.any(),
    ("cached", "one_hour"): lambda rows: rows.attempts.cache_creation_1h_input_tokens.sum() > 0,
    ("cached", "sparse"): lambda rows: rows.writes.mean() > 0.6 and bool(rows.reads.any()),
    ("cached", "volatile_front"): lambda rows: rows.writes.all() and not rows.reads.any(),
    ("cached", "volatile_marked"): lambda rows: rows.writes.all() and rows.reads.any(),
    ("cached", "below_minimum"): lambda rows: not rows.writes.any() and not rows.reads.any(),
    ("fan_out", "sequential"): lambda rows: rows.legs() == {5} and rows.most_at_once() == 1,
    ("fan_out", "bounded"): lambda rows: rows.legs() == {5} and 1 < rows.most_at_once() <= 3,
    ("fan_out", "first_k"): lambda rows: rows.ended("cancelled") > 10,
    ("fan_out", "kinds"): lambda rows: (
        rows.attempts.groupby("leg").input_tokens.median().max() > 300
    ),
    ("fan_out", "cache_race"): lambda rows: rows.writes.mean() > 0.98,
    ("hedged", "fixed"): lambda rows: set(rows.hedge_delays_ms) == {400},
    ("hedged", "single_r"): lambda rows: set(rows.hedge_delays_ms) == {250},
    ("hedged", "immediate"): lambda rows: rows.count("hedge") == rows.count("primary"),
    ("retries", "in_band"): lambda rows: rows.ended("overloaded") > 0 and rows.count("retry") > 0,
    ("retries", "busy"): lambda rows: rows.ended("overloaded") > 0 and rows.count("retry") > 0,
    ("streaming", "natural"): lambda rows: rows.ended("ok") > 0 and rows.ended("cut") > 0,
    ("streaming", "refusals"): lambda rows: rows.ended("refused") > 0,
    ("structured", "two_calls"): lambda rows: rows.legs() == {2},
}


OF_EXPERIMENTS = [("hedging", "delays")]


@pytest.mark.slow
@pytest.mark.parametrize(("scenario", "variant"), EXPECTED)
def test_a_variant_does_what_its_comment_says(scenario, variant, tmp_path):
    path = variant_file(tmp_path, scenario, [variant])
    rows = Rows(RunData(dry_run_of(str(path), [], tmp_path)))

    assert len(rows.requests) > 20
    assert EXPECTED[scenario, variant](rows), rows.attempts.describe(include="all").T.to_string()


@pytest.mark.slow
def test_variants_combine(tmp_path):
    path = variant_file(tmp_path, "fan_out", ["sequential", "cache_race"])
    rows = Rows(RunData(dry_run_of(str(path), [], tmp_path)))

    assert rows.writes.groupby(rows.attempts.request_id).sum().eq(1).mean() > 0.98
    assert rows.reads.groupby(rows.attempts.request_id).sum().eq(4).mean() > 0.98


def test_the_variant_of_an_experiment_sets_its_key(tmp_path):
    path = variant_file(tmp_path, "hedging", ["delays"])

    assert load(str(path)).experiment.hedging.delays_ms == (110, 250, "adaptive")


def test_every_commented_key_belongs_to_a_variant():
    assert sorted([*EXPECTED, *OF_EXPERIMENTS]) == sorted(all_variants())
    assert [line for name in names() for line in code_outside_variants(name)] == []
