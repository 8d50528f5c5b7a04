"""What a gateway adds, from the alternating blocks of a run: the same traffic directly (A) and through it (B).

A figure is that of all requests of a variant; what is added is B less A, in ms or as a share. Interval: pairs of blocks are
drawn again. A difference is stated where it is large enough, its interval is without 0, and the figures of the single blocks
differ at LEVEL by the sign-flip test of all figures as one family. Failures are slower than any answer; requests that
their users left before the event are left out.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, replace

import numpy as np
import pandas as pd

from tailgauge.rows import schema
from tailgauge.thresholds import GATEWAY_PAIRS
from tailgauge_analysis.comparing.alternating import parts
from tailgauge_analysis.comparing.comparison import Comparison, p_text
from tailgauge_analysis.comparing.design import STABLE
from tailgauge_analysis.metrics.answers import prompt_tokens
from tailgauge_analysis.metrics.latency import offered_waits
from tailgauge_analysis.metrics.metrics import BY_NAME
from tailgauge_analysis.metrics.steady import Steady
from tailgauge_analysis.reading.dedup import CALL
from tailgauge_analysis.reading.frames import Frames
from tailgauge_analysis.stats.bootstrap import PAIRED_WORK, SEED, of_pairs, weighted_quantiles
from tailgauge_analysis.stats.quantiles import Floats, Ints, n_min
from tailgauge_analysis.stats.sign_flips import family
from tailgauge_analysis.text.formatting import ms, percentile, plain, plural, share
from tailgauge_analysis.text.json_values import table
from tailgauge_analysis.text.section import FAIL, INCONCLUSIVE, NO_ANSWER, Result, Section, Table, Value

LEVEL = 0.01
LEAST_MS, LEAST_SHARE = 0.1, 0.01  # differences below are not stated
PS = (0.5, 0.95, 0.99)
DRAWS = (200, 999)
TOGETHER, TOGETHER_MS = 0.1, (0.05, 0.5)  # of the direct median gap, and bounds: so close is together
WHOLE = 0.1  # of the direct median time from first to last content: an answer so short arrives whole
HEADERS, TTFT, E2E = "time to headers", "TTFT", "end to end"
FAILED, BUNCHED = "failed requests", "chunks that arrive with the one before"
HELD = "answers that arrive whole"
TOKENS = ("prompt tokens, of those asked for", "output tokens, of those asked for")
HEADER = ("", "direct", "through it", "added", "p")
UNKNOWN = "not known: the endpoint does not tell which calls it went on with"
COMPUTED = (
    "Added: the figure of all requests through the gateway less that of all direct ones; its 95% interval draws pairs of blocks "
    f"again. p: that of the sign-flip test of the blocks' own figures, all of them as one family. Differences are stated at p <= {LEVEL:g}, from "
    f"{LEAST_MS:g} ms or {LEAST_SHARE * 100:g} point. TTFT and end to end are since scheduled, failures slowest; a user who "
    "left before is left out. Cancelled calls: by the endpoint's log, or by vLLM's counter of completed calls."
)


@dataclass(frozen=True, slots=True)
class Added:
    """One figure of both variants, a quantile in ms or (`p` None) a share, and what the gateway adds; None: not known."""

    title: str
    p: float | None
    direct: float | None
    through: float | None
    added: float | None = None
    low: float | None = None
    high: float | None = None
    p_value: float | None = None
    stated: bool = False
    why: str = ""
    """Why nothing is known: too few of either, or the quantile falls among failed requests."""

    def text(self, value: float | None) -> str:
        """A value of its unit."""
        return share(value) if self.p is None else ms(value)

    @property
    def ends(self) -> str:
        """`1.6-2.1`, `-0.3 to 0.2`."""
        if self.low is None or self.high is None:
            return "no interval"
        return f"{self.text(self.low)}{'-' if self.low >= 0 else ' to '}{self.text(self.high)}"


@dataclass(frozen=True, slots=True)
class Gateway:
    """What a gateway adds. `lost`: of the `cancelled` calls through it, those that the engine went on with; None: not known."""

    name: str
    pairs: int
    sentence: str
    rows: tuple[Added, ...]
    cancelled: int
    lost: int | None


@dataclass(frozen=True, slots=True)
class _Figure:
    """Values and the block of each, two numbers for a pair; of a share (`p` None), what is counted, and of how many."""

    title: str
    p: float | None
    of: Ints
    values: Floats
    under: Floats

    def at(self, weights: Ints) -> Floats:
        """The figure of each draw, each block counted as often as its weight; NaN of none."""
        if self.p is not None:
            return weighted_quantiles(self.of, self.values, self.p, weights)
        n = weights.shape[1]
        over, under = (weights @ np.bincount(self.of, one, n) for one in (self.values, self.under))
        found: Floats = np.divide(over, under, out=np.full(len(weights), np.nan), where=under > 0)
        return found


def gateway(frames: Frames, stage: Steady, blocks: Comparison | None) -> Gateway | None:
    """What it adds; None without a gateway, or where its blocks cannot be compared."""
    is_one = table(frames.run["scenario"], "crossover").get("gateway") is True
    if not is_one or blocks is None or blocks.against or blocks.growth_per_s != STABLE:
        return None
    pairs = parts(stage, (blocks.a, blocks.b), blocks.block_s or 1.0, blocks.washout_s or 0.0)
    block = np.full(len(stage.requests), -1, np.int64)
    for i, part in enumerate(part for pair in pairs for part in pair):
        block[part.requests] = i
    rows, (cancelled, lost) = _judged([*_figures(stage, block)], len(pairs)), _cancelled(frames, blocks.b)
    by = {(row.title, row.p): row for row in rows}
    claims = [*_waits(by, len(pairs)), *_flow(by), *_failures(by), *_tokens(by)]
    claims += [f"does not pass on {lost:,} of {cancelled:,} cancellations"] if lost else []
    *first, last = claims or ["has too few answers"]
    text = f"The {plain(blocks.b, 80)} {', '.join(first)}{', and ' if first else ''}{last}"
    more = by.get((TOKENS[1], None))
    if more is not None and more.stated and more.added and more.direct:
        text = f"Not the same work, {share(more.added / more.direct)} more output tokens a call through it. {text}"
    return Gateway(blocks.b, len(pairs), text, rows, cancelled, lost)


def _figure(title: str, p: float | None, of: Ints, values: Floats, under: Floats | float = 1.0) -> _Figure:
    """Of the values that are known and in a block."""
    every = np.broadcast_to(under, values.shape)
    known = (of >= 0) & ~np.isnan(values) & ~np.isnan(every)
    return _Figure(title, p, of[known], values[known], every[known])


def _figures(stage: Steady, block: Ints) -> Iterator[_Figure]:
    requests, ids, attempts = stage.requests, stage.requests["request_id"], stage.attempts
    first = attempts[(attempts["leg"] == 0) & (attempts["attempt"] == 0)].drop_duplicates("request_id")
    first = first.set_index("request_id")
    waits = {HEADERS: ids.map(first["headers_at_ns"] - first["sent_at_ns"]).to_numpy(np.float64) / 1e6}
    for title, name in ((TTFT, "ttft_sched"), (E2E, "e2e_sched")):
        every = offered_waits(BY_NAME[name], stage)
        waits[title] = np.where(every.cut | np.isnan(every.ms), np.nan, every.values)
    yield from (_figure(title, p, block, values) for title, values in waits.items() for p in PS)
    ended = requests["ended"]
    stays = np.where(ended.isin((schema.CANCELLED, schema.CENSORED)), np.nan, 1.0)
    yield _figure(FAILED, None, block, stays * ~ended.isin(schema.COMPLETED).to_numpy(np.bool_))
    of_gap, gaps_ms, is_direct = np.repeat(block, stage.gap_counts), stage.gaps_ns / 1e6, block % 2 == 0
    usual = gaps_ms[(of_gap >= 0) & (of_gap % 2 == 0)]
    span = (requests["last_content_at_ns"] - requests["first_content_at_ns"]).to_numpy(np.float64)
    span = np.where(stage.gap_counts > 0, span, np.nan)
    if len(usual):
        near = np.clip(TOGETHER * np.median(usual), *TOGETHER_MS)
        yield _figure(BUNCHED, None, of_gap, (gaps_ms <= near).astype(np.float64))
        whole = span <= WHOLE * np.nanmedian(span[(block >= 0) & is_direct])
        yield _figure(HELD, None, block, np.where(np.isnan(span), np.nan, whole))
    calls = (
        attempts[attempts["ended"].isin(schema.COMPLETE)]
        .drop_duplicates("request_id")
        .set_index("request_id")
    )
    computed, read = prompt_tokens(calls)
    counted = (computed + read, calls["output_tokens"])
    for title, of, asked in zip(TOKENS, counted, ("asked_prompt_tokens", "asked_output_tokens"), strict=True):
        under = requests[asked].to_numpy(np.float64)
        yield _figure(title, None, block, ids.map(of).to_numpy(np.float64), under)


def _judged(figures: Sequence[_Figure], pairs: int) -> tuple[Added, ...]:
    """Every figure of which direct requests show something, with interval and p."""
    most = max((len(one.of) for one in figures if one.p is not None), default=1)
    draws = int(np.clip(PAIRED_WORK // max(1, most), *DRAWS))
    drawn = np.random.default_rng(SEED).multinomial(pairs, [1 / pairs] * pairs, draws)
    drawn = np.concatenate((np.ones((1, pairs), np.int64), drawn))
    sides, blocks = [np.kron(drawn, one) for one in ([[1, 0]], [[0, 1]])], np.eye(2 * pairs, dtype=np.int64)
    rows, by_pair = list[Added](), dict[int, Floats]()
    for one in figures:
        sizes = [int((one.of % 2 == side).sum()) for side in (0, 1)]
        if not sizes[0]:
            continue
        direct, through = (one.at(weights) for weights in sides)
        with np.errstate(invalid="ignore"):
            added, each = through - direct, np.diff(one.at(blocks).reshape(-1, 2))[:, 0]
        few = one.p is not None and min(sizes) < n_min(one.p)
        ends = [float(of[0]) if np.isfinite(of[0]) else None for of in (direct, through)]
        row = Added(one.title, one.p, ends[0], ends[1])
        if few or not np.isfinite(added[0]):
            rows.append(replace(row, why="too few" if few or not sizes[1] else "failed"))
            continue
        row = replace(row, added=float(added[0]))
        if np.isfinite(added).all():
            low, high = of_pairs(added[1:], float(added[0]), pairs)
            row = replace(row, low=low, high=high)
        if np.isfinite(each).all() and each.any():
            by_pair[len(rows)] = each
        rows.append(row)
    for i, p in zip(by_pair, family(list(by_pair.values())), strict=True):
        row, least = rows[i], LEAST_SHARE if rows[i].p is None else LEAST_MS
        shown = row.low is not None and row.high is not None and row.low * row.high > 0
        stated = p <= LEVEL and pairs >= GATEWAY_PAIRS and abs(row.added or 0.0) >= least and shown
        rows[i] = replace(row, p_value=p, stated=stated)
    return tuple(rows)


def _cancelled(frames: Frames, name: str) -> tuple[int, int | None]:
    """Calls through the gateway that their users cancelled, and how many of them the engine went on with."""
    attempts = frames.attempts[frames.attempts["stage"] != schema.PREFLIGHT]
    left = attempts[(attempts["ended"] == schema.CANCELLED) & (attempts["traffic"] == name)]
    if len(frames.server_log):
        known = frames.server_log[frames.server_log["request_id"].notna()]
        log, calls = (pd.MultiIndex.from_frame(one[[*CALL]].astype("int64")) for one in (known, left))
        return len(left), int(calls.isin(log[known["cancelled_at_ns"].isna()]).sum())
    completed = frames.run["engine_completed"]
    lost = -1 if completed is None else completed - int(attempts["ended"].isin(schema.SERVED).sum())
    return len(left), lost if 0 <= lost <= len(left) else None


# --- in words ---------------------------------------------------------------------------------------------------

_Rows = Mapping[tuple[str, float | None], Added]


def _waits(rows: _Rows, pairs: int) -> Iterator[str]:
    of = {percentile(p): row for p in (0.5, 0.99) if (row := rows.get((TTFT, p))) and row.added is not None}
    adds = [f"{ms(row.added)} ms to {name} ({row.ends})" for name, row in of.items() if row.stated]
    if adds:
        yield f"adds {' and '.join(adds).replace(' to p', ' to TTFT p', 1)}"
    others = ", ".join(f"{name} {row.ends} ms" for name, row in of.items() if not row.stated)
    if others:
        where = "" if adds else f" of TTFT in {plural(pairs, 'pair')} of blocks"
        yield f"shows no change{where} ({others})"


def _flow(rows: _Rows) -> Iterator[str]:
    held, bunched = rows.get((HELD, None)), rows.get((BUNCHED, None))
    if held is not None and held.stated and (held.added or 0) > 0:
        yield f"holds {share(held.through)} of the answers back until they end"
    elif bunched is not None and bunched.stated and (bunched.added or 0) > 0:
        yield f"passes chunks on in bunches ({share(bunched.through)} come with the one before, {share(bunched.direct)} directly)"
    elif bunched is not None and bunched.high is not None and bunched.high < 5 * LEAST_SHARE:
        yield "passes chunks on one by one"


def _failures(rows: _Rows) -> Iterator[str]:
    row = rows.get((FAILED, None))
    if row is not None and row.stated:
        yield f"fails {share(row.through)} of the requests ({share(row.direct)} directly)"


def _tokens(rows: _Rows) -> Iterator[str]:
    row = rows.get((TOKENS[0], None))
    if row is None or not row.direct:
        return
    if row.added is None:
        yield "reports no tokens"
    elif row.stated:
        more = "more" if row.added > 0 else "fewer"
        yield f"counts {share(abs(row.added) / row.direct)} {more} prompt tokens"
    elif max(abs(row.low or 0), abs(row.high or 0)) <= LEAST_SHARE * row.direct:
        yield "counts the same tokens"


def headline(of: Gateway, of_run: Result) -> Result:
    """The answer of the run, behind it what the run says of its objectives."""
    if of_run.outcome == NO_ANSWER:
        return of_run
    few = (f"{of.pairs} pairs of blocks, {GATEWAY_PAIRS} are needed",) if of.pairs < GATEWAY_PAIRS else ()
    outcome = INCONCLUSIVE if few and of_run.outcome != FAIL else of_run.outcome
    return replace(of_run, outcome=outcome, sentence=of.sentence, details=(*few, *of_run.details))


def section(of: Gateway) -> Section:
    """What it adds, figure by figure."""
    cells = []
    for row in of.rows:
        ends = row.ends if row.low != row.high else ""
        added = Value(row.text(row.added), ends) if row.added is not None else row.why
        title = row.title if row.p is None else f"{row.title} {percentile(row.p)}, ms"
        cells.append((title, row.text(row.direct), row.text(row.through), added, p_text(row.p_value)))
    passed = UNKNOWN if of.lost is None else f"{of.cancelled - of.lost:,} of {of.cancelled:,} passed on"
    known = [row for row in of.rows if row.p is not None and row.added is not None]
    brief: dict[str, list[str]] = {row.title: [] for row in known}
    for row in known:
        brief[row.title].append(f"{percentile(row.p or 0)} {ms(row.added)} ms ({row.ends})")
    return Section(
        "gateway", "Gateway", of.sentence, facts=(("cancelled calls", passed if of.cancelled else "none"),),
        tables=(Table(f"What the {plain(of.name, 80)} adds", HEADER, tuple(cells), f"{plural(of.pairs, 'pair')} of blocks."),),
        computed=(COMPUTED,), brief=tuple(f"{title}: {', '.join(texts)}" for title, texts in brief.items()),
    )  # fmt: skip
