"""Where the time of an answer went, as far as the target reports it: network, queue, prefill, decode, and its phases.

Attempts of the steady stage with a complete answer, without slow readers. Tables, each only where the run has it.

- `split`: from the server log (the simulated endpoint keeps one). Queue is all that comes between the whole request
  and the first step with a part of its prompt. The parts of an attempt follow each other and
  add up to last content - sent. Each lies within one clock, but the network: there the request has the worker's offset
  with one sign and the response with the other, so that it cancels.
- `events`: status events. A phase lasts until the next one begins, the last one until the last content. They too add up.
- `timings`: Server-Timing. Durations that the target names; they may overlap, so that they need not add up.
- `tools`: when the input of the first and of the last tool call of an answer was complete.

Calls of server tools (searches, code execution) are phases of their own, `server_tool:NAME`, and are counted.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import dataclass, replace

import numpy as np
import pandas as pd

from tailgauge.rows import schema
from tailgauge_analysis.reading.frames import CALL
from tailgauge_analysis.run import Run
from tailgauge_analysis.stats.quantiles import Floats, Quantile, quantiles
from tailgauge_analysis.text.cells import quantile_table
from tailgauge_analysis.text.formatting import count, plain, plural, share
from tailgauge_analysis.text.json_values import number, parsed
from tailgauge_analysis.text.section import Section, Table, Value

KEY = "phases"
QUANTILES = (0.5, 0.95, 0.99)
MOST = 20
BEFORE = "before the first phase"
DURATION = ";dur"  # of Server-Timing; any other name is when a phase began

NETWORK = "network, both directions"
QUEUE = "queue, with the server's front end"
PREFILL = "prefill"
DELIVERY = "from the first token to the chunk that contains it"
INSIDE = "target, until its first chunk"
DECODE = "decode"
FIRST_TOOL = "first of the answer"
LAST_TOOL = "last of the answer"


@dataclass(frozen=True, slots=True)
class Part:
    """A part of the time of an attempt, in ms. `share` is of all that its table adds up; None where that is nothing."""

    name: str
    n: int
    share: float | None
    quantiles: tuple[Quantile, ...]


@dataclass(frozen=True, slots=True)
class Phases:
    """The tables; each may be empty. `answers`: attempts with a complete answer; `reported`: those with phases.

    Calls of tools by the model (`tool_calls`) and of the target's own (`server_tool_calls`), and the answers that have some.
    """

    answers: int
    reported: int
    split: tuple[Part, ...]
    events: tuple[Part, ...]
    timings: tuple[Part, ...]
    tools: tuple[Part, ...] = ()
    tool_calls: int = 0
    tool_answers: int = 0
    server_tool_calls: int = 0
    server_tool_answers: int = 0


def compute(run: Run) -> Phases | None:
    """Return where the time of answers went, as far as the target reports it; None where it reports nothing.

    Complete answers with content, in order of sending. All times are ms since sent.
    """
    attempts = run.without_slow_readers.attempts
    answers = attempts[
        attempts["ended"].isin(schema.COMPLETE) & attempts["first_content_at_ns"].notna()
    ]
    answers = answers.sort_values("sent_at_ns", kind="stable")
    reported = answers[answers["phases"].notna()]
    phase_starts = []
    server_timings = []
    for text in reported["phases"]:
        # When phases began, by status events; and durations, of the header Server-Timing.
        starts_ms, durations_ms = parse(text)
        phase_starts.append(starts_ms)
        server_timings.append(durations_ms)
    sent_at_ns = reported["sent_at_ns"]
    first_ms = (reported["first_content_at_ns"] - sent_at_ns).to_numpy(np.float64) / 1e6
    last_ms = (reported["last_content_at_ns"] - sent_at_ns).to_numpy(np.float64) / 1e6
    ready_ms = []
    for text in answers["tool_ready"].dropna():
        # When the input of each tool call of the answer was complete.
        times = _ready_ms(text)
        if len(times):
            ready_ms.append(times)
    server_tool_calls = answers["server_tool_calls"].fillna(0)
    phases = Phases(
        answers=len(answers),
        reported=len(reported),
        split=_split(answers, run.frames.server_log),
        events=_events(phase_starts, last_ms),
        timings=_timings(server_timings, first_ms),
        tools=_tools(ready_ms),
        tool_calls=sum(map(len, ready_ms)),
        tool_answers=len(ready_ms),
        server_tool_calls=int(server_tool_calls.sum()),
        server_tool_answers=int((server_tool_calls > 0).sum()),
    )
    has_tables = phases.split or phases.events or phases.timings or phases.tools
    return phases if has_tables or phases.server_tool_calls else None


def _ready_ms(text: str) -> Floats:
    """Return when the input of each tool call of an answer was complete, ms since sent, in order."""
    times_ms = []
    for value in parsed(text).values():
        time_ns = number(value)
        if time_ns is not None:
            times_ms.append(time_ns / 1e6)
    return np.sort(times_ms)


def _tools(ready_ms: list[Floats]) -> tuple[Part, ...]:
    """Return the first and the last tool call of each answer; one row where no answer has several."""
    if not ready_ms:
        return ()
    first_ms = np.array([times[0] for times in ready_ms])
    last_ms = np.array([times[-1] for times in ready_ms])
    parts = [Part(FIRST_TOOL, len(first_ms), None, tuple(quantiles(first_ms, QUANTILES)))]
    if any(len(times) > 1 for times in ready_ms):
        parts.append(Part(LAST_TOOL, len(last_ms), None, tuple(quantiles(last_ms, QUANTILES))))
    return tuple(parts)


def section(phases: Phases | None) -> Section | None:
    """Return where most of the time went; None where the target reports nothing of it."""
    if phases is None:
        return None
    tables = (
        (
            "Network, queue, prefill, decode",
            phases.split,
            "The parts come from the server log and add up to the time to the last content.",
        ),
        (
            "Phases reported by the target",
            phases.events,
            "The phases come from the target's status events and add up to the time to the last content.",
        ),
        (
            "Durations in Server-Timing",
            phases.timings,
            "Shares are of the time to the first content. The durations may overlap.",
        ),
    )
    computed = (
        f"The figures cover {plural(phases.answers, 'attempt')} of the steady stage. Each has a complete answer, and the target reported its "
        "phases. Each time runs from sending to the last content. A phase that a status event begins lasts until the next status event."
    )
    visible = [_table(*entry) for entry in tables if entry[1]]
    if phases.tools:
        note = "The time since sent at which the input of a tool call is complete, so that it can be made; in each answer with tool calls."
        visible.append(
            quantile_table("Tool calls ready", "tool call", _percentiles(phases.tools), note)
        )
    return Section(
        "phases",
        "Time breakdown",
        _answer(phases),
        tuple(_facts(phases)),
        tuple(visible),
        computed=(computed,),
    )


def _facts(phases: Phases) -> Iterator[tuple[str, str]]:
    population = plural(phases.answers, "answer")
    if phases.tool_calls:
        yield (
            "Tool calls",
            f"{count(phases.tool_calls)} in {count(phases.tool_answers)} of {population}",
        )
    if phases.server_tool_calls:
        calls = count(phases.server_tool_calls)
        yield (
            "Calls of server tools",
            f"{calls} in {count(phases.server_tool_answers)} of {population}",
        )


def _percentiles(parts: Sequence[Part]) -> list[tuple[str, tuple[Quantile, ...]]]:
    return [(part.name, part.quantiles) for part in parts]


def _table(title: str, parts: tuple[Part, ...], note: str) -> Table:
    base = quantile_table(title, "part", _percentiles(parts), note)
    rows = []
    for part, (name, *times) in zip(parts, base.rows, strict=True):
        bar = None
        if part.share is not None:
            bar = min(1.0, part.share)
        rows.append((name, Value(share(part.share), share=bar), *times))
    header = (base.header[0], "share of time", *base.header[1:])
    return replace(base, header=header, rows=tuple(rows))


def _answer(phases: Phases) -> str:
    for parts, content in (
        (phases.split, "last"),
        (phases.events, "last"),
        (phases.timings, "first"),
    ):
        measured = [part for part in parts if part.share is not None]
        if measured:
            largest = max(measured, key=lambda part: part.share or 0.0)
            return f"The largest part of the time to the {content} content is: {largest.name} ({share(largest.share)})."
    return ""


def parse(text: str) -> tuple[dict[str, float], dict[str, float]]:
    """Return when each phase began, ms since sent; and what each Server-Timing entry took, in ms. Nothing of other text."""
    began: dict[str, float] = {}
    took: dict[str, float] = {}
    for name, ns in parsed(text).items():
        if isinstance(ns, int | float) and not isinstance(ns, bool) and np.isfinite(ns):
            kind = took if name.endswith(DURATION) else began
            kind[plain(name.removesuffix(DURATION), 60)] = float(ns) / 1e6
    return began, took


def _split(answers: pd.DataFrame, server_log: pd.DataFrame) -> tuple[Part, ...]:
    """Return the parts of each attempt's time, by its row in the server log; none where no attempt has a row with its first chunk.

    Times of client and server are on two clocks. In the network part, request and response together, their offset
    cancels.
    """
    keys = list(CALL)
    columns = [
        "received_at_ns",
        "prefill_started_at_ns",
        "prefill_ended_at_ns",
        "first_chunk_sent_at_ns",
    ]
    logged = server_log[server_log["first_chunk_sent_at_ns"].notna()].drop_duplicates(keys)
    joined = answers.merge(logged[[*keys, *columns]], on=keys)
    if not len(joined):
        return ()
    names = (*columns, "sent_at_ns", "first_content_at_ns", "last_content_at_ns")
    times = (joined[name].to_numpy(np.float64) / 1e6 for name in names)
    # In ms: the target received the request, worked on its prompt from and until, wrote its first chunk; the client sent, got the first and
    # the last content.
    received, prefilling, prefilled, written, sent, first_at, last_at = times
    parts_in_target = {
        QUEUE: prefilling - received,
        PREFILL: prefilled - prefilling,
        DELIVERY: written - prefilled,
    }
    # Only the simulated engine logs when it works on a prompt.
    if np.isnan(prefilling + prefilled).any():
        parts_in_target = {INSIDE: written - received}
    parts = {
        NETWORK: received - sent + first_at - written,
        **parts_in_target,
        DECODE: last_at - first_at,
    }
    total_ms = float((last_at - sent).sum())
    return tuple(_part(name, ms, total_ms) for name, ms in parts.items())


def _events(began: list[dict[str, float]], length: Floats) -> tuple[Part, ...]:
    """Return how long each phase lasted, in the order in which the phases begin in the median."""
    lasted: dict[str, list[float]] = {}
    starts: dict[str, list[float]] = {}
    whole = 0.0
    for phases_of_one, end in zip(began, length, strict=True):
        if not phases_of_one:
            continue
        names = [BEFORE, *sorted(phases_of_one, key=phases_of_one.__getitem__)]
        bounds = [0.0, *sorted(phases_of_one.values())]
        whole += max(end, bounds[-1])
        for name, start, stop in zip(
            names, bounds, [*bounds[1:], max(end, bounds[-1])], strict=True
        ):
            lasted.setdefault(name, []).append(stop - start)
            starts.setdefault(name, []).append(start)
    order = sorted(lasted, key=lambda name: float(np.median(starts[name])))
    return tuple(_part(name, np.array(lasted[name]), whole) for name in order[:MOST])


def _timings(took: list[dict[str, float]], first_ms: Floats) -> tuple[Part, ...]:
    """Return the durations of Server-Timing, in the order in which its names first appear; shares of the time to the first content."""
    durations: dict[str, list[float]] = {}
    waited: dict[str, float] = {}
    for entries, wait in zip(took, first_ms, strict=True):
        for name, ms in entries.items():
            durations.setdefault(name, []).append(ms)
            waited[name] = waited.get(name, 0.0) + wait
    names = list(durations)[:MOST]
    return tuple(_part(name, np.array(durations[name]), waited[name]) for name in names)


def _part(name: str, values: Floats, whole: float) -> Part:
    share = None
    if whole > 0:
        share = float(values.sum()) / whole
    return Part(name, len(values), share, tuple(quantiles(values, QUANTILES)))
