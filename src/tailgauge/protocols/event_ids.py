"""Problems that the ids of a stream's events show, of an answer that came over several connections.

    repeated    an id that was there before
    restarted   the first id again after a reconnection, or its number under another name; or content without ids
    skipped     numbers are missing after a reconnection, while they grow by one within a connection

Ids are opaque but for a number at their end. The first problem is kept: an answer with a gap stays incomplete.
"""

from __future__ import annotations

import re

from tailgauge.protocol_violations import EVENTS_REPEATED, EVENTS_SKIPPED, STREAM_RESTARTED

MAX_ID = 200  # characters; it goes into a header
HELD = 100  # bytes that an id takes
SplitId = tuple[str, int]  # name and number
_NUMBER = re.compile(r"([ -~]*?)([0-9]{1,18})")


class EventIds:
    """The events of one answer."""

    def __init__(self) -> None:
        self.last_id = ""  # for the header `Last-Event-ID`
        self.contents = 0  # events with content
        self.connections = 0
        self.problem: tuple[str, str] | None = None  # kind and text
        self._hashes: set[int] = set()  # of all ids
        self._first_id = ""
        # Whether numbers grow by one within a connection, under one name. None: not known yet.
        self._grows_by_one: bool | None = None
        self._suspicion: tuple[str, str] | None = None  # a problem, if they grow by one
        self._is_new = True  # the connection has had no event

    @property
    def held(self) -> int:
        """Return how many bytes the ids take."""
        return len(self._hashes) * HELD

    def connect(self) -> tuple[str, str] | None:
        """Begin another connection; return the problem so far, as kind and text."""
        self.connections += 1
        self._is_new = True
        return self.problem

    def receive(self, event_id: str | None, *, has_content: bool) -> None:
        """Note an event, and the problem that its id shows; None for an event without an id. The first problem is kept.

        `has_content`: the event brought content. Events without an id or content leave open how a
        connection begins.
        """
        is_after_reconnection = self._is_new and self.connections > 1
        self._is_new = False
        if event_id is None:
            # Without ids nobody knows whether the content was there before.
            if is_after_reconnection and has_content and self.contents and not self.last_id:
                self._note(
                    STREAM_RESTARTED, "content after a reconnection, and the events have no ids"
                )
            self._is_new = is_after_reconnection and not has_content
        elif hash(event_id) in self._hashes:
            is_first_id = event_id == self._first_id and len(self._hashes) > 1
            kind = STREAM_RESTARTED if is_after_reconnection and is_first_id else EVENTS_REPEATED
            self._note(kind, f"id {event_id!r} again, after id {self.last_id!r}")
        else:
            self._first_id = self._first_id or event_id
            self._hashes.add(hash(event_id))
            if self.last_id:
                # Notes numbers that are missing, or that begin again.
                self._compare(event_id, is_after_reconnection=is_after_reconnection)
        self.last_id = event_id or self.last_id
        self.contents += has_content

    def _compare(self, event_id: str, *, is_after_reconnection: bool) -> None:
        """Compare a new id with the last one, as numbers."""
        name, number = _split(event_id)
        last_name, last_number = _split(self.last_id)
        if not is_after_reconnection:
            is_next = name == last_name and number == last_number + 1
            self._grows_by_one = self._grows_by_one is not False and is_next
        elif name == last_name and number > last_number + 1:
            missing = number - last_number - 1
            text = f"{missing} numbers are missing before id {event_id!r}"
            self._suspicion = (EVENTS_SKIPPED, text)
        elif name != last_name and number == _split(self._first_id)[1]:
            text = f"id {event_id!r} begins again, after id {self.last_id!r}"
            self._suspicion = (STREAM_RESTARTED, text)
        # A gap is a problem only of ids that grow by one, which later events may show.
        if self._suspicion is not None and self._grows_by_one:
            self._note(*self._suspicion)

    def _note(self, kind: str, text: str) -> None:
        self.problem = self.problem or (kind, text)


def _split(event_id: str) -> SplitId:
    """Return name and number of an id; without a number -1, which no id follows."""
    match = _NUMBER.fullmatch(event_id)
    if match is None:
        return event_id, -1
    return match[1], int(match[2])


def id_of(value: bytes) -> str | None:
    """Return an id if a header can carry it, else None."""
    text = value.decode("latin-1")
    if len(text) > MAX_ID or not re.fullmatch(r"[!-~](?:[ -~]*[!-~])?", text):
        return None
    return text
