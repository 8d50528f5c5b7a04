"""How often headroom and curve cover the ground truth, in dry runs at endpoints where it is found by brute force.

    .venv/bin/python bench/experiment_coverage.py [--seeds N] [--first N] [--requests N] [--only NAME ...] [--planted]

Every kind of traffic (sessions, fan-outs, retries, jobs, mixes) has endpoints for headroom and for curve; `--planted` adds
plain requests at limits and queues. Prints a line per experiment: endpoint, seed, ground truth, interval, inside or not; then
the counts. Rates of today are drawn by seed, from an eighth of the ground truth to four fifths of it.
"""

from __future__ import annotations

import argparse
import math
import tempfile
from dataclasses import dataclass, field, replace
from pathlib import Path
from random import Random
from typing import Any

import bucket_oracle
import numpy as np
from dry_runs import Tree, conducted, long_run

from tailgauge.experiments.conduct import Conducted
from tailgauge.rows import schema
from tailgauge_analysis import Floats, Frames

MINUTES = {"headroom": 15.0, "curve": 12.0}
SHARE = 0.95  # of the requests within the bound of the objective
REFUSED = 0.01  # allowed share
STEPS = 5  # of the bisection; then rates just beside it
# A full target is asked for less long than a request may take: then none is given up.
OVERLOADED_S = 400
LIMITED_CALLS = 250_000
BESIDE = (0.97, 0.99, 1.01, 1.03)


