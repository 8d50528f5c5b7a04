"""The whole schedule of a run: when each request arrives, of which kind it is, and how much it asks for.

Rule: drawn once, by the master, from the scenario and its seed. What a prompt file says goes before what a trace says,
and that before the traffic's own sizes.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import replace
from pathlib import Path
from typing import Any

import numpy as np

from tailgauge.errors import ScenarioError
from tailgauge.patterns.settings import TrafficSettings
from tailgauge.rows.schema import TURNS
from tailgauge.schedule.blocks import take_turns
from tailgauge.schedule.processes import operational_times
from tailgauge.schedule.prompt_file import deal, read_prompts
from tailgauge.schedule.random_streams import Purpose, stream
from tailgauge.schedule.replay import Replay, replay
from tailgauge.schedule.schedule import Schedule
from tailgauge.schedule.settings import CLOSED, DEFAULT_RATE, TRACE, Arrival
from tailgauge.schedule.shapes import course
from tailgauge.schedule.text_file import MAX_TOKENS, locate
from tailgauge.schedule.trace_file import Recorded, read_trace

MAX_ARRIVALS = 20_000_000
Turns = tuple[tuple[str, str], float, float]  # the two tables, seconds of a block, start of the first


def plan(
    arrival: Arrival,
    traffic: Mapping[str, TrafficSettings],
    duration_s: float,
    seed: int,
    *,
    warmup_s: float = 0.0,
    turns_of: Turns | None = None,
    folder: Path = Path(),
) -> Schedule:
    """The schedule; files are looked for in the scenario's `folder`, `turns_of` are tables that take turns. Raises UsageError, ScenarioError."""
    if arrival.process == TRACE:
        recorded = read_trace(locate(arrival.trace.file or "", folder), arrival.trace.format)
        replayed = replay(recorded, arrival.trace, arrival.rate_per_s, duration_s, seed)
        schedule = _drawn(replayed.at_ns, traffic, seed, turns_of)
        schedule = _of_trace(schedule, arrival, recorded, replayed)
    elif arrival.process == CLOSED:
        at_ns = _nanoseconds(_first_requests(arrival, warmup_s, duration_s))
        schedule = replace(_drawn(at_ns, traffic, seed), turns=np.zeros(len(at_ns), dtype=np.int32))
    else:
        schedule = _drawn(_nanoseconds(arrival_times(arrival, duration_s, seed)), traffic, seed, turns_of)
    return _with_files(schedule, traffic, folder)


def _turned(
    chosen: Any, at_ns: Any, traffic: Mapping[str, TrafficSettings], seed: int, turns_of: Turns | None
) -> Any:
    if turns_of is None:
        return chosen
    return take_turns(chosen, at_ns, tuple(traffic), *turns_of, seed)


def arrival_times(arrival: Arrival, duration_s: float, seed: int) -> Any:
    """Times in seconds within [0, duration) of a process and its shape, at the mean rate asked for."""
    rate = arrival.rate or DEFAULT_RATE
    expected = rate * duration_s
    _bounded(expected)
    times = operational_times(arrival, expected, rate, seed)
    _bounded(len(times))
    if arrival.shape.kind == "flat":
        times = times / rate
    else:
        times = course(arrival.shape).moments(times / expected) * duration_s
    return times[times < duration_s]


def _first_requests(arrival: Arrival, warmup_s: float, duration_s: float) -> Any:
    """Users come one after the other over the first half of the warm-up, or over a think time if there is none."""
    users = arrival.closed.users
    over = min(warmup_s / 2 or arrival.closed.think_s, duration_s)
    return np.arange(users) / users * over


def _drawn(
    at_ns: Any, traffic: Mapping[str, TrafficSettings], seed: int, turns_of: Turns | None = None
) -> Schedule:
    """Everything but the times from the traffic tables; each from a stream of its own."""
    n, tables = len(at_ns), tuple(traffic.values())
    _bounded(n)
    weights = np.array([t.weight for t in tables])
    chosen = stream(seed, Purpose.TRAFFIC).choice(len(tables), size=n, p=weights / weights.sum())
    chosen = _turned(chosen, at_ns, traffic, seed, turns_of)

    def sizes(median: str, sigma: str, purpose: Purpose) -> Any:
        middle = np.array([getattr(t, median) for t in tables], dtype=float)[chosen]
        spread = np.array([getattr(t, sigma) for t in tables])[chosen]
        drawn = middle * np.exp(spread * stream(seed, purpose).standard_normal(n))
        return np.clip(np.rint(drawn), 1, MAX_TOKENS).astype(np.int32)

    ending = np.array([1 / t.session.turns_mean for t in tables])[chosen]
    return Schedule(
        at_ns=at_ns,
        traffic=chosen.astype(np.int16),
        prompt_tokens=sizes("prompt_tokens", "prompt_sigma", Purpose.PROMPT_SIZES),
        output_tokens=sizes("output_tokens", "output_sigma", Purpose.OUTPUT_SIZES),
        names=tuple(traffic),
        turns=np.minimum(stream(seed, Purpose.TURNS).geometric(ending), TURNS).astype(np.int32),
    )


def _of_trace(schedule: Schedule, arrival: Arrival, recorded: Recorded, replayed: Replay) -> Schedule:
    """The trace's sizes and blocks in place of those drawn."""
    rows = replayed.rows
    schedule = replace(schedule, trace=replayed.facts, notes=replayed.notes)
    if not arrival.trace.sizes:
        return schedule
    blocks = recorded.blocks if arrival.trace.blocks else None
    return replace(
        schedule,
        prompt_tokens=recorded.prompt_tokens[rows],
        output_tokens=recorded.output_tokens[rows],
        blocks=None if blocks is None else [blocks[row] for row in rows],
    )


def _with_files(schedule: Schedule, traffic: Mapping[str, TrafficSettings], folder: Path) -> Schedule:
    """The lines of prompt files, and the sizes that they state."""
    prompts, outputs = schedule.prompt_tokens.copy(), schedule.output_tokens.copy()
    dealt = {}
    for index, table in enumerate(traffic.values()):
        if table.prompt_file is None:
            continue
        mine = schedule.traffic == index
        lines = deal(read_prompts(locate(table.prompt_file, folder)), mine, schedule.turns)
        dealt[index] = lines
        stated = lines.first[mine]
        prompts[mine] = np.array([line["prompt_tokens"] for line in lines.lines], np.int32)[stated]
        asked = np.array([line.get("output_tokens", 0) for line in lines.lines], np.int32)[stated]
        outputs[mine] = np.where(asked > 0, asked, outputs[mine])
    return replace(schedule, prompt_tokens=prompts, output_tokens=outputs, lines=dealt)


def _nanoseconds(times_s: Any) -> Any:
    return np.rint(times_s * 1e9).astype(np.int64)


def _bounded(arrivals: float) -> None:
    if arrivals > MAX_ARRIVALS:
        raise ScenarioError(f"the plan has over 20 million arrivals ({arrivals:,.0f}): split the run")
