"""Who runs the steps: the virtual clock, or real runs in a child process. Both leave run folders.

Rule: a real run is `tailgauge run` itself. At the simulated endpoint, which begins anew with every run, steps are run by
one child, one after the other by the same workers; at another target each has a child of its own. A child gets its
own session: Ctrl-C reaches the experiment, which passes it on and waits until the run has ended cleanly.
"""

from __future__ import annotations

import contextlib
import json
import signal
import subprocess
import sys
import time
from collections.abc import Callable, Generator, Sequence
from pathlib import Path
from typing import Any, Protocol

import psutil

from tailgauge.dry_run.command import rehearse
from tailgauge.errors import Exit, TailgaugeError, TargetError
from tailgauge.experiments.steps import Prepared
from tailgauge.protocols.settings import SIMULATED
from tailgauge.redaction import environment

PATIENCE_S = 90.0  # for a run to end when it was interrupted
Say = Callable[[str], None]
Paths = Generator[Path, None, None]


class Runner(Protocol):
    """Runs steps; `sends` says whether anything leaves this process."""

    sends: bool

    def run(self, steps: Sequence[Prepared]) -> Paths:
        """Run each in turn; yields its run folder as soon as it is whole. Raises TailgaugeError where none came about."""


class DryRun:
    """Rehearsals on the virtual clock; run folders below `out`."""

    sends = False

    def __init__(self, out: Path) -> None:
        self._out = out

    def run(self, steps: Sequence[Prepared]) -> Paths:
        """Rehearse each."""
        for one in steps:
            settings = one.settings
            yield rehearse(
                settings.scenario, settings.schedule, settings.scenario_file, settings.overrides, self._out
            ).path


class Real:
    """Runs in child processes; what they say goes to `log`, and how each ended to `say`."""

    sends = True

    def __init__(self, out: Path, workers: int, certificate: Path | None, log: Path, say: Say) -> None:
        self._options = [f"--workers={workers}", "--json", f"--out={out}"]
        self._options += [f"--certificate={certificate}"] if certificate is not None else []
        self._log, self._say = log, say
        self._ended: float | None = None  # of the last run

    def run(self, steps: Sequence[Prepared]) -> Paths:
        """Run each; rests are kept where the target remembers."""
        for group in _groups(steps):
            if self._ended is not None:
                time.sleep(max(0.0, _rest_s(group[0]) - (time.monotonic() - self._ended)))
            yield from self._together(group)
            self._ended = time.monotonic()

    def _together(self, group: Sequence[Prepared]) -> Paths:
        line = [sys.executable, "-m", "tailgauge", "run", *(str(one.file) for one in group)]
        with self._log.open("ab") as log:
            child = subprocess.Popen(
                [*line, *self._options, *group[0].options],
                stdin=subprocess.DEVNULL, stdout=subprocess.PIPE, stderr=log, text=True,
                env=environment(with_keys=True), start_new_session=True,
            )  # fmt: skip
        try:
            assert child.stdout is not None
            for one, said in zip(group, child.stdout, strict=False):
                yield self._folder(one, said)
            code = child.wait()
        except BaseException:
            _end(child)
            raise
        finally:
            if child.stdout is not None:
                child.stdout.close()
        if code == Exit.INTERRUPTED:
            raise KeyboardInterrupt
        if code in {Exit.USAGE, Exit.TARGET}:
            raise self._failure(group[-1], code)

    def _folder(self, one: Prepared, said: str) -> Path:
        try:
            told: dict[str, Any] = json.loads(said)
            code, folder = Exit(told["exit_code"]), Path(told["run_dir"])
        except (ValueError, KeyError) as error:
            raise self._failure(one, Exit.USAGE) from error
        if code == Exit.INTERRUPTED:
            raise KeyboardInterrupt
        if code in {Exit.USAGE, Exit.TARGET} or "verdict" not in told:  # it did not begin
            raise self._failure(one, code)
        self._say(f"{one.step.name}: {told['verdict']}")
        return folder

    def _failure(self, one: Prepared, code: int) -> TailgaugeError:
        lines = self._log.read_text(encoding="utf-8", errors="replace").strip().splitlines()
        words = next((line for line in reversed(lines) if line.startswith("tailgauge: ")), "it said nothing")
        kind = TargetError if code == Exit.TARGET else TailgaugeError
        return kind(f"{one.step.name}: {words.removeprefix('tailgauge: ')}")


def _begins_anew(one: Prepared) -> bool:
    """Whether its target remembers nothing of the run before."""
    return one.settings.scenario.target.url == SIMULATED


def _rest_s(one: Prepared) -> float:
    return 0.0 if _begins_anew(one) else one.step.rest_s


def _groups(steps: Sequence[Prepared]) -> list[list[Prepared]]:
    """Steps that one child runs: at a target of one's own, which remembers, each has a child and connections of its own."""
    groups: list[list[Prepared]] = []
    for one in steps:
        if not groups or not _begins_anew(one):
            groups.append([])
        groups[-1].append(one)
    return groups


def _end(child: subprocess.Popen[str]) -> None:
    """As a user would: once politely, and with everything that it started if that takes too long."""
    if child.poll() is not None:
        return
    with contextlib.suppress(ProcessLookupError):
        child.send_signal(signal.SIGINT)
    try:
        child.wait(PATIENCE_S)
    except (subprocess.TimeoutExpired, KeyboardInterrupt):
        with contextlib.suppress(psutil.Error):
            for grandchild in psutil.Process(child.pid).children(recursive=True):
                with contextlib.suppress(psutil.NoSuchProcess):
                    grandchild.kill()
        child.kill()
        child.wait()
