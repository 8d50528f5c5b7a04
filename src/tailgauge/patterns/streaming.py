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

from tailgauge.call import Call
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
        """Make one call, unless its user may leave or be given another."""
        call = self.call(request.prompt, request.output_tokens)
        if self._is_patient:
            return done((yield from leg(call, request, self.policies)))
        return (yield from self._impatient_steps(request, call))

    def _impatient_steps(self, request: Request, call: Call) -> Steps:
        """Make a call that its user may leave, or that is given up for another model.

        Each happens once at most, in one order or the other. A user who leaves ends the request as
        cancelled, or sends the same call again and reads that to its end. The times count from when the
        first call was sent.
        """
        fallback = self.traffic.fallback
        cancel = self.traffic.cancel
        leaves = request.draw < cancel.share
        if leaves and cancel.after_chunks is not None:
            call = replace(call, watch_chunks=cancel.after_chunks)
        legs = Legs()
        yield from legs.start(0, leg(call, request, self.policies))
        leaves_at_ns = _after(legs.sent_at_ns[0], cancel.after_s if leaves else None)
        patient_until_ns = _after(legs.sent_at_ns[0], fallback.after_s)
        falls_back = fallback.after_s is not None
        while True:
            times_ns = [at_ns for at_ns in (leaves_at_ns, patient_until_ns) if at_ns is not None]
            event = yield from legs.receive(min(times_ns, default=None))
            end = legs.ends.get(0)
            has_content = 0 in legs.with_content
            if has_content:  # another model is called only before content
                patient_until_ns = None
            # The chunk with the number after which the user leaves has come.
            has_enough = isinstance(event, Chunks) and legs.is_open(event)
            if end is None and leaves and (has_enough or _has_come(leaves_at_ns, event)):
                yield from legs.close(0, CANCELLED)
                attempt = legs.last_attempt[0]
                if not cancel.resubmit:
                    return Done(CANCELLED, winner=attempt if has_content else None)
                leaves = False
                falls_back = False
                leaves_at_ns = None
                patient_until_ns = None
                call = replace(call, watch_chunks=0)  # its user stays
                resubmitted = leg(call, request, self.policies, cause=RESUBMIT, of_attempt=attempt)
                yield from legs.start(0, resubmitted)
            elif falls_back and _is_given_up(end, patient_until_ns, event):
                yield from legs.close(0, TIMEOUT)
                falls_back = False
                patient_until_ns = None
                call = replace(call, target=fallback.target, model=fallback.model)
                other_model = leg(
                    call,
                    request,
                    self._without_retries,
                    cause=FALLBACK,
                    of_attempt=legs.last_attempt[0],
                )
                yield from legs.start(0, other_model)
            elif end is not None:
                return done(end)


class Cached(Streaming):
    """A streamed call whose prompt shares a prefix with others."""

    name = "cached"
    summary = "with a shared prefix"

    def check(self) -> None:
        """Raise ValueError without a prefix."""
        if self.traffic.cache is None:
            raise ValueError('cache: expected a table, for pattern = "cached"')


class Hedged(Streaming):
    """A streamed call with a hedge when its first content is late."""

    name = "hedged"
    summary = "with hedges"
    uses = Streaming.uses - {"fallback", "cancel", "reader", "stream"}
    like = Streaming.name

    def check(self) -> None:
        """Raise ValueError without a policy."""
        if "hedge" not in self.traffic.model_fields_set:
            needed = 'expected a table, for pattern = "hedged"'
            raise ValueError(f'hedge: {needed} (policy = "off" runs it without hedges)')


def _after(sent_at_ns: int, seconds: float | None) -> int | None:
    if seconds is None:
        return None
    return sent_at_ns + round(seconds * 1e9)


def _has_come(at_ns: int | None, event: Event) -> bool:
    return at_ns is not None and event.at_ns >= at_ns


def _is_given_up(end: LegEnd | None, patient_until_ns: int | None, event: Event) -> bool:
    """Return whether another model is called: the first one is late, or has failed before content."""
    if end is None:
        return _has_come(patient_until_ns, event)
    return end.attempt is None and end.ended not in _FINAL
