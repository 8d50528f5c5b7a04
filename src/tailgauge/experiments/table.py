"""The experiments, one row each, by `experiment.kind`. A row loads its folder only when it is needed."""

from __future__ import annotations

from collections.abc import Callable, Mapping

from tailgauge.experiments.course import Base, Planner


def _headroom(base: Base) -> Planner:
    from tailgauge.experiments.headroom.plan import HeadroomPlanner

    return HeadroomPlanner(base)


def _hedging(base: Base) -> Planner:
    from tailgauge.experiments.hedging.plan import HedgingPlanner

    return HedgingPlanner(base)


def _models(base: Base) -> Planner:
    from tailgauge.experiments.models.plan import ModelsPlanner

    return ModelsPlanner(base)


def _checkup(base: Base) -> Planner:
    from tailgauge.experiments.checkup.plan import CheckupPlanner

    return CheckupPlanner(base)


# Each raises UsageError if the scenario lacks what the experiment needs.
EXPERIMENTS: Mapping[str, Callable[[Base], Planner]] = {
    "headroom": _headroom,
    "hedging": _hedging,
    "models": _models,
    "checkup": _checkup,
}
