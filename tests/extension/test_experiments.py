"""An experiment is one file and its row, which has its settings."""

import json

import pytest

FILE = "src/tailgauge/experiments/twice.py"
ROWS = "src/tailgauge/scenario/experiment.py"
PLANNER = '''"""Twice: is the same load as fast the second time?"""

from tailgauge.experiments.answer import Answer, answered
from tailgauge.experiments.course import Base, Planner, RunReading, Step, Steps
from tailgauge_analysis import PASS, Result, Table


class TwicePlanner(Planner):
    """Run the load twice."""

    def __init__(self, base: Base) -> None:
        super().__init__(base)
        self._seconds = base.table.twice.step_s

    def steps(self) -> Steps:
        """Run the same load again and again."""
        for name in ("first", "second"):
            yield from self.run([Step(name, (), self._seconds, self.seed())])

    def measure(self, step: Step, reading: RunReading) -> float:
        """Return the median TTFT in ms."""
        requests = reading.steady.requests
        return float((requests["first_at_ns"] - requests["scheduled_at_ns"]).median()) / 1e6

    def answer(self) -> Answer:
        """Answer with the medians."""
        rows = tuple((f"{number}", f"{value:.0f} ms") for number, value in enumerate(self.results, 1))
        table = Table("Medians", ("run", "ttft p50"), rows)
        result = Result(PASS, f"{len(rows)} runs")
        return answered("twice", "Twice", result, {"medians_ms": self.results}, [table])
'''
SETTINGS = '''class Twice(Table):
    """The same load, twice; with `kind = "twice"`."""

    step_s: Positive = 10.0
    """seconds per run"""


'''
SCENARIO = """
description = "The same load twice"
[experiment]
kind = "twice"
[experiment.twice]
step_s = 12.0
[arrival]
rate_per_s = 10.0
[traffic.chat]
"""


@pytest.mark.slow
def test_an_experiment_is_one_file_and_its_row(scratch):
    scratch.write(FILE, PLANNER)
    scratch.insert(
        ROWS, "EXPERIMENTS = {\n", '    "twice": "tailgauge.experiments.twice:TwicePlanner",\n'
    )
    scratch.insert(ROWS, "Positive, Table\n", f"\n\n{SETTINGS}")
    scratch.insert(ROWS, "    headroom: Headroom = Headroom()\n", "    twice: Twice = Twice()\n")
    (scratch.root / "run.toml").write_text(SCENARIO, encoding="utf-8")
    ran = scratch.run("-m", "tailgauge", "run", "run.toml", "--dry-run", "--out", "out")

    assert ran.returncode == 0, ran.stdout + ran.stderr
    (folder,) = scratch.root.glob("out/reports/*")
    answer = json.loads((folder / "report.json").read_text())
    assert len(answer["facts"]["medians_ms"]) == 2
    assert "2 runs" in (folder / "report.html").read_text()
    assert scratch.changed == {FILE, ROWS}
