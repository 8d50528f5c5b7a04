"""Shares, rates and gaps of the grammar, against many runs of each process."""

import math

import numpy as np
import pytest

ERRORS = (
    4.5  # standard errors of a count that a truth may be off by; about 200 counts are looked at
)
SHARES = (0.5, 0.2, 0.05)


@pytest.fixture(scope="module")
def drawn(full_size):
    import processes

    return [processes.draw(31, number) for number in range(120 if full_size else 24)]


@pytest.fixture(scope="module")
def times(full_size):
    return 60 if full_size else 20


def errors_of(counts, totals, share):
    """Return how many standard errors the counts of runs are off a share of their totals."""
    excess = counts - share * totals
    total = float(excess.sum())
    if abs(total) < 1e-6:  # the share is a sum of floats
        return 0.0
    error = math.sqrt(len(excess)) * float(excess.std(ddof=1))
    return total / error if error else math.inf


@pytest.mark.slow
def test_the_shares_beyond_a_bound_are_those_of_many_runs(drawn, times):
    off = []
    for process in drawn:
        bounds = [process.bound_of(max(share, 1.2 * process.failing)) for share in SHARES]
        rng = np.random.default_rng(process.number)
        runs = [process.run(rng) for _ in range(times)]
        totals = np.array([len(run.at) - run.first for run in runs])
        for bound in bounds:
            late = np.array([((run.latency > bound) | run.failed)[run.stage].sum() for run in runs])
            bad = np.array([(~run.good(bound)).sum() for run in runs])
            found = (
                errors_of(late, totals, process.beyond(bound)),
                errors_of(bad, totals, 1 - process.stays(bound)),
            )
            if max(map(abs, found)) > ERRORS:
                off.append((process.number, process.text(), found))

    assert off == []


@pytest.mark.slow
def test_the_rates_are_those_of_many_runs(drawn, times):
    off = []
    for process in drawn:
        rng = np.random.default_rng(process.number)
        done = []
        for _ in range(times):
            _, _, ended = process.run(rng).work(rng)
            done.append(((ended >= 0) & (ended < process.seconds)).sum())
        expected = process.completed * process.seconds
        error = np.std(done, ddof=1) / math.sqrt(times)
        if abs(np.mean(done) - expected) > ERRORS * error + 1:
            off.append((process.number, process.text(), np.mean(done), expected))

    assert off == []


@pytest.mark.parametrize("number", [3, 8, 21])
def test_gaps_have_the_distribution_of_the_latencies(drawn, number):
    process = drawn[number]
    bound = process.between(process.quantile(0.7))
    rng = np.random.default_rng(number)
    late = []
    totals = []
    for _ in range(40):
        values, sizes = process.run(rng).gaps(rng, 2000)
        late.append((values > bound).sum())
        totals.append(sizes.sum())

    assert abs(errors_of(np.array(late), np.array(totals), 1 - process.below(bound))) < ERRORS


def test_a_seed_and_a_number_draw_the_same_process_and_run(drawn):
    import processes

    again = processes.draw(31, 5)
    run, other = (process.run(np.random.default_rng(1)) for process in (drawn[5], again))

    assert again.text() == drawn[5].text()
    assert (run.latency == other.latency).all()
    assert processes.draw(32, 5).text() != again.text()


def test_every_factor_is_drawn():
    import processes

    texts = [processes.draw(8, number).text() for number in range(300)]
    for part in ("AR", "queue", "slow x", "by turns", "by session", "by user", "by prefix", "by tag", "sine", "square",
                 "fail in periods", "fail by", "patience", "open at the end", "rounded", "as long", "modes"):  # fmt: skip
        assert sum(part in text for text in texts) >= 2, part
