"""A section of the report is one file and one row: the page, Markdown and the contents have it."""

BUILD = "analysis/tailgauge_analysis/report/build.py"
FILE = '''"""The section on silence: requests that nobody answered."""

from __future__ import annotations

from tailgauge_analysis.sections.findings import Findings
from tailgauge_analysis.text.formatting import plural
from tailgauge_analysis.text.section import Section, Table


def section(findings: Findings) -> Section:
    """How many requests of the steady stage got nothing."""
    n = int(findings.steady.requests["first_at_ns"].isna().sum())
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


def test_a_section_is_one_file_and_one_row(scratch):
    scratch.write("analysis/tailgauge_analysis/sections/silence.py", FILE)
    scratch.insert(BUILD, "    result,\n", "    silence,\n")
    scratch.insert(BUILD, "Section | None], ...] = (\n", "    silence.section,\n")
    (scratch.root / "run.toml").write_text(SCENARIO, encoding="utf-8")
    ran = scratch.run("-m", "tailgauge", "run", "run.toml", "--dry-run", "--out", "out")
    assert ran.returncode == 0, ran.stdout + ran.stderr
    folder = next(scratch.root.glob("out/reports/*"))
    page, text = ((folder / name).read_text() for name in ("report.html", "report.md"))

    assert '<a href="#silence">Silence</a>' in page
    for shown in (page, text):
        assert "0 requests without content." in shown
        assert "Silence by stage" in shown
    assert len(scratch.changed) == 2
