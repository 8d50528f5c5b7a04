"""Every check that there is: what it asks, what its gain is a share of, and what to change.

Rule: one line a check, in the order in which an engineer reads them; `change` is an order that somebody can carry out.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass

WAIT, COST, REQUESTS, NOTHING = "the wait", "the cost", "the requests", "nothing that is counted here"


@dataclass(frozen=True, slots=True)
class Asked:
    """A check in words. `fault` is what a finding says, `borne` what is no finding."""

    probe: str
    fault: str
    borne: str
    gain_of: str
    change: str


CHECKS: Mapping[str, Asked] = {
    "first_content": Asked(
        "light", "the first content is late at an ordinary load: an input disease", "a median within first_ms",
        WAIT, "shorten prompts, cache their prefix, or choose a faster model or region",
    ),
    "pace": Asked(
        "light", "answers flow more slowly than tokens_per_s: an output disease", "half of the answers slower",
        WAIT, "choose a faster model, ask for shorter answers, or for less load on each replica",
    ),
    "tail": Asked(
        "light", "too many requests take more than three times the median", "5% of the requests",
        WAIT, "hedge late calls, and ask the provider which machines are slow",
    ),
    "not_streamed": Asked(
        "light", "answers are not streamed", "whole answers, where they come as early as the first content of streamed ones",
        WAIT, "stream the answers: stream = true",
    ),
    "held_back": Asked(
        "light", "streams are held back on the way: an answer comes all at once, at its end", "half of the answers",
        WAIT, "switch response buffering off in the proxy or gateway in front of the endpoint",
    ),
    "coalesced": Asked(
        "light", "the text comes in lumps of more than four tokens", "half of the answers",
        WAIT, "flush every token: look for buffers by size or time, or ask for a finer stream",
    ),
    "stalled": Asked(
        "light", "streams stand still for more than a second", "1% of the answers",
        WAIT, "set an idle time-out with a retry, and ask the provider for its preemptions and long prefills",
    ),
    "broken": Asked(
        "light", "calls fail or streams break off", "1% of the calls",
        REQUESTS, "retry before the first content, mark answers without an end mark as failed, and look at time-outs on the way",
    ),
    "idle_cut": Asked(
        "light", "calls that are silent for some seconds are cut on the way", "1% of the calls",
        REQUESTS, "raise the idle time-out of the proxy or gateway, or have keep-alives (pings) sent within it",
    ),
    "refused": Asked(
        "light", "calls are refused at today's rate already", "1% of the calls",
        REQUESTS, "raise the limit, or ask for fewer tokens; tailgauge run headroom says which limit binds",
    ),
    "early_headers": Asked(
        "light", "response headers come long before the first content", "10% of the answers",
        NOTHING, "let hedges, time-outs and health checks wait for the first content, not for the headers",
    ),
    "connections": Asked(
        "light", "calls open connections of their own", "20% of the calls",
        WAIT, "keep connections open: one client for the whole process, and a keep-alive longer than the gaps",
    ),
    "unmarked": Asked(
        "cached", "the shared prefix is neither marked nor cached by itself", "half of the calls",
        COST, "set a cache mark at the end of what never changes",
    ),
    "below_minimum": Asked(
        "cached", "the marked prefix is too short to be cached", "5% of the calls",
        COST, "put more that never changes before the mark, up to the model's minimum",
    ),
    "unstable": Asked(
        "cached", "something within the prefix changes from call to call", "5% of the calls",
        COST, "move what changes (dates, names, numbers) behind the last mark",
    ),
    "once": Asked(
        "cached", "prefixes are not asked for again, not even within an hour", "half of the calls",
        COST, "leave the mark out, or let requests share a prefix",
    ),
    "expired": Asked(
        "cached", "the cache's life is shorter than the gaps of the traffic", "10% of the calls",
        COST, "mark for an hour, or ask within the life; few, popular prefixes live longer",
    ),
    "unexplained": Asked(
        "cached", "calls miss what should be in the cache", "2% of the calls",
        COST, "ask the provider: routing to machines without the prefix, or entries dropped for want of room",
    ),
    "fan_out": Asked(
        "fan_out", "calls of one request slow each other down", "a join 25% slower than the slowest of as many single calls",
        WAIT, "send fewer legs at once (at_once), spread them, or ask for more slots",
    ),
    "legs_refused": Asked(
        "fan_out", "calls of one request are refused because they come together", "5% of the calls",
        REQUESTS, "send fewer legs at once (at_once), or ask for a limit that admits as many together",
    ),
    "race": Asked(
        "fan_out", "the calls of one request write the same prefix side by side", "20% of the calls",
        COST, "send one leg first and the others when it answers, or pre-warm the prefix",
    ),
    "per_slot": Asked(
        "fan_out", "calls that come together miss a warm prefix: the cache is kept by slot or by machine, not for all", "20% of the calls",
        COST, "send calls that share a prefix to one place, one after the other, or ask for routing by prefix",
    ),
    "cancel_ignored": Asked(
        "cancelled", "the endpoint goes on when its client has left", "10% of the calls that were left; by an engine's count, a quarter of their tokens",
        COST, "close the connection on leaving, and pass the disconnect on through every proxy; bound max_tokens until then",
    ),
    "cancel_billed": Asked(
        "cancelled", "calls that were left are billed for more than they generated", "10% of the calls that were left",
        COST, "bound max_tokens, ask later, and do not hedge: losers are paid in full",
    ),
    "queueing": Asked(
        "loaded", "today's rate waits in line: the first content comes later than at a quarter of it", "a difference within threshold",
        WAIT, "add capacity, or spread the load; it is an input disease",
    ),
    "burst": Asked(
        "loaded", "a short burst is refused", "5% of the calls",
        REQUESTS, "smooth the arrivals with a queue of your own, or raise the limit",
    ),
    "unrecovered": Asked(
        "loaded", "after a burst the endpoint stays slow", "a median within twice that before",
        WAIT, "bound retries and queues: what nobody waits for any more must be dropped",
    ),
    "no_retry_after": Asked(
        "loaded", "429s do not say when to come back", "10% of them",
        REQUESTS, "back off with jitter and a budget of your own, or ask for retry-after",
    ),
    "early_retries": Asked(
        "loaded", "retries come before the time that the 429 named", "10% of the retries",
        REQUESTS, 'wait for retry-after and add jitter: retry.policy = "polite"',
    ),
}  # fmt: skip
