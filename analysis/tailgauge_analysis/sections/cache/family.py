"""All effects on latency that a report estimates: one family, so that chance is judged once for all of them (Holm)."""

from __future__ import annotations

from dataclasses import dataclass, replace

from tailgauge_analysis.run import Run
from tailgauge_analysis.sections import slopes
from tailgauge_analysis.sections.cache import calls
from tailgauge_analysis.sections.cache.effect import CacheEffect, cache_effect
from tailgauge_analysis.sections.slopes import Regression, significant
from tailgauge_analysis.verdict.timestamps import calls_between


@dataclass(frozen=True, slots=True, kw_only=True)
class Effects:
    """The regressions of TTFT and TPOT, and by traffic table what the cache does to TTFT."""

    regressions: list[Regression]
    of_cache: dict[str, CacheEffect]


def compute(run: Run) -> Effects:
    """Estimate all slopes; one that does not survive among them has no value."""
    unsure_calls = calls_between(run.frames, run.clocks)
    regressions = slopes.fitted(run.frames.attempts, run.of_target, unsure_calls)
    tables = calls.by_traffic(run.result(calls.compute))
    effects = {name: cache_effect(rows[rows["counted"]]) for name, rows in tables.items()}
    of_regressions = [regression.slopes for regression in regressions]
    of_effects = [effect.slopes for effect in effects.values()]
    family = significant([*of_regressions, *of_effects])
    n = len(regressions)
    pairs = zip(regressions, family[:n], strict=True)
    of_cache = zip(effects.items(), family[n:], strict=True)
    return Effects(
        regressions=[replace(regression, slopes=judged) for regression, judged in pairs],
        of_cache={name: replace(effect, slopes=judged) for (name, effect), judged in of_cache},
    )
