"""The account of one call: its request, limits, cache use and bill, and its row of the server log.

It does not wait and has no sockets: every method takes the time at which it happens on the run's clock. A method changes the
state of the endpoint and the row together, so that they cannot disagree.
"""

from __future__ import annotations

import json
import time
from collections.abc import Mapping
from dataclasses import replace
from typing import Any

from tailgauge.rows.schema import ServerLogRow
from tailgauge.simulator.behaviours import content, tokens
from tailgauge.simulator.behaviours.billing import PromptTokens
from tailgauge.simulator.behaviours.faults import (
    BY_ITSELF,
    BY_LIMIT,
    ERROR_EVENT,
    NO_FAULT,
    REFUSAL,
    Fault,
)
from tailgauge.simulator.behaviours.latency import draw_key
from tailgauge.simulator.behaviours.limits import Charge, Decision
from tailgauge.simulator.behaviours.natural_ends import natural_length
from tailgauge.simulator.behaviours.prefix_cache import Lookup, Prompt
from tailgauge.simulator.behaviours.resumption import IGNORED, Stream
from tailgauge.simulator.behaviours.search import draw_search
from tailgauge.simulator.behaviours.served import NOTHING, draw_served
from tailgauge.simulator.core.endpoint import Endpoint
from tailgauge.simulator.core.metrics import ABORT, ERROR, LENGTH, STOP, CallMeter
from tailgauge.simulator.protocols.error_shapes import error_in_stream
from tailgauge.simulator.protocols.prefix import block_prompt, marked_prompt
from tailgauge.simulator.protocols.request import CallRequest, Refused, Reply
from tailgauge.simulator.protocols.wire import Wire

_LIMIT_STATUS = 429
_MESSAGES = {429: "Too many requests", 503: "The server is overloaded", 529: "Overloaded"}


