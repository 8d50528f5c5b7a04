"""Which batches are taken, kept, forgotten and refused."""

from __future__ import annotations

import pytest

from tailgauge.scenario.simulated import JobsTable
from tailgauge.simulator.http import api
from tailgauge.simulator.http.api import BatchStore, Entry, entries
from tailgauge.simulator.protocols import anthropic
from tailgauge.simulator.protocols.request import CallRequest, Refused

PARAMS = {"model": "tiny", "max_tokens": 3, "messages": [{"role": "user", "content": "abcd"}]}
REQUEST = CallRequest("tiny", 3, 1, stream=False)
SMALL = JobsTable(turnaround_s=1.0, turnaround_sigma=0.0)


def some(count: int) -> list[Entry]:
    return [Entry(str(i), REQUEST) for i in range(count)]


def taken(*requests):
    return list(entries({"requests": list(requests)}, anthropic.parse))


@pytest.mark.parametrize(
    ("params", "reason"),
    [
        (PARAMS | {"stream": True}, "stream"),
        (PARAMS | {"max_tokens": 0}, "max_tokens"),
        (PARAMS | {"temperature": 1}, "temperature"),
        ({}, "model"),
    ],
)
def test_wrong_params_are_an_errored_request_and_not_a_refused_batch(params, reason):
    right, wrong = taken({"custom_id": "a", "params": PARAMS}, {"custom_id": "b", "params": params})
    assert right == Entry("a", REQUEST)
    assert (wrong.request, wrong.status) == (None, 400)
    assert wrong.reason.startswith(reason)


@pytest.mark.parametrize(
    ("requests", "param"),
    [
        (None, "requests"),
        ([], "requests"),
        ({}, "requests"),
        (["x"], "requests.0"),
        ([{"params": PARAMS}], "requests.0.custom_id"),
        ([{"custom_id": "a b", "params": PARAMS}], "requests.0.custom_id"),
        ([{"custom_id": "a" * 65, "params": PARAMS}], "requests.0.custom_id"),
        ([{"custom_id": "a"}], "requests.0.params"),
        ([{"custom_id": "a", "params": PARAMS}] * 2, "requests.1.custom_id"),
    ],
)
def test_a_batch_that_is_none_is_refused(requests, param):
    with pytest.raises(Refused) as caught:
        list(entries({"requests": requests}, anthropic.parse))
    assert (caught.value.status, caught.value.param) == (400, param)


def test_a_batch_of_more_than_100_000_requests_is_refused_before_any_is_looked_at():
    with pytest.raises(Refused, match="100000"):
        next(entries({"requests": [None] * 100_001}, anthropic.parse))


def test_ended_batches_are_dropped_from_the_oldest_on_and_running_ones_do_not(monkeypatch):
    monkeypatch.setattr(api, "KEPT_REQUESTS", 5)
    store = BatchStore(SMALL, 1)
    first = store.add(some(2), 0.0)
    second = store.add(some(2), 0.5)
    third = store.add(some(3), 0.9)
    assert [store.get(batch.id) for batch in (first, second, third)] == [first, second, third]
    fourth = store.add(some(1), 1.2)
    assert [store.get(batch.id) for batch in (second, third, fourth)] == [second, third, fourth]
    with pytest.raises(Refused, match="No such"):
        store.get(first.id)


def test_only_an_ended_batch_has_results():
    store = BatchStore(SMALL, 1)
    batch = store.add(some(2), 0.0)
    with pytest.raises(Refused) as caught:
        store.ended(batch.id, 0.9)
    assert caught.value.status == 400
    assert store.ended(batch.id, 1.0) is batch
