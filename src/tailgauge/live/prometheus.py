"""Metrics of a run for Prometheus, by traffic table and target.

Histogram buckets are sums of sketch bins: a value within 1% of a bound may be counted on its other side. Counters restart
with each run.
"""

from __future__ import annotations

from bisect import bisect_left
from collections import Counter
from collections.abc import Iterator, Mapping, Sequence
from itertools import accumulate
from typing import Any

from prometheus_client import core
from prometheus_client.core import Metric
from prometheus_client.exposition import choose_encoder
from prometheus_client.registry import Collector

from tailgauge import quantile_sketch
from tailgauge.channel.traffic_counters import SKETCHES, TOKENS, TrafficCounters
from tailgauge.live.series import RunView
from tailgauge.master.objectives import MET, MISSED
from tailgauge.thresholds import WORST_FIRST

BOUNDS_S = (
    0.05,
    0.1,
    0.2,
    0.3,
    0.5,
    0.75,
    1.0,
    1.5,
    2.0,
    3.0,
    5.0,
    7.5,
    10.0,
    15.0,
    30.0,
    60.0,
    120.0,
)
TPOT_BOUNDS_S = (
    0.002,
    0.005,
    0.01,
    0.015,
    0.02,
    0.03,
    0.04,
    0.05,
    0.075,
    0.1,
    0.15,
    0.2,
    0.3,
    0.5,
    1.0,
)
LABELS = ("traffic", "target")
HELP = {  # as scraped
    "tailgauge_run_info": "1, with `run_id`, `scenario` and `state`",
    "tailgauge_run_seconds": "Time since the start of the run",
    "tailgauge_run_planned_seconds": "Planned length of the run",
    "tailgauge_requests_sent_total": "Requests dispatched",
    "tailgauge_requests_dropped_total": "Requests dropped at the in-flight cap",
    "tailgauge_requests_in_flight": "Requests that have started and not ended",
    "tailgauge_requests_ended_total": "Requests by `traffic`, `target` and `outcome`",
    "tailgauge_attempts_ended_total": "Attempts by `traffic`, `target` and `outcome`; `rate_limited`: HTTP 429",
    "tailgauge_chunks_total": "Streamed content chunks",
    "tailgauge_input_tokens_total": "Input tokens of ended attempts by `traffic` and `target`, cached tokens included",
    "tailgauge_cached_tokens_total": "Input tokens read from a prompt cache, by `traffic` and `target`",
    "tailgauge_output_tokens_total": "Output tokens of ended attempts by `traffic` and `target`",
    "tailgauge_ttft_seconds": "Time to first content since scheduled by `traffic` and `target`, of attempts",
    "tailgauge_tpot_seconds": "Time per output token by `traffic` and `target`, of complete attempts",
    "tailgauge_e2e_seconds": "Time from scheduled to the end by `traffic` and `target`, of complete requests",
    "tailgauge_objective_met": "1 if the `objective` is met since the warm-up, 0 if it is missed; absent with too few requests",
    "tailgauge_verdict": "1 for the live `verdict`, 0 for the others; absent before the start",
    "tailgauge_workers": "Workers by `state`",
    "tailgauge_worker_cpu_cores": "CPU of a `worker`; 1 is its maximum",
    "tailgauge_worker_clock_error_seconds": "Error bound of the clock offset of a `worker`",
}


def exposed(view: RunView | None, accept: str) -> tuple[bytes, str]:
    """Body and content type for a scrape that accepts these types."""
    encode, content_type = choose_encoder(accept)
    return encode(_Families(view)), content_type


class _Families(Collector):
    """One moment of a run as a collector."""

    def __init__(self, view: RunView | None) -> None:
        self._view = view

    def collect(self) -> Iterator[Metric]:
        if self._view is not None:
            return families(self._view)
        return iter(())


