"""The whole schedule of a run: when each request arrives, of which traffic table, and with how many tokens.

It is drawn once, by the master, from the scenario and its seed. Sizes in a prompt file have priority over those of a trace,
and these over the sizes of the traffic table. What follows an arrival (later turns, requests of users) is in `sessions`.

Two traffic tables, a and b, may alternate: from the start of the steady stage time is cut into blocks; blocks 2i and 2i + 1
are pair i, and a coin of the seed decides which of the two is b's. Arrivals of either table belong to the one whose block it
is; arrivals before the steady stage to a. Times and sizes are the same as without blocks, and so are other tables.

A slice of it holds plain values, because it is sent to a worker. Arrival i always has the same id, time and sizes,
however many workers there are and wherever slices are cut.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, field, replace
from itertools import compress
from pathlib import Path
from typing import Any, NamedTuple

import numpy as np

from tailgauge.errors import ScenarioError
from tailgauge.patterns.settings import TrafficSettings
from tailgauge.protocols.protocol import WireProtocol
from tailgauge.rows.schema import TURNS
from tailgauge.rows.text_file import locate
from tailgauge.schedule.processes import course, operational_times
from tailgauge.schedule.prompt_file import DealtRows, RowRules, deal, read_prompts
from tailgauge.schedule.random_streams import Purpose, stream
from tailgauge.schedule.settings import CLOSED, DEFAULT_RATE, MAX_TOKENS, TRACE, Arrival
from tailgauge.schedule.traces import read_trace, replay

MAX_ARRIVALS = 20_000_000
# The two tables, seconds of a block, start of the first.
Alternating = tuple[tuple[str, str], float, float]


class Planned(NamedTuple):
    """One arrival as a worker receives it; in a session, the first turn."""

    request_id: int
    at_ns: int  # since the start of the run
    traffic: str
    prompt_tokens: int
    output_tokens: int
    turns: int = 1  # of the session; 0: without end, a user of a closed loop
    source: dict[str, Any] | None = None  # from a prompt file or a trace: text, name, tags, blocks

    def of_turn(self, turn: int) -> Planned:
        """This arrival with the sizes of one turn: each turn has another line of a prompt file."""
        if not turn or not self.source:
            return self
        lines = [self.source, *self.source.get("later", ())]
        if len(lines) < 2:
            return self
        line = lines[turn % len(lines)]
        output_tokens = line.get("output_tokens", self.output_tokens)
        return self._replace(
            prompt_tokens=line["prompt_tokens"], output_tokens=output_tokens, source=line
        )


@dataclass(frozen=True, slots=True)
class Schedule:
    """Arrivals in order; arrays of one length. Times in ns since the start of the run."""

    at_ns: Any
    traffic: Any  # index into names
    prompt_tokens: Any
    output_tokens: Any
    names: tuple[str, ...]
    turns: Any  # of the session that an arrival begins; 0: a user of a closed loop
    starts_ns: Any = None  # of the users of a counted closed loop, who send the other requests too
    # Rows of prompt files, by index into names.
    lines: Mapping[int, DealtRows] = field(default_factory=dict)
    blocks: Any = None  # by arrival: shared blocks of a trace
    block_tokens: int = 0  # of each of these blocks
    trace: dict[str, Any] | None = None  # what became of a trace's rows, for run.json
    prompt_files: dict[str, Any] = field(default_factory=dict)  # of prompt files, by traffic table
    notes: tuple[str, ...] = ()

    def __len__(self) -> int:
        return len(self.at_ns)

    @property
    def requests(self) -> int:
        """Requests that are planned, every turn of every session; a closed loop plans none, only its users."""
        return int(np.sum(self.turns, dtype=np.int64))

    @property
    def users(self) -> int | None:
        """Users of a closed loop with a number of requests; None of any other plan."""
        if self.starts_ns is None:
            return None
        return len(self.starts_ns)

    def slice(self, since_ns: int, until_ns: int) -> Iterator[Planned]:
        """Arrivals in [since, until)."""
        begin, end = np.searchsorted(self.at_ns, [since_ns, until_ns])
        for i in range(int(begin), int(end)):
            source = self._source(i)
            # A row has its own sizes: those of the schedule are the mean of a conversation's turns.
            row = source or {}
            prompt_tokens = int(row.get("prompt_tokens", self.prompt_tokens[i]))
            output_tokens = int(row.get("output_tokens", self.output_tokens[i]))
            at_ns = int(self.at_ns[i])
            if self.starts_ns is not None and i < len(self.starts_ns):
                at_ns = int(self.starts_ns[i])
            name = self.names[self.traffic[i]]
            turns = int(self.turns[i])
            yield Planned(
                i * TURNS, at_ns, name, prompt_tokens, output_tokens, turns=turns, source=source
            )

    def _source(self, i: int) -> dict[str, Any] | None:
        lines = self.lines.get(int(self.traffic[i]))
        if lines is not None:
            return lines.source(i, int(self.turns[i]))
        if self.blocks is None:
            return None
        return {"blocks": list(self.blocks[i]), "block_tokens": self.block_tokens}


def plan(
    arrival: Arrival,
    traffic: Mapping[str, TrafficSettings],
    duration_s: float,
    seed: int,
    *,
    warmup_s: float = 0.0,
    alternating: Alternating | None = None,
    folder: Path = Path(),
    protocols: tuple[type[WireProtocol], ...] = (),
    bounded: bool = False,
) -> Schedule:
    """Return the schedule of a run. Files are looked for in the scenario's `folder`.

    `alternating`: two tables that alternate in blocks of time. `protocols` must be able to send the rows of
    prompt files. `bounded`: [guard] limits tokens or cost, so that a row with a picture or a document must
    state its size. Users of a closed loop begin during the warm-up of `warmup_s`. Raises UsageError,
    ScenarioError.
    """
    if arrival.process == TRACE:
        path = locate(arrival.trace.file or "", folder, "arrival.trace.file")
        options = arrival.trace
        recorded = read_trace(path, options)
        replayed, facts, notes = replay(recorded, options, arrival.rate_per_s, duration_s, seed)
        schedule = replace(
            _drawn(replayed.at_ns, traffic, seed, alternating), trace=facts, notes=notes
        )
        if options.sizes:
            sizes = {
                "prompt_tokens": replayed.prompt_tokens,
                "output_tokens": replayed.output_tokens,
            }
            blocks = replayed.blocks if options.blocks else None
            schedule = replace(schedule, **sizes, blocks=blocks, block_tokens=replayed.block_tokens)
    elif arrival.is_counted:
        # A closed loop with a number of requests: only the first of each user has a time.
        schedule = _counted(arrival, traffic, seed, warmup_s, duration_s)
    elif not arrival.is_open:
        # A closed loop: one row for each user, whose session has no end (0 turns).
        at_ns = _nanoseconds(_first_requests(arrival, warmup_s, duration_s))
        schedule = replace(_drawn(at_ns, traffic, seed), turns=np.zeros(len(at_ns), dtype=np.int32))
    else:
        at_ns = _nanoseconds(arrival_times(arrival, duration_s, seed))
        schedule = _drawn(at_ns, traffic, seed, alternating)
    rules = RowRules(protocols=protocols, bounded=bounded)
    return _with_files(schedule, traffic, seed, folder, rules)


def arrival_times(arrival: Arrival, duration_s: float, seed: int) -> Any:
    """Times in seconds within [0, duration) of a process and its shape, at the mean rate of the scenario."""
    rate = arrival.rate or DEFAULT_RATE
    expected = rate * duration_s
    _check_count(expected)
    times = operational_times(arrival, expected, rate, seed)
    _check_count(len(times))
    times_s = times / rate
    if arrival.shape.kind != "flat":
        times_s = course(arrival.shape).moments(times / expected) * duration_s
    return times_s[times_s < duration_s]


def _first_requests(arrival: Arrival, warmup_s: float, duration_s: float) -> Any:
    """Users come one after the other over the first half of the warm-up, or over a think time if there is none.

    Those of tasks are Locust's: none is planned.
    """
    users = arrival.closed.users if arrival.process == CLOSED else 0
    span_s = min(warmup_s / 2 or arrival.closed.think_s, duration_s)
    return np.arange(users) / max(1, users) * span_s


def _counted(
    arrival: Arrival,
    traffic: Mapping[str, TrafficSettings],
    seed: int,
    warmup_s: float,
    duration_s: float,
) -> Schedule:
    """Return the requests of a closed loop with a fixed number of requests: none has a time of its own, but for the first of each user."""
    requests = arrival.closed.requests or 0
    starts_ns = _nanoseconds(_first_requests(arrival, warmup_s, duration_s))[:requests]
    schedule = _drawn(np.zeros(requests, np.int64), traffic, seed)
    return replace(schedule, starts_ns=starts_ns)


def _drawn(
    at_ns: Any,
    traffic: Mapping[str, TrafficSettings],
    seed: int,
    alternating: Alternating | None = None,
) -> Schedule:
    """Return a schedule at these times; draw the table, the sizes and the turns of each arrival, each from its own stream.

    Sizes are log-normal around the median of the table, turns geometric. `alternating`: arrivals of its two
    tables go to the one whose block it is. ScenarioError for too many arrivals.
    """
    n = len(at_ns)
    _check_count(n)
    rows = []
    for table in traffic.values():
        inputs = (table.prompt_tokens, table.prompt_sigma)
        answers = (table.output_tokens, table.output_sigma)
        rows.append((table.weight, table.session.turns_mean, *inputs, *answers))
    # A column of each setting, by traffic table.
    weights, turns_means, *sizes = np.array(rows, dtype=float).T.copy()
    prompt_tokens, prompt_sigmas, output_tokens, output_sigmas = sizes
    chosen = stream(seed, Purpose.TRAFFIC).choice(len(rows), size=n, p=weights / weights.sum())
    if alternating is not None:
        chosen = _alternate(chosen, at_ns, tuple(traffic), alternating, seed)

    def sizes_of(medians: Any, sigmas: Any, purpose: Purpose) -> Any:
        spread = sigmas[chosen] * stream(seed, purpose).standard_normal(n)
        drawn = medians[chosen] * np.exp(spread)
        return np.clip(np.rint(drawn), 1, MAX_TOKENS).astype(np.int32)

    prompts = sizes_of(prompt_tokens, prompt_sigmas, Purpose.PROMPT_SIZES)
    outputs = sizes_of(output_tokens, output_sigmas, Purpose.OUTPUT_SIZES)
    # After each turn a session ends with this probability.
    ending = (1 / turns_means)[chosen]
    turns = np.minimum(stream(seed, Purpose.TURNS).geometric(ending), TURNS).astype(np.int32)
    return Schedule(
        at_ns=at_ns,
        traffic=chosen.astype(np.int16),
        prompt_tokens=prompts,
        output_tokens=outputs,
        names=tuple(traffic),
        turns=turns,
    )


def _alternate(
    chosen: Any, at_ns: Any, names: Sequence[str], alternating: Alternating, seed: int
) -> Any:
    """Return indices into `names`, one per arrival, with the two variants in alternating blocks."""
    variants, block_s, from_s = alternating
    a, b = map(names.index, variants)
    # Blocks are counted from `from_s`; those before it are of variant A.
    block = np.floor((at_ns / 1e9 - from_s) / block_s).astype(np.int64)
    pairs = max(0, int(block.max(initial=-1))) // 2 + 1
    begins_with_b = stream(seed, Purpose.VARIANTS).random(pairs) < 0.5
    is_first_of_pair = block % 2 == 0
    is_of_b = (block >= 0) & (is_first_of_pair == begins_with_b[np.maximum(block, 0) // 2])
    alternated = np.where(is_of_b, b, a)
    return np.where((chosen == a) | (chosen == b), alternated, chosen)


def _with_files(
    schedule: Schedule,
    traffic: Mapping[str, TrafficSettings],
    seed: int,
    folder: Path,
    rules: RowRules,
) -> Schedule:
    """Return the schedule with the rows of prompt files, and with the sizes and turns that the rows state.

    Where a file may not repeat (`at_end`), the arrivals after its last row are left out. What became of the
    files is added to `notes` and `prompt_files`. Raises UsageError, ScenarioError.
    """
    prompts = schedule.prompt_tokens.copy()
    outputs = schedule.output_tokens.copy()
    turns = schedule.turns.copy()
    is_sent = np.ones(len(schedule), bool)
    dealt = {}
    notes = list(schedule.notes)
    prompt_files = {}
    for index, (name, table) in enumerate(traffic.items()):
        settings = table.prompts
        session = table.session
        if settings.file is None:
            continue
        path = locate(settings.file, folder, f"traffic.{name}.prompts.file")
        several = session.turns_mean > 1
        columns = tuple(sorted(settings.columns.items()))
        table_rules = replace(
            rules, columns=columns, sessions=several, grows=several and session.grow
        )
        rows = read_prompts(path, table_rules)
        count = len(rows)
        is_of_table = schedule.traffic == index
        order = np.arange(count)
        if settings.order == "shuffled":
            order = stream(seed, Purpose.ROWS).permutation(count)
        # `deal` also sets the turns of conversations.
        dealt[index], is_repeated = deal(rows, order, is_of_table, turns)
        stated = order[dealt[index].first[is_of_table]]
        prompts[is_of_table] = np.array(rows.prompt_tokens, np.int32)[stated]
        # 0: the row states no size of its answer, and the drawn one stays.
        stated_outputs = np.array(rows.output_tokens, np.int32)[stated]
        outputs[is_of_table] = np.where(stated_outputs > 0, stated_outputs, outputs[is_of_table])
        facts = rows.facts()
        prompt_files[name] = {"file": settings.file, **facts}
        if rows.dropped.total:
            share = f"{rows.dropped.total:,} of {facts['rows_read']:,} rows are left out"
            notes.append(f"{path.name}: {share}: {rows.dropped}")
        if settings.at_end == "stop" and is_repeated.any():
            is_sent &= ~is_repeated
            notes.append(
                f"{path.name}: {int(is_repeated.sum()):,} arrivals after its {count:,} rows are left out"
            )
    lines = {}
    for index, dealt_rows in dealt.items():
        lines[index] = replace(dealt_rows, first=dealt_rows.first[is_sent])
    blocks = schedule.blocks and list(compress(schedule.blocks, is_sent))
    return replace(
        schedule,
        at_ns=schedule.at_ns[is_sent],
        traffic=schedule.traffic[is_sent],
        prompt_tokens=prompts[is_sent],
        output_tokens=outputs[is_sent],
        turns=turns[is_sent],
        blocks=blocks,
        notes=tuple(notes),
        prompt_files=prompt_files,
        lines=lines,
    )


def _nanoseconds(times_s: Any) -> Any:
    return np.rint(times_s * 1e9).astype(np.int64)


def _check_count(arrivals: float) -> None:
    if arrivals > MAX_ARRIVALS:
        problem = f"over 20 million arrivals ({arrivals:,.0f})"
        raise ScenarioError(f"arrival: the plan has {problem}: split the run")
