"""Fan-out: several calls that make up one request, joined on all, on the first k, or at a deadline.

Rule: the request ends at its join, and what is still open then is closed. It fails as soon as its join can no longer be
met; a leg closed at the join did not fail.

    all        every leg brought its answer
    first_k    k legs did
    deadline   every leg did, or the deadline has come and one did; without any it is a timeout
    accept     no leg fails the request: when all are over, what is there is the answer, unless nothing is

Places are asked for leg by leg: at most `at_once` of one request, then at most `at_once_per_worker` of all requests.
"""

from __future__ import annotations

from dataclasses import dataclass, replace

from tailgauge.patterns.calls import call_for
from tailgauge.patterns.events import Ask, Done, Event, Give, MakePattern, Pattern, Take, Taken, Wait
from tailgauge.patterns.leg import ANSWERED, Leg, Policies, leg
from tailgauge.patterns.legs import Legs
from tailgauge.patterns.settings import FanOut, Traffic
from tailgauge.rows.schema import CENSORED, EMPTY, OK, TIMEOUT

GATE = "legs"


def fan_out(traffic: Traffic) -> MakePattern:
    """Several legs a request, with the table's policies in each."""
    policies, table = Policies(traffic), traffic.fan_out
    sizes = [kind.output_tokens for kind in table.kinds for _ in range(kind.count)]
    at_once = 1 if table.order == "sequential" else table.at_once or table.total

    def one(ask: Ask, number: int) -> Leg:
        prompt = ask.prompts[number if len(ask.prompts) > 1 else 0]
        call = replace(
            call_for(traffic, prompt, sizes[number] if sizes else ask.output_tokens), keep_text=False
        )
        calling = leg(call, ask, policies, number)
        return (
            calling if table.at_once_per_worker is None else _gated(calling, table.at_once_per_worker, number)
        )

    def pattern(ask: Ask) -> Pattern:
        legs, begun = Legs(), 0
        deadline_ns = (
            ask.scheduled_at_ns + round(table.deadline_s * 1e9) if table.join == "deadline" else None
        )
        while True:
            while begun < table.total and len(legs.running) < at_once:
                yield from legs.start(begun, one(ask, begun))
                begun += 1
            event = yield from legs.hear(deadline_ns)
            verdict = _verdict(table, legs, event, deadline_ns)
            if verdict is None:
                continue
            yield from legs.close_all()
            ends = [legs.ends[number] for number in sorted(legs.ends)]
            # Of two ends that came together, the one heard last may have been the first to arrive.
            joined_at_ns = max([event.at_ns, *(end.at_ns for end in ends if end.ended in ANSWERED)])
            return Done(
                verdict.ended,
                winner=legs.ends[0].attempt if 0 in legs.ends else None,
                joined_at_ns=joined_at_ns if verdict.joined else None,
                hedge_held=next((end.held for end in ends if end.held), None),
            )

    return pattern


def _gated(calling: Leg, limit: int, number: int) -> Leg:
    """A leg that waits for its place among all legs of the worker."""
    heard = yield Take(GATE, limit, number)
    while not isinstance(heard, Taken):
        heard = yield Wait()
    end = yield from calling
    yield Give(GATE)
    return end


@dataclass(frozen=True, slots=True)
class _Verdict:
    ended: str
    joined: bool = True


def _verdict(table: FanOut, legs: Legs, event: Event, deadline_ns: int | None) -> _Verdict | None:
    """How the request ends now; None: it goes on."""
    ends = [end.ended for end in legs.ends.values()]  # in the order in which they ended
    answered = [ended for ended in ends if ended in ANSWERED]
    failed = [ended for ended in ends if ended not in ANSWERED]
    needed = table.k if table.join == "first_k" else table.total
    if CENSORED in failed:
        return _Verdict(CENSORED, joined=False)
    answer = _Verdict(OK if OK in answered else EMPTY)
    if len(answered) >= needed:
        return answer
    if table.partial == "fail" and table.total - len(failed) < needed:
        return _Verdict(failed[-1], joined=False)
    if len(ends) == table.total:
        return answer if answered else _Verdict(failed[-1], joined=False)
    if deadline_ns is not None and event.at_ns >= deadline_ns:
        return answer if answered else _Verdict(TIMEOUT, joined=False)
    return None
