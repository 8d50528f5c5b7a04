"""How many calls were concurrent with one: when it was sent, and when it was decoded.

Counts are of all attempts of a run, whatever became of them, since each is a load on the target. The workers' clocks are
mapped to one, as precisely as they are known (clocks.py has how many calls that leaves open).
"""

from __future__ import annotations

import numpy as np
import pandas as pd

from tailgauge_analysis.metrics.answers import prompt_tokens
from tailgauge_analysis.stats.quantiles import Floats


def open_at(
    attempts: pd.DataFrame, at_ns: Floats, since: str = "sent_at_ns", until: str = "ended_at_ns"
) -> Floats:
    """Attempts sent before and not ended at each time; or between two others of their times."""
    begun = np.sort(attempts[since].dropna().to_numpy(np.float64))
    over = np.sort(attempts.loc[attempts[since].notna(), until].dropna().to_numpy(np.float64))
    return np.subtract(np.searchsorted(begun, at_ns), np.searchsorted(over, at_ns, "right"), dtype=np.float64)


def context_at(attempts: pd.DataFrame, at_ns: Floats) -> Floats:
    """Tokens of the prompts and answers, as far as they have come, that were arriving at each time; answers come evenly."""
    names = ("first_content_at_ns", "last_content_at_ns", "output_tokens")
    begun, over, output = (attempts[name].to_numpy(np.float64) for name in names)
    prompt = sum(tokens.fillna(0).to_numpy(np.float64) for tokens in prompt_tokens(attempts))
    rate = np.where(over > begun, np.nan_to_num(output) / np.maximum(over - begun, 1.0), 0.0)
    total = np.zeros(len(at_ns))
    for at, sign in ((begun, 1.0), (over, -1.0)):
        order = np.argsort(at)[: int(np.isfinite(at).sum())]
        passed, parts = np.searchsorted(at[order], at_ns, "right"), (prompt - rate * begun, rate)
        fixed, growing = (np.concatenate(([0.0], np.cumsum(of[order]))) for of in parts)
        total += sign * (fixed[passed] + growing[passed] * at_ns)
    return total
