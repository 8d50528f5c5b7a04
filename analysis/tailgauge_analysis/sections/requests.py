"""The section on requests: every one that was scheduled is accounted for, and how those of the steady stage ended.

Why requests failed is in failures.py, errors of single attempts in errors.py.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterator, Sequence
from dataclasses import dataclass, field, replace

import numpy as np

from tailgauge.protocol_violations import MALFORMED_USAGE
from tailgauge.rows import schema
from tailgauge_analysis.metrics.steady import Steady
from tailgauge_analysis.metrics.timeline import Timeline
from tailgauge_analysis.reading.run_record import Problem
from tailgauge_analysis.run import Run
from tailgauge_analysis.sections import over_time
from tailgauge_analysis.sections.failures import STILL_OPEN
from tailgauge_analysis.stats.proportions import Proportion
from tailgauge_analysis.text.cells import share_cell
from tailgauge_analysis.text.formatting import clock, count, plain, plural, share
from tailgauge_analysis.text.json_values import Json
from tailgauge_analysis.text.picture import GREY, ORANGE, PURPLE, RED, Panel, Picture, PlotCurve
from tailgauge_analysis.text.quantile import UNPUBLISHED
from tailgauge_analysis.text.section import Section, Table
from tailgauge_analysis.verdict.conservation import Conservation, Missing
from tailgauge_analysis.verdict.losses import due

KEY = ""
MOST_PROBLEMS = 20
COMPUTED = (
    "Times of the run count from its start, warm-up included. All statistics cover the steady stage. Request counts come from the "
    "recorded rows of the whole run without preflight, and are compared with the master's counts."
)


@dataclass(frozen=True, slots=True)
class Outcome:
    """How many requests of the steady stage ended so."""

    ended: str
    requests: Proportion


@dataclass(frozen=True, slots=True, kw_only=True)
class Requests:
    """Every scheduled request, and how those of the steady stage ended."""

    conservation: Conservation
    """request counts, recomputed from the rows"""
    outcomes: list[Outcome]
    """how the requests of the steady stage ended, the most frequent first"""
    problems: list[Problem]
    """kind and text of problems with the data"""
    stage: Steady = field(metadata=UNPUBLISHED)
    preflight: list[Json] = field(metadata=UNPUBLISHED)
    timeline: Timeline = field(metadata=UNPUBLISHED)


def compute(run: Run) -> Requests:
    """Account for the requests of a run."""
    problems = []
    for problem in run.frames.problems:
        problems.append(replace(problem, text=plain(problem.text, 500)))
    return Requests(
        conservation=run.evidence.conservation,
        outcomes=_outcomes(run.steady),
        problems=problems,
        stage=run.steady,
        preflight=run.record["preflight"],
        timeline=run.result(over_time.compute),
    )


def _outcomes(stage: Steady) -> list[Outcome]:
    """Return every class that occurred, the most frequent first."""
    ended = stage.requests["ended"]
    outcomes = []
    for name in ended.value_counts().index:
        has_ended_so = (ended == name).to_numpy(np.bool_)
        outcomes.append(Outcome(str(name), stage.share(has_ended_so)))
    return outcomes


def section(requests: Requests) -> Section:
    """Return how many requests of the steady stage got a complete answer, what became of the others, and the counts of the whole run.

    Notes are violated equations of the counts, problems of the data, and what the preflight met. The section is folded where every
    request completed and none is missing.
    """
    stage = requests.stage
    request_count = len(requests.stage.requests)
    completed = 0
    for outcome in requests.outcomes:
        if outcome.ended in schema.COMPLETE:
            completed += outcome.requests.k
    answer = "No request of the steady stage was sent."
    if request_count:
        population = f"{plural(request_count, 'request')} of the steady stage (from {clock(stage.from_s)} to {clock(stage.to_s)} of the run)"
        answer = f"{share(completed / request_count)} of {population} got a complete answer."
    notes = [
        *requests.conservation.broken,
        *(problem.text for problem in requests.problems[:MOST_PROBLEMS]),
    ]
    if len(requests.problems) > MOST_PROBLEMS:
        notes.append(
            f"{plural(len(requests.problems) - MOST_PROBLEMS, 'more note')} in report.json."
        )
    notes += _preflight_notes(requests.preflight)
    tables = (_outcome_table(requests.outcomes), _accounts(requests.conservation))
    shown_tables: tuple[Table, ...] = tables
    if not requests.outcomes:
        shown_tables = tables[1:]
    figures = tuple(_outcomes_over_time(requests.timeline))
    conservation = requests.conservation
    without_end = (
        conservation.client_drop
        + conservation.not_reached
        + conservation.lost
        + conservation.censored
    )
    is_complete = completed == request_count > 0 and set(conservation.ended) <= schema.COMPLETE
    return Section(
        name="requests",
        title="Requests",
        answer=answer,
        tables=shown_tables,
        figures=figures,
        notes=tuple(notes),
        computed=(COMPUTED,),
        is_folded=is_complete
        and not without_end
        and not conservation.broken
        and not requests.preflight,
    )


def _outcome_table(outcomes: Sequence[Outcome]) -> Table:
    rows = []
    for outcome in outcomes:
        part = replace(share_cell(outcome.requests), share=outcome.requests.value)
        name = STILL_OPEN
        if outcome.ended != schema.CENSORED:
            name = outcome.ended
        rows.append((name, count(outcome.requests.k), part))
    return Table("Outcomes", ("steady stage", "requests", "share of requests"), tuple(rows))


def _accounts(counted: Conservation) -> Table:
    """Return both equations of conservation."""
    rows = [
        ("Scheduled", count(counted.scheduled)),
        ("= dispatched", count(counted.dispatched)),
        ("+ dropped at the in-flight cap", count(counted.client_drop)),
        ("+ not reached", count(counted.not_reached)),
        ("+ lost", count(counted.lost)),
        ("Dispatched", count(counted.dispatched)),
    ]
    sign = "="
    for name, n in counted.ended.items():
        rows.append((f"{sign} {name}", count(n)))
        sign = "+"
    rows.append(("+ still open at the end", count(counted.censored)))
    missing = [_missing_text(loss) for loss in counted.missing]
    remainder = ""
    if len(missing) > 5:
        remainder = f" and {len(missing) - 5} more intervals"
    note = ""
    if missing:
        note = f"Without a row: {'; '.join(missing[:5])}{remainder}."
    return Table("Request counts", ("whole run", "requests"), tuple(rows), note)


def _missing_text(loss: Missing) -> str:
    return f"{plural(loss.requests, 'request')} of worker {loss.worker}{due([loss])}"


def _preflight_notes(entries: Sequence[Json]) -> Iterator[str]:
    """Yield a note for all preflight requests that ended the same way."""
    ends = Counter(map(_preflight, entries))
    for end, requests in ends.items():
        yield f"{plural(requests, 'preflight request')}, not in the statistics: {end}"


def _preflight(entry: Json) -> str:
    status = ""
    if entry.get("status"):
        status = f" ({entry['status']})"
    is_usage = entry.get("error_type") == MALFORMED_USAGE
    prefix = "usage contradicts the request or the answer: " if is_usage else ""
    message = ""
    if entry.get("message"):
        message = f": {prefix}{entry['message']}"
    return plain(f"{entry['ended']}{status}{message}", 400)


# --- figure -------------------------------------------------------------------------------------------------------

COLOURS = {
    schema.OK: "#86b8a2",
    schema.CUT: "#b9c96a",
    schema.EMPTY: "#6fa8c9",
    schema.REFUSED: "#5b4b9a",
    schema.FILTERED: "#8f83c4",
    schema.ABORTED: "#7d2f2f",
    schema.CANCELLED: GREY,
    schema.RATE_LIMITED: ORANGE,
    schema.OVERLOADED: "#b8622a",
    schema.SERVER_ERROR: RED,
    schema.CLIENT_ERROR: PURPLE,
    schema.CONNECT_ERROR: "#7a4fa3",
    schema.TIMEOUT: "#a33b5c",
    schema.STREAM_ERROR: "#d1719b",
    schema.TRUNCATED: "#8c6d46",
    schema.PLUGIN_ERROR: "#4a4a4a",
    schema.CHECK_FAILED: "#c2694f",
    schema.CENSORED: "#6b7c92",
    schema.CLIENT_DROP: "#c9a13b",
}


def _outcomes_over_time(timeline: Timeline) -> Iterator[Picture]:
    """Draw how the requests of each time ended, where the first figure does not say it all."""
    rates = timeline.classes_per_s
    if set(rates) <= {schema.OK}:
        return
    bars = []
    for name in sorted(rates, key=[*COLOURS, *rates].index):
        colour = COLOURS.get(name, GREY)
        bars.append(
            PlotCurve(
                timeline.at_s, rates[name], name, colour=colour, style="bars", hover="%{y:,.4~g}/s"
            )
        )
    if bars:
        yield Picture(
            name="classes",
            title="Request outcomes over time",
            caption="Requests count at their scheduled time; the warm-up is included.",
            panels=(Panel("requests per second", bars),),
            height=280,
        )
