"""Connections to the target: resolve, connect, TLS, send, reads with kernel timestamps, and the pool of idle ones.

The compiled reader reads them on its thread, or a libev io-watcher callback of the hub: one `recvmsg` per readiness, no
greenlet switch. Each read has three times: the kernel's (SO_TIMESTAMPNS, the arrival of the read's last byte), the read
time, and one at which the socket was still empty (`Polls`). Without Linux there is no kernel's, and the rows state that. A
slow reader is read in the hub, which can pause.

Under TLS what was read is decrypted in the hub, and has the times of the read that completed it.
"""

from __future__ import annotations

import _socket
import contextlib
import errno
import os
import resource
import ssl
import struct
import sys
from collections import defaultdict
from collections.abc import Callable
from dataclasses import dataclass, field
from typing import Any, Protocol

import gevent
from gevent import get_hub
from gevent.event import Event

from tailgauge.clock import ANCILLARY, SO_TIMESTAMPNS, kernel_stamp_ns, monotonic_ns
from tailgauge.redaction import shown
from tailgauge.transport.answer import Answer, CompiledAnswer
from tailgauge.transport.losses import Losses
from tailgauge.transport.peer import TLS, peer_name
from tailgauge.transport.reader import POLLS, READER, SETTLED, Found
from tailgauge.transport.tls import Read, Tls

KERNEL_STAMPS = sys.platform == "linux"
READ_SIZE = 65_536
_READ = 1
_WRITE = 2
Origin = tuple[str, str, int]  # scheme, host, port
# Failures of this machine, not of the target.
NO_DESCRIPTOR = "no_descriptor"
NO_THREAD = "no_thread"
OF_THIS_MACHINE = frozenset({NO_DESCRIPTOR, NO_THREAD})
SPARE_DESCRIPTORS = 48  # left for parts, name look-ups and the master's channel
FIRST_REST_NS = 5_000_000
LONGEST_REST_NS = 1_000_000_000
SOON_NS = 2_000_000_000  # a close within it follows the response; a later one is an idle time-out
LONG_NS = 3_600_000_000_000
MARGIN_S = 1.0
LINE_S = 2.0  # in which a server of plain HTTP answers an empty line
MAX_MESSAGE = 500  # characters


class Listener(Protocol):
    """Receives what arrives: the current exchange."""

    def on_sent(self) -> None:
        """A prepared request has left."""

    def on_reads(self, reads: list[Read]) -> None:
        """What was read and is not decoded."""

    def advance(self) -> None:
        """Take what the reader has decoded; the last of it may end the response."""

    def on_end(self, error: str | None) -> None:
        """The peer closed (None) or the connection failed."""


class ConnectError(Exception):
    """No connection: `kind` is dns, tcp, tls, tls_certificate, ca_file or timeout."""

    def __init__(self, kind: str, message: str) -> None:
        super().__init__(shown(message, MAX_MESSAGE))
        self.kind = kind


def _nobody(*_: _socket.socket) -> None:
    """Default callback."""


