"""The table `[traffic.NAME]` of a scenario, as far as it is the same for every pattern.

`table.Traffic` adds the table of each pattern and refuses keys that the chosen pattern does not use.
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import Annotated, Any, Literal

from pydantic import Field, field_validator, model_validator

from tailgauge.table import NonNegative, Positive, Share, Sigma, Table, Tokens

MAX_BREAKPOINTS = 4


class Session(Table):
    """Conversations: an arrival is the first turn; each later one follows the answer before it, after a think time."""

    turns_mean: Annotated[float, Field(ge=1, le=1000)] = Field(
        1.0, description="mean number of turns, geometric; 1: no sessions"
    )
    think_s: NonNegative = Field(
        5.0, description="median time from the end of an answer to the user's next turn"
    )
    think_sigma: Sigma = Field(0.5, description="0: constant; else sigma of a lognormal")
    grow: bool = Field(True, description="each turn's prompt carries the turns and answers before it")


class Cache(Table):
    """A prompt prefix that requests share, for prompt caching; the pattern `cached` needs it, others may have it."""

    prefixes: Annotated[int, Field(ge=1, le=100_000)] = Field(1, description="different prefixes in use")
    zipf: Annotated[float, Field(ge=0, le=5)] = Field(
        0.0, description="popularity of the k-th prefix is k to the power of minus this; 0: all alike"
    )
    tools: Annotated[int, Field(ge=0, le=100)] = Field(0, description="tool definitions in the prefix")
    tools_tokens: Tokens = Field(400, description="tokens of all of them together, about")
    system_tokens: Annotated[int, Field(ge=0, le=10_000_000)] = Field(
        0, description="tokens of the system prompt"
    )
    few_shot: Annotated[int, Field(ge=0, le=1000)] = Field(
        0, description="example exchanges in front of the question"
    )
    few_shot_tokens: Tokens = Field(100, description="tokens of one example exchange")
    breakpoints: Annotated[
        tuple[Literal["tools", "system", "few_shot", "last"], ...], Field(strict=False)
    ] = Field(
        ("system",),
        description="where cache marks stand, at most 4: after `tools`, `system`, `few_shot` and the `last` message; `[]` for engines that cache by themselves. Only the Anthropic protocol has marks",
    )
    ttl: Literal["5m", "1h"] = Field("5m", description="life that the marks ask for")
    volatile: Literal["none", "front", "marked"] = Field(
        "none",
        description="a mistake to study: `front`: something that changes stands before the prefix; `marked`: it stands within the marked part",
    )
    cold: bool = Field(
        False, description="every prompt begins with bytes of its own: nothing can be read from a cache"
    )
    pre_warm: bool = Field(
        False, description="before the run, one call of no output tokens writes each prefix"
    )

    @field_validator("breakpoints", mode="before")
    @classmethod
    def _few(cls, value: Any) -> Any:
        if isinstance(value, (list, tuple)):
            if len(value) > MAX_BREAKPOINTS:
                raise ValueError(f"at most {MAX_BREAKPOINTS} breakpoints are possible, got {len(value)}")
            if len(set(map(str, value))) < len(value):
                raise ValueError("names a place twice")
        return value

    @model_validator(mode="after")
    def _there(self) -> Cache:
        sizes = {"tools": self.tools, "system": self.system_tokens, "few_shot": self.few_shot}
        for place, size in sizes.items():
            if place in self.breakpoints and not size:
                key = "system_tokens" if place == "system" else place
                raise ValueError(
                    f"breakpoints names {place!r}, but there is none: set {key}, or leave it out"
                )
        if not self.prefix_tokens and "last" not in self.breakpoints:
            raise ValueError("the prefix is empty: set tools, system_tokens or few_shot")
        if self.volatile != "none" and not self.prefix_tokens:
            raise ValueError("volatile needs a prefix: set tools, system_tokens or few_shot")
        if self.volatile == "marked" and not set(self.breakpoints) - {"last"}:
            raise ValueError(
                "volatile = 'marked' needs a mark after the tools, the system prompt or the examples"
            )
        if self.cold and (self.volatile != "none" or self.pre_warm):
            raise ValueError("cold: nothing can be read anyway, so volatile and pre_warm have no meaning")
        return self

    @property
    def prefix_tokens(self) -> int:
        """Tokens of the shared prefix, about."""
        return (
            (self.tools_tokens if self.tools else 0)
            + self.system_tokens
            + self.few_shot * self.few_shot_tokens
        )


class Retry(Table):
    """What happens after a 429, an overload, a server error or a lost connection."""

    policy: Literal["none", "polite", "naive"] = Field(
        "none",
        description="`polite`: not before `retry-after`, jitter above it, a budget and a deadline; `naive`: at once, whatever the target says",
    )
    max_retries: Annotated[int, Field(ge=0, le=100)] = Field(3, description="retries of one call at most")
    base_s: Positive = Field(0.5, description="`polite`: jitter is up to base times 2 to the power of n")
    cap_s: Positive = Field(8.0, description="`polite`: and at most this")
    budget_share: Share = Field(
        0.1, description="`polite`: retries, relative to the calls; 1 is as good as none"
    )
    budget_burst: Annotated[float, Field(ge=1, le=1_000_000)] = Field(
        10.0, description="`polite`: retries that may be saved up"
    )
    deadline_s: Positive = Field(
        60.0, description="`polite`: no retry that could not begin within this, counted from the request"
    )
    naive_wait_s: NonNegative = Field(0.1, description="`naive`: constant wait before a retry")


class Hedge(Table):
    """A second copy of a call whose first content is late; the first to bring content wins, the other is closed."""

    policy: Literal["off", "fixed", "adaptive", "single_r", "immediate"] = Field(
        "off",
        description="`fixed`: after `delay_ms`; `adaptive`: after the `quantile` of recent TTFTs; `single_r`: after `delay_ms` with `probability`; `immediate`: at once, the control",
    )
    delay_ms: NonNegative = Field(
        1000.0, description="from sending the call; `adaptive`: until enough was seen"
    )
    quantile: Annotated[float, Field(gt=0, lt=1)] = Field(0.9, description="`adaptive`: of the TTFTs seen")
    window_s: Positive = Field(30.0, description="`adaptive`: the last two windows of this length count")
    warm_up: Annotated[int, Field(ge=1, le=1_000_000)] = Field(
        20, description="`adaptive`: TTFTs to see before"
    )
    probability: Share = Field(0.5, description="`single_r`: of a hedge when the delay is over")
    budget_share: Share = Field(0.1, description="hedges, relative to the calls; 1: no budget")
    budget_burst: Annotated[float, Field(ge=1, le=1_000_000)] = Field(
        10.0, description="hedges that may be saved up"
    )
    throttle_tokens: Annotated[float, Field(ge=0, le=1_000_000)] = Field(
        10.0, description="failures take one each, hedges stop at half; 0: no throttle"
    )
    throttle_ratio: Annotated[float, Field(gt=0, le=1)] = Field(
        0.1, description="what a success gives back to the throttle"
    )
    target: Literal["main", "second"] = Field("main", description="where the copy goes")


class Fallback(Table):
    """Another model when the first is late: no content within `after_s`, or a failure."""

    after_s: Positive | None = Field(None, description="patience; without a value there is no fallback")
    model: str | None = Field(
        None, min_length=1, description="model of the second call; default the target's"
    )
    target: Literal["main", "second"] = Field("main", description="where the second call goes")


class Cancel(Table):
    """Users who leave before the end: by closing the page, or by asking again."""

    share: Share = Field(0.0, description="share of the requests that are given up")
    after_chunks: Annotated[int, Field(ge=1, le=1_000_000)] | None = Field(
        None, description="after so many content chunks"
    )
    after_s: Positive | None = Field(None, description="or after so many seconds from sending")
    resubmit: bool = Field(False, description="and send the same again at once")

    @model_validator(mode="after")
    def _when(self) -> Cancel:
        if self.share > 0 and self.after_chunks is None and self.after_s is None:
            raise ValueError("share is given, but not when: set after_chunks or after_s")
        return self


class Reader(Table):
    """A reader slower than the stream: what waits in the socket presses back on the target."""

    bytes_per_s: Positive | None = Field(None, description="reading speed; default as fast as it comes")


class TrafficSettings(Table):
    """One kind of request. Several tables make a mix."""

    pattern: str = Field("streaming", description="traffic pattern")
    weight: Positive = Field(1.0, description="share of the arrivals, relative to the other tables")
    prompt_tokens: Tokens = Field(200, description="prompt size asked for, without a shared prefix")
    prompt_sigma: Sigma = Field(
        0.0, description="0: every prompt has that size; else lognormal with this sigma and that median"
    )
    output_tokens: Tokens = Field(50, description="`max_tokens` of the request")
    output_sigma: Sigma = Field(0.0, description="the same for the output")
    prompt_file: str | None = Field(
        None,
        description="JSONL file with one prompt or size a line instead; used in turn, see docs/traffic.md",
    )
    tags: Mapping[str, str] = Field({}, description="what the report groups by, as tenant or query type")
    model: str | None = Field(None, min_length=1, description="model of these requests; default the target's")
    stream: bool = Field(True, description="`false`: the whole answer at once, the control")
    thinking: Literal["off", "adaptive", "enabled"] = Field(
        "off", description="extended thinking, as the protocol names it"
    )
    thinking_tokens: Tokens = Field(1024, description="`enabled`: budget of the thinking")
    tools: Annotated[int, Field(ge=0, le=100)] = Field(
        0, description="tools offered to the model, which must use one"
    )
    session: Session = Session()
    cache: Cache | None = Field(None)
    retry: Retry = Retry()
    hedge: Hedge = Hedge()
    fallback: Fallback = Fallback()
    cancel: Cancel = Cancel()
    reader: Reader = Reader()

    def check(self) -> None:
        """Raise ValueError for settings that exclude each other, whatever the pattern."""
        cache, answer_differs = self.cache, self.thinking != "off" or self.tools > 0
        if answer_differs and cache is not None and cache.pre_warm and "few_shot" in cache.breakpoints:
            raise ValueError(
                "cache.pre_warm: a mark at few_shot is another entry for answers that think or use tools, which the calls before the run do not: mark tools or system instead"
            )
        if self.thinking == "enabled" and self.thinking_tokens >= self.output_tokens:
            raise ValueError(
                f"thinking_tokens: {self.thinking_tokens} must be less than output_tokens ({self.output_tokens}), of which they are a part"
            )
        if self.hedge.policy != "off" and (self.fallback.after_s is not None or self.cancel.share > 0):
            raise ValueError("hedge: cannot be combined with fallback or cancel")
