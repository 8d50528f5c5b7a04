"""The prefix cache: why calls miss, what that costs, and what a warm prefix is worth.

Rule: counted calls of the steady stage; causes as in the cache report. Costs are in prices of an input token: a read 0.1,
a write 1.25 (2 for an hour), output 5. What a miss costs is what reading the same tokens would have saved.
"""

from __future__ import annotations

from dataclasses import dataclass, replace

import numpy as np
import pandas as pd

from tailgauge.experiments.checkup.check import NONE, Check, Gain, medians, of_share, saved, untold
from tailgauge.experiments.checkup.probe_result import COLD, WARM, Seen, times
from tailgauge.experiments.reading import Reading
from tailgauge.rows import schema
from tailgauge_analysis.sections.cache import misses
from tailgauge_analysis.sections.cache.calls import CacheSettings, calls, settings
from tailgauge_analysis.sections.cache.cost import RELATIVE
from tailgauge_analysis.sections.cache.shares import fixed_hit, sliding_hit
from tailgauge_analysis.stats.quantiles import Floats
from tailgauge_analysis.text.formatting import share

READ, WRITE, WRITE_HOUR, OUTPUT = (
    float(RELATIVE[name]) for name in ("read", "write_5m", "write_1h", "output")
)
BORNE = {
    misses.BELOW_MINIMUM: 0.05, misses.UNSTABLE: 0.05, misses.EXPIRED: 0.1, misses.UNEXPLAINED: 0.02,
    misses.RACE: 0.2, "per_slot": 0.2,
}  # fmt: skip
ONCE = 0.5  # of the calls, that find nothing even after an hour


@dataclass(frozen=True, slots=True)
class Popular:
    """How often each prefix is asked for, and for how long the mark asks: by the scenario, not by a run."""

    per_s: Floats
    ttl: str


def cached(reading: Reading, popular: Popular) -> Seen:
    """The checks of a run with the traffic as it is, and the same with nothing to read."""
    known = settings(reading.frames.run)
    told = told_calls(reading, known, salted={COLD})
    warm = told[told["traffic"] == WARM]
    missed = warm["cause"]
    checks = [
        _unmarked(warm), of_cause(warm, misses.BELOW_MINIMUM), of_cause(warm, misses.UNSTABLE),
        of_cause(warm, misses.UNEXPLAINED), *_lives(warm, popular, known),
    ]  # fmt: skip
    hit = ((missed == "") & warm["hit"]).to_numpy(np.bool_)
    first = (warm["began_ns"] / 1e6).to_numpy(np.float64)[hit]
    cold = (told.loc[told["traffic"] == COLD, "began_ns"] / 1e6).to_numpy(np.float64)
    found = medians(cold[~np.isnan(cold)], first[~np.isnan(first)], 1.0)
    return Seen(tuple(checks), tuple(times("first content cold / warm (medians)", found, len(warm))))


def told_calls(reading: Reading, known: CacheSettings, salted: set[str] | None = None) -> pd.DataFrame:
    """Counted calls of the steady stage, with the cause of each miss."""
    told = calls(reading.frames, known)
    told["cause"] = misses.causes(told, known, salted or set())
    return told[told["counted"] & (told["stage"] == schema.STEADY)].reset_index(drop=True)


def of_cause(told: pd.DataFrame, cause: str, name: str = "") -> Check:
    """Whether more calls miss for one cause than what is borne; the check is called `name`, or as the cause."""
    name = name or cause
    met = (told["cause"] == cause).to_numpy(np.bool_)
    if cause == misses.UNEXPLAINED and not (told["read"] + told["created"]).any():
        met = met & (told["cache_marks"] > 0).to_numpy(np.bool_)  # nothing was ever asked to be kept
    where = _places(told[met]) if cause == misses.UNSTABLE else ""
    said = f"{int(met.sum())} of {len(met)} calls, {share(float(met.mean())) if len(met) else '–'}{where}"
    return of_share(name, met, BORNE[name], said, _lost(told, met))


