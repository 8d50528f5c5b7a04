"""Script: a disk that is full, read-only, gone, hung or slow while rows are recorded, and one that recovers.

storage_faults.py FOLDER [SMALL_DISK]    without a small disk what needs one is left out
storage_faults.py FOLDER kill            is killed when a compacted part stands beside those that it replaces
"""

from __future__ import annotations

import os
import shutil
import signal
import subprocess
import sys
import threading
import time
from dataclasses import replace
from pathlib import Path
from typing import Any

import gevent
import pyarrow.parquet as pq
from starting.script import print_facts

from tailgauge.rows import parquet
from tailgauge.rows import recorder as free_space
from tailgauge.rows.recorder import Recorder, RecorderError
from tailgauge.rows.run_folder import RunFolder
from tailgauge.rows.schema import AttemptRow, HealthRow, RequestRow

WORKER = 3
REQUEST = RequestRow(
    1, "steady", "chat", "streaming", None, 5, None, None, "client_drop", 0, 0, 200, 50
)
ATTEMPT = AttemptRow(1, 0, 0, "primary", None, "steady", "chat", "openai", "tiny", 5, 6)


def folder(name: str, under: str | Path = sys.argv[1]) -> RunFolder:
    made = RunFolder(Path(under) / name)
    made.create()
    return made


def health(recorder: Recorder, begin: int, count: int = 10) -> None:
    for number in range(begin, begin + count):
        recorder.health(HealthRow(number, *[0] * 15))


def printed(act: Any) -> str | None:
    try:
        act()
    except RecorderError as error:
        return str(error)
    return None


def facts(made: RunFolder, recorder: Recorder) -> dict[str, Any]:
    """What is in the folder, against what the recorder says of it."""
    found = sorted(made.path.glob("health/part-*.parquet"), key=lambda p: int(p.stem.split("-")[2]))
    return {
        "numbers": [n for part in found for n in pq.read_table(part)["at_ns"].to_pylist()],
        "left": [p.name for p in made.path.rglob("*.tmp")],
        "written": recorder.written,
        "unwritten": recorder.unwritten,
        "waiting": recorder.waiting_rows,
    }


def until(done: Any, seconds: float = 20) -> int:
    """Turns of the hub until `done()`."""
    turns, end = 0, time.monotonic() + seconds
    while not done():
        if time.monotonic() > end:
            raise TimeoutError
        gevent.sleep(0.01)
        turns += 1
    return turns


def first_fault(recorder: Recorder) -> str:
    found: list[str] = []
    until(lambda: found or found.extend(filter(None, [printed(recorder.check)])))
    return found[0]


def filled(disk: Path) -> Path:
    """A file that takes all the space of a disk."""
    ballast = disk / "ballast"
    with ballast.open("wb", buffering=0) as file:
        try:
            while True:
                file.write(bytes(4096))
        except OSError:
            return ballast


def full(*, recovers: bool) -> Any:
    disk = Path(sys.argv[2])
    made = folder(f"full-{recovers}", disk)
    recorder = Recorder(made, WORKER)
    health(recorder, 0)
    recorder.flush(wait=True)
    recorder.check()
    ballast = filled(disk)
    health(recorder, 10)
    recorder.request(REQUEST)
    recorder.flush()
    fault = first_fault(recorder)
    before = recorder.unwritten
    health(recorder, 20)
    if recovers:
        ballast.unlink()
    recorder.flush(wait=True)  # changes nothing: what failed is tried again at the end
    waiting = recorder.waiting_rows
    end = printed(recorder.close)
    ballast.unlink(missing_ok=True)
    return {"fault": fault, "before": before, "then": waiting, "end": end, **facts(made, recorder)}


def read_only() -> Any:
    disk = Path(sys.argv[2])
    made = folder("read-only", disk)
    recorder = Recorder(made, WORKER)
    subprocess.run(["mount", "-o", "remount,ro", disk], check=True)
    health(recorder, 0)
    recorder.flush()
    fault, end = first_fault(recorder), printed(recorder.close)
    subprocess.run(["mount", "-o", "remount,rw", disk], check=True)
    return {"fault": fault, "end": end, **facts(made, recorder)}


def gone() -> Any:
    made = folder("gone")
    recorder = Recorder(made, WORKER)
    shutil.rmtree(made.path)
    health(recorder, 0)
    recorder.flush()
    return {"fault": first_fault(recorder), "end": printed(recorder.close), **facts(made, recorder)}


