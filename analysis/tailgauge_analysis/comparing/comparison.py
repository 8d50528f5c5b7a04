"""One comparison: rows of an effect with interval and verdict, its answer in a sentence, its section and its report.

Makers of rows: pairs of runs (pairs.py), alternating blocks of one run (alternating.py), direct and through a gateway
(gateway.py), a run against earlier ones (history.py), two load curves (curves.py). The published fields of a `Comparison` are
the keys of `tailgauge compare --json`, and of `crossover` and `gateway` in report.json. Changes and shares are fractions.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, field, replace

from tailgauge.errors import Exit
from tailgauge.thresholds import DEGRADED, FEWEST_PAIRS, INVALID, VALID
from tailgauge_analysis.comparing.comparability import TO_ALLOW, Difference, permission
from tailgauge_analysis.comparing.effect import (
    BETTER,
    INCONCLUSIVE,
    NO_WORSE,
    SAME,
    SHARE,
    WORSE,
    Effect,
    Interval,
    overall,
)
from tailgauge_analysis.comparing.run_summary import RunSummary
from tailgauge_analysis.stats.quantiles import CONFIDENCE
from tailgauge_analysis.text import section as outcomes
from tailgauge_analysis.text.formatting import count, figures, ms, plain, plural, share
from tailgauge_analysis.text.picture import Picture
from tailgauge_analysis.text.quantile import UNPUBLISHED, plain_values
from tailgauge_analysis.text.section import (
    Card,
    Cell,
    Column,
    Measurement,
    Report,
    Result,
    Section,
    Table,
    Value,
)

SCHEMA_VERSION = 1
SHOWN_TEXTS = 8
SHOWN_ROWS = 3
NOT_COMPARABLE = "not comparable"
MEASURED = "measured"  # a difference is an answer, not a failure
REGRESSION = "regression"
NO_REGRESSION = "no regression"
TOO_SHORT = "not enough history"
FAILURES = {WORSE, REGRESSION}
SUCCESSES = {BETTER, SAME, NO_WORSE, NO_REGRESSION, MEASURED}

Growing = tuple[float | None, float | None]
"""Of A and of B: requests/s by which its requests in flight grow, None of a variant that is stable."""
STABLE: Growing = (None, None)


@dataclass(frozen=True, slots=True, kw_only=True)
class Method:
    """What makes a comparison's rows: anchor and title of its section, how its figures are computed, names of its sides."""

    name: str
    title: str
    computed: str
    sides: tuple[str, str] = ("A", "B")


@dataclass(frozen=True, slots=True, kw_only=True)
class Comparison:
    """`against` rules out any conclusion; `remarks` are for the reader to weigh. `growth_per_s`: of the requests in flight of
    A and B, where the target does not sustain their rate; that is the verdict then. `a`, `b`, `block_s` and `washout_s` are
    those of alternating blocks. `runs`: A1 B1 A2 B2 ...
    """

    method: Method = field(metadata=UNPUBLISHED)
    schema_version: int = SCHEMA_VERSION
    verdict: str = ""
    sentence: str = ""
    against: tuple[str, ...] = ()
    remarks: tuple[str, ...] = ()
    differs: tuple[Difference, ...] = ()
    threshold: float
    confidence: float = CONFIDENCE
    pairs: int = 0
    runs: tuple[RunSummary, ...] = ()
    rows: tuple[Effect, ...] = ()
    unequal: tuple[str, ...] = ()
    growth_per_s: Growing = STABLE
    a: str = ""
    b: str = ""
    block_s: float | None = None
    washout_s: float | None = None

    @property
    def outcome(self) -> str:
        """Worse is a FAIL."""
        if self.verdict in FAILURES:
            return outcomes.FAIL
        return outcomes.PASS if self.verdict in SUCCESSES else outcomes.INCONCLUSIVE

    @property
    def exit_code(self) -> Exit:
        """INVALID of what cannot be compared."""
        return Exit.INVALID if self.against else outcomes.EXITS[self.outcome]

    @property
    def names(self) -> tuple[str, str]:
        """`A (chat)` and `B (chat_hedged)`."""
        a, b = self.method.sides
        return _named(a, self.a), _named(b, self.b)


def _named(side: str, traffic: str) -> str:
    return f"{side} ({plain(traffic, 80)})" if traffic else side


