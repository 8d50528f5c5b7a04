"""The most input tokens that an honest target counts for a prompt: a count above it is marked.

Tokenizers have no more tokens than bytes for any text. Seeded words have what the preflight has learnt of them, with a
margin. Nothing bounds the tokens of an image, or of a tool of the user's own.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from typing import Self

from tailgauge.call import Call, Prompt
from tailgauge.plan.preflight import Learnt, sizing
from tailgauge.plan.spend_limit import Sizing
from tailgauge.scenario.model import Scenario

_ESCAPES = 3  # times as many: templates indent the JSON of tools, and escape what is not ASCII

# Fields of a body that add nothing to its prompt.
_PARAMETERS = frozenset(
    {
        "frequency_penalty",
        "ignore_eos",
        "logit_bias",
        "logprobs",
        "max_completion_tokens",
        "max_tokens",
        "metadata",
        "min_p",
        "min_tokens",
        "parallel_tool_calls",
        "presence_penalty",
        "priority",
        "repetition_penalty",
        "safety_identifier",
        "seed",
        "service_tier",
        "speed",
        "stop",
        "stop_sequences",
        "store",
        "stream_options",
        "temperature",
        "top_k",
        "top_logprobs",
        "top_p",
        "user",
        "verbosity",
    }
)
BY_BYTES = Sizing()
_COUNTS = (
    "prompt_tokens",
    "input_tokens",
    "cache_read_input_tokens",
    "cache_creation_input_tokens",
)


@dataclass(frozen=True, slots=True)
class InputBound:
    """Bounds the input tokens of calls, as the guard does; by bytes until the preflight has learnt more.

    `unbounded`: the traffic tables whose `body` may add to the prompt.
    """

    sizing: Sizing = BY_BYTES
    unbounded: frozenset[str] = frozenset()

    @classmethod
    def learnt(cls, scenario: Scenario, learnt: Learnt) -> Self:
        """Return the bound by what the preflight of a scenario has learnt."""
        learnt_sizing = sizing(scenario, learnt)
        short_prompts = [tokens for _, _, tokens in learnt.short_prompts]
        frame = max(learnt_sizing.frame, 2 * learnt.overhead_tokens, *short_prompts)
        return cls(Sizing(learnt_sizing.per_byte, frame), _unbounded_tables(scenario))

    def most(self, call: Call, traffic: str, counts: Mapping[str, int]) -> int | None:
        """Return a bound that holds for this call, or None without one.

        It is the exact one only where the target has counted more than a quick look at the prompt explains.
        """
        prompt = call.prompt
        quick = self.sizing.frame + int(self.sizing.per_byte * prompt.text_bytes)
        counted = sum(counts.get(name, 0) for name in _COUNTS)
        if counted <= quick:
            return quick
        if traffic in self.unbounded or not _is_text(prompt):
            return None
        bound = self.sizing.tokens(prompt) + len(call.schema or "")
        if prompt.tools or call.schema is not None:
            bound *= _ESCAPES
        return bound


def _unbounded_tables(scenario: Scenario) -> frozenset[str]:
    """Return the traffic tables that send more than parameters of the answer in the body of their calls."""
    tables = []
    for name, traffic in scenario.traffic.items():
        added = {*traffic.body, *scenario.target_of(traffic.target).body}
        if not added <= _PARAMETERS:
            tables.append(name)
    return frozenset(tables)


def _is_text(prompt: Prompt) -> bool:
    """Return whether a prompt has nothing but texts and tools of ours: a block of the user's own may be an image."""
    if any(tool.given is not None for tool in prompt.tools):
        return False
    parts = list(prompt.system)
    for message in prompt.messages:
        if message.more is not None:
            return False
        parts += message.parts
    return all(part.block is None for part in parts)
