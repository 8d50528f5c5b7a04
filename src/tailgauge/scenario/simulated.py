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
Router = Literal["random", "least_loaded"]
CancelMode = Literal["immediate", "next_step", "after_ms", "never"]
FaultKind = Literal[
    "status",
    "error_event",
    "cut",
    "reset",
    "stall",
    "slow_headers",
    "early_headers",
    "refused",
    "filtered",
    "aborted",
    "no_finish_reason",
    "short",
]
ErrorShape = Literal["provider", "wrapped", "flat", "message", "detail", "field", "chunk"]
HeaderFamily = Literal[
    "provider",
    "anthropic",
    "openai",
    "groq",
    "azure",
    "mistral",
    "litellm",
    "ietf",
    "epoch",
    "epoch_ms",
]
RetryAfter = Literal["seconds", "milliseconds", "date", "none"]
RefusalCategory = Literal["cyber", "bio", "frontier_llm", "reasoning_extraction", "general_harms"]
ProfileName = Literal[
    "fixed",
    "tiny",
    "haiku",
    "sonnet",
    "opus",
    "llama3-8b-h100",
    "llama2-70b-h100-tp8",
    "llama2-70b-h100-tp4",
    "llama2-70b-a100-tp8",
]


class EngineTable(Table):
    """Overrides of the profile's engine; see `tailgauge docs simulator`. Not with the profile `fixed`."""

    replicas: int | None = Field(None, ge=1, le=1000)
    """model servers behind the router"""
    router: Router | None = None
    """choice of a call's replica"""
    slots: Count | None = None
    """concurrent calls per replica"""
    queue_cap: int | None = Field(None, ge=0, le=1_000_000)
    """queue length per replica, then overloaded"""
    token_budget: Count | None = None
    """tokens per step, prompts and answers"""
    kv_blocks: Count | None = None
    """KV memory per replica, in blocks"""
    block_tokens: int | None = Field(None, ge=1, le=4096)
    """tokens per block"""
    step_ms: Positive | None = None
    """fixed part of a step's duration"""
    overhead_ms: NonNegative | None = None
    """median delay before a call reaches its replica"""
    overhead_sigma: Sigma | None = None
    """its lognormal sigma"""
    draft_tokens: int | None = Field(None, ge=0, le=64)
    """tokens per step beyond the first (speculative decoding)"""
    cancel_mode: CancelMode | None = None
    """when a cancelled call stops"""
    cancel_after_ms: NonNegative | None = None
    """delay with `after_ms`"""


class LimitsTable(Table):
    """Rate limits, as token buckets per minute; off without a value."""

    rpm: Count | None = None
    """requests per minute"""
    itpm: Count | None = None
    """input tokens per minute, without cache reads"""
    otpm: Count | None = None
    """output tokens per minute"""
    burst: Count | None = None
    """bucket size in requests; default one minute, 6 s for `tiny`"""
    itpm_burst: Count | None = None
    """the same in input tokens"""
    otpm_burst: Count | None = None
    """the same in output tokens"""
    otpm_mode: Literal["actual", "reserve"] = "actual"
    """charge output as generated, or `max_tokens`, corrected at the end"""
    reads_count: bool = False
    """cache reads count as input"""
    ramp_growth: NonNegative = 0.0
    """largest growth of requests per window; 0: no limit"""
    ramp_window_s: Positive = 60.0
    """length of a window"""
    ramp_floor: Count = 100
    """requests per window always admitted"""
    spend: Positive | None = None
    """in prices of one input token; beyond it every call is rejected"""
    overload: bool = False
    """reject as overloaded"""
    in_band: bool = False
    """reject streams inside a 200"""
    headers: HeaderFamily = "provider"
    """family of limit headers"""
    retry_after: RetryAfter = "seconds"
    """form of the wait in a rejection"""
    should_retry: bool | None = None
    """`x-should-retry` of a rejection; default: none"""


