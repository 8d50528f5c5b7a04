"""The master's side of the transfer of parts: pieces arrive, complete and checked parts go into the run folder.

Nothing received is trusted. The channel, not the message, identifies the worker; a part is written under its own name
only, at its own end only, and counts once checksum and footer are right. A refused part stays with the worker.
"""

from __future__ import annotations

import contextlib
import hashlib
import re
from collections import defaultdict
from collections.abc import Callable
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

from tailgauge.rows.disk import MEGABYTE, advice, free_space
from tailgauge.rows.parquet import LARGEST, PIECE, checked_rows, compact
from tailgauge.rows.run_folder import RunFolder
from tailgauge.rows.schema import RECORDED

OPEN = 4  # unfinished parts per worker; with more of them the oldest is dropped
REMEMBERED = 64  # complete parts per worker whose checksum is kept to answer repeated pieces
RESERVE = 64 * MEGABYTE  # bytes left free for the master's own files
_RESERVED_FILES = 1000  # files left free, if the file system counts them
_NAME = re.compile(r"part-([0-9]{1,6})-(0|[1-9][0-9]{0,8})\.parquet")
_SHA256 = re.compile(r"[0-9a-f]{64}")

_Key = tuple[str, str]  # table, name


class _RefusedError(ValueError):
    """Why a piece is not taken."""


@dataclass(slots=True)
class _Incoming:
    """A part whose first `length` bytes have arrived."""

    path: Path  # of the complete part
    size: int
    sha256: str
    length: int = 0
    digest: Any = field(default_factory=hashlib.sha256)

    @property
    def temporary(self) -> Path:
        return self.path.with_suffix(".tmp")


class PartReceiver:
    """Parts of all workers of a run. `rows` are the rows received: worker -> table -> rows."""

    def __init__(self, folder: RunFolder, reserve: int = RESERVE) -> None:
        self._folder = folder
        self._reserve = reserve
        self._incoming: dict[int, dict[_Key, _Incoming]] = defaultdict(dict)
        self._whole: dict[int, dict[_Key, str]] = defaultdict(dict)
        self._folded: set[int] = set()
        self._is_closed = False
        self.rows: dict[int, dict[str, int]] = {}

    def take(self, worker: int, data: Any) -> dict[str, Any]:
        """Take a piece from `worker`. Return the answer, to which the caller adds the run. Never raises."""
        key = ("", "")
        refusal = None
        length = 0
        state = "refused"
        try:
            key = _checked_key(worker, data)
            _check_rest(data)
            length, is_whole = self._add_piece(worker, key, data)
            state = "done" if is_whole else "more"
        except ValueError as error:  # refused, here or by `checked_rows`
            refusal = str(error)
        except OSError as error:
            refusal = f"the master cannot write it: {advice(error, self._folder.path)}"
        if refusal is not None:
            self._forget(worker, key)
        return {"table": key[0], "name": key[1], "upto": length, "state": state, "why": refusal}

    def _add_piece(self, worker: int, key: _Key, data: dict[str, Any]) -> tuple[int, bool]:
        """Append a piece. Return the length of the part so far, and whether it is complete.

        The worker goes on at that length, so a piece that does not fit there, or was sent twice, only repeats the answer.
        A complete part is checked and moved to its place. `data` was checked by `take`. Raises ValueError with the reason
        if it is refused, OSError if it cannot be written.
        """
        checksum = self._whole[worker].get(key)
        if checksum is not None:
            if checksum != data["sha256"]:
                raise _RefusedError("another part of this name is already there")
            return data["size"], True
        if self._is_closed:
            raise _RefusedError("the run has ended, and its rows are counted")
        if worker in self._folded:
            raise _RefusedError("the rows of this worker are already folded")
        coming = self._incoming[worker].get(key)
        if coming is None:
            if data["offset"] != 0:
                return 0, False  # its begin was lost: the worker sends it again
            coming = self._begin(worker, key, data)
        elif (coming.size, coming.sha256) != (data["size"], data["sha256"]):
            raise _RefusedError("size or checksum differs from the piece before")
        if data["offset"] != coming.length:
            return coming.length, False
        self._check_space(coming.size - coming.length)
        _append(coming, data["bytes"])
        if coming.length == coming.size:
            self._finish(worker, key, coming)
        return coming.length, coming.length == coming.size

    def _begin(self, worker: int, key: _Key, data: dict[str, Any]) -> _Incoming:
        """Begin a part; the oldest unfinished one of this worker is dropped if there are too many."""
        path = self._folder.path / key[0] / key[1]
        if path.exists():
            raise _RefusedError("a part of this name is already there")
        incoming = self._incoming[worker]
        if len(incoming) >= OPEN:
            self._forget(worker, next(iter(incoming)))
        incoming[key] = _Incoming(path, data["size"], data["sha256"])
        return incoming[key]

    def _check_space(self, needed: int) -> None:
        space = free_space(self._folder.path)
        if space is None:
            return
        lacks_files = space.files is not None and space.files < _RESERVED_FILES
        if lacks_files or space.free < needed + self._reserve:
            raise _RefusedError(f"the master's disk is full: {space}")

    def _finish(self, worker: int, key: _Key, coming: _Incoming) -> None:
        if coming.digest.hexdigest() != coming.sha256:
            raise _RefusedError("the checksum of the received bytes is wrong")
        rows = checked_rows(coming.temporary, key[0])
        coming.temporary.rename(coming.path)
        self._incoming[worker].pop(key, None)
        whole = self._whole[worker]
        whole[key] = coming.sha256
        if len(whole) > REMEMBERED:
            del whole[next(iter(whole))]
        self.rows.setdefault(worker, dict.fromkeys(RECORDED, 0))[key[0]] += rows

    def _forget(self, worker: int, key: _Key) -> None:
        coming = self._incoming[worker].pop(key, None)
        if coming is not None:
            # A file system that has become read-only keeps its *.tmp.
            with contextlib.suppress(OSError):
                coming.temporary.unlink(missing_ok=True)

    def close(self) -> None:
        """Refuse all that still arrives, as from a worker that was given up and goes on: what is in the folder is counted."""
        self._is_closed = True
        for worker, incoming in self._incoming.items():
            for key in list(incoming):
                self._forget(worker, key)

    def fold(self, worker: int) -> list[str]:
        """Fold the parts of a worker into one per table, once, on a thread after the run. Return problems.

        Parts that cannot be folded stay readable. Later pieces of this worker are refused.
        """
        self._folded.add(worker)
        for key in list(self._incoming[worker]):
            self._forget(worker, key)
        problems = []
        for table in RECORDED:
            parts = self._parts(table, worker)
            try:
                if len(parts) > 1:
                    compact(table, parts, self._folder.part(table, worker, "all"))
            except Exception as error:  # noqa: BLE001 - whatever the pages hold: the parts stay and are reported
                cause = advice(error, self._folder.path)
                problems.append(
                    f"{table} of worker {worker}: {len(parts)} parts were not folded: {cause}"
                )
        return problems

    def _parts(self, table: str, worker: int) -> list[Path]:
        """Return the unfolded parts of a worker in the order written."""
        whole = self._folder.part(table, worker, "all")
        if whole.exists():
            return []
        parts = {}
        for path in whole.parent.glob(f"part-{worker}-*.parquet"):
            match = _NAME.fullmatch(path.name)
            if match:
                parts[int(match[2])] = path
        return [parts[number] for number in sorted(parts)]