class Exchange:
    """A call that is being answered; `request` and `reply` are there once `accept` has been called."""

    request: CallRequest
    has_reply = False  # a job has none
    reply: Reply

    def __init__(self, endpoint: Endpoint, row: ServerLogRow, wire: Wire, number: int) -> None:
        """Open the account of a call. `row`: its row of the server log; `number`: the server's own count of calls.

        `accept` adds the request, `admit` charges the limits and draws the fault, `look_up` reads the cache, `end`
        settles all.
        """
        self.endpoint = endpoint
        self.row = row
        self.wire = wire
        self.number = number
        self.key = draw_key(row.client_request_id, number)  # of all its draws
        self.fault = NO_FAULT
        self.is_held = False  # a gateway keeps the whole answer until its end
        self.headers: dict[str, str] = {}  # of the response, from limits and jobs
        self.stream: Stream | None = None  # where the events have ids
        self.first_event = 0  # number of the first event
        self.requested_tokens = 0  # of the answer; it may end earlier
        self._prompt: Prompt | None = None
        self._charge = Charge()  # what the limits took at the start; `end` corrects it
        self._lookup: Lookup | None = None
        self._is_admitted = False
        self._generated: int | None = None  # tokens; None: the call is not settled
        self._meter: CallMeter | None = None

    def accept(self, request: CallRequest, body: dict[str, Any]) -> None:
        """Take a request: draw how long its answer is, and make the reply and the prompt for the cache.

        `request` is `body` as its protocol parsed it. Of `body` only the part that the prefix cache uses is read; its
        marks may be wrong, which raises `Refused`. `self.request` has the drawn length, `requested_tokens` what the
        caller asked for.
        """
        table = self.endpoint.table
        seed = self.endpoint.seed
        self.row.input_tokens = request.input_tokens
        self.requested_tokens = request.max_tokens
        length = natural_length(table.natural, seed, self.key)
        stop = None
        if length is not None and length < request.max_tokens:
            request = replace(request, max_tokens=length)
            # With a tool the plan names the reason: the answer ends with the tool call.
            if request.tool is None:
                stop = BY_ITSELF
        search = None
        if self.wire.SERVER_TOOLS:
            search = draw_search(table.search, seed, self.key)
        self.request = request
        self.has_reply = True
        self.reply = Reply(
            request,
            id=f"{self.number:024d}",
            created_s=int(time.time()),
            plan=self._plan(request),
            stop=stop,
            served=draw_served(table.served, seed, self.key),
            search=search,
        )
        if table.cache.mode == "marked":
            self._prompt = marked_prompt(body)
        elif table.cache.mode == "automatic":
            self._prompt = block_prompt(body, table.cache.block_tokens)

    def _plan(self, request: CallRequest) -> content.Plan | None:
        """Return the blocks of the answer; None: it is one text."""
        if not (self.endpoint.has_blocks or request.schema) or not request.max_tokens:
            return None
        table = self.endpoint.table
        contents = table.content
        if request.thinking_omitted:
            contents = contents.model_copy(update={"thinking_display": "omitted"})
        hidden = content.hidden_tokens(contents, request.max_tokens, self.endpoint.seed, self.key)
        return content.plan(
            contents,
            request.max_tokens,
            table.tokens_per_chunk,
            tools=request.tool is not None,
            thinking=request.thinking,
            schema=request.schema,
            hidden=hidden,
        )

    def _stop_early(self, fault: Fault) -> None:
        """Shorten the answer to the chunks before a fault, whose reason it has for its end."""
        is_refusal = fault.stop == REFUSAL
        chunks = fault.stops_after
        if is_refusal:
            chunks = max(chunks, self.wire.REFUSAL_CHUNKS)
        count = min(self.request.max_tokens, chunks * self.endpoint.table.tokens_per_chunk)
        self.request = replace(self.request, max_tokens=count)
        plan = None
        if not is_refusal:
            plan = self._plan(self.request)
        self.reply = replace(
            self.reply, request=self.request, plan=plan, stop=fault.stop, category=fault.category
        )

    def resume(self, last_id: str) -> None:
        """Give the events ids, where the endpoint does that, and resume behind the event `last_id`, unless it is empty.

        Raises `Refused` for an event that is not known.
        """
        resumption = self.endpoint.resumption
        request = self.request
        if not resumption.table.ids or not request.stream or self.reply.plan is not None:
            return
        fault = None
        if last_id:
            fault = resumption.fault(self.key)
        if last_id and fault != IGNORED:
            self._resume_behind(last_id, fault)
        else:
            self.stream = Stream(
                name=self.reply.id,
                key=self.key,
                received_ns=self.row.received_at_ns,
                tokens=request.max_tokens,
                stop=self.reply.stop,
            )
            resumption.open(self.stream)
        self.row.fault = fault

    def _resume_behind(self, last_id: str, fault: str | None) -> None:
        """Shorten the answer to the events behind the event `last_id`."""
        place = self.endpoint.resumption.following(last_id, fault)
        if place is None:
            raise Refused(404, f"No such event: {last_id[:64]}")
        self.stream, self.first_event = place
        sent_tokens = self.first_event * self.endpoint.table.tokens_per_chunk
        tokens_left = max(0, self.stream.tokens - sent_tokens)
        self.request = replace(self.request, max_tokens=tokens_left)
        self.reply = replace(self.reply, request=self.request, stop=self.stream.stop)
        self.requested_tokens = self.request.max_tokens

    def event_id(self, index: int) -> str | None:
        """Return the id of a chunk; None where events have no ids."""
        if self.stream is None:
            return None
        return f"{self.stream.name}-{self.first_event + index}"

    def admit(self, now_ns: int) -> None:
        """Charge the call to the limits and draw its fault; raise `Refused` where either refuses it.

        A refusal by a limit costs nothing, one by a fault gives the charge back. Writes the limits into the row and the
        response's headers. A fault that stops the answer early shortens request and reply.
        """
        endpoint = self.endpoint
        request = self.request
        limits = endpoint.limits
        estimate = self._estimate(now_ns)
        decision = limits.admit(request.model, estimate, self.requested_tokens, now_ns)
        if limits.has_levels:
            self.headers |= endpoint.limit_headers(self.wire, now_ns)
            levels = {reading.kind: reading.remaining for reading in limits.readings(now_ns)}
            self.row.bucket_levels = json.dumps(levels)
        if decision.charge is None:
            self.row.limit_kind = decision.kind
            self.headers |= endpoint.retry_headers(decision.retry_after_s)
            raise self._beyond_limit(decision)
        self._charge = decision.charge
        self.fault = endpoint.faults.fault_of(self.key)
        self.row.fault = self.fault.kind or self.row.fault
        if self.fault.refuses:
            self.refuse(self.fault.status, now_ns)
        if self.fault.stop is not None and request.max_tokens:
            self._stop_early(self.fault)
        self._meter = endpoint.meters.received()  # from here on the call counts as waiting

    def _beyond_limit(self, decision: Decision) -> Refused:
        """Return the error of a call beyond a limit."""
        limits = self.endpoint.table.limits
        in_band = limits.in_band and self.request.stream
        if limits.overload:
            error = self.failure(self.wire.OVERLOADED_STATUS)
            return Refused(error.status, error.message, in_band=in_band)
        return Refused(
            _LIMIT_STATUS, decision.message, error_code=decision.error_code, in_band=in_band
        )

    def refuse(self, status: int, now_ns: int) -> None:
        """Answer by an error after all, and give the charge back. Raises `Refused`."""
        self.end(0, now_ns)
        if self.fault.retry_after_s is not None:
            self.headers["retry-after"] = str(self.fault.retry_after_s)
        raise self.failure(status)

    def failure(self, status: int) -> Refused:
        """Return the error of a status, with this provider's status for an overload."""
        if status in {503, 529}:
            status = self.wire.OVERLOADED_STATUS
        return Refused(status, _MESSAGES.get(status, "Internal server error"))

    def error_event(self, refused: Refused, *, has_begun: bool) -> bytes:
        """Return the events that end a stream by an error. `has_begun`: the answer has had events before."""
        reply = self.reply if has_begun else None
        return error_in_stream(self.fault.shape, self.wire, reply, refused)

    def log_end(self) -> None:
        """Write the stop reason and the tokens of a search into the row."""
        self.row.stop_reason = self.reply.reason(self.wire.STOP_REASONS)
        if self.reply.search is not None:
            self.row.input_tokens += self.reply.search.result_tokens

    def log_refusal(self, refused: Refused) -> None:
        """Write the statuses of a refusal into the row."""
        self.row.error_status = refused.status
        self.row.status = 200 if refused.in_band else refused.status

    @property
    def is_plain(self) -> bool:
        """Return whether the answer is written as usual, and ends by itself or by its limit."""
        if not self.has_reply:
            return True
        reply = self.reply
        is_usual = reply.served == NOTHING and reply.search is None and not reply.diagnostics
        return is_usual and self.fault.ending != ERROR_EVENT and self.fault.stop is None

    @property
    def delay_ns(self) -> int:
        """Return how much later the content comes than the first event, because of a search."""
        if self.reply.search is None:
            return 0
        return self.reply.search.delay_ns

    def look_up(self, replica: int, now_ns: int) -> int:
        """Admit the call and return how many tokens the cache reads. A second lookup of the call changes nothing."""
        self._is_admitted = True
        if self._prompt is None:
            return 0
        if self._lookup is None:
            self._lookup = self.endpoint.cache.lookup(self._prompt, now_ns, self.key, replica)
            self._note_lookup(self._prompt, self._lookup, now_ns)
        return self._lookup.cache_read

    def _note_lookup(self, prompt: Prompt, lookup: Lookup, now_ns: int) -> None:
        """Write the work of the cache into the reply, the row, the limits and the meters."""
        read = lookup.cache_read
        written = lookup.cache_creation
        uncached = max(0, self.request.input_tokens - read - written)
        self.reply = replace(
            self.reply,
            prompt=PromptTokens(uncached, read, lookup.creation_5m, lookup.creation_1h),
            diagnostics=self._diagnose(prompt, lookup),
        )
        self.row.cache_reason = lookup.reason
        self.row.input_tokens = uncached
        self.row.cache_read_tokens = read
        self.row.cache_created_tokens = written
        self.endpoint.limits.correct(self._charge, uncached + written, read, now_ns)
        self.endpoint.meters.prefix_cache(prompt.total_tokens, read)

    def _diagnose(self, prompt: Prompt, lookup: Lookup) -> Mapping[str, Any] | None:
        """Return why the cache missed, if the caller asks for that and names a previous message."""
        if not self.request.diagnoses:
            return None
        diagnostics = self.endpoint.diagnostics
        diagnostics.remember(f"msg_{self.reply.id}", prompt)
        previous = self.request.previous_message
        if previous is None:
            return None
        return diagnostics.compare(previous, prompt, lookup)

    def serve(self) -> None:
        """Note that the engine has admitted the call."""
        if self._meter is not None:
            self._meter.admitted()

    def begin(self, now_ns: int) -> None:
        """Note the first token: from now on, other calls may read what this one writes to the cache."""
        if self._meter is not None:
            self._meter.admitted()
        if self._lookup is not None:
            self.endpoint.cache.begin(self._lookup, now_ns)

    def produce(self, tokens: int, now_ns: int) -> None:
        """Count tokens of the answer that have just been made."""
        self.endpoint.limits.produce(tokens, now_ns)

    def end(self, generated: int, now_ns: int, *, cancelled: bool = False) -> None:
        """Settle limits, cache and bill: no more tokens are made. Only the first time counts.

        `generated`: tokens of the answer made until now; `cancelled`: the client left. A call that was never admitted
        gets its input charge back, and has a bill only if it was cancelled: for its output, not for its prompt.
        """
        if self._generated is not None:
            return
        self._generated = generated
        limits = self.endpoint.limits
        billing = self.endpoint.billing
        if self._lookup is not None:
            # Without effect where the answer has begun and its entries are stored.
            self.endpoint.cache.abandon(self._lookup)
        limits.end(self._charge, generated, now_ns)
        if not self._is_admitted:
            limits.correct(self._charge, input_tokens=0, cache_read_tokens=0, now_ns=now_ns)
            if not cancelled:
                return
        billed = billing.billed_output(generated, self.request.max_tokens, cancelled=cancelled)
        self.row.billed_output_tokens = billed
        if limits.counts_spend:
            prompt = self.prompt_tokens if self._is_admitted else PromptTokens(0)
            limits.spend(billing.cost(prompt, billed))

    def close(self) -> None:
        """Count the call as finished: nothing more can happen to it."""
        if self._meter is None:
            return
        row = self.row
        reason = LENGTH if self.reply.stop_reason == BY_LIMIT else STOP
        if row.ended_at_ns is None or row.status >= 300:
            reason = ABORT if row.cancelled_at_ns is not None else ERROR
        # An engine counts tokens that nobody reads, too.
        self._meter.finished(reason, max(row.output_tokens, self._generated or 0))

    @property
    def prompt_tokens(self) -> PromptTokens:
        """Return the prompt's tokens by price; before the lookup, all are uncached."""
        return self.reply.prompt or PromptTokens(self.request.input_tokens)

    def _estimate(self, now_ns: int) -> int:
        """Estimate the input tokens that will count towards the limits, before the call is admitted."""
        if self._prompt is None:
            return self.request.input_tokens
        lookup = self.endpoint.cache.peek(self._prompt, now_ns, self.key)
        return max(0, self.request.input_tokens - lookup.cache_read)


def whole(exchange: Exchange) -> bytes:
    """Return the body of an answer in one piece."""
    reply = exchange.reply
    if reply.plan is None:
        contents = [tokens.text(reply.request.max_tokens).decode()]
    else:
        contents = content.whole_contents(
            reply.plan, exchange.endpoint.table.content.tool_pair_tokens
        )
    return exchange.wire.whole(reply, contents)
