"""The master's side of a run: makes the plan, hands it out, notices losses, drains, and writes what happened.

Rule: the schedule is drawn once and handed out in slices, a lease each: what was handed to a worker is never handed to
another. The master sends no traffic and takes no row; it owns the run folder, run.json and the simulated endpoint.
"""

from __future__ import annotations

import logging
import secrets
from collections.abc import Callable
from typing import Any

import gevent
from gevent.event import Event

from tailgauge.call import SECOND
from tailgauge.channel.messages import Link
from tailgauge.channel.subprocess import Child
from tailgauge.clock import boot_id, monotonic_ns, utc_now
from tailgauge.errors import TailgaugeError, TargetError, UsageError
from tailgauge.master import progress, run_json
from tailgauge.master.conservation import request_ids
from tailgauge.master.drain import wind_up
from tailgauge.master.embedded_endpoint import fetch_server_log, start_endpoint
from tailgauge.master.engine_metrics import EnginePage
from tailgauge.master.late_join import why_not
from tailgauge.master.leases import Handout
from tailgauge.master.part_receiver import Inbox
from tailgauge.master.workers import Crew, Member, Workers, pace
from tailgauge.plan.preflight import USABLE, prefixes, trials
from tailgauge.plan.resolve import Settings
from tailgauge.plan.spend_limit import Amount
from tailgauge.protocols.api_keys import key_for
from tailgauge.protocols.settings import SIMULATED
from tailgauge.rows.run_folder import RunFolder, new_run_id
from tailgauge.rows.schema import EMPTY, OK
from tailgauge.schedule.schedule import Planned, Schedule

log = logging.getLogger("tailgauge")

LEAD_NS = 1_500_000_000  # from `go` to the first arrival
READY_S = 30.0
OPENING_S = 0.02  # for each connection opened beforehand, at the longest
LOOK_S = 0.25
HEARD = ("ready", "tried", "opened", "counters", "guarded", "part", "drained", "failed")