class Connection:
    """A connected socket with its watcher, for one exchange at a time."""

    def __init__(
        self, number: int, raw: _socket.socket, *, kernel_stamps: bool, in_hub: bool = True
    ) -> None:
        self.number = number
        self.kernel_stamps = kernel_stamps
        self.dns_ns = self.connect_ns = self.tls_ns = 0
        self.listener: Listener | None = None
        self.on_idle_end: Callable[[], None] = _nobody
        self.on_close: Callable[[_socket.socket], None] = _nobody
        self.closed = self.used = self.sending = False
        self._awaits_send = False
        self._is_lent = False
        self.sent_at_ns: int | None = None  # first byte of the last request
        self.emptied = True  # the last read emptied the socket
        self.paused_ns = 0  # time in which `pause` kept it from reading
        self._paused_at_ns = 0
        self._read_size = READ_SIZE
        self._resume: Any = None
        self._is_slow = False
        self._seen_from = 0  # the number of the first poll that counts for this socket
        self._in_hub = in_hub
        self._reading: int | None = None  # its number at the compiled reader
        self._raw = raw
        self._recvmsg = raw.recvmsg
        self._tls: Tls | None = None
        self._watcher: Any = None
        self._writable_watcher: Any = None
        self._writable = Event()  # the socket buffer takes more, or the connection was closed

    def watched_by(self, losses: Losses) -> None:
        """Count TCP losses of this connection."""
        losses.opened(self._raw)
        self.on_close = losses.closing

    def start(self) -> None:
        """Begin to read, or go on. Without a listener, readable means closed by the peer."""
        self._end_pause()
        if not self._in_hub:
            self._reading = READER.add(self._raw.fileno(), self, is_sealed=self._tls is not None)
            return
        if self._watcher is None:
            self._watcher = get_hub().loop.io(self._raw.fileno(), _READ)
        self._seen_from = POLLS.number + SETTLED
        self._watcher.start(self._on_readable)

    def listen(
        self, listener: Listener | None, answer: Answer | None = None, *, is_urgent: bool = True
    ) -> None:
        """Pass reads to another listener from now on; `answer`: its body. Not urgent: nobody acts on what comes."""
        self.listener = listener
        if self._reading is not None:
            compiled = answer.core if isinstance(answer, CompiledAnswer) else None
            READER.listen(self._reading, compiled, is_urgent=is_urgent)

    @classmethod
    def opened_for(cls, number: int, slot: int) -> Connection:
        """Take over a connection that the compiled reader has opened for a prepared request; number `slot` there."""
        self = cls.__new__(cls)
        raw = _socket.socket(fileno=READER.adopt(slot, self))
        self.__init__(number, raw, kernel_stamps=KERNEL_STAMPS, in_hub=False)  # type: ignore[misc]
        self._reading = slot
        return self

    def sealed(self, data: bytes) -> bytes:
        """A request as it is to be sent next on this connection, and nothing else before it; under TLS encrypted."""
        return data if self._tls is None else self._tls.sealed(data)

    def lend(self, pool: int, usable_from_ns: int, usable_until_ns: int) -> None:
        """Let prepared requests take it while it is idle."""
        if self._reading is not None:
            READER.lend(self._reading, pool, usable_from_ns, usable_until_ns)
            self._is_lent = True

    def take_back(self) -> bool:
        """Lend it no more. False: a request has taken it."""
        if self._is_lent and self._reading is not None and not READER.take_back(self._reading):
            return False  # its notice comes soon
        self._is_lent = False
        return True

    def feed(self) -> None:
        """Let the compiled reader decode what comes for the answer, if it may."""
        if self._reading is not None and self._tls is None:
            READER.feed(self._reading)

    @property
    def is_compiled(self) -> bool:
        """Whether the compiled reader reads it."""
        return not self._in_hub

    def pause(self, seconds: float, read_size: int) -> None:
        """Do not read for a while, and then at most `read_size` bytes at once; the kernel's buffer fills."""
        if self.closed or self._paused_at_ns:
            return
        self._watcher.stop()
        self._is_slow = True
        self._read_size = min(READ_SIZE, read_size)
        self._paused_at_ns = monotonic_ns()
        self._resume = get_hub().loop.timer(seconds)
        self._resume.start(self.start)

    def _end_pause(self) -> None:
        if self._paused_at_ns:
            self.paused_ns += monotonic_ns() - self._paused_at_ns
            self._paused_at_ns = 0
            self._resume.stop()
            self._resume.close()

    def send(self, data: bytes, timeout_s: float) -> None:
        """Pass all of `data` to the kernel; waits only while the socket buffer is full."""
        self.sending = True
        self.sent_at_ns = None
        view = memoryview(self.sealed(data))
        began_ns = monotonic_ns()
        while view and not self.closed:
            try:
                view = view[self._raw.send(view) :]
                self.sent_at_ns = self.sent_at_ns or began_ns
            except BlockingIOError:
                if not self._wait_writable(timeout_s):
                    raise TimeoutError("the target did not accept the request in time") from None
        if self.closed:
            raise ConnectionResetError("the connection was closed while the request was sent")
        self.sending = False

    def _wait_writable(self, timeout_s: float) -> bool:
        self._writable.clear()
        if self._writable_watcher is None:
            self._writable_watcher = get_hub().loop.io(self._raw.fileno(), _WRITE)
        self._writable_watcher.start(self._writable.set)
        try:
            return bool(self._writable.wait(timeout_s))
        finally:
            if not self.closed:
                self._writable_watcher.stop()

    def catch_up(self) -> None:
        """Pass on what has come by now: a busy event loop looks at its timers before it looks at its sockets."""
        if self._reading is not None:
            self.look()
        elif self._watcher is not None and self._watcher.active:
            self._watcher.callback()

    def alive(self) -> bool:
        """Whether an idle connection is open, without an end or stray bytes in the socket."""
        if self.closed or (self._tls is not None and self._tls.over is not None):
            return False
        if self._reading is not None and READER.waits(self._reading):
            return False  # else it may have come just now: on a busy machine the thread is late
        try:
            self._raw.recv(1, _socket.MSG_PEEK)
        except OSError as error:
            return isinstance(error, BlockingIOError)
        return False

    def close(self) -> None:
        """Close at once. The peer sees FIN, or RST if bytes were left unread."""
        if not self.closed:
            self.closed = True
            self._end_pause()
            if self._reading is not None:
                READER.remove(self._reading)
                self._reading = None
            # libev aborts on a watcher without socket.
            for watcher in filter(None, (self._watcher, self._writable_watcher)):
                watcher.stop()
                watcher.close()
            self._writable.set()
            self.on_close(self._raw)
            self._raw.close()

    def reset(self) -> None:
        """Close with RST, so that the peer notices at once."""
        if not self.closed:
            with contextlib.suppress(OSError):
                self._raw.setsockopt(_socket.SOL_SOCKET, _socket.SO_LINGER, struct.pack("ii", 1, 0))
            self.close()

    def handshake(self, context: ssl.SSLContext, host: str, timeout_s: float) -> None:
        """TLS over memory buffers, so that reads keep their timestamps."""
        started = monotonic_ns()
        self._tls = Tls(context, host)
        data = b""
        first = b""
        deadline = started + int(timeout_s * 1e9)
        try:
            while not self._tls.handshake(data):
                self._flush_handshake()
                left = (deadline - monotonic_ns()) / 1e9
                if left <= 0 or not wait_for(self._raw, _READ, left):
                    name = "" if first else self._peer_behind_silence()
                    raise ConnectError(
                        "tls" if name else "timeout", name or "TLS handshake timed out"
                    )
                data = self._raw.recv(READ_SIZE)
                first = first or data
                if not data:
                    raise ConnectError("tls", "the target hung up during the TLS handshake")
        except ssl.SSLCertVerificationError as error:
            untrusted = f"certificate not trusted: {error.verify_message}"
            raise ConnectError("tls_certificate", untrusted) from None
        except ssl.SSLError as error:
            name = peer_name(first)
            shown_name = f" ({name})" if name and name != TLS else ""
            raise ConnectError(
                "tls", f"TLS handshake failed: {error.reason or error}{shown_name}"
            ) from None
        self._flush_handshake()
        self.tls_ns = monotonic_ns() - started

    def _peer_behind_silence(self) -> str:
        """What a peer speaks that waits for the end of a line where the handshake came; empty if it stays silent."""
        try:
            self._raw.send(b"\r\n\r\n")
            if wait_for(self._raw, _READ, LINE_S):
                return peer_name(self._raw.recv(READ_SIZE))
        except OSError:
            return ""
        return ""

    def _flush_handshake(self) -> None:
        data = self._tls.to_send() if self._tls is not None else b""
        while data:
            data = data[self._raw.send(data) :]

    def _read(self) -> Read | None:
        """Bytes, arrival (kernel timestamp of the last byte, else the read time), read time, an earlier empty socket."""
        try:
            data, ancillary, _, _ = self._recvmsg(self._read_size, ANCILLARY)
        except BlockingIOError:
            return None
        except OSError as error:
            self._ended(os.strerror(error.errno or 0))
            return None
        now = monotonic_ns()
        empty = POLLS.at_ns if POLLS.number >= self._seen_from and not self._is_slow else 0
        self.emptied = len(data) < self._read_size
        if not self.emptied:
            self._seen_from = POLLS.number + SETTLED
        if not data:
            self._ended(None)
            return None
        arrived = kernel_stamp_ns(ancillary) if ancillary else now
        if not self._is_slow:  # a pause is not receive lag
            READER.note_lag(now - arrived)
        return data, arrived, now, empty

    def _on_readable(self) -> None:
        read = self._read()
        if read is not None:
            self._pass_on([read])
            self._end_of_tls()

    def look(self) -> None:
        """Take what the compiled reader has."""
        if self._reading is None:
            return
        if self._is_lent and not READER.is_lent(self._reading):
            return  # a request has left on it: its notice comes first
        found = READER.reads(self._reading)
        if self._awaits_send:
            self._note_send(found)
        self._pass_on(found.reads)
        self._end_of_tls()
        if found.end is not None and not self.closed:
            self._ended(os.strerror(found.end) if found.end else None)

    def await_send(self) -> None:
        """The compiled reader sends a prepared request on it."""
        self._awaits_send = self.sending = True
        self._is_lent = False
        self.sent_at_ns = None
        self.look()

    def _note_send(self, found: Found) -> None:
        if not found.sent_at:
            return
        self._awaits_send = self.sending = found.is_sending
        if self.sent_at_ns is not None:
            return
        self.sent_at_ns = found.sent_at
        if found.opened_at:
            self.connect_ns = found.connected_at - found.opened_at
        if self.listener is not None:
            self.listener.on_sent()

    def _pass_on(self, reads: list[Read]) -> None:
        if reads and self._tls is not None:
            reads = self._tls.unsealed(reads) if self._tls.over is None else []
        if self.listener is None:
            if reads:
                self.close()  # unexpected bytes: do not reuse this connection
        elif reads:
            self.listener.on_reads(reads)
        else:
            self.listener.advance()

    def _end_of_tls(self) -> None:
        if self._tls is not None and self._tls.over is not None and not self.closed:
            self._ended(self._tls.over or None)

    def _ended(self, error: str | None) -> None:
        listener = self.listener
        self.listen(None)
        self.close()
        if listener is not None:
            listener.on_end(error)
        else:
            self.on_idle_end()


