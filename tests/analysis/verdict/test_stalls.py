"""Bad seconds: what is one, what it takes out of which figure, and what it never takes out."""

from dataclasses import replace

import numpy as np
import pandas as pd
import pytest

from tailgauge_analysis.load.frames import load
from tailgauge_analysis.metrics.latency import SUCCESSES, row, sample
from tailgauge_analysis.metrics.metrics import BY_NAME
from tailgauge_analysis.metrics.steady import Steady, steady
from tailgauge_analysis.report.contents import contents
from tailgauge_analysis.report.markdown import markdown
from tailgauge_analysis.sections.findings import find
from tailgauge_analysis.verdict.stalls import FIGURES, BadSeconds, Spell, bad_seconds, sharp

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
        run = frames.run | {"workers": [worker | {"stamps": stamps} for worker in frames.run["workers"]]}
        return bad_seconds(replace(frames, run=run, health=rows.assign(**faked)), stage)

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


def test_older_rows_do_not_tell_of_intervals_so_there_may_have_been_some(seconds):
    assert seconds({"loop_lag_max_ns": lags([5], 80.0), "chunk_intervals": np.full(21, np.nan)}).bad == 2


def test_seconds_in_a_row_are_one_spell_with_its_worst_lag(seconds):
    faked = health([5, 6, 9])
    faked["health"]["loop_lag_max_ns"][5] = 120 * MS
    spells = seconds(**faked).spells

    assert [(s.worker, s.from_s, s.to_s, s.worst_ms) for s in spells[:2]] == [(0, 4, 6, 120), (0, 8, 9, 80)]
    assert [s.worker for s in spells] == [0, 0, 1, 1]
    assert spells[0].cause == "event loop late"


def test_first_chunks_that_it_blurred_are_left_out_beside_the_headline(write):
    """Every hundredth first chunk is an interval, at 2.2 s, 4.2 s, ...; of these one falls into the fifth second."""
    folder = write(n=N, interval_every=100, ended={101: "rate_limited"}, **health([5]))
    result = find(load([folder]))
    stages = result.of_target, sharp(result.of_target, result.evidence.bad)
    ttft, gap = ([row(BY_NAME[name], one, view) for one in stages] for name, view in FIGURES)
    data = contents(result)

    assert [one.n for one in ttft] == [950, 949]
    assert [one.without_answer for one in ttft] == [1, 1]  # failures stay
    assert [one.n for one in gap] == [949 * 19, 949 * 19]
    scheduled = next(r for r in data["latency"] if r["metric"] == "ttft_sched")
    assert scheduled["n"] == 949  # every request stays
    assert [one["left_out"] for one in data["bad_seconds"]["figures"]] == [1, 0]
    assert "Workers were stalled for more than 50 ms in 5.3% of 38 seconds" in markdown(data)


def test_a_run_without_bad_seconds_says_nothing_of_them(write):
    result = find(load([write(n=N, interval_every=110)]))
    data = contents(result)

    assert (data["bad_seconds"]["bad"], data["bad_seconds"]["figures"]) == (0.0, [])
    assert "were stalled" not in markdown(data)


def stage(gaps_ms, *, last_is_interval=(), worker=0):
    """Answers whose first chunks come at 1.0 s, 2.0 s, ...; their gaps in ms."""
    n = len(gaps_ms)
    first = (np.arange(n) + 1) * 1e9
    rows = pd.DataFrame(
        {
            "worker": np.full(n, worker), "first_is_interval": np.zeros(n, bool), "first_at_ns": first,
            "first_content_at_ns": first, "last_content_low_at_ns": [1.0 if i in last_is_interval else np.nan for i in range(n)],
        }
    )  # fmt: skip
    flat = np.array([gap * MS for gaps in gaps_ms for gap in gaps], float)
    return Steady(rows, rows, flat, np.array([len(gaps) for gaps in gaps_ms]), "any", 0.0, 10.0)


def kept(given, *spells):
    clear = sharp(given, BadSeconds(10.0, 1.0, tuple(Spell(0, *spell, 60.0, "") for spell in spells)))
    values, counts = sample(BY_NAME["chunk_gap"], clear, SUCCESSES)
    return values.tolist(), counts.tolist()


def test_gaps_to_and_within_a_read_of_several_chunks_are_left_out():
    """The third to fifth chunk came in one read: the gap before them and those between them say nothing."""
    given = stage([[10, 60, 0, 0, 10], [10, 10]])

    assert kept(given, (1.0, 1.5)) == ([10, 10, 10, 10], [2, 2])
    assert kept(given, (2.0, 2.5)) == ([10, 60, 0, 0, 10, 10, 10], [5, 2])  # another second
    assert kept(stage([[10, 60, 0, 0, 10]], worker=1), (1.0, 1.5)) == (
        [10, 60, 0, 0, 10],
        [5],
    )  # another worker


def test_the_last_gap_goes_where_the_last_chunk_is_an_interval():
    given = stage([[10, 10], [], [10, 10]], last_is_interval=[0, 1])

    assert kept(given, (1.0, 4.0)) == ([10, 10, 10], [1, 0, 2])


def test_a_gap_at_the_end_of_one_answer_is_not_followed_by_the_next_answers():
    """The second answer begins with two chunks in one read."""
    given = stage([[10, 10], [0, 10]])

    assert kept(given, (0.0, 4.0)) == ([10, 10, 10], [2, 1])


def test_what_came_while_it_stood_before_the_second_began_is_its_own():
    given = stage([[10, 0]])

    assert kept(given, (1.06, 2.0)) == ([], [0])  # 60 ms late: read at 1.06 s or later
    assert kept(given, (1.071, 2.0)) == ([10, 0], [2])
