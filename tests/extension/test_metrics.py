"""A metric is one row, an objective on it one more name, a number of the report one file."""

import json

import pytest

METRICS = "analysis/tailgauge_analysis/metrics/metrics.py"
OBJECTIVES = "src/tailgauge/scenario/objective.py"
ROW = """    Metric(
        "decode", "Decoding", NEITHER, REQUEST, True,
        "last content - first content",
        "Time from the first content to the last.",
        _between("first_content_at_ns", "last_content_at_ns"),
    ),
"""
SCENARIO = """
description = "Ten seconds of chat"
[arrival]
rate_per_s = 10.0
[stages]
duration_s = 20.0
[traffic.chat]
"""
OBJECTIVE = """[slo.decode]
metric = "decode"
quantile = 0.5
max_ms = 60000
"""


@pytest.fixture
def reported(scratch):
    """The folder of the report of a dry run on the copy."""

    def report(scenario):
        path = scratch.root / "run.toml"
        path.write_text(scenario, encoding="utf-8")
        ran = scratch.run("-m", "tailgauge", "run", str(path), "--dry-run", "--out", "out")
        assert ran.returncode == 0, ran.stdout + ran.stderr
        return next(scratch.root.glob("out/reports/*"))

    return report


def test_a_metric_is_one_row(scratch, reported):
    scratch.insert(METRICS, "METRICS = (\n", ROW)
    folder = reported(SCENARIO)
    rows = json.loads((folder / "report.json").read_text())["latency"]

    assert [row["n"] > 50 for row in rows if (row["metric"], row["group"]) == ("decode", "all")]
    for name in ("report.html", "report.md"):
        assert "Decoding" in (folder / name).read_text()
    assert scratch.changed == {METRICS}


def test_an_objective_on_it_is_one_more_name(scratch, reported):
    scratch.insert(METRICS, "METRICS = (\n", ROW)
    scratch.insert(OBJECTIVES, "_LATENCIES = (\n", '    "decode",\n')
    (objective,) = json.loads((reported(SCENARIO + OBJECTIVE) / "report.json").read_text())["slo"]

    assert (objective["metric"], objective["outcome"]) == ("decode", "pass")
    assert len(scratch.changed) == 2


def test_a_number_of_the_report_is_one_file(scratch, reported):
    """Answers of a single chunk, on the page, in Markdown and in report.json."""
    section = "analysis/tailgauge_analysis/sections/streaming.py"
    scratch.insert(section, "    answers: int\n", "    single_chunk: int\n")
    scratch.insert(section, "        answers=answers,\n", "        single_chunk=int((sizes == 0).sum()),\n")
    row = '    rows.append(("Answers of one chunk", count(found.single_chunk)))\n'
    scratch.insert(section, "    rows = []\n", row)
    folder = reported(SCENARIO)

    assert isinstance(json.loads((folder / "report.json").read_text())["streams"]["single_chunk"], int)
    for name in ("report.html", "report.md"):
        assert "Answers of one chunk" in (folder / name).read_text()
    assert scratch.changed == {section}
