"""The probe of the prefix cache: why calls miss, what that costs, and the benefit of a warm prefix.

Counted calls of the steady stage; causes as in the cache section of a report. Costs are in prices of an input token: a
read 0.1, a write 1.25 (2 for an hour), output 5. A miss costs what reading the same tokens would have saved.
"""

from __future__ import annotations

from dataclasses import replace

import numpy as np
import pandas as pd

from tailgauge.experiments.checkup import judge
from tailgauge.experiments.checkup.judge import COLD, NONE, WARM, Gain, Popularity, ProbeCheck, ProbeResult
from tailgauge.experiments.reading import RunReading
from tailgauge.rows import schema
from tailgauge_analysis.sections.cache import misses
from tailgauge_analysis.sections.cache.calls import CacheSettings, calls, settings
from tailgauge_analysis.sections.cache.cost import RELATIVE
from tailgauge_analysis.sections.cache.shares import fixed_hit, sliding_hit
from tailgauge_analysis.stats.quantiles import Floats, Mask
from tailgauge_analysis.text.formatting import share

READ, WRITE, WRITE_HOUR, OUTPUT = (
    float(RELATIVE[name]) for name in ("read", "write_5m", "write_1h", "output")
)
ALLOWED = {
    misses.BELOW_MINIMUM: 0.05, misses.UNSTABLE: 0.05, misses.EXPIRED: 0.1, misses.UNEXPLAINED: 0.02,
    misses.RACE: 0.2, "per_slot": 0.2,
}  # fmt: skip
ONCE = 0.5  # of the calls that miss even with a lifetime of an hour


def cached(reading: RunReading, popularity: Popularity) -> ProbeResult:
    """Result of a run with the traffic as it is and with a cold prefix."""
    known = settings(reading.frames.run)
    found = counted_calls(reading, known, salted={COLD})
    warm = found[found["traffic"] == WARM]
    missed = warm["cause"]
    checks = [
        _unmarked(warm), of_cause(warm, misses.BELOW_MINIMUM), of_cause(warm, misses.UNSTABLE),
        of_cause(warm, misses.UNEXPLAINED), *_lifetime(warm, popularity, known),
    ]  # fmt: skip
    hit = ((missed == "") & warm["hit"]).to_numpy(np.bool_)
    first = (warm["began_ns"] / 1e6).to_numpy(np.float64)[hit]
    cold = (found.loc[found["traffic"] == COLD, "began_ns"] / 1e6).to_numpy(np.float64)
    ratio = judge.medians(cold[~np.isnan(cold)], first[~np.isnan(first)], 1.0)
    return ProbeResult(
        tuple(checks), tuple(judge.times("first content cold / warm (medians)", ratio, len(warm)))
    )


def counted_calls(reading: RunReading, known: CacheSettings, salted: set[str] | None = None) -> pd.DataFrame:
    """Counted calls of the steady stage, with the cause of each miss."""
    found = calls(reading.frames, known)
    found["cause"] = misses.causes(found, known, salted or set())
    return found[found["counted"] & (found["stage"] == schema.STEADY)].reset_index(drop=True)


def of_cause(found: pd.DataFrame, cause: str, name: str = "") -> ProbeCheck:
    """Whether more calls than allowed miss for one cause; the check is called `name`, or as the cause."""
    name = name or cause
    met = (found["cause"] == cause).to_numpy(np.bool_)
    if cause == misses.UNEXPLAINED and not (found["read"] + found["created"]).any():
        met = met & (found["cache_marks"] > 0).to_numpy(np.bool_)  # no call was marked
    where = _places(found[met]) if cause == misses.UNSTABLE else ""
    text = f"{int(met.sum())} of {len(met)} calls, {share(float(met.mean())) if len(met) else '–'}{where}"
    return judge.of_share(name, met, ALLOWED[name], text, _lost(found, met))


def _places(changed: pd.DataFrame) -> str:
    at = changed["first_difference"].dropna()
    return f"; first difference at byte {int(at.mode().iloc[0]):,}" if len(at) else ""


def cost(found: pd.DataFrame) -> Floats:
    """What each call costs, in prices of an input token."""
    spent: Floats = (
        found["uncached"] + READ * found["read"] + WRITE * found["short"] + WRITE_HOUR * found["hour"]
        + OUTPUT * found["output_tokens"].fillna(0)
    ).to_numpy(np.float64)  # fmt: skip
    return spent


def _lost(found: pd.DataFrame, met: Mask) -> Gain:
    """What the calls that miss would have saved. Of a call that wrote nothing: at most what a warm one reads."""
    if not met.any():
        return NONE
    wrote = (WRITE - READ) * found["short"] + (WRITE_HOUR - READ) * found["hour"]
    nothing = (found["created"] == 0) & (found["read"] == 0)
    lost = wrote.where(~nothing, (1 - READ) * found["uncached"]).to_numpy(np.float64) * met
    return judge.saved(lost, cost(found))


def _unmarked(warm: pd.DataFrame) -> ProbeCheck:
    """Prefixes without a mark that the target does not cache automatically."""
    bare = (warm["cache_marks"].fillna(0) == 0) & (warm["read"] == 0) & (warm["created"] == 0)
    met = bare.to_numpy(np.bool_)
    text = f"{int(met.sum())} of {len(met)} calls have no mark, and read and write nothing"
    return judge.of_share("unmarked", met, 0.5, text, _lost(warm, met))


def _lifetime(warm: pd.DataFrame, popularity: Popularity, known: CacheSettings) -> list[ProbeCheck]:
    """Whether entries live until they are used again: by the scenario's rates, because a probe is shorter than a cache
    lifetime; what expired within the probe is checked too.
    """
    measured = of_cause(warm, misses.EXPIRED)
    gone, gone_hour = (_gone(popularity, known, ttl) for ttl in (popularity.ttl, "1h"))
    marked = len(warm) and (warm["cache_marks"] > 0).all() and (warm["created"] + warm["read"]).any()
    gap_s = 1 / float(popularity.per_s.mean())
    gap = f"{gap_s:,.0f}" if gap_s >= 100 else f"{gap_s:.3g}"
    text = f"a prefix is used every {gap} s, its entry lives for {known.lives_s[popularity.ttl]:g} s"
    if not marked:
        return [judge.inconclusive("once", "no call has a mark, or nothing is cached"), measured]
    if gone <= ALLOWED[misses.EXPIRED]:
        return [ProbeCheck("once", len(warm), 1.0, text), measured]
    text = f"{text}: {share(gone)} of the calls find it expired, {share(gone_hour)} with marks for an hour (Poisson arrivals)"
    found = "once" if gone_hour > ONCE else "expired"
    by_plan = ProbeCheck(found, len(warm), 0.0, text, _rewritten(warm, gone))
    other = ProbeCheck("once", len(warm), 1.0, text) if found == "expired" else replace(measured, p_value=1.0)
    return [by_plan, other]


def _gone(popularity: Popularity, known: CacheSettings, ttl: str) -> float:
    """The share of calls that find their entry expired."""
    lived = popularity.per_s * known.lives_s[ttl]
    hits = sliding_hit(lived) if known.sliding else fixed_hit(lived)
    return 1 - float((hits * popularity.per_s).sum() / popularity.per_s.sum())


def _rewritten(warm: pd.DataFrame, gone: float) -> Gain:
    """What it costs to write these entries again instead of reading them."""
    again = ((WRITE - READ) * (warm["created"] + warm["read"])).to_numpy(np.float64)
    spent = cost(warm) + (WRITE - READ) * warm["read"].to_numpy(np.float64)
    return judge.scaled(judge.saved(again, spent), gone)
