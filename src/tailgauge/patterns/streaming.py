"""Streaming: one call, read to its end. The plainest pattern, and the control for all others.

Rule: what the patterns `streaming`, `cached` and `hedged` share; they differ in the prompt and in the policies.

    fallback   no content `after_s` after sending: the call is closed as a timeout and another model asked. So it is when
               the call failed before content and retries, if any, are used up, a 429 too: another model has other
               limits. Not after a `client_error`: the request itself is wrong. The second call is not retried
    cancel     a share of the users leaves, after n chunks or t seconds from sending; `resubmit`: and sends the same
               again, as a call of its own, and reads that to its end
"""

from __future__ import annotations

from dataclasses import replace

from tailgauge.patterns.calls import call_for
from tailgauge.patterns.events import Ask, Chunks, Done, Event, MakePattern, Pattern
from tailgauge.patterns.leg import ANSWERED, LegEnd, Policies, leg
from tailgauge.patterns.legs import Legs
from tailgauge.patterns.settings import Traffic
from tailgauge.rows.schema import CANCELLED, CENSORED, CLIENT_ERROR, FALLBACK, RESUBMIT, TIMEOUT

_STANDS = ANSWERED | {CANCELLED, CENSORED, CLIENT_ERROR}  # no other model is asked after these


def streaming(traffic: Traffic) -> MakePattern:
    """One call a request, with the table's policies."""
    policies, plain = Policies(traffic), Policies(Traffic())
    steady = traffic.fallback.after_s is None and traffic.cancel.share == 0

    def pattern(ask: Ask) -> Pattern:
        if not steady:
            return (yield from _impatient(traffic, ask, policies, plain))
        call = call_for(traffic, ask.prompt, ask.output_tokens)
        return done((yield from leg(call, ask, policies)))

    return pattern


def done(end: LegEnd) -> Done:
    """How a request of one leg ended."""
    return Done(end.ended, winner=end.attempt, hedge_held=end.held, text=end.text)


def _impatient(traffic: Traffic, ask: Ask, policies: Policies, plain: Policies) -> Pattern:
    """One call, of a user who may not wait for it, or not read it to its end."""
    fallback, cancel = traffic.fallback, traffic.cancel
    call = call_for(traffic, ask.prompt, ask.output_tokens)
    leaves = ask.draw < cancel.share
    if leaves and cancel.after_chunks is not None:
        call = replace(call, watch_chunks=cancel.after_chunks)
    legs = Legs()
    yield from legs.start(0, leg(call, ask, policies))
    sent_ns = legs.sent_at_ns[0]
    leaves_at_ns = sent_ns + round(cancel.after_s * 1e9) if leaves and cancel.after_s is not None else None
    patient_to_ns = None if fallback.after_s is None else sent_ns + round(fallback.after_s * 1e9)
    falls_back = fallback.after_s is not None
    while True:
        waits = [at for at in (leaves_at_ns, patient_to_ns) if at is not None]
        event = yield from legs.hear(min(waits, default=None))
        end, read = legs.ends.get(0), 0 in legs.with_content
        if patient_to_ns is not None and read:
            patient_to_ns = None
        if end is None and leaves and (_has_come(leaves_at_ns, event) or _is_enough(legs, event)):
            yield from legs.close(0, CANCELLED)
            if not cancel.resubmit:
                return Done(CANCELLED, winner=legs.last[0] if read else None)
            leaves, falls_back, leaves_at_ns, patient_to_ns = False, False, None, None
            call = replace(call, watch_chunks=0)
            yield from legs.start(0, leg(call, ask, policies, 0, RESUBMIT, legs.last[0]))
        elif falls_back and (_has_come(patient_to_ns, event) if end is None else _failed(end)):
            yield from legs.close(0, TIMEOUT)
            falls_back, patient_to_ns = False, None
            call = replace(call, target=fallback.target, model=fallback.model)
            yield from legs.start(0, leg(call, ask, plain, 0, FALLBACK, legs.last[0]))
        elif end is not None:
            return done(end)


def _has_come(at_ns: int | None, event: Event) -> bool:
    return at_ns is not None and event.at_ns >= at_ns


def _is_enough(legs: Legs, event: Event) -> bool:
    return isinstance(event, Chunks) and legs.is_told(event)


def _failed(end: LegEnd) -> bool:
    return end.attempt is None and end.ended not in _STANDS
