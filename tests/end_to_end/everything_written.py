"""All that a command says to anybody: files, messages on Locust's channel, command lines and environments of its children.

Rule: messages are noted by the processes that send them, as the bytes that they hand to ZeroMQ; processes are looked at
from outside, while they live.
"""

from __future__ import annotations

import contextlib
import os
import threading
from pathlib import Path

import psutil
import pyarrow.parquet as pq
from starting.command import Finished

# Python imports this at its start; Locust packs each message with msgpack.dumps.
SITE = """
import msgpack, os

def dumps(*given, _dumps=msgpack.dumps, **named):
    packed = _dumps(*given, **named)
    with open(os.path.join(os.environ["SPIED"], str(os.getpid())), "ab") as file:
        file.write(packed)
    return packed

msgpack.dumps = dumps
"""


class Channel:
    """What the processes of a command send to each other; `env` is for that command."""

    def __init__(self, folder: Path) -> None:
        self._sent = folder / "sent"
        self._sent.mkdir(parents=True)
        (folder / "sitecustomize.py").write_text(SITE)
        self.env = {
            "PYTHONPATH": os.pathsep.join(
                filter(None, (str(folder), os.environ.get("PYTHONPATH")))
            ),
            "SPIED": str(self._sent),
        }

    @property
    def sent(self) -> bytes:
        """All of it."""
        return b"".join(path.read_bytes() for path in sorted(self._sent.iterdir()))


class Processes:
    """All descendants of a process: their command `lines`, and the `environments` that each role was given."""

    def __init__(self, pid: int) -> None:
        self.lines: set[tuple[int, str]] = set()
        self.environments: dict[str, list[str]] = {}
        self._over = threading.Event()
        self._thread = threading.Thread(target=self._look, args=(psutil.Process(pid),))
        self._thread.start()

    def _look(self, root: psutil.Process) -> None:
        while not self._over.wait(0.05):
            with contextlib.suppress(psutil.NoSuchProcess):
                for process in (root, *root.children(recursive=True)):
                    self._note(process)

    def _note(self, process: psutil.Process) -> None:
        text = [process.name().partition(" ")[0], *process.cmdline()]
        seen = (process.pid, " ".join(text))
        if seen not in self.lines:
            output = "\0".join(f"{name}={value}" for name, value in process.environ().items())
            role = next(
                (word for word in text if word in {"run", "worker", "endpoint", "report"}), "other"
            )
            self.lines.add(seen)
            self.environments.setdefault(role, []).append(output)

    def end(self) -> None:
        """Look no more."""
        self._over.set()
        self._thread.join()


def everything(done: Finished) -> list[str]:
    """Text of every file and every cell of every table that a command left, and of what it printed."""
    texts = [done.stdout, done.stderr]
    texts += [path.read_bytes().decode("latin-1") for path in done.out.rglob("*") if path.is_file()]
    texts += [
        pq.read_table(path).to_pandas().astype(str).to_csv() for path in done.out.rglob("*.parquet")
    ]
    return texts
