"""The calls of a run that involve a cache: one row per call with its tokens and what the rows of other calls add.

Calls are in order of sending, all workers pooled, as precisely as their clocks allow. Calls without usage and those of the
preflight are among them: they may have written what others read. `counted` are the others, and every statistic is of these.
"""

from __future__ import annotations

import math
from collections.abc import Callable
from dataclasses import dataclass, field

import numpy as np
import pandas as pd

from tailgauge import vendors
from tailgauge.rows import schema
from tailgauge.scenario.prices import cached_from
from tailgauge_analysis.reading.frames import Frames
from tailgauge_analysis.run import Run
from tailgauge_analysis.sections.slopes import open_at
from tailgauge_analysis.text import json_values
from tailgauge_analysis.text.json_values import Json, table

READ = "cache_read_input_tokens"
CREATED = "cache_creation_input_tokens"
UNCACHED = "input_tokens"
HOUR = "cache_creation_1h_input_tokens"
SHORT = "cache_creation_5m_input_tokens"
SCOPE = ["target", "params_hash", "prefix_hash"]

# Documented by providers.
LOOKBACK = 20  # blocks from a mark, the marked one included
EVERYWHERE = 1_000_000  # blocks, of targets that look at all of them
FOREVER_S = 1e8


def _documented_lives_s() -> dict[str, float]:
    """Return the life of an entry by its mark's ttl."""
    lives_s = {}
    for vendor in ("anthropic", "openai"):
        for mark, life_s in vendors.TABLE["cache"][vendor]["lives_s"].items():
            lives_s[mark] = float(life_s)
    return lives_s


LIVES_S = _documented_lives_s()


@dataclass(frozen=True, slots=True, kw_only=True)
class CacheSettings:
    """The cache of a target. `lives_s` by the mark's ttl; `unmarked_s` of entries without marks, NaN if unknown or forever."""

    lookback: int
    lives_s: dict[str, float] = field(default_factory=LIVES_S.copy)
    unmarked_s: float = math.nan
    visibility_s: float = 0.0  # from the beginning of the response that writes until it can be read
    sliding: bool = True  # a read renews the life
    least_tokens: Callable[[str], float | None] = (
        cached_from  # of a prefix that is cached; None if unknown
    )


def settings(run: Json) -> CacheSettings:
    """Return the cache settings of a run's first target: documented by the provider, or those of the simulated endpoint.

    Of the simulated endpoint a key of [simulated.cache] goes before the documented value. `unmarked_s` is NaN where entries without
    a mark live forever.
    """
    documented = vendors.TABLE["cache"].get(run["target"].get("protocol"), {"lookback": LOOKBACK})
    lookback = documented.get("lookback", EVERYWHERE)
    if not run["target"].get("simulated"):
        return CacheSettings(lookback=lookback)
    cache = table(table(run["scenario"], "simulated"), "cache")

    def number(key: str, otherwise: float) -> float:
        """Return a number of [simulated.cache], the other value where it has none."""
        value = json_values.number(cache.get(key))
        return otherwise if value is None else value

    unmarked_s = number("automatic_ttl_s", math.nan)
    if unmarked_s >= FOREVER_S:
        unmarked_s = math.nan
    # Protocols without marks look at all blocks: there the key of the endpoint has no effect.
    if lookback == LOOKBACK:
        lookback = int(number("lookback", LOOKBACK))
    lives_s = {}
    for mark, life_s in LIVES_S.items():
        lives_s[mark] = number(f"ttl_{mark}_s", life_s)
    return CacheSettings(
        lives_s=lives_s,
        unmarked_s=unmarked_s,
        lookback=lookback,
        visibility_s=number("visibility_delay_s", 0.0),
        sliding=cache.get("sliding") is not False,
        least_tokens=lambda model: number("minimum_tokens", cached_from(model) or 1024),
    )


def compute(run: Run) -> pd.DataFrame:
    """Return the calls of a run."""
    return calls(run.frames, settings(run.record), run.clocks.between_ns)


def by_traffic(rows: pd.DataFrame) -> dict[str, pd.DataFrame]:
    """Return the calls of each traffic table that involves a cache, in the order of their names."""
    tables = {}
    for name, of_table in rows.groupby("traffic"):
        counted = of_table[of_table["counted"]]
        if (counted["prefix"].notna() | counted["hit"] | (counted["created"] > 0)).any():
            tables[str(name)] = of_table
    return tables


