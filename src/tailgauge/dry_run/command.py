"""`tailgauge run --dry-run`: from a scenario to a run folder like any other.

What a dry run cannot show is refused before anything is written; what it leaves out stands in the notes.

Also here: the requests of a dry run, arrivals at their times, what follows each, and the end of the run.

The driver, gates, policies and rows are those of a worker; only the clock differs. A dry run is one worker without a client: a
request is dispatched when it is scheduled, and sent when it is dispatched.

Prompts are the real ones where a cache, a tool or a conversation looks at their text, else of that size: a sized prompt has
exactly the wanted tokens and costs nothing to make, so that a million requests stay possible.
"""

from __future__ import annotations

import gc
import os
import platform
from collections.abc import Iterator, Mapping
from functools import lru_cache, partial
from pathlib import Path
from typing import Any

from tailgauge.call import MAIN, SECOND, Prompt
from tailgauge.clock import utc_now
from tailgauge.dry_run.attempts import STAMPS, Attempts, Store
from tailgauge.dry_run.driver import DryEndpoint, EventQueue, Timer
from tailgauge.errors import UsageError
from tailgauge.master import run_json
from tailgauge.master.conservation import Share, conserve
from tailgauge.master.looks import EVERY_S, KNOWN, InterimLooks
from tailgauge.patterns.events import Send
from tailgauge.patterns.table import PATTERNS, Traffic, pattern_of
from tailgauge.plan.guard import Spending
from tailgauge.plan.looks import looks
from tailgauge.plan.preflight import writes
from tailgauge.prompts import Maker, prompt
from tailgauge.protocols.protocol import SIMULATED
from tailgauge.rows.run_folder import RunFolder, new_run_id, write_json
from tailgauge.rows.schema import PREFLIGHT, SCHEMA_VERSION, TURNS
from tailgauge.scenario.model import Scenario
from tailgauge.schedule.schedule import Planned, Schedule
from tailgauge.schedule.sessions import RequestPool, Turn
from tailgauge.simulator.behaviours import tokens
from tailgauge.simulator.engine.config import EngineConfig
from tailgauge.worker.attempt_row import RequestRef
from tailgauge.worker.cache_tracker import CacheBook
from tailgauge.worker.counters import Counters
from tailgauge.worker.driver import Drive
from tailgauge.worker.requests import Requests, Waiting

MAX_CHUNKS = 20_000_000  # about a gigabyte of memory for the report

NOTE = "a dry run on the simulated endpoint: nothing was sent, and no client was measured"


def dry_run(
    scenario: Scenario,
    schedule: Schedule,
    scenario_file: str,
    overrides: tuple[str, ...],
    out: Path,
    *,
    spending: Spending | None = None,
) -> RunFolder:
    """Run the scenario on a simulated clock; returns the run folder, ready for its report. `spending`: counts its calls."""
    _possible(scenario, schedule)
    run_id = new_run_id(scenario.name)
    folder = RunFolder((out / "runs" / run_id).resolve())
    folder.create()
    urls = [SIMULATED] * len(scenario.targets)
    about = {
        "dry_run": True, "run_id": run_id, "started_at": utc_now(), "start_at_ns": None, "trace": schedule.trace,
        "prompt_files": schedule.prompt_files,
    }  # fmt: skip
    facts = about | run_json.scenario_facts(scenario, scenario_file, overrides, urls)
    notes = [*_notes(scenario), *schedule.notes]
    write_json(folder.run_json, run_json.frame(facts, "running", notes, []))
    store = Store(folder, spending)
    known = InterimLooks(looks(scenario, schedule), folder)
    run = DryRun(scenario, schedule, store)
    try:
        run.run(known)
        store.close()
    except OSError as error:
        raise UsageError(f"{folder.path}: cannot be written: {error.strerror}") from error
    finally:
        known.stop(is_whole=True)
    state = KNOWN if known.is_known else "complete"
    _conclude(folder, state, facts | {"precision": known.facts}, notes, run, store)
    return folder


def _conclude(
    folder: RunFolder,
    state: str,
    facts: dict[str, Any],
    notes: list[str],
    run: DryRun,
    store: Store,
) -> None:
    counts = run.counters.as_message()
    leased = run.counters.leased
    facts = facts | {"start_at_ns": run.start_at_ns}
    worker = {
        "worker": 0, "name": STAMPS, "host": platform.node(), "pid": os.getpid(), "state": "drained", "why": None,
        "clock": {"offset_ns": 0, "error_ns": 0, "drift_ppb": None}, "stamps": STAMPS, "counts": counts,
        "rows": dict(store.written),
    }  # fmt: skip
    notes = [*notes, *(f"plugin {text}" for text in run.faults.texts.values())]
    whole = run_json.frame(facts, state, notes, []) | {
        "admission_end_at_ns": run.end_ns, "ended_at_ns": max(run.last_ns, run.end_ns),
        "conservation": conserve(leased, [Share(leased, counts)]), "workers": [{**worker, "leased": leased}],
    }  # fmt: skip
    write_json(folder.worker_json(0), {"schema_version": SCHEMA_VERSION, **worker, "run": facts})
    write_json(folder.run_json, whole)


