"""Locust's side: placeholder users, options, and the hooks that lead a run or work for one.

The schedule drives the load: a user sends nothing, and Locust's user count is ignored with a warning. Each test_start
begins a run with a new folder; test_stopping waits for the drain before Locust stops the workers.
"""

from __future__ import annotations

import logging
import sys
from collections.abc import Callable
from pathlib import Path
from typing import Any

import gevent
from locust import User, constant, events, runners, task
from locust.rpc.protocol import Message
from locust.runners import STATE_MISSING, MasterRunner, WorkerRunner

from tailgauge import __version__
from tailgauge.address import LOOPBACK, is_loopback
from tailgauge.channel.auth import Seal, given
from tailgauge.channel.messages import Link
from tailgauge.channel.sockets import report as dropped_messages
from tailgauge.clock import monotonic_ns
from tailgauge.errors import Exit, TailgaugeError, UsageError
from tailgauge.live import web
from tailgauge.live.terminal import announcement
from tailgauge.locust_app.report_process import ReportProcess
from tailgauge.master.run import MESSAGES, Run
from tailgauge.plan.resolve import Settings, resolve
from tailgauge.plugins import plugin
from tailgauge.rows.schema import COMPLETED, SCHEMA_VERSION
from tailgauge.sanitize import plain
from tailgauge.scenario.model import load_plugins, override
from tailgauge.worker.worker import Worker, prepare_process

log = logging.getLogger("tailgauge")
# A worker that imports an SDK on a busy machine is silent for longer than Locust's 3 s without being lost. Our messages
# reveal a loss sooner, and each heartbeat costs the master as much as one of them: one in 5 s is enough.
runners.HEARTBEAT_INTERVAL = 5
runners.HEARTBEAT_LIVENESS = 3
MAX_REFUSED = 1_000  # refused workers that are remembered
MAX_NAME = 100  # characters of a worker's name
CUT_SHORT = "cut_short"  # Locust ended the run early: -t, or Stop on the web page


class Traffic(User):
    """A placeholder with a locustfile's pattern and default scenario; it sends nothing."""

    abstract = True
    scenario = ""  # default of --scenario
    wait_time = constant(3600)

    @task
    def scheduled_elsewhere(self) -> None:
        """Requests are sent by the dispatcher, at their scheduled times."""


class EndedError(Exception):
    """How a request ended, for Locust's own statistics page."""


