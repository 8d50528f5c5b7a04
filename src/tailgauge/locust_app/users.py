"""Locust's side: options, and the hooks that lead a run or work for one.

A schedule drives the load, so that Locust's user count has no effect, or the tasks of a StreamingUser. Each test_start
begins a run with a new folder; test_stopping waits for the drain before Locust stops the workers.
"""

from __future__ import annotations

import logging
import signal
import sys
from collections.abc import Callable
from dataclasses import replace
from pathlib import Path
from typing import Any

import gevent
from gevent.event import Event
from locust import events, runners
from locust.rpc.protocol import Message
from locust.runners import STATE_MISSING, MasterRunner, WorkerRunner

from tailgauge import __version__
from tailgauge.address import LOOPBACK, is_loopback
from tailgauge.channel.auth import Seal, configured_token
from tailgauge.channel.messages import Link
from tailgauge.channel.sockets import report as dropped_messages
from tailgauge.clock import monotonic_ns
from tailgauge.errors import Exit, TailgaugeError, UsageError
from tailgauge.live import screen, web
from tailgauge.live.terminal import announcement, span
from tailgauge.locust_app import locustfile
from tailgauge.locust_app.answer import Answer
from tailgauge.locust_app.client import TOTAL, ended_error
from tailgauge.locust_app.command import command_arguments
from tailgauge.locust_app.console import MAIN, Console, names_no_exit_code
from tailgauge.locust_app.locustfile import (
    NoTargetError,
    Options,
    Traffic,
    of_tailgauge,
    settings_of,
)
from tailgauge.locust_app.report_process import ReportProcess, output_of
from tailgauge.locust_app.streaming_user import StreamingUser, serve_tasks
from tailgauge.locust_app.task_errors import TaskErrors
from tailgauge.master.run import Run
from tailgauge.master.worker_messages import WorkerMessages
from tailgauge.plan.preflight import prefixes, preflight_calls
from tailgauge.plan.resolve import Settings
from tailgauge.plugins import plugin
from tailgauge.rows.object_store import is_remote
from tailgauge.rows.schema import SCHEMA_VERSION, WITH_ANSWER
from tailgauge.sanitize import plain
from tailgauge.schedule.settings import TASKS
from tailgauge.worker.worker import Worker, prepare_process

__all__ = ["Answer", "Master", "StreamingUser", "Traffic", "attach_worker", "refusal"]
log = logging.getLogger("tailgauge")
# A worker that imports an SDK on a busy machine is silent for longer than Locust's 3 s without being lost. Our messages
# reveal a loss sooner, and each heartbeat costs the master as much as one of them: one in 5 s is enough.
runners.HEARTBEAT_INTERVAL = 5
runners.HEARTBEAT_LIVENESS = 3
WAIT_S = 0.05  # between looks at a run
# For Locust's start of the users, which waits 1 s for the workers; a slow -r takes longer.
USERS_S = 2.0
MAX_REFUSED = 1_000  # refused workers that are remembered
MAX_NAME = 100  # characters of a worker's name
TIMER_S = 1.0  # how much earlier than -t says the timer of Locust may end a test
CUT_SHORT = "cut_short"  # Locust ended the run early: -t, or Stop on the web page


