"""Estimates as cells of a table (`Value`), and in a sentence: `1.2% (95% CI 1.0% – 1.4%)`."""

from __future__ import annotations

import math
from collections.abc import Iterable, Mapping, Sequence

from tailgauge_analysis.stats.proportions import Proportion, Ratio
from tailgauge_analysis.stats.quantiles import FEW_EPISODES, TOO_FEW, UNRELIABLE, Quantile, n_min
from tailgauge_analysis.text.formatting import (
    count,
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


def quantile_cell(q: Quantile) -> Value:
    """`212`, with `207 – 218`; or among which requests the quantile falls."""
    numbers = quantile(q)
    interval = ""
    if VALUE in {numbers["value_is"], numbers["low_is"]}:
        interval = f"{bound(numbers, 'low')} – {bound(numbers, 'high')}"
    if interval == "? – ?":
        interval = ""
    return Value(value_text(numbers), interval, _mark(q))


def _mark(q: Quantile) -> str:
    """Return why a percentile is not reliable; its value says so where there are too few values."""
    if q.mark == FEW_EPISODES:
        event = "exceeded"
        if q.seen_to is None and q.value is not None and math.isinf(q.value):
            event = "failures"
        return f"{event} in only {plural(q.episodes, 'period')}"
    if q.mark == UNRELIABLE:
        return f"few {ALIKE.get(q.limited_by, 'independent values')}"
    return "" if q.mark == TOO_FEW else q.mark


def share_cell(proportion: Proportion) -> Value:
    """`1.2%`, with `1.0% – 1.4%`."""
    mark = proportion.mark
    if mark == FEW_EPISODES:
        mark = f"{_rarer(proportion.value)} came in only {plural(proportion.episodes, 'period')}"
    interval = ""
    if proportion.low is not None:
        interval = share_range(proportion.low, proportion.high)
    return Value(share(proportion.value), interval, mark)


def _rarer(value: float | None) -> str:
    """Return the name of the rarer outcome beside its share: `all`, or `the other 7.8%` of a share above half."""
    if value is None or value <= 0.5:
        return "all"
    return f"the other {share(1 - value)}"


def with_interval(cell: Value, unit: str = "") -> str:
    """`212 ms (95% CI 207 – 218)`, `875 ms (95% CI from 539, no upper end, exceeded in only 2 periods)`."""
    value = cell.text
    if value == FAILED:
        value = "falls on failed requests"
    elif value[:1].isdigit():
        value += unit
    remarks = []
    if cell.interval:
        remarks.append(f"95% CI {interval_text(cell.interval)}")
    if cell.mark:
        remarks.append(cell.mark)
    if not remarks:
        return value
    return f"{value} ({', '.join(remarks)})"


def quantiles_text(*estimates: Quantile) -> str:
    """`p50 142 ms (95% CI 120 – 160), p95 too few`."""
    texts = []
    for estimate in estimates:
        value = with_interval(quantile_cell(estimate), " ms")
        texts.append(f"{percentile(estimate.p)} {value}")
    return ", ".join(texts)


def values_text(estimates: Iterable[Quantile]) -> str:
    """`p50 142 ms, p95 failed`."""
    texts = []
    for estimate in estimates:
        value = Value(quantile_cell(estimate).text)
        texts.append(f"{percentile(estimate.p)} {with_interval(value, ' ms')}")
    return ", ".join(texts)


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