class Master:
    """The master's hooks in one Locust process; `run` is the current run or the last one.

    With `stays` the workers wait for another run.
    """

    def __init__(self, environment: Any, settings: Settings, seal: Seal, *, stays: bool) -> None:
        self._environment, self.settings = environment, settings
        self._stays = stays
        self._link = link = Link(environment.runner, seal)
        self.roster: dict[str, dict[str, Any]] = {}  # nodes that sent hello with the run's token
        self.refused: dict[str, str] = {}  # node and reason
        self._forgotten: set[str] = set()  # nodes that Locust no longer knows
        self.is_alive: Callable[[str], bool] = self.is_known
        self.run: Run | None = None
        link.subscribe("ping", self._on_ping)
        link.subscribe("hello", self._on_hello)
        link.subscribe("pulse", self._on_pulse)
        for kind in MESSAGES:
            link.subscribe(kind, self._forward(kind))
        environment.events.test_start.add_listener(self._on_test_start)
        environment.events.test_stopping.add_listener(self._on_test_stopping)
        self.on_end: Callable[[Run], None] = lambda _: None

    def _forward(self, kind: str) -> Callable[[str, dict[str, Any]], None]:
        return lambda node, data: self.run.on_message(kind, node, data) if self.run else None

    def _on_hello(self, node: str, data: dict[str, Any]) -> None:
        data |= {key: plain(data[key], MAX_NAME) for key in ("name", "host", "version")}
        if (data["version"], data["schema"]) != (__version__, SCHEMA_VERSION):
            self._refuse(
                node,
                f"it has tailgauge {data['version']} (row schema {data['schema']}), the master has "
                f"{__version__} (row schema {SCHEMA_VERSION}): install the same version",
            )
            return
        if why := plugin.difference(data.get("plugins")):
            self._refuse(node, why)
            return
        self.roster[node] = data
        self._link.send("welcome", {}, node)
        if self.run is not None and not self.run.over.is_set():
            self.run.on_hello(node, data)

    def _refuse(self, node: str, why: str) -> None:
        if node not in self.refused and len(self.refused) < MAX_REFUSED:
            self.refused[node] = why
            log.warning("%s", refusal(node, why))
            if self.run is not None and not self.run.over.is_set():
                self.run.notes.append(refusal(node, why))
        self._link.send("refused", {"why": why}, node)

    def workers(self) -> int:
        """Workers that Locust knows and that were not refused."""
        runner = self._environment.runner
        if not isinstance(runner, MasterRunner):
            return 1
        known = (runner.clients.ready, runner.clients.running, runner.clients.spawning)
        return sum(client.id not in self.refused for clients in known for client in clients)

    def is_known(self, node: str) -> bool:
        """Whether a worker is connected, as far as Locust knows."""
        runner = self._environment.runner
        if not isinstance(runner, MasterRunner):
            return True
        client = runner.clients.get(node)
        return client is not None and client.state != STATE_MISSING

    def _on_ping(self, node: str, data: dict[str, Any]) -> None:
        arrived = monotonic_ns()
        self._link.send("pong", {**data, "t1": arrived, "t2": monotonic_ns()}, node)

    def _on_pulse(self, node: str, _: dict[str, Any]) -> None:
        """A worker lives whose hub is too busy for its messages, Locust's heartbeats included."""
        client = getattr(self._environment.runner, "clients", {}).get(node)
        if client is not None:
            client.heartbeat = runners.HEARTBEAT_LIVENESS
        if self.run is not None:
            self.run.notice_life(node)

    def _on_test_start(self, **_: Any) -> None:
        self.run = run = Run(self._link, self.settings, self.workers, self.is_alive)
        run.notes.extend(refusal(node, why) for node, why in self.refused.items())
        for node, data in self.roster.items():
            if self.is_alive(node):
                run.on_hello(node, data)
        gevent.spawn(self._conduct, run)

    def _conduct(self, run: Run) -> None:
        run.begin()
        if run.state != CUT_SHORT:  # else Locust is stopping already
            runner = self._environment.runner
            gevent.spawn(runner.stop if self._stays else runner.quit)

    def _on_test_stopping(self, **_: Any) -> None:
        run = self.run
        if run is None or run.over.is_set():
            return
        first = not run.finishing
        run.notes.extend(dropped_messages())
        run.look_for_workers()
        run.cut_short(CUT_SHORT)
        run.finish()
        self._forget(run)
        if first:
            self.on_end(run)

    def _forget(self, run: Run) -> None:
        """Remove gone workers from Locust, which would wait for their users. Those that live after all are ended, too."""
        runner = self._environment.runner
        clients = getattr(runner, "clients", {})
        gone = {m.node for m in run.workers if m.state == "lost" or m.has_left or run.workers.is_gone(m)}
        forgotten = (gone | self.refused.keys()) & clients.keys()
        for node in forgotten - self.refused.keys():
            self._tell("stop" if self._stays else "quit", node)
            self._forgotten.add(node)
        if (
            forgotten
        ):  # Locust may be walking through the clients: it finds the last one missing and stops the run there
            runner.clients = kept = type(clients)()
            kept.update({node: client for node, client in clients.items() if node not in forgotten})

    def release(self) -> None:
        """Let the forgotten workers go, too: no other run follows."""
        for node in self._forgotten:
            self._tell("quit", node)

    def _tell(self, what: str, node: str) -> None:
        runner = self._environment.runner
        runner.server.send_to_client(Message(what, None, node))  # type: ignore[no-untyped-call]


def refusal(node: str, why: str) -> str:
    """The message for a refused worker; its name is untrusted."""
    return f"worker {node[:MAX_NAME]!a} was refused: {why}"


def attach_worker(environment: Any, seal: Seal, out: Path, *, is_child: bool = False) -> Worker:
    """Make a worker (or local) runner take part in runs."""
    runner = environment.runner
    prepare_process()

    def on_ended(traffic: str, ended: str, response_time_ms: float) -> None:
        exception = None if ended in COMPLETED else EndedError(ended)
        environment.events.request.fire(
            request_type="LLM",
            name=traffic,
            response_time=response_time_ms,
            response_length=0,
            exception=exception,
            context={},
        )

    worker = Worker(Link(runner, seal), runner.client_id, out, on_ended, is_child=is_child)
    gevent.spawn(worker.hello)
    environment.events.test_stopping.add_listener(lambda **_: worker.finish("the run ended without a drain"))
    return worker


