"""Folders that can be written, free space of a file system, and advice on files that could not be written."""

from __future__ import annotations

import os
import tempfile
from dataclasses import dataclass
from pathlib import Path

from tailgauge.errors import UsageError
from tailgauge.machine import ADVICE, NO_DESCRIPTORS

MEGABYTE = 1_000_000


@dataclass(frozen=True, slots=True)
class FreeSpace:
    """Free bytes and files (None if not counted) of the file system of `path`, and its size."""

    path: Path
    free: int
    files: int | None
    size: int

    def __str__(self) -> str:
        mount = self.path
        while not os.path.ismount(mount):
            mount = mount.parent
        free = self.free / MEGABYTE
        size = self.size / MEGABYTE
        return f"the file system at {mount} has {free:,.1f} of {size:,.0f} MB free"


def free_space(path: Path) -> FreeSpace | None:
    """Free space at a path or its nearest existing folder; None if the system does not report it."""
    for folder in (path, *path.parents):
        try:
            stats = os.statvfs(folder)
        except (FileNotFoundError, NotADirectoryError):
            continue
        except OSError:
            return None
        files = stats.f_favail if stats.f_files else None
        return FreeSpace(
            folder, stats.f_bavail * stats.f_frsize, files, stats.f_blocks * stats.f_frsize
        )
    return None


def writable(folder: Path, name: str) -> Path:
    """Create a folder. UsageError that begins with `name` where no file can be written, before anything waits for it."""
    try:
        folder.mkdir(parents=True, exist_ok=True)
        with tempfile.TemporaryFile(dir=folder):
            return folder
    except OSError as error:
        reason = error.strerror or str(error)
        if isinstance(error, FileExistsError | NotADirectoryError):
            reason = "a file is in its place"
        raise UsageError(f"{name} cannot be written: {reason}: name another folder") from error


def advice(error: Exception, path: Path) -> str:
    """Return one sentence on a file under `path` that could not be written: problem, free space, remedy."""
    if not isinstance(error, OSError):
        lines = str(error).strip().splitlines()
        return lines[0] if lines else type(error).__name__
    text = error.strerror or str(error)
    default = (text, "check the disk, or choose another --out")
    problem, remedy = ADVICE.get(error.errno or 0, default)
    if error.errno not in NO_DESCRIPTORS:
        free = free_space(path)
        if free is not None:
            problem = f"{problem} ({free})"
    return f"{problem}: {remedy}"
