"""The section on the prompt cache: what it did by traffic table, in numbers and text.

The whole run except preflight, but TTFT of the steady stage. A traffic table without marks, shared prefixes, reads or writes has no
entry. The numbers are computed beside: rows in calls.py, shares.py, misses.py, effect.py, cost.py.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import dataclass, field
from fractions import Fraction

import numpy as np
import pandas as pd

from tailgauge.rows import schema
from tailgauge_analysis.metrics.timeline import MOST_BINS, width
from tailgauge_analysis.run import Run
from tailgauge_analysis.sections.cache import calls as cache_calls
from tailgauge_analysis.sections.cache import effect, shares
from tailgauge_analysis.sections.cache.cost import UNIT, Cost, Tariff, cost, prices_of
from tailgauge_analysis.sections.cache.misses import (
    ADVICE,
    ADVICE_OF_TARGET,
    EVIDENCE,
    FIRST,
    NOT_KNOWN,
    RACE,
    Miss,
    causes,
    first_bytes,
    misses,
)
from tailgauge_analysis.stats.quantiles import Floats
from tailgauge_analysis.text.cells import side_by_side
from tailgauge_analysis.text.formatting import (
    bin_name,
    count,
    ms,
    plain,
    plural,
    share,
    share_range,
)
from tailgauge_analysis.text.json_values import Json, number, table, tables
from tailgauge_analysis.text.picture import POINTS, Panel, Picture, PlotCurve
from tailgauge_analysis.text.quantile import UNPUBLISHED
from tailgauge_analysis.text.section import Card, Section, Table, Value

KEY = ""
COMPUTED = (
    "Calls of the whole run without preflight count; TTFT covers the steady stage.",
    "Each miss has one cause: the reason that the target gave, or else one that the client's records of earlier calls show.",
    "Partly: calls that read an earlier part of the prefix.",
)

AMPLIFICATION = "Writes per text"
RATES = (
    ("Token hit rate", "tokens read / tokens read, written or uncached"),
    ("Cacheable hit rate", "tokens read / tokens read or written"),
    ("Call hit rate", "share of the calls that read something"),
    (
        AMPLIFICATION,
        "tokens written / tokens of the distinct texts (1: each text was written once)",
    ),
)
MOST_CAUSES = 3  # in a sentence
BY_TARGET = "the target says so"


@dataclass(frozen=True, slots=True, kw_only=True)
class OverTime:
    """The share of input tokens read, by the time of sending; NaN if unknown."""

    width_s: int
    at_s: Floats
    read_share: Floats


@dataclass(frozen=True, slots=True, kw_only=True)
class Cache:
    """What the cache did for one traffic table; tokens as the target counts them."""

    traffic: str
    calls: int
    without_usage: int
    read_tokens: int
    creation_tokens: int
    uncached_tokens: int
    token_hit: shares.Share
    cacheable_hit: shares.Share
    request_hit: shares.Share
    write_amplification: shares.Share
    misses: list[Miss]
    unordered: int
    """misses counted as a race because the clocks of two workers cannot order the calls"""
    first_bytes: list[tuple[int, int]]
    """at which unstable prefixes first differ, and how often, most frequent first"""
    expiry: shares.Expiry | None
    no_expiry: str
    worth: effect.CacheEffect
    cost: Cost | None
    no_cost: str
    over_time: OverTime = field(metadata=UNPUBLISHED)

    @property
    def rates(self) -> tuple[shares.Share, ...]:
        """Return the rates in the order of RATES."""
        return (self.token_hit, self.cacheable_hit, self.request_hit, self.write_amplification)


@dataclass(frozen=True, slots=True, kw_only=True)
class EngineCache:
    """What the engine's own counters tell of the whole run, where the usage has no cached tokens."""

    engine: str
    read_tokens: float
    prompt_tokens: float


@dataclass(frozen=True, slots=True, kw_only=True)
class CacheUse:
    """The cache by traffic table, or by the engine's counters."""

    cache: list[Cache]
    """hit shares, write amplification, misses, expiry, TTFT, cost by traffic table; empty without cached traffic"""
    by_engine: EngineCache | None = field(metadata=UNPUBLISHED)


def compute(run: Run) -> CacheUse:
    """Return every traffic table that involves a cache, in the order of their names."""
    calls = run.result(cache_calls.compute)
    tables = cache_calls.by_traffic(calls)
    if not tables:
        return CacheUse(cache=[], by_engine=_by_engine(run.record))
    cause = causes(calls, cache_calls.settings(run.record), _salted(run.record))
    prices = run.result(prices_of)
    entries = []
    for name, rows in tables.items():
        entries.append(_entry(run, name, rows, cause, prices))
    return CacheUse(cache=entries, by_engine=None)


