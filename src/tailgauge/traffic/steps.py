"""What a pattern says and hears.

A pattern is a generator. It yields a step (what it wants), is sent an event (what happened), and returns how the
request ended. It exists once and can be driven by real sockets or by a virtual clock: times come with the events.
"""

from __future__ import annotations

from collections.abc import Callable, Generator
from dataclasses import dataclass

from tailgauge.records import PRIMARY


@dataclass(frozen=True, slots=True)
class Call:
    """One HTTP call as the traffic wants it."""

    prompt: str
    max_tokens: int


@dataclass(frozen=True, slots=True)
class Send:
    """Start a call. Answered with `Sent`."""

    call: Call
    leg: int = 0
    cause: str = PRIMARY
    of_attempt: int | None = None


@dataclass(frozen=True, slots=True)
class Wait:
    """Hear the next event, or `Due` at `until_ns`."""

    until_ns: int | None = None


@dataclass(frozen=True, slots=True)
class Cancel:
    """Close a call's connection. Answered with the next event."""

    leg: int
    attempt: int


@dataclass(frozen=True, slots=True)
class Sent:
    """A call was started, as this attempt of its leg."""

    leg: int
    attempt: int
    at_ns: int


@dataclass(frozen=True, slots=True)
class Headers:
    """A call's response headers are complete."""

    leg: int
    attempt: int
    at_ns: int
    status: int


@dataclass(frozen=True, slots=True)
class FirstContent:
    """A call's first content arrived."""

    leg: int
    attempt: int
    at_ns: int


@dataclass(frozen=True, slots=True)
class Ended:
    """A call is over; `ended` is its class (records.ENDED_CLASSES)."""

    leg: int
    attempt: int
    at_ns: int
    ended: str
    retry_after_s: float | None


@dataclass(frozen=True, slots=True)
class Due:
    """The time that a `Wait` named has come."""

    at_ns: int


@dataclass(frozen=True, slots=True)
class Ask:
    """What the schedule wants of one request, its prompt already made."""

    request_id: int
    scheduled_at_ns: int
    prompt: str
    output_tokens: int


Step = Send | Wait | Cancel
Event = Sent | Headers | FirstContent | Ended | Due
Pattern = Generator[Step, Event, str]
MakePattern = Callable[[Ask], Pattern]
