"""Findings as plain values: what a section of report.json is made of.

Rule: dataclasses become tables under the names of their fields, quantiles what spoken.quantile makes of them; a number
that is not finite becomes null. Nothing is computed.
"""

from __future__ import annotations

import math
from dataclasses import fields, is_dataclass
from typing import Any

from tailgauge_analysis.stats.quantiles import Quantile
from tailgauge_analysis.text.quantile import quantile


def plain_values(tree: Any, beyond: str) -> Any:
    """The same as tables, lists, text and finite numbers; `beyond` names where a quantile without value falls."""
    if isinstance(tree, Quantile):
        return quantile(tree, beyond)
    if is_dataclass(tree) and not isinstance(tree, type):
        return {field.name: plain_values(getattr(tree, field.name), beyond) for field in fields(tree)}
    if isinstance(tree, dict):
        return {str(key): plain_values(value, beyond) for key, value in tree.items()}
    if isinstance(tree, list | tuple):
        return [plain_values(value, beyond) for value in tree]
    if isinstance(tree, float) and not math.isfinite(tree):
        return None
    return tree
