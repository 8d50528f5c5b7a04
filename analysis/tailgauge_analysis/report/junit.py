"""junit.xml: the measurement and the objectives of a run, or the cases of an answer, for a build server.

A failed objective is a failure; an inconclusive one is skipped, with the reason; INVALID is an error. The exit code is
stricter: 5 and 3 for these.
"""

from __future__ import annotations

import re
from collections.abc import Sequence
from dataclasses import dataclass
from xml.etree.ElementTree import Element, SubElement, indent, tostring

from tailgauge.thresholds import INVALID
from tailgauge_analysis.text.formatting import plain
from tailgauge_analysis.text.json_values import Json
from tailgauge_analysis.text.section import FAIL, INCONCLUSIVE, NO_ANSWER, PASS, Report

_NO_XML = re.compile("[^\t\n\r\u0020-\ud7ff\ue000-\ufffd\U00010000-\U0010ffff]")


@dataclass(frozen=True, slots=True)
class SuiteCase:
    """One test case: `outcome` is FAIL, INCONCLUSIVE or INVALID, or it has passed."""

    name: str
    outcome: str
    text: str


def junit(report: Report) -> str:
    """The measurement, and each objective; where nothing was answered, that."""
    result, measurement = report.result, report.measurement
    reasons = "\n".join(" ".join(one) for one in measurement.reasons)
    cases = [SuiteCase("measurement", measurement.verdict, reasons or measurement.sentence)]
    details = "\n".join([result.sentence, *result.details, result.advice])
    if result.outcome == NO_ANSWER or not result.objectives:
        cases.append(SuiteCase("result", FAIL if result.outcome == NO_ANSWER else result.outcome, details))
    for one in result.objectives:
        ends = f" (95% CI {one.interval})" if one.interval else ""
        text = f"{one.value} {one.bound}{ends}: {one.why}".strip(": ")
        is_stated = result.states(one) and result.outcome not in {PASS, NO_ANSWER}
        cases.append(SuiteCase(one.name, one.outcome, f"{details}\n{one.why}" if is_stated else text))
    facts = {"run_id": report.run_id, "result": result.outcome, "measurement": measurement.verdict}
    host = report.data.get("environment", {}).get("master", {}).get("host")
    return suite(report.title, report.started_at, facts, cases, host)


def suite(scenario: str, started_at: str, facts: Json, cases: Sequence[SuiteCase], host: str = "") -> str:
    """The file of these cases, with `facts` as properties."""
    outcomes = [case.outcome.upper() for case in cases]
    root = Element("testsuite", {
        "name": _clean(f"tailgauge: {scenario}"), "tests": str(len(cases)), "failures": str(outcomes.count(FAIL)),
        "errors": str(outcomes.count(INVALID)), "skipped": str(outcomes.count(INCONCLUSIVE)),
        "timestamp": _clean(started_at), "hostname": _clean(host),
    })  # fmt: skip
    properties = SubElement(root, "properties")
    for name, fact in facts.items():
        SubElement(properties, "property", {"name": name, "value": _clean(fact)})
    for case, outcome in zip(cases, outcomes, strict=True):
        one = SubElement(root, "testcase", {"classname": _clean(scenario), "name": _clean(case.name)})
        text = "\n".join(map(_clean, case.text.split("\n")))
        if outcome == INVALID:
            SubElement(one, "error", {"type": INVALID, "message": "Do not use these numbers."}).text = text
        elif outcome == FAIL:
            SubElement(one, "failure", {"type": FAIL, "message": _clean(case.text)})
        elif outcome == INCONCLUSIVE:
            SubElement(one, "skipped", {"message": _clean(case.text)})
        elif text:
            SubElement(one, "system-out").text = text
    indent(root)
    return f'<?xml version="1.0" encoding="UTF-8"?>\n{tostring(root, encoding="unicode")}\n'


def _clean(value: object) -> str:
    """What XML can hold."""
    return _NO_XML.sub("", plain(str(value or "")))
