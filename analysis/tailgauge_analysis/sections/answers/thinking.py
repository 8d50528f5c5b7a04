"""Thinking: when it begins and when the text follows, and how much of the output it is.

Complete answers of the steady stage that think: those with thinking that was shown, or with thinking tokens.
"""

from __future__ import annotations

from dataclasses import dataclass, field, replace

import numpy as np

from tailgauge_analysis.run import Run
from tailgauge_analysis.sections.answers import events
from tailgauge_analysis.stats import bootstrap
from tailgauge_analysis.stats.proportions import Proportion
from tailgauge_analysis.stats.quantiles import TOO_FEW, Quantile
from tailgauge_analysis.stats.survival import Waits
from tailgauge_analysis.text.cells import quantile_cell, quantile_table, share_cell, with_interval
from tailgauge_analysis.text.formatting import plural, share, share_range
from tailgauge_analysis.text.quantile import UNPUBLISHED
from tailgauge_analysis.text.section import Card, Section

KEY = "thinking"
THINKING = "first thinking"
TEXT = "first text"


@dataclass(frozen=True, slots=True, kw_only=True)
class TokenShare:
    """The thinking tokens of the output tokens, with the 95% interval."""

    value: float
    low: float
    high: float


@dataclass(frozen=True, slots=True, kw_only=True)
class Thinking:
    """The answers that think; times in ms since sent. `tokens`: null where no usage counts them."""

    answers: Proportion
    first_thinking: tuple[Quantile, ...]
    first_text: tuple[Quantile, ...]
    tokens: TokenShare | None
    thinking_waits: Waits = field(metadata=UNPUBLISHED)
    text_waits: Waits = field(metadata=UNPUBLISHED)


def compute(run: Run) -> Thinking | None:
    """Return how many complete answers think, when thinking and text begin, and the share of thinking tokens; None where none thinks.

    An answer thinks where its thinking was shown, or where the target counts thinking tokens, which may be hidden.
    Times are ms since sent.
    """
    stage = run.without_slow_readers
    requests = stage.requests
    is_shown = requests["first_thinking_at_ns"].notna()
    is_counted = requests["thinking_tokens"].fillna(0) > 0
    is_answered = events.answered(stage)
    thinks = (is_shown | is_counted).to_numpy(np.bool_)
    is_thinking_answer = is_answered & thinks
    if not is_thinking_answer.any():
        return None
    thinking = events.waits("ttft_thinking", stage, is_thinking_answer)
    text = events.waits("ttft_text", stage, is_thinking_answer)
    with_counts = requests[
        is_thinking_answer & requests["thinking_tokens"].notna() & (requests["output_tokens"] > 0)
    ]
    tokens = None
    if len(with_counts):
        thinking_tokens = with_counts["thinking_tokens"].to_numpy(np.float64)
        output_tokens = with_counts["output_tokens"].to_numpy(np.float64)
        # A ratio of sums: long answers weigh more than short ones.
        low, high = bootstrap.ratio(thinking_tokens, output_tokens)
        tokens = TokenShare(
            value=float(thinking_tokens.sum() / output_tokens.sum()), low=low, high=high
        )
    return Thinking(
        answers=stage.share_of(requests[is_answered], thinks[is_answered]),
        first_thinking=tuple(thinking.quantiles(events.QUANTILES)),
        first_text=tuple(text.quantiles(events.QUANTILES)),
        tokens=tokens,
        thinking_waits=thinking,
        text_waits=text,
    )


def section(thinking: Thinking | None) -> Section | None:
    """Return the section; None where no answer thinks.

    Quantiles of an event that no answer has are left out; `thinking.tokens` is None where no usage counts thinking tokens.
    """
    if thinking is None:
        return None
    number = plural(thinking.answers.n, "answer")
    lines = []
    if thinking.first_thinking[0].n:
        lines.append(events.line(THINKING, thinking.first_thinking))
    if thinking.tokens is not None:
        interval = share_range(thinking.tokens.low, thinking.tokens.high)
        lines.append(
            f"in answers that think, {share(thinking.tokens.value)} of output tokens are thinking (95% CI {interval})"
        )
    rows = []
    for name, quantiles in ((THINKING, thinking.first_thinking), (TEXT, thinking.first_text)):
        if quantiles[0].n:
            rows.append((name, quantiles))
    table = quantile_table("Thinking and text, since sent", "event", rows)
    waits = [(THINKING, thinking.thinking_waits), (TEXT, thinking.text_waits)]
    figures = events.tails("thinking", "Time to the first thinking and the first text", waits)
    answer = f"{with_interval(share_cell(thinking.answers))} of {number} think"
    return Section(
        "thinking",
        "Thinking",
        f"{'; '.join([answer, *lines])}.",
        tables=(table,) if table.rows else (),
        figures=tuple(figures),
        computed=(
            "The table counts the complete answers of the steady stage that have thinking; an answer that a token limit ended (cut) counts as complete. Tokens are those that the target counts.",
        ),
        card=_card(thinking, number, tuple(lines)),
    )


def _card(thinking: Thinking, number: str, lines: tuple[str, ...]) -> Card:
    """Return the median time to the first text; without one how many answers think."""
    median = thinking.first_text[0]
    if median.mark == TOO_FEW:
        return Card(
            label="thinking",
            value=share_cell(thinking.answers),
            detail=f"of {number} think",
            lines=lines,
        )
    cell = quantile_cell(median)
    value = replace(cell, text=f"{cell.text} ms")
    return Card(label="thinking", value=value, detail="median time to the first text", lines=lines)
