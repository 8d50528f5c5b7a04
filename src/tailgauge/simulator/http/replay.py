"""Serves recorded answers, byte for byte and at their times: `tailgauge endpoint --replay FILE`.

Each POST gets the next recorded answer of a POST. After the last one they begin again, without those of the preflight. A GET
gets a recorded answer of a GET. Requests without a recorded answer get a 404, as do a list of models and
`POST .../tokenize`, which are never recorded.

Times count from the last byte of the request. The connection ends as it ended in the recording: it stays open behind a
complete answer, is closed or reset where the target did so and where the file ends, and waits for the client where the
client had closed it.
"""

from __future__ import annotations

import asyncio
from collections.abc import Iterator, Sequence
from itertools import chain, cycle

from aiohttp import web

from tailgauge.rows.answer_file import CLOSED, COMPLETE, LEFT, RESET, RawAnswer
from tailgauge.rows.schema import PREFLIGHT
from tailgauge.simulator.http import stream
from tailgauge.simulator.http.requests import ServerOptions, read_body
from tailgauge.simulator.protocols.request import MAX_BODY_BYTES, Refused
from tailgauge.transport.http1 import Head, WireError

_RESET_S = 0.02  # before a reset, which would drop what the client has not read yet
_NEVER_RECORDED = ("/models", "/tokenize")


def replay(answers: Sequence[RawAnswer], options: ServerOptions) -> web.Application:
    """Return an application that gives recorded answers in turn."""
    app = web.Application(client_max_size=MAX_BODY_BYTES)
    app.router.add_route("*", "/{path:.*}", Replay(answers, options).answer)
    return app


class Played(web.StreamResponse):
    """A response that has been sent already, past the server."""

    def __init__(self, *, stays_open: bool) -> None:
        super().__init__()
        self._stays_open = stays_open

    @property
    def keep_alive(self) -> bool:
        """Return whether another request may follow."""
        return self._stays_open

    async def prepare(self, request: web.BaseRequest) -> None:
        """Send no headers."""

    async def write_eof(self, data: bytes = b"") -> None:
        """Send no end."""


class Replay:
    """The recorded answers, whose turn goes on over all connections."""

    def __init__(self, answers: Sequence[RawAnswer], options: ServerOptions) -> None:
        self._options = options
        self._turns: dict[str, Iterator[RawAnswer]] = {}
        for method in ("GET", "POST"):
            all_answers = [answer for answer in answers if answer.method == method]
            run_answers = [
                answer for answer in all_answers if answer.facts.get("stage") != PREFLIGHT
            ]
            if all_answers:
                self._turns[method] = chain(all_answers, cycle(run_answers or all_answers))

    async def answer(self, request: web.Request) -> web.StreamResponse:
        """Answer a request; its body does not matter."""
        try:
            await read_body(request, self._options.body_timeout_s)
        except Refused as refused:
            return _error(refused.status, refused.message)
        method = request.method
        turns = self._turns.get(method)
        if method not in {"GET", "POST"}:
            return _error(405, f"{method}: a replay answers POST and GET")
        if turns is None or request.path.endswith(_NEVER_RECORDED):
            return _error(404, f"no recorded answer: {method} {request.path[:200]}")
        return await play(next(turns), request, self._options.keepalive_s)


async def play(answer: RawAnswer, request: web.Request, idle_s: float) -> Played:
    """Send a recorded answer at its recorded times, past the server, and end the connection as it ended.

    Times count from now, the end of the request. `idle_s`: how long to wait for a client that had closed the connection
    itself. Returns a response that sends nothing more. Raises ConnectionResetError where the client has left.
    """
    loop = asyncio.get_running_loop()
    began_s = loop.time()
    transport = request.transport
    if transport is None:
        raise ConnectionResetError("the client left")
    for read in answer.reads:
        await asyncio.sleep(began_s + read.at_ns / 1e9 - loop.time())
        transport.write(read.data)
    delay_s = began_s + answer.end_at_ns / 1e9 - loop.time()
    if answer.end == RESET:
        await asyncio.sleep(max(delay_s, _RESET_S))
        stream.reset(request)
    # Bytes that the recording left out cannot be sent: the connection is closed in their place.
    elif answer.left_out_bytes or answer.end == CLOSED:
        await asyncio.sleep(delay_s)
    elif answer.end == LEFT:
        await asyncio.sleep(idle_s)  # the handler is cancelled when the client leaves
    is_complete = answer.end == COMPLETE and not answer.left_out_bytes
    return Played(stays_open=is_complete and _stays_open(answer))


def _stays_open(answer: RawAnswer) -> bool:
    """Return whether the recorded head lets the connection go on."""
    try:
        started = Head().feed(answer.data)
    except WireError:
        return False
    return started is not None and started[0].framing is not None and started[0].framing.keep


def _error(status: int, text: str) -> web.Response:
    """Return an error of the replay itself."""
    return web.json_response({"error": {"type": "replay", "message": text}}, status=status)
