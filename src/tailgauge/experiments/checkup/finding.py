"""Findings: the checks that found more than is borne, the largest gain first.

Rule: all checks of a checkup are one family (Holm), so that a healthy endpoint gets a finding in one of twenty checkups
at most, however many checks there are. The order is by gain, then as in the table of checks.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

from tailgauge.experiments.answer import FAIL, OPEN, PASS
from tailgauge.experiments.checkup.check import Check
from tailgauge.experiments.checkup.checks import CHECKS, Asked
from tailgauge_analysis.stats.sign_flips import holm

ALPHA = 0.05


@dataclass(frozen=True, slots=True)
class Judged:
    """A check with its place in the family."""

    check: Check
    adjusted: float | None

    @property
    def asked(self) -> Asked:
        """The check in words."""
        return CHECKS[self.check.name]

    @property
    def outcome(self) -> str:
        """FAIL is a finding, OPEN what could not be told."""
        if self.adjusted is None:
            return OPEN
        return FAIL if self.adjusted < ALPHA else PASS


def judged(checks: Sequence[Check]) -> list[Judged]:
    """All checks, in the order of their table."""
    places = list(CHECKS)
    ordered = sorted(checks, key=lambda check: places.index(check.name))
    known = [check.p_value for check in ordered if check.p_value is not None]
    adjusted = iter(holm(known))
    return [Judged(check, None if check.p_value is None else next(adjusted)) for check in ordered]


def findings(of: Sequence[Judged]) -> list[Judged]:
    """What was found, the largest gain first."""
    return sorted((one for one in of if one.outcome == FAIL), key=lambda one: -one.check.gain.value)
