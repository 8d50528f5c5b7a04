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
        if self.against:
            return Exit.INVALID
        return outcomes.EXITS[self.outcome]

    @property
    def names(self) -> tuple[str, str]:
        """`A (chat)` and `B (chat_hedged)`."""
        a, b = self.method.sides
        return _named(a, self.a), _named(b, self.b)


def _named(side: str, traffic: str) -> str:
    if not traffic:
        return side
    return f"{side} ({plain(traffic, 80)})"


def conclude(comparison: Comparison) -> Comparison:
    """Add verdict and sentence, unless its maker gave them; unequal work comes first."""
    a, b = comparison.names
    verdict = comparison.verdict or _verdict(comparison)
    sentence = comparison.sentence or _sentence(comparison, verdict)
    if comparison.against:
        sentence = f"{b} against {a}: not comparable, {_without_option(comparison.against[0])}"
    elif comparison.unequal:
        sentence = (
            f"The work is not the same: {b} got {' and '.join(comparison.unequal)}. {sentence}"
        )
    return replace(comparison, verdict=verdict, sentence=sentence)


def _without_option(reason: str) -> str:
    """Return a reason without the option that allows it: one line has the options of all."""
    return reason.partition(TO_ALLOW)[0]


def _verdict(comparison: Comparison) -> str:
    if comparison.against:
        return NOT_COMPARABLE
    a_growth, b_growth = comparison.growth_per_s
    if a_growth is not None and b_growth is not None:
        return INCONCLUSIVE
    if b_growth is not None:
        return WORSE
    if a_growth is not None:
        return BETTER
    return overall(comparison.rows)


def _sentence(comparison: Comparison, verdict: str) -> str:
    """Return the answer in a sentence: which variants do not hold their rate, else the verdict and the rows that have it."""
    a, b = comparison.names
    growing = []
    for name, growth in zip((a, b), comparison.growth_per_s, strict=True):
        if growth is not None:
            backlog = f"the backlog grows by {figures(growth)} requests/s"
            growing.append(f"{name} is not stable at this rate: {backlog}")
    if growing:
        return "; ".join(growing)
    threshold = f"{comparison.threshold * 100:g}%"
    if verdict == SAME:
        return f"No difference of {threshold} or more between {a} and {b}"
    starts = {
        INCONCLUSIVE: f"{b} against {a} is inconclusive",
        NO_WORSE: f"{b} is at most {threshold} worse than {a}",
    }
    start = starts.get(verdict, f"{b} is {verdict} than {a}")
    rows = [row for row in comparison.rows if row.verdict == verdict]
    if not rows:
        return start
    listed = ", ".join(f"{row.name} {row.change_text(row.change)}" for row in rows[:SHOWN_ROWS])
    text = f"{start}: {listed}"
    if len(rows) > SHOWN_ROWS:
        text += f" and {len(rows) - SHOWN_ROWS} more"
    return text


def headline(comparison: Comparison, of_run: Result) -> Result:
    """Return the answer of a run in blocks: the comparison, behind it what the run says of its objectives."""
    if of_run.outcome == outcomes.NO_ANSWER:
        return of_run
    outcome = comparison.outcome
    if of_run.outcome != outcomes.COMPLETED:  # else no objective decided anything
        outcome = outcomes.worst((of_run.outcome, comparison.outcome))
    details = (*comparison.remarks, *_power(comparison), *of_run.details)
    return replace(of_run, outcome=outcome, sentence=comparison.sentence, details=details)


def section(comparison: Comparison, figures: Sequence[Picture] = ()) -> Section:
    """Return B against A row by row, then pair by pair."""
    a, b = comparison.names
    estimated = [row for row in comparison.rows[:SHOWN_ROWS] if _ends(row)]
    tables: tuple[Table, ...] = ()
    if comparison.rows:
        columns = _columns(comparison)
        title = f"{b} against {a}"
        table = Table.of(title, comparison.rows, columns, _note(comparison), prose=PROSE)
        tables = (table, *_pairs(comparison))
    return Section(
        name=comparison.method.name,
        title=comparison.method.title,
        answer=comparison.sentence,
        tables=tables,
        figures=figures,
        notes=comparison.remarks,
        computed=(comparison.method.computed,),
        card=_card(comparison, estimated),
    )


def _card(comparison: Comparison, rows: Sequence[Effect]) -> Card | None:
    """Return the change of the first row, those of the others in a line each; None where no row has an interval."""
    if not rows:
        return None
    deciding, *others = rows
    lines = []
    for row in others:
        lines.append(f"{row.name} {row.change_text(row.change)} (CI {_ends(row)})")
    return Card(
        label=comparison.method.name,
        value=Value(deciding.change_text(deciding.change), _ends(deciding)),
        detail=f"on {deciding.name}",
        lines=tuple(lines),
        tone="bad" if comparison.verdict in FAILURES else "",
    )


PROSE = (1, 7)  # verdict and why