def wait_for(raw: _socket.socket, events: int, timeout_s: float) -> bool:
    """Let other greenlets run until the socket is ready; False after `timeout_s`."""
    ready = Event()
    watcher = get_hub().loop.io(raw.fileno(), events)
    watcher.start(ready.set)
    try:
        return bool(ready.wait(timeout_s))
    finally:
        watcher.stop()
        watcher.close()


def resolve(host: str, port: int, timeout_s: float) -> tuple[list[Any], int]:
    """Addresses of a host and the duration in ns, resolved on an OS thread; literal addresses take 0."""
    started = monotonic_ns()
    try:
        return _socket.getaddrinfo(host, port, 0, _socket.SOCK_STREAM, 0, _socket.AI_NUMERICHOST), 0
    except (_socket.gaierror, UnicodeError):
        pool = get_hub().threadpool
    try:
        with gevent.Timeout(timeout_s):
            found = pool.apply(_look_up, (host, port))
    except gevent.Timeout:
        raise ConnectError("timeout", f"no address for {host} in time") from None
    if isinstance(found, str):
        raise ConnectError("dns", f"no address for {host}: {found}")
    return found, monotonic_ns() - started


def _look_up(host: str, port: int) -> list[Any] | str:
    """Addresses, or the error as text: an exception would be printed by the pool's thread."""
    try:
        return _socket.getaddrinfo(host, port, 0, _socket.SOCK_STREAM)
    except _socket.gaierror as error:
        return error.strerror or str(error)
    except UnicodeError as error:
        return str(error)


