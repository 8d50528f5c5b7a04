"""A run with hedging off and on, from its rows: unequal work is named, by what the target counted."""

from __future__ import annotations

from pathlib import Path

import pytest
from experiments.hedging.planted import OFF as NO_HEDGE
from run_folders.dry_runs import dry_run_folder

from tailgauge.experiments.course import RunReading
from tailgauge.experiments.hedging.judge import OFF, ON
from tailgauge.experiments.hedging.measure import load_result
from tailgauge_analysis.verdict.checks import COMPARABLE

BLOCK_S = 6.0


@pytest.mark.parametrize(
    ("tokens", "prompt", "named"),
    [(40, 200, ()), (42, 200, ("more output tokens",)), (40, 180, ("fewer prompt tokens",))],
    ids=["equal", "longer answers", "shorter prompts"],
)
def test_variants_that_do_not_do_the_same_work_are_named(
    tmp_path: Path, tokens: int, prompt: int, named: tuple[str, ...]
) -> None:
    table = {"pattern": "hedged", "hedge": dict(NO_HEDGE), "weight": 0.5}
    traffic = {
        OFF: {**table, "prompt_tokens": 200, "output_tokens": 40},
        ON: {**table, "prompt_tokens": prompt, "output_tokens": tokens},
    }
    scenario = {
        "seed": 77, "arrival": {"rate_per_s": 8.0}, "traffic": traffic, "stages": {"duration_s": 12 * BLOCK_S, "warmup_s": 0.0},
        "crossover": {"a": OFF, "b": ON, "block_s": BLOCK_S, "washout_s": 1.0},
        "simulated": {"ttft_ms": 100.0, "chunk_gap_ms": 5.0},
    }  # fmt: skip

    reading = RunReading(dry_run_folder(scenario, tmp_path), COMPARABLE)
    found = load_result(8.0, reading, "e2e_sched", BLOCK_S, None)

    assert len(found.unequal) == len(named), found.unequal
    for text, part in zip(found.unequal, named, strict=True):
        assert text.startswith("not the same work: with hedging ")
        assert part in text
