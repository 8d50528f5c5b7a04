"""The steps of a request and the events that answer them.

The steps of a pattern are a generator. It yields a step, is sent an event, and returns how the request ended. It exists
once and runs on real sockets or on a simulated clock: times come with the events.

    step      answered with
    Send      Sent, at once; the call's FirstContent, Chunks and Ended follow
    Cancel    Closed, at once; the call's Ended follows too
    Wait      the next event, in the order in which things happened, or Due once `until_ns` has come
    Take      Taken, at once, if the gate has a free slot; else Queued, at once, and a later Wait returns Taken
    Give      Given, at once

All are plain values that nobody changes; `frozen` would make each cost four times as much.

Only Wait takes time. When a pattern returns or is closed, its driver closes the calls that it left open, gives back the
places that it holds and withdraws its place in every queue.
"""

from __future__ import annotations

from collections.abc import Generator
from dataclasses import dataclass

from tailgauge.call import Call, Prompt
from tailgauge.rows.schema import CANCELLED, PRIMARY


@dataclass(slots=True)
class Send:
    """Start a call."""

    call: Call
    leg: int = 0
    cause: str = PRIMARY
    of_attempt: int | None = None


@dataclass(slots=True)
class Wait:
    """Receive the next event, or `Due` at `until_ns`."""

    until_ns: int | None = None


@dataclass(slots=True)
class Cancel:
    """Close a call's connection; `ended` becomes its class."""

    leg: int
    attempt: int
    ended: str = CANCELLED


@dataclass(slots=True)
class Take:
    """Take a slot of a gate that all requests of one traffic table in one worker share; at most `limit` are taken."""

    gate: str
    limit: int
    leg: int = 0


@dataclass(slots=True)
class Give:
    """Release one slot of a gate."""

    gate: str


@dataclass(slots=True)
class OfCall:
    """What happened to a call."""

    leg: int
    attempt: int
    at_ns: int


class Sent(OfCall):
    """A call was started, as this attempt of its leg."""

    __slots__ = ()


class Closed(OfCall):
    """A call was closed by `Cancel`."""

    __slots__ = ()


@dataclass(slots=True)
class Taken:
    """The gate has given this leg a slot."""

    leg: int
    at_ns: int


@dataclass(slots=True)
class Queued:
    """The gate is full; `Taken` follows, first come, first served."""

    leg: int
    at_ns: int


@dataclass(slots=True)
class Given:
    """The place was given back."""

    at_ns: int


@dataclass(slots=True)
class FirstContent(OfCall):
    """A call's first content arrived. `sent_at_ns` is when its first byte left."""

    sent_at_ns: int


class Chunks(OfCall):
    """The number of content chunks set by `Call.watch_chunks` has arrived."""

    __slots__ = ()


@dataclass(slots=True)
class Ended(OfCall):
    """A call is over; `ended` is its class (schema.ENDED_CLASSES)."""

    ended: str
    retry_after_s: float | None  # of the answer, read by worker/outcome.py
    should_retry: bool | None = None  # x-should-retry of the target
    text: str | None = None  # with Call.keep_text; of a call about a job, the JSON that came back
    location: str | None = None  # of the answer to a job's submission
    # Also where no `FirstContent` came, because the request does not act on it.
    had_content: bool = False
    status: int | None = None  # of the response; None without one
    error_class: str | None = None  # of an error inside the answer, also after content
    obeys_retry_after: bool = True  # `retry_after_s` is a header that the official SDK reads
    longest_wait_s: float | None = None  # that the protocol's SDK waits because the target says so


@dataclass(slots=True)
class Due:
    """The time that a `Wait` named has come."""

    at_ns: int


@dataclass(slots=True)
class Request:
    """One request of the schedule, its prompts already made.

    `prompts` has one prompt per leg where the legs differ (fan-out); `prompt` is the first of them.
    """

    request_id: int
    scheduled_at_ns: int
    prompts: tuple[Prompt, ...]
    output_tokens: int
    draw: float = 0.0  # uniform in [0, 1): for whatever happens to a share of the requests
    seed: int = 0  # of the run: for whatever else is drawn

    @property
    def prompt(self) -> Prompt:
        """Return the prompt of the first leg."""
        return self.prompts[0]


@dataclass(slots=True)
class Done:
    """How a request ended."""

    ended: str
    winner: int | None = None  # attempt of leg 0 whose answer the user got
    joined_at_ns: int | None = None  # several legs: when the join's condition was met
    hedge_held: str | None = None  # why no hedge was sent although it was due (schema.HEDGE_HELD)
    text: str | None = None  # the answer, where it is needed again (sessions)


Step = Send | Wait | Cancel | Take | Give
Event = Sent | Closed | Taken | Queued | Given | FirstContent | Chunks | Ended | Due
Steps = Generator[Step, Event, Done]


def until(at_ns: int) -> Generator[Step, Event, None]:
    """Wait for a time, whatever happens meanwhile."""
    while (yield Wait(at_ns)).at_ns < at_ns:
        pass


def raising(error: Exception) -> Steps:
    """Raise instead of the first step of a request, whose code has raised before it."""
    raise error
    yield  # makes this function a generator
