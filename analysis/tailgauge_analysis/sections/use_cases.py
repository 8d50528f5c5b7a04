"""Fit by use case, and alerts: bounds of the scenario that change no exit code, each decided as an objective is.

A use case is met where all its bounds are, missed where one fails, else inconclusive. An alert fires where its bound fails.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

from tailgauge_analysis.metrics.slo import FAIL, INCONCLUSIVE, PASS, ObjectiveResult
from tailgauge_analysis.sections.objectives import Run, objectives
from tailgauge_analysis.text.formatting import listed, plain
from tailgauge_analysis.text.json_values import table
from tailgauge_analysis.text.section import Section, Table, Value

FITS = {PASS: "fits", FAIL: "does not fit", INCONCLUSIVE: "inconclusive for"}
FIRES = {PASS: "does not fire", FAIL: "fires", INCONCLUSIVE: "inconclusive"}
COMPUTED = "Each bound is decided on a 95% interval, as objectives are. None of them changes the exit code."


@dataclass(frozen=True, slots=True)
class UseCase:
    """A use case with its bounds, or an alert with its only one."""

    name: str
    is_alert: bool
    outcome: str
    bounds: tuple[ObjectiveResult, ...]


def use_cases(run: Run) -> list[UseCase]:
    """Use cases, then alerts, in the order of the scenario."""
    found = []
    for key in ("use_case", "alert"):
        for name, bounds in table(run.frames.run["scenario"], key).items():
            each = bounds if isinstance(bounds, list) else [bounds]
            decided = objectives(run, {f"{key}.{name}.{i}": one for i, one in enumerate(each)})
            outcomes = {one.outcome for one in decided}
            outcome = next((one for one in (FAIL, INCONCLUSIVE) if one in outcomes), PASS)
            found.append(UseCase(plain(name, 80), key == "alert", outcome, tuple(decided)))
    return found


def section(found: Sequence[UseCase]) -> Section | None:
    """None where the scenario asks for neither."""
    if not found:
        return None
    uses, alerts = ([one for one in found if one.is_alert is is_alert] for is_alert in (False, True))
    met = {outcome: outcome.upper() for outcome in FITS}
    tables = _table("Use cases", "use case", uses, met), _table("Alerts", "alert", alerts, FIRES)
    title, answer = "Fit by use case" if uses else "Alerts", f"{_fit(uses)} {_firing(alerts)}".strip()
    shown = tuple(one for one in tables if one.rows)
    return Section("use-cases", title, answer, tables=shown, computed=(COMPUTED,))


def _table(title: str, first: str, of: Sequence[UseCase], names: dict[str, str]) -> Table:
    rows = tuple(
        (one.name, bound.label, Value(bound.line.value, bound.line.interval), bound.line.bound,
         Value(names[bound.outcome], outcome=bound.outcome.upper()))
        for one in of
        for bound in one.bounds
    )  # fmt: skip
    return Table(title, (first, "figure", "measured", "bound", "outcome"), rows, prose=(1,))


def _fit(uses: Sequence[UseCase]) -> str:
    by = {outcome: [one.name for one in uses if one.outcome == outcome] for outcome in FITS}
    parts = [f"{text} {listed(by[outcome])}" for outcome, text in FITS.items() if by[outcome]]
    return f"The run {'; '.join(parts)}." if parts else ""


def _firing(alerts: Sequence[UseCase]) -> str:
    firing = [one.name for one in alerts if one.outcome == FAIL]
    if firing:
        return f"{len(firing)} of {len(alerts)} alerts fire: {listed(firing)}."
    conclusive = sum(one.outcome == PASS for one in alerts)
    return f"No alert fires ({conclusive} of {len(alerts)} conclusive)." if alerts else ""