class Master:
    """The master's hooks in one Locust process; `run` is the current run or the last one.

    With `stays` the workers wait for another run.
    """

    def __init__(
        self, environment: Any, settings: Settings | None, seal: Seal, *, stays: bool
    ) -> None:
        """Subscribe to the workers' messages and to the start and stop of Locust's tests.

        `settings`: of the first run, None if the start form decides. `is_alive`, `end_worker`, `on_end` and
        `before_start` may be replaced from outside.
        """
        self.runner = environment.runner
        self.settings = settings
        self._stays = stays
        self._link = link = Link(self.runner, seal)
        self.roster: dict[str, dict[str, Any]] = {}  # nodes that sent hello with the run's token
        self.refused: dict[str, str] = {}  # node and reason
        self.is_alive: Callable[[str], bool] = self.is_known
        self.end_worker: Callable[[str], None] = lambda _: None
        self.run: Run | None = None
        self._reported_run: Run | None = None  # a call of end_run ends and reports it, or has
        self._has_reported = Event()
        self._has_reported.set()
        self.is_interrupted = False  # by Ctrl-C or SIGTERM, of which Locust tells nobody
        self._environment = environment
        self._test_start_ns = 0
        link.subscribe("ping", self._on_ping)
        link.subscribe("hello", self._on_hello)
        link.subscribe("pulse", self._on_pulse)
        for kind in WorkerMessages.handlers:
            link.subscribe(kind, self._forward(kind))
        environment.events.test_start.add_listener(self._on_test_start)
        environment.events.test_stopping.add_listener(self.end_run)
        self.on_end: Callable[[Run], None] = lambda _: None
        # Returns the settings of the run that begins; None: nothing to run.
        self.before_start: Callable[[], Settings | None] = lambda: self.settings

    def _forward(self, kind: str) -> Callable[[str, dict[str, Any]], None]:
        def forward(node: str, data: dict[str, Any]) -> None:
            if self.run is not None:
                self.run.on_message(kind, node, data)

        return forward

    def _on_hello(self, node: str, data: dict[str, Any]) -> None:
        """Accept a worker that has our version and plugins, and let it join the run in progress; refuse others."""
        data |= {key: plain(data[key], MAX_NAME) for key in ("name", "host", "version")}
        if (data["version"], data["schema"]) != (__version__, SCHEMA_VERSION):
            worker = f"tailgauge {data['version']} (row schema {data['schema']})"
            master = f"{__version__} (row schema {SCHEMA_VERSION})"
            self._refuse(
                node, f"it has {worker}, the master has {master}: install the same version"
            )
            return
        difference = plugin.difference(data.get("plugins"))
        if difference:
            self._refuse(node, difference)
            return
        self.roster[node] = data
        self._link.send("welcome", {}, node)
        if self.run is not None and not self.run.over.is_set():
            self.run.on_hello(node, data)

    def _refuse(self, node: str, reason: str) -> None:
        if node not in self.refused and len(self.refused) < MAX_REFUSED:
            self.refused[node] = reason
            log.warning("%s", refusal(node, reason))
            if self.run is not None and not self.run.over.is_set():
                self.run.notes.append(refusal(node, reason))
        self._link.send("refused", {"why": reason}, node)

    def workers(self) -> int:
        """Return how many workers Locust knows that were not refused."""
        if not isinstance(self.runner, MasterRunner):
            return 1
        clients = self.runner.clients
        usable = [*clients.ready, *clients.running, *clients.spawning]
        return sum(client.id not in self.refused for client in usable)

    def is_known(self, node: str) -> bool:
        """Return whether a worker is connected, as far as Locust knows."""
        if not isinstance(self.runner, MasterRunner):
            return True
        client = self.runner.clients.get(node)
        return client is not None and client.state != STATE_MISSING

    def _on_ping(self, node: str, data: dict[str, Any]) -> None:
        received_ns = monotonic_ns()
        self._link.send("pong", {**data, "t1": received_ns, "t2": monotonic_ns()}, node)

    def _on_pulse(self, node: str, _: dict[str, Any]) -> None:
        """Note that a worker lives whose hub is too busy for its messages, Locust's heartbeats included."""
        client = getattr(self.runner, "clients", {}).get(node)
        if client is not None:
            client.heartbeat = runners.HEARTBEAT_LIVENESS
        if self.run is not None:
            self.run.notice_life(node)

    def _on_test_start(self, **_: Any) -> None:
        """Begin a run with the workers that are connected; nothing if there are no settings for one.

        Workers that were refused before are named in its notes. The run goes on in a greenlet.
        """
        self.settings = self.before_start()
        self._test_start_ns = monotonic_ns()
        self.run = None
        if self.settings is None:
            return
        self.run = run = Run(
            self._link, self.settings, self.workers, self.is_alive, self.end_worker
        )
        for node, reason in self.refused.items():
            run.notes.append(refusal(node, reason))
        for node, data in self.roster.items():
            if self.is_alive(node):
                run.on_hello(node, data)
        if run.scenario.arrival.process == TASKS:
            calls = len(preflight_calls(run.scenario)) + prefixes(run.scenario)
            # Locust starts the users at once; their requests wait for the preflight.
            log.info("users wait: %s the target before the first task", _tries(calls))
        gevent.spawn(self._conduct, run)

    def _conduct(self, run: Run) -> None:
        run.begin()
        if not run.finishing:  # else Locust is stopping already
            gevent.spawn(self.stop)

    def stop(self) -> None:
        """Stop Locust's users; without another run to come, Locust too."""
        if self._stays:
            self.runner.stop()
        else:
            self.runner.quit()

    def end_run(self, **_: Any) -> None:
        """End the run in progress, if there is one: drain its workers and report it, once.

        Called when Locust stops a test, and when it quits, also at the same time: by the timer of -t, at the end of the load,
        by Ctrl-C. Each call returns when the run is reported, since Locust's process may end then. Before the end it waits
        until requests were sent for as long as -t says, and after it until Locust has started all users, which it could not
        stop otherwise.
        """
        run = self.run
        if run is not None and not run.over.is_set():
            self._await_run_time(run)
            self._end(run)
        self._has_reported.wait()
        # A worker whose order to stop comes before that to start users never stops them.
        with gevent.Timeout(USERS_S, False):
            while not getattr(self.runner, "spawning_completed", True):
                gevent.sleep(0.01)

    def _end(self, run: Run) -> None:
        """End a run; the first call reports it."""
        is_first = run is not self._reported_run
        if is_first:
            self._reported_run = run
            self._has_reported.clear()
        try:
            run.notes.extend(dropped_messages())
            run.look_for_workers()
            # A run of tasks has no schedule: Locust's stop is its regular end.
            is_endless = run.scenario.arrival.process == TASKS
            gevent.sleep(0)  # the handlers of one signal follow each other
            if self.is_interrupted and (self._run_time_s or not is_endless):
                run.interrupt()
            else:
                run.cut_short(run.state if is_endless else CUT_SHORT)
            run.finish()
            self._forget(run)
            if is_first:
                self.on_end(run)
        finally:
            if is_first:
                self._has_reported.set()

    @property
    def _run_time_s(self) -> int:
        """Seconds of -t, or of the web page's start form; 0 without them."""
        return getattr(self._environment.parsed_options, "run_time", None) or 0

    def _await_run_time(self, run: Run) -> None:
        """Wait until requests were sent for as long as -t says, where it is -t that ends the test.

        Locust counts -t from the start of the test, before the preflight; we count it from the first request. Returns at
        once where something else ends the test; an interruption ends the wait.
        """
        run_time_ns = self._run_time_s * 1_000_000_000
        tested_ns = monotonic_ns() - self._test_start_ns
        if not run_time_ns or tested_ns < run_time_ns - TIMER_S * 1e9:
            return  # something else ends the test
        is_logged = False
        while not (run.admitted.is_set() or self.is_interrupted):
            left_s = WAIT_S
            if run.start_at_ns is not None:
                left_s = (run.start_at_ns + run_time_ns - monotonic_ns()) / 1e9
            if left_s <= 0:
                return
            if not is_logged:
                is_logged = True
                state = "and none was sent yet"
                if run.start_at_ns is not None:
                    state = f"and {left_s:.1f} s are left"
                run_time = span(self._run_time_s)
                log.info(
                    "the test goes on: -t %s counts from the first request, %s", run_time, state
                )
            gevent.sleep(min(WAIT_S, left_s))

    def _forget(self, run: Run) -> None:
        """Remove workers that are gone or were refused from Locust, which would wait for their users.

        Those that live after all get the order to stop, or to quit where no other run can follow.
        """
        clients = getattr(self.runner, "clients", {})
        gone = set()
        for worker in run.workers:
            if worker.state == "lost" or worker.has_left or run.workers.is_gone(worker):
                gone.add(worker.node)
        forgotten = (gone | self.refused.keys()) & clients.keys()
        order = "stop" if self._stays else "quit"
        for node in forgotten - self.refused.keys():
            self._send_order(order, node)
        if forgotten:
            # Locust may be walking through the clients: it finds the last one missing and stops the run there.
            remaining = type(clients)()
            self.runner.clients = remaining
            for node, client in clients.items():
                if node not in forgotten:
                    remaining[node] = client

    def release(self) -> None:
        """Send all workers the order to quit: no other run follows. Locust itself reaches none that is forgotten or is joining again."""
        for node in self.roster:
            self._send_order("quit", node)

    def _send_order(self, order: str, node: str) -> None:
        self.runner.server.send_to_client(Message(order, None, node))  # type: ignore[no-untyped-call]


