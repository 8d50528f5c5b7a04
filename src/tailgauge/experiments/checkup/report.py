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
    f"A check finds a problem if its whole {LEVEL:.1%} interval is beyond what is allowed. At this level all checks together find a false "
    "problem in one of twenty checkups of an endpoint that is exactly at its bounds."
)
GAIN_NOTE = (
    "The gain is what the change gives back at most. Failed requests come first, then latency, then cost; the "
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
    """Return the answer of a checkup from the numbers by check: problems by their gain, FAIL with one or a missed
    objective.

    `lost`: probes without a valid run. `remarks`: sentences for the details. `threshold` widens what is allowed of the
    ratios that allow 1. `line_of`: the command of another experiment on the same traffic. `objectives`: those of the
    scenario, as they were judged. A problem whose gain is small is a note only.
    """
    checks = []
    for name, check in CHECKS.items():
        if name in numbers:
            allowed = check.allowed
            if check.allowed == 1:
                allowed = 1 + threshold
            checks.append(judge(name, numbers[name], allowed))
    problems = sorted(filter(_is_problem, checks), key=_urgency)
    small = [result for result in checks if result.noted]
    finding = Checkup(
        findings=tuple(problem.name for problem in problems),
        noted=tuple(problem.name for problem in small),
        changes=tuple(sentence(problem.check.change) for problem in problems),
        checks=tuple(checks),
        probes_lost=tuple(lost),
    )
    notes = list(map(_small, small))
    if lost:
        notes.append(f"these probes had no valid run: {', '.join(lost)}")
    checks_outcome = FAIL
    if not problems:
        checks_outcome = INCONCLUSIVE if lost else PASS
    outcomes = [objective.outcome for objective in objectives]
    outcome = worst_outcome([checks_outcome, *outcomes])
    problem_lines = [_problem(problem, line_of) for problem in problems]
    text = _sentence(checks, problems, lost)
    if objectives:
        text = f"{outcomes.count(PASS)} of {plural(len(objectives), 'objective')} met, {text}"
    result = Result(outcome, text, (*objectives, *problem_lines), (*remarks, *notes))
    section = Section(
        "checks",
        "Checks",
        tables=(_table(checks),),
        figures=tuple(_gains(problems)),
        notes=(GAIN_NOTE,) if problems else (),
        card=_card(checks, problems, checks_outcome),
    )
    return Answer("checkup", result, finding, (section,), _smallest(numbers))


def _is_problem(result: CheckResult) -> bool:
    return result.outcome == FAIL


def _gain(result: CheckResult) -> str:
    return f"{share(result.number.gain)} of {result.check.gain_of}"


def _urgency(problem: CheckResult) -> tuple[int, float]:
    """Sort by what a change gives back, the largest gain first."""
    return GAINS.index(problem.check.gain_of), -problem.number.gain


def _card(checks: Sequence[CheckResult], problems: Sequence[CheckResult], outcome: str) -> Card:
    """Return how many problems were found, and what the first changes give back."""
    decided = [result for result in checks if result.outcome != INCONCLUSIVE]
    largest = problems[:MOST_GAINS]
    lines = [f"{problem.name}: {_gain(problem)}" for problem in largest]
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
    """Yield what each change gives back at most, as bars in the order of the problems."""
    if not problems:
        return
    bars = []
    for kind in GAINS:
        gains = []
        names = []
        for problem in problems:
            if problem.check.gain_of == kind:
                gains.append(100 * problem.number.gain)
                names.append(problem.name)
        if gains:
            bars.append(PlotCurve(gains, (), f"of {kind}", style="rows", labels=names))
    yield Picture(
        name="gains",
        title="What each change gives back",
        caption="Each bar is the largest possible gain of a problem's change. Gains of different kinds are not compared.",
        panels=(Panel("", bars, scale="category"),),
        x="gain (%)",
        height=120 + 34 * len(problems),
    )


def _sentence(
    checks: Sequence[CheckResult], problems: Sequence[CheckResult], lost: Sequence[str]
) -> str:
    inconclusive = [result.name for result in checks if result.outcome == INCONCLUSIVE]
    text = f"no problem found in {plural(len(checks) - len(inconclusive), 'check')}"
    if problems:
        text = f"{plural(len(problems), 'problem')} found"
    if inconclusive:
        text += f", {len(inconclusive)} inconclusive ({', '.join(inconclusive)})"
    if lost and not problems:
        text += f", but {plural(len(lost), 'probe')} had no valid run"
    return text


def _small(result: CheckResult) -> str:
    """Return what was found, and why it is no problem."""
    threshold = share(LEAST_GAINS[result.check.gain_of])
    gain = f"gain at most {share(result.number.gain)} of {result.check.gain_of}, not shown to reach {threshold}"
    if result.check.gain_of == NOTHING:
        gain = "it costs nothing by itself"
    return f"small: {result.check.problem}; {gain}; {result.check.change}"


def _problem(problem: CheckResult, line_of: Callable[[str], str]) -> ObjectiveLine:
    gain = f"Gain at most {_gain(problem)}"
    line = ""
    if problem.check.experiment:
        line = line_of(problem.check.experiment)
    reason = f"{gain}. {sentence(problem.number.evidence)}. {sentence(problem.check.change)}"
    reason += f": {line}" if line else "."
    return ObjectiveLine(problem.check.problem, FAIL, "", "", why=reason)


def _table(checks: Sequence[CheckResult]) -> Table:
    columns: tuple[Column[CheckResult], ...] = (
        ("check", lambda result: result.name),
        (
            "outcome",
            lambda result: Value(
                "small" if result.noted else OUTCOMES[result.outcome], outcome=result.outcome
            ),
        ),
        ("evidence", lambda result: result.number.evidence),
        ("allowed", lambda result: result.check.allowed_text),
        ("n", lambda result: f"{result.number.n:,}"),
        ("probe", lambda result: result.check.probe),
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
            return (
                f"{share(calls / broken.n)} of calls that break off, where {allowed:.0%} is allowed"
            )
    return ""
