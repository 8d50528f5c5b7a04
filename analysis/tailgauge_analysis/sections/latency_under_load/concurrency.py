"""How many calls were concurrent with one: when it was sent, and while it was decoded.

Counts are of all attempts of a run, whatever became of them, since each is a load on the target. The workers' clocks are
mapped to one, as precisely as they are known (clocks.py has how many calls that leaves open).
"""

from __future__ import annotations

import numpy as np
import pandas as pd

from tailgauge_analysis.stats.quantiles import Floats


def open_at(attempts: pd.DataFrame, at_ns: Floats) -> Floats:
    """Attempts sent before and not ended at each time."""
    sent = np.sort(attempts["sent_at_ns"].dropna().to_numpy(np.float64))
    ended = np.sort(attempts.loc[attempts["sent_at_ns"].notna(), "ended_at_ns"].dropna().to_numpy(np.float64))
    counted: Floats = (np.searchsorted(sent, at_ns) - np.searchsorted(ended, at_ns, "right")).astype(
        np.float64
    )
    return counted


def decoding(attempts: pd.DataFrame, from_ns: Floats, to_ns: Floats) -> Floats:
    """Mean number of answers that were arriving within each span; NaN where the span has no length."""
    arriving = attempts[attempts["first_content_at_ns"].notna()]
    begun = np.sort(arriving["first_content_at_ns"].to_numpy(np.float64))
    over = np.sort(arriving["last_content_at_ns"].to_numpy(np.float64))
    span = to_ns - from_ns
    area = _area(begun, to_ns) - _area(over, to_ns) - _area(begun, from_ns) + _area(over, from_ns)
    mean: Floats = area / np.where(span > 0, span, np.nan)
    return mean


def _area(events: Floats, at_ns: Floats) -> Floats:
    """Integral up to each time of the number of events that have happened; events ascending."""
    if not len(events):
        return np.zeros(len(at_ns))
    origin = events[0]  # small numbers keep their digits
    sums = np.concatenate(([0.0], np.cumsum(events - origin)))
    count = np.searchsorted(events, at_ns, "right")
    area: Floats = count * (at_ns - origin) - sums[count]
    return area
