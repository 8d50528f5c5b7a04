"""A Locust user whose tasks stream: each request goes through our transport and becomes rows like any other.

The loop is closed: a request is scheduled when its task makes it, at the earliest when the run begins.
"""

from __future__ import annotations

import sys
from collections.abc import Mapping
from dataclasses import dataclass
from itertools import count
from typing import Any

import gevent
from gevent.event import Event
from locust import User
from locust.exception import StopTest, StopUser

from tailgauge.clock import monotonic_ns
from tailgauge.protocols.decoder import StreamDecoder
from tailgauge.protocols.table import PROTOCOLS
from tailgauge.rows.schema import CANCELLED, CENSORED, CLIENT_DROP, OK, TURNS, WITH_ANSWER
from tailgauge.sanitize import plain
from tailgauge.schedule.prompt_file import RowRules, row_of
from tailgauge.schedule.schedule import Planned
from tailgauge.schedule.sessions import AFTER_DROP_S, Turn
from tailgauge.transport.exchange import Exchange
from tailgauge.worker.driver import Drive
from tailgauge.worker.run import Task
from tailgauge.worker.worker import Worker

REQUEST_TYPE = "LLM"  # in Locust's statistics
MAX_NAME = 100  # characters
POLL_S = 0.05  # between looks for a run
_WORKER = "tailgauge_worker"
_USERS = count()  # of this process


class EndedError(Exception):
    """How a request ended, for Locust's own statistics."""


@dataclass(frozen=True, slots=True)
class Answer:
    """What came back. Times in ms since the task made the request; `ttft_ms` is None without content."""

    text: str
    ended: str  # `ok`, or the class of what went wrong
    status: int | None
    ttft_ms: float | None
    e2e_ms: float
    usage: Mapping[str, int | None]  # input_tokens, output_tokens, ...

    @property
    def ok(self) -> bool:
        """Whether it is complete and has content."""
        return self.ended == OK


class StreamingUser(User):
    """A user whose tasks call `self.stream(...)`; `host`, tasks, `wait_time` and weights are Locust's.

    `target` and `traffic` hold keys of the scenario's tables of the same names, such as `{"api_key_env": "MY_KEY"}`.
    """

    abstract = True
    scenario = ""  # default of --scenario: limits, objectives and the rest of the target
    protocol: str | None = None
    model: str | None = None
    target: Mapping[str, Any] = {}
    traffic: Mapping[str, Any] = {}

    def __init__(self, environment: Any) -> None:
        super().__init__(environment)
        self._run: Task | None = None
        self._rules = RowRules()
        self._next_id = 0

    def stream(
        self, prompt: str | None = None, *, messages: list[dict[str, Any]] | None = None,
        system: str | list[dict[str, Any]] | None = None, tools: list[dict[str, Any]] | None = None,
        max_tokens: int | None = None, name: str | None = None, tags: Mapping[str, object] | None = None,
    ) -> Answer:  # fmt: skip
        """Send one request and wait for its whole answer; a failure is an answer whose `ok` is False.

        `messages`, `system` and `tools` are the protocol's own, as in prompt files. `name`, by default the task's, and `tags`
        are columns of the rows; Locust's statistics have the name.
        """
        task_name = _task_name()
        name = plain(name or task_name, MAX_NAME)
        run = self._begun()
        if (table := run.scenario.traffic.get(type(self).__name__)) is None:
            who = f"class {type(self).__name__}"
            raise StopTest(f"the master of this run has no {who}: give it this locustfile")
        row = _row(
            self._rules, prompt=prompt, messages=messages, system=system, tools=tools, output_tokens=max_tokens, name=name,
            tags={"task": task_name, **{key: str(value) for key, value in (tags or {}).items()}},
        )  # fmt: skip
        at_ns = max(0, monotonic_ns() - run.dispatcher.start_at_ns)
        number = self._next_id
        self._next_id = number + 1 if (number + 1) % TURNS else _first_id(run)
        first = number - number % TURNS
        output_tokens = row.get("output_tokens", table.output_tokens)
        planned = Planned(first, at_ns, type(self).__name__, row["prompt_tokens"], output_tokens, 0, row)
        over = Event()
        drive = run.dispatcher.send_now(Turn(at_ns, number, planned, planned), over)
        if drive is not None:
            try:
                over.wait()
            finally:
                drive.leave()  # where this user was killed
        answer = _answer(drive, run.dispatcher.start_at_ns + at_ns)
        if answer.ended == CENSORED or (drive is None and run.dispatcher.stopped):
            raise StopUser  # the run is over
        self._report(name, answer)
        if drive is None:
            gevent.sleep(AFTER_DROP_S)
        return answer

    def _begun(self) -> Task:
        """The run of this user, once it has begun."""
        worker: Worker | None = getattr(self.environment, _WORKER, None)
        if worker is None:
            raise StopTest("a StreamingUser needs Locust's command: locust -f FILE")
        if self._run is None:
            while (run := worker.task) is None or run.finished.is_set():
                gevent.sleep(POLL_S)
            while not (start_at_ns := run.dispatcher.start_at_ns):
                gevent.sleep(POLL_S)
            gevent.sleep(max(0, start_at_ns - monotonic_ns()) / 1e9)
            self._run = run
            self._next_id = _first_id(run)
            self._rules = _rules(run)
        return self._run

    def _report(self, name: str, answer: Answer) -> None:
        """Tell Locust, whose listeners may raise what they may of any client."""
        status = f" (HTTP {answer.status})" if answer.status else ""
        fine = answer.ended in WITH_ANSWER | {CANCELLED}
        self.environment.events.request.fire(
            request_type=REQUEST_TYPE, name=name, response_time=answer.e2e_ms,
            response_length=len(answer.text.encode()), response=answer,
            exception=None if fine else EndedError(f"{answer.ended}{status}"), context=self.context(),
        )  # fmt: skip


