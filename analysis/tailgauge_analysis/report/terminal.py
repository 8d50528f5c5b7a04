"""The answer in a terminal, after a run: the result first, then the run's own numbers, the measurement last.

No line is wider than the terminal, but for a path or a word of a command to copy. The display while a run goes on is not
here, but in the package that runs it (live/terminal.py).
"""

from __future__ import annotations

import re
import textwrap
from collections.abc import Iterator, Sequence
from dataclasses import replace
from pathlib import Path

from click import style, unstyle

from tailgauge.command_line import options_of, with_command
from tailgauge.sanitize import harmless
from tailgauge.thresholds import INVALID, VALID
from tailgauge_analysis.text.formatting import plural, text_table
from tailgauge_analysis.text.section import (
    FAIL,
    INTERRUPTED,
    NO_ANSWER,
    SIGNS,
    TONES,
    Cell,
    Measurement,
    ObjectiveLine,
    Report,
    Table,
)

LABEL_WIDTH = 10  # columns
SOME = "some figures are the client's, not the target's"
MOST_OBJECTIVES = 10
MOST_REASONS = 3
MOST_ROWS = 20
BESIDE = "   "  # between the texts of a card
BAR = " | "  # between figures of one line
GOES_ON = " \\"  # ends a line of a command that the next one continues
NO_BREAK = "\N{NO-BREAK SPACE}"
UNIT = re.compile(r"(?<=\d) (?=(?:ms|s|MiB|GiB)\b)")
COLOURS = {"good": "green", "bad": "red", "warn": "yellow", "idle": "cyan"}


def terminal(
    report: Report,
    page: Path | None,
    width: int,
    *,
    colours: bool = False,
    rows: Path | None = None,
) -> str:
    """Return the text, with colours or without; where the rows and the whole report are, if they are in files."""
    if report.state == INVALID:
        most_reasons = len(report.measurement.reasons)
        if page:
            most_reasons = MOST_REASONS
        lines = list(_invalid(report, width, most_reasons))
    else:
        lines = list(_answer(report, width))
    lines += _appendix(report, width)
    for label, path in (("rows", rows), ("report", page)):
        if path is not None:
            lines += _labelled(label, str(path), 0)
    text = "\n".join(lines)
    if colours:
        return text
    return unstyle(text)


def _answer(report: Report, width: int) -> Iterator[str]:
    """Yield the lines of a report whose measurement can be used: the state, what failed, findings, objectives, advice, the run, the measurement.

    `width`: columns of the terminal. The line on the measurement is left out where nothing was measured: of a dry run, and of
    an interrupted run without figures.
    """
    result = report.result
    measurement = report.measurement
    yield from _state_lines(report, report.headline, width)
    for number, text in enumerate(report.planned):
        yield from _labelled("" if number else "planned", text, width)
    if report.is_of_simulated:
        answer = f"{result.outcome}  {result.sentence}"
        yield from _with_brackets_apart(f"{'simulated':<{LABEL_WIDTH}}{answer}", width)
    for detail in result.details:
        text, command = with_command(_one_line(detail))
        yield from _dim(_wrapped(f"  {text}", width))
        yield from _to_copy(command, width, "    ")
    for text in result.problems:
        for line in _wrapped(f"  {SIGNS[FAIL]} {text}", width, "    "):
            yield style(line, fg=COLOURS["bad"])
    yield from _findings(report, width)
    if result.outcome != NO_ANSWER:
        yield from _objectives(result.unstated_objectives, width)
    if result.advice:
        yield from _advice(result.advice, width)
    yield from _run_lines(report, width)
    verdict = measurement.verdict
    is_without_figures = result.outcome == INTERRUPTED and not report.summary
    if is_without_figures or (report.dry_run and verdict == VALID):  # nothing was measured
        return
    # A finding has stated it already.
    reason = "see above" if measurement.sentence in report.findings else measurement.sentence
    text = _verdict_text(measurement, reason)
    first_line, *rest = _labelled("measured", text, width)
    yield from (first_line.replace(verdict, _coloured(verdict), 1), *rest)
    if measurement.reasons:
        yield from _reasons(measurement.reasons, reason, width)


def _verdict_text(measurement: Measurement, reason: str) -> str:
    if measurement.reasons:
        return f"{measurement.verdict}: {reason}"
    if reason:
        return f"{measurement.verdict} ({reason})"
    return measurement.verdict


def _reasons(reasons: Sequence[tuple[str, str]], reason: str, width: int) -> Iterator[str]:
    """Yield the first reason where the sentence `why` only counts runs, and how many more there are."""
    if reason[:1].isdigit() and reasons[0][0] not in reason:
        yield from _labelled("", reasons[0][0], width)
    if reasons[1:]:
        yield from _labelled("", _remaining(len(reasons) - 1, "reason"), width)


