"""The state that all calls of an endpoint share: limits, prefix cache, prices, meters, the engine and its hooks.

The endpoint has no clock. Its driver calls `advance` when something is due in the engine.
"""

from __future__ import annotations

from typing import Protocol

from tailgauge.scenario.simulated import ContentTable, Simulated
from tailgauge.simulator.behaviours import (
    billing,
    diagnostics,
    faults,
    jobs,
    limits,
    prefix_cache,
    resumption,
    stragglers,
)
from tailgauge.simulator.core.metrics import Meters
from tailgauge.simulator.engine.config import EngineConfig, engine_of
from tailgauge.simulator.engine.engine import Engine
from tailgauge.simulator.engine.job import ENDINGS, Emission, Hooks, Job
from tailgauge.simulator.protocols.limit_headers import limit_headers, retry_headers
from tailgauge.simulator.protocols.wire import Wire


class Driver(Protocol):
    """The clock of an endpoint: an event loop, or the event queue of a dry run."""

    def now_ns(self) -> int:
        """Return the time of everything that happens at the endpoint."""

    def wall_ns(self) -> int:
        """Return the nanoseconds since 1970, for headers with a date."""

    def engine_changed(self) -> None:
        """Call `advance`, now or soon: a call was submitted or cancelled."""


class Resident(Protocol):
    """A call in the engine, as its hooks see it."""

    def look_up(self, replica: int, now_ns: int) -> int:
        """Return the prompt tokens that need not be computed."""

    def first_token(self, now_ns: int) -> None:
        """Note that the engine has completed the call's prefill."""

    def receive(self, emission: Emission) -> None:
        """Take what the engine emitted for the call."""


class Endpoint(Hooks):
    """One endpoint. `engine` replaces that of the profile.

    `watched`: a caller waits for single chunks. Without that, and where nothing depends on single tokens, `every_token` is
    False: the engine emits the first token and the end only, which is cheaper and has the same times.
    """

    def __init__(
        self,
        table: Simulated,
        seed: int,
        driver: Driver,
        *,
        watched: bool = True,
        engine: EngineConfig | None = None,
    ) -> None:
        """Make the parts of the endpoint from its settings in the scenario, `table`; all draws depend on `seed`.

        `driver`: the clock, which also waits for the engine. `watched`: see the class. `engine`: in place of that of the
        table's profile. The profile `fixed` has no engine: then `self.engine` is None and times come from a latency
        model.
        """
        self.table = table
        self.seed = seed
        self.driver = driver
        self.meters = Meters()
        self.cache = prefix_cache.PrefixCache(table.cache, seed)
        self.faults = faults.Faults(table.faults.values(), seed)
        self.diagnostics = diagnostics.Diagnostics()
        self.stragglers = stragglers.Stragglers(table.stragglers, seed)
        self.billing = billing.Billing(table.billing)
        self.jobs = jobs.Jobs(table.jobs, seed)
        self.resumption = resumption.Resumption(table.resumption, seed)
        config = engine_of(table) if engine is None else engine
        # How long an empty rate limit takes to be full again, where the table gives no burst: a profile may have its own.
        refill_s = limits.MINUTE_S
        drafts = False
        if config is not None:
            refill_s = config.refill_s
            # Then a step emits several tokens, and the chunks have different sizes.
            drafts = config.draft_tokens > 0
        self.limits = limits.Limits(table.limits, driver.now_ns(), refill_s)
        self.has_blocks = drafts or table.content != ContentTable()  # else an answer is one text
        self.every_token = watched or self._depends_on_tokens()
        self.engine: Engine | None = None
        if config is not None:
            self.engine = Engine(config, seed, self, tokens=self.every_token)
        # The calls in the engine, by the key of their job.
        self._residents: dict[int | str, Resident] = {}

    def _depends_on_tokens(self) -> bool:
        """Return whether something of this endpoint depends on the time of single tokens."""
        table = self.table
        counts_output = table.limits.otpm is not None and table.limits.otpm_mode == "actual"
        has_parts = self.has_blocks or table.search.share > 0 or table.tokens_per_chunk > 1
        return has_parts or counts_output or bool(table.faults)

    def limit_headers(self, wire: Wire, now_ns: int) -> dict[str, str]:
        """Return the rate-limit headers of any response."""
        if not self.limits.has_levels:
            return {}
        readings = self.limits.readings(now_ns)
        return limit_headers(self.table.limits.headers, wire, readings, self.driver.wall_ns())

    def retry_headers(self, seconds: int | None) -> dict[str, str]:
        """Return headers with whether and when a call beyond a limit may be sent again; `seconds` is None for never."""
        limits = self.table.limits
        headers = {}
        if seconds is not None:
            headers = retry_headers(limits.retry_after, seconds, self.driver.wall_ns())
        if limits.should_retry is not None:
            headers["x-should-retry"] = "true" if limits.should_retry else "false"
        return headers

    # --- the engine -------------------------------------------------------------------------------------------

    def is_open(self, key: int | str) -> bool:
        """Return whether a call with that key is in the engine."""
        return key in self._residents

    def submit(self, job: Job, resident: Resident) -> bool:
        """Submit a call to the engine; return whether it was taken."""
        assert self.engine is not None
        self._residents[job.key] = resident
        is_taken = self.engine.submit(job, self.driver.now_ns())
        if not is_taken:
            del self._residents[job.key]
        self.driver.engine_changed()
        return is_taken

    def cancel(self, job: Job) -> None:
        """Cancel a call, which the engine stops by its mode. A call that has ended is left alone."""
        assert self.engine is not None
        if job.key in self._residents:
            self.engine.cancel(job, self.driver.now_ns())
            self.driver.engine_changed()

    def advance(self, now_ns: int) -> None:
        """Let everything happen that is due in the engine now; its consequences wait for the next call."""
        assert self.engine is not None
        for emission in self.engine.advance(now_ns):
            key = emission.call.job.key
            resident = self._residents.get(key)
            # A refused call has no resident.
            if resident is None:
                continue
            if emission.kind in ENDINGS:
                del self._residents[key]
            resident.receive(emission)

    def kv_used_share(self) -> float:
        """Return the share of the engine's memory in use now."""
        if self.engine is None:
            return 0.0
        return self.engine.kv_used_share

    def cached_tokens(self, job: Job, replica: int, now_ns: int) -> int:
        """Return how many tokens the cache reads, at admission (a hook)."""
        return self._residents[job.key].look_up(replica, now_ns)

    def slowdown(self, job: Job, replica: int, now_ns: int) -> float:
        """Return how much slower this call is on this replica now (a hook)."""
        return self.stragglers.factor(str(job.key), replica, now_ns)

    def first_token(self, job: Job, replica: int, now_ns: int) -> None:  # noqa: ARG002 - the names are the interface
        """Make the entries of the call visible in the cache (a hook)."""
        self._residents[job.key].first_token(now_ns)
