"""How precisely a run knows the latencies of objectives that ask for a precision, and at which confidence its intervals are.

A quantile is known to h where half of its interval is h of its value. One whose interval cannot be trusted, for too few
requests or slow episodes, is not known.
"""

from __future__ import annotations

import math

from tailgauge_analysis.metrics.steady import Steady
from tailgauge_analysis.stats.quantiles import (
    CONFIDENCE,
    FEW_EPISODES,
    MISSED,
    Quantile,
    confidence,
    normal,
)
from tailgauge_analysis.text.formatting import plural
from tailgauge_analysis.text.json_values import Json


def half_width(estimate: Quantile) -> float | None:
    """Half of the interval as a share of the value; None where either is not known."""
    if estimate.value is None or estimate.low is None or estimate.high is None:
        return None
    if not estimate.value > 0 or not math.isfinite(estimate.high):
        return None
    return (estimate.high - estimate.low) / 2 / estimate.value


def is_known(estimate: Quantile, precision: float) -> bool:
    """Return whether a quantile is known to that share of its value."""
    half = half_width(estimate)
    return half is not None and half <= precision and not estimate.mark


def precision_text(estimate: Quantile, precision: float, stage: Steady, *, is_over: bool) -> str:
    """Return whether a quantile is known to a share of its value: `known to 4.6% after 190 s`, else why not or how long it would take.

    Known to h: half of its interval is at most h of its value, and nothing marks it. `is_over`: the run has ended.
    """
    half = half_width(estimate)
    seconds = f"{stage.to_s:,.0f} s"
    if half is not None and is_known(estimate, precision):
        return f"known to {_percent(half)} after {seconds}"
    text = f"is not known to {_percent(precision)} after {seconds}"
    if is_over:
        text = f"cannot be known to {_percent(precision)} in {seconds}"
    if math.inf in {estimate.value, estimate.high}:
        return f"{text}: too many requests have no complete answer"
    if half is None or half <= precision:
        few = (
            "values above the percentile came in too few periods of the run"
            if estimate.mark == FEW_EPISODES
            else "too few requests"
        )
        return f"{text}: {few}"
    # The last look has half of the 5%; the width falls with the square root of the time.
    at_the_end = normal(1 - MISSED / 2) / normal(confidence())
    factor = (half / precision * at_the_end) ** 2
    needed_s = float(f"{stage.from_s + stage.seconds * max(1.0, factor):.2g}")
    return f"{text}: half width {_percent(half)}, would need about {needed_s:,.0f} s"


def _percent(value: float) -> str:
    return f"{100 * value:.3g}%"


def level(run: Json) -> float:
    """Confidence of the intervals of the run's percentiles and shares, 95% over all looks at it."""
    confidence_of_run: float | None = run["precision"]["confidence"]
    return confidence_of_run or CONFIDENCE


def looked(run: Json) -> str:
    """Return what looks at the run mean for its intervals; empty where none was planned."""
    if level(run) == CONFIDENCE:
        return ""
    looks = plural(run["precision"]["looks"], "look")
    share = f"{100 * level(run):.4g}%"
    return f"each interval of a percentile or share is at {share}: it covers 95% over {looks} and the end"
