"""`tailgauge run`: a Locust master in this process, workers as fresh child processes; a folder and an exit code a scenario.

Rule: importing this module patches the process (Locust does), so only commands that need it import it.
"""

from __future__ import annotations

import logging
import os
import shutil
import signal
import sys
import tempfile
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import gevent
import locust  # first: it patches the standard library for gevent
from locust import runners
from locust.env import Environment
from locust.util.load_locustfile import load_locustfile

from tailgauge.analyse import Made, analyse
from tailgauge.children import Child
from tailgauge.clock import monotonic_ns
from tailgauge.errors import Exit, TailgaugeError, TargetError
from tailgauge.owner import Run
from tailgauge.progress import Display
from tailgauge.scenario import packaged
from tailgauge.settings import Settings
from tailgauge.users import Owner, attach_worker

log = logging.getLogger("tailgauge")
CONNECT_S = 60.0
TICK_S = 0.25
STOP_S = 30.0


def quiet_logging() -> None:
    """Warnings and errors only, one line each, on standard error."""
    logging.basicConfig(
        level=logging.WARNING, format="%(levelname)s %(name)s: %(message)s", stream=sys.stderr
    )


def user_classes(patterns: set[str] | None = None) -> list[Any]:
    """Classes of the packaged locustfiles, through Locust's own loader; of all of them, or of some patterns."""
    found: list[Any] = []
    for path in sorted(packaged("locustfiles").glob("*.py")):
        if patterns is None or path.stem in patterns:
            found.extend(load_locustfile(str(path))[0].values())
    return found


@dataclass(frozen=True, slots=True)
class Outcome:
    """What came of one scenario. Where its run did not begin, `failure` says why and there is no report."""

    code: Exit
    made: Made | None
    run: Run | None
    failure: TailgaugeError | None = None


