"""A run with a limit ends by itself, cleanly, and never exceeds it; what comes before the first request is counted."""

from __future__ import annotations

from pathlib import Path

import pytest
from run_folders.run_data import assert_conserved
from starting.command import Finished, Start

pytestmark = pytest.mark.slow

LIMIT = 50
SCENARIO = """
description = "more than it may send"
[target]
model = "tiny"
[arrival]
rate_per_s = 60
[stages]
duration_s = 20
[traffic.chat]
pattern = "cached"
prompt_tokens = 60
output_tokens = 8
tags = { tenant = "a" }
[traffic.chat.cache]
system_tokens = 300
prefixes = 3
pre_warm = true
[traffic.chat.hedge]
policy = "immediate"
budget_share = 1
[simulated]
ttft_ms = 60
chunk_gap_ms = 2
[simulated.cache]
mode = "marked"
minimum_tokens = 100
"""


@pytest.fixture
def guarded(start: Start, tmp_path: Path) -> Finished:
    (tmp_path / "mine.toml").write_text(SCENARIO)
    return start(
        "run", str(tmp_path / "mine.toml"), "--workers=2", f"--max-requests={LIMIT}", "--json"
    ).finish(60)


def test_a_limit_of_calls_ends_the_run_and_is_never_exceeded(guarded):
    facts, attempts, server_log = (
        guarded.run.facts,
        guarded.run.table("attempts"),
        guarded.run.table("target"),
    )

    # the run: short, clean, reported
    assert guarded.code in {0, 3, 5}, guarded.stderr
    assert facts["state"] == "guarded"
    assert facts["ended_at_ns"] - facts["start_at_ns"] < 15e9
    assert [w["state"] for w in facts["workers"]] == ["drained", "drained"]
    counts = assert_conserved(guarded.run)
    assert counts["not_reached"] > 0
    assert (guarded.report / "report.html").stat().st_size > 0
    (note,) = [n for n in facts["notes"] if n.startswith("guard.max_requests (50): ")]
    assert f"note: {note}" in guarded.stderr

    # the limit: by the target's own books, hedges, preflight and written prefixes included
    sent = attempts[attempts.sent_at_ns.notna()]
    assert LIMIT - 4 <= len(server_log) <= LIMIT
    assert len(sent) == len(server_log)
    assert (sent.cause == "hedge").sum() > 10
    unsent = attempts[attempts.sent_at_ns.isna()]
    assert (unsent.ended == "cancelled").all()
    assert (unsent.cause == "hedge").all(), "a first call is not begun where there is no room"

    # before the first request: told, tried, written
    assert "expected: " in guarded.stderr
    assert facts["estimate"]["requests"] == counts["scheduled"]
    preflight = (
        guarded.run.table("requests").query("stage == 'preflight'").sort_values("request_id")
    )
    assert preflight.request_id.tolist() == [-5, -4, -3, -2, -1]
    assert facts["tokens_per_word"] == pytest.approx(1.75, abs=0.2), "four bytes a token"
    written = attempts[attempts.request_id.between(-5, -3)]
    assert (written.cache_creation_input_tokens > 250).all()
    answered = attempts[(attempts.request_id >= 0) & (attempts.ended == "ok")]
    assert (answered.cache_read_input_tokens > 250).all(), "every prefix was written before the run"

    # names and tags reach the rows
    assert (guarded.run.requests().tags == '{"tenant": "a"}').all()
