"""Script: a dispatcher with real calls, which the reading thread sends when they are due."""

from __future__ import annotations

from collections.abc import Callable
from time import sleep
from typing import Any

import gevent
import gevent.event
from starting.script import print_facts
from transport.scripts.scripted_server import Server
from worker.fake_calls import MS, arrivals, wait_until
from worker.one_call import PLAIN, endpoint, made
from worker.scripts.preflight_calls import AllRows, answer, stream

from tailgauge.call import MAIN, Call
from tailgauge.clock import monotonic_ns
from tailgauge.plan.spend_limit import Amount, Guard, Sizing
from tailgauge.prompts import Maker
from tailgauge.rows.schema import AttemptRow, RequestRow
from tailgauge.scenario.model import parse
from tailgauge.worker.admission import admission
from tailgauge.worker.attempts import Attempts
from tailgauge.worker.counters import Counters
from tailgauge.worker.dispatcher import Dispatcher

OK = stream(20)
HEDGED = {
    "main": {
        "pattern": "hedged",
        "hedge": {"policy": "fixed", "delay_ms": 30, "budget_share": 1.0, "budget_burst": 100},
    }
}
FAN_OUT = {"main": {"pattern": "fan_out", "fan_out": {"legs": 3}}}


class Bench:
    """A dispatcher whose target answers when `answers` is set."""

    def __init__(self, reply: bytes = OK, limit: Amount | None = None, **tables: Any) -> None:
        self.answers = gevent.event.Event()
        self.answers.set()
        self.server = Server(self._serve)
        self.reply = OK
        url = self.server.url.removesuffix("/v1")
        target = endpoint(url, "openai")
        made(target, Call(PLAIN, 5))  # from now on a connection is idle, and the address is known
        self.reply = reply
        self.answers.clear()
        self.server.requests.clear()
        tree = {"stages": {"duration_s": 10, "warmup_s": 0.05, "cooldown_s": 9.9}, **tables}
        scenario = parse({"name": "n", "target": {"url": url, "protocol": "openai"}, **tree}, "x")
        self.recorder = AllRows()
        self.counters = Counters()
        self.attempts = Attempts("run-1", {MAIN: target}, self.recorder, self.counters, 10.0)
        self.bugs: list[str] = []
        self.dispatcher = Dispatcher(
            scenario,
            {
                name: Maker(scenario.seed, traffic, name)
                for name, traffic in scenario.traffic.items()
            },
            self.attempts,
            recorder=self.recorder,
            counters=self.counters,
            on_ended=lambda *_: None,
            on_bug=lambda error: self.bugs.append(repr(error)),
        )
        self.dispatcher.has_stalled = lambda: (
            True
        )  # what is late on a busy machine is sent all the same
        self.refused: list[str] = []
        self.guard: Guard | None = None
        if limit is not None:
            self.guard = self.attempts.guard = Guard(limit, Sizing(), {}, self._on_refused)
            self.dispatcher.admits = admission(scenario, self.guard)

    def _serve(self, sock: Any, _: int) -> None:
        while self.server.request(sock):
            self.answers.wait()
            sock.sendall(self.reply)

    def _on_refused(self, limit: str) -> None:
        self.refused.append(limit)
        gevent.spawn(self.dispatcher.stop)

    def begin(self, *at_ms: float) -> None:
        self.dispatcher.lease(arrivals(*at_ms))
        self.start_at_ns = monotonic_ns()
        gevent.spawn(self.dispatcher.run, self.start_at_ns)

    def block_until(self, at_ms: float) -> None:
        """Do nothing else: what leaves meanwhile is noticed later."""
        sleep(max(0.0, (self.start_at_ns + at_ms * MS - monotonic_ns()) / 1e9))

    def close(self, drain_s: float = 5.0) -> dict[str, Any]:
        self.answers.set()
        self.dispatcher.stop()
        self.dispatcher.drain(drain_s)
        self.attempts.later.finish()
        counts = self.counters
        rows = [row for row in self.recorder.rows if isinstance(row, AttemptRow)]
        placed = counts.dispatched + counts.client_drop + counts.not_reached
        return {
            "sent": len(self.server.requests),
            "attempts": [row.ended for row in rows],
            "rows_sent": sum(row.sent_at_ns is not None for row in rows),
            "leased": counts.leased,
            "placed": placed,
            "dispatched": counts.dispatched,
            "drops": counts.client_drop,
            "in_flight": counts.in_flight,
            "taken": None
            if self.guard is None
            else [self.guard.taken.requests, self.guard.taken.tokens],
            "held": None if self.guard is None else len(self.guard._held),
            "refused": self.refused,
            "bugs": self.bugs,
        }


