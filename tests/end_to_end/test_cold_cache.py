"""Two runs in a row at a target that caches by itself: the second is as cold as the first, and where it is not, it says so."""

from __future__ import annotations

import json

import pytest

PROMPT_TOKENS = 600
TRAFFIC = ("--rate=15", "--duration=3", "--set=stages.warmup_s=0", f"--set=traffic.chat.prompt_tokens={PROMPT_TOKENS}", "--set=traffic.chat.output_tokens=4")  # fmt: skip


def report_of(start, url: str, *more: str, into: str) -> dict:
    ended = start("run", "streaming", f"--target={url}", *TRAFFIC, *more, "--json", into=into).finish()
    return {**json.loads((ended.report / "report.json").read_text()), "run": ended.run}


def why(report: dict) -> list[str]:
    return [one["text"] for one in report["verdict"]["reasons"] if one["check"] == "cold_cache"]


@pytest.mark.parametrize("protocol", ["openai", "anthropic"])
def test_a_second_run_is_as_cold_as_the_first_unless_prompts_repeat(start, endpoint, protocol, full_size):
    if protocol == "anthropic" and not full_size:
        pytest.skip("the same by the other protocol, in `make verify`")
    url = endpoint("--profile=tiny", "--set=cache.mode=automatic", "--set=cache.minimum_tokens=64")
    same = (f"--protocol={protocol}", "--set=repeat_prompts=true")
    first = report_of(start, url, *same, into="first")
    cold = report_of(start, url, same[0], into="cold")  # with the same seed
    second = report_of(start, url, *same, into="second")

    assert (why(first), why(cold)) == ([], [])
    (text,) = why(second)
    assert "of the prompt tokens" in text
    rows = cold["run"].table("attempts")
    assert (rows.cache_read_input_tokens.fillna(0) <= 64).all()
    rows = second["run"].table("attempts")
    rows = rows[rows.stage != "preflight"]
    read = rows.cache_read_input_tokens.sum()
    whole = read + rows.input_tokens.sum() + rows.cache_creation_input_tokens.fillna(0).sum()
    assert read / whole > 0.9
    assert f"({read:,.0f} of {whole:,.0f})" in text
