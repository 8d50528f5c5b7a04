"""Which calls meet a fault, and what each kind does to an answer."""

from collections import Counter
from typing import get_args

import pytest

from tailgauge.scenario.simulated import FaultKind, FaultTable
from tailgauge.simulator.behaviours.faults import (
    CUT,
    FAULTS,
    RESET,
    Faults,
)


def test_every_kind_of_the_scenario_is_a_row():
    assert set(FAULTS) == set(get_args(FaultKind))


def test_faults_come_in_their_shares_and_a_call_meets_the_same_one_again():
    tables = (
        FaultTable(kind="status", share=0.1, status=429, retry_after_s=3),
        FaultTable(kind="status", share=0.05),
        FaultTable(kind="cut", share=0.2, at_chunk=5),
    )
    faults = Faults(tables, 4)
    keys = [f"{i}/0/0" for i in range(10_000)]
    met = Counter((fault.kind, fault.status) for fault in map(faults.fault_of, keys))

    for table in tables:
        assert met[table.kind, table.status] / len(keys) == pytest.approx(table.share, abs=0.016)
    assert [faults.fault_of(key) for key in keys[:50]] == [
        faults.fault_of(key) for key in keys[:50]
    ]
    assert met != Counter(
        (fault.kind, fault.status) for fault in map(Faults(tables, 5).fault_of, keys)
    )


def test_a_share_of_one_is_every_call():
    faults = Faults((FaultTable(kind="cut", share=0.3), FaultTable(kind="reset", share=0.7)), 0)

    assert {faults.fault_of(str(i)).ending for i in range(1000)} == {CUT, RESET}