class Launch:
    """One `tailgauge run`: its processes, and a run of each scenario in turn, by the same workers."""

    def __init__(self, scenarios: Sequence[Settings], workers: int, *, quiet: bool) -> None:
        self._scenarios, self._workers, self._quiet = scenarios, workers, quiet
        self._interrupts = 0
        self._children: list[Child] = []
        self._owner: Owner | None = None
        self._logs = Path(tempfile.mkdtemp(prefix="tailgauge-"))

    def runs(self) -> Iterator[Outcome]:
        """Run the scenarios; yields what came of each as soon as it is known. After a Ctrl-C no other begins."""
        quiet_logging()
        gevent.signal_handler(signal.SIGINT, self._on_interrupt)
        gevent.signal_handler(signal.SIGTERM, self._on_interrupt)
        try:
            runner = self._start()
            for settings in self._scenarios:
                if self._interrupts:
                    return
                try:
                    run = self._one(runner, settings)
                except TailgaugeError as error:
                    yield Outcome(error.exit_code, None, None, error)
                    continue
                if settings is self._scenarios[-1]:
                    self._end(runner)  # the report has the cores for itself
                self._keep_logs(run)
                yield self._conclude(run)
        finally:
            self._stop_children()
            shutil.rmtree(self._logs)

    def _start(self) -> Any:
        first = next(iter(self._scenarios[0].scenario.traffic.values()))
        environment = Environment(user_classes=user_classes({first.pattern}), events=locust.events)
        runner = environment.create_master_runner("127.0.0.1", 0)
        address = f"127.0.0.1:{runner.server.port}"
        for number in range(self._workers):
            log_file = self._logs / f"worker-{number}.log"
            self._children.append(
                Child(["worker", f"--master={address}", "--lifeline"], log_file, with_keys=True)
            )
        return runner

    def _one(self, runner: Any, settings: Settings) -> Run:
        """A run from its plan to its drain."""
        display = Display(settings.scenario.stages.duration_s)
        try:
            plural = "" if self._workers == 1 else "s"
            display.say(f"tailgauge: {settings.scenario_file}, {self._workers} worker{plural}; starting")
            for line in settings.estimate.lines():
                display.say(f"tailgauge: {line}")
            self._await_workers(runner)
            if self._owner is None:
                self._owner = Owner(
                    runner.environment, settings, lambda node: self._alive(runner, node), stays=True
                )
            self._owner.settings, self._owner.run = settings, None
            gevent.spawn(runner.start, self._workers, self._workers)
            return self._watch(self._owner, display)
        finally:
            display.close()

    def _end(self, runner: Any) -> None:
        self._await_stopped(runner)
        runner.quit()
        self._stop_children()

    def _await_workers(self, runner: Any) -> None:
        self._await_stopped(runner)
        deadline = monotonic_ns() + int(CONNECT_S * 1e9)
        while len(runner.clients.ready) < self._workers:
            if self._interrupts:
                raise TailgaugeError("interrupted before the run began")
            for child in self._children:
                if not child.running():
                    raise TailgaugeError(f"a worker process has ended: {child.last_words()}")
            if monotonic_ns() > deadline:
                raise TailgaugeError(f"the workers did not connect within {CONNECT_S:.0f} s")
            gevent.sleep(0.02)

    def _alive(self, runner: Any, node: str) -> bool:
        client = runner.clients.get(node)
        if client is None or client.state == "missing":
            return False
        member = self._owner.run.crew.members.get(node) if self._owner and self._owner.run else None
        pids = {c.process.pid: c for c in self._children}
        return member is None or member.hello["pid"] not in pids or pids[member.hello["pid"]].running()

    def _await_stopped(self, runner: Any) -> None:
        """Until Locust is done with the run before: it tells the workers to stop after the drain."""
        with gevent.Timeout(STOP_S, False):
            while runner.state not in {runners.STATE_INIT, runners.STATE_STOPPED}:
                gevent.sleep(0.02)

    def _watch(self, owner: Owner, display: Display) -> Run:
        told = 0
        while (run := owner.run) is None or not run.over.is_set():
            gevent.sleep(TICK_S)
            if run is None:
                continue
            for note in run.notes[told:]:
                if note != str(run.failure):  # that one is told at the end
                    display.say(f"note: {note}")
            told = len(run.notes)
            if run.start_at_ns is not None and not self._quiet:
                display.show(run.snapshot(), draining=run.admitted.is_set())
        if run.start_at_ns is not None and not self._quiet:
            display.conclude(run.snapshot())
        return run

    def _on_interrupt(self) -> None:
        self._interrupts += 1
        run = self._owner.run if self._owner else None
        if run is None:
            return
        if self._interrupts == 1:
            sys.stderr.write(
                "\ntailgauge: no new requests; waiting for the open ones (Ctrl-C again to close them)\n"
            )
            run.cut_short("interrupted")
        elif self._interrupts == 2:
            sys.stderr.write("\ntailgauge: closing the open requests\n")
            run.hurry()

    def _stop_children(self) -> None:
        for child in self._children:
            child.stop(5)

    def _keep_logs(self, run: Run) -> None:
        for path in sorted(self._logs.iterdir()):
            if path.stat().st_size and run.folder.path.is_dir():
                shutil.copy(path, run.folder.path / path.name)

    def _conclude(self, run: Run) -> Outcome:
        if run.start_at_ns is None:
            if self._interrupts:
                return Outcome(Exit.INTERRUPTED, None, run)
            failure = run.failure or TailgaugeError("the run did not begin")
            return Outcome(failure.exit_code, None, run, failure)
        made = analyse(run.folder, run.settings.out)
        if self._interrupts:
            return Outcome(Exit.INTERRUPTED, made, run)
        if isinstance(run.failure, TargetError):
            return Outcome(Exit.TARGET, made, run)
        if run.state == "failed" or run.failure is not None:
            return Outcome(Exit.INVALID, made, run)
        return Outcome(made.exit_code, made, run)


def work(master: str, *, lifeline: bool) -> None:
    """`tailgauge worker`: serve a master until it lets go."""
    quiet_logging()
    host, _, port = master.rpartition(":")
    environment = Environment(user_classes=user_classes(), events=locust.events)
    runner = environment.create_worker_runner(host, int(port))
    worker = attach_worker(environment)

    def end(reason: str) -> None:
        worker.finish(reason)
        runner.quit()

    gevent.signal_handler(signal.SIGTERM, lambda: gevent.spawn(end, "this worker was told to end"))
    if lifeline:
        gevent.spawn(_follow, end)
    runner.greenlet.join()


def _follow(end: Any) -> None:
    """End when standard input does: the owner that held the other end is gone."""
    stdin = sys.stdin.fileno()
    while gevent.get_hub().threadpool.apply(os.read, (stdin, 1024)):
        continue
    end("the owner of the run is gone")