def _tries(calls: int) -> str:
    """Say how many calls of the preflight try the target."""
    if calls == 1:
        return "one short call tries"
    return f"{calls} short calls try"


def refusal(node: str, reason: str) -> str:
    """Return the message for a refused worker; its name is untrusted."""
    return f"worker {node[:MAX_NAME]!a} was refused: {reason}"


def attach_worker(environment: Any, seal: Seal, out: Path, *, is_child: bool = False) -> Worker:
    """Make a worker (or local) runner take part in runs."""
    runner = environment.runner
    prepare_process()

    def on_ended(traffic: str, ended: str, response_time_ms: float) -> None:
        exception = None
        if ended not in WITH_ANSWER:
            exception = ended_error(ended, None)
        environment.events.request.fire(
            request_type=TOTAL,
            name=traffic,
            response_time=response_time_ms,
            response_length=0,
            exception=exception,
            context={},
        )

    worker = Worker(Link(runner, seal), runner.client_id, out, on_ended, is_child=is_child)
    serve_tasks(environment, worker)
    TaskErrors(getattr(environment, "parsed_locustfiles", None) or []).attach(environment)
    gevent.spawn(worker.hello)
    environment.events.test_stopping.add_listener(
        lambda **_: worker.finish("the run ended without a drain")
    )
    return worker


