"""The quick way through plain content events does what the full reading does. What happens is in scripts/stencil.py."""

from __future__ import annotations

import pytest


@pytest.fixture(scope="module")
def seen(run_script):
    return run_script("protocols/scripts/stencil.py")


@pytest.mark.parametrize("protocol", ["openai", "anthropic"])
def test_streams_decoded_by_their_stencil_give_what_the_full_reading_gives(seen, protocol):
    facts = seen[protocol]

    assert facts["different"] == []
    assert facts["skimmed"] > facts["chunks"] / 10  # else nothing was compared
