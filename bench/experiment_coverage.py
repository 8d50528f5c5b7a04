"""How often headroom and curve cover the ground truth, in dry runs at endpoints where it is found by brute force.

    .venv/bin/python bench/experiment_coverage.py [--seeds N] [--first N] [--requests N] [--only NAME ...]

Prints a line per experiment: endpoint, seed, ground truth, interval, inside or not; then the counts. Rates of today are drawn by
seed, from an eighth of the ground truth to four fifths of it.
"""

from __future__ import annotations

import argparse
import math
import tempfile
from dataclasses import dataclass, field
from pathlib import Path
from random import Random
from typing import Any

import numpy as np

from tailgauge.dry_run.command import dry_run
from tailgauge.experiments.conduct import Conducted, conduct
from tailgauge.experiments.course import Base
from tailgauge.experiments.runners import DryRunner
from tailgauge.experiments.table import planner_of
from tailgauge.plan.resolve import resolve
from tailgauge.rows import schema
from tailgauge.scenario import model as scenarios
from tailgauge_analysis import Frames, load_frames

MINUTES = {"headroom": 15.0, "curve": 12.0}
SHARE = 0.95  # of the requests within the bound of the objective
REFUSED = 0.01  # allowed share
STEPS = 5  # of the bisection; then rates just beside it
# A full target is asked for less long than a request may take: then none is given up.
OVERLOADED_S = 400
BESIDE = (0.97, 0.99, 1.01, 1.03)
Tree = dict[str, Any]


