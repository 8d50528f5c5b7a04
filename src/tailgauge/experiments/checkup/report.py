"""The answer of a checkup: what to change, or that no problem was found.

FAIL with a problem or a missed objective; INCONCLUSIVE without one if a probe has no valid run, because what was not tested is
not healthy, or if an objective is inconclusive.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass

from tailgauge.experiments.answer import Answer, tone_of
from tailgauge.experiments.checkup.checks import CHECKS, GAINS, LEAST_GAINS, NOTHING, Check
from tailgauge.experiments.checkup.numbers import LEVEL, Number
from tailgauge_analysis import (
    FAIL,
    INCONCLUSIVE,
    PASS,
    Card,
    Column,
    ObjectiveLine,
    Panel,
    Picture,
    PlotCurve,
    Result,
    Section,
    Table,
    Value,
    counted,
    plural,
    sentence,
    share,
    worst_outcome,
)

OUTCOMES = {PASS: "ok", FAIL: "problem", INCONCLUSIVE: "inconclusive"}
MOST_GAINS = 3  # in a card
NOTE = (
    f"Problem: the whole interval at {LEVEL:.1%} is beyond what is allowed, so that all checks together are wrong in one of "
    "twenty checkups of an endpoint that is exactly at its bounds."
)
GAIN_NOTE = (
    "Gain: what the change gives back at most. Failed requests come first, then latency, then cost; the "
    "largest gain of each comes first. A gain counts from 5% of the latency or cost and 0.5% of the requests, by the low "
    "end of its interval."
)


@dataclass(frozen=True, slots=True, kw_only=True)
class CheckResult:
    """One check with its number; FAIL is a problem. `noted`: it would be one, but its gain is small."""

    name: str
    outcome: str
    noted: bool
    allowed: float
    number: Number

    @property
    def check(self) -> Check:
        """Return its row."""
        return CHECKS[self.name]


@dataclass(frozen=True, slots=True, kw_only=True)
class Checkup:
    """What was found; `findings`: names of the checks, in order; `probes_lost`: without a valid run."""

    findings: tuple[str, ...]
    noted: tuple[str, ...]
    changes: tuple[str, ...]
    checks: tuple[CheckResult, ...]
    probes_lost: tuple[str, ...]


def judge(name: str, number: Number, allowed: float) -> CheckResult:
    """Judge one number by what is allowed."""
    allowed = allowed if number.allowed is None else number.allowed
    is_beyond = number.low is not None and number.low > allowed
    gives = number.least_gain >= LEAST_GAINS[CHECKS[name].gain_of]
    outcome = INCONCLUSIVE if number.low is None else PASS
    if is_beyond and gives:
        outcome = FAIL
    noted = is_beyond and not gives
    return CheckResult(name=name, outcome=outcome, noted=noted, allowed=allowed, number=number)


def answer(
    numbers: Mapping[str, Number],
    lost: Sequence[str],
    remarks: Sequence[str],
    *,
    threshold: float,
    line_of: Callable[[str], str] = lambda _: "",
    objectives: Sequence[ObjectiveLine] = (),
) -> Answer:
    """Answer from the numbers by check; `threshold` widens what is allowed of the ratios that allow 1.

    `line_of`: the command of another experiment on the same traffic. `objectives`: those of the scenario, as they were judged.
    """
    checks = []
    for name, check in CHECKS.items():
        if name in numbers:
            allowed = 1 + threshold if check.allowed == 1 else check.allowed
            checks.append(judge(name, numbers[name], allowed))
    problems = [one for one in checks if one.outcome == FAIL]
    problems.sort(key=lambda one: (GAINS.index(one.check.gain_of), -one.number.gain))
    noted = [one for one in checks if one.noted]
    finding = Checkup(
        findings=tuple(one.name for one in problems),
        noted=tuple(one.name for one in noted),
        changes=tuple(sentence(one.check.change) for one in problems),
        checks=tuple(checks),
        probes_lost=tuple(lost),
    )
    notes = [_small(one) for one in noted]
    if lost:
        notes.append(f"no valid run of these probes: {', '.join(lost)}")
    outcomes = {one.outcome for one in objectives}
    of_checks = FAIL if problems else INCONCLUSIVE if lost else PASS
    outcome = worst_outcome([of_checks, *outcomes])
    lines = (*objectives, *(_problem(one, line_of) for one in problems))
    text = _sentence(checks, problems, lost)
    if objectives:
        met = sum(one.outcome == PASS for one in objectives)
        text = f"{met} of {plural(len(objectives), 'objective')} met, {text}"
    result = Result(outcome, text, lines, (*remarks, *notes))
    notes_of_table = (GAIN_NOTE,) if problems else ()
    section = Section(
        "checks",
        "Checks",
        tables=(_table(checks),),
        figures=tuple(_gains(problems)),
        notes=notes_of_table,
        card=_card(checks, problems, of_checks),
    )
    return Answer("checkup", result, finding, (section,), _smallest(numbers))


def _card(checks: Sequence[CheckResult], problems: Sequence[CheckResult], outcome: str) -> Card:
    """How many problems were found, and what the first changes give back."""
    decided = [one for one in checks if one.outcome != INCONCLUSIVE]
    first = problems[:MOST_GAINS]
    lines = [f"{one.name}: {share(one.number.gain)} of {one.check.gain_of}" for one in first]
    inconclusive = len(checks) - len(decided)
    if inconclusive:
        lines.append(f"{plural(inconclusive, 'check')} inconclusive")
    return Card(
        label="checkup",
        value=Value(plural(len(problems), "problem")),
        detail=f"found in {plural(len(decided), 'check')}",
        lines=tuple(lines),
        tone=tone_of(outcome),
    )


def _gains(problems: Sequence[CheckResult]) -> Iterator[Picture]:
    """What each change gives back at most, as bars in the order of the problems."""
    if not problems:
        return
    kinds = [kind for kind in GAINS if any(one.check.gain_of == kind for one in problems)]
    bars = []
    for kind in kinds:
        of_kind = [one for one in problems if one.check.gain_of == kind]
        gains = [100 * one.number.gain for one in of_kind]
        bars.append(PlotCurve(gains, (), f"of {kind}", style="rows", labels=[one.name for one in of_kind]))
    yield Picture(
        name="gains",
        title="What each change gives back",
        caption="At most, by problem. Gains of different kinds are not compared.",
        panels=(Panel("", bars, scale="category"),),
        x="gain (%)",
        height=120 + 34 * len(problems),
    )


def _sentence(checks: Sequence[CheckResult], problems: Sequence[CheckResult], lost: Sequence[str]) -> str:
    unknown = [one.name for one in checks if one.outcome == INCONCLUSIVE]
    text = f"no problem found in {plural(len(checks) - len(unknown), 'check')}"
    if problems:
        text = f"{plural(len(problems), 'problem')} found"
    if unknown:
        text += f", {len(unknown)} inconclusive ({', '.join(unknown)})"
    if lost and not problems:
        text += f", but {plural(len(lost), 'probe')} had no valid run"
    return text


def _small(one: CheckResult) -> str:
    """Return what was found, and why it is no problem."""
    least = share(LEAST_GAINS[one.check.gain_of])
    gain = f"gain at most {share(one.number.gain)} of {one.check.gain_of}, not shown to reach {least}"
    if one.check.gain_of == NOTHING:
        gain = "it costs nothing by itself"
    return f"small: {one.check.problem}; {gain}; {one.check.change}"


def _problem(one: CheckResult, line_of: Callable[[str], str]) -> ObjectiveLine:
    gain = f"Gain at most {share(one.number.gain)} of {one.check.gain_of}"
    line = line_of(one.check.experiment) if one.check.experiment else ""
    change = f"{sentence(one.check.change)}: {line}" if line else f"{sentence(one.check.change)}."
    why = f"{gain}. {sentence(one.number.evidence)}. {change}"
    return ObjectiveLine(one.check.problem, FAIL, "", "", why=why)


def _table(checks: Sequence[CheckResult]) -> Table:
    columns: tuple[Column[CheckResult], ...] = (
        ("check", lambda one: one.name),
        ("outcome", lambda one: Value("small" if one.noted else OUTCOMES[one.outcome], outcome=one.outcome)),
        ("evidence", lambda one: one.number.evidence),
        ("allowed", lambda one: one.check.allowed_text),
        ("n", lambda one: f"{one.number.n:,}"),
        ("probe", lambda one: one.check.probe),
    )
    return Table.of("", checks, columns, NOTE, prose=(2, 3, 5))


def _smallest(numbers: Mapping[str, Number]) -> str:
    """Return the smallest share of broken calls that would have been found."""
    broken = numbers.get("broken")
    if broken is None or broken.low is None:
        return ""
    allowed = CHECKS["broken"].allowed
    for calls in range(1, broken.n + 1):
        if (counted(calls, broken.n).low or 0.0) > allowed:
            return f"{share(calls / broken.n)} of calls that break off, where {allowed:.0%} is allowed"
    return ""
