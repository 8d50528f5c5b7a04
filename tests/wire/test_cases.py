"""Thirty streams of public bug reports through `tailgauge run`: what the rows, the report and the exit code say of each.

One run has the cases of a protocol side by side, each as a traffic table; what is sent stands in `cases.py`.
"""

from __future__ import annotations

import json
import re
from collections import Counter
from collections.abc import Callable
from dataclasses import dataclass
from functools import cached_property
from itertools import pairwise
from pathlib import Path
from typing import Any

import pandas as pd
import pytest
from run_folders.run_data import RunData, RunRows
from starting.command import run_command
from wire.answering import Received, target
from wire.cases import CHAT, IDLE, LIMITS, MESSAGES, REFUSALS, WHOLE, Case, scenario

pytestmark = pytest.mark.patient

LIMIT_S = 120
NO_KEYS = {"ANTHROPIC_API_KEY": "", "OPENAI_API_KEY": "", "NO_COLOR": "1"}


@dataclass(frozen=True)
class Result:
    """What a run left behind, and what its target has seen."""

    code: int
    printed: str
    folder: Path
    seen: Callable[[str], list[Received]]

    @cached_property
    def run(self) -> RunRows:
        (folder,) = (self.folder / "runs").iterdir()
        return RunRows(RunData(folder))

    @cached_property
    def report(self) -> str:
        """Return the text of the report, without the marks that Markdown needs."""
        (folder,) = (self.folder / "reports").iterdir()
        return (folder / "report.md").read_text(encoding="utf-8").replace("\\", "")

    @property
    def facts(self) -> dict[str, Any]:
        """Return report.json."""
        (folder,) = (self.folder / "reports").iterdir()
        facts: dict[str, Any] = json.loads((folder / "report.json").read_text(encoding="utf-8"))
        return facts

    def of(self, case: str) -> pd.DataFrame:
        """Return the attempts of a case; at least two were made."""
        rows = self.run.attempts[self.run.attempts.traffic == case]
        assert len(rows) >= 2, f"{case}: {len(rows)} attempts"
        return rows

    def requests(self, case: str) -> pd.DataFrame:
        return self.run.requests[self.run.requests.traffic == case]

    def waits_s(self, case: str) -> list[float]:
        """Return the waits between attempts of the same request, as the target saw them."""
        times: dict[str, list[float]] = {}
        for seen in self.seen(case):
            times.setdefault(seen.key, []).append(seen.at_s)
        return [later - sooner for at_s in times.values() for sooner, later in pairwise(at_s)]


def ran(
    folder: Path, protocol: str, cases: dict[str, Case], *, rate: float, seconds: float
) -> Result:
    """Run all cases of a protocol at once."""
    like_all = frozenset(name for name, case in cases.items() if case.is_like_all)
    answers = {name: case.answer for name, case in cases.items()}
    with target(protocol, answers, like_all) as serving:
        file = folder / "scenario.toml"
        file.write_text(
            scenario(protocol, serving.url, cases, rate=rate, seconds=seconds), encoding="utf-8"
        )
        line = ["tailgauge", "run", file, "--seed=11", f"--out={folder}"]
        done = run_command(line, LIMIT_S, env=NO_KEYS)
        return Result(done.returncode, done.stdout + done.stderr, folder, serving.of)


@pytest.fixture(scope="module")
def chat(tmp_path_factory) -> Result:
    return ran(tmp_path_factory.mktemp("chat"), "openai", CHAT, rate=30, seconds=4)


@pytest.fixture(scope="module")
def messages(tmp_path_factory) -> Result:
    return ran(tmp_path_factory.mktemp("messages"), "anthropic", MESSAGES, rate=30, seconds=4)


@pytest.fixture(scope="module")
def healthy(tmp_path_factory) -> Result:
    """A target that closes each connection before the next request is due."""
    cases = {"idle": IDLE, "limits": LIMITS}
    return ran(tmp_path_factory.mktemp("healthy"), "openai", cases, rate=9, seconds=3)


def distinct(column: pd.Series) -> set[Any]:
    """Return the values of a column; missing ones as None."""
    return {None if pd.isna(value) else value for value in column}


