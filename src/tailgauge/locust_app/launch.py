"""`tailgauge run`: a Locust master in this process, workers as copies of it; a folder and an exit code a scenario.

Rule: importing this module patches the process (Locust does), so only commands that need it import it.
"""

from __future__ import annotations

import gc
import logging
import os
import shlex
import shutil
import signal
import sys
import tempfile
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import gevent
import locust  # first: it patches the standard library for gevent
from gevent.baseserver import BaseServer
from locust import argument_parser, runners
from locust.env import Environment
from locust.exception import RPCError
from locust.util.load_locustfile import load_locustfile

from tailgauge.address import LOOPBACK, Address, is_loopback, parse
from tailgauge.channel.auth import TOKEN, Seal, configured_token, new_token
from tailgauge.channel.child_process import Child, Copy
from tailgauge.channel.sockets import report as dropped_messages
from tailgauge.clock import monotonic_ns
from tailgauge.errors import Exit, InterruptedRunError, TailgaugeError, TargetError, UsageError
from tailgauge.live import screen
from tailgauge.live.terminal import Display, announcement
from tailgauge.live.web import serve
from tailgauge.locust_app.report_process import ReportOutput, ReportProcess, output_of
from tailgauge.locust_app.users import Master, attach_worker, refusal
from tailgauge.master.preflight_advice import proxy_notes
from tailgauge.master.run import Run
from tailgauge.plan.resolve import Settings
from tailgauge.plugins import plugin
from tailgauge.redaction import printable
from tailgauge.scenario.packaged import packaged

log = logging.getLogger("tailgauge")
HERE = Address(LOOPBACK, 0)
LIFELINE = 0  # standard input
CONNECT_S = 60.0
WEB_S = 2.0  # for answers of the web page: Locust answers a click on Stop after a second
REMOTE_S = 600.0  # workers on other machines are started by hand
PRINT_EVERY_S = 10.0
ANSWER_S = 120  # a worker waits for the master
SILENCE_S = 30  # without a message of the master a worker writes its rows and ends
ANYWHERE = ("0.0.0.0", "[::]", "*")  # noqa: S104 - compared, not bound
TICK_S = 0.25
SHOW_NS = 900_000_000  # workers report once a second; the sum over a thousand of them takes 20 ms
STOP_S = 30.0
LINGER_MS = 1000


def beside_the_loop(print_: Callable[[str], None], text: str) -> None:
    """Print where a reader that is slow does not stop the loop: the workers of the next run would take us for lost."""

    def attempt() -> OSError | None:
        try:
            print_(text)
        except OSError as error:  # in the thread gevent would log its traceback
            return error
        return None

    error = gevent.get_hub().threadpool.apply(attempt)
    if error is not None:
        raise error


class _Formatter(logging.Formatter):
    """Log messages without tracebacks, and without secrets and control characters, which the text of an error or a peer may hold."""

    def format(self, record: logging.LogRecord) -> str:
        return printable(super().format(record))

    def formatException(self, ei: Any) -> str:  # noqa: N802 - its name in logging
        """Return the error in a line. Of a fault of ours it names the file that has the traceback."""
        return str(plugin.failure(ei[1]))


class _HubErrors:
    """Logs what no greenlet and no callback has caught: each text once, for a server that cannot accept tries each second."""

    def __init__(self) -> None:
        self._shown: set[str] = set()

    def show(self, where: Any, *error: Any) -> None:
        text = str(plugin.failure(error[1]))
        if text not in self._shown:
            self._shown.add(text)
            is_server = isinstance(where, BaseServer)
            problem = (
                "the web page cannot be served" if is_server else "a part of this process failed"
            )
            log.error("%s: %s", problem, text)


def log_warnings(*, progress: bool = False) -> None:
    """Log warnings and errors to standard error, one line each; with `progress` also what this worker does."""
    text = "%(name)s: %(message)s" if progress else "%(levelname)s %(name)s: %(message)s"
    logging.basicConfig(level=logging.WARNING, stream=sys.stderr)
    for handler in logging.getLogger().handlers:
        handler.setFormatter(_Formatter(text))
    log.setLevel(logging.INFO if progress else logging.NOTSET)
    logging.raiseExceptions = False  # a log that cannot be written ends nothing
    gevent.get_hub().print_exception = _HubErrors().show


