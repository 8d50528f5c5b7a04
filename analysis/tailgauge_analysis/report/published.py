"""report.json: the contents of a report under the names that programs may rely on.

The stable keys of model.py are made here from the contents (contents.py); the others are the contents' as they are.
Nothing is computed.
"""

from __future__ import annotations

from typing import cast

from tailgauge_analysis.metrics.latency import OFFERED
from tailgauge_analysis.metrics.metrics import NEITHER
from tailgauge_analysis.report.model import (
    SCHEMA_VERSION,
    Latency,
    Objective,
    Percentile,
    Percentiles,
    Population,
)
from tailgauge_analysis.stats.quantiles import TOO_FEW
from tailgauge_analysis.text.json_values import Json
from tailgauge_analysis.text.quantile import NONE, VALUE

ALL = "all"
_ELSEWHERE = (  # keys of the contents that are published under another name, or within another key
    "run_id", "scenario", "description", "dry_run", "verdict", "reasons", "explanations", "checks", "run",
    "latency", "by_traffic", "failures", "slos",
)  # fmt: skip


def published(contents: Json) -> Json:
    """What report.json holds."""
    named = {key: contents[key] for key in ("run_id", "scenario", "description", "dry_run")}
    tables = {ALL: contents["latency"]} | {
        f"{name} (traffic)" if name == ALL else name: rows for name, rows in contents["by_traffic"].items()
    }
    stable = {
        "schema_version": SCHEMA_VERSION,
        "run": {**named, **contents["run"]},
        "verdict": {
            "status": contents["verdict"],
            "reasons": contents["reasons"],
            "explanations": contents["explanations"],
            "checks": contents["checks"],
        },
        "conservation": contents["conservation"],
        "latency": [_latency(group, row) for group, rows in tables.items() for row in rows if row["n"]],
        "errors": contents["failures"],
        **{key: contents.get(key) for key in ("rate_limits", "cache", "fan_out", "hedging")},
        "slo": [_slo(slo) for slo in contents["slos"]],
        "definitions": contents["definitions"],
        "exit_code": contents["exit_code"],
    }
    return {**stable, **{key: value for key, value in contents.items() if key not in {*_ELSEWHERE, *stable}}}


def _latency(group: str, row: Json) -> Latency:
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
        "reliable": not q["mark"], "beyond": _is_beyond(q), "n_eff": q["n_eff"],
        "value_is": q["value_is"], "low_is": q["low_is"], "high_is": q["high_is"],
    }  # fmt: skip


def _is_beyond(q: Json) -> bool:
    """Whether the rank falls among requests without answer."""
    return q["value_is"] not in {VALUE, TOO_FEW, NONE}


def _slo(slo: Json) -> Objective:
    q = slo["quantile"]
    return {
        "name": slo["name"], "bound": slo["max_ms"], "status": slo["outcome"],
        "value": q["value_ms"] if q else None, "low": q["low_ms"] if q else None, "high": q["high_ms"] if q else None,
        "beyond": _is_beyond(q) if q else False, "metric": slo["metric"], "quantile": slo["p"],
        "population": _population(slo["view"]), "unit": "ms", "why": slo["why"], "early_stopping": slo["early_stopping"],
    }  # fmt: skip
