"""What the copies did at one load: how many, how often they won, what they cost, and whether closing the loser helped.

Rule: as in the report of any run that hedges (tailgauge_analysis.sections.hedging), of the whole steady stage, wash-outs
included; fewer numbers.
"""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np
import pandas as pd

from tailgauge.rows import schema
from tailgauge_analysis.load.frames import Frames
from tailgauge_analysis.metrics.steady import Steady
from tailgauge_analysis.sections.cache.cost import tariff
from tailgauge_analysis.sections.hedging import waste
from tailgauge_analysis.sections.hedging.copies import KEYS, Copies, copies, slowness
from tailgauge_analysis.stats.proportions import proportion
from tailgauge_analysis.text.json_values import Json


@dataclass(frozen=True, slots=True)
class Copied:
    """None where it cannot be told. `cost`: of the losers, for one request with hedging, least and most; `why` it is not
    known. `cancelled`: of what was left to generate, the share that a close spared. `correlation`: of slow calls and
    their copies, with its lower end. `refused`: share of the calls, off and on.
    """

    hedged: float | None = None
    won: float | None = None
    cost: tuple[float, float] | None = None
    unit: str = ""
    why: str = ""
    cancelled: float | None = None
    correlation: tuple[float | None, float | None] = (None, None)
    refused: tuple[float | None, float | None] = (None, None)


def copied(frames: Frames, steady: Steady, off: str, on: str) -> Copied:
    """Of the arm that hedges, beside the one that does not."""
    rows = steady.attempts.sort_values("sent_at_ns", kind="stable")
    refused = _refused(rows[rows["traffic"] == off]), _refused(rows[rows["traffic"] == on])
    stage = steady.only((steady.requests["traffic"] == on).to_numpy(np.bool_), gaps=False)
    rows = rows[rows["traffic"] == on]
    found = copies(stage.requests, rows)
    firsts = rows[rows["cause"] != schema.HEDGE].drop_duplicates(KEYS)
    if not len(found.copy):
        return Copied(hedged=0.0 if len(firsts) else None, refused=refused)
    log, slow = waste.waste(found, frames.server_log).server_log, slowness(found, firsts, None)
    cost, unit, why = _cost(found, frames.run, len(stage.requests))
    return Copied(
        hedged=len(found.copy) / len(firsts), won=proportion(found.copy_won).value, cost=cost, unit=unit, why=why,
        cancelled=log.cancel_effectiveness if log else None,
        correlation=(slow.correlation, slow.correlation_low), refused=refused,
    )  # fmt: skip


def _refused(rows: pd.DataFrame) -> float | None:
    """Share of the calls that got a 429, a 529 or a 503."""
    return proportion(rows["ended"].isin((schema.RATE_LIMITED, schema.OVERLOADED)).to_numpy(np.bool_)).value


def _cost(found: Copies, run: Json, requests: int) -> tuple[tuple[float, float] | None, str, str]:
    """Of the losers, a request; its unit; or why there is none."""
    prices = tariff(run)
    ends, why = waste.cost(found, prices.price, prices.why)
    if ends is None:
        return None, "", why
    return (float(ends[0] / requests), float(ends[1] / requests)), prices.unit, ""
