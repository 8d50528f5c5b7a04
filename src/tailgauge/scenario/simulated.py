"""The table `[simulated]` of a scenario: how the simulated endpoint behaves.

Every behaviour is off by default. The simulator takes these tables as they are.
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import Literal

from pydantic import Field, model_validator

from tailgauge.scenario.prices import cached_from
from tailgauge.table import Count, NonNegative, Positive, Share, Sigma, Table

FIXED = "fixed"
Router = Literal["random", "least_loaded", "prefix_affinity", "hash"]
Reservation = Literal["growth", "full"]
DraftDistribution = Literal["none", "fixed", "binomial", "geometric"]
CancelMode = Literal["immediate", "next_step", "after_ms", "never"]
FaultKind = Literal["status", "error_event", "cut", "reset", "stall", "slow_headers", "early_headers"]
ProfileName = Literal[
    "fixed", "tiny", "haiku", "sonnet", "opus", "llama3-8b-h100", "llama2-70b-h100-tp8",
    "llama2-70b-h100-tp4", "llama2-70b-a100-tp8",
]  # fmt: skip


class EngineTable(Table):
    """Overrides of the profile's engine; see `tailgauge docs simulator`. Not with the profile `fixed`."""

    replicas: int | None = Field(None, ge=1, le=1000, description="model servers behind the router")
    router: Router | None = Field(None, description="how the replica of a call is chosen")
    slots: Count | None = Field(None, description="concurrent calls per replica")
    queue_cap: int | None = Field(
        None,
        ge=0,
        le=1_000_000,
        description="queue length per replica; further calls are rejected as overloaded",
    )
    token_budget: Count | None = Field(None, description="tokens per step, prompts and answers together")
    prefill_first: bool | None = Field(None, description="whole prompts before any decoding")
    kv_blocks: Count | None = Field(None, description="KV memory per replica, in blocks")
    block_tokens: int | None = Field(None, ge=1, le=4096, description="tokens of a block")
    reservation: Reservation | None = Field(
        None, description="blocks are allocated as the context grows, or all at admission"
    )
    step_ms: Positive | None = Field(None, description="fixed part of a step's duration")
    overhead_ms: NonNegative | None = Field(
        None, description="median delay before a call reaches its replica"
    )
    overhead_sigma: Sigma | None = Field(None, description="sigma of that delay's logarithm")
    draft_distribution: DraftDistribution | None = Field(
        None, description="distribution of tokens per step with speculative decoding"
    )
    draft_tokens: int | None = Field(None, ge=0, le=64, description="drafted tokens per step")
    draft_accept: Share | None = Field(None, description="probability that a drafted token is accepted")
    cancel_mode: CancelMode | None = Field(None, description="when the engine stops a cancelled call")
    cancel_after_ms: NonNegative | None = Field(None, description="delay of the stop with `after_ms`")


class LimitsTable(Table):
    """Rate limits, as token buckets per minute; without a value a limit is off."""

    rpm: Count | None = Field(None, description="requests per minute")
    itpm: Count | None = Field(None, description="input tokens per minute, without cache reads")
    otpm: Count | None = Field(None, description="output tokens per minute")
    burst: Count | None = Field(
        None, description="bucket size in requests; default one minute, 6 s for `tiny`"
    )
    itpm_burst: Count | None = Field(
        None, description="bucket size in input tokens; default one minute, 6 s for `tiny`"
    )
    otpm_burst: Count | None = Field(
        None, description="bucket size in output tokens; default one minute, 6 s for `tiny`"
    )
    otpm_mode: Literal["actual", "reserve"] = Field(
        "actual",
        description="output is charged as it is generated, or as `max_tokens` at the start and corrected at the end",
    )
    reads_count: bool = Field(False, description="cache reads count as input")
    ramp_growth: NonNegative = Field(
        0.0,
        description="maximum requests in a window, relative to the previous one; 0: no acceleration limit",
    )
    ramp_window_s: Positive = Field(60.0, description="length of a window")
    ramp_floor: Count = Field(100, description="requests per window that are always admitted")
    spend: Positive | None = Field(
        None, description="spend limit, in prices of one input token; beyond it every call is rejected"
    )


