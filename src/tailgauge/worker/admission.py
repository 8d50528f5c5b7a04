"""Whether the limits of a run allow one more request."""

from __future__ import annotations

from collections.abc import Callable

from tailgauge.patterns.pattern import Pattern
from tailgauge.patterns.table import pattern_of
from tailgauge.plan.spend_limit import Guard
from tailgauge.scenario.model import Scenario
from tailgauge.schedule.sessions import Turn


def admission(scenario: Scenario, guard: Guard) -> Callable[[Turn], bool]:
    """Return a function that says whether a request may begin: not if the limits forbid one of its first calls."""
    patterns = {name: pattern_of(traffic) for name, traffic in scenario.traffic.items()}
    one_call_a_prompt = set()
    for name, pattern in patterns.items():
        if type(pattern).first_calls is Pattern.first_calls:
            one_call_a_prompt.add(name)

    def admits(turn: Turn) -> bool:
        # At the in-flight cap no prompts are made: the request is dropped, unless nothing more may be sent.
        if not turn.prompts:
            return guard.admits((), "", more_calls=1)
        # Where only calls are counted, they need not be made.
        if guard.is_of_calls_only and turn.asked.traffic in one_call_a_prompt:
            return guard.admits_calls(len(turn.prompts))
        pattern = patterns[turn.asked.traffic]
        calls, later_calls = pattern.first_calls(turn.prompts, turn.asked.output_tokens)
        model = scenario.model_of(pattern.traffic)
        return guard.admits(calls, model, more_calls=later_calls)

    return admits
