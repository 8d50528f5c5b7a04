"""Run folders with known contents, for the tests of the analysis and of the experiments.

Nothing is imported before a test needs it.
"""

from __future__ import annotations

import secrets
from collections.abc import Callable
from types import ModuleType
from typing import Any

import pytest

EVERYTHING = (
    "traffic.chat.pattern=hedged", "traffic.chat.hedge.policy=fixed", "traffic.chat.hedge.delay_ms=300",
    "traffic.chat.retry.policy=polite", "simulated.limits.rpm=300", "simulated.limits.burst=3",
    "slo.first.metric=ttft_sched", "slo.first.quantile=0.9", "slo.first.max_ms=400",
)  # fmt: skip


@pytest.fixture(scope="session")
def sampling(full_size: bool) -> Callable[[int, int, int], tuple[int, Any]]:
    """How many runs are drawn, and their generator: `sampling(seed, few, many)`; many from a fresh seed, which is printed."""

    def sample(seed: int, few: int, many: int) -> tuple[int, Any]:
        import numpy as np

        if full_size:
            seed = secrets.randbits(32)
        print(f"seed {seed}")
        return (many if full_size else few), np.random.default_rng(seed)

    return sample


@pytest.fixture(scope="session")
def synthetic() -> ModuleType:
    """Writes run folders with planted latencies and outcomes."""
    from run_folders import synthetic

    return synthetic


@pytest.fixture(scope="session")
def losing() -> ModuleType:
    """Takes rows away from a run folder as losses do."""
    from run_folders import losses

    return losses


@pytest.fixture(scope="session")
def mixed(synthetic: ModuleType) -> Any:
    """A run request by request: `mixed(duration_s=3)`."""
    from run_folders.by_request import Mixed

    return lambda **settings: Mixed(synthetic, **settings)


@pytest.fixture(scope="module")
def everything(command, tmp_path_factory):
    """The page of a dry run that has every section: 20 s of mixed traffic against a limit, some of it hedged."""
    out = tmp_path_factory.mktemp("everything")
    sets = [item for text in EVERYTHING for item in ("--set", text)]
    done = command(["tailgauge", "run", "mix", "--dry-run", "--seed=1", *sets, "--out", out])
    reports = list(out.glob("reports/*/report.html"))
    assert reports, done.stderr
    return reports[0]


@pytest.fixture
def write(synthetic, tmp_path):
    """Write a run folder: `write(n=100, ttft_ms=200)`."""

    def folder(name="run", **changes):
        return synthetic.write(tmp_path / "runs" / name, **changes)

    return folder


@pytest.fixture
def made(write, tmp_path):
    """Write a run folder and report it: `made(n=100, ttft_ms=200)`."""
    from tailgauge_analysis.report.report import make

    return lambda **changes: make([write(**changes)], tmp_path)
