"""Rows of what a gateway adds: the same traffic through it (B) and directly (A), in alternating blocks of one run.

Latencies are compared in ms, flow of the chunks, failures and tokens as shares. No row decides: all are tested together. What a
gateway adds is an answer, no failure. Failures are slower than any answer; requests that their users left before the event
are left out.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from dataclasses import replace

import numpy as np
import pandas as pd

from tailgauge.rows import schema
from tailgauge_analysis.comparing.comparison import MEASURED, Comparison, Method
from tailgauge_analysis.comparing.effect import (
    BETTER,
    MS,
    NO_WORSE,
    SAME,
    SHARE,
    WORSE,
    Compared,
    Effect,
    decide,
)
from tailgauge_analysis.comparing.run_summary import QUANTILES
from tailgauge_analysis.comparing.variant_blocks import BlockPairs, compared, wait_values
from tailgauge_analysis.metrics.answers import first_attempts, prompt_tokens
from tailgauge_analysis.metrics.metrics import BY_NAME
from tailgauge_analysis.metrics.steady import Steady
from tailgauge_analysis.reading.frames import CALL, Frames
from tailgauge_analysis.stats.quantiles import Floats, Mask
from tailgauge_analysis.text.formatting import ms, percentile, plain, plural, share
from tailgauge_analysis.text.picture import Panel, Picture, PlotCurve, estimate_curve

# Differences below are not stated.
LEAST_MS = 0.1
LEAST_SHARE = 0.01
LEAST_CHUNKS = 0.05
# Chunks came together where their gap is below this share of the direct median gap, between two bounds.
TOGETHER = 0.1
TOGETHER_MS = (0.05, 0.5)
WHOLE = (
    0.1  # of the direct median time from first to last content: an answer so short arrives whole
)
HEADERS = "time to headers"
TTFT = "TTFT"
E2E = "end to end"
FAILED = "failed requests"
BUNCHED = "chunks that arrive together with the previous chunk"
HELD = "answers that arrive whole"
PROMPT = "prompt tokens, of those asked for"
OUTPUT = "output tokens, of those asked for"
LOST = "cancelled calls that the endpoint kept generating"
UNKNOWN = "not known: the endpoint does not tell which calls it kept generating"
METHOD = Method(
    name="gateway",
    title="Gateway",
    computed="The figures of a variant cover all its offered requests. The 95% interval of a change comes from a bootstrap over pairs of blocks, and p from a "
    "Student's t test with the width of this interval, corrected over all rows (Holm). The sentence above leaves out differences below "
    f"{LEAST_MS:g} ms of a time, {LEAST_CHUNKS * 100:g} percentage points of a share of chunks, and {LEAST_SHARE * 100:g} percentage point of any other share. TTFT and end to end "
    "count from the scheduled time, and failures count as slowest; requests whose user left before the measured event are excluded. Cancelled calls "
    "are counted by the endpoint's log, or by vLLM's counter of completed calls.",
)
BEHIND = "passes chunks on in bunches ({b} of its chunks arrive together with the previous chunk, {a} of the direct ones)"
ONE_BY_ONE = "passes chunks on one by one"
# The sentence on a share, by its verdict.
CLAIMS = {
    HELD: {WORSE: "holds {b} of the answers back until they end"},
    BUNCHED: {WORSE: BEHIND, SAME: ONE_BY_ONE, NO_WORSE: ONE_BY_ONE},
    FAILED: {
        WORSE: "fails {b} of the requests ({a} directly)",
        BETTER: "fails {b} of the requests ({a} directly)",
    },
    PROMPT: {
        WORSE: "reports {size} more prompt tokens",
        BETTER: "reports {size} fewer prompt tokens",
        SAME: "reports the same number of prompt tokens",
    },
}
Rows = Mapping[tuple[str, float | None], Effect]


def compared_through(
    comparison: Comparison, frames: Frames, stage: Steady, pairs: BlockPairs
) -> Comparison:
    """Return the comparison with what the gateway adds."""
    measured = [
        *_latencies(stage, pairs),
        *_flow(stage, pairs),
        *_failures(stage, pairs),
        *_tokens(stage, pairs),
    ]
    cancelled = _cancelled(frames, comparison.b)
    rows = (*decide(measured, first_decides=False), cancelled)
    claims = list(_claims({(row.title, row.p): row for row in rows}, len(pairs)))
    *leading, final = claims or ["has too few answers"]
    claimed = final
    if leading:
        claimed = f"{', '.join(leading)}, and {final}"
    sentence = f"The {plain(comparison.b, 80)} {claimed}"
    # Other counts of the prompt tokens are what is looked for.
    unequal = tuple(text for text in comparison.unequal if "output" in text)
    return replace(
        comparison, method=METHOD, verdict=MEASURED, sentence=sentence, rows=rows, unequal=unequal
    )


# --- rows -----------------------------------------------------------------------------------------------------------


def pictures(comparison: Comparison) -> tuple[Picture, ...]:
    """Draw what the gateway adds to each percentile of a latency, with its interval; none where nothing is known."""
    curves = []
    for title in (HEADERS, TTFT, E2E):
        estimates = []
        for row in comparison.rows:
            if row.title == title and row.change is not None:
                estimates.append((100 * (row.p or 0.0), row.change, row.low, row.high))
        if estimates:
            curves.append(estimate_curve(title, estimates))
    if not curves:
        return ()
    ends = (100 * min(QUANTILES), 100 * max(QUANTILES))
    nothing = PlotCurve(ends, (0.0, 0.0), "nothing added", dash="dash")
    picture = Picture(
        name="gateway",
        title="What the gateway adds",
        caption="The lines show latency through the gateway minus direct latency, with 95% intervals. Above 0 the gateway adds latency.",
        panels=(Panel("added latency, ms", (*curves, nothing)),),
        x="percentile",
    )
    return (picture,)


def _share_row(title: str) -> Effect:
    return Effect(metric=title, title=title, unit="share", scale=SHARE, threshold=LEAST_SHARE)


def _latencies(stage: Steady, pairs: BlockPairs) -> Iterator[Compared]:
    primary = first_attempts(stage.attempts)
    headers_ns = stage.requests["request_id"].map(primary["headers_at_ns"] - primary["sent_at_ns"])
    waits = {
        HEADERS: headers_ns.to_numpy(np.float64) / 1e6,
        TTFT: wait_values(BY_NAME["ttft_sched"], stage),
        E2E: wait_values(BY_NAME["e2e_sched"], stage),
    }
    for title, values in waits.items():
        for p in QUANTILES:
            row = Effect(
                metric=title, title=title, label=percentile(p), p=p, scale=MS, threshold=LEAST_MS
            )
            yield compared(row, pairs, values)


def _flow(stage: Steady, pairs: BlockPairs) -> Iterator[Compared]:
    """Yield how many chunks come with the one before, and how many answers at once, by the direct ones' pace."""
    direct = np.logical_or.reduce([a.requests for a, _ in pairs])
    gaps_ms = stage.gaps_ns / 1e6
    direct_gaps = gaps_ms[np.repeat(direct, stage.gap_counts)]
    if not len(direct_gaps):
        return
    near = np.clip(TOGETHER * np.median(direct_gaps), *TOGETHER_MS)
    bunched = replace(_share_row(BUNCHED), threshold=LEAST_CHUNKS)
    yield compared(bunched, pairs, (gaps_ms <= near).astype(np.float64), stage.gap_counts)
    span = (stage.requests["last_content_at_ns"] - stage.requests["first_content_at_ns"]).to_numpy(
        np.float64
    )
    span = np.where(stage.gap_counts > 0, span, np.nan)
    is_whole = span <= WHOLE * np.nanmedian(span[direct])
    yield compared(_share_row(HELD), pairs, _where(~np.isnan(span), is_whole))