class _Defaults(argument_parser.LocustArgumentParser):
    """Locust's options without an argument, a variable or a file.

    Each worker, and each view of the web page, would read the command line, LOCUST_ variables and, in the current folder,
    locust.conf and pyproject.toml. They are no settings of `tailgauge run`, and one that is wrong ends the process.
    """

    def parse_known_args(self, *_: Any, **__: Any) -> tuple[Any, list[str]]:
        return super().parse_known_args([], config_file_contents="", env_vars={})  # type: ignore[no-any-return]


argument_parser.LocustArgumentParser = _Defaults  # type: ignore[misc]


def user_classes(patterns: set[str] | None = None) -> list[Any]:
    """Return the classes of the packaged locustfiles by Locust's loader: all, or those of some patterns."""
    module_path = sys.path.copy()
    classes: list[Any] = []
    for path in sorted(packaged("locustfiles").glob("*.py")):
        if patterns is None or path.stem in patterns:
            classes.extend(load_locustfile(str(path))[0].values())
    # The loader puts the current folder in front: whatever is imported later would come from there.
    sys.path[:] = module_path
    return classes


@dataclass(frozen=True, slots=True)
class Outcome:
    """Result of one scenario. If its run did not begin, `failure` says why and there is no report."""

    code: Exit
    report: ReportOutput | None
    run: Run | None
    failure: TailgaugeError | None = None


@dataclass(frozen=True, slots=True)
class WorkerSetup:
    """Worker processes of this run: local children, and remote ones that connect to `bind`."""

    children: int
    remote: int = 0
    bind: Address = HERE

    @property
    def number(self) -> int:
        """All workers."""
        return self.children + self.remote


@dataclass(slots=True)
class _Printed:
    """What was printed of a run."""

    urls: bool = False
    notes: int = 0  # how many of them
    next_figures_ns: int = 0  # when the figures are due again
    has_failed: bool = False


Page = tuple[Address, bool]