@dataclass(frozen=True, kw_only=True)
class Endpoint:
    """An endpoint with its traffic. `near`: requests/s, about where the ground truth is; `max_ms`: the objective, TTFT p95.

    `bucket`: requests/s and requests at once, if a limit ends it.
    """

    experiment: str
    name: str
    near: float
    simulated: Tree
    traffic: Tree = field(default_factory=lambda: {"prompt_tokens": 200, "output_tokens": 30})
    max_ms: float | None = None
    bucket: tuple[float, int] | None = None

    def tree(self, rate: float, seed: int, **more: Any) -> Tree:
        """Return its scenario."""
        chat = {"pattern": "streaming", "retry": {"policy": "none"}, **self.traffic}
        tree = {
            "name": "planted",
            "seed": seed,
            "arrival": {"rate_per_s": rate},
            "traffic": {"chat": chat},
            "simulated": self.simulated,
            **more,
        }
        if self.max_ms is not None:
            tree["slo"] = {"first": {"metric": "ttft", "quantile": SHARE, "max_ms": self.max_ms}}
        return tree

    def conducted(self, seed: int, folder: Path, minutes: float) -> Conducted:
        """Conduct the experiment by dry runs."""
        today = float(f"{self.near * 2 ** Random(seed).uniform(-3, -0.3):.3g}")
        experiment = {"kind": self.experiment, "minutes": minutes}
        tree = self.tree(today, 31 * seed + 7, experiment=experiment)
        base = Base(folder / "planted.toml", scenarios.parse(tree, "planted"), (), folder)
        return conduct(planner_of(self.experiment)(base), base, DryRunner(folder), folder, lambda _: None)

    def ground_truth(self, requests: int, folder: Path) -> float:
        """Return the largest rate that holds for ever, by long runs at fixed rates."""
        if self.bucket is not None:
            return sustained_by_bucket(*self.bucket)
        if self.max_ms is None:
            return self._capacity(requests, folder)
        return self._knee(requests, folder)

    def _capacity(self, requests: int, folder: Path) -> float:
        """Return what is answered per second when three times as much is asked."""
        rate = 3 * self.near
        seconds = min(requests / 4 / self.near, OVERLOADED_S)
        frames = self._run(rate, seconds, 1, folder)
        answered = frames.requests[frames.requests["ended"] == schema.OK]  # not those dropped at the cap
        ended_s = answered["ended_at_ns"] / 1e9
        since_s = seconds / 6
        return float(((ended_s > since_s) & (ended_s <= seconds)).sum() / (seconds - since_s))

    def _knee(self, requests: int, folder: Path) -> float:
        """Return the largest rate at which no more than 5% are late: bisected, then fitted to rates beside it."""
        low, high = 0.6 * self.near, 1.5 * self.near
        for number in range(STEPS):
            middle = (low + high) / 2
            late, total = self._late(middle, requests // 4, 900 + number, folder)
            if late > (1 - SHARE) * total:
                high = middle
            else:
                low = middle
        rates = (low + high) / 2 * np.array(BESIDE)
        logits = []
        for number, rate in enumerate(rates):
            late, total = self._late(rate, requests, 950 + number, folder)
            logits.append(math.log((late + 0.5) / (total - late + 0.5)))
        slope, intercept = np.polyfit(rates, logits, 1)
        return float((math.log((1 - SHARE) / SHARE) - intercept) / slope)

    def _late(self, rate: float, requests: int, seed: int, folder: Path) -> tuple[int, int]:
        """Count the late and all requests of a long run, without its beginning."""
        seconds = requests / rate
        frames = self._run(rate, seconds, seed, folder)
        rows = frames.requests[frames.requests["scheduled_at_ns"] > 0.1 * seconds * 1e9]
        first_ns = frames.attempts.groupby("request_id")["first_content_at_ns"].min()
        waited_ms = (rows["request_id"].map(first_ns) - rows["scheduled_at_ns"]) / 1e6
        return int((~(waited_ms <= self.max_ms)).sum()), len(rows)

    def _run(self, rate: float, seconds: float, seed: int, folder: Path) -> Frames:
        limits = {"in_flight_per_worker": 60_000, "attempt_deadline_s": 600}
        tree = self.tree(rate, seed, stages={"duration_s": seconds}, limits=limits)
        path = folder / "single.toml"
        path.write_text(scenarios.toml_file(tree), encoding="utf-8")
        settings = resolve(str(path), [], folder, workers=1, sends=False)
        run = dry_run(
            settings.scenario, settings.schedule, settings.scenario_file, settings.overrides, folder
        )
        return load_frames([run.path])


def sustained_by_bucket(rate: float, calls: int) -> float:
    """Return the rate at which Poisson arrivals lose the allowed share at a bucket of so many calls: M/D/1/K, by bisection."""
    low, high = 0.2, 1.5
    for _ in range(40):
        middle = (low + high) / 2
        if _lost(middle, calls) > REFUSED:
            high = middle
        else:
            low = middle
    return low * rate


def _lost(load: float, calls: int) -> float:
    """Return the share lost by M/D/1/K with K = `calls`, from the chain at departures."""
    arrivals = [math.exp(-load) * load**k / math.factorial(k) for k in range(calls)]
    chain = np.zeros((calls, calls))
    for state in range(calls):
        first = max(state - 1, 0)
        chain[state, first : calls - 1] = arrivals[: calls - 1 - first]
        chain[state, calls - 1] = 1 - chain[state, : calls - 1].sum()
    equations = np.vstack([chain.T - np.eye(calls), np.ones(calls)])
    stationary = np.linalg.lstsq(equations, np.append(np.zeros(calls), 1.0), rcond=None)[0]
    return float(1 - 1 / (stationary[0] + load))


SHORT = {"prompt_tokens": 200, "output_tokens": 20}
REPLICAS = {"replicas": 2, "router": "least_loaded", "slots": 3, "step_ms": 7.0}
PREFIXED = {"prefixes": 12, "system_tokens": 1500, "breakpoints": ["system"]}


def headroom(name: str, limits: Tree) -> Endpoint:
    """Return an endpoint of 10 requests/s with one limit, whose bucket holds six seconds of it."""
    simulated = {"profile": "tiny", "limits": limits}
    return Endpoint(
        experiment="headroom", name=name, near=10.0, simulated=simulated, traffic=SHORT, bucket=(10.0, 60)
    )


def curve(name: str, near: float, max_ms: float, simulated: Tree, **more: Any) -> Endpoint:
    """Return an endpoint whose objective is missed above about this rate."""
    return Endpoint(experiment="curve", name=name, near=near, max_ms=max_ms, simulated=simulated, **more)


ENDPOINTS = (
    headroom("requests", {"rpm": 600}),
    headroom("input_tokens", {"itpm": 600 * 200}),
    headroom("output_tokens", {"otpm": 600 * 20}),
    Endpoint(
        experiment="headroom",
        name="capacity",
        near=11.5,
        simulated={"profile": "tiny", "engine": {"slots": 4, "step_ms": 16.0}},
        traffic=SHORT,
    ),
    curve(
        "batching",
        13.3,
        600.0,
        {"profile": "llama3-8b-h100", "engine": {"slots": 16}},
        traffic={"prompt_tokens": 100, "output_tokens": 40},
    ),
    curve("limited", 20.0, 500.0, {"profile": "tiny", "limits": {"rpm": 1200}}, bucket=(20.0, 120)),
    curve("four_slots", 19.0, 400.0, {"profile": "tiny", "engine": {"slots": 4, "step_ms": 5.5}}),
    curve(
        "two_replicas",
        19.0,
        400.0,
        {"profile": "tiny", "engine": REPLICAS, "cache": {"mode": "marked"}},
        traffic={"pattern": "cached", "prompt_tokens": 100, "output_tokens": 30, "cache": PREFIXED},
    ),
)


def ends(done: Conducted) -> tuple[float, float]:
    """Return the interval of an answer; an unknown end has no bound."""
    finding = done.answer.finding
    if done.answer.kind == "curve":
        low, high = finding.knee.low, finding.knee.high
    else:
        low, high = finding.low_per_s, finding.high_per_s
    return (0.0 if low is None else low), (math.inf if high is None else high)


def main() -> None:
    """Run the experiments and count."""
    parser = argparse.ArgumentParser(description=__doc__.partition("\n")[0])
    parser.add_argument("--seeds", type=int, default=20)
    parser.add_argument("--first", type=int, default=9001, help="the first seed")
    parser.add_argument("--requests", type=int, default=80_000, help="of a long run at a fixed rate")
    parser.add_argument(
        "--only", nargs="*", help="names of endpoints", default=[one.name for one in ENDPOINTS]
    )
    args = parser.parse_args()
    counts: dict[str, list[int]] = {}
    for endpoint in ENDPOINTS:
        if endpoint.name not in args.only:
            continue
        with tempfile.TemporaryDirectory() as name:
            expected = endpoint.ground_truth(args.requests, Path(name))
        for seed in range(args.first, args.first + args.seeds):
            with tempfile.TemporaryDirectory() as name:
                done = endpoint.conducted(seed, Path(name), MINUTES[endpoint.experiment])
            low, high = ends(done)
            inside = low <= expected <= high
            counts.setdefault(endpoint.experiment, []).append(inside)
            word = "inside" if inside else "OUTSIDE"
            width = (high - low) / expected
            place = f"{endpoint.experiment} {endpoint.name} {seed}"
            runs = f"{done.ledger.runs} runs, {done.ledger.real_s(rests=False) / 60:.1f} min"
            print(
                f"{place}: {expected:.2f} in {low:.2f} - {high:.2f} ({width:.1%}) {word}; {runs}", flush=True
            )
    for kind, found in counts.items():
        print(f"{kind}: {sum(found)} of {len(found)} inside")


if __name__ == "__main__":
    main()
