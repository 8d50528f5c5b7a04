"""When a run is looked at whose objectives ask for a precision: at doublings of its requests, each look at its own level.

Whoever looks often and stops when an interval is narrow enough has an interval that is too narrow. So the 5% that 95%
intervals may miss are spent over the looks, each the more the more requests came since the look before (alpha spending,
linear): a look when half of the requests of the steady stage were due has what is left for it of 2.5%, the end 2.5%. By
the union bound the interval of the last look covers 95% whenever the run ended, whatever its latencies.
"""

from __future__ import annotations

import math
from dataclasses import dataclass
from statistics import NormalDist

import numpy as np

from tailgauge.errors import ScenarioError
from tailgauge.scenario.model import Scenario
from tailgauge.scenario.objective import Objective
from tailgauge.schedule.schedule import Schedule

ALL_LOOKS_MAY_MISS = 0.05  # what intervals may miss, over all looks
HALVINGS = 5  # the first look is at a 32nd of the requests
FEWEST_S = 60.0  # seconds of the steady stage before the first look, at least: limits refill, and slow periods return, each minute
# A look needs so many requests of an objective, and so many of them beyond its quantile.
FEWEST_REQUESTS = 500
FEWEST_BEYOND = 25


@dataclass(frozen=True, slots=True)
class InterimLook:
    """A look at the requests scheduled before `until_s`; `requests` of them, the warm-up included, have a row by then."""

    until_s: float
    requests: int
    confidence: float


def looks(scenario: Scenario, schedule: Schedule) -> tuple[InterimLook, ...]:
    """Return every look, the end of the run as the last; none where no objective asks for a precision.

    A look is at a half, a quarter, ... of the steady stage's requests, if it has enough of them and FEWEST_S. Its
    confidence spends the part of ALL_LOOKS_MAY_MISS that belongs to the requests since the look before. Raises ScenarioError with
    the key where the requests of a run are not planned one by one.
    """
    precise_names = []
    fewest = FEWEST_REQUESTS
    for name, objective in scenario.slo.items():
        if objective.precision is not None:
            precise_names.append(name)
            fewest = max(fewest, math.ceil(FEWEST_BEYOND / objective.allowed))
    if not precise_names:
        return ()
    several = scenario.crossover or scenario.experiment
    if several or not scenario.arrival.is_open or (schedule.turns != 1).any():
        reason = "does not apply to a closed loop, tasks, sessions, alternating blocks or an experiment: leave it out"
        raise ScenarioError(f"slo.{precise_names[0]}.precision: {reason}")
    at_s = np.asarray(schedule.at_ns) / 1e9
    begin_s = scenario.stages.warmup
    end_s = scenario.stages.duration_s - scenario.stages.cooldown_s
    begin, end = map(int, np.searchsorted(at_s, [begin_s, end_s]))
    planned = []
    share_before = 0.0
    for halving in range(HALVINGS, 0, -1):
        share = 0.5**halving
        place = begin + (
            (end - begin) >> halving
        )  # of the arrival at the look's time, the first that it does not have
        if place - begin < fewest or at_s[place] - begin_s < FEWEST_S:
            continue
        planned.append(
            InterimLook(float(at_s[place]), place, 1 - ALL_LOOKS_MAY_MISS * (share - share_before))
        )
        share_before = share
    return (*planned, InterimLook(end_s, end, 1 - ALL_LOOKS_MAY_MISS * (1 - share_before)))


def needed(objective: Objective, confidence: float) -> int:
    """Independent requests with which a quantile of exponential latencies is known to the precision that is asked for."""
    p = objective.quantile
    z = NormalDist().inv_cdf((1 + confidence) / 2)
    precision = objective.precision or 1.0
    return math.ceil(p / (1 - p) * (z / (precision * math.log(1 / (1 - p)))) ** 2)
