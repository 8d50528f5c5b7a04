"""One call's account: what it asked, what it was allowed, what the cache did, what it owes, and its row in the truth.

Rule: no waiting and no sockets; every method takes the time at which what it tells happened. Each method changes the
shared behaviours and the truth's row together, so that they cannot disagree.
"""

from __future__ import annotations

import json
import time
from dataclasses import replace
from typing import Any

from tailgauge.rows.schema import ServerLogRow
from tailgauge.simulator import content, faults, models
from tailgauge.simulator.ask import Ask, Prompted, Refused, Reply
from tailgauge.simulator.behaviours import Behaviours
from tailgauge.simulator.billing import Usage, billed_output, cost
from tailgauge.simulator.cache_markers import Prompt, block_prompt, marked_prompt
from tailgauge.simulator.content import ContentSettings, Plan
from tailgauge.simulator.engine.config import Drafting
from tailgauge.simulator.faults import STATUS, Fault
from tailgauge.simulator.latency import draw_key
from tailgauge.simulator.limit_headers import retry_after
from tailgauge.simulator.limits import Charge
from tailgauge.simulator.meters import ABORT, ERROR, LENGTH, STOP, CallMeter
from tailgauge.simulator.prefix_cache import Lookup
from tailgauge.simulator.wire import Wire

_NO_PLAN, _NO_DRAFTS = ContentSettings(), Drafting()
_OK_STATUS, _LIMIT_STATUS = 200, 429


