"""The cache report as plain values and in words: what report.json holds, and what the page and Markdown say.

Rule: no arithmetic beyond rounding for people; a number that is not known is null, with a word why.
"""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import asdict, replace
from fractions import Fraction
from typing import Any

import numpy as np

from tailgauge_analysis.sections.cache.cost import UNIT
from tailgauge_analysis.sections.cache.effect import (
    CACHED_TOKENS,
    CONNECTION,
    IN_FLIGHT,
    SAVED,
    UNCACHED_TOKENS,
)
from tailgauge_analysis.sections.cache.finding import Cache
from tailgauge_analysis.sections.cache.misses import CAUSES
from tailgauge_analysis.text.formatting import count, ms, percentile, plain, plural, share
from tailgauge_analysis.text.json_values import Json

NOTE = (
    "The whole run except preflight, by call; TTFT of the steady stage. A miss has one cause, found from what the client knew when it "
    "sent the call; partly: an earlier part was read. Formulas: docs/reports.md."
)
Table = tuple[str, tuple[str, ...], list[tuple[str, ...]]]

SHARES = (
    ("token_hit", "Token hit", "read / (read + written + neither)"),
    ("cacheable_hit", "Cacheable hit", "read / (read + written)"),
    ("request_hit", "Request hit", "calls that read something"),
    ("full_hit", "Full hit", "calls that read something and wrote nothing"),
    ("write_amplification", "Write amplification (times)", "tokens written / tokens of different texts"),
)
EFFECTS = (
    (SAVED, "1,000 tokens read instead of not (ms saved)"),
    (UNCACHED_TOKENS, "1,000 uncached tokens (ms)"),
    (CACHED_TOKENS, "1,000 cached tokens (ms)"),
    (IN_FLIGHT, "another call in flight (ms)"),
    (CONNECTION, "a new connection (ms)"),
)
_WORDS = {name: name.replace("_", " ") for name, *_ in CAUSES}


def told(found: Sequence[Cache]) -> Json | None:
    """The value of `cache` in report.json; None where no traffic has to do with a cache."""
    if not found:
        return None
    return {
        "sentence": " ".join(map(_sentence, found)),
        "traffic": {one.traffic: _entry(one) for one in found},
    }


def _entry(one: Cache) -> Json:
    nothing = np.empty(0)
    facts: Json = _values(asdict(replace(one, worth=replace(one.worth, hit_ms=nothing, miss_ms=nothing))))
    facts["first_bytes"] = [{"byte": byte, "calls": n} for byte, n in one.first_bytes]
    for name in ("hit_ms", "miss_ms"):
        del facts["worth"][name]
    del facts["traffic"]
    return {"sentence": _sentence(one), **facts}


def _values(tree: Any) -> Any:
    if isinstance(tree, dict):
        return {key: _values(value) for key, value in tree.items()}
    if isinstance(tree, list | tuple):
        return [_values(value) for value in tree]
    if isinstance(tree, Fraction):
        return float(tree)
    return None if isinstance(tree, float) and not math.isfinite(tree) else tree


def _sentence(one: Cache) -> str:
    """How much was read, what it saved, and what most misses came from."""
    hit = one.token_hit
    if hit.value is None:
        return f"{plain(one.traffic, 80)}: no call told of its tokens."
    between = f" (95% interval {share(hit.low)} to {share(hit.high)})" if hit.low is not None else ""
    said = f"{plain(one.traffic, 80)}: {share(hit.value)} of the input tokens came from the cache{between}"
    if one.cost and (part := one.cost.saved_share).value:
        sign = -1 if part.value < 0 else 1
        ends = sorted(sign * end for end in (part.low, part.high) if end is not None)
        sure = f" (95% interval {_signed(ends[0])} to {_signed(ends[1])})" if ends else ""
        said += (
            f"; the input cost {share(abs(part.value))} {'more' if sign < 0 else 'less'} than without{sure}"
        )
    if one.misses:
        most = sorted(one.misses, key=lambda miss: -miss.calls)[:3]
        causes = ", ".join(f"{count(miss.calls)} {_WORDS[miss.cause]}" for miss in most)
        partly = sum(miss.partly for miss in one.misses)
        said += f"; {plural(sum(miss.calls for miss in one.misses), 'call')} missed"
        said += (f" ({count(partly)} of them only a part)" if partly else "") + f": {causes}"
        said += " and others" if len(one.misses) > len(most) else ""
    return f"{said}."


def said(entry: Json) -> Json:
    """One traffic table's entry in words: facts (what, text), tables (caption, header, rows)."""
    tables = [_shares(entry), _misses(entry), _effect(entry["worth"])]
    return {"facts": _facts(entry), "tables": [table for table in tables if table[2]]}


def _shares(entry: Json) -> Table:
    rows: list[tuple[str, ...]] = []
    for key, title, formula in SHARES:
        one, written = entry[key], _times if key == "write_amplification" else share
        shown = [written(v) for v in (one["value"], one["low"], one["high"])]
        between = f"{shown[1]} – {shown[2]}" if one["low"] is not None else one["why"] or "–"
        rows.append((title, shown[0], between, count(one["n"]), formula))
    return "What was read", ("Share", "value", "95% interval", "calls", "formula"), rows


def _times(value: float | None) -> str:
    return "–" if value is None else f"{value:.3g}"


def _misses(entry: Json) -> Table:
    why = {name: (seen, cure) for name, seen, cure in CAUSES}
    rows: list[tuple[str, ...]] = [
        (_WORDS[m["cause"]], count(m["calls"]), count(m["partly"]), count(m["tokens"]), *why[m["cause"]])
        for m in entry["misses"]
    ]
    header = ("Cause", "calls", "of these partly", "tokens not read", "what is seen", "what to do")
    return "What was not read, by cause", header, rows


