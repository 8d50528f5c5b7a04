"""Whether a queue of known capacity is called a backlog: seldom below 90% load, nearly always above 100%.

The default run draws few of each kind from fixed seeds, the full size 400 from a fresh one, which is printed.
"""

import numpy as np
import pytest
from run_folders.queues import batches, servers, waiting_of

from tailgauge_analysis.metrics.backlog import backlog

WARMUP = 0.1
KINDS = {
    "M/M/1": servers("poisson", "exponential", 1),
    "M/M/8, whole answers": servers("poisson", "exponential", 8, streamed=False),
    "M/D/1": servers("poisson", "constant", 1),
    "D/M/1": servers("constant", "exponential", 1),
    "D/D/4": servers("constant", "constant", 4),
    "M/G/1 lognormal": servers("poisson", "lognormal", 1),
    "M/G/1 Pareto": servers("poisson", "Pareto", 1),
    "two sizes at 4": servers("poisson", "two sizes", 4),
    "gamma bursts at 4": servers(1.2, "exponential", 4),
    "16 slots": batches("poisson", 16, 50),
    "8 slots, whole answers": batches("constant", 8, 100, streamed=False),
}
FEW = ("M/M/1", "M/D/1", "M/G/1 Pareto", "16 slots")  # of the default run


def share_called(queue, load, n, runs, rng):
    """Share of runs called a backlog, and their growth beside the excess of the load."""
    called = []
    growths = []
    for _ in range(runs):
        waits = waiting_of(queue(rng, load, n))
        last_s = waits.begun_s[-1]
        found = backlog(waits, WARMUP * last_s, last_s)
        called.append(found.grows)
        growths.append(found.per_s)
    return np.mean(called), np.mean(growths)


@pytest.fixture
def drawing(sampling):
    """Runs of each kind and a generator."""
    return sampling(3, 12, 400)


def spread(share, runs):
    """Two standard errors of a share."""
    return 2 * np.sqrt(share * (1 - share) / runs)


def skip_most(kind, full_size):
    if not full_size and kind not in FEW:
        pytest.skip("make verify: other kinds of queues")


@pytest.mark.slow
@pytest.mark.parametrize("kind", KINDS)
@pytest.mark.parametrize(("load", "n"), [(0.9, 60), (0.9, 200), (0.9, 1000), (0.7, 500)])
def test_a_queue_below_its_capacity_is_no_backlog(drawing, full_size, kind, load, n):
    skip_most(kind, full_size)
    runs, rng = drawing
    called, _ = share_called(KINDS[kind], load, n, runs, rng)

    assert called <= 0.03 + spread(0.03, runs)


@pytest.mark.parametrize("kind", KINDS)
@pytest.mark.parametrize(("load", "n"), [(1.5, 200), (1.1, 2000)])
def test_a_queue_above_its_capacity_is_a_backlog(drawing, full_size, kind, load, n):
    skip_most(kind, full_size)
    runs, rng = drawing
    if n > 1000 and not full_size:
        runs = 5
    called, growth = share_called(KINDS[kind], load, n, runs, rng)

    least = (
        0.88 if kind == "gamma bursts at 4" else 0.95
    )  # at 1.5 its arrivals alone may vary by a third
    assert called >= least - spread(least, runs)
    assert growth == pytest.approx(1 - 1 / load, rel=0.25)


@pytest.mark.parametrize("share", [0.01, 0.05, 0.3])
@pytest.mark.parametrize("lost_from", [0.0, 0.5])
def test_answers_that_never_come_are_no_backlog_whatever_their_share(share, lost_from):
    rng = np.random.default_rng(1)
    at_s, first_s, ended_s = servers("poisson", "exponential", 4)(rng, 0.3, 600)
    lost = (rng.random(600) < share) & (at_s > lost_from * at_s[-1])
    waits = waiting_of((at_s, np.where(lost, np.inf, first_s), np.where(lost, np.inf, ended_s)))

    assert not backlog(waits, 60.0, at_s[-1]).grows


