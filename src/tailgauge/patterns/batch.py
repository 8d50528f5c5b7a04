"""Message batches: jobs with several prompts.

The request is ok when every result is.

    results     succeeded: ok; expired: timeout; canceled: cancelled; errored: by the error's type
    several     the request ends as the first result that is none
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import replace
from typing import Annotated, Any

from pydantic import Field

from tailgauge.call import BATCHES, JOB_SUBMIT, Call, Prompt
from tailgauge.patterns.events import Request
from tailgauge.patterns.job import Job, JobSettings, JobState, name_of, read
from tailgauge.patterns.legs import LegEnd
from tailgauge.patterns.pattern import Demand
from tailgauge.rows.schema import CANCELLED, CLIENT_ERROR, OK, SERVER_ERROR, TIMEOUT
from tailgauge.table import Positive

_CLASSES = {"succeeded": OK, "expired": TIMEOUT, "canceled": CANCELLED}
MAX_ID = 200  # characters of a batch's name
_SERVERS = {"api_error", "overloaded_error", "timeout_error"}  # errors that are not the request's


class BatchSettings(JobSettings):
    """Message batches, with `pattern = "batch"`."""

    requests: Annotated[int, Field(ge=1, le=100_000)] = 10
    """calls per batch"""
    poll_s: Positive = 5.0
    """time until the first poll"""
    deadline_s: Positive = 86_400.0
    """later batches end as `timeout`"""


class Batch(Job):
    """One batch per request."""

    name = "batch"
    summary = "message batches"
    settings_type = BatchSettings
    settings: BatchSettings
    uses = frozenset({"retry", "stream"})
    protocol_needs = frozenset({BATCHES})
    price_share = 0.5
    no_dry_run = "a dry run has no message batches"
    deletes = False

    def prompts(self, request: Request) -> tuple[Prompt, ...]:
        """Return a prompt for each entry: its own, or the only one for all."""
        if len(request.prompts) > 1:
            return request.prompts
        return request.prompts * self.settings.requests

    def state(self, end: LegEnd) -> JobState:
        """Return the state of the batch as the API shows it."""
        batch = read(end.text)
        has_ended = batch.get("processing_status") == "ended"
        return JobState(name_of(batch.get("id"), MAX_ID), OK if has_ended else None)

    def result(self, end: LegEnd, ended: str) -> str:  # noqa: ARG002 - its results tell
        """Return the class of the first result that did not succeed; without results a client error."""
        classes = [_class(_object(line.get("result"))) for line in _lines(end.text)]
        if not classes:
            return CLIENT_ERROR
        return next((name for name in classes if name != OK), OK)

    def prompt_sizes(self, prompt_tokens: int) -> list[int]:
        """Return the size of one prompt for each entry of the batch."""
        return [prompt_tokens] * self.settings.requests

    def demand(self, requests: int, input_tokens: int, output_tokens: int) -> Demand:
        """Count three calls for each batch: it is submitted, polled at least once, fetched. Each entry has its tokens."""
        entries = self.settings.requests
        return Demand(
            calls=requests * 3,
            prompts=requests * entries,
            input_tokens=input_tokens * entries,
            output_tokens=output_tokens * entries,
            is_bound=False,
        )

    def first_calls(self, prompts: Sequence[Prompt], output_tokens: int) -> tuple[list[Call], int]:
        """Return the submission; a poll and the results follow."""
        call = self.call(prompts[0], output_tokens)
        return [replace(call, kind=JOB_SUBMIT, batch=tuple(prompts))], 2


def _class(result: dict[str, Any]) -> str:
    """Return the class of one result of a batch."""
    kind = str(result.get("type"))
    if kind != "errored":
        return _CLASSES.get(kind, CLIENT_ERROR)
    error = _object(result.get("error"))
    error = _object(error.get("error")) or error  # the API wraps the error in an error response
    return SERVER_ERROR if str(error.get("type")) in _SERVERS else CLIENT_ERROR


def _lines(text: str | None) -> Iterator[dict[str, Any]]:
    return (read(line) for line in (text or "").splitlines() if line.strip())


def _object(value: Any) -> dict[str, Any]:
    return value if isinstance(value, dict) else {}
