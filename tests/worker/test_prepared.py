"""What is prepared keeps the limits of the run, however it ends: real calls, which the reading thread sends when due."""

from __future__ import annotations

from typing import Any

import gevent
import gevent.event
import pytest
from transport.scripted_server import Server, block_process
from worker.fake_calls import MS, arrivals, wait_until
from worker.one_call import PLAIN, Rows, answer, endpoint, made, stream

from tailgauge.call import MAIN, Call
from tailgauge.clock import monotonic_ns
from tailgauge.plan.spend_limit import Amount, Guard, Sizing
from tailgauge.prompts import Maker
from tailgauge.scenario.model import parse
from tailgauge.worker.admission import admission
from tailgauge.worker.attempts import Attempts
from tailgauge.worker.counters import Counters
from tailgauge.worker.dispatcher import Dispatcher

pytestmark = pytest.mark.gevent

OK = stream(20)
HEDGE = {"policy": "fixed", "delay_ms": 30, "budget_share": 1.0, "budget_burst": 100}
HEDGED = {"main": {"pattern": "hedged", "hedge": HEDGE}}
FAN_OUT = {"main": {"pattern": "fan_out", "fan_out": {"legs": 3}}}
RETRIES = {"main": {"retry": {"policy": "naive", "naive_wait_s": 0.0, "max_retries": 5}}}
ENOUGH = {"calls": Amount(1000, None, None), "tokens": Amount(None, 10**6, None)}


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
        self.rows = Rows()
        self.counters = Counters()
        self.attempts = Attempts("run-1", {MAIN: target}, self.rows, self.counters, 10.0)
        self.bugs: list[str] = []
        makers = {
            name: Maker(scenario.seed, traffic, name) for name, traffic in scenario.traffic.items()
        }
        self.dispatcher = Dispatcher(
            scenario,
            makers,
            self.attempts,
            recorder=self.rows,
            counters=self.counters,
            on_ended=lambda *_: None,
            on_bug=lambda error: self.bugs.append(repr(error)),
        )
        # What is late on a busy machine is sent all the same.
        self.dispatcher.has_stalled = lambda: True
        self.refused: list[str] = []
        self.guard = Guard(limit or Amount(None, None, None), Sizing(), {}, self._on_refused)
        if limit is not None:
            self.attempts.guard = self.guard
            self.dispatcher.admits = admission(scenario, self.guard)

    def _serve(self, sock: Any, _: int) -> None:
        while self.server.request(sock):
            self.answers.wait()
            sock.sendall(self.reply)

    def _on_refused(self, limit: str) -> None:
        self.refused.append(limit)
        gevent.spawn(self.dispatcher.stop)

    @property
    def sent(self) -> int:
        """Requests that the server got."""
        return len(self.server.requests)

    @property
    def ahead(self) -> Any:
        return self.dispatcher._ahead

    def begin(self, *at_ms: float) -> None:
        self.dispatcher.lease(arrivals(*at_ms))
        self.start_at_ns = monotonic_ns()
        gevent.spawn(self.dispatcher.run, self.start_at_ns)

    def close(self) -> None:
        """End the run: everything leased is in one place, and nothing is held."""
        self.answers.set()
        self.dispatcher.stop()
        self.dispatcher.drain(5.0)
        self.attempts.later.finish()
        counts = self.counters
        assert counts.leased == counts.dispatched + counts.client_drop + counts.not_reached
        assert (counts.in_flight, len(self.guard._held), self.bugs) == (0, 0, [])


def test_each_run_of_a_process_keeps_its_own_cap():
    """Twenty at once, of which none is answered before all are placed; also for what is due before anything else was sent."""
    for cap in (30, 3, 8):
        bench = Bench(limits={"in_flight_per_worker": cap})
        bench.begin(*[250] * 20)
        counts = bench.counters
        wait_until(lambda counts=counts: counts.dispatched + counts.client_drop == 20)
        gevent.sleep(0.1)
        bench.close()

        most = min(cap, 20)
        assert (bench.sent, counts.dispatched, counts.client_drop) == (most, most, 20 - most)
        assert [row.ended for row in bench.rows.attempts] == ["ok"] * most


