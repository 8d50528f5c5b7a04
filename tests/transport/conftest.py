"""Every test of a connection runs with both readers."""

from __future__ import annotations

from collections.abc import Iterator
from importlib.util import find_spec

import pytest

NOT_COMPILED = "it is not compiled here: that needs Linux, a C compiler and Python's headers"


@pytest.fixture(scope="module", params=["compiled", "python"])
def reader(request: pytest.FixtureRequest) -> str:
    """The compiled one where it was built; `stopwatch()` takes it."""
    from transport import scripted_server

    if request.param == "compiled" and find_spec("tailgauge.transport._core") is None:
        pytest.skip(NOT_COMPILED)
    scripted_server.READER = request.param
    return request.param


@pytest.fixture
def reading_thread(reader: str) -> None:
    """Skip the test with the reader in Python."""
    if reader == "python":
        pytest.skip("it has no thread that reads, decodes and sends")


@pytest.fixture
def silent(capfd: pytest.CaptureFixture[str]) -> Iterator[None]:
    """Nothing is printed, above all no traceback of a greenlet."""
    yield
    assert capfd.readouterr() == ("", "")
