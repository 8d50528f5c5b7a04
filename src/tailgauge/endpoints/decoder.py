"""Folds a stream's events into what the attempt's rows need; a protocol supplies the meaning of one event.

Rule: no clock is read here. Times are those of the read that completed an event. If something else came later in the
same read, the event is only known to lie after the previous read, and its `low` says so.
"""

from __future__ import annotations

import json
from array import array
from collections.abc import Callable
from dataclasses import dataclass, field
from typing import Any

from tailgauge.endpoints.sse import EventSizeError, Splitter
from tailgauge.records import CHUNK_KINDS, TEXT

KIND_CODE = {kind: code for code, kind in enumerate(CHUNK_KINDS)}
_TEXT = KIND_CODE[TEXT]

OnEvent = Callable[["StreamDecoder", bytes, Any], None]


@dataclass(slots=True)
class Stamp:
    """When an event arrived: at most `at`; `low` is None if exactly then; `read_at` is our own clock."""

    at: int
    low: int | None
    read_at: int


@dataclass(slots=True)
class Chunks:
    """Content chunks as columns, in order of arrival; no object a chunk."""

    kind: bytearray = field(default_factory=bytearray)
    arrived: array[int] = field(default_factory=lambda: array("q"))
    low: array[int] = field(default_factory=lambda: array("q"))  # 0 = exact
    read_at: array[int] = field(default_factory=lambda: array("q"))
    read_index: array[int] = field(default_factory=lambda: array("i"))
    chars: array[int] = field(default_factory=lambda: array("i"))

    def __len__(self) -> int:
        return len(self.kind)


class StreamDecoder:
    """State of one stream: stamps of its landmarks, usage, errors, and the chunks not yet taken by the recorder."""

    def __init__(self, on_event: OnEvent) -> None:
        self._on_event = on_event
        self._splitter = Splitter()
        self._at = self._low = self._read_at = self._read_index = 0
        self.events = 0
        self.chunks = 0
        self.taken = 0
        self.fresh = Chunks()
        self.has_content = False
        self.first_event: Stamp | None = None
        self.first_content: Stamp | None = None
        self.first_text: Stamp | None = None
        self.last_content: Stamp | None = None
        self.stopped: Stamp | None = None
        self.finished = False  # the protocol's end mark, or its equivalent, was seen
        self.error: tuple[str, str] | None = None  # type and message of an error inside the stream
        self.message_id: str | None = None
        self.model: str | None = None
        self.stop_reason: str | None = None
        self.usage: dict[str, int | None] = {}

    def feed(
        self, payload: bytes, low: int, arrived: int, read_at: int, read_index: int, *, at_rest: bool
    ) -> None:
        """Payload of one read; see `Exchange`. Never raises for what the peer sent: it is recorded as an error."""
        try:
            events = self._splitter.feed(payload)
        except EventSizeError:
            self.error = self.error or ("malformed_stream", "an event without an end")
            return
        exact = len(events) - 1 if at_rest and self._splitter.ended_with_event else -1
        self._at, self._read_at, self._read_index = arrived, read_at, read_index
        for number, (name, data) in enumerate(events):
            self._low = 0 if number == exact else low
            self.events += 1
            try:
                self._on_event(self, name, data)
            except (ValueError, TypeError, AttributeError, LookupError, RecursionError) as error:
                self.error = self.error or (
                    "malformed_event",
                    f"{type(error).__name__} in event {data[:200]!r}",
                )

    def seen(self) -> None:
        """An event that counts as the first event of the stream (pings do not)."""
        if self.first_event is None:
            self.first_event = self.stamp()

    def stamp(self) -> Stamp:
        """Stamp of the event being handled."""
        return Stamp(self._at, self._low or None, self._read_at)

    def content(self, kind: int, text: str) -> None:
        """A content delta; empty ones are no chunks."""
        if not isinstance(text, str):
            raise TypeError(f"content is no text but {type(text).__name__}")
        if not text:
            return
        fresh = self.fresh
        fresh.kind.append(kind)
        fresh.arrived.append(self._at)
        fresh.low.append(self._low)
        fresh.read_at.append(self._read_at)
        fresh.read_index.append(self._read_index)
        fresh.chars.append(len(text))
        self.chunks += 1
        self.last_content = self.stamp()
        if self.first_content is None:
            self.first_content, self.has_content = self.last_content, True
        if kind == _TEXT and self.first_text is None:
            self.first_text = self.last_content

    def stop(self) -> None:
        """The protocol's end mark."""
        self.finished = True
        self.stopped = self.stamp()

    def count(self, **counters: Any) -> None:
        """Usage counters; the last non-null value of each stands. Values that cannot be are an error."""
        for name, value in counters.items():
            if value is None:
                continue
            if isinstance(value, bool) or not isinstance(value, int) or not 0 <= value < 1 << 40:
                self.error = self.error or ("malformed_usage", f"{name} = {value!r}")
            else:
                self.usage[name] = value

    def take(self) -> tuple[int, Chunks]:
        """Chunks since the last call, with the index of the first."""
        first, chunks = self.taken, self.fresh
        self.taken += len(chunks)
        self.fresh = Chunks()
        return first, chunks


def text_or_none(value: Any) -> str | None:
    """A short string of the peer's, or None where it is something else."""
    return _storable(value[:200]) if isinstance(value, str) else None


def error_of(tree: Any) -> tuple[str, str]:
    """Type and message of an error object, in the shapes that providers and engines use."""
    inner = tree.get("error", tree) if isinstance(tree, dict) else {}
    if isinstance(inner, str):
        return "error", _storable(inner[:2000])
    if not isinstance(inner, dict):
        inner = {}
    kind = inner.get("type") or inner.get("code") or "error"
    return _storable(str(kind)[:100]), _storable(str(inner.get("message") or json.dumps(tree))[:2000])


def _storable(text: str) -> str:
    """`text` without lone surrogates, which JSON can say and UTF-8 cannot: no row could be written with one."""
    return text.encode("utf-8", "replace").decode("utf-8")
