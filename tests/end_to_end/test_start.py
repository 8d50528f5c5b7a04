"""The workers of a run are copies of its master: what the master has imported, none of them imports again."""

from __future__ import annotations

import os
from pathlib import Path

import pytest
from starting.command import Start
from starting.simulator import served

WORKERS = 4
# Python imports this at its start: it writes down who imports an SDK, and how many threads there are before each fork.
SITE = """
import os, sys

def note(text):
    with open(os.environ["SPIED"], "a") as file:
        file.write(f"{os.getpid()} {text}\\n")

class Finder:
    @staticmethod
    def find_spec(name, *_):
        if name in {"anthropic", "openai", "pandas"}:
            note(name)

sys.meta_path.insert(0, Finder)
os.register_at_fork(before=lambda: note(f"threads={len(os.listdir('/proc/self/task'))}"))
"""


@pytest.mark.parametrize("protocol", ["anthropic", "openai"])
def test_an_sdk_is_imported_once_and_workers_are_forked_from_a_process_without_threads(
    start: Start, tmp_path: Path, protocol: str
) -> None:
    (tmp_path / "sitecustomize.py").write_text(SITE)
    path = os.pathsep.join(filter(None, (str(tmp_path), os.environ.get("PYTHONPATH"))))
    spied = tmp_path / "spied"
    with served({"ttft_ms": 50}) as target:
        running = start(
            "run", "streaming", f"--target={target.url}", f"--protocol={protocol}", f"--workers={WORKERS}",
            "--rate=20", "--duration=2", env={"PYTHONPATH": path, "SPIED": str(spied)},
        )  # fmt: skip
        master, done = running.process.pid, running.finish(120)
    lines = [line.split() for line in spied.read_text().splitlines()]
    imports = [(int(pid), text) for pid, text in lines if "=" not in text]
    forks = [text for pid, text in lines if "=" in text and int(pid) == master]
    workers = {entry["pid"] for entry in done.run.facts["workers"]}

    assert [found for found in imports if found[1] != "pandas"] == [(master, protocol)], done.stderr
    assert forks[:WORKERS] == ["threads=1"] * WORKERS
    assert len(workers) == WORKERS
    assert not workers & {int(pid) for pid, _ in lines}, "none imports, or forks"
    assert done.run.requests().ended.eq("ok").all()
