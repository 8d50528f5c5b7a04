"""A worker of another version is refused with both versions and both schemas; a lost one is ended with the run."""

from __future__ import annotations

from types import SimpleNamespace
from typing import Any

import gevent
import pytest
from gevent.event import Event

from tailgauge import __version__
from tailgauge.channel.auth import Seal
from tailgauge.clock import monotonic_ns
from tailgauge.locust_app.users import Master
from tailgauge.master.workers import RunWorkers
from tailgauge.rows.schema import SCHEMA_VERSION

pytestmark = pytest.mark.gevent

SEAL = Seal("0123456789abcdef")


def master_of(runner: Any, *, stays: bool, run_time: int | None = None) -> Master:
    runner.register_message = {}.__setitem__
    event = SimpleNamespace(add_listener=lambda _: None)
    environment = SimpleNamespace(
        runner=runner,
        events=SimpleNamespace(test_start=event, test_stopping=event),
        parsed_options=SimpleNamespace(run_time=run_time),
    )
    return Master(environment, None, SEAL, stays=stays)


@pytest.mark.parametrize(
    ("version", "schema"),
    [
        (__version__, SCHEMA_VERSION),
        ("0.0.1", SCHEMA_VERSION),
        (__version__, SCHEMA_VERSION - 1),
    ],
)
def test_a_worker_of_the_same_version_is_welcome_and_a_refusal_names_both_versions_and_schemas(
    version, schema
):
    sent = []

    def send(kind: str, sealed: Any, client_id: str) -> None:
        data = SEAL.open(kind.removeprefix("tailgauge:"), client_id, sealed)
        sent.append((kind, data.get("why"), client_id))

    master = master_of(SimpleNamespace(send_message=send), stays=False)
    hello = {"name": "w0\n\x1b[2J\tx", "host": "h", "version": version, "schema": schema}
    master._on_hello("w0", hello)

    if (version, schema) == (__version__, SCHEMA_VERSION):
        assert sent == [("tailgauge:welcome", None, "w0")]
        assert master.roster["w0"]["name"] == "w0 [2J x"
        assert "w0" not in master.refused
        return
    why = (
        f"it has tailgauge {version} (row schema {schema}), the master has {__version__} (row schema {SCHEMA_VERSION}): "
        "install the same version"
    )
    assert sent == [("tailgauge:refused", why, "w0")]
    assert (list(master.roster), list(master.refused)) == ([], ["w0"])


@pytest.mark.parametrize(("stays", "message"), [(False, "quit"), (True, "stop")])
def test_a_lost_worker_that_lives_is_ended_although_locust_no_longer_knows_it(stays, message):
    """At the end of a run in which w1 was lost and w2 refused, the last one or one before another."""
    sent = []

    def send(message: Any) -> None:
        sent.append((message.type, message.node_id))

    server = SimpleNamespace(send_to_client=send)
    runner = SimpleNamespace(clients=dict.fromkeys(("w0", "w1", "w2")), server=server)
    master = master_of(runner, stays=stays)
    master.refused["w2"] = "its version"
    master.roster |= {"w0": {}, "w1": {}}
    workers = RunWorkers(lambda _: True)
    workers.add("w0", {})
    workers.add("w1", {}).state = "lost"
    master._forget(SimpleNamespace(workers=workers))

    assert (sent, list(runner.clients)) == ([(message, "w1")], ["w0"])
    sent.clear()
    master.release()
    # w0 too: Locust forgets a worker that stops, until it is ready again.
    assert sent == [("quit", "w0"), ("quit", "w1")]


def run_of(process: str, calls: list[str], start_at_ns: int = 1) -> Any:
    """A run that notes in `calls` how it ends. By default it began long ago."""
    return SimpleNamespace(
        over=Event(),
        admitted=SimpleNamespace(is_set=lambda: False),
        start_at_ns=start_at_ns,
        notes=[],
        state="running",
        scenario=SimpleNamespace(arrival=SimpleNamespace(process=process)),
        workers=[],
        look_for_workers=lambda: None,
        cut_short=calls.append,
        interrupt=lambda: calls.append("interrupted"),
        finish=lambda: None,
    )


@pytest.mark.parametrize(
    ("process", "run_time", "by_ctrl_c", "by_locust"),
    [
        ("poisson", None, "interrupted", "cut_short"),
        ("poisson", 60, "interrupted", "cut_short"),
        ("tasks", 60, "interrupted", "running"),
        ("tasks", None, "running", "running"),
    ],
)
def test_ctrl_c_interrupts_a_run_but_ends_one_of_tasks_that_nothing_else_ends(
    process, run_time, by_ctrl_c, by_locust
):
    """After Ctrl-C, and at the end of -t or by Stop."""
    for is_interrupted, expected in ((True, by_ctrl_c), (False, by_locust)):
        calls = []
        master = master_of(SimpleNamespace(), stays=False, run_time=run_time)
        master.run = run_of(process, calls)
        master.is_interrupted = is_interrupted
        master.end_run()

        assert calls == [expected]


@pytest.mark.parametrize(
    "later_s", [0, 0.01, 0.05], ids=["at once", "in its drain", "in its report"]
)
def test_a_run_that_two_of_locusts_greenlets_end_is_reported_once_and_both_wait_for_it(later_s):
    """Locust's timer and the end of the load: whichever call returns lets the process end."""
    reports = []

    def report(run: Any) -> None:
        gevent.sleep(0.06)
        reports.append(run)

    master = master_of(SimpleNamespace(), stays=False, run_time=None)
    master.run = run_of("poisson", [])
    master.run.finish = lambda: (gevent.sleep(0.03), master.run.over.set())
    master.on_end = report
    seen = []
    calls = [
        gevent.spawn_later(delay_s, lambda: (master.end_run(), seen.append(len(reports))))
        for delay_s in (0, later_s)
    ]
    gevent.joinall(calls, timeout=10, raise_error=True)

    assert reports == [master.run]
    assert seen == [1, 1]


@pytest.mark.parametrize(
    ("preflight_ms", "tested_ms", "is_interrupted", "is_full"),
    [(150, 2000, False, True), (1, 500, False, False), (1500, 2000, True, False)],
    ids=["the timer of -t", "its web page", "Ctrl-C"],
)
def test_requests_are_sent_for_as_long_as_the_run_time_says(
    preflight_ms, tested_ms, is_interrupted, is_full
):
    """Locust's timer begins before the preflight; whatever else ends a test ends it at once. Here with -t 2s."""
    calls = []
    master = master_of(SimpleNamespace(), stays=False, run_time=2)
    master._test_start_ns = monotonic_ns() - tested_ms * 1_000_000
    start_at_ns = master._test_start_ns + preflight_ms * 1_000_000
    master.run = run_of("tasks", calls, start_at_ns)
    master.is_interrupted = is_interrupted
    master.end_run()

    assert calls
    assert (monotonic_ns() - start_at_ns >= 2e9) == is_full
