"""The endpoint's process: descriptors, signals, standard input, the event loop. It serves until it is stopped."""

from __future__ import annotations

import asyncio
import errno
import gc
import os
import select
import selectors
import signal
import socket
import ssl
import threading
from collections.abc import Callable

from aiohttp import web

from tailgauge import descriptors
from tailgauge.clock import WALL
from tailgauge.errors import UsageError
from tailgauge.simulator.http.requests import ServerOptions, listen

BACKLOG = 4096  # a burst of arrivals waits in the kernel; it caps this at net.core.somaxconn
_MAX_HEADERS = 64  # an SDK sends some twenty, of 8 kB at most
# aiohttp waits for this twice: for open streams to end, then for their cancellation.
_SHUTDOWN_S = 0.4


def serve(
    app: web.Application,
    options: ServerOptions,
    host: str,
    port: int,
    *,
    on_listening: Callable[[str], None],
    lifeline: bool,
) -> None:
    """Serve an application until SIGTERM or SIGINT, or with `lifeline` until standard input ends: its writer has died.

    Port 0 takes a free one; `on_listening` is called once with the address, when the server accepts connections.
    """

    async def until_stopped() -> None:
        tls = _tls(options)
        loop = asyncio.get_running_loop()
        stop = _stop_event(lifeline=lifeline)
        runner = web.AppRunner(
            app,
            access_log=None,
            keepalive_timeout=options.keepalive_s,
            max_headers=_MAX_HEADERS,
            shutdown_timeout=_SHUTDOWN_S,
            handler_cancellation=True,  # a client that leaves ends its call at once
        )
        await runner.setup()
        try:
            await _listen(runner, host, port, tls)
            _calm_garbage_collector()
            _follow_wall_clock(loop)
            on_listening(_url(runner, tls))
            await stop.wait()
        finally:
            await runner.cleanup()

    descriptors.raise_limit()
    with asyncio.Runner(loop_factory=_event_loop) as event_loop:
        event_loop.run(until_stopped())


def _event_loop() -> asyncio.SelectorEventLoop:
    return asyncio.SelectorEventLoop(FineSelector())


def _stop_event(*, lifeline: bool) -> asyncio.Event:
    """Return an event that SIGTERM and SIGINT set, with `lifeline` also the end of standard input."""
    loop = asyncio.get_running_loop()
    stop = asyncio.Event()
    for number in (signal.SIGTERM, signal.SIGINT):
        loop.add_signal_handler(number, stop.set)
    if lifeline:
        threading.Thread(target=_watch_stdin, args=(loop, stop), daemon=True).start()
    return stop


async def _listen(runner: web.AppRunner, host: str, port: int, tls: ssl.SSLContext | None) -> None:
    try:
        for listener in listen(host, port, BACKLOG):
            await web.SockSite(runner, listener, backlog=BACKLOG, ssl_context=tls).start()
    except OSError as error:
        raise UsageError(f"cannot listen on {host} port {port}: {_advice(error, host)}") from error


def _advice(error: OSError, host: str) -> str:
    """Return why an address cannot be used, and what to do."""
    if error.errno == errno.EADDRINUSE:
        return "another program listens there: --port 0 takes a free one"
    if error.errno == errno.EACCES:
        return "ports below 1024 need root: --port 8000"
    if error.errno == errno.EADDRNOTAVAIL:
        return f"{host} is no address of this machine: --host 127.0.0.1, or 0.0.0.0 for all"
    if isinstance(error, socket.gaierror):
        return f"the name {host} has no address: --host 127.0.0.1"
    return error.strerror or str(error)


def _url(runner: web.AppRunner, tls: ssl.SSLContext | None) -> str:
    host, port = runner.addresses[0][:2]
    scheme = "http" if tls is None else "https"
    if ":" in host:
        host = f"[{host}]"
    return f"{scheme}://{host}:{port}"


def _follow_wall_clock(loop: asyncio.AbstractEventLoop) -> None:
    """Refresh the wall clock's offset once a second: the kernel's stamps are of that clock, which may be set."""
    WALL.refresh()
    loop.call_later(1.0, _follow_wall_clock, loop)


def _tls(options: ServerOptions) -> ssl.SSLContext | None:
    """Return a TLS context with the certificate of the options; None without one."""
    if options.certfile is None:
        return None
    context = ssl.create_default_context(ssl.Purpose.CLIENT_AUTH)
    try:
        context.load_cert_chain(options.certfile, options.keyfile)
    except OSError as error:  # ssl.SSLError is one
        reason = error.strerror or error
        raise UsageError(
            f"{options.certfile}: cannot be used as a certificate: {reason}"
        ) from error
    return context


def _calm_garbage_collector() -> None:
    """Make collections few and small: with the defaults one took 30 ms under 2,000 streams, and every stream waited."""
    gc.freeze()  # all objects loaded by now live as long as the process
    # Calls leave no cycles behind; a closed connection leaves some, a few kB that can wait.
    gc.set_threshold(10_000, 50, 10)


def _watch_stdin(loop: asyncio.AbstractEventLoop, stop: asyncio.Event) -> None:
    # A thread, because standard input may be a file or /dev/null, which epoll refuses. os.read, because a daemon thread
    # inside sys.stdin would hold its lock when the interpreter ends.
    while os.read(0, 4096):
        pass
    if not loop.is_closed():
        loop.call_soon_threadsafe(stop.set)


class FineSelector(selectors.DefaultSelector):
    """The platform's selector, whose timers are late by tens of microseconds, not by up to a millisecond.

    epoll_wait counts in milliseconds and Python rounds up. select(2) counts in microseconds and may watch the epoll
    descriptor itself: it becomes readable when any descriptor in it is ready.
    """

    def select(self, timeout: float | None = None) -> list[tuple[selectors.SelectorKey, int]]:
        """Wait at most `timeout` seconds for a descriptor to be ready."""
        if timeout is not None and timeout > 0:
            select.select((self.fileno(),), (), (), timeout)
            timeout = 0
        return super().select(timeout)
