"""The experiments, one row each, by `experiment.kind`. A row loads its folder only when it is needed."""

from __future__ import annotations

from collections.abc import Callable, Mapping

from tailgauge.experiments.course import Base, Experiment


def _headroom(base: Base) -> Experiment:
    from tailgauge.experiments.headroom.plan import Headroom

    return Headroom(base)


def _hedging(base: Base) -> Experiment:
    from tailgauge.experiments.hedging.plan import Hedging

    return Hedging(base)


def _models(base: Base) -> Experiment:
    from tailgauge.experiments.models.plan import ModelChoice

    return ModelChoice(base)


def _checkup(base: Base) -> Experiment:
    from tailgauge.experiments.checkup.plan import Checkup

    return Checkup(base)


# Each raises UsageError if the scenario lacks what the experiment needs.
EXPERIMENTS: Mapping[str, Callable[[Base], Experiment]] = {
    "headroom": _headroom,
    "hedging": _hedging,
    "models": _models,
    "checkup": _checkup,
}
