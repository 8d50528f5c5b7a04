"""The answer of headroom: what is sustained, what binds, and how much today's traffic may grow.

Rule: the sentence and the facts from the same values; tables are in `tables`. The exit code is 1 where the need is not
met, 3 where nothing was found out or the need lies inside the interval.
"""

from __future__ import annotations

from collections.abc import Sequence

from tailgauge.errors import Exit
from tailgauge.experiments.answer import FAIL, OPEN, PASS, Answer, Case
from tailgauge.experiments.headroom import limits, search, tables
from tailgauge.experiments.headroom.estimate import Bound, borne, lowest
from tailgauge.experiments.headroom.facts import About, Sustained, facts, without_cache
from tailgauge.experiments.headroom.growth import Grown, grown, least
from tailgauge.experiments.headroom.judge import Judged
from tailgauge.experiments.headroom.rate_result import Level, Rate
from tailgauge.experiments.headroom.tables import limit_name, times
from tailgauge_analysis.sections.rate_limits.growth import MOST_FACTOR, Growth
from tailgauge_analysis.text.formatting import figures, share

NOTHING = "No rate could be judged: every run was INVALID, or there was no time for one."


def answer(about: About, levels: Sequence[Level], tried: Sequence[Judged], found: Sequence[Bound]) -> Answer:
    """Of a search."""
    if not levels:
        return _nothing(about, NOTHING)
    low, high = search.ends(tried)
    rate = _sustained(low, high, lowest(found))
    found = borne(found, rate.low)
    binds = None
    if high is not None:
        binds = limits.binding(
            [level for one in tried if one.outcome == FAIL for level in one.levels], about.good
        )
    growths = grown(levels[0], found)
    first = least([one.cached for one in growths if one.kind == binds and one.kind != limits.CAPACITY])
    sentence = _sentence(about, rate, binds, _first(first, levels[0].seconds))
    return Answer(
        kind="headroom", sentence=sentence, table=tables.levels(tried, about.today),
        facts=facts(about, rate, binds, found, growths, quiet=False),
        exit_code=_exit(about, rate), smallest=_smallest(rate),
        cases=_cases(about, rate, tried, binds), remarks=(*about.remarks, *_remarks(about, tried, found), *_cache_said(found, growths, about)),
        pictures=tables.pictures(tried, rate.low, rate.high, about.refused),
        more=(tables.limits(found, growths, about.today),) if found else (),
    )  # fmt: skip


def _sustained(low: Judged | None, high: Judged | None, known: Rate | None) -> Sustained:
    if low is None or high is None:
        ends = [None if one is None else one.rate_per_s for one in (low, high)]
        return Sustained(None, *ends)
    middle = (low.rate_per_s * high.rate_per_s) ** 0.5
    value = middle if known is None else min(max(known.value, low.rate_per_s), high.rate_per_s)
    return Sustained(value, low.rate_per_s, high.rate_per_s)


def quiet(about: About, levels: Sequence[Level], found: Sequence[Bound], *, passes: bool) -> Answer:
    """Of a single level at today's rate, which by itself `passes` or not: by headers and usage alone."""
    if not levels:
        return _nothing(about, NOTHING)
    named = [one for one in borne(found, about.today if passes else None) if one.limit is not None]
    if not named:
        return _nothing(about, "No answer without a 429: no header of the target names a limit.")
    first = min(named, key=lambda one: one.per_s.high)
    low, high = min(one.per_s.low for one in named), first.per_s.high
    rate = Sustained(None, low, high)
    growths = grown(levels[0], named)
    grows = least([one.cached for one in growths])
    met = (
        "without a single 429"
        if not levels[0].refused.k
        else f"although {levels[0].refused.k:,} calls were refused already"
    )
    sentence = (
        f"Told by headers and usage alone, {met}: this traffic is sustained up to a rate between {figures(low)} and "
        f"{figures(high)} requests/s, {times(low / about.today)} to {times(high / about.today)} times today's "
        f"{figures(about.today)}; {limit_name(first.kind)} would be met first{_first(grows, levels[0].seconds)}."
    )
    return Answer(
        kind="headroom", sentence=sentence, table=tables.limits(named, growths, about.today),
        facts=facts(about, rate, first.kind, named, growths, quiet=True),
        exit_code=_exit(about, rate), smallest=_smallest(rate), cases=_cases(about, rate, (), first.kind),
        remarks=(*about.remarks, *_open_bursts(named), *_cache_said(named, growths, about)),
    )  # fmt: skip


def _nothing(about: About, why: str) -> Answer:
    nothing = facts(about, Sustained(None, None, None), None, (), (), quiet=False)
    case = Case("sustainable rate", OPEN, why)
    return Answer(
        "headroom", why, tables.levels((), about.today), nothing, Exit.INVALID, "", (case,), about.remarks
    )


