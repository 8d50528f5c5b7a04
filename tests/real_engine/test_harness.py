"""`tailgauge run` against a real engine: what the rows say is what the engine counted and timed itself."""

from __future__ import annotations

import json
import re
import statistics
import time
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass, replace
from itertools import pairwise
from pathlib import Path
from typing import Any

import pyarrow.parquet as pq
import pytest
from real_engine.relay import reading_to_the_end
from starting.command import run_scenarios, variant

from tailgauge.transport.exchange import STALE

pytestmark = pytest.mark.slow

ENDED_ON_PURPOSE = {0, 1, 3, 4, 5}  # the run took place; its verdict and SLOs depend on the machine


@dataclass(frozen=True)
class Run:
    """What a run left."""

    summary: dict[str, Any]
    folder: Path

    @property
    def facts(self):
        """What run.json has."""
        return json.loads((self.folder / "run.json").read_text(encoding="utf-8"))

    def rows(self, table):
        """Rows of every part of a table."""
        return [
            row
            for part in sorted((self.folder / table).glob("*.parquet"))
            for row in pq.read_table(part).to_pylist()
        ]


@pytest.fixture
def run_against(command, tmp_path, checkout):
    """Run the streaming scenario against an engine: `run_against(engine, "--rate", "4", key="value")`."""

    def run(engine, *options, timeout_s=90, **keys):
        settings = [f"--set={key.replace('__', '.')}={value}" for key, value in keys.items()]
        line = ["tailgauge", "run", checkout / "scenarios" / "streaming.toml"]
        fixed = (f"--target={engine.url}", f"--out={tmp_path}", "--seed=7", "--json")
        result = command([*line, *fixed, *options, *settings], timeout_s=timeout_s)
        assert result.returncode in ENDED_ON_PURPOSE, result.stderr
        summary = json.loads(result.stdout)
        assert summary["exit_code"] == result.returncode
        return Run(summary, Path(summary["run_dir"]))

    return run


def measured(rows):
    """Rows without the preflight's, in the order they were sent."""
    return sorted(
        (row for row in rows if row["stage"] != "preflight"), key=lambda row: row["scheduled_at_ns"]
    )


@pytest.mark.parametrize("protocol", ["anthropic", "openai"])
def test_every_request_and_every_token_is_accounted_for(engine, run_against, protocol):
    options = ("--duration=30", "--rate=4", "--workers=2")
    run = run_against(engine, *options, target__protocol=protocol)
    books = run.summary["conservation"]
    requests = run.rows("requests")
    attempts = run.rows("attempts")
    count = len(measured(requests))

    assert count > 0
    assert books["scheduled"] == books["dispatched"] == books["ended"]["ok"] == count
    assert {row["ended"] for row in requests} == {"ok"}
    # The engine may close an idle connection just when the preflight sends on it: that is sent again.
    assert {row["error_type"] for row in attempts if row["ended"] != "ok"} <= {STALE}
    assert {row["request_id"] for row in requests} == {row["request_id"] for row in attempts}
    assert (
        sum(row["output_tokens"] or 0 for row in attempts)
        == engine.counters()["tokens_predicted_total"]
    )
    assert run.facts["conservation"].items() <= books.items()