def _failures(stage: Steady, pairs: BlockPairs) -> Iterator[Compared]:
    ended = stage.requests["ended"]
    stays = ~ended.isin((schema.CANCELLED, schema.CENSORED)).to_numpy(np.bool_)
    yield compared(
        _share_row(FAILED), pairs, _where(stays, ~ended.isin(schema.WITH_ANSWER).to_numpy(np.bool_))
    )


def _where(is_known: Mask, values: Mask) -> Floats:
    return np.where(is_known, values.astype(np.float64), np.nan)


def _tokens(stage: Steady, pairs: BlockPairs) -> Iterator[Compared]:
    calls = stage.attempts[stage.attempts["ended"].isin(schema.COMPLETE)]
    calls = calls.drop_duplicates("request_id").set_index("request_id")
    computed, read = prompt_tokens(calls)
    tokens = {PROMPT: computed + read, OUTPUT: calls["output_tokens"]}
    requested = {PROMPT: "asked_prompt_tokens", OUTPUT: "asked_output_tokens"}
    for title, by_request in tokens.items():
        counted = stage.requests["request_id"].map(by_request).to_numpy(np.float64)
        wanted = stage.requests[requested[title]].to_numpy(np.float64)
        yield compared(_share_row(title), pairs, counted / np.where(wanted > 0, wanted, np.nan))