# --- plain `locust -f locustfiles/...` --------------------------------------------------------------------------


@events.init_command_line_parser.add_listener  # type: ignore[untyped-decorator]
def _options(parser: Any) -> None:
    locustfile.explain_options(parser)
    # Other machines reach the master and its web page only on request.
    parser.set_defaults(master_bind_host=LOOPBACK, web_host=LOOPBACK)
    add = parser.add_argument_group("Tailgauge options").add_argument
    add("--scenario", default="", help="Scenario file or name of a packaged scenario")
    add(
        "--set",
        dest="tailgauge_set",
        action="append",
        default=[],
        metavar="TABLE.KEY=VALUE",
        help="Override a value of the scenario (repeatable)",
    )
    add(
        "--plugin",
        dest="tailgauge_plugins",
        action="append",
        default=[],
        metavar="FILE|NAME",
        help="Load a plugin (repeatable)",
    )
    add(
        "--allow-plugins",
        dest="tailgauge_allow_plugins",
        action="store_true",
        help="Load all plugins listed in the scenario (default: refuse the scenario unless --plugin loads each of them)",
    )
    add(
        "--out",
        dest="tailgauge_out",
        default=".",
        help="Write runs/ and reports/ to this folder (default: the current folder)",
    )
    add(
        "--metrics",
        dest="tailgauge_metrics",
        action="store_true",
        help="Serve metrics for Prometheus at /metrics of the web page",
    )
    # Locust answers --help before it reads a locustfile.
    add("--tailgauge-help", action="help", help="Show all options, including these, and exit")


