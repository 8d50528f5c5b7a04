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
# Names of an engine's series: the count of a page is the sum of what it has under them.
NAMES = {
    "vLLM": {
        "tokens": ["vllm:generation_tokens_total"],
        "calls": ["vllm:num_requests_running", "vllm:num_requests_waiting"],
        "prompt": ["vllm:prefix_cache_queries_total"],
        "cached": ["vllm:prefix_cache_hits_total"],
    },
    "llama.cpp": {
        "tokens": ["llamacpp:tokens_predicted_total"],
        "calls": ["llamacpp:requests_processing", "llamacpp:requests_deferred"],
        "prompt": ["llamacpp:prompt_tokens_cached_total", "llamacpp:prompt_tokens_total"],
        "cached": ["llamacpp:prompt_tokens_cached_total"],
    },
}


@dataclass(frozen=True, slots=True)
class TokenCount:
    """What an engine counted since its start."""

    engine: str
    tokens: int  # generated
    calls: int  # running or waiting now
    prompt: int | None = None  # tokens of prompts, those out of the cache included
    cached: int | None = None  # of these, out of the cache
    completed: int | None = None  # calls that nobody cancelled


def parse_count(page: str) -> TokenCount | None:
    """Return what an engine has counted by its page /metrics; None for a page of an unknown engine.

    Series of one name (models, replicas) are summed. Of the calls that have ended only those count that nobody cancelled.
    A series with a value that is no number makes its sum unknown.
    """
    sums: dict[str, float] = {}
    for line in page.splitlines():
        match = LINE.fullmatch(line)
        if match is None:
            continue
        name, labels, value = match.groups()
        if name == ENDED and not WHOLE.search(labels or ""):
            continue
        sums[name] = sums.get(name, 0.0) + _number(value)
    for engine, names in NAMES.items():
        tokens = _sum(sums, names["tokens"])
        calls = _sum(sums, names["calls"])
        if tokens is None or calls is None:
            continue
        prompt = _sum(sums, names["prompt"])
        cached = _sum(sums, names["cached"])
        has_prompts = prompt is not None and cached is not None
        return TokenCount(
            engine=engine,
            tokens=tokens,
            calls=calls,
            prompt=prompt if has_prompts else None,
            cached=cached if has_prompts else None,
            completed=_sum(sums, [ENDED]),
        )
    return None


