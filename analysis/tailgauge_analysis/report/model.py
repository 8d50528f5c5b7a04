"""What report.json holds, as types: docs/reference/report.schema.json and tables of docs/reference/data-format.md are generated from them.

Keys of STABLE keep their names and meanings as long as SCHEMA_VERSION is the same; the others may change.
A number that is not known is null. Every type may gain keys.
"""

from __future__ import annotations

from typing import Annotated, Any, Literal

from pydantic import ConfigDict, Field, with_config
from typing_extensions import TypedDict  # pydantic reads no other before Python 3.12

from tailgauge.rows import schema
from tailgauge_analysis.comparing import gateway
from tailgauge_analysis.comparing.comparison import Comparison
from tailgauge_analysis.metrics.definitions import ToolMetrics
from tailgauge_analysis.metrics.latency import OFFERED, Row
from tailgauge_analysis.metrics.metrics import METRICS, NEITHER
from tailgauge_analysis.metrics.stability import Stability
from tailgauge_analysis.metrics.streams import Streams
from tailgauge_analysis.objectives.goodput import Goodput
from tailgauge_analysis.objectives.health import Health
from tailgauge_analysis.objectives.outcome import ObjectiveResult
from tailgauge_analysis.sections import result
from tailgauge_analysis.sections.ends import Ends
from tailgauge_analysis.sections.environment import Environment
from tailgauge_analysis.sections.findings import Findings, remarks
from tailgauge_analysis.sections.latency import Group
from tailgauge_analysis.sections.latency_under_load.diagnosis import Diagnosis
from tailgauge_analysis.sections.measurement import CheckResult
from tailgauge_analysis.sections.patterns import Answer
from tailgauge_analysis.sections.requests import Failure, Outcome
from tailgauge_analysis.sections.served import Served
from tailgauge_analysis.sections.traffic import Traffic
from tailgauge_analysis.sections.transports import Transport
from tailgauge_analysis.text.formatting import plain
from tailgauge_analysis.text.json_values import Json, number, table, text
from tailgauge_analysis.text.quantile import plain_values, quantile
from tailgauge_analysis.text.section import Result
from tailgauge_analysis.verdict.client_error import ClientError
from tailgauge_analysis.verdict.clocks import clocks_json
from tailgauge_analysis.verdict.conservation import Conservation
from tailgauge_analysis.verdict.stalls import BadSeconds
from tailgauge_analysis.verdict.timestamps import Stamps
from tailgauge_analysis.verdict.verdict import Reason

SCHEMA_VERSION: Literal[1] = 1
STABLE = (
    "schema_version", "run", "result", "verdict", "conservation", "latency", "errors", "rate_limits", "cache", "fan_out", "hedging",
    "slo", "exit_code",
)  # fmt: skip
METRIC_NAMES = tuple(dict.fromkeys(m.name.removesuffix("_sched").removesuffix("_sent") for m in METRICS))

Count = Annotated[int, Field(ge=0)]
Population = Literal["completed", "offered"]
Status = Literal["VALID", "DEGRADED", "INVALID"]
MetricName = Annotated[str, Field(json_schema_extra={"examples": list(METRIC_NAMES)})]  # or a plugin's


class Run(TypedDict):
    """Which run it was."""

    run_id: str
    scenario: str
    description: str
    dry_run: bool
    """true: a dry run, whose verdict covers no real client or target"""
    state: str
    started_at: str
    steady_requests: Count
    steady_ok: Count
    steady_complete: Count
    """of these, ended ok or cut"""
    offered_per_s: float | None
    """requests scheduled in the steady stage, over its length"""
    accepted_per_s: float | None
    """requests whose first response with status 2xx began in it"""
    completed_per_s: float | None
    """requests with a complete answer (ok or cut) that ended in it, those scheduled before it among them"""
    output_tokens_per_s: float | None
    """output tokens that arrived in it, of all attempts"""
    reproduce: str | None
    """command that repeats the run; null if the run does not name its scenario"""
    target: Json
    preflight: list[Json]


class Verdict(TypedDict):
    """Whether the numbers can be trusted."""

    status: Status
    reasons: list[Reason]
    """worst first; empty if VALID"""
    explanations: list[Any]
    """difficulties of the client that explain failed checks"""
    checks: list[CheckResult]
    """all checks"""


class Percentile(TypedDict):
    """One percentile with its 95% interval, in the unit of its row. For rates in tokens/s, percentiles count from the fast end:
    99% of the answers are at least as fast as the p99.
    """

    p: float
    label: str
    n: Count
    value: float | None
    """null if there is none; `value_is` gives the reason"""
    low: float | None
    high: float | None
    reliable: bool
    """it has no mark"""
    mark: Literal["", "few slow episodes", "unreliable", "n/a", "client error"]
    """why not: fewer than 5 slow episodes, n_eff below 50, too few samples, or moved too far by the client"""
    episodes: Count
    """slow episodes: in how many the values beyond it came"""
    beyond: bool
    """it lies among requests without an answer: slower than any success"""
    n_eff: Count
    value_is: str
    """value, n/a (too few samples), failed (beyond), or > 1,000 ms (not observable)"""
    low_is: str
    high_is: str


