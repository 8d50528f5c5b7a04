"""What a report says, as plain values: run reports and answers of experiments alike.

Sections compute and write their words; a renderer of a format (report/) adds none. All text is untrusted: each renderer
escapes it for its format. Numbers in cells are formatted already; report.json has them unrounded.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Sequence
from dataclasses import dataclass, field
from typing import Any, Literal, TypeVar

from tailgauge.errors import Exit
from tailgauge.thresholds import DEGRADED, INVALID, VALID
from tailgauge_analysis.text.picture import Picture
from tailgauge_analysis.text.quantile import UNPUBLISHED, interval_text

PASS = "PASS"  # noqa: S105 - an outcome
FAIL = "FAIL"
INCONCLUSIVE = "INCONCLUSIVE"
NO_ANSWER = "NO ANSWER"
INTERRUPTED = "INTERRUPTED"  # by Ctrl-C or SIGTERM
DRY_RUN = "DRY RUN"  # nothing was judged but a simulated endpoint
COMPLETED = "COMPLETED"  # without an objective: requests completed, too few of them to show a share
SIGNS = {PASS: "✓", FAIL: "✗", NO_ANSWER: "✗", INCONCLUSIVE: "?", INTERRUPTED: "–", COMPLETED: "·"}
TONES = {
    PASS: "good",
    VALID: "good",
    FAIL: "bad",
    NO_ANSWER: "bad",
    INVALID: "bad",
    INCONCLUSIVE: "warn",
    DEGRADED: "warn",
    INTERRUPTED: "warn",
    COMPLETED: "idle",
    DRY_RUN: "idle",
}
Tone = Literal["", "good", "warn", "bad"]  # of a card
EXITS = {
    PASS: Exit.OK,
    COMPLETED: Exit.OK,
    FAIL: Exit.FAILED,
    INCONCLUSIVE: Exit.INCONCLUSIVE,
    NO_ANSWER: Exit.TARGET,
    INTERRUPTED: Exit.INTERRUPTED,
}


def worst(outcomes: Iterable[str]) -> str:
    """Return the outcome of several objectives; INCONCLUSIVE of none."""
    return min(outcomes, key=(FAIL, INCONCLUSIVE, COMPLETED, PASS).index, default=INCONCLUSIVE)


@dataclass(frozen=True, slots=True)
class Value:
    """A cell with more than its text: its 95% interval, why it is not reliable, the outcome or share that it shows.

    `short_mark`: the mark in a table of text, where it is shorter there.
    """

    text: str
    interval: str = ""
    mark: str = ""
    outcome: str = ""  # PASS, FAIL, INCONCLUSIVE, VALID, ...: coloured
    share: float | None = None  # 0 to 1: a bar beside it
    short_mark: str = field(default="", metadata=UNPUBLISHED)

    @property
    def in_line(self) -> str:
        """`212 (207 – 218), unreliable`."""
        text = self.text
        if self.interval:
            text += f" ({self.interval})"
        mark = self.short_mark or self.mark
        return f"{text}, {mark}" if mark else text


@dataclass(frozen=True, slots=True, kw_only=True)
class Card:
    """The answer of a pattern or an experiment in one figure: on the first screen, and a labelled line of the terminal.

    `hedging`, `5.1%`, `of calls hedged`, then `lines`: `cost +4.8%`. `tone`: where the value decides.
    """

    label: str
    value: Value
    detail: str
    lines: tuple[str, ...] = ()
    tone: Tone = ""

    @property
    def sentence(self) -> str:
        """`5.1% of calls hedged (CI 4.2% – 6.0%)`."""
        text = f"{self.value.text} {self.detail}"
        remarks = []
        if self.value.interval:
            remarks.append(f"CI {interval_text(self.value.interval)}")
        if self.value.mark:
            remarks.append(self.value.mark)
        if not remarks:
            return text
        return f"{text} ({', '.join(remarks)})"


Cell = str | Value
Row = TypeVar("Row")
Column = tuple[str, Callable[[Row], Cell]]  # its header, and its cell of a row
TextFiles = tuple[tuple[str, str], ...]  # names and contents, beside report.json


@dataclass(frozen=True, slots=True)
class Table:
    """Rows under a header; the first column names the row. `prose`: columns of words, which stand left and wrap.

    `spare`: columns that a narrow page shows on request only. `brief`: those of a terminal, in its order, where the table is too wide for
    it with all its intervals: values alone.
    """

    title: str
    header: tuple[str, ...]
    rows: tuple[tuple[Cell, ...], ...]
    note: str = ""
    prose: tuple[int, ...] = ()
    spare: tuple[int, ...] = ()
    brief: tuple[int, ...] = field(default=(), metadata=UNPUBLISHED)

    @classmethod
    def of(
        cls,
        title: str,
        rows: Iterable[Row],
        columns: Iterable[Column[Row]],
        note: str = "",
        *,
        prose: tuple[int, ...] = (),
    ) -> Table:
        """Return a table from what each column shows of a row."""
        columns = tuple(columns)
        header = tuple(name for name, _ in columns)
        cells = []
        for row in rows:
            cells.append(tuple(cell(row) for _, cell in columns))
        return cls(title, header, tuple(cells), note, prose)


# What a finding shows of the figures. The share of the answers that it is about is added: the largest of a kind goes first.
OF_SOMETHING_ELSE = 3.0  # a proxy, a cache, another model
INCOMPLETE = 2.0  # something is missing in them
INEXACT = 1.0
MOST_FINDINGS = 2


@dataclass(frozen=True, slots=True)
class Finding:
    """What changes the meaning of the figures, in a sentence. `stated`: a phrase of a result that states it already."""

    text: str
    weight: float
    stated: str = ""


@dataclass(frozen=True, slots=True)
class Section:
    """One section. `name` is its anchor, `answer` its finding in a sentence, `computed` how: shown folded.

    `figures` stand beside the tables; `card` is the answer of the pattern that it belongs to; `brief` is its lines in the
    terminal, where it has no card; `findings` compete for a place below the result.
    `listing` is a long text shown as it is, folded, under a title; a section that `is_folded` is shown by its title and answer,
    in a line, until it is opened: nothing happened, or few want to know.
    """

    name: str
    title: str
    answer: str = ""
    facts: tuple[tuple[str, str], ...] = ()
    tables: tuple[Table, ...] = ()
    figures: Sequence[Picture] = field(default=(), metadata=UNPUBLISHED)
    notes: tuple[str, ...] = ()
    computed: tuple[str, ...] = ()
    brief: tuple[str, ...] = ()
    listing: tuple[str, str] = ("", "")
    is_folded: bool = False
    card: Card | None = None
    findings: tuple[Finding, ...] = field(default=(), metadata=UNPUBLISHED)

    @property
    def has_more(self) -> bool:
        """Whether there is more than its title and its answer."""
        parts = (self.facts, self.tables, self.figures, self.notes, self.computed, self.listing[1])
        return any(map(bool, parts))


@dataclass(frozen=True, slots=True, kw_only=True)
class Numbers:
    """An objective in numbers, all in one unit: ms, s, share (0 to 1), per_s, or what it counts."""

    value: float | None
    bound: float | None
    low: float | None
    high: float | None
    unit: str


@dataclass(frozen=True, slots=True)
class ObjectiveLine:
    """One objective as it was decided: `ttft p95 (chat)`, `1,298 ms`, `> 800 ms`, `1,136-1,647`.

    `finds`: the smallest violation that four of five such runs would find: `7.6% of requests beyond 800 ms`. `numbers`: value,
    bound and interval as numbers; null where the line has none. `required`: the bound as the scenario states it, `< 800 ms`,
    where `bound` compares it with the value.
    """

    name: str
    outcome: str
    value: str
    bound: str
    interval: str = ""
    why: str = ""
    finds: str = ""
    numbers: Numbers | None = None
    required: str = ""

    @property
    def requirement(self) -> str:
        """The bound to show beside a value in a table: as the scenario states it, where it does."""
        return self.required or self.bound

    @property
    def measured(self) -> str:
        """`1,298 ms > 800 ms (95% CI 1,136-1,647)`."""
        return f"{self.value} {self.bound}{self.brackets}"

    @property
    def brackets(self) -> str:
        """` (95% CI 1,136-1,647)`; empty without an interval."""
        if not self.interval:
            return ""
        return f" (95% CI {self.interval})"


@dataclass(frozen=True, slots=True)
class Result:
    """The user's answer. `sentence` is the first line after the outcome; `advice` a command or a step to take next,
    and in a further line another one to choose.

    The sentence or a detail may state an objective, by its name. `problems` are shown as failures, whatever the outcome.
    """

    outcome: str
    sentence: str
    objectives: tuple[ObjectiveLine, ...] = ()
    details: tuple[str, ...] = ()
    advice: str = ""
    problems: tuple[str, ...] = ()

    def states(self, objective: ObjectiveLine) -> bool:
        """Return whether the sentence or a detail states this objective."""
        return any(objective.name in text for text in (self.sentence, *self.details))

    @property
    def unstated_objectives(self) -> list[ObjectiveLine]:
        """Return the objectives that neither the sentence nor a detail states."""
        return [objective for objective in self.objectives if not self.states(objective)]

    def contains(self, phrase: str) -> bool:
        """Return whether the sentence or a detail has this phrase."""
        return any(phrase in text for text in (self.sentence, *self.details))


def cards_of(sections: Iterable[Section]) -> list[Card]:
    """Return the cards of the sections that have one."""
    cards = []
    for section in sections:
        if section.card is not None:
            cards.append(section.card)
    return cards


def most_important(sections: Iterable[Section], result: Result) -> tuple[str, ...]:
    """Return the findings with the greatest weight that the result does not state."""
    unstated: list[Finding] = []
    for section in sections:
        for finding in section.findings:
            is_stated = finding.stated and result.contains(finding.stated)
            if not is_stated:
                unstated.append(finding)
    unstated.sort(key=lambda finding: -finding.weight)
    return tuple(finding.text for finding in unstated[:MOST_FINDINGS])


@dataclass(frozen=True, slots=True)
class Measurement:
    """Whether the numbers can be used: VALID, DEGRADED or INVALID, in one line; its reasons with their advice."""

    verdict: str
    sentence: str
    reasons: tuple[tuple[str, str], ...] = ()
    notes: tuple[str, ...] = ()
    unusable: str = ""
    """the figures that make it INVALID, where every other number can be used"""


@dataclass(frozen=True, slots=True)
class Report:
    """A report as every renderer gets it.

    `about` is the line under the result (scenario, target, time, load); `planned` what the runs of an experiment are expected
    to take; `instead_of` the target that a dry run did not call; with `plan_fails` the result is that the plan exceeds a limit,
    not what the simulated endpoint did; `summary` the labelled lines `target` and `latency`,
    `remarks` those after the cards; `appendix` is printed below these in a terminal; `figure` stands beside it, and not again in its section; `data` is the contents of report.json.
    """

    run_id: str
    title: str
    about: tuple[str, ...]
    started_at: str
    dry_run: bool
    result: Result
    measurement: Measurement
    summary: tuple[tuple[str, str], ...]
    sections: tuple[Section, ...]
    exit_code: Exit
    figure: Picture | None = None
    data: dict[str, Any] = field(default_factory=dict)
    remarks: tuple[tuple[str, str], ...] = ()
    appendix: tuple[Table, ...] = ()
    planned: tuple[str, ...] = ()
    instead_of: str = ""
    plan_fails: bool = False

    @property
    def cards(self) -> list[Card]:
        """Those of the sections, in their order."""
        return cards_of(self.sections)

    @property
    def findings(self) -> tuple[str, ...]:
        """What changes the meaning of the figures, the most important first."""
        return most_important(self.sections, self.result)

    @property
    def figures(self) -> list[Picture]:
        """All of the page, in their order."""
        figures = []
        if self.figure is not None:
            figures.append(self.figure)
        for section in self.sections:
            figures += [figure for figure in section.figures if figure is not self.figure]
        return figures

    @property
    def state(self) -> str:
        """What comes first: an INVALID measurement of something judged, that it is a dry run, else the outcome."""
        is_judged = self.result.outcome not in {NO_ANSWER, INTERRUPTED}
        if is_judged and self.measurement.verdict == INVALID:
            return INVALID
        return DRY_RUN if self.is_of_simulated else self.result.outcome

    @property
    def headline(self) -> str:
        """The sentence beside the state: what a dry run is, else that of the result."""
        if self.is_of_simulated:
            return nothing_sent(self.instead_of)
        return self.result.sentence

    @property
    def is_of_simulated(self) -> bool:
        """Whether the result is that of the simulated endpoint of a dry run."""
        return self.dry_run and not self.plan_fails


def nothing_sent(instead_of: str) -> str:
    """Say what the figures of a dry run are; `instead_of`: the target that it did not call, empty where it is simulated."""
    text = "nothing was sent; the times are those of a simulated endpoint"
    if instead_of:
        text += f", not of {instead_of}"
    return text
