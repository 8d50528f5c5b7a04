"""A plugin whose parts raise now and then: each request, prompt, metric and section says where."""

from __future__ import annotations

from typing import Any

from tailgauge.patterns.events import Request, Steps
from tailgauge.patterns.legs import done, leg
from tailgauge.patterns.pattern import Pattern
from tailgauge.prompts.source import PromptSource
from tailgauge.rows.schema import TURNS
from tailgauge.schedule.schedule import Planned


class Raises(Pattern):
    name = "raises"
    summary = "breaks its interface in three of four requests, each in another way"

    def steps(self, request: Request) -> Steps:
        end = yield from leg(
            self.call(request.prompt, request.output_tokens), request, self.policies
        )
        which = request.request_id // TURNS % 4
        if which == 1:
            raise KeyError("which")
        if which == 2:
            yield 3
        return None if which == 3 else done(end)


class Forgets(Pattern):
    name = "forgets"
    summary = "raises before its first step"

    def steps(self, request: Request) -> Steps:
        raise RuntimeError(request.request_id)


class Mute(PromptSource):
    name = "mute"
    summary = "has a prompt for every other request only"

    def make(self, planned: Planned, use: str, tokens: int) -> str:  # noqa: ARG002 - the interface
        return "Good morning." if int(use) // TURNS % 2 else {}[use]


PATTERNS, PROMPT_SOURCES = [Raises, Forgets], [Mute]


def metrics() -> list[Any]:
    from tailgauge_analysis.metrics.metrics import NEITHER, REQUEST, Metric

    def short(steady: Any) -> list[float]:
        return [1.0]

    return [
        Metric("gone", "Gone", NEITHER, REQUEST, True, "x", "y", lambda steady: steady.nothing),
        Metric("short", "Short", NEITHER, REQUEST, True, "x", "y", short),
    ]


def sections() -> list[Any]:
    def broken(run: Any) -> Any:
        return run.nothing

    return [broken]
