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
    """how the replica of a call is chosen"""
    slots: Count | None = None
    """concurrent calls per replica"""
    queue_cap: int | None = Field(None, ge=0, le=1_000_000)
    """queue length per replica, then overloaded"""
    token_budget: Count | None = None
    """tokens per step, prompts and answers together"""
    kv_blocks: Count | None = None
    """KV memory per replica, in blocks"""
    block_tokens: int | None = Field(None, ge=1, le=4096)
    """tokens of a block"""
    step_ms: Positive | None = None
    """fixed part of a step's duration"""
    overhead_ms: NonNegative | None = None
    """median delay before a call reaches its replica"""
    overhead_sigma: Sigma | None = None
    """sigma of that delay's logarithm"""
    draft_tokens: int | None = Field(None, ge=0, le=64)
    """tokens per step beyond the first, as with speculative decoding"""
    cancel_mode: CancelMode | None = None
    """when the engine stops a cancelled call"""
    cancel_after_ms: NonNegative | None = None
    """delay of the stop with `after_ms`"""


class LimitsTable(Table):
    """Rate limits, as token buckets per minute; without a value a limit is off."""

    rpm: Count | None = None
    """requests per minute"""
    itpm: Count | None = None
    """input tokens per minute, without cache reads"""
    otpm: Count | None = None
    """output tokens per minute"""
    burst: Count | None = None
    """bucket size in requests; default one minute, 6 s for `tiny`"""
    itpm_burst: Count | None = None
    """bucket size in input tokens; default one minute, 6 s for `tiny`"""
    otpm_burst: Count | None = None
    """bucket size in output tokens; default one minute, 6 s for `tiny`"""
    otpm_mode: Literal["actual", "reserve"] = "actual"
    """output is charged as generated, or as `max_tokens`, corrected at the end"""
    reads_count: bool = False
    """cache reads count as input"""
    ramp_growth: NonNegative = 0.0
    """maximum growth of requests from window to window; 0: no limit"""
    ramp_window_s: Positive = 60.0
    """length of a window"""
    ramp_floor: Count = 100
    """requests per window that are always admitted"""
    spend: Positive | None = None
    """spend limit, in prices of one input token; beyond it every call is rejected"""
    overload: bool = False
    """calls beyond a limit are rejected as overloaded"""
    in_band: bool = False
    """streams beyond a limit are rejected inside a 200"""
    headers: HeaderFamily = "provider"
    """whose limit headers a response has"""
    retry_after: RetryAfter = "seconds"
    """form of the wait in a rejection"""
    should_retry: bool | None = None
    """`x-should-retry` of a rejection; default: no such header"""


class CacheTable(Table):
    """The prefix cache."""

    mode: Literal["off", "marked", "automatic"] = "off"
    """`marked`: at cache marks; `automatic`: every whole block"""
    minimum_tokens: int | None = Field(None, ge=0, le=1_000_000)
    """minimum length of a cached prefix; default that of the model, else 1024"""
    block_tokens: int = Field(16, ge=1, le=4096)
    """tokens of an automatic block"""
    ttl_5m_s: Positive = 300.0
    """lifetime of an entry marked `5m`"""
    ttl_1h_s: Positive = 3600.0
    """lifetime of an entry marked `1h`"""
    ttl_30m_s: Positive = 1800.0
    """lifetime of an entry marked `30m` (OpenAI)"""
    ttl_12h_s: Positive = 43_200.0
    """lifetime of an entry marked `12h` (OpenAI)"""
    automatic_ttl_s: Positive = 1e9
    """lifetime of an automatic block"""
    sliding: bool = True
    """a read renews an entry's lifetime"""
    lookback: int = Field(20, ge=1, le=10_000)
    """blocks searched before a mark"""
    visibility_delay_s: NonNegative = 0.0
    """from the start of the writing response to the first possible read"""
    per_replica: bool = False
    """each replica has a separate cache"""
    route_miss_prob: Share = 0.0
    """share of calls routed to a machine without the cache"""
    capacity_tokens: Count = 50_000_000
    """capacity, per replica or shared"""

    def least_tokens(self, model: str) -> int:
        """Tokens of the shortest prefix that is cached."""
        return cached_from(model) or 1024 if self.minimum_tokens is None else self.minimum_tokens


class StragglersTable(Table):
    """Sources of slow calls."""

    size_sigma: Sigma = 0.0
    """sigma of a lognormal factor per prompt"""
    slow_share: Share = 0.0
    """share of (prompt, replica) pairs that are slow"""
    slow_factor: float = Field(10.0, ge=1, le=1000)
    """slowdown factor"""
    pareto_alpha: float = Field(0.0, ge=0, le=100)
    """index of a Pareto factor instead; 0: off"""
    brownout_factor: float = Field(1.0, ge=1, le=1000)
    """slowdown of a replica during a brownout; 1: off"""
    brownout_on_s: Positive = 5.0
    """length of a brownout"""
    brownout_off_s: Positive = 55.0
    """mean time between brownouts"""


class FaultTable(Table):
    """One kind of fault; a call has at most one."""

    kind: FaultKind
    """an error instead of a stream, an error within, an end without the end mark, a refusal, ..."""
    share: Share
    """share of the calls with this fault"""
    at_chunk: int = Field(0, ge=0, le=1_000_000)
    """chunks sent before the fault"""
    seconds: NonNegative = 0.0
    """length of a stall, delay of slow headers"""
    status: int = Field(529, ge=400, le=599)
    """HTTP status of an error, or the status that an error within a stream stands for"""
    shape: ErrorShape = "provider"
    """how an error within a stream is written: see `tailgauge docs simulator`"""
    category: RefusalCategory = "general_harms"
    """category of a refusal, in `stop_details` of the Anthropic protocol"""
    retry_after_s: int | None = Field(None, ge=0, le=86_400)
    """`retry-after` of an HTTP error"""


