"""Message batches: submitted, polled until they have ended, fetched.

Rule: the request is ok when every result is. A poll that failed for the moment is followed by the next one; the batch is
given up at its deadline, counted from the request, as a timeout. Submitting has cause `primary`, all else `poll`.

    results     succeeded: ok; expired: timeout; canceled: cancelled; errored: by the error's own type
    several     the request ends as the first result that is none
"""

from __future__ import annotations

import json
from collections.abc import Generator, Iterator
from dataclasses import replace
from typing import Any

from tailgauge.call import BATCH_FETCH, BATCH_POLL, BATCH_SUBMIT
from tailgauge.patterns.calls import call_for
from tailgauge.patterns.events import Ask, Done, Event, MakePattern, Pattern, Step, Wait
from tailgauge.patterns.leg import Policies, leg
from tailgauge.patterns.retry_policy import RETRYABLE
from tailgauge.patterns.settings import Traffic
from tailgauge.patterns.streaming import done
from tailgauge.rows.schema import CANCELLED, CLIENT_ERROR, OK, POLL, SERVER_ERROR, TIMEOUT

_CLASSES = {"succeeded": OK, "expired": TIMEOUT, "canceled": CANCELLED}
MAX_ID = 200  # characters of a batch's name, which goes into each later call
_SERVERS = {"api_error", "overloaded_error", "timeout_error"}  # errors that are not the request's


def batch(traffic: Traffic) -> MakePattern:
    """One batch a request."""
    policies, table = Policies(traffic), traffic.batch

    def pattern(ask: Ask) -> Pattern:
        prompts = ask.prompts if len(ask.prompts) > 1 else ask.prompts * table.requests
        call = replace(call_for(traffic, ask.prompt, ask.output_tokens), kind=BATCH_SUBMIT, batch=prompts)
        end = yield from leg(call, ask, policies)
        if end.ended != OK:
            return done(end)
        batch_id = _read(end.text).get("id")
        if not isinstance(batch_id, str) or len(batch_id) > MAX_ID:
            return Done(CLIENT_ERROR)  # an answer that is not the protocol
        poll = replace(call, kind=BATCH_POLL, batch=(), batch_id=batch_id)
        deadline_ns = ask.scheduled_at_ns + round(table.deadline_s * 1e9)
        while _read(end.text).get("processing_status") != "ended":
            next_ns = end.at_ns + round(table.poll_s * 1e9)
            if next_ns > deadline_ns:
                yield from _until(deadline_ns)
                return Done(TIMEOUT)
            yield from _until(next_ns)
            end = yield from leg(poll, ask, policies, 0, POLL, 0)
            if end.ended != OK and end.ended not in RETRYABLE:
                return done(end)
        end = yield from leg(replace(poll, kind=BATCH_FETCH), ask, policies, 0, POLL, 0)
        return done(replace(end, ended=_worst(end.text)) if end.ended == OK else end)

    return pattern


def _until(at_ns: int) -> Generator[Step, Event, None]:
    heard = yield Wait(at_ns)
    while heard.at_ns < at_ns:
        heard = yield Wait(at_ns)


def _worst(text: str | None) -> str:
    """Class of the first result that did not succeed."""
    kinds = [_class(_object(line.get("result"))) for line in _lines(text)]
    return next((kind for kind in kinds if kind != OK), OK if kinds else CLIENT_ERROR)


def _class(result: dict[str, Any]) -> str:
    if result.get("type") != "errored":
        return _CLASSES.get(str(result.get("type")), CLIENT_ERROR)
    error = _object(result.get("error"))
    error = _object(error.get("error")) or error  # the API wraps the error in an error response
    return SERVER_ERROR if str(error.get("type")) in _SERVERS else CLIENT_ERROR


def _lines(text: str | None) -> Iterator[dict[str, Any]]:
    return (_read(line) for line in (text or "").splitlines() if line.strip())


def _read(text: str | None) -> dict[str, Any]:
    """A JSON object, or an empty one for anything else."""
    try:
        return _object(json.loads(text or ""))
    except (ValueError, RecursionError):
        return {}


def _object(value: Any) -> dict[str, Any]:
    return value if isinstance(value, dict) else {}
