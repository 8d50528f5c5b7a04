"""Prompts of a dry run: the real ones where a cache, a tool or a conversation looks at their text, else of that size.

A sized prompt has exactly the wanted tokens and costs nothing to make, so that a million requests stay possible.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from functools import lru_cache
from typing import Protocol

from tailgauge.call import CACHE_MARKS, Prompt
from tailgauge.patterns.table import Traffic, pattern_of
from tailgauge.prompts import Maker, prompt
from tailgauge.protocols.table import PROTOCOLS
from tailgauge.scenario.model import Scenario
from tailgauge.schedule.schedule import Planned, Schedule
from tailgauge.simulator.behaviours import tokens

_SAMPLE_WORDS = 1000


class PromptMaker(Protocol):
    """A maker of prompts; see `prompts.Maker.make`."""

    def make(
        self, planned: Planned, turn: int = 0, history: Sequence[tuple[str, str]] = ()
    ) -> tuple[Prompt, ...]:
        """One prompt a leg."""

    def pre_warm(self) -> Iterator[Prompt]:
        """One prompt for each prefix that is to be written before the run."""


class SizedPrompts:
    """Prompts of the wanted size."""

    def __init__(self, traffic: Traffic) -> None:
        self._sizes = pattern_of(traffic).prompt_sizes

    def make(
        self,
        planned: Planned,
        turn: int = 0,  # noqa: ARG002 - a Maker's arguments
        history: Sequence[tuple[str, str]] = (),  # noqa: ARG002
    ) -> tuple[Prompt, ...]:
        """One prompt a leg."""
        return tuple(map(_sized, self._sizes(planned.prompt_tokens)))

    def pre_warm(self) -> Iterator[Prompt]:
        """Nothing: without a prefix there is nothing to write."""
        return iter(())


def makers_of(scenario: Scenario, schedule: Schedule) -> Mapping[str, PromptMaker]:
    """The maker of the prompts of each traffic table."""
    words_per_token = _SAMPLE_WORDS / tokens.count(prompt(scenario.seed, 0, _SAMPLE_WORDS))
    marks = CACHE_MARKS in PROTOCOLS[scenario.target.protocol].offers
    read = scenario.simulated.cache.mode != "off" or schedule.blocks is not None

    def real(traffic: Traffic) -> bool:
        grows = traffic.session.turns_mean > 1 and traffic.session.grow
        return read or bool(traffic.cache or traffic.tools or traffic.prompt_file) or grows

    return {
        name: Maker(scenario.seed, traffic, name, words_per_token, marks=marks) if real(traffic) else SizedPrompts(traffic)
        for name, traffic in scenario.traffic.items()
    }  # fmt: skip


@lru_cache(maxsize=4096)
def _sized(size: int) -> Prompt:
    return Prompt.of("x" * (size * tokens.BYTES_PER_TOKEN))
