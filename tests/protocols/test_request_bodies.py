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


@pytest.mark.parametrize("protocol", ["anthropic", "openai"])
def test_messages_go_out_by_templates(seen, protocol):
    assert seen[protocol]["ready"] == seen[protocol]["calls"]


@pytest.mark.parametrize("protocol", ["batches", "sse"])
def test_calls_about_batches_and_an_applications_own_are_built_every_time(seen, protocol):
    assert seen[protocol]["ready"] == 0
