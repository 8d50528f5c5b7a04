"""Whether the limits of a run allow one more request.

`plan.spend_limit` counts what calls use; here is only which calls begin a request.
"""

from __future__ import annotations

from collections.abc import Callable

from tailgauge.patterns.pattern import Pattern
from tailgauge.patterns.table import pattern_of
from tailgauge.plan.spend_limit import Guard
from tailgauge.scenario.model import Scenario
from tailgauge.schedule.sessions import Turn


def admission(scenario: Scenario, guard: Guard) -> Callable[[Turn], bool]:
    """Return a function that says whether a request may begin: whether the limits allow its first calls.

    It takes nothing from the limits: each call does, when it is sent. Once the guard has refused, it
    refuses everything.
    """
    patterns = {name: pattern_of(traffic) for name, traffic in scenario.traffic.items()}
    # Patterns that begin with one call for each prompt.
    one_call_a_prompt = set()
    for name, pattern in patterns.items():
        if type(pattern).first_calls is Pattern.first_calls:
            one_call_a_prompt.add(name)

    def admits(turn: Turn) -> bool:
        # At the in-flight cap a request has no prompts, because it will be dropped. The limits must still allow a call.
        if not turn.prompts:
            return guard.admits((), "", more_calls=1)
        # If the limits count only calls, the calls need not be built to be counted.
        if guard.is_of_calls_only and turn.asked.traffic in one_call_a_prompt:
            return guard.admits_calls(len(turn.prompts))
        pattern = patterns[turn.asked.traffic]
        calls, later_calls = pattern.first_calls(turn.prompts, turn.asked.output_tokens)
        model = scenario.model_of(pattern.traffic)
        return guard.admits(calls, model, more_calls=later_calls)

    return admits
