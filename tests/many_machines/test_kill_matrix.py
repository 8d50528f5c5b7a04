"""What can happen to a run over many machines, each in a run of its own: it ends, loads, tells, and conserves.

Rule: every case holds books, rows and the endpoint's log together (accounting.audit), whatever else it looks at.
"""

from __future__ import annotations

import json
import signal
import sys
import time
from pathlib import Path
from typing import Any

import pytest
from many_machines.accounting import Books, audit, planned, sent_once
from many_machines.site import LOST_S, Site
from run_folders.run_data import RunData
from starting.command import run_command

from tailgauge_analysis.reading.frames import load

pytestmark = [pytest.mark.alone, pytest.mark.usefixtures("chaos")]
INTRUDER = Path(__file__).parent / "scripts" / "intruder.py"
ENDLESS = (
    "--set=stop.min_completed=0",
    "--set=stop.connect_errors=0",
)  # whatever becomes of the target
AT = 4.0  # the second of the run at which it happens
FLUSH_S = 5.0  # rows younger than this may be lost with their process


def finished(site: Site, run: RunData, *codes: int, whole: bool, within_s: float = 60) -> Books:
    """The books of a run that ends with one of these codes."""
    assert site.ended(within_s) in codes, site.output
    return audit(run, site.endpoint.server_log(run.facts["run_id"]), whole=whole)


def all_left_well(site: Site) -> bool:
    return all(worker.code(20) == 0 for worker in site.workers)


def reported(*folders: Path, out: Path) -> tuple[int, dict]:
    """`tailgauge report` on some folders: its exit code and what it says."""
    done = run_command(["tailgauge", "report", *folders, "--out", out, "--json"])
    assert "Traceback" not in done.stderr
    return done.returncode, json.loads(done.stdout)


def went_on(books: Books, number: int, since_s: float) -> None:
    """Another worker took the lost one's share: from `since_s` on nothing is missing."""
    rows = books.requests.assign(at=books.requests.request_id.map(books.planned))
    late = {name for name, at in books.planned.items() if at >= since_s * 1e9}
    assert late != set()
    assert late <= set(rows.request_id), "later slices go to the living"
    assert set(rows[rows.request_id.isin(late)].worker) - {number}


def test_a_killed_worker_costs_its_leases_and_no_more(site):
    run = site.run(20)
    victim, other = site.workers
    number = victim.number(run)
    site.at(AT)
    victim.signal(signal.SIGKILL)

    books = finished(site, run, 3, whole=False)
    entry = books.entry(number)
    assert (entry["state"], books.entry(1 - number)["state"]) == ("lost", "drained")
    assert f"worker {number} was lost" in books.notes
    assert run.facts["verdict"]["verdict"] == "INVALID"
    assert 0 < books.counts["lost"] == sum(interval["requests"] for interval in entry["missing"])
    assert entry["silent"][0]["from_s"] == pytest.approx(AT, abs=2.5)
    assert entry["missing"][0]["from_s"] >= AT - FLUSH_S, "everything up to the last part is there"
    went_on(books, number, max(stretch["to_s"] for stretch in entry["missing"]) + 0.001)
    assert other.code(20) == 0


def unsent(books: Any, entry: Any) -> list[dict[str, float]]:
    """Stretches of a worker's leases without a row: not reached, each one counted, and nothing lost."""
    assert books.counts["lost"] == 0
    assert sum(stretch["requests"] for stretch in entry["missing"]) == books.counts["not_reached"]
    return list(entry["missing"])


