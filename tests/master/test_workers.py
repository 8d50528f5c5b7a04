"""The master's books over its workers where nothing was planned, a closed loop; and the sum of what they say."""

from __future__ import annotations

from types import SimpleNamespace

import pyarrow as pa
import pyarrow.parquet as pq
import pytest

from tailgauge import quantile_sketch
from tailgauge.channel.traffic_counters import TrafficCounters
from tailgauge.master import workers as module
from tailgauge.master.workers import RunWorkers, pace
from tailgauge.rows.run_folder import RunFolder


def counters(leased: int, dispatched: int, client_drop: int = 0, **ended: int):
    counts = {
        "leased": leased,
        "dispatched": dispatched,
        "client_drop": client_drop,
        "not_reached": 0,
    }
    return {"counts": {**counts, "censored": dispatched - sum(ended.values()), "ended": ended}}


def workers(*by_node, dead=()):
    """State, leased, last words of each worker."""
    made = RunWorkers(lambda node: node not in dead)
    for number, (state, leased, text) in enumerate(by_node):
        made.add(f"w{number}", {"name": "w", "host": "h", "pid": number})
        worker = made.by_node[f"w{number}"]
        worker.state, worker.leased, worker.counters = state, leased, text
    return made


def rows(folder: RunFolder, worker: int, count: int) -> None:
    """Rows that a worker left."""
    table = pa.table({"stage": ["steady"] * count, "ended": ["ok"] * count})
    pq.write_table(table, folder.path / "requests" / f"part-{worker}-0.parquet")


def test_a_closed_loops_requests_are_what_its_workers_counted(tmp_path):
    books = workers(
        ("drained", 7, counters(7, 6, 1, ok=6)),
        ("drained", 4, counters(4, 4, ok=3, server_error=1)),
    )

    assert books.conservation(None, RunFolder(tmp_path), final=True) == {
        "scheduled": 11,
        "dispatched": 10,
        "client_drop": 1,
        "not_reached": 0,
        "lost": 0,
        "ended": {"ok": 9, "server_error": 1},
        "censored": 0,
    }


def test_what_a_lost_worker_had_counted_and_left_no_row_of_is_lost(tmp_path):
    folder = RunFolder(tmp_path / "run")
    folder.create()
    rows(folder, 0, 3)
    books = workers(("lost", 5, counters(5, 5, ok=4)), ("drained", 4, counters(4, 4, ok=4)))

    counts = books.conservation(None, folder, final=True)

    assert (counts["scheduled"], counts["dispatched"], counts["lost"]) == (9, 7, 2)


@pytest.mark.parametrize(
    "facts",
    [
        {"shared": True, "unwritten": {"requests": 2}},
        {"shared": False, "unwritten": {"requests": 0}},
    ],
)
def test_rows_that_a_drained_worker_could_not_write_or_transfer_are_lost_and_its_rest_is_not_reached(
    tmp_path, facts
):
    folder = RunFolder(tmp_path / "run")
    folder.create()
    rows(folder, 0, 3)
    books = workers(("failed", 9, {}))
    (worker,) = books
    worker.record = {"counts": counters(9, 5, ok=5)["counts"], **facts}

    counts = books.conservation(20, folder, final=True)
    assert {k: counts[k] for k in ("dispatched", "lost", "not_reached")} == {
        "dispatched": 3,
        "lost": 2,
        "not_reached": 15,
    }
    assert books.conservation(20, folder, final=False)["dispatched"] == 5

    worker.delivered, worker.record["unwritten"] = True, {}
    assert books.conservation(20, folder, final=True)["dispatched"] == 5


def test_while_it_goes_on_nothing_is_lost_yet(tmp_path):
    books = workers(("lost", 6, counters(6, 3, ok=3)))

    counts = books.conservation(10, RunFolder(tmp_path), final=False)

    assert (counts["dispatched"], counts["lost"], counts["not_reached"]) == (3, 0, 7)


def test_rows_may_be_younger_than_the_last_words(tmp_path):
    folder = RunFolder(tmp_path / "run")
    folder.create()
    rows(folder, 0, 6)
    books = workers(("lost", 5, counters(5, 5, ok=5)))

    counts = books.conservation(None, folder, final=True)

    assert (counts["scheduled"], counts["dispatched"], counts["lost"]) == (6, 6, 0)
    assert [worker.leased for worker in books] == [6]


def test_nothing_is_in_flight_at_a_worker_that_is_dead():
    text = {**counters(9, 5, 1), "in_flight": 2, "chunks": 100, "watch": {}, "traffic": []}
    progress = workers(("lost", 9, text), ("lost", 9, text), dead=["w1"]).progress(4.0, 60.0)

    assert (progress.sent, progress.in_flight, progress.chunks) == (10, 2, 200)


