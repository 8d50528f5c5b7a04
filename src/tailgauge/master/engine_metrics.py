"""Token counters of self-hosted engines from their pages /metrics, before and after a run.

Read only for what the rows do not hold: tokens of calls that users or hedges closed, and cached tokens where the target's
usage does not tell. Never from a provider, without a key, at the root of the target's host. The page is untrusted and bounded;
an unreadable page is None, not zero. Tokens made are counted while the engine is idle: vLLM counts during a call,
llama.cpp at its end.

Source: vLLM's `v1/metrics/loggers.py`; llama.cpp's server README, `GET /metrics`.
"""

from __future__ import annotations

import math
import re
import urllib.request
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from http.client import HTTPException
from typing import Any
from urllib.parse import urlsplit

from tailgauge.clock import monotonic_ns
from tailgauge.master.embedded_endpoint import http_client
from tailgauge.protocols.table import Target, is_self_hosted
from tailgauge.scenario.model import Scenario

ANSWER_S = 5.0  # for the whole page
# How long to wait until the target runs nothing any more, before the run and after it.
BEFORE_S = 5.0
AFTER_S = 60.0
POLL_S = 0.2
MAX_BYTES = 4 << 20
LINE = re.compile(r"([a-z]+:\w+)(\{.*\})?\s+(\S+)(?:\s+\d+)?\s*")
ENDED = "vllm:request_success_total"
WHOLE = re.compile(r'finished_reason="(?:stop|length)"')  # of a call that nobody cancelled
# Tokens made; calls that run or wait; prompt tokens out of the cache; all of them.
NAMES = {
    "vLLM": (
        ["vllm:generation_tokens_total"], ["vllm:num_requests_running", "vllm:num_requests_waiting"],
        ["vllm:prefix_cache_hits_total"], ["vllm:prefix_cache_queries_total"],
    ),
    "llama.cpp": (
        ["llamacpp:tokens_predicted_total"], ["llamacpp:requests_processing", "llamacpp:requests_deferred"],
        ["llamacpp:prompt_tokens_cached_total"], ["llamacpp:prompt_tokens_cached_total", "llamacpp:prompt_tokens_total"],
    ),
}  # fmt: skip


@dataclass(frozen=True, slots=True)
class TokenCount:
    """Engine, tokens generated since its start, calls running or waiting; prompt tokens, and those out of its cache; calls completed."""

    engine: str
    tokens: int
    calls: int
    prompt: int | None = None
    cached: int | None = None
    completed: int | None = None


def parse_count(page: str) -> TokenCount | None:
    """The token count on a page; series of one name (models, replicas) are summed. None for an unknown engine."""
    sums: dict[str, float] = {}
    for line in page.splitlines():
        found = LINE.fullmatch(line)
        if found is not None and (found[1] != ENDED or WHOLE.search(found[2] or "")):
            sums[found[1]] = sums.get(found[1], 0.0) + _number(found[3])
    for engine, names in NAMES.items():
        made, calls, cached, prompt = (_counted(sums, each) for each in names)
        if made is not None and calls is not None:
            if prompt is None or cached is None:
                prompt = cached = None
            return TokenCount(engine, made, calls, prompt, cached, _counted(sums, [ENDED]))
    return None


def _counted(sums: Mapping[str, float], names: Sequence[str]) -> int | None:
    """The sum of what a page has under these names; None unless all are there, and possible."""
    values = [sums.get(name, math.nan) for name in names]
    return (
        round(sum(values)) if all(math.isfinite(value) and value >= 0 for value in values) else None
    )


def _number(text: str) -> float:
    try:
        return float(text)
    except ValueError:
        return math.nan


Counts = list[TokenCount]


