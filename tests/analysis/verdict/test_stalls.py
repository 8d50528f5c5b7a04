"""Bad seconds: what is one, and which are named."""

from dataclasses import replace

import numpy as np
import pytest

from tailgauge_analysis.metrics.steady import steady
from tailgauge_analysis.reading.frames import load
from tailgauge_analysis.report.build import build
from tailgauge_analysis.report.markdown import markdown
from tailgauge_analysis.run import Run
from tailgauge_analysis.verdict.stalls import bad_seconds

N = 1000  # 20 s on two workers, from 1 s on steady: 38 seconds of workers
MS = 1_000_000


def lags(seconds, lag_ms, rows=21):
    """A column of health rows: so late in these seconds (numbered by their ends)."""
    return np.where(np.isin(np.arange(1, rows + 1), list(seconds)), int(lag_ms * MS), 0)


def health(seconds, lag_ms=80.0, column="loop_lag_max_ns", growing=True):
    """Lags, and interval stamps in every second, or in none."""
    intervals = np.arange(1, 22) if growing else np.zeros(21, int)
    return {"health": {column: lags(seconds, lag_ms), "chunk_intervals": intervals}}


@pytest.fixture(scope="module")
def seconds(synthetic, tmp_path_factory):
    """Bad seconds of a run with these columns in its health rows."""
    frames = load([synthetic.write(tmp_path_factory.mktemp("run"), n=N, chunks=1)])
    stage = steady(frames)

    def found(health, stamps="kernel"):
        rows = frames.health.sort_values(["worker", "at_ns"]).reset_index(drop=True)
        faked = {name: np.resize(values, len(rows)) for name, values in health.items()}
        run = frames.run | {
            "workers": [worker | {"stamps": stamps} for worker in frames.run["workers"]]
        }
        return bad_seconds(replace(frames, run=run, health=rows.assign(**faked)), stage, 50e6)

    return found


@pytest.mark.parametrize(
    ("changes", "bad"),
    [
        (health([5], 50.0), 0),
        (health([5], 50.1), 2),
        (health([5, 6], 80.0), 4),
        (health([5], 80.0, growing=False), 0),  # late, and every stamp exact: nothing was moved
        (health([5], 80.0, "receive_lag_max_ns"), 2),
        (health([5], 80.0, "receive_lag_max_ns", growing=False), 0),
        (health([5], 80.0, "dispatch_late_max_ns", growing=False), 2),
        (health([1, 21], 80.0), 0),  # the warm-up, and what came after
        (health([5], 80.0, growing=False) | {"stamps": "user"}, 2),
    ],
)
def test_a_second_is_bad_where_a_lag_could_move_a_figure(seconds, changes, bad):
    seen = seconds(**changes)

    assert (seen.seconds, seen.bad) == (38.0, bad)


def test_seconds_in_a_row_are_one_spell_with_its_worst_lag(seconds):
    faked = health([5, 6, 9])
    faked["health"]["loop_lag_max_ns"][5] = 120 * MS
    spells = seconds(**faked).spells

    assert [(s.worker, s.from_s, s.to_s, s.worst_ms) for s in spells if s.worker == 0] == [
        (0, 4, 6, 120),
        (0, 8, 9, 80),
    ]
    assert [s.worst_ms for s in spells] == [120, 120, 80, 80]
    assert spells[0].cause == "event loop late"


def test_the_report_lists_the_largest_first(write):
    faked = health([5, 9])
    faked["health"]["loop_lag_max_ns"][8] = 120 * MS
    made = build(Run([write(n=N, **faked)]))
    data = made.data

    assert [spell["worst_ms"] for spell in data["bad_seconds"]["spells"]] == [120, 120, 80, 80]
    assert "Worst: worker 0 at 00:08, event loop late by 120 ms." in markdown(made)


def test_a_run_without_bad_seconds_says_nothing_of_them(write):
    made = build(Run([write(n=N, interval_every=110)]))
    data = made.data

    assert (data["bad_seconds"]["bad"], data["bad_seconds"]["spells"]) == (0.0, [])
    assert "were stalled" not in markdown(made)
