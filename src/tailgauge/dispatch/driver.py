"""Drives one request's pattern in real time: steps in, events out, until it returns.

Rule: nothing of a particular pattern is known here.
"""

from __future__ import annotations

from dataclasses import dataclass

from gevent.queue import Empty, SimpleQueue

from tailgauge.clock import monotonic_ns
from tailgauge.dispatch.attempts import Attempts, Origin
from tailgauge.traffic.steps import Ask, Cancel, Done, Due, Event, MakePattern, Send, Sent, Step, Wait
from tailgauge.transport.exchange import Exchange


@dataclass(frozen=True, slots=True)
class Driven:
    """How the request ended, and how many legs and calls it took."""

    done: Done
    legs: int
    attempts: int


def drive(make: MakePattern, ask: Ask, origin: Origin, attempts: Attempts) -> Driven:
    """Run a pattern to its end; calls that it left open are closed."""
    inbox: SimpleQueue[Event] = SimpleQueue()
    calls: dict[int, list[Exchange]] = {}
    pattern = make(ask)
    try:
        step = next(pattern)
        while True:
            step = pattern.send(_do(step, origin, attempts, calls, inbox))
    except StopIteration as stop:
        done = stop.value
    finally:
        for exchange in (e for leg in calls.values() for e in leg):
            exchange.abort("cancelled")
    return Driven(done, len(calls), sum(map(len, calls.values())))


def _do(
    step: Step,
    origin: Origin,
    attempts: Attempts,
    calls: dict[int, list[Exchange]],
    inbox: SimpleQueue[Event],
) -> Event:
    if isinstance(step, Send):
        leg = calls.setdefault(step.leg, [])
        number = len(leg)
        leg.append(attempts.start(origin, step, number, inbox.put))
        return Sent(step.leg, number, monotonic_ns())
    if isinstance(step, Cancel):
        calls[step.leg][step.attempt].abort("cancelled")
        heard: Event = inbox.get()
        return heard
    if not isinstance(step, Wait):
        raise TypeError(f"{step!r} is not driven yet")
    try:
        left = None if step.until_ns is None else max(0.0, (step.until_ns - monotonic_ns()) / 1e9)
        heard = inbox.get(timeout=left)
    except Empty:
        return Due(monotonic_ns())
    return heard
