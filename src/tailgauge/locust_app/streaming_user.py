"""A Locust user whose tasks stream: each request goes through our transport and becomes rows like any other.

The loop is closed: a request is scheduled when its task makes it, at the earliest when the run begins.
"""

from __future__ import annotations

import sys
from collections.abc import Mapping
from itertools import count
from typing import Any

import gevent
from gevent.event import Event
from locust import User
from locust.exception import StopTest, StopUser

from tailgauge.call import Call, GivenRequest, Prompt
from tailgauge.clock import monotonic_ns
from tailgauge.locust_app.answer import Answer, SentRequest
from tailgauge.locust_app.client import (
    FINE,
    HEADERS,
    TOTAL,
    TTFT,
    Client,
    ClientError,
    ended_error,
    refused_path,
)
from tailgauge.protocols.decoder import StreamDecoder
from tailgauge.protocols.table import PROTOCOLS
from tailgauge.redaction import shown
from tailgauge.rows.schema import CENSORED, CLIENT_DROP, TIMEOUT, TURNS
from tailgauge.sanitize import plain
from tailgauge.schedule.prompt_file import CHARACTERS_PER_TOKEN, RowRules, row_of
from tailgauge.schedule.schedule import Planned
from tailgauge.schedule.sessions import AFTER_DROP_S, Turn
from tailgauge.transport.exchange import Exchange
from tailgauge.worker.driver import Drive
from tailgauge.worker.run import WorkerRun
from tailgauge.worker.worker import Worker

MAX_NAME = 100  # characters
MAX_FAILURE = 200
POLL_S = 0.05  # between looks for a run
_WORKER = "tailgauge_worker"
_USERS = count()  # of this process


