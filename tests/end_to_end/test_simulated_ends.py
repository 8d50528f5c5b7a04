"""Answers of every kind from the simulated endpoint: a real run and a dry run class each of them alike.

Both meet the same endpoint: its draws depend on the seed and the call, not on the run.
"""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pandas as pd
import pytest
from run_folders.run_data import RunData
from starting.command import run_scenarios

pytestmark = pytest.mark.slow

KEY = ["request_id", "leg", "attempt"]
SCENARIO = """
description = "Answers of every kind"
[target]
model = "tiny"
protocol = "PROTOCOL"
[arrival]
process = "constant"
rate_per_s = 40.0
[stages]
duration_s = 5.0
warmup_s = 0.0
[traffic.chat]
prompt_tokens = 100
output_tokens = 12
[traffic.whole]
prompt_tokens = 100
output_tokens = 12
stream = false
weight = 0.3
[slo.complete]
metric = "complete"
min = 0.2
[simulated]
ttft_ms = 20.0
chunk_gap_ms = 2.0
[simulated.natural]
share = 0.4
tokens = 8
sigma = 0.3
[simulated.faults]
refused = {kind = "refused", share = 0.1, at_chunk = 1}
filtered = {kind = "filtered", share = 0.08, at_chunk = 2}
aborted = {kind = "aborted", share = 0.08, at_chunk = 2}
silent = {kind = "no_finish_reason", share = 0.08, at_chunk = 2}
short = {kind = "short", share = 0.1, at_chunk = 2}
overloaded = {kind = "error_event", share = 0.1, status = 529}
limited = {kind = "error_event", share = 0.06, status = 429, shape = "flat"}
failed = {kind = "error_event", share = 0.06, status = 500, shape = "field"}
broken = {kind = "error_event", share = 0.06, status = 529, shape = "chunk", at_chunk = 3}
[simulated.served]
service_tier = "priority"
fallback = 0.2
[simulated.search]
share = 0.2
seconds = 0.05
"""
STATUS_CLASSES = {429: "rate_limited", 500: "server_error", 503: "overloaded", 529: "overloaded"}
ENDS = {
    "refused": "refused", "filtered": "filtered", "aborted": "aborted", "no_finish_reason": "aborted", "short": "cut",
}  # fmt: skip
EQUAL = (
    "ended", "status", "error_type", "error_class", "stop_reason", "model", "output_tokens", "chunks", "usage_marks",
    "tolerated", "not_understood", "service_tier", "fallback", "server_tool_calls", "stop_details",
)  # fmt: skip
SENT = ("status", "fault", "error_status", "stop_reason", "output_tokens")
Runs = dict[tuple[str, str], RunData]


@pytest.fixture(scope="module")
def runs(tmp_path_factory: pytest.TempPathFactory) -> Runs:
    """A real and a dry run of each protocol."""
    folder = tmp_path_factory.mktemp("ends")
    protocols = ("anthropic", "openai")
    files = []
    for protocol in protocols:
        path = folder / f"{protocol}.toml"
        path.write_text(SCENARIO.replace("PROTOCOL", protocol), encoding="utf-8")
        files.append(str(path))
    found: Runs = {}
    for form, options in (("real", ()), ("dry", ("--dry-run",))):
        reports, _ = run_scenarios(files, "--seed=3", *options, out=folder / form, timeout_s=120)
        for protocol, report in zip(protocols, reports, strict=True):
            found[protocol, form] = RunData(Path(report["run_dir"]))
    return found


def rows(run: RunData, table: str) -> pd.DataFrame:
    """Rows of the run itself, by their call."""
    found = run.table(table)
    return found[found.request_id >= 0].set_index(KEY).sort_index()


def expected_class(call: Any) -> str:
    """The class of a call by the server log alone."""
    is_broken = call.error_status > 0
    if is_broken and len(call.chunk_sent_at_ns):
        return "stream_error"
    if is_broken:
        return STATUS_CLASSES[int(call.error_status)]
    return ENDS.get(call.fault, "ok")


@pytest.mark.parametrize("protocol", ["anthropic", "openai"])
@pytest.mark.parametrize("form", ["real", "dry"])
def test_every_call_has_the_class_that_the_server_log_gives_it(runs, protocol, form):
    attempts = rows(runs[protocol, form], "attempts")
    log = rows(runs[protocol, form], "target")
    expected = [expected_class(call) for call in log.itertuples()]

    assert len(set(expected)) == 9
    assert attempts.ended.tolist() == expected


@pytest.mark.parametrize("protocol", ["anthropic", "openai"])
def test_a_dry_run_has_what_the_real_one_has(runs, protocol):
    real, dry = (rows(runs[protocol, form], "attempts") for form in ("real", "dry"))

    assert real.index.equals(dry.index)
    for column in EQUAL:
        pd.testing.assert_series_equal(real[column], dry[column], check_dtype=False, obj=column)
    sent, dry_sent = (rows(runs[protocol, form], "target") for form in ("real", "dry"))
    for column in SENT:
        pd.testing.assert_series_equal(
            sent[column], dry_sent[column], check_dtype=False, obj=column
        )


def test_errors_inside_a_200_are_known_by_the_server_log(runs):
    log = rows(runs["anthropic", "real"], "target")
    in_band = log[(log.status == 200) & (log.error_status > 0)]

    assert set(in_band.error_status) == {429, 500, 529}
    assert set(in_band.fault) == {"error_event"}
