"""A metric is one row, so is a figure that an objective bounds; a number of the report is one file."""

import json

import pytest

pytestmark = pytest.mark.slow

METRICS = "analysis/tailgauge_analysis/metrics/metrics.py"
FIGURES = "src/tailgauge/scenario/figures.py"
ROW = """    Metric(
        "decode", "Decoding", NEITHER, REQUEST, True,
        "last content - first content",
        "Time from the first content to the last.",
        _elapsed("first_content_at_ns", "last_content_at_ns"),
    ),
"""
LATENCY = """    EventLatency(
        name="decode", unit=LATENCY, title="Decoding", since="neither",
        start="first_content_at_ns", end="last_content_at_ns",
        formula="last content - first content", meaning="Time from the first content to the last.",
    ),
"""
SHARE = """    share("kept", LEAST, frozenset({schema.OK, schema.REFUSED}), "requests that ended by the model"),
"""
SCENARIO = """
description = "Ten seconds of chat"
[arrival]
rate_per_s = 10.0
[stages]
duration_s = 20.0
[traffic.chat]
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


@pytest.mark.parametrize(
    ("place", "row", "text", "metric"),
    [
        ("LAST_CONTENT = (\n", LATENCY, "decode p50 < 60s", "decode"),
        ("FIGURES = (\n", SHARE, "kept > 50%", "kept"),
    ],
)
def test_a_figure_that_an_objective_bounds_is_one_row(scratch, reported, place, row, text, metric):
    scratch.insert(FIGURES, place, row)
    folder = reported(f"{SCENARIO}[slo]\nnew = {text!r}\n")
    (objective,) = json.loads((folder / "report.json").read_text())["slo"]

    assert (objective["metric"], objective["outcome"]) == (metric, "pass")
    assert scratch.changed == {FIGURES}


def test_a_number_of_the_report_is_one_file(scratch, reported):
    """Answers of a single chunk, on the page, in Markdown and in report.json."""
    section = "analysis/tailgauge_analysis/sections/streaming.py"
    scratch.insert(section, "    answers: int\n", "    single_chunk: int\n")
    scratch.insert(
        section,
        "        answers=answers,\n",
        "        single_chunk=int((gap_counts == 0).sum()),\n",
    )
    row = '    rows.append(("Answers of one chunk", count(streams.single_chunk)))\n'
    scratch.insert(section, "    rows = []\n", row)
    folder = reported(SCENARIO)

    assert isinstance(
        json.loads((folder / "report.json").read_text())["streams"]["single_chunk"], int
    )
    for name in ("report.html", "report.md"):
        assert "Answers of one chunk" in (folder / name).read_text()
    assert scratch.changed == {section}
