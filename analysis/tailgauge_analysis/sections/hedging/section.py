"""The section on hedging: every traffic table that hedges beside its control, and the section's text.

A control differs by hedging alone and does not hedge. Figures are of the steady stage, without requests that were read
slowly on purpose. Latencies are of the request, from when it was scheduled; failures count as the slowest. Tables of one
run share its target at the same time: a difference between them is not the difference that switching hedging on would make.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import dataclass, field, replace

import numpy as np
import pandas as pd

from tailgauge.rows import schema
from tailgauge_analysis.metrics import latency
from tailgauge_analysis.metrics.metrics import BY_NAME, Metric
from tailgauge_analysis.metrics.steady import Steady
from tailgauge_analysis.reading.frames import ended_as
from tailgauge_analysis.run import Run
from tailgauge_analysis.sections.cache.cost import Tariff, prices_of, spent, with_usage
from tailgauge_analysis.sections.hedging import waste
from tailgauge_analysis.sections.hedging.copies import KEYS, OF_COPY, PROMPT, copies
from tailgauge_analysis.sections.hedging.engine import EngineCount, engine_count
from tailgauge_analysis.sections.hedging.waste import Waste
from tailgauge_analysis.stats import proportions
from tailgauge_analysis.stats.bootstrap import Timed, quantile_ratio_interval
from tailgauge_analysis.stats.proportions import Proportion, Ratio, proportion
from tailgauge_analysis.stats.quantiles import TOO_FEW, Quantile, quantiles
from tailgauge_analysis.stats.survival import Waits
from tailgauge_analysis.text import cells
from tailgauge_analysis.text.cells import ratio_text, ratios_text, share_cell, with_interval
from tailgauge_analysis.text.formatting import count, ms, percentile, plain, plural, share
from tailgauge_analysis.text.json_values import Json, table, tables
from tailgauge_analysis.text.picture import GREY, Mark, Picture, tail_curve, tail_picture
from tailgauge_analysis.text.quantile import UNPUBLISHED
from tailgauge_analysis.text.section import Card, Section

KEY = "hedging"
QUANTILES = (0.5, 0.95, 0.99)
METRICS = {"ttft_sched": "TTFT", "e2e_sched": "end to end", "join_sched": "join"}
OFF = "off"
IN_BLOCKS = "the comparison in alternating blocks shows what this changes"
NO_CONTROL = "gain not measured: the run has no control (an equal traffic table without hedging)"
INTERFERENCE = (
    "Variant and control ran at the same time against one target, so that the hedges of the variant also load the control. The "
    "ratios are not the effect of switching hedging on. To measure this effect, run both in alternating blocks and compare them (tailgauge compare)."
)


@dataclass(frozen=True, slots=True, kw_only=True)
class LoserCost:
    """What the losers cost, as an interval, absolute and relative to all that answered; `why` where there is no price."""

    unit: str = ""
    low: float | None = None
    high: float | None = None
    answered: float | None = None
    low_share: float | None = None
    high_share: float | None = None
    why: str = ""
    by_engine: str = ""
    """what the counters of the engines say, of all calls of the run"""


@dataclass(frozen=True, slots=True)
class ControlComparison:
    """A variant beside its control: quantiles of the variant over those of the control, by metric; the share of 429s and 529s
    minus the control's.
    """

    traffic: str
    ratios: dict[str, tuple[Ratio, ...]]
    limited: proportions.Difference


@dataclass(frozen=True, slots=True, kw_only=True)
class Variant:
    """Gain and cost of hedges by traffic table, controls first; null where a control has no value."""

    traffic: str
    policy: str
    is_control: bool
    requests: int
    latency: dict[str, tuple[Quantile, ...]]
    limited: Proportion
    """attempts that got a 429 (rate_limited) or a 529 or 503 (overloaded)"""
    legs: int
    hedged: Proportion
    won: Proportion
    no_winner: int
    held: dict[str, int]
    """requests whose hedges were held back, by the reason"""
    extra_requests: float | None
    delay: tuple[Quantile, ...]
    waste: Waste | None
    cost: LoserCost | None
    versus: ControlComparison | None
    waits: dict[str, Waits] = field(metadata=UNPUBLISHED)
    in_blocks: bool = field(metadata=UNPUBLISHED)
    """whether it is compared with its control in alternating blocks, and only there"""


def compute(run: Run) -> list[Variant]:
    """Return every traffic table that hedges, each after its control; none where nothing hedges.

    A table hedges by its policy, or where copies were sent. In a run of alternating blocks no table has a control here: the
    comparison of the blocks has it.
    """
    without_slow_readers = run.without_slow_readers
    scenario = run.record["scenario"]
    traffic = tables(scenario, "traffic")
    attempts = without_slow_readers.attempts
    traffic_with_copies = set(
        attempts.loc[attempts["cause"] == schema.HEDGE, "traffic"].astype(str)
    )
    settings_by_name: dict[str, Json] = {}
    hedging = []
    for name in sorted(map(str, attempts["traffic"].unique())):
        settings_by_name[name] = traffic.get(name, {})
        if name in traffic_with_copies or _policy(settings_by_name[name]) != OFF:
            hedging.append(name)
    if not hedging:
        return []
    # Only the columns that are needed.
    attempts = attempts[list(dict.fromkeys([*KEYS, "traffic", "cause", "of_attempt", *OF_COPY]))]
    attempts = attempts.sort_values("sent_at_ns", kind="stable")
    controls: dict[str, str] = {}
    if not table(scenario, "crossover"):
        for name in hedging:
            controls[name] = _control(settings_by_name, name, run.record["patterns"])
    attempts_by_traffic = attempts.groupby("traffic", observed=True)
    variants = {}
    for name in (*filter(None, controls.values()), *hedging):
        of_table = attempts_by_traffic.get_group(name)
        variants[name] = _Table(without_slow_readers, name, settings_by_name[name], of_table)
    engine_tokens = engine_count(run.record["engine_work"], run.frames.attempts)
    results = []
    for name, variant in variants.items():
        control = variants.get(controls.get(name, ""))
        results.append(_variant(run, variant, control, engine_tokens))
    return results


def _policy(traffic: Json) -> str:
    return str(table(traffic, "hedge").get("policy", OFF))


def _control(traffic: dict[str, Json], name: str, patterns: Json) -> str:
    """Return the table that differs by hedging alone and does not hedge; empty without one."""
    shape = _shape(traffic[name], patterns)
    for candidate, settings in traffic.items():
        if settings and _policy(settings) == OFF and _shape(settings, patterns) == shape:
            return candidate
    return ""


def _shape(traffic: Json, patterns: Json) -> Json:
    """Return what two variants must have alike; `hedged` without a hedge is like `streaming`."""
    settings = dict(traffic)
    for key in ("hedge", "weight", "tags"):
        settings.pop(key, None)
    facts = patterns.get(str(settings.get("pattern")), {})
    return {**settings, "pattern": facts.get("like") or settings.get("pattern")}


class _Table:
    """One traffic table's rows: its attempts, and by metric the quantiles and the waits of its requests."""

    def __init__(self, steady: Steady, name: str, traffic: Json, attempts: pd.DataFrame) -> None:
        """Store the attempts of a traffic table, and compute the quantiles and waits of its requests by metric.

        `attempts`: in order of sending. `traffic`: its table in the scenario; empty where the scenario has none, so that its
        policy is unknown. A metric that its requests do not have is left out.
        """
        self.name = name
        self.policy = "unknown"
        if traffic:
            self.policy = _policy(traffic)
        self.stage = steady.of_traffic(name)
        self.attempts = attempts
        self.is_copy = (attempts["cause"] == schema.HEDGE).to_numpy(np.bool_)
        self.latency: dict[str, tuple[Quantile, ...]] = {}
        self.waits: dict[str, Waits] = {}
        for metric in METRICS:
            row = latency.row(BY_NAME[metric], self.stage, latency.OFFERED, QUANTILES)
            if row.n:
                self.latency[metric] = row.quantiles
            if row.n and row.waits:
                self.waits[metric] = row.waits

    def limited(self) -> Proportion:
        """Return the share of the attempts that were refused."""
        is_limited = ended_as(self.attempts, schema.RATE_LIMITED, schema.OVERLOADED)
        return self.stage.share_of(self.attempts, is_limited)


