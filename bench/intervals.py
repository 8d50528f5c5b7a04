"""How often intervals hold what is true, and outcomes are right, on traffic that a grammar draws (processes.py).

    .venv/bin/python bench/intervals.py [--seed N] [--cells N] [--process NUMBER --runs N] [--write]

Every run is judged by what a report calls (figures.py). `make intervals` puts the table into docs/explanation/benchmarks.md.
The exit code is 1 where a bar is missed. `--process` repeats one process.
"""

from __future__ import annotations

import argparse
import math
import os
import secrets
import sys
from collections import defaultdict
from collections.abc import Callable, Iterable, Sequence
from concurrent.futures import ProcessPoolExecutor
from dataclasses import dataclass
from functools import partial
from itertools import chain
from multiprocessing import get_context
from pathlib import Path

import numpy as np
import processes
from docs_page import replace_between
from figures import KINDS, Cell, Judgement, cells_of, planned_cells
from processes import FAMILIES, INDEPENDENT

from tailgauge_analysis.objectives.outcome import FAIL, INCONCLUSIVE, PASS

PAGE = Path(__file__).parents[1] / "docs" / "explanation" / "benchmarks.md"
BEGIN, END = "<!-- intervals: begin -->", "<!-- intervals: end -->"
CELLS = 2000  # unmarked ones of each kind and family
RUNS = 4  # of a process
PLANNED = 1000  # independent runs of the planned length, and of twice that
MOST = 20_000  # processes
BATCH = 40  # of them, after which kinds with enough figures are left out

ALL = "all"  # families together
WORST = "worst"  # of the families, figure by figure

# The bars. Chance explains what is less than Z standard errors away.
COVERAGE = 0.93
WRONG = 0.03
MISSED = 1.29  # true over allowed share from which a PASS is wrong
MET = 0.71  # and to which a FAIL is
MARKED_INDEPENDENT = 0.05
MARKED = 0.40
INCONCLUSIVE_PLANNED = 0.20
Z = 3.09


# --- many runs --------------------------------------------------------------------------------------------------------


def measure(
    seed: int, cells: int = CELLS, *, most: int = MOST, runs: int = RUNS, jobs: int = 1
) -> list[Cell]:
    """Draw at most so many processes, until each kind has so many unmarked figures of each family."""
    every: list[Cell] = []
    unmarked: dict[tuple[str, str], int] = defaultdict(int)
    with ProcessPoolExecutor(jobs, get_context("spawn")) as pool:
        for first in range(0, most, BATCH):
            kinds = [kind for kind in KINDS if _lacks(kind, unmarked, cells)]
            if not kinds:
                break
            numbers = range(first, min(first + BATCH, most))
            drawn = partial(_cells_of_runs, seed, runs, kinds)
            batch = pool.map(drawn, numbers) if jobs > 1 else map(drawn, numbers)
            for cell in chain.from_iterable(batch):
                every.append(cell)
                for family in cell.families:
                    unmarked[cell.kind, family] += cell.is_known and not cell.judgement.is_marked
    return every


def _cells_of_runs(seed: int, runs: int, kinds: Sequence[str], number: int) -> list[Cell]:
    process = processes.draw(seed, number)
    return [cell for run in range(runs) for cell in cells_of(process, run, kinds)]


def _lacks(kind: str, unmarked: dict[tuple[str, str], int], cells: int) -> bool:
    return any(unmarked[kind, family] < cells for family in FAMILIES)


def planned(seed: int, runs: int) -> list[Cell]:
    """Draw independent traffic of the planned length, and of twice that."""
    return list(chain.from_iterable(planned_cells(seed, number) for number in range(runs)))


# --- bars -------------------------------------------------------------------------------------------------------------


@dataclass(frozen=True, slots=True)
class Count:
    """So many of so many; figures of one run are not independent, `error` is that of the share."""

    k: int
    n: int
    error: float

    @property
    def share(self) -> float:
        """k / n."""
        return self.k / self.n if self.n else math.nan

    @property
    def text(self) -> str:
        """As a percentage."""
        return f"{100 * self.share:.1f}%" if self.n else "–"

    def is_above(self, bar: float) -> bool:
        """Whether the share is above the bar by more than chance."""
        return bool(self.n) and self.share - Z * max(self.error, self._binomial(bar)) > bar

    def is_below(self, bar: float) -> bool:
        """Whether the share is below the bar by more than chance."""
        return bool(self.n) and self.share + Z * max(self.error, self._binomial(bar)) < bar

    def _binomial(self, share: float) -> float:
        return math.sqrt(share * (1 - share) / self.n)


