"""The rate at which a token bucket refuses an allowed share of the calls, by a simulation of arrivals and bucket alone.

It shares no code with the simulated endpoint: conversations, fan-outs, retries, jobs and mixes of a scenario's tables are drawn
here, call by call. An answer takes `ANSWER_S`.
"""

from __future__ import annotations

import heapq
import math
from collections.abc import Iterator, Mapping
from dataclasses import dataclass
from random import Random
from typing import Any

ANSWER_S = 0.1
STEPS = 9  # of the bisection
RANGE = (0.5, 1.5)  # of the rate that uses all of the refill
BASE_S = 0.5  # of the jitter of polite retries
CAP_S = 8.0

Tables = Mapping[str, Mapping[str, Any]]


@dataclass(frozen=True, slots=True)
class Bucket:
    """Units per second and at most; `by_tokens`: a call costs its prompt tokens, else 1."""

    per_s: float
    burst: float
    by_tokens: bool = False


@dataclass(slots=True)
class Call:
    """A call of a table; `turns` follow it, `retries` went before."""

    table: Mapping[str, Any]
    turns: int = 0
    retries: int = 0


def sustained(tables: Tables, bucket: Bucket, refused: float, calls: int, seed: int = 1) -> float:
    """Return the arrivals/s at which this share of the calls is refused in the long run."""
    whole = bucket.per_s / _cost_of_arrival(tables, bucket)
    low, high = (end * whole for end in RANGE)
    for _ in range(STEPS):
        middle = (low + high) / 2
        if refused_share(tables, bucket, middle, calls, seed) > refused:
            high = middle
        else:
            low = middle
    return (low + high) / 2


def _cost_of_arrival(tables: Tables, bucket: Bucket) -> float:
    weights = [float(table.get("weight", 1.0)) for table in tables.values()]
    costs = [_calls(table) * _cost(table, bucket) for table in tables.values()]
    return sum(weight * cost for weight, cost in zip(weights, costs, strict=True)) / sum(weights)


def _calls(table: Mapping[str, Any]) -> float:
    turns = float(table.get("session", {}).get("turns_mean", 1.0))
    return turns * _legs(table)


def _legs(table: Mapping[str, Any]) -> int:
    return int(table.get("fan_out", {}).get("legs", 1))


def _cost(table: Mapping[str, Any], bucket: Bucket) -> float:
    return float(table["prompt_tokens"]) if bucket.by_tokens else 1.0


def refused_share(tables: Tables, bucket: Bucket, rate: float, calls: int, seed: int) -> float:
    """Return the share of the calls that the bucket refuses, without the first tenth."""
    random = Random(seed)
    arrivals = _arrivals(tables, rate, random)
    queue: list[tuple[float, int, Call]] = []
    order = 0
    due = next(arrivals)
    level = bucket.burst
    now = 0.0
    refusals: list[bool] = []
    while len(refusals) < calls:
        if not queue or due[0] < queue[0][0]:
            at, call = due
            due = next(arrivals)
        else:
            at, _, call = heapq.heappop(queue)
        level = min(bucket.burst, level + bucket.per_s * (at - now))
        now = at
        cost = _cost(call.table, bucket)
        is_refused = False
        for _ in range(1 if call.retries else _legs(call.table)):
            is_refused = level < cost
            refusals.append(is_refused)
            if not is_refused:
                level -= cost
                continue
            retry_s = _retry_s(call, (cost - level) / bucket.per_s, random)
            if retry_s is not None:
                order += 1
                again = Call(call.table, call.turns, call.retries + 1)
                heapq.heappush(queue, (now + retry_s, order, again))
        if call.turns and not is_refused:
            order += 1
            session = call.table["session"]
            think_s = random.lognormvariate(math.log(session["think_s"]), session["think_sigma"])
            heapq.heappush(
                queue, (now + ANSWER_S + think_s, order, Call(call.table, call.turns - 1))
            )
    counted = refusals[calls // 10 :]
    return sum(counted) / len(counted)


def _arrivals(tables: Tables, rate: float, random: Random) -> Iterator[tuple[float, Call]]:
    choices = list(tables.values())
    weights = [float(table.get("weight", 1.0)) for table in choices]
    now = 0.0
    while True:
        now += random.expovariate(rate)
        table = random.choices(choices, weights)[0]
        mean = float(table.get("session", {}).get("turns_mean", 1.0))
        turns = 0
        while random.random() < 1 - 1 / mean:
            turns += 1
        yield now, Call(table, turns)


def _retry_s(call: Call, wait_s: float, random: Random) -> float | None:
    """Return when a refused call is sent again; None: never."""
    table = call.table.get("retry", {})
    if call.retries >= int(table.get("max_retries", 0)):
        return None
    jitter_s = random.random() * min(CAP_S, BASE_S * 2.0**call.retries)
    return math.ceil(wait_s) + jitter_s