def refusal(scenario: Scenario) -> str:
    """Return which traffic a dry run cannot show, and why; empty where it shows all."""
    for name, traffic in scenario.traffic.items():
        if why := PATTERNS[traffic.pattern].no_dry_run:
            return f"traffic.{name}: {why}"
        if traffic.reader.bytes_per_s is not None:
            return f"traffic.{name}.reader: a slow reader needs real sockets"
    return ""


def _possible(scenario: Scenario, schedule: Schedule) -> None:
    """Refuse what a dry run cannot show."""
    why = refusal(scenario)
    if why:
        raise UsageError(f"--dry-run: {why}: leave out --dry-run")
    outputs = float((schedule.output_tokens * schedule.turns).sum())
    per_chunk = scenario.simulated.tokens_per_chunk
    if outputs / per_chunk > MAX_CHUNKS:
        raise UsageError(
            f"--dry-run: some {outputs / per_chunk:,.0f} chunks are planned, and a report reads at most {MAX_CHUNKS:,}: "
            "plan shorter answers, or more tokens in a chunk (simulated.tokens_per_chunk)"
        )


def _notes(scenario: Scenario) -> Iterator[str]:
    """What a reader of the report must know."""
    yield NOTE
    for table, target in scenario.targets.items():
        if target.url != SIMULATED:
            yield f"{table}.url is {target.url}, and was not called: the table [simulated] replaced it"
    for name, traffic in scenario.traffic.items():
        if note := PATTERNS[traffic.pattern].dry_run_note:
            yield f"traffic.{name}: {note}"


# --- one run on the clock of an event queue -----------------------------------------------------------------------

_BEGIN_NS = 1_000_000_000  # 0 would look like a time that never was
_LEAD_NS = 1_500_000_000  # from the last pre-warming call to the start, about as in a real run
# objects: a dry run makes millions that live for a while, and little garbage in cycles
_COLLECT_EVERY = 100_000
_SAMPLE_WORDS = 1000
_ROUND_TRIP_NS = 100_000_000  # to a provider: a refused user sends the next request after it


