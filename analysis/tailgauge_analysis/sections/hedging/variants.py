"""The arms: every traffic table that hedges, and its control, the table that differs by nothing else and does not.

Rule: steady stage, requests that were read slowly on purpose excepted. Latencies are of the logical request, since
scheduled, failures counted as slowest. Tables of one run share its target at the same time: each feels the load of the
other, so that a difference between them is not the difference that switching would make.
"""

from __future__ import annotations

from dataclasses import dataclass, replace

import numpy as np
import pandas as pd

from tailgauge.rows import schema
from tailgauge_analysis.load.frames import Frames
from tailgauge_analysis.metrics import latency
from tailgauge_analysis.metrics.metrics import BY_NAME
from tailgauge_analysis.metrics.steady import Steady
from tailgauge_analysis.sections.cache.cost import PriceOf, spent, tariff
from tailgauge_analysis.sections.hedging.copies import KEYS, OF_COPY, PROMPT, Copies, copies
from tailgauge_analysis.sections.hedging.pairs import interval, waits
from tailgauge_analysis.sections.hedging.slowness import Slowness, slowness
from tailgauge_analysis.sections.hedging.waste import Waste, cost, waste
from tailgauge_analysis.stats.quantiles import Floats, Quantile, quantiles
from tailgauge_analysis.stats.shares import Difference, Portion, Ratio, difference, portion, quantile_ratio
from tailgauge_analysis.text.json_values import Json, table

PS = (0.5, 0.95, 0.99)
METRICS = ("ttft_sched", "e2e_sched", "join_sched")
OFF = "off"
CONTENT, PLANNED = "content", "target"


@dataclass(frozen=True, slots=True)
class Margin:
    """How much later the loser's content would have come, in ms, of the legs that the copy won. `basis`: the
    simulated target told what it had planned, or both copies brought content, which only those do that were as fast.
    """

    basis: str
    n: int
    quantiles: tuple[Quantile, ...]


@dataclass(frozen=True, slots=True)
class Cost:
    """What the losers cost, as an interval, and all that answered; `why` where there is no price."""

    unit: str
    low: float | None
    high: float | None
    answered: float | None
    why: str

    @property
    def shares(self) -> tuple[float | None, float | None]:
        """The losers' cost over that of the answers."""
        if not self.answered or self.low is None or self.high is None:
            return None, None
        return self.low / self.answered, self.high / self.answered


@dataclass(frozen=True, slots=True)
class Limited:
    """Attempts that got a 429 (rate_limited) or a 529 or 503 (overloaded)."""

    of_all: Portion
    of_first: Portion
    of_copies: Portion


@dataclass(frozen=True, slots=True)
class Versus:
    """An arm beside its control: quantiles of the arm over those of the control, by metric, and which of their intervals
    are of both arms together; the share of 429s and 529s minus the control's.
    """

    traffic: str
    ratios: dict[str, tuple[Ratio, ...]]
    paired: dict[str, tuple[bool, ...]]
    limited: Difference


@dataclass(frozen=True, slots=True)
class Arm:
    """One traffic table. `hedging` parts are None for a control."""

    traffic: str
    policy: str
    is_control: bool
    requests: int
    latency: tuple[latency.Row, ...]
    limited: Limited
    legs: int
    hedged: Portion
    won: Portion
    undecided: int
    held: dict[str, int]
    budget_exhausted: int
    extra_requests: float | None
    extra_input_tokens: float | None
    delay: tuple[Quantile, ...]
    margin: Margin | None
    waste: Waste | None
    cost: Cost | None
    slowness: Slowness | None
    versus: Versus | None


