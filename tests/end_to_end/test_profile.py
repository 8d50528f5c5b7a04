"""A whole run on an engine profile: every attempt has its row in the server log."""

from __future__ import annotations

import json
from pathlib import Path

import pyarrow.parquet as pq
import pytest
from starting.command import run_scenarios

pytestmark = pytest.mark.at_full_size


def test_a_run_on_a_profile_conserves_requests_and_joins_the_server_log(tmp_path: Path) -> None:
    line = [
        "--rate=8", "--duration=3",
        "--set=simulated.profile=haiku", "--set=simulated.limits.rpm=6000", "--set=simulated.content.text_blocks=2",
        "--set=simulated.faults.odd.kind=cut", "--set=simulated.faults.odd.share=0.2",
        "--set=simulated.faults.odd.at_chunk=3",
    ]  # fmt: skip
    [report], _ = run_scenarios(["streaming"], *line, out=tmp_path, timeout_s=60)
    folder = Path(report["run_dir"])
    facts = json.loads((folder / "run.json").read_text())
    assert facts["scenario"]["simulated"]["profile"] == "haiku"

    def rows(table: str) -> list[dict[str, object]]:
        return [row for part in sorted((folder / table).glob("part-*.parquet")) for row in pq.read_table(part).to_pylist()]  # fmt: skip

    attempts = {(a["request_id"], a["leg"], a["attempt"]): a for a in rows("attempts")}
    server_log = {(t["request_id"], t["leg"], t["attempt"]): t for t in rows("target")}
    assert len(attempts) >= 10
    assert attempts.keys() == server_log.keys()
    ended = {"cut": "truncated", None: "ok"}
    for key, attempt in attempts.items():
        summary = server_log[key]
        assert attempt["ended"] == ended[summary["fault"]]
        assert attempt["chunks"] == len(summary["chunk_sent_at_ns"])
        assert attempt["first_content_at_ns"] >= summary["chunk_sent_at_ns"][0]
    assert {a["ended"] for a in attempts.values()} == {"ok", "truncated"}
