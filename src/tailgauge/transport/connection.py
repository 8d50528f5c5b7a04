"""Connections to the target: resolve, connect, TLS, send, and what was read.

The compiled reader reads them on its thread, or the hub does, see `HubReads`. Each read has three times: the kernel's
(SO_TIMESTAMPNS, the arrival of the read's last byte), the read time, and one at which the socket was still empty (`Polls`).
Without Linux there is no kernel's, and the rows state that. A slow reader is read in the hub, which can pause.

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
from collections.abc import Callable
from typing import Any, Protocol

import gevent
from gevent import get_hub

from tailgauge.clock import SO_TIMESTAMPNS, monotonic_ns
from tailgauge.redaction import shown
from tailgauge.transport.answer import Answer, CompiledAnswer
from tailgauge.transport.hub_reads import READ_SIZE, HubReads
from tailgauge.transport.losses import Losses
from tailgauge.transport.peer import TLS, peer_name
from tailgauge.transport.reader import READER, Found
from tailgauge.transport.tls import Read, Tls
from tailgauge.transport.waits import READABLE, WRITABLE, SendBuffer, wait_for

KERNEL_STAMPS = sys.platform == "linux"
# Failures of this machine, not of the target.
NO_DESCRIPTOR = "no_descriptor"
NO_THREAD = "no_thread"
OF_THIS_MACHINE = frozenset({NO_DESCRIPTOR, NO_THREAD})
SPARE_DESCRIPTORS = 48  # left for parts, name look-ups and the master's channel
LINE_S = 2.0  # in which a server of plain HTTP answers an empty line
MAX_MESSAGE = 500  # characters


class Listener(Protocol):
    """Receives what arrives: the current exchange."""

    def on_sent(self) -> None:
        """Take notice that a prepared request has left."""

    def on_reads(self, reads: list[Read]) -> None:
        """Take what was read and is not decoded."""

    def advance(self) -> None:
        """Take what the reader has decoded; the last of it may end the response."""

    def on_end(self, error: str | None) -> None:
        """Take notice that the peer closed (None) or the connection failed."""


class ConnectError(Exception):
    """No connection: `kind` is dns, tcp, tls, tls_certificate, ca_file or timeout."""

    def __init__(self, kind: str, message: str) -> None:
        super().__init__(shown(message, MAX_MESSAGE))
        self.kind = kind


def _nobody(*_: _socket.socket) -> None:
    """Do nothing: the default callback."""


class Connection:
    """A connected socket, for one exchange at a time. `hub_reads`: where the hub reads it, not the compiled reader."""

    def __init__(
        self, number: int, raw: _socket.socket, *, kernel_stamps: bool, in_hub: bool = True
    ) -> None:
        """Take over a connected socket; nothing is read before `start`. `number`: of the connection, in rows.

        `kernel_stamps`: the kernel times what arrives. `in_hub`: gevent's hub reads, otherwise the compiled
        reader's thread.
        """
        self.number = number
        self.kernel_stamps = kernel_stamps
        self.dns_ns = 0
        self.connect_ns = 0
        self.tls_ns = 0
        self.listener: Listener | None = None
        # The peer has closed it between two exchanges.
        self.on_idle_end: Callable[[], None] = _nobody
        self.on_close: Callable[[_socket.socket], None] = _nobody
        self.closed = False
        self.used = False  # a request was sent on it before
        self.sending = False
        self.sent_at_ns: int | None = None  # first byte of the last request
        self.hub_reads = HubReads(raw, self) if in_hub else None
        self._reading: int | None = None  # its number at the compiled reader
        self._awaits_send = False  # the reader is sending a prepared request on it
        self._is_lent = False  # a prepared request may take it
        self._raw = raw
        self._send_buffer = SendBuffer(raw)
        self._tls: Tls | None = None

    def watched_by(self, losses: Losses) -> None:
        """Count TCP losses of this connection."""
        losses.opened(self._raw)
        self.on_close = losses.closing

    def start(self) -> None:
        """Begin to read. Without a listener, readable means closed by the peer."""
        if self.hub_reads is None:
            self._reading = READER.add(self._raw.fileno(), self, is_sealed=self._tls is not None)
        else:
            self.hub_reads.start()

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
        self = cls.__new__(cls)  # the reader passes its socket on to a connection only
        raw = _socket.socket(fileno=READER.adopt(slot, self))
        self.__init__(number, raw, kernel_stamps=KERNEL_STAMPS, in_hub=False)  # type: ignore[misc]
        self._reading = slot
        return self

    def sealed(self, data: bytes) -> bytes:
        """Return a request as it is to be sent next on this connection, before anything else; under TLS encrypted."""
        if self._tls is None:
            return data
        return self._tls.sealed(data)

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
        return self.hub_reads is None

    @property
    def paused_ns(self) -> int:
        """Return for how long a slow reader has not read."""
        return 0 if self.hub_reads is None else self.hub_reads.paused_ns

    def send(self, data: bytes, timeout_s: float) -> None:
        """Pass all of `data` to the kernel; waits only while the socket buffer is full.

        `sent_at_ns` becomes the time before the first byte was accepted, None until then; `sending` stays
        set after an error. Raises TimeoutError if the buffer is full for `timeout_s`, OSError, and
        ssl.SSLError.
        """
        self.sending = True
        self.sent_at_ns = None
        rest = memoryview(self.sealed(data))
        begin_ns = monotonic_ns()
        while rest and not self.closed:
            try:
                size = self._raw.send(rest)
            except BlockingIOError:
                if not self._send_buffer.wait(timeout_s):
                    raise TimeoutError("the target did not accept the request in time") from None
                continue
            rest = rest[size:]
            self.sent_at_ns = self.sent_at_ns or begin_ns
        if self.closed:
            raise ConnectionResetError("the connection was closed while the request was sent")
        self.sending = False

    def catch_up(self) -> None:
        """Pass on what has come by now: a busy event loop looks at its timers before it looks at its sockets."""
        if self._reading is not None:
            self.look()
        elif self.hub_reads is not None:
            self.hub_reads.catch_up()

    def alive(self) -> bool:
        """Return whether an idle connection is open, without an end or stray bytes in the socket."""
        if self.closed or (self._tls is not None and self._tls.over is not None):
            return False
        # On a busy machine the thread is late: what it has not read is looked for below.
        if self._reading is not None and READER.waits(self._reading):
            return False
        try:
            self._raw.recv(1, _socket.MSG_PEEK)
        except OSError as error:
            return isinstance(error, BlockingIOError)
        return False

    def close(self) -> None:
        """Close at once. The peer sees FIN, or RST if bytes were left unread."""
        if self.closed:
            return
        self.closed = True
        if self.hub_reads is not None:
            self.hub_reads.close()
        if self._reading is not None:
            READER.remove(self._reading)
            self._reading = None
        self._send_buffer.close()
        self.on_close(self._raw)
        self._raw.close()

    def reset(self) -> None:
        """Close with RST, so that the peer notices at once."""
        if not self.closed:
            with contextlib.suppress(OSError):
                self._raw.setsockopt(_socket.SOL_SOCKET, _socket.SO_LINGER, struct.pack("ii", 1, 0))
            self.close()

    # --- TLS --------------------------------------------------------------------------------------------------

    def handshake(self, context: ssl.SSLContext, host: str, timeout_s: float) -> None:
        """Make the TLS handshake, over memory buffers, so that reads keep their timestamps; waits for the peer.

        `host`: the name that the certificate must have. Raises ConnectError, if possible with what the peer
        speaks instead.
        """
        begin_ns = monotonic_ns()
        deadline_ns = begin_ns + int(timeout_s * 1e9)
        self._tls = Tls(context, host)
        data = b""
        first_data = b""
        try:
            while not self._tls.handshake(data):
                self._flush_handshake()
                data = self._receive_handshake(deadline_ns, is_first=not first_data)
                # The first bytes show what a peer speaks that does not speak TLS.
                first_data = first_data or data
        except ssl.SSLCertVerificationError as error:
            cause = f"certificate not trusted: {error.verify_message}"
            raise ConnectError("tls_certificate", cause) from None
        except ssl.SSLError as error:
            cause = f"TLS handshake failed: {error.reason or error}"
            name = peer_name(first_data)
            if name and name != TLS:
                cause += f" ({name})"
            raise ConnectError("tls", cause) from None
        self._flush_handshake()
        self.tls_ns = monotonic_ns() - begin_ns

    def _receive_handshake(self, deadline_ns: int, *, is_first: bool) -> bytes:
        """Return the next bytes of the peer's handshake; raises ConnectError where none come."""
        left_s = (deadline_ns - monotonic_ns()) / 1e9
        if left_s <= 0 or not wait_for(self._raw, READABLE, left_s):
            if is_first:
                self._probe_silent_peer()
            raise ConnectError("timeout", "TLS handshake timed out")
        data = self._raw.recv(READ_SIZE)
        if not data:
            raise ConnectError("tls", "the target hung up during the TLS handshake")
        return data

    def _probe_silent_peer(self) -> None:
        """Raise ConnectError with what a peer speaks that waits for the end of a line where the handshake came."""
        name = ""
        with contextlib.suppress(OSError):
            self._raw.send(b"\r\n\r\n")
            if wait_for(self._raw, READABLE, LINE_S):
                name = peer_name(self._raw.recv(READ_SIZE))
        if name:
            raise ConnectError("tls", name)

    def _flush_handshake(self) -> None:
        """Send what TLS has for the peer."""
        assert self._tls is not None
        data = self._tls.to_send()
        while data:
            data = data[self._raw.send(data) :]

    # --- what was read ----------------------------------------------------------------------------------------

    def look(self) -> None:
        """Take what the compiled reader has."""
        if self._reading is None:
            return
        if self._is_lent and not READER.is_lent(self._reading):
            return  # a request has left on it: its notice comes first
        news = READER.reads(self._reading)
        if self._awaits_send:
            self._note_send(news)
        self.pass_on(news.reads)
        self.end_with_tls()
        if news.end is not None and not self.closed:
            error = os.strerror(news.end) if news.end else None
            self.end(error)

    def await_send(self) -> None:
        """Expect the compiled reader to send a prepared request on it."""
        self._awaits_send = True
        self.sending = True
        self._is_lent = False
        self.sent_at_ns = None
        self.look()

    def _note_send(self, news: Found) -> None:
        """Take notice of when a prepared request has left, and of the connection that was opened for it."""
        if not news.sent_at:
            return
        self._awaits_send = news.is_sending
        self.sending = news.is_sending
        if self.sent_at_ns is not None:
            return
        self.sent_at_ns = news.sent_at
        if news.opened_at:
            self.connect_ns = news.connected_at - news.opened_at
        if self.listener is not None:
            self.listener.on_sent()

    def pass_on(self, reads: list[Read]) -> None:
        """Pass reads to the listener, decrypted under TLS."""
        if reads and self._tls is not None:
            reads = self._tls.unsealed(reads) if self._tls.over is None else []
        if self.listener is None:
            if reads:
                self.close()  # unexpected bytes: do not reuse this connection
        elif reads:
            self.listener.on_reads(reads)
        else:
            self.listener.advance()

    def end_with_tls(self) -> None:
        """End where TLS has ended."""
        if self._tls is not None and self._tls.over is not None and not self.closed:
            self.end(self._tls.over or None)

    def end(self, error: str | None) -> None:
        """Close, and tell the listener: the peer has closed (None), or the connection has failed."""
        listener = self.listener
        self.listen(None)
        self.close()
        if listener is not None:
            listener.on_end(error)
        else:
            self.on_idle_end()


