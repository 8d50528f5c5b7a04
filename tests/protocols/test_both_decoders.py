"""Plain events decoded by compiled code give what the decoder in Python gives. What happens is in scripts/both_decoders.py."""

from __future__ import annotations

from importlib.util import find_spec
from typing import Any

import pytest

FEW, MANY = 200, 5000
NAMES = {
    "openai", "changing", "anthropic", "grammar_openai", "grammar_anthropic", "nearly_plain_openai", "nearly_plain_anthropic",
}  # fmt: skip


@pytest.mark.skipif(
    find_spec("tailgauge.transport._core") is None,
    reason="it is not compiled here: that needs Linux, a C compiler and Python's headers",
)
def test_streams_that_are_decoded_both_ways_give_the_same(run_script: Any, fuzz: Any) -> None:
    """However they are written, damaged, split over chunks and reads, and whenever Python looks."""
    seed, numbers, repeats_one = fuzz(FEW, MANY)
    only = [str(numbers[0])] if repeats_one else []

    facts = run_script(
        "protocols/scripts/both_decoders.py",
        "all",
        str(seed),
        str(len(numbers)),
        *only,
        timeout_s=1200,
    )

    assert facts.keys() == NAMES | {"stderr"}
    for name in NAMES:
        assert facts[name]["different"] == [], (
            f"{name}: number of the stream, fact, compiled, in Python"
        )
        assert repeats_one or facts[name]["plain"] > facts[name]["chunks"] / 50, (
            "else nothing was compared"
        )
