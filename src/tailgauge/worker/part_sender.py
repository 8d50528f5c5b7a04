"""Transfer of a worker's finished parts to the master, if they share no folder.

No sockets, no greenlets, no work per request. Parts are sent in the order written, one at a time, in pieces. The master
acknowledges how much of a part it has; the rest is sent again. Nothing is deleted before the master has the whole run.
"""

from __future__ import annotations

import hashlib
from collections import deque
from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from tailgauge.clock import monotonic_ns
from tailgauge.rows.parquet import PIECE

WINDOW = 4  # unacknowledged messages, at most
SILENCE_NS = 5_000_000_000  # without progress for so long, resume from the last acknowledged byte
_PROBE = 1024  # bytes sent then: a master that was away must not find a backlog

Send = Callable[[dict[str, Any]], None]
Read = Callable[[Path, int, int], bytes]


@dataclass(slots=True)
class _Part:
    table: str
    path: Path
    size: int
    sha256: str
    sent: int = 0  # bytes passed to `send`
    acknowledged: int = 0  # bytes that the master has
    reported: int = 0  # the master's last answer: less if it had to drop the part


class PartSender:
    """Parts of one worker that the master does not have yet.

    `send` takes one message, to which the caller adds run and worker; lost messages are sent again.
    `refused`: the first reason why the master (or the disk) refused a part.
    """

    def __init__(
        self, send: Send, read: Read | None = None, now_ns: Callable[[], int] = monotonic_ns
    ) -> None:
        self._send = send
        self._read = read or read_piece
        self._now_ns = now_ns
        # The first is in transfer. Any thread appends, the hub removes.
        self._parts: deque[_Part] = deque()
        self._refused_parts: list[_Part] = []
        self._moved_at_ns = 0  # the last progress, or the first piece sent after it
        self._probing = False
        self._pumping = False
        self.refused: str | None = None

    def add(self, table: str, path: Path) -> None:
        """Add a finished part, from any thread; the checksum is computed on that thread."""
        try:
            part = _Part(table, path, *_size_and_digest(path))
        except OSError as error:
            self._refuse(_Part(table, path, 0, ""), f"it cannot be read: {error.strerror}")
            return
        if part.size:
            self._parts.append(part)
        else:
            self._refuse(part, "it is empty")

    @property
    def waiting(self) -> int:
        """Return the bytes that the master does not have yet and has not refused."""
        return sum(part.size - part.acknowledged for part in tuple(self._parts))

    @property
    def unshipped(self) -> list[str]:
        """Return the parts that the master does not have, as `<table>/<name>`: refused ones first."""
        parts = (*self._refused_parts, *tuple(self._parts))
        return [f"{part.table}/{part.path.name}" for part in parts]

    def pump(self) -> None:
        """Send what the window allows; call at least once a second, on the hub. Errors of `send` are raised."""
        if self._pumping:  # `send` switched to a greenlet that calls this
            return
        self._pumping = True
        try:
            message = self._next_message()
            while message is not None:
                self._send(message)
                message = self._next_message()
        finally:
            self._pumping = False

    def got(self, data: dict[str, Any]) -> None:
        """Take the master's answer to a piece, and send more. Answers about other parts are late and ignored."""
        part = self._parts[0] if self._parts else None
        if part is None or (data["table"], data["name"]) != (part.table, part.path.name):
            return
        if data["state"] == "done":
            self._parts.popleft()
            self._probing = False
        elif data["state"] == "refused":
            self._refuse(self._parts.popleft(), str(data["why"]))
        else:
            self._acknowledge(part, min(max(data["upto"], 0), part.size))
        self.pump()

    def _acknowledge(self, part: _Part, size: int) -> None:
        """Take notice that the master has `size` bytes of a part."""
        part.reported = size
        if size > part.acknowledged:
            part.acknowledged = size
            part.sent = max(part.sent, size)
            self._moved_at_ns = self._now_ns()
            self._probing = False

    def _next_message(self) -> dict[str, Any] | None:
        """Return the next message that may go now, a piece of the first part, and count its bytes as sent.

        None: there is no part, all of the first part is sent, or the window is full of unacknowledged
        pieces. After a silence small pieces go one by one (`_probing`), until the master answers.
        """
        while self._parts:
            part = self._parts[0]
            self._go_back_after_silence(part)
            begin = part.sent
            window = 0 if self._probing else (WINDOW - 1) * PIECE
            if begin - part.acknowledged > window or begin >= part.size:
                return None
            data = self._piece(part, begin, _PROBE if self._probing else PIECE)
            if data is None:
                # The file has changed: the part was refused, and the next one is the first.
                continue
            # Nothing was under way: a silence is counted from here.
            if begin == part.acknowledged:
                self._moved_at_ns = self._now_ns()
            part.sent += len(data)
            return {
                "table": part.table,
                "name": part.path.name,
                "size": part.size,
                "sha256": part.sha256,
                "offset": begin,
                "bytes": data,
            }
        return None

    def _go_back_after_silence(self, part: _Part) -> None:
        """Forget unacknowledged bytes, and those that the master had and dropped."""
        if part.sent > 0 and self._now_ns() - self._moved_at_ns >= SILENCE_NS:
            begin = part.reported if part.reported < part.size else 0
            part.acknowledged = begin
            part.sent = begin
            self._probing = True

    def _piece(self, part: _Part, begin: int, limit: int) -> bytes | None:
        """Return at most `limit` bytes of the part from `begin` on; None if the file has changed, which refuses the part."""
        size = min(limit, part.size - begin)
        reason = "it is shorter than when it was written"
        try:
            data = self._read(part.path, begin, size)
        except OSError as error:
            data = b""
            reason = f"it cannot be read: {error.strerror}"
        if len(data) == size:
            return data
        self._parts.popleft()
        self._refuse(part, reason)
        return None

    def _refuse(self, part: _Part, reason: str) -> None:
        """Send no more of a part."""
        self._probing = False
        self._refused_parts.append(part)
        if self.refused is None:
            self.refused = f"{part.table}/{part.path.name}: {reason}"


def read_piece(path: Path, offset: int, size: int) -> bytes:
    """Return bytes of a file; fewer where it ends."""
    with path.open("rb") as file:
        file.seek(offset)
        return file.read(size)


def _size_and_digest(path: Path) -> tuple[int, str]:
    with path.open("rb") as file:
        digest = hashlib.file_digest(file, "sha256")
        return file.tell(), digest.hexdigest()
