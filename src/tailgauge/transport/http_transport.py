"""The transport of both official SDKs: they build the request and name its errors, this sends and times it.

One attempt is one call of `handle_request`: no retries, no redirects, no decompression, no proxy from the environment. The
attempt's exchange is passed in a context variable, because the SDKs have no parameter for it.
"""

from __future__ import annotations

import contextlib
import ssl
from collections.abc import Callable, Iterator
from contextvars import ContextVar
from functools import partial
from typing import Any

import gevent
import httpx2

from tailgauge.clock import monotonic_ns
from tailgauge.machine import NO_DESCRIPTORS, shortage
from tailgauge.transport.connection import (
    NO_DESCRIPTOR,
    NO_THREAD,
    ConnectError,
    Connection,
    connect,
    resolve,
)
from tailgauge.transport.exchange import STALE, Exchange
from tailgauge.transport.http1 import request_bytes
from tailgauge.transport.losses import Losses
from tailgauge.transport.pool import Origin, Pool
from tailgauge.transport.reader import COMPILED, READER, Departure

_CURRENT: ContextVar[Exchange | None] = ContextVar("exchange", default=None)
RESOLVE_AGAIN_NS = 30_000_000_000
OPENED_AT_ONCE = 32  # connections opened beforehand at the same time
# How long before it is due a request may be prepared: thousands may be due together. Under TLS it keeps a connection from
# other requests.
AHEAD_NS = 1_000_000_000
SEALED_AHEAD_NS = 30_000_000
# So long after its due time a prepared request does not leave any more on the connection kept for it.
LATEST_NS = 1_000_000_000
SMALL = 8192  # bytes of a request that an empty socket buffer takes at once, whatever its size
SLOW_BUFFER = 4096  # bytes, which the kernel doubles for its own use


@contextlib.contextmanager
def watched_by(exchange: Exchange) -> Iterator[None]:
    """Time the next request of this greenlet by `exchange`."""
    token = _CURRENT.set(exchange)
    try:
        yield
    finally:
        _CURRENT.reset(token)


class NoAnswerError(Exception):
    """No response head arrived; `kind` is httpx2's error."""

    def __init__(self, kind: type[httpx2.TransportError], message: str) -> None:
        super().__init__(message)
        self.kind = kind


class _Received(httpx2.SyncByteStream):
    """The body for the SDK, which reads it for errors: empty, at its end."""

    def __init__(self, exchange: Exchange) -> None:
        self._exchange = exchange

    def __iter__(self) -> Iterator[bytes]:
        self._exchange.wait_end()
        yield b""

    def close(self) -> None:
        self._exchange.abort("cancelled")


