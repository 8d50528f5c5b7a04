"""A quantile as JSON and as text: each number has a state: `value`, or why there is no number."""

from __future__ import annotations

import math
from dataclasses import fields, is_dataclass
from fractions import Fraction
from typing import Annotated, Any, Literal

import numpy as np
from pydantic import Field
from typing_extensions import TypedDict  # pydantic reads no other before Python 3.12

from tailgauge_analysis.stats.dependence import NEIGHBOURS, WAVES
from tailgauge_analysis.stats.proportions import Proportion
from tailgauge_analysis.stats.quantiles import REQUEST, TOO_FEW, Quantile
from tailgauge_analysis.text.formatting import ms, percentile
from tailgauge_analysis.text.json_values import Json

LIMITS = {
    NEIGHBOURS: "requests that follow each other are alike",
    WAVES: "requests of the same period of the run are alike",
    REQUEST: "values of one request are alike",
}
VALUE = "value"
NONE = "none"
TOO_FEW_TEXT = "too few"
ABSENT = "–"
FAILED = "failed"  # among requests without an answer
NOT_OBSERVABLE = "not observable"  # nobody waited that long
UNPUBLISHED = {"exclude": True}  # metadata of a field that report.json and its schema leave out


class Percentile(TypedDict):
    """One percentile with its 95% interval, in the unit of its row. For rates in tokens/s, percentiles count from the fast end:
    99% of the answers are at least as fast as the p99.
    """

    p: float
    label: str
    n: Annotated[int, Field(ge=0)]
    value: float | None
    """null if there is none; `value_is` gives the reason"""
    low: float | None
    high: float | None
    reliable: bool
    """it has no mark"""
    mark: Literal[
        "", "few slow periods", "unreliable", "n/a", "measurement error", "hidden tokens possible"
    ]
    """why not: slower values in fewer than 5 periods of the run (few slow periods); n_eff below 50 or fewer than 30 groups
    (unreliable); too few samples; moved too far
    by the client; or tokens per chunk that may be tokens which were never streamed
    """
    episodes: Annotated[int, Field(ge=0)]
    """in how many periods of the run the slower values came"""
    beyond: bool
    """it lies among requests without an answer: slower than any success"""
    n_eff: Annotated[int, Field(ge=0)]
    limited_by: str
    """what makes n_eff less than n: session, user, prompt, prefix, target, worker or a tag, whose requests are alike; request,
    whose values are; neighbours, or waves; empty where n_eff is about n
    """
    value_is: str
    """value, n/a (too few samples), failed (beyond), or > 1,000 ms (not observable)"""
    low_is: str
    high_is: str


def quantile(q: Quantile) -> Json:
    """Return a quantile: each number with its state: `value`, or why there is no number."""
    end = FAILED
    absence = FAILED
    if q.seen_to is not None:
        end = NOT_OBSERVABLE
        absence = f"> {ms(q.seen_to)} ms ({end})"
    numbers = (q.value, q.low, q.high)
    if q.mark == TOO_FEW:
        numbers = (None, None, None)
    value, value_is = _bound(numbers[0], absence, TOO_FEW)
    low, low_is = _bound(numbers[1], end, NONE)
    high, high_is = _bound(numbers[2], end, NONE)
    return {
        "p": q.p,
        "label": percentile(q.p),
        "n": q.n,
        "n_eff": q.n_eff,
        "limited_by": q.limited_by,
        "value": value,
        "low": low,
        "high": high,
        "reliable": not q.mark,
        "mark": q.mark,
        "episodes": q.episodes,
        "beyond": value_is not in {VALUE, TOO_FEW},
        "value_is": value_is,
        "low_is": low_is,
        "high_is": high_is,
    }


def _bound(value: float | None, absence: str, absent: str) -> tuple[float | None, str]:
    if value is None:
        return None, absent
    if not math.isfinite(value):
        return None, absence
    return round(value, 6), VALUE


def limit_text(q: Quantile | Proportion) -> str:
    """`effective n 310 of 2,400, because requests of one session are alike`; empty where it is about n."""
    if not q.limited_by:
        return ""
    reason = LIMITS.get(q.limited_by, f"requests of one {q.limited_by} are alike")
    return f"effective n {q.n_eff:,} of {q.n:,}, because {reason}"


def value_text(q: Json) -> str:
    """`212`, or among which requests the quantile falls; `too few` values, or `–` without any."""
    if q["value_is"] == VALUE:
        return ms(q["value"])
    if q["value_is"] == TOO_FEW:
        return TOO_FEW_TEXT if q["n"] else ABSENT
    return str(q["value_is"])


def bound(q: Json, end: str) -> str:
    """Return one end of an interval; `?` if the sample has no such bound."""
    word = q[f"{end}_is"]
    if word == VALUE:
        return ms(q[end])
    if word == NONE:
        return "?"
    return str(word)


def interval_text(interval: str) -> str:
    """Return the interval of a cell for a sentence: `207 – 218`, `from 539, no upper end`."""
    low, _, high = interval.partition(" – ")
    if high == "?":
        return f"from {low}, no upper end"
    if low == "?":
        return f"up to {high}, no lower end"
    if high == FAILED:
        return f"from {low}, upper end among failed requests"
    if high == NOT_OBSERVABLE:
        return f"from {low}, upper end {NOT_OBSERVABLE}"
    return interval


def _published(record: Any) -> Json:
    """Return the fields of a dataclass that report.json has."""
    values = {}
    for field in fields(record):
        if not field.metadata.get("exclude"):
            values[field.name] = getattr(record, field.name)
    return values


def plain_values(tree: Any) -> Any:
    """Return results as tables, lists, text and finite numbers."""
    if isinstance(tree, Quantile):
        return quantile(tree)
    if is_dataclass(tree) and not isinstance(tree, type):
        tree = _published(tree)
    if isinstance(tree, dict):
        return {str(key): plain_values(value) for key, value in tree.items()}
    if isinstance(tree, np.ndarray):
        tree = tree.tolist()
    if isinstance(tree, list | tuple):
        return [plain_values(value) for value in tree]
    if isinstance(tree, Fraction):
        return float(tree)
    return None if isinstance(tree, float) and not math.isfinite(tree) else tree
