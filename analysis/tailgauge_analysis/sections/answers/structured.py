"""Structured output: how many answers to a call with a schema are valid JSON, and when the first field can be used.

Calls of the steady stage with a schema whose answer the target ended itself; one that a limit cut is no valid JSON. Folders
of earlier versions do not tell what is valid.
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
from tailgauge_analysis.text.quantile import UNPUBLISHED
from tailgauge_analysis.text.section import Card, Section

KEY = "structured"
FIELD = "first field"
WHOLE = "last content"


@dataclass(frozen=True, slots=True, kw_only=True)
class Structured:
    """The answers to calls with a schema; times in ms since sent."""

    valid: Proportion
    first_field: tuple[Quantile, ...]
    field_waits: Waits = field(metadata=UNPUBLISHED)
    whole_waits: Waits = field(metadata=UNPUBLISHED)


def compute(run: Run) -> Structured | None:
    """Return what answers with a schema are; None where none is known."""
    stage = run.without_slow_readers
    answers = stage.attempts[stage.attempts["valid_json"].notna()].sort_values(
        "sent_at_ns", kind="stable"
    )
    if answers.empty:
        return None
    has_field = stage.requests["first_field_at_ns"].notna().to_numpy(np.bool_)
    first_field = events.waits("first_field", stage, events.answered(stage) & has_field)
    whole = events.waits("e2e_sent", stage, events.answered(stage) & has_field)
    return Structured(
        valid=stage.share_of(answers, answers["valid_json"].to_numpy(np.bool_)),
        first_field=tuple(first_field.quantiles(events.QUANTILES)),
        field_waits=first_field,
        whole_waits=whole,
    )


def section(structured: Structured | None) -> Section | None:
    """Return the section; None without answers to a schema.

    `structured.first_field` has quantiles of the time to the first usable field, p50 first; its `n` is 0 where no answer had one.
    The card warns where an answer is no valid JSON.
    """
    if structured is None:
        return None
    number = plural(structured.valid.n, "answer")
    share = share_cell(structured.valid)
    answer = f"{with_interval(share)} of {number} are valid JSON"
    tables = []
    lines = []
    figures = []
    if structured.first_field[0].n:
        rows = [(FIELD, structured.first_field)]
        tables.append(quantile_table("First usable field, since sent", "event", rows))
        lines.append(events.line(FIELD, structured.first_field))
        answer += f"; {lines[0]}"
        waits = [(FIELD, structured.field_waits), (WHOLE, structured.whole_waits)]
        figures = events.tails(
            "structured", "Time to the first field and to the whole answer", waits
        )
    return Section(
        "structured",
        "Structured output",
        f"{answer}.",
        tables=tuple(tables),
        figures=tuple(figures),
        computed=(
            "The figures cover answers of the steady stage to calls with a schema. Whether an answer matches its schema is not checked.",
        ),
        card=Card(
            label="structured",
            value=share,
            detail=f"of {number} are valid JSON",
            lines=tuple(lines),
            tone="warn" if structured.valid.k < structured.valid.n else "",
        ),
    )
