"""`tailgauge docs`: every page is listed under its title, printed by its name, and refused by another."""

import pytest
from click.testing import CliRunner

from tailgauge.cli.packaged import docs
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


def test_it_prints_a_page_and_refuses_a_name_that_there_is_not(checkout):
    page = (checkout / "docs" / "reference" / "prices.md").read_text(encoding="utf-8")

    assert CliRunner().invoke(docs, ["prices"]).output == page
    with pytest.raises(UsageError, match="nothing: no such page"):
        CliRunner().invoke(docs, ["nothing"], catch_exceptions=False)
