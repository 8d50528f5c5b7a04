"""The answer to a request of a task, and what its client needs to know of the call beside it."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass

from tailgauge.rows.schema import OK
from tailgauge.transport.exchange import Exchange


@dataclass(frozen=True, slots=True)
class Answer:
    """The answer as a task gets it. Times in ms since the task made the request; `ttft_ms` is None without content."""

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


@dataclass(frozen=True, slots=True)
class SentRequest:
    """A request that has ended: its answer and its last call; `number` is its id, `url` empty where its task named none.

    `headers_ms`: from the request of the task to the end of the headers, or to the failure before them.
    """

    answer: Answer
    exchange: Exchange | None
    number: int
    name: str
    headers_ms: float
    url: str = ""
