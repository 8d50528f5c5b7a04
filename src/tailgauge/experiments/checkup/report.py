"""The answer of a checkup: what to change, the largest gain first; or that nothing was found.

Rule: sentence, tables and facts from the same checks. The exit code is 1 with a finding; without one it is 0, or 3 where
a probe has no run that counts, because what was not looked at is not healthy.
"""

from __future__ import annotations

from collections.abc import Sequence

from tailgauge.errors import Exit
from tailgauge.experiments.answer import FAIL, OPEN, PASS, Answer, Case, Table
from tailgauge.experiments.checkup.check import Check, Gain
from tailgauge.experiments.checkup.checks import NOTHING
from tailgauge.experiments.checkup.finding import ALPHA, Judged, findings, judged
from tailgauge.experiments.checkup.probe_result import Measured
from tailgauge_analysis.text.formatting import plural, sentence, share
from tailgauge_analysis.text.json_values import Json

OUTCOMES = {PASS: "well", FAIL: "found", OPEN: "cannot be told"}


def answer(
    checks: Sequence[Check], measured: Sequence[Measured], lost: Sequence[str], remarks: Sequence[str]
) -> Answer:
    """`lost`: probes without a run that counts."""
    told = judged(checks)
    found = findings(told)
    said = [f"No run of these probes counts: {', '.join(lost)}."] if lost else []
    return Answer(
        kind="checkup", sentence=_sentence(told, found, lost), table=_findings(found) if found else _probes(told),
        facts=_facts(told, found, measured, lost), exit_code=_exit(found, lost), smallest=_smallest(told),
        cases=tuple(Case(f"{one.asked.probe}: {one.check.name}", one.outcome, one.check.evidence) for one in told),
        remarks=(*remarks, *said), more=(_all(told), _numbers(measured)),
    )  # fmt: skip


def _exit(found: Sequence[Judged], lost: Sequence[str]) -> Exit:
    if found:
        return Exit.SLO_FAILED
    return Exit.INVALID if lost else Exit.OK


def _sentence(told: Sequence[Judged], found: Sequence[Judged], lost: Sequence[str]) -> str:
    answered = sum(one.outcome != OPEN for one in told)
    if not found:
        if lost:
            return f"No answer: nothing was found in {plural(answered, 'check')}, but {plural(len(lost), 'probe')} could not be judged."
        return f"Nothing to change was found in {plural(answered, 'check')}."
    first = found[0]
    many = (
        "One thing is to be changed"
        if len(found) == 1
        else f"{len(found)} things are to be changed, the largest gain first"
    )
    return f"{many}: {first.asked.fault}; {_gain_said(first)}: {first.asked.change}."


def _gain_said(one: Judged) -> str:
    gain = one.check.gain
    if one.asked.gain_of == NOTHING or gain.value <= 0:
        return one.check.evidence
    return f"it takes {_interval(gain)} of {one.asked.gain_of}"


def _gained(one: Judged) -> str:
    if one.asked.gain_of == NOTHING:
        return "none by itself"
    return f"{_interval(one.check.gain)} of {one.asked.gain_of}"


def _interval(gain: Gain) -> str:
    value, low, high = map(share, (gain.value, gain.low, gain.high))
    return value if low == value == high else f"{value} ({low} – {high})"


def _findings(found: Sequence[Judged]) -> Table:
    rows = tuple(
        (
            one.asked.fault, _gained(one), one.asked.change,
            one.check.evidence, _chance(one.adjusted),
        )
        for one in found
    )  # fmt: skip
    caption = (
        "A row is a finding, the largest gain first. Gain: what the change gives back at most, with its 95% interval. p: the chance of "
        f"such evidence on an endpoint that just bears it, Holm over all checks; findings are below {ALPHA:g}."
    )
    return Table(caption, ("finding", "gain", "change", "evidence", "p"), rows)


def _probes(told: Sequence[Judged]) -> Table:
    """Where nothing was found."""
    rows = []
    for probe in dict.fromkeys(one.asked.probe for one in told):
        of = [one for one in told if one.asked.probe == probe]
        well = [one.check.name for one in of if one.outcome == PASS]
        open_ = [f"{one.check.name}: {one.check.evidence}" for one in of if one.outcome == OPEN]
        rows.append((probe, ", ".join(well) or "–", "; ".join(open_) or "–"))
    caption = "A row is a probe, with its checks: what was looked at and is well, and what could not be told."
    return Table(caption, ("probe", "well", "cannot be told"), tuple(rows))


def _all(told: Sequence[Judged]) -> Table:
    rows = tuple(
        (
            one.asked.probe, one.check.name, OUTCOMES[one.outcome], one.check.evidence, one.asked.borne, f"{one.check.n:,}",
            _chance(one.adjusted), _least(one),
        )
        for one in told
    )  # fmt: skip
    caption = "A row is a check, found or not. Smallest: the share that so many observations would have called too much, or the ratio of medians that is noticed four times in five."
    return Table(caption, ("probe", "check", "outcome", "evidence", "borne", "n", "p", "smallest"), rows)


def _least(one: Judged) -> str:
    if one.check.detects is not None:
        return f"{one.check.detects:.2f} times"
    return "–" if one.check.smallest is None else share(one.check.smallest)


def _numbers(measured: Sequence[Measured]) -> Table:
    rows = tuple((one.name, one.value, one.interval, f"{one.n:,}") for one in measured)
    return Table("What was measured besides, with 95% intervals.", ("number", "value", "interval", "n"), rows)


def _chance(p_value: float | None) -> str:
    if p_value is None:
        return "–"
    return "< 0.001" if p_value < 0.001 else f"{p_value:.3f}"


def _smallest(told: Sequence[Judged]) -> str:
    """Of the strictest share and of the strictest ratio."""
    of = {one.check.name: one.check for one in told}
    said = []
    if "broken" in of and of["broken"].smallest is not None:
        said.append(f"{share(of['broken'].smallest)} of the calls that break off, where 1% is borne")
    if "queueing" in of and of["queueing"].detects is not None:
        said.append(
            f"a first content {share(of['queueing'].detects - 1)} later at today's rate than at a quarter of it"
        )
    return "; ".join(said)


def _facts(
    told: Sequence[Judged], found: Sequence[Judged], measured: Sequence[Measured], lost: Sequence[str]
) -> Json:
    checks = [
        {
            "check": one.check.name, "probe": one.asked.probe, "outcome": OUTCOMES[one.outcome], "n": one.check.n,
            "p_value": one.check.p_value, "p_adjusted": one.adjusted, "evidence": one.check.evidence,
            "gain": one.check.gain.value, "gain_low": one.check.gain.low, "gain_high": one.check.gain.high,
            "gain_of": one.asked.gain_of, "smallest": one.check.smallest, "detects": one.check.detects,
        }
        for one in told
    ]  # fmt: skip
    return {
        "findings": [one.check.name for one in found],
        "changes": [sentence(one.asked.change) for one in found],
        "checks": checks,
        "measured": [{"name": m.name, "value": m.value, "interval": m.interval, "n": m.n} for m in measured],
        "probes_lost": list(lost),
    }
