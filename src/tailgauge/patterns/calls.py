"""The call that a traffic table asks for.

Rule: everything in the table that the wire shall carry, and nothing of what happens around a call.
"""

from __future__ import annotations

from tailgauge.call import Call, Prompt
from tailgauge.patterns.settings import Traffic


def call_for(traffic: Traffic, prompt: Prompt, max_tokens: int) -> Call:
    """One call with this prompt."""
    enabled = traffic.thinking == "enabled"
    return Call(
        prompt,
        max_tokens,
        model=traffic.model,
        stream=traffic.stream,
        thinking=traffic.thinking,
        # The answer's limit may come from a prompt file or be drawn, and must be more than the thinking's.
        thinking_tokens=max(1, min(traffic.thinking_tokens, max_tokens - 1)) if enabled else 0,
        use_tool=traffic.tools > 0,
        keep_text=traffic.session.turns_mean > 1 and traffic.session.grow,
        bytes_per_s=traffic.reader.bytes_per_s,
    )
