"""What report.json holds, from the findings of a run. Only finite numbers, strings, lists and tables; null is not known."""

from __future__ import annotations

from dataclasses import asdict

from tailgauge.rows import schema
from tailgauge_analysis.comparing.comparison import Comparison
from tailgauge_analysis.comparing.gateway import Gateway
from tailgauge_analysis.metrics.groups import Group
from tailgauge_analysis.metrics.latency import OFFERED, Row
from tailgauge_analysis.metrics.metrics import NEITHER
from tailgauge_analysis.report import model
from tailgauge_analysis.report.model import SCHEMA_VERSION
from tailgauge_analysis.sections import result
from tailgauge_analysis.sections.findings import Findings, remarks
from tailgauge_analysis.text.formatting import plain
from tailgauge_analysis.text.json_values import Json, number, table, text
from tailgauge_analysis.text.quantile import plain_values, quantile
from tailgauge_analysis.text.section import Result
from tailgauge_analysis.verdict import certificate, clocks

ALL = "all"


def contents(findings: Findings, answer: Result, crossover: Comparison | None, added: Gateway | None) -> Json:
    """Every key of model.Report: a finding as it is, unless it is put together here."""
    run, evidence = findings.frames.run, findings.evidence
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
        **{key: getattr(evidence, key) for key in ("conservation", "stability", "in_flight")},
        "latency": [_latency(group, row) for group, rows in groups.items() for row in rows if row.n],
        "errors": findings.failures,
        "slo": findings.slos,
        "exit_code": int(result.exit_code(findings, answer)),
        "remarks": remarks(findings),
        "crossover": crossover,
        "gateway": added,
        "groups": [_group(group) for group in findings.groups],
        "stamps": _stamps(findings),
        "client": evidence.workers,
        "bad_seconds": evidence.bad,
        "client_error": evidence.errors,
        "clocks": clocks.to_json(findings.clocks, findings.calls_between),
        "certificate": None if run["dry_run"] else certificate.to_json(findings.certified),
        "problems": [{"kind": p.kind, "text": plain(p.text, 500)} for p in findings.frames.problems],
    }
    keys = model.Report.__annotations__
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


def _stamps(findings: Findings) -> Json:
    facts = findings.evidence.stamps
    lags = facts.receive_lag_ms or (None, None, None)
    return {
        **{key: value for key, value in asdict(facts).items() if key != "receive_lag_ms"},
        "first_interval_share": facts.first_interval_share,
        "chunk_interval_share": facts.chunk_intervals / facts.chunks if facts.chunks else 0.0,
        **{f"receive_lag_{name}_ms": lag for name, lag in zip(("p50", "p99", "max"), lags, strict=True)},
    }
