"""Metrics of a run for Prometheus: the figures of the live page.

Histogram buckets are sums of sketch bins: a value within 1% of a bound may be counted on its other side. Counters restart
with each run.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterator, Mapping

from prometheus_client import CollectorRegistry
from prometheus_client.core import (
    CounterMetricFamily,
    GaugeMetricFamily,
    HistogramMetricFamily,
    InfoMetricFamily,
    Metric,
)
from prometheus_client.exposition import choose_encoder
from prometheus_client.registry import Collector

from tailgauge import quantile_sketch
from tailgauge.live.series import Point, RunView
from tailgauge.thresholds import WORST_FIRST

BOUNDS_S = (0.05, 0.1, 0.2, 0.3, 0.5, 0.75, 1.0, 1.5, 2.0, 3.0, 5.0, 7.5, 10.0, 15.0, 30.0, 60.0, 120.0)
NAMES = {
    "tailgauge_run": "Run of these figures",
    "tailgauge_run_seconds": "Time since the start of the run",
    "tailgauge_run_planned_seconds": "Length of the run by its scenario",
    "tailgauge_requests_sent": "Requests dispatched",
    "tailgauge_requests_dropped": "Requests dropped by the client at its in-flight cap",
    "tailgauge_requests_ended": "Requests by outcome",
    "tailgauge_requests_in_flight": "Requests sent and not ended",
    "tailgauge_attempts_ended": "Attempts (HTTP calls) by outcome; rate_limited: HTTP 429",
    "tailgauge_chunks": "Streamed content chunks",
    "tailgauge_ttft_seconds": "Time to first content since scheduled, of every attempt that had content",
    "tailgauge_ttft_recent_seconds": "Quantiles of the last 10 to 60 s; absent with too few first contents; 1: the maximum of 10 s",
    "tailgauge_verdict": "1 for the live verdict, 0 for the others; absent before the start",
    "tailgauge_workers": "Workers by state",
    "tailgauge_worker_cpu_cores": "CPU of a worker, 1 = one core, its maximum",
    "tailgauge_worker_clock_error_seconds": "Error bound of a worker's clock offset",
}


def exposed(view: RunView | None, last: Point, accept: str) -> tuple[bytes, str]:
    """Body and content type for a scrape that accepts these types."""
    registry = CollectorRegistry()
    registry.register(_Families(view, last))
    encode, content_type = choose_encoder(accept)
    return encode(registry), content_type


class _Families(Collector):
    """One moment of a run as a collector."""

    def __init__(self, view: RunView | None, last: Point) -> None:
        self._view, self._last = view, last

    def collect(self) -> Iterator[Metric]:
        if self._view is not None:
            yield from families(self._view, self._last)


def families(view: RunView, last: Point) -> Iterator[Metric]:
    """Every metric of a run."""
    progress = view.progress
    labels = {"run_id": view.run_id, "scenario": view.scenario, "state": view.state}
    yield InfoMetricFamily("tailgauge_run", NAMES["tailgauge_run"], labels)
    yield _gauge("tailgauge_run_seconds", max(0.0, progress.passed_s))
    yield _gauge("tailgauge_run_planned_seconds", progress.duration_s)
    yield _counter("tailgauge_requests_sent", progress.sent)
    yield _counter("tailgauge_requests_dropped", progress.dropped)
    yield _counters("tailgauge_requests_ended", "outcome", progress.ended)
    yield _gauge("tailgauge_requests_in_flight", progress.in_flight)
    yield _counters("tailgauge_attempts_ended", "outcome", progress.attempts)
    yield _counter("tailgauge_chunks", progress.chunks)
    yield _histogram("tailgauge_ttft_seconds", progress.ttft)
    recent = {"0.5": last.ttft_p50_ms, "0.99": last.ttft_p99_ms, "1": last.ttft_max_ms}
    yield _gauges(
        "tailgauge_ttft_recent_seconds", "quantile", {q: ms and ms / 1e3 for q, ms in recent.items()}
    )
    verdicts = {word: float(word == progress.verdict) for word in WORST_FIRST} if last.at_s else {}
    yield _gauges("tailgauge_verdict", "verdict", verdicts)
    yield _gauges("tailgauge_workers", "state", Counter(one.state for one in view.workers))
    cores = {str(one.worker): one.cpu for one in view.workers}
    yield _gauges("tailgauge_worker_cpu_cores", "worker", cores)
    errors = {str(one.worker): one.clock_error_ms for one in view.workers}
    in_s = {worker: None if ms is None else ms / 1e3 for worker, ms in errors.items()}
    yield _gauges("tailgauge_worker_clock_error_seconds", "worker", in_s)


def _gauge(name: str, value: float) -> Metric:
    return GaugeMetricFamily(name, NAMES[name], value)


def _gauges(name: str, label: str, values: Mapping[str, float | None]) -> Metric:
    family = GaugeMetricFamily(name, NAMES[name], labels=[label])
    for key, value in values.items():
        if value is not None:
            family.add_metric([key], value)
    return family


def _counter(name: str, value: float) -> Metric:
    return CounterMetricFamily(name, NAMES[name], value)


def _counters(name: str, label: str, values: Mapping[str, int]) -> Metric:
    family = CounterMetricFamily(name, NAMES[name], labels=[label])
    for key, value in values.items():
        family.add_metric([key], value)
    return family


def _histogram(name: str, bins: quantile_sketch.Bins) -> Metric:
    """A histogram from bins of milliseconds; the sum uses the bins' middles."""
    below = [0] * (len(BOUNDS_S) + 1)
    total_s = 0.0
    for key, count in bins.items():
        value_s = quantile_sketch.middle(key) / 1e3
        total_s += value_s * count
        below[sum(value_s > bound for bound in BOUNDS_S)] += count
    running = 0
    buckets = []
    for bound, count in zip((*map(str, BOUNDS_S), "+Inf"), below, strict=True):
        running += count
        buckets.append((bound, running))
    return HistogramMetricFamily(name, NAMES[name], buckets=buckets, sum_value=total_s)
