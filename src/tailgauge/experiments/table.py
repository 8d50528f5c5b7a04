"""The kinds of experiments, by the word in `experiment.kind`.

Rule: a table; a kind's module is loaded when it is asked for.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping

from tailgauge.errors import UsageError
from tailgauge.experiments.course import Experiment
from tailgauge.experiments.steps import Base

Make = Callable[[Base], Experiment]


def _headroom(base: Base) -> Experiment:
    from tailgauge.experiments.headroom.plan import make

    return make(base)


def _hedging(base: Base) -> Experiment:
    from tailgauge.experiments.hedging.plan import make

    return make(base)


def _checkup(base: Base) -> Experiment:
    from tailgauge.experiments.checkup.plan import make

    return make(base)


def _models(base: Base) -> Experiment:
    from tailgauge.experiments.models.plan import make

    return make(base)


KINDS: Mapping[str, Make] = {
    "headroom": _headroom,
    "hedging": _hedging,
    "models": _models,
    "checkup": _checkup,
}


def made(base: Base) -> Experiment:
    """The experiment that a scenario asks for. Raises UsageError where its scenario lacks what the kind needs."""
    make = KINDS.get(base.asked.kind)
    if make is None:
        raise UsageError(
            f"{base.path}: experiment.kind: {base.asked.kind!r} is not available in this version"
        )
    return make(base)
