"""What all processes together open in a folder, by the kernel's account (inotify)."""

from __future__ import annotations

import ctypes
import os
import struct
from collections.abc import Iterator
from pathlib import Path

IN_OPEN = 0x20
EVENT = struct.Struct("iIII")  # watch, mask, cookie, length of the name that follows


class Opened:
    """Watches a folder and the folders in it at that time; folders that appear later are watched from outside only."""

    def __init__(self, folder: Path) -> None:
        self._libc = ctypes.CDLL(None, use_errno=True)
        self._file = self._libc.inotify_init1(os.O_NONBLOCK | os.O_CLOEXEC)
        self._watched: dict[int, str] = {}
        for path in [folder, *sorted(folder.rglob("*"))]:
            if path.is_dir():
                watch = self._libc.inotify_add_watch(self._file, os.fsencode(path), IN_OPEN)
                assert watch >= 0, os.strerror(ctypes.get_errno())
                self._watched[watch] = path.relative_to(folder).as_posix()

    def names(self) -> set[str]:
        """Return what was opened since the last call, by its path from the folder; a folder that was listed ends in "/"."""
        return set(self._events())

    def _events(self) -> Iterator[str]:
        while True:
            try:
                data = os.read(self._file, 1 << 16)
            except BlockingIOError:
                return
            offset = 0
            while offset < len(data):
                watch, _, _, length = EVENT.unpack_from(data, offset)
                assert watch in self._watched, "the kernel lost events"
                offset += EVENT.size
                name = data[offset : offset + length].rstrip(b"\0").decode()
                offset += length
                yield f"{self._watched[watch]}/{name}".removeprefix("./")

    def close(self) -> None:
        os.close(self._file)
