"""The acceleration limit: traffic that grows too fast is refused although no bucket is empty.

Rule: pure: time is passed in; memory is two windows of sixty counters. A request is refused when the window up to now
would hold more requests than `growth` times the window before it, and more than `floor`.

    admitted(now - w, now] + 1 > max(floor, growth * admitted(now - 2w, now - w])

Sources: the provider documents that such limits exist ("ramp up gradually"; 429 with error_code `ramp_limit_exceeded` and
a retry-after) and not their formula (2026-08). This one is the plainest that a geometric ramp of `growth` a window just
passes; time is counted in sixtieths of a window.
"""

from __future__ import annotations

from collections import deque
from dataclasses import dataclass

_BINS = 60  # of a window


@dataclass(frozen=True, slots=True)
class RampSettings:
    """How fast traffic may grow."""

    growth: float = 0.0  # factor from one window to the next; 0: off
    window_s: float = 60.0
    floor: int = 100  # requests a window that are never refused; at least 1


class Ramp:
    """What was admitted in the last two windows."""

    def __init__(self, settings: RampSettings) -> None:
        if settings.growth and (settings.floor < 1 or settings.window_s <= 0):
            raise ValueError("a ramp limit needs a floor of at least 1 request and a window above 0 s")
        self._settings = settings
        self._bin_ns = max(1, round(settings.window_s * 1e9 / _BINS))
        self._counts: deque[list[int]] = deque()  # [bin, requests], oldest first

    def wait_ns(self, now_ns: int) -> int:
        """0 if a request may pass now, else nanoseconds until it may if none passes meanwhile."""
        if not self._settings.growth:
            return 0
        first = now_ns // self._bin_ns
        self._forget(first - 2 * _BINS)
        last = first + 2 * _BINS  # then nothing of today counts any more
        at = next((b for b in range(first, last) if self._passes(b)), last)
        return 0 if at == first else at * self._bin_ns - now_ns

    def admit(self, now_ns: int) -> None:
        """Count a request that was admitted."""
        if not self._settings.growth:
            return
        here = now_ns // self._bin_ns
        if self._counts and self._counts[-1][0] >= here:
            self._counts[-1][1] += 1
        else:
            self._counts.append([here, 1])

    def _passes(self, here: int) -> bool:
        recent = sum(n for b, n in self._counts if b > here - _BINS)
        before = sum(n for b, n in self._counts if here - 2 * _BINS < b <= here - _BINS)
        return recent + 1 <= max(self._settings.floor, self._settings.growth * before)

    def _forget(self, until: int) -> None:
        while self._counts and self._counts[0][0] <= until:
            self._counts.popleft()
