"""Which read a TLS record belongs to."""

from __future__ import annotations

import contextlib
import random
import ssl
from typing import Any

import pytest
import trustme

from tailgauge.transport.tls import Tls


def pair(version: ssl.TLSVersion) -> tuple[Tls, Any, Any]:
    """A client, and its server with what that has to send."""
    trusting = ssl.create_default_context()
    authority = trustme.CA()
    authority.configure_trust(trusting)
    serving = ssl.SSLContext(ssl.PROTOCOL_TLS_SERVER)
    authority.issue_cert("127.0.0.1").configure_cert(serving)
    serving.minimum_version = serving.maximum_version = version
    client = Tls(trusting, "127.0.0.1")
    incoming = ssl.MemoryBIO()
    outgoing = ssl.MemoryBIO()
    server = serving.wrap_bio(incoming, outgoing, server_side=True)
    done = False
    data = b""
    while not done:
        done = client.handshake(data)
        incoming.write(client.to_send())
        with contextlib.suppress(ssl.SSLWantReadError):
            server.do_handshake()
        data = outgoing.read()
    outgoing.write(data)
    return client, server, outgoing


@pytest.mark.parametrize("seed", [1, 2, 3])
@pytest.mark.parametrize("version", [ssl.TLSVersion.TLSv1_2, ssl.TLSVersion.TLSv1_3])
def test_a_record_belongs_to_the_read_in_which_it_ends_however_reads_are_cut_and_stored(
    version, seed
):
    """Records of all sizes, in reads that hold a part of one to many; the session tickets come before the first."""
    drawn = random.Random(seed)
    client, server, outgoing = pair(version)
    stream, ends = outgoing.read(), {}
    for number in range(300):
        text = b"%d " % number + b"x" * drawn.choice([0, 5, 250, 250, 250, 5000, 16_000])
        server.write(text)
        stream += outgoing.read()
        ends[len(stream)] = text
    reads, at = [], 0
    while at < len(stream):
        size = drawn.choice([1, 3, 272, 600, 5000, 40_000])
        reads.append((stream[at : at + size], at, at + 1, at + 2))
        at += size
    expected = [
        (b"".join(text for end, text in ends.items() if at < end <= at + len(data)), at)
        for data, at, *_ in reads
    ]

    seen = []
    while reads:
        stored = drawn.choice([1, 1, 2, 20])
        seen += client.unsealed(reads[:stored])
        del reads[:stored]

    assert [(text, at) for text, at, *_ in seen] == [one for one in expected if one[0]]
    assert all((read_at, empty_at) == (at + 1, at + 2) for _, at, read_at, empty_at in seen)
    assert client.over is None


@pytest.mark.parametrize(("broken", "over"), [(False, ""), (True, "TLS: ")])
def test_what_comes_before_a_farewell_or_a_broken_record_is_kept_and_nothing_behind_it(
    broken, over
):
    client, server, outgoing = pair(ssl.TLSVersion.TLSv1_3)
    server.write(b"whole")
    data = outgoing.read()
    if broken:
        server.write(b"broken")
        record = bytearray(outgoing.read())
        record[-1] ^= 1
        data += record
    else:
        with pytest.raises(ssl.SSLWantReadError):
            server.unwrap()
        data += outgoing.read()

    seen = client.unsealed([(data, 1, 2, 3), (b"behind", 4, 5, 6)])

    assert seen == [(b"whole", 1, 2, 3)]
    assert client.over is not None
    assert client.over.startswith(over)
    assert bool(client.over) == broken
