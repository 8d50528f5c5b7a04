"""Hedging in the report: plain values, one sentence an arm, and lines for page and Markdown.

Rule: nothing is computed; the page and Markdown say the same words. An arm without a control says so, and arms of one run
say that they met on the same target.
"""

from __future__ import annotations

from tailgauge_analysis.sections.hedging.variants import CONTENT, Arm
from tailgauge_analysis.text.formatting import count, ms, percentile, plain, plural, share
from tailgauge_analysis.text.json_values import Json
from tailgauge_analysis.text.quantile import VALUE, cell, plain_values, quantile

NO_CONTROL = (
    "without a control: no other traffic table of the run differs by hedging alone and does not hedge, so what the copies "
    "brought is not measured"
)
INTERFERENCE = (
    "Arm and control ran at the same time against one target: the copies of one load the other, and what an arm does to the "
    "target its control feels too. The ratios do not say what switching hedging on would do; for that, run the arms in "
    "blocks that take turns, and compare these (tailgauge compare)."
)
TITLES = {"ttft_sched": "TTFT", "e2e_sched": "end to end", "join_sched": "join"}


def to_json(found: list[Arm], beyond: str) -> Json | None:
    """`hedging` of report.json; None where nothing hedges."""
    if not found:
        return None
    arms = [_arm(one, beyond) for one in found]
    paired = any(one.versus for one in found)
    return {"arms": arms, "interference": INTERFERENCE if paired else None}


def _arm(one: Arm, beyond: str) -> Json:
    facts: Json = plain_values(one, beyond)
    facts["traffic"] = plain(one.traffic, 80)
    facts["policy"] = plain(one.policy, 40)
    facts["latency"] = [
        {
            "metric": row.metric.name, "view": row.view, "n": row.n, "without_answer": row.without_answer,
            "quantiles": [quantile(q, beyond) for q in row.quantiles],
        }
        for row in one.latency
    ]  # fmt: skip
    if one.cost:
        facts["cost"]["low_share"], facts["cost"]["high_share"] = one.cost.shares
    facts["no_control"] = None if one.is_control or one.versus else NO_CONTROL
    facts["sentence"] = sentence(facts)
    return facts


def sentence(one: Json) -> str:
    """The answer in one sentence."""
    if one["is_control"]:
        return f"{one['traffic']}: the control, without hedges."
    if not one["hedged"]["k"]:
        held = f", {count(sum(one['held'].values()))} due but held" if one["held"] else ""
        return f"{one['traffic']}: no copy was sent in the steady stage{held}."
    said = (
        f"{one['traffic']}: {share(one['hedged']['value'])} of {plural(one['legs'], 'call')} got a second copy, "
        f"which won {share(one['won']['value'])} of the time"
    )
    best = _best(one)
    if not best:
        return (
            f"{said}; {'too few requests to compare it with its control' if one['versus'] else NO_CONTROL}."
        )
    metric, ratios = best
    parts = [
        f"{percentile(r['p'])} {r['value']:.2f} times ({r['low']:.2f} to {r['high']:.2f}; {_word(r)})"
        for r in ratios
    ]
    return f"{said}; {TITLES[metric]} over that of the control {plain(one['versus']['traffic'], 80)}: {', '.join(parts)}."


def _best(one: Json) -> tuple[str, list[Json]] | None:
    """The ratios to tell: the two highest percentiles whose intervals have both ends, of the first metric that has one."""
    for metric, ratios in (one["versus"] or {"ratios": {}})["ratios"].items():
        sure = [ratio for ratio in ratios if ratio["low"] is not None and ratio["high"] is not None]
        if sure:
            return metric, sure[-2:]
    return None


def _word(ratio: Json) -> str:
    if ratio["high"] is not None and ratio["high"] < 1:
        return "faster"
    if ratio["low"] is not None and ratio["low"] > 1:
        return "slower"
    return "no difference seen"


def waits(arms: list[Json]) -> list[tuple[str, str, list[Json]]]:
    """Rows of quantiles in ms: arm, metric, quantiles."""
    return [
        (arm["traffic"], TITLES[row["metric"]], row["quantiles"]) for arm in arms for row in arm["latency"]
    ]


def facts(one: Json) -> list[tuple[str, str]]:
    """What there is to say of an arm, as pairs of what and how much."""
    if one["is_control"]:
        return [("429 and 529", _share(one["limited"]["of_all"]))]
    told = [
        ("Policy", one["policy"]),
        ("Hedge rate", f"{_share(one['hedged'])} calls"),
        ("Won by the copy", _share(one["won"])),
    ]
    if one["undecided"]:
        told.append(("Neither answered", plural(one["undecided"], "hedged leg")))
    if one["held"]:
        why = ", ".join(f"{name} {count(n)}" for name, n in one["held"].items())
        told.append(("Due but held", f"{plural(sum(one['held'].values()), 'request')}: {why}"))
    told += [
        ("Extra requests", _more(one["extra_requests"])),
        ("Extra input tokens", _more(one["extra_input_tokens"])),
    ]
    if one["delay"] and one["delay"][0]["value_is"] == VALUE:
        told.append(("Delay of the copies", f"p50 {ms(one['delay'][0]['value_ms'])} ms"))
    told.append(("Time that winning copies saved", _margin(one["margin"])))
    if one["waste"]:
        told += _waste(one["waste"])
    told += [("Cost of the losers", _cost(one["cost"])), *_limited(one["limited"], one["versus"])]
    told.append(("Slow together", _slowness(one["slowness"])))
    if one["versus"]:
        told += [
            (f"{TITLES[metric]} over the control's", _ratios(ratios, one["versus"]["paired"][metric]))
            for metric, ratios in one["versus"]["ratios"].items()
        ]
    return told


