"""Figures: units on every axis, few points, no number that is not finite."""

import json

import numpy as np
import pytest

from tailgauge_analysis.load.frames import load
from tailgauge_analysis.metrics.timeline import timeline, width
from tailgauge_analysis.report.figures import figures, survival
from tailgauge_analysis.sections.findings import find


@pytest.fixture
def drawn(write):
    def draw(**changes):
        return {f.name: json.loads(f.plot) for f in figures(find(load([write(**changes)])))}

    return draw


def axes(plot):
    return {name: axis for name, axis in plot["layout"].items() if name[1:].startswith("axis")}


def test_every_axis_that_is_labelled_has_a_unit(drawn):
    plots = drawn(n=400)

    assert list(plots) == ["timeline", "tail", "gaps", "classes", "client", "heat"]
    for name, plot in plots.items():
        for key, axis in axes(plot).items():
            shared = key.startswith("x") and axis.get("matches") and not axis.get("title")
            title = axis.get("title", {}).get("text", "")
            has_unit = any(
                word in title
                for word in ("(", "share of", "per second", "per<br>second", "<br>per second", "in flight")
            )
            assert shared or has_unit, (name, key, title)


def test_a_run_without_rows_has_no_figures(drawn):
    assert set(drawn(n=0)) <= {"client"}


def test_a_long_run_has_few_points(drawn):
    plots = drawn(n=5000, rate_per_s=1, chunks=2, server_log=False)

    for plot in plots.values():
        assert all(len(trace["x"]) <= 620 for trace in plot["data"])


@pytest.mark.parametrize(("seconds", "bin_s"), [(10, 1), (600, 1), (601, 2), (86_400, 300)])
def test_bins_grow_with_the_run(seconds, bin_s):
    assert width(seconds) == bin_s


def test_the_timeline_counts_every_request_once(write):
    t = timeline(load([write(n=205, rate_per_s=20, ended={100: "timeout", 101: "client_drop"})]))

    assert t.offered_per_s.sum() == pytest.approx(205)
    assert t.ended_per_s.sum() == pytest.approx(204)
    assert sum(rates.sum() for rates in t.classes_per_s.values()) == pytest.approx(205)
    assert t.in_flight[-1] == 0
    assert t.ttft_p50_ms[:10] == pytest.approx(200)


def test_the_tail_levels_off_at_the_share_of_failures():
    x, y = survival(np.arange(1.0, 91.0), 100)

    assert (x[0], y[0]) == (1.0, 1.0)
    assert y[-1] == pytest.approx(0.1)
    assert x[-1] > 90
    assert (np.diff(y) <= 0).all()


def test_the_tail_of_a_run_without_failures_ends_above_zero():
    x, y = survival(np.arange(1.0, 101.0), 100)

    assert y[-1] == pytest.approx(0.01)
    assert x[-1] == 99
    assert [list(axis) for axis in survival(np.array([5.0]), 1)] == [[5.0, 5.0], [1.0, 1.0]]
