"""One streamed answer on its socket, from its headers to its end mark, or to the fault that ends it before.

This file writes the bytes of an answer at its due times. The server log takes the clock just before each write. Due times
are absolute, so lateness never adds up: a late chunk leaves at once, and the next one is due at its own time. Callbacks of
the loop's timers, and of the engine's, write straight to the socket: no task, no future and no coroutine per chunk.
"""

from __future__ import annotations

import asyncio
import socket
import struct
from collections.abc import Callable
from functools import partial
from time import monotonic_ns

from aiohttp import HttpVersion11, web

from tailgauge.simulator.behaviours.faults import END_MARK, RESET
from tailgauge.simulator.core.answer import Answer, do_nothing
from tailgauge.simulator.core.encoding import Encoding, Frames, framed
from tailgauge.simulator.http.driver import sleep_until

HEADERS = {"content-type": "text/event-stream; charset=utf-8", "cache-control": "no-cache"}
# SO_LINGER on, with 0 seconds: unsent bytes are thrown away and the peer gets a reset.
_NO_LINGER = struct.pack("ii", 1, 0)
_FULL_BYTES = 256 * 1024  # unread by a client, after which the writer waits to save memory
_FULL_WAIT_S = 0.002
_EARLY_NS = 1000  # the loop's timers are floats of seconds and may fire that early
_BURST = 64  # most chunks that are written before other streams get their turn


class EventStream(web.StreamResponse):
    """A streamed response whose headers leave with its first event, or at once where `early`."""

    def __init__(self, headers: dict[str, str], *, early: bool) -> None:
        super().__init__(headers=headers)
        self._send_headers_immediately = early

    def send_headers(self) -> None:
        """Let the headers leave now, if they have not."""
        assert self._payload_writer is not None
        self._payload_writer.send_headers()


class ChunkWriter:
    """Writes an answer's chunks when they are due, and appends the time just before each write to `sent_at_ns`.

    `head` returns the bytes that leave when the answer opens, together with the first chunk if that is due then.
    """

    def __init__(
        self,
        writer: Writer,
        frames: Frames,
        answer: Answer,
        sent_at_ns: list[int],
        head: Callable[[], bytes] | None = None,
    ) -> None:
        self._loop = asyncio.get_running_loop()
        self._head = head
        self._opening = b""  # bytes of the head, which leave with the first chunk
        self._writer = writer
        self._frames = frames
        self._answer = answer
        self._sent_at_ns = sent_at_ns
        self._done: asyncio.Future[None] = self._loop.create_future()
        self._timer: asyncio.TimerHandle | None = None
        self._running = False

    async def run(self) -> None:
        """Write every chunk when it is due. Cancelled, it writes no more."""
        self._running = True
        self._write_due()
        try:
            await self._done
        finally:
            self._running = False
            self._head = None
            # No cycle: an answer may have megabytes of due times.
            self._answer.on_change = do_nothing
            if self._timer is not None:
                self._timer.cancel()

    def wake(self) -> None:
        """Resume: more due times are known, or the stream is complete."""
        if self._running and self._timer is None:
            self._write_due()

    def _write_due(self) -> None:
        """Write all chunks that are due, and set a timer for the next one.

        `sent_at_ns` has the chunks that left. Without a timer the writer waits for `wake`: the next due time is not
        known. At the end of a complete answer, `run` returns.
        """
        self._timer = None
        writer = self._writer
        answer = self._answer
        sent_at_ns = self._sent_at_ns
        if self._head is not None and not self._opens(self._head):
            return
        due_ns = answer.due_ns
        # After a burst, a timer that is due at once lets other streams write between.
        for _ in range(_BURST):
            index = len(sent_at_ns)
            if index == len(due_ns):
                if answer.complete and not self._done.done():
                    self._done.set_result(None)
                return
            # The client left; the server will cancel `run`.
            if writer.is_closing():
                return
            now_ns = monotonic_ns()
            if due_ns[index] > now_ns + _EARLY_NS:
                break
            if writer.get_write_buffer_size() > _FULL_BYTES:
                self._timer = self._loop.call_later(_FULL_WAIT_S, self._write_due)
                return
            writer.write(self._opening + self._frames(index))
            self._opening = b""
            sent_at_ns.append(now_ns)
            if answer.counts_sent:
                answer.sent(index, now_ns)
        if len(sent_at_ns) < len(due_ns):
            self._timer = self._loop.call_at(due_ns[len(sent_at_ns)] / 1e9, self._write_due)
        else:
            # No more are known: note whether the answer is complete.
            self._write_due()

    def _opens(self, head: Callable[[], bytes]) -> bool:
        """Return whether the answer is open by now; then its head leaves, or waits for a first chunk that is due."""
        answer = self._answer
        now_ns = monotonic_ns()
        if answer.opens_ns is None or self._writer.is_closing():
            return False
        if answer.opens_ns > now_ns + _EARLY_NS:
            self._timer = self._loop.call_at(answer.opens_ns / 1e9, self._write_due)
            return False
        answer.opened(now_ns)
        self._head = None
        self._opening = head()
        if not answer.due_ns or answer.due_ns[0] > now_ns:
            self._writer.write(self._opening)
            self._opening = b""
        return True


