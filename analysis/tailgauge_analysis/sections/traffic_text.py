"""What was sent, in words: an entry of the report's `traffic` as short phrases, the same on the page and in Markdown.

Rule: a phrase is said only where there is something to say; all figures are in report.json.
"""

from __future__ import annotations

from tailgauge_analysis.text.formatting import count, ms, plain, plural, share
from tailgauge_analysis.text.json_values import Json

BUFFERING = ": something on the way collects the stream, so that their TTFT is not the target's"
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
        _chunks(traffic["chunks"]),
    ]
    if traffic["turns_max"] > 1:
        said.append(f"up to {traffic['turns_max']} turns of a session or user")
    told = (
        ("first_fields", "first field seen in {}"), ("tools_ready", "tool input complete in {}"),
        ("not_streamed", "{} not streamed"), ("second_target", "{} to the second target"),
        ("slow_readers", "{} read slowly on purpose"),
    )  # fmt: skip
    said += [text.format(plural(traffic[key], "attempt")) for key, text in told if traffic[key]]
    said.append(plural(traffic["citations"], "citation") if traffic["citations"] else "")
    for kind, words in (("began", "phases begun, since sent"), ("took", "Server-Timing")):
        phases = [f"{p['name']} {ms(p['p50_ms'])} ms" for p in traffic["phases"] if p["kind"] == kind]
        said.append(f"{words} (median): {', '.join(phases)}" if phases else "")
    return [text for text in said if text]


def flow(contents: Json) -> list[tuple[str, str]]:
    """How the answers came: what is told, and in which words."""
    streams, good = contents["streams"], contents["goodput"]
    told = []
    if good:
        rate = f", {good['per_s']:,.3g}/s" if good["per_s"] is not None else ""
        interval = f"95% interval {share(good['low'])} to {share(good['high'])}"
        told.append(
            (
                "Goodput",
                f"{share(good['share'])} of {count(good['offered'])} offered met every objective ({interval}){rate}",
            )
        )
    for one in contents["survival_quantiles"]:
        quantiles = ", ".join(
            f"{q['label']} {ms(q['value_ms']) if q['value_is'] == 'value' else q['value_is']}"
            for q in one["quantiles"]
        )
        told.append(
            (
                f"{one['title']}, had nobody left",
                f"{quantiles} ms (Kaplan-Meier; {count(one['cut'])} of {plural(one['n'], 'wait')} cut short)",
            )
        )
    if streams["user_tokens_per_s_p50"] is not None:
        slowest = f"{ms(streams['user_tokens_per_s_p1'])} for the slowest of a hundred"
        told.append(
            ("Tokens per second, a user", f"{ms(streams['user_tokens_per_s_p50'])} in the median, {slowest}")
        )
    if streams["system_tokens_per_s"]:
        told.append(("Tokens per second, all", f"{ms(streams['system_tokens_per_s'])} over the steady stage"))
    if streams["answers"]:
        n = streams["stalls"]
        part = f", in {share(streams['stalled_share'])} of the answers" if n else ""
        told.append(("Stalls", f"{plural(n, 'chunk gap')} over 1 s and 10 times the answer's median{part}"))
        told.append(
            (
                "Fluid answers",
                f"{share(streams['fluid_share'])} keep up with a reader of 10 tokens per second",
            )
        )
        buffered = f"{count(streams['buffered'])} of {plural(streams['answers'], 'answer')}"
        told.append(
            ("Came in a bunch", f"{buffered}{BUFFERING if (streams['buffered_share'] or 0) > 0.01 else ''}")
        )
    if streams["tokens_per_chunk_p50"] is not None:
        told.append(("Tokens a chunk", f"{streams['tokens_per_chunk_p50']:.3g} in the median"))
    return told


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


def _chunks(chunks: Json) -> str:
    told = [
        f"{plural(chunks[kind], word)}"
        for kind, word in (("thinking", "thinking chunk"), ("tool_json", "tool input chunk"))
        if chunks.get(kind)
    ]
    return ", ".join(told)


def plainly(tree: Json) -> str:
    """The plain values of a table of run.json: `requests 200, tokens 51,000`."""
    said = []
    for key, value in tree.items():
        if isinstance(value, int | float) and not isinstance(value, bool):
            said.append(
                f"{plain(str(key), 60)} {value:,.6g}"
                if isinstance(value, float)
                else f"{plain(str(key), 60)} {value:,}"
            )
        elif isinstance(value, str) and value:
            said.append(f"{plain(str(key), 60)} {plain(value, 200)}")
    return ", ".join(said)
