"""The end of a run: every worker finishes its open requests and transfers its rows.

The master waits for a worker as long as messages arrive. A silent worker is lost RETURN_S after its last message.
"""

from __future__ import annotations

from collections.abc import Callable

from gevent.event import Event

from tailgauge.clock import monotonic_ns
from tailgauge.master.workers import RunWorker, RunWorkers

RETURN_S = 20.0
WRITING_S = 120.0  # for compacting hours of parts; also without progress of a transfer


def drain_workers(
    workers: RunWorkers,
    send_drain: Callable[[RunWorker], object],
    changed: Event,
    drain_s: float,
    note: Callable[[str], None],
) -> None:
    """Drain every worker and wait. `changed` is set whenever a message of a worker arrives."""
    waiting = [
        m for m in workers if m.ready and m.state in {"running", "failed", "lost"} and not workers.is_gone(m)
    ]
    began_ns = monotonic_ns()
    for worker in waiting:
        send_drain(worker)
    until_ns = began_ns + int((drain_s + WRITING_S) * 1e9)
    moved = dict.fromkeys((m.number for m in waiting), (-1, began_ns))
    while waiting := [m for m in waiting if not m.has_drained]:
        for worker in list(waiting):
            unshipped = int(worker.counters.get("unshipped", 0))
            if unshipped != moved[worker.number][0]:
                moved[worker.number] = (unshipped, monotonic_ns())
            silent_s = (monotonic_ns() - max(worker.last_message_ns, began_ns)) / 1e9
            late = monotonic_ns() > max(until_ns, moved[worker.number][1] + int(WRITING_S * 1e9))
            if workers.is_gone(worker):
                _lose(worker, "was lost before it drained", note)
            elif silent_s > RETURN_S:
                _lose(worker, f"sent nothing for {silent_s:.0f} s during the drain", note)
            elif late:
                _lose(worker, "did not drain in time", note)
            else:
                continue
            waiting.remove(worker)
        changed.clear()
        changed.wait(timeout=0.5)


def _lose(worker: RunWorker, why: str, note: Callable[[str], None]) -> None:
    worker.state = "lost"
    note(f"worker {worker.number} {why}")