def families(view: RunView) -> Iterator[Metric]:
    """Yield every metric of a run, as `HELP` lists them. `view`: the run now, with all of its workers.

    What is not known has no sample: objectives that are not judged yet, the verdict before the start, an unknown clock
    error.
    """
    progress = view.progress
    labels = {name: view.run[name] for name in ("run_id", "scenario", "state")}
    yield core.InfoMetricFamily("tailgauge_run", HELP["tailgauge_run_info"], labels)
    plain = {
        "run_seconds": max(0.0, progress.passed_s),
        "run_planned_seconds": progress.duration_s,
        "requests_sent_total": progress.sent,
        "requests_dropped_total": progress.dropped,
        "requests_in_flight": progress.in_flight,
        "chunks_total": progress.chunks,
    }
    for name, value in plain.items():
        yield _family(f"tailgauge_{name}", {(): value})
    yield from _traffic_metrics(progress.traffic)
    objectives = {}
    for objective in progress.objectives:
        if objective.state in {MET, MISSED}:
            label = f"{objective.label} {objective.bound_text}"
            objectives[(label,)] = float(objective.state == MET)
    yield _family("tailgauge_objective_met", objectives, "objective")
    verdicts = {}
    if progress.passed_s > 0:
        for verdict in WORST_FIRST:
            verdicts[(verdict,)] = float(verdict == progress.verdict)
    yield _family("tailgauge_verdict", verdicts, "verdict")
    states = Counter[tuple[str]]()
    cores = {}
    errors_s = {}
    for worker in view.workers:
        number = (str(worker["worker"]),)
        states[(worker["state"],)] += 1
        cores[number] = worker["cpu"]
        if worker["clock_error_ms"] is not None:
            errors_s[number] = worker["clock_error_ms"] / 1e3
    yield _family("tailgauge_workers", states, "state")
    yield _family("tailgauge_worker_cpu_cores", cores, "worker")
    yield _family("tailgauge_worker_clock_error_seconds", errors_s, "worker")


def _family(name: str, values: Mapping[Any, float | None], *labels: str) -> Metric:
    """Return a counter or a gauge with the values that are known, by label values."""
    kind = core.CounterMetricFamily if name.endswith("_total") else core.GaugeMetricFamily
    family = kind(name, HELP[name], labels=labels)
    for label_values, value in values.items():
        if value is not None:
            family.add_metric(label_values, value)
    return family


def _traffic_metrics(traffic: Mapping[tuple[str, str], TrafficCounters]) -> Iterator[Metric]:
    """Yield the counters of each traffic table at each target: ends by outcome, tokens, and histograms of latencies in s.

    `traffic`: by the pair of traffic table and target, as in `LABELS`.
    """
    for column in ("requests", "attempts"):
        ended = {}
        for key, counters in traffic.items():
            for outcome, count in getattr(counters, column).items():
                ended[(*key, outcome)] = count
        yield _family(f"tailgauge_{column}_ended_total", ended, *LABELS, "outcome")
    for column in TOKENS:
        tokens = {key: getattr(counters, column) for key, counters in traffic.items()}
        yield _family(f"tailgauge_{column}_total", tokens, *LABELS)
    for column in SKETCHES:
        name = f"tailgauge_{column}_seconds"
        histogram = core.HistogramMetricFamily(name, HELP[name], labels=LABELS)
        for key, counters in traffic.items():
            bounds = TPOT_BOUNDS_S if column == "tpot" else BOUNDS_S
            buckets, total_s = _buckets(getattr(counters, column), bounds)
            histogram.add_metric(key, buckets, total_s)
        yield histogram


def _buckets(
    bins: quantile_sketch.Bins, bounds_s: Sequence[float]
) -> tuple[list[tuple[str, float]], float]:
    """Cumulative buckets and the sum of bins of milliseconds; the sum uses the bins' middles."""
    counts = [0] * (len(bounds_s) + 1)
    total_s = 0.0
    for key, count in bins.items():
        value_s = quantile_sketch.middle(key) / 1e3
        total_s += value_s * count
        counts[bisect_left(bounds_s, value_s)] += count
    names = (*map(str, bounds_s), "+Inf")
    return list(zip(names, accumulate(counts), strict=True)), total_s