def serve_tasks(environment: Any, worker: Worker) -> None:
    """Tasks of this environment's users send by this worker."""
    setattr(environment, _WORKER, worker)


def _first_id(run: Task) -> int:
    """Request id of the first request of another user; none has it in the other workers."""
    return (next(_USERS) * TURNS + run.number) * TURNS


def _task_name() -> str:
    """Name of the task that calls `stream`, through whatever functions; outside of a task that of the caller."""
    caller = frame = sys._getframe(2)  # noqa: SLF001 - Locust does not say which task it executes
    while frame.f_back is not None:
        if frame.f_back.f_code.co_name == "execute_task":
            return frame.f_code.co_name
        frame = frame.f_back
    return caller.f_code.co_name


def _rules(run: Task) -> RowRules:
    """What the target can be sent."""
    scenario = run.scenario
    return RowRules(protocols=(PROTOCOLS[scenario.target.protocol],), bounded=scenario.guard.is_of_tokens)


def _row(rules: RowRules, **given: Any) -> dict[str, Any]:
    """What is asked, checked as a row of a prompt file is; ValueError for what cannot be sent."""
    return row_of({key: value for key, value in given.items() if value is not None}, rules, {})


def _answer(drive: Drive | None, asked_at_ns: int) -> Answer:
    if drive is None or drive.done is None:
        return Answer("", CLIENT_DROP, None, None, 0.0, {})
    done = drive.done
    calls = drive.calls.get(0, [])
    call = calls[-1 if done.winner is None else done.winner] if calls else None
    ended_at_ns = getattr(call, "ended_at_ns", None) or monotonic_ns()
    e2e_ms = (ended_at_ns - asked_at_ns) / 1e6
    if not isinstance(call, Exchange) or not isinstance(call.decoder, StreamDecoder):
        return Answer("", done.ended, None, None, e2e_ms, {})
    first = call.decoder.first_content
    ttft_ms = None if first is None else (first.at - asked_at_ns) / 1e6
    return Answer(done.text or "", done.ended, call.status, ttft_ms, e2e_ms, dict(call.decoder.usage.live()))