class EngineMetrics:
    """Reads the pages before the first request and after the last answer. `pause` sleeps for seconds."""

    def __init__(self, scenario: Scenario, pause: Callable[[float], object]) -> None:
        traffic = scenario.traffic.values()
        self._cancels = any(table.cancel.share > 0 for table in traffic)
        self._hedges = any(table.hedge.policy != "off" for table in traffic)
        # Behind a gateway, only the calls that the engine completed say something.
        self._has_gateway = scenario.has_gateway
        self._targets = _engines(scenario, cancels=self._cancels, hedges=self._hedges)
        self._has_cached_usage = False
        self._before: Counts | None = None
        self._after: Counts | None = None
        self._hurried = False
        self._pause = pause

    def begin(self, note: Callable[[str], None], preflight: Sequence[Mapping[str, Any]]) -> None:
        """Before the first request. The results of the preflight show whether the target's usage has its cached tokens."""
        self._has_cached_usage = any(call.get("cached_tokens") is not None for call in preflight)
        if self._has_cached_usage and not self._closes:
            self._targets = []
        self._before = self._at_rest(BEFORE_S, "before the first request", note)

    def end(self, note: Callable[[str], None]) -> None:
        """After the last answer."""
        if self._before is not None:
            self._after = self._at_rest(AFTER_S, "after the last answer", note)

    def hurry(self) -> None:
        """Stop waiting."""
        self._hurried = True

    def facts(self) -> dict[str, Any]:
        """The entries in run.json: what was made where calls are closed; the prompt tokens, and those out of the cache."""
        if self._before is None or self._after is None:
            return {"engine_tokens": None}
        pairs = list(zip(self._before, self._after, strict=True))
        if any(after.tokens < before.tokens for before, after in pairs):
            return {"engine_tokens": None}
        before, after = pairs[0]
        if self._has_gateway:
            known = before.completed is not None and after.completed is not None
            completed = (after.completed or 0) - (before.completed or 0)
            return {"engine_tokens": None, **({"engine_completed": completed} if known else {})}
        found: dict[str, Any] = {"engine_tokens": None}
        if len(pairs) == 1 and self._cancels:
            found["engine_tokens"] = {
                "engine": before.engine,
                "before": before.tokens,
                "after": after.tokens,
            }
        if len(pairs) == 1 and (self._cancels or not self._has_cached_usage):
            prompt = _prompt(before, after)
            if prompt is not None:
                found["engine_cache"] = {"engine": before.engine, **prompt}
        if self._hedges:
            found["engine_work"] = [_work(before, after) for before, after in pairs]
        return found

    @property
    def _closes(self) -> bool:
        return self._cancels or self._hedges

    def _at_rest(self, patience_s: float, when: str, note: Callable[[str], None]) -> Counts | None:
        """Return the counts of every engine, as soon as none runs a call."""
        until_ns = monotonic_ns() + int(patience_s * 1e9)
        counts = []
        for target in self._targets:
            while (count := read(target)) is not None and count.calls and self._closes:
                if self._hurried or monotonic_ns() > until_ns:
                    note(
                        f"the engine was busy for {patience_s:.0f} s {when}: its token counters are not used"
                    )
                    return None
                self._pause(POLL_S)
            if count is None:
                return None
            counts.append(count)
        return counts or None


def _engines(scenario: Scenario, *, cancels: bool, hedges: bool) -> list[Target]:
    """Return the targets whose pages are read, each address once; none unless all calls go to self-hosted ones."""
    targets = [scenario.target]
    if scenario.second_target is not None:
        if scenario.has_gateway:
            targets = targets if cancels else []
        elif hedges:
            targets.append(scenario.second_target)
        else:
            targets = []
    if not all(is_self_hosted(target.url) for target in targets):
        return []
    return list({urlsplit(target.url).netloc: target for target in targets}.values())


def _prompt(before: TokenCount, after: TokenCount) -> dict[str, int] | None:
    """Return the prompt tokens, and those out of the cache; None where the page does not have them."""
    if before.prompt is None or after.prompt is None:
        return None
    prompt = after.prompt - before.prompt
    cached = (after.cached or 0) - (before.cached or 0)
    return {"prompt": prompt, "cached": cached} if prompt >= cached >= 0 else None


def _work(before: TokenCount, after: TokenCount) -> dict[str, Any]:
    """Return what an engine did."""
    prompt = _prompt(before, after) or dict.fromkeys(("prompt", "cached"))
    return {"engine": before.engine, "output": after.tokens - before.tokens, **prompt}


def read(target: Target) -> TokenCount | None:
    """The counters now; None without a page of a known engine."""
    parts = urlsplit(target.url)
    try:
        get = http_client(target.ca_file, _NoRedirect())
        with get.open(f"{parts.scheme}://{parts.netloc}/metrics", timeout=ANSWER_S) as answer:
            page = _bounded(answer)
    except (OSError, HTTPException, ValueError):  # many engines have no such page
        return None
    return None if page is None else parse_count(page.decode("utf-8", errors="replace"))


def _bounded(answer: Any) -> bytes | None:
    """The body; None if it is too long or too slow."""
    until_ns = monotonic_ns() + int(ANSWER_S * 1e9)
    page = b""
    while piece := answer.read1(1 << 16):
        page += piece
        if len(page) > MAX_BYTES or monotonic_ns() > until_ns:
            return None
    return page


class _NoRedirect(urllib.request.HTTPRedirectHandler):
    """A redirect counts as no page."""

    def redirect_request(self, *_: Any) -> None:
        """Follow nothing."""
