"""junit.xml: the objectives and the verdict as test cases, for a build server.

A fail is a failure; an inconclusive objective is skipped, with the reason; an INVALID run is an error. The exit code is
stricter: 3 for both of these.
"""

from __future__ import annotations

import re
from xml.etree.ElementTree import Element, SubElement, indent, tostring

from tailgauge.thresholds import INVALID
from tailgauge_analysis.metrics.slo import FAIL, INCONCLUSIVE
from tailgauge_analysis.text.formatting import ms, plain
from tailgauge_analysis.text.json_values import Json
from tailgauge_analysis.text.quantile import VALUE, bound

_NO_XML = re.compile("[^\t\n\r\u0020-\ud7ff\ue000-\ufffd\U00010000-\U0010ffff]")


def junit(contents: Json) -> str:
    """The whole file."""
    invalid = contents["verdict"] == INVALID
    outcomes = [slo["outcome"] for slo in contents["slos"]]
    suite = Element("testsuite", {
        "name": clean(f"tailgauge: {contents['scenario']}"), "tests": str(1 + len(outcomes)), "failures": str(outcomes.count(FAIL)),
        "errors": str(int(invalid)), "skipped": str(outcomes.count(INCONCLUSIVE)), "timestamp": clean(contents["run"]["started_at"]),
        "hostname": clean(contents["environment"]["master"].get("host") or ""),
    })  # fmt: skip
    facts = SubElement(suite, "properties")
    target = contents["run"]["target"]["url"]
    for name, value in (("run_id", contents["run_id"]), ("target", target), ("verdict", contents["verdict"])):
        SubElement(facts, "property", {"name": name, "value": clean(value)})
    _verdict(suite, contents)
    for slo in contents["slos"]:
        _objective(suite, slo, clean(contents["scenario"]))
    indent(suite)
    return f'<?xml version="1.0" encoding="UTF-8"?>\n{tostring(suite, encoding="unicode")}\n'


def _verdict(suite: Element, contents: Json) -> None:
    case = SubElement(suite, "testcase", {"classname": clean(contents["scenario"]), "name": "verdict"})
    text = "\n".join(clean(f"{reason['text']} {reason['advice']}") for reason in contents["reasons"])
    if contents["verdict"] == INVALID:
        SubElement(case, "error", {"type": INVALID, "message": "Do not use these numbers."}).text = text
    elif text:
        SubElement(case, "system-out").text = f"{contents['verdict']}\n{text}"


def _objective(suite: Element, slo: Json, scenario: str) -> None:
    q = slo["quantile"]
    label = f" {q['label']}" if q else ""
    asked = f"{slo['metric']}{label} at most {ms(slo['max_ms'])} ms"
    case = SubElement(suite, "testcase", {"classname": scenario, "name": clean(f"{slo['name']}: {asked}")})
    text = clean(f"{asked}: {slo['why']}; measured {_measured(q)}")
    if slo["outcome"] == FAIL:
        SubElement(case, "failure", {"type": FAIL, "message": text})
    elif slo["outcome"] == INCONCLUSIVE:
        SubElement(case, "skipped", {"message": text})
    else:
        SubElement(case, "system-out").text = text


def _measured(q: Json | None) -> str:
    if q is None:
        return "nothing"
    if q["value_is"] != VALUE:
        return f"{q['value_is']}, n {q['n']:,}"
    return f"{ms(q['value_ms'])} ms, 95% interval {bound(q, 'low')} to {bound(q, 'high')}, n {q['n']:,}"


def clean(value: object) -> str:
    """What XML can hold."""
    return _NO_XML.sub("", plain(str(value or "")))
