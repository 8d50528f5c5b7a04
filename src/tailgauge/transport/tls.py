"""TLS of one connection over memory buffers, so that reads keep their times."""

from __future__ import annotations

import ssl
from collections.abc import Iterator

RECORD_SIZE = 16_384  # bytes of a record's plain text, at most

# Bytes, when the last arrived, when they were read, when none was there (0: unknown).
Read = tuple[bytes, int, int, int]


class Tls:
    """State of TLS, without a socket."""

    def __init__(self, context: ssl.SSLContext, host: str) -> None:
        self._incoming, self._outgoing = ssl.MemoryBIO(), ssl.MemoryBIO()
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

    def unsealed(self, reads: list[Read]) -> Iterator[Read]:
        """What sealed reads bring, until `over` is set. A record belongs to the read in which it ends."""
        decrypt, incoming, record = self._state.read, self._incoming, b""
        behind = incoming.write(b"".join([read[0] for read in reads]))  # bytes behind a read
        left = incoming.pending  # bytes that are to be decrypted
        for data, arrived, now, empty in reads:
            behind -= len(data)
            plain = b""
            try:
                while record or left > behind:
                    if not record:
                        record, left = decrypt(RECORD_SIZE), incoming.pending
                        if not record:
                            self.over = ""
                            break
                    if left < behind:
                        break
                    plain += record
                    record = b""
            except ssl.SSLWantReadError:
                left = 0  # the rest of the record is to come
            except ssl.SSLError as error:
                is_regular = isinstance(error, ssl.SSLZeroReturnError)
                self.over = "" if is_regular else f"TLS: {error.reason or error}"
            if plain:
                yield plain, arrived, now, empty
            if self.over is not None:
                return
