"""Shares of the requests of the steady stage, and of their attempts, with what their waits say of each other."""

from dataclasses import replace

import numpy as np
import pytest

from tailgauge.rows import schema
from tailgauge_analysis.metrics.steady import steady
from tailgauge_analysis.reading.frames import load
from tailgauge_analysis.stats.dependence import Grouping

pytestmark = pytest.mark.slow

REQUESTS = 2000
FAILED = {300: schema.SERVER_ERROR, 1500: schema.SERVER_ERROR}
OUTAGE = slice(900, 960)
US = 1e-3  # ms


@pytest.fixture
def with_waits(write):
    """The steady stage of a run whose requests wait so long for their first content."""

    def stage(name, ttft_ms, **more):
        folder = write(name, n=len(ttft_ms), ttft_ms=ttft_ms, warmup_s=0.0, **more)
        return steady(load([folder]))

    return stage


def test_answers_of_an_outage_a_few_microseconds_apart_say_as_much_of_failures_as_equal_ones(
    with_waits,
):
    rng = np.random.default_rng(3)
    ttft_ms = rng.lognormal(np.log(200), 0.3, REQUESTS)
    ttft_ms[OUTAGE] = 9000.0
    jitter_ms = np.zeros(REQUESTS)
    jitter_ms[OUTAGE] = rng.uniform(0, 3 * US, 60)
    equal = with_waits("equal", ttft_ms, ended=FAILED)
    apart = with_waits("apart", ttft_ms + jitter_ms, ended=FAILED)

    share = apart.share(apart.requests["ended"].eq(schema.SERVER_ERROR).to_numpy(np.bool_))

    assert share == equal.share(equal.requests["ended"].eq(schema.SERVER_ERROR).to_numpy(np.bool_))
    assert (share.n, share.k) == (REQUESTS, 2)
    assert share.n_eff < 50


def test_attempts_of_sessions_whose_answers_differ_by_microseconds_are_as_alike_as_equal_ones(
    with_waits,
):
    """Every ninth session is slow throughout, and no attempt fails."""
    rng = np.random.default_rng(4)
    session = rng.permutation(np.repeat(np.arange(REQUESTS // 5), 5))
    ttft_ms = np.where(session % 9 == 0, 700.0, 200.0)
    sessions = (Grouping("session", session, follows_by_construction=True),)
    equal = replace(with_waits("equal", ttft_ms), groupings=sessions)
    jitter_ms = rng.uniform(0, 4 * US, REQUESTS)
    apart = replace(with_waits("apart", ttft_ms + jitter_ms), groupings=sessions)
    none = np.zeros(REQUESTS, np.bool_)

    share = apart.share_of(apart.sent, none)

    assert share == equal.share_of(equal.sent, none)
    assert share.limited_by == "session"
    assert share.n_eff < REQUESTS / 3


def test_waits_that_differ_by_a_few_milliseconds_are_no_ties(with_waits):
    """They grow from request to request, all within 10 ms: neighbours are alike."""
    ttft_ms = 200 + np.sort(np.random.default_rng(5).uniform(0, 10, REQUESTS))
    stage = with_waits("run", ttft_ms)

    share = stage.share(np.zeros(REQUESTS, np.bool_))

    assert share.n_eff < REQUESTS / 10
