"""Estimates as cells of a table (`Value`), and in a sentence: `1.2% (95% CI 1.0% – 1.4%)`."""

from __future__ import annotations

import math
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import replace
from itertools import groupby

from tailgauge_analysis.stats.proportions import Proportion, Ratio
from tailgauge_analysis.stats.quantiles import (
    CLIENT,
    FEW_EPISODES,
    TOO_FEW,
    UNRELIABLE,
    Quantile,
    n_min,
)
from tailgauge_analysis.text.formatting import (
    count,
    listed,
    percentile,
    plural,
    sentence,
    share,
    share_range,
)
from tailgauge_analysis.text.quantile import (
    FAILED,
    TOO_FEW_TEXT,
    VALUE,
    bound,
    interval_text,
    quantile,
    value_text,
)
from tailgauge_analysis.text.section import Cell, Table, Value

# A percentile with few of these is not reliable: the requests of one are alike.
ALIKE = {"session": "sessions", "user": "users", "worker": "workers"}
NO_VALUE = "no value: too many requests failed"


def quantile_cell(q: Quantile) -> Value:
    """`212`, with `207 – 218`; or among which requests the quantile falls."""
    numbers = quantile(q)
    interval = ""
    if VALUE in {numbers["value_is"], numbers["low_is"]}:
        interval = f"{bound(numbers, 'low')} – {bound(numbers, 'high')}"
    if interval == "? – ?":
        interval = ""
    mark = _mark(q)
    short_mark = ""
    if q.mark == CLIENT:
        mark = f"{CLIENT} above its limit"
        short_mark = CLIENT
    if q.mark == FEW_EPISODES:
        values, short_values = _values_of_few_periods(q)
        mark = f"{values} came {_in_few_periods(q.episodes)} of the run"
        short_mark = f"{short_values} {_in_few_periods(q.episodes)}"
    return Value(value_text(numbers), interval, mark, short_mark=short_mark)


def _values_of_few_periods(q: Quantile) -> tuple[str, str]:
    """Return which values came in few periods of the run: those above the percentile, or failures; in a sentence and in a cell."""
    if q.seen_to is None and q.value is not None and math.isinf(q.value):
        return "failed requests", "failures"
    return "values above the percentile", "values above it"


def _in_few_periods(episodes: int) -> str:
    """`in only 1 period`."""
    return f"in only {plural(episodes, 'period')}"


def _mark(q: Quantile) -> str:
    """Return why a percentile is not reliable; its value says so where there are too few values."""
    if q.mark == UNRELIABLE:
        return f"few {ALIKE.get(q.limited_by, 'independent values')}"
    return "" if q.mark == TOO_FEW else q.mark


def share_cell(proportion: Proportion) -> Value:
    """`1.2%`, with `1.0% – 1.4%`."""
    mark = proportion.mark
    short_mark = ""
    if mark == FEW_EPISODES:
        rarer, short_rarer = _rarer(proportion.value)
        mark = f"{rarer} came {_in_few_periods(proportion.episodes)} of the run"
        short_mark = f"{short_rarer} {_in_few_periods(proportion.episodes)}"
    interval = ""
    if proportion.low is not None:
        interval = share_range(proportion.low, proportion.high)
    return Value(share(proportion.value), interval, mark, short_mark=short_mark)


def _rarer(value: float | None) -> tuple[str, str]:
    """Return the rarer outcome of a share, in a sentence and in a cell: `the other 7.8%` of a share above half."""
    if value is None or value <= 0.5:
        return "all of these", "all"
    other = f"the other {share(1 - value)}"
    return other, other


def with_interval(cell: Value, unit: str = "", statistic: str = "") -> str:
    """`212 ms (95% CI 207 – 218)`, `875 ms (median, 95% CI from 539, no upper end, few independent values)`."""
    value = cell.text
    if value == FAILED:
        value = NO_VALUE
    elif value[:1].isdigit():
        value += unit
    remarks = []
    if statistic:
        remarks.append(statistic)
    if cell.interval:
        remarks.append(f"95% CI {interval_text(cell.interval)}")
    if cell.mark:
        remarks.append(cell.mark)
    if not remarks:
        return value
    return f"{value} ({', '.join(remarks)})"


def median_text(estimate: Quantile) -> str:
    """`6.03 ms (median, 95% CI 5.94 – 6.20)`."""
    return with_interval(quantile_cell(estimate), " ms", "median")


def quantiles_text(*estimates: Quantile) -> str:
    """`p50 142 ms (95% CI 120 – 160), p95 too few`; a mark that all of them have stands once, at the end."""
    cells = [quantile_cell(estimate) for estimate in estimates]
    mark = common_mark(cells)
    texts = []
    for cell in cells:
        text_cell = cell
        if mark or cell.text == FAILED:
            text_cell = replace(cell, mark="")
        texts.append(with_interval(text_cell, " ms"))
    values = named_values(estimates, texts)
    if mark:
        return f"{values}; each: {mark}"
    return values