def count(cells: Iterable[Cell], is_one: Callable[[Judgement], bool]) -> Count:
    """Count the figures of which something holds."""
    sums: dict[tuple[int, int], list[int]] = defaultdict(lambda: [0, 0])
    for cell in cells:
        total = sums[cell.process, cell.run]
        total[0] += is_one(cell.judgement)
        total[1] += 1
    if not sums:
        return Count(0, 0, 0.0)
    table = np.array(list(sums.values()))
    k, n = table.sum(axis=0)
    residuals = table[:, 0] - k / n * table[:, 1]
    return Count(int(k), int(n), float(np.sqrt(np.square(residuals).sum()) / n))


def _is_marked(judgement: Judgement) -> bool:
    return judgement.is_marked


def _holds(judgement: Judgement) -> bool:
    return judgement.holds


def _passes(judgement: Judgement) -> bool:
    return judgement.outcome == PASS


def _fails(judgement: Judgement) -> bool:
    return judgement.outcome == FAIL


def _is_inconclusive(judgement: Judgement) -> bool:
    return judgement.outcome == INCONCLUSIVE


@dataclass(frozen=True, slots=True, kw_only=True)
class Row:
    """What was seen of one kind of figure in one family."""

    kind: str
    family: str
    marked: Count
    holds: Count
    false_pass: Count
    false_fail: Count
    inconclusive: Count
    short_marked: Count

    @property
    def faults(self) -> list[str]:
        """The bars that it misses."""
        name = f"{self.kind}, {self.family}"
        faults = []
        if self.holds.is_below(COVERAGE):
            faults.append(
                f"{name}: unmarked intervals hold in {self.holds.text} of {self.holds.n:,}"
            )
        if self.false_pass.is_above(WRONG):
            faults.append(f"{name}: false PASS in {self.false_pass.text} of {self.false_pass.n:,}")
        if self.false_fail.is_above(WRONG):
            faults.append(f"{name}: false FAIL in {self.false_fail.text} of {self.false_fail.n:,}")
        if self.family == ALL and self.marked.is_above(MARKED):
            faults.append(f"{name}: marked in {self.marked.text} of {self.marked.n:,}")
        return faults


def rows(cells: Sequence[Cell]) -> list[Row]:
    """Return a row for each kind of figure and family, and for all families together."""
    every = []
    for kind in KINDS:
        of_kind = [cell for cell in cells if cell.kind == kind]
        for family in (INDEPENDENT, *FAMILIES, ALL):
            some = [cell for cell in of_kind if family == ALL or family in cell.families]
            every.append(_row(kind, family, some))
    return every


def _row(kind: str, family: str, cells: Sequence[Cell]) -> Row:
    known = [cell for cell in cells if cell.is_known]
    short = [cell for cell in cells if not cell.is_known]
    unmarked = [cell for cell in known if not cell.judgement.is_marked]
    missed = [cell for cell in known if cell.judgement.ratio > MISSED]
    met = [cell for cell in known if cell.judgement.ratio < MET]
    return Row(
        kind=kind,
        family=family,
        marked=count(known, _is_marked),
        holds=count(unmarked, _holds),
        false_pass=count(missed, _passes),
        false_fail=count(met, _fails),
        inconclusive=count(known, _is_inconclusive),
        short_marked=count(short, _is_marked),
    )


def faults_of(cells: Sequence[Cell], power: Sequence[Cell]) -> list[str]:
    """Return the bars that are missed."""
    return [fault for row in rows(cells) for fault in row.faults] + power_faults(power)


def power_faults(cells: Sequence[Cell]) -> list[str]:
    """Return the bars of power that independent traffic of the planned length misses."""
    faults = []
    by_label = defaultdict(list)
    for cell in cells:
        by_label[cell.judgement.label].append(cell)
    doubled = count((cell for cell in cells if cell.judgement.label.endswith("x2")), _is_marked)
    if doubled.is_above(MARKED_INDEPENDENT):
        faults.append(
            f"independent, twice the planned length: marked in {doubled.text} of {doubled.n:,}"
        )
    for label in sorted(label for label in by_label if label.endswith("x1")):
        for side, is_missed in (("below", False), ("above", True)):
            some = [cell for cell in by_label[label] if (cell.judgement.ratio > 1) == is_missed]
            inconclusive = count(some, _is_inconclusive)
            if inconclusive.is_above(INCONCLUSIVE_PLANNED):
                share = f"{inconclusive.text} of {inconclusive.n:,}"
                faults.append(
                    f"{label}, true share {side} the allowed one: inconclusive in {share}"
                )
    return faults


HEADER = (
    "figure",
    "family",
    "figures",
    "marked",
    "held, unmarked",
    "false pass",
    "false fail",
    "inconclusive",
    "short runs marked",
)


