"""Thousands of wrong requests: each is answered or dropped, and the server is afterwards what it was before."""

from __future__ import annotations

import threading
import time
from collections import Counter
from concurrent.futures import ThreadPoolExecutor

import pytest

from .clients import ABUSES, BODY, answer, status, whole

CLIENTS = 4


def settled(endpoint):
    """Resident bytes and descriptors, once the connections are gone."""
    fds = endpoint.process.num_fds()
    for _ in range(100):
        time.sleep(0.1)
        before, fds = fds, endpoint.process.num_fds()
        if fds == before and not endpoint.process.net_connections(kind="tcp")[1:]:
            break
    return endpoint.process.memory_info().rss, fds


def abused(port: int, times: int) -> Counter[str]:
    """All kinds of abuse in turn, from a few clients at once; returns how often each was done."""
    names = list(ABUSES)
    done: Counter[str] = Counter()
    lock = threading.Lock()

    def one(turn):
        name = names[turn % len(names)]
        ABUSES[name](port, turn // len(names))
        with lock:
            done[name] += 1

    with ThreadPoolExecutor(CLIENTS) as pool:
        for finished in [pool.submit(one, turn) for turn in range(times)]:
            finished.result(60)
    return done


@pytest.mark.parametrize("name", ABUSES)
def test_the_server_stands(quick, name):
    for turn in range(20):
        ABUSES[name](quick.port, turn)
    assert status(answer(quick.port, whole())) == 200


@pytest.mark.slow
def test_memory_and_descriptors_come_back_after_thousands(serve):
    endpoint = serve()
    times = 10_000
    warming = times // 4  # they fill caches, pools and arenas
    _, at_start = settled(endpoint)
    done = abused(endpoint.port, warming)
    settled(endpoint)
    born = endpoint.objects()
    warm, _ = settled(endpoint)
    done += abused(endpoint.port, times - warming)
    settled(endpoint)
    kept = endpoint.objects() - born
    rss, fds = settled(endpoint)
    grown = rss - warm
    print(
        f"{times} requests: {grown / 2**20:.1f} MB on {warm / 2**20:.1f} MB, descriptors {at_start} -> {fds}"
    )
    assert sum(done.values()) == times
    assert fds <= at_start
    assert kept.pop("ServerLogRow") == kept.pop("list")
    assert kept.total() < 300, (
        kept
    )  # the same for a hundred times as many requests: nothing else stays
    # The server log keeps each call: half a kilobyte and 40 bytes a chunk. The rest is the allocator's and the
    # collector's, which the endpoint lets run seldom: it comes and goes, and does not add up.
    assert grown < warm // 5 + (times - warming) * 1024
    assert status(answer(endpoint.port, whole())) == 200


@pytest.mark.parametrize(
    "path", [b"/v1/messages", b"/v1/chat/completions", b"/v1/messages/batches"]
)
def test_a_body_of_more_than_32_mb_is_too_large_however_it_comes(quick, path):
    size = 32 * 2**20 + 1
    got = answer(quick.port, whole(b" " * size, path=path))
    assert status(got) == 413
    assert b"request_too_large" in got


def test_the_largest_body_that_fits_is_read(quick):
    padded = BODY + b" " * (32 * 2**20 - len(BODY))
    assert status(answer(quick.port, whole(padded))) == 200
