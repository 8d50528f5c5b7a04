"""The table `[traffic.NAME]` of a scenario, as far as it is the same for every pattern.

`table.Traffic` adds the table of each pattern and refuses keys that the chosen pattern does not use.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from typing import Annotated, Any, Literal

from pydantic import BeforeValidator, Field, model_validator

from tailgauge.protocols.additions import EXACT_KEYS, Body, Headers, TableAdds
from tailgauge.table import NonNegative, Positive, Share, Sigma, Table, Tokens

MAX_BREAKPOINTS = 4
SDK_RETRIES = 2


class Session(Table):
    """Conversations: arrivals are first turns; each later turn follows an answer and a think time."""

    turns_mean: Annotated[float, Field(ge=1, le=1000)] = 1.0
    """mean number of turns, geometric; 1: no sessions"""
    think_s: NonNegative = 5.0
    """median time from answer to next turn"""
    think_sigma: Sigma = 0.5
    """lognormal sigma; 0: constant"""
    grow: bool = True
    """prompts include the earlier turns and answers"""


def check_places(value: Any) -> Any:
    """Raise ValueError for too many places, or one twice."""
    if isinstance(value, (list, tuple)):
        if len(value) > MAX_BREAKPOINTS:
            limit = f"at most {MAX_BREAKPOINTS} breakpoints are possible"
            raise ValueError(f"{limit}, got {len(value)}")
        if len(set(map(str, value))) < len(value):
            raise ValueError("names a place twice")
    return value


AUTOMATIC = "automatic"
Place = Literal["tools", "system", "few_shot", "last", "automatic"]
Places = Annotated[tuple[Place, ...], Field(strict=False), BeforeValidator(check_places)]


@dataclass(frozen=True, slots=True)
class Marks:
    """Which marks of a cache table are sent, and how.

    `default_ttl`: their life where the table names none. `key`: the name of the prefix that is sent beside them: a text, or
    empty for one made of the prefix; None: none.
    """

    places: frozenset[str] = frozenset({"tools", "system", "few_shot", "last", AUTOMATIC})
    default_ttl: str = "5m"
    key: str | None = None

    def ttl(self, cache: Cache) -> str:
        """Return the life of the marks of a table."""
        return cache.ttl or self.default_ttl


ALL_MARKS = Marks()
NO_MARKS = Marks(frozenset())


class Cache(Table):
    """A shared prompt prefix, for prompt caching; required by the pattern `cached`."""

    prefixes: Annotated[int, Field(ge=1, le=100_000)] = 1
    """different prefixes"""
    zipf: Annotated[float, Field(ge=0, le=5)] = 0.0
    """popularity of the k-th prefix is k^-zipf; 0: uniform"""
    tools: Annotated[int, Field(ge=0, le=100)] = 0
    """tool definitions in the prefix"""
    tools_tokens: Tokens = 400
    """approximate tokens of all tools"""
    system_tokens: Annotated[int, Field(ge=0, le=10_000_000)] = 0
    """tokens of the system prompt"""
    few_shot: Annotated[int, Field(ge=0, le=1000)] = 0
    """example exchanges"""
    few_shot_tokens: Tokens = 100
    """tokens per example"""
    breakpoints: Places = ("system",)
    """at most 4 marks, after `tools`, `system`, `few_shot`, the `last` message; `automatic`: set by the target; `[]`: none, for engines"""
    ttl: Literal["5m", "30m", "1h", "12h"] | None = None
    """lifetime of marks; Anthropic: `5m` (default), `1h`; OpenAI: `30m` (default), `12h`"""
    prompt_cache_key: str | None = None
    """OpenAI: routing key; empty: none; default one per prefix, with marks at the provider"""
    diagnostics: bool | None = None
    """Anthropic: ask for the reason of misses; default at the provider"""
    volatile: Literal["none", "front", "marked"] = "none"
    """a mistake: volatile text before the prefix, or within the marked part"""
    cold: bool = False
    """prompts start with unique bytes: no cache reads"""
    pre_warm: bool = False
    """write each prefix before the run"""

    @model_validator(mode="after")
    def _check(self) -> Cache:
        """Return the table; raise ValueError for marks at parts that are empty, and for settings that exclude each other."""
        sizes = (
            ("tools", "tools", self.tools),
            ("system", "system_tokens", self.system_tokens),
            ("few_shot", "few_shot", self.few_shot),
        )
        for place, key, size in sizes:
            if place in self.breakpoints and not size:
                cause = f"breakpoints names {place!r}, but there is none"
                raise ValueError(f"{cause}: set {key}, or leave it out")
        # Without a prefix only marks at the end of the whole prompt have something to mark.
        if not self.prefix_tokens and not {"last", AUTOMATIC} & set(self.breakpoints):
            raise ValueError("the prefix is empty: set tools, system_tokens or few_shot")
        if self.volatile != "none" and not self.prefix_tokens:
            raise ValueError("volatile needs a prefix: set tools, system_tokens or few_shot")
        if self.volatile == "marked" and not set(self.breakpoints) - {"last", AUTOMATIC}:
            places = "the tools, the system prompt or the examples"
            raise ValueError(f"volatile = 'marked' needs a mark after {places}")
        if self.cold and (self.volatile != "none" or self.pre_warm):
            raise ValueError(
                "cold: nothing can be read from a cache: leave out volatile and pre_warm"
            )
        return self

    @property
    def prefix_tokens(self) -> int:
        """Return the tokens of the shared prefix, about."""
        tools_tokens = self.tools_tokens if self.tools else 0
        return tools_tokens + self.system_tokens + self.few_shot * self.few_shot_tokens


class Retry(Table):
    """What happens after 408, 409, 429, an overload, a server error or a lost connection."""

    policy: Literal["none", "polite", "naive", "sdk"] = "none"
    """`none`; `polite`: after `retry-after` plus jitter, with budget and deadline; `naive`: at once, ignoring the target; `sdk`: as the official SDK"""
    max_retries: Annotated[int, Field(ge=0, le=100)] = 3
    """most retries per call; default with `sdk` 2"""
    base_s: Positive = 0.5
    """`polite`: retry n has jitter up to this times 2^n"""
    cap_s: Positive = 8.0
    """`polite`: largest jitter"""
    budget_share: Share = 0.1
    """`polite`: retries per call; 1: practically no budget"""
    budget_burst: Annotated[float, Field(ge=1, le=1_000_000)] = 10.0
    """`polite`: retries that can accumulate"""
    deadline_s: Positive = 60.0
    """`polite`: latest start of a retry, since scheduled"""
    naive_wait_s: NonNegative = 0.1
    """`naive`: wait before a retry"""

    @model_validator(mode="before")
    @classmethod
    def _as_the_sdk(cls, table: Any) -> Any:
        if isinstance(table, Mapping) and table.get("policy") == "sdk":
            return {"max_retries": SDK_RETRIES, **table}
        return table


class Hedge(Table):
    """A second attempt of a call without content; the first with content wins."""

    policy: Literal["off", "fixed", "adaptive", "single_r", "immediate"] = "off"
    """`off`; `fixed`: after `delay_ms`; `adaptive`: after the `quantile` of recent TTFTs; `single_r`: `fixed`, with `probability`; `immediate`: at the start"""
    delay_ms: NonNegative = 1000.0
    """since sent; `adaptive`: until `warm_up` TTFTs are known"""
    quantile: Annotated[float, Field(gt=0, lt=1)] = 0.95
    """`adaptive`: of recent TTFTs"""
    window_s: Positive = 30.0
    """`adaptive`: length of a window; the last two count"""
    warm_up: Annotated[int, Field(ge=1, le=1_000_000)] = 20
    """`adaptive`: TTFTs needed"""
    probability: Share = 0.5
    """`single_r`: of a hedge"""
    budget_share: Share = 0.1
    """hedges per call; 1: no budget"""
    budget_burst: Annotated[float, Field(ge=1, le=1_000_000)] = 10.0
    """hedges that can accumulate"""
    throttle_tokens: Annotated[float, Field(ge=0, le=1_000_000)] = 10.0
    """each failure takes one, hedges stop at half; 0: no throttle"""
    throttle_ratio: Annotated[float, Field(gt=0, le=1)] = 0.1
    """tokens that a success returns"""
    target: Literal["main", "second"] = "main"
    """target of the hedge"""


class Fallback(Table):
    """A call to another model if the first fails or has no content within `after_s`."""

    after_s: Positive | None = None
    """wait for content; without it no fallback"""
    model: str | None = Field(None, min_length=1)
    """its model; default the target's"""
    target: Literal["main", "second"] = "main"
    """its target"""


