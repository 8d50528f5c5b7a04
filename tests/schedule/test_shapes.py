"""Shapes of the rate: a change of time that keeps the mean, for every process."""

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from tailgauge.errors import ScenarioError
from tailgauge.schedule.processes import course
from tailgauge.schedule.schedule import arrival_times
from tailgauge.schedule.settings import Arrival, Shape

RATE, SECONDS = 100.0, 600.0
WAVE = ((0.0, 0.0), (0.25, 3.0), (0.5, 0.0), (0.75, 0.0), (0.75, 2.0), (1.0, 2.0))
SHAPES = {
    "flat": Shape(),
    "step": Shape(kind="step", at=0.3, factor=3.0),
    "step to nothing": Shape(kind="step", at=0.6, factor=0.0),
    "ramp": Shape(kind="ramp", factor=5.0),
    "ramp down": Shape(kind="ramp", factor=0.0),
    "spike": Shape(kind="spike", at=0.4, width=0.05, factor=10.0),
    "piecewise": Shape(kind="piecewise", points=WAVE),
}
# Share of all arrivals in [0, 0.25), [0.25, 0.5), [0.5, 0.75), [0.75, 1), worked out by hand.
QUARTERS = {
    "flat": (1, 1, 1, 1),
    "step": (0.25, 0.05 + 0.2 * 3, 0.75, 0.75),
    "step to nothing": (0.25, 0.25, 0.1, 0),
    "ramp": (1.5, 2.5, 3.5, 4.5),
    "ramp down": (7, 5, 3, 1),
    "spike": (0.25, 0.2 + 0.5, 0.25, 0.25),
    "piecewise": (0.375, 0.375, 0, 0.5),
}


def times(shape, process="poisson", duration_s=SECONDS):
    cv = {"cv": 3.0} if process == "gamma" else {}
    return arrival_times(
        Arrival(process=process, rate_per_s=RATE, shape=shape, **cv), duration_s, 1
    )


@pytest.mark.parametrize("name", SHAPES)
def test_constant_arrivals_follow_the_shape_to_the_arrival(name):
    """Without randomness the counts are the integral of the rate, to one arrival."""
    shares = np.array(QUARTERS[name]) / sum(QUARTERS[name])
    at_s = times(SHAPES[name], "constant")
    counts = np.bincount((at_s / SECONDS * 4).astype(int), minlength=4)

    assert np.abs(counts - shares * RATE * SECONDS).max() <= 1
    assert counts.sum() == RATE * SECONDS


@pytest.mark.parametrize("process", ["poisson", "gamma", "on_off"])
def test_a_shaped_plan_is_the_flat_one_at_other_times(process):
    """The process is drawn once; the shape moves it, and changes neither the count nor the order."""
    flat = times(Shape(), process)
    ramp = times(SHAPES["ramp"], process)
    u = ramp / SECONDS
    cumulative = (u + 2 * u * u) / 3 * SECONDS  # of a ramp from 1 to 5

    assert len(flat) == len(ramp)
    assert np.abs(cumulative - flat).max() < 1e-7


@given(
    points=st.lists(st.tuples(st.floats(0.01, 0.99), st.floats(0, 1000)), max_size=8),
    ends=st.tuples(st.floats(0, 100), st.floats(0.01, 100)),
)
def test_the_inverse_takes_the_cumulative_rate_back(points, ends):
    corners = ((0.0, ends[0]), *sorted(points), (1.0, ends[1]))
    shape = course(Shape(kind="piecewise", points=corners))
    shares = np.linspace(0, 1, 101)[:-1]
    found = shape.moments(shares)
    passed = np.clip(found[:, None] - shape.begins, 0, shape.widths)
    slope = (shape.end_rates - shape.begin_rates) / shape.widths
    total = shape.areas.sum()

    assert ((found >= 0) & (found <= 1)).all()
    assert (np.diff(found) >= 0).all()
    assert (
        np.abs(
            (passed * (shape.begin_rates + slope * passed / 2)).sum(axis=1) / total - shares
        ).max()
        < 1e-9
    )


def test_times_of_a_shape_are_shares_of_the_run_so_another_duration_scales_them():
    spike = SHAPES["spike"]
    short, long = (times(spike, "constant", duration_s=seconds) for seconds in (60.0, 600.0))
    inside = [np.mean((at > 0.4 * s) & (at < 0.45 * s)) for at, s in ((short, 60.0), (long, 600.0))]

    assert inside[0] == pytest.approx(0.5 / 1.45, abs=1e-3)
    assert inside[1] == pytest.approx(inside[0], abs=1e-3)


@pytest.mark.parametrize(
    "shape",
    [
        Shape(kind="step", at=0.0, factor=0.0),
        Shape(kind="spike", at=0.0, width=1.0, factor=0.0),
        Shape(
            kind="piecewise", points=((0.0, 0.0), (0.5, 0.0), (0.5, 3.0), (0.5, 0.0), (1.0, 0.0))
        ),
    ],
)
def test_a_shape_that_never_lets_anything_come_is_refused(shape):
    with pytest.raises(ScenarioError, match=r"arrival\.shape: .*the rate is 0 over the whole run"):
        times(shape)
