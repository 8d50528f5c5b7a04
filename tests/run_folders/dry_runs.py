"""Dry runs for the analysis: as run folders, as frames in memory, as reports beside the endpoint's own log."""

from __future__ import annotations

import json
import math
from collections.abc import Sequence
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import Any

import numpy as np
import pandas as pd
import pyarrow as pa
from dry_run.in_memory import UNBOUNDED, plan_of, run_in_memory, scenario_of
from run_folders.run_data import RunData

from tailgauge.dry_run.command import dry_run
from tailgauge.plan.resolve import resolve
from tailgauge.rows.parquet import row_table
from tailgauge_analysis.reading import frames
from tailgauge_analysis.reading.frames import Frames
from tailgauge_analysis.report.report import make

NOT_DRY = ("batch", "slow_reader")  # packaged scenarios that can run at a server only
LEVELS = {"p50": 0.5, "p90": 0.9, "p95": 0.95, "p99": 0.99, "p99_9": 0.999}

# Every section of the report has something to say of this dry run.
RICH: dict[str, Any] = {
    "name": "rich", "arrival": {"rate_per_s": 20}, "stages": {"duration_s": 3, "warmup_s": 0.5},
    "traffic": {
        "chat": {"pattern": "hedged", "prompt_tokens": 50, "output_tokens": 5, "hedge": {"policy": "fixed", "delay_ms": 200}, "retry": {"policy": "polite"}},
        "panel": {"pattern": "fan_out", "prompt_tokens": 50, "output_tokens": 5, "fan_out": {"legs": 3}},
        "cached": {"pattern": "cached", "prompt_tokens": 20, "output_tokens": 5, "cache": {"system_tokens": 500, "breakpoints": ["system"]}},
    },
    "simulated": {
        "ttft_ms": 150.0, "ttft_sigma": 0.6, "chunk_gap_ms": 5.0, "limits": {"rpm": 1500, "burst": 20},
        "cache": {"mode": "marked", "minimum_tokens": 300}, "stragglers": {"slow_share": 0.1},
    },
    "slo": {"first": "ttft_sched p90 < 400ms"},
}  # fmt: skip


def dry_run_folder(tree: dict[str, Any], out: Path) -> Path:
    """The run folder of a dry run of this scenario."""
    scenario = scenario_of(tree)
    return dry_run(scenario, plan_of(scenario), "test.toml", (), out).path


def dry_run_of(scenario: str, pairs: Sequence[tuple[str, Any]], out: Path) -> Path:
    """The run folder of a dry run of a packaged scenario or a file, with some keys set otherwise."""
    settings = resolve(scenario, pairs, out, workers=1, sends=False)
    return dry_run(
        settings.scenario, settings.schedule, settings.scenario_file, settings.overrides, out
    ).path


@dataclass
class DryRunFrames:
    """Frames of a dry run, and the endpoint's own rows in `server_log` (every column)."""

    frames: Frames
    server_log: pd.DataFrame


def limited(limits: dict[str, Any], **changes: Any) -> dict[str, Any]:
    """A scenario of short answers against limits; `changes` are whole tables."""
    tree: dict[str, Any] = {
        "arrival": {"rate_per_s": 7.0},
        "stages": {"duration_s": 40.0, "warmup_s": 0.0},
        "limits": UNBOUNDED,
        "simulated": {"ttft_ms": 20.0, "chunk_gap_ms": 5.0, "limits": limits},
        "traffic": {"chat": {"prompt_tokens": 100, "output_tokens": 4}},
    }
    return {**tree, **changes}


def dry_run_frames(tree: dict[str, Any], *, without_headers: bool = False) -> DryRunFrames:
    """A dry run in memory, whose rows go the way of the loader."""
    kept = run_in_memory(tree)
    for row in kept.attempts if without_headers else ():
        row.rate_limit_headers = None
    requests, attempts = (
        frames._frame(frames._reduced(name, _table(name, rows)), 0)
        for name, rows in (("requests", kept.requests), ("attempts", kept.attempts))
    )
    scenario = scenario_of(tree).model_dump(mode="json")
    run = {"dry_run": True, "start_at_ns": 0, "started_at": None, "scenario": scenario}
    nothing = pd.DataFrame()
    read = Frames(run, requests, attempts, nothing, nothing, nothing, {}, ())
    return DryRunFrames(read, pd.DataFrame([asdict(row) for row in kept.server_rows]))


def _table(name: str, rows: list[Any]) -> pa.Table:
    return row_table(name, rows).select(frames.WANTED[name])


@dataclass
class DryRunReport:
    """report.json, the page, and the server log: one row per call, with the traffic table that sent it."""

    report: dict[str, Any]
    page: str
    log: pd.DataFrame

    def steady(self, *traffic: str) -> pd.DataFrame:
        """Calls of the steady stage, of some traffic tables or of all."""
        rows = self.log[self.log["scheduled_at_ns"] >= self.report["run"]["steady_from_s"] * 1e9]
        return rows[rows["traffic"].isin(traffic)] if traffic else rows

    def latency(
        self, group: str, metric: str, since: str | None, population: str = "completed"
    ) -> Any:
        """A row of the latency table; None where there is none."""
        rows = [
            row
            for row in self.report["latency"]
            if (row["group"], row["metric"], row["since"], row["population"])
            == (group, metric, since, population)
        ]
        return rows[0] if rows else None


def dry_run_report(tree: dict[str, Any], out: Path) -> DryRunReport:
    """A dry run of a scenario and its report, both read from their files."""
    folder = dry_run_folder(tree, out)
    made = make([folder], out)
    report, page = (
        json.loads(made.json.read_text(encoding="utf-8")),
        made.html.read_text(encoding="utf-8"),
    )
    log, asked = (RunData(folder).table(name) for name in ("target", "requests"))
    start_ns = json.loads((folder / "run.json").read_text(encoding="utf-8"))["start_at_ns"]
    log = log.merge(
        asked[["request_id", "traffic", "scheduled_at_ns"]], on="request_id", validate="many_to_one"
    )
    for name in (
        *(name for name in log if name.endswith("_at_ns") and name != "chunk_sent_at_ns"),
    ):
        log[name] -= start_ns
    chunks = [np.asarray(sent, np.int64) - start_ns for sent in log.pop("chunk_sent_at_ns")]
    log["chunks"] = pd.Series(chunks, log.index, dtype=object)
    log["first_ns"] = [sent[0] if len(sent) else np.nan for sent in chunks]
    log["last_ns"] = [sent[-1] if len(sent) else np.nan for sent in chunks]
    return DryRunReport(
        report, page, log.sort_values(["scheduled_at_ns", "leg", "attempt"], kind="stable")
    )


def exact(values: Any, p: float) -> float:
    """The ceil(n p)-th smallest, in milliseconds of nanoseconds."""
    ordered = np.sort(np.asarray(values, np.float64))
    return float(ordered[math.ceil(len(ordered) * p - 1e-9) - 1]) / 1e6
