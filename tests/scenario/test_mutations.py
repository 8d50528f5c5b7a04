"""Mutated scenarios: each is a plan, or one clear error that names file, key and what was expected; never a traceback or a hang."""

from collections import Counter

import pytest
from scenario.defects import defect
from scenario.mutations import Mutation
from starting.fixtures import TooLongError

HANGS_S = 10.0


@pytest.mark.slow
def test_a_mutated_scenario_is_planned_or_refused_by_file_and_key(
    tmp_path, monkeypatch, bounded, fuzz
):
    """`TAILGAUGE_FUZZ=SEED` repeats a run, `TAILGAUGE_FUZZ=SEED-NUMBER` one mutation."""
    seed, numbers, repeats_one = fuzz(400, 20_000)
    monkeypatch.chdir(tmp_path)
    monkeypatch.delenv("ANTHROPIC_API_KEY", raising=False)
    became, defects = Counter(), {}
    for number in numbers:
        mutation = Mutation(seed, number)
        bounded(HANGS_S)
        try:
            end, wrong = defect(mutation.write(tmp_path), mutation.pairs, tmp_path)
        except TooLongError:
            end, wrong = "hang", f"over {HANGS_S:g} s of CPU"
        bounded(0)
        became[end] += 1
        if wrong:
            defects[mutation.name] = f"{end}: {wrong}"
    print(dict(became))

    assert defects == {}
    if not repeats_one:
        assert became["planned"] > len(numbers) / 20
        assert became["refused"] > len(numbers) / 3
