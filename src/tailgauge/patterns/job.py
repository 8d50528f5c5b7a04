"""Jobs: submitted, polled until they have ended, fetched. Message batches are jobs too.

The target's answer to the submission names the job: its `Location`, or what the protocol reads from the body. A poll that
failed for the moment is followed by the next one. The target's `retry-after` goes before the interval. Submitting has cause
`primary`, polling and fetching `poll`, cancelling `cancel`.

    cancel      a share of the users gives up `after_s` after the request, if the job has not ended: the job is cancelled
    deadline    counted from the request; the job is cancelled, the request is a timeout
    404, 410    the target has lost or dropped the job: a client error, as of any call
"""

from __future__ import annotations

import json
from collections.abc import Sequence
from dataclasses import replace
from typing import Annotated, Any, NamedTuple

from pydantic import Field

from tailgauge.call import JOB_CANCEL, JOB_FETCH, JOB_POLL, JOB_SUBMIT, JOBS, Call, Prompt
from tailgauge.patterns.events import Done, Request, Steps, until
from tailgauge.patterns.legs import LegEnd, done, leg
from tailgauge.patterns.pattern import Demand, Pattern
from tailgauge.patterns.policies import RETRYABLE
from tailgauge.rows.schema import CANCEL, CANCELLED, CLIENT_ERROR, OK, POLL, TIMEOUT, TURNAROUND
from tailgauge.table import Positive, Table

LEAST_WAIT_S = 0.05  # whatever `retry-after` says: 0 would be a loop
MAX_NAME = 2000  # characters of a job's name or URL, which goes into each later call


class JobSettings(Table):
    """Jobs: submitted, polled and fetched, with `pattern = "job"`."""

    poll_s: Positive = 1.0
    """time until the first poll"""
    backoff: Annotated[float, Field(ge=1, le=10)] = 1.0
    """factor between polls; `retry-after` goes before"""
    poll_max_s: Positive = 60.0
    """longest time between polls without `retry-after`"""
    deadline_s: Positive = 600.0
    """later jobs end as `timeout`"""


class JobState(NamedTuple):
    """What an answer said of a job."""

    name: str | None  # of the job, for the calls after its submission
    ended: str | None  # its class; None while it is under way
    result: str | None = None  # where the result is; None: where the job is
    is_fetched: bool = False  # the answer has the result


class Job(Pattern):
    """One job per request."""

    name = "job"
    summary = "submitted, polled and fetched"
    settings_type = JobSettings
    settings: JobSettings
    uses = frozenset({"retry", "cancel"})
    protocol_needs = frozenset({JOBS})
    answer = TURNAROUND
    adds_calls = "polls"
    deletes = True  # a job that nobody waits for is cancelled

    def check(self) -> None:
        """Raise ValueError for users who count chunks or submit again: a job has no chunks, and is submitted once."""
        cancel = self.traffic.cancel
        if cancel.after_chunks is not None or cancel.resubmit:
            raise ValueError(f'cancel: expected after_s alone, for pattern = "{self.name}"')

    def steps(self, request: Request) -> Steps:
        """Submit the job, poll it until it has ended, and fetch its result.

        The job is given up at its deadline, or when its user leaves: then it is cancelled, which
        message batches are not.
        """
        table = self.settings
        policies = self.policies
        submit = replace(
            self.call(request.prompt, request.output_tokens),
            kind=JOB_SUBMIT,
            batch=self.prompts(request),
        )
        end = yield from leg(submit, request, policies)
        if end.ended != OK:
            return done(end)
        state = self.state(end)
        if state.name is None:
            return Done(CLIENT_ERROR)  # an answer that is not the protocol
        poll = replace(submit, kind=JOB_POLL, batch=(), job=state.name)
        # Until when it is waited for, and how the request ends then.
        until_ns, ended_then = self._patience(request)
        interval_s = min(table.poll_s, table.poll_max_s)  # grows after each poll
        while state.ended is None:
            next_ns = _next_poll_ns(end, interval_s)
            if next_ns > until_ns:
                yield from until(until_ns)
                if self.deletes:
                    delete = replace(poll, kind=JOB_CANCEL)
                    yield from leg(delete, request, policies, cause=CANCEL, of_attempt=0)
                return Done(ended_then)
            yield from until(next_ns)
            end = yield from leg(poll, request, policies, cause=POLL, of_attempt=0)
            if end.ended == OK:
                state = self.state(end)
            # A poll that failed for the moment is followed by the next one; the state is the last
            # known.
            elif end.ended not in RETRYABLE:
                return done(end)
            interval_s = min(interval_s * table.backoff, table.poll_max_s)
        if state.ended == OK and not state.is_fetched:
            fetch = replace(poll, kind=JOB_FETCH, job=state.result or poll.job)
            end = yield from leg(fetch, request, policies, cause=POLL, of_attempt=0)
        if end.ended == OK:
            # The last call was ok; the job itself may have failed.
            end = replace(end, ended=self.result(end, state.ended))
        return done(end)

    def _patience(self, request: Request) -> tuple[int, str]:
        """Return until when a job is waited for, and how the request ends then: at the deadline, or when its user leaves."""
        cancel = self.traffic.cancel
        deadline_ns = request.scheduled_at_ns + round(self.settings.deadline_s * 1e9)
        leaves_ns = request.scheduled_at_ns + round((cancel.after_s or 0) * 1e9)
        if request.draw < cancel.share and leaves_ns < deadline_ns:
            return leaves_ns, CANCELLED
        return deadline_ns, TIMEOUT

    def prompts(self, request: Request) -> tuple[Prompt, ...]:  # noqa: ARG002 - batches have several
        """Return the prompts of a submission with several."""
        return ()

    def state(self, end: LegEnd) -> JobState:
        """Return what an answer that is ok says of the job: the fields of `JobState` as JSON, as the protocol wrote them."""
        fields = read(end.text)
        return JobState(
            name=name_of(end.location) or name_of(fields.get("name")),
            ended=name_of(fields.get("ended")),
            result=name_of(fields.get("result")),
            is_fetched=bool(fields.get("is_fetched")),
        )

    def result(self, end: LegEnd, ended: str) -> str:  # noqa: ARG002 - batches read the result
        """Return the class of a job that has ended, whose last call is ok."""
        return ended

    def demand(self, requests: int, input_tokens: int, output_tokens: int) -> Demand:
        """Count three calls for each request: it is submitted, polled at least once, fetched."""
        return Demand(requests * 3, requests, input_tokens, output_tokens, is_bound=False)

    def first_calls(self, prompts: Sequence[Prompt], output_tokens: int) -> tuple[list[Call], int]:
        """Return the submission; a poll and the result follow."""
        return [replace(self.call(prompts[0], output_tokens), kind=JOB_SUBMIT)], 2


def _next_poll_ns(end: LegEnd, interval_s: float) -> int:
    """Return when to poll again after a call that ended so; the target's `retry-after` goes before the interval."""
    wait_s = interval_s
    if end.retry_after_s is not None:
        wait_s = max(LEAST_WAIT_S, end.retry_after_s)
    return end.at_ns + round(wait_s * 1e9)


def read(text: str | None) -> dict[str, Any]:
    """Return a JSON object, or an empty one for anything else."""
    try:
        tree = json.loads(text or "")
    except (ValueError, RecursionError):
        return {}
    return tree if isinstance(tree, dict) else {}


def name_of(value: Any, limit: int = MAX_NAME) -> str | None:
    """Return a name or a URL that the target gave; None for what is none, or is too long for each later call."""
    is_name = isinstance(value, str) and 0 < len(value) <= limit
    return value if is_name else None
