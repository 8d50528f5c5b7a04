"""The section on throughput: what was offered, accepted and completed per second, and whether the target sustains it.

The rates are measured in metrics/throughput.py, the stability in metrics/stability.py.
"""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass, field

from tailgauge_analysis.metrics import stability
from tailgauge_analysis.metrics.slots import Slots, slots
from tailgauge_analysis.metrics.stability import Stability
from tailgauge_analysis.metrics.throughput import Throughput
from tailgauge_analysis.metrics.timeline import Timeline
from tailgauge_analysis.objectives.goodput import Goodput
from tailgauge_analysis.run import Run
from tailgauge_analysis.sections import objectives, over_time
from tailgauge_analysis.text.formatting import figures, plural, share, share_range
from tailgauge_analysis.text.picture import Panel, Picture, PlotCurve
from tailgauge_analysis.text.quantile import UNPUBLISHED
from tailgauge_analysis.text.section import INCOMPLETE, Finding, Section

KEY = ""
COMPUTED = (
    "Rates are per second of the steady stage. Offered counts the requests scheduled in this stage. Completed and goodput count the "
    "requests that ended in this stage, including those sent in the warm-up. Shares are of the offered requests."
)


@dataclass(frozen=True, slots=True, kw_only=True)
class Rates:
    """Rates of the steady stage, and whether it was steady."""

    stability: Stability
    """whether the steady stage was a steady state of the target; see metrics.md"""
    slots: Slots | None
    """requests in flight at once; null where the load has no slots"""
    throughput: Throughput = field(metadata=UNPUBLISHED)
    goodput: Goodput | None = field(metadata=UNPUBLISHED)
    timeline: Timeline = field(metadata=UNPUBLISHED)


def compute(run: Run) -> Rates:
    """Return the rates, which the run has measured already."""
    return Rates(
        stability=run.evidence.stability,
        slots=slots(run.frames),
        throughput=run.evidence.throughput,
        goodput=run.result(objectives.compute).goodput,
        timeline=run.result(over_time.compute),
    )


def section(rates: Rates) -> Section:
    """Return the section: rates of the steady stage, whether it was steady, slots and goodput; tokens over time.

    Without a rate there is no answer. `slots` are there only where the load limits the requests in flight.
    """
    tokens_per_s = rates.throughput.output_tokens_per_s
    tokens = ""
    if tokens_per_s is not None:
        tokens = f"{figures(tokens_per_s)} output tokens/s"
    rates_text = ", ".join(filter(None, [rates.throughput.text, tokens]))
    facts = [("Stability", rates.stability.sentence)]
    if rates.slots is not None:
        facts.append(("Slots", f"{rates.slots.sentence}."))
    if rates.goodput:
        facts.append(("Goodput", _goodput(rates.goodput)))
    answer = ""
    if rates_text:
        answer = f"{rates_text}."
    pictures = tuple(_tokens_over_time(rates.timeline))
    findings = tuple(_findings(rates))
    return Section(
        name="throughput",
        title="Throughput and stability",
        answer=answer,
        facts=tuple(facts),
        figures=pictures,
        computed=(COMPUTED,) if rates_text else (),
        findings=findings,
    )


def _findings(rates: Rates) -> Iterator[Finding]:
    """Yield requests without an answer, unless the result counts them."""
    unanswered = rates.stability.of(stability.UNANSWERED)
    if unanswered is not None:
        yield Finding(unanswered.text, INCOMPLETE, stated="not completed: ")


def _goodput(goodput: Goodput) -> str:
    good = goodput.good
    rate = ""
    if goodput.per_s is not None:
        rate = f"; {figures(goodput.per_s)} such requests/s ended in the steady stage"
    ends = f"95% CI {share_range(good.low, good.high)}"
    return f"{share(good.value)} of {plural(good.n, 'offered request')} met every objective ({ends}){rate}"


def _tokens_over_time(timeline: Timeline) -> Iterator[Picture]:
    tokens_per_s = timeline.tokens_per_s
    if tokens_per_s.any():
        curve = PlotCurve(
            timeline.at_s, tokens_per_s, steps="hvh", is_filled=True, hover="%{y:,.4~g} tokens/s"
        )
        yield Picture(
            name="tokens",
            title="Output tokens over time",
            caption="Tokens of complete answers, spread evenly from the first to the last content of each answer. The warm-up is included.",
            panels=(Panel("output tokens<br>per second", (curve,)),),
            height=280,
        )
