"""Load curves that are known: a queue in front of an engine, measured with noise of a known size."""

import json
import math
from dataclasses import replace

import numpy as np

from tailgauge_analysis.comparing.curve import Curve, CurveObjective, CurvePoint, Ends
from tailgauge_analysis.text.quantile import plain_values

SPREAD = {"p50": 1.0, "p90": 2.3, "p95": 3.0, "p99": 4.6}
LOADS = (1.5, 3.0, 6.0, 9.0, 12.0, 14.0, 15.0, 18.0, 24.0)
STUDENT = {2: 12.706, 3: 4.303, 4: 3.182, 8: 2.365}  # by runs


def curve(
    seed=0, *, noise=0.02, capacity=19.0, base_ms=60.0, bound_ms=800.0, loads=LOADS, by="rate", runs=3, tokens=128.0, **of
):  # fmt: skip
    """Its knee is where the p95 meets the bound: capacity (1 - 3 base / bound). `noise`: of each run, relative; a point has
    `runs` of them, and each interval is that of their mean by Student's t.
    """
    rng = np.random.default_rng(seed)

    def seen(planted):
        logs = math.log(planted) + noise * rng.standard_normal(runs)
        value, half = logs.mean(), STUDENT[runs] * logs.std(ddof=1) / math.sqrt(runs)
        return Ends(*(float(math.exp(one)) for one in (value, value - half, value + half)))

    knee, label = capacity * (1 - SPREAD["p95"] * base_ms / bound_ms), f"ttft p95 < {bound_ms:g} ms"
    points = []
    for load in map(float, loads):
        rate = load if by == "rate" else load / (0.1 + load / capacity)
        stable, served = rate < capacity, min(rate, capacity)
        wait = (
            base_ms / (1 - rate / capacity) if stable else 20_000 + 60_000 * (1 - capacity / rate)
        )
        tpot = 8.0 * (1 + 2 * served / capacity)
        latency = {
            "ttft": {name: seen(wait * times) for name, times in SPREAD.items()},
            "e2e": {name: seen(wait * times + tpot * tokens) for name, times in SPREAD.items()},
            "tpot": {name: seen(tpot * (1 + times / 20)) for name, times in SPREAD.items()},
        }
        points.append(CurvePoint(
            load=load, runs=tuple(f"run-{load:g}-{i}" for i in range(runs)), seconds=60.0 * runs, requests=int(60 * runs * rate),
            complete=min(1.0, capacity / rate), refused=Ends(0.0, 0.0, 0.004), growth_per_s=None if stable else rate - capacity,
            stable=stable, meets="PASS" if rate < knee else "FAIL", requests_per_s=seen(served),
            output_tokens_per_s=seen(served * tokens), good_per_s=seen(served * (0.99 if rate < knee else 0.3)), latency=latency,
            user_tokens_per_s=seen(1000 / tpot), prompt_tokens=512.0, output_tokens=tokens,
        ))  # fmt: skip
    return Curve(
        by=by, objectives=(CurveObjective("ttft", "p95", bound_ms, label),), points=tuple(points), knee=seen(knee), binds=label,
        saturation=seen(capacity * tokens), saturation_load=seen(capacity),
        **{"today": 6.0, "gpus": None, "scenario": "chat", "target": "simulated", "model": "planted", **of},
    )  # fmt: skip


def with_latency(of, at, quantile, ends):
    """The same with another TTFT at one of its points."""
    point = of.points[at]
    latency = {**point.latency, "ttft": {**point.latency["ttft"], quantile: ends}}
    points = list(of.points)
    points[at] = replace(point, latency=latency)
    return replace(of, points=tuple(points))


def tree_of(of, run_id="20261123T120000Z-chat-0001"):
    """Its report.json, as far as it is read."""
    return {
        "kind": "curve", "run_id": run_id, "dry_run": True, "measurement": {"verdict": "VALID"}, "facts": plain_values(of),
    }  # fmt: skip


def written(of, folder, run_id="20261123T120000Z-chat-0001", **keys):
    """Its report.json below a folder for reports; returns the folder of the report."""
    place = folder / "reports" / run_id
    place.mkdir(parents=True)
    (place / "report.json").write_text(json.dumps({**tree_of(of, run_id), **keys}))
    return place
