"""The schedule on its way to the workers: slices of five seconds, at least five seconds ahead, a lease each.

Rule: a slice once handed out is never handed out again. Arrival i goes to share i mod n, n being those that take part
when the slice is handed out, sessions as a whole; so what a lost worker would have got later goes to the living, or, where
the scenario leaves it out, to nobody. What nobody takes is not reached.
"""

from __future__ import annotations

from collections.abc import Callable

from tailgauge.master.workers import Crew, Member
from tailgauge.rows.schema import TURNS
from tailgauge.schedule.schedule import Planned, Schedule
from tailgauge.schedule.sessions import turns_of

SLICE_NS = 5_000_000_000
_NEAR_NS = 1_000_000_000  # arrivals without a row that are closer than this are one stretch of missing time

Give = Callable[[Member, list[Planned]], None]


class Handout:
    """Hands out `schedule` until `until_ns`; `give` sends a worker its part of a slice."""

    def __init__(
        self, schedule: Schedule, until_ns: int, crew: Crew, give: Give, *, leaves_out: bool
    ) -> None:
        self._schedule, self._until_ns, self._crew, self._give = schedule, until_ns, crew, give
        self._leaves_out = leaves_out
        self._handed_ns = 0
        self._nobody = False  # was there when the last slice was to be handed out
        self._places: list[Member] = []

    def up_to(self, passed_ns: int) -> None:
        """Hand out the slices that begin within the next five seconds: who is lost then holds ten at most."""
        while self._handed_ns < min(self._until_ns, passed_ns + SLICE_NS):
            until_ns = min(self._handed_ns + SLICE_NS, self._until_ns)
            if not self._crew.living():
                if until_ns > passed_ns:  # somebody may come back before it is over
                    self._nobody = True
                    return
            else:
                # what went by while nobody was there is not sent in a burst afterwards
                since_ns = max(self._handed_ns, min(passed_ns, until_ns)) if self._nobody else self._handed_ns
                self._hand(since_ns, until_ns)
                self._nobody = False
            self._handed_ns = until_ns

    def _hand(self, since_ns: int, until_ns: int) -> None:
        takers = self._takers()
        shares: list[list[Planned]] = [[] for _ in takers]
        for row in self._schedule.slice(since_ns, until_ns):
            shares[_share(row, len(takers))].append(row)
        for number, (member, rows) in enumerate(zip(takers, shares, strict=True)):
            if member.state == "running":
                member.leased += turns_of(rows)
                member.held.append((since_ns, until_ns, len(takers), number))
                self._give(member, rows)

    def _takers(self) -> list[Member]:
        """Who gets a share; where shares are left out, a lost worker keeps its place until another one takes it."""
        living = self._crew.living()
        if not self._leaves_out:
            return living
        for member in living:
            if member not in self._places:
                vacant = [i for i, one in enumerate(self._places) if one.state != "running"]
                at = vacant[0] if vacant else len(self._places)
                self._places[at : at + 1] = [member]
        return self._places

    def missing(self, member: Member, seen: set[int]) -> list[dict[str, float]]:
        """Stretches of the run whose arrivals this worker held, and of which `seen` has no request id; in seconds."""
        times = [
            row.at_ns
            for since_ns, until_ns, takers, number in member.held
            for row in self._schedule.slice(since_ns, until_ns)
            if _share(row, takers) == number and row.request_id not in seen
        ]
        stretches: list[list[int]] = []
        for at_ns in times:
            if stretches and at_ns - stretches[-1][-1] <= _NEAR_NS:
                stretches[-1].append(at_ns)
            else:
                stretches.append([at_ns])
        return [
            {"from_s": round(s[0] / 1e9, 3), "to_s": round(s[-1] / 1e9, 3), "requests": len(s)}
            for s in stretches
        ]


def _share(row: Planned, takers: int) -> int:
    return (row.request_id // TURNS) % takers