@dataclass(frozen=True, kw_only=True)
class Endpoint:
    """An endpoint with its traffic. `near`: arrivals/s, about where the ground truth is; `max_ms`: the objective at p95, on
    `metric`; 0: the p95 at the rate `near`, double that where a limit ends it.

    `bucket`: requests/s and requests at once, if a limit on plain requests ends it.
    """

    experiment: str
    name: str
    near: float
    simulated: Tree
    tables: Tree = field(
        default_factory=lambda: {"chat": {"prompt_tokens": 200, "output_tokens": 30}}
    )
    metric: str = "ttft"
    max_ms: float | None = None
    bucket: tuple[float, int] | None = None
    more: Tree = field(default_factory=dict)

    def tree(self, rate: float, seed: int, **more: Any) -> Tree:
        """Return its scenario."""
        defaults = {"pattern": "streaming", "retry": {"policy": "none"}}
        tree = {
            "name": "planted",
            "seed": seed,
            "arrival": {"rate_per_s": rate},
            "traffic": {name: {**defaults, **table} for name, table in self.tables.items()},
            "simulated": self.simulated,
            **self.more,
            **more,
        }
        if self.max_ms:
            tree["slo"] = {
                "late": {"metric": self.metric, "quantile": SHARE, "max_ms": self.max_ms}
            }
        return tree

    def conducted(self, seed: int, folder: Path, minutes: float) -> Conducted:
        """Conduct the experiment by dry runs."""
        today = float(f"{self.near * 2 ** Random(seed).uniform(-3, -0.3):.3g}")
        experiment = {"kind": self.experiment, "minutes": minutes}
        return conducted(self.tree(today, 31 * seed + 7, experiment=experiment), folder)

    def bounded(self, requests: int, folder: Path) -> Endpoint:
        """Return it with the bound of its objective."""
        if self.max_ms != 0:
            return self
        times = 2.0 if "limits" in self.simulated else 1.0
        rate = self.near / times
        waits_ms = self._waits_ms(self._run(rate, requests / 8 / rate, 899, folder))
        p95_ms = float(np.quantile(waits_ms, SHARE, method="inverted_cdf"))
        return replace(self, max_ms=float(f"{times * p95_ms:.3g}"))

    def ground_truth(self, requests: int, folder: Path) -> float:
        """Return the largest rate that holds for ever, by long runs at fixed rates."""
        if self.bucket is not None:
            return sustained_by_bucket(*self.bucket)
        limits = self.simulated.get("limits")
        if limits is not None:
            return bucket_oracle.sustained(self.tables, bucket_of(limits), REFUSED, LIMITED_CALLS)
        if self.max_ms is None and "queue_cap" not in self.simulated["engine"]:
            return self._capacity(requests, folder)
        return self._crossing(requests, folder)

    def _capacity(self, requests: int, folder: Path) -> float:
        """Return what is answered per second when more is asked: first three times as much, then little more than that."""
        capacity = self.near
        for times in (3.0, 1.2):
            rate = times * capacity
            seconds = min(requests / 4 / self.near, OVERLOADED_S)
            frames = self._run(rate, seconds, 1, folder)
            answered = frames.requests[
                frames.requests["ended"] == schema.OK
            ]  # not those dropped at the cap
            ended_s = answered["ended_at_ns"] / 1e9
            since_s = seconds / 6
            per_s = ((ended_s > since_s) & (ended_s <= seconds)).sum() / (seconds - since_s)
            capacity = float(per_s) / self._requests_per_arrival(folder)
        return capacity

    def _requests_per_arrival(self, folder: Path) -> float:
        """Return the mean over many conversations that the target answers at once."""
        frames = self._run(0.3 * self.near, 3000 / self.near, 2, folder)
        ids = frames.requests["request_id"]
        return len(ids) / (ids // schema.TURNS).nunique()

    def _crossing(self, requests: int, folder: Path) -> float:
        """Return the rate at which a share is the allowed one: bisected, then fitted to rates beside it."""
        low, high = 0.5 * self.near, 1.6 * self.near
        for number in range(STEPS):
            middle = (low + high) / 2
            if self._excess(middle, requests // 4, 900 + number, folder) > 0:
                high = middle
            else:
                low = middle
        rates = (low + high) / 2 * np.array(BESIDE)
        excesses = [
            self._excess(rate, requests, 950 + number, folder) for number, rate in enumerate(rates)
        ]
        slope, intercept = np.polyfit(rates, excesses, 1)
        return float(-intercept / slope)

    def _excess(self, rate: float, requests: int, seed: int, folder: Path) -> float:
        """Return by how much a share is beyond the allowed one in a long run, on the scale of the logistic."""
        seconds = requests / rate
        frames = self._run(rate, seconds, seed, folder)
        calls = frames.attempts[frames.attempts["sent_at_ns"] > 0.1 * seconds * 1e9]
        calls = calls[~calls["cause"].isin([schema.POLL, schema.CANCEL])]
        refused = calls["ended"].isin([schema.RATE_LIMITED, schema.OVERLOADED])
        excess = _logit(int(refused.sum()), len(calls)) - _logit(REFUSED, 1.0)
        if self.max_ms is None:
            return excess
        waits_ms = self._waits_ms(frames)
        late = int((~(waits_ms <= self.max_ms)).sum())
        return max(excess, _logit(late, len(waits_ms)) - _logit(1 - SHARE, 1.0))

    def _waits_ms(self, frames: Frames) -> Floats:
        """Return the time to the event of the metric, without the run's beginning; infinite without one."""
        due_ns = frames.requests["scheduled_at_ns"]
        rows = frames.requests[due_ns > 0.1 * due_ns.max()]
        if self.metric == "ttft":
            first_ns = frames.attempts.groupby("request_id")["first_content_at_ns"].min()
            event_ns = rows["request_id"].map(first_ns)
        else:
            event_ns = rows["ended_at_ns"].where(rows["ended"] == schema.OK)
        waits_ms = (event_ns - rows["scheduled_at_ns"]) / 1e6
        values_ms: Floats = waits_ms.fillna(math.inf).to_numpy(np.float64)
        return values_ms

    def _run(self, rate: float, seconds: float, seed: int, folder: Path) -> Frames:
        return long_run(self.tree(rate, seed), folder, seconds)


def _logit(count: float, total: float) -> float:
    extra = 0.5 if total > 1 else 0.0
    return math.log((count + extra) / (total - count + extra))


def bucket_of(limits: Tree) -> bucket_oracle.Bucket:
    """Return the bucket of the only limit of a `tiny` endpoint, which holds six seconds of it."""
    by_tokens = "itpm" in limits
    per_minute = limits["itpm"] if by_tokens else limits["rpm"]
    return bucket_oracle.Bucket(per_minute / 60, per_minute // 10, by_tokens)


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
        experiment="headroom",
        name=name,
        near=10.0,
        simulated=simulated,
        tables={"chat": SHORT},
        bucket=(10.0, 60),
    )


def curve(name: str, near: float, max_ms: float, simulated: Tree, **more: Any) -> Endpoint:
    """Return an endpoint whose objective is missed above about this rate."""
    return Endpoint(
        experiment="curve", name=name, near=near, max_ms=max_ms, simulated=simulated, **more
    )


PLANTED = (
    headroom("requests", {"rpm": 600}),
    headroom("input_tokens", {"itpm": 600 * 200}),
    headroom("output_tokens", {"otpm": 600 * 20}),
    Endpoint(
        experiment="headroom",
        name="capacity",
        near=11.5,
        simulated={"profile": "tiny", "engine": {"slots": 4, "step_ms": 16.0}},
        tables={"chat": SHORT},
    ),
    curve(
        "batching",
        13.3,
        600.0,
        {"profile": "llama3-8b-h100", "engine": {"slots": 16}},
        tables={"chat": {"prompt_tokens": 100, "output_tokens": 40}},
    ),
    curve("limited", 20.0, 500.0, {"profile": "tiny", "limits": {"rpm": 1200}}, bucket=(20.0, 120)),
    curve("four_slots", 19.0, 400.0, {"profile": "tiny", "engine": {"slots": 4, "step_ms": 5.5}}),
    curve(
        "two_replicas",
        19.0,
        400.0,
        {"profile": "tiny", "engine": REPLICAS, "cache": {"mode": "marked"}},
        tables={
            "chat": {
                "pattern": "cached",
                "prompt_tokens": 100,
                "output_tokens": 30,
                "cache": PREFIXED,
            }
        },
    ),
)

# --- every kind of traffic: near an arrival rate, and what makes it -------------------------------------------------

CONVERSATION = {
    "prompt_tokens": 60,
    "output_tokens": 30,
    "session": {"turns_mean": 5.0, "think_s": 0.3, "think_sigma": 0.6},
}
FAN = {"pattern": "fan_out", "prompt_tokens": 80, "output_tokens": 20, "fan_out": {"legs": 5}}
POLITE = {
    **SHORT,
    "retry": {"policy": "polite", "max_retries": 4, "budget_share": 0.5, "deadline_s": 30.0},
}
NAIVE = {**SHORT, "retry": {"policy": "naive", "max_retries": 2, "naive_wait_s": 0.2}}
JOB = {
    "pattern": "job",
    "prompt_tokens": 100,
    "output_tokens": 30,
    "job": {"poll_s": 0.3, "deadline_s": 60.0},
}
JOBS_TARGET = {
    "target": {
        "url": "simulated",
        "protocol": "sse",
        "sse": {
            "path": "/v1/chat/completions",
            "input_tokens": "/usage/prompt_tokens",
            "output_tokens": "/usage/completion_tokens",
            "body": {
                "model": "{model}",
                "max_tokens": "{max_tokens}",
                "messages": [{"role": "user", "content": "{prompt}"}],
            },
            "jobs": {"state": "/status", "result_url": "/result_url"},
        },
    }
}
TURNAROUND = {"turnaround_s": 1.0, "turnaround_sigma": 0.3}
MIX = {
    "chat": {**SHORT, "weight": 6.0},
    "questions": {"pattern": "cached", **SHORT, "cache": PREFIXED, "weight": 3.0},
    "research": {**FAN, "weight": 1.0},
}
TALKS = {"talk": {**CONVERSATION, "weight": 1.0}, "chat": {**SHORT, "weight": 2.0}}


def both(
    kind: str, near: float, tables: Tree, simulated: Tree, **more: Any
) -> tuple[Endpoint, Endpoint]:
    """Return an endpoint for headroom without an objective, and one for curve with an objective on the p95 at 0.9 of its rate."""
    simulated = {"profile": "tiny", **simulated}
    metric = more.pop("metric", "ttft")
    plain = Endpoint(
        experiment="headroom", name=kind, near=near, simulated=simulated, tables=tables, more=more
    )
    return plain, replace(plain, experiment="curve", near=0.9 * near, metric=metric, max_ms=0.0)


def slots(count: int, step_ms: float) -> Tree:
    """Return an engine with so many slots."""
    return {"engine": {"slots": count, "step_ms": step_ms}}


KINDS = (
    *both("sessions_limited", 2.0, {"chat": CONVERSATION}, {"limits": {"rpm": 600}}),
    *both("sessions_queueing", 2.5, {"chat": CONVERSATION}, slots(4, 9.0)),
    *both("fan_outs_limited", 4.0, {"search": FAN}, {"limits": {"rpm": 1200}}, metric="join_sched"),
    *both("fan_outs_queueing", 4.0, {"search": FAN}, slots(4, 10.0), metric="join_sched"),
    *both("retries_polite", 10.0, {"chat": POLITE}, {"limits": {"rpm": 600}}, metric="e2e"),
    *both(
        "retries_naive",
        11.0,
        {"chat": NAIVE},
        {"engine": {"slots": 4, "step_ms": 16.0, "queue_cap": 8}},
    ),
    *both(
        "jobs_requests",
        5.0,
        {"reports": JOB},
        {"limits": {"rpm": 300}, "jobs": TURNAROUND},
        metric="turnaround",
        **JOBS_TARGET,
    ),
    *both(
        "jobs_tokens",
        8.0,
        {"reports": JOB},
        {"limits": {"itpm": 48_000}, "jobs": TURNAROUND},
        metric="turnaround",
        **JOBS_TARGET,
    ),
    *both("mixes_limited", 8.0, MIX, {"limits": {"rpm": 670}, "cache": {"mode": "marked"}}),
    *both("mixes_queueing", 5.0, TALKS, slots(4, 12.0)),
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
    parser.add_argument("--seeds", type=int, default=10, help="of each endpoint")
    parser.add_argument("--first", type=int, default=9001, help="the first seed")
    parser.add_argument(
        "--requests", type=int, default=40_000, help="of a long run at a fixed rate"
    )
    parser.add_argument("--planted", action="store_true", help="add plain requests")
    parser.add_argument("--only", nargs="*", default=[], help="names of endpoints")
    args = parser.parse_args()
    counts: dict[str, list[bool]] = {}
    for endpoint in (*KINDS, *PLANTED) if args.planted else KINDS:
        if args.only and endpoint.name not in args.only:
            continue
        with tempfile.TemporaryDirectory() as name:
            bounded = endpoint.bounded(args.requests, Path(name))
            expected = bounded.ground_truth(args.requests, Path(name))
        for seed in range(args.first, args.first + args.seeds):
            is_inside = covers(bounded, seed, expected)
            kind = f"{endpoint.experiment} {endpoint.name.partition('_')[0]}"
            counts.setdefault(kind, []).append(is_inside)
    for kind, insides in counts.items():
        print(f"{kind}: {sum(insides)} of {len(insides)} inside")
    every = [is_inside for insides in counts.values() for is_inside in insides]
    print(f"all: {sum(every)} of {len(every)} inside")


def covers(endpoint: Endpoint, seed: int, expected: float) -> bool:
    """Return whether the interval of an experiment holds the ground truth; print both."""
    with tempfile.TemporaryDirectory() as name:
        done = endpoint.conducted(seed, Path(name), MINUTES[endpoint.experiment])
    low, high = ends(done)
    is_inside = low <= expected <= high
    word = "inside" if is_inside else "OUTSIDE"
    width = (high - low) / expected
    place = f"{endpoint.experiment} {endpoint.name} {seed}"
    runs = f"{done.ledger.runs} runs, {done.ledger.real_s(rests=False) / 60:.1f} min"
    interval = f"{expected:.3f} in {low:.3f} - {high:.3f} ({width:.1%}) {word}"
    print(f"{place}: {interval}; {runs}: {done.answer.result.sentence}", flush=True)
    return is_inside


if __name__ == "__main__":
    main()
