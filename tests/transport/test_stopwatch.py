"""The kernel keeps the time: its stamps beside those of the sender, both of one run and one clock."""

from __future__ import annotations

import json
import subprocess
import sys
from pathlib import Path
from statistics import median
from typing import NamedTuple

import gevent
import pytest
from transport.scripted_server import Payload, block_process, call, stopwatch

from tailgauge.transport import connection
from tailgauge.transport.exchange import Exchange

pytestmark = [
    pytest.mark.gevent,
    pytest.mark.alone,
    pytest.mark.skipif(sys.platform != "linux", reason="only Linux stamps packets for us"),
]
SLACK_NS = 200_000  # of the wall clock's difference, which is measured to well under a microsecond
BLOCKED_NS = 100_000_000
SERVER = Path(__file__).with_name("pacing_server.py")


class Event(NamedTuple):
    """When it was read, when the server began and ended to send it, and whether the read ended with it."""

    arrived: int
    read_at: int
    begun: int
    sent: int
    ends_its_read: bool


def stall() -> None:
    """Stop the whole client, as a garbage collection would."""
    while True:
        gevent.sleep(0.03)
        block_process(BLOCKED_NS / 1e9)


def watched(*, user_clock: bool = False) -> tuple[Exchange, list[Event]]:
    """A call by a client that is asleep at the wheel, and the events."""
    with subprocess.Popen(
        [sys.executable, str(SERVER)], stdin=subprocess.PIPE, stdout=subprocess.PIPE
    ) as server:
        url = f"http://127.0.0.1:{int(server.stdout.readline())}"
        blocker = gevent.spawn(stall)
        exchange = Exchange(Payload())
        call(stopwatch(user_clock=user_clock), url, exchange=exchange)
        blocker.kill()
        sent = json.loads(server.stdout.readline())
        server.stdin.close()
    events = exchange.decoder.payload.split()[1::2]
    assert events == [b"%d" % number for number in range(20)], "no event is missing"
    seen = []
    for payload, _, arrived, read_at, _, at_rest in exchange.decoder.fed:
        *earlier, last = map(int, payload.split()[1::2])
        for number in earlier:
            seen.append(Event(arrived, read_at, *sent[number], ends_its_read=False))
        seen.append(Event(arrived, read_at, *sent[last], ends_its_read=at_rest))
    return exchange, seen


def test_the_stamps_are_the_kernels_however_late_the_client_looked(reader):
    """Loopback delivers within the send call, so a stamp lies between its begin and its return. The client was blocked for
    100 ms at a time; half of it is far more than any send took. The compiled reader read on."""
    exchange, events = watched()
    reads = [event for event in events if event.ends_its_read]
    late = median([read.arrived - read.sent for read in reads])

    assert not exchange.user_stamps
    assert min(read.arrived - read.begun for read in reads) >= -SLACK_NS
    assert late <= SLACK_NS
    assert all(read.arrived <= read.read_at + SLACK_NS for read in reads)
    if reader == "compiled":
        # Each event in a read of its own, but for a preemption of the reader.
        assert len(reads) >= 19
    else:
        assert exchange.receive_lag_max_ns > BLOCKED_NS // 4
        assert late < exchange.receive_lag_max_ns // 4

    fed = exchange.decoder.fed
    assert all(low <= arrived for _, low, arrived, *_ in fed)
    moments = [
        exchange.sent_at_ns,
        exchange.headers_at_ns,
        fed[0][2],
        fed[-1][2],
        exchange.ended_at_ns,
    ]
    assert moments == sorted(moments)


@pytest.mark.parametrize("whose", ["user", "elsewhere"])
def test_our_user_clock_instead_is_late_by_what_held_us_up_and_says_so(whose, reader, monkeypatch):
    """By choice, or on a system whose kernel stamps nothing: the rows must not claim a precision that nobody has."""
    if whose == "elsewhere":
        monkeypatch.setattr(connection, "KERNEL_STAMPS", False)
    exchange, events = watched(user_clock=whose == "user")
    late = [event.arrived - event.begun for event in events]

    assert exchange.user_stamps
    assert all(arrived == read_at for _, _, arrived, read_at, *_ in exchange.decoder.fed)
    assert exchange.receive_lag_max_ns == 0, "no second clock that could tell how late we were"
    typical = median(late) if reader == "compiled" else max(late)
    assert (typical > BLOCKED_NS // 4) == (reader == "python")
