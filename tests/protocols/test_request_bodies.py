"""What goes out is what the plain SDK would send, however it was built. What happens is in scripts/request_bodies.py."""

from __future__ import annotations

import pytest


@pytest.fixture(scope="module")
def seen(run_script):
    return run_script("protocols/scripts/request_bodies.py")


@pytest.mark.parametrize("protocol", ["anthropic", "openai", "batches", "sse"])
def test_every_kind_of_request_is_that_of_the_plain_sdk_byte_for_byte(seen, protocol):
    assert seen[protocol]["different"] == []
    assert seen[protocol]["calls"] >= 3


@pytest.mark.parametrize("protocol", ["anthropic", "openai", "batches", "sse"])
def test_headers_and_fields_of_a_scenario_are_sent_byte_for_byte_as_put_in_by_hand(seen, protocol):
    """Batches: into the parameters of each. A secret is no template, and a prompt is none either."""
    assert seen[f"{protocol}, added to"]["different"] == []
    assert seen[f"{protocol}, added to"]["calls"] >= 3


@pytest.mark.parametrize(
    "protocol", ["anthropic", "openai", "anthropic, added to", "openai, added to"]
)
def test_messages_go_out_by_templates(seen, protocol):
    assert seen[protocol]["ready"] == seen[protocol]["calls"]


@pytest.mark.parametrize("protocol", ["batches", "sse"])
def test_calls_about_batches_and_an_applications_own_are_built_every_time(seen, protocol):
    assert seen[protocol]["ready"] == 0


def test_base_urls_are_taken_as_users_have_them(seen):
    assert len(seen["addresses"]) > 20
    for given, (expected, address, path) in seen["addresses"].items():
        assert address == expected, given
        assert path is None or expected.endswith(path), given
        assert (path is None) == given.startswith("sse")
