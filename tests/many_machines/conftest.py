"""Runs on many hosts: namespaces with their own addresses, made and removed here.

Rule: nothing touches this machine's own network; where namespaces cannot be made, tests are skipped and say why.
"""

from __future__ import annotations

import os
from collections.abc import Iterator
from pathlib import Path

import pytest
from many_machines.network import Network, missing
from many_machines.site import Served, Site


@pytest.fixture(scope="module")
def network() -> Iterator[Network]:
    """Two switches without a host; all that is plugged in is gone at the end."""
    if why := missing():
        pytest.skip(why)
    with Network() as made:
        yield made


@pytest.fixture(scope="module")
def endpoint(network: Network, tmp_path_factory: pytest.TempPathFactory) -> Served:
    """One simulated endpoint for all runs of a file."""
    return Served(network.host("endpoint"), tmp_path_factory.mktemp("endpoint"))


@pytest.fixture
def site(network: Network, endpoint: Served, tmp_path: Path) -> Iterator[Site]:
    """A master's host and those of its workers, for one run."""
    made = Site(network, tmp_path, endpoint)
    yield made
    made.clear()


@pytest.fixture
def chaos() -> None:
    """One case alone takes half a minute: not even `make verify` has the time."""
    if os.environ.get("TAILGAUGE_CHAOS") != "1":
        pytest.skip("make chaos")
