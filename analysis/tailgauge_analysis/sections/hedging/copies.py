"""Hedged legs: primary attempt and hedge side by side.

One row per hedged leg, in order of time. The winner is the call that was not closed and got content, or that the target
ended; a leg that neither answered (both failed, or both were closed with their request) has no winner and no loser.
"""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np
import pandas as pd

from tailgauge.rows import schema
from tailgauge_analysis.metrics.answers import LEFT, by_request
from tailgauge_analysis.stats.quantiles import Floats, Mask

KEYS = ["request_id", "leg"]
PROMPT = ("input_tokens", "cache_read_input_tokens", "cache_creation_input_tokens")
OF_COPY = [
    "attempt",
    "ended",
    "status",
    "sent_at_ns",
    "first_content_at_ns",
    "ended_at_ns",
    "chunks",
    "output_tokens",
    *PROMPT,
    "cache_creation_5m_input_tokens",
    "cache_creation_1h_input_tokens",
    "asked_model",
    "model",
    "target",
    "service_tier",
    "speed",
    "fallback",
    "iterations",
    "usage_marks",
    "error_type",
    "error_class",
]


@dataclass(frozen=True, slots=True)
class Copies:
    """Rows of the primary attempts and of the hedges, in the same order."""

    legs: pd.DataFrame  # KEYS, and the output tokens that the request asked for
    primary: pd.DataFrame
    copy: pd.DataFrame
    copy_won: Mask
    primary_won: Mask

    @property
    def decided(self) -> Mask:
        """Return which legs have a winner."""
        return self.copy_won | self.primary_won

    @property
    def delay_ms(self) -> Floats:
        """Return the time from sending the primary attempt to sending the hedge."""
        return ((self.copy["sent_at_ns"] - self.primary["sent_at_ns"]) / 1e6).to_numpy(np.float64)

    def winners(self) -> pd.DataFrame:
        """Return the attempt of each decided leg that won."""
        rows = self.copy.where(pd.Series(self.copy_won), self.primary)
        return rows[self.decided].reset_index(drop=True)

    def losers(self) -> pd.DataFrame:
        """Return the attempt of each decided leg that lost, with KEYS."""
        rows = self.primary.where(pd.Series(self.copy_won), self.copy)
        return pd.concat([self.legs, rows], axis=1)[self.decided].reset_index(drop=True)


def copies(requests: pd.DataFrame, attempts: pd.DataFrame) -> Copies:
    """Return the hedged legs of one traffic table."""
    sent = attempts[attempts["cause"] == schema.HEDGE].drop_duplicates(KEYS)
    keys = [*KEYS, "attempt"]
    firsts = attempts[attempts["cause"] != schema.HEDGE].drop_duplicates(keys).set_index(keys)
    of_attempt = sent["of_attempt"].fillna(0).astype("int64")
    places = firsts.index.get_indexer(
        pd.MultiIndex.from_arrays([sent["request_id"], sent["leg"], of_attempt])
    )
    sent = sent[places >= 0]
    places = places[places >= 0]
    primary = firsts.reset_index().iloc[places].reset_index(drop=True)
    copy = sent.reset_index(drop=True)
    limit = copy["request_id"].map(by_request(requests)["asked_output_tokens"])
    legs = copy[KEYS].assign(asked_output_tokens=limit)
    copy_won = _answered(copy) & ~_ok(primary)
    return Copies(legs, primary[OF_COPY], copy[OF_COPY], copy_won, _answered(primary) & ~copy_won)


def _ok(rows: pd.DataFrame) -> Mask:
    return rows["ended"].isin(schema.SERVED).to_numpy(np.bool_)


def _answered(rows: pd.DataFrame) -> Mask:
    with_content = rows["first_content_at_ns"].notna() & ~rows["ended"].isin(LEFT)
    return _ok(rows) | with_content.to_numpy(np.bool_)
