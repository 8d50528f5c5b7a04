"""The run in brief: what each report found, in one sentence, in the order of the page.

Rule: sentences that the reports made of their findings, put side by side; nothing is computed here but how many
objectives passed. Each has the name of the section that it opens.
"""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass

from tailgauge_analysis.metrics.slo import FAIL, INCONCLUSIVE, PASS
from tailgauge_analysis.sections import alerts, phases
from tailgauge_analysis.text.formatting import plain
from tailgauge_analysis.text.json_values import Json


@dataclass(frozen=True, slots=True)
class Line:
    """What a report found; `section` is its anchor on the page."""

    section: str
    title: str
    text: str


def brief(contents: Json) -> list[Line]:
    """A line for each report that the run has something of; none where the numbers are not to be used."""
    if contents["verdict"] == "INVALID":
        return []
    told = (
        Line("slos", "Objectives", _objectives(contents["slos"])),
        Line("load", "Load", contents["diagnosis"]["sentence"]),
        Line("phases", "Time", phases.sentence(contents["phases"])),
        Line("presets", "Use cases", " ".join(_uses(contents))),
        Line("rate-limits", "Rate limits", (contents["rate_limits"] or {}).get("sentence", "")),
        Line("cache", "Prompt cache", (contents["cache"] or {}).get("sentence", "")),
        Line("fan-out", "Fan-out", " ".join(_sentences(contents["fan_out"], "tables"))),
        Line("hedging", "Hedging", " ".join(_sentences(contents["hedging"], "variants"))),
    )
    return [line for line in told if line.text]


def _objectives(slos: list[Json]) -> str:
    if not slos:
        return ""
    by = {
        outcome: [plain(slo["name"], 60) for slo in slos if slo["outcome"] == outcome]
        for outcome in (PASS, FAIL, INCONCLUSIVE)
    }
    rest = "".join(
        f"; {outcome}: {', '.join(by[outcome])}" for outcome in (FAIL, INCONCLUSIVE) if by[outcome]
    )
    return f"{len(by[PASS])} of {len(slos)} passed{rest}."


def _uses(contents: Json) -> Iterator[str]:
    if contents["presets"]:
        yield contents["presets"]["sentence"]
    yield alerts.sentence(contents["alerts"])


def _sentences(told: Json | None, key: str) -> Iterator[str]:
    for one in told[key] if told else ():
        if not one.get("is_control"):
            yield one["sentence"]
