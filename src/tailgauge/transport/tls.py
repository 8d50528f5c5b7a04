"""TLS of one connection over memory buffers, so that reads keep their times."""

from __future__ import annotations

import ssl
from collections.abc import Sequence
from itertools import accumulate
from operator import sub
from struct import iter_unpack, pack

RECORD_SIZE = 16_384  # bytes of a record's plain text, at most

# Bytes, when the last arrived, when they were read, when none was there (0: unknown).
Read = tuple[bytes, int, int, int]


class Sealed:
    """Reads that are not decrypted yet: their bytes, and of each its size and its times (int64), as `_reader.c` appends them."""

    __slots__ = ("data", "times")

    def __init__(self) -> None:
        self.data = bytearray()
        self.times = bytearray()

    def __len__(self) -> int:
        return len(self.times) // 32

    def add(self, data: bytes, *times: int) -> None:
        """One more."""
        self.data += data
        self.times += pack("4q", len(data), *times)

    def take(self, count: int) -> tuple[bytes, bytes]:
        """The first so many, which are no longer here."""
        times = bytes(self.times[: 32 * count])
        del self.times[: 32 * count]
        size = sum(_sizes(times)) if self.times else len(self.data)
        data = bytes(self.data[:size])
        del self.data[:size]
        return data, times


def _sizes(times: bytes) -> list[int]:
    return [size for (size,) in iter_unpack("q24x", times)]


def reads_of(data: Sequence[bytes], times: bytes) -> list[Read]:
    """Reads with these bytes and times."""
    return [(one, *at) for one, at in zip(data, iter_unpack("8x3q", times), strict=True)]


class Tls:
    """State of TLS, without a socket."""

    def __init__(self, context: ssl.SSLContext, host: str) -> None:
        self._incoming = ssl.MemoryBIO()
        self._outgoing = ssl.MemoryBIO()
        self._state = context.wrap_bio(self._incoming, self._outgoing, server_hostname=host)
        self.over: str | None = None  # no more can be decrypted: why, or empty after a regular end

    def handshake(self, data: bytes) -> bool:
        """Go on with what was received; True at its end. `to_send` is to be sent then. Raises ssl.SSLError."""
        try:
            self._incoming.write(data)
            self._state.do_handshake()
        except ssl.SSLWantReadError:
            return False
        return True

    def to_send(self) -> bytes:
        """What is to be sent now."""
        return self._outgoing.read()

    def sealed(self, data: bytes) -> bytes:
        """These bytes as they are to be sent."""
        self._state.write(data)
        return self._outgoing.read()

    def unsealed(self, data: bytes, times: bytes) -> tuple[list[bytes], bytes]:
        """What sealed reads bring, and the times of those that bring something; `over` is set at the end of all.

        A record belongs to the read in which it ends.
        """
        decrypt = self._state.read
        incoming = self._incoming
        records = []
        lefts = []
        incoming.write(data)
        left = incoming.pending  # bytes that are to be decrypted
        try:
            while left:
                if not (record := decrypt(RECORD_SIZE)):
                    self.over = ""
                    break
                left = incoming.pending
                records.append(record)
                lefts.append(left)
        except ssl.SSLWantReadError:  # the rest of the record is to come
            pass
        except ssl.SSLError as error:
            is_regular = isinstance(error, ssl.SSLZeroReturnError)
            self.over = "" if is_regular else f"TLS: {error.reason or error}"
        behind = [*accumulate(_sizes(times), sub, initial=len(data))][1:]  # bytes behind each read
        if lefts == behind:
            return records, times
        plain = [b""] * len(behind)
        number = 0
        for record, left in zip(records, lefts, strict=True):
            while left < behind[number]:
                number += 1
            plain[number] += record
        filled = [at for at, text in enumerate(plain) if text]
        return [plain[at] for at in filled], b"".join([times[32 * at : 32 * at + 32] for at in filled])
