"""What a request asks of each limit, as it was seen, so that the same traffic can be thought of at another rate.

Rule: first tries only; what the calls of one request ask for is one sum. A limit is asked for 1 a call, for input tokens
without those read from the cache, for output tokens, or for all tokens. Of a refused call nothing is known: it is given
the median of its traffic. `uncached` is the input if there were no cache.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass

import numpy as np
import pandas as pd

from tailgauge.rows import schema
from tailgauge_analysis.load.rate_limit_headers import INPUT, OUTPUT, REQUESTS, TOKENS
from tailgauge_analysis.stats.quantiles import Floats

WRITTEN, READ = ["input_tokens", "cache_creation_input_tokens"], "cache_read_input_tokens"


@dataclass(frozen=True, slots=True)
class Calls:
    """What each request asks of each limit, and of the one on input if there were no cache."""

    charge: Mapping[str, Floats]
    uncached: Floats

    @property
    def reads(self) -> float:
        """Share of the prompts' tokens that were read from the cache."""
        whole = float(self.uncached.sum())
        return 1 - float(self.charge[INPUT].sum()) / whole if whole > 0 else 0.0

    def of(self, kind: str, *, cached: bool) -> Floats:
        """What each request asks of a limit."""
        return self.charge[kind] if cached or kind != INPUT else self.uncached


def calls(attempts: pd.DataFrame) -> Calls:
    """Of the attempts of a stage."""
    first = attempts[(attempts["cause"] != schema.RETRY) & attempts["sent_at_ns"].notna()]
    fresh = _filled(first, first[WRITTEN].sum(axis=1))
    read = _filled(first, first[READ].fillna(0))
    output = _filled(first, first["output_tokens"])
    charge = {
        REQUESTS: pd.Series(1.0, first.index), INPUT: fresh, OUTPUT: output, TOKENS: fresh + read + output,
    }  # fmt: skip
    of = first["request_id"]
    return Calls({kind: _summed(each, of) for kind, each in charge.items()}, _summed(fresh + read, of))


def together(several: Sequence[Calls]) -> Calls:
    """Requests of several levels."""
    return Calls(
        {kind: np.concatenate([one.charge[kind] for one in several]) for kind in several[0].charge},
        np.concatenate([one.uncached for one in several]),
    )


def _summed(each: pd.Series[float], of: pd.Series[int]) -> Floats:
    return np.asarray(each.groupby(of).sum(), dtype=np.float64)


def _filled(rows: pd.DataFrame, values: pd.Series[float]) -> pd.Series[float]:
    known = values.where(rows["input_tokens"].notna())
    of_traffic = known.groupby(rows["traffic"], observed=True).transform("median")
    return known.fillna(of_traffic).fillna(known.median()).fillna(0.0).astype(np.float64)
