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
    """How long the gateway keeps a call."""
    sigma = table.delay_sigma
    factor = math.exp(draws(seed, "gateway", call_key).gauss(0.0, sigma)) if sigma else 1.0
    return round(table.delay_ms * factor * 1e6)
