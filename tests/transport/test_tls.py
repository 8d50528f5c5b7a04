"""TLS: trusted by its authority's file, refused with a reason, and decrypted. See scripts/tls.py and sealed.py."""

from __future__ import annotations

from statistics import median

import pytest


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

    assert (only["failure"], only["status"], only["reported"]) == ("tls_certificate", None, "ConnectError")
    assert only["message"].startswith("certificate not trusted: ")
    assert why in only["message"].replace("IP address", "mismatch: IP address")


@pytest.mark.parametrize(
    ("case", "kind", "why"),
    [("plain_server", "tls", "WRONG_VERSION_NUMBER"), ("old_protocol", "tls", "PROTOCOL_VERSION"),
     ("no_authority_file", "ca_file", "missing.pem: No such file"), ("no_certificate_in_it", "ca_file", "empty.pem: no PEM file")],
)  # fmt: skip
def test_what_is_no_tls_of_today_and_a_file_that_is_no_authority_are_reported_as_such(seen, case, kind, why):
    (only,) = seen[case]

    assert (only["failure"], only["reported"]) == (kind, "ConnectError")
    assert why in only["message"]


def test_a_server_that_never_answers_a_handshake_is_a_time_out(seen):
    assert (seen["silent_server"]["failure"], seen["silent_server"]["reported"]) == (
        "timeout",
        "ConnectError",
    )


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
    for before, (maybe, surely), stamp in zip([-1, *stamps], [f[2] for f in fed], stamps, strict=False):
        assert before <= maybe, (before, fed)
        assert surely < stamp, (stamp, fed)
    assert (sealed[version]["kernel"], sealed[version]["cut"]) == (True, None)


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


def test_an_endless_stream_of_small_records_is_kept_within_bounds(sealed):
    """Of what is sealed and of what is not decoded, each."""
    facts = sealed["many_small_records"]

    assert (facts["size"], facts["cut"]) == (20_001, None)
    assert facts["most"] < 2 * 65_536 + 4096
