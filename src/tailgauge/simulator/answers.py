"""What every route does: let the caller in, read the body, answer an error in its provider's shape.

Rule: aiohttp at its thinnest; nothing here knows what a route is for. A body has a size and a time in which it must have
arrived. For its headers a connection has the server's keep-alive time, which aiohttp counts from the connection's start.
"""

from __future__ import annotations

import asyncio
import hmac

from aiohttp import web

from tailgauge.simulator import anthropic, openai
from tailgauge.simulator.ask import MAX_BODY_BYTES, Refused
from tailgauge.simulator.wire import Wire

_SLOW = "The request body did not finish arriving in time"


def admit(api_key: str | None, request: web.Request) -> None:
    """Refuse a caller without the key, if there is one; either provider's header will do."""
    if api_key is None:
        return
    bearer = request.headers.get("authorization", "").removeprefix("Bearer ")
    for given in (request.headers.get("x-api-key", ""), bearer):
        if hmac.compare_digest(given.encode("utf-8", "surrogateescape"), api_key.encode()):
            return
    raise Refused(401, "invalid API key")


async def body(request: web.Request, timeout_s: float) -> bytes:
    """The body, or `Refused`: too large, too slow, or not in the transfer coding that its headers promise."""
    try:
        async with asyncio.timeout(timeout_s):
            return await request.read()
    except TimeoutError:
        # 400, not 408, which clients send again: the provider's own SDK files this error under 400.
        raise Refused(400, _SLOW, error_code="request_body_timeout") from None
    except web.HTTPRequestEntityTooLarge:
        raise Refused(413, f"Request exceeds the maximum size of {MAX_BODY_BYTES} bytes") from None
    except web.RequestPayloadError as error:
        if request.transport is None or request.transport.is_closing():
            raise ConnectionResetError("the client left inside its body") from None
        raise Refused(400, f"The request body cannot be read: {error}") from None


def caller(request: web.Request) -> Wire:
    """The protocol of a caller on a path that both have: Anthropic's names the version of the API in each call."""
    return anthropic if "anthropic-version" in request.headers else openai


def refused(wire: Wire, refusal: Refused, number: int) -> web.Response:
    """The response to a call that cannot be answered."""
    headers = id_header(wire, number)
    content = wire.refusal(refusal, headers[wire.REQUEST_ID_HEADER])
    return web.Response(status=refusal.status, body=content, content_type="application/json", headers=headers)


def id_header(wire: Wire, number: int) -> dict[str, str]:
    """The server's own id of a call."""
    return {wire.REQUEST_ID_HEADER: f"req_{number:024d}"}
