"""Which replica serves a call.

A choice from the loads (calls running, waiting and under way, by replica); ties go to the first replica.
"""

from __future__ import annotations

from collections import OrderedDict
from collections.abc import Hashable, Sequence

from tailgauge.simulator.engine import draws
from tailgauge.simulator.engine.config import EngineConfig
from tailgauge.simulator.engine.job import Job

_MAX_PREFIXES = 100_000  # remembered; the one unused for longest goes


class Router:
    """One of the four routers of the scenario."""

    def __init__(self, config: EngineConfig, seed: int) -> None:
        self._seed, self._slack = seed, config.affinity_slack
        self._replica_of: OrderedDict[Hashable, int] = OrderedDict()
        self._choose = {
            "random": self._random,
            "least_loaded": _least_loaded,
            "prefix_affinity": self._prefix_affinity,
            "hash": self._hash,
        }[config.router]

    def choose(self, job: Job, loads: Sequence[int]) -> int:
        """Index of the replica."""
        return 0 if len(loads) == 1 else self._choose(job, loads)

    def _random(self, job: Job, loads: Sequence[int]) -> int:
        return int(draws.uniform(self._seed, job.key, "route") * len(loads))

    def _hash(self, job: Job, loads: Sequence[int]) -> int:
        """The same replica for all calls of a session, else of a prefix; a call without either is spread."""
        keys = (job.session_key, job.prefix_key, job.key)
        key = next(key for key in keys if key is not None)
        return int(draws.uniform(self._seed, key, "hash") * len(loads))

    def _prefix_affinity(self, job: Job, loads: Sequence[int]) -> int:
        """The replica that had the prefix last, unless it is much busier than the idlest, which then takes it over."""
        least = _least_loaded(job, loads)
        if job.prefix_key is None:
            return least
        replica = self._replica_of.get(job.prefix_key, least)
        if loads[replica] > loads[least] + self._slack:
            replica = least
        self._replica_of[job.prefix_key] = replica
        self._replica_of.move_to_end(job.prefix_key)
        if len(self._replica_of) > _MAX_PREFIXES:
            self._replica_of.popitem(last=False)
        return replica


def _least_loaded(job: Job, loads: Sequence[int]) -> int:  # noqa: ARG001 - the routers' common signature
    return min(range(len(loads)), key=loads.__getitem__)
