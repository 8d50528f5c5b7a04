"""Estimates as cells of a table (`Value`), and in a sentence: `1.2% (95% CI 1.0% – 1.4%)`."""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from dataclasses import replace

from tailgauge_analysis.stats.proportions import Proportion, Ratio
from tailgauge_analysis.stats.quantiles import FEW_EPISODES, TOO_FEW, UNRELIABLE, Quantile, n_min
from tailgauge_analysis.text.formatting import count, percentile, plural, sentence, share, share_range
from tailgauge_analysis.text.quantile import TOO_FEW_TEXT, VALUE, bound, quantile, value_text
from tailgauge_analysis.text.section import Cell, Table, Value

TAIL = 0.9  # the lowest percentile beyond which values are called slow
ALIKE = {
    "session": "sessions",
    "user": "users",
    "worker": "workers",
}  # of whose requests are alike there are few


def quantile_cell(q: Quantile) -> Value:
    """`212`, with `207 – 218`; or among which requests the quantile falls."""
    one = quantile(q)
    ends = f"{bound(one, 'low')} – {bound(one, 'high')}" if VALUE in {one["value_is"], one["low_is"]} else ""
    return Value(value_text(one), "" if ends == "? – ?" else ends, _mark(q))


def _mark(q: Quantile) -> str:
    """Why a percentile is not reliable; its value says so where there are too few values."""
    if q.mark == FEW_EPISODES and q.p < TAIL:  # half of all values are no slow periods
        return f"slower values in only {plural(q.episodes, 'period')}"
    if q.mark == FEW_EPISODES:
        return f"only {plural(q.episodes, 'slow period')}"
    if q.mark == UNRELIABLE:
        return f"few {ALIKE.get(q.limited_by, 'independent values')}"
    return "" if q.mark == TOO_FEW else q.mark


def share_cell(of: Proportion) -> Value:
    """`1.2%`, with `1.0% – 1.4%`."""
    mark = f"only {plural(of.episodes, 'burst')}" if of.mark == FEW_EPISODES else of.mark
    return Value(share(of.value), share_range(of.low, of.high) if of.low is not None else "", mark)


def with_interval(cell: Value, unit: str = "") -> str:
    """`212 ms (95% CI 207 – 218)`, `875 ms (95% CI 539 – ?, only 2 slow periods)`."""
    about = ", ".join(text for text in (cell.interval and f"95% CI {cell.interval}", cell.mark) if text)
    value = cell.text + unit if cell.text[:1].isdigit() else cell.text  # or: failed
    return f"{value}{f' ({about})' if about else ''}"


def quantiles_text(*found: Quantile) -> str:
    """`p50 142 ms (95% CI 120 – 160), p95 too few`."""
    return ", ".join(f"{percentile(q.p)} {with_interval(quantile_cell(q), ' ms')}" for q in found)


def values_text(found: Iterable[Quantile]) -> str:
    """`p50 142 ms, p95 failed`."""
    cells = ((q.p, replace(quantile_cell(q), interval="", mark="")) for q in found)
    return ", ".join(f"{percentile(p)} {with_interval(cell, ' ms')}" for p, cell in cells)


def ratio_text(ratio: Ratio) -> str:
    """A ratio of two quantiles: `1.2x (95% CI 0.98 – 1.5)`; `?` at an end without a bound."""
    if ratio.value is None:
        return "not estimated"
    low, high = (f"{end:.3g}" if end is not None else "?" for end in (ratio.low, ratio.high))
    return f"{ratio.value:.3g}x ({'no interval' if low == high == '?' else f'95% CI {low} – {high}'})"


def quantile_table(
    title: str, first: str, rows: Iterable[tuple[str, Sequence[Quantile]]], note: str = ""
) -> Table:
    """A row of percentiles in ms for each name, with the number of values; names without values are left out.

    The note names how many values the missing percentiles need.
    """
    kept = [(name, of) for name, of in rows if of]
    header = tuple(f"{percentile(q.p)} (ms)" for q in kept[0][1]) if kept else ()
    cells: list[tuple[Cell, ...]] = [(name, *map(quantile_cell, of), count(of[0].n)) for name, of in kept]
    texts = (note, values_needed(q for _, of in kept for q in of))
    return Table(title, (first, *header, "n"), tuple(cells), " ".join(filter(None, texts)))


def values_needed(quantiles: Iterable[Quantile]) -> str:
    """`Too few: p99 needs 299 values.`; empty where no quantile has too few."""
    missing = {q.p for q in quantiles if q.mark == TOO_FEW and q.n}
    if not missing:
        return ""
    needs = [f"{percentile(p)} needs {n_min(p):,}" for p in sorted(missing)]
    return f"{sentence(TOO_FEW_TEXT)}: {', '.join(needs)} values."


def by_traffic(answers: Sequence[tuple[str, str]]) -> str:
    """The answers of a section for each traffic table, with its name where there are several."""
    if len(answers) == 1:
        return sentence(answers[0][1])
    return " ".join(f"{name}: {answer}" for name, answer in answers)


def side_by_side(
    title: str, by: Mapping[str, Sequence[tuple[str, str]]]
) -> tuple[tuple[tuple[str, str], ...], tuple[Table, ...]]:
    """Facts of one thing as they are; of several things as a table with a column for each."""
    if len(by) == 1:
        return tuple(*by.values()), ()
    names = dict.fromkeys(name for facts in by.values() for name, _ in facts)
    columns = [dict(facts) for facts in by.values()]
    rows = tuple((name, *(facts.get(name, "–") for facts in columns)) for name in names)
    return (), (Table(title, ("", *by), rows, prose=tuple(range(1, len(by) + 1))),)