def connect(
    number: int, addresses: list[Any], timeout_s: float, receive_buffer: int | None = None, *,
    user_clock: bool = False, in_hub: bool = True,
) -> Connection:  # fmt: skip
    """Connect to the first address that answers; `addresses` as from getaddrinfo, `receive_buffer` in bytes.

    Reads have kernel timestamps where available, unless `user_clock` is set. `in_hub`: not by the compiled reader.
    """
    started = monotonic_ns()
    kernel_stamps = KERNEL_STAMPS and not user_clock
    failure = ConnectError("dns", "the name has no address")
    for family, kind, proto, _, address in addresses:
        raw = _new_socket(family, kind, proto)
        try:
            left = timeout_s - (monotonic_ns() - started) / 1e9
            if receive_buffer is not None:  # before connecting, which negotiates the window
                raw.setsockopt(_socket.SOL_SOCKET, _socket.SO_RCVBUF, receive_buffer)
            _connect(raw, address, left, kernel_stamps=kernel_stamps)
        except ConnectError as error:
            raw.close()
            failure = error
            continue
        connection = Connection(number, raw, kernel_stamps=kernel_stamps, in_hub=in_hub)
        connection.connect_ns = monotonic_ns() - started
        return connection
    raise failure


def _new_socket(family: int, kind: int, proto: int) -> _socket.socket:
    """A socket. ConnectError where it would take one of the last descriptors: rows could not be written any more."""
    most, _ = resource.getrlimit(resource.RLIMIT_NOFILE)
    all_in_use = f"all file descriptors are in use (RLIMIT_NOFILE {most:,}): raise it (ulimit -Hn)"
    try:
        raw = _socket.socket(family, kind, proto)
    except OSError as error:
        if error.errno == errno.EMFILE:
            raise ConnectError(NO_DESCRIPTOR, all_in_use) from None
        if error.errno == errno.ENFILE:
            raise ConnectError(
                NO_DESCRIPTOR, "all file descriptors of this machine are in use: raise fs.file-max"
            ) from None
        raise ConnectError("tcp", error.strerror or str(error)) from None
    if most != resource.RLIM_INFINITY and raw.fileno() >= most - SPARE_DESCRIPTORS:
        raw.close()
        raise ConnectError(NO_DESCRIPTOR, all_in_use)
    return raw