def _variant(
    run: Run, variant: _Table, control: _Table | None, counted: EngineCount | None
) -> Variant:
    """Return what hedging did in one traffic table, and what it changed against its control.

    `control`: None where no table of the run is equal but for hedging, or for the control itself. `counted`: the tokens by the
    engines' counters, None where unknown. Waste, cost and comparison are None where the table does not hedge.
    """
    # Primary attempt and hedge of each hedged leg.
    hedged_legs = copies(variant.stage.requests, variant.attempts)
    is_hedged = bool(len(hedged_legs.copy)) or variant.policy != OFF
    legs = variant.attempts[KEYS].drop_duplicates()
    is_hedged_leg = pd.MultiIndex.from_frame(legs).isin(
        pd.MultiIndex.from_frame(hedged_legs.legs[KEYS])
    )
    held_back: dict[str, int] = {}
    reasons = variant.stage.requests["hedge_held"].dropna()
    for reason, number in reasons.value_counts().items():
        held_back[str(reason)] = int(number)
    prices = run.result(prices_of)
    # Of the legs that have a winner, in the same order.
    losers = hedged_legs.losers()
    winners = hedged_legs.winners()
    primary_attempts = int((~variant.is_copy).sum())
    tokens_wasted = None
    cost = None
    versus = None
    if is_hedged:
        tokens_wasted = waste.waste(losers, winners, run.frames.server_log)
        cost = cost_of(variant.attempts, losers, winners, prices)
        if counted is not None:
            # Adds the engines' counts; they are the cost itself where there is no price.
            cost = by_engine(cost, variant.attempts, losers, counted)
        if control:
            versus = _against_control(variant, control)
    extra_requests = None
    if primary_attempts:
        extra_requests = float(variant.is_copy.sum() / primary_attempts)
    delay: tuple[Quantile, ...] = ()
    if len(hedged_legs.copy):
        delay = tuple(quantiles(hedged_legs.delay_ms, QUANTILES))
    return Variant(
        traffic=plain(variant.name, 80),
        policy=plain(variant.policy, 40),
        is_control=not is_hedged,
        requests=len(variant.stage.requests),
        latency=variant.latency,
        waits=variant.waits,
        limited=variant.limited(),
        legs=len(legs),
        hedged=proportion(is_hedged_leg),
        won=proportion(hedged_legs.copy_won),
        no_winner=int((~hedged_legs.decided).sum()),
        held=held_back,
        extra_requests=extra_requests,
        delay=delay,
        waste=tokens_wasted,
        cost=cost,
        versus=versus,
        in_blocks=bool(table(run.record["scenario"], "crossover")),
    )