def table(every: Sequence[Row]) -> str:
    """Return the rows as Markdown."""
    lines = [f"| {' | '.join(HEADER)} |", f"|---|---|{'---:|' * (len(HEADER) - 2)}"]
    for row in every:
        counts = (
            row.marked,
            row.holds,
            row.false_pass,
            row.false_fail,
            row.inconclusive,
            row.short_marked,
        )
        figures = " | ".join(each.text for each in counts)
        lines.append(f"| {row.kind} | {row.family} | {row.marked.n:,} | {figures} |")
    return "\n".join(lines)


def page_table(every: Sequence[Row]) -> str:
    """Return the families together and the worst figure of any family, for each kind, as Markdown."""
    lines = [f"| {' | '.join(HEADER)} |", f"|---|---|{'---:|' * (len(HEADER) - 2)}"]
    for kind in KINDS:
        of_kind = [row for row in every if row.kind == kind]
        single = [row for row in of_kind if row.family != ALL]
        lines += table([row for row in of_kind if row.family == ALL]).splitlines()[2:]
        figures = min(row.marked.n for row in single)
        counts = (
            _highest(row.marked for row in single),
            _lowest(row.holds for row in single),
            _highest(row.false_pass for row in single),
            _highest(row.false_fail for row in single),
            _highest(row.inconclusive for row in single),
            _lowest(row.short_marked for row in single),
        )
        texts = " | ".join(each.text for each in counts)
        lines.append(f"| {kind} | {WORST} | {figures:,} | {texts} |")
    return "\n".join(lines)


def _highest(counts: Iterable[Count]) -> Count:
    return max((each for each in counts if each.n), key=_share, default=Count(0, 0, 0.0))


def _lowest(counts: Iterable[Count]) -> Count:
    return min((each for each in counts if each.n), key=_share, default=Count(0, 0, 0.0))


def _share(each: Count) -> float:
    return each.share


def worst(seed: int, cells: Sequence[Cell], number: int = 12) -> list[str]:
    """Return the processes that most figures of known runs fail, each with its faults."""
    faults: dict[int, list[str]] = defaultdict(list)
    for cell in cells:
        judgement = cell.judgement
        figure = f"{cell.kind} {judgement.label}"
        if not cell.is_known:
            continue
        if not judgement.is_marked and not judgement.holds:
            faults[cell.process].append(f"{figure} misses")
        if judgement.ratio > MISSED and _passes(judgement):
            faults[cell.process].append(f"{figure} false PASS")
        if judgement.ratio < MET and _fails(judgement):
            faults[cell.process].append(f"{figure} false FAIL")
    lines = []
    for process, texts in sorted(faults.items(), key=lambda item: -len(item[1]))[:number]:
        counts = ", ".join(f"{texts.count(text)} {text}" for text in sorted(set(texts)))
        lines.append(f"--process {process}: {processes.draw(seed, process).text()}\n    {counts}")
    return lines


def main() -> int:
    """Measure and print the table, and write it if asked to."""
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument("--seed", type=int, default=secrets.randbits(32))
    parser.add_argument(
        "--cells", type=int, default=CELLS, help="unmarked figures of each kind and family"
    )
    parser.add_argument("--jobs", type=int, default=1, help="cores")
    parser.add_argument("--process", type=int, help="repeat this one")
    parser.add_argument("--runs", type=int, default=200, help="of the process that is repeated")
    parser.add_argument(
        "--write", action="store_true", help="put the table into docs/explanation/benchmarks.md"
    )
    arguments = parser.parse_args()
    seed = arguments.seed
    begun = core_seconds()
    if arguments.process is not None:
        process = processes.draw(seed, arguments.process)
        print(process.text())
        cells = [cell for run in range(arguments.runs) for cell in cells_of(process, run)]
        print(table([row for row in rows(cells) if row.family == ALL]))
        return 0
    cells = measure(seed, arguments.cells, jobs=arguments.jobs)
    power = planned(seed, min(PLANNED, arguments.cells))
    every = rows(cells)
    number = len({cell.process for cell in cells})
    title = f"{number:,} processes, {len(cells):,} figures, seed {seed}:"
    print(title, table(every), sep="\n\n")
    print(*worst(seed, cells), sep="\n")
    faults = faults_of(cells, power)
    print(
        f"{core_seconds() - begun:.0f} s of a core, seed {seed}",
        *(faults or ["every bar is met"]),
        sep="\n",
    )
    if arguments.write:
        replace_between(BEGIN, END, f"\n{title}\n\n{page_table(every)}\n\n", PAGE)
    return int(bool(faults))


def core_seconds() -> float:
    """Return the time on cores so far, that of ended children included."""
    times = os.times()
    return times.user + times.system + times.children_user + times.children_system


if __name__ == "__main__":
    sys.exit(main())
