"""TLS: trusted by its authority's file, and refused with a reason. See exercises/tls.py."""

from __future__ import annotations

import pytest


@pytest.fixture(scope="module")
def seen(exercise, tmp_path_factory):
    return exercise("transport/exercises/tls.py", tmp_path_factory.mktemp("certificates"))


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


@pytest.mark.parametrize("case", ["untrusted", "untrusted_by_default", "another_host"])
def test_a_certificate_that_is_not_trusted_is_told_as_such(seen, case):
    (only,) = seen[case]

    assert (only["failure"], only["status"], only["told"]) == ("tls_certificate", None, "ConnectError")
    assert only["message"].startswith("certificate not trusted: ")


@pytest.mark.parametrize(("case", "kind"), [("plain_server", "tls"), ("no_authority_file", "tls")])
def test_what_is_no_tls_is_told_as_such(seen, case, kind):
    (only,) = seen[case]

    assert (only["failure"], only["told"]) == (kind, "ConnectError")


def test_a_server_that_never_answers_a_handshake_is_a_time_out(seen):
    assert (seen["silent_server"]["failure"], seen["silent_server"]["told"]) == ("timeout", "ConnectError")