# --- how answers end --------------------------------------------------------------------------------------------


def test_01_an_answer_that_the_engine_aborts_is_no_success(chat):
    rows = chat.of("abort")
    aborted = rows[rows.stop_reason == "abort"]

    assert len(aborted) > 0
    assert distinct(aborted.ended) == {"aborted"}
    assert distinct(rows[rows.stop_reason == "stop"].ended) == {"ok"}
    assert "abort" in chat.report


def test_02_an_overload_inside_a_200_is_an_overload_and_is_retried(messages):
    rows = messages.of("overload")
    requests = messages.requests("overload")

    assert distinct(rows[rows.attempt == 0].ended) == {"overloaded"}
    assert distinct(rows[rows.attempt == 0].error_type) == {"overloaded_error"}
    assert distinct(requests.ended) == {"ok"}
    assert len(rows) == 2 * len(requests)


def test_12_an_sse_field_named_error_is_one_and_its_text_is_kept(chat):
    rows = chat.of("error_field")

    assert distinct(rows[rows.chunks == 0].ended) == {"client_error"}
    assert distinct(rows[rows.chunks > 0].ended) == {"stream_error"}
    assert rows.error_body.str.contains("context size").all()


@pytest.mark.slow
def test_21_refusals_are_no_success(tmp_path):
    result = ran(tmp_path, "anthropic", {"refusals": REFUSALS}, rate=10, seconds=2)
    rows = result.of("refusals")
    lines = result.report.splitlines()
    first_lines = "\n".join(lines[:12])

    assert Counter(rows.ended) == {"ok": len(rows) / 2, "refused": len(rows) / 2}
    assert distinct(rows[rows.ended == "refused"].stop_reason) == {"refusal"}
    assert rows[rows.ended == "refused"].stop_details.str.contains("cyber").all()
    assert re.search(r"50% of \d+ requests were refused", first_lines)
    verdict = result.facts["verdict"]["status"]  # INVALID on a busy machine
    assert result.code == (3 if verdict == "INVALID" else 1)


def test_25_an_error_in_a_chunk_with_choices_breaks_the_stream(chat):
    rows = chat.of("openrouter_error")

    assert distinct(rows.ended) == {"stream_error"}
    assert distinct(rows.error_class) == {"server_error"}
    assert rows.error_body.str.contains("disconnected").all()


def test_26_an_error_object_before_done_is_no_success(chat):
    rows = chat.of("engine_died")

    assert distinct(rows[rows.chunks == 0].ended) == {"server_error"}
    assert distinct(rows[rows.chunks > 0].ended) == {"stream_error"}
    assert chat.code in {1, 3}  # 3: this machine was too busy to measure


def test_45_three_overloads_in_ten_are_in_the_529_share(messages):
    rows = messages.of("three_in_ten")
    refused = [seen for seen in messages.seen("three_in_ten") if seen.number % 10 < 3]

    assert (rows.ended == "overloaded").sum() == len(refused) > 2
    assert distinct(messages.requests("three_in_ten").ended) == {"ok"}


# --- what is read as the SDK reads it ---------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("case", "name"),
    [
        ("heartbeat", "empty_data"),
        ("content_list", "content_list"),
        ("tools_without_index", "tool_without_index"),
    ],
)
def test_03_06_10_a_dialect_is_read_and_noted(chat, case, name):
    rows = chat.of(case)

    assert distinct(rows.ended) == {"ok"}
    assert distinct(rows.tolerated) == {name}


def test_04_done_behind_the_end_of_messages_is_read_and_noted_once(messages):
    rows = messages.of("done_behind")
    noted = [line for line in messages.report.splitlines() if "[DONE] after message_stop" in line]

    assert distinct(rows.ended) == {"ok"}
    assert distinct(rows.tolerated) == {"done_after_stop"}
    assert len(noted) == 1


def test_06_29_thinking_is_seen_in_every_spelling(chat):
    for case in ("content_list", "reasoning_details"):
        rows = chat.of(case)
        thought = rows.first_thinking_at_ns - rows.sent_at_ns

        assert distinct(rows.ended) == {"ok"}
        assert rows.first_thinking_at_ns.notna().all()
        assert (rows.first_content_at_ns - rows.sent_at_ns <= thought).all()
        assert (rows.first_text_at_ns >= rows.first_thinking_at_ns).all()  # equal in one read


