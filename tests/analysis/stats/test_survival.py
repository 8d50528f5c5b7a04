"""Kaplan-Meier against the textbook and against known distributions."""

import math

import numpy as np
import pytest

from tailgauge_analysis.report.report import make
from tailgauge_analysis.stats.survival import curve, waits


def test_the_textbook_example():
    """Weeks in remission of the 6-MP group (Freireich 1963): S and its standard errors as printed everywhere."""
    weeks = [6, 6, 6, 6, 7, 9, 10, 10, 11, 13, 16, 17, 19, 20, 22, 23, 25, 32, 32, 34, 35]
    seen = [1, 1, 1, 0, 1, 0, 1, 0, 0, 1, 1, 0, 0, 0, 1, 1, 0, 0, 0, 0, 0]
    c = curve(np.array(weeks, float), np.array(seen, bool))

    assert c.at.tolist() == [6, 7, 10, 13, 16, 22, 23]
    assert c.share == pytest.approx([0.857, 0.807, 0.753, 0.690, 0.627, 0.538, 0.448], abs=5e-4)
    assert c.share * np.sqrt(c.greenwood) == pytest.approx(
        [0.0764, 0.0869, 0.0963, 0.1068, 0.1141, 0.1282, 0.1346], abs=1e-4
    )


def test_without_cuts_it_is_the_plain_quantile():
    values = np.random.default_rng(1).exponential(size=500)
    for wait in waits(values, np.ones(500, bool), (0.5, 0.9, 0.99)):
        assert wait.value == np.quantile(values, wait.p, method="inverted_cdf")


def test_waits_that_were_cut_short_do_not_shift_the_quantiles():
    """Half of the users leave at a random moment. Dropping them would show a p90 that is far too low."""
    rng, planted = np.random.default_rng(2), math.log(10)
    covered, dropped = 0, []
    for _ in range(200):
        wait, patience = rng.exponential(size=1000), rng.exponential(size=1000)
        seen = wait <= patience
        found = waits(np.minimum(wait, patience), seen, (0.9,))[0]
        covered += found.low <= planted and (found.high is None or planted <= found.high)
        dropped.append(np.quantile(wait[seen], 0.9))

    assert 182 <= covered <= 199
    assert np.mean(dropped) < 0.6 * planted


def test_what_nobody_waited_for_is_not_known():
    found = waits(np.array([1.0, 2, 3, 3, 3]), np.array([True, True, False, False, False]), (0.3, 0.9))

    assert [wait.value for wait in found] == [2.0, None]
    assert found[1].high is None
    assert waits(np.empty(0), np.empty(0, bool), (0.5,))[0].value is None


def test_users_who_leave_do_not_make_the_target_look_fast(mixed, tmp_path):
    """Every second user leaves after 150 ms. Without them, only their fast answers would be left."""
    rng, run = np.random.default_rng(5), mixed(duration_s=80.0)
    for i in range(800):
        ttft = float(rng.exponential(100))
        stays = i % 2 == 0
        gone = {"first": ttft if ttft < 150 else None, "ended": "cancelled", "end": 150, "kinds": "x"}
        if stays or ttft + 20 < 150:
            run.request(i * 100, [{"first": ttft}])
        else:
            run.request(i * 100, [gone], ended="cancelled")
    report = make([run.write(tmp_path / "run")], tmp_path)
    found = {one["metric"]: one for one in report.data["survival_quantiles"]}
    ttft, e2e = found["ttft_sched"], found["e2e_sched"]

    assert ttft["cut"] < e2e["cut"]
    for one, added in ((ttft, 0), (e2e, 20)):
        for q in one["quantiles"][:2]:
            assert q["low_ms"] <= -100 * math.log(1 - q["p"]) + added <= q["high_ms"]
    assert "End to end since scheduled without abandonment (Kaplan-Meier)" in report.html.read_text()


def test_without_cuts_there_is_no_row(made):
    assert made(n=200).data["survival_quantiles"] == []
