"""A terminal for tests: a command under a pseudo terminal of a given size, and what stands in its cells afterwards."""

from __future__ import annotations

import errno
import fcntl
import os
import pty
import re
import struct
import subprocess
import termios
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path

from starting.programs import environment

_TOKEN = re.compile(
    r"\x1b\[(?P<number>\d*(?:;\d+)*)(?P<code>[A-Za-z])|(?P<control>[\r\n])|(?P<text>[^\x1b\r\n])",
    re.DOTALL,
)


@dataclass
class Screen:
    """Lines with everything that scrolled away; `wrapped`: those that the terminal broke at its edge."""

    columns: int = 80
    lines: list[str] = field(default_factory=lambda: [""])
    wrapped: list[str] = field(default_factory=list)
    shown: list[str] = field(
        default_factory=list
    )  # every line as it was when it was left or overwritten
    colours: set[str] = field(default_factory=set)
    _row: int = 0
    _column: int = 0

    def feed(self, text: str) -> Screen:
        at = 0
        while at < len(text):
            token = _TOKEN.match(text, at)
            assert token is not None, f"unknown control sequence: {text[at : at + 20]!r}"
            at = token.end()
            if token["text"]:
                self._put(token["text"])
            elif token["control"]:
                self._move(token["control"])
            else:
                self._escape(token["code"], token["number"])
        return self

    def _put(self, character: str) -> None:
        if self._column == self.columns:
            self.wrapped.append(self.lines[self._row])
            self._move("\n")
        line = self.lines[self._row].ljust(self._column)
        self.lines[self._row] = line[: self._column] + character + line[self._column + 1 :]
        self._column += 1

    def _move(self, control: str) -> None:
        self._column = 0
        self.shown.append(self.lines[self._row])
        if control == "\n":
            self._row += 1
            self.lines.extend([""] * (self._row + 1 - len(self.lines)))

    def _escape(self, code: str, number: str) -> None:
        if code == "m":
            self.colours.add(number)
        elif code == "A":
            self._row = max(0, self._row - int(number or 1))
        elif code == "J" and number in {"", "0"}:
            self.shown.extend(self.lines[self._row :])
            self.lines[self._row :] = [self.lines[self._row][: self._column]]
        else:
            raise AssertionError(f"unknown control sequence ESC[{number}{code}")


def run_in_terminal(
    line: Sequence[str],
    folder: Path,
    env: Mapping[str, str] | None = None,
    *,
    columns: int = 80,
    rows: int = 24,
) -> tuple[int, Screen]:
    """Exit code and screen of a command whose standard output and error are a terminal of that size."""
    ours, theirs = pty.openpty()
    fcntl.ioctl(theirs, termios.TIOCSWINSZ, struct.pack("HHHH", rows, columns, 0, 0))
    names = environment(env or {}).items()
    env = {name: text for name, text in names if name not in {"COLUMNS", "LINES", "NO_COLOR"}}
    env["TERM"] = "xterm-256color"
    child = subprocess.Popen(
        line, cwd=folder, env=env, stdin=subprocess.DEVNULL, stdout=theirs, stderr=theirs
    )
    os.close(theirs)
    pieces = []
    try:
        while piece := _read(ours):
            pieces.append(piece)
    finally:
        os.close(ours)
        code = child.wait(timeout=60)
    return code, Screen(columns).feed(b"".join(pieces).decode())


def _read(terminal: int) -> bytes:
    """What was written meanwhile; nothing once the last writer has closed it."""
    try:
        return os.read(terminal, 65536)
    except OSError as error:
        if error.errno != errno.EIO:
            raise
        return b""