def held(cap: int) -> dict[str, Any]:
    """Twenty at once, of which none is answered before all are placed."""
    bench = Bench(limits={"in_flight_per_worker": cap})
    bench.begin(*[250] * 20)
    counts = bench.counters
    wait_until(lambda: counts.dispatched + counts.client_drop == 20)
    sent = gevent.event.Event()
    gevent.spawn_later(0.1, sent.set)
    sent.wait()
    return bench.close()


def caps() -> Any:
    """The runs of one process, one after the other, each with its own cap."""
    return [held(30), held(3), held(8)]


def ends_while_one_leaves() -> Any:
    """The run ends after a request has left and before this process looks: by a stop rule, which allows no other call."""
    refused = answer("503 Service Unavailable", {"error": {"message": "overloaded"}})
    retry = {"policy": "naive", "naive_wait_s": 0.0, "max_retries": 5}
    return {
        "retries": stopped_as_it_left(refused, {"main": {"retry": retry}}),
        "fan-out": stopped_as_it_left(OK, FAN_OUT),
        "hedge": stopped_as_it_left(OK, HEDGED),
    }


def stopped_as_it_left(reply: bytes, traffic: dict[str, Any]) -> Any:
    """None: it was not prepared, without a compiled reader or on a machine that was too busy."""
    bench = Bench(reply, traffic=traffic)
    bench.answers.set()
    bench.begin(250)
    wait_until(lambda: bench.dispatcher._ahead or bench.counters.dispatched)
    if not bench.dispatcher._ahead:
        return None
    bench.block_until(280)
    bench.dispatcher.stop(sends=False)
    return bench.close()


def limited(limit: Amount, prepare: Callable[[Bench], None] = lambda _: None) -> dict[str, Any]:
    """Twelve close to each other, with a limit on what they may use; the first ones are answered at once."""
    bench = Bench(limit=limit)
    bench.answers.set()
    prepare(bench)
    bench.begin(*range(250, 274, 2))
    counts = bench.counters
    wait_until(lambda: counts.dispatched == 12 or bench.dispatcher.stopped)
    return bench.close()


def limits() -> Any:
    """Limits that suffice for all, and for few."""
    return {
        "calls, enough": limited(Amount(1000, None, None)),
        "calls, few": limited(Amount(5, None, None)),
        "tokens, enough": limited(Amount(None, 10**6, None)),
        "tokens, few": limited(Amount(None, 150, None)),
    }


def withdrawn() -> Any:
    """The run ends while some are prepared: what they held is given back."""
    facts = {}
    for name, limit in (("calls", Amount(1000, None, None)), ("tokens", Amount(None, 10**6, None))):
        bench = Bench(limit=limit)
        bench.begin(*range(400, 412))
        wait_until(lambda bench=bench: bench.dispatcher._ahead or bench.counters.dispatched)
        was_ahead = len(bench.dispatcher._ahead)
        facts[name] = {**bench.close(), "was_ahead": was_ahead}
    return facts


def of_several_calls(traffic: dict[str, Any], calls: int, limit: Amount | None) -> dict[str, Any]:
    """Twelve requests that make other calls beside the first, which nobody answers before all of them were sent."""
    bench = Bench(limit=limit, traffic=traffic)
    bench.begin(*range(250, 274, 2))
    wait_until(lambda: len(bench.server.requests) == 12 * calls or bench.dispatcher.stopped)
    facts = bench.close()
    requests = [row for row in bench.recorder.rows if isinstance(row, RequestRow)]
    return {
        **facts,
        "ended": [row.ended for row in requests],
        "of_each": [row.attempts for row in requests],
    }


def several_calls() -> Any:
    """Hedges and legs beside a first call that was prepared: with limits that allow all calls, and few."""
    facts = {}
    for name, traffic, calls in (("hedged", HEDGED, 2), ("fan-out", FAN_OUT, 3)):
        for name_of_limit, limit in (
            ("no limit", None),
            ("enough", Amount(1000, None, None)),
            ("few", Amount(7, None, None)),
        ):
            facts[f"{name}, {name_of_limit}"] = of_several_calls(traffic, calls, limit)
    return facts


if __name__ == "__main__":
    print_facts(caps, ends_while_one_leaves, limits, withdrawn, several_calls, limit_s=14)
