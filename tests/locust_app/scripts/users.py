"""Script: a master receives hello from workers of other versions, and ends a run with a lost worker."""

from __future__ import annotations

from types import SimpleNamespace
from typing import Any

from starting.script import case, print_facts

from tailgauge import __version__
from tailgauge.channel.auth import Seal
from tailgauge.clock import monotonic_ns
from tailgauge.locust_app.users import Master
from tailgauge.master.workers import RunWorkers
from tailgauge.rows.schema import SCHEMA_VERSION

SEAL, NAME = Seal("0123456789abcdef"), "w0\n\x1b[2J\tx"


def master_of(runner: Any, *, stays: bool, run_time: int | None = None) -> Master:
    runner.register_message = {}.__setitem__
    event = SimpleNamespace(add_listener=lambda _: None)
    environment: Any = SimpleNamespace(
        runner=runner,
        events=SimpleNamespace(test_start=event, test_stopping=event),
        parsed_options=SimpleNamespace(run_time=run_time),
    )
    return Master(environment, None, SEAL, stays=stays)  # type: ignore[arg-type]


def answer(version: str, schema: int) -> list[Any]:
    """Kind and reason of what a worker of this version receives."""
    sent: list[Any] = []

    def send(kind: str, sealed: Any, client_id: str) -> None:
        data = SEAL.open(kind.removeprefix("tailgauge:"), client_id, sealed)
        sent.append([kind, data.get("why"), client_id])

    master = master_of(SimpleNamespace(send_message=send), stays=False)
    master._on_hello("w0", {"name": NAME, "host": "h", "version": version, "schema": schema})
    assert [one["name"] for one in master.roster.values()] in ([], ["w0 [2J x"])
    assert ("w0" in master.roster) == ("w0" not in master.refused)
    return sent


def forgotten(*, stays: bool) -> list[Any]:
    """What Locust sends, and whom it still knows, after a run in which w1 was lost and w2 refused."""
    sent: list[Any] = []
    server = SimpleNamespace(
        send_to_client=lambda message: sent.append([message.type, message.node_id])
    )
    runner = SimpleNamespace(clients=dict.fromkeys(("w0", "w1", "w2")), server=server)
    master = master_of(runner, stays=stays)
    master.refused["w2"] = "its version"
    master.roster |= {"w0": {}, "w1": {}}
    workers = RunWorkers(lambda _: True)
    workers.add("w0", {})
    workers.add("w1", {}).state = "lost"
    master._forget(SimpleNamespace(workers=workers))  # type: ignore[arg-type]
    at_the_end = sorted(sent)
    sent.clear()
    master.release()
    return [at_the_end, list(runner.clients), sent]


def run_of(process: str, calls: list[str], start_at_ns: int = 1) -> Any:
    """A run that notes in `calls` how it ends. By default it began long ago."""
    return SimpleNamespace(
        over=SimpleNamespace(is_set=lambda: False),
        admitted=SimpleNamespace(is_set=lambda: False),
        start_at_ns=start_at_ns,
        finishing=False,
        notes=[],
        state="running",
        scenario=SimpleNamespace(arrival=SimpleNamespace(process=process)),
        workers=[],
        look_for_workers=lambda: None,
        cut_short=calls.append,
        interrupt=lambda: calls.append("interrupted"),
        finish=lambda: None,
    )


def ended(process: str, *, run_time: int | None, interrupted: bool) -> list[str]:
    """How a run ends that Locust stops, after Ctrl-C or without it."""
    calls: list[str] = []
    master = master_of(SimpleNamespace(), stays=False, run_time=run_time)
    master.run = run_of(process, calls)
    master.is_interrupted = interrupted
    master.end_run()
    return calls


def sending_ms(*, preflight_ms: int, tested_ms: int, interrupted: bool = False) -> float:
    """For how long a run with -t 2s has sent requests when the test ends after `tested_ms`."""
    calls: list[str] = []
    master = master_of(SimpleNamespace(), stays=False, run_time=2)
    master._test_start_ns = monotonic_ns() - tested_ms * 1_000_000
    start_at_ns = master._test_start_ns + preflight_ms * 1_000_000
    master.run = run_of("tasks", calls, start_at_ns)
    master.is_interrupted = interrupted
    master.end_run()
    assert calls
    return (monotonic_ns() - start_at_ns) / 1e6


@case
def run_times() -> dict[str, float]:
    return {
        "the timer of -t": sending_ms(preflight_ms=150, tested_ms=2000),
        "its web page": sending_ms(preflight_ms=1, tested_ms=500),
        "Ctrl-C": sending_ms(preflight_ms=1500, tested_ms=2000, interrupted=True),
    }


@case
def ends() -> list[list[str]]:
    kinds = [("poisson", None), ("poisson", 60), ("tasks", 60), ("tasks", None)]
    return [
        ended(process, run_time=run_time, interrupted=interrupted)
        for interrupted in (True, False)
        for process, run_time in kinds
    ]


@case
def same() -> list[Any]:
    return answer(__version__, SCHEMA_VERSION)


@case
def other_version() -> list[Any]:
    return answer("0.0.1", SCHEMA_VERSION)


@case
def other_schema() -> list[Any]:
    return answer(__version__, SCHEMA_VERSION - 1)


@case
def last_run() -> list[Any]:
    return forgotten(stays=False)


@case
def run_before_another() -> list[Any]:
    return forgotten(stays=True)


print_facts()
