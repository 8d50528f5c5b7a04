"""The kinds of experiments, by the word in `experiment.kind`.

Rule: a table; a kind's module is loaded when it is asked for.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping

from tailgauge.experiments.course import Experiment
from tailgauge.experiments.steps import Base

Make = Callable[[Base], Experiment]


def _headroom(base: Base) -> Experiment:
    from tailgauge.experiments.headroom import make

    return make(base)


KINDS: Mapping[str, Make] = {"headroom": _headroom}


def made(base: Base) -> Experiment:
    """The experiment that a scenario asks for. Raises UsageError where its scenario lacks what the kind needs."""
    return KINDS[base.asked.kind](base)