def test_a_worker_stalled_for_ten_seconds_sends_its_leases_late_and_loses_nothing(site):
    """At up to twice the pace, never in a burst: what is left at the end of the run is not reached."""
    run = site.run(24)
    frozen = site.workers[0]
    number = frozen.number(run)
    site.at(AT)
    frozen.signal(signal.SIGSTOP)
    site.at(AT + LOST_S + 1)
    assert f"worker {number} was lost" in site.output, "noticed within 5 s"
    site.at(AT + 10)
    frozen.signal(signal.SIGCONT)

    books = finished(site, run, 0, 3, 5, whole=True)
    entry = books.entry(number)
    assert entry["state"] == "drained"
    assert f"worker {number} reconnected" in books.notes
    assert all(stretch["from_s"] > AT + 12 for stretch in unsent(books, entry))
    ((silent_from, silent_to),) = [(s["from_s"], s["to_s"]) for s in entry["silent"]]
    assert silent_to - silent_from > 8
    mine = books.requests_of(number)
    assert len(mine[mine.second > AT + 12]) > 0, "it takes part again"
    slow = mine[(mine.second > AT + 1) & (mine.second < AT + 5)]
    assert (slow.dispatched_at_ns - slow.scheduled_at_ns).min() > 3e9, (
        "late arrivals keep their scheduled time"
    )
    assert all_left_well(site)


def test_a_worker_stalled_over_the_end_is_waited_for_and_its_unsent_requests_are_reported(site):
    run = site.run(11)
    frozen = site.workers[0]
    number = frozen.number(run)
    site.at(5)  # so that its silence is noticed well before the end of the run
    frozen.signal(signal.SIGSTOP)
    site.at(16)
    frozen.signal(signal.SIGCONT)

    books = finished(site, run, 3, whole=True)
    entry = books.entry(number)
    assert (entry["state"], books.counts["lost"]) == ("drained", 0)
    assert (
        0
        < books.counts["not_reached"]
        == sum(interval["requests"] for interval in entry["missing"])
    )
    assert f"worker {number}" in json.dumps(run.facts["verdict"]).lower()
    assert entry["silent"][0]["to_s"] == pytest.approx(16, abs=2)
    assert all_left_well(site)


def test_a_worker_that_has_to_end_transfers_its_rows_first(site):
    run = site.run(18)
    summary = site.workers[0]
    number = summary.number(run)
    site.at(AT)
    summary.signal(signal.SIGTERM)

    assert summary.code(15) == 130, summary.output
    books = finished(site, run, 3, whole=True)
    entry = books.entry(number)
    assert books.counts["lost"] == 0
    assert len(books.requests_of(number)) > 50
    assert summary.folders() == []
    assert (
        0
        < books.counts["not_reached"]
        == sum(interval["requests"] for interval in entry["missing"])
    )
    went_on(books, number, max(stretch["to_s"] for stretch in entry["missing"]) + 0.001)


def test_a_partition_of_ten_seconds_from_the_master_loses_nothing(site):
    run = site.run(24)
    cut = site.workers[0]
    number = cut.number(run)
    site.at(AT)
    cut.host.cut("control")
    site.at(AT + 10)
    cut.host.mend("control")

    books = finished(site, run, 0, 3, 5, whole=True)
    entry = books.entry(number)
    assert entry["state"] == "drained"
    overdue = unsent(books, entry)  # leases that reached it when they were overdue
    assert all(stretch["from_s"] > AT and stretch["to_s"] < AT + 11 for stretch in overdue), overdue
    assert f"worker {number} was lost" in books.notes
    assert f"worker {number} reconnected" in books.notes
    mine = books.requests_of(number)
    during = mine[(mine.second > AT + 1) & (mine.second < AT + 4)]
    assert len(during) > 20, "it went on sending what it held"
    assert (during.dispatched_at_ns - during.scheduled_at_ns).median() < 1e9, "at its time"
    assert all_left_well(site)
    assert [w.folders() for w in site.workers] == [[], []]


def test_a_lasting_partition_is_reported_and_the_rows_come_in_by_hand(site, tmp_path):
    run = site.run(20)
    cut, other = site.workers
    number = cut.number(run)
    site.at(AT)
    cut.host.cut("control")

    books = finished(site, run, 3, whole=False, within_s=75)
    entry = books.entry(number)
    assert entry["state"] == "lost"
    assert 0 < books.counts["lost"] == sum(interval["requests"] for interval in entry["missing"])
    assert f"rows of worker {number} were not transferred: they are in" in books.notes
    went_on(books, number, max(stretch["to_s"] for stretch in entry["missing"]) + 0.001)
    assert (cut.code(60), other.code(20)) == (3, 0)
    cut.host.mend("control")
    (left,) = cut.folders()
    assert str(left) in cut.output

    code, _ = reported(run.path, left, out=tmp_path / "both")
    assert code in {0, 3, 5}
    both = load([run.path, left])
    rows = both.requests[both.requests.stage != "preflight"]
    assert rows.request_id.is_unique
    assert set(books.server_log.request_id) <= set(rows.request_id), (
        "whatever was sent has a row in one of the folders"
    )