def _sum(sums: Mapping[str, float], names: Sequence[str]) -> int | None:
    """Return the sum of what a page has under these names; None unless all are there, and possible."""
    total = 0.0
    for name in names:
        value = sums.get(name, math.nan)
        if not math.isfinite(value) or value < 0:
            return None
        total += value
    return round(total)


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
        self._has_cancels = any(table.cancel.share > 0 for table in traffic)
        self._has_hedges = any(table.hedge.policy != "off" for table in traffic)
        # Behind a gateway, only the number of calls that the engine completed can be used.
        self._has_gateway = scenario.has_gateway
        self._targets = _engines(scenario, cancels=self._has_cancels, hedges=self._has_hedges)
        self._has_cached_usage = False
        # Of each engine, at least one; None: not known.
        self._before: Counts | None = None
        self._after: Counts | None = None
        self._hurried = False
        self._pause = pause

    def begin(self, note: Callable[[str], None], preflight: Sequence[Mapping[str, Any]]) -> None:
        """Read the pages before the first request. The preflight shows whether the target's usage has its cached tokens."""
        self._has_cached_usage = any(call.get("cached_tokens") is not None for call in preflight)
        if self._has_cached_usage and not self._closes:
            self._targets = []
        self._before = self._at_rest(BEFORE_S, "before the first request", note)

    def end(self, note: Callable[[str], None]) -> None:
        """Read the pages after the last answer."""
        if self._before is not None:
            self._after = self._at_rest(AFTER_S, "after the last answer", note)

    def hurry(self) -> None:
        """Stop waiting."""
        self._hurried = True

    def facts(self) -> dict[str, Any]:
        """Return the entries in run.json: what the engines counted between `begin` and `end`; None or absent where it is
        not known.

        `engine_tokens`: tokens made, where users cancel, because the rows do not have those of the calls that they closed.
        `engine_cache`: prompt tokens, and those out of the cache. `engine_work`: of each target, where hedges close calls.
        Behind a gateway only the number of completed calls can be used.
        """
        facts: dict[str, Any] = {"engine_tokens": None}
        if self._before is None or self._after is None:
            return facts
        counts = list(zip(self._before, self._after, strict=True))
        if any(end.tokens < begin.tokens for begin, end in counts):
            return facts  # an engine was restarted
        begin, end = counts[0]
        if self._has_gateway:
            if begin.completed is not None and end.completed is not None:
                facts["engine_completed"] = end.completed - begin.completed
            return facts
        if len(counts) == 1 and self._has_cancels:
            facts["engine_tokens"] = {
                "engine": begin.engine,
                "before": begin.tokens,
                "after": end.tokens,
            }
        if len(counts) == 1 and (self._has_cancels or not self._has_cached_usage):
            prompt = _prompt(begin, end)
            if prompt is not None:
                facts["engine_cache"] = {"engine": begin.engine, **prompt}
        if self._has_hedges:
            facts["engine_work"] = [_work(begin, end) for begin, end in counts]
        return facts

    @property
    def _closes(self) -> bool:
        return self._has_cancels or self._has_hedges

    def _at_rest(self, patience_s: float, when: str, note: Callable[[str], None]) -> Counts | None:
        """Return the counts of every engine, as soon as none runs a call."""
        until_ns = monotonic_ns() + int(patience_s * 1e9)
        counts = []
        for target in self._targets:
            count = read(target)
            while count is not None and count.calls and self._closes:
                if self._hurried or monotonic_ns() > until_ns:
                    note(
                        f"the engine was busy for {patience_s:.0f} s {when}: its token counters are not used"
                    )
                    return None
                self._pause(POLL_S)
                count = read(target)
            if count is None:
                return None
            counts.append(count)
        return counts or None


def _engines(scenario: Scenario, *, cancels: bool, hedges: bool) -> list[Target]:
    """Return the targets whose pages are read, each address once; none unless all calls go to self-hosted ones."""
    targets = [scenario.target]
    if scenario.second_target is not None:
        # A gateway stands in front of the same engine; any other second target has its own page.
        needs_pages = cancels if scenario.has_gateway else hedges
        if not needs_pages:
            return []
        if not scenario.has_gateway:
            targets.append(scenario.second_target)
    if not all(is_self_hosted(target.url) for target in targets):
        return []
    return list({urlsplit(target.url).netloc: target for target in targets}.values())


def _prompt(begin: TokenCount, end: TokenCount) -> dict[str, int] | None:
    """Return the prompt tokens, and those out of the cache; None where the page does not have them."""
    if begin.prompt is None or end.prompt is None:
        return None
    prompt = end.prompt - begin.prompt
    cached = (end.cached or 0) - (begin.cached or 0)
    if not 0 <= cached <= prompt:
        return None
    return {"prompt": prompt, "cached": cached}


def _work(begin: TokenCount, end: TokenCount) -> dict[str, Any]:
    """Return what an engine did between the two."""
    prompt: Mapping[str, int | None] = _prompt(begin, end) or {"prompt": None, "cached": None}
    return {"engine": begin.engine, "output": end.tokens - begin.tokens, **prompt}


def read(target: Target) -> TokenCount | None:
    """Read the counters now; None without a page of a known engine."""
    parts = urlsplit(target.url)
    try:
        client = http_client(target.ca_file, _NoRedirect())
        with client.open(f"{parts.scheme}://{parts.netloc}/metrics", timeout=ANSWER_S) as answer:
            page = _read_page(answer)
    except (OSError, HTTPException, ValueError):  # many engines have no such page
        return None
    if page is None:
        return None
    return parse_count(page.decode("utf-8", errors="replace"))


def _read_page(answer: Any) -> bytes | None:
    """Return the body; None if it is too long or too slow."""
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
