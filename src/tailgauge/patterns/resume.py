"""A stream that is cut, by its user or by the target, and resumed: the same call again, for what follows the last event.

The request is ok when the end mark has come and the ids of the events show no gap, no repetition and no restart. A cut before
any content is followed by the same call too. Not resumed: an error of the target, and an attempt past its deadline.
"""

from __future__ import annotations

from collections.abc import Generator
from dataclasses import replace
from random import Random
from typing import Annotated

from pydantic import Field

from tailgauge.call import RESUMPTION
from tailgauge.patterns.events import Chunks, Event, Request, Step, Steps, until
from tailgauge.patterns.legs import LegEnd, Legs, done, leg
from tailgauge.patterns.pattern import Demand, Pattern
from tailgauge.protocols.event_ids import EventIds
from tailgauge.rows.schema import CANCELLED, PIECES, PRIMARY, RESUME, TRUNCATED
from tailgauge.table import NonNegative, Positive, Share, Table


class ResumeSettings(Table):
    """Streams cut and resumed, with `pattern = "resume"`. Users cut only with a time."""

    share: Share = 1.0
    """share of streams that users cut"""
    after_chunks: Annotated[int, Field(ge=1, le=1_000_000)] | None = None
    """cut after 1 to this many content chunks"""
    after_s: Positive | None = None
    """or after 0 to this time since sent"""
    cuts: Annotated[int, Field(ge=1, le=100)] = 1
    """cuts per stream by its user"""
    wait_s: NonNegative = 0.0
    """time from cut to reconnection"""
    reconnections: Annotated[int, Field(ge=1, le=1000)] = 10
    """most per stream"""


class Resume(Pattern):
    """One answer over several connections."""

    name = "resume"
    summary = "a stream cut and resumed"
    settings_type = ResumeSettings
    settings: ResumeSettings
    uses = frozenset({"retry"})
    protocol_needs = frozenset({RESUMPTION})
    answer = PIECES
    adds_calls = "more resumptions"

    @property
    def watches_chunks(self) -> bool:
        """Whether users count chunks."""
        return self.settings.after_chunks is not None

    def steps(self, request: Request) -> Steps:
        """Read the stream, and read on after each cut, until the end mark or until the reconnections are used up.

        A cut is by the user (`CANCELLED`) or by the target (`TRUNCATED`). The request ends as its last
        connection does; it has a winner only if some content came.
        """
        table = self.settings
        number = 0  # of its only leg
        legs = Legs()
        ids = EventIds()  # the decoders of all connections share it
        call = replace(self.call(request.prompt, request.output_tokens), event_ids=ids)
        cause: str = PRIMARY
        attempt: int | None = None
        for connection in range(table.reconnections + 1):
            # When the user cuts this connection: after a number of chunks, or a time; 0 and None:
            # never.
            chunks, after_ns = self._cut(request, connection)
            call_of_connection = replace(call, watch_chunks=chunks)
            yield from legs.start(
                number,
                leg(call_of_connection, request, self.policies, cause=cause, of_attempt=attempt),
            )
            end = yield from _until_cut(legs, after_ns)
            attempt = legs.last_attempt[number]
            cause = RESUME
            is_cut = end.ended in {CANCELLED, TRUNCATED}
            # What the target has cut cannot be resumed without ids.
            is_lost = ids.problem is not None and end.ended != CANCELLED
            if not is_cut or is_lost:
                break
            if connection < table.reconnections:
                yield from until(end.at_ns + round(table.wait_s * 1e9))
        return done(replace(end, attempt=attempt if ids.contents else None))

    def _cut(self, request: Request, connection: int) -> tuple[int, int | None]:
        """Return after how many chunks and nanoseconds the user cuts a connection; 0 and None: never."""
        table = self.settings
        if request.draw >= table.share or connection >= table.cuts:
            return 0, None
        draws = Random(f"{request.seed}/{request.request_id}/resume/{connection}")
        chunks = 0
        after_ns = None
        if table.after_chunks is not None:
            chunks = draws.randint(1, table.after_chunks)
        if table.after_s is not None:
            after_ns = round(draws.random() * table.after_s * 1e9)
        return chunks, after_ns

    def demand(self, requests: int, input_tokens: int, output_tokens: int) -> Demand:
        """Count a call for each connection, which may read the prompt again."""
        table = self.settings
        cuts = 0
        if table.after_chunks or table.after_s:
            cuts = min(table.cuts, table.reconnections)
        calls = round(requests * (1 + cuts * table.share))
        return Demand(
            calls=calls,
            prompts=calls,
            input_tokens=input_tokens * calls // max(1, requests),
            output_tokens=output_tokens,
            is_bound=False,
        )


def _until_cut(legs: Legs, after_ns: int | None) -> Generator[Step, Event, LegEnd]:
    """Take the steps of leg 0 to its end, or to the cut of its user."""
    cut_at_ns = None
    if after_ns is not None:
        cut_at_ns = legs.sent_at_ns[0] + after_ns
    while True:
        event = yield from legs.receive(cut_at_ns)
        if 0 in legs.ends:
            return legs.ends[0]
        has_enough = isinstance(event, Chunks) and legs.is_open(event)
        if has_enough or (cut_at_ns is not None and event.at_ns >= cut_at_ns):
            yield from legs.close(0, CANCELLED)
            return LegEnd(CANCELLED, event.at_ns, attempt=None, last_attempt=legs.last_attempt[0])
