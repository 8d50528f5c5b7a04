"""What must be true of a run whatever happened to it: its own books, its rows and the endpoint's log, held together.

Rule: the plan is drawn a second time from what run.json says, and the endpoint's log is the only witness of what was sent.
"""

from __future__ import annotations

from collections import Counter
from dataclasses import dataclass
from typing import Any

import pandas as pd
import pyarrow.parquet as pq
from run_folders.run_data import RunData, assert_conserved

from tailgauge.scenario.model import parse
from tailgauge.schedule.schedule import plan
from tailgauge_analysis.reading.frames import load

TABLES = ("requests", "attempts", "chunks", "health")


def planned(run: RunData) -> dict[int, int]:
    """Request ids of the plan and their times, in ns of the run."""
    scenario = parse(run.facts["scenario"], "run.json")
    schedule = plan(
        scenario.arrival,
        scenario.traffic,
        scenario.stages.duration_s,
        scenario.seed,
        warmup_s=scenario.stages.warmup,
        alternating=scenario.alternating,
    )
    return {
        row.request_id: row.at_ns
        for row in schedule.slice(0, int(scenario.stages.duration_s * 1e9))
    }


def rows_of(run: RunData, table: str) -> pd.DataFrame:
    """A table with the number of the worker whose part each row came from."""
    read = []
    for path in sorted((run.path / table).glob("part-*.parquet")):
        part = pq.read_table(path)
        frame = part.to_pandas(ignore_metadata=True)
        read.append(frame.assign(worker=int(path.name.split("-")[1])))
    return pd.concat(read, ignore_index=True)


@dataclass(frozen=True)
class Books:
    """A run that was audited."""

    run: RunData
    counts: dict[str, Any]
    planned: dict[int, int]
    requests: pd.DataFrame  # rows without the preflight
    attempts: pd.DataFrame
    server_log: pd.DataFrame  # calls that reached the endpoint, without the preflight

    @property
    def notes(self) -> str:
        """What the run says of itself, in one text."""
        return " | ".join(self.run.facts["notes"])

    def entry(self, number: int) -> dict[str, Any]:
        """A worker's entry in run.json."""
        (found,) = [w for w in self.run.facts["workers"] if w["worker"] == number]
        entry: dict[str, Any] = found
        return entry

    def requests_of(self, number: int) -> pd.DataFrame:
        """Rows of one worker, with the second of the run in which each was scheduled."""
        rows = self.requests[self.requests.worker == number]
        return rows.assign(second=rows.request_id.map(self.planned) / 1e9)


def audit(run: RunData, server_log: pd.DataFrame, *, whole: bool = True) -> Books:
    """Hold books, rows and log together. `whole`: nobody was lost, so that every chunk must be there too."""
    counts = assert_conserved(run)
    plan_of_run = planned(run)
    requests, attempts = rows_of(run, "requests"), rows_of(run, "attempts")
    requests, attempts = (
        requests[requests.stage != "preflight"],
        attempts[attempts.stage != "preflight"],
    )
    server_log = server_log[server_log.request_id >= 0]  # below are those of the preflight
    sent_once(run, server_log, plan_of_run)

    assert counts["scheduled"] == len(plan_of_run)
    assert set(requests.request_id) <= set(plan_of_run)
    assert len(plan_of_run) - len(requests) == counts["lost"] + counts["not_reached"]
    summary = sum(m["requests"] for w in run.facts["workers"] for m in w["missing"])
    assert counts["lost"] <= summary <= counts["lost"] + counts["not_reached"], (
        "every missing second is stated"
    )
    unseen = set(server_log.request_id) - set(requests.request_id)
    assert len(unseen) <= counts["lost"], "what was sent has a row, or is counted as lost"
    answered = set(attempts[attempts.status.notna()].request_id)
    assert answered <= set(server_log.request_id)
    chunks_agree(attempts, rows_of(run, "chunks"), whole=whole)
    frames = load([run.path])
    assert len(frames.requests[frames.requests.stage != "preflight"]) == len(requests)
    return Books(run, counts, plan_of_run, requests, attempts, server_log)


def sent_once(run: RunData, server_log: pd.DataFrame, plan_of_run: dict[int, int]) -> None:
    """Nothing reached the endpoint twice, or without having been planned."""
    doubled = [name for name, count in Counter(server_log.request_id).items() if count > 1]
    assert doubled == [], f"{run.path.name}: sent twice"
    assert server_log.client_request_id.is_unique
    assert set(server_log.request_id) <= set(plan_of_run)


def chunks_agree(attempts: pd.DataFrame, chunks: pd.DataFrame, *, whole: bool) -> None:
    """Each attempt has as many chunk rows as it says; of a worker that was lost, at most."""
    keys = ["worker", "request_id", "leg", "attempt"]
    held = chunks.groupby(keys).size()
    output = attempts.set_index(keys).chunks.astype("int64")
    here = held.reindex(output.index).fillna(0).astype("int64")
    assert (here == output).all() if whole else (here <= output).all()
