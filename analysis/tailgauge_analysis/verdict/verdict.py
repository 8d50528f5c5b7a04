"""The verdict: may these numbers be used?

It is the worst of the reasons that the checks (checks.py) give: INVALID (do not use), DEGRADED (use knowing why), VALID.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import Annotated

from tailgauge.thresholds import VALID, WORST_FIRST
from tailgauge_analysis.metrics.latency import Row
from tailgauge_analysis.metrics.stability import Stability, Throughput
from tailgauge_analysis.metrics.steady import Steady
from tailgauge_analysis.reading.frames import Frames
from tailgauge_analysis.text.json_values import one_of
from tailgauge_analysis.verdict.client import BadSeconds, Worker
from tailgauge_analysis.verdict.client_error import ClientError
from tailgauge_analysis.verdict.conservation import Conservation, InFlight
from tailgauge_analysis.verdict.timestamps import Stamps

Judgement = tuple[str, str, str]  # verdict, problem, advice


@dataclass(frozen=True, slots=True)
class Evidence:
    """What the checks judge: the steady stage, `of_target` without slow readers; `warmup`: before it, if objectives need it."""

    frames: Frames
    steady: Steady
    of_target: Steady
    warmup: Steady | None
    throughput: Throughput
    stability: Stability
    conservation: Conservation
    stamps: Stamps
    workers: list[Worker]
    in_flight: InFlight | None
    bad: BadSeconds
    latency: list[Row]
    errors: list[ClientError]


@dataclass(frozen=True, slots=True)
class Reason:
    """Why a run is not VALID, and what to do."""

    check: str
    verdict: Annotated[str, one_of(*WORST_FIRST)]
    text: str
    advice: str


@dataclass(frozen=True, slots=True)
class Check:
    """One condition on a run, in the docstring of `judge`. One `of_client` does not apply to a dry run, which has no client."""

    name: str
    judge: Callable[[Evidence], Judgement | None]
    of_client: bool = False

    @property
    def passes_if(self) -> str:
        """The condition."""
        return " ".join((self.judge.__doc__ or "").split())


def reasons(checks: Sequence[Check], evidence: Evidence) -> list[Reason]:
    """One for each failed check, worst first."""
    judged = [(check.name, check.judge(evidence)) for check in checks if applies(check, evidence)]
    found = [Reason(name, *judgement) for name, judgement in judged if judgement is not None]
    return sorted(found, key=lambda reason: WORST_FIRST.index(reason.verdict))


def applies(check: Check, evidence: Evidence) -> bool:
    """Whether the check has a meaning for this run."""
    return not (check.of_client and evidence.frames.run["dry_run"])


def worst(found: list[Reason]) -> str:
    """The worst verdict of the reasons."""
    return found[0].verdict if found else VALID
