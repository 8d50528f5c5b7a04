"""Runs an experiment's course: steps to files, files to runs, runs to what is seen, until there is an answer.

Rule: the one place where plan, run, look and decide meet; it knows no kind of experiment. Time, calls, tokens and cost
are bounded here: where they end, the course is told and answers with what it has; so it does where a user ends it by Ctrl-C.
"""

from __future__ import annotations

import time
from collections.abc import Callable, Sequence
from contextlib import closing
from dataclasses import dataclass
from pathlib import Path

from tailgauge.experiments.answer import Answer
from tailgauge.experiments.course import Course, Experiment, Ran, SpentError, Step
from tailgauge.experiments.ledger import RUN_S, Ledger
from tailgauge.experiments.reading import read
from tailgauge.experiments.runners import Runner
from tailgauge.experiments.steps import Base, Prepared

Say = Callable[[str], None]
BY_HAND = "interrupted by hand"


@dataclass(frozen=True, slots=True)
class Conducted:
    """An experiment that has come to its end. `interrupted`: a user's end, before its own."""

    answer: Answer
    steps: tuple[Ran, ...]
    ledger: Ledger
    left_out: tuple[str, ...]  # names of steps that virtual time cannot show
    interrupted: bool = False


def conduct(experiment: Experiment, base: Base, runner: Runner, folder: Path, say: Say) -> Conducted:
    """Conduct it; step files are written into `folder`, progress is said.

    KeyboardInterrupt ends it with the answer that the runs until then allow; it is raised where there is none, or nothing
    was to be sent.
    """
    return _Conductor(experiment, base, runner, folder, say).conduct()


class _Conductor:
    def __init__(self, experiment: Experiment, base: Base, runner: Runner, folder: Path, say: Say) -> None:
        self._experiment, self._base, self._runner = experiment, base, runner
        self._folder, self._say = folder, say
        self._ledger, self._ran = Ledger(), list[Ran]()
        self._left_out: list[str] = []
        self._number = 0
        self._interrupted = False
        self._began = time.monotonic()

    def conduct(self) -> Conducted:
        course = self._experiment.course()
        wanted = next(course)
        while True:
            try:
                wanted = self._round(course, wanted)
            except StopIteration as end:
                answer: Answer = end.value
                return Conducted(
                    answer, tuple(self._ran), self._ledger, tuple(self._left_out), self._interrupted
                )

    def _round(self, course: Course, wanted: Sequence[Step]) -> Sequence[Step]:
        """The next steps that the course wants; StopIteration carries its answer."""
        try:
            ran = self._run(wanted)
        except SpentError as spent:
            self._say(str(spent))
            return course.throw(spent)
        return course.send(ran)

    def _run(self, wanted: Sequence[Step]) -> list[Ran]:
        """What was seen of the steps; of fewer than were wanted after Ctrl-C."""
        if self._interrupted:
            raise SpentError(BY_HAND)
        shown = [step for step in wanted if self._runner.sends or not step.real_only]
        self._left_out += [step.name for step in wanted if step not in shown]
        prepared, folders = self._prepare(shown), list[Path]()
        try:
            with closing(self._runner.run(prepared)) as ended:
                for folder in ended:
                    folders.append(folder)
        except KeyboardInterrupt:
            if not (self._runner.sends and (folders or self._ran)):
                raise
            self._interrupted = True
            self._say(f"{BY_HAND}: answering with what is known")
        # Not before all have run: what a run is looked at with would take the cores from the next one.
        ran = [
            self._look(one, folder) for one, folder in zip(prepared, folders, strict=not self._interrupted)
        ]
        self._ran += ran
        return ran

    def _look(self, one: Prepared, folder: Path) -> Ran:
        reading = read(folder)
        self._ledger.add(one, reading)
        seen = self._experiment.look(one.step, reading)
        if not self._runner.sends:
            self._say(f"{one.step.name}: {reading.verdict}")
        return Ran(one.step, reading.run_id, reading.verdict, reading.reason, seen)

    def _prepare(self, steps: Sequence[Step]) -> list[Prepared]:
        sends = self._runner.sends
        guard = self._ledger.left(self._base.scenario.guard) if sends else None
        if sends:
            self._time_for(steps)
        prepared = []
        for step in steps:
            self._number += 1
            prepared.append(self._base.prepare(step, self._number, self._folder, sends=sends, guard=guard))
        return prepared

    def _time_for(self, steps: Sequence[Step]) -> None:
        passed = time.monotonic() - self._began
        needed = sum(step.duration_s + RUN_S for step in steps)
        minutes = self._base.asked.minutes
        if self._ran and passed + needed > minutes * 60:
            raise SpentError(f"experiment.minutes: {minutes:g} minutes leave no time for {steps[0].name}")
