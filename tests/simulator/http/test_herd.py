"""A thousand requests in one instant, on connections that are open: times here are the kernel's, against the endpoint's log."""

import json
import re
import resource
import select
import socket
import struct
import sys
import time
from contextlib import ExitStack
from statistics import median

import pytest

from tailgauge.clock import wall_minus_monotonic_ns

MS = 1_000_000
TTFT_NS = 400 * MS
PATH = {"anthropic": "/v1/messages", "openai": "/v1/chat/completions"}
CONTENT = {"anthropic": re.compile(b"text_delta"), "openai": re.compile(b'"content":"[^"]')}
SO_TIMESTAMPNS = 35

pytestmark = pytest.mark.skipif(sys.platform != "linux", reason="the kernel's stamps are Linux's")


@pytest.fixture
def many_descriptors():
    soft, hard = resource.getrlimit(resource.RLIMIT_NOFILE)
    resource.setrlimit(resource.RLIMIT_NOFILE, (hard, hard))
    yield
    resource.setrlimit(resource.RLIMIT_NOFILE, (soft, hard))


def herd(endpoint, protocol, number):
    """When each request was sent, and when its first content arrived."""
    body = {
        "model": "tiny",
        "max_tokens": 1,
        "stream": True,
        "messages": [{"role": "user", "content": "abcd"}],
    }
    raw = json.dumps(body).encode()
    with ExitStack() as stack:
        poll, sockets = select.epoll(), []
        for _ in range(number):
            one = stack.enter_context(socket.create_connection(("127.0.0.1", endpoint.port)))
            one.setsockopt(socket.SOL_SOCKET, SO_TIMESTAMPNS, 1)
            poll.register(one, select.EPOLLIN)
            sockets.append(one)
        at = {one.fileno(): i for i, one in enumerate(sockets)}
        head = f"POST {PATH[protocol]} HTTP/1.1\r\nHost: x\r\nContent-Length: {len(raw)}\r\nx-client-request-id: {protocol}/"
        requests = [f"{head}{i}/0/0\r\n\r\n".encode() + raw for i in range(number)]
        sent, seen, first = [0] * number, [b""] * number, {}
        while endpoint.process.num_fds() < number:  # they are all accepted
            time.sleep(0.01)
        for i, one in enumerate(sockets):
            sent[i] = time.monotonic_ns()
            one.sendall(requests[i])
        wall_ns, until = wall_minus_monotonic_ns(), time.monotonic() + 30
        while len(first) < number and time.monotonic() < until:
            for descriptor, _ in poll.poll(1):
                i = at[descriptor]
                data, ancillary, _, _ = sockets[i].recvmsg(65536, socket.CMSG_SPACE(16))
                assert data
                seen[i] += data
                if i not in first and CONTENT[protocol].search(seen[i]):
                    seconds, ns = struct.unpack("qq", ancillary[0][2])
                    first[i] = seconds * 1_000_000_000 + ns - wall_ns
        return {i: (sent[i], at_ns) for i, at_ns in first.items()}


@pytest.mark.parametrize("protocol", PATH)
def test_a_herd_is_answered_when_it_is_due_and_what_is_late_is_in_the_log(
    start, many_descriptors, protocol
):
    number = 1000
    endpoint = start({"ttft_ms": TTFT_NS / MS})
    times = herd(endpoint, protocol, number)
    rows = {row["request_id"]: row for row in endpoint.server_log(protocol)}
    assert len(times) == len(rows) == number

    late = [rows[i]["chunk_sent_at_ns"][0] - rows[i]["first_due_at_ns"] for i in range(number)]
    # The setting counts from the arrival of the request, which follows its sending by less than its answer.
    assert all(
        rows[i]["first_due_at_ns"] - rows[i]["received_at_ns"] == TTFT_NS for i in range(number)
    )
    assert median(rows[i]["received_at_ns"] - times[i][0] for i in range(number)) < TTFT_NS // 50
    # What exceeds the setting is the endpoint's own lateness, as it logs it.
    ttft = [first - sent for sent, first in times.values()]
    assert median(ttft) >= TTFT_NS
    unexplained = [times[i][1] - times[i][0] - late[i] for i in range(number)]
    assert abs(median(unexplained) - TTFT_NS) <= TTFT_NS // 20
    print(
        f"median TTFT {median(ttft) / MS:.1f} ms of {TTFT_NS / MS:.0f}, lateness in the log {median(late) / MS:.1f} ms"
    )
