"""How often the hedging experiment is right, in dry runs at endpoints drawn by seed, whose ground truth is found by brute force.

    .venv/bin/python bench/hedging_coverage.py [--count N] [--first SEED] [--requests N] [--strong]

An endpoint: calls that are slow by chance, by prompt or by replica, before or after their first content; one to three replicas;
a load of .2 to 1.1 of the capacity; a hedge after a fixed delay, a quantile or at once. The ground truth is that of two long
runs at today's load, one with hedging and one without. Prints a line per endpoint, then the counts: wrong outcomes; conclusive
ones among the effects of 1.5 times what the dry run printed as detectable; labels that contradict their interval; intervals
that hold the ground truth. `--strong` draws rare and very slow calls, hedges that outrun them, and longer experiments: among
these most effects are large enough to be found.
"""

from __future__ import annotations

import argparse
import math
import tempfile
from dataclasses import dataclass, replace
from pathlib import Path
from random import Random
from typing import Any

import numpy as np
from dry_runs import Tree, conducted, long_run

from tailgauge.experiments.hedging import (
    HARM,
    HELPS,
    HURTS,
    NO_HEDGES,
    UNSTABLE,
    ComparedLoad,
    Hedging,
)
from tailgauge.rows import schema
from tailgauge_analysis import INCONCLUSIVE, PASS, Contrast, Floats

STRONG_KINDS = ("before", "straggler")  # a second call is not slow
KINDS = ("before", "after", "overhead", "straggler", "size", "brownout")
DELAYS = (0.5, 0.7, 0.8, 0.9, 0.95, 0.95, 0.99)  # quantiles of the time to first content
OVERLOADED_S = 300.0
LONGEST_MS = 1e12  # of an answer
BATCHES = 20
FULL = 0.95  # of the capacity: from here on long runs cannot show whether a backlog grows for ever
UNSTABLE_FROM = 1.15  # waits of the last third relative to the middle one's: a backlog
WORTH = (
    0.05,
    0.01,
)  # relative change of the tail, points of missed requests: smaller ones are no effect
DETECTED = 1.5  # times what is printed as detectable
LOADS = 3


@dataclass(frozen=True, slots=True, kw_only=True)
class Endpoint:
    """An endpoint with its traffic; `rate_per_s`: today's, which is `load` of its capacity."""

    kind: str
    load: float
    rate_per_s: float
    minutes: float
    traffic: Tree
    simulated: Tree
    hedge: Tree
    slo: Tree

    def tree(self, hedge: Tree, seed: int, **more: Any) -> Tree:
        """Return its scenario."""
        return {
            "name": "planted",
            "seed": seed,
            "arrival": {"rate_per_s": self.rate_per_s},
            "traffic": {"chat": {**self.traffic, "hedge": hedge}},
            "simulated": self.simulated,
            "slo": self.slo,
            **more,
        }

    def finding(self, seed: int, minutes: float, loads: int) -> tuple[Any, Hedging]:
        """Conduct the experiment; return its answer, and what it found."""
        experiment = {"kind": "hedging", "minutes": minutes, "hedging": {"loads": loads}}
        with tempfile.TemporaryDirectory() as name:
            done = conducted(self.tree(self.hedge, seed, experiment=experiment), Path(name))
        return done.answer, done.answer.finding

    def times(self, hedge: Tree, seconds: float, seed: int = 77) -> Times:
        """Return what a long run took."""
        with tempfile.TemporaryDirectory() as name:
            frames = long_run(self.tree(hedge, seed), Path(name), seconds)
        requests = frames.requests
        first_ns = frames.attempts.groupby("request_id")["first_content_at_ns"].min()
        due_ns = requests["scheduled_at_ns"]
        is_steady = (due_ns > 0.05 * seconds * 1e9).to_numpy()
        ms = ((requests["ended_at_ns"] - due_ns) / 1e6).to_numpy(np.float64)
        ended = requests["ended"].to_numpy()
        ms = np.where(ended == schema.OK, ms, np.inf)
        first_ms = ((requests["request_id"].map(first_ns) - due_ns) / 1e6).to_numpy(np.float64)
        ended_s = requests["ended_at_ns"].to_numpy(np.float64)[ended == schema.OK] / 1e9
        is_late = (ended_s > seconds / 4) & (ended_s <= seconds)
        hedges = int((frames.attempts["cause"] == schema.HEDGE).sum())
        return Times(
            ms=ms[is_steady],
            first_ms=first_ms[is_steady],
            answered_per_s=float(is_late.sum() / (0.75 * seconds)),
            hedged=hedges / len(requests),
        )


