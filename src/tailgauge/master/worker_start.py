"""The start of the workers: each reports, receives its plan, opens connections, and sends from the common start time."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import Any

from tailgauge.clock import WALL, boot_id, monotonic_ns
from tailgauge.master.engine_metrics import EngineMetrics
from tailgauge.master.preflight import Preflight
from tailgauge.master.run_record import RunRecord
from tailgauge.master.run_state import RunState
from tailgauge.master.workers import RunWorker, pace
from tailgauge.plan.spend_limit import Amount
from tailgauge.scenario.model import Scenario
from tailgauge.schedule.settings import CLOSED

LEAD_NS = 1_500_000_000  # from `go` to the first arrival, with workers on other machines
LOCAL_LEAD_NS = 300_000_000  # with children of this process
CHILD_LEAD_NS = 20_000_000  # more children: the last one gets a core and its first slice later
READY_S = 30.0
OPENING_S = 0.02  # per connection opened beforehand
NO_LIMIT = Amount(None, None, None)


class WorkerStart:
    """Brings the workers of a run from `hello` to `go`; late ones too, if they can join."""

    def __init__(
        self,
        run: RunState,
        preflight: Preflight,
        record: RunRecord,
        engine_metrics: EngineMetrics,
        expected_workers: Callable[[], int],
    ) -> None:
        self._run = run
        self._preflight = preflight
        self._record = record
        self._engine_metrics = engine_metrics
        self._expected_workers = expected_workers
        self._is_plan_sent = False  # workers that report after that join late
        self._early_hellos: dict[str, dict[str, Any]] = {}  # of late joiners, before the start

    def receive_hello(self, node: str, hello: dict[str, Any]) -> None:
        """Add a worker that reports, once; not while the run drains.

        Before the plans are sent it is one of the workers that are waited for. Between plan and start it is remembered.
        After the start it gets a share from the next slice on, if the run allows that; else a note says why it waits.
        """
        run = self._run
        if node in run.workers.by_node or run.is_draining:
            return
        if not self._is_plan_sent:
            run.workers.add(node, hello)
            run.changed.set()
            return
        if run.start_at_ns is None:
            self._early_hellos[node] = hello
            return
        obstacle = refuses_late_join(run.scenario, run.settings.limit, len(run.workers))
        if obstacle is not None:
            who = f"worker {hello['name']} connected {run.passed_text()}"
            run.notes.append(f"{who} and waits for the next run: {obstacle}")
            return
        self._send_plan(run.workers.add(node, hello, late=True))

    def send_plans(self) -> None:
        """Wait until the expected workers have reported, send each its plan, and wait until all are ready."""
        run = self._run
        run.wait_until(
            lambda: len(run.workers) >= max(1, self._expected_workers()),
            READY_S,
            "workers did not report for the run",
        )
        self._is_plan_sent = True
        for worker in run.workers:
            self._send_plan(worker)
        run.wait_until(
            lambda: all(worker.ready for worker in run.workers), READY_S, "workers were not ready"
        )

    def open_connections(self) -> None:
        """Open connections beforehand, after the preflight so that they are fresh at the start."""
        run = self._run
        connections = sum(target.preopened for target in run.scenario.targets.values())
        if not connections:
            return
        workers = run.workers.living()
        for worker in workers:
            run.send("open", worker)
        patience_s = READY_S + run.scenario.limits.connect_timeout_s + OPENING_S * connections
        run.wait_until(
            lambda: all(worker.opened for worker in workers),
            patience_s,
            "the connections were not opened",
        )

    def go(self) -> None:
        """Set the start time, divide the limits of the run among its workers, and send each its `go`.

        What the preflight has spent is taken off the limits. The engine's counters are read just before. Workers that
        reported since the plans join now.
        """
        run = self._run
        assert self._preflight.result is not None
        remaining = run.settings.limit.less(Amount.of_plain(self._preflight.result["spent"]))
        workers = run.workers.living()
        shares = remaining.shares(len(workers)) if workers else []
        self._engine_metrics.begin(run.notes.append, self._preflight.calls)
        wait_ns = LOCAL_LEAD_NS
        if len(run.settings.schedule):
            wait_ns = lead_ns(workers)
        run.start_at_ns = monotonic_ns() + wait_ns
        for worker, share in zip(workers, shares, strict=True):
            self._send_go(worker, share, _slots(run.scenario, workers, worker))
        self._record.write()
        for node, hello in self._early_hellos.items():
            self.receive_hello(node, hello)

    def join(self, worker: RunWorker) -> None:
        """Let a late joiner that is ready begin with the next slice, on the common start time."""
        run = self._run
        worker.state = "running"
        worker.late_ns = run.passed_ns()
        self._send_go(worker, NO_LIMIT, slots=None)
        run.notes.append(f"worker {worker.number} joined {run.passed_text()}")

    def _send_plan(self, worker: RunWorker) -> None:
        run = self._run
        workers = len(run.workers)
        plan = {
            "worker": worker.number,
            "folder": str(run.folder.path),
            "mark": self._record.mark,
            "boot_id": boot_id(),
            "alone": workers == 1,
            "pace": pace(workers),
            "prices": run.settings.priced(),
            "run": self._record.facts(),
            "wall_offset_ns": WALL.offset_ns,
        }
        run.link.send("plan", plan, worker.node)

    def _send_go(self, worker: RunWorker, limit: Amount, slots: int | None) -> None:
        result = self._preflight.result
        assert result is not None
        self._run.send(
            "go",
            worker,
            start_at_ns=self._run.start_at_ns,
            learnt=result["learnt"],
            engines=self._preflight.engines,
            limit=limit.plain(),
            adaptations=result["adaptations"],
            slots=slots,
        )


def lead_ns(workers: Sequence[RunWorker]) -> int:
    """Return the time from `go` to the first arrival: until then each worker has its start time and its first slice."""
    if all(worker.hello["child"] for worker in workers):
        return min(LEAD_NS, LOCAL_LEAD_NS + CHILD_LEAD_NS * (len(workers) - 1))
    return LEAD_NS


def _slots(scenario: Scenario, workers: Sequence[RunWorker], worker: RunWorker) -> int | None:
    """Return this worker's share of the requests that may be in flight; None without such a limit."""
    slots = scenario.arrival.max_concurrency
    if slots is None:
        return None
    share, remainder = divmod(slots, len(workers))
    if workers.index(worker) < remainder:
        share += 1
    return share


def refuses_late_join(scenario: Scenario, limit: Amount, workers: int) -> str | None:
    """Return why a late joiner waits for the next run; None if it can join. `workers` have the plan already."""
    if scenario.arrival.process == CLOSED:
        return "in a closed loop every user already has a worker"
    if scenario.arrival.max_concurrency is not None:
        return "the slots of the run were divided at its start"
    if limit != NO_LIMIT:
        return "the limits of the run were divided at its start"
    if workers == 1 and any(traffic.cache for traffic in scenario.traffic.values()):
        return "the first worker tracks the prompt cache as its only writer"
    return None