def _append(coming: _Incoming, data: bytes) -> None:
    mode = "wb" if coming.length == 0 else "ab"
    with coming.temporary.open(mode) as file:
        file.write(data)
    coming.digest.update(data)
    coming.length += len(data)


def _is_size(value: Any) -> bool:
    return type(value) is int and 1 <= value <= LARGEST


def _is_offset(value: Any) -> bool:
    return type(value) is int and 0 <= value <= LARGEST


def _is_checksum(value: Any) -> bool:
    return type(value) is str and _SHA256.fullmatch(value) is not None


def _is_piece(value: Any) -> bool:
    return type(value) is bytes and 1 <= len(value) <= PIECE


# Keys of a piece beside table and name: key, test, expectation.
_KEYS: tuple[tuple[str, Callable[[Any], bool], str], ...] = (
    ("size", _is_size, f"1 to {LARGEST:,} bytes"),
    ("sha256", _is_checksum, "64 hexadecimal digits"),
    ("offset", _is_offset, f"0 to {LARGEST:,} bytes"),
    ("bytes", _is_piece, f"1 to {PIECE:,} bytes"),
)


def _checked_key(worker: int, data: Any) -> _Key:
    """Return table and name of a part of this worker; _RefusedError for anything else."""
    if type(data) is not dict:
        raise _RefusedError("a piece must be a table of keys")
    table = data.get("table")
    name = data.get("name")
    if type(table) is not str or table not in RECORDED:
        raise _RefusedError(f"table: expected one of {', '.join(RECORDED)}")
    match = None
    if type(name) is str and len(name) < 40:
        match = _NAME.fullmatch(name)
    if match is None or match[1] != str(worker):
        raise _RefusedError(f"name: expected part-{worker}-<number>.parquet")
    return table, match[0]


def _check_rest(data: dict[str, Any]) -> None:
    for key, is_right, expected in _KEYS:
        if not is_right(data.get(key)):
            raise _RefusedError(f"{key}: expected {expected}")
    if data["offset"] + len(data["bytes"]) > data["size"]:
        raise _RefusedError("bytes: more than the part's size")
