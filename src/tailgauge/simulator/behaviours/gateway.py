"""A gateway in front of the endpoint: calls reach the endpoint later, and an answer may leave in one piece.

The delay comes before the endpoint gets the call, so its server log shows what it would show behind any gateway.

Source: a gateway that collects a whole stream is the commonest cause of a TTFT that equals the total latency.
"""

from __future__ import annotations

import math

from tailgauge.scenario.simulated import GatewayTable
from tailgauge.simulator.behaviours.draws import draws

PATH = "/gateway"  # of its base URL, below that of the endpoint


def delay_ns(table: GatewayTable, seed: int, call_key: str) -> int:
    """Return how long the gateway keeps a call."""
    delay_ms = table.delay_ms
    if table.delay_sigma:
        delay_ms *= math.exp(draws(seed, "gateway", call_key).gauss(0.0, table.delay_sigma))
    return round(delay_ms * 1e6)
