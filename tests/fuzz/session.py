"""One target for a while: inputs are drawn and checked, and each kind of failure is kept in its smallest form.

A target is a module of `targets/` with `corpus() -> list[bytes]` and `check(data) -> None`, which raises where a rule is
broken. A kept input is a file of `corpus/TARGET` that holds the bytes as a literal of Python.
"""

from __future__ import annotations

import ast
import contextlib
import hashlib
import importlib
import signal
import time
import traceback
from collections.abc import Iterator
from dataclasses import dataclass, field
from pathlib import Path
from random import Random
from typing import Any

from fuzz.mutator import Mutator

FOLDER = Path(__file__).parent
NAMES = sorted(path.stem for path in (FOLDER / "targets").glob("*.py") if path.stem != "__init__")
CPU_S = 10.0  # of one input
MOST_CHECKS = 400  # while an input is made smaller


class TooLongError(BaseException):
    """A check took more CPU time than it may. No handler of the product takes this one."""


@dataclass
class Failure:
    """A broken rule: where it was raised, what it says, and the file of the input."""

    place: str
    text: str
    file: str


@dataclass
class Session:
    """What became of the inputs of one target; `keeps`: write failing inputs into the corpus."""

    name: str
    keeps: bool
    current: Path | None = (
        None  # has the input that is checked, for whoever finds this process dead
    )
    inputs: int = 0
    failed: int = 0
    failures: dict[str, Failure] = field(default_factory=dict)

    def __post_init__(self) -> None:
        self._target: Any = importlib.import_module(f"fuzz.targets.{self.name}")

    def replay(self) -> None:
        """Check every kept input and every entry of the corpus."""
        for path in kept(self.name):
            self._take(load(path), str(path))
        for entry in self._target.corpus():
            self._take(entry, "")

    def mutate(self, seed: int, *, inputs: int | None = None, seconds: float | None = None) -> None:
        """Check so many drawn inputs, or as many as the time allows."""
        entries = [*self._target.corpus(), *map(load, kept(self.name))]
        mutator = Mutator(entries)
        until = None if seconds is None else time.monotonic() + seconds
        number = 0
        while (inputs is None or number < inputs) and (until is None or time.monotonic() < until):
            self._take(mutator.draw(Random(f"{seed}-{self.name}-{number}")), "")
            number += 1

    def _take(self, data: bytes, file: str) -> None:
        self.inputs += 1
        if self.current is not None:
            self.current.write_bytes(data)
        place, text = self._failure(data)
        if not place:
            return
        self.failed += 1
        if place in self.failures:
            return
        if not file:
            smallest = self._smaller(data, place)
            file = str(keep(self.name, smallest)) if self.keeps else repr(smallest)
        self.failures[place] = Failure(place, text, file)

    def _failure(self, data: bytes) -> tuple[str, str]:
        """Where a rule was broken, and how; empty where none was."""
        try:
            with bounded():
                self._target.check(data)
        except TooLongError:
            return "too long", f"over {CPU_S:g} s of CPU"
        except Exception as error:  # noqa: BLE001 - what is looked for
            frame = traceback.extract_tb(error.__traceback__)[-1]
            place = (
                f"{type(error).__name__} in {Path(frame.filename).name}:{frame.name}:{frame.lineno}"
            )
            return place, f"{type(error).__name__}: {error}"[:1000]
        return "", ""

    def _smaller(self, data: bytes, place: str) -> bytes:
        """The input without the pieces that the failure does not need: halves, then ever smaller ones."""
        left = MOST_CHECKS if place != "too long" else 10
        size = len(data) // 2
        while size and left > 0:
            begin = 0
            while begin < len(data) and left > 0:
                shorter = data[:begin] + data[begin + size :]
                left -= 1
                if self._failure(shorter)[0] == place:
                    data = shorter
                else:
                    begin += size
            size //= 2
        return data


@contextlib.contextmanager
def bounded() -> Iterator[None]:
    """At most CPU_S inside."""

    def end(*_: object) -> None:
        raise TooLongError

    before = signal.signal(signal.SIGPROF, end)
    signal.setitimer(signal.ITIMER_PROF, CPU_S)
    try:
        yield
    finally:
        signal.setitimer(signal.ITIMER_PROF, 0)
        signal.signal(signal.SIGPROF, before)


def kept(name: str) -> list[Path]:
    """The files of inputs that failed once."""
    return sorted((FOLDER / "corpus" / name).glob("*"))


def load(path: Path) -> bytes:
    """The bytes of such a file."""
    data = ast.literal_eval(path.read_text(encoding="ascii"))
    assert isinstance(data, bytes)
    return data


def keep(name: str, data: bytes) -> Path:
    """Write an input into the corpus."""
    path = FOLDER / "corpus" / name / hashlib.sha256(data).hexdigest()[:8]
    path.parent.mkdir(parents=True, exist_ok=True)
    path.write_text(f"{data!r}\n", encoding="ascii")
    return path
