"""Input counts beyond what was sent are marked, whatever the prompts are made of; honest ones are not."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import pandas as pd
import pytest
from run_folders.run_data import RunData, RunRows
from starting.command import run_command
from wire.answering import Answer, Received, stream, target
from wire.pieces import DONE, ROLE, STOP, pieces_of_text, usage

pytestmark = pytest.mark.slow

TOKENS_PER_WORD = 1.3
HONEST, EXCESSIVE = 8, 7  # output tokens, by which a row is recognized
SCENARIO = """
[target]
url = "{url}"
protocol = "openai"
model = "counting"
[arrival]
process = "constant"
rate_per_s = 30
[stages]
duration_s = 3
warmup_s = 0
[traffic.file]
output_tokens = 16
prompts.file = "prompts.jsonl"
[traffic.session]
prompt_tokens = 100
output_tokens = 16
session = {{ turns_mean = 4.0, think_s = 0.05, think_sigma = 0.0 }}
[traffic.tools]
prompt_tokens = 100
output_tokens = 16
tools = 3
[traffic.dense]
output_tokens = 16
prompts.file = "dense.jsonl"
[stop]
min_completed = 0
"""
PROSE = (
    "The generator keeps the time at which a request was due, and the time at which it was sent. "
    * 20
)
DENSE = [
    "3141592653589793 " * 60,
    "大规模语言模型的推理服务" * 60,
    "🌀🌵🎃🏁🐉👾💯📎" * 40,
    "U2FsdGVkX1+vupppZks" * 60,
]


def honest_tokens(body: dict[str, Any]) -> int:
    """Count words as a tokenizer does, and each character that is in no word of letters as one or more tokens."""
    texts = [str(message["content"]) for message in body["messages"]]
    texts += [json.dumps(tool) for tool in body.get("tools", [])]
    tokens = 10.0
    for word in " ".join(texts).split():
        is_plain = word.isascii() and word.isalpha() and word.islower()
        tokens += TOKENS_PER_WORD if is_plain else 0.7 * len(word.encode())
    return round(tokens)


def answer(seen: Received) -> Answer:
    tokens = honest_tokens(seen.body)
    is_honest = seen.is_preflight or seen.number % 2 == 0
    counts = usage(HONEST, tokens) if is_honest else usage(EXCESSIVE, 5 * tokens + 5000)
    return stream(ROLE, *pieces_of_text(), STOP, counts, DONE)


@pytest.fixture(scope="module")
def attempts(tmp_path_factory: pytest.TempPathFactory) -> pd.DataFrame:
    folder = tmp_path_factory.mktemp("marks")
    write_rows(folder / "prompts.jsonl", [PROSE])
    write_rows(folder / "dense.jsonl", DENSE)
    with target("openai", {"counting": answer}, frozenset({"counting"})) as serving:
        file = folder / "scenario.toml"
        file.write_text(SCENARIO.format(url=serving.url), encoding="utf-8")
        line = ["tailgauge", "run", file, "--seed=3", f"--out={folder}"]
        done = run_command(line, 90, env={"OPENAI_API_KEY": "", "NO_COLOR": "1"})
    assert done.returncode != 2, done.stderr
    (run,) = (folder / "runs").iterdir()
    rows = RunRows(RunData(run)).attempts
    assert len(rows) > 40, done.stderr
    return rows


def write_rows(path: Path, texts: list[str]) -> None:
    lines = [json.dumps({"prompt": text}) for text in texts]
    path.write_text("\n".join(lines), encoding="utf-8")


@pytest.mark.parametrize("traffic", ["file", "session", "tools", "dense"])
def test_counts_beyond_what_was_sent_are_marked_and_honest_ones_are_not(attempts, traffic):
    rows = attempts[(attempts.traffic == traffic) & (attempts.ended == "ok")]
    honest = rows[rows.output_tokens == HONEST]
    excessive = rows[rows.output_tokens == EXCESSIVE]

    assert min(len(honest), len(excessive)) > 2
    assert honest.usage_marks.isna().all()
    assert (excessive.usage_marks == "input").all()
