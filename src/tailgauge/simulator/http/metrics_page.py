"""The page /metrics: an endpoint's meters in the Prometheus text format, under vLLM's names.

A series is one row of the table; every series is there from the start, at 0. The labels are vLLM's: one model, one engine. A
histogram's buckets add up; its last one, `+Inf`, is the count.

Source: vLLM's `v1/metrics/loggers.py` for names, labels and bounds; the Prometheus exposition format, version 0.0.4.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator
from itertools import accumulate

from tailgauge.simulator.core.meters import Histogram, Meters

CONTENT_TYPE = "text/plain; version=0.0.4; charset=utf-8"

_Number = Callable[[Meters], float]

_PLAIN: tuple[tuple[str, str, str, _Number], ...] = (
    ("num_requests_running", "gauge", "Requests that the engine works on.", lambda m: m.running),
    ("num_requests_waiting", "gauge", "Requests that wait for the engine.", lambda m: m.waiting),
    ("kv_cache_usage_perc", "gauge", "KV-cache usage. 1 means 100 percent.", lambda m: m.kv_cache_usage),
    ("num_preemptions_total", "counter", "Preemptions.", lambda m: m.preemptions),
    ("prefix_cache_queries_total", "counter", "Prefix cache queries, in tokens.", lambda m: m.prefix_cache_queries),
    ("prefix_cache_hits_total", "counter", "Prefix cache hits, in tokens.", lambda m: m.prefix_cache_hits),
    ("prompt_tokens_total", "counter", "Prefill tokens processed.", lambda m: m.prompt_tokens),
    ("generation_tokens_total", "counter", "Generation tokens processed.", lambda m: m.generation_tokens),
)  # fmt: skip
_HISTOGRAMS: tuple[tuple[str, str, Callable[[Meters], Histogram]], ...] = (
    ("time_to_first_token_seconds", "Time to first token in seconds.", lambda m: m.ttft_s),
    ("inter_token_latency_seconds", "Time between chunks in seconds.", lambda m: m.gap_s),
    ("e2e_request_latency_seconds", "End-to-end request latency in seconds.", lambda m: m.e2e_s),
)


def render(meters: Meters, model: str) -> str:
    """The whole page."""
    labels = f'engine="0",model_name="{_escaped(model)}"'
    lines: list[str] = []
    for name, kind, meaning, number in _PLAIN:
        lines += [*_head(name, kind, meaning), f"vllm:{name}{{{labels}}} {number(meters)}"]
    name = "request_success_total"
    lines += _head(name, "counter", "Requests that ended, by reason.")
    lines += [
        f'vllm:{name}{{{labels},finished_reason="{reason}"}} {count}'
        for reason, count in meters.finished.items()
    ]
    for name, meaning, histogram in _HISTOGRAMS:
        lines += [*_head(name, "histogram", meaning), *_buckets(name, labels, histogram(meters))]
    return "\n".join(lines) + "\n"


def _head(name: str, kind: str, meaning: str) -> list[str]:
    return [f"# HELP vllm:{name} {meaning}", f"# TYPE vllm:{name} {kind}"]


def _buckets(name: str, labels: str, histogram: Histogram) -> Iterator[str]:
    below = list(accumulate(histogram.counts))
    for bound, count in zip([*map(str, histogram.bounds), "+Inf"], below, strict=True):
        yield f'vllm:{name}_bucket{{{labels},le="{bound}"}} {count}'
    yield f"vllm:{name}_sum{{{labels}}} {histogram.total}"
    yield f"vllm:{name}_count{{{labels}}} {below[-1]}"


def _escaped(text: str) -> str:
    return text.replace("\\", "\\\\").replace('"', '\\"').replace("\n", "\\n")
