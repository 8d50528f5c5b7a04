"""Progressive: the large model (leg 0) and a fast one with a short answer (leg 1) are called at the same time.

The request ends with the large model's answer, and as it does. The fast answer bridges the time until then: if it is not
there by then it is closed, and if it fails the user only waits longer. Joined when both brought their answers.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import replace
from typing import Literal

from pydantic import Field

from tailgauge.call import Call, Prompt
from tailgauge.patterns.events import Request, Steps
from tailgauge.patterns.legs import Legs, done, leg
from tailgauge.patterns.pattern import Demand, Pattern
from tailgauge.rows.schema import EARLIEST_LEG, WITH_ANSWER
from tailgauge.table import Table, Tokens

LARGE = 0
FAST = 1


class ProgressiveSettings(Table):
    """A small model answers first, with `pattern = "progressive"`."""

    fast_model: str | None = Field(None, min_length=1)
    """its model; default the target's"""
    fast_tokens: Tokens = 20
    """its `max_tokens`"""
    target: Literal["main", "second"] = "main"
    """its target"""


class Progressive(Pattern):
    """Two models at once."""

    name = "progressive"
    summary = "a small model first"
    settings_type = ProgressiveSettings
    settings: ProgressiveSettings
    uses = frozenset({"retry", "session"})
    answer = EARLIEST_LEG

    def steps(self, request: Request) -> Steps:
        """Call the large and the fast model at once; the request is over with the large model's answer, and ends as it does.

        It has a joined time only if both brought an answer: the later end.
        """
        table = self.settings
        large = self.call(request.prompt, request.output_tokens)
        fast = replace(
            large,
            model=table.fast_model,
            target=table.target,
            max_tokens=table.fast_tokens,
            keep_text=False,
        )
        legs = Legs()
        yield from legs.start(LARGE, leg(large, request, self.policies, LARGE))
        yield from legs.start(FAST, leg(fast, request, self.policies, FAST))
        while LARGE not in legs.ends:
            yield from legs.receive()
        # The fast answer is of no use any more.
        yield from legs.close_all()
        ends = legs.ends.values()
        is_joined = len(ends) == 2 and all(end.ended in WITH_ANSWER for end in ends)
        joined_at_ns = None
        if is_joined:
            joined_at_ns = max(end.at_ns for end in ends)
        return replace(done(legs.ends[LARGE]), joined_at_ns=joined_at_ns)

    def models(self) -> list[tuple[str, str | None]]:
        """Return the fast model too."""
        return [*super().models(), (self.settings.target, self.settings.fast_model)]

    def demand(self, requests: int, input_tokens: int, output_tokens: int) -> Demand:
        """Count both calls, which read the whole prompt."""
        calls = requests * 2
        fast_tokens = requests * self.settings.fast_tokens
        return Demand(calls, calls, input_tokens * 2, output_tokens + fast_tokens)

    def first_calls(self, prompts: Sequence[Prompt], output_tokens: int) -> tuple[list[Call], int]:
        """Return the large model's call; the fast one's goes with it."""
        calls, _ = super().first_calls(prompts, output_tokens)
        return calls, 1