def values_text(estimates: Iterable[Quantile]) -> str:
    """`p50 142 ms, p95 has no value: too many requests failed`."""
    named = list(estimates)
    texts = [with_interval(Value(quantile_cell(estimate).text), " ms") for estimate in named]
    return named_values(named, texts)


def common_mark(cells: Sequence[Value]) -> str:
    """Return the mark that several percentiles have in common; empty where they differ, or where one has no value."""
    marks = {cell.mark for cell in cells}
    if len(cells) < 2 or len(marks) > 1 or any(cell.text == FAILED for cell in cells):
        return ""
    return marks.pop()


def named_values(estimates: Sequence[Quantile], texts: Sequence[str]) -> str:
    """Return the text of each percentile behind its name: `p50 142 ms, p95 and p99 have no value: too many requests failed`."""
    parts = []
    for text, group in groupby(zip(estimates, texts, strict=True), key=lambda pair: pair[1]):
        names = [percentile(estimate.p) for estimate, _ in group]
        if text.startswith(NO_VALUE):
            verb = "has" if len(names) == 1 else "have"
            parts.append(f"{listed(names, None)} {verb} {text}")
        else:
            parts += [f"{name} {text}" for name in names]
    return ", ".join(parts)


def ratio_text(ratio: Ratio) -> str:
    """Return a ratio of two quantiles: `1.2x (95% CI 0.98 – 1.5)`, `1.2x (95% CI from 0.98, no upper end)`."""
    if ratio.value is None:
        return "not estimated"
    low, high = map(_end_text, (ratio.low, ratio.high))
    interval = "no interval"
    if not low == high == "?":
        interval = f"95% CI {interval_text(f'{low} – {high}')}"
    return f"{ratio.value:.3g}x ({interval})"


def ratios_text(ratios: Iterable[Ratio]) -> str:
    """Return `p50 1.2x (95% CI 0.98 – 1.5), p99 not estimated`."""
    return ", ".join(f"{percentile(ratio.p)} {ratio_text(ratio)}" for ratio in ratios)


def _end_text(end: float | None) -> str:
    if end is None:
        return "?"
    return f"{end:.3g}"


def quantile_table(
    title: str, name_header: str, rows: Iterable[tuple[str, Sequence[Quantile]]], note: str = ""
) -> Table:
    """Return a row of percentiles in ms for each name, with the number of values; names without values are left out.

    The note names how many values the missing percentiles need.
    """
    percentiles: tuple[str, ...] = ()
    cells: list[tuple[Cell, ...]] = []
    all_quantiles: list[Quantile] = []
    for name, quantiles in rows:
        if not quantiles:
            continue
        if not cells:
            percentiles = tuple(f"{percentile(q.p)} (ms)" for q in quantiles)
        cells.append((name, *map(quantile_cell, quantiles), count(quantiles[0].n)))
        all_quantiles += quantiles
    texts = (note, values_needed(all_quantiles))
    return Table(
        title, (name_header, *percentiles, "n"), tuple(cells), " ".join(filter(None, texts))
    )


def values_needed(quantiles: Iterable[Quantile]) -> str:
    """`Too few: p99 needs 299 values.`; empty where no quantile has too few."""
    missing = set()
    for estimate in quantiles:
        if estimate.mark == TOO_FEW and estimate.n:
            missing.add(estimate.p)
    if not missing:
        return ""
    needs = [f"{percentile(p)} needs {n_min(p):,}" for p in sorted(missing)]
    return f"{sentence(TOO_FEW_TEXT)}: {', '.join(needs)} values."


def by_traffic(answers: Sequence[tuple[str, str]]) -> str:
    """Return the answers of a section for each traffic table, with its name where there are several."""
    if len(answers) == 1:
        return sentence(answers[0][1])
    return " ".join(f"{name}: {answer}" for name, answer in answers)


def side_by_side(
    title: str, facts_by_name: Mapping[str, Sequence[tuple[str, str]]]
) -> tuple[tuple[tuple[str, str], ...], tuple[Table, ...]]:
    """Facts of one thing as they are; of several things as a table with a column for each."""
    if len(facts_by_name) == 1:
        return tuple(*facts_by_name.values()), ()
    columns = [dict(facts) for facts in facts_by_name.values()]
    names: dict[str, None] = {}
    for column in columns:
        names.update(dict.fromkeys(column))
    rows = []
    for name in names:
        rows.append((name, *(column.get(name, "–") for column in columns)))
    header = ("", *facts_by_name)
    return (), (Table(title, header, tuple(rows), prose=tuple(range(1, len(header)))),)
