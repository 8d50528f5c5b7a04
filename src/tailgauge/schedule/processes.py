"""The arrival processes, in operational time, and the shapes of a rate that turn it into time.

In operational time one arrival is expected in each unit. A process is stationary: it does not begin with an arrival but
as if it had been going on for long, so that the first gap is what is left of one that an observer meets. The expected
number of arrivals is rate times duration, whatever the spread of the gaps.

A shape is a rate made of straight pieces; its cumulative rate is inverted exactly.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from itertools import pairwise
from typing import Any

import numpy as np

from tailgauge.errors import ScenarioError
from tailgauge.schedule.random_streams import Purpose, stream
from tailgauge.schedule.settings import Arrival, OnOff, Shape

MAX_BURSTS = 20_000_000


def operational_times(arrival: Arrival, expected: float, rate_per_s: float, seed: int) -> Any:
    """Times in [0, expected), in order. `rate_per_s` turns the seconds of bursts into operational time."""
    times = stream(seed, Purpose.TIMES)
    match arrival.process:
        case "constant":
            return np.arange(math.ceil(expected - 0.5)) + 0.5
        case "gamma":
            return _gamma(arrival.cv, expected, times, stream(seed, Purpose.FIRST_GAP))
        case "on_off":
            return _on_off(
                arrival.on_off, expected, rate_per_s, times, stream(seed, Purpose.BURSTS)
            )
        case _:
            return _renewal(0.0, times.standard_exponential, expected)


def _renewal(residue: float, draw: Callable[[int], Any], end: float) -> Any:
    """Return arrivals until `end`. `residue`: until the first one; 0 where the process has no memory, so that there is none."""
    parts = [np.empty(0)]
    if residue:
        parts.append(np.array([residue]))
    latest = residue
    while latest < end:
        parts.append(latest + np.cumsum(draw(int((end - latest) * 1.1) + 64)))
        latest = float(parts[-1][-1])
    times = np.concatenate(parts)
    return times[times < end]


def _gamma(cv: float, end: float, rng: np.random.Generator, beginning: np.random.Generator) -> Any:
    shape = 1 / cv**2
    # A gap that an observer meets: longer ones more often.
    gap = beginning.standard_gamma(shape + 1) / shape
    return _renewal(gap * beginning.random(), lambda n: rng.standard_gamma(shape, n) / shape, end)


def _on_off(
    burst: OnOff,
    end: float,
    rate_per_s: float,
    rng: np.random.Generator,
    bursts: np.random.Generator,
) -> Any:
    """Return arrivals in bursts and in the times between, in order, up to `end`; Poisson in each state.

    Both states have exponential lengths, and the run begins in one as an observer meets it. All times are
    operational: on average one arrival in each unit. `rate_per_s`: arrivals a second, which turns the
    seconds of `burst` into it. `bursts` draws the states, `rng` the arrivals. ScenarioError for more states
    or arrivals than memory holds.
    """
    mean = np.array([burst.on_s, burst.off_s]) * rate_per_s
    if 2 * end > MAX_BURSTS * mean.sum():
        raise ScenarioError(
            "arrival.on_off: over 20 million bursts in the run: make on_s and off_s longer"
        )
    # Arrivals in a unit of time within a burst and outside, so that the mean over both is 1.
    rates = np.array([1.0, burst.off_share])
    rates *= mean.sum() / (mean * rates).sum()
    state = int(bursts.random() * mean.sum() >= mean[0])  # 0: within a burst
    edges = [np.zeros(1)]
    states = []
    latest = 0.0
    while latest < end:
        # An even number of phases: the next begins with `state`.
        pairs = int((end - latest) / mean.sum() * 1.1) + 16
        order = np.tile([state, 1 - state], pairs)
        states.append(order)
        edges.append(latest + np.cumsum(bursts.standard_exponential(2 * pairs) * mean[order]))
        latest = float(edges[-1][-1])
    # The last phase may be longer than the run by far.
    begins = np.minimum(np.concatenate(edges), end)
    rate = rates[np.concatenate(states)]
    # Arrivals expected up to each change of state. A plain process in this measure is moved back into time.
    cumulated = np.concatenate([[0.0], np.cumsum(np.diff(begins) * rate)])
    if cumulated[-1] > MAX_BURSTS:
        problem = "over 20 million arrivals in the bursts of the run"
        raise ScenarioError(f"arrival.on_off: {problem}: make on_s longer")
    inner = _renewal(0.0, rng.standard_exponential, float(cumulated[-1]))
    phase = np.searchsorted(cumulated, inner, side="right") - 1
    times = begins[phase] + (inner - cumulated[phase]) / rate[phase]
    return times[times < end]


@dataclass(frozen=True, slots=True)
class Course:
    """A rate made of straight pieces; arrays of one length, one entry a piece."""

    begins: Any
    widths: Any
    begin_rates: Any  # where the pieces begin
    end_rates: Any  # and where they end

    @property
    def areas(self) -> Any:
        """Share of the whole that each piece contributes, before it is scaled to 1."""
        return self.widths * (self.begin_rates + self.end_rates) / 2

    def moments(self, shares: Any) -> Any:
        """Return when the given shares of everything have come, as shares of the run: the inverse of the cumulative rate."""
        areas = self.areas
        total = areas.sum()
        cumulated = np.concatenate([[0.0], np.cumsum(areas)])
        busy = np.flatnonzero(areas > 0)  # within a piece without rate nothing ever comes
        wanted = np.asarray(shares, dtype=float) * total
        piece = busy[np.clip(np.searchsorted(cumulated[busy], wanted, side="right") - 1, 0, None)]
        remaining = np.maximum(wanted - cumulated[piece], 0.0)
        rate = self.begin_rates[piece]
        width = self.widths[piece]
        slope = (self.end_rates[piece] - rate) / width
        root = np.sqrt(np.maximum(rate * rate + 2 * slope * remaining, 0.0))
        steep = rate + root  # of the two forms of the root, the one that does not cancel
        elapsed = np.divide(2 * remaining, steep, out=np.zeros_like(remaining), where=steep > 0)
        return self.begins[piece] + np.minimum(elapsed, width)


def course(shape: Shape) -> Course:
    """Return the rate of a shape, relative; raises ScenarioError where it is 0 over the whole run."""
    pieces = []
    for (begin, rate), (end, end_rate) in pairwise(_points(shape)):
        if end > begin:
            pieces.append((begin, end - begin, rate, end_rate))
    result = Course(*np.array(pieces, dtype=float).T.copy())
    if result.areas.sum() <= 0:
        raise ScenarioError(f"arrival.shape: {shape.kind}: the rate is 0 over the whole run")
    return result


def _points(shape: Shape) -> Sequence[tuple[float, float]]:
    """Corners (share of the run, relative rate) in order; two at one place are a jump."""
    begin = shape.at
    factor = shape.factor
    end = min(1.0, shape.at + shape.width)
    return {
        "flat": ((0.0, 1.0), (1.0, 1.0)),
        "step": ((0.0, 1.0), (begin, 1.0), (begin, factor), (1.0, factor)),
        "ramp": ((0.0, 1.0), (1.0, factor)),
        "spike": ((0.0, 1.0), (begin, 1.0), (begin, factor), (end, factor), (end, 1.0), (1.0, 1.0)),
        "piecewise": shape.points,
    }[shape.kind]
