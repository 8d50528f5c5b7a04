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

BOUNDS_S = (0.05, 0.1, 0.2, 0.3, 0.5, 0.75, 1.0, 1.5, 2.0, 3.0, 5.0, 7.5, 10.0, 15.0, 30.0, 60.0, 120.0)
TPOT_BOUNDS_S = (0.002, 0.005, 0.01, 0.015, 0.02, 0.03, 0.04, 0.05, 0.075, 0.1, 0.15, 0.2, 0.3, 0.5, 1.0)
OF = ("traffic", "target")
NAMES = {  # as scraped
    "tailgauge_run_info": "1, with `run_id`, `scenario` and `state`",
    "tailgauge_run_seconds": "Time since the start of the run",
    "tailgauge_run_planned_seconds": "Planned length of the run",
    "tailgauge_requests_sent_total": "Requests dispatched",
    "tailgauge_requests_dropped_total": "Requests dropped by the client at its in-flight cap",
    "tailgauge_requests_in_flight": "Requests begun and not ended",
    "tailgauge_requests_ended_total": "Requests by `traffic`, `target` and `outcome`",
    "tailgauge_attempts_ended_total": "Attempts by `traffic`, `target` and `outcome`; `rate_limited`: HTTP 429",
    "tailgauge_chunks_total": "Streamed content chunks",
    "tailgauge_input_tokens_total": "Input tokens of ended attempts by `traffic` and `target`, cached ones included",
    "tailgauge_cached_tokens_total": "Of these, tokens read from a prompt cache",
    "tailgauge_output_tokens_total": "Output tokens of ended attempts by `traffic` and `target`",
    "tailgauge_ttft_seconds": "Time to first content since scheduled by `traffic` and `target`, of attempts",
    "tailgauge_tpot_seconds": "Time per output token by `traffic` and `target`, of complete attempts",
    "tailgauge_e2e_seconds": "Time from scheduled to the end by `traffic` and `target`, of complete requests",
    "tailgauge_objective_met": "By `objective`: 1 if met since the warm-up, 0 if missed; absent with too few requests",
    "tailgauge_verdict": "1 for the live `verdict` on the measurement, 0 for the others; absent before the start",
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
        return families(self._view) if self._view is not None else iter(())


def families(view: RunView) -> Iterator[Metric]:
    """Every metric of a run."""
    progress = view.progress
    labels = {name: view.run[name] for name in ("run_id", "scenario", "state")}
    yield core.InfoMetricFamily("tailgauge_run", NAMES["tailgauge_run_info"], labels)
    plain = {
        "run_seconds": max(0.0, progress.passed_s), "run_planned_seconds": progress.duration_s,
        "requests_sent_total": progress.sent, "requests_dropped_total": progress.dropped,
        "requests_in_flight": progress.in_flight, "chunks_total": progress.chunks,
    }  # fmt: skip
    yield from (_family(f"tailgauge_{name}", {(): value}) for name, value in plain.items())
    yield from _of_traffic(progress.traffic)
    judged = [one for one in progress.objectives if one.state in {MET, MISSED}]
    met = {(f"{one.label} {one.bound_text}",): float(one.state == MET) for one in judged}
    yield _family("tailgauge_objective_met", met, "objective")
    known = WORST_FIRST if progress.passed_s > 0 else ()
    verdicts = {(verdict,): float(verdict == progress.verdict) for verdict in known}
    yield _family("tailgauge_verdict", verdicts, "verdict")
    yield _family("tailgauge_workers", Counter((one["state"],) for one in view.workers), "state")
    cores = {(str(one["worker"]),): one["cpu"] for one in view.workers}
    yield _family("tailgauge_worker_cpu_cores", cores, "worker")
    errors = {(str(one["worker"]),): one["clock_error_ms"] for one in view.workers}
    in_s = {worker: None if ms is None else ms / 1e3 for worker, ms in errors.items()}
    yield _family("tailgauge_worker_clock_error_seconds", in_s, "worker")


def _family(name: str, values: Mapping[Any, float | None], *labels: str) -> Metric:
    """A counter or a gauge: what is known of its values, by label values."""
    kind = core.CounterMetricFamily if name.endswith("_total") else core.GaugeMetricFamily
    family = kind(name, NAMES[name], labels=labels)
    for of, value in values.items():
        if value is not None:
            family.add_metric(of, value)
    return family


def _of_traffic(traffic: Mapping[tuple[str, str], TrafficCounters]) -> Iterator[Metric]:
    """What each traffic table got of each target."""
    for what in ("requests", "attempts"):
        ended = {(*key, end): n for key, each in traffic.items() for end, n in getattr(each, what).items()}
        yield _family(f"tailgauge_{what}_ended_total", ended, *OF, "outcome")
    for what in TOKENS:
        tokens = {key: getattr(each, what) for key, each in traffic.items()}
        yield _family(f"tailgauge_{what}_total", tokens, *OF)
    for what in SKETCHES:
        name = f"tailgauge_{what}_seconds"
        histogram = core.HistogramMetricFamily(name, NAMES[name], labels=OF)
        for key, counters in traffic.items():
            bounds = TPOT_BOUNDS_S if what == "tpot" else BOUNDS_S
            buckets, total_s = _buckets(getattr(counters, what), bounds)
            histogram.add_metric(key, buckets, total_s)
        yield histogram


def _buckets(bins: quantile_sketch.Bins, bounds_s: Sequence[float]) -> tuple[list[tuple[str, float]], float]:
    """Cumulative buckets and the sum of bins of milliseconds; the sum uses the bins' middles."""
    below = [0] * (len(bounds_s) + 1)
    total_s = 0.0
    for key, count in bins.items():
        value_s = quantile_sketch.middle(key) / 1e3
        total_s += value_s * count
        below[bisect_left(bounds_s, value_s)] += count
    names = (*map(str, bounds_s), "+Inf")
    return list(zip(names, accumulate(below), strict=True)), total_s
