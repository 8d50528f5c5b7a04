"""TCP losses by the kernel's counters (TCP_INFO): retransmitted segments, packets received out of order.

A few open connections are read per second in rotation, and each one at its end. Retransmissions of the peer are not
visible here, except as packets out of order.
"""

from __future__ import annotations

import _socket
import struct
import sys

HAS_TCP_INFO = sys.platform == "linux"  # struct tcp_info is Linux's own
AT_ONCE = 64  # connections read per second; 2 us each
_TCP_INFO = 11
_SIZE = 232
_SENT_AGAIN = struct.Struct("100xI").unpack_from  # tcpi_total_retrans
# tcpi_rcv_ooopack, which older kernels do not have.
_OUT_OF_ORDER = struct.Struct("224xI").unpack_from

Lost = tuple[int, int]  # segments sent again, packets out of order


class Losses:
    """Sums over the connections of one transport, so far."""

    def __init__(self) -> None:
        self.sent_again = 0
        self.out_of_order = 0
        self._open: dict[_socket.socket, Lost] = {}  # last values; the next to read is first

    def opened(self, raw: _socket.socket) -> None:
        """Count a connection from now on."""
        if HAS_TCP_INFO:
            self._open[raw] = (0, 0)

    def closing(self, raw: _socket.socket) -> None:
        """Read a connection that is about to be closed a last time."""
        lost_before = self._open.pop(raw, None)
        if lost_before is not None:
            self._read(raw, lost_before)

    def look(self) -> Lost:
        """Read the next few and return the sums."""
        for _ in range(min(AT_ONCE, len(self._open))):
            raw = next(iter(self._open))
            self._open[raw] = self._read(raw, self._open.pop(raw))
        return self.sent_again, self.out_of_order

    def _read(self, raw: _socket.socket, lost_before: Lost) -> Lost:
        """Add what a connection has lost since then; returns its values."""
        try:
            values = lost(raw.getsockopt(_socket.IPPROTO_TCP, _TCP_INFO, _SIZE))
        except OSError:  # it has failed: keep its last values
            return lost_before
        self.sent_again += max(0, values[0] - lost_before[0])
        self.out_of_order += max(0, values[1] - lost_before[1])
        return values


def lost(tcp_info: bytes) -> Lost:
    """Return the losses in the kernel's answer; 0 for fields that it is too short for."""
    sent_again = 0
    out_of_order = 0
    if len(tcp_info) >= 104:
        sent_again = _SENT_AGAIN(tcp_info)[0]
    if len(tcp_info) >= 228:
        out_of_order = _OUT_OF_ORDER(tcp_info)[0]
    return sent_again, out_of_order
