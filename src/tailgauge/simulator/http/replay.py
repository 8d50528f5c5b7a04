"""Serves recorded answers, byte for byte and at their times: `tailgauge endpoint --replay FILE`.

Each POST gets the next recorded answer of a POST. After the last they begin again, without those of the preflight. A GET
gets one recorded of a GET; a list of models, whatever else was not recorded, and `POST .../tokenize`, which no file holds,
get a 404.

Times count from the last byte of the request. The connection ends as it ended then: it stays open behind a complete
answer, is closed or reset where the target did so and where the file holds no more, and waits for the client where
the client had closed it.
"""

from __future__ import annotations

import asyncio
import contextlib
import json
import re
import socket
import ssl
import struct
from collections.abc import Callable, Iterator, Sequence
from itertools import chain, cycle

from tailgauge.rows.answer_file import CLOSED, COMPLETE, LEFT, RESET, RawAnswer
from tailgauge.rows.schema import PREFLIGHT
from tailgauge.simulator.http.requests import ServerOptions
from tailgauge.simulator.http.server import (
    BACKLOG,
    cannot_listen,
    run_until_stopped,
    stop_event,
    tls_of,
    url_of,
)
from tailgauge.transport.http1 import Head, WireError

MAX_HEAD = 65_536  # bytes of a request
MAX_BODY = 64 << 20
IDLE_S = 300.0  # an idle connection, or one that waits for its client
_READ = 65_536
_RESET_S = 0.02  # before a reset, which would drop what the client has not read yet
_NEVER_RECORDED = ("/models", "/tokenize")
_LINE_END = b"\r\n"
_SIZE = re.compile(rb"[0-9A-Fa-f]{1,8}")
_CONTINUE = b"HTTP/1.1 100 Continue\r\n\r\n"
_REASONS = {400: "Bad Request", 404: "Not Found", 405: "Method Not Allowed", 413: "Content Too Large"}


class RequestError(Exception):
    """A request that cannot be read: status and text."""

    def __init__(self, status: int, text: str) -> None:
        super().__init__(text)
        self.status = status


def serve_replay(
    answers: Sequence[RawAnswer], options: ServerOptions, host: str, port: int, *,
    on_listening: Callable[[str], None], lifeline: bool,
) -> None:  # fmt: skip
    """Serve recorded answers until SIGTERM or SIGINT, or with `lifeline` until standard input ends."""

    async def until_stopped() -> None:
        tls = tls_of(options)
        stop = stop_event(lifeline=lifeline)
        replay = Replay(answers)
        try:
            server = await asyncio.start_server(
                replay.serve, host, port, limit=MAX_HEAD, backlog=BACKLOG, ssl=tls
            )
        except OSError as error:
            raise cannot_listen(host, port, error) from error
        on_listening(url_of(server.sockets[0].getsockname(), tls))
        await stop.wait()
        server.close()
        replay.close()

    run_until_stopped(until_stopped())


