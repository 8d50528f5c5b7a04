"""Cached tokens that the plan does not expect, and those that it does."""

from types import SimpleNamespace

import pandas as pd
import pytest

from tailgauge.thresholds import DEGRADED
from tailgauge_analysis.verdict.cold_cache import NEW_TOKENS, cold

N, PROMPT = 50, 600


def judged(read=0.0, process="poisson", engine=None, first=None, **traffic):
    """A run of N requests, of whose prompts a share is read from a cache; without one its target does not say."""
    known = None if read is None else round(read * PROMPT)
    row = {
        "traffic": "chat", "stage": "steady", "cause": "primary", "leg": 0, "input_tokens": PROMPT - (known or 0),
        "cache_read_input_tokens": known, "cache_creation_input_tokens": None,
    }  # fmt: skip
    attempts = pd.DataFrame([{**row, **(first or {})}, *[row] * (N - 1)])
    scenario = {
        "arrival": {"process": process},
        "traffic": {"chat": {"session": {}, "prompts": {}, **traffic}},
    }
    frames = SimpleNamespace(
        attempts=attempts, run={"scenario": scenario, "engine_cache": engine or {}}
    )
    return cold(SimpleNamespace(frames=frames))


def test_a_warm_cache_is_named_with_its_share_and_a_cold_one_is_not():
    warm = judged(0.9)

    assert warm.verdict == DEGRADED
    assert "90.0% of the prompt tokens (27,000 of 30,000)" in warm.text
    assert judged(0.0) is judged(0.2) is None  # 120 tokens: template, salt and a block


@pytest.mark.parametrize(
    "expected",
    [
        {"cache": {"system_tokens": 500}}, {"tools": 2}, {"prompts": {"file": "mine.jsonl"}},
        {"session": {"turns_mean": 4, "grow": True}}, {"process": "trace"}, {"process": "tasks"},
    ],
)  # fmt: skip
def test_what_the_plan_expects_is_no_reason(expected):
    assert judged(0.9, **expected) is None


def test_copies_and_retries_may_read_what_their_request_wrote():
    assert judged(0.0, first={"cause": "hedge", "cache_read_input_tokens": 10**6}) is None


def test_the_engines_counters_decide_where_usage_does_not_tell():
    engine = {"engine": "vLLM", "prompt": 30_000, "cached": 29_000}
    warm = judged(None, engine=engine)

    assert "by vLLM's own counters" in warm.text
    assert judged(None, engine={**engine, "cached": 300}) is judged(None) is None
    # They begin after the preflight, of whose calls one was sent again.
    preflight = {"stage": "preflight", "cause": "retry"}
    almost = {**engine, "cached": (N - 1) * NEW_TOKENS + 1}
    assert judged(None, engine=almost) is None
    assert judged(None, engine=almost, first=preflight) is not None
    assert (
        judged(None, engine=engine, first={"cause": "retry"}) is None
    )  # the engine counted its prompt twice