def test_10_a_tool_call_is_ready_with_its_first_and_only_piece(chat):
    rows = chat.of("tools_without_index")

    assert (rows.tool_ready_at_ns == rows.first_tool_json_at_ns).all()
    assert {tuple(json.loads(text)) for text in rows.tool_ready} == {("a", "b")}


def test_32_characters_may_be_split_over_reads_and_text_may_say_done(chat):
    rows = chat.of("split_characters")
    chunks = chat.run.run.table("chunks")
    chunks = chunks[chunks.request_id.isin(rows.request_id)]

    assert distinct(rows.ended) == {"ok"}
    assert distinct(chunks.chars) == {4, 16}


def test_33_an_end_without_a_blank_line_is_one(chat):
    assert distinct(chat.of("no_blank_line").ended) == {"ok"}


# --- counts -----------------------------------------------------------------------------------------------------

COUNTS = ("input_tokens", "cache_read_input_tokens", "cache_creation_input_tokens", "output_tokens")
COUNTED = {  # of the case: the four counts
    "deepseek_hits": (104, 896, None, 8),
    "cache_writes": (100, 0, 4200, 8),
    "usage_on_each": (100, None, None, 14),
    "zeros_at_the_end": (1500, 1200, 0, 8),
    "zeros_at_the_start": (4522, None, 4511, 8),
    "no_usage": (30, None, None, None),
}


@pytest.mark.parametrize("case", COUNTED)
def test_07_08_18_19_20_34_counts_are_those_that_the_target_means(chat, messages, case):
    rows = (chat if case in CHAT else messages).of(case)

    assert distinct(rows.ended) == {"ok"}
    assert {name: distinct(rows[name]) for name in COUNTS} == {
        name: {count} for name, count in zip(COUNTS, COUNTED[case], strict=True)
    }


def test_08_cache_breakpoints_are_marked_in_every_request(chat):
    bodies = [json.dumps(seen.body) for seen in chat.seen("cache_writes")]

    assert len(bodies) >= 2
    assert [body for body in bodies if "prompt_cache_breakpoint" not in body] == []


def test_34_usages_of_chunks_make_no_chunks(chat):
    assert distinct(chat.of("usage_on_each").chunks) == {14}


def test_23_a_fallback_is_named_with_the_model_that_served(messages):
    rows = messages.of("fallback")

    assert distinct(rows.ended) == {"ok"}
    assert distinct(rows.model) == {"claude-opus-4-8"}
    assert distinct(rows.fallback) == {"claude-fable-5"}
    assert {len(json.loads(text)) for text in rows.iterations} == {2}
    assert "claude-opus-4-8" in messages.report


def test_39_how_it_was_served_and_why_the_cache_missed_is_kept(messages):
    rows = messages.of("served_as")

    assert distinct(rows.service_tier) == {"standard", "priority"}
    assert (distinct(rows.speed), distinct(rows.inference_geo)) == ({"fast"}, {"us"})
    assert distinct(rows.cache_miss_reason) == {"tools_changed"}
    assert distinct(rows.cache_missed_input_tokens) == {4096}
    assert "priority" in messages.report
    assert "tools_changed" in messages.report or "tools changed" in messages.report


# --- limits and retries -----------------------------------------------------------------------------------------


def test_14_azures_wait_in_milliseconds_is_waited(chat):
    rows = chat.of("azure_429")
    limited = rows[rows.status == 429]

    assert limited.retry_after_s.tolist() == pytest.approx([0.7] * len(limited))
    assert distinct(limited.retry_after_from) == {"retry-after-ms"}
    assert limited.rate_limit_headers.str.contains("x-rate-limit-reset-tokens").all()
    assert min(chat.waits_s("azure_429")) >= 0.7


