"""The calls of a run that have to do with a cache, and what their rows say together.

Rule: one row a call, in order of sending, all workers pooled, as well as their clocks tell it. Calls whose usage is not known and those of the preflight
are among them: they may have written what others read. `counted` are the others, and every statistic is of these.
Tokens are whole numbers, times nanoseconds of the run clock.
"""

from __future__ import annotations

import numpy as np
import pandas as pd

from tailgauge.rows import schema
from tailgauge_analysis.load.frames import Frames
from tailgauge_analysis.sections.cache.settings import CacheSettings
from tailgauge_analysis.stats.quantiles import Floats

READ, CREATED, UNCACHED = "cache_read_input_tokens", "cache_creation_input_tokens", "input_tokens"
HOUR, SHORT = "cache_creation_1h_input_tokens", "cache_creation_5m_input_tokens"
SCOPE = ["target", "params_hash", "prefix_hash"]


def calls(frames: Frames, settings: CacheSettings, between_ns: int = 0) -> pd.DataFrame:
    """Columns of the attempts, and: read, created, hour, short, uncached, total, hit, known, counted, in_flight, entry (number
    of the text, target and parameters; -1 without), gap_ns (since the entry was last asked for), idle_ns (since an
    answer over it last began), racing (another call that writes it is open), unordered (of these, because the clocks of two
    workers, known within `between_ns`, leave open whether it still was), life_ns, began_ns (first content since sent).
    """
    attempts = frames.attempts[frames.attempts["sent_at_ns"].notna()]
    told = attempts[attempts[READ].notna() | attempts["prefix_hash"].notna()]
    told = told.sort_values("sent_at_ns", kind="stable").reset_index(drop=True)
    tokens = told[[READ, CREATED, UNCACHED, HOUR]].fillna(0).to_numpy(np.int64)
    told["read"], told["created"], told["uncached"], told["hour"] = tokens.T
    short = told[SHORT].fillna((told["created"] - told["hour"]).clip(lower=0))
    told["short"] = short.to_numpy(np.int64)
    told["total"] = told["read"] + told["created"] + told["uncached"]
    told["hit"] = told["read"] > 0
    told["known"] = told[READ].notna()
    told["counted"] = told["known"] & (told["stage"] != schema.PREFLIGHT)
    told["in_flight"] = _in_flight(attempts, told["sent_at_ns"].to_numpy(np.float64))
    told["life_ns"] = _lives(told, settings)
    told["began_ns"] = told["first_content_at_ns"] - told["sent_at_ns"]
    return _together(told, between_ns)


def _in_flight(attempts: pd.DataFrame, at_ns: Floats) -> Floats:
    """Attempts open at each time, of all workers."""
    sent = np.sort(attempts["sent_at_ns"].to_numpy(np.float64))
    ended = np.sort(attempts["ended_at_ns"].dropna().to_numpy(np.float64))
    counted: Floats = (np.searchsorted(sent, at_ns) - np.searchsorted(ended, at_ns, "right")).astype(
        np.float64
    )
    return counted


def _lives(told: pd.DataFrame, settings: CacheSettings) -> pd.Series[float]:
    marked = told["cache_ttl"].map(settings.lives_s).astype(np.float64)
    unmarked = (told["cache_marks"] == 0) | told["cache_marks"].isna()
    return marked.where(~unmarked, settings.unmarked_s) * 1e9


def _together(told: pd.DataFrame, between_ns: int) -> pd.DataFrame:
    """What a row alone does not say, because another worker may have sent the call before."""
    keys = told[SCOPE].astype("object").where(told[SCOPE].notna(), "")
    told["entry"] = keys.groupby(SCOPE, sort=False).ngroup().where(told["prefix_hash"].notna(), -1)
    known = told[told["known"] & (told["entry"] >= 0)]
    told["gap_ns"] = known.groupby("entry", sort=False)["sent_at_ns"].diff()
    began = told["first_content_at_ns"]
    told["idle_ns"] = (told["sent_at_ns"] - _last_begun(told)).where(told["entry"] >= 0)
    writes = (told["created"] > 0) | ((told["cache_marks"] == 0) & ~told["hit"])
    latest = _before(began.where(writes), told["entry"])
    told["racing"] = (told["sent_at_ns"] < latest) & (told["entry"] >= 0)
    told["unordered"] = False
    if between_ns:
        apart = _of(began.where(writes), told["entry"], told["worker"]) != told["worker"]
        open_perhaps = apart & (told["sent_at_ns"] < latest + between_ns) & (told["entry"] >= 0)
        told["unordered"] = open_perhaps & ~told["racing"]
        told["racing"] |= told["unordered"]
    return told


def _last_begun(told: pd.DataFrame) -> pd.Series[float]:
    """When the last answer before each call, over the same entry, began."""
    begun = told.loc[told["first_content_at_ns"].notna(), ["first_content_at_ns", "entry"]]
    begun = (
        begun.sort_values("first_content_at_ns")
        .rename(columns={"first_content_at_ns": "at"})
        .astype({"at": "float64"})
    )
    asked = told[["sent_at_ns", "entry"]].astype({"sent_at_ns": "float64"})
    begun["begun"] = begun["at"]
    return pd.merge_asof(asked, begun, left_on="sent_at_ns", right_on="at", by="entry")["begun"]


def _before(times: pd.Series[float], entry: pd.Series[int]) -> pd.Series[float]:
    """Latest of the times of earlier calls of the same entry, NaN without one."""
    latest = times.fillna(-np.inf).groupby(entry, sort=False).cummax()
    found: pd.Series[float] = latest.groupby(entry, sort=False).shift()
    return found.replace(-np.inf, np.nan)


def _of(times: pd.Series[float], entry: pd.Series[int], worker: pd.Series[int]) -> pd.Series[float]:
    """The worker of that latest time."""
    latest = times.fillna(-np.inf).groupby(entry, sort=False).cummax()
    held = worker.astype(np.float64).where(times == latest).groupby(entry, sort=False).ffill()
    found: pd.Series[float] = held.groupby(entry, sort=False).shift()
    return found
