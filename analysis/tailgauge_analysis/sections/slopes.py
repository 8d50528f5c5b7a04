"""The cost of prompt tokens in TTFT, and of context and concurrent answers in TPOT.

Of the steady stage without slow readers, quantile regression with intervals by the stationary bootstrap, of at most MOST
values, evenly over the stage:

    TTFT = a + u uncached / 1,000 + c cached / 1,000 + f calls in flight when sent + d new connection
    TPOT = a + k context / 1,000 + s answers that arrive at the same time + b tokens before it

At p50. All effects of a report are one family (Holm): `value` is None where an effect does not survive at 5%.

TTFT is since sent, of every answered call. TPOT is of gaps between chunks, for each of their tokens: of a whole answer it
depends on the length, since a short answer that meets one foreign prompt has it in few gaps. What stands beside a gap is of
its beginning. Context is the prompt and the answer before the gap; the tokens before it are a column of their own, since
gaps change as an answer goes on for other reasons. Models differ by a constant, and what the answers beside it hold more than
their mean is a column too: slow times have more arrivals, so that short answers meet more of it.

Not estimated, and named: a column without variation, or that follows from the others; all of them where the latency itself
has none; a slope whose sign turns when the length of the answer enters; a slope below 0, since no load makes a target
faster, so that something else came with it. Two columns whose correlation is beyond TOGETHER are named: their effects
cannot be separated.

How many calls were concurrent with one: when it was sent, and when it was decoded.

Counts are of all attempts of a run, whatever became of them, since each is a load on the target. The workers' clocks are
mapped to one, as precisely as they are known (verdict/clocks.py has how many calls that leaves open).
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field, replace
from itertools import combinations

import numpy as np
import pandas as pd

from tailgauge.rows import schema
from tailgauge_analysis.metrics.answers import prompt_tokens
from tailgauge_analysis.metrics.steady import Steady
from tailgauge_analysis.reading.frames import CALL
from tailgauge_analysis.run import Run
from tailgauge_analysis.stats.binomial import student, student_beyond
from tailgauge_analysis.stats.estimate import holm
from tailgauge_analysis.stats.quantile_regression import errors, fit, independent
from tailgauge_analysis.stats.quantiles import BEYOND, UNRELIABLE, Floats, Ints
from tailgauge_analysis.text.formatting import ms
from tailgauge_analysis.text.quantile import UNPUBLISHED
from tailgauge_analysis.text.section import Value

P = 0.5
ALPHA = 0.05
TOGETHER = 0.9  # correlation of two columns
MOST = 2000  # values of a regression
REPS = 200
POINTS = 400
EACH = 20  # answers that must lie apart from as many others in a column
ALIKE = {"tokens": 50.0, "calls": 1.0, "new": 0.0}  # a column whose values lie closer has no variation
ALIKE_MS = 0.01  # nor has a latency
OF_MEAN = 0.05
UNCACHED = "uncached_tokens"
CACHED = "cached_tokens"
IN_FLIGHT = "in_flight"
CONNECTION = "new_connection"
CONTEXT = "context_tokens"
NEIGHBOURS = "arriving"
UNITS = {  # title, name, scale
    UNCACHED: ("ms per 1,000 uncached prompt tokens", "uncached prompt tokens", "tokens"),
    CACHED: ("ms per 1,000 cached prompt tokens", "cached prompt tokens", "tokens"),
    IN_FLIGHT: ("ms per call in flight when sent", "calls in flight", "calls"),
    CONNECTION: ("ms for a new connection", "new connection", "new"),
    CONTEXT: ("ms per output token and 1,000 tokens of context", "context", "tokens"),
    NEIGHBOURS: ("ms per output token and concurrent answer", "concurrent answers", "calls"),
}
NO_EFFECT = "no effect seen"
TITLES = {"ttft_sent": "TTFT since sent", "tpot": "TPOT"}


@dataclass(frozen=True, slots=True, kw_only=True)
class Slope:
    """A coefficient at p50, in ms, with its 95% interval; no value where it does not survive in the family."""

    name: str
    value: float | None
    low: float
    high: float
    mark: str
    p_value: float

    @property
    def excludes_zero(self) -> bool:
        """Whether its interval is on one side of 0."""
        return self.low > 0 or self.high < 0


def significant(regressions: Sequence[Sequence[Slope]]) -> list[tuple[Slope, ...]]:
    """Return the slopes of each regression, without a value where one does not survive among all of them."""
    p_values = [slope.p_value for slopes in regressions for slope in slopes]
    adjusted = iter(holm(p_values))
    family = []
    for slopes in regressions:
        judged = []
        for slope in slopes:
            survives = next(adjusted) <= ALPHA
            judged.append(slope if survives else replace(slope, value=None))
        family.append(tuple(judged))
    return family


@dataclass(frozen=True, slots=True, kw_only=True)
class Regression:
    """One regression. `left_out`: columns without variation; `confounded`: with the length, or below 0; `together`: pairs of
    columns that cannot be separated. `why`: the reason without slopes. Points for the figure: x, y in ms.
    """

    of: str
    n: int
    slopes: tuple[Slope, ...] = ()
    left_out: tuple[str, ...] = ()
    confounded: tuple[str, ...] = ()
    together: tuple[tuple[str, str], ...] = ()
    why: str
    against: str
    x: Floats = field(metadata=UNPUBLISHED)
    y: Floats = field(metadata=UNPUBLISHED)


def compute(run: Run) -> list[Regression]:
    """Estimate all effects of a report; one that does not survive among them has no value."""
    unsure_calls = run.calls_between
    regressions = fitted(run.frames.attempts, run.of_target, unsure_calls)
    family = significant([regression.slopes for regression in regressions])
    return [replace(one, slopes=slopes) for one, slopes in zip(regressions, family, strict=True)]


def fitted(run: pd.DataFrame, stage: Steady, unsure_calls: float = 0.0) -> list[Regression]:
    """Regressions of TTFT and TPOT; `run` are all attempts. `unsure_calls`: within how many the calls in flight over all workers are
    known.
    """
    return [_ttft(run, stage.attempts, unsure_calls), _tpot(run, stage)]


def _ttft(run: pd.DataFrame, calls: pd.DataFrame, unsure_calls: float) -> Regression:
    good = calls[calls["ended"].isin(schema.COMPLETE) & calls["reader_paused_ns"].isna()]
    good = good.dropna(subset=["input_tokens", "output_tokens", "first_content_at_ns", "sent_at_ns"])
    of = evenly(good.sort_values("sent_at_ns", kind="stable"))
    sent = of["sent_at_ns"].to_numpy(np.float64)
    uncached, cached = (tokens.to_numpy(np.float64) for tokens in prompt_tokens(of))
    y = (of["first_content_at_ns"].to_numpy(np.float64) - sent) / 1e6
    columns = {
        UNCACHED: uncached,
        CACHED: cached,
        IN_FLIGHT: open_at(run, sent),
        CONNECTION: of["connection_is_new"].to_numpy(np.float64),
    }
    output = of["output_tokens"].to_numpy(np.float64)
    unsure = {IN_FLIGHT: 2 * unsure_calls}
    others = _models(of)
    return regress("ttft_sent", columns, y, against=UNCACHED, unsure=unsure, others=others, length=output)


def _tpot(run: pd.DataFrame, stage: Steady) -> Regression:
    of, y, at, place = _gaps(stage)
    answer = ["request_id", "answer_leg", "answer_attempt"]
    key = list(CALL)
    theirs = run[run["request_id"].isin(of["request_id"])].drop_duplicates(key)
    calls = of.merge(theirs, "left", left_on=answer, right_on=key, suffixes=("", "_of_call"))
    prompt = sum(tokens.to_numpy(np.float64) for tokens in prompt_tokens(calls))
    tokens, output = (calls[name].to_numpy(np.float64) for name in ("pace_tokens", "output_tokens"))
    before = place * (tokens - 1) / (calls["pace_chunks"].to_numpy(np.float64) - 1) + 1
    arriving = open_at(run, at + 1, "first_content_at_ns", "last_content_at_ns")
    columns = {CONTEXT: prompt + output - tokens + before, NEIGHBOURS: arriving}
    beside = context_at(run, at + 1) - columns[CONTEXT]
    known = np.isfinite(prompt + before + beside)  # a damaged row has times that cannot be
    mean = beside[known].sum() / max(1.0, float((arriving - 1)[known].sum()))
    beside = (beside - mean * (arriving - 1)) / 1000
    others = {"before": before, "beside": beside, **_models(calls)}
    columns, others = ({name: values[known] for name, values in some.items()} for some in (columns, others))
    return regress("tpot", columns, y[known], against=NEIGHBOURS, others=others, length=output[known])


def _gaps(stage: Steady) -> tuple[pd.DataFrame, Floats, Floats, Ints]:
    """At most MOST gaps, in order of time: the request of each, ms for each token, when it began, its number in the answer."""
    requests = stage.requests
    is_complete = requests["ended"].isin(schema.COMPLETE)
    paced = is_complete & requests["streamed"].eq(True) & requests["pace_missing"].isna()
    skip = requests["pace_skip"].to_numpy(np.int64)
    gaps = stage.gap_counts
    counted = np.where(paced & (requests["pace_tokens"] >= 2), np.maximum(gaps - skip, 0), 0)
    ends = np.cumsum(counted)
    some = np.unique(np.linspace(0, max(0, counted.sum() - 1), min(MOST, counted.sum())).astype(np.int64))
    row = np.searchsorted(ends, some, "right")
    place = some - (ends - counted)[row]
    begin = (np.cumsum(gaps) - gaps + skip)[row]
    of = requests.iloc[row]
    passed = [stage.gaps_ns[i : i + n].sum() for i, n in zip(begin, place, strict=True)]
    at = of["pace_from_ns"].to_numpy(np.float64) + np.array(passed, np.float64)
    tokens = (of["pace_tokens"] - 1).to_numpy(np.float64) / counted[row]
    order = np.argsort(at, kind="stable")
    y = stage.gaps_ns[begin + place] / 1e6 / tokens
    return of.iloc[order], y[order], at[order], place[order]


def _models(of: pd.DataFrame) -> dict[str, Floats]:
    """A column for each model of each target but the first."""
    codes = of.groupby(["target", "asked_model"], observed=True, dropna=False).ngroup().to_numpy(np.int64)
    return {f"model {i}": (codes == i).astype(np.float64) for i in np.unique(codes)[1:]}


def evenly(rows: pd.DataFrame) -> pd.DataFrame:
    """At most MOST of them, evenly over the stage."""
    return rows if len(rows) <= MOST else rows.iloc[np.linspace(0, len(rows) - 1, MOST).astype(int)]


def regress(
    of: str,
    columns: Mapping[str, Floats],
    y: Floats,
    *,
    against: str,
    unsure: Mapping[str, float] | None = None,
    others: Mapping[str, Floats] | None = None,
    length: Floats | None = None,
) -> Regression:
    """The slopes of y on those columns that vary enough, and more than by what they are `unsure`, beside `others`, which are not
    reported; `length`: tokens of each answer.
    """
    blur = unsure or {}
    varied = {n: values for n, values in columns.items() if len(y) and _varies(n, values, blur.get(n, 0.0))}
    scaled = {n: values / 1000 if UNITS[n][2] == "tokens" else values for n, values in varied.items()}
    design = independent({"": np.ones(len(y)), **(others or {}), **scaled})
    left_out = tuple(name for name in columns if name not in design)
    few = np.unique(np.linspace(0, max(0, len(y) - 1), min(POINTS, len(y))).astype(int))
    unknown = Regression(
        of=of,
        n=len(y),
        left_out=tuple(columns),
        why=_why(y, len(left_out) < len(columns)),
        against=against,
        x=columns[against][few],
        y=y[few],
    )
    if unknown.why:
        return unknown
    x = np.stack(list(design.values()), axis=1)
    longer = design if length is None else independent({**design, "length": length})
    with_length = fit(np.stack(list(longer.values()), axis=1), y, P)
    deviations, freedom = errors(x, y, P, REPS)
    half = student(freedom) * deviations
    slopes: list[Slope] = []
    confounded: list[str] = []
    for name, value, error, width, again in zip(
        design, fit(x, y, P), deviations, half, with_length, strict=False
    ):
        if name not in columns:
            continue
        slope = Slope(
            name=name,
            value=float(value),
            low=float(value - width),
            high=float(value + width),
            mark=UNRELIABLE if _smaller(columns[name]) * (1 - P) < BEYOND else "",
            p_value=2 * student_beyond(abs(value) / max(error, 1e-300), freedom) if value else 1.0,
        )
        if slope.excludes_zero and (value < 0 or again * value < 0):
            confounded.append(name)
        else:
            slopes.append(slope)
    return replace(
        unknown,
        slopes=tuple(slopes),
        left_out=left_out,
        confounded=tuple(confounded),
        together=_together({name: design[name] for name in columns if name in design}),
    )


def _together(columns: Mapping[str, Floats]) -> tuple[tuple[str, str], ...]:
    """Return the pairs of columns that rise and fall together."""
    correlated = []
    for first, second in combinations(columns, 2):
        if abs(np.corrcoef(columns[first], columns[second])[0, 1]) > TOGETHER:
            correlated.append((first, second))
    return tuple(correlated)


def _why(y: Floats, some: bool) -> str:
    if len(y) < 2 * EACH:
        return f"{len(y)} answers with usage, {2 * EACH} needed"
    return "" if some and _spread(y) > ALIKE_MS else "no variation in this run"


def _spread(values: Floats) -> float:
    """By how much EACH lie apart from EACH others."""
    low, high = np.partition(values, (EACH - 1, len(values) - EACH))[[EACH - 1, len(values) - EACH]]
    return float(high - low)


def _varies(name: str, values: Floats, unsure: float) -> bool:
    """Whether EACH answers lie apart from EACH others by more than what counts as alike."""
    if len(values) < 2 * EACH:
        return False
    return _spread(values) > max(unsure, ALIKE[UNITS[name][2]], OF_MEAN * float(np.abs(values).mean()))


def _smaller(values: Floats) -> int:
    """How many lie on the less crowded side of the mean."""
    above = int((values > values.mean()).sum())
    return min(above, len(values) - above)


def slope_cell(slope: Slope) -> Value:
    """Return its value, with the interval."""
    low, high = (ms(round(end, 6) + 0.0) for end in (slope.low, slope.high))  # no -0
    value = NO_EFFECT if slope.value is None else ms(slope.value)
    return Value(value, f"{low} – {high}", slope.mark)


# --- how many calls were concurrent with one ----------------------------------------------------------------------


def open_at(
    attempts: pd.DataFrame, at_ns: Floats, since: str = "sent_at_ns", until: str = "ended_at_ns"
) -> Floats:
    """Attempts sent before and not ended at each time; or between two others of their times."""
    begun = np.sort(attempts[since].dropna().to_numpy(np.float64))
    over = np.sort(attempts.loc[attempts[since].notna(), until].dropna().to_numpy(np.float64))
    return np.subtract(np.searchsorted(begun, at_ns), np.searchsorted(over, at_ns, "right"), dtype=np.float64)


def context_at(attempts: pd.DataFrame, at_ns: Floats) -> Floats:
    """Tokens of the prompts and answers, as far as they have come, that were arriving at each time; answers come evenly."""
    names = ("first_content_at_ns", "last_content_at_ns", "output_tokens")
    begun, over, output = (attempts[name].to_numpy(np.float64) for name in names)
    prompt = sum(tokens.fillna(0).to_numpy(np.float64) for tokens in prompt_tokens(attempts))
    rate = np.where(over > begun, np.nan_to_num(output) / np.maximum(over - begun, 1.0), 0.0)
    total = np.zeros(len(at_ns))
    for at, sign in ((begun, 1.0), (over, -1.0)):
        order = np.argsort(at)[: int(np.isfinite(at).sum())]
        passed = np.searchsorted(at[order], at_ns, "right")
        fixed = np.concatenate(([0.0], np.cumsum((prompt - rate * begun)[order])))
        growing = np.concatenate(([0.0], np.cumsum(rate[order])))
        total += sign * (fixed[passed] + growing[passed] * at_ns)
    return total
