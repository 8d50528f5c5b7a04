"""A section of the report is one file and one row: the page, Markdown and the contents have it."""

import json

import pytest

BUILD = "analysis/tailgauge_analysis/report/build.py"
FILE = '''"""The section on silence: requests that nobody answered."""

from dataclasses import dataclass

from tailgauge_analysis.run import Run
from tailgauge_analysis.text.formatting import plural
from tailgauge_analysis.text.section import Section, Table


KEY = "silence"


@dataclass(frozen=True, slots=True, kw_only=True)
class Silence:
    """Requests of the steady stage that got nothing."""

    requests: int


def compute(run: Run) -> Silence:
    """Count them."""
    return Silence(requests=int(run.steady.requests["first_at_ns"].isna().sum()))


def section(found: Silence) -> Section:
    """Return their number."""
    n = found.requests
    table = Table("Silence by stage", ("stage", "requests"), (("steady", f"{n:,}"),))
    return Section("silence", "Silence", f"{plural(n, 'request')} without content.", tables=(table,))
'''
SCENARIO = """
description = "Ten seconds of chat"
[arrival]
rate_per_s = 10.0
[stages]
duration_s = 10.0
[traffic.chat]
"""


@pytest.mark.slow
def test_a_section_is_one_file_and_one_row(scratch):
    scratch.write("analysis/tailgauge_analysis/sections/silence.py", FILE)
    scratch.insert(BUILD, "    result,\n", "    silence,\n")
    scratch.insert(BUILD, "SectionModule, ...] = (\n", "    silence,\n")
    (scratch.root / "run.toml").write_text(SCENARIO, encoding="utf-8")
    ran = scratch.run("-m", "tailgauge", "run", "run.toml", "--dry-run", "--out", "out")
    assert ran.returncode == 0, ran.stdout + ran.stderr
    folder = next(scratch.root.glob("out/reports/*"))
    page, text, tree = ((folder / f"report.{name}").read_text() for name in ("html", "md", "json"))

    assert '<a href="#silence">Silence</a>' in page
    for shown in (page, text):
        assert "0 requests without content." in shown
        assert "Silence by stage" in shown
    assert json.loads(tree)["silence"] == {"requests": 0}
    assert len(scratch.changed) == 2
