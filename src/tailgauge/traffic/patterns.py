"""The patterns by the name that a scenario gives them."""

from __future__ import annotations

from tailgauge.traffic.steps import MakePattern
from tailgauge.traffic.streaming import streaming

PATTERNS: dict[str, MakePattern] = {"streaming": streaming}
