"""The targets of a run as a worker reaches them: an endpoint and a connection pool each."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

from tailgauge.call import MAIN, SECOND
from tailgauge.protocols.table import Target
from tailgauge.protocols.target import Endpoint
from tailgauge.scenario.model import Scenario
from tailgauge.transport.http_transport import HttpTransport
from tailgauge.transport.reader import COMPILED


class RunTargets:
    """The main target, and the second one where the scenario has one.

    `endpoints` by the names of `call`; `urls` and `transports` in the same order. `reader` reads their sockets.
    """

    def __init__(self, scenario: Scenario, run: Mapping[str, Any]) -> None:
        self.endpoints: dict[str, Endpoint] = {}
        self.urls: list[str] = []
        self.transports: list[HttpTransport] = []
        self.reader = scenario.reader if COMPILED else "python"
        self._preopened: list[int] = []
        for name, (key, target) in zip((MAIN, SECOND), scenario.targets.items(), strict=False):
            url: str = run[key]["url"]
            transport = _transport(scenario, target, self.reader)
            additions = {traffic: table.adds for traffic, table in scenario.traffic.items()}
            self.endpoints[name] = Endpoint(url, target, transport, additions)
            self.urls.append(url)
            self.transports.append(transport)
            self._preopened.append(target.preopened)

    def preopen(self) -> list[str]:
        """Open the number of connections that each target wants; returns a text for each target that lacks some."""
        shortages = []
        for transport, url, count in zip(self.transports, self.urls, self._preopened, strict=True):
            if not count:
                continue
            opened, reason = transport.preopen(url, count)
            if reason or opened < count:
                reason = reason or "the target closed the others"
                shortages.append(
                    f"{opened:,} of {count:,} connections to {url} are open ({reason})"
                )
        return shortages

    def close(self) -> None:
        """Close every idle connection."""
        for transport in self.transports:
            transport.close()


def _transport(scenario: Scenario, target: Target, reader: str) -> HttpTransport:
    limits = scenario.limits
    return HttpTransport(
        idle_connections=target.connections,
        ca_file=target.ca_file,
        connect_timeout_s=limits.connect_timeout_s,
        send_timeout_s=limits.attempt_deadline_s,
        user_clock=scenario.clock == "user",
        reader=reader,
    )
