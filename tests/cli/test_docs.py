"""`tailgauge docs`: every page is listed under its title, printed by its name, and refused by another."""

import re

import pytest
from click.testing import CliRunner

from tailgauge.cli.docs import docs
from tailgauge.errors import UsageError


def test_it_lists_every_page_by_name_and_title(checkout):
    folders = ("tutorials", "how-to", "reference", "explanation")
    pages = [path for name in folders for path in (checkout / "docs" / name).glob("*.md")]
    listed = CliRunner().invoke(docs).output.splitlines()

    assert listed[0] == str(checkout / "docs")
    for page in pages:
        title = page.read_text(encoding="utf-8").partition("\n")[0].removeprefix("# ")
        assert any(line.split(maxsplit=1) == [page.stem, title] for line in listed)
    assert all(len(line) <= 80 for line in listed[1:])


def test_it_prints_a_page(checkout):
    page = (checkout / "docs" / "reference" / "prices.md").read_text(encoding="utf-8")

    assert CliRunner().invoke(docs, ["prices"]).output == page


@pytest.mark.parametrize(
    ("terms", "page", "line"),
    [
        ("slo", "metrics", "Objectives"),
        ("calibrat", "calibration", ""),
        ("RETRY-AFTER", "vendors", "retry-after"),
        ("cache marks", "traffic", "Cache marks"),
        ("vus", "", "concurrency"),
    ],
)
def test_another_word_lists_the_pages_that_have_it(terms, page, line):
    done = CliRunner().invoke(docs, terms.split(), env={"COLUMNS": "80"})
    listed = done.stdout.splitlines()

    assert done.exit_code == 0
    assert page in done.stdout
    assert line in done.stdout
    assert ("did you mean" in done.stderr) == (terms == "calibrat")
    assert [text for text in listed if len(text) > 80] == []
    assert listed[-1] == f"print a page with: tailgauge docs {listed[0].split()[0]}"


@pytest.mark.parametrize("terms", ["gap", "slo", "cache marks", "prices"])
def test_search_is_a_command_where_words_follow_it(terms):
    found = CliRunner().invoke(docs, ["search", *terms.split()], env={"COLUMNS": "80"}).stdout

    assert found.splitlines()[-1].startswith("print a page with: ")
    if terms != "prices":  # a page
        assert found == CliRunner().invoke(docs, terms.split(), env={"COLUMNS": "80"}).stdout


def test_search_alone_is_a_word(checkout):
    assert "search" in CliRunner().invoke(docs, ["search"], env={"COLUMNS": "80"}).stdout.lower()


@pytest.mark.parametrize(
    ("terms", "text"),
    [
        ("calibrte", "docs: nothing found for 'calibrte'; similar words: calibrate"),
        ("hedging calibrte", "similar words: "),
        ("qqqzzzqqq", "docs: nothing found for 'qqqzzzqqq'; `tailgauge docs` lists the pages"),
        ("(qqqzzz", "docs: nothing found for '(qqqzzz'"),
    ],
)
def test_words_without_a_page_are_answered_with_near_ones(terms, text):
    with pytest.raises(UsageError, match=re.escape(text)):
        CliRunner().invoke(docs, terms.split(), catch_exceptions=False)
