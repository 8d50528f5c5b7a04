"""What TCP lost, from the kernel's own answers."""

import socket
import struct
import sys

import pytest

from tailgauge.transport.losses import AT_ONCE, HAS_TCP_INFO, Losses, lost


def answer(sent_again, out_of_order, size=232):
    facts = bytearray(size)
    struct.pack_into("=I", facts, 100, sent_again)
    if size >= 228:
        struct.pack_into("=I", facts, 224, out_of_order)
    return bytes(facts)


@pytest.mark.parametrize(
    ("facts", "numbers"),
    [
        (answer(3, 5), (3, 5)),
        (answer(3, 0, 192), (3, 0)),
        (b"", (0, 0)),
        (answer(2**32 - 1, 1), (2**32 - 1, 1)),
    ],
)
def test_the_answer_is_read_at_its_places(facts, numbers):
    assert lost(facts) == numbers


class Wire:
    """A socket that answers as the case wants."""

    def __init__(self, *answers):
        self.answers, self.asked = list(answers), 0

    def getsockopt(self, level, option, size):  # noqa: ARG002 - the socket's own names
        self.asked += 1
        facts = self.answers.pop(0) if self.answers else answer(0, 0)
        if isinstance(facts, OSError):
            raise facts
        return facts


@pytest.mark.skipif(not HAS_TCP_INFO, reason="only Linux tells")
def test_what_is_new_is_added_and_a_closed_connection_is_asked_once_more():
    losses, wire = Losses(), Wire(answer(1, 0), answer(1, 2), OSError(), answer(4, 2))
    losses.opened(wire)

    assert [losses.look() for _ in range(3)] == [(1, 0), (1, 2), (1, 2)]
    losses.closing(wire)
    losses.closing(wire)
    assert losses.look() == (4, 2)
    assert wire.asked == 4


@pytest.mark.skipif(not HAS_TCP_INFO, reason="only Linux tells")
def test_of_many_connections_some_are_asked_in_turn():
    losses, wires = Losses(), [Wire() for _ in range(AT_ONCE + 10)]
    for wire in wires:
        losses.opened(wire)
    for _ in range(2):
        losses.look()

    assert [wire.asked for wire in wires] == [2] * (AT_ONCE - 10) + [1] * 20


@pytest.mark.skipif(sys.platform != "linux", reason="only Linux tells")
def test_the_kernel_of_this_machine_answers():
    with (
        socket.create_server(("127.0.0.1", 0)) as server,
        socket.create_connection(server.getsockname()) as near,
    ):
        facts = near.getsockopt(socket.IPPROTO_TCP, 11, 232)

        assert len(facts) >= 104
        assert lost(facts) == (0, 0)
