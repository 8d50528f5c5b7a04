"""What becomes of arrivals that are late: sent at once, at a faster pace than planned, or not at all.

Times in ns, passed in. `worker.dispatcher` sends or skips them.
"""

from __future__ import annotations

LATE_S = 1.0  # a worker that is no later than this catches up at once, at the end of the run too
CATCH_UP = 1.75  # times the planned pace after a longer stall, so that no second has twice what was planned
BEHIND_NS = 100_000_000  # of that pace, after which it begins again from there
BEHIND_S = 2.0  # one that is later must be less so after this time, or it is overloaded
STALLED_S = 0.5  # between two arrivals that are late: it did not run


class Overload:
    """Whether a worker does less than it should, by how late its arrivals are from one to the next.

    After a stall it is late too, but ever less so, and sends all that came meanwhile, as if the plan ran faster for a while.
    """

    def __init__(self) -> None:
        # When it began to catch up, and what was due then.
        self._began: tuple[int, int] | None = None
        self._seen_at_ns = 0
        # When it was found behind, and how late it was then.
        self._since: tuple[int, int] | None = None
        self._is_on = False

    @property
    def is_behind(self) -> bool:
        """Return whether arrivals are late by more than `LATE_S`."""
        return self._since is not None

    def begin(self, now_ns: int, due_ns: int) -> None:
        """Catch up from what was due then."""
        self._began = now_ns, due_ns

    def sends_at(self, now_ns: int, due_ns: int) -> int:
        """Return when an arrival may be sent: when it is due, or later while the worker catches up."""
        if self._began is None and now_ns - due_ns > LATE_S * 1e9:
            self.begin(now_ns, due_ns)
        if self._began is None or self._is_on:  # what it skips sets the pace then
            self._began = None
            return due_ns
        at_ns = self._began[0] + int((due_ns - self._began[1]) / CATCH_UP)
        if at_ns <= due_ns:
            self._began = None
        elif now_ns > at_ns + BEHIND_NS:
            self.begin(now_ns, due_ns)
        return max(at_ns, due_ns)

    def skips(self, now_ns: int, late_ns: int) -> bool:
        """Return whether an arrival that is so late is not sent."""
        stalled = now_ns - self._seen_at_ns > STALLED_S * 1e9
        self._seen_at_ns = now_ns
        if late_ns <= LATE_S * 1e9:
            self._since = None
            self._is_on = False
        elif self._since is None or stalled:
            self._since = now_ns, late_ns
        elif now_ns - self._since[0] > BEHIND_S * 1e9:
            self._is_on = late_ns >= self._since[1]
            self._since = now_ns, late_ns
        return self._is_on
