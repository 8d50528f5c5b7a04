"""The verdict: may these numbers be used?

Rule: the verdict is the worst of the reasons that the gates (gates.py) give: INVALID (do not use), DEGRADED (use knowing
why), VALID. This module knows the words and the order, not the questions.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass

from tailgauge_analysis.client import Worker
from tailgauge_analysis.conservation import Conservation
from tailgauge_analysis.frames import Frames
from tailgauge_analysis.stamps import Stamps
from tailgauge_analysis.steady import Steady

VALID = "VALID"
DEGRADED = "DEGRADED"
INVALID = "INVALID"
WORST_FIRST = (INVALID, DEGRADED, VALID)

Said = tuple[str, str, str]  # verdict, what is wrong, what to do


@dataclass(frozen=True, slots=True)
class Evidence:
    """What the gates look at."""

    frames: Frames
    steady: Steady
    conservation: Conservation
    stamps: Stamps
    workers: list[Worker]


@dataclass(frozen=True, slots=True)
class Reason:
    """Why a run is not VALID, and what to do."""

    gate: str
    verdict: str
    text: str
    advice: str


@dataclass(frozen=True, slots=True)
class Gate:
    """One question about a run; `asks` says what passes."""

    name: str
    asks: str
    judge: Callable[[Evidence], Said | None]


def reasons(gates: Sequence[Gate], evidence: Evidence) -> list[Reason]:
    """What speaks against the run, worst first."""
    found = [Reason(gate.name, *said) for gate in gates if (said := gate.judge(evidence)) is not None]
    return sorted(found, key=lambda reason: WORST_FIRST.index(reason.verdict))


def worst(found: list[Reason]) -> str:
    """The worst verdict of the reasons."""
    return found[0].verdict if found else VALID