def arms(frames: Frames, of_target: Steady) -> list[Arm]:
    """Every arm after its control; none where nothing hedges."""
    tables = table(frames.run["scenario"], "traffic")
    rows = of_target.attempts
    present = sorted(map(str, rows["traffic"].unique()))
    sent = set(rows.loc[rows["cause"] == schema.HEDGE, "traffic"].astype(str))
    hedging = [name for name in present if name in sent or _policy(table(tables, name)) != OFF]
    if not hedging:
        return []
    rows = rows[list(dict.fromkeys([*KEYS, "traffic", "cause", "of_attempt", *OF_COPY]))]
    rows = rows.sort_values("sent_at_ns", kind="stable")
    by_name = {str(name): of for name, of in rows.groupby("traffic", observed=True)}
    controls = {name: _control(frames.run, name, present) for name in hedging}
    found = [
        _Arm(frames, of_target, name, table(tables, name), by_name[name])
        for name in [*dict.fromkeys(control for control in controls.values() if control), *hedging]
    ]
    by = {one.name: one for one in found}
    prices = tariff(frames.run)
    return [
        one.told(prices.unit, prices.price, prices.why, by.get(controls.get(one.name) or "")) for one in found
    ]


def _policy(traffic: Json) -> str:
    return str(table(traffic, "hedge").get("policy", OFF))


def _control(run: Json, name: str, names: list[str]) -> str | None:
    """The table that differs by hedging alone and does not hedge."""
    tables, patterns = table(run["scenario"], "traffic"), run["patterns"]
    shape = _shape(table(tables, name), patterns)
    for other in names:
        traffic = table(tables, other)
        if traffic and _policy(traffic) == OFF and _shape(traffic, patterns) == shape:
            return other
    return None


def _shape(traffic: Json, patterns: Json) -> Json:
    """What two variants must have alike; `hedged` without a hedge is like `streaming`."""
    kept = {k: v for k, v in traffic.items() if k not in {"hedge", "weight", "tags"}}
    facts = patterns.get(str(kept.get("pattern")), {})
    return {**kept, "pattern": facts.get("like") or kept.get("pattern")}


class _Arm:
    """One traffic table's rows."""

    def __init__(
        self, frames: Frames, steady: Steady, name: str, traffic: Json, attempts: pd.DataFrame
    ) -> None:
        self.name, self.policy = name, _policy(traffic) if traffic else "unknown"
        self.stage = steady.only((steady.requests["traffic"] == name).to_numpy(np.bool_))
        self.attempts, self.truth = attempts, frames.server_log
        rows = (latency.row(BY_NAME[metric], self.stage, latency.OFFERED, PS) for metric in METRICS)
        self.latency = tuple(row for row in rows if row.n)
        first = attempts["cause"] != schema.HEDGE
        self.is_copy = ~first.to_numpy(np.bool_)
        self.firsts = attempts[first].drop_duplicates(KEYS)

    def told(self, unit: str, price: PriceOf, why: str, control: _Arm | None) -> Arm:
        """Everything that is said of it."""
        found = copies(self.stage.requests, self.attempts)
        hedges = bool(len(found.copy)) or self.policy != OFF
        legs = self.attempts[KEYS].drop_duplicates()
        hedged = pd.MultiIndex.from_frame(legs).isin(pd.MultiIndex.from_frame(found.legs[KEYS]))
        held = self.stage.requests["hedge_held"].dropna().value_counts()
        return Arm(
            traffic=self.name,
            policy=self.policy,
            is_control=not hedges,
            requests=len(self.stage.requests),
            latency=self.latency,
            limited=self.limited(),
            legs=len(legs),
            hedged=portion(hedged),
            won=portion(found.copy_won),
            undecided=int((~found.decided).sum()),
            held={str(name): int(n) for name, n in held.items()},
            budget_exhausted=int(held.get("budget", 0)),
            extra_requests=_over(int(self.is_copy.sum()), int((~self.is_copy).sum())),
            extra_input_tokens=self._extra_input(found),
            delay=tuple(quantiles(found.delay_ms, PS)) if hedges and len(found.copy) else (),
            margin=_margin(found, self.truth) if hedges else None,
            waste=waste(found, self.truth) if hedges else None,
            cost=self._cost(found, unit, price, why) if hedges else None,
            slowness=slowness(found, self.firsts, control.firsts if control else None) if hedges else None,
            versus=_versus(self, control) if control and hedges else None,
        )

    def limited(self) -> Limited:
        """Attempts that were refused."""
        said = self.attempts["ended"].isin((schema.RATE_LIMITED, schema.OVERLOADED)).to_numpy(np.bool_)
        return Limited(portion(said), portion(said[~self.is_copy]), portion(said[self.is_copy]))

    def _extra_input(self, found: Copies) -> float | None:
        """Prompt tokens of the copies over those of all other calls that were served."""
        own = _prompts(self.attempts)[~self.is_copy]
        other = _prompts(found.copy).fillna(_prompts(found.first))
        return _over(float(other.sum()), float(own.sum() + self._first_untold(found)))

    def _first_untold(self, found: Copies) -> float:
        """Prompts of first calls that were closed before they told, from their copies."""
        untold = _prompts(found.first).isna()
        return float(_prompts(found.copy)[untold].sum())

    def _cost(self, found: Copies, unit: str, price: PriceOf, why: str) -> Cost:
        ends, why = cost(found, price, why)
        if ends is None:
            return Cost("", None, None, None, why)
        return Cost(unit, float(ends[0]), float(ends[1]), self._answered(price), "")

    def _answered(self, price: PriceOf) -> float | None:
        """Cost of the attempts that answered."""
        good = self.attempts[(self.attempts["ended"] == schema.OK) & self.attempts["output_tokens"].notna()]
        total, _ = spent(good, good["model"].fillna(""), price)
        return None if total is None else float(total)


