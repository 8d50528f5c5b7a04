"""TLS: trusted by its authority's file, and refused with a reason. See scripts/tls.py."""

from __future__ import annotations

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
