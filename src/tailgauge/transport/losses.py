"""What TCP lost on the way, as far as this end knows: segments sent again, packets that came out of order.

Rule: the kernel counts, we ask (TCP_INFO): a few open connections a second in turn, and each one at its end. What the
peer sent again is not ours to see; what is seen here is that later packets came before earlier ones.
"""

from __future__ import annotations

import _socket
import struct
import sys

HAS_TCP_INFO = sys.platform == "linux"  # struct tcp_info is Linux's own
AT_ONCE = 64  # connections asked a second; 2 us each
_TCP_INFO = 11
_SIZE = 232
_SENT_AGAIN = struct.Struct("100xI").unpack_from  # tcpi_total_retrans
_OUT_OF_ORDER = struct.Struct("224xI").unpack_from  # tcpi_rcv_ooopack, which older kernels do not have

Lost = tuple[int, int]  # segments sent again, packets out of order


class Losses:
    """Sums over the connections of one transport, so far."""

    def __init__(self) -> None:
        self.sent_again = self.out_of_order = 0
        self._open: dict[_socket.socket, Lost] = {}  # as last seen; whose turn it is stands first

    def opened(self, raw: _socket.socket) -> None:
        """A connection is there."""
        if HAS_TCP_INFO:
            self._open[raw] = (0, 0)

    def closing(self, raw: _socket.socket) -> None:
        """A connection is about to be closed: asked a last time."""
        if (before := self._open.pop(raw, None)) is not None:
            self._read(raw, before)

    def look(self) -> Lost:
        """Ask the next few, and give the sums."""
        for _ in range(min(AT_ONCE, len(self._open))):
            raw = next(iter(self._open))
            self._open[raw] = self._read(raw, self._open.pop(raw))
        return self.sent_again, self.out_of_order

    def _read(self, raw: _socket.socket, before: Lost) -> Lost:
        try:
            now = lost(raw.getsockopt(_socket.IPPROTO_TCP, _TCP_INFO, _SIZE))
        except OSError:  # it has failed meanwhile: what it had told stands
            return before
        self.sent_again += max(0, now[0] - before[0])
        self.out_of_order += max(0, now[1] - before[1])
        return now


def lost(tcp_info: bytes) -> Lost:
    """What the kernel's answer says; nothing where it is shorter than it would have to be."""
    sent_again = _SENT_AGAIN(tcp_info)[0] if len(tcp_info) >= 104 else 0
    out_of_order = _OUT_OF_ORDER(tcp_info)[0] if len(tcp_info) >= 228 else 0
    return sent_again, out_of_order
