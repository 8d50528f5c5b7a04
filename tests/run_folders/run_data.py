"""A run folder as a test reads it, and the identities that must hold in it."""

from __future__ import annotations

import json
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from functools import cached_property
from pathlib import Path
from typing import Any

import pandas as pd
import pyarrow.parquet as pq


@contextmanager
def edited_run(folder: Path) -> Iterator[dict[str, Any]]:
    """run.json of a folder; what the block changes of it is written."""
    path = folder / "run.json"
    run = json.loads(path.read_text(encoding="utf-8"))
    yield run
    path.write_text(json.dumps(run), encoding="utf-8")


@dataclass(frozen=True)
class RunData:
    """A run folder as a test reads it."""

    path: Path

    @property
    def facts(self) -> dict[str, Any]:
        loaded: dict[str, Any] = json.loads((self.path / "run.json").read_text())
        return loaded

    def table(self, name: str) -> pd.DataFrame:
        parts = [pq.read_table(p) for p in sorted((self.path / name).glob("part-*.parquet"))]
        return pd.concat(
            [part.to_pandas(ignore_metadata=True) for part in parts], ignore_index=True
        )

    def requests(self) -> pd.DataFrame:
        """Request rows without the preflight."""
        rows = self.table("requests")
        return rows[rows.stage != "preflight"]

    def attempts(self) -> pd.DataFrame:
        """Attempt rows without the preflight."""
        rows = self.table("attempts")
        return rows[rows.stage != "preflight"]


@dataclass(frozen=True)
class RunRows:
    """Rows of a run, each table read once and without the preflight."""

    run: RunData

    @cached_property
    def requests(self) -> pd.DataFrame:
        return self.run.requests()

    @cached_property
    def attempts(self) -> pd.DataFrame:
        return self.run.attempts()


def assert_conserved(run: RunData) -> dict[str, Any]:
    """The two identities, in run.json and again in Parquet; returns the counts."""
    counts: dict[str, Any] = run.facts["conservation"]
    assert counts["scheduled"] == sum(
        counts[k] for k in ("dispatched", "client_drop", "not_reached", "lost")
    )
    assert counts["dispatched"] == sum(counts["ended"].values()) + counts["censored"]
    rows = run.requests()
    classes = rows.ended.value_counts().to_dict()
    expected = {
        **counts["ended"],
        "censored": counts["censored"],
        "client_drop": counts["client_drop"],
    }
    assert {k: v for k, v in expected.items() if v} == classes
    assert rows.request_id.is_unique
    return counts
