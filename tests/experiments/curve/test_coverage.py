"""The knee against brute force at four endpoints: fresh seeds, rates of today from an eighth of the knee to four fifths."""

import numpy as np
import pytest
from experiments import by_dry_run
from experiments.curve.planted import ENDPOINTS, MINUTES

SEEDS = range(9001, 9021)
OF_20, OF_80, WIDTH = 17, 72, 0.15


@pytest.fixture(scope="module")
def found(tmp_path_factory, full_size):
    """By endpoint its knee and the answers; the short form looks at one with four slots, for fewer minutes."""
    folder, out = tmp_path_factory.mktemp("curves"), {}
    for name, endpoint in ENDPOINTS.items():
        if full_size or name == "four slots":
            knee = endpoint.knee(folder, 80_000 if full_size else 2_000)
            minutes, seeds = (MINUTES, SEEDS) if full_size else (5.0, SEEDS[:1])
            out[name] = (
                knee,
                [by_dry_run.conducted(endpoint.experiment(seed, minutes), folder) for seed in seeds],
            )
    return out


def holds(knee, done):
    found = done.answer.finding.knee
    return found.is_interval and found.low <= knee <= found.high


def test_the_interval_holds_the_knee_of_endless_runs(found):
    hits = {name: sum(holds(knee, one) for one in done) for name, (knee, done) in found.items()}
    count = sum(len(done) for _, done in found.values())

    assert all(n >= len(found[name][1]) * OF_20 / 20 for name, n in hits.items()), hits
    assert sum(hits.values()) >= count * OF_80 / 80, hits


def test_the_interval_is_as_narrow_as_the_dry_run_says(found, full_size):
    widths = [
        (one.answer.finding.knee.high - one.answer.finding.knee.low) / one.answer.finding.knee.value
        for _, done in found.values()
        for one in done
        if one.answer.finding.knee.is_interval
    ]

    assert np.median(widths) <= (WIDTH if full_size else 2 * WIDTH)
    assert all("a change of the knee by" in one.answer.smallest for _, done in found.values() for one in done)


def test_the_minutes_given_are_kept(found, full_size):
    minutes = MINUTES if full_size else 5.0
    for _, done in found.values():
        for one in done:
            assert 0.9 * minutes <= one.ledger.real_s(rests=False) / 60 <= 1.1 * minutes
            assert len(one.answer.finding.points) >= 7
