"""Progress of a run for the live display, and the messages about a target that failed the preflight.

It is summed in workers.py and shown by the folder live; what to do about a failure is in preflight_advice.py.
"""

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
    # The 4xx with which every call ended last, and how many.
    rejected: Mapping[str, Any] | None = None
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
        change = f"{table} refused the usual field with the maximum of output tokens: {field_name} is sent instead"
        yield f'{change}. Set {table}.max_tokens_field = "{field_name}" to skip this attempt'
    engine = adaptation.automatic_cache
    if engine is not None:
        change = f"{table} lists its models as those of {plain(engine)}, which caches without marks: none are sent"
        yield f"{change}. Set breakpoints = [] to skip this check"


def not_whole(call: Mapping[str, Any]) -> str:
    """Return what to say of a preflight call that was to be answered whole and was only answered as a stream."""
    is_only_streamed = call.get("wanted_whole") and call["words"] and call["streamed"]
    if not is_only_streamed:
        return ""
    return (
        "preflight: a call with stream = false got no complete answer, the same call with stream = true "
        "did. If requests fail, set stream = true"
    )


def unknown_engine(table: str, url: str) -> str:
    """Return what to do where exact answers are asked of a target that does not name its engine."""
    expected = f"expected one of {', '.join(EXACT)} for output = 'exact'"
    cause = f"the list of models at {url} names no engine, or cannot be read"
    return f"{table}.engine: {expected}: {cause}. Set it, or leave `output` out"


def preflight_failure(
    url: str,
    protocol: str,
    call: Mapping[str, Any],
    target: TargetSettings | None = None,
    *,
    ready_s: float = 0.0,
) -> str:
    """Return which target failed, how, and what to do; `ready_s`: how long the run has waited for it."""
    status = call["status"]
    kind = plain(call["error_type"] or "")
    if not kind and not status:
        kind = call["ended"]
    message = _message(call["message"] or "")
    text = _shortened(plain(re.sub(r"<[^>]*>", " ", message)).rstrip("."))
    advice = preflight_advice.advice(call, kind, message, protocol, target, ready_s=ready_s)
    problem = _problem(call, kind, text)
    # A location is in the sentence already; a page or JSON says nothing in its first characters.
    if text and kind != REDIRECT and advice not in preflight_advice.OTHER_BODIES:
        problem += f": {text}"
    return f"target {url} {problem}. {_with_models(advice, call, message)}".strip()


def _problem(call: Mapping[str, Any], kind: str, text: str) -> str:
    """Return what the target did."""
    status = call["status"]
    if status == 200 and kind == violations.NOT_AN_EVENT_STREAM:
        return "answered HTTP 200, but not with an event stream"
    if status == 200:
        answer = "stream" if call.get("streamed", True) else "answer"
        detail = f" ({kind})" if kind in _NAMED_IN_200 else ""
        return f"answered HTTP 200, but the {answer} ended as {call['ended']}{detail}"
    if kind == REDIRECT:
        return f"answered HTTP {status} with location {text}"
    if status:
        return f"answered HTTP {status}"
    return f"could not be used ({kind})"


def _with_models(advice: str, call: Mapping[str, Any], message: str) -> str:
    """Return the advice with the models that the target lists, if the call's is not among them."""
    models = [plain(name) for name in call.get("models", ())]
    status = call["status"]
    is_about_a_field = status in {400, 422} and advice
    if not models or call["model"] in models or is_about_a_field:
        return advice
    names = _shortened(", ".join(models))
    if status == 404 and "model" not in message.lower():
        return f"{advice} Models that it lists (--model NAME): {names}"
    text = f"It has no model {call['model']!r}: choose another (--model NAME). It lists {names}"
    similar = near_names(call["model"], models)
    if similar:
        text += f". Did you mean {similar[0]}?"
    return text


def _shortened(text: str) -> str:
    if len(text) <= MAX_SHOWN:
        return text
    return f"{text[:MAX_SHOWN]}..."


def _message(body: str) -> str:
    """Return the message in a body that is an error as JSON; else the body, as for a page of a proxy."""
    try:
        tree = json.loads(body)
    except ValueError:
        return body
    if not isinstance(tree, dict):
        return body
    return error_of(tree)[1]
