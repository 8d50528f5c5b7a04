"""Untrusted text in Markdown: a renderer shows it as it was, whatever it is; what has no effect is not escaped."""

import html
import re

import pytest
from hypothesis import example, given
from hypothesis import strategies as st
from markdown_it import MarkdownIt

from tailgauge.sanitize import plain
from tailgauge_analysis.text.markdown import (
    markdown_blocks,
    markdown_cell,
    markdown_code,
    markdown_inline,
    markdown_line,
)

GITHUB = MarkdownIt("commonmark").enable(["table", "strikethrough"])
PIECES = st.sampled_from(
    ["`", "``", "*", "**", "_", "__", "~", "~~", "[", "]", "](http://x)", "]: http://x", "![", "<b>", "<!--", "<http://x>",
     "&lt;", "&#35;", "|", "\\", "#", "# ", "> ", "- ", "+ ", "1. ", "12) ", "---", "===", "[x] ", "error_rate", "a", "é", "7", " ", ".", "(", "\t", "\n"]
)  # fmt: skip
TEXTS = st.one_of(st.lists(PIECES, max_size=12).map("".join), st.text(max_size=30))
EVIL = (
    "# a", "> a", "- a", "+ a", "* a", "---", "- - -", "***", "___", "1. a", "12) a", "    a", "```", "~~~", "===", "[a]: http://x",
    "[x] a", "![a](b)", "[a](b)", "[a][b]", "<b>a</b>", "<!-- a", "<http://x>", "&amp; &#35;", "a\\", "\\`a`", "_a_ __a__ (a)_b_", "*a*",
    "a*b*c", "~a~", "| a | b |", "\\|", "`a", "``a`",
)  # fmt: skip


def shown(rendered: str) -> str:
    """The text of a page, without its tags."""
    return html.unescape(re.sub(r"<[^>]*>", "", rendered)).strip()


def in_table(text: str) -> str:
    return GITHUB.render(f"| a | b |\n|---|---|\n| {markdown_cell(text)} | c |\n")


def with_examples(test):
    for text in EVIL:
        test = example(text)(test)
    return test


@given(TEXTS)
@with_examples
def test_a_line_is_shown_as_it_is(text):
    page = GITHUB.render(markdown_line(text))

    assert shown(page) == plain(text)
    assert set(re.findall(r"<(\w+)", page)) <= {"p"}


@given(TEXTS)
@with_examples
def test_text_behind_other_text_is_shown_as_it_is(text):
    page = GITHUB.render(f"- **FAIL** {markdown_inline(text)}")

    assert shown(page) == f"FAIL {plain(text)}".strip()
    assert set(re.findall(r"<(\w+)", page)) <= {"ul", "li", "strong"}


@given(TEXTS)
@with_examples
def test_a_cell_is_shown_as_it_is_and_stays_one(text):
    page = in_table(text)

    assert [shown(cell) for cell in re.findall(r"<td>(.*?)</td>", page, re.DOTALL)] == [
        plain(text),
        "c",
    ]
    assert set(re.findall(r"<(\w+)", page)) == {"table", "thead", "tbody", "tr", "th", "td"}


@given(TEXTS)
@with_examples
def test_text_to_copy_is_shown_as_it_is_within_a_line_or_a_cell(text):
    shown_text = markdown_code(text)
    page = GITHUB.render(f"- next: {shown_text}")
    cells = GITHUB.render(f"| a | b |\n|---|---|\n| {shown_text} | c |\n")

    assert shown(page) == f"next: {plain(text)}".strip()
    assert set(re.findall(r"<(\w+)", page)) <= {"ul", "li", "code"}
    assert [shown(cell) for cell in re.findall(r"<td>(.*?)</td>", cells, re.DOTALL)] == [
        plain(text),
        "c",
    ]


@pytest.mark.parametrize(
    "text",
    [
        "error_rate < 1%, ttft_sched >= 800 ms",
        "[DONE] after message_stop",
        "#3 of 5!",
        "-26% (CI -33 to -18)",
        "2 * 3, ~ 4",
        "{a: 1} & b",
        r"C:\run",
        "ttft p50 1 | p95 2",
    ],
)
def test_what_has_no_effect_is_not_escaped(text):
    assert markdown_line(text) == text


@pytest.mark.parametrize(
    ("text", "copied"),
    [
        ("run --set 'traffic.*.tokens=1'", "`run --set 'traffic.*.tokens=1'`"),
        ("a|b_", "a\\|b\\_"),
        ("<script>", "&lt;script>"),
        ("`a", "\\`a"),
        ("", ""),
    ],
)
def test_text_to_copy_is_code_where_nothing_in_it_could_end_the_code(text, copied):
    assert markdown_code(text) == copied


def test_a_cell_escapes_its_border_only():
    assert markdown_cell("> 800 ms | error_rate") == "> 800 ms \\| error_rate"


def test_items_of_a_list_follow_each_other_and_not_the_text_before():
    assert markdown_blocks(["a", "", "- b", "- c", "d"]) == "a\n\n- b\n- c\n\nd\n"