# --- plain `locust -f locustfiles/...` --------------------------------------------------------------------------


@events.init_command_line_parser.add_listener  # type: ignore[untyped-decorator]
def _options(parser: Any) -> None:
    # Other machines reach the master and its web page only on request.
    parser.set_defaults(master_bind_host=LOOPBACK, web_host=LOOPBACK)
    group = parser.add_argument_group("Tailgauge options")
    group.add_argument("--scenario", default="", help="Scenario file or name of a packaged scenario")
    group.add_argument("--set", dest="tailgauge_set", action="append", default=[], metavar="TABLE.KEY=VALUE",
                       help="Override a value of the scenario (repeatable)")  # fmt: skip
    group.add_argument("--plugin", dest="tailgauge_plugins", action="append", default=[], metavar="FILE|NAME",
                       help="Load this plugin (repeatable)")  # fmt: skip
    group.add_argument("--allow-plugins", dest="tailgauge_allow_plugins", action="store_true",
                       help="Load the plugins that the scenario names")  # fmt: skip
    group.add_argument("--out", dest="tailgauge_out", default=".", help="Folder for runs/ and reports/")
    group.add_argument("--metrics", dest="tailgauge_metrics", action="store_true",
                       help="Add /metrics for Prometheus to the web page")  # fmt: skip


@events.init.add_listener  # type: ignore[untyped-decorator]
def _init(environment: Any, **_: Any) -> None:
    runner = environment.runner
    try:
        for name in environment.parsed_options.tailgauge_plugins:
            plugin.load(name)
        seal = Seal(given(_needs_token(environment)))
        if isinstance(runner, WorkerRunner):
            worker = attach_worker(environment, seal, _out(environment))
            worker.on_refused = lambda: _end_refused(runner, worker)
            return
        settings, metrics = _settings(environment), _metrics(environment)
    except Exception as error:  # noqa: BLE001 - Locust would go on after a traceback
        failed = plugin.failure(error)
        sys.stderr.write(f"tailgauge: {failed}\n")
        sys.exit(failed.exit_code)
    for line in announcement(settings, getattr(environment.parsed_options, "expect_workers", 1)):
        sys.stderr.write(f"{line}\n")
    master = Master(environment, settings, seal, stays=environment.web_ui is not None)
    master.on_end = lambda run: _conclude(environment, run)
    if not isinstance(runner, MasterRunner):
        attach_worker(environment, seal, _out(environment))
    if environment.web_ui is not None:
        web.attach(environment, lambda: master.run, metrics=metrics, host=environment.web_ui.host)
    if (environment.parsed_options.num_users or 1) > 1:
        log.warning("-u is ignored: the scenario's schedule drives the load")


def _needs_token(environment: Any) -> str:
    """The option that needs a token: a master that other machines can reach."""
    host = getattr(environment.parsed_options, "master_bind_host", LOOPBACK)
    if isinstance(environment.runner, MasterRunner) and not is_loopback(host):
        return f"--master-bind-host {host}"
    return ""


def _metrics(environment: Any) -> bool:
    """Whether /metrics is on; UsageError if it could not be scraped."""
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
    return Path(environment.parsed_options.tailgauge_out)


def _settings(environment: Any) -> Settings:
    options = environment.parsed_options
    classes = [c for c in environment.user_classes if issubclass(c, Traffic)]
    if len(environment.user_classes) != 1 or not classes:
        names = ", ".join(c.__name__ for c in environment.user_classes)
        raise TailgaugeError(
            f"expected one user class, got {len(environment.user_classes)} ({names}): name one, as in `locust -f FILE CLASS`"
        )
    pairs = [override(text) for text in options.tailgauge_set]
    spelt = {}
    if environment.host:
        pairs.append(("target.url", environment.host))
        spelt["target.url"] = "--host"
    argument = options.scenario or classes[0].scenario
    if options.tailgauge_allow_plugins:
        load_plugins(argument)
    return resolve(argument, pairs, _out(environment), spelt=spelt)


def _conclude(environment: Any, run: Run) -> None:
    """Report a run of plain Locust: the summary goes to the log, the exit code to Locust."""
    if run.failure is not None:
        log.error("%s", run.failure)
        environment.process_exit_code = int(run.failure.exit_code)
    if run.start_at_ns is None:
        return
    report = ReportProcess(run.folder, run.settings.out).output()
    log.warning("run folder %s\n%s", run.folder.path, report.summary)
    environment.process_exit_code = int(report.exit_code)
