"""A run's plan as arrays, and one arrival of it as a worker gets it.

A slice holds plain values, because it is sent to a worker. Arrival i always has the same id, time and sizes, however many
workers there are and wherever slices are cut.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from dataclasses import dataclass, field
from typing import Any, NamedTuple

import numpy as np

from tailgauge.rows.schema import TURNS
from tailgauge.schedule.prompt_file import DealtLines


class Planned(NamedTuple):
    """One arrival as a worker receives it. Of a session, its first turn."""

    request_id: int
    at_ns: int  # since the start of the run
    traffic: str
    prompt_tokens: int
    output_tokens: int
    turns: int = 1  # of the session; 0: without end, a user of a closed loop
    source: dict[str, Any] | None = None  # from a prompt file or a trace: text, name, tags, blocks

    def of_turn(self, turn: int) -> Planned:
        """The same arrival as its given turn sends it: each turn has another line of a prompt file."""
        lines = [self.source, *self.source.get("later", ())] if self.source else []
        if not turn or len(lines) < 2:
            return self
        line = lines[turn % len(lines)]
        output_tokens = line.get("output_tokens", self.output_tokens)
        return self._replace(prompt_tokens=line["prompt_tokens"], output_tokens=output_tokens, source=line)


@dataclass(frozen=True, slots=True)
class Schedule:
    """Arrivals in order; arrays of one length. Times in ns since the start of the run."""

    at_ns: Any
    traffic: Any  # index into names
    prompt_tokens: Any
    output_tokens: Any
    names: tuple[str, ...]
    turns: Any  # of the session that an arrival begins; 0: a user of a closed loop
    lines: Mapping[int, DealtLines] = field(default_factory=dict)  # of prompt files, by index into names
    blocks: Any = None  # by arrival: shared blocks of a trace
    trace: dict[str, Any] | None = None  # what became of a trace's rows, for run.json
    notes: tuple[str, ...] = ()

    def __len__(self) -> int:
        return len(self.at_ns)

    @property
    def requests(self) -> int:
        """Requests that are planned, every turn of every session; a closed loop plans none, only its users."""
        return int(np.sum(self.turns, dtype=np.int64))

    def slice(self, since_ns: int, until_ns: int) -> Iterator[Planned]:
        """Arrivals in [since, until)."""
        first, last = np.searchsorted(self.at_ns, [since_ns, until_ns])
        for i in range(int(first), int(last)):
            yield Planned(
                i * TURNS,
                int(self.at_ns[i]),
                self.names[self.traffic[i]],
                int(self.prompt_tokens[i]),
                int(self.output_tokens[i]),
                int(self.turns[i]),
                self._source(i),
            )

    def _source(self, i: int) -> dict[str, Any] | None:
        lines = self.lines.get(int(self.traffic[i]))
        if lines is not None:
            return lines.source(i, int(self.turns[i]))
        return None if self.blocks is None else {"blocks": list(self.blocks[i])}
