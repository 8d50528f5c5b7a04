"""What was sent, in words: an entry of the report's `traffic` as short phrases, the same on the page and in Markdown.

Rule: a phrase is said only where there is something to say; all figures are in report.json.
"""

from __future__ import annotations

from tailgauge_analysis.runfile import Json
from tailgauge_analysis.wording import count, ms, plural, share

_PLURALS = {
    "retry": "retries",
    "hedge": "hedges",
    "fallback": "fallbacks",
    "resubmit": "resubmissions",
    "poll": "polls",
}


def marks(traffic: Json) -> list[str]:
    """One kind of traffic."""
    said = [
        _attempts(traffic),
        _hedging(traffic["hedging"]),
        *_cache(traffic["cache"]),
        _chunks(traffic["chunks"]),
    ]
    if traffic["turns_max"] > 1:
        said.append(f"sessions of up to {traffic['turns_max']} turns")
    told = (
        ("first_fields", "first field seen in {}"), ("tools_ready", "tool input complete in {}"),
        ("not_streamed", "{} not streamed"), ("second_target", "{} to the second target"),
        ("slow_readers", "{} read slowly on purpose"),
    )  # fmt: skip
    said += [text.format(plural(traffic[key], "attempt")) for key, text in told if traffic[key]]
    said.append(plural(traffic["citations"], "citation") if traffic["citations"] else "")
    if traffic["phases"]:
        said.append(
            "phases (median): " + ", ".join(f"{p['name']} {ms(p['p50_ms'])} ms" for p in traffic["phases"])
        )
    return [text for text in said if text]


def _attempts(traffic: Json) -> str:
    """Attempts beyond the first, by cause."""
    by = traffic["attempts"]
    more = [
        f"{count(by[cause])} {cause if by[cause] == 1 else word}"
        for cause, word in _PLURALS.items()
        if by[cause]
    ]
    return ", ".join(more)


def _hedging(hedging: Json) -> str:
    said = []
    if hedging["hedged"]:
        said.append(
            f"{share(hedging['rate'])} of the legs hedged, {share(hedging['winner_share'])} of these won by the hedge"
        )
    if hedging["held"]:
        why = ", ".join(f"{name} {count(n)}" for name, n in hedging["held"].items())
        said.append(f"{plural(sum(hedging['held'].values()), 'hedge')} due but held: {why}")
    return "; ".join(said)


def _cache(cache: Json) -> list[str]:
    if not cache["read_tokens"] and not cache["creation_tokens"] and not cache["expected"]:
        return []
    tokens = f"{count(cache['read_tokens'])} read, {count(cache['creation_tokens'])} written, {count(cache['uncached_tokens'])} neither"
    hit = f"{share(cache['token_hit_share'])} of the input tokens read, in {plural(cache['requests_with_reads'], 'request')}"
    said = [f"cache: {hit} ({tokens})"]
    for state, seen in cache["expected"].items():
        said.append(
            f"expected {state}: {count(seen['read'])} of {plural(seen['attempts'], 'attempt')} read from the cache"
        )
    return said


def _chunks(chunks: Json) -> str:
    told = [
        f"{plural(chunks[kind], word)}"
        for kind, word in (("thinking", "thinking chunk"), ("tool_json", "tool input chunk"))
        if chunks.get(kind)
    ]
    return ", ".join(told)
