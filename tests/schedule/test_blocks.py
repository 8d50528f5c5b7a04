"""Two tables in alternating blocks: every block is of one, both of a pair differ, other tables are left alone."""

import numpy as np
import pytest

from tailgauge.errors import ScenarioError
from tailgauge.scenario import model
from tailgauge.schedule.schedule import plan


def load(tmp_path, tail, arrival='process = "poisson"\nrate_per_s = 40'):
    path = tmp_path / "turns.toml"
    path.write_text(
        f"[target]\nurl = 'simulated'\n[arrival]\n{arrival}\n[stages]\nduration_s = 130\nwarmup_s = 10\n"
        f"[traffic.a]\n[traffic.b]\n[traffic.other]\n{tail}\n"
    )
    return model.load(str(path), [])


def planned(asked, seed=1):
    return plan(
        asked.arrival,
        asked.traffic,
        asked.stages.duration_s,
        seed,
        warmup_s=10.0,
        alternating=asked.alternating,
    )


def test_each_block_is_of_one_variant_and_each_pair_has_both(tmp_path):
    asked = load(tmp_path, "[crossover]\na = 'a'\nb = 'b'\nblock_s = 10\nwashout_s = 1")
    firsts = set()
    for seed in range(6):
        schedule = planned(asked, seed)
        names = np.array(schedule.names)[schedule.traffic]
        block = np.floor(schedule.at_ns / 1e9 / 10).astype(int) - 1
        assert set(names[block < 0]) == {"a", "other"}
        variants = [set(names[block == i]) - {"other"} for i in range(12)]
        assert all(len(variant) == 1 for variant in variants)
        assert all(variants[2 * i] | variants[2 * i + 1] == {"a", "b"} for i in range(6))
        firsts |= {(seed, *variants[2 * i]) for i in range(6)}
        assert 0.2 < (names == "other").mean() < 0.47
    assert {name for _, name in firsts} == {"a", "b"}


def test_without_turns_the_plan_is_what_it_was_and_with_them_times_stay(tmp_path):
    asked = load(tmp_path, "[crossover]\na = 'a'\nb = 'b'\nblock_s = 10\nwashout_s = 1")
    plain = load(tmp_path, "")

    assert plain.alternating is None
    assert (planned(asked).at_ns == planned(plain).at_ns).all()
    assert ((planned(asked).traffic == 2) == (planned(plain).traffic == 2)).all()


@pytest.mark.parametrize(
    ("tail", "arrival", "error_text"),
    [
        ("a = 'a'\nb = 'a'", None, "two traffic tables"), ("a = 'a'\nb = 'c'", None, "there is no traffic.c"),
        ("a = 'a'\nb = 'b'\nblock_s = 5", None, "washout_s must be shorter"),
        ("a = 'a'\nb = 'b'", 'process = "closed"', "closed loop"),
    ],
)  # fmt: skip
def test_impossible_turns_are_refused(tmp_path, tail, arrival, error_text):
    with pytest.raises(ScenarioError, match=error_text):
        load(tmp_path, f"[crossover]\n{tail}", *([arrival] if arrival else []))
