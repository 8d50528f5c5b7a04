"""Engines by name. docs/simulator.md gives each number's source.

Rule: a table of values. The Splitwise rows are fits to measurements; the provider-like ones imitate what callers of a
hosted model see (TTFT at light load, speed of the text), not how it is built.
"""

from __future__ import annotations

from dataclasses import dataclass

from tailgauge.simulator.engine.config import EngineConfig, Prefill, StepLaw


@dataclass(frozen=True, slots=True)
class Profile:
    """An engine, the length of its answers where the caller does not say, and how soon an empty limit is full again
    where its burst is not given.
    """

    engine: EngineConfig
    answer_tokens: int = 200
    refill_s: int = 60


def _measured(
    step_ms: float, sequence_ms: float, context_ms: float, prefill: Prefill, kv_tokens: int
) -> Profile:
    law = StepLaw(step_ms, sequence_ms, context_ms, prefill)
    return Profile(EngineConfig(law, slots=64, token_budget=2048, kv_blocks=kv_tokens // 16))


def _hosted(
    overhead_ms: float, sigma: float, step_ms: float, sequence_ms: float, prefill_ms: float
) -> Profile:
    law = StepLaw(step_ms, sequence_ms, sequence_ms, Prefill(prefill_ms))
    return Profile(
        EngineConfig(
            law, replicas=8, slots=64, token_budget=4096, overhead_ms=overhead_ms, overhead_sigma=sigma
        )
    )


def _tiny() -> Profile:
    law = StepLaw(1.4, 0.006, 0.006, Prefill(0.008))
    engine = EngineConfig(law, slots=8, overhead_ms=56.0, overhead_sigma=0.51)
    return Profile(engine, answer_tokens=20, refill_s=6)


PROFILES: dict[str, Profile] = {
    "llama2-70b-h100-tp8": _measured(29.9, 0.206, 0.174, Prefill(0.0459, 1814, 0.1168), 1_360_000),
    "llama2-70b-h100-tp4": _measured(28.7, 0.274, 0.120, Prefill(0.0682, 1394, 0.1229), 460_000),
    "llama2-70b-a100-tp8": _measured(44.0, 0.200, 0.349, Prefill(0.1023, 1844, 0.2005), 1_360_000),
    "llama3-8b-h100": _measured(10.0, 0.050, 0.030, Prefill(0.2, base_ms=20.0), 437_000),
    "haiku": _hosted(245.0, 0.48, 6.0, 0.03, 0.03),
    "sonnet": _hosted(560.0, 0.51, 14.0, 0.06, 0.08),
    "opus": _hosted(1320.0, 0.456, 25.0, 0.10, 0.10),
    "tiny": _tiny(),
}
