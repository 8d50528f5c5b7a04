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
        self, prompt: str | None = None, *, messages: list[dict[str, Any]] | None = None,
        system: str | list[dict[str, Any]] | None = None, tools: list[dict[str, Any]] | None = None,
        max_tokens: int | None = None, name: str | None = None, tags: Mapping[str, object] | None = None,
    ) -> Answer:  # fmt: skip
        """Send one request and wait for its whole answer; a failure is an answer whose `ok` is False.

        `messages`, `system` and `tools` are the protocol's own, as in prompt files. `name`, by default the task's, and `tags`
        are columns of the rows; Locust's statistics have the name.
        """
        task_name = _task_name()
        asked = {
            "prompt": prompt, "messages": messages, "system": system, "tools": tools, "output_tokens": max_tokens,
        }  # fmt: skip
        self.client.settle()
        run = self.wait_for_run()
        row = _row(
            self._rules,
            **asked,
            name=plain(name or task_name, MAX_NAME),
            tags=_tags(task_name, tags),
        )
        sent = self._send(run, row)
        answer = sent.answer
        meta = {
            "request_type": TOTAL, "name": sent.name, "response_time": answer.e2e_ms, "response": answer,
            "response_length": len(answer.text.encode()), "context": self.context(),
            "exception": None if answer.ended in FINE else ended_error(answer.ended, answer.status),
        }  # fmt: skip
        self.report(meta, answer.ttft_ms)
        return answer

    def check_url(self, what: str, url: str) -> None:
        """Raise ClientError for an address that is not that of the run's calls."""
        run = self.wait_for_run()
        if not self._address:
            self._address = (
                run.attempts.address(Call(Prompt.of("any"), 1), type(self).__name__) or ""
            )
        if why := refused_path(what, url, self._address, run.scenario.target.protocol):
            raise ClientError(why)

    def send_given(
        self, what: str, given: GivenRequest, limit: int | None, *, name: str,
        tags: Mapping[str, object] | None, timeout_s: float | None, is_checked: bool,
    ) -> SentRequest:  # fmt: skip
        """Send a body as it is, and wait for its answer. `limit`: of the answer, in tokens, where the body has one."""
        task_name = _task_name()
        run = self.wait_for_run()
        row: dict[str, Any] = {
            "given": given, "name": plain(name, MAX_NAME), "tags": _tags(task_name, tags),
            "prompt_tokens": max(1, len(given.body) // CHARACTERS_PER_TOKEN),
        }  # fmt: skip
        if limit is not None:
            row["output_tokens"] = limit
        elif run.scenario.guard.is_of_tokens:
            raise ClientError(
                f"{what}: max_tokens: expected in the body, because [guard] limits tokens"
            )
        return self._send(run, row, self._address, timeout_s=timeout_s, is_checked=is_checked)

    def _send(
        self, run: WorkerRun, row: dict[str, Any], address: str = "", *, timeout_s: float | None = None,
        is_checked: bool = False,
    ) -> SentRequest:  # fmt: skip
        """Send one request of this user and wait for its end."""
        if (table := run.scenario.traffic.get(type(self).__name__)) is None:
            who = f"class {type(self).__name__}"
            raise StopTest(f"the master of this run has no {who}: give it this locustfile")
        at_ns = max(0, monotonic_ns() - run.dispatcher.start_at_ns)
        number = self._next_id
        self._next_id = number + 1 if (number + 1) % TURNS else _first_id(run)
        first = number - number % TURNS
        output_tokens = row.get("output_tokens", table.output_tokens)
        planned = Planned(
            first, at_ns, type(self).__name__, row["prompt_tokens"], output_tokens, 0, row
        )
        over = Event()
        drive = run.dispatcher.send_now(
            Turn(at_ns, number, planned, planned), over, is_checked=is_checked
        )
        if drive is not None:
            try:
                if not over.wait(timeout_s):
                    drive.close_calls(TIMEOUT)
                    over.wait()
            finally:
                drive.leave()  # where this user was killed
        exchange = _exchange(drive)
        asked_at_ns = run.dispatcher.start_at_ns + at_ns
        answer = _answer(drive, exchange, asked_at_ns)
        if answer.ended == CENSORED or (drive is None and run.dispatcher.stopped):
            raise StopUser  # the run is over
        if drive is None:
            gevent.sleep(AFTER_DROP_S)
        headers_ms = answer.e2e_ms
        if exchange is not None and exchange.headers_at_ns is not None:
            headers_ms = (exchange.headers_at_ns - asked_at_ns) / 1e6
        return SentRequest(answer, exchange, number, row["name"], headers_ms, address)

    def judge(self, sent: SentRequest, failure: str | None) -> None:
        """Record a request that was sent to be judged: as it ended, or with what its task found wrong."""
        if self._run is not None:
            self._run.dispatcher.judge(
                sent.number, None if failure is None else shown(failure, MAX_FAILURE)
            )

    def base_url(self) -> str:
        """Address of the run's target, for requests that are not measured."""
        return self.wait_for_run().targets.urls[0]

    def wait_for_run(self) -> WorkerRun:
        """Return the run of this user, once it has begun."""
        worker: Worker | None = getattr(self.environment, _WORKER, None)
        if worker is None:
            raise StopTest("a StreamingUser needs Locust's command: locust -f FILE")
        if self._run is None:
            while (run := worker.run) is None or run.finished.is_set():
                gevent.sleep(POLL_S)
            while not (start_at_ns := run.dispatcher.start_at_ns):
                gevent.sleep(POLL_S)
            gevent.sleep(max(0, start_at_ns - monotonic_ns()) / 1e9)
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
        """Tell Locust, whose listeners may raise what they may of any client.

        TTFT and the time to the headers have entries of their own, which are not in the sum of all requests.
        """
        self.environment.events.request.fire(**request_meta)
        if ttft_ms is not None:
            self.environment.stats.get(request_meta["name"], TTFT).log(ttft_ms, 0)
        if headers_ms is not None:
            self.environment.stats.get(request_meta["name"], HEADERS).log(headers_ms, 0)


def serve_tasks(environment: Any, worker: Worker) -> None:
    """Tasks of this environment's users send by this worker."""
    setattr(environment, _WORKER, worker)


def _first_id(run: WorkerRun) -> int:
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


def _rules(run: WorkerRun) -> RowRules:
    """What the target can be sent."""
    scenario = run.scenario
    return RowRules(
        protocols=(PROTOCOLS[scenario.target.protocol],), bounded=scenario.guard.is_of_tokens
    )


def _row(rules: RowRules, **given: Any) -> dict[str, Any]:
    """What is asked, checked as a row of a prompt file is; ValueError for what cannot be sent."""
    return row_of({key: value for key, value in given.items() if value is not None}, rules, {})


def _tags(task_name: str, tags: Mapping[str, object] | None) -> dict[str, str]:
    return {"task": task_name, **{key: str(value) for key, value in (tags or {}).items()}}


def _exchange(drive: Drive | None) -> Exchange | None:
    """The call whose answer the user got, or the last one."""
    calls = drive.calls.get(0, []) if drive is not None and drive.done is not None else []
    if drive is None or drive.done is None or not calls:
        return None
    call = calls[-1 if drive.done.winner is None else drive.done.winner]
    return call if isinstance(call, Exchange) else None


def _answer(drive: Drive | None, call: Exchange | None, asked_at_ns: int) -> Answer:
    if drive is None or drive.done is None:
        return Answer("", CLIENT_DROP, None, None, 0.0, {})
    done = drive.done
    ended_at_ns = getattr(call, "ended_at_ns", None) or monotonic_ns()
    e2e_ms = (ended_at_ns - asked_at_ns) / 1e6
    if call is None or not isinstance(call.decoder, StreamDecoder):
        return Answer("", done.ended, None, None, e2e_ms, {})
    first = call.decoder.first_content
    ttft_ms = None if first is None else (first.at - asked_at_ns) / 1e6
    return Answer(
        done.text or "", done.ended, call.status, ttft_ms, e2e_ms, dict(call.decoder.usage.live())
    )