@pytest.mark.parametrize(
    ("reply", "traffic"),
    [
        (answer("503 Service Unavailable", {"error": {"message": "overloaded"}}), RETRIES),
        (OK, FAN_OUT),
        (OK, HEDGED),
    ],
    ids=["retries", "fan-out", "hedge"],
)
def test_a_request_that_left_as_a_stop_rule_ended_the_run_makes_no_other_call(reply, traffic):
    """It has left before this process looks, and the rule allows no other call."""
    bench = Bench(reply, traffic=traffic)
    bench.answers.set()
    bench.begin(250)
    wait_until(lambda: bench.ahead or bench.counters.dispatched)
    if not bench.ahead:
        pytest.skip("it was not prepared")
    block_process(max(0.0, (bench.start_at_ns + 280 * MS - monotonic_ns()) / 1e9))
    bench.dispatcher.stop(sends=False)
    bench.close()

    assert bench.sent == len(bench.rows.attempts) == bench.counters.dispatched <= 1
    assert bench.counters.leased == 1


def limited(limit: Amount) -> Bench:
    """Twelve close to each other, of which the first ones are answered at once."""
    bench = Bench(limit=limit)
    bench.answers.set()
    bench.begin(*range(250, 274, 2))
    wait_until(lambda: bench.counters.dispatched == 12 or bench.dispatcher.stopped)
    bench.close()
    assert bench.counters.leased == 12
    return bench


@pytest.mark.parametrize("limit", ENOUGH.values(), ids=ENOUGH)
def test_limits_that_suffice_let_all_through(limit):
    bench = limited(limit)

    assert (bench.sent, bench.refused, bench.guard.taken.requests) == (12, [], 12)


@pytest.mark.parametrize(
    ("limit", "name"),
    [(Amount(5, None, None), "max_requests"), (Amount(None, 150, None), "max_tokens")],
)
def test_limits_are_kept(limit, name):
    bench = limited(limit)
    taken = bench.guard.taken

    assert bench.refused == [name]
    assert 0 < bench.sent == bench.counters.dispatched < 12
    assert taken.requests <= 5 if name == "max_requests" else taken.tokens <= 150


@pytest.mark.parametrize("limit", ENOUGH.values(), ids=ENOUGH)
def test_what_is_withdrawn_at_the_end_gives_back_what_it_held(limit):
    """The run ends while some are prepared."""
    bench = Bench(limit=limit)
    bench.begin(*range(400, 412))
    wait_until(lambda: bench.ahead or bench.counters.dispatched)
    bench.close()

    counts = bench.counters
    assert bench.sent == len(bench.rows.attempts) == counts.dispatched == bench.guard.taken.requests
    assert counts.leased == 12


@pytest.mark.parametrize(("traffic", "calls"), [(HEDGED, 2), (FAN_OUT, 3)])
@pytest.mark.parametrize("limit", [None, ENOUGH["calls"], Amount(7, None, None)])
def test_calls_beside_a_prepared_one_keep_the_limits(traffic, calls, limit):
    """Twelve requests that make other calls beside the first, which nobody answers before all of them were sent. By the
    server's count: a hedge or a leg which the limit does not allow is never sent, and has a row all the same."""
    bench = Bench(limit=limit, traffic=traffic)
    bench.begin(*range(250, 274, 2))
    wait_until(lambda: bench.sent == 12 * calls or bench.dispatcher.stopped)
    bench.close()

    assert bench.sent == sum(row.sent_at_ns is not None for row in bench.rows.attempts)
    assert bench.counters.leased == 12
    if limit is not None and limit.requests == 7:
        assert bench.refused == ["max_requests"]
        assert bench.sent == bench.guard.taken.requests <= 7
    else:
        assert bench.sent == 12 * calls
        assert [row.ended for row in bench.rows.requests] == ["ok"] * 12
        assert [row.attempts for row in bench.rows.requests] == [calls] * 12
