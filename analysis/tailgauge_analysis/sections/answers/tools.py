"""Tools: how many answers call one, and when its input begins and can be used.

Complete answers of the steady stage in traffic that offers tools, or that called one. The first and last call of an answer, and the
target's own tools, are in phases.py.
"""

from __future__ import annotations

from dataclasses import dataclass, field

import numpy as np

from tailgauge_analysis.run import Run
from tailgauge_analysis.sections.answers import events
from tailgauge_analysis.stats.proportions import Proportion
from tailgauge_analysis.stats.quantiles import Quantile
from tailgauge_analysis.stats.survival import Waits
from tailgauge_analysis.text.cells import quantile_table, share_cell, with_interval
from tailgauge_analysis.text.formatting import plural
from tailgauge_analysis.text.json_values import tables
from tailgauge_analysis.text.quantile import UNPUBLISHED
from tailgauge_analysis.text.section import Card, Section

KEY = "tools"
FIRST = "first argument"
READY = "first call complete"


@dataclass(frozen=True, slots=True, kw_only=True)
class Tools:
    """The answers that call a tool, of those to whose call tools were offered; times in ms since sent."""

    calls: Proportion
    first_argument: tuple[Quantile, ...]
    ready: tuple[Quantile, ...]
    first_waits: Waits = field(metadata=UNPUBLISHED)
    ready_waits: Waits = field(metadata=UNPUBLISHED)


def compute(run: Run) -> Tools | None:
    """Return the calls of tools; None where no answer could call one."""
    stage = run.without_slow_readers
    requests = stage.requests
    calls = requests["first_tool_json_at_ns"].notna() | requests["tool_ready_at_ns"].notna()
    traffic = tables(run.record["scenario"], "traffic")
    offered = {name for name, table in traffic.items() if table.get("tools")}
    with_tools = requests["traffic"].isin(offered | set(requests.loc[calls, "traffic"]))
    mask = events.answered(stage) & with_tools.to_numpy(np.bool_)
    if not mask.any():
        return None
    first_call = events.waits("ttft_tool", stage, mask)
    ready = events.waits("tool_ready", stage, mask)
    return Tools(
        calls=stage.share_of(requests[mask], calls[mask].to_numpy(np.bool_)),
        first_argument=tuple(first_call.quantiles(events.QUANTILES)),
        ready=tuple(ready.quantiles(events.QUANTILES)),
        first_waits=first_call,
        ready_waits=ready,
    )


def section(tools: Tools | None) -> Section | None:
    """Return the section; None where no answer could call a tool.

    `tools.calls` is the share of the answers that call one. Without a call there is no table; an event that no answer has is
    no line.
    """
    if tools is None:
        return None
    number = plural(tools.calls.n, "answer")
    share = share_cell(tools.calls)
    rows = []
    if tools.calls.k:
        rows = [(FIRST, tools.first_argument), (READY, tools.ready)]
    times = quantile_table("Time to a tool call, since sent", "event", rows)
    answer = f"{with_interval(share)} of {number} call a tool"
    lines = []
    for name, quantiles in rows:
        if quantiles[0].n:
            lines.append(events.line(name, quantiles))
    if lines:
        answer += f": {lines[0]}"
    waits = [(FIRST, tools.first_waits), (READY, tools.ready_waits)]
    figures = events.tails("tools", "Time to a tool call", waits)
    return Section(
        "tools",
        "Tool calls",
        f"{answer}.",
        tables=(times,) if times.rows else (),
        figures=tuple(figures),
        computed=(
            "The figures cover complete answers of the steady stage in traffic that offers tools.",
        ),
        card=Card(
            label="tools", value=share, detail=f"of {number} call a tool", lines=tuple(lines)
        ),
    )