class Replay:
    """Connections that get recorded answers in turn."""

    def __init__(self, answers: Sequence[RawAnswer]) -> None:
        self._turns: dict[str, Iterator[RawAnswer]] = {}
        for method in ("GET", "POST"):
            of_method = [answer for answer in answers if answer.method == method]
            of_run = [answer for answer in of_method if answer.facts.get("stage") != PREFLIGHT]
            if of_method:
                self._turns[method] = chain(of_method, cycle(of_run or of_method))
        self._connections: set[asyncio.Task[None]] = set()

    async def serve(self, reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        """Answer the requests of one connection."""
        task = asyncio.current_task()
        assert task is not None
        self._connections.add(task)
        try:
            with contextlib.suppress(OSError, ssl.SSLError, asyncio.CancelledError):
                while await self._answer(reader, writer):
                    pass
        finally:
            self._connections.discard(task)
            writer.close()

    def close(self) -> None:
        """End every connection."""
        for task in list(self._connections):
            task.cancel()

    async def _answer(self, reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> bool:
        """Answer the next request; returns whether another may follow."""
        try:
            request = await read_request(reader, writer)
        except RequestError as error:
            writer.write(_error(error.status, str(error)))
            await writer.drain()
            return False
        if request is None:
            return False
        method, path = request
        turns = self._turns.get(method)
        if method not in {"GET", "POST"}:
            writer.write(_error(405, f"{method}: a replay answers POST and GET"))
        elif turns is None or path.partition("?")[0].endswith(_NEVER_RECORDED):
            writer.write(_error(404, f"no recorded answer: {method} {path[:200]}"))
        else:
            return await play(next(turns), reader, writer)
        await writer.drain()
        return True


async def play(answer: RawAnswer, reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> bool:
    """Send an answer at its times and end the connection as it ended; returns whether it goes on."""
    loop = asyncio.get_running_loop()
    began_s = loop.time()
    for read in answer.reads:
        await _sleep_until(began_s + read.at_ns / 1e9)
        if _has_left(reader, writer):
            return False
        writer.write(read.data)
        await writer.drain()
    end_s = began_s + answer.end_at_ns / 1e9
    if answer.left_out_bytes or answer.end in {CLOSED, RESET}:
        if answer.end == RESET:
            end_s = max(end_s, loop.time() + _RESET_S)
        await _sleep_until(end_s)
        if answer.end == RESET:
            _reset(writer)
        return False
    if answer.end == LEFT:
        with contextlib.suppress(TimeoutError):
            async with asyncio.timeout(IDLE_S):
                await reader.read(1)
        return False
    return answer.end == COMPLETE and _stays_open(answer)


async def _sleep_until(at_s: float) -> None:
    delay_s = at_s - asyncio.get_running_loop().time()
    if delay_s > 0:
        await asyncio.sleep(delay_s)


def _has_left(reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> bool:
    """Whether the client has closed the connection."""
    return reader.at_eof() or writer.transport.is_closing()


def _reset(writer: asyncio.StreamWriter) -> None:
    """Close with RST."""
    raw = writer.get_extra_info("socket")
    raw.setsockopt(socket.SOL_SOCKET, socket.SO_LINGER, struct.pack("ii", 1, 0))
    writer.transport.abort()


def _stays_open(answer: RawAnswer) -> bool:
    """Whether the recorded head lets the connection go on."""
    try:
        started = Head().feed(answer.data)
    except WireError:
        return False
    return started is not None and started[0].framing is not None and started[0].framing.keep


async def read_request(reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> tuple[str, str] | None:
    """Method and path of the next request, once its body has come too; None at the end of the connection."""
    try:
        async with asyncio.timeout(IDLE_S):
            head = await reader.readuntil(b"\r\n\r\n")
            method, path, headers = _parsed(head)
            if b"100-continue" in headers.get(b"expect", b"").lower():
                writer.write(_CONTINUE)
            await _skip_body(reader, headers)
    except asyncio.LimitOverrunError:
        raise RequestError(400, f"a request head of more than {MAX_HEAD:,} bytes") from None
    except (asyncio.IncompleteReadError, TimeoutError):
        return None
    return method, path


def _parsed(head: bytes) -> tuple[str, str, dict[bytes, bytes]]:
    first, *lines = head.removesuffix(b"\r\n\r\n").split(b"\r\n")
    parts = first.decode("latin-1").split(" ")
    if len(parts) != 3 or not parts[2].startswith("HTTP/1."):
        raise RequestError(400, "not an HTTP/1.1 request")
    headers = {}
    for line in lines:
        name, colon, value = line.partition(b":")
        if not colon:
            raise RequestError(400, "a header line without a colon")
        headers[name.lower()] = value.strip()
    return parts[0], parts[1], headers


async def _skip_body(reader: asyncio.StreamReader, headers: dict[bytes, bytes]) -> None:
    """Read a request's body to its end: what it says changes nothing."""
    length = headers.get(b"content-length", b"0")
    if headers.get(b"transfer-encoding", b"").lower() == b"chunked":
        await _skip_chunks(reader)
        return
    if not length.isdigit():
        raise RequestError(400, "content-length is no number")
    left = int(length)
    if left > MAX_BODY:
        raise RequestError(413, f"a body of more than {MAX_BODY:,} bytes")
    while left:
        left -= len(await reader.readexactly(min(left, _READ)))


async def _skip_chunks(reader: asyncio.StreamReader) -> None:
    total = 0
    size = -1
    while size:
        line = (await reader.readuntil(_LINE_END)).partition(b";")[0].strip()
        if not _SIZE.fullmatch(line):
            raise RequestError(400, "not a chunk size")
        size = int(line, 16)
        total += size
        if total > MAX_BODY:
            raise RequestError(413, f"a body of more than {MAX_BODY:,} bytes")
        left = size
        while left:
            left -= len(await reader.readexactly(min(left, _READ)))
        if size:
            await reader.readexactly(len(_LINE_END))
    while await reader.readuntil(_LINE_END) != _LINE_END:
        pass  # trailers


def _error(status: int, text: str) -> bytes:
    """An answer that is not recorded."""
    body = json.dumps({"error": {"type": "replay", "message": text}}).encode()
    head = f"HTTP/1.1 {status} {_REASONS[status]}\r\ncontent-type: application/json\r\n"
    return f"{head}content-length: {len(body)}\r\n\r\n".encode() + body