def conclude(found: Comparison) -> Comparison:
    """Add verdict and sentence, unless its maker gave them; unequal work comes first."""
    a, b = found.names
    verdict = found.verdict or _verdict(found)
    sentence = found.sentence or _sentence(found, verdict)
    if found.against:
        sentence = f"{b} against {a}: not comparable, {_without_option(found.against[0])}"
    elif found.unequal:
        sentence = f"Not the same work, {b} got {' and '.join(found.unequal)}. {sentence}"
    return replace(found, verdict=verdict, sentence=sentence)


def _without_option(reason: str) -> str:
    """Return a reason without the option that allows it: one line has the options of all."""
    return reason.partition(TO_ALLOW)[0]


def _verdict(found: Comparison) -> str:
    if found.against:
        return NOT_COMPARABLE
    a_grows, b_grows = (growth is not None for growth in found.growth_per_s)
    if a_grows and b_grows:
        return INCONCLUSIVE
    if a_grows or b_grows:
        return WORSE if b_grows else BETTER
    return overall(found.rows)


def _sentence(found: Comparison, verdict: str) -> str:
    a, b = found.names
    growing = [
        f"{name} is not stable at this rate: the backlog grows by {figures(growth)} requests/s"
        for name, growth in zip((a, b), found.growth_per_s, strict=True)
        if growth is not None
    ]
    if growing:
        return "; ".join(growing)
    least = f"{found.threshold * 100:g}%"
    if verdict == SAME:
        return f"No difference of {least} or more between {a} and {b}"
    starts = {INCONCLUSIVE: f"{b} against {a}", NO_WORSE: f"{b} is at most {least} worse than {a}"}
    start = starts.get(verdict, f"{b} is {verdict} than {a}")
    rows = [row for row in found.rows if row.verdict == verdict]
    if not rows:
        return start
    listed = ", ".join(f"{row.name} {row.change_text(row.change)}" for row in rows[:SHOWN_ROWS])
    more = f" and {len(rows) - SHOWN_ROWS} more" if len(rows) > SHOWN_ROWS else ""
    return f"{start}: {listed}{more}"


def headline(found: Comparison, of_run: Result) -> Result:
    """Return the answer of a run in blocks: the comparison, behind it what the run says of its objectives."""
    if of_run.outcome == outcomes.NO_ANSWER:
        return of_run
    outcome = found.outcome
    if of_run.outcome != outcomes.COMPLETED:  # else no objective decided anything
        outcome = outcomes.worst((of_run.outcome, found.outcome))
    details = (*found.remarks, *_power(found), *of_run.details)
    return replace(of_run, outcome=outcome, sentence=found.sentence, details=details)


def section(found: Comparison, figures: Sequence[Picture] = ()) -> Section:
    """Return B against A row by row, then pair by pair."""
    a, b = found.names
    columns = _columns(found)
    prose = tuple(place for place, (name, _) in enumerate(columns) if name in {"verdict", "why"})
    table = Table.of(f"{b} against {a}", found.rows, columns, _note(found), prose)
    known = [row for row in found.rows[:SHOWN_ROWS] if row.low is not None or row.high is not None]
    return Section(
        name=found.method.name,
        title=found.method.title,
        answer=found.sentence,
        tables=(table, *_pairs(found)) if found.rows else (),
        figures=figures,
        notes=found.remarks,
        computed=(found.method.computed,),
        card=_card(found, known),
    )


def _card(found: Comparison, rows: Sequence[Effect]) -> Card | None:
    """The change of the first row, those of the others in a line each; None where no row has an interval."""
    if not rows:
        return None
    first = rows[0]
    return Card(
        label=found.method.name,
        value=Value(first.change_text(first.change), _ends(first)),
        detail=f"on {first.name}",
        lines=tuple(f"{row.name} {row.change_text(row.change)} ({_ends(row)})" for row in rows[1:]),
        tone="bad" if found.verdict in FAILURES else "",
    )


def _columns(found: Comparison) -> list[Column[Effect]]:
    a, b = found.method.sides
    return [
        ("offered requests, ms", lambda row: row.name),
        ("verdict", _verdict_cell),
        ("change", lambda row: Value(row.change_text(row.change), _ends(row))),
        (a, lambda row: _side(row, row.a, row.a_interval)),
        (b, lambda row: _side(row, row.b, row.b_interval)),
        ("p", lambda row: p_text(row.p_family)),
        ("worse in", lambda row: f"{row.worse_in}/{row.pairs}" if row.pairs else "–"),
        ("why", lambda row: row.why),
    ]


def _verdict_cell(row: Effect) -> Cell:
    if row.verdict is None:
        return "not compared" if row.why else ""
    outcome = outcomes.PASS if row.verdict in SUCCESSES else ""
    return Value(row.verdict, outcome=outcomes.FAIL if row.verdict == WORSE else outcome)


