"""Message batches: submitted, polled until they have ended, fetched.

The request is ok when every result is. A poll that failed for the moment is followed by the next one; the batch is given
up at its deadline, counted from the request, as a timeout. Submitting has cause `primary`, all else `poll`.

    results     succeeded: ok; expired: timeout; canceled: cancelled; errored: by the error's type
    several     the request ends as the first result that is none
"""

from __future__ import annotations

import json
from collections.abc import Generator, Iterator, Sequence
from dataclasses import replace
from typing import Annotated, Any

from pydantic import Field

from tailgauge.call import BATCH_FETCH, BATCH_POLL, BATCH_SUBMIT, BATCHES, Call, Prompt
from tailgauge.patterns.events import Done, Event, Request, Step, Steps, Wait
from tailgauge.patterns.legs import done, leg
from tailgauge.patterns.pattern import Demand, Pattern
from tailgauge.patterns.policies import RETRYABLE
from tailgauge.rows.schema import CANCELLED, CLIENT_ERROR, OK, POLL, SERVER_ERROR, TIMEOUT, TURNAROUND
from tailgauge.table import Positive, Table

_CLASSES = {"succeeded": OK, "expired": TIMEOUT, "canceled": CANCELLED}
MAX_ID = 200  # characters of a batch's name, which goes into each later call
_SERVERS = {"api_error", "overloaded_error", "timeout_error"}  # errors that are not the request's


class BatchSettings(Table):
    """Message batches, with `pattern = "batch"`: submitted, polled, fetched."""

    requests: Annotated[int, Field(ge=1, le=100_000)] = Field(10, description="calls in one batch")
    poll_s: Positive = Field(5.0, description="time between two polls")
    deadline_s: Positive = Field(86_400.0, description="a batch that takes longer ends as `timeout`")


class Batch(Pattern):
    """One batch per request."""

    name = "batch"
    summary = "message batches"
    settings_type = BatchSettings
    settings: BatchSettings
    uses = frozenset({"retry", "stream"})
    protocol_needs = frozenset({BATCHES})
    answer = TURNAROUND
    price_share = 0.5
    no_dry_run = "a dry run has no message batches"

    def steps(self, request: Request) -> Steps:
        """Submit, poll, fetch."""
        table, policies = self.settings, self.policies
        prompts = request.prompts if len(request.prompts) > 1 else request.prompts * table.requests
        call = replace(self.call(request.prompt, request.output_tokens), kind=BATCH_SUBMIT, batch=prompts)
        end = yield from leg(call, request, policies)
        if end.ended != OK:
            return done(end)
        batch_id = _read(end.text).get("id")
        if not isinstance(batch_id, str) or len(batch_id) > MAX_ID:
            return Done(CLIENT_ERROR)  # an answer that is not the protocol
        poll = replace(call, kind=BATCH_POLL, batch=(), batch_id=batch_id)
        deadline_ns = request.scheduled_at_ns + round(table.deadline_s * 1e9)
        while _read(end.text).get("processing_status") != "ended":
            next_ns = end.at_ns + round(table.poll_s * 1e9)
            if next_ns > deadline_ns:
                yield from _until(deadline_ns)
                return Done(TIMEOUT)
            yield from _until(next_ns)
            end = yield from leg(poll, request, policies, 0, POLL, 0)
            if end.ended != OK and end.ended not in RETRYABLE:
                return done(end)
        end = yield from leg(replace(poll, kind=BATCH_FETCH), request, policies, 0, POLL, 0)
        return done(replace(end, ended=_worst(end.text)) if end.ended == OK else end)

    def prompt_sizes(self, prompt_tokens: int) -> list[int]:
        """One prompt for each entry of the batch."""
        return [prompt_tokens] * self.settings.requests

    def demand(self, requests: int, input_tokens: int, output_tokens: int) -> Demand:
        """Submitted, polled at least once, fetched."""
        size = self.settings.requests
        return Demand(
            requests * 3, requests * size, input_tokens * size, output_tokens * size, is_bound=False
        )

    def first_calls(self, prompts: Sequence[Prompt], output_tokens: int) -> tuple[list[Call], int]:
        """Submitting it; a poll and the results follow."""
        return [Call(prompts[0], output_tokens, kind=BATCH_SUBMIT, batch=tuple(prompts))], 2


def _until(at_ns: int) -> Generator[Step, Event, None]:
    event = yield Wait(at_ns)
    while event.at_ns < at_ns:
        event = yield Wait(at_ns)


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
