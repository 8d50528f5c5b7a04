"""How many calls got a 429: in the steady stage, by kind of limit, and over the run.

Shares are of attempts that were sent, with exact (Clopper-Pearson) 95% intervals: on effective n for the stage, because
429s come together, on n for a bin. Bins are by the time of sending, as wide as those of the timeline.
"""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np
import pandas as pd

from tailgauge.rows import schema
from tailgauge_analysis.metrics.timeline import width
from tailgauge_analysis.sections.rate_limits.limit_kinds import ALL, refused
from tailgauge_analysis.stats.binomial import clopper_pearson
from tailgauge_analysis.stats.proportions import Proportion, proportion
from tailgauge_analysis.stats.quantiles import Floats, Ints


@dataclass(frozen=True, slots=True)
class RateLimitKind:
    """The 429s of one limit; `how` names what identified them."""

    kind: str
    attempts: int
    share: float
    low: float
    high: float
    n_eff: int
    first_at_s: float
    how: tuple[str, ...]


@dataclass(frozen=True, slots=True)
class Shares:
    """429s among the attempts of the steady stage, and how many of its requests met one or ended with one."""

    attempts: int
    refused: int
    share: float | None
    low: float | None
    high: float | None
    n_eff: int
    requests: int
    requests_refused: int
    requests_ended_refused: int
    overloaded: Proportion  # 529 or 503: refusals too, but by no limit of the client's
    by_kind: tuple[RateLimitKind, ...]


@dataclass(frozen=True, slots=True)
class Bins:
    """The whole run in bins; NaN where nothing was sent."""

    width_s: int
    at_s: Floats
    attempts: Ints
    refused: Ints
    low: Floats
    high: Floats
    by_kind: dict[str, Ints]
    by_kind_low: dict[str, Floats]
    by_kind_high: dict[str, Floats]

    @property
    def share(self) -> Floats:
        """429s of the attempts of each bin."""
        share: Floats = np.where(self.attempts > 0, self.refused / np.maximum(self.attempts, 1), np.nan)
        return share


def shares(requests: pd.DataFrame, attempts: pd.DataFrame, kinds: pd.DataFrame) -> Shares:
    """Of the steady stage; `attempts` in order of sending."""
    steady = attempts[(attempts["stage"] == schema.STEADY) & attempts["sent_at_ns"].notna()]
    is_429 = refused(steady)
    n, k = len(steady), int(is_429.sum())
    whole = proportion(is_429)
    wanted = requests[requests["stage"] == schema.STEADY]
    met = steady["request_id"][is_429].nunique()
    ended = int((wanted["ended"] == schema.RATE_LIMITED).sum())
    rows = kinds.loc[steady.index[is_429]].join(steady["sent_at_ns"])
    by_kind = []
    for kind, group in rows.groupby("kind", sort=False):
        one = proportion(steady.index.isin(group.index))
        hows = tuple(sorted({how for how in group["how"] if how}))
        first = float(group["sent_at_ns"].min()) / 1e9
        by_kind.append(
            RateLimitKind(
                str(kind), one.k, one.k / n, one.low or 0.0, one.high or 0.0, one.n_eff, first, hows
            )
        )
    by_kind.sort(key=lambda one: -one.attempts)
    full = proportion((steady["ended"] == schema.OVERLOADED).to_numpy(np.bool_))
    return Shares(
        n, k, whole.value, whole.low, whole.high, whole.n_eff, len(wanted), int(met), ended, full, tuple(by_kind)
    )  # fmt: skip


def bins(attempts: pd.DataFrame, kinds: pd.DataFrame) -> Bins | None:
    """Of the whole run, preflight excepted; None where nothing was sent."""
    sent = attempts[(attempts["stage"] != schema.PREFLIGHT) & attempts["sent_at_ns"].notna()]
    if not len(sent):
        return None
    at_s = np.maximum(0.0, sent["sent_at_ns"].to_numpy(np.float64) / 1e9)
    step = width(float(at_s.max()))
    number = (at_s // step).astype(np.int64)
    count = int(number.max()) + 1
    is_429 = refused(sent)
    n = np.bincount(number, minlength=count)
    k = np.bincount(number[is_429], minlength=count)
    of = kinds["kind"].reindex(sent.index).to_numpy(object)
    present = [kind for kind in ALL if (of == kind).any()]
    by_kind = {kind: np.bincount(number[of == kind], minlength=count) for kind in present}
    at = (np.arange(count) + 0.5).astype(np.float64) * step
    low, high = _band(k, n)
    bands = {kind: _band(counts, n) for kind, counts in by_kind.items()}
    return Bins(
        step, at, n, k, low, high, by_kind,
        {kind: ends[0] for kind, ends in bands.items()}, {kind: ends[1] for kind, ends in bands.items()},
    )  # fmt: skip


def _band(k: Ints, n: Ints) -> tuple[Floats, Floats]:
    """Exact intervals bin by bin, each pair of counts computed once; NaN where nothing was sent."""
    pairs, of = np.unique(np.column_stack((k, n)), axis=0, return_inverse=True)
    ends = np.array([clopper_pearson(int(a), int(b)) if b else (np.nan, np.nan) for a, b in pairs])
    band: Floats = ends[of.ravel()]
    return band[:, 0], band[:, 1]
