"""The end of a run: every worker finishes what is open and brings its rows home.

Rule: a worker is waited for as long as something is heard of it. One that has fallen silent may come back: it is given
RETURN_S from its last word, and is lost after that.
"""

from __future__ import annotations

from collections.abc import Callable

from gevent.event import Event

from tailgauge.clock import monotonic_ns
from tailgauge.master.workers import Crew, Member

RETURN_S = 20.0
WRITING_S = 120.0  # compacting hours of parts takes its time; parts on their way home are waited for as long as they move


def wind_up(
    crew: Crew, tell: Callable[[Member], object], changed: Event, drain_s: float, note: Callable[[str], None]
) -> None:
    """Tell every worker to drain, and wait. `changed` is set whenever a worker has said something."""
    waiting = [
        m for m in crew if m.ready and m.state in {"running", "failed", "lost"} and not crew.is_gone(m)
    ]
    began_ns = monotonic_ns()
    for member in waiting:
        tell(member)
    until_ns = began_ns + int((drain_s + WRITING_S) * 1e9)
    moved = dict.fromkeys((m.number for m in waiting), (-1, began_ns))
    while waiting := [m for m in waiting if not m.has_drained]:
        for member in list(waiting):
            unshipped = int(member.said.get("unshipped", 0))
            if unshipped != moved[member.number][0]:
                moved[member.number] = (unshipped, monotonic_ns())
            silent_s = (monotonic_ns() - max(member.heard_at_ns, began_ns)) / 1e9
            late = monotonic_ns() > max(until_ns, moved[member.number][1] + int(WRITING_S * 1e9))
            if crew.is_gone(member):
                _lose(member, "was lost before it had drained", note)
            elif silent_s > RETURN_S:
                _lose(member, f"was not heard of for {silent_s:.0f} s while it was to drain", note)
            elif late:
                _lose(member, "did not drain in time", note)
            else:
                continue
            waiting.remove(member)
        changed.clear()
        changed.wait(timeout=0.5)


def _lose(member: Member, how: str, note: Callable[[str], None]) -> None:
    member.state = "lost"
    note(f"worker {member.number} {how}")
