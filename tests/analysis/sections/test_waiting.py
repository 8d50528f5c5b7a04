"""The figure of a pattern shows what its users waited, against the rows and by counting."""

import re

import numpy as np
import pytest
from analysis.sections.test_patterns import TRAFFIC as OF_PATTERNS
from run_folders.dry_runs import dry_run_folder, dry_run_of

from tailgauge_analysis.run import Run
from tailgauge_analysis.sections import patterns, transports
from tailgauge_analysis.sections.waiting import waiting

NEVER = float("inf")
TRAFFIC = {name: table for name, table in OF_PATTERNS.items() if name != "whole"}


def drawn(groups):
    pictures = list(waiting("patterns", "How long users waited", "chat.", groups))
    return pictures[0] if pictures else None


@pytest.mark.parametrize("shape", ["spread", "ties", "many without an answer"])
def test_a_curve_has_the_share_that_took_longer(shape):
    rng = np.random.default_rng()
    waits_ms = rng.lognormal(5, 1, 2000)
    if shape == "ties":
        waits_ms = np.round(waits_ms / 50) * 50 + 1
    if shape == "many without an answer":
        waits_ms[rng.random(2000) < 0.7] = NEVER
    curve = drawn({"first": waits_ms, "second": waits_ms + 1}).panels[0].curves[0]

    assert 50 < len(curve.x) <= 402 or shape == "ties"
    for at_ms, share in zip(curve.x[1:-1], curve.y[1:-1], strict=True):
        assert share == pytest.approx(np.mean(waits_ms > at_ms))
    assert curve.name == "first (2,000)"


def test_a_small_group_is_called_small_and_one_without_an_answer_is_left_out():
    many = np.arange(1.0, 101.0)
    picture = drawn(
        {"one call": many, "fell back": np.array([5.0]), "lost": np.array([NEVER, NEVER])}
    )

    assert [curve.name for curve in picture.panels[0].curves] == ["one call (100)", "fell back (1)"]
    assert picture.caption == "chat. Small sample: fell back."


@pytest.mark.parametrize(
    "groups", [{}, {"one call": np.ones(50)}, {"one call": np.ones(50), "none": np.array([])}]
)
def test_a_group_alone_has_no_figure(groups):
    assert drawn(groups) is None


@pytest.mark.slow
def test_each_request_of_a_pattern_is_in_a_group(tmp_path):
    tree = {
        "seed": 5, "arrival": {"rate_per_s": 100.0}, "stages": {"duration_s": 10.0, "warmup_s": 0.0}, "traffic": TRAFFIC,
        "simulated": {"ttft_ms": 300.0, "ttft_sigma": 0.6, "chunk_gap_ms": 8.0},
    }  # fmt: skip
    run = Run([dry_run_folder(tree, tmp_path)])
    found = {one.traffic: one for one in patterns.compute(run)}
    requests = run.without_slow_readers.requests

    assert found.keys() == TRAFFIC.keys()
    for name in ("falls", "again", "leaves"):
        sizes = [len(waits_ms) for waits_ms in found[name].groups.values()]
        assert sum(sizes) == (requests["traffic"] == name).sum()
        assert min(sizes) > 10
    seen, large, whole = found["early"].groups.values()
    assert (seen <= large).all()
    assert (large <= whole).all()
    first, both = found["fields"].groups.values()
    assert (first < both).all()


@pytest.mark.slow("job-names1")
@pytest.mark.parametrize(
    ("scenario", "names"),
    [("resume", ["never cut", "resumed"]), ("job", ["earliest end", "seen by a poll"])],
)
def test_streams_and_jobs_have_their_figure(tmp_path, scenario, names):
    run = Run([dry_run_of(scenario, [("stages.duration_s", 20.0)], tmp_path)])
    (one,) = transports.compute(run)
    (picture,) = transports.section([one]).figures

    assert [re.sub(r" \(.*", "", curve.name) for curve in picture.panels[0].curves] == names
    assert sum(map(len, one.groups.values())) == one.requests * (2 if scenario == "job" else 1)
