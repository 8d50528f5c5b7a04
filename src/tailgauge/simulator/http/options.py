"""What the server is started with, beside the scenario's table `[simulated]`."""

from __future__ import annotations

from dataclasses import dataclass, field
from pathlib import Path

from tailgauge.simulator.http.batches import BatchSettings

ANY_MODEL = ("tiny",)  # the default list of models: a call may name others


@dataclass(frozen=True, slots=True)
class ServerOptions:
    """Options of one server."""

    api_key: str | None = None  # None: every caller is welcome
    certfile: Path | None = None  # with keyfile: serve HTTPS
    keyfile: Path | None = None
    embed_clock: bool = False  # each text chunk starts with the clock of its write; see protocols.frames
    models: tuple[str, ...] = ANY_MODEL  # what /v1/models lists
    batches: BatchSettings = field(default_factory=BatchSettings)
    body_timeout_s: float = 60.0  # from a request's headers to the end of its body
    # Of an idle connection, longer than any client's, so that the client decides. aiohttp counts it from the connection's
    # start, so it limits the arrival of the headers too.
    keepalive_s: float = 300.0
