"""Was it the growth of the traffic that was refused?

Rule: certain where a 429 carries the provider's code for it. Likely where 429s came although every bucket in their headers
lacked less than after calls that were admitted, while calls grew: more in the window up to then than in the one before.
Without headers nothing is said.
"""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np
import pandas as pd

from tailgauge_analysis.load.rate_limit_headers import REMAINING, column
from tailgauge_analysis.sections.rate_limits.limit_kinds import RAMP, SPEND, refused, with_room

WINDOW_S = 60.0
FEWEST = 5  # unexplained 429s, and more than a twentieth of them, before growth is suspected
CERTAIN, LIKELY, NO = "certain", "likely", "not seen"


@dataclass(frozen=True, slots=True)
class Acceleration:
    """The finding; None in `found` with a reason where nothing can be told."""

    found: str | None
    coded: int  # 429s with the code
    with_headers: int  # other 429s whose headers tell of a bucket
    with_room: int  # of these, with room in every bucket
    growing: int  # of these, while the traffic grew
    first_at_s: float | None
    why: str | None


def acceleration(attempts: pd.DataFrame, kinds: pd.DataFrame) -> Acceleration:
    """Over the whole run, attempts in order of sending."""
    coded = kinds.index[kinds["kind"] == RAMP]
    room = with_room(attempts)
    said = refused(attempts) & ~attempts.index.isin(kinds.index[kinds["kind"].isin((RAMP, SPEND))])
    at_s = attempts["sent_at_ns"].to_numpy(np.float64) / 1e9
    free = np.zeros(len(attempts), np.bool_)
    told = 0
    if room is not None:
        names = [column(kind, REMAINING) for kind in room.columns]
        headed = attempts[names].notna().all(axis=1).to_numpy(np.bool_)
        free = said & headed & room.all(axis=1).to_numpy(np.bool_)
        told = int((said & headed).sum())
    sent = np.sort(at_s[~refused(attempts) & ~np.isnan(at_s)])
    moments = at_s[free]
    window = min(WINDOW_S, float(sent[-1] - sent[0]) / 4) if len(sent) > 1 else WINDOW_S
    before, middle, here = (np.searchsorted(sent, moments - back * window) for back in (2, 1, 0))
    growing = int((here - middle > middle - before).sum())
    firsts = np.concatenate((at_s[attempts.index.isin(coded)], moments))
    firsts = firsts[~np.isnan(firsts)]
    first = float(firsts.min()) if len(firsts) else None
    if len(coded):
        return Acceleration(CERTAIN, len(coded), told, len(moments), growing, first, None)
    if not said.any():
        return Acceleration(NO, 0, 0, 0, 0, None, None)
    if not told:
        why = "no 429 has headers of its buckets"
        return Acceleration(None, 0, 0, 0, 0, None, why)
    if growing >= max(FEWEST, told / 20):
        return Acceleration(LIKELY, 0, told, len(moments), growing, first, None)
    return Acceleration(NO, 0, told, len(moments), growing, None, None)
