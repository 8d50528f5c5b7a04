"""Script: the end of a run over workers that are requested to drain, answer, fall silent, or are gone."""

from __future__ import annotations

import json
from functools import partial
from types import SimpleNamespace
from typing import Any

import gevent
from gevent import monkey
from gevent.event import Event

from tailgauge.channel.messages import TooLargeError
from tailgauge.clock import monotonic_ns
from tailgauge.master import drain, workers
from tailgauge.master.admission import Admission
from tailgauge.master.workers import RunWorkers

drain.RETURN_S = 0.6
drain.WRITING_S = 1.2
workers.STALL_S = 0.7
really_sleep = monkey.get_original("time", "sleep")


def case(
    act: Any, *, state: str = "running", gone_after_s: float | None = None, drain_s: float = 0.2
) -> dict[str, Any]:
    """One worker that does `act(member, changed)` when it has to drain."""
    began = monotonic_ns()

    def alive(_: str) -> bool:
        return gone_after_s is None or monotonic_ns() - began < gone_after_s * 1e9

    books, changed, notes = RunWorkers(alive), Event(), []
    worker = books.add("w0", {"name": "w0"})
    worker.ready, worker.state = True, state
    facts = []

    def report_to(one: Any) -> None:
        facts.append(one.number)
        gevent.spawn(act, one, changed)

    drain.drain_workers(books, report_to, changed, drain_s, notes.append)
    lasted_s = (monotonic_ns() - began) / 1e9
    return {"reported": facts, "state": worker.state, "notes": notes, "lasted_s": lasted_s}


def drains(worker: Any, changed: Event) -> None:
    gevent.sleep(0.1)
    worker.state, worker.record = "drained", {"counts": {"leased": 0}}
    changed.set()


def reports_then_drains(worker: Any, changed: Event) -> None:
    for _ in range(10):  # longer than RETURN_S, but never silent for so long
        gevent.sleep(0.1)
        worker.last_message_ns = monotonic_ns()
    drains(worker, changed)


def ships_slowly(worker: Any, changed: Event) -> None:
    for left in range(20, 0, -1):  # longer than drain and writing together, but it moves
        gevent.sleep(0.1)
        worker.last_message_ns, worker.counters = monotonic_ns(), {"unshipped": left}
    drains(worker, changed)


def reports_for_ever(worker: Any, changed: Event) -> None:
    for _ in range(100):
        gevent.sleep(0.1)
        worker.last_message_ns = monotonic_ns()


def master_is_stalled(worker: Any, changed: Event) -> None:
    """The hub of this script is the master's."""
    gevent.sleep(0.1)
    really_sleep(1.5)  # longer than RETURN_S
    drains(worker, changed)


def is_silent(worker: Any, changed: Event) -> None:
    pass


def divided() -> list[int]:
    """Sizes of the messages in which a slice of ten goes through a channel for three, and one of a row for none."""
    sent: list[int] = []

    def send(_: str, __: Any, rows: list[Any], most: int = 3) -> None:
        if len(rows) > most:
            raise TooLargeError
        sent.append(len(rows))

    one = SimpleNamespace(_run=SimpleNamespace(send=send))
    one._send_slice = partial(Admission._send_slice, one)  # type: ignore[arg-type]
    one._send_slice(SimpleNamespace(node="w0"), list(range(10)))
    one._run.send = partial(send, most=0)
    try:
        one._send_slice(SimpleNamespace(node="w0"), [1])
    except TooLargeError:
        sent.append(-1)
    return sent


print(
    json.dumps(
        {
            "divided": divided(),
            "drains": case(drains),
            "reports": case(reports_then_drains),
            "ships": case(ships_slowly),
            "for_ever": case(reports_for_ever),
            "silent": case(is_silent),
            "stalled": case(master_is_stalled, drain_s=5),
            "back": case(drains, state="lost"),
            "gone": case(is_silent, gone_after_s=0.2),
            "long_gone": case(drains, gone_after_s=0.0),
        }
    )
)
