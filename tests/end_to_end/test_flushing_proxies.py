"""Proxies that pass a stream on by time, by chunks or by bytes: named in the report, and nothing of them laid to the client."""

from __future__ import annotations

import contextlib
import json
import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path

import pytest
from starting.command import run_scenarios, variant
from starting.endpoint import endpoint

pytestmark = pytest.mark.slow

PROXY = Path(__file__).with_name("flushing_proxy.py")
LOAD = ("arrival.rate_per_s=10", "stages.duration_s=6", "stages.warmup_s=0")


@contextlib.contextmanager
def flushing(url: str, mode: str) -> Iterator[str]:
    """Yield the URL of a proxy before an endpoint."""
    command = [sys.executable, str(PROXY), url, mode]
    with subprocess.Popen(command, stdout=subprocess.PIPE, text=True) as process:
        try:
            assert process.stdout is not None
            yield process.stdout.readline().strip()
        finally:
            process.kill()


@pytest.mark.parametrize(
    ("mode", "protocol", "pace_ms", "tokens"),
    [
        ("every:50", "anthropic", 20, 40),
        ("every:20", "openai", 8, 120),
        ("every:100", "anthropic", 30, 16),
        ("after:50", "openai", 20, 60),
        ("chunks:2-3", "anthropic", 15, 40),
        ("chunks:2-2", "openai", 40, 20),
        ("bytes:4096", "openai", 10, 150),
    ],
)
def test_a_proxy_that_passes_on_in_pieces_is_named(tmp_path, mode, protocol, pace_ms, tokens):
    with contextlib.ExitStack() as stack:
        options = ("--set=ttft_ms=100", f"--set=chunk_gap_ms={pace_ms}")
        served = stack.enter_context(endpoint(*options, cwd=tmp_path))
        url = stack.enter_context(flushing(served.url, mode))
        sets = (
            f"target.url={url}",
            f"target.protocol={protocol}",
            f"traffic.chat.output_tokens={tokens}",
        )
        file = variant(tmp_path, "streaming", *LOAD, *sets)
        (report,), _ = run_scenarios([file], out=tmp_path, timeout_s=120)
    name = Path(report["run_dir"]).name
    report = json.loads((tmp_path / "reports" / name / "report.json").read_text())
    missing = report["tpot_missing"]
    reasons = {reason["reason"]: reason["answers"] for reason in missing["reasons"]}
    shown = [
        row["percentiles"]["p50"] for row in report["latency"] if row["metric"].startswith("tpot")
    ]
    median = next(error for error in report["client_error"] if error["metric"] == "chunk_gap")

    # A busy machine reads the first piece of some answers late.
    assert set(reasons) <= {"buffered", "read_late", "at_once"}
    assert missing["answers"] >= 0.95 * missing["of"] > 40
    assert reasons["buffered"] > 0.5 * missing["of"]
    assert (
        all(percentile["value"] is None for percentile in shown)
        or missing["answers"] < missing["of"]
    )
    assert median["quantile"] != 0.5 or median["verdict"] == "VALID"
