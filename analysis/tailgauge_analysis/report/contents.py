"""The contents of a report as plain values, which the page and Markdown are written from, and report.json made of them.

Only finite numbers, strings, lists and tables; a number that is not known is null.
"""

from __future__ import annotations

from dataclasses import asdict
from typing import cast

from tailgauge.rows import schema
from tailgauge_analysis.compare.alternating import alternating_blocks
from tailgauge_analysis.load.run_files import UNFINISHED
from tailgauge_analysis.metrics.groups import Group
from tailgauge_analysis.metrics.latency import OFFERED, Row
from tailgauge_analysis.metrics.metrics import NEITHER
from tailgauge_analysis.report.model import (
    SCHEMA_VERSION,
    Latency,
    Percentile,
    Percentiles,
    Population,
)
from tailgauge_analysis.sections import result
from tailgauge_analysis.sections.findings import Findings, remarks
from tailgauge_analysis.stats.proportions import Proportion
from tailgauge_analysis.stats.quantiles import TOO_FEW
from tailgauge_analysis.text.formatting import plain
from tailgauge_analysis.text.json_values import Json, number, table, text
from tailgauge_analysis.text.quantile import NONE, VALUE, plain_values, quantile
from tailgauge_analysis.verdict import certificate, clocks

NOT_APPLICABLE = "not applicable"
ALL = "all"
_ELSEWHERE = (  # keys of the contents that are published under another name, or within another key
    "run_id", "scenario", "description", "dry_run", "verdict", "reasons", "explanations", "checks", "run",
    "latency", "by_traffic", "failures",
)  # fmt: skip


def contents(findings: Findings) -> Json:
    """Everything the report says."""
    run = findings.frames.run
    answer = result.result(findings)
    return {
        "run_id": run["run_id"],
        "scenario": text(run["scenario"].get("name")) or run["run_id"],
        "description": text(run["scenario"].get("description")),
        "verdict": findings.verdict,
        "dry_run": run["dry_run"],
        "result": plain_values(answer),
        "exit_code": int(result.exit_code(findings, answer)),
        "reasons": [asdict(reason) for reason in findings.reasons],
        "explanations": findings.explanations,
        "checks": plain_values(findings.checks),
        "run": _run(findings),
        "conservation": _conservation(findings),
        "outcomes": plain_values(findings.outcomes),
        "remarks": remarks(findings),
        "traffic": plain_values(findings.traffic),
        "stability": plain_values(findings.evidence.stability),
        "streams": plain_values(findings.streams),
        "tpot_missing": findings.tpot_missing,
        "phases": plain_values(findings.phases),
        "diagnosis": plain_values(findings.diagnosis),
        "slopes": plain_values(findings.slopes),
        "crossover": alternating_blocks(run["scenario"], findings.of_target),
        "definitions": plain_values(findings.definitions),
        "health": asdict(findings.health) if findings.health else None,
        "goodput": plain_values(findings.goodput) if findings.goodput else None,
        "latency": [_latency(row) for row in findings.latency],
        "by_traffic": {
            plain(name, 80): [_latency(row) for row in rows] for name, rows in findings.by_traffic.items()
        },
        "groups": [_group(group) for group in findings.groups],
        "smaller_groups": findings.smaller_groups,
        "slo": plain_values(findings.slos),
        "use_cases": plain_values(findings.use_cases),
        "rate_limits": plain_values(findings.rate_limits),
        "cache": plain_values(findings.cache),
        "fan_out": plain_values(findings.fan_out),
        "hedging": plain_values(findings.hedging),
        "stamps": _stamps(findings),
        "failures": [asdict(failure) for failure in findings.failures],
        "other_failures": findings.other_failures,
        "client": [plain_values(worker) for worker in findings.evidence.workers],
        "in_flight": plain_values(findings.evidence.in_flight) if findings.evidence.in_flight else None,
        "bad_seconds": plain_values(findings.evidence.bad),
        "client_error": [asdict(one) for one in findings.evidence.errors],
        "server_log": plain_values(findings.server_log),
        "clocks": clocks.to_json(findings.clocks, findings.calls_between),
        "certificate": None if run["dry_run"] else certificate.to_json(findings.certified),
        "environment": plain_values(findings.environment),
        "problems": [{"kind": p.kind, "text": plain(p.text, 500)} for p in findings.frames.problems],
    }


def _run(findings: Findings) -> Json:
    run, stage = findings.frames.run, findings.steady
    requests = len(stage.requests)
    ok = int((stage.requests["ended"] == schema.OK).sum())
    return {
        "state": run["state"],
        "rebuilt": run["rebuilt"],
        "started_at": run["started_at"],
        "arrival": run["arrival"],
        "process": text(table(run["scenario"], "arrival").get("process")) or None,
        "asked_rate_per_s": number(table(run["scenario"], "arrival").get("rate_per_s")),
        "steady_from_s": number(stage.from_s),
        "steady_to_s": number(stage.to_s),
        "steady_requests": requests,
        "steady_ok": ok,
        **plain_values(findings.evidence.throughput),
        "slow_reader_requests": requests - len(findings.of_target.requests),
        "cancelled_requests": int((stage.requests["ended"] == schema.CANCELLED).sum()),
        "first_token": stage.first_token,
        "reproduce": findings.environment.reproduce,
        "trace": plain_values(run["trace"]),
        "estimate": plain_values(run["estimate"]),
        "workers": len(run["workers"]),
        "target": {k: run["target"].get(k) for k in ("url", "simulated", "protocol")},
        "preflight": [
            {k: entry.get(k) for k in ("ended", "status", "message")} for entry in run["preflight"]
        ],
    }


