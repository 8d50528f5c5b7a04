"""The first figure: what failed and when, and no axis without a value."""

import json

import numpy as np
import pytest
from analysis.verdict.test_stalls import health

from tailgauge_analysis.report.plot import plot
from tailgauge_analysis.run import Run
from tailgauge_analysis.sections import over_time

CONNECT = "connect_error"


@pytest.fixture
def figure(write):
    """The first figure of a run of 8 s at 50 requests/s, the warm-up included."""

    def draw(**changes):
        return over_time.picture(Run([write(**{"n": 400, "chunks": 2, **changes})]))

    return draw


def titles(picture):
    return [panel.title.split("<")[0] for panel in picture.panels]


def bars(picture):
    """Requests by how they ended."""
    return {bar.name: round(float(np.sum(bar.y))) for bar in picture.panels[0].curves}


def ticks(picture):
    return [name for panel in picture.panels for name in panel.rows]


def texts(picture):
    return [mark.text or mark.name for mark in picture.marks if mark.text or mark.name]


def test_a_run_without_a_failure_looks_like_one(figure):
    picture = figure()

    assert titles(picture) == ["requests", "TTFT since", "requests"]
    assert bars(picture) == {"complete": 400}
    assert texts(picture) == []


@pytest.mark.slow
@pytest.mark.parametrize(
    ("ended", "outcomes", "rows", "marks"),
    [
        (dict.fromkeys(range(9, 400, 40), "timeout"), {"complete": 390, "failed": 10}, ["timeout (10)"], []),
        ({200: "rate_limited", 300: "truncated"}, {"complete": 398, "failed": 2}, ["429 (1)", "broken (1)"], []),
        (
            dict.fromkeys(range(399, 400), "censored") | {7: "cancelled", 8: "client_drop"},
            {"complete": 397, "cancelled": 1, "still open at the end": 1, "not sent by the client": 1},
            ["not sent (1)"],
            [],
        ),
        (
            dict.fromkeys(range(300, 400), CONNECT),
            {"complete": 300, "failed": 100},
            ["connect (100)"],
            ["target gone since 6.0 s"],
        ),
        (
            dict.fromkeys(range(100, 200), CONNECT),
            {"complete": 300, "failed": 100},
            ["connect (100)"],
            ["target gone from 2.0 s to 4.0 s"],
        ),
    ],
    ids=["timeouts", "a 429 and a break", "not failed", "gone", "gone for a while"],
)  # fmt: skip
def test_failures_are_in_the_bars_and_where_they_happened(figure, ended, outcomes, rows, marks):
    picture = figure(ended=ended)

    assert bars(picture) == outcomes
    assert list(bars(picture))[-1] in {"failed", "not sent by the client"}
    assert ticks(picture) == rows
    assert texts(picture) == marks


def test_where_nothing_was_answered_there_is_no_axis_of_latency(figure):
    picture = figure(ended=dict.fromkeys(range(400), CONNECT))

    assert "TTFT since" not in titles(picture)
    assert bars(picture) == {"failed": 400}
    assert all(np.isfinite(curve.y).any() for panel in picture.panels for curve in panel.curves)


@pytest.mark.slow
def test_requests_beyond_a_bound_that_is_missed_are_red(figure):
    slow_ms = np.where(np.arange(400) % 5 == 0, 900.0, 200.0)
    slo = {"fast": "ttft_sched p90 < 500ms"}
    (latency,) = [
        panel for panel in figure(ttft_ms=slow_ms, slo=slo).panels if "TTFT" in panel.title
    ]
    (beyond,) = [curve for curve in latency.curves if curve.name == "beyond the objective"]

    assert set(np.asarray(beyond.y)) == {900.0}


def test_stalls_of_the_client_are_shaded_and_named_once(figure):
    picture = figure(n=1000, chunks=1, **health([5, 6, 15], 800.0))
    marks = [mark for mark in picture.marks if mark.colour != "#8a8f98"]

    assert [(mark.low, mark.high) for mark in marks] == [(4.0, 6.0), (14.0, 15.0)]
    assert texts(picture) == ["client stalled"]


def test_a_stall_that_began_before_the_run_is_shaded_from_its_start(figure):
    changes = health([1, 2], 800.0)
    changes["health"]["at_ns"] = np.arange(1, 22) * 10**9 - 2 * 10**8
    picture = figure(n=1000, chunks=1, **changes)

    assert [(mark.low, mark.high) for mark in picture.marks if mark.text or mark.name] == [
        (0.0, 1.8)
    ]


def test_a_short_stall_of_a_valid_run_is_no_sight(figure):
    assert texts(figure(n=1000, chunks=1, **health([5], 80.0, growing=False))) == []


@pytest.mark.slow
def test_the_lost_requests_of_a_worker_are_shaded(synthetic, losing, tmp_path):
    offsets_ns = (0, 0, 0)
    run = synthetic.write(
        tmp_path / "run", n=240, rate_per_s=12, parts=4, chunks=2, offsets_ns=offsets_ns
    )
    requests, from_s, to_s = losing.lose(run, 1, (2, 3), tmp_path / "away")
    picture = over_time.picture(Run([run]))
    (lost,) = [mark for mark in picture.marks if mark.name == "rows lost"]

    assert requests > 0
    assert (lost.low, lost.high) == pytest.approx((from_s, to_s), abs=0.1)
    assert f"worker 1 lost at {from_s - 1:.0f} s" in texts(picture)


@pytest.mark.slow
def test_a_text_that_begins_late_stands_to_the_left_of_its_time(figure):
    early = json.loads(plot(figure(ended=dict.fromkeys(range(60, 400), CONNECT))))["layout"]
    late = json.loads(plot(figure(ended=dict.fromkeys(range(340, 400), CONNECT))))["layout"]

    assert [layout["annotations"][0]["xanchor"] for layout in (early, late)] == ["left", "right"]
    assert early["xaxis"]["range"][0] == 0
