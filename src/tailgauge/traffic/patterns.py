"""The patterns by the name that a scenario gives them.

Each is built once for a traffic table and worker: what its requests share (budgets, throttles, recent times) is in what
is built.
"""

from __future__ import annotations

from collections.abc import Callable

from tailgauge.traffic.batch import batch
from tailgauge.traffic.fan_out import fan_out
from tailgauge.traffic.progressive import progressive
from tailgauge.traffic.steps import MakePattern
from tailgauge.traffic.streaming import streaming
from tailgauge.traffic.structured import structured
from tailgauge.traffic_tables import Traffic

PATTERNS: dict[str, Callable[[Traffic], MakePattern]] = {
    "streaming": streaming,
    "cached": streaming,  # its prompts carry the marks
    "hedged": streaming,  # its table carries the policy
    "fan_out": fan_out,
    "structured": structured,
    "progressive": progressive,
    "batch": batch,
}