def test_workers_outlive_a_killed_master_with_readable_rows(site, tmp_path):
    run = site.run(60)
    site.at(AT + 4)
    site.process.kill()

    assert [w.code(40) for w in site.workers] == [3, 3]

    left = [folder for worker in site.workers for folder in worker.folders()]
    assert len(left) == 2
    assert all(
        str(folder) in worker.output for folder, worker in zip(left, site.workers, strict=True)
    )
    code, summary = reported(run.path, *left, out=tmp_path / "all")
    assert code in {0, 1, 3}  # requests that were open at the end are no complete answers
    assert Path(summary["report"]["html"]).exists()
    together = load([run.path, *left])
    rows = together.requests[together.requests.stage != "preflight"]
    assert rows.request_id.is_unique
    server_log = site.endpoint.server_log(run.path.name)
    server_log = server_log[server_log.request_id >= 0]
    sent_once(run, server_log, planned(run))
    assert set(server_log.request_id) == set(rows[rows.ended != "client_drop"].request_id), (
        "what was sent was recorded"
    )
    code, _ = reported(*left, out=tmp_path / "without")
    assert code in {0, 1, 3}, "also without the master's folder"


def test_an_endpoint_that_dies_and_returns_is_data(site):
    run = site.run(20, *ENDLESS)
    site.at(AT)
    site.endpoint.die(run.facts["run_id"])
    site.at(AT + 6)
    site.endpoint.back()

    # One outage: no interval can say how rare they are, and 0 is wrong.
    books = finished(site, run, 1, 3, 5, whole=True)
    assert run.facts["state"] == "complete"
    assert (books.counts["lost"], books.counts["not_reached"]) == (0, 0)
    failed = sum(n for name, n in books.counts["ended"].items() if name not in {"ok", "empty"})
    assert failed > 100, books.counts
    assert books.counts["ended"]["ok"] > 300
    rows = books.requests.assign(second=books.requests.request_id.map(books.planned) / 1e9)
    assert set(rows[rows.second > AT + 9].ended) == {"ok"}, "it is used again once it is back"
    assert all_left_well(site)


def test_a_full_disk_on_a_worker_ends_the_run_cleanly(site):
    small = site.folder / "w0"
    kept = site.folder / "kept"
    run = site.run(
        24,
        first={
            "mounts": [("-t", "tmpfs", "-o", "size=200k", "none", small)],
            "after": f"cp -a '{small}/.' '{kept}'",
        },
    )
    kept.mkdir()
    full = site.workers[0]
    number = full.number(run)

    books = finished(site, run, 3, whole=False)
    assert "No space left" in books.notes or "disk" in books.notes, books.notes
    assert f"worker {number}" in books.notes
    assert run.facts["verdict"]["verdict"] == "INVALID"
    assert full.code(20) in {0, 3, 5}
    assert "Traceback" not in full.output


def test_a_worker_that_cannot_write_says_so_before_the_run_begins(site):
    closed = site.folder / "w0"
    closed.mkdir()
    site.begin(
        20, first={"mounts": [("--bind", closed, closed), ("-o", "remount,bind,ro", closed)]}
    )

    read_only = site.workers[0]
    assert read_only.code(60) == 2, read_only.output
    assert str(closed) in read_only.output
    assert "Traceback" not in read_only.output
    site.worker()
    run = site.started()
    assert finished(site, run, 0, 3, 5, whole=True).counts["lost"] == 0


