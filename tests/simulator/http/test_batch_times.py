"""What a batch is at any time: computed, so tested without waiting."""

from __future__ import annotations

import pytest

from tailgauge.simulator.http import batches
from tailgauge.simulator.http.batches import Batch, BatchSettings, Entry, described
from tailgauge.simulator.protocols.request import CallRequest, Refused

REQUEST = CallRequest("tiny", 3, 2, stream=False)
WRONG = Entry.errored("wrong", Refused(400, "max_tokens: no"))
URL = "http://example.test/v1/messages/batches/b"


def batch(count: int = 10, settings: BatchSettings | None = None, turnaround_s: float = 10.0) -> Batch:
    entries = (*(Entry(f"id-{i}", REQUEST) for i in range(count - 1)), WRONG)
    return Batch("b", 1000.0, turnaround_s, settings or BatchSettings(), entries)


def test_the_counts_change_only_at_the_end() -> None:
    one = batch()
    for now_s in (1000.0, 1005.0, 1009.99):
        shown = described(one, now_s, URL)
        assert shown["processing_status"] == "in_progress"
        assert shown["request_counts"] == {
            "processing": 10, "succeeded": 0, "errored": 0, "canceled": 0, "expired": 0,
        }  # fmt: skip
        assert shown["results_url"] is shown["ended_at"] is None
    shown = described(one, 1010.0, URL)
    assert shown["processing_status"] == "ended"
    assert shown["request_counts"] == {
        "processing": 0, "succeeded": 9, "errored": 1, "canceled": 0, "expired": 0,
    }  # fmt: skip
    assert shown["results_url"] == f"{URL}/results"
    assert shown["ended_at"] == "1970-01-01T00:16:50.000000Z"


@pytest.mark.parametrize(("after_s", "finished"), [(0.0, 0), (3.99, 3), (4.0, 4), (9.5, 9)])
def test_cancelling_keeps_what_had_finished(after_s: float, finished: int) -> None:
    one = batch()
    one.cancelled_s = 1000.0 + after_s
    shown = described(one, one.cancelled_s, URL)
    assert shown["processing_status"] == "canceling"
    assert shown["request_counts"]["processing"] == 10
    outcomes = [outcome for _, outcome in one.results()]
    assert outcomes.count("succeeded") == finished
    assert outcomes.count("canceled") == 10 - finished
    assert described(one, one.ended_s, URL)["processing_status"] == "ended"


def test_what_has_not_finished_in_time_expires() -> None:
    one = batch(settings=BatchSettings(expires_s=5.0))
    assert described(one, 1005.0, URL)["request_counts"] == {
        "processing": 0, "succeeded": 5, "errored": 0, "canceled": 0, "expired": 5,
    }  # fmt: skip
    assert described(one, 1005.0, URL)["ended_at"] == described(one, 1005.0, URL)["expires_at"]


def test_results_come_in_another_order_and_each_once() -> None:
    ids = [entry.custom_id for entry, _ in batch(100).results()]
    given = [entry.custom_id for entry in batch(100).entries]
    assert ids != given
    assert sorted(ids) == sorted(given)
    assert ids == [entry.custom_id for entry, _ in batch(100).results()]


def test_turnarounds_are_drawn_by_seed_and_number() -> None:
    spread = BatchSettings(turnaround_s=3.0, turnaround_sigma=0.5)
    drawn = [batches.turnaround_s(spread, 1, number) for number in range(200)]
    assert drawn == [batches.turnaround_s(spread, 1, number) for number in range(200)]
    assert len(set(drawn)) == 200
    assert sorted(drawn)[100] == pytest.approx(3.0, rel=0.15)
    assert batches.turnaround_s(BatchSettings(turnaround_s=3.0), 1, 1) == 3.0
