"""Which calls meet a fault, and what each kind does to an answer."""

from __future__ import annotations

from collections import Counter
from typing import get_args

import pytest

from tailgauge.scenario.simulated import FaultKind, FaultTable
from tailgauge.simulator.behaviours.faults import (
    CUT,
    END_MARK,
    ERROR_EVENT,
    FAULTS,
    NO_FAULT,
    RESET,
    Faults,
)

S = 1_000_000_000


def test_without_faults_every_answer_is_whole() -> None:
    assert Faults((), 1).draw("7/0/0") is NO_FAULT
    assert NO_FAULT.ending == END_MARK
    assert (NO_FAULT.chunk_delay_ns(3), NO_FAULT.end_delay_ns(3), NO_FAULT.breaks_at(3)) == (
        0,
        0,
        False,
    )


def test_every_kind_of_the_scenario_is_a_row() -> None:
    assert set(FAULTS) == set(get_args(FaultKind))


def test_faults_come_in_their_shares_and_a_call_meets_the_same_one_again() -> None:
    tables = (
        FaultTable(kind="status", share=0.1, status=429, retry_after_s=3),
        FaultTable(kind="status", share=0.05),
        FaultTable(kind="cut", share=0.2, at_chunk=5),
    )
    faults = Faults(tables, 4)
    keys = [f"{i}/0/0" for i in range(10_000)]
    met = Counter((fault.kind, fault.status) for fault in map(faults.draw, keys))

    for table in tables:
        assert met[table.kind, table.status] / len(keys) == pytest.approx(table.share, abs=0.016)
    assert [faults.draw(key) for key in keys[:50]] == [faults.draw(key) for key in keys[:50]]
    assert met != Counter((fault.kind, fault.status) for fault in map(Faults(tables, 5).draw, keys))


def test_a_share_of_one_is_every_call() -> None:
    faults = Faults((FaultTable(kind="cut", share=0.3), FaultTable(kind="reset", share=0.7)), 0)

    assert {faults.draw(str(i)).ending for i in range(1000)} == {CUT, RESET}


@pytest.mark.parametrize(
    ("table", "delays", "headers_s", "end_s", "breaks_after", "ending"),
    [
        (FaultTable(kind="error_event", share=1, at_chunk=2), [0, 0, 0], 0, 0, 2, ERROR_EVENT),
        (FaultTable(kind="cut", share=1), [0, 0, 0], 0, 0, 0, CUT),
        (FaultTable(kind="reset", share=1, at_chunk=9), [0, 0, 0], 0, 0, 9, RESET),
        (FaultTable(kind="stall", share=1, at_chunk=1, seconds=2), [0, 2, 2], 0, 0, None, END_MARK),
        (FaultTable(kind="stall", share=1, at_chunk=3, seconds=2), [0, 0, 0], 0, 2, None, END_MARK),
        (
            FaultTable(kind="slow_headers", share=1, at_chunk=2, seconds=1),
            [1, 1, 1],
            1,
            0,
            None,
            END_MARK,
        ),
        (FaultTable(kind="early_headers", share=1), [0, 0, 0], 0, 0, None, END_MARK),
    ],
    ids=lambda one: one.kind if isinstance(one, FaultTable) else "",
)
def test_what_a_fault_does_to_an_answer_of_three_chunks(
    table: FaultTable,
    delays: list[int],
    headers_s: int,
    end_s: int,
    breaks_after: int | None,
    ending: str,
) -> None:
    fault = Faults((table,), 0).draw("any")

    assert [fault.chunk_delay_ns(i) // S for i in range(3)] == delays
    assert (fault.headers_delay_ns // S, fault.end_delay_ns(3) // S) == (headers_s, end_s)
    assert (fault.breaks_after, fault.ending) == (breaks_after, ending)
    assert fault.headers_at_once == (table.kind == "early_headers")


def test_a_status_takes_the_place_of_the_answer() -> None:
    fault = Faults((FaultTable(kind="status", share=1, status=500, retry_after_s=7),), 0).draw(
        "any"
    )

    assert (fault.refuses, fault.status, fault.retry_after_s) == (True, 500, 7)