class CacheTable(Table):
    """The prefix cache."""

    mode: Literal["off", "marked", "automatic"] = Field(
        "off", description="`marked`: at `cache_control` marks; `automatic`: every whole block"
    )
    minimum_tokens: int | None = Field(
        None,
        ge=0,
        le=1_000_000,
        description="minimum length of a cached prefix; default that of the model, else 1024",
    )
    block_tokens: int = Field(16, ge=1, le=4096, description="tokens of an automatic block")
    ttl_5m_s: Positive = Field(300.0, description="lifetime of an entry marked `5m`")
    ttl_1h_s: Positive = Field(3600.0, description="lifetime of an entry marked `1h`")
    automatic_ttl_s: Positive = Field(1e9, description="lifetime of an automatic block")
    sliding: bool = Field(True, description="a read renews an entry's lifetime")
    lookback: int = Field(20, ge=1, le=10_000, description="blocks searched before a mark")
    visibility_delay_s: NonNegative = Field(
        0.0, description="from the start of the writing response to the first possible read"
    )
    per_replica: bool = Field(False, description="each replica has a separate cache")
    route_miss_prob: Share = Field(0.0, description="share of calls routed to a machine without the cache")
    capacity_tokens: Count = Field(50_000_000, description="capacity, per replica or shared")

    def least_tokens(self, model: str) -> int:
        """Tokens of the shortest prefix that is cached."""
        return cached_from(model) or 1024 if self.minimum_tokens is None else self.minimum_tokens


class StragglersTable(Table):
    """Sources of slow calls."""

    size_sigma: Sigma = Field(0.0, description="sigma of a lognormal factor per prompt")
    slow_share: Share = Field(0.0, description="share of (prompt, replica) pairs that are slow")
    slow_factor: float = Field(10.0, ge=1, le=1000, description="slowdown factor")
    pareto_alpha: float = Field(0.0, ge=0, le=100, description="index of a Pareto factor instead; 0: off")
    brownout_factor: float = Field(
        1.0, ge=1, le=1000, description="slowdown of a replica during a brownout; 1: off"
    )
    brownout_on_s: Positive = Field(5.0, description="length of a brownout")
    brownout_off_s: Positive = Field(55.0, description="mean time between brownouts")


class FaultTable(Table):
    """One kind of fault; a call has at most one."""

    kind: FaultKind = Field(
        description="an error instead of a stream, an error within, an end without the end mark, ..."
    )
    share: Share = Field(description="share of the calls with this fault")
    at_chunk: int = Field(0, ge=0, le=1_000_000, description="chunks sent before the fault")
    seconds: NonNegative = Field(0.0, description="length of a stall, delay of slow headers")
    status: int = Field(529, ge=400, le=599, description="HTTP status of an error")
    retry_after_s: int | None = Field(None, ge=0, le=86_400, description="`retry-after` of an HTTP error")


class ProxyTable(Table):
    """A buffering proxy in front of the endpoint."""

    buffer_bytes: int = Field(0, ge=0, le=1_000_000_000, description="buffer size; 0: off")
    buffer_ms: NonNegative = Field(0.0, description="maximum time that bytes are buffered; 0: off")
    buffer_all: bool = Field(False, description="buffers until the response ends")


class GatewayTable(Table):
    """A gateway in front of the endpoint, for calls to the second target where `crossover.gateway` is set."""

    delay_ms: NonNegative = Field(
        0.0, description="time added before the endpoint gets the call, or its median"
    )
    delay_sigma: Sigma = Field(0.0, description="0: constant; else sigma of a lognormal")
    holds: bool = Field(False, description="holds each answer back until it ends")


class BillingTable(Table):
    """Prices relative to one input token, and the bill of a cancelled call."""

    bill_cancelled: Literal["generated", "full"] = Field(
        "generated", description="of the generated tokens, or of the whole answer"
    )
    read: NonNegative = Field(0.1, description="price of a token read from the cache")
    write_5m: NonNegative = Field(1.25, description="price of a token written for 5 minutes")
    write_1h: NonNegative = Field(2.0, description="price of a token written for an hour")
    output: NonNegative = Field(5.0, description="price of a token of output")


