"""What report.json holds beside the results of the sections.

docs/reference/report.schema.json and tables of docs/reference/data-format.md are generated from these types and from those
of the sections. Keys of STABLE keep their names and meanings as long as SCHEMA_VERSION is the same; the others may change.
A number that is not known is null. Every type may gain keys.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import Annotated, Literal

from pydantic import Field

from tailgauge.rows import schema
from tailgauge_analysis.comparing.comparison import Comparison
from tailgauge_analysis.metrics.definitions import ToolMetrics
from tailgauge_analysis.run import Run
from tailgauge_analysis.sections import commands
from tailgauge_analysis.text.json_values import Json, number, table, text
from tailgauge_analysis.text.section import Card, Result

SCHEMA_VERSION: Literal[1] = 1
STABLE = (
    "schema_version",
    "run",
    "result",
    "exit_code",
    "slo",
    "conservation",
    "latency",
    "rate_limits",
    "cache",
    "fan_out",
    "hedging",
    "errors",
    "verdict",
)

Count = Annotated[int, Field(ge=0)]


@dataclass(frozen=True, slots=True, kw_only=True)
class RunFacts:
    """Which run it was, and how much load there was."""

    run_id: str
    scenario: str
    description: str
    dry_run: bool
    """true: a dry run, whose verdict covers no real client or target"""
    state: str
    rebuilt: bool
    """its run.json was lost, and made again from the rows"""
    started_at: str
    arrival: str
    """open, partly open or closed"""
    process: str | None
    asked_rate_per_s: float | None
    trace: Json | None
    estimate: Json
    """what was expected before the run"""
    steady_from_s: float | None
    steady_to_s: float | None
    steady_requests: Count
    steady_ok: Count
    steady_complete: Count
    """of these, with a complete answer: whole, or ended by a token limit"""
    slow_reader_requests: Count
    cancelled_requests: Count
    offered_per_s: float | None
    """requests scheduled in the steady stage, over its length"""
    accepted_per_s: float | None
    """requests whose first response with status 2xx began in it"""
    completed_per_s: float | None
    """requests with a complete answer (whole, or ended by a token limit) that ended in it, those scheduled before it among them"""
    output_tokens_per_s: float | None
    """output tokens that arrived in it, of all attempts"""
    first_token: str
    reproduce: str | None
    """command that repeats the run; null if the run does not name its scenario"""
    workers: Count
    target: Json
    preflight: list[Json]


@dataclass(frozen=True, slots=True, kw_only=True)
class Facts:
    """The keys of report.json that are of no section."""

    schema_version: Literal[1]
    """version of these keys"""
    run: RunFacts
    """which run it was"""
    result: Result
    """whether the target did what the user asked"""
    exit_code: Literal[0, 1, 3, 4, 5, 70, 130]
    """of `tailgauge run` and `tailgauge report`"""
    findings: tuple[str, ...]
    """what changes the meaning of the figures, the most important first: a dry run, a proxy that buffers, a cache, answers cut short"""
    remarks: list[str]
    """properties of the traffic that affect the numbers: closed loop, slow readers"""
    crossover: Comparison | None
    """comparison in alternating blocks: the keys of `tailgauge compare --json` except exit_code; null without one, or with a gateway"""
    gateway: Comparison | None
    """what a gateway adds to each figure, in the same keys: change (through it, b, less direct, a), in ms or as a share; null without
    one or where its blocks are not comparable
    """
    definitions: ToolMetrics | None
    """figures by the formulas of another tool; null without `tailgauge report --as`"""
    cards: list[Card]
    """the answers of the patterns in use, as the first screen of the page shows them"""


def run_facts(run: Run) -> RunFacts:
    """Collect the facts of a run."""
    record = run.record
    stage = run.steady
    rates = run.evidence.throughput
    ended = stage.requests["ended"]
    scenario = record["scenario"]
    arrival = table(scenario, "arrival")
    return RunFacts(
        run_id=record["run_id"],
        scenario=text(scenario.get("name")) or record["run_id"],
        description=text(scenario.get("description")),
        dry_run=record["dry_run"],
        state=record["state"],
        rebuilt=record["rebuilt"],
        started_at=record["started_at"],
        arrival=record["arrival"],
        process=text(arrival.get("process")) or None,
        asked_rate_per_s=number(arrival.get("rate_per_s")),
        trace=record["trace"],
        estimate=record["estimate"],
        steady_from_s=number(stage.from_s),
        steady_to_s=number(stage.to_s),
        steady_requests=len(ended),
        steady_ok=int((ended == schema.OK).sum()),
        steady_complete=int(ended.isin(schema.COMPLETE).sum()),
        slow_reader_requests=len(ended) - len(run.without_slow_readers.requests),
        cancelled_requests=int((ended == schema.CANCELLED).sum()),
        offered_per_s=rates.offered_per_s,
        accepted_per_s=rates.accepted_per_s,
        completed_per_s=rates.completed_per_s,
        output_tokens_per_s=rates.output_tokens_per_s,
        first_token=stage.first_token,
        reproduce=commands.again(record),
        workers=len(record["workers"]),
        target={key: record["target"].get(key) for key in ("url", "simulated", "protocol")},
        preflight=list(map(_preflight_facts, record["preflight"])),
    )


def _preflight_facts(call: Json) -> Json:
    return {key: call.get(key) for key in ("ended", "status", "message")}