class Launch:
    """One `tailgauge run`: its processes, and one run per scenario on the same workers.

    `page`: where Locust's web page with the live view is, and whether it has /metrics.
    """

    def __init__(
        self,
        scenarios: Sequence[Settings],
        setup: WorkerSetup,
        page: Page | None,
        *,
        shows_progress: bool,
    ) -> None:
        self._scenarios = scenarios
        self._setup = setup
        self._page = page
        self._shows_progress = shows_progress
        self._token = configured_token("a remote worker" if setup.remote else "") or new_token()
        os.environ[TOKEN] = self._token  # of the sockets here and in the workers
        self._interrupts = 0
        self._display: Display | None = None
        self._children: list[Child] = []
        self._master: Master | None = None
        self._report: ReportProcess | None = None  # of the run
        self._logs = Path(tempfile.mkdtemp(prefix="tailgauge-"))

    def runs(self) -> Iterator[Outcome]:
        """Run the scenarios one after the other on the same workers. Yield each result once it is known.

        From here on SIGINT and SIGTERM end the run in progress, and no other begins. A scenario whose run fails to begin
        yields its failure, and the next one runs. At the end, however it comes, the children are stopped.
        """
        self._copy_workers()
        log_warnings()
        gevent.signal_handler(signal.SIGINT, self._on_interrupt)
        gevent.signal_handler(signal.SIGTERM, self._on_interrupt)
        try:
            master = self._master = self._start()
            for settings in self._scenarios:
                if self._interrupts:
                    return
                try:
                    run = self._run(master, settings)
                except Exception as error:  # noqa: BLE001 - whatever it is, the next one may run
                    failure = plugin.failure(error)
                    yield Outcome(failure.exit_code, None, None, failure)
                    continue
                # The report is made while the workers of the last run are ended.
                outcome = gevent.spawn(self._conclude, run)
                if settings is self._scenarios[-1]:
                    self._end(master)
                self._keep_logs(run)
                yield outcome.get()
        finally:
            self._stop_children()
            shutil.rmtree(self._logs, ignore_errors=True)

    def _start(self) -> Master:
        traffic = next(iter(self._scenarios[0].scenario.traffic.values()))
        # Locust starts nothing without a user. A pattern without a locustfile takes the general one.
        users = user_classes({traffic.pattern}) or user_classes({"streaming"})
        environment = Environment(user_classes=users, events=locust.events)
        runner = _master(environment, self._setup.bind)
        master = Master(environment, self._scenarios[0], Seal(self._token), stays=True)
        master.is_alive = lambda node: self._alive(master, node)
        master.end_worker = lambda node: self._kill(master, node)
        if self._page is not None:
            self._serve(master, environment, *self._page)
        host = LOOPBACK if self._setup.bind.host in ANYWHERE else self._setup.bind.host
        for child in self._children:
            child.write(f"{host}:{runner.server.port}")
        return master

    def _copy_workers(self) -> None:
        """Fork the workers from this process before it has a thread: they import nothing again, the SDKs least of all."""

        def start() -> Exit:
            gc.disable()  # as in `tailgauge worker`
            address = os.read(LIFELINE, 1024).decode()
            if not address:
                return Exit.INTERRUPTED
            try:
                return work(parse(address, "--master"), Path.cwd(), lifeline=True)
            except TailgaugeError as error:
                screen.show(f"tailgauge: {error}", err=True)
                return error.exit_code

        for number in range(self._setup.children):
            log_file = self._logs / f"worker-{number}.log"
            self._children.append(Copy(f"worker {number}", start, log_file, self._children))

    @staticmethod
    def _serve(master: Master, environment: Any, address: Address, metrics: bool) -> None:
        url = serve(environment, address, lambda: master.run, metrics=metrics)
        screen.show(f"tailgauge: live view on {url}/tailgauge", err=True)
        if not is_loopback(address.host):
            screen.show(
                "tailgauge: anyone who reaches that page can watch and stop this run", err=True
            )

    def _run(self, master: Master, settings: Settings) -> Run:
        """Conduct one run from its plan to its drain."""
        self._display = display = Display()
        workers = self._setup.number
        try:
            for line in announcement(settings, workers):
                display.print_line(line)
            master.settings = settings
            master.run = None
            self._report = None
            self._await_workers(master, display)
            starting = gevent.spawn(master.runner.start, workers, workers)
            return self._watch(self._await_run(master, starting), display)
        finally:
            display.close()

    def _end(self, master: Master) -> None:
        self._await_stopped(master.runner)
        master.release()
        master.runner.quit()
        if self._page is not None:  # the answer to a click on Stop may be on its way
            master.runner.environment.web_ui.server.stop(timeout=WEB_S)
        self._stop_children()

    def _await_workers(self, master: Master, display: Display) -> None:
        """Wait until the expected workers are connected and usable; TailgaugeError with the cause where they are not in
        time.

        At once for a child that ended, and for an interruption. Workers on other machines get longer; how to start them
        is printed.
        """
        self._await_stopped(master.runner)
        patience_s = REMOTE_S if self._setup.remote else CONNECT_S
        expected = self._setup.number
        begin_ns = monotonic_ns()
        print_at_s = 0.0
        connected = self._connected(master)
        while connected < expected:
            waited_s = (monotonic_ns() - begin_ns) / 1e9
            text = f"{connected} of {expected} workers connected"
            if self._interrupts:
                raise InterruptedRunError("interrupted before the run began")
            for child in self._children:
                if not child.running():
                    raise TailgaugeError(f"a worker process ended: {child.log_tail()}")
            if waited_s > patience_s:
                texts = [f"{text} within {patience_s:.0f} s"]
                for node, reason in list(master.refused.items())[:3]:
                    texts.append(refusal(node, reason))
                raise TailgaugeError("; ".join([*texts, *dropped_messages()]))
            if self._setup.remote and waited_s >= print_at_s:
                display.print_line(f"{text}; {self._worker_hint(master.runner)}")
                print_at_s += PRINT_EVERY_S
            gevent.sleep(0.02)
            connected = self._connected(master)

    @staticmethod
    def _connected(master: Master) -> int:
        """Return how many workers have sent hello and can be used by Locust."""
        ready = {client.id for client in master.runner.clients.ready}
        return sum(node in ready for node in master.roster)

    def _worker_hint(self, runner: Any) -> str:
        host = "THIS-MACHINE" if self._setup.bind.host in ANYWHERE else self._setup.bind.host
        return f"on each other machine run: tailgauge worker --master {host}:{runner.server.port}"

    def _alive(self, master: Master, node: str) -> bool:
        """Return whether Locust knows a worker, and its process runs if it is a child."""
        return master.is_known(node) and all(
            child.running() for child in self._children_of(master, node)
        )

    def _kill(self, master: Master, node: str) -> None:
        """Kill a worker if it is a child of this process."""
        for child in self._children_of(master, node):
            if child.running():
                child.process.kill()

    def _children_of(self, master: Master, node: str) -> list[Child]:
        """Return the child process that is this worker; none of a worker elsewhere."""
        hello = master.roster.get(node, {})
        if not hello.get("child"):
            return []
        return [child for child in self._children if child.process.pid == hello["pid"]]

    def _await_stopped(self, runner: Any) -> None:
        """Wait until Locust has stopped the previous run: it stops the workers after the drain."""
        idle = {runners.STATE_INIT, runners.STATE_STOPPED}
        with gevent.Timeout(STOP_S, False):
            while runner.clients and runner.state not in idle:
                gevent.sleep(0.02)

    @staticmethod
    def _await_run(master: Master, starting: Any) -> Run:
        while master.run is None:
            # Locust begins nothing without a worker.
            if starting.ready() and starting.get() is None:
                raise TailgaugeError("the workers left before the run began: run it again")
            gevent.sleep(TICK_S)
        return master.run

    def _watch(self, run: Run, display: Display) -> Run:
        """Show the progress of a run until it is over; then return it. What cannot be shown ends no run.

        The process of its report is started as soon as no more requests are admitted.
        """
        if self._interrupts:  # it came before there was a run
            run.interrupt()
        printed = _Printed()
        is_over = False
        while not is_over:
            is_over = run.over.wait(TICK_S)
            if run.start_at_ns is not None and run.admitted.is_set():
                self._report_process(run)  # loads pandas while open requests end
            try:
                self._show(run, display, printed)
                if is_over and run.start_at_ns is not None and self._shows_progress:
                    display.conclude(run.snapshot())
            except Exception as error:  # noqa: BLE001 - a run needs nobody who looks at it
                if not printed.has_failed:
                    log.warning("the progress cannot be shown: %s", plugin.failure(error))
                printed.has_failed = True
        return run

    def _show(self, run: Run, display: Display, printed: _Printed) -> None:
        """Print what is new of a run: the addresses of its calls, notes, and about every second its figures.

        `printed`: what was printed until now; it is updated.
        """
        if run.called and not printed.urls:
            printed.urls = True
            display.print_line(f"calls go to {' and '.join(run.called)}")
            for note in proxy_notes(run.called):
                display.print_line(note)
        notes = run.notes[printed.notes :]
        printed.notes += len(notes)
        for note in notes:
            if note != str(run.failure):  # printed at the end
                display.print_line(f"note: {note}")
        if run.start_at_ns is None or not self._shows_progress:
            return
        if monotonic_ns() >= printed.next_figures_ns:
            printed.next_figures_ns = monotonic_ns() + SHOW_NS
            phase = "draining" if run.admitted.is_set() else ""
            display.show(run.snapshot(), phase=phase)

    def _on_interrupt(self) -> None:
        self._interrupts += 1
        if self._master is None or self._master.run is None or self._display is None:
            return
        run = self._master.run
        if run.over.is_set():
            if self._report is not None:
                self._report.interrupt()
        elif self._interrupts == 1:
            self._display.print_line(
                "no new requests; waiting for open ones (Ctrl-C again closes them)"
            )
            run.interrupt()
        elif self._interrupts == 2:
            self._display.print_line("closing open requests")
            run.hurry()

    def _stop_children(self) -> None:
        for child in self._children:
            child.stop(5)

    def _keep_logs(self, run: Run) -> None:
        try:
            for path in sorted(self._logs.iterdir()):
                if path.stat().st_size and run.folder.path.is_dir():
                    shutil.copy(path, run.folder.path / path.name)
        except OSError as error:
            log.warning(
                "the logs of the workers could not be kept with the run: %s", plugin.failure(error)
            )

    def _conclude(self, run: Run) -> Outcome:
        if run.start_at_ns is not None:
            report = output_of(run, self._report_process(run))
            return Outcome(report.exit_code, report, run)
        if self._interrupts:
            interruption = InterruptedRunError("interrupted before the first request of the run")
            return Outcome(Exit.INTERRUPTED, None, run, interruption)
        failure = run.failure or TailgaugeError("the run did not begin")
        return Outcome(failure.exit_code, None, run, failure)

    def _report_process(self, run: Run) -> ReportProcess:
        if self._report is None:
            self._report = ReportProcess(run.folder, run.settings.out, screen.as_environment())
        return self._report