class GatewayTable(Table):
    """A gateway in front of the endpoint, for calls to the second target where `crossover.gateway` is set."""

    delay_ms: NonNegative = 0.0
    """time added before the endpoint gets the call, or its median"""
    delay_sigma: Sigma = 0.0
    """0: constant; else sigma of a lognormal"""
    holds: bool = False
    """holds each answer back until it ends"""


class BillingTable(Table):
    """Prices relative to one input token, and the bill of a cancelled call."""

    bill_cancelled: Literal["generated", "full"] = "generated"
    """of the generated tokens, or of the whole answer"""
    read: NonNegative = 0.1
    """price of a token read from the cache"""
    write_5m: NonNegative = 1.25
    """price of a token written for 5 minutes"""
    write_1h: NonNegative = 2.0
    """price of a token written for an hour"""
    output: NonNegative = 5.0
    """price of a token of output"""


class ContentTable(Table):
    """Content of an answer; the rest is text."""

    thinking_share: Share = 0.0
    """share of the tokens, for requests with `thinking`"""
    thinking_display: Literal["shown", "summarised", "omitted"] = "shown"
    """`summarised`: a tenth of the tokens as text; `omitted`: a long silence and a signature"""
    undeclared_share: Share = 0.0
    """share of hidden tokens, made before the answer"""
    undeclared_calls: Share = 1.0
    """share of the calls with such tokens"""
    tool_share: Share = 0.0
    """share of the tokens, for requests with tools"""
    tool_pair_tokens: int = Field(16, ge=3, le=100_000)
    """tokens of a key and its value, sent in one burst"""
    text_blocks: int = Field(1, ge=1, le=100)
    """number of text blocks"""


class NaturalTable(Table):
    """Answers that end by themselves, before their limit."""

    share: Share = 0.0
    """share of the calls"""
    tokens: Count = 50
    """median number of tokens"""
    sigma: Sigma = 0.0
    """0: constant; else sigma of a lognormal"""


class ServedTable(Table):
    """What an answer says of how it was served; nothing where a key is empty."""

    model: str = Field("", max_length=256)
    """model that answers name, instead of the requested one"""
    service_tier: str = Field("", max_length=64)
    """service tier that answers name"""
    speed: str = Field("", max_length=64)
    """speed in the usage of the Anthropic protocol"""
    inference_geo: str = Field("", max_length=64)
    """region in the usage of the Anthropic protocol"""
    fallback: Share = 0.0
    """share of the calls that another model answers"""
    fallback_model: str = Field("fallback-model", min_length=1, max_length=256)
    """that other model"""


class SearchTable(Table):
    """Web searches by a server tool before the text, in the Anthropic protocol."""

    share: Share = 0.0
    """share of the calls that search"""
    seconds: NonNegative = 1.0
    """duration of the search; the text comes that much later"""
    query_tokens: int = Field(4, ge=1, le=1000)
    """tokens of the tool's input, one delta each"""
    result_tokens: int = Field(0, ge=0, le=1_000_000)
    """input tokens that the results add to the usage"""


class JobsTable(Table):
    """Jobs: calls with the header `prefer: respond-async`, which are answered at the URL `/v1/jobs/ID`; the times of batches."""

    turnaround_s: Positive = 2.0
    """median time of a job or batch from submission to end"""
    turnaround_sigma: Sigma = 0.3
    """sigma of its logarithm"""
    retry_after_s: int | None = Field(None, ge=0, le=86_400)
    """`retry-after` while a job is under way"""
    lost: Share = 0.0
    """share of the jobs that are forgotten halfway: 404"""
    gone: Share = 0.0
    """share of the jobs that are dropped when they end: 410"""
    expired: Share = 0.0
    """share of the jobs that end as `expired`"""
    failed: Share = 0.0
    """share of the jobs that end as `failed`"""
    kept: Count = 10_000
    """jobs kept; beyond it the oldest are dropped if they have ended"""


class ResumptionTable(Table):
    """Streams that can be resumed: events with ids, and the header `last-event-id`."""

    ids: bool = False
    """each content event of a text has an id, and a call that names one gets what follows"""
    ignored: Share = 0.0
    """share of the reconnections that start another answer"""
    repeated: Share = 0.0
    """share of the reconnections that repeat events"""
    skipped: Share = 0.0
    """share of the reconnections that skip events"""
    events: Count = 3
    """events that are repeated or skipped"""


class Simulated(Table):
    """The simulated endpoint, when the target is `simulated`."""

    profile: ProfileName = "fixed"
    """`fixed`: the times below; else an engine with continuous batching"""
    ttft_ms: NonNegative = 200.0
    """time to the first chunk, or its median"""
    ttft_sigma: Sigma = 0.0
    """0: constant; else sigma of a lognormal"""
    ttft_exponential: bool = False
    """exponential with mean `ttft_ms` instead"""
    chunk_gap_ms: NonNegative = 10.0
    """time between chunks, or its median"""
    chunk_gap_sigma: Sigma = 0.0
    """0: constant; else sigma of a lognormal"""
    tokens_per_chunk: int = Field(1, ge=1, le=1000)
    """tokens per chunk"""
    ping_every_s: NonNegative = 0.0
    """`ping` events of the Anthropic stream; 0: none"""
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
