"""The workers of a run are copies of its master: what it has imported, none of them imports again. Its report is ready to
read the rows once they are complete.
"""

from __future__ import annotations

import os
from dataclasses import dataclass

import pytest
from starting.command import Finished, Running
from starting.programs import TAILGAUGE
from starting.simulator import served

from tailgauge.errors import Exit

pytestmark = pytest.mark.slow

WORKERS = 4
FULL = pytest.mark.skipif(
    os.environ.get("TAILGAUGE_FULL") != "1", reason="make verify: the other SDK"
)
# Python imports this at its start: it writes down who imports what when, and how many threads there are before each fork.
SITE = """
import os, sys, time

def note(text):
    with open(os.environ["SPIED"], "a") as file:
        file.write(f"{os.getpid()} {time.monotonic_ns()} {text}\\n")

class Finder:
    @staticmethod
    def find_spec(name, *_):
        if name in {"anthropic", "openai", "pandas"}:
            note(name)

sys.meta_path.insert(0, Finder)
os.register_at_fork(before=lambda: note(len(os.listdir("/proc/self/task"))))
"""


@dataclass(frozen=True)
class Note:
    """A process imports a module, or forks with so many threads."""

    pid: int
    at_ns: int
    text: str


@dataclass(frozen=True)
class StartedRun:
    """A run whose last requests take four seconds, and what its processes noted."""

    done: Finished
    master: int
    sdk: str
    notes: list[Note]


@pytest.fixture(scope="module", params=["openai", pytest.param("anthropic", marks=FULL)])
def seen(request: pytest.FixtureRequest, tmp_path_factory: pytest.TempPathFactory) -> StartedRun:
    folder = tmp_path_factory.mktemp("start")
    (folder / "sitecustomize.py").write_text(SITE)
    spied = folder / "spied"
    path = os.pathsep.join(filter(None, (str(folder), os.environ.get("PYTHONPATH"))))
    with served({"ttft_ms": 50, "chunk_gap_ms": 100}) as target:
        line = [TAILGAUGE, "run", "streaming", f"--target={target.url}", f"--protocol={request.param}",
                f"--workers={WORKERS}", "--rate=20", "--duration=2", f"--out={folder}"]  # fmt: skip
        running = Running(line, folder, {"PYTHONPATH": path, "SPIED": str(spied)}, folder)
        done = running.finish(120)
    lines = [line.split() for line in spied.read_text().splitlines()]
    notes = [Note(int(pid), int(at_ns), text) for pid, at_ns, text in lines]
    return StartedRun(done, running.process.pid, request.param, notes)


def test_the_master_alone_imports_the_sdk_and_no_other_one(seen):
    run = seen.done.run
    imported = [
        (note.pid, note.text) for note in seen.notes if note.text in {"anthropic", "openai"}
    ]
    workers = {entry["pid"] for entry in run.facts["workers"]}

    assert imported == [(seen.master, seen.sdk)]
    assert len(workers) == WORKERS
    assert not workers & {note.pid for note in seen.notes}, "none imports pandas either, or forks"
    assert run.requests().ended.eq("ok").all()


def test_workers_are_forked_from_a_process_without_other_threads(seen):
    threads = [note.text for note in seen.notes if note.pid == seen.master and note.text.isdigit()]

    assert threads[:WORKERS] == ["1"] * WORKERS


def test_workers_on_this_machine_start_sooner_than_remote_ones(seen):
    run = seen.done.run
    rows = run.table("requests")
    ready_ns = rows[rows.stage == "preflight"].ended_at_ns.max()

    assert 0.3 <= (run.facts["start_at_ns"] - ready_ns) / 1e9 < 1.5


def test_the_report_is_loaded_while_the_last_requests_end(seen):
    facts = seen.done.run.facts
    (loaded_ns,) = (note.at_ns for note in seen.notes if note.text == "pandas")

    assert facts["admission_end_at_ns"] < loaded_ns < facts["ended_at_ns"]


def test_a_report_that_waits_ends_with_its_input(start, tmp_path):
    done = start("report", str(tmp_path), "--wait").finish(60)

    assert (done.code, done.stdout) == (Exit.INTERRUPTED, "")
