"""Two runs in a row at a target that caches by itself: the second is as cold as the first, and where it is not, it says so."""

from __future__ import annotations

import json
from pathlib import Path

import pytest
from run_folders.run_data import RunData
from starting.command import run_scenarios, variant

pytestmark = pytest.mark.slow

PROMPT_TOKENS = 600
TRAFFIC = ("--rate=15", "--duration=3", "--set=stages.warmup_s=0", f"--set=traffic.chat.prompt_tokens={PROMPT_TOKENS}", "--set=traffic.chat.output_tokens=4")  # fmt: skip


def report_of(summary: dict) -> dict:
    run = Path(summary["run_dir"])
    report = run.parents[1] / "reports" / run.name / "report.json"
    return {**json.loads(report.read_text()), "run": RunData(run)}


def why(report: dict) -> list[str]:
    return [one["text"] for one in report["verdict"]["reasons"] if one["check"] == "cold_cache"]


@pytest.mark.parametrize("protocol", ["openai", "anthropic"])
def test_a_second_run_is_as_cold_as_the_first_unless_prompts_repeat(tmp_path, endpoint, protocol):
    """One command, so that the seed is the same."""
    url = endpoint("--profile=tiny", "--set=cache.mode=automatic", "--set=cache.minimum_tokens=64")
    same = variant(tmp_path, "streaming", "repeat_prompts=true")
    options = (f"--target={url}", f"--protocol={protocol}", "--seed=1", *TRAFFIC)
    found, _ = run_scenarios([same, "streaming", same], *options, out=tmp_path, timeout_s=120)
    first, cold, second = map(report_of, found)

    assert (why(first), why(cold)) == ([], [])
    (text,) = why(second)
    assert "of the prompt tokens" in text
    rows = cold["run"].table("attempts")
    assert (rows.cache_read_input_tokens.fillna(0) <= 64).all()
    rows = second["run"].attempts()
    read = rows.cache_read_input_tokens.sum()
    whole = read + rows.input_tokens.sum() + rows.cache_creation_input_tokens.fillna(0).sum()
    assert read / whole > 0.9
    assert f"({read:,.0f} of {whole:,.0f})" in text