def test_two_ctrl_c_close_what_is_open_and_keep_it(site):
    run = site.run(60, "--set=traffic.chat.output_tokens=2000", rate=20)  # ten seconds a call
    site.at(AT)
    site.interrupt()
    time.sleep(0.5)
    site.interrupt()

    books = finished(site, run, 130, whole=True, within_s=40)
    assert run.facts["state"] == "interrupted"
    assert books.counts["lost"] == 0
    assert books.counts["censored"] > 20
    assert all_left_well(site)


def test_a_late_joiner_takes_a_share(site):
    run = site.run(22, workers=1)
    site.at(1)
    late = site.worker()

    books = finished(site, run, 0, 3, 5, whole=True)
    number = late.number(run)
    entry = books.entry(number)
    assert set(books.server_log.request_id) == set(books.planned)
    assert entry["late_s"] is not None
    mine = books.requests_of(number)
    assert len(mine) > 50
    assert mine.second.min() >= entry["late_s"] - 1
    after = [at for at in books.planned.values() if at >= mine.second.min() * 1e9]
    assert 0.4 < len(mine) / len(after) < 0.6
    assert late.code(20) == 0


def test_a_worker_without_the_token_is_refused_and_gets_nothing(site):
    run = site.run(12, workers=1)
    stranger = site.worker(token="not the token of this run")
    assert stranger.code(30) == 4, stranger.output
    victim = run.facts["workers"][0]["name"]
    address = site.address.split(":")
    host = site.network.host("stranger")
    knocking = host.start([sys.executable, INTRUDER, *address, "6", victim], site.folder)

    books = finished(site, run, 0, 3, 5, whole=True)
    assert len(run.facts["workers"]) == 1
    assert set(books.server_log.request_id) == set(books.planned)
    assert "connections without this run's TAILGAUGE_TOKEN were refused" in books.notes
    assert "its TAILGAUGE_TOKEN differs from the master's" in stranger.output
    assert stranger.folders() == []
    assert (
        site.token not in stranger.output + site.output + run.path.joinpath("run.json").read_text()
    )
    assert knocking.wait(20) == 0, host.output(cwd=site.folder)
    assert json.loads(host.output(cwd=site.folder))["kinds"] == {}


def test_a_slow_worker_is_not_lost_and_its_lateness_is_reported(site):
    run = site.run(18)
    slow = site.workers[0]
    number = slow.number(run)
    site.at(AT)
    while site.now < AT + 8:
        slow.signal(signal.SIGSTOP)
        time.sleep(0.7)
        slow.signal(signal.SIGCONT)
        time.sleep(0.3)

    books = finished(site, run, 0, 3, 5, whole=True)
    assert (books.counts["lost"], books.entry(number)["silent"]) == (0, [])
    assert len(books.server_log) == books.counts["dispatched"]
    assert len(books.requests_of(number)) > 100
    verdict = run.facts["verdict"]
    assert verdict["verdict"] != "VALID"
    assert f"worker {number}" in json.dumps(verdict)


def test_a_cut_longer_than_the_leases_leaves_load_unsent_and_says_so(site, tmp_path):
    """The only worker: what is due while it cannot be reached is sent by nobody."""
    run = site.run(36, workers=1, rate=10)
    (cut,) = site.workers
    site.at(AT)
    cut.host.cut("control")
    site.at(AT + 16)
    cut.host.mend("control")

    assert site.ended(90) == 3, site.output

    code, again = reported(run.path, *cut.folders(), out=tmp_path / "again")
    facts = json.loads(Path(again["report"]["json"]).read_text())
    by_check = {reason["check"]: reason["text"] for reason in facts["verdict"]["reasons"]}
    assert (code, facts["verdict"]["status"]) == (3, "INVALID")
    assert facts["conservation"]["unsent"] > 0.1 * facts["conservation"]["scheduled"]
    assert by_check["unsent"].startswith(f"{facts['conservation']['unsent']} requests (")
    assert "in_flight" not in by_check
    assert "lost" not in by_check, "every row is in one of the folders"
    alone = {reason["check"] for reason in run.facts["verdict"]["reasons"]}
    assert "unsent" in alone
    assert "in_flight" not in alone