@dataclass(frozen=True, slots=True, kw_only=True)
class Times:
    """End-to-end times and times to the first content since scheduled, in order of arrival; failures are infinite."""

    ms: Floats
    first_ms: Floats
    answered_per_s: float
    hedged: float

    @property
    def is_unstable(self) -> bool:
        """Return whether waits grow for ever."""
        third = len(self.ms) // 3
        middle = float(np.median(self.ms[third : 2 * third]))
        return (
            float(np.median(self.ms[-third:]))
            > UNSTABLE_FROM * middle
            > 5 * UNSTABLE_FROM * self._alone()
        )

    def _alone(self) -> float:
        return float(np.quantile(self.ms, 0.01, method="inverted_cdf"))

    def tails(self, p: float) -> Floats:
        """Return the logarithm of the quantile, then that of each batch."""
        parts = [self.ms, *np.array_split(self.ms, BATCHES)]
        with np.errstate(divide="ignore"):
            return np.log([np.quantile(part, p, method="inverted_cdf") for part in parts])

    def missed(self, bound_ms: float) -> Floats:
        """Return the share beyond a bound, then that of each batch."""
        parts = [self.ms, *np.array_split(self.ms, BATCHES)]
        return np.array([1 - (part <= min(bound_ms, LONGEST_MS)).mean() for part in parts])


@dataclass(frozen=True, slots=True)
class Expected:
    """An effect with the standard error of its long runs."""

    value: float
    error: float

    @classmethod
    def of(cls, off: Floats, on: Floats) -> Expected:
        """Compare long runs, the first value each, by the spread of the others."""
        with np.errstate(invalid="ignore"):
            differences = on - off
            error = float(np.nanstd(differences[1:])) / math.sqrt(BATCHES)
        return cls(float(differences[0]), error)

    def holds(self, contrast: Contrast) -> bool:
        """Return whether it may lie in the interval."""
        slack = 2 * self.error
        return contrast.low - slack <= self.value <= contrast.high + slack

    def sign(self, worth: float) -> int:
        """Return 1 of harm, -1 of help, 0 of less than what is worth a change."""
        return int(np.sign(self.value)) if abs(self.value) >= worth else 0


def drawn(seed: int, *, is_strong: bool = False) -> Endpoint:
    """Draw an endpoint: its capacity and its delays come from runs without hedging."""
    random = Random(seed)
    kind = random.choice(STRONG_KINDS if is_strong else KINDS)
    slots = random.choice((1, 1, 2, 3))
    replicas = (
        random.choice((1, 2, 3)) if kind in {"straggler", "brownout"} else random.choice((1, 1, 2))
    )
    tokens = random.choice((10, 20, 40))
    capacity_per_s = random.uniform(6, 18)  # about
    step_ms = 1000 * slots * replicas / capacity_per_s / tokens
    engine: Tree = {
        "slots": slots,
        "replicas": replicas,
        "router": random.choice(("least_loaded", "random")),
        "step_ms": step_ms,
        "overhead_ms": random.choice((20.0, 60.0, 150.0)),
        "overhead_sigma": random.uniform(0.7, 1.3) if kind == "overhead" else 0.3,
        "cancel_mode": random.choice(("immediate", "next_step", "never", "after_ms")),
        "cancel_after_ms": 200.0,
    }
    share = math.exp(random.uniform(math.log(0.01), math.log(0.1)))
    factor = math.exp(random.uniform(math.log(8 if is_strong else 2), math.log(20)))
    simulated: Tree = {"profile": "tiny", "engine": engine}
    prompt_tokens = 200
    alone_s = (engine["overhead_ms"] + step_ms * tokens) / 1000
    if kind in {"before", "after"}:
        fault = {"kind": "slow_headers" if kind == "before" else "stall", "share": share}
        simulated["faults"] = {"slow": {**fault, "seconds": (factor - 1) * alone_s}}
        if kind == "after":
            simulated["faults"]["slow"]["at_chunk"] = 1
    elif kind == "straggler":
        simulated["stragglers"] = {"slow_share": share, "slow_factor": factor}
        prompt_tokens = 4000
    elif kind == "size":
        simulated["stragglers"] = {"size_sigma": random.uniform(0.4, 0.9)}
    elif kind == "brownout":
        on_s = random.uniform(2, 20)
        simulated["stragglers"] = {
            "brownout_factor": min(factor, 6.0),
            "brownout_on_s": on_s,
            "brownout_off_s": on_s * (1 / share - 1),
        }
    endpoint = Endpoint(
        kind=kind,
        load=random.uniform(*((0.15, 0.5) if is_strong else (0.2, 1.1))),
        rate_per_s=3 * capacity_per_s,
        minutes=math.exp(random.uniform(math.log(12), math.log(40))) * (3 if is_strong else 1),
        traffic={"pattern": "hedged", "prompt_tokens": prompt_tokens, "output_tokens": tokens},
        simulated=simulated,
        hedge={"policy": "off"},
        slo={},
    )
    capacity_per_s = endpoint.times(endpoint.hedge, OVERLOADED_S).answered_per_s
    rate_per_s = float(f"{endpoint.load * capacity_per_s:.3g}")
    endpoint = replace(endpoint, rate_per_s=rate_per_s)
    today = endpoint.times(endpoint.hedge, 8000 / rate_per_s)
    slo: Tree = {}
    if random.random() < 0.7:
        bound_ms = _quantile(today.ms, random.uniform(0.85, 0.99))
        slo = {"answered": {"metric": "e2e_sched", "max_ms": bound_ms}}
    delay_ms = _quantile(today.first_ms, random.choice(DELAYS))
    policy = random.choice(("fixed", "fixed", "adaptive", "adaptive", "single_r", "immediate"))
    hedge = {
        "policy": policy,
        "delay_ms": delay_ms,
        "quantile": random.choice((0.8, 0.9, 0.95)),
        "budget_share": random.choice((0.1, 0.3, 1.0)),
    }
    if is_strong:
        hedge |= {"policy": "adaptive", "quantile": random.choice((0.9, 0.95)), "budget_share": 1.0}
    return replace(endpoint, slo=slo, hedge=hedge)