class DryRun(Requests):
    """One run on the clock of an event queue. `engine` replaces that of the scenario's endpoint."""

    def __init__(
        self,
        scenario: Scenario,
        schedule: Schedule,
        store: Store,
        *,
        engine: EngineConfig | None = None,
    ) -> None:
        self._schedule = schedule
        self.queue = EventQueue(_BEGIN_NS)
        self._store = store
        watched = any(pattern_of(traffic).watches_chunks for traffic in scenario.traffic.values())
        self.endpoint = DryEndpoint(
            scenario.simulated, scenario.seed, self.queue, watched=watched, engine=engine
        )
        targets = {MAIN: scenario.target, SECOND: scenario.second_target or scenario.target}
        deadline_s = scenario.limits.attempt_deadline_s
        book = CacheBook.from_scenario(scenario, is_alone=True, simulated=True)
        gateways = (SECOND,) if scenario.has_gateway else ()
        attempts = Attempts(targets, self.endpoint, self.queue, store, deadline_s, book, gateways)
        self._made = makers_of(scenario, schedule)
        super().__init__(
            scenario,
            self._made,
            attempts,
            write=store.request,
            counters=Counters(),
            timing=self.queue,
            on_bug=_raise,
        )
        self._arrivals: Iterator[Planned] = iter(())
        self._end: Timer | None = None
        self.slots = scenario.arrival.max_concurrency
        self.start_at_ns = self.last_ns = _BEGIN_NS  # of the run; end of its last request

    @property
    def end_ns(self) -> int:
        """When the last request may be sent."""
        return self.start_at_ns + self._until_ns

    def run(self, looks: InterimLooks | None = None) -> None:
        """Run all events, from the first arrival to the last row; `looks` may end it."""
        before = gc.get_threshold()
        gc.set_threshold(_COLLECT_EVERY, *before[1:])
        try:
            self._pre_warm()
            self._arrivals = self._schedule.slice(0, self._until_ns)
            if self._pool is not None:
                self._begin_users(self._pool)
            self._expect()
            if looks is not None:
                self._look(looks)
            drained_ns = self.end_ns + round(self.scenario.limits.drain_s * 1e9)
            self._end = self.queue.call_at(drained_ns, self._censor)
            self.queue.run(self.endpoint)
            counters = self.counters
            counters.not_reached = counters.leased - counters.dispatched - counters.client_drop
        finally:
            gc.set_threshold(*before)

    def _pre_warm(self) -> None:
        """Write the prefixes that are to be there before the run, most popular first."""
        for written in writes(self.scenario, lambda name: self._made[name].pre_warm(), -1):
            origin = RequestRef(written.request_id, PREFLIGHT, written.traffic, self.queue.now_ns())
            self.attempts.start(origin, Send(written.call), 0, lambda _: None)
            self.queue.run(self.endpoint)
        if self.queue.now_ns() > _BEGIN_NS:
            self.queue.pass_to(self.queue.now_ns() + _LEAD_NS)
        self.start_at_ns = self.queue.now_ns()

    # --- one request ------------------------------------------------------------------------------------------

    def _expect(self) -> None:
        """The next arrival; one at a time, so that a long plan does not lie in memory."""
        planned = next(self._arrivals, None)
        if planned is not None:
            self.counters.leased += planned.turns
            self.queue.call_at(self.start_at_ns + planned.at_ns, partial(self._arrive, planned))

    def _begin_users(self, pool: RequestPool) -> None:
        """The users of a closed loop with a number of requests."""
        for planned in self._arrivals:
            self.counters.leased += planned.turns
            if pool.is_of_start(planned):
                first = partial(self._dispatch, Turn.first(planned))
                self.queue.call_at(self.start_at_ns + planned.at_ns, first)
            else:
                pool.coming.append(planned)

    def _look(self, looks: InterimLooks) -> None:
        """Look, once every request that was due before has ended, whether the objectives are known."""
        look = looks.next
        now_ns = self.queue.now_ns()
        if look is None or now_ns >= self.end_ns:
            return
        is_due = looks.is_due((now_ns - self.start_at_ns) / 1e9)
        if is_due and all(drive.origin.request_id >= look.requests * TURNS for drive in self._open):
            self._store.flush()
            looks.look(self.start_at_ns)
        if looks.is_known:
            self._until_ns = now_ns - self.start_at_ns
        else:
            self.queue.call_at(now_ns + round(EVERY_S * 1e9), partial(self._look, looks))

    def _arrive(self, planned: Planned) -> None:
        if planned.at_ns >= self._until_ns:
            return
        self._expect()
        self._dispatch(Turn.first(planned))

    def _note_dispatch(self, turn: Turn, late_ns: int) -> None:  # noqa: ARG002 - it is never late
        self._make_prompts(turn)

    def _finish(self, turn: Turn, drive: Drive) -> int:
        self.last_ns = super()._finish(turn, drive)
        if self._has_sent_all and self._end is not None:
            self._until_ns = self.last_ns - self.start_at_ns
            self._end.cancel()
        return self.last_ns

    def _follow(self, turn: Turn, ended: str, ended_at_ns: int, answer: str | None) -> None:
        """Plan the turn after this one. Simulated refusals take no time: users who ask again at once would stop the clock."""
        if ended_at_ns <= self.start_at_ns + turn.at_ns:
            ended_at_ns += _ROUND_TRIP_NS
        super()._follow(turn, ended, ended_at_ns, answer)

    def _serve(self, waiting: Waiting) -> None:
        if not waiting.turn.prompts:
            self._make_prompts(waiting.turn)
        begin = partial(self._begin, waiting.turn, waiting.dispatched_at_ns)
        self.queue.call_at(self.queue.now_ns(), begin)

    def _plan(self, turn: Turn) -> None:
        self.queue.call_at(self.start_at_ns + turn.at_ns, partial(self._dispatch, turn))


def _raise(error: Exception) -> None:
    raise error


class SizedPrompts:
    """Makes prompts of the wanted size, as `prompts.Maker` makes the real ones."""

    def __init__(self, traffic: Traffic) -> None:
        self._sizes = pattern_of(traffic).prompt_sizes

    def make(self, planned: Planned, *_: object) -> tuple[Prompt, ...]:
        """One prompt a leg; the turn and the history, which a Maker gets too, change nothing."""
        return tuple(map(_sized, self._sizes(planned.prompt_tokens)))

    def pre_warm(self) -> Iterator[Prompt]:
        """Nothing: without a prefix there is nothing to write."""
        return iter(())


def makers_of(scenario: Scenario, schedule: Schedule) -> Mapping[str, Maker | SizedPrompts]:
    """The maker of the prompts of each traffic table."""
    words_per_token = _SAMPLE_WORDS / tokens.count(prompt(scenario.seed, 0, _SAMPLE_WORDS))
    read = scenario.simulated.cache.mode != "off" or schedule.blocks is not None

    def real(traffic: Traffic) -> bool:
        grows = traffic.session.turns_mean > 1 and traffic.session.grow
        return (
            read
            or bool(traffic.cache or traffic.tools or not traffic.prompts.is_generated)
            or grows
        )

    return {
        name: Maker(scenario.seed, traffic, name, words_per_token, marks=scenario.marks(traffic)) if real(traffic) else SizedPrompts(traffic)
        for name, traffic in scenario.traffic.items()
    }  # fmt: skip


@lru_cache(maxsize=4096)
def _sized(size: int) -> Prompt:
    return Prompt.of("x" * (size * tokens.BYTES_PER_TOKEN))
