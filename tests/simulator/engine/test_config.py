"""The named engines against the numbers that they stand for."""

import numpy as np
import pytest
from simulator.engine.measuring import Demands, alike, gaps_ms, poisson_ns, run, tpot_ms, ttft_ms

from tailgauge.simulator.engine.config import PROFILES

MINUTE_NS = 60_000_000_000
# Splitwise, Llama2-70B, medians in ms. Prompt 512: time of a token by batch; batch 1: time of a prompt by its length.
TOKEN_MS = {
    "llama2-70b-h100-tp8": {1: 30.6, 16: 34.2, 32: 38.6, 64: 50.2},
    "llama2-70b-h100-tp4": {1: 29.4, 16: 32.8, 32: 36.9, 64: 52.4},
    "llama2-70b-a100-tp8": {1: 45.0, 16: 50.4, 32: 53.0, 64: 71.6},
}
PROMPT_MS = {
    "llama2-70b-h100-tp8": {512: 53.9, 1024: 77.9, 2048: 136.8, 4096: 390.3, 8192: 844.9},
    "llama2-70b-h100-tp4": {512: 59.7, 1024: 105.6, 2048: 200.7, 4096: 463.5, 8192: 953.6},
    "llama2-70b-a100-tp8": {512: 93.0, 1024: 154.5, 2048: 274.2, 4096: 661.2, 8192: 1549.8},
}
TOKEN_OFF = {"llama2-70b-h100-tp8": 0.04, "llama2-70b-h100-tp4": 0.08, "llama2-70b-a100-tp8": 0.08}
PROMPT_OFF = {"llama2-70b-h100-tp8": 0.03, "llama2-70b-h100-tp4": 0.07, "llama2-70b-a100-tp8": 0.04}
HOSTED_TTFT_MS = {
    "haiku": (300, 800),
    "sonnet": (700, 2000),
    "opus": (1500, 4000),
    "tiny": (70, 200),
}


@pytest.mark.parametrize("profile", TOKEN_MS)
def test_a_token_takes_the_measured_time_in_every_batch(profile):
    for batch, expected in TOKEN_MS[profile].items():
        calls = run(profile, np.arange(batch), alike(batch, 512, 128), 1)
        full = gaps_ms(calls)[-60:-1]

        assert np.median(full) == pytest.approx(expected, rel=TOKEN_OFF[profile]), batch


@pytest.mark.parametrize("profile", PROMPT_MS)
def test_a_prompt_takes_the_measured_time_at_every_length(profile):
    """In one step, as it was measured; the knee is that of a step's tokens, so chunks would not be slower."""
    lengths = np.array(list(PROMPT_MS[profile]))
    timing = PROFILES[profile].timing

    modelled = [timing.step_ms + timing.prefill.ms(int(length)) for length in lengths]

    assert modelled == pytest.approx(list(PROMPT_MS[profile].values()), rel=PROMPT_OFF[profile])
    short = lengths[:3]
    calls = run(profile, np.arange(3) * MINUTE_NS, Demands(short, np.ones(3, int)), 1)
    assert ttft_ms(calls) == pytest.approx(modelled[:3])


def test_8b_on_h100_has_the_published_range():
    timing = PROFILES["llama3-8b-h100"].timing
    calls = run("llama3-8b-h100", np.arange(64), alike(64, 512, 128), 1)

    assert 10 <= np.median(gaps_ms(calls)[-60:-1]) <= 15
    assert 25 <= timing.step_ms + timing.prefill.base_ms <= 40
    assert 0.15 <= timing.prefill.ms_per_token <= 0.30


@pytest.mark.parametrize("profile", HOSTED_TTFT_MS)
def test_a_hosted_profile_has_its_ttft_at_light_load(profile, full_size):
    n = 40_000 if full_size else 6_000
    answer = 20 if profile == "tiny" else 200
    prompts = np.random.default_rng(4).integers(1_000, 2_001, n)
    calls = run(profile, poisson_ns(1, n, 4), Demands(prompts, np.full(n, answer)), 4)

    measured = np.quantile(ttft_ms(calls), [0.5, 0.99], method="inverted_cdf")
    assert measured == pytest.approx(HOSTED_TTFT_MS[profile], rel=0.1)


def test_a_dearer_model_writes_more_slowly_and_tiny_is_a_tenth_of_sonnet():
    tpot = {}
    for profile in HOSTED_TTFT_MS:
        at = np.arange(5) * MINUTE_NS
        tpot[profile] = float(np.median(tpot_ms(run(profile, at, alike(5, 1500, 20), 1))))

    assert tpot["haiku"] < tpot["sonnet"] < tpot["opus"]
    assert tpot["tiny"] == pytest.approx(tpot["sonnet"] / 10, rel=0.01)


@pytest.mark.parametrize("profile", PROFILES)
def test_every_profile_is_documented(profile, checkout):
    assert f"`{profile}`" in (checkout / "docs" / "reference" / "simulator.md").read_text(
        encoding="utf-8"
    )