def _effect(worth: Json) -> Table:
    slopes = worth["slopes"]
    if not slopes:
        return "What a token is worth in TTFT since sent", (), []
    rows: list[tuple[str, ...]] = []
    for name, title in EFFECTS:
        found = [next((e for e in s["effects"] if e["name"] == name), None) for s in slopes]
        if any(found):
            rows.append((title, *(_cell(e, s["mark"]) for e, s in zip(found, slopes, strict=True))))
    header = ("TTFT since sent", *(f"{percentile(s['p'])}, 95% interval" for s in slopes))
    return (
        f"What a token is worth in TTFT: quantile regression over {count(slopes[0]['n'])} answers",
        header,
        rows,
    )


def _cell(effect: Json | None, mark: str) -> str:
    if effect is None:
        return "–"
    return f"{ms(effect['value'])} ({ms(effect['low'])} to {ms(effect['high'])}){' ' + mark if mark else ''}"


def _facts(entry: Json) -> list[tuple[str, str]]:
    tokens = ", ".join(
        f"{count(entry[key])} {word}"
        for key, word in (
            ("read_tokens", "read"),
            ("creation_tokens", "written"),
            ("uncached_tokens", "neither"),
        )
    )
    missing = (
        f"; {plural(entry['without_usage'], 'call')} more, without usage (refused, failed or closed)"
        if entry["without_usage"]
        else ""
    )
    facts = [("Input tokens", f"{tokens}, in {plural(entry['calls'], 'call')}{missing}")]
    facts += [
        (f"Expected {state}", f"{count(seen['read'])} of {plural(seen['calls'], 'call')} read from the cache")
        for state, seen in entry["expected"].items()
    ]
    if entry["unordered"]:
        said = "whose order with another worker's call the clocks do not tell: counted as race"
        facts.append(
            (
                "Closer than the clocks",
                f"{plural(entry['unordered'], 'miss')}{'es' if entry['unordered'] > 1 else ''} {said}",
            )
        )
    if entry["first_bytes"]:
        places = ", ".join(f"{count(b['byte'])} ({plural(b['calls'], 'call')})" for b in entry["first_bytes"])
        facts.append(("First differing byte", places))
    facts += _ttft(entry["worth"])
    facts += _expiry(entry["expiry"], entry["no_expiry"])
    return facts + _cost(entry["cost"], entry["no_cost"])


def _ttft(worth: Json) -> list[tuple[str, str]]:
    strata, facts = worth["strata"], []
    if strata:
        over = f"{plural(strata['hits'], 'hit')} and {count(strata['misses'])} that read nothing, in {plural(strata['strata'], 'class')} of length"
        facts.append(
            (
                "Median TTFT saved by a hit",
                f"{ms(strata['value'])} ms (95% interval {ms(strata['low'])} to {ms(strata['high'])}), prompts of the same length: {over}".replace(
                    "classs", "classes"
                ),
            )
        )
    if worth["why"]:
        facts.append(("TTFT by tokens read", f"not told: {worth['why']}"))
    return facts


def _expiry(one: Json | None, why: str) -> list[tuple[str, str]]:
    if one is None:
        return [("Asked again", f"not told: {why}")]
    seen = one["observed"]
    between = f" ({share(seen['low'])} to {share(seen['high'])})" if seen["low"] is not None else ""
    life = f"{one['life_s']:,.4g} s" if one["life_s"] is not None else "their life"
    kept = "here it does" if one["sliding"] else "here it does not"
    text = (
        f"{share(seen['value'])}{between} of {plural(one['calls'], 'call')} read; their gaps allow {share(one['by_gaps'])}, "
        f"Poisson calls at their rates {share(one['by_rate_sliding'])}, or {share(one['by_rate_fixed'])} where a read does not renew the life; {kept}"
    )
    more = (
        f". {plural(one['excess_misses'], 'call')} read nothing though asked again within {life}"
        if one["excess_misses"]
        else ""
    )
    return [("Asked again", text + more)]


def _cost(cost: Json | None, why: str) -> list[tuple[str, str]]:
    if cost is None:
        return [("Cost", f"not known: {why}")]
    unit, part = cost["unit"], cost["saved_share"]
    between = (
        f", 95% interval {_signed(part['low'])} to {_signed(part['high'])}" if part["low"] is not None else ""
    )
    unknown = f"; {plural(cost['unpriced'], 'call')} left out: {cost['why']}" if cost["unpriced"] else ""
    facts = [
        ("Cost", f"{_money(cost['total'], unit)}; {_money(cost['input'], unit)} of it for input{unknown}"),
        (
            "Saved by the cache",
            f"{_money(cost['saved'], unit)}, {_signed(part['value'])} of what the input would cost without{between}",
        ),
    ]
    for one in cost["break_even"]:
        if one["hit_share"] is None or one["uses"] is None:
            facts.append(
                (f"Break-even, {one['model']}, {one['ttl']}", "never: a read costs as much as no cache")
            )
            continue
        uses = f"{cost['uses_per_write'] or 0:,.3g}"
        had = (
            f"; here {share(cost['hit_share_of_cached'])} and {uses} {'use' if uses == '1' else 'uses'} of each"
            if cost["uses_per_write"]
            else ""
        )
        facts.append(
            (
                f"Break-even, {one['model']}, {one['ttl']}",
                f"{share(one['hit_share'])} of the cached tokens read, or {one['uses']} uses of each write{had}",
            )
        )
    return facts


def _signed(value: float | None) -> str:
    return f"-{share(-value)}" if value is not None and value < 0 else share(value)


def _money(value: float, unit: str) -> str:
    return f"{value:,.0f} {UNIT}" if unit == UNIT else f"{value:,.4f} {unit}"