class CacheTable(Table):
    """The prefix cache."""

    mode: Literal["off", "marked", "automatic"] = "off"
    """`marked`: at cache marks; `automatic`: every whole block"""
    minimum_tokens: int | None = Field(None, ge=0, le=1_000_000)
    """shortest cached prefix; default that of the model, else 1024"""
    block_tokens: int = Field(16, ge=1, le=4096)
    """tokens per automatic block"""
    ttl_5m_s: Positive = 300.0
    """lifetime of `5m` marks"""
    ttl_1h_s: Positive = 3600.0
    """lifetime of `1h` marks"""
    ttl_30m_s: Positive = 1800.0
    """lifetime of `30m` marks"""
    ttl_12h_s: Positive = 43_200.0
    """lifetime of `12h` marks"""
    automatic_ttl_s: Positive = 1e9
    """lifetime of automatic blocks"""
    sliding: bool = True
    """reads renew the lifetime"""
    lookback: int = Field(20, ge=1, le=10_000)
    """blocks searched before a mark"""
    visibility_delay_s: NonNegative = 0.0
    """from the start of the writing response to the first read"""
    per_replica: bool = False
    """a separate cache per replica"""
    route_miss_prob: Share = 0.0
    """share of calls routed past the cache"""
    capacity_tokens: Count = 50_000_000
    """per replica or shared"""

    def least_tokens(self, model: str) -> int:
        """Tokens of the shortest prefix that is cached."""
        return cached_from(model) or 1024 if self.minimum_tokens is None else self.minimum_tokens


class StragglersTable(Table):
    """Sources of slow calls."""

    size_sigma: Sigma = 0.0
    """lognormal sigma per prompt"""
    slow_share: Share = 0.0
    """share of slow (prompt, replica) pairs"""
    slow_factor: float = Field(10.0, ge=1, le=1000)
    """their slowdown"""
    pareto_alpha: float = Field(0.0, ge=0, le=100)
    """index of a Pareto factor instead; 0: off"""
    brownout_factor: float = Field(1.0, ge=1, le=1000)
    """slowdown of a replica in a brownout; 1: off"""
    brownout_on_s: Positive = 5.0
    """length of a brownout"""
    brownout_off_s: Positive = 55.0
    """mean time between brownouts"""


class FaultTable(Table):
    """One kind of fault; a call has at most one."""

    kind: FaultKind
    """how the call fails"""
    share: Share
    """share of calls"""
    at_chunk: int = Field(0, ge=0, le=1_000_000)
    """chunks sent before the fault"""
    seconds: NonNegative = 0.0
    """length of a stall or delay of headers"""
    status: int = Field(529, ge=400, le=599)
    """HTTP status of an error, also within a stream"""
    shape: ErrorShape = "provider"
    """form of an error within a stream"""
    category: RefusalCategory = "general_harms"
    """Anthropic: category of a refusal in `stop_details`"""
    retry_after_s: int | None = Field(None, ge=0, le=86_400)
    """`retry-after` of an HTTP error"""


class GatewayTable(Table):
    """A gateway before the second target, with `crossover.gateway`."""

    delay_ms: NonNegative = 0.0
    """time added per call, or its median"""
    delay_sigma: Sigma = 0.0
    """lognormal sigma; 0: constant"""
    holds: bool = False
    """holds each answer until it ends"""


class BillingTable(Table):
    """Prices relative to one input token, and the bill of a cancelled call."""

    bill_cancelled: Literal["generated", "full"] = "generated"
    """cancelled calls pay generated tokens, or the whole answer"""
    read: NonNegative = 0.1
    """per token read from the cache"""
    write_5m: NonNegative = 1.25
    """per token written for 5 minutes"""
    write_1h: NonNegative = 2.0
    """per token written for an hour"""
    output: NonNegative = 5.0
    """per output token"""


class ContentTable(Table):
    """Content of an answer; the rest is text."""

    thinking_share: Share = 0.0
    """share of tokens, with `thinking`"""
    thinking_display: Literal["shown", "summarised", "omitted"] = "shown"
    """`summarised`: a tenth as text; `omitted`: silence and a signature"""
    undeclared_share: Share = 0.0
    """share of hidden tokens, before the answer"""
    undeclared_calls: Share = 1.0
    """share of calls with such tokens"""
    tool_share: Share = 0.0
    """share of tokens, with tools"""
    tool_pair_tokens: int = Field(16, ge=3, le=100_000)
    """tokens per key and value, sent in one burst"""
    text_blocks: int = Field(1, ge=1, le=100)
    """number of text blocks"""


class NaturalTable(Table):
    """Answers that end by themselves, before their limit."""

    share: Share = 0.0
    """share of calls"""
    tokens: Count = 50
    """median tokens"""
    sigma: Sigma = 0.0
    """lognormal sigma; 0: constant"""