class HttpTransport(httpx2.BaseTransport):
    """Sends requests over a keep-alive pool and timestamps responses."""

    def __init__(
        self,
        *,
        idle_connections: int,
        connect_timeout_s: float,
        send_timeout_s: float,
        ca_file: str | None,
        user_clock: bool = False,
        reader: str = "compiled",
    ) -> None:
        self._pool = Pool(idle_connections)
        self._ca_file = ca_file
        self._user_clock = user_clock
        self._connect_timeout_s = connect_timeout_s
        self._send_timeout_s = send_timeout_s
        self._in_hub = reader == "python" or not COMPILED
        self._tls: ssl.SSLContext | None = None
        self._addresses: dict[tuple[str, int], tuple[int, list[Any]]] = {}
        self._lent_pools: dict[tuple[str, int], int] = {}
        # Of the compiled reader: each for one connection at a time.
        self._reserved_pools: list[int] = []
        self._numbers = 0
        self.losses = Losses()
        self.waits = 0  # calls that waited for a new connection
        self.wait_max_ns = 0  # the longest of these waits since it was last reset

    def handle_request(self, request: httpx2.Request) -> httpx2.Response:
        """Send one request; returns when the response's head has arrived. Raises httpx2's errors for the SDK."""
        exchange = _CURRENT.get() or Exchange()
        data = request_bytes(
            request.method, request.url.raw_path, request.headers.raw, request.read()
        )
        try:
            self._send(exchange, origin_of(request.url), data)
        except NoAnswerError as error:
            raise error.kind(str(error), request=request) from None
        # The SDK gets the status only: otherwise it would decompress a gigabyte, follow redirects, and keep a cookie, which
        # would pin all users to one replica.
        return httpx2.Response(exchange.status or 0, stream=_Received(exchange), request=request)

    @contextlib.contextmanager
    def sent(self, origin: Origin, data: bytes) -> Iterator[None]:
        """Send a prepared request; enters when the response's head has arrived, or raises NoAnswerError."""
        exchange = _CURRENT.get() or Exchange()
        self._send(exchange, origin, data)
        try:
            yield
        finally:
            exchange.abort("cancelled")

    def rests(self, origin: Origin) -> bool:
        """Return whether there is an idle connection."""
        if not self._pool.resting(origin):
            READER.catch_up()  # an answer may have ended
        return self._pool.resting(origin) > 0

    def send_at_once(self, exchange: Exchange, origin: Origin, data: bytes) -> bool:
        """Send a prepared request without waiting for anything; False: nothing was done.

        So it is where a connection rests, whose empty buffer takes a small request whole; `on_over` reports failures.
        """
        if exchange.aborted or exchange.bytes_per_s is not None or len(data) > SMALL:
            return False
        begin_ns = monotonic_ns()
        connection = self._pool.take(origin)
        if connection is None:
            return False
        self._listen(exchange, connection, origin, begin_ns, is_new=False)
        self._pass(exchange, connection, data)
        return True

    def may_prepare(self, origin: Origin) -> bool:
        """Return whether `prepare` could be used now."""
        if origin[0] == "https":
            return self._can_prepare and self._pool.resting(origin) > 0
        return READER.may_prepare and self._lent_pool(origin) is not None

    @staticmethod
    def ahead_ns(origin: Origin) -> int:
        """Return how long before it is due a request may be prepared, in ns."""
        return SEALED_AHEAD_NS if origin[0] == "https" else AHEAD_NS

    def prepare(
        self, origin: Origin, due_ns: int, data: bytes, on_due: Callable[[Departure], object]
    ) -> Callable[[], bool] | None:
        """Let a request leave at its due time, whatever this process does then; returns what withdraws it.

        None: it cannot be. `on_due` says how it left, for `attach`, or that it came back.
        """
        if origin[0] == "https":
            return self._prepare_sealed(origin, due_ns, data, on_due)
        pool = self._lent_pool(origin)
        if pool is None:
            return None
        token = READER.prepare(pool, due_ns, data, on_due)
        return partial(READER.withdraw, token)

    def _prepare_sealed(
        self, origin: Origin, due_ns: int, data: bytes, on_due: Callable[[Departure], object]
    ) -> Callable[[], bool] | None:
        """Let a TLS request leave at its due time: encrypt it for an idle connection, which nobody else may use then.

        Returns what withdraws it, see `prepare`. If the request does not leave, the connection is closed,
        because its peer expects these encrypted bytes next.
        """
        if not self._can_prepare:
            return None
        connection = self._pool.take(origin)
        if connection is None:
            return None
        # A pool of the compiled reader for this connection alone; it is used again for another one.
        pool = self._reserved_pools.pop() if self._reserved_pools else READER.pool(None, 0)
        connection.lend(pool, 0, due_ns + LATEST_NS)

        def end(*, has_left: bool) -> None:
            self._reserved_pools.append(pool)
            if not has_left:
                connection.take_back()
                connection.close()

        def on_notice(departure: Departure) -> None:
            end(has_left=not departure.is_back)
            on_due(departure)

        def withdraw() -> bool:
            has_not_left = READER.withdraw(token)
            if has_not_left:
                end(has_left=False)
            return has_not_left

        token = READER.prepare(pool, due_ns, connection.sealed(data), on_notice)
        return withdraw

    def attach(self, exchange: Exchange, origin: Origin, departure: Departure) -> None:
        """Time a prepared request that has left by `exchange`."""
        if departure.opened is None:
            connection = departure.connection
            self._pool.was_taken(origin, connection)
        else:
            self._numbers += 1
            self.waits += 1
            connection = Connection.opened_for(self._numbers, departure.opened)
            connection.watched_by(self.losses)
        self._listen(
            exchange, connection, origin, departure.at_ns, is_new=departure.opened is not None
        )
        connection.await_send()
        if connection.sent_at_ns is None and not exchange.done:
            gevent.spawn_later(self._connect_timeout_s, self._end_connecting, exchange, connection)

    def _end_connecting(self, exchange: Exchange, connection: Connection) -> None:
        """Fail an exchange whose new connection has not taken the request in time."""
        connection.look()  # it may have left: nothing else tells before the answer comes
        if connection.sent_at_ns is None and not exchange.done:
            exchange.fail("timeout", "no answer to TCP connect in time")

    @property
    def _can_prepare(self) -> bool:
        """Whether the compiled reader times what it sends, so that requests can be prepared for it."""
        return not (self._in_hub or self._user_clock)

    def _lent_pool(self, origin: Origin) -> int | None:
        """Return the number of the compiled reader's pool for an origin, whose connections prepared requests may take.

        The pool is made when it is first needed. None under TLS, on the user's clock, if gevent's hub reads the
        sockets, and while no address is known, which the first connection resolves.
        """
        scheme, host, port = origin
        if not self._can_prepare or scheme != "http":
            return None
        _resolved_at_ns, addresses = self._addresses.get((host, port), (0, []))
        if not addresses:
            return None
        address = addresses[0][4][0]
        # The reader takes no IPv6 address with a zone.
        if not isinstance(address, str) or "%" in address:
            return None
        pool = self._lent_pools.get((address, port))
        if pool is None:
            pool = READER.pool(address, port)
            self._lent_pools[address, port] = pool
            self._pool.lend_to(origin, pool)
        return pool

    def _send(self, exchange: Exchange, origin: Origin, data: bytes) -> None:
        """Send a request and wait for the response's head; raises NoAnswerError."""
        if exchange.aborted:
            raise NoAnswerError(httpx2.ReadError, "ended before it was sent")
        connection = self._idle_or_new_connection(exchange, origin)
        self._pass(exchange, connection, data)
        exchange.wait_head()
        connection.used = True
        if exchange.status is None:
            kind, message = exchange.failure or ("ended", exchange.aborted or "closed")
            error_class = httpx2.ReadTimeout if message == "timeout" else httpx2.ReadError
            raise NoAnswerError(error_class, f"{kind}: {message}")

    def _pass(self, exchange: Exchange, connection: Connection, data: bytes) -> None:
        """Pass a request to the kernel."""
        if exchange.capture is not None:
            exchange.capture.method = data.partition(b" ")[0].decode()
        try:
            connection.send(data, self._send_timeout_s)
        except (OSError, ssl.SSLError) as error:
            if exchange.status is None and not exchange.done:
                exchange.fail(STALE if connection.used else "closed", str(error))
        finally:
            exchange.sent_at_ns = connection.sent_at_ns

    def close(self) -> None:
        """Close every idle connection."""
        self._pool.close()

    def preopen(self, base_url: str, count: int) -> tuple[int, str | None]:
        """Open connections until `count` are idle; return how many are, and the first failure, None without one.

        Waits until all are open, or have failed.
        """
        origin = origin_of(httpx2.URL(base_url))
        missing = max(0, count - self._pool.resting(origin))
        numbers = iter(range(missing))  # taken by all greenlets together
        failures: list[str] = []

        def open_some() -> None:
            for _ in numbers:
                try:
                    connection = self._open(*origin, None)
                except ConnectError as error:
                    failures.append(f"{error.kind}: {error}")
                    return
                # If the peer closes it before a request, that counts as a stale connection, as after a request.
                connection.used = True
                self._pool.give(origin, connection, b"", answered=False)

        greenlets = [gevent.spawn(open_some) for _ in range(min(missing, OPENED_AT_ONCE))]
        gevent.joinall(greenlets, raise_error=True)
        return self._pool.resting(origin), failures[0] if failures else None

    def _idle_or_new_connection(self, exchange: Exchange, origin: Origin) -> Connection:
        """Return an idle connection or a new one, to which the exchange listens.

        A call that had to wait for a new connection is counted in `waits`. Raises NoAnswerError if none
        could be opened, or the exchange was ended meanwhile.
        """
        # A slow reader has a connection of its own, with a small buffer.
        is_slow = exchange.bytes_per_s is not None
        begin_ns = monotonic_ns()
        connection = None
        if not is_slow:
            connection = self._pool.take(origin)
        is_new = connection is None
        if connection is None:
            try:
                connection = self._open(*origin, SLOW_BUFFER if is_slow else None)
            except ConnectError as error:
                exchange.fail(error.kind, str(error))
                raise NoAnswerError(httpx2.ConnectError, f"{error.kind}: {error}") from None
        if exchange.aborted or exchange.done:
            connection.close()
            raise NoAnswerError(httpx2.ReadError, "ended before it was sent")
        waited_ns = self._listen(exchange, connection, origin, begin_ns, is_new=is_new)
        if is_new:
            self.waits += 1
            self.wait_max_ns = max(self.wait_max_ns, waited_ns)
        return connection

    def _listen(
        self,
        exchange: Exchange,
        connection: Connection,
        origin: Origin,
        begin_ns: int,
        *,
        is_new: bool,
    ) -> int:
        """Let the exchange listen to a connection; returns how long it waited for it."""

        def release(used: Connection, keep: bool) -> None:
            used.used = True
            # One that is sending was answered before its request was sent completely.
            if keep and exchange.bytes_per_s is None and not used.sending:
                self._pool.give(origin, used, exchange.header(b"keep-alive"), exchange.ended_at_ns)
            else:
                used.close()

        waited_ns = monotonic_ns() - begin_ns
        exchange.pool_wait_ns = waited_ns
        exchange.begin(connection, is_new=is_new, release=release)
        return waited_ns

    def _open(self, scheme: str, host: str, port: int, receive_buffer: int | None) -> Connection:
        """Open a connection that is read from now on; waits until it is connected, under TLS until the handshake is over.

        `receive_buffer`: in bytes, for a slow reader, which the hub reads; None: the system's. The
        addresses of a host are resolved again after 30 s. Raises ConnectError.
        """
        resolved_at_ns, addresses = self._addresses.get((host, port), (-RESOLVE_AGAIN_NS, []))
        dns_ns = 0
        if monotonic_ns() - resolved_at_ns > RESOLVE_AGAIN_NS:
            addresses, dns_ns = resolve(host, port, self._connect_timeout_s)
            self._addresses[host, port] = (monotonic_ns(), addresses)
        self._numbers += 1
        in_hub = self._in_hub or receive_buffer is not None
        connection = connect(
            self._numbers,
            addresses,
            self._connect_timeout_s,
            receive_buffer,
            user_clock=self._user_clock,
            in_hub=in_hub,
        )
        connection.dns_ns = dns_ns
        connection.watched_by(self.losses)
        if scheme == "https":
            try:
                connection.handshake(self._tls_context(), host, self._connect_timeout_s)
            except (ConnectError, OSError) as error:
                connection.close()
                if isinstance(error, ConnectError):
                    raise
                raise ConnectError("tls", str(error)) from None
        try:
            connection.start()
        except OSError as error:  # no more can be watched
            connection.close()
            kind = NO_DESCRIPTOR if error.errno in NO_DESCRIPTORS else NO_THREAD
            raise ConnectError(kind, shortage(error) or str(error)) from None
        return connection

    def _tls_context(self) -> ssl.SSLContext:
        if self._tls is None:
            try:
                self._tls = ssl.create_default_context(cafile=self._ca_file)
            except OSError as error:
                cause = error.strerror
                if isinstance(error, ssl.SSLError):
                    cause = "no PEM file of a certificate"
                raise ConnectError("ca_file", f"{self._ca_file}: {cause}") from None
            self._tls.minimum_version = ssl.TLSVersion.TLSv1_2
            self._tls.set_alpn_protocols(["http/1.1"])
        return self._tls


def origin_of(url: httpx2.URL) -> Origin:
    """Return scheme, host and port of a URL."""
    default_port = 443 if url.scheme == "https" else 80
    return url.scheme, url.host, url.port or default_port
