"""Fan-out: several calls that make up one request, joined on all, on the first k, or at a deadline.

The request ends at its join, and what is still open then is closed. It fails as soon as its join can no longer be met; a
leg closed at the join did not fail.

    all        every leg brought its answer
    first_k    k legs did
    deadline   every leg did, or the deadline has come and one did; without any it is a timeout
    accept     no leg fails the request: when all are over, what is there is the answer, unless nothing is

Places are taken leg by leg: at most `at_once` of one request, then at most `at_once_per_worker` of all requests.
"""

from __future__ import annotations

from dataclasses import replace
from typing import Annotated, Literal

from pydantic import Field, model_validator

from tailgauge.patterns.events import Done, Event, Give, Request, Steps, Take, Taken, Wait
from tailgauge.patterns.legs import Leg, Legs, leg
from tailgauge.patterns.pattern import Demand, Pattern
from tailgauge.patterns.settings import TrafficSettings
from tailgauge.rows.schema import CENSORED, CUT, EMPTY, JOIN, OK, TIMEOUT, WITH_ANSWER
from tailgauge.table import Positive, Table, Tokens

GATE = "legs"


class LegKind(Table):
    """One kind of leg."""

    prompt_tokens: Tokens
    """prompt size"""
    output_tokens: Tokens
    """`max_tokens`"""
    count: Annotated[int, Field(ge=1, le=1000)] = 1
    """legs of this kind"""


class FanOutSettings(Table):
    """Several calls per request, with `pattern = "fan_out"`."""

    legs: Annotated[int, Field(ge=1, le=1000)] = 5
    """calls per request, without `kinds`"""
    kinds: Annotated[tuple[LegKind, ...], Field(strict=False)] = ()
    """kinds of legs, instead of `legs` equal ones"""
    join: Literal["all", "first_k", "deadline"] = "all"
    """wait for `all` legs, the `first_k`, or until the `deadline`"""
    k: Annotated[int, Field(ge=1, le=1000)] = 1
    """`first_k`: legs to wait for"""
    deadline_s: Positive = 10.0
    """`deadline`: since scheduled; open legs are closed"""
    order: Literal["parallel", "sequential"] = "parallel"
    """`sequential`: one after the other, the control"""
    partial: Literal["fail", "accept"] = "fail"
    """a failed leg fails the request, or others are accepted"""
    at_once: Annotated[int, Field(ge=1, le=1000)] | None = None
    """concurrent legs per request; default all"""
    at_once_per_worker: Annotated[int, Field(ge=1, le=60_000)] | None = None
    """concurrent legs per worker; default unlimited"""

    @model_validator(mode="after")
    def _joinable(self) -> FanOutSettings:
        if self.join == "first_k" and self.k > self.total:
            raise ValueError(f"k ({self.k}) is more than the {self.total} legs of a request")
        if self.total > 1000:
            raise ValueError(f"{self.total} legs are too many: at most 1000")
        return self

    @property
    def total(self) -> int:
        """Legs of a request."""
        if not self.kinds:
            return self.legs
        return sum(kind.count for kind in self.kinds)


