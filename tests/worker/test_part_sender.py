"""Parts on their way to the master: they arrive byte for byte, whatever is lost on the way."""

from __future__ import annotations

import tempfile
import threading
from pathlib import Path

import pytest
from hypothesis import example, given
from hypothesis import strategies as st
from worker.part_transfer import Channel, Clock, files, written

from tailgauge.master import part_receiver
from tailgauge.master.part_receiver import PartReceiver
from tailgauge.rows.run_folder import RunFolder
from tailgauge.worker import part_sender
from tailgauge.worker.part_sender import PartSender, read_piece

SMALL = 700  # bytes of a piece in these tests: a part of 5 kB has eight
WORKER = 3
PARTS = [(table, number) for number in range(3) for table in ("requests", "attempts", "health")]


@pytest.fixture(autouse=True, scope="module")
def small_pieces():
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(part_sender, "PIECE", SMALL)
        patch.setattr(part_receiver, "PIECE", SMALL)
        patch.setattr(part_sender, "_PROBE", 100)
        yield


@pytest.fixture(scope="module")
def spool(tmp_path_factory):
    """Nine real parts of a worker."""
    folder = RunFolder(tmp_path_factory.mktemp("worker"))
    folder.create()
    return {
        f"{table}/part-{WORKER}-{n}.parquet": written(folder, WORKER, table, n)
        for table, n in PARTS
    }


def masters(path: Path) -> tuple[PartReceiver, RunFolder]:
    folder = RunFolder(path / "master")
    folder.create()
    return PartReceiver(folder), folder


def filled(spool, send, clock=None, **more) -> PartSender:
    outbox = PartSender(send, now_ns=clock or Clock(), **more)
    for name, path in spool.items():
        outbox.add(name.partition("/")[0], path)
    return outbox


def carry(
    outbox: PartSender,
    inbox: PartReceiver,
    there: Channel,
    back: Channel,
    clock: Clock,
    seconds: int,
) -> None:
    """Turns of both sides, a tenth of a second each, until nothing waits; the outbox is pumped once a second."""
    for turn in range(10 * seconds):
        if not outbox.waiting:
            return
        clock.tick(0.1)
        if turn % 10 == 0:
            outbox.pump()
        for _ in range(4):
            if (piece := there.deliver()) is not None:
                back.send(inbox.take(WORKER, piece))
            if (answer := back.deliver()) is not None:
                outbox.got(answer)


share = st.floats(0, 0.4)


@pytest.mark.slow
@given(seed=st.integers(0, 2**32), loss=share, doubles=share, reorders=share)
@example(seed=1, loss=0.0, doubles=0.0, reorders=0.0)
@example(seed=2, loss=0.4, doubles=0.4, reorders=0.4)
def test_parts_arrive_as_they_are_over_a_channel_that_loses_doubles_and_reorders(
    spool, seed, loss, doubles, reorders
):
    clock = Clock()
    there, back = (Channel(seed + i, loss, doubles, reorders) for i in range(2))
    with tempfile.TemporaryDirectory() as path:
        inbox, folder = masters(Path(path))
        outbox = filled(spool, there.send, clock)

        carry(outbox, inbox, there, back, clock, 20_000)

        assert files(folder.path) == {name: path.read_bytes() for name, path in spool.items()}
    assert (outbox.waiting, outbox.unshipped, outbox.refused) == (0, [], None)
    assert inbox.rows == {WORKER: {"requests": 9, "attempts": 9, "chunks": 0, "health": 9}}


def test_without_a_loss_every_piece_goes_once_and_in_the_order_written(spool, tmp_path):
    clock, there, back = Clock(), Channel(0), Channel(0)
    inbox, _ = masters(tmp_path)
    seen = []
    outbox = filled(
        spool,
        lambda m: (seen.append((f"{m['table']}/{m['name']}", m["offset"])), there.send(m)),
        clock,
    )

    carry(outbox, inbox, there, back, clock, 100)

    assert seen == [
        (name, at) for name, path in spool.items() for at in range(0, path.stat().st_size, SMALL)
    ]


def test_a_piece_names_its_part_whole(spool):
    seen = []
    filled(spool, seen.append).pump()
    first, path = seen[0], next(iter(spool.values()))

    assert sorted(first) == ["bytes", "name", "offset", "sha256", "size", "table"]
    assert (first["size"], first["offset"], first["bytes"]) == (
        path.stat().st_size, 0, path.read_bytes()[:SMALL],
    )  # fmt: skip


def test_no_more_than_four_pieces_are_under_way(spool):
    seen = []
    outbox = filled(spool, seen.append)

    outbox.pump()
    outbox.pump()
    assert [m["offset"] for m in seen] == [0, SMALL, 2 * SMALL, 3 * SMALL]

    outbox.got(more(seen[0], SMALL))
    assert [m["offset"] for m in seen[4:]] == [4 * SMALL]


def more(message, upto):
    return {
        "table": message["table"],
        "name": message["name"],
        "upto": upto,
        "state": "more",
        "why": None,
    }


def test_an_master_that_is_silent_for_an_hour_is_asked_again_in_a_few_bytes(spool):
    clock, seen = Clock(), []
    outbox = filled(spool, seen.append, clock)
    outbox.pump()
    outbox.got(more(seen[0], SMALL))
    before = len(seen)

    for _ in range(3600):
        clock.tick(1)
        outbox.pump()

    asked = seen[before:]
    assert {(m["offset"], len(m["bytes"])) for m in asked} == {(SMALL, 100)}
    assert len(asked) == 720  # every 5 s
    assert outbox.waiting == sum(p.stat().st_size for p in spool.values()) - SMALL


