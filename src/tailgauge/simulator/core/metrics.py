"""What an inference server counts about its calls, and the page /metrics in the Prometheus text format, as vLLM has them.

Plain numbers, changed by method calls that are given the time. A call is waiting, then running, then gone, each at most once,
and may be gone from any state: no gauge can be left behind. A series of the page is one row of its table; every series is there
from the start, at 0. The labels are vLLM's: one model, one engine.

Source: vLLM's `v1/metrics/loggers.py` for names, labels and bounds; the Prometheus exposition format, version 0.0.4.
"""

from __future__ import annotations

from bisect import bisect_left
from collections.abc import Callable, Iterable, Iterator, Sequence
from itertools import accumulate, pairwise

STOP, LENGTH, ABORT, ERROR = REASONS = ("stop", "length", "abort", "error")

# vLLM's own bounds, so that a dashboard made for it shows the same resolution.
TTFT_BOUNDS_S = (
    0.001, 0.005, 0.01, 0.02, 0.04, 0.06, 0.08, 0.1, 0.25, 0.5, 0.75, 1.0, 2.5, 5.0, 7.5, 10.0, 20.0, 40.0, 80.0, 160.0,
    640.0, 2560.0,
)  # fmt: skip
GAP_BOUNDS_S = (
    0.01, 0.025, 0.05, 0.075, 0.1, 0.15, 0.2, 0.3, 0.4, 0.5, 0.75, 1.0, 2.5, 5.0, 7.5, 10.0, 20.0, 40.0, 80.0,
)  # fmt: skip
E2E_BOUNDS_S = (
    0.3, 0.5, 0.8, 1.0, 1.5, 2.0, 2.5, 5.0, 10.0, 15.0, 20.0, 30.0, 40.0, 50.0, 60.0, 120.0, 240.0, 480.0, 960.0, 1920.0,
    7680.0,
)  # fmt: skip

_WAITING, _RUNNING, _GONE = range(3)


class Histogram:
    """Counts of values by upper bounds; a value on a bound is below it, and the last count has no bound."""

    def __init__(self, bounds: Sequence[float]) -> None:
        self.bounds = bounds
        self.counts = [0] * (len(bounds) + 1)
        self.total = 0.0

    def observe(self, values: Iterable[float]) -> None:
        """Count values."""
        for value in values:
            self.counts[bisect_left(self.bounds, value)] += 1
            self.total += value


class Meters:
    """All of an endpoint's numbers. Who renders them sets `kv_cache_usage` before."""

    def __init__(self) -> None:
        self.waiting = self.running = 0
        self.prompt_tokens = self.generation_tokens = 0
        self.finished = dict.fromkeys(REASONS, 0)
        self.prefix_cache_queries = self.prefix_cache_hits = 0  # tokens, as vLLM counts them
        self.preemptions = 0
        self.kv_cache_usage = 0.0  # share, 0 to 1
        self.ttft_s, self.gap_s, self.e2e_s = map(Histogram, (TTFT_BOUNDS_S, GAP_BOUNDS_S, E2E_BOUNDS_S))

    def received(self, now_ns: int, prompt_tokens: int) -> CallMeter:
        """A call that will be answered has come; it waits."""
        self.waiting += 1
        return CallMeter(self, now_ns, prompt_tokens)

    def prefix_cache(self, queried_tokens: int, hit_tokens: int) -> None:
        """A prompt was looked up in the prefix cache."""
        self.prefix_cache_queries += queried_tokens
        self.prefix_cache_hits += hit_tokens


class CallMeter:
    """One call on its way through the meters."""

    __slots__ = ("_meters", "_prompt_tokens", "_received_ns", "_state", "_ttft_known")

    def __init__(self, meters: Meters, received_ns: int, prompt_tokens: int) -> None:
        self._meters = meters
        self._received_ns = received_ns
        self._prompt_tokens = prompt_tokens
        self._state = _WAITING
        self._ttft_known = False

    def admitted(self) -> None:
        """The engine has taken it up."""
        if self._state == _WAITING:
            self._state = _RUNNING
            self._meters.waiting -= 1
            self._meters.running += 1

    def first_token(self, now_ns: int) -> None:
        """The prompt has been read and the first token made."""
        self.admitted()
        if self._state == _RUNNING and not self._ttft_known:
            self._ttft_known = True
            self._meters.prompt_tokens += self._prompt_tokens
            self._meters.ttft_s.observe([(now_ns - self._received_ns) / 1e9])

    def finished(self, now_ns: int, reason: str, output_tokens: int, sent_at_ns: Sequence[int] = ()) -> None:
        """Count a finished call; `sent_at_ns`: send times of its chunks, for the gap histogram."""
        meters = self._meters
        if self._state == _GONE:
            return
        if self._state == _WAITING:
            meters.waiting -= 1
        else:
            meters.running -= 1
        self._state = _GONE
        meters.finished[reason] += 1
        meters.generation_tokens += output_tokens
        meters.gap_s.observe((later - earlier) / 1e9 for earlier, later in pairwise(sent_at_ns))
        meters.e2e_s.observe([(now_ns - self._received_ns) / 1e9])


# --- the page /metrics -----------------------------------------------------------------------------------------


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
    escaped = model.replace("\\", "\\\\").replace('"', '\\"').replace("\n", "\\n")
    labels = f'engine="0",model_name="{escaped}"'
    lines: list[str] = []
    for name, kind, meaning, number in _PLAIN:
        lines += [*_head(name, kind, meaning), f"vllm:{name}{{{labels}}} {number(meters)}"]
    name = "request_success_total"
    lines += _head(name, "counter", "Requests that ended, by reason.")
    for reason, count in meters.finished.items():
        lines.append(f'vllm:{name}{{{labels},finished_reason="{reason}"}} {count}')
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