def cost_of(
    attempts: pd.DataFrame, losers: pd.DataFrame, winners: pd.DataFrame, prices: Tariff
) -> LoserCost:
    """Return the least and the most that losers cost, absolute and relative to the complete answers among these attempts.

    `losers`, `winners`: the attempts of each leg that lost and won, in the same order. The shares are None where the answers
    have no price; without a price of the losers there is only the reason.
    """
    bounds, reason = waste.cost(losers, winners, prices.price, prices.why)
    if bounds is None:
        return LoserCost(why=reason)
    complete = with_usage(attempts[attempts["ended"].isin(schema.COMPLETE)])
    answers_cost, _ = spent(complete, prices.price)
    low, high = map(float, bounds)
    answered = None
    if answers_cost is not None:
        answered = float(answers_cost)
    low_share = None
    if answered:
        low_share = low / answered
    high_share = None
    if answered:
        high_share = high / answered
    return LoserCost(
        unit=prices.unit,
        low=low,
        high=high,
        answered=answered,
        low_share=low_share,
        high_share=high_share,
    )


def by_engine(
    cost: LoserCost, attempts: pd.DataFrame, losers: pd.DataFrame, counted: EngineCount
) -> LoserCost:
    """Add what the engines counted; where the tokens have no price, they are the cost themselves.

    The tokens of calls without usage are those of the losers in proportion to their number.
    """
    if not cost.why:
        return replace(cost, by_engine=counted.text)
    usage = [*PROMPT, "output_tokens"]
    good = attempts[attempts["ended"].isin(schema.COMPLETE)]
    answered = float(good[usage].sum().sum())
    unreported = int(losers["input_tokens"].isna().sum())
    tokens = float(losers[usage].sum().sum())
    if counted.without_usage:
        tokens += counted.beyond_rows * unreported / counted.without_usage
    share_of_answers = None
    if answered:
        share_of_answers = tokens / answered
    return LoserCost(
        unit=f"tokens, by the counters of {counted.engines}",
        low=tokens,
        high=tokens,
        answered=answered,
        low_share=share_of_answers,
        high_share=share_of_answers,
        by_engine=counted.text,
    )


