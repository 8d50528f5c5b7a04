"""The section on throughput: what was offered, accepted and completed, and whether the target sustains it."""

from __future__ import annotations

from tailgauge_analysis.metrics.slo import Goodput
from tailgauge_analysis.metrics.stability import Stability
from tailgauge_analysis.metrics.throughput import Throughput
from tailgauge_analysis.text.formatting import figures, plural, share, share_range
from tailgauge_analysis.text.section import Section


def section(found: Throughput, stability: Stability, goodput: Goodput | None) -> Section:
    """Rates of the steady stage."""
    rates = (
        (found.offered_per_s, "requests/s offered"), (found.accepted_per_s, "accepted"), (found.completed_per_s, "completed"),
        (found.output_tokens_per_s, "output tokens/s"),
    )  # fmt: skip
    known = ", ".join(f"{figures(rate)} {name}" for rate, name in rates if rate is not None)
    facts = [("Stability", stability.sentence)]
    if goodput:
        rate = f", {figures(goodput.per_s)}/s" if goodput.per_s is not None else ""
        good = goodput.good
        ends = f"95% CI {share_range(good.low, good.high)}"
        met = f"{share(good.value)} of {plural(good.n, 'offered request')} met every objective"
        facts.append(("Goodput", f"{met} ({ends}){rate}"))
    answer = f"{known}." if known else ""
    return Section("throughput", "Throughput and stability", answer, tuple(facts), figures=("tokens",))