class Cancel(Table):
    """Users who leave, or resubmit."""

    share: Share = 0.0
    """share of requests cancelled"""
    after_chunks: Annotated[int, Field(ge=1, le=1_000_000)] | None = None
    """content chunks before the cancel"""
    after_s: Positive | None = None
    """or time since sent"""
    resubmit: bool = False
    """resubmit the call at once"""

    @model_validator(mode="after")
    def _when(self) -> Cancel:
        if self.share > 0 and self.after_chunks is None and self.after_s is None:
            raise ValueError(
                "share is set, but not the time of the cancel: set after_chunks or after_s"
            )
        return self


class Reader(Table):
    """A slow reader: unread bytes exert back pressure on the target."""

    bytes_per_s: Positive | None = None
    """reading speed; default unlimited"""


Column = Literal[
    "prompt",
    "prompt_tokens",
    "output_tokens",
    "name",
    "tags",
    "messages",
    "system",
    "tools",
    "conversations",
]


class Prompts(Table):
    """Where prompts come from; see `tailgauge docs prompts`."""

    source: str | None = Field(
        None,
        description="`generated` by the seed, `trace` blocks or `file` rows; default what there is",
    )
    file: str | None = None
    """JSONL, JSON or CSV file, also .gz; a prompt or a size per row"""
    columns: Mapping[Column, str] = Field({})
    """names of columns, as { prompt = "question" }; others are ignored"""
    order: Literal["file", "shuffled"] = "file"
    """`shuffled`: by the seed"""
    at_end: Literal["repeat", "stop"] = "repeat"
    """after the last row: `repeat` all, or `stop` arrivals"""

    @property
    def is_generated(self) -> bool:
        """Whether none but seeded words are asked."""
        return self.source == "generated" or (self.source in {None, "trace"} and self.file is None)


