"""What copies of a call share, what they do not, and how often a replica is slow."""

from __future__ import annotations

from math import log

import numpy as np
import pytest

from tailgauge.scenario.simulated import StragglersTable
from tailgauge.simulator.behaviours.stragglers import Stragglers, prompt_key

S = 1_000_000_000
PROMPTS = [f"{i}/0" for i in range(4000)]


def stragglers(seed: int = 0, **values: float) -> Stragglers:
    return Stragglers(StragglersTable(**values), seed)


def test_switched_off_every_factor_is_one():
    off = stragglers()

    assert {off.factor(f"{prompt}/0", 3, 7 * S) for prompt in PROMPTS[:100]} == {1.0}


@pytest.mark.parametrize(
    ("key", "prompt"), [("7/2/1", "7/2"), ("7/2/0", "7/2"), ("by-hand", "by-hand"), ("#3", "#3")]
)
def test_the_copies_of_a_call_share_its_prompt(key, prompt):
    assert prompt_key(key) == prompt


def test_draws_hang_on_nothing_but_seed_prompt_and_replica():
    one = stragglers(size_sigma=0.5, slow_share=0.5, seed=1)
    other = stragglers(size_sigma=0.5, slow_share=0.5, seed=2)

    assert [one.factor("7/0/0", 0, 0)] * 2 == [
        one.factor("7/0/1", 0, 0),
        one.factor("7/0/0", 0, 9 * S),
    ]
    assert one.size("7/0") != other.size("7/0")
    assert one.size("7/0") != one.size("8/0")
    assert len({one.slowdown("7/0", replica) for replica in range(20)}) == 2


def test_the_draws_are_the_same_in_every_process():
    assert round(stragglers(size_sigma=1.0, seed=5).size("7/0"), 6) == 1.091747


def test_a_key_with_bytes_that_are_no_text_draws_too():
    assert stragglers(slow_share=1.0).slowdown("run\udcff", 0) == 10.0


def test_the_share_of_slow_calls_is_the_one_asked_for_and_replicas_are_independent():
    one = stragglers(slow_share=0.1, slow_factor=8.0)
    slow = np.array(
        [[one.slowdown(prompt, replica) == 8.0 for replica in (0, 1)] for prompt in PROMPTS]
    )

    assert slow.mean() == pytest.approx(0.1, abs=0.014)
    assert (slow[:, 0] & slow[:, 1]).mean() == pytest.approx(0.01, abs=0.0063)


def test_a_pareto_tail_has_its_index():
    drawn = np.array([stragglers(pareto_alpha=2.0).slowdown(prompt, 0) for prompt in PROMPTS])

    assert drawn.min() >= 1.0
    assert 1 / np.log(drawn).mean() == pytest.approx(2.0, rel=0.065)
    assert (drawn > 10).mean() == pytest.approx(0.01, abs=0.0063)


def test_sizes_are_lognormal_with_median_one():
    logs = np.array([log(stragglers(size_sigma=0.4).size(prompt)) for prompt in PROMPTS])

    assert logs.mean() == pytest.approx(0, abs=0.026)
    assert logs.std() == pytest.approx(0.4, rel=0.05)


def test_a_replica_is_in_a_brownout_for_its_share_of_every_cycle():
    one = stragglers(brownout_factor=5.0, brownout_on_s=2, brownout_off_s=8)
    states = np.array(
        [[one.brownout(replica, tenth * S // 10) for tenth in range(1000)] for replica in range(5)]
    )
    bad = (states == 5.0).reshape(5, 10, 100)  # replica, cycle, tenth of a second

    assert set(bad.sum(axis=2).ravel()) == {20}
    assert set(np.abs(np.diff(bad.astype(int), axis=2)).sum(axis=2).ravel()) <= {
        1,
        2,
    }  # one stretch, at the edge or not
    assert len({tuple(one) for one in bad[:, 0]}) > 1
