"""Streams that are cut at random and resumed, in real runs and in dry runs, against the endpoint's log.

Rule: what the endpoint did wrong, as planted, is in its log; times are compared with those of the same run.
"""

from __future__ import annotations

import json
from pathlib import Path

import numpy as np
import pandas as pd
import pytest
from run_folders.run_data import RunData, RunRows, assert_conserved
from starting.command import run_scenarios

pytestmark = pytest.mark.slow

TOKENS, BYTES = 40, 4
DAMAGE = {"ignored": "stream_restarted", "repeated": "events_repeated", "skipped": "events_skipped"}
REAL_AND_DRY = pytest.mark.parametrize("dry", [False, True], ids=["real", "dry run"])


def ran(out: Path, *sets: str, dry: bool) -> RunRows:
    load = ("arrival.rate_per_s=40", "stages.duration_s=3", "stages.warmup_s=0", *sets)
    changes = [f"--set={one}" for one in load]
    (report,), _ = run_scenarios(
        ["resume"], *changes, *(["--dry-run"] if dry else []), out=out, timeout_s=120
    )
    return RunRows(RunData(Path(report["run_dir"])))


def log_of(rows: RunRows) -> pd.DataFrame:
    log = rows.run.table("target")
    return log[log.request_id >= 0].sort_values(["request_id", "attempt"])


@REAL_AND_DRY
def test_no_character_is_lost_or_doubled_and_the_time_to_resume_is_that_of_the_log(
    tmp_path, dry, full_size
):
    rows = ran(tmp_path, *(["stages.duration_s=6"] if full_size else []), dry=dry)
    requests, attempts, log = rows.requests, rows.attempts, log_of(rows)

    assert_conserved(rows.run)
    assert set(requests.ended) == {"ok"}
    assert (attempts.cause == "resume").sum() > len(requests) > (200 if full_size else 90)
    chunks = rows.run.table("chunks")
    chunks = chunks[chunks.request_id >= 0]
    assert set(chunks.groupby("request_id").chars.sum()) == {TOKENS * BYTES}
    assert set(chunks.groupby("request_id").size()) == {TOKENS}
    # Every connection goes on behind what had come: the endpoint may have sent more, which was lost on the way.
    assert (log.groupby("request_id").output_tokens.sum() >= TOKENS).all()

    resumed = log[log.attempt > 0].set_index(["request_id", "attempt"])
    calls = attempts.set_index(["request_id", "attempt"])
    first = resumed.chunk_sent_at_ns.map(lambda sent: sent[0] if len(sent) else None)
    # Where nothing was left, the end mark is what came.
    first = first.fillna(resumed.ended_at_ns[calls.ended.reindex(resumed.index) == "ok"]).dropna()
    ended = calls.ended_at_ns
    before = pd.Series(
        [ended[request, attempt - 1] for request, attempt in first.index], first.index
    )
    logged = (first - before).to_numpy(np.float64)
    (found,) = json.loads(
        (rows.run.path.parents[1] / "reports" / rows.run.path.name / "report.json").read_text()
    )["transports"]
    assert found["outcomes"] == {"complete": len(requests)}
    for quantile, share in zip(found["times"], (0.5, 0.95), strict=True):
        expected = np.quantile(logged, share, method="inverted_cdf") / 1e6
        assert expected * 0.99 <= quantile["value"] < expected * 1.3


@REAL_AND_DRY
def test_a_target_that_does_not_resume_where_it_was_cut_is_found_out(tmp_path, dry):
    faults = (f"simulated.resumption.{kind}=0.2" for kind in DAMAGE)
    rows = ran(
        tmp_path,
        *faults,
        "traffic.questions.resume.cuts=1",
        "simulated.faults.broken.share=0",
        dry=dry,
    )
    log, ends = log_of(rows), rows.requests.set_index("request_id").ended

    assert_conserved(rows.run)
    planted = log.dropna(subset="fault").set_index("request_id").fault
    last = (
        rows.attempts.sort_values("attempt")
        .drop_duplicates("request_id", keep="last")
        .set_index("request_id")
    )
    assert set(planted) == set(DAMAGE)
    sent = log.drop_duplicates("request_id", keep="last").set_index("request_id").output_tokens
    for request, fault in planted.items():
        kinds = {DAMAGE[str(fault)]}
        if sent[request] == TOKENS:  # three events before the third are the beginning
            kinds.add(DAMAGE["ignored"])
        assert last.error_type[request] in kinds, (request, fault)
        assert ends[request] == "stream_error"
    assert set(ends.drop(planted.index)) == {"ok"}
