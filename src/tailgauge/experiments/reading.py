"""One run of an experiment, read once: frames, evidence, verdict, calls and tokens.

Computed as in the report of any run. pandas comes with this file, so only what reads a run imports it.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path

from tailgauge_analysis.metrics.steady import Steady
from tailgauge_analysis.reading.frames import Frames, load
from tailgauge_analysis.sections.findings import evidence_of
from tailgauge_analysis.verdict.verdict import Check, Evidence, reasons, worst

_TOKENS = (
    "input_tokens", "cache_creation_input_tokens", "cache_read_input_tokens", "output_tokens",
)  # fmt: skip


@dataclass(frozen=True, slots=True)
class RunReading:
    """A run. `reason` is the first against it, empty of a VALID one; `tokens` are those of the usage."""

    frames: Frames
    evidence: Evidence
    run_id: str
    verdict: str
    reason: str
    calls: int
    tokens: int

    @property
    def steady(self) -> Steady:
        """The steady stage, without requests of slow readers."""
        return self.evidence.of_target


def read(folder: Path, checks: Sequence[Check]) -> RunReading:
    """Read a run folder, judged by these checks; RunDataError where there is no run."""
    frames = load([folder])
    evidence = evidence_of(frames)
    against = reasons(checks, evidence)
    attempts = evidence.frames.attempts
    return RunReading(
        frames=evidence.frames, evidence=evidence, run_id=frames.run["run_id"], verdict=worst(against),
        reason=against[0].text if against else "", calls=int(attempts["sent_at_ns"].notna().sum()),
        tokens=int(attempts[list(_TOKENS)].sum().sum()),
    )  # fmt: skip
