"""Fit by use case, and alerts: bounds of the scenario that change no exit code (sections/objectives.py)."""

from __future__ import annotations

from tailgauge_analysis.run import Run
from tailgauge_analysis.sections import objectives
from tailgauge_analysis.sections.objectives import UseCase
from tailgauge_analysis.text.section import Section

KEY = "use_cases"


def compute(run: Run) -> list[UseCase]:
    """Decide the use cases and alerts that the scenario asks for."""
    return objectives.use_cases(objectives.judged_part(run))


def section(found: list[UseCase]) -> Section | None:
    """None where the scenario asks for neither."""
    return objectives.fits(found)
