"""The figures of load curves: which lines they have, and that nothing unknown is drawn as a number."""

import json
from dataclasses import replace

import plotly.graph_objects as go
import pytest
from analysis.comparing.planted_curves import curve, with_latency

from tailgauge_analysis.comparing.curve import UNKNOWN, Ends
from tailgauge_analysis.comparing.curve_pictures import FAILED, pictures
from tailgauge_analysis.report.plot import plot
from tailgauge_analysis.text.picture import BLUE, ORANGE


def lines(of, name):
    (found,) = [one for one in pictures(*of) if one.name == name]
    return {curve.name: curve for curve in found.panels[0].curves}, found


def test_latency_by_load_has_the_objective_and_the_knee():
    of = curve()
    drawn, found = lines([of], "ttft-by-load")

    assert list(drawn) == ["p50", "p95", "p99", "p95, queue that fits", "p95 < 800 ms"]
    assert list(drawn["p95"].x) == [point.load for point in of.points][:-1]
    assert drawn["p95 < 800 ms"].y == (800.0, 800.0)
    assert [(mark.low, mark.high) for mark in found.marks] == [
        (of.knee.low, of.knee.high),
        (6.0, 6.0),
    ]


@pytest.mark.parametrize(("capacity", "base_ms"), [(19.0, 60.0), (30.0, 20.0), (25.0, 110.0)])
def test_the_queue_that_fits_is_the_planted_one(capacity, base_ms):
    drawn, found = lines([curve(capacity=capacity, base_ms=base_ms)], "ttft-by-load")
    fit = drawn["p95, queue that fits"]

    assert fit.y == pytest.approx([3 * base_ms / (1 - x / capacity) for x in fit.x], rel=0.1)
    assert max(fit.x) < capacity
    assert "Dotted: latency = base / (1 - load / capacity)." in found.caption


@pytest.mark.parametrize(
    "of",
    [
        curve(by="concurrency"),
        curve(loads=(2, 4, 8)),
        curve(capacity=1000.0),  # no load brings a wait
        with_latency(curve(), 2, "p95", Ends(5000.0, 4000.0, 6000.0)),
    ],
    ids=["closed loop", "few loads", "level", "an outlier"],
)
def test_a_queue_that_does_not_fit_is_not_drawn(of):
    drawn, found = lines([of], "ttft-by-load")

    assert not [name for name in drawn if "fits" in name]
    assert "Dotted" not in found.caption


def test_throughput_and_goodput_by_load():
    of = curve()
    assert list(lines([of], "tokens-by-load")[0]) == ["output tokens/s", "saturation"]
    assert list(lines([of], "requests-by-load")[0]) == ["answered", "within [slo]", "offered"]


def test_user_tokens_against_system_tokens_are_per_gpu_where_their_number_is_known():
    alone, shared = (lines([curve(gpus=gpus)], "tokens-per-user") for gpus in (None, 4.0))

    assert alone[1].panels[0].title == "output tokens/s of the system"
    assert shared[1].panels[0].title == "output tokens/s per GPU"
    assert shared[0]["each load"].y == pytest.approx([y / 4 for y in alone[0]["each load"].y])
    assert alone[0]["each load"].labels == ["1.5", "3", "6", "9", "12", "14", "", "18", ""]


def test_a_percentile_among_failures_is_drawn_as_at_least():
    of = with_latency(curve(), -2, "p99", Ends(None, 9000.0, None))
    drawn, _ = lines([of], "ttft-by-load")

    assert (drawn[FAILED].x, drawn[FAILED].y) == ([of.points[-2].load], [9000.0])


def test_loads_far_beyond_the_knee_are_in_the_table_only():
    of = curve(loads=(3, 6, 12, 96, 192))
    drawn, found = lines([of], "ttft-by-load")

    assert max(drawn["p95"].x) <= max(1.5 * of.knee.high, 12)
    assert "The loads 96 to 192 requests/s, beyond " in found.caption
    unknown = replace(of, knee=UNKNOWN, saturation_load=UNKNOWN)
    assert list(lines([unknown], "ttft-by-load")[0]["p95"].x) == [3, 6, 12, 96, 192]
    no_more_than_three = replace(of, knee=Ends(0.5, 0.4, 0.6))
    assert list(lines([no_more_than_three], "ttft-by-load")[0]["p95"].x) == [3, 6, 12]


def test_two_curves_share_their_figures():
    a, b = curve(1), curve(2, capacity=15.0)
    drawn, found = lines([a, b], "ttft-by-load")

    assert list(drawn) == ["A", "B", "p95 < 800 ms"]
    assert [(mark.name, mark.colour) for mark in found.marks] == [
        ("knee A", BLUE),
        ("knee B", ORANGE),
    ]
    assert list(lines([a, b], "tokens-per-user")[0]) == ["A", "B"]


def test_what_is_not_known_is_not_drawn():
    of = curve(loads=(2, 4))
    points = tuple(
        replace(one, latency={}, good_per_s=UNKNOWN, user_tokens_per_s=UNKNOWN) for one in of.points
    )
    bare = replace(
        of, points=points, knee=Ends(None, 4.0, None), saturation=UNKNOWN, today=None, objectives=()
    )

    found = {one.name: [line.name for line in one.panels[0].curves] for one in pictures(bare)}
    assert found == {
        "tokens-by-load": ["output tokens/s"],
        "requests-by-load": ["answered", "offered"],
    }
    assert pictures(replace(bare, points=points[:1])) == ()


@pytest.mark.slow
@pytest.mark.parametrize(
    ("loads", "kind"), [((2, 4, 8), "-"), ((1, 4, 32), "log")], ids=["narrow", "wide"]
)
def test_a_wide_axis_of_loads_is_logarithmic(loads, kind):
    first, *others = [json.loads(plot(one)) for one in pictures(curve(loads=loads))]
    axes = first["layout"]

    assert axes["xaxis"].get("type", "-") == kind
    assert axes["yaxis"]["type"] == "log"
    for tree in (first, *others):
        go.Figure(tree)  # refuses a key or a value that Plotly does not know
