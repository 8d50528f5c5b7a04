"""Time and memory of a report: neither grows faster than the run does, and the page hardly at all.

Rule: `bench/analysis.py` measures, each report a process of its own. Times are compared with those of a smaller run, with
margins so wide that only a step of a higher order is found. `make bench-large` holds the full sizes to their bars.
"""

import json
import re

import pytest

from tailgauge_analysis.report.build import build
from tailgauge_analysis.report.plot import plot
from tailgauge_analysis.run import Run

pytestmark = [pytest.mark.timed, pytest.mark.slow]

MIB = 1 << 20


@pytest.fixture(scope="module")
def folder(tmp_path_factory):
    return tmp_path_factory.mktemp("bench")


@pytest.fixture(scope="module")
def sizes(full_size):
    return ("1M", "10M") if full_size else ("100k", "1M")


@pytest.fixture(scope="module")
def measured(command, checkout, folder, sizes):
    """Rows, seconds, GiB, MB of the page: of the smaller run, and of the ten times larger one."""
    line = ["python", checkout / "bench" / "analysis.py", "--rows", *sizes, "--folder", folder]
    done = command(line, timeout_s=240)
    assert done.returncode == 0, done.stderr
    table = [row for row in done.stdout.splitlines() if re.match(r"\| [\d,]+ ", row)]
    return [[float(cell) for cell in re.findall(r"[\d.]+", row.replace(",", ""))] for row in table]


def test_time_grows_no_faster_than_the_run(measured):
    (small_rows, small_s, *_), (rows, seconds, *_) = measured

    assert rows > 9 * small_rows
    assert seconds < small_s * rows / small_rows


def test_memory_is_a_few_bytes_a_chunk(measured, full_size):
    """36 bytes a chunk at a hundred million; smaller runs are worked on in one block, and that shows: 120 of a million,
    in steps of 12.
    """
    (small_rows, _, small_gib, *_), (rows, _, gib, *_) = measured

    assert (gib - small_gib) * 1024 * MIB < (80 if full_size else 160) * (rows - small_rows)


def test_the_page_does_not_grow_with_the_run(measured):
    (*_, small_mb, _, _, _), (*_, mb, _, _, _) = measured

    assert mb < 8
    assert mb - small_mb < 0.3


def test_figures_have_few_points_however_large_the_run(folder, measured, sizes):
    largest = max(folder.iterdir(), key=lambda run: int(run.name.partition("-")[0]))
    drawn = build(Run([largest])).figures

    assert len(drawn) >= 8
    for figure in drawn:
        assert points(json.loads(plot(figure))["data"]) < 25_000, figure.name


def points(tree):
    """Plain values in it."""
    if isinstance(tree, dict):
        return sum(map(points, tree.values()))
    return sum(map(points, tree)) if isinstance(tree, list) else 1
