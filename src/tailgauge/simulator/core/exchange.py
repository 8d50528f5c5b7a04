"""One call's account: what it requested, what it was allowed, what the cache did, what it owes, and its server-log row.

No waiting and no sockets; every method takes the time at which it happened on the run's clock. Each method changes what the endpoint shares and
the row together, so that they cannot disagree.
"""

from __future__ import annotations

import json
import time
from collections.abc import Mapping
from dataclasses import replace
from functools import partial
from typing import Any

from tailgauge.rows.schema import ServerLogRow
from tailgauge.simulator.behaviours import content, jobs, tokens
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
JOBS_PATH = "/v1/jobs"
_MESSAGES = {429: "Too many requests", 503: "The server is overloaded", 529: "Overloaded"}


class Exchange:
    """A call that is being answered; `request` and `reply` are there once `accept` has been called."""

    request: CallRequest
    has_reply = False  # a job has none
    reply: Reply

    def __init__(self, endpoint: Endpoint, row: ServerLogRow, wire: Wire, number: int) -> None:
        self.endpoint = endpoint
        self.row = row
        self.wire = wire
        self.number = number
        self.key = draw_key(row.client_request_id, number)
        self.fault = NO_FAULT
        self.is_held = False  # until its end, by a gateway
        self.headers: dict[str, str] = {}
        self.stream: Stream | None = None  # where the events have ids
        self.first = 0  # number of the first event
        self.asked_tokens = 0  # of the answer; it may end earlier
        self._prompt: Prompt | None = None
        self._charge = Charge()
        self._lookup: Lookup | None = None
        self._admitted = self._settled = False
        self._generated = 0
        self._meter: CallMeter | None = None

    def accept(self, request: CallRequest, body: dict[str, Any]) -> None:
        """Take a request; of its body only what the prefix cache looks at is read."""
        table = self.endpoint.table
        self.row.input_tokens = request.input_tokens
        self.asked_tokens = request.max_tokens
        length = natural_length(table.natural, self.endpoint.seed, self.key)
        stop = None
        if length is not None and length < request.max_tokens:
            request = replace(request, max_tokens=length)
            stop = None if request.tool is not None else BY_ITSELF
        self.request = request
        self.has_reply = True
        search = None
        if self.wire.SERVER_TOOLS:
            search = draw_search(table.search, self.endpoint.seed, self.key)
        self.reply = Reply(
            request,
            f"{self.number:024d}",
            int(time.time()),
            self._plan(request),
            stop=stop,
            served=draw_served(table.served, self.endpoint.seed, self.key),
            search=search,
        )
        if table.cache.mode == "marked":
            self._prompt = marked_prompt(body)
        elif table.cache.mode == "automatic":
            self._prompt = block_prompt(body, table.cache.block_tokens)

    def _plan(self, request: CallRequest) -> content.Plan | None:
        """What the answer consists of; None: one text."""
        if not (self.endpoint.plans or request.schema) or not request.max_tokens:
            return None
        table = self.endpoint.table
        contents = table.content
        if request.thinking_omitted:
            contents = contents.model_copy(update={"thinking_display": "omitted"})
        return content.plan(
            contents,
            request.max_tokens,
            table.tokens_per_chunk,
            tools=request.tool is not None,
            thinking=request.thinking,
            schema=request.schema,
            hidden=content.hidden_tokens(
                contents, request.max_tokens, self.endpoint.seed, self.key
            ),
        )

    def _stop_early(self, fault: Fault) -> None:
        """Shorten the answer to what it has when it stops, for the reason of a fault."""
        least = self.wire.REFUSAL_CHUNKS if fault.stop == REFUSAL else 0
        chunks = max(fault.stops_after, least)
        count = min(self.request.max_tokens, chunks * self.endpoint.table.tokens_per_chunk)
        self.request = replace(self.request, max_tokens=count)
        plan = None if fault.stop == REFUSAL else self._plan(self.request)
        self.reply = replace(
            self.reply, request=self.request, plan=plan, stop=fault.stop, category=fault.category
        )

    def resume(self, last_id: str) -> None:
        """Give the events ids, where the endpoint does, and go on behind `last_id`, if there is one."""
        resumption = self.endpoint.resumption
        request = self.request
        if not resumption.table.ids or not request.stream or self.reply.plan is not None:
            return
        fault = resumption.fault(self.key) if last_id else None
        if not last_id or fault == IGNORED:
            received_ns = self.row.received_at_ns
            stream = Stream(
                self.reply.id, self.key, received_ns, request.max_tokens, self.reply.stop
            )
            self.stream = resumption.open(stream)
        else:
            found = resumption.after(last_id, fault)
            if found is None:
                raise Refused(404, f"No such event: {last_id[:64]}")
            self.stream, self.first = found
            rest = self.stream.tokens - self.first * self.endpoint.table.tokens_per_chunk
            self.request = replace(request, max_tokens=max(0, rest))
            self.reply = replace(self.reply, request=self.request, stop=self.stream.stop)
            self.asked_tokens = self.request.max_tokens
        self.row.fault = fault

    def event_id(self, index: int) -> str | None:
        """The id of a chunk."""
        return None if self.stream is None else f"{self.stream.name}-{self.first + index}"

    def admit(self, now_ns: int) -> None:
        """Apply the limits, then draw the fault; raises `Refused`."""
        endpoint = self.endpoint
        request = self.request
        decision = endpoint.limits.admit(
            request.model, self._estimate(now_ns), self.asked_tokens, now_ns
        )
        if endpoint.limits.any:
            self.headers |= endpoint.limit_headers(self.wire, now_ns)
            levels = {
                reading.kind: reading.remaining for reading in endpoint.limits.readings(now_ns)
            }
            self.row.bucket_levels = json.dumps(levels)
        if decision.charge is None:
            self.row.limit_kind = decision.kind
            self.headers |= endpoint.retry_headers(decision.retry_after_s)
            raise self._beyond_limit(decision)
        self._charge = decision.charge
        self.fault = endpoint.faults.draw(self.key)
        self.row.fault = self.fault.kind or self.row.fault
        if self.fault.refuses:
            self.refuse(self.fault.status, now_ns)
        if self.fault.stop is not None and self.request.max_tokens:
            self._stop_early(self.fault)
        self._meter = endpoint.meters.received()

    def _beyond_limit(self, decision: Decision) -> Refused:
        """The error of a call beyond a limit."""
        limits = self.endpoint.table.limits
        in_band = limits.in_band and self.request.stream
        if limits.overload:
            error = self.failure(self.wire.OVERLOADED_STATUS)
            return Refused(error.status, error.message, in_band=in_band)
        return Refused(
            _LIMIT_STATUS, decision.message, error_code=decision.error_code, in_band=in_band
        )

    def refuse(self, status: int, now_ns: int) -> None:
        """Answer by an error after all, and give back what was charged."""
        self.end(0, now_ns)
        if self.fault.retry_after_s is not None:
            self.headers["retry-after"] = str(self.fault.retry_after_s)
        raise self.failure(status)

    def failure(self, status: int) -> Refused:
        """The error of a status, with this provider's status for an overload."""
        if status in {503, 529}:
            status = self.wire.OVERLOADED_STATUS
        return Refused(status, _MESSAGES.get(status, "Internal server error"))

    def error_event(self, refused: Refused, *, has_begun: bool) -> bytes:
        """The events that end a stream by an error."""
        reply = self.reply if has_begun else None
        return error_in_stream(self.fault.shape, self.wire, reply, refused)

    def log_end(self) -> None:
        """Write into the row what the end of the answer says."""
        self.row.stop_reason = self.reply.reason(self.wire.STOP_REASONS)
        if self.reply.search is not None:
            self.row.input_tokens += self.reply.search.result_tokens

    def log_refusal(self, refused: Refused) -> None:
        """Write into the row what a call is refused with."""
        self.row.error_status = refused.status
        self.row.status = 200 if refused.in_band else refused.status

    @property
    def is_plain(self) -> bool:
        """Whether the answer is written as usual, and ends by itself or by its limit."""
        if not self.has_reply:
            return True
        reply = self.reply
        is_usual = reply.served == NOTHING and reply.search is None and not reply.diagnostics
        return is_usual and self.fault.ending != ERROR_EVENT and self.fault.stop is None

    @property
    def delay_ns(self) -> int:
        """How much later the content comes than the first event, because of a search."""
        return 0 if self.reply.search is None else self.reply.search.delay_ns

    # --- jobs -------------------------------------------------------------------------------------------------

    def submit_job(self, now_ns: int) -> bytes:
        """Take an admitted call as a job; returns the body of the answer, whose status is the row's."""
        count = self.request.max_tokens
        self.look_up(0, now_ns)
        self.end(count, now_ns)
        result = partial(whole, self)
        job = self.endpoint.jobs.submit((self.prompt_tokens.input_tokens, count), result, now_ns)
        self.row.planned_ttft_ns = job.ends_ns - now_ns
        self.headers["location"] = f"{JOBS_PATH}/{job.id}"
        return self._job_body(202, self._described(job, now_ns), now_ns)

    def job(self, method: str, path: str, now_ns: int) -> bytes:
        """A job's state or result, or its end; raises `Refused`."""
        name, _, rest = path.removeprefix(f"{JOBS_PATH}/").partition("/")
        fault = self.endpoint.faults.draw(self.key)
        if fault.refuses:
            self.fault = fault
            self.row.fault = fault.kind
            self.refuse(fault.status, now_ns)
        job = self.endpoint.jobs.get(name)
        state = jobs.LOST if job is None else job.state(now_ns)
        if job is None or state in {jobs.LOST, jobs.GONE}:
            raise Refused(410 if state == jobs.GONE else 404, f"No such job: {name[:64]}")
        if method == "DELETE":
            job.cancel(now_ns)
        elif rest:
            if state != jobs.SUCCEEDED:
                raise Refused(409, f"{name}: the job has no result")
            self.row.input_tokens, self.row.output_tokens = job.tokens
            return self._job_body(200, job.result(), now_ns)
        return self._job_body(200, self._described(job, now_ns), now_ns)

    def _described(self, job: jobs.Job, now_ns: int) -> bytes:
        state = job.state(now_ns)
        retry_after_s = self.endpoint.jobs.table.retry_after_s
        if state == jobs.RUNNING and retry_after_s is not None:
            self.headers["retry-after"] = str(retry_after_s)
        url = f"{JOBS_PATH}/{job.id}/result" if state == jobs.SUCCEEDED else None
        return json.dumps(
            {"id": job.id, "object": "job", "status": state, "result_url": url}
        ).encode()

    def _job_body(self, status: int, body: bytes, now_ns: int) -> bytes:
        row = self.row
        row.status = status
        row.headers_at_ns = now_ns
        row.ended_at_ns = now_ns
        return body

    def look_up(self, replica: int, now_ns: int) -> int:
        """At admission: what the cache reads; called again, the first answer stands."""
        self._admitted = True
        if self._prompt is None:
            return 0
        if self._lookup is None:
            endpoint = self.endpoint
            self._lookup = found = endpoint.cache.lookup(self._prompt, now_ns, self.key, replica)
            read = found.cache_read
            written = found.cache_creation
            rest = max(0, self.request.input_tokens - read - written)
            prompt = PromptTokens(rest, read, found.creation_5m, found.creation_1h)
            self.reply = replace(
                self.reply, prompt=prompt, diagnostics=self._diagnose(self._prompt, found)
            )
            self.row.cache_reason = found.reason
            self.row.input_tokens = rest
            self.row.cache_read_tokens = read
            self.row.cache_created_tokens = written
            endpoint.limits.correct(self._charge, rest + written, read, now_ns)
            endpoint.meters.prefix_cache(self._prompt.total_tokens, read)
        return self._lookup.cache_read

    def _diagnose(self, prompt: Prompt, found: Lookup) -> Mapping[str, Any] | None:
        """Why the cache missed, where the caller asks."""
        if not self.request.diagnoses:
            return None
        diagnostics = self.endpoint.diagnostics
        diagnostics.remember(f"msg_{self.reply.id}", prompt)
        previous = self.request.previous_message
        return None if previous is None else diagnostics.compare(previous, prompt, found)

    def serve(self) -> None:
        """The engine admitted the call."""
        if self._meter is not None:
            self._meter.admitted()

    def begin(self, now_ns: int) -> None:
        """The first token is there: others may read what the call writes."""
        if self._meter is not None:
            self._meter.admitted()
        if self._lookup is not None:
            self.endpoint.cache.begin(self._lookup, now_ns)

    def produce(self, tokens: int, now_ns: int) -> None:
        """Tokens of the answer have been made."""
        self.endpoint.limits.produce(tokens, now_ns)

    def end(self, generated: int, now_ns: int, *, cancelled: bool = False) -> None:
        """No more tokens: settle limits, cache and bill. Only the first time counts."""
        if self._settled:
            return
        self._settled = True
        self._generated = generated
        limits = self.endpoint.limits
        billing = self.endpoint.billing
        if self._lookup is not None:
            self.endpoint.cache.abandon(self._lookup)
        limits.end(self._charge, generated, now_ns)
        if not self._admitted:
            limits.correct(self._charge, 0, 0, now_ns)
            if not cancelled:
                return
        billed = billing.billed_output(generated, self.request.max_tokens, cancelled=cancelled)
        self.row.billed_output_tokens = billed
        if limits.counts_spend:
            prompt = self.prompt_tokens if self._admitted else PromptTokens(0)
            limits.spend(billing.cost(prompt, billed))

    def close(self) -> None:
        """Nothing more can happen to it: the meters let go of it."""
        if self._meter is not None:
            row = self.row
            reason = LENGTH if self.reply.stop_reason == BY_LIMIT else STOP
            if row.ended_at_ns is None or row.status >= 300:
                reason = ABORT if row.cancelled_at_ns is not None else ERROR
            made = max(
                row.output_tokens, self._generated
            )  # an engine counts what nobody reads, too
            self._meter.finished(reason, made)

    @property
    def prompt_tokens(self) -> PromptTokens:
        """The prompt's tokens by price, as far as it was looked up."""
        return self.reply.prompt or PromptTokens(self.request.input_tokens)

    def _estimate(self, now_ns: int) -> int:
        """Input tokens that will count, as far as can be known before the call is admitted."""
        if self._prompt is None:
            return self.request.input_tokens
        found = self.endpoint.cache.peek(self._prompt, now_ns, self.key)
        return max(0, self.request.input_tokens - found.cache_read)


def whole(exchange: Exchange) -> bytes:
    """The body of an answer in one piece."""
    reply = exchange.reply
    if reply.plan is None:
        contents = [tokens.text(reply.request.max_tokens).decode()]
    else:
        contents = content.whole_contents(
            reply.plan, exchange.endpoint.table.content.tool_pair_tokens
        )
    return exchange.wire.whole(reply, contents)