def _master(environment: Any, bind: Address) -> Any:
    """Return a master at `bind`; UsageError if it cannot listen, where Locust would end the process."""
    logging.getLogger("locust.runners").setLevel(logging.CRITICAL)
    try:
        return environment.create_master_runner(bind.host, bind.port)
    except (SystemExit, RPCError, OSError) as error:
        reason = str(error)
        if isinstance(error, SystemExit):
            reason = (
                f"the port is in use: use another one, such as --bind {bind.host}:{bind.port + 1}"
            )
        raise UsageError(f"--bind {bind}: the master cannot listen there: {reason}") from error
    finally:
        logging.getLogger("locust.runners").setLevel(logging.NOTSET)


def work(master: Address, out: Path, *, lifeline: bool) -> Exit:
    """Work for a master until it ends the run; return the exit code of `tailgauge worker`.

    `out`: folder for rows until their transfer. `lifeline`: whether it is a child of `tailgauge run`, which ends with its
    standard input. The first signal ends the run in order, a second one at once. Without a lifeline, SILENCE_S without a
    message of the master end it too.
    """
    log_warnings(progress=not lifeline)  # the log of a child, kept with the run, has warnings only
    seal = Seal(configured_token("a worker"))
    environment = Environment(user_classes=user_classes(), events=locust.events)
    interrupt_while_connecting = gevent.signal_handler(signal.SIGINT, _leave, master)
    runner = _connect(environment, master)
    worker = attach_worker(environment, seal, out, is_child=lifeline)
    ends: list[Exit] = []

    def end(code: Exit, reason: str, *, master_gone: bool = True) -> None:
        if not ends:
            ends.append(code)
            # It logs the reason itself if a run was in progress.
            if not worker.finish(reason, master_gone=master_gone):
                log.warning("%s", reason)
            runner.quit()

    def stopped(reason: str) -> None:
        if ends:  # a second signal ends it at once
            os._exit(Exit.INTERRUPTED)
        gevent.spawn(end, Exit.INTERRUPTED, reason, master_gone=False)

    refused = f"the master at {master} refused this worker"
    worker.on_refused = lambda: end(Exit.TARGET, f"{refused}: {worker.refused}")
    interrupt_while_connecting.cancel()
    gevent.signal_handler(signal.SIGTERM, stopped, "this worker was stopped")
    gevent.signal_handler(signal.SIGINT, stopped, "this worker was interrupted")
    lost = "lost connection to the master"
    if lifeline:
        gevent.spawn(_follow, lambda: end(Exit.INVALID, lost))
    else:
        gevent.spawn(_listen, runner, lambda: end(Exit.INVALID, f"{lost} for {SILENCE_S} s"))
    runner.greenlet.join()
    runner.client.socket.close(LINGER_MS)  # the master may still want the last messages
    runner.client.socket.context.term()
    # The folder with rows that did not reach the master.
    if worker.left:
        text = "rows that were not transferred are in %s; run: tailgauge report %s"
        log.warning(text, worker.left, shlex.quote(str(worker.left)))
    return ends[0] if ends else Exit.OK


