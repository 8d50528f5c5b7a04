"""Whether the limits of a run allow another request to begin.

The guard decides about each call; this only stops a request whose first calls could not be sent. Generated prompts are
sized by the preflight's token counts, all others by their bytes.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from typing import TYPE_CHECKING

from tailgauge.patterns.table import Traffic, pattern_of
from tailgauge.plan.preflight import Learnt
from tailgauge.plan.spend_limit import FRAME_TOKENS, MARGIN, Allowance, Amount, Guard, Sizing
from tailgauge.prompts.words import WORDS
from tailgauge.scenario.prices import Price
from tailgauge.schedule.sessions import Turn

if TYPE_CHECKING:
    from tailgauge.scenario.model import Scenario

_WORD_BYTES = sum(len(word) + 1 for word in WORDS) / len(WORDS)


def guard_for(
    scenario: Scenario,
    limit: Amount,
    learnt: Learnt,
    prices: Mapping[str, Price],
    on_refused: Callable[[str], None],
) -> Guard:
    """The guard of one worker for its share of the limits."""
    return Guard(Allowance(limit, on_refused), sizing(scenario, learnt), prices)


def sizing(scenario: Scenario, learnt: Learnt) -> Sizing:
    """How prompts are sized: by the measured size with a margin, if that holds for all of them."""
    if (
        not learnt.known
        or len(scenario.models()) > 1
        or not all(map(_is_generated, scenario.traffic.values()))
    ):
        return Sizing()
    per_byte = min(1.0, MARGIN * learnt.tokens_per_word / _WORD_BYTES)
    return Sizing(per_byte, max(FRAME_TOKENS, 2 * learnt.overhead_tokens))


def _is_generated(traffic: Traffic) -> bool:
    """Whether prompts consist of generated words only: no files, no answers of the model, no tool definitions."""
    grows = traffic.session.grow and traffic.session.turns_mean > 1
    repeats = pattern_of(traffic).resends_answers
    tools = traffic.tools or (traffic.cache.tools if traffic.cache else 0)
    return traffic.prompt_file is None and not (grows or repeats or tools)


def begins(scenario: Scenario, guard: Guard) -> Callable[[Turn], bool]:
    """Whether the limits allow the first calls of a request."""

    patterns = {name: pattern_of(traffic) for name, traffic in scenario.traffic.items()}

    def admits(turn: Turn) -> bool:
        pattern = patterns[turn.asked.traffic]
        calls, more = pattern.first_calls(turn.prompts, turn.asked.output_tokens)
        return guard.admits(calls, pattern.traffic.model or scenario.target.model, more_calls=more)

    return admits