def _connect(raw: _socket.socket, address: Any, timeout_s: float, *, kernel_stamps: bool) -> None:
    raw.setblocking(False)
    raw.setsockopt(_socket.IPPROTO_TCP, _socket.TCP_NODELAY, 1)
    if kernel_stamps:
        raw.setsockopt(_socket.SOL_SOCKET, SO_TIMESTAMPNS, 1)
    code = raw.connect_ex(address)
    if code == errno.EINPROGRESS:
        if timeout_s <= 0 or not wait_for(raw, _WRITE, timeout_s):
            raise ConnectError("timeout", "no answer to TCP connect in time")
        code = raw.getsockopt(_socket.SOL_SOCKET, _socket.SO_ERROR)
    if code:
        raise ConnectError("tcp", os.strerror(code))


def hold_kernel_stamps() -> _socket.socket | None:
    """A socket that keeps kernel timestamps enabled: the first packets after enabling them have none."""
    if not KERNEL_STAMPS:
        return None
    holder = _socket.socket(_socket.AF_INET, _socket.SOCK_DGRAM)
    holder.setsockopt(_socket.SOL_SOCKET, SO_TIMESTAMPNS, 1)
    return holder


@dataclass(slots=True, eq=False)
class Idle:
    """An idle connection, since when, and until when its peer promised to keep it."""

    connection: Connection
    since_ns: int
    until_ns: int
    answered: bool  # false: opened beforehand and not used yet