def _sentence(about: About, rate: Sustained, binds: str | None, first: str) -> str:
    today = f"today's {figures(about.today)}"
    if rate.high is None and rate.low is not None:
        return (
            f"This traffic is sustained up to {figures(rate.low)} requests/s at least, {times(rate.low / about.today)} times "
            f"{today}: no limit was met up to there{_needed(about, rate)}."
        )
    if rate.low is None and rate.high is None:
        return (
            f"No limit was met up to {figures(about.tried)} requests/s, {times(about.tried / about.today)} times {today}, but that "
            f"fewer than {share(about.refused)} of the calls are refused cannot be told from so few."
        )
    if rate.low is None:
        return f"No rate was found that is sustained: {figures(rate.high or 0)} requests/s are too many already, by {limit_name(binds)}."
    value = rate.value or rate.low
    growth = f"{times(value / about.today)} times {today} ({times(rate.low / about.today)} – {times((rate.high or 0) / about.today)})"
    return (
        f"This traffic is sustained up to {figures(value)} requests/s ({figures(rate.low)} – {figures(rate.high or 0)}), {growth}; "
        f"{limit_name(binds)} is met first{first}{_needed(about, rate)}."
    )


def _first(grows: Growth | None, seconds: float) -> str:
    if grows is None:
        return ""
    high = f"more than {MOST_FACTOR}" if grows.high is None else times(grows.high)
    begun = f", and a stretch of {seconds:.0f} s meets its first 429 at"
    if grows.value is None:
        return f"{begun} {times(grows.low or 0)} to {high} times today's traffic"
    return f"{begun} {times(grows.value)} times today's traffic ({times(grows.low or 0)} – {high})"


def _needed(about: About, rate: Sustained) -> str:
    if not about.need:
        return ""
    told = {
        PASS: "there is room for it",
        FAIL: "there is no room for it",
        OPEN: "whether there is room is open",
    }
    return f"; {times(about.need)} times was asked for: {told[_met(about, rate)]}"


def _met(about: About, rate: Sustained) -> str:
    if rate.low is not None and rate.low >= about.need * about.today:
        return PASS
    return FAIL if rate.high is not None and rate.high <= about.need * about.today else OPEN


def _exit(about: About, rate: Sustained) -> Exit:
    if rate.low is None and rate.high is None:
        return Exit.INVALID
    if not about.need:
        return Exit.OK
    return {PASS: Exit.OK, FAIL: Exit.SLO_FAILED, OPEN: Exit.INVALID}[_met(about, rate)]


def _smallest(rate: Sustained) -> str:
    if not rate.low or not rate.high:
        return ""
    return f"a change of the sustainable rate of {share(rate.high / rate.low - 1)}"


def _cases(about: About, rate: Sustained, tried: Sequence[Judged], binds: str | None) -> tuple[Case, ...]:
    name = f"today's {figures(about.today)} requests/s are sustained"
    outcome = _met(About(about.today, 1.0, about.refused, about.good, about.tried, ()), rate)
    out = [Case(name, outcome, f"sustained: {_ends(rate)}; met first: {limit_name(binds)}")]
    if about.need:
        out.append(
            Case(
                f"room for {times(about.need)} times today's traffic",
                _met(about, rate),
                f"sustained: {_ends(rate)}",
            )
        )
    contradicted = [one for one in tried if one.outcome == OPEN]
    if contradicted:
        rates = ", ".join(figures(one.rate_per_s) for one in contradicted)
        out.append(Case("every rate is decided", OPEN, f"inconclusive: {rates} requests/s"))
    return tuple(out)


def _ends(rate: Sustained) -> str:
    low = "unknown" if rate.low is None else figures(rate.low)
    return f"{low} to {'unknown' if rate.high is None else figures(rate.high)} requests/s"


def _remarks(about: About, tried: Sequence[Judged], found: Sequence[Bound]) -> list[str]:
    said = []
    kinds = {kind for one in tried for level in one.levels for kind in level.kinds}
    if "ramp" in kinds:
        said.append(
            "An acceleration limit refused calls: raise the rate more slowly, with a lower experiment.headroom.growth."
        )
    if "spend" in kinds:
        said.append("The spending limit refused calls: what is told of rates rests on the levels before.")
    refused = any(one.outcome == FAIL and (one.refused.low or 0.0) > about.refused for one in tried)
    if refused and not any(one.decides for one in found):
        said.append("No limit explains the refusals: the interval rests on the levels alone.")
    return said


def _open_bursts(named: Sequence[Bound]) -> list[str]:
    names = [limit_name(one.kind) for one in named if one.limit is not None and not one.limit.seen]
    if not names:
        return []
    return [
        f"How much is admitted at once was never seen, because nothing was refused: {', '.join(names)}. That is why the interval is wide."
    ]


def _cache_said(found: Sequence[Bound], growths: Sequence[Grown], about: About) -> list[str]:
    told = without_cache(found, growths)
    if told is None:
        return []
    low, high = told["low_per_s"], told["high_per_s"]
    text = (
        f"Without the prompt cache between {figures(low)} and {figures(high)} requests/s would be sustained, {times(low / about.today)} to "
        f"{times(high / about.today)} times today's: {limit_name(told['binding'])} would be met first."
    )
    return [text]
