"""A comparison in the terminal, at most 100 columns wide, and as Markdown for a pull request; both from the JSON."""

from __future__ import annotations

from collections.abc import Sequence

from tailgauge_analysis.text.formatting import count, ms, plural, share
from tailgauge_analysis.text.formatting import markdown_safe as safe
from tailgauge_analysis.text.json_values import Json
from tailgauge_analysis.text.quantile import VALUE, interval_text, value_text
from tailgauge_analysis.text.tables import fixed_table, markdown_blocks, markdown_table, wrapped

MOST_DIFFERENCES = 8
LEGEND = "of all offered, ms"  # since scheduled, unless the name says otherwise
HEADER = ("offered requests, ms", "A", "B", "change", "95% interval", "worse in", "p (Holm)", "verdict")
SIDES = (HEADER[0], "A [95% interval]", "B [95% interval]", "change")


def terminal(data: Json) -> str:
    """The terminal text."""
    lines = wrapped(_headline(data))
    lines += [line for text in _notes(data) for line in wrapped(f"  - {text}")]
    if data["pairs"]:
        lines += wrapped(_runs(data))
        lines += _table(data)
    return "\n".join(lines)


def markdown(data: Json) -> str:
    """The comparison as Markdown, with every block."""
    blocks = [f"**{safe(_headline(data))}**", *(f"- {safe(text)}" for text in _notes(data))]
    if data["pairs"] == 1:
        blocks += [safe(_runs(data)), markdown_table(SIDES, map(_sides, data["rows"]))]
    elif data["pairs"]:
        blocks += [
            safe(_runs(data)),
            markdown_table(HEADER, [cells(row) for row in data["rows"]]),
            *_blocks(data),
        ]
    return markdown_blocks(blocks)


def _headline(data: Json) -> str:
    verdict = str(data["verdict"]).upper()
    if data["against"]:
        return verdict
    found = [row for row in data["rows"] if row["verdict"] == data["verdict"]]
    if data["verdict"] not in {"worse", "better", "inconclusive"} or not found:
        return f"{verdict}  B against A, threshold {data['threshold'] * 100:g}%"
    first = ", ".join(f"{name(row)} {change(row, 'change')}" for row in found[:3])
    return f"{verdict}  B against A: {first}" + (f" and {len(found) - 3} more" if len(found) > 3 else "")


def _notes(data: Json) -> list[str]:
    """Why not, remarks, and what differs between A and B."""
    kept = [d for d in data["differs"] if d["allowed"]]
    more = len(data["against"]) - MOST_DIFFERENCES
    notes: list[str] = data["against"][:MOST_DIFFERENCES] + (
        [f"and {plural(more, 'more difference')}"] if more > 0 else []
    )
    notes += data["remarks"]
    for d in kept[:MOST_DIFFERENCES]:
        notes.append(f"differs: {d['key']}: {_few(d['a'])} in A, {_few(d['b'])} in B")
    if len(kept) > MOST_DIFFERENCES:
        notes.append(f"and {plural(len(kept) - MOST_DIFFERENCES, 'more allowed difference')}")
    if data["pairs"] and not data["differs"]:
        notes.append("nothing differs between A and B")
    return notes


def _few(values: Sequence[str]) -> str:
    return ", ".join(values[:3]) + (" and more" if len(values) > 3 else "")


def _runs(data: Json) -> str:
    runs = data["runs"]
    if len(runs) == 1:
        return f"A is {runs[0]['a']['run_id']}, B is {runs[0]['b']['run_id']}"
    offered = [sum(pair[side]["offered"] for pair in runs) for side in ("a", "b")]
    return f"{len(runs)} pairs; {count(offered[0])} requests offered in A, {count(offered[1])} in B"


def _table(data: Json) -> list[str]:
    """With one pair each side with its own interval, otherwise the change."""
    if data["pairs"] == 1:
        return fixed_table(("<34", ">26", ">26", ">10"), [SIDES, *map(_sides, data["rows"])])
    rows = [(LEGEND, *HEADER[1:5], *HEADER[6:])]
    for row in data["rows"]:
        if row["change"] is None:
            continue
        title, a, b, by, interval, _, p_holm, _ = cells(row)
        title = title.removesuffix(", of all offered").replace(" since scheduled", "")
        rows.append((title, a, b, by, interval, p_holm, row["verdict"] or "–"))
    reasons = [line for text in _reasons(data["rows"]) for line in wrapped(f"  {text}")]
    columns = ("<26", ">9", ">9", ">9", "<19", ">9", "<")
    return [*fixed_table(columns, rows), *reasons, "all pairs: --markdown"]


def _reasons(rows: Sequence[Json]) -> list[str]:
    """Why rows were not compared or are not clearer, each reason once."""
    by: dict[tuple[str, str], list[str]] = {}
    for row in rows:
        if row["why"]:
            by.setdefault((row["verdict"] or "not compared", row["why"]), []).append(name(row))
    return [f"{', '.join(names)}: {word}: {why}" for (word, why), names in by.items()]


def cells(row: Json) -> tuple[str, ...]:
    """A row under HEADER."""
    interval = f"{change(row, 'low')} to {change(row, 'high')}" if row["low"] is not None else "–"
    figures = [share(row[s]) if row["metric"] == "answered" else ms(row[s]) for s in ("a", "b")]
    tested = row["p_holm"] is not None
    word = row["verdict"] or ("not compared" if row["why"] else "")
    return (
        name(row), *figures, change(row, "change"), interval,
        f"{row['worse_in']}/{row['pairs']}" if row["pairs"] else "–",
        _p(row["p_holm"]) if tested else "–",
        f"{word}: {row['why']}" if row["why"] else word,
    )  # fmt: skip


def name(row: Json) -> str:
    """`TTFT since scheduled p99`."""
    return f"{row['title']} {row['label']}".strip()


def _p(value: float) -> str:
    return "< 0.001" if value < 0.001 else f"{value:.3f}"


def change(row: Json, key: str) -> str:
    """`+12.3%`; for a share `-1.2 pt`, percentage points."""
    value = row[key]
    if value is None:
        return "–"
    unit = " pt" if row["metric"] == "answered" else "%"
    if abs(value) < 5e-5:
        return f"0{unit}"
    return f"{value * 100:+.1f}{unit}" if abs(value) >= 0.0095 else f"{value * 100:+.2f}{unit}"


def _side(row: Json, side: str) -> str:
    """One side's value with its interval."""
    if row["metric"] == "answered":
        return share(row[side])
    q = row["blocks"][0][side]
    return f"{value_text(q)} [{interval_text(q)}]" if q["value_is"] == VALUE else value_text(q)


def _sides(row: Json) -> tuple[str, ...]:
    """A row under SIDES."""
    return name(row), _side(row, "a"), _side(row, "b"), change(row, "change")


def _blocks(data: Json) -> list[str]:
    """The change in each pair."""
    names = [row for row in data["rows"] if any(one["change"] is not None for one in row["blocks"])]
    header = ("pair", "A", "B", *(name(row) for row in names))
    rows = []
    for i, pair in enumerate(data["runs"]):
        changes = [change({**row["blocks"][i], "metric": row["metric"]}, "change") for row in names]
        rows.append((str(i + 1), pair["a"]["run_id"], pair["b"]["run_id"], *changes))
    return ["Change from A to B, pair by pair:", markdown_table(header, rows)]