def _share(portion: Json) -> str:
    if portion["value"] is None:
        return "none sent"
    return f"{share(portion['value'])} ({share(portion['low'])} to {share(portion['high'])}), {count(portion['k'])} of {count(portion['n'])}"


def _more(value: float | None) -> str:
    return "not known" if value is None else f"{value * 100:+.1f}%"


def _margin(margin: Json | None) -> str:
    if margin is None:
        return "not known: losers are closed when the winner's content comes"
    by = (
        "only losers so close that they brought content too"
        if margin["basis"] == CONTENT
        else "as the simulated target had planned"
    )
    said = ", ".join(f"{q['label']} {cell(q)}" for q in margin["quantiles"] if q["value_is"] == VALUE)
    return f"{said + ' ms' if said else 'too few'}, of {plural(margin['n'], 'leg')} ({by})"


def _waste(waste: Json) -> list[tuple[str, str]]:
    losers = plural(waste["losers"], "loser")
    said = f"between {count(waste['output_low'])} and {count(waste['output_high'])}, of {losers}, {count(waste['closed'])} of them closed"
    if waste["by_max_tokens"]:
        said += f"; {count(waste['by_max_tokens'])} counted with max_tokens"
    told = [("Output tokens wasted", said), ("Input tokens of losers", _input(waste))]
    truth = waste["truth"]
    if truth is None:
        return [
            *told,
            ("Effect of closing", "not known: only the target knows what it makes after a disconnect"),
        ]
    inside = "within the interval" if truth["inside"] else "OUTSIDE the interval"
    told.append(
        (
            "What the target says",
            f"{count(truth['made_tokens'])} output tokens made for {plural(truth['losers'], 'loser')}, {inside}; {count(truth['billed_tokens'])} on its bill",
        )
    )
    effect = truth["cancel_effectiveness"]
    said = "nothing was left to spare" if effect is None else f"{share(effect)} of what was left was not made"
    return [*told, ("Effect of closing", f"{said} ({count(truth['after_cancel_tokens'])} tokens after it)")]


def _input(waste: Json) -> str:
    said = f"{count(waste['input_tokens'])}, told by {count(waste['input_told'])}, else as the winner's"
    return said + (f"; {count(waste['input_unknown'])} not known" if waste["input_unknown"] else "")


def _cost(cost: Json | None) -> str:
    if cost is None or cost["low"] is None:
        return f"not known: {plain(cost['why'], 200)}" if cost else "not known"
    said = f"{cost['low']:,.6g} to {cost['high']:,.6g} ({cost['unit']})"
    if cost["low_share"] is not None:
        said += f", {_more(cost['low_share'])} to {_more(cost['high_share'])} on what the answers cost"
    return said


def _limited(limited: Json, versus: Json | None) -> list[tuple[str, str]]:
    beside, more = [], versus["limited"] if versus else None
    if more and more["value"]:
        ends = f"{_points(more['low'])} to {_points(more['high'])}"
        beside = [("429 and 529 beyond the control's", f"{_points(more['value'])} points ({ends})")]
    if not limited["of_all"]["k"]:
        return [("429 and 529", f"none in {plural(limited['of_all']['n'], 'attempt')}"), *beside]
    return [
        *beside,
        ("429 and 529", f"{_share(limited['of_all'])} of all attempts"),
        ("429 and 529 of first calls", _share(limited["of_first"])),
        ("429 and 529 of copies", _share(limited["of_copies"])),
    ]


def _points(value: float) -> str:
    return f"{100 * value:+.2f}"


def _slowness(slow: Json | None) -> str:
    if slow is None or slow["why"]:
        return f"not known: {slow['why']}" if slow else "not known"
    known = (slow[name] for name in ("correlation", "correlation_low", "correlation_high"))
    value, low, high = (
        "?" if one is None else f"{one:.2f}" for one in known
    )  # none: none of them is slow, or all
    return (
        f"{share(slow['slow_share'])} of the calls and {share(slow['copy_slow_share'])} of the copies of slow ones take longer than "
        f"{ms(slow['slower_than_ms'])} ms; both: {share(slow['both_slow'])}, {share(slow['product'])} if independent; "
        f"correlation {value} ({low} to {high}), n {count(slow['copies'])}"
    )


def _ratios(ratios: list[Json], paired: list[bool]) -> str:
    said = ", ".join(map(_ratio, ratios))
    together = [percentile(r["p"]) for r, yes in zip(ratios, paired, strict=True) if yes]
    return f"{said}; stretches of both arms paired for {', '.join(together)}" if together else said


def _ratio(ratio: Json) -> str:
    if ratio["value"] is None:
        return f"{percentile(ratio['p'])} n/a"
    if ratio["low"] is None and ratio["high"] is None:
        return f"{percentile(ratio['p'])} {ratio['value']:.3g} (no interval)"
    ends = [f"{ratio[end]:.3g}" if ratio[end] is not None else "?" for end in ("low", "high")]
    return f"{percentile(ratio['p'])} {ratio['value']:.3g} ({ends[0]} to {ends[1]})"