@pytest.mark.parametrize("engine", [{"shape": "ending"}], indirect=True)
def test_exact_answers_have_the_tokens_that_were_asked_for(engine, run_against, full_size):
    """The model likes to end before: without the key few answers are as long (at full size). The bytes on the wire have llama.cpp's fields."""
    options = ("--duration", "4", "--rate", "5", "--workers", "1")
    keys = {
        "target__protocol": "openai",
        "arrival__process": "constant",
        "traffic__chat__output_tokens": 96,
    }
    sent: list[bytes] = []
    free = measured(run_against(engine, *options, **keys).rows("attempts")) if full_size else []
    with reading_to_the_end(engine.url, sent) as url:
        exact = run_against(
            replace(engine, url=url), *options, **keys, traffic__chat__output="exact"
        )
    rows = measured(exact.rows("attempts"))
    bodies = [
        json.loads(body)
        for body in re.findall(rb"\r\n\r\n(\{.*?\})(?=POST |GET |$)", b"".join(sent), re.DOTALL)
    ]
    asked = [body for body in bodies if "ignore_eos" in body]

    assert {row["ended"] for row in free + rows} == {"ok"}
    assert sum(row["output_tokens"] == 96 for row in free) <= len(free) / 2
    assert any(row["output_tokens"] < 96 for row in free) == full_size
    assert {row["output_tokens"] for row in rows} == {96}
    assert len(asked) == len(rows) > 10
    assert {(body["ignore_eos"], body["n_predict"], body["max_tokens"]) for body in asked} == {
        (True, 96, 96)
    }
    assert exact.facts["engines"] == {"main": "llama.cpp"}
    report = exact.folder.parents[1] / "reports" / exact.folder.name / "report.json"
    assert json.loads(report.read_text(encoding="utf-8"))["traffic"]["chat"]["lengths"] == {
        "asked_min": 96, "asked_max": 96, "answers": len(rows), "counted": len(rows), "same": len(rows), "off_most": 0,
    }  # fmt: skip


SIZES = [
    ({"shape": "coarse"}, "openai", False),
    ({"shape": "coarse"}, "anthropic", True),
    ({"shape": "small"}, "openai", True),
]


@pytest.mark.parametrize(("engine", "protocol", "repeats"), SIZES, indirect=["engine"])
def test_prompts_have_the_tokens_that_were_asked_for(engine, run_against, protocol, repeats):
    """Template and salt included, by the engine's usage; of drawn sizes, two thirds of the words several tokens. Two workers."""
    run = run_against(
        engine,
        *("--duration=30", "--rate=8", "--workers=2"),
        target__protocol=protocol,
        repeat_prompts=str(repeats).lower(),
        traffic__chat__prompt_tokens=120,
        traffic__chat__prompt_sigma=0.5,
        traffic__chat__output_tokens=4,
    )
    asked = {
        row["request_id"]: row["asked_prompt_tokens"] for row in measured(run.rows("requests"))
    }
    rows = measured(run.rows("attempts"))
    got = {
        row["request_id"]: row["input_tokens"] + (row["cache_read_input_tokens"] or 0)
        for row in rows
    }

    facts = run.facts

    assert None not in [call["input_tokens"] for call in facts["preflight"]], facts["preflight"]
    assert {row["ended"] for row in rows} == {"ok"}
    assert len(set(asked.values())) > 10
    assert got == asked
    served = sorted(one.prompt_tokens for one in engine.served(len(rows) + 2))
    # The engine's log counts what it computed, cached tokens excepted.
    assert sum(served) <= sum(got.values()) + 2000
    assert facts["prompt_sizes"] == {"chat": "exact"}
    assert (facts["tokens_per_word"], facts["overhead_tokens"] > 5) == (1.0, True)
    report = run.folder.parents[1] / "reports" / run.folder.name / "report.md"
    text = f"chat: prompts of {min(asked.values())} to {max(asked.values())} tokens were planned (by the engine's tokenizer); the target counted as many in 100% of {len(rows)} prompts."
    assert text in report.read_text(encoding="utf-8")


