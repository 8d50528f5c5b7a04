"""The section on throughput: what was offered, accepted and completed, and whether the target sustains it.

The section on streaming: how evenly the answers came, and how fast (metrics/streams.py).
"""

from __future__ import annotations

from tailgauge_analysis.metrics.stability import Stability
from tailgauge_analysis.metrics.streams import Streams
from tailgauge_analysis.metrics.throughput import Throughput
from tailgauge_analysis.objectives.goodput import Goodput
from tailgauge_analysis.text.formatting import count, figures, ms, plural, share, share_range
from tailgauge_analysis.text.json_values import Json
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


# --- streaming ----------------------------------------------------------------------------------------------------

BUFFERED = 0.01  # of the answers, from which a proxy is suspected
COLLECTED = "Something between client and target collects the stream: TTFT is not that of the target, and TPOT is unknown."


def streaming(found: Streams, tpot_missing: Json) -> Section | None:
    """None where nothing was streamed."""
    facts = _facts(found)
    missing = (tpot_missing["sentence"],) if tpot_missing["sentence"] else ()
    if not facts and not missing:
        return None
    answer = ""
    if found.fluid_share is not None:
        answer = f"{share(found.fluid_share)} of answers keep up with a reader of 10 tokens/s."
    if (found.buffered_share or 0) > BUFFERED:
        answer = f"{share(found.buffered_share)} of answers are buffered. {COLLECTED}"
    return Section("streaming", "Streaming", answer, tuple(facts), figures=("gaps",), notes=missing)


def _facts(found: Streams) -> list[tuple[str, str]]:
    rows = []
    if found.user_tokens_per_s_p50 is not None:
        slowest = f"{ms(found.user_tokens_per_s_p1)} for the slowest 1%"
        rows.append(("Tokens/s per user", f"{ms(found.user_tokens_per_s_p50)} in the median, {slowest}"))
    if found.tokens_per_chunk_p50 is not None:
        rows.append(("Tokens per chunk", f"{found.tokens_per_chunk_p50:.3g} in the median"))
    if found.answers:
        part = f", in {share(found.stalled_share)} of answers" if found.stalls else ""
        stalls = f"{plural(found.stalls, 'chunk gap')} over 1 s and 10x the median of the answer{part}"
        rows.append(("Stalls", stalls))
        rows.append(("Buffered responses", f"{count(found.buffered)} of {plural(found.answers, 'answer')}"))
    return rows
