"""Spellings: which of the ways that servers and gateways write an answer in applies to a call.

Each is drawn on its own, so that an answer may have several. What a spelling changes stands in `protocols/spellings.py`.
"""

from __future__ import annotations

from collections.abc import Mapping

from tailgauge.scenario.simulated import Spelling
from tailgauge.simulator.behaviours.draws import draws


class Spellings:
    """The spellings of an endpoint's answers, drawn for each call by its key."""

    def __init__(self, shares: Mapping[Spelling, float], seed: int) -> None:
        self._shares = {name: share for name, share in shares.items() if share}
        self._seed = seed

    def draw(self, call_key: str) -> frozenset[str]:
        """Return the names of a call's spellings."""
        names = set()
        for name, share in self._shares.items():
            if draws(self._seed, "spelling", name, call_key).random() < share:
                names.add(name)
        return frozenset(names)
