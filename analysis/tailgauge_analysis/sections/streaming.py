"""Streaming: how evenly the answers came, and how fast.

Answers of the steady stage without slow readers; shares are of the answers that were, or should have been, streamed in two
chunks or more. Nothing here is an objective.
"""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass, field

import numpy as np
import pandas as pd

from tailgauge_analysis.metrics import pace
from tailgauge_analysis.metrics.metrics import BY_NAME
from tailgauge_analysis.metrics.steady import Steady, is_of_tasks
from tailgauge_analysis.reading.chunks import BLOCK, blocks
from tailgauge_analysis.run import Run
from tailgauge_analysis.sections.ends import percent
from tailgauge_analysis.stats.quantiles import Floats, Ints, Mask, rank
from tailgauge_analysis.text.formatting import count, ms, plural, share
from tailgauge_analysis.text.json_values import Json
from tailgauge_analysis.text.picture import Panel, Picture, PlotCurve, Scale
from tailgauge_analysis.text.quantile import UNPUBLISHED
from tailgauge_analysis.text.section import INEXACT, OF_SOMETHING_ELSE, Finding, Section

KEY = ""
REQUEST_USAGE = ("openai",)  # protocols whose requests must ask for the usage of a stream
STALL_MS = 1000.0
STALL_TIMES = 10.0
BUFFERED = 0.01  # of the answers, from which a proxy is suspected
MARKED = "TPOT is marked: it may be too low. Time per chunk does not depend on token counts."
BILLED = "Output tokens/s counts billed tokens, including those that were never streamed."
COLLECTED = "Something between client and target collects the stream: TTFT is not that of the target, and TPOT is unknown."


@dataclass(frozen=True, slots=True)
class Streams:
    """How the answers flowed. A rate or share is None where no answer could have it."""

    answers: int
    tokens_per_chunk_p50: float | None
    buffered: int
    buffered_share: float | None
    stalls: int
    stalled_share: float | None
    stall_time_share: float | None
    user_tokens_per_s_p50: float | None
    user_tokens_per_s_p1: float | None


@dataclass(frozen=True, slots=True, kw_only=True)
class Streaming:
    """How evenly the answers came, and how fast."""

    streams: Streams
    """evenness of streams: tokens per chunk, buffered streams, stalls, tokens per second; see metrics.md"""
    tpot_missing: Json
    """answers without TPOT: of (streamed answers), answers, reasons (reason, answers, text), sentence (empty: none); see metrics.md"""
    gaps_ns: Floats = field(metadata=UNPUBLISHED)
    ambiguous: str = field(metadata=UNPUBLISHED)
    """why tokens per chunk may be tokens that were never streamed; empty where they are not"""
    hidden: int = field(metadata=UNPUBLISHED)
    """answers whose usage counts tokens that were never streamed"""


def compute(run: Run) -> Streaming:
    """Measure the streams of the steady stage."""
    without_slow_readers = run.without_slow_readers
    record = run.record
    has_task_bodies = (
        is_of_tasks(record["scenario"]) and record["target"].get("protocol") in REQUEST_USAGE
    )
    return Streaming(
        streams=streams(without_slow_readers),
        ambiguous=pace.ambiguous(without_slow_readers.requests),
        hidden=int((without_slow_readers.requests["pace_missing"] == pace.HIDDEN).sum()),
        tpot_missing=pace.missing(
            without_slow_readers.requests, has_usage_option=not has_task_bodies
        ),
        gaps_ns=without_slow_readers.gaps_ns,
    )


def section(streaming: Streaming) -> Section | None:
    """Return the section; None where nothing was streamed.

    Buffered answers beyond the share BUFFERED are its answer: then the times are not those of the target.
    """
    flow = streaming.streams
    tpot_missing = streaming.tpot_missing
    facts = _facts(flow)
    notes = []
    if tpot_missing["sentence"]:
        notes.append(tpot_missing["sentence"])
    if streaming.ambiguous:
        notes.append(f"{streaming.ambiguous[0].upper()}{streaming.ambiguous[1:]}. {MARKED}")
    if streaming.hidden:
        notes.append(BILLED)
    if not facts and not notes:
        return None
    answer = ""
    if (flow.buffered_share or 0) > BUFFERED:
        answer = f"{share(flow.buffered_share)} of answers are buffered. {COLLECTED}"
    figures = tuple(_gaps(streaming.gaps_ns))
    return Section(
        "streaming",
        "Streaming",
        answer,
        tuple(facts),
        figures=figures,
        notes=tuple(notes),
        findings=tuple(_findings(streaming)),
    )


