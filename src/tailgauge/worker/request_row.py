"""The row of a request, begun with its plan and completed at its end."""

from __future__ import annotations

import json
from dataclasses import dataclass
from typing import TYPE_CHECKING

from tailgauge.rows.schema import PREFLIGHT, RequestRow

if TYPE_CHECKING:
    from tailgauge.scenario.model import Scenario
    from tailgauge.schedule.sessions import Turn


@dataclass(frozen=True, slots=True)
class RequestRef:
    """The request that an attempt serves."""

    request_id: int
    stage: str
    traffic: str
    scheduled_at_ns: int


def request_row(
    scenario: Scenario, turn: Turn, stage: str, scheduled: int, dispatched: int | None, ended: str
) -> RequestRow:
    """Times on the worker's clock, in ns; `dispatched` is None for a drop."""
    asked = turn.asked
    traffic, source = scenario.traffic[asked.traffic], asked.source or {}
    tags = {**traffic.tags, **source.get("tags", {})}
    in_session = turn.is_closed or traffic.session.turns_mean > 1
    return RequestRow(
        request_id=turn.request_id,
        stage=stage,
        traffic=asked.traffic,
        pattern="streaming" if stage == PREFLIGHT else traffic.pattern,
        session_id=turn.planned.request_id if in_session and stage != PREFLIGHT else None,
        scheduled_at_ns=scheduled,
        dispatched_at_ns=dispatched,
        ended_at_ns=None,
        ended=ended,
        legs=0,
        attempts=0,
        asked_prompt_tokens=asked.prompt_tokens,
        asked_output_tokens=asked.output_tokens,
        name=source.get("name"),
        tags=json.dumps(tags) if tags else None,
    )
