"""The committed example of a report is what today's code would write: same sections, same keys, within the schema.

Rule: a number may differ by a library's rounding, so numbers are not compared; `make example` writes the example anew.
"""

import json
import re
import runpy
import socket

import jsonschema
import pytest

pytestmark = pytest.mark.slow

MOST_BYTES = 8_000_000
KEYED_BY_DATA = {
    "scenario",
    "versions",
    "master",
    "ended",
    "held",
    "classes",
    "stop_details",
    "aborts",
    "contradictions",
    "tolerated",
    "not_understood",
    "unused_counts",
}  # their keys are the run's, not the report's


@pytest.fixture(scope="module")
def example(checkout):
    return checkout / "reports" / "example"


@pytest.fixture(scope="module")
def today(checkout, command, tmp_path_factory):
    """The report that the example's own command makes today."""
    out = tmp_path_factory.mktemp("example")
    arguments = runpy.run_path(str(checkout / "docs" / "example.py"))["COMMAND"]
    done = command(["tailgauge", *arguments, "--out", out], timeout_s=180)
    reports = list(out.glob("reports/*"))
    assert reports, done.stderr
    return reports[0]


def sections(page):
    return re.findall(r'<h2 id="([a-z-]+)">', page.read_text(encoding="utf-8"))


def figures(page):
    return re.findall(r'id="figure-([a-z-]+)-data"', page.read_text(encoding="utf-8"))


def headings(text):
    return re.findall(r"^## .*", text.read_text(encoding="utf-8"), re.MULTILINE)


def keys(tree, path=""):
    """Every path of keys; the entries of a list share one."""
    if isinstance(tree, list):
        return {key for one in tree for key in keys(one, f"{path}[]")}
    if not isinstance(tree, dict) or path.rpartition(".")[2] in KEYED_BY_DATA:
        return {path}
    return {path} | {key for name, value in tree.items() for key in keys(value, f"{path}.{name}")}


def test_it_has_the_sections_that_the_code_writes_today(example, today):
    assert sections(example / "report.html") == sections(today / "report.html")
    assert {"latency", "objectives", "rate-limits", "cache", "fan-out", "hedging"} <= set(
        sections(example / "report.html")
    )
    assert figures(example / "report.html") == figures(today / "report.html")
    assert {"timeline", "tail", "cache-over-time"} <= set(figures(example / "report.html"))
    assert headings(example / "report.md") == headings(today / "report.md")


def test_its_json_has_the_keys_of_today_and_obeys_the_schema(checkout, example, today):
    here, there = (
        json.loads((folder / "report.json").read_text("utf-8")) for folder in (example, today)
    )

    assert keys(here) ^ keys(there) == set(), "make example"
    jsonschema.validate(
        here,
        json.loads((checkout / "docs" / "reference" / "report.schema.json").read_text("utf-8")),
    )


def test_it_is_small_and_names_no_machine(example):
    for file in example.iterdir():
        assert file.stat().st_size <= MOST_BYTES
    for name in ("report.md", "report.json"):
        text = (example / name).read_text(encoding="utf-8")
        assert not re.search(r"/(home|root|tmp|work|Users)/", text)
        assert f'"{socket.gethostname()}"' not in text
