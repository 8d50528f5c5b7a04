"""Three calls in ten are overloaded inside a 200: a real run, its report and its objectives against the server log."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import pandas as pd
import pytest
from run_folders.run_data import RunData
from starting.command import run_scenarios, variant

pytestmark = pytest.mark.slow

KEY = ["request_id", "leg", "attempt"]
BUSY = tuple(
    f"simulated.faults.busy.{key}={value}"
    for key, value in (("kind", "error_event"), ("share", 0.3), ("status", 529))
)
LOAD = (
    "arrival.rate_per_s=30", "stages.duration_s=5", "stages.warmup_s=0", "simulated.ttft_ms=150",
    "simulated.chunk_gap_ms=2", "traffic.chat.output_tokens=5", "slo.complete.metric=complete", "slo.complete.min=0.2",
    "slo.overloads.metric=529_rate", "slo.overloads.max=0.05",
)  # fmt: skip
POLITE = ("policy=polite", "max_retries=3", "budget_share=1.0", "budget_burst=1000", "base_s=0.05")
HEDGED = (
    "policy=fixed",
    "delay_ms=20",
    "budget_share=1.0",
    "budget_burst=1000",
    "throttle_tokens=10",
)


@pytest.fixture(scope="module")
def results(tmp_path_factory: pytest.TempPathFactory) -> dict[str, tuple[RunData, dict[str, Any]]]:
    """A run with polite retries and one with hedges."""
    folder = tmp_path_factory.mktemp("in_band")
    policies = {
        "polite": [f"traffic.chat.retry.{text}" for text in POLITE],
        "hedged": [
            "traffic.chat.pattern=hedged",
            *(f"traffic.chat.hedge.{text}" for text in HEDGED),
        ],
    }
    files = [
        variant(folder, "streaming", *LOAD, *BUSY, *sets, name=name)
        for name, sets in policies.items()
    ]
    reports, _ = run_scenarios(files, "--seed=4", out=folder / "out", timeout_s=180)
    found = {}
    for name, printed in zip(policies, reports, strict=True):
        run = Path(printed["run_dir"])
        report = json.loads((folder / "out" / "reports" / run.name / "report.json").read_text())
        found[name] = (RunData(run), report)
    return found


def rows(run: RunData, table: str) -> pd.DataFrame:
    found = run.table(table)
    return found[found.request_id >= 0].set_index(KEY).sort_index()


def overloads(run: RunData) -> pd.Index:
    log = rows(run, "target")
    return log[log.error_status == 529].index


def test_polite_retries_each_of_them(results):
    run, _ = results["polite"]
    attempts = rows(run, "attempts")
    refused = overloads(run)
    retries = attempts[attempts.cause == "retry"].reset_index()
    retried = set(zip(retries.request_id, retries.leg, retries.of_attempt, strict=True))

    assert len(refused) > 30
    assert set(attempts[attempts.ended == "overloaded"].index) == set(refused)
    assert set(attempts[attempts.ended == "overloaded"].status) == {200}
    assert retried == {key for key in refused if key[2] < 3}


def test_they_are_in_the_529_share_and_its_objective(results):
    run, report = results["polite"]
    share = len(overloads(run)) / len(rows(run, "target"))
    objective = next(one for one in report["slo"] if one["metric"] == "529_rate")

    assert objective["value"] == pytest.approx(share, abs=1e-9)
    assert objective["outcome"] == "fail"


def test_they_hold_hedges_back(results):
    run, _ = results["hedged"]
    requests = run.requests()
    attempts = rows(run, "attempts")

    assert set(attempts[attempts.ended == "overloaded"].index) == set(overloads(run))
    assert (requests.hedge_held == "throttle").mean() > 0.4
    assert (attempts.cause == "hedge").sum() < 0.3 * len(requests)
