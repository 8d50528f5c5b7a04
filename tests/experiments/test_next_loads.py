"""Why a load is inconclusive, and which loads are next."""

import math

import pytest

from tailgauge.experiments.loads.judge import JudgedLoad
from tailgauge.experiments.loads.run import Exceedance
from tailgauge.experiments.next_loads import InconclusiveLoad, explain, follow_up
from tailgauge_analysis.stats.proportions import counted
from tailgauge_analysis.text.section import FAIL, INCONCLUSIVE, PASS


def inconclusive(*shares):
    return JudgedLoad(
        load=8.0, arrived=8.0, runs=(), outcome=INCONCLUSIVE, leans="PASS", shares=shares, cause="", met=INCONCLUSIVE, unseen_per_s=0.0,
    )  # fmt: skip


def ttft(k, n, n_eff=None):
    return Exceedance("ttft p95 < 800 ms", counted(k, n, n_eff), 0.05)


ENOUGH = ttft(0, 400)


@pytest.mark.parametrize(
    ("share", "text"),
    [
        (ttft(0, 98, 10), "0 of 98 requests miss ttft p95 < 800 ms (5.0% may); 98 correlated requests count as 10: about 880 are needed"),
        (ttft(1, 60), "1 of 60 requests misses ttft p95 < 800 ms (5.0% may): about 210 are needed"),
        (ttft(5, 98), "5 of 98 requests miss ttft p95 < 800 ms (5.0% may), which is too near to tell"),
        (Exceedance("refusals", counted(0, 90), 0.01), "0 of 90 calls refused (1.0% may be): about 460 are needed"),
    ],
)  # fmt: skip
def test_the_cause_says_what_was_seen_and_what_is_needed(share, text):
    assert explain(inconclusive(ENOUGH, share)).text == text


def test_the_share_that_needs_most_requests_is_the_cause():
    found = explain(inconclusive(ttft(0, 60), ttft(0, 60, 6)))

    assert "60 correlated requests count as 6" in found.text
    assert 10 < found.times < 15
    assert 1.1 < found.times_at_best < 1.4


def test_a_load_whose_shares_are_decided_has_an_unclear_backlog():
    found = explain(inconclusive(ENOUGH))

    assert found.text == "whether the backlog grows is not clear"
    assert found.times == 2.0


def open_load(load, times, leans=PASS):
    return InconclusiveLoad(
        load=load, times=times, times_at_best=min(times, 1.5), text="", leans=leans
    )


@pytest.mark.parametrize(
    ("ran", "holds", "fails", "unsure", "whole", "loads", "times"),
    [
        ([1, 2, 4, 8], 2, 8, [open_load(4.0, 2.0)], True, [5, 6, 7], 1.8),
        ([1, 2, 4, 8], 2, 8, [open_load(4.0, 2.0, FAIL)], True, [3], 1.0),
        ([1, 2, 4, 8], 1, 8, [open_load(2.0, 2.0), open_load(4.0, 3.0)], True, [5, 6, 7], 1.8),
        ([1, 2, 4, 8], 1, 8, [open_load(2.0, 2.0), open_load(4.0, 3.0, FAIL)], True, [3], 1.8),
        ([1, 2, 4, 8], 1, 8, [open_load(2.0, math.inf), open_load(4.0, 3.0)], True, [5, 6, 7], 1.8),
        ([4, 5, 6], 4, 6, [open_load(5.0, 2.0)], True, [5], 2.4),
        ([4, 8], None, 8, [open_load(4.0, 2.0, FAIL)], True, [1, 2], 1.0),
        ([1, 8], None, 8, [open_load(1.0, 2.0, FAIL)], True, [1], 2.4),
        ([1, 2, 4], None, None, [open_load(2.0, 3.0), open_load(4.0, 5.0)], True, [2, 4], 6.0),
        ([1, 2, 4], None, None, [open_load(2.0, 3.0), open_load(4.0, math.inf)], True, [2], 3.6),
        ([1, 2, 4, 8], 2, 8, [open_load(4.0, math.inf)], True, [5, 6, 7], 1.0),
        ([4, 5], None, 5, [open_load(4.0, math.inf)], True, None, 1.0),
        ([1, 2, 4], 4, None, [], True, [6, 8, 12, 16], 1.0),
        ([1, 2], None, 1, [], True, None, 1.0),
        ([3, 4], None, 3, [], True, [2], 1.0),
        ([0.5, 1], None, 0.5, [], False, [0.125, 0.25], 1.0),
        ([4, 5], 4, 5, [], True, None, 1.0),
        ([4, 6], 4, 6, [], True, [5], 1.0),
        ([4, 8], 4, 8, [], True, [5, 6, 7], 1.0),
        ([4, 4.5], 4, 4.5, [], False, None, 1.0),
        ([1, 16], 1, 16, [], False, [2, 4, 8], 1.0),
    ],
)  # fmt: skip
def test_the_loads_that_are_next(ran, holds, fails, unsure, whole, loads, times):
    found = follow_up(ran, holds=holds, fails=fails, unsure=unsure, whole=whole)

    if loads is None:
        assert found is None
    else:
        assert (found.loads, found.times) == (loads, pytest.approx(times))