def _ends(row: Effect) -> str:
    if row.low is None and row.high is None:
        return ""
    return f"{row.change_text(row.low)} to {row.change_text(row.high)}"


def _side(row: Effect, value: float | None, interval: Interval | None) -> Cell:
    text = row.value_text(value)
    if interval is None:
        return text
    low, high = (share(end) if row.scale == SHARE else ms(end) for end in interval)
    return Value(text, f"{low} – {high}")


def p_text(value: float | None) -> str:
    """A p-value."""
    if value is None:
        return "–"
    return "< 0.001" if value < 0.001 else f"{value:.3f}"


def _note(found: Comparison) -> str:
    if found.block_s is not None:
        return f"{plural(found.pairs, 'pair')} of blocks of {found.block_s:g} s, the first {found.washout_s:g} s not counted."
    if found.pairs == 1:
        return f"A is {found.runs[0].run_id}, B is {found.runs[1].run_id}."
    offered = sum(run.offered for run in found.runs)
    return f"{found.pairs} pairs; {count(offered)} requests offered." if offered else ""


def _pairs(found: Comparison) -> tuple[Table, ...]:
    """Return the change in each pair of runs."""
    shown = [row for row in found.rows if row.changes]
    if found.pairs < 2 or not shown:
        return ()
    rows = []
    for pair in range(found.pairs):
        a, b = found.runs[2 * pair : 2 * pair + 2]
        changes = [row.change_text(row.changes[pair]) for row in shown]
        rows.append((str(pair + 1), a.run_id, b.run_id, *changes))
    header = ("pair", "A", "B", *(row.name for row in shown))
    return (Table("Change from A to B, pair by pair", header, tuple(rows)),)


def report(
    found: Comparison, verdicts: Sequence[str], *, dry_run: bool, figures: Sequence[Picture] = ()
) -> Report:
    """Return the report of `tailgauge compare`; `verdicts`: of the measurement of what is compared. The first figure stands beside the result."""
    result = Result(
        found.outcome, found.sentence, details=(*found.remarks, *_power(found), *_differing(found))
    )
    data = {**plain_values(found), "outcome": found.outcome, "exit_code": int(found.exit_code)}
    return Report(
        run_id="comparison",
        title="Comparison",
        about=(),
        started_at="",
        dry_run=dry_run,
        result=result,
        measurement=_measurement(found, verdicts),
        summary=(),
        sections=(section(found, figures),),
        exit_code=found.exit_code,
        figure=figures[0] if figures else None,
        data=data,
    )


def _measurement(found: Comparison, verdicts: Sequence[str]) -> Measurement:
    """Return the reasons against the comparison, else the worst verdict of what is compared."""
    if found.against:
        advice = permission(found.differs)
        texts = [_without_option(text) if advice else text for text in found.against]
        reasons = tuple((text, advice) for text in _shortened(texts, "reason"))
        return Measurement(INVALID, NOT_COMPARABLE, reasons)
    degraded = verdicts.count(DEGRADED)
    total = plural(len(verdicts), "run")
    if degraded:
        return Measurement(DEGRADED, f"{degraded} of {total} DEGRADED: see their reports")
    return Measurement(VALID, f"{total}, all VALID")


def _differing(found: Comparison) -> list[str]:
    if found.runs and not found.differs:
        return ["nothing differs between A and B"]
    sides = found.method.sides
    texts = [f"differs: {difference.text(sides)}" for difference in found.differs if difference.allowed]
    return _shortened(texts, "allowed difference")


def _power(found: Comparison) -> tuple[str, ...]:
    """Return what so many pairs can show of the row that decides, and what more of them could."""
    if found.pairs < 2 or not found.rows or found.verdict == MEASURED:
        return ()
    first = found.rows[0]
    if first.smallest is None:
        return (f"{first.name} decides",)
    is_few = found.pairs < FEWEST_PAIRS
    find = f"{FEWEST_PAIRS} pairs would find" if is_few else f"{found.pairs} pairs find"
    return (
        f"{first.name} decides: {find} {first.change_text(first.smallest)} or more in 8 of 10 repetitions",
    )


def _shortened(texts: Sequence[str], what: str) -> list[str]:
    more = len(texts) - SHOWN_TEXTS
    shown = list(texts[:SHOWN_TEXTS])
    return [*shown, f"and {plural(more, f'more {what}')}"] if more > 0 else shown
