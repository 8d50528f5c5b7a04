"""One HTTP exchange and its times: request, response, arrival and read times.

While someone waits for the next event, such as the first content, bytes are decoded as they arrive. After that a read only
appends bytes and timestamps, and `advance` decodes them later, outside the reading path; under TLS it decrypts them first.

Bytes that wait in the kernel get the timestamp of the last one. The others came after the read before, and after the last
poll that found the socket empty; on the user clock the last one too. A slow reader (`bytes_per_s`) pauses between
reads after the first content: an event of a read that did not empty the socket came after the last read that did.
"""

from __future__ import annotations

from array import array
from collections.abc import Callable, Sequence
from operator import sub
from typing import Protocol

from gevent.event import Event

from tailgauge.clock import monotonic_ns
from tailgauge.protocol_violations import COMPRESSED, FRAMING, HEAD_TOO_LARGE, NOT_HTTP, TOO_LARGE
from tailgauge.redaction import shown
from tailgauge.transport.capture import Capture
from tailgauge.transport.connection import Connection
from tailgauge.transport.http1 import Body, ChunkedBody, Head, HeadSizeError, WireError
from tailgauge.transport.reader import READER, Plain, take_texts
from tailgauge.transport.tls import Read

# Limits of one response, and of all open ones together. A regular answer reaches none of them. They bound a worker's memory
# for any number of open answers; the attempt's deadline bounds time.
MAX_KEPT = 65_536  # undecoded bytes: decoding them at once is short
MAX_BODY = 256 << 20  # bytes of a stream, which is decoded as it arrives
MAX_WHOLE = 16 << 20  # bytes of a non-streamed answer
MAX_ERROR_BODY = 1 << 20  # bytes of any other body
ERROR_KEPT = 65_536  # of which these are kept
MAX_HELD = 48 << 20  # bytes of all open answers of a worker
MAX_ALL_KEPT = 32 << 20  # undecoded bytes of all of them, objects included; each may keep
LEAST_KEPT = 4096  # of these
READ_BYTES = 200  # that a kept read takes beside its bytes
HEADER_BYTES = 300  # that a header takes beside its own
SLOW_READ = 256  # bytes that a slow reader takes at once, at least
SLOW_READ_S = 0.05  # or what it reads in this time
STALE = "stale_connection"  # closed by the target while it was idle, or before the first byte of an answer


OnDecoded = Callable[[Sequence[int], Sequence[int]], None]  # takes arrival and read times of decoded reads
Release = Callable[[Connection, bool], None]  # takes a connection back, and whether it may be kept


class HeldBytes:
    """Bytes that the open answers of one worker hold."""

    __slots__ = ("answers", "bytes", "most")

    def __init__(self, most: int = MAX_HELD) -> None:
        self.answers = self.bytes = 0
        self.most = most

    def change(self, before: int, now: int) -> bool:
        """One of them holds `now` bytes instead of `before`; returns whether it must be dropped: it holds more than its share."""
        self.bytes += now - before
        self.answers += (now > 0) - (before > 0)
        return self.bytes > self.most and now * self.answers > self.most

    def is_much(self, kept: int) -> bool:
        """Whether one of them keeps so much undecoded that it is decoded now."""
        return kept > MAX_KEPT or (kept > LEAST_KEPT and kept * self.answers > MAX_ALL_KEPT)


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
        """Bytes that it holds."""

    def feed(
        self, payload: bytes, low: int, arrived: int, read_at: int, read_index: int, *, at_rest: bool
    ) -> None:
        """Payload of one read with its times; `at_rest`: the read ends with it."""

    def skim(
        self, reads: Sequence[bytes], arrived: Sequence[int], read_at: Sequence[int], begin: int, read_index: int,
    ) -> int:  # fmt: skip
        """Decode raw reads from number `begin` on as long as they are plain; returns how many."""

    def plain(self, read: bytes) -> Plain | None:
        """What plain reads have in common, as the one decoded last; None: unknown, or there are none."""

    def skimmed(
        self, chars: array[int], arrived: array[int], low: array[int], read_at: array[int], read_index: array[int]
    ) -> None:  # fmt: skip
        """Plain reads were decoded: the characters of each text, its times, and the numbers of the reads."""

    def whole(self, body: bytes, arrived: int, read_at: int, read_index: int, low: int = 0) -> None:
        """A non-streamed body, with the times of the read that completed it; `low` 0: it came exactly then."""


