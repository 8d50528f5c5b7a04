"""Every setting of the endpoint is in its page of the documentation."""

from pathlib import Path
from typing import get_args

import pytest

from tailgauge.scenario import simulated

PAGE = (Path(__file__).parents[2] / "docs/reference/simulator.md").read_text(encoding="utf-8")
CHOICES = {
    "shape": simulated.ErrorShape,
    "headers": simulated.HeaderFamily,
}


@pytest.mark.parametrize("column", CHOICES)
def test_the_page_has_a_table_of_the_choices(column):
    [table] = [part for part in PAGE.split("\n\n") if part.startswith(f"| {column} |")]
    cells = [line.split("|")[1] for line in table.splitlines()[2:]]
    names = [name for cell in cells for name in cell.replace("`", "").replace(",", " ").split()]

    assert sorted(names) == sorted(get_args(CHOICES[column]))