def _run_lines(report: Report, width: int) -> Iterator[str]:
    """Yield the labelled lines of a run; of a report without them its first table."""
    if not report.summary and not report.remarks:
        if report.result.outcome != INTERRUPTED:
            yield from _first_table(report, width)
        return
    lines = [*report.summary]
    for card in report.cards:
        for text in _packed((card.sentence, *card.lines), width - LABEL_WIDTH):
            lines.append((card.label, text))
    previous = ""
    for label, text in (*lines, *report.remarks):
        yield from _labelled("" if label == previous else label, text, width)
        previous = label


def _packed(texts: Sequence[str], width: int) -> list[str]:
    """Lines of texts, several beside each other where they fit."""
    lines = [texts[0]]
    for text in texts[1:]:
        joined = f"{lines[-1]}{BESIDE}{text}"
        if len(joined) <= width:
            lines[-1] = joined
        else:
            lines.append(text)
    return lines


def _findings(report: Report, width: int) -> Iterator[str]:
    """Yield what changes the meaning of the figures."""
    for text in report.findings:
        for line in _wrapped(f"  ! {text}", width, "    "):
            yield style(line, fg=COLOURS["warn"])


def _advice(advice: str, width: int) -> Iterator[str]:
    """Yield the steps of an advice, each in its line; a command at the end of one has lines of its own, to copy."""
    for number, step in enumerate(advice.split("\n")):
        text, command = with_command(_one_line(step))
        yield from _labelled("" if number else "next", text, width)
        yield from _to_copy(command, width, " " * LABEL_WIDTH)


def _to_copy(command: str, width: int, indent: str) -> Iterator[str]:
    """Yield the lines of a command, indented; none without one."""
    if not command:
        return
    for line in _command_lines(command, width - len(indent)):
        yield f"{indent}{line}"


def _command_lines(command: str, width: int) -> list[str]:
    """Lines that a shell joins: each but the last ends in a backslash. An option is never broken, however long it is."""
    lines = [""]
    for option in options_of(command):
        longer = option
        if lines[-1]:
            longer = f"{lines[-1]} {option}"
        if lines[-1] and len(longer) + len(GOES_ON) > width:
            lines[-1] += GOES_ON
            lines.append(f"  {option}")
        else:
            lines[-1] = longer
    return lines


def _first_table(report: Report, width: int) -> Iterator[str]:
    """Yield the first table of a report, unless it is long; its first columns, as far as they fit."""
    if not report.sections or not report.sections[0].tables:
        return
    table = report.sections[0].tables[0]
    if not 0 < len(table.rows) <= MOST_ROWS:
        return
    yield ""
    if table.brief:
        yield from _brief_lines(table, width)
    else:
        yield from _table_lines(table, width)
    yield ""


def _table_lines(table: Table, width: int) -> list[str]:
    """Return the first columns of a table, as far as they fit."""
    rows = [list(map(_cell_text, row)) for row in table.rows]
    return text_table(table.header, rows, width, table.prose)


def _cell_text(cell: Cell) -> str:
    return cell if isinstance(cell, str) else cell.in_line


def _brief_text(cell: Cell) -> str:
    if isinstance(cell, str):
        return cell
    return replace(cell, interval="").in_line


def _brief_lines(table: Table, width: int) -> list[str]:
    """Return the columns for a terminal, without intervals."""
    header = [table.header[column] for column in table.brief]
    rows = []
    for row in table.rows:
        cells = [row[column] for column in table.brief]
        rows.append(list(map(_brief_text, cells)))
    return text_table(header, rows, width)


def _appendix(report: Report, width: int) -> Iterator[str]:
    """Tables that the user asked for, each under its title."""
    for table in report.appendix:
        yield ""
        yield from _wrapped(table.title, width)
        yield from _table_lines(table, width)
        if table.note:
            yield from _dim(_wrapped(table.note, width))
        yield ""


def _invalid(report: Report, width: int, most_reasons: int) -> Iterator[str]:
    """Yield the lines of a report whose measurement is INVALID: what must not be used, and why; then the result in brackets.

    `most_reasons`: how many reasons are shown. With `measurement.unusable`, the figures that alone are wrong, every other
    number is shown.
    """
    measurement = report.measurement
    reasons = measurement.reasons
    result = report.result
    yield from _state_lines(
        report, SOME if measurement.unusable else "do not use these numbers", width
    )
    for text, _ in reasons[:most_reasons]:
        yield from _wrapped(f"  {text}", width)
    if len(reasons) > most_reasons:
        yield f"  {_remaining(len(reasons) - most_reasons, 'reason')}"
    yield from _findings(report, width)
    if reasons and reasons[0][1]:
        yield from _labelled("next", reasons[0][1], width)
    if not (reasons and reasons[0][0] in result.sentence):
        yield from _dim(_labelled("result", f"({result.outcome})  {result.sentence}", width))
    if measurement.unusable and result.advice:
        yield from _advice(result.advice, width)
    if measurement.unusable:
        yield from _run_lines(report, width)
    elif not report.summary and not report.remarks:
        yield from _first_table(report, width)