def _against_control(variant: _Table, control: _Table) -> ControlComparison:
    ratios: dict[str, tuple[Ratio, ...]] = {}
    for name, percentiles in variant.latency.items():
        if name not in control.latency:
            continue
        variant_waits = _waits(BY_NAME[name], variant.stage)
        control_waits = _waits(BY_NAME[name], control.stage)
        of_metric = []
        for quantile, of_control in zip(percentiles, control.latency[name], strict=True):
            interval = quantile_ratio_interval(variant_waits, control_waits, quantile, of_control)
            of_metric.append(_within(proportions.quantile_ratio(quantile, of_control), interval))
        ratios[name] = tuple(of_metric)
    limited = proportions.difference(variant.limited(), control.limited())
    return ControlComparison(plain(control.name, 80), ratios, limited)


def _waits(metric: Metric, steady: Steady) -> Timed:
    """Return the latencies of the offered requests, +inf for failures."""
    values = latency.offered_ms(metric, steady)
    is_known = ~np.isnan(values)
    return Timed(
        steady.requests["scheduled_at_ns"].to_numpy(np.float64)[is_known], values[is_known]
    )


def _within(ratio: Ratio, interval: tuple[float, float] | None) -> Ratio:
    """Return the ratio with the interval from both together, where there is one."""
    if interval is None:
        return ratio
    return replace(
        ratio,
        low=min(interval[0], ratio.value or interval[0]),
        high=max(interval[1], ratio.value or interval[1]),
    )


def section(variants: Sequence[Variant]) -> Section | None:
    """Return what hedging gained and what it cost; None where nothing hedges.

    `variants`: those of `compute`, controls among them. A figure and a table of latencies are of all; the other facts are of
    those that hedge.
    """
    if not variants:
        return None
    hedging = [variant for variant in variants if not variant.is_control]
    facts_by_traffic = {}
    answers = []
    for variant in hedging:
        facts_by_traffic[variant.traffic] = _facts(variant)
        answers.append((variant.traffic, _answer(variant)))
    facts, tables = cells.side_by_side("Hedges", facts_by_traffic)
    waits = []
    for variant in variants:
        for name, percentiles in variant.latency.items():
            waits.append((f"{variant.traffic}, {METRICS[name]}", percentiles))
    latencies = cells.quantile_table("Latency since scheduled, failures slowest", "traffic", waits)
    # Latencies side by side would invite a comparison that only the blocks can make.
    if not any(variant.in_blocks for variant in variants):
        tables = (latencies, *tables)
    has_control = any(variant.versus for variant in hedging)
    return Section(
        name="hedging",
        title="Hedging",
        answer=cells.by_traffic(answers),
        facts=facts,
        tables=tables,
        figures=tuple(_tails(variants)),
        notes=(INTERFERENCE,) if has_control else (),
        card=_card(hedging),
    )


def _answer(variant: Variant) -> str:
    """Return how much was hedged, and what it gained."""
    if not variant.hedged.k:
        held_back = ""
        if variant.held:
            held_back = f", {count(sum(variant.held.values()))} held back"
        return f"no hedge was sent in the steady stage{held_back}."
    text = f"{share(variant.hedged.value)} of {plural(variant.legs, 'call')} {'was' if variant.legs == 1 else 'were'} hedged, {share(variant.won.value)} of the hedges won"
    if not variant.versus:
        return f"{text}; {IN_BLOCKS if variant.in_blocks else NO_CONTROL}."
    for metric, ratios in variant.versus.ratios.items():
        bounded = _bounded(ratios)
        if bounded:
            changes = "; ".join(map(_change, bounded[-2:]))
            return f"{text}; {METRICS[metric]} relative to the control ({variant.versus.traffic}): {changes}."
    return f"{text}; too few requests to compare it with its control."


def _change(ratio: Ratio) -> str:
    """`p99 0.69x (95% CI 0.6 – 0.79), faster`."""
    return f"{percentile(ratio.p)} {ratio_text(ratio)}, {_direction(ratio)}"


def _bounded(ratios: Sequence[Ratio]) -> list[Ratio]:
    """Return the ratios with an interval."""
    bounded = []
    for ratio in ratios:
        if ratio.low is not None and ratio.high is not None:
            bounded.append(ratio)
    return bounded


def _direction(ratio: Ratio) -> str:
    if (ratio.high or 0.0) < 1:
        return "faster"
    return "slower" if (ratio.low or 0.0) > 1 else "no difference found"