def _entry(
    run: Run, name: str, calls: pd.DataFrame, causes: pd.Series[str], prices: Tariff
) -> Cache:
    """Return what the cache did for one traffic table.

    `calls`: those of cache/calls.py, the uncounted ones included, which only the expiry needs. `causes`: the cause of a miss, of
    all calls of the run by their index.
    """
    counted_calls = calls[calls["counted"]]
    counted_causes = causes[counted_calls.index]
    # What else the table sent has no usage.
    attempts = run.frames.attempts
    is_of_table = (attempts["traffic"] == name) & (attempts["stage"] != schema.PREFLIGHT)
    sent = int((is_of_table & attempts["sent_at_ns"].notna()).sum())
    without_usage = sent - len(counted_calls)
    call_cost = cost(
        counted_calls, prices, price_share=_price_share(run, name), without_usage=without_usage
    )
    # None where no text with a known life was requested again.
    expiry = shares.expiry(calls, sliding=cache_calls.settings(run.record).sliding)
    no_expiry = ""
    if not expiry:
        no_expiry = shares.why_not(calls)
    no_cost = ""
    if not call_cost:
        no_cost = prices.why or "no price for the models of these calls"
    return Cache(
        traffic=name,
        calls=len(counted_calls),
        without_usage=without_usage,
        read_tokens=int(counted_calls["read"].sum()),
        creation_tokens=int(counted_calls["created"].sum()),
        uncached_tokens=int(counted_calls["uncached"].sum()),
        token_hit=shares.token_hit(counted_calls),
        cacheable_hit=shares.cacheable_hit(counted_calls),
        request_hit=shares.request_hit(counted_calls),
        write_amplification=shares.write_amplification(counted_calls),
        misses=misses(counted_calls, counted_causes),
        unordered=int((counted_calls["unordered"] & (counted_causes == RACE)).sum()),
        first_bytes=first_bytes(counted_calls, counted_causes),
        expiry=expiry,
        no_expiry=no_expiry,
        worth=effect.cache_effect(counted_calls),
        cost=call_cost,
        no_cost=no_cost,
        over_time=_over_time(counted_calls),
    )


def _price_share(run: Run, name: str) -> float:
    """Return what a call costs of the list price, by the pattern of its traffic."""
    requests = run.frames.requests
    pattern = requests.loc[requests["traffic"] == name, "pattern"]
    facts = run.record["patterns"].get(next(iter(pattern), None), {})
    return float(facts.get("price_share", 1.0))


def _salted(run: Json) -> set[str]:
    """Return the traffic whose prompts begin with random bytes on purpose."""
    salted = set()
    for name, settings in tables(run["scenario"], "traffic").items():
        if table(settings, "cache").get("cold") is True:
            salted.add(name)
    return salted


def _by_engine(run: Json) -> EngineCache | None:
    counted = run["engine_cache"]
    read = number(counted.get("cached"))
    prompt = number(counted.get("prompt"))
    traffic = tables(run["scenario"], "traffic")
    is_shared = any(table(settings, "cache") for settings in traffic.values())
    if read is None or not prompt or not (read or is_shared):
        return None
    engine = plain(str(counted["engine"]), 80)
    return EngineCache(engine=engine, read_tokens=read, prompt_tokens=prompt)


