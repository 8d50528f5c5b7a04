"""The 429 report in words: the sentence that answers, the lines and the tables of the section.

Rule: strings out of the values of report.json, the same ones for the page and for Markdown.
"""

from __future__ import annotations

from tailgauge_analysis.load.rate_limit_headers import KINDS
from tailgauge_analysis.sections.rate_limits.acceleration import CERTAIN, LIKELY
from tailgauge_analysis.sections.rate_limits.growth import MOST_FACTOR
from tailgauge_analysis.text.formatting import plain, plural, share
from tailgauge_analysis.text.json_values import Json

NOTE = (
    "Shares and retries are of the steady stage; buckets are of the whole run, preflight included, full at its start. "
    "Growth: the same traffic repeated so many times, until the bucket first refuses a call; it depends on the worst moment of the run."
)
MUCH = 1.5  # tries a call, from which the sentence tells of them
KIND_HEADER = ("steady stage, by", "429s", "share", "95% interval", "first at (s)", "known by")
BUCKET_HEADER = (
    "whole run, limit on", "429s", "least remaining", "refill (per second)", "burst", "mean use", "growth to the first 429",
)  # fmt: skip


def said(limits: Json) -> Json:
    """The section as text: its lines, and its tables as caption, header and rows."""
    tables = (
        ("429s by limit", KIND_HEADER, _kinds(limits)),
        ("Buckets", BUCKET_HEADER, _buckets(limits)),
    )
    return {"facts": _facts(limits), "tables": [one for one in tables if one[2]]}


def spoken(kind: str) -> str:
    """A kind of limit in words."""
    return {"ramp": "acceleration", "spend": "spending"}.get(kind, kind.replace("_", " "))


def sentence(limits: Json) -> str:
    """The answer in one sentence."""
    bound, after, n = limits["binding"], limits["retry_after"], limits["attempts"]
    one = limits["buckets"][bound["bucket"]] if bound["bucket"] is not None else None
    if not limits["refused"]:
        told = f"No 429 in {plural(n, 'attempt')}" if n else "Nothing was sent in the steady stage"
        if limits["overloaded"]["k"]:
            told += f", but {share(limits['overloaded']['value'])} of them got a 529 or 503"
        if one is not None and one["utilisation"] is not None:
            told += f"; the limit most used is that on {spoken(one['kind'])}, by {share(one['utilisation'])} of its refill"
        return f"{told}{_retried(limits)}."
    told = f"{share(limits['share'])} of {plural(n, 'attempt')} got a 429"
    if bound["kind"] is not None:
        told += f", most by the limit on {spoken(bound['kind'])}"
    if one is not None and one["rate"]["value"] is not None:
        at_once = one["burst"]["value"]
        told += f" ({_short(one['rate']['value'])} a second"
        told += f", {_short(at_once)} at once)" if at_once is not None else ")"
    if after["violations"]:
        told += f"; {share(after['violation_share'])} of the attempts that were told when to come back came too early"
    return f"{told}{_retried(limits)}."


def _retried(limits: Json) -> str:
    """What the retries of the traffic that retried most made of its calls, where that is much."""
    worst = max(limits["amplification"], key=lambda one: one["observed"], default=None)
    if worst is None or worst["low"] < MUCH:
        return ""
    return (
        f"; with retries each call of {plain(worst['traffic'], 60)} was tried {worst['observed']:.1f} times"
    )


def _facts(limits: Json) -> list[tuple[str, str]]:
    """Lines: what, and what is known of it."""
    rows = [*_rate(limits), ("Growth to the first 429", _growth(limits["growth"]))]
    if limits["refused"] or limits["acceleration"]["coded"]:
        rows.append(("Acceleration limit", _accelerated(limits["acceleration"])))
    rows += _after(limits["retry_after"])
    rows += [
        (f"Amplification, {plain(one['traffic'], 60)}", _amplified(one)) for one in limits["amplification"]
    ]
    if (room := _no_room(limits)) is not None:
        rows.append(("A limit a minute is no burst", room))
    wave = limits["synchrony"]
    if wave["retries"]:
        told = f"{wave['retries']:,} {'retry' if wave['retries'] == 1 else 'retries'}: "
        told += wave["why"] or f"variance / mean per second {_number(wave, 'index')}; 1 by chance"
        rows.append(("Synchrony of retries", told))
    return rows


def _rate(limits: Json) -> list[tuple[str, str]]:
    rows = []
    if limits["attempts"]:
        ends = f"95% interval {share(limits['low'])} – {share(limits['high'])}"
        rows.append(
            (
                "429 rate",
                f"{share(limits['share'])} ({ends}, n {limits['attempts']:,}, n_eff {limits['n_eff']:,})",
            )
        )
    if limits["refused"]:
        met = f"{limits['requests_refused']:,} of {limits['requests']:,} met a 429"
        rows.append(("Requests", f"{met}, {limits['requests_ended_refused']:,} ended with one"))
    full = limits["overloaded"]
    if full["k"]:
        ends = f"{share(full['low'])} – {share(full['high'])}"
        rows.append(("529 or 503", f"{share(full['value'])} of the attempts (95% interval {ends})"))
    if limits["first_at_s"] is not None:
        rows.append(
            ("First 429 of the run", f"{limits['first_at_s']:,.3g} s after its start, warm-up included")
        )
    return rows


