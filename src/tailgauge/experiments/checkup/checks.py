"""Every check: the problem that it finds, what is allowed, what its gain is a share of, and what to change.

One row per check, in the order in which an engineer reads them. `change` is an instruction that somebody can carry out.
Gains of different kinds are not compared: findings are in the order of GAINS, and by gain within one kind.
"""

from __future__ import annotations

import math
from collections.abc import Mapping
from dataclasses import dataclass

LATENCY = "the latency"
COST = "the cost"
REQUESTS = "the requests"
NOTHING = "nothing that is counted here"
# The least gain of a problem, by the low end of its interval: requests that fail count from one in 200.
LEAST_GAINS = {REQUESTS: 0.005, LATENCY: 0.05, COST: 0.05, NOTHING: math.inf}
GAINS = tuple(LEAST_GAINS)


@dataclass(frozen=True, slots=True)
class Check:
    """A row; `allowed`: the largest share, or ratio of medians. `text` says it to a reader."""

    probe: str
    problem: str
    allowed: float
    gain_of: str
    change: str
    text: str = "{} of the calls"
    experiment: str = ""
    """the kind that measures more, whose command stands behind the change"""

    @property
    def allowed_text(self) -> str:
        """Return `5% of the requests`."""
        return self.text.format(f"{self.allowed:.0%}")


