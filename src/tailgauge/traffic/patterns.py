"""The patterns by the name that a scenario gives them."""

from __future__ import annotations

from collections.abc import Callable

from tailgauge.traffic.steps import MakePattern
from tailgauge.traffic.streaming import streaming
from tailgauge.traffic_tables import Traffic

PATTERNS: dict[str, Callable[[Traffic], MakePattern]] = {"streaming": lambda _: streaming}