def _cancelled(frames: Frames, name: str) -> Effect:
    """Return the share of the calls through the gateway, cancelled by their users, that the endpoint went on with."""
    row = replace(_share_row(LOST), counts=False)
    attempts = frames.attempts[frames.attempts["stage"] != schema.PREFLIGHT]
    cancelled = attempts[(attempts["ended"] == schema.CANCELLED) & (attempts["traffic"] == name)]
    if not len(cancelled):
        return replace(row, why="no call was cancelled")
    lost = _lost(frames, attempts, cancelled)
    if lost is None:
        return replace(row, why=UNKNOWN)
    return replace(row, b=lost / len(cancelled), why=f"{lost:,} of {len(cancelled):,}")


def _lost(frames: Frames, attempts: pd.DataFrame, cancelled: pd.DataFrame) -> int | None:
    if len(frames.server_log):
        log = frames.server_log[frames.server_log["request_id"].notna()]
        went_on = log[log["cancelled_at_ns"].isna()]
        return int(_calls(cancelled).isin(_calls(went_on)).sum())
    completed = frames.run["engine_completed"]
    if completed is None:
        return None
    lost = completed - int(attempts["ended"].isin(schema.SERVED).sum())
    return lost if 0 <= lost <= len(cancelled) else None


def _calls(attempts: pd.DataFrame) -> pd.MultiIndex:
    return pd.MultiIndex.from_frame(attempts[[*CALL]].astype("int64"))


# --- in words -------------------------------------------------------------------------------------------------------


def _claims(rows: Rows, pairs: int) -> Iterator[str]:
    """Yield what the rows show of the gateway, as verbs with its name as subject: `adds 2 ms to TTFT p50 (1.6-2.1)`.

    `rows`: by title and percentile, None of a share; `pairs`: of blocks.
    """
    effects = []
    for p in (0.5, 0.99):
        if rows[TTFT, p].change is not None:
            effects.append(rows[TTFT, p])
    yield from waits_claims(effects, pairs)
    for title, texts in CLAIMS.items():
        row = rows.get((title, None))
        if row is None or row.a is None or row.change is None:
            continue
        text = texts.get(row.verdict or "")
        size = ""
        if row.a:
            size = share(abs(row.change) / row.a)
        if text:
            yield text.format(a=share(row.a), b=share(row.b), size=size)
    if rows[PROMPT, None].why:
        yield "reports no tokens"
    lost = rows[LOST, None]
    if lost.b:
        yield f"does not pass on {lost.why} cancellations"


def waits_claims(effects: Sequence[Effect], pairs: int) -> Iterator[str]:
    """Yield what the percentiles of the TTFT show: how much the gateway adds, and which show no clear change.

    `effects`: differences in ms, through the gateway less directly; `pairs`: of blocks.
    """
    added = []
    unchanged = []
    for row in effects:
        if row.is_different:
            added.append(f"{ms(row.change)} ms to {row.label} (CI {_ends(row)})")
        else:
            unchanged.append(row)
    if added:
        # Only the first percentile names the metric.
        yield f"adds {' and '.join(added)}".replace(" to p", " to TTFT p", 1)
    if unchanged:
        ends = ", ".join(f"{row.label} CI {_ends(row)} ms" for row in unchanged)
        where = ""
        if not added:
            where = f" of TTFT in {plural(pairs, 'pair')} of blocks"
        is_shown = all(row.verdict == SAME for row in unchanged)
        claim = "shows no change" if is_shown else "shows an inconclusive change"
        yield f"{claim}{where} ({ends})"


def _ends(row: Effect) -> str:
    """`1.6-2.1`, `-0.3 to 0.2`."""
    return f"{ms(row.low)}{'-' if (row.low or 0.0) >= 0 else ' to '}{ms(row.high)}"
