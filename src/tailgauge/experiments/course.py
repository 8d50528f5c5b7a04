"""The shape of an experiment: a course of steps, what was seen of each, and one answer at its end.

Rule: a course is a generator without I/O, as a traffic pattern is one. It yields the steps that it wants run, several at
a time where none waits for another; it is sent what was seen of them, in that order; it returns the answer. Whether
the steps ran on the virtual clock or in real time it cannot tell, so that a rehearsal is the experiment itself.
"""

from __future__ import annotations

from collections.abc import Generator, Sequence
from dataclasses import dataclass
from typing import Any, Protocol

from tailgauge.errors import TailgaugeError
from tailgauge.experiments.answer import Answer
from tailgauge.experiments.reading import Reading
from tailgauge.thresholds import INVALID


@dataclass(frozen=True, slots=True)
class Step:
    """One run. `name` is for readers, as "12.5 requests/s". `overrides` go over the experiment's scenario, by dotted key;
    None takes a key out. `rest_s`: quiet seconds before it, where the target remembers the step before.
    """

    name: str
    overrides: tuple[tuple[str, Any], ...]
    duration_s: float
    seed: int
    rest_s: float = 0.0
    real_only: bool = False  # virtual time cannot show it: left out of a rehearsal, and not seen


@dataclass(frozen=True, slots=True)
class Ran:
    """A step that ran. `seen` is what the experiment's `look` made of it."""

    step: Step
    run_id: str
    verdict: str
    reason: str
    seen: Any

    @property
    def counts(self) -> bool:
        """Whether its numbers may be used."""
        return self.verdict != INVALID


class SpentError(TailgaugeError):
    """The experiment's time, calls, tokens or money are used up. Thrown into the course, which then concludes."""


Course = Generator[Sequence[Step], Sequence[Ran], Answer]


class Experiment(Protocol):
    """One kind of experiment, made from its scenario."""

    def course(self) -> Course:
        """Plan, and decide what to do next; pure. A step left out of a rehearsal is not among what is sent.

        `SpentError` may be thrown in where it waits: it then returns the answer that what was seen allows.
        """

    def look(self, step: Step, reading: Reading) -> Any:
        """What the course wants to know of a run: few numbers, no frames."""
