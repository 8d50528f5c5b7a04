"""Queues of known capacity: when each request came, got its first content and ended.

The rate of arrivals is 1 a second, so that the load is that of the services.
"""

from __future__ import annotations

import heapq
from collections.abc import Callable
from typing import Any

import numpy as np

from tailgauge_analysis.metrics.waiting import UNQUEUED, Waiting

Drawn = tuple[Any, Any, Any]
Queue = Callable[[Any, float, int], Drawn]  # generator, load, requests


def arrivals(rng: Any, kind: str | float, n: int) -> Any:
    """Poisson, constant, or gamma with this coefficient of variation."""
    if kind == "constant":
        return np.arange(1.0, n + 1)
    if kind == "poisson":
        return np.cumsum(rng.exponential(1.0, n))
    shape = 1 / float(kind) ** 2
    return np.cumsum(rng.gamma(shape, 1 / shape, n))


SERVICES: dict[str, Callable[[Any, int], Any]] = {  # of mean 1
    "exponential": lambda rng, n: rng.exponential(1.0, n),
    "constant": lambda _rng, n: np.ones(n),
    "lognormal": lambda rng, n: rng.lognormal(-0.5, 1.0, n),
    "Pareto": lambda rng, n: (rng.pareto(2.2, n) + 1) * 1.2 / 2.2,
    "two sizes": lambda rng, n: np.where(rng.random(n) < 0.1, 5.0, 1.0) / 1.4,
}


def served(at_s: Any, work_s: Any, number: int) -> Any:
    """When each request begins at so many servers: first come, first served."""
    free_s = [0.0] * number
    begun_s = np.empty(len(at_s))
    for i, arrived_s in enumerate(at_s):
        begun_s[i] = max(heapq.heappop(free_s), arrived_s)
        heapq.heappush(free_s, begun_s[i] + work_s[i])
    return begun_s


def servers(arriving: str | float, service: str, number: int, *, streamed: bool = True) -> Queue:
    """First come, first served at so many servers; the first content comes as service begins, or the whole at its end."""

    def draw(rng: Any, load: float, n: int) -> Drawn:
        at_s = arrivals(rng, arriving, n)
        work_s = SERVICES[service](rng, n) * load * number
        begun_s = served(at_s, work_s, number)
        ended_s = begun_s + work_s
        return at_s, begun_s + 0.01 if streamed else ended_s, ended_s

    return draw


def batches(arriving: str | float, slots: int, tokens: int, *, streamed: bool = True) -> Queue:
    """Continuous batching: all answers in a slot get a token a step; a step takes longer with more of them."""

    def draw(rng: Any, load: float, n: int) -> Drawn:
        at_s = arrivals(rng, arriving, n)
        sizes = np.maximum(1, rng.lognormal(np.log(tokens) - 0.125, 0.5, n)).astype(int)
        full_s = load * slots / tokens  # a step with all slots in use
        first_s = np.full(n, np.inf)
        ended_s = np.full(n, np.inf)
        now_s = 0.0
        arrived = 0
        running: dict[int, int] = {}
        while arrived < n or running:
            if not running:
                now_s = max(now_s, at_s[arrived])
            while arrived < n and at_s[arrived] <= now_s and len(running) < slots:
                running[arrived] = sizes[arrived]
                arrived += 1
            now_s += full_s * (0.7 + 0.3 * len(running) / slots)
            for request in [*running]:
                first_s[request] = min(first_s[request], now_s)
                running[request] -= 1
                if not running[request]:
                    ended_s[request] = now_s
                    del running[request]
        return at_s, first_s if streamed else ended_s, ended_s

    return draw


def waiting_of(drawn: Drawn) -> Waiting:
    """The requests of a queue as the analysis has them."""
    at_s, first_s, ended_s = drawn
    n = len(at_s)
    unqueued_s = np.quantile((first_s - at_s)[first_s <= at_s[-1]], UNQUEUED, method="inverted_cdf")
    return Waiting(
        begun_s=at_s, first_s=first_s, ended_s=ended_s, unqueued_s=np.full(n, unqueued_s),
        late_s=np.zeros(n), is_steady=np.ones(n, np.bool_),
    )  # fmt: skip
