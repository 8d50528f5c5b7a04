"""Due times: reproducible, and of the distribution asked for."""

import numpy as np
import pytest

from tailgauge.scenario.simulated import Simulated
from tailgauge.simulator.behaviours.latency import TokenTimes, delays_ns, draw_key

CONSTANT = Simulated(ttft_ms=200, chunk_gap_ms=10, tokens_per_chunk=4)
DRAWN = Simulated(
    ttft_ms=200, ttft_sigma=0.5, chunk_gap_ms=10, chunk_gap_sigma=0.25, tokens_per_chunk=4
)


def test_without_sigma_every_chunk_is_due_on_the_grid():
    assert delays_ns(CONSTANT, 1, "any", 3) == [200_000_000, 210_000_000, 220_000_000]


def test_the_draws_are_the_same_in_every_process():
    assert [round(d / 1e5) for d in delays_ns(DRAWN, 1, "7/0/0", 3)] == [1267, 1368, 1450]


@pytest.mark.parametrize(
    "other", [delays_ns(DRAWN, 2, "7/0/0", 20), delays_ns(DRAWN, 1, "7/0/1", 20)]
)
def test_another_seed_or_key_draws_others(other):
    assert other != delays_ns(DRAWN, 1, "7/0/0", 20)


def test_more_output_does_not_move_the_chunks_before():
    assert delays_ns(DRAWN, 1, "k", 50)[:20] == delays_ns(DRAWN, 1, "k", 20)


def test_the_median_and_sigma_are_those_asked_for():
    first = np.log([delays_ns(DRAWN, 1, str(i), 1)[0] / 200e6 for i in range(2000)])
    gaps = np.log(np.diff(delays_ns(DRAWN, 1, "k", 4001)) / 10e6)
    assert abs(np.median(first)) < 0.06  # four standard errors of the median
    assert abs(np.median(gaps)) < 0.025
    assert first.std() == pytest.approx(0.5, rel=0.1)
    assert gaps.std() == pytest.approx(0.25, rel=0.1)


def test_an_exponential_ttft_has_the_mean_asked_for_and_moves_no_gap():
    table = Simulated(ttft_ms=200, ttft_exponential=True, chunk_gap_ms=10, chunk_gap_sigma=0.25)
    first = np.sort([delays_ns(table, 1, str(i), 1)[0] / 200e6 for i in range(2000)])
    uniform = 1 - np.exp(-first)
    above = np.arange(1, 2001) / 2000 - uniform
    assert max(above.max(), (1 / 2000 - above).max()) < 1.63 / np.sqrt(2000)
    assert np.diff(delays_ns(table, 1, "k", 20)).tolist() == pytest.approx(
        np.diff(delays_ns(DRAWN, 1, "k", 20)), abs=1
    )


def test_the_wildest_draws_stay_in_int64_and_in_order():
    delays = delays_ns(
        Simulated(ttft_ms=1e9, ttft_sigma=3, chunk_gap_ms=1e9, chunk_gap_sigma=3), 1, "k", 100_000
    )
    assert delays == sorted(delays)
    assert 0 < delays[0] <= delays[-1] < 2**63


@pytest.mark.parametrize(
    ("client_request_id", "key"),
    [("run-a/7/0/1", "7/0/1"), ("run-b/7/0/1", "7/0/1"), ("by-hand", "by-hand"), ("", "#3")],
)
def test_a_call_is_keyed_without_its_run(client_request_id, key):
    assert draw_key(client_request_id, 3) == key


def test_tokens_are_made_a_chunk_at_a_time_and_a_straggler_stretches_all_of_them():
    plain, slow = (
        TokenTimes(CONSTANT, 1, "any", 10, start_ns=1000, factor=factor) for factor in (1.0, 3.0)
    )

    assert plain.made_ns == [200_001_000, 210_001_000, 220_001_000]
    assert slow.made_ns == [600_001_000, 630_001_000, 660_001_000]
    assert [plain.tokens_made(at) for at in (200_000_999, 200_001_000, 215_000_000, 10**10)] == [
        0,
        4,
        8,
        10,
    ]
