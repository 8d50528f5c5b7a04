"""The table `[simulated]` of a scenario: how the simulated endpoint behaves, and which behaviours are on.

Rule: values, bounds and meanings only, no behaviour: `simulator.configure` turns them into the endpoint's settings.
Every behaviour is off by default, so that a scenario switches on what it is about.
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import Annotated, Literal

from pydantic import Field, model_validator

from tailgauge.table import Count, NonNegative, Positive, Share, Sigma, Table

FIXED = "fixed"
ProfileName = Literal[
    "fixed", "tiny", "haiku", "sonnet", "opus", "llama3-8b-h100", "llama2-70b-h100-tp8",
    "llama2-70b-h100-tp4", "llama2-70b-a100-tp8",
]  # fmt: skip


class EngineTable(Table):
    """Values of the profile's engine to replace; see docs/simulator.md. Not with the profile `fixed`."""

    replicas: Annotated[int, Field(ge=1, le=1000)] | None = Field(
        None, description="model servers behind the router"
    )
    router: Literal["random", "least_loaded", "prefix_affinity", "hash"] | None = Field(
        None, description="which replica a call goes to"
    )
    slots: Count | None = Field(None, description="calls in service at once, on each replica")
    queue_cap: Annotated[int, Field(ge=0, le=1_000_000)] | None = Field(
        None, description="calls that may wait, on each replica; one more is refused as overloaded"
    )
    token_budget: Count | None = Field(None, description="tokens of one step, prompts and answers together")
    prefill_first: bool | None = Field(None, description="whole prompts before any answer goes on")
    kv_blocks: Count | None = Field(None, description="memory of each replica, in blocks")
    block_tokens: Annotated[int, Field(ge=1, le=4096)] | None = Field(None, description="tokens of a block")
    reservation: Literal["growth", "full"] | None = Field(
        None, description="blocks taken as the context grows, or all at admission"
    )
    step_ms: Positive | None = Field(None, description="fixed part of a step's length")
    overhead_ms: NonNegative | None = Field(
        None, description="median delay before a call reaches its replica"
    )
    overhead_sigma: Sigma | None = Field(None, description="sigma of that delay's logarithm")
    draft_law: Literal["none", "fixed", "binomial", "geometric"] | None = Field(
        None, description="tokens that a step yields: one, or more by speculative decoding"
    )
    draft_tokens: Annotated[int, Field(ge=0, le=64)] | None = Field(None, description="drafts of a step")
    draft_accept: Share | None = Field(None, description="probability that a draft is accepted")
    cancel_mode: Literal["immediate", "next_step", "after_ms", "never"] | None = Field(
        None, description="when the engine stops a call whose client has left"
    )
    cancel_after_ms: NonNegative | None = Field(None, description="how much later it stops with `after_ms`")


class LimitsTable(Table):
    """Rate limits, token buckets per minute; each is off where it has no value."""

    rpm: Count | None = Field(None, description="requests a minute")
    itpm: Count | None = Field(None, description="input tokens a minute, cache reads not counted")
    otpm: Count | None = Field(None, description="output tokens a minute")
    burst: Count | None = Field(None, description="requests at once; default a minute's worth, of `tiny` 6 s")
    itpm_burst: Count | None = Field(
        None, description="input tokens at once; default a minute's worth, of `tiny` 6 s"
    )
    otpm_burst: Count | None = Field(
        None, description="output tokens at once; default a minute's worth, of `tiny` 6 s"
    )
    otpm_mode: Literal["actual", "reserve"] = Field(
        "actual",
        description="output counts as it is produced, or `max_tokens` at the start, corrected at the end",
    )
    reads_count: bool = Field(False, description="cache reads count as input too")
    ramp_growth: NonNegative = Field(
        0.0,
        description="requests admitted in a window at most, relative to the window before; 0: no such limit",
    )
    ramp_window_s: Positive = Field(60.0, description="length of these windows")
    ramp_floor: Count = Field(100, description="requests a window that are never refused for growth")
    spend: Positive | None = Field(
        None, description="purse, in prices of one input token; empty, every call is refused"
    )


class CacheTable(Table):
    """The prefix cache."""

    mode: Literal["off", "marked", "automatic"] = Field(
        "off", description="`marked`: at `cache_control` marks; `automatic`: every whole block"
    )
    minimum_tokens: Annotated[int, Field(ge=0, le=1_000_000)] = Field(
        1024, description="shorter prefixes are not cached"
    )
    block_tokens: Annotated[int, Field(ge=1, le=4096)] = Field(16, description="tokens of an automatic block")
    ttl_5m_s: Positive = Field(300.0, description="life of an entry marked `5m`")
    ttl_1h_s: Positive = Field(3600.0, description="life of an entry marked `1h`")
    automatic_ttl_s: Positive = Field(1e9, description="life of an automatic block")
    sliding: bool = Field(True, description="a read begins an entry's life anew")
    lookback: Annotated[int, Field(ge=1, le=10_000)] = Field(
        20, description="positions looked at from a mark"
    )
    visibility_delay_s: NonNegative = Field(
        0.0, description="from the beginning of the response that writes to the first read"
    )
    per_replica: bool = Field(False, description="each replica knows its own calls only")
    route_miss_prob: Share = Field(0.0, description="share of calls that meet a machine without the cache")
    capacity_tokens: Count = Field(50_000_000, description="room, per replica or of all together")