def _quantile(ms: Floats, p: float) -> float:
    known = ms[np.isfinite(ms)]
    return float(f"{np.quantile(known, p, method='inverted_cdf'):.3g}")


@dataclass(frozen=True, slots=True, kw_only=True)
class Judged:
    """What became of one endpoint. `wanted`: whether it should be conclusive; `covered`: of each interval."""

    text: str
    wrong: bool
    wanted: bool
    conclusive: bool
    contradicts: bool
    covered: tuple[bool, ...]


def judged(seed: int, requests: int, *, is_strong: bool) -> Judged:
    """Draw an endpoint, find its ground truth, conduct the experiment."""
    endpoint = drawn(seed, is_strong=is_strong)
    seconds = requests / endpoint.rate_per_s
    off = endpoint.times({"policy": "off"}, seconds)
    on = endpoint.times(endpoint.hedge, seconds)
    plan, planned = endpoint.finding(seed + 500_000, endpoint.minutes / LOADS, 1)
    answer, finding = endpoint.finding(seed, endpoint.minutes, LOADS)
    today = finding.today
    p = finding.quantile or 0.99
    tail = Expected.of(off.tails(p), on.tails(p))
    bound_ms = endpoint.slo["answered"]["max_ms"] if endpoint.slo else math.inf
    missed = Expected.of(off.missed(bound_ms), on.missed(bound_ms))
    is_wrong = _is_wrong(endpoint, finding, (off, on), (tail, missed))
    smallest = planned.today.tail.smallest if planned.today and planned.today.tail else math.inf
    is_stable = not off.is_unstable
    is_wanted = is_stable and abs(tail.value) >= DETECTED * smallest and abs(tail.value) >= WORTH[0]
    contrasts = [] if today is None else [(tail, today.tail), (missed, today.missed)]
    covered = tuple(
        effect.holds(contrast) for effect, contrast in contrasts if contrast is not None
    )
    text = (
        f"{seed} {endpoint.kind} load {endpoint.load:.2f}, {endpoint.rate_per_s:g}/s, {endpoint.minutes:.0f} min, "
        f"{_hedge_text(endpoint.hedge)}, hedged {on.hedged:.1%}: true {p:g} {math.expm1(tail.value):+.1%} "
        f"(+-{2 * tail.error:.2f}), missed {missed.value:+.2%}, off {'grows' if off.is_unstable else 'stable'}, "
        f"on {'grows' if on.is_unstable else 'stable'}; plan {_plan(plan)}; {answer.result.outcome}: "
        f"{answer.result.sentence}; {_contrasts(today)}"
    )
    contradicting = [load for load in finding.loads if _contradicts(load)]
    if today is not None and answer.result.outcome == PASS and today.label in HARM:
        contradicting.append(today)
    return Judged(
        text=text,
        wrong=is_wrong,
        wanted=is_wanted,
        conclusive=answer.result.outcome != INCONCLUSIVE,
        contradicts=bool(contradicting),
        covered=covered,
    )


