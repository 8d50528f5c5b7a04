"""Drive the course of an experiment by hand: a function says what each step shows."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

from tailgauge.experiments.answer import Answer
from tailgauge.experiments.course import Planner, Step, StepResult


def drive(
    planner: Planner,
    measure: Callable[[Step], Any],
    verdict: Callable[[Step], str] = lambda _: "VALID",
) -> tuple[list[list[Step]], Answer]:
    """Return the groups of steps of a course, and its answer."""
    course = planner.course()
    groups: list[list[Step]] = []
    try:
        steps = next(course)
        while True:
            groups.append(list(steps))
            results = [StepResult(step, "run", verdict(step), "", measure(step)) for step in steps]
            steps = course.send(results)
    except StopIteration as end:
        return groups, end.value
