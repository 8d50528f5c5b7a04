"""Cards: a pattern's own answer on the page, in Markdown and in the terminal, whatever section it is from."""

from dataclasses import replace

import pytest

from tailgauge.errors import Exit
from tailgauge_analysis.report.markdown import markdown
from tailgauge_analysis.report.page import html
from tailgauge_analysis.report.terminal import terminal
from tailgauge_analysis.text.section import PASS, Card, Measurement, Report, Result, Section, Value

CACHE = Card(
    label="cache",
    value=Value("87%", "85% – 89%"),
    detail="of input tokens read",
    lines=("input cost -74%", "15 misses: 12 expired, 3 first"),
)
FEW = Card(
    label="progressive", value=Value("52%", mark="unreliable"), detail="saw the fast model first"
)
HOSTILE = Card(label="<b>", value=Value("<i>1"), detail="|\x1b[31m", lines=("a\nb",), tone="bad")


def report(*cards):
    sections = tuple(Section(f"s{number}", "S", card=card) for number, card in enumerate(cards))
    return Report(
        run_id="id", title="t", about=(), started_at="", dry_run=False, result=Result(PASS, "done"),
        measurement=Measurement("VALID", ""), summary=(("target", "5 requests/s"),),
        sections=(*sections, Section("other", "Other")), exit_code=Exit.OK, remarks=(("finds", "nothing"),),
    )  # fmt: skip


def test_the_terminal_has_them_between_summary_and_remarks():
    assert terminal(report(CACHE, FEW), None, 80).splitlines() == [
        "PASS  done",
        "target    5 requests/s",
        "cache     87% of input tokens read (CI 85% – 89%)   input cost -74%",
        "          15 misses: 12 expired, 3 first",
        "progressive 52% saw the fast model first (unreliable)",
        "finds     nothing",
        "measured  VALID",
    ]


@pytest.mark.parametrize("width", [40, 60, 80])
def test_no_line_is_wider_than_the_terminal(width):
    long = replace(CACHE, label="structured", detail="of a very long and wordy thing " * 3)

    assert max(map(len, terminal(report(CACHE, long, FEW), None, width).splitlines())) <= width


def test_the_page_has_one_for_each_section_with_an_answer():
    page = html(report(CACHE, HOSTILE))

    assert page.count('<div class="pattern-card') == 2
    assert page.index("pattern-card") < page.index("<dt>target</dt>")
    assert '<p class="about">95% CI 85% – 89%</p>' in page
    assert '<div class="pattern-card bad">' in page
    assert "<i>1" not in page
    assert '<div class="cards"' not in html(report())


def test_markdown_has_an_item_for_each_and_none_that_the_result_states():
    text = markdown(report(CACHE, HOSTILE))
    stated = replace(report(CACHE), result=Result(PASS, CACHE.sentence))

    assert "- **cache** 87% of input tokens read (CI 85% – 89%); input cost -74%; 15 misses" in text
    assert "<i>" not in text
    assert "**cache**" not in markdown(stated)
