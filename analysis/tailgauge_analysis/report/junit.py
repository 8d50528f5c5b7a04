"""junit.xml: the measurement and the objectives of a run, or the cases of an answer, for a build server.

A failed objective is a failure; an inconclusive one, and COMPLETED, is skipped, with the reason; INVALID is an error. The exit code is
stricter: 5 and 3 for these.
"""

from __future__ import annotations

import re
from xml.etree.ElementTree import Element, SubElement, indent, tostring

from tailgauge.thresholds import INVALID
from tailgauge_analysis.text.formatting import plain
from tailgauge_analysis.text.section import COMPLETED, FAIL, INCONCLUSIVE, NO_ANSWER, PASS, Report

SKIPPED = frozenset({INCONCLUSIVE, COMPLETED})
_NO_XML = re.compile("[^\t\n\r\u0020-\ud7ff\ue000-\ufffd\U00010000-\U0010ffff]")


def junit(report: Report) -> str:
    """The measurement, and each objective; where nothing was answered, that."""
    result = report.result
    measurement = report.measurement
    reasons = "\n".join(" ".join(one) for one in measurement.reasons)
    cases = [("measurement", measurement.verdict, reasons or measurement.sentence)]
    details = "\n".join([result.sentence, *result.details, *result.problems, result.advice])
    if result.outcome == NO_ANSWER or not result.objectives:
        cases.append(("result", FAIL if result.outcome == NO_ANSWER else result.outcome, details))
    for one in result.objectives:
        text = f"{one.measured}: {one.why}".strip(": ")
        is_stated = result.states(one) and result.outcome not in {PASS, NO_ANSWER}
        cases.append((one.name, one.outcome, f"{details}\n{one.why}" if is_stated else text))
    facts = {"run_id": report.run_id, "result": result.outcome, "measurement": measurement.verdict}
    host = report.data.get("environment", {}).get("master", {}).get("host")
    outcomes = [outcome.upper() for _, outcome, _ in cases]
    root = Element("testsuite", {
        "name": _clean(f"tailgauge: {report.title}"), "tests": str(len(cases)), "failures": str(outcomes.count(FAIL)),
        "errors": str(outcomes.count(INVALID)), "skipped": str(sum(outcome in SKIPPED for outcome in outcomes)),
        "timestamp": _clean(report.started_at), "hostname": _clean(host),
    })  # fmt: skip
    properties = SubElement(root, "properties")
    for name, fact in facts.items():
        SubElement(properties, "property", {"name": name, "value": _clean(fact)})
    for (name, _, text), outcome in zip(cases, outcomes, strict=True):
        case = SubElement(root, "testcase", {"classname": _clean(report.title), "name": _clean(name)})
        lines = "\n".join(map(_clean, text.split("\n")))
        if outcome == INVALID:
            SubElement(case, "error", {"type": INVALID, "message": "Do not use these numbers."}).text = lines
        elif outcome == FAIL:
            SubElement(case, "failure", {"type": FAIL, "message": _clean(text)})
        elif outcome in SKIPPED:
            SubElement(case, "skipped", {"message": _clean(text)})
        elif lines:
            SubElement(case, "system-out").text = lines
    indent(root)
    return f'<?xml version="1.0" encoding="UTF-8"?>\n{tostring(root, encoding="unicode")}\n'


def _clean(value: object) -> str:
    """What XML can hold."""
    return _NO_XML.sub("", plain(str(value or "")))