class Exchange:
    """A call that is being answered; `ask` and `reply` are there once `read` has accepted its body."""

    ask: Ask
    reply: Reply

    def __init__(self, behaviours: Behaviours, row: ServerLogRow, wire: Wire, number: int) -> None:
        self.behaviours, self.row, self.wire, self.number = behaviours, row, wire, number
        self.key = draw_key(row.client_request_id, number)
        self.fault: Fault | None = None
        self.headers: dict[str, str] = {}
        self.prefix_key: bytes | None = None
        self._prompt: Prompt | None = None
        self._charge = Charge(None)
        self._lookup: Lookup | None = None
        self._admitted = self._settled = False
        self._generated = 0
        self._meter: CallMeter | None = None

    @property
    def content(self) -> ContentSettings:
        """What answers consist of."""
        return self.behaviours.settings.content

    def read(self, body: dict[str, Any], version: str) -> None:
        """Check the body, or raise `Refused`."""
        self.take(self.wire.parse(body, version), body)

    def take(self, asked: Ask, body: dict[str, Any]) -> None:
        """What a body asks, already checked; of the body only what its answer and the cache depend on is looked at."""
        settings = self.behaviours.settings
        self.ask = asked
        models.check(settings.models, asked.model)
        self.row.input_tokens = self.ask.input_tokens
        tools = body.get("tools") or ()
        self.reply = Reply(self.ask, f"{self.number:024d}", int(time.time()))
        drafts = settings.engine is not None and settings.engine.drafting != _NO_DRAFTS
        if (drafts or settings.content != _NO_PLAN or _gives_schema(body)) and self.ask.max_tokens:
            plan = _plan(settings.content, self.ask, settings.latency.tokens_per_chunk, body)
            self.reply = replace(self.reply, plan=plan, tool=_tool_name(tools))
        if settings.cache.mode == "marked":
            self._prompt = marked_prompt(body)
        elif settings.cache.mode == "automatic":
            self._prompt = block_prompt(body, settings.cache_block_tokens)
        if self._prompt is not None and self._prompt.positions:
            self.prefix_key = self._prompt.positions[0].key

    def admit(self, now_ns: int) -> None:
        """Ask the limits, then the faults; raises `Refused`."""
        behaviours, ask = self.behaviours, self.ask
        decision = behaviours.limits.admit(ask.model, self._estimate(now_ns), ask.max_tokens, now_ns)
        self.take_readings(now_ns)
        if decision.charge is None:
            self.row.limit_kind = decision.kind
            self.headers |= retry_after(decision)
            raise Refused(_LIMIT_STATUS, decision.message, error_code=decision.error_code)
        self._charge = decision.charge
        self.fault = faults.fault_of(behaviours.settings.faults, self.key)
        if self.fault is not None:
            self.row.fault = self.fault.kind
            if self.fault.kind == STATUS:
                self.refuse(self.fault.status, now_ns)
        self._meter = behaviours.meters.received(self.row.received_at_ns, ask.input_tokens)

    def refuse(self, status: int, now_ns: int) -> None:
        """Answer by an error after all, and give back what was charged."""
        self.end(0, now_ns)
        seconds = None if self.fault is None else self.fault.retry_after_s
        if seconds is not None:
            self.headers["retry-after"] = str(seconds)
        raise self.failure(status)

    def failure(self, status: int) -> Refused:
        """The error of a status, with this provider's status for an overload."""
        if status in {503, 529}:
            status = self.wire.OVERLOADED_STATUS
        return Refused(status, _MESSAGES.get(status, "Internal server error"))

    def take_readings(self, now_ns: int) -> None:
        """The limits as they stand: for the headers, and for the truth."""
        behaviours = self.behaviours
        if behaviours.limited:
            model = self.ask.model
            self.headers |= behaviours.limit_headers(self.wire.NAME, model, now_ns)
            levels = {
                reading.kind: reading.remaining for reading in behaviours.limits.readings(model, now_ns)
            }
            self.row.bucket_levels = json.dumps(levels)

    def look_up(self, replica: int, now_ns: int) -> int:
        """At admission: what the cache reads; asked again, the first answer stands."""
        self._admitted = True
        if self._prompt is None:
            return 0
        if self._lookup is None:
            self._lookup = found = self.behaviours.cache.lookup(self._prompt, now_ns, self.key, replica)
            read, written = found.cache_read, found.cache_creation
            rest = max(0, self.ask.input_tokens - read - written)
            prompted = Prompted(rest, read, found.creation_5m, found.creation_1h)
            self.reply = replace(self.reply, prompted=prompted)
            self.row.cache_reason, self.row.input_tokens = found.reason, rest
            self.row.cache_read_tokens, self.row.cache_created_tokens = read, written
            self.behaviours.limits.correct(self._charge, rest + written, read, now_ns)
            self.behaviours.meters.prefix_cache(self._prompt.total_tokens, read)
        return self._lookup.cache_read

    def is_served(self) -> None:
        """The engine works on it."""
        if self._meter is not None:
            self._meter.admitted()
        self.behaviours.take_gauges()

    def begin(self, now_ns: int) -> None:
        """The first token is there: others may read what the call writes."""
        if self._meter is not None:
            self._meter.first_token(now_ns)
        if self._lookup is not None:
            self.behaviours.cache.begin(self._lookup, now_ns)

    def produce(self, tokens: int, now_ns: int) -> None:
        """Tokens of the answer have been made."""
        if self.behaviours.limited:
            self.behaviours.limits.produce(self._charge, tokens, now_ns)

    def end(self, generated: int, now_ns: int, *, cancelled: bool = False) -> None:
        """No more tokens: settle limits, cache and bill. Only the first time counts."""
        if self._settled:
            return
        self._settled, self._generated = True, generated
        limits, billing = self.behaviours.limits, self.behaviours.settings.billing
        if self._lookup is not None:
            self.behaviours.cache.abandon(self._lookup)
        limits.end(self._charge, generated, now_ns)
        if not self._admitted:
            limits.correct(self._charge, 0, 0, now_ns)
            if not cancelled:
                return
        billed = billed_output(billing, generated, self.ask.max_tokens, cancelled=cancelled)
        self.row.billed_output_tokens = billed
        if self.behaviours.settings.limits.spend is not None:
            limits.spend(cost(billing, self._usage(billed)))

    def close(self, now_ns: int) -> None:
        """Nothing more can happen to it: the meters let go of it."""
        self.behaviours.take_gauges()
        if self._meter is not None:
            row = self.row
            reason = (
                LENGTH if self.reply.plan is None or self.reply.plan.stop_reason == "max_tokens" else STOP
            )
            if row.ended_at_ns is None or row.status != _OK_STATUS:
                reason = ABORT if row.cancelled_at_ns is not None else ERROR
            made = max(row.output_tokens, self._generated)  # an engine counts what nobody reads, too
            self._meter.finished(now_ns, reason, made, row.chunk_sent_at_ns)

    def _usage(self, output_tokens: int) -> Usage:
        if not self._admitted:
            return Usage(0, 0, 0, 0, output_tokens)
        one = self.reply.prompted or Prompted(self.ask.input_tokens, 0, 0, 0)
        return Usage(one.input_tokens, one.read, one.creation_5m, one.creation_1h, output_tokens)

    def _estimate(self, now_ns: int) -> int:
        """Input tokens that will count, as far as can be known before the call is admitted."""
        if self._prompt is None:
            return self.ask.input_tokens
        found = self.behaviours.cache.peek(self._prompt, now_ns, self.key)
        return max(0, self.ask.input_tokens - found.cache_read)


_MESSAGES = {429: "Too many requests", 503: "The server is overloaded", 529: "Overloaded"}


def _plan(settings: ContentSettings, ask: Ask, per_chunk: int, body: dict[str, Any]) -> Plan:
    """The blocks of the answer; chunks that an engine's step makes together are joined later."""
    thinking = body.get("thinking") or {}
    if thinking.get("display") == "omitted":
        settings = replace(settings, thinking_display="omitted")
    thinks = thinking.get("type") in {"enabled", "adaptive"} or bool(body.get("reasoning_effort"))
    return content.plan(
        settings, ask.max_tokens, per_chunk, tools=bool(body.get("tools")), thinking=thinks, schema=_gives_schema(body)
    )  # fmt: skip


def _gives_schema(body: dict[str, Any]) -> bool:
    """Whether the answer is to follow a JSON schema, as either protocol says it; the body was checked."""
    asked = (body.get("output_config") or {}).get("format") or body.get("response_format") or {}
    return bool(asked.get("type") == "json_schema")


def _tool_name(tools: Any) -> str:
    """The first tool's name, as either protocol gives it."""
    if not tools:
        return ""
    first = tools[0]
    return str(first.get("name") or first.get("function", {}).get("name", ""))