def test_the_progress_of_a_run_is_the_sum_of_its_workers_last_words():
    def text(dispatched, *ttft_ms, attempts, ended, target="main"):
        kept = TrafficCounters(requests=ended, attempts=attempts, input_tokens=100, output_tokens=7)
        for value in ttft_ms:
            quantile_sketch.add(kept.ttft, value)
        return {
            **counters(9, dispatched, 1), "in_flight": 2, "chunks": 100, "watch": {},
            "traffic": [["chat", target, kept.as_message()]],
        }  # fmt: skip

    first = text(5, 100.0, 300.0, attempts={"ok": 4, "rate_limited": 2}, ended={"ok": 3})
    second = text(3, 300.0, attempts={"rate_limited": 1}, ended={"timeout": 1, "ok": 2})
    third = text(0, 300.0, attempts={"ok": 1}, ended={"ok": 1}, target="second")
    progress = workers(
        ("running", 9, first), ("drained", 9, second), ("running", 9, third), ("starting", 0, {})
    ).progress(4.0, 60.0)

    assert (progress.sent, progress.dropped, progress.in_flight, progress.chunks) == (8, 3, 6, 300)
    assert progress.all.attempts == {"ok": 5, "rate_limited": 3}
    assert progress.all.requests == {"ok": 6, "timeout": 1}
    assert (progress.all.input_tokens, progress.all.output_tokens) == (300, 21)
    assert (sum(progress.all.ttft.values()), progress.failed, progress.limited) == (4, 1, 3)
    assert progress.traffic.keys() == {("chat", "main"), ("chat", "second")}
    assert progress.traffic["chat", "second"].requests == {"ok": 1}
    assert progress.verdict == "INVALID"  # 3 of 11 dropped


@pytest.fixture
def clock(monkeypatch):
    """A clock that the test sets, in s."""
    now = SimpleNamespace(s=100.0)
    monkeypatch.setattr(module, "monotonic_ns", lambda: int(now.s * 1e9))
    return now


def lost_at(books, clock, *times, messages_until=float("inf")):
    """When the master finds a worker lost, that looks at these times; messages arrive until then."""
    for at in times:
        clock.s = 100.0 + at
        for worker in books:
            if at <= messages_until:
                worker.last_message_ns = int(clock.s * 1e9)
        if books.newly_lost(int(100e9)):
            return at
    return None


def looks(since, until):
    return [since + 0.25 * n for n in range(int((until - since) * 4) + 1)]


def test_a_worker_is_lost_four_seconds_after_its_last_message(clock):
    books = workers(("running", 1, {}))

    assert lost_at(books, clock, *looks(0, 20), messages_until=3) == 7.25
    assert [worker.facts()["silent"] for worker in books] == [[{"from_s": 3.0, "to_s": None}]]


def test_a_master_that_was_stalled_loses_nobody_and_says_when(clock):
    """It could hear nobody; what was sent to it meanwhile is read after the first look."""
    books = workers(("running", 1, {}))

    assert lost_at(books, clock, *looks(0, 3), 27.0, 27.25, messages_until=2) is None
    assert books.stalls == [(int(103e9), int(127e9))]
    assert lost_at(books, clock, *looks(27.5, 31), messages_until=0) is None
    assert lost_at(books, clock, *looks(31, 35), messages_until=0) == 31.25, (
        "a dead worker stays silent"
    )


def test_a_slow_look_is_no_stall(clock):
    books = workers(("running", 1, {}))

    assert lost_at(books, clock, 0.0, 1.9, 3.8, 5.7) is None
    assert books.stalls == []


def test_in_a_crowd_each_worker_speaks_less_often():
    assert [pace(n) for n in (0, 1, 200, 201, 400, 1000)] == [1, 1, 1, 2, 2, 5]


@pytest.mark.parametrize(
    ("streaks", "in_a_row"),
    [
        ([(12, 401), (9, 401)], 21),
        ([(30, 401), (0, 401)], None),
        ([(30, 401), (30, 404)], None),
        ([(7, 404)], 7),
    ],
)
def test_rejections_of_every_worker_are_added_up_only_if_they_are_equal(streaks, in_a_row):
    called = TrafficCounters(attempts={"client_error": 5}).as_message()
    texts = [
        {
            **counters(9, 5), "in_flight": 0, "chunks": 0, "watch": {}, "traffic": [["chat", "main", called]],
            "rejections": {"in_a_row": n, "target": "main", "status": status},
        }
        for n, status in streaks
    ]  # fmt: skip
    rejected = workers(*(("running", 9, text) for text in texts)).progress(4.0, 60.0).rejected

    assert (rejected and rejected["in_a_row"]) == in_a_row
