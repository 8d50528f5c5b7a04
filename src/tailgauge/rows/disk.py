"""What a file system can take, and what its user can do when it takes no more.

Rule: questions to the system only; nothing is written here.
"""

from __future__ import annotations

import errno
import os
from dataclasses import dataclass
from pathlib import Path

MEGABYTE = 1_000_000
# What is wrong, and what to do about it, by the system's number of the error.
_ADVICE = {
    errno.ENOSPC: ("no space is left", "make room there or choose another --out"),
    errno.EDQUOT: ("the disk quota is used up", "make room there or choose another --out"),
    errno.EROFS: ("the file system is read-only", "mount it for writing or choose another --out"),
    errno.EACCES: ("permission is denied", "permit writing there or choose another --out"),
    errno.EPERM: ("permission is denied", "permit writing there or choose another --out"),
    errno.ENOENT: ("the folder is gone", "leave run folders alone while the run is on"),
    errno.ENOTDIR: ("the folder is gone", "leave run folders alone while the run is on"),
    errno.EIO: ("the disk reports errors", "check it, and choose another --out"),
}


@dataclass(frozen=True, slots=True)
class FreeSpace:
    """What the file system of `path` has left: bytes, files (None where it does not count them); and its size."""

    path: Path
    free: int
    files: int | None
    size: int

    def __str__(self) -> str:
        mount = next(one for one in (self.path, *self.path.parents) if os.path.ismount(one))
        free, size = self.free / MEGABYTE, self.size / MEGABYTE
        return f"the file system at {mount} has {free:,.1f} of {size:,.0f} MB free"


def free_space(path: Path) -> FreeSpace | None:
    """The file system of a path, or of its nearest folder that is there; None where the system does not say."""
    for there in (path, *path.parents):
        try:
            seen = os.statvfs(there)
        except (FileNotFoundError, NotADirectoryError):
            continue
        except OSError:
            return None
        files = seen.f_favail if seen.f_files else None
        return FreeSpace(there, seen.f_bavail * seen.f_frsize, files, seen.f_blocks * seen.f_frsize)
    return None


def told(path: Path) -> str:
    """What is left where `path` lies, in brackets for the end of a sentence; empty where the system does not say."""
    left = free_space(path)
    return f" ({left})" if left is not None else ""


def advice(error: Exception, path: Path) -> str:
    """One sentence on a file under `path` that could not be written: what is wrong, how much is free, what to do."""
    if not isinstance(error, OSError):
        return (str(error).strip().splitlines() or [type(error).__name__])[0]
    said = error.strerror or str(error)
    wrong, remedy = _ADVICE.get(error.errno or 0, (said, "check the disk, or choose another --out"))
    return f"{wrong}{told(path)}: {remedy}"
