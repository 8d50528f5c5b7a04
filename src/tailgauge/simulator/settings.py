"""What the endpoint is told when it starts.

Rule: plain frozen values; each behaviour can be switched off by its value, and is by default. The scenario holds the
defaults of what a user may set.
"""

from __future__ import annotations

from dataclasses import dataclass, field
from pathlib import Path

from tailgauge.simulator.batches import BatchSettings
from tailgauge.simulator.billing import BillSettings
from tailgauge.simulator.content import ContentSettings
from tailgauge.simulator.engine.config import EngineConfig
from tailgauge.simulator.faults import FaultSettings
from tailgauge.simulator.latency import Latency
from tailgauge.simulator.limits import LimitSettings
from tailgauge.simulator.models import OPEN
from tailgauge.simulator.prefix_cache import CacheSettings
from tailgauge.simulator.proxy import ProxySettings
from tailgauge.simulator.stragglers import StragglerSettings


@dataclass(frozen=True, slots=True)
class Settings:
    """How the endpoint behaves."""

    latency: Latency
    engine: EngineConfig | None = None  # None: each call by `latency`, as if it were alone
    limits: LimitSettings = field(default_factory=LimitSettings)
    cache: CacheSettings = field(default_factory=CacheSettings)
    cache_block_tokens: int = 16  # of automatic caching
    stragglers: StragglerSettings = field(default_factory=StragglerSettings)
    faults: FaultSettings = field(default_factory=FaultSettings)
    proxy: ProxySettings = field(default_factory=ProxySettings)
    billing: BillSettings = field(default_factory=BillSettings)
    content: ContentSettings = field(default_factory=ContentSettings)
    batches: BatchSettings = field(default_factory=BatchSettings)
    embed_clock: bool = False  # each chunk's text starts with the clock of its write; see frames
    headers_early: bool = False  # headers leave at receipt, not with the first event
    api_key: str | None = None  # None: every caller is welcome
    models: tuple[str, ...] = OPEN  # what /v1/models lists; with the default, calls may name any model
    body_timeout_s: float = 60.0  # from a request's headers to the end of its body
    keepalive_s: float = (
        300.0  # of an idle connection, longer than any client's, so that the client decides; see answers
    )
    certfile: Path | None = None  # with keyfile: serve HTTPS
    keyfile: Path | None = None
