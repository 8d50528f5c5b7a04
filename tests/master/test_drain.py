"""The end of a run: who is waited for, and for how long. The patience is a tenth of a second's multiple here."""

from __future__ import annotations

from collections.abc import Callable
from functools import partial
from types import SimpleNamespace
from typing import Any

import gevent
import pytest
from gevent.event import Event
from transport.scripted_server import block_process

from tailgauge.channel.messages import TooLargeError
from tailgauge.clock import monotonic_ns
from tailgauge.master import drain, workers
from tailgauge.master.admission import Admission
from tailgauge.master.workers import RunWorkers

pytestmark = pytest.mark.gevent

Act = Callable[[Any, Event], None]


@pytest.fixture(autouse=True)
def short_patience(monkeypatch):
    monkeypatch.setattr(drain, "RETURN_S", 0.6)
    monkeypatch.setattr(drain, "WRITING_S", 1.2)
    monkeypatch.setattr(workers, "STALL_S", 0.7)


class Drained:
    """A drain with one worker that does `act(worker, changed)` when it has to drain."""

    def __init__(
        self,
        act: Act,
        *,
        state: str = "running",
        gone_after_s: float | None = None,
        drain_s: float = 0.2,
    ) -> None:
        began_ns = monotonic_ns()

        def alive(_: str) -> bool:
            return gone_after_s is None or monotonic_ns() - began_ns < gone_after_s * 1e9

        run_workers = RunWorkers(alive)
        changed = Event()
        worker = run_workers.add("w0", {"name": "w0"})
        worker.ready = True
        worker.state = state
        self.drained_workers: list[int] = []
        self.notes: list[str] = []

        def tell(worker: Any) -> None:
            self.drained_workers.append(worker.number)
            gevent.spawn(act, worker, changed)

        drain.drain_workers(run_workers, tell, changed, drain_s, self.notes.append)
        self.lasted_s = (monotonic_ns() - began_ns) / 1e9
        self.state = worker.state


def drains(worker: Any, changed: Event) -> None:
    gevent.sleep(0.1)
    worker.state = "drained"
    worker.record = {"counts": {"leased": 0}}
    changed.set()


def reports_then_drains(worker: Any, changed: Event) -> None:
    for _ in range(10):  # longer than RETURN_S, but never silent for so long
        gevent.sleep(0.1)
        worker.last_message_ns = monotonic_ns()
    drains(worker, changed)


def ships_slowly(worker: Any, changed: Event) -> None:
    for left in range(20, 0, -1):  # longer than drain and writing together, but it moves
        gevent.sleep(0.1)
        worker.last_message_ns = monotonic_ns()
        worker.counters = {"unshipped": left}
    drains(worker, changed)


def reports_for_ever(worker: Any, changed: Event) -> None:
    for _ in range(100):
        gevent.sleep(0.1)
        worker.last_message_ns = monotonic_ns()


def master_is_stalled(worker: Any, changed: Event) -> None:
    """The hub of this process is the master's."""
    gevent.sleep(0.1)
    block_process(1.5)  # longer than RETURN_S
    drains(worker, changed)


def is_silent(worker: Any, changed: Event) -> None:
    pass


@pytest.mark.parametrize(
    ("act", "settings"),
    [
        (drains, {}),
        (reports_then_drains, {}),
        (ships_slowly, {}),
        (drains, {"state": "lost"}),
        (master_is_stalled, {"drain_s": 5}),
    ],
)
def test_who_is_heard_of_is_waited_for(act, settings):
    drained = Drained(act, **settings)

    assert (drained.drained_workers, drained.state, drained.notes) == ([0], "drained", [])


@pytest.mark.parametrize(
    ("act", "gone_after_s", "note"),
    [
        (is_silent, None, "worker 0 sent nothing for 1 s during the drain"),
        (reports_for_ever, None, "worker 0 did not drain in time"),
        (is_silent, 0.2, "worker 0 was lost before it drained"),
    ],
)
def test_who_is_not_is_lost_and_it_is_reported_how(act, gone_after_s, note):
    drained = Drained(act, gone_after_s=gone_after_s)

    assert (drained.drained_workers, drained.state, drained.notes) == ([0], "lost", [note])


def test_whose_process_has_ended_is_not_told_at_all():
    drained = Drained(drains, gone_after_s=0.0)

    assert (drained.drained_workers, drained.notes) == ([], [])
    assert drained.lasted_s < Drained(drains).lasted_s


def test_a_slice_that_is_too_large_for_a_message_is_divided_and_one_row_that_is_ends_the_run():
    sizes = []

    def send(_: str, __: Any, rows: list[Any], most: int = 3) -> None:
        if len(rows) > most:
            raise TooLargeError
        sizes.append(len(rows))

    admission: Any = SimpleNamespace(_run=SimpleNamespace(send=send))
    admission._send_slice = partial(Admission._send_slice, admission)
    worker = SimpleNamespace(node="w0")
    admission._send_slice(worker, list(range(10)))
    assert sizes == [2, 3, 2, 3]

    admission._run.send = partial(send, most=0)
    with pytest.raises(TooLargeError):
        admission._send_slice(worker, [1])