def _state_lines(report: Report, sentence: str, width: int) -> Iterator[str]:
    """Yield the state and its sentence."""
    is_invalid_dry_run = report.dry_run and report.state == INVALID
    text = f"{report.state}{' (dry run)' if is_invalid_dry_run else ''}  {sentence}"
    head, *rest = _with_brackets_apart(text, width)
    yield from (head.replace(report.state, _coloured(report.state), 1), *rest)


def _with_brackets_apart(text: str, width: int) -> list[str]:
    """Lines of a text; where it does not fit into one, what stands in brackets at its end has its own."""
    head, _, tail = text.rpartition(" (")
    if len(text) > width and text.endswith(")"):
        return [*_wrapped(head, width), *_wrapped(f"  ({tail}", width)]
    return _wrapped(text, width)


def _objectives(lines: Sequence[ObjectiveLine], width: int) -> Iterator[str]:
    """Yield a line for each objective: its sign, name, value and bound in columns, and the interval; the reason where there is no value.

    Beyond MOST_OBJECTIVES they are counted. `95% CI` is shortened to `CI` where the line would not fit.
    """
    listed = lines[:MOST_OBJECTIVES]
    value_cells = []
    for line in listed:
        if line.value:
            value_cells.append((line.name, line.value, line.bound))
    widths = [max(map(len, column)) for column in zip(*value_cells, strict=True)]
    longest = sum(widths) + max((len(line.interval) for line in listed), default=0)
    interval_name = "95% CI" if longest + len("  ?     (95% CI )  ") <= width else "CI"
    for line in listed:
        columns_text = line.name
        remark = line.why
        if line.value:
            row = zip((line.name, line.value, line.bound), widths, strict=True)
            columns_text = "  ".join(cell.ljust(n) for cell, n in row)
            remark = ""
            if line.interval:
                remark = f"({interval_name} {line.interval})"
        sign = SIGNS[line.outcome]
        remark, command = with_command(_one_line(remark))
        # The sign is coloured after wrapping: its codes have no width.
        first_line, *rest = _wrapped(f"  {sign} {columns_text}  {remark}".rstrip(), width, "    ")
        yield from (first_line.replace(sign, style(sign, COLOURS[TONES[line.outcome]]), 1), *rest)
        yield from _to_copy(command, width, "    ")
    if len(lines) > MOST_OBJECTIVES:
        yield f"  {_remaining(len(lines) - MOST_OBJECTIVES, 'objective')}"


def _remaining(n: int, noun: str) -> str:
    return f"and {plural(n, f'more {noun}')}: see the report"


def _labelled(label: str, text: str, width: int) -> list[str]:
    """Return lines with the text right of its label, as wide as the terminal; in one line where `width` is 0, so that it can be copied.

    A label of LABEL_WIDTH columns or more is shortened to its last part; if that is still too long the text begins behind it.
    """
    text = _one_line(text)
    if len(label) >= LABEL_WIDTH:
        label = label.rpartition("-")[2]
    heading = f"{label:<{LABEL_WIDTH}}"
    if len(label) >= LABEL_WIDTH:
        heading = f"{label} "
    if not width:
        return [f"{heading}{text}"]
    if len(label) >= LABEL_WIDTH:  # the first line begins behind it
        return _lines(f"{heading}{text}", width, " " * LABEL_WIDTH)
    lines = []
    for line in _lines(text, width - LABEL_WIDTH) or [""]:
        lines.append(f"{heading}{line}")
        heading = " " * LABEL_WIDTH
    return lines


def _wrapped(text: str, width: int, indent: str = "  ") -> list[str]:
    """Lines of a text, indented after the first."""
    return _lines(_one_line(text), width, indent) or [""]


def _lines(text: str, width: int, indent: str = "") -> list[str]:
    """Broken at spaces, never between a number and its unit, nor within a part of `ttft p50 199 | tpot p50 10.3`."""
    whole = text
    if BAR in text:
        parts = []
        for part in text.split(BAR):
            if len(part) < width:
                parts.append(part.replace(" ", NO_BREAK))
            else:
                parts.append(part)
        whole = BAR.join(parts)
    whole = UNIT.sub(NO_BREAK, whole)
    lines = textwrap.wrap(whole, width, subsequent_indent=indent, break_on_hyphens=False)
    return [line.replace(NO_BREAK, " ") for line in lines]


def _one_line(text: str) -> str:
    """Untrusted text in one line."""
    return " ".join(harmless(text).splitlines())


def _dim(lines: Sequence[str]) -> list[str]:
    return [style(line, dim=True) for line in lines]


def _coloured(word: str) -> str:
    return style(word, COLOURS[TONES[word]], bold=True)