@pytest.mark.alone
def test_latencies_of_single_requests_agree_with_the_engines_own(engine, run_against):
    """Requests half a second apart, each some 80 ms long; a slow machine may let them meet, and those are left out.

    The engine's times are those of its log, exact for each request: prefill for TTFT, generation for TPOT. The client
    sees the prefill and, on top, the way there and back and the engine's own hand-overs between threads.
    """
    run = run_against(
        engine,
        *("--duration=30", "--rate=2", "--workers=1"),
        target__protocol="openai",
        arrival__process="constant",
        traffic__chat__output_tokens=100,
    )
    attempts = sorted(run.rows("attempts"), key=lambda row: row["sent_at_ns"])
    pairs = list(zip(attempts, engine.served(len(attempts)), strict=True))
    assert [row["output_tokens"] for row, _ in pairs] == [
        served.predicted_tokens for _, served in pairs
    ]
    apart = [
        pair
        for before, pair in pairwise(pairs)
        if pair[0]["stage"] != "preflight" and before[0]["ended_at_ns"] < pair[0]["sent_at_ns"]
    ]
    assert len(apart) >= 3
    seen, engine_log = zip(*apart, strict=True)

    ttft_ms = statistics.median(
        (row["first_content_at_ns"] - row["sent_at_ns"]) / 1e6 for row in seen
    )
    prompt_ms = statistics.median(served.prompt_ms for served in engine_log)
    assert prompt_ms <= ttft_ms <= prompt_ms + 50

    tpot_ms = statistics.median(
        (row["last_content_at_ns"] - row["first_content_at_ns"]) / 1e6 / (row["output_tokens"] - 1)
        for row in seen
    )
    assert tpot_ms == pytest.approx(
        statistics.median(served.ms_per_token for served in engine_log), rel=0.2
    )


@pytest.mark.alone
@pytest.mark.parametrize("engine", [{"ctx": 65536}], indirect=True)
def test_a_call_that_is_given_up_in_decode_stops_the_engine_within_half_a_second(
    engine, run_against
):
    """Two calls, 3 s apart, each cut by its deadline after one second with thousands of tokens to go."""
    asked = 20_000
    samples: list[tuple[int, float]] = []
    with ThreadPoolExecutor(1) as pool:
        going = pool.submit(
            run_against,
            engine,
            *("--duration", "6", "--rate", "0.3333333", "--workers", "1"),
            arrival__process="constant",
            limits__attempt_deadline_s=1.0,
            traffic__chat__output_tokens=asked,
        )
        while not going.done():
            samples.append((time.monotonic_ns(), engine.counters()["requests_processing"]))
            time.sleep(0.02)
        run = going.result()
    cut = measured(run.rows("attempts"))

    assert [row["ended"] for row in cut] == ["timeout", "timeout"]
    assert [row for row in cut if asked - row["chunks"] < 2_000] == []
    closed = [row["cancelled_at_ns"] or row["ended_at_ns"] for row in cut]
    following = [row["sent_at_ns"] for row in cut[1:]] + [time.monotonic_ns()]
    for row, closing, after in zip(cut, closed, following, strict=True):
        busy = {n for at, n in samples if row["first_content_at_ns"] < at < closing - 100_000_000}
        idle = [n for at, n in samples if closing + 500_000_000 < at < after - 100_000_000]
        assert busy == {1}
        assert len(idle) > 5  # of 1.4 s: a sample may take a tenth on a busy machine
        assert set(idle) == {0}


def test_a_second_run_reads_nothing_of_the_first_from_the_engines_cache(engine, tmp_path):
    """With repeated prompts it does, and the report says so."""
    length = ("traffic.chat.prompt_tokens=400", "traffic.chat.output_tokens=4", "stages.warmup_s=0")
    options = (
        f"--target={engine.url}",
        "--protocol=openai",
        "--rate=2",
        "--duration=4",
        "--seed=7",
    )
    other, same = (
        variant(tmp_path, "streaming", *length, f"repeat_prompts={word}", name=word)
        for word in ("false", "true")
    )
    found, _ = run_scenarios([other, other, same, same], *options, out=tmp_path, timeout_s=120)
    runs = [Run(one, Path(one["run_dir"])) for one in found]

    def share(run: Run) -> float:
        rows = [
            row
            for row in run.rows("attempts")
            if row["stage"] != "preflight" and row["input_tokens"]
        ]
        read = sum(row["cache_read_input_tokens"] or 0 for row in rows)
        return read / (read + sum(row["input_tokens"] for row in rows))

    named = ["The cache was not cold" in json.dumps(run.summary) for run in runs]
    assert share(runs[1]) < 0.25
    assert share(runs[3]) > 0.5, [share(run) for run in runs]
    assert named == [False, False, False, True]
