"""The verdict: may these numbers be used?

Rule: the verdict is the worst of the reasons that the gates (gates.py) give: INVALID (do not use), DEGRADED (use knowing
why), VALID. This module knows the words and the order, not the questions.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass

from tailgauge import thresholds
from tailgauge_analysis.load.frames import Frames
from tailgauge_analysis.metrics.steady import Steady
from tailgauge_analysis.verdict.client import Worker
from tailgauge_analysis.verdict.conservation import Conservation, Presence
from tailgauge_analysis.verdict.stalls import BadSeconds
from tailgauge_analysis.verdict.timestamps import Stamps

VALID, DEGRADED, INVALID, WORST_FIRST = (
    thresholds.VALID,
    thresholds.DEGRADED,
    thresholds.INVALID,
    thresholds.WORST_FIRST,
)

Said = tuple[str, str, str]  # verdict, what is wrong, what to do


@dataclass(frozen=True, slots=True)
class Evidence:
    """What the gates look at: all of the steady stage, and that part of it which tells of the target."""

    frames: Frames
    steady: Steady
    of_target: Steady
    conservation: Conservation
    stamps: Stamps
    workers: list[Worker]
    presence: Presence | None
    bad: BadSeconds


@dataclass(frozen=True, slots=True)
class Reason:
    """Why a run is not VALID, and what to do."""

    gate: str
    verdict: str
    text: str
    advice: str


@dataclass(frozen=True, slots=True)
class Gate:
    """One question about a run; `asks` says what passes. A gate `of_client` has no meaning where there was no client."""

    name: str
    asks: str
    judge: Callable[[Evidence], Said | None]
    of_client: bool = False


def reasons(gates: Sequence[Gate], evidence: Evidence) -> list[Reason]:
    """What speaks against the run, worst first."""
    asked = [gate for gate in gates if applies(gate, evidence)]
    found = [Reason(gate.name, *said) for gate in asked if (said := gate.judge(evidence)) is not None]
    return sorted(found, key=lambda reason: WORST_FIRST.index(reason.verdict))


def applies(gate: Gate, evidence: Evidence) -> bool:
    """Whether a gate has a meaning: on the virtual clock there was no client that could be late."""
    return not (gate.of_client and evidence.frames.run["dry_run"])


def worst(found: list[Reason]) -> str:
    """The worst verdict of the reasons."""
    return found[0].verdict if found else VALID
