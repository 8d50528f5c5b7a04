"""Streaming: one call, read to its end. The plainest pattern, and the control for all others."""

from __future__ import annotations

from tailgauge.call import Call
from tailgauge.traffic.steps import Ask, Done, Ended, Pattern, Send, Wait


def streaming(ask: Ask) -> Pattern:
    """Send once; the request ends as its call does."""
    yield Send(Call(ask.prompt, ask.output_tokens))
    while True:
        event = yield Wait()
        if isinstance(event, Ended):
            return Done(event.ended, winner=event.attempt)
