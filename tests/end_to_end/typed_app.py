"""The streaming endpoints of applications that type their events in the JSON, as their frameworks write the bytes.

`/api/chat/stream` is the FastAPI endpoint of a public tutorial: `json.dumps` behind `data: `, an error event with the status of
the API behind it, then `[DONE]`. `/ai-sdk` is a UI message stream, `/langserve/stream` a LangServe route. What an answer is,
follows from the number of the arrival, so that a test knows it. It takes nothing from the code under test.
"""

from __future__ import annotations

import asyncio
import json
import threading
from collections.abc import AsyncIterator, Callable, Iterator
from contextlib import contextmanager
from typing import Any

from aiohttp import web

TEXT_PIECES = tuple(f"word{number} " for number in range(10))
BROKEN_AFTER = 5  # words
GAP_S = 0.01
ENDS = ("ok", "broken", "busy", "cut")  # of the arrivals 0, 1, 2, 3; then again
Frames = AsyncIterator[bytes]


def typed(kind: str, **values: Any) -> bytes:
    """An event as the tutorial writes it."""
    return f"data: {json.dumps({'type': kind, **values})}\n\n".encode()


async def chat_stream(end: str) -> Frames:
    """Yield the events of the tutorial's generator, with a status event before the words."""
    yield typed("start")
    yield typed("status", name="retrieval")
    await asyncio.sleep(GAP_S)
    yield typed("status", name="generation")
    text_pieces = {"busy": 0, "broken": BROKEN_AFTER, "cut": BROKEN_AFTER}.get(
        end, len(TEXT_PIECES)
    )
    for word in TEXT_PIECES[:text_pieces]:
        await asyncio.sleep(GAP_S)
        yield typed("text", text=word)
    if end == "cut":
        yield typed("cancelled")
        return
    if end == "ok":
        yield typed("done")
    else:
        text = "The AI service encountered an error. Please try again."
        yield typed("error", code={"broken": 529, "busy": 429}[end], message=text)
    yield b"data: [DONE]\n\n"


async def ui_messages(end: str) -> Frames:
    """Yield the parts of a UI message stream."""
    parts = [{"type": "start", "messageId": "m"}, {"type": "start-step"}]
    parts += [{"type": "tool-input-start", "toolCallId": "c", "toolName": "search"}]
    parts += [{"type": "source-url", "sourceId": "s", "url": "https://example.org"}]
    parts += [{"type": "text-start", "id": "t"}]
    text_pieces = {"busy": 0, "broken": BROKEN_AFTER, "cut": BROKEN_AFTER}.get(
        end, len(TEXT_PIECES)
    )
    parts += [
        {"type": "text-delta", "id": "t", "delta": word} for word in TEXT_PIECES[:text_pieces]
    ]
    if end in {"broken", "busy"}:
        parts += [{"type": "error", "errorText": "An error occurred."}]
    if end == "ok":
        parts += [{"type": "text-end", "id": "t"}, {"type": "finish-step"}, {"type": "finish"}]
    for part in parts:
        await asyncio.sleep(GAP_S)
        yield b"data: %b\n\n" % json.dumps(part, separators=(",", ":")).encode()
    if end != "cut":
        yield b"data: [DONE]\n\n"


async def langserve(end: str) -> Frames:
    """Yield what LangServe's route sends: line ends of two characters, and an end without data."""
    yield b'event: metadata\r\ndata: {"run_id": "7"}\r\n\r\n'
    text_pieces = {"busy": 0, "broken": BROKEN_AFTER, "cut": BROKEN_AFTER}.get(
        end, len(TEXT_PIECES)
    )
    for word in TEXT_PIECES[:text_pieces]:
        await asyncio.sleep(GAP_S)
        yield f"event: data\r\ndata: {json.dumps(word)}\r\n\r\n".encode()
    if end == "ok":
        yield b"event: end\r\n\r\n"
    elif end != "cut":
        error = json.dumps({"status_code": 500, "message": "Internal Server Error"})
        yield f"event: error\r\ndata: {error}\r\n\r\n".encode()


async def detail(end: str) -> Frames:
    """Yield an answer of an application whose framework reports a failure by its detail alone."""
    if end in {"ok", "cut"}:
        yield b'data: {"token": "well"}\n\n'
    if end == "ok":
        yield b"data: [DONE]\n\n"
    elif end != "cut":
        yield b'data: {"detail": "Not authenticated"}\n\n'


ROUTES: dict[str, Callable[[str], Frames]] = {
    "/api/chat/stream": chat_stream,
    "/ai-sdk": ui_messages,
    "/langserve/stream": langserve,
    "/detail": detail,
}


def end_of(call_id: str) -> str:
    """What the answer to a call is to be; calls before the run have negative numbers, and are answered."""
    request = int(call_id.split("/")[-3])
    return "ok" if request < 0 else ENDS[request // 65536 % len(ENDS)]


async def _answer(request: web.Request) -> web.StreamResponse:
    await request.json()
    frames = ROUTES[request.path](end_of(request.headers["x-client-request-id"]))
    headers = {
        "content-type": "text/event-stream; charset=utf-8",
        "Cache-Control": "no-cache",
        "X-Accel-Buffering": "no",
    }
    response = web.StreamResponse(headers=headers)
    await response.prepare(request)
    async for frame in frames:
        await response.write(frame)
    return response


@contextmanager
def serving() -> Iterator[str]:
    """Serve the applications on a free port of loopback; the address."""
    loop = asyncio.new_event_loop()
    app = web.Application()
    for path in ROUTES:
        app.router.add_post(path, _answer)
    runner = web.AppRunner(app)
    loop.run_until_complete(runner.setup())
    site = web.TCPSite(runner, "127.0.0.1", 0)
    loop.run_until_complete(site.start())
    thread = threading.Thread(target=loop.run_forever, daemon=True)
    thread.start()
    try:
        host, port = runner.addresses[0][:2]
        yield f"http://{host}:{port}"
    finally:
        asyncio.run_coroutine_threadsafe(runner.cleanup(), loop).result(10)
        loop.call_soon_threadsafe(loop.stop)
        thread.join(10)
        loop.close()
