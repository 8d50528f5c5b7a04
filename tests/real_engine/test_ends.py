"""How a real engine's answers end: no class is wrong, and tokens are those that the engine counts, in both protocols.

The model ends some answers by itself. Others reach their limit or the end of the context, and a prompt that does not fit
into it is refused. One slot serves one call after the other.
"""

from __future__ import annotations

import json
from dataclasses import dataclass
from pathlib import Path

import pandas as pd
import pytest
from run_folders.run_data import RunData, assert_conserved
from starting.command import run_scenarios

pytestmark = pytest.mark.slow

PROTOCOLS = ("openai", "anthropic")
CONTEXT = 512
LIMITS = {"natural": 16, "at_context": 100, "beyond_context": 8}
TARGETS = """
seed = 7
arrival.process = "constant"
arrival.rate_per_s = 24
stages.duration_s = 2.4
stop.min_completed = 0
[target]
url = "{url}"
protocol = "openai"
model = "tiny"
[second_target]
url = "{url}"
protocol = "anthropic"
"""
TRAFFIC = """
[traffic.natural_{protocol}]
target = "{target}"
prompt_tokens = 40
output_tokens = 16
ends = "natural"
weight = 2
[traffic.at_context_{protocol}]
target = "{target}"
prompt_tokens = 505
output_tokens = 100
[traffic.beyond_context_{protocol}]
target = "{target}"
prompt_tokens = 700
output_tokens = 8
"""
BY_ITSELF = {"stop", "end_turn"}
BY_LIMIT = {"length", "max_tokens"}


@dataclass(frozen=True)
class Result:
    """What a run left, and what its engine counted."""

    run: RunData
    attempts: pd.DataFrame  # those of the preflight too
    counters: dict[str, float]
    served: list[tuple[int, int]]  # tokens of prompt and answer, of each call in the engine's log

    def rows(self, protocol: str) -> pd.DataFrame:
        """Attempts in a protocol, without the preflight's."""
        rows = self.attempts[
            (self.attempts["stage"] != "preflight") & (self.attempts["protocol"] == protocol)
        ]
        return rows.assign(traffic=rows["traffic"].str.removesuffix(f"_{protocol}"))


@pytest.fixture(scope="module")
def result(fresh_engine, tmp_path_factory):
    """One run sends the same traffic in both protocols to one engine."""
    folder = tmp_path_factory.mktemp("ends")
    with fresh_engine(folder / "engine.log", parallel=1, ctx=CONTEXT, shape="ending") as engine:
        text = TARGETS.format(url=engine.url)
        for protocol, target in zip(PROTOCOLS, ("main", "second"), strict=True):
            text += TRAFFIC.format(protocol=protocol, target=target)
        path = folder / "ends.toml"
        path.write_text(text)
        (summary,), _ = run_scenarios([str(path)], out=folder, timeout_s=90)
        run = RunData(Path(summary["run_dir"]))
        # Prompts have the exact sizes below only where the preflight learnt how the engine counts.
        preflight = run.facts["preflight"]
        assert None not in [call["input_tokens"] for call in preflight], preflight
        attempts = run.table("attempts")
        answers = (attempts["status"] == 200).sum()
        served = [(call.prompt_tokens, call.predicted_tokens) for call in engine.served(answers)]
        return Result(run, attempts, engine.counters(), served)


def test_tokens_are_those_that_the_engine_counted(result):
    rows = result.attempts
    answers = rows[rows["status"] == 200]
    counted = list(zip(answers["input_tokens"], answers["output_tokens"], strict=True))

    assert sorted(counted) == sorted(result.served)
    assert answers["input_tokens"].sum() == result.counters["prompt_tokens_total"]
    assert answers["cache_read_input_tokens"].sum() == result.counters["prompt_tokens_cached_total"]
    assert answers["output_tokens"].sum() == result.counters["tokens_predicted_total"]
    assert rows["usage_marks"].isna().all()


@pytest.mark.parametrize("protocol", PROTOCOLS)
def test_each_class_is_that_of_how_the_engine_ended_the_answer(result, protocol):
    rows = result.rows(protocol)
    expected = [_class(row) for row in rows.itertuples()]

    assert list(rows["ended"]) == expected
    assert set(expected) >= {"ok", "cut", "client_error"}
    by_traffic = {name: set(group) for name, group in rows.groupby("traffic")["ended"]}
    assert by_traffic["beyond_context"] == {"client_error"}
    assert "cut" in by_traffic["natural"]
    assert "cut" in by_traffic["at_context"]


def test_every_request_is_accounted_for(result):
    assert_conserved(result.run)


def _class(row):
    """Return the class by the engine's counts: at a limit only its own word tells an end from a cut."""
    if row.status != 200:
        return "client_error"
    total = row.input_tokens + row.cache_read_input_tokens + row.output_tokens
    if row.output_tokens < LIMITS[row.traffic] and total < CONTEXT:
        assert row.stop_reason in BY_ITSELF
        return "empty" if row.output_tokens == 1 else "ok"  # the one token is the mark of the end
    assert row.stop_reason in BY_ITSELF | BY_LIMIT
    return "cut" if row.stop_reason in BY_LIMIT else "ok"


@pytest.mark.parametrize("protocol", PROTOCOLS)
def test_a_prompt_beyond_the_context_is_refused_with_the_engines_own_count(result, protocol):
    rows = result.rows(protocol)
    refused = rows[rows["traffic"] == "beyond_context"]
    errors = [json.loads(body)["error"] for body in refused["error_body"]]

    assert errors
    assert set(refused["status"]) == {400}
    assert set(refused["error_type"]) == {"exceed_context_size_error"}
    assert {(error["n_prompt_tokens"], error["n_ctx"]) for error in errors} == {(700, CONTEXT)}