class Run:
    """One run, from Locust's test_start to the end of its drain."""

    def __init__(self, link: Link, settings: Settings, workers: Workers) -> None:
        self._link, self.settings, self._workers = link, settings, workers
        self.scenario = settings.scenario
        self.run_id = new_run_id(self.scenario.name)
        self.folder = RunFolder((settings.out / "runs" / self.run_id).resolve())
        self.crew = Crew(workers.alive)
        self.inbox = Inbox(self.folder)
        self.schedule: Schedule | None = None
        self._handout: Handout | None = None
        self.state = "running"
        self.notes: list[str] = []
        self.preflight: list[dict[str, Any]] = []
        self.failure: TailgaugeError | None = None
        self.tried: dict[str, Any] | None = None  # what the first worker says of the preflight
        self.start_at_ns: int | None = None
        self.admission_end_at_ns: int | None = None
        self.admitted = Event()  # the schedule is through, or it was cut short
        self.over = Event()  # drained, written
        self._mark = secrets.token_hex(16)
        self.targets = [one for one in (self.scenario.target, self.scenario.second_target) if one]
        self.target_urls = [one.url for one in self.targets]
        self._endpoint: Child | None = None
        self._endpoint_url = ""
        self.engine_page = EnginePage(self.scenario, gevent.sleep)
        self._changed = Event()
        self.started_at = utc_now()
        self._mustered = False  # the plan is out: who comes now comes late
        self._early: dict[str, dict[str, Any]] = {}  # late, but before the start
        self._draining = False
        self.finishing = False

    # --- told by the workers ----------------------------------------------------------------------------------

    def on_hello(self, node: str, data: dict[str, Any]) -> None:
        """A worker is there. One that comes after the start takes a share from the next slice on, where that can be."""
        if node in self.crew.members or self._draining:
            return
        if not self._mustered:
            self.crew.add(node, data)
            self._changed.set()
        elif self.start_at_ns is None:
            self._early[node] = data
        elif (why := why_not(self.scenario, self.settings.limit, len(self.crew))) is not None:
            self.notes.append(f"worker {data['name']} came {self._at()} and waits for the next run: {why}")
        else:
            member = self.crew.add(node, data, late=True)
            self._link.send("plan", self._plan(member.number), node)

    def on_message(self, kind: str, node: str, data: dict[str, Any]) -> None:
        """What a worker that takes part says: one of HEARD."""
        member = self.crew.members.get(node)
        if member is None or data["run"] != self.run_id:
            return
        member.heard_at_ns = monotonic_ns()
        if self.crew.is_back(
            member, self._passed_ns()
        ):  # it was silent, not dead: its leases are still its own
            self.notes.append(f"worker {member.number} came back {self._at()}")
            member.state = "lost" if self.finishing else "running"
        getattr(self, f"_on_{kind}")(member, data)
        self._changed.set()

    def _on_ready(self, member: Member, data: dict[str, Any]) -> None:
        member.ready, member.self = True, {k: data[k] for k in ("clock", "shared", "folder")}
        if member.state == "joining":
            self._join(member)

    def _on_tried(self, _: Member, data: dict[str, Any]) -> None:
        self.tried, self.preflight = data, data["trials"]

    def _on_opened(self, member: Member, data: dict[str, Any]) -> None:
        member.opened = True
        self.notes.extend(f"worker {member.number}: {said}" for said in data["missing"])

    def _on_part(self, member: Member, data: dict[str, Any]) -> None:
        self._link.send("got", {"run": self.run_id, **self.inbox.take(member.number, data)}, member.node)

    def _on_counters(self, member: Member, data: dict[str, Any]) -> None:
        member.said = data
        if not self.scenario.arrival.is_open:  # nothing is planned: only the worker can count
            member.leased = data["counts"]["leased"]

    def _on_drained(self, member: Member, data: dict[str, Any]) -> None:
        self._on_counters(member, data)
        told = data["self"]
        member.state, member.self = told["state"], told
        if member.has_left:
            self.notes.append(
                f"worker {member.number} on {member.hello['host']} ended {self._at()}: {told['why']}"
            )
        here, there = self.inbox.rows.get(member.number, {}), told["rows"]
        if not told["shared"] and all(here.get(name, 0) == rows for name, rows in there.items()):
            member.home = True
            self._link.send("home", {"run": self.run_id}, member.node)

    def _join(self, member: Member) -> None:
        """A late joiner is ready: it begins with the next slice, at the start that all have."""
        assert self.tried is not None
        member.state, member.late_ns = "running", self._passed_ns()
        told = {"run": self.run_id, "start_at_ns": self.start_at_ns, "learnt": self.tried["learnt"]}
        self._link.send("go", {**told, "limit": Amount(None, None, None).plain()}, member.node)
        self.notes.append(f"worker {member.number} joined {self._at()}")

    def _on_failed(self, member: Member, data: dict[str, Any]) -> None:
        member.state = "failed"
        told = f"worker {member.number} on {member.hello['host']} failed: {data['why']}"
        self.notes.append(told)
        if data["target"]:
            self.failure = TargetError(data["why"])
        elif self.start_at_ns is None:
            self.failure = UsageError(told)
        self.cut_short("failed")

    def _on_guarded(self, member: Member, data: dict[str, Any]) -> None:
        limit = data["limit"]
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
        for target in self.targets:
            key_for(target.url, target.protocol, target.api_key_env)
        self.schedule = self.settings.schedule
        self.notes.extend(self.schedule.notes)
        self.folder.create()
        self.folder.mark.write_text(self._mark)
        self.folder.mark.chmod(0o600)
        if SIMULATED in self.target_urls:
            self._endpoint, self._endpoint_url = start_endpoint(scenario, self.folder.path / "endpoint.log")
            self.target_urls = [self._endpoint_url if u == SIMULATED else u for u in self.target_urls]
        run_json.write(self)

    def _muster(self) -> None:
        def there() -> bool:
            return len(self.crew) >= max(1, self._workers.expected())

        self._await(there, READY_S, "workers did not report for the run")
        self._mustered = True
        for member in self.crew:
            self._link.send("plan", self._plan(member.number), member.node)
        self._await(lambda: all(m.ready for m in self.crew), READY_S, "workers did not take the plan")

    def _plan(self, number: int) -> dict[str, Any]:
        return {
            "worker": number,
            "folder": str(self.folder.path),
            "mark": self._mark,
            "boot_id": boot_id(),
            "alone": len(self.crew) == 1,
            "pace": pace(len(self.crew)),
            "prices": self.settings.priced(),
            "run": run_json.run_facts(self),
        }

    def _try(self) -> None:
        """The preflight, by the first worker: targets, tokens of a word, prefixes written before the run."""
        first = next(iter(self.crew))
        self._link.send("try", {"run": self.run_id}, first.node)
        calls = len(trials(self.scenario)) + prefixes(self.scenario)
        patience = self.scenario.limits.attempt_deadline_s + self.scenario.limits.connect_timeout_s + 5
        self._await(lambda: self.tried is not None, patience * calls, "the preflight did not end")
        for seen in self.preflight:
            if seen["ended"] not in USABLE and seen["needed"]:
                at = seen["target"] == SECOND
                failure = progress.preflight_failure(self.target_urls[at], self.targets[at].protocol, seen)
                raise TargetError(failure)
            expected = {OK} if seen["words"] else {OK, EMPTY}  # what only writes a prefix has no answer
            if seen["ended"] not in expected:
                said = seen["message"] or "no text"
                self.notes.append(f"preflight {seen['request_id']} ended as {seen['ended']}: {said}")

    def _open(self) -> None:
        """Connections opened beforehand, if any: after the preflight, so that they are young at the start."""
        if wanted := sum(target.preopened for target in self.targets):
            crew = self.crew.living()
            for member in crew:
                self._link.send("open", {"run": self.run_id}, member.node)
            patience = READY_S + self.scenario.limits.connect_timeout_s + OPENING_S * wanted
            self._await(lambda: all(m.opened for m in crew), patience, "the connections were not opened")

    def _go(self) -> None:
        assert self.tried is not None
        left = self.settings.limit.less(Amount.of_plain(self.tried["spent"]))
        crew = self.crew.living()
        shares = left.shares(len(crew)) if crew else []
        assert self.schedule is not None
        leaves_out = self.scenario.limits.lost_share == "leave_out"
        until_ns = int(self.scenario.stages.duration_s * 1e9)
        self.engine_page.begin(self.notes.append)
        self._handout = Handout(self.schedule, until_ns, self.crew, self._give, leaves_out=leaves_out)
        self.start_at_ns = monotonic_ns() + LEAD_NS
        told = {"run": self.run_id, "start_at_ns": self.start_at_ns, "learnt": self.tried["learnt"]}
        for member, share in zip(crew, shares, strict=True):
            self._link.send("go", {**told, "limit": share.plain()}, member.node)
        run_json.write(self)
        for node, data in self._early.items():
            self.on_hello(node, data)

    def _hand_out(self) -> None:
        assert self._handout is not None
        duration_ns = int(self.scenario.stages.duration_s * 1e9)
        while self._passed_ns() < duration_ns and not self._draining:
            self._handout.up_to(self._passed_ns())
            self._notice_losses()
            gevent.sleep(min(LOOK_S, max(0.01, (duration_ns - self._passed_ns()) / 1e9)))

    def _give(self, member: Member, rows: list[Planned]) -> None:
        self._link.send("slice", {"run": self.run_id, "rows": rows}, member.node)

    def _notice_losses(self) -> None:
        for member in self.crew.newly_lost(self.start_at_ns or 0):
            self.notes.append(f"worker {member.number} was lost {self._at()}")
        self.look_for_workers()

    def look_for_workers(self) -> None:
        """A run without any worker has failed; nobody cut it short."""
        if self.failure is None and len(self.crew) and all(self.crew.is_gone(member) for member in self.crew):
            self.failure = TailgaugeError("every worker is lost: the run cannot go on")
            self.notes.append(str(self.failure))
            self.cut_short("failed")

    def _at(self) -> str:
        return f"{self._passed_ns() / 1e9:.0f} s into the run"

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
        self.engine_page.hurry()
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

        def drain(member: Member) -> bool:
            return self._link.send("drain", {"run": self.run_id, "seconds": seconds}, member.node)

        wind_up(self.crew, drain, self._changed, seconds, self.notes.append)
        if self.state == "running":
            self.engine_page.end(self.notes.append)
        self._settle()
        if self._endpoint is not None:
            if self.start_at_ns:
                self.notes.extend(fetch_server_log(self._endpoint_url, self.run_id, self.folder))
            self._endpoint.stop(3)
        if self.state == "running":
            self.state = "complete"
        if self.start_at_ns is not None or self.folder.path.is_dir():
            run_json.write(self, ended=True)
            self.folder.mark.unlink(missing_ok=True)

    def _settle(self) -> None:
        """What came from elsewhere becomes one part a table; what the lost left out gets its seconds and its place."""
        for number in list(self.inbox.rows):
            self.notes.extend(gevent.get_hub().threadpool.apply(self.inbox.fold, (number,)))
        for member in list(self.crew):
            if member.state == "joining":
                del self.crew.members[member.node]
                self.notes.append(f"worker {member.hello['name']} came late and was not ready before the end")
            elif self._handout is not None and self.scenario.arrival.is_open and self._has_holes(member):
                member.missing = self._handout.missing(member, request_ids(self.folder, member.number))
            if not (member.home or member.self.get("shared", True)):
                why = f" ({member.self['refused']})" if member.self.get("refused") else ""
                self.notes.append(
                    f"rows of worker {member.number} that are not here{why} are in {member.self['folder']} on "
                    f"{member.hello['host']}: give that folder to `tailgauge report` beside this one"
                )

    def _has_holes(self, member: Member) -> bool:
        """Whether there may be no row of some of its leases, though nothing cut the run short."""
        held_back = self.state == "running" and member.self.get("counts", {}).get("not_reached")
        return member.state in {"lost", "failed"} or member.lacks_rows or bool(held_back)

    def _await(self, done: Callable[[], bool], seconds: float, complaint: str) -> None:
        deadline = monotonic_ns() + int(seconds * 1e9)
        while not done():
            if self._draining:
                raise self.failure or TailgaugeError("stopped before the first request")
            for member in self.crew:
                if self.crew.is_gone(member):
                    raise TailgaugeError(
                        f"worker {member.number} on {member.hello['host']} ended before the start"
                    )
            if monotonic_ns() > deadline:
                raise TailgaugeError(f"{complaint} within {seconds:.0f} s")
            self._changed.clear()
            self._changed.wait(timeout=0.2)

    # --- what is told -----------------------------------------------------------------------------------------

    def snapshot(self) -> progress.Progress:
        """The run so far, for the live display."""
        return self.crew.progress(self._passed_ns() / 1e9, self.scenario.stages.duration_s)