@dataclass(slots=True)
class OriginPool:
    """The idle connections of one origin. `lent_to`: the compiled reader's pool of prepared requests, without TLS."""

    rest_ns: int = FIRST_REST_NS
    lent_to: int | None = None
    idle: list[Idle] = field(default_factory=list)


class Pool:
    """Idle connections by origin, at most `limit` each; last in, first out.

    A request is never sent twice. A server that closes after a response without announcing it would break the next
    request, so a connection rests for a moment before reuse: the close arrives in that time. If a server closes later,
    the rest grows.
    """

    def __init__(self, limit: int) -> None:
        self._limit = limit
        self._pools: defaultdict[Origin, OriginPool] = defaultdict(OriginPool)

    def take(self, origin: Origin) -> Connection | None:
        """The last released connection that has rested and is alive; None if a new one is needed."""
        origin_pool = self._pools[origin]
        now = monotonic_ns()
        for place in range(len(origin_pool.idle) - 1, -1, -1):
            item = origin_pool.idle[place]
            if now - item.since_ns < origin_pool.rest_ns:
                continue
            del origin_pool.idle[place]
            if not item.connection.take_back():
                continue  # a prepared request has left on it
            if now < item.until_ns and item.connection.alive():
                return item.connection
            item.connection.close()
        return None

    def lend_to(self, origin: Origin, pool: int) -> None:
        """Let prepared requests take idle connections, by a pool of the compiled reader."""
        origin_pool = self._pools[origin]
        origin_pool.lent_to = pool
        for item in origin_pool.idle:
            _lend(item, origin_pool)

    def was_taken(self, origin: Origin, connection: Connection) -> None:
        """A prepared request has left on an idle connection."""
        origin_pool = self._pools[origin]
        origin_pool.idle = [item for item in origin_pool.idle if item.connection is not connection]

    def give(
        self, origin: Origin, connection: Connection, hint: bytes, since_ns: int | None = None, *, answered: bool = True
    ) -> None:  # fmt: skip
        """Keep a connection for later; `hint` is the response's Keep-Alive header, `since_ns` when it ended."""
        origin_pool = self._pools[origin]
        now = monotonic_ns()
        if connection.closed or len(origin_pool.idle) >= self._limit:
            connection.close()
            return
        since_ns = min(since_ns or now, now)  # the clock of arrivals may have been set
        item = Idle(connection, since_ns, since_ns + _kept_ns(hint), answered)
        origin_pool.idle.append(item)
        _lend(item, origin_pool)
        connection.on_idle_end = lambda: self._closed_by_peer(origin_pool, item)

    def resting(self, origin: Origin) -> int:
        """How many idle connections there are."""
        return len(self._pools[origin].idle)

    def close(self) -> None:
        """Close every idle connection, but those on which a prepared request has left."""
        for origin_pool in self._pools.values():
            for item in origin_pool.idle:
                if item.connection.take_back():
                    item.connection.close()
        self._pools.clear()

    def _closed_by_peer(self, origin_pool: OriginPool, item: Idle) -> None:
        if item in origin_pool.idle:
            origin_pool.idle.remove(item)
            rested = monotonic_ns() - item.since_ns
            if item.answered and rested < SOON_NS:
                origin_pool.rest_ns = min(LONGEST_REST_NS, max(origin_pool.rest_ns, 4 * rested))


def _lend(item: Idle, origin_pool: OriginPool) -> None:
    if origin_pool.lent_to is not None:
        item.connection.lend(
            origin_pool.lent_to, item.since_ns + origin_pool.rest_ns, item.until_ns
        )


def _kept_ns(hint: bytes) -> int:
    """The peer's keep-alive time less a margin; else a long time."""
    if not hint:
        return LONG_NS
    for part in hint.split(b","):
        name, _, value = part.strip().partition(b"=")
        if name.lower() == b"timeout" and value.isdigit() and len(value) < 10:
            return int(max(0.0, int(value) - MARGIN_S) * 1e9)
    return LONG_NS
