"""Script: rows on their way into Parquet, undisturbed, killed, and with nowhere to go."""

from __future__ import annotations

import os
import signal
import sys
from array import array
from dataclasses import replace
from pathlib import Path
from typing import Any

import gevent
import pyarrow.parquet as pq
from starting.script import print_facts

from tailgauge.rows import recorder as free_space
from tailgauge.rows.recorder import Recorder, RecorderError
from tailgauge.rows.run_folder import RunFolder
from tailgauge.rows.schema import AttemptRow, Chunks, HealthRow, RequestRow

WORKER = 3
REQUEST = RequestRow(
    1, "steady", "chat", "streaming", None, 5, None, None, "client_drop", 0, 0, 200, 50
)
FULL_REQUEST = RequestRow(
    -1, "preflight", "größe", "streaming", 7, -5, 6, 2**62, "ok", 1, 2, 200, 50
)
ATTEMPT = AttemptRow(1, 0, 0, "primary", None, "steady", "chat", "openai", "tiny", 5, 6)
FULL_ATTEMPT = replace(
    ATTEMPT,
    status=200,
    retry_after_s=1.5,
    connection_is_new=False,
    error_body="ü\n🙂",
    thinking_tokens=0,
    model="m",
)
HEALTH = HealthRow(1, 2, 3, 4, 5, 6, 7, 8, 9, 10, 11, 0.5, 13, 14, 15, -16)


def chunks(count: int, low: int = 0) -> Chunks:
    numbers = array("q", range(1, count + 1))
    return Chunks(bytearray(i % 3 for i in range(count)), numbers, array("q", [low] * count), numbers,
                  array("i", range(count)), array("i", [5] * count))  # fmt: skip


def append(recorder: Recorder) -> None:
    recorder.request(REQUEST)
    recorder.request(FULL_REQUEST)
    recorder.attempt(ATTEMPT)
    recorder.attempt(FULL_ATTEMPT)
    recorder.health(HEALTH)
    recorder.chunks(1, 0, 0, 0, chunks(2))
    recorder.chunks(1, 0, 0, 2, chunks(0))
    recorder.chunks(65536, 2, 1, 7, chunks(1, low=9))


def folder(name: str) -> RunFolder:
    made = RunFolder(Path(sys.argv[1]) / name)
    made.create()
    return made


def files(made: RunFolder) -> list[str]:
    return sorted(str(p.relative_to(made.path)) for p in made.path.rglob("*") if p.is_file())


def rows(made: RunFolder, table: str, number: Any) -> list[dict[str, Any]]:
    return pq.read_table(made.part(table, WORKER, number)).to_pylist()


def round_trip() -> Any:
    made = folder("round")
    recorder = Recorder(made, WORKER)
    recorder.warm_up()
    append(recorder)
    waiting = recorder.waiting_rows
    recorder.flush(wait=True)
    recorder.close()
    pandas = "pandas" in sys.modules  # before the reading below, which loads it
    schema = pq.read_schema(made.part("attempts", WORKER, 0))
    return {
        "waiting": [waiting, recorder.waiting_rows],
        "files": files(made),
        "tables": {t: rows(made, t, 0) for t in ("requests", "attempts", "chunks", "health")},
        "written": recorder.written,
        "metadata": {k.decode(): v.decode() for k, v in schema.metadata.items()},
        "nullable": [f.name for f in schema if f.nullable][:3],
        "pandas": pandas,
    }


def compaction() -> Any:
    made = folder("compact")
    recorder = Recorder(made, WORKER)
    for _ in range(3):
        append(recorder)
        recorder.flush(wait=True)
    recorder.health(HEALTH)
    before = files(made)
    recorder.close()
    whole = pq.read_schema(made.part("chunks", WORKER, "all"))
    return {
        "before": before,
        "after": files(made),
        "replaces": whole.metadata[b"tailgauge.replaces"].decode(),
        "requests": len(rows(made, "requests", "all")),
        "indices": [row["chunk_index"] for row in rows(made, "chunks", "all")],
        "health": len(rows(made, "health", "all")),
        "written": recorder.written,
    }


def busy_writer() -> Any:
    """While a part is being written, a flush leaves the rows for the next one."""
    made, original = folder("busy"), free_space.write_part
    import time

    def slow(*arguments: Any) -> None:
        time.sleep(0.2)  # on the pool's thread
        original(*arguments)

    free_space.write_part = slow
    recorder = Recorder(made, WORKER)
    recorder.request(REQUEST)
    recorder.flush()
    recorder.request(REQUEST)
    recorder.flush()
    waiting = recorder.waiting_rows
    turns = 0
    while not recorder._writing.ready():
        gevent.sleep(0.01)
        turns += 1
    free_space.write_part = original
    recorder.close()
    return {"waiting": waiting, "turns": turns, "written": recorder.written["requests"]}


def failing(how: Any) -> Any:
    recorder = how()
    recorder.flush(wait=True)
    printed = []
    for act in (recorder.check, recorder.check, recorder.close):
        try:
            act()
            printed.append(None)
        except RecorderError as error:
            printed.append(str(error))
    return printed


def folder_gone() -> Any:
    made = folder("gone")
    (made.path / "requests").rmdir()
    (made.path / "requests").write_text("in the way")
    recorder = Recorder(made, WORKER)
    append(recorder)
    return {
        "printed": failing(lambda: recorder),
        "written": recorder.written,
        "left": [f for f in files(made) if ".tmp" in f],
    }


def half_a_character() -> Any:
    made = folder("text")
    recorder = Recorder(made, WORKER)
    recorder.attempt(replace(ATTEMPT, model="a\ud800b"))
    recorder.attempt(replace(ATTEMPT, model="größe"))
    recorder.attempt(ATTEMPT)
    recorder.close()
    return [row["model"] for row in rows(made, "attempts", 0)]


def chunks_that_do_not_fit() -> Any:
    recorder = Recorder(folder("unfit"), WORKER)
    broken = chunks(2)
    broken.chars.pop()
    recorder.chunks(1, 0, 0, 0, broken)
    return failing(lambda: recorder)


def write_until_killed() -> None:
    """Parts without end; in the middle of the last one the process kills itself."""
    made, original, count = folder("killed"), free_space.pq.write_table, 0

    def cut(table: Any, where: Any, **other: Any) -> None:
        nonlocal count
        count += 1
        original(table, where, **other)
        if count == 10:
            data = Path(where).read_bytes()
            Path(where).write_bytes(data[: len(data) // 2])
            os.kill(os.getpid(), signal.SIGKILL)

    free_space.pq.write_table = cut
    recorder = Recorder(made, WORKER)
    while True:
        append(recorder)
        recorder.flush(wait=True)


if sys.argv[2:] == ["kill"]:
    write_until_killed()
print_facts(
    round_trip,
    compaction,
    busy_writer,
    folder_gone,
    half_a_character,
    chunks_that_do_not_fit,
    limit_s=None,
)
