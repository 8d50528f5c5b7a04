"""Requests of Locust's tasks: each is awaited by its task, which may also judge the answer."""

from __future__ import annotations

from collections.abc import Callable

from gevent.event import Event as Signal

Conclude = Callable[[str | None], None]  # records a request; takes the failure that its task found


class TaskRequests:
    """The open requests of tasks, by request id."""

    def __init__(self) -> None:
        self._signals: dict[int, Signal] = {}  # set at the end of a request, for its task
        self._judged: set[int] = set()  # requests whose tasks judge the answer
        self._answered: dict[int, Conclude] = {}  # of these, the ones that wait for their task

    def add(self, request_id: int, signal: Signal, *, is_judged: bool) -> None:
        """Set `signal` at the end of a request; `is_judged`: keep its answer until its task has judged it."""
        self._signals[request_id] = signal
        if is_judged:
            self._judged.add(request_id)

    def drop(self, request_id: int) -> None:
        """Forget a request that was not sent."""
        del self._signals[request_id]
        self._judged.discard(request_id)

    def is_awaited(self, request_id: int) -> bool:
        """Return whether a task waits for the end of a request."""
        return request_id in self._signals

    def is_judged(self, request_id: int) -> bool:
        """Return whether a task is still to judge the answer of a request."""
        return request_id in self._judged

    def end(self, request_id: int) -> bool:
        """Let the task of a request go on; False where the request is no task's."""
        signal = self._signals.pop(request_id, None)
        if signal is None:
            return False
        signal.set()
        return True

    def keep(self, request_id: int, conclude: Conclude) -> None:
        """Keep what records an answered request until its task has judged it."""
        self._answered[request_id] = conclude

    def judge(self, request_id: int, failure: str | None) -> None:
        """Record an answered request as it ended, or as the failure that its task found."""
        self._judged.discard(request_id)
        conclude = self._answered.pop(request_id, None)
        if conclude is not None:
            conclude(failure)

    def unjudged(self) -> list[int]:
        """Return the answered requests that wait for their tasks."""
        return list(self._answered)