def _hedge_text(hedge: Tree) -> str:
    return f"{hedge['policy']} {hedge['delay_ms']:g} ms q{hedge['quantile']:g} budget {hedge['budget_share']:g}"


def _plan(answer: Any) -> str:
    text: str = answer.smallest or answer.finding.label
    return text


def _contrasts(load: ComparedLoad | None) -> str:
    if load is None:
        return "no run"
    texts = []
    if load.tail is not None:
        ends = [math.expm1(end) for end in (load.tail.value, load.tail.low, load.tail.high)]
        texts.append("tail {:+.0%} ({:+.0%} to {:+.0%})".format(*ends))
    if load.missed is not None:
        texts.append(
            f"missed {load.missed.value:+.2%} ({load.missed.low:+.2%} to {load.missed.high:+.2%})"
        )
    block = f"{len(load.run.off.ms)} pairs of {load.run.attempt.block_s:.0f} s, {load.run.off.requests} requests"
    return "; ".join([*texts, block])


def _is_wrong(
    endpoint: Endpoint,
    finding: Hedging,
    times: tuple[Times, Times],
    expected_effects: tuple[Expected, Expected],
) -> bool:
    """Return whether today's outcome contradicts the ground truth."""
    off, on = times
    label = finding.label
    if label not in {HELPS, *HARM}:
        is_unstable = off.is_unstable or endpoint.load >= FULL
        return {UNSTABLE: not is_unstable, NO_HEDGES: on.hedged > 0.001}.get(label, False)
    if off.is_unstable:
        return label == HELPS and on.is_unstable
    if on.is_unstable:
        return label == HELPS
    tail, missed = expected_effects
    signs = (tail.sign(WORTH[0] / 2), missed.sign(WORTH[1] / 2))
    if label == HELPS:
        return 1 in signs or -1 not in signs
    return 1 not in signs


def _contradicts(load: ComparedLoad) -> bool:
    """Return whether a row's label contradicts its own intervals."""
    contrasts = [contrast for contrast in (load.tail, load.missed) if contrast is not None]
    if load.label == HELPS:
        return not any(contrast.high < 0 for contrast in contrasts) or any(
            contrast.low > 0 and contrast.value >= worth
            for contrast, worth in zip((load.tail, load.missed), WORTH, strict=True)
            if contrast is not None
        )
    if load.label == HURTS:
        return not any(contrast.low > 0 for contrast in contrasts)
    return False


def main() -> None:
    """Judge the endpoints and count."""
    parser = argparse.ArgumentParser(description=__doc__.partition("\n")[0])
    parser.add_argument("--count", type=int, default=40)
    parser.add_argument("--first", type=int, default=41_000, help="the first seed")
    parser.add_argument("--requests", type=int, default=40_000, help="of a long run")
    parser.add_argument("--strong", action="store_true", help="draw effects that can be found")
    args = parser.parse_args()
    every = []
    for seed in range(args.first, args.first + args.count):
        endpoint = judged(seed, args.requests, is_strong=args.strong)
        every.append(endpoint)
        marks = [
            "WRONG" if endpoint.wrong else "right",
            "wanted" if endpoint.wanted else "",
            "conclusive" if endpoint.conclusive else "",
            "CONTRADICTS" if endpoint.contradicts else "",
            "covered" if all(endpoint.covered) else f"NOT COVERED {endpoint.covered}",
        ]
        print(f"{' '.join(filter(None, marks))}: {endpoint.text}", flush=True)
    wanted = [endpoint for endpoint in every if endpoint.wanted]
    covered = [is_covered for endpoint in every for is_covered in endpoint.covered]
    print(f"wrong: {sum(endpoint.wrong for endpoint in every)} of {len(every)}")
    print(
        f"conclusive: {sum(endpoint.conclusive for endpoint in wanted)} of {len(wanted)} that should be"
    )
    print(
        f"labels that contradict their interval: {sum(endpoint.contradicts for endpoint in every)}"
    )
    print(f"intervals that hold the ground truth: {sum(covered)} of {len(covered)}")


if __name__ == "__main__":
    main()
