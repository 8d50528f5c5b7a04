"""Streaming: how evenly the answers came, and how fast (metrics/streams.py)."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass, field

import numpy as np

from tailgauge_analysis.metrics import pace, streams
from tailgauge_analysis.metrics.streams import Streams
from tailgauge_analysis.reading.chunks import BLOCK
from tailgauge_analysis.run import Run
from tailgauge_analysis.stats.quantiles import Ints
from tailgauge_analysis.text.formatting import count, ms, plural, share
from tailgauge_analysis.text.json_values import Json
from tailgauge_analysis.text.picture import Panel, Picture, PlotCurve, Scale
from tailgauge_analysis.text.quantile import UNPUBLISHED
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
    gaps_ns: Ints = field(metadata=UNPUBLISHED)


def compute(run: Run) -> Streaming:
    """Measure the streams of the steady stage."""
    of_target = run.of_target
    return Streaming(
        streams=streams.streams(of_target),
        tpot_missing=pace.missing(of_target.requests),
        gaps_ns=of_target.gaps_ns,
    )


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
    drawn = tuple(_gaps(streaming.gaps_ns))
    return Section("streaming", "Streaming", answer, tuple(facts), figures=drawn, notes=missing)


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


# --- figure -------------------------------------------------------------------------------------------------------

WIDE = 20  # the largest gap, in smallest drawn ones, from which their axis is logarithmic


def _gaps(gaps_ns: Ints) -> Iterator[Picture]:
    """Draw the share of the gaps by length. There may be a hundred million: they are counted in blocks."""
    blocks = [gaps_ns[start : start + BLOCK] for start in range(0, len(gaps_ns), BLOCK)]
    positive = sum(int((block > 0).sum()) for block in blocks)
    if not positive:
        return
    sample = gaps_ns[:: max(1, len(gaps_ns) // BLOCK)]
    shortest = min(block[block > 0].min(initial=gaps_ns.max()) for block in blocks) / 1e6
    median = np.median(sample[sample > 0]) / 1e6 if (sample > 0).any() else shortest
    low = max(shortest, median / 100)
    high = gaps_ns.max() / 1e6
    scale: Scale = "linear"
    edges = np.linspace(low * 0.9, high * 1.1, 61)
    if high / low > WIDE:
        scale = "log"
        edges = np.geomspace(low, high, 81)
    counts = np.zeros(len(edges) - 1, np.int64)
    for block in blocks:
        counts += np.histogram(np.clip(block[block > 0] / 1e6, edges[0], edges[-1]), edges)[0]
    shares = 100 * np.append(counts, counts[-1]) / len(gaps_ns)
    curve = PlotCurve(edges, shares, steps="hv", is_filled=True, hover="%{y:.3~g}%")
    caption = f"{len(gaps_ns):,} gaps between consecutive content chunks of one answer."
    if zero := len(gaps_ns) - positive:
        caption += f" {zero / len(gaps_ns):.2%} are zero (chunks that came in one read) and not drawn."
    if shortest < low:
        caption += " The first bar holds every shorter gap."
    yield Picture(
        name="gaps",
        title="Chunk gaps",
        caption=caption,
        panels=(Panel("share of gaps (%)", (curve,)),),
        x="chunk gap (ms, logarithmic)" if scale == "log" else "chunk gap (ms)",
        x_scale=scale,
        height=260,
    )