def _prompts(rows: pd.DataFrame) -> pd.Series[float]:
    return rows[list(PROMPT)].sum(axis=1).where(rows["input_tokens"].notna())


def _over(more: float, of: float) -> float | None:
    return more / of if of else None


def _versus(arm: _Arm, control: _Arm) -> Versus:
    by = {row.metric.name: row.quantiles for row in control.latency}
    ratios: dict[str, tuple[Ratio, ...]] = {}
    paired: dict[str, tuple[bool, ...]] = {}
    for row in arm.latency:
        under = by.get(row.metric.name)
        if under is None:
            continue
        sides = waits(row.metric, arm.stage), waits(row.metric, control.stage)
        pairs = list(zip(row.quantiles, under, strict=True))
        ends = [interval(*sides, a, b) for a, b in pairs]
        plain = [quantile_ratio(a, b) for a, b in pairs]
        ratios[row.metric.name] = tuple(
            one
            if end is None
            else replace(one, low=min(end[0], one.value or end[0]), high=max(end[1], one.value or end[1]))
            for one, end in zip(plain, ends, strict=True)
        )
        paired[row.metric.name] = tuple(end is not None for end in ends)
    return Versus(control.name, ratios, paired, difference(arm.limited().of_all, control.limited().of_all))


def _margin(found: Copies, truth: pd.DataFrame) -> Margin | None:
    """None where no loser's content is known: it is closed when the winner's comes."""
    losers, winners = found.losers(), found.winners()
    copy_won = found.copy_won[found.decided]
    at = winners["first_content_at_ns"].to_numpy(np.float64)
    both: Floats = losers["first_content_at_ns"].to_numpy(np.float64) - at
    basis, planned = CONTENT, _planned(losers, truth) - at
    if not np.isnan(planned[copy_won]).all():  # of every loser, not only of those that were nearly as fast
        basis, both = PLANNED, planned
    known = copy_won & ~np.isnan(both)
    if not known.any():
        return None
    return Margin(basis, int(known.sum()), tuple(quantiles(both[known] / 1e6, PS)))


def _planned(losers: pd.DataFrame, truth: pd.DataFrame) -> Floats:
    """When the target would have begun to answer, where it had drawn that beforehand."""
    keys = [*KEYS, "attempt"]
    named = (
        truth[truth["planned_ttft_ns"].notna() & truth["request_id"].notna()]
        .drop_duplicates(keys)
        .set_index(keys)
    )
    at = (named["received_at_ns"] + named["planned_ttft_ns"]).reindex(
        pd.MultiIndex.from_frame(losers[keys].astype("int64"))
    )
    return at.to_numpy(np.float64)