@events.init.add_listener  # type: ignore[untyped-decorator]
def _init(environment: Any, **_: Any) -> None:
    """Make this process of plain Locust a master, a worker, or both; a mistake in options or scenario ends it.

    Does nothing where no user class is ours. Without workers of its own this process sends the requests too. A web page
    may name the target later; without one it must be named now.
    """
    runner = environment.runner
    page = environment.web_ui
    if not of_tailgauge(environment):
        return  # users of Locust's own only
    settings: Settings | None = None
    parsed = environment.parsed_options
    try:
        out = _out(environment)
        for name in parsed.tailgauge_plugins:
            plugin.load(name)
        seal = Seal(configured_token(_needs_token(environment)))
        if isinstance(runner, WorkerRunner):
            _attach_to_master(environment, seal, out)
            return
        metrics = _metrics(environment)
        options = Options(
            parsed.scenario, tuple(parsed.tailgauge_set), out, parsed.tailgauge_allow_plugins
        )
        try:
            settings = settings_of(environment, options, environment.host)
        except NoTargetError:
            if page is None:
                raise  # the start form of a page may name one
    except Exception as error:  # noqa: BLE001 - Locust would go on after a traceback
        failure = plugin.failure(error)
        screen.show(f"tailgauge: {failure}", err=True)
        sys.exit(failure.exit_code)
    _prepare_start(environment, settings)
    master = Master(environment, settings, seal, stays=page is not None)
    _report_runs(environment, master)
    _notice_interrupts(master)
    master.before_start = _settings_at_start(environment, options, master)
    if not isinstance(runner, MasterRunner):
        attach_worker(environment, seal, out)
    if page is not None:
        _attach_page(environment, options, master, settings, metrics=metrics)
    # Locust's `-t` starts at the time that the event loop read last, which is from before the imports.
    gevent.get_hub().loop.update_now()


def _report_runs(environment: Any, master: Master) -> None:
    """Print the result of each run in the terminal of Locust."""
    console = Console(environment, stays=environment.web_ui is not None)
    environment.events.test_start.add_listener(lambda **_: console.begin())
    master.on_end = lambda run: _conclude(environment, run, console)
    # Locust decides on its exit code before it stops a run that Ctrl-C ends.
    environment.events.quitting.add_listener(master.end_run)


def _settings_at_start(
    environment: Any, options: Options, master: Master
) -> Callable[[], Settings | None]:
    """Return what gives the settings of each run that begins: the start form may change host and classes."""
    first_settings = master.settings
    first_form = _form(environment)

    def settings_at_start() -> Settings | None:
        settings = first_settings
        if settings is None or _form(environment) != first_form:
            settings = _before_start(environment, options, master)
        if settings is None or settings.scenario.arrival.process != TASKS:
            return settings
        return replace(settings, command=tuple(command_arguments(environment)))

    return settings_at_start


def _attach_page(
    environment: Any,
    options: Options,
    master: Master,
    settings: Settings | None,
    *,
    metrics: bool,
) -> None:
    """Add the live view to Locust's page, whose start form is checked before a run begins."""

    def refuses(form_host: str | None) -> str:
        run = master.run
        running = None
        if run is not None and not run.over.is_set():
            running = run.settings
        host = environment.host if form_host is None else form_host
        return locustfile.refuses_start(environment, options, host, settings, running)

    web.attach(
        environment,
        lambda: master.run,
        metrics=metrics,
        host=environment.web_ui.host,
        refuses_start=refuses,
    )


def _attach_to_master(environment: Any, seal: Seal, out: Path) -> None:
    """Make a worker process of plain Locust take part in the runs of its master."""
    if environment.parsed_options.processes:  # the exit code in this terminal is the master's
        MAIN.addFilter(names_no_exit_code)
    worker = attach_worker(environment, seal, out)
    worker.on_refused = lambda: _end_refused(environment.runner, worker)


def _notice_interrupts(master: Master) -> None:
    """Let the master know of Ctrl-C and SIGTERM; Locust handles them as before."""
    handler = signal.getsignal(signal.SIGINT)

    def notice(number: int = 0, frame: Any = None) -> None:
        master.is_interrupted = True
        if number and callable(handler):
            handler(number, frame)

    hub = gevent.get_hub()
    hub.NOT_ERROR = (*hub.NOT_ERROR, KeyboardInterrupt)  # its traceback is not printed
    signal.signal(signal.SIGINT, notice)
    gevent.signal_handler(signal.SIGTERM, notice)


def _form(environment: Any) -> tuple[Any, ...]:
    """Return what the start form may change of the settings."""
    return environment.host, *of_tailgauge(environment)


