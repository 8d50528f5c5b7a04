"""What the ids of a stream's events tell of an answer that came over several connections.

    repeated    an id that was there before
    restarted   the first id again after a reconnection, or its number under another name; or content without ids
    skipped     after a reconnection numbers are missing, of ids that else grow by one

Ids are opaque but for a number at their end. The first problem is kept: an answer with a gap stays one.
"""

from __future__ import annotations

import re

from tailgauge.protocol_violations import EVENTS_REPEATED, EVENTS_SKIPPED, STREAM_RESTARTED

MAX_ID = 200  # characters; it goes into a header
HELD = 100  # bytes that an id takes
Split = tuple[str, int]
_NUMBER = re.compile(r"([ -~]*?)([0-9]{1,18})")


class EventIds:
    """The events of one answer; `last_id` is what `Last-Event-ID` asks for, `count` its events with content."""

    def __init__(self) -> None:
        self.last_id = ""
        self.count = self.connections = 0
        self.problem: tuple[str, str] | None = None
        self._known: set[int] = set()  # hashes
        self._first = ""
        self._by_one: bool | None = (
            None  # whether numbers grow by one within a connection, under one name
        )
        self._suspect: tuple[str, str] | None = None  # a problem, if they do
        self._is_new = True

    @property
    def held(self) -> int:
        """Bytes that the ids take."""
        return len(self._known) * HELD

    def connect(self) -> tuple[str, str] | None:
        """Another connection begins; returns the problem so far, as kind and text."""
        self.connections += 1
        self._is_new = True
        return self.problem

    def receive(self, event_id: str | None, *, has_content: bool) -> None:
        """An event has come, with an id or without."""
        is_new = self._is_new and self.connections > 1
        self._is_new = False
        if event_id is None:
            if is_new and has_content and self.count and not self.last_id:
                self._note(
                    STREAM_RESTARTED, "content after a reconnection, and the events have no ids"
                )
            self._is_new = is_new and not has_content
        elif hash(event_id) in self._known:
            restarts = is_new and event_id == self._first and len(self._known) > 1
            kind = STREAM_RESTARTED if restarts else EVENTS_REPEATED
            self._note(kind, f"id {event_id!r} again, after id {self.last_id!r}")
        else:
            self._first = self._first or event_id
            self._known.add(hash(event_id))
            if self.last_id:
                self._follow(_split(event_id), _split(self.last_id), event_id, is_new=is_new)
        self.last_id = event_id or self.last_id
        self.count += has_content

    def _follow(self, now: Split, before: Split, event_id: str, *, is_new: bool) -> None:
        (name, number) = now
        (name_before, number_before) = before
        if not is_new:
            grows = name == name_before and number == number_before + 1
            self._by_one = self._by_one is not False and grows
        elif name == name_before and number > number_before + 1:
            missing = number - number_before - 1
            self._suspect = (
                EVENTS_SKIPPED,
                f"{missing} numbers are missing before id {event_id!r}",
            )
        elif name != name_before and number == _split(self._first)[1]:
            self._suspect = (
                STREAM_RESTARTED,
                f"id {event_id!r} begins again, after id {self.last_id!r}",
            )
        if self._suspect is not None and self._by_one:
            self._note(*self._suspect)

    def _note(self, kind: str, text: str) -> None:
        self.problem = self.problem or (kind, text)


def _split(event_id: str) -> Split:
    """Name and number of an id; without a number -1, which nothing follows by one."""
    found = _NUMBER.fullmatch(event_id)
    return (event_id, -1) if found is None else (found[1], int(found[2]))


def id_of(value: bytes) -> str | None:
    """An id as a header can carry it; None of any other."""
    text = value.decode("latin-1")
    return text if len(text) <= MAX_ID and re.fullmatch(r"[!-~](?:[ -~]*[!-~])?", text) else None
