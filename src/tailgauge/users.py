"""What Locust sees: placeholder users, our options, and the hooks by which it owns or works for a run.

Rule: the schedule drives the load, so a user here sends nothing and Locust's user count is ignored, with a notice.
Its test_start begins a run of its own folder; its test_stopping waits for the drain, before workers are told to quit.
"""

from __future__ import annotations

import logging
import sys
from collections.abc import Callable
from pathlib import Path
from typing import Any

import gevent
from locust import User, constant, events, runners, task
from locust.runners import STATE_RUNNING, STATE_SPAWNING, MasterRunner, WorkerRunner

from tailgauge.analyse import analyse
from tailgauge.clock import monotonic_ns
from tailgauge.errors import TailgaugeError
from tailgauge.link import Link
from tailgauge.owner import Run
from tailgauge.scenario import override
from tailgauge.settings import Settings, resolve
from tailgauge.worker import Worker, prepare_process

log = logging.getLogger("tailgauge")
# A worker that imports an SDK on a busy machine is silent for longer than Locust's 3 s, and not lost. `tailgauge run`
# notices at once that a process of its own has ended.
runners.HEARTBEAT_LIVENESS = 15
CUT_SHORT = "cut_short"  # Locust ended the run before its schedule did: -t, or Stop on the web page


class Traffic(User):
    """A placeholder: it marks a locustfile's pattern and its default scenario, and sends nothing itself."""

    abstract = True
    scenario = ""  # default of --scenario
    wait_time = constant(3600)

    @task
    def scheduled_elsewhere(self) -> None:
        """Requests are sent by the dispatcher, at their scheduled times."""


class EndedError(Exception):
    """How a request ended, for Locust's own statistics page."""


class Owner:
    """The owner's hooks in one Locust process; `run` is the run in progress or the last one.

    One that `stays` lets the workers wait for another run.
    """

    def __init__(
        self, environment: Any, settings: Settings, alive: Callable[[str], bool], *, stays: bool
    ) -> None:
        self._environment, self.settings, self._alive = environment, settings, alive
        self._stays = stays
        self._link = link = Link(environment.runner)
        self.run: Run | None = None
        link.hear("ping", self._on_ping)
        link.hear("hello", lambda node, data: self.run.on_hello(node, data) if self.run else None)
        for kind in ("ready", "tried", "opened", "counters", "guarded", "drained", "failed"):
            link.hear(kind, self._forward(kind))
        environment.events.test_start.add_listener(self._on_test_start)
        environment.events.test_stopping.add_listener(self._on_test_stopping)
        self.on_end: Callable[[Run], None] = lambda _: None

    def _forward(self, kind: str) -> Callable[[str, dict[str, Any]], None]:
        return lambda node, data: self.run.on_message(kind, node, data) if self.run else None

    def _on_ping(self, node: str, data: dict[str, Any]) -> None:
        arrived = monotonic_ns()
        self._link.send("pong", {**data, "t1": arrived, "t2": monotonic_ns()}, node)

    def _on_test_start(self, **_: Any) -> None:
        runner = self._environment.runner
        workers = 1
        if isinstance(runner, MasterRunner):
            workers = len(runner.clients.ready + runner.clients.running + runner.clients.spawning)
        self.run = run = Run(self._link, self.settings, workers, self._alive)
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
        run.cut_short(CUT_SHORT)
        run.finish()
        if first:
            self.on_end(run)


def attach_worker(environment: Any) -> Worker:
    """Make a worker (or local) runner take part in runs."""
    runner = environment.runner
    prepare_process()

    def on_ended(traffic: str, ended: str, response_time_ms: float) -> None:
        exception = None if ended in {"ok", "empty"} else EndedError(ended)
        environment.events.request.fire(
            request_type="LLM",
            name=traffic,
            response_time=response_time_ms,
            response_length=0,
            exception=exception,
            context={},
        )

    worker = Worker(Link(runner), runner.client_id, on_ended)
    environment.events.test_start.add_listener(lambda **_: worker.hello())
    if getattr(runner, "worker_state", None) in {STATE_SPAWNING, STATE_RUNNING}:
        worker.hello()  # connected is ready: the test may have started before anyone listened
    environment.events.test_stopping.add_listener(
        lambda **_: worker.finish("the run was ended without a drain")
    )
    return worker


# --- plain `locust -f locustfiles/...` --------------------------------------------------------------------------


@events.init_command_line_parser.add_listener  # type: ignore[untyped-decorator]
def _options(parser: Any) -> None:
    group = parser.add_argument_group("Tailgauge options")
    group.add_argument(
        "--scenario",
        default="",
        help="Scenario file, or the name of a packaged one; decides traffic and target",
    )
    group.add_argument("--set", dest="tailgauge_set", action="append", default=[], metavar="TABLE.KEY=VALUE",
                       help="Override one value of the scenario; may be repeated")  # fmt: skip
    group.add_argument(
        "--out", dest="tailgauge_out", default=".", help="Folder in which runs/ and reports/ are made"
    )


@events.init.add_listener  # type: ignore[untyped-decorator]
def _init(environment: Any, **_: Any) -> None:
    runner = environment.runner
    if isinstance(runner, WorkerRunner):
        attach_worker(environment)
        return
    try:
        settings = _settings(environment)
    except TailgaugeError as error:
        sys.stderr.write(f"tailgauge: {error}\n")
        sys.exit(error.exit_code)
    for line in settings.estimate.lines():
        sys.stderr.write(f"tailgauge: {line}\n")
    master = isinstance(runner, MasterRunner)
    alive = (lambda node: _is_alive(runner, node)) if master else (lambda _: True)
    owner = Owner(environment, settings, alive, stays=environment.web_ui is not None)
    owner.on_end = lambda run: _conclude(environment, run)
    if not master:
        attach_worker(environment)
    if (environment.parsed_options.num_users or 1) > 1:
        log.warning("-u is ignored: the scenario's schedule drives the load")


def _is_alive(runner: Any, node: str) -> bool:
    client = runner.clients.get(node)
    return client is not None and client.state != "missing"


def _settings(environment: Any) -> Settings:
    options = environment.parsed_options
    classes = [c for c in environment.user_classes if issubclass(c, Traffic)]
    if len(environment.user_classes) != 1 or not classes:
        names = ", ".join(c.__name__ for c in environment.user_classes)
        raise TailgaugeError(
            f"one user class is needed, there are {len(environment.user_classes)} ({names}): name one, as in `locust -f FILE CLASS`"
        )
    pairs = [override(text) for text in options.tailgauge_set]
    spelt = {}
    if environment.host:
        pairs.append(("target.url", environment.host))
        spelt["target.url"] = "--host"
    return resolve(options.scenario or classes[0].scenario, pairs, Path(options.tailgauge_out), spelt=spelt)


def _conclude(environment: Any, run: Run) -> None:
    """Report a run of plain Locust: the page's path to the log, the exit code to Locust."""
    if run.failure is not None:
        log.error("%s", run.failure)
        environment.process_exit_code = int(run.failure.exit_code)
        return
    made = analyse(run.folder, run.settings.out)
    log.warning("run folder %s\n%s", run.folder.path, made.summary)
    environment.process_exit_code = int(made.exit_code)
