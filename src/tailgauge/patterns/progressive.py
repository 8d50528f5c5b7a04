"""Progressive: the large model (leg 0) and a fast one with a short answer (leg 1) are asked at the same time.

Rule: the request ends with the large model's answer, and as it does. The fast answer bridges the time until then: if it
is not there by then it is closed, and if it fails the user only waits longer. Joined when both brought their answers.
"""

from __future__ import annotations

from dataclasses import replace

from tailgauge.patterns.calls import call_for
from tailgauge.patterns.events import Ask, MakePattern, Pattern
from tailgauge.patterns.leg import ANSWERED, Policies, leg
from tailgauge.patterns.legs import Legs
from tailgauge.patterns.settings import Traffic
from tailgauge.patterns.streaming import done

LARGE, FAST = 0, 1


def progressive(traffic: Traffic) -> MakePattern:
    """Two models at once."""
    policies, table = Policies(traffic), traffic.progressive

    def pattern(ask: Ask) -> Pattern:
        large = call_for(traffic, ask.prompt, ask.output_tokens)
        fast = replace(
            large, model=table.fast_model, target=table.target, max_tokens=table.fast_tokens, keep_text=False
        )
        legs = Legs()
        yield from legs.start(LARGE, leg(large, ask, policies, LARGE))
        yield from legs.start(FAST, leg(fast, ask, policies, FAST))
        while LARGE not in legs.ends:
            yield from legs.hear()
        yield from legs.close_all()
        ends = legs.ends.values()
        both = len(ends) == 2 and all(end.ended in ANSWERED for end in ends)
        return replace(done(legs.ends[LARGE]), joined_at_ns=max(e.at_ns for e in ends) if both else None)

    return pattern
