"""junit.xml of an answer: its cases and the verdict of its runs, for a build server.

Rule: as of a run: a pass is a pass, a fail a failure, what could not be decided is skipped, and an answer that rests on
INVALID runs alone is an error.
"""

from __future__ import annotations

from xml.etree.ElementTree import Element, SubElement, indent, tostring

from tailgauge.experiments.answer import FAIL, OPEN
from tailgauge.thresholds import INVALID
from tailgauge_analysis.report.junit import clean
from tailgauge_analysis.text.json_values import Json


def junit(contents: Json) -> str:
    """The whole file."""
    outcomes = [case["outcome"] for case in contents["cases"]]
    invalid = bool(contents["runs"]) and all(run["verdict"] == INVALID for run in contents["runs"])
    name = clean(f"tailgauge: {contents['scenario']}")
    suite = Element("testsuite", {
        "name": name, "tests": str(1 + len(outcomes)), "failures": str(outcomes.count(FAIL)), "errors": str(int(invalid)),
        "skipped": str(outcomes.count(OPEN)), "timestamp": clean(contents["started_at"]),
    })  # fmt: skip
    answer = SubElement(suite, "testcase", {"classname": name, "name": "answer"})
    if invalid:
        SubElement(answer, "error", {"type": INVALID, "message": "Every run is INVALID."})
    SubElement(answer, "system-out").text = clean(contents["sentence"])
    for case in contents["cases"]:
        one = SubElement(suite, "testcase", {"classname": name, "name": clean(case["name"])})
        if case["outcome"] == FAIL:
            SubElement(one, "failure", {"type": FAIL, "message": clean(case["said"])})
        elif case["outcome"] == OPEN:
            SubElement(one, "skipped", {"message": clean(case["said"])})
        else:
            SubElement(one, "system-out").text = clean(case["said"])
    indent(suite)
    return f'<?xml version="1.0" encoding="UTF-8"?>\n{tostring(suite, encoding="unicode")}\n'
