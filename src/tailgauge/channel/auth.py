"""The run token, which authenticates messages between the master of a run and its workers.

The token is never sent. Each message carries a mark (HMAC-SHA256) over its kind, the worker that sends or receives it, and
its content. `sockets` encrypts connections with it.
"""

from __future__ import annotations

import hmac
import os
import secrets
from typing import Any

import msgpack

from tailgauge.errors import UsageError

TOKEN = "TAILGAUGE_TOKEN"  # noqa: S105 - the name of the variable
LEAST = 16  # characters
HOW = (
    f'export {TOKEN}="$(openssl rand -hex 16)", with the same value for the master and each worker'
)


class SealError(Exception):
    """A message without a valid mark of this run's token."""


def configured_token(needed_for: str = "") -> str:
    """Return the token of the environment, or ""; UsageError if it is too short, or missing and `needed_for` something."""
    token = os.environ.get(TOKEN, "").strip()  # a secret file may end with a newline
    if not token and needed_for:
        raise UsageError(f"{TOKEN} is not set, and {needed_for} needs it: {HOW}")
    if token and len(token) < LEAST:
        raise UsageError(f"{TOKEN}: expected at least {LEAST} characters, got {len(token)}: {HOW}")
    return token


def new_token() -> str:
    """Return a random token for local workers."""
    return secrets.token_hex(16)


class Seal:
    """Seals and opens messages with one token."""

    def __init__(self, token: str) -> None:
        self._key = token.encode()

    def close(self, kind: str, worker: str, data: dict[str, Any]) -> dict[str, bytes]:
        """Return the sealed message; `worker` is its sender or receiver."""
        body: bytes = msgpack.packb(data)
        return {"body": body, "mark": self._mark(kind, worker, body)}

    def open(self, kind: str, worker: str, sealed: Any) -> dict[str, Any]:
        """Return the message inside. Raises SealError for an invalid mark before reading any content."""
        if not isinstance(sealed, dict):
            raise SealError("no mark")
        body = sealed.get("body")
        mark = sealed.get("mark")
        if not isinstance(body, bytes) or not isinstance(mark, bytes):
            raise SealError("no mark")
        if not hmac.compare_digest(mark, self._mark(kind, worker, body)):
            raise SealError("the mark is not of this run's token")
        try:
            data: dict[str, Any] = msgpack.unpackb(body, strict_map_key=False)
        except ValueError as error:
            raise SealError("not decodable") from error
        return data

    def _mark(self, kind: str, worker: str, body: bytes) -> bytes:
        content = b"\0".join((kind.encode(), worker.encode(), body))
        return hmac.digest(self._key, content, "sha256")