def _findings(streaming: Streaming) -> Iterator[Finding]:
    """Yield buffered answers, and tokens that were not streamed."""
    buffered = streaming.streams.buffered_share or 0.0
    if buffered > BUFFERED:
        text = f"{percent(buffered)} of the answers are buffered by a proxy: TTFT is not that of the target."
        yield Finding(text, OF_SOMETHING_ELSE + buffered)
    answers = int(streaming.tpot_missing["of"])
    hidden = 0.0
    if answers:
        hidden = streaming.hidden / answers
    if hidden > BUFFERED:
        text = f"{percent(hidden)} of the answers have tokens that were not streamed: TPOT leaves these answers out."
        yield Finding(text, INEXACT + hidden)


def _facts(streams: Streams) -> list[tuple[str, str]]:
    rows = []
    if streams.user_tokens_per_s_p50 is not None:
        slowest = f"{ms(streams.user_tokens_per_s_p1)} for the slowest 1% of answers"
        rows.append(
            ("Tokens/s per user", f"{ms(streams.user_tokens_per_s_p50)} in the median, {slowest}")
        )
    if streams.tokens_per_chunk_p50 is not None:
        rows.append(("Tokens per chunk", f"{streams.tokens_per_chunk_p50:.3g} in the median"))
    if streams.answers:
        part = ""
        if streams.stalls:
            part = f", in {share(streams.stalled_share)} of answers"
        stalls = f"{plural(streams.stalls, 'chunk gap')} longer than both 1 s and 10x the median gap of their answer{part}"
        rows.append(("Stalls", stalls))
        rows.append(
            (
                "Buffered responses",
                f"{count(streams.buffered)} of {plural(streams.answers, 'answer')}",
            )
        )
    return rows


def streams(without_slow_readers: Steady) -> Streams:
    """Measure the flow of the answers of a stage: tokens per chunk, buffered answers, stalls, tokens per second.

    A share is None without an answer of two chunks or more, or buffered. Gaps may be a hundred million: they are read in blocks of
    whole answers. `gap_counts`: how many gaps each request has; `pace_skip`: how many of its first gaps are a pause of thinking.
    """
    requests = without_slow_readers.requests
    gap_counts = without_slow_readers.gap_counts
    skipped_gaps = requests["pace_skip"].to_numpy(np.int64)
    is_buffered = requests["buffered"].to_numpy(np.bool_)
    stalled_gaps = 0
    stalled_answers = 0
    stalled_ms = 0.0
    flow_ms = 0.0
    first_gaps = np.cumsum(gap_counts) - gap_counts
    # A slice of answers whose gaps are few enough to be read at once.
    for block in blocks(gap_counts):
        counts = gap_counts[block]
        gaps_ms = (
            without_slow_readers.gaps_ns[
                first_gaps[block.start] : first_gaps[block.start] + int(counts.sum())
            ]
            / 1e6
        )
        answer_ids = np.repeat(np.arange(len(counts)), counts)
        # A pause of thinking is no stall: a gap counts by its number in its answer.
        if skipped_gaps[block].any():
            is_counted = (
                np.arange(len(answer_ids)) - (np.cumsum(counts) - counts)[answer_ids]
                >= skipped_gaps[block][answer_ids]
            )
            gaps_ms = gaps_ms[is_counted]
            answer_ids = answer_ids[is_counted]
        is_stall = stalls(gaps_ms, answer_ids)
        stalled_gaps += int(is_stall.sum())
        stalled_answers += len(np.unique(answer_ids[is_stall]))
        stalled_ms += float(gaps_ms[is_stall].sum())
        flow_ms += float(gaps_ms.sum())
    is_streamed = (gap_counts > 0) | is_buffered
    answers = int(is_streamed.sum())
    buffered_share = None
    if answers:
        buffered_share = float(is_buffered[is_streamed].mean())
    stalled_share = None
    if answers:
        stalled_share = stalled_answers / answers
    stall_time_share = None
    if flow_ms > 0:
        stall_time_share = stalled_ms / flow_ms
    return Streams(
        answers=answers,
        tokens_per_chunk_p50=_quantile(pace.tokens_per_chunk(requests), 0.5),
        buffered=int(is_buffered.sum()),
        buffered_share=buffered_share,
        stalls=stalled_gaps,
        stalled_share=stalled_share,
        stall_time_share=stall_time_share,
        user_tokens_per_s_p50=_tokens_per_s(without_slow_readers, 0.5),
        user_tokens_per_s_p1=_tokens_per_s(without_slow_readers, 0.99),
    )


