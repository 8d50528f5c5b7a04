"""Progress of a run for the live display, and the message for a target that failed the preflight."""

from __future__ import annotations

import json
import re
from collections.abc import Iterator, Mapping
from dataclasses import dataclass, field
from typing import Any

from tailgauge import ends
from tailgauge import protocol_violations as violations
from tailgauge.channel.traffic_counters import Key, TrafficCounters
from tailgauge.master import preflight_advice
from tailgauge.master.objectives import LiveObjective
from tailgauge.protocols.additions import EXACT
from tailgauge.protocols.errors import error_of
from tailgauge.protocols.protocol import Adaptation, TargetSettings
from tailgauge.rows.schema import NOT_FAILED, RATE_LIMITED, REDIRECT
from tailgauge.sanitize import plain
from tailgauge.suggestions import near_names
from tailgauge.thresholds import VALID

MAX_SHOWN = 200  # characters of a target's text in a message
_NAMED_IN_200 = {*violations.VIOLATIONS, ends.NO_FINISH_REASON, ends.UNKNOWN_FINISH_REASON} - {
    violations.NOT_AN_EVENT_STREAM
}


@dataclass(slots=True)
class Progress:
    """The run up to now, over all workers."""

    passed_s: float
    duration_s: float
    sent: int = 0
    in_flight: int = 0
    dropped: int = 0
    waiting: int = 0  # for a slot
    slot_wait_s: float = 0.0  # of the one that waits longest
    slots: int | None = None  # of all workers, where the scenario limits them beside an open rate
    planned: int | None = None  # requests, where their number ends the run
    chunks: int = 0
    traffic: dict[Key, TrafficCounters] = field(default_factory=dict)
    all: TrafficCounters = field(default_factory=TrafficCounters)  # their sum
    rejected: Mapping[str, Any] | None = (
        None  # the 4xx with which every call ended last, and how many
    )
    objectives: tuple[LiveObjective, ...] = ()
    verdict: str = VALID
    reason: str = ""
    stalled_s: float = 0.0  # for how long a worker has been silent, or was late in its last second

    @property
    def share(self) -> float:
        """How much of the run is over."""
        if self.planned is None:
            return min(1.0, max(0.0, self.passed_s / self.duration_s))
        return (self.sent - self.in_flight) / self.planned

    @property
    def failed(self) -> int:
        """Requests that neither succeeded nor were cancelled: empty answers and a last 429 are failures, as in the report."""
        return sum(n for name, n in self.all.requests.items() if name not in NOT_FAILED)

    @property
    def limited(self) -> int:
        """Attempts that got a 429, whatever became of their requests: the number that the report states."""
        return self.all.attempts.get(RATE_LIMITED, 0)


def adaptation_notes(table: str, adaptation: Adaptation) -> Iterator[str]:
    """Yield what is sent otherwise than by default, and how to say so in the scenario."""
    field_name = adaptation.max_tokens_field
    if field_name is not None:
        why = f"{table} refused the usual field with the maximum of output tokens: {field_name} is sent instead"
        yield f'{why}. Set {table}.max_tokens_field = "{field_name}" to skip this try'
    engine = adaptation.automatic_cache
    if engine is not None:
        why = f"{table} lists its models as those of {plain(engine)}, which caches without marks: none are sent"
        yield f"{why}. Set breakpoints = [] to skip this question"


def not_whole(call: Mapping[str, Any]) -> str:
    """Return what to say of a preflight call that was to be answered whole and was only answered as a stream."""
    is_only_streamed = call.get("wanted_whole") and call["words"] and call["streamed"]
    if not is_only_streamed:
        return ""
    return (
        "preflight: with stream = false the answer was not a whole one, with stream = true "
        "it was one. If requests fail, set stream = true"
    )


def unknown_engine(table: str, url: str) -> str:
    """What to do where exact answers are asked of a target that does not name its engine."""
    expected = f"expected one of {', '.join(EXACT)} for output = 'exact'"
    why = f"the list of models at {url} names no engine, or cannot be read"
    return f"{table}.engine: {expected}: {why}. Set it, or leave `output` out"


def preflight_failure(
    url: str,
    protocol: str,
    seen: Mapping[str, Any],
    target: TargetSettings | None = None,
    *,
    ready_s: float = 0.0,
) -> str:
    """Which target, what it did, what to do; `ready_s`: how long the run has waited for it."""
    status = seen["status"]
    kind = plain(seen["error_type"] or "") or (None if status else seen["ended"])
    message = _message(seen["message"] or "")
    text = _shortened(plain(re.sub(r"<[^>]*>", " ", message)).rstrip("."))
    did = f"answered HTTP {status}" if status else f"could not be used ({kind})"
    if kind == REDIRECT:
        did = f"answered HTTP {status} with location {text}"
        text = ""
    if status == 200:
        answer = "stream" if seen.get("streamed", True) else "answer"
        did = f"answered HTTP 200, but the {answer} ended as {seen['ended']}"
        if kind == violations.NOT_AN_EVENT_STREAM:
            did = "answered HTTP 200, but not with an event stream"
        if kind in _NAMED_IN_200:
            did += f" ({kind})"
    todo = preflight_advice.advice(seen, kind or "", message, protocol, target, ready_s=ready_s)
    if todo in preflight_advice.OTHER_BODIES:
        text = ""  # a page or JSON says nothing in its first characters
    models = [plain(name) for name in seen.get("models", ())]
    is_about_a_field = status in {400, 422} and todo
    if models and seen["model"] not in models and not is_about_a_field:
        listed = _shortened(", ".join(models))
        if status == 404 and "model" not in message.lower():
            todo = f"{todo} Models that it lists (--model NAME): {listed}"
        else:
            near = near_names(seen["model"], models)
            no_model = f"It has no model {seen['model']!r}: choose another (--model NAME)"
            todo = f"{no_model}. It lists {listed}{f'. Did you mean {near[0]}?' if near else ''}"
    return f"target {url} {did}{': ' + text if text else ''}. {todo}".strip()


def _shortened(text: str) -> str:
    return text if len(text) <= MAX_SHOWN else f"{text[:MAX_SHOWN]}..."


def _message(body: str) -> str:
    """The message in a body that is an error as JSON; else the body, as for a page of a proxy."""
    try:
        tree = json.loads(body)
    except ValueError:
        return body
    return error_of(tree)[1] if isinstance(tree, dict) else body
