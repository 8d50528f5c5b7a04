"""Quick endpoints, each in its own process."""

from contextlib import ExitStack

import pytest
from starting.simulator import served

QUICK = {"ttft_ms": 2.0, "chunk_gap_ms": 0.5}


@pytest.fixture
def start():
    """Start an endpoint with some values of `[simulated]` other than the quick ones, and options of the server."""
    with ExitStack() as stack:
        yield lambda table=None, **options: stack.enter_context(
            served(QUICK | (table or {}), options=options)
        )


@pytest.fixture(scope="session")
def endpoint():
    """A quick endpoint, shared: use a run name of your own."""
    with served(QUICK) as started:
        yield started
