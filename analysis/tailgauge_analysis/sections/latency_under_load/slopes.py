"""The cost of prompt tokens in TTFT, and of context and concurrent answers in TPOT.

Answers are of the steady stage without slow readers, streamed for TPOT; quantile regression at p50 and p95, intervals by
the stationary bootstrap, at most MOST answers evenly over the stage.

    TTFT = a + u uncached / 1,000 + c cached / 1,000 + f calls in flight when sent + d new connection
    TPOT = a + k context / 1,000 + s answers that arrive at the same time

TTFT is since sent; context is the prompt and half the answer, its mean while the answer grows. A column without variation,
or one that follows from the others, is left out and named.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field

import numpy as np
import pandas as pd

from tailgauge.rows import schema
from tailgauge_analysis.sections.latency_under_load.concurrency import decoding, open_at
from tailgauge_analysis.stats.quantile_regression import fit, independent, intervals
from tailgauge_analysis.stats.quantiles import BEYOND, UNRELIABLE, Floats
from tailgauge_analysis.text.quantile import FOR_FIGURES

PS = (0.5, 0.95)
MOST, REPS, POINTS = 2000, 200, 400
EACH = 20  # answers that must lie apart from as many others in a column
ALIKE = {"tokens": 50.0, "calls": 1.0, "new": 0.0}  # a column whose values lie closer has no variation
OF_MEAN = 0.05
UNCACHED, CACHED, IN_FLIGHT, CONNECTION = "uncached_tokens", "cached_tokens", "in_flight", "new_connection"
CONTEXT, NEIGHBOURS = "context_tokens", "arriving"
UNITS = {  # title, name, scale
    UNCACHED: ("ms per 1,000 uncached prompt tokens", "uncached prompt tokens", "tokens"),
    CACHED: ("ms per 1,000 cached prompt tokens", "cached prompt tokens", "tokens"),
    IN_FLIGHT: ("ms per call in flight when sent", "calls in flight", "calls"),
    CONNECTION: ("ms for a new connection", "new connection", "new"),
    CONTEXT: ("ms per output token and 1,000 tokens of context", "context", "tokens"),
    NEIGHBOURS: ("ms per output token and concurrent answer", "concurrent answers", "calls"),
}
TITLES = {"ttft_sent": "TTFT since sent", "tpot": "TPOT"}


@dataclass(frozen=True, slots=True)
class Slope:
    """A coefficient at one quantile, in ms, with its 95% interval."""

    name: str
    p: float
    value: float
    low: float
    high: float
    mark: str


@dataclass(frozen=True, slots=True)
class Regression:
    """One regression. `left_out`: columns without variation. `why`: the reason without slopes. Points for the figure: x, y in ms."""

    of: str
    n: int
    slopes: tuple[Slope, ...]
    left_out: tuple[str, ...]
    why: str
    against: str
    x: Floats = field(metadata=FOR_FIGURES)
    y: Floats = field(metadata=FOR_FIGURES)


def fitted(run: pd.DataFrame, stage: pd.DataFrame, unsure_calls: float = 0.0) -> list[Regression]:
    """Regressions of TTFT and TPOT; `run` are all attempts, `stage` those of the steady stage. `unsure_calls`: within how many the
    calls in flight over all workers are known.
    """
    kept = (stage["ended"] == schema.OK) & stage["first_content_at_ns"].notna() & stage["sent_at_ns"].notna()
    good = stage[kept & stage["reader_paused_ns"].isna() & stage["input_tokens"].notna()]
    good = good.sort_values("sent_at_ns", kind="stable")
    streamed = good[good["streamed"].eq(True) & good["pace_missing"].isna() & (good["pace_tokens"] >= 2)]
    return [_ttft(run, good, unsure_calls), _tpot(run, streamed)]


def _prompt(of: pd.DataFrame) -> tuple[Floats, Floats]:
    """Uncached and cached tokens of each prompt."""
    names = ["input_tokens", "cache_creation_input_tokens", "cache_read_input_tokens"]
    rest, created, read = of[names].fillna(0).to_numpy(np.float64).T
    return rest + created, read


def _ttft(run: pd.DataFrame, good: pd.DataFrame, unsure_calls: float) -> Regression:
    of = evenly(good)
    sent = of["sent_at_ns"].to_numpy(np.float64)
    uncached, cached = _prompt(of)
    y = (of["first_content_at_ns"].to_numpy(np.float64) - sent) / 1e6
    columns = {
        UNCACHED: uncached, CACHED: cached, IN_FLIGHT: open_at(run, sent),
        CONNECTION: of["connection_is_new"].to_numpy(np.float64),
    }  # fmt: skip
    return regress("ttft_sent", columns, y, UNCACHED, {IN_FLIGHT: 2 * unsure_calls})


def _tpot(run: pd.DataFrame, streamed: pd.DataFrame) -> Regression:
    of = evenly(streamed)
    names = ("pace_from_ns", "last_content_at_ns", "pace_tokens", "output_tokens")
    first, last, tokens, output = (of[name].to_numpy(np.float64) for name in names)
    columns = {CONTEXT: sum(_prompt(of)) + output - tokens / 2, NEIGHBOURS: decoding(run, first, last)}
    y = (last - first) / (tokens - 1) / 1e6
    real = ~np.isnan(columns[NEIGHBOURS])
    return regress("tpot", {name: values[real] for name, values in columns.items()}, y[real], NEIGHBOURS)


def evenly(rows: pd.DataFrame) -> pd.DataFrame:
    """At most MOST of them, evenly over the stage."""
    return rows if len(rows) <= MOST else rows.iloc[np.linspace(0, len(rows) - 1, MOST).astype(int)]


def regress(
    of: str, columns: Mapping[str, Floats], y: Floats, against: str, unsure: Mapping[str, float] | None = None
) -> Regression:
    """The slopes of y on those columns that vary enough, and more than by what they are `unsure`."""
    blur = unsure or {}
    varied = {n: values for n, values in columns.items() if len(y) and _varies(n, values, blur.get(n, 0.0))}
    scaled = {
        name: values / 1000 if UNITS[name][2] == "tokens" else values for name, values in varied.items()
    }
    kept = independent({"": np.ones(len(y)), **scaled})
    left_out = tuple(name for name in columns if name not in kept)
    few = np.unique(np.linspace(0, max(0, len(y) - 1), min(POINTS, len(y))).astype(int))
    points = columns[against][few], y[few]
    if not varied:
        return Regression(of, len(y), (), left_out, _why(len(y)), against, *points)
    x = np.stack(list(kept.values()), axis=1)
    slopes = [slope for p in PS for slope in _slopes(x, y, p, list(kept), columns)]
    return Regression(of, len(y), tuple(slopes), left_out, "", against, *points)


def _why(n: int) -> str:
    return f"{n} answers with usage, {2 * EACH} needed" if n < 2 * EACH else "no variation in this run"


def _varies(name: str, values: Floats, unsure: float) -> bool:
    """Whether EACH answers lie apart from EACH others by more than what counts as alike."""
    if len(values) < 2 * EACH:
        return False
    low, high = np.partition(values, (EACH - 1, len(values) - EACH))[[EACH - 1, len(values) - EACH]]
    return bool(high - low > max(unsure, ALIKE[UNITS[name][2]], OF_MEAN * float(np.abs(values).mean())))


def _smaller(values: Floats) -> int:
    """How many lie on the less crowded side of the mean."""
    above = int((values > values.mean()).sum())
    return min(above, len(values) - above)


def _slopes(x: Floats, y: Floats, p: float, names: list[str], columns: Mapping[str, Floats]) -> list[Slope]:
    values, ends = fit(x, y, p), intervals(x, y, p, REPS)
    return [
        Slope(
            name, p, float(value), float(low), float(high),
            UNRELIABLE if _smaller(columns[name]) * (1 - p) < BEYOND else "",
        )
        for name, value, (low, high) in zip(names, values, ends, strict=True)
        if name
    ]  # fmt: skip