def _conservation(findings: Findings) -> Json:
    counted = findings.evidence.conservation
    facts = asdict(counted)
    facts["broken"] = list(facts["broken"])
    del facts["workers"], facts["unseen"]
    facts["missing"] = [
        *({"worker": one.worker, **asdict(s)} for one in counted.workers for s in one.missing),
        *({"worker": None, **asdict(s)} for s in counted.unseen),
    ]
    facts["unfinished_files"] = sum(p.kind == UNFINISHED for p in findings.frames.problems)
    return facts


def _sure(of: Proportion) -> Json:
    """The interval of a share, and on how much it rests."""
    return {key: getattr(of, key) for key in ("low", "high", "n_eff", "episodes", "mark")}


def _group(group: Group) -> Json:
    return {
        "by": group.by, "name": group.name, "pattern": group.pattern, "requests": group.requests, "ok": group.ok.k,
        "cancelled": group.cancelled, "ok_share": group.ok.value, **_sure(group.ok),
        "latency": [_latency(row) for row in group.latency],
    }  # fmt: skip


def _latency(row: Row) -> Json:
    metric = row.metric
    return {
        "metric": metric.name, "title": metric.title, "unit": metric.unit, "since": metric.since, "level": metric.level,
        "formula": metric.formula, "view": row.view, "n": row.n, "without_answer": row.without_answer,
        "mean": row.mean,
        "quantiles": [quantile(q) for q in row.quantiles],
    }  # fmt: skip


def _stamps(findings: Findings) -> Json:
    facts = findings.evidence.stamps
    out: Json = {key: value for key, value in asdict(facts).items() if key != "receive_lag_ms"}
    out["first_interval_share"] = facts.first_interval_share
    out["chunk_interval_share"] = facts.chunk_intervals / facts.chunks if facts.chunks else 0.0
    for key, at in (("p50", 0), ("p99", 1), ("max", 2)):
        out[f"receive_lag_{key}_ms"] = facts.receive_lag_ms[at] if facts.receive_lag_ms else None
    return out


def published(contents: Json) -> Json:
    """What report.json holds: the contents under the names of model.py that programs may rely on; nothing is computed."""
    named = {key: contents[key] for key in ("run_id", "scenario", "description", "dry_run")}
    tables = {ALL: contents["latency"]} | {
        f"{name} (traffic)" if name == ALL else name: rows for name, rows in contents["by_traffic"].items()
    }
    stable = {
        "schema_version": SCHEMA_VERSION,
        "run": {**named, **contents["run"]},
        "result": contents["result"],
        "verdict": {
            "status": contents["verdict"],
            "reasons": contents["reasons"],
            "explanations": contents["explanations"],
            "checks": contents["checks"],
        },
        "conservation": contents["conservation"],
        "latency": [
            _published_latency(group, row) for group, rows in tables.items() for row in rows if row["n"]
        ],
        "errors": contents["failures"],
        **{key: contents.get(key) for key in ("rate_limits", "cache", "fan_out", "hedging")},
        "slo": contents["slo"],
        "definitions": contents["definitions"],
        "exit_code": contents["exit_code"],
    }
    rest = {key: value for key, value in contents.items() if key not in {*_ELSEWHERE, *stable}}
    return {**stable, **rest, "crossover": plain_values(contents["crossover"])}


def _published_latency(group: str, row: Json) -> Latency:
    p99 = next(q for q in row["quantiles"] if q["label"] == "p99")
    return {
        "group": group,
        "metric": row["metric"].removesuffix("_sched").removesuffix("_sent"),
        "since": None if row["since"] == NEITHER else row["since"],
        "population": _population(row["view"]),
        "unit": row["unit"],
        "n": row["n"],
        "n_eff": p99["n_eff"],
        "mean": row["mean"],
        "percentiles": cast(
            "Percentiles", {q["label"].replace(".", "_"): _percentile(q) for q in row["quantiles"]}
        ),
    }


def _population(view: str) -> Population:
    return "offered" if view == OFFERED else "completed"


def _percentile(q: Json) -> Percentile:
    return {
        "value": q["value_ms"], "low": q["low_ms"], "high": q["high_ms"],
        "reliable": not q["mark"], "mark": q["mark"], "episodes": q["episodes"], "beyond": _is_beyond(q), "n_eff": q["n_eff"],
        "value_is": q["value_is"], "low_is": q["low_is"], "high_is": q["high_is"],
    }  # fmt: skip


def _is_beyond(q: Json) -> bool:
    """Whether the rank falls among requests without answer."""
    return q["value_is"] not in {VALUE, TOO_FEW, NONE}