class Percentiles(TypedDict):
    """By label."""

    p50: Percentile
    p90: Percentile
    p95: Percentile
    p99: Percentile
    p99_9: Percentile


class Latency(TypedDict):
    """One metric of one group and population."""

    group: str
    """a traffic table, or all"""
    metric: MetricName
    """a name of metrics.md, without its ending _sched or _sent: see `since`"""
    since: Literal["scheduled", "sent"] | None
    """when its clock starts; null for neither"""
    population: Population
    """offered: with failures, as slower than any success"""
    unit: Literal["ms", "tokens/s"]
    n: Count
    n_eff: Count
    """effective samples of the p99"""
    mean: float | None
    """null if a request without an answer is among them"""
    percentiles: Percentiles


@with_config(ConfigDict(use_attribute_docstrings=True))
class Report(TypedDict):
    """report.json: the keys of STABLE first."""

    schema_version: Literal[1]
    """version of these keys"""
    run: Run
    """which run it was"""
    result: Result
    """what the user asked: did the target do it?"""
    verdict: Verdict
    """whether the numbers can be trusted"""
    conservation: Conservation
    """request counts, recomputed from the rows"""
    latency: list[Latency]
    """rows with at least one sample"""
    errors: list[Failure]
    """kinds of failed attempts of the whole run, most frequent first"""
    rate_limits: Json | None
    """429s by limit and over time, buckets, binding limit, growth, retry-after, retries; null without 429s, limit headers and
    retries; see reports.md
    """
    cache: list[Json]
    """by traffic table: hit shares, write amplification, misses by cause, expiry, TTFT, cost; null without cached traffic; see
    reports.md
    """
    fan_out: list[Json]
    """by traffic table: joins and predictions from the legs; see reports.md"""
    hedging: list[Json]
    """by traffic table: gain and cost of hedges, controls first; see reports.md"""
    slo: list[ObjectiveResult]
    """objectives, in the scenario's order; `gate`: whether the result depends on it"""
    exit_code: Literal[0, 1, 3, 4, 5, 70, 130]
    """of `tailgauge run` and `tailgauge report`"""
    transports: list[Transport]
    """by traffic table: resumed streams and jobs, what became of them, time to resume or turnaround"""
    patterns: list[Answer]
    """by traffic table: what each pattern gains or costs, in a sentence"""
    outcomes: list[Outcome]
    """how the requests of the steady stage ended, the most frequent first"""
    ends: Ends
    """how the answers of the whole run ended: classes, stop reasons, errors inside them, what was tolerated or not understood"""
    served: Served | None
    """by model, service tier, speed and region of the responses: calls, cost, TTFT, TPOT, and fallbacks; null where all are alike"""
    remarks: list[str]
    """properties of the traffic that affect the numbers: closed loop, slow readers"""
    traffic: dict[str, Traffic]
    """by traffic table: what was sent in the whole run, preflight excluded"""
    stability: Stability
    """whether the steady stage was a steady state of the target; see metrics.md"""
    streams: Streams
    """evenness of streams: tokens per chunk, buffered streams, stalls, fluidity, tokens per second; see metrics.md"""
    health: Health | None
    """offered requests with a complete answer; null if none was offered"""
    tpot_missing: Json
    """answers without TPOT: of (streamed answers), answers, reasons (reason, answers, text), sentence (empty: none); see metrics.md"""
    phases: Json | None
    """time breakdown: answers, reported, split (by the server log), events (status events), timings (Server-Timing): name, n,
    share, quantiles; null without data
    """
    diagnosis: Diagnosis
    """where the slowest requests lose their time"""
    slopes: list[Json]
    """factors of ttft_sent and tpot: of, n, why (no slopes), left_out, confounded, together (pairs that cannot be separated), slopes
    (name, p, value, low, high, mark, p_value) in ms; a null value: no effect that survives among all of the report; see reports.md
    """
    crossover: Json | None
    """comparison in alternating blocks: the keys of `tailgauge compare --json` except exit_code; null without one, or with a gateway"""
    gateway: Json | None
    """what a gateway adds to each figure, in the same keys: change (through it, b, less direct, a), in ms or as a share; null without
    one or where its blocks are not comparable
    """
    goodput: Goodput | None
    """null without objectives on latencies"""
    groups: list[Json]
    """by (traffic, slow reader, name, tag), name, pattern, requests, ok (share of all offered), cancelled, latency (as
    above, offered)"""
    smaller_groups: Count
    """number of groups that are not shown"""
    stamps: Stamps
    """exact and interval timestamps, kernel and user timestamps, attempts that opened a connection"""
    other_failures: Count
    """failed attempts of rarer kinds"""
    client: list[Json]
    """health of each worker in the steady stage: mean and worst second of each column"""
    bad_seconds: BadSeconds
    """client stalls in the steady stage"""
    client_error: list[ClientError]
    """error of each reported percentile because of the client"""
    clocks: Json
    """clock error between_ms (two workers), calls_in_flight (its effect on this count), unknown (workers), sentence"""
    environment: Environment
    """what produced the run, and the command that repeats it"""
    definitions: ToolMetrics | None
    """figures by the formulas of another tool; null without `tailgauge report --as`"""
    problems: list[Json]
    """kind and text of problems with the data"""


