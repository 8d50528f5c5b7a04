"""How well a quantile is known, in a precision_text."""

import math
from dataclasses import replace

import numpy as np
import pandas as pd
import pytest

from tailgauge_analysis.metrics.steady import Steady
from tailgauge_analysis.objectives.precision import half_width, is_known, looked, precision_text
from tailgauge_analysis.stats.quantiles import FEW_EPISODES, TOO_FEW, Quantile, at_level

Q = Quantile(0.95, 10_000, 9_000, 500.0, 480.0, 526.0, "", 400)
STAGE = Steady(
    pd.DataFrame(), pd.DataFrame(), np.empty(0), np.empty(0, int), "any", 10.0, 190.0
)  # fmt: skip


def test_it_is_known_where_half_of_the_interval_is_narrow_enough():
    assert half_width(Q) == pytest.approx(0.046)
    assert (is_known(Q, 0.046), is_known(Q, 0.045)) == (True, False)
    assert precision_text(Q, 0.05, STAGE, is_over=True) == "known to 4.6% after 190 s"


@pytest.mark.parametrize(
    ("changes", "why"),
    [
        ({"low": None}, "too few requests"),
        ({"high": math.inf}, "too many requests have no complete answer"),
        ({"value": math.inf, "high": math.inf}, "too many requests have no complete answer"),
        ({"mark": FEW_EPISODES}, "values above the percentile came in too few periods of the run"),
        ({"mark": TOO_FEW}, "too few requests"),
        ({"low": 385.0, "high": 615.0}, "half width 23%, would need about 3,800 s"),
    ],
)
def test_of_what_is_not_known_it_says_why(changes, why):
    q = replace(Q, **changes)

    assert not is_known(q, 0.05)
    with at_level(0.975):
        assert (
            precision_text(q, 0.05, STAGE, is_over=False)
            == f"is not known to 5% after 190 s: {why}"
        )
        assert (
            precision_text(q, 0.05, STAGE, is_over=True) == f"cannot be known to 5% in 190 s: {why}"
        )


def test_the_level_of_intervals_is_stated_where_there_may_be_looks():
    assert looked({"precision": {"confidence": None, "looks": 0}}) == ""
    assert looked({"precision": {"confidence": 0.9875, "looks": 5}}) == (
        "each interval of a percentile or share is at 98.75%: it covers 95% over 5 looks and the end"
    )