def resolve(host: str, port: int, timeout_s: float) -> tuple[list[Any], int]:
    """Return the addresses of a host and the duration in ns, resolved on an OS thread; literal addresses take 0."""
    begin_ns = monotonic_ns()
    with contextlib.suppress(_socket.gaierror, UnicodeError):  # a name
        numeric = _socket.AI_NUMERICHOST
        return _socket.getaddrinfo(host, port, type=_socket.SOCK_STREAM, flags=numeric), 0
    try:
        with gevent.Timeout(timeout_s):
            addresses = get_hub().threadpool.apply(_look_up, (host, port))
    except gevent.Timeout:
        raise ConnectError("timeout", f"no address for {host} in time") from None
    if isinstance(addresses, str):
        raise ConnectError("dns", f"no address for {host}: {addresses}")
    return addresses, monotonic_ns() - begin_ns


def _look_up(host: str, port: int) -> list[Any] | str:
    """Return addresses, or the error as text: an exception would be printed by the pool's thread."""
    try:
        return _socket.getaddrinfo(host, port, 0, _socket.SOCK_STREAM)
    except _socket.gaierror as error:
        return error.strerror or str(error)
    except UnicodeError as error:
        return str(error)


def connect(
    number: int,
    addresses: list[Any],
    timeout_s: float,
    receive_buffer: int | None = None,
    *,
    user_clock: bool = False,
    in_hub: bool = True,
) -> Connection:
    """Connect to the first address that answers; `addresses` as from getaddrinfo, `receive_buffer` in bytes.

    All addresses together have `timeout_s`. `user_clock`: this process times the reads, also where the
    kernel could. `in_hub`: gevent's hub reads the connection, and not the compiled reader. Raises the
    ConnectError of the last address.
    """
    begin_ns = monotonic_ns()
    kernel_stamps = KERNEL_STAMPS and not user_clock
    failure = ConnectError("dns", "the name has no address")
    for family, kind, proto, _, address in addresses:
        try:
            raw = _new_socket(family, kind, proto)
        except ConnectError as error:  # IPv6, for example, may be switched off on this machine
            failure = error
            continue
        try:
            left_s = timeout_s - (monotonic_ns() - begin_ns) / 1e9
            if receive_buffer is not None:  # before connecting, which negotiates the window
                raw.setsockopt(_socket.SOL_SOCKET, _socket.SO_RCVBUF, receive_buffer)
            _connect(raw, address, left_s, kernel_stamps=kernel_stamps)
        except ConnectError as error:
            raw.close()
            failure = error
            continue
        connection = Connection(number, raw, kernel_stamps=kernel_stamps, in_hub=in_hub)
        connection.connect_ns = monotonic_ns() - begin_ns
        return connection
    raise failure


