"""What the endpoint is told when it starts.

Rule: plain frozen values; each behaviour can be switched off by its value. The scenario holds the defaults of what a
user may set.
"""

from __future__ import annotations

from dataclasses import dataclass
from pathlib import Path

from tailgauge.simulator.latency import Latency


@dataclass(frozen=True, slots=True)
class Settings:
    """How the endpoint behaves."""

    latency: Latency
    embed_clock: bool = False  # each chunk's text starts with the clock of its write; see frames
    headers_early: bool = False  # headers leave at receipt, not with the first event
    api_key: str | None = None  # None: every caller is welcome
    models: tuple[str, ...] = ("tiny",)  # what /v1/models lists; calls may name any model
    certfile: Path | None = None  # with keyfile: serve HTTPS
    keyfile: Path | None = None
