"""Arms that took turns, in words: the same on the page and in Markdown.

Rule: from the contents alone.
"""

from __future__ import annotations

from tailgauge_analysis.text.formatting import ms, plain, plural, share
from tailgauge_analysis.text.json_values import Json

HEADER = ("A", "B", "change", "95% interval", "p (Holm)", "verdict")


def sentence(told: Json) -> str:
    """The answer."""
    arms = f"B ({plain(told['b'], 80)}) against A ({plain(told['a'], 80)})"
    blocks = f"{plural(told['pairs'], 'pair')} of blocks of {told['block_s']:g} s that took turns"
    if told["against"]:
        return f"{arms}: not comparable, {told['against'][0]}."
    found = [row for row in told["rows"] if row["verdict"] == told["verdict"] and row["change"] is not None]
    named = told["verdict"] in {"better", "worse"} and found
    which = f": {_name(found[0])} {change(found[0], 'change')}" if named else ""
    return f"{arms}: {told['verdict']}{which}, over {blocks}; changes below {told['threshold'] * 100:g}% are not worth naming."


def rows(told: Json) -> list[tuple[str, ...]]:
    """A row a metric and percentile that could be compared."""
    return [
        (
            _name(row), _figure(row, "a"), _figure(row, "b"), change(row, "change"),
            f"{change(row, 'low')} to {change(row, 'high')}" if row["low"] is not None else "–",
            "–" if row["p_holm"] is None else "< 0.001" if row["p_holm"] < 0.001 else f"{row['p_holm']:.3f}",
            (row["verdict"] or "not compared") + (f": {row['why']}" if row["why"] else ""),
        )
        for row in told["rows"]
    ]  # fmt: skip


def change(row: Json, key: str) -> str:
    """`+12.3%`; of a share `-1.2 pt`."""
    value = row[key]
    if value is None:
        return "–"
    return f"{value * 100:+.1f}{' pt' if row['unit'] == 'share' else '%'}"


def _name(row: Json) -> str:
    return f"{row['title']} {row['label']}".strip() + (" (ms)" if row["unit"] != "share" else "")


def _figure(row: Json, side: str) -> str:
    return share(row[side]) if row["unit"] == "share" else ms(row[side])