def _new_socket(family: int, kind: int, proto: int) -> _socket.socket:
    """Return a socket. Raises ConnectError where it would take one of the last descriptors: rows could not be written any more."""
    limit, _ = resource.getrlimit(resource.RLIMIT_NOFILE)
    all_in_use = f"all file descriptors are in use (RLIMIT_NOFILE {limit:,}): raise it (ulimit -Hn)"
    try:
        raw = _socket.socket(family, kind, proto)
    except OSError as error:
        if error.errno == errno.EMFILE:
            raise ConnectError(NO_DESCRIPTOR, all_in_use) from None
        if error.errno == errno.ENFILE:
            cause = "all file descriptors of this machine are in use: raise fs.file-max"
            raise ConnectError(NO_DESCRIPTOR, cause) from None
        raise ConnectError("tcp", error.strerror or str(error)) from None
    if limit != resource.RLIM_INFINITY and raw.fileno() >= limit - SPARE_DESCRIPTORS:
        raw.close()
        raise ConnectError(NO_DESCRIPTOR, all_in_use)
    return raw


def _connect(raw: _socket.socket, address: Any, timeout_s: float, *, kernel_stamps: bool) -> None:
    """Connect a socket; raises ConnectError."""
    raw.setblocking(False)
    raw.setsockopt(_socket.IPPROTO_TCP, _socket.TCP_NODELAY, 1)
    if kernel_stamps:
        raw.setsockopt(_socket.SOL_SOCKET, SO_TIMESTAMPNS, 1)
    code = raw.connect_ex(address)
    if code == errno.EINPROGRESS:
        if timeout_s <= 0 or not wait_for(raw, WRITABLE, timeout_s):
            raise ConnectError("timeout", "no answer to TCP connect in time")
        code = raw.getsockopt(_socket.SOL_SOCKET, _socket.SO_ERROR)
    if code:
        raise ConnectError("tcp", os.strerror(code))


def hold_kernel_stamps() -> _socket.socket | None:
    """Return a socket that keeps kernel timestamps enabled: the first packets after enabling them have none."""
    if not KERNEL_STAMPS:
        return None
    holder = _socket.socket(_socket.AF_INET, _socket.SOCK_DGRAM)
    holder.setsockopt(_socket.SOL_SOCKET, SO_TIMESTAMPNS, 1)
    return holder
