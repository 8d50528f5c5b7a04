"""The page /metrics of the target's own engine: how many tokens it has made, before a run and after it.

Rule: asked only where users leave, because only then do the rows not hold what was made; at a target of one's own, never at
a provider; without a key, at the root of the target's host. The page is a stranger's: bounded, and what cannot be read is
nothing, not zero. Numbers count while nothing runs: vLLM counts as it goes, llama.cpp when a call has ended.

Source: vLLM's `v1/metrics/loggers.py`; llama.cpp's server README, `GET /metrics`.
"""

from __future__ import annotations

import math
import re
import urllib.request
from collections.abc import Callable
from dataclasses import dataclass
from http.client import HTTPException
from typing import IO, Any
from urllib.parse import urlsplit

from tailgauge.clock import monotonic_ns
from tailgauge.master.http_get import straight
from tailgauge.protocols.settings import SIMULATED
from tailgauge.protocols.table import PROVIDERS, Target
from tailgauge.scenario.model import Scenario

ANSWER_S = 5.0  # for the whole page
BEFORE_S, AFTER_S = 5.0, 60.0  # until nothing runs any more
LOOK_S = 0.2
MOST_BYTES = 4 << 20
LINE = re.compile(r"([a-z]+:\w+)(?:\{.*\})?\s+(\S+)(?:\s+\d+)?\s*")
# Tokens made; calls that run or wait.
NAMES = {
    "vLLM": ("vllm:generation_tokens_total", ("vllm:num_requests_running", "vllm:num_requests_waiting")),
    "llama.cpp": (
        "llamacpp:tokens_predicted_total", ("llamacpp:requests_processing", "llamacpp:requests_deferred"),
    ),
}  # fmt: skip


@dataclass(frozen=True, slots=True)
class Count:
    """What a page says: of which engine, tokens made since it was started, calls that it has now."""

    engine: str
    tokens: int
    calls: int


def counted(page: str) -> Count | None:
    """From the text of a page; series of one name (models, replicas) are summed. None where it is of no engine that is known."""
    sums: dict[str, float] = {}
    for line in page.splitlines():
        found = LINE.fullmatch(line)
        if found is not None:
            sums[found[1]] = sums.get(found[1], 0.0) + _number(found[2])
    for engine, (made, working) in NAMES.items():
        values = [sums.get(name, math.nan) for name in (made, *working)]
        if all(math.isfinite(value) and value >= 0 for value in values):
            return Count(engine, round(values[0]), round(sum(values[1:])))
    return None


def _number(text: str) -> float:
    try:
        return float(text)
    except ValueError:
        return math.nan


class EnginePage:
    """Asks before the first request and after the last answer; `facts` is what run.json holds. `pause` sleeps for seconds."""

    def __init__(self, scenario: Scenario, pause: Callable[[float], object]) -> None:
        leaves = any(table.cancel.share > 0 for table in scenario.traffic.values())
        alone = scenario.second_target is None and own(scenario.target.url)
        self._target = scenario.target if leaves and alone else None
        self._before: Count | None = None
        self._after: Count | None = None
        self._hurried, self._pause = False, pause

    def begin(self, note: Callable[[str], None]) -> None:
        """Before the first request."""
        self._before = self._at_rest(BEFORE_S, "before the first request", note)

    def end(self, note: Callable[[str], None]) -> None:
        """After the last answer."""
        if self._before is not None:
            self._after = self._at_rest(AFTER_S, "after the last answer", note)

    def hurry(self) -> None:
        """Wait no longer."""
        self._hurried = True

    def facts(self) -> dict[str, Any] | None:
        """None where nothing was asked, or the page could not be read both times."""
        if self._before is None or self._after is None or self._after.tokens < self._before.tokens:
            return None
        return {"engine": self._before.engine, "before": self._before.tokens, "after": self._after.tokens}

    def _at_rest(self, patience_s: float, when: str, note: Callable[[str], None]) -> Count | None:
        if self._target is None:
            return None
        until_ns = monotonic_ns() + int(patience_s * 1e9)
        while (count := read(self._target)) is not None and count.calls:
            if self._hurried or monotonic_ns() > until_ns:
                note(
                    f"the engine still worked {patience_s:.0f} s {when}: its own count of tokens is not used"
                )
                return None
            self._pause(LOOK_S)
        return count


def own(url: str) -> bool:
    """Whether a target is neither the embedded endpoint nor a provider."""
    return url != SIMULATED and urlsplit(url).hostname not in {one.host for one in PROVIDERS.values()}


def read(target: Target) -> Count | None:
    """The page now; None where there is none, or none of a known engine."""
    parts = urlsplit(target.url)
    try:
        opener = straight(target.ca_file, _Stay())
        with opener.open(f"{parts.scheme}://{parts.netloc}/metrics", timeout=ANSWER_S) as answer:
            page = _bounded(answer)
    except (OSError, HTTPException, ValueError):  # it has no such page, which is no fault
        return None
    return None if page is None else counted(page.decode("utf-8", errors="replace"))


def _bounded(answer: Any) -> bytes | None:
    """The body, if it is not too long and does not take too long."""
    until_ns, page = monotonic_ns() + int(ANSWER_S * 1e9), b""
    while piece := answer.read1(1 << 16):
        page += piece
        if len(page) > MOST_BYTES or monotonic_ns() > until_ns:
            return None
    return page


class _Stay(urllib.request.HTTPRedirectHandler):
    """Whoever sends us elsewhere has no such page."""

    def redirect_request(
        self, req: urllib.request.Request, fp: IO[bytes], code: int, msg: str, headers: Any, newurl: str
    ) -> None:
        """Follow nothing."""
