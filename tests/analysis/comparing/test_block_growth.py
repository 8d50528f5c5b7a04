"""Growth of the backlog in alternating blocks: judged block by block, so that neither a wave of load nor a backlog left by
the other variant is growth.
"""

import numpy as np
import pytest
from run_folders.queues import SERVICES, served

from tailgauge_analysis.comparing.block_growth import block_growth
from tailgauge_analysis.comparing.variant_blocks import VariantBlock
from tailgauge_analysis.metrics.waiting import UNQUEUED, Waiting

NO_ONE = np.zeros(0, bool)
SERVICE_KINDS = ("constant", "exponential", "lognormal")
CV = 2.0  # of the gaps of bursts


def in_turns(pairs):
    """Which blocks are B's: A B B A ..."""
    return [number % 4 in {1, 2} for number in range(2 * pairs)]


def growth_of(due_s, first_s, ended_s, *, pairs, block_s):
    """The growth of these requests; B's are those of its blocks."""
    order = in_turns(pairs)
    is_b = np.array([order[int(at_s // block_s)] for at_s in due_s])
    unqueued_s = np.zeros(len(due_s))
    for mask in (is_b, ~is_b):
        unqueued_s[mask] = np.quantile((first_s - due_s)[mask], UNQUEUED)
    waits = Waiting(
        begun_s=due_s,
        first_s=first_s,
        ended_s=ended_s,
        unqueued_s=unqueued_s,
        late_s=np.zeros(len(due_s)),
        is_steady=np.ones(len(due_s), bool),
    )
    blocks = []
    for number in range(2 * pairs):
        begun_s = number * block_s
        blocks.append(VariantBlock(NO_ONE, begun_s, begun_s + block_s / 6, begun_s + block_s))
    sides = []
    for first in range(0, 2 * pairs, 2):
        pair = blocks[first : first + 2]
        sides.append(tuple(reversed(pair)) if order[first] else tuple(pair))
    return block_growth(waits, sides)


def planted(rate_per_s, slots, *, pairs=10, block_s=20.0, b_work=1.0, slow=(), seed=1):
    """Requests at a first-come-first-served target, each 0.1 s long.

    A call of B takes `b_work` times as long; between the seconds `slow` every call takes four times as long.
    """
    rng = np.random.default_rng(seed)
    seconds = 2 * pairs * block_s
    due_s = np.sort(rng.uniform(0, seconds, rng.poisson(rate_per_s * seconds)))
    order = in_turns(pairs)
    work_s = np.array([0.1 * (b_work if order[int(at_s // block_s)] else 1.0) for at_s in due_s])
    if slow:
        work_s[(due_s >= slow[0]) & (due_s < slow[1])] *= 4
    first_s = served(due_s, work_s, slots)
    return growth_of(due_s, first_s, first_s + work_s, pairs=pairs, block_s=block_s)


def drawn(rng, loads, fewest=40):
    """A run at these loads of A and B: of any arrivals, services, slots and blocks, with so many requests of each at least."""
    while True:
        slots = int(rng.choice([1, 2, 4, 8, 16, 64]))
        block_s = float(np.exp(rng.uniform(np.log(2), np.log(30))))
        pairs = int(rng.integers(3, 21))
        rate = float(np.exp(rng.uniform(0, np.log(100))))
        if fewest <= rate * block_s * pairs <= 4000 and block_s > max(loads) * slots / rate:
            break
    seconds = 2 * pairs * block_s
    shape = 1 / CV**2 if rng.random() < 1 / 3 else 1.0
    gaps_s = rng.gamma(shape, 1 / (shape * rate), int(2 * rate * seconds) + 200)
    due_s = np.cumsum(gaps_s)
    due_s = due_s[due_s < seconds]
    order = in_turns(pairs)
    of_block = np.array([loads[order[int(at_s // block_s)]] for at_s in due_s])
    service = SERVICES[str(rng.choice(SERVICE_KINDS))]
    work_s = service(rng, len(due_s)) * of_block * slots / rate
    first_s = served(due_s, work_s, slots)
    return growth_of(due_s, first_s, first_s + work_s, pairs=pairs, block_s=block_s)


@pytest.fixture
def drawing(sampling):
    """Runs of each kind, and a generator."""
    return sampling(5, 60, 400)


@pytest.mark.slow
@pytest.mark.parametrize(
    "loads", [(None, None), (0.9, 0.9), (0.3, 0.9)], ids=["any", "busy", "one busy"]
)
def test_healthy_variants_are_seldom_called(loads, drawing):
    runs, rng = drawing
    called = 0
    for _ in range(runs):
        found = drawn(rng, [load or rng.uniform(0.3, 0.9) for load in loads])
        called += found.of_variants != (None, None) or found.grows_throughout

    assert called <= 0.03 * runs + 3 * np.sqrt(0.03 * runs)


@pytest.mark.slow
@pytest.mark.parametrize(("load", "least"), [(1.5, 0.95), (3.0, 0.95)])
def test_a_variant_that_is_too_much_is_found_and_the_other_one_is_not_blamed(load, least, drawing):
    runs, rng = drawing
    is_found = 0
    blamed = 0
    for _ in range(runs):
        found = drawn(rng, [rng.uniform(0.3, 0.9), load], fewest=200)
        a, b = found.of_variants
        is_found += b is not None
        blamed += a is not None

    assert is_found >= least * runs - 3 * np.sqrt(0.05 * runs)
    assert blamed <= 0.05 * runs + 3 * np.sqrt(0.05 * runs)


def test_a_target_that_slows_down_instead_of_letting_requests_wait_holds_more_and_more():
    """Every answer of B's blocks takes longer by what came in the block before it."""
    rng = np.random.default_rng(2)
    due_s = np.sort(rng.uniform(0, 400, 4000))
    order = in_turns(10)
    is_b = np.array([order[int(at_s // 20)] for at_s in due_s])
    stay_s = 0.5 + is_b * (due_s % 20) * 0.5
    found = growth_of(due_s, due_s + 0.01, due_s + stay_s, pairs=10, block_s=20.0)

    assert found.of_variants[0] is None
    assert found.of_variants[1] > 2


@pytest.mark.parametrize(
    "given",
    [
        {"rate_per_s": 9.0, "slots": 2, "slow": (31, 39)},
        {"rate_per_s": 30.0, "slots": 5, "slow": (205, 222), "seed": 2},
        {"rate_per_s": 4.0, "slots": 1, "slow": (380, 400), "block_s": 30.0, "seed": 3},
        {"rate_per_s": 8.0, "slots": 1, "pairs": 7, "seed": 4},
    ],
    ids=["in A", "in the middle", "at the end", "busy"],
)
def test_one_wave_of_load_is_no_growth(given):
    growth = planted(**given)

    assert growth.of_variants == (None, None)
    assert not growth.grows_throughout


@pytest.mark.parametrize(
    ("given", "grows"),
    [
        ({"rate_per_s": 12.0, "slots": 2, "b_work": 2.4}, (False, True)),
        ({"rate_per_s": 30.0, "slots": 5, "b_work": 2.5, "seed": 2}, (False, True)),
        ({"rate_per_s": 6.0, "slots": 1, "b_work": 2.3, "block_s": 40.0, "seed": 3}, (False, True)),
        ({"rate_per_s": 26.0, "slots": 2, "seed": 4}, (True, True)),
    ],
)
def test_a_variant_that_is_too_much_grows_in_its_blocks(given, grows):
    growth = planted(**given)

    assert tuple(value is not None for value in growth.of_variants) == grows


@pytest.mark.parametrize(
    "given",
    [
        {"rate_per_s": 12.0, "slots": 1},
        {"rate_per_s": 26.0, "slots": 2, "pairs": 7, "seed": 2},
        {"rate_per_s": 9.0, "slots": 1, "b_work": 1.8, "block_s": 30.0, "seed": 3},
    ],
)
def test_a_target_that_is_too_full_grows_from_pair_to_pair(given):
    growth = planted(**given)

    assert growth.grows_throughout
    assert growth.from_pair_to_pair.low > 0
