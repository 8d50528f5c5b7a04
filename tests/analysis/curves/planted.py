"""Load curves with a known truth: a queue in front of an engine, measured with noise of a known size."""

import math

import numpy as np

from tailgauge_analysis.curves.curve import Curve, CurvePoint, Ends, Objective

SPREAD = {"p50": 1.0, "p90": 2.3, "p95": 3.0, "p99": 4.6}
LOADS = (1.5, 3.0, 6.0, 9.0, 12.0, 14.0, 15.0, 18.0, 24.0)


def curve(
    seed=0, *, noise=0.02, capacity=19.0, base_ms=60.0, bound_ms=800.0, loads=LOADS, by="rate", today=6.0, gpus=None, runs=3, tokens=128.0, **of
):  # fmt: skip
    """Its knee is where the p95 meets the bound: capacity (1 - 3 base / bound). `noise`: of each run, relative; each point has
    `runs` of them, and its interval is that of their mean by Student's t.
    """
    rng = np.random.default_rng(seed)
    t = {2: 12.706, 3: 4.303, 4: 3.182, 5: 2.776, 8: 2.365}[runs]

    def seen(truth):
        logs = math.log(truth) + noise * rng.standard_normal(runs)
        value, half = logs.mean(), t * logs.std(ddof=1) / math.sqrt(runs)
        return Ends(*(float(math.exp(one)) for one in (value, value - half, value + half)))

    knee = capacity * (1 - SPREAD["p95"] * base_ms / bound_ms)
    points = []
    for load in loads:
        rate = load if by == "rate" else load / (0.1 + load / capacity)
        stable = rate < capacity
        wait = base_ms / (1 - rate / capacity) if stable else 20_000 + 60_000 * (1 - capacity / rate)
        served = min(rate, capacity)
        tpot = 8.0 * (1 + 2 * min(1.0, rate / capacity))
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
        by=by, today=today, objectives=(Objective("ttft", "p95", bound_ms, f"ttft p95 < {bound_ms:g} ms"),), points=tuple(points),
        knee=seen(knee), binds=f"ttft p95 < {bound_ms:g} ms", saturation=seen(capacity * tokens), saturation_load=seen(capacity),
        gpus=gpus, **{"scenario": "chat", "target": "simulated", "model": "planted", **of},
    )  # fmt: skip
