"""What a batch is at any time: computed, so tested without waiting."""

from __future__ import annotations

import numpy as np
import pytest

from tailgauge.scenario.simulated import JobsTable
from tailgauge.simulator.http.api import Batch, BatchStore, Entry
from tailgauge.simulator.protocols.request import CallRequest

REQUEST = CallRequest("tiny", 3, 2, stream=False)
WRONG = Entry("wrong", None, 400, "max_tokens: no")


def batch(count: int = 10) -> Batch:
    return Batch(
        "b", 1000.0, 1010.0, (*(Entry(f"id-{i}", REQUEST) for i in range(count - 1)), WRONG)
    )


def test_results_come_in_another_order_and_each_once():
    ids = [entry.custom_id for entry in batch(100).results()]
    given = [entry.custom_id for entry in batch(100).entries]
    assert ids != given
    assert sorted(ids) == sorted(given)
    assert ids == [entry.custom_id for entry in batch(100).results()]


@pytest.mark.slow
def test_turnarounds_are_drawn_by_seed_and_number():
    def drawn(seed: int, sigma: float = 0.5) -> list[float]:
        store = BatchStore(JobsTable(turnaround_s=3.0, turnaround_sigma=sigma), seed)
        added = [store.add([Entry("a", REQUEST)], 1000.0) for _ in range(2000)]
        return [one.ended_s - one.created_s for one in added]

    assert drawn(1) == drawn(1)
    assert drawn(1) != drawn(2)
    logs = np.log(np.asarray(drawn(3)) / 3.0)
    assert abs(logs.mean()) < 4 * 0.5 / 2000**0.5
    assert logs.std() == pytest.approx(0.5, rel=0.08)
    assert set(drawn(1, 0.0)) == {3.0}
