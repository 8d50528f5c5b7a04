"""How an engine is built: laws of time, memory, slots, routing. Plain frozen values.

Rule: a number that shapes a latency stands here or in `profiles`, nowhere else. Milliseconds, because people read and
write these; what happens is in integers of nanoseconds. What is None or 0 by default is switched off.

Source of the step law: METHOD 9, fitted to measurements of Splitwise (Patel et al., ISCA 2024).
"""

from __future__ import annotations

from dataclasses import dataclass, field

ROUTERS = ("random", "least_loaded", "prefix_affinity", "hash")
CANCEL_MODES = ("immediate", "next_step", "after_ns", "never")
RESERVATIONS = ("growth", "full")
DRAFTING_LAWS = ("none", "fixed", "binomial", "geometric")


@dataclass(frozen=True, slots=True)
class Prefill:
    """Time that n prompt tokens add to a step: base + n*before up to the knee, `beyond` for each token behind it."""

    ms_per_token: float
    knee_tokens: int = 1_000_000_000
    ms_per_token_beyond: float = 0.0
    base_ms: float = 0.0

    def ms(self, tokens: int) -> float:
        """Milliseconds for the prompt tokens of one step; nothing for none."""
        if not tokens:
            return 0.0
        behind = max(0, tokens - self.knee_tokens)
        return self.base_ms + self.ms_per_token * (tokens - behind) + self.ms_per_token_beyond * behind


@dataclass(frozen=True, slots=True)
class StepLaw:
    """step = step_ms + sequence_ms*B + context_ms*sum(context)/1000 + prefill(prompt tokens of the step).

    B counts the sequences that decode, the context is the tokens that they hold before the step.
    """

    step_ms: float
    sequence_ms: float = 0.0
    context_ms: float = 0.0  # per sequence and 1,000 tokens of context
    prefill: Prefill = field(default_factory=lambda: Prefill(0.0))


@dataclass(frozen=True, slots=True)
class FluidLaw:
    """Queueing theory's server: a call brings `work_ms`, n calls in service each progress at 1 / (1 + slowdown*(n-1)).

    Slowdown 0 gives every slot a server of its own (one slot M/G/1, c slots M/G/c, no limit M/G/inf); 1 shares a single
    server (processor sharing); between, each neighbour costs a share. A call's answer is one chunk at its end.
    """

    slowdown: float = 0.0


@dataclass(frozen=True, slots=True)
class Drafting:
    """Tokens that a step emits of one sequence.

    none: 1. fixed: 1 + draft_tokens, the first chunk too. binomial: 1 + Binomial(draft_tokens, accept).
    geometric: 1 + the drafts accepted before the first refusal, each with probability `accept` (speculative decoding).
    The prefill of the last two yields one token, as no draft stands behind it.
    """

    law: str = "none"
    draft_tokens: int = 0
    accept: float = 0.0


@dataclass(frozen=True, slots=True)
class EngineConfig:
    """An engine: its replicas and everything that they have in common."""

    law: StepLaw | FluidLaw
    replicas: int = 1
    router: str = "least_loaded"
    affinity_slack: int = 8  # calls that a prefix's own replica may have more than the least loaded one
    slots: int | None = None  # sequences in service at once, on each replica; None: no limit
    queue_cap: int | None = None  # calls that each replica takes beyond its slots; one more is refused
    token_budget: int = 2048  # tokens of one step: decodes first, then prompts in chunks
    prefill_first: bool = False  # whole prompts before any decode, which stalls; else chunked prefill
    kv_blocks: int | None = None  # memory of each replica; None: no limit
    block_tokens: int = 16
    reservation: str = "growth"  # blocks as the context grows, or at admission for the longest answer
    drafting: Drafting = field(default_factory=Drafting)
    overhead_ms: float = 0.0  # median delay before a call reaches its replica: gateway, checks, tokeniser
    overhead_sigma: float = 0.0  # of its logarithm
    cancel_mode: str = "immediate"
    cancel_after_ns: int = 0

    def __post_init__(self) -> None:
        """Say at once which value cannot be."""
        for name, allowed in _CHOICES:
            if getattr(self, name) not in allowed:
                raise ValueError(f"{name} must be one of {', '.join(allowed)}")
        if self.drafting.law not in DRAFTING_LAWS:
            raise ValueError(f"drafting.law must be one of {', '.join(DRAFTING_LAWS)}")
        for name in ("replicas", "slots", "token_budget", "kv_blocks", "block_tokens"):
            value = getattr(self, name)
            if value is not None and value < 1:
                raise ValueError(f"{name} must be at least 1")
        if self.queue_cap is not None and self.slots is None:
            raise ValueError("queue_cap counts calls beyond the slots, and there is no limit of slots")
        if isinstance(self.law, StepLaw):
            if self.law.step_ms <= 0:
                raise ValueError("law.step_ms must be above 0: time would stand still")
            if self.slots is not None and self.token_budget <= self.slots and not self.prefill_first:
                raise ValueError("token_budget must be above slots: decodes would leave no room for a prompt")


_CHOICES = (("router", ROUTERS), ("reservation", RESERVATIONS), ("cancel_mode", CANCEL_MODES))
