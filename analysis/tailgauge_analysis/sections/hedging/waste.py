"""What the losers took: output tokens as an interval, input tokens, cost, and what the server log has of it.

A stream that is closed early never reports its usage, and some targets bill the whole answer. So:

    low     content chunks received: each holds a token at least
    high    the whole answer, which the loser would have been: the winner's output tokens, else `max_tokens`; of a loser that
            the target refused or that failed, what was received

Copies have the same prompt: where a loser did not report its input tokens, the winner's count. The cost is low without what
was not reported, high with it. By the server log, where there is one: tokens generated = sent + generated after the disconnect.
"""

from __future__ import annotations

from dataclasses import dataclass
from fractions import Fraction

import numpy as np
import pandas as pd

from tailgauge.rows import schema
from tailgauge_analysis.reading.frames import CALL
from tailgauge_analysis.sections.cache.cost import USAGE, PriceOf, no_price, spent
from tailgauge_analysis.sections.hedging.copies import PROMPT
from tailgauge_analysis.stats.quantiles import Floats

_GENERATES = (
    schema.CANCELLED,
    schema.TIMEOUT,
    schema.STREAM_ERROR,
    schema.TRUNCATED,
    schema.ABORTED,
    *schema.SERVED,
)


@dataclass(frozen=True, slots=True, kw_only=True)
class LosersInLog:
    """Output tokens of the losers in the server log of the simulated target."""

    made_tokens: int
    after_cancel_tokens: int
    cancel_effectiveness: float | None
    """of the tokens that were left when they were closed: the share that was not generated"""


@dataclass(frozen=True, slots=True, kw_only=True)
class Waste:
    """Tokens and cost of the losers of decided legs."""

    losers: int
    closed: int
    output_low: int
    output_high: int
    by_max_tokens: int
    input_tokens: int
    input_reported: int
    input_unknown: int
    server_log: LosersInLog | None


def waste(losers: pd.DataFrame, winners: pd.DataFrame, server_log: pd.DataFrame) -> Waste:
    """Return the tokens of the losers."""
    low, high = bounds(losers, winners)
    tokens = prompts(losers).fillna(prompts(winners))
    return Waste(
        losers=len(losers),
        closed=int((losers["ended"] == schema.CANCELLED).sum()),
        output_low=int(low.sum()),
        output_high=int(high.sum()),
        by_max_tokens=int(((high > low) & winners["output_tokens"].isna()).sum()),
        input_tokens=int(tokens.sum()),
        input_reported=int(losers["input_tokens"].notna().sum()),
        input_unknown=int(tokens.isna().sum()),
        server_log=_in_log(losers, high, server_log),
    )


def prompts(rows: pd.DataFrame) -> pd.Series[float]:
    """Return the tokens of each prompt; NaN where they are not reported."""
    return rows[list(PROMPT)].sum(axis=1).where(rows["input_tokens"].notna())


def bounds(losers: pd.DataFrame, winners: pd.DataFrame) -> tuple[Floats, Floats]:
    """Return the fewest and the most output tokens of each loser."""
    low = losers["chunks"].to_numpy(np.float64)
    # Some losers were complete before they were closed.
    completed = losers["output_tokens"].where(losers["ended"].isin(schema.SERVED))
    whole = completed.fillna(winners["output_tokens"]).fillna(losers["asked_output_tokens"])
    generates = losers["ended"].isin(_GENERATES).to_numpy(np.bool_)
    return low, np.where(generates, np.maximum(low, whole.to_numpy(np.float64)), low)


def cost(
    losers: pd.DataFrame, winners: pd.DataFrame, price: PriceOf, reason: str
) -> tuple[tuple[Fraction, Fraction] | None, str]:
    """Return the least and the most that all losers cost, exactly; None, and why, where a model has no price."""
    low, high = bounds(losers, winners)
    served = losers["ended"].isin(_GENERATES)
    reported = losers["input_tokens"].notna()
    names = list(USAGE[:-1])
    prompts = losers[names].where(reported, winners[names], axis=0)
    ends = []
    for output, with_prompt in ((low, reported & served), (high, served)):
        rows = prompts.where(with_prompt, axis=0).assign(
            output_tokens=output,
            model=winners["model"],
            asked_model=winners["asked_model"],
        )
        total, unpriced = spent(rows, price)
        if total is None:
            return None, no_price(unpriced, reason)
        ends.append(total)
    return (ends[0], ends[1]), ""


def _in_log(losers: pd.DataFrame, high: Floats, server_log: pd.DataFrame) -> LosersInLog | None:
    """Return what the server log of the simulated target has of the losers; None where it has none of them.

    `high`: the most output tokens of each loser, in the same order. The share that was not generated is None where nothing
    was left to generate when they were closed.
    """
    log_rows = server_log.dropna(subset=[*CALL]).drop_duplicates(CALL)
    log_keys = pd.MultiIndex.from_frame(log_rows[[*CALL]].astype("int64"))
    loser_keys = pd.MultiIndex.from_frame(losers[[*CALL]].astype("int64"))
    place = log_keys.get_indexer(loser_keys)
    is_logged = place >= 0
    if not is_logged.any():
        return None
    rows = log_rows.iloc[place[is_logged]]
    sent_tokens = rows["output_tokens"].to_numpy(np.float64)
    tokens_after_cancel = rows["tokens_after_cancel"].fillna(0).to_numpy(np.float64)
    # What the target could still have generated, of losers whose disconnect it noticed.
    tokens_left = np.maximum(high[is_logged] - sent_tokens, 0)[
        rows["cancelled_at_ns"].notna().to_numpy(np.bool_)
    ].sum()
    cancel_effectiveness = None
    if tokens_left > 0:
        cancel_effectiveness = float(1 - tokens_after_cancel.sum() / tokens_left)
    return LosersInLog(
        made_tokens=int((sent_tokens + tokens_after_cancel).sum()),
        after_cancel_tokens=int(tokens_after_cancel.sum()),
        cancel_effectiveness=cancel_effectiveness,
    )
