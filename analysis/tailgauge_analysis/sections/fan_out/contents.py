"""Fan-outs in the report: plain values, one sentence a traffic table, and a table of lines for page and Markdown.

Rule: nothing is computed; the page and Markdown say the same words. What cannot be said has its reason in its place.
"""

from __future__ import annotations

from dataclasses import replace

from tailgauge_analysis.metrics.latency import Row
from tailgauge_analysis.sections.fan_out.siblings import FEWEST
from tailgauge_analysis.sections.fan_out.tables import FanOut
from tailgauge_analysis.stats.quantiles import TOO_FEW
from tailgauge_analysis.text.formatting import count, ms, percentile, plain, plural, share
from tailgauge_analysis.text.json_values import Json
from tailgauge_analysis.text.quantile import VALUE, bound, plain_values, quantile

SHARED = "both ran at the same time against one target, so that each felt the other's load: only runs in turn, compared by tailgauge compare, are free of that"
SURE = 0.01  # p below which legs of one request are called slow together


def to_json(found: list[FanOut], beyond: str) -> Json | None:
    """`fan_out` of report.json: `tables`, one entry a traffic table; None where there is none."""
    return {"tables": [_table(one, beyond) for one in found]} if found else None


def _table(one: FanOut, beyond: str) -> Json:
    facts: Json = plain_values(replace(one, curves=None), beyond)
    del facts["curves"]  # for the figure
    facts["traffic"] = plain(one.traffic, 80)
    facts["joined"] = _row(one.joined, beyond)
    why = one.not_predicted or (
        "" if one.siblings else f"fewer than {FEWEST} slow legs, or every leg was slow"
    )
    facts["siblings_why"] = why
    facts["sentence"] = sentence(facts)
    return facts


def _row(row: Row, beyond: str) -> Json:
    return {
        "metric": row.metric.name, "view": row.view, "n": row.n, "without_answer": row.without_answer,
        "quantiles": [quantile(q, beyond) for q in row.quantiles],
    }  # fmt: skip


def sentence(one: Json) -> str:
    """The answer in one sentence."""
    name = f"{one['traffic']}: "
    top = [q for q in one["joined"]["quantiles"] if q["value_is"] == VALUE]
    if not top:
        return f"{name}too few requests were joined to say how long a join takes."
    said = f"{name}a request waits {ms(top[-1]['value_ms'])} ms at {top[-1]['label']} for its {plural(one['legs'], 'leg')}"
    found = one["siblings"]
    if found is None:
        return f"{said}; nothing can be said of how its legs depend on each other ({one['siblings_why']})."
    seen, naive = share(found["any"]["value"]), share(found["any_naive"])
    said += f"; {seen} of the requests meet a slow leg, one of the slowest {share(found['slow_share'])} ({naive} if legs were independent)"
    if found["p_value"] < SURE:
        return f"{said}: legs of one request are slow together (p = {found['p_value']:.3g})."
    return f"{said}: no sign that legs of one request are slow together (p = {found['p_value']:.2g})."


def waits(one: Json) -> list[tuple[str, list[Json]]]:
    """Rows of quantiles in ms: what they are of, and the quantiles."""
    rows = [
        ("Join, since scheduled", one["joined"]["quantiles"]),
        ("Slowest leg, seen", one["slowest"]),
        ("Slowest leg if legs knew only what time it is", one["conditional"]),
        ("Slowest leg if legs were independent", one["naive"]),
        ("Slowest but one", one["one_less"]),
        ("Slowest minus fastest leg", one["spread"]),
        ("All legs one after the other (sum)", one["sums"]),
    ]
    late = [q for q in one["last_began"] if q["value_ms"]]
    if one["bounded"] or one["order"] == "sequential" or any(q["value_ms"] > 1 for q in late):
        rows.append(("Last leg sent, since scheduled", one["last_began"]))
    return [(name, quantiles) for name, quantiles in rows if quantiles]


def facts(one: Json) -> list[tuple[str, str]]:
    """What there is to say besides, as pairs of what and how much."""
    told = [("Legs", _legs(one))]
    if one["not_predicted"]:
        told.append(("No prediction", one["not_predicted"]))
    told += _siblings(one)
    if one["critical"]:
        told.append((_last(one), _critical(one["critical"])))
    gain = one["gain"]
    if gain and one["order"] == "parallel":
        told.append(
            (
                "Gain by running them side by side",
                f"{gain['value']:.3g} times ({gain['low']:.3g} to {gain['high']:.3g}): mean sum of the legs over the mean slowest",
            )
        )
    if one["serial"]:
        ratios = [r for r in one["serial"]["ratios"] if r["value"] is not None]
        said = ", ".join(f"{percentile(r['p'])} {_ratio(r)}" for r in ratios) or TOO_FEW
        name = plain(one["serial"]["traffic"], 80)
        told.append((f"Join of {name} (sequential), over this one's", f"{said}; {SHARED}"))
    return [*told, ("Partial failures", _partial(one["partial"], one["requests"]))]


