"""One HTTP exchange and its times: request, response, arrival and read times.

The head and the events that mean something are read here, in Python. Plain content is decoded by the compiled reader where
there is one, and only taken here: see `transport.answer`.

Bytes that wait in the kernel get the timestamp of the last one. The others came after the read before, and after the last
poll that found the socket empty; on the user clock the last one too. A slow reader (`bytes_per_s`) pauses between
reads after the first content: an event of a read that did not empty the socket came after the last read that did.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Any, Protocol

from gevent.event import Event

from tailgauge.clock import monotonic_ns
from tailgauge.protocol_violations import COMPRESSED, FRAMING, HEAD_TOO_LARGE, NOT_HTTP, TOO_LARGE
from tailgauge.redaction import shown
from tailgauge.transport.answer import COMPILED, Answer, CompiledAnswer, News, PlainAnswer
from tailgauge.transport.capture import Capture
from tailgauge.transport.connection import Connection
from tailgauge.transport.http1 import Framing, Head, HeadSizeError, WireError
from tailgauge.transport.tls import Read

# Limits of one response, and of all open ones together. A regular answer reaches none of them. They bound a worker's memory
# for any number of open answers; the attempt's deadline bounds time.
MAX_BODY = 256 << 20  # bytes of a stream, which is decoded as it arrives
MAX_WHOLE = 16 << 20  # bytes of a non-streamed answer
MAX_ERROR_BODY = 1 << 20  # bytes of any other body
ERROR_KEPT = 65_536  # of which these are kept
MAX_HELD = 48 << 20  # bytes of all open answers of a worker
HEADER_BYTES = 300  # that a header takes beside its own
SLOW_READ = 256  # bytes that a slow reader takes at once, at least
SLOW_READ_S = 0.05  # or what it reads in this time
STALE = "stale_connection"  # closed by the target while it was idle, or before the first byte of an answer


Release = Callable[[Connection, bool], None]  # takes a connection back, and whether it may be kept


class HeldBytes:
    """Bytes that the open answers of one worker hold."""

    __slots__ = ("answers", "bytes", "limit")

    def __init__(self, limit: int = MAX_HELD) -> None:
        self.answers = 0
        self.bytes = 0
        self.limit = limit

    def change(self, old: int, new: int) -> bool:
        """Count that one of them holds other bytes; returns whether it must be dropped: it holds more than its share."""
        self.bytes += new - old
        self.answers += (new > 0) - (old > 0)
        return self.bytes > self.limit and new * self.answers > self.limit


class Decoder(Protocol):
    """Turns a body's payload into content chunks; see tailgauge.protocols.decoder. Never raises for the peer's bytes."""

    has_content: bool
    events: int  # so far
    watching: bool  # someone waits for the next event
    broken: bool  # it takes no more payload
    streams: bool  # false: `whole` takes the body
    statuses: frozenset[int]  # of an answer that is no error

    @property
    def held(self) -> int:
        """Return the bytes that it holds."""

    shapes: Any  # of events that the compiled reader may decode; None: of none

    @property
    def kept_kinds(self) -> int:
        """Kinds of content whose text is kept, a bit each."""

    @property
    def plain_kinds(self) -> int:
        """Kinds of content that bring no more than a chunk now, a bit each: the compiled reader may decode them."""

    def receive(self, news: News) -> None:
        """Take what has come: chunks that were decoded, and pieces that are to be."""

    def whole(self, body: bytes, arrived: int, read_at: int, read_index: int, low: int = 0) -> None:
        """Take a non-streamed body, with the times of the read that completed it; `low` 0: it came exactly then."""


def _nothing() -> None:
    """Do nothing: the default callback."""


class Exchange:
    """One HTTP exchange, from the first byte sent to the last byte received; times in ns of the monotonic clock."""

    # What an exchange begins with; here it costs nothing for each.
    may_wait = False  # nobody acts on what it brings: it may come some milliseconds later
    connection: Connection | None = None
    connection_is_new = False
    pool_wait_ns: int | None = None
    sent_at_ns: int | None = None
    first_byte_at_ns: int | None = None
    headers_at_ns: int | None = None
    ended_at_ns: int | None = None
    aborted_at_ns: int | None = None
    aborted: str | None = None  # why we closed it: cancelled, timeout, censored
    failure: tuple[str, str] | None = None  # kind and message, without a complete response
    # How the body ended before its end, the connection or what was wrong with it; and details.
    cut: str | None = None
    cut_text: str | None = None
    status: int | None = None
    headers: tuple[tuple[bytes, bytes], ...] = ()
    reads = body_bytes = 0
    receive_lag_max_ns = 0  # largest read_at - arrived_at, ever
    receive_lag_recent_ns = 0  # the same since it was last reset
    user_stamps = False
    done = False
    _user_clock = False  # every read is stamped by this process
    # The decoder, where this is a body for it and no error body for the SDK: a stream, or not.
    _stream: Decoder | None = None
    _whole: Decoder | None = None
    _answer: Answer | None = None  # the body, from the end of the head on
    _framing: Framing | None = None
    _keep = False
    _held = 0  # bytes
    _held_by_head = 0
    _head_arrived = 0  # the last read that brought nothing of the body
    _head_reads = 0  # of which the body has no part
    _changed: Event | None = None  # where a greenlet waits
    _release: Release | None = None
    capture: Capture | None = None  # keeps the raw bytes

    def __init__(
        self,
        decoder: Decoder | None = None,
        bytes_per_s: float | None = None,
        held: HeldBytes | None = None,
    ) -> None:
        self.decoder = decoder
        self.bytes_per_s = bytes_per_s
        self.on_content: Callable[[], None] = _nothing
        self.on_watched: Callable[[], None] = _nothing  # the decoder has what it watched for
        self.on_over: Callable[[], None] = _nothing  # the end, where no greenlet waits for it
        self._named: dict[bytes, bytes] = {}  # the first header of each name in lower case
        self._head = Head()
        self._plain = bytearray()
        self._all_held = held or HeldBytes()

    def begin(self, connection: Connection, *, is_new: bool, release: Release) -> None:
        """Listen to a connection; `release` returns it, with whether it may be reused."""
        self.connection = connection
        self.connection_is_new = is_new
        self.user_stamps = self._user_clock = not connection.kernel_stamps
        self._release = release
        connection.listen(self, is_urgent=not self.may_wait)

    # --- called by the connection, in the hub -------------------------------------------------------------------

    def on_sent(self) -> None:
        """Take over when a prepared request has left."""
        connection = self.connection
        if connection is not None:
            self.sent_at_ns = connection.sent_at_ns
            self.pool_wait_ns = connection.connect_ns if self.connection_is_new else 0

    def on_reads(self, reads: list[Read]) -> None:
        """Take what was read of the response and is not decoded: the head first, then the body."""
        had_no_head = self._answer is None
        for data, arrived, read_at, empty_at in reads:
            if self.done:
                return
            if self.capture is not None:
                self.capture.add(data, arrived)
            if self._answer is None:
                self._on_head(data, arrived, read_at, empty_at)
            else:
                self._read_body(self._answer, data, arrived, read_at, empty_at)
        if self._answer is not None:
            self.advance()
            # The head was in these reads: the compiled reader may decode what comes next.
            if had_no_head:
                self._feed()
        if self.bytes_per_s and not self.done:
            self._pause_slow_reader(len(reads[-1][0]), self.bytes_per_s)

    def on_data(self, data: bytes, arrived: int, read_at: int, empty_at: int = 0) -> None:
        """Take one read."""
        self.on_reads([(data, arrived, read_at, empty_at)])

    def _read_body(
        self, answer: Answer, data: bytes, arrived: int, read_at: int, empty_at: int
    ) -> None:
        # Only what emptied the socket bounds when the bytes of a slow reader came.
        if isinstance(answer, PlainAnswer) and self.bytes_per_s and self.connection is not None:
            hub_reads = self.connection.hub_reads
            if hub_reads is not None:
                answer.emptied = hub_reads.emptied
        answer.read(data, arrived, read_at, empty_at)

    def _pause_slow_reader(self, size: int, bytes_per_s: float) -> None:
        """Pause a slow reader after a read, once the first content has arrived."""
        stream = self._stream
        hub_reads = None if self.connection is None else self.connection.hub_reads
        if hub_reads is None:
            return
        if self._whole or (stream is not None and not stream.watching):
            read_size = max(SLOW_READ, int(bytes_per_s * SLOW_READ_S))
            hub_reads.pause(size / bytes_per_s, read_size)

    def on_end(self, error: str | None) -> None:
        """End, because the peer closed the connection (`error` is None) or the connection failed.

        Before a whole head that is a failure: `STALE` if the connection had been idle, so that the request
        may be sent again. After it the body is complete, where it ends with the connection, or else cut.
        """
        if self.capture is not None:
            self.capture.peer_closed(error)
        if self._framing is None:
            if self.connection_is_new and self.left_at_ns is None and error is not None:
                self.fail("tcp", error)  # of a connection that was opened for it
                return
            was_used = self.connection is not None and self.connection.used
            is_stale = was_used and self.first_byte_at_ns is None
            kind = STALE if is_stale else "closed"
            self.fail(kind, error or "the target closed the connection before it answered")
            return
        self.advance()
        if not self.done and self._answer is not None and not self._answer.allow(0):
            self.advance()  # with the begin of an event that has no end
        if self.done:
            return
        if error or not self._framing.ends_with_connection:
            self.cut = "connection_reset" if error else "connection_closed"
        else:
            self._complete()
        self._finish(keep=False, at_ns=monotonic_ns())

    def _on_head(self, data: bytes, arrived: int, read_at: int, empty_at: int) -> None:
        """Take a read of the head; where the head ends in it, the rest is the begin of the body.

        What is no HTTP, or too large, ends the exchange as a failure. Times in ns.
        """
        if self.first_byte_at_ns is None:
            self.first_byte_at_ns = arrived
        try:
            head = self._head.feed(data)
        except WireError as error:
            is_too_large = isinstance(error, HeadSizeError)
            self.fail(HEAD_TOO_LARGE if is_too_large else NOT_HTTP, str(error))
            return
        if head is None:
            self._head_reads += 1
            self._head_arrived = arrived
            if self._note_held(self._head.held):
                self.fail(HEAD_TOO_LARGE, self._too_much())
            return
        response, rest = head
        framing = response.framing
        assert framing is not None
        self.status = response.status
        self.headers = response.headers
        self._named = response.named
        self._framing = framing
        self._keep = framing.keep
        self._held_by_head = response.size + HEADER_BYTES * len(self.headers)
        self._note_held(self._held_by_head)
        self.headers_at_ns = arrived
        self._choose_receiver()  # may set `cut`
        # A read that also has bytes of the body counts as one of the body. An empty body ends with its head.
        has_body = bool(rest) or framing.length == 0
        if not has_body:
            self._head_reads += 1
            self._head_arrived = arrived
        self._begin_body(framing)
        if has_body:
            assert self._answer is not None
            self._read_body(self._answer, rest, arrived, read_at, empty_at)
        if self.cut:
            self._close_and_finish()
        # The greenlet of the SDK waits for the head.
        self._wake()

    def _begin_body(self, framing: Framing) -> None:
        """Choose what takes the reads of the body: compiled code, unless the reader is slow or reads in the hub."""
        connection = self.connection
        is_in_hub = connection is not None and not connection.is_compiled
        stream = self._stream
        if COMPILED and not self.bytes_per_s and not is_in_hub:
            shapes = None if stream is None else stream.shapes
            kept_kinds = 0 if stream is None else stream.kept_kinds
            self._answer = CompiledAnswer(shapes, kept_kinds, is_user_clock=self._user_clock)
        else:
            self._answer = PlainAnswer(is_user_clock=self._user_clock)
        self._answer.begin(framing, self.left_at_ns or 0, self._head_arrived)
        if connection is not None and connection.listener is self:
            connection.listen(self, self._answer, is_urgent=not self.may_wait)

    def _feed(self) -> None:
        """Let the compiled reader decode what comes, where nothing here needs each read."""
        connection = self.connection
        if connection is not None and connection.listener is self and self.capture is None:
            connection.feed()

    def _choose_receiver(self) -> None:
        """Select the receiver of the body: the decoder (stream or whole), or none for errors and compressed bodies."""
        decoder = self.decoder
        coding = self.header(b"content-encoding")
        if decoder is None or self.status not in decoder.statuses:
            return
        if coding.lower() not in {b"", b"identity"}:  # never decompressed: its size has no limit
            self.cut = COMPRESSED
            self.cut_text = f"content-encoding {shown(coding, 100)}"
        elif not decoder.streams:
            self._whole = decoder
        else:  # whatever its content type: SDKs do not look at it
            self._stream = decoder

    # --- decoding ---------------------------------------------------------------------------------------------

    def advance(self) -> None:
        """Take and decode what has come by now; it may end the response."""
        answer = self._answer
        while answer is not None and not self.done:
            news = answer.take()
            self._take(news)
            if self.done or answer.allow(0 if self._stream is None else self._stream.plain_kinds):
                break

    def _take(self, news: News) -> None:
        """Decode what is new, call back, and end the response with its body or where a limit is exceeded.

        A pattern that waits for content is called back before the end. Callbacks may close this exchange.
        """
        stream = self._stream
        facts = news.facts
        was_watching = stream is not None and stream.watching
        had_content = stream is not None and stream.has_content
        self._decode(news)
        self.reads = self._head_reads + facts.reads
        self.body_bytes = facts.body_bytes
        self.user_stamps |= facts.has_user_stamps
        if not self.bytes_per_s:  # a pause is not receive lag
            self._note_lag(facts.lag_max_ns)
        if facts.error is not None:
            self._drop(FRAMING, str(facts.error))
            return
        if was_watching and stream is not None:
            self._notify(stream, had_content=had_content)
        if facts.is_done and not self.done:
            self._complete(news)
            # A slow reader ends when it has read everything.
            at_ns = facts.last_read_at if self.bytes_per_s else facts.last_arrived
            self._finish(keep=self._keep and not facts.has_excess, at_ns=at_ns)
        elif not self.done:
            if was_watching and stream is not None and not stream.watching:
                # What was waited for has come: the rest may be passed on later.
                self._relax()
            self._drop_if_too_large(stream, facts.held)

    def _decode(self, news: News) -> None:
        stream = self._stream
        if stream is not None:
            stream.receive(news)
            if stream.events:
                return  # else it may be no event stream
        for piece in news.pieces:
            if self._whole is not None or len(self._plain) < ERROR_KEPT:
                self._plain += piece.payload

    def _relax(self) -> None:
        """Nobody waits for what comes next."""
        connection = self.connection
        if connection is not None and connection.listener is self:
            connection.listen(self, self._answer, is_urgent=False)
            self._feed()

    def _note_held(self, held: int) -> bool:
        """Count that it holds so many bytes now; returns whether that is too much."""
        is_too_much = self._all_held.change(self._held, held)
        self._held = held
        return is_too_much

    def _too_much(self) -> str:
        return f"the open answers of this worker hold over {self._all_held.limit >> 20} MiB"

    def _drop_if_too_large(self, stream: Decoder | None, body_held: int) -> None:
        """Drop the response if it exceeds its limits or those of all open responses."""
        limit = MAX_ERROR_BODY
        size = self._held_by_head + body_held + len(self._plain)
        if stream is not None:
            limit = MAX_BODY
            size += stream.held
        elif self._whole is not None:
            limit = MAX_WHOLE
        is_too_much = self._note_held(size)
        if stream is not None and stream.broken:
            self._close_and_finish()
        elif self.body_bytes > limit:
            self._drop(TOO_LARGE, f"over {limit >> 20} MiB")
        elif is_too_much:
            self._drop(TOO_LARGE, self._too_much())

    def _drop(self, kind: str, text: str) -> None:
        self.cut = kind
        self.cut_text = text
        self._close_and_finish()

    def _notify(self, decoder: Decoder, *, had_content: bool) -> None:
        """Call the callbacks of awaited events, which may end the exchange."""
        if decoder.has_content and not had_content and not (self.done or self.aborted):
            self.on_content()
        if not decoder.watching and not (self.done or self.aborted):
            self.on_watched()

    def _complete(self, news: News | None = None) -> None:
        """Decode a complete body that is no stream, with the time of its last read."""
        if self._whole is None or self._answer is None:
            return
        facts = (news or self._answer.take()).facts
        low = facts.last_low if self._user_clock else 0
        number = max(0, facts.read_index - 1)
        self._whole.whole(self.plain_body, facts.last_arrived, facts.last_read_at, number, low)
        self._notify(self._whole, had_content=False)

    def _note_lag(self, lag_ns: int) -> None:
        if lag_ns > self.receive_lag_recent_ns:
            self.receive_lag_recent_ns = lag_ns
            self.receive_lag_max_ns = max(self.receive_lag_max_ns, lag_ns)

    # --- the end ----------------------------------------------------------------------------------------------

    def catch_up(self) -> None:
        """Take what has come by now, however much of others comes before it."""
        if not self.done and self.connection is not None and self.connection.listener is self:
            self.connection.catch_up()

    def abort(self, reason: str) -> None:
        """Close now: a hedge's loser, a deadline, the end of the drain. The first reason counts."""
        if self.may_wait or reason == "timeout":
            self.catch_up()  # its end may be there
        if self.done or self.aborted:
            return
        self.aborted = reason
        self.aborted_at_ns = monotonic_ns()
        # What somebody waits for, and has not seen, has lost: it stays where it is.
        if self._stream is not None and not self._stream.watching:
            self.advance()
        if not self.done:
            self._close_and_finish()

    def fail(self, kind: str, message: str) -> None:
        """End without a response: there is no connection, or it broke before the response's head was complete."""
        self.failure = (kind, message)
        self._close_and_finish()

    def _close_and_finish(self) -> None:
        if self.connection is not None:
            self.connection.reset()
        self._finish(keep=False, at_ns=monotonic_ns())

    def _finish(self, *, keep: bool, at_ns: int) -> None:
        """End the exchange, once: keep its end, free what it holds, wake the greenlet that waits, and call `on_over`.

        `keep`: the connection may be used again. The outcome stands in `aborted`, `failure` or `cut`
        before.
        """
        if self.done:
            return
        self.done = True
        self.ended_at_ns = at_ns
        self._note_held(0)
        del self._plain[ERROR_KEPT:]
        connection = self.connection
        release = self._release
        if connection is not None and release is not None:
            connection.listen(None)
            release(connection, keep)
        # Break reference cycles with the callbacks, so that no garbage collection is needed.
        self._release = None
        on_over = self.on_over
        self.on_content = self.on_watched = self.on_over = _nothing
        self._wake()
        on_over()

    # --- waited for by greenlets ------------------------------------------------------------------------------

    def wait_head(self) -> None:
        """Wait until the head is complete, or the exchange is over."""
        while self._answer is None and not self.done:
            self._wait()

    def wait_end(self) -> None:
        """Wait until the exchange is over."""
        while not self.done:
            self._wait()

    def _wait(self) -> None:
        self._changed = Event()
        self._changed.wait()

    def _wake(self) -> None:
        if self._changed is not None:
            self._changed.set()

    def header(self, name: bytes) -> bytes:
        """Return the value of a response header, or empty; `name` in lower case."""
        return self._named.get(name, b"")

    @property
    def left_at_ns(self) -> int | None:
        """Return when the request's first byte was sent, also while the rest is still being sent."""
        if self.sent_at_ns is None and self.connection is not None:
            return self.connection.sent_at_ns
        return self.sent_at_ns

    @property
    def paused_ns(self) -> int | None:
        """Return for how long a slow reader has paused; None for others."""
        if not self.bytes_per_s:
            return None
        return self.connection.paused_ns if self.connection else 0

    @property
    def plain_body(self) -> bytes:
        """Return the unframed body of a response without events."""
        return bytes(self._plain)