class StragglersTable(Table):
    """Why one call is slower than another."""

    size_sigma: Sigma = Field(0.0, description="sigma of the logarithm of a prompt's own factor")
    slow_share: Share = Field(0.0, description="share of (prompt, replica) pairs that are slow")
    slow_factor: Annotated[float, Field(ge=1, le=1000)] = Field(10.0, description="how many times slower")
    pareto_alpha: Annotated[float, Field(ge=0, le=100)] = Field(
        0.0, description="index of a Pareto factor instead; 0: off"
    )
    brownout_factor: Annotated[float, Field(ge=1, le=1000)] = Field(
        1.0, description="how many times slower a replica is in its bad minutes; 1: off"
    )
    brownout_on_s: Positive = Field(5.0, description="length of a bad time")
    brownout_off_s: Positive = Field(55.0, description="mean time between two")


class FaultTable(Table):
    """One kind of fault; a call meets one at most."""

    kind: Literal["status", "error_event", "cut", "reset", "stall", "slow_headers", "early_headers"] = Field(
        description="an error instead of a stream, an error within, an end without the end mark, ..."
    )
    share: Share = Field(description="share of the calls that meet it")
    at_chunk: Annotated[int, Field(ge=0, le=1_000_000)] = Field(0, description="chunks that leave unharmed")
    seconds: NonNegative = Field(0.0, description="length of a stall, lateness of slow headers")
    status: Annotated[int, Field(ge=400, le=599)] = Field(529, description="HTTP status of an error")
    retry_after_s: Annotated[int, Field(ge=0, le=86_400)] | None = Field(
        None, description="`retry-after` of a status"
    )


class ProxyTable(Table):
    """A proxy that holds bytes back, in front of the endpoint."""

    buffer_bytes: Annotated[int, Field(ge=0, le=1_000_000_000)] = Field(
        0, description="passes on as many bytes together; 0: off"
    )
    buffer_ms: NonNegative = Field(0.0, description="passes on that long after the first byte held; 0: off")
    buffer_all: bool = Field(False, description="passes on nothing before the response ends")


class BillingTable(Table):
    """Prices relative to one input token, and what a call whose client left is billed for."""

    bill_cancelled: Literal["generated", "full"] = Field(
        "generated", description="the tokens generated, or the whole answer"
    )
    read: NonNegative = Field(0.1, description="price of a token read from the cache")
    write_5m: NonNegative = Field(1.25, description="price of a token written for 5 minutes")
    write_1h: NonNegative = Field(2.0, description="price of a token written for an hour")
    output: NonNegative = Field(5.0, description="price of a token of output")


class ContentTable(Table):
    """What an answer consists of; what is left over is text."""

    thinking_share: Share = Field(0.0, description="share of the tokens, for requests that give `thinking`")
    thinking_display: Literal["shown", "omitted"] = Field(
        "shown", description="`omitted`: a long silence and a signature"
    )
    tool_share: Share = Field(0.0, description="share of the tokens, for requests that give tools")
    tool_pair_tokens: Annotated[int, Field(ge=3, le=100_000)] = Field(
        16, description="tokens of a key and its value, which leave in one burst"
    )
    text_blocks: Annotated[int, Field(ge=1, le=100)] = Field(1, description="text blocks that share the rest")


class Simulated(Table):
    """The simulated endpoint, when the target is `simulated`."""

    profile: ProfileName = Field(
        "fixed", description="`fixed`: the times below; else an engine that serves all calls together"
    )
    ttft_ms: NonNegative = Field(
        200.0, description="time to the first chunk: its value, or its median if lognormal"
    )
    ttft_sigma: Sigma = Field(0.0, description="0: constant; else sigma of a lognormal")
    ttft_exponential: bool = Field(False, description="an exponential instead, `ttft_ms` its mean")
    chunk_gap_ms: NonNegative = Field(
        10.0, description="time between chunks: its value, or its median if lognormal"
    )
    chunk_gap_sigma: Sigma = Field(0.0, description="0: constant; else sigma of a lognormal")
    tokens_per_chunk: int = Field(1, ge=1, le=1000, description="tokens carried by each chunk")
    ping_every_s: NonNegative = Field(0.0, description="`ping` events of the Anthropic stream; 0: none")
    engine: EngineTable = EngineTable()
    limits: LimitsTable = LimitsTable()
    cache: CacheTable = CacheTable()
    stragglers: StragglersTable = StragglersTable()
    faults: Mapping[str, FaultTable] = Field({})
    proxy: ProxyTable = ProxyTable()
    billing: BillingTable = BillingTable()
    content: ContentTable = ContentTable()

    @model_validator(mode="after")
    def _possible(self) -> Simulated:
        if self.profile == FIXED and self.engine != EngineTable():
            raise ValueError("`engine` needs a profile other than `fixed`, which has none")
        if self.ttft_exponential and self.ttft_sigma:
            raise ValueError("ttft_sigma has no meaning with ttft_exponential")
        if sum(fault.share for fault in self.faults.values()) > 1 + 1e-9:
            raise ValueError("the shares of all `faults` are more than 1 together")
        content = self.content
        if content.thinking_share + content.tool_share > 1:
            raise ValueError("content: thinking_share and tool_share are more than 1 together")
        return self
