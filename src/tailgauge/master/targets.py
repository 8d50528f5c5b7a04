"""The targets of a run, and the simulated endpoint that stands in for one of them."""

from __future__ import annotations

from tailgauge.call import SECOND
from tailgauge.channel.child_process import Child
from tailgauge.master.embedded_endpoint import fetch_server_log, start_endpoint
from tailgauge.protocols.protocol import SIMULATED
from tailgauge.rows.run_folder import RunFolder
from tailgauge.scenario.model import Scenario
from tailgauge.simulator.behaviours import gateway


class RunTargets:
    """The targets in the order of the scenario; `urls` are those that calls go to."""

    def __init__(self, scenario: Scenario, folder: RunFolder) -> None:
        self._scenario = scenario
        self._folder = folder
        self.settings = list(scenario.targets.values())
        self.urls = [target.url for target in self.settings]
        self._endpoint: Child | None = None
        self._endpoint_url = ""

    def start_endpoint(self) -> None:
        """Start the simulated endpoint if the scenario has one, and call it instead."""
        if SIMULATED not in self.urls:
            return
        log = self._folder.path / "endpoint.log"
        self._endpoint, self._endpoint_url = start_endpoint(self._scenario, log)
        second_path = ""
        if self._scenario.has_gateway:
            second_path = gateway.PATH
        for index, path in zip(range(len(self.urls)), ("", second_path), strict=False):
            if self.urls[index] == SIMULATED:
                self.urls[index] = self._endpoint_url + path

    def stop_endpoint(self, run_id: str, *, has_started: bool) -> list[str]:
        """Fetch the server log of a run that has started, and end the endpoint. Return notes."""
        if self._endpoint is None:
            return []
        notes: list[str] = []
        if has_started:
            notes = fetch_server_log(self._endpoint_url, run_id, self._folder)
        self._endpoint.stop(3)
        return notes

    def index(self, name: str) -> int:
        """Return which target a worker names; the first where there is no second."""
        return int(name == SECOND and len(self.urls) > 1)
