"""The owner's side of a run: makes the plan, hands it out, notices losses, drains, and writes what happened.

Rule: the schedule is drawn once and handed out in slices, a lease each: what was handed to a worker is never handed to
another. The owner sends no traffic and takes no row; it owns the run folder, run.json and the simulated endpoint.
"""

from __future__ import annotations

import logging
import secrets
from collections.abc import Callable
from typing import Any

import gevent
from gevent.event import Event

from tailgauge import describe
from tailgauge.arrivals import Planned, Schedule
from tailgauge.call import SECOND
from tailgauge.children import Child
from tailgauge.clock import boot_id, monotonic_ns, utc_now
from tailgauge.crew import Crew, Member
from tailgauge.endpoints.keys import key_for
from tailgauge.errors import TailgaugeError, TargetError, UsageError
from tailgauge.folder import RunFolder, new_run_id, write_json
from tailgauge.guard import Amount
from tailgauge.link import Link
from tailgauge.preflight import USABLE, Learnt, prefixes, trials
from tailgauge.records import EMPTY, OK, TURNS
from tailgauge.settings import Settings
from tailgauge.simulated import fetch_truth, start_endpoint
from tailgauge.target_tables import SIMULATED
from tailgauge.turns import loop, turns_of

log = logging.getLogger("tailgauge")

SLICE_NS = 5_000_000_000
LEAD_NS = 1_500_000_000  # from `go` to the first arrival
READY_S = 30.0
OPENING_S = 0.02  # for each connection opened beforehand, at the longest


