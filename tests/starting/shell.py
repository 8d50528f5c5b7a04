"""Somebody who copies commands from a terminal into a shell: exactly as they were printed, in a folder and a HOME of their own."""

from __future__ import annotations

import json
import os
import re
import shlex
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from starting.command import Finished, Running
from starting.programs import TAILGAUGE

PROGRAMS = str(Path(TAILGAUGE).parent)
# In backticks, or to the end of a line, which goes on below while it ends in a backslash.
COMMAND = re.compile(
    r"`(tailgauge(?: [^`]+)?)`|(?:^ +|: )((?:tailgauge|locust) (?:.*\\\n)*.*)$", re.MULTILINE
)

FILE = "my runs/it's mine.toml"
MINE = shlex.quote(FILE)
SCENARIO = """
name = "mine"
[target]
model = "tiny"
{target}
[arrival]
rate_per_s = {rate}
[stages]
duration_s = {seconds}
warmup_s = 0
[traffic.chat]
prompt_tokens = 20
output_tokens = 4
{more}
"""


@dataclass(frozen=True)
class Typed(Finished):
    """What became of a line."""

    line: str

    @property
    def text(self) -> str:
        return self.stdout + self.stderr

    @property
    def commands(self) -> list[str]:
        """The commands that it printed, the answer's first."""
        return [first or second for first, second in COMMAND.findall(self.text)]

    @property
    def command(self) -> str:
        """The first of them."""
        assert self.commands, self.shown
        return self.commands[0]

    @property
    def shown(self) -> str:
        return f"$ {self.line}\n{self.text}\nexit code {self.code}"

    def ended(self, *codes: int) -> Typed:
        """The same, once it is checked that its exit code is one of these."""
        assert self.code in codes, self.shown
        return self


class Shell:
    """One folder. `variables` are exported in it."""

    def __init__(self, folder: Path) -> None:
        self.folder = folder
        user = folder / "user"
        user.mkdir()
        path = f"{PROGRAMS}{os.pathsep}{os.environ['PATH']}"
        self.variables = {"HOME": str(user), "PATH": path, "COLUMNS": "80"}

    def type(self, line: str, timeout_s: float = 200) -> Typed:
        """Run a line to its end."""
        return self._typed(line, self._start(line).finish(timeout_s))

    @contextmanager
    def typing(self, line: str) -> Iterator[Running]:
        """Run a line beside what is inside, until its end or that of the context."""
        running = self._start(f"exec {line}")
        try:
            yield running
        finally:
            if running.process.poll() is None:
                running.kill()

    def _start(self, line: str) -> Running:
        return Running(["bash", "-c", line], self.folder, self.variables, self.folder)

    def _typed(self, line: str, done: Finished) -> Typed:
        return Typed(done.code, done.stdout, done.stderr, self.folder, line)

    def write(self, url: str = "", *, rate: float = 20, seconds: float = 2, more: str = "") -> None:
        """Write a scenario under a name that a shell takes in quotes only, `MINE`."""
        path = self.folder / FILE
        path.parent.mkdir(exist_ok=True)
        target = f'url = "{url}"' if url else ""
        text = SCENARIO.format(target=target, rate=rate, seconds=seconds, more=more)
        path.write_text(text, encoding="utf-8")

    def reports(self) -> list[dict[str, Any]]:
        """The reports in the folder, the newest last."""
        paths = self.folder.glob("reports/*/report.json")
        newest_last = sorted(paths, key=lambda path: path.stat().st_mtime_ns)
        return [json.loads(path.read_text(encoding="utf-8")) for path in newest_last]
