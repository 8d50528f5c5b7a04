"""The settings of an engine: times, memory, slots, routing; and engines by name.

All numbers that shape a latency are in this file, in milliseconds, because people read and write these; the engine itself
counts nanoseconds. A setting that is None or 0 by default is switched off. docs/reference/simulator.md has the source of each
profile: the Splitwise rows are fits to measurements (Patel et al., ISCA 2024); the provider-like ones imitate the TTFT at
light load and the speed of the text that callers of a hosted model see, not its engine.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass, field, replace
from typing import Any

from tailgauge.errors import ScenarioError
from tailgauge.scenario.simulated import FIXED, CancelMode, Router, Simulated


@dataclass(frozen=True, slots=True)
class Prefill:
    """Time that prompt tokens add to a step: a base, a time per token up to the knee, and another one beyond it."""

    ms_per_token: float
    knee_tokens: int = 1_000_000_000
    ms_per_token_beyond: float = 0.0
    base_ms: float = 0.0

    def ms(self, tokens: int) -> float:
        """Return the milliseconds for the prompt tokens of one step; 0 without prompt tokens."""
        if not tokens:
            return 0.0
        tokens_beyond = max(0, tokens - self.knee_tokens)
        tokens_before = tokens - tokens_beyond
        return (
            self.base_ms
            + self.ms_per_token * tokens_before
            + self.ms_per_token_beyond * tokens_beyond
        )


@dataclass(frozen=True, slots=True)
class StepTime:
    """step = step_ms + sequence_ms*B + context_ms*sum(context)/1000 + prefill(prompt tokens of the step).

    B counts the sequences that decode, the context is the tokens that they hold before the step.
    """

    step_ms: float
    sequence_ms: float = 0.0
    context_ms: float = 0.0  # per sequence and 1,000 tokens of context
    prefill: Prefill = field(default_factory=lambda: Prefill(0.0))


@dataclass(frozen=True, slots=True)
class EngineConfig:
    """An engine: its replicas and everything that they have in common."""

    timing: StepTime
    replicas: int = 1
    router: Router = "least_loaded"
    slots: int | None = None  # sequences in service at once, on each replica; None: no limit
    # Calls that each replica takes beyond its slots; one more is refused. None: no limit.
    queue_cap: int | None = None
    token_budget: int = 2048  # tokens of one step: decodes first, then prompts in chunks
    kv_blocks: int | None = None  # memory of each replica; None: no limit
    block_tokens: int = 16
    # Tokens that a step emits of one sequence beyond the first one, in the prefill's step too.
    draft_tokens: int = 0
    # Median delay before a call reaches its replica (gateway, checks, tokeniser), and sigma of its logarithm.
    overhead_ms: float = 0.0
    overhead_sigma: float = 0.0
    cancel_mode: CancelMode = "immediate"
    cancel_after_ms: float = 0.0
    # Time in which an empty rate limit in front of the engine is full again, where its burst is not given.
    refill_s: int = 60
    # A server with the methods of `batch.Batch`, which replaces it.
    replica: Callable[..., Any] | None = None

    def __post_init__(self) -> None:
        """Raise ValueError for values that contradict each other; the scenario has checked each by itself."""
        if self.queue_cap is not None and self.slots is None:
            raise ValueError("queue_cap counts calls beyond the slots, but slots has no limit")
        if self.timing.step_ms <= 0:
            raise ValueError("step_ms must be above 0: time would not advance")
        if self.slots is not None and self.token_budget <= self.slots:
            raise ValueError(
                "token_budget must be above slots: decodes would leave no budget for a prompt"
            )


def _measured(timing: StepTime, kv_tokens: int) -> EngineConfig:
    return EngineConfig(timing, slots=64, token_budget=2048, kv_blocks=kv_tokens // 16)


def _hosted(timing: StepTime, overhead_ms: float, sigma: float) -> EngineConfig:
    return EngineConfig(
        timing,
        replicas=8,
        slots=64,
        token_budget=4096,
        overhead_ms=overhead_ms,
        overhead_sigma=sigma,
    )


PROFILES: dict[str, EngineConfig] = {
    "llama2-70b-h100-tp8": _measured(StepTime(29.9, 0.206, 0.174, Prefill(0.0459, 1814, 0.1168)), 1_360_000),
    "llama2-70b-h100-tp4": _measured(StepTime(28.7, 0.274, 0.120, Prefill(0.0682, 1394, 0.1229)), 460_000),
    "llama2-70b-a100-tp8": _measured(StepTime(44.0, 0.200, 0.349, Prefill(0.1023, 1844, 0.2005)), 1_360_000),
    "llama3-8b-h100": _measured(StepTime(10.0, 0.050, 0.030, Prefill(0.2, base_ms=20.0)), 437_000),
    "haiku": _hosted(StepTime(6.0, 0.03, 0.03, Prefill(0.03)), 245.0, 0.48),
    "sonnet": _hosted(StepTime(14.0, 0.06, 0.06, Prefill(0.08)), 560.0, 0.51),
    "opus": _hosted(StepTime(25.0, 0.10, 0.10, Prefill(0.10)), 1320.0, 0.456),
    "tiny": EngineConfig(
        StepTime(1.4, 0.006, 0.006, Prefill(0.008)), slots=8, refill_s=6, overhead_ms=56.0, overhead_sigma=0.51,
    ),
}  # fmt: skip


def engine_of(table: Simulated) -> EngineConfig | None:
    """Return the engine of a profile, with the values that the scenario sets; None for the profile `fixed`."""
    if table.profile == FIXED:
        return None
    engine = PROFILES[table.profile]
    settings = {name: value for name, value in table.engine if value is not None}
    if "step_ms" in settings:
        settings["timing"] = replace(engine.timing, step_ms=settings.pop("step_ms"))
    try:
        return replace(engine, **settings)
    except ValueError as error:
        raise ScenarioError(f"simulated.engine with the profile {table.profile}: {error}") from None
