"""The tables `[target]` and `[second_target]` of a scenario, as far as they are the same for every protocol.

`table.Target` adds the table of each protocol.
"""

from __future__ import annotations

import re
from urllib.parse import urlsplit

from pydantic import Field, field_validator, model_validator

from tailgauge.address import is_loopback
from tailgauge.table import Table

SIMULATED = "simulated"


class TargetSettings(Table):
    """Where the traffic goes."""

    url: str = Field(
        SIMULATED, description="base URL of the target, or `simulated` for the embedded endpoint"
    )
    protocol: str = Field("anthropic", description="wire protocol")
    model: str = Field("tiny", min_length=1, description="model named in each request")
    api_key_env: str | None = Field(
        None,
        pattern=r"^[A-Za-z_][A-Za-z0-9_]*$",
        description="environment variable with the key for this target; without it a key is sent only to the provider's own host",
    )
    ca_file: str | None = Field(
        None, description="PEM file of a certificate authority to trust for this target"
    )
    connections: int = Field(1000, ge=1, le=60_000, description="idle connections kept by each worker")
    preopened: int = Field(
        0,
        ge=0,
        le=60_000,
        description="connections, TLS included, that each worker opens before the run; at most `connections`",
    )

    @field_validator("url")
    @classmethod
    def _url(cls, value: str) -> str:
        if value == SIMULATED:
            return value
        match = re.fullmatch(r"(https?)://([^/\s?#]+)(/[^\s?#]*)?", value)
        if not match:
            raise ValueError("must be `simulated` or http(s)://HOST[:PORT][/PATH] without a query")
        if "@" in match.group(2):
            raise ValueError("must not carry a user name or password: keys come from the environment")
        port = re.fullmatch(r"(?:\[[0-9A-Fa-f:.]+\]|[^:\[\]]+)(?::(\d{1,5}))?", match.group(2))
        if not port or (port.group(1) is not None and not 0 < int(port.group(1)) < 65536):
            raise ValueError("must name a host and, if any, a port between 1 and 65535")
        return value.rstrip("/")

    @model_validator(mode="after")
    def _kept(self) -> TargetSettings:
        if self.preopened > self.connections:
            raise ValueError(f"preopened: more than the {self.connections} connections that a worker keeps")
        return self

    @property
    def is_local(self) -> bool:
        """Whether the target is on this machine: simulated, `localhost`, or a loopback address."""
        if self.url == SIMULATED:
            return True
        return is_loopback(urlsplit(self.url).hostname or "")
