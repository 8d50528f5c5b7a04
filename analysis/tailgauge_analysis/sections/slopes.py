"""The cost of prompt tokens in TTFT, and of context and concurrent answers in TPOT.

Rank regression (stats/rank_regression.py) over the steady stage without slow readers, of at most MOST values, evenly over it:

    TTFT = a + u uncached / 1,000 + c cached / 1,000 + f calls in flight when sent
    TPOT = a + k context / 1,000 + s answers that arrive at the same time

All effects of a report are one family (Holm): `value` is None where an effect does not survive at 5%.

TTFT is since sent, of every answered call. TPOT is of gaps between chunks, for each of their tokens: of a whole answer it
depends on the length, since a short answer that meets one foreign prompt has it in few gaps. What stands beside a gap is of
its beginning. Context is the prompt and the answer before the gap.

Columns beside them, which are not reported: slow changes over the stage (cosines), the traffic table, target, model, worker and
tags, and the length of the answer; of a gap also the tokens before it, since gaps change as an answer goes on, and what the
answers beside it hold more than their mean: slow times have more arrivals, so that short answers meet more of it. Calls of
one session, or of one prompt of a file, are alike: they are a group.

Slow answers stay in flight, so that calls in flight follow the latency as much as it follows them. Their effect is that of
the calls which arrivals bring about: the number to be expected from when requests were due, at the latencies of the whole
run. In a closed loop, and where arrivals hardly vary, nothing is left of it. Effects of tokens stand beside the number itself.

Not estimated, and named: a column without variation, or with little but what follows from the columns beside it; all of
them where the latency itself has none; a slope below 0, since no load makes a target faster, so that something else came
with it; two columns whose correlation is beyond TOGETHER.

How many calls were concurrent with one: when it was sent, and when it was decoded.

Counts are of all attempts of a run, whatever became of them, since each is a load on the target. The workers' clocks are
mapped to one, as precisely as they are known (verdict/clocks.py has how many calls that leaves open).
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field, replace
from itertools import chain, combinations

import numpy as np
import pandas as pd

from tailgauge.rows import schema
from tailgauge_analysis.metrics.answers import prompt_tokens
from tailgauge_analysis.metrics.steady import Steady
from tailgauge_analysis.reading.frames import CALL
from tailgauge_analysis.run import Run
from tailgauge_analysis.stats.estimate import holm
from tailgauge_analysis.stats.quantile_regression import independent
from tailgauge_analysis.stats.quantiles import BEYOND, UNRELIABLE, Floats, Ints
from tailgauge_analysis.stats.rank_regression import shifts
from tailgauge_analysis.text.formatting import ms
from tailgauge_analysis.text.quantile import UNPUBLISHED
from tailgauge_analysis.text.section import Value

ALPHA = 0.05
TOGETHER = 0.9  # correlation of two columns, or of one with all that stands beside it
BY_ARRIVALS = 0.3  # correlation of calls in flight with those to be expected from arrivals
MOST = 2000  # values, of other sections
MOST_VALUES = 4000  # of a regression
POINTS = 400
EACH = 20  # answers that must lie apart from as many others in a column
WAVES = 12  # half waves of the fastest change over the stage that no effect is made of
VALUES_OF_WAVE = 50
LEVELS = 20  # of a column of names
GRID = 1 << 16  # steps of a run's time in which arrivals are counted
ALIKE = {"tokens": 50.0, "calls": 1.0}  # a column whose values lie closer has no variation
ALIKE_MS = 0.01  # nor has a latency
OF_MEAN = 0.05
UNCACHED = "uncached_tokens"
CACHED = "cached_tokens"
IN_FLIGHT = "in_flight"
CONTEXT = "context_tokens"
NEIGHBOURS = "arriving"
UNITS = {  # title, name, scale
    UNCACHED: ("ms per 1,000 uncached prompt tokens", "uncached prompt tokens", "tokens"),
    CACHED: ("ms per 1,000 cached prompt tokens", "cached prompt tokens", "tokens"),
    IN_FLIGHT: ("ms per call in flight when sent", "calls in flight", "calls"),
    CONTEXT: ("ms per output token for each 1,000 tokens of context", "context", "tokens"),
    NEIGHBOURS: ("ms per output token for each concurrent answer", "concurrent answers", "calls"),
}
FACTORS = ("traffic", "target", "asked_model", "worker", "tags")
NO_EFFECT = "no effect seen"
ALL_ALIKE = "this latency does not vary"
COUNTED = {"ttft_sent": "calls with usage", "tpot": "chunk gaps of answers with a TPOT"}
SAME_LOAD = "tokens and concurrency do not vary among the answers"
TITLES = {"ttft_sent": "TTFT since sent", "tpot": "TPOT"}


@dataclass(frozen=True, slots=True, kw_only=True)
class Slope:
    """The shift of a latency in ms with its 95% interval; no value where it does not survive in the family."""

    name: str
    value: float | None
    low: float
    high: float
    mark: str
    p_value: float


@dataclass(frozen=True, slots=True, kw_only=True)
class Regression:
    """One regression. `left_out`: columns without variation; `dependent`: with little but what follows from other columns;
    `by_latency`: counts that follow the latency; `confounded`: below 0; `together`: pairs of columns that cannot be separated.
    `why`: the reason without slopes. Points for the figure: x, y in ms.
    """

    of: str
    n: int
    slopes: tuple[Slope, ...] = ()
    left_out: tuple[str, ...] = ()
    dependent: tuple[str, ...] = ()
    by_latency: tuple[str, ...] = ()
    confounded: tuple[str, ...] = ()
    together: tuple[tuple[str, str], ...] = ()
    why: str
    against: str
    x: Floats = field(metadata=UNPUBLISHED)
    y: Floats = field(metadata=UNPUBLISHED)


def significant(regressions: Sequence[Regression]) -> list[Regression]:
    """Judge all effects of a report as one family (Holm): an effect that does not survive at ALPHA loses its value.

    One that survives and is below 0 has no slope: it is named as confounded.
    """
    p_values = []
    for regression in regressions:
        p_values += [slope.p_value for slope in regression.slopes]
    adjusted_p_values = iter(holm(p_values))
    judged = []
    for regression in regressions:
        slopes = []
        confounded = []
        for slope in regression.slopes:
            survives = next(adjusted_p_values) <= ALPHA
            if not survives:
                slopes.append(replace(slope, value=None))
            elif slope.high < 0:
                confounded.append(slope.name)
            else:
                slopes.append(slope)
        judged.append(replace(regression, slopes=tuple(slopes), confounded=tuple(confounded)))
    return judged


def compute(run: Run) -> list[Regression]:
    """Estimate all effects of a report; one that does not survive among them has no value."""
    is_open = run.record["arrival"] != "closed"
    arrivals = np.empty(0)
    if is_open:
        arrivals = arrivals_ns(run.frames.attempts)
    return significant(
        fitted(run.frames.attempts, run.without_slow_readers, arrivals, run.calls_between)
    )


def arrivals_ns(attempts: pd.DataFrame) -> Floats:
    """Return when the requests and sessions of an open loop were due that were sent; later turns follow answers."""
    is_first = (attempts["leg"] == 0) & (attempts["attempt"] == 0)
    is_first &= (attempts["request_id"] % schema.TURNS == 0) & (
        attempts["stage"] != schema.PREFLIGHT
    )
    due_ns: Floats = attempts.loc[is_first, "scheduled_at_ns"].to_numpy(np.float64)
    return np.sort(due_ns)


def fitted(
    run: pd.DataFrame, stage: Steady, arrivals: Floats, unsure_calls: float = 0.0
) -> list[Regression]:
    """Return the regressions of TTFT and TPOT; `run` are all attempts. `unsure_calls`: within how many the calls in flight over all workers are
    known. `arrivals`: when requests were due, none in a closed loop.
    """
    return [_ttft(run, stage, arrivals, unsure_calls), _tpot(run, stage, arrivals)]


def _ttft(run: pd.DataFrame, stage: Steady, arrivals: Floats, unsure_calls: float) -> Regression:
    calls = stage.attempts
    good = calls[calls["ended"].isin(schema.COMPLETE) & calls["reader_paused_ns"].isna()]
    good = good.dropna(
        subset=["input_tokens", "output_tokens", "first_content_at_ns", "sent_at_ns"]
    )
    rows = evenly(good.sort_values("sent_at_ns", kind="stable"), MOST_VALUES)
    sent = rows["sent_at_ns"].to_numpy(np.float64)
    uncached, cached = prompt_tokens(rows)
    columns: dict[str, Floats] = {
        UNCACHED: np.asarray(uncached, np.float64),
        CACHED: np.asarray(cached, np.float64),
    }
    controls = {**_slow_changes(len(rows)), **_columns_of_names(rows, stage.requests)}
    controls["length"] = rows["output_tokens"].to_numpy(np.float64)
    load = Load(
        name=IN_FLIGHT,
        actual=open_at(run, sent),
        expected=expected_open(run, sent, arrivals),
        unsure=2 * unsure_calls,
    )
    return regress(
        "ttft_sent",
        columns,
        (rows["first_content_at_ns"].to_numpy(np.float64) - sent) / 1e6,
        against=UNCACHED,
        load=load,
        controls=controls,
        groups=_groups_of_alike(rows, stage.requests),
    )


def _tpot(run: pd.DataFrame, stage: Steady, arrivals: Floats) -> Regression:
    """Return the regression of TPOT on the context and on the answers that arrive at the same time, over gaps between chunks.

    `run`: all attempts, each a load on the target. `stage`: its gaps are the values. `arrivals`: when requests were due in
    ns, in order; empty in a closed loop. What stands beside a gap is of its beginning.
    """
    requests, ms_per_token, begun_ns, gap_number = _gaps(stage)
    answer_key = ["request_id", "answer_leg", "answer_attempt"]
    call_key = list(CALL)
    answers = run[run["request_id"].isin(requests["request_id"])].drop_duplicates(call_key)
    # The attempt that gave each answer: leg and attempt are named by its request.
    calls = requests[answer_key].merge(
        answers, "left", left_on=answer_key, right_on=call_key, suffixes=("_of_answer", "")
    )
    calls["request_id"] = requests["request_id"].to_numpy()
    computed_tokens, cached_tokens = prompt_tokens(calls)
    prompt = computed_tokens.to_numpy(np.float64) + cached_tokens.to_numpy(np.float64)
    paced_tokens = requests["pace_tokens"].to_numpy(np.float64)
    output_tokens = requests["output_tokens"].to_numpy(np.float64)
    # One token came with the first chunk of the pace, then equally many with each.
    tokens_before = (
        gap_number * (paced_tokens - 1) / (requests["pace_chunks"].to_numpy(np.float64) - 1) + 1
    )
    # Just after its beginning: the chunk that begins the gap counts.
    arriving = open_at(run, begun_ns + 1, "first_content_at_ns", "last_content_at_ns")
    # Output tokens before the pace begins are a part of the context too.
    context = prompt + output_tokens - paced_tokens + tokens_before
    neighbour_context = context_at(run, begun_ns + 1) - context
    # A damaged row has impossible times.
    is_finite = np.isfinite(context + neighbour_context)
    # What the neighbours hold beyond their mean, per 1,000 tokens: a control.
    mean_context = neighbour_context[is_finite].sum() / max(
        1.0, float((arriving - 1)[is_finite].sum())
    )
    neighbour_excess = (neighbour_context - mean_context * (arriving - 1)) / 1000
    # Beside the slow changes and the names of traffic, target, model and worker.
    controls = {
        "before": tokens_before[is_finite],
        "beside": neighbour_excess[is_finite],
        "length": output_tokens[is_finite],
    }
    calls = calls[is_finite]
    controls |= _slow_changes(len(calls)) | _columns_of_names(calls, stage.requests)
    expected = expected_open(
        run, begun_ns[is_finite], arrivals, "first_content_at_ns", "last_content_at_ns"
    )
    return regress(
        "tpot",
        {CONTEXT: context[is_finite]},
        ms_per_token[is_finite],
        against=NEIGHBOURS,
        load=Load(name=NEIGHBOURS, actual=arriving[is_finite], expected=expected),
        controls=controls,
        groups=_groups_of_alike(calls, stage.requests),
    )


def _gaps(stage: Steady) -> tuple[pd.DataFrame, Floats, Floats, Ints]:
    """Return at most MOST_VALUES gaps of complete streamed answers with a pace, evenly over all of them and in order of time.

    Of each gap: the row of its request, ms for each of its tokens, when it began in ns, and its number in the answer from 0.
    Gaps of a pause (`pace_skip`) are left out. `gaps_ns` has the gaps of all requests one after the other, `gap_counts` how
    many each has.
    """
    requests = stage.requests
    is_complete = requests["ended"].isin(schema.COMPLETE)
    has_pace = is_complete & requests["streamed"].eq(True) & requests["pace_missing"].isna()
    skipped = requests["pace_skip"].to_numpy(np.int64)
    gap_counts = stage.gap_counts
    counts = np.where(
        has_pace & (requests["pace_tokens"] >= 2), np.maximum(gap_counts - skipped, 0), 0
    )
    ends = np.cumsum(counts)
    sample = np.unique(
        np.linspace(0, max(0, counts.sum() - 1), min(MOST_VALUES, counts.sum())).astype(np.int64)
    )
    request_rows = np.searchsorted(ends, sample, "right")
    gap_numbers = sample - (ends - counts)[request_rows]
    first_gaps = (np.cumsum(gap_counts) - gap_counts + skipped)[request_rows]
    answers = requests.iloc[request_rows]
    # A gap begins when those before it in its answer are over.
    elapsed_ns = []
    for first, before in zip(first_gaps, gap_numbers, strict=True):
        elapsed_ns.append(stage.gaps_ns[first : first + before].sum())
    begun_ns = answers["pace_from_ns"].to_numpy(np.float64) + np.array(elapsed_ns, np.float64)
    tokens_per_gap = (answers["pace_tokens"] - 1).to_numpy(np.float64) / counts[request_rows]
    order = np.argsort(begun_ns, kind="stable")
    ms_per_token = stage.gaps_ns[first_gaps + gap_numbers] / 1e6 / tokens_per_gap
    return answers.iloc[order], ms_per_token[order], begun_ns[order], gap_numbers[order]


def _slow_changes(rows: int) -> dict[str, Floats]:
    """Return columns that change slowly over the stage."""
    place = (np.arange(rows) + 0.5) / max(1, rows)
    columns: dict[str, Floats] = {}
    for k in range(1, min(WAVES, rows // VALUES_OF_WAVE) + 1):
        columns[f"wave {k}"] = np.cos(np.pi * k * place)
    return columns


def _columns_of_names(calls: pd.DataFrame, requests: pd.DataFrame) -> dict[str, Floats]:
    """Return a column for each name but the most frequent of each factor."""
    of_request = requests.set_index("request_id")
    columns: dict[str, Floats] = {}
    for factor in FACTORS:
        if factor in calls:
            names = calls[factor]
        elif factor in of_request:
            names = calls["request_id"].map(of_request[factor])
        else:
            continue
        codes = pd.factorize(names)[0]
        frequent = np.argsort(-np.bincount(codes + 1), kind="stable")[:LEVELS] - 1
        for code in frequent[1:]:
            columns[f"{factor} {code}"] = (codes == code).astype(np.float64)
    return columns


def _groups_of_alike(calls: pd.DataFrame, requests: pd.DataFrame) -> list[Ints]:
    """Return the groups of calls that are alike: a session or a user, and a prompt of a file."""
    sessions = calls["request_id"].to_numpy(np.int64) // schema.TURNS
    listed = [pd.factorize(sessions)[0]]
    if "name" in requests:
        names = pd.factorize(calls["request_id"].map(requests.set_index("request_id")["name"]))[0]
        unnamed = np.flatnonzero(names < 0)
        names[unnamed] = names.max(initial=-1) + 1 + np.arange(len(unnamed))
        listed.append(names)
    alike = []
    for groups in listed:
        if len(groups) and groups.max() + 1 < len(groups):
            alike.append(groups)
    return alike


def _unexplained_by(columns: Sequence[Floats], controls: Sequence[Floats]) -> Floats:
    """Return the columns less what the others and a constant say of them, one a row."""
    rows = np.stack([values - values.mean() for values in columns])
    if not controls:
        return rows
    design = np.stack([values - values.mean() for values in controls], axis=1)
    design = design / np.maximum(np.abs(design).max(axis=0), 1e-300)
    fit = np.linalg.lstsq(design, rows.T, rcond=None)[0]
    remainder: Floats = rows - (design @ fit).T
    return remainder


def evenly(rows: pd.DataFrame, limit: int = MOST) -> pd.DataFrame:
    """Return at most `limit` of the rows, evenly over the stage."""
    if len(rows) <= limit:
        return rows
    return rows.iloc[np.linspace(0, len(rows) - 1, limit).astype(int)]


@dataclass(frozen=True, slots=True, kw_only=True)
class Load:
    """How many calls there were beside each value, and how many arrivals led to expect; `unsure`: within how many they are known."""

    name: str
    actual: Floats
    expected: Floats
    unsure: float = 0.0

    def by_arrivals(self, controls: Sequence[Floats]) -> Floats | None:
        """Return the part that arrivals bring about; None where it is small."""
        if not np.ptp(self.expected):
            return None
        actual, expected = _unexplained_by([self.actual, self.expected], controls)
        product = float(actual @ expected)
        if product <= BY_ARRIVALS * float(np.linalg.norm(actual) * np.linalg.norm(expected)):
            return None
        part: Floats = self.expected * (product / float(expected @ expected))
        return part


def regress(
    latency: str,
    columns: Mapping[str, Floats],
    y: Floats,
    *,
    against: str,
    load: Load | None = None,
    controls: Mapping[str, Floats] | None = None,
    groups: Sequence[Ints] = (),
) -> Regression:
    """Return the slopes of y, in ms, on those columns that vary enough, and on the load.

    `controls`: columns that explain y too, and are not reported. `against`: the column that the figure has as x. `load`:
    calls beside each value, by what arrivals bring about. `groups`: for each kind of group, the number of each value's group,
    whose values are alike. A column without a slope is named with the reason; see Regression.
    """
    load_column = {}
    unsure_by_name = dict.fromkeys(columns, 0.0)
    if load is not None:
        load_column[load.name] = load.actual
        unsure_by_name[load.name] = load.unsure
    controls = controls or {}
    candidates = {**columns, **load_column}
    varied = {}
    left_out = []
    for name, values in candidates.items():
        if _varies(name, values, unsure_by_name[name]):
            varied[name] = values
        else:
            left_out.append(name)
    drawn_values = np.unique(np.linspace(0, max(0, len(y) - 1), min(POINTS, len(y))).astype(int))
    regression = Regression(
        of=latency,
        n=len(y),
        left_out=tuple(left_out),
        why=_no_estimate(latency, y, varied),
        against=against,
        x=candidates[against][drawn_values],
        y=y[drawn_values],
    )
    if regression.why:
        return regression
    # Without columns that follow from others: only then has the regression one solution.
    independents = independent({"": np.ones(len(y)), **controls, **load_column})
    independent_controls = [independents[name] for name in controls if name in independents]
    independent_load = [independents[name] for name in load_column if name in independents]
    regression = replace(regression, together=_collinear(varied, independent_controls))
    # Columns that cannot be separated have no slope.
    for name in chain.from_iterable(regression.together):
        varied.pop(name, None)
    scaled_by_name = {}
    for name in columns:
        if name in varied:
            scaled_by_name[name] = varied[name] / _units_per_effect(name)
    # Effects of tokens stand beside the actual load, that of the load beside the tokens.
    regression = _estimated(
        regression, scaled_by_name, [*independent_controls, *independent_load], y, groups
    )
    if load is None or load.name not in varied:
        return regression
    load_by_arrivals = load.by_arrivals(independent_controls)
    if load_by_arrivals is None:
        return replace(regression, by_latency=(load.name,))
    scaled_columns = [
        values for name, values in scaled_by_name.items() if name not in regression.dependent
    ]
    return _estimated(
        regression,
        {load.name: load_by_arrivals},
        [*independent_controls, *scaled_columns],
        y,
        groups,
    )


def _units_per_effect(name: str) -> float:
    """Return how many units an effect is of."""
    return 1000.0 if UNITS[name][2] == "tokens" else 1.0


def _estimated(
    regression: Regression,
    columns: Mapping[str, Floats],
    controls: Sequence[Floats],
    y: Floats,
    groups: Sequence[Ints],
) -> Regression:
    """Return the regression with the slopes of these columns too; `columns` are scaled to the unit of an effect.

    `controls` are independent of each other. A column that hardly varies but for what the controls say of it, or that too few
    groups vary, is added to `dependent`.
    """
    if not columns:
        return regression
    remainders = dict(zip(columns, _unexplained_by(list(columns.values()), controls), strict=True))
    # Of its variance, at a correlation of TOGETHER with the controls.
    independent_share = 1 - TOGETHER**2
    dependent = []
    usable = []
    for name, values in columns.items():
        if remainders[name].var() < independent_share * values.var():
            dependent.append(name)
        else:
            usable.append(name)
    slopes = list(regression.slopes)
    if not usable:
        return replace(regression, dependent=(*regression.dependent, *dependent))
    shifts_of_usable = shifts([columns[name] for name in usable], controls, y, groups)
    for name, shift in zip(usable, shifts_of_usable, strict=True):
        if shift is None:
            dependent.append(name)
            continue
        # Half of those on the less crowded side of the mean are too few to rest on.
        rests_on_few = _less_crowded_count(columns[name]) / 2 < BEYOND
        slope = Slope(
            name=name,
            value=shift.value,
            low=shift.low,
            high=shift.high,
            mark=UNRELIABLE if rests_on_few else "",
            p_value=shift.p_value,
        )
        slopes.append(slope)
    return replace(regression, slopes=tuple(slopes), dependent=(*regression.dependent, *dependent))


def _collinear(
    columns: Mapping[str, Floats], controls: Sequence[Floats]
) -> tuple[tuple[str, str], ...]:
    """Return the pairs of columns that rise and fall together, but for what the others say of them."""
    remainder = dict(zip(columns, _unexplained_by(list(columns.values()), controls), strict=True))
    correlated = []
    for name, other_name in combinations(columns, 2):
        size = float(np.linalg.norm(remainder[name]) * np.linalg.norm(remainder[other_name]))
        if abs(float(remainder[name] @ remainder[other_name])) > TOGETHER * max(size, 1e-300):
            correlated.append((name, other_name))
    return tuple(correlated)


def _no_estimate(latency: str, y: Floats, varied: Mapping[str, Floats]) -> str:
    """Return why there is no regression of these latencies; empty where there is one. `varied`: the columns that varied."""
    if len(y) < 2 * EACH:
        return f"{len(y)} {COUNTED[latency]}, {2 * EACH} are needed"
    if _spread(y) <= ALIKE_MS:
        return ALL_ALIKE
    if not varied:
        return SAME_LOAD
    return ""


def _spread(values: Floats) -> float:
    """Return by how much EACH lie apart from EACH others."""
    low, high = np.partition(values, (EACH - 1, len(values) - EACH))[[EACH - 1, len(values) - EACH]]
    return float(high - low)


def _varies(name: str, values: Floats, unsure: float) -> bool:
    """Return whether EACH answers lie apart from EACH others by more than what counts as alike."""
    if len(values) < 2 * EACH:
        return False
    return _spread(values) > max(
        unsure, ALIKE[UNITS[name][2]], OF_MEAN * float(np.abs(values).mean())
    )


def _less_crowded_count(values: Floats) -> int:
    """Return how many lie on the less crowded side of the mean."""
    higher = int((values > values.mean()).sum())
    return min(higher, len(values) - higher)


def slope_cell(slope: Slope) -> Value:
    """Return its value, with the interval."""
    low = ms(round(slope.low, 6) + 0.0)  # no -0
    high = ms(round(slope.high, 6) + 0.0)
    value = NO_EFFECT
    if slope.value is not None:
        value = ms(slope.value)
    return Value(value, f"{low} – {high}", slope.mark)


# --- how many calls were concurrent with one ----------------------------------------------------------------------


def open_at(
    attempts: pd.DataFrame,
    at_ns: Floats,
    start_column: str = "sent_at_ns",
    end_column: str = "ended_at_ns",
) -> Floats:
    """Return how many attempts were sent before and not ended at each time; or between two others of their times."""
    begun = np.sort(attempts[start_column].dropna().to_numpy(np.float64))
    ended = np.sort(
        attempts.loc[attempts[start_column].notna(), end_column].dropna().to_numpy(np.float64)
    )
    return np.subtract(
        np.searchsorted(begun, at_ns), np.searchsorted(ended, at_ns, "right"), dtype=np.float64
    )


def expected_open(
    attempts: pd.DataFrame,
    at_ns: Floats,
    arrivals: Floats,
    start_column: str = "sent_at_ns",
    end_column: str = "ended_at_ns",
) -> Floats:
    """Return how many calls arrivals lead to expect at each time, were each as long as the others of the run.

    `arrivals`: when requests were due in ns, ascending; empty leaves 0. The unit is calls per arrival: `Load.by_arrivals`
    scales it. A call is open between two columns of its times. Times are on a grid: the sum over arrivals is a convolution,
    by FFT.
    """
    times_ns = attempts[["scheduled_at_ns", start_column, end_column]].dropna().to_numpy(np.float64)
    if not len(arrivals) or not len(times_ns) or not len(at_ns):
        return np.zeros(len(at_ns))
    begin = min(float(arrivals[0]), float(at_ns.min()))
    step_ns = max(1.0, (max(float(arrivals[-1]), float(at_ns.max())) - begin) / (GRID - 1))
    arrivals_by_step = np.bincount(((arrivals - begin) / step_ns).astype(np.int64), minlength=GRID)
    change_by_age = np.zeros(GRID)
    for column, sign in ((1, 1.0), (2, -1.0)):
        # How old a call is, since due, when it opens or closes.
        ages = np.maximum(times_ns[:, column] - times_ns[:, 0], 0.0) / step_ns
        change_by_age += sign * np.bincount(
            np.minimum(ages, GRID - 1).astype(np.int64), minlength=GRID
        )
    open_by_age = np.cumsum(change_by_age) / len(times_ns)
    spectrum = np.fft.rfft(arrivals_by_step, 2 * GRID) * np.fft.rfft(open_by_age, 2 * GRID)
    expected: Floats = np.fft.irfft(spectrum)[:GRID]
    step_of_time: Ints = ((at_ns - begin) / step_ns).astype(np.int64)
    # The step before: an arrival in the same step may be later than the time.
    return expected[np.maximum(step_of_time - 1, 0)]


def context_at(attempts: pd.DataFrame, at_ns: Floats) -> Floats:
    """Return the tokens of the prompts and answers, as far as they have come, that were arriving at each time; answers come evenly."""
    begun = attempts["first_content_at_ns"].to_numpy(np.float64)
    ended = attempts["last_content_at_ns"].to_numpy(np.float64)
    output = attempts["output_tokens"].to_numpy(np.float64)
    computed, read = prompt_tokens(attempts)
    prompt = computed.fillna(0).to_numpy(np.float64) + read.fillna(0).to_numpy(np.float64)
    rate = np.where(ended > begun, np.nan_to_num(output) / np.maximum(ended - begun, 1.0), 0.0)
    total = np.zeros(len(at_ns))
    for times_ns, sign in ((begun, 1.0), (ended, -1.0)):
        order = np.argsort(times_ns)[: int(np.isfinite(times_ns).sum())]
        count = np.searchsorted(times_ns[order], at_ns, "right")
        fixed = np.concatenate(([0.0], np.cumsum((prompt - rate * begun)[order])))
        growing = np.concatenate(([0.0], np.cumsum(rate[order])))
        total += sign * (fixed[count] + growing[count] * at_ns)
    return total
