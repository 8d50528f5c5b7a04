"""Runs steps: dry runs in this process, or real runs in a child process. Both write run folders.

A real run is `tailgauge run` itself. The simulated endpoint resets with every run, so one child runs all steps with the
same workers; at another target each step has a separate child. A child has a separate process session: Ctrl-C reaches
the experiment, which passes it on and waits for a clean end.
"""

from __future__ import annotations

import contextlib
import json
import math
import re
import signal
import subprocess
import threading
import time
from collections.abc import Callable, Generator, Mapping, Sequence
from pathlib import Path
from typing import Any, Protocol, TextIO

import psutil

from tailgauge import interpreter
from tailgauge.dry_run.command import dry_run
from tailgauge.errors import Exit, InternalError, TailgaugeError, TargetError, UsageError
from tailgauge.experiments.course import Prepared
from tailgauge.plugins import plugin
from tailgauge.protocols.protocol import SIMULATED
from tailgauge.redaction import environment
from tailgauge_analysis import listed, ms

FOLLOW_S = 2.0  # for the last lines of a child
WAITS = re.compile(r"note: (.*\bwaiting\b.*)", re.IGNORECASE)
PATIENCE_S = 90.0  # for a run to end when it was interrupted
# What `tailgauge run` ended with, by its exit code, where there is no run.
ERRORS: Mapping[int, type[TailgaugeError]] = {
    Exit.USAGE: UsageError,
    Exit.TARGET: TargetError,
    Exit.INTERNAL: InternalError,
}
Paths = Generator[Path, None, None]
Progress = Callable[[str], None]


class Runner(Protocol):
    """Runs steps; `sends`: whether anything leaves this process."""

    sends: bool

    def run(self, steps: Sequence[Prepared]) -> Paths:
        """Run one after the other; yields each run folder once it is complete. Raises TailgaugeError if a run fails."""


class DryRunner:
    """Dry runs; run folders below `out`."""

    sends = False

    def __init__(self, out: Path) -> None:
        self._out = out

    def run(self, steps: Sequence[Prepared]) -> Paths:
        """Run each."""
        for prepared in steps:
            settings = prepared.settings
            scenario_file = settings.scenario_file
            yield dry_run(
                settings.scenario, settings.schedule, scenario_file, settings.overrides, self._out
            ).path


class RunCounter:
    """One line of progress for each run: its number, its load, a figure, its verdict and the time left.

    `planned`: how many runs there will be, 0 where nobody knows; `is_timed`: whether they take real time;
    `shown_limit_s`: the seconds that all of them may take. conduct.py keeps to them.
    """

    def __init__(
        self,
        progress: Progress,
        planned: int = 0,
        *,
        is_timed: bool = False,
        shown_limit_s: float = 0.0,
    ) -> None:
        self._progress = progress
        self._planned = planned
        self._is_timed = is_timed
        self._shown_limit_s = shown_limit_s
        self._began = time.monotonic()
        self._done = 0

    def note(self, text: str) -> None:
        """Print what a run waits for."""
        self._progress(text)

    def repeat(self, names: Sequence[str]) -> None:
        """Announce runs that replace INVALID ones, and count them."""
        if not names:
            return
        if self._planned:
            self._planned = max(self._planned, self._done) + len(names)
        self._progress(f"repeated once, because INVALID: {listed(names)}")

    def ended(self, name: str, figure: str, verdict: str = "") -> None:
        """Print the line of a run."""
        self._done += 1
        remaining = self._planned - self._done
        number = f"run {self._done}"
        if remaining >= 0:
            number += f" of {self._planned}"
        parts = [number, name, figure, verdict]
        passed_s = time.monotonic() - self._began
        if self._is_timed and remaining > 0:
            parts.append(_time_left("about", remaining * passed_s / self._done))
        elif self._is_timed and not self._planned and self._shown_limit_s:
            parts.append(_time_left("at most", self._shown_limit_s - passed_s))
        self._progress("  ".join(filter(None, parts)))


def _time_left(prefix: str, seconds: float) -> str:
    minutes = round(seconds / 60)
    if minutes >= 1:
        return f"{prefix} {minutes} min left"
    return "under 1 min left"


def figure_of(facts: Mapping[str, Any]) -> str:
    """Return the first objective with a value in what `tailgauge run --json` prints, else a latency: `ttft p95 412 ms`.

    Too few requests have no percentile; the objective's value is the share of them that misses its bound.
    """
    result = facts.get("result") or {}
    for objective in result.get("objectives", ()):
        value = objective["value"]
        numbers = objective.get("numbers")
        if value and numbers is not None and numbers["value"] is None:
            return f"{value} miss {objective['name']} {objective['required']}"
        if value:
            return f"{objective['name']} {value}"
    for row in facts.get("latency", ()):
        for name in ("p95", "p50"):
            value = row["percentiles"].get(name, {}).get("value")
            if row["population"] == "offered" and row["unit"] == "ms" and value is not None:
                return f"{row['metric']} {name} {ms(value)} ms"
    return ""