def _tokens_per_s(stage: Steady, p: float) -> float | None:
    """Return tokens per second of the user whose TPOT is the quantile p."""
    tpot = _quantile(BY_NAME["tpot"].ns(stage), p)
    if not tpot:
        return None
    return 1e9 / tpot


def _quantile(values: Floats, p: float) -> float | None:
    finite = np.sort(values[~np.isnan(values)])
    if not len(finite):
        return None
    return float(finite[rank(len(finite), p) - 1])


def stalls(gaps_ms: Floats, answer_ids: Ints) -> Mask:
    """Return which gaps are stalls: above 1 s and above 10 times the median gap of the answer, so that a slow but even one has none."""
    late = gaps_ms > STALL_MS
    if late.any():  # only their answers' medians matter
        suspect = np.zeros(int(answer_ids[-1]) + 1, np.bool_)
        suspect[answer_ids[late]] = True
        is_suspect = suspect[answer_ids]
        late[is_suspect] &= (
            gaps_ms[is_suspect]
            > STALL_TIMES
            * medians(gaps_ms[is_suspect], answer_ids[is_suspect])[answer_ids[is_suspect]]
        )
    return late


def medians(gaps_ms: Floats, answer_ids: Ints) -> Floats:
    """Return lower median gap of each answer; 0 where it has none."""
    per_answer = pd.Series(gaps_ms).groupby(answer_ids).quantile(0.5, interpolation="lower")
    return np.asarray(
        per_answer.reindex(np.arange(answer_ids.max() + 1), fill_value=0.0), np.float64
    )


# --- figure -------------------------------------------------------------------------------------------------------

WIDE = 20  # the largest gap, in smallest drawn ones, from which their axis is logarithmic


def _gaps(gaps_ns: Floats) -> Iterator[Picture]:
    """Draw a histogram of the gaps between chunks, as shares of all gaps; nothing where all are zero.

    There may be a hundred million: they are counted in blocks. Gaps of zero are not drawn, and gaps below a hundredth of the
    median are in the first bar.
    """
    blocks_ns = [gaps_ns[start : start + BLOCK] for start in range(0, len(gaps_ns), BLOCK)]
    positive = sum(int((block > 0).sum()) for block in blocks_ns)
    if not positive:
        return
    # The median is that of a sample: there are too many gaps to sort them.
    sample = gaps_ns[:: max(1, len(gaps_ns) // BLOCK)]
    shortest_ms = min(block[block > 0].min(initial=gaps_ns.max()) for block in blocks_ns) / 1e6
    median_ms = shortest_ms
    if (sample > 0).any():
        median_ms = np.median(sample[sample > 0]) / 1e6
    lowest_ms = max(shortest_ms, median_ms / 100)
    highest_ms = gaps_ns.max() / 1e6
    scale: Scale = "linear"
    edges = np.linspace(lowest_ms * 0.9, highest_ms * 1.1, 61)
    if highest_ms / lowest_ms > WIDE:
        scale = "log"
        edges = np.geomspace(lowest_ms, highest_ms, 81)
    counts = np.zeros(len(edges) - 1, np.int64)
    for block in blocks_ns:
        counts += np.histogram(np.clip(block[block > 0] / 1e6, edges[0], edges[-1]), edges)[0]
    # A line of steps needs the last value twice.
    shares = 100 * np.append(counts, counts[-1]) / len(gaps_ns)
    curve = PlotCurve(edges, shares, steps="hv", is_filled=True, hover="%{y:.3~g}%")
    caption = f"{len(gaps_ns):,} gaps between consecutive content chunks of one answer."
    if zero_gaps := len(gaps_ns) - positive:
        caption += f" {zero_gaps / len(gaps_ns):.2%} are zero (chunks that came in one read) and not drawn."
    if shortest_ms < lowest_ms:
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