def _card(hedging: Sequence[Variant]) -> Card | None:
    """Return how much was hedged by the traffic table with most calls, at which cost, and what the control shows."""
    main = max(hedging, key=lambda variant: variant.legs, default=None)
    if main is None or not main.legs:
        return None
    lines = [*_beside_control(main)]
    if main.hedged.k:
        lines.append(f"{share(main.won.value)} of the hedges won")
    if main.cost and main.cost.low_share is not None:
        lines.append(
            f"losing calls add {added_range(main.cost)} to the cost of the complete answers"
        )
    for variant in hedging:
        if variant is not main:
            lines.append(f"{variant.traffic}: {share(variant.hedged.value)} of calls hedged")
    return Card(
        label="hedging", value=share_cell(main.hedged), detail="of calls hedged", lines=tuple(lines)
    )


def _beside_control(variant: Variant) -> Iterator[str]:
    """`p99 -31% against the control (CI -40 to -21)`: the first metric whose highest percentile has an interval."""
    if variant.versus is None:
        return
    for ratios in variant.versus.ratios.values():
        bounded = _bounded(ratios)
        if bounded:
            ratio = bounded[-1]
            value, low, high = map(_percent_change, (ratio.value, ratio.low, ratio.high))
            yield f"{percentile(ratio.p)} {value}% against the control (CI {low} to {high})"
            return


def _percent_change(ratio: float | None) -> str:
    """`-31` of 0.69."""
    return f"{100 * (ratio or 0) - 100:+.0f}"


def _facts(variant: Variant) -> list[tuple[str, str]]:
    """Return the results of a table that hedges, as names and texts.

    `held`: requests whose hedges were held back, by the reason. `delay`: from the primary attempt to the hedge, p50 first.
    """
    rows = [("Policy", variant.policy), ("Hedge rate", f"{_counted(variant.hedged)} calls")]
    rows.append(("Won by the hedge", _counted(variant.won)))
    if variant.no_winner:
        rows.append(("No winner", plural(variant.no_winner, "hedged leg")))
    if variant.held:
        reasons = ", ".join(f"{name} {count(n)}" for name, n in variant.held.items())
        rows.append(("Held back", f"{plural(sum(variant.held.values()), 'request')}: {reasons}"))
    rows.append(("Extra requests", change_text(variant.extra_requests)))
    if variant.delay and variant.delay[0].mark != TOO_FEW:
        rows.append(("Delay of the hedges", f"p50 {ms(variant.delay[0].value)} ms"))
    if variant.waste:
        rows += _waste(variant.waste)
    rows.append(("Cost of the losers", cost_text(variant.cost)))
    if variant.cost and variant.cost.by_engine:
        rows.append(("Counted by the engines", variant.cost.by_engine))
    rows += _limited(variant.limited, variant.versus)
    if variant.versus:
        for metric, ratios in variant.versus.ratios.items():
            rows.append((f"{METRICS[metric]} over control", ratios_text(ratios)))
    return rows


def _counted(proportion: Proportion) -> str:
    """`4.2% (95% CI 3.1% – 5.3%), 42 of 1,000`."""
    if not proportion.n:
        return "none sent"
    return (
        f"{with_interval(share_cell(proportion))}, {count(proportion.k)} of {count(proportion.n)}"
    )


def added_range(cost: LoserCost) -> str:
    """`4.1% to 12.0%`, of the cost of the complete answers."""
    ends = dict.fromkeys((change_text(cost.low_share), change_text(cost.high_share)))
    return " to ".join(ends).replace("+", "")


def change_text(value: float | None) -> str:
    """`+4.1%`."""
    if value is None:
        return "unknown"
    return f"{value * 100:+.1f}%"


def _waste(losses: waste.Waste) -> Iterator[tuple[str, str]]:
    output = f"{count(losses.output_low)} – {count(losses.output_high)} in all {plural(losses.losers, 'losing call')} together; {count(losses.closed)} of them were closed before they reported their tokens"
    if losses.by_max_tokens:
        output += f"; {count(losses.by_max_tokens)} of them counted with max_tokens"
    yield "Wasted output tokens", output
    yield "Input tokens of losers", _input_tokens(losses)
    yield "Cancellation", _cancellation(losses.server_log)


def _input_tokens(losses: waste.Waste) -> str:
    """Return the input tokens of losing calls, and for how many of these calls the target reported them."""
    reported = f"{count(losses.input_reported)} of the {plural(losses.losers, 'losing call')}"
    if losses.input_reported == losses.losers:
        reported = "all losing calls"
    elif not losses.input_reported:
        reported = "none of the losing calls"
    texts = [count(losses.input_tokens), f"The target reported them for {reported}"]
    if losses.input_reported < losses.losers:
        texts.append("A call without a report counts with the input tokens of its winner")
    if losses.input_unknown:
        texts.append(
            f"The input tokens of {plural(losses.input_unknown, 'losing call')} are unknown"
        )
    return ". ".join(texts)