def _over_time(calls: pd.DataFrame) -> OverTime:
    at_s = np.nan_to_num(calls["sent_at_ns"].to_numpy(np.float64) / 1e9)
    step = width(float(at_s.max()))
    bins = np.clip(at_s // step, 0, MOST_BINS).astype(np.int64)  # a damaged row may have any time
    read = np.bincount(bins, calls["read"])
    total = np.bincount(bins, calls["total"])
    shares = np.divide(read, total, out=np.full(len(read), np.nan), where=total > 0)
    middle = (np.arange(len(read)) + 0.5).astype(np.float64) * step
    return OverTime(width_s=step, at_s=middle, read_share=shares)


def section(use: CacheUse) -> Section | None:
    """Return the section; None where no traffic involves a cache.

    `use.cache` has an entry for each traffic table with one. Without any, the counters of the engine stand for all of them.
    """
    entries = use.cache
    if not entries:
        if not use.by_engine:
            return None
        return _section_by_engine(use.by_engine)
    facts_by_name = {}
    rates_and_misses = []
    for entry in entries:
        name = plain(entry.traffic, 80)
        facts_by_name[name] = list(_facts(entry))
        suffix = ""
        if len(entries) > 1:
            suffix = f" ({name})"
        rates_and_misses += [_rates(entry, suffix), _misses(entry, suffix)]
    facts, fact_tables = side_by_side("By traffic", facts_by_name)
    formulas = [f"{title}: {formula}." for title, formula in RATES]
    return Section(
        name="cache",
        title="Prompt cache",
        answer=" ".join(map(sentence, entries)),
        facts=facts,
        tables=tuple(table for table in (*fact_tables, *rates_and_misses) if table.rows),
        figures=(*_reads_over_time(entries), *_ttft_pictures(entries)),
        computed=(*COMPUTED, *formulas),
        card=_card(entries),
    )


def _section_by_engine(counted: EngineCache) -> Section:
    part = share(counted.read_tokens / counted.prompt_tokens)
    prompt = f"{part} of {count(counted.prompt_tokens)} prompt tokens"
    text = f"{counted.engine} counts {prompt} read from its cache, those of other users included."
    if counted.engine == "vLLM":
        text += " With --enable-prompt-tokens-details its usage has them for each call."
    detail = f"of prompt tokens read, by {counted.engine}'s own counters"
    card = Card(label="cache", value=Value(part), detail=detail)
    return Section("cache", "Prompt cache", text, card=card)


def sentence(entry: Cache) -> str:
    """Return for one traffic table how much was read from the cache, what it saved, and what most misses came from.

    The share of the tokens read is None where the target reports no usage. A miss is partial where an earlier part was read.
    """
    name = plain(entry.traffic, 80)
    read_share = entry.token_hit
    if read_share.value is None:
        return f"{name}: the target reports no token usage."
    text = f"{name}: {share(read_share.value)} of input tokens were read from the cache{_interval_text(read_share)}"
    if saved := _saved_text(entry):
        text += f"; the cache changed the input cost by {saved}"
    if entry.misses:
        missed = sum(miss.calls for miss in entry.misses)
        partly_missed = sum(miss.partly for miss in entry.misses)
        text += f"; {_misses_of(missed)}"
        if partly_missed:
            text += f" ({count(partly_missed)} of them partly)"
        text += f": {_main_causes_text(entry)}"
        if len(entry.misses) > MOST_CAUSES:
            text += " and others"
    return f"{text}."


def _interval_text(rate: shares.Share) -> str:
    if rate.low is None:
        return ""
    return f" (95% CI {share_range(rate.low, rate.high)})"


def _saved_text(entry: Cache) -> str:
    """`-74% (95% CI -76% – -70%)`; empty where no price is known."""
    part = None
    if entry.cost:
        part = entry.cost.saved_share
    if part is None or not part.value:
        return ""
    interval = ""
    if part.low is not None and part.high is not None:
        interval = f" (95% CI {share_range(-part.high, -part.low)})"
    return f"{'+' if part.value < 0 else ''}{share(-part.value)}{interval}"


def _main_causes_text(entry: Cache) -> str:
    frequent = sorted(entry.misses, key=lambda miss: -miss.calls)[:MOST_CAUSES]
    texts = []
    for miss in frequent:
        name = _cause_name(miss)
        if miss.cause == FIRST and not miss.by_target:
            name = "at the first call with a prefix"
        texts.append(f"{count(miss.calls)} {name}")
    if len(entry.misses) == 1:
        return name
    return ", ".join(texts)


def _card(entries: Sequence[Cache]) -> Card | None:
    """Return what was read by the traffic table with most calls, the others in a line each; None without usage.

    The value is the share of its input tokens. Without an interval its mark says why.
    """
    reported = [entry for entry in entries if entry.token_hit.value is not None]
    if not reported:
        return None
    largest = max(reported, key=lambda entry: entry.calls)
    read_share = largest.token_hit
    lines = [*_card_lines(largest)]
    for entry in reported:
        if entry is not largest:
            read = share(entry.token_hit.value)
            lines.append(f"{plain(entry.traffic, 40)}: {read} of input tokens read")
    detail = "of input tokens read"
    if len(reported) > 1:
        detail += f" by {plain(largest.traffic, 40)}"
    interval = ""
    if read_share.low is not None:
        interval = share_range(read_share.low, read_share.high)
    mark = ""
    if not interval:
        mark = read_share.why
    value = Value(share(read_share.value), interval, mark=mark)
    return Card(label="cache", value=value, detail=detail, lines=tuple(lines))


def _card_lines(entry: Cache) -> Iterator[str]:
    part = None
    if entry.cost:
        part = entry.cost.saved_share.value
    if part:
        yield f"input cost {'+' if part < 0 else ''}{share(-part)} by the cache"
    if entry.misses:
        missed = _misses_of(sum(miss.calls for miss in entry.misses))
        yield f"{missed}: {_main_causes_text(entry)}"


def _cause_name(miss: Miss) -> str:
    if miss.by_target:
        return plain(miss.cause, 60)
    return miss.cause.replace("_", " ")


def _misses_of(n: int) -> str:
    return f"{count(n)} {'miss' if n == 1 else 'misses'}"


def _rates(entry: Cache, name: str) -> Table:
    columns = (
        ("rate", lambda row: row[0]),
        ("value", lambda row: _rate_cell(*row)),
        ("calls", lambda row: count(row[1].n)),
    )
    titles = [title for title, _ in RATES]
    return Table.of(f"Hit rates{name}", zip(titles, entry.rates, strict=True), columns)


def _rate_cell(title: str, rate: shares.Share) -> Value:
    value = share(rate.value)
    interval = share_range(rate.low, rate.high)
    if title == AMPLIFICATION:
        value = _times(rate.value)
        interval = f"{_times(rate.low)} – {_times(rate.high)}"
    if rate.low is None:
        return Value(value, rate.why)
    return Value(value, interval)


def _times(value: float | None) -> str:
    if value is None:
        return "–"
    return f"{value:.3g}"


def _misses(entry: Cache, name: str) -> Table:
    columns = (
        ("cause", _cause_name),
        ("calls", lambda miss: count(miss.calls)),
        ("partly", lambda miss: count(miss.partly)),
        ("tokens not read", lambda miss: count(miss.tokens)),
        ("evidence", _evidence),
        ("what to do", _advice),
    )
    return Table.of(f"Misses by cause{name}", entry.misses, columns, prose=(4, 5))


def _evidence(miss: Miss) -> str:
    if miss.by_target:
        return BY_TARGET
    return EVIDENCE[miss.cause]


def _advice(miss: Miss) -> str:
    if miss.by_target:
        return ADVICE_OF_TARGET.get(miss.cause, NOT_KNOWN)
    return ADVICE[miss.cause]


def _facts(entry: Cache) -> Iterator[tuple[str, str]]:
    """Yield the results of one traffic table as names and texts; what is not known has its reason."""
    token_counts = (
        (entry.read_tokens, "read"),
        (entry.creation_tokens, "written"),
        (entry.uncached_tokens, "uncached"),
    )
    tokens = ", ".join(f"{count(n)} {name}" for n, name in token_counts)
    text = f"{tokens}, in {plural(entry.calls, 'call')}"
    if entry.without_usage:
        missing = plural(entry.without_usage, "more call")
        text += f"; {missing} without usage (refused, failed or closed)"
    yield "Input tokens", text
    if entry.unordered:
        race = f"{_misses_of(entry.unordered)} counted as race"
        yield "Order unknown", f"{race}: the workers' clocks cannot order the calls"
    if entry.first_bytes:
        places = []
        for byte, n in entry.first_bytes:
            places.append(f"{count(byte)} ({plural(n, 'call')})")
        yield "First differing byte", ", ".join(places)
    if effect := entry.worth.strata:
        classes = f"{effect.strata} {'class' if effect.strata == 1 else 'classes'} of length"
        calls = f"{plural(effect.hits, 'hit')} and {_misses_of(effect.misses)} in {classes}"
        saved = f"{ms(effect.value)} ms (95% CI {ms(effect.low)} to {ms(effect.high)})"
        yield "Median TTFT saved by a hit", f"{saved} among prompts of the same length ({calls})"
    if entry.expiry:
        yield "Repeated prefixes", _expiry(entry.expiry)
    else:
        yield "Repeated prefixes", f"not estimated: {entry.no_expiry}"
    if entry.cost:
        yield from _cost(entry.cost)
    else:
        yield "Cost", f"unknown: {entry.no_cost}"


def _expiry(expiry: shares.Expiry) -> str:
    life = "the TTL"
    if expiry.life_s is not None:
        life = f"{expiry.life_s:,.4g} s"
    excess = f". {plural(expiry.excess_misses, 'call')} came within {life} of the last use and read nothing"
    life_text = f"The TTL is {'sliding' if expiry.sliding else 'fixed'} here{excess if expiry.excess_misses else ''}"
    calls = f"{plural(expiry.calls, 'call')} with a repeated prefix"
    hits = f"{share(expiry.observed.value)} of {calls} read it from the cache{_interval_text(expiry.observed)}"
    expected = f"{share(expiry.by_gaps)} of these {count(expiry.calls)} calls came within the TTL and could read it"
    return f"{hits}; {expected}. {life_text}"


def _cost(cost: Cost) -> Iterator[tuple[str, str]]:
    unit = cost.unit
    part = cost.saved_share
    remarks = ""
    if cost.unpriced:
        remarks = f"; {plural(cost.unpriced, 'call')} left out: {cost.why}"
    if cost.by_asked:
        remarks += f"; {plural(cost.by_asked, 'call')} at the price of the model that was asked for"
    if cost.at_list_price:
        remarks += (
            f"; list price for {', '.join(cost.at_list_price)}, which the price file does not have"
        )
    yield (
        "Cost",
        f"{_money(cost.total, unit)} {unit} in all, {_money(cost.input, unit)} for the input alone{remarks}",
    )
    saved = (
        f"{_money(cost.saved, unit)} {unit}, {share(part.value)} of the input cost without a cache"
    )
    yield "Saved by the cache", f"{saved}{_interval_text(part)}"


def _money(value: Fraction, unit: str) -> str:
    if unit == UNIT:
        return f"{float(value):,.0f}"
    return f"{float(value):,.4f}"


# --- figures ------------------------------------------------------------------------------------------------------

WIDE = 20  # the slowest TTFT, in fastest ones, from which their axis is logarithmic


def _reads_over_time(entries: Sequence[Cache]) -> Iterator[Picture]:
    """Draw a line for each traffic table, where one spans several bins."""
    if not any(len(entry.over_time.at_s) > 2 for entry in entries):
        return
    reads = []
    for entry in entries:
        read = 100 * entry.over_time.read_share
        name = plain(entry.traffic, 40)
        reads.append(PlotCurve(entry.over_time.at_s, read, name, steps="hvh", hover="%{y:.3~g}%"))
    step = bin_name(max(entry.over_time.width_s for entry in entries))
    yield Picture(
        name="cache-over-time",
        title="Cache reads over time",
        caption=f"Each point covers calls sent within {step}; the warm-up is included.",
        panels=(Panel("input tokens<br>read (%)", reads, scale="percent"),),
    )


def _ttft_pictures(entries: Sequence[Cache]) -> Iterator[Picture]:
    """Draw the traffic table with the most answers of which some read and some did not."""
    comparable = [entry for entry in entries if _fewest_answers(entry) >= effect.EACH]
    if not comparable:
        return
    entry = max(comparable, key=lambda entry: len(entry.worth.hit_ms) + len(entry.worth.miss_ms))
    hits = entry.worth.hit_ms
    misses = entry.worth.miss_ms
    low = min(hits[0], misses[0])
    is_wide = low > 0 and max(hits[-1], misses[-1]) / low > WIDE
    yield Picture(
        name="cache-ttft",
        title="TTFT with and without the cache",
        caption=(
            f"{plain(entry.traffic, 80)}, answers of the steady stage. The gap between the lines is not the effect of the cache "
            "alone: hits and misses may differ in length and time."
        ),
        panels=(
            Panel(
                "answers (%)",
                (_within(hits, "read from the cache"), _within(misses, "read nothing")),
                scale="percent",
            ),
        ),
        x="TTFT since sent (ms, logarithmic)" if is_wide else "TTFT since sent (ms)",
        x_scale="log" if is_wide else "linear",
    )


def _fewest_answers(entry: Cache) -> int:
    """Return the number of its hits or of its misses, whichever are fewer."""
    return min(len(entry.worth.hit_ms), len(entry.worth.miss_ms))


def _within(values: Floats, name: str) -> PlotCurve:
    """Return the share of the ascending values up to each, at few enough points."""
    ranks = np.unique(np.linspace(0, len(values) - 1, min(POINTS, len(values))).astype(np.int64))
    shares = 100 * (ranks + 1) / len(values)
    title = f"{name} ({len(values):,})"
    return PlotCurve(
        values[ranks], shares, title, steps="hv", hover="%{y:.3~g}% within %{x:,.4~g} ms"
    )
