"""TLS of one connection over memory buffers, so that reads keep their times."""

from __future__ import annotations

import ssl
from collections.abc import Sequence
from itertools import accumulate
from operator import sub

RECORD_SIZE = 16_384  # bytes of a record's plain text, at most

# Bytes, when the last arrived, when they were read, when none was there (0: unknown).
Read = tuple[bytes, int, int, int]


class Tls:
    """State of TLS, without a socket."""

    def __init__(self, context: ssl.SSLContext, host: str) -> None:
        self._incoming = ssl.MemoryBIO()
        self._outgoing = ssl.MemoryBIO()
        self._state = context.wrap_bio(self._incoming, self._outgoing, server_hostname=host)
        self.over: str | None = None  # no more can be decrypted: why, or empty after a regular end

    def handshake(self, data: bytes) -> bool:
        """Go on with what was received; True at the handshake's end. `to_send` is to be sent then. Raises ssl.SSLError."""
        try:
            self._incoming.write(data)
            self._state.do_handshake()
        except ssl.SSLWantReadError:
            return False
        return True

    def to_send(self) -> bytes:
        """Return what is to be sent now."""
        return self._outgoing.read()

    def sealed(self, data: bytes) -> bytes:
        """Return these bytes as they are to be sent."""
        self._state.write(data)
        return self._outgoing.read()

    def unsealed(self, reads: Sequence[Read]) -> list[Read]:
        """Return the reads that bring plain text, with their times; `over` is set at the end of all.

        Many at once take a third as long as one by one. A record belongs to the read in which it ends.
        """
        sizes = [len(read[0]) for read in reads]
        self._incoming.write(b"".join(read[0] for read in reads))
        texts = [b""] * len(reads)
        # Bytes that come after each read.
        rests = [*accumulate(sizes, sub, initial=sum(sizes))][1:]
        number = 0
        for record, rest in self._records():
            while rest < rests[number]:
                number += 1
            texts[number] += record
        return [(text, *read[1:]) for text, read in zip(texts, reads, strict=True) if text]

    def _records(self) -> list[tuple[bytes, int]]:
        """Return the plain text of every whole record, and the bytes that are left after it."""
        decrypt = self._state.read
        incoming = self._incoming
        records: list[tuple[bytes, int]] = []
        try:
            while incoming.pending:
                record = decrypt(RECORD_SIZE)
                if not record:
                    self.over = ""
                    break
                records.append((record, incoming.pending))
        except ssl.SSLWantReadError:  # the rest of the record is to come
            pass
        except ssl.SSLError as error:
            is_regular = isinstance(error, ssl.SSLZeroReturnError)
            self.over = "" if is_regular else f"TLS: {error.reason or error}"
        return records