def hung() -> Any:
    """A pipe that nobody reads stands for a disk that does not answer: the system call does not come back."""
    made, free_space.MAX_WRITING_S = folder("hung"), 0.3
    os.mkfifo(made.part("health", WORKER, 0).with_suffix(".tmp"))
    recorder = Recorder(made, WORKER)
    health(recorder, 0)
    recorder.request(REQUEST)
    recorder.flush()
    turns = 0

    def passes() -> None:
        nonlocal turns
        while True:
            gevent.sleep(0.01)
            turns += 1

    ticking = gevent.spawn(passes)
    fault = first_fault(recorder)
    health(recorder, 10)
    recorder.flush()
    turns = 0
    end = printed(recorder.close)
    ticking.kill()
    free_space.MAX_WRITING_S = 30.0
    requests = made.part("requests", WORKER, 0)
    (made.path / "health/part-3-0.tmp").unlink()  # the thread stays where it is
    return {
        "fault": fault, "end": end, "turns": turns, "requests": pq.read_metadata(requests).num_rows, **facts(made, recorder),
    }  # fmt: skip


def slow() -> Any:
    """A part that takes too long and comes in the end."""
    made, free_space.MAX_WRITING_S, original = folder("slow"), 0.2, free_space.write_part

    def dawdle(*arguments: Any) -> None:
        time.sleep(0.6)
        original(*arguments)

    free_space.write_part = dawdle
    recorder = Recorder(made, WORKER)
    health(recorder, 0)
    recorder.flush()
    fault = first_fault(recorder)
    free_space.write_part, free_space.MAX_WRITING_S = original, 30.0
    health(recorder, 10)
    return {"fault": fault, "end": printed(recorder.close), **facts(made, recorder)}


def too_many_rows() -> Any:
    """Those that the writer has count, and each kind of row has its own bound."""
    made, original, most = folder("many"), free_space.write_part, free_space.MAX_WAITING_ROWS
    held = threading.Event()
    free_space.MAX_WAITING_ROWS = 15
    free_space.write_part = lambda *arguments: (held.wait(), original(*arguments))
    recorder = Recorder(made, WORKER)
    health(recorder, 0)
    recorder.flush()
    gevent.sleep(0.05)
    before = printed(recorder.check)
    health(recorder, 10)
    fault = printed(recorder.check)
    held.set()
    free_space.write_part, free_space.MAX_WAITING_ROWS = original, most
    return {
        "before": before,
        "fault": fault,
        "end": printed(recorder.close),
        **facts(made, recorder),
    }


def one_table_fails() -> Any:
    """What cannot be stored keeps its table's rows back, and no other's."""
    made = folder("one")
    recorder = Recorder(made, WORKER)
    recorder.attempt(replace(ATTEMPT, status="none"))
    health(recorder, 0)
    recorder.flush()
    return {"fault": first_fault(recorder), "end": printed(recorder.close), **facts(made, recorder)}


def handed_on() -> Any:
    made = folder("handed")
    seen: list[Any] = []
    main = threading.get_native_id()

    def on_part(table: str, path: Path) -> None:
        seen.append([table, path.name, path.exists(), threading.get_native_id() != main])

    recorder = Recorder(made, WORKER, on_part, compacts=False)
    for number in range(3):
        health(recorder, 10 * number)
        recorder.request(REQUEST)
        if number < 2:
            recorder.flush(wait=True)
    recorder.close()
    return {"seen": seen, **facts(made, recorder)}


def handing_on_fails() -> Any:
    def on_part(table: str, path: Path) -> None:
        raise KeyError(path.name)

    made = folder("unhanded")
    recorder = Recorder(made, WORKER, on_part)
    health(recorder, 0)
    return {"end": printed(recorder.close), **facts(made, recorder)}


def no_space_to_compact() -> Any:
    disk = Path(sys.argv[2])
    made = folder("compact", disk)
    recorder = Recorder(made, WORKER)
    for number in range(3):
        health(recorder, 10 * number)
        recorder.flush(wait=True)
    ballast = filled(disk)
    end = printed(recorder.close)
    ballast.unlink()
    return {"end": end, "remarks": recorder.remarks, **facts(made, recorder)}


def limits() -> Any:
    return [
        free_space.MAX_WRITING_S,
        free_space.MAX_WAITING_ROWS,
        free_space.MAX_WAITING_CHUNKS,
        parquet.MAX_ROWS,
    ]


def full_and_recovers() -> Any:
    return full(recovers=True)


def full_for_good() -> Any:
    return full(recovers=False)


def compact_until_killed() -> None:
    recorder = Recorder(folder("killed"), WORKER)
    for number in range(3):
        health(recorder, 10 * number)
        recorder.flush(wait=True)
    original = Path.unlink

    def cut(path: Path, *arguments: Any, **other: Any) -> None:
        original(path, *arguments, **other)
        os.kill(os.getpid(), signal.SIGKILL)

    Path.unlink = cut
    recorder.close()


CASES = [limits, gone, hung, slow, too_many_rows, one_table_fails, handed_on, handing_on_fails]
if sys.argv[2:] == ["kill"]:
    compact_until_killed()
if len(sys.argv) > 2:
    CASES += [full_and_recovers, full_for_good, no_space_to_compact, read_only]
print_facts(*CASES, limit_s=None)
