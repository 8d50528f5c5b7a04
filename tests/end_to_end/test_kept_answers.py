"""A user's stream as a test case: answers that `--keep-answers` kept are served by `endpoint --replay`, and give the same rows."""

from __future__ import annotations

import json
from collections import Counter
from collections.abc import Iterator
from contextlib import ExitStack
from dataclasses import dataclass
from pathlib import Path
from random import SystemRandom
from statistics import median
from string import ascii_letters, digits

import numpy as np
import pandas as pd
import pytest
from end_to_end import echoes
from end_to_end.everything_written import everything
from end_to_end.odd_streams import FAIR, KINDS, PROTOCOLS, serving
from starting.command import Finished, Running
from starting.endpoint import endpoint
from starting.programs import TAILGAUGE

from tailgauge.rows.answer_file import RawAnswer, read_answers

pytestmark = pytest.mark.slow

RATE = 5
SCENARIO = """
[target]
url = "{url}"
protocol = "{protocol}"
api_key_env = "MY_ENGINE"
[arrival]
process = "constant"
rate_per_s = {rate}
[stages]
duration_s = {seconds}
warmup_s = 0
[traffic.chat]
prompt_tokens = 20
output_tokens = 20
[limits]
attempt_deadline_s = 1.5
[stop]
min_completed = 0
connect_errors = 0
"""
# Columns of an attempt that say what its answer was.
EQUAL = (
    "ended",
    "status",
    "error_type",
    "error_class",
    "stop_reason",
    "model",
    "chunks",
    "chunk_chars",
    "input_tokens",
    "output_tokens",
    "retry_after_s",
    "rate_limit_headers",
    "usage_marks",
    "tolerated",
    "not_understood",
    "body_bytes",
)


@dataclass(frozen=True)
class Replayed:
    """Runs of each protocol against the target, and against what was kept of it."""

    key: str
    first: Finished
    again: Finished

    def answers(self, done: Finished, name: str) -> list[RawAnswer]:
        return read_answers(done.run_of(name).path / "answers" / "0.jsonl")


@pytest.fixture(scope="module")
def replayed(tmp_path_factory: pytest.TempPathFactory) -> Replayed:
    folder = tmp_path_factory.mktemp("replay")
    key = "7" + "".join(SystemRandom().choices(ascii_letters + digits + "-_", k=40))
    env = {"MY_ENGINE": key}

    def run(urls: dict[str, str], out: Path) -> Finished:
        for name, url in urls.items():
            seconds = (KINDS + 0.5) / RATE
            text = SCENARIO.format(url=url, protocol=name, rate=RATE, seconds=seconds)
            (folder / f"{name}.toml").write_text(text)
        files = [str(folder / f"{name}.toml") for name in urls]
        line = [TAILGAUGE, "run", *files, "--keep-answers=100", "--out", str(out)]
        return Running(line, out, env, folder).finish(90)

    with serving() as url:
        first = run({name: f"{url}/{name}" for name in PROTOCOLS}, folder / "first")
    with ExitStack() as stack:
        urls = {}
        for name in PROTOCOLS:
            path = first.run_of(name).path / "answers" / "0.jsonl"
            urls[name] = stack.enter_context(endpoint(f"--replay={path}")).url
        again = run(urls, folder / "again")
    return Replayed(key, first, again)


def attempts(done: Finished, name: str) -> pd.DataFrame:
    """Attempts of a run's requests in the order of their outcome, with the characters of their chunks."""
    run = done.run_of(name)
    rows = run.attempts()
    chunks = run.table("chunks")
    chars = chunks.groupby("request_id").chars.sum()
    rows = rows.assign(chunk_chars=rows.request_id.map(chars).fillna(0))
    return rows.sort_values(["body_bytes", "ended"]).reset_index(drop=True)


