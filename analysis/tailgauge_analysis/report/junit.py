"""junit.xml: the measurement and the objectives of a run, or the cases of an answer, for a build server.

A failed objective is a failure; an inconclusive one, and COMPLETED, is skipped, with the reason; INVALID and INTERRUPTED are
errors. The exit code is stricter: 5 and 3 for these. Each message appears once.
"""

from __future__ import annotations

import re
from collections.abc import Iterator
from dataclasses import dataclass
from xml.etree.ElementTree import Element, SubElement, indent, tostring

from tailgauge.thresholds import INVALID
from tailgauge_analysis.text.formatting import plain
from tailgauge_analysis.text.section import (
    COMPLETED,
    FAIL,
    INCONCLUSIVE,
    INTERRUPTED,
    NO_ANSWER,
    PASS,
    ObjectiveLine,
    Report,
    Result,
)

TAGS = {
    INVALID: "error",
    INTERRUPTED: "error",
    FAIL: "failure",
    NO_ANSWER: "failure",
    INCONCLUSIVE: "skipped",
    COMPLETED: "skipped",
}
NOT_JUDGED = frozenset({NO_ANSWER, INTERRUPTED})  # outcomes that no objective decides
_NO_XML = re.compile("[^\t\n\r\u0020-\ud7ff\ue000-\ufffd\U00010000-\U0010ffff]")


@dataclass(frozen=True, slots=True)
class Case:
    """One test case: its message in a sentence, and lines that the message does not say."""

    name: str
    outcome: str
    message: str = ""
    lines: tuple[str, ...] = ()

    @property
    def tag(self) -> str:
        """Return the element of its outcome; empty where it passed."""
        return TAGS.get(self.outcome, "")


def junit(report: Report) -> str:
    """Return junit.xml as text: a test case for the measurement, and one for each objective; where no objective decides, one for the result.

    The counts of failures, errors and skipped cases follow TAGS. The host is the master's. Characters that XML cannot hold
    are left out.
    """
    cases = [_measurement(report), *_result(report.result)]
    tags = [case.tag for case in cases]
    facts = {
        "run_id": report.run_id,
        "result": report.result.outcome,
        "measurement": report.measurement.verdict,
    }
    title = report.title
    if report.dry_run:
        title += " (dry run)"
    host = report.data.get("environment", {}).get("master", {}).get("host")
    suite = {
        "name": _xml_text(f"tailgauge: {title}"),
        "tests": str(len(cases)),
        "failures": str(tags.count("failure")),
        "errors": str(tags.count("error")),
        "skipped": str(tags.count("skipped")),
        "timestamp": _xml_text(report.started_at),
        "hostname": _xml_text(host),
    }
    root = Element("testsuite", suite)
    properties = SubElement(root, "properties")
    for name, fact in facts.items():
        SubElement(properties, "property", {"name": name, "value": _xml_text(fact)})
    for case in cases:
        element = SubElement(
            root, "testcase", {"classname": _xml_text(title), "name": _xml_text(case.name)}
        )
        _add_outcome(element, case)
    indent(root)
    return f'<?xml version="1.0" encoding="UTF-8"?>\n{tostring(root, encoding="unicode")}\n'


def _measurement(report: Report) -> Case:
    measurement = report.measurement
    if report.dry_run and measurement.verdict != INVALID:
        return Case("measurement", INCONCLUSIVE, measurement.sentence)
    reasons = tuple(" ".join(reason).strip() for reason in measurement.reasons)
    if measurement.verdict == INVALID:
        return Case(
            "measurement", INVALID, "Do not use these numbers.", reasons or (measurement.sentence,)
        )
    return Case("measurement", measurement.verdict, "", reasons or (measurement.sentence,))


def _result(result: Result) -> Iterator[Case]:
    """Yield a case for each objective; the decisive one has the sentence of the result, and what stands below it.

    Where no objective decides there is first a case for the result alone. The reason of the decisive objective is added where
    nothing else has it.
    """
    details = tuple(filter(None, (*result.details, *result.problems, result.advice)))
    decisive = None
    if result.outcome in NOT_JUDGED or not result.objectives:
        yield Case("result", result.outcome, result.sentence, details)
    elif result.outcome != PASS:
        decisive = next(filter(result.states, result.objectives), None)
    for line in result.objectives:
        if line is not decisive:
            yield _objective(line)
            continue
        lines = details
        states_reason = line.why in (*details, "") or line.why in result.sentence
        if not states_reason:
            lines = (line.why, *details)
        yield Case(line.name, line.outcome, result.sentence, lines)


def _objective(line: ObjectiveLine) -> Case:
    message = f"{line.measured}: {line.why}".strip(": ")
    return Case(line.name, line.outcome, message)


def _add_outcome(element: Element, case: Case) -> None:
    """Add the message as an attribute and the rest as text; a case that passed has its output."""
    lines = [_xml_text(line) for line in case.lines]
    if case.tag:
        attributes = {"message": _xml_text(case.message)}
        if case.tag != "skipped":
            attributes = {"type": case.outcome, **attributes}
        child = SubElement(element, case.tag, attributes)
        child.text = "\n".join(lines) or None
        return
    texts = [_xml_text(case.message), *lines]
    output = "\n".join(filter(None, texts))
    if output:
        SubElement(element, "system-out").text = output


def _xml_text(value: object) -> str:
    """Return what XML can hold."""
    return _NO_XML.sub("", plain(str(value or "")))
