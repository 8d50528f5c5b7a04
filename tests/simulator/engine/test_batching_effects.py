"""What a batching server does to latencies, each effect beside the same traffic with its cause switched off."""

from dataclasses import replace

import numpy as np
import pytest
from simulator.engine.measuring import Demands, alike, gaps_ms, poisson_ns, run, tpot_ms, ttft_ms

from tailgauge.simulator.engine.config import EngineConfig, Prefill, StepTime
from tailgauge.simulator.engine.job import Hooks

STEP_MS, SEQUENCE_MS, CONTEXT_MS, PREFILL_MS = 20.0, 0.5, 0.5, 0.1
TIMING = StepTime(STEP_MS, SEQUENCE_MS, CONTEXT_MS, Prefill(PREFILL_MS))
CONFIG = EngineConfig(TIMING, slots=32, token_budget=4096)
FLAT = replace(CONFIG, timing=StepTime(STEP_MS))
SECOND_NS = 1_000_000_000
MINUTE_NS = 60 * SECOND_NS


class Cached(Hooks):
    """So many tokens of every prompt are cached."""

    def __init__(self, tokens):
        self.tokens = tokens

    def cached_tokens(self, job, replica, now_ns):  # noqa: ARG002
        return self.tokens


def alone(config, prompts, hooks=None, outputs=20):
    """Calls so far apart that each is alone."""
    n = len(prompts)
    demands = Demands(np.array(prompts), np.full(n, outputs))
    return run(config, np.arange(n) * MINUTE_NS, demands, 1, hooks=hooks or Hooks())


@pytest.mark.parametrize("cached", [0, 400])
def test_ttft_is_linear_in_uncached_tokens(cached):
    prompts = [500, 1000, 2000, 4000]

    measured = ttft_ms(alone(CONFIG, prompts, Cached(cached)))

    assert measured == pytest.approx(
        [STEP_MS + PREFILL_MS * (prompt - cached) for prompt in prompts]
    )


def test_a_prompt_that_is_cached_whole_still_computes_its_last_token():
    measured = alone(CONFIG, [1000], Cached(1000))

    assert ttft_ms(measured) == pytest.approx([STEP_MS + PREFILL_MS])
    assert measured.column(lambda call: call.cached_tokens).tolist() == [1000]


def together(config, calls, prompt=100, output=101):
    """Calls that are there from the start, with one step's prompts; their TPOT in the middle of the batch."""
    at = np.arange(calls)
    return run(config, at, alike(calls, prompt, output), 1)


def longest_gap_ms(config, second_prompt):
    """Largest chunk gap of a stream beside which another prompt arrives."""
    at, demands = (
        np.array([0, SECOND_NS]),
        Demands(np.array([50, second_prompt]), np.array([200, 10])),
    )
    return gaps_ms(run(config, at, demands, 1)).max()


def test_chunked_prefill_removes_the_stall():
    whole, chunked = (
        longest_gap_ms(replace(CONFIG, token_budget=budget), 8000) for budget in (100_000, 256)
    )

    assert whole == pytest.approx(STEP_MS + PREFILL_MS * 8000, rel=0.05)
    assert chunked == pytest.approx(STEP_MS + PREFILL_MS * 256, rel=0.05)


def under_load(rate_per_s, *, slots, n=3000):
    config = EngineConfig(StepTime(STEP_MS, SEQUENCE_MS, 0.0, Prefill(0.001)), slots=slots)
    measured = run(config, poisson_ns(rate_per_s, n, 3), alike(n, 100, 50), 3)
    return np.quantile(ttft_ms(measured)[n // 2 :], 0.5), np.quantile(
        tpot_ms(measured)[n // 2 :], 0.99
    )


def test_past_capacity_ttft_blows_up_and_tpot_stays_flat():
    """16 slots give at most 16 / (50 * 28 ms) = 11.4 calls a second."""
    full_step_ms = STEP_MS + SEQUENCE_MS * 16

    below, past = under_load(8, slots=16), under_load(16, slots=16)

    assert below[0] < 3 * full_step_ms
    assert past[0] > 20_000
    assert past[1] < full_step_ms * 1.05  # the batch is full, and no fuller than that


def kv_run(blocks):
    """16 calls of 320 tokens at their end, 20 blocks each."""
    config = replace(CONFIG, kv_blocks=blocks)
    return together(config, 16, prompt=160, output=160)


def test_kv_cliff_memory_below_the_batch_makes_preempted_calls_start_again():
    enough, short = (tpot_ms(kv_run(blocks)) for blocks in (320, 200))

    assert short.max() > 1.4 * enough.max()  # thrown out in the middle of its answer
    assert short.min() < enough.max()  # while the oldest pass undisturbed


def test_kv_cliff_is_gone_without_a_memory_limit():
    limited, free = kv_run(320), kv_run(None)

    assert tpot_ms(limited) == pytest.approx(tpot_ms(free))


def test_drafts_coalesce_several_tokens_into_a_chunk():
    measured = alone(replace(FLAT, draft_tokens=3), [100] * 20, outputs=502)

    assert measured.chunks.tolist() == [126] * 20
    assert measured.tokens.tolist() == [502] * 20
    assert gaps_ms(measured) == pytest.approx(STEP_MS)  # a chunk a step, as before
