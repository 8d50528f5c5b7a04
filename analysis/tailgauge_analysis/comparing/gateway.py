"""What a gateway adds, from the alternating blocks of a run: the same traffic directly (A) and through it (B).

A figure is that of all requests of a variant; what is added is B less A, in ms or as a share. Interval: pairs of blocks are
drawn again. A difference is stated where it is at least LEAST and the swaps of A and B within the pairs reach it, in any
figure, with a probability of at most LEVEL: the figures are one family. Failures are slower than any answer; requests that
their users left before the event are left out.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator
from dataclasses import dataclass, replace

import numpy as np
import pandas as pd

from tailgauge.rows import schema
from tailgauge_analysis.comparing.alternating import Parts, parts
from tailgauge_analysis.comparing.comparison import Comparison
from tailgauge_analysis.metrics.answers import prompt_tokens
from tailgauge_analysis.metrics.latency import offered_waits
from tailgauge_analysis.metrics.metrics import BY_NAME
from tailgauge_analysis.metrics.steady import Steady
from tailgauge_analysis.reading.dedup import CALL
from tailgauge_analysis.reading.frames import Frames
from tailgauge_analysis.stats.bootstrap import PAIRED_WORK, SEED, of_pairs, weighted_quantiles
from tailgauge_analysis.stats.quantiles import Floats, Ints, n_min
from tailgauge_analysis.text.formatting import listed, ms, percentile, plain, plural, share
from tailgauge_analysis.text.json_values import table
from tailgauge_analysis.text.section import INCONCLUSIVE, NO_ANSWER, Result, Section, Table, Value

LEVEL = 0.01
FEWEST = 8  # pairs: of fewer, no swaps are that improbable
LEAST = {"ms": 0.1, "share": 0.01}  # differences below are not stated
PS = (0.5, 0.95, 0.99)
DRAWS = (200, 999)
TOGETHER, TOGETHER_MS = (
    0.1,
    (0.05, 0.5),
)  # of the direct median gap, and bounds: chunks so close arrive together
WHOLE = 0.1  # of the direct median time from first to last content: an answer so short arrives whole
HEADERS, TTFT, E2E = "time to headers", "TTFT", "end to end"
FAILED, LEFT_OUT = "failed requests", "answers without usage"
TOGETHER_SHARE, WHOLE_SHARE = "chunks that arrive with the one before", "answers that arrive whole"
PROMPT, OUTPUT = "prompt tokens, of those asked for", "output tokens, of those asked for"
HEADER = ("", "direct", "through it", "added", "p")
COMPUTED = (
    "Added: the figure of all requests through the gateway less that of all direct ones; its 95% interval draws pairs of blocks "
    f"again. p: how often swapping the blocks within pairs brings any figure as far; differences are stated at {LEVEL:g}, and from "
    f"{LEAST['ms']:g} ms or {LEAST['share'] * 100:g} point. TTFT and end to end are since scheduled, failures slowest; a user who "
    "left before is left out. Cancelled calls: by the endpoint's log, or by vLLM's counter of completed calls."
)


@dataclass(frozen=True, slots=True)
class Added:
    """One figure of both variants, in ms or as a share, and what the gateway adds; None where it is not known."""

    title: str
    p: float | None
    unit: str
    direct: float | None
    through: float | None
    added: float | None
    low: float | None = None
    high: float | None = None
    p_family: float | None = None
    stated: bool = False

    @property
    def shown(self) -> Callable[[float | None], str]:
        """How its numbers are written."""
        return ms if self.unit == "ms" else share


@dataclass(frozen=True, slots=True)
class Gateway:
    """What a gateway adds. `lost`: of the `cancelled` calls through it, those that the engine went on with; None: not known."""

    name: str
    pairs: int
    rows: tuple[Added, ...]
    cancelled: int
    lost: int | None
    sentence: str = ""


@dataclass(frozen=True, slots=True)
class _Figure:
    """Values and the block of each; of a share (`p` None), what is counted and of how many."""

    title: str
    p: float | None
    of: Ints
    values: Floats
    under: Floats | None = None

    def at(self, weights: Ints) -> Floats:
        """The figure of each draw, each block counted as often as its weight; NaN of none."""
        if self.under is None:
            return weighted_quantiles(self.of, self.values, self.p or 0.0, weights)
        n = weights.shape[1]
        over, under = (weights @ np.bincount(self.of, one, n) for one in (self.values, self.under))
        return np.divide(over, under, out=np.full(len(weights), np.nan), where=under > 0)


def gateway(frames: Frames, stage: Steady, blocks: Comparison | None) -> Gateway | None:
    """What it adds; None without a gateway, or where the blocks cannot be compared."""
    settings = table(frames.run["scenario"], "crossover")
    if blocks is None or settings.get("gateway") is not True or blocks.block_s is None:
        return None
    if blocks.against or any(grows is not None for grows in blocks.growth_per_s):
        return None
    found = parts(stage, (blocks.a, blocks.b), blocks.block_s, blocks.washout_s or 0.0)
    rows = _judged([*_figures(stage, _block_of(stage, found))], len(found))
    cancelled, lost = _cancelled(frames, blocks.b)
    made = Gateway(blocks.b, len(found), rows, cancelled, lost)
    return replace(made, sentence=_sentence(made))


def _block_of(stage: Steady, found: Parts) -> Ints:
    """The block of each request, two numbers for a pair; -1 outside."""
    block = np.full(len(stage.requests), -1, np.int64)
    for i, pair in enumerate(found):
        for side, part in enumerate(pair):
            block[part.requests] = 2 * i + side
    return block


def _figures(stage: Steady, block: Ints) -> Iterator[_Figure]:
    requests = stage.requests
    first = stage.attempts[(stage.attempts["leg"] == 0) & (stage.attempts["attempt"] == 0)]
    first = first.drop_duplicates("request_id").set_index("request_id")
    headers = requests["request_id"].map(first["headers_at_ns"] - first["sent_at_ns"]).to_numpy(np.float64)
    waits = {HEADERS: headers / 1e6}
    for title, name in ((TTFT, "ttft_sched"), (E2E, "e2e_sched")):
        every = offered_waits(BY_NAME[name], stage)
        waits[title] = np.where(every.cut | np.isnan(every.ms), np.nan, every.values)
    for title, values in waits.items():
        known = ~np.isnan(values) & (block >= 0)
        yield from (_Figure(title, p, block[known], values[known]) for p in PS)

    def shares(title: str, of: Floats, under: Floats, at: Ints = block) -> _Figure:
        known = (at >= 0) & np.isfinite(of) & np.isfinite(under)
        return _Figure(title, None, at[known], of[known].astype(np.float64), under[known].astype(np.float64))

    ended = requests["ended"]
    stays = (~ended.isin((schema.CANCELLED, schema.CENSORED))).to_numpy(np.float64)
    yield shares(FAILED, stays * ~ended.isin(schema.COMPLETED).to_numpy(np.bool_), stays)
    of_gap, gaps_ms = np.repeat(block, stage.gap_counts), stage.gaps_ns / 1e6
    direct = gaps_ms[(of_gap >= 0) & (of_gap % 2 == 0)]
    near = np.clip(TOGETHER * np.median(direct), *TOGETHER_MS) if len(direct) else 0.0
    yield shares(TOGETHER_SHARE, (gaps_ms <= near).astype(np.float64), np.ones(len(gaps_ms)), of_gap)
    span = (requests["last_content_at_ns"] - requests["first_content_at_ns"]).to_numpy(np.float64)
    several = (stage.gap_counts > 0).astype(np.float64)
    usual = span[(block >= 0) & (block % 2 == 0) & (several > 0)]
    short = WHOLE * np.median(usual) if len(usual) else 0.0
    yield shares(WHOLE_SHARE, several * (span <= short), several)
    calls = (
        stage.attempts[stage.attempts["ended"] == schema.OK]
        .drop_duplicates("request_id")
        .set_index("request_id")
    )
    computed, read = prompt_tokens(calls)
    asked = (requests[f"asked_{name}_tokens"].to_numpy(np.float64) for name in ("prompt", "output"))
    counted = (
        requests["request_id"].map(one).to_numpy(np.float64)
        for one in (computed + read, calls["output_tokens"])
    )
    for title, of, under in zip((PROMPT, OUTPUT), counted, asked, strict=True):
        yield shares(title, of, under)
    known = requests["request_id"].isin(calls.index).to_numpy(np.float64)
    without = (
        requests["request_id"].map(calls["output_tokens"].isna()).fillna(value=False).to_numpy(np.float64)
    )
    yield shares(LEFT_OUT, without, known)


def _judged(figures: list[_Figure], pairs: int) -> tuple[Added, ...]:
    """Every figure that both variants have, with interval and p."""
    draws = int(np.clip(PAIRED_WORK // max(1, *(len(one.of) for one in figures if one.under is None)), *DRAWS))
    rng = np.random.default_rng(SEED)
    drawn = rng.multinomial(pairs, [1 / pairs] * pairs, draws) if pairs else np.zeros((draws, 0), np.int64)
    swapped = rng.integers(0, 2, (draws, pairs))
    as_is, none = np.ones((1, pairs), np.int64), np.zeros((1 + draws, pairs), np.int64)
    of_own, of_other = np.concatenate((as_is, drawn, 1 - swapped)), np.concatenate((none, swapped))
    a, b = (
        np.stack(both, axis=2).reshape(1 + 2 * draws, 2 * pairs)
        for both in ((of_own, of_other), (of_other, of_own))
    )
    rows, scaled = [], []
    for one in figures:
        sizes = [int((one.of % 2 == side).sum()) for side in (0, 1)]
        if not min(sizes):
            continue
        direct, through = one.at(a), one.at(b)
        with np.errstate(invalid="ignore"):
            added = through - direct
        unit = "share" if one.p is None else "ms"
        enough = one.p is None or min(sizes) >= n_min(one.p)
        if not enough or not np.isfinite(added[0]):
            ends = [float(of[0]) if enough and np.isfinite(of[0]) else None for of in (direct, through)]
            rows.append(Added(one.title, one.p, unit, *ends, None))
            continue
        seen, chance = added[1 : 1 + draws], added[1 + draws :]
        low, high = of_pairs(seen, float(added[0]), pairs) if np.isfinite(seen).all() else (None, None)
        rows.append(
            Added(one.title, one.p, unit, float(direct[0]), float(through[0]), float(added[0]), low, high)
        )
        spread = chance.std() if np.isfinite(chance).all() else 0.0
        scaled.append(
            (len(rows) - 1, np.abs(np.append(chance, added[0])) / spread if spread else np.zeros(draws + 1))
        )
    largest = np.max([of for _, of in scaled], axis=0) if scaled else np.zeros(1)
    for i, of in scaled:
        p = float((largest >= of[-1] - 1e-9).mean())
        stated = pairs >= FEWEST and p <= LEVEL and abs(rows[i].added or 0.0) >= LEAST[rows[i].unit]
        rows[i] = replace(rows[i], p_family=p, stated=stated)
    return tuple(rows)


def _cancelled(frames: Frames, name: str) -> tuple[int, int | None]:
    """Calls through the gateway that their users cancelled, and how many of them the engine went on with."""
    attempts = frames.attempts[frames.attempts["stage"] != schema.PREFLIGHT]
    left = attempts[(attempts["ended"] == schema.CANCELLED) & (attempts["traffic"] == name)]
    log = frames.server_log
    if len(log):
        keys = list(CALL)
        log = log[log["request_id"].notna()].drop_duplicates(keys).set_index(keys)
        place = log.index.get_indexer(pd.MultiIndex.from_frame(left[keys].astype("int64")))
        return len(left), int(log["cancelled_at_ns"].isna().to_numpy()[place[place >= 0]].sum())
    completed = frames.run["engine_completed"]
    lost = None if completed is None else completed - int(attempts["ended"].isin(schema.COMPLETED).sum())
    return len(left), lost if lost is not None and 0 <= lost <= len(left) else None


# --- in words ---------------------------------------------------------------------------------------------------


def _row(of: Gateway, title: str, p: float | None = None) -> Added | None:
    return next((row for row in of.rows if (row.title, row.p) == (title, p) and row.added is not None), None)


def _ends(row: Added) -> str:
    """`1.6-2.1`, `-0.3 to 0.2`."""
    if row.low is None or row.high is None:
        return "no interval"
    return f"{row.shown(row.low)}{'-' if row.low >= 0 else ' to '}{row.shown(row.high)}"


def _sentence(of: Gateway) -> str:
    """The answer."""
    said = [_waits(of), *filter(None, (_flow(of), _failures(of), _cancellations(of), _tokens(of)))]
    text = f"The {plain(of.name, 80)} {listed(said, None) if len(said) < 3 else ', '.join(said[:-1]) + ', and ' + said[-1]}"
    output = _row(of, OUTPUT)
    if output is not None and output.stated and output.direct:
        text = f"Not the same work, {share((output.added or 0) / output.direct)} more output tokens a call through it. {text}"
    return text


def _waits(of: Gateway) -> str:
    for title in (TTFT, E2E):
        rows = [row for p in (0.5, 0.99) if (row := _row(of, title, p))]
        stated = [row for row in rows if row.stated]
        if stated or title == E2E:
            break
    if not stated:
        rows = [row for p in (0.5, 0.99) if (row := _row(of, TTFT, p))]
        ends = " and ".join(f"{percentile(row.p or 0)} ({_ends(row)} ms)" for row in rows)
        return f"adds nothing to TTFT that {plural(of.pairs, 'pair')} of blocks show: {ends or 'too few answers'}"
    parts = []
    for row in rows:
        name = f"{title} {percentile(row.p or 0)}" if row is rows[0] else percentile(row.p or 0)
        value = f"{ms(abs(row.added or 0))} ms" + (" less" if (row.added or 0) < 0 else "")
        parts.append(
            f"{value} to {name} ({_ends(row)})"
            if row.stated
            else f"nothing shown to {name} ({_ends(row)} ms)"
        )
    return f"adds {' and '.join(parts)}"


def _flow(of: Gateway) -> str:
    whole, together = _row(of, WHOLE_SHARE), _row(of, TOGETHER_SHARE)
    if whole is not None and whole.stated and (whole.added or 0) > 0:
        return f"holds {share(whole.through)} of the answers back until they end"
    if together is None:
        return ""
    if together.stated and (together.added or 0) > 0:
        return f"passes chunks on in bunches ({share(together.through)} arrive with the one before, {share(together.direct)} directly)"
    sure = together.high is not None and together.high < 5 * LEAST["share"]
    return "passes chunks on one by one" if sure else ""


def _failures(of: Gateway) -> str:
    row = _row(of, FAILED)
    if row is None or not row.stated:
        return ""
    return f"fails {share(row.through)} of the requests ({share(row.direct)} directly)"


def _cancellations(of: Gateway) -> str:
    return f"does not pass on {of.lost:,} of {of.cancelled:,} cancellations" if of.lost else ""


def _tokens(of: Gateway) -> str:
    without, prompt = _row(of, LEFT_OUT), _row(of, PROMPT)
    if without is not None and without.stated and (without.added or 0) > 0:
        return f"leaves the usage out of {share(without.through)} of the answers"
    if prompt is None or prompt.low is None or prompt.high is None or not prompt.direct:
        return ""
    if prompt.stated:
        more = (prompt.added or 0) / prompt.direct
        return f"counts {share(abs(more))} {'more' if more > 0 else 'fewer'} prompt tokens"
    same = max(abs(prompt.low), abs(prompt.high)) <= LEAST["share"] * prompt.direct
    return "counts the same tokens" if same else ""


def headline(of: Gateway, of_run: Result) -> Result:
    """The answer of the run, behind it what the run says of its objectives."""
    if of_run.outcome == NO_ANSWER:
        return of_run
    few = (f"{of.pairs} pairs of blocks, {FEWEST} are needed",) if of.pairs < FEWEST else ()
    outcome = INCONCLUSIVE if few and of_run.outcome != "FAIL" else of_run.outcome
    return replace(of_run, outcome=outcome, sentence=of.sentence, details=(*few, *of_run.details))


def section(of: Gateway) -> Section:
    """What it adds, figure by figure."""
    rows = tuple(
        (
            f"{row.title} {percentile(row.p)}, ms" if row.p is not None else row.title, row.shown(row.direct), row.shown(row.through),
            Value(row.shown(row.added), "" if row.added is None else _ends(row)),
            "too few" if row.added is None else "–" if row.p_family is None else f"{row.p_family:.3f}",
        )
        for row in of.rows
    )  # fmt: skip
    known = "not known: the endpoint does not tell which calls it went on with"
    if of.lost is not None:
        known = f"{of.cancelled - of.lost:,} of {of.cancelled:,} passed on"
    brief = [
        f"{title.lower()}: " + ", ".join(f"{percentile(p)} {ms(row.added)} ({_ends(row)})" for p in PS if (row := _row(of, title, p)))
        for title in (HEADERS, TTFT, E2E)
    ]  # fmt: skip
    return Section(
        "gateway", "Gateway", of.sentence, facts=(("cancelled calls", known if of.cancelled else "none"),),
        tables=(Table(f"What the {plain(of.name, 80)} adds", HEADER, rows, f"{plural(of.pairs, 'pair')} of blocks."),),
        computed=(COMPUTED,), brief=tuple(brief),
    )  # fmt: skip
