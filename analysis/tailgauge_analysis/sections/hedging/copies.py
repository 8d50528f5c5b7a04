"""Copies: the legs of which a second copy was sent, first call and copy side by side.

Rule: one row a hedged leg, in order of time. The winner is the copy that was not closed and brought content, or ended
ok; a leg that neither answered (both failed, or both were closed with their request) is undecided and has no loser. Times
of content are since the copy's own first byte left.
"""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np
import numpy.typing as npt
import pandas as pd

from tailgauge.rows import schema
from tailgauge_analysis.stats.quantiles import Floats

Mask = npt.NDArray[np.bool_]
KEYS = ["request_id", "leg"]
ANSWERED = (schema.OK, schema.EMPTY)
CLOSED = (schema.CANCELLED, schema.CENSORED)
PROMPT = ("input_tokens", "cache_read_input_tokens", "cache_creation_input_tokens")
OF_COPY = [
    "attempt", "ended", "status", "sent_at_ns", "first_content_at_ns", "ended_at_ns", "chunks", "output_tokens",
    *PROMPT, "cache_creation_5m_input_tokens", "cache_creation_1h_input_tokens", "asked_model", "model", "target",
]  # fmt: skip


@dataclass(frozen=True, slots=True)
class Copies:
    """Rows of the first calls and of the copies, in the same order."""

    legs: pd.DataFrame  # KEYS, and what the schedule asked of the request
    first: pd.DataFrame
    copy: pd.DataFrame
    copy_won: Mask
    first_won: Mask

    @property
    def decided(self) -> Mask:
        """Which legs have a winner."""
        either: Mask = self.copy_won | self.first_won
        return either

    @property
    def delay_ms(self) -> Floats:
        """From sending the first to sending the copy."""
        return ((self.copy["sent_at_ns"] - self.first["sent_at_ns"]) / 1e6).to_numpy(np.float64)

    def winners(self) -> pd.DataFrame:
        """The copy that answered, of the decided legs."""
        return self._chosen(self.copy_won)

    def losers(self) -> pd.DataFrame:
        """The other one, with KEYS."""
        rows = self._chosen(~self.copy_won)
        return pd.concat([self.legs[self.decided].reset_index(drop=True), rows], axis=1)

    def _chosen(self, is_copy: Mask) -> pd.DataFrame:
        copy, first = self.copy[self.decided], self.first[self.decided]
        mask = is_copy[self.decided]
        return copy.where(pd.Series(mask, copy.index), first).reset_index(drop=True)


def copies(requests: pd.DataFrame, attempts: pd.DataFrame) -> Copies:
    """Of the attempts of one traffic table."""
    sent = attempts[attempts["cause"] == schema.HEDGE].drop_duplicates(KEYS)
    firsts = attempts[attempts["cause"] != schema.HEDGE].set_index([*KEYS, "attempt"])
    beside = sent["of_attempt"].fillna(0).astype("int64")
    places = firsts.index.get_indexer(pd.MultiIndex.from_arrays([sent["request_id"], sent["leg"], beside]))
    sent, places = sent[places >= 0], places[places >= 0]
    first = firsts.reset_index().iloc[places].reset_index(drop=True)
    copy = sent.reset_index(drop=True)
    asked = requests.drop_duplicates("request_id").set_index("request_id")["asked_output_tokens"]
    legs = copy[KEYS].assign(asked_output_tokens=copy["request_id"].map(asked))
    copy_won = _answered(copy) & ~_ok(first)
    return Copies(legs, first[OF_COPY], copy[OF_COPY], copy_won, _answered(first) & ~copy_won)


def _ok(rows: pd.DataFrame) -> Mask:
    return rows["ended"].isin(ANSWERED).to_numpy(np.bool_)


def _answered(rows: pd.DataFrame) -> Mask:
    with_content = rows["first_content_at_ns"].notna() & ~rows["ended"].isin(CLOSED)
    return _ok(rows) | with_content.to_numpy(np.bool_)
