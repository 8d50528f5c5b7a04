"""The requests of a dry run: arrivals at their times, what follows each, and the end of the run.

The driver, gates, policies and rows are those of a worker; only the clock differs. A dry run is one worker without a client: a
request is dispatched when it is scheduled, and sent when it is dispatched.

Prompts are the real ones where a cache, a tool or a conversation looks at their text, else of that size: a sized prompt has
exactly the wanted tokens and costs nothing to make, so that a million requests stay possible.
"""

from __future__ import annotations

import gc
from collections.abc import Iterator, Mapping
from functools import lru_cache, partial

from tailgauge.call import MAIN, SECOND, Prompt
from tailgauge.dry_run.attempts import Attempts
from tailgauge.dry_run.driver import DryEndpoint, EventQueue, Timer
from tailgauge.dry_run.store import Store
from tailgauge.master.looks import EVERY_S, InterimLooks
from tailgauge.patterns.events import Send
from tailgauge.patterns.table import Traffic, pattern_of
from tailgauge.plan.preflight import writes
from tailgauge.prompts import Maker, prompt
from tailgauge.rows.schema import PREFLIGHT, TURNS
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

_BEGIN_NS = 1_000_000_000  # 0 would look like a missing time
_LEAD_NS = 1_500_000_000  # from the last pre-warming call to the start, about as in a real run
# In objects: a dry run makes millions that live for a while, and little garbage in cycles.
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
        """Make the endpoint, the calls and the requests of a run on the clock of an event queue; `run` runs it.

        `store` gets the rows. Both targets are the one simulated endpoint; calls to the second pass the gateway where the
        scenario has one.
        """
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
        attempts = Attempts(
            targets,
            self.endpoint,
            self.queue,
            store,
            deadline_s=deadline_s,
            book=book,
            gateways=gateways,
        )
        super().__init__(
            scenario=scenario,
            makers=makers_of(scenario, schedule),
            attempts=attempts,
            write=store.request,
            counters=Counters(),
            timing=self.queue,
            on_bug=_raise,
        )
        self._arrivals: Iterator[Planned] = iter(())
        self._end: Timer | None = None
        self.most_in_flight = scenario.arrival.max_concurrency
        self.start_at_ns = _BEGIN_NS
        self.last_ns = _BEGIN_NS  # the end of the last request

    @property
    def end_ns(self) -> int:
        """When the last request may be sent."""
        return self.start_at_ns + self._until_ns

    def run(self, looks: InterimLooks | None = None) -> None:
        """Run all events, from the prefixes written before the run to the last row; `looks` may end it early.

        Open requests are censored when the drain is over.
        """
        thresholds = gc.get_threshold()
        gc.set_threshold(_COLLECT_EVERY, *thresholds[1:])
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
            gc.set_threshold(*thresholds)

    def _pre_warm(self) -> None:
        """Write the prefixes that are to be there before the run, most popular first."""
        for write in writes(self.scenario, lambda name: self._makers[name].pre_warm(), -1):
            origin = RequestRef(write.request_id, PREFLIGHT, write.traffic, self.queue.now_ns())
            self.attempts.start(origin, Send(write.call), 0, lambda _: None)
            self.queue.run(self.endpoint)
        if self.queue.now_ns() > _BEGIN_NS:
            self.queue.pass_to(self.queue.now_ns() + _LEAD_NS)
        self.start_at_ns = self.queue.now_ns()

    # --- one request ------------------------------------------------------------------------------------------

    def _expect(self) -> None:
        """Plan the next arrival; one at a time, so that a long plan does not lie in memory."""
        planned = next(self._arrivals, None)
        if planned is not None:
            self.counters.leased += planned.turns
            self.queue.call_at(self.start_at_ns + planned.at_ns, partial(self._arrive, planned))

    def _begin_users(self, pool: RequestPool) -> None:
        """Plan the first request of each user of a closed loop; the others wait in the pool."""
        for planned in self._arrivals:
            self.counters.leased += planned.turns
            if pool.is_of_start(planned):
                begin = partial(self._dispatch, Turn.first(planned))
                self.queue.call_at(self.start_at_ns + planned.at_ns, begin)
            else:
                pool.coming.append(planned)

    def _look(self, looks: InterimLooks) -> None:
        """Look whether the objectives are known, once every request that was due before has ended."""
        look = looks.next
        now_ns = self.queue.now_ns()
        if look is None or now_ns >= self.end_ns:
            return
        later_id = look.requests * TURNS
        is_due = looks.is_due((now_ns - self.start_at_ns) / 1e9)
        if is_due and all(drive.origin.request_id >= later_id for drive in self._open):
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
        """Return a prompt for each leg; the turn and the history, which a Maker gets too, change nothing."""
        return tuple(map(_sized, self._sizes(planned.prompt_tokens)))

    def pre_warm(self) -> Iterator[Prompt]:
        """Return nothing: without a prefix there is nothing to write."""
        return iter(())


def makers_of(scenario: Scenario, schedule: Schedule) -> Mapping[str, Maker | SizedPrompts]:
    """Return the maker of the prompts of each traffic table."""
    words_per_token = _SAMPLE_WORDS / tokens.count(prompt(scenario.seed, 0, _SAMPLE_WORDS))
    is_text_read = scenario.simulated.cache.mode != "off" or schedule.blocks is not None
    makers: dict[str, Maker | SizedPrompts] = {}
    for name, traffic in scenario.traffic.items():
        if is_text_read or _needs_text(traffic):
            marks = scenario.marks(traffic)
            makers[name] = Maker(scenario.seed, traffic, name, words_per_token, marks=marks)
        else:
            makers[name] = SizedPrompts(traffic)
    return makers


def _needs_text(traffic: Traffic) -> bool:
    """Return whether the text of its prompts matters: a cache, a tool or a conversation looks at it."""
    grows = traffic.session.turns_mean > 1 and traffic.session.grow
    return bool(traffic.cache or traffic.tools or not traffic.prompts.is_generated or grows)


@lru_cache(maxsize=4096)
def _sized(size: int) -> Prompt:
    return Prompt.of("x" * (size * tokens.BYTES_PER_TOKEN))
