"""The 429 report as plain values: what report.json holds.

Rule: null with a reason where nothing is known; never NaN.
"""

from __future__ import annotations

import math
from dataclasses import asdict
from typing import Any

import numpy as np

from tailgauge_analysis.sections.rate_limits.bucket_levels import WINDOWS_S
from tailgauge_analysis.sections.rate_limits.finding import Bucket, RateLimits
from tailgauge_analysis.sections.rate_limits.limit_kinds import RAMP
from tailgauge_analysis.sections.rate_limits.retries import EDGES_S
from tailgauge_analysis.sections.rate_limits.text import sentence
from tailgauge_analysis.text.formatting import plain
from tailgauge_analysis.text.json_values import Json


def told(found: RateLimits | None) -> Json | None:
    """The value of `rate_limits` in report.json."""
    if found is None:
        return None
    buckets = [_bucket(one) for one in found.buckets]
    bound = found.binding
    place = next((i for i, one in enumerate(found.buckets) if one is bound.bucket), None)
    out: Json = {
        **asdict(found.shares),
        "first_at_s": found.first_at_s,
        "by_second": _bins(found),
        "buckets": buckets,
        "binding": {"kind": bound.kind, "bucket": place, "how": bound.how, "why": bound.why},
        "growth": buckets[place]["growth"] if place is not None else {"value": None, "low": None, "high": None, "calls": 0, "why": bound.why or ("a limit on acceleration is no bucket" if bound.kind == RAMP else "its bucket is not known")},
        "acceleration": asdict(found.acceleration),
        "retry_after": {**asdict(found.retry_after), "early_from_s": list(EDGES_S)},
        "amplification": [asdict(one) for one in found.amplification],
        "synchrony": asdict(found.synchrony),
    }  # fmt: skip
    finite: Json = _plain(out)
    return {"sentence": sentence(finite), **finite}


def _bins(found: RateLimits) -> Json | None:
    if found.bins is None:
        return None
    return {**asdict(found.bins), "share": found.bins.share}


def _bucket(one: Bucket) -> Json:
    facts = asdict(one)
    facts["target"], facts["model"] = plain(one.target, 60), plain(one.model, 80)
    facts["utilisation"] = one.utilisation
    if one.use is not None:
        peaks = zip(WINDOWS_S, one.use.peak_per_s, strict=True)
        facts["use"] = {
            "mean_per_s": one.use.mean_per_s,
            "peak_per_s": {f"{seconds} s": peak for seconds, peak in peaks},
        }
    return facts


def _plain(tree: Any) -> Any:
    """Lists for arrays, null for numbers that are not finite."""
    if isinstance(tree, dict):
        return {str(key): _plain(value) for key, value in tree.items()}
    if isinstance(tree, list | tuple):
        return [_plain(value) for value in tree]
    if isinstance(tree, np.ndarray):
        return _plain(tree.tolist())
    if isinstance(tree, float) and not math.isfinite(tree):
        return None
    return tree
