"""The message names what a machine lacks: it is no fault of ours."""

from __future__ import annotations

import errno
import os

import pytest

from tailgauge.errors import Exit, InternalError, MachineError, failure


def refused(number: int, file: str | None = None) -> OSError:
    return OSError(number, os.strerror(number), file)


@pytest.mark.parametrize(
    ("error", "text"),
    [
        (
            refused(errno.EMFILE),
            "no file descriptor is left to this process: raise its limit (ulimit -n)",
        ),
        (
            refused(errno.ENFILE, "/a/b"),
            "/a/b: no file descriptor is left on this machine: raise fs.file-max,",
        ),
        (refused(errno.ENOSPC, "/a/b"), "/a/b: no space is left: free some space there"),
        (
            refused(errno.EACCES, "/a/b"),
            "/a/b: permission is denied: allow reading and writing there",
        ),
        (
            refused(errno.EAGAIN),
            "no process or thread can be started: raise the limit on them (ulimit -u)",
        ),
        (RuntimeError("can't start new thread"), "no process or thread can be started"),
        (MemoryError(), "no memory is left"),
        (
            ModuleNotFoundError("No module named 'x'"),
            "No module named 'x': a file of the program cannot be read",
        ),
    ],
)
def test_what_a_machine_lacks_is_named_without_a_traceback(error, text):
    found = failure(error)

    assert isinstance(found, MachineError)
    assert str(found).startswith(text)
    assert found.exit_code == Exit.USAGE


@pytest.mark.parametrize(
    "error", [refused(errno.ENOENT, "/a/b"), RuntimeError("other"), KeyError("x")]
)
def test_anything_else_is_a_fault_of_ours(error, monkeypatch, tmp_path):
    monkeypatch.setattr("tempfile.tempdir", str(tmp_path))

    assert isinstance(failure(error), InternalError)