def _nothing() -> None:
    """Default callback."""


def _uncounted(arrived: Sequence[int], read_at: Sequence[int]) -> None:
    """Default callback for decoded reads."""


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
    _body: Body | None = None
    _keep = False
    _held = 0  # bytes
    _held_by_head = 0
    _kept_bytes = 0
    _at_leisure = False  # the connection only stores its reads
    _low = _last_low = 0
    _last_read_at = _decoded = 0
    _changed: Event | None = None  # where a greenlet waits
    _release: Release | None = None
    capture: Capture | None = None  # keeps the raw bytes
    _captured = 0  # reads kept undecoded that the capture has

    def __init__(
        self, decoder: Decoder | None = None, bytes_per_s: float | None = None, held: HeldBytes | None = None
    ) -> None:
        self.decoder = decoder
        self.bytes_per_s = bytes_per_s
        self.on_content: Callable[[], None] = _nothing
        self.on_watched: Callable[[], None] = _nothing  # the decoder has what it watched for
        self.on_over: Callable[[], None] = _nothing  # the end, where no greenlet waits for it
        self.on_decoded: OnDecoded = _uncounted
        self._named: dict[bytes, bytes] = {}  # the first header of each name in lower case
        self._head = Head()
        self._plain = bytearray()
        self._all_held = held or HeldBytes()
        self._kept: list[Read] = []  # not yet decoded
        self._common: Plain | None = None  # of plain reads, while what comes may be some
        self._texts = bytearray()  # plain reads before them, of which the reader kept what is to be known

    def begin(self, connection: Connection, *, is_new: bool, release: Release) -> None:
        """Listen to a connection; `release` returns it, with whether it may be reused."""
        self.connection = connection
        self.connection_is_new = is_new
        self.user_stamps = self._user_clock = not connection.kernel_stamps
        self._release = release
        connection.listen(self, may_wait=self.may_wait)

    # --- called by the connection, in the hub -------------------------------------------------------------------

    def on_data(self, data: bytes, arrived_at_ns: int, read_at_ns: int, empty_at_ns: int = 0) -> None:
        """Bytes of the response: the head first, then the body."""
        self.reads += 1
        if self._body is None:
            if self.capture is not None:
                self.capture.add(data, arrived_at_ns)
            self._on_head(data, arrived_at_ns, read_at_ns, empty_at_ns)
            return
        self._keep_read((data, arrived_at_ns, read_at_ns, empty_at_ns))
        stream = self._stream
        if stream is None or stream.watching or self.bytes_per_s or self._body.may_end(data):
            self.advance()
            if self.bytes_per_s and not self.done:
                self._hold(len(data), self.bytes_per_s)

    def _keep_read(self, read: Read) -> None:
        """Decode it later, unless too much accumulates."""
        self._kept.append(read)
        self._kept_bytes += len(read[0]) + READ_BYTES
        if self._all_held.is_much(self._kept_bytes):
            self.advance()

    def _hold(self, size: int, bytes_per_s: float) -> None:
        """Pause a slow reader after a read, once the first content has arrived."""
        stream = self._stream
        if self.connection is not None and (self._whole or (stream is not None and not stream.watching)):
            self.connection.pause(size / bytes_per_s, max(SLOW_READ, int(bytes_per_s * SLOW_READ_S)))

    def on_end(self, error: str | None) -> None:
        """The peer closed the connection, or it failed."""
        if self.capture is not None:
            self.capture.peer_closed(error)
        if self._body is None:
            stale = self.connection is not None and self.connection.used and self.first_byte_at_ns is None
            kind = STALE if stale else "closed"
            self.fail(kind, error or "the target closed the connection before it answered")
            return
        self.advance()
        if self.done:
            return
        if error or not self._body.ends_with_connection:
            self.cut = "connection_reset" if error else "connection_closed"
        else:
            self._complete()
        self._finish(keep=False, at_ns=monotonic_ns())

    def _on_head(self, data: bytes, arrived: int, read_at: int, empty_at: int) -> None:
        if self.first_byte_at_ns is None:
            self.first_byte_at_ns = arrived
        try:
            started = self._head.feed(data)
        except WireError as error:
            self.fail(HEAD_TOO_LARGE if isinstance(error, HeadSizeError) else NOT_HTTP, str(error))
            return
        if started is None:
            self._low = arrived
            if self._hold_bytes(self._head.held):
                self.fail(HEAD_TOO_LARGE, self._too_much())
            return
        (size, self.status, self.headers, self._named, framing), rest = started
        assert framing is not None
        self._body = framing.body()
        self._keep = framing.keep
        self._held_by_head = size + HEADER_BYTES * len(self.headers)
        self._hold_bytes(self._held_by_head)
        self.headers_at_ns = arrived
        self._choose()
        if not rest:
            self._low = arrived
        if self.cut:
            self._close_and_finish()
        elif rest or self._body.done:
            self._kept.append((rest, arrived, read_at, empty_at))
            self._captured = 1  # with the head
            self.advance()
        self._wake()

    def _choose(self) -> None:
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
        """Decode what was read so far."""
        if self._at_leisure:
            self._unseal()
        if self._common is not None:
            take_texts(self._kept, self._texts, self._common)
            self._kept_bytes = self._kept_bytes if self._kept else 0
        body = self._body
        if body is None or not (self._texts or self._kept):
            return
        if self._texts:
            self._take_texts()
        if self._kept:
            self._take_kept(body)
        else:
            self._bound(self._stream, body)

    def _take_texts(self) -> None:
        """Decode the plain reads, of which it is known what is to be known."""
        stream = self._stream
        numbers = array("q", bytes(self._texts))
        assert stream is not None
        del self._texts[:]
        arrived, read_at, empty_at, chars, sizes = (numbers[first::5] for first in range(5))
        low = array("q", bytes(8 * len(sizes)))
        read_index = array("i", range(self._decoded, self._decoded + len(sizes)))
        reads = [arrived, read_at]
        if 0 in sizes:  # reads with several texts, of which the last is exact
            number = self._decoded
            before = self._low
            for place, size in enumerate(sizes):
                read_index[place] = number
                if size:
                    number = number + 1
                    before = arrived[place]
                else:
                    low[place] = self._lower(before, empty_at[place], arrived[place])
            last = [place for place, size in enumerate(sizes) if size]
            reads = [array("q", [of[place] for place in last]) for of in reads]
        stream.skimmed(chars, arrived, low, read_at, read_index)
        self.on_decoded(*reads)
        self.reads += len(reads[0])
        self._skimmed(sum(sizes), *reads)

    def _lower(self, before_ns: int, empty_at_ns: int, arrived_at_ns: int) -> int:
        """When what came in a read had not come yet; `before_ns`: arrival of the read before, 0: there was none."""
        return min(max(before_ns or self.left_at_ns or arrived_at_ns, empty_at_ns), arrived_at_ns)

    def _take_kept(self, body: Body) -> None:
        """Decode the reads kept so far; the last may end the response."""
        kept = self._kept
        stream = self._stream
        self._common = None
        last, last_arrived_at, last_read_at, _ = kept[-1]
        if self._at_leisure:
            self.reads += len(kept)
        watching = stream is not None and stream.watching
        had_content = stream is not None and stream.has_content
        try:
            self._decode_kept(body)
        except WireError as error:
            self._drop(FRAMING, str(error))
            return
        if watching and stream is not None:
            self._notify(stream, had_content=had_content)
        if body.done and not self.done:
            self._complete()
            # A slow reader ends when it has read everything.
            at_ns = last_read_at if self.bytes_per_s else last_arrived_at
            self._finish(keep=self._keep and not body.has_excess, at_ns=at_ns)
        elif not self.done:
            if watching:
                self._relax(stream, body)
            else:  # a short answer is over before it would save anything
                self._store_texts(body, last)
            self._bound(stream, body)

    def _decode_kept(self, body: Body) -> None:
        """Decode the reads kept so far. Raises WireError."""
        kept = self._kept
        if self.capture is not None:
            for piece, arrived_at_ns, *_ in kept[self._captured :]:
                self.capture.add(piece, arrived_at_ns)
            self._captured = 0
        data, *stamps, empty_at = zip(*kept, strict=True)
        kept.clear()
        self._kept_bytes = 0
        # Arrays of many: they are copied at once.
        arrived, read_at = stamps if len(data) == 1 else (array("q", of) for of in stamps)
        if not self.bytes_per_s:  # a pause is not receive lag
            self.on_decoded(arrived, read_at)
        done = 0
        while done < len(data):
            skimmed = self._skim(body, data, arrived, read_at, done)
            if not skimmed:
                self._decode(body, data[done], arrived[done], read_at[done], empty_at[done])
            done += skimmed or 1

    def _unseal(self) -> None:
        """Add what the connection has stored sealed by TLS, or is to be read in full, to what is kept."""
        if self.connection is not None and self.connection.listener is self:
            self.connection.unseal(self._kept, self._texts, self._common)
            if self._texts and self._common is not None and self._common[2]:
                self.connection.store_texts(self._texts)

    def _hold_bytes(self, held: int) -> bool:
        """It holds so many bytes now; returns whether that is too much."""
        before = self._held
        self._held = held
        return self._all_held.change(before, held)

    def _too_much(self) -> str:
        return f"the open answers of this worker hold over {self._all_held.most >> 20} MiB"

    def _bound(self, stream: Decoder | None, body: Body) -> None:
        """Drop the response if it exceeds its limits or those of all open responses."""
        held = len(self._plain) + (0 if stream is None else stream.held)
        too_much = self._hold_bytes(self._held_by_head + body.held + held)
        most = MAX_BODY if stream else MAX_WHOLE if self._whole else MAX_ERROR_BODY
        if stream is not None and stream.broken:
            self._close_and_finish()
        elif self.body_bytes > most:
            self._drop(TOO_LARGE, f"over {most >> 20} MiB")
        elif too_much:
            self._drop(TOO_LARGE, self._too_much())

    def _drop(self, kind: str, text: str) -> None:
        self.cut = kind
        self.cut_text = text
        self._close_and_finish()

    def _relax(self, stream: Decoder | None, body: Body) -> None:
        """Store reads without decoding them, until one may be the last."""
        connection = self.connection
        if stream is None or stream.watching or self.bytes_per_s or not isinstance(body, ChunkedBody):
            return
        if connection is not None and connection.listener is self:
            self._at_leisure = True
            connection.store(self._kept, self._keep_read)

    def _store_texts(self, body: Body, last: bytes) -> None:
        """Let the reader decode what comes, as long as it is plain; `last` was decoded last."""
        stream = self._stream
        connection = self.connection
        if self.capture is not None:
            return  # it takes the bytes of each read
        if not self._at_leisure or stream is None or connection is None or connection.listener is not self:
            return
        if body.between and not self._user_clock and (common := stream.plain(last)) is not None:
            self._common = common
            connection.store_texts(self._texts, common)

    def _skimmed(self, size: int, arrived: Sequence[int], read_at: Sequence[int]) -> None:
        """Plain reads were decoded, so many bytes."""
        lags = list(map(sub, read_at, arrived))
        self._note_lag(max(lags))
        self.user_stamps |= 0 in lags
        self.body_bytes += size
        self._low = arrived[-1]
        self._last_read_at = read_at[-1]
        self._decoded += len(lags)

    def _notify(self, decoder: Decoder, *, had_content: bool) -> None:
        """Call the callbacks of awaited events, which may end the exchange."""
        if decoder.has_content and not had_content and not (self.done or self.aborted):
            self.on_content()
        if not decoder.watching and not (self.done or self.aborted):
            self.on_watched()

    def _complete(self) -> None:
        """The body is complete: decode one that is no stream, with the time of its last read."""
        if self._whole is not None:
            low = self._last_low if self._user_clock else 0
            self._whole.whole(self.plain_body, self._low, self._last_read_at, max(0, self._decoded - 1), low)
            self._notify(self._whole, had_content=False)

    def _decode(self, body: Body, piece: bytes, at: int, read: int, empty_at: int) -> None:
        emptied = not self.bytes_per_s or self.connection is None or self.connection.emptied
        payload = body.feed(piece)
        self.body_bytes += len(piece)
        if not self.bytes_per_s:  # a pause is not receive lag
            self._note_lag(read - at)
        if read == at:
            self.user_stamps = True
        low = self._lower(self._low, empty_at, at)
        if self._stream is None:
            if self._whole is not None or len(self._plain) < ERROR_KEPT:
                self._plain += payload
        elif payload:
            at_rest = body.at_rest and emptied and not self._user_clock
            self._stream.feed(payload, low, at, read, self._decoded, at_rest=at_rest)
            if not self._stream.events and len(self._plain) < ERROR_KEPT:
                self._plain += payload  # it may be no event stream
        self._last_low = low
        if emptied or self._whole is not None:
            self._low = at
        self._last_read_at = read
        self._decoded += 1

    def _skim(
        self, body: Body, data: Sequence[bytes], arrived: Sequence[int], read_at: Sequence[int], begin: int
    ) -> int:
        """Decode reads from number `begin` on that need no unframing and no parsing; returns how many."""
        stream = self._stream
        if stream is None or stream.watching or self.bytes_per_s or self._user_clock or not body.between:
            return 0
        count = stream.skim(data, arrived, read_at, begin, self._decoded)
        if count:
            end = begin + count
            self._skimmed(sum(map(len, data[begin:end])), arrived[begin:end], read_at[begin:end])
        return count

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
        if self._at_leisure:
            READER.collect()
        self.advance()
        if not self.done:
            self._close_and_finish()

    def fail(self, kind: str, message: str) -> None:
        """No connection, or it broke before the response's head was complete."""
        self.failure = (kind, message)
        self._close_and_finish()

    def _close_and_finish(self) -> None:
        if self.connection is not None:
            self.connection.reset()
        self._finish(keep=False, at_ns=monotonic_ns())

    def _finish(self, *, keep: bool, at_ns: int) -> None:
        if self.done:
            return
        self.done = True
        self.ended_at_ns = at_ns
        self._hold_bytes(0)
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
        """Until the head is complete, or the exchange is over."""
        while self._body is None and not self.done:
            self._wait()

    def wait_end(self) -> None:
        """Until the exchange is over."""
        while not self.done:
            self._wait()

    def _wait(self) -> None:
        self._changed = Event()
        self._changed.wait()

    def _wake(self) -> None:
        if self._changed is not None:
            self._changed.set()

    def header(self, name: bytes) -> bytes:
        """Value of a response header, or empty; `name` in lower case."""
        return self._named.get(name, b"")

    @property
    def left_at_ns(self) -> int | None:
        """When the request's first byte was sent, also while the rest is still being sent."""
        if self.sent_at_ns is None and self.connection is not None:
            return self.connection.sent_at_ns
        return self.sent_at_ns

    @property
    def paused_ns(self) -> int | None:
        """Pauses of a slow reader; None for others."""
        if not self.bytes_per_s:
            return None
        return self.connection.paused_ns if self.connection else 0

    @property
    def plain_body(self) -> bytes:
        """Unframed body of a response without events."""
        return bytes(self._plain)
