"""Headroom of an endpoint that refuses inside a 200: the limit is found as where it refuses by a status."""

from __future__ import annotations

import pytest
from experiments.headroom.planted import LIMIT, conducted, sustained_by_bucket, tree

BURST, REFUSED = 10, 0.01  # calls that the bucket holds, and the allowed share
SHORT = {"step_s": 15.0, "confirm": 2, "growth": 1.6}


@pytest.mark.parametrize(
    ("limits", "binding"),
    [({"in_band": True}, "requests"), ({"in_band": True, "overload": True}, "capacity")],
    ids=["rate limit", "overload"],
)
def test_the_limit_is_found_where_its_errors_are_inside_a_200(tmp_path, limits, binding):
    planted = tree("requests", 1, **SHORT)
    planted["simulated"] = {"profile": "tiny", "limits": {"rpm": 600, "burst": BURST, **limits}}
    found = conducted(planted, tmp_path).answer.facts
    expected = sustained_by_bucket(LIMIT, BURST, REFUSED)

    assert found["low_per_s"] <= expected <= found["high_per_s"]
    assert found["binding"] == binding
