"""The numbers of headroom's answer as plain values, as its report.json holds them.

Rule: unrounded, None where a number is not known; nothing is decided here.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import asdict, dataclass

from tailgauge.experiments.headroom.estimate import Bound
from tailgauge.experiments.headroom.growth import Grown, least
from tailgauge_analysis.sections.rate_limits.growth import Growth
from tailgauge_analysis.text.json_values import Json


@dataclass(frozen=True, slots=True)
class About:
    """Today's rate, the growth asked for, the shares borne as refused and wanted as good, and the highest rate tried; in requests a second."""

    today: float
    need: float
    refused: float
    good: float
    tried: float
    remarks: tuple[str, ...]


@dataclass(frozen=True, slots=True)
class Sustained:
    """Requests a second: the best value, the highest confident pass, the lowest confident fail; None where none was found."""

    value: float | None
    low: float | None
    high: float | None


def facts(
    about: About, rate: Sustained, binds: str | None, found: Sequence[Bound], growths: Sequence[Grown], *, quiet: bool
) -> Json:  # fmt: skip
    """All of them; rates in requests a second."""
    kinds = [one.kind for one in found if one.decides or quiet]
    return {
        "today_per_s": about.today, "sustained_per_s": rate.value, "low_per_s": rate.low, "high_per_s": rate.high,
        "growth": None if rate.value is None else rate.value / about.today,
        "binding": binds, "refused_at_most": about.refused, "quiet": quiet,
        "first_429": _grew(least([one.cached for one in growths if one.kind in kinds])),
        "without_cache": without_cache(found, growths),
        "limits": [
            {
                "kind": one.kind, "decides": one.decides, "sustained_per_s": asdict(one.per_s),
                "without_cache_per_s": None if one.uncached is None else asdict(one.uncached),
                "rate_per_s": None if one.limit is None else asdict(one.limit.rate),
                "burst": None if one.limit is None else asdict(one.limit.burst),
                "refused": 0 if one.limit is None else one.limit.refused,
                "first_429": _grew(growth.cached),
            }
            for one, growth in zip(found, growths, strict=True)
        ],
    }  # fmt: skip


def without_cache(found: Sequence[Bound], growths: Sequence[Grown]) -> Json | None:
    """What would be sustained if nothing were read from the cache; None where nothing was, or nothing is known."""
    known = [(one.uncached, one) for one in found if one.uncached is not None]
    if all(rate == one.per_s for rate, one in known):
        return None
    tightest, one = min(known, key=lambda pair: pair[0].high)
    return {
        "low_per_s": min(rate.low for rate, _ in known), "high_per_s": tightest.high, "binding": one.kind,
        "first_429": _grew(least([growth.uncached for growth in growths])),
    }  # fmt: skip


def _grew(one: Growth | None) -> Json | None:
    return None if one is None else {"value": one.value, "low": one.low, "high": one.high, "why": one.why}
