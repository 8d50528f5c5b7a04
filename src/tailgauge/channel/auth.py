"""The run token: who may speak on the channel between the master of a run and its workers.

Rule: the token itself is never sent. Each message carries a mark (HMAC-SHA256) of its kind, of the worker that sends or
gets it, and of its content; without the token no such mark can be made. Nothing is encrypted: see docs/security.md.
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
HOW = f'export {TOKEN}="$(openssl rand -hex 16)", the same on the machine of the master and of each worker'


class SealError(Exception):
    """A message whose mark is not that of this run's token."""


def given(needed_for: str = "") -> str:
    """The token in the environment, empty where there is none; UsageError where it is too short, or `needed_for` something."""
    token = os.environ.get(TOKEN, "")
    if not token and needed_for:
        raise UsageError(f"{TOKEN} is not set, and {needed_for} needs it: {HOW}")
    if token and len(token) < LEAST:
        raise UsageError(f"{TOKEN}: expected at least {LEAST} characters, got {len(token)}: {HOW}")
    return token


def fresh() -> str:
    """A token for workers that are children of the master."""
    return secrets.token_hex(16)


class Seal:
    """Seals and opens messages with one token."""

    def __init__(self, token: str) -> None:
        self._key = token.encode()

    def close(self, kind: str, worker: str, data: dict[str, Any]) -> dict[str, bytes]:
        """What goes onto the channel; `worker` is the one that sends it, or that it is for."""
        body: bytes = msgpack.packb(data)
        return {"body": body, "mark": self._mark(kind, worker, body)}

    def open(self, kind: str, worker: str, sealed: Any) -> dict[str, Any]:
        """The message in it. Raises SealError where the mark does not hold, before anything of it is read."""
        if not isinstance(sealed, dict):
            raise SealError("it has no mark")
        body, mark = sealed.get("body"), sealed.get("mark")
        if not isinstance(body, bytes) or not isinstance(mark, bytes):
            raise SealError("it has no mark")
        if not hmac.compare_digest(mark, self._mark(kind, worker, body)):
            raise SealError("its mark is not of this run's token")
        data: dict[str, Any] = msgpack.unpackb(body, strict_map_key=False)
        return data

    def _mark(self, kind: str, worker: str, body: bytes) -> bytes:
        return hmac.digest(self._key, b"\0".join((kind.encode(), worker.encode(), body)), "sha256")
