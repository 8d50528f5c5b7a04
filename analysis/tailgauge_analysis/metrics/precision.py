"""How well a run knows the latencies that its objectives want to know to a precision.

A quantile is known to h where half of its interval is h of its value. One whose interval cannot be trusted, for too few
requests or slow episodes, is not known.
"""

from __future__ import annotations

import math

from tailgauge_analysis.metrics.steady import Steady
from tailgauge_analysis.stats.quantiles import CONFIDENCE, FEW_EPISODES, MISSED, Quantile, confidence, normal
from tailgauge_analysis.text.formatting import plural
from tailgauge_analysis.text.json_values import Json


def half_width(q: Quantile) -> float | None:
    """Half of the interval as a share of the value; None where either is not known."""
    if q.value is None or q.low is None or q.high is None or not q.value > 0 or not math.isfinite(q.high):
        return None
    return (q.high - q.low) / 2 / q.value


def is_known(q: Quantile, asked: float) -> bool:
    """Whether a quantile is known to that share of its value."""
    half = half_width(q)
    return half is not None and half <= asked and not q.mark


def sentence(q: Quantile, asked: float, stage: Steady, *, is_over: bool) -> str:
    """`known to 4.6% after 190 s`; of what is not known, how long it would take."""
    half, seconds = half_width(q), f"{stage.to_s:,.0f} s"
    if half is not None and is_known(q, asked):
        return f"known to {_percent(half)} after {seconds}"
    verb, when = ("cannot be", "in") if is_over else ("is not", "after")
    text = f"{verb} known to {_percent(asked)} {when} {seconds}: "
    if half is None or half <= asked:
        if math.inf in {q.value, q.high}:
            return f"{text}it lies among requests without an answer"
        return text + (FEW_EPISODES if q.mark == FEW_EPISODES else "too few requests")
    at_the_end = normal(1 - MISSED / 2) / normal(confidence())  # half of the 5% is left
    more = (half / asked * at_the_end) ** 2
    about = float(f"{stage.from_s + stage.seconds * max(1.0, more):.2g}")
    return f"{text}half width {_percent(half)}, would need about {about:,.0f} s"


def _percent(value: float) -> str:
    return f"{100 * value:.3g}%"


def level(run: Json) -> float:
    """Confidence of the intervals of the run's percentiles and shares, 95% over all looks at it."""
    found: float | None = run["precision"]["confidence"]
    return found or CONFIDENCE


def looked(run: Json) -> str:
    """What looks at the run mean for its intervals; empty where none was planned."""
    if level(run) == CONFIDENCE:
        return ""
    looks = run["precision"]["looks"]
    return f"each interval of a percentile or share is at {100 * level(run):.4g}%: it covers 95% over {plural(looks, 'look')} and the end"