@pytest.mark.parametrize("name", PROTOCOLS)
def test_the_rows_of_a_replay_are_those_of_the_target(replayed, name):
    first = attempts(replayed.first, name)
    again = attempts(replayed.again, name)

    assert len(first) == KINDS, replayed.first.stderr
    assert first.ended.nunique() >= 7, sorted(first.ended)
    for column in EQUAL:
        pd.testing.assert_series_equal(first[column], again[column])


@pytest.mark.parametrize("name", PROTOCOLS)
def test_every_answer_was_kept_and_is_replayed_byte_for_byte(replayed, name):
    first = replayed.answers(replayed.first, name)
    again = replayed.answers(replayed.again, name)

    assert len(first) == KINDS + FAIR
    assert sorted(answer.data for answer in first) == sorted(answer.data for answer in again)
    assert sorted(answer.end for answer in first) == sorted(answer.end for answer in again)
    assert {answer.end for answer in first} == {"complete", "closed", "reset", "client"}


@pytest.mark.parametrize("name", PROTOCOLS)
def test_gaps_and_time_to_the_first_chunk_agree_with_the_record(replayed, name):
    first = replayed.answers(replayed.first, name)
    counts = Counter(answer.data for answer in first)
    by_data = {answer.data: answer for answer in first}
    late_ms = []
    for answer in replayed.answers(replayed.again, name):
        recorded = by_data[answer.data]
        is_only_one = counts[answer.data] == 1  # the fair answers are alike
        if is_only_one and len(answer.reads) == len(recorded.reads):
            late_ms += [
                (read.at_ns - before.at_ns) / 1e6
                for read, before in zip(answer.reads, recorded.reads, strict=True)
            ]

    assert len(late_ms) > 50
    assert 0 <= median(late_ms) < 10
    assert min(late_ms) > -1


def test_the_chunks_of_a_stream_have_its_gaps(replayed):
    gaps = {}
    for done in (replayed.first, replayed.again):
        rows = attempts(done, "openai")
        chunks = done.run_of("openai").table("chunks")
        request = rows[(rows.ended == "ok") & (rows.chunks == 6)].request_id.iloc[0]
        times = np.sort(chunks[chunks.request_id == request].arrived_at_ns)
        gaps[done.out.name] = np.diff(times) / 1e6

    assert np.median(np.abs(gaps["first"] - gaps["again"])) < 10


def test_each_class_and_where_they_are_is_named(replayed):
    for name in PROTOCOLS:
        run = replayed.first.run_of(name)
        kept = [answer.facts["ended"] for answer in replayed.answers(replayed.first, name)]
        note = f"worker 0 kept {KINDS + FAIR} raw answers: {run.path / 'answers' / '0.jsonl'}"

        assert set(attempts(replayed.first, name).ended) <= set(kept)
        assert note in run.facts["notes"]
        assert note in replayed.first.stderr


def test_no_secret_and_no_request_is_in_the_file(replayed):
    """Nor a cookie of the target's."""
    for name in PROTOCOLS:
        path = replayed.first.run_of(name).path / "answers" / "0.jsonl"
        text = path.read_text(encoding="utf-8")

        assert text.count("[redacted]") > KINDS
        assert "visitor4711" not in text
        assert "max_tokens" not in text
        assert echoes.kept(replayed.key, text) == []
        joined = "".join(text_pieces(text))
        assert echoes.kept(replayed.key, joined) == []
    for text in everything(replayed.first):
        assert echoes.kept(replayed.key, text.partition("* plotly.js (")[0]) == [], text[:200]


def text_pieces(text: str) -> Iterator[str]:
    """The content of every event, as a reader would join it."""
    for line in text.splitlines():
        for data in str(json.loads(line).get("text", "")).splitlines():
            if not data.startswith("data: {"):
                continue
            try:
                tree = json.loads(data[6:])
            except ValueError:
                continue
            choices = tree.get("choices") or [{}]
            delta = tree.get("delta") or choices[0].get("delta") or {}
            yield str(delta.get("content") or delta.get("text") or "")