@pytest.mark.slow
def test_15_limits_a_minute_are_in_the_report(healthy):
    rows = [
        line
        for line in healthy.report.splitlines()
        if line.startswith(("| requests |", "| tokens |"))
    ]

    assert healthy.of("limits").rate_limit_headers.notna().all()
    assert distinct(healthy.of("limits").not_understood) == {None}
    assert any("72" in row for row in rows if row.startswith("| requests |"))
    assert any("50,000" in row for row in rows if row.startswith("| tokens |"))


def test_17_a_429_without_retry_after_is_retried_behind_the_reset(messages):
    rows = messages.of("reset_only")
    limited = rows[rows.status == 429]

    assert distinct(limited.limit_kind) == {"requests"}
    # The reset is two whole seconds ahead when the target answers; a busy machine reads it later.
    assert limited.retry_after_s.between(0.0, 2.1).all()
    assert limited.retry_after_from.eq("anthropic-ratelimit-requests-reset").all()
    assert min(messages.waits_s("reset_only")) > 0.9


def test_40_what_the_sdks_retry_is_retried(messages):
    rows = messages.of("for_now")

    assert distinct(rows[rows.attempt == 0].status) == {408, 409}
    assert distinct(messages.requests("for_now").ended) == {"ok"}


# --- connections, bodies and traces -----------------------------------------------------------------------------


def test_27_a_request_on_a_connection_that_is_just_closed_is_no_failure(healthy):
    assert distinct(healthy.of("idle").ended) == {"ok"}


def test_30_a_json_body_with_done_behind_it_is_no_answer(tmp_path):
    result = ran(tmp_path, "openai", {"whole": WHOLE}, rate=5, seconds=1)

    assert result.code == 4
    assert not (tmp_path / "reports").exists()
    assert "no_finish_reason" in result.printed


@pytest.fixture
def traced(tmp_path) -> Callable[[str, str], Any]:
    """Run a trace dry."""

    def run(name: str, text: str) -> Any:
        file = tmp_path / name
        file.write_text(text, encoding="utf-8")
        options = [
            "--set",
            f"arrival.trace.file={file}",
            "--duration=70s",
            "--dry-run",
            f"--out={tmp_path}",
        ]
        return run_command(["tailgauge", "run", "trace", *options], LIMIT_S, env=NO_KEYS)

    return run


def test_24_a_bailian_trace_keeps_its_seconds_or_is_refused(tmp_path, traced):
    rows = [
        {"chat_id": number, "parent_chat_id": -1 if number % 4 == 1 else number - 1, "timestamp": 1.5 * number,
         "input_length": 160 + 16 * (number % 4), "output_length": 8, "type": "text", "turn": (number - 1) % 4 + 1,
         "hash_ids": list(range(100 * (number // 4), 100 * (number // 4) + 10 + number % 4))}
        for number in range(1, 41)
    ]  # fmt: skip
    done = traced("bailian.jsonl", "\n".join(map(json.dumps, rows)) + "\n")

    if done.returncode != 2:
        (folder,) = (tmp_path / "runs").iterdir()
        times = RunData(folder).requests().scheduled_at_ns
        assert len(times) == 40
        assert (times.max() - times.min()) / 1e9 == pytest.approx(58.5)


def test_42_rows_of_failed_requests_are_left_out_and_counted(tmp_path, traced):
    lines = ["Timestamp,Model,Request tokens,Response tokens,Total tokens,Log Type"]
    for number in range(60):
        response = 0 if number % 6 == 0 else 20
        lines.append(
            f"{5 + number},GPT-4,{100 + number},{response},{120 + number},Conversation log"
        )
    done = traced("burst.csv", "\n".join(lines) + "\n")
    (folder,) = (tmp_path / "runs").iterdir()
    run = RunData(folder)

    assert done.returncode in {0, 5}
    assert len(run.requests()) == 50
    assert "without a response" in str(run.facts["trace"])


def test_each_case_names_its_source_and_all_of_them_are_used():
    cases = {
        **CHAT,
        **MESSAGES,
        "idle": IDLE,
        "limits": LIMITS,
        "whole": WHOLE,
        "refusals": REFUSALS,
    }

    assert len(cases) + len({"bailian", "burstgpt"}) == 30
    assert [name for name, case in cases.items() if not case.source] == []
