"""Turns of conversations: TTFT by turn, failures slowest, since the turn was due.

Requests of the steady stage in traffic whose sessions have several turns. A conversation grows with each turn. Requests of a
Locust user are no conversation: each of its tasks makes its own.
"""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass

import numpy as np

from tailgauge.rows import schema
from tailgauge_analysis.metrics import latency
from tailgauge_analysis.metrics.metrics import BY_NAME
from tailgauge_analysis.metrics.steady import is_of_tasks
from tailgauge_analysis.run import Run
from tailgauge_analysis.sections.answers import events
from tailgauge_analysis.stats.proportions import Ratio, quantile_ratio
from tailgauge_analysis.stats.quantiles import TOO_FEW, Quantile
from tailgauge_analysis.text.cells import quantile_table, ratio_text, values_text
from tailgauge_analysis.text.formatting import count
from tailgauge_analysis.text.picture import Panel, Picture, estimate_curve
from tailgauge_analysis.text.section import Card, Section, Table, Value

KEY = "turns"
MOST = 20  # turns of their own; later ones are not listed


@dataclass(frozen=True, slots=True, kw_only=True)
class Turn:
    """The requests of one turn, from 1; TTFT in ms."""

    turn: int
    requests: int
    prompt_tokens: float | None
    """median of the uncached prompt tokens that the target counts"""
    ttft: tuple[Quantile, ...]


@dataclass(frozen=True, slots=True, kw_only=True)
class Turns:
    """TTFT by turn. `later_over_first`: median of all later turns over that of the first."""

    turns: tuple[Turn, ...]
    first: tuple[Quantile, ...]
    later: tuple[Quantile, ...]
    later_over_first: Ratio


def compute(run: Run) -> Turns | None:
    """Return TTFT by turn of a conversation; None where no session has two turns, or where the tasks of Locust make the requests.

    The quantiles count failures as slowest. Turns beyond MOST have no row, but count as later turns. TTFT is since the turn
    was due; in a closed loop it is since sent. Slow readers are left out.
    """
    if is_of_tasks(run.record["scenario"]):
        return None
    stage = run.without_slow_readers
    requests = stage.requests
    # The number of a request is made of its session and its turn, from 0.
    turn_numbers = (requests["request_id"] % schema.TURNS).to_numpy(np.int64)
    with_turns = set(requests.loc[turn_numbers > 0, "traffic"])
    mask = requests["traffic"].isin(with_turns).to_numpy(np.bool_)
    clock = "sent" if run.record["arrival"] == "closed" else "sched"
    waits = latency.offered_waits(BY_NAME[f"ttft_{clock}"], stage)
    # NaN: not part of the offered view, such as a request without an answer of its own.
    mask = mask & ~np.isnan(waits.ms)
    if not (mask & (turn_numbers > 0)).any():
        return None
    tokens = requests["input_tokens"].to_numpy(np.float64)
    turns = []
    for number in np.unique(turn_numbers[mask])[:MOST]:
        of_turn = mask & (turn_numbers == number)
        prompt_sizes = tokens[of_turn & ~np.isnan(tokens)]
        prompt_tokens = None
        if len(prompt_sizes):
            prompt_tokens = float(np.median(prompt_sizes))
        turns.append(
            Turn(
                turn=int(number) + 1,
                requests=int(of_turn.sum()),
                prompt_tokens=prompt_tokens,
                ttft=tuple(waits.only(of_turn).quantiles(events.QUANTILES)),
            )
        )
    first_turn = tuple(waits.only(mask & (turn_numbers == 0)).quantiles(events.QUANTILES))
    later = tuple(waits.only(mask & (turn_numbers > 0)).quantiles(events.QUANTILES))
    ratio = Ratio(0.5, None, None, None)
    if first_turn:
        ratio = quantile_ratio(later[0], first_turn[0])
    return Turns(turns=tuple(turns), first=first_turn, later=later, later_over_first=ratio)


def section(turns: Turns | None) -> Section | None:
    """Return the section; None where no session has two turns."""
    if turns is None:
        return None
    ratio = turns.later_over_first
    is_known = ratio.value is not None
    answer = "Too few requests to compare later turns with the first."
    if is_known:
        answer = f"The median TTFT of later turns is {ratio_text(ratio)} the median TTFT of the first turn."
    card = None
    if is_known:
        card = _card(turns)
    return Section(
        "turns",
        "Turns",
        answer,
        tables=(_table(turns),),
        figures=tuple(_by_turn(turns)),
        computed=(
            "The figures cover all requests of the steady stage. Times count since the turn was due; failures count as slowest.",
        ),
        card=card,
    )


def _card(turns: Turns) -> Card:
    ratio = turns.later_over_first
    interval = ""
    if ratio.low is not None and ratio.high is not None:
        interval = f"{ratio.low:.3g} – {ratio.high:.3g}"
    return Card(
        label="turns",
        value=Value(f"{ratio.value or 0.0:.3g}x", interval),
        detail="median TTFT of later turns, relative to the first turn",
        lines=(f"first turn {values_text(turns.first)}", f"later turns {values_text(turns.later)}"),
    )


def _table(turns: Turns) -> Table:
    rows = [(f"turn {turn.turn}", turn.ttft) for turn in turns.turns]
    table = quantile_table("TTFT by turn", "turn", rows)
    cells = []
    for turn, row in zip(turns.turns, table.rows, strict=True):
        cells.append((*row, count(turn.prompt_tokens)))
    return Table(table.title, (*table.header, "uncached prompt tokens, median"), tuple(cells))


def _by_turn(turns: Turns) -> Iterator[Picture]:
    curves = []
    for place, name in enumerate(("p50", "p95")):
        rows = []
        for turn in turns.turns:
            quantile = turn.ttft[place]
            value = _finite(quantile.value)
            if value is not None and quantile.mark != TOO_FEW:
                rows.append((float(turn.turn), value, quantile.low, _finite(quantile.high)))
        if len(rows) > 1:
            curves.append(estimate_curve(name, rows))
    if curves:
        yield Picture(
            name="turns",
            title="TTFT by turn",
            caption="Bars are 95% intervals. Turns with too few requests are left out.",
            panels=(Panel("TTFT, ms", curves),),
            x="turn",
            height=300,
        )


def _finite(value: float | None) -> float | None:
    return value if value is not None and np.isfinite(value) else None
