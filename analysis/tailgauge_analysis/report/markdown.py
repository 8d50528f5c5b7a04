"""report.md: the whole report for reviews and pull requests."""

from __future__ import annotations

from collections.abc import Iterator, Sequence

from tailgauge.thresholds import INVALID
from tailgauge_analysis.text.formatting import markdown_blocks
from tailgauge_analysis.text.formatting import markdown_safe as safe
from tailgauge_analysis.text.section import FAIL, Cell, Report, Section, Table


def markdown(report: Report) -> str:
    """The whole report."""
    blocks = [f"# {safe(report.title)}", *_result(report)]
    for section in report.sections:
        blocks += _section(section)
    return markdown_blocks(blocks)


def _result(report: Report) -> Iterator[str]:
    result = report.result
    measurement = report.measurement
    answer = f"**{result.outcome}** {safe(result.sentence)}"
    verdict = f"Measurement: **{measurement.verdict}** {safe(measurement.sentence)}"
    if report.state == INVALID:
        yield verdict
        yield f"~~{answer}~~"
    else:
        yield answer
    yield from (f"- **Note** {safe(text)}" for text in report.findings)
    yield from (f"- {safe(text)}" for text in result.details)
    yield from (f"- **{FAIL}** {safe(text)}" for text in result.problems)
    yield safe(result.advice)
    yield safe(" · ".join([*(["dry run"] if report.dry_run else []), *report.about]))
    if report.state != INVALID:
        yield verdict
    yield from (f"- {safe(f'{text} {advice}'.rstrip())}" for text, advice in measurement.reasons)
    yield from map(safe, measurement.notes)
    lines = [(o.outcome, o.name, o.value, o.requirement, o.interval, o.why) for o in result.objectives]
    yield _rows(("outcome", "objective", "value", "required", "95% interval", "why"), lines, prose=(1, 5))
    cards = [(card.label, card.sentence, "; ".join(card.lines)) for card in report.cards]
    yield _rows(("pattern", "answer", ""), cards, prose=(1, 2))
    yield _rows(("", ""), (*report.summary, *report.remarks), prose=(1,))


def _section(section: Section) -> Iterator[str]:
    yield f"## {safe(section.title)}"
    yield safe(section.answer)
    yield _rows((section.title, ""), section.facts, prose=(1,))
    for table in section.tables:
        yield from _table(table)
    yield from map(safe, section.notes)
    yield from map(safe, section.computed)


def _table(table: Table) -> Iterator[str]:
    yield f"### {safe(table.title)}" if table.title else ""
    yield _rows(table.header, [tuple(map(_cell, row)) for row in table.rows], prose=table.prose)
    yield safe(table.note)


def _cell(cell: Cell) -> str:
    return cell if isinstance(cell, str) else cell.in_line


def _rows(header: Sequence[str], rows: Sequence[Sequence[str]], prose: Sequence[int]) -> str:
    """A Markdown table of untrusted text, empty without rows; words stand left, numbers right."""
    if not rows:
        return ""
    rule = "|".join("---" if i == 0 or i in prose else "---:" for i in range(len(header)))
    lines = [f"| {' | '.join(map(safe, row))} |" for row in (header, *rows)]
    return "\n".join([lines[0], f"|{rule}|", *lines[1:]])
