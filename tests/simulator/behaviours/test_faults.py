"""Which calls meet a fault, and what is left of their chunks."""

from __future__ import annotations

from collections import Counter

import pytest

from tailgauge.simulator.faults import (
    CUT,
    EARLY_HEADERS,
    ERROR_EVENT,
    RESET,
    SLOW_HEADERS,
    STALL,
    STATUS,
    Fault,
    FaultSettings,
    due_with,
    end_delay_ns,
    ends_stream,
    fault_of,
    pings_ns,
)

S = 1_000_000_000
DUE = [100, 200, 300]


def test_by_default_no_call_meets_a_fault_and_no_ping_is_sent() -> None:
    assert fault_of(FaultSettings(), "7/0/0") is None
    assert due_with(None, DUE) == DUE
    assert not ends_stream(None)
    assert end_delay_ns(None, 3) == 0
    assert pings_ns(FaultSettings(), 0, 10**12) == []


def test_faults_come_in_their_shares_and_a_call_meets_the_same_one_again() -> None:
    faults = (
        Fault(STATUS, 0.1, status=429, retry_after_s=3),
        Fault(STATUS, 0.05),
        Fault(CUT, 0.2, at_chunk=5),
    )
    settings = FaultSettings(faults, seed=4)
    keys = [f"{i}/0/0" for i in range(10_000)]
    met = Counter(fault_of(settings, key) for key in keys)

    for fault in faults:
        assert met[fault] / len(keys) == pytest.approx(fault.share, abs=0.016)
    assert [fault_of(settings, key) for key in keys[:50]] == [fault_of(settings, key) for key in keys[:50]]
    assert met != Counter(fault_of(FaultSettings(faults, seed=5), key) for key in keys)


def test_a_share_of_one_is_every_call() -> None:
    settings = FaultSettings((Fault(CUT, 0.3), Fault(RESET, 0.7)))

    assert None not in {fault_of(settings, str(i)) for i in range(1000)}


@pytest.mark.parametrize("shares", [(0.6, 0.6), (-0.1, 0.2)])
def test_shares_that_are_no_parts_of_a_whole_are_refused(shares: tuple[float, float]) -> None:
    with pytest.raises(ValueError, match="shares"):
        FaultSettings(tuple(Fault(CUT, share) for share in shares))


@pytest.mark.parametrize(
    ("fault", "due", "ends", "end_delay"),
    [
        (Fault(STATUS, 1), [], False, 0),
        (Fault(ERROR_EVENT, 1, at_chunk=2), [100, 200], True, 0),
        (Fault(CUT, 1), [], True, 0),
        (Fault(RESET, 1, at_chunk=9), DUE, True, 0),
        (Fault(STALL, 1, at_chunk=1, seconds=2), [100, 2 * S + 200, 2 * S + 300], False, 0),
        (Fault(STALL, 1, at_chunk=3, seconds=2), DUE, False, 2 * S),
        (Fault(SLOW_HEADERS, 1, at_chunk=2, seconds=1), [S + 100, S + 200, S + 300], False, 0),
        (Fault(EARLY_HEADERS, 1), DUE, False, 0),
    ],
    ids=lambda one: one.kind if isinstance(one, Fault) else "",
)
def test_what_a_fault_does_to_three_chunks(fault: Fault, due: list[int], ends: bool, end_delay: int) -> None:
    assert due_with(fault, DUE) == due
    assert ends_stream(fault) == ends
    assert end_delay_ns(fault, 3) == end_delay


def test_pings_keep_to_their_grid_within_the_stream() -> None:
    settings = FaultSettings(ping_every_s=0.5)

    assert pings_ns(settings, S, 3 * S) == [1_500_000_000, 2 * S, 2_500_000_000]
    assert pings_ns(settings, S, S + 1) == []