class Run:
    """One run, from Locust's test_start to the end of its drain."""

    def __init__(self, link: Link, settings: Settings, workers: int, alive: Callable[[str], bool]) -> None:
        self._link, self.settings, self._expected = link, settings, workers
        self.scenario = settings.scenario
        self.run_id = new_run_id(self.scenario.name)
        self.folder = RunFolder((settings.out / "runs" / self.run_id).resolve())
        self.crew = Crew(alive)
        self.schedule: Schedule | None = None
        self.state = "running"
        self.notes: list[str] = []
        self.preflight: list[dict[str, Any]] = []
        self.failure: TailgaugeError | None = None
        self._tried: dict[str, Any] | None = None  # what the first worker says of the preflight
        self.start_at_ns: int | None = None
        self.admission_end_at_ns: int | None = None
        self.admitted = Event()  # the schedule is through, or it was cut short
        self.over = Event()  # drained, written
        self._token = secrets.token_hex(16)
        self._targets = [one for one in (self.scenario.target, self.scenario.second_target) if one]
        self._target_urls = [one.url for one in self._targets]
        self._endpoint: Child | None = None
        self._endpoint_url = ""
        self._changed = Event()
        self._started_at = utc_now()
        self._draining = False
        self.finishing = False

    # --- told by the workers ----------------------------------------------------------------------------------

    def on_hello(self, node: str, data: dict[str, Any]) -> None:
        """A worker is there; one that comes after the plan was handed out waits for the next run."""
        if node not in self.crew.members and self.start_at_ns is None and not self._draining:
            self.crew.add(node, data)
            self._changed.set()

    def on_message(self, kind: str, node: str, data: dict[str, Any]) -> None:
        """ready, tried, opened, guarded, counters, drained, failed."""
        member = self.crew.members.get(node)
        if member is None or data["run"] != self.run_id:
            return
        member.heard_at_ns = monotonic_ns()
        if member.state == "lost" and not self.finishing:
            member.state = "running"  # it was silent, not dead: its leases are still its own
            self.notes.append(
                f"worker {member.number} came back {self._passed_ns() / 1e9:.0f} s into the run"
            )
        if kind == "ready":
            member.ready, member.self = True, {"clock": data["clock"], "shared": data["shared"]}
        elif kind == "tried":
            self._tried, self.preflight = data, data["trials"]
        elif kind == "opened":
            member.opened = True
            self.notes.extend(f"worker {member.number}: {said}" for said in data["missing"])
        elif kind == "guarded":
            self._on_guarded(member, data["limit"])
        elif kind == "failed":
            self._on_failed(member, data)
        else:
            member.said = data
            if not self.scenario.arrival.is_open:  # nothing is planned: only the worker can count
                member.leased = data["counts"]["leased"]
            if kind == "drained":
                member.state, member.self = data["self"]["state"], data["self"]
        self._changed.set()

    def _on_failed(self, member: Member, data: dict[str, Any]) -> None:
        member.state = "failed"
        self.notes.append(f"worker {member.number} failed: {data['why']}")
        if data.get("target"):
            self.failure = TargetError(data["why"])
        self.cut_short("failed")

    def _on_guarded(self, member: Member, limit: str) -> None:
        if self.state == "running":
            self.notes.append(
                f"guard.{limit} ({getattr(self.scenario.guard, limit):,}): the next call of worker {member.number} "
                f"might exceed its share; no new requests from {self._passed_ns() / 1e9:.1f} s on"
            )
        self.cut_short("guarded")

    # --- the run ----------------------------------------------------------------------------------------------

    def begin(self) -> None:
        """Folder, plan, endpoint, workers, preflight, start; then hand out slices until the schedule is through."""
        try:
            self._prepare()
            self._muster()
            self._try()
            self._open()
            self._go()
            self._hand_out()
        except TailgaugeError as error:
            self.failure = error
            self.state = "unusable" if isinstance(error, TargetError) else "failed"
            self.notes.append(str(error))
        except Exception as error:
            log.exception("the run cannot go on")
            self.failure, self.state = TailgaugeError(f"an error in the harness itself: {error!r}"), "failed"
            self.notes.append(str(self.failure))
        finally:
            self.admitted.set()

    def _prepare(self) -> None:
        scenario = self.scenario
        for target in self._targets:
            key_for(target.url, target.protocol, target.api_key_env)
        self.schedule = self.settings.schedule
        self.notes.extend(self.schedule.notes)
        self.folder.create()
        self.folder.token.write_text(self._token)
        self.folder.token.chmod(0o600)
        if SIMULATED in self._target_urls:
            self._endpoint, self._endpoint_url = start_endpoint(scenario, self.folder.path / "endpoint.log")
            self._target_urls = [self._endpoint_url if u == SIMULATED else u for u in self._target_urls]
        self.write()

    def _muster(self) -> None:
        self._await(lambda: len(self.crew) >= self._expected, READY_S, "workers did not report for the run")
        for member in self.crew:
            self._link.send("plan", self._plan(member.number), member.node)
        self._await(lambda: all(m.ready for m in self.crew), READY_S, "workers did not take the plan")

    def _plan(self, number: int) -> dict[str, Any]:
        return {
            "worker": number,
            "folder": str(self.folder.path),
            "token": self._token,
            "boot_id": boot_id(),
            "alone": self._expected == 1,
            "prices": self.settings.priced(),
            "run": self._run_facts(),
        }

    def _try(self) -> None:
        """The preflight, by the first worker: targets, tokens of a word, prefixes written before the run."""
        first = next(iter(self.crew))
        self._link.send("try", {"run": self.run_id}, first.node)
        calls = len(trials(self.scenario)) + prefixes(self.scenario)
        patience = self.scenario.limits.attempt_deadline_s + self.scenario.limits.connect_timeout_s + 5
        self._await(lambda: self._tried is not None, patience * calls, "the preflight did not end")
        for seen in self.preflight:
            if seen["ended"] not in USABLE and seen["needed"]:
                at = seen["target"] == SECOND
                failure = describe.preflight_failure(self._target_urls[at], self._targets[at].protocol, seen)
                raise TargetError(failure)
            expected = {OK} if seen["words"] else {OK, EMPTY}  # what only writes a prefix has no answer
            if seen["ended"] not in expected:
                said = seen["message"] or "no text"
                self.notes.append(f"preflight {seen['request_id']} ended as {seen['ended']}: {said}")

    def _open(self) -> None:
        """Connections opened beforehand, if any: after the preflight, so that they are young at the start."""
        if wanted := sum(target.preopened for target in self._targets):
            crew = self.crew.living()
            for member in crew:
                self._link.send("open", {"run": self.run_id}, member.node)
            patience = READY_S + self.scenario.limits.connect_timeout_s + OPENING_S * wanted
            self._await(lambda: all(m.opened for m in crew), patience, "the connections were not opened")

    def _go(self) -> None:
        assert self._tried is not None
        left = self.settings.limit.less(Amount.of_plain(self._tried["spent"]))
        crew = self.crew.living()
        shares = left.shares(len(crew)) if crew else []
        self.start_at_ns = monotonic_ns() + LEAD_NS
        told = {"run": self.run_id, "start_at_ns": self.start_at_ns, "learnt": self._tried["learnt"]}
        for member, share in zip(crew, shares, strict=True):
            self._link.send("go", {**told, "limit": share.plain()}, member.node)
        self.write()

    def _hand_out(self) -> None:
        assert self.start_at_ns is not None
        duration_ns = int(self.scenario.stages.duration_s * 1e9)
        handed = 0
        while self._passed_ns() < duration_ns and not self._draining:
            while handed < min(duration_ns, self._passed_ns() + 2 * SLICE_NS):
                self._hand_slice(handed, min(handed + SLICE_NS, duration_ns))
                handed += SLICE_NS
            self._notice_losses()
            gevent.sleep(min(0.25, max(0.01, (duration_ns - self._passed_ns()) / 1e9)))

    def _hand_slice(self, since_ns: int, until_ns: int) -> None:
        assert self.schedule is not None
        living = self.crew.living()
        if not living:
            raise TailgaugeError("every worker is lost: the run cannot go on")
        shares: list[list[Planned]] = [[] for _ in living]
        for row in self.schedule.slice(since_ns, until_ns):
            shares[(row.request_id // TURNS) % len(living)].append(row)
        for member, rows in zip(living, shares, strict=True):
            member.leased += turns_of(rows)
            self._link.send("slice", {"run": self.run_id, "rows": rows}, member.node)

    def _notice_losses(self) -> None:
        for member in self.crew.newly_lost(self.start_at_ns or 0):
            self.notes.append(f"worker {member.number} was lost {self._passed_ns() / 1e9:.0f} s into the run")

    def _passed_ns(self) -> int:
        return monotonic_ns() - (self.start_at_ns or monotonic_ns())

    # --- the end ----------------------------------------------------------------------------------------------

    def cut_short(self, state: str) -> None:
        """Admit no more: Ctrl-C, the end of Locust's -t, a failed worker. `state` is what run.json will say."""
        if self._passed_ns() < self.scenario.stages.duration_s * 1e9 and self.state == "running":
            self.state = state
        self._draining = True
        self._changed.set()
        self.admitted.set()

    def hurry(self) -> None:
        """Close what is still open, instead of waiting for it."""
        for member in self.crew.living():
            self._link.send("hurry", {"run": self.run_id}, member.node)

    def finish(self) -> None:
        """Drain every worker, write run.json, fetch the endpoint's truth. Runs once."""
        if self.finishing:
            self.over.wait()
            return
        self.finishing = self._draining = True
        try:
            self._wind_up()
        except OSError as error:
            self.failure, self.state = (
                UsageError(f"{self.folder.path}: cannot be written: {error.strerror}"),
                "failed",
            )
        finally:
            self.over.set()

    def _wind_up(self) -> None:
        self.admission_end_at_ns = monotonic_ns() if self.start_at_ns else None
        seconds = self.scenario.limits.drain_s if self.start_at_ns else 0.0
        waiting = [m for m in self.crew if m.state in {"running", "failed"} and m.ready]
        for member in waiting:
            self._link.send("drain", {"run": self.run_id, "seconds": seconds}, member.node)
        self._await_drained(waiting, seconds)
        if self._endpoint is not None:
            if self.start_at_ns:
                self.notes.extend(fetch_truth(self._endpoint_url, self.run_id, self.folder))
            self._endpoint.stop(3)
        if self.state == "running":
            self.state = "complete"
        if self.start_at_ns is not None or self.folder.path.is_dir():
            self.write(ended=True)
            self.folder.token.unlink(missing_ok=True)

    def _await_drained(self, waiting: list[Member], seconds: float) -> None:
        deadline = monotonic_ns() + int((seconds + 120) * 1e9)  # compacting hours of parts takes its time
        while any(not m.has_drained for m in waiting) and monotonic_ns() < deadline:
            self._changed.clear()
            self._changed.wait(timeout=0.5)
            for member in [m for m in waiting if not m.has_drained and self.crew.is_gone(m)]:
                member.state = "lost"
                waiting.remove(member)
                self.notes.append(f"worker {member.number} was lost before it had drained")
        for member in waiting:
            if not member.has_drained:
                member.state = "lost"
                self.notes.append(f"worker {member.number} did not drain in time")

    def _await(self, done: Callable[[], bool], seconds: float, complaint: str) -> None:
        deadline = monotonic_ns() + int(seconds * 1e9)
        while not done():
            if self._draining:
                raise self.failure or TailgaugeError("stopped before the first request")
            if monotonic_ns() > deadline:
                raise TailgaugeError(f"{complaint} within {seconds:.0f} s")
            self._changed.clear()
            self._changed.wait(timeout=0.2)

    # --- what is told -----------------------------------------------------------------------------------------

    def snapshot(self) -> describe.Progress:
        """The run so far, for the live display."""
        return self.crew.progress(self._passed_ns() / 1e9, self.scenario.stages.duration_s)

    def _run_facts(self) -> dict[str, Any]:
        told = [
            {"url": url, "simulated": target.url == SIMULATED, "protocol": target.protocol}
            for target, url in zip(self._targets, self._target_urls, strict=True)
        ]
        learnt = Learnt(*self._tried["learnt"]) if self._tried else Learnt()
        return {
            "run_id": self.run_id,
            "scenario": self.scenario.model_dump(mode="json"),
            "scenario_file": self.settings.scenario_file,
            "overrides": list(self.settings.overrides),
            "started_at": self._started_at,
            "start_at_ns": self.start_at_ns,
            "seed": self.scenario.seed,
            "estimate": self.settings.estimate.facts(),
            **learnt.facts(),
            "arrival": loop(self.scenario.arrival, self.scenario.traffic.values()),
            "target": told[0],
            "second_target": told[1] if told[1:] else None,
        }

    @property
    def _scheduled(self) -> int | None:
        """Requests that the plan has; None where their number comes out of the run (closed loop)."""
        if self.schedule is None:
            return 0
        return self.schedule.requests if self.scenario.arrival.is_open else None

    def write(self, *, ended: bool = False) -> None:
        """run.json as things stand."""
        facts = describe.run_json(self._run_facts(), self.state, self.notes, self.preflight)
        facts["admission_end_at_ns"] = self.admission_end_at_ns
        facts["ended_at_ns"] = monotonic_ns() if ended else None
        facts["certificate"] = self.settings.certificate
        facts["trace"] = self.schedule.trace if self.schedule else None
        facts["conservation"] = self.crew.conservation(self._scheduled, self.folder, final=ended)
        facts["workers"] = [member.facts() for member in self.crew]
        write_json(self.folder.run_json, facts)