@pytest.mark.parametrize(
    ("long_s", "share"), [(10.0, 0.2), (60.0, 0.05), (300.0, 0.1), (60.0, 0.3)]
)
def test_some_long_answers_are_no_backlog(long_s, share):
    rng = np.random.default_rng(2)
    at_s = np.cumsum(rng.exponential(0.1, 600))
    takes_s = np.where(rng.random(600) < share, long_s, rng.uniform(0.5, 1.5, 600))

    for first_s in (at_s + 0.2, at_s + takes_s):  # streamed or whole
        assert not backlog(waiting_of((at_s, first_s, at_s + takes_s)), 6.0, at_s[-1]).grows


@pytest.mark.parametrize("slower", [0.5, 1.0, 5.0])
@pytest.mark.parametrize("begin", [0.0, 0.5, 0.9])
def test_a_target_that_becomes_slower_at_once_has_no_backlog(slower, begin):
    rng = np.random.default_rng(3)
    at_s = np.cumsum(rng.exponential(0.05, 1000))
    first_s = at_s + rng.uniform(0.2, 0.3, 1000) + slower * (at_s > begin * at_s[-1])

    assert not backlog(waiting_of((at_s, first_s, first_s + 1)), 5.0, at_s[-1]).grows


def test_refusals_carry_an_overload_away():
    """A queue of at most 20: what finds it full is refused at once."""
    rng = np.random.default_rng(4)
    at_s = np.cumsum(rng.exponential(1.0, 1000))
    over_s = np.empty(1000)
    ends = []
    for i, at in enumerate(at_s):
        ends = [end for end in ends if end > at]
        over_s[i] = at + 0.01
        if len(ends) < 20:
            over_s[i] = max([at, *ends]) + 1 / 1.5
            ends.append(over_s[i])

    assert not backlog(waiting_of((at_s, over_s, over_s)), 100.0, at_s[-1]).grows


def test_a_slower_pace_is_a_backlog_although_first_contents_come_soon():
    """An engine without slots: each answer slows down the others, and first contents come with the next step."""
    rng = np.random.default_rng(5)
    at_s = np.cumsum(rng.exponential(1.0, 2000))
    in_flight = np.maximum(1.0, 0.1 * at_s)
    waits = waiting_of((at_s, at_s + 0.05 * in_flight, at_s + in_flight))
    found = backlog(waits, 200.0, at_s[-1])

    assert found.grows
    assert found.per_s == pytest.approx(0.1, rel=0.2)


def test_too_few_requests_are_not_judged():
    rng = np.random.default_rng(6)
    waits = waiting_of(servers("poisson", "exponential", 1)(rng, 2.0, 19))

    assert backlog(waits, 0.0, waits.begun_s[-1]) is None


def cut_at_end(queue):
    """What is answered after the load is open for ever: a run without drain."""
    at_s, first_s, ended_s = queue
    over_s = at_s[-1]
    return (
        at_s,
        np.where(first_s > over_s, np.inf, first_s),
        np.where(ended_s > over_s, np.inf, ended_s),
    )


@pytest.mark.parametrize("kind", FEW)
@pytest.mark.parametrize(("load", "n"), [(3.0, 200), (8.0, 400), (20.0, 800)])
def test_a_deep_overload_of_which_little_is_answered_is_a_backlog(kind, load, n):
    rng = np.random.default_rng(8)
    for _ in range(5):
        waits = waiting_of(cut_at_end(KINDS[kind](rng, load, n)))
        assert backlog(waits, WARMUP * waits.begun_s[-1], waits.begun_s[-1]).grows


@pytest.mark.parametrize("median_s", [1.0, 5.0, 20.0, 40.0])
@pytest.mark.parametrize("sigma", [0.2, 0.6, 1.2])
def test_long_waits_that_a_run_without_drain_cuts_are_no_backlog(drawing, median_s, sigma):
    runs, rng = drawing
    called = []
    for _ in range(runs):
        at_s = np.sort(rng.uniform(0, 60, 400))
        first_s = at_s + median_s * np.exp(sigma * rng.normal(size=400))
        waits = waiting_of(cut_at_end((at_s, first_s, first_s + 1)))
        called.append(backlog(waits, 6.0, 60.0).grows)

    assert np.mean(called) <= 0.03 + spread(0.03, runs)
