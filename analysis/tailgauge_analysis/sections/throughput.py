"""The section on throughput: what was offered, accepted and completed, and whether the target sustains it."""

from __future__ import annotations

from tailgauge_analysis.metrics.slo import Goodput
from tailgauge_analysis.metrics.stability import Stability
from tailgauge_analysis.metrics.throughput import Throughput
from tailgauge_analysis.text.formatting import figures, plural, share, share_range
from tailgauge_analysis.text.section import Section


def section(found: Throughput, stability: Stability, goodput: Goodput | None) -> Section:
    """Rates of the steady stage."""
    requests = ", ".join(
        f"{figures(rate)} {name}"
        for name, rate in (
            ("offered", found.offered_per_s),
            ("accepted", found.accepted_per_s),
            ("completed", found.completed_per_s),
        )
        if rate is not None
    )
    good = ""
    if goodput:
        rate = f", {figures(goodput.per_s)}/s" if goodput.per_s is not None else ""
        ends = f"95% CI {share_range(goodput.low, goodput.high)}"
        good = f"{share(goodput.share)} of {plural(goodput.offered, 'offered request')} met every objective ({ends}){rate}"
    tokens = figures(found.output_tokens_per_s) if found.output_tokens_per_s else ""
    return Section(
        "throughput",
        "Throughput and stability",
        stability.sentence,
        tuple(
            one
            for one in (("Requests/s", requests), ("Output tokens/s", tokens), ("Goodput", good))
            if one[1]
        ),
        figures=("tokens",),
    )
