"""Rehearsals reported in full: report.json beside the endpoint's own log of the same run."""

from __future__ import annotations

import json
import math
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np
import pandas as pd
from dry_run.in_memory import plan_of, scenario_of

from tailgauge.dry_run.command import rehearse
from tailgauge_analysis.report.report import make

LEVELS = {"p50": 0.5, "p90": 0.9, "p95": 0.95, "p99": 0.99, "p99_9": 0.999}


@dataclass
class Reported:
    """report.json, and what the endpoint wrote down: one row a call, beside it the traffic table that asked for it."""

    report: dict[str, Any]
    log: pd.DataFrame

    def steady(self, *traffic: str) -> pd.DataFrame:
        """Calls of the steady stage, of some traffic tables or of all."""
        rows = self.log[self.log["scheduled_at_ns"] >= self.report["run"]["steady_from_s"] * 1e9]
        return rows[rows["traffic"].isin(traffic)] if traffic else rows

    def latency(self, group: str, metric: str, since: str | None, population: str = "completed") -> Any:
        """A row of the latency table; None where there is none."""
        rows = [
            row
            for row in self.report["latency"]
            if (row["group"], row["metric"], row["since"], row["population"])
            == (group, metric, since, population)
        ]
        return rows[0] if rows else None


def reported(tree: dict[str, Any], out: Path) -> Reported:
    """Rehearse a scenario, report it, and read both sides from their files."""
    scenario = scenario_of(tree)
    folder = rehearse(scenario, plan_of(scenario), "test.toml", (), out).path
    report = json.loads(make([folder], out).json.read_text(encoding="utf-8"))
    log, asked = (
        pd.concat(map(pd.read_parquet, sorted((folder / name).glob("*.parquet"))))
        for name in ("target", "requests")
    )
    start_ns = json.loads((folder / "run.json").read_text(encoding="utf-8"))["start_at_ns"]
    log = log.merge(
        asked[["request_id", "traffic", "scheduled_at_ns"]], on="request_id", validate="many_to_one"
    )
    for name in (*(name for name in log if name.endswith("_at_ns") and name != "chunk_sent_at_ns"),):
        log[name] -= start_ns
    chunks = [np.asarray(sent, np.int64) - start_ns for sent in log.pop("chunk_sent_at_ns")]
    log["chunks"] = pd.Series(chunks, log.index, dtype=object)
    log["first_ns"] = [sent[0] if len(sent) else np.nan for sent in chunks]
    log["last_ns"] = [sent[-1] if len(sent) else np.nan for sent in chunks]
    return Reported(report, log.sort_values(["scheduled_at_ns", "leg", "attempt"], kind="stable"))


def exact(values: Any, p: float) -> float:
    """The ceil(n p)-th smallest, in milliseconds of nanoseconds."""
    ordered = np.sort(np.asarray(values, np.float64))
    return float(ordered[math.ceil(len(ordered) * p - 1e-9) - 1]) / 1e6
