"""Every test of a connection runs with both readers."""

from __future__ import annotations

from importlib.util import find_spec

import pytest


@pytest.fixture(scope="module", params=["compiled", "python"])
def reader(request: pytest.FixtureRequest) -> str:
    """The compiled one where it was built."""
    if request.param == "compiled" and find_spec("tailgauge.transport._core") is None:
        pytest.skip(
            "the reader is not compiled here: that needs Linux, a C compiler and Python's headers"
        )
    return request.param
