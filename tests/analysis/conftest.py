"""Synthetic runs for the tests of the analysis."""

from __future__ import annotations

import importlib.util
import sys
from pathlib import Path

import pytest

EVERYTHING = (
    "traffic.chat.pattern=hedged", "traffic.chat.hedge.policy=fixed", "traffic.chat.hedge.delay_ms=300",
    "traffic.chat.retry.policy=polite", "simulated.limits.rpm=300", "simulated.limits.burst=3",
    "slo.first.metric=ttft_sched", "slo.first.quantile=0.9", "slo.first.max_ms=400",
)  # fmt: skip


def beside(name):
    """A module of this folder."""
    spec = importlib.util.spec_from_file_location(f"analysis_{name}", Path(__file__).with_name(f"{name}.py"))
    module = importlib.util.module_from_spec(spec)
    sys.modules[spec.name] = module  # dataclasses look their module up
    spec.loader.exec_module(module)
    return module


@pytest.fixture(scope="session")
def synthetic():
    """The writer of run folders with a known truth."""
    return beside("synthetic")


@pytest.fixture(scope="session")
def losing():
    """What takes rows away from a run folder as losses do."""
    return beside("losing")


@pytest.fixture(scope="session")
def mixed(synthetic):
    """A run told request by request: `mixed(duration_s=3)`."""
    module = beside("mixed")
    return lambda **settings: module.Mixed(synthetic, **settings)


@pytest.fixture(scope="session")
def browser():
    """The module that speaks to a headless Chromium; a machine without one skips."""
    module = beside("browser")
    if module.CHROMIUM is None:
        pytest.skip("chromium is not installed")
    return module


@pytest.fixture(scope="module")
def everything(command, tmp_path_factory):
    """The page of a rehearsal that has every section: 20 s of mixed traffic against a limit, some of it hedged."""
    out = tmp_path_factory.mktemp("everything")
    sets = [item for text in EVERYTHING for item in ("--set", text)]
    done = command(["tailgauge", "run", "mix", "--virtual", "--seed=1", *sets, "--out", out])
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