class FanOut(Pattern):
    """Several legs per request, with the table's policies in each."""

    name = "fan_out"
    summary = "several calls"
    settings_type = FanOutSettings
    settings: FanOutSettings
    uses = frozenset({"hedge", "retry", "cache"})
    answer = JOIN

    def __init__(self, traffic: TrafficSettings) -> None:
        super().__init__(traffic)
        table: FanOutSettings = self.settings
        self._sizes: list[int] = []  # by leg, where there are kinds of them
        for kind in table.kinds:
            self._sizes += [kind.output_tokens] * kind.count
        self._at_once = table.at_once or table.total
        if table.order == "sequential":
            self._at_once = 1

    def steps(self, request: Request) -> Steps:
        """Start the legs, at most `at_once` at a time, until the join is met or cannot be met any more; then close the rest.

        The deadline counts from when the request was due.
        """
        table = self.settings
        legs = Legs()
        started = 0
        deadline_ns = None
        if table.join == "deadline":
            deadline_ns = request.scheduled_at_ns + round(table.deadline_s * 1e9)
        while True:
            while started < table.total and len(legs.running) < self._at_once:
                yield from legs.start(started, self._leg(request, started))
                started += 1
            event = yield from legs.receive(deadline_ns)
            ended = _end_of_join(table, legs, event, deadline_ns)
            if ended is not None:
                yield from legs.close_all()
                return _joined(legs, ended, event.at_ns)

    def _leg(self, request: Request, number: int) -> Leg:
        """Return a leg with its prompt and its size, and with its place among the legs of the worker."""
        prompt = request.prompt
        if len(request.prompts) > 1:
            prompt = request.prompts[number]
        max_tokens = request.output_tokens
        if self._sizes:
            max_tokens = self._sizes[number]
        call = replace(self.call(prompt, max_tokens), keep_text=False)
        calling = leg(call, request, self.policies, number)
        limit = self.settings.at_once_per_worker
        if limit is None:
            return calling
        return gated(calling, limit, number)

    def prompt_sizes(self, prompt_tokens: int) -> list[int]:
        """Return the size of one prompt for each leg."""
        if not self.settings.kinds:
            return [prompt_tokens] * self.settings.legs
        sizes: list[int] = []
        for kind in self.settings.kinds:
            sizes += [kind.prompt_tokens] * kind.count
        return sizes

    def demand(self, requests: int, input_tokens: int, output_tokens: int) -> Demand:
        """Count every leg as a call."""
        table = self.settings
        calls = requests * table.total
        if not table.kinds:
            return Demand(calls, calls, input_tokens * table.legs, output_tokens * table.legs)
        prompt_tokens = sum(kind.count * kind.prompt_tokens for kind in table.kinds)
        return Demand(calls, calls, requests * prompt_tokens, requests * sum(self._sizes))


def gated(calling: Leg, limit: int, number: int) -> Leg:
    """Take the steps of a leg while it has a slot among all legs of the worker."""
    event = yield Take(GATE, limit, number)
    while not isinstance(event, Taken):
        event = yield Wait()
    end = yield from calling
    yield Give(GATE)
    return end


def _joined(legs: Legs, ended: str, now_ns: int) -> Done:
    """Return the end of a request whose legs are over or closed."""
    ends = [legs.ends[number] for number in sorted(legs.ends)]
    joined_at_ns = None
    if ended in WITH_ANSWER:
        # Of two ends that came together, the one received last may have been the first to arrive.
        answered_ns = [end.at_ns for end in ends if end.ended in WITH_ANSWER]
        joined_at_ns = max([now_ns, *answered_ns])
    return Done(
        ended,
        winner=legs.ends[0].attempt if 0 in legs.ends else None,
        joined_at_ns=joined_at_ns,
        hedge_held=next((end.hedge_held for end in ends if end.hedge_held), None),
    )


def _end_of_join(
    table: FanOutSettings, legs: Legs, event: Event, deadline_ns: int | None
) -> str | None:
    """Return how the request ends now, as a class of outcomes; None: it goes on.

    `deadline_ns`: of the join, None without one; `event`: the one that has just happened.
    """
    ends = [end.ended for end in legs.ends.values()]  # in the order in which they ended
    answered = [ended for ended in ends if ended in WITH_ANSWER]
    failed = [ended for ended in ends if ended not in WITH_ANSWER]
    needed = table.k if table.join == "first_k" else table.total
    if CENSORED in failed:
        return CENSORED
    if table.partial == "fail" and table.total - len(failed) < needed:
        return failed[-1]
    is_due = deadline_ns is not None and event.at_ns >= deadline_ns
    if len(answered) < needed and len(ends) < table.total and not is_due:
        return None
    # One answer that was cut makes the request cut; else one that is ok makes it ok.
    if answered:
        return next(ended for ended in (CUT, OK, EMPTY) if ended in answered)
    is_over = len(ends) == table.total
    return failed[-1] if is_over else TIMEOUT