def _no_room(limits: Json) -> str | None:
    """Whoever reads headers sees room where there is none, if a bucket holds much less than its limit a minute."""
    for one in limits["buckets"]:
        left, size = one["remaining"], one["burst"]["high"]
        if one["refused"] and left is not None and size is not None and size < left["limit"] / 2:
            return (
                f"headers never showed less than {left['least']:,.0f} of {left['limit']:,.0f} {spoken(one['kind'])} left, and calls were "
                f"refused all the same: no more than about {_short(one['burst']['value'] or size)} are admitted at once"
            )
    return None


def _after(after: Json) -> list[tuple[str, str]]:
    rows = []
    if after["refused"]:
        told = f"{share(after['share'])} of {plural(after['refused'], '429')} said when to come back"
        if after["with_header"]:
            told += f" (p50 {_short(after['asked_p50_s'])} s, at most {_short(after['asked_max_s'])} s)"
        rows.append(("retry-after", told))
    if after["followed"]:
        ends = f"{share(after['violation_low'])} – {share(after['violation_high'])}"
        kept = f"{after['violations']:,} of {after['followed']:,} came too early ({share(after['violation_share'])}, {ends})"
        if after["violations"]:
            kept += f", by {_short(after['early_p50_s'])} s in the median and {_short(after['early_max_s'])} s at most"
        rows.append(("Attempts told to wait", kept))
    return rows


def _amplified(one: Json) -> str:
    told = (
        f"{one['observed']:.3f} tries a call ({one['low']:.3f} – {one['high']:.3f}, {one['calls']:,} calls)"
    )
    if one["predicted"] is None:
        return f"{told}; no prediction: {one['why']}"
    ends = f"{one['predicted_low']:.3f} – {one['predicted_high']:.3f}"
    return f"{told}; {one['predicted']:.3f} ({ends}) if each try failed with {share(one['failed_share'])} by itself and was retried up to {one['most_retries']} times"


def _accelerated(one: Json) -> str:
    if one["found"] is None:
        return f"unknown: {one['why']}"
    if one["found"] == CERTAIN:
        when = f", the first after {one['first_at_s']:,.3g} s" if one["first_at_s"] is not None else ""
        return f"certain: {plural(one['coded'], '429')} with the code for it{when}"
    if one["found"] == LIKELY:
        return f"likely: {one['growing']:,} of {one['with_headers']:,} 429s came with room in every bucket while calls grew"
    return f"not seen: {one['with_room']:,} of {one['with_headers']:,} 429s came with room in every bucket"


def _buckets(limits: Json) -> list[tuple[str, ...]]:
    """The table of buckets: what, 429s, least remaining, rate, burst, mean use, growth."""
    rows: list[tuple[str, ...]] = []
    several = len({(one["target"], one["model"]) for one in limits["buckets"]}) > 1
    for one in sorted(limits["buckets"], key=lambda b: KINDS.index(b["kind"])):
        left, use = one["remaining"], one["utilisation"]
        rows.append((
            spoken(one["kind"]) + (f", {one['model']}" if several else ""),
            f"{one['refused']:,}",
            "no header" if left is None else f"{left['least']:,.0f} of {left['limit']:,.0f}",
            _number(one["rate"]), _number(one["burst"]),
            "unknown" if use is None else share(use), _factor(one["growth"]),
        ))  # fmt: skip
    return rows


def _kinds(limits: Json) -> list[tuple[str, ...]]:
    """The table of kinds: what, attempts, share, interval, first, how it is known."""
    return [
        (spoken(one["kind"]), f"{one['attempts']:,}", share(one["share"]), f"{share(one['low'])} – {share(one['high'])}",
         f"{one['first_at_s']:,.3g}", ", ".join(one["how"]) or "nothing tells")
        for one in limits["by_kind"]
    ]  # fmt: skip


def _number(facts: Json, key: str = "value") -> str:
    """A number with its interval, or why there is none."""
    value, low, high = facts[key], facts["low"], facts["high"]
    if value is None and low is None and high is None:
        return f"unknown: {facts['why']}"
    ends = f"{_short(low)} – {_short(high)}"
    if value is None:
        return f"{ends} ({facts['why']})"
    return _short(value) if low == high else f"{_short(value)} ({ends})"


def _growth(grown: Json) -> str:
    n = f", n {grown['calls']:,} calls" if grown["calls"] and grown["low"] is not None else ""
    return f"{_factor(grown)}{n}"


def _factor(grown: Json) -> str:
    """A growth factor with its interval."""
    if grown["value"] is None and grown["low"] is None:
        return f"unknown: {grown['why']}"
    high = f"> {MOST_FACTOR}" if grown["high"] is None else f"{grown['high']:.3g}"
    ends = f"{grown['low']:.3g} – {high}"
    return f"{grown['value']:.3g} ({ends})" if grown["value"] is not None else f"{ends} ({grown['why']})"


def _short(value: float | None) -> str:
    """Four figures, and never an exponent."""
    if value is None:
        return "?"
    return f"{value:,.0f}" if abs(value) >= 1000 else f"{value:.4g}"