def _leave(master: Address) -> None:
    """End a worker that Ctrl-C interrupts before it has a master: nothing is kept yet."""
    log.warning("interrupted: no master answered at %s", master)
    os._exit(Exit.INTERRUPTED)


def _connect(environment: Any, master: Address) -> Any:
    """Return the runner of a worker that is connected to its master; TargetError if none answers."""
    runners.CONNECT_RETRY_COUNT = ANSWER_S // runners.CONNECT_TIMEOUT
    try:
        return environment.create_worker_runner(master.host, master.port)
    except ConnectionError as error:
        reason = str(error) or "no master answers. Is it running, and is the port open?"
        raise TargetError(f"--master {master}: {reason}") from error


def _listen(runner: Any, end: Callable[[], None]) -> None:
    """End after a long silence of the master, counted in checks, so that a stall of this worker does not count."""
    heartbeat = None
    silent = 0
    while silent < SILENCE_S:
        gevent.sleep(1)
        silent += 1
        if runner.last_heartbeat_timestamp != heartbeat:
            heartbeat = runner.last_heartbeat_timestamp
            silent = 0
    end()


def _follow(end: Callable[[], None]) -> None:
    """End with standard input: the master at its other end is gone."""
    while gevent.get_hub().threadpool.apply(os.read, (LIFELINE, 1024)):
        continue
    end()
