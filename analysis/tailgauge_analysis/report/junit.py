"""junit.xml: the verdict, the target's health and the objectives of a run, or the cases of an answer, for a build server.

A fail is a failure; an inconclusive case is skipped, with the reason; INVALID is an error. The exit code is stricter: 3
for both of these.
"""

from __future__ import annotations

import re
from collections.abc import Sequence
from dataclasses import dataclass
from xml.etree.ElementTree import Element, SubElement, indent, tostring

from tailgauge.thresholds import INVALID
from tailgauge_analysis.metrics.slo import FAIL, INCONCLUSIVE
from tailgauge_analysis.metrics.stability import BACKLOG
from tailgauge_analysis.report.views import healthy
from tailgauge_analysis.text.formatting import ms, plain
from tailgauge_analysis.text.json_values import Json
from tailgauge_analysis.text.quantile import VALUE, interval_text, value_text

_NO_XML = re.compile("[^\t\n\r\u0020-\ud7ff\ue000-\ufffd\U00010000-\U0010ffff]")


@dataclass(frozen=True, slots=True)
class SuiteCase:
    """One test case: `outcome` is fail, inconclusive or INVALID, or it has passed."""

    name: str
    outcome: str
    text: str


def junit(contents: Json) -> str:
    """The file of a run."""
    text = "\n".join(f"{reason['text']} {reason['advice']}" for reason in contents["reasons"])
    verdict = contents["verdict"]
    cases = [SuiteCase("verdict", verdict, text if verdict == INVALID or not text else f"{verdict}\n{text}")]
    facts = {"run_id": contents["run_id"], "target": contents["run"]["target"]["url"], "verdict": verdict}
    host = contents["environment"]["master"].get("host")
    if contents["health"]:
        cases.append(SuiteCase("health", contents["health"]["outcome"], healthy(contents)))
    cases += [
        SuiteCase("stability", FAIL, one["text"])
        for one in contents["stability"]["findings"]
        if one["kind"] == BACKLOG
    ]
    cases += map(_objective, contents["slos"])
    return suite(contents["scenario"], contents["run"]["started_at"], facts, cases, host)


def suite(scenario: str, started_at: str, facts: Json, cases: Sequence[SuiteCase], host: str = "") -> str:
    """The file of these cases, with `facts` as properties."""
    outcomes = [case.outcome for case in cases]
    root = Element("testsuite", {
        "name": _clean(f"tailgauge: {scenario}"), "tests": str(len(cases)), "failures": str(outcomes.count(FAIL)),
        "errors": str(outcomes.count(INVALID)), "skipped": str(outcomes.count(INCONCLUSIVE)),
        "timestamp": _clean(started_at), "hostname": _clean(host),
    })  # fmt: skip
    properties = SubElement(root, "properties")
    for name, fact in facts.items():
        SubElement(properties, "property", {"name": name, "value": _clean(fact)})
    for case in cases:
        one = SubElement(root, "testcase", {"classname": _clean(scenario), "name": _clean(case.name)})
        text = "\n".join(map(_clean, case.text.split("\n")))
        if case.outcome == INVALID:
            SubElement(one, "error", {"type": INVALID, "message": "Do not use these numbers."}).text = text
        elif case.outcome == FAIL:
            SubElement(one, "failure", {"type": FAIL, "message": _clean(case.text)})
        elif case.outcome == INCONCLUSIVE:
            SubElement(one, "skipped", {"message": _clean(case.text)})
        elif text:
            SubElement(one, "system-out").text = text
    indent(root)
    return f'<?xml version="1.0" encoding="UTF-8"?>\n{tostring(root, encoding="unicode")}\n'


def _objective(slo: Json) -> SuiteCase:
    q = slo["quantile"]
    label = f" {q['label']}" if q else ""
    required = f"{slo['metric']}{label} at most {ms(slo['max_ms'])} ms"
    text = f"{required}: {slo['why']}; measured {_measured(q)}"
    return SuiteCase(f"{slo['name']}: {required}", slo["outcome"], text)


def _measured(q: Json | None) -> str:
    if q is None:
        return "nothing"
    ends = f" ms, 95% interval {interval_text(q)}" if q["value_is"] == VALUE else ""
    return f"{value_text(q)}{ends}, n {q['n']:,}"


def _clean(value: object) -> str:
    """What XML can hold."""
    return _NO_XML.sub("", plain(str(value or "")))
