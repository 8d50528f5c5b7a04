"""The acceleration limit: traffic that grows too fast is refused although no bucket is empty.

Memory is two windows of sixty counters. A request is refused when the window up to now would hold more requests than
`growth` times the window before it, and more than `floor`.

    admitted(now - w, now] + 1 > max(floor, growth * admitted(now - 2w, now - w])

Sources: the provider documents that such limits exist ("ramp up gradually"; 429 with error_code `ramp_limit_exceeded` and
a retry-after) and not their formula (2026-08). This one is the plainest that a geometric ramp of `growth` a window just
passes; time is counted in sixtieths of a window.
"""

from __future__ import annotations

from itertools import accumulate

_BINS = 60  # of a window


class Ramp:
    """What was admitted in the last two windows; growth 0 switches the limit off."""

    def __init__(self, growth: float = 0.0, window_s: float = 60.0, floor: int = 100) -> None:
        self._growth, self._floor = growth, floor
        self._bin_ns = max(1, round(window_s * 1e9 / _BINS))
        self._counts: dict[int, int] = {}  # requests by bin, oldest first

    def wait_ns(self, now_ns: int) -> int:
        """0 if a request may pass now, else nanoseconds until it may if none passes meanwhile."""
        if not self._growth:
            return 0
        first = now_ns // self._bin_ns
        self._forget(first - 2 * _BINS)
        totals = self._totals(first)
        last = 2 * _BINS  # then nothing of today counts any more
        ahead = next((bins for bins in range(last) if self._passes(totals, bins)), last)
        return 0 if ahead == 0 else (first + ahead) * self._bin_ns - now_ns

    def admit(self, now_ns: int) -> None:
        """Count a request that was admitted."""
        if not self._growth:
            return
        here = now_ns // self._bin_ns
        self._counts[here] = self._counts.get(here, 0) + 1

    def _totals(self, first: int) -> list[int]:
        """Requests up to each bin, from two windows before `first` to two after it."""
        bins = range(first - 2 * _BINS, first + 2 * _BINS + 1)
        return list(accumulate(self._counts.get(b, 0) for b in bins))

    def _passes(self, totals: list[int], ahead: int) -> bool:
        """Whether one more may pass `ahead` bins from now."""
        before, middle, here = (totals[ahead + windows * _BINS] for windows in (0, 1, 2))
        return here - middle + 1 <= max(self._floor, self._growth * (middle - before))

    def _forget(self, until: int) -> None:
        for old in [b for b in self._counts if b <= until]:
            del self._counts[old]