def calls(frames: Frames, settings: CacheSettings, between_ns: int = 0) -> pd.DataFrame:
    """Return the calls that involve a cache, in order of sending: those with usage, or with a prefix that can be cached.

    Calls of the preflight are among them. Rows have the columns of the attempts, and
        read, created, uncached, total   tokens of the prompt: read from the cache, written to it, neither; their sum
        hour, short    created tokens by the life of their entry: 1 h, 5 m
        hit, known     something was read; the usage is known
        counted        known, and not of the preflight: statistics are of these
        in_flight      attempts that were open when it was sent
        entry          number of the text, target and parameters; -1 without a text
        gap_ns         since the entry was last requested
        idle_ns        since an answer over the entry last began
        racing         another call that writes the entry had not begun to answer
        unordered      of these: the clocks of two workers, known within `between_ns`, leave open whether it had
        life_ns        of the entry, by its mark; NaN if unknown
        began_ns       first content since sent
    """
    attempts = frames.attempts[frames.attempts["sent_at_ns"].notna()]
    rows = attempts[attempts[READ].notna() | attempts["prefix_hash"].notna()]
    rows = rows.sort_values("sent_at_ns", kind="stable").reset_index(drop=True)
    tokens = rows[[READ, CREATED, UNCACHED, HOUR]].fillna(0).to_numpy(np.int64)
    rows["read"], rows["created"], rows["uncached"], rows["hour"] = tokens.T
    rows["short"] = (
        rows[SHORT].fillna((rows["created"] - rows["hour"]).clip(lower=0)).to_numpy(np.int64)
    )
    rows["total"] = rows["read"] + rows["created"] + rows["uncached"]
    rows["hit"] = rows["read"] > 0
    rows["known"] = rows[READ].notna()
    rows["counted"] = rows["known"] & (rows["stage"] != schema.PREFLIGHT)
    rows["in_flight"] = open_at(attempts, rows["sent_at_ns"].to_numpy(np.float64))
    marked_life_s = rows["cache_ttl"].map(settings.lives_s).astype(np.float64)
    is_unmarked = (rows["cache_marks"] == 0) | rows["cache_marks"].isna()
    rows["life_ns"] = marked_life_s.where(~is_unmarked, settings.unmarked_s) * 1e9
    rows["began_ns"] = rows["first_content_at_ns"] - rows["sent_at_ns"]
    return _with_other_calls(rows, between_ns)


def _with_other_calls(rows: pd.DataFrame, between_ns: int) -> pd.DataFrame:
    """Add the columns that take the rows of other calls: entry, gap_ns, idle_ns, racing, unordered.

    `rows` are in order of sending, all workers pooled; they are changed. Another worker may have sent the call before, so a
    row alone does not contain this. `between_ns`: the error between the clocks of two workers; 0: exact.
    """
    scope = rows[SCOPE].astype("object").where(rows[SCOPE].notna(), "")
    rows["entry"] = scope.groupby(SCOPE, sort=False).ngroup().where(rows["prefix_hash"].notna(), -1)
    entry = rows["entry"]
    is_named = entry >= 0
    rows["gap_ns"] = (
        rows[rows["known"] & is_named].groupby("entry", sort=False)["sent_at_ns"].diff()
    )
    rows["idle_ns"] = (rows["sent_at_ns"] - _last_answer_began_ns(rows)).where(is_named)
    # An automatic cache reports no writes: a call without marks that read nothing may have written.
    may_write = (rows["created"] > 0) | ((rows["cache_marks"] == 0) & ~rows["hit"])
    writing_began_ns = rows["first_content_at_ns"].where(may_write)
    # Over the calls of an entry that were sent before: when the last of their answers began.
    latest_until_here_ns = writing_began_ns.fillna(-np.inf).groupby(entry, sort=False).cummax()
    latest_before_ns = (
        latest_until_here_ns.groupby(entry, sort=False).shift().replace(-np.inf, np.nan)
    )
    rows["racing"] = (rows["sent_at_ns"] < latest_before_ns) & is_named
    rows["unordered"] = False
    # A writer of another worker is a race too where the error of the clocks is larger than the difference.
    if between_ns:
        writer_here = (
            rows["worker"].astype(np.float64).where(writing_began_ns == latest_until_here_ns)
        )
        writer = writer_here.groupby(entry, sort=False).ffill().groupby(entry, sort=False).shift()
        may_race = (writer != rows["worker"]) & (rows["sent_at_ns"] < latest_before_ns + between_ns)
        rows["unordered"] = may_race & is_named & ~rows["racing"]
        rows["racing"] |= rows["unordered"]
    return rows


def _last_answer_began_ns(rows: pd.DataFrame) -> pd.Series[float]:
    """Return when the last answer before each call, over the same entry, began."""
    began_ns = rows["first_content_at_ns"].dropna().astype(np.float64).sort_values()
    begun = pd.DataFrame(
        {"at": began_ns, "begun": began_ns, "entry": rows["entry"]}, began_ns.index
    )
    sent = rows[["sent_at_ns", "entry"]].astype({"sent_at_ns": "float64"})
    return pd.merge_asof(sent, begun, left_on="sent_at_ns", right_on="at", by="entry")["begun"]
