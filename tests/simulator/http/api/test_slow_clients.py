"""Clients that send a byte now and then are sent away in time, and nobody waits for them."""

import time
from contextlib import ExitStack, suppress

import pytest

from .clients import BODY, answer, connected, head, status, to_the_end, whole

SLOW = 30


def trickle(endpoint, raw, enough_s):
    """`SLOW` clients that send `raw` byte by byte for a time, then read; what each received."""
    with ExitStack() as stack:
        wires = [stack.enter_context(connected(endpoint.port)) for _ in range(SLOW)]
        start = time.monotonic()
        for byte in raw:
            for wire in wires:
                with suppress(ConnectionError):
                    wire.sendall(bytes([byte]))
            assert status(answer(endpoint.port, whole())) == 200  # others are served meanwhile
            if time.monotonic() - start > enough_s:
                break
            time.sleep(0.05)
        return [to_the_end(wire) for wire in wires]


def connections(endpoint):
    return len(endpoint.process.net_connections(kind="tcp"))


def none_left(endpoint):
    for _ in range(150):
        if connections(endpoint) == 1:  # the one that listens
            return True
        time.sleep(0.1)
    return False


@pytest.mark.slow
def test_headers_that_never_end_are_cut_off(serve):
    endpoint = serve(keepalive_s=0.5)
    received = trickle(endpoint, head(len(BODY), b"x-long: " + b"a" * 2000), 1.5)
    assert received == [b""] * SLOW
    assert none_left(endpoint)


def test_a_connection_that_says_nothing_is_cut_off(serve):
    endpoint = serve(keepalive_s=0.3)
    with connected(endpoint.port) as wire:
        assert to_the_end(wire) == b""
    assert none_left(endpoint)


@pytest.mark.slow
def test_a_body_that_never_ends_is_refused(serve):
    endpoint = serve(body_timeout_s=0.5)
    with ExitStack() as stack:
        wires = [stack.enter_context(connected(endpoint.port)) for _ in range(SLOW)]
        for wire in wires:
            wire.sendall(head(len(BODY), b"connection: close\r\n") + BODY[:-1])
        received = [wire.recv(65536) for wire in wires]
    assert {status(one) for one in received} == {400}
    assert all(b"did not finish arriving" in one for one in received)
    assert none_left(endpoint)
