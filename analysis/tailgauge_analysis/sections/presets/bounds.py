"""Bounds on latency that others set.

Rule: tables only. A use bounds the time to the first content and the whole time; MLPerf bounds the p99 of TTFT and TPOT.
They are no objectives of a run: the exit code comes from the scenario's own.
"""

from __future__ import annotations

from dataclasses import dataclass


@dataclass(frozen=True, slots=True)
class Use:
    """A kind of use and what it can wait for, in ms."""

    name: str
    ttft_ms: float
    total_ms: float


@dataclass(frozen=True, slots=True)
class Served:
    """A model as MLPerf has it served, and the p99 that it may have, in ms."""

    name: str
    ttft_ms: float
    tpot_ms: float


USES = (
    Use("code completion", 200, 2_000),
    Use("real-time chat", 500, 5_000),
    Use("summarisation", 3_000, 15_000),
    Use("batch", 10_000, 60_000),
)
MLPERF_SOURCE = "MLPerf Inference v6 rules, 2026-07"
MLPERF = (
    Served("Llama 2 70B, server", 2_000, 200), Served("Llama 2 70B, interactive", 450, 40),
    Served("Llama 3.1 8B, server", 2_000, 100), Served("Llama 3.1 8B, interactive", 500, 30),
    Served("Llama 3.1 405B, server", 6_000, 175), Served("Llama 3.1 405B, interactive", 4_500, 80),
    Served("DeepSeek-R1, server", 2_000, 80), Served("DeepSeek-R1, interactive", 1_500, 15),
    Served("GPT-OSS 120B, server", 3_000, 80), Served("GPT-OSS 120B, interactive", 2_000, 20),
    Served("Mixtral 8x7B, server", 2_000, 200),
)  # fmt: skip
