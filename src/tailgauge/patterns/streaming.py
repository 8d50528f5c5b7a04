"""Streaming: one call, read to its end. The plainest pattern, and the control for all others.

`cached` and `hedged` send the same: the prompts of one carry cache marks, the table of the other has a hedging policy.

    fallback   no content `after_s` after sending: the call is closed as a timeout and another model is called. So it is
               when the call failed before content and retries, if any, are used up, a 429 too: another model has other
               limits. Not after a `client_error`: the request itself is wrong. The second call is not retried
    cancel     a share of the users leaves, after n chunks or t seconds from sending; `resubmit`: and sends the same
               again, as another call, and reads that to its end
"""

from __future__ import annotations

from dataclasses import replace

from tailgauge.patterns.events import Chunks, Done, Event, Request, Steps
from tailgauge.patterns.legs import LegEnd, Legs, done, leg
from tailgauge.patterns.pattern import Pattern
from tailgauge.patterns.policies import Policies
from tailgauge.patterns.settings import TrafficSettings
from tailgauge.rows.schema import (
    CANCELLED,
    CENSORED,
    CLIENT_ERROR,
    FALLBACK,
    RESUBMIT,
    SERVED,
    TIMEOUT,
)

_FINAL = SERVED | {CANCELLED, CENSORED, CLIENT_ERROR}  # no other model is called after these


class Streaming(Pattern):
    """One call per request, with the table's policies."""

    name = "streaming"
    summary = "one streamed call"
    uses = frozenset(
        {
            "fallback",
            "cancel",
            "reader",
            "hedge",
            "retry",
            "session",
            "cache",
            "stream",
            "thinking",
            "tools",
        }
    )

    def __init__(self, traffic: TrafficSettings) -> None:
        super().__init__(traffic)
        self._without_retries = Policies(TrafficSettings())
        self._is_patient = traffic.fallback.after_s is None and traffic.cancel.share == 0
        # Not if it reads one call to its end, whatever comes; the steps of a plugin may do more.
        reads_only = self._is_patient and self.policies.is_off
        self.acts = not reads_only or type(self).steps is not Streaming.steps

    def steps(self, request: Request) -> Steps:
        """One call, unless its user may leave or be given another."""
        fallback = self.traffic.fallback
        cancel = self.traffic.cancel
        policies = self.policies
        call = self.call(request.prompt, request.output_tokens)
        if self._is_patient:
            return done((yield from leg(call, request, policies)))
        leaves = request.draw < cancel.share
        if leaves and cancel.after_chunks is not None:
            call = replace(call, watch_chunks=cancel.after_chunks)
        legs = Legs()
        yield from legs.start(0, leg(call, request, policies))
        leaves_at_ns = _after(legs.sent_at_ns[0], cancel.after_s if leaves else None)
        patient_to_ns = _after(legs.sent_at_ns[0], fallback.after_s)
        falls_back = fallback.after_s is not None
        while True:
            waits = [at for at in (leaves_at_ns, patient_to_ns) if at is not None]
            event = yield from legs.receive(min(waits, default=None))
            end = legs.ends.get(0)
            read = 0 in legs.with_content
            if patient_to_ns is not None and read:
                patient_to_ns = None
            is_enough = isinstance(event, Chunks) and legs.is_open(event)
            if end is None and leaves and (_has_come(leaves_at_ns, event) or is_enough):
                yield from legs.close(0, CANCELLED)
                if not cancel.resubmit:
                    return Done(CANCELLED, winner=legs.last[0] if read else None)
                leaves = False
                falls_back = False
                leaves_at_ns = None
                patient_to_ns = None
                call = replace(call, watch_chunks=0)
                yield from legs.start(0, leg(call, request, policies, 0, RESUBMIT, legs.last[0]))
            elif falls_back and (_has_come(patient_to_ns, event) if end is None else _failed(end)):
                yield from legs.close(0, TIMEOUT)
                falls_back = False
                patient_to_ns = None
                call = replace(call, target=fallback.target, model=fallback.model)
                yield from legs.start(
                    0, leg(call, request, self._without_retries, 0, FALLBACK, legs.last[0])
                )
            elif end is not None:
                return done(end)


class Cached(Streaming):
    """A streamed call whose prompt shares a prefix with others."""

    name = "cached"
    summary = "with a shared prefix"

    def check(self) -> None:
        """A prefix is needed."""
        if self.traffic.cache is None:
            raise ValueError('cache: expected a table, for pattern = "cached"')


class Hedged(Streaming):
    """A streamed call with a hedge when its first content is late."""

    name = "hedged"
    summary = "with a hedge when late"
    uses = Streaming.uses - {"fallback", "cancel", "reader", "stream"}
    like = Streaming.name

    def check(self) -> None:
        """A policy is needed."""
        if "hedge" not in self.traffic.model_fields_set:
            control = '(policy = "off" is the control)'
            raise ValueError(f'hedge: expected a table, for pattern = "hedged" {control}')


def _after(sent_at_ns: int, seconds: float | None) -> int | None:
    return None if seconds is None else sent_at_ns + round(seconds * 1e9)


def _has_come(at_ns: int | None, event: Event) -> bool:
    return at_ns is not None and event.at_ns >= at_ns


def _failed(end: LegEnd) -> bool:
    return end.attempt is None and end.ended not in _FINAL
