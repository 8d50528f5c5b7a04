"""What a traffic pattern is: one class, one row of the table. Its defaults are those of one streamed call."""

from __future__ import annotations

from abc import ABC, abstractmethod
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from typing import Any, ClassVar

from tailgauge import call as needs
from tailgauge.call import Call, Prompt
from tailgauge.patterns.events import Request, Steps, raising
from tailgauge.patterns.policies import Policies
from tailgauge.patterns.settings import TrafficSettings
from tailgauge.rows.schema import SINGLE
from tailgauge.table import Table


@dataclass(frozen=True, slots=True)
class Demand:
    """Calls and tokens of a number of requests, without hedges and retries."""

    calls: int
    prompts: int  # that carry the shared prefix
    input_tokens: int
    output_tokens: int
    is_bound: bool = True  # False: how many more calls follow is not known beforehand


class Pattern(ABC):
    """One traffic pattern at work for one traffic table in one worker; its requests share the policies."""

    name: ClassVar[str]
    summary: ClassVar[str]  # documents the choice in the key `pattern`
    settings_type: ClassVar[type[Table] | None] = None  # the table `[traffic.NAME.<name>]`
    uses: ClassVar[frozenset[str]] = frozenset({"retry"})  # of the keys in table.OPTIONAL
    protocol_needs: ClassVar[frozenset[str]] = frozenset()  # whatever the settings; see `needs`
    answer: ClassVar[str] = SINGLE  # what counts as the answer of a request; see rows.schema
    price_share: ClassVar[float] = 1.0  # of the list price
    adds_calls: ClassVar[str] = ""  # of which kind, where their number is not known beforehand
    # A pattern that sends the same requests, given the same settings.
    like: ClassVar[str | None] = None
    no_dry_run: ClassVar[str] = ""  # why a dry run refuses it
    dry_run_note: ClassVar[str] = ""  # what a dry run leaves out
    settings: Any

    def __init__(self, traffic: TrafficSettings) -> None:
        self.traffic = traffic
        self.policies = Policies(traffic)
        # Its steps do something at a call's first content or at its end, which must not be late.
        self.acts = True
        self.settings = getattr(traffic, self.name, None)
        self.keeps_text = traffic.session.turns_mean > 1 and traffic.session.grow

    @abstractmethod
    def steps(self, request: Request) -> Steps:
        """Yield what one request does, and return how it ended.

        Times are nanoseconds of the worker's clock, or of the dry run's; steps do no I/O and take no time but in `Wait`.
        """

    def begin(self, request: Request, failed: Exception | None = None) -> Steps:
        """Return the steps of a request. Where its prompt `failed`, or `steps` itself does, its first step raises that error."""
        if failed is not None:
            return raising(failed)
        try:
            return self.steps(request)
        except Exception as error:  # noqa: BLE001 - as if it came with the first step
            return raising(error)

    @property
    def may_begin_ahead(self) -> bool:
        """Whether its first step may be taken before it is due; a plugin's may look at the clock."""
        return type(self).steps.__module__.startswith("tailgauge.patterns.")

    def check(self) -> None:  # noqa: B027 - most patterns need nothing
        """Raise ValueError where the traffic table lacks what the pattern needs."""

    def needs(self) -> Iterator[tuple[str, str]]:
        """Yield what the calls need of the protocol, with the key of the traffic table that makes it so."""
        traffic = self.traffic
        cache = self.traffic.cache
        for need in sorted(self.protocol_needs):
            yield "pattern", need
        conditions = (
            (traffic.thinking != "off", "thinking", needs.EXTENDED_THINKING),
            (traffic.thinking == "enabled", "thinking", needs.THINKING_BUDGETS),
            (traffic.tools, "tools", needs.TOOLS),
            (traffic.output == "exact", "output", needs.EXACT_OUTPUT),
            (not traffic.stream, "stream", needs.WHOLE_ANSWERS),
            (cache is not None and cache.tools, "cache.tools", needs.TOOLS),
            (cache is not None and cache.pre_warm, "cache.pre_warm", needs.WHOLE_ANSWERS),
        )
        for is_needed, key, need in conditions:
            if is_needed:
                yield key, need

    def models(self) -> list[tuple[str, str | None]]:
        """Return target and model of every kind of call; None: the target's model."""
        traffic = self.traffic
        models: list[tuple[str, str | None]] = [(traffic.target, traffic.model)]
        if traffic.hedge.policy != "off":
            models.append((traffic.hedge.target, traffic.model))
        if traffic.fallback.after_s is not None:
            models.append((traffic.fallback.target, traffic.fallback.model))
        return models

    def prompt_sizes(self, prompt_tokens: int) -> list[int]:
        """Return the tokens of each prompt of a request for which the schedule drew `prompt_tokens`."""
        return [prompt_tokens]

    def demand(self, requests: int, input_tokens: int, output_tokens: int) -> Demand:
        """Return what so many requests need, of which the schedule plans so many tokens."""
        return Demand(requests, requests, input_tokens, output_tokens)

    def first_calls(self, prompts: Sequence[Prompt], output_tokens: int) -> tuple[list[Call], int]:
        """Return the calls with which a request begins, and how many are certain to follow them."""
        return [self.call(prompt, output_tokens) for prompt in prompts], 0

    @property
    def watches_chunks(self) -> bool:
        """Whether single chunks are waited for."""
        return self.traffic.cancel.after_chunks is not None

    @property
    def resends_answers(self) -> bool:
        """Whether a later call of a request carries the answer of an earlier one."""
        return False

    def call(self, prompt: Prompt, max_tokens: int) -> Call:
        """Return one call with this prompt."""
        traffic = self.traffic
        thinking_tokens = 0
        if traffic.thinking == "enabled":
            # The answer's limit may come from a prompt file or be drawn, and must be more than the thinking's.
            thinking_tokens = max(1, min(traffic.thinking_tokens, max_tokens - 1))
        model = traffic.model
        stream = traffic.stream
        if prompt.given is not None:
            model = prompt.given.model or model
            stream = prompt.given.stream
        return Call(
            prompt,
            max_tokens,
            model=model,
            target=traffic.target,
            stream=stream,
            thinking=traffic.thinking,
            thinking_tokens=thinking_tokens,
            use_tool=traffic.tools > 0,
            keep_text=self.keeps_text,
            bytes_per_s=traffic.reader.bytes_per_s,
            ends_naturally=traffic.ends == "natural",
        )