class Stream:
    """One streamed answer; `chunks` is the number of its chunks that left, once it is over."""

    def __init__(self, request: web.Request, answer: Answer, headers: dict[str, str]) -> None:
        exchange = answer.exchange
        self.chunks = 0
        self._request = request
        self._answer = answer
        self._exchange = exchange
        self._table = exchange.endpoint.table
        self._wire = exchange.wire
        self._response = EventStream(HEADERS | headers, early=answer.headers_at_once)
        self._chunked = request.version >= HttpVersion11
        self._encoding = Encoding(answer, chunked=self._chunked)
        self._pinger: asyncio.TimerHandle | None = None
        self._held: HeldWriter | None = None
        self._opening = b""

    async def run(self) -> web.StreamResponse:
        """Write the answer to its end, and note its chunks in the row; raises `ConnectionResetError` where the client has
        left.

        Headers leave with the first event, or at once where a fault says so. However it ends, the chunks that left are
        logged.
        """
        answer = self._answer
        row = self._exchange.row
        try:
            if answer.headers_at_once:
                answer.send_headers(monotonic_ns())
            await self._response.prepare(self._request)
            # The reply is complete, so its head can be encoded now: later, a thousand streams may be due at once.
            if answer.opens_ns is not None:
                self._opening = self._encoding.head()
            writer = self._writer()
            head = partial(self._head, writer)
            chunks = ChunkWriter(writer, self._encoding.chunk, answer, row.chunk_sent_at_ns, head)
            answer.on_change = chunks.wake
            await chunks.run()
            await self._end()
        finally:
            self._stop_pings()
            self.chunks = len(row.chunk_sent_at_ns)
            answer.log_chunks(row.chunk_sent_at_ns)
        return self._response

    def _writer(self) -> Writer:
        """Return the writer for the events; raise ConnectionResetError where the client has left."""
        transport = self._request.transport
        # The transport is gone where the client left between the last await and here.
        if transport is None:
            raise ConnectionResetError("the client left")
        if not self._exchange.is_held:
            return transport
        self._held = HeldWriter(transport)
        return self._held

    def _head(self, writer: Writer) -> bytes:
        """Send the headers and start the pings; return the events before the first content."""
        if self._held is None:
            self._response.send_headers()
        every_s = self._table.ping_every_s
        if every_s and self._wire.ping():
            self._ping_later(writer, asyncio.get_running_loop().time() + every_s)
        return self._opening or self._encoding.head()

    def _ping_later(self, writer: Writer, due_s: float) -> None:
        def ping() -> None:
            writer.write(framed(self._wire.ping(), self._chunked))
            self._ping_later(writer, due_s + self._table.ping_every_s)

        if not writer.is_closing():
            self._pinger = asyncio.get_running_loop().call_at(due_s, ping)

    async def _end(self) -> None:
        """Write the end mark when it is due, or end the stream as a fault says."""
        answer = self._answer
        sent_at_ns = self._exchange.row.chunk_sent_at_ns
        chunks = len(sent_at_ns)
        if answer.ending == END_MARK and sent_at_ns and answer.end_ns(0):
            await sleep_until(answer.end_ns(sent_at_ns[-1]))
        ended_at_ns = monotonic_ns()
        self._stop_pings()
        if answer.ending == RESET:
            reset(self._request)
        else:
            if self._held is not None:
                self._response.send_headers()
                self._held.release()
            await self._response.write_eof(self._encoding.end())
        answer.finish(ended_at_ns, chunks)

    def _stop_pings(self) -> None:
        if self._pinger is not None:
            self._pinger.cancel()
            self._pinger = None


def reset(request: web.Request) -> None:
    """Abort the connection, so that the client gets a reset."""
    transport = request.transport
    if transport is not None:
        connection = transport.get_extra_info("socket")
        connection.setsockopt(socket.SOL_SOCKET, socket.SO_LINGER, _NO_LINGER)
        transport.abort()


class HeldWriter:
    """A writer that keeps every byte until the response ends, and its headers too."""

    def __init__(self, transport: asyncio.Transport) -> None:
        self._transport = transport
        self._parts: list[bytes] = []

    def write(self, data: bytes) -> None:
        """Keep bytes."""
        self._parts.append(data)

    def get_write_buffer_size(self) -> int:
        """Return 0: the writer keeps any number of bytes."""
        return 0

    def is_closing(self) -> bool:
        """Return whether the connection is gone."""
        return self._transport.is_closing()

    def release(self) -> None:
        """Send all bytes."""
        self._transport.write(b"".join(self._parts))


Writer = asyncio.Transport | HeldWriter
