"""The patterns by the name that a scenario gives them.

Each is built once for a traffic table and worker: what its requests share (budgets, throttles, recent times) is in what
is built.
"""

from __future__ import annotations

from collections.abc import Callable

from tailgauge.patterns.batch import batch
from tailgauge.patterns.events import MakePattern
from tailgauge.patterns.fan_out import fan_out
from tailgauge.patterns.progressive import progressive
from tailgauge.patterns.settings import Traffic
from tailgauge.patterns.streaming import streaming
from tailgauge.patterns.structured import structured

PATTERNS: dict[str, Callable[[Traffic], MakePattern]] = {
    "streaming": streaming,
    "cached": streaming,  # its prompts carry the marks
    "hedged": streaming,  # its table carries the policy
    "fan_out": fan_out,
    "structured": structured,
    "progressive": progressive,
    "batch": batch,
}
