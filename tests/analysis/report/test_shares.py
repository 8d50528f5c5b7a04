"""Shares of a report: their intervals rest on effective requests, and few bursts are named."""

import numpy as np
import pytest

from tailgauge_analysis.report.build import build
from tailgauge_analysis.report.markdown import markdown
from tailgauge_analysis.run import Run

BURSTS = (200, 600)  # of 40 failures each: 8% of the 1,000 requests of the steady stage


@pytest.fixture(scope="module")
def bursty(synthetic, tmp_path_factory):
    """The contents of a run whose failures came in two bursts."""
    failed = {at + i: "server_error" for at in BURSTS for i in range(40)}
    folder = synthetic.write(
        tmp_path_factory.mktemp("bursty") / "run",
        n=1000,
        warmup_s=0,
        ended=failed,
        error={"status": 500},
    )
    return build(Run([folder]))


@pytest.mark.slow
def test_the_interval_of_bursty_failures_is_that_of_a_few_requests(bursty):
    """Plain n would give 6.4% to 9.9%."""
    outcome = next(row for row in bursty.data["outcomes"] if row["ended"] == "server_error")[
        "requests"
    ]

    assert outcome["n_eff"] < 60
    assert outcome["low"] < 0.04
    assert outcome["high"] > 0.15
    assert (outcome["mark"], outcome["episodes"]) == ("few slow periods", 2)


def test_every_place_says_the_same_interval(bursty):
    """Outcomes, groups and health are shares of the same requests."""
    ok = next(row for row in bursty.data["outcomes"] if row["ended"] == "ok")["requests"]
    group = next(group for group in bursty.data["groups"] if group["by"] == "traffic")

    assert [ok[key] for key in ("low", "high", "n_eff")] == [
        group["ok"][key] for key in ("low", "high", "n_eff")
    ]
    assert "in only 2 periods" in markdown(bursty)


@pytest.mark.slow
def test_failures_at_random_are_not_marked_and_have_the_exact_interval(synthetic, tmp_path):
    rng = np.random.default_rng(4)
    failed = dict.fromkeys(map(int, rng.choice(1000, 50, replace=False)), "server_error")
    made = synthetic.write(
        tmp_path / "run", n=1000, warmup_s=0, ended=failed, error={"status": 500}
    )
    outcome = next(
        row for row in build(Run([made])).data["outcomes"] if row["ended"] == "server_error"
    )["requests"]

    assert outcome["mark"] == ""
    assert outcome["low"] == pytest.approx(0.0373, abs=0.004)
    assert outcome["high"] == pytest.approx(0.0653, abs=0.004)
