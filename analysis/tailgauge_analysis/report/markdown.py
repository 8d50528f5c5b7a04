"""report.md: for reviews and pull requests. Up to its first section it is a summary that fits a comment.

It renders a `Report` and computes nothing. Escaping of untrusted text is in text/markdown.py.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence
from itertools import chain

from tailgauge.command_line import COMMAND, with_command
from tailgauge.thresholds import INVALID
from tailgauge_analysis.text.markdown import (
    markdown_blocks,
    markdown_cell,
    markdown_code,
    markdown_inline,
    markdown_line,
)
from tailgauge_analysis.text.section import (
    DRY_RUN,
    FAIL,
    Cell,
    ObjectiveLine,
    Report,
    Section,
    Table,
)

OBJECTIVES: dict[str, Callable[[ObjectiveLine], str]] = {
    "outcome": lambda line: line.outcome,
    "objective": lambda line: line.name,
    "value": lambda line: line.value,
    "required": lambda line: line.requirement,
    "95% interval": lambda line: line.interval,
    "why": lambda line: line.why,
}
LEFT_ALIGNED = frozenset({"objective", "why"})


def markdown(report: Report) -> str:
    """Return the whole report."""
    blocks = [f"# {markdown_inline(report.title)}", *_summary(report)]
    for section in report.sections:
        blocks += _section(section)
    return markdown_blocks(blocks)


# --- summary ------------------------------------------------------------------------------------------------------


def _summary(report: Report) -> Iterator[str]:
    """Yield the blocks of the summary: the result, what failed, findings, advice, the objectives and the figures of the run.

    With an INVALID measurement the verdict comes first and the result is struck through; else the verdict stands below the figures.
    """
    result = report.result
    answer = f"**{result.outcome}** {markdown_inline(result.sentence)}"
    if report.state == INVALID:
        yield _verdict(report)
        yield f"~~{answer}~~"
    else:
        yield f"**{report.state}** {markdown_inline(report.headline)}"
    yield from (f"- planned: {markdown_line(text)}" for text in report.planned)
    if report.state == DRY_RUN:
        yield f"The simulated endpoint: {answer}"
    for detail in result.details:
        yield f"- {markdown_line(detail)}"
    for problem in result.problems:
        yield f"- **{FAIL}** {markdown_inline(problem)}"
    for finding in report.findings:
        yield f"- **Note** {markdown_inline(finding)}"
    yield from _advice(result.advice)
    label = "dry run" if report.dry_run and report.state != DRY_RUN else ""
    yield markdown_line(" · ".join(filter(None, (label, *report.about))))
    yield _objectives(result.objectives)
    yield from _figures(report)
    if report.state != INVALID:
        yield _verdict(report)
    yield from _other_reasons(report)


def _advice(advice: str) -> Iterator[str]:
    """Yield the steps of an advice; a command at the end of one as code, to copy."""
    for number, step in enumerate(advice.splitlines()):
        text, command = with_command(step)
        code = ""
        if command:
            code = markdown_code(command)
        label = "" if number else "**Next:**"
        yield " ".join(filter(None, (label, markdown_inline(text), code)))


def _verdict(report: Report) -> str:
    """Return whether the figures can be used, and what to do about it."""
    measurement = report.measurement
    sentence = measurement.sentence
    advice = [advice for text, advice in measurement.reasons if text == sentence]
    if sentence in report.findings:
        sentence = "see the note above."
    text = " ".join(filter(None, [sentence, *advice]))
    return f"Measurement: **{measurement.verdict}** {markdown_inline(text)}".rstrip()


def _other_reasons(report: Report) -> Iterator[str]:
    """Yield the reasons that the verdict does not state, and the notes that nothing else states."""
    measurement = report.measurement
    for text, advice in measurement.reasons:
        reason = advice
        if text not in report.findings:
            reason = " ".join(filter(None, (text, advice)))
        if reason and text != measurement.sentence:
            yield f"- {markdown_line(reason)}"
    stated = list(chain.from_iterable(measurement.reasons))
    stated += [text for _, text in report.remarks]
    for note in measurement.notes:
        if not any(note.rstrip(".") in text for text in stated):
            yield markdown_line(note)


def _objectives(objectives: Sequence[ObjectiveLine]) -> str:
    """Return a row for each, without the columns that none of them has."""
    columns: dict[str, list[str]] = {}
    for title, cell in OBJECTIVES.items():
        cells = [cell(line) for line in objectives]
        if any(cells):
            columns[title] = cells
    prose = [i for i, title in enumerate(columns) if title in LEFT_ALIGNED]
    return _rows(list(columns), list(zip(*columns.values(), strict=True)), prose)


def _figures(report: Report) -> Iterator[str]:
    """Yield an item for each label: the run's own figures, the answers of its patterns, and remarks."""
    answers = []
    for card in report.cards:
        if card.sentence != report.result.sentence:
            answers.append((card.label, "; ".join((card.sentence, *card.lines))))
    by_label: dict[str, list[str]] = {}
    label = ""
    for name, text in (*report.summary, *answers, *report.remarks):
        label = name or label
        by_label.setdefault(label, []).append(text)
    for label, texts in by_label.items():
        yield f"- **{markdown_inline(label)}** {markdown_inline(_joined(texts))}"


def _joined(texts: Sequence[str]) -> str:
    """Sentences behind each other, other texts with a semicolon between."""
    joined = texts[0]
    for text in texts[1:]:
        separator = " " if joined.endswith(".") else "; "
        joined += separator + text
    return joined


# --- sections -----------------------------------------------------------------------------------------------------


def _section(section: Section) -> Iterator[str]:
    yield f"## {markdown_inline(section.title)}"
    yield markdown_line(section.answer)
    yield _rows((section.title, ""), section.facts, prose=(1,))
    for table in section.tables:
        yield from _table(table)
    yield from map(markdown_line, section.notes)
    yield from map(markdown_line, section.computed)


def _table(table: Table) -> Iterator[str]:
    if table.title:
        yield f"### {markdown_inline(table.title)}"
    yield _rows(table.header, [tuple(map(_text, row)) for row in table.rows], prose=table.prose)
    yield markdown_line(table.note)


def _text(cell: Cell) -> str:
    return cell if isinstance(cell, str) else cell.in_line


def _rows(header: Sequence[str], rows: Sequence[Sequence[str]], prose: Sequence[int]) -> str:
    """Return a Markdown table of untrusted text, empty without rows; words stand left, numbers right."""
    if not rows:
        return ""
    rules = []
    for column in range(len(header)):
        is_left = column == 0 or column in prose
        rules.append("---" if is_left else "---:")
    first, *others = [f"| {' | '.join(map(_cell, row))} |" for row in (header, *rows)]
    return "\n".join([first, f"|{'|'.join(rules)}|", *others])


def _cell(text: str) -> str:
    """Return a cell; a command is code, to copy."""
    if COMMAND.match(text):
        return markdown_code(text)
    return markdown_cell(text)
