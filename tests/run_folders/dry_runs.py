"""Rehearsals as the analysis sees them: every number of a report beside the truth that the endpoint kept."""

from __future__ import annotations

from dataclasses import asdict, dataclass
from typing import Any

import pandas as pd
import pyarrow as pa
from dry_run.in_memory import UNBOUNDED, rehearse, scenario_of

from tailgauge.rows.schema import columns
from tailgauge_analysis.load import frames, parquet
from tailgauge_analysis.load.frames import Frames


@dataclass
class Rehearsed:
    """Frames of a rehearsal, and the endpoint's own rows in `truth` (every column)."""

    frames: Frames
    truth: pd.DataFrame


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


def rehearsed(tree: dict[str, Any], *, without_headers: bool = False) -> Rehearsed:
    """Rehearse a scenario in memory; its rows go the way of the loader."""
    kept = rehearse(tree)
    for row in kept.attempts if without_headers else ():
        row.rate_limit_headers = None
    requests, attempts = (
        frames._frame(frames._REDUCED.get(name, frames._as_it_is)(_table(name, rows)), 0)
        for name, rows in (("requests", kept.requests), ("attempts", kept.attempts))
    )
    scenario = scenario_of(tree).model_dump(mode="json")
    run = {"dry_run": True, "start_at_ns": 0, "started_at": None, "scenario": scenario}
    nothing = pd.DataFrame()
    read = Frames(run, requests, attempts, nothing, nothing, nothing, {}, ())
    return Rehearsed(read, pd.DataFrame([asdict(row) for row in kept.truths]))


def _table(name: str, rows: list[Any]) -> pa.Table:
    kinds = {column.name: parquet._ARROW[column.kind] for column in columns(name)}
    return pa.table({
        wanted: pa.array([getattr(row, wanted) for row in rows], kinds[wanted]) for wanted in frames.WANTED[name]
    })  # fmt: skip
