"""The whole schedule of a run: when each request arrives, of which traffic table, and with how many tokens.

It is drawn once, by the master, from the scenario and its seed. Sizes in a prompt file go before those of a trace, and
these before the sizes of the traffic table.

Two traffic tables may alternate: from the start of the steady stage time is cut into blocks; blocks 2i and 2i + 1 are
pair i, and a coin of the seed decides which of the two is table b's. Arrivals of either table belong to the one whose
block it is; arrivals before the steady stage to a. Times and sizes are drawn as without, other tables are left alone.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import replace
from pathlib import Path
from typing import Any

import numpy as np

from tailgauge.errors import ScenarioError
from tailgauge.patterns.settings import TrafficSettings
from tailgauge.rows.schema import TURNS
from tailgauge.schedule.processes import course, operational_times
from tailgauge.schedule.prompt_file import deal, read_prompts
from tailgauge.schedule.random_streams import Purpose, stream
from tailgauge.schedule.schedule import Schedule
from tailgauge.schedule.settings import CLOSED, DEFAULT_RATE, TRACE, Arrival
from tailgauge.schedule.text_file import MAX_TOKENS, locate
from tailgauge.schedule.traces import Recorded, Replay, read_trace, replay

MAX_ARRIVALS = 20_000_000
Alternating = tuple[tuple[str, str], float, float]  # the two tables, seconds of a block, start of the first


def plan(
    arrival: Arrival,
    traffic: Mapping[str, TrafficSettings],
    duration_s: float,
    seed: int,
    *,
    warmup_s: float = 0.0,
    alternating: Alternating | None = None,
    folder: Path = Path(),
) -> Schedule:
    """The schedule; files are looked for in the scenario's `folder`, `alternating` are two tables in blocks. Raises UsageError, ScenarioError."""
    if arrival.process == TRACE:
        recorded = read_trace(locate(arrival.trace.file or "", folder), arrival.trace.format)
        replayed = replay(recorded, arrival.trace, arrival.rate_per_s, duration_s, seed)
        schedule = _drawn(replayed.at_ns, traffic, seed, alternating)
        schedule = _of_trace(schedule, arrival, recorded, replayed)
    elif arrival.process == CLOSED:
        at_ns = _nanoseconds(_first_requests(arrival, warmup_s, duration_s))
        schedule = replace(_drawn(at_ns, traffic, seed), turns=np.zeros(len(at_ns), dtype=np.int32))
    else:
        schedule = _drawn(_nanoseconds(arrival_times(arrival, duration_s, seed)), traffic, seed, alternating)
    return _with_files(schedule, traffic, folder)


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
    at_ns: Any, traffic: Mapping[str, TrafficSettings], seed: int, alternating: Alternating | None = None
) -> Schedule:
    """Everything but the times from the traffic tables; each from a stream of its own."""
    n, tables = len(at_ns), tuple(traffic.values())
    _bounded(n)
    weights = np.array([t.weight for t in tables])
    chosen = stream(seed, Purpose.TRAFFIC).choice(len(tables), size=n, p=weights / weights.sum())
    if alternating is not None:
        chosen = alternate(chosen, at_ns, tuple(traffic), *alternating, seed)

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


def alternate(
    chosen: Any, at_ns: Any, names: Sequence[str], variants: tuple[str, str], block_s: float, from_s: float, seed: int
) -> Any:  # fmt: skip
    """Indices into `names`, one per arrival, with the two `variants` in alternating blocks."""
    a, b = (names.index(name) for name in variants)
    block = np.floor((at_ns / 1e9 - from_s) / block_s).astype(np.int64)
    pairs = max(0, int(block.max(initial=-1))) // 2 + 1
    b_first = stream(seed, Purpose.VARIANTS).random(pairs) < 0.5
    of_b = (block >= 0) & ((block % 2 == 0) == b_first[np.maximum(block, 0) // 2])
    return np.where((chosen == a) | (chosen == b), np.where(of_b, b, a), chosen)


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
