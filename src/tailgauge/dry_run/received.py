"""Reads an unusual answer of a dry run with the worker's own decoder and rules, so that its class and its row are those of a real run.

Only answers that end or are encoded in an unusual way come here, as the bytes that the endpoint made. The rows of all
others come from their plan, without bytes: see `attempt_rows`.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from dataclasses import dataclass, field
from typing import Any, cast

from tailgauge.call import Call
from tailgauge.plan.input_bound import InputBound
from tailgauge.protocols.decoder import AnswerSettings, StreamDecoder
from tailgauge.protocols.protocol import WireProtocol
from tailgauge.protocols.usage import Request
from tailgauge.rows.schema import AttemptRow, Chunks
from tailgauge.simulator.core.exchange import Exchange
from tailgauge.worker import attempt_row
from tailgauge.worker.outcome import Outcome, outcome

EVENT_STREAM = "text/event-stream"
Pieces = Iterable[tuple[int, bytes]]  # when each piece arrived

_BY_BYTES = InputBound()  # the simulated endpoint is not asked before


@dataclass(slots=True, kw_only=True)
class Response:
    """A response as the worker's rules read it: what only a socket has is null or 0."""

    status: int
    headers: list[tuple[bytes, bytes]]
    plain_body: bytes = b""
    cut: str | None = None
    cut_text: str | None = None
    aborted: str | None = None
    sent_at_ns: int | None = None
    headers_at_ns: int | None = None
    first_byte_at_ns: int | None = None
    ended_at_ns: int | None = None
    aborted_at_ns: int | None = None
    reads: int = 0
    body_bytes: int = 0
    receive_lag_max_ns: int | None = None
    bytes_per_s: float | None = None
    paused_ns: int | None = None
    pool_wait_ns: int | None = None
    user_stamps: bool = False
    connection: None = None
    failure: tuple[str, str] | None = None
    _first: dict[bytes, bytes] = field(default_factory=dict)

    def __post_init__(self) -> None:
        for name, value in self.headers:
            self._first.setdefault(name.lower(), value)

    def header(self, name: bytes) -> bytes:
        """Return the first header of this name; empty without one."""
        return self._first.get(name, b"")


def response_of(status: int, headers: Mapping[str, str], body: bytes = b"") -> Any:
    """Return a response for the rules of the worker, which expect one of a socket."""
    pairs = [(name.encode(), value.encode()) for name, value in headers.items()]
    return Response(status=status, headers=pairs, plain_body=body)


class Received:
    """One answer, decoded as far as it came."""

    def __init__(self, exchange: Exchange, call: Call, wire: WireProtocol) -> None:
        self._call = call
        self._obeys_max_tokens = wire.obeys_max_tokens
        self._streams = exchange.request.stream
        self.decoder = StreamDecoder(
            wire.on_event,
            AnswerSettings(
                kind=call.kind,
                keep_text=call.keep_text,
                watch_field=call.watch_field,
                max_tokens=call.max_tokens,
                obeys_max_tokens=wire.obeys_max_tokens,
                protocol=wire.name,
                ends_naturally=call.ends_naturally,
                takes_bare_names=wire.takes_bare_names,
            ),
            on_whole=None if self._streams else wire.on_whole,
        )
        headers = {
            exchange.wire.REQUEST_ID_HEADER: f"req_{exchange.number:024d}",
            **exchange.headers,
        }
        if self._streams:
            headers["content-type"] = EVENT_STREAM
        self._response: Response = response_of(200, headers)

    def read(self, pieces: Pieces) -> None:
        """Read what arrived, each piece by itself."""
        for number, (at_ns, data) in enumerate(pieces):
            if self._streams:
                self.decoder.feed(data, at_ns, at_ns, at_ns, number, at_rest=True)
            else:
                self._response.plain_body = data
                self.decoder.whole(data, at_ns, at_ns, number)

    def outcome(self, cut: str | None = None) -> Outcome:
        """Return how it ended; `cut`: how its connection did, where not in order."""
        self._response.cut = cut
        return outcome(cast("Any", self._response), self.decoder)

    def fill(self, row: AttemptRow, result: Outcome) -> Chunks:
        """Complete the row of the ended call by the worker's own rules, and return its chunks.

        `result`: how it ended. Usage beyond what the prompt can have is marked as in a real run. Stamps and waits in the
        row are those of the dry run's clock and stay.
        """
        call = self._call
        usage = self.decoder.usage
        request = Request(
            prompt_bytes=call.prompt.text_bytes,
            most_input_tokens=_BY_BYTES.most(call, row.traffic, usage.largest),
            max_tokens=call.max_tokens if self._obeys_max_tokens else None,
        )
        counts = usage.counts(request, has_content=self.decoder.has_content)
        response = self._response
        response.sent_at_ns = row.sent_at_ns
        response.headers_at_ns = row.headers_at_ns
        response.first_byte_at_ns = row.first_byte_at_ns
        response.ended_at_ns = row.ended_at_ns
        response.aborted_at_ns = row.cancelled_at_ns
        # These are by the clock of the dry run.
        stamps = row.stamps
        wait = (row.retry_after_s, row.retry_after_from)
        attempt_row.fill(row, cast("Any", response), self.decoder, result, counts)
        row.stamps = stamps
        row.retry_after_s, row.retry_after_from = wait
        _, chunks = self.decoder.take()
        return chunks
