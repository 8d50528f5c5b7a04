"""Collects a test file that needs a process patched by gevent as one test, which runs pytest there."""

from __future__ import annotations

import shutil
import sys
from collections.abc import Iterator
from pathlib import Path
from tempfile import mkdtemp
from typing import Any

import pytest

MARK = "mark.gevent"
LIMIT_S = 280
PATCHED = Path(__file__).with_name("patched.py")


def is_patched() -> bool:
    """Return whether gevent has patched this process."""
    monkey = sys.modules.get("gevent.monkey")
    return monkey is not None and monkey.is_module_patched("socket")


class PatchedFile(pytest.File):
    """A file whose tests run in a process of their own; marks of any of its tests count for the file."""

    def collect(self) -> Iterator[pytest.Item]:
        text = self.path.read_text(encoding="utf-8")
        item = PatchedProcess.from_parent(self, name="patched")
        for mark in ("alone", "patient", "timed"):
            if f"mark.{mark}" in text:
                item.add_marker(mark)
        yield item


class PatchedProcess(pytest.Item):
    """A run of pytest on the file."""

    def runtest(self) -> None:
        from starting.command import run_command

        # Many of them run at once: the folders that pytest numbers would be looked for and deleted by all.
        folder = mkdtemp(prefix="tailgauge-patched-")
        arguments = ["-q", "--basetemp", folder, self.path]
        done = run_command(["python", PATCHED, *arguments], LIMIT_S, cwd=self.config.rootpath)
        if done.returncode:
            raise PatchedFailure(done.stdout + done.stderr)
        shutil.rmtree(folder, ignore_errors=True)
        if " passed" not in done.stdout:
            pytest.skip(done.stdout)

    def repr_failure(self, excinfo: pytest.ExceptionInfo[BaseException], style: Any = None) -> Any:
        if isinstance(excinfo.value, PatchedFailure):
            return str(excinfo.value)
        return super().repr_failure(excinfo, style)

    def reportinfo(self) -> tuple[Path, int | None, str]:
        return self.path, None, self.path.name


class PatchedFailure(Exception):  # noqa: N818 - no error of ours
    """What pytest printed there."""
