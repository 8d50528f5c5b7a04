"""Changes of an answer's events between its protocol and its reader: a pipeline of steps.

A step takes events and gives others. The protocol's own file writes what the provider sends; a step changes it to what
another server would have sent. Answers without steps are never parsed.
"""

from __future__ import annotations

import json
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import Any

from tailgauge.simulator.protocols.request import Reply, to_json

Tree = dict[str, Any]
DONE = b"[DONE]"


@dataclass(slots=True)
class Event:
    """One server-sent event: its lines before the data, and the data as JSON, or as bytes that are none."""

    lines: tuple[bytes, ...]
    data: Any

    @property
    def tree(self) -> Tree:
        """The data as an object, an empty one where it is none."""
        return self.data if isinstance(self.data, dict) else {}


class Step:
    """One change of one answer; by default none."""

    def __init__(self, reply: Reply) -> None:
        self.reply = reply

    def events(self, events: list[Event], *, is_head: bool) -> list[Event]:  # noqa: ARG002 - for those that need it
        """Return the events of one write; `is_head`: of the first."""
        changed: list[Event] = []
        for event in events:
            changed += self.event(event)
        return changed

    def event(self, event: Event) -> list[Event]:
        """Return what becomes of one event."""
        if isinstance(event.data, dict):
            self.change(event.data)
        return [event]

    def change(self, tree: Tree) -> None:
        """Change the JSON of an event, or of a whole answer, in place."""

    def whole(self, tree: Tree) -> None:
        """Change a whole answer in place."""
        self.change(tree)


NewStep = Callable[[Reply], Step]


def each(change: Callable[[Tree], None]) -> NewStep:
    """Return a step that changes each event, and a whole answer, by a function."""

    class Each(Step):
        def change(self, tree: Tree) -> None:
            change(tree)

    return Each


class Rewriter:
    """The steps of one answer, in their order."""

    def __init__(self, steps: Sequence[Step]) -> None:
        self._steps = steps
        self._has_begun = False

    def rewrite(self, data: bytes) -> bytes:
        """Return what is sent in place of one write of whole events; it may be nothing."""
        events = _parse(data)
        for step in self._steps:
            events = step.events(events, is_head=not self._has_begun)
        self._has_begun = True
        return b"".join(map(_bytes, events))

    def whole(self, body: bytes) -> bytes:
        """Return what is sent in place of an answer in one piece."""
        tree = json.loads(body)
        for step in self._steps:
            step.whole(tree)
        return to_json(tree)


def _parse(data: bytes) -> list[Event]:
    events = []
    for text in data.split(b"\n\n")[:-1]:
        lines = text.split(b"\n")
        others = tuple(line for line in lines if not line.startswith(b"data: "))
        content = lines[-1].removeprefix(b"data: ")
        events.append(Event(others, content if content == DONE else json.loads(content)))
    return events


def _bytes(event: Event) -> bytes:
    data = event.data if isinstance(event.data, bytes) else to_json(event.data)
    return b"".join(line + b"\n" for line in event.lines) + b"data: " + data + b"\n\n"
