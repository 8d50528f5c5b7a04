"""Streaming: how evenly the answers came, and how fast (metrics/streams.py)."""

from __future__ import annotations

from dataclasses import dataclass

from tailgauge_analysis.metrics import pace, streams
from tailgauge_analysis.metrics.streams import Streams
from tailgauge_analysis.run import Run
from tailgauge_analysis.text.formatting import count, ms, plural, share
from tailgauge_analysis.text.json_values import Json
from tailgauge_analysis.text.section import Section

KEY = ""
BUFFERED = 0.01  # of the answers, from which a proxy is suspected
COLLECTED = "Something between client and target collects the stream: TTFT is not that of the target, and TPOT is unknown."


@dataclass(frozen=True, slots=True, kw_only=True)
class Streaming:
    """How evenly the answers came, and how fast."""

    streams: Streams
    """evenness of streams: tokens per chunk, buffered streams, stalls, fluidity, tokens per second; see metrics.md"""
    tpot_missing: Json
    """answers without TPOT: of (streamed answers), answers, reasons (reason, answers, text), sentence (empty: none); see metrics.md"""


def compute(run: Run) -> Streaming:
    """Measure the streams of the steady stage."""
    of_target = run.of_target
    return Streaming(streams=streams.streams(of_target), tpot_missing=pace.missing(of_target.requests))


def section(streaming: Streaming) -> Section | None:
    """None where nothing was streamed."""
    found, tpot_missing = streaming.streams, streaming.tpot_missing
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