class StreamingUser(User):
    """A user whose tasks call `self.client.post(...)` as in an HttpUser, or `self.stream(...)`.

    `host`, tasks, `wait_time` and weights are Locust's.

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
        self._run: WorkerRun | None = None
        self._rules = RowRules()
        self._next_id = 0
        self._address = ""  # of the run's calls
        self.client = Client(self)

    def stream(
        self,
        prompt: str | None = None,
        *,
        messages: list[dict[str, Any]] | None = None,
        system: str | list[dict[str, Any]] | None = None,
        tools: list[dict[str, Any]] | None = None,
        max_tokens: int | None = None,
        name: str | None = None,
        tags: Mapping[str, object] | None = None,
    ) -> Answer:
        """Send one request and wait for its whole answer; a failure is an answer whose `ok` is False.

        `messages`, `system` and `tools` are the protocol's own, as in prompt files. `name`, by default the task's, and `tags`
        are columns of the rows; Locust's statistics have the name.
        """
        task_name = _task_name()
        self.client.settle()
        run = self.wait_for_run()
        row = _row(
            self._rules,
            prompt=prompt,
            messages=messages,
            system=system,
            tools=tools,
            output_tokens=max_tokens,
            name=plain(name or task_name, MAX_NAME),
            tags=_tags(task_name, tags),
        )
        sent = self._send(run, row)
        answer = sent.answer
        exception = None
        if answer.ended not in FINE:
            exception = ended_error(answer.ended, answer.status)
        meta = {
            "request_type": TOTAL,
            "name": sent.name,
            "response_time": answer.e2e_ms,
            "response": answer,
            "response_length": len(answer.text.encode()),
            "context": self.context(),
            "exception": exception,
        }
        self.report(meta, answer.ttft_ms)
        return answer

    def check_url(self, method: str, url: str) -> None:
        """Raise ClientError for an address that is not that of the run's calls."""
        run = self.wait_for_run()
        if not self._address:
            call = Call(Prompt.of("any"), 1)
            self._address = run.attempts.address(call, type(self).__name__) or ""
        refusal = refused_path(method, url, self._address, run.scenario.target.protocol)
        if refusal:
            raise ClientError(refusal)

    def send_given(
        self,
        method: str,
        request: GivenRequest,
        limit: int | None,
        *,
        name: str,
        tags: Mapping[str, object] | None,
        timeout_s: float | None,
        is_checked: bool,
    ) -> SentRequest:
        """Send a body as it is, and wait for its answer. `limit`: of the answer, in tokens, where the body has one."""
        task_name = _task_name()
        run = self.wait_for_run()
        row: dict[str, Any] = {
            "given": request,
            "name": plain(name, MAX_NAME),
            "tags": _tags(task_name, tags),
            "prompt_tokens": max(1, len(request.body) // CHARACTERS_PER_TOKEN),
        }
        if limit is not None:
            row["output_tokens"] = limit
        elif run.scenario.guard.is_of_tokens:
            raise ClientError(
                f"{method}: max_tokens: expected in the body, because [guard] limits tokens"
            )
        return self._send(run, row, self._address, timeout_s=timeout_s, is_checked=is_checked)

    def _send(
        self,
        run: WorkerRun,
        row: dict[str, Any],
        address: str = "",
        *,
        timeout_s: float | None = None,
        is_checked: bool = False,
    ) -> SentRequest:
        """Send one request of this user and wait for its end; raise StopUser where the run is over.

        `row`: the request as a row of a prompt file. `address`: where it goes, for the answer. `timeout_s` closes the
        call. `is_checked`: its task judges it, and only then is it recorded. A request that was dropped at the in-flight
        cap is answered after a pause. If Locust kills the user meanwhile, the request ends as cancelled.
        """
        at_ns = max(0, monotonic_ns() - run.dispatcher.start_at_ns)
        turn = self._next_turn(run, row, at_ns)
        over = Event()
        drive = run.dispatcher.send_now(turn, over, is_checked=is_checked)
        if drive is not None:
            try:
                if not over.wait(timeout_s):
                    drive.close_calls(TIMEOUT)
                    over.wait()
            finally:
                drive.leave()  # where this user was killed
        exchange = _exchange(drive)
        scheduled_at_ns = run.dispatcher.start_at_ns + at_ns
        answer = _answer(drive, exchange, scheduled_at_ns)
        if answer.ended == CENSORED or (drive is None and run.dispatcher.stopped):
            raise StopUser  # the run is over
        if drive is None:
            gevent.sleep(AFTER_DROP_S)
        headers_ms = answer.e2e_ms
        if exchange is not None and exchange.headers_at_ns is not None:
            headers_ms = (exchange.headers_at_ns - scheduled_at_ns) / 1e6
        return SentRequest(
            answer=answer,
            exchange=exchange,
            number=turn.request_id,
            name=row["name"],
            headers_ms=headers_ms,
            url=address,
        )

    def _next_turn(self, run: WorkerRun, row: dict[str, Any], at_ns: int) -> Turn:
        """Return the next request of this user, which is a session without end."""
        class_name = type(self).__name__
        table = run.scenario.traffic.get(class_name)
        if table is None:
            raise StopTest(
                f"the master of this run has no class {class_name}: give it this locustfile"
            )
        number = self._next_id
        self._next_id = number + 1
        if not self._next_id % TURNS:
            self._next_id = _first_id(run)
        planned = Planned(
            request_id=number - number % TURNS,
            at_ns=at_ns,
            traffic=class_name,
            prompt_tokens=row["prompt_tokens"],
            output_tokens=row.get("output_tokens", table.output_tokens),
            turns=0,
            source=row,
        )
        return Turn(at_ns, number, planned, planned)

    def judge(self, sent: SentRequest, failure: str | None) -> None:
        """Record a request that was sent to be judged: as it ended, or with the failure that its task found."""
        if failure is not None:
            failure = shown(failure, MAX_FAILURE)
        if self._run is not None:
            self._run.dispatcher.judge(sent.number, failure)

    def base_url(self) -> str:
        """Return the address of the run's target, for requests that are not measured."""
        return self.wait_for_run().targets.urls[0]

    def wait_for_run(self) -> WorkerRun:
        """Return the run of this user, once it has begun."""
        worker: Worker | None = getattr(self.environment, _WORKER, None)
        if worker is None:
            raise StopTest("a StreamingUser needs Locust's command: locust -f FILE")
        if self._run is None:
            while worker.run is None or worker.run.finished.is_set():
                gevent.sleep(POLL_S)
            run = worker.run
            while not run.dispatcher.start_at_ns:
                gevent.sleep(POLL_S)
            gevent.sleep(max(0, run.dispatcher.start_at_ns - monotonic_ns()) / 1e9)
            self._run = run
            self._next_id = _first_id(run)
            self._rules = _rules(run)
        return self._run

    def report(
        self,
        request_meta: Mapping[str, Any],
        ttft_ms: float | None,
        headers_ms: float | None = None,
    ) -> None:
        """Report a request to Locust, whose listeners may raise what they may of any client.

        TTFT and the time to the headers have entries of their own, which are not in the sum of all requests.
        """
        self.environment.events.request.fire(**request_meta)
        if ttft_ms is not None:
            self.environment.stats.get(request_meta["name"], TTFT).log(ttft_ms, 0)
        if headers_ms is not None:
            self.environment.stats.get(request_meta["name"], HEADERS).log(headers_ms, 0)


def serve_tasks(environment: Any, worker: Worker) -> None:
    """Let the tasks of this environment's users send by this worker."""
    setattr(environment, _WORKER, worker)


def _first_id(run: WorkerRun) -> int:
    """Return the request id of the first request of another user; no other worker has it."""
    return (next(_USERS) * TURNS + run.number) * TURNS


def _task_name() -> str:
    """Return the name of the task that calls `stream`, through whatever functions; outside of a task that of the caller."""
    caller = frame = sys._getframe(2)  # noqa: SLF001 - Locust does not say which task it executes
    while frame.f_back is not None:
        if frame.f_back.f_code.co_name == "execute_task":
            return frame.f_code.co_name
        frame = frame.f_back
    return caller.f_code.co_name


def _rules(run: WorkerRun) -> RowRules:
    """Return what the target can be sent."""
    scenario = run.scenario
    return RowRules(
        protocols=(PROTOCOLS[scenario.target.protocol],), bounded=scenario.guard.is_of_tokens
    )


def _row(rules: RowRules, **fields: Any) -> dict[str, Any]:
    """Return the request as a row of a prompt file, checked as such; ValueError for what cannot be sent."""
    row = {key: value for key, value in fields.items() if value is not None}
    return row_of(row, rules, {})


def _tags(task_name: str, tags: Mapping[str, object] | None) -> dict[str, str]:
    texts = {"task": task_name}
    for key, value in (tags or {}).items():
        texts[key] = str(value)
    return texts


def _exchange(drive: Drive | None) -> Exchange | None:
    """Return the call whose answer the user got, or the last one."""
    if drive is None or drive.done is None:
        return None
    calls = drive.calls.get(0, [])
    if not calls:
        return None
    index = -1
    if drive.done.winner is not None:
        index = drive.done.winner
    call = calls[index]
    if not isinstance(call, Exchange):
        return None
    return call


def _answer(drive: Drive | None, call: Exchange | None, scheduled_at_ns: int) -> Answer:
    """Return the answer of a request that has ended; `call`: its exchange, if there was one."""
    if drive is None or drive.done is None:
        return Answer("", CLIENT_DROP, None, None, e2e_ms=0.0, usage={})
    outcome = drive.done
    ended_at_ns = getattr(call, "ended_at_ns", None) or monotonic_ns()
    e2e_ms = (ended_at_ns - scheduled_at_ns) / 1e6
    if call is None or not isinstance(call.decoder, StreamDecoder):
        return Answer("", outcome.ended, None, None, e2e_ms=e2e_ms, usage={})
    content = call.decoder.first_content
    ttft_ms = None
    if content is not None:
        ttft_ms = (content.at - scheduled_at_ns) / 1e6
    return Answer(
        text=outcome.text or "",
        ended=outcome.ended,
        status=call.status,
        ttft_ms=ttft_ms,
        e2e_ms=e2e_ms,
        usage=dict(call.decoder.usage.live()),
    )
