"""A budget for additional calls: retries, hedges.

Rule: pure. Each call gives a share of a token, each additional call takes a whole one, and the bucket begins full. It
is counted in whole billionths, so the bound is exact at any time:

    taken <= burst + share * calls
"""

from __future__ import annotations

_TOKEN = 1_000_000_000


class Budget:
    """A token bucket that calls fill."""

    __slots__ = ("_burst", "_level", "_share")

    def __init__(self, share: float, burst: float) -> None:
        self._share, self._burst = round(share * _TOKEN), round(burst * _TOKEN)
        self._level = self._burst

    def give(self) -> None:
        """A call was made."""
        self._level = min(self._burst, self._level + self._share)

    def take(self) -> bool:
        """Take a token for an additional call, if there is one."""
        if self._level < _TOKEN:
            return False
        self._level -= _TOKEN
        return True
