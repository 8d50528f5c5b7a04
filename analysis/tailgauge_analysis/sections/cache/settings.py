"""What is known of the cache that a run met: lives of its entries, and where it looks for them.

Rule: the provider's documented values, but for the simulated endpoint its own, from the run's scenario.
"""

from __future__ import annotations

import math
from dataclasses import dataclass

from tailgauge_analysis.text.json_values import Json, table

LOOKBACK = 20  # blocks from a mark, the marked one included
FOREVER_S = 1e8
LIVES_S = {"5m": 300.0, "1h": 3600.0}


@dataclass(frozen=True, slots=True)
class CacheSettings:
    """`lives_s` by the mark's ttl; `unmarked_s` of entries without marks, NaN where nobody says or they live on."""

    lives_s: dict[str, float]
    unmarked_s: float
    lookback: int
    visibility_s: float  # from the beginning of the response that writes until it can be read
    sliding: bool  # a read begins the life anew


def settings(run: Json) -> CacheSettings:
    """Of a run's first target."""
    if not run["target"].get("simulated"):
        return CacheSettings(dict(LIVES_S), math.nan, LOOKBACK, 0.0, True)
    cache = table(table(run["scenario"], "simulated"), "cache")
    unmarked = _number(cache, "automatic_ttl_s", math.nan)
    return CacheSettings(
        {"5m": _number(cache, "ttl_5m_s", 300.0), "1h": _number(cache, "ttl_1h_s", 3600.0)},
        unmarked if unmarked < FOREVER_S else math.nan,
        int(_number(cache, "lookback", LOOKBACK)),
        _number(cache, "visibility_delay_s", 0.0),
        cache.get("sliding") is not False,
    )


def _number(tree: Json, key: str, otherwise: float) -> float:
    value = tree.get(key)
    return float(value) if isinstance(value, int | float) and not isinstance(value, bool) else otherwise