def _legs(one: Json) -> str:
    joins = {"all": "joined on all", "first_k": "joined on the first k", "deadline": "joined at a deadline"}
    how = f"{one['order']}, {joins.get(one['join'], one['join'])}"
    bounded = ", in limited places" if one["bounded"] else ""
    return f"{one['legs']} a request, {how}{bounded}; {count(one['complete'])} of {plural(one['requests'], 'request')} with an answer of every leg"


def _siblings(one: Json) -> list[tuple[str, str]]:
    found = one["siblings"]
    if found is None:
        return [] if one["not_predicted"] else [("Slow siblings", one["siblings_why"])]
    limits = ", ".join(f"{ms(limit)} ms" for limit in one["slower_than_ms"])
    seen = found["any"]
    any_slow = (
        f"{share(seen['value'])} ({share(seen['low'])} to {share(seen['high'])}); "
        f"{share(found['any_conditional'])} if legs knew only what time it is, {share(found['any_naive'])} if independent, "
        f"{share(found['any_beta_binomial'])} beta-binomial"
    )
    ends = f"{found['correlation_low']:.3f} to {found['correlation_high']:.3f}"
    told = [
        (
            "A slow leg",
            f"over {limits}: the slowest {share(found['slow_share'])} ({count(found['slow_legs'])} legs)",
        ),
        ("Requests with a slow leg", any_slow),
        ("Correlation of siblings", f"{found['correlation']:.3f} ({ends}), of being slow"),
        (
            "Permutation test",
            f"p = {found['p_value']:.3g}: {count(found['pairs'])} pairs of slow siblings, {found['pairs_expected']:.3g} by chance",
        ),
    ]
    if found["k_eff"] is not None:
        high = f"{found['k_eff_high']:.3g}" if found["k_eff_high"] is not None else "?"
        between = f"({found['k_eff_low']:.3g} to {high})"
        told.append(("K_eff", f"{found['k_eff']:.3g} {between} independent legs would be late as often"))
    return told


def _last(one: Json) -> str:
    return "Longest leg" if one["order"] == "sequential" else "Waited for last"


def _critical(critical: Json) -> str:
    positions = critical["positions"]
    top = max(range(len(positions)), key=lambda leg: positions[leg]["k"])
    most = positions[top]
    said = (
        f"leg {top} (of {len(positions)}, from 0) most often: {share(most['value'])} ({share(most['low'])} to {share(most['high'])}) "
        f"of {plural(critical['n'], 'request')}; {share(critical['even'])} if all were alike"
    )
    if len(critical["kinds"]) > 1:
        pairs = zip(critical["kinds"], critical["kinds_even"], strict=True)
        by = ", ".join(
            f"kind {i} {share(k['value'])} ({share(even)} of the legs)" for i, (k, even) in enumerate(pairs)
        )
        said += f"; {by}"
    return said


def _partial(partial: Json, requests: int) -> str:
    if not partial["failed"]:
        said = "no leg failed"
    else:
        failed = partial["failed_share"]
        said = (
            f"{plural(partial['failed'], 'leg')} failed ({share(failed['value'])}, {share(failed['low'])} to {share(failed['high'])}), "
            f"in {count(partial['requests_with_failed'])} of {plural(requests, 'request')}, of which "
            f"{count(partial['ok_with_failed'])} went on without"
        )
    for key, word in (
        ("closed", "closed at the join"),
        ("never_sent", "never sent"),
        ("retries", "retries"),
        ("copies", "second copies"),
    ):
        said += f"; {count(partial[key])} {word}" if partial[key] else ""
    return said


def _ratio(ratio: Json) -> str:
    ends = [f"{ratio[end]:.3g}" if ratio[end] is not None else "?" for end in ("low", "high")]
    return f"{ratio['value']:.3g} times ({ends[0]} to {ends[1]})"


def cell(q: Json) -> str:
    """A quantile with its interval, in one cell of text."""
    if q["value_is"] != VALUE:
        return str(q["value_is"])
    mark = f" {q['mark']}" if q["mark"] else ""
    return f"{ms(q['value_ms'])} ({bound(q, 'low')} – {bound(q, 'high')}){mark}"