def _cancellation(log: waste.LosersInLog | None) -> str:
    if log is None:
        return "unknown: only the target knows what it generates after a disconnect"
    effect = log.cancel_effectiveness
    after_cancel = f"the server generated {plural(log.after_cancel_tokens, 'more token')} after the cancellation"
    if effect is None:
        return f"no tokens were left to generate; {after_cancel}"
    if effect == 1:
        return "the server stopped generating at once"
    return f"{after_cancel}; it did not generate the other {share(effect)} of the remaining tokens"


def cost_text(cost: LoserCost | None) -> str:
    """`45 to 120 USD, which adds 4.1% to 12.0% to the cost of the complete answers`, or why it is not known."""
    if cost is None or cost.low is None:
        if not cost:
            return "unknown"
        return f"unknown: {plain(cost.why, 200)}"
    low = f"{cost.low:,.6g}"
    high = f"{cost.high or cost.low:,.6g}"
    ends = low
    if high != low:
        ends = f"{low} to {high}"
    text = f"{ends} {cost.unit}"
    if cost.low_share is None:
        return text
    billed = ". The exact cost depends on what the target bills" if high != low else ""
    return f"{text}, which adds {added_range(cost)} to the cost of the complete answers{billed}"


def _limited(limited: Proportion, versus: ControlComparison | None) -> Iterator[tuple[str, str]]:
    if limited.k:
        yield "429 and 529", f"{_counted(limited)} attempts"
    else:
        yield "429 and 529", f"none in {plural(limited.n, 'attempt')}"
    if versus is None:
        return
    difference = versus.limited
    if not difference.value or difference.low is None or difference.high is None:
        return
    value = f"{100 * difference.value:+.2f} percentage points"
    interval = f"95% CI {100 * difference.low:+.2f} to {100 * difference.high:+.2f}"
    yield "429 and 529 minus control", f"{value} ({interval})"


# --- figure -------------------------------------------------------------------------------------------------------


def _tails(variants: Sequence[Variant]) -> Iterator[Picture]:
    """Draw the latency tails of controls and of their variants by the first metric that all of them have.

    Without a control the tables that hedge are drawn alone, and without any metric in common nothing. Controls are grey.
    """
    controls = set()
    for variant in variants:
        if variant.versus:
            controls.add(variant.versus.traffic)
    shown = _variants_to_draw(variants, controls)
    metric = _shared_metric(shown)
    if not shown or not metric:
        return
    curves = []
    for variant in shown:
        name = f"{variant.traffic} (hedged)"
        colour = ""
        if variant.is_control:
            name = f"{variant.traffic} (no hedges)"
            colour = GREY
        # The share of the requests that took longer than each time.
        curve = tail_curve(*variant.waits[metric].tail(), name, colour)
        if len(curve.x):
            curves.append(curve)
    title = "Latency tail with and without hedges"
    caption = f"{METRICS[metric]} since scheduled, failures slowest."
    if controls:
        caption += " The ratios have the intervals."
    else:
        title = "Latency tail with hedges"
        caption += " No control ran beside it, so that the figure shows no gain."
    if curves:
        yield tail_picture(
            curves,
            name="hedging",
            title=title,
            caption=caption,
            of="offered requests",
            marks=_delay_mark(shown),
            height=380,
        )


def _variants_to_draw(variants: Sequence[Variant], controls: set[str]) -> list[Variant]:
    """Return the controls and the variants that have one; without any, every variant with hedges that is not in blocks."""
    drawn = []
    hedging = []
    for variant in variants:
        if variant.traffic in controls or variant.versus:
            drawn.append(variant)
        if variant.hedged.k and not variant.in_blocks:
            hedging.append(variant)
    return drawn or hedging


def _shared_metric(variants: Sequence[Variant]) -> str:
    """Return the first metric of which all have waits; empty without one."""
    for name in METRICS:
        if all(name in variant.waits for variant in variants):
            return name
    return ""


def _delay_mark(variants: Sequence[Variant]) -> list[Mark]:
    """Mark the median hedge delay of the first variant that has one."""
    for variant in variants:
        if not variant.delay or variant.delay[0].value is None:
            continue
        delay_ms = variant.delay[0].value
        if not delay_ms:
            return []
        return [Mark(delay_ms, delay_ms, "hedge delay p50")]
    return []
