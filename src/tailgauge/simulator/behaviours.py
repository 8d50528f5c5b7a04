"""What all calls of an endpoint share: limits, prefix cache, purse, the engine and what plugs into it.

Rule: state that outlives a call stands here and nowhere else; the clock of every decision is passed on to the pure
files that decide.
"""

from __future__ import annotations

import time
from collections.abc import Callable
from time import monotonic_ns
from typing import Protocol

from tailgauge.simulator import stragglers
from tailgauge.simulator.driver import Driver
from tailgauge.simulator.engine.hooks import Hooks
from tailgauge.simulator.engine.job import Job
from tailgauge.simulator.limit_headers import anthropic_headers, openai_headers
from tailgauge.simulator.limits import Limits
from tailgauge.simulator.meters import Meters
from tailgauge.simulator.prefix_cache import PrefixCache
from tailgauge.simulator.settings import Settings


class Customer(Protocol):
    """A call, as the engine's hooks see it."""

    def look_up(self, replica: int, now_ns: int) -> int:
        """Prompt tokens that need not be computed."""

    def begin(self, now_ns: int) -> None:
        """Its first token is there."""


class Behaviours:
    """One endpoint's, in real time; in virtual time where `began_ns` and the `wall_ns` of its headers are given.

    Virtual time has no driver: whoever keeps it drives the engine, with `plugs`.
    """

    def __init__(
        self,
        settings: Settings,
        meters: Meters,
        began_ns: int | None = None,
        wall_ns: Callable[[], int] = time.time_ns,
    ) -> None:
        self.settings, self.meters, self._wall_ns = settings, meters, wall_ns
        self.limits = Limits(settings.limits, monotonic_ns() if began_ns is None else began_ns)
        self.limited = bool(settings.limits.classes)
        self.cache = PrefixCache(settings.cache)
        self.plugs = _Plugs(settings)
        engine = settings.engine
        real = engine is not None and began_ns is None
        self.driver = Driver(engine, settings.latency.seed, self.plugs) if engine and real else None

    def take_gauges(self) -> None:
        """What the meters say of the engine's memory."""
        if self.driver is not None:
            shares = [gauge.kv_used_share for gauge in self.driver.engine.gauges()]
            self.meters.kv_cache_usage = sum(shares) / len(shares)

    def limit_headers(self, protocol: str, model: str, now_ns: int) -> dict[str, str]:
        """The rate-limit headers of any response."""
        if not self.limited:
            return {}
        readings = self.limits.readings(model, now_ns)
        return (
            openai_headers(readings) if protocol == "openai" else anthropic_headers(readings, self._wall_ns())
        )


class _Plugs(Hooks):
    """What the engine asks and tells of its calls."""

    def __init__(self, settings: Settings) -> None:
        self._stragglers = settings.stragglers
        self.customers: dict[int | str, Customer] = {}

    def cached_tokens(self, job: Job, replica: int, now_ns: int) -> int:
        """Asked at admission: what the cache reads."""
        return self.customers[job.key].look_up(replica, now_ns)

    def slowdown(self, job: Job, replica: int, now_ns: int) -> float:
        """How much slower this call is here and now."""
        return stragglers.factor(self._stragglers, str(job.key), replica, now_ns)

    def first_token(self, job: Job, replica: int, now_ns: int) -> None:  # noqa: ARG002 - the names are the interface
        """What the call writes becomes visible."""
        self.customers[job.key].begin(now_ns)
