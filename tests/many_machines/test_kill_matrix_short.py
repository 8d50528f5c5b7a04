"""The kill matrix in a short form: one run in which a worker is killed, one is stopped, one joins late, and one forges messages.

`make chaos` has a run for each of these, and for more; see test_kill_matrix.py.
"""

from __future__ import annotations

import json
import signal
import sys
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import pytest
from many_machines.accounting import Books, audit, rows_of
from many_machines.network import Network
from many_machines.site import Served, Site

pytestmark = pytest.mark.slow

SECONDS, KILLED_AT, FROZEN_AT, FROZEN_S = 20, 0.5, 5.5, 5.5
HELD_S = 10.0  # what a worker holds ahead, at most
INTRUDER = Path(__file__).parent / "scripts" / "intruder.py"


@dataclass(frozen=True)
class Done:
    """The run, and the numbers that it gave its workers."""

    site: Site
    books: Books
    code: int
    killed: int
    frozen: int
    late: int
    received: dict[str, Any]  # kinds of messages that somebody without the token was sent


@pytest.fixture(scope="module")
def done(network: Network, endpoint: Served, tmp_path_factory: pytest.TempPathFactory) -> Done:
    site = Site(network, tmp_path_factory.mktemp("short"), endpoint)
    run = site.run(SECONDS, workers=2, rate=40)
    killed, frozen = site.workers
    numbers = killed.number(run), frozen.number(run)
    late = site.worker()
    site.at(KILLED_AT)
    killed.signal(signal.SIGKILL)
    host, name = network.host("stranger"), run.facts["workers"][frozen.number(run)]["name"]
    knocking = host.start(
        [sys.executable, INTRUDER, *site.address.split(":"), "6", name], site.folder
    )
    site.at(FROZEN_AT)
    frozen.signal(signal.SIGSTOP)
    site.at(FROZEN_AT + FROZEN_S)
    frozen.signal(signal.SIGCONT)
    late.pid  # noqa: B018 - asked while it lives
    code = site.ended(60)
    books = audit(run, endpoint.server_log(run.facts["run_id"]), whole=False)
    assert knocking.wait(20) == 0, host.output(cwd=site.folder)
    received = json.loads(host.output(cwd=site.folder))["kinds"]
    made = Done(site, books, code, *numbers, late.number(run), received)
    for worker in site.workers:
        worker.process.wait(20)
    site.clear()
    return made


def test_the_run_ends_by_itself_and_says_what_happened(done):
    states = {w["worker"]: w["state"] for w in done.books.run.facts["workers"]}

    assert done.code == 3, done.site.output
    assert done.books.run.facts["state"] == "complete"
    assert done.books.run.facts["verdict"]["verdict"] == "INVALID"
    assert states == {done.killed: "lost", done.frozen: "drained", done.late: "drained"}
    assert [w.process.returncode for w in done.site.workers] == [-signal.SIGKILL, 0, 0]


def test_a_killed_worker_costs_what_it_held_and_its_later_share_goes_to_the_living(done):
    (stretch,) = done.books.entry(done.killed)["missing"]
    kept = set(done.books.requests.request_id)
    later = {
        name for name, at in done.books.planned.items() if at > stretch["to_s"] * 1e9 + 1_000_000
    }

    assert stretch["requests"] == done.books.counts["lost"] > 0
    assert f"worker {done.killed} was lost" in done.books.notes
    assert stretch["to_s"] <= HELD_S + 5
    assert later != set()
    assert later <= kept


def test_a_stopped_worker_sends_its_requests_late_and_takes_part_again(done):
    entry, mine = done.books.entry(done.frozen), done.books.requests_of(done.frozen)
    late_s = (mine.dispatched_at_ns - mine.scheduled_at_ns) / 1e9

    assert entry["missing"] == []
    assert len(mine) == entry["leased"]
    assert f"worker {done.frozen} reconnected" in done.books.notes
    assert (
        late_s[(mine.second > FROZEN_AT + 0.5) & (mine.second < FROZEN_AT + 2)].min() > FROZEN_S - 3
    )
    assert late_s[mine.second < FROZEN_AT - 0.5].median() < 0.5


def test_a_late_joiner_takes_a_share_from_then_on(done):
    entry, mine = done.books.entry(done.late), done.books.requests_of(done.late)

    assert entry["late_s"] > 0
    assert len(mine) == entry["leased"]
    assert mine.second.min() > entry["late_s"]
    if entry["late_s"] < SECONDS - HELD_S:  # a slow machine starts it too late for one
        assert len(mine) > 50


def test_a_worker_without_the_token_is_refused_and_learns_nothing_else(done):
    assert done.received == {}
    assert "connections without this run's TAILGAUGE_TOKEN were refused" in done.books.notes
    assert done.site.token not in done.site.output + (done.books.run.path / "run.json").read_text()


def test_every_row_was_transferred_over_the_wire(done):
    rows = {
        w["worker"]: w["rows"]
        for w in done.books.run.facts["workers"]
        if w["worker"] != done.killed
    }

    assert {number: len(done.books.requests_of(number)) for number in rows} == {
        number: output["requests"] - preflight(done, number) for number, output in rows.items()
    }
    assert [w.folders() for w in done.site.workers[1:]] == [[], []], (
        "transferred parts are kept nowhere else"
    )


def preflight(done: Done, number: int) -> int:
    rows = rows_of(done.books.run, "requests")
    return int(((rows.worker == number) & (rows.stage == "preflight")).sum())
