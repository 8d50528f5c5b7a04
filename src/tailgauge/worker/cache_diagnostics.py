"""Asks a target why its cache missed, where it can tell: a call names the last answer over the same prefix.

The target compares both prompts and answers with the reason. What is named is the last answer of this worker; a first call
names none, which asks all the same. What this worker itself expects of the cache is in `cache_tracker`.
"""

from __future__ import annotations

from collections import OrderedDict
from collections.abc import Collection
from dataclasses import replace
from typing import TYPE_CHECKING

from tailgauge.call import MESSAGE, Call

if TYPE_CHECKING:
    from tailgauge.scenario.model import Scenario

_PREFIXES = 4096  # whose last answers are known
_LONGEST = 200  # characters of an id that is sent back

Prefix = tuple[str, str, str | None, int]  # traffic table, target, model, number of the prefix


class CacheDiagnostics:
    """The last answers of one worker by their prefix, of the traffic tables that ask."""

    def __init__(self, tables: Collection[str]) -> None:
        self._tables = frozenset(tables)
        self._last_ids: OrderedDict[Prefix, str] = OrderedDict()

    @classmethod
    def from_scenario(cls, scenario: Scenario) -> CacheDiagnostics | None:
        """Return those of a run; None where no table asks."""
        traffic = scenario.traffic.items()
        tables = [name for name, table in traffic if scenario.diagnoses_cache(table)]
        return cls(tables) if tables else None

    def with_diagnostics(self, call: Call, traffic: str) -> Call:
        """Return the call with its question; as it is where its table does not ask."""
        prefix = self._prefix(call, traffic)
        if prefix is None:
            return call
        return replace(call, previous_message_id=self._last_ids.get(prefix, ""))

    def ended(self, call: Call, traffic: str, message_id: str | None) -> None:
        """Keep the id of an answer for the next call over the same prefix."""
        prefix = self._prefix(call, traffic)
        if prefix is None or not message_id or len(message_id) > _LONGEST:
            return
        self._last_ids[prefix] = message_id
        self._last_ids.move_to_end(prefix)
        if len(self._last_ids) > _PREFIXES:
            self._last_ids.popitem(last=False)

    def _prefix(self, call: Call, traffic: str) -> Prefix | None:
        number = call.prompt.prefix
        if traffic not in self._tables or number is None or call.kind != MESSAGE:
            return None
        return traffic, call.target, call.model, number
