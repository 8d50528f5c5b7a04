"""What two readers make of the same streams: every byte in its order, whatever the client does meanwhile."""

from __future__ import annotations

from typing import Any

import pytest

MOST_KEPT = 64 << 20  # bytes that wait for Python


@pytest.fixture(scope="module")
def seen(run_script: Any, reader: str) -> Any:
    return run_script("transport/scripts/reader.py", reader)


def test_no_byte_is_lost_doubled_or_moved_to_another_stream(seen: Any) -> None:
    """60 users with reused connections, cut at any byte; a quarter leaves anywhere, some answers end in the middle."""
    ends, wrong = seen["many"]["ends"], seen["many"]["wrong"]

    assert wrong == []
    assert sum(ends.values()) == 60 * 6
    assert ends["ok"] > 150
    assert ends["cancelled"] > 20
    assert ends["connection_closed"] > 10


def test_what_waits_for_a_busy_client_is_bounded(seen: Any) -> None:
    """96 MB come while it does nothing for a second: the kernel keeps what there is no room for."""
    flood = seen["flood"]

    assert (flood["size"], flood["same"], flood["cut"]) == (96 << 20, True, None)
    assert flood["grown"] < 3 * MOST_KEPT