CHECKS: Mapping[str, Check] = {
    "first_content": Check(
        "light",
        "the first content is late at ordinary load",
        0.5,
        LATENCY,
        "shorten prompts, cache their prefix, or choose a faster model or region",
        text="a median within first_ms",
    ),
    "pace": Check(
        "light",
        "answers are generated more slowly than tokens_per_s",
        0.5,
        LATENCY,
        "choose a faster model, request shorter answers, or reduce the load on each replica",
        text="{} of the answers slower",
    ),
    "tail": Check(
        "light",
        "too many requests take far longer than usual for their size",
        0.05,
        LATENCY,
        "find what the slow ones have in common: a machine, an hour, a queue; see hedging below",
        text="{} of the requests more than 3 times the median, 1% more than 5 times",
    ),
    "not_streamed": Check(
        "light",
        "answers are not streamed",
        1,
        LATENCY,
        "stream the answers that people read: stream = true",
        text="whole answers as early as the first content of streamed ones",
    ),
    "held_back": Check(
        "light",
        "streams are buffered on the path",
        0.5,
        LATENCY,
        "disable response buffering in the proxy or gateway in front of the endpoint",
        text="{} of the answers",
    ),
    "coalesced": Check(
        "light",
        "more than four tokens arrive per chunk",
        0.5,
        LATENCY,
        "flush every token: look for buffers by size or time, or request a finer stream",
        text="{} of the answers",
    ),
    "stalled": Check(
        "light",
        "streams stall for more than a second",
        0.01,
        LATENCY,
        "set an idle timeout with a retry, and ask the provider about preemption and long prefills",
        text="{} of the answers",
    ),
    "broken": Check(
        "light",
        "calls fail or streams break off",
        0.01,
        REQUESTS,
        "retry before the first content, treat answers without an end mark as failed, and check timeouts on the path",
    ),
    "idle_cut": Check(
        "light",
        "calls that are silent for some seconds are cut on the path",
        0.01,
        REQUESTS,
        "raise the idle timeout of the proxy or gateway, or send keep-alives (pings) within it",
    ),
    "refused": Check(
        "light",
        "calls are refused at today's rate",
        0.01,
        REQUESTS,
        "raise the limit, or use fewer tokens; find the limit that binds",
        experiment="headroom",
    ),
    "early_headers": Check(
        "light",
        "response headers arrive long before the first content",
        0.1,
        NOTHING,
        "let hedges, timeouts and health checks wait for the first content, not for the headers",
        text="{} of the answers",
    ),
    "connections": Check(
        "light",
        "calls open new connections",
        0.2,
        LATENCY,
        "keep connections open: one client for the whole process, and a keep-alive longer than the gaps",
    ),
    "no_cache": Check(
        "cached",
        "this endpoint shows no sign of a prefix cache",
        0.5,
        COST,
        "turn the engine's prefix cache on, or choose an endpoint that has one: prompts are as they should be",
    ),
    "unmarked": Check(
        "cached",
        "the shared prefix is neither marked nor cached automatically",
        0.5,
        COST,
        "set a cache mark at the end of what never changes",
    ),
    "below_minimum": Check(
        "cached",
        "the marked prefix is too short to be cached",
        0.05,
        COST,
        "put more that never changes before the mark, up to the model's minimum",
    ),
    "unstable": Check(
        "cached",
        "the prompt prefix changes from call to call",
        0.05,
        COST,
        "move what changes (dates, names, numbers) behind the last mark",
    ),
    "once": Check(
        "cached",
        "prefixes are not reused, not even within an hour",
        0.5,
        COST,
        "remove the mark, or let requests share a prefix",
    ),
    "expired": Check(
        "cached",
        "cache entries expire before they are reused",
        0.1,
        COST,
        "mark for an hour, or send within the lifetime; few, popular prefixes live longer",
    ),
    "unexplained": Check(
        "cached",
        "calls miss what should be in the cache",
        0.02,
        COST,
        "ask the provider about routing to machines without the prefix, and about evicted entries",
    ),
    "fan_out": Check(
        "fan_out",
        "calls of one request slow each other down",
        1.25,
        LATENCY,
        "send fewer legs at once (at_once), spread them, or get more slots",
        text="a join 25% slower than the slowest of as many single calls",
    ),
    "heavy_leg": Check(
        "light",
        "one leg keeps the others of its request waiting",
        0.5,
        LATENCY,
        "shorten that leg's prompt or answer, split it, or do not wait for it",
        text="half of the way from an even share to all requests",
    ),
    "legs_refused": Check(
        "light",
        "calls of one request are refused because they are concurrent",
        0.05,
        REQUESTS,
        "send fewer legs at once (at_once), or get a limit that admits as many together",
    ),
    "race": Check(
        "light",
        "concurrent calls of one request each write the same prefix",
        0.2,
        COST,
        "send one leg first and the others when it answers, or pre-warm the prefix",
    ),
    "per_slot": Check(
        "light",
        "concurrent calls miss a warm prefix: the cache is kept per slot or per machine",
        0.2,
        COST,
        "send calls that share a prefix to one place, one after the other, or enable routing by prefix",
    ),
    "cancel_ignored": Check(
        "cancelled",
        "the endpoint keeps generating after its client has left",
        0.1,
        COST,
        "close the connection on leaving, and pass the disconnect through every proxy; bound max_tokens until then",
        text="{} of the cancelled calls; by an engine's count, a quarter of their tokens",
    ),
    "cancel_billed": Check(
        "cancelled",
        "cancelled calls are billed for more than they generated",
        0.1,
        COST,
        "bound max_tokens, send later, and do not hedge: losing attempts are billed in full",
        text="{} of the cancelled calls",
    ),
    "queueing": Check(
        "loaded",
        "requests queue at today's rate: the first content comes later than at a quarter of it",
        1,
        LATENCY,
        "add capacity, or spread the load",
        text="a difference within threshold",
    ),
    "burst": Check(
        "loaded",
        "a short burst is refused",
        0.05,
        REQUESTS,
        "smooth the arrivals with a client-side queue, or raise the limit",
    ),
    "unrecovered": Check(
        "loaded",
        "the endpoint stays slow after a burst",
        2,
        LATENCY,
        "bound retries and queues: drop requests that are no longer awaited",
        text="a median within twice that before",
    ),
    "no_retry_after": Check(
        "loaded",
        "429s have no retry-after",
        0.1,
        REQUESTS,
        "back off with jitter and a retry budget, or get retry-after headers",
        text="{} of them",
    ),
    "early_retries": Check(
        "loaded",
        "retries are sent before retry-after has elapsed",
        0.1,
        REQUESTS,
        'wait for retry-after and add jitter: retry.policy = "polite"',
        text="{} of the retries",
    ),
}
