"""The experiments, one row each, by `experiment.kind`."""

from __future__ import annotations

from collections.abc import Mapping

from tailgauge.experiments.calibrate import CalibratePlanner
from tailgauge.experiments.checkup.plan import CheckupPlanner
from tailgauge.experiments.course import Planner
from tailgauge.experiments.curve import CurvePlanner
from tailgauge.experiments.headroom import HeadroomPlanner
from tailgauge.experiments.hedging import HedgingPlanner
from tailgauge.experiments.models import ModelsPlanner

EXPERIMENTS: Mapping[str, type[Planner]] = {
    "headroom": HeadroomPlanner,
    "hedging": HedgingPlanner,
    "models": ModelsPlanner,
    "checkup": CheckupPlanner,
    "curve": CurvePlanner,
    "calibrate": CalibratePlanner,
}