# --- the contents, from the findings of a run ---------------------------------------------------------------------

ALL = "all"


def contents(
    findings: Findings,
    answer: Result,
    blocks: Comparison | None,
    translated: ToolMetrics | None,
) -> Json:
    """Every key of Report: a finding as it is, unless it is put together here."""
    evidence = findings.evidence
    is_gateway = blocks is not None and blocks.method is gateway.METHOD
    groups = {ALL: findings.latency} | {
        f"{name} (traffic)" if name == ALL else plain(name, 80): rows
        for name, rows in findings.by_traffic.items()
    }
    made: Json = {
        "schema_version": SCHEMA_VERSION,
        "run": _run(findings),
        "result": answer,
        "verdict": {
            "status": findings.verdict,
            **{key: getattr(findings, key) for key in ("reasons", "explanations", "checks")},
        },
        **{key: getattr(evidence, key) for key in ("conservation", "stability")},
        "latency": [_latency(group, row) for group, rows in groups.items() for row in rows if row.n],
        "errors": findings.failures,
        "slo": findings.slos,
        "exit_code": int(result.exit_code(findings, answer)),
        "remarks": remarks(findings),
        "crossover": None if is_gateway else blocks,
        "gateway": blocks if is_gateway else None,
        "definitions": translated,
        "groups": [_group(group) for group in findings.groups],
        "stamps": evidence.stamps,
        "client": evidence.workers,
        "bad_seconds": evidence.bad,
        "client_error": evidence.errors,
        "clocks": clocks_json(findings.clocks, findings.calls_between),
        "problems": [{"kind": p.kind, "text": plain(p.text, 500)} for p in findings.frames.problems],
    }
    keys = Report.__annotations__
    tree: Json = plain_values({key: made[key] if key in made else getattr(findings, key) for key in keys})
    return tree


def _run(findings: Findings) -> Json:
    run, stage = findings.frames.run, findings.steady
    requests, ended = len(stage.requests), stage.requests["ended"]
    arrival = table(run["scenario"], "arrival")
    return {
        **{key: run[key] for key in ("run_id", "dry_run", "state", "rebuilt", "started_at", "arrival", "trace", "estimate")},
        "scenario": text(run["scenario"].get("name")) or run["run_id"],
        "description": text(run["scenario"].get("description")),
        "process": text(arrival.get("process")) or None, "asked_rate_per_s": number(arrival.get("rate_per_s")),
        "steady_from_s": number(stage.from_s), "steady_to_s": number(stage.to_s),
        "steady_requests": requests, "steady_ok": int((ended == schema.OK).sum()),
        "steady_complete": int(ended.isin(schema.COMPLETE).sum()),
        **plain_values(findings.evidence.throughput),
        "slow_reader_requests": requests - len(findings.of_target.requests),
        "cancelled_requests": int((ended == schema.CANCELLED).sum()),
        "first_token": stage.first_token, "reproduce": findings.environment.reproduce, "workers": len(run["workers"]),
        "target": {key: run["target"].get(key) for key in ("url", "simulated", "protocol")},
        "preflight": [{key: one.get(key) for key in ("ended", "status", "message")} for one in run["preflight"]],
    }  # fmt: skip


def _group(group: Group) -> Json:
    return {
        **{key: getattr(group, key) for key in ("by", "name", "pattern", "requests", "ok", "cancelled")},
        "latency": [_latency(group.name, row) for row in group.latency],
    }


def _latency(group: str, row: Row) -> Json:
    metric = row.metric
    cells = {one["label"].replace(".", "_"): one for one in map(quantile, row.quantiles)}
    return {
        "group": group, "metric": metric.name.removesuffix("_sched").removesuffix("_sent"),
        "since": None if metric.since == NEITHER else metric.since,
        "population": "offered" if row.view == OFFERED else "completed", "unit": metric.unit,
        "n": row.n, "n_eff": cells["p99"]["n_eff"], "mean": row.mean, "percentiles": cells,
    }  # fmt: skip