class ContentTable(Table):
    """Content of an answer; the rest is text."""

    thinking_share: Share = Field(0.0, description="share of the tokens, for requests with `thinking`")
    thinking_display: Literal["shown", "summarised", "omitted"] = Field(
        "shown",
        description="`summarised`: a tenth of the tokens as text; `omitted`: a long silence and a signature",
    )
    tool_share: Share = Field(0.0, description="share of the tokens, for requests with tools")
    tool_pair_tokens: int = Field(
        16, ge=3, le=100_000, description="tokens of a key and its value, sent in one burst"
    )
    text_blocks: int = Field(1, ge=1, le=100, description="number of text blocks")


class JobsTable(Table):
    """Jobs: calls with the header `prefer: respond-async`, which are answered at the URL `/v1/jobs/ID`; the times of batches."""

    turnaround_s: Positive = Field(2.0, description="median time of a job or batch from submission to end")
    turnaround_sigma: Sigma = Field(0.3, description="sigma of its logarithm")
    retry_after_s: int | None = Field(
        None, ge=0, le=86_400, description="`retry-after` while a job is under way"
    )
    lost: Share = Field(0.0, description="share of the jobs that are forgotten halfway: 404")
    gone: Share = Field(0.0, description="share of the jobs that are dropped when they end: 410")
    expired: Share = Field(0.0, description="share of the jobs that end as `expired`")
    failed: Share = Field(0.0, description="share of the jobs that end as `failed`")
    kept: Count = Field(10_000, description="jobs kept; beyond it the oldest are dropped if they have ended")


class ResumptionTable(Table):
    """Streams that can be resumed: events with ids, and the header `last-event-id`."""

    ids: bool = Field(
        False,
        description="each content event of a text has an id, and a call that names one gets what follows",
    )
    ignored: Share = Field(0.0, description="share of the reconnections that start another answer")
    repeated: Share = Field(0.0, description="share of the reconnections that repeat events")
    skipped: Share = Field(0.0, description="share of the reconnections that skip events")
    events: Count = Field(3, description="events that are repeated or skipped")


class Simulated(Table):
    """The simulated endpoint, when the target is `simulated`."""

    profile: ProfileName = Field(
        "fixed", description="`fixed`: the times below; else an engine with continuous batching"
    )
    ttft_ms: NonNegative = Field(
        200.0, description="time to the first chunk: its value, or its median if lognormal"
    )
    ttft_sigma: Sigma = Field(0.0, description="0: constant; else sigma of a lognormal")
    ttft_exponential: bool = Field(False, description="exponential with mean `ttft_ms` instead")
    chunk_gap_ms: NonNegative = Field(
        10.0, description="time between chunks: its value, or its median if lognormal"
    )
    chunk_gap_sigma: Sigma = Field(0.0, description="0: constant; else sigma of a lognormal")
    tokens_per_chunk: int = Field(1, ge=1, le=1000, description="tokens per chunk")
    ping_every_s: NonNegative = Field(0.0, description="`ping` events of the Anthropic stream; 0: none")
    engine: EngineTable = EngineTable()
    limits: LimitsTable = LimitsTable()
    cache: CacheTable = CacheTable()
    stragglers: StragglersTable = StragglersTable()
    faults: Mapping[str, FaultTable] = Field({})
    proxy: ProxyTable = ProxyTable()
    gateway: GatewayTable = GatewayTable()
    billing: BillingTable = BillingTable()
    content: ContentTable = ContentTable()
    jobs: JobsTable = JobsTable()
    resumption: ResumptionTable = ResumptionTable()

    @model_validator(mode="after")
    def _possible(self) -> Simulated:
        if self.profile == FIXED and self.engine != EngineTable():
            raise ValueError("`engine` needs a profile other than `fixed`, which has none")
        if self.ttft_exponential and self.ttft_sigma:
            raise ValueError("ttft_sigma does not apply with ttft_exponential")
        if sum(fault.share for fault in self.faults.values()) > 1 + 1e-9:
            raise ValueError("the shares of all `faults` are more than 1 together")
        jobs, content = self.jobs, self.content
        if jobs.lost + jobs.gone + jobs.expired + jobs.failed > 1 + 1e-9:
            raise ValueError("jobs: lost, gone, expired and failed are more than 1 together")
        resumption = self.resumption
        if resumption.ignored + resumption.repeated + resumption.skipped > 1 + 1e-9:
            raise ValueError("resumption: ignored, repeated and skipped are more than 1 together")
        if content.thinking_share + content.tool_share > 1:
            raise ValueError("content: thinking_share and tool_share are more than 1 together")
        return self