class RealRunner:
    """Runs in child processes; their stderr goes to `log`, a line for each run and for each wait to `counter`."""

    sends = True

    def __init__(self, out: Path, workers: int, log: Path, counter: RunCounter) -> None:
        self._options = [f"--workers={workers}", "--json", f"--out={out}", *plugin.options()]
        self._log = log
        self._counter = counter
        self._ended: float | None = None  # of the last run

    def run(self, steps: Sequence[Prepared]) -> Paths:
        """Run each, with its rest if the target keeps state."""
        self._counter.repeat([prepared.step.name for prepared in steps if prepared.step.is_repeat])
        for group in _groups(steps):
            if self._ended is not None:
                rest_s = 0.0
                if not _resets(group[0]):
                    rest_s = group[0].step.rest_s
                left_s = rest_s - (time.monotonic() - self._ended)
                if left_s > 0:
                    self._counter.note(
                        f"resting {math.ceil(left_s)} s until {group[0].step.rests_until}"
                    )
                    time.sleep(left_s)
            yield from self._run_group(group)
            self._ended = time.monotonic()

    def _run_group(self, group: Sequence[Prepared]) -> Paths:
        """Run a group of steps in one child, `tailgauge run`; yield each run folder once its run has ended.

        The child prints a line of JSON for each run. Its stderr goes to the log, by a thread. Whatever ends this
        generator early interrupts the child and waits for it. Raises KeyboardInterrupt for a child that was interrupted,
        and the child's own error where a run is missing.
        """
        command = interpreter.tailgauge("run", *(str(prepared.file) for prepared in group))
        child = subprocess.Popen(
            [*command, *self._options, *group[0].options],
            stdin=subprocess.DEVNULL,
            stdout=subprocess.PIPE,
            stderr=subprocess.PIPE,
            text=True,
            errors="replace",
            env=environment(with_keys=True),
            start_new_session=True,
        )
        follower = threading.Thread(target=self._follow, args=(child.stderr,), daemon=True)
        follower.start()
        try:
            assert child.stdout is not None
            completed = 0
            for prepared, line in zip(group, child.stdout, strict=False):
                yield self._folder(prepared, line)
                completed += 1
            code = child.wait()
        except BaseException:
            end(child)
            raise
        finally:
            if child.stdout is not None:
                child.stdout.close()
            follower.join(FOLLOW_S)
        if code == Exit.INTERRUPTED:
            raise KeyboardInterrupt
        if completed < len(group):
            raise self._failure(group[completed], code)

    def _follow(self, stream: TextIO) -> None:
        """Log what a child prints, and print what it waits for."""
        with self._log.open("a", encoding="utf-8") as log, stream:
            for line in stream:
                log.write(line)
                log.flush()
                if waits := WAITS.match(line):
                    self._counter.note(waits[1])

    def _folder(self, prepared: Prepared, line: str) -> Path:
        try:
            facts: dict[str, Any] = json.loads(line)
            code = Exit(facts["exit_code"])
            folder = Path(facts["run_dir"])
        except (ValueError, KeyError) as error:
            raise self._failure(prepared, Exit.USAGE) from error
        if code == Exit.INTERRUPTED:
            raise KeyboardInterrupt
        if code in {Exit.INTERNAL, Exit.USAGE} or not was_recorded(facts):
            raise self._failure(prepared, code)
        # Without the run's verdict: its experiment has checks of its own.
        self._counter.ended(prepared.step.name, figure_of(facts))
        return folder

    def _failure(self, prepared: Prepared, code: int) -> TailgaugeError:
        lines = self._log.read_text(encoding="utf-8", errors="replace").strip().splitlines()
        messages = (line for line in reversed(lines) if line.startswith("tailgauge: "))
        message = next(messages, "no error message")
        return ERRORS.get(code, TailgaugeError)(
            f"{prepared.step.name}: {message.removeprefix('tailgauge: ')}"
        )


def was_recorded(facts: Mapping[str, Any]) -> bool:
    """Return whether `tailgauge run --json` tells of a run that began, rather than of a target that could not be used."""
    return facts.get("state") not in {None, "unusable"}


def _resets(prepared: Prepared) -> bool:
    """Return whether its target keeps no state between runs."""
    return prepared.settings.scenario.target.url == SIMULATED


def _groups(steps: Sequence[Prepared]) -> list[list[Prepared]]:
    """Steps that one child runs: one step each at a target that keeps state, with new connections."""
    if steps and _resets(steps[0]):
        return [list(steps)]
    return [[step] for step in steps]


def end(child: subprocess.Popen[str]) -> None:
    """End a child as a user would: SIGINT, and after PATIENCE_S kill it with all its children."""
    if child.poll() is not None:
        return
    with contextlib.suppress(ProcessLookupError):
        child.send_signal(signal.SIGINT)
    try:
        child.wait(PATIENCE_S)
    except (subprocess.TimeoutExpired, KeyboardInterrupt):
        kill(child)


def kill(child: subprocess.Popen[Any]) -> None:
    """Kill a child with all its children, at once."""
    with contextlib.suppress(psutil.Error):
        for grandchild in psutil.Process(child.pid).children(recursive=True):
            with contextlib.suppress(psutil.NoSuchProcess):
                grandchild.kill()
    child.kill()
    child.wait()
