"""TLS: trusted by its authority's file, refused with a reason, and decrypted. See scripts/tls.py and sealed.py."""

from __future__ import annotations

import contextlib
import random
import ssl
from statistics import median
from typing import Any

import pytest
import trustme

from tailgauge.transport.tls import Tls


@pytest.fixture(scope="module")
def seen(run_script, tmp_path_factory, reader):
    return run_script("transport/scripts/tls.py", tmp_path_factory.mktemp("certificates"), reader)


def test_an_authority_of_ones_own_is_trusted_through_its_file(seen):
    assert [(c["status"], c["payload"], c["is_new"]) for c in seen["trusted"]] == [
        (200, "ok", True),
        (200, "ok", False),
    ]
    assert seen["trusted"][0]["tls_ns"] > 0


def test_a_stream_under_tls_is_whole_and_has_kernel_stamps(seen):
    (only,) = seen["streamed"]

    assert only["payload"] == "".join(f"data: {i}\n\n" for i in range(2000))
    assert (only["cut"], only["done"], only["kernel"]) == (None, True, True)


@pytest.mark.parametrize(
    ("case", "why"),
    [("untrusted", "issuer"), ("untrusted_by_default", "issuer"), ("another_host", "mismatch"), ("expired", "expired"),
     ("self_signed", "self-signed")],
)  # fmt: skip
def test_a_certificate_that_is_not_trusted_is_reported_as_such(seen, case, why):
    (only,) = seen[case]

    assert (only["failure"], only["status"], only["reported"]) == (
        "tls_certificate",
        None,
        "ConnectError",
    )
    assert only["message"].startswith("certificate not trusted: ")
    assert why in only["message"].replace("IP address", "mismatch: IP address")


@pytest.mark.parametrize(
    ("case", "kind", "why"),
    [("plain_server", "tls", "WRONG_VERSION_NUMBER"), ("old_protocol", "tls", "PROTOCOL_VERSION"),
     ("no_authority_file", "ca_file", "missing.pem: No such file"), ("no_certificate_in_it", "ca_file", "empty.pem: no PEM file")],
)  # fmt: skip
def test_what_is_no_tls_of_today_and_a_file_that_is_no_authority_are_reported_as_such(
    seen, case, kind, why
):
    (only,) = seen[case]

    assert (only["failure"], only["reported"]) == (kind, "ConnectError")
    assert why in only["message"]


def test_a_server_that_never_answers_a_handshake_is_a_time_out(seen):
    assert (seen["silent_server"]["failure"], seen["silent_server"]["reported"]) == (
        "timeout",
        "ConnectError",
    )


def test_a_request_that_was_prepared_leaves_on_an_idle_connection(seen, reader):
    found = seen["prepared"]
    if reader == "python":
        assert found is None
        return
    assert [(call["status"], call["payload"], call["is_new"]) for call in found["calls"]] == [
        (200, "ok", False),
        (200, "ok", False),
    ]
    assert all(call["kept"] and call["sent"] for call in found["calls"])
    assert (found["requests"], found["connections"], found["idle"]) == (3, 1, True)


def test_a_connection_for_which_a_request_was_encrypted_is_used_for_no_other(seen, reader):
    """Withdrawn, above the in-flight cap, or gone: the request comes back, or not, and its connection is closed."""
    withdrawn = seen["prepared_and_withdrawn"]
    above = seen["prepared_above_the_cap"]
    gone = seen["prepared_for_a_connection_that_ends"]
    is_compiled = reader == "compiled"

    assert (withdrawn["withdrawn"], withdrawn["due"]) == ([True, False] if is_compiled else [], 0)
    assert (above["is_back"], gone["is_back"]) == ((True, True) if is_compiled else (None, None))
    for found in (withdrawn, above, gone):
        assert found["requests"] == 1
        assert not (is_compiled and found["idle"])


@pytest.fixture(scope="module")
def sealed(run_script, tmp_path_factory, reader):
    return run_script("transport/scripts/sealed.py", tmp_path_factory.mktemp("authority"), reader)


@pytest.mark.parametrize("version", ["TLSv1_2", "TLSv1_3"])
def test_what_a_record_brings_has_the_stamp_of_the_read_that_completed_it(sealed, version):
    """And a lower bound before it, at least of the read that brought something before. Pieces are numbered as they were sent."""
    fed = sealed[version]["fed"]
    stamps = [0, 1, 2, 5, 6, 7, 9]

    assert [(text, stamp, at_rest) for text, stamp, _, at_rest in fed] == [
        ("first", 0, True),
        ("alone", 1, True),
        ("one of twotwo of two", 2, True),
        ("over threeover three", 5, True),
        ("tw", 6, False),
        ("o halves", 7, True),
        ("xxxxxxxxxxxxxxxxxxxx", 9, True),
    ]
    for before, (maybe, surely), stamp in zip(
        [-1, *stamps], [f[2] for f in fed], stamps, strict=False
    ):
        assert before <= maybe, (before, fed)
        assert surely < stamp, (stamp, fed)
    assert (sealed[version]["kernel"], sealed[version]["cut"]) == (True, None)


@pytest.mark.patient
@pytest.mark.parametrize(
    ("case", "cut"),
    [("end_alone", None), ("end_with_an_event", None), ("end_like_an_event", None), ("farewell_alone", "connection_closed"),
     ("farewell_behind_an_event", "connection_closed"), ("no_record", "connection_reset")],
)  # fmt: skip
def test_the_end_of_an_answer_is_noticed_before_its_next_event_would_have_come(sealed, case, cut):
    """An end in a record of the size of all others is noticed late, once: this size is then looked at."""
    facts = sealed[case]

    assert set(facts["cut"]) == {cut}
    assert median(facts["late"]) < 0.5


def test_a_flood_of_records_beside_a_client_that_does_nothing_is_kept_within_bounds(sealed, reader):
    """What is sealed waits in the kernel: 24 MB come in records of 1 kB, while Python sleeps."""
    if reader == "python":
        pytest.skip("it keeps no reads")
    facts = sealed["many_small_records"]

    assert (facts["size"], facts["cut"]) == (facts["sent"], None)
    assert facts["grown"] < 6 << 20


def pair(version: ssl.TLSVersion) -> tuple[Tls, Any, Any]:
    """A client, and its server with what that has to send."""
    authority = trustme.CA()
    trusting, serving = ssl.create_default_context(), ssl.SSLContext(ssl.PROTOCOL_TLS_SERVER)
    authority.configure_trust(trusting)
    authority.issue_cert("127.0.0.1").configure_cert(serving)
    serving.minimum_version = serving.maximum_version = version
    client, incoming, outgoing = Tls(trusting, "127.0.0.1"), ssl.MemoryBIO(), ssl.MemoryBIO()
    server = serving.wrap_bio(incoming, outgoing, server_side=True)
    done, data = False, b""
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
