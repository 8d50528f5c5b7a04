"""Endpoints quicker than those of the other tests."""

from contextlib import ExitStack

import pytest
from starting.simulator import served

QUICK = {"ttft_ms": 1.0, "chunk_gap_ms": 0.2}


@pytest.fixture
def serve():
    """Start an endpoint with some values of `[simulated]` and options of the server."""
    with ExitStack() as stack:
        yield lambda table=None, **options: stack.enter_context(served(table or QUICK, options))


@pytest.fixture(scope="session")
def quick():
    """A quick endpoint, shared."""
    with served({**QUICK, "jobs": {"turnaround_s": 0.1}}) as started:
        yield started
