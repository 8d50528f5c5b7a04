"""The matrix in words: the same on the page and in Markdown.

Rule: from the contents alone; a word for an outcome is the objectives' word.
"""

from __future__ import annotations

from tailgauge_analysis.text.formatting import ms
from tailgauge_analysis.text.json_values import Json

LABELS = ("p50", "p95", "p99")


def limits(use: Json) -> str:
    """`TTFT 500 ms, whole 5 s`."""
    return f"TTFT {_short(use['ttft_ms'])}, whole {_short(use['total_ms'])}"


def _short(value: float) -> str:
    return f"{value / 1000:g} s" if value >= 1000 else f"{value:g} ms"


def header(told: Json) -> list[str]:
    """Columns after the segment's name."""
    return [
        "percentile",
        "TTFT (ms)",
        "whole (ms)",
        *(f"{use['name']} ({limits(use)})" for use in told["uses"]),
    ]


def rows(told: Json) -> list[list[str]]:
    """A row a segment and percentile."""
    out = []
    for one in told["segments"]:
        for i, label in enumerate(LABELS):
            waits = [_value(one[key][i]) if one[key] else "–" for key in ("ttft", "total")]
            name = one["name"] if one["by"] == one["name"] else f"{one['by']}: {one['name']}"
            out.append([name, label, *waits, *(one["outcomes"][use["name"]][label] for use in told["uses"])])
    return out


def _value(q: Json) -> str:
    return ms(q["value_ms"]) if q["value_is"] == "value" else str(q["value_is"])
