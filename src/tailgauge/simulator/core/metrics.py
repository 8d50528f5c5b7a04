"""The counts of an inference server about its calls, and the page /metrics in the Prometheus text format, as vLLM has them.

The page has the series that Tailgauge reads from an engine. A call is waiting, then running, then gone, each at most once,
and may be gone from any state: no gauge can be left behind. Every series is there from the start, at 0.
Single calls are in the server log: http/server_log.py.

Source: vLLM's `v1/metrics/loggers.py` for names and labels; the Prometheus exposition format, version 0.0.4.
"""

from __future__ import annotations

STOP = "stop"
LENGTH = "length"
ABORT = "abort"
ERROR = "error"

CONTENT_TYPE = "text/plain; version=0.0.4; charset=utf-8"
_WAITING = 0
_RUNNING = 1
_GONE = 2


class Meters:
    """All numbers of an endpoint. `kv_cache_usage` is set just before they are rendered."""

    def __init__(self) -> None:
        self.waiting = 0
        self.running = 0
        self.generation_tokens = 0
        self.finished = dict.fromkeys((STOP, LENGTH, ABORT, ERROR), 0)
        self.prefix_cache_queries = 0  # tokens, as vLLM counts them
        self.prefix_cache_hits = 0
        self.kv_cache_usage = 0.0  # share, 0 to 1

    def received(self) -> CallMeter:
        """Count a call that has come and will be answered; it waits."""
        self.waiting += 1
        return CallMeter(self)

    def prefix_cache(self, queried_tokens: int, hit_tokens: int) -> None:
        """Count a lookup of a prompt in the prefix cache."""
        self.prefix_cache_queries += queried_tokens
        self.prefix_cache_hits += hit_tokens


class CallMeter:
    """One call on its way through the meters."""

    __slots__ = ("_meters", "_state")

    def __init__(self, meters: Meters) -> None:
        self._meters = meters
        self._state = _WAITING

    def admitted(self) -> None:
        """Count the call as running; only the first time counts."""
        if self._state == _WAITING:
            self._state = _RUNNING
            self._meters.waiting -= 1
            self._meters.running += 1

    def finished(self, reason: str, output_tokens: int) -> None:
        """Count a finished call; only the first time counts."""
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


def render(meters: Meters, model: str) -> str:
    """Return the whole page."""
    escaped = model.replace("\\", "\\\\").replace('"', '\\"').replace("\n", "\\n")
    labels = f'engine="0",model_name="{escaped}"'
    series = (
        ("num_requests_running", "gauge", meters.running),
        ("num_requests_waiting", "gauge", meters.waiting),
        ("kv_cache_usage_perc", "gauge", meters.kv_cache_usage),
        ("prefix_cache_queries_total", "counter", meters.prefix_cache_queries),
        ("prefix_cache_hits_total", "counter", meters.prefix_cache_hits),
        ("generation_tokens_total", "counter", meters.generation_tokens),
    )
    page = ""
    for name, kind, number in series:
        page += f"# TYPE vllm:{name} {kind}\nvllm:{name}{{{labels}}} {number}\n"
    page += "# TYPE vllm:request_success_total counter\n"
    for reason, count in meters.finished.items():
        page += f'vllm:request_success_total{{{labels},finished_reason="{reason}"}} {count}\n'
    return page
