"""An answer as Markdown, for a pull request, and in the terminal.

Rule: from the contents alone. Every cell goes through `safe`, as in a run's report.
"""

from __future__ import annotations

import textwrap
from collections.abc import Iterable, Mapping, Sequence
from itertools import zip_longest
from pathlib import Path

from tailgauge_analysis.text.formatting import markdown_safe as safe
from tailgauge_analysis.text.formatting import plain, plural
from tailgauge_analysis.text.json_values import Json

COLUMNS = 100
BETWEEN = "  "
LONGEST_WORD = 40  # that is not broken
DRY_RUN = "A rehearsal on the virtual clock of the simulated endpoint: nothing was sent to a real target."


def markdown(contents: Json) -> str:
    """The whole answer."""
    blocks = [
        f"# {safe(contents['scenario'])}",
        f"**{safe(contents['sentence'])}**",
        *[f"- {safe(text)}" for text in notes(contents)],
        *[_table(table) for table in (contents["table"], *contents["more"])],
        "## How it was found",
        *[f"- {safe(text)}" for text in how(contents)],
        _table(runs_table(contents)),
    ]
    return "\n\n".join(block for block in blocks if block).replace("\n\n- ", "\n- ") + "\n"


def terminal(contents: Json, page: Path) -> str:
    """What a user reads first."""
    word = f"{contents['verdict']} dry run" if contents["dry_run"] else contents["verdict"]
    lines = [f"{word}  {contents['run_id']}", *_wrapped(contents["sentence"])]
    lines += [line for text in contents["remarks"] for line in _wrapped(f"  - {text}")]
    lines += _columns(contents["table"])
    return "\n".join([*lines, f"report: {page}"])


def how(contents: Json) -> list[str]:
    """How the answer came about."""
    said = [contents["took"], *contents["planned"]]
    if contents["smallest"]:
        said.append(f"Smallest effect that this experiment detects: {contents['smallest']}.")
    if contents["expected"]:
        said.append(f"The rehearsal before it said: {contents['expected']}")
    if contents["left_out"]:
        said.append(f"Left out, because virtual time cannot show it: {', '.join(contents['left_out'])}.")
    return [*said, f"Command: {contents['command']}"]


def notes(contents: Json) -> list[str]:
    """What the reader should know before the table."""
    bad = [run for run in contents["runs"] if run["verdict"] == "INVALID"]
    said = [DRY_RUN] if contents["dry_run"] else []
    if bad:
        said.append(
            f"{plural(len(bad), 'run')} INVALID and not counted: {bad[0]['name']}: {bad[0]['reason']}"
        )
    return [*said, *contents["remarks"]]


def _table(table: Json) -> str:
    lines = [f"| {' | '.join(safe(cell) for cell in table['header'])} |", f"|{'---|' * len(table['header'])}"]
    lines += [f"| {' | '.join(safe(cell) for cell in row)} |" for row in table["rows"]]
    return f"{safe(table['caption'])}\n\n" + "\n".join(lines)


def runs_table(contents: Json) -> Json:
    """The runs of the experiment as a table."""
    rows = [[run["name"], run["run_id"], run["verdict"], run["reason"]] for run in contents["runs"]]
    header = ["run", "folder and report", "verdict", "first reason"]
    return {"caption": "Each run has its folder and its report.", "header": header, "rows": rows}


def _columns(table: Json) -> list[str]:
    """The table in lines of 100 characters at most: cells wrap between words, and columns for which there is no room
    stand below the others, with the first one again.
    """
    rows = [[plain(cell) for cell in row] for row in (table["header"], *table["rows"])]
    least = [
        max(len(word) for cell in column for word in (*cell.split(), ""))
        for column in zip(*rows, strict=True)
    ]
    whole = [max(map(len, column)) for column in zip(*rows[1:] or rows, strict=True)]
    least, wanted = [min(n, LONGEST_WORD) for n in least], list(map(max, least, whole))
    parts = [_part(rows, group, least, wanted) for group in _groups(least)]
    return [line for part in parts for line in (*part, "")][:-1]


def _groups(widths: Sequence[int]) -> list[list[int]]:
    """The columns that fit beside each other, the first one in each group."""
    groups = [[0]]
    for i in range(1, len(widths)):
        if len(groups[-1]) > 1 and _line(widths[j] for j in (*groups[-1], i)) > COLUMNS:
            groups.append([0])
        groups[-1].append(i)
    return groups


def _part(
    rows: Sequence[Sequence[str]], of: Sequence[int], least: Sequence[int], wanted: Sequence[int]
) -> list[str]:
    widths = {i: wanted[i] for i in of}
    while _line(widths.values()) > COLUMNS and any(widths[i] > least[i] for i in of):
        widths[max((i for i in of if widths[i] > least[i]), key=widths.__getitem__)] -= 1
    header, *body = (_row(row, widths) for row in rows)
    apart = [""] if any(len(lines) > 1 for lines in body) else []
    return [*header, *(line for lines in body for line in (*apart, *lines))]


def _row(row: Sequence[str], widths: Mapping[int, int]) -> list[str]:
    cells = [textwrap.wrap(row[i], width) for i, width in widths.items()]
    return [
        BETWEEN.join(cell.ljust(width) for cell, width in zip(line, widths.values(), strict=True)).rstrip()
        for line in zip_longest(*cells, fillvalue="")
    ]


def _line(widths: Iterable[int]) -> int:
    each = list(widths)
    return sum(each) + len(BETWEEN) * (len(each) - 1)


def _wrapped(text: str) -> list[str]:
    return textwrap.wrap(
        plain(text), COLUMNS, subsequent_indent="    " if text.startswith(" ") else "",
        break_on_hyphens=False, break_long_words=False,
    )  # fmt: skip
