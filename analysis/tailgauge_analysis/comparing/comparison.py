"""`tailgauge compare`: B against A, in pairs of runs or in alternating blocks of one run; what was found, and its section.

The fields of a `Comparison` are the keys of `tailgauge compare --json`. Changes and shares are fractions. Runs that are not
comparable are not read: their differences are the answer. UsageError for wrong arguments, RunDataError for a folder without a
run.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass, replace
from pathlib import Path

from tailgauge.errors import Exit, UsageError
from tailgauge.thresholds import DEGRADED, FEWEST_PAIRS, INVALID, VALID
from tailgauge_analysis.comparing import effects
from tailgauge_analysis.comparing.block import METRICS, Block, block, pair_of, primary
from tailgauge_analysis.comparing.comparability import Difference, allowed, differences, facts_of, refusals
from tailgauge_analysis.comparing.design import NOT_COMPARABLE, STABLE, Design, Growing, design
from tailgauge_analysis.comparing.effects import BETTER, INCONCLUSIVE, NO_WORSE, SAME, WORSE, Effect
from tailgauge_analysis.metrics.metrics import BY_NAME, UNIT
from tailgauge_analysis.reading import run_record
from tailgauge_analysis.stats.quantiles import CONFIDENCE, Quantile
from tailgauge_analysis.text import section as outcomes
from tailgauge_analysis.text.cells import quantile_cell
from tailgauge_analysis.text.formatting import count, figures, ms, plain, plural, share
from tailgauge_analysis.text.json_values import Json
from tailgauge_analysis.text.quantile import plain_values
from tailgauge_analysis.text.section import Cell, Measurement, Report, Result, Section, Table, Value

SCHEMA_VERSION = 1
MOST_DIFFERENCES = 8
THRESHOLD = 0.05
MOST_ROWS = 3  # in the sentence
UNSTABLE = {(False, True): WORSE, (True, False): BETTER, (True, True): INCONCLUSIVE}  # A, B
OUTCOMES = {WORSE: outcomes.FAIL, **dict.fromkeys((BETTER, SAME, NO_WORSE), outcomes.PASS)}
HEADER = ("offered requests, ms", "verdict", "change", "A", "B", "p", "worse in", "why")
COMPUTED = (
    "Figures of a variant are geometric means over its blocks, so that B / A is the change. p is that of the sign-flip test: "
    "the first row is tested alone, the others as a family, each against the largest of all. Percentiles with too few requests "
    "in a block are not compared."
)


@dataclass(frozen=True, slots=True)
class Pair:
    """One run or block of each variant."""

    a: Block
    b: Block


@dataclass(frozen=True, slots=True)
class Comparison:
    """`a`, `b`, `block_s` and `washout_s` are those of alternating blocks. `growth_per_s`: of the requests in flight of A and B,
    where the target does not sustain their rate; that is the verdict then, and there are no rows.
    """

    schema_version: int
    verdict: str
    against: tuple[str, ...]
    remarks: tuple[str, ...]
    differs: tuple[Difference, ...]
    threshold: float
    confidence: float
    pairs: int
    runs: tuple[Pair, ...]
    rows: tuple[Effect, ...]
    unequal: tuple[str, ...] = ()
    growth_per_s: Growing = STABLE
    a: str = ""
    b: str = ""
    block_s: float | None = None
    washout_s: float | None = None

    @property
    def outcome(self) -> str:
        """Worse is a FAIL."""
        return OUTCOMES.get(self.verdict, outcomes.INCONCLUSIVE)

    @property
    def exit_code(self) -> Exit:
        """INVALID of what cannot be compared."""
        return Exit.INVALID if self.against else outcomes.EXITS[self.outcome]


def compare(
    folders: Sequence[Path],
    allow: Sequence[str] = (),
    threshold: float = THRESHOLD,
    metrics: Sequence[str] = (),
) -> Comparison:
    """Compare the runs A1 B1 A2 B2 ...; `threshold` is the smallest change to report, 0.05 for 5%."""
    metrics = metrics or METRICS
    for name in metrics:
        if name not in BY_NAME:
            raise UsageError(f"--metric {name}: no such metric; choose from {', '.join(BY_NAME)}")
        if BY_NAME[name].unit != UNIT:
            raise UsageError(f"--metric {name}: rates are not compared; use its inverse, tpot")

    def read() -> list[Block]:
        pairs = zip(folders[::2], folders[1::2], strict=True)
        return [one for a, b in pairs for one in pair_of(block(a, metrics), block(b, metrics))]

    return weigh(_records(folders), read, allow, threshold, metrics)


def weigh(
    records: Sequence[Json], read: Callable[[], Sequence[Block]], allow: Sequence[str], threshold: float,
    metrics: Sequence[str],
) -> Comparison:  # fmt: skip
    """The comparison of runs A1 B1 A2 B2 ... by their records; rows are read if these are comparable."""
    first = primary(records[0]["scenario"], metrics)
    facts = [facts_of(record) for record in records]
    found = differences(list(zip(facts[::2], facts[1::2], strict=True)), allow)
    refused = refusals(found)
    if refused:
        return comparison([], metrics, first, threshold, Design(refused, []), found)
    blocks = read()
    pairs = list(zip(blocks[::2], blocks[1::2], strict=True))
    return comparison(pairs, metrics, first, threshold, design(pairs), found)


def _records(folders: Sequence[Path]) -> list[Json]:
    """The record of each run; each run once."""
    if len(folders) < 2 or len(folders) % 2:
        raise UsageError(f"compare takes runs in pairs, as A B or A1 B1 A2 B2; {len(folders)} given")
    seen: dict[str, Path] = {}
    found = []
    for folder in folders:
        run_record.check(folder)
        run, _ = run_record.read([folder])
        if run["run_id"] in seen:
            both = f"{folder} and {seen[run['run_id']]}"
            raise UsageError(f"{both} are the same run, {run['run_id']}: give each run once")
        seen[run["run_id"]] = folder
        found.append(run)
    return found


def comparison(
    pairs: Sequence[tuple[Block, Block]], metrics: Sequence[str], primary: effects.Primary, threshold: float, design: Design,
    differs: Sequence[Difference] = (),
) -> Comparison:  # fmt: skip
    """Compare the pairs, as far as their design allows; `primary` decides."""
    a_grows, b_grows = (growth is not None for growth in design.growth)
    unstable = UNSTABLE.get((a_grows, b_grows))
    rows: list[Effect] = []
    if pairs and unstable is None:
        rows = effects.effects(pairs, metrics, primary, threshold, decide=not design.against)
    return Comparison(
        SCHEMA_VERSION, unstable or (NOT_COMPARABLE if design.against else effects.overall(rows)), tuple(design.against),
        tuple(design.remarks), tuple(differs), threshold, CONFIDENCE, len(pairs), tuple(Pair(a, b) for a, b in pairs),
        tuple(rows), tuple(effects.unequal_work([(a.work, b.work) for a, b in pairs])), design.growth,
    )  # fmt: skip


def report(found: Comparison) -> Report:
    """The report of `tailgauge compare`."""
    runs = [block for pair in found.runs for block in (pair.a, pair.b)]
    measurement = measured([block.verdict for block in runs], found.against)
    return Report(
        run_id="comparison", title="Comparison", about=(), started_at="", dry_run=any(block.dry_run for block in runs),
        result=Result(found.outcome, sentence(found), details=_details(found)), measurement=measurement, summary=(),
        sections=(section(found),), exit_code=found.exit_code,
        data={**plain_values(found), "outcome": found.outcome, "exit_code": int(found.exit_code)},
    )  # fmt: skip


def measured(verdicts: Sequence[str], against: Sequence[str]) -> Measurement:
    """Of runs that are compared: the reasons against that, else the worst of their verdicts."""
    if against:
        reasons = tuple((text, "") for text in _shortened(against, "reason"))
        return Measurement(INVALID, "not comparable", reasons)
    degraded, of = verdicts.count(DEGRADED), plural(len(verdicts), "run")
    if degraded:
        return Measurement(DEGRADED, f"{degraded} of {of} DEGRADED: see their reports")
    return Measurement(VALID, f"{of}, all VALID")


def headline(found: Comparison, of_run: Result) -> Result:
    """The answer of a run in blocks: the comparison, behind it what the run says of its objectives."""
    if of_run.outcome == outcomes.NO_ANSWER:
        return of_run
    outcome = outcomes.worst((of_run.outcome, found.outcome))
    details = (*found.remarks, *_power(found), *of_run.details)
    return replace(of_run, outcome=outcome, sentence=sentence(found), details=details)


def section(found: Comparison) -> Section:
    """B against A, metric by metric, then pair by pair."""
    title = f"{_name('B', found.b)} against {_name('A', found.a)}"
    table = Table(title, HEADER, tuple(map(cells, found.rows)), _runs(found), prose=(1, 7))
    return Section(
        "comparison", "A/B comparison" + (" in alternating blocks" if found.a else ""), sentence(found),
        tables=(table, *_pairs(found)) if found.rows else (), notes=found.remarks if found.a else (), computed=(COMPUTED,),
    )  # fmt: skip


def sentence(found: Comparison) -> str:
    """The answer."""
    a, b, by = _name("A", found.a), _name("B", found.b), f"{found.threshold * 100:g}%"
    if found.against:
        return f"{b} against {a}: not comparable, {found.against[0]}"
    if found.unequal:
        return f"Not the same work, {b} got {' and '.join(found.unequal)}. {_answer(found, a, b, by)}"
    return _answer(found, a, b, by)


def _answer(found: Comparison, a: str, b: str, least: str) -> str:
    unstable = [(name, by) for name, by in zip((a, b), found.growth_per_s, strict=True) if by is not None]
    if unstable:
        grows = "is not stable at this rate: the backlog grows by"
        return "; ".join(f"{name} {grows} {figures(by)} requests/s" for name, by in unstable)
    if found.verdict == SAME:
        return f"No difference of {least} or more between {a} and {b}"
    rows = [row for row in found.rows if row.verdict == found.verdict]
    listed = ", ".join(f"{name_of(row)} {change(row, row.change)}" for row in rows[:MOST_ROWS])
    more = f" and {len(rows) - MOST_ROWS} more" if len(rows) > MOST_ROWS else ""
    text = {INCONCLUSIVE: f"{b} against {a}", NO_WORSE: f"{b} is at most {least} worse than {a}"}
    first = text.get(found.verdict, f"{b} is {found.verdict} than {a}")
    return f"{first}: {listed}{more}" if rows else first


def _name(variant: str, traffic: str) -> str:
    return f"{variant} ({plain(traffic, 80)})" if traffic else variant


def _details(found: Comparison) -> tuple[str, ...]:
    """Remarks, and what differs between A and B."""
    texts = _shortened(allowed(found.differs), "allowed difference")
    same = ["nothing differs between A and B"] if found.pairs and not found.differs else []
    return (*found.remarks, *_power(found), *texts, *same)


def _power(found: Comparison) -> tuple[str, ...]:
    """What so many pairs can show of the row that decides, and what more of them could."""
    if found.pairs < 2 or not found.rows:
        return ()
    (first, *_), spread = found.rows, ""
    if first.smallest is not None:
        few = found.pairs < FEWEST_PAIRS
        find = f"{FEWEST_PAIRS} pairs would find" if few else f"{found.pairs} pairs find"
        spread = f": {find} {change(first, first.smallest)} or more in 8 of 10 repetitions"
    return (f"{name_of(first)} decides{spread}",)


def _shortened(texts: Sequence[str], what: str) -> list[str]:
    more = len(texts) - MOST_DIFFERENCES
    return list(texts[:MOST_DIFFERENCES]) + ([f"and {plural(more, f'more {what}')}"] if more > 0 else [])


def _runs(found: Comparison) -> str:
    if found.block_s is not None:
        return f"{plural(found.pairs, 'pair')} of blocks of {found.block_s:g} s, the first {found.washout_s:g} s not counted."
    if found.pairs == 1:
        return f"A is {found.runs[0].a.run_id}, B is {found.runs[0].b.run_id}."
    if not found.runs:
        return ""
    a, b = (sum(getattr(pair, side).offered for pair in found.runs) for side in "ab")
    return f"{found.pairs} pairs; {count(a)} requests offered in A, {count(b)} in B."


def cells(row: Effect) -> tuple[Cell, ...]:
    """A row under HEADER; of a single pair, each side has its own interval."""
    word = row.verdict or ("not compared" if row.why else "")
    ends = "" if row.low is row.high is None else f"{change(row, row.low)} to {change(row, row.high)}"
    return (
        name_of(row), Value(word, outcome=OUTCOMES.get(word, "")), Value(change(row, row.change), ends), *_sides(row),
        p_text(row.p_family), f"{row.worse_in}/{row.pairs}" if row.pairs else "–", row.why,
    )  # fmt: skip


def _sides(row: Effect) -> tuple[Cell, Cell]:
    if len(row.blocks) == 1:
        (one,) = row.blocks
        if isinstance(one.a, Quantile) and isinstance(one.b, Quantile):
            return quantile_cell(one.a), quantile_cell(one.b)
    shown = share if row.is_share else ms
    return shown(row.a), shown(row.b)


def name_of(row: Effect) -> str:
    """`TTFT since scheduled p99`."""
    return f"{row.title} {row.label}".strip()


def p_text(value: float | None) -> str:
    """A p-value."""
    return "–" if value is None else "< 0.001" if value < 0.001 else f"{value:.3f}"


def change(row: Effect, value: float | None) -> str:
    """`+12.3%`; for a share `-1.2 pt`, percentage points."""
    if value is None:
        return "–"
    unit = " pt" if row.is_share else "%"
    if abs(value) < 5e-5:
        return f"0{unit}"
    return f"{value * 100:+.1f}{unit}" if abs(value) >= 0.0095 else f"{value * 100:+.2f}{unit}"


def _pairs(found: Comparison) -> tuple[Table, ...]:
    """The change in each pair of runs."""
    shown = [row for row in found.rows if any(one.change is not None for one in row.blocks)]
    if found.pairs < 2 or found.a or not shown:
        return ()
    rows = tuple(
        (str(i + 1), pair.a.run_id, pair.b.run_id, *(change(row, row.blocks[i].change) for row in shown))
        for i, pair in enumerate(found.runs)
    )
    return (Table("Change from A to B, pair by pair", ("pair", "A", "B", *map(name_of, shown)), rows),)