class ServedTable(Table):
    """What answers say of how they were served; nothing where empty."""

    model: str = Field("", max_length=256)
    """model named instead of the requested one"""
    service_tier: str = Field("", max_length=64)
    """service tier"""
    speed: str = Field("", max_length=64)
    """speed (Anthropic)"""
    inference_geo: str = Field("", max_length=64)
    """region (Anthropic)"""
    fallback: Share = 0.0
    """share of calls that another model answers"""
    fallback_model: str = Field("fallback-model", min_length=1, max_length=256)
    """that model"""


class SearchTable(Table):
    """Web searches before the text, in the Anthropic protocol."""

    share: Share = 0.0
    """share of calls"""
    seconds: NonNegative = 1.0
    """duration; delays the text"""
    query_tokens: int = Field(4, ge=1, le=1000)
    """tokens of the tool's input, one delta each"""
    result_tokens: int = Field(0, ge=0, le=1_000_000)
    """input tokens added to the usage"""


class JobsTable(Table):
    """Calls with the header `prefer: respond-async`, answered at `/v1/jobs/ID`; and batches."""

    turnaround_s: Positive = 2.0
    """median time from submission to end"""
    turnaround_sigma: Sigma = 0.3
    """its lognormal sigma"""
    retry_after_s: int | None = Field(None, ge=0, le=86_400)
    """`retry-after` while a job is under way"""
    lost: Share = 0.0
    """share forgotten halfway: 404"""
    gone: Share = 0.0
    """share dropped at the end: 410"""
    expired: Share = 0.0
    """share that end as `expired`"""
    failed: Share = 0.0
    """share that end as `failed`"""
    kept: Count = 10_000
    """jobs kept; beyond it the oldest ended ones are dropped"""


class ResumptionTable(Table):
    """Streams that can be resumed, by event ids and `last-event-id`."""

    ids: bool = False
    """content events have ids; a call that names one gets the rest"""
    ignored: Share = 0.0
    """share of reconnections that start another answer"""
    repeated: Share = 0.0
    """share that repeat events"""
    skipped: Share = 0.0
    """share that skip events"""
    events: Count = 3
    """events repeated or skipped"""


class Simulated(Table):
    """The simulated endpoint."""

    profile: ProfileName = "fixed"
    """`fixed`: the times below; else an engine with continuous batching"""
    ttft_ms: NonNegative = 200.0
    """time to first chunk, or its median"""
    ttft_sigma: Sigma = 0.0
    """lognormal sigma; 0: constant"""
    ttft_exponential: bool = False
    """exponential with mean `ttft_ms` instead"""
    chunk_gap_ms: NonNegative = 10.0
    """time between chunks, or its median"""
    chunk_gap_sigma: Sigma = 0.0
    """lognormal sigma; 0: constant"""
    tokens_per_chunk: int = Field(1, ge=1, le=1000)
    """tokens per chunk"""
    ping_every_s: NonNegative = 0.0
    """Anthropic `ping` events; 0: none"""
    engine: EngineTable = EngineTable()
    limits: LimitsTable = LimitsTable()
    cache: CacheTable = CacheTable()
    stragglers: StragglersTable = StragglersTable()
    faults: Mapping[str, FaultTable] = {}
    gateway: GatewayTable = GatewayTable()
    billing: BillingTable = BillingTable()
    content: ContentTable = ContentTable()
    natural: NaturalTable = NaturalTable()
    served: ServedTable = ServedTable()
    search: SearchTable = SearchTable()
    jobs: JobsTable = JobsTable()
    resumption: ResumptionTable = ResumptionTable()

    @model_validator(mode="after")
    def _possible(self) -> Simulated:
        if self.profile == FIXED and self.engine != EngineTable():
            raise ValueError("`engine` needs a profile other than `fixed`, which has none")
        if self.ttft_exponential and self.ttft_sigma:
            raise ValueError("ttft_sigma does not apply with ttft_exponential")
        jobs = self.jobs
        resumed = self.resumption
        content = self.content
        shares = {
            "the shares of all `faults`": sum(fault.share for fault in self.faults.values()),
            "jobs: lost, gone, expired and failed": jobs.lost
            + jobs.gone
            + jobs.expired
            + jobs.failed,
            "resumption: ignored, repeated and skipped": resumed.ignored
            + resumed.repeated
            + resumed.skipped,
            "content: thinking_share and tool_share": content.thinking_share + content.tool_share,
        }
        for table, total in shares.items():
            if total > 1 + 1e-9:
                raise ValueError(f"{table} are more than 1 together")
        return self
