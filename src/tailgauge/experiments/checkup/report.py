"""The answer of a checkup: what to change, the largest gain first; or that no problem was found.

Exit code 1 with a finding; without one 0, or 5 if a probe has no valid run, because what was not tested is not healthy.
"""

from __future__ import annotations

from collections.abc import Sequence

from tailgauge.errors import Exit
from tailgauge.experiments.answer import FAIL, INCONCLUSIVE, PASS, Answer, AnswerTable, Case
from tailgauge.experiments.checkup.checks import NOTHING
from tailgauge.experiments.checkup.judge import (
    ALPHA,
    Gain,
    JudgedCheck,
    Measured,
    ProbeCheck,
    findings,
    judged,
)
from tailgauge_analysis.text.formatting import plural, sentence, share
from tailgauge_analysis.text.json_values import Json

OUTCOMES = {PASS: "ok", FAIL: "problem", INCONCLUSIVE: INCONCLUSIVE}


def answer(
    checks: Sequence[ProbeCheck], measured: Sequence[Measured], lost: Sequence[str], remarks: Sequence[str]
) -> Answer:
    """`lost`: probes without a valid run."""
    all_checks = judged(checks)
    found = findings(all_checks)
    invalid = [f"No valid run of these probes: {', '.join(lost)}."] if lost else []
    return Answer(
        kind="checkup", sentence=_sentence(all_checks, found, lost),
        table=_findings(found) if found else _probes(all_checks), facts=_facts(all_checks, found, measured, lost),
        exit_code=_exit(found, lost), smallest=_smallest(all_checks),
        cases=tuple(Case(f"{one.spec.probe}: {one.check.name}", one.outcome, one.check.evidence) for one in all_checks),
        remarks=(*remarks, *invalid), more=(_checks(all_checks), _numbers(measured)),
    )  # fmt: skip


def _exit(found: Sequence[JudgedCheck], lost: Sequence[str]) -> Exit:
    if found:
        return Exit.FAILED
    return Exit.INCONCLUSIVE if lost else Exit.OK


def _sentence(checks: Sequence[JudgedCheck], found: Sequence[JudgedCheck], lost: Sequence[str]) -> str:
    answered = plural(sum(one.outcome != INCONCLUSIVE for one in checks), "check")
    if not found and lost:
        return f"No answer: {answered} found no problem, but {plural(len(lost), 'probe')} had no valid run."
    if not found:
        return f"No problem found in {answered}."
    first = found[0]
    many = "1 problem found:" if len(found) == 1 else f"{len(found)} problems found, the largest gain first:"
    gain = f", gain {_gain(first)}" if _has_gain(first) else f": {first.check.evidence}"
    return f"{many} {first.spec.problem}{gain}. {sentence(first.spec.change)}."


def _has_gain(one: JudgedCheck) -> bool:
    return one.spec.gain_of != NOTHING and one.check.gain.value > 0


def _gain(one: JudgedCheck) -> str:
    return (
        "none directly"
        if one.spec.gain_of == NOTHING
        else f"{_interval(one.check.gain)} of {one.spec.gain_of}"
    )


def _interval(gain: Gain) -> str:
    value, low, high = map(share, (gain.value, gain.low, gain.high))
    return value if low == value == high else f"{value} ({low} – {high})"


def _findings(found: Sequence[JudgedCheck]) -> AnswerTable:
    rows = tuple(
        (
            one.spec.problem, _gain(one), one.spec.change,
            one.check.evidence, _chance(one.adjusted),
        )
        for one in found
    )  # fmt: skip
    caption = (
        "One row per problem, the largest gain first. Gain: what the change gives back at most, with its 95% interval. p: the chance "
        f"of such evidence at an endpoint exactly at the allowed value, Holm over all checks; problems are below {ALPHA:g}."
    )
    return AnswerTable(caption, ("problem", "gain", "change", "evidence", "p"), rows)


def _probes(checks: Sequence[JudgedCheck]) -> AnswerTable:
    """If no problem was found."""
    rows = []
    for probe in dict.fromkeys(one.spec.probe for one in checks):
        of = [one for one in checks if one.spec.probe == probe]
        fine = [one.check.name for one in of if one.outcome == PASS]
        open_ = [f"{one.check.name}: {one.check.evidence}" for one in of if one.outcome == INCONCLUSIVE]
        rows.append((probe, ", ".join(fine) or "–", "; ".join(open_) or "–"))
    caption = "One row per probe, with its checks."
    return AnswerTable(caption, ("probe", "ok", "inconclusive"), tuple(rows))


def _checks(checks: Sequence[JudgedCheck]) -> AnswerTable:
    rows = tuple(
        (
            one.spec.probe, one.check.name, OUTCOMES[one.outcome], one.check.evidence, one.spec.allowed, f"{one.check.n:,}",
            _chance(one.adjusted), _least(one),
        )
        for one in checks
    )  # fmt: skip
    caption = (
        "One row per check. Smallest: the smallest share that would be a problem with so many observations, or the ratio of medians "
        "that is detected four times in five."
    )
    return AnswerTable(
        caption, ("probe", "check", "outcome", "evidence", "allowed", "n", "p", "smallest"), rows
    )


def _least(one: JudgedCheck) -> str:
    if one.check.detects is not None:
        return f"{one.check.detects:.2f}x"
    return "–" if one.check.smallest is None else share(one.check.smallest)


def _numbers(measured: Sequence[Measured]) -> AnswerTable:
    rows = tuple((one.name, one.value, one.interval, f"{one.n:,}") for one in measured)
    return AnswerTable("Other measurements, with 95% intervals.", ("number", "value", "interval", "n"), rows)


def _chance(p_value: float | None) -> str:
    if p_value is None:
        return "–"
    return "< 0.001" if p_value < 0.001 else f"{p_value:.3f}"


def _smallest(checks: Sequence[JudgedCheck]) -> str:
    """Smallest effects found at the strictest share and at the strictest ratio."""
    of = {one.check.name: one.check for one in checks}
    out = []
    if "broken" in of and of["broken"].smallest is not None:
        out.append(f"{share(of['broken'].smallest)} of calls that break off, where 1% is allowed")
    if "queueing" in of and of["queueing"].detects is not None:
        later = share(of["queueing"].detects - 1)
        out.append(f"a first content {later} later at today's rate than at a quarter of it")
    return "; ".join(out)


def _facts(
    checks: Sequence[JudgedCheck],
    found: Sequence[JudgedCheck],
    measured: Sequence[Measured],
    lost: Sequence[str],
) -> Json:
    rows = [
        {
            "check": one.check.name, "probe": one.spec.probe, "outcome": OUTCOMES[one.outcome], "n": one.check.n,
            "p_value": one.check.p_value, "p_adjusted": one.adjusted, "evidence": one.check.evidence,
            "gain": one.check.gain.value, "gain_low": one.check.gain.low, "gain_high": one.check.gain.high,
            "gain_of": one.spec.gain_of, "smallest": one.check.smallest, "detects": one.check.detects,
        }
        for one in checks
    ]  # fmt: skip
    return {
        "findings": [one.check.name for one in found],
        "changes": [sentence(one.spec.change) for one in found],
        "checks": rows,
        "measured": [{"name": m.name, "value": m.value, "interval": m.interval, "n": m.n} for m in measured],
        "probes_lost": list(lost),
    }