def test_after_silence_it_goes_on_from_what_the_master_says_it_has(spool):
    clock, seen = Clock(), []
    outbox = filled(spool, seen.append, clock)
    outbox.pump()
    clock.tick(5)
    outbox.pump()

    outbox.got(more(seen[0], 4 * SMALL))  # all four had come, only the answers were lost

    assert [m["offset"] for m in seen[4:]] == [0, *(n * SMALL for n in range(4, 4 + len(seen[5:])))]
    assert len(seen) > 5


def test_an_master_that_has_forgotten_what_it_had_is_given_it_again(spool, tmp_path):
    clock, there, back = Clock(), Channel(0), Channel(0)
    inbox, folder = masters(tmp_path)
    outbox = filled(spool, there.send, clock)
    outbox.pump()
    for _ in range(4):
        outbox.got(inbox.take(WORKER, there.deliver()))
    there.held.clear()
    inbox._forget(WORKER, ("requests", "part-3-0.parquet"))

    carry(outbox, inbox, there, back, clock, 200)

    assert files(folder.path) == {name: path.read_bytes() for name, path in spool.items()}


def test_a_refused_part_is_kept_and_told_once_and_the_others_go_on(spool):
    seen, names = [], list(spool)
    outbox = filled(spool, seen.append)
    outbox.pump()
    for why in ("the master's disk is full", "again"):
        outbox.got({**more(seen[-1], 0), "state": "refused", "why": why})

    assert outbox.refused == f"{names[0]}: the master's disk is full"
    assert outbox.unshipped[:3] == [names[0], names[1], names[2]]
    assert outbox.waiting == sum(p.stat().st_size for p in list(spool.values())[2:])
    assert seen[-1]["name"] == names[2].partition("/")[2]


def test_answers_about_other_parts_change_nothing(spool):
    seen = []
    outbox = filled(spool, seen.append)
    outbox.pump()
    before = (outbox.waiting, len(seen))

    for state in ("done", "refused", "more"):
        outbox.got(
            {
                "table": "health",
                "name": "part-3-0.parquet",
                "upto": 9,
                "state": state,
                "why": "late",
            }
        )

    assert (outbox.waiting, len(seen), outbox.refused) == (*before, None)


def test_a_part_that_is_gone_cut_or_empty_is_reported_and_delays_no_other(tmp_path, spool):
    seen = []
    outbox = PartSender(seen.append, now_ns=Clock())
    cut, empty = tmp_path / "part-3-1.parquet", tmp_path / "part-3-2.parquet"
    cut.write_bytes(bytes(5000))
    empty.touch()
    outbox.add("health", tmp_path / "part-3-0.parquet")
    outbox.add("health", cut)
    outbox.add("health", empty)
    outbox.add("requests", next(iter(spool.values())))
    cut.write_bytes(bytes(10))

    outbox.pump()

    assert outbox.refused == "health/part-3-0.parquet: it cannot be read: No such file or directory"
    assert outbox.unshipped == [f"health/part-3-{n}.parquet" for n in (0, 2, 1)] + [
        "requests/part-3-0.parquet"
    ]
    assert {m["table"] for m in seen} == {"requests"}


def test_what_the_channel_does_not_take_is_sent_again(spool, tmp_path):
    clock, there, back = Clock(), Channel(0), Channel(0)
    inbox, folder = masters(tmp_path)
    calls = []

    def send(message):
        calls.append(message)
        if len(calls) % 3 == 0:
            raise ConnectionError("the channel is full")
        there.send(message)

    outbox = filled(spool, send, clock)
    raised = 0
    for _ in range(2000):
        try:
            carry(outbox, inbox, there, back, clock, 1)
        except ConnectionError:
            raised += 1

    assert files(folder.path) == {name: path.read_bytes() for name, path in spool.items()}
    assert raised > 9


def test_parts_may_be_added_by_a_thread_while_others_are_sent(tmp_path):
    """As the recorder's writer does it."""
    source = RunFolder(tmp_path / "worker")
    source.create()
    paths = [written(source, WORKER, "health", n, rows=1) for n in range(40)]
    clock, there, back = Clock(), Channel(0), Channel(0)
    inbox, folder = masters(tmp_path)
    outbox = PartSender(there.send, now_ns=clock)
    writer = threading.Thread(target=lambda: [outbox.add("health", path) for path in paths])
    writer.start()
    while writer.is_alive():
        carry(outbox, inbox, there, back, clock, 1)
        assert len(outbox.unshipped) <= 40
    writer.join()

    carry(outbox, inbox, there, back, clock, 1000)

    assert sorted(files(folder.path)) == sorted(f"health/{path.name}" for path in paths)


def test_a_send_that_lets_others_run_is_not_entered_twice(spool):
    """Locust's channel may switch greenlets; the answer that comes meanwhile must not overtake."""
    seen = []

    def send(message):
        outbox.pump()
        seen.append(message["offset"])

    outbox = filled(spool, send)
    outbox.pump()

    assert seen == [0, SMALL, 2 * SMALL, 3 * SMALL]


def test_a_piece_is_read_from_its_place(tmp_path):
    file = tmp_path / "part"
    file.write_bytes(bytes(range(100)))

    assert [read_piece(file, at, 10) for at in (0, 95, 200)] == [
        bytes(range(10)),
        bytes(range(95, 100)),
        b"",
    ]