def _before_start(environment: Any, options: Options, master: Master) -> Settings | None:
    """Return the settings of a run whose start form may have changed host and classes; None if it cannot begin."""
    if not of_tailgauge(environment):
        return None
    try:
        settings = settings_of(environment, options, environment.host)
    except TailgaugeError as error:
        log.error("%s", error)  # noqa: TRY400 - one line
        environment.process_exit_code = int(error.exit_code)
        gevent.spawn(master.stop)
        return None
    if master.settings is None or master.settings.overrides != settings.overrides:
        _prepare_start(environment, settings)
    return settings


def _prepare_start(environment: Any, settings: Settings | None) -> None:
    """Print what will be run, and which of Locust's options mean something else here; set the number of a schedule's users.

    Beside other classes the user class of a schedule gets one fixed user (`fixed_count`), else Locust may start none.
    """
    options = environment.parsed_options
    classes = of_tailgauge(environment)
    lines = ["no target is named yet: the start form asks for it"]
    if settings is not None:
        lines = announcement(settings, getattr(options, "expect_workers", 1))
    if settings is not None and locustfile.is_of_tasks(classes):
        lines.append(
            "Locust's times count from the task's request: TTFT to the first content, total to"
        )
        lines.append("the end. An HttpUser with stream=True has the time to the headers instead")
    elif settings is not None:
        # Beside other users ours is one, which -u would leave out; a schedule drives its load.
        has_other_users = len(environment.user_classes) > 1
        classes[0].fixed_count = int(has_other_users)
        planned_s = settings.scenario.stages.duration_s
        lines.append(
            f"-u and -r have no effect on {classes[0].__name__}: a schedule drives the load"
        )
        if options.run_time and options.run_time < planned_s:
            lines.append(
                f"-t {span(options.run_time)} cuts the schedule of {span(planned_s)} short"
            )
    for line in lines:
        screen.show(line, err=True)


def _needs_token(environment: Any) -> str:
    """Return the option that needs a token: that of a master which other machines can reach."""
    host = getattr(environment.parsed_options, "master_bind_host", LOOPBACK)
    if not isinstance(environment.runner, MasterRunner) or is_loopback(host):
        return ""
    return f"--master-bind-host {host}"


def _metrics(environment: Any) -> bool:
    """Return whether /metrics is on; UsageError if it could not be scraped."""
    options = environment.parsed_options
    if options.tailgauge_metrics and environment.web_ui is None:
        raise UsageError("--metrics: it needs the web page: omit --headless")
    if options.tailgauge_metrics and options.web_login:
        raise UsageError("--metrics: Prometheus cannot log in: omit --web-login")
    return bool(options.tailgauge_metrics)


def _end_refused(runner: Any, worker: Worker) -> None:
    log.error("the master refused this worker: %s", worker.refused)
    runner.environment.process_exit_code = int(Exit.TARGET)
    runner.quit()


def _out(environment: Any) -> Path:
    out = environment.parsed_options.tailgauge_out
    if is_remote(out):
        hint = "use `tailgauge run --out` for object storage"
        raise UsageError(f"--out {out}: plain Locust writes to a folder: {hint}")
    return Path(out)


def _conclude(environment: Any, run: Run, console: Console) -> None:
    """Report a run of plain Locust: the summary goes below Locust's tables, the exit code to Locust.

    A run that failed prints why; without a first request there is no report. A report that passes leaves the exit code of
    a run of tasks to Locust, which counts their failures.
    """
    console.pause()
    if run.failure is not None:
        console.fail(str(run.failure))
        environment.process_exit_code = int(run.failure.exit_code)
    if run.start_at_ns is None:
        if run.failure is None:
            console.fail("the run ended before its first request")
            environment.process_exit_code = int(Exit.INTERRUPTED)
        return
    log.info("making the report")
    process = ReportProcess(run.folder, run.settings.out, screen.as_environment(console.stream))
    report = output_of(run, process)
    is_of_tasks = run.scenario.arrival.process == TASKS
    console.show(report.summary, is_of_tasks=is_of_tasks)
    if report.exit_code or not is_of_tasks:  # else Locust's own users decide
        environment.process_exit_code = int(report.exit_code)