def _places(changed: pd.DataFrame) -> str:
    at = changed["first_difference"].dropna()
    return f"; first different at byte {int(at.mode().iloc[0]):,}" if len(at) else ""


def cost(told: pd.DataFrame) -> Floats:
    """What each call costs, in prices of an input token."""
    spent: Floats = (
        told["uncached"] + READ * told["read"] + WRITE * told["short"] + WRITE_HOUR * told["hour"]
        + OUTPUT * told["output_tokens"].fillna(0)
    ).to_numpy(np.float64)  # fmt: skip
    return spent


def _lost(told: pd.DataFrame, met: misses.Mask) -> Gain:
    """What the calls that miss would have saved. Of a call that wrote nothing, all that a warm one reads, at most."""
    if not met.any():
        return NONE
    wrote = (WRITE - READ) * told["short"] + (WRITE_HOUR - READ) * told["hour"]
    nothing = (told["created"] == 0) & (told["read"] == 0)
    lost = wrote.where(~nothing, (1 - READ) * told["uncached"]).to_numpy(np.float64) * met
    return saved(lost, cost(told))


def _unmarked(warm: pd.DataFrame) -> Check:
    """Prefixes that no mark asks to keep, and that the target does not keep by itself."""
    bare = (warm["cache_marks"].fillna(0) == 0) & (warm["read"] == 0) & (warm["created"] == 0)
    met = bare.to_numpy(np.bool_)
    said = f"{int(met.sum())} of {len(met)} calls have no mark, and read and write nothing"
    return of_share("unmarked", met, 0.5, said, _lost(warm, met))


def _lives(warm: pd.DataFrame, popular: Popular, known: CacheSettings) -> list[Check]:
    """Whether entries live until they are asked for again: by the rates of the traffic, because a probe is shorter than
    a life; what expired within the probe counts besides. Rates are the scenario's own, so nothing is left to chance.
    """
    seen = of_cause(warm, misses.EXPIRED)
    gone, gone_hour = (_gone(popular, known, ttl) for ttl in (popular.ttl, "1h"))
    marked = len(warm) and (warm["cache_marks"] > 0).all() and (warm["created"] + warm["read"]).any()
    gap_s = 1 / float(popular.per_s.mean())
    gap = f"{gap_s:,.0f}" if gap_s >= 100 else f"{gap_s:.3g}"
    said = f"a prefix is asked for every {gap} s, its entry lives for {known.lives_s[popular.ttl]:g} s"
    if not marked:
        return [untold("once", "no mark asks for a life, or nothing is kept"), seen]
    if gone <= BORNE[misses.EXPIRED]:
        return [Check("once", len(warm), 1.0, said), seen]
    said = f"{said}: {share(gone)} of the calls find it expired, with marks for an hour {share(gone_hour)} (Poisson arrivals)"
    found = "once" if gone_hour > ONCE else "expired"
    by_plan = Check(found, len(warm), 0.0, said, _rewritten(warm, gone))
    other = Check("once", len(warm), 1.0, said) if found == "expired" else replace(seen, p_value=1.0)
    return [by_plan, other]


def _gone(popular: Popular, known: CacheSettings, ttl: str) -> float:
    """The share of calls that find their entry expired."""
    lived = popular.per_s * known.lives_s[ttl]
    hits = sliding_hit(lived) if known.sliding else fixed_hit(lived)
    return 1 - float((hits * popular.per_s).sum() / popular.per_s.sum())


def _rewritten(warm: pd.DataFrame, gone: float) -> Gain:
    """What it costs to write these entries again instead of reading them."""
    again = ((WRITE - READ) * (warm["created"] + warm["read"])).to_numpy(np.float64)
    spent = cost(warm) + (WRITE - READ) * warm["read"].to_numpy(np.float64)
    part = saved(again, spent)
    return Gain(gone * part.value, gone * part.low, gone * part.high)
