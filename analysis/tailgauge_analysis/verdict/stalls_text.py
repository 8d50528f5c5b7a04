"""Bad seconds in a report: how many, when, and the figures with and without what they blurred.

Rule: plain values for report.json, and the words of the page, of Markdown and of the terminal.
"""

from __future__ import annotations

from dataclasses import asdict

from tailgauge_analysis.metrics.latency import Row
from tailgauge_analysis.text.formatting import clock, count, ms, percentile, share
from tailgauge_analysis.text.json_values import Json
from tailgauge_analysis.text.quantile import bound, quantile
from tailgauge_analysis.verdict.stalls import PS, BadSeconds, Both

MOST = 20  # spells that are listed
HEADER = (
    "figure, ms",
    *(f"{percentile(p)}, {which}" for p in PS for which in ("with", "without")),
    "n",
    "left out",
)


def told(found: BadSeconds, figures: list[Both], beyond: str) -> Json | None:
    """What report.json says; null where no worker left a health row."""
    if not found.seconds:
        return None
    longest = sorted(found.spells, key=lambda spell: spell.from_s - spell.to_s)[:MOST]
    return {
        "seconds": round(found.seconds, 3), "bad": round(found.bad, 3), "share": found.share,
        "spells": [asdict(spell) for spell in sorted(longest, key=lambda spell: spell.from_s)],
        "figures": [_figure(one, beyond) for one in figures],
    }  # fmt: skip


def _figure(one: Both, beyond: str) -> Json:
    metric = one.every.metric
    return {
        "metric": metric.name, "title": metric.title, "view": one.every.view, "n": one.every.n,
        "left_out": one.every.n - one.sharp.n,
        "with": _quantiles(one.every, beyond), "without": _quantiles(one.sharp, beyond),
    }  # fmt: skip


def _quantiles(row: Row, beyond: str) -> list[Json]:
    return [quantile(q, beyond) for q in row.quantiles]


def sentence(said: Json) -> str:
    """How much of the stage it was, and what that means for the figures."""
    worst = max(said["spells"], key=lambda spell: spell["worst_ms"])
    return (
        f"The client stood still for more than 50 ms in {share(said['share'])} of its {count(said['seconds'])} seconds, "
        f"the longest at {clock(worst['from_s'])} on worker {worst['worker']}: {worst['said']} by {ms(worst['worst_ms'])} ms. "
        "Times since scheduled keep every request. Beside the figures that interval stamps of these seconds can move "
        "stand the same without those."
    )


def rows(said: Json) -> list[tuple[str, ...]]:
    """A line a figure."""
    return [
        (
            one["title"],
            *(_cell(one[which][at]) for at in range(len(PS)) for which in ("with", "without")),
            count(one["n"]),
            f"{count(one['left_out'])} ({share(one['left_out'] / one['n'] if one['n'] else 0.0)})",
        )
        for one in said["figures"]
    ]


def _cell(q: Json) -> str:
    return (
        f"{ms(q['value_ms'])} ({bound(q, 'low')} – {bound(q, 'high')})"
        if q["value_is"] == "value"
        else str(q["value_is"])
    )
