"""The answer of a checkup: what to change, in the order of `judge.findings`; or that no problem was found.

FAIL with a finding; INCONCLUSIVE without one if a probe has no valid run, because what was not tested is not healthy.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

from tailgauge.experiments.answer import Answer
from tailgauge.experiments.checkup.judge import ALPHA, JudgedCheck, Measured, ProbeCheck, findings, judged
from tailgauge_analysis import (
    FAIL,
    INCONCLUSIVE,
    PASS,
    ObjectiveLine,
    Result,
    Section,
    Table,
    p_text,
    plural,
    sentence,
    share,
)
from tailgauge_analysis.text import section

OUTCOMES = {PASS: "ok", FAIL: "problem", INCONCLUSIVE: "inconclusive"}
CHECKS_NOTE = (
    f"p: the chance of such evidence at an endpoint exactly at the allowed value, Holm over all checks; problems are below {ALPHA:g}. "
    "Smallest: the smallest share that would be a problem with so many observations, or the ratio of medians that is detected "
    "four times in five."
)
GAIN_NOTE = (
    "Gain: what the change gives back at most, with its 95% interval. Failed requests come first, then latency, then cost; the "
    "largest gain of each comes first."
)


@dataclass(frozen=True, slots=True)
class Checkup:
    """What was found; `findings`: names of the checks, in order; `noted`: of those that are significant, and give nothing
    back; `probes_lost`: without a valid run.
    """

    findings: tuple[str, ...]
    noted: tuple[str, ...]
    changes: tuple[str, ...]
    checks: tuple[JudgedCheck, ...]
    measured: tuple[Measured, ...]
    probes_lost: tuple[str, ...]


def answer(
    checks: Sequence[ProbeCheck], measured: Sequence[Measured], lost: Sequence[str], remarks: Sequence[str]
) -> Answer:
    """`lost`: probes without a valid run."""
    every = judged(checks)
    found, noted = findings(every), [one for one in every if one.noted]
    tested = plural(sum(one.outcome != INCONCLUSIVE for one in every), "check")
    outcome, text = PASS, f"no problem found in {tested}"
    if found:
        outcome, text = FAIL, f"{plural(len(found), 'problem')} found"
    elif lost:
        outcome, text = INCONCLUSIVE, f"{text}, but {plural(len(lost), 'probe')} had no valid run"
    invalid = [f"no valid run of these probes: {', '.join(lost)}"] if lost else []
    finding = Checkup(
        tuple(one.check.name for one in found), tuple(one.check.name for one in noted),
        tuple(sentence(one.spec.change) for one in found), tuple(every), tuple(measured), tuple(lost),
    )  # fmt: skip
    notes = [f"no problem in itself: {one.spec.problem}; {one.spec.change}" for one in noted]
    result = Result(outcome, text, tuple(map(_problem, found)), (*remarks, *notes, *invalid))
    sections = (
        Section("checks", "Checks", tables=(_checks(every),), notes=(GAIN_NOTE,) if found else ()),
        Section("measured", "Other measurements", tables=(_numbers(measured),)),
    )
    return Answer("checkup", result, finding, sections, _smallest(every))


def _problem(one: JudgedCheck) -> ObjectiveLine:
    """A problem with its gain, its evidence, and what to change."""
    value, low, high = map(share, (one.check.gain.value, one.check.gain.low, one.check.gain.high))
    ends = "" if low == value == high else f" ({low} – {high})"
    evidence = f"{sentence(one.check.evidence)} (p {p_text(one.adjusted)})"
    why = f"Gain {value}{ends} of {one.spec.gain_of}. {evidence}. {sentence(one.spec.change)}."
    return ObjectiveLine(one.spec.problem, FAIL, "", "", why=why)


def _checks(checks: Sequence[JudgedCheck]) -> Table:
    columns: tuple[section.Column[JudgedCheck], ...] = (
        ("check", lambda one: one.check.name),
        ("outcome", _outcome),
        ("evidence", lambda one: one.check.evidence),
        ("allowed", lambda one: one.spec.allowed),
        ("p", lambda one: p_text(one.adjusted)),
        ("n", lambda one: f"{one.check.n:,}"),
        ("smallest", lambda one: _least(one.check)),
        ("probe", lambda one: one.spec.probe),
    )
    return Table.of("", checks, columns, CHECKS_NOTE, prose=(2, 3, 7))


def _outcome(one: JudgedCheck) -> section.Value:
    return section.Value("noted" if one.noted else OUTCOMES[one.outcome], outcome=one.outcome)


def _least(one: ProbeCheck) -> str:
    return share(one.smallest) if one.detects is None else f"{one.detects:.2f}x"


def _numbers(measured: Sequence[Measured]) -> Table:
    rows = tuple((one.name, section.Value(one.value, one.interval), f"{one.n:,}") for one in measured)
    return Table("", ("number", "value", "n"), rows)


def _smallest(checks: Sequence[JudgedCheck]) -> str:
    """Smallest effects found at the strictest share and at the strictest ratio."""
    of, out = {one.check.name: one.check for one in checks}, []
    broken, queueing = of.get("broken"), of.get("queueing")
    if broken and broken.smallest is not None:
        out.append(f"{share(broken.smallest)} of calls that break off, where 1% is allowed")
    if queueing and queueing.detects is not None:
        later = share(queueing.detects - 1)
        out.append(f"a first content {later} later at today's rate than at a quarter of it")
    return "; ".join(out)
