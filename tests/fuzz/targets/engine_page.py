"""The page /metrics of an engine: counts, or none; never an exception and no count that cannot be."""

from __future__ import annotations

from master.test_engine_metrics import LLAMA, VLLM

from tailgauge.master.engine_metrics import parse_count


def corpus() -> list[bytes]:
    return [VLLM.encode(), LLAMA.encode()]


def check(data: bytes) -> None:
    count = parse_count(data.decode("utf-8", "replace"))
    if count is not None:
        numbers = (count.tokens, count.calls, count.prompt, count.cached, count.completed)
        assert all(number is None or number >= 0 for number in numbers), count