class TrafficSettings(Table):
    """One kind of request. Several tables make a mix."""

    pattern: str = Field("streaming", description="traffic pattern")
    weight: Positive = 1.0
    """relative share of arrivals; 0: off"""
    prompt_tokens: Tokens = 200
    """prompt size without shared prefix; exact with the engine's tokenizer, else estimated"""
    prompt_sigma: Sigma = 0.0
    """lognormal sigma; 0: constant"""
    output_tokens: Tokens = 50
    """`max_tokens` of the request"""
    output_sigma: Sigma = 0.0
    """lognormal sigma; 0: constant"""
    tags: Mapping[str, str] = Field({})
    """groups in the report, such as tenant"""
    model: str | None = Field(None, min_length=1)
    """default the target's"""
    target: Literal["main", "second"] = "main"
    """[target] or [second_target]"""
    stream: bool = True
    """`false`: non-streamed answers, the control"""
    thinking: Literal["off", "adaptive", "enabled"] = "off"
    """extended thinking"""
    thinking_tokens: Tokens = 1024
    """thinking budget with `enabled`"""
    tools: Annotated[int, Field(ge=0, le=100)] = 0
    """tools offered; the model must use one"""
    prompts: Prompts = Prompts()
    headers: Headers = Field({})
    """headers, over the target's"""
    body: Body = Field({})
    """fields of the JSON body, over the target's"""
    output: Literal["exact"] | None = None
    """`exact`: the engine generates exactly `output_tokens`; default: the model ends"""
    ends: Literal["limit", "natural"] = "limit"
    """an answer that ends at `output_tokens` is cut (`natural`) or complete (`limit`)"""
    session: Session = Session()
    cache: Cache | None = Field(None)
    retry: Retry = Retry()
    hedge: Hedge = Hedge()
    fallback: Fallback = Fallback()
    cancel: Cancel = Cancel()
    reader: Reader = Reader()

    @property
    def adds(self) -> TableAdds:
        """Return what is added to the calls."""
        has_sessions = self.session.turns_mean > 1
        return TableAdds(self.headers, self.body, has_sessions, self.output == "exact")

    def check(self) -> None:
        """Raise ValueError for settings that exclude each other, whatever the pattern."""
        self._check_cache()
        if self.thinking == "enabled" and self.thinking_tokens >= self.output_tokens:
            limit = f"less than output_tokens ({self.output_tokens})"
            raise ValueError(f"thinking_tokens: expected {limit}, got {self.thinking_tokens}")
        if self.output == "exact":
            self._check_exact_output()
        is_given_up = self.fallback.after_s is not None or self.cancel.share > 0
        if self.hedge.policy != "off" and is_given_up:
            raise ValueError("hedge: cannot be combined with fallback or cancel")

    def _check_cache(self) -> None:
        cache = self.cache
        if cache is None or not cache.pre_warm or "few_shot" not in cache.breakpoints:
            return
        if self.thinking != "off" or self.tools > 0:
            raise ValueError(
                "cache.pre_warm: with thinking or tools, the calls before the run do not write "
                "the cache entry of a mark at few_shot: mark tools or system instead"
            )

    def _check_exact_output(self) -> None:
        if self.tools:
            cause = "an answer that uses a tool ends with the tool call"
            raise ValueError(f"output: {cause}: leave out `exact` or tools")
        keys = self.body.keys() & EXACT_KEYS
        if keys:
            raise ValueError(f"body.{min(keys)}: output = 'exact' sets it: leave out one of them")
        if self.ends == "natural":
            cause = "output = 'exact' ends each answer at output_tokens"
            raise ValueError(f"ends: {cause}: leave out one of them")