def _columns(comparison: Comparison) -> list[Column[Effect]]:
    a, b = comparison.method.sides
    # Blocks of variants are compared together, not pair by pair.
    is_by_pair = any(row.changes or row.worse_in for row in comparison.rows)
    worse_in = _worse_in if is_by_pair else lambda _row: "–"
    return [
        ("offered requests, ms", lambda row: row.name),
        ("verdict", _verdict_cell),
        ("change", lambda row: Value(row.change_text(row.change), _ends(row))),
        (a, lambda row: _side(row, row.a, row.a_interval)),
        (b, lambda row: _side(row, row.b, row.b_interval)),
        ("p", lambda row: p_text(row.p_family)),
        ("worse in", worse_in),
        ("why", lambda row: row.why),
    ]


def _worse_in(row: Effect) -> str:
    if not row.pairs:
        return "–"
    return f"{row.worse_in}/{row.pairs}"


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
    end_text = share if row.scale == SHARE else ms
    low, high = map(end_text, interval)
    return Value(text, f"{low} – {high}")


def p_text(value: float | None) -> str:
    """Return a p-value."""
    if value is None:
        return "–"
    if value < 0.001:
        return "< 0.001"
    return f"{value:.3f}"


def _note(comparison: Comparison) -> str:
    if comparison.block_s is not None:
        pairs = plural(comparison.pairs, "pair")
        return f"The comparison has {pairs} of blocks of {comparison.block_s:g} s. The first {comparison.washout_s:g} s of each block are not counted."
    if comparison.pairs == 1:
        return f"A is {comparison.runs[0].run_id}, B is {comparison.runs[1].run_id}."
    offered = sum(run.offered for run in comparison.runs)
    if not offered:
        return ""
    return f"The comparison has {comparison.pairs} pairs with {count(offered)} offered requests."


def _pairs(comparison: Comparison) -> tuple[Table, ...]:
    """Return the change in each pair of runs."""
    effects = [row for row in comparison.rows if row.changes]
    if comparison.pairs < 2 or not effects:
        return ()
    rows = []
    for pair in range(comparison.pairs):
        a, b = comparison.runs[2 * pair : 2 * pair + 2]
        changes = [row.change_text(row.changes[pair]) for row in effects]
        rows.append((str(pair + 1), a.run_id, b.run_id, *changes))
    header = ("pair", "A", "B", *(row.name for row in effects))
    return (Table("Change from A to B, pair by pair", header, tuple(rows)),)


def report(
    comparison: Comparison,
    verdicts: Sequence[str],
    *,
    dry_run: bool,
    figures: Sequence[Picture] = (),
) -> Report:
    """Return the report of `tailgauge compare`; `verdicts`: of the measurement of what is compared. The first figure stands beside the result."""
    result = Result(
        comparison.outcome,
        comparison.sentence,
        details=(*comparison.remarks, *_power(comparison), *_differing(comparison)),
    )
    data = {
        **plain_values(comparison),
        "outcome": comparison.outcome,
        "exit_code": int(comparison.exit_code),
    }
    figure = None
    if figures:
        figure = figures[0]
    return Report(
        run_id="comparison",
        title="Comparison",
        about=(),
        started_at="",
        dry_run=dry_run,
        result=result,
        measurement=_measurement(comparison, verdicts),
        summary=(),
        sections=(section(comparison, figures),),
        exit_code=comparison.exit_code,
        figure=figure,
        data=data,
    )


def _measurement(comparison: Comparison, verdicts: Sequence[str]) -> Measurement:
    """Return the reasons against the comparison, else the worst verdict of what is compared."""
    if comparison.against:
        advice = permission(comparison.differs)
        texts: Sequence[str] = comparison.against
        if advice:
            texts = list(map(_without_option, texts))
        reasons = tuple((text, advice) for text in _shortened(texts, "reason"))
        return Measurement(INVALID, NOT_COMPARABLE, reasons)
    degraded = verdicts.count(DEGRADED)
    total = plural(len(verdicts), "run")
    if degraded:
        return Measurement(DEGRADED, f"{degraded} of {total} DEGRADED: see their reports")
    return Measurement(VALID, f"{total}, all VALID")


def _differing(comparison: Comparison) -> list[str]:
    if comparison.runs and not comparison.differs:
        return ["A and B have the same set-up"]
    sides = comparison.method.sides
    texts = []
    for difference in comparison.differs:
        if difference.allowed:
            texts.append(f"differs: {difference.text(sides)}")
    return _shortened(texts, "allowed difference")


def _power(comparison: Comparison) -> tuple[str, ...]:
    """Return what so many pairs can show of the row that decides, and what more of them could."""
    if comparison.pairs < 2 or not comparison.rows or comparison.verdict == MEASURED:
        return ()
    deciding = comparison.rows[0]
    if deciding.smallest is None:
        return (f"{deciding.name} decides the comparison",)
    find = f"{comparison.pairs} pairs detect"
    if comparison.pairs < FEWEST_PAIRS:
        find = f"{FEWEST_PAIRS} pairs would detect"
    return (
        f"{deciding.name} decides the comparison: {find} a change of {deciding.change_text(deciding.smallest)} or more in 8 of 10 repetitions",
    )


def _shortened(texts: Sequence[str], noun: str) -> list[str]:
    remaining = len(texts) - SHOWN_TEXTS
    shortened = list(texts[:SHOWN_TEXTS])
    if remaining > 0:
        shortened.append(f"and {plural(remaining, f'more {noun}')}")
    return shortened
